"""The report of `txcalc formula`: formulas with a model's numbers and values, or derivations of the textbook rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from txcalc.algebra import SAVED_SCORES, BoundSymbol, PartFormula, values
from txcalc.algebra.textbook import TextbookRule
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.notation import LATEX, TEXT, Expression, Style, in_order, tidy, write
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.training.parts import rules_of
from txcalc.planning.training.recipe import Recipe
from txcalc.questions.model_info import summary
from txcalc.questions.training_step import StepRecipe
from txcalc.render.latex import latex_text
from txcalc.render.report import DataReport, Table, TableCell, cell
from txcalc.render.show import convention, workload

TITLES = {
    "params": "Parameters",
    "active": "Active parameters",
    "flops": "Forward FLOPs, dense attention",
    "flops_masked": "Forward FLOPs, masked attention",
    "cache_growth": "Cache of one sequence: elements per further token",
    "cache_constant": "Cache of one sequence: constant elements",
    "cache": "Cache of one sequence: elements in all",
    "saved": "Saved activations in elements, fused attention",
    SAVED_SCORES: "Saved activations in elements, eager attention",
    "training": "FLOPs of a training step, dense attention: forward, backward and recomputation",
    "optimizer": "Bytes of optimizer state",
    "sent": "Elements sent by a rank in a forward pass",
}
LENGTHS = ("B", "T", "P", "T_src")
Letters = Mapping[Expression, BoundSymbol]


def report(
    model: Model,
    ledger: Ledger,
    rows: list[PartFormula],
    letters: Letters,
    path: str,
    attention: str,
    format_: str,
    layout: Layout | None = None,
    stage: int = 0,
    recipe: Recipe | None = None,
) -> DataReport:
    """The parts below `path`; of a whole model down to the branches of a layer (JSON has all). With a layout: of one
    rank of a stage; with a recipe: of a training step too."""
    places = workload(model, ledger)
    said = ", ".join(f"{name} {value:,}" for name, value in places.items() if value is not None)
    data = {
        "schema": "txcalc/formula/1",
        "model": {"name": model.name, "kind": model.kind, "source": model.spec["source"] or model.origin},
        "workload": places,
        "part": path,
        **({} if layout is None else {"layout": layout.record(), "stage": stage}),
        **({} if recipe is None else {"recipe": StepRecipe.of(recipe).to_dict()}),
        "letters": _legend_data(_used(rows, letters)),
        "rows": [_data(row, letters) for row in rows],
    }
    shown = _selected(model, rows, path, attention)
    tables = [_table(TITLES[quantity], each, letters, format_) for quantity, each in shown.items() if each]
    tables.append(_legend(_used([row for each in shown.values() for row in each], letters), format_))
    header = [*summary(model), said, convention(model, ledger, attention)]
    notes = list(model.notes)
    if layout is not None:
        of_stage = f", stage {stage}" if layout.pp > 1 else ""
        header.append(f"of one rank of {layout}{of_stage}")
        notes += Sharding(model, **rules_of(recipe)).notes(layout)
        if (recipe.shards if recipe else layout.fsdp) > 1:
            notes.append(
                "weights are gathered while a layer runs; fsdp's own gathers and reductions are not counted as sent"
            )
    if recipe is not None:
        header.append(StepRecipe.of(recipe).summary)
    return DataReport(data, tables, header, notes)


def _selected(model: Model, rows: list[PartFormula], path: str, attention: str) -> dict[str, list[PartFormula]]:
    """The rows shown, by quantity; of a whole model down to the branches of a layer."""
    found = {quantity: [row for row in rows if row.quantity == quantity] for quantity in TITLES}
    del found["flops_masked" if attention == "dense" else "flops"]
    _drop(found, "active", "params")
    _drop(found, SAVED_SCORES, "saved")
    depth = None if path else 3 if model.has_encoder_apart else 2
    return {quantity: _shown(each, depth) for quantity, each in found.items()}


PREAMBLE = r"""\documentclass[a4paper]{article}
\usepackage{amsmath}
\usepackage{longtable}
\usepackage[margin=25mm]{geometry}
\setlength{\parindent}{0pt}
\setlength{\parskip}{4pt}
\relpenalty=100 \binoppenalty=300 % formulas may break after any sign
\emergencystretch=4em
\begin{document}
"""


def document(model: Model, ledger: Ledger, rows: list[PartFormula], letters: Letters, path: str, attention: str) -> str:
    """A standalone LaTeX document: one paragraph per formula, in letters, with the model's numbers, and its value."""
    shown = _selected(model, rows, path, attention)
    said = [*summary(model), convention(model, ledger, attention)]
    lines = [PREAMBLE, rf"\section*{{{latex_text(model.name)}}}", *(rf"{latex_text(line)}\par" for line in said)]
    for quantity, each in shown.items():
        lines += [rf"\subsection*{{{latex_text(TITLES[quantity])}}}"] if each else []
        for row in each:
            copies = rf" ($\times\,{write(tidy(row.copies), LATEX)} = {row.number}$)" if row.number != 1 else ""
            # A line breaks within parentheses, but not within `\left( … \right)`.
            formula, numbers = (
                text.replace(r"\left(", "(").replace(r"\right)", ")")
                for text in (write(tidy(row.expression), LATEX), _with_numbers(row, letters, LATEX))
            )
            value = f"{row.value:,}".replace(",", "{,}") if isinstance(row.value, int) else str(row.value)
            steps = list(dict.fromkeys((formula.strip(), numbers.strip(), value)))
            name = latex_text(row.path or "total").replace(".", r".\allowbreak{}")
            lines.append(rf"\texttt{{{name}}}{copies}: ${' $ $= '.join(steps)}$\par")
    lines += [r"\subsection*{Letters}", r"\begin{longtable}{lp{9cm}r}"]
    for letter in _used([row for each in shown.values() for row in each], letters):
        value = f"{letter.value:,}" if isinstance(letter.value, int) else str(letter.value)
        lines.append(rf"${write(tidy(letter.symbol), LATEX)}$ & {latex_text(letter.meaning)} & {value} \\")
    return "\n".join([*lines, r"\end{longtable}", r"\end{document}", ""])


