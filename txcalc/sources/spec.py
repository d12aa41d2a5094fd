"""The keys of a description: their checks and defaults, and changes of a description by key.

`resolve` checks a description against these tables. Numbers that are not ints (symbols, arrays) come from `algebra` and
`sweep`, never from a user, and are not checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from typing import Any

from txcalc.description import MAX_LAYERS as MAX_LAYERS, Description, StackSpec, layers as layers
from txcalc.errors import InputError, UnknownName, quote
from txcalc.parts.mechanisms import ALL, ATTENTIONS, PARTS as PARTS, options, parts_of as parts_of

# Checks of keys, re-exported for readers.
from txcalc.parts.options import (
    ACTIVATIONS as ACTIVATIONS,
    MAX_SIZE as MAX_SIZE,
    REQUIRED as REQUIRED,
    Check as Check,
    Field as Field,
    Raw,
    Table,
    Wrong as Wrong,
    biases as biases,
    count as count,
    flag as flag,
    one_of as one_of,
    real as real,
    size as size,
    tables as tables,
    text as text,
    texts as texts,
    up_to as up_to,
)
from txcalc.symbols import BY_LETTER, OTHER_NAMES

MAX_KINDS = 1000  # of layers


class Sections(Mapping[str, Mapping[str, Field]]):
    """The keys of each table of a description; "" is the top level. Options are loaded when asked for."""

    def __getitem__(self, name: str) -> Mapping[str, Field]:
        return options(name).table() if name else StackSpec.table()

    def __iter__(self) -> Iterator[str]:
        yield from ("", *ALL)

    def __len__(self) -> int:
        return 1 + len(ALL)


IDENTITY = Description.table()
SECTIONS = Sections()
ALWAYS = ("", "norm", "positions", "embedding", "head")  # sections that every stack has


# Old names of keys, which are still read.
RENAMED = {"norm.abreast": "norm.parallel", "beside": "undescribed_tower_params"}


def rename_keys(raw: Table, table: str = "") -> Raw:
    """A description with old names of keys replaced, except where it has both names."""
    result: Raw = {}
    for key, value in raw.items():
        new = RENAMED.get(f"{table}.{key}" if table else key, "").rpartition(".")[2]
        name = new if new and new not in raw else key
        result[name] = rename_keys(value, key) if isinstance(value, Mapping) else value
    return result


def letter_path(key: str, raw: Table, option: str = "--set") -> str:
    """The dotted path of a key: a letter of `symbols`, the name of a key, a config's name for it, or a path.

    Errors: `InputError` of `option`
    """
    key = RENAMED.get(key, key)
    if key in BY_LETTER:
        if not BY_LETTER[key].key:
            raise InputError(option, [f"{key} ({BY_LETTER[key].meaning}) belongs to the workload, not to the model"])
        key = BY_LETTER[key].key
    attention = next((name for name in ATTENTIONS if isinstance(raw.get(name), Mapping)), "attention")
    if key.startswith("attention.") and key.split(".")[1] in SECTIONS[attention]:
        return f"{attention}.{key.split('.')[1]}"
    if key == "feed_forward.d_ff" and "feed_forward" not in raw and "experts" in raw:
        return "experts.d_ff"
    if "." in key or key in IDENTITY or key in SECTIONS[""]:
        return key
    paths = [f"{name}.{key}" for name in SECTIONS if name in raw and key in SECTIONS[name]]
    if len(paths) > 1 and key in SECTIONS[attention] and key not in SECTIONS["attention"]:
        raise InputError(option, [f"{key} is a key of several tables ({' or '.join(paths)}?)"])
    for section in dict.fromkeys((attention, "attention", *filter(None, SECTIONS))):
        if key in SECTIONS[section] and (section in raw or section in ALWAYS):
            return f"{section}.{key}"
    if key in OTHER_NAMES:
        return letter_path(OTHER_NAMES[key], raw, option)
    if sections := [name for name in SECTIONS if name and key in SECTIONS[name]]:
        raise InputError(option, [f"{key} is a key of a table that the model lacks: {sections[0]}.{key}=… adds it"])
    if key in SECTIONS:
        raise InputError(option, [f"{key} is a table, set its keys: {key}.{next(iter(SECTIONS[key]))}=…"])
    letters = [symbol for symbol in BY_LETTER if BY_LETTER[symbol].key]
    letters += sorted({name for fields in SECTIONS.values() for name in fields})
    raise UnknownName(option, "key", key, letters, "letters: " + " ".join(letters[:12]))


def scalar(value: object) -> Any:
    """A scalar of NumPy or PyTorch, whose products overflow, as a Python number; other values unchanged."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def change_keys(raw: Table, changes: Table) -> Raw:
    """A description with keys changed. A letter or a bare name is changed wherever it is set (in every layer kind), or
    set in the whole stack. A key of another attention (`latent.kv_rank`) replaces the model's attention, but keeps its
    query heads, window, sinks and gate unless they are changed, too.

    Errors: `InputError` if the description lists leaves with fixed sizes; if the replaced attention has a feature that
    the new one lacks
    """
    result = deepcopy(dict(raw))
    written = _written(result)
    paths = set[str]()
    for key, value in changes.items():
        path = letter_path(key, result)
        paths.add(path)
        if written and path.split(".")[0] not in IDENTITY:
            why = f"which does not change the sizes written out in {written} (change the model's config.json instead)"
            raise InputError("--set", [f"{key} is {quote(value)}, {why}"])
        tables = [result]
        if path != key:
            tables += [t for t in (result.get("encoder"), result.get("decoder")) if isinstance(t, dict)]
            for table in list(tables):
                tables += [t for t in (table.get("layer") or {}).values() if isinstance(t, dict)]
        steps = path.split(".")
        for table in [t for t in tables if sets(t, steps)] or [result]:
            _put(table, steps, value)
    _replace_attention(result, raw, paths)
    return result


