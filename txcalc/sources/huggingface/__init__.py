"""Hugging Face's config.json, read exactly or not at all.

`families.READERS` names the function that reads a `model_type`; `families.REFUSED` says why a type is not read. A
reader turns a `Config` into a description, as presets have it. transformers is not imported, and code that a config
names is never run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from txcalc.errors import ABSENT, NULL, Fault, InputError, UnknownName, quote
from txcalc.parts.options import Raw, Table
from txcalc.sources import files
from txcalc.sources.huggingface import transformers_metadata as metadata
from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.families import (
    BY_CLASS,
    FINGERPRINTS,
    OTHER_FILES,
    PREDICTING,
    PREDICTORS,
    PUBLISHED,
    READERS,
    REFUSED,
    TYPICAL_KEYS,
    WRAPPERS,
    reader,
)
from txcalc.sources.huggingface.heads import class_of, named_after
from txcalc.sources.huggingface.keys import letters_of, printable
from txcalc.sources.huggingface.transformers_metadata import IGNORED_KEYS, is_neutral

MAX_BYTES = 1 << 24

# Keys of a quantiser's settings (the last two in the first files of MLX and llm-compressor), and the files that
# ModelOpt, AutoGPTQ and AutoAWQ write next to config.json.
QUANTISED = ("quantization_config", "quantization", "compression_config")
QUANTISER_FILES = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}

# Dtypes of checkpoints by PyTorch's names.
DTYPES = {"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}

# The keys of a params.json of Meta's and Mistral's code.
PARAMS = frozenset({"dim", "n_layers", "n_heads", "norm_eps", "vocab_size"})

Description = tuple[Table, str, tuple[str, ...], tuple[str, ...]]


def read(source: str | Path, ignore: Sequence[str] = ()) -> Description:
    """The description of a config.json, or of the config.json in a folder; `-` reads standard input. `ignore` names
    keys to leave out (`text_config.width`).

    Returns the description, its name in errors, assumptions, and notes. Errors: `InputError` with every fault.
    """
    return describe(*parsed_file(source), ignore)


def parsed_file(source: str | Path) -> tuple[Any, str, str]:
    """The JSON of a config.json (`source` as in `read`), the name that errors give it, and a name for the model."""
    if source == "-":
        return parse_json(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input"), "standard input", ""
    if not str(source).strip():
        raise InputError("source", ["is empty, expected a config.json"])
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    data = files.read(path, MAX_BYTES)
    name = path.resolve().parent.name if path.name in ("config.json", "params.json") else path.stem
    return _with_quantiser_file(parse_json(data, str(path)), path), str(path), name


def _with_quantiser_file(data: object, path: Path) -> object:
    """The config, with the settings of a quantiser's file next to it if the config has none."""
    if not isinstance(data, Mapping) or path.name != "config.json" or any(data.get(key) for key in QUANTISED):
        return data
    for name, method in QUANTISER_FILES.items():
        if (file := path.with_name(name)).is_file():
            settings = parse_json(files.read(file, MAX_BYTES), str(file))
            if not isinstance(settings, Mapping):
                raise InputError(str(file), [f"holds {quote(settings)}, expected an object"])
            return {**data, "quantization_config": {"quant_method": method, **settings}}
    return data


def parse_json(data: bytes, where: str) -> Any:
    """The JSON of a file. Errors: `InputError` with one line."""
    if len(data) > MAX_BYTES:
        raise InputError(where, [f"is larger than {MAX_BYTES:,} bytes, expected a config.json"])
    if not data.strip():
        raise InputError(where, ["is empty, expected a config.json"])
    try:
        return json.loads(data.decode(json.detect_encoding(data)), object_pairs_hook=_refuse_conflicts)
    except UnicodeDecodeError:
        raise InputError(where, ["is not text, expected a config.json"]) from None
    except (ValueError, RecursionError) as error:
        raise InputError(where, [f"is not valid JSON: {str(error) or 'nested too deep'}"]) from None


