"""The description of a model as a file holds it: which keys there are, what each may be, and its default.

`resolve` is the one place where a description is checked. It reports every fault at once, in the user's own spelling,
and returns a plain nested dict in which nothing is optional any more; `assemble` turns that into parts. Numbers that
are not ints (symbols, arrays) come from `algebra` and `sweep`, never from a user: their sizes pass unchecked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from txcalc.errors import ABSENT, Fault, InputError, UnknownName, nearest, shown
from txcalc.num import divides, exact_div, exceeds
from txcalc.symbols import BY_LETTER

MAX_SIZE = 10**9
MAX_LAYERS = 10**5


class Wrong(ValueError):
    """A value that is not what was expected; `expected` and `fix` go into the fault."""

    def __init__(self, expected: str, fix: str = "") -> None:
        self.expected, self.fix = expected, fix
        super().__init__(expected)


Check = Callable[[Any], Any]


def size(value: Any) -> Any:
    """A whole number from 1 to 10^9."""
    if isinstance(value, bool | str | float | list | dict) or value is None:
        raise Wrong("a whole number above 0")
    if type(value) is int and not 1 <= value <= MAX_SIZE:
        raise Wrong(f"a whole number from 1 to {MAX_SIZE:,}")
    return value


def count(value: Any) -> Any:
    """A whole number from 0 to 10^9."""
    return value if type(value) is int and value == 0 else size(value)


def layers(value: Any) -> Any:
    """A number of layers."""
    if type(size(value)) is int and value > MAX_LAYERS:
        raise Wrong(f"a whole number from 1 to {MAX_LAYERS:,}")
    return value


def expected(value: Any) -> int:
    """A number of parameters, as a preset expects it."""
    if type(value) is not int or value < 1:
        raise Wrong("a whole number above 0")
    return value


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise Wrong("true or false")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise Wrong("a text")
    return value


def real(value: Any) -> Any:
    """A finite number: it changes what is computed (an epsilon, a scale), never a size."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise Wrong("a finite number")
    return value


def one_of(*choices: str) -> Check:
    def check(value: Any) -> str:
        if value not in choices or not isinstance(value, str):
            raise Wrong(" or ".join(map(repr, choices)) if len(choices) < 5 else f"one of {', '.join(choices)}")
        return value

    return check


def texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise Wrong("a list of texts")
    return value


def biases(value: Any) -> list[str]:
    """Which of the four projections have a bias: true, false, or a list of their letters."""
    if isinstance(value, bool):
        return ["q", "k", "v", "o"] if value else []
    if isinstance(value, list) and all(item in ("q", "k", "v", "o") for item in value):
        return value
    raise Wrong('true, false, or a list out of "q", "k", "v", "o"')


def parts_of(value: Any) -> list[str]:
    """Names of a layer's parts."""
    if isinstance(value, list) and all(isinstance(item, str) and item in PARTS for item in value):
        return value
    raise Wrong(f"a list out of {', '.join(PARTS)}")


class Field(NamedTuple):
    """What a key may be, what it is when absent (`REQUIRED`, a value, or a function of its section), and what it says.

    A default that is a function gets the sections resolved so far: {"": top level, "attention": …}.
    """

    check: Check
    default: Any
    meaning: str


class _Required:
    pass


REQUIRED = _Required()
PARTS = ("attention", "cross_attention", "feed_forward", "experts", "mamba", "mamba2")
PART_TABLES = ("attention", "latent", "feed_forward", "experts", "mamba", "mamba2")
LAYER_KEYS = (*PART_TABLES, "norm", "positions", "parts")
ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu", "clamped_silu", "sigmoid", "tanh", "none")

IDENTITY = {
    "name": Field(text, "", "name in lower case with hyphens"),
    "family": Field(text, "", "family the model belongs to"),
    "kind": Field(
        one_of("decoder", "encoder", "encoder-decoder", "vision", "audio"), "decoder", "how stacks are joined"
    ),
    "context": Field(size, None, "longest context it was made for, in tokens"),
    "source": Field(text, "", "where the sizes were published"),
    "params": Field(expected, None, "parameters it must give"),
    "active": Field(expected, None, "active parameters it must give"),
    "published": Field(text, "", "the count its authors print, and why it differs, if it does"),
    "model_type": Field(text, "", "name of the architecture in Hugging Face configs"),
}


