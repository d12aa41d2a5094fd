"""Crossover lengths and formulas: `crossover`, `formula`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from txcalc.errors import InputError
from txcalc.questions.costs import AskedWorkload, Attention, Logits, Mla, Named
from txcalc.questions.options import Length
from txcalc.questions.results import Record, Result
from txcalc.questions.training_step import StepRecipe, step_recipe
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.render.report import DataReport as Report
    from txcalc.sources import Source


class Letter(Record):
    """A letter with its meaning and its value in the model."""

    letter: str
    latex: str
    meaning: str
    value: int | None


class Derived(Record):
    """A quantity of a part: its formula, with the model's numbers, and its value."""

    part: str
    times: int
    quantity: str
    formula: str
    latex: str
    substituted: str
    value: int | str


class DerivationStep(Record):
    """A step of a derivation."""

    step: str
    formula: str
    latex: str


class Derivation(Record):
    """The derivation of a textbook rule from the generic block."""

    title: str
    steps: list[DerivationStep]


class Formula(Result):
    """The formula of every figure, part by part; without a model, derivations of the textbook rules."""

    model: Named | None
    workload: AskedWorkload | None
    part: str | None
    layout: dict[str, int] | None
    stage: int | None
    recipe: StepRecipe | None
    letters: list[Letter]
    rows: list[Derived]
    derivations: list[Derivation]

    def __init__(self, make: Callable[[str], Report], document: Callable[[], str] | None = None) -> None:
        super().__init__(make)
        vars(self)["_document"] = document

    def to_document(self) -> str:
        """A standalone LaTeX document. Errors: `InputError` without a model."""
        write: Callable[[], str] | None = vars(self)["_document"]
        if write is None:
            raise InputError("formula", ["a LaTeX document needs a model, and no layout"])
        return write()


def formula(
    source: Source | None = None,
    part: str = "",
    *,
    batch: Length = 1,
    tokens: Length = 1,
    past: Length = 0,
    source_length: Length | None = None,
    attention: Attention = "dense",
    logits: Logits = "all",
    mla: Mla = "expanded",
    layout: str | None = None,
    stage: int | None = None,
    recompute: str | None = None,
    optimizer: str | None = None,
) -> Formula:
    """The formula of every figure of a model, or of a part and all below it (`layers.0.attention`): in letters, with
    the model's numbers, and its value. Without a model, the textbook rules derived from the generic block.

    `layout`: figures of one rank, and what it sends (`tp=8,dp=2`), at a pipeline `stage` (default: the fullest).
    `recompute` (as in `train`), `optimizer`: saved activations and optimizer state of a training step.
    Errors: `InputError`, `UnknownName`, `MissingExtra` (SymPy).

    >>> import txcalc
    >>> rows = txcalc.formula("llama-3.1-8b", "layers.0.attention").rows
    >>> [row.formula for row in rows if row.part == "layers.0.attention" and row.quantity == "params"]
    ['2·D·d_h·(h + h_kv)']
    """
    from txcalc.algebra import formulas
    from txcalc.algebra.textbook import derivations, textbook_letters
    from txcalc.planning.layout import parse_layout
    from txcalc.planning.training import memory
    from txcalc.render.formula import document as write_document, generic, report

    spread = None if layout is None else parse_layout(layout)
    of_model = {"layout": layout, "stage": stage, "recompute": recompute, "optimizer": optimizer}
    if source is None:
        if given := [f"--{name}" for name, value in of_model.items() if value is not None]:
            raise InputError("options", [f"{given[0]} needs a model"])
        return Formula(lambda form: generic(derivations(), textbook_letters(), form))
    model = load(source)
    ledger = model.ledger(batch, tokens, past, source_length, logits=logits, mla=mla)
    if stage is not None and (spread is None or spread.pp == 1):
        raise InputError("--stage", ["needs a pipeline: add --layout pp=N"])
    asked = recompute or optimizer or (spread and max(spread.cp, spread.pp) > 1)
    recipe = step_recipe(ledger, recompute, optimizer, layout) if asked else None
    if stage is None:
        stage = memory(model, recipe).fullest.stage if recipe and recipe.layout.pp > 1 else 0
    rows, letters = formulas(model, ledger.work, part, spread, recipe, stage)
    document = partial(write_document, model, ledger, rows, letters, part, attention)
    told = partial(report, model, ledger, rows, letters, part, attention)
    return Formula(lambda form: told(form, spread, stage, recipe), None if spread else document)
