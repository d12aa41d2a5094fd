"""Hybrids of attention with Mamba or a delta rule: in different layers, in parallel, or with shared blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txcalc.sources.huggingface.config import GLOBAL, TOP, WIDTH, Config, Raw, by_mixer, with_kinds
from txcalc.sources.huggingface.delta import DELTA, LINEAR
from txcalc.sources.huggingface.keys import any_of, number
from txcalc.sources.huggingface.novel_decoders import kimi_k3
from txcalc.sources.huggingface.recurrent import granite_mixer, mamba_mixer, mixer_channels
from txcalc.sources.spec import real


def _bamba_decoder(c: Config, inner: Any, partial: float) -> Raw:
    """What Bamba and Falcon-H1 share. `inner` computes the number of channels from the width."""
    raw = c.stack()
    attention = c.heads(raw, kv=8, attention_bias=False)
    raw["mamba2"] = granite_mixer(c, raw, inner(raw["d_model"]))
    return c.decoder(raw, attention, mlp_bias=c.flag("mlp_bias", default=False), norm=c.rms(eps=1e-5), partial=partial)


def bamba(c: Config) -> Raw:
    """Mamba-2, and attention in the layers that `attn_layer_indices` lists; half of each head is rotated."""
    raw = _bamba_decoder(c, lambda width: c.size("mamba_expand", default=2) * width, 0.5)
    listed = c.items("attn_layer_indices", of=number, length=None, default=[])
    return by_mixer(raw, ["attention" if i in listed else "mamba2" for i in range(raw["n_layers"])])


def falcon_h1(c: Config) -> Raw:
    """Mamba-2 and attention in parallel in every layer. The multipliers within a layer change no size."""

    def inner(width: int) -> Any:
        expand = c.size("mamba_expand", default=2)
        return c.size("mamba_d_ssm", default=1024, null=expand * width)

    raw = _bamba_decoder(c, inner, 1.0)
    bias = raw["mamba2"]["bias"]
    out_bias = c.flag("projectors_bias", default=False)
    if out_bias != bias:
        c.fault("projectors_bias", out_bias, f"mamba_proj_bias = {bias}", "both projections must agree")
    raw["mamba2"]["norm"] = c.flag("mamba_rms_norm", default=False)
    for key, length in (("mlp_multipliers", 2), ("ssm_multipliers", 5)):
        multipliers = c.items(key, of=real, length=None, default=None)
        if multipliers is not None and len(multipliers) != length:
            c.fault(key, multipliers, f"a list of {length} numbers")
    raw["norm"]["parallel"] = ["mamba2", "attention"]
    embedding = c.real("embedding_multiplier", default=1.0)
    raw |= {"embedding": {"scale": embedding}} if embedding != 1 else {}
    scale = c.real("lm_head_multiplier", default=1.0)
    raw["head"] |= {"scale": scale} if scale != 1 else {}
    return with_kinds(raw, (["both"] * raw["n_layers"], {"both": {"parts": ["mamba2", "attention", "feed_forward"]}}))


def olmo_hybrid(c: Config) -> Raw:
    """The gated delta rule with pre-norm, and OLMo 2's attention with norms after the branches; most configs set the
    rotary base to null, which means no positions."""
    raw = c.stack()
    n = raw["n_layers"]
    attention = c.heads(raw, attention_bias=False, qk_norm="width")
    default = [GLOBAL if i % 4 == 3 else LINEAR for i in range(n)]
    default = default if GLOBAL in default else [*default[:-1], GLOBAL]
    types = c.layer_types(n, default, (LINEAR, GLOBAL))
    if len(set(types)) < 2:
        c.fault("layer_types", types, "layers of both types", "transformers refuses a single type")
    number = attention["n_heads"]
    keys, values = (c.size(f"linear_num_{side}_heads", default=number, null=number) for side in ("key", "value"))
    d_key = int(0.75 * raw["d_model"] / keys)
    d_key = c.size("linear_key_head_dim", default=d_key, null=d_key)
    raw["delta"] = {
        "n_heads": values,
        "n_key_heads": keys,
        "d_key": d_key,
        "d_value": c.size("linear_value_head_dim", default=2 * d_key, null=2 * d_key),
        "d_conv": c.size("linear_conv_kernel_dim", default=4),
        "signed": c.flag("linear_allow_neg_eigval", default=True),
    }
    raw = c.decoder(raw, attention, positions=_null_base(c))
    tables: dict[str, Raw] = {
        LINEAR: {"parts": ["delta", "feed_forward"]},
        GLOBAL: {"parts": ["attention", "feed_forward"], "norm": {"place": "after"}},
    }
    return with_kinds(raw, ([DELTA[kind] for kind in types], {DELTA[kind]: table for kind, table in tables.items()}))


def _null_base(c: Config) -> Raw | None:
    """No positions if the rotary base is null; else None."""
    keys = ("rope_parameters", "rope_scaling")
    tables = [c.data[key] for key in keys if isinstance(c.data.get(key), Mapping) and "rope_theta" in c.data[key]]
    if next(iter([*tables, c.data])).get("rope_theta", 0) is not None:
        return None
    c.ignore("rope_theta", *keys)
    return {"form": "none"}


def _kimi_decoder(
    c: Config, latent: Raw, delta: Raw, types: list[str], first: int, eps: float, **positions: object
) -> Raw:
    """Kimi delta attention in some layers and latent attention in the others; without `mlp_layer_types`, the `first`
    layers are dense and the others have experts."""
    raw = c.stack()
    n_shared, per_token = ("n_shared_experts", "num_shared_experts"), (*TOP, "num_experts_per_token")
    mixed = c.experts(("num_experts", "num_local_experts"), per_token, WIDTH, scoring="sigmoid")
    groups, top = c.size("n_group", "num_expert_group", default=1), c.size("topk_group", default=1)
    c.divides(groups, mixed["n_experts"], c.spelling("n_group", "num_expert_group"), "the number of experts")
    if top > groups:
        c.fault("topk_group", top, f"at most {groups}, the number of groups")
    raw |= {
        **({"latent": latent} if GLOBAL in types else {}),
        "delta": {"decay": "channel", "gate": "sigmoid", **delta},
        "experts": mixed | {"n_groups": groups, "top_groups": top, "n_shared": c.size(*n_shared, default=1)},
        "norm": c.rms(eps=eps),
        "positions": positions,
        "head": c.lm_head(tied=False),
    }
    c.note_mtp_layers()
    seconds, tables = c.typed_layers(raw, first)
    return by_mixer(raw, [DELTA[kind] for kind in types], [tables[second]["parts"][1] for second in seconds])


def kimi_linear(c: Config) -> Raw:
    """Kimi Linear, without rotary positions. Published configs have the table `linear_attn_config` in place of the
    class's keys."""
    n = c.layers("num_hidden_layers")
    inner = c.subtable("linear_attn_config")
    listed = [inner.items(key, of=number, length=None, default=None) for key in ("full_attn_layers", "kda_layers")]
    default = [GLOBAL if i and i % 4 == 0 else LINEAR for i in range(n)]
    if c.data.get("layer_types") is None and None not in listed:
        full, linear = listed
        default = [GLOBAL if i in full else LINEAR for i in range(1, n + 1)]  # they count from 1
        if sorted([*full, *linear]) != list(range(1, n + 1)):
            inner.fault("full_attn_layers", full, f"together with kda_layers, each layer from 1 to {n:,} once")

    def nested_size(key: str, name: str, default: int) -> Any:
        """A size in the nested table, or else in the class's key `name`."""
        if key not in inner:
            return c.size(name, default=default)
        c.ignore(name)
        return inner.size(key)

    width = nested_size("head_dim", "linear_head_dim", 128)
    delta = {
        "n_heads": nested_size("num_heads", "linear_num_heads", 32),
        "d_key": width,
        "d_conv": nested_size("short_conv_kernel_size", "linear_conv_kernel_dim", 4),
        "rank": width,
    }
    first = c.count("first_k_dense_replace", default=1)
    latent = c.mla(None, 512, 128, 64, 128)
    types = c.layer_types(n, default, (LINEAR, GLOBAL))
    if "attn_res_block_size" not in c:
        return _kimi_decoder(c, latent, delta, types, first, 1e-5, form="none")
    c.override(hidden_act="silu")
    delta |= {"bound": inner.real("gate_lower_bound"), "whole_gate": inner.flag("use_full_rank_gate", default=False)}
    return kimi_k3(c, _kimi_decoder(c, latent | {"gate": "element"}, delta, types, first, 1e-5, form="none"))


