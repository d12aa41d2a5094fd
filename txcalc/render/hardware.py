"""The list of accelerators: `txcalc presets --hardware`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from txcalc.hardware import Accelerator
from txcalc.render.report import Report, Table, TableCell, cell

SHOWN = ("fp8", "int8", "fp4")


def report(accelerators: Sequence[Accelerator]) -> Report:
    """A row for each; peaks are dense, a link one way, and what is not known is empty."""
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
    header = ["dense peaks (fp16 where no bf16 is known); memory as the driver reports it, if known; links one way"]
    return Report({"schema": "txcalc/presets/1", "hardware": data}, [Table("", headings, rows)], header)


def _scaled(value: int | None, unit: int) -> TableCell:
    """A value in the unit of its heading."""
    if value is None:
        return TableCell(None, "")
    scaled = Fraction(value, unit)
    return TableCell(scaled.numerator if scaled.denominator == 1 else float(scaled), f"{float(scaled):,g}")
