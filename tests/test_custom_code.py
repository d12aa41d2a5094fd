"""Published code that is not Llama's: each reader beside the tensors that a checkpoint of a small model has."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import pytest

import txcalc
from txcalc.errors import InputError
from txcalc.sources import build
from txcalc.sources.huggingface import describe
from txcalc.sources.huggingface.families import READERS
from txcalc.sources.huggingface.wrapped import WHOLES

Config = dict[str, Any]
Shapes = list[tuple[int, ...]]

LLAMA: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}


def attention(d: int, q: int, kv: int, *, bias: str = "") -> Shapes:
    """q, k, v, o, as (out, in), and the biases of those in `bias`."""
    outs = {"q": (q, d), "k": (kv, d), "v": (kv, d), "o": (d, q)}
    return [*outs.values(), *((outs[name][0],) for name in bias)]


def swiglu(d: int, f: int) -> Shapes:
    return [(f, d), (f, d), (d, f)]


def ends(c: Config, *, tied: bool, norms: int = 1) -> Shapes:
    table = (c["vocab_size"], c["hidden_size"])
    return [table, *([] if tied else [table]), *[(c["hidden_size"],)] * norms]


def phi3small(c: Config) -> Shapes:
    d, f = c["hidden_size"], c["ff_intermediate_size"]
    kv = c["num_key_value_heads"] * d // c["num_attention_heads"]
    layer = [(d + 2 * kv, d), (d + 2 * kv,), (d, d), (d,), (2 * f, d), (2 * f,), (d, f), (d,), *[(d,)] * 4]
    return ends(c, tied=True, norms=2) + layer * c["num_hidden_layers"]


def openelm(c: Config) -> Shapes:
    d, head = c["model_dim"], c["head_dim"]
    shapes: Shapes = [(c["vocab_size"], d), (d,)]
    widths = [48, 64, 80]  # 0.75, 1 and 1.3 times 64, to multiples of 16
    for queries, keys, f in zip(c["num_query_heads"], c["num_kv_heads"], widths, strict=True):
        shapes += [((queries + 2 * keys) * head, d), (head,), (head,), (d, queries * head)]
        shapes += [(2 * f, d), (d, f), (d,), (d,)]
    return shapes


def jais(c: Config) -> Shapes:
    d, f, n = c["n_embd"], c["n_inner"], c["n_layer"]
    layer = [(d, 3 * d), (3 * d,), (d, d), (d,), (d, f), (f,), (d, f), (f,), (f, d), (d,), *[(d,)] * 4]
    return [(c["vocab_size"], d), (d,), (d,), *layer * n]


def plamo(c: Config) -> Shapes:
    d = c["hidden_size"]
    keys = d // c["num_attention_heads"] * (c["num_attention_heads"] // c["n_shared_head"])
    layer = [*attention(d, d, keys), *swiglu(d, c["intermediate_size"]), (d,)]
    return ends(c, tied=False) + layer * c["num_hidden_layers"]


def arctic(c: Config) -> Shapes:
    d, f = c["hidden_size"], c["intermediate_size"]
    shapes = ends(c, tied=False)
    for i in range(c["num_hidden_layers"]):
        shapes += [*attention(d, d, d // 2), (d,), (d,)]
        if (i + 1) % c["moe_layer_frequency"] == 0:
            shapes += [(c["num_local_experts"], d), *swiglu(d, f) * c["num_local_experts"], *swiglu(d, d), (d,)]
        else:
            shapes += swiglu(d, f)
    return shapes


def grok(c: Config) -> Shapes:
    d, f, e = c["hidden_size"], c["intermediate_size"], c["num_experts"]
    layer = [*attention(d, d, d // 2), (e, d), *swiglu(d, f) * e, *[(d,)] * 4]
    return ends(c, tied=True) + layer * c["num_hidden_layers"]


def deepseek(c: Config) -> Shapes:
    """DeepSeek's first code; `use_mla` is its second's."""
    d, e = c["hidden_size"], c["n_routed_experts"]
    heads, latent = c["num_attention_heads"], c.get("kv_lora_rank") or 0
    mixer = attention(d, d, d // 2)
    if latent:
        nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        mixer = [(heads * (nope + rope), d), (latent + rope, d), (latent,), (heads * (nope + value), latent)]
        mixer.append((d, heads * value))
    correction = [(e,)] if c.get("topk_method") == "noaux_tc" else []
    mixed = [(e, d), *swiglu(d, c["moe_intermediate_size"]) * e, *correction]
    mixed += swiglu(d, c["moe_intermediate_size"] * c["n_shared_experts"])
    first = c["first_k_dense_replace"]
    shapes = ends(c, tied=False)
    for i in range(c["num_hidden_layers"]):
        shapes += [*mixer, *(swiglu(d, c["intermediate_size"]) if i < first else mixed), (d,), (d,)]
    return shapes


def drafting(c: Config, wide: int) -> Shapes:
    """EAGLE-3: features of three layers, one layer that reads the embedding too, and a head over fewer tokens."""
    d, f, target = c["hidden_size"], c["intermediate_size"], c.get("target_hidden_size", c["hidden_size"])
    width = c.get("head_dim", d // c["num_attention_heads"])
    q, kv = c["num_attention_heads"] * width, c["num_key_value_heads"] * width
    layer = [(q, 2 * d), (kv, 2 * d), (kv, 2 * d), (d, q), *swiglu(d, f), *[(d,)] * 3]
    normed = [(target,)] * 3 if c.get("fc_norm") else []
    plain = [*attention(d, q, kv), *swiglu(d, f), (d,), (d,)]
    return [(c["vocab_size"], d), (c["draft_vocab_size"], d), (d, 3 * target), (d,), *normed, *layer, *plain * wide]  # type: ignore[operator, list-item]


def block(c: Config) -> Shapes:
    """DFlash, Domino, DSpark: specforge/modeling/draft of github.com/sgl-project/SpecForge, a6b6b02, whose classes have
    these counts on meta for all of its 17 configs; in a file of speculators, a table and a head more."""
    layers, own = c.get("transformer_layer_config", c), c.get("dflash_config", c)
    d, rank = layers["hidden_size"], own.get("markov_rank", 0)
    listed = c["aux_hidden_state_layer_ids"] if layers is not c else own["target_layer_ids"]
    width = layers["head_dim"]
    q, kv = layers["num_attention_heads"] * width, layers["num_key_value_heads"] * width
    layer = [*attention(d, q, kv), (width,), (width,), *swiglu(d, layers["intermediate_size"]), (d,), (d,)]
    shapes = [*layer * layers["num_hidden_layers"], (d,), (d, d * len(listed)), (d,)]
    rows = layers["vocab_size"]
    proposed = c.get("draft_vocab_size", rows)
    if layers is not c:
        shapes += [(rows, d), (proposed, d)]
    if rank:
        extra = {"vanilla": [], "gated": [(rank, d + rank), (rank,)], "rnn": [(3 * rank, 2 * rank + d), (3 * rank,)]}
        shapes += [(rows, rank), (proposed, rank), (d + rank,), (1,), *extra[own["markov_head_type"]]]
    if "gru_hidden_dim" in own:
        state, inner = own["gru_hidden_dim"], own["emb_dim"]
        shapes += [(3 * state, d), (3 * state, state), (inner, d + state), (rows, inner)]
    return shapes


def speculator(c: Config) -> Shapes:
    """eagle3/core.py and peagle/core.py of github.com/vllm-project/speculators, c05b95b, but what they do not save."""
    layers = {**LLAMA, **c["transformer_layer_config"], "draft_vocab_size": c["draft_vocab_size"]}
    mask = [(3 * layers["hidden_size"],)] * (c["speculators_model_type"] == "peagle")
    return drafting(layers, layers["num_hidden_layers"] - 1) + mask


def eagle(c: Config) -> Shapes:
    """EAGLE: a product of embedding and features, layers without the first norm; neither head nor last norm."""
    d, n = c["hidden_size"], c["num_hidden_layers"]
    layer = [*attention(d, d, d // 2), *swiglu(d, c["intermediate_size"])]
    return [(c["vocab_size"], d), (d, 2 * d), (d,), *layer * n, *[(d,)] * (2 * n - 1)]


def orion(c: Config) -> Shapes:
    d = c["hidden_size"]
    layer = [*attention(d, d, d // 2), *swiglu(d, c["intermediate_size"]), *[(d,)] * 4]
    return ends(c, tied=False, norms=2) + layer * c["num_hidden_layers"]


def yuan(c: Config) -> Shapes:
    d = c["hidden_size"]
    filters: Shapes = [(d // 2, d, 2), (d // 2,), (d, d // 2, 2), (d,), (d,)]
    layer = [*attention(d, d, d), *filters, *swiglu(d, c["intermediate_size"]), *[(d,)] * 2]
    return ends(c, tied=True) + layer * c["num_hidden_layers"]


def medusa(c: Config) -> Shapes:
    d, number = c["hidden_size"], c["medusa_num_heads"]
    return [(d, d), (d,), (c["vocab_size"], d)] * number


def falcon(c: Config) -> Shapes:
    """Falcon-7B has one norm a layer and one key; Falcon-40B two norms, and `n_head_kv` keys."""
    d, n = c["hidden_size"], c["n_layer"]
    width = d // c["n_head"]
    norms = 2 if "n_head_kv" in c else 1
    mixer = attention(d, d, width * c.get("n_head_kv", 1))
    return [(c["vocab_size"], d), (d,), (d,), *[*mixer, (4 * d, d), (d, 4 * d), *[(d,)] * (2 * norms)] * n]


def bailing(c: Config) -> Shapes:
    d, f, e = c["hidden_size"], c["moe_intermediate_size"], c["num_experts"]
    mixed = [(e, d), *swiglu(d, f) * e, *swiglu(d, f * c["num_shared_experts"])]
    return ends(c, tied=False) + [*attention(d, d, d // 2), *mixed, (d,), (d,)] * c["num_hidden_layers"]


def ling(c: Config) -> Shapes:
    """modeling_bailing_moe_v2.py of github.com/inclusionAI/Ling-V2, af8837e; its correction is a buffer."""
    d, e, f, width = c["hidden_size"], c["num_experts"], c["moe_intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * width, c["num_key_value_heads"] * width
    shapes = ends(c, tied=False)
    for i in range(c["num_hidden_layers"]):
        mixed = [(e, d), *swiglu(d, f) * e, *swiglu(d, f * c["num_shared_experts"])]
        wide = swiglu(d, c["intermediate_size"]) if i < c["first_k_dense_replace"] else mixed
        shapes += [(q + 2 * kv, d), (width,), (width,), (d, q), *wide, (d,), (d,)]
    return shapes


def hunyuan(c: Config) -> Shapes:
    """modeling_hunyuan.py of github.com/Tencent/Tencent-Hunyuan-Large, cdc3735."""
    d, f, e = c["hidden_size"], c["intermediate_size"], c["num_experts"]
    width = d // c["num_attention_heads"]
    shapes = ends(c, tied=False)
    for i in range(c["num_hidden_layers"]):
        keys = [] if i % c["cla_share_factor"] else [(d // 2, d), (d // 2, d)]
        mixed = [(e, d), *swiglu(d, f) * e, *swiglu(d, f * c["num_shared_expert"])] if e > 1 else swiglu(d, f)
        shapes += [(d, d), *keys, (d, d), (width,), (width,), *mixed, (d,), (d,)]
    return shapes


def minimax(c: Config) -> Shapes:
    """modeling_minimax_text_01.py of MiniMaxAI/MiniMax-Text-01, by its copies on GitHub."""
    d, f, e, width = c["hidden_size"], c["intermediate_size"], c["num_local_experts"], c["head_dim"]
    q, shapes = c["num_attention_heads"] * width, ends(c, tied=False)
    for full in c["attn_type_list"]:
        linear = [(3 * q, d), (q, d), (q,), (d, q)]
        mixer = attention(d, q, c["num_key_value_heads"] * width) if full else linear
        shapes += [*mixer, (e, d), *swiglu(d, f) * e, (d,), (d,)]
    return shapes


def codeshell(c: Config) -> Shapes:
    """modeling_codeshell.py of github.com/WisdomShell/codeshell, 09d1adc."""
    d, f, n = c["n_embd"], c["n_inner"], c["n_layer"]
    keys = c["num_query_groups"] * d // c["n_head"]
    layer = [(d + 2 * keys, d), (d + 2 * keys,), (d, d), (d,), (f, d), (f,), (d, f), (d,), *[(d,)] * 4]
    places = [] if c["position_embedding_type"] == "rope" else [(c["n_positions"], d)]
    return [(c["vocab_size"], d), *places, (d,), (d,), *layer * n]


def phi(c: Config) -> Shapes:
    """modeling_phi.py of microsoft/phi-2 before transformers had it, by its copies on GitHub."""
    d, n, v = c["n_embd"], c["n_layer"], c["vocab_size"]
    layer = [(3 * d, d), (3 * d,), (d, d), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,), (d,), (d,)]
    return [(v, d), *layer * n, (d,), (d,), (v, d), (v,)]


def olmo(c: Config) -> Shapes:
    """olmo/model.py of github.com/allenai/OLMo, 59a53e3."""
    d, both = c["d_model"], c.get("mlp_hidden_size") or c["mlp_ratio"] * c["d_model"]
    table = (c["embedding_size"], d)
    keys = d * (c.get("n_kv_heads") or c["n_heads"]) // c["n_heads"]
    norms = [(d,)] * (2 * c["layer_norm_with_affine"])
    normed = [(d,), (keys,)] * c["attention_layer_norm"]
    layer = [(d + 2 * keys, d), (d, d), (both, d), (d, both // 2), *norms, *normed]
    return [table, *([] if c["weight_tying"] else [table]), *norms[:1], *layer * c["n_layers"]]


def gte(c: Config) -> Shapes:
    """modeling.py of Alibaba-NLP/new-impl, by a copy on GitHub; 434,139,136 is what gte-large-en-v1.5's page says."""
    d, f = c["hidden_size"], c["intermediate_size"]
    layer = [*attention(d, d, d, bias="qkvo"), (2 * f, d), (d, f), (d,), *[(d,)] * 4]
    return [(c["vocab_size"], d), (c["type_vocab_size"], d), (d,), (d,), *layer * c["num_hidden_layers"]]


