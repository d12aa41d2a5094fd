"""`txcalc report`: one file that explains models and plans, without a server or a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txcalc.cli import completion
from txcalc.cli import options as o
from txcalc.errors import InputError, TxcalcError

if TYPE_CHECKING:
    from txcalc.model import Model
    from txcalc.render.page.plans import Grid

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_GPU = (
    "Also plan serving on these: memory, speed, cost, the engines' commands, at every point of a grid. Repeatable."
    " Without a number: the fewest that do."
)
_TRAIN = "Also plan training on so many: memory of every rank, the step, the pipeline. Repeatable."
_LAYOUT = "Of training: tp=8,pp=4,dp=2. Repeatable. Without: the fastest layouts that fit."
RUNS = 6  # layouts of a search that the page has


@app.command()
def report(
    sources: o.Sources,
    output: Annotated[Path, o.option("--out", "the page.")],
    gpu: Annotated[list[str] | None, o.option("--gpu", _GPU, metavar="NAME[:N][@PRICE]")] = None,
    context: Annotated[
        str | None, o.option("--context", "Of the grid (default: 2k,8k,32k,128k).", several=True)
    ] = None,
    concurrency: Annotated[
        str | None, o.option("--concurrency", "Of the grid (default: 1,8,32,128,512).", several=True)
    ] = None,
    weights: Annotated[str | None, o.option("--weights", "Of the grid (default: native).", several=True)] = None,
    kv: Annotated[str | None, o.option("--kv", "Of the grid (default: bf16,fp8).", several=True)] = None,
    train: Annotated[
        list[str] | None, typer.Option(help=_TRAIN, autocompletion=completion.accelerator, metavar="NAME:N[@PRICE]")
    ] = None,
    layout: Annotated[list[str] | None, o.option("--layout", _LAYOUT)] = None,
    tokens: Annotated[int | None, o.length("--tokens", "Of training (default: 4,096 or the context).")] = None,
    global_batch: Annotated[int | None, o.length("--global-batch", "Of training.")] = None,
    title: Annotated[str | None, typer.Option(help="What the page is called.", metavar="TEXT")] = None,
    force: Annotated[bool, o.option("--force")] = False,
    set_: o.Set = None,
    ignore: o.Ignore = None,
) -> None:
    """An interactive page in one file: a model's sizes as sliders, its parts, formulas and theorems; several models
    side by side; serving and training plans. Works offline and can be mailed.

    Example: txcalc report llama-3.1-8b qwen3-8b --gpu h100-sxm:2@2.5 --out plan.html
    """
    import shlex
    import sys

    from txcalc import __version__, load
    from txcalc.cli.output import tell
    from txcalc.explorer import explore
    from txcalc.render.page import checked, page, writable, write

    writable(output, force)
    checked(len(sources))
    serving = {"--context": context, "--concurrency": concurrency, "--weights": weights, "--kv": kv}
    trained = {"--layout": layout, "--tokens": tokens, "--global-batch": global_batch}
    faults = [
        f"{flag} is of a plan of serving (add --gpu NAME)"
        for flag, value in serving.items()
        if value is not None and not gpu
    ]
    faults += [
        f"{flag} is of a plan of training (add --train NAME:N)"
        for flag, value in trained.items()
        if value is not None and not train
    ]
    if faults:
        raise InputError("options", faults)
    changes = o.changes(set_)
    said = "".join(f" --set {shlex.quote(pair)}" for pair in set_ or ())
    said += "".join(f" --ignore {shlex.quote(key)}" for key in ignore or ())
    models = [load(source, changes, ignore=ignore or ()) for source in sources]
    grids = [_grid(model, context, concurrency, weights, kv) for model in models]
    serve = _serving(models, gpu or (), grids)
    runs = [plan for text in train or () for plan in _training(models, text, layout or (), tokens, global_batch)]
    explorers = [(shlex.quote(source) + said, explore(model)) for source, model in zip(sources, models, strict=True)]
    command = shlex.join(["txcalc", *sys.argv[1:]]) if sys.argv[1:2] == ["report"] else "txcalc report"
    text = page(explorers, serve, runs, title or ", ".join(m.name for m in models), command, __version__)
    write(output, text)
    tell([f"the page is in {output} ({len(text.encode()):,} bytes)"])


def _grid(model: Model, context: str | None, concurrency: str | None, weights: str | None, kv: str | None) -> Grid:
    """The points of the serving view, for a model. Errors: `InputError`."""
    from txcalc.planning.deployment import check
    from txcalc.render.page.plans import CONTEXTS, USERS, Grid

    def names(text: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.strip() for item in text.split(",")))

    contexts = sorted(o.numbers(context, "--context")) if context else CONTEXTS
    users = sorted(o.numbers(concurrency, "--concurrency")) if concurrency else USERS
    for n in (0, -1):
        check(contexts[n], users[n], None, {})
    return Grid(names(weights or "native"), names(kv or "bf16,fp8"), tuple(contexts), tuple(users)).of(model)


def _serving(models: Sequence[Model], gpus: Sequence[str], grids: Sequence[Grid]) -> list[dict[str, Any]]:
    """The plans of every model on every kind of GPU."""
    from txcalc import hardware
    from txcalc.api.phrases import priced
    from txcalc.cli.output import tell
    from txcalc.planning.serving import check_budget
    from txcalc.render.page.plans import checked, serving

    wanted = [priced(text) for text in gpus]
    for _, _, price in wanted:
        check_budget(price)
    kinds = [hardware.load(name) for name, _, _ in wanted]
    checked([grid for grid in grids for _ in wanted])
    if wanted:
        tell([f"planning serving at {sum(grid.points for grid in grids) * len(wanted):,} points"])
    return [
        serving(i, model, kind, number, price, grids[i])
        for i, model in enumerate(models)
        for kind, (_, number, price) in zip(kinds, wanted, strict=True)
    ]


def _training(
    models: Sequence[Model], text: str, layouts: Sequence[str], tokens: int | None, batch: int | None
) -> list[dict[str, Any]]:
    """The runs of every model that fits on one kind of GPU: of the layouts that are given, or of the fastest.

    Errors: `TxcalcError` where no model has one.
    """
    from txcalc import hardware
    from txcalc.api.phrases import priced
    from txcalc.api.trainings import recipe_of, search, usual_tokens
    from txcalc.cli.output import tell
    from txcalc.planning.training.answer import train as answer
    from txcalc.planning.training.machine import Machine
    from txcalc.render.page.plans import training

    name, number, _ = priced(text, "--train")
    machine = Machine.of(hardware.load(name))
    found, refused = [], []
    for i, model in enumerate(models):
        length = tokens if tokens is not None else usual_tokens(model)
        try:
            if layouts:
                recipes = [recipe_of(one, number, batch, length, "adamw", {}) for one in layouts]
            else:
                best = search(model, machine, number, batch, length, "adamw", {}).best[:RUNS]
                recipes = [one.recipe for one in best]
            found.append(training(i, [answer(model, recipe, machine) for recipe in recipes]))
        except TxcalcError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    tell([f"no training view: {error}" for error in refused])
    return found
