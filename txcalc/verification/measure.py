"""Measures memory and time on a device, by its allocator and its clock.

Memory is compared with live storages of the same modules on fake tensors, which need no device. The difference is
attributed to operators: scratch space of a kernel, a library's workspace. On CUDA the allocator reports requested and
allocated bytes; on the CPU PyTorch's profiler sees every block of its allocator (not the scratch space that oneDNN and
MKL keep).
"""

from __future__ import annotations

import gc
import math
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from txcalc.verification import device as devices

CUDA_BLOCK = 512  # bytes to which CUDA's allocator rounds every block: kMinBlockSize of c10/cuda/CUDACachingAllocator
# Operators that only allocate memory for the operator that calls them.
HELPERS = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "resize_", "resize_as_", "zero_"}
)
OUTSIDE = "outside operators"
aten = torch.ops.aten
PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default})
SMALL = 16**3  # multiplications up to which PyTorch does not call oneDNN
MARK = "txcalc: measured"

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler logs its start and stop to stderr

Work = Callable[[], Any]
Result = TypeVar("Result")


@dataclass
class Peak:
    """Bytes live before the work (`resident`) and at the peak (`peak`, `by_operator`); `added`: of a traced peak, those
    that the work itself allocated.

    On CUDA `peak` counts allocated bytes, `requested` requested ones, and `reserved` those taken from the device.
    """

    resident: int
    peak: int
    by_operator: dict[str, int] = field(default_factory=dict)
    requested: int | None = None
    reserved: int | None = None
    added: dict[str, int] = field(default_factory=dict)


class Tally(TorchDispatchMode):
    """Live storages of one kind of device, by the operator that created them; `start` resets the peak."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.kind = torch.device(device).type
        self.block = CUDA_BLOCK if devices.is_cuda(device) else 1  # bytes by operator are whole blocks, as measured
        self.live: Counter[str] = Counter()
        self.total = self.most = self.resident = 0
        self.at_most: dict[str, int] = {}
        self.before: dict[str, int] = {}
        self._seen = set[int]()

    def start(self) -> None:
        self.resident = self.most = self.total
        self.at_most = self.before = dict(self.live)

    @property
    def result(self) -> Peak:
        added = {name: size - self.before.get(name, 0) for name, size in self.at_most.items()}
        by_operator = {name: size for name, size in self.at_most.items() if size}
        return Peak(self.resident, self.most, by_operator, added={name: n for name, n in added.items() if n > 0})

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device.type == self.kind:
                name = func._schema.name.partition("::")[2]
                self._add(tensor.untyped_storage(), OUTSIDE if name in HELPERS else name)
        self._update_peak(_workspace(func, args), "clone" if func in PRODUCTS else "eq")
        return result

    def _add(self, storage: Any, name: str) -> None:
        address, size = storage._cdata, storage.nbytes()
        if address in self._seen or not size:
            return
        self._seen.add(address)
        allocated = -(-size // self.block) * self.block
        weakref.finalize(storage, self._drop, address, name, size, allocated)
        self.live[name] += allocated
        self.total += size
        self._update_peak()

    def _update_peak(self, workspace: int = 0, name: str = "") -> None:
        if self.total + workspace > self.most:
            self.most, self.at_most = self.total + workspace, {**self.live, name: self.live[name] + workspace}

    def _drop(self, address: int, name: str, size: int, allocated: int) -> None:
        self._seen.discard(address)
        self.live[name] -= allocated
        self.total -= size


def _workspace(func: object, args: Any) -> int:
    """Temporary workspace of an operator in bytes, for kernels where it is known.

    A product copies operands whose strides its library does not accept (`prepare_matrix_for_cublas`; on the CPU
    `addmm_impl_cpu_` and, in bf16 unless it is small, `mkldnn_matmul`, which needs packed operands). The softmax of
    plain attention stores masks of −∞ elements and of rows with no others (`_safe_softmax`).
    """
    if func is aten._safe_softmax.default:
        return int(args[0].numel() + args[0].numel() // args[0].shape[-1] + 4)
    if func not in PRODUCTS:
        return 0
    x, y = args[-2:]
    packed = x.device.type == "cpu" and x.dtype == torch.bfloat16 and x.numel() * y.shape[-1] > SMALL
    if packed and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return sum(t.nbytes for t in (x, y) if not (t.is_contiguous() or t.mT.is_contiguous()))
    if func is aten.bmm.default:
        return 0  # batched products take any stride between matrices
    return sum(t.nbytes for t in (x, y) if not (_contiguous_rows(t) or _contiguous_rows(t.mT)))


def _contiguous_rows(matrix: Tensor) -> bool:
    """Whether the elements of each row are contiguous, and rows do not overlap."""
    return matrix.stride(-1) == 1 and matrix.stride(-2) >= max(1, matrix.shape[-1])


def trace_peak(prepare: Callable[[str], Work], device: str) -> Peak:
    """The peak of `prepare(device)()` on fake tensors: nothing is computed or allocated (PyTorch must still be built
    for the device).

    `prepare` makes modules and data and returns the work. The work runs once before it counts, as in `measure_peak`.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    tally = Tally(device)
    with FakeTensorMode(), tally:
        work = prepare(device)
        work()
        gc.collect()
        tally.start()
        work()
    return tally.result


