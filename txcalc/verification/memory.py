"""A training step in PyTorch's memory tracker, on fake tensors: bytes by category, in each phase and at the peak."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from txcalc.planning.gradients import leaves_with_gradient
from txcalc.reference import build, inputs, mode
from txcalc.verification.flops import learning, output_sum
from txcalc.verification.saved import WEIGHTS, SavedElements, claims
from txcalc.verification.subject import SizePoint, Subject
from txcalc.verification.verdict import CheckedRow, check_equal

ORACLE = "MemTracker"
SIZES = (2, 16, 8)
STEP_COUNTER = 4  # bytes: AdamW has a float32 step counter for every tensor
NAMES = {
    "Parameter": "weights",
    "Buffer": "buffers",
    "Gradient": "gradients",
    "Optstate": "optimizer state",
    "Activation": "activations",
    "Temp": "temporaries",
}


def training_step(subject: Subject, point: SizePoint) -> dict[str, dict[str, int]]:
    """Bytes by category after the forward pass, after backward, after an AdamW step, and at the peak."""
    phases: dict[str, dict[str, int]] = {}
    tracker = MemTracker()

    def note(phase: str, kind: str = "current") -> None:
        (snapshot,) = tracker.get_tracker_snapshot(kind).values()
        sizes = {getattr(key, "value", key): size for key, size in snapshot.items()}
        phases[phase] = {name: sizes[key] for key, name in NAMES.items() if sizes[key]}

    with FakeTensorMode(), mode(static=True):
        net = build(subject.model, device="cpu", dtype=subject.dtype)
        optimizer = torch.optim.AdamW(net.parameters())
        tracker.track_external(net)
        with tracker:
            loss = output_sum(net(*learning(net, inputs(subject.model, *point))))
            note("forward")
            loss.backward()
            del loss
            note("backward")
            optimizer.step()
            note("optimizer step")
            note("peak", "peak")
    return phases


def rows(subject: Subject) -> Iterator[CheckedRow]:
    """Rows of weights, gradients, AdamW's state and saved activations, each after the phase that allocates it; the
    peak in a note."""
    last = subject.points[-1]
    tokens = min(SIZES[1], 2 * last.tokens, subject.longest or SIZES[1])
    point = SizePoint(SIZES[0], tokens, None if last.source is None else SIZES[2])
    phases, ledger = training_step(subject, point), subject.ledger(point)
    width = subject.dtype.itemsize
    weights, saved = ledger.total("params") * width, ledger.total("saved") * width
    # The trace sends all tokens to the same k experts; the other experts get no gradient.
    used = [entry for entry in leaves_with_gradient(ledger) if not entry.leaf.idle]
    learned = sum(entry.active for entry in used) * width
    tensors = sum(len(entry.leaf.weights()) * entry.active_times for entry in used)
    state = 2 * learned + STEP_COUNTER * tensors
    predicted = {
        ("weights", "forward"): weights,
        ("gradients", "backward"): learned,
        ("optimizer state", "optimizer step"): state,
    }
    if claims(ledger):
        predicted["activations", "forward"] = saved + _left_out_bytes(subject, point) + width  # the loss: one element
    for (category, phase), size in predicted.items():
        measured = phases[phase].get(category, 0)
        yield check_equal("", f"{category}, bytes", size, measured, ORACLE, f"{point}, after {phase}")
    ends = {"forward": weights + saved, "backward": weights + learned, "optimizer step": weights + learned + state}
    largest = max(ends, key=ends.__getitem__)
    peak = phases["peak"]
    gap = sum(peak.values()) - ends[largest]
    subject.notes.append(
        f"peak of a training step at {point}: {sum(peak.values()):,} B ("
        + ", ".join(f"{name} {size:,}" for name, size in peak.items())
        + f"), {gap:,} B above the end of {largest}: temporaries of backward, or of the optimizer's update"
    )


def _left_out_bytes(subject: Subject, point: SizePoint) -> int:
    """Bytes of saved tensors that the ledger leaves out: masks, tables, ids and statistics."""
    symbols = subject.symbols("cpu")
    ledger = subject.ledger(subject.letters)
    with mode(static=True), symbols.mode:
        net = build(subject.model, device="cpu", dtype=subject.dtype)
        with SavedElements(net, symbols, ledger).recording() as recorded:
            net(*symbols.inputs)
    sizes = {letter: size for letter, size in zip(subject.letters, point, strict=True) if letter is not None}
    return sum(int(bytes_.subs(sizes)) for reason, bytes_ in recorded.left_out.items() if reason != WEIGHTS)
