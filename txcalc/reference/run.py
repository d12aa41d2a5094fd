"""One forward pass of the reference modules: its options, the state that modules share, and the cache.

All options give the same outputs except `static` and `even`, which are for counting and timing. The default is for
running; `tracing` shows all matrix products to profilers, and no shape depends on data, so that batch and length may be
symbols.

Letters: B batch · T new tokens · S keys (past + T) · D d_model · h heads · h_kv key/value heads · d width per head.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from msgspec import Struct, field
from msgspec.structs import replace
from torch import Tensor, nn


class Mode(NamedTuple):
    """The forms in use.

    explicit    attention and convolutions as plain matrix products (fvcore skips PyTorch's fused attention silently);
                False: `scaled_dot_product_attention` and `conv1d`
    static      no shape and no loop depends on data or on a length: all tokens go to the first k experts, and recurrent
                states come from a cumulative sum (it overflows on long inputs, and omits the delta rule's correction)
    even        experts take tokens in turn, regardless of scores: balanced, and no shape depends on data
    absorbed    MLA without expanding its latents
    last        logits for the last position only
    checkpoint  blocks save only their input, and recompute in backward
    grouped     queries that share a key are stacked as rows where a mask is added: PyTorch's fused kernels support no
                groups with a mask, and its unfused one saves the scores
    shares      between branches, x is split by positions into this number of shares (sequence parallel)
    """

    explicit: bool = False
    static: bool = False
    even: bool = False
    absorbed: bool = False
    last: bool = False
    checkpoint: bool = False
    grouped: bool = False
    shares: int = 1


_current = Mode()  # a plain global: backward recomputes blocks in its own threads


def current() -> Mode:
    """The forms in use now."""
    return _current


@contextmanager
def mode(**forms: Any) -> Iterator[Mode]:
    """A context in which the given fields of `Mode` are set."""
    global _current
    before = _current
    _current = before._replace(**forms)
    try:
        yield _current
    finally:
        _current = before


@contextmanager
def tracing(**forms: object) -> Iterator[Mode]:
    """`mode(explicit=True, static=True)`, and other fields: the mode for profilers."""
    with mode(**{"explicit": True, "static": True, **forms}) as forms_set:
        yield forms_set


class TensorOptions(NamedTuple):
    """Device and dtype of new parameters."""

    device: torch.device
    dtype: torch.dtype

    def parameter(self, *shape: int) -> nn.Parameter:
        """A parameter to be initialised later (`initial`)."""
        return nn.Parameter(torch.empty(shape, device=self.device, dtype=self.dtype))


class CacheTensors:
    """Cached tensors of earlier tokens, by the ledger's path, batch first.

    Attention caches k and v (B, S, h_kv, d), with a window the last W; MLA the latent and the rotated key that all
    heads share; an index its key; a recurrent mixer its state, and its convolution's last K columns.
    """

    def __init__(self, room: int = 0) -> None:
        """`room`: tokens after the first pass for which growing tensors are preallocated; 0: each pass copies the whole
        cache."""
        self.past, self.room = 0, room
        self.tensors: dict[str, tuple[Tensor, ...]] = {}
        self.buffers: dict[str, tuple[Tensor, ...]] = {}  # with room: `tensors` are slices of these
        self.distances: dict[str, Tensor] = {}  # projected relative positions, which depend on no input

    def copy(self) -> CacheTensors:
        """A cache with the same tensors, for another pass after the same tokens."""
        result = CacheTensors()
        result.past, result.tensors, result.distances = self.past, {**self.tensors}, {**self.distances}
        return result

    def append(self, path: str, *new: Tensor) -> tuple[Tensor, ...]:
        """The cached tensors at `path` (B, past, …), followed by the new ones (B, T, …): (B, S, …)."""
        cached = self.tensors.get(path)
        start = cached[0].shape[1] if cached else 0
        end = start + new[0].shape[1]
        if self.room:
            if cached is None:
                self.buffers[path] = tuple(n.new_empty(n.shape[0], end + self.room, *n.shape[2:]) for n in new)
            for buffer, n in zip(self.buffers[path], new, strict=True):
                buffer[:, start:end] = n
            new = tuple(buffer[:, :end] for buffer in self.buffers[path])
        elif cached is not None:
            new = tuple(torch.cat(pair, 1) for pair in zip(cached, new, strict=True))
        self.tensors[path] = new
        return new

    def elements(self) -> dict[str, int]:
        """Path → cached elements of one sequence."""
        return {path: sum(tensor[0].numel() for tensor in tensors) for path, tensors in self.tensors.items()}


class Run(Struct, frozen=True):
    """One forward pass of one stack, for its parts.

    past        tokens in the cache
    positions   of the new tokens (T,)
    layer       the path of the running layer: layers may share a module, but no cache
    memory      the encoder's output; None where the cache has its keys and values already
    bias        the stack's relative bias (h, T, S)
    distances   the stack's vectors (rows, D) of relative distances
    tables      built once per pass: masks, angles
    index       the index of the running layer in the stack
    group       the name of its layer kind
    lent        keys and values (B, S, h_kv, d) of the latest layer of each kind; a `UserDict`, since FSDP would pass a
                copy of a dict to each layer
    first       the first layer's input (B, T, D)
    inputs      for each layer, two vectors (B, T, L, width): `parts.model.LayerInputs`
    """

    past: int
    positions: Tensor
    cache: CacheTensors | None = None
    layer: str = ""
    memory: Tensor | None = None
    bias: Tensor | None = None
    distances: Tensor | None = None
    tables: dict[str, Tensor] = field(default_factory=dict)
    index: int = 0
    group: str = ""
    lent: UserDict[str, tuple[Tensor, ...]] = field(default_factory=UserDict)
    inputs: tuple[Tensor, Tensor] | None = None
    first: Tensor | None = None

    def at(self, layer: str, index: int = 0, group: str = "") -> Run:
        """The same pass in one of the stack's layers."""
        return replace(self, layer=layer, index=index, group=group)

    def build_once(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """A table that is built once per pass, under `key`."""
        name = repr(key)
        if name not in self.tables:
            self.tables[name] = make()
        return self.tables[name]

    def recall(self, place: str) -> tuple[Tensor, ...] | None:
        """What a part of this layer cached in the last pass."""
        return None if self.cache is None else self.cache.tensors.get(f"{self.layer}.{place}")

    def keep(self, place: str, *tensors: Tensor) -> None:
        """Caches tensors for the next pass, if there is a cache."""
        if self.cache is not None:
            self.cache.tensors[f"{self.layer}.{place}"] = tensors


class Cached(nn.Module):
    """A module with a cache; `place` is its path within the layer, set by the block."""

    place = ""
