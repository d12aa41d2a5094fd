"""The report of `txcalc calibrate`: ceilings, the shares of them that operations get, and what they predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txcalc.hardware import SHARES, describe
from txcalc.render.report import Cell, Report, Table, error

if TYPE_CHECKING:
    from txcalc.verify.calibrate import Calibration


def report(found: Calibration, file: str | None) -> Report:
    """Rates by kernel, shares and the predicted steps of the reference model, before and after."""
    accelerator, efficiency = found.accelerator, found.accelerator.efficiency
    rates = [
        (rate.kind, rate.dtype, rate.size, Cell(rate.rate, f"{rate.rate / 1e9:,.1f} {_unit(rate.kind)}"))
        for rate in found.rates
    ]
    shares: list[tuple[str, Any]] = [(f"matmul.{dtype}", efficiency.matmul[dtype]) for dtype in accelerator.peaks]
    shares += [(key, getattr(efficiency, key)) for key in SHARES if key != "link"]
    lines = [(key, Cell(share, f"{share:.3f}")) for key, share in shares]
    lines.append(("launch_s", Cell(efficiency.launch_s, f"{1e6 * efficiency.launch_s:.2f} µs")))
    checks = [
        (
            check.load,
            _milliseconds(check.measured),
            _milliseconds(check.before),
            error(check.before, check.measured),
            _milliseconds(check.after),
            error(check.after, check.measured),
        )
        for check in found.checks
    ]
    headings = ("step", "measured ms", "before ms", "before", "after ms", "after")
    data = {
        "schema": "txcalc/calibrate/1",
        "file": file,
        "accelerator": describe(accelerator),
        "rates": [rate._asdict() for rate in found.rates],
        "model": found.model.name,
        "dtype": found.dtype,
        "checks": [check._asdict() for check in found.checks],
        "rounds": found.rounds,
    }
    tables = [
        Table("The fastest of each kernel", ("kernel", "dtype", "size", "rate"), rates, frozenset({0, 1, 2})),
        Table("Shares of the ceilings", ("key", "share"), lines),
        Table(f"Steps of {found.model.name} in {found.dtype}, before and after calibration", headings, checks),
    ]
    said = f"written to {file}: txcalc deploy MODEL --gpu {file}" if file else "nothing was written (--out FILE.toml)"
    header = [f"{accelerator.title}: {found.rounds} rounds, the fastest of each counts"]
    return Report(data, tables, header, [said, *accelerator.notes])


def _unit(kind: str) -> str:
    return "GFLOP/s" if kind in ("matmul", "attention, prefill") else "GB/s"


def _milliseconds(seconds: float) -> Cell:
    return Cell(seconds, f"{1e3 * seconds:,.3f}")
