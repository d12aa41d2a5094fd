"""Check a description against the tables of `spec`, and complete it.

`resolve` is the one place where a description is checked. It reports every fault at once, in the user's own spelling,
and returns a `Description`, in which nothing is optional any more; `assemble` turns that into parts.

A faulty key has no value: reading it raises `Unsound`, which ends the rule that reads it (`SOUND`). So no fault is
reported that only follows from another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from txcalc.description import Description, LayerSpec, StackSpec
from txcalc.errors import ABSENT, MOST_UNKNOWN, Fault, InputError, meant, nearest, quote
from txcalc.parts.mechanisms import ALL, ATTENTIONS, MIXERS, PART_TABLES, PARTS, options, section_of
from txcalc.parts.options import Options, Raw, Table, Unsound, Wrong
from txcalc.parts.place import mechanism
from txcalc.sources.layer_rules import check_layer
from txcalc.sources.spec import MAX_KINDS, MAX_LAYERS, REQUIRED, SECTIONS, merge, sets
from txcalc.sources.stack_rules import check_halves, check_stack
from txcalc.sources.tables import SOUND, CheckedTable, ReportFault

# Hints for keys that users try, and that are not close to a known key.
LATENT = (
    "latent attention: latent.kv_rank=512, and latent.d_nope, latent.d_rope and latent.d_v; GQA and MQA: n_kv_heads"
)
HINTS = {
    **dict.fromkeys(("attention.kind", "attention.type", "attention.form"), LATENT),
}

# The keys of a stack that are tables, and all of them.
TABLES = (*ALL, "layer")
STACK_KEYS = (*SECTIONS[""], *TABLES)

# The tables that a key may have been written in, innermost first, each with the prefix of its paths.
Homes = tuple[tuple[str, Table], ...]


def written(homes: Homes, path: str) -> str:
    """The full path of a key as the user wrote it: in the innermost table that has the key, or else its table."""
    steps = path.split(".")
    for names in (steps, steps[:-1]):
        for prefix, table in homes:
            if sets(table, names):
                return prefix + path
    return homes[-1][0] + path


class Resolver:
    """Checks one description and collects all `faults`. `used` are the tables that layers have."""

    def __init__(self, where: str, spelling: Mapping[str, str]) -> None:
        self.where, self.spelling = where, spelling
        self.names = {path.rpartition(".")[2]: name for path, name in spelling.items()}
        self.faults: list[Fault | str] = []
        self.used: set[str] = set()
        self.all_used = True  # false if a fault hides the parts of a layer

    def fault(self, key: str, got: object, expected: str, fix: str = "") -> None:
        """Add a fault, with its key and the keys in `expected` (`a divisor of n_heads = 8`) as spelled by the user."""
        expected = re.sub(r"[\w.]+(?= = )", lambda name: self.names.get(name[0].rpartition(".")[2], name[0]), expected)
        steps = key.split(".")
        ends = (".".join(steps[i:]) for i in range(len(steps)))  # also without its layer kind
        name = next((self.spelling[end] for end in ends if end in self.spelling), key)
        self.faults.append(Fault(name, got, expected, fix))

    def within(self, homes: Homes) -> ReportFault:
        """A function that reports faults by the path where the user wrote the key."""

        def fault(path: str, got: object, expected: str, fix: str = "") -> None:
            self.fault(written(homes, path), got, expected, fix)

        return fault

    def section(
        self,
        name: str,
        raw: object,
        homes: Homes,
        done: Raw,
        extra: tuple[str, ...] = (),
        kind: type[Options] = StackSpec,
    ) -> Any:
        """The options of one table, checked and completed. The top level is named ""; its class is `kind`."""
        kind = options(name) if name else kind
        fields = kind.table()
        prefix = f"{name}." if name else ""
        if not isinstance(raw, Mapping):
            self.fault(written(homes, name), raw, "a table")
            done[name] = CheckedTable({}, fields)
            return kind.chosen({}).filled({}, fields)
        done[name] = result = CheckedTable(raw)
        unknown = [key for key in raw if key not in fields and key not in extra]
        for key in unknown[:MOST_UNKNOWN]:
            mend = meant(nearest(str(key), [*fields, *extra]), f"known: {', '.join(fields)}")
            mend = HINTS.get(f"{prefix}{key}", mend)
            self.faults.append(f"{quote(written(homes, f'{prefix}{key}'))[1:-1]} is not a key ({mend})")
        if len(unknown) > MOST_UNKNOWN:
            self.faults.append(f"{len(unknown) - MOST_UNKNOWN:,} further keys of {name or 'it'} are unknown")
        kind = kind.chosen(raw)
        kind_fields = kind.table()
        allowed = fields if kind_fields is fields else {**fields, **kind_fields}
        for key, (check, default, meaning, _, adjust, _) in allowed.items():
            try:
                if key in raw:
                    value = check(raw[key])
                    result[key] = adjust(value, done) if adjust else value
                elif key not in kind_fields:  # a key of another form
                    continue
                elif result.faulty and kind.forms and "form" in result.faulty:  # the form may have this key
                    result.faulty.add(key)
                elif default is REQUIRED:
                    raise Wrong(meaning)
                else:
                    result[key] = default(done) if callable(default) else default
            except Wrong as wrong:
                self.fault(written(homes, prefix + key), raw.get(key, ABSENT), wrong.expected, wrong.fix)
                result.faulty.add(key)
            except Unsound:  # its default needs a faulty key
                result.faulty.add(key)
        return kind.filled(result, result.faulty)


def resolve(raw: Table, where: str, spelling: Mapping[str, str] | None = None) -> Description:
    """A checked description. Errors: `InputError` with every fault.

    `spelling` maps paths to the user's names of keys (`{"attention.n_heads": "h"}`).
    """
    resolver = Resolver(where, spelling or {})
    whole: Homes = (("", raw),)
    description: Description = resolver.section("", raw, whole, {}, (*STACK_KEYS, "encoder", "decoder"), Description)
    kind = None if "kind" in description.faulty else description.kind
    shared = {key: value for key, value in raw.items() if key in STACK_KEYS}
    halves: tuple[str, ...] = ("encoder", "decoder") if kind in ("encoder-decoder", "audio") else ()
    if kind is None:
        halves = tuple(half for half in ("encoder", "decoder") if half in raw)
    stacks: dict[str, StackSpec] = {}
    for half in halves or ("",):
        stack_table = raw.get(half, {}) if half else {}
        if not isinstance(stack_table, Mapping):
            resolver.fault(half, stack_table, "a table")
            stack_table = {}
        homes = ((f"{half}.", stack_table), *whole) if stack_table else whole
        stacks[half] = _stack(resolver, merge(shared, stack_table), homes, kind, half)
    for half in ("encoder", "decoder"):
        if half in raw and not halves:
            resolver.faults.append(f'{half} is a table, expected only where kind is "encoder-decoder" or "audio"')
    for name in PART_TABLES:
        if resolver.used and resolver.all_used and name in raw and name not in resolver.used:
            resolver.faults.append(_unused_table_fault(resolver, name))
    if len(halves) == 2 and kind is not None:
        check_halves(**stacks, fault=resolver.fault)
    with SOUND:
        if description.predictors and "" not in stacks:
            resolver.fault("predictors", description.predictors, "0 outside a model of one stack")
    if resolver.faults:
        raise InputError(where, resolver.faults)
    return description.replace(stacks=stacks)


STACK_TABLES = ("norm", "positions", "embedding", "head", "vision", "audio", "lora", "features", "projector")


def _unused_table_fault(resolver: Resolver, name: str) -> str:
    """The fault of a table that no layer uses; if a letter set it, with the keys to set instead."""
    used = f"{name} is a table that no layer uses (they have {', '.join(sorted(resolver.used))}"
    for path, spelling in resolver.spelling.items():
        if path.startswith(f"{name}.") and path != spelling:
            keys = [f"; {other} has {', '.join(SECTIONS[other])}" for other in ATTENTIONS if other in resolver.used]
            return f"{spelling} is {path}: {used}{''.join(keys)})"
    return f"{used})"


def _stack(resolver: Resolver, raw: Table, homes: Homes, kind: object, half: str) -> StackSpec:
    resolved: Raw = {}
    stack: StackSpec = resolver.section("", raw, homes, resolved, TABLES)
    tables: Raw = {} if kind is None else {"role": "cross-decoder" if half == "decoder" else half or kind}
    for name in ("norm", "positions", "embedding", "head"):
        tables[name] = resolver.section(name, raw.get(name, {}), homes, resolved)
    for name in ("vision", "audio") if kind is not None else ():
        tables[name] = None
        tower = kind == "encoder" and "projector" in raw
        read = half == "encoder" if name == "vision" else tower
        if (name == kind and half != "decoder") or (read and name in raw):
            tables[name] = resolver.section(name, raw.get(name, {}), homes, resolved)
        elif name in raw and name != kind:
            resolver.faults.append(f'{written(homes, name)} is a table, expected only where kind is "{name}"')
    for name in ("lora", "features", "projector"):
        tables[name] = resolver.section(name, raw[name], homes, resolved) if name in raw else None
    stack = stack.replace(**tables).with_faulty({"role", "vision", "audio"} - tables.keys())
    variants = raw.get("layer", {})
    if not isinstance(variants, Mapping) or not all(isinstance(v, Mapping) for v in variants.values()):
        resolver.fault(written(homes, "layer"), variants, "tables, one per layer kind: [layer.local]")
        variants = {}
        resolver.all_used = False
    elif len(variants) > MAX_KINDS:
        raise InputError(resolver.where, [f"has {len(variants):,} kinds of layers, expected at most {MAX_KINDS:,}"])
    cycle = _cycle(resolver, stack, variants, homes)
    groups = [] if "n_layers" in stack.faulty else _groups(resolver, stack.n_layers, cycle)
    tables_here = {key: raw[key] for key in ALL if key in raw}
    for name in PART_TABLES:  # tables that every kind replaces are not checked elsewhere
        if variants and not isinstance(raw.get(name, {}), Mapping) and all(name in kind for kind in variants.values()):
            resolver.fault(written(homes, name), raw[name], "a table")
    layers: dict[str, LayerSpec | None] = {}
    for name in dict.fromkeys([name for name, _ in groups] or cycle or variants or ["layer"]):
        variant = variants.get(name, {})
        merged = merge(tables_here, variant)
        layers[name] = _layer(resolver, merged, variant, homes, name, resolved, stack)
    for name in variants:
        if groups and stack.pattern and name not in layers:
            path, pattern = written(homes, f"layer.{name}"), quote(stack.pattern)
            resolver.faults.append(f"{path} is never used in pattern {pattern} over {stack.n_layers} layers")
    by_layer = {} if None in layers.values() else {"layer": layers}
    stack = stack.replace(groups=groups, **by_layer).with_faulty({"layer"} - by_layer.keys())
    check_stack(stack, lambda path: not any(sets(table, path.split(".")) for _, table in homes), resolver.within(homes))
    return stack


def _cycle(resolver: Resolver, stack: StackSpec, variants: Table, homes: Homes) -> list[str]:
    """The layer kinds in order, `5*local` written out; empty if faulty."""
    path = written(homes, "pattern")
    if "pattern" in stack.faulty:
        return []
    if not stack.pattern:
        if len(variants) > 1:
            resolver.fault(path, ABSENT, "a list that orders the layer kinds " + ", ".join(map(str, variants)))
            return []
        return [next(iter(variants), "layer")]
    cycle: list[str] = []
    for item in stack.pattern:
        times, star, name = (piece.strip() for piece in item.rpartition("*"))
        if (star and not (times.isdecimal() and len(times) < 7 and 0 < int(times) <= MAX_LAYERS)) or not name:
            resolver.fault(path, item, "a layer kind, or a number of them: '5*local'")
            return []
        cycle += [name] * (int(times) if star else 1)
        if len(cycle) > MAX_LAYERS:
            resolver.fault(path, item, f"at most {MAX_LAYERS:,} layers")
            return []
    if len(alike := [name for name in dict.fromkeys(cycle) if name not in variants]) > 1:
        expected = f"kinds that differ: {' and '.join(alike)} have no tables, so they are the same layer"
        resolver.fault(path, stack.pattern, expected, f"layer.{alike[1]}.attention.window=4096")
        return []
    return cycle


def _groups(resolver: Resolver, number: object, cycle: list[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Layer kinds with the indices of their layers, in order of first appearance."""
    if not cycle:
        return []
    if len(cycle) == 1:
        return [(cycle[0], range(number) if type(number) is int else range(1))]  # type: ignore[list-item]
    if type(number) is not int:
        raise InputError(resolver.where, ["n_layers of a model with a layer pattern cannot be a symbol or an array"])
    indices: dict[str, list[int]] = {}
    for i in range(number):
        indices.setdefault(cycle[i % len(cycle)], []).append(i)
    return [(name, tuple(numbers)) for name, numbers in indices.items()]


