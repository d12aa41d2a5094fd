"""Keys that change nothing. What a description says and no part does is refused, never passed over.

Whether a key is read is not declared anywhere: it is tried. A key is idle where the tree of parts is the same without
it, unless it only spells out what is so: a default, that there is none of something, or a size that follows from
others where nobody says it (its default is None; another size makes another tree). Where even nonsense in its place
goes unnoticed, it is idle whatever it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from txcalc.errors import InputError, shown
from txcalc.parts.options import Raw, Table
from txcalc.sources.assemble import assemble
from txcalc.sources.resolve import resolve
from txcalc.sources.spec import IDENTITY, SECTIONS, Field, changed, letter_path, sets

Path = tuple[str, ...]
Made = tuple[Table, Any]  # a resolved description, and its tree
OFF: tuple[Any, ...] = (False, 0, "none", "no", [])
NOTHING = (None, *OFF)
NONSENSE = float("nan")  # no key may be this
ALREADY = "it is so already"


def idle_keys(raw: Table, after: Table, spelling: Mapping[str, str]) -> list[str]:
    """A fault for every key of a description that changes nothing: of the one that was written, or, if that cannot be
    used without its changes, of the one after them."""
    made = build_tree(raw)
    if made is None:
        raw, made = after, build_tree(after)
        assert made is not None
    return [
        _fault(raw, path, value, spelling)
        for path, value in leaves(raw)
        if path[0] not in IDENTITY and is_idle(raw, path, value, made)
    ]


def pruned(raw: Table) -> Raw:
    """A description without the keys that change nothing (a change has taken away what they said something of)."""
    kept, made = dict(raw), build_tree(raw)
    for path, value in leaves(raw):
        if made and path[0] not in IDENTITY and is_idle(kept, path, value, made):
            kept = without(kept, path)
            made = build_tree(kept)
    return kept


def idle_changes(raw: Table, changes: Table, made: Made) -> tuple[list[str], list[str]]:
    """Changes that make no difference, neither alone nor beside the others: a fault for each, and those that only say
    what the description says already. `made` has them all.

    Tried on a description that can be used without them.
    """
    base, faults, same = build_tree(raw), [], []
    idle = not _differ(base, made)  # all of them together
    for key, value in changes.items() if base else ():
        if key in IDENTITY:
            same += [key] if base and base[0][key] == made[0][key] else []
            continue
        rest = {other: changes[other] for other in changes if other != key}
        left = build_tree(changed(raw, rest)) if rest else base
        alone = build_tree(changed(raw, {key: value})) if rest else made
        if not idle and (_differ(left, made) or _differ(base, alone)):
            continue
        path, unseen = tuple(letter_path(key, raw).split(".")), build_tree(changed(raw, {key: NONSENSE})) is not None
        if base and alone and not unseen and _same(base[0]["stacks"], alone[0]["stacks"]):
            same.append(key)
            continue
        field = _field(path)
        derived = field and field.default is None and not unseen
        values = others(field, value) if field and derived else ()
        tried = (build_tree(changed(raw, {key: other})) for other in values)
        follows = any(_differ(base, other) for other in tried if other)
        faults.append(changes_nothing(key, value, ALREADY if follows else reason(raw, path, unseen)))
    return faults, same


def _differ(one: Made | None, other: Made | None) -> bool:
    """Whether trees differ; one that cannot be is another."""
    return not one or not other or not alike(one[1], other[1])


def _same(one: object, other: object) -> bool:
    """Whether resolved descriptions say the same; nothing said is none of it."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other) or (one in NOTHING and other in NOTHING)


def _fault(raw: Table, path: Path, value: object, spelling: Mapping[str, str]) -> str:
    dotted = ".".join(path)
    seen = build_tree(_with(raw, path, NONSENSE)) is None
    return changes_nothing(spelling.get(dotted, dotted), value, reason(raw, path, not seen))


