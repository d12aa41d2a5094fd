"""Memory from the ledger: exact bytes of weights, cache and training state."""

from __future__ import annotations

from msgspec import Struct

from txcalc.ledger import Ledger
from txcalc.num import Num, ceil_div, total
from txcalc.planning.formats.weights import Format


class StateShare(Struct, frozen=True):
    """A part of the training state: bytes per parameter (None for a training step's own), and of all parameters."""

    name: str
    bytes_per_param: int | None
    bytes: int


MASTER_BYTES = 4  # of an element of the optimizer's own copy of 16-bit weights: fp32
# AdamW in mixed precision (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1), 16 bytes per parameter: as `train`
# has for a rank of DeepSpeed that holds everything.
ADAMW_MIXED = (
    ("training weights (bf16)", 2),
    ("gradients (bf16)", 2),
    ("master weights (fp32)", MASTER_BYTES),
    ("first moment (fp32)", 4),
    ("second moment (fp32)", 4),
)


def training_state(params: int, learning: int | None = None) -> tuple[StateShare, ...]:
    """The training state, which does not depend on the batch. `learning`: the number of trained parameters; of frozen
    ones only the weights are held."""
    trained = params if learning is None else learning
    first, *states = ADAMW_MIXED
    return StateShare(*first, first[1] * params), *(StateShare(name, size, size * trained) for name, size in states)


def learning(ledger: Ledger) -> int:
    """Parameters that a training step changes: all, or beside frozen ones the adapters'."""
    learnt = total(entry.params for entry in ledger if entry.kind == "adapters")
    return learnt or ledger.total("params")


def has_frozen_weights(ledger: Ledger) -> bool:
    """Whether a training step leaves weights as they are, beside adapters."""
    return learning(ledger) != ledger.total("params")


def weights_bytes(ledger: Ledger, form: Format | None = None) -> int:
    """Unique parameters at the ledger's weight dtype, or in a format."""
    if form is not None:
        return sum(form.bytes_of(entry) for entry in ledger if entry.leaf.params)
    return ceil_div(ledger.total("params") * ledger.bits[0], 8)


def cache_bytes(ledger: Ledger) -> int:
    """What one sequence's cache holds under this workload, at the ledger's cache dtype."""
    return ceil_div(ledger.total("cache") * ledger.bits[2], 8)


def saved_bytes(ledger: Ledger) -> int:
    """Activations kept for backward, at the ledger's activation dtype."""
    return ceil_div(ledger.total("saved") * ledger.bits[1], 8)


def dense_cache(ledger: Ledger) -> Num:
    """Elements one sequence's cache would hold if every attention layer kept every token: no window ever drops one."""
    return total(entry.leaf.dense(entry.work) * entry.runs for entry in ledger if entry.work is not None)


def cross_cache(ledger: Ledger) -> Num:
    """Elements of it that are the encoder's: K and V of the source, which no decode step adds to."""
    return total(entry.cache for entry in ledger if entry.leaf.cache_kind == "source")
