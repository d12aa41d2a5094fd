"""The reference models are the real architectures: tiny random ones of transformers, copied weight by weight, give the
same logits."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'txcalc[verify]'")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    hf = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'txcalc[test]'")

from tiny import TINY, V  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from txcalc import reference  # noqa: E402
from txcalc.sources import build as described  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # what transformers warns of is its own
]

Copied = Mapping[str, Tensor]
Rule = str | Callable[..., Copied]
CLOSE = {"atol": 1e-4, "rtol": 1e-4}
B, T = 2, 11


class Case(NamedTuple):
    """transformers' class and config, our description, and where each of its weights goes.

    A rule's pattern matches a whole name; it gives our name (with the pattern's groups), or a function of the groups
    and the tensor gives names and tensors. Rows of one of ours that are apart in theirs are `name#1`, `name#2`, ….
    """

    name: str
    model: str
    config: str
    settings: Mapping[str, Any]
    raw: Mapping[str, Any]
    rules: Mapping[str, Rule]
    buffers: str = "no buffer is copied"
    fixed: str = "no buffer is copied as it is"


def transposed(name: str) -> Rule:
    """GPT-2's Conv1D keeps its matrices (in, out)."""
    return lambda *groups, tensor: {name.format(*groups): tensor.T}


def parts(*names: str) -> Rule:
    """One matrix that is several, one under the other."""
    return lambda *groups, tensor: dict(
        zip((name.format(*groups) for name in names), tensor.chunk(len(names)), strict=True)
    )


def qkv_by_head(layer: str, suffix: str, tensor: Tensor) -> Copied:
    """q, k and v interleaved head by head (BLOOM, GPT-NeoX), four heads."""
    rows = tensor.unflatten(0, (4, 3, -1))
    return {f"layers.{layer}.attention.{name}.{suffix}": rows[:, i].flatten(0, 1) for i, name in enumerate("qkv")}


def thirds_by_head(layer: str, tensor: Tensor) -> Copied:
    """The same without biases, head by head q over k over v (DeBERTa)."""
    return qkv_by_head(layer, "weight", tensor)


def expert_pairs(layer: str, tensor: Tensor) -> Copied:
    """gate and up of every expert, one under the other."""
    at = f"layers.{layer}.experts.routed"
    return {
        f"{at}.{e}.{name}.weight": half
        for e, expert in enumerate(tensor)
        for name, half in zip(("gate", "up"), expert.chunk(2), strict=True)
    }


def expert_downs(layer: str, tensor: Tensor) -> Copied:
    return {f"layers.{layer}.experts.routed.{e}.down.weight": expert for e, expert in enumerate(tensor)}


def oss_pairs(layer: str, suffix: str, tensor: Tensor) -> Copied:
    """gpt-oss: (in, out) matrices, gate and up in alternating columns."""
    at, kind = f"layers.{layer}.experts.routed", suffix.lstrip("_") or "weight"
    return {
        f"{at}.{e}.{name}.{kind}": expert[..., i::2].T
        for e, expert in enumerate(tensor)
        for i, name in enumerate(("gate", "up"))
    }


def oss_downs(layer: str, suffix: str, tensor: Tensor) -> Copied:
    at, kind = f"layers.{layer}.experts.routed", suffix.lstrip("_") or "weight"
    return {f"{at}.{e}.down.{kind}": expert.T for e, expert in enumerate(tensor)}


def shared_channel(name: str) -> Rule:
    """A vector that is kept with axes of one."""
    return lambda *groups, tensor: {name.format(*groups): tensor.flatten()}


def delta_projections(layer: str, tensor: Tensor) -> Copied:
    """q, k, v and z of two key heads of 8 and four value heads of 6, interleaved key head by key head."""
    q, k, v, z = tensor.unflatten(0, (2, -1)).split((8, 8, 12, 12), 1)
    mixed = torch.cat([side.flatten(0, 1) for side in (q, k, v)])
    at = f"layers.{layer}.delta"
    return {f"{at}.in_proj.weight": mixed, f"{at}.gate_proj.weight": z.flatten(0, 1)}


def delta_gates(layer: str, tensor: Tensor) -> Copied:
    beta, decay = (side.flatten(0, 1) for side in tensor.unflatten(0, (2, -1)).chunk(2, 1))
    return {f"layers.{layer}.delta.beta_proj.weight": beta, f"layers.{layer}.delta.decay_proj.weight": decay}


def queries_and_gates(layer: str, tensor: Tensor) -> Copied:
    """A query and its gates, head by head."""
    q, gates = (side.flatten(0, 1) for side in tensor.unflatten(0, (4, -1)).chunk(2, 1))
    return {f"layers.{layer}.attention.q.weight": q, f"layers.{layer}.attention.g.weight": gates}


def stacked_rows(layer: str, letter: str, tensor: Tensor) -> Copied:
    """q, k and v of a delta rule, one under the other."""
    return {f"layers.{layer}.delta.in_proj.weight#{'qkv'.index(letter)}": tensor}


def delta_rules(layers: str, name: str) -> dict[str, Rule]:
    """Those of Kimi's delta attention, or OLMo's delta rule, of these layers."""
    at, ours = rf"model\.layers\.([{layers}])\.", r"layers.\1.delta."
    return {
        at + r"input_layernorm\.weight": r"layers.\1.delta_norm.weight",
        at + rf"{name}\.([qkv])_proj\.weight": stacked_rows,
        at + rf"{name}\.(?:forget_gate\.)?A_log": shared_channel("layers.{0}.delta.scan.A_log"),
        at + rf"{name}\.(?:forget_gate\.)?dt_bias": ours + "scan.dt_bias",
        at + rf"{name}\.conv1d\.weight": ours + "conv.weight",
        at + rf"{name}\.(?:forget_gate\.f|a)_proj\.weight": ours + "decay_proj.weight",
        at + rf"{name}\.forget_gate\.f_a_proj\.weight": ours + "decay_down.weight",
        at + rf"{name}\.forget_gate\.f_b_proj\.weight": ours + "decay_up.weight",
        at + rf"{name}\.g_proj\.weight": ours + "gate_proj.weight",
        at + rf"{name}\.g_a_proj\.weight": ours + "gate_down.weight",
        at + rf"{name}\.g_b_proj\.weight": ours + "gate_up.weight",
        at + rf"{name}\.b_proj\.weight": ours + "beta_proj.weight",
        at + rf"{name}\.o_norm\.weight": ours + "norm.weight",
        at + rf"{name}\.o_proj\.weight": ours + "out_proj.weight",
    }


LLAMA: dict[str, Rule] = {
    r"model\.embed_tokens\.weight": "embedding.tokens.weight",
    r"model\.layers\.(\d+)\.self_attn\.([qkvo])_proj\.(\w+)": r"layers.\1.attention.\2.\3",
    r"model\.layers\.(\d+)\.self_attn\.([qk]_norm)\.weight": r"layers.\1.attention.\2.weight",
    r"model\.layers\.(\d+)\.input_layernorm\.weight": r"layers.\1.attention_norm.weight",
    r"model\.layers\.(\d+)\.post_attention_layernorm\.weight": r"layers.\1.feed_forward_norm.weight",
    r"model\.layers\.(\d+)\.mlp\.(gate|up|down)_proj\.weight": r"layers.\1.feed_forward.\2.weight",
    r"model\.norm\.weight": "final_norm.weight",
    r"lm_head\.weight": "head.projection.weight",
}
EXPERTS: dict[str, Rule] = {
    **LLAMA,
    r"model\.layers\.(\d+)\.post_attention_layernorm\.weight": r"layers.\1.experts_norm.weight",
    r"model\.layers\.(\d+)\.mlp\.gate\.weight": r"layers.\1.experts.router.weight",
    r"model\.layers\.(\d+)\.mlp\.experts\.gate_up_proj": expert_pairs,
    r"model\.layers\.(\d+)\.mlp\.experts\.down_proj": expert_downs,
    r"model\.layers\.(\d+)\.mlp\.shared_experts?\.(gate|up|down)_proj\.weight": r"layers.\1.experts.shared.\2.weight",
    r"model\.layers\.(\d+)\.mlp\.shared_expert_gate\.weight": r"layers.\1.experts.shared_gate.weight",
}
INDEXER: dict[str, Rule] = {
    r"model\.layers\.(\d+)\.self_attn\.indexer\.wq_b\.weight": r"layers.\1.attention.indexer.q.weight",
    r"model\.layers\.(\d+)\.self_attn\.indexer\.wk\.weight": r"layers.\1.attention.indexer.k.weight",
    r"model\.layers\.(\d+)\.self_attn\.indexer\.k_norm\.(\w+)": r"layers.\1.attention.indexer.k_norm.\2",
    r"model\.layers\.(\d+)\.self_attn\.indexer\.weights_proj\.weight": r"layers.\1.attention.indexer.weights.weight",
}
SANDWICH: dict[str, Rule] = {
    **LLAMA,
    r"model\.layers\.(\d+)\.post_attention_layernorm\.weight": r"layers.\1.attention_post_norm.weight",
    r"model\.layers\.(\d+)\.pre_feedforward_layernorm\.weight": r"layers.\1.feed_forward_norm.weight",
    r"model\.layers\.(\d+)\.post_feedforward_layernorm\.weight": r"layers.\1.feed_forward_post_norm.weight",
}
AT4 = r"model\.layers\.(\d+)\."
NEOX_JAPANESE = r"gpt_neox_japanese\.layers\.(\d+)\."
GEMMA4: dict[str, Rule] = {
    **SANDWICH,
    r"model\.embed_tokens_per_layer\.weight": "layer_inputs.tokens.weight",
    r"model\.per_layer_model_projection\.weight": "layer_inputs.projection.weight",
    r"model\.per_layer_projection_norm\.weight": "layer_inputs.norm.weight",
    AT4 + r"per_layer_input_gate\.weight": r"layers.\1.layer_input.gate.weight",
    AT4 + r"per_layer_projection\.weight": r"layers.\1.layer_input.down.weight",
    AT4 + r"post_per_layer_input_norm\.weight": r"layers.\1.layer_input_post_norm.weight",
    AT4 + "layer_scalar": lambda layer, tensor: {f"layers.{layer}.scalar": tensor[0]},
}
GEMMA3N: dict[str, Rule] = {
    **GEMMA4,
    r"model\.altup_projections\.(\d+)\.weight": r"spread.projections.\1.weight",
    r"model\.altup_unembed_projections\.(\d+)\.weight": r"merge.projections.\1.weight",
    AT4 + r"altup\.correct_output_scale": r"layers.\1.streams.scale.weight",
    AT4 + r"altup\.correction_coefs\.weight": r"layers.\1.streams.correct.weight",
    AT4 + r"altup\.prediction_coefs\.weight": r"layers.\1.streams.predict.weight",
    AT4 + r"altup\.modality_router\.weight": r"layers.\1.streams.router.weight",
    AT4 + r"altup\.router_norm\.weight": r"layers.\1.streams.norm.weight",
    AT4 + r"laurel\.linear_(left|right)\.weight": r"layers.\1.laurel.\2.weight",
    AT4 + r"laurel\.post_laurel_norm\.weight": r"layers.\1.laurel.norm.weight",
}
GEMMA4_MOE: dict[str, Rule] = {
    **GEMMA4,
    AT4 + r"post_feedforward_layernorm\.weight": r"layers.\1.joint_norm.weight",
    AT4 + r"post_feedforward_layernorm_1\.weight": r"layers.\1.feed_forward_post_norm.weight",
    AT4 + r"post_feedforward_layernorm_2\.weight": r"layers.\1.experts_post_norm.weight",
    AT4 + r"pre_feedforward_layernorm_2\.weight": r"layers.\1.experts.norm.weight",
    AT4 + r"router\.scale": r"layers.\1.experts.router_norm.weight",
    AT4 + r"router\.per_expert_scale": r"layers.\1.experts.scales.weight",
    AT4 + r"router\.proj\.weight": r"layers.\1.experts.router.weight",
    AT4 + r"experts\.gate_up_proj": expert_pairs,
    AT4 + r"experts\.down_proj": expert_downs,
}
BERT: dict[str, Rule] = {
    r"bert\.embeddings\.word_embeddings\.weight": "embedding.tokens.weight",
    r"bert\.embeddings\.position_embeddings\.weight": "embedding.positions.weight",
    r"bert\.embeddings\.token_type_embeddings\.weight": "embedding.types.weight",
    r"bert\.embeddings\.LayerNorm\.(\w+)": r"embedding.norm.\1",
    r"bert\.encoder\.layer\.(\d+)\.attention\.self\.([qkv])\w+\.(\w+)": r"layers.\1.attention.\2.\3",
    r"bert\.encoder\.layer\.(\d+)\.attention\.output\.dense\.(\w+)": r"layers.\1.attention.o.\2",
    r"bert\.encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.(\w+)": r"layers.\1.attention_norm.\2",
    r"bert\.encoder\.layer\.(\d+)\.intermediate\.dense\.(\w+)": r"layers.\1.feed_forward.up.\2",
    r"bert\.encoder\.layer\.(\d+)\.output\.dense\.(\w+)": r"layers.\1.feed_forward.down.\2",
    r"bert\.encoder\.layer\.(\d+)\.output\.LayerNorm\.(\w+)": r"layers.\1.feed_forward_norm.\2",
    r"cls\.predictions\.bias": "head.projection.bias",
    r"cls\.predictions\.transform\.dense\.(\w+)": r"head.transform.\1",
    r"cls\.predictions\.transform\.LayerNorm\.(\w+)": r"head.norm.\1",
}
ALBERT: dict[str, Rule] = {
    **{pattern.replace("bert", "albert", 1): name for pattern, name in BERT.items() if "embeddings" in pattern},
    r"albert\.encoder\.embedding_hidden_mapping_in\.(\w+)": r"embedding.projection.\1",
    r"albert\..*\.attention\.([qkv])[a-z]+\.(\w+)": r"layers.0.attention.\1.\2",
    r"albert\..*\.attention\.dense\.(\w+)": r"layers.0.attention.o.\1",
    r"albert\..*\.attention\.LayerNorm\.(\w+)": r"layers.0.attention_norm.\1",
    r"albert\..*\.ffn\.(\w+)": r"layers.0.feed_forward.up.\1",
    r"albert\..*\.ffn_output\.(\w+)": r"layers.0.feed_forward.down.\1",
    r"albert\..*\.full_layer_layer_norm\.(\w+)": r"layers.0.feed_forward_norm.\1",
    r"predictions\.bias": "head.projection.bias",
    r"predictions\.dense\.(\w+)": r"head.transform.\1",
    r"predictions\.LayerNorm\.(\w+)": r"head.norm.\1",
}


