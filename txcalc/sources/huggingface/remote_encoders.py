"""Encoders whose code is published with the weights: descendants of BERT and CLIP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, Raw, with_kinds
from txcalc.sources.huggingface.encoder import bert_like, encoder
from txcalc.sources.huggingface.image_text import clip_vision_model, config_of
from txcalc.sources.huggingface.leaf_list import leaf, matrix, of_kind
from txcalc.sources.huggingface.rotary_encoders import gte
from txcalc.sources.huggingface.seq2seq import cross_attention_params


def nomic_bert_own(c: Config) -> Raw:
    """NomicBERT by its published code, which may have biases, and experts in every other layer. The masked-LM head has
    a bias only if the feed-forwards have one.

    Source   Nussbaum and Duderstadt 2025 (arXiv 2502.07972), section 3: 475e6 parameters, of which 305e6 are active
    """
    multiple, act = c.size("pad_vocab_size_multiple", default=1), c.text("activation_function", default="gelu_new")
    if act not in ("gelu", "swiglu"):
        c.fault("activation_function", act, "'gelu' or 'swiglu'")
    activation = "silu" if act == "swiglu" else "gelu"
    masked_lm = c.class_ends("NomicBertForPreTraining")
    if masked_lm:
        c.override(architectures=["NomicBertForMaskedLM"])
    elif not c.class_ends("NomicBertModel"):
        c.fault("architectures[0]", c.data.get("architectures"), "NomicBertModel or NomicBertForPreTraining")
    declared_type, c.model_type = c.model_type, "nomic_bert"  # it has the same class names
    names: Raw = {"d_model": ("n_embd",), "n_layers": ("n_layer",), "n_heads": ("n_head",), "d_ff": ("n_inner",)}
    raw = bert_like(c, theta=10000.0, **names, act=activation, act_names=(), pooler=False)
    c.model_type = declared_type
    d, n, ffn = raw["d_model"], raw["n_layers"], raw["feed_forward"]
    c.require_value(False, "prenorm", "use_rms_norm", "causal", "parallel_block", "norm_mlp", why="it is not supported")
    c.require_value(False, "add_pooling_layer", why="a pooler is not supported")
    if c.real("rotary_emb_fraction", default=0.0) != 1:
        c.fault("rotary_emb_fraction", c.data.get("rotary_emb_fraction", ABSENT), "1", "whole heads are rotated")
    first, last = (c.flag(f"mlp_fc{i}_bias", default=True) for i in (1, 2))
    raw["attention"]["bias"] = c.flag("qkv_proj_bias", default=True)
    ffn |= {"gated": act == "swiglu", "bias": first, "down_bias": last}
    if act == "swiglu" and ffn["d_ff"] % 256:
        c.fault("n_inner", ffn["d_ff"], "a multiple of 256, to which its code rounds it")
    raw["vocab_size"] = -(-raw["vocab_size"] // multiple) * multiple
    if masked_lm:
        transform = [leaf("transform", "linear", d, d, bias=first), leaf("transform_activation", activation, d)]
        transform.append(leaf("transform_norm", "layer_norm", d))
        raw["around"] = of_kind("head", transform)
        raw["head"] = {"form": "masked-lm", "plain": True, "tied": True, "bias": first}
    period = c.count("moe_every_n_layers", default=0)
    c.ignore("moe_impl", "moe_resid_pdrop")
    c.require_value(
        False, "expert_choice_router", "moe_normalize_expert_weights", why="the published model has this value"
    )
    c.require_value(1, "ffn_div", why="only experts of the full width are supported")
    if not period:
        c.ignore("num_experts", "moe_top_k", "num_shared_experts")
        return raw
    c.require_value(0, "num_shared_experts", why="shared experts are not supported")
    if act != "gelu":
        c.fault("activation_function", act, "'gelu'", "gated experts are not supported")
    mixed = c.experts(("num_experts",), ("moe_top_k",), ("n_inner",))
    raw["experts"] = mixed | {"gated": False, "activation": "gelu", "sum_bias": True}
    return with_kinds(raw, c.mixture(raw, [i % period == 1 for i in range(n)]))


def safety_checker(c: Config) -> Raw:
    """Stable Diffusion's safety checker (in diffusers, with CLIP's model type): CLIP's image encoder with a projection
    that is compared with 17 concepts and 3 special ones, each with a threshold. It has no text encoder.
    """
    c.ignore("architectures")
    width = c.size("projection_dim", default=512)
    table = {**config_of(c, "vision"), "projection_dim": width}
    inner = Config(table, "clip_vision_model", "vision_config.", c, partial=True)
    inner.ignore("architectures")
    raw = clip_vision_model(inner, "projected")
    pooled: Raw = {"kind": "head", "at": [0, 1, 1]}
    concepts = [matrix(name, width, n, **pooled) for name, n in (("concepts", 17), ("special", 3))]
    c.note("only the image encoder is counted: this class has no text encoder")
    return raw | {"around": [*concepts, leaf("thresholds", "held", 17 + 3, kind="head")]}


def new(c: Config) -> Raw:
    """GTE 1.5 and mGTE before transformers had them."""
    c.require_published_class()
    c.require_value("rope", "position_embedding_type", why="only rotary positions are supported")
    scaling = c.data.get("rope_scaling")
    if isinstance(scaling, Mapping) and scaling.get("type", scaling.get("rope_type")) == "ntk":
        c.drop("rope_scaling")
    c.drop("position_embedding_type")
    return gte(c)


def jina_bert(c: Config) -> Raw:
    """Jina embeddings 2: BERT with ALiBi and gated feed-forwards. Its code without norms of Q and K is supported."""
    auto_map = c.data.get("auto_map")
    code = str(auto_map.get("AutoModel", "")) if isinstance(auto_map, Mapping) else ""
    if "jina-bert-implementation" not in code:
        c.fault("auto_map", code or ABSENT, "jina-bert-implementation's", "other code of Jina has other norms")
    c.require_published_class()
    c.require_value("alibi", "position_embedding_type", why="only ALiBi is supported")
    form = c.text("feed_forward_type", default="original")
    if form not in ("geglu", "reglu"):
        c.fault("feed_forward_type", form, "'geglu' or 'reglu'")
    c.drop("position_embedding_type")
    return _gated_bert(c, "JinaBert", "gelu" if form == "geglu" else "relu")


def _gated_bert(c: Config, name: str, activation: str) -> Raw:
    raw = _as_bert(c, name, rows=None)
    gated = {"gated": True, "bias": False, "down_bias": True, "activation": activation}
    return raw | {"positions": {"form": "alibi"}, "feed_forward": raw["feed_forward"] | gated}


def mosaic_bert(c: Config) -> Raw:
    """MosaicBERT, also used by DNABERT-2: BERT with ALiBi and GeGLU, even if its config differs."""
    c.require_published_class("bert")
    c.drop("hidden_act", "position_embedding_type")
    return _gated_bert(c, "Bert", "gelu")


_BERT = ("forpretraining", "forquestionanswering", "formultiplechoice", "fornextsentenceprediction")


def nezha(c: Config) -> Raw:
    """BERT with fixed relative positions in keys and values instead of learned positions; transformers 4 had it.

    Source   Wei et al. 2019 (arXiv 1909.00204), section 2.1
    """
    c.require_published_class(suffixes=_BERT)
    raw = _as_bert(c, "Nezha", rows=None)
    heads, n = raw["attention"]["n_heads"], raw["n_layers"]
    fields = {"keys": [1, 0, 1], "times": n, "kind": "attention"}
    width = raw["d_model"] // heads
    return raw | {"around": [leaf(f"{side}_distances", "scores", heads, width, **fields) for side in ("key", "value")]}


def ernie_m(c: Config) -> Raw:
    """BERT without types and without a language-model head; transformers 4 had it."""
    c.require_published_class(suffixes=_BERT[1:2])
    if c.class_ends("ForMaskedLM", "ForCausalLM", "LMHeadModel"):
        c.fault("architectures", c.data["architectures"], "a class of ernie_m", "it has no language model")
    if not c.data.get("architectures"):
        c.override(architectures=["ErnieMModel"])
    return _as_bert(c, "ErnieM", types=None)


def _as_bert(c: Config, name: str, **options: Any) -> Raw:
    """A config whose classes are BERT's with the prefix `name`."""
    names, declared_type = c.data.get("architectures"), c.model_type
    if isinstance(names, list) and names and isinstance(names[0], str):
        c.override(architectures=[names[0].replace(name, "Bert")])
    c.model_type = "bert"
    raw = bert_like(c, **options)
    c.model_type = declared_type
    return raw