def jina(c: Config) -> Shapes:
    """modeling_bert.py of jinaai/jina-bert-implementation; 137,368,320 at the sizes of jina-embeddings-v2-base-en."""
    d = c["hidden_size"]
    return [*gte(c), (d, d), (d,)]


def rewards(c: Config) -> Shapes:
    """modeling_qwen2_rm.py of Qwen/Qwen2.5-Math-PRM-7B, by a copy on GitHub; the class for outcomes has one label."""
    d, classes = c["hidden_size"], c.get("num_labels", 1)
    layer = [*attention(d, d, d // 2, bias="qkv"), *swiglu(d, c["intermediate_size"]), (d,), (d,)]
    score = [(d, d), (d,), (classes, d), (classes,)]
    return [(c["vocab_size"], d), (d,), *layer * c["num_hidden_layers"], *score]


def molmo(c: Config) -> Shapes:
    """modeling_molmo.py of allenai/Molmo-7B-D-0924, by its copy in github.com/sophgo/LLM-TPU."""
    d, both, rows = c["hidden_size"], c["intermediate_size"], c["embedding_size"]
    keys = c["num_key_value_heads"] * d // c["num_attention_heads"]
    biases = [(d + 2 * keys,)] * c["qkv_bias"]
    normed = [(d,), (keys,)] * c["attention_layer_norm"]
    layer = [(d + 2 * keys, d), *biases, (d, d), (both, d), (d, both // 2), (d,), (d,), *normed]
    return [(rows, d), (128, d), (rows, d), (d,), *layer * c["num_hidden_layers"]]


DRAFT: Config = {**LLAMA, "model_type": "llama", "draft_vocab_size": 40, "num_hidden_layers": 1}
FLASH: Config = {**LLAMA, "model_type": "qwen3", "head_dim": 12, "block_size": 8, "num_target_layers": 9,
                 "layer_types": ["sliding_attention", "full_attention", "full_attention"], "sliding_window": 32,
                 "use_sliding_window": True,
                 "dflash_config": {"mask_token_id": 7, "target_layer_ids": [1, 4, 6]}}  # fmt: skip
QWEN = {key: value for key, value in FLASH.items() if key not in ("block_size", "num_target_layers", "dflash_config")}
SPARK = {"projector_type": "dspark", "markov_rank": 6, "enable_confidence_head": True,
         "confidence_head_with_markov": True, "confidence_head_alpha": 1.0}  # fmt: skip
SPECULATOR: Config = {"speculators_model_type": "eagle3", "speculators_version": "0.3.0", "draft_vocab_size": 40,
                      "speculators_config": {"algorithm": "eagle3"}, "norm_before_residual": True,
                      "transformer_layer_config": {**LLAMA, "model_type": "llama", "num_hidden_layers": 1}}  # fmt: skip
DRAFTS: dict[str, tuple[Config, Callable[[Config], Shapes]]] = {
    "medusa": ({"medusa_num_heads": 3, "hidden_size": 64, "vocab_size": 100}, medusa),
    "eagle3": ({**DRAFT, "architectures": ["LlamaForCausalLMEagle3"]}, lambda c: drafting(c, 0)),
    "eagle3, wider": (
        {
            **DRAFT,
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "qwen2",
            "head_dim": 12,
            "target_hidden_size": 80,
            "fc_norm": True,
            "draft_vocab_size": 100,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
        },
        lambda c: drafting(c, 0),
    ),
    "peagle": (
        {**DRAFT, "architectures": ["PEagleDraftModel"], "num_hidden_layers": 3},
        lambda c: [*drafting(c, 2), (3 * c["hidden_size"],)],
    ),
    "eagle": ({**LLAMA, "model_type": "llama", "architectures": ["LlamaForCausalLMEagle"]}, eagle),
    "eagle3, as llama": ({**DRAFT, "architectures": ["LlamaForCausalLM"]}, lambda c: drafting(c, 0)),
    "dflash": ({**FLASH, "architectures": ["DFlashDraftModel"]}, block),
    "domino": (
        {**FLASH, "architectures": ["DominoDraftModel"], "emb_dim": 6}
        | {
            "dflash_config": {
                "projector_type": "domino",
                "target_layer_ids": [1, 2],
                "emb_dim": 6,
                "gru_hidden_dim": 10,
            }
        },
        block,
    ),
    **{
        f"dspark, {form}": (
            {**FLASH, "architectures": ["DSparkDraftModel"]}
            | {"dflash_config": {**SPARK, "markov_head_type": form, "target_layer_ids": [1, 2]}},
            block,
        )
        for form in ("vanilla", "gated", "rnn")
    },
    "speculators, eagle3": ({**SPECULATOR, "architectures": ["Eagle3Speculator"]}, speculator),
    "speculators, peagle": (
        {**SPECULATOR, "architectures": ["PEagleSpeculator"], "speculators_model_type": "peagle"}
        | {"transformer_layer_config": {**LLAMA, "model_type": "llama", "num_hidden_layers": 2}},
        speculator,
    ),
    "speculators, dflash": (
        {"architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash", "draft_vocab_size": 40}
        | {"aux_hidden_state_layer_ids": [1, 2], "transformer_layer_config": QWEN},
        block,
    ),
    "speculators, dspark": (
        {"architectures": ["DSparkSpeculator"], "speculators_model_type": "dspark", "draft_vocab_size": 40}
        | {"aux_hidden_state_layer_ids": [1], "markov_rank": 7, "markov_head_type": "gated"}
        | {"transformer_layer_config": QWEN},
        block,
    ),
}
MIXED = {"num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_shared_experts": 2, "moe_intermediate_size": 24}
GROUPED = {**MIXED, "num_experts": 8, "num_shared_experts": 2, "n_group": 4, "topk_group": 2, "head_dim": 12}
GROUPED = {key: value for key, value in GROUPED.items() if key != "n_shared_experts"}
HUNYUAN = {"model_type": "hunyuan", "use_cla": True, "cla_share_factor": 2, "use_qk_norm": True, "num_experts": 4,
           "moe_topk": 1, "use_mixed_mlp_moe": True, "num_shared_expert": 2}  # fmt: skip
SHELL = {"model_type": "codeshell", "n_embd": 64, "n_layer": 3, "n_head": 8, "num_query_groups": 2, "n_inner": 96,
         "n_positions": 128, "vocab_size": 100}  # fmt: skip
OLMO = {"model_type": "hf_olmo", "architectures": ["OLMoForCausalLM"], "d_model": 64, "n_layers": 3, "n_heads": 4,
        "vocab_size": 90, "embedding_size": 100, "rope": True, "include_bias": False, "attention_layer_norm": False,
        "layer_norm_with_affine": False, "activation_type": "swiglu", "max_sequence_length": 128}  # fmt: skip
BERT = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96,
        "vocab_size": 100, "type_vocab_size": 2, "max_position_embeddings": 128}  # fmt: skip
MOLMO = {**LLAMA, "model_type": "molmo", "architectures": ["MolmoForCausalLM"], "embedding_size": 104,
         "layer_norm_type": "rms", "weight_tying": False, "layer_norm_eps": 1e-6}  # fmt: skip
CASES: dict[str, tuple[Config, Callable[[Config], Shapes]]] = {
    "phi3small": (
        {
            **{key: value for key, value in LLAMA.items() if key != "intermediate_size"},
            "model_type": "phi3small",
            "ff_intermediate_size": 96,
            "dense_attention_every_n_layers": 2,
        },
        phi3small,
    ),
    "openelm": (
        {
            "model_type": "openelm",
            "model_dim": 64,
            "num_transformer_layers": 3,
            "head_dim": 16,
            "vocab_size": 100,
            "num_query_heads": [4, 4, 8],
            "num_kv_heads": [1, 2, 2],
            "ffn_multipliers": [0.75, 1.0, 1.3],
            "ffn_dim_divisor": 16,
            "normalize_qk_projections": True,
            "share_input_output_layers": True,
        },
        openelm,
    ),
    "jais": (
        {
            "model_type": "jais",
            "architectures": ["JAISLMHeadModel"],
            "n_embd": 64,
            "n_layer": 3,
            "n_head": 8,
            "n_inner": 90,
            "n_positions": 128,
            "vocab_size": 100,
            "activation_function": "swiglu",
            "position_embedding_type": "alibi",
        },
        jais,
    ),
    "plamo": ({**LLAMA, "model_type": "plamo", "num_key_value_heads": 8, "n_shared_head": 4}, plamo),
    "arctic": (
        {
            **LLAMA,
            "model_type": "arctic",
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "moe_layer_frequency": 2,
            "parallel_attn_mlp_res": True,
        },
        arctic,
    ),
    "yuan": (
        {
            "model_type": "yuan",
            "architectures": ["YuanForCausalLM"],
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "vocab_size": 100,
            "tie_word_embeddings": True,
        },
        yuan,
    ),
    "orion": ({**LLAMA, "model_type": "orion", "architectures": ["OrionForCausalLM"]}, orion),
    "stablelm_epoch": (
        {
            **LLAMA,
            "model_type": "stablelm_epoch",
            "architectures": ["StableLMEpochForCausalLM"],
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 50304,
            "rope_pct": 0.25,
            "norm_eps": 1e-05,
        },
        lambda c: [(2_795_443_200,)],  # its card says so
    ),
    "RefinedWebModel": (
        {
            "model_type": "RefinedWebModel",
            "architectures": ["RWForCausalLM"],
            "hidden_size": 64,
            "n_layer": 3,
            "n_head": 8,
            "vocab_size": 100,
            "multi_query": True,
            "parallel_attn": True,
            "alibi": False,
            "bias": False,
        },
        falcon,
    ),
    "RefinedWeb": (
        {
            "model_type": "RefinedWeb",
            "architectures": ["RWForCausalLM"],
            "hidden_size": 64,
            "n_layer": 3,
            "n_head": 8,
            "n_head_kv": 2,
            "vocab_size": 100,
            "parallel_attn": True,
            "alibi": False,
            "bias": False,
        },
        falcon,
    ),
    "bailing_moe": (
        {
            **LLAMA,
            "model_type": "bailing_moe",
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "num_shared_experts": 2,
            "moe_intermediate_size": 24,
            "norm_head": True,
        },
        bailing,
    ),
    "grok-1": ({**LLAMA, "model_type": "grok-1", "num_experts": 5, "num_experts_per_tok": 2}, grok),
    "bailing_moe_v2": (
        {**LLAMA, **GROUPED, "model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"]},
        ling,
    ),
    "hunyuan": ({**LLAMA, **HUNYUAN, "architectures": ["HunYuanForCausalLM"]}, hunyuan),
    "hunyuan, dense": ({**LLAMA, **HUNYUAN, "num_experts": 1, "cla_share_factor": 1}, hunyuan),
    "minimax_text_01": (
        {
            **LLAMA,
            "model_type": "minimax_text_01",
            "architectures": ["MiniMaxText01ForCausalLM"],
            "head_dim": 12,
            "rotary_dim": 6,
            "num_local_experts": 3,
            "num_experts_per_tok": 2,
            "attn_type_list": [0, 1, 0],
            "postnorm": True,
            "shared_intermediate_size": [0],
            "layernorm_mlp_alpha": 3.5,
        },
        minimax,
    ),
    "codeshell": ({**SHELL, "position_embedding_type": "rope"}, codeshell),
    "codeshell, learned": ({**SHELL, "position_embedding_type": "learned_absolute"}, codeshell),
    "phi-msft": (
        {"model_type": "phi-msft", "architectures": ["PhiForCausalLM"], "n_embd": 64, "n_layer": 3, "n_head": 4}
        | {"n_head_kv": None, "n_inner": None, "rotary_dim": 8, "vocab_size": 100, "n_positions": 128},
        phi,
    ),
    "hf_olmo": ({**OLMO, "mlp_hidden_size": 96, "weight_tying": True, "mlp_ratio": 4}, olmo),
    "hf_olmo, normed": (
        {**OLMO, "layer_norm_type": "rms", "layer_norm_with_affine": True, "weight_tying": False, "mlp_ratio": 4}
        | {"attention_layer_norm": True, "norm_after": True, "n_kv_heads": 2},
        olmo,
    ),
    "new": (
        {**BERT, "model_type": "new", "architectures": ["NewModel"], "position_embedding_type": "rope"}
        | {"rope_scaling": {"type": "ntk", "factor": 2.0}, "pack_qkv": True, "layer_norm_type": "layer_norm"},
        gte,
    ),
    "jina_bert": (
        {**BERT, "model_type": "bert", "architectures": ["JinaBertModel"], "position_embedding_type": "alibi"}
        | {"feed_forward_type": "geglu"}
        | {"auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"}},
        jina,
    ),
    "RefinedWebModel, its first": (
        {"model_type": "RefinedWebModel", "architectures": ["RWForCausalLM"], "hidden_size": 2048, "n_layer": 24}
        | {"n_head": 32, "vocab_size": 50304, "alibi": True, "bias": True, "multi_query": False}
        | {"parallel_attn": False, "apply_residual_connection_post_layernorm": False},
        lambda c: [(1_311_625_216,)],  # what Falcon-RW-1B's page says
    ),
    "qwen2_reward": ({**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForRewardModel"]}, rewards),
    "qwen2_reward, of steps": (
        {
            **LLAMA,
            "model_type": "qwen2",
            "architectures": ["Qwen2ForProcessRewardModel"],
            "num_labels": 3,
            "alpha": 0.5,
        },
        rewards,
    ),
    "molmo": ({**MOLMO, "qkv_bias": True, "attention_layer_norm": False, "norm_after": False}, molmo),
    "molmo, normed": ({**MOLMO, "qkv_bias": False, "attention_layer_norm": True, "norm_after": True}, molmo),
    "deepseek": ({**LLAMA, **MIXED, "model_type": "deepseek", "n_routed_experts": 5}, deepseek),
    "deepseek_vl_v2": (
        {
            "model_type": "deepseek_vl_v2",
            "architectures": ["DeepseekVLV2ForCausalLM"],
            "vision_config": {"width": 8},
            "language_config": {
                **LLAMA,
                **MIXED,
                "num_key_value_heads": 8,
                "n_routed_experts": 5,
                "kv_lora_rank": 12,
                "q_lora_rank": None,
                "qk_nope_head_dim": 10,
                "qk_rope_head_dim": 6,
                "v_head_dim": 14,
                "topk_method": "noaux_tc",
                "scoring_func": "sigmoid",
            },
        },
        lambda c: deepseek(c["language_config"]),
    ),
    "deepseek_vl_v2, heads": (
        {
            "model_type": "deepseek_vl_v2",
            "language_config": {**LLAMA, **MIXED, "n_routed_experts": 5, "use_mla": False, "kv_lora_rank": None},
        },
        lambda c: deepseek(c["language_config"]),
    ),
}


@pytest.mark.parametrize("name", [*CASES, *DRAFTS])
def test_parameters_are_those_of_the_tensors(name: str) -> None:
    config, shapes = (CASES | DRAFTS)[name]
    assert build(*describe(config)).params == sum(map(prod, shapes(config)))


def test_rwkv7_without_sizes_that_its_class_derives() -> None:
    ranks = {f"{name}_low_rank_dim": 32 for name in ("decay", "a", "v", "gate")}
    config = {"model_type": "rwkv7", "hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 100, "head_dim": 64}
    said = build(*describe(config | ranks | {"intermediate_size": 512})).params
    for nulls in ({"intermediate_size": None}, {"intermediate_size": None, "head_dim": None, "num_heads": 2}):
        assert build(*describe(config | ranks | nulls)).params == said
    with pytest.raises(InputError, match="num_heads is missing"):  # its class asks for one of the two
        describe(config | ranks | {"head_dim": None})


def test_every_type_has_a_case() -> None:
    # Another name of one that has a case, and what has a test of its own.
    twins = {"minimax_m1", "mixformer-sequential", "rwkv7", "step3_text", "step3_vl"}
    custom = {name for name, (module, _) in READERS.items() if module in ("custom", "earlier")} - twins
    read = {describe(config)[0]["model_type"] for config, _ in CASES.values()}
    assert custom <= read and custom
    assert set(WHOLES) == {name for name, (module, _) in READERS.items() if module == "wrapped"}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("phi3small", {"attention_bias": True}, "attention_bias"),
        ("phi3small", {"hidden_act": "silu"}, "hidden_act"),
        ("openelm", {"num_query_heads": [4, 4]}, "num_query_heads"),
        ("openelm", {"ffn_multipliers": None}, "ffn_multipliers"),
        ("openelm", {"num_kv_heads": [3, 2, 2]}, "num_kv_heads is 3"),
        ("jais", {"position_embedding_type": "rotary"}, "position_embedding_type"),
        ("plamo", {"n_shared_head": 3}, "n_shared_head is 3"),
        ("arctic", {"sliding_window": 64}, "sliding_window"),
        ("deepseek", {"topk_method": "other"}, "topk_method"),
        ("bailing_moe_v2", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ("hunyuan", {"num_experts": [4, 4, 4]}, "num_experts"),
        ("minimax_text_01", {"shared_intermediate_size": 96}, "shared_intermediate_size"),
        ("minimax_text_01", {"attn_type_list": [0, 1]}, "attn_type_list is a list of 3 items|3 items, one a layer"),
        ("codeshell", {"num_query_groups": 3}, "num_query_groups is 3"),
        ("phi-msft", {"num_local_experts": 4}, "num_local_experts"),
        ("hf_olmo", {"mlp_hidden_size": 97}, "mlp_hidden_size is 97"),
        ("hf_olmo, normed", {"attention_layer_norm_with_affine": False}, "attention_layer_norm_with_affine"),
        ("molmo", {"tie_word_embeddings": True}, "tie_word_embeddings"),
        ("new", {"position_embedding_type": "absolute"}, "position_embedding_type"),
        ("jina_bert", {"auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--x"}}, "other norms"),
        ("jina_bert", {"feed_forward_type": "original"}, "feed_forward_type"),
        ("deepseek", {"architectures": ["DeepseekV3ForCausalLM"]}, "architectures"),
        ("deepseek_vl_v2", {"language_config": 7}, "language_config is 7"),
        ("deepseek_vl_v2", {"hidden_size": 65}, "language_config.hidden_size says the same thing"),
        ("deepseek_vl_v2", {"tie_word_embeddings": True}, "tie_word_embeddings"),
        ("eagle3", {"num_hidden_layers": 2}, "num_hidden_layers"),
        ("eagle3", {"draft_vocab_size": 101}, "draft_vocab_size is 101"),
        ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]}}, "three layers"),
        ("eagle3", {"attention_bias": True}, "attention_bias"),
        ("eagle3", {"architectures": ["MistralForCausalLM"]}, "draft_vocab_size"),
        ("dflash", {"dflash_config": {"target_layer_ids": 3}}, "target_layer_ids is 3"),
        ("dflash", {"dflash_config": {"projector_type": "domino"}}, "projector_type"),
        ("dspark, rnn", {"dflash_config": {**SPARK, "markov_head_type": "other"}}, "markov_head_type is 'other'"),
        ("speculators, eagle3", {"norm_before_fc": True}, "norm_before_fc"),
        ("speculators, eagle3", {"transformer_layer_config": {**LLAMA, "model_type": "qwen3"}}, "norms of Q and K"),
        ("speculators, eagle3", {"transformer_layer_config": {**LLAMA, "model_type": "mixtral"}}, "model_type is 'mix"),
        (
            "speculators, eagle3",
            {"transformer_layer_config": 7},
            "transformer_layer_config is 7",
        ),
    ],
)
def test_what_the_code_cannot_be_is_refused(name: str, change: Config, message: str) -> None:
    with pytest.raises(InputError, match=message):
        describe({**(CASES | DRAFTS)[name][0], **change})


