"""The value of each key of a config.json, from a model's resolved description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txcalc.description import as_tables
from txcalc.model import Model
from txcalc.num import exact_div
from txcalc.parts.norm import EPS
from txcalc.parts.options import Table
from txcalc.sources.explicit import kinds_in_order
from txcalc.sources.huggingface.keys import ACTIVATIONS


class Facts:
    """A resolved description as plain tables, for `KEYS`."""

    def __init__(self, model: Model) -> None:
        self.context = model.context
        stacks = as_tables(model.description.stacks)
        self.first, self.last = next(iter(stacks.values())), next(reversed(stacks.values()))
        self.encoder, self.decoder = stacks.get("encoder"), stacks.get("decoder")
        self.kinds = kinds_in_order(model.description.last)
        self.layer = self.last["layer"]

    def table(self, section: str, stack: Table | None = None) -> Any:
        """The table of the first layer kind that has it; `positions` prefer layers without a window."""
        layers = list((stack or self.last)["layer"].values())
        if section == "positions":
            layers.sort(key=lambda layer: bool(layer.get("attention", {}).get("window")))
            layers.sort(key=lambda layer: layer["positions"]["form"] == "none")
        return next((layer[section] for layer in layers if section in layer), None)

    @property
    def mixer(self) -> Any:
        return self.table("mamba") or self.table("mamba2")

    @property
    def channel(self) -> Any:
        return self.table("feed_forward") or self.table("experts")

    @property
    def window(self) -> Any:
        windows = [layer["attention"].get("window") for layer in self.layer.values() if "attention" in layer]
        return next((window for window in windows if window), None)

    @property
    def windowless(self) -> object:
        """The attention of the first layer without a window."""
        tables = [layer["attention"] for layer in self.layer.values() if "attention" in layer]
        return next(table for table in tables if table.get("window") is None)

    @property
    def readers(self) -> list[str]:
        """The kinds of the layers that reuse the keys and values of another layer, in order."""
        return [kind for kind in self.kinds if (self.layer[kind].get("attention") or {}).get("kv_from") is not None]

    @property
    def windows(self) -> list[bool]:
        """For each layer, whether it has a window."""
        return [bool(self.layer[kind].get("attention", {}).get("window")) for kind in self.kinds]

    def where(self, part: str) -> list[int]:
        """The indices of the layers that have a part."""
        return [i for i, kind in enumerate(self.kinds) if part in self.layer[kind]["parts"]]

    def period(self, part: str) -> tuple[int, int] | None:
        """(p, o) if the layers o, o + p, o + 2p, … have a part."""
        layers = self.where(part)
        period = layers[1] - layers[0] if len(layers) > 1 else len(self.kinds)
        return (period, layers[0]) if layers and layers == list(range(layers[0], len(self.kinds), period)) else None

    @property
    def rotary_share(self) -> Any:
        dims = self.table("positions")["rotary_dims"]
        return 1.0 if dims is None else dims / self.table("attention")["d_head"]

    @property
    def eps(self) -> Any:
        norm = self.last["norm"]
        return EPS[norm["form"]] if norm["eps"] is None else norm["eps"]

    @property
    def activation(self) -> str:
        return self.named(self.channel["activation"])

    @staticmethod
    def named(form: str) -> str:
        """transformers' name of an activation."""
        form = "silu" if form == "clamped_silu" else form
        if form == "xielu":
            return form
        return "gelu_pytorch_tanh" if form == "gelu_tanh" else next(k for k, v in ACTIVATIONS.items() if v == form)


Key = Callable[[Facts], Any]


def _stack(key: str) -> Key:
    return lambda f: f.first[key]


def _heads(key: str, half: str = "last") -> Key:
    def value(f: Facts) -> Any:
        stack = getattr(f, half)
        table = f.table("attention", stack) or f.table("latent", stack)
        return table[key]

    return value


def _table(section: str) -> Key:
    return lambda f: f.table(section)


