"""Which sizes of a config.json transformers' configuration class takes from the file, and which from its own defaults.

transformers builds a model of any file: it fills a size that is absent with the class's default and keeps a key that it
does not know as an attribute that nothing reads. Here each such key is a fault or a listed assumption.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from txcalc.errors import ABSENT, NULL, Fault, quote
from txcalc.sources.huggingface import transformers_metadata as metadata
from txcalc.sources.huggingface.families import PREDICTORS
from txcalc.sources.huggingface.keys import COMMON_WORDS, printable
from txcalc.sources.huggingface.transformers_metadata import TRAINING_NUMBERS, elsewhere, ignores, is_neutral

# Names that configuration classes and config files give to one size.
SPELLINGS = (
    ("hidden_size", "hidden_sizes", "d_model", "n_embd", "dim", "embed_dim", "embed_dims", "encoder_hidden_size"),
    ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "depths", "encoder_layers", "decoder_layers"),
    ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads"),
    ("intermediate_size", "d_ff", "ffn_dim", "ffn_hidden_size", "mlp_dim", "encoder_ffn_dim", "decoder_ffn_dim"),
    ("vocab_size", "n_vocab", "padded_vocab_size"),
    ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num"),
)
SPELLED = frozenset(name for names in SPELLINGS for name in names)
PRIMARY = SPELLED.difference(SPELLINGS[-1])  # a file must give these itself
FACTORS = frozenset(("ratio", "multiplier", "mult", "expand", "expansion"))  # words of keys that multiply a size
INPUT_SIZES = ("image_size",)  # sizes of the model's input, if its class has no such key
MAX_LISTED_KEYS = 8  # per line


class KeyCheck(NamedTuple):
    """What a file leaves open: `faults` prevent building the model, `assumptions` are filled in by transformers."""

    faults: list[Fault]
    assumptions: list[str]


def check_keys(config: Any, data: Mapping[str, object]) -> KeyCheck:
    """Compares a configuration of transformers with the file that it was made from."""
    result = KeyCheck([], [])
    _check(config, data, "", (type(config).model_type,), result)
    return result


def _check(config: Any, data: Mapping[str, object], path: str, type_names: Sequence[str], result: KeyCheck) -> None:
    """Checks one object of a file, at `path`; `type_names` are its names in the table of ignored keys."""
    sub_configs: dict[str, Any] = {name: getattr(config, name, None) for name in type(config).sub_configs}
    parts = {name: part for name, part in sub_configs.items() if hasattr(part, "to_dict")}
    moved = {name: _moved_keys(part, config, data) for name, part in parts.items() if data.get(name) is None}
    read_by_part = {key for keys in moved.values() for key in keys}
    unread = {
        key: value
        for key, value in data.items()
        if key not in read_by_part and _is_unread(config, key, data, type_names)
    }
    aliases = type(config).attribute_map
    present = {aliases.get(key, key) for key, value in data.items() if value is not None}
    absent = [name for name in _defaults(type(config)) if aliases.get(name, name) not in present and name not in parts]
    _check_unread(config, unread, path, absent, result)
    _check_absent(config, data, path, absent, result)
    for name, part in parts.items():
        inner, cls = data.get(name), type(part).__name__
        if isinstance(inner, Mapping):
            _check(part, inner, f"{path}{name}.", (f"{type_names[0]}/{name}", type(part).model_type), result)
        elif moved[name]:
            _check(part, {key: data[key] for key in moved[name]}, path, (type(part).model_type,), result)
        elif path:
            result.assumptions.append(f"{path}{name} is absent: its sizes are the defaults of {cls}")
        else:
            got = NULL if name in data else ABSENT
            result.faults.append(Fault(name, got, f"an object, the config of that part ({cls})"))


def _check_unread(
    config: object, unread: Mapping[str, object], path: str, absent: Sequence[str], result: KeyCheck
) -> None:
    """Keys that the class does not name: a fault if the value could be a size, else one line for all."""
    cls, ignored = type(config).__name__, list[str]()
    for key, value in unread.items():
        if not could_be_size(key, value):
            ignored.append(f"{printable(key)} = {quote(value, 30)}")
        elif key in PREDICTORS:
            result.assumptions.append(f"{path}{key} = {quote(value)}: multi-token-prediction layers are not built")
        else:
            fix = _suggestion(printable(key), path, absent)
            result.faults.append(Fault(path + printable(key), value, f"a key of {cls}", fix))
    if ignored:
        suffix = f" and {len(ignored) - MAX_LISTED_KEYS:,} more" if len(ignored) > MAX_LISTED_KEYS else ""
        where = f" in {path[:-1]}" if path else ""
        names = ", ".join(ignored[:MAX_LISTED_KEYS]) + suffix
        result.assumptions.append(f"ignored{where}, since {cls} has no such keys: {names}")


def _check_absent(config: Any, data: Mapping[str, object], path: str, absent: Sequence[str], result: KeyCheck) -> None:
    """Keys of the class that the file lacks: a fault for a primary size at the top, else an assumption."""
    cls, defaults = type(config), _defaults(type(config))
    for name in absent:
        value = getattr(config, name, None)
        adds_weights = isinstance(value, bool) and ("bias" in name or name.startswith("tie_"))
        if is_neutral(name, 1) or not (could_be_size(name, value) or adds_weights):
            continue
        primary = PRIMARY.intersection((name, cls.attribute_map.get(name, name)))
        if not path and primary and defaults[name] is not None:
            got, fix = NULL if name in data else ABSENT, f"transformers would take {quote(value)}"
            result.faults.append(Fault(name, got, "a size that the file itself gives", fix))
        else:
            result.assumptions.append(f"{path}{name} = {quote(value)}, the default of {cls.__name__}")


def _defaults(cls: Any) -> dict[str, Any]:
    """The keys that a configuration class names, with their defaults."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "self"}


