"""The hyperparameters in which two models differ, and the effect of each on the first.

A difference is a key with different values in the two descriptions. It is applied separately to the first model: every
other key stays, except those that follow from the changed one (h_kv equal to h, a Mamba's channels). Layer patterns,
and parts that only one model has, are one difference, since they depend on each other. If it has several sides (for
example other attention, and experts), each side is also counted separately: the other model's mixers with the first's
feed-forward, its feed-forward with the first's mixers, its number of layers.
"""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from typing import Any, NamedTuple

from txcalc.description import LayerSpec, StackSpec, as_tables
from txcalc.errors import ABSENT, InputError
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.notation import named_by_groups
from txcalc.parts.mechanisms import PART_TABLES, section_of
from txcalc.parts.options import Raw, Table
from txcalc.sources import build
from txcalc.sources.explicit import cycle, explicit, fold_pattern, kinds_in_order, leaves, stretch
from txcalc.sources.spec import SECTIONS, merge
from txcalc.symbols import TABLE

LETTERS = {symbol.key: symbol.letter for symbol in TABLE if symbol.key}
LAYERS = "layers"
# The two sides of a layer: token mixers, and position-wise parts.
CHANNEL = ("feed_forward", "experts", "channel_mix", "layer_input")
SIDES = {"mixer": tuple(name for name in PART_TABLES if name not in CHANNEL), "feed_forward": CHANNEL}


class CostChange(NamedTuple):
    """Changes of parameters; FLOPs of the workload, and per token (or patch) of each model; and the cache's elements of
    one sequence: growth per token, and constant part."""

    params: int
    flops: int
    flops_per_token: Fraction
    growth: int
    constant: int


class KeyDifference(NamedTuple):
    """A key, its letter if it has one, both values, and the cost of changing it alone, or `why` there is none."""

    key: str
    letter: str
    left: Any
    right: Any
    cost: CostChange | None
    why: str = ""


def cost(left: Ledger, right: Ledger, flops: str = "flops") -> CostChange:
    """The second ledger minus the first; `flops` is the quantity to use: dense or masked."""
    cache, other_cache = left.cache_terms, right.cache_terms
    params = right.total("params") - left.total("params")
    before, after = left.total(flops), right.total(flops)
    per_token = Fraction(after, right.work.positions) - Fraction(before, left.work.positions)
    growth, constant = other_cache.growth - cache.growth, other_cache.constant - cache.constant
    return CostChange(params, after - before, per_token, growth, constant)


class _Change(NamedTuple):
    """A key, its value in both descriptions, and the edits of the first that change it: values by path (None removes a
    key)."""

    key: str
    left: Any
    right: Any
    edits: tuple[tuple[str, Any], ...]


def differences(left: Model, right: Model, work: Table, flops: str = "flops") -> list[KeyDifference]:
    """Every difference: those with a cost in the order of the description, then those that are part of another.

    `work` is a workload of the first model, `flops` the quantity to use: dense or masked.
    """
    mine, theirs = explicit(left.description), explicit(right.description)
    ledger = left.ledger(**work)
    halves = left.description.stacks.keys()
    if halves != right.description.stacks.keys():
        why = "one model has an encoder and a decoder, the other a single stack"
        return [KeyDifference("kind", "", left.description.kind, right.description.kind, None, why)]
    changes = [
        _Change(key, mine.get(key), theirs.get(key), ((key, theirs.get(key)),))
        for key in ("kind", "context")
        if mine.get(key) != theirs.get(key)
    ]
    rows: list[KeyDifference] = []
    parts: list[KeyDifference] = []
    for half in halves:
        stack_changes, layers = _of_stack(left, right, mine, theirs, half)
        if layers:
            layers_cost = _cost(left, layers.description, ledger, work, flops)
            rows.append(KeyDifference(layers.key, "", layers.left, layers.right, *layers_cost))
            for side in _sides(left, right, mine, theirs, half):
                side_cost = _cost(left, side.description, ledger, work, flops)
                rows.append(KeyDifference(f"{layers.key}.{side.key}", "", side.left, side.right, *side_cost))
            parts += layers.parts
        changes += stack_changes
    unbundled, bundled = _bundle_forms(_merge_stacks(changes))
    for change in unbundled:
        change_cost = _cost(left, _with(mine, change), ledger, work, flops)
        rows.append(KeyDifference(change.key, _letter(change.key), change.left, change.right, *change_cost))
    return [*rows, *parts, *bundled]


