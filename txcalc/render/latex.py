"""A report in LaTeX: tables of booktabs with a caption and a label, no wider and no longer than a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from txcalc.render.lines import blocks
from txcalc.render.report import Report, Table, cell

WIDTH = 84  # characters that a line of an article holds in \\small
ROWS = 40  # that a page holds
CHARACTER = 0.5  # of an em: about what one takes

_SIGNS = str.maketrans(
    {"%": r"\%", "&": r"\&", "#": r"\#", "_": r"\_", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
    | {"^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "×": r"$\times$", "·": r"$\cdot$", "²": "$^2$"}
    | {"…": r"\dots{}", "–": "--", "—": "---", "≥": r"$\geq$", "≤": r"$\leq$", "→": r"$\to$", "−": "$-$", "±": r"$\pm$"}
    | {"⌈": r"$\lceil$", "⌉": r"$\rceil$", "√": r"$\sqrt{}$", "≈": r"$\approx$", "Σ": r"$\sum$", "∞": r"$\infty$"}
    | {"÷": r"$\div$", "µ": r"$\mu$", "‖": r"$\|$", "█": "", "▓": "", "▒": "", "░": "", "►": r"$>$", "π": r"$\pi$"}
    | {"³": "$^3$"}
)  # fmt: skip


def as_latex(report: Report) -> str:
    """A float for every table; one too wide or too long goes on in others. A cell that is mathematics already (`$…$`)
    stays as it is."""
    return "\n\n".join(["% \\usepackage{booktabs}", *(text for table in report.tables for text in _floats(table))])


def _floats(table: Table) -> Iterator[str]:
    number = 0
    for chosen, widths, _ in blocks(table, WIDTH):
        for start in range(0, max(1, len(table.rows)), ROWS):
            number += 1
            yield _float(table, table.rows[start : start + ROWS], chosen, widths, number)


def _float(table: Table, rows: Sequence[Sequence[Any]], chosen: list[int], widths: list[int], number: int) -> str:
    """One float: some rows and some columns of a table."""
    natural = [max(len(cell(row[i]).text) for row in (table.headings, *rows)) for i in chosen]
    columns = [
        (f"p{{{CHARACTER * width:g}em}}" if most > width else "l") if i in table.left else "r"
        for i, width, most in zip(chosen, widths, natural, strict=True)
    ]
    title = table.title or "Result"
    heads = (cell(table.headings[i]) for i in chosen)
    label = re.sub(r"[^a-z0-9]+", "-", (table.name or title).lower()).strip("-") or "result"
    going_on, after = (f"-{number}", " (continued)") if number > 1 else ("", "")
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering\small",
            f"\\caption{{{_text(title)}{after}}}",
            f"\\label{{tab:{label}{going_on}}}",
            f"\\begin{{tabular}}{{{''.join(columns)}}}",
            r"\toprule",
            " & ".join(_text(str(head.value or head.text)) for head in heads) + r" \\",
            r"\midrule",
            *(" & ".join(_text(cell(row[i]).text) for i in chosen) + r" \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _text(text: str) -> str:
    """A cell's text; what is mathematics already stays as it is."""
    return text if len(text) > 1 and text[0] == text[-1] == "$" else latex_text(text)


def latex_text(text: str) -> str:
    """Plain text as LaTeX writes it."""
    return text.replace("\n", " ").translate(_SIGNS)