def _layer(
    resolver: Resolver,
    raw: Table,
    table: Table,
    outer: Homes,
    name: str,
    done: Raw,
    stack: StackSpec,
) -> LayerSpec | None:
    """One layer kind: the stack's tables merged with its own, for the parts it has; None if the list of parts is
    faulty."""
    path = written(outer, f"layer.{name}")
    homes = ((f"{path}.", table), *outer)
    table_names = (*PART_TABLES, "norm", "positions", "parts")
    for key in table:
        if key not in table_names:
            near = nearest(str(key), table_names)[:1] if isinstance(table[key], Mapping) else []
            mend = meant(near, "a layer has tables of parts, norm, positions, and parts")
            resolver.faults.append(f"{path}.{key} is not a key ({mend})")
    role = None if "role" in stack.faulty else stack.role
    mixing = [key for key in MIXERS if key in raw and not raw.keys() & {"attention", *ATTENTIONS}]
    crossing = ["cross_attention"] if role == "cross-decoder" else []
    parts = table.get("parts")
    if parts is None:
        first = mixing[:1] or ["attention", *crossing]
        second = [key for key in ("experts", "feed_forward", "channel_mix") if key in raw][:1]
        third = ["layer_input"] if "layer_input" in raw else []
        parts = first + (second or ([] if mixing else ["feed_forward"])) + third
    elif not isinstance(parts, list) or not parts or not all(part in PARTS for part in parts):
        resolver.fault(f"{path}.parts", parts, f"a list out of {', '.join(PARTS)}")
        parts, resolver.all_used = None, False
    elif len(set(parts)) < len(parts):
        resolver.fault(f"{path}.parts", parts, "each part once")
    if role is not None:
        _roles(resolver, parts or [], raw, f"{path}.parts" if "parts" in table else "", f"{path}.parts", role, homes)
    tables, scope = Raw(), dict(done)
    for part in parts or ():
        section = section_of(part, raw)
        tables[section] = resolver.section(section, raw.get(section, {}), homes, scope)
    for section in table:
        if parts and section in PART_TABLES and section not in tables:
            resolver.faults.append(f"{path}.{section} is a table that its parts ({', '.join(parts)}) do not use")
    resolver.used |= tables.keys()
    norm, positions = (
        resolver.section(section, raw.get(section, {}), homes, scope) for section in ("norm", "positions")
    )
    if parts is None:
        return None
    layer = LayerSpec(parts, norm, positions, tables)
    check_layer(layer, stack, resolver.within(homes))
    return layer


def _roles(resolver: Resolver, parts: list[str], raw: Table, listed: str, path: str, role: str, homes: Homes) -> None:
    """Check that each part may be in a stack of this role; `listed` is the path of the list of parts, or ""."""
    for part in parts:
        if part == "cross_attention" and role != "cross-decoder":
            resolver.fault(path, parts, "no cross_attention: there is no encoder to attend to")
        section, stands = section_of(part, raw), mechanism(part, raw).stands
        if stands == "decoder" and role in ("encoder", "vision"):
            resolver.faults.append(
                f"{listed or written(homes, section)}: {section} is causal, expected only in a decoder"
            )
        if stands == "encoder" and role not in ("encoder", "vision"):
            resolver.fault(path, parts, f"no {section}: it is bidirectional, expected only in an encoder")
        if part == "layer_input" and role != "decoder":
            resolver.faults.append(f"{written(homes, part)}: expected only in a decoder without an encoder")