def _merge_stacks(changes: list[_Change]) -> list[_Change]:
    """Changes with those that are equal in the encoder and in the decoder merged, under a key without the stack."""
    groups: dict[Any, list[_Change]] = {}
    for change in changes:
        half, _, name = change.key.partition(".")
        key = name if half in ("encoder", "decoder") else change.key
        groups.setdefault((key, str(change.left), str(change.right)), []).append(change)
    return [
        group[0] if len(group) == 1 else group[0]._replace(key=key, edits=tuple(e for c in group for e in c.edits))
        for (key, _, _), group in groups.items()
    ]


def _bundle_forms(changes: list[_Change]) -> tuple[list[_Change], list[KeyDifference]]:
    """Bundles with a change of form (of positions, of the head) the keys of its table that only one model has."""
    unbundled: list[_Change] = []
    parts: list[KeyDifference] = []
    forms = {change.key.rpartition(".")[0]: change for change in changes if change.key.endswith(".form")}
    for change in changes:
        table = change.key.rpartition(".")[0]
        if table in forms and change is not forms[table] and None in (change.left, change.right):
            forms[table] = forms[table]._replace(edits=forms[table].edits + change.edits)
            why = f"counted with {table}.form"
            parts.append(KeyDifference(change.key, _letter(change.key), change.left, change.right, None, why))
        else:
            unbundled.append(change)
    return [forms[c.key.rpartition(".")[0]] if c.key.endswith(".form") else c for c in unbundled], parts


class _LayersChange(NamedTuple):
    """Layers of another kind: the first description with the other's layers, and the keys that this changes."""

    key: str
    left: Any
    right: Any
    description: Raw
    parts: list[KeyDifference]


def _sides(left: Model, right: Model, mine: Raw, theirs: Raw, half: str) -> list[_LayersChange]:
    """The sides in which layers of another kind differ, as separate changes: their number, if a pattern fixes it, the
    mixers, and the feed-forward. Empty if there is only one."""
    stack, twin = left.description.stacks[half], right.description.stacks[half]
    table, other_table = (mine[half], theirs[half]) if half else (mine, theirs)
    sides = [side for side in SIDES if _order(stack, side) != _order(twin, side)]
    if _fixes_number(table, other_table) and table["n_layers"] != other_table["n_layers"]:
        sides.insert(0, "n_layers")
    changes = []
    for side in sides if len(sides) > 1 else ():
        values = [s.n_layers if side == "n_layers" else _side_in_words(s, side) for s in (stack, twin)]
        changed = deepcopy(mine)
        target = changed[half] if half else changed
        target.update(_exchange_layers(stack, twin, table, other_table, side))
        for name in PART_TABLES:
            target.pop(name, None)
        changes.append(_LayersChange(side, values[0], values[1], changed, []))
    return changes


def _written(raw: Raw, kind: str) -> Raw:
    """The table of a kind of layer, which is "layer" in a stack of equal layers."""
    table: Raw = raw["layer"][kind if kind in raw["layer"] else "layer"]
    return table


