"""Decoders with layers that no part describes: such layers are listed leaf by leaf. The Byte Latent
Transformer (arXiv 2412.09871) has layers over bytes, over patches of them, and over bytes again."""

from __future__ import annotations

from typing import Any

from txcalc.sources.huggingface.config import GLOBAL, LOCAL, NAMES, ROUTED, TOP, WIDTH, Config, Raw, layered
from txcalc.sources.huggingface.keys import REQUIRED, any_of, number, without
from txcalc.sources.huggingface.leaf_list import Leaves, ffn_leaves, leaf, leaf_stack, matrix, norm_leaf, of_kind
from txcalc.sources.spec import real, size

NEAR = "hybrid_sliding"


def _matrix(name: str, d_in: int, d_out: int, bias: bool = False, **fields: object) -> Raw:
    return leaf(name, "linear", d_in, d_out, **{"bias": bias, "kind": "attention", **fields})


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


# By part its model type, and the width, layers, heads and width of feed-forward (0: 8/3 of its own) of its class.
PARTS = {
    "patcher": ("blt_patcher", 768, 14, 12, 2048),
    "encoder": ("blt_local_encoder", 1024, 1, 16, 0),
    "global": ("blt_global_transformer", 2048, 25, 16, 5632),
    "decoder": ("blt_local_decoder", 1024, 9, 16, 2816),
}


def blt(c: Config) -> Raw:
    """Bytes, with a table of hashes of those before each; a small model whose entropy says where a patch begins; and
    attention from patches to bytes before the layers over patches, from bytes to patches behind them."""
    form = c.head_of("lm", "none")
    parts = {name: _Part(c, name) for name in PARTS}
    e, g, d, k = parts["encoder"], parts["global"], parts["decoder"], c.size("cross_attn_k", default=2)
    patches = _patches(c)
    wide, here = {"at": [*patches, k]}, {"at": patches}
    window = c.size("local_attention_window_len", default=512, null=None)
    groups = c.items("encoder_hash_byte_group_size", of=size, length=None, default=[])
    hashes = (len(groups) or 6) * c.size("encoder_hash_byte_group_nb_functions", default=1)
    rows = hashes * c.size("encoder_hash_byte_group_vocab", default=500002)
    if d.width != e.width:
        d.c.fault("hidden_size", d.width, f"the encoder's {e.width:,}", "its layers read what the encoder's give")
    for part in (e, d):
        part.c.require_size("cross_attn_k", k, 2, "patches are as many vectors everywhere")
        part.c.ignore("hidden_size_global")
    d.c.ignore("vocab_size")
    d.c.require_size("hidden_size_global", g.width, 2048, "what the layers over patches give")
    vocab = {config: config.size("vocab_size", default=260) for config in (c, e.c, parts["patcher"].c)}
    around = [leaf("bytes", "table", vocab[e.c], e.width), leaf("hashes", "table", rows, e.width, bias=True)]
    around[1]["runs"] = hashes
    around = of_kind("embedding", around)
    around += e.layers(window)
    times = e.number if e.c.flag("cross_attn_all_layers", default=False) else 1
    around.append(matrix("to_patches", e.width, e.width * k, kind="embedding", runs=times, **here))
    around += e.reads(times, wide, {"keys": [1, 0, 1]}, {})
    if e.width * k != g.width:
        around.append(matrix("to_global", e.width * k, g.width, kind="embedding", **here))
    around.append(matrix("from_patches", g.width, d.width * k, kind="embedding", **here))
    times = d.number if d.c.flag("cross_attn_all_layers", default=True) else 1
    around += d.reads(times, {}, {"keys": wide["at"]}, wide)
    around += [*d.layers(window), norm_leaf("last", d.width, "rms_norm")]
    if c.flag("patch_in_forward", default=True, null=False):
        p = parts["patcher"]
        around.append(leaf("patcher_bytes", "table", vocab[p.c], p.width, kind="embedding"))
        around += p.layers(p.c.size("sliding_window", default=512, null=None))
        around.append(norm_leaf("patcher", p.width, "rms_norm"))
        around.append(matrix("patcher_head", p.width, vocab[p.c], kind="head"))
    tied = c.flag("tie_word_embeddings", default=False)
    if form == "lm":
        if tied and vocab[c] != vocab[e.c]:
            c.fault("vocab_size", vocab[c], f"the encoder's {vocab[e.c]:,}", "the head is its table")
        around.append(leaf("head", ("linear", "tied")[tied], d.width, vocab[c], bias=False, kind="head"))
    c.note("a text is read whole: how bytes are written one by one is not counted; attention between bytes and patches "
           "is counted over all of both, before its mask")  # fmt: skip
    raw: Raw = {"kind": "encoder", "d_model": g.width, "n_layers": g.number, "around": around}
    return leaf_stack(raw | {"head": {"form": "none"}}, {"layer": g.layer(None, here)}, [])


