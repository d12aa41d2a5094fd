"""The ledger of a model under one workload: one entry per leaf of the part tree, every total a sum over the entries.

Equal layers fold into one entry with a count. The code works on ints, SymPy expressions and NumPy arrays alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from txcalc.errors import Fault, InputError, UnknownName
from txcalc.frames import Framed, html
from txcalc.num import Num, ceil_div, each, exact_div, minimum, product, ratio, spread, total
from txcalc.parts.options import LEAF_KINDS
from txcalc.parts.part import (
    NO_CACHE,
    Cache,
    Duty,
    Gradient,
    Leaf,
    Operation,
    Part,
    Stream,
    Traffic,
    Workload,
    everywhere,
)
from txcalc.parts.work import Transfer, along

QUANTITIES = {
    "params": "parameters, a tied weight once",
    "active": "parameters used by one token: k of E experts",
    "flops": "FLOPs of matmuls, dense attention (2 per multiply-add)",
    "flops_masked": "FLOPs of matmuls, only the query-key pairs that the mask lets through",
    "flops_other": "other FLOPs: norms, softmax, activations, rotary, residual sums, recurrent scans",
    "bytes": "bytes moved: each operation reads its operands and writes its result once",
    "saved": "saved activations, elements",
    "cache": "cached elements per sequence",
    "sent": "elements that one rank of a layout sends in a forward pass",
}

KINDS = (*LEAF_KINDS, "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "receive")
FEED_FORWARD = ("feed_forward", "experts", "shared_experts", "router")


def kind_words(kind: str) -> str:
    """A kind of part, as tables and plots write it."""
    return "feed-forward" if kind == "feed_forward" else kind.replace("_", " ")


class PathStep(NamedTuple):
    """One segment of a path: a name and, for repeated parts, the `indices` of the copies.

    `number` of copies (symbolic where `indices` cannot say it), `times` of them with weights of their own; `gradient`
    and `duty` as in `Child`."""

    name: str
    indices: Sequence[int] | None
    times: Num
    number: Num
    gradient: Gradient = "both"
    duty: Duty = ""

    def __str__(self) -> str:
        return self.name if self.indices is None else f"{self.name}.{self.indices[0]}"


class Entry:
    """One leaf of the tree: `times` equal copies, of which each token runs `runs`, at the workload `work` (None: idle).

    `kind` is the kind it counts as, `within` the kind of its parent. `path` is that of the first copy.
    `same_as` is another entry of the same leaf at the same workload, whose operations are reused.
    """

    same_as: Entry | None = None

    def __init__(
        self,
        steps: tuple[PathStep, ...],
        leaf: Leaf,
        kind: str,
        work: Workload | None,
        times: Num,
        active: Num,
        runs: Num,
        routed: bool = False,
        within: str = "other",
    ) -> None:
        self.within = within
        self.steps, self.leaf, self.kind, self.work = steps, leaf, kind, work
        self.times, self.active_times, self.runs, self.routed = times, active, runs, routed

    @property
    def path(self) -> str:
        return ".".join(map(str, self.steps))

    @cached_property
    def name(self) -> str:
        """Its path without the numbers of layers and experts: `layers.experts.routed.gate`."""
        return ".".join([step.name for step in self.steps])

    @property
    def gradient(self) -> Gradient:
        """Which gradients backward computes for it (`part.Gradient`); "none" if any part around it has none."""
        if not self.steps:
            return "both"
        return "none" if any(step.gradient == "none" for step in self.steps) else self.steps[-1].gradient

    def __repr__(self) -> str:
        return f"<{self.path} × {self.times}: {self.leaf.label}>"

    @cached_property
    def layers(self) -> Num:
        """How many layers it stands for."""
        return product([step.number for step in self.steps if step.duty == "layer"])

    @cached_property
    def layer(self) -> PathStep | None:
        """The path segment of its layers; None outside of layers."""
        return next((step for step in self.steps if step.duty == "layer"), None)

    @property
    def numbers(self) -> Sequence[int]:
        """The indices of these layers."""
        return () if self.layer is None else self.layer.indices or ()

    @cached_property
    def owners(self) -> tuple[int | None, ...]:
        """The numbers of the layers that own its weights, of layers that share them the first alone; (None,) outside of
        layers."""
        return (None,) if self.layer is None else tuple(self.numbers[: self.layer.times])

    @property
    def owner(self) -> Entry:
        """The entry with a leaf that owns all weights it reads, also those of another: a tied head's table."""
        if (leaf := self.leaf.owning) is self.leaf:
            return self
        counts = self.times, self.active_times, self.runs
        return Entry(self.steps, leaf, self.kind, self.work, *counts, self.routed)

    @property
    def duty(self) -> Duty:
        """Its role in its parent (`part.Duty`)."""
        return self.steps[-1].duty if self.steps else ""

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """The operations of one copy in one forward pass."""
        if self.work is None:
            return ()
        return self.leaf.operations(self.work) if self.same_as is None else self.same_as.operations

    @cached_property
    def cache_terms(self) -> Cache:
        """Growth per token, constant part and elements held, summed over all copies."""
        if self.work is None:
            return NO_CACHE
        if (cache := self.leaf.cache(self.work)) is NO_CACHE:
            return cache
        return Cache(cache.growth * self.runs, cache.constant * self.runs, cache.elements * self.runs)

    @property
    def cache_now(self) -> Cache:
        """`cache_terms` at the workload's length: growth is what the next token adds, constant the rest of it."""
        if self.work is None:
            return NO_CACHE
        elements, work = self.cache_terms.elements, self.work
        growth = self.leaf.cache(work._replace(past=work.past + 1)).elements * self.runs - elements
        return Cache(growth, elements - growth * work.keys, elements)

    @property
    def params(self) -> Num:
        return self.leaf.params * self.times

    @property
    def active(self) -> Num:
        return self.leaf.params * self.active_times

    @cached_property
    def flops(self) -> Num:
        return total([op.flops for op in self.operations]) * self.runs

    @cached_property
    def flops_masked(self) -> Num:
        return total([op.flops_masked for op in self.operations]) * self.runs

    @cached_property
    def flops_other(self) -> Num:
        return total([op.flops_other for op in self.operations]) * self.runs

    @cached_property
    def saved(self) -> Num:
        if self.work is None or self.gradient == "none":
            return 0
        return self.leaf.saved(self.work) * self.runs

    @property
    def cache(self) -> Num:
        return self.cache_terms.elements

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """What one copy sends and receives in one forward pass."""
        return () if self.work is None else self.leaf.transfers(self.work)

    @cached_property
    def sent(self) -> Num:
        return total([transfer.sent for transfer in self.transfers]) * self.runs

    @cached_property
    def traffic(self) -> Traffic:
        """Elements moved by all copies that run; of experts, weights of at most as many as the tokens can reach."""
        weights: Num = 0
        activations: Num = 0
        cache: Num = 0
        for op in self.operations:
            moved = op.traffic
            weights, activations, cache = weights + moved.weights, activations + moved.activations, cache + moved.cache
        touched = self.runs
        if self.routed and self.work is not None:
            touched = minimum(self.times, self.runs * self.work.positions)
        return Traffic(weights * touched, activations * self.runs, cache * self.runs)


