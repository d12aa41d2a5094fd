"""Decoders with experts that a row of `decoders.json` cannot describe."""

from __future__ import annotations

from txcalc.errors import ABSENT, quote
from txcalc.sources.huggingface.config import (
    GLOBAL,
    LAYER_NAMES,
    LOCAL,
    NAMES,
    ROUTED,
    TOP,
    WIDTH,
    Config,
    Raw,
    periodic,
    rotary_axis,
    with_kinds,
)
from txcalc.sources.huggingface.keys import REQUIRED, any_of, number
from txcalc.sources.huggingface.leaf_list import leaf, matrix, norm_leaf, of_kind
from txcalc.sources.spec import size


def qwen2_moe(c: Config) -> Raw:
    raw = c.stack()
    n = raw["n_layers"]
    shared = {"d_ff_shared": c.size("shared_expert_intermediate_size"), "shared_gate": True}
    mixed = c.experts(NAMES, TOP, WIDTH, 60, 4, **shared)
    bias = ["q", "k", "v"] if c.flag("qkv_bias", default=True) else False
    raw = c.decoder(raw, c.heads(raw, kv=16, bias=bias), mixed=mixed)
    on = c.flag("use_sliding_window", default=False)
    window = c.size("sliding_window", default=4096, null=None) if on else None
    top = c.count("max_window_layers", default=28) if on else 0
    types = c.layer_types(n, [LOCAL if on and i % 2 == 0 and i < top else GLOBAL for i in range(n)])
    return with_kinds(raw, c.windows(raw, window, types), c.mixture(raw, c.qwen_sparse(raw)))


def note_mtp_modules(c: Config) -> None:
    c.ignore("mtp_transformer_layers", "num_mtp_modules")
    mtp_modules = c.data.get("num_mtp_modules")
    if mtp_modules:
        c.note(f"{quote(mtp_modules)} multi-token-prediction modules (num_mtp_modules) are not counted")


def minimax_m2(c: Config) -> Raw:
    raw = c.stack()
    attention = c.heads(raw, kv=8, d_head=128, qk_norm="width")
    c.require_value([1] * raw["n_layers"], "attn_type_list", why="only full attention in every layer is supported")
    note_mtp_modules(c)
    return c.decoder(raw, attention, mixed=c.experts(NAMES[::-1], TOP, ("intermediate_size",), 256, 8), theta=5e6)


def ernie4_5_moe(c: Config) -> Raw:
    """Experts in every n-th layer of a range; the router has a correction bias, which is a parameter."""
    raw = c.stack()
    n, bias = raw["n_layers"], c.flag("use_bias", default=False)
    mixed = c.experts(("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok"), WIDTH, 64, 6)
    mixed = c.with_shared(mixed, "moe_num_shared_experts", default=2) | {"router_bias": True}
    raw = c.decoder(raw, c.heads(raw, kv=4, bias=bias), mixed=mixed, tied=True, theta=5e5)
    if bias:
        c.fault("use_bias", True, "false", "biases of the shared experts alone are not supported")
    c.ignore("moe_layer_end_index")
    first, period = c.count("moe_layer_start_index", default=1), c.size("moe_layer_interval", default=1)
    last = c.data.get("moe_layer_end_index", -1)
    if type(last) is not int or last < -1:
        c.fault("moe_layer_end_index", last, "a layer, or -1 for the last")
        last = -1
    sparse = [first <= i <= (n if last == -1 else last) and (i + 1) % period == 0 for i in range(n)]
    return with_kinds(raw, c.dense_where(raw, [not is_sparse for is_sparse in sparse]))