def _refuse_conflicts(pairs: list[tuple[str, Any]]) -> Raw:
    """An object; a key that occurs twice with different values is an error."""
    table = dict(pairs)
    if len(table) < len(pairs):
        duplicate = next((key for key, value in pairs if table[key] != value), None)
        if duplicate is not None:
            raise ValueError(f"{quote(duplicate)} occurs twice, with different values")
    return table


def describe(data: object, where: str = "config.json", name: str = "", ignore: Sequence[str] = ()) -> Description:
    """The description of a parsed config.json. Errors: `InputError` with every fault, `UnknownName`."""
    if not isinstance(data, Mapping):
        raise InputError(where, [f"holds {quote(NULL if data is None else data)}, expected an object with model_type"])
    part = language_part(data) if "model_type" in ignore else ""
    data, left_out = drop_keys(data, where, ignore)
    if part:
        shared = {key: data[key] for key in ("tie_word_embeddings", "torch_dtype", "dtype", *QUANTISED) if key in data}
        data = {**shared, **{key: value for key, value in data[part].items() if value is not None or key not in shared}}
        left_out.append(f"only {part} is read, as a {data['model_type']}: the rest of the model is not counted")
    from_params: list[str] = []
    if data.keys() >= PARAMS and not data.keys() & {"model_type", "architectures"}:
        from txcalc.sources.huggingface.params_json import translated

        data, from_params = translated(data, where)
    model_type, inferred = type_of(data, where)
    c, raw = _read(Config(data, model_type), where)
    if c.faults:
        c.finish(where, _read(Config(data, model_type, second_reading=True), where)[0])
    raw = {"name": name or data.get("model_type") or model_type, "model_type": model_type, **raw}
    return raw, where, (*from_params, *inferred, *c.assumptions), (*left_out, *c.notes)


def _read(c: Config, where: str) -> tuple[Config, Raw]:
    """The config after its reader has run, and its description; the config has the faults."""
    text, declared_type = c, c.model_type
    check_class(c)
    if c.model_type in WRAPPERS:
        from txcalc.sources.huggingface.multimodal import language_model

        text = language_model(c)
    raw = reader_of(where, text)(text)
    if text.model_type in PREDICTING:
        raw["predictors"] = next((text.data[key] for key in PREDICTORS if type(text.data.get(key)) is int), 0)
    if text is not c:
        from txcalc.sources.huggingface.multimodal import note_tie
        from txcalc.sources.huggingface.tower_registry import describe_towers

        note_tie(c, raw.get("head", {}).get("tied"))
        raw |= describe_towers(c, text, raw)
    raw |= _storage(c, text)
    _remarks(c, text, declared_type)
    c.report_unread_keys()
    return c, raw


def drop_keys(data: Table, where: str, ignore: Sequence[str]) -> tuple[Table, list[str]]:
    """A config without the keys that the user wants ignored, and a note for each. Errors: `InputError` for a missing
    key."""
    notes: list[str] = []
    for path in dict.fromkeys(ignore):
        *outer, key = path.split(".")
        tables: list[Any] = [data]
        for step in outer:
            tables.append(tables[-1].get(step) if isinstance(tables[-1], Mapping) else None)
        if not isinstance(tables[-1], Mapping) or key not in tables[-1]:
            raise InputError(where, [f"has no key {quote(path)} to ignore"])
        notes.append(f"ignored by --ignore: {printable(path)} = {quote(tables[-1][key])}")
        inner: Any = {name: value for name, value in tables[-1].items() if name != key}
        for step, table in zip(reversed(outer), reversed(tables[:-1]), strict=True):
            inner = {**table, step: inner}
        data = inner
    return data, notes


# Key names of the language model's config in remote code.
LANGUAGE = ("text_config", "llm_config", "language_config", "lm_config", "language")


def language_part(data: Table) -> str:
    """In a config of a type that is not supported, the key of a language model's config that is; "" if it has none."""
    if _named_type(data) in {*READERS, *WRAPPERS}:
        return ""
    return next((key for key in LANGUAGE if _named_type(data.get(key)) in READERS), "")