def bailing_hybrid(c: Config) -> Raw:
    """Ling 3: Kimi delta attention with bounded decays; the last layer of each group has latent attention with a gate
    per head."""
    n = c.layers("num_hidden_layers")
    period = c.size("layer_group_size", default=6)
    types = c.layer_types(n, [LINEAR if (i + 1) % period else GLOBAL for i in range(n)], (LINEAR, GLOBAL))
    # In configs that transformers wrote, head_dim is the rotary width, and linear_head_dim that of the delta rule.
    width = c.size("linear_head_dim", default=None) or c.size("head_dim", default=128)
    latent = c.mla(None, 512, 128, 64, 128) | {"gate": "head"}
    bounded = c.flag("kda_safe_gate", default=True)
    bound = c.real("kda_lower_bound", default=-5.0)
    delta = {
        "n_heads": c.size("linear_num_heads", default=latent["n_heads"]),
        "d_key": width,
        "d_conv": c.size("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
        **({"bound": bound} if bounded else {}),
    }
    first = c.count("first_k_dense_replace", default=2)
    theta = c.rotary(latent["d_rope"], 6e6)["theta"]
    return _kimi_decoder(c, latent, delta, types, first, 1e-6, form="rotary", theta=theta, interleaved=True)


HYBRID = "hybrid"
OLDER = {"mamba": LINEAR, "mamba2": LINEAR, "attention": HYBRID}  # names in older configs


def _kinds(c: Config, n: int, default: list[str]) -> list[str]:
    """The type of each layer: with a shared block (HYBRID) or only its mixer (LINEAR)."""
    types = c.items("layers_block_type", "layer_types", of=any_of(HYBRID, LINEAR, *OLDER), length=n, default=None)
    kinds = default if types is None else [OLDER.get(kind, kind) for kind in types]
    if len(kinds) != n:
        c.fault("num_hidden_layers", n, f"{len(kinds)}, the length of the class's default pattern, or layer types")
        return [LINEAR] * n
    return kinds


def _with_shared_blocks(raw: Raw, kinds: list[str], blocks: int, mixer: str, table: Raw) -> Raw:
    """Layers that use `blocks` shared blocks in turn: the first layer of each block owns its weights."""
    names: list[str] = []
    tables: dict[str, Raw] = {LINEAR: {"parts": [mixer]}}
    for i, kind in enumerate(kinds):
        if kind == LINEAR:
            names.append(LINEAR)
            continue
        number = kinds[:i].count(HYBRID)
        owner = f"block{number % blocks}"
        owns = number < blocks
        names.append(owner if owns else f"{owner}-again")
        tables[names[-1]] = {"parts": ["shared", mixer], "shared": table if owns else {**table, "from": owner}}
    return with_kinds(raw, (names, tables))


def zamba(c: Config) -> Raw:
    """Multi-head Mamba; some layers also read one shared Transformer block."""
    raw = c.stack()
    n, d = raw["n_layers"], raw["d_model"]
    period, offset = c.size("attn_layer_period", default=6), c.count("attn_layer_offset", default=4)
    pattern = [HYBRID if i == 2 or (i > 2 and (i - 3) % period == offset) else LINEAR for i in range(n)]
    inner, heads = c.size("mamba_expand", default=2) * d, c.size("n_mamba_heads", default=2)
    c.divides(heads, inner, "n_mamba_heads", "the mixer's channels")
    attention = c.size("num_attention_heads")
    groups = c.size("num_key_value_heads", default=16)
    c.divides(groups, attention, "num_key_value_heads", "num_attention_heads")
    if c.size("attention_hidden_size", default=2 * d, null=2 * d) != 2 * d:
        c.fault("attention_hidden_size", c.data["attention_hidden_size"], f"{2 * d}, twice hidden_size")
    width = c.size("attention_head_dim", "head_dim", default=2 * d // attention, null=2 * d // attention)
    rank = -(-d // 16) if c.data.get("mamba_dt_rank", "auto") == "auto" else c.size("mamba_dt_rank")
    c.ignore("mamba_dt_rank")
    table = {
        "n_heads": attention,
        "n_kv_heads": groups,
        "d_head": max(1, width),
        "scale": (max(1, width) / 2) ** -0.5,
        "d_ff": c.size("intermediate_size"),
        "activation": c.activation("hidden_act", default="gelu"),
    }
    raw |= {
        "mamba": mamba_mixer(c, inner, rank) | ({"n_heads": heads} if heads > 1 else {}),
        "norm": c.rms(eps=1e-5),
        "positions": {"form": "none"},
        "head": c.lm_head(tied=True),
    }
    return _with_shared_blocks(raw, _kinds(c, n, pattern), 1, "mamba", table)


def zamba2(c: Config) -> Raw:
    """Mamba-2; some layers also read one of several shared Transformer blocks, through their own adapters."""
    raw = c.stack()
    n, d = raw["n_layers"], raw["d_model"]
    pattern = [LINEAR, *([LINEAR] * 5 + [HYBRID]) * 7, *[LINEAR] * 4, HYBRID, *[LINEAR] * 3, HYBRID, *[LINEAR] * 2]
    heads = c.size("n_mamba_heads", default=8)
    inner = mixer_channels(c, raw, "mamba_expand")
    c.divides(heads, inner, "n_mamba_heads", "the mixer's channels")
    attention = c.size("num_attention_heads")
    groups = c.size("num_key_value_heads", default=attention, null=attention)
    c.divides(groups, attention, "num_key_value_heads", "num_attention_heads")
    c.divides(attention, 2 * d, "num_attention_heads", "twice hidden_size")
    width = max(1, 2 * d // attention)
    for name, value in (("attention_hidden_size", 2 * d), ("attention_head_dim", width), ("head_dim", width)):
        if c.size(name, default=value, null=value) != value:
            c.fault(name, c.data[name], f"{value:,}", "the class computes it")
    bias = c.flag("add_bias_linear", default=False)
    adapted = c.flag("use_shared_attention_adapter", default=False)
    if adapted and (groups != attention or width * attention != 2 * d):
        c.fault("use_shared_attention_adapter", True, "false if keys are narrower than queries")
    table = {
        "n_heads": attention,
        "n_kv_heads": groups,
        "d_head": width,
        "scale": (width / 2) ** -0.5,
        "d_ff": c.size("intermediate_size", default=4 * d, null=4 * d),
        "activation": c.activation("hidden_act", default="gelu"),
        "bias": bias,
        "rank": c.size("adapter_rank", default=128),
        "adapted": adapted,
    }
    positions = c.rotary(width) if c.flag("use_mem_rope", default=False) else {"form": "none"}
    raw |= {
        "mamba2": {
            "d_head": max(1, inner // heads),
            "n_heads": heads,
            "n_groups": c.size("mamba_ngroups", default=1),
            "d_state": c.size("mamba_d_state", default=64),
            "d_conv": c.size("mamba_d_conv", default=4),
            "bias": bias,
            "conv_bias": True,
        },
        "norm": c.rms(eps=1e-5),
        "positions": positions,
        "head": c.lm_head(tied=True),
    }
    return _with_shared_blocks(raw, _kinds(c, n, pattern), c.size("num_mem_blocks", default=1), "mamba2", table)
