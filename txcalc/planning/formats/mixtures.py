"""The mixtures of llama.cpp (Q4_K_M, Q6_K, IQ3_XS …): the type of each matrix of each layer.

A mixture has a default type, and rules that give more bits to matrices that matter more: attention's values, down
projections, the head. If a type's blocks do not divide a matrix's rows, another type is used. Experts that are
published in MXFP4 keep it: llama-quantize requantises them only with an option, and files of gpt-oss (bartowski's and
unsloth's) keep it. The IQ1, IQ2, IQ3_XXS and Q2_K_S mixtures need an importance matrix (imatrix); others are counted
without one.

`mixtures.json` has the rules, their source, and the names of tensors in .gguf files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from txcalc.description import StackSpec
from txcalc.errors import InputError
from txcalc.ledger import Entry
from txcalc.model import Model
from txcalc.parts.mechanisms import section_of
from txcalc.parts.options import Raw, Table
from txcalc.planning.formats.weights import EVERY_MATRIX, FORMATS, GGML, Format, Mixed, Numbers, plain


class Layer(NamedTuple):
    """The layer of a matrix, and the model's sizes that decide its type."""

    number: int  # from 0, out of `of` layers; for values, and in a model without experts, out of layers that have them
    of: int
    groups: int  # query heads per key/value head
    experts: int

    @property
    def use_more_bits(self) -> bool:
        """The first and last eighth of the layers, and every third between, like llama.cpp's function of that name."""
        eighth = self.of // 8
        return self.number < eighth or self.number >= 7 * self.of // 8 or (self.number - eighth) % 3 == 2


WHEN: Mapping[str, Callable[[Layer], bool]] = {
    "": lambda at: True,
    "more": lambda at: at.use_more_bits,
    "first 2": lambda at: at.number < 2,
    "first 4": lambda at: at.number < 4,
    "first 1/16": lambda at: at.number < at.of // 16,
    "first 1/8": lambda at: at.number < at.of // 8,
    "between": lambda at: at.of // 8 <= at.number < 7 * at.of // 8,
    "grouped": lambda at: at.groups >= 4,
    "grouped or sparse": lambda at: at.groups >= 4 or at.experts >= 4,
    "8 experts": lambda at: at.experts == 8,
    "8 experts, more": lambda at: at.experts == 8 and at.use_more_bits,
}
EVERYWHERE = frozenset({"", "grouped", "grouped or sparse", "8 experts"})  # conditions that do not depend on the layer
Rules = tuple[tuple[str, str], ...]  # (condition, type): the first condition that is true decides


class Mixture(NamedTuple):
    """The default type of all matrices, and rules for some of them by role.

    table   type of the embedding table; "": the default
    head    type of the head, and of a table that is tied to it
    fused   type of queries, keys and values in one tensor; "": the default
    low     a mixture of 1 or 2 bits, whose rules number matrices instead of layers
    """

    default: str
    v: Rules = ()
    k: Rules = ()
    q: Rules = ()
    o: Rules = ()
    gate: Rules = ()
    down: Rules = ()
    table: str = ""
    head: str = "q6_k"
    fused: str = ""
    low: bool = False


def _rules(text: str) -> Rules:
    """The rules of a text such as `more: q6_k; q5_k`."""
    return tuple((when, kind) for when, _, kind in (rule.rpartition(": ") for rule in text.split("; ") if rule))


def _read(table: Table) -> Raw:
    return {key: value if key in PLAIN else _rules(value) for key, value in table.items()}


PLAIN = ("default", "table", "head", "fused", "low")
_DATA = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
MIXTURES: Mapping[str, Mixture] = {name: Mixture(**_read(table)) for name, table in _DATA["mixtures"].items()}
OWN: Mapping[str, Mapping[str, Table]] = {
    kind: {name: _read(table) for name, table in tables.items()} for kind, tables in _DATA["own"].items()
}
FALLBACK: Mapping[str, str] = _DATA["fallback"]
TENSORS: Mapping[str, Sequence[str]] = _DATA["tensors"]
ENDS = {tensor: tuple([f".{end}" for end in ends]) for tensor, ends in TENSORS.items()}