KEPT = ("n_heads", "window", "sinks", "gate")  # keys that a new attention keeps
SIZES = ("n_kv_heads", "d_head")  # keys that a new attention has by other names


def _replace_attention(result: Raw, before: Table, paths: Collection[str]) -> None:
    """Remove the attention that changes replace.

    Errors: `InputError` for a feature that the new one lacks, and for layer kinds with their own attention
    """
    for added in [name for name in ATTENTIONS if name in result and name not in before]:
        for name in ("attention", *ATTENTIONS):
            if not (name in before and isinstance(result.get(name), dict)):
                continue
            kinds = [kind for kind, layer in result.get("layer", {}).items() if name in layer]
            if kinds:
                mend = "write the model by export --to toml, and change it there"
                raise InputError("--set", [f"layers of kind {kinds[0]} have their own {name} ({mend})"])
            replaced = result.pop(name)
            shared = {key: replaced[key] for key in KEPT if key in replaced and key in SECTIONS[added]}
            for key in replaced.keys() - shared.keys():
                path = f"{name}.{key}"
                if path in paths or (key not in SIZES and replaced[key] != SECTIONS[name][key].default):
                    raise InputError("--set", [f"{path} is {quote(replaced[key])}, which [{added}] does not have"])
            result[added] = shared | result[added]


def with_user_defaults(raw: Table, where: str, unchanged: Table | None = None) -> Raw:
    """A user's description with the defaults of inline text and tables: a decoder's `feed_forward` is gated, and a
    decoder without a vocabulary has no final norm.

    Errors: `InputError` for F = 4·D without `gated`: the classic block with this size is not gated. No error if the
    description before changes (`unchanged`) has another F.
    """
    result = deepcopy(dict(raw))
    if inner := _classic_width(raw if unchanged is None else unchanged) and _classic_width(raw):
        mend = "add the word gated or plain; in a table, feed_forward.gated = true or false"
        fault = f"F = {inner:,} is 4·D: is it gated, or plain as in the classic block? ({mend})"
        raise InputError(where, [fault])
    for feed_forward in list(_without_gated(result)):
        feed_forward[0]["gated"] = True
    return _with_final_norm(result, False)


def _classic_width(raw: Table) -> int:
    """F of a `feed_forward` that has F = 4·D and no key `gated`; 0 if there is none."""
    width = raw.get("d_model")
    for ffns in _without_gated(raw):
        inner = next((table["d_ff"] for table in reversed(ffns) if "d_ff" in table), None)
        if type(width) is int and type(inner) is int and inner == 4 * width:
            return inner
    return 0


def stating_defaults(raw: Table) -> Raw:
    """A reader's description, which is not gated and has a final norm by default, with these values stated."""
    result = deepcopy(dict(raw))
    for feed_forward in list(_without_gated(result)):
        feed_forward[0]["gated"] = False
    return _with_final_norm(result, True)


def _without_gated(raw: Table) -> Iterator[list[Raw]]:
    """For each layer kind of a decoder its `feed_forward` tables, the outermost first, if none has `gated`. Encoders
    and vision models are not gated by default."""
    if raw.get("kind", "decoder") != "decoder":
        return
    layers = raw["layer"] if isinstance(raw.get("layer"), dict) else {}
    for kind in layers or ("",):
        inner = (table.get("feed_forward") for table in (raw, layers.get(kind)) if isinstance(table, dict))
        feed_forward = [table for table in inner if isinstance(table, dict)]
        if feed_forward and not any("gated" in table for table in feed_forward):
            yield feed_forward


def _with_final_norm(raw: Raw, final: bool) -> Raw:
    """A description with `final` stated if it is a decoder without a vocabulary; post-norm has no final norm."""
    headless = raw.get("kind", "decoder") == "decoder" and not {"vocab_size", "encoder"} & raw.keys()
    norm = raw.get("norm", {})
    if not headless or not isinstance(norm, dict):
        return raw
    return {**raw, "norm": {"final": final and norm.get("place") != "post", **norm}}


def _written(raw: Table) -> str:
    """The key of a description that lists leaves, or ""."""
    for half in (raw, raw.get("encoder"), raw.get("decoder")):
        for table in (half, *(half.get("layer") or {}).values()) if isinstance(half, Mapping) else ():
            if keys := [key for key in ("around", "pieces") if isinstance(table, Mapping) and table.get(key)]:
                return keys[0]
    return ""


def sets(table: object, keys: list[str]) -> bool:
    """Whether a table has a value under these keys."""
    for key in keys:
        if not isinstance(table, Mapping) or key not in table:
            return False
        table = table[key]
    return True


def _put(table: Raw, keys: list[str], value: object) -> None:
    for key in keys[:-1]:
        inner = table.get(key)
        if not isinstance(inner, dict):
            inner = table[key] = {}
        table = inner
    table[keys[-1]] = value


def merge(base: Table, over: Table) -> Raw:
    """`base` with the values of `over`, table by table."""
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        result[key] = merge(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result
