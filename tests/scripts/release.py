"""What transformers' code says about each model type, as data: `python tests/scripts/release.py`.

Writes beside the readers
- `transformers_classes.json`: the classes of each model type (those that take its configuration),
- `transformers_keys.json`: the keys that the configuration and modelling code of a type names, by the kinds of values
  that its class takes for them, those that the code which all types share names, the model types of a configuration's
  tables, the sizes that a configuration class takes when it is told nothing, the row for padding of those whose table
  of tokens has one, and the texts of fields that take but a few.

A key counts as named where code has it as a field, an attribute of something called config, a keyword, or a text given
to getattr, hasattr, get, pop or setdefault: more than is used, never less. Needs transformers and torch; no weights.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import logging
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # type: ignore[attr-defined]

from txcalc.sources.huggingface.families import READERS, WRAPPERS
from txcalc.sources.huggingface.transformers_metadata import is_neutral

PLACE = Path(inspect.getfile(is_neutral)).parent
# Modules of transformers that read configs of every type.
SHARED = (
    "backbone_utils cache_utils configuration_utils masking_utils modeling_attn_mask_utils"
    " modeling_flash_attention_utils modeling_layers modeling_rope_utils modeling_utils"
)
LOOKUPS = {"getattr", "hasattr", "get", "pop", "setdefault", "setattr"}


@cache
def named_in(path: str) -> frozenset[str]:
    """The keys that a source file names."""
    return frozenset(_names(ast.parse(Path(path).read_text())))


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _last(node.value).endswith(("config", "cfg")):
            yield node.attr
        elif isinstance(node, ast.Call) and _last(node.func) in LOOKUPS and not _of_a_module(node):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
        elif isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            yield from _fields(node)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """What a configuration class has: annotated fields, attributes of self, parameters, and the texts in its tables."""
    for item in ast.walk(node):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id
        elif isinstance(item, ast.Attribute) and _last(item.value) == "self":
            yield item.attr
        elif isinstance(item, ast.arg | ast.keyword) and item.arg:
            yield item.arg
        elif isinstance(item, ast.Constant) and isinstance(item.value, str) and item.value.isidentifier():
            yield item.value
        elif isinstance(item, ast.FunctionDef):
            yield item.name  # a property


def _of_a_module(call: ast.Call) -> bool:
    """True for `getattr(module, "bias")` and the like, which asks a layer and no config."""
    return bool(call.args) and _last(call.args[0]) in ("module", "parent_module", "output_embeddings")


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def configurations() -> Iterator[tuple[str, type]]:
    """Every model type that has code, with its configuration class."""
    for model_type in sorted(CONFIG_MAPPING_NAMES):
        yield model_type, transformers.CONFIG_MAPPING[model_type]


def modelling(configuration: type) -> list[Path]:
    """The modelling code beside a configuration class."""
    return sorted(Path(inspect.getfile(configuration)).parent.glob("modeling_*.py"))


def classes(configuration: type) -> list[str]:
    """The public classes that take this configuration."""
    return sorted(
        name
        for file in modelling(configuration)
        for name, configs in taking(file).items()
        if configuration.__name__ in configs and not name.endswith("PreTrainedModel")
    )


@cache
def taking(file: Path) -> dict[str, set[str]]:
    """The public classes of a modelling module, with the configuration classes that each says it takes."""
    tree = ast.parse(file.read_text())
    nodes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def configs(name: str) -> set[str]:
        if name not in nodes:
            return set()
        for item in nodes[name].body:
            if isinstance(item, ast.AnnAssign) and _last(item.target) == "config":
                return {_last(node) for node in ast.walk(item.annotation)} - {""}
            if isinstance(item, ast.Assign) and any(_last(target) == "config_class" for target in item.targets):
                return {_last(item.value)}
        return next(filter(None, (configs(_last(base)) for base in nodes[name].bases)), set())

    return {name: configs(name) for name in nodes if not name.startswith("_")}


def keys_of(configuration: type) -> set[str]:
    """The keys that a type's code names."""
    files = {str(file) for file in modelling(configuration)}
    files |= {inspect.getfile(cls) for cls in configuration.__mro__ if "transformers.models" in cls.__module__}
    names = set().union(*(named_in(file) for file in files))
    names |= set(getattr(configuration, "attribute_map", {})) | set(getattr(configuration, "__dataclass_fields__", {}))
    return names


# A value of each kind.
PROBES: dict[str, Any] = {"n": None, "b": True, "i": 1, "f": 0.5, "s": "text", "l": [], "d": {}}


def kinds_of(configuration: type) -> dict[str, str]:
    """The kinds of values that a configuration takes for its fields, where it refuses some: what its validators pass,
    and texts where they pass a few. Another name of a field may not be null where that may not."""
    validators, by_field = getattr(configuration, "__validators__", {}), {}
    for field in dataclasses.fields(configuration):
        kinds = [kind for kind, value in PROBES.items() if _passes(validators.get(field.name, ()), value)]
        by_field[field.name] = "".join(kinds) + "s" * ("Literal[" in str(field.type) and "s" not in kinds)
    for alias, key in getattr(configuration, "attribute_map", {}).items():
        if key in by_field and "n" not in by_field[key]:
            by_field.setdefault(alias, "bifsld")
    return {key: kinds for key, kinds in by_field.items() if 0 < len(kinds) < len(PROBES)}