def test_kimi_vl_counts_the_correction_of_its_own_code() -> None:
    text = {**LLAMA, **MIXED, "model_type": "deepseek_v3", "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
    text |= {"kv_lora_rank": 12, "q_lora_rank": None, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 14}
    text |= {"num_key_value_heads": 8}
    whole = {"model_type": "kimi_vl", "text_config": text, "vision_config": {}}
    assert build(*describe(whole)).params - build(*describe(text)).params == 2 * 4  # two layers with four experts


WEIRD: list[Any] = [
    None,
    0,
    -1,
    1,
    3,
    10**9,
    1.5,
    float("nan"),
    "",
    "x",
    True,
    [],
    [1],
    [0, 1, 0],
    ["a"],
    {},
    {"a": 1},
    [[]],
]


def test_mutants_are_answered_or_refused() -> None:
    """Any value in the place of any other: an answer or an `InputError`, and nothing else."""
    luck = Random(15)
    configs = [config for config, _ in (CASES | DRAFTS).values()]
    answered = 0
    for _ in range(300):
        mutant = dict(luck.choice(configs))
        inner = [key for key, value in mutant.items() if isinstance(value, dict) and value]
        key = luck.choice(list(mutant))
        if inner and luck.random() < 0.5:
            table = luck.choice(inner)
            mutant[table] = {**mutant[table], luck.choice(list(mutant[table])): luck.choice(WEIRD)}
        else:
            mutant[key] = luck.choice(WEIRD)
        try:
            answered += build(*describe(mutant)).params > 0
        except InputError:
            continue
    assert 20 < answered < 200


def test_what_a_draft_costs() -> None:
    """Its features once a token; q, k and v twice as wide; a cache of its own."""
    config, shapes = DRAFTS["eagle3"]
    model = build(*describe(config))
    ledger = model.ledger(1, 7)
    matrices = [shape for shape in shapes(config)[1:] if len(shape) == 2]
    scores = 2 * 2 * 8 * 8 * 7 * 7
    assert ledger.total("flops") == 2 * 7 * sum(map(prod, matrices)) + scores
    assert ledger.total("cache") == 7 * 2 * 4 * 8


def test_what_a_draft_of_blocks_costs() -> None:
    """Every position passes the layers, and attends to all before it and those drafted with it; no head is its own."""
    config = {**FLASH, "architectures": ["DFlashDraftModel"], "layer_types": ["full_attention"] * 3}
    model = build(*describe(config))
    q, kv, d, f = 8 * 12, 4 * 12, 64, 96
    assert model.ledger(1, 8, 100).total("flops") == 3 * (
        2 * 8 * (2 * d * q + 2 * d * kv + 3 * d * f) + 4 * q * 8 * 108
    )
    notes = " ".join(model.notes)
    assert f"{2 * 3 * d * d + 4 * 3 * d * kv:,} FLOPs, once a token" in notes and "are not counted" in notes


def test_a_draft_of_blocks_has_no_time(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**FLASH, "architectures": ["DFlashDraftModel"]}))
    with pytest.raises(InputError, match="drafts a block in one pass"):
        txcalc.deploy("gpt2", "h100-sxm", draft=f"4:{tmp_path}", acceptance="70%")


