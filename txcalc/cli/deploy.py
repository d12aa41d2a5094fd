"""`txcalc deploy`: whether a model fits on accelerators, and what the most is that does."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any

import typer

from txcalc.cli import options as o
from txcalc.errors import Fault, InputError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


def _ways(flag: str, text: str) -> Any:
    return typer.Option(flag, help=f"{text} (a number, or auto).", metavar="N|auto")


Gpus = Annotated[
    list[str],
    o.option(
        "--gpu",
        "Without a number: the fewest that do. With the price of a GPU-hour: h100-sxm:8@2.5. Repeatable.",
        metavar="NAME[:N][@PRICE]",
    ),
]
Context = Annotated[int | None, o.length("--context", "By default prompt and answer, or 8,192.")]
Concurrency = Annotated[int, o.length("--concurrency")]
Block = Annotated[int, o.length("--block")]
Chunk = Annotated[int, o.length("--chunk")]
MaybeChunk = Annotated[int | None, o.length("--chunk", "By default 8192, or the engine's own.")]
ReserveOption = Annotated[str | None, o.option("--reserve", "By default 10%, as vLLM's 0.9.")]
EngineOption = Annotated[str, o.option("--engine")]
MaxSeqs = Annotated[
    int | None, o.length("--max-num-seqs", "Sequences that the engine's profile run samples (default: its own).")
]

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
    typer.Option(help="Speculative decoding: tokens proposed a step, and the model that does.", metavar="N[:SOURCE]"),
]
Acceptance = Annotated[
    str | None, typer.Option(help="Probability that a proposed token is accepted.", metavar="80%|0.8")
]
Price = Annotated[float | None, typer.Option(help="Price of a GPU-hour, for the cost of tokens.", metavar="X")]


def _limit(flag: str, text: str) -> Any:
    return typer.Option(flag, help=f"Most {text} at the load, on average: 200ms, 0.5s.", metavar="TIME")


@app.command()
def deploy(  # noqa: C901 - one branch per option
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
    block: Block = 16,
    chunk: MaybeChunk = None,
    engine_: EngineOption = "none",
    max_num_seqs: MaxSeqs = None,
    reserve: ReserveOption = None,
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
    draft: Draft = None,
    acceptance: Acceptance = None,
    price: Price = None,
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
        ),
    ] = None,
    plot: o.Plot = None,
) -> None:
    """Will it fit, how fast is it, what does it cost: memory of each GPU, most sequences, latency. Exit code 1: no.

    Several sources or GPUs are compared in one table.

    Example: txcalc deploy llama-3.1-70b --gpu h100-sxm:8 --context 32k --weights fp8 --price 2.5 --tpot 20ms
    """
    from dataclasses import replace

    from txcalc import hardware, load
    from txcalc.cli.output import emit
    from txcalc.planning import engine_memory, serving, timing
    from txcalc.planning.deployment import Deployment
    from txcalc.planning.engine import engine, parse_reserve
    from txcalc.planning.engine_memory import EngineMemory
    from txcalc.planning.pools import pools
    from txcalc.planning.sizing import arrange, less, rentable
    from txcalc.planning.traffic import lengths
    from txcalc.render.deploy import Answer, comparison, report
    from txcalc.units import parse_seconds

    chosen = o.chosen(format_, json_)
    place = o.plotted(plot, chosen)
    wanted = [priced(text) for text in gpu]
    prices = one_price(wanted, price)
    if emit_ is not None and (len(sources) * len(wanted) > 1 or chosen != "table" or place):
        raise InputError("options", ["--emit prints one deployment's command: one source, one --gpu, no other format"])
    if place and len(sources) * len(wanted) > 1:
        raise InputError("options", ["--plot draws one deployment: one source and one --gpu"])
    fillers = ways({"disaggregate": disaggregate or "auto"}).get("disaggregate")
    fixed = ways({"tp": tp, "pp": pp, "dp": dp, "ep": ep})
    kept = parse_reserve(reserve) if reserve is not None else None
    profile = engine_memory.profile(engine_)
    if max_num_seqs is not None and (profile is None or not 1 <= max_num_seqs <= 1 << 20):
        raise InputError("options", ["--max-num-seqs is a number above 0 of an --engine"])
    tokens, drafter = drafts(draft)
    guess = load(drafter) if drafter is not None else None
    often, times = comes(rate, arrivals, burstiness)
    if not simulate and (requests is not None or seed):
        raise InputError("options", ["--requests and --seed are of a simulation (--simulate)"])
    if requests is not None and not 1 <= requests <= 10**6:
        raise InputError("options", [Fault("requests", requests, "a whole number from 1 to 1,000,000")])
    likely = float(share(acceptance, "--acceptance")) if acceptance is not None else None
    prompts = lengths(prompt, "--prompt") if prompt is not None else None
    answers = lengths(answer, "--answer") if answer is not None else None
    context = timing.grown(prompts, answers) if context is None else context
    asked = timing.request(
        context,
        prompts,
        share(prefix_hits),
        likely,
        tokens,
        answers,
        often,
        burstiness,
        times,
        shared_prefix,
    )
    within = [
        parse_seconds(text, flag) if text is not None else None for flag, text in (("--ttft", ttft), ("--tpot", tpot))
    ]
    for each in prices.values():
        serving.check_budget(each, *within)
    models = [load(source, o.changes(set_), ignore=ignore or ()) for source in sources]
    kinds = [hardware.load(name) for name, _, _ in wanted]
    alone = len(models) * len(kinds) == 1

    def run(speed: Any, memory: EngineMemory | None) -> Any:
        from txcalc.planning.simulation import SEQUENCES, simulated

        most = max_num_seqs or (memory.most_sequences if memory else SEQUENCES)
        found = simulated(speed.timer, speed.chosen, speed.limits, most, seed, requests)
        return replace(speed, simulated=found)

    def found_for(model: Any, kind: Any, gpus: int | None, price: float | None) -> Answer:
        memory = EngineMemory(profile, kind, context, max_num_seqs, chunk) if profile else None
        step = chunk if chunk is not None else memory.most_tokens if memory else 8192
        how = engine(model, weights, kv, block, step, kept, memory, shared_prefix)
        deployment = Deployment(model, kind, how, guess)
        limits = serving.Limits(*within)
        found = arrange(deployment, asked, context, concurrency, gpus, fixed, limits)
        try:
            if found.best.fits:
                speed = serving.serve(found, asked, price, *within)
                if disaggregate is not None:
                    counts = [gpus] if gpus else rentable(found.best.layout.gpus, {})[:6]
                    two = pools(deployment, asked, context, found.concurrency, counts, fillers, limits)
                    speed = replace(speed, apart=two)
                return Answer(model, kind, found, run(speed, memory) if simulate and speed.lasts else speed)
            smaller = less(found, asked, fixed, limits)
            instead = serving.serve(smaller, replace(asked, rate=None), price, *within) if smaller else None
            return Answer(model, kind, found, None, instead=instead)
        except InputError as error:
            if alone and (price is not None or within != [None, None] or disaggregate is not None):
                raise
            return Answer(model, kind, found, None, str(error))

    if alone:
        one = found_for(models[0], kinds[0], wanted[0][1], prices[wanted[0][0]])
        assert one.plan
        if emit_ is not None:
            from txcalc.render.emit import command

            typer.echo(command(one.plan, emit_, one.speed.apart if one.speed else None))
            raise typer.Exit(one.failed)
        drawn = one.plan, one.speed
        emit(
            report(one.plan, one.speed, one.why, detail or chosen != "table", one.instead),
            chosen,
            place,
            lambda plots: plots.deploy(*drawn),
        )
        failed = one.failed
    else:
        several = []
        for model in models:
            for kind, (name, gpus, _) in zip(kinds, wanted, strict=True):
                try:
                    several.append(found_for(model, kind, gpus, prices[name]))
                except InputError as error:
                    several.append(Answer(model, kind, None, None, str(error)))
        if all(one.plan is None for one in several):
            raise InputError("deploy", dict.fromkeys(one.why for one in several))
        emit(comparison(several), chosen)
        failed = all(one.failed for one in several)
    if failed:
        raise typer.Exit(1)


def accelerators(text: str) -> tuple[str, int | None]:
    """`h100-sxm:8` or `8xh100` as a name and how many; None: not said."""
    from txcalc.cards import many

    first, rest = many(text)
    if first is not None:
        return rest, first
    name, colon, number = text.rpartition(":")
    if not colon:
        return text, None
    if not number.strip().isdecimal() or len(number) > 6:
        raise InputError("--gpu", [Fault("--gpu", text, "a name and a number of them", "h100-sxm:8")])
    return name, int(number)


def priced(text: str) -> tuple[str, int | None, float | None]:
    """`h100-sxm:8@2.5` as a name, how many, and the price of a GPU-hour; None: not said."""
    rest, at, price = text.rpartition("@")
    if not at:
        return *accelerators(text), None
    try:
        return *accelerators(rest), float(price)
    except ValueError:
        raise InputError("--gpu", [Fault("--gpu", text, "a price of a GPU-hour after @", "h100-sxm:8@2.5")]) from None


def one_price(wanted: list[tuple[str, int | None, float | None]], price: float | None) -> dict[str, float | None]:
    """The price of every kind of accelerator. Errors: `InputError` for two of one."""
    found: dict[str, set[float]] = {name: set() for name, _, _ in wanted}
    for name, _, own in wanted:
        found[name] |= {each for each in (own, price) if each is not None}
    faults: list[Fault | str] = [
        f"{name} has two prices: {' and '.join(f'{each:g}' for each in sorted(each))}"
        for name, each in found.items()
        if len(each) > 1
    ]
    if faults:
        raise InputError("options", faults)
    return {name: next(iter(each), None) for name, each in found.items()}


def share(text: str, flag: str = "--prefix-hits") -> Fraction:
    """`30%` or `0.3`."""
    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(%?)\s*", text, re.ASCII)
    if not found:
        raise InputError("options", [Fault(flag, text, "a share such as 30% or 0.3")])
    return Fraction(found[1]) / (100 if found[2] else 1)


def rates(text: str) -> float:
    """`5/s`, `300/min` or `1000/h` as requests a second."""
    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*/\s*(s|min|h)\s*", text, re.ASCII)
    number = Fraction(found[1]) / {"s": 1, "min": 60, "h": 3600}[found[2]] if found else Fraction(0)
    if not number:
        raise InputError("options", [Fault("--rate", text, "requests above 0 in a time, such as 5/s or 300/min")])
    return float(number)


def comes(rate: str | None, path: str | None, burstiness: float) -> tuple[float | None, list[float]]:
    """Requests a second, or the seconds at which they come."""
    from txcalc.planning.traffic import arrivals

    if rate is not None and path is not None:
        raise InputError("options", ["--rate and --arrivals contradict each other"])
    if burstiness != 1 and rate is None:
        raise InputError("options", ["--burstiness is of requests at a --rate"])
    return rates(rate) if rate is not None else None, arrivals(path) if path is not None else []


def drafts(text: str | None) -> tuple[int | None, str | None]:
    """`4:llama-3.2-1b` as the tokens that a draft proposes and what makes it; `4`: something that costs nothing."""
    if text is None:
        return None, None
    number, colon, source = text.partition(":")
    if not (number.isascii() and number.isdecimal() and len(number) < 4) or (colon and not source.strip()):
        raise InputError("options", [Fault("--draft", text, "tokens a step, and what proposes them", "4:SOURCE, or 4")])
    return int(number), source if colon else None


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
