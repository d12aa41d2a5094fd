"""Checkpoints: compares the tensors listed in a header with a model's ledger. Weights are never read, only names and
shapes.

Tensors are matched by shape, layer by layer, since names differ between families. A stored tensor may be transposed
(GPT-2), fused (Q, K and V; gate and up; all experts), or packed by a quantiser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

from msgspec import Struct

from txcalc.ledger import Entry, Ledger
from txcalc.num import product


class StoredTensor(NamedTuple):
    """A stored tensor: shape in PyTorch's order (rows first), dtype as the format names it, bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    @property
    def elements(self) -> int:
        """Stored elements; a packed one holds several weights."""
        return product(self.shape)


class StoredSize(Struct, frozen=True):
    """Tensors, elements and bytes of a part of a checkpoint."""

    tensors: int
    elements: int
    bytes: int


class Checkpoint(Struct, frozen=True, eq=False):
    """The tensors of one file or all shards; `form` is "safetensors" or "gguf"; `of`: the number of all files, if these
    are only some."""

    where: str
    form: str
    files: int
    tensors: tuple[StoredTensor, ...]
    of: int = 0

    @property
    def partial(self) -> bool:
        """Whether it is a single shard; the rest is in others."""
        return self.of > self.files

    @property
    def size(self) -> StoredSize:
        return _size(self.tensors)

    def by_dtype(self) -> dict[str, StoredSize]:
        """Sizes by type, the largest first."""
        sizes = {dtype: _size(group) for dtype, group in _group_by(self.tensors, lambda t: t.dtype)}
        return dict(sorted(sizes.items(), key=lambda item: -item[1].bytes))


def _size(tensors: Sequence[StoredTensor]) -> StoredSize:
    return StoredSize(len(tensors), sum(t.elements for t in tensors), sum(t.bytes for t in tensors))


