"""A whole training run: days, GPU-hours, cost, energy and CO2 at a speed; and the inverse, for a deadline or a budget.

Source   of the sums: Touvron et al. 2023 (arXiv 2302.13971), section 6: GPU-hours · watts · PUE, and the grid's factor
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from msgspec import Struct

from txcalc.errors import Fault, InputError
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.planning.gradients import FLOPS, training_flops
from txcalc.planning.memory import has_frozen_weights

PUE = 1.1  # power of a data centre over that of its computers: Touvron et al. 2023, section 6
GRID = 385.0  # grams of CO2 equivalents per kWh, the average of the United States: ibid.


class TrainingRun(Struct, frozen=True):
    """The cost of training on `train_tokens` at a given speed.

    compute      FLOPs by 6·N·D, N the active parameters; with frozen weights those that the steps compute
    energy_kwh   of the accelerators at their full power, times PUE; None where their power is not known
    cost         at a price of a GPU-hour; None without one
    """

    train_tokens: int
    compute: int
    days: float
    gpu_hours: float
    cost: float | None
    energy_kwh: float | None
    co2_kg: float | None
    deadline: DeadlineGpus | None
    budget: RunBudget | None
    price: float | None
    power_w: int | None
    pue: float
    grid_g_per_kwh: float


class DeadlineGpus(Struct, frozen=True):
    """Accelerators that finish within `days` at an unchanged speed: a multiple of one replica's."""

    days: float
    gpus: int


class RunBudget(Struct, frozen=True):
    """Tokens for a sum of money."""

    money: float
    tokens: int


class Terms(NamedTuple):
    """Prices and limits of a run."""

    price: float | None = None
    power: int | None = None
    pue: float = PUE
    grid: float = GRID
    deadline: float | None = None
    budget: float | None = None

    def tokens(self, tokens_s: float) -> int | None:
        """Tokens that the budget pays for at `tokens_s` per accelerator; None without a budget."""
        if self.budget is None or self.price is None:
            return None
        return int(self.budget / self.price * 3600 * tokens_s)

    def checked(self) -> Terms:
        """Errors: `InputError` with every fault."""
        faults: list[Fault | str] = []
        if not 1 <= self.pue <= 10:
            faults.append(Fault("--pue", self.pue, "a factor from 1 to 10"))
        if not 0 <= self.grid <= 10_000:
            faults.append(Fault("--grid", self.grid, "grams of CO2 per kWh from 0 to 10,000"))
        for name, value in (("@PRICE", self.price), ("--deadline", self.deadline), ("--budget", self.budget)):
            if value is not None and not 0 < value < 1e15:
                faults.append(Fault(name, value, "a number above 0"))
        if self.budget is not None and self.price is None:
            faults.append("--budget needs a price per GPU-hour (--gpu NAME:N@PRICE)")
        if faults:
            raise InputError("train", faults)
        return self


def flops_per_token(model: Model, length: int) -> Fraction:
    """FLOPs of training on a token: 6·N, N the active parameters; with frozen weights those that a step on sequences of
    this length computes."""
    ledger = model.ledger(1, length)
    if has_frozen_weights(ledger):
        return Fraction(training_flops(ledger), ledger.work.positions)
    return Fraction(FLOPS * model.active)


def tokens_of(
    model: Model, tokens: int | None, compute: int | None, terms: Terms | None = None, length: int = 1
) -> int | None:
    """The tokens of a run: given, or from a budget of FLOPs; `length`: of a sequence. Errors: `InputError`, also for a
    deadline without a run."""
    if tokens is not None and compute is not None:
        raise InputError("train", ["--train-tokens and --compute say the same thing twice: give one of them"])
    if tokens == 0:
        raise InputError("train", [Fault("--train-tokens", 0, "a number above 0")])
    if tokens is compute is None and terms and terms.deadline is not None and terms.budget is None:
        raise InputError("train", ["--deadline needs the size of the run: --train-tokens, --compute or --budget"])
    if compute is None:
        return tokens
    token_flops = flops_per_token(model, length)
    if compute < token_flops:
        raise InputError(
            "train", [Fault("--compute", compute, f"at least {ceil(token_flops):,} FLOPs, those of one token")]
        )
    return compute // token_flops


def run(
    model: Model,
    tokens: int,
    tokens_s: float,
    gpus: int,
    copies: int,
    terms: Terms,
    length: int = 1,
) -> TrainingRun:
    """A run on `gpus` accelerators, each at `tokens_s` tokens per second, with `copies` replicas of the layout, on
    sequences of `length` tokens."""
    hours = tokens / tokens_s / 3600
    energy = None if terms.power is None else hours * terms.power / 1000 * terms.pue
    deadline = budget = None
    if terms.deadline is not None:
        replica_gpus = gpus // copies
        needed = Fraction(hours) / Fraction(24 * terms.deadline * replica_gpus)
        deadline = DeadlineGpus(terms.deadline, replica_gpus * max(1, ceil_div(needed.numerator, needed.denominator)))
    if (affordable := terms.tokens(tokens_s)) is not None and terms.budget is not None:
        budget = RunBudget(terms.budget, affordable)
    return TrainingRun(
        train_tokens=tokens,
        compute=int(flops_per_token(model, length) * tokens),
        days=hours / gpus / 24,
        gpu_hours=hours,
        cost=None if terms.price is None else hours * terms.price,
        energy_kwh=energy,
        co2_kg=None if energy is None else energy * terms.grid / 1000,
        deadline=deadline,
        budget=budget,
        price=terms.price,
        power_w=terms.power,
        pue=terms.pue,
        grid_g_per_kwh=terms.grid,
    )


_DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0}


def parse_days(text: str) -> float:
    """`30d`, `12h`, `4w` in days. Errors: `InputError`."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([hdw])\s*", text, re.ASCII)
    if not match or not float(match[1]):
        raise InputError("--deadline", [Fault("--deadline", text, "a time such as 30d, 12h or 4w")])
    return float(match[1]) * _DAYS[match[2]]