def changes_nothing(key: str, value: object, why: str = ALREADY) -> str:
    """The fault of a key that leaves a model as it is."""
    return f"{key} is {shown(value)}, which changes nothing here" + (f": {why}" if why else "")


def without(raw: Table, path: Path) -> Raw:
    """A description without a key."""
    first, *rest = path
    kept = {key: value for key, value in raw.items() if rest or key != first}
    return {**kept, first: without(raw[first], tuple(rest))} if rest else kept


def alike(one: Any, other: Any) -> bool:
    """Whether two trees of parts are the same, leaf by leaf and in every number that a formula reads."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    names = _compared(one.__class__)
    if names is None:
        return bool(one == other)
    return all(map(alike, [getattr(one, name) for name in names], [getattr(other, name) for name in names]))


@cache
def _compared(kind: type) -> tuple[str, ...] | None:
    """The fields of a part in which it may differ; None of what is no part."""
    if not issubclass(kind, Struct):
        return None
    return tuple(name for name in kind.__struct_fields__ if name != "n_shared")  # a number that is only described


def reason(raw: Table, path: Path, unseen: bool) -> str:
    """Why a key changes nothing, where that can be said. Nobody sees one that others stand before in every layer."""
    homes = [(f"{half}.", raw[half]) for half in ("encoder", "decoder") if isinstance(raw.get(half), Mapping)]
    for prefix, table in (("", raw), *homes):
        homes += [(f"{prefix}layer.{name}.", layer) for name, layer in (table.get("layer") or {}).items()]
    nearer = [prefix + ".".join(path) for prefix, table in homes if sets(table, list(path))]
    if unseen and nearer:
        return f"{' and '.join(nearer)} stand{'s' * (len(nearer) == 1)} in its place"
    field = _field(path)
    return f"it counts {field.when}" if field and field.when else ""


def others(field: Field, value: object) -> Iterator[Any]:
    """Other values that a key might have: those next to a number, the other choices, a list with less and with more."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, 2 * value, value / 2 if isinstance(value, float) else value // 2, value - 1)
    elif isinstance(value, str):
        yield from (other for other in getattr(field.check, "choices", (value + "-2",)) if other != value)
    elif isinstance(value, list) and value:
        yield from ([], value[:-1], value[1:])
        if all(isinstance(item, str) for item in value):
            yield [item + "-2" for item in value]
        elif all(type(item) is int for item in value):
            yield from ([2 * item for item in value], [1] * len(value))


def build_tree(raw: Table) -> Made | None:
    """What a description says and the tree it makes; None where it is refused."""
    try:
        spec = resolve(raw, "")
    except InputError:
        return None
    return spec, assemble(spec)


def is_idle(raw: Table, path: Path, value: object, made: Made) -> bool:
    """Whether a key of a description changes nothing; `made` is what the description makes."""
    bare, field = build_tree(without(raw, path)), _field(path)
    if bare:
        if _differ(bare, made):
            return False
        if build_tree(_with(raw, path, NONSENSE)) is not None:  # nobody looks at it
            return True
        if value in OFF or _same(bare[0], made[0]):
            return False
        if field is None or field.default is not None:
            return True
    tried = False
    for other in others(field, value) if field else ():
        instead = build_tree(_with(raw, path, other))
        if instead and _differ(made, instead):
            return False
        tried = tried or bool(instead)
    return tried


def _with(raw: Table, path: Path, value: object) -> Raw:
    first, *rest = path
    return {**raw, first: _with(raw[first], tuple(rest), value) if rest else value}


def leaves(raw: Table, above: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _field(path: Path) -> Field | None:
    """What is known of a key, in whichever half or layer kind it stands."""
    steps = path[1:] if path[0] in ("encoder", "decoder") else path
    steps = steps[2:] if steps[0] == "layer" else steps
    section, key = (steps[0], steps[1]) if len(steps) == 2 else ("", steps[0])
    return SECTIONS.get(section, {}).get(key)