TEXTS: dict[str, Config] = {
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "llama": {"model_type": "llama"},
    "qwen": {"model_type": "qwen"},
    "qwen3": {"model_type": "qwen3"},
    "internlm2": {"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"], "bias": False},
}
QWEN_1 = {"model_type": "qwen", "architectures": ["QWenLMHeadModel"], "kv_channels": 8} | {
    key: value for key, value in LLAMA.items() if key != "num_key_value_heads"
}
SMALL = {**LLAMA, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("whole", "text"),
    [
        ({"model_type": "internvl_chat", "llm_config": {**SMALL, **TEXTS["internlm2"]}}, "internlm2"),
        ({"model_type": "internvl_chat", "llm_config": {**SMALL, "architectures": ["Qwen2ForCausalLM"]}}, "qwen2"),
        ({"model_type": "sa2va_chat", "llm_config": {**SMALL, "architectures": ["Qwen2ForCausalLM"]}}, "qwen2"),
        ({"model_type": "h2ovl_chat", "llm_config": {**SMALL, **TEXTS["llama"]}}, "llama"),
        ({"model_type": "multi_modality", "language_config": SMALL, "vision_config": {}}, "llama"),
        ({"model_type": "llava_llama", "llm_cfg": {**SMALL, **TEXTS["llama"], "tokenizer_max": 9}}, "llama"),
        ({**SMALL, "model_type": "llava_qwen", "mm_hidden_size": 24}, "qwen2"),
        ({**SMALL, "model_type": "qwen2", "architectures": ["LlavaQwenForCausalLM"], "mm_hidden_size": 24}, "qwen2"),
        ({**SMALL, "model_type": "llava", "architectures": ["LlavaLlamaForCausalLM"]}, "llama"),
        ({**SMALL, "model_type": "minicpmv", "version": 2.6, "query_num": 64, "vision_config": {}}, "qwen2"),
        ({**SMALL, "model_type": "minicpmv", "version": 4.0, "query_num": 64}, "llama"),
        ({**SMALL, "model_type": "minicpmv", "query_num": 96}, "llama"),
        ({**SMALL, "model_type": "minicpmo", "version": "2.6"}, "qwen2"),
        ({**SMALL, "model_type": "dots_ocr", "architectures": ["DotsOCRForCausalLM"], "vision_config": {}}, "qwen2"),
        ({**SMALL, "model_type": "Keye", "vision_config": {}, "image_token_id": 7}, "qwen3"),
        ({**QWEN_1, "visual": {"width": 8}}, "qwen"),
        ({**QWEN_1, "audio": {"n_mels": 80}}, "qwen"),
    ],
)  # fmt: skip
def test_a_language_model_in_a_whole(whole: Config, text: str) -> None:
    alone, found = build(*describe({**(QWEN_1 if text == "qwen" else SMALL), **TEXTS[text]})), build(*describe(whole))
    assert found.params == alone.params
    assert "the language model alone is counted" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ({"model_type": "internvl_chat", "llm_config": {**SMALL, "model_type": "opt"}}, "llm_config.model_type"),
        ({"model_type": "internvl_chat"}, "llm_config is missing"),
        ({"base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 5}, "hidden_size is missing"),
        ({"model_type": "rwkv6", "architectures": ["Rwkv6ForCausalLM"], "auto_map": {}}, r"seventh \(rwkv7\)"),
        (
            {"model_type": "internvl_chat", "llm_config": {**TEXTS["internlm2"], "model_type": "qwen2"}},
            r"llm_config.architectures\[0\]",
        ),
        ({**SMALL, "model_type": "minicpmv", "version": 9.1}, "version is 9.1"),
        ({**SMALL, "model_type": "llava_qwen", "num_experts": 8}, "num_experts"),
        ({**SMALL, "model_type": "llava_qwen", "architectures": ["BunnyQwenForCausalLM"]}, "architectures"),
    ],
)  # fmt: skip
def test_a_whole_that_says_something_else_is_refused(whole: Config, message: str) -> None:
    with pytest.raises(InputError, match=message):
        describe(whole)


