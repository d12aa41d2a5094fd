"""Links to files outside `docs/` are for readers of the repository: the site shows their text alone. No line
begins with a percent sign, and commands in tables break at spaces only, not after the hyphens of an option."""

import re

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:txcalc|tests|presets|CONTRIBUTING\.md)[^)]*\)")
COMMAND = re.compile(r"(?<=<td><code>)txcalc [^<]*")


def on_page_markdown(markdown: str, **_: object) -> str:
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", OUTSIDE.sub(r"\1", markdown))


def on_page_content(html: str, **_: object) -> str:
    return COMMAND.sub(lambda text: re.sub(r"\S+", r'<span style="white-space:nowrap">\g<0></span>', text[0]), html)