def flint(c: Config) -> Raw:
    """One sink per head; full attention without positions in the first two layers, every fourth and the last."""
    raw = c.stack()
    n, window = raw["n_layers"], c.size("sliding_window", default=513)
    attention = c.heads(raw, kv=4, d_head=128, attention_bias=False)
    mixed = c.experts(NAMES, TOP, WIDTH, 256, 6, d_ff_shared=c.size("shared_expert_intermediate_size", default=1024))
    raw = c.decoder(raw, attention | {"qk_norm": "head", "sinks": True}, mixed=mixed | {"scoring": "sigmoid"})
    types = c.layer_types(n, [GLOBAL if i < 2 or i % 4 == 1 or i == n - 1 else LOCAL for i in range(n)])
    step = c.size("decoder_sparse_step", default=1)
    only = c.items("mlp_only_layers", of=number, length=None, default=[0, 1])
    dense = [i in only or (i + 1) % step != 0 for i in range(n)]
    axis = c.windows(raw, window, types, {"global": {"positions": {"form": "none"}}})
    return with_kinds(raw, axis, c.dense_where(raw, dense))


def dots1(c: Config) -> Raw:
    raw = c.stack()
    n = raw["n_layers"]
    attention = c.heads(raw, kv=32, attention_bias=False, qk_norm="head")
    mixed = c.with_shared(c.experts(ROUTED, TOP, WIDTH), "n_shared_experts", default=REQUIRED)
    raw = c.decoder(raw, attention, mixed=mixed | {"scoring": "sigmoid"})
    window, first = c.size("sliding_window", default=4096, null=None), c.count("max_window_layers", default=62)
    types = c.layer_types(n, [LOCAL if window is not None and i >= first else GLOBAL for i in range(n)])
    return with_kinds(raw, c.windows(raw, window, types), c.first_dense(raw, 0))


def dbrx(c: Config) -> Raw:
    raw = c.stack(("d_model", "hidden_size"), ("n_layers", "num_hidden_layers"))
    inner, channel = c.table("attn_config"), c.table("ffn_config")
    attention = c.mha(raw, names=("n_heads", "num_attention_heads"))
    if inner:
        attention["n_kv_heads"] = inner.size("kv_n_heads", default=1)
        inner.divides(attention["n_kv_heads"], attention["n_heads"], "kv_n_heads", "n_heads")
        inner.ignore("attn_pdrop", "clip_qkv", "tie_word_embeddings")
        c.require_value(attention["n_kv_heads"], "num_key_value_heads", why="transformers reads attn_config.kv_n_heads")
        if inner.real("rope_theta") is None:
            inner.fault("rope_theta", ABSENT, "a number", "transformers' dbrx requires it")
    else:
        c.fault("attn_config", ABSENT, "an object with kv_n_heads and rope_theta")
    mixed: Raw = {"n_experts": 1, "top_k": 1, "d_ff": 1}
    if channel:
        mixed = channel.experts(("moe_num_experts",), ("moe_top_k",), ("ffn_hidden_size",), 4, 1)
        channel.require_value(raw["d_model"], "hidden_size", why="the width of the model")
        channel.ignore("tie_word_embeddings", "moe_jitter_eps", "moe_loss_weight")
        channel.ignore("moe_normalize_expert_weights", "uniform_expert_assignment")
        form = channel.table("ffn_act_fn")
        if form:
            mixed["activation"] = form.activation("name", default="silu")
    else:
        c.fault("ffn_config", ABSENT, "an object with ffn_hidden_size and moe_num_experts")
    raw = c.decoder(raw, attention, mixed=mixed)
    return raw | {"norm": c.layer_norm(bias=False)}