def _exchange_layers(stack: StackSpec, twin: StackSpec, table: Raw, other_table: Raw, what: str) -> Raw:
    """The layers of a stack with the other's `n_layers`, or the other's side of every layer.

    With more layers, a pattern continues with its last kind. A table that both stacks have stays the first's.
    """
    number = other_table["n_layers"] if what == "n_layers" else table["n_layers"]
    names, twins = stretch(kinds_in_order(stack), number), stretch(kinds_in_order(twin), number)
    layer: dict[str, Raw] = {}
    pattern = []
    for name, twin_name in zip(names, twins, strict=True):
        mixed = name if what == "n_layers" or twin_name == name else f"{name}-{twin_name}"
        pattern.append(mixed)
        if mixed in layer:
            continue
        kind: Raw = {"parts": [], "norm": _written(table, name).get("norm", {})}
        for side in SIDES:
            source, tables, origin = (other_table, twin, twin_name) if side == what else (table, stack, name)
            written, resolved = _written(source, origin), tables.layer[origin]
            kind["parts"] += [part for part in resolved.parts if _side_of(part) == side]
            for section in SIDES[side]:
                if section in resolved.tables:
                    base = table[section] if section in table else source.get(section, {})
                    kind[section] = merge(base, written.get(section, {}))
            if side == "mixer" and "positions" in written:
                kind["positions"] = written["positions"]
        layer[mixed] = {key: value for key, value in kind.items() if value}
    changed: Raw = {"n_layers": number, "layer": layer}
    return changed | {"pattern": fold_pattern(pattern)} if len(layer) > 1 else changed


def _side_of(part: str) -> str:
    return "feed_forward" if part in CHANNEL else "mixer"


def _order(stack: StackSpec, side: str) -> Any:
    """The parts of one side of the layers, and the order of layers that are equal in them (see `_structure`)."""
    distinct: list[Any] = []
    order = []
    for name in kinds_in_order(stack):
        tables = {section: table for section, table in stack.layer[name].tables.items() if section in SIDES[side]}
        if tables not in distinct:
            distinct.append(tables)
        order.append(distinct.index(tables))
    return [sorted(tables) for tables in distinct], cycle(order)


def _side_in_words(stack: StackSpec, side: str) -> str:
    words = {}
    for name, layer in stack.layer.items():
        mixers = [_mixer(part, layer) for part in layer.parts if _side_of(part) == side]
        words[name] = " + ".join(mixers) or "none"
    return ", ".join(fold_pattern([words[name] for name in kinds_in_order(stack)]))


def _mixer(part: str, layer: LayerSpec) -> str:
    if part != "attention":
        return part
    attention = layer.attention
    if attention is None:
        section = section_of(part, layer.tables)
        return "MLA" if section == "latent" else section
    name = named_by_groups(attention.n_heads, attention.n_kv_heads)
    return name if attention.get("window") is None else f"{name} in a window"


def _of_stack(
    left: Model, right: Model, mine: Raw, theirs: Raw, half: str
) -> tuple[list[_Change], _LayersChange | None]:
    mine_half, theirs_half = (mine[half], deepcopy(theirs[half])) if half else (mine, deepcopy(theirs))
    stack, twin = left.description.stacks[half], right.description.stacks[half]
    prefix = f"{half}." if half else ""
    replaced: set[str] = set()
    layers = None
    if _structure(stack) == _structure(twin):  # equal layers under other names
        names = dict(zip(theirs_half["layer"], mine_half["layer"], strict=True))
        theirs_half["layer"] = {names[name]: table for name, table in theirs_half["layer"].items()}
    else:
        changed = deepcopy(mine)
        replaced = _restructure(changed[half] if half else changed, mine_half, theirs_half)
        words = _layers_in_words(mine_half), _layers_in_words(theirs_half)
        layers = _LayersChange(prefix + LAYERS, *words, changed, [])
    flat, other_flat = leaves(mine_half), leaves(theirs_half)
    changes = []
    for path in dict.fromkeys((*flat, *other_flat)):
        first = path.partition(".")[0]
        if first in ("kind", "context", "encoder", "decoder", "pattern") or flat.get(path) == other_flat.get(path):
            continue
        values = _effective_value(flat, stack, path), _effective_value(other_flat, twin, path)
        if first not in replaced:
            changes.append(_Change(prefix + path, *values, ((prefix + path, other_flat.get(path)),)))
        elif layers and not _is_implied(path.split("."), values):
            why = f"counted with {prefix}{LAYERS}"
            layers.parts.append(KeyDifference(prefix + path, _letter(path), *values, None, why))
    return changes, layers


