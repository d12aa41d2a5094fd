"""txcalc: what a Transformer costs, as a formula, an exact integer and a proof.

>>> import txcalc
>>> model = txcalc.load("llama-3.1-8b")
>>> model.params
8030261248
>>> model.ledger(tokens=2048).total("flops")
32938104193024

Every command is a function too, which is imported when it is first called:

>>> txcalc.compare(model, model.set(h_kv=32)).rows[0].values
(8030261248, 8835567616)
"""

import gc
import sys
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

_collected = gc.isenabled()
gc.disable()  # what imports make is no garbage
try:
    from txcalc import sources
    from txcalc.errors import InputError, MissingExtra, Refuted, TxcalcError, UnknownName
    from txcalc.ledger import Ledger
    from txcalc.model import Model
    from txcalc.sources import load
finally:
    if not gc.get_freeze_count():  # all that is there counts as old
        gc.freeze()
        gc.unfreeze()
    if _collected:
        gc.enable()

if TYPE_CHECKING:
    from txcalc.questions.caches import formula
    from txcalc.questions.compare import compare
    from txcalc.questions.costs import show
    from txcalc.questions.crossover import crossover
    from txcalc.questions.deployments import deploy
    from txcalc.questions.design import design
    from txcalc.questions.diff import diff
    from txcalc.questions.entropy import entropy
    from txcalc.questions.fits import fit
    from txcalc.questions.kv import kv
    from txcalc.questions.listings import export, measure, measurements, presets
    from txcalc.questions.proofs import calibrate, prove, trace, verify
    from txcalc.questions.reports import report
    from txcalc.questions.scale import scale
    from txcalc.questions.sweeps import sweep
    from txcalc.questions.trainings import train

# The functions of `txcalc.questions`, and the module of each.
COMMANDS = {
    "compare": "compare",
    "diff": "diff",
    "show": "costs",
    "crossover": "crossover",
    "formula": "caches",
    "kv": "kv",
    "deploy": "deployments",
    "design": "design",
    "fit": "fits",
    "entropy": "entropy",
    "scale": "scale",
    **dict.fromkeys(("export", "measure", "measurements", "presets"), "listings"),
    **dict.fromkeys(("calibrate", "prove", "trace", "verify"), "proofs"),
    "report": "reports",
    "sweep": "sweeps",
    "train": "trainings",
}

__all__ = [
    "InputError",
    "Ledger",
    "MissingExtra",
    "Model",
    "Refuted",
    "TxcalcError",
    "UnknownName",
    "calibrate",
    "compare",
    "crossover",
    "deploy",
    "design",
    "diff",
    "entropy",
    "export",
    "fit",
    "formula",
    "kv",
    "load",
    "measure",
    "measurements",
    "presets",
    "prove",
    "report",
    "scale",
    "show",
    "sweep",
    "trace",
    "train",
    "verify",
]
__version__ = "0.2.0"


def _measured(module: Any) -> Model:
    from txcalc.verify.measured import measured

    return measured(module)


sources.measured = _measured


class _Command(ModuleType):
    """A module of the same name as a command (`txcalc.sweep`), which is called as the command."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return __getattr__(self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Front(ModuleType):
    """This module: what the import of a submodule sets here stays the command too."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in COMMANDS and isinstance(value, ModuleType):
            value.__class__ = _Command
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front


def __getattr__(name: str) -> Any:
    if name not in COMMANDS:
        raise AttributeError(f"module 'txcalc' has no attribute {name!r}")
    return _command(name)


@cache
def _command(name: str) -> Any:
    from txcalc.questions.arguments import checked

    return checked(getattr(import_module(f"txcalc.questions.{COMMANDS[name]}"), name))


def __dir__() -> list[str]:
    return __all__
