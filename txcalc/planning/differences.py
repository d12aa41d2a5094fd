"""Which hyperparameters of two models differ, and what each changes by itself in the first.

A difference is a key that one of the two descriptions sets otherwise. It is applied alone to the first model: every
other key stays as it is, and what follows from the changed one (h_kv where it is h, a Mamba's channels) follows. Layer
patterns, and parts that only one of the two has, are one difference: none of them means anything without the others.
Where it is more than one thing (other attention and experts), each is counted alone too: the other model's mixers over
the first's feed-forward, its feed-forward under the first's mixers, its number of layers.
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
from txcalc.sources.explicit import cycle, explicit, folded, kinds_in_order, leaves, stretched
from txcalc.sources.spec import SECTIONS, merge
from txcalc.symbols import TABLE

LETTERS = {symbol.key: symbol.letter for symbol in TABLE if symbol.key}
LAYERS = "layers"
# What layers are made of, as two sides: what looks at other positions, and what works on each alone.
CHANNEL = ("feed_forward", "experts", "channel_mix", "layer_input")
SIDES = {"mixer": tuple(name for name in PART_TABLES if name not in CHANNEL), "feed_forward": CHANNEL}


class CostChange(NamedTuple):
    """What changes: parameters; FLOPs of the workload, and of one of its tokens (a picture's patches are the model's
    own number of them); the cache's growth per token and its constant part, elements of one sequence."""

    params: int
    flops: int
    flops_per_token: Fraction
    growth: int
    constant: int


class KeyDifference(NamedTuple):
    """A key, its letter if it has one, both values, and what it costs alone; without a cost, `why`."""

    key: str
    letter: str
    left: Any
    right: Any
    cost: CostChange | None
    why: str = ""


def cost(left: Ledger, right: Ledger, flops: str = "flops") -> CostChange:
    """What the second ledger has more than the first; `flops` is the quantity that counts: dense or masked."""
    cache, other_cache = left.cache_terms, right.cache_terms
    params = right.total("params") - left.total("params")
    before, after = left.total(flops), right.total(flops)
    per_token = Fraction(after, right.work.positions) - Fraction(before, left.work.positions)
    growth, constant = other_cache.growth - cache.growth, other_cache.constant - cache.constant
    return CostChange(params, after - before, per_token, growth, constant)


class _Change(NamedTuple):
    """A key, its value in both descriptions, and what to write into the first to change it: values by path, None where
    the key then follows from others."""

    key: str
    left: Any
    right: Any
    edits: tuple[tuple[str, Any], ...]


def differences(left: Model, right: Model, work: Table, flops: str = "flops") -> list[KeyDifference]:
    """Every difference: those with a cost in the order of the description, then those that are part of another.

    `work` is a workload of the first model, `flops` the quantity that counts: dense or masked.
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
        stack_changes, together = _of_stack(left, right, mine, theirs, half)
        if together:
            whole, why = _cost(left, together.description, ledger, work, flops)
            rows.append(KeyDifference(together.key, "", together.left, together.right, whole, why))
            for part in _sides(left, right, mine, theirs, half):
                its_cost, why = _cost(left, part.description, ledger, work, flops)
                rows.append(KeyDifference(f"{together.key}.{part.key}", "", part.left, part.right, its_cost, why))
            parts += together.parts
        changes += stack_changes
    unbundled, bundled = _bundled(_merged(changes))
    for change in unbundled:
        change_cost, why = _cost(left, _with(mine, change), ledger, work, flops)
        rows.append(KeyDifference(change.key, _letter(change.key), change.left, change.right, change_cost, why))
    return [*rows, *parts, *bundled]


def _merged(changes: list[_Change]) -> list[_Change]:
    """Keys that change alike in the encoder and in the decoder as one, without the half in its name."""
    groups: dict[Any, list[_Change]] = {}
    for change in changes:
        half, _, name = change.key.partition(".")
        same = (name if half in ("encoder", "decoder") else change.key, str(change.left), str(change.right))
        groups.setdefault(same, []).append(change)
    return [
        group[0] if len(group) == 1 else group[0]._replace(key=key, edits=tuple(e for c in group for e in c.edits))
        for (key, _, _), group in groups.items()
    ]


def _bundled(changes: list[_Change]) -> tuple[list[_Change], list[KeyDifference]]:
    """A form (of positions, of the head) takes with it the keys of its table that only one of the two has."""
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


class _Together(NamedTuple):
    """Layers of another kind: the first description with the other's, and the keys that this takes."""

    key: str
    left: Any
    right: Any
    description: Raw
    parts: list[KeyDifference]