def _named_type(data: object) -> str:
    """The model type that a config names, or ""."""
    name = data.get("model_type") if isinstance(data, Mapping) else None
    return name if isinstance(name, str) else ""


# transformers' names of renamed classes.
RENAMED = {
    "MiniMaxM3ForCausalLM": "MiniMaxM3VLForCausalLM",
    "T5WithLMHeadModel": "T5ForConditionalGeneration",
}


def _mpt_gqa(data: Table) -> bool:
    """Whether a config of llm-foundry's MPT has grouped-query or multi-query attention."""
    attention, types = data.get("attn_config"), ("grouped_query_attention", "multiquery_attention")
    return isinstance(attention, Mapping) and attention.get("attn_type") in types


# Code that has the same model type (None: any) as other code: its type here, a test of the config's keys, and that
# test in words.
TYPES_BY_KEYS: tuple[tuple[str, str | None, Callable[[Table], Any], str], ...] = (
    ("eagle3", None,
     lambda of: "draft_vocab_size" in of and letters_of(class_of(of) or "") == "llamaforcausallm",
     "only such drafts have draft_vocab_size"),
    ("albef", None,
     lambda of: of.keys() >= {"fusion_layer", "encoder_width"} and of.get("add_cross_attention") is None,
     "only its code has fusion_layer and encoder_width"),
    ("blip_med", "bert",
     lambda of: "encoder_width" in of and of.get("add_cross_attention") is True,
     "only BLIP has encoder_width together with add_cross_attention"),
    ("mosaic_bert", "bert", lambda of: "alibi_starting_size" in of, "only its code has alibi_starting_size"),
    ("nomic_bert_own", "nomic_bert",
     lambda of: of.get("moe_every_n_layers"),
     "only its published code has moe_every_n_layers"),
    ("glmasr_original", "glmasr",
     lambda of: "lm_config" in of and "text_config" not in of,
     "only its published code has lm_config"),
    ("vibevoice_original", "vibevoice",
     lambda of: "decoder_config" in of and "text_config" not in of,
     "only its published code has decoder_config"),
    ("mpt_grouped", "mpt", _mpt_gqa, "only llm-foundry's MPT has grouped-query attention"),
)  # fmt: skip


# Keys older than transformers that change no size if there are no special tokens.
_OLD_KEYS = ("n_special", "predict_special_tokens")


def _foreign(data: Table, name: str) -> bool:
    """Whether a config with the fingerprint of this type comes from other code: it has a key that the type's class
    never wrote, or special tokens that code older than transformers added to the embedding."""
    if data.get("n_special") or {"auto_map", "rotary_emb_fraction"} & data.keys():
        return True
    expected = FINGERPRINTS[name].union(
        _OLD_KEYS, *(row.get("ignore", "").split() for row in IGNORED_KEYS.get(name, ()))
    )
    keys = (key for key, value in data.items() if value not in ([], {}) and not is_neutral(key, value))
    return any(key not in expected and metadata.is_unnamed(name, key) for key in keys)


