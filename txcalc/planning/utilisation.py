"""Utilisation: the share of the peak that a measured or predicted training rate reaches, by published FLOPs counts.

MFU counts the FLOPs of the model, HFU also those of recomputation.
Source   Chowdhery et al. 2022 (arXiv 2204.02311), section 4.1
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from msgspec import Struct

from txcalc.errors import Fault, InputError
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.planning.conventions import CONVENTIONS
from txcalc.planning.gradients import training_flops
from txcalc.planning.memory import has_frozen_weights
from txcalc.planning.terms import Convention, ConventionTerm

# The default conventions of `train`, which count training steps.
REPORTED = ("palm", "megatron-model", "megatron-lm", "llm-foundry", "nanotron", "torchtitan", "llama-3")
COMPUTED = "computed"  # the count of a step with frozen weights


def executed_flops(ledger: Ledger) -> Convention:
    """FLOPs of a training step without gradients of frozen weights."""
    flops = training_flops(ledger)
    recomputed: dict[str, int] = {mode: training_flops(ledger, mode) - flops for mode in ("core", "blocks")}
    formula, terms = (
        "forward and backward, without gradients of frozen weights",
        (ConventionTerm("step", flops, flops),),
    )
    return Convention(COMPUTED, "a training step", formula, "txcalc", terms, recomputed)


class Utilisation(Struct, frozen=True):
    """Model and hardware FLOPs per second over the peak, by a convention, with its model FLOPs per token, a float if
    not whole."""

    name: str
    formula: str
    flops_per_token: int | float
    mfu: float
    hfu: float


def utilisation(
    model: Model,
    ledger: Ledger,
    tokens_s: float,
    peak: float,
    recompute: str = "none",
    pp: int = 1,
    share: Fraction = Fraction(1),
    names: tuple[str, ...] = REPORTED,
) -> list[Utilisation]:
    """Utilisation by each convention that describes the model, at a rate of tokens per second and accelerator.

    recompute   none, core or blocks, in `share` of the layers
    pp          stages of the pipeline
    Errors      `InputError` if only one convention is requested and it does not describe the model, or if any is
                requested and weights are frozen, since every convention counts gradients of all weights
    """
    frozen = has_frozen_weights(ledger)
    if frozen and names is not REPORTED:
        mend = "without --as: the FLOPs that the step computes"
        reason = f"counts gradients of frozen weights, which a step with adapters never computes ({mend})"
        raise InputError(f"--as {names[0]}", [reason])
    rows = []
    for name in (COMPUTED,) if frozen else names:
        try:
            counted = executed_flops(ledger) if frozen else CONVENTIONS[name](model, ledger, "dense", pp)
        except InputError:
            if len(names) == 1:
                raise
            continue
        if counted.counts != "a training step":
            raise InputError(f"--as {name}", ["counts a forward pass, while MFU is of a training step"])
        recomputed = share * (counted.hardware_flops(recompute) - counted.model_flops)
        positions = ledger.work.positions
        model_flops, executed = Fraction(counted.model_flops, positions), (counted.model_flops + recomputed) / positions
        per_token = model_flops.numerator if model_flops.denominator == 1 else float(model_flops)
        rate = tokens_s / peak
        rows.append(Utilisation(name, counted.formula, per_token, float(per_token) * rate, float(executed) * rate))
    return rows


class MeasuredRate(NamedTuple):
    """A measured rate: `number` tok/s per accelerator, seconds per step, or FLOP/s per accelerator."""

    number: float
    unit: str

    def tokens_s(self, tokens: int, gpus: int, flops_per_token: float) -> float:
        """Tokens per second and accelerator, for a step of `tokens` tokens on `gpus` accelerators."""
        if self.unit == "s":
            return tokens / self.number / gpus
        return self.number if self.unit == "tok/s" else self.number / flops_per_token


_UNITS = {"tok/s": "tok/s", "tokens/s": "tok/s", "s": "s", "tflops": "tflops", "tflop/s": "tflops"}


def parse_measured(text: str) -> MeasuredRate:
    """`1007tok/s` (per accelerator), `1.42s` (per step) or `400TFLOPS` (per accelerator). Errors: `InputError`."""
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*([A-Za-z/]+)\s*", text, re.ASCII)
    unit = _UNITS.get(match[2].lower()) if match else None
    if not match or not unit or not float(match[1]):
        expected = "a rate of one accelerator, such as 1007tok/s or 400TFLOPS, or the seconds of a step, such as 1.42s"
        raise InputError("--measured", [Fault("--measured", text, expected)])
    return MeasuredRate(float(match[1]) * (1e12 if unit == "tflops" else 1), unit)
