"""FLOPs and parameters of towers beside transformers' own modules: `python tests/scripts/tower_flops.py`.

CASES are small ones of each kind (tests/verification/test_tower_flops.py). The script runs towers of the configs in
tests/data/hf at their own sizes; what is equal is kept in presets/theorems.json, by which `show` says that
it is measured. Weights are zeros, for no count depends on them; towers of pictures of one size run on the meta device.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from txcalc.evidence.formulas import Formulas
from txcalc.evidence.store import Shown
from txcalc.evidence.structures import sized
from txcalc.model import Model
from txcalc.sources import build
from txcalc.sources.huggingface import describe

TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 64, "head_dim": 16}  # fmt: skip
LLAMA, QWEN = TEXT | {"model_type": "llama"}, TEXT | {"model_type": "qwen2"}
LAYERS = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4}
SEEN = LAYERS | {"image_size": 32, "patch_size": 4}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}


SIDE = 12  # patches of a picture of any size, along each side


def filled(value: int, *shape: int, whole: bool = False) -> Any:
    """A tensor of zeros or ones: numbers that are whole, or as weights are."""
    import torch

    return torch.full(shape, value, dtype=torch.long if whole else torch.get_default_dtype())


def numbers(value: Any) -> Any:
    import torch

    return torch.tensor(value)


def pictures(net: Any, tower: Model, tokens: int) -> Any:
    vision = tower.raw["vision"]
    side = vision.get("image", SIDE * vision["patch"])
    more = {"image_sizes": numbers([[side, side]])} if "image" not in vision else {}
    net.get_image_features(pixel_values=filled(0, 1, vision.get("channels", 3), side, side), **more)


def frames(net: Any, tower: Model, tokens: int, height: int = SIDE, width: int = SIDE) -> Any:
    """A picture in patches, whose grid says how high and wide it is."""
    vision = tower.raw["vision"]
    pixels = filled(0, height * width, vision["channels"] * vision["patch"] ** 2)
    net.get_image_features(pixels, numbers([[1, height, width]]))


def edged(net: Any, tower: Model, tokens: int) -> Any:
    """A picture that is no square, whose windows at both edges are smaller."""
    return frames(net, tower, tokens, 18, 30)


def squares(net: Any, tower: Model, tokens: int) -> Any:
    side = tower.raw["vision"]["patch"]
    net.get_image_features(filled(0, SIDE**2, 3, side, side), numbers([[1, SIDE, SIDE]]))


def ragged(net: Any, tower: Model, tokens: int) -> Any:
    """Patches of a picture, filled up to as many as others have."""
    pixels = filled(0, 1, SIDE**2, 3 * tower.raw["vision"]["patch"] ** 2)
    net.get_image_features(pixels, numbers([[SIDE, SIDE]]), filled(1, 1, SIDE**2, whole=True))


def prompted(net: Any, tower: Model, tokens: int) -> Any:
    """A picture, or a video of one, and a prompt as long as the table of positions, which the Q-Former reads."""
    words, side = filled(0, 1, tower.root.prompt, whole=True), tower.raw["vision"]["image"]
    if hasattr(net, "get_video_features"):
        return net.get_video_features(filled(0, 1, 1, 3, side, side), qformer_input_ids=words)
    return net.get_image_features(filled(0, 1, 3, side, side), qformer_input_ids=words)


def adapted(net: Any, tower: Model, tokens: int) -> Any:
    side = tower.raw["vision"]["image"]
    seen = net.vision_model(filled(0, 1, 3, side, side)).last_hidden_state
    net.multi_modal_projector(seen.flatten(0, -2))


def pooled(net: Any, tower: Model, tokens: int) -> int:
    """FLOPs of a product with ones and zeros, by which transformers takes the mean of patches."""
    side = 3 * math.isqrt(tokens)
    places = numbers([[[row, column] for row in range(side) for column in range(side)]])
    net.get_image_features(filled(0, 1, side**2, 3 * tower.raw["vision"]["patch"] ** 2), places)
    return 2 * tokens * side**2 * int(tower.raw["d_model"])


def split(net: Any, tower: Model, tokens: int) -> Any:
    """A picture among several of a prompt."""
    vision = tower.raw["vision"]
    side = vision["image"]
    net.get_image_features(pixel_values=filled(1, 1, 1, vision.get("channels", 3), side, side))


def sound(net: Any, tower: Model, tokens: int) -> Any:
    audio = tower.raw["audio"]
    bands = filled(0, 1, audio["mels"], 2 * audio["positions"])
    net = getattr(net, "model", net)
    if hasattr(net, "get_audio_features"):
        return net.get_audio_features(bands)
    return net.multi_modal_projector(net.audio_tower(bands).last_hidden_state)


def heard(net: Any, tower: Model, tokens: int) -> Any:
    audio = tower.raw["audio"]
    frames = 2 * audio["positions"]
    net.get_audio_features(filled(0, 1, audio["mels"], frames), filled(1, 1, frames, whole=True))


def unmerged(net: Any, tower: Model, tokens: int) -> Any:
    vision = tower.raw["vision"]
    pixels = filled(0, SIDE**2, vision["channels"] * vision["patch"] ** 2)
    net.get_image_features(pixels, numbers([[1, SIDE, SIDE]]), numbers([1]))


def square(net: Any, tower: Model, tokens: int) -> Any:
    v = net.config.vision_config
    channels = getattr(v, "num_channels", None) or v.in_channels
    net.get_image_features(filled(0, 1, channels, v.image_size, v.image_size))


def crop(net: Any, tower: Model, tokens: int) -> None:
    """A crop's patches, of which the processor says which four each token is made of: some have fewer at an edge."""
    v = net.config.vision_config
    height, width = (side // v.patch_size for side in v.image_size)
    windows = [
        [row * width + column if row < height and column < width else -1 for row in (y, y + 1) for column in (x, x + 1)]
        for y in range(0, height, 2)
        for x in range(0, width, 2)
    ]
    pixels = filled(0, 1, height * width, v.num_channels * v.patch_size**2)
    net.get_image_features(pixels, numbers(windows), numbers([[1, len(windows), 0, 0]]))


def tiled(net: Any, tower: Model, tokens: int) -> int:
    """FLOPs of the product that makes a mask over all tiles of a picture."""
    v = net.config.vision_config
    tiles = v.max_num_tiles
    pixels = filled(0, 1, 1, tiles, v.num_channels, v.image_size, v.image_size)
    net = net.model
    seen = net.vision_model(pixels, filled(1, 1, 1, whole=True), filled(1, 1, 1, tiles)).last_hidden_state
    net.multi_modal_projector(seen)
    return 2 * int(tower.raw["length"]) ** 2


def packed(net: Any, tower: Model, tokens: int) -> None:
    v = net.config.vision_config
    net.get_image_features(filled(0, 1, v.num_channels, v.patch_size, SIDE**2 * v.patch_size), numbers([[SIDE, SIDE]]))


def rows(net: Any, tower: Model, tokens: int) -> None:
    """What is handed on as it is, or after no more than a matrix."""
    if hasattr(net, "vision_embed_tokens"):
        net.get_image_features(filled(0, 1, tokens, int(tower.raw["d_model"])))
        return
    v = net.config.vision_config
    places = filled(0, 1, tokens, 2, whole=True)
    net.get_image_features(filled(0, 1, tokens, 3 * v.model_patch_size**2), places)


def spectrum(net: Any, tower: Model, tokens: int) -> None:
    """So many frames of bands for each token as the tower's convolutions and projector make one of."""
    a = getattr(net.config, "audio_config", None) or net.config.encoder_config
    bands = next(number for number in (
        getattr(a, "audio_embed_dim", None), getattr(a, "input_dim", None),
        4 * (getattr(a, "subsampling_conv_channels", [0])[0] // 4)) if number)  # fmt: skip
    made = tower.root.projector  # type: ignore[attr-defined]
    frames = tokens // made.makes * made.reads * (4 if hasattr(a, "subsampling_conv_channels") else 1)
    mask = () if hasattr(a, "input_dim") else (filled(1, 1, frames, whole=True).bool(),)
    net.get_audio_features(filled(0, 1, frames, bands), *mask)


def chunked(net: Any, tower: Model, tokens: int) -> None:
    """Whole chunks of frames, of which each makes the same number of tokens."""
    a = net.config.audio_config
    chunk = 2 * a.n_window
    frames = tokens // -(-chunk // 8) * chunk
    net.get_audio_features(filled(0, 1, a.num_mel_bins, frames), filled(1, 1, frames, whole=True))


def waves(net: Any, tower: Model, tokens: int) -> None:
    """One of two codecs, and its part of the projector."""
    name = "acoustic" if "acoustic" in tower.name else "semantic"
    codec, between = getattr(net, f"{name}_tokenizer_encoder"), net.multi_modal_projector
    made = codec(filled(0, 1, codec.config.channels, tokens * math.prod(codec.config.downsampling_ratios))).latents
    parts = (getattr(between, f"{name}_{part}") for part in ("linear_1", "norm", "linear_2"))
    for part in parts:
        made = part(made)


Run = Callable[[Any, Model, int], Any]
# The tower that each runs, where it is not the one of pictures, how many tokens, and the modules that are its own.
OF: dict[Run, tuple[str, int, str]] = {
    sound: ("audio", 64, ""),
    heard: ("audio", 64, ""),
    spectrum: ("audio", 30, ""),
    chunked: ("audio", 65, ""),
    edged: ("vision", 18 * 30, ""),
    waves: ("acoustic", 64, "acoustic_"),
}
SMALL = json.loads((Path(__file__).parents[2] / "tests" / "data" / "hf" / "towers.json").read_text())


def changed(name: str, key: str = "vision_config", **changes: Any) -> dict[str, Any]:
    """A config of SMALL whose tower has other sizes, where transformers cannot run it as it is."""
    config = SMALL[name]["config"]
    return {**config, key: config[key] | changes}


CASES: dict[str, tuple[str, Mapping[str, Any], Run]] = {
    "llava, CLIP": ("LlavaModel", {"model_type": "llava", "text_config": LLAMA,
        "vision_config": SEEN | {"model_type": "clip_vision_model"}}, pictures),
    "paligemma, SigLIP": ("PaliGemmaModel", SMALL["paligemma siglip_vision_model"]["config"], pictures),
    "gemma3, SigLIP": ("Gemma3Model", {"model_type": "gemma3", "mm_tokens_per_image": 16,
        "text_config": TEXT | {"model_type": "gemma3_text"},
        "vision_config": SEEN | {"model_type": "siglip_vision_model", "vision_use_head": False}}, pictures),
    "smolvlm": ("SmolVLMModel", {"model_type": "smolvlm", "scale_factor": 4, "text_config": LLAMA,
        "vision_config": SEEN | {"model_type": "smolvlm_vision"}}, split),
    "mistral3, Pixtral": ("Mistral3Model", {"model_type": "mistral3", "text_config": TEXT | {"model_type": "mistral"},
        "vision_config": SEEN | {"model_type": "pixtral", "head_dim": 12}}, pictures),
    "internvl": ("InternVLModel", SMALL["internvl internvl_vision"]["config"], pictures),
    "qwen2_vl": ("Qwen2VLModel", SMALL["qwen2_vl qwen2_vl"]["config"], frames),
    "qwen2_5_vl": ("Qwen2_5_VLModel", SMALL["qwen2_5_vl qwen2_5_vl"]["config"], edged),
    "qwen3_vl": ("Qwen3VLModel", SMALL["qwen3_vl qwen3_vl"]["config"], frames),
    "glm4v": ("Glm4vModel", SMALL["glm4v glm4v"]["config"], frames),
    "voxtral, Whisper": ("VoxtralForConditionalGeneration", {"model_type": "voxtral", "text_config": LLAMA,
        "hidden_size": 32, "audio_config": LAYERS | {"model_type": "voxtral_encoder", "intermediate_size": 192,
        "num_mel_bins": 8, "max_source_positions": 20}}, sound),
    "qwen2_audio, Whisper": ("Qwen2AudioForConditionalGeneration", SMALL["qwen2_audio whisper"]["config"], sound),
    "lfm2_vl, SigLIP 2": ("Lfm2VlModel", {"model_type": "lfm2_vl", "text_config": TEXT | {"model_type": "lfm2",
        "layer_types": ["full_attention"]}, "vision_config": LAYERS | {"patch_size": 4, "num_patches": 64}}, ragged),
    "paddleocr_vl": ("PaddleOCRVLModel", {"model_type": "paddleocr_vl", "text_config": TEXT | ROPE |
        {"model_type": "paddleocr_vl_text"}, "vision_config": SEEN}, squares),
    "llama4": ("Llama4ForConditionalGeneration", {"model_type": "llama4",
        "text_config": TEXT | {"model_type": "llama4_text", "intermediate_size_mlp": 48, "num_local_experts": 2},
        "vision_config": SEEN | {"model_type": "llama4_vision_model", "intermediate_size": 192,
        "projector_input_dim": 40, "projector_output_dim": 40, "vision_output_dim": 40}}, adapted),
    "kimi_k25": ("Kimi_K25Model", SMALL["kimi_k25 kimi_k25"]["config"], squares),
    "gemma4": ("Gemma4Model", {"model_type": "gemma4", "text_config": TEXT | {"model_type": "gemma4_text",
        "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 0}, "vision_config": LAYERS | {"patch_size": 4,
        "head_dim": 12, "num_key_value_heads": 4, "position_embedding_size": 64}}, pooled),
    "glm_ocr": ("GlmOcrModel", SMALL["glm_ocr glm_ocr_vision"]["config"], frames),
    "ernie4_5_vl_moe": ("Ernie4_5_VLMoeModel", {"model_type": "ernie4_5_vl_moe", "text_config": TEXT | ROPE |
        {"model_type": "ernie4_5_vl_moe_text", "moe_intermediate_size": [16, 8], "moe_num_experts": 2, "moe_k": 1},
        "vision_config": {"depth": 3, "num_heads": 4, "patch_size": 4, "hidden_size": 48, "intermediate_size": 80}},
        frames),
    "muse_glimmer": ("MuseGlimmerModel", {"model_type": "muse_glimmer", "out_hidden_size": 192,
        "projector_hidden_size": 40, "text_config": TEXT | {"model_type": "muse_glimmer_text"},
        "vision_config": LAYERS | {"patch_size": 4, "pos_emb_height": 4, "pos_emb_width": 4}}, edged),
    "step3p7": ("Step3p7Model", SMALL["step3p7 step3p5_vision"]["config"], pictures),
    "cohere2_vision": ("Cohere2VisionModel", {"model_type": "cohere2_vision", "alignment_intermediate_size": 40,
        "text_config": TEXT | {"model_type": "cohere2"}, "vision_config": SEEN | {"model_type": "siglip_vision_model",
        "vision_use_head": False}}, pictures),
    "aya_vision": ("AyaVisionModel", {"model_type": "aya_vision", "alignment_intermediate_size": 40,
        "vision_feature_select_strategy": "full", "text_config": TEXT | {"model_type": "cohere2"},
        "vision_config": SEEN | {"model_type": "siglip_vision_model", "vision_use_head": False}}, pictures),
    "ovis2": ("Ovis2Model", SMALL["ovis2 ovis2"]["config"], pictures),
    "deepseek_vl": ("DeepseekVLModel", SMALL["deepseek_vl siglip_vision_model"]["config"], pictures),
    "vipllava": ("VipLlavaModel", {"model_type": "vipllava", "vision_feature_layers": [-2, -1, 1], "text_config": LLAMA,
        "vision_config": SEEN | {"model_type": "clip_vision_model"}}, pictures),
    "exaone4_5": ("Exaone4_5_Model", SMALL["exaone4_5 exaone4_5"]["config"], frames),
    "qianfan_ocr": ("QianfanOCRModel", {"model_type": "qianfan_ocr", "text_config": TEXT | {"model_type": "qwen3"},
        "vision_config": SEEN | {"image_size": [32, 32], "patch_size": [4, 4]}}, pictures),
    "audioflamingo3": ("AudioFlamingo3ForConditionalGeneration", SMALL["audioflamingo3 whisper"]["config"], heard),
    "qwen2_5_omni, vision": ("Qwen2_5OmniThinkerForConditionalGeneration",
        SMALL["qwen2_5_omni_thinker qwen2_5_omni_audio_encoder"]["config"], frames),
    "qwen2_5_omni, audio": ("Qwen2_5OmniThinkerForConditionalGeneration",
        SMALL["qwen2_5_omni_thinker qwen2_5_omni_audio_encoder"]["config"], heard),
    "video_llama_3": ("VideoLlama3Model", SMALL["video_llama_3 video_llama_3_vision"]["config"], unmerged),
    "blip-2, Q-Former": ("Blip2ForConditionalGeneration", SMALL["blip-2 blip_2_vision_model"]["config"], pictures),
    "idefics2, resampler": ("Idefics2Model", SMALL["idefics2 idefics2_vision"]["config"], split),
    "aria, queries": ("AriaModel", SMALL["aria idefics3_vision"]["config"], pictures),
    "mllama, tiles": ("MllamaForConditionalGeneration",
        changed("mllama mllama_vision_model", vision_output_dim=144), tiled),
    "got_ocr2, SAM": ("GotOcr2Model", SMALL["got_ocr2 got_ocr2"]["config"], square),
    "minicpmv4_6": ("MiniCPMV4_6Model", SMALL["minicpmv4_6 minicpmv4_6_vision"]["config"] | {"insert_layer_id": 1,
        "merger_times": 1, "vision_config": SEEN | {"num_attention_heads": 6}}, packed),
    "minicpm_ocr": ("MiniCPMOcrModel", SMALL["minicpm_ocr default"]["config"] | {"vision_config": SEEN}, packed),
    "minicpmv4_7": ("MiniCPMV4_7Model", SMALL["minicpmv4_7 default"]["config"] | {"insert_layer_id": 0,
        "vision_config": SEEN}, packed),
    "gemma4, audio": ("Gemma4Model", SMALL["gemma4 gemma4_vision"]["config"], spectrum),
    "gemma4_unified": ("Gemma4UnifiedModel", SMALL["gemma4_unified gemma4_unified_vision"]["config"], rows),
    "gemma4_unified, audio": ("Gemma4UnifiedModel", SMALL["gemma4_unified gemma4_unified_vision"]["config"], spectrum),
    "fuyu": ("FuyuModel", SMALL["fuyu fuyu"]["config"], rows),
    "granite_speech": ("GraniteSpeechForConditionalGeneration", SMALL["granite_speech granite_speech_encoder"]["config"]
        | {"window_size": 20}, spectrum),
    "granite_speech_plus": ("GraniteSpeechPlusForConditionalGeneration",
        SMALL["granite_speech_plus granite_speech_encoder"]["config"] | {"window_size": 20}, spectrum),
    "qwen3_asr": ("Qwen3ASRModel", SMALL["qwen3_asr qwen3_asr_encoder"]["config"], chunked),
    "qwen3_omni_moe, audio": ("Qwen3OmniMoeThinkerForConditionalGeneration",
        changed("qwen3_omni_moe_thinker qwen3_omni_moe_audio_encoder", "audio_config", n_window=50, n_window_infer=200),
        chunked),
    "instructblip, Q-Former": ("InstructBlipForConditionalGeneration",
        SMALL["instructblip blip_2_vision_model"]["config"], prompted),
    "instructblipvideo": ("InstructBlipVideoForConditionalGeneration",
        changed("instructblipvideo blip_2_vision_model", "qformer_config", max_position_embeddings=7), prompted),
    "molmo2": ("Molmo2Model", changed("molmo2 molmo2_vision", num_position_embeddings=25), crop),
    "florence2, DaViT": ("Florence2Model", SMALL["florence2 altered"]["config"], square),
    "florence2, edges": ("Florence2Model", changed("florence2 altered", image_size=180, window_size=5,
        patch_prenorm=[False, True, True, False], qkv_bias=True), square),
    "vibevoice_asr": ("VibeVoiceAsrModel", SMALL["vibevoice_asr altered"]["config"], waves),
}  # fmt: skip
META = (pictures, sound, adapted, split, tiled, square)


def compared(cls: str, config: Mapping[str, Any], run: Run) -> tuple[Model, int, dict[str, tuple[int, int]]]:
    """A config's tower, so many tokens that it hands on, and parameters and FLOPs, ours and transformers'."""
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    model = build(*describe(config))
    kind, most, modules = OF.get(run, ("vision", SIDE**2, ""))
    tower = model.towers[kind]
    made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    with torch.device("meta"):
        net = getattr(transformers, cls)._from_config(made, attn_implementation="eager").eval()
    net.requires_grad_(False)
    own = [child for name, child in net.named_modules() if _of_tower(name, kind, modules)]
    params = sum({weight: weight.numel() for child in own for weight in child.parameters(recurse=False)}.values())
    where = "meta" if run in META and (tower.root.fixed or 0) > 500 else "cpu"
    if where == "cpu":
        for child in own:
            child.to_empty(device="cpu", recurse=False)
            for tensor in (*child.parameters(recurse=False), *child.buffers(recurse=False)):
                tensor.data.zero_()
    made = tower.root.projector  # type: ignore[attr-defined]
    tokens = tower.root.fixed or most // made.reads * made.makes
    with torch.no_grad(), torch.device(where), FlopCounterMode(display=False) as counter:
        more = run(net, tower, tokens)
    found = counter.get_total_flops() - (more if type(more) is int else 0)
    ledger = tower.ledger(tokens=tokens, source=tokens + tower.root.prompt if tower.root.prompt else None)
    both = {"params": (ledger.total("params"), params), "flops": (ledger.total("flops"), found)}
    return tower, tokens, both


def _of_tower(name: str, kind: str, modules: str) -> bool:
    """Whether a module is of the towers of a kind, not of the language model or of the other kind."""
    if modules:
        return any(name.find(one) >= 0 for one in modules.split())
    steps = set(name.split("."))
    others = ("audio",) if kind == "vision" else ("visual", "vision")
    rest = any(step.find(other) >= 0 for step in steps for other in others)
    return not rest and not steps & {"language_model", "text_model", "lm_head", "embed_tokens"}


def published() -> dict[str, dict[str, Any]]:
    """Multimodal configs of real sizes."""
    data = Path(__file__).parents[2] / "tests" / "data" / "hf"
    files = [json.loads((data / f"{name}.json").read_text()) for name in ("configs", "wild")]
    found = {name: row.get("config", row) for rows in files for name, row in rows.items() if isinstance(row, dict)}
    named = ("llava llava-1.5-7b", "mistral3 mistral-small-3.1-24b", "qwen2_5_vl qwen2.5-vl-7b")
    found |= {name.split()[1]: SMALL[name]["config"] for name in named}
    return {name: config for name, config in found.items() if {"vision_config", "audio_config"} & config.keys()}


def main() -> None:
    runs = [(config["model_type"], cls, run) for cls, config, run in CASES.values()]
    runs += [("qwen3_5", "Qwen3_5Model", frames), ("qwen3_5_moe", "Qwen3_5MoeModel", frames)]
    kept: dict[str, tuple[Model, dict[str, Shown | None]]] = {}
    asked = {name: config for name, config in published().items() if not sys.argv[1:] or name in sys.argv[1:]}
    pairs = [(*one, cls, run) for one in asked.items() for kind, cls, run in runs if kind == one[1]["model_type"]]
    for name, config, cls, run in pairs:
        try:
            tower, tokens, both = compared(cls, config, run)
        except Exception as error:
            print(name, "not run:", type(error).__name__, str(error)[:200])
            continue
        print(name, tokens, both)
        if all(ours == theirs for ours, theirs in both.values()):
            where = f"beside transformers' module, {tokens:,} tokens"
            named = f"{name}, {OF[run][0]}" if run in OF else name
            formulas = Formulas(sized(tower))
            kept[named] = tower, {one: Shown(formulas.digest(one), "measured", where, ()) for one in both}
    from txcalc.verification.record import store

    store(kept)


if __name__ == "__main__":
    main()
