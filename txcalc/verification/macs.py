"""Multiply-adds by module from fvcore, an independent counter: it reads TorchScript's trace, not PyTorch's dispatch."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import nn

from txcalc.reference import tracing
from txcalc.reference.feedforward import busy_experts_only
from txcalc.verification.coverage import costs_nothing
from txcalc.verification.subject import Subject
from txcalc.verification.verdict import CheckedRow, compare, uncounted

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # fvcore scripts a loss that is not used here
    from fvcore.nn.flop_count import _DEFAULT_SUPPORTED_OPS
    from fvcore.nn.jit_analysis import JitModelAnalysis

ORACLE = "fvcore"
FLOPS_PER_MAC = 2

# fvcore's handles without norms, which are no matrix products, and without einsum's, which returns a rounded float.
HANDLES = {name: h for name, h in _DEFAULT_SUPPORTED_OPS.items() if not costs_nothing(name) and name != "aten::einsum"}


class _InnermostAnalysis(JitModelAnalysis):  # type: ignore[misc]
    """Charges an operator to the innermost module only; only operators in `zero_cost.json` are free."""

    def __init__(self, net: nn.Module, inputs: tuple[object, ...]) -> None:
        super().__init__(net, inputs)
        self._ignored_ops = set[str]()
        self.set_op_handle(**HANDLES).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        self.tracer_warnings("none")

    def _get_all_ancestors(self, module_name: str) -> set[str]:
        return {self.canonical_module_name(module_name)}


def count(net: nn.Module, inputs: tuple[object, ...]) -> tuple[dict[str, int], dict[str, Counter[str]]]:
    """FLOPs of each module without its children (twice fvcore's multiply-adds), and the operators without a count, by
    module."""
    stats = _InnermostAnalysis(net, inputs)._analyze()
    flops = {path: FLOPS_PER_MAC * sum(macs.values()) for path, macs in stats.counts.items() if macs}
    skipped = {
        path: Counter({name: times for name, times in operators.items() if not costs_nothing(name)})
        for path, operators in stats.unsupported_ops.items()
    }
    return flops, {path: operators for path, operators in skipped.items() if operators}


def rows(subject: Subject) -> Iterator[CheckedRow]:
    """Forward FLOPs at every point, and operators without a count."""
    for point, net, expand in subject.runs():
        static = subject.device == "meta"
        with tracing(static=static), torch.no_grad(), busy_experts_only(net) if static else nullcontext():
            measured, skipped = count(net, subject.inputs(point))
        yield from compare(
            subject.ledger(point), lambda entry: entry.flops, expand(measured), "flops", ORACLE, str(point)
        )
        yield from uncounted(expand(skipped), ORACLE, str(point))
