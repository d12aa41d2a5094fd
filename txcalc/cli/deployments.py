"""`deploy`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import txcalc
from txcalc.cli import completion, options as o
from txcalc.cli.command import Printing, command
from txcalc.cli.output import tell
from txcalc.errors import InputError
from txcalc.questions.changes import parse_changes

_LENGTHS = "N|N±M|N..M|@FILE"


@command(
    drawn=True,
    context=o.length("--context", "Default: prompt and answer, or 8,192 (less if the model has less)."),
    concurrency=o.length("--concurrency"),
    tp=o.own("Tensor parallel (a number, or auto).", "N|auto"),
    pp=o.own("Pipeline parallel (a number, or auto).", "N|auto"),
    dp=o.own("Data parallel (a number, or auto).", "N|auto"),
    ep=o.own("Expert parallel (a number, or auto).", "N|auto"),
    chunk=o.length("--chunk", "Default: 8192, or the engine's own."),
    max_num_seqs=o.length("--max-num-seqs", "Maximum sequences per step (default: the engine's)."),
    etp=o.own("Ranks that split each expert, across --dp replicas too.", "N"),
    poll=o.own("Decode steps between admissions of new requests (SGLang).", "N"),
    gather=o.own("Expert-parallel replicas admit prompts together, after at most N steps (TensorRT-LLM).", "N"),
    gpu_layers=o.option("--gpu-layers"),
    n_cpu_moe=o.option("--n-cpu-moe"),
    pcie=o.option("--pcie"),
    prompt=o.option(
        "--prompt",
        "A number, a uniform range, or drawn from a file (default: half of the context).",
        metavar=_LENGTHS,
    ),
    answer=o.own("Tokens per answer (default: the context less the prompt).", _LENGTHS),
    rate=o.own("Open loop: requests arrive at random at this rate, in place of --concurrency: 5/s, 300/min.", "N/s"),
    arrivals=o.own("Open loop: arrival times from a file, in seconds, one per line.", "FILE"),
    burstiness=o.own("Burstiness of --rate: 1 is Poisson, below 1 bursts, above 1 more even.", "B"),
    simulate=o.own("Also simulate the load request by request: percentiles, goodput, queue."),
    requests=o.length("--requests", "Simulated requests (default: 10,000 at a rate, else ten per user)."),
    seed=o.own("Seed of the simulation.", "N"),
    prefix_hits=o.own("Share of each prompt found in the prefix cache.", "30%|0.3"),
    shared_prefix=o.length("--shared-prefix", "Tokens of a common prefix (system prompt), cached and computed once."),
    disaggregate=o.own("Disaggregated serving: N of the GPUs for prefill, the others for decode.", "N|auto"),
    adapters=o.own("Loaded LoRA adapters, of which a request uses one.", "N"),
    adapter_rank=o.own("Rank of each adapter.", "R"),
    draft=o.own(
        "Speculative decoding: tokens proposed per step, and the draft model; mtp: the model's own prediction layer.",
        "N[:SOURCE]|mtp",
    ),
    acceptance=o.own("Probability that a proposed token is accepted.", "80%|0.8"),
    price=o.own("Price per GPU-hour, for the cost of tokens.", "X"),
    ttft=o.own("Limit of the mean time to first token at the load: 200ms, 0.5s.", "TIME"),
    tpot=o.own("Limit of the mean time per output token at the load: 200ms, 0.5s.", "TIME"),
    detail=o.own("Print every table: layouts, memory and time by part, the Pareto front, definitions."),
)
def deploy(
    sources: o.Sources,
    gpu: Annotated[
        list[str],
        o.option(
            "--gpu",
            "Without N: the fewest that fit. With a price per GPU-hour: h100-sxm:8@2.5. Repeatable.",
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
            help="Print only the command that serves the plan: vllm, sglang, trtllm or dynamo.",
            metavar="ENGINE",
            autocompletion=completion.served,
        ),
    ] = None,
    printing: Printing,
    **asked: Any,
) -> Any:
    """Plan serving: does it fit, how fast is it, what does it cost? Memory of each GPU, maximum concurrency, latency
    and throughput.

    Exit code 1: it does not fit, or a limit is missed; with more users than fit at once, some wait.

    Several sources or GPUs are compared in one table.

    Example: txcalc deploy llama-3.1-70b --gpu h100-sxm:8 --context 32k --weights fp8 --price 2.5 --tpot 20ms
    """
    alone = len(sources) * len(gpu) == 1
    if emit_ is not None and (
        not alone or printing.form != "table" or printing.place or asked["detail"] or asked["simulate"]
    ):
        mend = "one source and one --gpu, and excludes --format, --plot, --detail and --simulate"
        raise InputError("options", [f"--emit needs {mend}"])
    if printing.place and not alone:
        raise InputError("options", ["--plot needs one source and one --gpu"])
    found = txcalc.deploy(o.models(sources, ignore, parse_changes(set_)), gpu, **asked)
    if emit_ is None:
        return found
    typer.echo(found.to_command(emit_))
    if found.failed:
        tell(found.report("table").header[:1])
    raise typer.Exit(int(found.failed))
