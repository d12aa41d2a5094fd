"""Files of measurements, as `txcalc measure` writes them: read, checked for their form, and shown as tables.

Every number shown is in the file. What is exact there is counted, what was timed stands beside its floor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from txcalc.errors import ABSENT, Fault, InputError, UnknownName
from txcalc.render.calibrate import tables as ceilings
from txcalc.render.forms import forms
from txcalc.render.report import Report, Table, TableCell, cell, exact
from txcalc.units import iec

SCHEMA = "txcalc/measurements/1"
NEAR = 1.1  # times the ledger's bytes
KEYS = {"device": dict, "date": str, "command": str, "complete": bool, "items": dict}
Found = Mapping[str, Any]


def folder() -> Path:
    """Where the measurements that come with txcalc are."""
    from txcalc.sources.presets import folder as presets

    return presets() / "measurements"


def find(name: str) -> Path:
    """The file of that path, or the one of that name that comes with txcalc. Errors: `UnknownName`."""
    path = Path(name)
    if path.suffix or path.exists():
        return path
    known = sorted(file.stem for file in folder().glob("*.json"))
    if name not in known:
        raise UnknownName("measurements", "file of measurements", name, known, "a FILE.json of txcalc measure, or cpu")
    return folder() / f"{name}.json"


def read(path: Path) -> dict[str, Any]:
    """A file of measurements. Errors: `InputError` where it cannot be read or is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
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


def shown(path: Path) -> Report:
    """The report of a file. Errors: `InputError`, also for one that lacks a part."""
    found = read(path)
    try:
        return report(found)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(str(path), [f"is no whole file of measurements: {reason}"]) from None


def report(found: Found) -> Report:
    """What was compared, the memory, the times and the ceilings of one device."""
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
    return Report(dict(found), [exactly, *near(figures), *forms(items), *reached], [device(found)], notes)


def near(figures: Sequence[tuple[str, Found]]) -> list[Table]:
    """Figures that need not equal their prediction, each with the name of its model: memory, times and lengths."""
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
              _by_model([one for one in memory if one[1].get("planned")], _planned)),
        Table("Training beside train", ("work", "predicted", "measured", "ratio"), _by_model(trained, _trained)),
        Table("Time", ("work", "floor ms", "expected ms", "measured ms", "ratio"), _by_model(time, _time)),
        Table("Attention outweighs the feed-forward", ("predicted", "tokens", "measured", "ratio"),
              _by_model(lengths, _length)),
    ]  # fmt: skip
    return [table for table in tables if table.rows]


def _by_model(
    figures: Sequence[tuple[str, Found]],
    row: Callable[[Found], list[Any]],
    below: Callable[[Found], str] = lambda figure: "",
) -> list[list[Any]]:
    """A row for each figure, under the name of its model: its work, and of a part's time the part below the whole's; a
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
    """One line: on what, with what, when."""
    facts = found["device"]
    known = [str(facts["name"])]
    known += [f"driver {facts['driver']}"] if facts.get("driver") else []
    known += [f"{facts['threads']} thread" + "s" * (facts["threads"] > 1)] if facts.get("threads") else []
    return ", ".join([*known, f"torch {facts['torch']}", found["date"]])


def overview(files: Sequence[Path]) -> str:
    """All files as one Markdown table: a row for each model of each device."""
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
    """Figures that were compared, and those that were equal."""
    steps = [step for step in item["steps"].values() if "compared" in step]
    compared = sum(step["compared"] for step in steps)
    return compared, compared - sum(len(step["unequal"]) for step in steps)


def _exact(name: str, item: Found) -> list[Any]:
    compared, equal = _compared(item)
    layers = TableCell(item["layers"], f"{item['layers']} of {item['of_layers']}")
    differ = TableCell(compared - equal, f"{compared - equal:,}", "green" if compared == equal else "red")
    return [name, layers, item["dtype"], exact(item["params"]), exact(compared), differ]


def _memory(figure: Found) -> list[Any]:
    """What the ledger says has to be held, what the same modules take in a dry run on tensors without data, and what
    the allocator gave."""
    gap = figure["measured"] - figure["predicted"]
    share = f"{100 * gap / figure['predicted']:+.2f} %" if gap else "0"
    sizes = [TableCell(figure[key], iec(figure[key])) for key in ("floor", "predicted", "measured")]
    ratio = figure["measured"] / figure["floor"] if figure["floor"] else None
    over = cell(None) if ratio is None else TableCell(ratio, f"{ratio:.2f}")
    return [*sizes, over, TableCell(gap, share)]


def _beyond(figure: Found) -> str:
    """What is held beyond the dry run, and what stands beside it."""
    return "; ".join([*figure["gap"], *(f"{iec(size)} {name}" for name, size in figure.get("beside", {}).items())])


def _planned(figure: Found) -> list[Any]:
    ratio = figure["measured"] / figure["planned"]
    return [
        *(TableCell(figure[key], iec(figure[key])) for key in ("planned", "measured")),
        TableCell(ratio, f"{ratio:.2f}"),
    ]


def _trained(figure: Found) -> list[Any]:
    """Bytes, or tokens per second."""
    memory = figure["unit"] == "bytes"
    pair = (figure["predicted"], figure["measured"])
    return [*(TableCell(n, iec(n) if memory else f"{n:,.0f} tokens/s") for n in pair), _ratio(figure)]


def _kernels(figure: Found) -> list[Any]:
    named = ", ".join(f"{number:,.0f} {name}" for name, number in figure["beside"].items())
    return [*(TableCell(figure[key], f"{figure[key]:,.0f}") for key in ("predicted", "measured")), named]


def _plain(step: Found) -> bool:
    """Whether a pass ran attention that is no fused kernel."""
    return any(name.endswith("_math") for name in step.get("ran", {}).get("attention", ()))


def _time(figure: Found) -> list[Any]:
    shown = [TableCell(figure[key], f"{1e3 * figure[key]:,.3f}") for key in ("floor", "predicted", "measured")]
    return [*shown, _ratio(figure)]


def _length(figure: Found) -> list[Any]:
    return [*(TableCell(figure[key], f"{figure[key]:,.0f}") for key in ("predicted", "measured")), _ratio(figure)]


def _ratio(figure: Found) -> TableCell:
    ratio = figure["measured"] / figure["predicted"] if figure["predicted"] else None
    return cell(None) if ratio is None else TableCell(ratio, f"{ratio:.2f}")
