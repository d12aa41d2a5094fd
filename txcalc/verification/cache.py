"""Verifies the cache and the FLOPs of decoding, after a prompt and after each further token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from txcalc.reference import CacheTensors, tracing
from txcalc.verification.flops import ORACLE as FLOPS, Count, count
from txcalc.verification.mask import windows_of
from txcalc.verification.subject import SizePoint, Subject
from txcalc.verification.verdict import NO_CACHE, CheckedRow, compare, uncounted

ORACLE = "decoding"
BATCH, STEPS = 2, 3
LONGEST_COMPUTED = 64  # longer windows are exceeded on meta only


class Pass(NamedTuple):
    """One pass: cached tokens, new tokens, elements of the cache after it (of one sequence, by path), FLOPs."""

    past: int
    tokens: int
    cache_elements: dict[str, int]
    cost: Count


def decode(net: nn.Module, inputs: tuple[Tensor, ...], prompt: int) -> Iterator[Pass]:
    """Runs a prompt of `prompt` tokens, then the other tokens one by one; `inputs` begins with ids (B, all tokens)."""
    ids, *source = inputs
    cache = CacheTensors()
    for past, end in [(0, prompt), *((end - 1, end) for end in range(prompt + 1, ids.shape[1] + 1))]:
        with torch.no_grad():
            cost = count(net, partial(net, ids[:, past:end], *source, cache=cache))
        yield Pass(past, end - past, cache.elements(), cost)
        source = []  # the cache has what later tokens read of it


def rows(subject: Subject) -> Iterator[CheckedRow]:
    """Rows after a prompt and after three more tokens, also across the end of every window; MLA in both forms."""
    if not subject.model.decodes:
        subject.notes.append(NO_CACHE)
        return
    leaves = list(subject.model.root.leaves())
    windows = windows_of(leaves)
    if subject.device != "meta":
        longest_window = min(LONGEST_COMPUTED, (subject.longest or LONGEST_COMPUTED + STEPS) - STEPS + 1)
        windows = {window for window in windows if window <= longest_window}
    longest = max(point.tokens for point in subject.points)
    short = max(min(5, longest - STEPS), 1)
    for prompt in sorted({short} | {window - 1 for window in windows if window > 1}):
        steps = min(STEPS, longest - short) if prompt == short else STEPS
        for mla in ("expanded", "absorbed") if subject.model.has_latents else ("expanded",):
            yield from _compare_passes(subject, prompt, steps, mla)


def _compare_passes(subject: Subject, prompt: int, steps: int, mla: str) -> Iterator[CheckedRow]:
    sizes = SizePoint(BATCH, prompt + steps, subject.points[-1].source)
    with tracing(static=subject.device == "meta", absorbed=mla == "absorbed"):
        passes = list(decode(subject.thin_net, subject.inputs(sizes), prompt))
    for past, tokens, elements, cost in passes:
        ledger = subject.model.ledger(BATCH, tokens, past, sizes.source, mla=mla)
        where = f"B = {BATCH}, {past} past, {tokens} new" + (f", MLA {mla}" if mla == "absorbed" else "")
        yield from compare(ledger, lambda entry: entry.cache, subject.expand_layers(elements), "cache", ORACLE, where)
        measured = subject.expand_layers(cost.by_module)
        yield from compare(ledger, lambda entry: entry.flops, measured, "flops with cache", FLOPS, where)
        yield from uncounted(subject.expand_layers(cost.uncounted), FLOPS, where)
