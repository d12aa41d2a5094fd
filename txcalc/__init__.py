"""txcalc: what a Transformer costs, as a formula, an exact integer and a proof.

>>> import txcalc
>>> model = txcalc.load("llama-3.1-8b")
>>> model.params
8030261248
>>> model.ledger(tokens=2048).total("flops")
32938104193024

Every command is a function too, which is imported when it is first called:

>>> txcalc.compare(model, model.set(h_kv=32)).rows[0].values
[8030261248, 8835567616]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txcalc.errors import InputError, MissingExtra, Refuted, TxcalcError, UnknownName
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.api.caches import crossover, formula, kv
    from txcalc.api.costs import compare, diff, show

# The functions of `txcalc.api`, and the module of each.
COMMANDS = {
    **dict.fromkeys(("compare", "diff", "show"), "costs"),
    **dict.fromkeys(("crossover", "formula", "kv"), "caches"),
}

__all__ = [
    "InputError",
    "Ledger",
    "MissingExtra",
    "Model",
    "Refuted",
    "TxcalcError",
    "UnknownName",
    "compare",
    "crossover",
    "diff",
    "formula",
    "kv",
    "load",
    "show",
]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name not in COMMANDS:
        raise AttributeError(f"module 'txcalc' has no attribute {name!r}")
    return getattr(import_module(f"txcalc.api.{COMMANDS[name]}"), name)


def __dir__() -> list[str]:
    return __all__