def cohere2_moe(c: Config) -> Raw:
    """Attention and experts in parallel; the first layers may be dense, with a separate pattern of windows."""
    raw = c.stack()
    n, window = raw["n_layers"], c.size("sliding_window", default=4096, null=None)
    first = c.count("first_k_dense_replace", default=0) if "first_k_dense_replace" in c else 0
    attention = c.heads(raw, d_head=128, attention_bias=False)
    mixed = c.with_shared(c.experts(NAMES, TOP, ("intermediate_size",), 8, 2), "num_shared_experts", default=0)
    if c.text("expert_selection_fn", default="softmax") == "sigmoid":
        mixed["scoring"] = "sigmoid"
    raw = c.decoder(raw, attention, mixed=mixed, tied=True)
    raw["positions"]["interleaved"] = True
    raw["norm"] = c.layer_norm(bias=False) if c.real("rms_norm_eps") is None else c.rms()
    raw["norm"]["parallel"] = "shared"
    dense_period = c.size("prefix_dense_sliding_window_pattern", default=1)
    period = c.size("sliding_window_pattern", default=4)
    first_layers = periodic(min(first, n), dense_period)
    types = c.layer_types(n, first_layers + periodic(n - len(first_layers), period))
    names = ["dense" if i < first else "sparse" for i in range(n)]
    kinds = c.items("mlp_layer_types", of=any_of("dense", "sparse"), length=n, default=names)
    if "dense" in kinds:
        width = c.size("prefix_dense_intermediate_size", default=mixed["d_ff"], null=mixed["d_ff"])
        raw["feed_forward"] = {"d_ff": width, "gated": True, "activation": mixed["activation"]}
    # Global layers have no positions, except for dense layers whose windows have no pattern.
    rotated = [
        kind == LOCAL or (part == "dense" and dense_period == 1) for kind, part in zip(types, kinds, strict=True)
    ]
    sparse = c.mixture(raw, [kind == "sparse" for kind in kinds])
    return with_kinds(raw, c.windows(raw, window, types), rotary_axis(rotated), sparse)


def llama4_text(c: Config) -> Raw:
    """Chunked attention with rotary positions, but every fourth layer has full attention without positions; experts in
    every `interleave_moe_layer_step`-th layer."""
    raw = c.stack()
    n = raw["n_layers"]
    qk_norm = c.flag("use_qk_norm", default=True)
    attention = c.heads(raw, kv=8, d_head=128, attention_bias=False)
    mixed = c.experts(NAMES[::-1], TOP, ("intermediate_size",), 16, 1)
    mixed |= {"d_ff_shared": mixed["d_ff"], "scoring": "sigmoid"}
    raw = c.decoder(raw, attention, mixed=mixed, theta=5e5)
    raw["positions"] |= {"interleaved": True}
    interval = c.size("no_rope_layer_interval", default=4)
    default = [int((i + 1) % interval != 0) for i in range(n)]
    rotated = c.items("no_rope_layers", of=any_of(0, 1), length=None, default=default) or default
    if len(rotated) != n:
        c.fault("no_rope_layers", rotated, f"a list of {n:,} items, one per layer")
        rotated = default
    chunked = ["chunked_attention" if on else GLOBAL for on in rotated]
    types = c.layer_types(n, chunked, ("chunked_attention", GLOBAL))
    chunk = c.size("attention_chunk_size", default=8192)
    step = c.size("interleave_moe_layer_step", default=1)
    expert_layers = c.items("moe_layers", of=number, length=None, default=None)
    sparse = set(range(step - 1, n, step) if expert_layers is None else expert_layers)
    if not all(i in sparse for i in range(n)):
        width = c.size("intermediate_size_mlp")
        raw["feed_forward"] = {"d_ff": width, "gated": True, "activation": mixed["activation"]}
    local: Raw = {"attention": {"window": chunk, "chunked": True}}
    spans = ["chunked" if kind == "chunked_attention" else "global" for kind in types]
    rotary = rotary_axis(rotated)
    if qk_norm:
        rotary[1]["rotary"] = {"attention": {"qk_norm": "bare"}}
    axis = (spans, {"chunked": local, "global": {}})
    return with_kinds(raw, axis, rotary, c.mixture(raw, [i in sparse for i in range(n)]))


