"""A training step: its FLOPs, and the memory of every rank under a layout.

recipe = Recipe(Layout(fsdp=8), tokens=8192)
plan = memory(load("llama-3.1-8b"), recipe)            `plan.fullest.allocated`, `plan.ranks`
largest(model, recipe, "micro_batch", capacity)        the largest that fits
"""

from __future__ import annotations

from txcalc.planning.gradients import training_flops as training_flops
from txcalc.planning.layout import Layout as Layout
from txcalc.planning.training.answer import fewest_replicas as fewest_replicas, largest as largest
from txcalc.planning.training.memory import Ranks as Ranks, memory as memory, rank_of as rank_of
from txcalc.planning.training.recipe import Recipe as Recipe
from txcalc.planning.training.timeline import in_flight as in_flight, order as order
