"""A training step: its FLOPs, and the memory of every rank under a layout.

recipe = Recipe(Layout(fsdp=8), tokens=8192)
plan = memory(load("llama-3.1-8b"), recipe)            `plan.fullest.allocated`, `plan.ranks`
largest(model, recipe, "micro_batch", capacity)        the largest that fits
"""

from __future__ import annotations

from txcalc.planning.gradients import Recompute, reached, recomputed, step_flops, training_flops
from txcalc.planning.layout import Layout
from txcalc.planning.training.frameworks import FRAMEWORKS, SCHEDULES, Framework
from txcalc.planning.training.inverse import fewest, largest
from txcalc.planning.training.memory import CATEGORIES, RESERVED, RankPeak, Ranks, memory, rank_of
from txcalc.planning.training.optimizers import OPTIMIZERS
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.schedules import Action, in_flight, order

__all__ = [
    "CATEGORIES",
    "FRAMEWORKS",
    "OPTIMIZERS",
    "RESERVED",
    "SCHEDULES",
    "Action",
    "Framework",
    "Layout",
    "RankPeak",
    "Ranks",
    "Recipe",
    "Recompute",
    "fewest",
    "in_flight",
    "largest",
    "memory",
    "order",
    "rank_of",
    "reached",
    "recomputed",
    "step_flops",
    "training_flops",
]
