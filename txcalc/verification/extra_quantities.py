"""More theorems of a structure: training step, saved activations, passes after cached tokens, the cache, masked pairs.

FLOPs of backward and of a pass with cached tokens, and saved activations, are proved for every size as in `prove`. The
end of a window changes the trace, so there is one trace for each order of the window, the cached tokens and all tokens;
these sizes are sums of letters, so that their order is no condition. Visible pairs under a mask are summed at sizes on
both sides of the window's end, and are *measured*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import sympy
import torch
from torch import nn

from txcalc.evidence import theorems
from txcalc.evidence.domains import common
from txcalc.evidence.theorems import Condition, QuantityEvidence, Unit
from txcalc.ledger import Ledger, walk
from txcalc.notation import Expression
from txcalc.parts.part import Workload
from txcalc.parts.work import NO_SOURCE
from txcalc.planning.gradients import step_flops
from txcalc.reference import CacheTensors, mode, modules, tracing
from txcalc.verification import active, flops, mask, saved
from txcalc.verification.cache import ORACLE as DECODING
from txcalc.verification.flops import ORACLE
from txcalc.verification.saved import SavedElements
from txcalc.verification.sizes import (
    Case,
    SizeSymbols,
    cases,
    inputs,
    lengths_of,
    measured_at,
    refusing_symbols,
    simplify,
    subsets,
)
from txcalc.verification.symbolic import T_SRC, B, NotForAll, T
from txcalc.verification.verdict import CheckedRow, compare, uncounted

META = torch.device("meta")
FLOPS = theorems.FIGURES["flops"].of
PAST, MORE, LACKING, W = (
    sympy.Symbol(name, integer=True, positive=True) for name in ("past", "more", "lacking", "attention.window")
)
MODES: dict[str, dict[str, bool]] = {"": {}, theorems.LAST: {"last": True}, theorems.ABSORBED: {"absorbed": True}}
WINDOWS = (2, 3, 5, 8)  # window lengths at which visible pairs are summed
POOLED = ((2, 3), (5, 2), (5, 7))  # windows and group sizes at which passes with pooled cached tokens are measured


Proof = tuple[dict[str, QuantityEvidence], list[CheckedRow]]  # evidence by quantity, and its rows
Tables = Mapping[str, Sequence[bool]]  # by module, which of its saved tensors do not depend on the batch


class Costs(NamedTuple):
    """FLOPs by module, the operators without a count, and the conditions of both."""

    by_module: dict[str, Any]
    uncounted: dict[str, Counter[str]]
    conditions: list[Condition]


class SavedTrace(NamedTuple):
    """Saved activations of a unit's module, the ledger in the same letters, and their conditions."""

    symbols: SizeSymbols
    ledger: Ledger
    recording: SavedElements
    conditions: list[Condition]

    def rows(self, quantity: str) -> list[CheckedRow]:
        figures = self.ledger, lambda entry: simplify(entry.saved), self.recording.elements
        return [*compare(*figures, quantity, saved.ORACLE, "all lengths ≥ 2", for_all=True)]


class StepTrace(NamedTuple):
    """A training step of a unit's module: FLOPs of forward and of both passes (None if backward takes no symbols, or is
    not traced), and saved activations with explicit attention (none without backward)."""

    case: Case
    net: nn.Module
    forward: Costs
    training: Costs | None
    saved: SavedTrace

    def rows(self, costs: Costs, quantity: str, figure: Any = FLOPS, where: str = "") -> Iterator[CheckedRow]:
        where = where or ", ".join(self.case.describe()) or "all ≥ 2"
        return flops_rows(self.saved.symbols, self.saved.ledger, costs, quantity, where, figure)


def trace_step(
    unit: Unit, case: Case, symbols: SizeSymbols, backward: bool, form: str = "", tables: Tables | None = None
) -> StepTrace:
    """Traces a training step, or only its forward; `form`: "", last logits or absorbed latents (`MODES`); `tables`:
    those of the trace with B (`SavedElements`)."""
    root = symbols.tree(unit)
    ledger = theorems.ledger(root, *symbols.letter_shape, keep_scores=True, **_form_fields(form))
    training = None
    with refusing_symbols(), tracing(**MODES[form]), symbols.mode, torch.set_grad_enabled(backward):
        net = modules(symbols.of(root), META, torch.float32)
        recorded = SavedElements(net, symbols, ledger, tables)
        with flops.Count(net) as counter:
            with recorded.recording():
                output = net(*flops.learning(net, symbols.inputs(unit)))
            forward = Costs(counter.by_module, deepcopy(counter.uncounted), symbols.conditions())
            with suppress(NotForAll), refusing_symbols():
                if backward:
                    flops.output_sum(output).backward()
                    training = Costs(counter.by_module, counter.uncounted, symbols.conditions())
    return StepTrace(case, net, forward, training, SavedTrace(symbols, ledger, recorded, forward.conditions))


