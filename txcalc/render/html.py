"""A report as a standalone HTML page: header and tables in the style of `txcalc report`, without scripts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape
from pathlib import Path

from txcalc.render.report import Report, Table, cell

FOLDER = Path(__file__).parent / "page"


def as_html(report: Report) -> str:
    """The whole page."""
    heading = next((table.title for table in report.tables if table.title), "")
    title, *paragraphs = report.header or [heading or "txcalc"]
    whole, style = ((FOLDER / name).read_text("utf-8").rstrip() for name in ("table.html", "style.css"))
    return whole.format(title=escape(title), style=style + "\n", body=fragment(paragraphs, report.tables))


def fragment(header: Sequence[str], tables: Sequence[Table]) -> str:
    """Lines and tables as a fragment of a page; a cell that shows a rounded value has the exact one as its tooltip."""
    summary = "".join(f"<span>{escape(line)}</span>" for line in header)
    return "\n".join([*([f'<p class="summary">{summary}</p>'] if summary else []), *map(_table, tables)])


def _table(table: Table) -> str:
    label = escape(table.title or "table", quote=True)
    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    lines = [f"<tr>{_row(row, 'row', table.left)}</tr>" for row in table.rows]
    if table.total and lines:
        lines[-1] = lines[-1].replace("<tr>", '<tr class="total">', 1)
    rows = "\n".join(lines)
    head = f"{caption}<thead><tr>{_row(table.headings, 'col', table.left)}</tr></thead>"
    whole = f"<table>\n{head}\n<tbody>\n{rows}\n</tbody></table>"
    scrolled = f'<div class="scroll" tabindex="0" role="group" aria-label="{label}">{whole}</div>'
    return f'<section aria-label="{label}">{scrolled}</section>'


def _row(cells: Sequence[object], scope: str, left: Collection[int]) -> str:
    elements = []
    for i, value in enumerate(cells):
        item = cell(value)
        # A heading takes one line here; one that repeats another in short has no value.
        label = str(item.value) or item.text if scope == "col" else item.text
        text = "\u2003" * ((len(label) - len(label.lstrip())) // 2) + escape(label.strip()).replace("\n", "<br/>")
        text = f"<b>{text}</b>" if "bold" in item.style.split() and scope == "row" else text
        side = ' class="text"' if i in left else ""
        exact = (
            "" if item.value is None or str(item.value) == label else f' title="{escape(str(item.value), quote=True)}"'
        )
        head = text and (scope == "col" or not i)  # an empty heading is none
        elements.append(f'<th scope="{scope}"{side}{exact}>{text}</th>' if head else f"<td{side}{exact}>{text}</td>")
    return "".join(elements)
