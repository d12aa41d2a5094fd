"""The forms of a forward pass, which are chosen only here.

All forms give the same outputs except `static` and `even`, which are for counting and timing. The default is for
running; `tracing` shows all matrix products to profilers, and no shape depends on data, so that batch and length may be
symbols.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Mode(NamedTuple):
    """The forms in use.

    explicit    attention and convolutions as plain matrix products (fvcore skips PyTorch's fused attention silently);
                False: `scaled_dot_product_attention` and `conv1d`
    static      no shape and no loop depends on data or on a length: all tokens go to the first k experts, and recurrent
                states come from a cumulative sum (which overflows on long inputs; the delta rule's lack its
                correction)
    even        experts take tokens in turn, whatever their scores: balanced, and no shape depends on data
    absorbed    MLA without expanding its latents
    last        logits for the last position only
    checkpoint  blocks save only their input, and recompute in backward
    grouped     queries that share a key are stacked as rows where a mask is added: PyTorch's fused kernels support no
                groups with a mask, and its unfused one saves the scores
    shares      between branches, x is split by positions into this number of shares (sequence parallel)
    """

    explicit: bool = False
    static: bool = False
    even: bool = False
    absorbed: bool = False
    last: bool = False
    checkpoint: bool = False
    grouped: bool = False
    shares: int = 1


_current = Mode()  # a plain global: backward recomputes blocks in its own threads


def current() -> Mode:
    """The forms in use now."""
    return _current


@contextmanager
def mode(**forms: Any) -> Iterator[Mode]:
    """A context in which the given fields of `Mode` are set."""
    global _current
    before = _current
    _current = before._replace(**forms)
    try:
        yield _current
    finally:
        _current = before


@contextmanager
def tracing(**forms: object) -> Iterator[Mode]:
    """`mode(explicit=True, static=True)`, and other fields: the mode for profilers."""
    with mode(**{"explicit": True, "static": True, **forms}) as forms_set:
        yield forms_set
