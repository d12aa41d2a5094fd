"""Which reader reads a model type, and why some are not read: what `families.json` says.

readers        names of readers, by module; `recorded` those read by what transformers' classes were seen to run
               (`traced_types.json`), `like` those read by the reader of another type, `called` those by a function of
               another name
by class       model types of which a file of another type is one by its class: code that people run under the name of
               what it extends
fingerprints   sets of keys that identify the type of files older than `model_type`: keys that the configuration class
               of one type alone wrote; the first that fits
standalone towers  types of towers that stand by themselves, by that of a whole which has them
typical keys   keys by which a file without a model type looks like one of a type, the surest first: others may have
               them too, so it is asked about, never read
other files    by keys that they have: files of other kinds that may be called config.json, and what is read instead
own text       multimodal types whose language model's type is the type's own; `other text`: the text model type, of a
               config that does not name one, of the others; `text defaults` what a text_config gets from the whole's
               class before its own is asked
flat           those whose configs, or older ones, hold the text's keys beside vision_config, with the whole's own keys
ties           whose `tie_word_embeddings` ties the head of a multimodal type (`multimodal`)
wholes         where multimodal types of which transformers has no class have their language model (`remote_multimodal`)
like llava     those whose code follows LLaVA's, by the type of their language model: a class of it with a tower, a
               projector and a head without a bias; `hidden` are beginnings of keys of the whole, `absent` what the code
               of a type that they follow did where a config lacks a key
aliases        types whose published code has the layers of another (`aliases`)
heads, activations  what a class has by the ending of its name, and transformers' names of activations
refused        model types that are known and not read, by the reason
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from txcalc.parts.options import Raw
from txcalc.sources.huggingface.transformers_metadata import table

_TABLE = table("families.json")


def by_name(groups: Mapping[str, str]) -> dict[str, str]:
    """Each name with the key under which it stands."""
    return {name: key for key, names in groups.items() for name in names.split()}


WHOLES: dict[str, Raw] = _TABLE["wholes"]
_LLAVA = dict(_TABLE["like llava"])
_HIDDEN, _ABSENT = _LLAVA.pop("hidden"), _LLAVA.pop("absent")
for _text, _rows in _LLAVA.items():
    _row = {"texts": _text, "hidden": _HIDDEN, "absent": _ABSENT.get(_text, {})}
    WHOLES |= {name: {**_row, "classes": classes} for name, classes in _rows.items()}
STANDALONE_TOWERS = by_name(_TABLE["standalone towers"])
ALIASES: dict[str, Raw] = _TABLE["aliases"]

# model_type: (module, function); those in the line of Llama are rows of `decoders.json`, in BERT's of `encoders.json`.
READERS: dict[str, tuple[str, str]] = {
    **{name: (module, name.replace("-", "_")) for name, module in by_name(_TABLE["readers"]).items()},
    **{
        name: ("remote_decoders" if "remote" in row else "decoders", "decoder")
        for name, row in table("decoders.json").items()
    },
    **dict.fromkeys(table("encoders.json"), ("encoder", "encoder")),
    **dict.fromkeys(_TABLE["recorded"].split(), ("traced_types", "recorded")),
    **dict.fromkeys(STANDALONE_TOWERS, ("tower_registry", "standalone_tower")),
    **dict.fromkeys(WHOLES, ("remote_multimodal", "language")),
    **dict.fromkeys(ALIASES, ("aliases", "alias")),
    **{name: (module, function) for name, (module, function) in _TABLE["called"].items()},
}
READERS |= {name: READERS[like] for name, like in by_name(_TABLE["like"]).items()}
# Modules whose readers follow code that is published beside weights, not transformers'.
PUBLISHED = {"aliases", "drafts", "flash_linear_attention"}
PUBLISHED |= {module for module, _ in READERS.values() if module.startswith("remote_")}
BY_CLASS = by_name(_TABLE["by class"])
FINGERPRINTS = {name: frozenset(keys.split()) for name, keys in _TABLE["fingerprints"].items()}
TYPICAL_KEYS = {name: frozenset(keys.split()) for name, keys in _TABLE["typical keys"].items()}

OTHER_FILES = {frozenset(keys.split()): what for keys, what in _TABLE["other files"].items()}

# How many multi-token-prediction layers there are, and the model types whose layers are known to be like DeepSeek-V3's.
PREDICTORS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
PREDICTING = frozenset({"deepseek_v3", "glm4_moe", "glm_moe_dsa"})

WRAPPERS = {name: f"{name}_text" for name in _TABLE["own text"].split()} | by_name(_TABLE["other text"])
TEXT_DEFAULTS: dict[str, dict[str, int]] = _TABLE["text defaults"]
FLAT: dict[str, list[str]] = _TABLE["flat"]
TIES: Raw = _TABLE["ties"]
REFUSED = by_name(_TABLE["refused"])


def reader(model_type: str) -> Callable[[Any], Raw]:
    """The function that reads a config of this model type, which is among `READERS`."""
    module, function = READERS[model_type]
    read_config: Callable[[Any], Raw] = getattr(import_module(f"txcalc.sources.huggingface.{module}"), function)
    return read_config
