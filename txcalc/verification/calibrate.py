"""Calibration: measures this machine's peak rates and the efficiency of a model's kernels.

Each round times every kernel and every step of a small reference model once, so that other load on the machine affects
all of them alike. On a CPU the fastest round counts, on CUDA the median, after a warm-up. Efficiencies come from the
kernels alone; the steps of the reference model only test them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from msgspec import to_builtins
from msgspec.structs import replace

from txcalc import hardware
from txcalc.errors import Refuted
from txcalc.evidence.figures import Rate, StepCheck
from txcalc.hardware import Accelerator
from txcalc.hardware.curves import PYTORCH, Curve, Efficiency
from txcalc.model import Model
from txcalc.sources import load
from txcalc.units import iec
from txcalc.verification import device as devices
from txcalc.verification.measure import Work, time_captured, time_once
from txcalc.verification.workloads import DeviceModel, Load, rank_time, workload

TINY = "D=64 L=4 h=4 F=128 V=64"  # hardly any arithmetic: its steps take as long as their kernels' launches
TINY_STEP = Load("decode", 1, 1, 8)
ROUNDS, SECONDS = 9, 90.0
NARROW, READING, UNALIGNED = (1, 4, 16), "weights, read", "matmul, {}-byte rows"
# Elements per parameter that AdamW moves, as `train` counts: the gradient read, weight and moments read and written.
ADAMW_MOVED = 7


class MeasuredSizes(NamedTuple):
    """The sizes and dtypes of the kernels measured on a kind of device.

    products    rows, inputs and outputs of a linear layer
    unaligned   the same in 16-bit dtypes with rows that are multiples of 4 bytes but not of 16 (key 4), or of 2 bytes
                but not of 4 (key 2)
    moved       bytes of a copy; a matrix of the largest size is also multiplied by a few rows (`NARROW`)
    heads       number and width of attention heads
    prompts     lengths of causal attention, forward and backward
    updated     side of a square matrix, and the number of such matrices that AdamW updates
    contexts    keys and values that a batch of 8 single queries reads
    model       the reference model
    steps       its steps; none has a size of the kernels above
    """

    dtypes: tuple[str, ...]
    products: tuple[tuple[int, int, int], ...]
    unaligned: Mapping[int, tuple[tuple[int, int, int], ...]]
    moved: tuple[int, ...]
    heads: tuple[int, int]
    prompts: tuple[int, ...]
    updated: tuple[int, int]
    contexts: tuple[int, ...]
    model: str
    steps: tuple[Load, ...]


CPU = MeasuredSizes(
    ("fp32", "bf16"),
    ((256, 512, 512), (256, 512, 2048), (256, 2048, 512), (1024, 1024, 1024)),
    {},
    (2**18, 2**20, 2**27),
    (8, 64),
    (256, 1024),
    (1024, 4),
    (1024,),
    "D=640 L=4 h=10 h_kv=5 F=1920 V=8192",
    (Load("prefill", 1, 128), Load("prefill", 2, 192), Load("decode", 4, 1, 96)),
)
CUDA = MeasuredSizes(
    ("fp32", "bf16", "fp16", "fp8"),
    ((2048, 4096, 4096), (4096, 4096, 16384), (4096, 16384, 4096), (8192, 8192, 8192), (16384, 16384, 16384)),
    {4: ((4096, 4096, 16386), (4096, 16386, 4096)), 2: ((4096, 4096, 16385), (4096, 16385, 4096))},
    (2**28, 2**30),
    (32, 128),
    (4096, 16384),
    (4096, 16),
    (16384,),
    "D=3072 L=12 h=24 h_kv=8 F=9216 V=65536",
    (Load("prefill", 1, 1536), Load("prefill", 4, 3072), Load("decode", 16, 1, 3072)),
)
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}


class Kernel(NamedTuple):
    """A kernel to time: its class, its FLOPs or bytes, and its setup."""

    kind: str
    dtype: str
    size: str
    amount: float
    make: Callable[[], Work]


class Calibration(NamedTuple):
    """The calibrated accelerator, every measured rate, and predicted against measured steps of the reference model."""

    accelerator: Accelerator
    rates: list[Rate]
    model: Model
    dtype: str
    checks: list[StepCheck]
    rounds: int
    clocks: list[dict[str, str]]

    def described(self) -> dict[str, Any]:
        """The calibration as JSON values; the accelerator as `hardware.parse` reads it."""
        return {
            "accelerator": hardware.describe(self.accelerator),
            "rates": to_builtins(self.rates),
            "model": self.model.name,
            "dtype": self.dtype,
            "checks": to_builtins(self.checks),
            "rounds": self.rounds,
            "clocks": self.clocks,
        }


def calibrate(
    device: str = "cpu",
    *,
    name: str = "this-machine",
    like: Accelerator | None = None,
    sizes: MeasuredSizes | None = None,
    rounds: int = ROUNDS,
    limit: float = SECONDS,
    progress: Callable[[float], None] = lambda share: None,
) -> Calibration:
    """Measures a device for `rounds` rounds, or for `limit` seconds (at least two rounds).

    Efficiencies are shares of the datasheet of `like`; without it, of the highest measured rates. `progress` is called
    with the share of the work done.
    Errors: `InputError` and `NoDevice` for a device that does not exist; `Refuted` if its memory is too small.
    """
    devices.check(device)
    try:
        return _run_rounds(device, name, like, sizes, rounds, limit, progress)
    except RuntimeError as error:
        if not devices.ran_out(error):
            raise
        free = f"{device} has {iec(devices.free_bytes(device))} free"
        raise Refuted(f"{free}, too little for the products and the model to measure") from None


def _run_rounds(
    device: str,
    name: str,
    like: Accelerator | None,
    sizes: MeasuredSizes | None,
    rounds: int,
    limit: float,
    progress: Callable[[float], None],
) -> Calibration:
    sizes = sizes or (CUDA if devices.is_cuda(device) else CPU)
    begin = time.monotonic()
    attempts = [(kernel, _refusal(kernel)) for kernel in kernels_to_measure(device, sizes)]
    kernels = [kernel for kernel, reason in attempts if not reason]
    absent = {f"{kernel.kind} in {kernel.dtype}: not on this device, {reason}" for kernel, reason in attempts if reason}
    model_dtype = "bf16" if devices.is_cuda(device) else "fp32"
    subject, tiny = (DeviceModel(load(text), device, TORCH[model_dtype]) for text in (sizes.model, TINY))
    works = [kernel.make() for kernel in kernels]
    steps = [*((subject, step) for step in sizes.steps), (tiny, TINY_STEP)]
    step_makers = [owner.stepping(step) for owner, step in steps]
    timings: list[list[float]] = [[] for _ in range(len(works) + len(steps))]
    finished, clocks = 0, [devices.clocks(device)]
    devices.warm(device, 1.0)
    for finished in range(1, rounds + 1):
        for i, work in enumerate([*works, *(make() for make in step_makers)]):
            timings[i].append(time_once(work, device, repeat=i < len(works)))
        spent = time.monotonic() - begin
        progress(max(finished / rounds, spent / limit))
        if finished > 1 and spent * (finished + 1) / finished > limit:
            break
    clocks.append(devices.clocks(device))
    best = [median(step_seconds) if devices.is_cuda(device) else min(step_seconds) for step_seconds in timings]
    rates = [Rate(k.kind, k.dtype, k.size, k.amount / t) for k, t in zip(kernels, best, strict=False)]
    *step_seconds, tiny_seconds = best[len(works) :]
    plain = _accelerator(device, name, like, rates)
    n_launches = _launch_count(tiny, plain)
    launch_s, host_s = tiny_seconds / n_launches, 0.0
    if devices.is_cuda(device):
        try:
            launch_s, host_s = median(time_captured(step_makers[-1], device)) / n_launches, launch_s
        except RuntimeError as error:
            absent.add(f"launch_s includes the host's time: no step was captured, {str(error).splitlines()[0]}")
    notes = (*plain.notes, *sorted(absent))
    prior = like.efficiency.without(PYTORCH) if like else None
    efficiency = _efficiency(plain, rates, launch_s, host_s, model_dtype, prior)
    calibrated, uncalibrated = replace(plain, calibration=efficiency, notes=notes), replace(plain, calibration=prior)
    before = [achievable_seconds(subject, step, uncalibrated) for step in sizes.steps]
    after = [achievable_seconds(subject, step, calibrated) for step in sizes.steps]
    checks = [StepCheck(str(s), b, a, t) for s, b, a, t in zip(sizes.steps, before, after, step_seconds, strict=True)]
    return Calibration(calibrated, rates, subject.model, model_dtype, checks, finished, [c for c in clocks if c])


def achievable_seconds(subject: DeviceModel, step: Load, accelerator: Accelerator) -> float:
    """Achievable seconds of a step."""
    return rank_time(subject, accelerator).cost(workload(subject.model, step)).achievable


def kernels_to_measure(device: str, sizes: MeasuredSizes) -> list[Kernel]:
    """The kernels to measure on a kind of device, with their FLOPs, or bytes if memory bandwidth is measured."""
    model_dtype = "bf16" if devices.is_cuda(device) else "fp32"
    width, channels = TORCH[model_dtype].itemsize, sizes.heads[0] * sizes.heads[1]
    attention = partial(_attention, device, model_dtype, sizes.heads)

    def product(kind: str, dtype: str, rows: int, d_in: int, d_out: int) -> Kernel:
        amount = width * d_in * d_out if kind == READING else 2 * rows * d_in * d_out
        make = partial(_product, device, dtype, rows, d_in, d_out)
        return Kernel(kind, dtype, f"{rows} × {d_in} × {d_out}", float(amount), make)

    kernels = []
    for dtype in sizes.dtypes:
        kernels += [product("matmul", dtype, *shape) for shape in sizes.products]
        for row, shapes in sizes.unaligned.items() if TORCH[dtype].itemsize == 2 else ():
            kernels += [product(UNALIGNED.format(row), dtype, *shape) for shape in shapes]
    kernels += [Kernel("copy", "", f"{size:,} B", 2.0 * size, partial(_copy, device, size)) for size in sizes.moved]
    side = int((sizes.moved[-1] / width) ** 0.5) // 128 * 128
    kernels += [product(READING, model_dtype, rows, side, side) for rows in NARROW]
    for tokens in sizes.prompts:
        flops, size = 2.0 * channels * tokens * (tokens + 1), f"{tokens} tokens"
        kernels.append(Kernel("attention, prefill", model_dtype, size, flops, partial(attention, 1, tokens, tokens)))
        back = Curve().backward * flops, partial(attention, 1, tokens, tokens, backward=True)
        kernels.append(Kernel("attention, backward", model_dtype, size, *back))
    for keys in sizes.contexts:
        moved = 2.0 * 8 * keys * channels * width
        kernels.append(
            Kernel("attention, decode", model_dtype, f"8 × {keys} keys", moved, partial(attention, 8, 1, keys))
        )
    side, number = sizes.updated
    for dtype in ("fp32", "bf16"):
        moved = float(ADAMW_MOVED * TORCH[dtype].itemsize * number * side**2)
        make = partial(_update, device, dtype, side, number)
        kernels.append(Kernel("AdamW", dtype, f"{number} × {side} × {side}", moved, make))
    return kernels


def _refusal(kernel: Kernel) -> str:
    """Why the device cannot run a kernel, or "": some devices lack products in some dtypes."""
    try:
        kernel.make()()
    except (RuntimeError, NotImplementedError) as error:
        if devices.ran_out(error):
            raise
        return str(error).partition("\n")[0]
    return ""


def _product(device: str, dtype: str, rows: int, d_in: int, d_out: int) -> Work:
    x, weight = torch.randn(rows, d_in, device=device), torch.randn(d_out, d_in, device=device)
    if dtype == "fp8":
        scale = torch.ones((), device=device)
        a, b = x.to(TORCH[dtype]), weight.to(TORCH[dtype]).t()
        multiply = partial(torch._scaled_mm, out_dtype=torch.bfloat16, use_fast_accum=True)  # as servers multiply
        return lambda: multiply(a, b, scale_a=scale, scale_b=scale)
    return partial(F.linear, x.to(TORCH[dtype]), weight.to(TORCH[dtype]))


def _copy(device: str, size: int) -> Work:
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    return partial(torch.empty_like(source).copy_, source)


def _attention(
    device: str, dtype: str, heads: tuple[int, int], batch: int, tokens: int, keys: int, backward: bool = False
) -> Work:
    like: dict[str, Any] = {"device": device, "dtype": TORCH[dtype], "requires_grad": backward}
    number, width = heads
    q = torch.randn(batch, number, tokens, width, **like)
    k, v = (torch.randn(batch, number, keys, width, **like) for _ in range(2))
    forward = partial(F.scaled_dot_product_attention, q, k, v, is_causal=tokens > 1)
    if not backward:
        return forward
    out = forward()
    return partial(torch.autograd.grad, out, (q, k, v), torch.randn_like(out), retain_graph=True)


def _update(device: str, dtype: str, side: int, number: int) -> Work:
    like: dict[str, Any] = {"device": device, "dtype": TORCH[dtype]}
    matrices = [torch.randn(side, side, **like) for _ in range(number)]
    for matrix in matrices:
        matrix.grad = torch.randn_like(matrix)
    optimizer = torch.optim.AdamW(matrices, fused=True)
    optimizer.step()  # makes the moments
    return optimizer.step


def _accelerator(device: str, name: str, like: Accelerator | None, rates: list[Rate]) -> Accelerator:
    """The accelerator without efficiencies: `like` with this machine's memory, or the highest measured rates."""
    facts = devices.describe(device)
    source = f"measured by txcalc calibrate on {facts['name']}, torch {facts['torch']}, {datetime.now(UTC):%Y-%m-%d}"
    memory = int(str(facts["memory_bytes"]))
    if like is not None:
        sources = {**like.sources, "memory.visible": source}
        return replace(like, name=name, memory=memory, sources=sources, calibration=None)
    peaks: dict[str, int] = {}
    for rate in rates:
        if rate.kind == "matmul":
            peaks[rate.dtype] = max(peaks.get(rate.dtype, 0), ceil(rate.rate / 1e6) * 10**6)
    moved = [rate.rate for rate in rates if rate.kind in ("copy", READING, "attention, decode", "AdamW")]
    sources = dict.fromkeys(("memory.visible", "bandwidth", *(f"peak.{dtype}" for dtype in peaks)), source)
    notes = ("peaks and bandwidth are the highest measured rates, some of them in caches: no datasheet is known",)
    title = str(facts["name"])
    return Accelerator(name, title, memory, ceil(max(moved) / 1e6) * 10**6, peaks, None, None, sources, notes)


