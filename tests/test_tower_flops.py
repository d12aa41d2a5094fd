"""Towers and projectors: FLOPs and parameters are those of transformers' own modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from txcalc.model import Model
from txcalc.sources import build
from txcalc.sources.huggingface import describe

TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 64, "head_dim": 16}  # fmt: skip
GLM = {key: value for key, value in TEXT.items() if key != "head_dim"} | {"model_type": "glm4v_text"}
LLAMA, QWEN = TEXT | {"model_type": "llama"}, TEXT | {"model_type": "qwen2"}
LAYERS = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4}
SEEN = LAYERS | {"image_size": 32, "patch_size": 4}
MERGED = {"depth": 3, "num_heads": 4, "patch_size": 4, "out_hidden_size": 32}
HEARD = {"encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 80, "d_model": 48, "num_mel_bins": 8,
         "max_source_positions": 20}  # fmt: skip
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}

MLA = {"model_type": "deepseek_v3", "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
       "v_head_dim": 8, "moe_intermediate_size": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1,
       "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}  # fmt: skip


def pictures(net: Any, tower: Model, tokens: int) -> Any:
    import torch

    vision = tower.raw["vision"]
    side = vision.get("image", 8 * vision["patch"])
    more = {"image_sizes": torch.tensor([[side, side]])} if "image" not in vision else {}
    net.get_image_features(pixel_values=torch.zeros(1, vision.get("channels", 3), side, side), **more)


def frames(net: Any, tower: Model, tokens: int) -> Any:
    """A picture in patches, whose grid says how high and wide it is."""
    import torch

    vision = tower.raw["vision"]
    pixels = torch.zeros(8 * 8, vision["channels"] * vision["patch"] ** 2)
    net.get_image_features(pixels, torch.tensor([[1, 8, 8]]))


def squares(net: Any, tower: Model, tokens: int) -> Any:
    import torch

    side = tower.raw["vision"]["patch"]
    net.get_image_features(torch.zeros(64, 3, side, side), torch.tensor([[1, 8, 8]]))


def ragged(net: Any, tower: Model, tokens: int) -> Any:
    """Patches of a picture, filled up to as many as others have."""
    import torch

    pixels = torch.zeros(1, 64, 3 * tower.raw["vision"]["patch"] ** 2)
    net.get_image_features(pixels, torch.tensor([[8, 8]]), torch.ones(1, 64, dtype=torch.long))


def adapted(net: Any, tower: Model, tokens: int) -> Any:
    import torch

    side = tower.raw["vision"]["image"]
    seen = net.vision_model(torch.zeros(1, 3, side, side)).last_hidden_state
    net.multi_modal_projector(seen.flatten(0, -2))


def pooled(net: Any, tower: Model, tokens: int) -> int:
    """FLOPs of a product with ones and zeros, by which transformers takes the mean of patches."""
    import torch

    side = 3 * math.isqrt(tokens)
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side))[None]
    net.get_image_features(torch.zeros(1, side**2, 3 * tower.raw["vision"]["patch"] ** 2), places)
    return 2 * tokens * side**2 * int(tower.raw["d_model"])


def split(net: Any, tower: Model, tokens: int) -> Any:
    """A picture among several of a prompt."""
    import torch

    side = tower.raw["vision"]["image"]
    net.get_image_features(pixel_values=torch.ones(1, 1, 3, side, side))


def sound(net: Any, tower: Model, tokens: int) -> Any:
    import torch

    audio = tower.raw["audio"]
    bands = torch.zeros(1, audio["mels"], 2 * audio["positions"])
    net = getattr(net, "model", net)
    if hasattr(net, "get_audio_features"):
        return net.get_audio_features(bands)
    return net.multi_modal_projector(net.audio_tower(bands).last_hidden_state)


Run = Callable[[Any, Model, int], Any]
CASES: dict[str, tuple[str, Mapping[str, Any], Run]] = {
    "llava, CLIP": ("LlavaModel", {"model_type": "llava", "text_config": LLAMA,
        "vision_config": SEEN | {"model_type": "clip_vision_model"}}, pictures),
    "paligemma, SigLIP": ("PaliGemmaModel", {"model_type": "paligemma", "projection_dim": 32, "hidden_size": 32,
        "text_config": TEXT | {"model_type": "gemma"}, "vision_config": SEEN | {"model_type": "siglip_vision_model"}},
        pictures),
    "gemma3, SigLIP": ("Gemma3Model", {"model_type": "gemma3", "mm_tokens_per_image": 16,
        "text_config": TEXT | {"model_type": "gemma3_text"},
        "vision_config": SEEN | {"model_type": "siglip_vision_model", "vision_use_head": False}}, pictures),
    "smolvlm": ("SmolVLMModel", {"model_type": "smolvlm", "scale_factor": 4, "text_config": LLAMA,
        "vision_config": SEEN | {"model_type": "smolvlm_vision"}}, split),
    "mistral3, Pixtral": ("Mistral3Model", {"model_type": "mistral3", "text_config": TEXT | {"model_type": "mistral"},
        "vision_config": SEEN | {"model_type": "pixtral", "head_dim": 12}}, pictures),
    "internvl": ("InternVLModel", {"model_type": "internvl", "text_config": QWEN,
        "vision_config": SEEN | {"model_type": "internvl_vision", "image_size": [32, 32], "patch_size": [4, 4]}},
        pictures),
    "qwen2_vl": ("Qwen2VLModel", {"model_type": "qwen2_vl", "text_config": QWEN | ROPE, "vision_config":
        {"depth": 3, "num_heads": 4, "patch_size": 4, "embed_dim": 48, "hidden_size": 32}}, frames),
    "qwen2_5_vl": ("Qwen2_5_VLModel", {"model_type": "qwen2_5_vl", "text_config": QWEN | ROPE, "vision_config":
        MERGED | {"hidden_size": 48, "intermediate_size": 80, "window_size": 16, "fullatt_block_indexes": [1]}},
        frames),
    "qwen3_vl": ("Qwen3VLModel", {"model_type": "qwen3_vl", "text_config": TEXT | ROPE | {"model_type":
        "qwen3_vl_text"}, "vision_config": MERGED | {"hidden_size": 48, "intermediate_size": 80,
        "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}}, frames),
    "glm4v": ("Glm4vModel", {"model_type": "glm4v", "text_config": GLM | ROPE,
        "vision_config": MERGED | {"hidden_size": 48, "intermediate_size": 80, "image_size": 32}}, frames),
    "voxtral, Whisper": ("VoxtralForConditionalGeneration", {"model_type": "voxtral", "text_config": LLAMA,
        "hidden_size": 32, "audio_config": LAYERS | {"model_type": "voxtral_encoder", "intermediate_size": 192,
        "num_mel_bins": 8, "max_source_positions": 20}}, sound),
    "qwen2_audio, Whisper": ("Qwen2AudioForConditionalGeneration", {"model_type": "qwen2_audio", "text_config": QWEN,
        "audio_config": HEARD | {"model_type": "qwen2_audio_encoder"}}, sound),
    "lfm2_vl, SigLIP 2": ("Lfm2VlModel", {"model_type": "lfm2_vl", "text_config": TEXT | {"model_type": "lfm2",
        "layer_types": ["full_attention"]}, "vision_config": LAYERS | {"patch_size": 4, "num_patches": 64}}, ragged),
    "paddleocr_vl": ("PaddleOCRVLModel", {"model_type": "paddleocr_vl", "text_config": TEXT | ROPE |
        {"model_type": "paddleocr_vl_text"}, "vision_config": SEEN}, squares),
    "llama4": ("Llama4ForConditionalGeneration", {"model_type": "llama4",
        "text_config": TEXT | {"model_type": "llama4_text", "intermediate_size_mlp": 48, "num_local_experts": 2},
        "vision_config": SEEN | {"model_type": "llama4_vision_model", "intermediate_size": 192,
        "projector_input_dim": 40, "projector_output_dim": 40, "vision_output_dim": 40}}, adapted),
    "kimi_k25": ("Kimi_K25Model", {"model_type": "kimi_k25", "projection_hidden_size": 48,
        "text_config": TEXT | MLA, "vision_config": LAYERS | {"patch_size": 4, "pos_emb_height": 8,
        "pos_emb_width": 8}}, squares),
    "gemma4": ("Gemma4Model", {"model_type": "gemma4", "text_config": TEXT | {"model_type": "gemma4_text",
        "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 0}, "vision_config": LAYERS | {"patch_size": 4,
        "head_dim": 12, "num_key_value_heads": 4, "position_embedding_size": 64}}, pooled),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_of_transformers(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    cls, config, run = CASES[name]
    model = build(*describe(config))
    (tower,) = model.towers.values()
    made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
    net = getattr(transformers, cls)._from_config(made, attn_implementation="eager").eval()
    tokens = tower.root.fixed or (144 if run is pooled else 64) // tower.root.projector.per_token  # type: ignore[attr-defined]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        more = run(net, tower, tokens)
    found = counter.get_total_flops() - (more if type(more) is int else 0)
    assert tower.ledger(tokens=tokens).total("flops") == found
