"""The tables of `measurements` and `measure`, and those of the ceilings that `calibrate` finds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from txcalc.evidence.figures import Figure, Rate, StepCheck
from txcalc.hardware.curves import PYTORCH, SHARES
from txcalc.questions.calibrate import Calibrate
from txcalc.questions.measurements import Ceilings, Item, Measurements, Step, read
from txcalc.render.report import Report, Table, TableCell, byte_size, cell, error, leading
from txcalc.units import iec

NEAR = 1.1  # times the ledger's bytes
WORTH = 0.01  # share of a peak; smaller terms are not named below it
Items = Mapping[str, Item]


def report(answer: Measurements, form: str = "table") -> Report:
    """The tables of one device: comparisons, memory, times and ceilings."""
    items = answer.items
    headings = ("experiment", "layers", "dtype", "parameters", "figures compared", "unequal")
    rows = [_exact(name, item) for name, item in items.items() if item.steps]
    exactly = Table("Exact: predicted equals measured", headings, rows, frozenset({0, 2}))
    figures = [(name, figure) for name, item in items.items() for figure in item.figures()]
    if form == "table" and not answer.detail:
        return Report([exactly, _by_quantity(figures)], [device(answer)], leading(_notes(answer)))
    reached = ceilings(answer.ceilings) if answer.ceilings else []
    growth = [table for table in [growth_table(items)] if table.rows]
    return Report([exactly, *near(figures), *growth, *reached], [device(answer)], _notes(answer))


def _by_quantity(figures: Sequence[tuple[str, Figure]]) -> Table:
    """The measured figures of each quantity relative to their predictions."""
    ratios = defaultdict[str, list[float]](list)
    for _, figure in figures:
        if figure.predicted and not figure.part:
            ratios[figure.quantity].append(figure.measured / figure.predicted)
    rows = [
        (quantity, len(of), *(TableCell(ratio, f"{ratio:.2f}") for ratio in (median(of), min(of), max(of))))
        for quantity, of in ratios.items()
    ]
    return Table("Measured / predicted", ("quantity", "figures", "median", "least", "most"), rows)


def _notes(answer: Measurements) -> list[str]:
    """What did not run, and what ran otherwise than asked."""
    notes = [f"{name}: {item.refused}" for name, item in answer.items.items() if item.refused]
    steps = [(f"{name}, {step}", times) for name, item in answer.items.items() for step, times in item.steps.items()]
    notes += [f"{name}: {step.refused}" for name, step in steps if step.refused]
    notes += [f"{name} failed: {step.failed}" for name, step in steps if step.failed]
    notes += [f"{name}: {step.sized}" for name, step in steps if step.sized]
    notes += [f"{name}: {note}" for name, step in steps if step.figures for note in step.notes or ()]
    notes += [f"{name} ran PyTorch's plain attention, not a fused kernel" for name, step in steps if _plain(step)]
    if not answer.complete:
        notes.append("incomplete: the same command resumes it")
    return notes


def near(figures: Sequence[tuple[str, Figure]]) -> list[Table]:
    """Figures with a tolerance (memory, times and lengths), each with the name of its model."""
    memory = [row for row in figures if row[1].quantity == "peak memory"]
    trained = [row for row in figures if row[1].quantity in ("memory of training", "speed of training")]
    kernels = [row for row in figures if row[1].quantity == "kernels"]
    time = [row for row in figures if row[1].quantity == "time"]
    lengths = [row for row in figures if row[1].unit == "tokens"]
    ledger = [figure.measured / figure.floor for _, figure in memory if figure.floor]
    near = sum(ratio <= NEAR for ratio in ledger)
    of_ledger = f": {near} of {len(ledger)} at most {NEAR} × the ledger's, the largest {max(ledger, default=0):.2f} ×"
    tables = [
        Table("Kernels per pass, predicted and run", ("work", "predicted", "run", "of these"),
              _by_model(kernels, _kernels), frozenset({0, 3})),
        Table(f"Peak memory{of_ledger if ledger else ''}",
              ("work", "ledger", "dry run", "measured", "of ledger", "measured − dry run"),
              _by_model(memory, _memory, _beyond)),
        Table("Memory planned by deploy: weights, pages and activations", ("work", "deploy", "measured", "ratio"),
              _by_model([row for row in memory if row[1].planned], _figure_cells(iec, "planned"))),
        Table("Training, predicted by train", ("work", "predicted", "measured", "ratio"), _by_model(trained, _trained)),
        Table("Time", ("work", "floor ms", "predicted ms", "measured ms", "ratio"),
              _by_model(time, _figure_cells(_milliseconds, "floor", "predicted"))),
        Table("Attention costs more than the feed-forward", ("predicted", "tokens", "measured", "ratio"),
              _by_model(lengths, _figure_cells("{:,.0f}".format, "predicted"))),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def _by_model(
    figures: Sequence[tuple[str, Figure]],
    row: Callable[[Any], list[Any]],
    below: Callable[[Any], str] = lambda figure: "",
) -> list[list[object]]:
    """One row per figure, grouped by model: its work, with parts of a time indented under the whole, and an optional
    line `below` it."""
    rows: list[list[Any]] = []
    for name, group in groupby(figures, key=itemgetter(0)):
        work = ""
        for _, figure in group:
            cells = row(figure)
            rows += [] if work else [[TableCell(None, name, "bold"), *[None] * len(cells)]]
            label = f"{name}, {figure.load}" + f", {figure.part}" * bool(figure.part)
            if figure.part and figure.load != work:
                rows.append([TableCell(None, f"  {figure.load}"), *[None] * len(cells)])
            rows.append([TableCell(label, f"    {figure.part}" if figure.part else f"  {figure.load}"), *cells])
            if line := below(figure):
                rows.append([TableCell(None, f"    {line}", "dim"), *[None] * len(cells)])
            work = figure.load
    return rows


def device(answer: Measurements) -> str:
    """One line: device, software and date."""
    facts = answer.device
    facts_shown = [str(facts["name"])]
    facts_shown += [f"driver {facts['driver']}"] if facts.get("driver") else []
    facts_shown += [f"{facts['threads']} thread" + "s" * (facts["threads"] > 1)] if facts.get("threads") else []
    return ", ".join([*facts_shown, f"torch {facts['torch']}", answer.date])


def overview(files: Sequence[Path]) -> str:
    """All files as one Markdown table, a row for each model on each device."""
    rows = [
        "| model | exact: figures equal | peak memory / dry run | / ledger | time / predicted |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for answer in map(read, files):
        rows.append(f"| **{device(answer)}** | | | | |")
        for name, item in answer.items.items():
            whole = [figure for figure in item.figures() if not figure.part and figure.predicted]
            ratios = {
                quantity: _span([f.measured / (f.predicted or 1) for f in whole if f.quantity == quantity], digits)
                for quantity, digits in (("peak memory", 4), ("time", 2))
            }
            peaks = [f.measured / f.floor for f in whole if f.quantity == "peak memory" and f.floor]
            if item.steps:
                spans = ratios["peak memory"], _span(peaks, 2), ratios["time"]
                equal = f"{item.compared - item.unequal:,} of {item.compared:,}"
                rows.append(f"| {_size(name, item)} {item.dtype} | {equal} | {' | '.join(spans)} |")
    return "\n".join(rows)


def _size(name: str, item: Item) -> str:
    layers = [f"{item.layers} of {item.of_layers} layers"] if item.layers != item.of_layers else []
    changes = [*layers, *(f"{key} = {value:,}" for key, value in (item.changes or {}).items())]
    return f"{name} ({', '.join(changes)})" if changes else name


def _span(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} … {high}"


def _exact(name: str, item: Item) -> list[Any]:
    layers = TableCell(item.layers, f"{item.layers} of {item.of_layers}")
    differ = TableCell(item.unequal, f"{item.unequal:,}", "red" if item.unequal else "green")
    return [name, layers, item.dtype, item.params, item.compared, differ]


def _memory(figure: Any) -> list[Any]:
    """Memory: the ledger's floor, the same modules in a dry run on the meta device, and the allocator's measurement."""
    gap = figure.measured - figure.predicted
    share = f"{100 * gap / figure.predicted:+.2f} %" if gap else "0"
    sizes = map(byte_size, (figure.floor, figure.predicted, figure.measured))
    ratio = figure.measured / figure.floor if figure.floor else None
    over = cell(None) if ratio is None else TableCell(ratio, f"{ratio:.2f}")
    return [*sizes, over, TableCell(gap, share)]


def _beyond(figure: Figure) -> str:
    """What the dry run has above the ledger and the measurement above that, and what was taken beside it, by name; each
    that is a hundredth of the measurement or more."""
    figures = {**(figure.above or {}), **figure.gap, **figure.beside}
    return "; ".join(f"{iec(size)} {name}" for name, size in figures.items() if size >= WORTH * figure.measured)


def _figure_cells(write: Callable[[Any], str], *keys: str) -> Callable[[Figure], list[Any]]:
    """The figures of these keys, the measurement, and its ratio to the last of them."""

    def row(figure: Figure) -> list[Any]:
        figures = [getattr(figure, key) for key in (*keys, "measured")]
        ratio = figures[-1] / figures[-2] if figures[-2] else None
        last = cell(None) if ratio is None else TableCell(ratio, f"{ratio:.2f}")
        return [*(TableCell(number, write(number)) for number in figures), last]

    return row


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f}"


def _trained(figure: Figure) -> list[object]:
    return _figure_cells(iec if figure.unit == "bytes" else "{:,.0f} tokens/s".format, "predicted")(figure)


def _kernels(figure: Figure) -> list[object]:
    kernels = ", ".join(f"{number:,.0f} {name}" for name, number in figure.beside.items())
    return [*(TableCell(number, f"{number:,.0f}") for number in (figure.predicted, figure.measured)), kernels]


def _plain(step: Step) -> bool:
    """Whether attention ran without a fused kernel."""
    return any(name.endswith("_math") for name in (step.ran or {}).get("attention", ()))


def growth_table(items: Items) -> Table:
    """Memory that each further token of the past adds to a decode step."""
    rows: list[list[Any]] = []
    for name, item in items.items():
        peaks = [figure for figure in item.figures() if figure.quantity == "peak memory" and not figure.part]
        for before, now in pairwise(figure for figure in peaks if figure.load.startswith("decode")):
            (batch, low), (other, high) = (_batch_and_past(figure.load) for figure in (before, now))
            if batch == other and low < high and now.floor is not None and before.floor is not None:
                sizes = (now.floor - before.floor, now.measured - before.measured)
                per_token = [size / (high - low) for size in sizes]
                rows.append([name, f"{low:,} to {high:,}", *(TableCell(size, f"{size:,.1f}") for size in per_token)])
    return Table("Cache bytes per token", ("model", "past", "ledger", "measured"), rows, frozenset({0, 1}))


def _batch_and_past(load: str) -> tuple[str, int]:
    """Parses the name of a decode step: `decode B = 2, T = 1, 4,096 past`."""
    batch, _, suffix = load.partition(", T = 1, ")
    past = suffix.partition(" past")[0].replace(",", "")
    return batch, int(past) if past.isdecimal() else 0


# A machine's ceilings, the shares that operations reach, and the resulting predictions.


def ceilings(answer: Ceilings | Calibrate) -> list[Table]:
    """Rates by kernel, shares and the predicted steps of the reference model, before and after."""
    shares = answer.accelerator["calibration"]
    efficiencies = shares.get("engine", {}).get(PYTORCH)  # of a known accelerator
    products = (
        {dtype: curve["compute"] for dtype, curve in efficiencies["matmul"].items()}
        if efficiencies
        else _values(shares["matmul"])
    )
    kinds = {key: shares[key]["value"] for key in SHARES if key != "link"}
    curves = efficiencies or shares["curve"]
    if efficiencies:
        kinds["attention_prefill"] = efficiencies["attention"]["prefill"]["compute"]
        kinds["attention_decode"] = efficiencies["attention"]["decode"]["memory"]
    kinds |= {f"optimizer.{dtype}": curve.get("memory", 1.0) for dtype, curve in curves.get("optimizer", {}).items()}
    reached = {f"matmul.{dtype}": products[dtype] for dtype in answer.accelerator["peak"] if dtype in products}
    lines = [(key, TableCell(share, f"{share:.3f}")) for key, share in (reached | kinds).items()]
    if slower := curves["attention"]["prefill"].get("backward"):
        lines.append(("attention, backward / forward", TableCell(slower, f"{slower:.2f}")))
    starts = ((key, shares[key]["value"]) for key in ("launch_s", "host_s") if key in shares)
    lines += [(key, TableCell(start, f"{1e6 * start:.2f} µs")) for key, start in starts]
    headings = ("step", "measured ms", "before ms", "before", "after ms", "after")
    title = f"Steps of {answer.model} in {answer.dtype}, before and after calibration"
    return [
        Table(f"{chosen_runs(answer).capitalize()} of each kernel", ("kernel", "dtype", "size", "rate"),
              [_rate(rate) for rate in answer.rates], frozenset({0, 1, 2})),
        Table("Efficiency (share of peak)", ("key", "share"), lines),
        Table(title, headings, [_check(check) for check in answer.checks]),
    ]  # fmt: skip


def _values(figures: Mapping[str, Any]) -> dict[str, float]:
    return {key: figure["value"] for key, figure in figures.items()}


def chosen_runs(answer: Ceilings | Calibrate) -> str:
    """Which of the rounds counts."""
    return "the median" if answer.clocks else "the fastest"


def _rate(row: Rate) -> tuple[object, ...]:
    products = row.kind.startswith("matmul") or row.kind in ("attention, prefill", "attention, backward")
    unit = "GFLOP/s" if products else "GB/s"
    return row.kind, row.dtype, row.size, TableCell(row.rate, f"{row.rate / 1e9:,.1f} {unit}")


def _check(row: StepCheck) -> tuple[Any, ...]:
    measured, before, after = (TableCell(n, _milliseconds(n)) for n in (row.measured, row.before, row.after))
    return row.load, measured, before, error(row.before, row.measured), after, error(row.after, row.measured)
