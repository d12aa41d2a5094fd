"""Recurrent models and hybrids whose code is published with the weights: RWKV, PLaMo 2."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.leaf_list import leaf, leaf_stack, matrix, norm_leaf, of_kind
from txcalc.sources.spec import count


def rwkv7(c: Config) -> Raw:
    """flash-linear-attention's RWKV-7: matrix states with low-rank decay, rate and gate, and feed-forwards that read a
    mix of the current and the previous position.

    Source   Peng et al. 2025 (arXiv 2503.14456), section 4
    """
    c.require_published_class("rwkv7")
    c.ignore("attn_mode", "fuse_norm", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp", "value_dim")
    raw = c.stack()
    d, n = raw["d_model"], raw["n_layers"]
    if "head_dim" in c and c.data["head_dim"] is None:
        n_heads = c.size("num_heads")
        c.divides(n_heads, d, "num_heads", "hidden_size")
        w = c.size("head_dim", null=max(1, d // n_heads))
    else:
        w = c.size("head_dim", default=64)
        c.divides(w, d, "head_dim", "hidden_size")
        c.require_value(d // w, "num_heads", why="it is hidden_size / head_dim")
    values = c.data.get("value_dim") or d
    if any(value != d for value in (values if isinstance(values, list) else [values])):
        c.fault("value_dim", values, f"{d:,}, hidden_size")
    ratio = c.real("hidden_ratio", default=4.0)
    wide = c.size("intermediate_size", default=None, null=None) or max(32, -(-int(d * ratio) // 32) * 32)
    ranks = {name: c.size(f"{name}_low_rank_dim") for name in ("decay", "a", "v", "gate")}
    bias = c.flag("norm_bias", default=True)

    def layer(first: bool) -> list[Raw]:
        mixer = [matrix(name, d, d) for name in ("r", "k", "v", "o")]
        for name, rank in ranks.items():
            if name != "v" or not first:
                mixer += [matrix(f"{name}_down", d, rank)]
                mixer += [leaf(f"{name}_up", "linear", rank, d, bias=name != "gate")]
        mixer += [leaf("mixes", "held", 6 * d), leaf("keys", "held", 3 * d), leaf("scale", "scale", d)]
        mixer += [leaf("shift", "shift", d), leaf("state", "state", d * w + d), leaf("sum", "sum", d)]
        channels = [leaf("mix", "held", d), matrix("up", d, wide), leaf("squared", "relu2", wide)]
        channels += [matrix("down", wide, d), leaf("fed_sum", "sum", d), leaf("last", "state", d)]
        norms = [norm_leaf(name, d, bias=bias) for name in ("mixing", "feeding")]
        mixer, channels = (of_kind(kind, some) for kind, some in (("recurrent", mixer), ("feed_forward", channels)))
        return [norms[0], *mixer, norms[1], *channels]

    c.note("FLOPs do not count the recurrence, its decay and the normalisation of its keys")
    raw |= {"norm": c.layer_norm("norm_eps", bias=bias, without=["pieces"]), "head": c.lm_head(tied=False)}
    raw["around"] = [norm_leaf("first", d, bias=bias)]
    return leaf_stack(raw, {"first": layer(True), "layer": layer(False)}, ["first", *["layer"] * (n - 1)])


def rwkv5(c: Config) -> Raw:
    return rwkv6(c, by_token=False)


def rwkv6(c: Config, by_token: bool = True) -> Raw:
    """RWKV-5 and RWKV-6 by their published classes. In RWKV-6 the mix with the previous position and the decay depend
    on the token (`by_token`) through low-rank matrices, of twice the rank at a width of 4,096.

    Source   Peng et al. 2024 (arXiv 2404.05892), section 4 and appendix: 13·D²·L + D·(464·L + 4) + 2·D·V parameters,
             for RWKV-5 13·D²·L + D·(14·L + 4) + 2·D·V
    """
    c.require_published_class(c.model_type)
    raw = c.stack()
    d = raw["d_model"]
    w, wide = c.size("head_size", default=64), c.size("intermediate_size", default=None, null=None)
    context = c.size("context_length", "max_context_length", default=None)
    raw |= {"context": context} if context else {}
    c.divides(w, d, "head_size", "hidden_size")
    c.require_value(d, "attention_hidden_size", why="its norm of heads is hidden_size wide")
    wide = wide or max(1, d * 7 // 2 // 32 * 32)
    mixer = [matrix(name, d, d) for name in ("r", "k", "v", "gate", "o")]
    mixer.append(leaf("gate_silu", "silu", d))
    mixer += _token_mixes(d) if by_token else [leaf("mixes", "held", 4 * d)]
    mixer += [leaf("decay_and_first", "held", 2 * d), leaf("scale", "scale", d), leaf("shift", "shift", d)]
    mixer += [leaf("state", "state", d * w + d), leaf("sum", "sum", d)]
    channels = [leaf("mix", "held", 2 * d), matrix("up", d, wide), leaf("squared", "relu2", wide)]
    channels += [matrix("down", wide, d), matrix("receptance", d, d)]
    channels += [leaf("receptance_sigmoid", "sigmoid", d), leaf("fed_sum", "sum", d), leaf("last", "state", d)]
    norms = [norm_leaf(name, d) for name in ("mixing", "feeding")]
    mixer, channels = (of_kind(kind, some) for kind, some in (("recurrent", mixer), ("feed_forward", channels)))
    c.note("FLOPs do not count the recurrence and the norm of its heads")
    ends = [norm_leaf(name, d) for name in ("first", "last")]
    head = {"tied": c.flag("tie_word_embeddings", default=False)}
    return leaf_stack(raw | {"around": ends, "head": head}, {"layer": [norms[0], *mixer, norms[1], *channels]}, [])


def _token_mixes(d: int) -> list[Raw]:
    """RWKV-6's token-dependent mixes with the previous position, and its decay."""
    mix, decay = (64, 128) if d == 4096 else (32, 64)
    leaves = [matrix("mix_down", d, 5 * mix), leaf("mix_tanh", "tanh", 5 * mix)]
    leaves.append(leaf("mix_up", "grouped", 5 * mix, 5 * d, groups=5, bias=False))
    leaves += [matrix("decay_down", d, decay), leaf("decay_tanh", "tanh", decay)]
    return [*leaves, matrix("decay_up", decay, d), leaf("mixes", "held", 6 * d)]


