"""`show` on the command line: checkpoints without a config.json, headers of the hub, transformers' own module."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from txcalc.cli import options
from txcalc.cli.build import Call
from txcalc.cli.command import Command
from txcalc.cli.output import print_notes
from txcalc.errors import InputError
from txcalc.questions import options as o

STEP = ("recompute", "optimizer", "layout")  # of a training step


class COMMAND(Command):
    """Reads a bare --weights as --headers: it asks for the checkpoint's headers."""

    def parse_args(self, ctx: object, args: list[str]) -> list[str]:
        following = [*args, "-"][1:]
        bare = {i for i, arg in enumerate(args) if arg == "--weights" and following[i].startswith("-")}
        return super().parse_args(ctx, ["--headers" if i in bare else arg for i, arg in enumerate(args)])


def run(
    call: Call,
    *,
    headers: Annotated[
        bool, o.Option("hf:… only: also fetch the checkpoint's headers and check them.", group="Model")
    ] = False,
    via: Annotated[
        Literal["transformers"] | None,
        o.VIA,
    ] = None,
) -> Any:
    """Chooses what is shown."""
    from txcalc.sources import lone_checkpoint

    (source,), values = call.sources, call.values
    if via:
        return show_via(call, headers)
    more = values.get("conventions") or any(values[name] for name in STEP) or call.changes or call.ignore
    if not more and (stored := lone_checkpoint(source)):
        if call.plot:
            raise InputError("--plot", [f"needs a model, and {source} holds tensors alone"])
        from txcalc.questions.stored import show_stored

        return show_stored(stored)
    if headers and "/" not in source:
        print_notes([f"--headers is ignored: {source} is not a repository of the hub"])
    return call.ask(options.models([source], call.ignore, call.changes, weights=headers))


def show_via(call: Call, headers: bool) -> object:
    """Transformers' own module; options that do not apply are refused by name."""
    from txcalc.questions.show_via import show_via

    values = call.values
    defaults = {"attention": "dense", "logits": "all", "mla": "expanded"}
    given = {f"--{name}": values[name] not in (None, default) for name, default in defaults.items()}
    given |= {
        "--set": any(not key.startswith("lora.") for key in call.changes),
        "--lora": any(key.startswith("lora.") for key in call.changes),
        "--headers": headers,
        "--plot": bool(call.plot),
    }
    given |= {f"--{name}": bool(values[name]) for name in ("past", "weights", "initial", *STEP)}
    given["--as"] = bool(values.get("conventions"))
    if faults := [f"{name} does not work with --via transformers (drop it)" for name in given if given[name]]:
        raise InputError("options", faults)
    return show_via(
        call.sources[0],
        batch=values["batch"],
        tokens=values["tokens"] or 1,
        source_tokens=values["source_tokens"],
        dtype=values["dtype"],
        ignore=call.ignore or (),
    )
