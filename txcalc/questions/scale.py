"""`scale`: the loss that scaling laws predict, and the optimal size for a budget."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import exp, log
from sys import float_info
from typing import TYPE_CHECKING, Annotated, Any

from txcalc.errors import Fault, InputError
from txcalc.planning import scaling
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, ModelInfo, Result
from txcalc.questions.arguments import count, maybe, names
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.sources import Source

COUNTS = "parameters with embeddings; FLOPs: 6 · parameters · tokens; loss in nats per token of each law's tokenizer"
NATS_PER_BIT = log(2)
MAX_EXPONENT = log(float_info.max)
SizeArgument = Annotated["Source | None", o.Argument("A model, whose parameters are N.", "SOURCE", "source")]


class ExpectedLoss(Answer):
    """A size, a number of tokens and the loss that a law predicts, in nats per token.

    perplexity  e to the loss; None: it exceeds a float
    """

    params: float
    train_tokens: float
    loss: float
    perplexity: float | None
    bits_per_token: float
    bits_per_byte: float | None

    @property
    def tokens_per_param(self) -> float:
        return self.train_tokens / self.params


class RuleOfThumb(Answer):
    """The size and the tokens by the rule of 20 tokens per parameter, for the same model, tokens or FLOPs."""

    params: float
    train_tokens: float


class FittedRange(Answer):
    """The smallest and the largest sizes that a law was fitted to."""

    params: tuple[float, float]
    train_tokens: tuple[float, float]


class LawPrediction(Answer):
    """A law's predictions for the given model (`asked`) and for the optimum at the same FLOPs (`best`)."""

    name: str
    title: str
    source: str
    data: str
    constants: dict[str, float]
    interval_95: dict[str, tuple[float, float]]
    fitted: FittedRange
    compute: float
    asked: ExpectedLoss
    best: ExpectedLoss
    warnings: tuple[str, ...]

    @property
    def excess_loss(self) -> float:
        """The given model's loss above the optimum's, as a share of the latter."""
        return self.asked.loss / self.best.loss - 1


class Scale(Result, tag_field="schema", tag="txcalc/scale/1", kw_only=True):
    """The predictions of every law, and of the rule of thumb; `counts`: which parameters they count."""

    model: ModelInfo | None = None
    params: int | None
    train_tokens: int | None
    compute: int | None
    unique_tokens: int | None
    bytes_per_token: float | None
    counts: str
    rule_of_thumb: RuleOfThumb
    laws: tuple[LawPrediction, ...]
    notes: tuple[str, ...]

    @property
    def optimal(self) -> bool:
        """Whether one of N, D and C is given, and the others are chosen optimally."""
        return sum(number is not None for number in (self.params, self.train_tokens, self.compute)) == 1

    def _rows(self) -> Sequence[dict[str, Any]]:
        """Two rows per law: the given model and the optimum."""
        return [
            {"law": law.name, "which": which, **point.to_dict()}
            for law in self.laws
            for which, point in (("asked", law.asked), ("best", law.best))
        ]


@o.Question("txcalc scale llama-3.1-8b --train-tokens 15T")
def scale(
    source: SizeArgument = None,
    *,
    params: Annotated[o.Length | float | None, o.PARAMS.with_help("They replace a model's.")] = None,
    train_tokens: Annotated[o.Length | float | None, o.TRAIN_TOKENS] = None,
    compute: Annotated[o.Length | float | None, o.COMPUTE] = None,
    unique_tokens: Annotated[
        o.Length | float | None, o.Option("Distinct training tokens; the rest are repeats.", "N", "Workload")
    ] = None,
    laws: Annotated[
        o.Names | None,
        o.Option("Laws, separated by commas (default: all that apply).", "NAME,…", "Workload", "--law", "law"),
    ] = None,
    bytes_per_token: Annotated[
        float | str | None,
        o.Option("Bytes of text per token of your tokenizer, for bits per byte.", "X", "Workload"),
    ] = None,
) -> Scale:
    """Predict the loss, and the optimal size for a budget, by published scaling laws.

    In Python: give two of a model (or `params`), `train_tokens` and `compute` (C = 6·N·D); or one, and the others are
    chosen optimally. Errors: `InputError`, `UnknownName`.

    >>> import txcalc
    >>> round(txcalc.scale(compute=5.76e23, laws="besiroglu").laws[0].best.params / 1e9)
    72
    """
    if source is not None and params is not None:
        raise InputError("scale", ["give a model or --params, not both"])
    model = None if source is None else load(source)
    question = scaling.ScalingQuestion(
        scaling.counted_params(model) if model else maybe(params, "--params", count),
        maybe(train_tokens, "--train-tokens", count),
        maybe(compute, "--compute", count),
        maybe(unique_tokens, "--unique-tokens", count),
    )
    token_bytes = None if bytes_per_token is None else _token_bytes(bytes_per_token)
    question.checked()
    selected = scaling.laws(None if laws is None else ",".join(names(laws)), question.unique)
    predictions = tuple(predict(scaling.ask(law, question), token_bytes) for law in selected)
    notes = [warning for law in predictions for warning in law.warnings]
    notes.append("; ".join(map(_title, predictions)))
    if token_bytes:
        notes.append("bits per byte assume your tokenizer's bytes per token for every law")
    return Scale(
        model=ModelInfo.of(model) if model else None,
        params=question.params,
        train_tokens=question.tokens,
        compute=question.compute,
        unique_tokens=question.unique,
        bytes_per_token=token_bytes,
        counts=COUNTS,
        rule_of_thumb=RuleOfThumb(*scaling.twenty_to_one(question)),
        laws=predictions,
        notes=tuple(notes),
    )


def _title(law: LawPrediction) -> str:
    paper = law.source.partition(")")[0].replace(" (", ", ")
    return f"{law.name}: {law.title.partition(',')[0]} ({paper})"


def _token_bytes(value: float | str) -> float:
    try:
        size = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        size = Fraction(0)
    if not 0 < size < 1000:
        raise InputError("scale", [Fault("--bytes-per-token", value, "a number above 0, such as 4.2")])
    return float(size)


def predict(answer: scaling.ScalingAnswer, token_bytes: float | None) -> LawPrediction:
    law = answer.law
    return LawPrediction(
        name=law.name,
        title=law.title,
        source=law.source,
        data=law.data,
        constants={"E": law.E, "A": law.A, "B": law.B, "alpha": law.alpha, "beta": law.beta},
        interval_95=dict(law.interval),
        fitted=FittedRange(law.params, law.tokens),
        compute=answer.compute,
        asked=expected_loss(answer.asked, token_bytes),
        best=expected_loss(answer.best, token_bytes),
        warnings=answer.warnings,
    )


def expected_loss(point: scaling.LossPoint, token_bytes: float | None) -> ExpectedLoss:
    bits = point.loss / NATS_PER_BIT
    return ExpectedLoss(
        params=point.params,
        train_tokens=point.tokens,
        loss=point.loss,
        perplexity=exp(point.loss) if point.loss <= MAX_EXPONENT else None,
        bits_per_token=bits,
        bits_per_byte=bits / token_bytes if token_bytes else None,
    )
