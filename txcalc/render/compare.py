"""The report of `txcalc compare`: models side by side, with ratios to the first.

What a model lacks (a cache, positions past its learned table) is an empty cell, never a zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from msgspec.structs import replace

from txcalc.errors import InputError
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.planning.crossover import RULES, crossovers, lengths
from txcalc.planning.matching import MatchedModel, matched
from txcalc.planning.memory import cache_bytes, weights_bytes
from txcalc.render.report import DataReport, Table, TableCell
from txcalc.units import iec, short

USUAL = (1 << 10, 1 << 13, 1 << 15, 1 << 17)
BESIDE = 4  # up to this many models ratios have a column, else they stand below the figure
NAME = 20  # characters of a model's name per line
NEVER = "never"

Ledgers = Sequence[Ledger | None]  # one per model; None where the length does not apply


class Comparison(NamedTuple):
    """Lengths and conventions of a comparison."""

    contexts: Sequence[int]
    dtype: str
    kv_dtype: str
    attention: str
    logits: str
    mla: str

    def ledger(self, model: Model, tokens: int = 1) -> Ledger:
        """A prefill of one sequence."""
        dtypes = {"dtype": self.dtype, "kv_dtype": self.kv_dtype}
        return model.ledger(tokens=tokens, logits=self.logits, mla=self.mla, **dtypes)


def called(model: Model, changes: Mapping[str, Any]) -> Model:
    """A model renamed by its changes, without the note of them."""
    name = " ".join([model.name, *(f"{key}={value}" for key, value in changes.items())])
    return replace(model, name=name, notes=tuple(note for note in model.notes if note != model.changed))


class EqualBudget(NamedTuple):
    """A budget shared by all models: its quantity, the size that is adjusted, and the length for FLOPs and caches."""

    quantity: str
    by: str
    tokens: int
    asked: Comparison

    def cost(self, model: Model) -> int:
        """The quantity: parameters, FLOPs of a prefill, or cached elements."""
        if self.quantity == "params":
            return model.params
        counted = "flops_masked" if self.asked.attention == "masked" else "flops"
        return self.asked.ledger(model, self.tokens).total("cache" if self.quantity == "cache" else counted)  # type: ignore[no-any-return]

    def met(self, models: Sequence[Model]) -> tuple[list[Model], Equal]:
        """Adjusts that size in all models but the first."""
        first, *rest = models
        found = [matched(model, self.by, self.cost(first), self.cost) for model in rest]
        changed = [called(each.model, {self.by: each.best.value}) for each in found]
        return [first, *changed], Equal(self, first.name, found)


class Equal(NamedTuple):
    """How close every further model comes to the first one's budget."""

    budget: EqualBudget
    first: str
    found: Sequence[MatchedModel]

    def lines(self) -> list[str]:
        """Each model's size, difference, and the neighbour on the other side."""
        asked = self.budget
        words = {"params": "parameters", "flops": "FLOPs", "cache": "cached elements"}[asked.quantity]
        at = "" if asked.quantity == "params" else f" at {asked.tokens:,} tokens"
        lines = [f"equal {words}{at} by {asked.by}: {self.found[0].budget:,} of {self.first}"]
        for each in self.found:
            other = next((n for n in (each.below, each.above) if n and n.value != each.best.value), None)
            more = f"; {asked.by} = {other.value:,}: {other.difference:+,}" if other and each.best.difference else ""
            miss = f"{each.best.difference:+,}" if each.best.difference else "exact"
            lines.append(f"  {each.model.name}: {asked.by} = {each.best.value:,}: {miss}{more}".replace(": -", ": −"))
        return lines

    def data(self) -> dict[str, Any]:
        """For JSON."""
        asked = self.budget
        return {
            "quantity": asked.quantity,
            "by": asked.by,
            "tokens": None if asked.quantity == "params" else asked.tokens,
            "budget": self.found[0].budget,
            "models": [
                {
                    "name": each.model.name,
                    "value": each.best.value,
                    "difference": each.best.difference,
                    "below": each.below and each.below._asdict(),
                    "above": each.above and each.above._asdict(),
                }
                for each in self.found
            ],
        }