class Ledger(Framed):
    """Every leaf of a model under one workload; totals are sums over `entries`.

    `bits` per weight, activation and cached element: bytes are computed last, from whole elements.

    >>> import txcalc
    >>> ledger = txcalc.load("gpt2").ledger(tokens="1k")
    >>> ledger.at("layers.0.attention").total("params")
    2362368
    """

    known: ClassVar[Mapping[str, str]] = QUANTITIES

    def __init__(self, entries: Iterable[Entry], work: Workload, bits: tuple[int, int, int] = (16, 16, 16)) -> None:
        self.entries = tuple(entries)
        self.work = work
        self.bits = bits

    def total(self, quantity: str) -> Num:
        """The sum of a quantity over all leaves. `QUANTITIES` lists the quantities with their units."""
        if not isinstance(quantity, str) or quantity not in self.known:
            raise UnknownName("ledger", "quantity", str(quantity), list(self.known), f"one of {', '.join(self.known)}")
        return self._bytes() if quantity == "bytes" else total([getattr(entry, quantity) for entry in self.entries])

    def by_kind(self, quantity: str) -> dict[str, Num]:
        """The total of a quantity by kind; kinds with a total of 0 are left out.

        Parameters of attention cores (sinks) count as `attention`."""
        groups: dict[str, list[Entry]] = {}
        merged = quantity in ("params", "active")
        for entry in self.entries:
            kind = "attention" if merged and entry.kind == "attention_core" else entry.kind
            groups.setdefault(kind, []).append(entry)
        sums = {kind: self._of(groups[kind]).total(quantity) for kind in KINDS if kind in groups}
        return {kind: value for kind, value in sums.items() if not (isinstance(value, int | Fraction) and value == 0)}

    def at(self, path: str) -> Ledger:
        """The entries at or below a path; with an index, of that one copy: `layers.7.attention.q`.

        FLOPs of a single expert are the average over experts: a Fraction where k does not divide evenly.
        """
        path = str(path)
        entries = [part for entry in self.entries for part in _narrow(entry, path)]
        if not entries:
            paths = {entry.path.rsplit(".", n)[0] for entry in self.entries for n in range(entry.path.count(".") + 1)}
            most = ", ".join(dict.fromkeys(entry.path.partition(".")[0] for entry in self.entries))
            raise UnknownName("ledger", "part", path, sorted(paths), f"in one of {most}")
        return self._of(entries)

    def where(self, keep: Callable[[Entry], bool]) -> Ledger:
        """The entries that `keep` accepts. Errors: `InputError` where `keep` is not a function."""
        if not callable(keep):
            raise InputError("ledger", [Fault("keep", keep, "a function of an entry")])
        return self._of(filter(keep, self.entries))

    def _of(self, entries: Iterable[Entry]) -> Ledger:
        return type(self)(entries, self.work, self.bits)

    @property
    def cache_terms(self) -> Cache:
        """The cache of one sequence, in elements: growth per token once all windows are full, constant part, held."""
        return _sum_caches(entry.cache_terms for entry in self.entries)

    @property
    def cache_now(self) -> Cache:
        """The cache at the workload's length: what the next token adds (also to windows not yet full), the rest, held.

        From length `full_at` on every window is full. For caches that grow in steps, only what is held.
        """
        if any(entry.leaf.cache_kind == "steps" for entry in self.entries):
            unknown: Any = None
            return Cache(unknown, unknown, self.cache_terms.elements)
        return _sum_caches(entry.cache_now for entry in self.entries)

    @property
    def full_at(self) -> Num | None:
        """The length at which the largest window is full; None without windows."""
        return max((e.leaf.cache_limit for e in self.entries if e.leaf.cache_limit is not None), default=None)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def rows(self) -> list[dict[str, Any]]:
        """One row per leaf, equal ones folded: path, kind, number of copies (`times`) and every quantity of
        `QUANTITIES`, summed over the copies. All columns except `bytes` add up to `total`. Over arrays of lengths, one
        row per leaf and length."""
        lengths = {"batch": self.work.batch, "tokens": self.work.tokens, "past": self.work.past}
        shape = spread(self.work[:4]) or ()
        sizes = {name: each(value, shape) for name, value in lengths.items()} if shape else {}
        rows = []
        for entry in self.entries:
            single = self._of([entry])
            figures = {**sizes, **{quantity: each(single.total(quantity), shape) for quantity in self.known}}
            for values in zip(*figures.values(), strict=True):
                leaf = {"path": entry.path, "kind": entry.kind, "times": entry.times}
                rows.append({**leaf, **dict(zip(figures, values, strict=True))})
        return rows

    def _rows(self) -> list[dict[str, Any]]:
        return self.rows()

    def __eq__(self, other: object) -> bool:
        """Equal rows at the same workload and bits."""
        if not isinstance(other, Ledger):
            return NotImplemented
        return self._content == other._content

    def __hash__(self) -> int:
        return hash(repr(self._content))

    @property
    def _content(self) -> tuple[object, ...]:
        work = tuple(tuple(each(value, getattr(value, "shape", ()))) for value in self.work)
        return work, self.bits, self.rows()

    def __repr__(self) -> str:
        work = self.work
        sizes = f"batch={work.batch}, tokens={work.tokens}, past={work.past}"
        return f"<Ledger of {len(self.entries)} leaves at {sizes}>"

    def _repr_html_(self) -> str:
        return html(repr(self)[1:-1], self.rows())

    def _bytes(self) -> Num:
        moved = [entry.traffic for entry in self.entries]
        columns = Traffic(*[total(column) for column in zip(*moved, strict=True)])
        return ceil_div(total([elements * bits for elements, bits in zip(columns, self.bits, strict=True)]), 8)