def _moved_keys(part: object, config: object, data: Mapping[str, object]) -> list[str]:
    """Keys of a part that the file has at the top level, without an object for the part, and that the class moves."""
    part_keys, config_keys = _defaults(type(part)), _defaults(type(config))
    return [
        key for key in data if key in part_keys and key not in config_keys and getattr(part, key, None) == data[key]
    ]


def _is_unread(config: Any, key: str, data: Mapping[str, object], type_names: Sequence[str]) -> bool:
    """Whether transformers' code of this type does not read a key that may change a size."""
    cls, value = type(config), data[key]
    if is_neutral(key, value) or key in INPUT_SIZES or key in TRAINING_NUMBERS:
        return False
    if key in _defaults(cls) or key in cls.attribute_map or elsewhere(cls.model_type, key, data):
        return False
    if key not in vars(config):  # the class converted it, such as rope_theta to rope_parameters
        return False
    if metadata.names(cls.model_type, key) or (key not in SPELLED and not metadata.is_unnamed(cls.model_type, key)):
        return False
    return not any(ignores(place, key, value) for place in type_names) and not _repeats(config, key, value, data)


def _repeats(config: Any, key: str, value: object, data: Mapping[str, object]) -> bool:
    """Whether the file has the same value under a key of the class that is a synonym or shares a word."""
    words = set(key.split("_")) - COMMON_WORDS
    synonyms = next((set(names) for names in SPELLINGS if key in names), set[str]())
    class_keys = _defaults(type(config)).keys() | type(config).attribute_map.keys()
    return any(
        other_key in class_keys and type(data[other_key]) is type(value) and data[other_key] == value
        for other_key in data
        if other_key in synonyms or words & set(other_key.split("_"))
    )


def could_be_size(key: str, value: object) -> bool:
    """A whole number above 0, a list or an object with one, or a factor of a size."""
    if isinstance(value, bool | float):
        return isinstance(value, float) and FACTORS.intersection(key.split("_")) != set()
    if isinstance(value, int):
        return value > 0
    if isinstance(value, Mapping):
        return any(could_be_size(inner, item) for inner, item in value.items())
    return isinstance(value, list | tuple) and any(could_be_size(key, item) for item in value)


def _suggestion(key: str, path: str, absent: Sequence[str]) -> str:
    """How to mend an unread key: the absent key that it may be a spelling of, and --ignore."""
    synonyms = next((names for names in SPELLINGS if key in names), ())
    near = [name for name in synonyms if name in absent] or difflib.get_close_matches(key, absent, 1, 0.6)
    ignore = f"--ignore {path}{key} if it changes no size"
    return f"did you mean {near[0]}? {ignore}" if near else ignore
