"""A model as programs of its sizes, for an interactive page that shows the library's own numbers.

A `Slider` is a letter and the keys that it sets. The description is assembled over recorded numbers (`program`), as a
sweep does over arrays; sizes that decide on structure are not sliders. `Domain` gives the sizes for which the theorems
on parameters and FLOPs hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec import Struct

from txcalc.errors import InputError
from txcalc.evidence import structures, theorems
from txcalc.evidence.domains import everywhere
from txcalc.ledger import Entry, Ledger
from txcalc.model import Model
from txcalc.num import exact_div
from txcalc.parts.mechanisms import ATTENTIONS, MIXERS
from txcalc.parts.options import Raw, Table
from txcalc.planning.crossover import ends
from txcalc.planning.gradients import training_flops
from txcalc.program import Guard, Program, Recorded, Tape, is_int, steps, written
from txcalc.sources import spec
from txcalc.sources.assemble import assemble
from txcalc.sources.resolve import resolve
from txcalc.symbols import BY_LETTER, TABLE, Symbol

SECTIONS = ("", "attention", "feed_forward", "experts", *MIXERS, "channel_mix")
# Letters that a description need not set: they are sliders too, which follow the others until they are moved.
DERIVED = ("h_kv", "d_h", "F")
TOTALS = ("params", "active", "flops", "flops_masked", "flops_other", "saved", "cache")
BY_KIND = ("params", "flops", "flops_masked")


class Slider(NamedTuple):
    """A letter, the keys that it sets (none: of the workload), and its value; None: `follows` says which."""

    letter: str
    symbol: Symbol
    keys: tuple[str, ...]
    value: int | None


class PagePart(Struct, frozen=True):
    """A leaf: the path of its first copy, its kind, how many a token passes, and its formulas in letters."""

    path: str
    kind: str
    copies: str
    formulas: Mapping[str, str]


class Domain(NamedTuple):
    """A theorem on one part of a model (its frame, a kind of layer), for sizes at which `program`'s conditions hold.
    `extra_theorems`: further quantities, how each is known, and the sizes."""

    part: str
    key: str
    lengths: str
    program: Program
    extra_theorems: Mapping[str, tuple[str, Program]]


class Explorer(Struct, frozen=True):
    """A model's programs over the letters of its sliders: `totals` (with the conditions of valid sizes), `leaves`
    (figures of `parts`), the value of each slider that `follows`; and the theorems, or why there are none."""

    model: Model
    sliders: tuple[Slider, ...]
    fixed: tuple[str, ...]
    totals: Program
    leaves: Program
    parts: tuple[PagePart, ...]
    follows: Mapping[str, Program]
    domains: tuple[Domain, ...]
    unproved: str

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple(slider.letter for slider in self.sliders)

    def values(self, changes: Mapping[str, int] | None = None) -> dict[str, int]:
        """The number of every letter, with changes of some."""
        numbers = {s.letter: s.value for s in self.sliders} | dict(changes or {})
        values = {letter: value for letter, value in numbers.items() if value is not None}
        for letter in numbers.keys() - values.keys():
            values[letter] = self.follows[letter].run(values)[letter]
        return values

    def changes(self, values: Mapping[str, int]) -> Raw:
        """The changes with which `load` gives the model of these letters: keys of its description with values."""
        result: Raw = {}
        counts: dict[str, dict[str, int]] = {}
        for slider in self.sliders:
            for key in slider.keys if slider.letter in values else ():
                half, layered, name = key.rpartition("layer:")
                if layered:
                    counts.setdefault(half, {})[name] = values[slider.letter]
                else:
                    result[key] = values[slider.letter]
        for half, layers in counts.items():
            stack = self.model.description.stacks[half.rstrip(".")]
            full = {name: layers.get(name, len(at)) for name, at in stack.groups}
            if all(full[name] == len(at) for name, at in stack.groups):
                continue
            result[f"{half}n_layers"] = sum(full.values())
            result[f"{half}pattern"] = [f"{number}*{name}" for name, number in full.items()]
        return result


def explore(model: Model) -> Explorer:
    """The explorer of a model. Sizes that decide its structure are `fixed`."""
    candidates = list(_sliders(model))
    movable, fixed = [], []
    for slider in candidates:
        try:
            _with_letters(model, [slider])
            movable.append(slider)
        except (TypeError, InputError):
            fixed.append(slider.letter)
    tape, over = _with_letters(model, movable, _work(model))
    lengths: Raw = {name: tape.letters[letter] for letter, name in _WORDS.items() if letter in tape.letters}
    ledger = over.ledger(**lengths)
    totals = dict(_totals(over, ledger))
    leaves = {f"{q} {i}": getattr(entry, q) for i, entry in enumerate(ledger) for q in ("params", "flops", "cache")}
    conditions = tuple(condition for condition in tape.conditions if _varies(condition))
    numbers = [*totals.values(), *leaves.values(), *(n for c in conditions for n in (c.a, c.b))]
    used = {str(step.left) for step in steps(numbers) if step.op == "letter"}
    sliders = [s for s in (*_work(model), *movable) if s.letter in used]
    fixed += [s.letter for s in movable if s.letter not in used and s.value is not None]
    letters = tuple(s.letter for s in sliders)
    domains, unproved = _domains(model, over, sliders, letters)
    return Explorer(
        model,
        tuple(sliders),
        tuple(fixed),
        Program(letters, totals, conditions),
        Program(letters, leaves),
        tuple(_part(entry) for entry in ledger),
        {letter: Program(letters, {letter: rule}) for letter, rule in _dependent_sliders(model, sliders).items()},
        tuple(domains),
        unproved,
    )


_WORDS = {"B": "batch", "T": "tokens", "T_src": "source"}


def _work(model: Model) -> list[Slider]:
    """The workload's sliders: no tokens where a picture's positions are the model's own."""
    letters = ["B", *([] if model.fixed_length else ["T"])]
    if model.has_encoder_apart and not model.description.stacks["encoder"].vision:
        letters.append("T_src")
    values = model.workload(1, 2048 if model.context is None else min(model.context, 2048))
    start = {"B": values.batch, "T": values.tokens, "T_src": values.source if model.kind == "audio" else None}
    return [Slider(letter, BY_LETTER[letter], (), start[letter]) for letter in letters]


