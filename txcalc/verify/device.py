"""Real devices: is it there, and how much of a model does it hold."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from txcalc.errors import InputError, Refuted, TxcalcError
from txcalc.model import Model
from txcalc.parts.model import EncoderDecoder, FixedLength
from txcalc.reference import cut
from txcalc.units import iec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SPARE = 2**28  # bytes left for everything but weights: a few tokens' activations and logits


class NoDevice(TxcalcError):
    """The device asked for is not there."""

    exit_code = 3


def check(device: str) -> None:
    """Errors: `InputError` for no such name, `NoDevice` where PyTorch finds none."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("meta", "cpu", "cuda"):
        raise InputError("verify", [f"--device is {device!r}, expected meta, cpu or cuda"])
    if kind == "cuda" and not torch.cuda.is_available():
        raise NoDevice("--device cuda needs a CUDA device, and PyTorch finds none (--device meta needs no device)")


def check_room(model: Model, device: str, dtype: torch.dtype) -> None:
    """Errors: `Refuted`, with the number of layers that would fit, where the weights do not."""
    if device != "meta":
        free, needed = free_bytes(device), _weights(model, dtype)
        if needed + SPARE > free:
            raise too_large(model, device, dtype, free)


def too_large(model: Model, device: str, dtype: torch.dtype, free: int) -> Refuted:
    """The refusal for a model whose weights do not fit in `free` bytes."""
    fitting, most = 0, n_layers(model)
    while fitting < most and _weights(cut(model, fitting + 1), dtype) + SPARE <= free:
        fitting += 1
    fits = f"its first {fitting} layers of {most} fit (--layers {fitting})" if fitting else "not one of its layers fits"
    return Refuted(
        f"{model.name}: its weights take {iec(_weights(model, dtype))}, {device} has {iec(free)} free: {fits}"
    )


def free_bytes(device: str) -> int:
    """What can still be allocated."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def n_layers(model: Model) -> int:
    """The layers of the deepest stack."""
    root = model.root
    if isinstance(root, EncoderDecoder):
        stacks = [root.encoder, root.decoder]
    else:
        stacks = [root.stack if isinstance(root, FixedLength) else root]  # type: ignore[list-item]
    return max(sum(len(group.indices) for group in stack.groups) for stack in stacks)


def _weights(model: Model, dtype: torch.dtype) -> int:
    total: int = model.ledger().total("params") * dtype.itemsize
    return total
