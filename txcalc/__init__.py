"""txcalc: what a Transformer costs, as formulas and exact integers, each with how it is known.

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

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from txcalc import sources
from txcalc.errors import InputError, MissingExtra, Refuted, TxcalcError, UnknownName, WrongCall
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.hardware import Accelerator
    from txcalc.planning.layout import Layout
    from txcalc.planning.training.recipe import Recipe
    from txcalc.questions.calibrate import calibrate
    from txcalc.questions.compare import compare
    from txcalc.questions.crossover import crossover
    from txcalc.questions.deploy import Engine, Limits, Load, Parallelism, Speculation, deploy
    from txcalc.questions.design import design
    from txcalc.questions.diff import diff
    from txcalc.questions.entropy import entropy
    from txcalc.questions.export import export
    from txcalc.questions.fit import fit
    from txcalc.questions.formula import formula
    from txcalc.questions.kv import kv
    from txcalc.questions.measure import measure
    from txcalc.questions.measurements import measurements
    from txcalc.questions.presets import presets
    from txcalc.questions.prove import prove
    from txcalc.questions.report import ServingGrid, report
    from txcalc.questions.scale import scale
    from txcalc.questions.show import show
    from txcalc.questions.sweep import sweep
    from txcalc.questions.trace import trace
    from txcalc.questions.train import Cluster, Mfu, RecipeOptions, Run, train
    from txcalc.questions.verify import verify

# The functions of `txcalc.questions`, each in the module of its name, in the order of the help.
COMMANDS = (
    "show", "compare", "formula", "crossover", "kv", "presets", "sweep", "export", "diff", "deploy", "fit", "design",
    "train", "scale", "entropy", "verify", "prove", "trace",
    "measure", "measurements", "calibrate", "report",
)  # fmt: skip
# Classes of arguments, and the module of each.
CLASSES = {
    "Accelerator": "hardware",
    "Layout": "planning.layout",
    "Recipe": "planning.training.recipe",
    "ServingGrid": "questions.report",
    **dict.fromkeys(("Engine", "Limits", "Load", "Parallelism", "Speculation"), "questions.deploy"),
    **dict.fromkeys(("Cluster", "Mfu", "RecipeOptions", "Run"), "questions.train"),
}

__all__ = [
    "Accelerator", "Cluster", "Engine", "InputError", "Layout", "Ledger", "Limits", "Load", "Mfu", "MissingExtra",
    "Model", "Parallelism", "Recipe", "RecipeOptions", "Refuted", "Run", "ServingGrid", "Speculation",
    "TxcalcError", "UnknownName", "WrongCall", "calibrate", "compare", "crossover", "deploy", "design", "diff",
    "entropy", "export", "fit", "formula", "kv", "load", "measure", "measurements", "presets", "prove", "report",
    "scale", "show", "sweep", "trace", "train", "verify",
]  # fmt: skip
__version__ = "0.2.0"
__released__ = "2026-11-22"


def _measured(module: Any) -> Model:
    from txcalc.verification.measured_model import measured_model

    return measured_model(module)


sources.measured = _measured


def __getattr__(name: str) -> Any:
    if name not in CLASSES and name not in COMMANDS:
        raise AttributeError(f"module 'txcalc' has no attribute {name!r}")
    return _class(name) if name in CLASSES else _command(name)


@cache
def _class(name: str) -> Any:
    from txcalc.questions.arguments import documentation
    from txcalc.questions.options import options_class

    kind = getattr(import_module(f"txcalc.{CLASSES[name]}"), name)
    if options_class(kind):
        kind.__doc__ = documentation(kind)
    return kind


@cache
def _command(name: str) -> object:
    from txcalc.questions.arguments import check_arguments, documentation

    function = getattr(import_module(f"txcalc.questions.{name}"), name)
    command = check_arguments(function)
    command.__doc__ = documentation(function)
    return command


def __dir__() -> list[str]:
    return __all__
