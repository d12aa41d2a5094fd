"""State of one forward pass that modules share, and the cache.

Letters: B batch · T new tokens · S keys (past + T) · D d_model · h heads · h_kv key/value heads · d width per head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn


class TensorOptions(NamedTuple):
    """Device and dtype of new parameters."""

    device: torch.device
    dtype: torch.dtype

    def parameter(self, *shape: int) -> nn.Parameter:
        """A parameter whose values come later (`initial`)."""
        return nn.Parameter(torch.empty(shape, device=self.device, dtype=self.dtype))


class Cache:
    """What the tokens so far left for later ones; `tensors` by the ledger's path, batch first.

    Attention keeps k and v (B, S, h_kv, d), a window's the last W of them, MLA the latent and the rotated key that all
    heads share, an index its key; a recurrent mixer its state, and the last K columns that its convolution saw.
    """

    def __init__(self, room: int = 0) -> None:
        """`room`: for how many tokens after the first pass what grows has space, into which they are written; without
        it each pass copies all that was kept."""
        self.past, self.room = 0, room
        self.tensors: dict[str, tuple[Tensor, ...]] = {}
        self.buffers: dict[str, tuple[Tensor, ...]] = {}  # where there is room: what `tensors` are the beginnings of
        self.distances: dict[str, Tensor] = {}  # a table: projected relative positions depend on no input

    def append(self, path: str, *new: Tensor) -> tuple[Tensor, ...]:
        """What is kept at `path` (B, past, …) with new tensors (B, T, …) behind it: (B, S, …)."""
        held = self.tensors.get(path)
        start = held[0].shape[1] if held else 0
        end = start + new[0].shape[1]
        if self.room:
            if held is None:
                self.buffers[path] = tuple(n.new_empty(n.shape[0], end + self.room, *n.shape[2:]) for n in new)
            for buffer, n in zip(self.buffers[path], new, strict=True):
                buffer[:, start:end] = n
            new = tuple(buffer[:, :end] for buffer in self.buffers[path])
        elif held is not None:
            new = tuple(torch.cat(pair, 1) for pair in zip(held, new, strict=True))
        self.tensors[path] = new
        return new

    def elements(self) -> dict[str, int]:
        """Elements held at each path for one sequence."""
        return {path: sum(tensor[0].numel() for tensor in held) for path, held in self.tensors.items()}


@dataclass(frozen=True)
class Run:
    """One forward pass of one stack, as its parts see it.

    past        tokens in the cache
    positions   of the new tokens (T,)
    layer       the path of the layer at work: two layers may share one module, never what they remember
    memory      the encoder's output; None where the cache has its keys and values already
    bias        the stack's relative bias (h, T, S)
    distances   the stack's vectors (rows, D) of relative distances
    tables      made once a pass: masks, angles
    index       the number of the layer at work among those of the stack
    group       the name of its layer kind
    lent        keys and values (B, S, h_kv, d) of the last layer so far of each kind
    first       what the first layer reads (B, T, D)
    inputs      for each layer, two vectors (B, T, L, width): `parts.model.LayerInputs`
    """

    past: int
    positions: Tensor
    cache: Cache | None = None
    layer: str = ""
    memory: Tensor | None = None
    bias: Tensor | None = None
    distances: Tensor | None = None
    tables: dict[str, Tensor] = field(default_factory=dict)
    index: int = 0
    group: str = ""
    lent: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    inputs: tuple[Tensor, Tensor] | None = None
    first: Tensor | None = None

    def at(self, layer: str, index: int = 0, group: str = "") -> Run:
        """The same pass in one of the stack's layers."""
        return replace(self, layer=layer, index=index, group=group)

    def once(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """A table that is built once per pass, under `key`."""
        name = repr(key)
        if name not in self.tables:
            self.tables[name] = make()
        return self.tables[name]

    def recall(self, place: str) -> tuple[Tensor, ...] | None:
        """What a part of this layer kept last time."""
        return None if self.cache is None else self.cache.tensors.get(f"{self.layer}.{place}")

    def keep(self, place: str, *tensors: Tensor) -> None:
        """Keeps tensors for the next pass, where there will be one."""
        if self.cache is not None:
            self.cache.tensors[f"{self.layer}.{place}"] = tensors


class Cached(nn.Module):
    """A module with a cache; `place` is its path within the layer, set by the block."""

    place = ""
