"""transformers' own module for the same config.json, on meta: a witness that others wrote."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from txcalc.checkpoint import Checkpoint, StoredTensor, check, fold_names
from txcalc.evidence.structures import listed_leaves
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.num import product
from txcalc.planning.formats.modules import ATTENTION, HEAD, MLP, names
from txcalc.sources import huggingface
from txcalc.sources.export import to_config
from txcalc.sources.objects import with_idle_rows
from txcalc.verification import transformers_cost
from txcalc.verification.subject import Subject
from txcalc.verification.verdict import CheckedRow, check_equal, figures_by_module, fold_copies

ORACLE = "transformers"
SAME = {"kimi_k2": "deepseek_v3"}  # model type → the type whose class transformers uses for it


def rows(subject: Subject) -> Iterator[CheckedRow]:
    """Compares parameters, forward FLOPs, and weight shapes with transformers; fused and stacked weights are matched by
    shape, as in a checkpoint.

    Errors: `MissingExtra`; `InputError` if no model type can express the whole description."""
    model = subject.model
    net = instantiate(model)
    where = type(net).__name__
    if _ties_regardless(model, net):
        model = model.set({"head.tied": True})
        subject.notes.append(
            f"{where} always ties the head to the token table: compared with a tied head, "
            f"{subject.model.params - model.params:,} parameters less"
        )
    weights, idle = [], 0
    for name, weight, rows_idle in with_idle_rows(model.raw, net):
        stored = weight[rows_idle:] if rows_idle else weight
        idle += weight.numel() - stored.numel()
        weights.append(StoredTensor(name, tuple(stored.shape), str(stored.dtype), stored.nbytes))
    if idle:
        subject.notes.append(f"left out: {idle:,} weights of {where} for idle experts, which no checkpoint has")
    ledger = model.ledger()
    elements = sum(tensor.elements for tensor in weights)
    yield check_equal("", "params", ledger.total("params"), elements, ORACLE, where, for_all=True)
    yield from _flops(model, subject.notes, net, where)
    checked = check(Checkpoint(where, ORACLE, 1, tuple(weights)), ledger)
    if (checked.missing or checked.unexplained) and (note := _compare_total(model, ledger, weights)):
        subject.notes.append(f"shapes, by {ORACLE}: {note}")
        return
    for lacking in checked.missing:
        yield CheckedRow(lacking.path, "shape", str(lacking.shape), "nothing", False, ORACLE, where, lacking.copies)
    for row in fold_names(checked.unexplained):
        yield CheckedRow(row.name, "shape", "nothing", str(row.shape), False, ORACLE, where, row.size.tensors)


POINT = {"batch": 2, "tokens": 7, "source": 5}


def lists_leaves(model: Model) -> bool:
    """Whether some leaves are listed one by one, without modules of their own."""
    return any(True for _ in listed_leaves(model))


def _compare_total(model: Model, ledger: Ledger, weights: Sequence[StoredTensor]) -> str:
    """A note on weights whose shape only one side has, if only their totals can be compared, and are equal: all weights
    of a model with listed leaves, else those that no token uses. "" otherwise."""
    described, stored = Counter[tuple[int, ...]](), Counter(_sides(tensor.shape) for tensor in weights)
    paths: dict[tuple[int, ...], str] = {}
    for entry in ledger:
        for weight in entry.leaf.weights():
            described[_sides(weight.shape)] += entry.times
            paths.setdefault(_sides(weight.shape), entry.path)
    idle = (stack.idle for stack in model.root.stacks if stack.idle)
    unread = {_sides(weight.shape) for leaf in idle for weight in leaf.weights()}
    here, there = described - stored, stored - described
    total = sum(product(shape) * copies for shape, copies in here.items())
    equal = total == sum(product(shape) * copies for shape, copies in there.items())
    if not equal or not (lists_leaves(model) or {*here} <= unread):
        return ""
    modules = ", ".join(sorted(paths[shape] for shape in here))
    return f"{here.total():,} weights here, {there.total():,} there: only their total compared, {total:,} ({modules})"


def _sides(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without dimensions of 1, sorted, since a weight may be stored transposed."""
    return tuple(sorted(size for size in shape if size != 1))


def _ties_regardless(model: Model, net: Any) -> bool:
    """Whether the class ties the head even if its config and the description do not: T5, from transformers 5 on."""
    data = _original_config(model)
    untied = not model.description.last.head.tied
    if not untied or (data is not None and data.get("tie_word_embeddings") is not False):
        return False
    return getattr(type(net.config)(tie_word_embeddings=False), "tie_word_embeddings", None) is True