def type_of(data: Table, where: str) -> tuple[str, list[str]]:
    """The model type of a config, and the assumption by which it was inferred: configs of transformers 2 have no model
    type, and some have a type that no library knows. Errors: `InputError`."""
    model_type, cls = data.get("model_type"), class_of(data) or ""
    whole = model_type in (None, *WRAPPERS) and isinstance(data.get("text_config"), Mapping)
    if letters_of(cls) in BY_CLASS and model_type != BY_CLASS[letters_of(cls)] and not whole:
        return BY_CLASS[letters_of(cls)], [f"model_type = {BY_CLASS[letters_of(cls)]!r}, which has the class {cls}"]
    for reader_type, shared, fits, why in TYPES_BY_KEYS:
        if shared in (None, model_type) and fits(data):
            return reader_type, [f"model_type = '{reader_type}': {why}"]
    if model_type is None and "medusa_num_heads" in data:
        return "medusa", []
    if isinstance(model_type, str):
        readable = model_type in READERS or model_type in WRAPPERS or model_type in REFUSED
        if readable or metadata.knows(model_type) or (model_type and "auto_map" in data):
            return model_type, []
    types = [kind for kind in metadata.types_of(RENAMED.get(cls, cls)) if kind in READERS or kind in WRAPPERS]
    if model_type is None:
        types += [kind for kind, (at, _) in READERS.items() if at in PUBLISHED and letters_of(cls) in named_after(kind)]
    if len(types) > 1:
        types = [kind for kind in types if letters_of(cls).startswith(letters_of(kind))]
    if len(types) == 1:
        return types[0], [f"model_type = {types[0]!r}, which has the class {cls}"]
    if not isinstance(model_type, str) or not model_type:
        fingerprint = next((name for name, keys in FINGERPRINTS.items() if keys <= data.keys()), "")
        if fingerprint and model_type is None and not cls and not _foreign(data, fingerprint):
            return fingerprint, [
                f"model_type = {fingerprint!r}, inferred from the keys: the config is older than model_type"
            ]
        got = ABSENT if "model_type" not in data else NULL if model_type is None else model_type
        like = next((name for name, keys in TYPICAL_KEYS.items() if keys <= data.keys()), "")
        file_kind = next((what for keys, what in OTHER_FILES.items() if keys <= data.keys()), "")
        if file_kind and not like:
            raise InputError(where, [f"is not a model's config: {file_kind}"])
        fix = f'its keys are like those of {like}: add "model_type": "{like}" if it is one' if like else ""
        raise InputError(where, [Fault("model_type", got, "the name of an architecture, such as 'llama'", fix)])
    return model_type, []


def check_class(c: Config) -> None:
    """A fault if `architectures[0]` is not a class of this model type: one of the two is wrong, or other code, with
    possibly other layers, defines the class."""
    cls = class_of(c.data)
    if cls is None or not metadata.knows(c.model_type):
        return
    types = metadata.types_of(RENAMED.get(cls, cls))
    spelled = {letters_of(name) for name in metadata.classes(c.model_type)}  # KimiK25 in its repository, Kimi_K25 here
    if not {c.model_type, WRAPPERS.get(c.model_type)} & set(types) and letters_of(cls) not in spelled:
        owner = f"that is a class of {types[0]}" if types else "that is a class of other code"
        expected = ", ".join([name for name in metadata.classes(c.model_type) if _reads(c, name)][:3])
        c.fault("architectures[0]", cls, f"a class of {c.model_type} such as {expected}", f"{owner}; --ignore "
                f"architectures reads transformers' {c.model_type}")  # fmt: skip


def _reads(c: Config, cls: str) -> bool:
    """Whether this type's reader accepts the class."""
    try:
        _read(config := Config({**c.data, "architectures": [cls]}, c.model_type, second_reading=True), "")
    except InputError:
        return False
    return "architectures[0]" not in config.faulty


def reader_of(where: str, c: Config) -> Any:
    """The function that reads a config of this model type. Errors: `InputError` says why there is none."""
    if c.model_type in REFUSED:
        raise InputError(
            where, [f"model_type is {c.model_type!r}, which is not read: {REFUSED[c.model_type]}{way_out(c)}"]
        )
    if c.model_type not in READERS:
        if metadata.knows(c.model_type):
            raise InputError(where, [f"model_type is {c.model_type!r}, which is not read: {_part(c)}{way_out(c)}"])
        if "auto_map" in c:
            raise InputError(
                where,
                [
                    f"model_type is {quote(c.model_type)}, whose code auto_map names and txcalc never runs (a .toml "
                    f"file can describe its layers; docs/reference/describing.md){_readable_part(c)}"
                ],
            )
        types = sorted({*READERS, *WRAPPERS})
        way = _readable_part(c) or way_out(c)
        raise UnknownName(where, "supported model_type", c.model_type, types, "see the README's list", way)
    return reader(c.model_type)


# Endings of the model types of a model's parts, after its own type.
PARTS = ("vision", "vision_model", "vision_encoder", "audio", "audio_model", "encoder", "text_model", "qformer")