STEP3 = {
    "model_type": "step3_text", "architectures": ["Step3TextForCausalLM"], "hidden_size": 7168,
    "intermediate_size": 18432, "num_attention_heads": 64, "num_attention_groups": 1, "num_hidden_layers": 61,
    "vocab_size": 128815, "moe_intermediate_size": 5120, "moe_num_experts": 48, "moe_top_k": 3, "head_dim": 256,
    "share_expert_dim": 5120, "share_q_dim": 2048, "moe_layers_enum": ",".join(map(str, range(4, 60))),
}  # fmt: skip


def test_step3() -> None:
    """The matrices of its published code: queries through a narrow one, one head of keys, 56 layers of experts."""
    d, narrow, heads, width, wide, rows = 7168, 2048, 64, 256, 5120, 128815
    attention = d * narrow + narrow + narrow * heads * width + 2 * d * width + heads * width * d
    sparse, dense = 49 * 3 * d * wide + 48 * d, 3 * d * 18432
    expected = 2 * rows * d + d + 61 * (attention + 2 * d) + 56 * sparse + 5 * dense
    beside = {"model_type": "step3_vl", "architectures": ["Step3VLForConditionalGeneration"], "text_config": STEP3}
    for config in (STEP3, beside):
        model = build(*describe(config))
        assert model.params == expected
        assert model.ledger(1, 7).total("cache") == 7 * 61 * 2 * width
    for change in ({"architectures": ["LlamaForCausalLM"]}, {"num_attention_groups": 2}, {"n_routed_experts": 8}):
        with pytest.raises(InputError, match=next(iter(change))):
            describe(STEP3 | change)


@pytest.mark.parametrize("said", ["1-2", "8,9", "", None, 7, True, [1, True], [1.0], {}])
def test_step3_names_layers_that_it_has(said: Any) -> None:
    small = STEP3 | {"num_hidden_layers": 3}
    listed, text = (build(*describe(small | {"moe_layers_enum": good})).params for good in ([1, 2], "1, 2"))
    assert listed == text
    with pytest.raises(InputError, match=r"moe_layers_enum is .*, expected numbers of layers from 0 to 2"):
        describe(small | {"moe_layers_enum": said})
