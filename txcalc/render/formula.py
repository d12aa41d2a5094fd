"""The tables of `formula`, and its LaTeX document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from txcalc.questions.formula import QUANTITIES, Derivation, Formula, FormulaRow, Letter
from txcalc.render.latex import latex_text
from txcalc.render.report import Column, Report, Table, TableCell, tabulate

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


def report(answer: Formula, form: str) -> Report:
    """One table per quantity, and the letters; without a model, the derivations."""
    if answer.model is None:
        header = [
            "The generic block: h query heads on h_kv key/value heads, a plain feed-forward, RMSNorms, no biases",
            "each rule of thumb is the sum of its parts, with the classic block's sizes substituted step by step",
        ]
        return Report(
            [*(_derivation(derivation, form) for derivation in answer.derivations), _legend(answer, form)], header
        )
    tables = [_table(QUANTITIES[quantity], rows, form) for quantity, rows in _rows_by_quantity(answer).items()]
    header = _header(answer)
    if any(row.shown_times != 1 for row in answer.rows if row.shown_times):
        header.append("×: number of equal parts; a value is of one of them")
    if answer.layout is not None:
        of_stage = f", stage {answer.stage}" if answer.layout.pp > 1 else ""
        header.append(f"of one rank of {answer.layout}{of_stage}")
    if answer.recipe is not None:
        header.append(answer.recipe.summary)
    return Report([*tables, _legend(answer, form)], header, answer.notes)


def _header(answer: Formula) -> list[str]:
    return [*(answer.model.summary if answer.model else ()), str(answer.workload), str(answer.convention)]


def _rows_by_quantity(answer: Formula) -> dict[str, list[FormulaRow]]:
    """The rows of the tables, by quantity."""
    nonzero: dict[str, list[FormulaRow]] = {}
    for quantity in QUANTITIES:
        if rows := [row for row in answer.rows if row.quantity == quantity and row.shown_times]:
            nonzero[quantity] = rows
    return nonzero


def document(answer: Formula) -> str:
    """A standalone LaTeX document: one paragraph per formula, in letters, with the model's numbers, and its value."""
    assert answer.model is not None
    lines = [PREAMBLE, rf"\section*{{{latex_text(answer.model.name)}}}"]
    lines += [rf"{latex_text(line)}\par" for line in (*answer.model.summary, str(answer.convention))]
    for quantity, rows in _rows_by_quantity(answer).items():
        lines.append(rf"\subsection*{{{latex_text(QUANTITIES[quantity])}}}")
        for row in rows:
            copies = rf" ($\times\,{row.shown_copies_latex} = {row.shown_times}$)" if row.shown_times != 1 else ""
            # A line breaks within parentheses, but not within `\left( … \right)`.
            formula, numbers = (
                text.replace(r"\left(", "(").replace(r"\right)", ")") for text in (row.latex, row.substituted_latex)
            )
            value = f"{row.value:,}".replace(",", "{,}") if isinstance(row.value, int) else row.value
            steps = list(dict.fromkeys((formula.strip(), numbers.strip(), value)))
            name = latex_text(row.part).replace(".", r".\allowbreak{}")
            lines.append(rf"\texttt{{{name}}}{copies}: ${' $ $= '.join(steps)}$\par")
    lines += [r"\subsection*{Letters}", r"\begin{longtable}{lp{9cm}r}"]
    for letter in _letters(answer):
        value = f"{letter.value:,}" if isinstance(letter.value, int) else str(letter.value)
        lines.append(rf"${letter.latex}$ & {latex_text(letter.meaning)} & {value} \\")
    return "\n".join([*lines, r"\end{longtable}", r"\end{document}", ""])


def _table(title: str, rows: list[FormulaRow], form: str) -> Table:
    """One row per part; on a terminal with the numbers below the letters."""
    terminal = form == "table"
    headings = ["part", "×", "formula", *(() if terminal else ("with numbers",)), "value"]
    lines: list[list[Any]] = []
    for row in rows:
        several = row.shown_times != 1
        formula = _math(row.formula, row.latex, form)
        numbers = _math(row.substituted, row.substituted_latex, form)
        if terminal:
            steps = TableCell(formula.value, f"{formula.text}\n= {numbers.text}")
            lines.append([row.part, str(row.shown_times) if several else "", steps, row.value])
        else:
            copies = _math(row.shown_copies, row.shown_copies_latex, form) if several else ""
            lines.append([row.part, copies, formula, numbers, row.value])
    if not any(row.shown_times != 1 for row in rows):
        for line in (headings, *lines):
            del line[1]
    return Table(title, headings, lines, frozenset(range(len(headings) - 1)))


def _derivation(derivation: Derivation, form: str) -> Table:
    steps = [(step.step, _math(step.formula, step.latex, form)) for step in derivation.steps]
    return Table(derivation.title, ("step", "formula"), steps, frozenset({0, 1}))


def _letters(answer: Formula) -> Iterable[Letter]:
    return (letter for letter in answer.letters if letter.shown)


def _legend(answer: Formula, form: str) -> Table:
    columns: list[Column[Letter]] = [
        Column("letter", lambda letter: _math(letter.letter, letter.latex, form)),
        Column("meaning", lambda letter: letter.meaning),
        *[Column[Letter]("value", lambda letter: letter.value)] * (answer.model is not None),
    ]
    return tabulate("Letters", _letters(answer), columns, left=(0, 1))


def _math(text: str, latex: str, form: str) -> TableCell:
    return TableCell(latex, f"${latex}$") if form == "latex" else TableCell(text, text)