def _totals(model: Model, ledger: Ledger) -> Iterator[tuple[str, object]]:
    for quantity in TOTALS:
        yield quantity, ledger.total(quantity)
    growth, constant, _ = ledger.cache_terms
    windows, chunks = ends(model)
    yield from ((f"end {i}", end) for i, end in enumerate(windows))
    yield from ((f"chunk {i}", end) for i, end in enumerate(chunks))
    yield from (("cache_growth", growth), ("cache_constant", constant), ("training", training_flops(ledger)))
    for quantity in BY_KIND:
        for kind, value in ledger.by_kind(quantity).items():
            yield f"{quantity} {kind}", value
    yield from (
        ("layers", sum(s.n_layers if s.counts is None else sum(s.counts.values()) for s in model.stacks)),
        ("width", model.d_model),
        ("vocabulary", 0 if model.vocab_size is None else model.vocab_size),
    )


def _part(entry: Entry) -> PagePart:
    formulas = {q: written(value) for q in ("params", "flops", "cache") if not is_int(value := getattr(entry, q), 0)}
    return PagePart(entry.path, entry.kind, written(entry.runs), formulas)


# Sliders.


def _sliders(model: Model) -> Iterator[Slider]:
    """A slider for every size of the description that has a letter."""
    raw = model.raw
    for symbol in TABLE:
        section, _, key = symbol.key.rpartition(".")
        if not symbol.key or section not in SECTIONS:
            continue
        sections = ("attention", *ATTENTIONS) if section == "attention" else (section,)
        places = [
            (home, f"{home}{'.'.join(filter(None, (table_name, key)))}", value)
            for home, table in _homes(raw)
            for table_name in sections
            if type(value := _option(table, table_name, key)) is int and value > 0 and key in spec.SECTIONS[table_name]
        ]
        if symbol.letter == "L":
            yield from _layers(model, symbol, places)
        elif len({value for _, _, value in places}) == 1:
            yield Slider(symbol.letter, symbol, tuple(path for _, path, _ in places), places[0][2])
        elif places:
            for home, path, value in places:
                suffix = home.removeprefix("layer.").replace(".layer.", "_").strip(".").replace(".", "_")
                yield Slider(f"{symbol.letter}_{_plain(suffix)}" if suffix else symbol.letter, symbol, (path,), value)
        elif symbol.letter in DERIVED and len(_default_values(model, section, key)) == 1:
            yield Slider(symbol.letter, symbol, (symbol.key,), None)


