"""Attention beside Mamba-2 or a delta rule: in turn, side by side in one layer, or shared between layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txcalc.sources.huggingface.config import Config, number
from txcalc.sources.huggingface.latent import mla
from txcalc.sources.huggingface.recurrent import DELTA, LINEAR, by_mixer, granite_mixer
from txcalc.sources.huggingface.shared import (
    GLOBAL,
    Raw,
    experts,
    gated,
    heads,
    layer_types,
    layered,
    lm_head,
    more_heads,
    rms,
    rotary,
    stack,
)
from txcalc.sources.huggingface.sparse import TOP, WIDTH, typed
from txcalc.sources.spec import real


def _bamba_decoder(c: Config, inner: Any, partial: float) -> Raw:
    """What Bamba and Falcon-H1 have in common: all but which layer is what. `inner`: channels, from the width D."""
    raw = stack(c)
    attention = heads(c, raw, kv=8) | {"bias": c.flag("attention_bias", default=False)}
    return raw | {
        "attention": attention,
        "mamba2": granite_mixer(c, raw, inner(raw["d_model"])),
        "feed_forward": gated(c, bias=c.flag("mlp_bias", default=False)),
        "norm": rms(c, eps=1e-5),
        "positions": rotary(c, attention["d_head"], partial=partial),
        "head": lm_head(c, tied=False),
    }


def bamba(c: Config) -> Raw:
    """Mamba-2, and attention in the layers that `attn_layer_indices` lists; half of a head is rotated."""
    raw = _bamba_decoder(c, lambda width: c.size("mamba_expand", default=2) * width, 0.5)
    c.ignore("attn_rotary_emb")  # the class rotates what partial_rotary_factor says
    listed = c.items("attn_layer_indices", of=number, length=None, default=[])
    names = ["attention" if i in listed else "mamba2" for i in range(raw["n_layers"])]
    return layered(raw, (names, {name: {"parts": [name, "feed_forward"]} for name in set(names)}))


def falcon_h1(c: Config) -> Raw:
    """Mamba-2 and attention side by side in every layer. The multipliers within a layer scale what is computed and
    change no size."""

    def inner(width: int) -> Any:
        expand = c.size("mamba_expand", default=2)
        return c.size("mamba_d_ssm", default=1024, null=expand * width)

    raw = _bamba_decoder(c, inner, 1.0)
    bias = raw["mamba2"]["bias"]
    outward = c.flag("projectors_bias", default=False)
    if outward != bias:
        c.fault("projectors_bias", outward, f"mamba_proj_bias = {bias}", "biases on one side alone are not read")
    raw["mamba2"]["norm"] = c.flag("mamba_rms_norm", default=False)
    c.ignore("mamba_norm_before_gate")  # where the norm stands, not whether there is one
    for key, length in (("mlp_multipliers", 2), ("ssm_multipliers", 5)):
        given = c.items(key, of=real, length=None, default=None)
        if given is not None and len(given) != length:
            c.fault(key, given, f"a list of {length} numbers")
    c.ignore("attention_in_multiplier", "attention_out_multiplier", "key_multiplier")
    c.ignore("ssm_in_multiplier", "ssm_out_multiplier")
    c.only(True, "mamba_use_mlp", why="every layer has a feed-forward")
    c.only([], "attn_layer_indices", why="every layer has attention")
    c.ignore("mlp_expansion_factor")  # intermediate_size says the width
    raw["norm"]["abreast"] = ["mamba2", "attention"]
    embedding = c.real("embedding_multiplier", default=1.0)
    raw |= {"embedding": {"scale": embedding}} if embedding != 1 else {}
    scale = c.real("lm_head_multiplier", default=1.0)
    raw["head"] |= {"scale": scale} if scale != 1 else {}
    return layered(raw, (["both"] * raw["n_layers"], {"both": {"parts": ["mamba2", "attention", "feed_forward"]}}))


def olmo_hybrid(c: Config) -> Raw:
    """A gated delta rule with norms before its parts, and attention as OLMo 2 has it, with norms behind them; most
    checkpoints say that nothing is rotated by a base of null."""
    raw = stack(c)
    n = raw["n_layers"]
    attention = heads(c, raw) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "width"}
    c.only("silu", "hidden_act", why="the short convolution's activation is read as silu")
    default = [GLOBAL if i % 4 == 3 else LINEAR for i in range(n)]
    default = default if GLOBAL in default else [*default[:-1], GLOBAL]
    types = layer_types(c, n, default, (LINEAR, GLOBAL))
    if len(set(types)) < 2:
        c.fault("layer_types", types, "layers of both kinds", "transformers makes no model of one")
    number = attention["n_heads"]
    keys, values = (c.size(f"linear_num_{side}_heads", default=number, null=number) for side in ("key", "value"))
    wide = int(0.75 * raw["d_model"] / keys)
    d_key = c.size("linear_key_head_dim", default=wide, null=wide)
    raw |= {
        "attention": attention,
        "delta": {
            "n_heads": values,
            "n_key_heads": keys,
            "d_key": d_key,
            "d_value": c.size("linear_value_head_dim", default=2 * d_key, null=2 * d_key),
            "d_conv": c.size("linear_conv_kernel_dim", default=4),
            "signed": c.flag("linear_allow_neg_eigval", default=True),
        },
        "feed_forward": gated(c),
        "norm": rms(c),
        "positions": _unrotated(c) or rotary(c, attention["d_head"]),
        "head": lm_head(c, tied=False),
    }
    c.ignore("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor")
    tables: dict[str, Raw] = {
        LINEAR: {"parts": ["delta", "feed_forward"]},
        GLOBAL: {"parts": ["attention", "feed_forward"], "norm": {"place": "after"}},
    }
    return layered(raw, ([DELTA[kind] for kind in types], {DELTA[kind]: table for kind, table in tables.items()}))


def _unrotated(c: Config) -> Raw | None:
    """No positions, where the base of the rotary frequencies is given and null."""
    keys = ("rope_parameters", "rope_scaling")
    tables = [c.data[key] for key in keys if isinstance(c.data.get(key), Mapping) and "rope_theta" in c.data[key]]
    if next(iter([*tables, c.data])).get("rope_theta", 0) is not None:
        return None
    c.ignore("rope_theta", *keys)
    return {"form": "none"}


def _kimi_decoder(
    c: Config, latent: Raw, delta: Raw, types: list[str], first: int, eps: float, **positions: Any
) -> Raw:
    """Kimi delta attention in some layers and latent attention in the others, the `first` of them dense and the rest
    with experts, where `mlp_layer_types` does not say."""
    raw = stack(c)
    c.only("silu", "hidden_act", why="the short convolution's activation is read as silu")
    c.only(False, "tie_word_embeddings", why="transformers' class ties nothing")
    n_shared, per_token = ("n_shared_experts", "num_shared_experts"), (*TOP, "num_experts_per_token")
    mixed = experts(c, ("num_experts", "num_local_experts"), per_token, WIDTH, scoring="sigmoid")
    groups, top = c.size("n_group", "num_expert_group", default=1), c.size("topk_group", default=1)
    c.divides(groups, mixed["n_experts"], c.spelling("n_group", "num_expert_group"), "the number of experts")
    if top > groups:
        c.fault("topk_group", top, f"at most {groups}, the groups of experts")
    raw |= {
        **({"latent": latent} if GLOBAL in types else {}),
        "delta": {"decay": "channel", "gate": "sigmoid", **delta},
        "experts": mixed | {"n_groups": groups, "top_groups": top, "n_shared": c.size(*n_shared, default=1)},
        "norm": rms(c, eps=eps),
        "positions": positions,
        "head": lm_head(c, tied=False),
    }
    c.ignore("moe_renormalize", "model_max_length", "moe_router_activation_func", "use_grouped_topk")
    more_heads(c)
    seconds, tables = typed(c, raw, [i < first for i in range(raw["n_layers"])])
    return by_mixer(c, raw, types, DELTA, [tables[second]["parts"][1] for second in seconds])


def _n_layers(c: Config) -> int:
    """The number of layers, before the rest is read."""
    return c.layers("num_hidden_layers")  # type: ignore[no-any-return]


def kimi_linear(c: Config) -> Raw:
    """Nothing is rotated. Published configs say in `linear_attn_config` what the class has keys of its own for."""
    n = _n_layers(c)
    c.only(True, "mla_use_nope", why="nothing is rotated in transformers' class")
    c.only(1, "moe_layer_freq", why="mlp_layer_types is what transformers reads")
    table = c.table("linear_attn_config")
    inner = table or Config({}, c.model_type, "linear_attn_config.", c)
    listed = [inner.items(key, of=number, length=None, default=None) for key in ("full_attn_layers", "kda_layers")]
    default = [GLOBAL if i and i % 4 == 0 else LINEAR for i in range(n)]
    if c.data.get("layer_types") is None and None not in listed:
        full, linear = listed
        default = [GLOBAL if i in full else LINEAR for i in range(1, n + 1)]  # they count from 1
        if sorted([*full, *linear]) != list(range(1, n + 1)):
            inner.fault("full_attn_layers", full, f"with kda_layers every layer from 1 to {n:,} once")

    def said(key: str, own: str, default: int) -> Any:
        """A size that the nested table says, or the class's own key where it does not."""
        if key not in inner:
            return c.size(own, default=default)
        c.ignore(own)
        return inner.size(key)

    width = said("head_dim", "linear_head_dim", 128)
    delta = {
        "n_heads": said("num_heads", "linear_num_heads", 32),
        "d_key": width,
        "d_conv": said("short_conv_kernel_size", "linear_conv_kernel_dim", 4),
        "rank": width,
    }
    first = c.count("first_k_dense_replace", default=1)
    latent = mla(c, None, 512, 128, 64, 128)
    types = layer_types(c, n, default, (LINEAR, GLOBAL))
    return _kimi_decoder(c, latent, delta, types, first, 1e-5, form="none")


