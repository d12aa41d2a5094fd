"""`show`, `compare`, `diff`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import txcalc
from txcalc.cli import options as o
from txcalc.cli.command import Command, Printing, command
from txcalc.cli.output import tell
from txcalc.errors import InputError
from txcalc.questions.changes import parse_changes
from txcalc.questions.phrases import adapters

if TYPE_CHECKING:
    from txcalc.render.report import DataReport as Report

STEP = ("recompute", "optimizer", "layout")  # of a training step


class _Show(Command):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """A bare --weights asks for the checkpoint's headers, as --headers does."""
        after = [*args, "-"][1:]
        bare = {i for i, arg in enumerate(args) if arg == "--weights" and after[i].startswith("-")}
        return super().parse_args(ctx, ["--headers" if i in bare else arg for i, arg in enumerate(args)])


@command(
    drawn=True,
    cls=_Show,
    tokens=o.length("--tokens", "Default: the context, at most 2,048; 1 with --past."),
    source_length=o.length(
        "--source-tokens", "Default: as many as tokens. For a picture of any size, its tokens (default: 256)."
    ),
    weights=o.option("--weights", "Default: --dtype."),
    conventions=Annotated[
        list[str],
        o.option(
            "--as",
            "Term by term. Also chinchilla, megatron, megatron-model, llm-foundry, nanotron, nanogpt, torchtitan, "
            "llama-3, transformers, 2n; and korthikanti for activation bytes.",
        ),
    ],
    layout=o.option("--layout", "Adds a training step of its fullest rank."),
    initial=o.own("Adds the initialisation of every parameter."),
)
def show(
    source: o.Source,
    set_: o.Set = None,
    lora: o.Lora = None,
    ignore: o.Ignore = None,
    *,
    headers: Annotated[
        bool, typer.Option("--headers", help="hf:… only: also fetch the checkpoint's headers and check them.")
    ] = False,
    via: Annotated[
        Literal["transformers"] | None,
        typer.Option(
            help="For a config.json that txcalc does not read: measure transformers' own module, on the meta device."
        ),
    ] = None,
    printing: Printing,
    **asked: Any,
) -> Any:
    """What a model costs: parameters, FLOPs, cache and memory, and how wrong the rules of thumb are.

    Example: txcalc show llama-3.1-8b --tokens 2k
    """
    from txcalc.sources import lone_checkpoint

    if via:
        usual = {"attention": "dense", "logits": "all", "mla": "expanded"}
        others = {f"--{name}": asked[name] != value for name, value in usual.items()}
        wanted = {"set": set_, "lora": lora, "headers": headers, "plot": printing.place}
        wanted |= {name: asked[name] for name in ("past", "weights", "initial", *STEP)}
        wanted |= {"as": asked.get("conventions")}
        others |= {f"--{name}": bool(value) for name, value in wanted.items()}
        return _via(
            source, asked["batch"], asked["tokens"] or 1, asked["source_length"], asked["dtype"], ignore, others
        )
    more = "conventions" in asked or any(asked[name] for name in STEP)
    lone = None if set_ or lora or ignore or more else lone_checkpoint(source)
    if lone:
        if printing.place:
            raise InputError("--plot", [f"needs a model, and {source} holds tensors alone"])
        from txcalc.render import checkpoint

        return checkpoint.report(lone)
    if headers and "/" not in source:
        tell([f"--headers is ignored: {source} is not a repository of the hub"])
    (model,) = o.models([source], ignore, parse_changes(set_) | adapters(lora)[0], weights=headers)
    return txcalc.show(model, **asked)


def _via(
    source: str,
    batch: int,
    tokens: int,
    source_length: int | None,
    dtype: str,
    ignore: Sequence[str] | None,
    others: Mapping[str, bool],
) -> Report:
    """The report of transformers' own module; options that do not apply are refused by name."""
    from importlib.util import find_spec

    from txcalc.errors import InputError, MissingExtra, TxcalcError
    from txcalc.sources import build, hub, huggingface
    from txcalc.units import bits_of

    if not find_spec("transformers"):
        raise MissingExtra("--via transformers", "transformers", "transformers")
    from txcalc.render.via import Described, report
    from txcalc.verification.via import measure

    faults = [f"{name} does not work with --via transformers (drop it)" for name in others if others[name]]
    if faults:
        raise InputError("options", faults)
    bits_of(dtype)
    if source.startswith("hf:"):
        data, where, name = hub.parsed(hub.repository(source))
    else:
        data, where, name = huggingface.parsed_file(source)
    ignored = list[str]()
    if ignore:
        data, ignored = huggingface.without(data, where, ignore)
    found = measure(data, where, batch, tokens, source_length)
    try:
        model = build(*huggingface.describe(data, where, name))
        ledger = model.ledger(batch, tokens, 0, found.sizes[2])
        described = Described(ledger.total("params"), ledger.total("flops"))
    except TxcalcError:
        described = None
    return report(found, name or data["model_type"], where, data["model_type"], dtype, described, ignored)
