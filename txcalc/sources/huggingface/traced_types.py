"""Types that are read by what transformers' classes were seen to run, each size a formula of the config's keys.

`traced_types.json` has the rows (`tests/scripts/recorded.py` makes them): of every class the keys whose sizes vary,
those that must have one value, those that change nothing, and the leaves.
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

# Sizes that a config must say itself, where they are its own and no inner table's.
PRIMARY = frozenset(
    ("hidden_size", "d_model", "num_hidden_layers", "vocab_size", "num_attention_heads", "intermediate_size")
)


def recorded(c: Config) -> Raw:
    """A class as its row says."""
    classes, names = metadata.table("traced_types.json")[c.model_type], c.data.get("architectures")
    c.ignore("architectures", "stage_names", "out_features", "out_indices")
    cls = names[0] if isinstance(names, list) and names else next(iter(classes))
    if not isinstance(cls, str) or cls not in classes:
        c.fault("architectures[0]", cls, f"one of {', '.join(classes)}", "other classes are not supported")
        cls = next(iter(classes))
    row = classes[cls]
    if row.get("named") and not names:
        c.fault("architectures", names, f"[{cls!r}]", "transformers makes another class where none is named")
    at = {"": c}
    for table in dict.fromkeys(path.rpartition(".")[0] for path in (*row["keys"], *row["pinned"], *row["free"])):
        at[table] = at.get(table) or c.nested(table, c.model_type, {})
    sizes = _sizes(at, row)
    acts = {path: _of(at, path).activation(_last(path), default=default) for path, default in row["acts"].items()}
    for path, only in row["pinned"].items():
        _only(_of(at, path), _last(path), only)
    for path in row["free"]:
        inner, key = _of(at, path), _last(path)
        inner.ignore(key)
        if key in inner and inner.data[key] is None:
            inner.fault(key, None, "a value", f"transformers makes no {c.model_type} of null")

    def value(text: str) -> int:
        number = read_once(text).evaluate(lambda name: sizes[name])
        if number.denominator != 1:
            path = text.rpartition("/")[2]
            path = path if path in sizes else next(name for name in read_once(text).names)
            fault = _of(at, path)
            fault.fault(_last(path), sizes[path], "a number with which sizes are whole", f"{text} is one")
        return int(number)

    for quotient in row.get("whole", ()):  # of which only the product is a size
        value(quotient)
    layer, around = list[Raw](), list[Raw]()
    for name, kind, bias, form, shape, groups, where, times, runs in row["pieces"]:
        if form == "held" and value(shape[0]) == 0:
            continue
        item = leaf(name, acts[form[1:]] if form[0] == "$" else form, *map(value, shape), kind=kind)
        place = {"keys": "batch"} if form == "scores" else {"at": [int(where[0]), value(where[1]), int(where[2])]}
        item |= {**place, "runs": value(runs), "groups": value(groups)}
        item |= {} if bias is None else {"bias": bias}
        if times == row["layers"]:
            layer.append(item)
        else:
            around.append(item | {"times": value(times), "runs": value(runs)})
    if any(form == "scores" for _, _, _, form, *_ in row["pieces"]):
        c.note("two encoders side by side, a picture of its own size and a text of these tokens, all compared with all")
    remarks = (
        (cls.endswith(("ForCausalLM", "LMHeadModel")), "a text is read whole: how words are written is not counted"),
        (row["fixed"], "an input of its own size is read, whatever number of tokens is asked for"),
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
    """The keys whose sizes vary; what a default names is a key before it, which says both."""
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


def _only(c: Config, key: str, value: object) -> None:
    """A fault where a key has another value than the one that was recorded."""
    c.ignore(key)
    got = c.data.get(key, ABSENT)
    if got is not ABSENT and (got != value or isinstance(got, bool) != isinstance(value, bool)):
        c.fault(key, got, json.dumps(value), "no other value is recorded")