class QuantityRow(NamedTuple):
    """One quantity of all models, None where a model lacks it; a share of `among`, where that is given.

    `heading` groups rows of one meaning, `label` tells them apart.
    """

    quantity: str
    tokens: int | None
    heading: str
    label: str
    values: Sequence[Any]
    shown: Callable[[Any], str]
    among: Sequence[Any] | None = None

    def ratio(self, i: int) -> Fraction | None:
        """One model's value to the first's, where both are numbers and it is no share."""
        first, value = self.values[0], self.values[i]
        if self.among or not first or value is None or NEVER in (first, value):
            return None
        return Fraction(value) / Fraction(first)


def usual_contexts(models: Sequence[Model]) -> list[int]:
    """1k, 8k, 32k and 128k as far as the longest model goes, and the shortest model's own context."""
    growing = [model for model in models if not model.fixed_length]
    known = [model.context for model in growing if model.context]
    longest = max(known, default=0) if len(known) == len(growing) else USUAL[-1]
    return sorted({*(length for length in USUAL if length <= longest), *([min(known)] if known else [])})


def reaches(model: Model, tokens: int) -> bool:
    """Whether a model takes a prompt of `tokens`: its table of positions, if it has one, is long enough."""
    positions = list(model.spec["stacks"].values())[-1]["positions"]
    learned = positions["form"] in ("learned", "relative") and positions["rows"] is not None
    return not model.fixed_length and not (learned and tokens > positions["rows"])


def rows(models: Sequence[Model], asked: Comparison) -> list[QuantityRow]:
    """Every quantity, in the order in which it is shown; what no model has is left out."""
    quantity = "flops_masked" if asked.attention == "masked" else "flops"
    ones = [asked.ledger(model) for model in models]
    found = [
        QuantityRow("params", None, "", "parameters", [one.total("params") for one in ones], short),
        QuantityRow("active", None, "", "active per token", [one.total("active") for one in ones], short),
        QuantityRow("weights_bytes", None, "", f"weights, {asked.dtype}", [weights_bytes(one) for one in ones], _bytes),
    ]
    pictures = [one if model.fixed_length else None for model, one in zip(models, ones, strict=True)]
    prefills: list[tuple[int | None, str, Ledgers]] = [(None, "whole picture", pictures)]
    for tokens in asked.contexts:
        prefill = [asked.ledger(model, tokens) if reaches(model, tokens) else None for model in models]
        prefills.append((tokens, f"{tokens:,}", prefill))
    found += [_flops(quantity, *prefill) for prefill in prefills]
    if any(model.has_windows for model in models):
        found += [_other(quantity, *prefill) for prefill in prefills]
    found += [_core(quantity, *prefill) for prefill in prefills]
    found += [_cache(*prefill) for prefill in prefills]
    longest = [next((at[i] for _, _, at in prefills[::-1] if at[i]), one) or one for i, one in enumerate(ones)]
    growing = [one.cache_now.growth if one.total("cache") else None for one in longest]
    fixed = [
        None if n is None or _coupled(m) else one.cache_now.constant
        for n, m, one in zip(growing, models, longest, strict=True)
    ]
    found += [
        _elements("growth", "a further token", growing, ones),
        _elements("constant", "constant part", fixed, ones),
    ]
    found += _crossovers(models, asked)
    return [row for row in found if any(value is not None for value in row.values)]


def _flops(quantity: str, tokens: int | None, label: str, at: Ledgers) -> QuantityRow:
    """FLOPs per token, averaged over the prefill."""
    values = [None if one is None else Fraction(one.total(quantity), one.work.tokens) for one in at]
    exact = [n.numerator if n is not None and n.denominator == 1 else n for n in values]
    return QuantityRow("flops_per_token", tokens, "FLOPs per token at", label, exact, short)


def _other(quantity: str, tokens: int | None, label: str, at: Ledgers) -> QuantityRow:
    """FLOPs by the other attention convention, where windows make it differ."""
    way, other = ("dense", "flops") if quantity == "flops_masked" else ("masked", "flops_masked")
    row = _flops(other, tokens, label, at)
    return row._replace(quantity=f"{row.quantity}_{way}", heading=f"{way}, per token")


