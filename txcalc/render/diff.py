"""The report of `txcalc diff`: what differs, and what each difference costs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.planning.differences import CostChange, KeyDifference, cost
from txcalc.render.report import DataReport, Table, TableCell
from txcalc.render.show import workload
from txcalc.units import iec, short


def report(
    one: Model,
    other: Model,
    found: Sequence[KeyDifference],
    mine: Ledger,
    theirs: Ledger,
    attention: str,
    kv_dtype: str,
) -> DataReport:
    """`mine` and `theirs`: ledgers of one workload."""
    whole = cost(mine, theirs, "flops_masked" if attention == "masked" else "flops")
    bits = mine.bits[2]

    def data(change: CostChange | None) -> dict[str, Any]:
        if change is None:
            return dict.fromkeys(("params", "flops", "flops_per_token", "cache"))
        cache = {
            "elements_per_token": change.growth,
            "bytes_per_token": _bytes(change.growth, bits),
            "constant_elements": change.constant,
        }
        return {
            "params": change.params,
            "flops": change.flops,
            "flops_per_token": _number(change.flops_per_token),
            "cache": cache,
        }

    def cells(change: CostChange) -> list[TableCell]:
        held = _bytes(change.growth, bits)
        return [
            _signed(change.params, short(abs(change.params))),
            _signed(_number(change.flops_per_token), short(abs(change.flops_per_token))),
            _signed(held, iec(abs(held))),
        ]

    facts: dict[str, Any] = {
        "schema": "txcalc/diff/1",
        "models": [
            {"name": m.name, "kind": m.kind, "source": m.origin, "params": ledger.total("params")}
            for m, ledger in ((one, mine), (other, theirs))
        ],
        "workload": workload(one, mine),
        "convention": {"flops_per_mac": 2, "attention": attention, "kv_dtype": kv_dtype},
        "differences": [
            {
                "key": d.key,
                "letter": d.letter or None,
                "from": d.one,
                "to": d.other,
                **data(d.cost),
                "why": d.why or None,
            }
            for d in found
        ],
        "whole": data(whole),
        "assumptions": [f"{m.name}: {line}" for m in (one, other) for line in m.assumptions],
        "notes": [f"{m.name}: {line}" for m in (one, other) for line in m.notes],
    }
    counted = [[_name(d), _value(d.one), _value(d.other), *cells(d.cost)] for d in found if d.cost is not None]
    counted.append(["total", "", "", *cells(whole)])
    headings = ("key", "from", "to", "parameters", "FLOPs/token", "cache/token")
    title = "Each difference by itself, added to the first model"
    tables = [Table(title, headings, counted, frozenset({0, 1, 2}), True)] if found else []
    rest = [[_name(d), _value(d.one), _value(d.other), d.why] for d in found if d.cost is None]
    if rest:
        whys = {row[-1] for row in rest}
        shown = 3 if len(whys) == 1 else 4  # a common reason is in the title
        title = f"Not counted by themselves: {whys.pop()}" if shown == 3 else "Not counted by themselves"
        named = ("key", "from", "to", "why")[:shown]
        tables.append(Table(title, named, [row[:shown] for row in rest], left=frozenset(range(shown))))
    places = ", ".join(f"{name} {value:,}" for name, value in workload(one, mine).items() if value is not None)
    header = [
        _verdict(one.name, other.name, cells(whole)) if found else f"{one.name} and {other.name} are equal",
        f"{places}; 2 FLOPs per multiply-add; {attention} attention; cache in {kv_dtype}",
        *["differences interact: their single costs do not add up to the total"] * bool(found),
    ]
    return DataReport(facts, tables, header, [*facts["assumptions"], *facts["notes"]])


def _verdict(one: str, other: str, whole: Sequence[TableCell]) -> str:
    """The total, in a line."""
    words = ("parameters", "FLOPs per token", "cache per token")
    costs = [f"{each.text} {what}" for each, what in zip(whole, words, strict=True) if each.value]
    return f"{one} → {other}: {', '.join(costs) or 'equal costs'}"


def _bytes(elements: int, bits: int) -> int:
    """Bytes of a difference, rounded away from zero as the cache itself is."""
    return ceil_div(elements * bits, 8) if elements >= 0 else -ceil_div(-elements * bits, 8)  # type: ignore[no-any-return]


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def _name(difference: KeyDifference) -> str:
    return f"{difference.letter} ({difference.key})" if difference.letter else difference.key


def _value(value: Any) -> TableCell:
    if value is None:
        return TableCell(None, "–")
    if isinstance(value, list):
        return TableCell(" ".join(map(str, value)), ", ".join(map(str, value)) or "none")
    if isinstance(value, bool):
        return TableCell(value, "yes" if value else "no")
    return TableCell(
        value, f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else value
    )


def _signed(value: int | float, size: str) -> TableCell:
    return TableCell(value, f"+{size}" if value > 0 else f"−{size}" if value < 0 else "0")
