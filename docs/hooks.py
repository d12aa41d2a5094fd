"""Links to files outside `docs/` are for readers of the repository: the site shows their text alone."""

import re

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:txcalc|tests|presets|CONTRIBUTING\.md)[^)]*\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    return OUTSIDE.sub(r"\1", markdown)
