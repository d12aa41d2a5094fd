"""`measure` on the command line: its file records the command that made it."""

from __future__ import annotations

import sys
from typing import Any

from txcalc.cli.build import Call


def run(call: Call) -> Any:
    """Asks with the command line."""
    return call._replace(values={**call.values, "command": " ".join(["txcalc", *sys.argv[1:]])}).ask()
