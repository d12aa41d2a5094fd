"""Files that a user names: reads are bounded in size and time, writes are atomic."""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from txcalc.errors import InputError

SECONDS = 10.0  # time limit for a pipe


def read(path: Path, limit: int) -> bytes:
    """The first `limit` bytes of a file, and one more if it is longer. Errors: `InputError`."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            status = os.fstat(file.fileno())
            length = min(status.st_size or limit, limit) + 1  # devices report a size of 0
            data = _read_pipe(file.fileno(), limit) if stat.S_ISFIFO(status.st_mode) else file.read(length)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if data is None:
        raise InputError(str(path), ["cannot be read: it waits for input"])
    return data


def regular(path: Path) -> None:
    """Check that an existing path is a regular file: a pipe has no length and may never end. Errors: `InputError`."""
    if path.exists() and not path.is_file():
        raise InputError(str(path), ["cannot be read: not a regular file"])


def writable(path: Path, force: bool) -> None:
    """Check that a file can be written. Errors: `InputError`, for an existing file only without `force`."""
    if path.is_dir():
        raise InputError(str(path), ["is a folder, expected a file to write"])
    if path.is_file() and not force:
        raise InputError(str(path), ["exists already (--force overwrites it)"])
    if not path.parent.is_dir():
        raise InputError(str(path), [f"cannot be written: there is no folder {path.parent}"])


def write(path: Path, data: str | bytes, force: bool) -> None:
    """Write a file under a temporary name, then rename it: readers never see an incomplete file. A pipe or a terminal
    is written directly. Errors: those of `writable`."""
    writable(path, force)
    try:
        content = data.encode("utf-8") if isinstance(data, str) else data
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        target = path.resolve()
        part = target.with_name(f".{target.name[:100]}.{os.getpid()}")
        try:
            part.write_bytes(content)
            if target.exists():
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise InputError(str(path), [f"cannot be written: {reason}"]) from None


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Lock a file against other processes while this one reads and writes it."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with path.with_name(f".{path.name}.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unreadable(path: Path, error: OSError | ValueError) -> InputError:
    """The error for a file that cannot be read."""
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(str(path), [f"cannot be read: {reason.lower()}"])


def _read_pipe(descriptor: int, limit: int) -> bytes:
    """The content of a pipe; empty if nothing writes to it."""
    data, end = b"", time.monotonic() + SECONDS
    while len(data) <= limit:
        try:
            chunk = os.read(descriptor, 1 << 20)
        except BlockingIOError:  # its writer has not written yet
            if not select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
                raise OSError(0, f"its writer took over {SECONDS:.0f} s") from None
            continue
        if not chunk:
            break
        data += chunk
    return data