def mimo_v2_flash(c: Config) -> Raw:
    """Values narrower than keys; layers with a window have sinks and twice as many key/value heads."""
    raw = c.stack()
    n, window = raw["n_layers"], c.size("sliding_window", default=129)
    attention = c.heads(raw, kv=4, d_head=192, whole=None)
    attention |= {
        "bias": ["q", "k", "v"] if c.flag("attention_bias", default=False) else [],
        "d_v": c.size("v_head_dim", default=128),
        "v_scale": c.real("attention_value_scale", default=0.707),
    }
    if "attention_value_scale" in c and c.data["attention_value_scale"] is None:
        del attention["v_scale"]
    size = c.size("sliding_window_size", default=None)
    window = window if size is None else size + 1
    names = ("n_routed_experts", "num_local_experts")
    mixed = c.with_shared(c.experts(names, TOP, WIDTH, 256, 8), "n_shared_experts", default=0, groups=(1, 1))
    if mixed.pop("n_shared", 0):
        c.fault("n_shared_experts", c.data["n_shared_experts"], "0", "its class has no shared experts")
    raw |= {
        "attention": attention,
        "experts": mixed | {"scoring": "sigmoid"},
        "norm": c.rms(eps=1e-5),
        "head": c.lm_head(False),
    }
    types = c.layer_types(n, [GLOBAL if i == 0 or (i + 1) % 6 == 0 else LOCAL for i in range(n)])
    twice = 2 * attention["n_kv_heads"]
    if LOCAL in types:
        c.divides(twice, attention["n_heads"], "num_key_value_heads · 2", "num_attention_heads")
    # Keys of the published code; transformers' class computes these values.
    c.require_value(attention["n_heads"], "swa_num_attention_heads")
    c.require_value(attention["d_head"], "swa_head_dim")
    c.require_value(attention["d_v"], "swa_v_head_dim")
    c.require_value(twice, "swa_num_key_value_heads")
    c.require_value([int(kind == LOCAL) for kind in types], "hybrid_layer_pattern")
    rotary = c.data.get("rope_parameters")
    tables: dict[str, Raw] = {}
    _check_rope_types(c, types)
    for kind, theta in ((GLOBAL, 5e6), (LOCAL, 1e4)):
        if kind in types and rotary is not None and not isinstance(rotary, dict):
            c.fault("rope_parameters", rotary, "an object with a table for each layer type")
        tables[LAYER_NAMES[kind]] = {"positions": c.rotary(attention["d_head"], theta, 0.334, kind=kind, names=())}
    tables["local"]["attention"] = {"n_kv_heads": twice, "sinks": True}
    axis = c.windows(raw, window, types, tables)
    kinds = c.typed_layers(raw, 1)
    c.require_value([int(kind == "sparse") for kind in kinds[0]], "moe_layer_freq")
    return with_kinds(raw, axis, kinds)


def _check_rope_types(c: Config, types: list[str]) -> None:
    """A fault if rotary parameters by layer type lack a type."""
    rope = c.data.get("rope_parameters")
    for kind in sorted(set(types)):
        if isinstance(rope, dict) and not isinstance(rope.get(kind), dict):
            c.fault("rope_parameters", sorted(map(str, rope)), f"a table for each layer type: {kind} has none")


