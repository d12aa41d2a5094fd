"""Bytes of every weight and cache tensor, by its storage and by the allocator."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial

import torch

from txcalc.ledger import Entry
from txcalc.reference import CacheTensors, build, mode
from txcalc.verification.measure import CUDA_BLOCK, measure_allocation
from txcalc.verification.parameters import sizes_by_module
from txcalc.verification.subject import SizePoint, Subject
from txcalc.verification.verdict import CheckedRow, check_equal, compare

ORACLE, ALLOCATOR = "storages", "the allocator"
STATE = 4  # bytes per element: states of recurrent mixers are float32 for any dtype of the weights
BATCH, STEPS = 2, 2


def rows(subject: Subject) -> Iterator[CheckedRow]:
    """Weights by part, and the cache by part after a prompt and new tokens; on a device also the allocator's totals."""
    yield from _weights(subject)
    if subject.model.decodes:
        yield from _cache(subject)


def _weights(subject: Subject) -> Iterator[CheckedRow]:
    width, ledger = subject.dtype.itemsize, subject.model.ledger()
    measured = sizes_by_module(subject.net, lambda weight: weight.untyped_storage().nbytes())
    yield from compare(ledger, lambda entry: entry.params * width, measured, "bytes of weights", ORACLE, for_all=True)
    if subject.device != "meta":
        buffers = sum(buffer.untyped_storage().nbytes() for buffer in subject.net.buffers())
        del subject.net
        gc.collect()
        make = partial(build, subject.model, device=subject.device, dtype=subject.dtype)
        subject.net, requested, allocated = measure_allocation(make, subject.device)
        yield from _compare_allocated(subject, "weights", ledger.total("params") * width, buffers, requested, allocated)


def _cache(subject: Subject) -> Iterator[CheckedRow]:
    longest = max(point.tokens for point in subject.points)
    prompt = max(1, min(5, longest - STEPS))
    steps = min(STEPS, longest - prompt)
    sizes = SizePoint(BATCH, prompt + steps, subject.points[-1].source)
    real = subject.device != "meta"
    net = subject.net if real else subject.thin_net
    ids, *source = subject.inputs(sizes)

    def filled() -> CacheTensors:
        cache, encoder_inputs = CacheTensors(), tuple(source)
        with torch.no_grad(), mode(static=not real):
            for part in ids.split((prompt, *[1] * steps), 1):
                net(part, *encoder_inputs, cache=cache)
                encoder_inputs = ()
        return cache

    cache, requested, allocated = measure_allocation(filled, subject.device) if real else (filled(), 0, 0)
    measured = {path: sum(t.untyped_storage().nbytes() for t in tensors) for path, tensors in cache.tensors.items()}
    ledger = subject.model.ledger(BATCH, 1, prompt + steps - 1, sizes.source)

    def size(entry: Entry) -> int:
        return BATCH * state_bytes(entry, subject.dtype.itemsize)

    where = f"B = {BATCH}, {prompt + steps} tokens"
    yield from compare(ledger, size, subject.expand_layers(measured), "bytes of the cache", ORACLE, where)
    if real:
        tables = sum(table.untyped_storage().nbytes() for table in cache.distances.values())
        yield from _compare_allocated(subject, "cache", sum(map(size, ledger)), tables, requested, allocated, where)


def state_bytes(entry: Entry, width: int) -> int:
    """Cache bytes of a leaf and its copies for one sequence; fp32 states do not have the modules' dtype."""
    return entry.cache * (STATE if entry.leaf.kept_in_fp32 else width)


def _compare_allocated(
    subject: Subject, what: str, predicted: int, buffers: int, requested: int, allocated: int, where: str = ""
) -> Iterator[CheckedRow]:
    """A row for bytes requested from the allocator, which are exact; a note for allocated bytes, which it rounds up."""
    quantity = f"bytes of the {what}" + (f" and {buffers:,} B of buffers" if buffers else "")
    where = where or f"one size on {subject.device}"
    yield check_equal("", quantity, predicted + buffers, requested, ALLOCATOR, where)
    if allocated != requested:
        subject.notes.append(
            f"{what}: {allocated:,} B allocated for {requested:,} B requested: blocks are multiples of {CUDA_BLOCK} B, "
            "and those above 1 MiB are not split if up to 1 MiB remains"
        )
