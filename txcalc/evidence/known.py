"""How each figure is known: a word and where it holds.

Evidence is of formulas, by structure (`theorems`): a figure has its word only if the theorem's domain contains the
workload, the formulas are those of the theorem, and the printed figure is their value. Bytes are elements in a stated
format: by convention, whatever is known of the elements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from txcalc.errors import UnknownName
from txcalc.evidence import domains, theorems
from txcalc.ledger import Ledger
from txcalc.model import Model

MEANING = {
    "proved": "equal to the traced module for all sizes of a stated domain",
    "measured": "equal to the module at the sizes where it was run",
    "listed": "each leaf proved, the list of leaves transcribed",
    "by convention": "a stated rule, as the bytes of a format are",
    "published": "a cited source prints it",
    "modelled": "none of these",
}

# The oracles of `txcalc.verification`: module, function, what it checks.
ORACLES = {
    "parameters": ("parameters", "rows", "every weight's path and shape"),
    "bytes": (
        "storage",
        "rows",
        "bytes of every weight and of the cache, and what the device's allocator reserves for them",
    ),
    "fvcore": ("macs", "rows", "forward FLOPs, from fvcore's trace"),
    "flops": ("flops", "rows", "forward FLOPs, from PyTorch's counter, for every batch and length"),
    "training": ("flops", "training_rows", "FLOPs of forward and backward, without and with blocks recomputed"),
    "saved": ("saved", "rows", "elements that autograd keeps, with the attention matrix and without"),
    "cache": ("cache", "rows", "elements of the cache and FLOPs after a prompt and after each further token"),
    "mask": ("mask", "rows", "FLOPs of attention's visible pairs, from the masks themselves"),
    "traffic": ("operators", "traffic_rows", "elements that parts read and write, each once"),
    "other": ("operators", "other_rows", "FLOPs of norms, activations, sums and softmax, operator by operator"),
    "memory": ("memory", "rows", "a training step's weights, gradients, optimizer state and kept tensors"),
    "transformers": ("against_transformers", "rows", "the weights of transformers' own module of the same config.json"),
}
# Measurements on a device, of prefill, decode and a training step.
MEASURES = {
    "peak": "peak memory, compared with that of fake tensors",
    "time": "of prefill and decode by kind of part, compared with the roofline's floor and the expected time",
}


def oracles_of(names: Iterable[str], known: Collection[str]) -> list[str]:
    """The requested oracles. Errors: `UnknownName`."""
    oracles = list(dict.fromkeys(names))
    for name in oracles:
        if name not in known:
            raise UnknownName("verify", "oracle", name, [*known], f"one of {', '.join(known)}")
    return oracles


class Evidence(Struct, frozen=True):
    """A word of `MEANING`, and where it holds: "all B, T ≥ 2"."""

    how: str
    where: str

    @property
    def text(self) -> str:
        """The word, with its domain where that is not all sizes."""
        if self.how in ("proved", "listed") and not domains.everywhere(self.where):
            return f"{self.how}, {self.where.removeprefix('all ')}"
        return self.how

    @property
    def in_bytes(self) -> Evidence:
        """How bytes are known where these are their elements."""
        if self.how not in ("proved", "listed", "measured"):
            return self
        return Evidence("by convention", f"elements {self.how}{f', {self.where}' if self.where else ''}")


MODELLED = Evidence("modelled", "")


def all_known(
    model: Model, quantities: Mapping[str, str], printed: Ledger | None = None, with_scores: Ledger | None = None
) -> dict[str, Evidence]:
    """How figures of a model are known. `quantities` maps names of the caller's to `theorems.FIGURES` or other
    quantities of the ledger; those without an oracle (other FLOPs, traffic) are modelled.

    printed      the ledger whose figures are printed: evidence that they contradict is left out, as is evidence whose
                 domain does not contain its workload
    with_scores  the same with attention probabilities stored for backward
    """
    inherited = theorems.inheritance(model, tuple(quantities.values()), printed, with_scores)
    stated = model.description.params
    published = bool(model.description.published) and stated == model.params
    other_than_stated = stated not in (None, model.params) and not model.changed
    evidence = {}
    for name, quantity in quantities.items():
        known = Evidence(*inherited[quantity]) if quantity in inherited else MODELLED
        if other_than_stated and quantity in theorems.WEIGHTS:
            known = MODELLED
        outside = printed is not None and known.how != "measured" and not domains.covers(known.where, printed.work)
        if outside:
            known = Evidence("modelled", f"{known.how} only for {known.where}")
        if known.how == "modelled" and quantity == "params" and published:
            known = Evidence("published", model.description.source)
        evidence[name] = known
    return evidence


# Figures in bytes, and the figures in elements that they are computed from.
BYTES_OF = {
    "weights_bytes": "params", "training_state_bytes": "params", "cache_bytes": "cache", "saved_bytes": "saved",
    "saved_kept_bytes": "saved_kept",
}  # fmt: skip


def show_known(model: Model, printed: Ledger, with_scores: Ledger) -> dict[str, Evidence]:
    """How each figure that `show` prints is known, by its key in JSON."""
    work = printed.work
    forms = [form for form, name in theorems.FORMS.items() if getattr(work, name)]
    plain = not forms and not work.decoding
    quantities = {
        "params": "params",
        "active": "active",
        "flops": theorems.name_in_form("flops with cache" if work.decoding else "flops", *forms),
        "flops_masked": "" if forms else "masked flops",
        "flops_other": "",
        "training": "training flops" if plain else "",
        "cache": "cache",
        "saved": theorems.FUSED if plain else "",
        "saved_kept": theorems.KEPT if plain else "",
    }
    evidence = all_known(model, quantities, printed, with_scores)
    return evidence | {name: evidence[elements].in_bytes for name, elements in BYTES_OF.items()}