def expert_heads(layer: str, side: str, tensor: Tensor) -> Copied:
    """JetMoE's experts of attention."""
    name = "q" if side == "in" else "o"
    return {f"layers.{layer}.attention.{name}.routed.{e}.weight": expert for e, expert in enumerate(tensor)}


AT_XLSTM = r"backbone\.blocks\.(\d+)\."
XLSTM: dict[str, Rule] = {
    r"backbone\.embeddings\.weight": "embedding.tokens.weight",
    r"backbone\.out_norm\.weight": "final_norm.weight",
    r"lm_head\.weight": "head.projection.weight",
    AT_XLSTM + r"norm_mlstm\.weight": r"layers.\1.matrix_memory_norm.weight",
    AT_XLSTM + r"norm_ffn\.weight": r"layers.\1.feed_forward_norm.weight",
    AT_XLSTM + r"ffn\.proj_up_gate\.weight": r"layers.\1.feed_forward.gate.weight",
    AT_XLSTM + r"ffn\.proj_(up|down)\.weight": r"layers.\1.feed_forward.\2.weight",
    AT_XLSTM + r"mlstm_layer\.([qkv]|out_proj)\.weight": r"layers.\1.matrix_memory.\2.weight",
    AT_XLSTM + r"mlstm_layer\.ogate_preact\.weight": r"layers.\1.matrix_memory.gate_proj.weight",
    AT_XLSTM + r"mlstm_layer\.igate_preact\.(\w+)": r"layers.\1.matrix_memory.input_gate.\2",
    AT_XLSTM + r"mlstm_layer\.fgate_preact\.(\w+)": r"layers.\1.matrix_memory.forget_gate.\2",
    AT_XLSTM + r"mlstm_layer\.multihead_norm\.weight": lambda layer, tensor: {
        f"layers.{layer}.matrix_memory.norm.weight": tensor.unflatten(0, (4, -1))
    },
}
AT_ZAMBA = r"model\.layers\.(\d+)\.(?:mamba_decoder\.)?"


def heads_of_channels(name: str) -> Rule:
    """Heads apart, of Mamba's channels."""
    return lambda *groups, tensor: {name.format(*groups): tensor.flatten(0, 1)}


def channels_and_gates(layer: str, tensor: Tensor) -> Copied:
    """A channel and its gate in turn."""
    rows = tensor.unflatten(0, (-1, 2))
    return {f"layers.{layer}.mamba.in_proj.weight": rows.transpose(0, 1).flatten(0, 1)}


ZAMBA: dict[str, Rule] = {
    r"model\.embed_tokens\.weight": "embedding.tokens.weight",
    r"model\.final_layernorm\.weight": "final_norm.weight",
    AT_ZAMBA + r"input_layernorm\.weight": r"layers.\1.mamba_norm.weight",
    AT_ZAMBA + r"mamba\.x_proj_weight": heads_of_channels("layers.{0}.mamba.x_proj.weight"),
    AT_ZAMBA + r"mamba\.dt_proj_weight": heads_of_channels("layers.{0}.mamba.dt_proj.weight"),
    AT_ZAMBA + r"mamba\.dt_proj_bias": heads_of_channels("layers.{0}.mamba.dt_proj.bias"),
    AT_ZAMBA + r"mamba\.(A_log|D)": heads_of_channels("layers.{0}.mamba.scan.{1}"),
    AT_ZAMBA + r"mamba\.conv1d\.(\w+)": r"layers.\1.mamba.conv.\2",
    AT_ZAMBA + r"mamba\.out_proj\.weight": r"layers.\1.mamba.out_proj.weight",
    AT_ZAMBA + r"mamba\.in_proj\.weight": channels_and_gates,
    r"model\.layers\.(\d+)\.linear\.weight": r"layers.\1.shared.out.weight",
    r"model\.layers\.(\d+)\.shared_transf\w*\.self_attn\.([qkvo])_proj\.weight": r"layers.\1.shared.\2.weight",
    r"model\.layers\.(\d+)\.shared_transf\w*\.input_layernorm\.weight": r"layers.\1.shared.norm.weight",
    r"model\.layers\.(\d+)\.shared_transf\w*\.pre_ff_layernorm\.weight": (r"layers.\1.shared.feed_forward_norm.weight"),
    r"model\.layers\.(\d+)\.shared_transf\w*\.feed_forward\.(gate|up|down)_proj\.weight": (
        r"layers.\1.shared.feed_forward.\2.weight"
    ),
}
AT_ZAMBA2 = r"model\.layers\.(\d+)\.shared_transformer\."
USES = (0, 1, 3)  # the layers that read a shared block, in the order of their adapters


def adapters(layer: str, name: str, use: str, step: str, tensor: Tensor) -> Copied:
    """A layer's own, kept with the block that it shares."""
    ours = {"linear_q": "q", "linear_k": "k", "linear_v": "v", "gate_up_proj": "gate_up"}[name]
    return {f"layers.{USES[int(use)]}.shared.{ours}_{('down', 'up')[int(step)]}.weight": tensor}


ZAMBA2: dict[str, Rule] = {
    **ZAMBA,
    AT_ZAMBA + r"input_layernorm\.weight": r"layers.\1.mamba2_norm.weight",
    AT_ZAMBA + r"mamba\.(A_log|D|dt_bias)": r"layers.\1.mamba2.scan.\2",
    AT_ZAMBA + r"mamba\.conv1d\.(\w+)": r"layers.\1.mamba2.conv.\2",
    AT_ZAMBA + r"mamba\.((?:in|out)_proj|norm)\.(\w+)": r"layers.\1.mamba2.\2.\3",
    AT_ZAMBA2 + r"self_attn\.(\w+)_adapter_list\.(\d+)\.(\d)\.weight": adapters,
    AT_ZAMBA2 + r"feed_forward\.(\w+)_adapter_list\.(\d+)\.(\d)\.weight": adapters,
    AT_ZAMBA2 + r"feed_forward\.gate_up_proj\.(\w+)": lambda layer, suffix, tensor: {
        f"layers.{layer}.shared.feed_forward.{name}.{suffix}": half
        for name, half in zip(("gate", "up"), tensor.chunk(2), strict=True)
    },
    AT_ZAMBA2 + r"feed_forward\.down_proj\.(\w+)": r"layers.\1.shared.feed_forward.down.\2",
}
AT_SQUEEZED = r"transformer\.encoder\.layers\.(\d+)\."
SQUEEZED: dict[str, Rule] = {
    **{pattern.replace("bert", "transformer", 1): name for pattern, name in BERT.items()},
    **{
        AT_SQUEEZED + theirs: lambda layer, suffix, tensor, ours=ours: {
            f"layers.{layer}.{ours}.{suffix}": tensor.squeeze(-1)
        }
        for theirs, ours in {
            r"attention\.query\.(\w+)": "attention.q",
            r"attention\.key\.(\w+)": "attention.k",
            r"attention\.value\.(\w+)": "attention.v",
            r"post_attention\.conv1d\.(\w+)": "attention.o",
            r"post_attention\.layernorm\.(\w+)": "attention_norm",
            r"intermediate\.conv1d\.(\w+)": "feed_forward.up",
            r"output\.conv1d\.(\w+)": "feed_forward.down",
            r"output\.layernorm\.(\w+)": "feed_forward_norm",
        }.items()
    },
    r"transformer\.pooler\.dense\.(\w+)": r"pooler.transform.\1",
}
AT_SPANS = r"convbert\.encoder\.layer\.(\d+)\."


def grouped(name: str) -> Rule:
    """Groups apart, each (in, out)."""
    return lambda *groups, tensor: {name.format(*groups): tensor.mT.flatten(0, 1)}


SPANS: dict[str, Rule] = {
    **{pattern.replace("bert", "convbert", 1): name for pattern, name in BERT.items() if "cls" not in pattern},
    AT_SPANS + r"attention\.self\.key_conv_attn_layer\.bias": shared_channel("layers.{0}.attention.pointwise.bias"),
    AT_SPANS + r"attention\.self\.key_conv_attn_layer\.depthwise\.weight": r"layers.\1.attention.depthwise.weight",
    AT_SPANS + r"attention\.self\.key_conv_attn_layer\.pointwise\.weight": (
        lambda layer, tensor: {f"layers.{layer}.attention.pointwise.weight": tensor.squeeze(-1)}
    ),
    AT_SPANS + r"attention\.self\.conv_kernel_layer\.(\w+)": r"layers.\1.attention.kernel.\2",
    AT_SPANS + r"attention\.self\.conv_out_layer\.(\w+)": r"layers.\1.attention.values.\2",
    AT_SPANS + r"intermediate\.dense\.weight": grouped("layers.{0}.feed_forward.up.weight"),
    AT_SPANS + r"output\.dense\.weight": grouped("layers.{0}.feed_forward.down.weight"),
    r"generator_lm_head\.bias": "head.projection.bias",
    r"generator_predictions\.dense\.(\w+)": r"head.transform.\1",
    r"generator_predictions\.LayerNorm\.(\w+)": r"head.norm.\1",
}
DEBERTA: dict[str, Rule] = {
    **{pattern.replace("bert", "deberta", 1): name for pattern, name in BERT.items()},
    r"deberta\.encoder\.rel_embeddings\.weight": "distances.table.weight",
}
ROBERTA_HEAD: dict[str, Rule] = {
    r"lm_head\.bias": "head.projection.bias",
    r"lm_head\.dense\.(\w+)": r"head.transform.\1",
    r"lm_head\.layer_norm\.(\w+)": r"head.norm.\1",
}
FALCON: dict[str, Rule] = {
    r"transformer\.word_embeddings\.weight": "embedding.tokens.weight",
    r"transformer\.word_embeddings_layernorm\.(\w+)": r"embedding.norm.\1",
    r"transformer\.h\.(\d+)\.self_attention\.dense\.(\w+)": r"layers.\1.attention.o.\2",
    r"transformer\.h\.(\d+)\.mlp\.dense_h_to_4h\.(\w+)": r"layers.\1.feed_forward.up.\2",
    r"transformer\.h\.(\d+)\.mlp\.dense_4h_to_h\.(\w+)": r"layers.\1.feed_forward.down.\2",
    r"transformer\.ln_f\.(\w+)": r"final_norm.\1",
}
MIXER: dict[str, Rule] = {
    r"backbone\.embeddings\.weight": "embedding.tokens.weight",
    r"backbone\.norm_f\.weight": "final_norm.weight",
    r"lm_head\.weight": "head.projection.weight",
}


