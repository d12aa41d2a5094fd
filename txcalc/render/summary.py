"""Lists of models and accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from txcalc.hardware import Accelerator
from txcalc.model import Model
from txcalc.render.report import DataReport, Table, TableCell, cell, rounded


def listed(models: Sequence[Model]) -> DataReport:
    """Presets: family, kind, parameters, active parameters and context."""
    rows, data = [], []
    for model in models:
        ledger, spec = model.ledger(), model.spec
        params, active = ledger.total("params"), ledger.total("active")
        rows.append((model.name, spec["family"], model.kind, rounded(params), rounded(active), cell(model.context)))
        keys = {"name": model.name, "family": spec["family"], "kind": model.kind, "params": params, "active": active}
        data.append({**keys, "context": model.context, "source": spec["source"]})
    headings = ("preset", "family", "kind", "parameters", "active", "context")
    table = Table("", headings, rows, left=frozenset({0, 1, 2}))
    return DataReport({"schema": "txcalc/presets/1", "presets": data}, [table])


SHOWN = ("fp8", "int8", "fp4")


def cards(accelerators: Sequence[Accelerator]) -> DataReport:
    """One row each; dense peaks, one-way links; unknown values are empty."""
    rows = []
    for one in accelerators:
        wide = one.peaks.get("bf16", one.peaks.get("fp16"))
        peaks = (_scaled(peak, 10**12) for peak in (wide, *map(one.peaks.get, SHOWN)))
        size = TableCell(one.memory / 2**30, f"{one.memory / 2**30:.1f}")
        rows.append((one.name, size, _scaled(one.bandwidth, 10**9), *peaks, _scaled(one.link, 10**9), cell(one.power)))
    tera = [TableCell(f"{name} TFLOP/s", f"{name}\nTFLOP/s") for name in ("bf16", *SHOWN)]
    headings = (
        "accelerator",
        TableCell("memory GiB", "memory\nGiB"),
        "GB/s",
        *tera,
        TableCell("link GB/s", "link\nGB/s"),
        "W",
    )
    data = [
        {
            "name": one.name,
            "title": one.title,
            "memory_bytes": one.memory,
            "bandwidth_bytes_per_s": one.bandwidth,
            "peak_flops": dict(one.peaks),
            "link_bytes_per_s": one.link,
            "link_between_bytes_per_s": one.link_between,
            "node": one.node,
            "power_w": one.power,
            "source": dict(one.sources),
            "notes": list(one.notes),
        }
        for one in accelerators
    ]
    header = ["dense peaks (fp16 where bf16 is unknown); memory as reported by the driver, if known; links one way"]
    return DataReport({"schema": "txcalc/presets/1", "hardware": data}, [Table("", headings, rows)], header)


def _scaled(value: int | None, unit: int) -> TableCell:
    """A value scaled to its heading's unit."""
    if value is None:
        return TableCell(None, "")
    scaled = Fraction(value, unit)
    return TableCell(scaled.numerator if scaled.denominator == 1 else float(scaled), f"{float(scaled):,g}")
