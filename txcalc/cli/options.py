"""Options that commands share. Lengths may be written `32k`; the library checks every value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from txcalc.cli import completion
from txcalc.errors import Fault, InputError
from txcalc.questions.changes import must_change, parse_changes
from txcalc.units import parse_count, parse_tokens

if TYPE_CHECKING:
    from txcalc.model import Model

GROUPS = ("Model", "Workload", "Engine", "Traffic", "Money", "Output")  # sections of a help, in this order


class Flag(NamedTuple):
    """An option as every command has it: its help section, meaning, value placeholder, completion, and former names,
    which are still read."""

    group: str
    meaning: str = ""
    value: str | None = None
    completes: completion.Completion | None = None
    before: Sequence[str] = ()

    @classmethod
    def of(cls, *, completes: str | None = None, **said: Any) -> Flag:
        """From an entry of `options.json`, where `completes` names a function of `completion`."""
        return cls(**said, completes=getattr(completion, completes) if completes else None)


# An option has the same meaning in every command.
_SHARED: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
# Options of a single command, by section of its help.
_OWN = {
    "Model": "headers via layers vocab ratio gqa head tied match by initial",
    "Workload": "over quantity by-kind formulas input unique-tokens bytes-per-token law micro-batch",
    "Engine": "tp pp dp ep etp max-num-seqs poll gather draft acceptance framework zero schedule offload "
    "products stage host-link adapters adapter-rank overlap disaggregate fits-on train oracle symbolic limit rank "
    "ranks only torchrun cluster again like",
    "Traffic": "shared-prefix answer rate arrivals burstiness simulate requests seed prefix-hits ttft tpot",
    "Money": "price budget deadline pue grid measured",
    "Output": "detail emit record zero-cost to without-cache latex title help",
}
TABLE = {flag: Flag.of(**said) for flag, said in _SHARED.items()} | {
    f"--{flag}": Flag(group) for group, flags in _OWN.items() for flag in flags.split()
}

OTHER = Flag("Output")  # for an option missing above, which the tests report

# Former names; some differ by command, where another option has that name now.
RENAMED = {old: new for new, entry in TABLE.items() for old in entry.before} | {
    "--tokens": "--context",
    "--flops": "--compute",
}


def option(flag: str, more: str = "", several: bool = False, **declared: Any) -> Any:
    """An option of `TABLE`, with `more` help for this command; `several`: comma-separated values."""
    entry = TABLE.get(flag, OTHER)
    value = None if entry.value is None else entry.value + ",…" * several
    told = {"help": f"{entry.meaning} {more}".strip(), "metavar": value, "autocompletion": entry.completes, **declared}
    return typer.Option(flag, **told)


def own(text: str, value: str | None = None, completes: completion.Completion | None = None) -> Any:
    """An option of one command, named as its keyword: help, placeholder, completion."""
    return typer.Option(help=text, metavar=value, autocompletion=completes)


def length(flag: str, more: str = "") -> Any:
    """A length: 2048, 32k, 1M."""

    def parse(value: str | int) -> int:
        return value if isinstance(value, int) else parse_tokens(value, flag)

    return option(flag, more, parser=parse, metavar="N")


def count(flag: str, more: str = "") -> Any:
    """A count: 8B, 15T, 3.8e25."""
    return option(flag, more, parser=lambda value: parse_count(value, flag), metavar="N")


_SOURCE = (
    'A preset ("txcalc presets" lists them), a file (.toml, config.json, .safetensors, .gguf) or its folder, '
    'hf:org/name, or a description such as "D=512 h=8 F=1376 L=1".'
)
Source = Annotated[str, typer.Argument(help=_SOURCE, autocompletion=completion.source, metavar="SOURCE")]
Sources = Annotated[list[str], typer.Argument(help=_SOURCE, autocompletion=completion.source, metavar="SOURCE…")]
MaybeSources = Annotated[
    list[str] | None, typer.Argument(help=_SOURCE, autocompletion=completion.source, metavar="SOURCE…")
]
Set = Annotated[list[str] | None, option("--set", "Repeatable.")]
Lora = Annotated[str | None, option("--lora")]
Ignore = Annotated[list[str] | None, option("--ignore", "Repeatable.")]
Plot = Annotated[str | None, option("--plot")]
Force = Annotated[bool, option("--force")]
FormatName = Literal["table", "json", "csv", "markdown", "latex", "html"]
Format = Annotated[FormatName, option("--format")]
Json = Annotated[bool, option("--json")]


def chosen(format_: FormatName, json_: bool) -> FormatName:
    """The format that `--format` and `--json` select."""
    if json_ and format_ not in ("table", "json"):
        raise InputError("options", [f"--json and --format {format_} exclude each other"])
    return "json" if json_ else format_


def plotted(place: str | None, format_: FormatName, force: bool) -> str | None:
    """Checks `--plot` before anything is computed. Errors: `InputError`, `MissingExtra`."""
    if place is None:
        if force:
            raise InputError("options", ["--force needs a file to write"])
        return None
    from txcalc.render.draw import SUFFIXES, check
    from txcalc.sources.files import writable

    if place == "-":
        if format_ != "table":
            raise InputError("options", [f"--plot - needs --format table, not {format_}"])
    elif Path(place).suffix.lower() not in SUFFIXES:
        raise InputError("--plot", [Fault("--plot", place, f"a file named {' or '.join(SUFFIXES)}, or - to draw here")])
    check(place)
    if place != "-":
        writable(Path(place), force)
    return place


def model(source: str, set_: list[str] | None, ignore: list[str] | None) -> Model:
    """A model with changes and ignored config keys."""
    (found,) = models([source], ignore, parse_changes(set_))
    return found


def models(
    sources: Sequence[str], ignore: list[str] | None, changes: Mapping[str, Any] | None = None, *, weights: bool = False
) -> list[Model]:
    """Models, some of which may be presets: --ignore must apply to at least one config.json, and changes must change at
    least one model."""
    from txcalc import load

    found, taken = [], False
    for source in sources:
        try:
            found.append(load(source, changes, weights=weights, ignore=ignore or ()))
            taken = True
        except InputError as error:
            if error.where != "--ignore" or len(sources) == 1:
                raise
            found.append(load(source, changes, weights=weights))
    if ignore and not taken:
        raise InputError("--ignore", ["needs a config.json, and none of these is one"])
    must_change(found, changes or {})
    return found


def once(flag: str, given: Sequence[str] | None) -> str | None:
    """The value of an option that nobody means twice. Errors: `InputError` where it is given twice."""
    if given and len(given) > 1:
        raise InputError(flag, ["is given twice"])
    return given[0] if given else None


def numbers(text: str, flag: str) -> list[int]:
    """`4k,32k,128k` as whole numbers, without repeats."""
    return list(dict.fromkeys(parse_tokens(item, flag) for item in text.split(",")))


def adapters(text: str | None) -> dict[str, Any]:
    """`--lora r=16,targets=q+v` as changes of the description."""
    if text is None:
        return {}
    from txcalc.questions.phrases import adapters

    return adapters(text)[0]