def mixer(name: str) -> dict[str, Rule]:
    at = r"backbone\.layers\.(\d+)\."
    return {
        **MIXER,
        at + r"norm\.weight": rf"layers.\1.{name}_norm.weight",
        at + r"mixer\.(A_log|D|dt_bias)": rf"layers.\1.{name}.scan.\2",
        at + r"mixer\.conv1d\.(\w+)": rf"layers.\1.{name}.conv.\2",
        at + r"mixer\.((?:\w+_proj|norm)\.\w+)": rf"layers.\1.{name}.\2",
    }


PICTURES: dict[str, Rule] = {
    r"\w+\.embeddings\.(cls|mask)_token": lambda token, tensor: {
        f"embedding.{'class' if token == 'cls' else token}_token.weight": tensor.flatten()
    },
    r"\w+\.embeddings\.patch_embeddings\.projection\.(\w+)": r"embedding.patches.\1",
    r"\w+\..*layers?\.(\d+)\.attention\.(?:attention\.)?([qkvo])_proj\.(\w+)": r"layers.\1.attention.\2.\3",
    r"classifier\.(\w+)": r"head.projection.\1",
}
AT_BERT = r"decoder\.bert\.encoder\.layer\.(\d+)\.crossattention\."
AT_TROCR = r"decoder\.model\.decoder\.layers\.(\d+)\."
SMALL = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
BAMBA_SIZES = SMALL | {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 4,
}
KIMI_SIZES = SMALL | {
    "pad_token_id": None,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "rms_norm_eps": 1e-6,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
}
KIMI: dict[str, Rule] = {
    **EXPERTS,
    r"model\.layers\.0\.post_attention_layernorm\.weight": "layers.0.feed_forward_norm.weight",
    AT4 + r"self_attn\.(q|kv_b)_proj\.weight": r"layers.\1.attention.\2.weight",
    AT4 + r"self_attn\.kv_a_proj_with_mqa\.weight": r"layers.\1.attention.kv_a.weight",
    AT4 + r"self_attn\.kv_a_layernorm\.weight": r"layers.\1.attention.kv_norm.weight",
    AT4 + r"self_attn\.g_proj\.weight": r"layers.\1.attention.g.weight",
    AT4 + r"mlp\.gate\.e_score_correction_bias": r"layers.\1.experts.selection_bias",
    **delta_rules("02", "self_attn"),
}
BAMBA: dict[str, Rule] = {
    **LLAMA,
    r"model\.final_layernorm\.weight": "final_norm.weight",
    AT4 + r"pre_ff_layernorm\.weight": r"layers.\1.feed_forward_norm.weight",
    AT4 + r"feed_forward\.(gate|up|down)_proj\.weight": r"layers.\1.feed_forward.\2.weight",
    r"model\.layers\.0\.input_layernorm\.weight": "layers.0.mamba2_norm.weight",
    AT4 + r"mamba\.(A_log|D|dt_bias)": r"layers.\1.mamba2.scan.\2",
    AT4 + r"mamba\.conv1d\.(\w+)": r"layers.\1.mamba2.conv.\2",
    AT4 + r"mamba\.((?:\w+_proj|norm)\.\w+)": r"layers.\1.mamba2.\2",
}
MHA = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}

