"""Rules of thumb beside the exact numbers, with their error for the model at hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from txcalc.ledger import FEED_FORWARD, Ledger
from txcalc.model import Model
from txcalc.num import total
from txcalc.planning.gradients import training_flops


class RuleOfThumb(NamedTuple):
    """A rule of thumb: what it claims to give, its formula in letters, what it gives, and the truth."""

    what: str
    formula: str
    gives: Any
    truth: Any


def sums_of(ledger: Ledger) -> dict[str, Any]:
    """Sums of parameters that are quoted for all of them: without embedding and head, of all layers, of their
    feed-forward."""
    kinds = ledger.by_kind("params")
    blocks = total(entry.params for entry in ledger if entry.layer)
    return {
        "without embedding and head": ledger.total("params") - kinds.get("embedding", 0) - kinds.get("head", 0),
        "blocks: all layers": blocks,
        "feed-forward of all layers": total(kinds.get(kind, 0) for kind in FEED_FORWARD),
    }


def rules_of_thumb(model: Model, ledger: Ledger) -> list[RuleOfThumb]:
    """4D² a layer's attention, 8D² its feed-forward, 12·L·D² blocks, 2·V·D the embeddings, 2N and 6N FLOPs per token.

    N is the parameters a token passes. The truth of 2N is the forward's FLOPs per token under this workload, of 6N the
    training step's.
    """
    layers = total(stack.n_layers for stack in model.stacks)
    width, vocab = model.d_model, model.vocab_size
    kinds = ledger.by_kind("params")
    active, embedding = ledger.total("active"), kinds.get("embedding", 0)
    params = ledger.total("params")
    blocks = params - embedding - kinds.get("head", 0)
    attention = kinds.get("attention", 0)
    channel = sums_of(ledger)["feed-forward of all layers"]
    square = width * width
    tokens = ledger.work.batch * ledger.work.tokens
    per_token = Fraction(ledger.total("flops"), tokens)
    rules = [
        RuleOfThumb("attention of all layers", "4·L·D²", 4 * layers * square, attention) if attention else None,
        RuleOfThumb("feed-forward of all layers", "8·L·D²", 8 * layers * square, channel) if channel else None,
        RuleOfThumb("parameters, no embeddings", "12·L·D²", 12 * layers * square, blocks),
        RuleOfThumb("parameters", "12·L·D² + 2·V·D", 12 * layers * square + 2 * vocab * width, params)
        if vocab
        else None,
        RuleOfThumb("forward FLOPs per token", "2·N", 2 * active, per_token),
        RuleOfThumb("training FLOPs per token", "6·N", 6 * active, Fraction(training_flops(ledger), tokens)),
    ]
    return [rule for rule in rules if rule is not None]