def _is_implied(words: list[str], values: tuple[object, object]) -> bool:
    """Whether a key is one that only one model has, at its default; or the parts, which the row of the layers shows."""
    section, key = words[-2:] if len(words) > 1 else ("", words[0])
    default = SECTIONS.get(section, {}).get(key, (None, ABSENT))[1]
    return key == "parts" or (None in values and default in values and default is not None)


def _structure(stack: StackSpec) -> object:
    """The parts and the order of equal layers: two stacks that agree in both are compared key by key."""
    names = list(stack.layer)
    tables = [(layer.parts, sorted(layer.tables)) for layer in stack.layer.values()]
    return tables, cycle([names.index(name) for name in kinds_in_order(stack)])


def _restructure(target: Raw, table: Raw, other_table: Raw) -> set[str]:
    """Gives a stack the other's layer kinds and the tables they need; returns the changed keys."""
    replaced = {"layer", "pattern"}
    target["layer"] = deepcopy(other_table["layer"])
    target.pop("pattern", None)
    if "pattern" in other_table:
        target["pattern"] = other_table["pattern"]
    if _fixes_number(table, other_table):
        target["n_layers"] = other_table["n_layers"]
        replaced.add("n_layers")
    for name in PART_TABLES:
        if (name in table) != (name in other_table):
            replaced.add(name)
            target.pop(name, None)
            if name in other_table:
                target[name] = deepcopy(other_table[name])
    return replaced


def _fixes_number(table: Raw, other_table: Raw) -> bool:
    """Whether a pattern lists all layers of its stack instead of repeating, which fixes their number."""

    def listed(pattern: list[str]) -> int:
        return sum(int(item.partition("*")[0]) if "*" in item else 1 for item in pattern)

    return any(listed(stack.get("pattern", [])) == stack["n_layers"] for stack in (table, other_table))


def _layers_in_words(table: Raw) -> str:
    return ", ".join(table["pattern"]) if "pattern" in table else " + ".join(table["layer"]["layer"]["parts"])


def _effective_value(flat: Table, stack: StackSpec, path: str) -> Any:
    """A key's value, also if it follows from other keys."""
    if path in flat:
        return flat[path]
    *sections, key = path.split(".")
    tables = [as_tables(spec) for spec in (stack, *([] if sections[:1] == ["layer"] else stack.layer.values()))]
    for table in tables:
        for section in sections:
            table = table.get(section) or {}
        if table.get(key) is not None:
            return table[key]
    return None


def _with(mine: Raw, change: _Change) -> Raw:
    changed = deepcopy(mine)
    for path, value in change.edits:
        *sections, key = path.split(".")
        table = changed
        for section in sections:
            table = table.setdefault(section, {})
        table.pop(key, None)
        if value is not None:
            table[key] = value
    return changed


def _cost(model: Model, changed: Raw, ledger: Ledger, work: Table, flops: str) -> tuple[CostChange | None, str]:
    try:
        return cost(ledger, build(changed, model.name).ledger(**work), flops), ""
    except InputError as error:
        return None, str(error.faults[0])


def _letter(path: str) -> str:
    """The letter of a key in `symbols`, without its stack or layer kind."""
    words = path.split(".")
    words = words[1:] if words[0] in ("encoder", "decoder") else words
    words = words[2:] if words[0] == "layer" else words
    key = ".".join(words)
    return LETTERS.get(key) or LETTERS.get(key.replace("latent.", "attention."), "")
