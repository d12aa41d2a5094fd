"""`formula`: the formula of every figure, part by part, and the derivation of the textbook rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from txcalc.errors import InputError, UnknownName
from txcalc.notation import LATEX, TEXT, Expression, Style, in_order, tidy, write
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, Convention, ModelInfo, Result, WorkloadInfo
from txcalc.questions.training_step import LayoutInfo, StepRecipe, step_recipe
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.algebra import BoundSymbol, PartFormula
    from txcalc.model import Model
    from txcalc.planning.layout import Layout
    from txcalc.planning.training.recipe import Recipe
    from txcalc.sources import Source

    Letters = Mapping[Expression, BoundSymbol]

QUANTITIES = {
    "params": "Parameters",
    "active": "Active parameters",
    "flops": "Forward FLOPs, dense attention",
    "flops_masked": "Forward FLOPs, masked attention",
    "cache_growth": "KV cache of one sequence: elements per token",
    "cache_constant": "Cache of one sequence: constant elements",
    "cache": "KV cache of one sequence: elements in total",
    "saved": "Saved activations in elements, fused attention",
    "saved_scores": "Saved activations in elements, eager attention",
    "training": "FLOPs of a training step, dense attention: forward, backward and recomputation",
    "optimizer": "Bytes of optimizer state",
    "sent": "Elements sent by a rank in a forward pass",
}
LENGTHS = ("B", "T", "P", "T_src")  # letters that a model's numbers do not replace
ModelArgument = Annotated[
    "Source | None",
    o.Argument("A model; without one, the textbook rules derived from the generic block.", "[SOURCE]", "source"),
]


class Letter(Answer):
    """A letter with its meaning and its value in the model; `shown`: it is in a formula of the tables."""

    letter: str
    latex: str
    meaning: str
    value: int | None
    shown: bool = True


class FormulaRow(Answer, kw_only=True):
    """A quantity of a part: its formula, with the model's numbers, and its value, for one of `times` copies.

    shown_times    copies that its row in the tables stands for, with equal parts of other kinds of layers; 0: not shown
    shown_copies   the same in letters
    """

    part: str
    times: int
    quantity: str
    formula: str
    latex: str
    substituted: str
    value: int | str
    substituted_latex: str
    shown_times: int = 0
    shown_copies: str = ""
    shown_copies_latex: str = ""


class DerivationStep(Answer):
    """A step of a derivation."""

    step: str
    formula: str
    latex: str


class Derivation(Answer):
    """The derivation of a textbook rule from the generic block."""

    title: str
    steps: tuple[DerivationStep, ...]


class Formula(Result, tag_field="schema", tag="txcalc/formula/1", kw_only=True):
    """The formula of every figure, part by part; without a model, derivations of the textbook rules."""

    model: ModelInfo | None
    workload: WorkloadInfo | None = None
    part: str | None = None
    layout: LayoutInfo | None = None
    stage: int | None = None
    recipe: StepRecipe | None = None
    letters: tuple[Letter, ...]
    rows: tuple[FormulaRow, ...] = ()
    derivations: tuple[Derivation, ...] = ()
    convention: Convention | None = None
    notes: tuple[str, ...] = ()
    expressions: Any = None  # a function: a formula of SymPy for each row

    def to_sympy(self, quantity: str = "flops", part: str = "total") -> Expression:
        """The formula of a quantity (a key of `rows`) of a part, as a SymPy expression; its letters are
        symbols of positive integers (`free_symbols`).

        Errors: `UnknownName`.

        >>> import txcalc
        >>> txcalc.formula("gpt2").to_sympy("params", "layers.0.feed_forward")
        2*D*F + D + F
        """
        indices = {(row.quantity, row.part): i for i, row in enumerate(self.rows)}
        if (quantity, part) not in indices:
            quantities = list(dict.fromkeys(row.quantity for row in self.rows))
            if quantity not in quantities:
                raise UnknownName("formula", "quantity", quantity, quantities, f"one of {', '.join(quantities)}")
            raise UnknownName("formula", "part", part, [row.part for row in self.rows if row.quantity == quantity])
        return self.expressions()[indices[quantity, part]]

    def to_document(self) -> str:
        """A standalone LaTeX document. Errors: `InputError` without a model."""
        if self.model is None or self.layout is not None:
            raise InputError("formula", ["a LaTeX document needs a model, and no layout"])
        return import_module("txcalc.render.formula").document(self)  # type: ignore[no-any-return]


@o.Question(
    "txcalc formula llama-3.1-8b layers.0.attention --tokens 2k",
    takes=("--set", "--ignore"),
    first=("--tokens", "--batch", "--past", "--attention", "--set", "--layout", "--latex"),
    examples=("Why a block has 12·D² parameters: txcalc formula",),
)
def formula(
    source: ModelArgument = None,
    part: Annotated[
        str, o.Argument("A part and all below it: layers.0.attention, embedding, head.", "[PART]", "part")
    ] = "",
    *,
    batch: Annotated[o.Length, o.BATCH] = 1,
    tokens: Annotated[o.Length, o.TOKENS] = 1,
    past: Annotated[o.Length, o.PAST] = 0,
    source_tokens: Annotated[o.Length | None, o.SOURCE_TOKENS.with_help("Default: as many as tokens.")] = None,
    attention: Annotated[o.Attention, o.ATTENTION] = "dense",
    logits: Annotated[o.Logits, o.LOGITS] = "all",
    mla: Annotated[o.Mla, o.MLA] = "expanded",
    layout: Annotated[str | None, o.LAYOUT.with_help("Show one rank's formulas and its communication.")] = None,
    stage: Annotated[int | None, o.Option("Pipeline stage (default: the one with most memory).", "N", "Engine")] = None,
    recompute: Annotated[str | None, o.RECOMPUTE] = None,
    optimizer: Annotated[str | None, o.OPTIMIZER] = None,
) -> Formula:
    """The formula of every figure, part by part: in letters, with the model's numbers, and its value.

    Errors: `InputError`, `UnknownName`, `MissingExtra` (SymPy).

    >>> import txcalc
    >>> rows = txcalc.formula("llama-3.1-8b", "layers.0.attention").rows
    >>> [row.formula for row in rows if row.part == "layers.0.attention" and row.quantity == "params"]
    ['2·D·d_h·(h + h_kv)']
    """
    from txcalc.algebra import formulas
    from txcalc.planning.layout import parse_layout
    from txcalc.planning.training import memory

    ranks = None if layout is None else parse_layout(layout)
    of_model = {"layout": layout, "stage": stage, "recompute": recompute, "optimizer": optimizer}
    if source is None:
        if flags := [f"--{name}" for name, value in of_model.items() if value is not None]:
            raise InputError("options", [f"{flags[0]} needs a model"])
        return textbook()
    model = load(source)
    ledger = model.ledger(batch, tokens, past, source_tokens, logits=logits, mla=mla)
    if stage is not None and (ranks is None or ranks.pp == 1):
        raise InputError("--stage", ["needs a pipeline: add --layout pp=N"])
    trains = recompute or optimizer or (ranks and max(ranks.cp, ranks.pp) > 1)
    recipe = step_recipe(ledger, recompute, optimizer, layout) if trains else None
    if stage is None:
        stage = memory(model, recipe).fullest.stage if recipe and recipe.layout.pp > 1 else 0
    rows, letters = formulas(model, ledger.work, part, ranks, recipe, stage)
    selected = select(model, rows, part, attention)
    symbols = symbols_of(selected.values())
    return Formula(
        model=ModelInfo.of(model),
        workload=WorkloadInfo.of(model, ledger),
        part=part,
        layout=LayoutInfo.of(ranks) if ranks else None,
        stage=None if ranks is None else stage,
        recipe=StepRecipe.of(recipe) if recipe else None,
        letters=tuple(letter_of(letters[letter], letter in symbols) for letter in in_order(symbols_of(rows))),
        rows=tuple(formula_row(row, letters, selected.get(i)) for i, row in enumerate(rows)),
        convention=Convention.of([model], ledger.work, attention),
        notes=(*model.notes, *(layout_notes(model, ranks, recipe) if ranks else ())),
        expressions=lambda: [row.expression for row in rows],
    )


def textbook() -> Formula:
    """The textbook rules, derived from the generic block."""
    from txcalc.algebra.textbook import derivations, textbook_letters

    rules = tuple(
        Derivation(rule.title, tuple(DerivationStep(what, *as_text_and_latex(cost)) for what, cost in rule.steps))
        for rule in derivations()
    )
    return Formula(model=None, letters=tuple(map(letter_of, textbook_letters().values())), derivations=rules)


def as_text_and_latex(expression: Expression) -> tuple[str, str]:
    """A formula as text and in LaTeX."""
    terms = tidy(expression)
    return write(terms), write(terms, LATEX)


def letter_of(letter: BoundSymbol, in_formulas: bool = True) -> Letter:
    latex = write(tidy(letter.symbol), LATEX)
    return Letter(letter.symbol.name, latex, letter.meaning, letter.value, in_formulas)


def symbols_of(rows: Iterable[PartFormula]) -> set[Expression]:
    return {symbol for row in rows for symbol in row.expression.free_symbols | row.copies.free_symbols}


def formula_row(row: PartFormula, letters: Letters, printed_row: PartFormula | None) -> FormulaRow:
    """A row of the answer; `printed_row`: its row in the tables, with the copies that this stands for."""
    text, latex = as_text_and_latex(row.expression)
    copies = as_text_and_latex(printed_row.copies) if printed_row else ("", "")
    return FormulaRow(
        part=row.path or "total",
        times=row.number,
        quantity=row.quantity,
        formula=text,
        latex=latex,
        substituted=with_numbers(row, letters, TEXT),
        value=row.value if isinstance(row.value, int) else str(row.value),
        substituted_latex=with_numbers(row, letters, LATEX),
        shown_times=printed_row.number if printed_row else 0,
        shown_copies=copies[0],
        shown_copies_latex=copies[1],
    )


def with_numbers(row: PartFormula, letters: Letters, style: Style) -> str:
    """A formula with numbers for all letters but `LENGTHS`; multiplied out if any of these remains."""
    from txcalc.algebra import values

    sizes = {symbol: letter for symbol, letter in letters.items() if letter.entry.letter not in LENGTHS}
    collected = row.expression.xreplace(values(sizes))
    if collected.free_symbols:
        return write(tidy(collected), style)
    return write(tidy(row.expression), style, {symbol: letter.value for symbol, letter in sizes.items()})


def select(model: Model, rows: list[PartFormula], path: str, attention: str) -> dict[int, PartFormula]:
    """The rows of the tables by index; of a whole model down to the branches of a layer. Quantities that equal another
    one and parts that equal their only child are left out; parts with equal cost in several kinds of layers are one
    row."""
    by_quantity: dict[str, dict[int, PartFormula]] = {quantity: {} for quantity in QUANTITIES}
    for i, row in enumerate(rows):
        by_quantity[row.quantity][i] = row
    del by_quantity["flops_masked" if attention == "dense" else "flops"]
    for quantity, other in (("active", "params"), ("saved_scores", "saved")):
        same = {(row.path, row.value) for row in by_quantity[other].values()}
        differing = {i: row for i, row in by_quantity[quantity].items() if (row.path, row.value) not in same}
        by_quantity[quantity] = differing
    depth = None if path else 3 if model.has_encoder_apart else 2
    selected: dict[int, PartFormula] = {}
    for group in by_quantity.values():
        near = {i: row for i, row in group.items() if depth is None or row.depth <= depth}
        first: dict[Any, int] = {}
        for i, row in near.items():
            inside = (other for other in near.values() if other.path.startswith(f"{row.path}."))
            if row.depth > 0 and any(other.expression == row.expression for other in inside):
                continue
            alike = re.sub(r"(?<=layers\.)\d+", "", row.path), row.expression
            if (place := first.setdefault(alike, i)) == i:
                selected[i] = row
            else:
                formulas = selected[place]
                copies, number = formulas.copies + row.copies, formulas.number + row.number
                selected[place] = formulas._replace(copies=copies, number=number)
    return selected


def layout_notes(model: Model, layout: Layout, recipe: Recipe | None) -> list[str]:
    """Notes on what a layout's figures leave out."""
    from txcalc.planning.parallelism import Sharding
    from txcalc.planning.training.parts import rules_of

    notes = list(Sharding(model, **rules_of(recipe)).notes(layout))
    if (recipe.shards if recipe else layout.fsdp) > 1:
        notes.append(
            "weights are gathered while a layer runs; fsdp's own gathers and reductions are not counted as sent"
        )
    return notes
