"""`formula` on the command line: it can write a LaTeX document."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from txcalc.cli.build import Call
from txcalc.errors import InputError
from txcalc.questions import options as o


def run(
    call: Call,
    *,
    document: Annotated[
        bool, o.Option("A standalone LaTeX document (--format latex: only the tables).", flag="--latex")
    ] = False,
) -> Any:
    """Prints the document, or returns the answer."""
    if document and (not call.sources or call.values["layout"] or call.form != "table"):
        raise InputError(
            "options", ["--latex needs a model, without --layout; for the textbook rules use --format latex"]
        )
    if not call.sources and (call.changes or call.ignore):
        raise InputError("options", ["--set and --ignore need a model"])
    answer = call.ask() if call.sources else call.ask([None])
    if not document:
        return answer
    sys.stdout.write(answer.to_document())
    return None
