"""Keys of a config.json that change no size, whatever the family: bookkeeping, training, generation, kernels.

A reader looks at its own keys first; only what it did not ask for is looked up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = """
architectures auto_map model_type transformers_version torch_dtype dtype name_or_path tokenizer_class tokenizer
processor_class feature_extractor_type custom_pipelines license language tags finetuning_task
task_specific_params id2label label2id num_labels problem_type prefix torchscript use_bfloat16 return_dict
return_dict_in_generate tf_legacy_loss keys_to_ignore_at_inference unsloth_fixed unsloth_version
use_cache gradient_checkpointing chunk_size_feed_forward pretraining_tp tp_size tensor_parallel_degree
initializer_range initializer_factor initializer_std init_std init_method_std init_device init_config seed
dropout embd_pdrop attn_pdrop resid_pdrop layerdrop encoder_layerdrop decoder_layerdrop
rope_theta rope_scaling rope_parameters rope_interleave rotary_emb_base rotary_pct rotary_emb_fraction
rope_local_base_freq partial_rotary_factor original_max_position_embeddings max_position_embeddings
is_llama_config rope_interleaved max_sequence_length model_max_length seq_length n_ctx max_seq_len mrope_section
rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_eps norm_epsilon
attention_softmax_in_fp32 scale_attention_softmax_in_fp32 softmax_scale query_pre_attn_scalar
scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn
attn_logit_softcapping final_logit_softcapping logit_scale logits_scaling embedding_multiplier
residual_multiplier attention_multiplier lm_head_multiplier clip_qkv scale_embedding scale_depth scale_emb
attn_implementation use_flash_attn use_flash_attention use_flash_attention_2 use_flash_attn_2 flash_attention
fused_mlp fused_bias_fc use_fused_rms_norm use_fused_rope use_mamba_kernels use_associative_scan use_mambapy
use_mem_eff_path cache_implementation use_cache_quantization use_cache_kernel quantization_config compression_config
router_aux_loss_coef router_z_loss_coef router_jitter_noise aux_loss_alpha seq_aux norm_topk_prob
normalize_router_weights routed_scaling_factor scoring_func topk_method n_group topk_group num_expert_group
input_jitter_noise moe_dropout expert_capacity router_dtype router_ignore_padding_tokens
output_attentions output_hidden_states output_router_logits output_past
max_length min_length max_new_tokens do_sample early_stopping num_beams num_beam_groups diversity_penalty
temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores exponential_decay_length_penalty
suppress_tokens begin_suppress_tokens remove_invalid_values forced_decoder_ids forced_bos_token_id
forced_eos_token_id normalize_before_logits num_logits_to_keep gradient_checkpointing_kwargs
ignore_index pad_index bos_index eos_index unk_index mask_index force_bos_token_to_be_generated
time_step_min time_step_max time_step_floor time_step_limit time_step_init_scheme time_step_scale
rescale_prenorm_residual mamba_chunk_size chunk_size mamba_dt_min mamba_dt_max mamba_dt_init_floor
rescale_every residual_in_fp32 neftune_noise_alpha use_mrope rope_ratio legacy
sep_token cls_token mask_token pad_token bos_token eos_token unk_token
model_parallel low_cpu_mem_usage use_reentrant bf16 fp16
image_size_cls classifier_activation semantic_loss_ignore_index drop_path_rate
"""
NAMES = frozenset(_NAMES.split())
ENDINGS = (
    "_token_id", "_token_ids", "_token_index", "_dropout", "_dropout_prob", "_dropout_rate", "_pdrop", "_loss_coef",
    "_loss_coefficient", "_loss_weight", "_initializer_range", "_init_std", "dropout_rate",
)  # fmt: skip
BEGINNINGS = ("_", "summary_", "transformers.js", "output_")

# Features that are off, as transformers' base class writes them into every nested config.
OFF: dict[str, Any] = {
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    "pruned_heads": {},
}

# Keys that other people's code reads beside a class of transformers', and that give it no weights where another key has
# this value: of which type they are, and whose.
ELSEWHERE: tuple[tuple[str, str, str, Any, str], ...] = (
    ("bert", "encoder_width fusion_layer", "add_cross_attention", False, "of BLIP's cross-attention, which is off"),
    ("bert", "biaffine_size", "architectures", ["BertForMaskedLM"], "of UBERT's head, which this class has not"),
    (
        "llama",
        "last_context_length mem_group_size memory_size ret_attn_layers ret_group_size",
        "use_gate",
        False,
        "of MemLong, whose memory has no weights without a gate; attention to it is not counted",
    ),
    ("qwen3", "k_codes", "architectures", ["Qwen3ForCausalLM"], "of complexFormer, whose code does not read it"),
)


def elsewhere(model_type: str, key: str, config: Mapping[str, Any]) -> str:
    """Whose a key is that only other people's code reads, where it gives the class no weights; else ""."""
    for family, keys, beside, value, whose in ELSEWHERE:
        if model_type == family and key in keys.split() and config.get(beside) == value:
            return whose
    return ""


def is_neutral(key: str, value: Any) -> bool:
    """True for a key that changes no size. One that is null says nothing."""
    off = key in OFF and type(OFF[key]) is type(value) and OFF[key] == value
    return value is None or off or key in NAMES or key.endswith(ENDINGS) or key.startswith(BEGINNINGS)
