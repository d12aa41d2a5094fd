"""`prove` on the command line: it can prove every preset."""

from __future__ import annotations

from typing import Annotated, Any

from txcalc.cli import options
from txcalc.cli.build import Call
from txcalc.cli.verify import given
from txcalc.questions import options as o


def run(call: Call, *, everything: Annotated[bool, o.EVERY_PRESET] = False) -> Any:
    """Asks for the named models, or for every preset."""
    sources = given("prove", call.sources, everything)
    return call.ask(options.models(sources, call.ignore, call.changes))
