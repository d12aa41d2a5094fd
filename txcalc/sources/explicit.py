"""The inverse of `resolve.resolve`: a description with every default written out, and its values by path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from txcalc.description import Description, StackSpec, as_tables
from txcalc.parts.mechanisms import ATTENTIONS, PART_TABLES
from txcalc.parts.options import Raw, Table
from txcalc.sources.spec import SECTIONS


def explicit(description: Description) -> Raw:
    """A resolved description as a user would write it: all keys that are set, except those that follow from others.

    Tables that are equal in all layer kinds are moved to the stack.
    """
    raw: Raw = {"kind": description.kind}
    raw |= {"context": description.context} if description.context is not None else {}
    for half, stack in description.stacks.items():
        (raw.setdefault(half, {}) if half else raw).update(_explicit(as_tables(stack), kinds_in_order(stack)))
    return raw


def _explicit(stack: Table, order: Sequence[str]) -> Raw:
    raw: Raw = {key: stack[key] for key in SECTIONS[""] if stack[key] not in (None, False) and key != "pattern"}
    filled = {"": stack}
    for name in SECTIONS:
        if name and name not in PART_TABLES and stack[name]:
            raw[name] = _set(name, stack[name], filled)
    kinds: dict[str, Raw] = {}
    for name, layer in stack["layer"].items():
        tables = {section: table for section, table in layer.items() if section != "parts"}
        kinds[name] = {"parts": layer["parts"]}
        for section, table in tables.items():
            if section in ("norm", "positions"):  # merged with the stack's
                kinds[name][section] = {key: value for key, value in table.items() if value != stack[section].get(key)}
            else:
                kinds[name][section] = _set(section, table, {**filled, **tables})
    for section in dict.fromkeys(section for kind in kinds.values() for section in kind if section not in raw):
        having = [kind[section] for kind in kinds.values() if section in kind]
        mixed = section in ATTENTIONS and any("attention" in kind for kind in kinds.values())
        if section != "parts" and not mixed:  # a stack's table would hold for every layer
            raw[section] = {k: v for k, v in having[0].items() if all(k in kind and kind[k] == v for kind in having)}
            for kind in having:
                for key in raw[section]:
                    del kind[key]
    layers = {name: {key: table for key, table in kind.items() if table} for name, kind in kinds.items()}
    if len(layers) == 1:  # its name has no meaning
        layers = {"layer": layers.popitem()[1]}
    if len(layers) > 1:
        raw["pattern"] = fold_pattern(order)
    return raw | {"layer": layers}


def _set(section: str, table: Table, scope: Table) -> Raw:
    """The keys of a table that are set and do not follow from the others; the width of a head never does."""
    result: Raw = {}
    for key, field in SECTIONS[section].items():
        value = table.get(key)
        if value is None:
            continue
        if callable(field.default) and key != "d_head":
            try:
                if field.default({**scope, section: table}) == value:
                    continue
            except (KeyError, TypeError, ValueError):
                pass
        result[key] = value
    if section == "experts" and not result["n_shared"] and result.get("d_ff_shared"):
        del result["n_shared"]  # an explicit 0 would remove the shared experts
    return result


def kinds_in_order(stack: StackSpec) -> list[str]:
    """The kind of every layer of a stack."""
    names = [""] * sum(len(indices) for _, indices in stack.groups)
    for name, indices in stack.groups:
        for i in indices:
            names[i] = name
    return names


def cycle(order: Sequence[object]) -> list[Any]:
    """The shortest cycle that repeats at least twice over the layers, or the whole order."""
    n = len(order)
    period = next((p for p in range(1, n // 2 + 1) if all(order[i] == order[i % p] for i in range(n))), n)
    return list(order[:period])


def stretch(names: Sequence[str], number: int) -> list[str]:
    """`number` layers of an order: its cycle repeated, or its last item repeated."""
    repeated = cycle(names)
    if len(repeated) < len(names):
        return [repeated[i % len(repeated)] for i in range(number)]
    return [*names[:number], *[names[-1]] * (number - len(names))]


def fold_pattern(names: Sequence[str]) -> list[str]:
    """The shortest cycle that repeats over the layers, runs written as `5*local`."""
    runs = [(name, len(list(run))) for name, run in groupby(cycle(names))]
    return [name if times == 1 else f"{times}*{name}" for name, times in runs]


def leaves(raw: Table, prefix: str = "") -> Raw:
    """Values by dotted path."""
    result: Raw = {}
    for key, value in raw.items():
        if isinstance(value, Mapping):
            result |= leaves(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result
