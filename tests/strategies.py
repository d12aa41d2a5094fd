"""What Hypothesis draws: every part, every workload, valid descriptions of every family; and parts in other numbers.

A part is drawn by the types of its fields, so that a new one is in `LEAVES` or `COMPOSITES` without more ado; what a
type does not say (a text's choices, numbers that are no sizes) is in `FIELDS`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any, ForwardRef

from hypothesis import settings, strategies as st
from msgspec import NODEFAULT, Struct
from structs import StructField, struct_fields

from txcalc import parts
from txcalc.parts.adapters import Adapters
from txcalc.parts.block import Branch
from txcalc.parts.forms import pieces
from txcalc.parts.mixers.compressed import Entries
from txcalc.parts.model import LayerGroup
from txcalc.parts.part import Composite, Leaf, Workload
from txcalc.parts.spans import (
    Causal,
    CentredWindow,
    Chunks,
    Cross,
    CrossUncached,
    Full,
    Selected,
    SeparateWindows,
    SquareWindows,
    Window,
)
from txcalc.parts.tower import ProjectorStep
from txcalc.parts.work import Axis

ACTIVATIONS = (
    "relu", "relu2", "relu6", "gelu", "gelu_tanh", "quick_gelu", "silu", "clamped_silu", "hard_swish", "sigmoid", "tanh"
)  # fmt: skip

sizes = st.integers(1, 40)
flags = st.booleans()
activations = st.sampled_from(ACTIVATIONS)


def share_of(examples: int) -> settings:
    """So many examples with --every-case, and as the profile has of its 50 otherwise."""
    return settings(max_examples=examples * settings().max_examples // 50)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


# Parts.


def _every(kind: type[Any]) -> Iterator[type[Any]]:
    for cls in kind.__subclasses__():
        yield from _every(cls)
        if cls.__module__.startswith("txcalc.parts") and not cls.__subclasses__():
            yield cls


for _module in pkgutil.walk_packages(parts.__path__, "txcalc.parts."):
    importlib.import_module(_module.name)
PARTS: dict[str, type[Any]] = {cls.__name__: cls for kind in (Leaf, Composite) for cls in _every(kind)}

widths = st.integers(1, 60)
causal_spans = (
    st.builds(Causal)
    | st.builds(Window, window=widths)
    | st.builds(Chunks, window=widths)
    | st.builds(Selected, top_k=widths)
)
spans = (
    causal_spans
    | st.builds(Full)
    | st.builds(CentredWindow, window=widths)
    | st.builds(SeparateWindows, window=widths)
    | st.builds(SquareWindows, side=widths, cell=st.integers(1, 3))
    | st.builds(Cross)
    | st.builds(CrossUncached)
)
entries = st.builds(Entries, rate=sizes, top_k=maybe(sizes))
LISTED = pieces(
    [
        {"name": "x", "form": "linear", "sizes": [3, 5], "at": [1, 0, 2], "times": 2, "runs": 3},
        {"name": "y", "form": "relu", "sizes": [5]},
    ]
)

# Fields by their types.
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "None": st.none(),
    "Num": sizes,
    "bool": flags,
    "Span": spans,
    "Entries": entries,
    "Axis": st.builds(Axis, st.just("tp"), st.integers(2, 9)),
    "frozenset[str]": st.frozensets(st.sampled_from("qkvo")),
    "Adapters": st.builds(Adapters, sizes, st.just(("all",))),
}
# By their names, in every part or in one, where the type does not say it.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "activation": activations,
    "eps": st.just(1e-6),
    "norm_eps": st.just(1e-6),
    "theta": st.just(10_000),
    "bound": st.sampled_from([None, -5.0]),
    "value_scale": st.sampled_from([None, 0.5]),
    "sparsity": st.sampled_from([None, 0.5]),
    "lender": st.sampled_from([None, "a"]),
    "sums": st.integers(0, 3),
    "stride": st.integers(1, 3),
    "sharers": st.integers(1, 4),
    "choices": st.integers(1, 4),
    "keeps": st.sampled_from(["yes", "no", "eager"]),
}
FIELDS |= {
    "Activation.form": activations | st.just("xielu"),
    "Attention.d_memory": maybe(sizes),
    "Block.joint": st.just(("mixer", "channel")),
    "CompressedCore.n_kv_heads": st.just(1),
    "CompressedCore.span": st.builds(Window, window=widths),
    "DeltaNet.decay": st.sampled_from(["head", "channel"]),
    "DeltaNet.gate": st.sampled_from(["silu", "sigmoid"]),
    "DeltaNet.rank": maybe(sizes),
    "Embedding.scale": st.sampled_from([None, 2.0]),
    "Experts.latent": maybe(sizes),
    "Filter.groups": st.just(1),
    "FixedLength.positions": st.integers(2, 40),
    "Gate.form": st.sampled_from(["sigmoid", "softplus"]),
    "Head.kind": st.sampled_from(["head", "other"]),
    "IndexCore.span": causal_spans,
    "LatentAttention.q_rank": maybe(sizes),
    "LatentCore.span": causal_spans,
    "LowRank.keeps": st.sampled_from(["yes", "no"]),
    "Mamba.norm_eps": st.sampled_from([None, 1e-6]),
    "Mamba2.norm_eps": st.sampled_from([None, 1e-5]),
    "Norm.form": st.sampled_from(["rms", "layer"]),
    "Norm.groups": sizes,
    "Pieces.pieces": st.just(tuple(LISTED)),
    "Scores.span": st.just(Causal()),
    "SharedBlock.rank": maybe(sizes),
    "StreamEnds.number": st.integers(2, 5),
    "StateCache.span": st.just(Causal()),
    "Streams.active": st.integers(0, 3),
    "TokenShift.uses": st.sampled_from([("key",), ("key", "value")]),
    "TowerStack.dropped": st.integers(0, 2),
}


@cache
def drawn(name: str) -> st.SearchStrategy[Any]:
    """A part whose fields are drawn: all but those that are something by themselves and neither a part nor a flag."""
    cls = PARTS[name]
    return st.builds(cls, **{f.name: strategy for f in struct_fields(cls) if (strategy := _field(name, f)) is not None})


def _field(part: str, field: StructField) -> st.SearchStrategy[Any] | None:
    path, kind = f"{part}.{field.name}", field.type
    if path in FIELDS:
        return FIELDS[path]
    kinds = kind.split(" | ")
    if field.name in FIELDS and kind != "bool" and not PARTS.keys() & {*kinds}:
        return FIELDS[field.name]
    if field.default is not NODEFAULT and not (PARTS.keys() | {"bool"}) & {*kinds}:
        return None
    strategy = st.one_of(*(TYPES[type_name] if type_name in TYPES else some(type_name) for type_name in kinds))
    rare = field.default is None and part in ("Stack", "Block", "Embedding")  # else most of what is drawn is very large
    return maybe(maybe(strategy)) if rare else strategy


def some(*names: str) -> st.SearchStrategy[Any]:
    """One of these parts."""
    return st.deferred(lambda: st.one_of(*map(drawn, names)))


MIXERS_DRAWN = some(
    "Attention",
    "LatentAttention",
    "DisentangledAttention",
    "Mamba",
    "Mamba2",
    "DeltaNet",
    "Griffin",
    "LinearAttention",
    "TimeMix",
    "ShortConvolution",
    "TimeConvolution",
)


def branch(name: str, part: st.SearchStrategy[Any], kinds: list[str | None]) -> st.SearchStrategy[Branch]:
    return st.builds(
        Branch,
        st.just(name),
        part,
        st.sampled_from(kinds),
        maybe(some("Norm")),
        maybe(some("Norm")),
        flags,
        maybe(some("LayerScale")),
        gather=maybe(some("AllGather")),
        join=maybe(some("AllReduce")),
        stream=maybe(some("LayerScale")),
        sums=st.integers(0, 2),
    )


@st.composite
def groups(draw: st.DrawFn) -> tuple[LayerGroup, ...]:
    """One or two groups of layers, numbered one after the other."""
    layer_groups, first = [], 0
    for name in draw(st.sampled_from(["a", "ab"])):
        number = draw(st.integers(1, 4))
        indices = tuple(range(first, first + number))
        layer_groups.append(LayerGroup(name, draw(drawn("Block")), indices, number, draw(flags)))
        first += number
    return tuple(layer_groups)


FIELDS |= {
    "Block.branches": st.tuples(
        branch("mixer", MIXERS_DRAWN, ["attention", "recurrent", None]),
        branch("channel", some("FeedForward", "Experts", "ChannelMix"), ["feed_forward"]),
    ),
    "Embedding.convolutions": st.lists(some("Convolution"), max_size=2).map(tuple),
    "Frozen.part": some("FeedForward"),
    "Projector.steps": st.tuples(
        st.builds(ProjectorStep, st.just("branch"), some("Linear"), sizes, st.integers(1, 3), st.integers(1, 3)),
        st.builds(ProjectorStep, st.just("norm"), some("Norm"), sizes, st.just(1), st.just(1)),
        st.builds(ProjectorStep, st.just("linear"), some("Linear"), sizes, st.just(1), st.just(1)),
    ),
    "Stack.groups": groups(),
}
LEAVES: dict[type[Any], st.SearchStrategy[Any]] = {
    cls: drawn(name) for name, cls in PARTS.items() if issubclass(cls, Leaf)
}
COMPOSITES: dict[type[Any], st.SearchStrategy[Any]] = {
    cls: drawn(name) for name, cls in PARTS.items() if issubclass(cls, Composite)
}

workloads = st.builds(
    Workload, st.integers(1, 4), st.integers(1, 40), st.integers(0, 40), st.integers(1, 40), flags, flags, flags, flags
)


def renumbered(part: Any, number: Callable[[int, int], Any]) -> Any:
    """The same part (or workload) with `number(i, value)` for the value of its i-th size.

    A size is an int in a field annotated `Num`; flags, strides and numbers of sums are structure.
    """
    return _renumbered(part, number, count())


def _renumbered(part: Any, number: Callable[[int, int], Any], places: count[int]) -> Any:
    if isinstance(part, Struct):
        kinds = {field.name: field.type for field in struct_fields(type(part))}
    elif hasattr(part, "_fields"):
        kinds = {name: _written(kind) for name, kind in type(part).__annotations__.items()}
    elif isinstance(part, tuple):
        return tuple(_renumbered(item, number, places) for item in part)
    else:
        return part
    values = {}
    for name, kind in kinds.items():
        value = getattr(part, name)
        is_size = "Num" in kind.split(" | ") and type(value) is int
        values[name] = number(next(places), value) if is_size else _renumbered(value, number, places)
    return type(part)(**values)


def _written(kind: Any) -> str:
    return kind.__forward_arg__ if isinstance(kind, ForwardRef) else str(kind)


# Descriptions: what a TOML file or a reader of configs gives to `build`.


@st.composite
def attention_tables(draw: st.DrawFn, window: bool = True, causal: bool = False) -> dict[str, Any]:
    groups = draw(st.integers(1, 4))
    table: dict[str, Any] = {
        "n_heads": groups * draw(st.integers(1, 4)),
        "d_head": draw(sizes),
        "bias": draw(flags | st.lists(st.sampled_from("qkvo"), unique=True)),
        "qk_norm": draw(st.sampled_from(["none", "head", "width"])),
        "sinks": draw(flags),
        "gate": draw(st.sampled_from(["none", "element", "head"])),
        "v_norm": draw(flags),
        "inner_norm": draw(flags),
    }
    if table["gate"] != "none":
        table["gate_activation"] = draw(st.sampled_from(["sigmoid", "softplus"]))
    table["tied_kv"] = table["bias"] is not True and "v" not in (table["bias"] or []) and draw(flags)
    if not table["tied_kv"]:
        table |= draw(st.fixed_dictionaries({}, optional={"d_v": sizes, "v_scale": st.just(0.5)}))
    if draw(flags):
        table["n_kv_heads"] = groups
    if window and draw(flags):
        table["window"] = draw(st.integers(1, 30))
        table["chunked"] = causal and draw(flags)
    return table


@st.composite
def latent_tables(draw: st.DrawFn) -> dict[str, Any]:
    table: dict[str, Any] = {key: draw(sizes) for key in ("n_heads", "kv_rank", "d_nope", "d_rope", "d_v")}
    table |= {"bias": draw(flags), "gate": draw(st.sampled_from(["none", "element", "head"]))}
    if draw(flags):
        table["q_rank"] = draw(sizes)
        if draw(flags):
            table["index_width"] = table["d_rope"] + draw(st.integers(0, 7))
            table |= {"index_heads": draw(sizes), "index_top_k": draw(st.integers(1, 30))}
            table["index_interleaved"] = draw(flags)
    return table


feed_forward_tables = st.fixed_dictionaries(
    {"d_ff": sizes, "gated": flags},
    optional={"activation": activations | st.just("xielu"), "bias": flags, "down_bias": flags, "inner_norm": flags},
)


@st.composite
def expert_tables(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(1, 8))
    scoring = draw(st.sampled_from(["softmax", "sigmoid"]))
    return {
        "n_experts": number,
        "top_k": draw(st.integers(1, number)),
        "d_ff": draw(sizes),
        "gated": draw(flags),
        "bias": draw(flags),
        "router_bias": draw(flags),
        "n_shared": draw(st.integers(0, 2)),
        "shared_gate": draw(flags),
        "scoring": scoring,
        "correction": scoring == "sigmoid" and draw(flags),
        **({"latent": draw(sizes)} if draw(flags) else {}),
    }


mamba_tables = st.fixed_dictionaries(
    {"norms": flags, "bias": flags, "conv_bias": flags},
    optional={"d_inner": sizes, "d_state": sizes, "d_conv": sizes, "dt_rank": sizes},
)


@st.composite
def mamba2_tables(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(1, 3))
    return {
        "n_heads": number * draw(st.integers(1, 3)),
        "n_groups": number,
        "d_head": draw(sizes),
        "d_state": draw(sizes),
        "bias": draw(flags),
        "norm": draw(flags),
    }


@st.composite
def delta_tables(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(1, 3))
    table: dict[str, Any] = {
        "n_heads": number * draw(st.integers(1, 3)),
        "n_key_heads": number,
        "d_key": draw(sizes),
        "d_value": draw(sizes),
        "decay": draw(st.sampled_from(["head", "channel"])),
        "gate": draw(st.sampled_from(["silu", "sigmoid"])),
        "signed": draw(flags),
    }
    optional: dict[str, st.SearchStrategy[Any]] = {"d_conv": sizes, "rank": sizes, "bound": st.just(-5.0)}
    return table | draw(st.fixed_dictionaries({}, optional=optional))


@st.composite
def norm_tables(draw: st.DrawFn) -> dict[str, Any]:
    table: dict[str, Any] = {
        "form": draw(st.sampled_from(["rms", "layer"])),
        "place": draw(st.sampled_from(["pre", "post", "after", "sandwich"])),
        "parallel": draw(st.sampled_from(["no", "shared", "separate"])),
        "final": draw(flags),
    }
    if table["place"] == "pre":
        table["after"] = draw(st.lists(st.sampled_from(["attention", "feed_forward", "experts"]), unique=True))
    if table["form"] == "layer":
        table |= {key: draw(flags) for key in ("bias", "final_bias", "qk_bias")}
    return table


position_tables = st.sampled_from(
    [{"form": form} for form in ("rotary", "sinusoidal", "alibi", "none")] + [{"form": "learned", "rows": 64}]
)


@st.composite
def channel_tables(draw: st.DrawFn) -> dict[str, Any]:
    """A feed-forward or experts."""
    return draw(
        st.fixed_dictionaries({"feed_forward": feed_forward_tables})
        | st.fixed_dictionaries({"experts": expert_tables()})
    )


MIXERS = {
    "mamba": mamba_tables,
    "mamba2": mamba2_tables(),
    "delta": delta_tables(),
    "rg_lru": st.fixed_dictionaries({"n_heads": sizes, "d_head": sizes}, optional={"bias": flags, "conv_bias": flags}),
    "linear_attention": st.fixed_dictionaries(
        {"n_heads": sizes, "d_head": sizes}, optional={"activation": activations}
    ),
    "time_mix": st.fixed_dictionaries({}, optional={"d_inner": sizes}),
    "latent": latent_tables(),
}
CHANNELS = {
    "feed_forward": feed_forward_tables,
    "experts": expert_tables(),
    "channel_mix": st.fixed_dictionaries({"d_ff": sizes}),
}


@st.composite
def decoders(draw: st.DrawFn, mixers: tuple[str, ...] = ("attention", *MIXERS), window: bool = True) -> dict[str, Any]:
    """Decoder-only models: layers of one or several kinds, each a mixer and perhaps a feed-forward or experts."""
    kinds = {
        kind: (draw(st.sampled_from(mixers)), draw(st.sampled_from([*CHANNELS, None])))
        for kind in draw(st.sampled_from(["a", "ab", "abc"]))
    }
    raw: dict[str, Any] = {
        "kind": "decoder",
        "d_model": draw(sizes),
        "pattern": draw(st.permutations([draw(st.sampled_from(["", "2*", "3*"])) + kind for kind in kinds])),
        "n_layers": 9,
        "norm": draw(norm_tables()),
        "positions": draw(position_tables),
        "head": {"bias": draw(flags)},
        "shared_layers": draw(flags),
        "layer": {},
    }
    if any(mixer == "latent" for mixer, _ in kinds.values()) and raw["positions"]["form"] == "alibi":
        raw["positions"] = {"form": "none"}
    if draw(st.integers(0, 3)):
        raw |= {"vocab_size": draw(sizes), "head": {"bias": draw(flags), "tied": draw(flags)}}
    for channel in {channel for _, channel in kinds.values() if channel}:
        raw[channel] = draw(CHANNELS[channel])
    for kind, (mixer, second) in kinds.items():
        part = "attention" if mixer == "latent" else mixer
        tables = attention_tables(window, causal=True) if mixer == "attention" else MIXERS[mixer]
        raw["layer"][kind] = {"parts": [part, second] if second else [part], mixer: draw(tables)}
        if "index_heads" in raw["layer"][kind].get("latent", {}):
            raw["positions"] = {"form": "rotary"}
    return raw


# Beside a relative bias, a learned table; of rotary positions, the sinusoids.
TABLED = [{"form": "relative", "buckets": 8}, {"form": "relative", "rows": 64}, {"form": "rotary", "rows": 64}]


@st.composite
def encoders(draw: st.DrawFn) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "kind": "encoder",
        "d_model": draw(sizes),
        "n_layers": draw(st.integers(1, 3)),
        "vocab_size": draw(sizes),
        "attention": draw(attention_tables(window=False)),
        **draw(channel_tables()),
        "norm": draw(norm_tables()),
        "positions": draw(position_tables | st.sampled_from(TABLED)),
        "embedding": draw(
            st.fixed_dictionaries(
                {"norm": flags},
                optional={
                    "types": sizes,
                    "rank": sizes,
                    "scale": st.just(2.0),
                    "tables": st.lists(st.tuples(sizes, sizes).map(list), max_size=2),
                },
            )
        ),
        "head": draw(
            st.sampled_from([{"form": "masked-lm", "tied": True}, {"form": "masked-lm"}, {"form": "none"}])
            | st.just({"form": "none", "pooler": True})
            | st.just({"form": "classifier", "classes": 3})
            | st.just({"form": "masked-lm", "activation": "relu"})
            | st.fixed_dictionaries(
                {"form": st.just("masked-lm"), "plain": st.just(True), "tied": flags, "bias": flags}
            )
        ),
    }
    if "plain" in raw["head"]:  # it is as wide as the model
        raw["embedding"].pop("rank", None)
    elif raw["head"]["form"] == "masked-lm" and "xielu" in raw.get("feed_forward", {}).values():
        raw["head"]["activation"] = "relu"  # its layer has no weights for the slopes of the other
    return raw


@st.composite
def disentangled_encoders(draw: st.DrawFn) -> dict[str, Any]:
    """Encoders whose distances have products of their own, one with a convolution in its first layer."""
    reach = draw(st.integers(1, 40))
    terms = draw(st.sampled_from([["c2p", "p2c"], ["c2p"], ["p2c"]]))
    shared = len(terms) == 2 and draw(flags)
    raw: dict[str, Any] = draw(encoders())
    raw["attention"] = {"n_heads": draw(sizes), "d_head": draw(sizes), "bias": draw(flags)}
    raw["positions"] = {
        "form": "disentangled",
        "rows": 2 * reach,
        "distance": reach,
        "clipped": draw(flags),
        "terms": terms,
        "shared": shared,
        "norm": draw(flags),
        "bias": [] if shared else draw(st.sampled_from([[], ["q"], ["q", "k"]])),
    }
    if draw(flags):
        channel = "experts" if "experts" in raw else "feed_forward"
        first = {"parts": ["attention", channel, "convolution"]}
        kinds = {"first": first, "later": {}}
        raw |= {"convolution": {"taps": draw(st.sampled_from([1, 3, 5]))}, "n_layers": 3, "layer": kinds}
        raw["pattern"] = ["first", "2*later"]
    return raw


@st.composite
def encoder_decoders(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "kind": "encoder-decoder",
        "d_model": draw(sizes),
        "vocab_size": draw(sizes),
        "attention": draw(attention_tables(window=False)),
        **draw(channel_tables()),
        "norm": draw(norm_tables()),
        "positions": draw(position_tables | st.just({"form": "relative", "buckets": 8})),
        "head": {"tied": draw(flags)},
        "encoder": {"n_layers": draw(st.integers(1, 3))},
        "decoder": {"n_layers": draw(st.integers(1, 3))},
    }


@st.composite
def unlike_halves(draw: st.DrawFn) -> dict[str, Any]:
    """Halves of widths and tables of their own; some of the encoders look at pictures, and some pool them."""
    raw: dict[str, Any] = draw(encoder_decoders())
    width, vocabulary = raw.pop("d_model"), raw.pop("vocab_size")
    encoder = {"d_model": draw(sizes), "embedding": {"shared": False}, "head": {"form": "none", "pooler": draw(flags)}}
    if draw(flags):
        patch = draw(st.integers(1, 4))
        encoder["vision"] = {"image": patch * draw(st.integers(1, 3)), "patch": patch, "class_token": draw(flags)}
        encoder["positions"] = {"form": "learned"}
    else:
        encoder["vocab_size"] = draw(sizes)
    raw["encoder"] |= encoder
    raw["decoder"] |= {"d_model": width, "vocab_size": vocabulary}
    return raw


@st.composite
def visions(draw: st.DrawFn) -> dict[str, Any]:
    patch = draw(st.integers(1, 6))
    return {
        "kind": "vision",
        "d_model": draw(sizes),
        "n_layers": draw(st.integers(1, 3)),
        "attention": draw(attention_tables(window=False)),
        "feed_forward": draw(feed_forward_tables),
        "norm": draw(norm_tables()),
        "positions": {"form": "learned"},
        "vision": {"image": patch * draw(st.integers(1, 4)), "patch": patch, "class_token": draw(flags)},
        "head": {"form": "classifier", "classes": draw(sizes)},
    }


@st.composite
def audios(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "kind": "audio",
        "d_model": draw(sizes),
        "vocab_size": draw(sizes),
        "attention": draw(attention_tables(window=False)),
        "feed_forward": draw(feed_forward_tables),
        "norm": draw(norm_tables()),
        "head": {"tied": draw(flags)},
        "encoder": {
            "n_layers": draw(st.integers(1, 3)),
            "audio": {"mels": draw(sizes), "positions": draw(sizes), "kernel": draw(st.sampled_from([1, 3, 5]))},
            "positions": draw(st.sampled_from([{"form": "sinusoidal"}, {"form": "learned"}])),
        },
        "decoder": {"n_layers": draw(st.integers(1, 3)), "positions": {"form": "learned", "rows": 64}},
    }


FAMILIES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "decoder": decoders(),
    "encoder": encoders() | disentangled_encoders(),
    "encoder-decoder": encoder_decoders() | unlike_halves(),
    "vision": visions(),
    "audio": audios(),
}
descriptions = st.one_of(*FAMILIES.values())
