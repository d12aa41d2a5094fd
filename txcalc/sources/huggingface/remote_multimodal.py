"""Multimodal models of which transformers has no class: their language model is read, by the code that it names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from txcalc.errors import ABSENT
from txcalc.sources.huggingface import transformers_metadata as metadata
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.families import READERS, WHOLES, reader
from txcalc.sources.huggingface.heads import class_of
from txcalc.sources.huggingface.keys import bare, printable
from txcalc.sources.huggingface.leaf_list import attention_leaves, ffn_leaves, leaf, norm_leaf
from txcalc.sources.huggingface.multimodal import LANGUAGE_ONLY, note_towers
from txcalc.sources.huggingface.tower_registry import TOWER_PLANS, describe_towers
from txcalc.sources.huggingface.tower_types import count_params
from txcalc.sources.huggingface.transformers_metadata import is_neutral


class Whole:
    """Where a multimodal config has its language model, by a row of `families.WHOLES`.

    key        the table with the language model's own config; "" where its keys stand beside the others
    texts      allowed model types of the language model; with `key` "", its one model type
    classes    what `architectures[0]` may be, in small letters; none: one that ends in ForConditionalGeneration or so
    hidden     with `key` "", prefixes of the keys that are not the language model's
    ignore     keys of the language model's that change no size
    unrelated  keys of the whole that have the name of one of the language model's, and are of something else
    absent     values of keys that the language model's first code did not ask for
    headless   the language model may have no head
    """

    def __init__(self, model_type: str) -> None:
        row = WHOLES[model_type]
        self.key, self.absent, self.headless = row.get("key", ""), row.get("absent", {}), row.get("headless", False)
        self.texts, self.classes, self.hidden, self.ignore, self.unrelated = (
            tuple(row.get(name, "").split()) for name in ("texts", "classes", "hidden", "ignore", "unrelated")
        )


# Which language model a version of MiniCPM-V, or of MiniCPM-o, has.
_VERSIONS = {
    "minicpmv": {"2.0": "minicpm", "2.5": "llama", "2.6": "qwen2", "4.0": "llama", "4.5": "qwen3"},
    "minicpmo": {"2.6": "qwen2", "4.5": "qwen3"},
}


# Classes that have the head of their language model's own class, which may have a bias: others have one without.
WITH_ITS_HEAD = ("imp", "impforcausallm", "phiforcausallm")


def language(c: Config) -> Raw:
    """The language model in a config of `WHOLES`."""
    whole = Whole(c.model_type)
    if whole.key and (whole.key in c or not whole.hidden):
        return inside(c, whole.key, lambda inner: _writing(inner, whole), *whole.classes, unrelated=whole.unrelated)
    cls = _called(c, whole.classes)
    text = _version(c) if c.model_type in _VERSIONS else whole.texts[0]
    hidden = ("architectures", "model_type", "auto_map", "text_config", *whole.hidden)
    fields = {key: value for key, value in c.data.items() if not key.startswith(hidden)}
    for key, value in whole.absent.items():
        if key not in fields:
            fields[key] = value
            c.assume(key, value)
    inner = Config(fields, text, "", c)
    raw = _typed(inner, (text,))
    if (cls or c.model_type) not in WITH_ITS_HEAD:
        raw.get("head", {}).pop("bias", None)
    c.ignore(*c.data)
    return _in_a_whole(c, inner, raw)


def inside(
    c: Config,
    key: str,
    read_inner: Callable[[Config], Raw],
    *classes: str,
    counted: str = LANGUAGE_ONLY,
    unrelated: Collection[str] = (),
) -> Raw:
    """The language model whose config is the table `key`; what stands beside it may repeat it, and say nothing else,
    but for the keys `unrelated`, which are of something else."""
    _called(c, classes, endings=("", "forcausallm", "forconditionalgeneration"))
    text = c.data.get(key)
    if not isinstance(text, Mapping):
        c.fault(key, ABSENT if text is None else text, "an object, the language model's own config")
        text = {}
    inner = Config(text, c.model_type, f"{key}.", c, partial=True)
    inner.ignore(*(name for name in text if name.startswith("tokenizer_")))
    raw = read_inner(inner)
    tied, given = raw.get("head", {}).get("tied", False), c.data.get("tie_word_embeddings")
    if isinstance(given, bool) and given != tied:
        c.fault("tie_word_embeddings", given, str(tied).lower(), f"{key} says so")
    for name, value in c.data.items():
        # is_encoder_decoder is of the whole
        alike = name == "is_encoder_decoder" or name in unrelated or is_neutral(name, value)
        if isinstance(text.get(name), int) and not alike and text[name] != value:
            c.fault(name, value, f"{text[name]}, for {key}.{printable(name)} says the same thing")
    c.ignore(*c.data)
    return _in_a_whole(c, inner, raw, counted)


def ultravox(c: Config) -> Raw:
    """Ultravox: a language model behind a sound's tower. Its class takes the one that `text_model_id` names, if any,
    and wraps it in adapters where their rank is not 0."""
    adapted = c.data.get("text_model_lora_config")
    if isinstance(adapted, Mapping) and adapted.get("r") != 0:
        c.fault("text_model_lora_config", adapted, "null, or r = 0", "adapters in the language model are not read")
    return language(c)


def flamingo(c: Config) -> Raw:
    """Flamingo as Otter has it: before every n-th layer of a language model an attention to a picture's 64 latents and
    a feed-forward, both gated.

    Source   Alayrac et al. 2022 (arXiv 2204.14198), section 2.2
    """
    wide = 1024
    if vision := c.table("vision_config"):
        vision.require_value(wide, "hidden_size", why="the published code reads pictures of this width")
        vision.ignore(*vision.data)
    return _between(c, wide, 4, "text_config", ("llama", "mpt"), "flamingo", "otter")


def infimm(c: Config) -> Raw:
    """InfiMM: Flamingo's layers in Mistral, after its published code."""
    vision = c.table("visual")
    wide = vision.size("width") if vision else 1
    if vision:
        vision.ignore(*vision.data)
    else:
        c.fault("visual", c.data.get("visual", ABSENT), "an object, its tower's own config")
    return _between(c, wide, 2, "language", ("mistral",), "infimmzephyrmodel")


