"""The model under verification: modules, inputs, sizes and ledger."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.parts.model import Stack
from txcalc.reference import build, inputs
from txcalc.verification.symbolic import PRIME, T_SRC, B, NotForAll, OneSize, SymbolicSize, Symbols, T

V = TypeVar("V")
# auto: for every batch and length, on one layer of each kind, or at points if the trace allows no symbols. symbolic:
# for every batch and length on all layers, or `NotForAll`. points: at points.
Lengths = Literal["auto", "symbolic", "points"]

# Batch, tokens and encoder positions: ones, primes and a power of two; different where two could be confused.
POINTS: tuple[tuple[int, int, int], ...] = ((1, 1, 3), (2, 2, 1), (1, 3, 5), (3, 5, 2), (2, 8, 8))
EVERY_LAYER_AT = 3  # index of the point that runs every layer; other points, and symbols, run one layer of each kind
LONG = 61, 59  # tokens beyond every window, and encoder positions, if only one length is traced
_LAYER = re.compile(r"((?:encoder\.|decoder\.)?layers\.\d+)(.*)")


class SizePoint(NamedTuple):
    """Sizes: B, T and T_src (None if the model has no separate encoder, or one of fixed length)."""

    batch: Any
    tokens: Any
    source: Any

    def __str__(self) -> str:
        source = "" if self.source is None else f", T_src = {self.source}"
        return f"B = {self.batch}, T = {self.tokens}{source}"


class Subject:
    """A model on meta, or on a device, with real weights and every layer.

    On meta `thin_net` has one layer of each kind: layers of one kind are built from the same part, and the point that
    runs every layer shows that they cost the same.
    """

    def __init__(
        self, model: Model, device: str = "meta", dtype: torch.dtype = torch.float32, lengths: Lengths = "auto"
    ) -> None:
        self.model, self.device, self.dtype = model.language(), device, dtype
        self.lengths = lengths if device == "meta" else "points"
        self.notes: list[str] = []

    @cached_property
    def net(self) -> nn.Module:
        """The whole model's modules."""
        return build(self.model, device=self.device, dtype=self.dtype)

    @cached_property
    def thin_model(self) -> Model:
        """The model with one layer of each kind (and all layers that share its weights)."""
        return replace(self.model, root=self.model.root.with_stacks(_thin))

    @cached_property
    def thin_net(self) -> nn.Module:
        """On meta the modules of `thin_model`, under their paths in the whole model; on a device all modules."""
        return self.net if self.device != "meta" else self.build_thin("meta")

    def build_thin(self, device: str) -> nn.Module:
        """Builds the modules of `thin_model` again."""
        net = build(self.thin_model, device=device, dtype=self.dtype)
        for prefix, stack in self.model.root.halves.items():
            stack_net: Any = net.get_submodule(prefix.removesuffix("."))
            indices = sorted(i for group in _thin(stack).groups for i in group.indices)
            stack_net.layers._modules = {str(i): layer for i, layer in zip(indices, stack_net.layers, strict=True)}
            stack_net.paths = [f"{prefix}layers.{i}" for i in indices]
        return net

    def expand_layers(self, measured: Mapping[str, V]) -> dict[str, V]:
        """Figures measured on `thin_net`, repeated for all the layers that each of its layers represents."""
        result: dict[str, V] = {}
        for path, value in measured.items():
            layer = _LAYER.fullmatch(path)
            for copy in self._copies.get(layer[1], [layer[1]]) if layer and self.device == "meta" else [""]:
                name = copy + layer[2] if copy and layer else path
                result[name] = result[name] + value if name in result else value  # type: ignore[operator]
        return result

    @cached_property
    def _copies(self) -> dict[str, list[str]]:
        """The layers that each layer of `thin_net` represents; layers with shared weights map to the first of them."""
        copies: dict[str, list[str]] = {}
        for prefix, stack in self.model.root.halves.items():
            for group in stack.groups:
                paths = [f"{prefix}layers.{i}" for i in group.indices]
                copies |= dict.fromkeys(paths, paths[:1]) if group.shared else {paths[0]: paths}
        return copies

    @cached_property
    def longest(self) -> int | None:
        """Rows of the shortest table of positions; None without one."""
        tables = [stack.embedding.positions for stack in self.model.root.halves.values() if stack.embedding]
        return min([table.rows for table in tables if table is not None], default=None)

    @cached_property
    def points(self) -> list[SizePoint]:
        """Five sizes at which to measure; fewer if the model has fewer positions."""
        if self.model.fixed_length:
            return [SizePoint(batch, 1, None) for batch in (1, 2, 3, 5, 8)]
        rows = self.longest or max(point[1] for point in POINTS)
        has_source = self.model.has_encoder_apart and not self.model.reads_no_ids
        points = [SizePoint(b, min(t, rows), min(s, rows) if has_source else None) for b, t, s in POINTS]
        return list(dict.fromkeys(points))

    def runs(self) -> Iterator[tuple[SizePoint, nn.Module, Callable[[Mapping[str, Any]], dict[str, Any]]]]:
        """Each point with the modules to run, and the function that turns their figures into the whole model's."""
        for number, point in enumerate(self.points):
            all_layers = self.device != "meta" or number == min(EVERY_LAYER_AT, len(self.points) - 1)
            yield point, *self.layers_to_run(all_layers)

    def layers_to_run(self, all_layers: bool) -> tuple[nn.Module, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        """The modules of all layers or of one of each kind, and the function that turns figures into the model's."""
        return (self.net, dict) if all_layers else (self.thin_net, self.expand_layers)

    def inputs(self, point: SizePoint, device: str | None = None) -> tuple[Tensor, ...]:
        """Random inputs; all but ids have the modules' dtype."""
        tensors = inputs(self.model, *point, device=device or self.device)
        return tuple(x.to(self.dtype) if x.is_floating_point() else x for x in tensors)

    def ledger(self, point: SizePoint, **conventions: Any) -> Ledger:
        return self.model.ledger(point.batch, point.tokens, 0, point.source, **conventions)

    @property
    def letters(self) -> SizePoint:
        """The sizes as symbols; a length that is always 1 has none."""
        if self.longest == 1 and not self.model.fixed_length:
            return SizePoint(B, 1, self.points[0].source and 1)
        return SizePoint(B, T, T_SRC if self.model.has_encoder_apart and not self.model.reads_no_ids else None)

    def trace(self, trace: Callable[[Symbols | OneSize, SizePoint], V], what: str, device: str = "meta") -> V:
        """The result of a trace with symbolic inputs; with only the batch symbolic if `lengths` is "points" or the
        trace allows no symbolic length. Errors: `NotForAll` in the second case if `lengths` is "symbolic"."""
        if self.lengths != "points":
            try:
                return trace(self.symbols(device), self.letters)
            except NotForAll as refusal:
                if self.lengths == "symbolic":
                    raise
                self.notes.append(f"{what} at one length: {refusal}")
        return trace(*self.at_one_length(device))

    def at_one_length(self, device: str) -> tuple[OneSize, SizePoint]:
        """Inputs with a symbolic batch, and more tokens than every window."""
        past = max((end for leaf in self.model.root.leaves() for end in leaf.breakpoints), default=0)
        lengths = LONG[0] + past, LONG[1]
        tokens, source = (min(length, self.longest or length) for length in lengths)
        source_letter = self.letters.source
        point = SizePoint(B, 1 if self.model.fixed_length else tokens, None if source_letter is None else source)
        sizes = point._replace(batch=PRIME)
        return OneSize(lambda: self.inputs(sizes, device), str(point).replace("B = B", "all B")), point

    def symbols(self, device: str = "meta") -> Symbols:
        """Inputs whose sizes are symbols. A dimension is identified by changing one size at a time."""
        base = self.points[min(EVERY_LAYER_AT, len(self.points) - 1)]
        sample = self.inputs(base, device)
        sizes: list[list[SymbolicSize | None]] = [[None] * tensor.dim() for tensor in sample]
        for i, letter in enumerate(self.letters):
            if base[i] is not None and base[i] > 1:
                changed = self.inputs(base._replace(**{SizePoint._fields[i]: base[i] - 1}), "meta")
                for axes, before, after in zip(sizes, sample, changed, strict=True):
                    for axis in range(before.dim()):
                        if before.shape[axis] != after.shape[axis]:
                            axes[axis] = SymbolicSize(letter, before.shape[axis] - after.shape[axis])
        return Symbols(sample, tuple(map(tuple, sizes)))


def _thin(stack: Stack) -> Stack:
    groups = (g if g.shared else g._replace(indices=g.indices[:1], count=1) for g in stack.groups)
    return replace(stack, groups=tuple(groups))