CASES = [
    Case(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": V, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        TINY["gpt2"],
        {
            r"transformer\.wte\.weight": "embedding.tokens.weight",
            r"transformer\.wpe\.weight": "embedding.positions.weight",
            r"transformer\.h\.(\d+)\.ln_1\.(\w+)": r"layers.\1.attention_norm.\2",
            r"transformer\.h\.(\d+)\.ln_2\.(\w+)": r"layers.\1.feed_forward_norm.\2",
            r"transformer\.h\.(\d+)\.attn\.c_attn\.weight": lambda layer, tensor: {
                f"layers.{layer}.attention.{name}.weight": third
                for name, third in zip("qkv", tensor.T.chunk(3), strict=True)
            },
            r"transformer\.h\.(\d+)\.attn\.c_attn\.bias": parts(
                "layers.{0}.attention.q.bias", "layers.{0}.attention.k.bias", "layers.{0}.attention.v.bias"
            ),
            r"transformer\.h\.(\d+)\.attn\.c_proj\.weight": transposed("layers.{0}.attention.o.weight"),
            r"transformer\.h\.(\d+)\.attn\.c_proj\.bias": r"layers.\1.attention.o.bias",
            r"transformer\.h\.(\d+)\.mlp\.c_fc\.weight": transposed("layers.{0}.feed_forward.up.weight"),
            r"transformer\.h\.(\d+)\.mlp\.c_fc\.bias": r"layers.\1.feed_forward.up.bias",
            r"transformer\.h\.(\d+)\.mlp\.c_proj\.weight": transposed("layers.{0}.feed_forward.down.weight"),
            r"transformer\.h\.(\d+)\.mlp\.c_proj\.bias": r"layers.\1.feed_forward.down.bias",
            r"transformer\.ln_f\.(\w+)": r"final_norm.\1",
        },
    ),
    Case(
        "llama",
        "LlamaForCausalLM",
        "LlamaConfig",
        {**SMALL, "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
        TINY["llama"],
        LLAMA,
    ),
    Case(
        "apertus",
        "ApertusForCausalLM",
        "ApertusConfig",
        {**SMALL, "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
        TINY["apertus"],
        {
            **LLAMA,
            AT4 + r"attention_layernorm\.weight": r"layers.\1.attention_norm.weight",
            AT4 + r"feedforward_layernorm\.weight": r"layers.\1.feed_forward_norm.weight",
            AT4 + r"mlp\.act_fn\.alpha_p": r"layers.\1.feed_forward.activation.positive",
            AT4 + r"mlp\.act_fn\.alpha_n": r"layers.\1.feed_forward.activation.negative",
        },
    ),
    Case(
        "diffllama",
        "DiffLlamaForCausalLM",
        "DiffLlamaConfig",
        {**SMALL, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 6},
        TINY["diffllama"],
        {**LLAMA, AT4 + r"self_attn\.(lambda_[qk][12])": r"layers.\1.attention.core.\2"},
    ),
    Case(
        "bitnet",
        "BitNetForCausalLM",
        "BitNetConfig",
        SMALL,
        TINY["bitnet"],
        {
            **LLAMA,
            AT4 + r"self_attn\.attn_sub_norm\.weight": r"layers.\1.attention.inner_norm.weight",
            AT4 + r"mlp\.ffn_sub_norm\.weight": r"layers.\1.feed_forward.inner_norm.weight",
        },
    ),
    Case(
        "opt",
        "OPTForCausalLM",
        "OPTConfig",
        {
            "vocab_size": V,
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 12,
            "do_layer_norm_before": False,
        },
        TINY["opt"],
        {
            r"model\.decoder\.embed_tokens\.weight": "embedding.tokens.weight",
            r"model\.decoder\.embed_positions\.weight": lambda tensor: {
                "embedding.positions.weight": torch.cat((tensor[2:], tensor[:2]))
            },
            r"model\.decoder\.project_in\.weight": "embedding.projection.weight",
            r"model\.decoder\.project_out\.weight": "head.transform.weight",
            r"model\.decoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(\w+)": r"layers.\1.attention.\2.\3",
            r"model\.decoder\.layers\.(\d+)\.self_attn\.out_proj\.(\w+)": r"layers.\1.attention.o.\2",
            r"model\.decoder\.layers\.(\d+)\.self_attn_layer_norm\.(\w+)": r"layers.\1.attention_norm.\2",
            r"model\.decoder\.layers\.(\d+)\.fc1\.(\w+)": r"layers.\1.feed_forward.up.\2",
            r"model\.decoder\.layers\.(\d+)\.fc2\.(\w+)": r"layers.\1.feed_forward.down.\2",
            r"model\.decoder\.layers\.(\d+)\.final_layer_norm\.(\w+)": r"layers.\1.feed_forward_norm.\2",
        },
    ),
    Case(
        "gpt-neox-japanese",
        "GPTNeoXJapaneseForCausalLM",
        "GPTNeoXJapaneseConfig",
        {
            "vocab_size": V,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_multiple_size": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
        TINY["gpt-neox-japanese"],
        {
            r"gpt_neox_japanese\.embed_in\.weight": "embedding.tokens.weight",
            NEOX_JAPANESE + r"attention\.query_key_value\.weight": thirds_by_head,
            NEOX_JAPANESE + r"attention\.dense\.weight": r"layers.\1.attention.o.weight",
            NEOX_JAPANESE + r"attention\.dense_bias": r"layers.\1.attention.o.bias",
            NEOX_JAPANESE + r"input_layernorm\.(\w+)": r"layers.\1.attention_norm.\2",
            NEOX_JAPANESE + r"post_attention_layernorm\.(\w+)": r"layers.\1.feed_forward_norm.\2",
            NEOX_JAPANESE + r"mlp\.dense_h_to_4h\.weight": r"layers.\1.feed_forward.up.weight",
            NEOX_JAPANESE + r"mlp\.dense_4h_to_h\.weight": r"layers.\1.feed_forward.down.weight",
            r"gpt_neox_japanese\.final_layer_norm\.(\w+)": r"final_norm.\1",
        },
    ),
    Case(
        "modernbert-decoder",
        "ModernBertDecoderForCausalLM",
        "ModernBertDecoderConfig",
        {
            "vocab_size": V,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "local_attention": 6,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "pad_token_id": 0,
        },
        TINY["modernbert-decoder"],
        {
            r"model\.embeddings\.tok_embeddings\.weight": "embedding.tokens.weight",
            r"model\.embeddings\.norm\.weight": "embedding.norm.weight",
            AT4 + r"attn\.([qkv])_proj\.weight": r"layers.\1.attention.\2.weight",
            AT4 + r"attn\.Wo\.weight": r"layers.\1.attention.o.weight",
            AT4 + r"attn_norm\.weight": r"layers.\1.attention_norm.weight",
            AT4 + r"mlp_norm\.weight": r"layers.\1.feed_forward_norm.weight",
            AT4 + r"mlp\.Wi\.weight": parts("layers.{0}.feed_forward.gate.weight", "layers.{0}.feed_forward.up.weight"),
            AT4 + r"mlp\.Wo\.weight": r"layers.\1.feed_forward.down.weight",
            r"model\.final_norm\.weight": "final_norm.weight",
            r"lm_head\.dense\.weight": "head.transform.weight",
            r"lm_head\.norm\.weight": "head.norm.weight",
            r"decoder\.bias": "head.projection.bias",
        },
    ),
    Case(
        "mistral",
        "MistralForCausalLM",
        "MistralConfig",
        {**SMALL, "sliding_window": 4},
        TINY["mistral"],
        LLAMA,
    ),
    Case(
        "qwen3",
        "Qwen3ForCausalLM",
        "Qwen3Config",
        {**SMALL, "head_dim": 12},
        TINY["qwen3"],
        LLAMA,
    ),
    Case(
        "gemma2",
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "head_dim": 8,
            "sliding_window": 4,
            "query_pre_attn_scalar": 13,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": True,
        },
        TINY["gemma2"],
        SANDWICH,
    ),
    Case(
        "gemma3",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "head_dim": 8,
            "sliding_window": 4,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
            "tie_word_embeddings": True,
        },
        TINY["gemma3"],
        SANDWICH,
    ),
    Case(
        "gemma4",
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {
            **SMALL,
            "num_hidden_layers": 6,
            "head_dim": 8,
            "global_head_dim": 16,
            "sliding_window": 4,
            "layer_types": [
                *["sliding_attention", "full_attention"],
                *["sliding_attention"] * 2,
                *["full_attention"] * 2,
            ],
            "num_kv_shared_layers": 4,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": V,
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": True,
        },
        {**TINY["gemma4"], "layer_input": {"width": 6}},
        GEMMA4,
        r".*layer_scalar",
    ),
    Case(
        "gemma3n",
        "Gemma3nForCausalLM",
        "Gemma3nTextConfig",
        {
            **SMALL,
            "num_hidden_layers": 6,
            "intermediate_size": [64, 48, 48, 48, 48, 48],
            "activation_sparsity_pattern": [0.75, *[0.0] * 5],
            "head_dim": 8,
            "sliding_window": 4,
            "layer_types": [
                f"{kind}_attention" for kind in ("sliding", "sliding", "full", "sliding", "full", "sliding")
            ],
            "num_kv_shared_layers": 3,
            "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": 40,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "laurel_rank": 5,
            "tie_word_embeddings": True,
        },
        TINY["gemma3n"],
        GEMMA3N,
    ),
    Case(
        "gemma4-moe",
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "head_dim": 8,
            "global_head_dim": 16,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 16,
            "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": True,
        },
        TINY["gemma4-moe"],
        GEMMA4_MOE,
        r".*layer_scalar",
    ),
    Case(
        "olmo2",
        "Olmo2ForCausalLM",
        "Olmo2Config",
        {**SMALL, "rms_norm_eps": 1e-6},
        TINY["olmo2"],
        SANDWICH,
    ),
    Case(
        "gpt-neox",
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**MHA, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}},
        TINY["gpt-neox"],
        {
            r"gpt_neox\.embed_in\.weight": "embedding.tokens.weight",
            r"gpt_neox\.layers\.(\d+)\.input_layernorm\.(\w+)": r"layers.\1.attention_norm.\2",
            r"gpt_neox\.layers\.(\d+)\.post_attention_layernorm\.(\w+)": r"layers.\1.feed_forward_norm.\2",
            r"gpt_neox\.layers\.(\d+)\.attention\.query_key_value\.(\w+)": qkv_by_head,
            r"gpt_neox\.layers\.(\d+)\.attention\.dense\.(\w+)": r"layers.\1.attention.o.\2",
            r"gpt_neox\.layers\.(\d+)\.mlp\.dense_h_to_4h\.(\w+)": r"layers.\1.feed_forward.up.\2",
            r"gpt_neox\.layers\.(\d+)\.mlp\.dense_4h_to_h\.(\w+)": r"layers.\1.feed_forward.down.\2",
            r"gpt_neox\.final_layer_norm\.(\w+)": r"final_norm.\1",
            r"lm_head\.weight": "head.projection.weight",
        },
    ),
    Case(
        "falcon",
        "FalconForCausalLM",
        "FalconConfig",
        {
            "vocab_size": V,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "bias": False,
            "parallel_attn": True,
            "multi_query": True,
            "new_decoder_architecture": False,
            "tie_word_embeddings": True,
        },
        TINY["falcon"],
        {
            **FALCON,
            r"transformer\.h\.(\d+)\.input_layernorm\.(\w+)": r"layers.\1.norm.\2",
            r"transformer\.h\.(\d+)\.self_attention\.query_key_value\.weight": lambda layer, tensor: {
                f"layers.{layer}.attention.{name}.weight": rows
                for name, rows in zip("qkv", tensor.split((32, 8, 8)), strict=True)
            },
        },
    ),
    Case(
        "bloom",
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": V, "hidden_size": 32, "n_layer": 2, "n_head": 4, "tie_word_embeddings": True},
        TINY["bloom"],
        {
            **FALCON,
            r"transformer\.h\.(\d+)\.input_layernorm\.(\w+)": r"layers.\1.attention_norm.\2",
            r"transformer\.h\.(\d+)\.post_attention_layernorm\.(\w+)": r"layers.\1.feed_forward_norm.\2",
            r"transformer\.h\.(\d+)\.self_attention\.query_key_value\.(\w+)": qkv_by_head,
        },
    ),
    Case(
        "cohere",
        "CohereForCausalLM",
        "CohereConfig",
        {
            **SMALL,
            "use_qk_norm": True,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        TINY["cohere"],
        {**LLAMA, r"model\.layers\.(\d+)\.input_layernorm\.weight": r"layers.\1.norm.weight"},
    ),
    Case(
        "mixtral",
        "MixtralForCausalLM",
        "MixtralConfig",
        {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
        TINY["mixtral"],
        EXPERTS,
    ),
    Case(
        "qwen2-moe",
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {
            **SMALL,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
        },
        TINY["qwen2-moe"],
        EXPERTS,
    ),
    Case(
        "gpt-oss",
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **SMALL,
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 150_000.0},
        },
        TINY["gpt-oss"],
        {
            **EXPERTS,
            r"model\.layers\.(\d+)\.self_attn\.sinks": r"layers.\1.attention.core.sinks",
            r"model\.layers\.(\d+)\.mlp\.router\.(\w+)": r"layers.\1.experts.router.\2",
            r"model\.layers\.(\d+)\.mlp\.experts\.gate_up_proj(|_bias)": oss_pairs,
            r"model\.layers\.(\d+)\.mlp\.experts\.down_proj(|_bias)": oss_downs,
        },
    ),
    Case(
        "laguna",
        "LagunaForCausalLM",
        "LagunaConfig",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "head_dim": 8,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "sliding_window": 4,
            "num_attention_heads_per_layer": [6, 4, 4],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
            "moe_routed_scaling_factor": 1.5,
        },
        TINY["laguna"],
        {
            **EXPERTS,
            r"model\.layers\.0\.post_attention_layernorm\.weight": "layers.0.feed_forward_norm.weight",
            AT4 + r"self_attn\.g_proj\.weight": r"layers.\1.attention.g.weight",
            AT4 + r"mlp\.gate\.e_score_correction_bias": r"layers.\1.experts.correction.weight",
        },
    ),
    Case(
        "afmoe",
        "AfmoeForCausalLM",
        "AfmoeConfig",
        {
            **SMALL,
            "head_dim": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "num_shared_experts": 2,
            "route_scale": 1.5,
            "mup_enabled": True,
        },
        TINY["afmoe"],
        {
            **EXPERTS,
            AT4 + r"post_attention_layernorm\.weight": r"layers.\1.attention_post_norm.weight",
            r"model\.layers\.0\.pre_mlp_layernorm\.weight": "layers.0.feed_forward_norm.weight",
            r"model\.layers\.0\.post_mlp_layernorm\.weight": "layers.0.feed_forward_post_norm.weight",
            r"model\.layers\.1\.pre_mlp_layernorm\.weight": "layers.1.experts_norm.weight",
            r"model\.layers\.1\.post_mlp_layernorm\.weight": "layers.1.experts_post_norm.weight",
            AT4 + r"self_attn\.gate_proj\.weight": r"layers.\1.attention.g.weight",
            AT4 + r"mlp\.router\.gate\.weight": r"layers.\1.experts.router.weight",
            AT4 + r"mlp\.expert_bias": r"layers.\1.experts.correction.weight",
        },
    ),
    Case(
        "axk1",
        "AXK1ForCausalLM",
        "AXK1Config",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "q_lora_rank": 12,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 6,
            "n_shared_experts": 2,
        },
        TINY["axk1"],
        {
            **EXPERTS,
            r"model\.layers\.(0)\.post_attention_layernorm\.weight": r"layers.\1.feed_forward_norm.weight",
            r"model\.layers\.([1-9])\.post_attention_layernorm\.weight": r"layers.\1.experts_norm.weight",
            r"model\.layers\.(\d+)\.self_attn\.(q_[ab]|kv_b)_proj\.weight": r"layers.\1.attention.\2.weight",
            r"model\.layers\.(\d+)\.self_attn\.kv_a_proj_with_mqa\.weight": r"layers.\1.attention.kv_a.weight",
            r"model\.layers\.(\d+)\.self_attn\.(q|kv)_a_layernorm\.weight": r"layers.\1.attention.\2_norm.weight",
            r"model\.layers\.(\d+)\.mlp\.gate\.e_score_correction_bias": r"layers.\1.experts.selection_bias",
            AT4 + r"mlp\.post_mlp_layernorm\.weight": r"layers.\1.experts_post_norm.weight",
        },
        r".*e_score_correction_bias",
    ),
    Case(
        "mimo-v2-flash",
        "MiMoV2FlashForCausalLM",
        "MiMoV2FlashConfig",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "head_dim": 12,
            "v_head_dim": 6,
            "attention_value_scale": 0.7,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "sliding_window": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
        },
        TINY["mimo-v2-flash"],
        {
            **EXPERTS,
            r"model\.layers\.(0)\.post_attention_layernorm\.weight": r"layers.\1.feed_forward_norm.weight",
            r"model\.layers\.([1-9])\.post_attention_layernorm\.weight": r"layers.\1.experts_norm.weight",
            r"model\.layers\.(\d+)\.self_attn\.sinks": r"layers.\1.attention.core.sinks",
            r"model\.layers\.(\d+)\.mlp\.gate\.e_score_correction_bias": r"layers.\1.experts.selection_bias",
        },
        r".*e_score_correction_bias",
    ),
    Case(
        "deepseek-v3",
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "q_lora_rank": 12,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 6,
            "first_k_dense_replace": 1,
            "n_shared_experts": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        TINY["deepseek-v3"],
        {
            **EXPERTS,
            r"model\.layers\.(0)\.post_attention_layernorm\.weight": r"layers.\1.feed_forward_norm.weight",
            r"model\.layers\.([1-9])\.post_attention_layernorm\.weight": r"layers.\1.experts_norm.weight",
            r"model\.layers\.(\d+)\.self_attn\.(q_[ab]|kv_b)_proj\.weight": r"layers.\1.attention.\2.weight",
            r"model\.layers\.(\d+)\.self_attn\.kv_a_proj_with_mqa\.weight": r"layers.\1.attention.kv_a.weight",
            r"model\.layers\.(\d+)\.self_attn\.(q|kv)_a_layernorm\.weight": r"layers.\1.attention.\2_norm.weight",
            r"model\.layers\.(\d+)\.mlp\.gate\.e_score_correction_bias": r"layers.\1.experts.selection_bias",
        },
        r".*e_score_correction_bias",
    ),
    Case(
        "deepseek-v3.2",
        "DeepseekV32ForCausalLM",
        "DeepseekV32Config",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "q_lora_rank": 12,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 6,
            "first_k_dense_replace": 1,
            "index_n_heads": 8,
            "index_head_dim": 6,
            "index_topk": 4,
            "n_shared_experts": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        TINY["deepseek-v3.2"],
        {
            **EXPERTS,
            r"model\.layers\.(0)\.post_attention_layernorm\.weight": r"layers.\1.feed_forward_norm.weight",
            r"model\.layers\.([1-9])\.post_attention_layernorm\.weight": r"layers.\1.experts_norm.weight",
            r"model\.layers\.(\d+)\.self_attn\.(q_[ab]|kv_b)_proj\.weight": r"layers.\1.attention.\2.weight",
            r"model\.layers\.(\d+)\.self_attn\.kv_a_proj_with_mqa\.weight": r"layers.\1.attention.kv_a.weight",
            r"model\.layers\.(\d+)\.self_attn\.(q|kv)_a_layernorm\.weight": r"layers.\1.attention.\2_norm.weight",
            **INDEXER,
            r"model\.layers\.(\d+)\.mlp\.gate\.e_score_correction_bias": r"layers.\1.experts.selection_bias",
        },
        r".*e_score_correction_bias",
    ),
    Case(
        "glm-5",
        "GlmMoeDsaForCausalLM",
        "GlmMoeDsaConfig",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "q_lora_rank": 12,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 6,
            "first_k_dense_replace": 1,
            "index_n_heads": 8,
            "index_head_dim": 6,
            "index_topk": 4,
            "n_shared_experts": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        {
            **TINY["deepseek-v3.2"],
            "latent": {**TINY["deepseek-v3.2"]["latent"], "index_interleaved": True},
            "norm": {"eps": 1e-5},
        },
        {
            **EXPERTS,
            r"model\.layers\.(0)\.post_attention_layernorm\.weight": r"layers.\1.feed_forward_norm.weight",
            r"model\.layers\.([1-9])\.post_attention_layernorm\.weight": r"layers.\1.experts_norm.weight",
            r"model\.layers\.(\d+)\.self_attn\.(q_[ab]|kv_b)_proj\.weight": r"layers.\1.attention.\2.weight",
            r"model\.layers\.(\d+)\.self_attn\.kv_a_proj_with_mqa\.weight": r"layers.\1.attention.kv_a.weight",
            r"model\.layers\.(\d+)\.self_attn\.(q|kv)_a_layernorm\.weight": r"layers.\1.attention.\2_norm.weight",
            **INDEXER,
            r"model\.layers\.(\d+)\.mlp\.gate\.e_score_correction_bias": r"layers.\1.experts.selection_bias",
        },
        r".*e_score_correction_bias",
    ),
    Case(
        "deepseek-v2",
        "DeepseekV2ForCausalLM",
        "DeepseekV2Config",
        {
            **SMALL,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 16.0,
            "q_lora_rank": None,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 6,
            "first_k_dense_replace": 0,
            "n_shared_experts": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        TINY["deepseek-v2"],
        {
            **EXPERTS,
            r"model\.layers\.(\d+)\.self_attn\.kv_b_proj\.weight": r"layers.\1.attention.kv_b.weight",
            r"model\.layers\.(\d+)\.self_attn\.kv_a_proj_with_mqa\.weight": r"layers.\1.attention.kv_a.weight",
            r"model\.layers\.(\d+)\.self_attn\.kv_a_layernorm\.weight": r"layers.\1.attention.kv_norm.weight",
        },
    ),
    Case(
        "bert",
        "BertForMaskedLM",
        "BertConfig",
        {**MHA, "tie_word_embeddings": True},
        TINY["bert"],
        BERT,
    ),
    Case(
        "bert-pooler",
        "BertModel",
        "BertConfig",
        {**MHA, "tie_word_embeddings": True},
        TINY["bert-pooler"],
        {
            **{pattern.removeprefix(r"bert\."): name for pattern, name in BERT.items()},
            r"pooler\.dense\.(\w+)": r"pooler.transform.\1",
        },
    ),
    Case(
        "doge",
        "DogeForCausalLM",
        "DogeConfig",
        {**SMALL, "keep_window_size": 5},
        TINY["doge"],
        {
            **LLAMA,
            r"model\.layers\.(\d+)\.input_residual": r"layers.\1.attention_residual.weight",
            r"model\.layers\.(\d+)\.post_attention_residual": r"layers.\1.feed_forward_residual.weight",
            r"model\.layers\.(\d+)\.self_attn\.A": r"layers.\1.attention.mask.rate",
            r"model\.layers\.(\d+)\.self_attn\.dt_proj\.weight": r"layers.\1.attention.mask_proj.weight",
        },
    ),
    Case(
        "jetmoe",
        "JetMoeForCausalLM",
        "JetMoeConfig",
        {
            **{key: value for key, value in SMALL.items() if key != "num_attention_heads"},
            "kv_channels": 8,
            "intermediate_size": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 3,
            "tie_word_embeddings": True,
        },
        TINY["jetmoe"],
        {
            **LLAMA,
            r"model\.layers\.(\d+)\.post_attention_layernorm\.weight": r"layers.\1.experts_norm.weight",
            r"model\.layers\.(\d+)\.mlp\.bias": r"layers.\1.experts.bias.weight",
            r"model\.layers\.(\d+)\.mlp\.router\.layer\.weight": r"layers.\1.experts.router.weight",
            r"model\.layers\.(\d+)\.mlp\.input_linear\.weight": expert_pairs,
            r"model\.layers\.(\d+)\.mlp\.output_linear\.weight": expert_downs,
            r"model\.layers\.(\d+)\.self_attention\.experts\.bias": r"layers.\1.attention.bias.weight",
            r"model\.layers\.(\d+)\.self_attention\.experts\.router\.layer\.weight": (
                r"layers.\1.attention.router.weight"
            ),
            r"model\.layers\.(\d+)\.self_attention\.experts\.(in|out)put_linear\.weight": expert_heads,
            r"model\.layers\.(\d+)\.self_attention\.kv_proj\.weight": parts(
                "layers.{0}.attention.k.weight", "layers.{0}.attention.v.weight"
            ),
        },
    ),
    Case(
        "xlstm",
        "xLSTMForCausalLM",
        "xLSTMConfig",
        {
            "vocab_size": V,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_heads": 4,
            "ffn_proj_factor": 1.5,
            "ffn_round_up_to_multiple_of": 1,
            "use_cache": False,
            "autocast_kernel_dtype": "float32",
        },
        TINY["xlstm"],
        XLSTM,
    ),
    Case(
        "zamba",
        "ZambaForCausalLM",
        "ZambaConfig",
        {
            **SMALL,
            "num_hidden_layers": 5,
            "mamba_d_state": 4,
            "n_mamba_heads": 2,
            "mamba_dt_rank": 2,
            "layers_block_type": ["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"],
            "hidden_act": "gelu",
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        },
        TINY["zamba"],
        ZAMBA,
    ),
    Case(
        "zamba2",
        "Zamba2ForCausalLM",
        "Zamba2Config",
        {
            **SMALL,
            "num_key_value_heads": 4,
            "num_hidden_layers": 4,
            "mamba_d_state": 8,
            "n_mamba_heads": 4,
            "mamba_ngroups": 2,
            "num_mem_blocks": 2,
            "adapter_rank": 6,
            "use_shared_attention_adapter": True,
            "use_mem_rope": True,
            "add_bias_linear": True,
            "chunk_size": 4,
            "rms_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "layers_block_type": ["hybrid", "hybrid", "linear_attention", "hybrid"],
            "tie_word_embeddings": True,
        },
        TINY["zamba2"],
        ZAMBA2,
    ),
    Case(
        "big-bird",
        "BigBirdForMaskedLM",
        "BigBirdConfig",
        {
            **MHA,
            "attention_type": "original_full",
            "use_bias": False,
            "hidden_act": "gelu",
            "tie_word_embeddings": True,
        },
        TINY["big-bird"],
        {**BERT, r"bert\.pooler\.(\w+)": r"pooler.transform.\1"},
    ),
    Case(
        "squeezebert",
        "SqueezeBertForMaskedLM",
        "SqueezeBertConfig",
        {
            **MHA,
            "embedding_size": 32,
            "q_groups": 4,
            "k_groups": 2,
            "v_groups": 4,
            "post_attention_groups": 1,
            "intermediate_groups": 2,
            "output_groups": 4,
            "tie_word_embeddings": True,
        },
        TINY["squeezebert"],
        SQUEEZED,
    ),
    Case(
        "fnet",
        "FNetForMaskedLM",
        "FNetConfig",
        {**MHA, "hidden_act": "gelu_new", "type_vocab_size": 2, "tie_word_embeddings": True},
        TINY["fnet"],
        {
            **{pattern.replace("bert", "fnet", 1): name for pattern, name in BERT.items()},
            r"fnet\.embeddings\.projection\.(\w+)": r"embedding.projection.\1",
            r"fnet\.encoder\.layer\.(\d+)\.fourier\.output\.LayerNorm\.(\w+)": r"layers.\1.fourier_norm.\2",
            r"fnet\.pooler\.dense\.(\w+)": r"pooler.transform.\1",
        },
    ),
    Case(
        "convbert",
        "ConvBertForMaskedLM",
        "ConvBertConfig",
        {
            **MHA,
            "embedding_size": 32,
            "head_ratio": 2,
            "conv_kernel_size": 5,
            "num_groups": 2,
            "tie_word_embeddings": True,
        },
        TINY["convbert"],
        SPANS,
    ),
    Case(
        "albert",
        "AlbertForMaskedLM",
        "AlbertConfig",
        {**MHA, "num_hidden_layers": 3, "embedding_size": 16, "tie_word_embeddings": True},
        TINY["albert"],
        ALBERT,
    ),
    Case(
        "deberta",
        "DebertaForMaskedLM",
        "DebertaConfig",
        {
            **MHA,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "max_relative_positions": 6,
            "position_biased_input": False,
            "tie_word_embeddings": True,
        },
        TINY["deberta"],
        {
            **DEBERTA,
            r"deberta\.encoder\.layer\.(\d+)\.attention\.self\.in_proj\.weight": thirds_by_head,
            r"deberta\.encoder\.layer\.(\d+)\.attention\.self\.([qv])_bias": r"layers.\1.attention.\2.bias",
            r"deberta\.encoder\.layer\.(\d+)\.attention\.self\.pos_proj\.(\w+)": r"layers.\1.attention.distance_k.\2",
            r"deberta\.encoder\.layer\.(\d+)\.attention\.self\.pos_q_proj\.(\w+)": (
                r"layers.\1.attention.distance_q.\2"
            ),
        },
    ),
    Case(
        "deberta-v2",
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {
            **MHA,
            "num_hidden_layers": 3,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "max_relative_positions": 10,
            "position_buckets": 4,
            "position_biased_input": False,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "conv_kernel_size": 3,
            "tie_word_embeddings": True,
        },
        TINY["deberta-v2"],
        {
            **DEBERTA,
            r"deberta\.encoder\.LayerNorm\.(\w+)": r"distances.norm.\1",
            r"deberta\.encoder\.conv\.conv\.(\w+)": r"layers.0.convolution.product.\1",
            r"deberta\.encoder\.conv\.LayerNorm\.(\w+)": r"layers.0.convolution_norm.\1",
        },
    ),
    Case(
        "t5",
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": V,
            "d_model": 32,
            "d_kv": 6,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 12,
        },
        TINY["t5"],
        {
            r"shared\.weight": "decoder.embedding.tokens.weight",
            r"(\w+)\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight": r"\1.relative_bias.weight",
            r"(\w+)\.block\.(\d+)\.layer\.0\.SelfAttention\.([qkvo])\.weight": r"\1.layers.\2.attention.\3.weight",
            r"(\w+)\.block\.(\d+)\.layer\.0\.layer_norm\.weight": r"\1.layers.\2.attention_norm.weight",
            r"(\w+)\.block\.(\d+)\.layer\.1\.EncDecAttention\.(\w)\.weight": r"\1.layers.\2.cross_attention.\3.weight",
            r"decoder\.block\.(\d+)\.layer\.1\.layer_norm\.weight": r"decoder.layers.\1.cross_attention_norm.weight",
            r"encoder\.block\.(\d+)\.layer\.1\.layer_norm\.weight": r"encoder.layers.\1.feed_forward_norm.weight",
            r"decoder\.block\.(\d+)\.layer\.2\.layer_norm\.weight": r"decoder.layers.\1.feed_forward_norm.weight",
            r"(\w+)\.block\.(\d+)\..*\.DenseReluDense\.wi\.weight": r"\1.layers.\2.feed_forward.up.weight",
            r"(\w+)\.block\.(\d+)\..*\.DenseReluDense\.wo\.weight": r"\1.layers.\2.feed_forward.down.weight",
            r"(\w+)\.final_layer_norm\.weight": r"\1.final_norm.weight",
        },
    ),
    Case(
        "umt5",
        "UMT5ForConditionalGeneration",
        "UMT5Config",
        {
            "vocab_size": V,
            "d_model": 32,
            "d_kv": 6,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 12,
        },
        TINY["umt5"],
        {
            r"shared\.weight": "decoder.embedding.tokens.weight",
            r"(\w+)\.block\.(\d+)\.layer\.0\.SelfAttention\.relative_attention_bias\.weight": (
                r"\1.layers.\2.attention.relative_bias.weight"
            ),
            r"(\w+)\.block\.(\d+)\.layer\.0\.SelfAttention\.([qkvo])\.weight": r"\1.layers.\2.attention.\3.weight",
            r"(\w+)\.block\.(\d+)\.layer\.0\.layer_norm\.weight": r"\1.layers.\2.attention_norm.weight",
            r"(\w+)\.block\.(\d+)\.layer\.1\.EncDecAttention\.(\w)\.weight": r"\1.layers.\2.cross_attention.\3.weight",
            r"decoder\.block\.(\d+)\.layer\.1\.layer_norm\.weight": r"decoder.layers.\1.cross_attention_norm.weight",
            r"encoder\.block\.(\d+)\.layer\.1\.layer_norm\.weight": r"encoder.layers.\1.feed_forward_norm.weight",
            r"decoder\.block\.(\d+)\.layer\.2\.layer_norm\.weight": r"decoder.layers.\1.feed_forward_norm.weight",
            r"(\w+)\.block\.(\d+)\..*\.DenseReluDense\.wi_0\.weight": r"\1.layers.\2.feed_forward.gate.weight",
            r"(\w+)\.block\.(\d+)\..*\.DenseReluDense\.wi_1\.weight": r"\1.layers.\2.feed_forward.up.weight",
            r"(\w+)\.block\.(\d+)\..*\.DenseReluDense\.wo\.weight": r"\1.layers.\2.feed_forward.down.weight",
            r"(\w+)\.final_layer_norm\.weight": r"\1.final_norm.weight",
        },
    ),
    Case(
        "whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "vocab_size": V,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "max_target_positions": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        TINY["whisper"],
        {
            r"model\.encoder\.(conv\d)\.(\w+)": r"encoder.embedding.\1.\2",
            r"model\.(\w+)\.embed_positions\.weight": r"\1.embedding.positions.weight",
            r"model\.decoder\.embed_tokens\.weight": "decoder.embedding.tokens.weight",
            r"model\.(\w+)\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(\w+)": r"\1.layers.\2.attention.\3.\4",
            r"model\.(\w+)\.layers\.(\d+)\.self_attn\.out_proj\.(\w+)": r"\1.layers.\2.attention.o.\3",
            r"model\.(\w+)\.layers\.(\d+)\.encoder_attn\.([qkv])_proj\.(\w+)": r"\1.layers.\2.cross_attention.\3.\4",
            r"model\.(\w+)\.layers\.(\d+)\.encoder_attn\.out_proj\.(\w+)": r"\1.layers.\2.cross_attention.o.\3",
            r"model\.(\w+)\.layers\.(\d+)\.self_attn_layer_norm\.(\w+)": r"\1.layers.\2.attention_norm.\3",
            r"model\.(\w+)\.layers\.(\d+)\.encoder_attn_layer_norm\.(\w+)": r"\1.layers.\2.cross_attention_norm.\3",
            r"model\.(\w+)\.layers\.(\d+)\.final_layer_norm\.(\w+)": r"\1.layers.\2.feed_forward_norm.\3",
            r"model\.(\w+)\.layers\.(\d+)\.fc1\.(\w+)": r"\1.layers.\2.feed_forward.up.\3",
            r"model\.(\w+)\.layers\.(\d+)\.fc2\.(\w+)": r"\1.layers.\2.feed_forward.down.\3",
            r"model\.(\w+)\.layer_norm\.(\w+)": r"\1.final_norm.\2",
        },
    ),
    Case(
        "bert2bert",
        "EncoderDecoderModel",
        "EncoderDecoderConfig",
        {
            "encoder": {"model_type": "bert", **MHA, "num_hidden_layers": 3},
            "decoder": {
                "model_type": "bert",
                **MHA,
                "vocab_size": V - 3,
                "is_decoder": True,
                "add_cross_attention": True,
                "tie_word_embeddings": True,
            },
        },
        TINY["bert2bert"],
        {
            **{pattern.replace(r"bert\.", r"encoder\.", 1): f"encoder.{name}" for pattern, name in BERT.items()},
            r"encoder\.pooler\.dense\.(\w+)": r"encoder.pooler.transform.\1",
            **{rf"decoder\.{pattern}": f"decoder.{name}" for pattern, name in BERT.items()},
            AT_BERT + r"self\.([qkv])\w+\.(\w+)": r"decoder.layers.\1.cross_attention.\2.\3",
            AT_BERT + r"output\.dense\.(\w+)": r"decoder.layers.\1.cross_attention.o.\2",
            AT_BERT + r"output\.LayerNorm\.(\w+)": r"decoder.layers.\1.cross_attention_norm.\2",
        },
    ),
    Case(
        "vit2trocr",
        "VisionEncoderDecoderModel",
        "VisionEncoderDecoderConfig",
        {
            "encoder": {
                "model_type": "vit",
                "hidden_size": 24,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 12,
                "patch_size": 4,
            },
            "decoder": {
                "model_type": "trocr",
                "vocab_size": V,
                "d_model": 32,
                "decoder_layers": 2,
                "decoder_attention_heads": 4,
                "decoder_ffn_dim": 48,
                "max_position_embeddings": 64,
                "cross_attention_hidden_size": 24,
            },
        },
        TINY["vit2trocr"],
        {
            r"encoder\.embeddings\.cls_token": lambda tensor: {
                "encoder.embedding.class_token.weight": tensor.flatten()
            },
            r"encoder\.embeddings\.position_embeddings": lambda tensor: {
                "encoder.embedding.positions.weight": tensor[0]
            },
            r"encoder\.embeddings\.patch_embeddings\.projection\.(\w+)": r"encoder.embedding.patches.\1",
            r"encoder\.layers\.(\d+)\.attention\.([qkvo])_proj\.(\w+)": r"encoder.layers.\1.attention.\2.\3",
            r"encoder\.layers\.(\d+)\.layernorm_before\.(\w+)": r"encoder.layers.\1.attention_norm.\2",
            r"encoder\.layers\.(\d+)\.layernorm_after\.(\w+)": r"encoder.layers.\1.feed_forward_norm.\2",
            r"encoder\.layers\.(\d+)\.mlp\.fc1\.(\w+)": r"encoder.layers.\1.feed_forward.up.\2",
            r"encoder\.layers\.(\d+)\.mlp\.fc2\.(\w+)": r"encoder.layers.\1.feed_forward.down.\2",
            r"encoder\.layernorm\.(\w+)": r"encoder.final_norm.\1",
            r"encoder\.pooler\.dense\.(\w+)": r"encoder.pooler.transform.\1",
            r"decoder\.model\.decoder\.embed_tokens\.weight": "decoder.embedding.tokens.weight",
            r"decoder\.model\.decoder\.embed_positions\.weight": lambda tensor: {
                "decoder.embedding.positions.weight": torch.cat((tensor[2:], tensor[:2]))
            },
            r"decoder\.model\.decoder\.layernorm_embedding\.(\w+)": r"decoder.embedding.norm.\1",
            AT_TROCR + r"self_attn\.([qkv])_proj\.(\w+)": r"decoder.layers.\1.attention.\2.\3",
            AT_TROCR + r"self_attn\.out_proj\.(\w+)": r"decoder.layers.\1.attention.o.\2",
            AT_TROCR + r"encoder_attn\.([qkv])_proj\.(\w+)": r"decoder.layers.\1.cross_attention.\2.\3",
            AT_TROCR + r"encoder_attn\.out_proj\.(\w+)": r"decoder.layers.\1.cross_attention.o.\2",
            AT_TROCR + r"self_attn_layer_norm\.(\w+)": r"decoder.layers.\1.attention_norm.\2",
            AT_TROCR + r"encoder_attn_layer_norm\.(\w+)": r"decoder.layers.\1.cross_attention_norm.\2",
            AT_TROCR + r"final_layer_norm\.(\w+)": r"decoder.layers.\1.feed_forward_norm.\2",
            AT_TROCR + r"fc1\.(\w+)": r"decoder.layers.\1.feed_forward.up.\2",
            AT_TROCR + r"fc2\.(\w+)": r"decoder.layers.\1.feed_forward.down.\2",
        },
    ),
    Case(
        "vit",
        "ViTForImageClassification",
        "ViTConfig",
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 12,
            "patch_size": 4,
            "num_labels": 7,
        },
        TINY["vit"],
        {
            r"vit\.embeddings\.cls_token": lambda tensor: {"embedding.class_token.weight": tensor.flatten()},
            r"vit\.embeddings\.position_embeddings": lambda tensor: {"embedding.positions.weight": tensor[0]},
            r"vit\.embeddings\.patch_embeddings\.projection\.(\w+)": r"embedding.patches.\1",
            r"vit\.layers\.(\d+)\.attention\.([qkvo])_proj\.(\w+)": r"layers.\1.attention.\2.\3",
            r"vit\.layers\.(\d+)\.layernorm_before\.(\w+)": r"layers.\1.attention_norm.\2",
            r"vit\.layers\.(\d+)\.layernorm_after\.(\w+)": r"layers.\1.feed_forward_norm.\2",
            r"vit\.layers\.(\d+)\.mlp\.fc1\.(\w+)": r"layers.\1.feed_forward.up.\2",
            r"vit\.layers\.(\d+)\.mlp\.fc2\.(\w+)": r"layers.\1.feed_forward.down.\2",
            r"vit\.layernorm\.(\w+)": r"final_norm.\1",
            r"classifier\.(\w+)": r"head.projection.\1",
        },
    ),
    Case(
        "esm",
        "EsmForMaskedLM",
        "EsmConfig",
        {
            **MHA,
            "pad_token_id": 1,
            "mask_token_id": V,  # no token here: masked ones would be scaled otherwise
            "position_embedding_type": "rotary",
            "token_dropout": True,
            "emb_layer_norm_before": True,
            "tie_word_embeddings": True,
        },
        TINY["esm"],
        {
            r"esm\.embeddings\.word_embeddings\.weight": "embedding.tokens.weight",
            r"esm\.embeddings\.layer_norm\.(\w+)": r"embedding.norm.\1",
            r"esm\.encoder\.layer\.(\d+)\.attention\.self\.([qkv])\w+\.(\w+)": r"layers.\1.attention.\2.\3",
            r"esm\.encoder\.layer\.(\d+)\.attention\.output\.dense\.(\w+)": r"layers.\1.attention.o.\2",
            r"esm\.encoder\.layer\.(\d+)\.attention\.LayerNorm\.(\w+)": r"layers.\1.attention_norm.\2",
            r"esm\.encoder\.layer\.(\d+)\.intermediate\.dense\.(\w+)": r"layers.\1.feed_forward.up.\2",
            r"esm\.encoder\.layer\.(\d+)\.output\.dense\.(\w+)": r"layers.\1.feed_forward.down.\2",
            r"esm\.encoder\.layer\.(\d+)\.LayerNorm\.(\w+)": r"layers.\1.feed_forward_norm.\2",
            r"esm\.encoder\.emb_layer_norm_after\.(\w+)": r"final_norm.\1",
            r"esm\.contact_head\.regression\.(\w+)": r"contacts.\1",
            r"lm_head\.bias": "head.projection.bias",
            r"lm_head\.dense\.(\w+)": r"head.transform.\1",
            r"lm_head\.layer_norm\.(\w+)": r"head.norm.\1",
        },
    ),
    Case(
        "layoutlm",
        "LayoutLMForMaskedLM",
        "LayoutLMConfig",
        MHA | {"max_2d_position_embeddings": 20, "tie_word_embeddings": True},
        TINY["layoutlm"],
        {
            **{pattern.replace("bert", "layoutlm", 1): name for pattern, name in BERT.items()},
            **{
                rf"layoutlm\.embeddings\.{axis}_position_embeddings\.weight": f"embedding.table{i + 1}.weight"
                for i, axis in enumerate("xyhw")
            },
            r"layoutlm\.pooler\.dense\.(\w+)": r"pooler.transform.\1",
        },
    ),
    Case(
        "esmc",
        "EsmcForMaskedLM",
        "EsmcConfig",
        MHA | {"attention_bias": True, "num_hidden_layers": 36},  # with 36 the branches are as they are, else scaled
        TINY["esmc"] | {"n_layers": 36},
        {
            **{pattern.replace("model", "esmc", 1): name for pattern, name in LLAMA.items()},
            r"esmc\.layers\.(\d+)\.input_layernorm\.(\w+)": r"layers.\1.attention_norm.\2",
            r"esmc\.layers\.(\d+)\.post_attention_layernorm\.(\w+)": r"layers.\1.feed_forward_norm.\2",
            **ROBERTA_HEAD,
            r"lm_head\.decoder\.(\w+)": r"head.projection.\1",
        },
    ),
    Case(
        "mpnet",
        "MPNetForMaskedLM",
        "MPNetConfig",
        MHA | {"max_position_embeddings": 66, "tie_word_embeddings": True},
        TINY["mpnet"],
        {
            r"mpnet\.embeddings\.word_embeddings\.weight": "embedding.tokens.weight",
            # Two rows before the first position: for padding, and for what comes before it.
            r"mpnet\.embeddings\.position_embeddings\.weight": lambda tensor: {
                "embedding.positions.weight": tensor[2:]
            },
            r"mpnet\.embeddings\.LayerNorm\.(\w+)": r"embedding.norm.\1",
            r"mpnet\.encoder\.relative_attention_bias\.weight": "relative_bias.weight",
            r"mpnet\.encoder\.layer\.(\d+)\.attention\.attn\.([qkvo])\.(\w+)": r"layers.\1.attention.\2.\3",
            r"mpnet\.encoder\.layer\.(\d+)\.attention\.LayerNorm\.(\w+)": r"layers.\1.attention_norm.\2",
            r"mpnet\.encoder\.layer\.(\d+)\.intermediate\.dense\.(\w+)": r"layers.\1.feed_forward.up.\2",
            r"mpnet\.encoder\.layer\.(\d+)\.output\.dense\.(\w+)": r"layers.\1.feed_forward.down.\2",
            r"mpnet\.encoder\.layer\.(\d+)\.output\.LayerNorm\.(\w+)": r"layers.\1.feed_forward_norm.\2",
            **ROBERTA_HEAD,
        },
    ),
    Case(
        "roformer",
        "RoFormerForMaskedLM",
        "RoFormerConfig",
        MHA | {"embedding_size": 12, "tie_word_embeddings": True},
        TINY["roformer"],
        {
            **{
                pattern.replace("bert", "roformer", 1): name
                for pattern, name in BERT.items()
                if "position" not in name  # type: ignore[operator]
            },
            r"roformer\.embeddings_project\.(\w+)": r"embedding.projection.\1",
            r"roformer\.encoder\.embed_positions\.weight": "angles.weight",
        },
    ),
    Case(
        "gte",
        "GteForMaskedLM",
        "GteConfig",
        MHA | {"type_vocab_size": 2, "pad_token_id": 1},
        TINY["gte"],
        {
            r"gte\.embeddings\.word_embeddings\.weight": "embedding.tokens.weight",
            r"gte\.embeddings\.token_type_embeddings\.weight": "embedding.types.weight",
            r"gte\.embeddings\.LayerNorm\.(\w+)": r"embedding.norm.\1",
            r"gte\.layers\.(\d+)\.self_attn\.([qkvo])_proj\.(\w+)": r"layers.\1.attention.\2.\3",
            r"gte\.layers\.(\d+)\.post_attention_layernorm\.(\w+)": r"layers.\1.attention_norm.\2",
            r"gte\.layers\.(\d+)\.mlp\.(gate|up|down)_proj\.(\w+)": r"layers.\1.feed_forward.\2.\3",
            r"gte\.layers\.(\d+)\.post_mlp_layernorm\.(\w+)": r"layers.\1.feed_forward_norm.\2",
            **ROBERTA_HEAD,
            r"lm_head\.decoder\.(\w+)": r"head.projection.\1",
        },
    ),
    Case(
        "eurobert",
        "EuroBertForMaskedLM",
        "EuroBertConfig",
        SMALL | {"mlp_bias": True, "pad_token_id": 0},
        TINY["eurobert"],
        {
            **LLAMA,
            r"model\.layers\.(\d+)\.mlp\.(gate|up|down)_proj\.bias": r"layers.\1.feed_forward.\2.bias",
            r"lm_head\.bias": "head.projection.bias",
        },
    ),
    Case(
        "xlm",
        "XLMWithLMHeadModel",
        "XLMConfig",
        {"vocab_size": V, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_langs": 3, "max_position_embeddings": 64},
        TINY["xlm"],
        {
            r"transformer\.embeddings\.weight": "embedding.tokens.weight",
            r"transformer\.position_embeddings\.weight": "embedding.positions.weight",
            r"transformer\.lang_embeddings\.weight": "embedding.types.weight",
            r"transformer\.layer_norm_emb\.(\w+)": r"embedding.norm.\1",
            r"transformer\.attentions\.(\d+)\.([qkv])_lin\.(\w+)": r"layers.\1.attention.\2.\3",
            r"transformer\.attentions\.(\d+)\.out_lin\.(\w+)": r"layers.\1.attention.o.\2",
            r"transformer\.layer_norm1\.(\d+)\.(\w+)": r"layers.\1.attention_norm.\2",
            r"transformer\.ffns\.(\d+)\.lin1\.(\w+)": r"layers.\1.feed_forward.up.\2",
            r"transformer\.ffns\.(\d+)\.lin2\.(\w+)": r"layers.\1.feed_forward.down.\2",
            r"transformer\.layer_norm2\.(\d+)\.(\w+)": r"layers.\1.feed_forward_norm.\2",
            r"pred_layer\.proj\.bias": "head.projection.bias",
        },
    ),
    Case(
        "dinov2",
        "Dinov2ForImageClassification",
        "Dinov2Config",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 12,
            "patch_size": 4,
            "num_labels": 7,
            "use_swiglu_ffn": True,
        },
        TINY["dinov2"],
        PICTURES
        | {
            r"dinov2\.embeddings\.position_embeddings": lambda tensor: {"embedding.positions.weight": tensor[0]},
            r"dinov2\.encoder\.layer\.(\d+)\.norm1\.(\w+)": r"layers.\1.attention_norm.\2",
            r"dinov2\.encoder\.layer\.(\d+)\.norm2\.(\w+)": r"layers.\1.feed_forward_norm.\2",
            r"dinov2\.encoder\.layer\.(\d+)\.layer_scale1\.lambda1": r"layers.\1.attention_scale.weight",
            r"dinov2\.encoder\.layer\.(\d+)\.layer_scale2\.lambda1": r"layers.\1.feed_forward_scale.weight",
            r"dinov2\.encoder\.layer\.(\d+)\.mlp\.(gate|up|down)_proj\.(\w+)": r"layers.\1.feed_forward.\2.\3",
            r"dinov2\.layernorm\.(\w+)": r"final_norm.\1",
        },
    ),
    Case(
        "beit",
        "BeitForImageClassification",
        "BeitConfig",
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 12,
            "patch_size": 4,
            "num_labels": 7,
        },
        TINY["beit"],
        PICTURES
        | {
            r"beit\..*layers?\.(\d+)\.layernorm_before\.(\w+)": r"layers.\1.attention_norm.\2",
            r"beit\..*layers?\.(\d+)\.layernorm_after\.(\w+)": r"layers.\1.feed_forward_norm.\2",
            r"beit\..*layers?\.(\d+)\.lambda_1": r"layers.\1.attention_scale.weight",
            r"beit\..*layers?\.(\d+)\.lambda_2": r"layers.\1.feed_forward_scale.weight",
            r"beit\..*layers?\.(\d+)\.mlp\.fc1\.(\w+)": r"layers.\1.feed_forward.up.\2",
            r"beit\..*layers?\.(\d+)\.mlp\.fc2\.(\w+)": r"layers.\1.feed_forward.down.\2",
            r"beit\.pooler\.layernorm\.(\w+)": r"head.pool_norm.\1",
        },
    ),
    Case(
        "mamba",
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "tie_word_embeddings": True},
        TINY["mamba"],
        mixer("mamba"),
    ),
    Case(
        "mamba2",
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            "vocab_size": V,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 8,
            "head_dim": 8,
            "num_heads": 8,
            "n_groups": 2,
            "chunk_size": 4,
            "tie_word_embeddings": False,
        },
        TINY["mamba2"],
        mixer("mamba2"),
    ),
    Case("bamba", "BambaForCausalLM", "BambaConfig", {**BAMBA_SIZES, "attn_layer_indices": [1]}, TINY["bamba"], BAMBA),
    Case(
        "falcon-h1",
        "FalconH1ForCausalLM",
        "FalconH1Config",
        {**BAMBA_SIZES, "mamba_n_heads": 6, "mamba_d_ssm": 48, "embedding_multiplier": 2.0, "lm_head_multiplier": 0.5},
        TINY["falcon-h1"],
        {
            **BAMBA,
            AT4 + r"input_layernorm\.weight": r"layers.\1.mamba2_norm.weight",
        },
    ),
    Case(
        "qwen3-next",
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {
            **SMALL,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 6,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
        },
        TINY["qwen3-next"],
        {
            **EXPERTS,
            r"model\.layers\.([012])\.input_layernorm\.weight": r"layers.\1.delta_norm.weight",
            r"model\.layers\.(\d)\.linear_attn\.(A_log|dt_bias)": r"layers.\1.delta.scan.\2",
            r"model\.layers\.(\d)\.linear_attn\.conv1d\.weight": r"layers.\1.delta.conv.weight",
            r"model\.layers\.(\d)\.linear_attn\.(norm|out_proj)\.weight": r"layers.\1.delta.\2.weight",
            r"model\.layers\.(\d)\.linear_attn\.in_proj_qkvz\.weight": delta_projections,
            r"model\.layers\.(\d)\.linear_attn\.in_proj_ba\.weight": delta_gates,
            r"model\.layers\.(3)\.self_attn\.q_proj\.weight": queries_and_gates,
        },
    ),
    Case(
        "olmo-hybrid",
        "OlmoHybridForCausalLM",
        "OlmoHybridConfig",
        {
            **SMALL,
            "pad_token_id": None,
            "rms_norm_eps": 1e-5,  # as the norm of what the delta rule reads has it, whatever the config says
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 6,
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
        },
        TINY["olmo-hybrid"],
        {
            **LLAMA,
            r"model\.layers\.1\.post_attention_layernorm\.weight": "layers.1.attention_post_norm.weight",
            r"model\.layers\.1\.post_feedforward_layernorm\.weight": "layers.1.feed_forward_post_norm.weight",
            **delta_rules("0", "linear_attn"),
        },
    ),
    Case(
        "kimi-linear",
        "KimiLinearForCausalLM",
        "KimiLinearConfig",
        {**KIMI_SIZES, "linear_num_heads": 3, "linear_head_dim": 8},
        TINY["kimi-linear"],
        KIMI,
        r".*e_score_correction_bias",
    ),
    Case(
        "bailing-hybrid",
        "BailingHybridForCausalLM",
        "BailingHybridConfig",
        {**KIMI_SIZES, "head_dim": 8, "num_mtp_layers": 0, "rope_theta": 10_000.0},
        TINY["bailing-hybrid"],
        KIMI,
        r".*e_score_correction_bias",
    ),
    Case(
        "recurrent-gemma",
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "attention_window_size": 4,
            "tie_word_embeddings": True,
        },
        TINY["recurrent-gemma"],
        {
            **LLAMA,
            r"model\.final_norm\.weight": "final_norm.weight",
            r"model\.layers\.([01])\.temporal_pre_norm\.weight": r"layers.\1.rg_lru_norm.weight",
            r"model\.layers\.(2)\.temporal_pre_norm\.weight": r"layers.\1.attention_norm.weight",
            r"model\.layers\.(\d)\.channel_pre_norm\.weight": r"layers.\1.feed_forward_norm.weight",
            r"model\.layers\.(\d)\.temporal_block\.([qkvo])_proj\.(\w+)": r"layers.\1.attention.\2.\3",
            r"model\.layers\.(\d)\.temporal_block\.linear_x\.(\w+)": r"layers.\1.rg_lru.in_proj.\2",
            r"model\.layers\.(\d)\.temporal_block\.linear_y\.(\w+)": r"layers.\1.rg_lru.gate_proj.\2",
            r"model\.layers\.(\d)\.temporal_block\.linear_out\.(\w+)": r"layers.\1.rg_lru.out_proj.\2",
            r"model\.layers\.(\d)\.temporal_block\.conv_1d\.(\w+)": r"layers.\1.rg_lru.conv.\2",
            r"model\.layers\.(\d)\.temporal_block\.rg_lru\.recurrent_param": r"layers.\1.rg_lru.scan.rate",
            r"model\.layers\.(\d)\.temporal_block\.rg_lru\.input_gate_(\w+)": r"layers.\1.rg_lru.input_gate.\2",
            r"model\.layers\.(\d)\.temporal_block\.rg_lru\.recurrent_gate_(\w+)": r"layers.\1.rg_lru.decay_gate.\2",
            r"model\.layers\.(\d)\.mlp_block\.(gate|up|down)_proj\.(\w+)": r"layers.\1.feed_forward.\2.\3",
        },
    ),
    Case(
        "rwkv",
        "RwkvForCausalLM",
        "RwkvConfig",
        {
            "vocab_size": V,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "rescale_every": 0,
        },
        TINY["rwkv"],
        {
            r"rwkv\.embeddings\.weight": "embedding.tokens.weight",
            r"rwkv\.blocks\.0\.pre_ln\.(\w+)": r"embedding.norm.\1",
            r"rwkv\.blocks\.(\d)\.ln1\.(\w+)": r"layers.\1.time_mix_norm.\2",
            r"rwkv\.blocks\.(\d)\.ln2\.(\w+)": r"layers.\1.channel_mix_norm.\2",
            r"rwkv\.blocks\.(\d)\.attention\.time_decay": r"layers.\1.time_mix.scan.decay",
            r"rwkv\.blocks\.(\d)\.attention\.time_first": r"layers.\1.time_mix.scan.bonus",
            r"rwkv\.blocks\.(\d)\.attention\.time_mix_(\w+)": shared_channel("layers.{0}.time_mix.shift.{1}"),
            r"rwkv\.blocks\.(\d)\.attention\.([kvr])\w+\.weight": r"layers.\1.time_mix.\2.weight",
            r"rwkv\.blocks\.(\d)\.attention\.output\.weight": r"layers.\1.time_mix.out_proj.weight",
            r"rwkv\.blocks\.(\d)\.feed_forward\.time_mix_(\w+)": shared_channel("layers.{0}.channel_mix.shift.{1}"),
            r"rwkv\.blocks\.(\d)\.feed_forward\.key\.weight": r"layers.\1.channel_mix.up.weight",
            r"rwkv\.blocks\.(\d)\.feed_forward\.value\.weight": r"layers.\1.channel_mix.down.weight",
            r"rwkv\.blocks\.(\d)\.feed_forward\.receptance\.weight": r"layers.\1.channel_mix.r.weight",
            r"rwkv\.ln_out\.(\w+)": r"final_norm.\1",
            r"head\.weight": "head.projection.weight",
        },
    ),
    Case(
        "minimax",
        "MiniMaxForCausalLM",
        "MiniMaxConfig",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "block_size": 4,
        },
        TINY["minimax"],
        {
            **EXPERTS,
            r"model\.layers\.0\.input_layernorm\.weight": "embedding.norm.weight",
            r"model\.layers\.1\.input_layernorm\.weight": "layers.0.experts_norm.weight",
            r"model\.layers\.2\.input_layernorm\.weight": "layers.1.experts_norm.weight",
            r"model\.norm\.weight": "layers.2.experts_norm.weight",
            r"model\.layers\.([02])\.post_attention_layernorm\.weight": r"layers.\1.linear_attention_norm.weight",
            r"model\.layers\.(1)\.post_attention_layernorm\.weight": r"layers.\1.attention_norm.weight",
            r"model\.layers\.(\d)\.self_attn\.qkv_proj\.weight": lambda layer, tensor: {
                f"layers.{layer}.linear_attention.in_proj.weight": tensor.unflatten(0, (4, 3, -1))
                .transpose(0, 1)
                .flatten(0, 2)
            },
            r"model\.layers\.(\d)\.self_attn\.output_gate\.weight": r"layers.\1.linear_attention.gate_proj.weight",
            r"model\.layers\.(\d)\.self_attn\.(norm|out_proj)\.weight": r"layers.\1.linear_attention.\2.weight",
            r"model\.layers\.(\d)\.self_attn\.slope_rate": lambda layer, tensor: {
                f"layers.{layer}.linear_attention.scan.decay": tensor.flatten()
            },
        },
        fixed=r".*slope_rate",
    ),
    Case(
        "nemotron-h",
        "NemotronHForCausalLM",
        "NemotronHConfig",
        {
            **{key: value for key, value in SMALL.items() if key != "num_hidden_layers"},
            "layers_block_type": ["moe", "attention"],
            "head_dim": 8,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.5,
            "moe_intermediate_size": 16,
            "moe_latent_size": 12,
            "moe_shared_expert_intermediate_size": 24,
        },
        TINY["nemotron-h"],
        {
            r"model\.embeddings\.weight": "embedding.tokens.weight",
            r"model\.norm_f\.weight": "final_norm.weight",
            r"lm_head\.weight": "head.projection.weight",
            r"model\.layers\.0\.norm\.weight": "layers.0.experts_norm.weight",
            r"model\.layers\.1\.norm\.weight": "layers.1.attention_norm.weight",
            r"model\.layers\.1\.mixer\.([qkvo])_proj\.weight": r"layers.1.attention.\1.weight",
            r"model\.layers\.0\.mixer\.gate\.weight": "layers.0.experts.router.weight",
            r"model\.layers\.0\.mixer\.gate\.e_score_correction_bias": "layers.0.experts.selection_bias",
            r"model\.layers\.0\.mixer\.fc1_latent_proj\.weight": "layers.0.experts.latent_down.weight",
            r"model\.layers\.0\.mixer\.fc2_latent_proj\.weight": "layers.0.experts.latent_up.weight",
            r"model\.layers\.0\.mixer\.shared_experts\.(up|down)_proj\.weight": r"layers.0.experts.shared.\1.weight",
            r"model\.layers\.0\.mixer\.experts\.(up|down)_proj": lambda name, tensor: {
                f"layers.0.experts.routed.{e}.{name}.weight": expert for e, expert in enumerate(tensor)
            },
        },
        r".*e_score_correction_bias",
    ),
    Case(
        "lfm2",
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {
            **SMALL,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "conv", "full_attention"],
            "block_auto_adjust_ff_dim": False,
            "conv_bias": True,
            "tie_word_embeddings": True,
        },
        TINY["lfm2"],
        {
            **LLAMA,
            r"model\.embedding_norm\.weight": "final_norm.weight",
            r"model\.layers\.(2)\.operator_norm\.weight": r"layers.\1.attention_norm.weight",
            r"model\.layers\.([01])\.operator_norm\.weight": r"layers.\1.short_convolution_norm.weight",
            r"model\.layers\.(\d)\.ffn_norm\.weight": r"layers.\1.feed_forward_norm.weight",
            r"model\.layers\.(\d)\.self_attn\.out_proj\.weight": r"layers.\1.attention.o.weight",
            r"model\.layers\.(\d)\.self_attn\.([qk])_layernorm\.weight": r"layers.\1.attention.\2_norm.weight",
            r"model\.layers\.(\d)\.conv\.(\w+)\.(\w+)": r"layers.\1.short_convolution.\2.\3",
            r"model\.layers\.(\d)\.feed_forward\.w1\.weight": r"layers.\1.feed_forward.gate.weight",
            r"model\.layers\.(\d)\.feed_forward\.w3\.weight": r"layers.\1.feed_forward.up.weight",
            r"model\.layers\.(\d)\.feed_forward\.w2\.weight": r"layers.\1.feed_forward.down.weight",
        },
    ),
    Case(
        "jamba",
        "JambaForCausalLM",
        "JambaConfig",
        {
            **SMALL,
            "num_hidden_layers": 4,
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_d_state": 4,
            "use_mamba_kernels": False,
        },
        TINY["jamba"],
        {
            **LLAMA,
            r"model\.final_layernorm\.weight": "final_norm.weight",
            r"model\.layers\.(2)\.input_layernorm\.weight": r"layers.\1.attention_norm.weight",
            r"model\.layers\.([013])\.input_layernorm\.weight": r"layers.\1.mamba_norm.weight",
            r"model\.layers\.([02])\.pre_ff_layernorm\.weight": r"layers.\1.feed_forward_norm.weight",
            r"model\.layers\.([13])\.pre_ff_layernorm\.weight": r"layers.\1.experts_norm.weight",
            r"model\.layers\.(\d)\.mamba\.(A_log|D)": r"layers.\1.mamba.scan.\2",
            r"model\.layers\.(\d)\.mamba\.conv1d\.(\w+)": r"layers.\1.mamba.conv.\2",
            r"model\.layers\.(\d)\.mamba\.(\w+_proj)\.(\w+)": r"layers.\1.mamba.\2.\3",
            r"model\.layers\.(\d)\.mamba\.(dt|b|c)_layernorm\.weight": r"layers.\1.mamba.\2_norm.weight",
            r"model\.layers\.(\d)\.feed_forward\.router\.weight": r"layers.\1.experts.router.weight",
            r"model\.layers\.(\d)\.feed_forward\.experts\.gate_up_proj": expert_pairs,
            r"model\.layers\.(\d)\.feed_forward\.experts\.down_proj": expert_downs,
            r"model\.layers\.(\d)\.feed_forward\.(gate|up|down)_proj\.weight": r"layers.\1.feed_forward.\2.weight",
        },
    ),
]
BY_NAME = {case.name: case for case in CASES}


