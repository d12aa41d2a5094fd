"""What transformers makes of some types, as formulas of their keys: `python tests/scripts/recorded.py [TYPE…]`.

`recorded_types.json` says of which, with settings of keys that are no others' (null: the default), and the quotients
that must be whole where only their product is a size.
Every class named is built on the meta device at several settings of its keys and run; each product, norm, table and
activation becomes a row of txcalc/sources/huggingface/traced_types.json whose sizes are expressions that hold at all of
them. A key that changes what is built, and that no expression has, is pinned to its default: a config with another
value is refused. A class for whose sizes no expression is found is not written.
"""

from __future__ import annotations

import inspect
import itertools
import json
import logging
import re
import sys
import warnings
from collections import Counter
from contextlib import ExitStack, nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from txcalc.errors import TxcalcError
from txcalc.sources import build
from txcalc.sources.huggingface import describe, transformers_metadata as metadata
from txcalc.sources.huggingface.keys import ACTIVATIONS
from txcalc.sources.huggingface.transformers_metadata import is_neutral
from txcalc.verification import transformers_cost as cost
from txcalc.verification.inputs import blank, inputs_of
from txcalc.verification.tracker import Tracker

PLACE = Path(inspect.getfile(is_neutral)).with_name("traced_types.json")
aten = torch.ops.aten
BATCH, LENGTHS = 2, (6, 10)
# Settings of keys by their last name; a nested table's are turned by as many places as its own name says.
_SIZES = {
    "num_attention_heads encoder_attention_heads n_head num_heads": (2, 3, 4, 5, 6, 3, 4),
    "hidden_size d_model embed_dim": (120, 180, 240, 300, 360, 420, 480),
    "intermediate_size encoder_ffn_dim ffn_dim": (80, 112, 136, 176, 184, 232, 296),
    "num_hidden_layers encoder_layers": (2, 3, 4, 2, 5, 3, 4),
    "vocab_size": (401, 427, 431, 449, 451, 463, 473),
    "max_position_embeddings": (37, 41, 43, 47, 53, 59, 61),
    "type_vocab_size": (2, 3, 4, 5, 3, 6, 7),
    "patch_size": (4, 6, 10, 8, 14, 12, 6),
    "image_size": (12, 24, 40, 24, 30, 30, 56),
    "num_channels": (3, 1, 2, 5, 4, 3, 2),
    "num_labels": (3, 5, 7, 4, 6, 9, 8),
    "projection_dim": (31, 33, 35, 39, 45, 51, 57),
    "num_register_tokens": (4, 3, 5, 6, 2, 7, 8),
    "num_frames": (2, 4, 6, 8, 4, 6, 8),
}
SIZES = {name: values for names, values in _SIZES.items() for name in names.split()}
COLUMNS = 7
TYPES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "recorded_types.json").read_text())