def plamo2(c: Config) -> Raw:
    """Mamba layers, with a decay per head and with step, B and C computed from the convolution's output, alternate with
    window attention; a norm before and after each branch."""
    c.require_published_class("plamo2", "plamo")
    raw = c.stack()
    d, n, w = raw["d_model"], raw["n_layers"], c.size("hidden_size_per_head", default=128)
    heads, kv = c.size("num_attention_heads", default=32), c.size("num_key_value_heads", default=4)
    c.divides(kv, heads, "num_key_value_heads", "num_attention_heads")
    groups, window = heads // max(1, kv), c.size("attention_window_size", default=2048)
    step = c.size("mamba_step", default=2)
    if step < 2:
        c.fault("mamba_step", step, "at least 2")
    full = c.items("full_attention_idx", of=count, length=None, default=None) or []
    enabled, middle = c.flag("mamba_enabled", default=True), step // 2
    scans = [enabled and (i != n - 1 if n <= middle else i % step != middle) for i in range(n)]
    order = ["scanning" if scans[i] else "whole" if i in full else "window" for i in range(n)]
    if any(scans):
        c.note("FLOPs do not count the scan")

    core = {"whole": leaf("core", "causal", heads, w, w, groups=groups, bias=False)}
    core["window"] = leaf("core", "window", heads, w, w, window, groups=groups, bias=False)
    mixers = {"scanning": _scanning(c, d, w)}
    for form, core_leaf in core.items():
        leaves = [matrix(name, d, number * w) for name, number in (("q", heads), ("k", kv), ("v", kv))]
        leaves += [leaf("qk_norm", "held", (heads + kv) * w), leaf("rotary", "rotary", heads + kv, w), core_leaf]
        mixers[form] = [*leaves, matrix("o", heads * w, d)]
    inner, act = c.size("intermediate_size", default=13312), c.activation("hidden_act", default="silu")
    channels = [matrix("gate_and_up", d, 2 * inner), leaf("activation", act, inner), matrix("down", inner, d)]
    kinds = {}
    for name in sorted({*order}):
        kind = "recurrent" if name == "scanning" else "attention"
        kinds[name] = [*_sandwich("mixer", d, mixers[name], kind), *_sandwich("mlp", d, channels, "feed_forward")]
    head, last = {"tied": c.flag("tie_word_embeddings", default=True)}, norm_leaf("last", d, "rms_norm")
    return leaf_stack(raw | {"around": [last], "head": head}, kinds, order)


def _scanning(c: Config, d: int, w: int) -> list[Raw]:
    n_heads, states, taps = (c.size(f"mamba_{key}", default=default)
                             for key, default in (("num_heads", 64), ("d_state", 64), ("d_conv", 4)))  # fmt: skip
    inner, rank = n_heads * w, max(64, d // 16)
    leaves = [matrix("in", d, 2 * inner)]
    leaves.append(leaf("conv", "convolution", inner, inner, taps, 1, groups=inner, bias=False))
    leaves += [leaf("conv_silu", "silu", inner), matrix("b_c_step", inner, rank + 2 * states)]
    leaves += [leaf(f"{name}_norm", "rms_norm", size) for name, size in (("step", rank), ("b", states), ("c", states))]
    leaves += [matrix("step", rank, n_heads), leaf("decays", "held", 3 * n_heads)]
    leaves += [leaf("state", "state", inner * states + (taps - 1) * inner), leaf("gate_silu", "silu", inner)]
    return [*leaves, matrix("out_proj", inner, d)]


def _sandwich(name: str, d: int, branch: list[Raw], kind: str) -> list[Raw]:
    norms = [norm_leaf(f"{where}_{name}", d, "rms_norm") for where in ("pre", "post")]
    return [norms[0], *of_kind(kind, branch), norms[1], leaf(f"{name}_sum", "sum", d, kind=kind)]
