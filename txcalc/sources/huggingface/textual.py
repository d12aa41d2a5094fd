"""Language models that only multimodal classes of transformers have, as the models that they are built like."""

from __future__ import annotations

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.dense import ernie4_5, glm4v_text, granite, hunyuan_v1_dense, qwen2_vl_text
from txcalc.sources.huggingface.shared import Raw, experts, heads, layered, lm_head, mixture, rms, rotary, stack
from txcalc.sources.huggingface.sparse import NAMES, ROUTED, TOP, WIDTH, qwen_sparse, typed, with_shared


def glm_ocr_text(c: Config) -> Raw:
    """GLM-4.1V's without biases on q, k and v; the width of a head is its own."""
    raw = glm4v_text(c)
    raw["attention"] = heads(c, raw, kv=8)
    raw["positions"] = rotary(c, raw["attention"]["d_head"], partial=0.5) | {"interleaved": True}
    return raw


def paddleocr_vl_text(c: Config) -> Raw:
    """ERNIE 4.5's."""
    return ernie4_5(c)


def hunyuan_vl_text(c: Config) -> Raw:
    """HunYuan's dense one; its published configs name some sizes twice."""
    raw = hunyuan_v1_dense(c, tied=True, width=None)
    c.only(raw["attention"]["d_head"], "attention_head_dim", why="head_dim says the same thing")
    c.only(raw["vocab_size"], "org_vocab_size", why="vocab_size says the same thing")
    return raw


def granite4_vision_text(c: Config) -> Raw:
    return granite(c)


def granite_docling_text(c: Config) -> Raw:
    return granite(c)


def qwen2_5_omni_text(c: Config) -> Raw:
    """Qwen2.5-VL's, with half as many key/value heads unless told otherwise."""
    return qwen2_vl_text(c, kv=4)


def qwen3_omni_moe_text(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=4, whole=None)
    attention |= {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    c.only(None, "sliding_window", why="transformers' qwen3_omni_moe has no windows")
    c.only(False, "use_sliding_window", why="transformers' qwen3_omni_moe has no windows")
    c.ignore("max_window_layers", "shared_expert_intermediate_size")
    raw |= {
        "attention": attention,
        "experts": experts(c, NAMES, TOP, WIDTH, 128, 8),
        "norm": rms(c),
        "positions": rotary(c, attention["d_head"], 1e6),
        "head": lm_head(c, True),
    }
    return layered(raw, mixture(c, raw, qwen_sparse(c, raw)))


def deepseek_ocr2_text(c: Config) -> Raw:
    """DeepSeek-V2's experts after Llama's attention; which layers have them is a list."""
    raw = stack(c)
    c.only(False, "mlp_bias", why="biases of the feed-forward are not read here")
    attention = heads(c, raw, width_names=()) | {"bias": c.flag("attention_bias", default=False)}
    c.only(attention["d_head"], "head_dim", why="it is hidden_size over num_attention_heads")
    mixed = with_shared(c, experts(c, ROUTED, TOP, WIDTH, 64), "n_shared_experts", default=2)
    raw |= {
        "attention": attention,
        "experts": mixed,
        "norm": rms(c),
        "positions": rotary(c, attention["d_head"]),
        "head": lm_head(c, False),
    }
    if c.data.get("mlp_layer_types") is None:
        c.fault("mlp_layer_types", c.data.get("mlp_layer_types", ABSENT), 'a list of "dense" and "sparse", one a layer')
    return layered(raw, typed(c, raw, [False] * raw["n_layers"]))