def trace_steps(unit: Unit, backward: bool = True, form: str = "") -> list[StepTrace]:
    """Traces that together cover all lengths, the first with symbols for all; only of forward if forward with gradients
    takes no symbols."""
    traces: list[StepTrace] = []
    try:
        for case in cases(unit):
            letters = next((trace.saved.symbols for trace in traces if trace.case.formulas == case.formulas), None)
            symbols = (letters or SizeSymbols(unit.values, formulas=case.formulas)).at_one(case.ones)
            tables = traces[0].saved.recording.packed if case.ones else None
            traces.append(trace_step(unit, case, symbols, backward, form, tables))
    except NotForAll:
        if not backward:
            raise
        return trace_steps(unit, backward=False)
    return traces


def prove_extra(unit: Unit, known: Collection[str] = (), traces: Sequence[StepTrace] = ()) -> Proof:
    """The evidence for each extra quantity not in `known`, with its rows; quantities that cannot be traced are left
    out. `traces` are those of `trace_steps`."""
    evidence: dict[str, QuantityEvidence] = {}
    rows: list[CheckedRow] = []
    attempts: dict[Callable[[Unit], Proof], tuple[str, ...]] = {
        partial(prove_training, traces=traces): ("training flops",),
        partial(prove_saved, traces=traces): (theorems.KEPT, theorems.FUSED),
        prove_decoding: ("cache", "flops with cache"),
        _sum_masks: ("masked flops",),
        active.measure_active: (active.QUANTITY,),
    }
    for form in (form for form in theorems.FORMS if theorems.affects(unit, form)):
        attempts[partial(_prove_prompt, form=form)] = (theorems.name_in_form("flops", form),)
        attempts[partial(prove_decoding, form=form)] = (theorems.name_in_form("flops with cache", form),)
    for attempt, quantities in attempts.items():
        if set(quantities) <= set(known):
            continue
        try:
            new_evidence, new_rows = attempt(unit)
        except NotForAll:
            continue
        evidence |= new_evidence
        rows += new_rows
    return evidence, rows


def prove_training(unit: Unit, traces: Sequence[StepTrace] = ()) -> Proof:
    """FLOPs of forward and backward."""
    traced = [(trace, trace.training) for trace in traces or trace_steps(unit)]
    return _prove_flops(unit, "training flops", traced, step_flops)


def _prove_prompt(unit: Unit, form: str) -> Proof:
    """FLOPs of a forward pass in another form: only the last logits, or absorbed latents."""
    traced = [(trace, trace.forward) for trace in trace_steps(unit, backward=False, form=form)]
    return _prove_flops(unit, theorems.name_in_form("flops", form), traced)


def _prove_flops(
    unit: Unit, quantity: str, traced: Sequence[tuple[StepTrace, Costs | None]], figure: Any = FLOPS
) -> Proof:
    conditions: dict[Condition, None] = {}
    rows: list[CheckedRow] = []
    for trace, costs in traced:
        if costs is None:
            raise NotForAll("its module takes no symbols in backward")
        conditions |= dict.fromkeys(costs.conditions)
        rows += trace.rows(costs, quantity, figure)
    return {quantity: _proved(unit, quantity, f"all {', '.join(lengths_of(unit))} ≥ 1", conditions)}, rows


def flops_rows(
    symbols: SizeSymbols,
    predicted: Ledger,
    counter: flops.Count | Costs,
    quantity: str,
    where: str,
    figure: Any = FLOPS,
) -> Iterator[CheckedRow]:
    """Rows of FLOPs as formulas, and of operators without a count."""
    costs = symbols.read_all(counter.by_module)
    yield from compare(predicted, lambda entry: simplify(figure(entry)), costs, quantity, ORACLE, where, for_all=True)
    yield from uncounted(counter.uncounted, ORACLE, where)


def _form_fields(form: str) -> dict[str, bool]:
    """The fields of a workload that select a form."""
    return {theorems.FORMS[form]: True} if form else {}


