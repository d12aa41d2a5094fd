"""Whether a model fits on accelerators, how fast it is there and what it costs: `deploy`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import txcalc
from txcalc.cli import completion
from txcalc.cli import options as o
from txcalc.cli.command import Printing, command
from txcalc.cli.output import tell
from txcalc.errors import InputError


def _ways(flag: str, text: str) -> Any:
    return typer.Option(flag, help=f"{text} (a number, or auto).", metavar="N|auto")


_LENGTHS = "N|N±M|N..M|@FILE"


def _limit(flag: str, text: str) -> Any:
    return typer.Option(flag, help=f"Limit of the mean {text} at the load: 200ms, 0.5s.", metavar="TIME")


@command(
    drawn=True,
    context=Annotated[int | None, o.length("--context", "By default prompt and answer, or 8,192.")],
    concurrency=Annotated[int, o.length("--concurrency")],
    tp=Annotated[str, _ways("--tp", "Tensor parallel")],
    pp=Annotated[str, _ways("--pp", "Pipeline parallel")],
    dp=Annotated[str, _ways("--dp", "Data parallel")],
    ep=Annotated[str, _ways("--ep", "Expert parallel")],
    chunk=Annotated[int | None, o.length("--chunk", "By default 8192, or the engine's own.")],
    max_num_seqs=Annotated[
        int | None, o.length("--max-num-seqs", "Sequences that the engine runs at once (default: its own).")
    ],
    etp=Annotated[
        int | None,
        typer.Option("--etp", help="Ranks that slice each expert, also those of --dp replicas.", metavar="N"),
    ],
    poll=Annotated[
        int,
        typer.Option("--poll", help="Decode steps between two polls for new requests (SGLang).", metavar="N"),
    ],
    gather=Annotated[
        int | None,
        typer.Option(
            "--gather",
            help="Replicas that share experts start prompts together, after at most so many steps (TensorRT-LLM).",
            metavar="N",
        ),
    ],
    gpu_layers=Annotated[int | None, o.option("--gpu-layers")],
    n_cpu_moe=Annotated[str | None, o.option("--n-cpu-moe")],
    pcie=Annotated[str | None, o.option("--pcie")],
    prompt=Annotated[
        str | None,
        o.option(
            "--prompt",
            "A number, evenly between two, or drawn from a file (default: half of the context).",
            metavar=_LENGTHS,
        ),
    ],
    answer=Annotated[
        str | None,
        typer.Option(help="Tokens of an answer (default: what the prompt leaves of the context).", metavar=_LENGTHS),
    ],
    rate=Annotated[
        str | None,
        typer.Option(
            help="Open loop: requests arrive at random at this rate, instead of users who ask again: 5/s, 300/min.",
            metavar="N/s",
        ),
    ],
    arrivals=Annotated[
        str | None,
        typer.Option(help="Open loop: arrival times from a file, in seconds, one per line.", metavar="FILE"),
    ],
    burstiness=Annotated[
        float,
        typer.Option(
            help="Burstiness of --rate: 1 at random (Poisson), below 1 in bursts, above 1 more even.", metavar="B"
        ),
    ],
    simulate=Annotated[
        bool,
        typer.Option("--simulate", help="Also simulate the load request by request: percentiles, goodput, queue."),
    ],
    requests=Annotated[
        int | None,
        o.length("--requests", "Simulated requests (default: 10,000 at a rate; ten per user in a closed loop)."),
    ],
    seed=Annotated[int, typer.Option(help="Seed of the simulation.", metavar="N")],
    prefix_hits=Annotated[
        str,
        typer.Option("--prefix-hits", help="Share of a prompt that a prefix cache holds already.", metavar="30%|0.3"),
    ],
    shared_prefix=Annotated[
        int,
        o.length(
            "--shared-prefix", "Tokens that all prompts begin with, such as a system prompt: held and computed once."
        ),
    ],
    disaggregate=Annotated[
        str | None,
        typer.Option(
            "--disaggregate",
            help="Disaggregated serving: so many of the GPUs for prefill, the others for decode.",
            metavar="N|auto",
        ),
    ],
    adapters=Annotated[
        int, typer.Option("--adapters", help="LoRA adapters that are loaded, of which a request uses one.", metavar="N")
    ],
    adapter_rank=Annotated[int, typer.Option("--adapter-rank", help="Rank of each adapter.", metavar="R")],
    draft=Annotated[
        str | None,
        typer.Option(
            help="Speculative decoding: tokens proposed per step, and the draft model; mtp: its own prediction layer.",
            metavar="N[:SOURCE]|mtp",
        ),
    ],
    acceptance=Annotated[
        str | None, typer.Option(help="Probability that a proposed token is accepted.", metavar="80%|0.8")
    ],
    price=Annotated[float | None, typer.Option(help="Price per GPU-hour, for the cost of tokens.", metavar="X")],
    ttft=Annotated[str | None, _limit("--ttft", "time to first token")],
    tpot=Annotated[str | None, _limit("--tpot", "time per output token")],
    detail=Annotated[
        bool,
        typer.Option("--detail", help="Every table: layouts, parts of memory and of time, the front, definitions."),
    ],
)
def deploy(
    sources: o.Sources,
    gpu: Annotated[
        list[str],
        o.option(
            "--gpu",
            "Without a number: the fewest that do. With the price per GPU-hour: h100-sxm:8@2.5. Repeatable.",
            metavar="NAME[:N][@PRICE]",
        ),
    ],
    set_: o.Set = None,
    ignore: o.Ignore = None,
    *,
    emit_: Annotated[
        str | None,
        typer.Option(
            "--emit",
            help="Print the command that serves the plan instead: vllm, sglang, trtllm or dynamo.",
            metavar="ENGINE",
            autocompletion=completion.served,
        ),
    ] = None,
    printing: Printing,
    **asked: Any,
) -> Any:
    """Will it fit, how fast is it, what does it cost: memory of each GPU, most sequences, latency.

    Exit code 1: it does not fit, or a limit is missed; of more users than fit at once, the others wait.

    Several sources or GPUs are compared in one table.

    Example: txcalc deploy llama-3.1-70b --gpu h100-sxm:8 --context 32k --weights fp8 --price 2.5 --tpot 20ms
    """
    alone = len(sources) * len(gpu) == 1
    if emit_ is not None and (
        not alone or printing.form != "table" or printing.place or asked["detail"] or asked["simulate"]
    ):
        mend = "one source, one --gpu, no other format, neither --detail nor --simulate"
        raise InputError("options", [f"--emit prints one deployment's command: {mend}"])
    if printing.place and not alone:
        raise InputError("options", ["--plot draws one deployment: one source and one --gpu"])
    found = txcalc.deploy([o.model(source, set_, ignore) for source in sources], gpu, **asked)
    if emit_ is None:
        return found
    typer.echo(found.to_command(emit_))
    if found.failed:
        tell(found.report("table").header[:1])
    raise typer.Exit(int(found.failed))
