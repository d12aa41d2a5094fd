"""Processes that compute what one alone would take long for."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context


@contextmanager
def processes(workers: int) -> Iterator[Executor]:
    """So many that leave Ctrl-C to the one that started them."""
    pool = ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
