"""The language model of a multimodal config, with a note of the parts that are not counted."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.errors import ABSENT, quote
from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.families import FLAT, READERS, TEXT_DEFAULTS, TIES, WRAPPERS, by_name
from txcalc.sources.huggingface.keys import printable, without
from txcalc.sources.huggingface.transformers_metadata import is_neutral, knows, size_of


def language_model(c: Config) -> Config:
    """The config of the language model in a multimodal config."""
    c.head_of("lm")
    text = c.data.get("text_config")
    default = WRAPPERS[c.model_type]
    if text is None and c.model_type in FLAT:  # the text's keys are at the top level
        outer_keys = {key for key in c.data if key.endswith("_config")} | {"architectures", "model_type"}
        outer_keys |= set(FLAT[c.model_type])
        fields = {key: value for key, value in c.data.items() if key not in outer_keys}
        inner = Config({**_absent(c, fields, ""), **fields}, default, "", c)
        _adapters(c)
        c.ignore(*c.data)
        note_towers(c, [key for key in c.data if key.endswith("_config")])
        return inner
    if text is not None and c.model_type in _NO_TEXT:
        c.fault("text_config", text, "nothing", f"{c.model_type} has its language model's sizes at the top level")
    if not isinstance(text, Mapping):
        c.fault("text_config", ABSENT if text is None else text, "an object, the language model's config")
        text = {}
    c.ignore("text_config")
    text_type = text.get("model_type", default)
    if not isinstance(text_type, str):
        c.fault("text_config.model_type", text_type, "the name of an architecture")
        text_type = default
    if text_type.startswith(f"{c.model_type}_") and text_type not in READERS and not knows(text_type):
        c.assumptions.append(f"text_config.model_type = {default!r}: only other code has {quote(text_type)}")
        text_type = default
    absent = _absent(c, text, "text_config.")
    inner = Config({**absent, **_causal(c, text), **_tie(c, text)}, text_type, "text_config.", c, partial=True)
    for key in _OF_HEAD.get(c.model_type, ()):
        own_size, size = c.data.get(key, size_of(c.model_type, key)), text.get(key, size_of(text_type, key))
        if own_size != size and size is not None:
            why = f"the class sizes its head by {key}, all else by text_config.{key}"
            c.fault(key, own_size, quote(size), why)
    for key in _UNREAD.get(c.model_type, ()):
        if c.data.get(key, text.get(key)) != text.get(key):
            c.note(f"{key} has no effect: transformers' {c.model_type} reads only text_config.{key}")
        c.ignore(key)
    unread = [key for key in c.data if key not in c.keys_read and key not in ("model_type", "tie_word_embeddings")]
    for key in unread:
        sized = key in text and isinstance(text[key], int) and not is_neutral(key, text[key])
        if sized and text[key] != c.data[key]:
            c.fault(key, c.data[key], f"{text[key]}, the value of text_config.{printable(key)}")
    c.ignore(*c.data)
    note_towers(c, [key for key in unread if isinstance(c.data[key], Mapping)])
    return inner


# Types whose head is sized by top-level keys.
_OF_HEAD = {"ovis2": ("vocab_size", "hidden_size")}
# Top-level sizes that the class never reads: older configs have another vocabulary there, and transformers 5 writes its
# defaults.
_UNREAD = {"paligemma": ("hidden_size", "vocab_size")}
# Types whose class reads no text_config.
_NO_TEXT = frozenset(("phi4_multimodal",))


def _absent(c: Config, text: Mapping[str, object], path: str) -> dict[str, object]:
    """Values that the multimodal class sets in the text's config if they are absent."""
    absent = {key: value for key, value in TEXT_DEFAULTS.get(c.model_type, {}).items() if key not in text}
    for key, value in absent.items():
        c.assume(f"{path}{key}", value)
    return dict(absent)


def _adapters(c: Config) -> None:
    """Add notes on Phi-4's low-rank adapters, for which its class has no weights."""
    for key in ("vision_lora", "speech_lora"):
        table = c.data.get(key)
        if isinstance(table, Mapping):
            c.note(f"{key} (rank {quote(table.get('r'))}) is a separate adapter and is not counted")
        elif table is not None:
            c.fault(key, table, "an object")


# Types with bidirectional attention within the prompt; transformers writes this into their text's config.
_PREFIX_LM = frozenset(("paligemma",))


def _causal(c: Config, text: Mapping[str, object]) -> Mapping[str, object]:
    """The text's config as that of a causal decoder."""
    if c.model_type not in _PREFIX_LM:
        return text
    c.note("attention is bidirectional within the prompt; masked FLOPs count it as causal")
    return without(text, "use_bidirectional_attention", "num_image_tokens")


# Which `tie_word_embeddings` ties the head, measured by building transformers 5.23's classes with each value of both
# keys: the top-level key; in some types either key, in a few only the text's, in some neither. "sharing": both keys,
# since the text's also determines whether encoder and decoder share an embedding.
_EITHER, _TEXT, _NEVER, _SHARING = (frozenset(TIES[kind].split()) for kind in ("either", "text", "never", "sharing"))
# The class's default of an absent top-level key. In other types, and in configs that transformers 4 wrote for the
# `older` ones, the text's key decides.
_ABSENT = {name: kind == "tied" for name, kind in by_name(TIES["absent"]).items()}
_OLDER = frozenset(TIES["older"].split())


def _tie(c: Config, text: Mapping[str, object]) -> dict[str, object]:
    """`tie_word_embeddings` as the text's config must have it, {} if its own value counts."""
    key = "tie_word_embeddings"
    tied = c.flag(key, default=None if _by_text(c) else _ABSENT.get(c.model_type))
    if c.model_type in _SHARING and text.get(key) is False:
        return {}
    if c.model_type in _NEVER:
        if True in (tied, text.get(key)):
            c.note(f"{key} has no effect: transformers' {c.model_type} never ties its head")
        return {key: False}
    if tied is None or c.model_type in _TEXT or (c.model_type in _EITHER and not tied):
        return {}
    if text.get(key, tied) != tied:
        absent = "" if key in c else f", its default: set {key} outside text_config if the weights differ"
        c.note(
            f"text_config.{key} has no effect: transformers' {c.model_type} reads {key} = {str(tied).lower()}{absent}"
        )
    return {key: tied}


def _by_text(c: Config) -> bool:
    """Whether transformers 4 wrote the config, of a type whose text's key decided then."""
    release = str(c.data.get("transformers_version", ""))
    return c.model_type in _OLDER and "tie_word_embeddings" not in c and release.startswith("4.")


def note_tie(c: Config, tied: bool | None) -> None:
    """Add a note if the head follows the text's key and transformers 5 has another default."""
    if tied is not None and _by_text(c) and tied != (default := _ABSENT[c.model_type]):
        c.note(
            f"assumed tie_word_embeddings = {str(tied).lower()}, as in text_config: transformers 4 wrote this config "
            f"and read that key; transformers 5 assumes {str(default).lower()} for {c.model_type}, unless the weights "
            "have a head"
        )


# The part of a multimodal model that is counted, in a note.
LANGUAGE_ONLY = "only the language model is"


def note_towers(c: Config, unread: list[str], counted: str = LANGUAGE_ONLY) -> None:
    towers = ", ".join(map(printable, unread[:8]))
    c.note(f"multimodal: {counted} counted{f', without {towers}' if towers else ''}")
