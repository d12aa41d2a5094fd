"""Inputs of transformers' classes: token ids, images, audio and states, with sizes from a config."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from txcalc.verification.symbolic import T_SRC, B, SymbolicSize, T

CUDA_ONLY = ("mra",)  # without its kernel, transformers returns zeros for its attention


class ModelInput(NamedTuple):
    """An input of the model, with the letter of each size that may vary: `frames` per position."""

    name: str
    shape: tuple[int, ...]
    letters: tuple[Any, ...]
    frames: int = 1

    def sizes(self) -> tuple[SymbolicSize | None, ...]:
        return tuple(x and SymbolicSize(x, 1 if x is B else self.frames) for x in self.letters)


def inputs_of(net: Any, batch: int, tokens: int, source: int | None) -> tuple[ModelInput, ...] | str:
    """The model's inputs, or the reason why they are not known."""
    config, names = net.config, inspect.signature(net.forward).parameters
    decoder_ids = ModelInput("decoder_input_ids", (batch, tokens), (B, T))
    if config.model_type in CUDA_ONLY:
        return "its attention is a CUDA kernel, and its code returns zeros without it"
    if (
        net.main_input_name == "pixel_values"
        or hasattr(config, "crop_size")
        or ("pixel_values" in names and "input_ids" not in names)
    ):
        images = _image_inputs(getattr(config, "encoder", config), batch)
        return images if isinstance(images, str) or "decoder_input_ids" not in names else (*images, decoder_ids)
    if hasattr(config, "speech_decoder_prenet_units"):
        return _speecht5_inputs(config, names, batch, tokens, tokens if source is None else source)
    if net.main_input_name == "input_values" and hasattr(config, "num_mel_bins"):  # a spectrogram's patches
        return (ModelInput("input_values", (batch, config.max_length, config.num_mel_bins), (B, None, None)),)
    if net.main_input_name == "input_features" and (bands := _mel_input(config, batch, tokens, source)):
        return (bands, decoder_ids) if getattr(config, "is_encoder_decoder", False) else (bands,)
    if net.main_input_name == "flattened_patches":  # each begins with its row and column
        width = getattr(config, "vision_config", config).patch_embed_hidden_size + 2
        shape = (batch, tokens if source is None else source, width)
        patches = ModelInput("flattened_patches", shape, (B, T_SRC, None))
        return (patches, decoder_ids) if "decoder_input_ids" in names else (patches,)
    if net.main_input_name == "states":
        widths = {"states": config.state_dim, "actions": config.act_dim, "returns_to_go": 1}
        vectors = (ModelInput(name, (batch, tokens, width), (B, T, None)) for name, width in widths.items())
        return (*vectors, *(ModelInput(name, (batch, tokens), (B, T)) for name in ("timesteps", "attention_mask")))
    if net.main_input_name == "input_values" and hasattr(config, "conv_kernel"):
        return (ModelInput("input_values", (batch, _sample_count(config, tokens)), (B, None)),)
    if net.main_input_name != "input_ids":
        return f"it takes {net.main_input_name}, not token ids or images"
    if type(net).__name__.endswith("ForMultipleChoice"):
        return (ModelInput("input_ids", (batch, 1, tokens), (B, None, T)),)
    if not getattr(config, "is_encoder_decoder", False):
        words = ModelInput("input_ids", (batch, tokens), (B, T))
        if "lang_ids" in names:  # the first language for every token
            return (words, ModelInput("lang_ids", (batch,), (B,)))
        audio = getattr(config, "audio_config", None)
        if "input_features" in names and (bands := _mel_input(audio, batch, tokens, None)):
            longer = (ModelInput("is_longer", (batch, 1), (B, None)),) if "is_longer" in names else ()
            return (words, bands, *longer)
        base = getattr(net, net.base_model_prefix, net)
        if "pixel_values" not in names or not (hasattr(base, "logit_scale") or config.model_type == "vilt"):
            return (words,)
        images = _image_inputs(getattr(config, "vision_config", config), batch)  # two encoders, or one for both
        return images if isinstance(images, str) else (words, *images)
    length = tokens if source is None else source
    return (ModelInput("input_ids", (batch, length), (B, T_SRC)), decoder_ids)


