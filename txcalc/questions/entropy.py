"""`entropy`: entropy of a distribution, cross-entropy and Kullback–Leibler divergence against another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from math import fsum, isfinite, log, log2
from typing import Annotated

from txcalc.errors import Fault, InputError
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, Result
from txcalc.questions.arguments import split_commas

NATS_PER_BIT = log(2)
Distribution = str | Sequence[float | str]
PROBABILITY = re.compile(r"\s*\d{1,30}(\.\d{0,30}|/0*[1-9]\d{0,29})?\s*", re.ASCII)


class Divergence(Answer):
    """A sum in bits and nats; None: infinite."""

    bits: float | None
    nats: float | None


class Sums(Divergence):
    """A sum with its perplexity, 2 to the bits."""

    perplexity: float | None


class Entropy(Result, tag_field="schema", tag="txcalc/entropy/1", kw_only=True):
    """Entropy of p, and cross-entropy and divergence against q.

    entropy        −Σ p·log2 p
    cross_entropy  −Σ p·log2 q: bits per symbol of p in a code that is optimal for q
    kl             cross_entropy − entropy
    infinite       whether q is 0 where p is not
    """

    p: tuple[float, ...]
    q: tuple[float, ...] | None
    entropy: Sums
    cross_entropy: Sums | None = None
    kl: Divergence | None = None
    infinite: bool | None = None
    notes: tuple[str, ...] = ()


@o.Question("txcalc entropy 0.5,0.5 --against 0.9,0.1")
def entropy(
    p: Annotated[Distribution, o.Argument("Probabilities, separated by commas: 0.5,0.25,1/4.", "P,P,…")],
    against: Annotated[
        Distribution | None,
        o.AGAINST.with_help("another distribution q, for cross-entropy and divergence.", value="Q,Q,…"),
    ] = None,
) -> Entropy:
    """Entropy and perplexity of a distribution, cross-entropy and KL divergence against another, in bits and nats.

    In Python: probabilities are numbers or texts (`"1/3"`), and sum to 1 exactly. Errors: `InputError`.

    Source   Shannon 1948; Kullback and Leibler 1951

    >>> import txcalc
    >>> txcalc.entropy([0.5, 0.25, 0.25]).entropy.bits
    1.5
    """
    ps = distribution(p, "p")
    bits = -fsum(float(x) * log2(float(x)) for x in ps if x) + 0.0
    if against is None:
        return Entropy(p=tuple(map(float, ps)), q=None, entropy=sums(bits))
    qs = distribution(against, "--against")
    if len(ps) != len(qs):
        raise InputError("entropy", [f"p has {len(ps)} probabilities and --against {len(qs)}, expected as many"])
    cross, divergence = cross_entropy(ps, qs)
    return Entropy(
        p=tuple(map(float, ps)),
        q=tuple(map(float, qs)),
        entropy=sums(bits),
        cross_entropy=sums(cross),
        kl=Divergence(divergence, _nats(divergence)),
        infinite=cross is None,
        notes=("q is 0 where p is not, so the divergence is infinite",) if cross is None else (),
    )


def cross_entropy(p: Sequence[Fraction], q: Sequence[Fraction]) -> tuple[float | None, float | None]:
    """Cross-entropy and divergence in bits; None where q is 0 and p is not."""
    pairs = [(x, y) for x, y in zip(p, q, strict=True) if x]
    if not all(y for _, y in pairs):
        return None, None
    cross = -fsum(float(x) * log2(float(y)) for x, y in pairs) + 0.0
    return cross, max(0.0, fsum(float(x) * log2(float(x / y)) for x, y in pairs))


def sums(bits: float | None) -> Sums:
    return Sums(bits, _nats(bits), None if bits is None else 2**bits)


def _nats(bits: float | None) -> float | None:
    return None if bits is None else bits * NATS_PER_BIT


def distribution(probabilities: Distribution, name: str) -> tuple[Fraction, ...]:
    """Probabilities that sum to 1 exactly. Errors: `InputError` with every fault."""
    items = [x if isinstance(x, str) else float(x) for x in split_commas(probabilities)]
    # 0.1 is a tenth, not the nearest float
    texts = [str(Fraction(repr(x))) if isinstance(x, float) and isfinite(x) else str(x) for x in items]
    faults: list[Fault | str] = [
        Fault(name, text.strip(), "probabilities such as 0.25 or 1/4, separated by commas")
        for text in texts
        if not PROBABILITY.fullmatch(text)
    ]
    if faults:
        raise InputError("entropy", faults)
    numbers = tuple(Fraction(text.strip()) for text in texts)
    total = sum(numbers, Fraction(0))
    if total != 1:
        mend = "write thirds as 1/3" if abs(total - 1) < Fraction(1, 20) else ""
        raise InputError("entropy", [Fault(f"the sum of {name}", float(total), "1 exactly", mend)])
    return numbers
