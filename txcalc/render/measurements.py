"""Files of measurements as `txcalc measure` writes them (read, validated, and shown as tables), and the ceilings that
`txcalc calibrate` finds.

Every number shown is in the file: exact figures are counted, timed ones are compared with their floor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from txcalc.curves import PYTORCH, SHARES
from txcalc.errors import ABSENT, Fault, InputError, UnknownName
from txcalc.render.report import DataReport, Table, TableCell, cell, error, exact
from txcalc.sources import files
from txcalc.units import iec

SCHEMA = "txcalc/measurements/1"
MAX_BYTES = 1 << 24
NEAR = 1.1  # times the ledger's bytes
WORTH = 0.01  # of a peak: what is less is not named beneath it
KEYS = {"device": dict, "date": str, "command": str, "complete": bool, "items": dict}
Found = Mapping[str, Any]
Items = Collection[tuple[str, Found]]
SHARED = " h_kv="  # in the description of a model that differs from its neighbours in nothing else
ABSORBED = ", latents absorbed"


def folder() -> Path:
    """The folder of the measurements shipped with txcalc."""
    from txcalc.sources.presets import folder as presets

    return presets() / "measurements"


def find(name: str) -> Path:
    """The file at that path, or the shipped one of that name. Errors: `UnknownName`."""
    path = Path(name)
    if path.suffix or path.exists():
        return path
    known = sorted(file.stem for file in folder().glob("*.json"))
    if name not in known:
        raise UnknownName("measurements", "file of measurements", name, known, "a FILE.json of txcalc measure, or cpu")
    return folder() / f"{name}.json"


def read(path: Path) -> dict[str, Any]:
    """Reads a file of measurements. Errors: `InputError` where it cannot be read or has another form."""
    data = files.read(path, MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise InputError(str(path), [f"is larger than {MAX_BYTES:,} bytes"])
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), [f"cannot be read: {error}"]) from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        got = found.get("schema", ABSENT) if isinstance(found, dict) else found
        raise InputError(str(path), [Fault("schema", got, f"{SCHEMA!r}, as txcalc measure --out writes it")])
    faults = [
        Fault(key, found.get(key, ABSENT), f"a value of type {kind.__name__}")
        for key, kind in KEYS.items()
        if not isinstance(found.get(key), kind)
    ]
    if faults:
        raise InputError(str(path), faults)
    return found


def shown(path: Path) -> DataReport:
    """The report of a file. Errors: `InputError`, also where a section is missing."""
    found = read(path)
    try:
        return report(found)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(str(path), [f"is no whole file of measurements: {reason}"]) from None


def report(found: Found) -> DataReport:
    """The tables of one device: comparisons, memory, times and ceilings."""
    items = found["items"].items()
    headings = ("model", "layers", "dtype", "parameters", "figures", "differ")
    rows = [_exact(name, item) for name, item in items if item["steps"]]
    exactly = Table("Exact: predicted equals measured", headings, rows, frozenset({0, 2}))
    figures = [(name, f) for name, item in items for step in item["steps"].values() for f in step.get("figures", ())]
    notes = [f"{name}: {item['refused']}" for name, item in items if "refused" in item]
    steps = [(f"{name}, {step}", found) for name, item in items for step, found in item["steps"].items()]
    notes += [f"{name}: {found['refused']}" for name, found in steps if "refused" in found]
    notes += [f"{name} failed: {found['failed']}" for name, found in steps if "failed" in found]
    notes += [f"{name}: {found['sized']}" for name, found in steps if "sized" in found]
    notes += [f"{name}: {note}" for name, found in steps if "figures" in found for note in found.get("notes", ())]
    notes += [f"{name} ran PyTorch's plain attention, not a fused kernel" for name, found in steps if _plain(found)]
    if not found["complete"]:
        notes.append("not complete: the same command goes on where this ended")
    reached = ceilings(found["ceilings"]) if "ceilings" in found else []
    return DataReport(dict(found), [exactly, *near(figures), *forms(items), *reached], [device(found)], notes)


def near(figures: Sequence[tuple[str, Found]]) -> list[Table]:
    """Figures with a tolerance (memory, times and lengths), each with the name of its model."""
    memory = [one for one in figures if one[1]["quantity"] == "peak memory"]
    trained = [one for one in figures if one[1]["quantity"] in ("memory of training", "speed of training")]
    kernels = [one for one in figures if one[1]["quantity"] == "kernels"]
    time = [one for one in figures if one[1]["quantity"] == "time"]
    lengths = [one for one in figures if one[1]["unit"] == "tokens"]
    ledger = [figure["measured"] / figure["floor"] for _, figure in memory if figure["floor"]]
    near = sum(ratio <= NEAR for ratio in ledger)
    of_ledger = f": {near} of {len(ledger)} within {NEAR} of the ledger, {max(ledger, default=0):.2f} at most"
    tables = [
        Table("Kernels of a pass, counted on and run", ("work", "counted on", "ran", "of them"),
              _by_model(kernels, _kernels), frozenset({0, 3})),
        Table(f"Most memory held at once{of_ledger if ledger else ''}",
              ("work", "ledger", "dry run", "measured", "÷ ledger", "over dry run"),
              _by_model(memory, _memory, _beyond)),
        Table("What deploy sets aside: weights, pages and activations", ("work", "deploy", "measured", "ratio"),
              _by_model([one for one in memory if one[1].get("planned")], _shown(iec, "planned"))),
        Table("Training beside train", ("work", "predicted", "measured", "ratio"), _by_model(trained, _trained)),
        Table("Time", ("work", "floor ms", "expected ms", "measured ms", "ratio"),
              _by_model(time, _shown(_milliseconds, "floor", "predicted"))),
        Table("Attention outweighs the feed-forward", ("predicted", "tokens", "measured", "ratio"),
              _by_model(lengths, _shown("{:,.0f}".format, "predicted"))),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def _by_model(
    figures: Sequence[tuple[str, Found]],
    row: Callable[[Found], list[Any]],
    below: Callable[[Found], str] = lambda figure: "",
) -> list[list[Any]]:
    """One row per figure, grouped by model: its work, with parts of a time indented under the whole, and an optional
    line `below` it."""
    rows: list[list[Any]] = []
    for name, group in groupby(figures, key=itemgetter(0)):
        work = ""
        for _, figure in group:
            cells = row(figure)
            rows += [] if work else [[TableCell(None, name, "bold"), *[None] * len(cells)]]
            label = f"{name}, {figure['load']}" + f", {figure['part']}" * bool(figure["part"])
            if figure["part"]:
                rows += (
                    [] if figure["load"] == work else [[TableCell(None, f"  {figure['load']}"), *[None] * len(cells)]]
                )
            rows.append(
                [TableCell(label, f"    {figure['part']}" if figure["part"] else f"  {figure['load']}"), *cells]
            )
            rows += [[TableCell(None, f"    {said}", "dim"), *[None] * len(cells)]] if (said := below(figure)) else []
            work = figure["load"]
    return rows


def device(found: Found) -> str:
    """One line: device, software and date."""
    facts = found["device"]
    known = [str(facts["name"])]
    known += [f"driver {facts['driver']}"] if facts.get("driver") else []
    known += [f"{facts['threads']} thread" + "s" * (facts["threads"] > 1)] if facts.get("threads") else []
    return ", ".join([*known, f"torch {facts['torch']}", found["date"]])


def overview(files: Sequence[Path]) -> str:
    """All files as one Markdown table, a row for each model on each device."""
    rows = [
        "| model | exact: figures equal | most memory ÷ dry run | ÷ ledger | time ÷ expected |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for found in map(read, files):
        rows.append(f"| **{device(found)}** | | | | |")
        for name, item in found["items"].items():
            compared, equal = _compared(item)
            figures = [figure for step in item["steps"].values() for figure in step.get("figures", ())]
            whole = [figure for figure in figures if not figure["part"] and figure["predicted"]]
            ratios = {
                quantity: _span([f["measured"] / f["predicted"] for f in whole if f["quantity"] == quantity], digits)
                for quantity, digits in (("peak memory", 4), ("time", 2))
            }
            peaks = [f["measured"] / f["floor"] for f in whole if f["quantity"] == "peak memory" and f["floor"]]
            if item["steps"]:
                shown = f"{_size(name, item)} {item['dtype']}"
                spans = ratios["peak memory"], _span(peaks, 2), ratios["time"]
                rows.append(f"| {shown} | {equal:,} of {compared:,} | {' | '.join(spans)} |")
    return "\n".join(rows)


def _size(name: str, item: Found) -> str:
    kept, most = item["layers"], item["of_layers"]
    changes = "".join(f", {key} = {value:,}" for key, value in item.get("changes", {}).items())
    cut = f"{kept} of {most} layers" if kept != most else ""
    said = ", ".join(filter(None, [cut, changes.removeprefix(", ")]))
    return f"{name} ({said})" if said else name


def _span(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} … {high}"


def _compared(item: Found) -> tuple[int, int]:
    """The number of compared figures, and of equal ones."""
    steps = [step for step in item["steps"].values() if "compared" in step]
    compared = sum(step["compared"] for step in steps)
    return compared, compared - sum(len(step["unequal"]) for step in steps)


def _exact(name: str, item: Found) -> list[Any]:
    compared, equal = _compared(item)
    layers = TableCell(item["layers"], f"{item['layers']} of {item['of_layers']}")
    differ = TableCell(compared - equal, f"{compared - equal:,}", "green" if compared == equal else "red")
    return [name, layers, item["dtype"], exact(item["params"]), exact(compared), differ]


def _memory(figure: Found) -> list[Any]:
    """Memory: the ledger's floor, the same modules in a dry run on the meta device, and the allocator's measurement."""
    gap = figure["measured"] - figure["predicted"]
    share = f"{100 * gap / figure['predicted']:+.2f} %" if gap else "0"
    sizes = [TableCell(figure[key], iec(figure[key])) for key in ("floor", "predicted", "measured")]
    ratio = figure["measured"] / figure["floor"] if figure["floor"] else None
    over = cell(None) if ratio is None else TableCell(ratio, f"{ratio:.2f}")
    return [*sizes, over, TableCell(gap, share)]


def _beyond(figure: Found) -> str:
    """What the dry run has above the ledger and the measurement above that, and what was taken beside it, by name; each
    that is a hundredth of the measurement or more."""
    named = {**figure.get("above", {}), **figure["gap"], **figure.get("beside", {})}
    return "; ".join(f"{iec(size)} {name}" for name, size in named.items() if size >= WORTH * figure["measured"])


def _shown(write: Callable[[Any], str], *keys: str) -> Callable[[Found], list[Any]]:
    """The figures of these keys, the measurement, and its ratio to the last of them."""

    def row(figure: Found) -> list[Any]:
        figures = [figure[key] for key in (*keys, "measured")]
        ratio = figures[-1] / figures[-2] if figures[-2] else None
        last = cell(None) if ratio is None else TableCell(ratio, f"{ratio:.2f}")
        return [*(TableCell(number, write(number)) for number in figures), last]

    return row


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f}"


def _trained(figure: Found) -> list[Any]:
    return _shown(iec if figure["unit"] == "bytes" else "{:,.0f} tokens/s".format, "predicted")(figure)


def _kernels(figure: Found) -> list[Any]:
    named = ", ".join(f"{number:,.0f} {name}" for name, number in figure["beside"].items())
    return [*(TableCell(figure[key], f"{figure[key]:,.0f}") for key in ("predicted", "measured")), named]


def _plain(step: Found) -> bool:
    """Whether attention ran without a fused kernel."""
    return any(name.endswith("_math") for name in step.get("ran", {}).get("attention", ()))


# Side by side: grouped keys and values, a growing cache, both forms of latent attention.


def forms(items: Items) -> list[Table]:
    """The non-empty tables."""
    return [table for table in (_shared(items), growth_table(items), _latent(items)) if table.rows]


def _decodes(item: Found, quantity: str) -> list[Found]:
    """The figures of whole decode steps."""
    figures = [figure for step in item["steps"].values() for figure in step.get("figures", ())]
    return [f for f in figures if f["quantity"] == quantity and not f["part"] and f["load"].startswith("decode")]


def _ratios(figure: Found, other: Found) -> list[TableCell]:
    """The ratio of two figures, predicted and measured."""
    found = (figure[key] / other[key] for key in ("predicted", "measured"))
    return [TableCell(ratio, f"{ratio:.2f}") for ratio in found]


def _cache(item: Found) -> int:
    """Cache bytes, compared exactly; 0: not compared."""
    for step in item["steps"].values():
        for row in step.get("wholes", ()):
            said = dict(zip(step["columns"], row, strict=True))
            if said["quantity"] == "bytes of the cache":
                return int(said["measured"])
    return 0


def _shared(items: Items) -> Table:
    """Models that differ in the number of key/value heads only, compared with the first."""
    rows: list[list[Any]] = []
    some = [(name, item) for name, item in items if SHARED in item["source"] and _cache(item)]
    for _, group in groupby(some, key=lambda pair: pair[1]["source"].partition(SHARED)[0]):
        (_, first), *others = group
        for name, item in others:
            ratio = _cache(item) / _cache(first)
            pairs = zip(_decodes(item, "time"), _decodes(first, "time"), strict=False)
            rows += [[name, TableCell(ratio, f"{ratio:.4f}"), *_ratios(now, then)] for now, then in pairs]
    return Table("Shared keys and values, over none shared", ("model", "cache", "time expected", "measured"), rows)


def growth_table(items: Items) -> Table:
    """Memory that each further token of the past adds to a decode step."""
    rows: list[list[Any]] = []
    for name, item in items:
        for before, now in pairwise(_decodes(item, "peak memory")):
            (batch, low), (other, high) = (_batch_and_past(figure["load"]) for figure in (before, now))
            if batch == other and low < high:
                each = [(now[key] - before[key]) / (high - low) for key in ("floor", "measured")]
                rows.append([name, f"{low:,} to {high:,}", *(TableCell(size, f"{size:,.1f}") for size in each)])
    return Table("Bytes that each further token adds", ("model", "past", "ledger", "measured"), rows, frozenset({0, 1}))


def _batch_and_past(load: str) -> tuple[str, int]:
    """Parses the name of a decode step: `decode B = 2, T = 1, 4,096 past`."""
    batch, _, rest = load.partition(", T = 1, ")
    past = rest.partition(" past")[0].replace(",", "")
    return batch, int(past) if past.isdecimal() else 0


def _latent(items: Items) -> Table:
    """The ratio of a decode step with absorbed latents to one that expands them."""
    rows: list[list[Any]] = []
    for name, item in items:
        for quantity in ("peak memory", "time"):
            found = {figure["load"]: figure for figure in _decodes(item, quantity)}
            pairs = [(load, found.get(load.replace(ABSORBED, ""))) for load in found if ABSORBED in load]
            rows += [[f"{name}, {quantity}", *_ratios(found[load], other)] for load, other in pairs if other]
    return Table("Latents absorbed, over expanded", ("work", "predicted", "measured"), rows)


# A machine's ceilings, the shares that operations reach, and the resulting predictions.


def ceilings(found: Mapping[str, Any]) -> list[Table]:
    """Rates by kernel, shares and the predicted steps of the reference model, before and after."""
    shares = found["accelerator"]["calibration"]
    own = shares.get("engine", {}).get(PYTORCH)  # of a known accelerator
    products = {dtype: one["compute"] for dtype, one in own["matmul"].items()} if own else _values(shares["matmul"])
    kinds = {key: shares[key]["value"] for key in SHARES if key != "link"}
    curves = own or shares["curve"]
    if own:
        kinds["attention_prefill"] = own["attention"]["prefill"]["compute"]
        kinds["attention_decode"] = own["attention"]["decode"]["memory"]
    kinds |= {f"optimizer.{dtype}": one.get("memory", 1.0) for dtype, one in curves.get("optimizer", {}).items()}
    reached = {f"matmul.{dtype}": products[dtype] for dtype in found["accelerator"]["peak"] if dtype in products}
    lines = [(key, TableCell(share, f"{share:.3f}")) for key, share in (reached | kinds).items()]
    if slower := curves["attention"]["prefill"].get("backward"):
        lines.append(("attention, backward ÷ forward", TableCell(slower, f"{slower:.2f}")))
    starts = ((key, shares[key]["value"]) for key in ("launch_s", "host_s") if key in shares)
    lines += [(key, TableCell(start, f"{1e6 * start:.2f} µs")) for key, start in starts]
    headings = ("step", "measured ms", "before ms", "before", "after ms", "after")
    title = f"Steps of {found['model']} in {found['dtype']}, before and after calibration"
    return [
        Table(f"{chosen_runs(found).capitalize()} of each kernel", ("kernel", "dtype", "size", "rate"),
              [_rate(**rate) for rate in found["rates"]], frozenset({0, 1, 2})),
        Table("Shares of the ceilings", ("key", "share"), lines),
        Table(title, headings, [_check(**check) for check in found["checks"]]),
    ]  # fmt: skip


def _values(figures: Mapping[str, Any]) -> dict[str, float]:
    return {key: figure["value"] for key, figure in figures.items()}


def chosen_runs(found: Mapping[str, Any]) -> str:
    """Which of the rounds counts."""
    return "the median" if found.get("clocks") else "the fastest"


def _rate(kind: str, dtype: str, size: str, rate: float) -> tuple[Any, ...]:
    unit = "GFLOP/s" if kind.startswith("matmul") or kind in ("attention, prefill", "attention, backward") else "GB/s"
    return kind, dtype, size, TableCell(rate, f"{rate / 1e9:,.1f} {unit}")


def _check(load: str, before: float, after: float, measured: float) -> tuple[Any, ...]:
    taken, *predicted = (TableCell(seconds, _milliseconds(seconds)) for seconds in (measured, before, after))
    return load, taken, predicted[0], error(before, measured), predicted[1], error(after, measured)
