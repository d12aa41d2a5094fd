"""Which reader reads a model type, and why some are not read. The tables of `families.json`:

readers        model types by module, whose readers have the type's name; `recorded`: types read from
               `traced_types.json`; `like`: types with the reader of another type; `called`: other function names
by class       model types identified by their class, in configs that name another `model_type`
fingerprints   sets of keys that identify the type of configs older than `model_type`; the first match counts
standalone towers  types of single towers, by the multimodal type that has them
typical keys   sets of keys that make a type likely where a config names none; the error suggests it
other files    sets of keys of other files called config.json, with a hint what to read instead
own text       multimodal types whose language model has the type NAME_text; `other text`: the types of other language
               models; `text defaults`: values that the multimodal class sets in text_config
flat           multimodal types whose configs (also older ones) have the text's keys at the top level, with the keys
               that are not the text's
ties           which `tie_word_embeddings` ties the head of a multimodal type (`multimodal`)
wholes         where multimodal types of remote code have their language model (`remote_multimodal`)
like llava     those with LLaVA's code, by the type of their language model: they add a tower and a projector, and the
               head has no bias; `hidden`: prefixes of keys that are not the language model's; `absent`: values for
               absent keys
aliases        types of remote code with the layers of another type (`aliases`)
heads, activations  heads by the ending of the class name; transformers' names of activations
refused        model types that are not read, by the reason
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from txcalc.parts.options import Raw
from txcalc.sources.huggingface.transformers_metadata import table

_TABLE = table("families.json")


def by_name(groups: Mapping[str, str]) -> dict[str, str]:
    """The key of each name."""
    return {name: key for key, names in groups.items() for name in names.split()}


WHOLES: dict[str, Raw] = _TABLE["wholes"]
_LLAVA = dict(_TABLE["like llava"])
_HIDDEN, _ABSENT = _LLAVA.pop("hidden"), _LLAVA.pop("absent")
for _text, _rows in _LLAVA.items():
    _row = {"texts": _text, "hidden": _HIDDEN, "absent": _ABSENT.get(_text, {})}
    WHOLES |= {name: {**_row, "classes": classes} for name, classes in _rows.items()}
STANDALONE_TOWERS = by_name(_TABLE["standalone towers"])
ALIASES: dict[str, Raw] = _TABLE["aliases"]

DECODERS: dict[str, Raw] = table("decoders.json")


def decoder_row(name: str) -> Raw:
    """A row of `decoders.json`, with the fields of the type that it is `like`."""
    row = {**DECODERS[name]}
    while "like" in row:
        row = DECODERS[row.pop("like")] | row
    return row


# model_type: (module, function); `decoders.json` has types close to Llama, `encoders.json` those close to BERT.
READERS: dict[str, tuple[str, str]] = {
    **{name: (module, name.replace("-", "_")) for name, module in by_name(_TABLE["readers"]).items()},
    **{name: ("remote_decoders" if decoder_row(name).get("remote") else "decoders", "decoder") for name in DECODERS},
    **dict.fromkeys(table("encoders.json"), ("encoder", "encoder")),
    **dict.fromkeys(_TABLE["recorded"].split(), ("traced_types", "recorded")),
    **dict.fromkeys(STANDALONE_TOWERS, ("tower_registry", "standalone_tower")),
    **dict.fromkeys(WHOLES, ("remote_multimodal", "language")),
    **dict.fromkeys(ALIASES, ("aliases", "alias")),
    **{name: (module, function) for name, (module, function) in _TABLE["called"].items()},
}
READERS |= {name: READERS[like] for name, like in by_name(_TABLE["like"]).items()}
# Modules whose readers follow remote code, not transformers'.
PUBLISHED = {"aliases", "drafts"}
PUBLISHED |= {module for module, _ in READERS.values() if module.startswith("remote_")}
BY_CLASS = by_name(_TABLE["by class"])
FINGERPRINTS = {name: frozenset(keys.split()) for name, keys in _TABLE["fingerprints"].items()}
TYPICAL_KEYS = {name: frozenset(keys.split()) for name, keys in _TABLE["typical keys"].items()}

OTHER_FILES = {frozenset(keys.split()): what for keys, what in _TABLE["other files"].items()}

# Key names of the number of multi-token-prediction layers; the model types whose MTP layers are DeepSeek-V3's.
PREDICTORS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
PREDICTING = frozenset({"deepseek_v3", "glm4_moe", "glm_moe_dsa"})

WRAPPERS = {name: f"{name}_text" for name in _TABLE["own text"].split()} | by_name(_TABLE["other text"])
TEXT_DEFAULTS: dict[str, dict[str, int]] = _TABLE["text defaults"]
FLAT: dict[str, list[str]] = _TABLE["flat"]
TIES: Raw = _TABLE["ties"]
REFUSED = by_name(_TABLE["refused"])


def reader(model_type: str) -> Callable[[Any], Raw]:
    """The function that reads a config of this model type, one of `READERS`."""
    module, function = READERS[model_type]
    read_config: Callable[[Any], Raw] = getattr(import_module(f"txcalc.sources.huggingface.{module}"), function)
    return read_config