def _sides(left: Model, right: Model, mine: Raw, theirs: Raw, half: str) -> list[_Together]:
    """What layers of another kind differ in, each alone: their number, where the pattern is that of a certain one, what
    mixes positions, and the feed-forward. Empty where it is one of these only."""
    stack, twin = left.description.stacks[half], right.description.stacks[half]
    table, other_table = (mine[half], theirs[half]) if half else (mine, theirs)
    differ = [side for side in SIDES if _order(stack, side) != _order(twin, side)]
    if _counted(table, other_table) and table["n_layers"] != other_table["n_layers"]:
        differ.insert(0, "n_layers")
    sides = []
    for what in differ if len(differ) > 1 else ():
        values = [s.n_layers if what == "n_layers" else _side_in_words(s, what) for s in (stack, twin)]
        changed = deepcopy(mine)
        target = changed[half] if half else changed
        target.update(_exchanged(stack, twin, table, other_table, what))
        for name in PART_TABLES:
            target.pop(name, None)
        sides.append(_Together(what, values[0], values[1], changed, []))
    return sides


def _written(raw: Raw, kind: str) -> Raw:
    """The table of a kind of layer; of a stack whose layers are alike it has no name of its own."""
    table: Raw = raw["layer"][kind if kind in raw["layer"] else "layer"]
    return table


def _exchanged(stack: StackSpec, twin: StackSpec, table: Raw, other_table: Raw, what: str) -> Raw:
    """The layers of a stack with one thing of the other's: `n_layers`, or a side of every layer.

    A pattern goes on with its last kind where the layers are more. As in all layers of another kind, a table that both
    stacks have stays the first's.
    """
    number = other_table["n_layers"] if what == "n_layers" else table["n_layers"]
    names, twins = stretched(kinds_in_order(stack), number), stretched(kinds_in_order(twin), number)
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
    return changed | {"pattern": folded(pattern)} if len(layer) > 1 else changed


def _side_of(part: str) -> str:
    return "feed_forward" if part in CHANNEL else "mixer"


def _order(stack: StackSpec, side: str) -> Any:
    """What one side of the layers is made of, and which layers are alike in it, as `_structure` says it of both."""
    seen: list[Any] = []
    order = []
    for name in kinds_in_order(stack):
        tables = {section: table for section, table in stack.layer[name].tables.items() if section in SIDES[side]}
        if tables not in seen:
            seen.append(tables)
        order.append(seen.index(tables))
    return [sorted(tables) for tables in seen], cycle(order)


def _side_in_words(stack: StackSpec, side: str) -> str:
    """One side of the layers in a few words."""
    words = {}
    for name, layer in stack.layer.items():
        mixers = [_mixer(part, layer) for part in layer.parts if _side_of(part) == side]
        words[name] = " + ".join(mixers) or "none"
    return ", ".join(folded([words[name] for name in kinds_in_order(stack)]))


def _mixer(part: str, layer: LayerSpec) -> str:
    if part != "attention":
        return part
    attention = layer.attention
    if attention is None:
        section = section_of(part, layer.tables)
        return "MLA" if section == "latent" else section
    name = named_by_groups(attention.n_heads, attention.n_kv_heads)
    return name if attention.get("window") is None else f"{name} in a window"


