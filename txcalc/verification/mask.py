"""Masked FLOPs: the visible pairs of the reference module's own masks, at sizes around every window.

Each pair costs what PyTorch counts for a core at one position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import prod

import torch
from torch import Tensor, nn

from txcalc.ledger import Entry, Ledger
from txcalc.parts.part import Leaf
from txcalc.reference import tracing
from txcalc.reference.attention import Core
from txcalc.reference.run import Run
from txcalc.verification.flops import count
from txcalc.verification.subject import SizePoint, Subject
from txcalc.verification.verdict import NO_MASK, CheckedRow, compare, module_paths

ORACLE = "the mask's sum"
QUANTITY = "masked flops"
BATCH = 2
LONGEST_PROMPT_WINDOW = 1024  # windows up to this length are also filled by a prompt


def rows(subject: Subject) -> Iterator[CheckedRow]:
    """Attention cores on prompts and with cached tokens, on both sides of the end of every window."""
    leaves = [leaf for leaf in subject.model.root.leaves() if leaf.mask_span]
    if not leaves or subject.model.fixed_length or not all(leaf.masked for leaf in leaves):
        subject.notes.append(NO_MASK)
        return
    single_token = SizePoint(1, 1, None if subject.points[0].source is None else 1)
    cores = pair_costs(subject.thin_net, subject.inputs(single_token), _cores(subject, single_token, 0))
    for tokens, past in _sizes(subject, leaves):
        masked = _cores(subject, SizePoint(BATCH, tokens, None if single_token.source is None else 3), past)
        source = "" if single_token.source is None else ", T_src = 3"
        where = f"B = {BATCH}, {past} past, {tokens} new{source}"
        visible = subject.expand_layers(visible_flops(cores, masked))
        yield from compare(masked, lambda entry: entry.flops_masked, visible, QUANTITY, ORACLE, where)


Cores = dict[str, tuple[Core, Fraction]]


def pair_costs(net: nn.Module, inputs: tuple[Tensor, ...], ledger: Ledger) -> Cores:
    """The attention cores by path, with the FLOPs of one pair: PyTorch's count at one position, with its ledger."""
    with tracing(), torch.no_grad():
        costs = count(net, lambda: net(*inputs)).by_module
    cores = {path: core for path, core in net.named_modules() if isinstance(core, Core) and path in costs}
    return {path: (core, Fraction(costs[path], prod(_sides(_entry(ledger, path))))) for path, core in cores.items()}


def visible_flops(cores: Cores, masked: Ledger) -> dict[str, int]:
    """FLOPs of each core if only the visible pairs are multiplied."""
    pairs = {path: _pairs(core, _entry(masked, path)) for path, (core, _) in cores.items()}
    return {path: int(masked.work.batch * cores[path][1] * number) for path, number in pairs.items() if number}


def running_cores(ledger: Ledger) -> Ledger:
    """The attention cores that run; other products of attention, such as ConvBERT's convolution, have no pairs."""
    return ledger.where(lambda entry: entry.leaf.mask_span is not None and entry.work is not None)


def _cores(subject: Subject, point: SizePoint, past: int) -> Ledger:
    return running_cores(subject.model.ledger(point.batch, point.tokens, past, point.source))


def _entry(cores: Ledger, path: str) -> Entry | None:
    """The ledger entry of a module; None where it does not run (an encoder, in a decode step)."""
    return next((entry for entry in cores if path in module_paths(entry)), None)


def _sides(entry: Entry | None) -> tuple[int, int]:
    """Queries and keys of one sequence, without a mask."""
    if entry is None or entry.work is None:
        return 0, 0
    reads_source = entry.leaf.mask_span and entry.leaf.mask_span.cache_kind == "source"
    return entry.work.tokens, entry.work.source if reads_source else entry.work.keys


def _pairs(core: Core, entry: Entry | None) -> int:
    """Visible pairs of one sequence under a core's mask."""
    new, keys = _sides(entry)
    if not (core.causal or core.window is not None):
        return new * keys
    run = Run(keys - new, torch.arange(keys - new, keys))
    return int((core.additive_mask(run, keys, torch.float32) == 0).sum())


def windows_of(leaves: Iterable[Leaf]) -> set[int]:
    """The window lengths of the leaves."""
    spans = [leaf.mask_span for leaf in leaves if leaf.mask_span]
    return {span.cache_limit for span in spans if span.cache_limit is not None}


def _sizes(subject: Subject, leaves: list[Leaf]) -> list[tuple[int, int]]:
    """New and past tokens: small numbers, and those that put each window's end before, within and after the new
    tokens."""
    longest, windows, caches = subject.longest, windows_of(leaves), subject.model.decodes
    sizes = {(tokens, 0) for tokens in (1, 2, 3, 5, 8)}
    sizes |= {(tokens, past) for tokens in (1, 3) for past in (1, 6)} if caches else set()
    for window in windows:
        sizes |= {(window + offset, 0) for offset in (-1, 0, 2)} if window <= LONGEST_PROMPT_WINDOW else set()
        sizes |= {(3, max(window - 2, 0)), (3, window + 5), (1, window - 1), (1, 2 * window + 1)} if caches else set()
    return sorted(size for size in sizes if size[0] > 0 and (longest is None or sum(size) <= longest))