def _patches(c: Config) -> list[int]:
    """Positions of patches for T bytes, as `at` of a piece: ⌈(T − 1)/p⌉ of p bytes each behind one of the first."""
    length = c.size("patch_size", default=4, null=None)
    longest = c.size("max_patch_length", default=None, null=None)
    if not c.flag("patch_in_forward", default=True, null=False):
        c.note("no entropy is looked at: every byte is a patch, and one more is empty")
        return [1, 1, 1]
    if length is None:
        return [1, 0, 1]
    length = min(length, longest or length)
    c.note(f"where patches begin depends on the text: {length} bytes each are assumed (patch_size), the first alone")
    return [1, length - 1, length]


class _Part:
    """A stack of layers and its config."""

    def __init__(self, c: Config, name: str) -> None:
        kind, width, number, heads, wide = PARTS[name]
        self.name, self.c = name, c.nested(f"{name}_config", kind, {})
        self.width = self.c.size("hidden_size", default=width)
        self.number = self.c.size("num_hidden_layers", default=number)
        usual = int(8 * self.width / 3)
        self.wide = self.c.size("intermediate_size", default=wide or usual, null=usual)
        self.heads = self.c.size("num_attention_heads", default=heads)
        self.groups = self.c.size("num_key_value_heads", default=self.heads, null=self.heads)
        self.c.divides(self.heads, self.width, "num_attention_heads", "hidden_size")
        self.c.divides(self.groups, self.heads, "num_key_value_heads", "num_attention_heads")
        self.head = max(1, self.width // self.heads)
        self.c.rotary(self.head)
        self.act = "silu" if name == "patcher" else self.c.activation("hidden_act", default="silu")
        self.c.ignore("hidden_act", "sliding_window", "tie_word_embeddings", "encoder_cross_output_size", "head_dim")

    def _maps(self, name: str, queries: Raw, keys: Raw) -> tuple[Leaves, Raw]:
        kv = self.groups * self.head
        leaves = [matrix(f"{name}q", self.width, self.width, **queries)]
        leaves += [matrix(f"{name}{letter}", self.width, kv, **keys) for letter in "kv"]
        return leaves, matrix(f"{name}o", self.width, self.width, **queries)

    def layer(self, window: int | None, here: Raw, name: str = "") -> Leaves:
        """A layer, pre-norm, that sees what is before."""
        (q, k, v), out = self._maps(name, here, here)
        form, span = ("once", ()) if window is None else ("window_once", (window,))
        groups = max(1, self.heads // self.groups)
        core = [leaf(f"{name}rotary", "rotary", self.heads + self.groups, self.head, **here)]
        core.append(
            leaf(f"{name}core", form, self.heads, self.head, self.head, *span, groups=groups, bias=False, **here)
        )
        leaves = [q, k, v, *core, out, leaf(f"{name}attention_sum", "sum", self.width, **here)]
        ff = ffn_leaves(
            f"{name}feed_forward", self.width, self.wide, self.act, norm="rms_norm", bias=False, gated=True, **here
        )
        norm = norm_leaf(f"{name}attention", self.width, "rms_norm", **here)
        return [norm, *of_kind("attention", leaves), *ff]

    def layers(self, window: int | None) -> Leaves:
        return [item | {"times": self.number} for item in self.layer(window, {}, f"{self.name}_")]

    def reads(self, times: int, queries: Raw, span: Raw, keys: Raw) -> Leaves:
        """Cross-attention of `times` layers; its queries are added to its output twice."""
        name = f"{self.name}_cross_"
        (q, k, v), out = self._maps(name, queries, keys)
        groups = max(1, self.heads // self.groups)
        core = leaf(
            f"{name}core", "reading", self.heads, self.head, self.head, groups=groups, bias=False, **queries, **span
        )
        leaves = [q, k, v, core, out, leaf(f"{name}sum", "sum", self.width, groups=2, **queries)]
        norms = [
            norm_leaf(f"{name}q", self.width, "rms_norm", **queries),
            norm_leaf(f"{name}k", self.width, "rms_norm", **keys),
        ]
        return [item | {"times": times} for item in [*norms, *of_kind("attention", leaves)]]