def _of_stack(left: Model, right: Model, mine: Raw, theirs: Raw, half: str) -> tuple[list[_Change], _Together | None]:
    mine_half, theirs_half = (mine[half], deepcopy(theirs[half])) if half else (mine, deepcopy(theirs))
    stack, twin = left.description.stacks[half], right.description.stacks[half]
    prefix = f"{half}." if half else ""
    replaced: set[str] = set()
    together = None
    if _structure(stack) == _structure(twin):  # the same layers, whatever their names
        names = dict(zip(theirs_half["layer"], mine_half["layer"], strict=True))
        theirs_half["layer"] = {names[name]: table for name, table in theirs_half["layer"].items()}
    else:
        changed = deepcopy(mine)
        replaced = _restructure(changed[half] if half else changed, mine_half, theirs_half)
        together = _Together(prefix + LAYERS, _layers_in_words(mine_half), _layers_in_words(theirs_half), changed, [])
    flat, flat_its = leaves(mine_half), leaves(theirs_half)
    changes = []
    for path in dict.fromkeys((*flat, *flat_its)):
        first = path.partition(".")[0]
        if first in ("kind", "context", "encoder", "decoder", "pattern") or flat.get(path) == flat_its.get(path):
            continue
        values = _effective_value(flat, stack, path), _effective_value(flat_its, twin, path)
        if first not in replaced:
            changes.append(_Change(prefix + path, *values, ((prefix + path, flat_its.get(path)),)))
        elif together and not _usual(path.split("."), values):
            why = f"counted with {prefix}{LAYERS}"
            together.parts.append(KeyDifference(prefix + path, _letter(path), *values, None, why))
    return changes, together


def _usual(words: list[str], values: tuple[object, object]) -> bool:
    """A key that only one model has, at its default; or the parts, which the line of the layers says."""
    section, key = words[-2:] if len(words) > 1 else ("", words[0])
    default = SECTIONS.get(section, {}).get(key, (None, ABSENT))[1]
    return key == "parts" or (None in values and default in values and default is not None)


def _structure(stack: StackSpec) -> object:
    """What must be the same for layers to be compared key by key: which are alike, and what they are made of."""
    names = list(stack.layer)
    tables = [(layer.parts, sorted(layer.tables)) for layer in stack.layer.values()]
    return tables, cycle([names.index(name) for name in kinds_in_order(stack)])


def _restructure(target: Raw, table: Raw, other_table: Raw) -> set[str]:
    """Gives a stack the other's layer kinds and the tables they need; the keys that this takes."""
    replaced = {"layer", "pattern"}
    target["layer"] = deepcopy(other_table["layer"])
    target.pop("pattern", None)
    if "pattern" in other_table:
        target["pattern"] = other_table["pattern"]
    if _counted(table, other_table):
        target["n_layers"] = other_table["n_layers"]
        replaced.add("n_layers")
    for name in PART_TABLES:
        if (name in table) != (name in other_table):
            replaced.add(name)
            target.pop(name, None)
            if name in other_table:
                target[name] = deepcopy(other_table[name])
    return replaced


def _counted(table: Raw, other_table: Raw) -> bool:
    """Whether a pattern does not repeat: it is that of a certain number of layers."""
    return any(sum(_runs(stack.get("pattern", []))) == stack["n_layers"] for stack in (table, other_table))


def _runs(pattern: list[str]) -> list[int]:
    return [int(item.partition("*")[0]) if "*" in item else 1 for item in pattern]


def _layers_in_words(table: Raw) -> str:
    """The layers of a stack in a few words."""
    if "pattern" in table:
        return ", ".join(table["pattern"])
    return " + ".join(table["layer"]["layer"]["parts"])


def _effective_value(flat: Table, stack: StackSpec, path: str) -> Any:
    """A key's value, also where it follows from others."""
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
    """The description with one change."""
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