class Spot(NamedTuple):
    """A leaf's place in the tree: all of its entry but the workload.

    `streams` map the model's workload to the leaf's, outermost part first."""

    steps: tuple[PathStep, ...]
    leaf: Leaf
    kind: str
    counts: tuple[Num, Num, Num]
    routed: bool
    within: str
    streams: tuple[Stream, ...]

    def at(self, work: Workload) -> Entry:
        work_here = along(self.streams, work)
        return Entry(self.steps, self.leaf, self.kind, work_here, *self.counts, self.routed, self.within)


def walk(root: Part, work: Workload, bits: tuple[int, int, int] = (16, 16, 16)) -> Ledger:
    """The ledger of a tree of parts under a workload."""
    return Ledger([spot.at(work) for spot in spots(root)], work, bits)


def spots(root: Part) -> tuple[Spot, ...]:
    """Every leaf of a tree, stored with the tree, since many workloads are evaluated on it."""
    stored: dict[str, tuple[Spot, ...]] = vars(root)
    if "_spots" not in stored:
        stored["_spots"] = tuple(_find([], root, (), "other", (1, 1, 1)))
    return stored["_spots"]


def _find(
    spots: list[Spot],
    part: Part,
    steps: tuple[PathStep, ...],
    kind: str,
    counts: tuple[Num, Num, Num],
    forced: bool = False,
    routed: bool = False,
    streams: tuple[Stream, ...] = (),
) -> list[Spot]:
    if part.leaf:
        leaf_kind = None if forced else part.leaf.kind
        spots.append(Spot(steps, part.leaf, leaf_kind or kind, counts, routed, kind, streams))
    for child in part.parts:
        runs = child.times if child.runs is None else child.runs
        times, active, passes = counts
        number = child.times if child.routed else runs
        _find(
            spots,
            child.part,
            (*steps, PathStep(child.name, child.indices, child.times, number, child.gradient, child.duty)),
            child.kind or kind,
            (times * child.times, active * (runs if child.routed else child.times), passes * runs),
            child.forced,
            routed or child.routed,
            streams if child.on is everywhere else (*streams, child.on),
        )
    return spots