def _real(number: float | None) -> float | None:
    """A float, for keys where transformers refuses an int."""
    return None if number is None else float(number)


def _channel(key: str, half: str = "last") -> Key:
    def value(f: Facts) -> Any:
        stack = getattr(f, half)
        table = f.table("feed_forward", stack) or f.table("experts", stack) or f.table("mamba", stack)
        return table["d_inner" if key == "d_ff" and "d_inner" in table else key]

    return value


def _bias(f: Facts) -> bool:
    mixer = f.mixer
    if f.table("rg_lru"):  # o always has a bias
        return "q" in f.table("attention")["bias"]
    heads = f.table("attention")
    return mixer["bias"] if mixer and not heads else bool((heads or f.table("latent"))["bias"])


def _expand(f: Facts) -> Any:
    inner = f.mixer["d_inner"] if "d_inner" in f.mixer else f.mixer["n_heads"] * f.mixer["d_head"]
    whole, remainder = divmod(inner, f.last["d_model"])
    return inner / f.last["d_model"] if remainder else whole


def _layer_types(f: Facts) -> list[str] | None:
    if f.table("short_convolution"):
        attention_type = {True: "sliding_attention", False: "full_attention"}
        return [
            attention_type[has] if "attention" in f.layer[kind]["parts"] else "conv"
            for kind, has in zip(f.kinds, f.windows, strict=True)
        ]
    if f.table("delta") or f.table("linear_attention"):
        mixes = [f.layer[kind]["parts"][0] for kind in f.kinds]
        return ["full_attention" if part == "attention" else "linear_attention" for part in mixes]
    if f.mixer:
        return ["attention" if "attention" in f.layer[kind]["parts"] else "mamba" for kind in f.kinds]
    windows = f.windows
    if len(set(windows)) == 1:
        return None
    return ["sliding_attention" if has else "full_attention" for has in windows]


def _block_types(f: Facts) -> list[str] | None:
    if f.table("mamba") and f.period("attention"):
        return None  # Jamba has a period and an offset
    words = {"mamba2": "mamba", "feed_forward": "mlp", "experts": "moe"}
    firsts = [f.layer[kind]["parts"][0] for kind in f.kinds]
    return [words.get(part, part) for part in firsts]


def _full_every(f: Facts) -> int | None:
    """The period of full attention, if it ends each group of layers with a window."""
    windows = f.windows
    period = windows.index(False) + 1 if False in windows else 0
    return period if period > 1 and windows == [bool((i + 1) % period) for i in range(len(windows))] else None


def _mlp_types(f: Facts) -> list[str]:
    sparse = f.where("experts")
    return ["sparse" if i in sparse else "dense" for i in range(len(f.kinds))]


def _projection(f: Facts) -> str:
    form = f.channel["activation"]
    if f.channel["gated"]:
        return "gated-gelu" if form == "gelu_tanh" else f"gated-{f.activation}"
    return f.activation


def _distances(f: Facts) -> Any:
    """The table of DeBERTa's relative positions."""
    return {"disentangled": f.last["positions"]}[f.last["positions"]["form"]]


def _rows(f: Facts) -> Any:
    rows = f.last["positions"]["rows"]
    return f.context if f.last["positions"]["form"] == "disentangled" or rows is None else rows


def _form_of_positions(stack: Any) -> str:
    return {(True, "learned"): "absolute", (True, "rotary"): "rotary"}[stack["contacts"], stack["positions"]["form"]]


def _parallel(*forms: str) -> Key:
    return lambda f: f.table("norm")["parallel"] in forms


# Keys that must be null if there is no value: the class would use its default.
NULLS = frozenset({"sliding_window", "q_lora_rank"})


