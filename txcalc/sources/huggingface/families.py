"""Which reader reads a model type, and why some are not read."""

from __future__ import annotations

from txcalc.sources.huggingface.library import table


def _listed(text: str) -> dict[str, str]:
    """Names, each with what stands before its line's colon; a line goes on where it is indented."""
    lines = (line.partition(": ") for line in text.replace("\n  ", " ").strip().splitlines())
    return {name: first for first, _, names in lines for name in names.split()}


# Readers named like the model types they read, by module.
_NAMED = """
classic: biogpt bloom ctrl falcon gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gptj mpt openai-gpt opt stablelm
  xglm
custom: arctic deepseek deepseek_vl_v2 grok-1 hunyuan jais openelm phi3small plamo qwen2_reward rwkv7 step3_text
  step3_vl yuan
deberta: deberta deberta-v2
delta: lfm2 lfm2_moe lfm3 minimax qwen3_5_moe_text qwen3_5_text qwen3_next
dense: apertus cohere_compass_text diffllama doge emu3_text_model hyperclovax mllama_text_model olmo smollm3
drafts: dflash eagle eagle3 medusa peagle
earlier: codeshell hf_olmo jina_bert minimax_text_01 molmo new phi-msft stablelm_epoch
encoder: albert bert bert-generation distilbert electra ernie flaubert ibert layoutlm luke megatron-bert mpnet rembert
  roberta roberta-prelayernorm roc_bert splinter tapas xlm xlm-roberta-xl xmod
gemma: gemma gemma2 gemma3_text gemma3n_text gemma4_text gemma4_unified_text vaultgemma
halves: encoder-decoder t5gemma2 vision-encoder-decoder
hybrid: bailing_hybrid bamba falcon_h1 kimi_linear olmo_hybrid zamba zamba2
image_text: blip clip clip_text_model clip_vision_model git layoutlmv3 siglip siglip_text_model siglip_vision_model
latent: axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 glm4_moe_lite glm_moe_dsa hy_v4 longcat_flash
  minicpm3 mistral4 youtu
leaves: clap deit donut-swin minimax_m3_vl_text mobilebert swin
mixing: big_bird convbert fnet led longformer longt5 mra nystromformer squeezebert yoso
modern: esm esmc eurobert gte jina_embeddings_v3 modernbert modernbert-decoder nomic_bert roformer
published: baichuan chatglm deci exaone internlm internlm2 mimo minicpm nemotron-nas qwen telechat
recent: muse_spark_text openai_privacy_filter zaya
recurrent: falcon_mamba granitemoehybrid jamba mamba mamba2 nemotron_h recurrent_gemma rwkv xlstm
seq2seq: bart bigbird_pegasus blenderbot blenderbot-small fsmt m2m_100 marian mbart mt5 mvp nllb-moe pegasus plbart
  switch_transformers t5 t5gemma umt5 whisper
spanned: afmoe cohere2_moe exaone_moe jetmoe laguna llama4_text mimo_v2_flash
sparse: dbrx dots1 ernie4_5_moe flint granitemoe_swa granitemoeshared minimax_m2 phimoe qwen2_moe
speech: moshi musicgen_decoder wav2vec2 wavlm
streams: funnel pegasus_x prophetnet reformer speech_to_text xlnet
textual: cosmos3_edge_text deepseek_ocr2_text ernie4_5_vl_moe_text glm_ocr_text hunyuan_vl_text molmo2_text
  muse_glimmer_text step3p5
vision: beit data2vec-vision dinov2 ijepa vit vit_msn
"""
# By what transformers' classes were seen to run (`recorded.json`), and by the language model that a whole holds.
_RECORDED = """
recorded: aimv2_vision_model align_text_model audio-spectrogram-transformer blip_vision_model chinese_clip_text_model
  chinese_clip_vision_model clap_text_model dinov2_with_registers dinov3_vit dpr flava_image_model flava_text_model
  lilt markuplm metaclip_2_vision_model mlcd_vision_model owlv2_vision_model owlvit_vision_model pixio
  siglip2_text_model timesformer videomae visual_bert vit_mae vivit
"""
_WRAPPED = """
language: Keye NemotronH_Nano_VL_V2 dots_ocr h2ovl_chat internvl_chat kimi_vl llava_llama llava_mistral llava_qwen
  maira2 minicpmo minicpmv multi_modality phi3_v phi4mm sa2va_chat videochat_flash_qwen
"""
# Read by the reader of another type, whose layers they have.
_LIKE = """
gpt2: gpt-sw3
gptj: codegen
roberta: camembert data2vec-text xlm-roberta
deepseek_v3: kimi_k2
wav2vec2: data2vec-audio hubert unispeech unispeech-sat
"""