def _between(c: Config, wide: int, usual: int, key: str, texts: tuple[str, ...], *classes: str) -> Raw:
    """A language model with Flamingo's gated layers before every n-th of its own, by default every `usual`-th; `wide`:
    of what a picture's tower gives."""
    period, counted = c.size("cross_attn_every_n_layers", default=usual), "the language model and its gated layers are"
    raw = inside(c, key, lambda inner: _typed(inner, texts), *classes, counted=counted)
    if c.faults:
        return raw
    d, number = raw["d_model"], raw["n_layers"] // period
    layer = [norm_leaf("attention", d), *attention_leaves("", d, 8, 64, d_source=wide, keys=[0, 64, 1], bias="")]
    layer += [*ffn_leaves("mlp", d, 4 * d, "gelu", bias=False), leaf("gates", "held", 2)]
    what = f"words alone are run: {number:,} gated layers that read a picture"
    return c.with_idle(raw, number * count_params(layer), what, "are held")


def xgenmm(c: Config) -> Raw:
    """xGen-MM on Phi-3: three tokens with tables of their own, and a head with a bias.

    Source   Xue et al. 2024 (arXiv 2408.08872), section 2; its published code, whose checkpoint has 4,359,257,219
             parameters with the tower and the resampler
    """
    for key in ("vision_encoder_config", "vision_tokenizer_config"):
        if vision := c.table(key):
            vision.ignore(*vision.data)
    texts, extra = ("phi3",), 3
    raw = inside(c, "text_config", lambda inner: _typed(inner, texts, "initial_tokenizer_len"), "xgenmmmodel")
    if raw.get("head", {}).get("tied"):
        c.fault("text_config.tie_word_embeddings", True, "false", "its head has a bias and rows of its own")
    rows = {"embedding": {**raw.get("embedding", {}), "extra": extra}, "head": {**raw.get("head", {}), "bias": True}}
    extra_head = leaf("further_tokens", "linear", raw["d_model"], extra, kind="head")
    return raw | rows | {"around": [*raw.get("around", []), extra_head]}


