"""Worker processes."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from types import FrameType


@contextmanager
def processes(workers: int) -> Iterator[Executor]:
    """A pool of worker processes that ignore Ctrl-C. An error, Ctrl-C or SIGTERM in this process ends them at once,
    whatever they are doing."""
    before = set(active_children())
    pool = ProcessPoolExecutor(workers, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    with _exit_on_sigterm():
        try:
            yield pool
        except BaseException:
            for worker in set(active_children()) - before:
                worker.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """SIGTERM raises `SystemExit`, unless the program that calls has a handler of its own."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