def _part(c: Config) -> str:
    """Why a type of transformers has no reader here."""
    if c.model_type in WRAPPERS:
        return "it is a multimodal model where a language model is expected"
    whole = next((name for name in (*WRAPPERS, *READERS) if c.model_type in [f"{name}_{part}" for part in PARTS]), "")
    return f"it is a part of {whole} and is read in that model's config" if whole else "it has no reader yet"


def _readable_part(c: Config) -> str:
    """How `--ignore model_type` can read a config of unknown code: only its language model, or by its class name."""
    part = language_part(c.data)
    if part:
        return f"; --ignore model_type reads only its {part}, a {c.data[part]['model_type']}"
    cls = class_of(c.data)
    types = metadata.types_of(cls) if cls else []
    return f"; --ignore model_type reads it as a {types[0]}, which has the class {cls}" if len(types) == 1 else ""


def way_out(c: Config) -> str:
    """How to measure a model type that is not read, if transformers has it."""
    return "; show --via transformers measures what it can of its module" if metadata.knows(c.model_type) else ""


def _remarks(c: Config, text: Config, declared_type: str) -> None:
    """Add notes on keys that change no number; `declared_type` is the config's own model type."""
    if "auto_map" in c:
        owner = "transformers' own" if READERS.get(declared_type, ("",))[0] not in PUBLISHED else "the published"
        c.note(f"auto_map names code, which is not run: read as {owner} {declared_type}")
    factor = text.data.get("residual_multiplier", 1)
    if factor != 1:
        effect = "multiplies the output of every branch: it is not a parameter, and its FLOPs are not counted"
        c.note(f"residual_multiplier = {quote(factor)} {effect}")
    quantization = _quantization(c, text)
    if isinstance(quantization, Mapping):
        method = quantization.get("quant_method", "MLX" if "bits" in quantization else "a method it does not name")
        form = text.data.get("expert_dtype", quantization.get("expert_dtype"))
        if form in (None, "fp8", "fp4"):
            c.note(f"the checkpoint is quantised ({quote(method)}): --weights native counts its bytes")
        else:
            c.note(
                f"the checkpoint is quantised ({quote(method)}), with a separate format for experts ({quote(form)}): "
                "its published size is not counted"
            )


def _quantization(c: Config, text: Config) -> object:
    """The quantiser's settings; a fault if two places disagree."""
    places = [(at, key) for key in QUANTISED for at in (c, text) if at.data.get(key)]
    for at, key in places:
        at.ignore(key)
        if at.data[key] != places[0][0].data[places[0][1]]:
            at.fault(key, at.data[key], f"the value of {places[0][1]}")
    return places[0][0].data[places[0][1]] if places else None


def _storage(c: Config, text: Config) -> Raw:
    """The dtype and the quantisation of the checkpoint."""
    dtypes = (at.data.get(key) for key in ("dtype", "torch_dtype") for at in (text, c))
    dtype = str(next((name for name in dtypes if isinstance(name, str)), "bfloat16"))
    quantization = _quantization(c, text)
    raw: Raw = {"dtype": DTYPES.get(dtype.removeprefix("torch."), "bf16")}
    if dtype not in DTYPES:
        c.note(f"its dtype is {quote(dtype, 30)}, which transformers may not accept: {raw['dtype']} is counted")
    if quantization is None:
        return raw
    if not isinstance(quantization, Mapping):
        c.fault("quantization_config", quantization, "an object with quant_method and the method's settings")
        return raw
    experts = {"expert_dtype": text.data["expert_dtype"]} if text.data.get("expert_dtype") is not None else {}
    return {**raw, "quantization": {**quantization, **experts}}


def supported_types() -> dict[str, str]:
    """Every model type, with "exact" or the reason why it is refused."""
    support = {model_type: "exact" for model_type in (*READERS, *WRAPPERS)}
    return dict(sorted((support | {model_type: f"refused: {why}" for model_type, why in REFUSED.items()}).items()))