class Listener(TorchDispatchMode):
    """Every product, table, norm, activation and sum that runs, with the module that it runs in."""

    def __init__(self, net: Any, tracker: Tracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracker, self.rows = tracker, list[tuple[str, str, tuple[int, ...], int, dict[str, Any]]]()
        self.modules = dict(net.named_modules())
        self.left = {id(p): path for path, p in net.named_parameters()}  # a shared weight once
        self.sizes = {id(p): p.numel() for p in net.parameters()}
        self.masked = set[str]()  # how the paths begin within modules that make a causal mask

    def add(self, form: str, sizes: Any, rows: int, **options: Any) -> None:
        if rows % BATCH:
            raise NotImplementedError(f"{form} of {rows} rows for {BATCH} sequences in {self.tracker.path}")
        self.rows.append((self.tracker.path, form, tuple(map(int, sizes)), rows // BATCH, options))

    def masking(self, make: Any) -> Any:
        """What makes a causal mask, and notes where."""

        def make_mask(*args: Any, **kwargs: Any) -> Any:
            self.masked.add(self.tracker.path and f"{self.tracker.path}.")
            return make(*args, **kwargs)

        return make_mask

    def claims(self, name: str) -> bool:
        """Whether the module at work has this weight to itself, and it has not run before."""
        weight = self.modules[self.tracker.path]._parameters.get(name)
        return weight is not None and self.left.pop(id(weight), None) is not None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket is aten.mm and not self.tracker.path and tuple(out.shape) == (BATCH, BATCH):
            # of texts and pictures, all with all
            self.rows.append(("", "scores", (1, args[0].shape[1]), 1, {"keys": "batch"}))
        else:
            self.heard(func.overloadpacket, args, kwargs or {}, out)
        return out

    def heard(self, op: Any, args: Any, kwargs: Any, out: Any) -> None:
        if op in (aten.mm, aten.addmm):
            a, b = args[-2:]
            fresh, bias = self.claims("weight"), self.claims("bias")
            if not fresh and not hasattr(self.modules[self.tracker.path], "weight"):
                raise NotImplementedError(f"a product in {self.tracker.path}")
            if bias and not fresh:
                self.add("shift", (b.shape[1],), a.shape[0])
            self.add(
                "linear" if fresh else "tied", b.shape, a.shape[0], **({"bias": False} if fresh and not bias else {})
            )
        elif op in (aten.bmm, aten.baddbmm):
            a, b = args[-2:]
            self.add("bmm", (a.shape[0] // BATCH, a.shape[1], a.shape[2], b.shape[2]), BATCH)
        elif op in (aten.convolution, aten._convolution) and not args[6]:
            weight, stride, groups = args[1], args[3], args[8]
            taps, step = weight[0, 0].numel(), 1
            for side in stride:
                step *= side
            fresh, bias = self.claims("weight"), self.claims("bias")
            if not fresh:
                raise NotImplementedError("a convolution that runs twice")
            options = {} if bias else {"bias": False}
            rows = out.numel() // out.shape[1]
            self.add("convolution", (weight.shape[1] * groups, weight.shape[0], taps, min(taps, step)), rows,
                     groups=groups, **options)  # fmt: skip
        elif op is aten.embedding:
            weight, at = args[0], args[1]
            rows = at.numel() if at.shape[0] == BATCH and at.dim() > 1 else at.numel() * BATCH
            if self.claims("weight"):
                self.add("table", weight.shape, rows)
        elif op is aten.native_layer_norm:
            width = args[1][-1]
            fresh, bias = self.claims("weight"), self.claims("bias")
            options = {} if bias or not fresh else {"bias": False}
            self.add("layer_norm" if fresh else "norm_again", (width,), args[0].numel() // width, **options)
        elif op in ACTS and out.is_floating_point() and out.dim() > 1:
            name = "gelu_tanh" if kwargs.get("approximate") == "tanh" else ACTS[op]
            if (cls := type(self.modules[self.tracker.path]).__name__) in CLASSES:
                name = CLASSES[cls]
            rows = out.numel() // out.shape[-1]
            if rows % BATCH == 0:
                self.add(name, (out.shape[-1],), rows)
        elif op is aten.add and _like(*args[:2]) and self.tracker.path:
            self.add("sum", (out.shape[-1],), out.numel() // out.shape[-1])


ACTS = {aten.gelu: "gelu", aten.relu: "relu", aten.silu: "silu", aten.tanh: "tanh", aten.sigmoid: "sigmoid"}
CLASSES = {"NewGELUActivation": "gelu_tanh", "QuickGELUActivation": "quick_gelu", "FastGELUActivation": "gelu_tanh",
           "GELUTanh": "gelu_tanh"}  # fmt: skip


def _like(a: Any, b: Any = None) -> bool:
    alike = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape
    return alike and a.dim() == 3 and a.shape[0] == BATCH and a.is_floating_point()


Rows = dict[tuple[str, str, int], dict[str, Any]]


def heard(config: dict[str, Any], tokens: int) -> tuple[list[Any], list[tuple[str, int]], bool]:
    """What runs in a forward pass, the weights that nothing run here names, and whether the length decides."""
    with cost._quiet(), cost._offline():
        net: Any = cost._build(*cost._choose_class(cost._transformers(), config, "a setting"), "a setting")
        inputs = inputs_of(net, BATCH, tokens, tokens)
        if isinstance(inputs, str):
            raise NotImplementedError(inputs)
        try:
            listener = _listened(net, {tensor.name: blank(tensor, tensor.shape) for tensor in inputs}, nullcontext())
        except Exception:  # tensors of the CPU beside those on meta
            mode, tensors = cost._fake(inputs)
            listener = _listened(net, tensors, mode)
    left = [(path, listener.sizes[key]) for key, path in listener.left.items()]
    return (
        _cored(listener.rows, tuple(listener.masked)),
        left,
        any(tensor.letters != (tensor.letters[0], *[None] * (len(tensor.shape) - 1)) for tensor in inputs),
    )


def _listened(net: Any, tensors: Any, mode: Any) -> Listener:
    with Tracker(net) as tracker, mode, Listener(net, tracker) as listener, ExitStack() as patches:
        for code in {sys.modules[type(module).__module__] for module in net.modules()}:
            if make := getattr(code, "create_causal_mask", None):
                patches.enter_context(patch.object(code, "create_causal_mask", listener.masking(make)))
        cost._forward(net, tensors)
    return listener


def _cored(operations: list[Any], masked: tuple[str, ...]) -> list[Any]:
    """Scores and what they weigh as one core, where every position meets every other, or in the modules that mask them
    those before it; else products."""
    result, waiting = list[Any](), list[tuple[str, int, tuple[int, ...]]]()
    for path, form, sizes, rows, options in operations:
        if form != "bmm":
            result.append((path, form, sizes, rows, options))
            continue
        heads, m, k, n = sizes
        fits = [row for row in waiting if row[0] == path and (row[2][0], row[2][1], row[2][3]) == (heads, m, k)]
        if not fits:
            waiting.append((path, len(result), sizes))
            result.append(None)
            continue
        _, place, (_, _, k0, n0) = fits[0]
        waiting.remove(fits[0])
        if m == k:
            form = "once" if path.startswith(masked) else "attention"
            result[place] = (path, form, (heads, k0, n), m, {"bias": False})
        else:
            result[place] = (path, "product", (heads, k0, n0), m, {})
            result.append((path, "product", (heads, k, n), m, {}))
    if waiting:
        raise NotImplementedError(f"a product alone in {waiting[0][0]}")
    return [row for row in result if row]


def grouped(config: dict[str, Any], once: bool = False) -> Rows:
    """Rows of what runs: by the module's path without numbers, the form and the how-manieth of different sizes."""
    short, unused, varies = heard(config, LENGTHS[0])
    long = heard(config, LENGTHS[1])[0] if varies and not once else short
    if [(*row[:3], row[4]) for row in short] != [(*row[:3], row[4]) for row in long]:
        raise NotImplementedError("sizes that depend on the length")
    table: Rows = {}
    seen: dict[tuple[Any, ...], tuple[str, str, int]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for (path, form, sizes, rows, options), (*_, more_rows, _) in zip(short, long, strict=True):
        slope = Fraction(more_rows - rows, LENGTHS[1] - LENGTHS[0])
        base = rows - slope * LENGTHS[0]
        pattern = re.sub(r"\.\d+(?=\.|$)", ".*", "." + path)[1:]
        variant = (pattern, form, sizes, slope, base, str(options))
        if variant not in seen:
            seen[variant] = (pattern, form, counts[pattern, form])
            counts[pattern, form] += 1
            table[seen[variant]] = {"sizes": sizes, "slope": slope, "base": base, "paths": Counter(), **options}
        table[seen[variant]]["paths"][path] += 1
    for path, number in unused:
        pattern = re.sub(r"\.\d+(?=\.|$)", ".*", "." + path)[1:]
        key = (pattern, "held", 0)
        row = table.setdefault(key, {"sizes": (number,), "slope": Fraction(1), "base": Fraction(0), "paths": Counter()})
        if row["sizes"] != (number,):
            raise NotImplementedError(f"{pattern} of several sizes that nothing runs")
        row["paths"][path] += 1
    for row in table.values():
        paths = row.pop("paths")
        if len(set(paths.values())) > 1:
            raise NotImplementedError("modules of which some run more often")
        row["times"], row["runs"] = len(paths), next(iter(paths.values()))
    return table


def candidates(columns: dict[str, list[int]]) -> list[tuple[str, list[Fraction]]]:
    """Products of up to three keys, over up to two: shortest first."""
    names = list(columns)
    tops: list[tuple[str, ...]] = [()]
    tops += [product for number in (1, 2, 3) for product in itertools.combinations_with_replacement(names, number)]
    bottoms: list[tuple[str, ...]] = [(), *((name,) for name in names), *((name, name) for name in names)]
    products = []
    for top, bottom in itertools.product(tops, bottoms):
        if set(top) & set(bottom) or not top or len(bottom) > len(top):
            continue
        values = []
        for i in range(len(columns[names[0]])):
            value = Fraction(1)
            for name in top:
                value *= columns[name][i]
            for name in bottom:
                value /= columns[name][i]
            values.append(value)
        if all(value.denominator <= 4 for value in values):
            products.append((len(top) + len(bottom), "*".join(top) + "".join(f"/{name}" for name in bottom), values))
    return [(text, values) for _, text, values in sorted(products, key=lambda product: product[0])]


def fitted(values: list[Fraction], terms: list[tuple[str, list[Fraction]]], deep: bool = True) -> str:
    """An expression that has these values. Errors: `NotImplementedError`."""
    if len(set(values)) == 1:
        return str(values[0])
    best: list[tuple[Any, str]] = []
    for text, at in terms:
        i = next((i for i in range(1, len(at)) if at[i] != at[0]), None)
        if i is None:
            continue
        ratio = (values[i] - values[0]) / (at[i] - at[0])
        offset = values[0] - ratio * at[0]
        if ratio <= 0 or ratio.denominator > 4096 or offset.denominator > 1 or (abs(offset) > 300 and offset % ratio):
            continue
        if all(ratio * x + offset == value for x, value in zip(at, values, strict=True)):
            over = "" if ratio.denominator == 1 else f"/{ratio.denominator}"
            expression = (text + over if ratio.numerator == 1 else f"{ratio.numerator}*{text}{over}") + (
                f"{int(offset):+d}" if offset else ""
            )
            best.append(((text.count("*") + text.count("/"), offset != 0, ratio != 1), expression))
    if best:
        return min(best)[1]
    for text, at in terms if deep else ():
        if text.isidentifier() or "." in text:
            rest = [value / x for value, x in zip(values, at, strict=True)]
            if all(quotient.denominator == 1 for quotient in rest):
                try:
                    return f"{text}*({fitted(rest, terms, deep=False)})"
                except NotImplementedError:
                    pass
            try:
                return f"{text}+{fitted([value - x for value, x in zip(values, at, strict=True)], terms, deep=False)}"
            except NotImplementedError:
                continue
    raise NotImplementedError(f"no expression is found for {[str(value) for value in values]}")


def flat(table: dict[str, Any], path: str = "") -> dict[str, Any]:
    """A config's keys by their paths."""
    paths: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and key.endswith("_config"):
            paths |= flat(value, f"{path}{key}.")
        else:
            paths[path + key] = value
    return paths


def nested(table: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for path, value in table.items():
        *steps, key = path.split(".")
        at = config
        for step in steps:
            at = at.setdefault(step, {})
        at[key] = value
    if (number := config.pop("num_labels", None)) is not None:
        config["id2label"] = {str(i): str(i) for i in range(number)}
    return config


def setting(model_type: str, cls: str, columns: dict[str, list[int]], i: int, **options: Any) -> dict[str, Any]:
    sized = nested({name: values[i] for name, values in columns.items()} | options)
    return {**sized, "model_type": model_type, "architectures": [cls]}


def columns_of(model_type: str, cls: str, sizes: dict[str, Any]) -> tuple[Any, dict[str, Any], dict[str, list[int]]]:
    """A type's configuration, its keys' defaults and the settings of those that vary."""
    import transformers

    default = transformers.CONFIG_MAPPING[model_type]()
    plain = json.loads(json.dumps(default.to_dict(), default=str)) | {"num_labels": 2}
    defaults = {key: value for key, value in flat(plain).items() if key != "model_type"}
    columns: dict[str, list[int]] = {}
    for path, value in defaults.items():
        table, _, key = path.rpartition(".")
        values = sizes.get(path, SIZES.get(key)) if path in sizes or key not in sizes else sizes[key]
        if key == "num_labels" and "QuestionAnswering" in cls:
            continue
        if path in sizes and values is None:
            continue
        counts = type(value) is int and (value > 0 or key == "num_register_tokens")
        if values and (counts or path in sizes) and (key != "num_labels" or not table):
            turn = 0 if path in sizes else sum(map(ord, table)) % COLUMNS
            columns[path] = [*values[turn:], *values[:turn]] if key != "image_size" or not table else list(values)
    for path in columns:  # a picture's side is a number of its own patches
        if path.endswith("image_size") and path not in sizes and (patch := path.replace("image", "patch")) in columns:
            grid = (4, 6, 8, 10, 2, 12, 14)
            columns[path] = [size * number for size, number in zip(columns[patch], grid, strict=True)]
    for (first, values), (second, numbers) in itertools.combinations(columns.items(), 2):
        if len({Fraction(a, b) for a, b in zip(values, numbers, strict=True)}) == 1:
            raise NotImplementedError(f"settings of {first} that cannot be told from those of {second}")
    return default, defaults, columns


def record(model_type: str, cls: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """The row of a class. Errors: `NotImplementedError`, or what its code raises."""
    default, defaults, columns = columns_of(model_type, cls, sizes)
    first = grouped(setting(model_type, cls, columns, 0))
    once = grouped(setting(model_type, cls, columns, 0), once=True)
    acts, pinned, free, used = _others(model_type, cls, columns, defaults, once)
    columns = {path: values for path, values in columns.items() if path in used}
    settings = [first] + [grouped(setting(model_type, cls, columns, i)) for i in range(1, COLUMNS)]
    if any(list(row) != list(first) for row in settings):
        raise NotImplementedError("what runs differs between settings")
    products = candidates(columns)
    pieces = [_piece(key, [row[key] for row in settings], products) for key in first]
    for path, (_, changed) in acts.items():
        for piece, key in zip(pieces, first, strict=True):
            if key in changed:  # rows of an activation
                piece[3] = "$" + path
    keys = {path: _follows(model_type, cls, columns, path) or defaults[path] for path in columns}
    aliases = {alias: key for alias, key in getattr(default, "attribute_map", {}).items() if key in keys}
    times = Counter(piece[7] for piece in pieces if piece[7] in keys)
    return {
        "keys": keys, "aliases": aliases, "acts": {path: form for path, (form, _) in acts.items()}, "pinned": pinned,
        "free": free, "layers": times.most_common(1)[0][0],
        "fixed": all(row[6][0] == "0" for row in pieces if row[3] != "held"), "pieces": pieces,
    }  # fmt: skip


def _follows(model_type: str, cls: str, columns: dict[str, list[int]], path: str) -> str:
    """The key whose value a key takes where a config does not say its own; "" for none."""
    import transformers

    rest = {name: values for name, values in columns.items() if name != path}
    defaults = []
    for i in range(COLUMNS):
        config = transformers.CONFIG_MAPPING[model_type].from_dict(setting(model_type, cls, rest, i))
        defaults.append(flat(json.loads(json.dumps(config.to_dict(), default=str))).get(path))
    return next((name for name, values in rest.items() if values == defaults), "")


def _others(model_type: str, cls: str, columns: dict[str, list[int]], defaults: dict[str, Any], first: Rows) -> Any:
    """Activations with the rows that they change, keys that may be nothing but their default, keys that change nothing,
    and of the columns those that do."""
    acts: dict[str, tuple[str, set[Any]]] = {}
    pinned: dict[str, Any] = {}
    free: list[str] = []
    used: set[str] = set()

    def changed(path: str, value: Any) -> Rows | None:
        """What runs with this value, empty if it is the same; None where nothing does."""
        try:
            rows = grouped(setting(model_type, cls, columns, 0, **{path: value}), once=True)
        except Exception:
            return None
        return {} if list(rows.items()) == list(first.items()) else rows

    for path, value in defaults.items():
        key = path.rpartition(".")[2]
        is_neutral_value = value is not None and type(value) is not int and is_neutral(key, value)
        if is_neutral_value or key.endswith("token_id") or (key in NOT_TRIED and path not in columns):
            continue
        if path in columns:
            (free.append(path) if changed(path, columns[path][1]) == {} else used.add(path))
        elif isinstance(value, str) and value in ACTIVATIONS:
            rows = changed(path, "relu" if value != "relu" else "gelu")
            if rows and len(rows) == len(first):
                pairs = zip(first, rows, strict=True)
                acts[path] = (value, {mine for mine, new in pairs if mine != new and mine not in rows})
            elif rows == {}:
                free.append(path)
            else:
                pinned[path] = value
        else:
            results = [changed(path, trial) for trial in _trials(value)]
            if results and all(rows_of_trial == {} for rows_of_trial in results):
                free.append(path)
            elif value is not None or not is_neutral(key, 1):
                pinned[path] = value
    return acts, pinned, free, used


# Classes and their names, and keys of a backbone, which is another class.
NOT_TRIED = ("num_labels", "id2label", "label2id", "stage_names", "out_features", "out_indices")


def _trials(value: Any) -> list[Any]:
    """Other values of a key."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2 or 1, value + 1]
    return [value * 2 or 0.5, value / 2 or 0.25] if isinstance(value, float) else []


KINDS = (("norm", r"norm|ln_"), ("head", r"classifier|lm_head|qa_outputs|(^|\.)head|predictions|cls\."),
         ("attention", r"attn|attention"), ("embedding", r"embed|patch"),
         ("feed_forward", r"mlp|intermediate|output|fc|ffn|feed_forward|dense"))  # fmt: skip


def _piece(key: tuple[str, str, int], rows: list[dict[str, Any]], products: Any) -> list[Any]:
    """[name, kind, whether of a layer, form, sizes, bias and groups, where, times, runs]."""
    pattern, form, which = key
    slopes = {row["slope"] for row in rows}
    if len(slopes) > 1 or any(row.get("bias") != rows[0].get("bias") for row in rows):
        raise NotImplementedError(f"{pattern} runs elsewhere in other settings")
    slope = slopes.pop()
    base = fitted([row["base"] * slope.denominator for row in rows], products)
    sizes = [fitted([Fraction(row["sizes"][i]) for row in rows], products) for i in range(len(rows[0]["sizes"]))]
    groups = fitted([Fraction(row.get("groups", 1)) for row in rows], products)
    times, runs = (fitted([Fraction(row[name]) for row in rows], products) for name in ("times", "runs"))
    name = "_".join(part for part in pattern.split(".") if part != "*") or "whole"
    name += "" if form in ("linear", "convolution", "table", "layer_norm", "held") else f"_{form}"
    kind = "norm" if "norm" in form else next((kind for kind, names in KINDS if re.search(names, pattern)), "other")
    if kind == "norm" and "norm" not in form:
        kind = "other"
    if form in ("product", "attention", "once"):
        kind = "attention"
    return [name + (str(which + 1) if which else ""), kind, rows[0].get("bias"), form, sizes, groups,
            [str(slope.numerator), base, str(slope.denominator)], times, runs]  # fmt: skip


def difference(model_type: str, cls: str, sizes: dict[str, Any]) -> str:
    """What txcalc says otherwise than transformers of sizes that no row was made with, and of a longer text."""
    metadata.table.cache_clear()
    columns = {path: [values[-1]] for path, values in columns_of(model_type, cls, sizes)[2].items()}
    config = setting(model_type, cls, columns, 0)
    tokens = min(57, *(values[0] for path, values in columns.items() if path.endswith("max_position_embeddings")), 57)
    try:
        model = build(*describe(config))
        measured = cost.measure(config, "a setting", 1, tokens, formulas=False)
    except TxcalcError as error:
        return str(error)
    params, flops = (
        measured.params if measured.total_params is None else measured.total_params,
        model.ledger(1, tokens).total("flops"),
    )
    if measured.flops is None:
        return f"no FLOPs are known: {measured.why}"
    is_same = model.params == params and flops == measured.flops
    return "" if is_same else f"{model.params:,} and {flops:,}, not {params:,} and {measured.flops:,}"


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    done = list[tuple[str, str]]()
    data = json.loads(PLACE.read_text()) if PLACE.exists() else {}
    for model_type in sys.argv[1:] or TYPES:
        for cls in TYPES[model_type]["classes"].split():
            data.setdefault(model_type, {}).pop(cls, None)
            try:
                data[model_type][cls] = record(model_type, cls, TYPES[model_type].get("sizes", {}))
                data[model_type][cls] |= {key: TYPES[model_type][key] for key in ("whole",) if key in TYPES[model_type]}
                done.append((model_type, cls))
                print(
                    model_type,
                    cls,
                    len(data[model_type][cls]["pieces"]),
                    "pieces; pinned",
                    data[model_type][cls]["pinned"],
                    flush=True,
                )
            except Exception as error:
                print(f"{model_type} {cls}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                if "--raise" in sys.argv:
                    raise
    write(data)
    wrong = {pair: difference(*pair, TYPES[pair[0]].get("sizes", {})) for pair in done}
    for (model_type, cls), text in wrong.items():
        if text:
            print(f"{model_type} {cls} differs: {text}", flush=True)
            del data[model_type][cls]
    write(data)


def write(data: dict[str, Any]) -> None:
    """One line per model type."""
    data = {name: rows for name, rows in sorted(data.items()) if rows}
    # The class of a config that names none comes first.
    library = cost._transformers()
    chosen = {name: cost._automatic(library, library.CONFIG_MAPPING[name]()) for name in data}
    usual = {name: getattr(cls, "__name__", "") for name, cls in chosen.items()}
    data = {name: dict(sorted(rows.items(), key=lambda row: row[0] != usual[name])) for name, rows in data.items()}
    for name, rows in data.items():  # where that is not recorded, a config must say its class
        for row in rows.values():
            row |= {"named": True} if usual[name] and usual[name] not in rows else {}
    lines = (f"{json.dumps(name)}: {json.dumps(rows, separators=(',', ':'))}" for name, rows in data.items())
    PLACE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