def _core(quantity: str, tokens: int | None, label: str, at: Ledgers) -> QuantityRow:
    core = [None if one is None else one.by_kind(quantity).get("attention_core") for one in at]
    whole = [None if one is None else one.total(quantity) for one in at]
    return QuantityRow("attention_core_flops", tokens, "attention core", label, core, short, whole)


def _cache(tokens: int | None, label: str, at: Ledgers) -> QuantityRow:
    held = [None if one is None else cache_bytes(one) or None for one in at]
    return QuantityRow("cache_bytes", tokens, "cache at", label, held, _bytes)


def _elements(term: str, label: str, elements: Sequence[Any], ones: Sequence[Ledger]) -> QuantityRow:
    values = [None if n is None else ceil_div(n * one.bits[2], 8) for n, one in zip(elements, ones, strict=True)]
    return QuantityRow(f"cache_{term}_bytes", None, "cache at", label, values, _bytes)


def _coupled(model: Model) -> bool:
    """Whether the encoder is as long as the context, so that its cache is not constant."""
    return model.has_encoder_apart and model.workload(tokens=2).source == 2


def _crossovers(models: Sequence[Model], asked: Comparison) -> list[QuantityRow]:
    """Where the attention core exceeds the feed-forward, and all linear layers; none of a model whose cost is no
    polynomial of the length."""
    found: list[dict[Any, Any]] = []
    for model in models:
        try:
            answers = [] if model.fixed_length else crossovers(lengths(model, None, asked.logits, asked.mla))
        except InputError:
            answers = []
        found.append({each.rule: each for each in answers if each.attention == asked.attention})
    result = []
    for rule, label in ((RULES[0], "feed-forward"), (RULES[3], "linear layers")):
        answered = [each.get(rule) for each in found]
        values = [None if a is None or a.one_sided else a.tokens or NEVER for a in answered]
        result.append(
            QuantityRow(f"crossover: {rule.name}", None, "attention core exceeds, from", label, values, _length)
        )
    return result


def _bytes(number: int) -> str:
    return iec(number, digits=3)


def _length(tokens: Any) -> str:
    return tokens if tokens == NEVER else f"{tokens:,}" if tokens < 10**6 else short(tokens)


def report(models: Sequence[Model], asked: Comparison, equal: Equal | None = None) -> DataReport:
    """Quantities as rows, models as columns; ratios in columns of their own, or below the figures of many models."""
    found = rows(models, asked)
    beside = len(models) <= BESIDE
    headings: list[Any] = [TableCell("quantity", "")]
    columns: list[Sequence[Any]] = []
    for i, model in enumerate(models):
        cells = [_cell(row, i, _beyond(row, model)) for row in found]
        times = [_times(row, i, cell.style) for row, cell in zip(found, cells, strict=True)]
        if i and not beside:
            cells = [c._replace(text=f"{c.text}\n{t.text}".rstrip()) for c, t in zip(cells, times, strict=True)]
        width = max(8, *(len(line) for cell in cells for line in cell.text.split("\n")))
        headings.append(TableCell(model.name, fold(model.name, max(width, NAME))))
        columns.append(cells)
        if i and beside:
            headings.append("")
            columns.append(times)
    lines: list[Sequence[Any]] = []
    heading = ""
    for row, *cells in zip(found, *columns, strict=True):
        if row.heading not in ("", heading):
            lines.append([TableCell(None, row.heading, "bold"), *[""] * len(columns)])
        heading = row.heading
        what = row.quantity.replace("_flops", "_share") if row.among else row.quantity
        name = what if row.tokens is None else f"{what} at {row.tokens}"
        lines.append([TableCell(name, f"  {row.label}" if heading else row.label), *cells])
    mla = asked.mla if any(model.has_latents for model in models) else None
    convention = {"flops_per_mac": 2, "attention": asked.attention, "logits": asked.logits, "mla": mla}
    data: dict[str, Any] = {
        "schema": "txcalc/compare/1",
        "models": [
            {
                "name": model.name,
                "kind": model.kind,
                "context": model.context,
                "source": model.spec["source"] or model.origin,
            }
            for model in models
        ],
        "convention": {**convention, "dtype": asked.dtype, "kv_dtype": asked.kv_dtype},
        "workload": {"batch": 1, "past": 0, "contexts": list(asked.contexts)},
        "rows": [_data(row, models) for row in found],
    }
    if equal:
        data["match"] = equal.data()
    words = ["2 FLOPs per multiply-add", f"{asked.attention} attention", f"{asked.logits} logits"]
    words += [f"MLA {mla}"] if mla else []
    header = [
        f"{len(models)} models; × is the ratio to {models[0].name}",
        "; ".join([*words, f"cache in {asked.kv_dtype}"]),
        "one sequence; FLOPs per token: averaged over a prefill; attention core: scores and values",
        *(equal.lines() if equal else ()),
    ]
    table = Table("", headings, lines, name="comparison", crossed=True)
    return DataReport(data, [table], header, _notes(models, asked))