def generic(found: list[TextbookRule], letters: Letters, format_: str) -> DataReport:
    """The derivations of the textbook rules; `letters` have no values."""
    data = {
        "schema": "txcalc/formula/1",
        "model": None,
        "letters": _legend_data(letters.values()),
        "derivations": [
            {"title": each.title, "steps": [{"step": what, **_both(cost)} for what, cost in each.steps]}
            for each in found
        ],
    }
    tables = [
        Table(
            each.title,
            ("step", "formula"),
            [(what, _math(cost, format_)) for what, cost in each.steps],
            frozenset({0, 1}),
        )
        for each in found
    ]
    header = [
        "The generic block: h query heads on h_kv key/value heads, a plain feed-forward, RMSNorms, no biases",
        "each rule of thumb is the sum of its parts, with the classic block's sizes substituted step by step",
    ]
    return DataReport(data, [*tables, _legend(letters.values(), format_)], header)


def _drop(found: dict[str, list[PartFormula]], quantity: str, other: str) -> None:
    """Keeps only the rows of a quantity that differ from another's."""
    same = {(row.path, row.value) for row in found[other]}
    found[quantity] = [row for row in found[quantity] if (row.path, row.value) not in same]


def _shown(rows: list[PartFormula], depth: int | None) -> list[PartFormula]:
    """The rows down to a depth. A part that equals its only child is left out; parts with equal cost in layers of
    several kinds are folded."""
    near = [row for row in rows if depth is None or row.depth <= depth]
    shown: dict[Any, PartFormula] = {}
    for row in near:
        inside = (other for other in near if other.path.startswith(f"{row.path}."))
        if row.depth > 0 and any(other.expression == row.expression for other in inside):
            continue
        alike = re.sub(r"(?<=layers\.)\d+", "", row.path), row.expression
        first = shown.get(alike)
        more = {"copies": first.copies + row.copies, "number": first.number + row.number} if first else {}
        shown[alike] = (first or row)._replace(**more)
    return list(shown.values())


def _table(title: str, rows: list[PartFormula], letters: Letters, format_: str) -> Table:
    """One row per part; on a terminal with the numbers below the letters."""
    folded = format_ == "table"
    headings = ["part", "×", "formula", *(() if folded else ("with numbers",)), "value"]
    lines: list[list[Any]] = []
    for row in rows:
        name, several = row.path or "total", row.number != 1
        formula, numbers = _math(row.expression, format_), _numbers(row, letters, format_)
        if folded:
            steps = TableCell(formula.value, f"{formula.text}\n= {numbers.text}")
            lines.append([name, str(row.number) if several else "", steps, cell(row.value)])
        else:
            lines.append([name, _math(row.copies, format_) if several else "", formula, numbers, cell(row.value)])
    if not any(row.number != 1 for row in rows):
        for line in (headings, *lines):
            del line[1]
    return Table(title, headings, lines, frozenset(range(len(headings) - 1)))


def _legend(letters: Iterable[BoundSymbol], format_: str) -> Table:
    rows = [[_math(letter.symbol, format_), letter.meaning, cell(letter.value)] for letter in letters]
    return Table("Letters", ("letter", "meaning", "value"), rows, frozenset({0, 1}))


def _used(rows: Iterable[PartFormula], letters: Letters) -> list[BoundSymbol]:
    """The letters of these formulas, in order."""
    symbols = {symbol for row in rows for symbol in row.expression.free_symbols | row.copies.free_symbols}
    return [letters[symbol] for symbol in in_order(symbols)]


def _legend_data(letters: Iterable[BoundSymbol]) -> list[dict[str, Any]]:
    return [
        {
            "letter": letter.symbol.name,
            "latex": write(tidy(letter.symbol), LATEX),
            "meaning": letter.meaning,
            "value": letter.value,
        }
        for letter in letters
    ]


def _data(row: PartFormula, letters: Letters) -> dict[str, Any]:
    return {
        "part": row.path or "total",
        "times": row.number,
        "quantity": row.quantity,
        **_both(row.expression),
        "substituted": _with_numbers(row, letters, TEXT),
        "value": row.value if isinstance(row.value, int) else str(row.value),
    }


def _both(expression: Expression) -> dict[str, str]:
    formula = tidy(expression)
    return {"formula": write(formula), "latex": write(formula, LATEX)}


def _with_numbers(row: PartFormula, letters: Letters, style: Style) -> str:
    """Substitutes all letters but B, T, P and T_src, and multiplies out if any of those remains."""
    sizes = {symbol: letter for symbol, letter in letters.items() if letter.entry.letter not in LENGTHS}
    collected = row.expression.xreplace(values(sizes))
    if collected.free_symbols:
        return write(tidy(collected), style)
    return write(tidy(row.expression), style, {symbol: letter.value for symbol, letter in sizes.items()})


def _numbers(row: PartFormula, letters: Letters, format_: str) -> TableCell:
    return _cell(_with_numbers(row, letters, LATEX if format_ == "latex" else TEXT), format_)


def _math(expression: Expression, format_: str) -> TableCell:
    return _cell(write(tidy(expression), LATEX if format_ == "latex" else TEXT), format_)


def _cell(text: str, format_: str) -> TableCell:
    return TableCell(text, f"${text}$" if format_ == "latex" else text)