def _group_by(items: Iterable[object], key: Any) -> Iterator[tuple[Any, list[Any]]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    yield from groups.items()


_NUMBER = re.compile(r"(?<![^.])(\d+)(?![^.])")


class TensorGroup(NamedTuple):
    """Tensors whose names differ only in numbers (`layers.*.q`), with one shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size: StoredSize


def fold_names(tensors: Iterable[StoredTensor]) -> list[TensorGroup]:
    """Groups tensors whose names differ only in numbers; numbers that never vary stay."""
    groups: dict[Any, tuple[list[str], list[StoredTensor]]] = {}
    for tensor in tensors:
        words = _NUMBER.split(tensor.name)  # texts at even places, numbers at odd ones
        name, group = groups.setdefault((*words[::2], tensor.shape, tensor.dtype), (words, []))
        group.append(tensor)
        for i in range(1, len(words), 2):
            if name[i] != words[i]:
                name[i] = "*"
    return [TensorGroup("".join(name), group[0].shape, group[0].dtype, _size(group)) for name, group in groups.values()]


# What explains a stored tensor that is no parameter of its own, by its name.
BUFFERS = re.compile(
    r"(^|\.)(inv_freq|position_ids|token_type_ids|masked_bias|num_batches_tracked|relative_position_index|rope_freqs"
    r"\.weight|rope_factors_(long|short)\.weight|e_score_correction_bias|exp_probs_b\.bias|expert_bias)$|\.rotary_emb\."
)
SCALES = re.compile(
    r"[._](scales?|scale_inv|scale_2|weight_scale|zero_point|qzeros|g_idx|absmax|quant_map|SCB|weight_format)$"
    r"|\.(weight|nested)[._](absmax|quant_map|shape|nested_\w+|quant_state\.\w+|g_idx)$"
)
WIDE = re.compile(r"^(BF16|F16|F32|F64|torch\.b?float\d+)$")  # only beside narrower dtypes are tensors scales
PAIRED = re.compile(r"\.layers\.\d+\.self_attn\.[01]\.")  # two layers under one number (LongCat-Flash)
SECOND = re.compile(r"\.layers\.\d+\.\w+\.1\.")
MASK = re.compile(r"\.(attn|attention)\.bias$")  # a causal mask of four dimensions in old checkpoints

# Weights of 8, 4, 3 or 2 bits that one stored integer holds.
PACKED: dict[str, tuple[int | Fraction, ...]] = {
    "I32": (4, 8, Fraction(32, 3), 16),
    "U8": (2, 4),
    "I8": (2, 4),
    "F4": (),
}


class ExpectedWeights:
    """Equal weights expected in one place; `left`: copies not matched yet."""

    def __init__(self, path: str, kind: str, shape: tuple[int, ...], copies: int) -> None:
        self.path, self.kind, self.shape, self.left = path, kind, shape, copies
        self.form = squeeze(shape)
        self.words = frozenset(_words(path))

    @property
    def elements(self) -> int:
        return product(self.shape)


class Missing(NamedTuple):
    """Weights of the description that the checkpoint lacks."""

    path: str
    shape: tuple[int, ...]
    copies: int

    @property
    def elements(self) -> int:
        return self.copies * product(self.shape)


class CheckpointCheck(Struct, frozen=True, eq=False, dict=True):
    """A checkpoint compared with a ledger. `extra`: explained tensors that are not parameters (tied copies, buffers,
    quantisation scales)."""

    stored: Checkpoint
    expected: int
    by_kind: dict[str, int]
    extra: dict[str, list[StoredTensor]]
    unexplained: list[StoredTensor]
    missing: list[Missing]
    beyond: bool  # everything unexplained is in layers that the description does not have

    @cached_property
    def explained(self) -> int:
        """Parameters of the description that the checkpoint holds."""
        return sum(self.by_kind.values())

    @property
    def agrees(self) -> bool:
        """Every tensor is explained, and every weight is there, or in the other shards."""
        return not self.unexplained and not self.missing

    def summary(self) -> str:
        """One line for a header or a note."""
        if self.stored.partial:
            files = f"{self.stored.files:,} of the {self.stored.of:,} files of a checkpoint"
            strange = f"; {len(self.unexplained):,} of its tensors are not explained" if self.unexplained else ""
            return f"{files}: {self.explained:,} of the {self.expected:,} parameters are in it{strange}"
        if self.agrees:
            return f"all {self.expected:,} parameters are in the checkpoint, and every tensor of it is explained"
        words = []
        if self.missing:
            words.append(f"{sum(m.elements for m in self.missing):,} parameters of the description are not in it")
        if self.unexplained:
            words.append(f"{len(self.unexplained):,} of its tensors are not explained")
            if self.beyond:
                words.append("all in layers beyond those described (multi-token prediction is not counted)")
        return "the checkpoint differs from the description: " + ", ".join(words)

    def differences(self, most: int = 10) -> list[str]:
        """The differences one by one, equal layers folded; the first `most` of each kind."""
        lacks = [f"{m.path} {list(m.shape)} is missing, {m.copies:,} of it" for m in self.missing]
        extra = [
            f"{r.name} {list(r.shape)} is not explained, {r.size.tensors:,} of it" for r in fold_names(self.unexplained)
        ]
        return lacks[:most] + extra[:most]


def check(checkpoint: Checkpoint, ledger: Ledger) -> CheckpointCheck:
    """Matches a checkpoint with the ledger's weights, and lists what is left on both sides."""
    pieces: dict[Any, list[ExpectedWeights]] = {}
    tied: set[tuple[int, ...]] = set()
    for entry in ledger:
        _expect(entry, pieces, tied)
    halves = {half for half, _ in pieces} - {""}
    by_kind: dict[str, int] = {}
    extra: dict[str, list[StoredTensor]] = {}
    leftover: list[StoredTensor] = []
    aside: list[StoredTensor] = []
    stored: dict[Any, list[StoredTensor]] = {}
    quantised = not all(WIDE.search(tensor.dtype) for tensor in checkpoint.tensors)
    paired = any(PAIRED.search(tensor.name) for tensor in checkpoint.tensors)
    for tensor in checkpoint.tensors:
        tail = tensor.name[-60:]
        if quantised and SCALES.search(tail):
            extra.setdefault("scale", []).append(tensor)
        elif BUFFERS.search(tail) or (len(tensor.shape) == 4 and MASK.search(tail)):
            aside.append(tensor)
        else:
            stored.setdefault(_place(tensor.name, halves, paired), []).append(tensor)
    for place, tensors in stored.items():
        leftover += _match(tensors, pieces.get(place, []), by_kind)
    # What the ledger has once may be stored in a layer (T5's table of relative biases), or under any name.
    leftover = _exact(
        leftover, [piece for (_, number), group in pieces.items() if number is None for piece in group], by_kind
    )
    unmatched = [piece for group in pieces.values() for piece in group]
    buffers = _exact(aside, unmatched, by_kind)
    if buffers:
        extra["buffer"] = buffers
    unexplained = []
    for tensor in leftover:
        if squeeze(tensor.shape) in tied:
            extra.setdefault("tied", []).append(tensor)
        else:
            unexplained.append(tensor)
    missing = (
        []
        if checkpoint.partial
        else [
            Missing(path, shape, sum(piece.left for piece in group))
            for (path, shape), group in _group_by(
                (p for p in unmatched if p.left), lambda p: (_NUMBER.sub("*", p.path), p.shape)
            )
        ]
    )
    numbers = {number for _, number in pieces}
    beyond = bool(unexplained) and all(_place(tensor.name, halves, paired)[1] not in numbers for tensor in unexplained)
    return CheckpointCheck(checkpoint, ledger.total("params"), by_kind, extra, unexplained, missing, beyond)


def _expect(entry: Entry, pieces: dict[Any, list[ExpectedWeights]], tied: set[tuple[int, ...]]) -> None:
    """Adds the weights of one entry to `pieces`, one for each of its layers, and its tied shapes to `tied`."""
    half = entry.steps[0].name if entry.steps[0].duty in ("encoder", "decoder") else ""
    copies = entry.times
    numbers = entry.owners
    kind = "attention" if entry.kind == "attention_core" else entry.kind
    if layer := entry.layer:
        copies //= layer.times
    before, _, after = entry.path.partition(f"layers.{numbers[0]}.")
    leaf = entry.leaf
    tied |= set(leaf.tied_shapes)  # of a bias too, which is stored twice (BERT)
    for weight in leaf.weights():
        for number in numbers:
            path = f"{entry.path}.{weight.name}" if number is None else f"{before}layers.{number}.{after}.{weight.name}"
            pieces.setdefault((half, number), []).append(ExpectedWeights(path, kind, weight.shape, copies))


def _place(name: str, halves: set[str], paired: bool) -> tuple[str, int | None]:
    """Half and layer that a stored tensor's name says; where they are paired, a second number says which of two."""
    half = next((word for word in name.split(".") if word in halves), "")
    if not half and halves:
        short = {"enc": "encoder", "dec": "decoder"}
        half = next((short[word] for word in name.split(".") if short.get(word) in halves), "")
    number = _NUMBER.search(name)
    if number is None or len(number[0]) > 8:
        return half, None
    of_two = SECOND.search(name) if paired else None
    return half, int(number[0]) * (1 + paired) + (of_two is not None)


def _match(tensors: list[StoredTensor], pieces: list[ExpectedWeights], by_kind: dict[str, int]) -> list[StoredTensor]:
    """Tensors of one layer that its pieces do not explain."""
    remaining = _exact(tensors, pieces, by_kind)
    remaining = [t for t in remaining if not _take(t, pieces, by_kind, t.shape[::-1])]
    remaining = _find_unexplained(remaining, pieces, by_kind)
    remaining = [t for t in remaining if not _pair(t, pieces, by_kind)]
    unmatched = [piece for piece in pieces if piece.left]
    if [piece.elements * piece.left for piece in unmatched] == [sum(t.elements for t in remaining)]:
        _count(unmatched[0], unmatched[0].left, by_kind)  # one weight stored in several (llama.cpp: K and V of MLA)
        return []
    return remaining


def _exact(
    tensors: Iterable[StoredTensor], pieces: list[ExpectedWeights], by_kind: dict[str, int]
) -> list[StoredTensor]:
    by_form = dict(_group_by((piece for piece in pieces if piece.left), lambda piece: piece.form))
    return [t for t in tensors if not _take(t, by_form.get(squeeze(t.shape), ()), by_kind, t.shape)]


def _take(
    tensor: StoredTensor, pieces: Iterable[ExpectedWeights], by_kind: dict[str, int], shape: tuple[int, ...]
) -> bool:
    """Takes a copy of the piece of this shape whose path is most like the name; False if there is none."""
    form = squeeze(shape)
    matching = [piece for piece in pieces if piece.left and piece.form == form]
    if not matching:
        return False
    words = _words(tensor.name) if len(matching) > 1 else ()
    best = max(matching, key=lambda piece: len(piece.words.intersection(words)))
    _count(best, 1, by_kind)
    return True


def _count(piece: ExpectedWeights, copies: int, by_kind: dict[str, int]) -> None:
    piece.left -= copies
    by_kind[piece.kind] = by_kind.get(piece.kind, 0) + piece.elements * copies


def _find_unexplained(
    tensors: list[StoredTensor], pieces: list[ExpectedWeights], by_kind: dict[str, int]
) -> list[StoredTensor]:
    """Tensors that no run of pieces explains; a dtype and shape that failed is not tried again on the same pieces."""
    failed, remaining = set[tuple[str, tuple[int, ...]]](), list[StoredTensor]()
    for tensor in tensors:
        if (tensor.dtype, tensor.shape) in failed:
            remaining.append(tensor)
        elif _run(tensor, pieces, by_kind):
            failed.clear()
        else:
            failed.add((tensor.dtype, tensor.shape))
            remaining.append(tensor)
    return remaining


def _run(tensor: StoredTensor, pieces: list[ExpectedWeights], by_kind: dict[str, int]) -> bool:
    """Takes neighbouring pieces that together have the tensor's elements: fused, stacked or packed."""
    if not tensor.elements:
        return False
    for factor in (1, *PACKED.get(tensor.dtype, ())):
        elements = tensor.elements * factor
        for rank in (2, 1) if len(tensor.shape) > 1 else (1,):
            free = [piece for piece in pieces if piece.left and len(piece.shape) == rank]
            for i in range(len(free)):
                total, j = 0, i
                while j < len(free) and total < elements:
                    total += free[j].elements * free[j].left
                    j += 1
                run = free[i:j]
                if total == elements and (factor != 1 or _fits(tensor.shape, run)):
                    for piece in run:
                        _count(piece, piece.left, by_kind)
                    return True
    return False


def _pair(tensor: StoredTensor, pieces: list[ExpectedWeights], by_kind: dict[str, int]) -> bool:
    """Takes two pieces of one part, not neighbours, stacked by rows (Qwen3-Next's in_proj_qkvz)."""
    free = [piece for piece in pieces if piece.left == 1 and len(piece.shape) == len(tensor.shape) == 2]
    for first, second in combinations(free, 2):
        (rows, columns), (more_rows, width) = first.shape, second.shape
        stacked = columns == width and (rows + more_rows, columns) == tensor.shape
        if stacked and _part(first) == _part(second):
            for piece in (first, second):
                _count(piece, 1, by_kind)
            return True
    return False


def _part(piece: ExpectedWeights) -> str:
    """The part whose child a piece's leaf is."""
    return piece.path.rsplit(".", 2)[0]


def _fits(shape: tuple[int, ...], run: list[ExpectedWeights]) -> bool:
    """The pieces share the side along which they are not joined."""
    if len(run[0].shape) == 1:
        return True
    shared = set(run[0].shape).intersection(*(piece.shape for piece in run))
    return bool(shared & set(shape))


def squeeze(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its sides of 1: (C, 1, K) and (C, K) hold the same."""
    return tuple(n for n in shape if n != 1)


# Words of stored names in the ledger's terms; they only choose between parts of one shape.
_ALIASES = {
    "attn": "attention", "selfattention": "attention", "mlp": "feed_forward", "ffn": "feed_forward", "query": "q",
    "key": "k", "value": "v", "out": "o", "wq": "q", "wk": "k", "wv": "v", "wo": "o", "w1": "gate", "w2": "down",
    "w3": "up", "fc": "up", "fc1": "up", "fc2": "down", "layernorm": "norm", "ln": "norm",
}  # fmt: skip


def _words(name: str) -> list[str]:
    return [_ALIASES.get(word, word) for word in re.split(r"[._]", name.lower().replace("feed_forward", "mlp"))]
