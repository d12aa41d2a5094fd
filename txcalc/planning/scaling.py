"""Scaling laws: the loss of a model of N parameters after D tokens, and the optimal N and D for a compute budget.

Every law here has the form L(N, D) = E + A/N^α + B/D^β, in nats per token of the tokenizer it was fitted with. N counts
all parameters of a dense decoder, including embeddings; compute is C = 6·N·D.

On C = 6·N·D the loss is least at N = G·(C/6)^(β/(α+β)), D = (C/6)/N, with G = (α·A/(β·B))^(1/(α+β)).

Source   Hoffmann et al. 2022 (arXiv 2203.15556), section 3.3; for each law's constants see `scaling.json`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError, UnknownName
from txcalc.model import Model
from txcalc.planning.gradients import FLOPS
from txcalc.units import short

EPOCHS = 44  # the most that Muennighoff et al. fitted
TOKENS_PER_PARAM = 20  # the rule of thumb: 1 B parameters on 20.2 B tokens (Hoffmann et al. 2022, table 3)


class ScalingLaw(NamedTuple):
    """Constants of L(N, D) = E + A/N^α + B/D^β, their source, and the data they were fitted to.

    interval   95 % confidence interval of a constant, if published
    params     smallest (0: not published) and largest N of the fit; `tokens`: the same of D
    data       data of the fit, in words
    repeats    R_D* and R_N* of repeated data; None if the law has no term for repeated data
    """

    name: str
    title: str
    E: float
    A: float
    B: float
    alpha: float
    beta: float
    params: tuple[float, float]
    tokens: tuple[float, float]
    data: str
    source: str
    interval: Mapping[str, tuple[float, float]] = {}
    repeats: tuple[float, float] | None = None

    @property
    def ratio(self) -> float:
        """G, the factor of the optimal N."""
        return float((self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta)))

    def loss(self, params: float, tokens: float, unique: float | None = None) -> float:
        """Nats per token after `tokens`, of which `unique` are distinct (None: all).

        Source   of repeated data: Muennighoff et al. 2023 (arXiv 2305.16264), section 3.1 and equation 6
        """
        if self.repeats:
            data, size = self.repeats
            unique = tokens if unique is None else min(unique, tokens)
            useful = min(params, self.params_for(unique))
            tokens = effective_amount(unique, tokens, data)
            params = effective_amount(useful, params, size)
        return float(self.E + self.A / params**self.alpha + self.B / tokens**self.beta)

    def optimum(self, compute: float) -> tuple[float, float]:
        """The optimal N and D for a budget of FLOPs, without repeated data."""
        budget = compute / FLOPS
        params = self.ratio * budget ** (self.beta / (self.alpha + self.beta))
        return params, budget / params

    def tokens_for(self, params: float) -> float:
        """The D for which N = `params` is optimal."""
        budget = (params / self.ratio) ** ((self.alpha + self.beta) / self.beta)
        return float(budget / params)

    def params_for(self, tokens: float) -> float:
        """The N for which D = `tokens` is optimal."""
        budget = (tokens * self.ratio) ** ((self.alpha + self.beta) / self.alpha)
        return float(budget / tokens)

    def limited(self, compute: float, unique: float) -> tuple[float, float]:
        """The optimal N and D for a budget with `unique` tokens of data, to six digits, by ternary search: the loss
        along C = 6·N·D has one minimum, without a closed form."""
        low, high = 0.0, log(compute / FLOPS)
        for _ in range(120):
            left, right = low + (high - low) / 3, high - (high - low) / 3
            better = self._on(compute, exp(left), unique) <= self._on(compute, exp(right), unique)
            low, high = (low, right) if better else (left, high)
        return exp(low), compute / FLOPS / exp(low)

    def _on(self, compute: float, params: float, unique: float) -> float:
        return self.loss(params, compute / FLOPS / params, unique)


def effective_amount(unique: float, total: float, decay: float) -> float:
    """The amount of unique data equivalent to `total` with repetitions: unique·(1 + R*·(1 − e^(−R/R*)))."""
    return unique * (1 + decay * (1 - exp(-max(0.0, total / unique - 1) / decay)))


def _law(table: Mapping[str, Any]) -> ScalingLaw:
    """A law from its JSON table, in which pairs are lists."""
    pairs = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
    interval = {key: tuple(ends) for key, ends in table.get("interval", {}).items()}
    return ScalingLaw(**{**table, **pairs, "interval": interval})


# Muennighoff et al. published the logarithms of E, A and B: 0.6254804, 6.255414, 7.3049974.
_DATA = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
LAWS = {law.name: law for law in map(_law, _DATA)}


class LossPoint(NamedTuple):
    """N, D, and their loss."""

    params: float
    tokens: float
    loss: float


class ScalingAnswer(NamedTuple):
    """A law's loss for the requested N and D (optimal ones if only a budget, N or D is given) and for the optimal ones
    at the same compute; warnings if it is used outside its fitted range."""

    law: ScalingLaw
    asked: LossPoint
    best: LossPoint
    warnings: tuple[str, ...]

    @property
    def compute(self) -> float:
        return FLOPS * self.asked.params * self.asked.tokens


class ScalingQuestion(NamedTuple):
    """Two of N, D and C, or one, for which the others are to be optimal; the number of distinct tokens."""

    params: int | None = None
    tokens: int | None = None
    compute: int | None = None
    unique: int | None = None

    def checked(self) -> ScalingQuestion:
        """Errors: `InputError` with every fault."""
        options = {"--params": self.params, "--train-tokens": self.tokens, "--compute": self.compute}
        numbers = {**options, "--unique-tokens": self.unique}
        faults: list[Fault | str] = [
            Fault(name, number, "a number above 0") for name, number in numbers.items() if number == 0
        ]
        flags = [name for name, number in options.items() if number is not None]
        if not flags:
            faults.append(
                "give one or two of --params, --train-tokens and --compute. Example: txcalc scale --params 8B"
            )
        if len(flags) == 3:
            faults.append("give at most two of --params, --train-tokens and --compute: they fix the third")
        if self.unique is not None and len(flags) == 1 and self.compute is None:
            faults.append(f"--unique-tokens with {flags[0]} alone: give --compute, or two of the three")
        if not faults and self.compute is not None:
            least = max(1000, self.params or self.tokens or 1) * FLOPS
            if self.compute < least:
                faults.append(Fault("--compute", self.compute, f"at least {least:,} FLOPs"))
        if faults:
            raise InputError("scale", faults)
        return self


def twenty_to_one(question: ScalingQuestion) -> tuple[float, float]:
    """N and D by the rule of 20 tokens per parameter: of the given one, or of the budget of both."""
    params, tokens, compute, _ = question
    if params and tokens:
        compute = FLOPS * params * tokens
    if compute is not None:
        size = (compute / FLOPS / TOKENS_PER_PARAM) ** 0.5
    else:
        size = params or (tokens or 0) / TOKENS_PER_PARAM
    return size, size * TOKENS_PER_PARAM


def laws(text: str | None, unique: int | None) -> list[ScalingLaw]:
    """Laws by name, separated by commas; None: all that apply. Errors: `UnknownName`, `InputError`."""
    names = list(LAWS) if text is None else list(dict.fromkeys(name.strip().lower() for name in text.split(",")))
    for name in names:
        if name not in LAWS:
            raise UnknownName("--law", "law", name, list(LAWS), f"one of {', '.join(LAWS)}")
    selected = [LAWS[name] for name in names]
    if unique is None:
        return selected
    without = [law.name for law in selected if not law.repeats]
    if text is not None and without:
        message = f"no term for repeated data in {' and '.join(without)} (muennighoff has one)"
        raise InputError("--unique-tokens", [message])
    return [law for law in selected if law.repeats]


def ask(law: ScalingLaw, question: ScalingQuestion) -> ScalingAnswer:
    """One law's answer to a checked question."""
    params, tokens, compute, unique = question
    if params and compute:
        point = (float(params), compute / FLOPS / params)
    elif tokens and compute:
        point = (compute / FLOPS / tokens, float(tokens))
    elif params and tokens:
        point = (float(params), float(tokens))
    elif params:
        point = (float(params), law.tokens_for(params))
    elif tokens:
        point = (law.params_for(tokens), float(tokens))
    else:
        assert compute is not None
        point = law.optimum(compute) if unique is None else law.limited(compute, unique)
    best = point
    if sum(number is not None for number in question[:3]) == 2:
        budget = FLOPS * point[0] * point[1]
        best = law.optimum(budget) if unique is None else law.limited(budget, unique)
    sizes = {"N": (point[0], law.params), "D": (point[1], law.tokens)}
    outside = [
        f"{name} = {short(size)} (fitted on {f'{short(low)} to' if low else 'up to'} {short(high)})"
        for name, (size, (low, high)) in sizes.items()
        if not low <= size <= high
    ]
    warnings = [f"{law.name}: outside its fitted range: {' and '.join(outside)}"] if outside else []
    if unique and point[1] / unique > EPOCHS:
        warnings.append(f"{law.name}: {point[1] / unique:,.0f} epochs are outside its fitted range, up to {EPOCHS}")
    requested, optimal = (LossPoint(*sizes, law.loss(*sizes, unique)) for sizes in (point, best))
    return ScalingAnswer(law, requested, optimal, tuple(warnings))


def counted_params(model: Model) -> int:
    """N, the parameters of a model. Errors: `InputError` for a model that no law describes."""
    faults = []
    if model.kind not in ("decoder", "hybrid", "recurrent"):
        faults.append(f"the laws describe decoders; {model.name} is a model of kind {model.kind!r}")
    if model.active != model.params:
        faults.append(f"the laws describe dense models; {model.name} has experts (give --params for the N to use)")
    if faults:
        raise InputError(model.name, faults)
    return model.params
