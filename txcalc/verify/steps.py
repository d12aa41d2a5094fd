"""What is shown of a structure beyond its parameters and forward FLOPs: a training step, what it keeps for backward, a
pass with tokens past, the cache, and what masks let through.

FLOPs of backward and of a pass with tokens past, and what is kept, hold for every size as `prove` shows it. Where a
window ends, the trace takes another way: there is one for each order of the window, the tokens past and all tokens, in
which these sizes are sums of letters, so that their order is no condition. The pairs that a mask leaves are added up at
sizes on both sides of the window's end, and are *measured*.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, NamedTuple

import sympy
import torch

from txcalc.ledger import walk
from txcalc.parts.cores import SoftmaxCore
from txcalc.parts.latent import LatentCore
from txcalc.parts.model import FixedLength, Stack
from txcalc.parts.part import Workload
from txcalc.planning import theorems
from txcalc.planning.gradients import step_flops
from txcalc.planning.theorems import Condition, Shown, Unit
from txcalc.reference import Cache, mode, modules, tracing
from txcalc.verify import flops, mask, saved
from txcalc.verify.cache import ORACLE as DECODING
from txcalc.verify.sizes import SizeSymbols, inputs, lengths_of, ones_of, refusing, simple
from txcalc.verify.symbolic import T_SRC, B, NotForAll, T
from txcalc.verify.verdict import Row, compare, spread, uncounted

META = torch.device("meta")
PAST, MORE, LACKING, W = (
    sympy.Symbol(name, integer=True, positive=True) for name in ("past", "more", "lacking", "attention.window")
)
WINDOWS = (2, 3, 5, 8)  # at which masks are added up


def shown(unit: Unit, known: Collection[str] = ()) -> tuple[dict[str, Shown], list[Row]]:
    """What can be said of each further quantity that is not known, and the rows behind it; what cannot be traced is
    left out."""
    found: dict[str, Shown] = {}
    rows: list[Row] = []
    attempts: dict[Callable[[Unit], tuple[dict[str, Shown], list[Row]]], tuple[str, ...]] = {
        _training: ("training flops",),
        _saved: (theorems.KEPT, theorems.FUSED),
        _decoding: ("cache", "flops with cache"),
        _masked: ("masked flops",),
    }
    for attempt, quantities in attempts.items():
        if set(quantities) <= set(known):
            continue
        try:
            said, more = attempt(unit)
        except NotForAll:
            continue
        found |= said
        rows += more
    return found, rows


def _training(unit: Unit) -> tuple[dict[str, Shown], list[Row]]:
    """FLOPs of forward and backward."""
    rows: list[Row] = []
    conditions: dict[Condition, None] = {}
    for ones in ones_of(unit):
        symbols = SizeSymbols(unit.values, ones)
        root = unit.over({name: symbols.letters[name] for name in unit.values})
        batch, tokens, source = (1 if str(letter) in ones else letter for letter in (B, T, T_SRC))
        predicted = theorems.ledger(root, batch, tokens, source)
        with refusing(), tracing(), symbols.mode:
            net = modules(symbols.of(root), META, torch.float32)
            given = inputs(unit, root, symbols.sides, symbols.of)
            counter = flops.count(net, partial(flops.forward_and_backward, net, given))
        conditions |= dict.fromkeys(_of_sizes(symbols))
        found = {path: symbols.read(value) for path, value in counter.by_module.items()}
        figure = partial(step_flops, recompute="none")
        rows += compare(predicted, figure, found, "training flops", flops.ORACLE, _where(ones), for_all=True)
        rows += uncounted(counter.uncounted, flops.ORACLE, _where(ones))
    domain = f"all {', '.join(lengths_of(unit))} ≥ 1"
    return {"training flops": _proved(unit, "training flops", domain, conditions)}, rows


def _where(ones: tuple[str, ...]) -> str:
    return ", ".join(f"{one} = 1" for one in ones) or "all ≥ 2"


def _of_sizes(symbols: SizeSymbols) -> list[Condition]:
    """What the trace assumed, of sizes alone. Errors: `NotForAll` where it was of lengths."""
    sizes, lengths = symbols.conditions()
    if lengths:
        raise NotForAll(f"the trace holds only where {', '.join(lengths)}")
    return sizes


def _proved(unit: Unit, quantity: str, domain: str, conditions: dict[Condition, None]) -> Shown:
    return Shown(theorems.digest(unit, quantity), "proved", domain, tuple(conditions))


def _saved(unit: Unit) -> tuple[dict[str, Shown], list[Row]]:
    """What autograd keeps, with the attention matrix and with fused attention, where the ledger claims all of it."""
    said: dict[str, Shown] = {}
    rows: list[Row] = []
    for quantity, device in ((theorems.KEPT, META), (theorems.FUSED, torch.device("cpu"))):
        try:
            found, conditions = _kept(unit, quantity, device)
        except NotForAll:
            continue
        said[quantity] = _proved(unit, quantity, f"all {', '.join(lengths_of(unit))} ≥ 2", dict.fromkeys(conditions))
        rows += found
    return said, rows


def _kept(unit: Unit, quantity: str, device: torch.device) -> tuple[list[Row], list[Condition]]:
    keep_scores = quantity == theorems.KEPT
    if not saved.claims(theorems.ledger(unit.over(theorems.probe(unit)), 2, 7, 5, keep_scores)):
        raise NotForAll("what some of its parts keep is modelled")
    symbols = SizeSymbols(unit.values)
    root = unit.over({name: symbols.letters[name] for name in unit.values})
    predicted = theorems.ledger(root, B, T, T_SRC, keep_scores)
    idle = {path for path, (_, amount) in spread(predicted, lambda entry: entry.saved).items() if amount == 0}
    with refusing(), mode(explicit=keep_scores, static=True), symbols.mode:
        net = modules(symbols.of(root), device, torch.float32)
        for part in net.modules():
            if isinstance(getattr(part, "scale", None), torch.SymFloat):
                part.scale = 1.0  # type: ignore[assignment]  # fused kernels take a number, and keep the same
        given = [tensor.to(device) for tensor in inputs(unit, root, symbols.sides, symbols.of)]
        kept = saved.SavedElements(net, symbols, saved.row_statistics(predicted), idle).during(partial(net, *given))
    rows = compare(predicted, lambda entry: entry.saved, kept.found, quantity, saved.ORACLE, "all ≥ 2", for_all=True)
    return list(rows), _of_sizes(symbols)


# A pass with tokens past.


class Order(NamedTuple):
    """Which of a window, the tokens past and all tokens is longer: letters of 2 or more, and what is made of them."""

    letters: tuple[Any, ...]
    past: Any = PAST
    tokens: Any = T
    window: Any = W


def orders(one: bool, window: bool) -> tuple[Order, ...]:
    """Every order of W, past and past + T, for T = 1 or T ≥ 2; where there is a window, they leave out no size."""
    tokens = sympy.Integer(1) if one else T
    own = () if one else (T,)
    if not window:
        return (Order((PAST, *own), tokens=tokens),)
    passed = Order((W, MORE, *own), past=W + MORE - 1, tokens=tokens)  # past > W
    even = Order((PAST, *own), tokens=tokens, window=PAST)
    reached = Order((PAST, *own), tokens=tokens, window=PAST + tokens)
    within = Order((PAST, MORE, *own), tokens=tokens, window=PAST + tokens + MORE - 1)  # past + T < W
    if one:
        return passed, even, reached, within
    across = Order((PAST, LACKING, MORE), tokens=LACKING + MORE - 2, window=PAST + LACKING - 1)  # past < W < past + T
    return passed, even, across, reached, within


def _decoding(unit: Unit) -> tuple[dict[str, Shown], list[Row]]:
    """What a pass with tokens past costs, and what is kept after it."""
    root = unit.over(theorems.probe(unit))
    windows = [name for name in unit.values if name.startswith("attention.window")]
    if not isinstance(root, Stack) or unit.spec["kind"] == "encoder" or len(windows) > 1:
        raise NotForAll("it has an encoder, or windows of several sizes")
    rows: list[Row] = []
    conditions: dict[Condition, None] = {}
    for one in (False, True):
        for order in orders(one, bool(windows)):
            found, assumed = _passed(unit, order, "T = 1" if one else "T ≥ 2")
            rows += found
            conditions |= dict.fromkeys(assumed)
    said = {
        name: _proved(unit, name, "all B ≥ 2, T ≥ 1, past ≥ 2", conditions) for name in ("cache", "flops with cache")
    }
    return said, rows


def _passed(unit: Unit, order: Order, where: str) -> tuple[list[Row], list[Condition]]:
    made_of = {str(W): order.window} if order.window != W else {}
    sizes = [name for name in unit.values if name not in made_of and name != str(W)]
    symbols = SizeSymbols(sizes, lengths=(B, *order.letters), made_of=made_of)
    root = unit.over({name: symbols.letters[name] for name in unit.values})
    batch, past, tokens = symbols.letters["B"], order.past, order.tokens
    cache = Cache()
    with refusing(), tracing(), symbols.mode, torch.no_grad():
        net = modules(symbols.of(root), META, torch.float32)
        made = [symbols.of(length) for length in (batch, past, tokens)]
        net(*inputs(unit, root, (made[0], made[1], None), symbols.of), cache=cache)
        given = inputs(unit, root, (made[0], made[2], None), symbols.of)
        counter = flops.count(net, lambda: net(*given, cache=cache))
    ledger = walk(root, Workload(batch, tokens, past, None, decoding=True))
    where = f"all B ≥ 2, {where}, past ≥ 2"
    costs = {path: symbols.read(value) for path, value in counter.by_module.items()}
    held = {path: symbols.read(value) for path, value in cache.elements().items()}
    found = [
        *compare(ledger, lambda e: simple(e.flops), costs, "flops with cache", flops.ORACLE, where, for_all=True),
        *uncounted(counter.uncounted, flops.ORACLE, where),
        *compare(ledger, lambda e: simple(e.cache), held, "cache", DECODING, where, for_all=True),
    ]
    return found, _of_sizes(symbols)


# Masks.


def _masked(unit: Unit) -> tuple[dict[str, Shown], list[Row]]:
    """Cores of attention as prompts, and where they decode with tokens past, on both sides of a window's end."""
    probed = theorems.probe(unit)
    windows = [name for name in unit.values if name.startswith("attention.window")]
    cores = [leaf for leaf in unit.over(probed).leaves() if leaf.kind == "attention_core"]
    leaves = [leaf for leaf in cores if isinstance(leaf, SoftmaxCore | LatentCore)]
    if len(leaves) < len(cores) or not all(map(mask.summed, leaves)) or len(windows) > 1:
        raise NotForAll("a core has no mask to sum, its keys are chosen by scores, or its windows have several sizes")
    rows: list[Row] = []
    sizes = 0
    for window in WINDOWS if windows else (0,):
        root = unit.over({**probed, **dict.fromkeys(windows, window)})
        found = list(_summed(unit, root, window))
        sizes += len({row.where for row in found})
        rows += found
    if not leaves:
        return {"masked flops": _proved(unit, "masked flops", "no mask hides anything in it", {})}, rows
    where = f"at {sizes} sizes" + (f" around windows of {', '.join(map(str, WINDOWS))}" if windows else "")
    return {"masked flops": Shown(theorems.digest(unit, "masked flops"), "measured", where, ())}, rows


