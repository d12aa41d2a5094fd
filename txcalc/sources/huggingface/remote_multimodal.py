"""Multimodal models that transformers does not have: the reader of their language model's type reads it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from txcalc.errors import ABSENT
from txcalc.sources.huggingface import transformers_metadata as metadata
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.families import READERS, WHOLES, reader
from txcalc.sources.huggingface.heads import class_of
from txcalc.sources.huggingface.keys import letters_of, printable
from txcalc.sources.huggingface.leaf_list import leaf
from txcalc.sources.huggingface.multimodal import LANGUAGE_ONLY, note_towers
from txcalc.sources.huggingface.tower_registry import TOWER_PLANS, describe_towers
from txcalc.sources.huggingface.transformers_metadata import is_neutral


class Whole:
    """Where a multimodal config has its language model, by a row of `families.WHOLES`.

    key        the table with the language model's config; "" if its keys are at the top level
    texts      allowed model types of the language model; with `key` "", its model type
    classes    allowed values of `architectures[0]`, in lower case
    hidden     with `key` "", prefixes of the keys that are not the language model's
    ignore     keys of the language model that change no size
    unrelated  top-level keys that have the name of a language model's key but another meaning
    absent     values of absent keys
    headless   the language model may have no head
    """

    def __init__(self, model_type: str) -> None:
        row = WHOLES[model_type]
        self.key, self.absent, self.headless = row.get("key", ""), row.get("absent", {}), row.get("headless", False)
        self.texts, self.classes, self.hidden, self.ignore, self.unrelated = (
            tuple(row.get(name, "").split()) for name in ("texts", "classes", "hidden", "ignore", "unrelated")
        )


# The language models of the versions of MiniCPM-V and MiniCPM-o.
_VERSIONS = {
    "minicpmv": {"2.0": "minicpm", "2.5": "llama", "2.6": "qwen2", "4.0": "llama", "4.5": "qwen3"},
    "minicpmo": {"2.6": "qwen2", "4.5": "qwen3"},
}


# Classes that keep the bias of the language model's head; in others the head has no bias.
WITH_HEAD_BIAS = ("imp", "impforcausallm", "phiforcausallm")


def language(c: Config) -> Raw:
    """The language model in a config of `WHOLES`."""
    whole = Whole(c.model_type)
    if whole.key and (whole.key in c or not whole.hidden):
        return inside(c, whole.key, lambda inner: _with_head(inner, whole), *whole.classes, unrelated=whole.unrelated)
    cls = _require_class(c, whole.classes)
    text = _version(c) if c.model_type in _VERSIONS else whole.texts[0]
    hidden = ("architectures", "model_type", "auto_map", "text_config", *whole.hidden)
    fields = {key: value for key, value in c.data.items() if not key.startswith(hidden)}
    for key, value in whole.absent.items():
        if key not in fields:
            fields[key] = value
            c.assume(key, value)
    inner = Config(fields, text, "", c)
    raw = _read_text(inner, (text,))
    if (cls or c.model_type) not in WITH_HEAD_BIAS:
        raw.get("head", {}).pop("bias", None)
    c.ignore(*c.data)
    return _with_towers(c, inner, raw)


def inside(
    c: Config, key: str, read_inner: Callable[[Config], Raw], *classes: str, unrelated: Collection[str] = ()
) -> Raw:
    """The language model in the table `key`. Sizes at the top level must repeat that table's, except for the keys
    `unrelated`, which have another meaning."""
    _require_class(c, classes, endings=("", "forcausallm", "forconditionalgeneration"))
    text = c.data.get(key)
    if not isinstance(text, Mapping):
        c.fault(key, ABSENT if text is None else text, "an object, the language model's config")
        text = {}
    inner = Config(text, c.model_type, f"{key}.", c, partial=True)
    inner.ignore(*(name for name in text if name.startswith("tokenizer_")))
    raw = read_inner(inner)
    tied, tie = raw.get("head", {}).get("tied", False), c.data.get("tie_word_embeddings")
    if isinstance(tie, bool) and tie != tied:
        c.fault("tie_word_embeddings", tie, str(tied).lower(), f"the value in {key}")
    for name, value in c.data.items():
        free = name == "is_encoder_decoder" or name in unrelated or is_neutral(name, value)
        if isinstance(text.get(name), int) and not free and text[name] != value:
            c.fault(name, value, f"{text[name]}, the value of {key}.{printable(name)}")
    c.ignore(*c.data)
    return _with_towers(c, inner, raw)


def ultravox(c: Config) -> Raw:
    """Ultravox: a language model with an audio tower. Its class loads the model that `text_model_id` names, if any, and
    adds adapters if their rank is not 0."""
    adapted = c.data.get("text_model_lora_config")
    if isinstance(adapted, Mapping) and adapted.get("r") != 0:
        c.fault("text_model_lora_config", adapted, "null, or r = 0", "adapters in the language model are not supported")
    return language(c)


def xgenmm(c: Config) -> Raw:
    """xGen-MM on Phi-3: three tokens with a separate embedding and head, and a head with a bias.

    Source   Xue et al. 2024 (arXiv 2408.08872), section 2; its published code, whose checkpoint has 4,359,257,219
             parameters with the tower and the resampler
    """
    for key in ("vision_encoder_config", "vision_tokenizer_config"):
        if vision := c.table(key):
            vision.ignore(*vision.data)
    extra = 3
    raw = inside(c, "text_config", lambda inner: _read_text(inner, ("phi3",), "initial_tokenizer_len"), "xgenmmmodel")
    if raw.get("head", {}).get("tied"):
        c.fault("text_config.tie_word_embeddings", True, "false", "its head has a bias and further rows")
    rows = {"embedding": {**raw.get("embedding", {}), "extra": extra}, "head": {**raw.get("head", {}), "bias": True}}
    extra_head = leaf("further_tokens", "linear", raw["d_model"], extra, kind="head")
    return raw | rows | {"around": [*raw.get("around", []), extra_head]}


# Defaults of Ming-flash-omni's copy of Ling 2's config that differ from Ling's.
_MING_2 = {"num_shared_experts": 0, "first_k_dense_replace": 0, "use_bias": True, "head_dim": None,
           "num_key_value_heads": 0}  # fmt: skip


def bailingmm(c: Config) -> Raw:
    """Ming-omni: Ling with two further routers in every layer, for image and audio tokens.

    Source   Ming-Omni: 2025 (arXiv 2506.09344), section 2.2; its published code
    """

    def text(inner: Config) -> Raw:
        multi_gate, raw = inner.flag("multi_gate", default=False), _ling(inner, "bailing_moe")
        return _with_routers(c, inner, raw, raw.get("d_model", 1)) if multi_gate else raw

    return inside(c, "llm_config", text, "bailingmm", "bailingmmnative")


def ming_2(c: Config) -> Raw:
    """Ming-flash-omni: the same on a copy of Ling 2's code with other defaults."""

    def text(inner: Config) -> Raw:
        inner.fill(_MING_2)
        inner.override(use_qk_norm=True)  # this copy always has the norms
        inner.ignore("use_expert_bias", "moe_router_topk_scaling_factor", "use_interleaved_frame_timestamp")
        router = inner.text("router_type", default="topN")
        if router not in ("topN", "MultiRouter"):
            inner.fault("router_type", router, "'topN' or 'MultiRouter'")
        raw = _ling(inner, "bailing_moe_v2")
        if "experts" in raw:
            raw["experts"]["correction"] = True  # a parameter of this copy
        return _with_routers(c, inner, raw, raw.get("d_model", 1) + 1) if router == "MultiRouter" else raw

    return inside(c, "llm_config", text, "bailingmm2native")