_SAME: dict[Key, str] = {
    _stack("d_model"): "hidden_size n_embd d_model dim",
    _stack("n_layers"): "num_hidden_layers n_layer n_layers num_layers encoder_layers",
    _stack("vocab_size"): "vocab_size",
    _heads("n_heads"): "num_attention_heads n_head n_heads attention_heads decoder_attention_heads",
    _heads("n_heads", "first"): "encoder_attention_heads",
    _heads("n_kv_heads"): "num_key_value_heads num_kv_heads",
    _channel("d_ff"): "n_inner dff d_ff ffn_dim hidden_dim ffn_hidden_size decoder_ffn_dim",
    _channel("d_ff", "first"): "encoder_ffn_dim",
    _rows: "max_position_embeddings n_positions",
    _bias: "attention_bias use_bias bias qkv_bias use_qkv_bias enable_bias",
    (lambda f: f.eps): "rms_norm_eps layer_norm_epsilon layer_norm_eps norm_eps norm_epsilon",
    (lambda f: f.activation): "hidden_act hidden_activation activation_function activation mlp_hidden_act",
    (lambda f: f.activation.removesuffix("_pytorch_tanh")): "afn",  # GPT-1 calls tanh GELU gelu
    (lambda f: f.rotary_share): "partial_rotary_factor rotary_pct",
    _expand: "expand mamba_expand",
}


# Keys that equal a key of a table: name in the config=name in the table.
_ENTRIES: dict[Key, str] = {
    (lambda f: f.last): "num_decoder_layers=n_layers decoder_layers=n_layers altup_num_inputs=streams "
    "altup_active_idx=active_stream laurel_rank=laurel",
    (lambda f: f.last["head"]): "logits_soft_cap=softcap tie_word_embeddings=tied lm_head_bias=bias num_labels=classes "
    "classifier_bias=transform_bias use_mean_pooling=pool_norm",
    (lambda f: f.last["positions"]): "relative_attention_num_buckets=buckets max_target_positions=rows "
    "relative_attention_max_distance=distance",
    (lambda f: f.last["embedding"]): "emb_layer_norm_before=norm",
    (lambda f: f.last["vision"]): "image_size=image patch_size=patch num_channels=channels use_mask_token=mask_token",
    (lambda f: f.first["audio"]): "num_mel_bins=mels max_source_positions=positions",
    (lambda f: f.windowless): "global_head_dim=d_head num_global_key_value_heads=n_kv_heads attention_k_eq_v=tied_kv",
    (
        lambda f: f.mixer
    ): "state_size=d_state mamba_d_state=d_state ssm_state_size=d_state conv_kernel=d_conv mamba_d_conv=d_conv "
    "time_step_rank=dt_rank mamba_dt_rank=dt_rank n_groups=n_groups mamba_n_groups=n_groups "
    "mamba_n_heads=n_heads mamba_num_heads=n_heads mamba_d_head=d_head mamba_head_dim=d_head "
    "mamba_proj_bias=bias use_conv_bias=conv_bias mamba_conv_bias=conv_bias",
    _distances: "pos_att_type=terms max_relative_positions=distance share_att_key=shared",
    _table("positions"): "rope_theta=theta rope_interleave=interleaved",
    _table("norm"): "layer_norm_elementwise_affine=weighted norm_bias=bias",
    _table("attention"): "attention_value_scale=v_scale",
    _table("latent"): "kv_lora_rank=kv_rank q_lora_rank=q_rank qk_nope_head_dim=d_nope qk_rope_head_dim=d_rope "
    "index_n_heads=index_heads index_head_dim=index_width index_topk=index_top_k",
    _table(
        "experts"
    ): "num_experts=n_experts num_local_experts=n_experts n_routed_experts=n_experts moe_num_experts=n_experts "
    "num_experts_per_tok=top_k moe_topk=top_k top_k_experts=top_k moe_intermediate_size=d_ff "
    "moe_latent_size=latent n_shared_experts=n_shared num_shared_experts=n_shared "
    "moe_num_shared_experts=n_shared shared_expert_intermediate_size=d_ff_shared "
    "shared_intermediate_size=d_ff_shared moe_shared_expert_intermediate_size=d_ff_shared "
    "moe_routed_scaling_factor=scale route_scale=scale",
    _table("delta"): "linear_num_value_heads=n_heads linear_num_key_heads=n_key_heads linear_key_head_dim=d_key "
    "linear_value_head_dim=d_value linear_conv_kernel_dim=d_conv",
    _table("layer_input"): "vocab_size_per_layer_input=rows",
    _table("short_convolution"): "conv_L_cache=taps conv_bias=bias",
    _table("rg_lru"): "conv1d_width=d_conv",
}