def laguna(c: Config) -> Raw:
    """A softplus gate on the output of attention; heads, windows and experts may differ in each layer; the router's
    correction bias is a parameter."""
    raw = c.stack()
    n = raw["n_layers"]
    attention = c.heads(raw, kv=8, d_head=128, attention_bias=False, qk_norm="head")
    width, gating = attention["d_head"], c.data["gating"] if "gating" in c else True
    c.ignore("gating")
    if gating not in (True, "per-head", "per-element") or type(gating) is int:
        c.fault("gating", gating, "true, 'per-head' or 'per-element'")
    gate = "element" if gating == "per-element" else "head"
    mixed = c.experts(NAMES, TOP, WIDTH, 256, 8, d_ff_shared=c.size("shared_expert_intermediate_size", default=512))
    mixed |= {"scoring": "sigmoid", "correction": True, "scale": c.real("moe_routed_scaling_factor", default=1.0)}
    if c.real("moe_router_logit_softcapping", default=0.0) > 0:
        c.fault("moe_router_logit_softcapping", c.data["moe_router_logit_softcapping"], "0: it is not supported")
    raw |= {
        "attention": attention | {"gate": gate, "gate_activation": "softplus"},
        "experts": mixed,
        "norm": c.rms(),
        "head": c.lm_head(False),
    }
    types = c.layer_types(n, [GLOBAL] * n)
    rope = c.data.get("rope_parameters")
    defaults = {GLOBAL: (5e5, 0.5), LOCAL: (1e4, 1.0)}
    _check_rope_types(c, types)
    positions = {
        kind: {"positions": c.rotary(width, theta, partial if rope is None else 1.0, kind=kind)}
        for kind, (theta, partial) in defaults.items()
        if kind in types
    }
    window = c.size("sliding_window", default=512) if LOCAL in types else None
    tables = {"global": positions.get(GLOBAL, {}), "local": positions.get(LOCAL, {})}
    axis = c.windows(raw, window, types, tables)
    counts = c.items("num_attention_heads_per_layer", of=size, length=n, default=None) or [attention["n_heads"]] * n
    for count in sorted(set(counts)):
        if count % attention["n_kv_heads"]:
            expected = f"multiples of num_key_value_heads = {attention['n_kv_heads']}"
            c.fault("num_attention_heads_per_layer", count, expected)
    by_heads: dict[str, Raw] = {f"{count}h": {"attention": {"n_heads": count}} for count in counts}
    return with_kinds(raw, axis, ([f"{count}h" for count in counts], by_heads), c.typed_layers(raw, 1))


def afmoe(c: Config) -> Raw:
    """Gated attention, sandwich norms, and positions only in the layers with a window."""
    raw = c.stack()
    n = raw["n_layers"]
    attention = c.heads(raw, d_head=128, attention_bias=False, qk_norm="head")
    mixed = c.experts(NAMES, TOP, WIDTH, 64, 6, n_shared=c.size("num_shared_experts", default=2))
    mixed |= {"scoring": "sigmoid", "correction": True, "scale": c.real("route_scale", default=1.0)}
    raw = c.decoder(raw, attention | {"gate": "element"}, mixed=mixed)
    raw["norm"] = c.rms(eps=1e-5, place="sandwich")
    if c.flag("mup_enabled", default=False, null=False):
        raw["embedding"] = {"scale": raw["d_model"] ** 0.5}
    window, period = c.size("sliding_window", default=1024, null=None), c.size("global_attn_every_n_layers", default=4)
    types = c.layer_types(n, periodic(n, period))
    first = c.count("num_dense_layers", default=1)
    axis = c.windows(raw, window, types, {"global": {"positions": {"form": "none"}}})
    return with_kinds(raw, axis, c.dense_where(raw, first))


def beam(c: Config) -> Raw:
    """Gates with one bias per head; full attention without positions in every sixth layer and the last."""
    raw = c.stack()
    n = raw["n_layers"]
    for key, default in (("num_key_value_heads", 8), ("head_dim", 128)):
        c.size(key, default=default)  # the class refuses null
    attention = c.heads(raw, kv=8, d_head=128, attention_bias=False)
    attention |= {"qk_norm": "head", "gate": "element"}
    mixed = c.with_shared(c.experts(NAMES[:1], TOP, WIDTH, 256, 8), groups=(8, 4))
    mixed |= {"scoring": "sigmoid", "scale": c.real("routed_scaling_factor", default=2.5)}
    norm = c.rms(place="sandwich", without=["pieces"])
    head = c.lm_head(False, softcap=c.real("final_logit_softcapping", default=30.0))
    raw = c.decoder(raw, attention, mixed=mixed, norm=norm, head=head, kind=LOCAL)
    window = c.size("sliding_window", default=512, null=None)
    types = c.layer_types(n, [GLOBAL if i == n - 1 or i % 6 == 5 else LOCAL for i in range(n)])
    axis = c.windows(raw, window, types, {"global": {"positions": {"form": "none"}}})
    names, tables = c.typed_layers(raw, 3)
    shift = leaf("gate_bias", "shift", attention["n_heads"], kind="attention", runs=attention["d_head"])
    for table in tables.values():
        table |= {"parts": ["pieces", *table["parts"]], "pieces": {"leaves": [shift]}}
    return with_kinds(raw, axis, (names, tables))


