"""`report`: writes the page to a file or to standard output."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from txcalc.cli import options
from txcalc.cli.build import Call
from txcalc.cli.output import print_notes
from txcalc.questions import options as o
from txcalc.sources.files import writable


def run(
    call: Call,
    *,
    out: Annotated[Path, o.OUT.more("the page (-: standard output).")],
    force: Annotated[bool, o.FORCE] = False,
) -> None:
    """Asks for the page and writes it."""
    if str(out) != "-":
        writable(out, force)
    command = shlex.join(["txcalc", *sys.argv[1:]]) if sys.argv[1:2] == ["report"] else "txcalc report"
    if call.changes:
        options.models(call.sources, call.ignore, call.changes)
    given = {"changes": call.changes, "ignore": call.ignore or (), "command": command}
    page = call._replace(values=call.values | given).ask(call.sources)
    if str(out) == "-":
        sys.stdout.write(page.html)
        print_notes(page.notes)
        return
    page.save(out, force=force)
    print_notes([*page.notes, f"the page is in {out} ({len(page.html.encode()):,} bytes)"])