def _entry(table: Key, key: str) -> Key:
    return lambda f: table(f)[key]


def _lru_width(f: Facts) -> Any:
    table = f.table("rg_lru")
    return table["n_heads"] * table["d_head"]


def _width(f: Facts) -> Any:
    """The width of the feed-forward; a config with RG-LRUs has twice this width."""
    if f.table("channel_mix"):
        return f.table("channel_mix")["d_ff"]
    return 2 * f.channel["d_ff"] if f.table("rg_lru") else _channel("d_ff")(f)


KEYS: dict[str, Key] = {name: key for key, names in _SAME.items() for name in names.split()}
KEYS |= {
    name: _entry(table, key)
    for table, pairs in _ENTRIES.items()
    for name, key in (pair.split("=") for pair in pairs.split())
}
KEYS |= {
    "intermediate_size": _width,
    "lru_width": _lru_width,
    "attention_window_size": lambda f: f.window,
    "block_types": lambda f: [
        "attention" if "attention" in f.layer[kind]["parts"] else "recurrent" for kind in f.kinds
    ],
    "head_dim": lambda f: (f.table("attention") or f.mixer)["d_head"],
    "activation_sparsity_pattern": lambda f: [f.layer[kind]["feed_forward"]["sparsity"] or 0.0 for kind in f.kinds],
    "num_kv_shared_layers": lambda f: len(f.readers),
    "use_double_wide_mlp": lambda f: any(f.layer[k]["feed_forward"] != f.table("feed_forward") for k in f.readers),
    "enable_moe_block": lambda f: f.table("experts") is not None,
    "hidden_size_per_layer_input": lambda f: (f.table("layer_input") or {"width": 0})["width"],
    "d_kv": _heads("d_head"),
    "attention_head_dim": _heads("d_head"),
    "num_heads": lambda f: (f.table("attention") or f.mixer)["n_heads"],
    "feed_forward_proj": _projection,
    "use_qk_norm": lambda f: f.table("attention")["qk_norm"] != "none",
    "mlp_bias": lambda f: f.channel["bias"],
    "rotary_dim": lambda f: f.table("positions")["rotary_dims"] or f.table("attention")["d_head"],
    "rope_local_base_freq": lambda f: next(
        layer["positions"]["theta"] for layer in f.layer.values() if layer["attention"].get("window")
    ),
    "attn_logit_softcapping": lambda f: _real(f.table("attention")["softcap"]),
    "final_logit_softcapping": lambda f: _real(f.last["head"]["softcap"]),
    "sliding_window": lambda f: f.window,
    "use_sliding_window": lambda f: f.window is not None,
    "max_window_layers": lambda f: f.windows.index(True) if True in f.windows else len(f.windows),
    "sliding_window_pattern": _full_every,
    "layer_types": _layer_types,
    "layers_block_type": _block_types,
    "first_k_dense_replace": lambda f: f.where("experts")[0],
    "mlp_layer_types": _mlp_types,
    "indexer_types": lambda f: ["shared" if f.layer[kind]["latent"]["index_shared"] else "full" for kind in f.kinds],
    "mlp_only_layers": lambda f: [i for i in range(len(f.kinds)) if i not in f.where("experts")],
    "decoder_sparse_step": lambda f: 1,
    "expert_layer_period": lambda f: (f.period("experts") or (None,))[0],
    "expert_layer_offset": lambda f: (f.period("experts") or (None, None))[1],
    "attn_layer_period": lambda f: (f.period("attention") or (None,))[0],
    "attn_layer_offset": lambda f: (f.period("attention") or (None, None))[1],
    "v_head_dim": lambda f: (f.table("latent") or f.table("attention"))["d_v"],
    "new_decoder_architecture": lambda f: (
        f.table("norm")["parallel"] == "separate"
        or f.table("attention")["n_kv_heads"] not in (1, f.table("attention")["n_heads"])
    ),
    "multi_query": lambda f: f.table("attention")["n_kv_heads"] == 1,
    "parallel_attn": _parallel("shared", "separate"),
    "use_parallel_residual": _parallel("shared", "separate"),
    "num_ln_in_parallel_attn": lambda f: {"shared": 1, "separate": 2}.get(str(f.table("norm")["parallel"])),
    "alibi": lambda f: f.last["positions"]["form"] == "alibi",
    "do_layer_norm_before": lambda f: f.table("norm")["place"] == "pre",
    "type_vocab_size": lambda f: f.last["embedding"]["types"] or 0,
    "type_vocab_sizes": lambda f: [rows for rows, _ in f.last["embedding"]["tables"]],
    "max_2d_position_embeddings": lambda f: f.last["embedding"]["tables"][0][0],
    "n_langs": lambda f: f.last["embedding"]["types"] or 1,
    "gelu_activation": lambda f: f.channel["activation"] == "gelu",
    "pre_norm": lambda f: f.table("norm")["place"] == "pre",
    "is_decoder": lambda f: f.last["role"] == "decoder",
    "embedding_size": lambda f: f.last["embedding"]["rank"] or f.last["d_model"],
    "word_embed_proj_dim": lambda f: f.last["embedding"]["rank"] or f.last["d_model"],
    "relative_attention": lambda f: f.last["positions"]["form"] == "disentangled",
    "position_biased_input": lambda f: f.last["positions"]["form"] == "learned",
    "position_buckets": lambda f: None if (of := _distances(f))["rows"] == 2 * of["distance"] else of["rows"] // 2,
    "norm_rel_ebd": lambda f: "layer_norm" if _distances(f)["norm"] else "none",
    "conv_kernel_size": lambda f: (f.table("convolution") or {"taps": 0})["taps"],
    "conv_act": lambda f: f.named(f.table("convolution")["activation"]),
    "block_auto_adjust_ff_dim": lambda f: False,
    "num_dense_layers": lambda f: len(f.kinds) - len(f.where("experts")),
    "num_attention_heads_per_layer": lambda f: [f.layer[kind]["attention"]["n_heads"] for kind in f.kinds],
    "gating": lambda f: {"head": "per-head", "element": "per-element"}[f.table("attention")["gate"]],
    "global_attn_every_n_layers": _full_every,
    "position_embedding_type": lambda f: _form_of_positions(f.last),
    "token_dropout": lambda f: f.last["embedding"]["scale"] is not None,
    "intermediate_multiple_size": lambda f: exact_div(f.channel["d_ff"], f.last["d_model"]),
    # local_attention is twice an encoder's window without the position itself.
    "local_attention": lambda f: 2 * (f.window - (f.last["role"] == "encoder")),
    "mup_enabled": lambda f: f.last["embedding"]["scale"] is not None,
    "use_attention_gate": lambda f: f.table("attention")["gate"] == "head",
    "use_sandwich_norm": lambda f: f.table("norm")["place"] == "sandwich",
    "mlp_ratio": lambda f: round(f.channel["d_ff"] * (1.5 if f.channel["gated"] else 1) / f.last["d_model"]),
    "use_swiglu_ffn": lambda f: f.channel["gated"],
    "use_absolute_position_embeddings": lambda f: f.last["positions"]["form"] == "learned",
    "layer_scale_init_value": lambda f: 0.1 if f.table("norm")["layer_scale"] else 0.0,
}