def albef(c: Config) -> Raw:
    """The BERT or RoBERTa of ALBEF and X-VLM: layers from `fusion_layer` on have cross-attention to images.

    Source   Li et al. 2021 (arXiv 2107.07651), section 4: 123.7 million parameters for BERT-base
    """
    if c.data.get("model_type") not in ("bert", "roberta"):
        c.fault("model_type", c.data.get("model_type", ABSENT), "'bert' or 'roberta'")
        c.override(model_type="bert")
    c.model_type = c.data["model_type"]
    c.require_published_class()
    return _with_fusion(c, encoder(c), c.count("fusion_layer"))


def blip_med(c: Config) -> Raw:
    """BLIP's BERT: every layer (in LAVIS those from `fusion_layer` on) has cross-attention to images; type embeddings
    only with LAVIS' key."""
    has_types = "add_type_embeddings" in c and c.flag("add_type_embeddings")
    c.model_type = "bert"
    c.drop("add_cross_attention")
    c.require_published_class()
    raw = encoder(c)
    if not has_types:
        del raw["embedding"]["types"]
    return _with_fusion(c, raw, c.count("fusion_layer") if "fusion_layer" in c else 0)


def _with_fusion(c: Config, raw: Raw, first: int) -> Raw:
    """Add cross-attention to image states of width `encoder_width` in the layers from `first` on."""
    layers = max(0, raw["n_layers"] - first)
    idle = layers * cross_attention_params(raw["d_model"], c.size("encoder_width"))
    return c.with_idle(raw, idle, f"the branches of cross-attention to images in {layers:,} layers")