def _proved(unit: Unit, quantity: str, domain: str, conditions: dict[Condition, None]) -> QuantityEvidence:
    return QuantityEvidence(theorems.digest(unit, quantity), "proved", domain, tuple(conditions))


def prove_saved(unit: Unit, traces: Sequence[StepTrace] = ()) -> Proof:
    """Saved activations with explicit and with fused attention, if the ledger claims all of them. They are proved for
    all lengths of 2 or more, and from 1 for each length whose figures are also equal at 1, for any others at 1."""
    traces, letters = traces or trace_steps(unit), SizeSymbols(unit.values)

    def explicit(ones: tuple[str, ...], tables: Tables | None = None) -> SavedTrace:
        for trace in traces:
            if trace.case == Case(ones) and trace.training:
                return trace.saved
        raise NotForAll("its module takes no symbols with gradients")

    def fused(ones: tuple[str, ...], tables: Tables | None = None) -> SavedTrace:
        return _trace_fused(unit, letters.at_one(ones), tables)

    evidence: dict[str, QuantityEvidence] = {}
    rows: list[CheckedRow] = []
    for quantity, trace_at in ((theorems.KEPT, explicit), (theorems.FUSED, fused)):
        scores = quantity == theorems.KEPT
        if not saved.claims(theorems.ledger(unit.over(theorems.probe(unit)), 2, 7, 5, keep_scores=scores)):
            continue
        try:
            first = trace_at(())
            conditions = first.conditions
        except NotForAll:
            continue
        rows += first.rows(quantity)
        saves_alike = partial(_saves_alike, trace_at, quantity, first)
        from_one: list[str] = []
        for length in lengths_of(unit):
            if all(saves_alike((*ones, length)) for ones in subsets(from_one)):
                from_one.append(length)
        bounds = (f"all {length} ≥ {1 if length in from_one else 2}" for length in lengths_of(unit))
        evidence[quantity] = _proved(unit, quantity, common([*bounds]), dict.fromkeys(conditions))
    return evidence, rows


def _saves_alike(trace_at: Any, quantity: str, first: SavedTrace, ones: tuple[str, ...]) -> bool:
    """Whether saved activations equal the ledger's with some lengths at 1, under no more conditions."""
    try:
        trace = trace_at(ones, first.recording.packed)
    except NotForAll:
        return False
    same_tables = trace.recording.packed == first.recording.packed
    return same_tables and {*trace.conditions} <= {*first.conditions} and all(row.equal for row in trace.rows(quantity))


def _trace_fused(unit: Unit, symbols: SizeSymbols, tables: Tables | None) -> SavedTrace:
    """Saved activations with fused attention: PyTorch's kernel on the CPU."""
    root, cpu = symbols.tree(unit), torch.device("cpu")
    ledger = theorems.ledger(root, *symbols.letter_shape)
    with refusing_symbols(), mode(static=True), symbols.mode:
        net = modules(symbols.of(root), cpu, torch.float32)
        for part in net.modules():
            if isinstance(getattr(part, "scale", None), torch.SymFloat):
                part.scale = 1.0  # type: ignore[assignment]  # fused kernels need a float, and save the same
        with SavedElements(net, symbols, ledger, tables).recording() as recorded:
            net(*(tensor.to(cpu) for tensor in symbols.inputs(unit)))
    return SavedTrace(symbols, ledger, recorded, symbols.conditions())


class Order(NamedTuple):
    """Sizes of the window, the cached and the new tokens, as sums of letters of 2 or more that fix their order."""

    past: Expression
    window: Expression
    tokens: Expression

    def letters(self, window: bool) -> list[Expression]:
        """The letters of these sizes, with or without those of the window."""
        sizes = (self.past, self.tokens, *((self.window,) if window else ()))
        return sorted(set[Expression]().union(*(size.free_symbols for size in sizes)), key=str)


def orders(window: bool) -> list[Order]:
    """Orders that together cover all sizes; with a window, their prompts cover every length and window too."""
    single = sympy.Integer(1)
    any_order = [Order(past, W, tokens) for past in (PAST, single) for tokens in (single, T)]
    if not window:
        return any_order
    past_beyond = [Order(W + MORE - 1, W, tokens) for tokens in (single, T)]  # past > W
    past_equal = [Order(PAST, PAST, tokens) for tokens in (single, T)]  # past = W
    all_equal = [order._replace(window=order.past + order.tokens) for order in any_order]  # past + T = W
    all_within = [order._replace(window=order.window + MORE - 1) for order in all_equal]  # past + T < W
    across = Order(PAST, PAST + LACKING - 1, LACKING + MORE - 2)  # past < W < past + T
    return [*past_beyond, *past_equal, *all_equal, *all_within, across, Order(single, W, W + MORE - 2)]


