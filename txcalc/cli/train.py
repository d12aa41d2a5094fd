"""`txcalc train`: memory of every rank, time of a step, and what a whole run costs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txcalc.cli import options as o
from txcalc.cli.scale import Compute, TrainTokens, count
from txcalc.errors import Fault, InputError

if TYPE_CHECKING:
    from txcalc.model import Model
    from txcalc.planning.training import Recipe
    from txcalc.planning.training.answer import Training
    from txcalc.planning.training.machine import Machine
    from txcalc.planning.training.search import Searched
    from txcalc.render.plot import Picture

app = typer.Typer(rich_markup_mode=None, add_completion=False)

TOKENS = 4096  # of a sequence, where the model's context is not shorter
BATCH = 1 << 20  # tokens of a step, at least, where nobody says

LAYOUT = "Also fsdp=, cp=, ep=, etp=, vpp=, sp=. Without: the fastest."


@app.command()
def train(
    source: o.Source,
    gpu: Annotated[
        str,
        o.option("--gpu", "With the price of an hour of one: h100-sxm:64@2.50.", metavar="NAME[:N][@PRICE]"),
    ],
    set_: o.Set = None,
    lora: o.LoraOf = None,
    layout: Annotated[list[str] | None, o.option("--layout", LAYOUT)] = None,
    framework: Annotated[
        str | None, typer.Option(help="Whose buffers: fsdp2, megatron, deepspeed, nanotron, litgpt.", metavar="NAME")
    ] = None,
    zero: Annotated[
        int | None,
        typer.Option(help="What the ranks of dp split: 1 optimizer, 2 gradients, 3 parameters (default: 0)."),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="Of the pipeline: gpipe, 1f1b, interleaved, zb, zbv, dualpipev.", metavar="NAME"),
    ] = None,
    tokens: Annotated[int | None, o.length("--tokens", "By default 4,096 or the context.")] = None,
    micro_batch: Annotated[int | None, o.length("--micro-batch", "Sequences of a rank in one pass.")] = None,
    global_batch: Annotated[int | None, o.length("--global-batch")] = None,
    recompute: Annotated[
        str | None,
        typer.Option(help="What backward computes again: none, core, blocks, every:N, layers:0,2.", metavar="WHAT"),
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="adamw, adamw-bf16, adamw-8bit, sgd, lion, muon, adafactor …", metavar="NAME")
    ] = "adamw",
    recipe_: Annotated[
        str | None,
        o.option(
            "--recipe",
            "parameter=bf16,gradient=bf16,reduce=bf16 (dtypes), loss_parallel=off, fused_loss=on, "
            "keep_scores=on, reshard=off, context=ring|allgather|ulysses, stages=3+4+4+3 (layers of each).",
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="The memory of this rank too.", metavar="N")] = None,
    products: Annotated[
        str, typer.Option(help="Dtype that linear layers multiply in: bf16, fp8.", metavar="TYPE")
    ] = "bf16",
    node: o.Node = None,
    network: o.Network = None,
    overlap: Annotated[
        bool, typer.Option("--overlap/--no-overlap", help="Whether weights and gradients move beside compute.")
    ] = True,
    measured: Annotated[
        str | None,
        typer.Option(
            help="A measured rate, for its utilisation: 1007tok/s, 400TFLOPS (a GPU), 1.42s (a step).", metavar="RATE"
        ),
    ] = None,
    as_: Annotated[
        list[str] | None,
        o.option("--as", "Utilisation by these alone (those of show)."),
    ] = None,
    train_tokens: TrainTokens = None,
    compute: Compute = None,
    deadline: Annotated[
        str | None, typer.Option(help="How many GPUs are done in this time: 30d, 4w.", metavar="TIME")
    ] = None,
    budget: Annotated[int | None, count("--budget", "How many tokens this much money pays for: 1M.")] = None,
    fits_on: Annotated[
        bool, typer.Option("--fits-on", help="Which accelerators it fits on too, all there are.")
    ] = False,
    pue: Annotated[float, typer.Option(help="Power of the data centre over that of its computers.")] = 1.1,
    grid: Annotated[float, typer.Option(help="Grams of CO2 per kWh.")] = 385.0,
    format_: o.Format = "table",
    json_: o.Json = False,
    plot: o.Plot = None,
) -> None:
    """What training takes: memory of every rank, time of a step, days and cost. Exit code 1: it does not fit.

    Example: txcalc train llama-3.1-8b --gpu h100-sxm:8@2.5 --layout fsdp=8 --tokens 8k --train-tokens 1T
    """
    from txcalc import hardware, load
    from txcalc.cli.output import emit
    from txcalc.planning.training.answer import elsewhere
    from txcalc.planning.training.answer import train as answer
    from txcalc.planning.training.machine import Machine
    from txcalc.planning.training.recipe import parse_options
    from txcalc.planning.training.run import Terms, parse_days, tokens_of
    from txcalc.planning.utilisation import REPORTED, parse_measured
    from txcalc.render.train import report
    from txcalc.units import parse_bytes

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen)
    tuned, beside = o.lora(lora, ("base", "dtype"))
    model = load(source, o.changes(set_) | tuned)
    name, number, price = parse_gpu(gpu)
    accelerator = hardware.load(name)
    wide = None if network is None else parse_bytes(network, "--network")
    machine = Machine.of(accelerator, node, wide, products, overlap)
    days = None if deadline is None else parse_days(deadline)
    terms = Terms(price, accelerator.power, pue, grid, days, budget).checked()
    whole = tokens_of(model, train_tokens, compute)
    rate = None if measured is None else parse_measured(measured)
    names = _conventions(as_) if as_ else REPORTED
    length = tokens if tokens is not None else min(TOKENS, model.context or TOKENS)
    asked = {"framework": framework, "schedule": schedule, "recompute": recompute, "micro_batch": micro_batch}
    if tuned:  # PEFT's defaults: frozen weights as they are computed with, adapters in fp32
        asked |= {"frozen": beside.get("base", "bf16"), "adapter": beside.get("dtype", "fp32")}
    asked = {name: value for name, value in {**asked, "zero": zero}.items() if value is not None}
    more = parse_options(recipe_ or "")
    if twice := sorted((asked.keys() | {"tokens", "accumulation", "optimizer"}) & more.keys()):
        raise InputError("--recipe", [f"{name} has an option of its own" for name in twice])
    asked |= more
    searched = None
    if layout:
        recipe = recipe_of(layout, number, global_batch, length, optimizer, asked)
    else:
        searched = search(model, machine, number, global_batch, length, optimizer, asked)
        recipe = searched.best[0].recipe
    found = answer(model, recipe, machine, rate, names, whole, terms, rank)
    others = elsewhere(found) if fits_on else ()
    emit(report(found, terms, searched, others), chosen, place, lambda plots: _picture(found))
    if not found.fits:
        raise typer.Exit(1)


def _picture(found: Training) -> Picture:
    from txcalc.render.timeline import picture

    return picture(found)


def parse_gpu(text: str) -> tuple[str, int | None, float | None]:
    """`h100-sxm:64@2.50`: a name, how many, and a price. Errors: `InputError`."""
    found = re.fullmatch(r"\s*([^:@]+?)\s*(?::\s*(\d{1,7}))?\s*(?:@\s*(\d{1,9}(?:\.\d{1,9})?))?\s*", text, re.ASCII)
    if not found or (found[2] and not int(found[2])):
        raise InputError("--gpu", [Fault("--gpu", text, "NAME, NAME:N or NAME:N@PRICE, such as h100-sxm:64@2.50")])
    return found[1], int(found[2]) if found[2] else None, float(found[3]) if found[3] else None


def _conventions(asked: list[str]) -> tuple[str, ...]:
    from txcalc.errors import UnknownName
    from txcalc.planning.conventions import CONVENTIONS

    names = tuple(dict.fromkeys(name.strip() for text in asked for name in text.split(",")))
    for name in names:
        if name not in CONVENTIONS:
            raise UnknownName("--as", "convention", name, list(CONVENTIONS), f"one of {', '.join(CONVENTIONS)}")
    return names


def _batch(batch: int | None, together: int, tokens: int) -> int:
    """Sequences of a step: said, or so many that it has 2^20 tokens at least. Errors: `InputError`."""
    if tokens < 1:
        raise InputError("train", [Fault("--tokens", tokens, "a whole number from 1")])
    return together * max(1, -(-BATCH // (together * tokens))) if batch is None else batch


def search(
    model: Model,
    machine: Machine,
    gpus: int | None,
    batch: int | None,
    tokens: int,
    optimizer: str,
    asked: dict[str, Any],
) -> Searched:
    """The fastest layouts of so many GPUs. Errors: `InputError`, `Refuted` where none fits."""
    from txcalc.planning.training import Recipe
    from txcalc.planning.training.search import Search

    if gpus is None:
        raise InputError("--gpu", ["without --layout it needs a number: NAME:N"])
    base = Recipe(tokens=tokens, optimizer=optimizer, **{key: value for key, value in asked.items() if key != "zero"})
    base.check()
    base = replace(base, zero=asked.get("zero", 0))
    whole = _batch(batch, gpus, tokens)
    if whole < 1:
        raise InputError("train", [Fault("--global-batch", whole, "a whole number from 1")])
    return Search(model, base, machine, gpus, whole, frozenset(asked)).run()


def recipe_of(
    layouts: list[str], gpus: int | None, batch: int | None, tokens: int, optimizer: str, asked: dict[str, Any]
) -> Recipe:
    """The recipe that the options say. Errors: `InputError` with every fault."""
    from txcalc.planning.layout import parse_layout
    from txcalc.planning.training import Recipe

    if len(layouts) != 1:
        raise InputError("--layout", ["is given twice, and a run has one"])
    layout = parse_layout(layouts[0])
    faults: list[Fault | str] = []
    if gpus is not None and layout.gpus != gpus:
        faults.append(Fault("layout " + str(layout), layout.gpus, f"the {gpus:,} GPUs of --gpu", "its ways multiply"))
    micro = asked.get("micro_batch", 1)
    together = micro * layout.copies
    whole = _batch(batch, max(1, together), tokens)
    if together and (whole < 1 or whole % together):
        faults.append(Fault("--global-batch", whole, f"a multiple of micro-batch · dp · fsdp = {together:,}"))
    if faults:
        raise InputError("train", faults)
    alone = layout.dp == layout.tp == layout.pp == 1
    chosen = {
        "framework": "fsdp2" if layout.fsdp > 1 or alone else "megatron",
        "schedule": "interleaved" if layout.vpp > 1 else "1f1b",
        **asked,
    }
    accumulation = max(1, whole // (together or 1))
    return Recipe(layout, accumulation=accumulation, tokens=tokens, optimizer=optimizer, **chosen)