def mixture(model: Model, name: str) -> Format | None:
    """A model's matrices in a mixture of llama.cpp; None if there is no mixture of this name."""
    short = plain(name)
    if short == "mxfp4_moe":
        # Tensors of three dimensions, experts and a latent's expansions, are in MXFP4.
        return _mix(model, short, lambda entry, _: ["mxfp4" if _is_stacked(entry) else "q8_0"])
    if short not in MIXTURES:
        return None
    rules, (stack, layer) = MIXTURES[short], _shape(model)
    special = OWN.get(model.description.model_type, {})
    rules = rules._replace(**special.get("", {}), **special.get(short, {}))
    ledger = [entry for entry in model.entries if entry.leaf.params]
    roles = {entry.name: _role(model, entry) for entry in ledger}

    def positions(role: str) -> list[tuple[int, str]]:
        """The layer and name of each matrix of a role."""
        return [(i or 0, entry.name) for entry in ledger if roles[entry.name] == role for i in entry.owners]

    by_layer = not EVERYWHERE.issuperset(when for when, _ in rules.v)
    values = {number: i for i, number in enumerate(sorted({n for n, _ in positions("v")}))} if by_layer else {}
    numbered = ("down",) if rules.low else ("down", "up", "gate") if layer.experts <= 1 else ()
    numbers_of = {(role, key): i for role in numbered for i, key in enumerate(sorted(positions(role)))}
    tied = bool(stack.head.tied)
    is_70b = layer.of == 80 and layer.groups > 1 and not rules.low  # llama.cpp's name for this shape

    def choose(entry: Entry, numbers: Numbers) -> list[str]:
        if entry.kind == "head" or (tied and entry.leaf.row is not None):
            return [rules.head]
        if entry.leaf.row is not None:
            return [rules.table or rules.default]
        role = roles[entry.name]
        if role == "qkv":
            return [rules.fused or rules.default]
        cases: Rules = getattr(rules, {"up": "gate"}.get(role, role), ()) if role else ()
        indices = [number or 0 for number in ([0] if all(when in EVERYWHERE for when, _ in cases) else numbers)]
        if role == "v":
            indices = [values.get(index, 0) for index in indices]
        elif role in numbered:
            indices = [numbers_of.get((role, (index, entry.name)), 0) for index in indices]
        sizes = layer._replace(of=len(values) if role == "v" else layer.of)
        types = _types(cases, rules.default, sizes, tuple(indices)) if cases else [rules.default]
        more_bits = role == "v" and is_70b
        return ["q5_k" if more_bits and kind in ("q3_k", "q4_k") else kind for kind in types]

    return _mix(model, short, choose)


@cache
def _types(rules: Rules, default: str, sizes: Layer, indices: tuple[int, ...]) -> list[str]:
    """The types that rules give to layers of these indices, in a model of these sizes."""
    layers = (Layer(index, *sizes[1:]) for index in indices)
    return [next((kind for when, kind in rules if WHEN[when](layer)), default) for layer in layers]


