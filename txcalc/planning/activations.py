"""The published count of activation memory beside txcalc's own, term by term."""

from __future__ import annotations

from txcalc.errors import InputError
from txcalc.ledger import Entry, Ledger
from txcalc.model import Model
from txcalc.num import Num, total
from txcalc.planning.terms import Convention, ConventionTerm

MASK = "a dropout mask of one byte per element: txcalc's models drop nothing"
GELU = ("gelu", "gelu_tanh")
DROPPED = "the probabilities again, after dropout"


def korthikanti(model: Model, ledger: Ledger) -> Convention:
    """s·b·h·(34 + 5·a·s/h) bytes per layer, at 16 bits per element and one byte per element of a dropout mask.

    Letters  s tokens, b batch, h width, a heads
    Counts   the layers, with the attention matrix kept; txcalc's own are the ledger's saved elements, 2 bytes each
    Omits    embedding, final norm and head, as their count of a layer does
    Source   Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1, equation 1
    Errors   `InputError` for layers that it does not describe
    """
    layers = [entry for entry in ledger if entry.steps[0].duty == "layer"]
    _describes(model, ledger, layers)
    core = next(entry for entry in layers if entry.leaf.attended)
    assert core.leaf.attended is not None
    heads: Num = core.leaf.attended.heads
    wide = ledger.work.positions * model.stacks[0].d_model * core.runs
    square = ledger.work.positions * ledger.work.tokens * heads * core.runs

    def kept(kind: str, duty: str = "", *, activation: bool = False) -> Num:
        entries = (entry for entry in layers if entry.kind == kind and entry.duty == duty)
        return total(2 * entry.saved for entry in entries if (entry.leaf.role == "activation") == activation)

    norms = total(2 * entry.saved for entry in layers if entry.leaf.role == "norm")
    terms = (
        ConventionTerm("layer norms", 4 * wide, norms),
        ConventionTerm("input of Q, K and V", 2 * wide, kept("attention", "reads")),
        ConventionTerm("Q, K and V", 6 * wide, kept("attention_core") - 2 * square),
        ConventionTerm("softmax", 2 * square, 2 * square),
        ConventionTerm("mask of the softmax's dropout", square, 0, MASK),
        ConventionTerm("what that dropout gives", 2 * square, 0, DROPPED),
        ConventionTerm("input of the projection", 2 * wide, kept("attention", "writes")),
        ConventionTerm("mask of the attention's dropout", wide, 0, MASK),
        ConventionTerm("input of the feed-forward", 2 * wide, kept("feed_forward")),
        ConventionTerm("input of GeLU", 8 * wide, kept("feed_forward", activation=True)),
        ConventionTerm("input of the second matrix", 8 * wide, kept("feed_forward", "writes")),
        ConventionTerm("mask of the feed-forward's dropout", wide, 0, MASK),
    )
    source = "Korthikanti et al. 2022, equation 1"
    return Convention("korthikanti", "activation bytes of the layers", "s·b·h·(34 + 5·a·s/h) a layer", source, terms)


def _describes(model: Model, ledger: Ledger, layers: list[Entry]) -> None:
    """The formula's layer: as many K and V heads as queries, together as wide as the model, and two matrices of 4·h."""
    stack = model.stacks[0]
    kinds = [layer for layer in stack.layer.values() if {"attention", "feed_forward"} == set(layer.parts)]
    cores = [entry.leaf for entry in layers if entry.leaf.attended]
    faults = []
    if not (ledger.work.keep_scores and ledger.work.past == 0):
        faults.append("counts a training step that keeps the attention matrix (keep_scores)")
    if stack.lora is not None:
        faults.append("describes layers whose weights all learn: these are frozen")
    plain = len(model.stacks) == len(kinds) == len(stack.layer) == len(cores) == 1
    heads = cores[0].attended if plain and not cores[0].extra_products and not cores[0].kernels else None
    if heads is None or heads.groups != heads.heads or not heads.d_qk == heads.d_v == stack.d_model / heads.heads:
        faults.append(f"describes equal layers of h = h_kv heads as wide as the model; {model.name} has others")
    else:
        inner = kinds[0].feed_forward
        if not inner or inner.gated or inner.d_ff != 4 * stack.d_model or inner.activation not in GELU:
            faults.append(f"describes a feed-forward of two matrices of D × 4·D with GeLU; {model.name} has another")
    if faults:
        raise InputError("korthikanti", faults)
