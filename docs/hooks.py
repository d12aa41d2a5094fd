"""The site has no page for a file outside `docs/`: a link to one is its text alone. Readers of the repository follow it."""

import re

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:txcalc|tests|presets|CONTRIBUTING\.md)[^)]*\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    return OUTSIDE.sub(r"\1", markdown)
