"""Multimodal configs: the language model alone is read, and what is left out is said."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, printable
from txcalc.sources.huggingface.families import FLAT, WRAPPERS
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
    inner = Config({**text, **_tie(c, text)}, own, "text_config.", c)
    unread = [key for key in c.data if key not in c.asked and key not in ("model_type", "tie_word_embeddings")]
    for key in unread:
        if key in text and isinstance(text[key], int) and text[key] != c.data[key]:
            c.fault(key, c.data[key], f"{text[key]}, for text_config.{printable(key)} says the same thing")
    c.ignore(*c.data)
    _said(c, [key for key in unread if isinstance(c.data[key], Mapping)])
    return inner


def _tie(c: Config, text: Mapping[str, object]) -> dict[str, object]:
    """The whole and its half may each say whether the head is tied; what only one of them says holds for both."""
    key = "tie_word_embeddings"
    if key not in c.data or c.data[key] is None:
        return {}
    if key in text and text[key] != c.data[key]:
        c.fault(key, c.data[key], f"{text[key]}, for text_config.{key} says the same thing")
    return {key: c.data[key]}


def _said(c: Config, unread: list[str]) -> None:
    towers = ", ".join(map(printable, unread[:8]))
    c.note(f"multimodal: the language model alone is counted{f', without {towers}' if towers else ''}")
