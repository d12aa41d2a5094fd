"""Multimodal configs: the language model alone is read, and what is left out is said."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, printable
from txcalc.sources.huggingface.families import FLAT, TEXT_DEFAULTS, WRAPPERS
from txcalc.sources.huggingface.neutral import is_neutral
from txcalc.sources.huggingface.shared import head_of


def language_model(c: Config) -> Config:
    """The text half of a multimodal config; its towers and projectors are not read."""
    head_of(c, "lm")
    text = c.data.get("text_config")
    default = WRAPPERS[c.model_type]
    if text is None and c.model_type in FLAT:  # the spelling of before: the text's keys stand beside vision_config
        others = [key for key in c.data if key.endswith("_config") or key in ("architectures", "model_type")]
        inner = Config({key: value for key, value in c.data.items() if key not in others}, default, "", c)
        c.ignore(*c.data)
        _said(c, [key for key in others if key.endswith("_config")])
        return inner
    if not isinstance(text, Mapping):
        c.fault("text_config", ABSENT if text is None else text, "an object, the language model's own config")
        text = {}
    c.ignore("text_config")
    own = text.get("model_type", default)
    if not isinstance(own, str):
        c.fault("text_config.model_type", own, "the name of an architecture")
        own = default
    absent = {key: value for key, value in TEXT_DEFAULTS.get(c.model_type, {}).items() if key not in text}
    for key, value in absent.items():
        c.assume(f"text_config.{key}", value)
    inner = Config({**absent, **_causal(c, text), **_tie(c, text)}, own, "text_config.", c)
    unread = [key for key in c.data if key not in c.asked and key not in ("model_type", "tie_word_embeddings")]
    for key in unread:
        sized = key in text and isinstance(text[key], int) and not is_neutral(key, text[key])
        if sized and text[key] != c.data[key]:
            c.fault(key, c.data[key], f"{text[key]}, for text_config.{printable(key)} says the same thing")
    c.ignore(*c.data)
    _said(c, [key for key in unread if isinstance(c.data[key], Mapping)])
    return inner


# Those whose prompt, picture and text, is attended to both ways; transformers writes so into their text's config.
_BOTH_WAYS = frozenset(("paligemma",))


def _causal(c: Config, text: Mapping[str, object]) -> Mapping[str, object]:
    """The text's config as that of the decoder which it is while it writes."""
    if c.model_type not in _BOTH_WAYS:
        return text
    c.note("the prompt is attended to both ways: masked attention is counted as if it were causal")
    return {k: v for k, v in text.items() if k not in ("use_bidirectional_attention", "num_image_tokens")}


# Whose `tie_word_embeddings` ties the head, as transformers 5.23 builds these classes with each value of each key: the
# whole's own, but either's in some, the text's alone in one, nobody's in those that never tie.
_EITHERS = "fast_vlm glm4v glm4v_moe llava llava_next_video llava_onevision qwen2_5_vl qwen2_vl shieldgemma2"
_EITHER = frozenset(_EITHERS.split())
_TEXT = frozenset(("llama4",))
_NEVER = frozenset(("audioflamingo3", "qwen2_audio", "voxtral"))


def _tie(c: Config, text: Mapping[str, object]) -> dict[str, object]:
    """What the whole says of its half's head. Without its key, which transformers 5 always writes, the text's own
    decides, as it did before."""
    key = "tie_word_embeddings"
    given = c.flag(key, default=None)
    if c.model_type in _NEVER:
        if True in (given, text.get(key)):
            c.note(f"{key} has no effect: transformers' {c.model_type} never ties its head")
        return {key: False}
    if given is None or c.model_type in _TEXT or (c.model_type in _EITHER and not given):
        return {}
    if text.get(key, given) != given:
        c.note(f"text_config.{key} has no effect: transformers' {c.model_type} looks at {key} = {str(given).lower()}")
    return {key: given}


def _said(c: Config, unread: list[str]) -> None:
    towers = ", ".join(map(printable, unread[:8]))
    c.note(f"multimodal: the language model alone is counted{f', without {towers}' if towers else ''}")
