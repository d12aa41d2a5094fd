"""The figures of a structure's leaves as formulas: their digest, and their values at a model's sizes.

A digest is of the formulas themselves (`residues`), each by the path of its leaf. Values are what the formulas with
this digest give at a model's sizes and workload; `agrees` compares them with the ledger whose figures are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

from txcalc.evidence.residues import ResidueTape, residue, value
from txcalc.evidence.structures import FRAME, Unit, fingerprint, layer_name
from txcalc.ledger import Entry, Ledger, walk
from txcalc.model import Model
from txcalc.num import Num
from txcalc.parts.options import Raw, Table, numbered
from txcalc.parts.part import Workload
from txcalc.planning.gradients import step_flops, training_flops

FUSED, KEPT = "saved, fused attention", "saved, attention matrix kept"
LAST, ABSORBED = "last logits", "MLA absorbed"
FORMS = {LAST: "last_logits", ABSORBED: "absorbed"}  # form of FLOPs → field of the workload
FORMED = ("flops", "flops with cache")  # figures that have these forms
WEIGHTS = ("params", "active")  # figures that no workload changes
PROMPT, STEP = "a prompt", "a step after cached tokens"


class Figure(NamedTuple):
    """A figure of a leaf, its total of a ledger, and the passes whose formulas its digest is of."""

    of: Callable[[Entry], Num]
    total: Callable[[Ledger], Num]
    passes: tuple[str, ...] = (PROMPT,)
    form: Mapping[str, bool] = {}


def name_in_form(figure: str, *forms: str) -> str:
    """The name of a figure in a form, such as "flops, last logits"; the default form is ""."""
    return ", ".join(filter(None, (figure, *forms)))


def _of_ledger(quantity: str, *passes: str) -> Figure:
    """The figure that is a quantity of the ledger."""
    return Figure(attrgetter(quantity), methodcaller("total", quantity), passes or (PROMPT,))


FIGURES: dict[str, Figure] = {
    "params": _of_ledger("params"),
    "active": _of_ledger("active"),
    "flops": _of_ledger("flops"),
    "training flops": Figure(step_flops, training_flops),
    "flops with cache": _of_ledger("flops", STEP),
    "cache": _of_ledger("cache", PROMPT, STEP),
    "masked flops": _of_ledger("flops_masked", PROMPT, STEP),
    FUSED: _of_ledger("saved"),
    KEPT: _of_ledger("saved")._replace(form={"keep_scores": True}),
}
FIGURES |= {
    name_in_form(name, *forms): FIGURES[name]._replace(form={FORMS[form]: True for form in forms})
    for name in FORMED
    for forms in ((LAST,), (ABSORBED,), (LAST, ABSORBED))
}


def ledger(root: Any, batch: Any, tokens: Any, source: Any, **form: bool) -> Ledger:
    """The ledger of a unit's tree; a picture's positions are its own."""
    source = source if root.fixed is None else root.fixed
    return walk(root, Workload(batch, tokens, 0, source, **form))


class Formulas:
    """The formulas of a unit, with their values at its own sizes and a workload, if one is given. Units of one
    structure may share their `digests`."""

    def __init__(self, unit: Unit, work: Workload | None = None, digests: dict[str, str] | None = None) -> None:
        self.unit, self.work = unit, work
        self._digests = {} if digests is None else digests
        self._walked: dict[Any, Ledger] = {}

    @cached_property
    def _letters(self) -> Table:
        lengths = {"B": 1, "T": 1, "past": 1, "T_src": 1}
        if self.work is not None:
            batch, tokens, past, source = self.work[:4]
            lengths = {"B": batch, "T": tokens, "past": past, "T_src": tokens if source is None else source}
        return ResidueTape({**self.unit.values, **lengths}).letters

    @cached_property
    def _root(self) -> Any:
        return self.unit.over(self._letters)

    def _ledger(self, step: bool, form: Mapping[str, bool]) -> Ledger:
        """The ledger of a prompt, or of a step after cached tokens."""
        key = step, *form
        if key not in self._walked:
            batch, tokens, past, source = (self._letters[name] for name in ("B", "T", "past", "T_src"))
            source = source if self._root.fixed is None else self._root.fixed
            work = Workload(batch, tokens, past if step else 0, source, decoding=step, **form)
            self._walked[key] = walk(self._root, work)
        return self._walked[key]

    @property
    def routed(self) -> bool:
        """Whether it has experts of which a token uses some."""
        return any(entry.routed for entry in self._ledger(False, {}))

    def digest(self, quantity: str) -> str:
        """A digest of the quantity's formulas, by leaf. Errors: `TypeError` for one that compares its numbers."""
        if quantity not in self._digests:
            self._digests[quantity] = self._digest(FIGURES[quantity])
        return self._digests[quantity]

    def _digest(self, figure: Figure) -> str:
        no_steps = self.unit.description.kind in ("encoder", "vision")
        passes = [name for name in figure.passes if not (name == STEP and no_steps)]
        return fingerprint(
            [
                [[entry.path, f"{residue(figure.of(entry)):x}"] for entry in self._ledger(name == STEP, figure.form)]
                for name in passes
            ]
        )

    def values(self, quantity: str) -> dict[str, int | None]:
        """The value of each leaf at the given workload; None where a division leaves a remainder."""
        assert self.work is not None
        figure, step = FIGURES[quantity], self.work.decoding
        if (STEP if step else PROMPT) not in figure.passes and quantity not in WEIGHTS:
            return {}
        return {entry.path: value(figure.of(entry)) for entry in self._ledger(step, figure.form)}