def _layers(model: Model, symbol: Symbol, places: Sequence[tuple[str, str, int]]) -> Iterator[Slider]:
    """How many layers; of several kinds, how many of each."""
    stacks = model.description.stacks
    # The number of layers that read another kind's keys, or share another kind's weights, is fixed.
    shared = any(attention.kv_from is not None for stack in stacks.values() for attention in stack.attentions)
    shared = shared or any("shared" in layer.tables for layer in model.description.layers)
    if any(len(stack.groups) > 1 for stack in stacks.values()):
        for half, stack in stacks.items() if not shared else ():
            for name, at in stack.groups:
                where = "_".join(filter(None, (half, name)))
                yield Slider(f"L_{_plain(where)}", symbol, (f"{half}{'.' if half else ''}layer:{name}",), len(at))
    elif len(places) == 1 or len({value for _, _, value in places}) == 1:
        yield Slider("L", symbol, tuple(path for _, path, _ in places), places[0][2])
    else:
        for home, path, value in places:
            yield Slider(f"L_{home.strip('.')}" if home else "L", symbol, (path,), value)


def _plain(name: str) -> str:
    return "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in name)


def _homes(raw: Table) -> Iterator[tuple[str, Table]]:
    """Every table of a description that may set a key, with the prefix of its paths."""
    for half in ("", "encoder.", "decoder."):
        table = raw.get(half[:-1]) if half else raw
        if isinstance(table, Mapping):
            yield half, table
            for name, layer in (table.get("layer") or {}).items():
                yield f"{half}layer.{name}.", layer


def _option(table: Table, section: str, key: str) -> object:
    options = table.get(section) if section else table
    return options.get(key) if isinstance(options, Mapping) else None


def _default_values(model: Model, section: str, key: str) -> list[Any]:
    """The different values that a key has by default."""
    values = {}
    for layer in model.description.layers:
        table = getattr(layer, section) if section in ("norm", "positions") else layer.tables.get(section)
        value = table and table.get(key)
        if value is not None:
            values[value if type(value) is int else id(value)] = value
    return list(values.values())


def _with_letters(model: Model, sliders: Sequence[Slider], work: Sequence[Slider] = ()) -> tuple[Tape, Model]:
    """The model with letters for the sizes of sliders."""
    tape = Tape([slider.letter for slider in (*work, *sliders)])
    plain = {key: tape.letters[s.letter] for s in sliders for key in s.keys if "layer:" not in key}
    raw = spec.change_keys(model.raw, plain)
    resolved = resolve(raw, model.origin)
    stacks = dict(resolved.stacks)
    for half, stack in stacks.items():
        prefix = f"{half}.layer:" if half else "layer:"
        counts = {key.removeprefix(prefix): s.letter for s in sliders for key in s.keys if key.startswith(prefix)}
        if counts:
            numbers = {name: tape.letters[counts[name]] if name in counts else len(at) for name, at in stack.groups}
            stacks[half] = stack.replace(counts=numbers)
    resolved = resolved.replace(stacks=stacks)
    return tape, Model(model.name, assemble(resolved), raw, resolved, model.origin)


def _dependent_sliders(model: Model, sliders: Sequence[Slider]) -> Raw:
    """The sliders without a value, as functions of the others."""
    set_ = [slider for slider in sliders if slider.value is not None]
    tape, over = _with_letters(model, [s for s in set_ if s.keys], [s for s in set_ if not s.keys])
    result = {}
    for slider in sliders:
        if slider.value is None and not slider.keys:
            result[slider.letter] = tape.letters["T"]
        elif slider.value is None:
            section, _, key = slider.symbol.key.rpartition(".")
            result[slider.letter] = _default_values(over, section, key)[0]
    return result


def _varies(condition: Guard) -> bool:
    return isinstance(condition.a, Recorded) or isinstance(condition.b, Recorded)


# Theorems.


def _domains(
    model: Model, over: Model, sliders: Sequence[Slider], letters: tuple[str, ...]
) -> tuple[list[Domain], str]:
    """The theorems that the model inherits, each with its sizes; or why it inherits none."""
    domains: dict[tuple[str, str], Domain] = {}
    base, traced = structures.pieces(model), structures.pieces(over)
    for unit in base:
        if why := theorems.obstacle(unit):
            by_parts = theorems.bearing(unit) and "proved by its parts, which are not followed here"
            return [], f"{unit.name}: {by_parts or why}"
    for other in (model, *_neighbours(model, sliders)):
        for unit, piece in zip(structures.pieces(other), traced, strict=True):
            if (unit.name, unit.key) not in domains and not theorems.obstacle(unit):
                theorem = theorems.theorems()[unit.key]
                values, form = _match(unit, piece)
                form += [Guard("<=", 2, value) for value in values.values()]
                met = Program(letters, {}, _varying([*form, *_conditions(theorem.conditions, values)]))
                now = {
                    quantity: theorems.digest(unit, quantity)
                    for quantity in ("params", "active", *theorem.extra_quantities)
                }
                extra_theorems = {
                    quantity: (extra.how, Program(letters, {}, _varying(_conditions(extra.conditions, values))))
                    for quantity, extra in theorem.extra_quantities.items()
                    if extra.digest == now[quantity] and (extra.how == "measured" or everywhere(extra.where))
                }
                if now["active"] == now["params"] and not theorems.Formulas(unit).routed:
                    extra_theorems["active"] = ("proved", Program(letters, {}))
                domains[unit.name, unit.key] = Domain(unit.name, unit.key, theorem.domain, met, extra_theorems)
    order = [unit.name for unit in base]
    return sorted(domains.values(), key=lambda domain: order.index(domain.part)), ""