def prove_decoding(unit: Unit, form: str = "") -> Proof:
    """FLOPs of a pass with cached tokens, and the cache after it and after a prompt; in another form only FLOPs."""
    root = unit.over(theorems.probe(unit))
    windows = [name for name in unit.values if name.startswith("attention.window")]
    fixed = unit.description.kind == "encoder" or root.fixed is not None
    if fixed or len(windows) > 1:
        raise NotForAll("it is an encoder, or has windows of several sizes")
    if any(name.startswith("compressed.") for name in unit.values):
        return _measure_pooled(unit, form)
    rows: list[CheckedRow] = []
    conditions: dict[Condition, None] = {}
    by_window: dict[Expression, list[Order]] = {}
    for order in orders(bool(windows)):
        by_window.setdefault(order.window, []).append(order)
    for group in by_window.values():
        group_rows, assumed = prove_passes(unit, group, form)
        rows += group_rows
        conditions |= dict.fromkeys(assumed)
    lengths = ", ".join(lengths_of(unit))
    name = theorems.name_in_form("flops with cache", form)
    evidence = {} if form else {"cache": _proved(unit, "cache", f"all {lengths} ≥ 1, past ≥ 0", conditions)}
    return evidence | {name: _proved(unit, name, f"all {lengths}, past ≥ 1", conditions)}, rows


def _measure_pooled(unit: Unit, form: str) -> Proof:
    """The same with pooled tokens, at sizes on both sides of the ends of groups and windows."""
    names = [[name for name in unit.values if name.endswith(end)] for end in (".window", ".rate")]
    rows: list[CheckedRow] = []
    for window, rate in POOLED:
        sizes = dict.fromkeys(names[0], window) | dict.fromkeys(names[1], rate)
        values = {**theorems.probe(unit), **sizes}
        root = unit.over(values)
        net = modules(root, META, torch.float32)
        for past, tokens in product(sorted({1, rate - 1, rate, window, window + rate}), (1, 2)):
            cache = CacheTensors()
            with tracing(**MODES[form]), torch.no_grad():
                net(*inputs(unit, values, (2, past, 1), int), cache=cache)
                ids, *_ = inputs(unit, values, (2, tokens, 1), int)
                counter = flops.count(net, partial(net, ids, cache=cache))
            ledger = walk(root, Workload(2, tokens, past, NO_SOURCE, decoding=True, **_form_fields(form)))
            where = f"{past} past, {tokens} new, groups of {rate}, a window of {window}"
            for quantity, figure, measured, oracle in (
                (theorems.name_in_form("flops with cache", form), FLOPS, counter.by_module, ORACLE),
                ("cache", theorems.FIGURES["cache"].of, cache.elements(), DECODING),
            ):
                rows += compare(ledger, figure, measured, quantity, oracle, where)
            rows += uncounted(counter.uncounted, ORACLE, where)
    domain = f"at {len({row.where for row in rows})} sizes around the ends of groups and windows"
    quantities = [theorems.name_in_form("flops with cache", form), *([] if form else ["cache"])]
    return {name: measured_at(unit, name, domain) for name in quantities}, rows


def prove_passes(unit: Unit, orders: Sequence[Order], form: str = "") -> tuple[list[CheckedRow], list[Condition]]:
    """Prompts of the cached tokens and passes after them, in orders with one window, with the batch and an encoder's
    length at 1 and at more."""
    window, other_lengths = orders[0].window, [length for length in lengths_of(unit) if length != "T"]
    letters = {letter for order in orders for letter in order.letters(str(W) in unit.values)}
    lengths = [B, *([T_SRC] if "T_src" in other_lengths else []), *sorted(letters, key=str)]
    sizes = {name: size for name, size in unit.values.items() if name != str(W)}
    symbols = SizeSymbols(sizes, lengths, {str(W): window} if window != W else {})
    with refusing_symbols(), tracing(**MODES[form]), symbols.mode:
        net = modules(symbols.of(symbols.tree(unit)), META, torch.float32)
    at_window = [f"W = {window}"] if str(W) in unit.values else []
    rows: list[CheckedRow] = []
    for ones, past in product(subsets(other_lengths), dict.fromkeys(order.past for order in orders)):
        following = [order.tokens for order in orders if order.past == past]
        for work, counter, cache in _run_passes(unit, symbols.at_one(ones), net, past, following, form):
            where = ", ".join(
                [*(f"{name} = 1" for name in ones), f"T = {work.tokens}", f"past = {work.past}", *at_window]
            )
            quantity = theorems.name_in_form("flops with cache" if work.decoding else "flops", form)
            ledger, cached = walk(symbols.tree(unit), work), symbols.read_all(cache.elements())
            rows += flops_rows(symbols, ledger, counter, quantity, where)
            rows += compare(ledger, lambda e: simplify(e.cache), cached, "cache", DECODING, where, for_all=True)
    return rows, symbols.conditions()


