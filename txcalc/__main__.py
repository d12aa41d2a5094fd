"""`python -m txcalc`."""

from txcalc.cli import entry

entry()
