"""`txcalc deploy`: whether a model fits on accelerators, and what the most is that does."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txcalc.cli import options as o
from txcalc.errors import Fault, InputError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


def _ways(flag: str, text: str) -> Any:
    return typer.Option(flag, help=f"{text} (a number, or auto).", metavar="N|auto")


def complete_gpu(incomplete: str) -> list[str]:
    """Accelerators that begin with what is typed."""
    from txcalc.hardware import names

    return [name for name in names() if name.startswith(incomplete)]


Gpu = Annotated[
    str,
    typer.Option(
        "--gpu",
        help='An accelerator, and how many ("txcalc presets --hardware" lists them): h100-sxm:8; or a .toml file. '
        "Without a number: the fewest that do.",
        autocompletion=complete_gpu,
        metavar="NAME[:N]",
    ),
]
Context = Annotated[int, o.length("--context", "Tokens that each sequence may grow to, prompt and answer.")]
Concurrency = Annotated[int, o.length("--concurrency", "Sequences at once.")]
Weights = Annotated[
    str, typer.Option(help="Format of the weights: bf16, fp8, int4, nf4, mxfp4, nvfp4, q4_k …", metavar="FORMAT")
]
Kv = Annotated[str, typer.Option("--kv", help="Dtype of the cache, whatever the weights are.", metavar="TYPE")]
Block = Annotated[int, o.length("--block", "Tokens of a page of the cache.")]
Chunk = Annotated[int, o.length("--chunk", "Tokens that a step of prefill computes at most.")]
ReserveOption = Annotated[
    str | None,
    typer.Option(
        help="What the engine and the driver keep: a share of the memory or a size (default: 10%, as vLLM's 0.9).",
        metavar="10%|4GiB",
    ),
]


@app.command()
def deploy(
    source: o.Source,
    gpu: Gpu,
    set_: o.Set = None,
    context: Context = 8192,
    concurrency: Concurrency = 1,
    weights: Weights = "bf16",
    kv: Kv = "bf16",
    tp: Annotated[str, _ways("--tp", "Tensor parallel")] = "auto",
    pp: Annotated[str, _ways("--pp", "Pipeline parallel")] = "auto",
    dp: Annotated[str, _ways("--dp", "Data parallel")] = "auto",
    ep: Annotated[str, _ways("--ep", "Expert parallel")] = "auto",
    block: Block = 16,
    chunk: Chunk = 8192,
    reserve: ReserveOption = None,
    format_: o.Format = "table",
    json_: o.Json = False,
    plot: o.Plot = None,
) -> None:
    """Will it fit: memory of each GPU, most sequences, longest context, fewest GPUs, best layout. Exit code 1: no.

    Example: txcalc deploy llama-3.1-70b --gpu h100-sxm:8 --context 32k --concurrency 64 --weights fp8
    """
    from txcalc import hardware, load
    from txcalc.cli.output import emit
    from txcalc.planning.deployment import Deployment, engine, parse_reserve, plan
    from txcalc.render.deploy import report

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen)
    name, gpus = accelerators(gpu)
    fixed = ways({"tp": tp, "pp": pp, "dp": dp, "ep": ep})
    model = load(source, o.changes(set_))
    kept = parse_reserve(reserve) if reserve is not None else None
    deployment = Deployment(model, hardware.load(name), engine(model, weights, kv, block, chunk, kept))
    answer = plan(deployment, context, concurrency, gpus, fixed)
    emit(report(answer), chosen, place, lambda plots: plots.deploy(answer))
    if not answer.best.fits:
        raise typer.Exit(1)


def accelerators(text: str) -> tuple[str, int | None]:
    """`h100-sxm:8` as a name and how many; None: not said."""
    name, colon, number = text.rpartition(":")
    if not colon:
        return text, None
    if not number.strip().isdecimal() or len(number) > 6:
        raise InputError("--gpu", [Fault("--gpu", text, "a name and a number of them", "h100-sxm:8")])
    return name, int(number)


def ways(written: dict[str, str]) -> dict[str, int]:
    """The tp, pp, dp and ep that are numbers; `auto` ones are left out."""
    faults = [
        Fault(f"--{name}", text, "a whole number or auto")
        for name, text in written.items()
        if text != "auto" and not (text.isdecimal() and len(text) < 7)
    ]
    if faults:
        raise InputError("options", faults)
    return {name: int(text) for name, text in written.items() if text != "auto"}
