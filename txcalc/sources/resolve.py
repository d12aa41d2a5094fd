"""A description checked against the tables of `spec`, and completed.

`resolve` is the one place where a description is checked. It reports every fault at once, in the user's own spelling,
and returns a plain nested dict in which nothing is optional any more; `assemble` turns that into parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from txcalc.errors import ABSENT, Fault, InputError, nearest, shown
from txcalc.model import MIXERS
from txcalc.num import divides, exceeds
from txcalc.sources.spec import (
    IDENTITY,
    LAYER_KEYS,
    MAX_LAYERS,
    PART_TABLES,
    PARTS,
    REQUIRED,
    STACK,
    Field,
    Wrong,
    merge,
    sets,
)

# The tables that a key may have been written in, innermost first, each with the prefix of its paths.
Homes = tuple[tuple[str, Mapping[str, Any]], ...]


def written(homes: Homes, path: str) -> str:
    """The whole path of a key as its user wrote it: in the innermost table that has it, or else that has its table."""
    steps = path.split(".")
    for wanted in (steps, steps[:-1]):
        for prefix, table in homes:
            if sets(table, wanted):
                return prefix + path
    return homes[-1][0] + path


class Resolver:
    """Checks one description; `faults` grows, and nothing stops at the first. `used` are the tables layers have."""

    def __init__(self, where: str, spelling: Mapping[str, str]) -> None:
        self.where, self.spelling = where, spelling
        self.names = {path.rpartition(".")[2]: name for path, name in spelling.items()}
        self.faults: list[Fault | str] = []
        self.used: set[str] = set()

    def fault(self, key: str, got: object, expected: str, fix: str = "") -> None:
        """A fault. Its key and those it compares with (`a divisor of n_heads = 8`) are spelt as their user did."""
        expected = re.sub(r"\w+(?= = )", lambda name: self.names.get(name[0], name[0]), expected)
        steps = key.split(".")
        ends = (".".join(steps[i:]) for i in range(len(steps)))  # in whichever layer kind it stands
        name = next((self.spelling[end] for end in ends if end in self.spelling), key)
        self.faults.append(Fault(name, got, expected, fix))

    def section(
        self,
        name: str,
        fields: Mapping[str, Field],
        raw: Any,
        homes: Homes,
        done: dict[str, Any],
        extra: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """One table, checked and completed; a faulty key is None in it. The top level's name is empty."""
        result: dict[str, Any] = {}
        done[name] = result
        prefix = f"{name}." if name else ""
        if not isinstance(raw, Mapping):
            self.fault(written(homes, name), raw, "a table")
            raw = {}
        for key in raw:
            if key not in fields and key not in extra:
                near = nearest(str(key), [*fields, *extra])
                mend = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(fields)}"
                self.faults.append(f"{shown(written(homes, f'{prefix}{key}'))[1:-1]} is not a key ({mend})")
        for key, field in fields.items():
            try:
                if key in raw:
                    result[key] = field.check(raw[key])
                elif field.default is REQUIRED:
                    raise Wrong(field.meaning)
                else:
                    result[key] = field.default(done) if callable(field.default) else field.default
            except Wrong as wrong:
                self.fault(written(homes, prefix + key), raw.get(key, ABSENT), wrong.expected, wrong.fix)
                result[key] = None
            except (TypeError, KeyError):  # what it derives from is faulty, and was reported
                result[key] = None
        return result


