"""Memory from the ledger: exact bytes of weights, cache and training state."""

from __future__ import annotations

from msgspec import Struct

from txcalc.ledger import Ledger
from txcalc.num import Num, ceil_div, total
from txcalc.planning.formats.weights import Format


class StateShare(Struct, frozen=True):
    """A part of the training state: bytes per parameter (None for temporaries of a step), and of all parameters."""

    name: str
    bytes_per_param: int | None
    bytes: int


MASTER_BYTES = 4  # per element of the optimizer's fp32 copy of 16-bit weights
# AdamW in mixed precision (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1), 16 bytes per parameter, as `train`
# gives for an unsharded rank of DeepSpeed.
ADAMW_MIXED = (
    ("training weights (bf16)", 2),
    ("gradients (bf16)", 2),
    ("master weights (fp32)", MASTER_BYTES),
    ("first moment (fp32)", 4),
    ("second moment (fp32)", 4),
)


def training_state(params: int, learning: int | None = None) -> tuple[StateShare, ...]:
    """The training state, which does not depend on the batch. `learning`: the number of trained parameters; frozen ones
    have only weights."""
    trained = params if learning is None else learning
    first, *states = ADAMW_MIXED
    return StateShare(*first, first[1] * params), *(StateShare(name, size, size * trained) for name, size in states)


def learning(ledger: Ledger) -> int:
    """Trainable parameters: the adapters' if there are any, else all."""
    adapters = total(entry.params for entry in ledger if entry.kind == "adapters")
    return adapters or ledger.total("params")


def has_frozen_weights(ledger: Ledger) -> bool:
    """Whether only adapters are trained."""
    return learning(ledger) != ledger.total("params")


def weights_bytes(ledger: Ledger, form: Format | None = None) -> int:
    """Unique parameters at the ledger's weight dtype, or in a format."""
    if form is not None:
        return sum(form.bytes_of(entry) for entry in ledger if entry.leaf.params)
    return ceil_div(ledger.total("params") * ledger.bits[0], 8)


def cache_bytes(ledger: Ledger) -> int:
    """One sequence's cache under this workload, at the ledger's cache dtype."""
    return ceil_div(ledger.total("cache") * ledger.bits[2], 8)


def saved_bytes(ledger: Ledger) -> int:
    """Activations saved for backward, at the ledger's activation dtype."""
    return ceil_div(ledger.total("saved") * ledger.bits[1], 8)


def dense_cache(ledger: Ledger) -> Num:
    """Elements of one sequence's cache without windows: every attention layer keeps every token."""
    return total(entry.leaf.dense(entry.work) * entry.runs for entry in ledger if entry.work is not None)


def cross_cache(ledger: Ledger) -> Num:
    """Elements of one sequence's cache for the encoder: K and V of the source, to which no decode step adds."""
    return total(entry.cache for entry in ledger if entry.leaf.cache_kind == "source")
