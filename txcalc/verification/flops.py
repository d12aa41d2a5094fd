"""FLOPs by module from PyTorch's own counter, forward or forward and backward, at numbers or symbols."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from txcalc.planning.gradients import step_flops
from txcalc.reference import tracing
from txcalc.verification.coverage import costs_nothing
from txcalc.verification.subject import Subject
from txcalc.verification.symbolic import NotForAll
from txcalc.verification.tracker import Tracker
from txcalc.verification.verdict import CheckedRow, compare, uncounted

ORACLE = "FlopCounterMode"
Work = Callable[[nn.Module, tuple[Tensor, ...]], None]


def _grouped_product_flops(a: Any, b: Any, *_: object, **__: object) -> Any:
    """FLOPs of a grouped product of (M, K) or (G, M, K) with (K, N) or (G, K, N): G products where both have a
    dimension G; else the groups divide M, N or K between them."""
    groups = a[0] if len(a) == len(b) == 3 else 1
    return 2 * groups * a[-2] * a[-1] * b[-1]


GROUPED = {torch.ops.aten._grouped_mm: _grouped_product_flops}  # PyTorch's counter knows no grouped products


class Count(FlopCounterMode):
    """`FlopCounterMode` by innermost module, with the operators that it does not count: `free` ones, and others by
    module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(display=False, custom_mapping=GROUPED)
        self.tracker = Tracker(net)
        self.mod_tracker = self.tracker  # type: ignore[assignment]
        self.free: Counter[str] = Counter()
        self.uncounted: dict[str, Counter[str]] = {}

    def _count_flops(self, func_packet: object, out: object, args: object, kwargs: object) -> object:
        if func_packet not in self.flop_registry:
            name = str(func_packet).replace(".", "::")
            calls = self.free if costs_nothing(name) else self.uncounted.setdefault(self.tracker.path, Counter())
            calls[name] += 1
        return super()._count_flops(func_packet, out, args, kwargs)

    @property
    def by_module(self) -> dict[str, Any]:
        """Path → FLOPs of the module without its children, two per multiply-add; ints or symbolic ints."""
        return {path: sum(counts.values()) for path, counts in self.flop_counts.items()}


def count(net: nn.Module, work: Callable[[], Any]) -> Count:
    """FLOPs of `work` on the modules of `net`."""
    counter = Count(net)
    with counter:
        work()
    return counter


def rows(subject: Subject) -> Iterator[CheckedRow]:
    """Forward FLOPs."""
    yield from _rows(subject, "flops", lambda entry: entry.flops, forward, checkpoint=False)


def training_rows(subject: Subject) -> Iterator[CheckedRow]:
    """FLOPs of forward and backward, without and with recomputation of blocks."""
    plain, recomputed = partial(step_flops, recompute="none"), partial(step_flops, recompute="blocks")
    yield from _rows(subject, "training flops", plain, forward_and_backward, checkpoint=False)
    yield from _rows(subject, "training flops, blocks recomputed", recomputed, forward_and_backward, checkpoint=True)


def forward(net: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        net(*inputs)


def learning(net: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Inputs of a training step: hidden states get a gradient, data does not."""
    takes_states = getattr(net, "embedding", None) is None and not hasattr(net, "encoder")
    return tuple(x.detach().requires_grad_() if takes_states and x.is_floating_point() else x for x in inputs)


def output_sum(result: object) -> Any:
    """The sum of all outputs, a loss for any module."""
    return sum(part.sum() for part in (result if isinstance(result, tuple) else (result,)))


def forward_and_backward(net: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """A training step without its optimizer."""
    # With early stop, recomputation would skip each block's last product.
    with set_checkpoint_early_stop(False):
        output_sum(net(*learning(net, inputs))).backward()
    net.zero_grad(set_to_none=True)


def _rows(subject: Subject, quantity: str, figure: object, work: Work, checkpoint: bool) -> Iterator[CheckedRow]:
    """Rows for all sizes if the module can be traced with symbols, else at points."""
    if subject.lengths != "points":
        try:
            yield from _symbolic(subject, quantity, figure, work, checkpoint)
            return
        except NotForAll as refusal:
            if subject.lengths == "symbolic":
                raise
            subject.notes.append(f"{quantity} at points: {refusal}")
    for point, net, expand in subject.runs():
        with tracing(static=subject.device == "meta", checkpoint=checkpoint):
            counter = count(net, partial(work, net, subject.inputs(point)))
        yield from compare(subject.ledger(point), figure, expand(counter.by_module), quantity, ORACLE, str(point))
        yield from uncounted(expand(counter.uncounted), ORACLE, str(point))


def _symbolic(subject: Subject, quantity: str, figure: object, work: Work, checkpoint: bool) -> Iterator[CheckedRow]:
    symbols = subject.symbols()
    net, expand = subject.layers_to_run(subject.lengths == "symbolic")
    with tracing(checkpoint=checkpoint), symbols.mode:
        counter = count(net, partial(work, net, symbols.inputs))
    where = symbols.domain()
    measured = expand({path: symbols.read(value) for path, value in counter.by_module.items()})
    yield from compare(subject.ledger(subject.letters), figure, measured, quantity, ORACLE, where, for_all=True)
    yield from uncounted(expand(counter.uncounted), ORACLE, where)
