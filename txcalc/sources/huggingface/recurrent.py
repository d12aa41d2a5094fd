"""Mamba, RWKV, and their hybrids with attention."""

from __future__ import annotations

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import TOP, WIDTH, Config, Raw, by_mixer, with_kinds
from txcalc.sources.huggingface.keys import any_of


def mixer_channels(c: Config, raw: Raw, *names: str) -> int:
    """The mixer's number of channels: the factor in one of the keys `names`, times the width."""
    factor = c.real(*names, default=2)
    inner = int(factor * raw["d_model"])
    if not 1 <= inner <= 10**9:
        c.fault(c.spelling(*names), factor, "above 0")
        return 1
    return inner


def step_rank(c: Config, raw: Raw, *names: str) -> int:
    """The rank of the step size: a number, or "auto" for D/16 rounded up."""
    auto: int = -(-raw["d_model"] // 16)
    if c.data.get(c.spelling(*names)) == "auto":
        c.ignore(*names)
        return auto
    return int(c.size(*names, default=auto, null=auto))


def mamba(c: Config) -> Raw:
    """Mamba; Falcon-Mamba's norms on Δ, B and C have no weights."""
    raw = _recurrent(c)
    inner = mixer_channels(c, raw, "expand")
    width = c.size("intermediate_size", default=None)
    if width is not None and width != inner:
        c.fault("intermediate_size", width, f"expand × hidden_size = {inner:,}", "transformers computes it")
    mixer = mamba_mixer(c, inner, step_rank(c, raw, "time_step_rank"), "state_size conv_kernel use_bias use_conv_bias")
    return raw | {"mamba": mixer, "norm": c.rms("layer_norm_epsilon", eps=1e-5), "head": c.lm_head(tied=True)}


def mamba_mixer(
    c: Config, inner: int, rank: int, names: str = "mamba_d_state mamba_d_conv mamba_proj_bias mamba_conv_bias"
) -> Raw:
    """Mamba with `inner` channels; `names` are the keys of the state's width, the taps and both biases."""
    state, taps, bias, conv_bias = names.split()
    return {
        "d_inner": inner,
        "d_state": c.size(state, default=16),
        "d_conv": c.size(taps, default=4),
        "dt_rank": rank,
        "bias": c.flag(bias, default=False),
        "conv_bias": c.flag(conv_bias, default=True),
    }


def _recurrent(c: Config) -> Raw:
    c.require_single_stack()
    return {
        "kind": "decoder",
        "d_model": c.size("hidden_size"),
        "n_layers": c.layers("num_hidden_layers"),
        "vocab_size": c.size("vocab_size"),
        "positions": {"form": "none"},
    }


def _mamba2(c: Config, n_heads: int, d_head: int, inner: int, names: str, groups: int, state: int) -> Raw:
    """Mamba-2 with `inner` channels. `names` are the keys, some with an alias after "|", of the heads, the groups, the
    state's width, the taps and both biases; `groups` and `state` are the class's defaults."""
    key, group_names, state_names, taps, bias, conv_bias = (name.split("|") for name in names.split())
    if n_heads * d_head != inner:
        product = f"{n_heads:,} × {d_head:,} = {n_heads * d_head:,}"
        c.fault(key[0], n_heads, f"a number of heads with heads × width = {inner:,}", product)
    return {
        "n_heads": n_heads,
        "d_head": d_head,
        "n_groups": c.size(*group_names, default=groups),
        "d_state": c.size(*state_names, default=state),
        "d_conv": c.size(*taps, default=4),
        "bias": c.flag(*bias, default=False),
        "conv_bias": c.flag(*conv_bias, default=True),
    }


def mamba2(c: Config) -> Raw:
    raw = _recurrent(c)
    inner = mixer_channels(c, raw, "expand")
    d_head = c.size("head_dim", default=64)
    # Only flash-linear-attention's class has these keys; it computes the number of heads.
    n_heads = max(1, inner // d_head) if {"fuse_norm", "fuse_cross_entropy"} & c.data.keys() else 128
    n_heads = c.size("num_heads", default=n_heads)
    names = "num_heads n_groups state_size conv_kernel use_bias use_conv_bias"
    mixer = _mamba2(c, n_heads, d_head, inner, names, 8, 128)
    return raw | {"mamba2": mixer, "norm": c.rms("layer_norm_epsilon", eps=1e-5), "head": c.lm_head(tied=False)}


def jamba(c: Config) -> Raw:
    """Attention without positions in every `attn_layer_period`-th layer, experts in every `expert_layer_period`-th."""
    raw = c.stack()
    n = raw["n_layers"]
    inner = mixer_channels(c, raw, "mamba_expand")
    raw["mamba"] = mamba_mixer(c, inner, step_rank(c, raw, "mamba_dt_rank")) | {"norms": True}
    raw = c.decoder(raw, c.heads(raw, kv=8, width_names=()), positions={"form": "none"})
    mixed = c.experts(("num_experts", "num_local_experts"), ("num_experts_per_tok",), ("intermediate_size",), 16, 2)
    period, offset = _place_in_period(c, "expert_layer", 2, 1)
    raw["experts"] = mixed
    sparse = [mixed["n_experts"] > 1 and i % period == offset for i in range(n)]
    period, offset = _place_in_period(c, "attn_layer", 8, 4)
    if c.data.get("layers_block_type") is not None:
        kinds = {"attention": "attention", "mamba": "mamba", "full_attention": "attention", "linear_attention": "mamba"}
        types = c.items("layers_block_type", of=any_of(*kinds), length=n, default=["mamba"] * n)
        mixers = [kinds[kind] for kind in types]
    else:
        mixers = ["attention" if i % period == offset else "mamba" for i in range(n)]
    names = [f"{mixer}-experts" if has else mixer for mixer, has in zip(mixers, sparse, strict=True)]
    parts = {
        name: {"parts": [name.partition("-")[0], "experts" if "-" in name else "feed_forward"]} for name in set(names)
    }
    return with_kinds(raw, (names, parts))


def _place_in_period(c: Config, name: str, period: int, offset: int) -> tuple[int, int]:
    """Period and offset of the layers of a kind, from the keys NAME_period and NAME_offset."""
    period, offset = c.size(f"{name}_period", default=period), c.count(f"{name}_offset", default=offset)
    if offset >= period:
        c.fault(f"{name}_offset", offset, f"less than {name}_period = {period:,}")
    return period, offset


def granite_mixer(c: Config, raw: Raw, inner: int) -> Raw:
    """Mamba-2 with `inner` channels, by the keys of Bamba and Granite."""
    n_heads = c.size("mamba_n_heads", default=128)
    width = c.data.get("mamba_d_head")
    if width in (None, "auto"):
        c.ignore("mamba_d_head")
        width = max(1, inner // n_heads)
    else:
        width = c.size("mamba_d_head")
    names = "mamba_n_heads mamba_n_groups mamba_d_state mamba_d_conv mamba_proj_bias mamba_conv_bias"
    return _mamba2(c, n_heads, width, inner, names, 1, 256)


def granitemoehybrid(c: Config) -> Raw:
    """Mamba-2 or attention, then routed experts with a shared one."""
    raw = c.stack()
    n = raw["n_layers"]
    kinds = {"mamba": "mamba2", "attention": "attention", "linear_attention": "mamba2", "full_attention": "attention"}
    types = c.items("layer_types", "layers_block_type", of=any_of(*kinds), length=n, default=["mamba"] * n)
    attention = c.heads(raw, attention_bias=False)
    number = c.count("num_local_experts", default=8)
    shared = c.size("shared_intermediate_size", default=1024)
    form = c.text("position_embedding_type", default=None) or "nope"
    if form not in ("rope", "nope"):
        c.fault("position_embedding_type", form, "'rope' or 'nope'")
    raw |= {
        "attention": attention,
        "mamba2": granite_mixer(c, raw, mixer_channels(c, raw, "mamba_expand")),
        "norm": c.rms(),
        "positions": c.rotary(attention["d_head"]) if form == "rope" else {"form": "none"},
        "head": c.lm_head(tied=False),
    }
    if number:
        mixed = c.experts(("num_local_experts",), ("num_experts_per_tok",), ("intermediate_size",), 8, 2)
        raw["experts"] = mixed | {"d_ff_shared": shared}
    else:
        c.ignore("num_experts_per_tok", "intermediate_size")
        raw["feed_forward"] = {"d_ff": shared, "gated": True, "activation": c.activation("hidden_act", default="silu")}
    return by_mixer(raw, [kinds[kind] for kind in types], ["experts" if number else "feed_forward"] * n)


LETTERS = {"M": "mamba2", "*": "attention", "-": "feed_forward", "E": "experts"}
WORDS = {"mamba": "mamba2", "linear_attention": "mamba2", "attention": "attention", "full_attention": "attention",
         "mlp": "feed_forward", "dense": "feed_forward", "moe": "experts", "sparse": "experts"}  # fmt: skip


_NEMOTRON = (
    "mamba_num_heads n_groups|mamba_n_groups ssm_state_size conv_kernel|mamba_d_conv use_bias|mamba_proj_bias "
    "use_conv_bias|mamba_conv_bias"
)


def nemotron_h(c: Config) -> Raw:
    """Layers with one branch: Mamba-2, attention, a feed-forward or experts."""
    c.require_single_stack()
    names = _branches(c)
    raw: Raw = {
        "kind": "decoder",
        "d_model": c.size("hidden_size"),
        "n_layers": max(1, len(names)),
        "vocab_size": c.size("vocab_size"),
    }
    number = c.layers("num_hidden_layers") if "num_hidden_layers" in c else len(names)
    if number != len(names):
        c.fault("num_hidden_layers", number, f"{len(names):,}, the number of layers in the pattern")
    n_heads, width = c.size("mamba_num_heads", default=128), c.size("mamba_head_dim", default=64)
    attention = c.heads(raw, kv=8, d_head=128)
    c.require_value(attention["d_head"], "attention_head_dim", why="transformers' nemotron_h reads head_dim")
    latent = c.size("moe_latent_size", default=None)
    activation = c.activation("mlp_hidden_act", default="relu2")
    bias = c.flag("mlp_bias", default=False)
    raw |= {
        "attention": attention,
        "mamba2": _mamba2(c, n_heads, width, n_heads * width, _NEMOTRON, 8, 128),
        "norm": c.rms("layer_norm_epsilon", "norm_eps", "rms_norm_eps", eps=1e-5),
        "positions": {"form": "none"},
        "head": c.lm_head(tied=False),
    }
    if "feed_forward" in names:
        raw["feed_forward"] = {"d_ff": c.size("intermediate_size"), "activation": activation, "bias": bias}
    if "experts" in names:
        if bias:
            c.fault("mlp_bias", True, "false", "only the shared expert would have it, not the routed ones")
        mixed = c.experts(("n_routed_experts", "num_local_experts"), TOP, WIDTH, 8, 2)
        shared = c.size("moe_shared_expert_intermediate_size", default=7688)
        c.require_value(1, "n_shared_experts", why="only one shared expert is supported")
        raw["experts"] = mixed | {"activation": activation, "gated": False, "d_ff_shared": shared}
        raw["experts"] |= {"scoring": "sigmoid"} | ({"latent": latent} if latent is not None else {})
    c.note_mtp_layers()
    return with_kinds(raw, (names, {name: {"parts": [name]} for name in set(names)}))


def _branches(c: Config) -> list[str]:
    """The branch of each layer, from letters of `hybrid_override_pattern` or words of `layers_block_type`."""
    pattern = c.data.get("hybrid_override_pattern")
    if pattern is not None:
        c.ignore("hybrid_override_pattern")
        if not isinstance(pattern, str) or not pattern or len(pattern) > 10**5 or set(pattern) - set(LETTERS):
            letters = "letters M (Mamba-2), * (attention), - (feed-forward), E (experts)"
            c.fault("hybrid_override_pattern", pattern, letters)
            return ["attention"]
        return [LETTERS[letter] for letter in pattern]
    words = c.items("layers_block_type", "layer_types", of=any_of(*WORDS), length=None, default=None)
    if not words:
        c.fault("layers_block_type", ABSENT, "a list of layer types")
        return ["attention"]
    return [WORDS[word] for word in words]


def recurrent_gemma(c: Config) -> Raw:
    """Griffin: RG-LRU layers, and window attention in every third layer."""
    raw = c.stack()
    n = raw["n_layers"]
    attention = c.heads(raw, width_names=())
    c.require_value(attention["d_head"], "head_dim", why="transformers computes it")
    attention["window"] = c.size("attention_window_size", "sliding_window", default=2048)
    attention["bias"] = [*"qkvo"] if c.flag("attention_bias", default=False) else ["o"]
    width = c.size("lru_width", default=raw["d_model"], null=raw["d_model"])
    c.divides(attention["n_heads"], width, "num_attention_heads", "lru_width")
    cycle = c.items("block_types", of=any_of("recurrent", "attention"), length=None, default=[])
    cycle = cycle or ["recurrent", "recurrent", "attention"]
    if n > 100 * len(cycle):
        c.fault("num_hidden_layers", n, f"at most {100 * len(cycle):,}, a hundred times block_types")
    inner, odd = divmod(c.size("intermediate_size"), 2)
    if odd or not inner:
        c.fault("intermediate_size", 2 * inner + odd, "an even number", "its matrices are half as wide")
    activation = c.activation("hidden_activation", default="gelu_pytorch_tanh")
    mixer = {"n_heads": attention["n_heads"], "d_head": max(1, width // attention["n_heads"]), "activation": activation}
    raw |= {
        "attention": attention,
        "rg_lru": mixer | {"d_conv": c.size("conv1d_width", default=4)},
        "feed_forward": {"d_ff": max(1, inner), "gated": True, "activation": activation, "bias": True},
        "norm": c.rms(offset=True),
        "positions": c.rotary(attention["d_head"], partial=0.5),
        "embedding": {"scale": raw["d_model"] ** 0.5},
        "head": c.lm_head(tied=True) | {"softcap": c.real("logits_soft_cap", default=30.0)},
    }
    kinds = {"recurrent": "rg_lru", "attention": "attention"}
    names = [kinds[cycle[i % len(cycle)]] for i in range(n)]
    return with_kinds(raw, (names, {name: {"parts": [name, "feed_forward"]} for name in set(names)}))


def rwkv(c: Config) -> Raw:
    """RWKV-4. `rescale_every` does not change the result."""
    raw = _recurrent(c)
    c.require_value(raw["d_model"], "attention_hidden_size", why="transformers' rwkv requires hidden_size")
    inner = c.size("intermediate_size", default=4 * raw["d_model"], null=4 * raw["d_model"])
    context = c.size("context_length", "max_position_embeddings", default=None)
    raw |= {"context": context} if context else {}
    return raw | {
        "time_mix": {},
        "channel_mix": {"d_ff": inner},
        "norm": c.layer_norm("layer_norm_epsilon"),
        "embedding": {"norm": True},
        "head": c.lm_head(tied=False),
    }
