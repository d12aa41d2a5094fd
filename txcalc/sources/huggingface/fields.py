"""What transformers' configuration classes refuse in a key whatever is made of its value: null, and what is no whole
number. Written down from transformers 5.23 (annotations, and null in a config of each family built on meta); a test
holds it against the classes.
"""

from __future__ import annotations

# Keys that may not be null in any family that has them.
_NEVER_NULL = """
activation adapter_kernel_size adapter_stride add_adapter add_fpn add_out_norm add_router_probs afn
allow_empty_column_selection altup_coef_clip altup_correct_scale apply_layernorm
apply_residual_connection_post_layernorm apply_spec_augment asm attn_temperature_tuning auxiliary_channels
auxiliary_concat_input auxiliary_num_convs average_logits_per_cell batch_prioritized_routing block_ffn_dim_multiplier
block_size causal classifier_activation classifier_proj_size codevector_dim concat_input ctc_zero_infinity
decoder_bias dense_act_fn deterministic_flash_attn disable_per_token_loss enable_moe_fp32_combine encoder_sparse_step
encoder_stride end_n_top expand expansion_ratio expert_capacity floor_scale full_attn_layers hidden_size
image_text_hidden_size index_block_size index_local_blocks index_topk_blocks init_cell_selection_weights_to_zero
inner_group_num intermediate_size_mlp is_encoder is_gated_act is_moe kda_layers kda_lower_bound
key_query_shared_bottleneck lang_id learned_pos_emb linear_attn_config ln_before_adapter mamba_d_conv mamba_d_head
mamba_dt_rank mamba_expand mamba_hidden_act mamba_n_groups mask_feature_length mask_feature_min_masks mask_time_length
mask_time_min_masks max_bucket_distance max_inference_chunksize max_num_columns max_num_rows max_seq_len
median_filter_width mlp_hidden_act moe_apply_router_weight_on_input moe_num_shared_experts moe_shared_expert_overlap
n_words no_bias norm_reduction_force_float32 normalize_router_prob_before_dropping num_adapter_layers
num_aggregation_labels num_attention_heads num_clusters num_codebooks num_codevector_groups num_codevectors_per_group
num_ctc_classes num_hidden_groups num_hidden_layers num_negatives num_shared_experts pooler_act pre_norm
proj_codevector_dim prompt_length prompt_mid_dim quant_mode rescale_embeddings reset_position_index_per_cell
reshape_hidden_states return_last_states rotary_value router_bias router_ignore_padding_tokens
scale_attention_softmax_in_fp32 select_one_column share_encoder_decoder_embeddings shared_expert_combination_strategy
short_conv_kernel_size sinusoidal_embeddings sinusoidal_pos_embds slow_but_exact sparse_pred_ignore_index
sparse_prediction start_n_top task_type_vocab_size tpu_short_seq_length use_auxiliary_head use_bottleneck_attention
use_expert_bias use_gumbel_for_aggregation use_gumbel_for_cells use_normalized_answer_loss use_prompt
use_relative_position_bias use_shared_relative_position_bias use_task_id use_tpu_fourier_optimizations
use_weighted_layer_sum vocab_size xvector_output_dim
"""
# Keys with the families in which they may not be null, or, after "but", the only ones in which they may.
_NULL = """
norm_topk_prob: doge
chunk_size: xlstm zamba2
num_logits_to_keep: zamba zamba2
use_mamba_kernels: zamba zamba2
use_conv_bias: zamba2
use_long_context: zamba2
use_mem_eff_path: zamba2
n_shared_experts: but mimo_v2_flash
activation_function: but starcoder2
add_cross_attention: bert bert-generation big_bird camembert convbert data2vec-text electra ernie gpt-sw3 gpt2
  gpt_bigcode megatron-bert mra nystromformer prophetnet rembert roberta roberta-prelayernorm roc_bert roformer
  switch_transformers tapas xglm xlm-roberta xlm-roberta-xl xmod yoso
attention_bias: but cwm glm4v_text phi3
attention_softmax_in_fp32: gpt_bigcode
bias: internlm3
context_length: rwkv
decoder_sparse_step: but qwen3_5_moe_text
decoder_start_token_id: bigbird_pegasus blenderbot led marian speech_to_text trocr whisper
final_logit_softcapping: gemma3n_text
first_k_dense_replace: but glm4_moe_lite solar_open
head_dim: but arcee aria_text hunyuan_vl_text deepseek_v2 deepseek_v3 ernie4_5 granitemoehybrid hyperclovax internlm3
  iquestcoder jais2 kimi_k2 llama minicpm3 minimax mistral mixtral nemotron qwen2_5_vl_text qwen2_vl_text
  qwen3_vl_moe_text rwkv7 seed_oss starcoder2 switch_transformers youtu
hidden_act: but gemma2 gemma3_text modernbert nemotron_h vaultgemma
hidden_activation: gemma2 gemma3_text modernbert t5gemma2_decoder t5gemma2_text vaultgemma
image_token_index: t5gemma2
intermediate_size: but gpt_neo qwen3_5_moe_text rwkv rwkv7 solar_open
is_decoder: bert big_bird bigbird_pegasus blenderbot blenderbot-small camembert convbert data2vec-text electra ernie
  gpt_neox gpt_neox_japanese longt5 marian mbart megatron-bert mt5 mvp pegasus plbart prophetnet reformer rembert
  roberta roberta-prelayernorm roc_bert roformer switch_transformers t5 tapas trocr umt5 xlm-roberta xlm-roberta-xl
  xmod
is_encoder_decoder: bigbird_pegasus blenderbot blenderbot-small data2vec-audio fsmt funnel led longcat_flash longt5
  m2m_100 marian mbart mra mt5 mvp nllb-moe nystromformer pegasus pegasus_x plbart prophetnet reformer speech_to_text
  splinter switch_transformers t5 t5gemma t5gemma2 umt5 vision-encoder-decoder whisper xlnet yoso
layer_types: nemotron_h
layers_block_type: granitemoehybrid
mamba_conv_bias: but granitemoehybrid
mamba_proj_bias: but granitemoehybrid
max_position_embeddings: but bloom mpt
max_window_layers: qwen2 qwen2_5_omni_text qwen2_moe qwen3
mlp_bias: but phi3
n_ctx: codegen
n_group: axk1 bailing_hybrid deepseek_v32 exaone_moe glm4_moe glm4_moe_lite glm4v_moe_text glm_moe_dsa hy_v4
  kimi_linear mimo_v2_flash solar_open
n_positions: codegen ctrl gpt-sw3 gpt2 gpt_bigcode gptj openai-gpt
norm_type: mpt
num_experts: but deepseek_v3 dots1 gemma4_text glm4_moe glm4_moe_lite glm4v_moe_text kimi_k2 llama4_text solar_open
num_experts_per_tok: bailing_hybrid doge hunyuan_v1_moe longcat_flash
num_key_value_heads: axk1 axk2 cwm deepseek_v32 deepseek_v4 emu3_text_model ernie4_5_moe exaone4 exaone_moe flint gemma
  gemma2 gemma3_text gemma3n_text gemma4_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite glm4v_moe_text
  glm_moe_dsa glm_ocr_text gpt_oss helium hy_v3 hy_v4 jamba kolibri1 laguna lfm2 lfm2_moe lfm3 llama4_text mellum
  mimo_v2_flash minimax minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral mllama_text_model
  molmo2_text muse_glimmer_text nemotron nemotron_h phimoe qwen2_moe qwen3_5_moe_text qwen3_5_text qwen3_moe
  qwen3_next qwen3_omni_moe_text qwen3_vl_moe_text solar_open stablelm starcoder2 step3p5 t5gemma t5gemma2_decoder
  t5gemma2_text vaultgemma whisper youtu
num_local_experts: but cohere2_moe deepseek_v2 exaone_moe flint granitemoe granitemoehybrid granitemoeshared qwen2_moe
num_mtp_layers: bailing_hybrid deepseek_v3 glm4_moe kimi_k2
num_nextn_predict_layers: deepseek_v4 nemotron_h
projection_dim: blip clap clip_vision_model
qkv_bias: but qwen3_moe
query_pre_attn_scalar: gemma2 gemma3_text t5gemma2_decoder t5gemma2_text vaultgemma
scale_embedding: but bart
sliding_window: cwm exaone_moe laguna recurrent_gemma
tie_word_embeddings: but perception_lm t5
time_step_rank: but nemotron_h
true_hidden_size: mobilebert
topk_group: axk1 deepseek_v32 exaone_moe glm4_moe glm4_moe_lite glm4v_moe_text glm_moe_dsa hy_v4 mimo_v2_flash
  solar_open
use_bias: but ernie4_5 ernie4_5_moe
v_head_dim: but minicpm3
org_vocab_size: hunyuan_vl_text
onnx_export: longformer
max_rel_2d_pos: layoutlmv3
text_embed: layoutlmv3
global_block_size: longt5
use_cache: trocr
moe_num_experts: step3p5
moe_top_k: step3p5
num_attention_groups: step3p5
share_expert_dims: step3p5
bi_data: xlnet
chunk_size_feed_forward: reformer
chunk_size_lm_head: reformer
clamp_len: xlnet
conv_kernel_size: nystromformer
disable_ngram_loss: prophetnet
hash_code_len: yoso
initial_prior_diagonal_n_blocks: mra
initial_prior_first_n_blocks: mra
inv_coeff_init_option: nystromformer
lsh_backward: yoso
moe_intermediate_size: longcat_flash
n_token: xlnet
num_hash: yoso
q_lora_rank: longcat_flash
relative_max_distance: prophetnet
same_length: xlnet
separate_cls: funnel
summary_activation: electra xlnet
summary_use_proj: electra xlnet
truncate_seq: funnel
use_fast_hash: yoso
use_mems_eval: xlnet
use_mems_train: xlnet
zero_expert_num: longcat_flash
max_source_positions: speech_to_text
max_target_positions: speech_to_text
question_token_id: splinter
"""

# Keys that are whole numbers where a reader does not look at them, too (a width that no layer has).
_WHOLE = """
classifier_proj_size dim_model_base encoder_stride expand first_k_dense_replace head_dim intermediate_size
intermediate_size_mlp mamba_expand max_window_layers pooler_output_size sliding_window sparse_pred_ignore_index
task_type_vocab_size
"""
WHOLE = frozenset(_WHOLE.split())


def _families() -> dict[str, tuple[bool, frozenset[str]]]:
    """Each key with whether the families listed are those that accept null, and the families."""
    table = {key: (True, frozenset[str]()) for key in _NEVER_NULL.split()}
    for line in _NULL.replace("\n  ", " ").strip().splitlines():
        key, _, listed = line.partition(": ")
        names = listed.split()
        table[key] = (names[0] == "but", frozenset(names) - {"but"})
    return table


_TABLE = _families()


def refuses_null(model_type: str, key: str) -> bool:
    """True where transformers makes no model of a config of this family whose key is null."""
    accepting, families = _TABLE.get(key, (False, frozenset[str]()))
    return (model_type in families) != accepting
