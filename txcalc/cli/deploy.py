"""`txcalc deploy`: whether a model fits on accelerators, and what the most is that does."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txcalc.cli import completion
from txcalc.cli import options as o
from txcalc.errors import InputError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


def _ways(flag: str, text: str) -> Any:
    return typer.Option(flag, help=f"{text} (a number, or auto).", metavar="N|auto")


Gpus = Annotated[
    list[str],
    o.option(
        "--gpu",
        "Without a number: the fewest that do. With the price per GPU-hour: h100-sxm:8@2.5. Repeatable.",
        metavar="NAME[:N][@PRICE]",
    ),
]
Context = Annotated[int | None, o.length("--context", "By default prompt and answer, or 8,192.")]
Concurrency = Annotated[int, o.length("--concurrency")]
Block = Annotated[int, o.length("--block")]
Chunk = Annotated[int, o.length("--chunk")]
MaybeChunk = Annotated[int | None, o.length("--chunk", "By default 8192, or the engine's own.")]
ReserveOption = Annotated[str | None, o.option("--reserve", "By default the engine's own, or 10%.")]
EngineOption = Annotated[str, o.option("--engine")]
MaxSeqs = Annotated[
    int | None, o.length("--max-num-seqs", "Sequences that the engine runs at once (default: its own).")
]
Poll = Annotated[
    int, typer.Option("--poll", help="Decode steps between two polls for new requests (SGLang).", metavar="N")
]
Gather = Annotated[
    int | None,
    typer.Option(
        "--gather",
        help="Copies that share experts take prompts together, after so many steps at the latest (TensorRT-LLM).",
        metavar="N",
    ),
]

Ram = Annotated[str | None, o.option("--ram")]
GpuLayers = Annotated[int | None, o.option("--gpu-layers")]
CpuMoe = Annotated[str | None, o.option("--n-cpu-moe")]
Pcie = Annotated[str | None, o.option("--pcie")]

_LENGTHS = "N|N±M|N..M|@FILE"
Prompt = Annotated[
    str | None,
    o.option(
        "--prompt",
        "A number, evenly between two, or drawn from a file (default: half of the context).",
        metavar=_LENGTHS,
    ),
]
AnswerLength = Annotated[
    str | None,
    typer.Option(help="Tokens of an answer (default: what the prompt leaves of the context).", metavar=_LENGTHS),
]
Simulate = Annotated[
    bool, typer.Option("--simulate", help="Also simulate the load request by request: percentiles, goodput, the line.")
]
Requests = Annotated[
    int | None, o.length("--requests", "Simulated requests (default: 10,000 at a rate; ten per user in a closed loop).")
]
Seed = Annotated[int, typer.Option(help="Of the simulation's random numbers.", metavar="N")]
Burstiness = Annotated[
    float, typer.Option(help="Of requests at a rate: 1 at random, below 1 in bursts, above more even.", metavar="B")
]
Arrivals = Annotated[
    str | None,
    typer.Option(help="Requests come at a file's seconds, one a line, not at a --rate.", metavar="FILE"),
]
Rate = Annotated[
    str | None,
    typer.Option(help="Requests that come at random, instead of users who ask again: 5/s, 300/min.", metavar="N/s"),
]
Detail = Annotated[
    bool, typer.Option("--detail", help="Every table: layouts, parts of memory and of time, the front, definitions.")
]
Hits = Annotated[
    str,
    typer.Option("--prefix-hits", help="Share of a prompt that a prefix cache holds already.", metavar="30%|0.3"),
]
Prefix = Annotated[
    int,
    o.length("--shared-prefix", "Tokens that all prompts begin with, such as a system prompt: held and computed once."),
]
Disaggregate = Annotated[
    str | None,
    typer.Option(
        "--disaggregate",
        help="Prompts on GPUs of their own, so many of all, and answers on the others.",
        metavar="N|auto",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        help="Speculative decoding: tokens proposed a step, and the model that does; mtp: its own prediction layer.",
        metavar="N[:SOURCE]|mtp",
    ),
]
Adapters = Annotated[
    int, typer.Option("--adapters", help="LoRA adapters that are held, and that requests choose from.", metavar="N")
]
AdapterRank = Annotated[int, typer.Option("--adapter-rank", help="Rank of each adapter.", metavar="R")]
Acceptance = Annotated[
    str | None, typer.Option(help="Probability that a proposed token is accepted.", metavar="80%|0.8")
]
Price = Annotated[float | None, typer.Option(help="Price per GPU-hour, for the cost of tokens.", metavar="X")]


def _limit(flag: str, text: str) -> Any:
    return typer.Option(flag, help=f"Most {text} at the load, on average: 200ms, 0.5s.", metavar="TIME")


@app.command()
def deploy(
    sources: o.Sources,
    gpu: Gpus,
    set_: o.Set = None,
    ignore: o.Ignore = None,
    context: Context = None,
    concurrency: Concurrency = 1,
    weights: o.Weights = "native",
    kv: o.KvDtype = "bf16",
    tp: Annotated[str, _ways("--tp", "Tensor parallel")] = "auto",
    pp: Annotated[str, _ways("--pp", "Pipeline parallel")] = "auto",
    dp: Annotated[str, _ways("--dp", "Data parallel")] = "auto",
    ep: Annotated[str, _ways("--ep", "Expert parallel")] = "auto",
    node: o.Node = None,
    network: o.Network = None,
    block: Block = 16,
    chunk: MaybeChunk = None,
    engine_: EngineOption = "none",
    max_num_seqs: MaxSeqs = None,
    poll: Poll = 1,
    gather: Gather = None,
    reserve: ReserveOption = None,
    ram: Ram = None,
    gpu_layers: GpuLayers = None,
    n_cpu_moe: CpuMoe = None,
    pcie: Pcie = None,
    prompt: Prompt = None,
    answer: AnswerLength = None,
    rate: Rate = None,
    arrivals: Arrivals = None,
    burstiness: Burstiness = 1.0,
    simulate: Simulate = False,
    requests: Requests = None,
    seed: Seed = 0,
    prefix_hits: Hits = "0",
    shared_prefix: Prefix = 0,
    disaggregate: Disaggregate = None,
    adapters: Adapters = 0,
    adapter_rank: AdapterRank = 0,
    draft: Draft = None,
    acceptance: Acceptance = None,
    price: Price = None,
    text_only: o.TextOnly = False,
    ttft: Annotated[str | None, _limit("--ttft", "time to first token")] = None,
    tpot: Annotated[str | None, _limit("--tpot", "time per output token")] = None,
    format_: o.Format = "table",
    json_: o.Json = False,
    detail: Detail = False,
    emit_: Annotated[
        str | None,
        typer.Option(
            "--emit",
            help="Print the command that serves the plan instead: vllm, sglang, trtllm or dynamo.",
            metavar="ENGINE",
            autocompletion=completion.served,
        ),
    ] = None,
    plot: o.Plot = None,
    force: o.Force = False,
) -> None:
    """Will it fit, how fast is it, what does it cost: memory of each GPU, most sequences, latency.

    Exit code 1: it does not fit, or a limit is missed; of more users than fit at once, the others wait.

    Several sources or GPUs are compared in one table.

    Example: txcalc deploy llama-3.1-70b --gpu h100-sxm:8 --context 32k --weights fp8 --price 2.5 --tpot 20ms
    """
    from txcalc import deploy as answered
    from txcalc import load
    from txcalc.cli.output import give, tell

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen, force)
    alone = len(sources) * len(gpu) == 1
    if emit_ is not None and (not alone or chosen != "table" or place or detail or simulate):
        mend = "one source, one --gpu, no other format, neither --detail nor --simulate"
        raise InputError("options", [f"--emit prints one deployment's command: {mend}"])
    if place and not alone:
        raise InputError("options", ["--plot draws one deployment: one source and one --gpu"])
    ways: dict[str, Any] = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "node": node, "network": network}
    engine: dict[str, Any] = {"engine": engine_, "max_num_seqs": max_num_seqs, "block": block, "chunk": chunk}
    engine |= {"poll": poll, "gather": gather}
    host: dict[str, Any] = {"ram": ram, "gpu_layers": gpu_layers, "n_cpu_moe": n_cpu_moe, "pcie": pcie}
    lengths: dict[str, Any] = {"context": context, "prompt": prompt, "answer": answer, "shared_prefix": shared_prefix}
    traffic: dict[str, Any] = {"concurrency": concurrency, "rate": rate, "arrivals": arrivals, "burstiness": burstiness}
    guesses: dict[str, Any] = {"prefix_hits": prefix_hits, "draft": draft, "acceptance": acceptance}
    factors: dict[str, Any] = {"adapters": adapters, "adapter_rank": adapter_rank}
    simulation: dict[str, Any] = {"simulate": simulate, "requests": requests, "seed": seed}
    bounds: dict[str, Any] = {"price": price, "ttft": ttft, "tpot": tpot, "disaggregate": disaggregate}
    found = answered(
        [load(source, o.changes(set_), ignore=ignore or ()) for source in sources],
        gpu,
        weights=weights,
        kv=kv,
        reserve=reserve,
        text_only=text_only,
        detail=detail,
        **ways,
        **engine,
        **host,
        **lengths,
        **traffic,
        **guesses,
        **factors,
        **simulation,
        **bounds,
    )
    if emit_ is None:
        return give(found, chosen, place)
    typer.echo(found.to_command(emit_))
    if found.failed:
        tell(found.report("table").header[:1])
    raise typer.Exit(int(found.failed))