def measure_peak(prepare: Callable[[str], Work], device: str) -> Peak:
    """The peak of the same work on the device, by its allocator, after it has run once.

    On CUDA it runs once more before: workspaces that libraries allocate per thread at their first call, and never free,
    are not counted.
    """
    cuda = devices.is_cuda(device)
    if cuda:
        prepare(device)()
    devices.tidy(device)
    start = _cuda_bytes(device) if cuda else {}
    with _profile() as profile:
        work = prepare(device)
        work()
        gc.collect()
        with torch.profiler.record_function(MARK):
            before = _cuda_bytes(device, reset=True) if cuda else {}
            work()
            after = _cuda_bytes(device) if cuda else {}
        del work
    peak = _replay(_blocks(profile, device))
    if cuda:
        allocated, requested = start["allocated_bytes.all.current"], start["requested_bytes.all.current"]
        peak.resident = before["allocated_bytes.all.current"] - allocated
        peak.peak = after["allocated_bytes.all.peak"] - allocated
        peak.requested = after["requested_bytes.all.peak"] - requested
        # Minus other tensors' bytes, not their reserved segments: this work may fill the free space of a segment.
        peak.reserved = after["reserved_bytes.all.peak"] - allocated
    return peak


def measure_allocation(make: Callable[[], Result], device: str) -> tuple[Result, int, int]:
    """The result of `make`, and the bytes requested and allocated for it.

    `make` runs twice, so that workspaces that libraries allocate at their first call are not counted.
    """
    make()
    devices.tidy(device)
    if devices.is_cuda(device):
        before = _cuda_bytes(device)
        result = make()
        gc.collect()
        after = _cuda_bytes(device)
        requested, allocated = (
            after[key] - before[key] for key in ("requested_bytes.all.current", "allocated_bytes.all.current")
        )
        return result, requested, allocated
    with _profile() as profile:
        result = make()
        gc.collect()
    size = sum(block.size for block in _blocks(profile, device))
    return result, size, size


def _profile() -> Any:
    """A profiler of operators and their allocations, on CUDA too: its allocator reports to the CPU's profiler."""
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    )


def _cuda_bytes(device: str, reset: bool = False) -> Mapping[str, int]:
    """The allocator's statistics after all launched work has finished."""
    torch.cuda.synchronize(device)
    if reset:
        torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_stats(device)


class Allocation(NamedTuple):
    """Memory allocated (size above 0) or freed: time in ns, bytes, address, operator."""

    when: int
    size: int
    address: int
    operator: str
    counts: bool  # whether it happened after `MARK`


def _blocks(profile: Any, device: str) -> list[Allocation]:
    """The allocations on one kind of device that the profiler recorded, in the order of time."""
    kind, allocations, start = torch.device(device).type, list[Allocation](), 0
    waiting = [(event, "") for event in profile.profiler.kineto_results.experimental_event_tree()]
    while waiting:
        event, operator = waiting.pop()
        if event.name == MARK:
            start = event.start_time_ns
        if event.tag == torch._C._profiler._EventType.Allocation:
            fields = event.extra_fields
            if fields.device.type == kind:
                allocations.append(
                    Allocation(event.start_time_ns, fields.alloc_size, fields.ptr, operator or OUTSIDE, False)
                )
        elif event.name.startswith("aten::") and event.name.partition("::")[2] not in HELPERS:
            operator = event.name.partition("::")[2]
        waiting += [(child, operator) for child in event.children]
    allocations.sort(key=lambda block: block.when)
    return [block._replace(counts=block.when >= start) for block in allocations]


