"""FLOPs and parameters of towers beside transformers' own modules: `python tests/scripts/tower_flops.py`.

CASES are small ones of each kind, those of tests/data/hf/tower_cases.json, which
tests/verification/test_tower_flops.py runs. The script runs towers of the configs in tests/data/hf at their own sizes;
what is equal is kept in presets/theorems.json, by which `show` says that it is measured. Weights are zeros, for no
count depends on them; towers of pictures of one size run on the meta device.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from txcalc.evidence.formulas import Formulas
from txcalc.evidence.store import QuantityEvidence
from txcalc.evidence.structures import with_numbers
from txcalc.model import Model
from txcalc.sources import build
from txcalc.sources.huggingface import describe

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
    options = {"image_sizes": numbers([[side, side]])} if "image" not in vision else {}
    net.get_image_features(pixel_values=filled(0, 1, vision.get("channels", 3), side, side), **options)


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
    projector = tower.root.projector  # type: ignore[attr-defined]
    frames = tokens // projector.makes * projector.reads * (4 if hasattr(a, "subsampling_conv_channels") else 1)
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
    output = codec(filled(0, 1, codec.config.channels, tokens * math.prod(codec.config.downsampling_ratios))).latents
    parts = (getattr(between, f"{name}_{part}") for part in ("linear_1", "norm", "linear_2"))
    for part in parts:
        output = part(output)


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
DATA = Path(__file__).parents[2] / "tests" / "data" / "hf"
SMALL = json.loads((DATA / "towers.json").read_text())


def case(row: dict[str, Any]) -> tuple[str, dict[str, Any], Run]:
    """The class, its config, in whole or as one of SMALL with changes, and what runs the tower."""
    config = row.get("config") or SMALL[row["like"]]["config"]
    for key, value in row.get("changes", {}).items():
        config = {**config, key: {**config[key], **value} if isinstance(value, dict) else value}
    return row["class"], config, globals()[row["run"]]


CASES = {name: case(row) for name, row in json.loads((DATA / "tower_cases.json").read_text()).items()}
META = (pictures, sound, adapted, split, tiled, square)


def compared(cls: str, config: Mapping[str, Any], run: Run) -> tuple[Model, int, dict[str, tuple[int, int]]]:
    """A config's tower, so many tokens that it hands on, and parameters and FLOPs, ours and transformers'."""
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    model = build(*describe(config))
    kind, most, modules = OF.get(run, ("vision", SIDE**2, ""))
    tower = model.towers[kind]
    parsed = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    with torch.device("meta"):
        net = getattr(transformers, cls)._from_config(parsed, attn_implementation="eager").eval()
    net.requires_grad_(False)
    layers = [child for name, child in net.named_modules() if _of_tower(name, kind, modules)]
    params = sum({weight: weight.numel() for child in layers for weight in child.parameters(recurse=False)}.values())
    where = "meta" if run in META and (tower.root.fixed or 0) > 500 else "cpu"
    if where == "cpu":
        for child in layers:
            child.to_empty(device="cpu", recurse=False)
            for tensor in (*child.parameters(recurse=False), *child.buffers(recurse=False)):
                tensor.data.zero_()
    projector = tower.root.projector  # type: ignore[attr-defined]
    tokens = tower.root.fixed or most // projector.reads * projector.makes
    with torch.no_grad(), torch.device(where), FlopCounterMode(display=False) as counter:
        uncounted = run(net, tower, tokens)
    measured = counter.get_total_flops() - (uncounted if type(uncounted) is int else 0)
    ledger = tower.ledger(tokens=tokens, source=tokens + tower.root.prompt if tower.root.prompt else None)
    sums = {"params": (ledger.total("params"), params), "flops": (ledger.total("flops"), measured)}
    return tower, tokens, sums


def _of_tower(name: str, kind: str, modules: str) -> bool:
    """Whether a module is of the towers of a kind, not of the language model or of the other kind."""
    if modules:
        return any(name.find(module) >= 0 for module in modules.split())
    steps = set(name.split("."))
    words = ("audio",) if kind == "vision" else ("visual", "vision")
    rest = any(step.find(word) >= 0 for step in steps for word in words)
    return not rest and not steps & {"language_model", "text_model", "lm_head", "embed_tokens"}


def published() -> dict[str, dict[str, Any]]:
    """Multimodal configs of real sizes."""
    files = [json.loads((DATA / f"{name}.json").read_text()) for name in ("configs", "wild")]
    configs = {name: row.get("config", row) for rows in files for name, row in rows.items() if isinstance(row, dict)}
    names = ("llava llava-1.5-7b", "mistral3 mistral-small-3.1-24b", "qwen2_5_vl qwen2.5-vl-7b")
    configs |= {name.split()[1]: SMALL[name]["config"] for name in names}
    return {name: config for name, config in configs.items() if {"vision_config", "audio_config"} & config.keys()}


def main() -> None:
    runs = [(config["model_type"], cls, run) for cls, config, run in CASES.values()]
    runs += [("qwen3_5", "Qwen3_5Model", frames), ("qwen3_5_moe", "Qwen3_5MoeModel", frames)]
    kept: dict[str, tuple[Model, dict[str, QuantityEvidence | None]]] = {}
    configs = {name: config for name, config in published().items() if not sys.argv[1:] or name in sys.argv[1:]}
    pairs = [(*item, cls, run) for item in configs.items() for kind, cls, run in runs if kind == item[1]["model_type"]]
    for name, config, cls, run in pairs:
        try:
            tower, tokens, sums = compared(cls, config, run)
        except Exception as error:
            print(name, "not run:", type(error).__name__, str(error)[:200])
            continue
        print(name, tokens, sums)
        if all(ours == theirs for ours, theirs in sums.values()):
            where = f"beside transformers' module, {tokens:,} tokens"
            title = f"{name}, {OF[run][0]}" if run in OF else name
            formulas = Formulas(with_numbers(tower))
            kept[title] = tower, {item: QuantityEvidence(formulas.digest(item), "measured", where, ()) for item in sums}
    from txcalc.verification.store_evidence import store

    store(kept)


if __name__ == "__main__":
    main()