def _sum_caches(terms: Iterable[Cache]) -> Cache:
    columns = list(zip(*terms, strict=True))
    return Cache(*map(total, columns)) if columns else NO_CACHE


def _narrow(entry: Entry, path: str) -> Iterator[Entry]:
    """The entry itself if it is at or below `path`, with the counts of one copy for every index in the path."""
    names = path.split(".") if path else []
    copies: Num = 1
    passes: Num = 1
    steps: list[PathStep] = []
    for step in entry.steps:
        if not names:
            steps.append(step)
            continue
        if names.pop(0) != step.name:
            return
        if step.indices is None or not names:
            steps.append(step)
            continue
        number = names.pop(0)
        if not number.isdecimal() or len(number) > 9 or str(int(number)) != number or int(number) not in step.indices:
            return
        copies, passes = copies * step.times, passes * step.number
        steps.append(step._replace(indices=(int(number),), times=1, number=1))
    if names:
        return
    times, active, runs = _share(entry.times, copies), _share(entry.active_times, copies), _share(entry.runs, passes)
    yield Entry(tuple(steps), entry.leaf, entry.kind, entry.work, times, active, runs, entry.routed, entry.within)


def _share(count: Num, among: Num) -> Num:
    exact = isinstance(count, int | Fraction) and isinstance(among, int | Fraction)
    return ratio(count, among) if exact else exact_div(count, among)


def same_input(before: Entry | None, entry: Entry) -> bool:
    """Whether a linear layer follows another with the same parent and input: an engine fuses them into one product."""
    if before is None or before.steps[:-1] != entry.steps[:-1] or before.work != entry.work:
        return False
    first, second = before.leaf.matrix, entry.leaf.matrix
    return first is not None and second is not None and bool(first[0] == second[0])