def bailing_hybrid(c: Config) -> Raw:
    """Ling 3: latent attention with a gate a head closes each group of layers; decays are bounded."""
    n = _n_layers(c)
    period = c.size("layer_group_size", default=6)
    types = layer_types(c, n, [LINEAR if (i + 1) % period else GLOBAL for i in range(n)], (LINEAR, GLOBAL))
    c.only(None, "q_lora_rank", why="queries are projected directly")
    # Saved by transformers, head_dim is the rotated width, and the delta rule's stands under names of its own.
    width = c.size("linear_head_dim", default=None) or c.size("head_dim", default=128)
    latent = mla(c, None, 512, 128, 64, 128) | {"gate": "head"}
    bounded = c.flag("kda_safe_gate", default=True)
    bound = c.real("kda_lower_bound", default=-5.0)
    delta = {
        "n_heads": c.size("linear_num_heads", default=latent["n_heads"]),
        "d_key": width,
        "d_conv": c.size("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
        **({"bound": bound} if bounded else {}),
    }
    c.ignore("mtp_loss_scaling_factor", "num_mtp_layers")
    first = c.count("first_k_dense_replace", default=2)
    theta = rotary(c, latent["d_rope"], 6e6)["theta"]
    return _kimi_decoder(c, latent, delta, types, first, 1e-6, form="rotary", theta=theta, interleaved=True)
