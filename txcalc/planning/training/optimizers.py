"""Optimizer state per tensor, to the byte, each with its source."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from txcalc.num import ceil_div, product

Shape = tuple[int, ...]
Size = Callable[[Shape, int, bool], int]
BLOCK, SMALLEST = 256, 4096  # bitsandbytes: 8-bit numbers per fp32 scale; smaller tensors stay in fp32


class Optimizer(NamedTuple):
    """An optimizer; `size` gives the bytes of its state for a tensor on one rank, 0 where that has no elements.

    Of       the shape; bytes per element of the master weights, or of the weights if there are none; and whether it
             is a matrix between hidden vectors, which Muon alone treats otherwise
    Counts   after the first step
    Omits    a step counter of 4 bytes per tensor, which PyTorch keeps on the CPU
    """

    what: str
    source: str
    size: Size
    small_size: Size | None = None  # of tensors under SMALLEST elements, where it differs
    like_gradient: bool = False  # its state is a copy of the first gradient, in the gradient's shape
    newton_schulz: int = 0  # iterations that orthogonalise the whole gradient of a matrix in a block
    fused: bool = False  # AdamW's arithmetic, whose kernel is measured


def _states(number: int) -> Size:
    """Copies in the dtype of the master weights or weights."""
    return lambda shape, dtype, hidden: number * dtype * product(shape)


def _adamw_8bit(shape: Shape, dtype: int, hidden: bool) -> int:
    elements = product(shape)
    return 2 * (elements + 4 * ceil_div(elements, BLOCK))


def _muon(shape: Shape, dtype: int, hidden: bool) -> int:
    return product(shape) * dtype * (1 if hidden else 2)


def _adafactor(shape: Shape, dtype: int, hidden: bool) -> int:
    if len(shape) < 2:
        return dtype * product(shape)
    *outer, rows, columns = shape
    return dtype * product(outer) * (rows + columns) if product(shape) else 0


OPTIMIZERS = {
    "adamw": Optimizer("two moments", "Loshchilov and Hutter 2017 (arXiv 1711.05101)", _states(2), fused=True),
    "adamw-bf16": Optimizer(
        "two moments in bf16",
        "torchtitan docs/bf16_optimizer_states.md",
        lambda shape, dtype, hidden: 4 * product(shape),
        fused=True,
    ),
    "adamw-8bit": Optimizer(
        f"two moments in 8 bits, with an fp32 scale per {BLOCK}; tensors under {SMALLEST:,} elements in fp32",
        "Dettmers et al. 2021 (arXiv 2110.02861); bitsandbytes 0.45: block size 256, min_8bit_size 4096",
        _adamw_8bit,
        small_size=lambda shape, dtype, hidden: 2 * 4 * product(shape),
    ),
    "sgd": Optimizer("no state", "Robbins and Monro 1951", _states(0)),
    "sgd-momentum": Optimizer("a momentum", "Polyak 1964; torch.optim.SGD", _states(1), like_gradient=True),
    "lion": Optimizer("one moment", "Chen et al. 2023 (arXiv 2302.06675)", _states(1)),
    "muon": Optimizer(
        "a momentum for matrices between hidden vectors, AdamW's two moments for all else",
        "Jordan et al. 2024; torch.optim.Muon",
        _muon,
        newton_schulz=5,
    ),
    "adafactor": Optimizer(
        "second moments of a matrix's rows and columns, and of every element of a vector",
        "Shazeer and Stern 2018 (arXiv 1804.04235); torch.optim.Adafactor",
        _adafactor,
    ),
}
