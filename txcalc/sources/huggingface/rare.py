"""Decoders with a mechanism that no other family has: a mask made of values, experts of attention, a matrix memory."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config, Raw


def doge(c: Config) -> Raw:
    """Llama whose values say which keys are kept, and whose stream is scaled as branches are added."""
    c.only(False, "is_moe", why="experts that product keys choose are not read")
    c.ignore("num_experts", "num_experts_per_tok", "norm_topk_prob")
    raw = c.stack()
    attention = c.heads(raw) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    if c.data.get("sliding_window") is not None:
        c.fault(
            "sliding_window", c.data["sliding_window"], "none", "a window beside the keys that are kept is not read"
        )
    c.ignore("sliding_window")
    return raw | {
        "attention": attention | {"keep": c.size("keep_window_size", default=2048)},
        "feed_forward": c.gated(bias=c.flag("mlp_bias", default=False)),
        "norm": c.rms(residual_scale=True),
        "positions": c.rotary(attention["d_head"]),
        "head": c.lm_head(tied=False),
    }


def jetmoe(c: Config) -> Raw:
    """Experts of queries and outputs, on keys and values that they share, and experts of feed-forwards; each sum has a
    bias."""
    raw = c.stack()
    mixed = c.experts(("num_local_experts",), ("num_experts_per_tok",), ("intermediate_size",), 8, 2, sum_bias=True)
    mixed["activation"] = c.activation("activation_function", default="silu")
    groups, width = c.size("num_key_value_heads", default=16), c.size("kv_channels", "head_dim", default=128)
    heads_of_all = groups * mixed["top_k"]
    if c.size("num_attention_heads", default=heads_of_all) != heads_of_all:
        c.fault(
            "num_attention_heads", c.data["num_attention_heads"], f"{heads_of_all:,}", "it is what the class derives"
        )
    return raw | {
        "expert_attention": {
            "n_experts": mixed["n_experts"],
            "top_k": mixed["top_k"],
            "n_kv_heads": groups,
            "d_head": width,
            "bias": True,
        },
        "experts": mixed | {"scoring": "softmax_after"},
        "norm": c.rms(),
        "positions": c.rotary(width),
        "head": c.lm_head(tied=True),
    }


# What chooses among kernels, and among the forms of one matrix.
_KERNELS = """
autocast_kernel_dtype chunk_size chunkwise_kernel eps inference_state_dtype max_inference_chunksize mode
norm_reduction_force_float32 return_last_states sequence_kernel step_kernel weight_mode
"""


def xlstm(c: Config) -> Raw:
    """A matrix memory and a gated feed-forward in every layer."""
    c.alone()
    c.ignore(*_KERNELS.split())
    c.only(False, "use_bias", why="an RMSNorm with a bias is not read")
    c.only(True, "add_out_norm", why="its class has a norm after the last layer whatever is said")
    raw = c.widths(
        "decoder", d_model=("hidden_size", "embedding_dim"), n_layers=("num_hidden_layers", "num_blocks"), padding=1
    )
    d, heads_ = raw["d_model"], c.size("num_heads", default=8)
    per_head = {}
    for key, name, share in (("d_key", "qk_dim_factor", 0.5), ("d_value", "v_dim_factor", 1.0)):
        inner = int(d * c.real(name, default=share))
        if inner < 1 or inner % heads_:
            c.fault(name, c.data.get(name, share), f"a share of hidden_size = {d:,} that num_heads = {heads_} divides")
        per_head[key] = max(1, inner // heads_)
    multiple = c.size("ffn_round_up_to_multiple_of", default=64)
    width = int((d * c.real("ffn_proj_factor", default=2.667) + multiple - 1) // multiple * multiple)
    if not 1 <= width <= 10**9:
        c.fault("ffn_proj_factor", c.data.get("ffn_proj_factor"), "above 0")
        width = 1
    return raw | {
        "matrix_memory": {"n_heads": heads_, **per_head, "cap": c.real("gate_soft_cap", default=15.0)},
        "feed_forward": {"d_ff": width, "gated": True, "activation": "silu"},
        "norm": c.rms("norm_eps"),
        "positions": {"form": "none"},
        "head": c.lm_head(tied=False, softcap=c.real("output_logit_soft_cap", default=30.0)),
    }