def _per_head(at: Mapping[str, Any]) -> Any:
    """D/h, where it is whole."""
    d_model, heads = at[""]["d_model"], at["attention"]["n_heads"]
    try:
        return exact_div(d_model, heads)
    except ValueError:
        raise Wrong(f"a key of its own: d_model = {d_model} is no multiple of n_heads = {heads}") from None


def _mamba2_heads(at: Mapping[str, Any]) -> Any:
    """2·D/d_head, where it is whole."""
    d_model, width = at[""]["d_model"], at["mamba2"]["d_head"]
    try:
        return exact_div(2 * d_model, width)
    except ValueError:
        raise Wrong(f"a key of its own: 2·d_model = {2 * d_model} is no multiple of d_head = {width}") from None


def _shared_width(at: Mapping[str, Any]) -> Any:
    """F_e a shared expert; a plain 0 where there is none, whatever F_e is (0 × an array would be a part of width 0)."""
    width, number = at["experts"]["d_ff"], at["experts"]["n_shared"]
    return 0 if type(number) is int and number == 0 else width * number


STACK: dict[str, dict[str, Field]] = {
    "": {
        "d_model": Field(size, REQUIRED, "residual width"),
        "n_layers": Field(layers, REQUIRED, "layers"),
        "vocab_size": Field(size, None, "rows of the token table as stored; without it no table and no head"),
        "pattern": Field(texts, None, "layer kinds in order, repeated over the layers: 'local', '5*local', …"),
        "shared_layers": Field(flag, False, "one set of weights for all layers"),
    },
    "attention": {
        "n_heads": Field(size, REQUIRED, "query heads"),
        "n_kv_heads": Field(size, lambda at: at["attention"]["n_heads"], "key/value heads"),
        "d_head": Field(size, _per_head, "width of a head"),
        "window": Field(size, None, "query i sees key j when 0 ≤ i − j < window; in an encoder when |i − j| < window"),
        "chunked": Field(flag, False, "windows stand side by side: query i sees key j ≤ i of its own window"),
        "bias": Field(biases, [], "projections with a bias"),
        "qk_norm": Field(
            one_of("none", "head", "width", "apart", "bare"),
            "none",
            "norm of Q and K: shared by the heads, over all of them, a weight for each, or without weights",
        ),
        "sinks": Field(flag, False, "one learned sink a head"),
        "scale": Field(real, None, "multiplies the scores; 1/√d_head when absent"),
        "softcap": Field(real, None, "scores are capped at ± this by a tanh"),
    },
    "latent": {
        "n_heads": Field(size, REQUIRED, "query heads"),
        "q_rank": Field(size, None, "rank of the query projection; absent: projected directly"),
        "kv_rank": Field(size, REQUIRED, "width of the latent"),
        "d_nope": Field(size, REQUIRED, "unrotated part of a query/key head"),
        "d_rope": Field(size, REQUIRED, "rotated part of a query/key head"),
        "d_v": Field(size, REQUIRED, "width of a value head"),
        "bias": Field(flag, False, "biases on the down projections and o"),
        "scale": Field(real, None, "multiplies the scores"),
    },
    "positions": {
        "form": Field(
            one_of("rotary", "learned", "sinusoidal", "relative", "relative-projection", "alibi", "none"),
            "rotary",
            "how order is known",
        ),
        "theta": Field(real, 10000, "base of the rotary frequencies"),
        "rotary_dims": Field(size, None, "rotated part of a head; absent: all of it"),
        "interleaved": Field(flag, False, "rotary pairs are neighbours, not halves"),
        "rows": Field(size, None, "rows of the learned table"),
        "buckets": Field(size, 32, "buckets of the relative bias"),
        "distance": Field(size, 128, "longest distance the buckets tell apart"),
    },
    "feed_forward": {
        "d_ff": Field(size, REQUIRED, "width"),
        "gated": Field(flag, False, "a second matrix beside up"),
        "activation": Field(
            one_of(*ACTIVATIONS), lambda at: ("gelu", "silu")[at["feed_forward"]["gated"]], "activation"
        ),
        "bias": Field(flag, False, "biases"),
    },
    "experts": {
        "n_experts": Field(size, REQUIRED, "routed experts"),
        "top_k": Field(size, REQUIRED, "experts a token passes"),
        "d_ff": Field(size, REQUIRED, "width of one expert"),
        "gated": Field(flag, True, "a second matrix beside up"),
        "activation": Field(one_of(*ACTIVATIONS), "silu", "activation"),
        "bias": Field(flag, False, "biases in every expert"),
        "router": Field(flag, True, "a router, one row an expert"),
        "router_bias": Field(flag, False, "bias of the router"),
        "scoring": Field(one_of("softmax", "sigmoid", "softmax_after"), "softmax", "how the router's scores weigh"),
        "scale": Field(real, 1, "multiplies the weights of the chosen experts"),
        "n_groups": Field(size, 1, "groups of experts, of which the best are chosen from"),
        "top_groups": Field(size, 1, "how many groups are chosen from"),
        "n_shared": Field(count, 0, "experts that every token passes"),
        "d_ff_shared": Field(count, _shared_width, "their joint width"),
        "shared_gate": Field(flag, False, "a gate of one row on the shared experts"),
    },
    "mamba": {
        "d_inner": Field(size, lambda at: 2 * at[""]["d_model"], "channels"),
        "d_state": Field(size, 16, "states of a channel"),
        "d_conv": Field(size, 4, "taps of the short convolution"),
        "dt_rank": Field(size, lambda at: -(-at[""]["d_model"] // 16), "rank of the step size"),
        "bias": Field(flag, False, "biases on the outer projections"),
        "conv_bias": Field(flag, True, "bias of the convolution"),
        "norms": Field(flag, False, "RMSNorms on the step size, B and C"),
    },
    "mamba2": {
        "d_head": Field(size, 64, "width of a head"),
        "n_heads": Field(size, _mamba2_heads, "heads"),
        "n_groups": Field(size, 1, "groups that share B and C"),
        "d_state": Field(size, 128, "states of a channel"),
        "d_conv": Field(size, 4, "taps of the short convolution"),
        "bias": Field(flag, False, "biases on the outer projections"),
        "conv_bias": Field(flag, True, "bias of the convolution"),
    },
    "norm": {
        "form": Field(one_of("rms", "layer"), "rms", "RMSNorm or LayerNorm"),
        "bias": Field(flag, lambda at: at["norm"]["form"] == "layer", "LayerNorm with a bias"),
        "eps": Field(real, None, "added to the variance; 1e-6 (rms) or 1e-5 (layer) when absent"),
        "place": Field(
            one_of("pre", "post", "after", "sandwich"), "pre", "before a branch, after its sum, after it, or both"
        ),
        "parallel": Field(
            one_of("no", "shared", "separate"), "no", "branches side by side, with one norm or their own"
        ),
        "final": Field(flag, lambda at: at["norm"]["place"] != "post", "norm after the last layer"),
        "offset": Field(flag, False, "multiplies by 1 + weight"),
        "weighted": Field(flag, True, "norms have weights"),
        "without": Field(parts_of, [], "parts of the layer that have no norm"),
    },
    "embedding": {
        "types": Field(size, None, "token types"),
        "norm": Field(flag, False, "norm after the embedding"),
        "rank": Field(size, None, "width of the table before a projection to d_model"),
        "shared": Field(flag, True, "one table for encoder and decoder"),
        "scale": Field(real, None, "multiplies the embedding"),
    },
    "head": {
        "form": Field(one_of("lm", "masked-lm", "classifier", "none"), "lm", "what is read off the last layer"),
        "tied": Field(flag, False, "the head multiplies by the token table"),
        "bias": Field(flag, False, "bias of the head"),
        "classes": Field(size, None, "classes of a classifier"),
        "rank": Field(
            size, lambda at: at["embedding"]["rank"], "width that a masked-lm head works at; absent: d_model"
        ),
        "transform_bias": Field(flag, True, "bias of the layer before a masked-lm head"),
        "pooler": Field(flag, False, "a D×D layer with tanh on the first position"),
        "softcap": Field(real, None, "logits are capped at ± this by a tanh"),
        "scale": Field(real, None, "multiplies the logits"),
    },
    "vision": {
        "image": Field(size, REQUIRED, "side of the picture, pixels"),
        "patch": Field(size, REQUIRED, "side of a patch, pixels"),
        "channels": Field(size, 3, "colour channels"),
        "class_token": Field(flag, True, "a learned vector before the patches"),
    },
    "audio": {
        "mels": Field(size, REQUIRED, "mel bands"),
        "kernel": Field(size, 3, "taps of both convolutions"),
        "positions": Field(size, REQUIRED, "encoder positions after the stride of 2"),
    },
}
ALWAYS = ("", "norm", "positions", "embedding", "head")  # sections that are resolved even when nobody wrote them


def letter_path(key: str, raw: Mapping[str, Any]) -> str:
    """The dotted path of a key that may be a letter of `symbols`, a field's name, or a path already."""
    if key in BY_LETTER:
        if not BY_LETTER[key].key:
            raise InputError("--set", [f"{key} ({BY_LETTER[key].meaning}) belongs to the workload, not to the model"])
        key = BY_LETTER[key].key
    latent = isinstance(raw.get("latent"), Mapping)
    if latent and key.startswith("attention.") and key.split(".")[1] in STACK["latent"]:
        return "latent." + key.split(".")[1]
    if key == "feed_forward.d_ff" and "feed_forward" not in raw and "experts" in raw:
        return "experts.d_ff"
    if "." in key or key in IDENTITY or key in STACK[""]:
        return key
    order = ("latent", "attention") if latent else ("attention",)
    for section in (*order, *(name for name in STACK if name not in ("", "attention", "latent"))):
        if key in STACK[section] and (section in raw or section in ALWAYS):
            return f"{section}.{key}"
    known = [symbol for symbol in BY_LETTER if BY_LETTER[symbol].key]
    known += sorted({name for fields in STACK.values() for name in fields})
    raise UnknownName("--set", "key", key, known, "letters: " + " ".join(known[:12]))


def changed(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A description with keys changed: a letter or a bare name is changed wherever it is set (in every layer kind), or
    set for all where nobody does."""
    result = deepcopy(dict(raw))
    for key, value in changes.items():
        path = letter_path(key, result)
        tables = [result]
        if path != key:
            tables += [t for t in (result.get("encoder"), result.get("decoder")) if isinstance(t, dict)]
            for table in list(tables):
                tables += [t for t in (table.get("layer") or {}).values() if isinstance(t, dict)]
        steps = path.split(".")
        for table in [t for t in tables if _sets(t, steps)] or [result]:
            _put(table, steps, value)
    return result


def _sets(table: Any, keys: list[str]) -> bool:
    for key in keys:
        if not isinstance(table, Mapping) or key not in table:
            return False
        table = table[key]
    return True


def _put(table: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = table.get(key)
        if not isinstance(inner, dict):
            inner = table[key] = {}
        table = inner
    table[keys[-1]] = value


# The tables that a key may have been written in, innermost first, each with the prefix of its paths.
Homes = tuple[tuple[str, Mapping[str, Any]], ...]


def written(homes: Homes, path: str) -> str:
    """The whole path of a key as its user wrote it: in the innermost table that has it, or else that has its table."""
    steps = path.split(".")
    for wanted in (steps, steps[:-1]):
        for prefix, table in homes:
            if _sets(table, wanted):
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


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` laid on it, table by table."""
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        result[key] = merge(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
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
        if name == kind and half != "decoder":
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
    mixing = [key for key in ("mamba", "mamba2") if key in raw and "attention" not in raw and "latent" not in raw]
    crossing = ["cross_attention"] if role == "cross-decoder" else []
    parts = own.get("parts")
    if parts is None:
        first = mixing[:1] or ["attention", *crossing]
        second = [key for key in ("experts", "feed_forward") if key in raw][:1]
        parts = first + (second or ([] if mixing else ["feed_forward"]))
    elif not isinstance(parts, list) or not parts or not all(part in PARTS for part in parts):
        resolver.fault(f"{path}.parts", parts, f"a list out of {', '.join(PARTS)}")
        parts = []
    elif len(set(parts)) < len(parts):
        resolver.fault(f"{path}.parts", parts, "each part once")
    for part in parts:
        if part == "cross_attention" and role != "cross-decoder":
            resolver.fault(f"{path}.parts", parts, "no cross_attention: there is no encoder to attend to")
        if part in ("mamba", "mamba2") and role in ("encoder", "vision"):
            where = f"{path}.parts" if "parts" in own else written(homes, part)
            resolver.faults.append(f"{where}: {part} runs one way, expected only in a decoder")
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
        if attention["chunked"] and (window is None or role in ("encoder", "vision")):
            fault("attention.chunked", True, "false without a window, and in an encoder")
    if latent and positions["form"] in ("relative-projection", "alibi"):
        fault("positions.form", positions["form"], "another form: latent attention adds no bias to its scores")
    if positions["form"] != places and positions["form"] in ("learned", "sinusoidal", "relative"):
        fault("positions.form", positions["form"], f"the whole stack's form ({places}), rotary, alibi or none")
    experts = layer.get("experts")
    if experts:
        top, number = experts["top_k"], experts["n_experts"]
        if exceeds(top, number):
            fault("experts.top_k", top, f"at most n_experts = {number}")
        parted, best = experts["n_groups"], experts["top_groups"]
        if not divides(parted, number):
            fault("experts.n_groups", parted, f"a divisor of n_experts = {number}")
        elif exceeds(best, parted):
            fault("experts.top_groups", best, f"at most n_groups = {parted}")
    mamba2 = layer.get("mamba2")
    if mamba2 and not divides(mamba2["n_groups"], mamba2["n_heads"]):
        fault("mamba2.n_groups", mamba2["n_groups"], f"a divisor of n_heads = {mamba2['n_heads']}")
    norm = layer["norm"]
    if norm["form"] == "rms" and norm["bias"]:
        fault("norm.bias", True, "false with form = 'rms'", "an RMSNorm has no bias")


def _check_stack(resolver: Resolver, stack: Mapping[str, Any], homes: Homes) -> None:
    positions, head, vision, role = stack["positions"], stack["head"], stack["vision"], stack["role"]

    def fault(path: str, got: object, expected: str, fix: str = "") -> None:
        resolver.fault(written(homes, path), got, expected, fix)

    def missing(path: str) -> bool:
        return not any(_sets(table, path.split(".")) for _, table in homes)

    if positions["form"] == "learned" and missing("positions.rows") and not vision and not stack["audio"]:
        fault("positions.rows", ABSENT, "the rows of the learned table")
    if positions["form"] == "relative-projection" and role in ("encoder", "vision"):
        fault("positions.form", positions["form"], "another form: it projects the distances that a causal decoder sees")
    if positions["form"] == "relative":
        heads = [layer["attention"]["n_heads"] for layer in stack["layer"].values() if "attention" in layer]
        latent = any("latent" in layer for layer in stack["layer"].values())
        if stack["layer"] and (latent or not heads or any(type(n) is int and n != heads[0] for n in heads)):
            fault("positions.form", "relative", "another form: its table is added to the scores of equal query heads")
    if positions["form"] != "learned" and positions["rows"] is not None and role != "encoder":
        fault(
            "positions.rows", positions["rows"], f"none with positions.form = {positions['form']!r}, which has no table"
        )
    if head["form"] == "classifier" and missing("head.classes"):
        fault("head.classes", ABSENT, "the number of classes")
    if head["form"] != "classifier" and head["classes"] is not None:
        fault("head.classes", head["classes"], f"none with head.form = {head['form']!r}")
    if head["tied"] and role != "encoder":
        if stack["vocab_size"] is None or head["form"] not in ("lm", "masked-lm"):
            fault("head.tied", True, "false: there is no token table, or no head, to share it")
        elif head["form"] == "lm" and stack["embedding"]["rank"] is not None:
            fault("head.tied", True, "false with embedding.rank: the table is narrower than the head")
        elif _unequal(head["rank"] or stack["d_model"], stack["embedding"]["rank"] or stack["d_model"]):
            fault("head.tied", True, "false with head.rank: the table has another width")
    if vision and not divides(vision["patch"], vision["image"]):
        fault("vision.patch", vision["patch"], f"a divisor of image = {vision['image']}")


def _unequal(a: Any, b: Any) -> bool:
    return type(a) is type(b) is int and a != b


def _check_halves(resolver: Resolver, encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> None:
    """The decoder attends to the encoder's output; one token table serves both where the encoder reads tokens."""
    shared = [("d_model", encoder["d_model"], decoder["d_model"])]
    if not encoder["audio"] and encoder["embedding"]["shared"]:
        ranks = encoder["embedding"]["rank"], decoder["embedding"]["rank"]
        shared += [("vocab_size", encoder["vocab_size"], decoder["vocab_size"]), ("embedding.rank", *ranks)]
    for key, one, other in shared:
        if _unequal(one, other):
            resolver.fault(f"decoder.{key}", other, f"the encoder's {one}")