def minimax_m3_vl_text(c: Config) -> Raw:
    """Routed experts and a shared one; in some layers an index with few heads selects blocks of keys."""
    raw = c.stack()
    n, d = raw["n_layers"], raw["d_model"]
    attention = c.heads(raw, kv=4, d_head=128, qk_norm="head")
    table = c.table("sparse_attention_config") or Config({}, c.model_type, parent=c)
    c.data = {**c.data, **{new: table.data[old] for old, new in _INDEX.items() if old in table}}
    index_heads, width = c.size("index_n_heads", default=4), c.size("index_head_dim", default=128)
    frequent = table.items("sparse_attention_freq", of=any_of(0, 1), length=n, default=[0] * n)
    types = c.layer_types(n, [_SELECTED if listed else GLOBAL for listed in frequent], (_SELECTED, GLOBAL))
    sparse = c.items("moe_layer_freq", of=any_of(0, 1), length=n, default=[1] * n)
    names = ["sparse" if listed else "dense" for listed in sparse]
    channels = c.items("mlp_layer_types", of=any_of("dense", "sparse"), length=n, default=names)
    first = sparse.index(1) if 1 in sparse else n
    c.require_value(first, "first_k_dense_replace", why="moe_layer_freq determines it")
    c.ignore("num_nextn_predict_layers")  # the number of runs of its modules
    note_mtp_modules(c)
    activation: Raw = {"activation": "clamped_silu"}
    c.drop("hidden_act")  # its class does not read it
    mixed = c.experts(("num_local_experts", "num_experts"), TOP, ("intermediate_size",), 128, 4) | activation
    mixed |= {"d_ff_shared": c.size("shared_intermediate_size", default=3072), "n_shared": 1, "scoring": "sigmoid"}
    mixed["scale"] = c.real("routed_scaling_factor", default=2.0)
    dense = {"d_ff": c.size("dense_intermediate_size", default=12288), "gated": True} | activation
    index = [
        matrix("q", d, index_heads * width),
        matrix("k", d, width),
        norm_leaf("q", width, "rms_norm", groups=index_heads),
        norm_leaf("k", width, "rms_norm"),
        leaf("scores", "index", index_heads, width),
    ]
    leaves = of_kind("attention", index)
    if _SELECTED in types:
        c.note("masked FLOPs of layers with selected blocks count all keys before a query")
    rotary_dims = c.size("rotary_dim", default=64)
    raw |= {"attention": attention, "experts": mixed, "feed_forward": dense, "pieces": {"leaves": leaves}}
    raw |= {"norm": c.rms(offset=True), "head": c.lm_head(tied=False)}
    positions = c.rotary(attention["d_head"], 5e6)
    raw["positions"] = positions | ({"rotary_dims": rotary_dims} if rotary_dims < attention["d_head"] else {})
    kinds = [f"{'selected' if kind == _SELECTED else 'full'}-{ffn}" for kind, ffn in zip(types, channels, strict=True)]
    tables: dict[str, Raw] = {}
    for kind in set(kinds):
        parts = ["pieces"] * kind.startswith("selected") + ["attention"]
        parts.append("experts" if kind.endswith("sparse") else "feed_forward")
        norm = {"norm": {"without": ["pieces"]}} if "pieces" in parts else {}
        tables[kind] = {"parts": parts} | norm
    return with_kinds(raw, (kinds, tables))


_SELECTED = "minimax_m3_sparse"


# Keys of `sparse_attention_config`, with transformers' names for them.
_INDEX = {
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}