# What Ming-flash-omni's copy of Ling 2's config has where it says nothing, and Ling's own has not.
_MING_2 = {"num_shared_experts": 0, "first_k_dense_replace": 0, "use_bias": True, "head_dim": None,
           "num_key_value_heads": 0}  # fmt: skip


def bailingmm(c: Config) -> Raw:
    """Ming-omni: Ling's experts, which pictures and sounds reach through two further routers in every layer.

    Source   Ming-Omni: 2025 (arXiv 2506.09344), section 2.2; its published code
    """

    def text(inner: Config) -> Raw:
        several, raw = inner.flag("multi_gate", default=False), _of_ling(inner, "bailing_moe")
        return _routed(c, inner, raw, raw.get("d_model", 1)) if several else raw

    return inside(c, "llm_config", text, "bailingmm", "bailingmmnative")


def ming_2(c: Config) -> Raw:
    """Ming-flash-omni: the same on a copy of Ling 2's code, which says other sizes where a config says nothing."""

    def text(inner: Config) -> Raw:
        inner.fill(_MING_2)
        inner.override(use_qk_norm=True)  # this copy has the norms, and never looks at it
        inner.ignore("use_expert_bias", "moe_router_topk_scaling_factor", "use_interleaved_frame_timestamp")
        several = inner.text("router_type", default="topN")
        if several not in ("topN", "MultiRouter"):
            inner.fault("router_type", several, "'topN' or 'MultiRouter'")
        raw = _of_ling(inner, "bailing_moe_v2")
        if "experts" in raw:
            raw["experts"]["correction"] = True  # a parameter of this copy
        return _routed(c, inner, raw, raw.get("d_model", 1) + 1) if several == "MultiRouter" else raw

    return inside(c, "llm_config", text, "bailingmm2native")


def _of_ling(inner: Config, text: str) -> Raw:
    """Ling's layers, whose positions may be those of a picture too."""
    scaling = inner.data.get("rope_scaling")
    if isinstance(scaling, Mapping) and scaling.get("type") in ("3D", "video_rope"):
        inner.drop("rope_scaling")
    return _typed(inner, (text,), "image_patch_token", "image_start_token", "video_patch_token", "video_start_token")


def _routed(c: Config, inner: Config, raw: Raw, numbers: int) -> Raw:
    """With the routers of pictures and of sounds, each of so many numbers per expert."""
    if c.faults or "experts" not in raw:
        return raw
    sparse = raw["n_layers"] - (inner.data.get("first_k_dense_replace") or 0)
    idle = 2 * sparse * numbers * raw["experts"]["n_experts"]
    return c.with_idle(raw, idle, "words alone are run: the routers of pictures and of sounds", "are held")


def internlmxcomposer2(c: Config) -> Raw:
    """InternLM2 with two matrices of rank 256 beside each of its own, through which the tokens of a picture go.

    Source   Dong et al. 2024 (arXiv 2401.16420), section 3.2: Partial LoRA
    """
    _called(c, ("internlm2forcausallm", "internlmxcomposer2forcausallm"))
    c.drop("architectures", "max_length")
    c.model_type = "internlm2"
    raw = reader("internlm2")(c)
    if c.faults:
        return raw
    d, wide, shape = raw["d_model"], raw["feed_forward"]["d_ff"], raw["attention"]
    several, width = shape["n_heads"], shape["d_head"]
    qkv = (several + 2 * shape.get("n_kv_heads", several)) * width
    matrices = [(d, qkv), (several * width, d), (d, wide), (d, wide), (wide, d)]
    what = "words alone are run: adapters of its matrices for the tokens of a picture"
    raw = c.with_idle(raw, raw["n_layers"] * 256 * sum(map(sum, matrices)), what, "are held")
    return language_only(c, raw, "the language model and its adapters are")