# model_type: (module, function); those in the line of Llama are rows of `decoders.json`.
READERS: dict[str, tuple[str, str]] = {
    **{name: (module, name.replace("-", "_")) for name, module in _listed(_NAMED).items()},
    **{name: ("published" if "own" in row else "decoders", "decoder") for name, row in table("decoders.json").items()},
    **dict.fromkeys(_listed(_RECORDED), ("recorded", "recorded")),
    **dict.fromkeys(_listed(_WRAPPED), ("wrapped", "language")),
    "telechat2": ("published", "telechat"),
    "minimax_m1": ("earlier", "minimax_text_01"),
    "mixformer-sequential": ("earlier", "phi_msft"),
    "RefinedWeb": ("earlier", "refinedweb"),
    "RefinedWebModel": ("earlier", "refinedwebmodel"),
    "trocr": ("seq2seq", "trocr_alone"),
}
READERS |= {name: READERS[other] for name, other in _listed(_LIKE).items()}
# Modules whose readers follow code that is published beside weights, not transformers'.
PUBLISHED = frozenset(("published", "custom", "earlier", "wrapped", "drafts"))

# Classes by which a file of another model type is another: code that people run under the name of what it extends.
BY_CLASS = {
    "bailingmoev2forcausallm": "bailing_moe_v2",
    "bitnetforcausallm": "bitnet",
    "dflashdraftmodel": "dflash",
    "dflashspeculator": "dflash",
    "dominodraftmodel": "dflash",
    "dsparkdraftmodel": "dflash",
    "dsparkspeculator": "dflash",
    "eagle3llamaforcausallm": "eagle3",
    "eagle3speculator": "eagle3",
    "grok1modelforcausallm": "grok-1",
    "jinabertformaskedlm": "jina_bert",
    "jinabertmodel": "jina_bert",
    "llamaforcausallmeagle": "eagle",
    "llamaforcausallmeagle3": "eagle3",
    "llavallamaforcausallm": "llava_llama",
    "llavamistralforcausallm": "llava_mistral",
    "llavaqwenforcausallm": "llava_qwen",
    "peagledraftmodel": "peagle",
    "qwen2forprocessrewardmodel": "qwen2_reward",
    "qwen2forrewardmodel": "qwen2_reward",
    "peaglespeculator": "peagle",
}

# How many multi-token-prediction layers there are, and the model types whose layers are known to be like DeepSeek-V3's.
PREDICTORS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
PREDICTING = frozenset({"deepseek_v3", "glm4_moe"})

# Multimodal model types, whose language model is read: those of which it is the type's own, and the others by the text
# model type of a config that does not name one.
_OWN_TEXT = """
aria cohere_compass cosmos3_edge deepseek_ocr2 ernie4_5_vl_moe gemma3 gemma3n gemma4 gemma4_unified glm4v glm4v_moe
glm_ocr granite4_vision granite_docling hunyuan_vl llama4 minimax_m3_vl molmo2 muse_glimmer muse_spark paddleocr_vl
qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe voxtral_realtime
"""
_OTHER_TEXT = """
bart: florence2
cohere2: aya_vision cohere2_vision
deepseek_v3: kimi_k25
emu3_text_model: emu3
exaone4: exaone4_5
gemma: paligemma
gemma3_text: shieldgemma2
glm4v_text: glm46v glmga
granite: granite_speech granite_speech_plus
hyperclovax: hyperclovax_vision_v2
lfm2: lfm2_vl
lfm3: lfm3_vl
llama: deepseek_vl deepseek_vl_hybrid glmasr idefics3 janus llava llava_next llava_next_video perception_lm smolvlm
  video_llava vipllava voxtral
mistral: idefics2 mistral3
mllama_text_model: mllama
nemotron_h: nemotron_h_omni
opt: blip-2 instructblip instructblipvideo
persimmon: fuyu
phi3: phi4_multimodal
qwen2: audioflamingo3 fast_vlm got_ocr2 internvl llava_onevision musicflamingo ovis2 qwen2_audio vibevoice
  vibevoice_asr video_llama_3
qwen2_5_omni_text: qwen2_5_omni_thinker
qwen3: fun_asr_nano lighton_ocr moss_transcribe_diarize qianfan_ocr qwen3_asr
qwen3_vl_text: cosmos3_omni
qwen3_5_text: minicpm_ocr minicpmv4_6 minicpmv4_7
qwen3_omni_moe_text: qwen3_omni_moe_thinker
step3p5: step3p7
"""
WRAPPERS: dict[str, str] = {name: f"{name}_text" for name in _OWN_TEXT.split()} | _listed(_OTHER_TEXT)
# What a text_config gets from the whole's class, before its own class is asked.
TEXT_DEFAULTS: dict[str, dict[str, int]] = {
    "glmasr": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "vocab_size": 59264,
    },
    "phi4_multimodal": {"num_key_value_heads": 8},
    "voxtral": {
        "head_dim": 128,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 30,
        "num_key_value_heads": 8,
        "vocab_size": 131072,
    },
}
# Those whose configs, or older ones, hold the text's keys beside vision_config, with the keys that are the whole's own.
FLAT: dict[str, tuple[str, ...]] = {
    "fuyu": ("image_size", "patch_size", "num_channels", "text_model_type", "image_token_id"),
    "phi4_multimodal": ("vision_lora", "speech_lora"),
    "qwen2_5_vl": (),
    "qwen2_vl": (),
}

