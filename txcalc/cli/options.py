"""The options that commands share, said once. Lengths may be written `32k`; every value is checked by the library."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from txcalc.cli import completion
from txcalc.errors import Fault, InputError
from txcalc.units import parse_count, parse_tokens

if TYPE_CHECKING:
    from txcalc.model import Model

GROUPS = ("Model", "Workload", "Engine", "Traffic", "Money", "Output")  # of a help, in this order


class Flag(NamedTuple):
    """An option as every command has it: the group of help that it stands in, what it means, the word for its value,
    what the shell completes, and what it was called before, which is still read."""

    group: str
    meaning: str = ""
    value: str | None = None
    completes: completion.Completion | None = None
    before: tuple[str, ...] = ()


# One name for one thing: an option that several commands have means the same in all of them.
_SHARED = {
    "--set": Flag("Model", "Change a key of the description: h_kv=32, norm.place=post.", "K=V", completion.key),
    "--lora": Flag(
        "Model",
        "LoRA beside frozen weights: r=16,targets=q+v (targets=all: every linear layer of a block).",
        "K=V,…",
    ),
    "--ignore": Flag("Model", "Read a config.json without this key (text_config.width).", "KEY"),
    "--weights": Flag(
        "Model",
        "Format of the weights: native (as published), bf16, fp8, int4, Q4_K_M …",
        "FORMAT",
        completion.weights,
    ),
    "--dtype": Flag("Model", "Dtype of weights and activations: bf16, fp32, fp8, int4 …", "TYPE", completion.dtype),
    "--kv": Flag(
        "Model",
        "Dtype of the cache, whatever the weights are.",
        "TYPE",
        completion.cache,
        ("--kv-dtype", "--kv-dtypes"),
    ),
    "--params": Flag("Model", "Parameters: 8B.", "N"),
    "--text-only": Flag("Model", "Without the towers of a multimodal model."),
    "--memory": Flag("Model", "A size: 16GB (10^9) or 16GiB; all of it.", "SIZE"),
    "--all": Flag("Model", "Every preset."),
    "--batch": Flag("Workload", "Sequences, all of the same length.", "N", before=("--batches",)),
    "--tokens": Flag("Workload", "New tokens per sequence (32k = 32,768).", "N"),
    "--past": Flag("Workload", "Tokens already in the cache; above 0 is a decode step.", "N"),
    "--source-tokens": Flag("Workload", "Encoder positions of an encoder–decoder.", "N", before=("--source",)),
    "--context": Flag("Workload", "Tokens that a sequence holds, past and new.", "N", before=("--contexts",)),
    "--global-batch": Flag("Workload", "Sequences of a step, of all ranks (default: 2^20 tokens or more).", "N"),
    "--attention": Flag("Workload", "FLOPs of all T×S products, or only of the pairs that the mask lets through."),
    "--logits": Flag("Workload", "Logits for every position, or for the last."),
    "--mla": Flag("Workload", "How latent attention is computed (MLA)."),
    "--against": Flag("Workload", "What it is compared with:"),
    "--train-tokens": Flag("Workload", "Training tokens: 15T.", "N"),
    "--compute": Flag("Workload", "FLOPs of the whole training: 3.8e25.", "N"),
    "--gpu": Flag(
        "Engine",
        "An accelerator, and how many: h100-sxm:8 (txcalc presets --hardware), or a .toml file.",
        "NAME[:N]",
        completion.accelerator,
    ),
    "--layout": Flag("Engine", "How the ranks are laid out: tp=8,pp=16,dp=64.", "AXIS=N,…"),
    "--engine": Flag(
        "Engine",
        "Also count what an engine keeps for itself, by version: vllm, vllm@0.8, sglang, trtllm, llama.cpp, none.",
        "NAME[@V]",
        completion.engine,
    ),
    "--node": Flag("Engine", "GPUs per node (default: as sold).", "N"),
    "--network": Flag(
        "Engine", "Bandwidth of a GPU between nodes, one way, per second: 50GB (default: as sold).", "SIZE"
    ),
    "--ram": Flag(
        "Engine",
        "llama.cpp: host RAM for what does not fit on the GPUs, its bandwidth and its peak: 64GB@80GB/s.",
        "SIZE[@RATE[@PEAK]]",
    ),
    "--gpu-layers": Flag(
        "Engine", "llama.cpp: layers on the GPUs; the head counts as one.", "N", before=("-ngl", "--n-gpu-layers")
    ),
    "--n-cpu-moe": Flag(
        "Engine", "llama.cpp: the first N layers keep their experts in RAM.", "N|all", before=("-ncmoe",)
    ),
    "--pcie": Flag("Engine", "Bandwidth of copies from RAM to a GPU: 25GB/s.", "RATE"),
    "--block": Flag("Engine", "Tokens per page of the KV cache.", "N"),
    "--chunk": Flag("Engine", "Most prompt tokens per step (chunked prefill).", "N"),
    "--reserve": Flag("Engine", "Memory left to the engine and the driver: a share or a size.", "10%|4GiB"),
    "--recompute": Flag(
        "Engine", "Activations that backward computes again: none, core, blocks, every:N, layers:0,2.", "WHAT"
    ),
    "--optimizer": Flag(
        "Engine", "adamw, adamw-bf16, adamw-8bit, sgd, lion, muon, adafactor …", "NAME", completion.optimizer
    ),
    "--workers": Flag("Engine", "Processes that work side by side", "N"),
    "--recipe": Flag("Engine", "Other settings of the run:", "K=V,…"),
    "--device": Flag("Engine", "Where it runs: meta (computes nothing), cpu or cuda.", "NAME"),
    "--concurrency": Flag("Traffic", "Concurrent sequences (users).", "N", before=("--users",)),
    "--prompt": Flag("Traffic", "Tokens of a prompt.", "N"),
    "--as": Flag(
        "Output",
        "FLOPs as others count them: palm, megatron-lm, 6n … Several: repeat it, or commas.",
        "NAME",
        completion.convention,
    ),
    "--format": Flag("Output", "How the result is written."),
    "--json": Flag("Output", "Short for --format json: exact integers, a stable schema."),
    "--plot": Flag(
        "Output",
        "Also draw it: into a file, FILE.svg or FILE.png, or with - below the table (pip install 'txcalc[plot]').",
        "FILE|-",
    ),
    "--hardware": Flag("Output", before=("--gpus",)),
    "--force": Flag("Output", "Write over a file that is there."),
    "--out": Flag("Output", "Where it goes:", "FILE", before=("--output", "-o")),
}
# Options that one command has, whose declaration says the rest, by their group of its help.
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
TABLE = _SHARED | {f"--{flag}": Flag(group) for group, flags in _OWN.items() for flag in flags.split()}

OTHER = Flag("Output")  # of an option that stands nowhere above, as the tests would say

# What an option was called before, by command where another option has that name now.
RENAMED = {old: new for new, entry in TABLE.items() for old in entry.before} | {
    "--tokens": "--context",
    "--flops": "--compute",
}


def option(flag: str, more: str = "", several: bool = False, **declared: Any) -> Any:
    """An option of `TABLE`: what it means, and `more` about this command's; `several`: values separated by commas."""
    entry = TABLE.get(flag, OTHER)
    value = None if entry.value is None else entry.value + ",…" * several
    told = {"help": f"{entry.meaning} {more}".strip(), "metavar": value, "autocompletion": entry.completes, **declared}
    return typer.Option(flag, **told)


