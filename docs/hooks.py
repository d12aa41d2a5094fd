"""Links to files outside `docs/` are for readers of the repository: the site shows their text alone. No line
begins with a percent sign."""

import re

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:txcalc|tests|presets|CONTRIBUTING\.md)[^)]*\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", OUTSIDE.sub(r"\1", markdown))
