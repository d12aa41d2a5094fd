"""The pictures of the commands, as data. Numbers are those of the tables, computed by the same functions at more
lengths; `draw` hands them to a plotting library."""

from __future__ import annotations

from fractions import Fraction

from txcalc.ledger import KINDS, Ledger, walk
from txcalc.model import MAX_TOKENS, Model
from txcalc.questions.pictures import (
    USUAL_CONTEXTS,
    Panel,
    Picture,
    PlotAxis,
    Series,
    between,
    picture_convention,
)

MOST_POINTS = 20_000
MOST_MODELS = 8


def show(model: Model, ledger: Ledger, attention: str) -> Picture:
    """A model's parts as bars: parameters and FLOPs by kind of part; and the FLOPs of a token over the length of a
    prefill, kind upon kind, where the encoder has no length of its own."""
    quantity = "flops_masked" if attention == "masked" else "flops"
    panels = []
    for what, name, axis in (
        ("params", "parameters", "parameters, each once"),
        (quantity, "FLOPs", f"FLOPs of a forward pass, {attention} attention"),
    ):
        parts = ledger.by_kind(what)
        bars = Series(name, [kind.replace("_", " ") for kind in parts], list(parts.values()))
        panels.append(Panel("", PlotAxis(""), PlotAxis(axis), [bars], kind="bars"))
    longest = max(ledger.work.tokens, min(model.context or USUAL_CONTEXTS[-1], MAX_TOKENS))
    if longest > 1 and not model.fixed_length and not model.has_encoder_apart:
        xs = between(
            USUAL_CONTEXTS[0] if longest > USUAL_CONTEXTS[0] else max(1, longest // 64), longest, [ledger.work.tokens]
        )
        prefill = ledger.work._replace(batch=1, past=0, decoding=False)
        at = [walk(model.root, prefill._replace(tokens=n)).by_kind(quantity) for n in xs]
        layers: list[Series] = []
        for kind in [kind for kind in KINDS if any(kind in each for each in at)]:
            ys = [Fraction(each.get(kind, 0), n) for each, n in zip(at, xs, strict=True)]
            layers.append(Series(kind.replace("_", " "), xs, ys, len(layers)))
        x, y = PlotAxis("length of a prefill (tokens)", "tokens", 2), PlotAxis("FLOPs per token")
        panels.append(Panel(f"FLOPs per token, {attention} attention", x, y, layers, kind="stack"))
    words = [f"batch {ledger.work.batch:,}", f"tokens {ledger.work.tokens:,}", f"past {ledger.work.past:,}"]
    logits, mla = "last" if ledger.work.last_logits else "all", "absorbed" if ledger.work.absorbed else "expanded"
    return Picture(model.name, picture_convention([model], ", ".join(words), logits, mla), panels)
