"""Kernels of one pass: matrix products and attention, by PyTorch's profiler and by the ledger; on CUDA also by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from txcalc.evidence.figures import Figure
from txcalc.ledger import Ledger
from txcalc.parts.part import MatMul
from txcalc.planning.gradients import passes
from txcalc.verification import device as devices
from txcalc.verification.measure import Work

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_mm", "_grouped_mm"})
FUSED = "_scaled_dot_product_"  # prefix of PyTorch's attention operators
LISTED_KERNELS = 12  # the slowest


class PassKernels(NamedTuple):
    """Calls of the operators of a pass that launch products and attention; on CUDA also the slowest kernels (name,
    count, microseconds)."""

    products: Counter[str]
    attention: Counter[str]
    kernels: list[tuple[str, int, float]]

    def described(self) -> dict[str, Any]:
        """For JSON."""
        counts = {"products": dict(self.products), "attention": dict(self.attention)}
        return {**counts, **({"kernels": [list(kernel) for kernel in self.kernels]} if self.kernels else {})}


def profile_kernels(work: Work, device: str) -> PassKernels:
    """The kernels of `work`, which must have run before, so that set-up is not recorded."""
    cuda = devices.is_cuda(device)
    activities = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        work()
        if cuda:
            torch.cuda.synchronize(device)
    products, attention = Counter[str](), Counter[str]()
    waiting = list(profile.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        name = event.name.removeprefix("aten::")
        if name.startswith(FUSED):
            attention[name] += 1
        elif name in PRODUCTS:
            products[name] += 1
        else:
            waiting += event.children
    kernels: list[tuple[str, int, float]] = []
    if cuda:
        cuda_events = (event for event in profile.key_averages() if event.device_type.name == "CUDA")
        timings = [(event.key, event.count, event.self_device_time_total) for event in cuda_events]
        kernels = sorted(timings, key=lambda kernel: -kernel[2])[:LISTED_KERNELS]
    return PassKernels(products, attention, kernels)


def figures(ledger: Ledger, load: str, training: bool, kernels: PassKernels) -> Iterator[Figure]:
    """Predicted and measured launches of matrix products and of attention; each module's product or core is one."""
    products = attention = 0
    for entry in ledger:
        if entry.kind == "attention_core":
            attention += int(entry.runs) * (1 + (training and entry.gradient != "none"))
        elif any(isinstance(op, MatMul) for op in entry.operations):
            products += int(entry.times) * (passes(entry) if training else 1)
    for part, predicted, calls in (
        ("products", products, kernels.products),
        ("attention", attention, kernels.attention),
    ):
        yield Figure(
            quantity="kernels",
            load=load,
            part=part,
            unit="launches",
            predicted=predicted,
            measured=sum(calls.values()),
            beside={name: float(number) for name, number in calls.items()},
        )
