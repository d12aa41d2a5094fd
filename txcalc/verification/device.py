"""Real devices: whether one exists, and how many layers of a model fit in its memory."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import time
from pathlib import Path

import torch

from txcalc.errors import InputError, Refuted, TxcalcError
from txcalc.model import Model
from txcalc.reference import truncate
from txcalc.units import iec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SPARE = 2**28  # bytes left for everything but weights: a few tokens' activations and logits


class NoDevice(TxcalcError):
    """The device does not exist."""

    exit_code = 3


def is_cuda(device: str) -> bool:
    return torch.device(device).type == "cuda"


def check(device: str) -> None:
    """Errors: `InputError` for an unknown name, `NoDevice` where PyTorch finds none."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("meta", "cpu", "cuda") or (kind != "cuda" and device != kind):
        raise InputError("verify", [f"--device is {device!r}, expected meta, cpu or cuda"])
    if kind == "cuda" and not torch.cuda.is_available():
        raise NoDevice("--device cuda needs a CUDA device, and PyTorch finds none (--device meta needs no device)")
    if kind == "cuda" and (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise NoDevice(f"--device {device}: PyTorch finds {torch.cuda.device_count()} devices (cuda:0 is the first)")


def check_room(model: Model, device: str, dtype: torch.dtype) -> None:
    """Errors: `Refuted`, with the number of layers that would fit, if the weights do not."""
    if device != "meta":
        free, needed = free_bytes(device), _weights(model, dtype)
        if needed + SPARE > free:
            raise too_large(model, device, dtype, free)


def too_large(model: Model, device: str, dtype: torch.dtype, free: int, working: bool = False) -> Refuted:
    """The refusal for a model whose weights do not fit in `free` bytes; with `working`, they fit but left too little
    memory to compute, so twice their size is required."""
    fitting, layer_count, room = 0, n_layers(model), free // 2 if working else free
    while fitting < layer_count and _weights(truncate(model, fitting + 1), dtype) + SPARE <= room:
        fitting += 1
    fits = f"its first {fitting} layers of {layer_count} fit (--layers {fitting})" if fitting else "no layer fits"
    room_note = ", of which half must be left to compute" if working else ""
    takes = f"its weights take {iec(_weights(model, dtype))}, {device} has {iec(free)} free{room_note}"
    return Refuted(f"{model.name}: {takes}: {fits}")


def out_of_memory(error: BaseException, model: Model, device: str, dtype: torch.dtype) -> Refuted:
    """The refusal for a model that ran out of memory while computing; the memory of the failed work is freed first."""
    error.__traceback__ = None  # its frames hold the modules
    tidy(device)
    return too_large(model, device, dtype, free_bytes(device), working=True)


def free_bytes(device: str) -> int:
    """Bytes that can still be allocated."""
    if is_cuda(device):
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # held by PyTorch for reuse
        return torch.cuda.mem_get_info(device)[0] + reusable
    for size in _file_values("/proc/meminfo", "MemAvailable"):
        return 1024 * int(size.split()[0])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def ran_out(error: BaseException) -> bool:
    """Whether an error of PyTorch means out of memory (the CPU's allocator has no exception class)."""
    words = ("allocate memory", "out of memory", "ALLOC_FAILED")  # CPU; CUDA kernel launch; cuBLAS and cuDNN
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


def tidy(device: str) -> None:
    gc.collect()
    if is_cuda(device):
        torch.cuda.empty_cache()


def describe(device: str) -> dict[str, str | int | None]:
    """A device's kind, name, driver, memory in bytes and PyTorch version; on the CPU, the number of threads."""
    facts: dict[str, str | int | None] = {"kind": torch.device(device).type, "torch": torch.__version__}
    if is_cuda(device):
        properties = torch.cuda.get_device_properties(device)
        capability = f"{properties.major}.{properties.minor}"
        facts |= {"name": properties.name, "memory_bytes": properties.total_memory, "capability": capability}
        return {**facts, **nvidia_settings(device), "cuda": torch.version.cuda}
    name = next(iter(_file_values("/proc/cpuinfo", "model name")), "") or platform.processor() or platform.machine()
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    instructions = torch.backends.cpu.get_cpu_capability()
    threads = torch.get_num_threads()
    return {**facts, "name": name, "memory_bytes": size, "instructions": instructions, "threads": threads}


# Keys of `describe` that must be equal for measurements to continue on another host.
KIND = ("kind", "torch", "name", "capability", "cuda", "tf32", "instructions", "threads", "clock")


def nvidia_settings(device: str) -> dict[str, str | int | None]:
    """Settings of the driver and of PyTorch that affect an NVIDIA device's speed."""
    values = _query_nvidia_smi(device, "driver_version,ecc.mode.current,power.limit,clocks.max.sm,mig.mode.current")
    names = ("driver", "ecc", "power_limit_w", "clock_max_mhz", "mig")
    kernels = {
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "memory-efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "cuDNN": torch.backends.cuda.cudnn_sdp_enabled(),
    }
    return {
        **{name: values[i] if values else None for i, name in enumerate(names)},
        "tf32": "on" if torch.backends.cuda.matmul.allow_tf32 else "off",
        "attention": ", ".join(name for name, on in kernels.items() if on),
        "cudnn": torch.backends.cudnn.version(),
    }


def clocks(device: str) -> dict[str, str]:
    """An NVIDIA device's current clocks in MHz, temperature, watts and reasons for throttling; {} on others."""
    keys = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_event_reasons.active")
    values = _query_nvidia_smi(device, ",".join(keys)) if is_cuda(device) else []
    return dict(zip(keys, values, strict=True)) if values else {}


def _query_nvidia_smi(device: str, keys: str) -> list[str]:
    """One device's values from nvidia-smi; [] if it fails."""
    index = torch.device(device).index or 0
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[index:][:1]
    index_text = "".join(number) or str(index)
    command = ["nvidia-smi", f"--query-gpu={keys}", "--format=csv,noheader,nounits", "-i", index_text]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    values = [word.strip() for word in answer.splitlines()[0].split(",")] if answer.strip() else []
    return values if len(values) == len(keys.split(",")) else []


def warm(device: str, seconds: float = 0.3) -> None:
    """Keeps a CUDA device busy until its clock has settled under load; does nothing on a CPU."""
    if not is_cuda(device):
        return
    side, end = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16), time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(8):
            side @ side
        torch.cuda.synchronize(device)


def _file_values(file: str, key: str) -> list[str]:
    """The values after `key: ` in a system file, line by line."""
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key]


def n_layers(model: Model) -> int:
    """The number of layers of the deepest stack."""
    return max(sum(len(group.indices) for group in stack.groups) for stack in model.root.stacks)


def _weights(model: Model, dtype: torch.dtype) -> int:
    total: int = model.ledger().total("params") * dtype.itemsize
    return total