def _launch_count(tiny: DeviceModel, accelerator: Accelerator) -> float:
    """The number of kernel launches in a step of the tiny model."""
    unit_launch = hardware.default_efficiency().overlaid({"launch_s": 1e-6}, {})
    timer = rank_time(tiny, replace(accelerator, calibration=unit_launch))
    return timer.cost(workload(tiny.model, TINY_STEP)).launch / unit_launch.launch_s


def _efficiency(
    accelerator: Accelerator,
    rates: list[Rate],
    launch_s: float,
    host_s: float,
    model_dtype: str,
    known: Efficiency | None,
) -> Efficiency:
    """Measured rates as shares of the datasheet, each the median over sizes; also attention's ratio of backward to
    forward, the median over lengths. If kernels of servers are `known`, the measured ones are added as PyTorch's."""
    by_kind: dict[tuple[str, str], list[float]] = {}
    for rate in rates:
        by_kind.setdefault((rate.kind, rate.dtype), []).append(rate.rate)
    source = accelerator.sources["memory.visible"]
    dtypes = [dtype for dtype in accelerator.peaks if ("matmul", dtype) in by_kind]
    products = {f"matmul.{dtype}": median(by_kind["matmul", dtype]) / accelerator.peak(dtype) for dtype in dtypes}
    shares = {
        "attention_prefill": median(by_kind["attention, prefill", model_dtype]) / accelerator.peak(model_dtype),
        "attention_decode": median(by_kind["attention, decode", model_dtype]) / accelerator.bandwidth,
        "memory": median(by_kind[READING, model_dtype]) / accelerator.bandwidth,
    }
    flat = {key: min(1.0, share) for key, share in {**shares, **products}.items()} | {"launch_s": launch_s}
    flat |= {"host_s": host_s} if host_s else {}
    cited, owner = dict.fromkeys(flat, source), f"{PYTORCH}." if known else ""
    efficiency = (
        known.with_kernels(PYTORCH, flat, cited)
        if known
        else hardware.default_efficiency(accelerator.kernels).overlaid(flat, cited)
    )
    curves = dict(efficiency.curves)
    for dtype in dtypes:
        for row in (2, 4):
            if unaligned := by_kind.get((UNALIGNED.format(row), dtype)):
                key, share = f"{owner}matmul.{dtype}", min(1.0, median(unaligned) / accelerator.peak(dtype))
                curves[key] = curves[key]._replace(**{f"aligned_{row}": share})
    same_lengths = zip(
        by_kind["attention, prefill", model_dtype], by_kind["attention, backward", model_dtype], strict=True
    )
    backward_ratio = median(Curve().backward * forward / back for forward, back in same_lengths)
    for key in (f"{owner}attention.prefill", f"{owner}attention.latent_prefill"):
        if key in curves:
            curves[key] = curves[key]._replace(backward=backward_ratio)
    updates = {
        f"{owner}optimizer.{dtype}": Curve(memory=min(1.0, rate / accelerator.bandwidth))
        for (kind, dtype), (rate, *_) in by_kind.items()
        if kind == "AdamW"
    }
    return replace(efficiency, curves=curves | updates, cited={**efficiency.cited, **dict.fromkeys(updates, source)})
