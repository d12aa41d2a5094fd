"""`train`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any

import typer

import txcalc
from txcalc.cli import completion, options as o
from txcalc.cli.command import command
from txcalc.cli.output import progress

LAYOUT = (
    "Also fsdp=, cp=, ep=, etp=, vpp=, sp=. Default: the fastest that fits; without a number of GPUs, on the fewest "
    "that do."
)


@command(
    drawn=True,
    lora=o.option("--lora", "base=nf4-dq: format of the frozen matrices; dtype=fp32: of the adapters."),
    framework=o.own(
        "Framework whose buffers count: fsdp2, megatron, deepspeed, nanotron, litgpt.",
        "NAME",
        completion.framework,
    ),
    zero=o.own("ZeRO stage: dp ranks shard 1 the optimizer, 2 gradients too, 3 parameters too (default: 0)."),
    schedule=o.own("Pipeline schedule: gpipe, 1f1b, interleaved, zb, zbv, dualpipev.", "NAME", completion.schedule),
    tokens=o.length("--tokens", "Default: 4,096 or the context."),
    micro_batch=o.length("--micro-batch", "Sequences per rank and pass."),
    global_batch=o.length("--global-batch"),
    offload=o.own("Offload to the host: optimizer, activations, or both joined by +.", "WHAT", completion.offload),
    recipe=o.option(
        "--recipe",
        "parameter=bf16,gradient=bf16,reduce=bf16 (dtypes), loss_parallel=off, fused_loss=on, "
        "eager=on (uncompiled), keep_scores=on, attention=flash1|flash2, reshard=off, "
        "context=ring|allgather|ulysses, stages=3+4+4+3 (layers per stage).",
    ),
    rank=o.own("Also show the memory of this rank.", "N"),
    products=o.own("Dtype of matrix products in linear layers: bf16, fp8.", "TYPE"),
    host_link=o.own("With --offload: bandwidth to the host, one way: 63GB (default: PCIe 4.0 x16).", "BYTES"),
    overlap=typer.Option(
        "--overlap/--no-overlap", help="Whether communication of weights and gradients overlaps with compute."
    ),
    measured=o.own("A measured rate, to get its MFU: 1007tok/s, 400TFLOPS (per GPU), 1.42s (per step).", "RATE"),
    conventions=Annotated[list[str], o.option("--as", "Only for MFU; conventions as in show.")],
    train_tokens=o.count("--train-tokens"),
    compute=o.count("--compute"),
    deadline=o.own("GPUs that finish within this time: 30d, 4w.", "TIME"),
    budget=o.count("--budget", "Training tokens for this much money: 1M."),
    fits_on=o.own("Also list the accelerators that it fits on."),
    pue=o.own("Power usage effectiveness of the data centre."),
    grid=o.own("Carbon intensity, grams of CO2 per kWh."),
)
def train(
    source: o.Source,
    gpu: Annotated[
        str, o.option("--gpu", "With the price per GPU-hour: h100-sxm:64@2.50.", metavar="NAME[:N][@PRICE]")
    ],
    set_: o.Set = None,
    layout: Annotated[list[str] | None, o.option("--layout", LAYOUT)] = None,
    **asked: Any,
) -> Any:
    """Plan training: memory of every rank, time of a step, days and cost. Exit code 1: it does not fit.

    Example: txcalc train llama-3.1-8b --gpu h100-sxm:8@2.5 --layout fsdp=8 --tokens 8k --train-tokens 1T
    """
    chosen = o.once("--layout", layout)
    bar: Any = nullcontext() if layout else progress()
    with bar as tell:
        return txcalc.train(o.model(source, set_, None), gpu, layout=chosen, **asked, tell=tell)