def _sample_count(config: Any, positions: int) -> int:
    """The fewest audio samples that give this many positions."""
    samples = positions * getattr(config, "squeeze_factor", 1)
    for taps, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride), strict=True):
        samples = (samples - 1) * stride + taps
    return samples


def _speecht5_inputs(config: Any, names: Any, batch: int, tokens: int, source: int) -> tuple[ModelInput, ...]:
    """SpeechT5's text or audio for the encoder; text, or frames and the speaker's vector, for the decoder."""
    text = ModelInput("input_ids", (batch, source), (B, T_SRC))
    audio = ModelInput("input_values", (batch, _sample_count(config, source)), (B, None))
    encoder_input = text if "input_ids" in names else audio
    if "decoder_input_ids" in names:
        return (encoder_input, ModelInput("decoder_input_ids", (batch, tokens), (B, T)))
    frames = ModelInput("decoder_input_values", (batch, tokens, config.num_mel_bins), (B, T, None))
    return (encoder_input, frames, ModelInput("speaker_embeddings", (batch, config.speaker_embedding_dim), (B, None)))


def _mel_input(config: Any, batch: int, tokens: int, source: int | None) -> ModelInput | None:
    """Mel bands and frames that give an encoder this many positions; None if the config has no number of bands."""
    if width := getattr(config, "feature_projection_input_dim", 0):
        if not config.is_encoder_decoder:
            return ModelInput("input_features", (batch, tokens, width), (B, T, None))
        frames = tokens if source is None else source
        for _ in range(config.num_adapter_layers if config.add_adapter else 0):  # the most frames for these positions
            stride = config.adaptor_stride
            frames = frames * stride + config.adaptor_kernel_size - 2 * (stride // 2) - 1
        return ModelInput("input_features", (batch, frames, width), (B, None, None))
    if width := getattr(config, "input_feat_per_channel", 0):
        frames = 2**config.num_conv_layers  # each convolution halves them
        shape = (batch, (tokens if source is None else source) * frames, width * config.input_channels)
        return ModelInput("input_features", shape, (B, T_SRC, None), frames)
    encoder = getattr(config, "encoder_config", config)
    if factor := getattr(encoder, "subsampling_factor", 0):
        frames = encoder.subsampling_conv_stride ** (factor.bit_length() - 1)
        length, letter = (tokens, T) if source is None and not config.is_encoder_decoder else (source or tokens, T_SRC)
        return ModelInput("input_features", (batch, length * frames, encoder.num_mel_bins), (B, letter, None), frames)
    if side := getattr(config, "spec_size", 0):  # bands and frames form a square image
        crops = 4 if getattr(config, "enable_fusion", False) else 1
        bands = config.num_mel_bins
        return ModelInput("input_features", (batch, crops, side * (side // bands), bands), (B, None, None, None))
    return None


def _image_inputs(config: Any, batch: int) -> tuple[ModelInput, ...] | str:
    """An image, or the frames of a video."""
    if side := getattr(config, "crop_size", 0):
        shape = (batch, config.frames_per_clip, config.in_chans, side, side)
        return (ModelInput("pixel_values_videos", shape, (B, None, None, None, None)),)
    config = config if hasattr(config, "image_size") else getattr(config, "vision_config", config)
    config = config.backbone_config if hasattr(config, "use_simple_decoder") else config  # for images of one size
    image, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    sides = tuple(image) if isinstance(image, list | tuple) else (image, image)
    if len(sides) != 2 or not all(isinstance(side, int) for side in (*sides, channels)):
        return "its config has no image_size"
    shape = (batch, *([config.num_frames] if hasattr(config, "num_frames") else []), channels, *sides)
    choice = [ModelInput("dataset_index", (batch,), (B,))] * (getattr(config, "num_experts", 1) > 1)
    return (ModelInput("pixel_values", shape, (B, *(None for _ in shape[1:]))), *choice)


# Suffixes of floating-point inputs' names; others are ids.
FLOAT_SUFFIXES = ("_values", "_features", "_embeddings", "_patches", "_videos", "states", "actions", "_to_go")


def blank(spec: ModelInput, shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape, dtype=torch.float32 if spec.name.endswith(FLOAT_SUFFIXES) else torch.long, device="meta")