def theirs_of(case: Case) -> nn.Module:
    """transformers' model, every weight that learns moved: norms of ones and biases of zeros would hide a wrong map."""
    config = getattr(hf, case.config)(**case.settings, attn_implementation="eager")
    model = getattr(hf, case.model)(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # sinusoids are what they are
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        for name, buffer in model.named_buffers():
            if re.fullmatch(case.buffers, name):
                buffer.add_(torch.randn(buffer.shape, generator=generator), alpha=0.1)
    return model.eval()


@torch.no_grad()
def copy(case: Case, theirs: nn.Module, ours: nn.Module) -> None:
    """Copies every weight of `theirs` by the case's rules; each of ours must be given exactly once."""
    wanted = dict(ours.named_parameters()) | {k: v for k, v in ours.named_buffers() if v.is_floating_point()}
    copied, pieces = f"{case.buffers}|{case.fixed}", dict[str, dict[str, Tensor]]()
    found = [*theirs.named_parameters(), *((k, v) for k, v in theirs.named_buffers() if re.fullmatch(copied, k))]
    for name, tensor in found:
        # a later rule is the more particular one
        rule, match = [(r, m) for p, r in case.rules.items() if (m := re.fullmatch(p, name))][-1]
        mapped = {match.expand(rule): tensor} if isinstance(rule, str) else rule(*match.groups(), tensor=tensor)
        for path, value in mapped.items():
            path, piece, number = path.partition("#")
            if piece:
                pieces.setdefault(path, {})[number] = value
            else:
                wanted.pop(path).copy_(value)
    for path, rows in pieces.items():
        wanted.pop(path).copy_(torch.cat([rows[number] for number in sorted(rows)]))
    assert not wanted, f"nothing was copied to {sorted(wanted)}"


def pair(case: Case) -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    """transformers' model, ours with its weights, and inputs for ours."""
    torch.manual_seed(0)
    theirs = theirs_of(case)
    model = described(case.raw, case.name)
    ours = reference.build(model)
    copy(case, theirs, ours)
    return theirs, ours, reference.inputs(model, B, T, 10 if len(model.spec["stacks"]) == 2 else None)


def their_logits(case: Case, theirs: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    if case.name in ("t5", "umt5"):
        return theirs(decoder_input_ids=inputs[0], input_ids=inputs[1]).logits
    if case.name == "whisper":
        return theirs(decoder_input_ids=inputs[0], input_features=inputs[1]).logits
    if case.name in ("bert2bert", "vit2trocr"):
        source = {"input_ids" if case.name == "bert2bert" else "pixel_values": inputs[1]}
        return theirs(decoder_input_ids=inputs[0], **source).logits, theirs.encoder(inputs[1]).pooler_output  # type: ignore[operator]
    told = {  # for they take some ids for padding
        "mpnet": {"position_ids": torch.arange(2, T + 2).expand(B, T)},
        "xlm": {"lengths": torch.full((B,), T), "langs": torch.zeros_like(inputs[0])},
    }
    out = theirs(inputs[0], **told.get(case.name, {}))
    if case.name in ("layoutlm", "squeezebert", "fnet", "big-bird"):  # their pooler always runs
        return out.logits, theirs.base_model(inputs[0]).pooler_output  # type: ignore[operator]
    return (out.last_hidden_state, out.pooler_output) if case.name == "bert-pooler" else out.logits


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@torch.no_grad()
def test_the_same_logits_as_transformers(case: Case) -> None:
    theirs, ours, inputs = pair(case)
    expected = their_logits(case, theirs, inputs)
    torch.testing.assert_close(ours(*inputs), expected, **CLOSE)
    with reference.mode(explicit=True):
        torch.testing.assert_close(ours(*inputs), expected, **CLOSE)


GENERATES = [
    "jetmoe",
    "xlstm",
    "zamba",
    "zamba2",
    "diffllama",
    "apertus",
    "axk1",
    "mimo-v2-flash",
    "gpt2",
    "mistral",
    "gemma2",
    "gemma4",
    "gemma4-moe",
    "gemma3n",
    "bloom",
    "laguna",
    "afmoe",
    "bitnet",
    "opt",
    "modernbert-decoder",
    "deepseek-v3",
    "deepseek-v3.2",
    "t5",
    "umt5",
    "whisper",
    "mamba",
    "mamba2",
    "bamba",
    "falcon-h1",
    "lfm2",
    "jamba",
    "gpt-oss",
    "qwen3-next",
    "olmo-hybrid",
    "kimi-linear",
    "bailing-hybrid",
    "recurrent-gemma",
    "rwkv",
    "minimax",
]


@pytest.mark.parametrize("name", GENERATES)
@torch.no_grad()
def test_prefill_and_decode_with_a_cache_equal_the_whole(name: str) -> None:
    theirs, ours, inputs = pair(BY_NAME[name])
    expected = their_logits(BY_NAME[name], theirs, inputs)
    for absorbed in (False, True) if "latent" in BY_NAME[name].raw else (False,):
        cache, pieces, start = reference.Cache(), [], 0
        for tokens in (5, 1, 2, 1, 1, 1):
            piece = inputs[0][:, start : start + tokens]
            source = inputs[1:] if start == 0 else ()
            with reference.mode(absorbed=absorbed):
                pieces.append(ours(piece, *source, cache=cache))
            start += tokens
        assert start == T == cache.past
        torch.testing.assert_close(torch.cat(pieces, 1), expected, **CLOSE)


def test_a_weight_that_is_not_mapped_is_noticed() -> None:
    case = BY_NAME["llama"]
    theirs, ours = theirs_of(case), reference.build(described(case.raw, "tiny"))
    rules = {**case.rules, r"model\.norm\.weight": "layers.0.attention_norm.weight"}
    with pytest.raises(KeyError):
        copy(case._replace(rules=rules), theirs, ours)
