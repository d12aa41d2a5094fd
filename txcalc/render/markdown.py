"""A report as Markdown: GitHub's tables."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from txcalc.render.report import Report, cell, heading_name


def as_markdown(report: Report) -> str:
    """GitHub tables under bold titles. Names are text: Markdown would take `<` for HTML."""

    def line(cells: Iterable[str]) -> str:
        texts = (escape(text, quote=False).replace("|", "\\|").replace("\n", " ") for text in cells)
        return "| " + " | ".join(texts) + " |"

    blocks = [escape("\n".join(report.header), quote=False)] if report.header else []
    for table in report.tables:
        headings = [heading_name(heading) or cell(heading).text for heading in table.headings]
        rule = ("---" if i in table.left else "---:" for i in range(len(table.headings)))
        rows = (line(cell(value).text for value in row) for row in table.rows)
        body = "\n".join([line(headings), line(rule), *rows])
        blocks.append(f"**{escape(table.title, quote=False)}**\n\n{body}" if table.title else body)
    return "\n\n".join(blocks)
