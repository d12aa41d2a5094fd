"""The pictures of the commands, as data. Numbers are those of the tables, computed by the same functions at more
lengths; `draw` hands them to a plotting library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from txcalc.errors import InputError
from txcalc.hardware import peak
from txcalc.ledger import KINDS, Ledger, walk
from txcalc.model import MAX_TOKENS, Model
from txcalc.num import ceil_div
from txcalc.parts.part import Workload
from txcalc.planning.serving.deployment import Plan
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.speed import Serving
from txcalc.questions.pictures import (
    MAX_LINES,
    USUAL_CONTEXTS,
    Mark,
    Panel,
    Picture,
    PlotAxis,
    Series,
    between,
    picture_convention,
)
from txcalc.render.deploy import SIGNS
from txcalc.symbols import BY_LETTER
from txcalc.units import iec, seconds, short, si_bytes

MOST_POINTS = 20_000
MOST_MODELS = 8


def show(model: Model, ledger: Ledger, attention: str) -> Picture:
    """A model's parts as bars: parameters and FLOPs by kind of part; and the FLOPs of a token over the length of a
    prefill, kind upon kind, where the encoder has no length of its own."""
    quantity = "flops_masked" if attention == "masked" else "flops"
    panels = []
    for what, name, axis in (
        ("params", "parameters", "parameters, each once"),
        (quantity, "FLOPs", f"FLOPs of a forward pass, {attention} attention"),
    ):
        parts = ledger.by_kind(what)
        bars = Series(name, [kind.replace("_", " ") for kind in parts], list(parts.values()))
        panels.append(Panel("", PlotAxis(""), PlotAxis(axis), [bars], kind="bars"))
    longest = max(ledger.work.tokens, min(model.context or USUAL_CONTEXTS[-1], MAX_TOKENS))
    if longest > 1 and not model.fixed_length and not model.has_encoder_apart:
        xs = between(
            USUAL_CONTEXTS[0] if longest > USUAL_CONTEXTS[0] else max(1, longest // 64), longest, [ledger.work.tokens]
        )
        prefill = ledger.work._replace(batch=1, past=0, decoding=False)
        at = [walk(model.root, prefill._replace(tokens=n)).by_kind(quantity) for n in xs]
        layers: list[Series] = []
        for kind in [kind for kind in KINDS if any(kind in each for each in at)]:
            ys = [Fraction(each.get(kind, 0), n) for each, n in zip(at, xs, strict=True)]
            layers.append(Series(kind.replace("_", " "), xs, ys, len(layers)))
        x, y = PlotAxis("length of a prefill (tokens)", "tokens", 2), PlotAxis("FLOPs per token")
        panels.append(Panel(f"FLOPs per token, {attention} attention", x, y, layers, kind="stack"))
    words = [f"batch {ledger.work.batch:,}", f"tokens {ledger.work.tokens:,}", f"past {ledger.work.past:,}"]
    logits, mla = "last" if ledger.work.last_logits else "all", "absorbed" if ledger.work.absorbed else "expanded"
    return Picture(model.name, picture_convention([model], ", ".join(words), logits, mla), panels)


def drawable(sizes: Sequence[int], models: int = 1, by_kind: bool = False) -> None:
    """Checks that a grid with `sizes` values per axis can be drawn. Errors: `InputError`."""
    if len(sizes) > 2 - by_kind:
        most = "sweep one" if by_kind else "sweep one or two"
        raise InputError("--plot", [f"{len(sizes)} axes are more than a picture has ({most})"])
    lines = models * min(sizes) if len(sizes) == 2 else models
    if lines > MAX_LINES:
        raise InputError("--plot", [f"{lines:,} lines are more than can be told apart ({MAX_LINES})"])
    if prod(sizes) > MOST_POINTS:
        raise InputError("--plot", [f"{prod(sizes):,} points are more than a picture shows ({MOST_POINTS:,})"])


def sweep(data: Mapping[str, Any]) -> Picture:
    """One panel per quantity of a sweep over its longer axis, with a line for each value of the other axis and each
    model; for a quantity by kind of part, one stack per model."""
    axes = data["axes"]
    models = [model["name"] for model in data.get("models", [data.get("model")])]
    apart = any("." in quantity for quantity in data["quantities"])
    drawable([len(axis["values"]) for axis in axes], len(models), apart)
    panels = list(_kinds(data, models) if apart else _lines(data, models))
    words = [f"{key} {value:,}" for key, value in data["workload"].items()]
    words += ["2 FLOPs per multiply-add", f"{data['convention']['logits']} logits"]
    words += [f"MLA {data['convention']['mla']}"] if data["convention"]["mla"] else []
    return Picture(f"{', '.join(models)} over {' × '.join(a['name'] for a in axes)}", "; ".join(words), panels)


def _lines(data: Mapping[str, Any], models: Sequence[str]) -> Iterator[Panel]:
    axes = data["axes"]
    order = sorted(range(len(axes)), key=lambda i: len(axes[i]["values"]))  # of two as long, the last is drawn along
    along, lines = axes[order[-1]], axes[order[0]] if len(axes) == 2 else None
    others = list(dict.fromkeys(lines["values"])) if lines else [None]
    for quantity, meaning in data["quantities"].items():
        series: list[Series] = []
        for model, other in product(models, others):
            points = {
                row[along["name"]]: row[quantity]
                for row in data["rows"]
                if (lines is None or row[lines["name"]] == other) and row.get("model", model) == model
            }
            xs = sorted(points)
            words = [model] if len(models) > 1 else []
            words += [f"{lines['name']} = {other:,}"] if lines is not None else []
            marked = frozenset(xs if len(xs) <= 32 else ())
            series.append(Series(", ".join(words) or quantity, xs, [points[x] for x in xs], len(series), marked=marked))
        unit = "bytes" if "bytes" in quantity else ""
        every = [y for line in series for y in line.ys]
        y = PlotAxis(quantity + (" (bytes)" if unit else ""), unit, (2 if unit else 10) if _wide(every) else 0)
        yield Panel(f"{quantity}: {meaning}", _letter(along), y, series)


def _kinds(data: Mapping[str, Any], models: Sequence[str]) -> Iterator[Panel]:
    (along,) = data["axes"]
    there = {q.partition(".")[2] for row in data["rows"] for q in data["quantities"] if row[q]}
    colours = [kind for kind in KINDS if kind in there]  # one kind has one colour in all panels
    for what in dict.fromkeys(quantity.partition(".")[0] for quantity in data["quantities"]):
        unit = "bytes" if "bytes" in what else ""
        for model in models:
            rows = {row[along["name"]]: row for row in data["rows"] if row.get("model", model) == model}
            xs = sorted(rows)
            kinds = [(q, q.partition(".")[2]) for q in data["quantities"] if q.partition(".")[0] == what]
            series = [
                Series(kind.replace("_", " "), xs, [rows[x][q] for x in xs], colours.index(kind))
                for q, kind in kinds
                if any(rows[x][q] for x in xs)
            ]
            title = f"{model}: {what} by kind of part" if len(models) > 1 else f"{what} by kind of part"
            yield Panel(title, _letter(along), PlotAxis(what + (" (bytes)" if unit else ""), unit), series, (), "stack")


def _letter(axis: Mapping[str, Any]) -> PlotAxis:
    """The plot axis of a swept size; lengths and wide ranges are logarithmic in powers of two."""
    symbol = BY_LETTER.get(axis["name"])
    unit = "tokens" if axis["name"] in ("tokens", "past", "source") or (symbol and symbol.unit == "tokens") else "sizes"
    label = f"{axis['name']}: {symbol.meaning}" if symbol else str(axis["name"])
    return PlotAxis(label, unit, 2 if _wide(axis["values"]) else 0)


def _wide(values: Sequence[int]) -> bool:
    """Whether positive numbers span three octaves or more."""
    return min(values) > 0 and max(values) >= 8 * min(values)


def deploy(plan: Plan, speed: Serving | None = None) -> Picture:
    """Memory of the fullest accelerator against the context, stacked, with its capacity; and for a timed plan latency
    against batch and number of GPUs, the Pareto front, and a roofline with the operations."""
    from txcalc.render import loads

    panels = [_memory(plan)]
    if speed and speed.chosen.tpot:
        panels += [_latency(speed), *loads.panels(speed)]
    if speed:
        panels.append(_roofline(speed))
    planner, engine = plan.planner, plan.planner.engine
    sequences = "1 sequence" if plan.concurrency == 1 else f"{plan.concurrency:,} sequences"
    said = (
        f"{sequences} of {plan.context:,} tokens; weights {engine.weights.name}, cache {engine.kv} in pages of "
        f"{engine.block} tokens; reserve {engine.reserve}"
    )
    best = plan.best.layout
    return Picture(f"{planner.model.name} on {best.gpus} × {planner.accelerator.title}, {best}", said, panels)


def _memory(plan: Plan) -> Panel:
    planner, best, asked = plan.planner, plan.best, plan.context
    memory = planner.accelerator.memory
    longest = plan.max_context
    high = min(MAX_TOKENS, 2 * max(asked, longest or asked))
    xs = between(min(1 << 10, asked), high, [asked, *([longest] if longest else [])])
    gpus = [planner.fullest(best.layout, n, plan.concurrency) for n in xs]
    parts: dict[str, list[int]] = {
        "weights": [gpu.weights for gpu in gpus],
        "reserve": [gpu.reserve for gpu in gpus],
        "activations": [gpu.peak for gpu in gpus],
        "cache": [gpu.cache for gpu in gpus],
    }
    series = [Series(name, xs, ys, list(SIGNS).index(name)) for name, ys in parts.items()]
    marks = [Mark(f"memory: {iec(memory)}", y=memory), Mark(f"asked: {asked:,}", asked)]
    if longest:
        marks.append(Mark(f"longest that fits: {longest:,}", longest))
    x, y = PlotAxis("context of every sequence (tokens)", "tokens", 2), PlotAxis("memory", "bytes")
    return Panel("Memory of the fullest GPU", x, y, series, marks, "stack")


def _latency(speed: Serving) -> Panel:
    points = [point for point in speed.batches if point.tpot]
    xs = [point.sequences for point in points]
    figures = [point.tpot for point in points if point.tpot]
    series = [
        Series("achievable", xs, [figure.achievable for figure in figures], 0, marked=frozenset(xs)),
        Series("floor: no server is faster", xs, [figure.floor for figure in figures], 0, True, frozenset(xs)),
    ]
    marks = [Mark(f"asked: {speed.chosen.sequences:,}", speed.chosen.sequences)]
    for what, each in zip(("weights", "weights and cache"), speed.ridge or (), strict=False):
        ridge = (each or 0) * speed.chosen.layout.dp
        if 0 < ridge <= max(xs):
            marks.append(Mark(f"computes as long as it reads {what}: {ridge:,}", ridge))
    if speed.limits.tpot is not None:
        marks.append(Mark(f"limit: {seconds(speed.limits.tpot)}", y=speed.limits.tpot))
    x, y = PlotAxis("sequences at once", "sizes", 2), PlotAxis("time per output token", "seconds", 10)
    return Panel(f"Latency of a decode step at {speed.plan.context:,} tokens", x, y, series, marks)


def _roofline(speed: Serving) -> Panel:
    """The roofline: the accelerator's ceiling and the estimated rate of each kind of operation against its arithmetic
    intensity (FLOPs per byte of minimum traffic), for a decode step at the context and a prefill chunk."""
    plan, pace = speed.plan, speed.pace
    accelerator, engine = plan.planner.accelerator, plan.planner.engine
    steps: list[tuple[str, Workload]] = []
    if pace.caching:
        each = ceil_div(plan.concurrency, pace.layout.dp)
        work = pace.decode(ceil_div(each, min(pace.layout.pp, each)), plan.context)
        steps.append((f"decode, batch {work.batch:,}", work))
    if not pace.encodes:
        tokens = min(speed.prompt, engine.chunk) if pace.caching else speed.prompt
        work = pace.model.workload(1, tokens, logits="last")
        steps.append((f"prefill of {tokens:,}" if pace.caching else f"a pass over {tokens:,}", work))
    placed = [(what, kind, *point) for what, work in steps for kind, point in _placed(pace, work).items()]
    kinds = sorted({kind for _, kind, *_ in placed}, key=KINDS.index)
    series = [
        Series(f"{kind.replace('_', ' ')}, {what}", [x], [y], kinds.index(kind), what != steps[0][0], frozenset([x]))
        for what, kind, x, y in placed
    ]
    peaks = {dtype: peak(accelerator, dtype) for dtype in (engine.weights.dtype, pace.ranks[0].wide)}
    ridges = {dtype: Fraction(most, accelerator.bandwidth) for dtype, most in peaks.items()}
    low = min([*(x for _, _, x, _ in placed), *ridges.values()]) / 2
    high = max([*(x for _, _, x, _ in placed), *ridges.values()]) * 2
    for i, (dtype, most) in enumerate(peaks.items()):
        xs = [low, ridges[dtype], high]
        ys = [accelerator.bandwidth * Fraction(x) if x < ridges[dtype] else most for x in xs]
        series.append(Series(f"roof: {short(most)}FLOP/s in {dtype}", xs, ys, -1 - i))
    x, y = PlotAxis("FLOPs per byte of weights and cache", log=10), PlotAxis("FLOP/s per GPU, achievable", log=10)
    return Panel(f"Roofline: {si_bytes(accelerator.bandwidth)}/s, and operations below it", x, y, series)


def _placed(pace: LayoutTime, work: Workload) -> dict[str, tuple[Fraction, Fraction]]:
    """Arithmetic intensity and FLOP/s of every kind of matrix product, over all stages."""
    flops: dict[str, int] = {}
    moved: dict[str, float] = {}
    spent: dict[str, float] = {}
    for rank in pace.ranks:
        copies = rank.stage.copies
        for kind, number in walk(rank.stage.root, work).by_kind("flops_masked").items():
            flops[kind] = flops.get(kind, 0) + number * copies
        for kind, cost in rank.parts(work).items():
            held = (cost.least_weights + cost.least_cache) * rank.accelerator.bandwidth
            moved[kind] = moved.get(kind, 0.0) + held * copies
            spent[kind] = spent.get(kind, 0.0) + cost.achievable * copies
    return {
        kind: (Fraction(number) / Fraction(moved[kind]), Fraction(number) / Fraction(spent[kind]))
        for kind, number in flops.items()
        if number and moved.get(kind) and spent.get(kind)
    }
