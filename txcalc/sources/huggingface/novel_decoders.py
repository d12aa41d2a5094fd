"""Decoders with layers that no part describes, listed leaf by leaf."""

from __future__ import annotations

from typing import Any

from txcalc.sources.huggingface.config import GLOBAL, LOCAL, NAMES, ROUTED, TOP, WIDTH, Config, Raw, with_kinds
from txcalc.sources.huggingface.keys import REQUIRED, any_of, number, without
from txcalc.sources.huggingface.leaf_list import Leaves, leaf, norm_leaf
from txcalc.sources.spec import real

SLIDING = "hybrid_sliding"


def _matrix(name: str, d_in: int, d_out: int, bias: bool = False, **fields: object) -> Raw:
    return leaf(name, "linear", d_in, d_out, **{"bias": bias, "kind": "attention", **fields})


def _core(attention: Raw, window: int | None) -> Raw:
    """Softmax attention to all keys, or to the last `window`."""
    n, width = attention["n_heads"], attention["d_head"]
    sizes = (n, width, width) if window is None else (n, width, width, window)
    form = "causal" if window is None else "window"
    return leaf("core", form, *sizes, groups=n // attention["n_kv_heads"], bias=False, kind="attention")


def zaya(c: Config) -> Raw:
    """Two short convolutions on queries and keys; half of the values come from the previous token; a router with
    several layers that also reads the previous layer's router; an identity expert."""
    raw = c.stack()
    d, n = raw["d_model"], raw["n_layers"]
    attention = c.heads(raw, kv=2, d_head=128)
    width, n_heads, n_kv_heads = attention["d_head"], attention["n_heads"], attention["n_kv_heads"]
    bias = c.flag("attention_bias", default=False)
    taps = c.size("cca_time0", default=2), c.size("cca_time1", default=2)
    inner, window = c.size("router_hidden_size", default=256), c.size("sliding_window", default=None, null=None)
    mixed = c.experts(("num_experts",), TOP, WIDTH, 16, 1) | {"router": False}
    types = c.items("layer_types", of=any_of("hybrid", SLIDING), length=n, default=None) or ["hybrid"] * n
    c.check_window(window, SLIDING in types)
    if (n_kv_heads * width) % 2:
        c.fault("head_dim", width, "an even width of all keys: half of the values come from the previous token")
    rotary_dims = c.rotary(width, 5e6, 0.5, kind="hybrid").get("rotary_dims") or width
    q, kv = n_heads * width, n_kv_heads * width
    qk = q + kv

    def scaled(name: str) -> Leaves:
        forms = (
            ("branch_bias", "shift"),
            ("branch_scale", "scale"),
            ("residual_bias", "shift"),
            ("residual_scale", "scale"),
        )
        return [leaf(f"{name}_{part}", form, d) for part, form in forms]

    def layer(kind: str, first: bool) -> Leaves:
        padded = {"at": [1, taps[1] - 1, 1]}
        leaves = [norm_leaf("attention", d, "rms_norm"), _matrix("q", d, q, bias), _matrix("k", d, kv, bias)]
        leaves += [_matrix("v", d, kv // 2 or 1, bias), _matrix("v_late", d, kv // 2 or 1, bias)]
        leaves += [
            leaf("near", "convolution", qk, qk, taps[0], 1, groups=qk, kind="attention", **padded),
            leaf("across", "convolution", qk, qk, taps[1], 1, groups=n_heads + n_kv_heads, kind="attention"),
            leaf("kept", "state", max(1, qk * sum(taps) + kv // 2)),
            leaf("key_scale", "held", n_kv_heads, kind="norm"),
            leaf("rotary", "rotary", n_heads + n_kv_heads, rotary_dims),
            _core(attention, window if kind == SLIDING else None),
            _matrix("o", q, d, bias),
            *scaled("attention"),
            leaf("attention_sum", "sum", d),
        ]
        router = [_matrix("router_down", d, inner, True)]
        router += [] if first else [leaf("router_former", "scale", inner)]
        router += [norm_leaf("router", inner, "rms_norm"), _matrix("router_up1", inner, inner, True)]
        router += [leaf("router_gelu1", "gelu", inner), _matrix("router_up2", inner, inner, True)]
        router += [leaf("router_gelu2", "gelu", inner), _matrix("router", inner, mixed["n_experts"] + 1)]
        return leaves + [item | {"kind": "router"} for item in router] + scaled("experts")

    raw |= {
        "experts": mixed,
        "norm": c.rms(eps=1e-5, without=["pieces"]),
        "positions": {"form": "none"},
        "around": [leaf("input_shift", "shift", d), leaf("input_scale", "scale", d)],
        "head": c.lm_head(tied=True, bias=c.flag("lm_head_bias", default=False)),
    }
    c.note("every token counts with an expert; those routed to the identity expert cost less")
    c.note("FLOPs do not count the row of zeros that transformers multiplies in place of a token before the first")
    names = [f"{'near' if kind == SLIDING else 'far'}{'-first' if not i else ''}" for i, kind in enumerate(types)]
    tables: dict[str, Raw] = {
        name: {"parts": ["pieces", "experts"], "pieces": {"leaves": layer(kind, not i)}}
        for i, (name, kind) in enumerate(zip(names, types, strict=True))
    }
    return with_kinds(raw, (names, tables))


def muse_spark_text(c: Config) -> Raw:
    """Gates on the output of attention and of every branch; experts on a latent, between two norms."""
    raw = c.stack()
    d, n = raw["d_model"], raw["n_layers"]
    attention = c.heads(raw, kv=16, d_head=64, whole=True)
    width, n_heads, n_kv_heads = attention["d_head"], attention["n_heads"], attention["n_kv_heads"]
    bias, window = c.flag("attention_bias", default=False), c.size("sliding_window", default=2048, null=None)
    mixed = c.experts(NAMES[::-1], TOP, WIDTH, 256, 8) | {"scoring": "sigmoid"}
    mixed["latent"] = latent = c.size("moe_hidden_size", default=4096)
    windowed = [(n - 1 - i) % 4 != 0 for i in range(n)]
    bases = c.items("layer_rope_theta", of=real, length=n, default=None) or [float(on) for on in windowed]
    types = c.layer_types(n, [LOCAL if on else GLOBAL for on in windowed])
    c.check_window(window, LOCAL in types)
    c.rotary(width, 5e5)
    raw |= {
        "experts": mixed,
        "norm": c.rms(eps=1e-5, without=["pieces"]),
        "positions": {"form": "none"},
        "head": c.lm_head(tied=False),
    }
    channels, tables = c.typed_layers(raw, 0)
    q, kv = n_heads * width, n_kv_heads * width

    def layer(kind: str, base: float, sparse: bool) -> Leaves:
        leaves = [norm_leaf("attention", d, "rms_norm"), _matrix("q", d, q, bias), _matrix("k", d, kv, bias)]
        leaves += [_matrix("v", d, kv, bias), _matrix("gate", d, q)]
        leaves += [leaf("gate_sigmoid", "sigmoid", q, kind="attention")]
        leaves += [leaf("rotary", "rotary", n_heads + n_kv_heads, width)] if base else []
        leaves += [_core(attention, window if kind == LOCAL else None), _matrix("o", q, d, bias)]
        leaves += [leaf("attention_gate", "scale", d), leaf("attention_sum", "sum", d)]
        if sparse:
            leaves.append(norm_leaf("experts", latent, "rms_norm"))
            leaves.append(norm_leaf("each_expert", latent, "rms_norm", runs=mixed["top_k"]))
        return [*leaves, norm_leaf("fed", d, "rms_norm"), leaf("fed_gate", "scale", d)]

    names = [
        f"{kind}-{'turned' if base else 'still'}-{part}"
        for kind, base, part in zip(types, bases, channels, strict=True)
    ]
    rows = {
        name: {
            "parts": ["pieces", "experts" if "experts" in tables[part]["parts"] else "feed_forward"],
            "pieces": {"leaves": layer(kind, base, "experts" in tables[part]["parts"])},
        }
        for name, kind, base, part in zip(names, types, bases, channels, strict=True)
    }
    return with_kinds(raw, (names, rows))


def openai_privacy_filter(c: Config) -> Raw:
    """gpt-oss as an encoder with a bidirectional window in every layer; it classifies tokens."""
    raw = c.stack()
    attention = c.heads(raw, kv=2, d_head=64, attention_bias=True, sinks=True)
    mixed = c.experts(NAMES[::-1], TOP, ("intermediate_size",), 128, 4, bias=True, router_bias=True)
    mixed |= {"activation": "clamped_silu", "scoring": "softmax_after"}
    c.note("its bidirectional window is a mask: FLOPs count all pairs")
    form = c.head_of("none", "token")
    head = c.classifier("token", 33) if form == "token" else {"form": "none"}
    return c.decoder(raw, attention, mixed=mixed, theta=150000.0, head=head) | {"kind": "encoder"}


def inkling_text(c: Config) -> Raw:
    """Short convolutions after keys, values and every branch; relative position biases, a token-dependent combination
    of a learned bank; a router that also weighs the shared experts."""
    raw = c.stack()
    d, n = raw["d_model"], raw["n_layers"]
    window, inner = c.size("sliding_window_size", "sliding_window", default=512), c.size("d_rel", default=16)
    spans = {"near": window, "far": c.size("rel_extent", default=1024)}
    taps = c.size("conv_kernel_size", "sconv_kernel_size", default=4)
    shared = c.size("n_shared_experts", default=2)
    local = c.items("local_layer_ids", of=number, length=None, default=None)
    default = [SLIDING if (i in local if local is not None else (i + 1) % 6) else "hybrid" for i in range(n)]
    types = c.items("layer_types", of=any_of("hybrid", SLIDING), length=n, default=default) or default
    width, dense = "moe_intermediate_size", "intermediate_size"
    if c.size("dense_intermediate_size", default=None, null=None):  # then intermediate_size is the width of experts
        c.ignore(width)
        width, dense = dense, "dense_intermediate_size"
    mixed = c.experts(ROUTED[:2], TOP, (width,), 256, 6) | {"router": False, "n_shared": shared}
    for name in {"sliding_window", "sconv_kernel_size"} & c.data.keys():
        c.size(name)  # the class refuses null
    for name in {"shared_expert_sink", "chain_hidden_post_norm", "mtp_hidden_states_first"} & c.data.keys():
        c.flag(name)  # changes no size
    c.ignore("route_scale", "logits_mup_width_multiplier", "unpadded_vocab_size", dense)
    c.note_mtp_layers()
    first = c.count("dense_mlp_idx", default=0)
    names = ["dense" if i < first else "sparse" for i in range(n)]
    channels = c.items("mlp_layer_types", of=any_of("dense", "sparse"), length=n, default=names) or names
    if "dense" in channels:
        raw["feed_forward"] = c.gated_mlp(dense)

    def heads(prefix: str, n_heads: object, n_kv_heads: int) -> Raw:
        queries = c.size(f"{prefix}num_attention_heads", default=n_heads)
        groups = c.size(f"{prefix}num_key_value_heads", default=n_kv_heads)
        c.divides(groups, queries, f"{prefix}num_key_value_heads", f"{prefix}num_attention_heads")
        return {"n_heads": queries, "n_kv_heads": groups, "d_head": c.size(f"{prefix}head_dim", default=128)}

    def convolution(name: str, width: int) -> Leaves:
        conv = leaf(f"{name}_conv", "convolution", width, width, taps, 1, groups=width, bias=False, kind="attention")
        return [conv, leaf(f"{name}_conv_sum", "sum", width)]

    attentions = {"near": heads("swa_", 64, 16), "far": heads("", REQUIRED, 8)}

    def layer(kind: str, part: str) -> Leaves:
        n_heads, n_kv_heads, width = attentions[kind].values()
        q, kv = n_heads * width, n_kv_heads * width
        leaves = [norm_leaf("attention", d, "rms_norm"), _matrix("q", d, q), _matrix("k", d, kv), _matrix("v", d, kv)]
        leaves += [*convolution("k", kv), *convolution("v", kv), _matrix("r", d, n_heads * inner)]
        leaves += [norm_leaf("q", width, "rms_norm", runs=n_heads), norm_leaf("k", width, "rms_norm", runs=n_kv_heads)]
        leaves += [_matrix("distances", inner, spans[kind], runs=n_heads)]
        leaves += [_core(attentions[kind], window if kind == "near" else None), _matrix("o", q, d)]
        leaves += [*convolution("attention", d), leaf("attention_sum", "sum", d), *convolution("fed", d)]
        leaves += [leaf("kept", "state", taps * (2 * kv + 2 * d)), leaf("fed_scale", "held", 1)]
        return leaves + ([_matrix("router", d, mixed["n_experts"] + shared, kind="router")] if part == "sparse" else [])

    head = c.lm_head(tied=False)
    if head.get("tied"):
        c.note("tie_word_embeddings has no effect: transformers' class never ties its head")
        head["tied"] = False
    raw |= {
        "experts": mixed,
        "norm": c.rms(without=["pieces"]),
        "positions": {"form": "none"},
        "around": [norm_leaf("embedding", d, "rms_norm")],
        "head": head,
    }
    kinds = ["near" if kind == SLIDING else "far" for kind in types]
    tables: dict[str, Raw] = {
        f"{kind}-{part}": {
            "parts": ["pieces", "experts" if part == "sparse" else "feed_forward"],
            "pieces": {"leaves": layer(kind, part)},
        }
        for kind, part in zip(kinds, channels, strict=True)
    }
    return with_kinds(raw, ([f"{kind}-{part}" for kind, part in zip(kinds, channels, strict=True)], tables))


def kimi_k3(c: Config, raw: Raw) -> Raw:
    """Kimi Linear with attention residuals: the input of every branch is a weighted mean, by learned queries, of the
    residual stream and of the outputs of earlier blocks of layers; a norm of the latent that the experts write."""
    d, n = raw["d_model"], raw["n_layers"]
    block, latent = c.size("attn_res_block_size"), c.size("routed_expert_hidden_size")
    c.require_value(True, "latent_moe_use_norm", "mla_use_output_gate", why="the published model has this value")
    c.note("other FLOPs count the gates of its feed-forwards (situ) as silu")

    def mean(name: str, vectors: int) -> Leaves:
        """The mean of `vectors` per token: the outputs of finished blocks, and the residual stream."""
        if vectors < 2:
            return [leaf(f"{name}_held", "held", 2 * d)]
        runs: Raw = {"runs": vectors}
        leaves = [norm_leaf(name, d, "rms_norm", **runs), _matrix(f"{name}_query", d, 1, kind="other", **runs)]
        return [*leaves, leaf(f"{name}_mix", "product", 1, vectors, d)]

    order, tables = [], dict[str, Raw]()
    kinds = raw["layer"]
    pattern: Any = raw.get("pattern", kinds)
    cycle = [item.rpartition("*") for item in pattern]
    names = [name for times, _, name in cycle for _ in range(int(times or 1))]
    for i, name in enumerate(names[i % len(names)] for i in range(n)):
        finished = -(-i // block)
        inside = finished + (i % block == 0)
        leaves = mean("attention_blocks", finished + 1) + mean("fed_blocks", inside + 1)
        if "experts" in kinds[name]["parts"]:
            leaves.append(norm_leaf("experts", latent, "rms_norm"))
        order.append(f"{name}-{finished}-{inside}")
        tables[order[-1]] = {**kinds[name], "parts": ["pieces", *kinds[name]["parts"]], "pieces": {"leaves": leaves}}
    raw["norm"]["without"] = ["pieces"]
    around = mean("output_blocks", -(-n // block) + 1)
    if "experts" in raw:
        raw["experts"] |= {"latent": latent, "correction": True}
    return with_kinds(without(raw, "layer", "pattern") | {"around": around}, (order, tables))