def agrees(model: Model, printed: Ledger, quantity: str, formulas: Sequence[Formulas]) -> bool:
    """Whether the ledger whose figures are printed is the sum of the formulas of the model's structures at its sizes:
    each leaf of a layer times the number of layers of its kind. `formulas` are those of `pieces`, one by one."""
    expected: dict[str, int | None] = {}
    for path, number in _expected_values(model, quantity, formulas):
        if expected.setdefault(path, number) != number:
            return False
    return _has(printed, quantity, expected)


def agrees_whole(printed: Ledger, quantity: str, formulas: Formulas) -> bool:
    """Whether the ledger whose figures are printed is what a whole model's own formulas give."""
    return _has(printed, quantity, formulas.values(quantity))


def _has(ledger: Ledger, quantity: str, expected: Table) -> bool:
    """Whether a ledger has these figures of its leaves, and their sum as its total."""
    figure, figures = FIGURES[quantity], Raw()
    for entry in ledger:
        figures[entry.path] = figures.get(entry.path, 0) + figure.of(entry)
    figures = _nonzero(figures)
    return figures == _nonzero(expected) and sum(figures.values()) == figure.total(ledger)


def _nonzero(numbers: Table) -> Raw:
    return {path: number for path, number in numbers.items() if number != 0}


def _expected_values(model: Model, quantity: str, formulas: Sequence[Formulas]) -> Iterator[tuple[str, int | None]]:
    """The path and value of each leaf of a model, from every structure that has it."""
    weights = quantity in WEIGHTS
    leaves = iter([formula for formula in formulas if formula.unit.listed])
    for path, piece, copies in _listed_entries(model):
        (number,) = next(leaves).values(quantity).values()
        times = piece["times"] * copies * (1 if weights else piece["runs"])
        yield path + ("" if numbered(piece["times"]) is None else ".0"), None if number is None else number * times
    for formula in formulas:
        unit = formula.unit
        for path, number in () if unit.listed else formula.values(quantity).items():
            half, in_layer, path_in_layer = path.partition("layers.")
            if not in_layer:
                yield path, number
                continue
            if unit.name == FRAME:  # the feed-forward in it is not the model's
                continue
            stack = model.description.stacks[half.removesuffix(".")]
            place, _, path_in_layer = path_in_layer.partition(".")
            groups = [group for group in stack.groups if layer_name(group[0]) == unit.name]
            _, layers = groups[0] if groups else stack.groups[int(place)]
            copies = 1 if weights and stack.shared_layers else len(layers)
            yield f"{half}layers.{layers[0]}.{path_in_layer}", None if number is None else number * copies


def _listed_entries(model: Model) -> Iterator[tuple[str, Table, int]]:
    """The leaves that a description lists, each with its path and its number of layers."""
    for half, stack in model.description.stacks.items():
        above = f"{half}." if half else ""
        yield from ((f"{above}around.{piece['name']}", piece, 1) for piece in stack.around)
        for name, layer in stack.layer.items():
            layers = dict(stack.groups)[name]
            for piece in layer.leaves:
                yield f"{above}layers.{layers[0]}.pieces.{piece['name']}", piece, len(layers)
