"""The terms of published FLOPs counts, each with txcalc's own count from the leaves of a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from txcalc.description import StackSpec
from txcalc.errors import InputError
from txcalc.ledger import Entry, Ledger
from txcalc.model import Model
from txcalc.parts.spans import Attended


class ConventionTerm(NamedTuple):
    """FLOPs of one term by the convention and by txcalc, and why they differ ("" if they are equal)."""

    name: str
    theirs: int
    ours: int
    why: str = ""


class Convention(NamedTuple):
    """A published count of a workload's FLOPs: the workload, its formula, source and terms.

    recomputed  FLOPs, by the same convention, of recomputing attention (`core`) or all blocks (`blocks`) in backward
    included    the recomputation that the terms already include
    """

    name: str
    counts: str
    formula: str
    source: str
    terms: tuple[ConventionTerm, ...]
    recomputed: Mapping[str, int] = {}
    included: str = "none"

    @property
    def theirs(self) -> int:
        return sum(term.theirs for term in self.terms)

    @property
    def ours(self) -> int:
        return sum(term.ours for term in self.terms)

    @property
    def model_flops(self) -> int:
        """FLOPs without recomputation: the numerator of model FLOPs utilisation (MFU)."""
        return self.theirs - self.recomputed.get(self.included, 0)

    def hardware_flops(self, recompute: str) -> int:
        """FLOPs with recomputation: the numerator of hardware FLOPs utilisation (HFU)."""
        return self.model_flops + self.recomputed.get(recompute, 0)


IDLE = "experts a token does not pass"
TABLES: Mapping[str, str] = {"tokens": "token table", "positions": "position table", "types": "token-type table"}
MATRICES = {
    "attention": "attention projections",
    "feed_forward": "feed-forward",
    "experts": "experts a token passes",
    "shared_experts": "shared experts",
    "router": "routers",
    "recurrent": "recurrent mixers",
    "adapters": "adapters",
    "head": "head",
    "embedding": "embedding projection",
    "other": "other layers",
}
WHY = {
    **dict.fromkeys(TABLES.values(), "a lookup multiplies nothing"),
    "norms": "their weights are in no matrix product",
    "biases": "added, not multiplied",
    "other weights": "in no matrix product",
    IDLE: "in no product of this token",
}
HEAD = "theirs: V × D at every position"
NOTHING = "not in their formula"


def describes(
    name: str,
    model: Model,
    ledger: Ledger,
    *,
    recurrent: bool = True,
    latent: bool = True,
    index: bool = True,
    experts: bool = True,
    past: bool = False,
) -> None:
    """Errors: `InputError` for a model or workload that a formula does not describe."""
    faults = []
    if model.kind in ("encoder-decoder", "audio", "vision"):
        faults.append(f"describes one stack over one text; {model.name} is a model of kind {model.kind!r}")
    elif not recurrent and model.kind in ("recurrent", "hybrid"):
        faults.append(f"takes every layer for attention, {model.name} has others (torchtitan and 2n know them)")
    elif not latent and any(entry.leaf.kernels == "latent" for entry in ledger):
        faults.append(f"knows one head width, {model.name} has two and a latent (torchtitan and 2n know them)")
    elif not index and any(entry.leaf.role == "selection" for entry in ledger):
        faults.append(f"knows no index that selects keys, {model.name} has one (2n counts its parameters)")
    elif not experts and any(entry.routed for entry in ledger):
        faults.append(f"knows no experts, {model.name} has them (torchtitan and 2n know them)")
    if not past and ledger.work.past:
        faults.append("counts a training step, which has no past (drop --past)")
    if faults:
        raise InputError(f"--as {name}", faults)


def convention(name: str, counts: str, formula: str, source: str, terms: Iterable[ConventionTerm]) -> Convention:
    return Convention(name, counts, formula, source, tuple(term for term in terms if term.theirs or term.ours))


def trained(name: str, formula: str, source: str, terms: Iterable[ConventionTerm]) -> Convention:
    """The convention of a training step: three forwards; recomputation adds one."""
    result = convention(name, "a training step", formula, source, terms)
    core = sum(term.theirs for term in result.terms if term.name == CORE)
    return result._replace(recomputed={"core": core // 3, "blocks": result.theirs // 3})


def term(name: str, theirs: int, ours: int, why: str = "") -> ConventionTerm:
    return ConventionTerm(name, theirs, ours, why if theirs != ours else "")


def weights(ledger: Ledger, passes: int, left_out: Iterable[str] = ()) -> Iterator[ConventionTerm]:
    """Terms of 2·N FLOPs per token and pass, by kind of parameters, each compared with their products."""
    tied = tied_table(ledger)
    theirs, ours = Counter[str](), Counter[str]()
    for entry in ledger:
        if entry.kind != "attention_core":
            frozen = passes == 3 and entry.gradient == "input"  # backward has no product for the weights' gradient
            ours[MATRICES.get(entry.kind, "norms")] += (passes - frozen) * entry.flops
        for name, params in parameters(entry, tied):
            theirs[name] += 0 if name in left_out else 2 * passes * params * ledger.work.positions
    for name in dict.fromkeys((*MATRICES.values(), *theirs, *ours)):
        why = NOTHING if name in left_out else "theirs: once at every position"
        yield term(name, theirs[name], ours[name], WHY.get(name, why))


def parameters(entry: Entry, tied: bool) -> Iterator[tuple[str, int]]:
    """The parameters of a leaf, by term."""
    for weight in entry.leaf.weights():
        if entry.leaf.row is not None:
            name = "head" if tied and entry.duty == "tokens" else TABLES.get(entry.duty, "further tables")
        elif entry.leaf.role == "product":
            name = "biases" if weight.name == "bias" else MATRICES[entry.kind]
        else:
            name = "norms" if entry.leaf.role == "norm" else "other weights"
        yield name, weight.size * entry.active_times
        yield IDLE, weight.size * (entry.times - entry.active_times)


def cores_term(ledger: Ledger, passes: int, attention: str, width: Callable[[Attended], int]) -> ConventionTerm:
    """The term of 2·width·T FLOPs per token, pass and layer with attention, compared with the cores' FLOPs."""
    widths = sum(width(entry.leaf.attended) * entry.runs for entry in ledger if entry.leaf.attended)
    theirs = widths * ledger.work.positions * ledger.work.tokens
    ours = by_kind(ledger, attention).get("attention_core", 0)
    return term(CORE, 2 * passes * theirs, passes * ours, why_core(ledger, attention) if theirs else NOTHING)


