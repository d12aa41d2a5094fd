"""The forms in which a forward pass computes: the only place where they are chosen.

All forms give the same outputs except `static` and `even`, which exist to be counted and timed. The default is for
running; `tracing` shows all matrix products to profilers and makes no shape depend on data, so that batch and length
may be symbols.
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
                correction); Fourier transforms are left out
    even        experts take the tokens in turn, whatever their scores: balanced, and no shape depends on data
    absorbed    MLA without expanding its latents
    last        logits for the last position only
    checkpoint  blocks keep only their input for backward and compute again
    grouped     queries that share a key are put one under the other where a mask is added: PyTorch's fused kernels know
                no groups under a mask, and its plain one keeps the scores
    shares      between branches, x holds one of so many shares of the positions (sequence parallel)
    """

    explicit: bool = False
    static: bool = False
    even: bool = False
    absorbed: bool = False
    last: bool = False
    checkpoint: bool = False
    grouped: bool = False
    shares: int = 1


_current = Mode()  # a plain global: backward recomputes blocks in threads of its own


def current() -> Mode:
    """The forms in use now."""
    return _current


@contextmanager
def mode(**forms: Any) -> Iterator[Mode]:
    """Within it, the given fields of `Mode` are set."""
    global _current
    before = _current
    _current = before._replace(**forms)
    try:
        yield _current
    finally:
        _current = before


@contextmanager
def tracing(**forms: Any) -> Iterator[Mode]:
    """`mode(explicit=True, static=True)`, and other fields: what the profilers are given."""
    with mode(**{"explicit": True, "static": True, **forms}) as made:
        yield made
