"""Whether a model fits on accelerators, how fast it is there and what it costs: `deploy`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import txcalc
from txcalc.cli import completion, options as o
from txcalc.cli.command import Printing, command
from txcalc.cli.output import tell
from txcalc.errors import InputError

_LENGTHS = "N|N±M|N..M|@FILE"


@command(
    drawn=True,
    context=o.length("--context", "By default prompt and answer, or 8,192."),
    concurrency=o.length("--concurrency"),
    tp=o.own("Tensor parallel (a number, or auto).", "N|auto"),
    pp=o.own("Pipeline parallel (a number, or auto).", "N|auto"),
    dp=o.own("Data parallel (a number, or auto).", "N|auto"),
    ep=o.own("Expert parallel (a number, or auto).", "N|auto"),
    chunk=o.length("--chunk", "By default 8192, or the engine's own."),
    max_num_seqs=o.length("--max-num-seqs", "Sequences that the engine runs at once (default: its own)."),
    etp=o.own("Ranks that slice each expert, also those of --dp replicas.", "N"),
    poll=o.own("Decode steps between two polls for new requests (SGLang).", "N"),
    gather=o.own(
        "Replicas that share experts start prompts together, after at most so many steps (TensorRT-LLM).", "N"
    ),
    gpu_layers=o.option("--gpu-layers"),
    n_cpu_moe=o.option("--n-cpu-moe"),
    pcie=o.option("--pcie"),
    prompt=o.option(
        "--prompt",
        "A number, evenly between two, or drawn from a file (default: half of the context).",
        metavar=_LENGTHS,
    ),
    answer=o.own("Tokens of an answer (default: what the prompt leaves of the context).", _LENGTHS),
    rate=o.own(
        "Open loop: requests arrive at random at this rate, instead of users who ask again: 5/s, 300/min.", "N/s"
    ),
    arrivals=o.own("Open loop: arrival times from a file, in seconds, one per line.", "FILE"),
    burstiness=o.own("Burstiness of --rate: 1 at random (Poisson), below 1 in bursts, above 1 more even.", "B"),
    simulate=o.own("Also simulate the load request by request: percentiles, goodput, queue."),
    requests=o.length("--requests", "Simulated requests (default: 10,000 at a rate; ten per user in a closed loop)."),
    seed=o.own("Seed of the simulation.", "N"),
    prefix_hits=o.own("Share of a prompt that a prefix cache holds already.", "30%|0.3"),
    shared_prefix=o.length(
        "--shared-prefix", "Tokens that all prompts begin with, such as a system prompt: held and computed once."
    ),
    disaggregate=o.own("Disaggregated serving: so many of the GPUs for prefill, the others for decode.", "N|auto"),
    adapters=o.own("LoRA adapters that are loaded, of which a request uses one.", "N"),
    adapter_rank=o.own("Rank of each adapter.", "R"),
    draft=o.own(
        "Speculative decoding: tokens proposed per step, and the draft model; mtp: its own prediction layer.",
        "N[:SOURCE]|mtp",
    ),
    acceptance=o.own("Probability that a proposed token is accepted.", "80%|0.8"),
    price=o.own("Price per GPU-hour, for the cost of tokens.", "X"),
    ttft=o.own("Limit of the mean time to first token at the load: 200ms, 0.5s.", "TIME"),
    tpot=o.own("Limit of the mean time per output token at the load: 200ms, 0.5s.", "TIME"),
    detail=o.own("Every table: layouts, parts of memory and of time, the front, definitions."),
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
    found = txcalc.deploy(o.models(sources, ignore, o.changes(set_)), gpu, **asked)
    if emit_ is None:
        return found
    typer.echo(found.to_command(emit_))
    if found.failed:
        tell(found.report("table").header[:1])
    raise typer.Exit(int(found.failed))