# Sizes at which a model has another structure: MHA, GQA or MQA; one expert chosen, several or all.
NEIGHBOURS: tuple[dict[str, int], ...] = (
    {"h": 8, "h_kv": 8}, {"h": 8, "h_kv": 4}, {"h": 8, "h_kv": 1}, {"h": 1, "h_kv": 1},
    {"k": 1, "E": 8}, {"k": 2, "E": 8}, {"k": 8, "E": 8}, {"E": 1, "k": 1},
)  # fmt: skip


def _neighbours(model: Model, sliders: Sequence[Slider]) -> Iterator[Model]:
    """The model at sizes that give it other structures, which may have theorems too."""
    for sizes in NEIGHBOURS:
        changes = {key: sizes[s.symbol.letter] for s in sliders for key in s.keys if s.symbol.letter in sizes}
        if not changes:
            continue
        for slider in sliders:  # the head width stays, even where it follows from the number of heads
            if slider.symbol.letter == "d_h" and slider.value is None:
                changes[slider.keys[0]] = _default_values(model, "attention", "d_head")[0]
        raw = spec.change_keys(model.raw, changes)
        with suppress(InputError):
            resolved = resolve(raw, model.origin)
            yield Model(model.name, model.root, raw, resolved, model.origin)


def _conditions(conditions: Sequence[theorems.Condition], values: Table) -> Iterator[Guard]:
    """A theorem's conditions on a model's sizes."""
    for condition in conditions:
        yield Guard("!=" if condition.relation == "!=" else "<=", 0, condition.polynomial.over(values))


def _varying(conditions: Iterable[Guard]) -> tuple[Guard, ...]:
    """The conditions that depend on sizes, each once."""
    return tuple(dict.fromkeys(filter(_varies, conditions)))


def _match(unit: theorems.Unit, traced: theorems.Unit) -> tuple[Raw, list[Guard]]:
    """The parameters of a theorem from the sizes of a model, and the conditions for the model to have its form."""
    conditions: list[Guard] = []
    equations = []
    for param, entry in _pairs(unit.content, traced.content):
        size = entry.over(traced.values) if isinstance(entry, theorems.Size) else entry
        if isinstance(param, theorems.Size):
            equations.append((param, size))
        elif isinstance(size, Recorded):
            conditions.append(Guard("=", size, param))
    values: Raw = {}
    while equations:
        for equation in equations:
            param, size = equation
            unknown = {factor for _, factors in param.terms for factor in factors if factor not in values}
            if len(unknown) <= 1:
                break
        else:
            raise ArithmeticError(f"no parameter follows from {[str(param) for param, _ in equations]}")
        equations.remove(equation)
        if unknown:
            (name,) = unknown
            times = theorems.Size(tuple((n, tuple(f for f in fs if f != name)) for n, fs in param.terms if name in fs))
            remainder = theorems.Size(tuple((n, fs) for n, fs in param.terms if name not in fs))
            divisor, dividend = times.over(values), size - remainder.over(values)
            conditions.append(Guard("|", divisor, dividend))
            values[name] = exact_div(dividend, divisor)
        else:
            conditions.append(Guard("=", size, param.over(values)))
    return values, [c for c in conditions if _varies(c) and c.a is not c.b and not is_int(c.a, 1)]


def _pairs(spec: object, traced: Any) -> Iterator[tuple[object, object]]:
    """The numbers at the same places of two descriptions of one structure."""
    if isinstance(spec, Mapping):
        for key, value in spec.items():
            yield from _pairs(value, traced[key])
    elif isinstance(spec, list):
        for value, size in zip(spec, traced, strict=True):
            yield from _pairs(value, size)
    else:
        yield spec, traced
