"""A report in LaTeX: booktabs tables with a caption and a label, split to fit the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from txcalc.render.lines import blocks, is_label, wrap
from txcalc.render.report import Report, Table, cell

WIDTH = 84  # characters that a line of an article holds in \\small
ROWS = 40  # that a page holds
PAGE, GAP = 48, 1.3  # ems of a line in \\small between margins of an inch, and between two columns

_SIGNS = str.maketrans(
    {"%": r"\%", "&": r"\&", "#": r"\#", "_": r"\_", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
    | {"^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "×": r"$\times$", "·": r"$\cdot$", "²": "$^2$"}
    | {"…": r"\dots{}", "–": "--", "—": "---", "≥": r"$\geq$", "≤": r"$\leq$", "→": r"$\to$", "−": "$-$", "±": r"$\pm$"}
    | {"⌈": r"$\lceil$", "⌉": r"$\rceil$", "√": r"$\sqrt{}$", "≈": r"$\approx$", "Σ": r"$\sum$", "∞": r"$\infty$"}
    | {"÷": r"$\div$", "µ": r"$\mu$", "‖": r"$\|$", "█": "", "▓": "", "▒": "", "░": "", "►": r"$>$", "π": r"$\pi$"}
    | {"³": "$^3$", "σ": r"$\sigma$"}
)  # fmt: skip


def as_latex(report: Report) -> str:
    """One float per table; tables too wide or too long for a page are split. Cells that are already math (`$…$`) stay
    as they are."""
    caption = "; ".join(report.header[:3]) or "Result"  # of a table without a title
    floats = (text for table in report.tables for text in _floats(table, caption))
    return "\n\n".join(["% \\usepackage{booktabs}", *floats])


def _floats(table: Table, caption: str) -> Iterator[str]:
    number = 0
    for columns, widths, _ in blocks(table, WIDTH):
        for start in range(0, max(1, len(table.rows)), ROWS):
            number += 1
            yield _float(table, table.rows[start : start + ROWS], columns, widths, number, table.title or caption)


def _float(
    table: Table, rows: Sequence[Sequence[object]], chosen: list[int], widths: list[int], number: int, caption: str
) -> str:
    """One float: the given rows and columns of a table, with lines broken as in a terminal."""
    heads, *body = [
        [
            _lines(cell(row[i]).text, width if i in table.left or not k else 10**9)
            for i, width in zip(chosen, widths, strict=True)
        ]
        for k, row in enumerate((table.headings, *rows))
    ]
    labels = [is_label([*map(cell, row)]) for row in rows]
    figures = [row for row, label in zip(body, labels, strict=True) if not label] or body
    columns = _columns([i in table.left for i in chosen], list(zip(heads, *figures, strict=True)))
    above = f"\\multicolumn{{{len(columns)}}}{{l}}"  # a label stands above its rows
    lines = [
        f"{above}{{{latex_text(cell(row[0]).text)}}} \\\\" if label else _row(texts, columns)
        for row, label, texts in zip(rows, labels, body, strict=True)
    ]
    label = re.sub(r"[^a-z0-9]+", "-", (table.name or caption.partition(";")[0]).lower()).strip("-") or "result"
    going_on, after = (f"-{number}", " (continued)") if number > 1 else ("", "")
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering\small",
            f"\\caption{{{latex_text(caption)}{after}}}",
            f"\\label{{tab:{label}{going_on}}}",
            f"\\begin{{tabular}}{{{''.join(columns)}}}",
            r"\toprule",
            _row(heads, columns),
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _columns(left: Sequence[bool], columns: Sequence[Sequence[list[str]]]) -> list[str]:
    """Column specifications of `tabular`: r, l, or p with a width in ems where lines are broken. Math columns share
    the width that the others leave, and break by themselves."""
    natural = [max(_ems(line) for lines in column for line in lines) for column in columns]
    formulas = [any(_mathematics(line) for lines in column for line in lines) for column in columns]
    spare = PAGE - GAP * len(columns) - sum(n for n, formula in zip(natural, formulas, strict=True) if not formula)
    most = spare / max(1, sum(formulas))
    result = []
    for is_left, column, ems, formula in zip(left, columns, natural, formulas, strict=True):
        broken = ems > most if formula else any(len(lines) > 1 for lines in column)
        kind = f"p{{{min(ems, most) if formula else ems:.1f}em}}" if broken else "l"
        result.append(kind if is_left else "r")
    return result


def _lines(text: str, width: int) -> list[str]:
    """The lines of a cell, each of at most `width` characters; math stays on one line."""
    return [text] if _mathematics(text) else wrap(text, width)


def _mathematics(text: str) -> bool:
    return len(text) > 1 and text[0] == text[-1] == "$"


def _row(cells: Sequence[list[str]], columns: Sequence[str]) -> str:
    return " & ".join(_cell(lines, kind) for lines, kind in zip(cells, columns, strict=True)) + r" \\"


def _cell(lines: Sequence[str], kind: str) -> str:
    texts = [_text(in_one_line(line) if kind[0] == "p" else line) for line in lines]
    if kind != "r" or len(texts) == 1:
        return r" \newline ".join(texts)
    return r"\shortstack[r]{" + r"\\".join(texts) + "}"


# Ems of a letter of Computer Modern: few as wide as M, few as narrow as i; all others about as wide as a digit.
_WIDE, _NARROW = frozenset("mwMWQOGDHNUKXV%@&×→≥≤−+=<>—…√Σ∞"), frozenset("ijltf.,:;'|!()[] ")


def _ems(line: str) -> float:
    if _mathematics(line):
        line = re.sub(r"\\(left|right|mathrm|frac)|[{}$_^ ]", "", re.sub(r"\\(cdot|sqrt)", "x", line))
    return sum(0.85 if sign in _WIDE else 0.34 if sign in _NARROW else 0.7 if sign.isupper() else 0.53 for sign in line)


def in_one_line(text: str) -> str:
    """Writes a formula that is one fraction with a slash: TeX breaks no line within a fraction."""
    if not text.startswith(r"$\frac{"):
        return text
    depth, ends = 0, []
    for i, sign in enumerate(text):
        depth += (sign == "{") - (sign == "}")
        if sign == "}" and not depth:
            ends.append(i)
    if ends[1:2] != [len(text) - 2]:
        return text
    above, below = text[7 : ends[0]], text[ends[0] + 2 : -2]
    return f"${_bracket(above, '+-')} / {_bracket(below, '+-*')}$"


def _bracket(text: str, signs: str) -> str:
    """Adds brackets where any of these signs (*: a product) is outside of brackets and braces."""
    bare = text.replace(r"\cdot", "*").replace(r"\left", "").replace(r"\right", "")
    while (less := re.sub(r"\([^()]*\)|\{[^{}]*\}", "", bare)) != bare:
        bare = less
    return f"({text})" if {*signs} & {*bare} else text


def _text(text: str) -> str:
    """A cell's text, indented as in a terminal; mathematics stays, in pieces between which lines may break."""
    if not _mathematics(text):
        indent = len(text) - len(text.lstrip(" "))
        return r"\quad " * (indent // 2) + latex_text(text.lstrip(" "))
    return text.replace(r"\left(", "(").replace(r"\right)", ")").replace("; ", ";$ $")


def latex_text(text: str) -> str:
    """Plain text as LaTeX writes it."""
    return text.replace("\n", " ").translate(_SIGNS)
