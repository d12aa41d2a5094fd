"""The pictures of the commands, as data. Numbers are those of the tables, computed by the same functions at more
lengths; `draw` hands them to a plotting library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from txcalc.errors import InputError
from txcalc.ledger import KINDS, Ledger, walk
from txcalc.model import MAX_TOKENS, Model
from txcalc.questions.pictures import (
    MAX_LINES,
    USUAL_CONTEXTS,
    Panel,
    Picture,
    PlotAxis,
    Series,
    between,
    picture_convention,
)
from txcalc.symbols import BY_LETTER

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
