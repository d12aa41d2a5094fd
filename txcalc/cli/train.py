"""`txcalc train`: memory of every rank, time of a step, and what a whole run costs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer

from txcalc.cli import completion
from txcalc.cli import options as o
from txcalc.cli.scale import Compute, TrainTokens, count
from txcalc.errors import InputError

app = typer.Typer(rich_markup_mode=None, add_completion=False)

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
        str | None,
        typer.Option(
            help="Whose buffers: fsdp2, megatron, deepspeed, nanotron, litgpt.",
            metavar="NAME",
            autocompletion=completion.framework,
        ),
    ] = None,
    zero: Annotated[
        int | None,
        typer.Option(help="What the ranks of dp split: 1 optimizer, 2 gradients, 3 parameters (default: 0)."),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Of the pipeline: gpipe, 1f1b, interleaved, zb, zbv, dualpipev.",
            metavar="NAME",
            autocompletion=completion.schedule,
        ),
    ] = None,
    tokens: Annotated[int | None, o.length("--tokens", "By default 4,096 or the context.")] = None,
    micro_batch: Annotated[int | None, o.length("--micro-batch", "Sequences of a rank in one pass.")] = None,
    global_batch: Annotated[int | None, o.length("--global-batch")] = None,
    recompute: Annotated[
        str | None,
        typer.Option(help="What backward computes again: none, core, blocks, every:N, layers:0,2.", metavar="WHAT"),
    ] = None,
    offload: Annotated[
        str | None,
        typer.Option(
            help="What the host holds: optimizer, activations, or both with a +.",
            metavar="WHAT",
            autocompletion=completion.offload,
        ),
    ] = None,
    optimizer: Annotated[
        str,
        typer.Option(
            help="adamw, adamw-bf16, adamw-8bit, sgd, lion, muon, adafactor …",
            metavar="NAME",
            autocompletion=completion.optimizer,
        ),
    ] = "adamw",
    recipe_: Annotated[
        str | None,
        o.option(
            "--recipe",
            "parameter=bf16,gradient=bf16,reduce=bf16 (dtypes), loss_parallel=off, fused_loss=on, "
            "eager=on (uncompiled), keep_scores=on, attention=flash1|flash2, reshard=off, "
            "context=ring|allgather|ulysses, stages=3+4+4+3 (layers of each).",
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="The memory of this rank too.", metavar="N")] = None,
    products: Annotated[
        str, typer.Option(help="Dtype that linear layers multiply in: bf16, fp8.", metavar="TYPE")
    ] = "bf16",
    node: o.Node = None,
    network: o.Network = None,
    host_link: Annotated[
        str | None,
        typer.Option(help="To the host, one way, with --offload: 63GB (default: PCIe 4.0 x16).", metavar="BYTES"),
    ] = None,
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
    text_only: o.TextOnly = False,
    fits_on: Annotated[
        bool, typer.Option("--fits-on", help="Which accelerators it fits on too, all there are.")
    ] = False,
    pue: Annotated[float, typer.Option(help="Power of the data centre over that of its computers.")] = 1.1,
    grid: Annotated[float, typer.Option(help="Grams of CO2 per kWh.")] = 385.0,
    format_: o.Format = "table",
    json_: o.Json = False,
    plot: o.Plot = None,
    force: o.Force = False,
) -> None:
    """What training takes: memory of every rank, time of a step, days and cost. Exit code 1: it does not fit.

    Example: txcalc train llama-3.1-8b --gpu h100-sxm:8@2.5 --layout fsdp=8 --tokens 8k --train-tokens 1T
    """
    from txcalc import load
    from txcalc import train as answer
    from txcalc.cli.output import give, progress

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen, force)
    if len(layout or ()) > 1:
        raise InputError("--layout", ["is given twice, and a run has one"])
    batch: dict[str, Any] = {"tokens": tokens, "micro_batch": micro_batch, "global_batch": global_batch}
    how: dict[str, Any] = {"framework": framework, "zero": zero, "schedule": schedule, "recompute": recompute}
    how["offload"] = offload
    machine: dict[str, Any] = {"products": products, "node": node, "network": network, "overlap": overlap}
    machine["host_link"] = host_link
    run: dict[str, Any] = {"train_tokens": train_tokens, "compute": compute, "deadline": deadline, "budget": budget}
    bar: AbstractContextManager[Any] = nullcontext() if layout else progress()
    with bar as tell:
        found = answer(
            load(source, o.changes(set_)),
            gpu,
            layout=layout[0] if layout else None,
            optimizer=optimizer,
            recipe=recipe_ or "",
            lora=lora,
            rank=rank,
            measured=measured,
            conventions=as_ or (),
            text_only=text_only,
            fits_on=fits_on,
            pue=pue,
            grid=grid,
            **batch,
            **how,
            **machine,
            **run,
            tell=tell,
        )
    give(found, chosen, place)