def resolve(raw: Mapping[str, Any], where: str, spelling: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A checked description: identity, and one resolved stack for each half (`stacks`). All faults at once.

    `spelling` says what the user called the key of a path (`{"attention.n_heads": "h"}`).
    """
    resolver = Resolver(where, spelling or {})
    whole: Homes = (("", raw),)
    stack_keys = (*STACK[""], *(name for name in STACK if name), "layer")
    result = resolver.section("", IDENTITY, raw, whole, {}, (*stack_keys, "encoder", "decoder"))
    kind = result["kind"]
    shared = {key: value for key, value in raw.items() if key in stack_keys}
    halves = ("encoder", "decoder") if kind in ("encoder-decoder", "audio") else ()
    result["stacks"] = {}
    for half in halves or ("",):
        own = raw.get(half, {}) if half else {}
        if not isinstance(own, Mapping):
            resolver.fault(half, own, "a table")
            own = {}
        homes = ((f"{half}.", own), *whole) if own else whole
        result["stacks"][half] = _stack(resolver, merge(shared, own), homes, kind, half)
    for half in ("encoder", "decoder"):
        if half in raw and not halves:
            resolver.faults.append(f'{half} is a table, expected only where kind is "encoder-decoder" or "audio"')
    for name in PART_TABLES:
        if resolver.used and name in raw and name not in resolver.used:
            resolver.faults.append(
                f"{name} is a table that no layer uses (they have {', '.join(sorted(resolver.used))})"
            )
    if halves:
        _check_halves(resolver, **result["stacks"])
    if resolver.faults:
        raise InputError(where, resolver.faults)
    return result


def _stack(resolver: Resolver, raw: Mapping[str, Any], homes: Homes, kind: Any, half: str) -> dict[str, Any]:
    done: dict[str, Any] = {}
    tables = tuple(name for name in STACK if name)
    base = resolver.section("", STACK[""], raw, homes, done, (*tables, "layer"))
    role = "cross-decoder" if half == "decoder" else half or kind
    stack: dict[str, Any] = {**base, "role": role}
    for name in ("norm", "positions", "embedding", "head"):
        stack[name] = resolver.section(name, STACK[name], raw.get(name, {}), homes, done)
    for name in ("vision", "audio"):
        stack[name] = None
        if (name == kind and half != "decoder") or (name == "vision" and half == "encoder" and name in raw):
            stack[name] = resolver.section(name, STACK[name], raw.get(name, {}), homes, done)
        elif name in raw and name != kind:
            resolver.faults.append(f'{written(homes, name)} is a table, expected only where kind is "{name}"')
    variants = raw.get("layer", {})
    if not isinstance(variants, Mapping) or not all(isinstance(v, Mapping) for v in variants.values()):
        resolver.fault(written(homes, "layer"), variants, "tables, one a layer kind: [layer.local]")
        variants = {}
    cycle = _cycle(resolver, base["pattern"], variants, homes)
    stack["groups"] = _groups(resolver, base["n_layers"], cycle)
    tables_here = {key: raw[key] for key in STACK if key and key in raw}
    stack["layer"] = {}
    for name in dict.fromkeys([name for name, _ in stack["groups"]] or cycle):
        variant = variants.get(name, {})
        merged = merge(tables_here, variant)
        stack["layer"][name] = _layer(resolver, merged, variant, homes, name, done, role)
    for name in variants:
        if base["pattern"] and stack["groups"] and name not in stack["layer"]:
            path, pattern = written(homes, f"layer.{name}"), shown(base["pattern"])
            resolver.faults.append(f"{path} is never used in pattern {pattern} over {base['n_layers']} layers")
    _check_stack(resolver, stack, homes)
    return stack


def _cycle(resolver: Resolver, pattern: Any, variants: Mapping[str, Any], homes: Homes) -> list[str]:
    """The layer kinds in order, `5*local` written out; empty if faulty."""
    path = written(homes, "pattern")
    if not pattern:
        if len(variants) > 1:
            resolver.fault(path, ABSENT, "a list that orders the layer kinds " + ", ".join(map(str, variants)))
        return [next(iter(variants), "layer")]
    cycle: list[str] = []
    for item in pattern:
        times, star, name = (piece.strip() for piece in item.rpartition("*"))
        if (star and not (times.isdecimal() and len(times) < 7 and 0 < int(times) <= MAX_LAYERS)) or not name:
            resolver.fault(path, item, "a layer kind, or a number of them: '5*local'")
            return []
        cycle += [name] * (int(times) if star else 1)
        if len(cycle) > MAX_LAYERS:
            resolver.fault(path, item, f"at most {MAX_LAYERS:,} layers")
            return []
    return cycle


def _groups(resolver: Resolver, number: Any, cycle: list[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Layer kinds with the indices at which they stand, by first appearance."""
    if number is None or not cycle:
        return []
    if len(cycle) == 1:
        return [(cycle[0], range(number) if type(number) is int else range(1))]  # type: ignore[list-item]
    if type(number) is not int:
        raise InputError(resolver.where, ["n_layers of a model with a layer pattern cannot be a symbol or an array"])
    places: dict[str, list[int]] = {}
    for i in range(number):
        places.setdefault(cycle[i % len(cycle)], []).append(i)
    return [(name, tuple(indices)) for name, indices in places.items()]


def _layer(
    resolver: Resolver,
    raw: Mapping[str, Any],
    own: Mapping[str, Any],
    outer: Homes,
    name: str,
    done: dict[str, Any],
    role: Any,
) -> dict[str, Any]:
    """One layer kind: the stack's tables with its own laid over them, for the parts it has."""
    path = written(outer, f"layer.{name}")
    homes = ((f"{path}.", own), *outer)
    for key in own:
        if key not in LAYER_KEYS:
            resolver.faults.append(f"{path}.{key} is not a key (known: {', '.join(LAYER_KEYS)})")
    mixing = [key for key in MIXERS if key in raw and "attention" not in raw and "latent" not in raw]
    crossing = ["cross_attention"] if role == "cross-decoder" else []
    parts = own.get("parts")
    if parts is None:
        first = mixing[:1] or ["attention", *crossing]
        second = [key for key in ("experts", "feed_forward", "channel_mix") if key in raw][:1]
        third = ["layer_input"] if "layer_input" in raw else []
        parts = first + (second or ([] if mixing else ["feed_forward"])) + third
    elif not isinstance(parts, list) or not parts or not all(part in PARTS for part in parts):
        resolver.fault(f"{path}.parts", parts, f"a list out of {', '.join(PARTS)}")
        parts = []
    elif len(set(parts)) < len(parts):
        resolver.fault(f"{path}.parts", parts, "each part once")
    for part in parts:
        if part == "cross_attention" and role != "cross-decoder":
            resolver.fault(f"{path}.parts", parts, "no cross_attention: there is no encoder to attend to")
        if part in (*MIXERS, "channel_mix") and role in ("encoder", "vision"):
            where = f"{path}.parts" if "parts" in own else written(homes, part)
            resolver.faults.append(f"{where}: {part} runs one way, expected only in a decoder")
        if part == "convolution" and role not in ("encoder", "vision"):
            resolver.fault(f"{path}.parts", parts, "no convolution, which reads what comes later: it is an encoder's")
        if part == "layer_input" and role != "decoder":
            resolver.faults.append(f"{written(homes, part)}: a layer input is expected only in a decoder by itself")
    layer: dict[str, Any] = {"parts": parts}
    scope = dict(done)
    for part in parts:
        section = "attention" if part == "cross_attention" else part
        section = "latent" if "latent" in raw and part == "attention" else section
        layer[section] = resolver.section(section, STACK[section], raw.get(section, {}), homes, scope)
    for section in own:
        if section in PART_TABLES and section not in layer and parts:
            resolver.faults.append(f"{path}.{section} is a table that its parts ({', '.join(parts)}) do not use")
    resolver.used |= layer.keys() - {"parts"}
    for section in ("norm", "positions"):
        layer[section] = resolver.section(section, STACK[section], raw.get(section, {}), homes, scope)
    _check_layer(resolver, layer, homes, role, done["positions"]["form"])
    return layer


def _check_layer(resolver: Resolver, layer: Mapping[str, Any], homes: Homes, role: Any, places: Any) -> None:
    """What no single key shows."""

    def fault(path: str, got: object, expected: str, fix: str = "") -> None:
        resolver.fault(written(homes, path), got, expected, fix)

    positions, attention, latent = layer["positions"], layer.get("attention"), layer.get("latent")
    if attention:
        heads, groups, window = attention["n_heads"], attention["n_kv_heads"], attention["window"]
        if not divides(groups, heads):
            fault("attention.n_kv_heads", groups, f"a divisor of n_heads = {heads}", f"{heads} is MHA, 1 is MQA")
        if positions["form"] == "rotary" and exceeds(positions["rotary_dims"], attention["d_head"]):
            fault("positions.rotary_dims", positions["rotary_dims"], f"at most d_head = {attention['d_head']}")
        if "g" in (attention["bias"] or ()) and attention["gate"] == "none":
            fault("attention.bias", attention["bias"], 'a list without "g": there is no gate')
        if attention["gate"] == "none" and attention["gate_activation"] == "softplus":
            fault("attention.gate_activation", "softplus", "'sigmoid', the default, where there is no gate")
        if attention["chunked"] and (window is None or role in ("encoder", "vision")):
            fault("attention.chunked", True, "false without a window, and in an encoder")
        if attention["tied_kv"] and "v" in (attention["bias"] or ()):
            fault("attention.bias", attention["bias"], 'a list without "v": tied_kv leaves it no projection')
        _check_values(fault, attention)
        if attention["differential"]:
            _check_differential(fault, attention, positions, role)
        if attention["kv_from"] is not None and role != "decoder":
            fault("attention.kv_from", attention["kv_from"], "none: only a decoder by itself lends keys and values")
        if attention["kv_from"] is not None and positions["form"] == "relative-projection":
            fault("positions.form", positions["form"], "another form with attention.kv_from")
    if positions["form"] == "disentangled":
        _check_disentangled(fault, positions, attention, role)
    convolution = layer.get("convolution")
    if convolution and divides(2, convolution["taps"]):
        fault("convolution.taps", convolution["taps"], "an odd number: as many on either side")
    if positions["spread"] and (latent or positions["interleaved"] or _odd(positions["rotary_dims"])):
        fault("positions.spread", True, "false with interleaved pairs, latent attention, or an odd rotary_dims")
    if latent and positions["form"] in ("relative-projection", "alibi"):
        fault("positions.form", positions["form"], "another form: latent attention adds no bias to its scores")
    if latent:
        _check_index(fault, latent, positions["form"], role)
    if positions["form"] != places and positions["form"] in (
        "learned",
        "sinusoidal",
        "relative",
        "disentangled",
    ):
        fault("positions.form", positions["form"], f"the whole stack's form ({places}), rotary, alibi or none")
    experts = layer.get("experts")
    if experts:
        top, number = experts["top_k"], experts["n_experts"]
        if exceeds(top, number):
            fault("experts.top_k", top, f"at most n_experts = {number}")
        if experts["correction"] and (experts["scoring"] != "sigmoid" or experts["router"] is False):
            fault("experts.correction", True, "false without a router whose scoring is 'sigmoid'")
        parted, best = experts["n_groups"], experts["top_groups"]
        if not divides(parted, number):
            fault("experts.n_groups", parted, f"a divisor of n_experts = {number}")
        elif exceeds(best, parted):
            fault("experts.top_groups", best, f"at most n_groups = {parted}")
    mamba2 = layer.get("mamba2")
    if mamba2 and not divides(mamba2["n_groups"], mamba2["n_heads"]):
        fault("mamba2.n_groups", mamba2["n_groups"], f"a divisor of n_heads = {mamba2['n_heads']}")
    delta = layer.get("delta")
    if delta and not divides(delta["n_key_heads"], delta["n_heads"]):
        fault("delta.n_key_heads", delta["n_key_heads"], f"a divisor of n_heads = {delta['n_heads']}")
    norm, parts = layer["norm"], layer["parts"]
    for key in ("bias", "final_bias", "qk_bias"):
        if norm["form"] == "rms" and norm[key] and (key == "bias" or not norm["bias"]):
            fault(f"norm.{key}", True, "false with form = 'rms'", "an RMSNorm has no bias")
    if norm["after"] and norm["place"] != "pre":
        fault("norm.after", norm["after"], "none unless place = 'pre'", "the others have norms after every part")
    joint = norm["joint"] or []
    if joint and (norm["place"] != "sandwich" or norm["parallel"] != "no" or not _stands_in(joint, parts)):
        fault("norm.joint", joint, 'several parts as they follow one another, with place = "sandwich"')
    abreast = norm["abreast"] or []
    alone = norm["place"] == "pre" and norm["parallel"] == "no" and not joint and not norm["after"]
    if abreast and not (alone and _stands_in(abreast, parts) and _reads_alike(abreast[1:], layer)):
        expected = 'parts as they follow one another, attention or feed_forward behind the first, with place = "pre"'
        fault("norm.abreast", abreast, expected)


def _check_values(fault: Any, attention: Mapping[str, Any]) -> None:
    """Values of a width or a scale of their own are projected here, and by a projection of their own."""
    for key in ("d_v", "v_scale"):
        if attention[key] is not None and (attention["tied_kv"] or attention["kv_from"] is not None):
            fault(f"attention.{key}", attention[key], "none where the values are the keys, or another layer's")


def _check_differential(fault: Any, attention: Mapping[str, Any], positions: Mapping[str, Any], role: Any) -> None:
    """Heads, and key/value heads, in two halves, in a decoder, and nothing else is done to scores and results."""
    if role != "decoder":
        fault("attention.differential", True, "false but in a decoder by itself")
    for key in ("n_heads", "n_kv_heads"):
        if not divides(2, attention[key]):
            fault(f"attention.{key}", attention[key], "an even number: differential attention halves them")
    if positions["form"] not in ("rotary", "learned", "sinusoidal", "none"):
        fault("positions.form", positions["form"], "another form: differential attention adds no bias to its scores")
    plain = {"sinks": False, "softcap": None, "gate": "none", "inner_norm": False, "kv_from": None, "d_v": None}
    for key, without in plain.items():
        if attention[key] != without:
            fault(f"attention.{key}", attention[key], "none in differential attention")


def _check_index(fault: Any, latent: Mapping[str, Any], places: Any, role: Any) -> None:
    """An index has all its sizes, reads the queries' latent, and chooses among what came before."""
    sizes = ("index_heads", "index_width", "index_top_k")
    given = [key for key in sizes if latent[key] is not None]
    if not given:
        if latent["index_interleaved"]:
            fault("latent.index_interleaved", True, "false without an index")
        return
    for key in sizes:
        if latent[key] is None:
            fault(f"latent.{key}", ABSENT, f"a size beside {given[0]}: an index has {', '.join(sizes)}")
    if places != "rotary":
        fault("positions.form", places, "'rotary' with an index, whose keys are rotated")
    if latent["q_rank"] is None:
        fault("latent.q_rank", ABSENT, "the rank of the queries, which the index reads")
    if latent["index_width"] is not None and exceeds(latent["d_rope"], latent["index_width"]):
        fault("latent.index_width", latent["index_width"], f"at least d_rope = {latent['d_rope']}, which is rotated")
    if role in ("encoder", "vision"):
        fault(f"latent.{given[0]}", latent[given[0]], "none in an encoder: an index chooses among what came before")


def _check_disentangled(fault: Any, positions: Mapping[str, Any], attention: Any, role: Any) -> None:
    """Queries and keys of as many heads meet the distances, in an encoder, and nothing else is done to the scores."""
    if role != "encoder" or not attention:
        fault("positions.form", "disentangled", "another form: it is that of an encoder's attention")
        return
    if _unequal(attention["n_kv_heads"], attention["n_heads"]):
        fault("attention.n_kv_heads", attention["n_kv_heads"], f"n_heads = {attention['n_heads']} with distances")
    plain = {"window": None, "qk_norm": "none", "sinks": False, "softcap": None, "gate": "none"}
    plain |= {"d_v": None, "v_scale": None, "differential": False}
    for key, without in (plain | {"v_norm": False, "tied_kv": False, "kv_from": None, "inner_norm": False}).items():
        if attention[key] != without:
            fault(f"attention.{key}", attention[key], "none in disentangled attention")
    if positions["rows"] is None or not divides(2, positions["rows"]):
        fault("positions.rows", positions["rows"] or ABSENT, "the rows of the table of distances, an even number")
    elif exceeds(positions["rows"], 2 * positions["distance"]):
        fault("positions.rows", positions["rows"], f"at most twice the distance = {positions['distance']}")
    terms = positions["terms"]  # None where it is a fault already
    if terms is not None and not terms:
        fault("positions.terms", [], "one of 'c2p' and 'p2c' at least")
    if positions["shared"] and terms is not None and len(terms) < 2:
        fault("positions.shared", True, "false with one term: q and k both project the distances")
    if positions["shared"] and positions["bias"]:
        fault(
            "positions.bias", positions["bias"], "none where q and k project the distances, with the biases they have"
        )
    if positions["clipped"] and _unequal(positions["rows"], 2 * positions["distance"]):
        fault("positions.clipped", True, "false where the distances are in buckets")


def _check_stack(resolver: Resolver, stack: Mapping[str, Any], homes: Homes) -> None:
    positions, head, vision, role = stack["positions"], stack["head"], stack["vision"], stack["role"]

    def fault(path: str, got: object, expected: str, fix: str = "") -> None:
        resolver.fault(written(homes, path), got, expected, fix)

    def missing(path: str) -> bool:
        return not any(sets(table, path.split(".")) for _, table in homes)

    if positions["form"] == "learned" and missing("positions.rows") and not vision and not stack["audio"]:
        fault("positions.rows", ABSENT, "the rows of the learned table")
    if positions["form"] == "relative-projection" and role in ("encoder", "vision"):
        fault("positions.form", positions["form"], "another form: it projects the distances that a causal decoder sees")
    if positions["apart"] and positions["form"] != "relative":
        fault("positions.apart", True, "false without positions.form = 'relative'")
    if any(layer["positions"]["apart"] != positions["apart"] for layer in stack["layer"].values()):
        fault("positions.apart", not positions["apart"], "the same in every layer")
    if positions["form"] == "rotary" and positions["rows"] is not None:
        widths = [layer["attention"]["d_head"] for layer in stack["layer"].values() if "attention" in layer]
        if stack["layer"] and (not widths or any(_unequal(width, widths[0]) for width in widths)):
            fault("positions.rows", positions["rows"], "none: its sinusoids are those of equally wide heads")
    if positions["form"] == "relative":
        heads = [layer["attention"]["n_heads"] for layer in stack["layer"].values() if "attention" in layer]
        latent = any("latent" in layer for layer in stack["layer"].values())
        if stack["layer"] and (latent or not heads or any(type(n) is int and n != heads[0] for n in heads)):
            fault("positions.form", "relative", "another form: its table is added to the scores of equal query heads")
    tabled = ("learned", "relative", "rotary", "disentangled") if role == "encoder" else ("learned",)
    if positions["form"] not in tabled and positions["rows"] is not None:
        fault(
            "positions.rows", positions["rows"], f"none with positions.form = {positions['form']!r}, which has no table"
        )
    if head["form"] == "classifier" and missing("head.classes"):
        fault("head.classes", ABSENT, "the number of classes")
    for key in ("classes", "every", "transform", "transform_norm"):
        if head["form"] != "classifier" and head[key]:
            fault(f"head.{key}", head[key], f"none with head.form = {head['form']!r}")
    if head["pairs"] is not None and not head["pooler"]:
        fault("head.pairs", head["pairs"], "none without head.pooler")
    if head["norm"] and (head["form"] not in ("classifier", "none") or head["every"] or head["transform"] is not None):
        fault("head.norm", True, "false but for a classifier of one position, or no head")
    if head["activation"] is not None and (head["form"] != "masked-lm" or head["plain"]):
        fault("head.activation", head["activation"], "none but with a layer before a masked-lm head")
    if head["plain"] and (head["form"] != "masked-lm" or head["rank"] is not None):
        fault("head.plain", True, "false but with head.form = 'masked-lm' as wide as the model")
    if head["transform_norm"] and head["transform"] is None:
        fault("head.transform_norm", True, "false without head.transform")
    if head["tied"] and role != "encoder":
        if stack["vocab_size"] is None or head["form"] not in ("lm", "masked-lm"):
            fault("head.tied", True, "false: there is no token table, or no head, to share it")
        elif head["form"] == "lm" and stack["embedding"]["rank"] is not None and not stack["embedding"]["early"]:
            fault("head.tied", True, "false with embedding.rank: the table is narrower than the head")
        elif _unequal(head["rank"] or stack["d_model"], stack["embedding"]["rank"] or stack["d_model"]):
            fault("head.tied", True, "false with head.rank: the table has another width")
    if stack["embedding"]["early"] and (stack["embedding"]["rank"] is None or head["form"] != "lm"):
        fault("embedding.early", True, "false without embedding.rank and head.form = 'lm'")
    if head["pool"] != "first" and not (vision and vision["class_token"]):
        fault("head.pool", head["pool"], "'first' where there are no patches after a class token")
    if head["pool_norm"] and head["pool"] != "mean":
        fault("head.pool_norm", True, "false without head.pool = 'mean'")
    if stack["contacts"] and (role != "encoder" or not all("attention" in layer for layer in stack["layer"].values())):
        fault("contacts", True, "false but in an encoder whose layers all have attention")
    as_usual = head["form"] == "masked-lm" and head["activation"] is None and not head["plain"]
    if as_usual and any(_form(layer) == "xielu" for layer in stack["layer"].values()):
        fault(
            "feed_forward.activation",
            "xielu",
            "another with head.form = 'masked-lm', whose layer has no weights for it",
        )
    _check_lenders(stack, fault)
    _check_streams(stack, fault)
    inputs = [layer.get("layer_input") for layer in stack["layer"].values()]
    if any(inputs) and stack["vocab_size"] is None:
        fault("vocab_size", ABSENT, "the rows of the token table: layer_input looks tokens up")
    if any(inputs) and any(_unlike(table, inputs[0], ("width", "rows")) for table in inputs):
        fault("layer_input.width", [table and table["width"] for table in inputs], "the same in every layer")
    if vision and not divides(vision["patch"], vision["image"]):
        fault("vision.patch", vision["patch"], f"a divisor of image = {vision['image']}")


def _form(layer: Mapping[str, Any]) -> Any:
    """The activation of a layer's feed-forward."""
    return layer["feed_forward"]["activation"] if "feed_forward" in layer else None


def _unlike(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None, keys: tuple[str, ...]) -> bool:
    """Whether only one is there, or numbers of theirs differ."""
    return not (one and other) or any(_unequal(one[key], other[key]) for key in keys)


def _check_lenders(stack: Mapping[str, Any], fault: Callable[..., None]) -> None:
    """Who reads another layer's keys and values stands after it, and would have made its own of the same shape."""
    first = {name: min(indices) for name, indices in stack["groups"] if len(indices)}
    for name, layer in stack["layer"].items():
        table = layer.get("attention")
        if not table or table["kv_from"] is None:
            continue
        lender = stack["layer"].get(table["kv_from"], {}).get("attention")
        if not lender or lender["kv_from"] is not None:
            fault(f"layer.{name}.attention.kv_from", table["kv_from"], "a layer kind with keys and values of its own")
        elif first.get(table["kv_from"], 0) > first.get(name, 0):
            fault(f"layer.{name}.attention.kv_from", table["kv_from"], "a layer kind that stands before its reader")
        elif any(table[key] != lender[key] for key in ("n_kv_heads", "d_head", "d_v", "window", "chunked")):
            expected = "a layer kind of as many and as wide key/value heads, and the same window"
            fault(f"layer.{name}.attention.kv_from", table["kv_from"], expected)


def _check_streams(stack: Mapping[str, Any], fault: Callable[..., None]) -> None:
    """Streams and learned residuals stand in decoders whose parts follow one another."""
    norms = [layer["norm"] for layer in stack["layer"].values()]
    placed = all(norm["place"] != "post" and norm["parallel"] == "no" and not norm["abreast"] for norm in norms)
    number = stack["streams"]
    for key in ("streams", "laurel"):
        if stack[key] is not None and (stack["role"] != "decoder" or not placed):
            fault(key, stack[key], "none but in a decoder, with norms before its parts, which follow one another")
    if number is not None and exceeds(2, number):
        fault("streams", number, "two or more")
    elif number is not None and exceeds(stack["active_stream"], number - 1):
        fault("active_stream", stack["active_stream"], f"less than streams = {number}")
    if number is None and stack["active_stream"]:
        fault("active_stream", stack["active_stream"], "0: there are no streams")
    last = all(
        layer["parts"].index("layer_input") == len(layer["parts"]) - 1
        for layer in stack["layer"].values()
        if "layer_input" in layer["parts"]
    )
    if number is not None and not last:
        fault("layer_input", "a part", "the last of a layer's parts where there are streams")


def _odd(number: Any) -> bool:
    return type(number) is int and number % 2 == 1


def _stands_in(joint: list[str], parts: list[str]) -> bool:
    """Whether two or more parts follow one another in a layer's."""
    first = parts.index(joint[0]) if joint[0] in parts else 0
    return len(joint) > 1 and parts[first : first + len(joint)] == joint


def _reads_alike(parts: list[str], layer: Mapping[str, Any]) -> bool:
    """Whether parts can read what another one before them reads and keeps."""
    return all(part == "feed_forward" or (part == "attention" and "latent" not in layer) for part in parts)


def _unequal(a: Any, b: Any) -> bool:
    return type(a) is type(b) is int and a != b


def _check_halves(resolver: Resolver, encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> None:
    """One token table serves both halves where the encoder reads tokens, unless each has its own."""
    if encoder["audio"] or encoder["vision"] or not encoder["embedding"]["shared"]:
        return
    ranks = encoder["embedding"]["rank"], decoder["embedding"]["rank"]
    shared = [(key, encoder[key], decoder[key]) for key in ("d_model", "vocab_size")]
    for key, one, other in (*shared, ("embedding.rank", *ranks)):
        if _unequal(one, other):
            resolver.fault(f"decoder.{key}", other, f"the encoder's {one}, for they share a table of tokens")