def _run_passes(
    unit: Unit, symbols: SizeSymbols, net: nn.Module, past: Expression, following: Sequence[Expression], form: str
) -> Iterator[tuple[Workload, flops.Count, CacheTensors]]:
    """FLOPs of a prompt (with its encoder) and of passes after it, and the cache after each."""
    batch = symbols.letters["B"]
    source = symbols.letters["T_src"] if "T_src" in lengths_of(unit) else NO_SOURCE
    prompt = CacheTensors()
    for before, tokens in ((sympy.Integer(0), past), *((past, tokens) for tokens in following)):
        work = Workload(batch, tokens, before, source, decoding=before != 0, **_form_fields(form))
        cache = prompt.copy() if work.decoding else prompt
        with refusing_symbols(), tracing(**MODES[form]), symbols.mode, torch.no_grad():
            sizes = symbols.of(batch), symbols.of(tokens), symbols.of(source)
            tensors = inputs(unit, symbols.letters, sizes, symbols.of)
            counter = flops.count(net, partial(net, *(tensors[:1] if work.decoding else tensors), cache=cache))
        yield work, counter, cache


def _sum_masks(unit: Unit) -> Proof:
    """Masked FLOPs of attention cores on prompts and with cached tokens, on both sides of a window's end."""
    probed = theorems.probe(unit)
    windows = [name for name in unit.values if name.startswith("attention.window")]
    cores = [leaf for leaf in unit.over(probed).leaves() if leaf.kind == "attention_core"]
    if not all(leaf.mask_span and leaf.masked for leaf in cores) or len(windows) > 1:
        raise NotForAll("a core has no mask to sum, its keys are chosen by scores, or its windows have several sizes")
    rows: list[CheckedRow] = []
    for window in WINDOWS if windows else (0,):
        rows += _sum_mask(unit, {**probed, **dict.fromkeys(windows, window)}, window)
    if not cores:
        return {"masked flops": _proved(unit, "masked flops", "nothing in it is masked", {})}, rows
    sizes = len({row.where for row in rows})
    where = f"at {sizes} sizes" + (f" around windows of {', '.join(map(str, WINDOWS))}" if windows else "")
    return {"masked flops": measured_at(unit, "masked flops", where)}, rows


def _sum_mask(unit: Unit, values: Mapping[str, int], window: int) -> Iterator[CheckedRow]:
    root = unit.over(values)
    if root.fixed is not None and len(root.stacks) == 1:
        raise NotForAll("an image has one length")
    source = 3 if len(root.stacks) > 1 else NO_SOURCE
    net = modules(root, META, torch.float32)
    single_token = walk(root, Workload(1, 1, 0, source and 1))
    cores = mask.pair_costs(net, inputs(unit, values, (1, 1, 1), lambda size: size), mask.running_cores(single_token))
    lengths = {(tokens, 0) for tokens in (1, 2, 3, 5, 8, window - 1, window, window + 2)}
    if unit.description.kind not in ("encoder", "vision"):
        past = (1, 6, window - 2, window - 1, window, window + 5, 2 * window + 1)
        lengths |= {(tokens, before) for tokens in (1, 3) for before in past}
    for tokens, before in sorted(pair for pair in lengths if pair[0] > 0 and pair[1] >= 0):
        work = Workload(mask.BATCH, tokens, before, source, decoding=before > 0)
        masked = mask.running_cores(walk(root, work))
        where = f"W = {window}, {before} past, {tokens} new" if window else f"{before} past, {tokens} new"
        measured = mask.visible_flops(cores, masked)
        yield from compare(masked, lambda entry: entry.flops_masked, measured, mask.QUANTITY, mask.ORACLE, where)