def own(text: str, value: str | None = None, completes: completion.Completion | None = None) -> Any:
    """An option that one command has, called as the keyword is: what it means, the word for its value, what the shell
    completes."""
    return typer.Option(help=text, metavar=value, autocompletion=completes)


def length(flag: str, more: str = "") -> Any:
    """A whole number as people write lengths: 2048, 32k, 1M."""

    def parse(value: str | int) -> int:
        return value if isinstance(value, int) else parse_tokens(value, flag)

    return option(flag, more, parser=parse, metavar="N")


def count(flag: str, more: str = "") -> Any:
    """A number as people write counts: 8B, 15T, 3.8e25."""
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
    """The format that `--format` and `--json` ask for together."""
    if json_ and format_ not in ("table", "json"):
        raise InputError("options", [f"--json and --format {format_} contradict each other"])
    return "json" if json_ else format_


def plotted(place: str | None, format_: FormatName, force: bool) -> str | None:
    """Where `--plot` draws, once it is known that it can. Errors: `InputError`, `MissingExtra`."""
    if place is None:
        if force:
            raise InputError("options", ["--force is of a file that is written"])
        return None
    from txcalc.render.draw import SUFFIXES, check
    from txcalc.sources.files import writable

    if place == "-":
        if format_ != "table":
            raise InputError("options", [f"--plot - draws below a table, and --format {format_} has none"])
    elif Path(place).suffix.lower() not in SUFFIXES:
        raise InputError("--plot", [Fault("--plot", place, f"a file named {' or '.join(SUFFIXES)}, or - to draw here")])
    check(place)
    if place != "-":
        writable(Path(place), force)
    return place


def model(source: str, set_: list[str] | None, ignore: list[str] | None) -> Model:
    """A model with its changes, and without keys of its config.json."""
    (found,) = models([source], ignore, changes(set_))
    return found


def models(
    sources: Sequence[str], ignore: list[str] | None, changes: Mapping[str, Any] | None = None, *, weights: bool = False
) -> list[Model]:
    """Models of which some may be presets: --ignore is for those that are a config.json, one at least. Likewise
    changes: one model is another by them."""
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
        raise InputError("--ignore", ["leaves keys out of a config.json, and none of these is one"])
    must_change(found, changes or {})
    return found


def must_change(models: Sequence[Model], changes: Mapping[str, Any]) -> None:
    """Errors: `InputError` where changes leave every model as it was."""
    if changes and not any(model.changed for model in models):
        from txcalc.sources.idle import changes_nothing

        where = ", ".join(model.origin for model in models)
        raise InputError(where, [changes_nothing(key, value) for key, value in changes.items()])


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
