"""The options that commands share, said once. Lengths may be written `32k`; every value is checked by the library."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from txcalc.errors import Fault, InputError
from txcalc.units import parse_tokens


def length(flag: str, text: str) -> Any:
    """A whole number as people write lengths: 2048, 32k, 1M."""

    def parse(value: str | int) -> int:
        return value if isinstance(value, int) else parse_tokens(value, flag)

    return typer.Option(flag, parser=parse, help=text, metavar="N")


def complete_source(incomplete: str) -> list[str]:
    """Presets that begin with what is typed."""
    from txcalc.sources.presets import names

    return [name for name in names() if name.startswith(incomplete)]


_SOURCE = (
    'A preset ("txcalc presets" lists them), a file (.toml, config.json, .safetensors, .gguf) or its folder, '
    'hf:org/name, or a description such as "D=512 h=8 F=1376 L=1".'
)
Source = Annotated[str, typer.Argument(help=_SOURCE, autocompletion=complete_source, metavar="SOURCE")]
Sources = Annotated[list[str], typer.Argument(help=_SOURCE, autocompletion=complete_source, metavar="SOURCE…")]
MaybeSources = Annotated[
    list[str] | None, typer.Argument(help=_SOURCE, autocompletion=complete_source, metavar="SOURCE…")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a key of the description: h_kv=32, norm.place=post. Repeatable.", metavar="K=V"),
]
_LORA = "LoRA beside frozen weights: r=16,targets=q+v (targets=all: every linear layer of a block)"
Lora = Annotated[str | None, typer.Option("--lora", help=f"{_LORA}.", metavar="K=V,…")]
LoraOf = Annotated[
    str | None,
    typer.Option(
        "--lora",
        help=f"{_LORA}; base=nf4-dq quantises the frozen matrices, dtype=fp32 is the adapters'.",
        metavar="K=V,…",
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore", help="Read a config.json without this key (text_config.width). Repeatable.", metavar="KEY"
    ),
]
Batch = Annotated[int, length("--batch", "Sequences in the batch.")]
Tokens = Annotated[int, length("--tokens", "New tokens per sequence (32k = 32,768).")]
Past = Annotated[int, length("--past", "Tokens already in the cache; above 0 is a decode step.")]
MaybeBatch = Annotated[int | None, length("--batch", "Sequences in the batch, unless swept (default: 1).")]
MaybeTokens = Annotated[int | None, length("--tokens", "New tokens per sequence, unless swept (default: 1).")]
MaybePast = Annotated[int | None, length("--past", "Tokens already in the cache, unless swept (default: 0).")]
SourceLength = Annotated[
    int | None, length("--source", "Encoder positions of an encoder–decoder (default: as many as tokens).")
]
Dtype = Annotated[str, typer.Option(help="Dtype of weights and activations: bf16, fp32, fp8, int4 …", metavar="TYPE")]
KvDtype = Annotated[str, typer.Option(help="Dtype of the cache, whatever the weights are.", metavar="TYPE")]
Attention = Annotated[
    Literal["dense", "masked"],
    typer.Option(help="Headline FLOPs: all T×S products, or only the pairs that the mask lets through."),
]
Logits = Annotated[Literal["all", "last"], typer.Option(help="Logits for every position, or for the last.")]
Mla = Annotated[Literal["expanded", "absorbed"], typer.Option(help="How latent attention is computed (MLA).")]
Plot = Annotated[
    str | None,
    typer.Option(
        help="Also draw it: into a file, FILE.svg or FILE.png, or with - below the table (pip install 'txcalc[plot]').",
        metavar="FILE|-",
    ),
]
Layout = Annotated[
    str | None,
    typer.Option(
        "--layout",
        help="Of one rank of a layout, and what it sends: tp=8,dp=2,ep=8 (tp, dp, ep, etp).",
        metavar="NAME=N,…",
    ),
]
FormatName = Literal["table", "json", "csv", "markdown", "latex", "html"]
Format = Annotated[FormatName, typer.Option("--format", help="How the result is written.")]
Json = Annotated[bool, typer.Option("--json", help="Short for --format json: exact integers, a stable schema.")]


def chosen(format_: FormatName, json_: bool) -> FormatName:
    """The format that `--format` and `--json` ask for together."""
    if json_ and format_ not in ("table", "json"):
        raise InputError("options", [f"--json and --format {format_} contradict each other"])
    return "json" if json_ else format_


def plotted(place: str | None, format_: FormatName) -> str | None:
    """Where `--plot` draws, once it is known that it can. Errors: `InputError`, `MissingExtra`."""
    if place is None:
        return None
    from txcalc.render.draw import SUFFIXES, check

    if place == "-":
        if format_ != "table":
            raise InputError("options", [f"--plot - draws below a table, and --format {format_} has none"])
    elif Path(place).suffix.lower() not in SUFFIXES:
        raise InputError("--plot", [Fault("--plot", place, f"a file named {' or '.join(SUFFIXES)}, or - to draw here")])
    check(place)
    return place


def numbers(text: str, flag: str) -> list[int]:
    """`4k,32k,128k` as whole numbers, each once."""
    return list(dict.fromkeys(parse_tokens(item, flag) for item in text.split(",")))


def changes(pairs: list[str] | None) -> dict[str, Any]:
    """`--set key=value` as a mapping; a value is a number (`32k`), or as TOML writes it, or a bare text."""
    result: dict[str, Any] = {}
    faults: list[Fault | str] = []
    for pair in pairs or ():
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not key or not value:
            faults.append(Fault("--set", pair, "KEY=VALUE", "--set h_kv=32"))
        elif key in result:
            faults.append(f"--set {key} is given twice")
        else:
            result[key] = _value(value)
    if faults:
        raise InputError("options", faults)
    return result


def variants(groups: list[str] | None) -> list[dict[str, Any]]:
    """Each `--set` as the changes of one variant: `h_kv=8`, or several at once, `h_kv=8,F=12k`."""
    return [changes(re.split(r",\s*(?=[A-Za-z_][\w.]*\s*=)", group)) for group in groups or ()]


def lora(text: str | None, more: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, str]]:
    """`--lora r=16,targets=q+v` as changes of the description; and what it says beside (`more`)."""
    changes: dict[str, Any] = {}
    beside: dict[str, str] = {}
    faults: list[Fault | str] = []
    for pair in text.split(",") if text is not None else ():
        key, _, value = (piece.strip() for piece in pair.partition("="))
        if key in ("r", "rank") and value.isascii() and value.isdecimal() and len(value) < 10:
            changes["lora.rank"] = int(value)
        elif key in ("targets", "modules") and value:
            changes["lora.modules"] = value.split("+")
        elif key in more and value:
            beside[key] = value
        else:
            known = ", ".join(("r=16", "targets=q+v", *(f"{name}=…" for name in more)))
            faults.append(Fault("--lora", pair, f"some of {known}"))
    if text is not None and not faults and "lora.rank" not in changes:
        faults.append(Fault("--lora", text, "a rank", "r=16,targets=q+v"))
    if faults:
        raise InputError("options", faults)
    return changes, beside


def _value(text: str) -> Any:
    try:
        return parse_tokens(text)
    except InputError:
        pass
    if text.count(".") > 200:
        return text  # a dotted key takes the square of its length
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return text
