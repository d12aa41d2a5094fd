"""Types whose leaves were traced from transformers' classes; each size is a formula of the config's keys.

`traced_types.json` (made by `tests/scripts/recorded.py`) has for every class the keys of variable sizes, the keys with
one supported value, the keys that change nothing, and the leaves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from txcalc.errors import ABSENT
from txcalc.parts.options import Table
from txcalc.sources.expressions import read_once
from txcalc.sources.huggingface import transformers_metadata as metadata
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.keys import REQUIRED
from txcalc.sources.huggingface.leaf_list import leaf, leaf_stack

# Sizes that a config must give.
PRIMARY = frozenset(
    ("hidden_size", "d_model", "num_hidden_layers", "vocab_size", "num_attention_heads", "intermediate_size")
)


def recorded(c: Config) -> Raw:
    """A config read by the row of its class."""
    classes, names = metadata.table("traced_types.json")[c.model_type], c.data.get("architectures")
    c.ignore("architectures", "stage_names", "out_features", "out_indices")
    cls = names[0] if isinstance(names, list) and names else next(iter(classes))
    if not isinstance(cls, str) or cls not in classes:
        c.fault("architectures[0]", cls, f"one of {', '.join(classes)}", "other classes are not supported")
        cls = next(iter(classes))
    row = classes[cls]
    if row.get("named") and not names:
        c.fault("architectures", names, f"[{cls!r}]", "without it transformers uses another class")
    at = {"": c}
    for table in dict.fromkeys(path.rpartition(".")[0] for path in (*row["keys"], *row["pinned"], *row["free"])):
        at[table] = at.get(table) or c.nested(table, c.model_type, {})
    sizes = _sizes(at, row)
    acts = {path: _of(at, path).activation(_last(path), default=default) for path, default in row["acts"].items()}
    for path, only in row["pinned"].items():
        _require(_of(at, path), _last(path), only)
    for path in row["free"]:
        inner, key = _of(at, path), _last(path)
        inner.ignore(key)
        if key in inner and inner.data[key] is None:
            inner.fault(key, None, "a value", f"transformers' {c.model_type} refuses null")

    def value(text: str) -> int:
        number = read_once(text).evaluate(lambda name: sizes[name])
        if number.denominator != 1:
            path = text.rpartition("/")[2]
            path = path if path in sizes else next(name for name in read_once(text).names)
            fault = _of(at, path)
            fault.fault(_last(path), sizes[path], "a value that makes all sizes whole", f"{text} is one of them")
        return int(number)

    for quotient in row.get("whole", ()):  # quotients that occur only in products
        value(quotient)
    layer, around = list[Raw](), list[Raw]()
    for name, kind, bias, form, shape, groups, where, times, runs in row["pieces"]:
        if form == "held" and value(shape[0]) == 0:
            continue
        item = leaf(name, acts[form[1:]] if form[0] == "$" else form, *map(value, shape), kind=kind)
        positions = {"keys": "batch"} if form == "scores" else {"at": [int(where[0]), value(where[1]), int(where[2])]}
        item |= {**positions, "runs": value(runs), "groups": value(groups)}
        item |= {} if bias is None else {"bias": bias}
        if times == row["layers"]:
            layer.append(item)
        else:
            around.append(item | {"times": value(times), "runs": value(runs)})
    if any(form == "scores" for _, _, _, form, *_ in row["pieces"]):
        c.note("two encoders, for an image of fixed size and a text of these tokens; scores are those of all pairs")
    remarks = (
        (cls.endswith(("ForCausalLM", "LMHeadModel")), "one pass over a whole text is counted, not generation"),
        (row["fixed"], "the size of the input is fixed: the number of tokens does not change it"),
    )
    c.notes += [remark for applies, remark in remarks if applies]
    width = next(size for path, size in sizes.items() if _last(path) in ("hidden_size", "d_model", "embed_dim"))
    raw: Raw = {"kind": "encoder", "d_model": width, "n_layers": sizes[row["layers"]], "around": around}
    return leaf_stack(raw | {"head": {"form": "none"}}, {"layer": layer}, [])


def _of(at: Mapping[str, Config], path: str) -> Config:
    return at[path.rpartition(".")[0]]


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _sizes(at: Mapping[str, Config], row: Table) -> dict[str, int]:
    """The variable sizes by key; a default may be the name of an earlier key."""
    sizes = dict[str, int]()
    for path, default in row["keys"].items():
        sizes[path] = _size(at, path, sizes.get(default, default), row)
    return sizes


def _size(at: Mapping[str, Config], path: str, default: int, row: Table) -> int:
    c, key = _of(at, path), _last(path)
    if key == "num_labels":
        return c.labels()
    names = (key, *(alias for alias, name in row["aliases"].items() if name == path))
    if path == row["layers"]:
        return int(c.layers(*names)) if not c.path or key in c else default
    if default == 0:
        return int(c.count(*names, default=0))
    number = int(c.size(*names, default=REQUIRED if path in PRIMARY else default))
    if key == "vocab_size":
        c.padding_within({key: number})
    return number


def _require(c: Config, key: str, value: object) -> None:
    """A fault unless a key has the value that was traced."""
    c.ignore(key)
    got = c.data.get(key, ABSENT)
    if got is not ABSENT and (got != value or isinstance(got, bool) != isinstance(value, bool)):
        c.fault(key, got, json.dumps(value), "other values were not traced")