CORE = "scores and values"


def widths(core: Attended) -> int:
    """h·(d_qk + d_v)."""
    return core.heads * (core.d_qk + core.d_v)


def why_core(ledger: Ledger, attention: str) -> str:
    if attention == "masked":
        return "ours: only what the mask lets through"
    extra = next((entry.leaf.extra_products for entry in ledger if entry.leaf.extra_products), "")
    return f"ours: {extra}" if extra else "theirs: heads of another width"


def by_kind(ledger: Ledger, attention: str) -> dict[str, int]:
    return ledger.by_kind("flops" if attention == "dense" else "flops_masked")


def flops_of(entry: Entry, attention: str) -> int:
    flops: int = entry.flops if attention == "dense" else entry.flops_masked
    return flops


def by_product(ledger: Ledger, attention: str) -> Counter[str]:
    """FLOPs of attention by duty of a projection, and by product of a core; all other FLOPs by kind."""
    result = Counter[str]()
    for entry in ledger:
        for op in entry.operations:
            flops = (op.flops if attention == "dense" else op.flops_masked) * entry.runs
            names = {"attention": entry.duty, "attention_core": op.name}
            result[names.get(entry.kind, entry.kind)] += flops
    return result


def tied_table(ledger: Ledger) -> bool:
    return any(entry.leaf.untied is not entry.leaf for entry in ledger)


def only_stack(model: Model) -> StackSpec:
    (stack,) = model.stacks
    return stack