def _shape(model: Model) -> tuple[StackSpec, Layer]:
    """The stack that generates tokens, and its first layer with the sizes that rules depend on."""
    stack = model.stacks[-1]
    layers = list(stack.layer.values())
    tables = (layer.tables.get(section_of("attention", layer.tables)) for layer in layers)
    grouped = (table for table in tables if table and {"n_heads", "n_kv_heads"} <= table.declared.keys())
    heads = next(((table.get("n_heads"), table.get("n_kv_heads")) for table in grouped), (1, 1))
    experts = max((layer.experts.n_experts for layer in layers if layer.experts), default=0)
    return stack, Layer(0, stack.n_layers, heads[0] // heads[1], experts)


def _role(model: Model, entry: Entry) -> str:
    """The role of a matrix in the rules: q, k, v, o, qkv, gate, up or down; "": none."""
    role = _role_of_name(entry.name) if entry.layer and entry.kind != "other" else ""
    return "qkv" if role in ("q", "k", "v") and model.description.model_type in _DATA["fused"] else role


@cache
def _role_of_name(name: str) -> str:
    """The role of the tensor that may store a leaf; "": none."""
    roles = (_DATA["roles"].get(tensor.removesuffix("_exps").removesuffix("_shexp")) for tensor in _tensors(name))
    return next(filter(None, roles), "")


@cache
def _fixed_type(name: str) -> str | None:
    """The type that a leaf has in every mixture; "": not quantised; None: by the rules."""
    return next((kind for end, kind in _DATA["kept"].items() if name.endswith(end)), None)


def _is_stacked(entry: Entry) -> bool:
    return entry.kind == "experts" or "attn_kv_b" in _tensors(entry.name)


def _in_mxfp4(model: Model) -> bool:
    """Whether a model is published with its experts in MXFP4."""
    config = model.description.quantization or {}
    return config.get("quant_method") == "mxfp4" or config.get("expert_dtype") == "fp4"


@cache
def _fitting(kind: str, columns: int, head: bool) -> Format:
    """A type, or its fallback if its blocks do not divide a row."""
    if head and columns % GGML[kind].long:
        kind = "q8_0"
    for candidate in (kind, FALLBACK.get(kind, "fp16")):
        ggml = GGML.get(candidate, FORMATS["fp16"])
        if not ggml.long or columns % ggml.long == 0:
            return ggml
    return FORMATS["fp16"]


def _mix(model: Model, name: str, choose: Callable[[Entry, Numbers], list[str]]) -> Format:
    """The format with the types from `choose`: one per layer of an entry, or one for all."""
    tied, mxfp4_experts = bool(_shape(model)[0].head.tied), _in_mxfp4(model)

    def form(entry: Entry, numbers: Numbers) -> Sequence[Format | None]:
        if (fixed := _fixed_type(entry.name)) is not None:
            return [FORMATS[fixed] if fixed else None]
        if entry.kind == "router" or (mxfp4_experts and entry.kind == "experts"):
            return [GGML["mxfp4"] if entry.kind == "experts" else None]
        head = entry.kind == "head" or (tied and entry.leaf.row is not None)
        columns = entry.leaf.untied.tensors[0].shape[1]
        kinds = choose(entry, numbers)
        fitting = {kind: _fitting(kind, columns, head) for kind in set(kinds)}
        return [fitting[kind] for kind in kinds]

    ledger = [entry for entry in model.entries if entry.leaf.untied.params]
    return Mixed.of(name.upper() if name in MIXTURES else name, f"llama.cpp's mixture {name.upper()}", ledger, form, 32)


@cache
def _tensors(name: str) -> list[str]:
    """The names in a .gguf file of the tensors that may hold a leaf."""
    return [tensor for tensor, ends in ENDS.items() if name.endswith(ends)]


def stored(model: Model) -> Format:
    """The types in a .gguf file, tensor by tensor."""
    assert model.checkpoint is not None
    source = "the types of its .gguf file"
    tensors = {tensor.name: tensor for tensor in model.checkpoint.stored.tensors}
    dtypes = {name: tensor.dtype.lower() for name, tensor in tensors.items()}

    def form(entry: Entry, number: int | None) -> Format | None:
        if entry.leaf.row is not None:
            names = ["token_embd.weight"]
        elif entry.kind == "head":
            names = ["output.weight", "token_embd.weight"]
        else:
            names = [f"blk.{number}.{name}.weight" for name in _tensors(entry.name)]
        kind = next((dtypes[name] for name in names if name in dtypes), None)
        halves = [tensors.get(f"blk.{number}.attn_{half}_b.weight") for half in "kv"]
        if "attn_kv_b" in _tensors(entry.name) and (present := [half for half in halves if half]) == halves:
            bits: Any = Fraction(8 * sum(half.bytes for half in present), sum(half.elements for half in present))
            return Format(kind or "f32", bits, EVERY_MATRIX, source, wide=32)
        if kind is None or kind == "f32":
            return None
        if kind in ("f16", "bf16"):
            return FORMATS[plain(kind)]
        if kind not in GGML:
            raise InputError(model.name, [f"has tensors of type {kind.upper()}, whose size is not known here"])
        return GGML[kind]

    ledger = [entry for entry in model.entries if entry.leaf.untied.params]
    kinds = sorted({kind for kind in dtypes.values() if kind != "f32"})
    return Mixed.of(
        "+".join(kinds), source, ledger, lambda entry, numbers: [form(entry, number) for number in numbers], 32
    )
