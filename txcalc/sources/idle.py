"""Keys without effect: a description that has one is refused.

A key counts if its value is read while the tree of parts is built; these reads are recorded. An unread key is idle
unless the tree differs without it (another key's default follows from it), or it states a default or the absence of a
feature. A key that no table takes its value from is always idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from txcalc.description import Description, as_tables
from txcalc.errors import InputError, quote
from txcalc.parts.options import Options, Raw, Table
from txcalc.sources.assemble import assemble
from txcalc.sources.resolve import STACK_TABLES, resolve
from txcalc.sources.spec import IDENTITY, SECTIONS, Field, change_keys, letter_path, sets, with_user_defaults

Path = tuple[str, ...]
NOTHING: tuple[Any, ...] = (None, False, 0, "none", "no", [])
ALREADY = "it is so already"
DESCRIBED = "n_shared"  # a number that parts store and no formula reads


class Built:
    """A description with its tree. `recorded`: reads are recorded while the tree is built, else at the first `use`."""

    def __init__(self, raw: Table, description: Description, recorded: bool = False) -> None:
        self.raw, self.description = raw, description
        if recorded:
            self.use = KeyUse(raw)
            self.root = assemble(self.use.recorded(description))
        else:
            self.root = assemble(description)

    @cached_property
    def use(self) -> KeyUse:
        """The use of the description's keys."""
        use = KeyUse(self.raw)
        assemble(use.recorded(self.description))
        return use


def usable(raw: Table, written: bool = False) -> Built | None:
    """The tree of a raw description, with a user's defaults if the user has `written` it; None if it is refused."""
    try:
        raw = with_user_defaults(raw, "") if written else raw
        return Built(raw, resolve(raw, ""))
    except InputError:
        return None


AnyOptions = TypeVar("AnyOptions", bound=Options)


class KeyUse:
    """The paths of a raw description that its tables take values from (`taken`), and those that are read while the tree
    is built (`counted`)."""

    def __init__(self, raw: Table) -> None:
        self.raw = raw
        self.taken: set[Path] = set()
        self.counted: set[Path] = set()

    def recorded(self, description: Description) -> Description:
        """The description with tables whose reads are recorded."""
        stacks = {}
        for half, stack in description.stacks.items():
            layers = {}
            for name, layer in stack.layer.items():
                homes = self._homes(half, name)
                self._count(homes, ("parts",))
                normed = {*layer.parts} - {*layer.norm.without}
                uses = {"without": {*layer.parts} - normed, "after": normed & {*layer.norm.after}, "place": normed}
                norm = self._table(layer.norm, homes, [key for key, parts in uses.items() if not parts])
                positions = self._table(layer.positions, homes)
                tables = {section: self._table(table, homes) for section, table in layer.tables.items()}
                layers[name] = replace(layer, norm=norm, positions=positions, tables=tables)
            homes = self._homes(half)
            self._count(homes, ("pattern", "n_layers"))
            recorded = {}
            for name in STACK_TABLES:
                if (table := getattr(stack, name)) is not None:
                    # The form of positions without a table only counts in layers.
                    recorded[name] = self._table(table, homes, ["form"] if name == "positions" else [])
            stacks[half] = self._table(stack.replace(**recorded, layer=layers), homes)
        return description.replace(stacks=stacks)

    def _homes(self, half: str, layer: str = "") -> list[Path]:
        """The paths of tables that a key may be written in, outermost first."""
        halves: list[Path] = [(), (half,)] if half else [()]
        return [*halves, *((*path, "layer", layer) for path in halves if layer)]

    def _table(self, table: AnyOptions, homes: list[Path], ignored: Sequence[str] = ()) -> AnyOptions:
        """A table with its reads recorded, except of `ignored` keys, which do not apply to this layer."""
        paths = self._paths(homes, table.section)
        self.taken.update(paths.values())

        def read(key: str) -> None:
            if key in paths and key not in ignored and key != DESCRIBED:
                self.counted.add(paths[key])

        return table.recorded(read)

    def _count(self, homes: list[Path], keys: Sequence[str]) -> None:
        """Count keys that set the order of layers or parts."""
        paths = self._paths(homes, "")
        used = {paths[key] for key in keys if key in paths}
        self.taken |= used
        self.counted |= used

    def _paths(self, homes: list[Path], section: str) -> dict[str, Path]:
        """The keys of a table that are written, each with its innermost path."""
        paths = {}
        for home in homes:
            steps = (*home, section) if section else home
            table: Any = self.raw
            for step in steps:
                table = table.get(step) if isinstance(table, Mapping) else None
            paths.update({key: (*steps, key) for key in (table if isinstance(table, Mapping) else ())})
        return paths


def idle_keys(model: Built, spelling: Mapping[str, str]) -> list[str]:
    """A fault for every key of a description that changes nothing."""
    faults = []
    for path, value in idle_paths(model):
        dotted = ".".join(path)
        faults.append(changes_nothing(spelling.get(dotted, dotted), value, reason(model, path)))
    return faults


def prune(raw: Table) -> Raw:
    """A description without the keys that change nothing, because a change removed what they apply to."""
    description = dict(raw)
    for path, _ in idle_paths(Built(raw, resolve(raw, ""))):
        description = without_key(description, path)
    return description