def _replay(blocks: list[Allocation]) -> Peak:
    """The peak of live bytes after `MARK`, by operator."""
    owner: dict[int, str] = {}
    live: Counter[str] = Counter()
    total = 0
    peak: Peak | None = None
    for block in blocks:
        if block.counts and peak is None:
            peak = Peak(total, total, dict(live))
        operator = block.operator if block.size > 0 else owner.pop(block.address, block.operator)
        if block.size > 0:
            owner[block.address] = operator
        live[operator] += block.size
        total += block.size
        if peak is not None and total > peak.peak:
            peak.peak, peak.by_operator = total, dict(live)
    peak = peak or Peak(total, total, dict(live))
    peak.by_operator = {name: size for name, size in peak.by_operator.items() if size}
    return peak


class Clock:
    """A device's clock: events in its stream on CUDA. On the CPU wall-clock time, or, if a single thread computes, that
    thread's CPU time, which other load on the machine does not change."""

    def __init__(self, device: str) -> None:
        self.device, self.cuda = device, devices.is_cuda(device)
        self._time = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    @property
    def name(self) -> str:
        if self.cuda:
            return "events of the device"
        return "time of the one thread on a processor" if self._time is time.thread_time else "time of day"

    def now(self) -> Any:
        """The time; on CUDA an event that records when the device gets here."""
        if not self.cuda:
            return self._time()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self) -> None:
        """Waits until the device has finished all launched work."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def seconds(self, start: Any, end: object) -> float:
        """Seconds; after `wait`."""
        return float(start.elapsed_time(end)) / 1e3 if self.cuda else float(end - start)


# Shorter work is repeated for about as many seconds between two events: an H200 took 0.30 ms for a single product of
# 0.10 ms, since the host launches it after the first event.
SPAN = 20e-3


def time_once(work: Work, device: str, repeat: bool = False) -> float:
    """Seconds of `work`. With `repeat`, short work on CUDA is repeated between two events, so that their overhead does
    not count (the host's time still does if it is slower than the device)."""
    clock = Clock(device)

    def timed(number: int) -> float:
        clock.wait()
        start = clock.now()
        for _ in range(number):
            work()
        end = clock.now()
        clock.wait()
        return clock.seconds(start, end) / number

    number, elapsed = 1, timed(1)
    while repeat and clock.cuda and elapsed * number < SPAN / 2:
        number = math.ceil(SPAN / max(elapsed, SPAN / 10_000))
        elapsed = timed(number)
        if number >= 10_000:
            break
    return elapsed


def time_fresh(fresh: Callable[[], Work], device: str, repeats: int = 5, warm_up: int = 1) -> list[float]:
    """Seconds of each of `repeats` runs, on data that `fresh` makes outside the clock, after untimed runs and, on CUDA,
    work that warms the clock up."""
    times: list[float] = []
    for _ in range(warm_up):
        fresh()()
    devices.warm(device)
    for _ in range(repeats):
        work = fresh()
        times.append(time_once(work, device))
        del work  # frees its data before the next run's is made
    return times


def time_captured(fresh: Callable[[], Work], device: str, repeats: int = 5) -> list[float]:
    """Seconds of each replay of the work as a CUDA graph, which excludes the host's time. The work runs twice before:
    once normally, once to be captured. Errors: `RuntimeError` if it cannot be captured."""
    work, stream = fresh(), torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    devices.warm(device)
    graph.replay()
    return [time_once(graph.replay, device, repeat=True) for _ in range(repeats)]


def time_parts(
    net: nn.Module, owners: Mapping[str, str], fresh: Callable[[], Work], device: str, repeats: int = 3
) -> dict[str, float]:
    """The median seconds of each part in a run of all parts; `owners` maps a module's path to its part.

    A module's time is that of its forward on the device's clock, with the host's delay if the host is slower.
    """
    clock = Clock(device)
    runs: list[dict[str, float]] = []
    marks: list[tuple[str, object, object]] = []
    started: dict[int, object] = {}

    def enter(module: nn.Module, _: object) -> None:
        started[id(module)] = clock.now()

    def leave(module: nn.Module, *_: object) -> None:
        marks.append((names[id(module)], started.pop(id(module)), clock.now()))

    names = {id(module): owners[path] for path, module in net.named_modules() if path in owners}
    hooked = [module for path, module in net.named_modules() if path in owners]
    hooks = [handle for m in hooked for handle in (m.register_forward_pre_hook(enter), m.register_forward_hook(leave))]
    try:
        for i in range(1 + repeats):
            work = fresh()
            marks.clear()
            clock.wait()
            work()
            clock.wait()
            del work
            sums: dict[str, float] = {}
            for name, start, end in marks:
                sums[name] = sums.get(name, 0.0) + clock.seconds(start, end)
            if i:
                runs.append(sums)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: median(run[name] for run in runs) for name in runs[0]}