def _cell(row: QuantityRow, i: int, dim: bool) -> TableCell:
    """A model's figure; styled by its ratio to the first model's, bold from twice or half."""
    value, ratio = row.values[i], row.ratio(i)
    if value is None:
        return TableCell(None, "")
    if row.among:
        share = Fraction(value, row.among[i])
        return TableCell(float(share), f"{float(100 * share):.1f} %", "dim" if dim else "")
    exact = value if isinstance(value, int | str) else float(value)
    if i == 0 or ratio is None:
        style = ""
    elif ratio == 1:
        style = "dim"
    else:
        style = ("yellow" if ratio > 1 else "cyan") + (" bold" if ratio >= 2 or ratio <= Fraction(1, 2) else "")
    return TableCell(exact, row.shown(value), "dim" if dim else style)


def _times(row: QuantityRow, i: int, style: str) -> TableCell:
    ratio = row.ratio(i)
    return TableCell(None, "") if ratio is None else TableCell(float(ratio), times_text(ratio), style)


def times_text(ratio: Fraction) -> str:
    """`×1.21`, `÷12.3` below a tenth, `=` for 1: about five characters."""
    if ratio in (0, 1):
        return "=" if ratio else "×0"
    sign, factor = ("×", ratio) if ratio >= Fraction(1, 10) else ("÷", 1 / ratio)
    digits = 2 if factor < 10 else 1 if factor < 100 else 0
    return sign + (f"{float(factor):.{digits}f}" if factor < 999 else short(factor).replace(" ", ""))


def fold(name: str, width: int) -> str:
    """A name in up to three lines, broken after `-`, `_`, `/` and spaces if possible."""
    lines = [""]
    for piece in re.findall(r"[^-_/\s]*[-_/\s]?", name):
        while piece:
            room = width - len(lines[-1])
            if len(piece.rstrip()) > room and lines[-1]:
                lines.append("")
                continue
            lines[-1] += piece[:room]
            piece = piece[room:].lstrip()
    lines = [line.rstrip() for line in lines]
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], lines[2][: width - 1] + "…"])


def _beyond(row: QuantityRow, model: Model) -> bool:
    return model.context is not None and row.tokens is not None and row.tokens > model.context


def _data(row: QuantityRow, models: Sequence[Model]) -> dict[str, Any]:
    """A row in JSON; a fractional mean is a float, with its total under `flops`."""
    ratios = [row.ratio(i) for i in range(len(models))]
    data: dict[str, Any] = {"quantity": row.quantity, "tokens": row.tokens}
    data["values"] = [
        float(value) if isinstance(value, Fraction) else None if value == NEVER else value for value in row.values
    ]
    if row.quantity.startswith("flops_per_token") and row.tokens is not None:
        data["flops"] = [None if value is None else int(value * row.tokens) for value in row.values]
    if row.among:
        data["of"] = row.among
    else:
        data["ratios"] = [None if ratio is None else float(ratio) for ratio in ratios]
    if NEVER in row.values:
        data["never"] = [value == NEVER for value in row.values]
    return data


def _notes(models: Sequence[Model], asked: Comparison) -> list[str]:
    notes = []
    for model in models:
        notes += [f"{model.name}: assumed {assumption}" for assumption in model.assumptions]
        notes += [f"{model.name}: {note}" for note in model.notes]
        if any(not reaches(model, tokens) for tokens in asked.contexts) and not model.fixed_length:
            notes.append(f"{model.name}: lengths beyond its position table are left out")
        elif model.context and max(asked.contexts, default=0) > model.context:
            notes.append(f"{model.name}: includes lengths beyond its context of {model.context:,}")
    return notes