def _summed(unit: Unit, root: Any, window: int) -> Iterator[Row]:
    if isinstance(root, FixedLength):
        raise NotForAll("a picture has one length")
    source = 3 if len(root.stacks) > 1 else None
    net = modules(root, META, torch.float32)
    alone = walk(root, Workload(1, 1, 0, source and 1))
    cores = mask.counted(net, inputs(unit, root, (1, 1, 1), lambda size: size), mask.working(alone))
    lengths = {(tokens, 0) for tokens in (1, 2, 3, 5, 8, window - 1, window, window + 2)}
    if unit.spec["kind"] not in ("encoder", "vision"):
        past = (1, 6, window - 2, window - 1, window, window + 5, 2 * window + 1)
        lengths |= {(tokens, before) for tokens in (1, 3) for before in past}
    for tokens, before in sorted(pair for pair in lengths if pair[0] > 0 and pair[1] >= 0):
        work = Workload(mask.BATCH, tokens, before, source, decoding=before > 0)
        masked = mask.working(walk(root, work))
        where = f"W = {window}, {before} past, {tokens} new" if window else f"{before} past, {tokens} new"
        found = mask.left(cores, masked)
        yield from compare(masked, lambda entry: entry.flops_masked, found, mask.QUANTITY, mask.ORACLE, where)