def words(configuration: type) -> dict[str, list[str]]:
    """The texts that a configuration takes for a field, where it takes a few."""
    by_field = {}
    for field in dataclasses.fields(configuration):
        kinds = [annotation for annotation in (field.type, *get_args(field.type)) if get_origin(annotation) is Literal]
        by_field[field.name] = [word for kind in kinds for word in get_args(kind) if isinstance(word, str)]
    return {key: few for key, few in by_field.items() if few}


def _passes(validators: Sequence[Callable[[Any], None]], value: Any) -> bool:
    try:
        for validator in validators:
            validator(value)
    except (TypeError, ValueError):
        return False
    return True


def parts(configuration: type) -> dict[str, str]:
    """The model types of the tables in a configuration, of those that are of one class."""
    tables = getattr(configuration, "sub_configs", {})
    return {key: cls.model_type for key, cls in tables.items() if getattr(cls, "model_type", "")}


def pads(configuration: type) -> bool:
    """Whether a type's table of tokens has a row for padding, which then must be one of its rows."""
    return any(_padded(node) for file in modelling(configuration) for node in ast.walk(ast.parse(file.read_text())))


def _padded(node: ast.AST) -> bool:
    """True for `nn.Embedding(config.vocab_size, width, self.padding_idx)` and its like."""
    if not (isinstance(node, ast.Call) and _last(node.func).endswith("Embedding") and node.args):
        return False
    rows = [*node.args[2:3], *(keyword.value for keyword in node.keywords if keyword.arg == "padding_idx")]
    is_padding = any(_last(row).endswith(("padding_idx", "pad_token_id", "pad_index")) for row in rows)
    return is_padding and _last(node.args[0]).endswith(("vocab_size", "num_embeddings", "n_words"))


def sizes(configuration: type) -> dict[str, Any]:
    """The whole numbers above 0 that a configuration has when it is told nothing."""
    try:
        defaults = configuration()
    except Exception as error:
        print(f"{configuration.__name__} has no defaults: {error}", file=sys.stderr)
        return {}
    numbers = {key: value for key, value in vars(defaults).items() if type(value) is int and value > 0}
    for alias, key in getattr(configuration, "attribute_map", {}).items():
        value = getattr(defaults, key, None)
        if type(value) is int and value > 0:
            numbers[alias] = value
    return {key: value for key, value in sorted(numbers.items()) if not is_neutral(key, value)}


def _keylike(name: str) -> bool:
    """True for what may be a key of a config that says a size."""
    return name.isidentifier() and name.lower() == name and not is_neutral(name, 1)


def write(name: str, data: Any) -> None:
    """One line per model type."""
    rows = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in data.items()]
    (PLACE / name).write_text("{\n" + ",\n".join(rows) + "\n}\n")


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    root = Path(inspect.getfile(transformers)).parent
    shared = set().union(*(named_in(str(root / f"{name}.py")) for name in SHARED.split()))
    shared |= set(transformers.PreTrainedConfig.__dataclass_fields__)
    by_type, keys, inner, counts, rows, spelled = {}, {}, {}, {}, {}, {}
    every = dict(configurations())
    inside = ("vision", "audio", "text", "codec", "mimi")
    read = {*READERS, *WRAPPERS} | {model_type for model_type in every if any(word in model_type for word in inside)}
    read |= {model_type for name in read & every.keys() for model_type in parts(every[name]).values()}
    for model_type, configuration in every.items():
        by_type[model_type] = classes(configuration)
        if model_type in read:
            keys[model_type] = by_kind(configuration, shared)
            inner[model_type] = parts(configuration)
            counts[model_type] = sizes(configuration)
            spelled[model_type] = words(configuration)
            if pads(configuration):
                rows[model_type] = getattr(configuration, "pad_token_id", None)
    version = {"": [transformers.__version__]}
    write("transformers_classes.json", version | by_type)
    tables = {"named": keys, "parts": {key: row for key, row in inner.items() if row}, "sizes": counts, "padding": rows}
    tables["words"] = {key: row for key, row in spelled.items() if row}
    write("transformers_keys.json", {"": sorted(filter(_keylike, shared)), **tables})


def by_kind(configuration: type, shared: set[str]) -> dict[str, str]:
    """The keys that a type's code names, after the kinds of values that its class takes; of those that it takes as they
    are, the ones that may say a size and that not all types share."""
    typed = kinds_of(configuration)
    by_kinds = defaultdict(list)
    for key in sorted(typed.keys() | set(filter(_keylike, keys_of(configuration) - shared))):
        by_kinds[typed.get(key, "")].append(key)
    return {kinds: " ".join(names) for kinds, names in sorted(by_kinds.items())}


if __name__ == "__main__":
    main()