def idle_paths(model: Built) -> Iterator[tuple[Path, object]]:
    """The keys of a description that change nothing, with their values."""
    for path, value in leaves(model.raw):
        if path[0] not in IDENTITY and path not in model.use.counted and _is_idle(model, path, value):
            yield path, value


def _is_idle(model: Built, path: Path, value: object) -> bool:
    """Whether a key that no part reads changes nothing: the description is compared with one without it."""
    if path not in model.use.taken:
        return True
    try:
        bare = resolve(without_key(model.raw, path), "")
    except InputError:
        return path[-1] != "form"  # the table requires it
    if not equal_trees(assemble(bare), model.root) or value in NOTHING:
        return False
    return not _equal(as_tables(bare), as_tables(model.description))


def idle_changes(base: Built | None, model: Built, changes: Table) -> tuple[list[str], list[str]]:
    """A fault for each change without effect, and the keys whose value the description has already. `model` has all
    changes, `base` none; it is None if the description is faulty without them."""
    faults: list[str] = []
    same: list[str] = []
    if base is None:
        return faults, same
    different = not equal_trees(base.root, model.root)
    for key, value in changes.items():
        if key in IDENTITY:
            same += [key] if getattr(base.description, key) == getattr(model.description, key) else []
            continue
        if different and _matters(base, model, changes, key):
            continue
        path = tuple(letter_path(key, base.raw).split("."))
        # A letter is changed wherever it is set, a path only there.
        paths = {path} if key == ".".join(path) else {at for at, _ in leaves(model.raw) if at[-len(path) :] == path}
        trial = model if len(changes) == 1 else _apply(base, {key: value})
        if (
            trial
            and paths & model.use.taken
            and _equal(*(as_tables(tree.description.stacks) for tree in (base, trial)))
        ):
            same.append(key)
        else:
            field = _field(path)  # without a default, it follows from other keys
            follows = field and field.default is None and paths & model.use.counted
            faults.append(changes_nothing(key, value, ALREADY if follows else reason(model, path)))
    return faults, same


def _matters(base: Built, model: Built, changes: Table, key: str) -> bool:
    """Whether one of several changes makes a difference, together with the others or alone."""
    remaining = {other: value for other, value in changes.items() if other != key}
    return (
        not remaining or _differs(model, _apply(base, remaining)) or _differs(base, _apply(base, {key: changes[key]}))
    )


def _apply(base: Built, changes: Table) -> Built | None:
    return usable(change_keys(base.raw, changes))


def _differs(first: Built, second: Built | None) -> bool:
    """Whether trees differ; None differs from any."""
    return second is None or not equal_trees(first.root, second.root)


def _equal(first: object, second: object) -> bool:
    """Whether values, or tables of values, are equal; all values of `NOTHING` are equal."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_equal(first[key], second[key]) for key in first)
    return bool(first == second) or (first in NOTHING and second in NOTHING)


def changes_nothing(key: str, value: object, why: str = ALREADY) -> str:
    """The fault of a key that does not change the model."""
    return f"{key} is {quote(value)}, which changes nothing here" + (f": {why}" if why else "")


def without_key(raw: Table, path: Path) -> Raw:
    """A description without a key."""
    first, *tail = path
    remaining = {key: value for key, value in raw.items() if tail or key != first}
    return {**remaining, first: without_key(raw[first], tuple(tail))} if tail else remaining


def equal_trees(first: Any, second: Any) -> bool:
    """Whether two trees of parts are equal in every leaf and every number that a formula reads."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(equal_trees, first, second))
    names = _compared_fields(first.__class__)
    if names is None:
        return bool(first == second)
    return all(map(equal_trees, [getattr(first, name) for name in names], [getattr(second, name) for name in names]))


@cache
def _compared_fields(kind: type) -> tuple[str, ...] | None:
    """The fields of a part that are compared; None if the class is not a part."""
    if not issubclass(kind, Struct):
        return None
    return tuple(name for name in kind.__struct_fields__ if name != DESCRIBED)


def reason(model: Built, path: Path) -> str:
    """Why a key changes nothing, if that is known. A key is not read if every layer kind overrides it."""
    raw = model.raw
    homes = [(f"{half}.", raw[half]) for half in ("encoder", "decoder") if isinstance(raw.get(half), Mapping)]
    for prefix, table in (("", raw), *homes):
        homes += [(f"{prefix}layer.{name}.", layer) for name, layer in (table.get("layer") or {}).items()]
    overrides = [prefix + ".".join(path) for prefix, table in homes if sets(table, list(path))]
    if path not in model.use.taken and overrides:
        return f"{' and '.join(overrides)} override{'s' * (len(overrides) == 1)} it"
    field = _field(path)
    return f"it counts {field.when}" if field and field.when else ""


def leaves(raw: Table, above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values of a description, each with its path."""
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _section(path: Path) -> tuple[str, str]:
    """The table and the key of a path, without its stack and layer kind."""
    steps = path[1:] if path[0] in ("encoder", "decoder") else path
    steps = steps[2:] if steps[0] == "layer" else steps
    return (steps[0], steps[1]) if len(steps) == 2 else ("", steps[0])


def _field(path: Path) -> Field | None:
    section, key = _section(path)
    return SECTIONS.get(section, {}).get(key)
