"""Seconds that a rank waits for the tp collectives of its sharded products.

Source   Megatron-LM d98e8a64, core/tensor_parallel/layers.py (LinearWithGradAccumulationAndAsyncCommunication,
         ColumnParallelLinear, RowParallelLinear); nanotron 67c5ebb6, parallel/tensor_parallel/functional.py;
         torch 2.13, distributed.tensor.parallel, keeps what it gathered and waits at once for what it reduces
Omits    Transformer Engine's userbuffers, which send parts of a product while others are computed
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from txcalc.planning.machine import Machine
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import RankLeaf


class ProductTime(NamedTuple):
    """Seconds of products: forward, and of the gradients of their inputs and of their weights."""

    forward: float = 0.0
    inputs: float = 0.0
    weights: float = 0.0

    @classmethod
    def of(cls, products: Iterable[ProductTime]) -> ProductTime:
        """The total over several products."""
        return cls(*map(sum, zip(*products, strict=True)))


def repeats_gather(join: RankLeaf, recipe: Recipe) -> bool:
    """Whether backward repeats a gather, for the gradient of weights whose product saved only its slice of the
    input."""
    learns = any(product.learns for product in join.products)
    gathers = any(transfer.kind == "all_gather" for transfer in join.entry.transfers)
    return recipe.regathers_inputs and gathers and learns


def waits(
    join: RankLeaf, kind: str, seconds: float, products: ProductTime, recipe: Recipe, machine: Machine
) -> tuple[float, float]:
    """Seconds that a rank waits, forward and backward, for a collective of the given kind and duration next to the
    given products, and for its counterpart in backward.

    Gradients of a gathered or all-reduced input are reduced while the weights' gradients are computed; a repeated
    gather overlaps with the input's gradient; the gradient of a reduce-scattered output is gathered."""
    rules, lost = recipe.rules, machine.lost
    first_share = 1 / recipe.layout.tp if rules.overlaps_gather and machine.overlap else 0.0
    there, back = join.passes
    if kind == "reduce_scatter":
        return there * seconds, back * lost(seconds, first_share * products.inputs)
    hides = float(machine.overlap and kind in rules.hidden_backward)
    forward = lost(seconds, first_share * products.forward) if kind == "all_gather" else seconds
    repeated = lost(seconds, hides * products.inputs) if repeats_gather(join, recipe) else 0.0
    return there * forward, back * lost(seconds, hides * products.weights) + repeated
