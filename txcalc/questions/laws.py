"""Scaling laws, and entropy of distributions: `scale`, `entropy`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from txcalc.errors import Fault, InputError
from txcalc.questions.arguments import apart, count, names
from txcalc.questions.options import Length, Names
from txcalc.questions.results import Record, Result
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.sources import Source


class Expected(Record):
    """A size and a number of tokens with the loss that a law predicts, in nats per token."""

    params: float
    train_tokens: float
    loss: float
    perplexity: float | None
    bits_per_token: float
    bits_per_byte: float | None


class Fitted(Record):
    """The range that a law was fitted to."""

    params: list[int | float]
    train_tokens: list[int | float]


class Law(Record):
    """A law's predictions for the given model and for the optimum at the same FLOPs."""

    name: str
    title: str
    source: str
    data: str
    constants: dict[str, float]
    interval_95: dict[str, list[float]]
    fitted: Fitted
    compute: float
    asked: Expected
    best: Expected
    warnings: list[str]


class Scale(Result):
    """The predictions of every law; `counts`: which parameters they count."""

    params: int | None
    train_tokens: int | None
    compute: int | None
    unique_tokens: int | None
    bytes_per_token: float | None
    counts: str
    laws: list[Law]

    def _rows(self) -> list[dict[str, Any]]:
        """Two rows per law: the given model and the optimum."""
        return [
            {"law": law.name, "which": which, **point.to_dict()}
            for law in self.laws
            for which, point in (("asked", law.asked), ("best", law.best))
        ]


def scale(
    source: Source | None = None,
    *,
    params: Length | float | None = None,
    train_tokens: Length | float | None = None,
    compute: Length | float | None = None,
    unique_tokens: Length | float | None = None,
    laws: Names | None = None,
    bytes_per_token: float | str | None = None,
) -> Scale:
    """The predicted loss of N parameters on D tokens, and the optimal N and D for the same FLOPs (C = 6·N·D), by
    scaling laws. Give two of a model (or `params`), `train_tokens` and `compute`; or one, and the others are chosen
    optimally.

    `unique_tokens`: distinct tokens among them. `laws`: by name (default: all that apply). `bytes_per_token` of your
    tokenizer gives bits per byte. Errors: `InputError`, `UnknownName`.

    >>> import txcalc
    >>> round(txcalc.scale(compute=5.76e23, laws="besiroglu").laws[0].best.params / 1e9)
    70
    """
    from txcalc.planning import scaling
    from txcalc.render.scale import scale_report

    if source is not None and params is not None:
        raise InputError("scale", ["give a model or --params, not both"])
    flags = {"--params": params, "--train-tokens": train_tokens, "--compute": compute, "--unique-tokens": unique_tokens}
    given = {flag: None if value is None else count(value, flag) for flag, value in flags.items()}
    of = ""
    if source is not None:
        model = load(source)
        given["--params"], of = scaling.counted(model), model.name
    size = None
    if bytes_per_token is not None:
        try:
            size = Fraction(str(bytes_per_token))
        except (ValueError, ZeroDivisionError):
            size = Fraction(0)
        if not 0 < size < 1000:
            raise InputError("scale", [Fault("--bytes-per-token", bytes_per_token, "a number above 0, such as 4.2")])
    asked = scaling.ScalingQuestion(*given.values()).checked()
    wanted = scaling.laws(None if laws is None else ",".join(names(laws)), asked.unique)
    told = scale_report(asked, [scaling.ask(each, asked) for each in wanted], of, size)
    return Scale(lambda _: told)


class Sums(Record):
    """A quantity in bits and nats, and its perplexity; None: infinite."""

    bits: float | None
    nats: float | None
    perplexity: float | None


class Entropy(Result):
    """Entropy of p, and cross-entropy and KL divergence against q."""

    p: list[float]
    q: list[float] | None
    entropy: Sums
    cross_entropy: Sums | None
    kl: Sums | None
    infinite: bool | None


Distribution = str | Sequence[float | str]


def entropy(p: Distribution, against: Distribution | None = None) -> Entropy:
    """Entropy and perplexity of a distribution; against another, cross-entropy and KL divergence.

    Probabilities are numbers or texts (`"1/3"`), and sum to 1 exactly. Errors: `InputError`.

    >>> import txcalc
    >>> txcalc.entropy([0.5, 0.25, 0.25]).entropy.bits
    1.5
    """
    from txcalc.planning.scaling import distribution, entropy as sums
    from txcalc.render.scale import entropy_report

    other = None if against is None else distribution(_written(against), "--against")
    told = entropy_report(sums(distribution(_written(p), "p"), other))
    return Entropy(lambda _: told)


def _written(probabilities: Distribution) -> str:
    """Probabilities as exact texts: 0.1 is a tenth."""
    each = apart(probabilities)
    return ",".join(x if isinstance(x, str) else str(Fraction(repr(float(x)))) for x in each)