_SPEAKING = "its encoder of speech and its vocoder are not supported yet"
_RWKV = "of RWKV's recurrences the fourth (rwkv) and the seventh (rwkv7) are read"
_HYPER = "its hyper-connections are not supported yet"
_LATENT_WINDOWS = "its latent attention of two sizes, one with a window, is not supported yet"
_SPEAKERS = "it has two language models; what stands under thinker_config is read by itself"
_DRAFTS = "it drafts for another model, whose keys and values it reads"
_RELATIVE = "its short convolutions beside attention and its relative scores are not supported yet"

# Types of transformers' that are no Transformers, and those with a part that is none, with the reason.
_OTHERS = {
    "it is a convolutional network, no Transformer": """
bit convnext convnextv2 dinov3_convnext efficientnet focalnet hgnet_v2 mobilenet_v1 mobilenet_v2 pp_lcnet pp_lcnet_v3
pp_lcnet_v4 regnet resnet rt_detr_resnet superpoint textnet timm_backbone timm_wrapper uvdoc uvdoc_backbone""",
    "it mixes positions by pooling or by plain matrices, and is no Transformer": "patchtsmixer poolformer",
    "it is a codec or a vocoder of convolutions, no Transformer": """
dac encodec fastspeech2_conformer_hifigan neucodec qwen2_5_omni_bigvgan speecht5_hifigan univnet
vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder vibevoice_acoustic_tokenizer_encoder
xcodec xcodec2""",
    "a convolutional network reads its pictures, and is not described": """
conditional_detr d_fine dab-detr deformable_detr deimv2 detr grounding-dino mm-grounding-dino omdet-turbo
pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 rt_detr rt_detr_v2 table-transformer tvp layoutlmv2 align""",
    "its config does not say how large its pictures are, on which its cost depends": "segformer glpn pvt_v2",
    "its model is two that it finds, whose configs decide": "rag vision-text-dual-encoder",
    "how its durations and samples follow from a text depends on data": "fastspeech2_conformer vits",
}

# Model types that are known and not read, with the reason.
REFUSED: dict[str, str] = {name: why for why, names in _OTHERS.items() for name in names.split()} | {
    "modernvbert": "its language model's head is not its text's, and has no reader yet",
    "cogvlm": "its second set of weights, for the tokens of pictures, is not supported yet",
    "internlmxcomposer2": "its adapters for the tokens of pictures are not supported yet",
    "kimi_k3": "its layers read what earlier blocks of layers gave, and no part says so yet",
    "plamo2": "its Mamba, with heads of Mamba-2 and projections of the first, is not supported yet",
    "rwkv5": _RWKV,
    "rwkv6": _RWKV,
    "mlp_speculator": "its products, of whose results each is the next one's input, are not supported yet",
    "musicgen": "its codec has no reader; what stands under decoder is read by itself, as musicgen_decoder",
    "nemo_speechlm": "its adapter of sound and its timestamps have no reader yet",
    "neomme": "its embeddings of values and its layers' own mixing are not supported yet",
    "blt": "its byte patches and hashed tables are not supported yet",
    "perceiver": "its latents, whose number is not the tokens', are not supported yet",
    "seamless_m4t": _SPEAKING,
    "seamless_m4t_v2": _SPEAKING,
    "ultrabert": "its head of two layers is not supported yet",
    "voxtral_realtime_text": "its norms that depend on a delay are not supported yet",
    "cpmant": "its prompts and the distances between segments are not supported yet",
    "dots3_note": _LATENT_WINDOWS,
    "dots3_note_text": _LATENT_WINDOWS,
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
    "hrm_text": "its layers run in cycles within cycles, which no part describes",
    "qwen4_exp": _HYPER,
    "qwen4_exp_text": _HYPER,
    "inkling2": _RELATIVE,
    "inkling2_text": _RELATIVE,
    "inkling_mm_model": _RELATIVE,
    "inkling_text": _RELATIVE,
    "qwen2_5_omni": _SPEAKERS,
    "qwen3_omni_moe": _SPEAKERS,
}