def _ling(inner: Config, text: str) -> Raw:
    """Ling's layers; their rotary positions may be three-dimensional."""
    scaling = inner.data.get("rope_scaling")
    if isinstance(scaling, Mapping) and scaling.get("type") in ("3D", "video_rope"):
        inner.drop("rope_scaling")
    tokens = ("image_patch_token", "image_start_token", "video_patch_token", "video_start_token")
    return _read_text(inner, (text,), *tokens)


def _with_routers(c: Config, inner: Config, raw: Raw, params: int) -> Raw:
    """Add the routers of image and audio tokens, with `params` parameters per expert."""
    if c.faults or "experts" not in raw:
        return raw
    sparse = raw["n_layers"] - (inner.data.get("first_k_dense_replace") or 0)
    idle = 2 * sparse * params * raw["experts"]["n_experts"]
    return c.with_idle(raw, idle, "the routers of image and audio tokens")


def internlmxcomposer2(c: Config) -> Raw:
    """InternLM2 with an adapter of rank 256 on each matrix, which only image tokens use.

    Source   Dong et al. 2024 (arXiv 2401.16420), section 3.2: Partial LoRA
    """
    _require_class(c, ("internlm2forcausallm", "internlmxcomposer2forcausallm"))
    c.drop("architectures", "max_length")
    c.model_type = "internlm2"
    raw = reader("internlm2")(c)
    if c.faults:
        return raw
    d, ff, attention = raw["d_model"], raw["feed_forward"]["d_ff"], raw["attention"]
    n_heads, width = attention["n_heads"], attention["d_head"]
    qkv = (n_heads + 2 * attention.get("n_kv_heads", n_heads)) * width
    matrices = [(d, qkv), (n_heads * width, d), (d, ff), (d, ff), (ff, d)]
    idle = raw["n_layers"] * 256 * sum(map(sum, matrices))
    raw = c.with_idle(raw, idle, "adapters of its matrices for image tokens")
    return language_only(c, raw, "the language model and its adapters are")


