"""The cost of generating a text token by token, with and without the cache.

A generation has `context` tokens at its end: one pass over a prompt, then one pass per token. With the cache a pass
computes its new token; without it all tokens, with the keys and values of earlier ones again. Sums over passes are
exact: a pass's cost is a polynomial of at most the second degree in the tokens, on intervals that end at the windows,
and each interval is summed from its first three values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import comb, lcm
from typing import NamedTuple

from msgspec import Struct

from txcalc.errors import Fault, InputError
from txcalc.model import Model
from txcalc.num import triangle
from txcalc.planning.crossover import Prefills, lengths

FLOPS = {"dense": "flops", "masked": "flops_masked"}


class Generation(Struct, frozen=True):
    """The generation of one sequence of `context` tokens.

    kv_computed     positions for which a layer computes K and V, over all passes
    kv_redundant    those computed again, without a cache
    flops           FLOPs of all passes
    """

    context: int
    passes: int
    kv_computed: int
    kv_computed_without_cache: int
    kv_redundant: int
    flops: int
    flops_without_cache: int


def generations(model: Model, contexts: Sequence[int], prompt: int = 1, attention: str = "dense") -> list[Generation]:
    """A generation for each context; logits of the last position only, latents absorbed in passes of one token.

    Errors: `InputError` for a model that is no plain decoder, or a prompt longer than a context.
    """
    prefills = _prefills(model)
    results = []
    for context in contexts:
        if not 1 <= prompt <= context:
            raise InputError("options", [Fault("--prompt", prompt, f"a whole number from 1 to {context:,} tokens")])
        quantity = FLOPS[attention]
        ends = _polynomial_ends(prefills, context)
        prompt_flops = _prefill_cost(model, quantity)(prompt)
        steps = sum_quadratic(_step_cost(model, quantity), prompt, context - 1, ends)
        uncached = sum_quadratic(_prefill_cost(model, quantity), prompt, context, ends)
        without = triangle(context) - triangle(prompt - 1)
        passes, redundant = context - prompt + 1, without - context
        results.append(Generation(context, passes, context, without, redundant, prompt_flops + steps, uncached))
    return results


class FlopsLaw(NamedTuple):
    """FLOPs as a polynomial in n, the tokens at the end, from `start` on: coefficients of n⁰, n¹ … over
    `denominator`."""

    start: int
    coefficients: tuple[int, ...]
    denominator: int

    def at(self, n: int) -> Fraction:
        return Fraction(sum(factor * n**power for power, factor in enumerate(self.coefficients)), self.denominator)

    def text(self) -> str:
        """`(5·n³ − 7·n)/3`."""
        terms = ""
        for factor, power in zip(reversed(self.coefficients), ("·n³", "·n²", "·n", ""), strict=True):
            if factor:
                sign = ((" + ", " − ") if terms else ("", "−"))[factor < 0]
                terms += f"{sign}{abs(factor)}{power}"
        return terms if self.denominator == 1 else f"({terms})/{self.denominator}"


def laws(model: Model, prompt: int = 1, attention: str = "dense") -> tuple[FlopsLaw, FlopsLaw] | None:
    """FLOPs with the cache and without it, past every window; None if chunked attention makes them no polynomial."""
    prefills = _prefills(model)
    if prefills.chunk is not None:
        return None
    quantity = FLOPS[attention]
    start = max([prompt, *(window + 1 for window in prefills.windows)])
    prefill, step = _prefill_cost(model, quantity), _step_cost(model, quantity)
    ends, lengths = _polynomial_ends(prefills, start + 4), range(start, start + 5)
    with_cache = [prefill(prompt) + sum_quadratic(step, prompt, n - 1, ends) for n in lengths]
    without = [sum_quadratic(prefill, prompt, n, ends) for n in lengths]
    return _law(start, with_cache), _law(start, without)


def sum_quadratic(cost: Callable[[int], int], first: int, last: int, ends: Sequence[int]) -> int:
    """Σ cost(n) over n = first … last, for a cost of at most the second degree between `ends`."""
    total = 0
    starts = [first, *(end for end in sorted(set(ends)) if first < end <= last), last + 1]
    for low, high in pairwise(starts):
        number = high - low
        values = [cost(low + i) for i in range(min(number, 3))]
        if number <= 3:
            total += sum(values)
            continue
        slope, curvature = values[1] - values[0], values[2] - 2 * values[1] + values[0]
        for n in {number // 2, number - 1}:
            if cost(low + n) != values[0] + n * slope + comb(n, 2) * curvature:
                raise ArithmeticError(f"not quadratic from {low} to {high - 1}")
        total += number * values[0] + comb(number, 2) * slope + comb(number, 3) * curvature
    return total


def _prefills(model: Model) -> Prefills:
    if model.has_encoder_apart or model.description.kind != "decoder":
        raise InputError(model.name, ["is not a plain decoder: generation without a cache is not counted"])
    return lengths(model, logits="last")


def _prefill_cost(model: Model, quantity: str) -> Callable[[int], int]:
    return lambda tokens: model.ledger(tokens=tokens, logits="last").total(quantity)


def _step_cost(model: Model, quantity: str) -> Callable[[int], int]:
    return lambda past: model.ledger(past=past, logits="last", mla="absorbed").total(quantity)


def _polynomial_ends(prefills: Prefills, last: int) -> list[int]:
    """Lengths at which the polynomial may change: every window, and the end of every chunk."""
    return [*prefills.windows, *(range(0, last + 1, prefills.chunk) if prefills.chunk is not None else ())]


def _law(start: int, values: Sequence[int]) -> FlopsLaw:
    """The polynomial of at most the third degree through five values, from `start` on."""
    rows, heads = list(values), []
    for _ in range(4):
        heads.append(rows[0])
        rows = [b - a for a, b in pairwise(rows)]
    if any(rows):
        raise ArithmeticError("a sum that grows faster than the cube of the length")
    # Σ Δᵏ·C(n − start, k), and C(n − start, k) as a polynomial in n
    total = [Fraction(0)] * 4
    basis = [Fraction(1)]
    for k, head in enumerate(heads):
        for power, factor in enumerate(basis):
            total[power] += head * factor
        shifted = [Fraction(0), *basis]
        for power, factor in enumerate(basis):
            shifted[power] -= factor * (start + k)
        basis = [factor / (k + 1) for factor in shifted]
    denominator = lcm(*(factor.denominator for factor in total))
    return FlopsLaw(start, tuple(int(factor * denominator) for factor in total), denominator)