def _flops(model: Model, notes: list[str], net: object, where: str) -> Iterator[CheckedRow]:
    """FLOPs of a forward pass at `POINT`, or at the shortest length for which its pieces hold."""
    point: dict[str, Any] = {
        **POINT,
        "tokens": max([POINT["tokens"], *(piece["least"] for piece in listed_leaves(model))]),
        "source": POINT["source"] if model.has_encoder_apart and not model.reads_no_ids else None,
    }
    ledger = model.ledger(**point)
    by_module, why = None, "transformers computes scans in chunks or step by step"
    if not any(entry.kind == "recurrent" for entry in ledger):
        by_module, why = transformers_cost.forward_flops(net, **point, random_weights=lists_leaves(model))
    if by_module is None:
        notes.append(f"flops, by {ORACLE}: not compared: {why}")
        return
    sizes = ", ".join(
        f"{letter} = {size}" for letter, size in zip(("B", "T", "T_src"), point.values(), strict=True) if size
    )
    where = f"{where} at {sizes}"
    yield check_equal("", "flops", ledger.total("flops"), sum(by_module.values()), ORACLE, where)
    if not lists_leaves(model):
        yield from _by_module(ledger, by_module, where, len(model.stacks) > 1)


LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)\.(.+)")
HALF = re.compile(r"(?:^|\.)(encoder|decoder)\.")
Named = tuple[str, int | None, str]  # encoder or decoder, layer, and name there


def _by_module(ledger: Ledger, by_module: Mapping[str, int], where: str, halves: bool) -> Iterator[CheckedRow]:
    """FLOPs of the head and of layers' modules with known names in transformers; a fused module is compared with the
    sum of its parts. Other modules count only in the total."""
    flops: dict[Named, int] = {}
    for path, number in by_module.items():
        layer, half = LAYER.search(path), HALF.search(path) if halves else None
        flops[(half[1] if half else "", int(layer[1]), layer[2]) if layer else ("", None, path)] = number
    groups: dict[frozenset[Named], list[tuple[str, str, int]]] = {}
    for path, (first, share) in figures_by_module(ledger, lambda entry: entry.flops).items():
        modules, parts = frozenset(flops.keys() & _names_there(path)), [(first, path, share)]
        for group in [group for group in groups if group & modules] if share else ():
            modules, parts = modules | group, groups.pop(group) + parts
        if share and modules:
            groups[modules] = parts
    copies: dict[str, list[CheckedRow]] = {}
    for modules, parts in groups.items():
        first, path = (" + ".join(side) for side in zip(*(part[:2] for part in parts), strict=True))
        predicted, measured = sum(part[2] for part in parts), sum(flops[name] for name in modules)
        copies.setdefault(first, []).append(check_equal(path, "flops", predicted, measured, ORACLE, where))
    for rows in copies.values():
        yield from fold_copies(rows)


# Names of cross-attention; and T5's and BART's names, whose modules in a layer are numbered or have no parent.
CROSS = ("encoder_attn", "layer.1.EncDecAttention", "crossattention")
OTHER_NAMES = {
    "attention.core": (*ATTENTION, "attention.self", "layer.0.SelfAttention"),
    "experts.routed": tuple(f"{name}.experts" for name in MLP),
    "cross_attention.core": CROSS,
    **{f"attention.{name}": (f"layer.0.SelfAttention.{name}",) for name in "qkvo"},
    **{f"cross_attention.{name}": tuple(f"{above}.{end}" for above in CROSS for end in (name, f"{name}_proj"))
       for name in "qkv"},
    "cross_attention.o": tuple(f"{above}.{end}" for above in CROSS for end in ("o", "out_proj")),
    "feed_forward.gate": tuple(f"layer.{i}.DenseReluDense.wi_0" for i in (1, 2)),
    "feed_forward.up": ("fc1", *(f"layer.{i}.DenseReluDense.{end}" for i in (1, 2) for end in ("wi", "wi_1"))),
    "feed_forward.down": ("fc2", *(f"layer.{i}.DenseReluDense.wo" for i in (1, 2))),
}  # fmt: skip


def _names_there(path: str) -> set[Named]:
    """Encoder or decoder, layer, and the possible names in transformers, of a module; the head has no layer."""
    layer = re.match(r"(?:(encoder|decoder)\.)?layers\.(\d+)\.(.+)", path)
    if layer is None:
        return {("", None, name) for name in HEAD if path.endswith("head.projection")}
    candidates = {*OTHER_NAMES.get(layer[3], ()), *names(path)}
    return {(layer[1] or "", int(layer[2]), name) for name in candidates}


def instantiate(model: Model) -> Any:
    """transformers' model of the config.json that the description was read from, so that a misreading shows; else of
    the exported config."""
    config = _original_config(model) or to_config(model)[0]
    model_type = SAME.get(config["model_type"], config["model_type"])
    return transformers_cost.instantiate({**config, "model_type": model_type}, model.name)


def _original_config(model: Model) -> Any:
    """The config.json that a description was read from; None if there is none, if the description was changed, or if
    the config has towers."""
    path = Path(model.origin)
    if model.multimodal or path.suffix != ".json" or not path.is_file():
        return None
    data, *names = huggingface.parsed_file(path)
    return data if huggingface.describe(data, *names)[0] == model.raw else None