def _with_towers(c: Config, text: Config, raw: Raw) -> Raw:
    """Add the towers if they are supported, else the note of `language_only`."""
    if c.faults or c.model_type not in TOWER_PLANS:
        return language_only(c, raw)
    return raw | describe_towers(c, text, raw)


def _require_class(c: Config, classes: tuple[str, ...], endings: tuple[str, ...] = ("",)) -> str:
    """The class that a config names, in lower case, or "". A fault unless it is one of `classes`."""
    cls = class_of(c.data)
    if cls is None:
        return ""
    if letters_of(cls) not in [name + ending for name in classes for ending in endings]:
        c.fault_class(f"a class of {c.model_type}")
    return letters_of(cls)


def _with_head(inner: Config, whole: Whole) -> Raw:
    """The language model in a table; a fault if it has no head but needs one."""
    raw = _read_text(inner, whole.texts, *whole.ignore)
    if raw.get("head", {}).get("form") == "none" and not whole.headless:
        inner.fault_class("a class with a head", "the multimodal class has one")
    return raw


def _read_text(inner: Config, texts: tuple[str, ...], *ignored: str) -> Raw:
    """A language model, by the reader of its model type, which must be one of `texts`."""
    inner.ignore(*ignored)
    cls, model_type = class_of(inner.data) or "", inner.data.get("model_type")
    candidates = [text for text in texts if text in metadata.types_of(cls)]
    if model_type is None:
        model_type = texts[0] if len(texts) == 1 else candidates[0] if candidates else ABSENT
    if model_type not in texts or model_type not in READERS:
        inner.fault("model_type", model_type, f"one of {', '.join(texts)}")
        model_type = texts[0]
    if (
        cls
        and metadata.knows(model_type)
        and letters_of(cls) not in [letters_of(name) for name in metadata.classes(model_type)]
    ):
        inner.fault("architectures[0]", cls, f"a class of {model_type}")
    inner.model_type = model_type
    raw: Raw = reader(model_type)(inner)
    if model_type == "deepseek_v3" and "experts" in raw and inner.data.get("topk_method", "noaux_tc") == "noaux_tc":
        raw["experts"]["correction"] = True  # a parameter in DeepSeek's code, which Kimi-VL copies
    return raw


def _version(c: Config) -> str:
    """The language model's type, by the version of MiniCPM-V or MiniCPM-o."""
    versions, version = _VERSIONS[c.model_type], c.data.get("version")
    if version is None and c.model_type == "minicpmv":  # configs of its first two versions do not have the key
        version = "2.0" if c.data.get("hidden_size") == 2304 else "2.5"
        c.assume("version", version)
    if str(version) not in versions:
        c.fault("version", version, f"one of {', '.join(versions)}")
    return versions.get(str(version), "llama")


# Prefixes of the tables of towers and projectors.
_TOWERS = ("vision", "visual", "audio", "text_encoder", "mm_", "projector", "img_", "embd", "aligner", "gen_", "tts")


def language_only(c: Config, raw: Raw, counted: str = LANGUAGE_ONLY) -> Raw:
    """The description of a multimodal model's language model, with a note of the parts that are not counted."""
    tables = [key for key, value in c.data.items() if isinstance(value, Mapping) and key.startswith(_TOWERS)]
    note_towers(c, tables, counted)
    for key in ("vision_lora", "speech_lora", "use_llm_lora"):
        if c.data.get(key):
            c.note(f"{key} is a separate adapter and is not counted")
    return {**raw, "multimodal": True}
