"""The tables of `presets`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from txcalc.questions.presets import Datasheet, Presets
from txcalc.render.report import Report, Table, TableCell, rounded

DTYPES = ("fp8", "int8", "fp4")  # beside bf16
CONVENTION = (
    "dense peaks in TFLOP/s (fp16 where bf16 is unknown); links one way\n"
    "memory as the driver reports it, if known; usable: what a process can take of it"
)


def report(answer: Presets, form: str) -> Report:
    """A row per model, or per accelerator."""
    if answer.hardware is not None:
        return Report([_hardware(answer.hardware)], [CONVENTION])
    headings = ("preset", "family", "kind", "parameters", "active", "context")
    rows = [
        (row.name, row.family, row.kind, rounded(row.params), rounded(row.active), row.context)
        for row in answer.presets or ()
    ]
    return Report([Table("", headings, rows, left=frozenset({0, 1, 2}))])


def _hardware(accelerators: Sequence[Datasheet]) -> Table:
    """Unknown values are empty."""
    rows = []
    for row in accelerators:
        peaks = (row.peak_flops.get("bf16", row.peak_flops.get("fp16")), *map(row.peak_flops.get, DTYPES))
        sizes = [TableCell(size / 2**30, f"{size / 2**30:.1f}") for size in (row.memory_bytes, row.visible_bytes)]
        rates = [_scale(peak, 10**12) for peak in peaks]
        link = _scale(row.link_bytes_per_s, 10**9)
        rows.append((row.name, *sizes, _scale(row.bandwidth_bytes_per_s, 10**9), *rates, link, row.power_w))
    flops = [TableCell(f"{dtype} TFLOP/s", dtype) for dtype in ("bf16", *DTYPES)]
    memory = [TableCell(f"{name} GiB", f"{name}\nGiB") for name in ("memory", "usable")]
    return Table("", ("accelerator", *memory, "GB/s", *flops, TableCell("link GB/s", "link\nGB/s"), "W"), rows)


def _scale(value: int | None, unit: int) -> TableCell:
    """A value scaled to its heading's unit."""
    if value is None:
        return TableCell(None, "")
    scaled = Fraction(value, unit)
    return TableCell(scaled.numerator if scaled.denominator == 1 else float(scaled), f"{float(scaled):,g}")