def _in_a_whole(c: Config, text: Config, raw: Raw, counted: str = LANGUAGE_ONLY) -> Raw:
    """With what is beside it, where that is read."""
    return (
        language_only(c, raw, counted)
        if c.faults or c.model_type not in TOWER_PLANS
        else raw | describe_towers(c, text, raw)
    )


def _called(c: Config, classes: tuple[str, ...], endings: tuple[str, ...] = ("",)) -> str:
    """The class that a config names, in small letters; "": none."""
    cls = class_of(c.data)
    if cls is None:
        return ""
    if bare(cls) not in [name + ending for name in classes for ending in endings]:
        c.fault("architectures[0]", cls, f"a class of {c.model_type}", "other classes may have other layers")
    return bare(cls)


def _writing(inner: Config, whole: Whole) -> Raw:
    """A language model in a table, which has a head in its whole."""
    raw = _typed(inner, whole.texts, *whole.ignore)
    if raw.get("head", {}).get("form") == "none" and not whole.headless:
        inner.fault("architectures[0]", inner.data["architectures"][0], "a class with a head", "its whole has one")
    return raw


def _typed(inner: Config, texts: tuple[str, ...], *ignored: str) -> Raw:
    """A language model by the reader of its own type."""
    inner.ignore(*ignored)
    cls, given = class_of(inner.data) or "", inner.data.get("model_type")
    known = [text for text in texts if text in metadata.types_of(cls)]
    if given is None:
        given = texts[0] if len(texts) == 1 else known[0] if known else ABSENT
    if given not in texts or given not in READERS:
        inner.fault("model_type", given, f"one of {', '.join(texts)}")
        given = texts[0]
    if cls and metadata.knows(given) and bare(cls) not in [bare(name) for name in metadata.classes(given)]:
        inner.fault("architectures[0]", cls, f"a class of {given}")
    inner.model_type = given
    raw: Raw = reader(given)(inner)
    if given == "deepseek_v3" and "experts" in raw and inner.data.get("topk_method", "noaux_tc") == "noaux_tc":
        raw["experts"]["correction"] = True  # in DeepSeek's own code, which Kimi-VL's copies, it is a parameter
    return raw


def _version(c: Config) -> str:
    """The language model's type, which a version stands for."""
    versions, given = _VERSIONS[c.model_type], c.data.get("version")
    if given is None and c.model_type == "minicpmv":  # its first two had no version
        given = "2.0" if c.data.get("hidden_size") == 2304 else "2.5"
        c.assume("version", given)
    if str(given) not in versions:
        c.fault("version", given, f"one of {', '.join(versions)}")
    return versions.get(str(given), "llama")


# Beginnings of tables of what stands beside a language model.
_TOWERS = ("vision", "visual", "audio", "text_encoder", "mm_", "projector", "img_", "embd", "aligner", "gen_", "tts")


def language_only(c: Config, raw: Raw, counted: str = LANGUAGE_ONLY) -> Raw:
    """What is read of a model that has more to it, with a note of the rest."""
    tables = [key for key, value in c.data.items() if isinstance(value, Mapping) and key.startswith(_TOWERS)]
    note_towers(c, tables, counted)
    for key in ("vision_lora", "speech_lora", "use_llm_lora"):
        if c.data.get(key):
            c.note(f"{key} is an adapter beside the model, and is not counted")
    return {**raw, "multimodal": True}
