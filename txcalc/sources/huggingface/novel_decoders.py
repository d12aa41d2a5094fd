"""Decoders of 2026 with attention that no part describes: it is listed leaf by leaf, beside their other parts."""

from __future__ import annotations

from typing import Any

from txcalc.sources.huggingface.config import GLOBAL, LOCAL, NAMES, ROUTED, TOP, WIDTH, Config, Raw, layered
from txcalc.sources.huggingface.keys import REQUIRED, any_of, number, without
from txcalc.sources.huggingface.leaf_list import Leaves, leaf, leaf_stack, norm_leaf
from txcalc.sources.spec import real

NEAR = "hybrid_sliding"


def _matrix(name: str, d_in: int, d_out: int, bias: bool = False, **more: object) -> Raw:
    return leaf(name, "linear", d_in, d_out, **{"bias": bias, "kind": "attention", **more})


def _core(attention: Raw, window: int | None) -> Raw:
    """Softmax attention to all keys, or to the latest."""
    n, width = attention["n_heads"], attention["d_head"]
    sizes = (n, width, width) if window is None else (n, width, width, window)
    form = "causal" if window is None else "window"
    return leaf("core", form, *sizes, groups=n // attention["n_kv_heads"], bias=False, kind="attention")


def zaya(c: Config) -> Raw:
    """Queries and keys through two short convolutions, half of the values a token late; a router of several layers,
    which reads the former layer's, and an expert that does nothing."""
    raw = c.stack()
    d, n = raw["d_model"], raw["n_layers"]
    attention = c.heads(raw, kv=2, d_head=128)
    width, several, groups = attention["d_head"], attention["n_heads"], attention["n_kv_heads"]
    bias = c.flag("attention_bias", default=False)
    taps = c.size("cca_time0", default=2), c.size("cca_time1", default=2)
    inner, window = c.size("router_hidden_size", default=256), c.size("sliding_window", default=None, null=None)
    mixed = c.experts(("num_experts",), TOP, WIDTH, 16, 1) | {"router": False}
    types = c.items("layer_types", of=any_of("hybrid", NEAR), length=n, default=None) or ["hybrid"] * n
    c.check_window(window, NEAR in types)
    if (groups * width) % 2:
        c.fault("head_dim", width, "a width of all keys that is even, for half of the values is late")
    places = {"rotary_dims": width} | c.rotary(width, 5e6, 0.5, kind="hybrid")
    q, kv = several * width, groups * width
    mixing = q + kv

    def scaled(name: str) -> Leaves:
        forms = (
            ("branch_bias", "shift"),
            ("branch_scale", "scale"),
            ("residual_bias", "shift"),
            ("residual_scale", "scale"),
        )
        return [leaf(f"{name}_{part}", form, d) for part, form in forms]

    def layer(kind: str, first: bool) -> Leaves:
        before = {"at": [1, taps[1] - 1, 1]}
        leaves = [norm_leaf("attention", d, "rms_norm"), _matrix("q", d, q, bias), _matrix("k", d, kv, bias)]
        leaves += [_matrix("v", d, kv // 2 or 1, bias), _matrix("v_late", d, kv // 2 or 1, bias)]
        leaves += [
            leaf("near", "convolution", mixing, mixing, taps[0], 1, groups=mixing, kind="attention", **before),
            leaf("across", "convolution", mixing, mixing, taps[1], 1, groups=several + groups, kind="attention"),
            leaf("kept", "state", max(1, mixing * sum(taps) + kv // 2)),
            leaf("key_scale", "held", groups, kind="norm"),
            leaf("rotary", "rotary", several + groups, places["rotary_dims"]),
            _core(attention, window if kind == NEAR else None),
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
    c.note("counted are tokens that pass an expert: those of which the router takes none cost less")
    c.note("of a text's first token transformers multiplies a row of zeros for late values, which is not counted")
    names = [f"{'near' if kind == NEAR else 'far'}{'-first' if not i else ''}" for i, kind in enumerate(types)]
    tables: dict[str, Raw] = {
        name: {"parts": ["pieces", "experts"], "pieces": {"leaves": layer(kind, not i)}}
        for i, (name, kind) in enumerate(zip(names, types, strict=True))
    }
    return layered(raw, (names, tables))


def muse_spark_text(c: Config) -> Raw:
    """Gates on what attention reads and on what every branch adds; experts between two norms, on a latent."""
    raw = c.stack()
    d, n = raw["d_model"], raw["n_layers"]
    attention = c.heads(raw, kv=16, d_head=64, whole=True)
    width, several, groups = attention["d_head"], attention["n_heads"], attention["n_kv_heads"]
    bias, window = c.flag("attention_bias", default=False), c.size("sliding_window", default=2048, null=None)
    mixed = c.experts(NAMES[::-1], TOP, WIDTH, 256, 8) | {"scoring": "sigmoid"}
    mixed["latent"] = latent = c.size("moe_hidden_size", default=4096)
    back = [(n - 1 - i) % 4 for i in range(n)]
    bases = c.items("layer_rope_theta", of=real, length=n, default=None) or [float(distance > 0) for distance in back]
    types = c.layer_types(n, [LOCAL if distance else GLOBAL for distance in back])
    c.check_window(window, LOCAL in types)
    c.rotary(width, 5e5)
    raw |= {
        "experts": mixed,
        "norm": c.rms(eps=1e-5, without=["pieces"]),
        "positions": {"form": "none"},
        "head": c.lm_head(tied=False),
    }
    channels, tables = c.typed_layers(raw, 0)
    q, kv = several * width, groups * width

    def layer(kind: str, base: float, sparse: bool) -> Leaves:
        leaves = [norm_leaf("attention", d, "rms_norm"), _matrix("q", d, q, bias), _matrix("k", d, kv, bias)]
        leaves += [
            _matrix("v", d, kv, bias),
            _matrix("gate", d, q),
            leaf("gate_sigmoid", "sigmoid", q, kind="attention"),
        ]
        leaves += [leaf("rotary", "rotary", several + groups, width)] if base else []
        leaves += [_core(attention, window if kind == LOCAL else None), _matrix("o", q, d, bias)]
        leaves += [leaf("attention_gate", "scale", d), leaf("attention_sum", "sum", d)]
        if sparse:
            leaves += [
                norm_leaf("experts", latent, "rms_norm"),
                norm_leaf("each_expert", latent, "rms_norm", runs=mixed["top_k"]),
            ]
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
    return layered(raw, (names, rows))


def openai_privacy_filter(c: Config) -> Raw:
    """gpt-oss with a window in every layer that looks both ways, and a name for every token."""
    raw = c.stack()
    attention = c.heads(raw, kv=2, d_head=64, attention_bias=True, sinks=True)
    mixed = c.experts(NAMES[::-1], TOP, ("intermediate_size",), 128, 4, bias=True, router_bias=True)
    mixed |= {"activation": "clamped_silu", "scoring": "softmax_after"}
    c.note("its window, which looks both ways, is a mask: counted are all pairs")
    form = c.head_of("none", "token")
    head = c.classifier("token", 33) if form == "token" else {"form": "none"}
    return c.decoder(raw, attention, mixed=mixed, theta=150000.0, head=head) | {"kind": "encoder"}


def hrm_text(c: Config) -> Raw:
    """Two stacks in turn, of weights that all cycles share: the low one reads the sum of both streams `L_cycles` times,
    then the high one once, and all of it `H_cycles` times. Norms have no weights, attention a gate."""
    raw = c.stack()
    d = raw["d_model"]
    low, high = c.size("L_cycles", default=3), c.size("H_cycles", default=2)
    n = c.size("num_layers_per_stack", default=None, null=None)
    if n is None:  # as a file says it that transformers has not written
        n = raw["n_layers"]
    elif raw["n_layers"] != n * high * (low + 1):
        c.note("num_hidden_layers has no effect: num_layers_per_stack says how many there are")
    heads, width = c.size("num_attention_heads"), c.size("head_dim", default=128)
    c.divides(heads, d, "num_attention_heads", "hidden_size")
    c.rotary(width)
    c.require_value(heads, "num_key_value_heads", why="transformers' class has as many as query heads")
    q, bias, ffn_bias = heads * width, c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    ff, act = c.size("intermediate_size"), c.activation("hidden_act", default="silu")
    if c.flag("prefix_lm", default=True):
        c.note("prompts are attended to both ways: masked attention is counted as if it were causal")
    c.note(f"its weights run {high * low:,} and {high:,} times; training is counted with gradients of all cycles")

    def layer() -> Leaves:
        leaves = [norm_leaf("attention", d, "rms_again")]
        leaves += [_matrix(name, d, q, bias) for name in ("q", "k", "v", "gate")]
        leaves += [leaf("gate_sigmoid", "sigmoid", q, kind="attention")]
        leaves += [leaf("rotary", "rotary", 2 * heads, width)]
        leaves += [leaf("core", "causal", heads, width, width, bias=False, kind="attention"), _matrix("o", q, d, bias)]
        leaves += [leaf("attention_sum", "sum", d), norm_leaf("fed", d, "rms_again")]
        leaves += [_matrix(name, d, ff, ffn_bias, kind="feed_forward") for name in ("gate_up", "up")]
        leaves.append(leaf("activation", act, ff, kind="feed_forward"))
        return [*leaves, _matrix("down", ff, d, ffn_bias, kind="feed_forward"), leaf("fed_sum", "sum", d)]

    around = [leaf("low_start", "held", d)]
    runs = {"low": high * low, "high": high}
    for name, times in runs.items():
        around += [leaf(f"{name}_input", "sum", d, runs=times)]
        around += [norm_leaf(name, d, "rms_again", runs=times)]
    kinds = {name: [item | {"runs": times} for item in layer()] for name, times in runs.items()}
    raw |= {"n_layers": 2 * n, "around": around, "head": c.lm_head(tied=False)}
    return leaf_stack(raw, kinds, ["low"] * n + ["high"] * n)


def inkling_text(c: Config) -> Raw:
    """Short convolutions behind keys, values and every branch; scores that a bank of distances shifts, mixed by what a
    matrix makes of each token; a router that weighs the shared experts, too."""
    raw = c.stack()
    d, n = raw["d_model"], raw["n_layers"]
    window, inner = c.size("sliding_window_size", "sliding_window", default=512), c.size("d_rel", default=16)
    spans = {"near": window, "far": c.size("rel_extent", default=1024)}
    taps = c.size("conv_kernel_size", "sconv_kernel_size", default=4)
    shared = c.size("n_shared_experts", default=2)
    local = c.items("local_layer_ids", of=number, length=None, default=None)
    usual = ["hybrid_sliding" if (i in local if local is not None else (i + 1) % 6) else "hybrid" for i in range(n)]
    types = c.items("layer_types", of=any_of("hybrid", "hybrid_sliding"), length=n, default=usual) or usual
    width, dense = "moe_intermediate_size", "intermediate_size"
    if c.size("dense_intermediate_size", default=None, null=None):  # the key of the dense ones is that of experts then
        c.ignore(width)
        width, dense = dense, "dense_intermediate_size"
    mixed = c.experts(ROUTED[:2], TOP, (width,), 256, 6) | {"router": False, "n_shared": shared}
    for name in {"sliding_window", "sconv_kernel_size"} & c.data.keys():
        c.size(name)  # null is no number, of an other name neither
    for name in {"shared_expert_sink", "chain_hidden_post_norm", "mtp_hidden_states_first"} & c.data.keys():
        c.flag(name)  # no size follows from them
    c.ignore("route_scale", "logits_mup_width_multiplier", "unpadded_vocab_size", dense)
    c.note_mtp_layers()
    first = c.count("dense_mlp_idx", default=0)
    names = ["dense" if i < first else "sparse" for i in range(n)]
    channels = c.items("mlp_layer_types", of=any_of("dense", "sparse"), length=n, default=names) or names
    if "dense" in channels:
        raw["feed_forward"] = c.gated_mlp(dense)

    def heads(prefix: str, several: object, groups: int) -> tuple[int, int, int]:
        n_heads = c.size(f"{prefix}num_attention_heads", default=several)
        kv = c.size(f"{prefix}num_key_value_heads", default=groups)
        c.divides(kv, n_heads, f"{prefix}num_key_value_heads", f"{prefix}num_attention_heads")
        return n_heads, kv, c.size(f"{prefix}head_dim", default=128)

    def mixed_in(name: str, width: int) -> Leaves:
        conv = leaf(f"{name}_conv", "convolution", width, width, taps, 1, groups=width, bias=False, kind="attention")
        return [conv, leaf(f"{name}_conv_sum", "sum", width)]

    sizes = {"near": heads("swa_", 64, 16), "far": heads("", REQUIRED, 8)}

    def layer(kind: str, part: str) -> Leaves:
        several, groups, width = sizes[kind]
        q, kv = several * width, groups * width
        attention = {"n_heads": several, "n_kv_heads": groups, "d_head": width}
        leaves = [norm_leaf("attention", d, "rms_norm"), _matrix("q", d, q), _matrix("k", d, kv), _matrix("v", d, kv)]
        leaves += [*mixed_in("k", kv), *mixed_in("v", kv), _matrix("r", d, several * inner)]
        leaves += [norm_leaf("q", width, "rms_norm", runs=several), norm_leaf("k", width, "rms_norm", runs=groups)]
        leaves += [_matrix("distances", inner, spans[kind], runs=several)]
        leaves += [_core(attention, window if kind == "near" else None), _matrix("o", q, d)]
        leaves += [*mixed_in("attention", d), leaf("attention_sum", "sum", d), *mixed_in("fed", d)]
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
    kinds = ["near" if kind == "hybrid_sliding" else "far" for kind in types]
    tables: dict[str, Raw] = {
        f"{kind}-{part}": {
            "parts": ["pieces", "experts" if part == "sparse" else "feed_forward"],
            "pieces": {"leaves": layer(kind, part)},
        }
        for kind, part in zip(kinds, channels, strict=True)
    }
    return layered(raw, ([f"{kind}-{part}" for kind, part in zip(kinds, channels, strict=True)], tables))


def kimi_k3(c: Config, raw: Raw) -> Raw:
    """Of a Kimi Linear: before and within every layer the stream is a mean of itself and of what blocks of layers gave,
    weighed by a vector of that place; a norm of what experts make on their latent."""
    d, n = raw["d_model"], raw["n_layers"]
    block, latent = c.size("attn_res_block_size"), c.size("routed_expert_hidden_size")
    c.require_value(True, "latent_moe_use_norm", "mla_use_output_gate", why="the published code is used with both")
    c.note("the gates of its feed-forwards (situ) are counted as silu among the other FLOPs")

    def mean(name: str, several: int) -> Leaves:
        """Of `several` vectors a token: blocks that are done, and the stream."""
        if several < 2:
            return [leaf(f"{name}_held", "held", 2 * d)]
        times: Raw = {"runs": several}
        leaves = [norm_leaf(name, d, "rms_norm", **times), _matrix(f"{name}_query", d, 1, kind="other", **times)]
        return [*leaves, leaf(f"{name}_mix", "product", 1, several, d)]

    order, tables = [], dict[str, Raw]()
    kinds = raw["layer"]
    pattern: Any = raw.get("pattern", kinds)
    cycle = [item.rpartition("*") for item in pattern]
    names = [name for times, _, name in cycle for _ in range(int(times or 1))]
    for i, name in enumerate(names[i % len(names)] for i in range(n)):
        before = -(-i // block)
        inside = before + (i % block == 0)
        leaves = mean("attention_blocks", before + 1) + mean("fed_blocks", inside + 1)
        if "experts" in kinds[name]["parts"]:
            leaves.append(norm_leaf("experts", latent, "rms_norm"))
        order.append(f"{name}-{before}-{inside}")
        tables[order[-1]] = {**kinds[name], "parts": ["pieces", *kinds[name]["parts"]], "pieces": {"leaves": leaves}}
    raw["norm"]["without"] = ["pieces"]
    around = mean("output_blocks", -(-n // block) + 1)
    if "experts" in raw:
        raw["experts"] |= {"latent": latent, "correction": True}
    return layered(without(raw, "layer", "pattern") | {"around": around},
                   (order, tables))  # fmt: skip
