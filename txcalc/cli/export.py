"""`export` on the command line: it prints the description if no file is given."""

from __future__ import annotations

import sys

from txcalc.cli.build import Call
from txcalc.cli.output import print_notes
from txcalc.questions.export import Export


def run(call: Call) -> None:
    """Asks, and prints."""
    answer: Export = call.ask()
    if call.values.get("file") is None:
        sys.stdout.write(answer.text)
    print_notes(answer.notes)
