"""Multimodal configs: the language model is read, and a note names what is left out."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.errors import ABSENT, quote
from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.families import FLAT, READERS, TEXT_DEFAULTS, TIES, WRAPPERS, by_name
from txcalc.sources.huggingface.keys import printable, without
from txcalc.sources.huggingface.transformers_metadata import is_neutral, knows, size_of


def language_model(c: Config) -> Config:
    """The text half of a multimodal config; its towers and projectors are not read."""
    c.head_of("lm")
    text = c.data.get("text_config")
    default = WRAPPERS[c.model_type]
    if text is None and c.model_type in FLAT:  # the text's keys stand beside vision_config
        outer_keys = {key for key in c.data if key.endswith("_config")} | {"architectures", "model_type"}
        outer_keys |= set(FLAT[c.model_type])
        fields = {key: value for key, value in c.data.items() if key not in outer_keys}
        inner = Config({**_absent(c, fields, ""), **fields}, default, "", c)
        _adapters(c)
        c.ignore(*c.data)
        note_towers(c, [key for key in c.data if key.endswith("_config")])
        return inner
    if text is not None and c.model_type in _NO_TEXT:
        c.fault("text_config", text, "nothing", f"the sizes of {c.model_type}'s language model stand beside it")
    if not isinstance(text, Mapping):
        c.fault("text_config", ABSENT if text is None else text, "an object, the language model's own config")
        text = {}
    c.ignore("text_config")
    text_type = text.get("model_type", default)
    if not isinstance(text_type, str):
        c.fault("text_config.model_type", text_type, "the name of an architecture")
        text_type = default
    if text_type.startswith(f"{c.model_type}_") and text_type not in READERS and not knows(text_type):
        why = f"{quote(text_type)} is a name of other code alone"
        c.assumptions.append(f"text_config.model_type = {default!r}, for {why}")
        text_type = default
    absent = _absent(c, text, "text_config.")
    inner = Config({**absent, **_causal(c, text), **_tie(c, text)}, text_type, "text_config.", c, partial=True)
    for key in _OF_HEAD.get(c.model_type, ()):
        own_size, size = c.data.get(key, size_of(c.model_type, key)), text.get(key, size_of(text_type, key))
        if own_size != size and size is not None:
            c.fault(
                key, own_size, f"{quote(size)}, for the class makes its head of {key} and the rest of text_config's"
            )
    for key in _UNREAD.get(c.model_type, ()):
        if c.data.get(key, text.get(key)) != text.get(key):
            c.note(f"{key} has no effect: transformers' {c.model_type} looks at text_config.{key} alone")
        c.ignore(key)
    unread = [key for key in c.data if key not in c.keys_read and key not in ("model_type", "tie_word_embeddings")]
    for key in unread:
        sized = key in text and isinstance(text[key], int) and not is_neutral(key, text[key])
        if sized and text[key] != c.data[key]:
            c.fault(key, c.data[key], f"{text[key]}, for text_config.{printable(key)} says the same thing")
    c.ignore(*c.data)
    note_towers(c, [key for key in unread if isinstance(c.data[key], Mapping)])
    return inner


# Those whose head is made of keys of the whole's, beside a table of the text's.
_OF_HEAD = {"ovis2": ("vocab_size", "hidden_size")}
# Sizes that the class of the whole has beside its text's, and reads nowhere: files of the first releases have an older
# vocabulary there, and transformers 5 writes its defaults.
_UNREAD = {"paligemma": ("hidden_size", "vocab_size")}
# Those whose class looks at no text_config.
_NO_TEXT = frozenset(("phi4_multimodal",))


def _absent(c: Config, text: Mapping[str, object], path: str) -> dict[str, object]:
    """What the class of the whole gives its text where it says nothing."""
    absent = {key: value for key, value in TEXT_DEFAULTS.get(c.model_type, {}).items() if key not in text}
    for key, value in absent.items():
        c.assume(f"{path}{key}", value)
    return dict(absent)


def _adapters(c: Config) -> None:
    """Low-rank adapters that a checkpoint brings beside the model (Phi-4): its class has no weights for them."""
    for key in ("vision_lora", "speech_lora"):
        table = c.data.get(key)
        if isinstance(table, Mapping):
            c.note(f"{key} (rank {quote(table.get('r'))}) is an adapter beside the model, and is not counted")
        elif table is not None:
            c.fault(key, table, "an object")


# Those whose prompt, picture and text, is attended to both ways; transformers writes so into their text's config.
_BOTH_WAYS = frozenset(("paligemma",))


def _causal(c: Config, text: Mapping[str, object]) -> Mapping[str, object]:
    """The text's config as that of the decoder which it is while it writes."""
    if c.model_type not in _BOTH_WAYS:
        return text
    c.note("the prompt is attended to both ways: masked attention is counted as if it were causal")
    return without(text, "use_bidirectional_attention", "num_image_tokens")


# Whose `tie_word_embeddings` ties the head, as transformers 5.23 builds these classes with each value of each key: the
# whole's own, but either's in some, the text's alone in a few, nobody's in those that never tie; of those whose text's
# key says, too, whether its halves share a table, both must.
_EITHER, _TEXT, _NEVER, _SHARING = (frozenset(TIES[kind].split()) for kind in ("either", "text", "never", "sharing"))
# What the whole's class takes where its key is absent; in the others the text's own key decides, as it did in
# transformers 4, whose files left the key out where a type is as old.
_ABSENT = {name: kind == "tied" for name, kind in by_name(TIES["absent"]).items()}
_OLDER = frozenset(TIES["older"].split())


def _tie(c: Config, text: Mapping[str, object]) -> dict[str, object]:
    """What the whole says of its half's head; without its key its class's default, or what its file's release took."""
    key = "tie_word_embeddings"
    given = c.flag(key, default=None if _by_text(c) else _ABSENT.get(c.model_type))
    if c.model_type in _SHARING and text.get(key) is False:
        return {}
    if c.model_type in _NEVER:
        if True in (given, text.get(key)):
            c.note(f"{key} has no effect: transformers' {c.model_type} never ties its head")
        return {key: False}
    if given is None or c.model_type in _TEXT or (c.model_type in _EITHER and not given):
        return {}
    if text.get(key, given) != given:
        absent = "" if key in c else f", its default: say {key} beside text_config where the weights are otherwise"
        looked = f"transformers' {c.model_type} looks at {key} = {str(given).lower()}{absent}"
        c.note(f"text_config.{key} has no effect: {looked}")
    return {key: given}


def _by_text(c: Config) -> bool:
    """Whether transformers 4 wrote the file of a type in which the text's key decided then."""
    release = str(c.data.get("transformers_version", ""))
    return c.model_type in _OLDER and "tie_word_embeddings" not in c and release.startswith("4.")


def note_tie(c: Config, tied: bool | None) -> None:
    """That the head is as the text's key has it, where the class of today takes another value."""
    if tied is not None and _by_text(c) and tied != (today := _ABSENT[c.model_type]):
        was, now = str(tied).lower(), str(today).lower()
        c.note(
            f"assumed tie_word_embeddings = {was}, as text_config has it: transformers 4 wrote this file and looked "
            f"there; transformers 5 takes {now} for {c.model_type}, unless the weights hold a head"
        )


# What is counted of a multimodal model, in a note.
LANGUAGE_ONLY = "the language model alone is"


def note_towers(c: Config, unread: list[str], counted: str = LANGUAGE_ONLY) -> None:
    towers = ", ".join(map(printable, unread[:8]))
    c.note(f"multimodal: {counted} counted{f', without {towers}' if towers else ''}")
