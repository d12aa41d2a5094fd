"""The report of `txcalc calibrate`: ceilings, the shares of them that operations get, and what they predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txcalc.curves import SHARES
from txcalc.render.report import Report, Table, TableCell, error


def report(found: Mapping[str, Any], file: str | None) -> Report:
    """What a `Calibration` describes of itself, as tables."""
    accelerator = found["accelerator"]
    data = {"schema": "txcalc/calibrate/1", "file": file, **found}
    said = f"written to {file}: txcalc deploy MODEL --gpu {file}" if file else "nothing was written (--out FILE.toml)"
    header = [f"{accelerator['title']}: {found['rounds']} rounds, {_which(found)} of each counts"]
    return Report(data, tables(found), header, [said, *accelerator.get("notes", ())])


def tables(found: Mapping[str, Any]) -> list[Table]:
    """Rates by kernel, shares and the predicted steps of the reference model, before and after."""
    shares = found["accelerator"]["calibration"]
    products = {
        f"matmul.{dtype}": shares["matmul"][dtype]
        for dtype in found["accelerator"]["peak"]
        if dtype in shares["matmul"]
    }
    reached = products | {key: shares[key] for key in SHARES if key != "link"}
    lines = [(key, TableCell(share["value"], f"{share['value']:.3f}")) for key, share in reached.items()]
    starts = ((key, shares[key]["value"]) for key in ("launch_s", "host_s") if key in shares)
    lines += [(key, TableCell(start, f"{1e6 * start:.2f} µs")) for key, start in starts]
    headings = ("step", "measured ms", "before ms", "before", "after ms", "after")
    title = f"Steps of {found['model']} in {found['dtype']}, before and after calibration"
    return [
        Table(f"{_which(found).capitalize()} of each kernel", ("kernel", "dtype", "size", "rate"),
              [_rate(**rate) for rate in found["rates"]], frozenset({0, 1, 2})),
        Table("Shares of the ceilings", ("key", "share"), lines),
        Table(title, headings, [_check(**check) for check in found["checks"]]),
    ]  # fmt: skip


def _which(found: Mapping[str, Any]) -> str:
    return "the median" if found.get("clocks") else "the fastest"


def _rate(kind: str, dtype: str, size: str, rate: float) -> tuple[Any, ...]:
    unit = "GFLOP/s" if kind in ("matmul", "attention, prefill") else "GB/s"
    return kind, dtype, size, TableCell(rate, f"{rate / 1e9:,.1f} {unit}")


def _check(load: str, before: float, after: float, measured: float) -> tuple[Any, ...]:
    taken, *predicted = (TableCell(seconds, f"{1e3 * seconds:,.3f}") for seconds in (measured, before, after))
    return load, taken, predicted[0], error(before, measured), predicted[1], error(after, measured)
