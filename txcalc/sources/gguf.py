"""The header of a GGUF file: keys and values, then names, shapes and types of tensors. No weight is ever read.

The header is parsed here, and every length is checked first: the reader of the `gguf` package trusts the counts in a
file and makes an array for each entry of a vocabulary. Its table of quantised types is used.

Source   https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from txcalc.checkpoint import Checkpoint, StoredTensor
from txcalc.errors import Fault, InputError, MissingExtra, quote
from txcalc.num import product
from txcalc.sources import files

MAX_HEADER = 1 << 26  # bytes; a vocabulary of 262,144 takes some 16 million
MAX_TENSORS = 1 << 18
MAX_LIST = 1 << 12  # longer arrays, such as a vocabulary, are skipped
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

Types = Mapping[int, tuple[str, int, int]]  # type number: name, elements and bytes of a block


class Header(NamedTuple):
    """The header of a file."""

    keys: Mapping[str, Any]
    tensors: tuple[StoredTensor, ...]


def types() -> Types:
    """The quantised types that the `gguf` package knows. Errors: `MissingExtra`."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError:
        raise MissingExtra("reading a .gguf file", "gguf", "gguf") from None
    return {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}


def read(path: Path) -> tuple[tuple[Mapping[str, Any], str, tuple[str, ...], tuple[str, ...]], Checkpoint]:
    """The description and the tensors of a file; of all parts of a split file, whichever is named.

    Errors: `InputError` with every fault, `UnknownName` for an unsupported architecture, `MissingExtra`.
    """
    tensor_types = types()
    header = _file(path, tensor_types)
    parts = header.keys.get("split.count", 1)
    keys, tensors, files = header.keys, header.tensors, 1
    if parts != 1:
        headers = [_file(part, tensor_types) for part in _parts(path, parts)]
        keys, files = headers[0].keys, len(headers)
        tensors = tuple(tensor for part in headers for tensor in part.tensors)
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise InputError(str(path), ["its parts have a tensor of the same name twice"])
    checkpoint = Checkpoint(str(path), "gguf", files, tensors)
    from txcalc.sources import llamacpp

    raw, notes = llamacpp.describe(keys, {tensor.name: tensor.shape for tensor in tensors}, str(path))
    return ({"name": re.sub(r"-\d{5}-of-\d{5}$", "", path.stem), **raw}, str(path), (), notes), checkpoint


def _parts(path: Path, count: object) -> list[Path]:
    """The files of a split model, in one folder."""
    match = re.fullmatch(r"(.*-)\d{5}-of-(\d{5})", path.stem)
    if type(count) is not int or not match or int(match[2]) != count or not 1 <= count <= 1000:
        raise InputError(str(path), [Fault("split.count", count, "the number in its name, …-00001-of-0000N.gguf")])
    parts = [path.with_name(f"{match[1]}{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    absent = [part.name for part in parts if not part.is_file()]
    if absent:
        raise InputError(str(path), [f"{len(absent)} of its {count} parts are missing, {absent[0]} first"])
    return parts


def _file(path: Path, known: Types) -> Header:
    where = str(path)
    try:
        files.regular(path)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Parser(data, where, known).header()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(where, [f"cannot be read: {reason.lower()}"]) from None


class _Parser:
    """A position in the bytes of a header; every step checks its length before it reads."""

    def __init__(self, data: mmap.mmap, where: str, known: Types) -> None:
        self.data, self.where, self.known = data, where, known
        self.at, self.end = 0, min(len(data), MAX_HEADER)

    def wrong(self, message: str) -> InputError:
        return InputError(self.where, [message])

    def take(self, length: int) -> int:
        """Step over `length` bytes, and return the position before them."""
        start = self.at
        if length > self.end - start:
            at_limit = self.end == MAX_HEADER
            raise self.wrong(
                f"has a header of more than {MAX_HEADER:,} bytes" if at_limit else "ends inside its header: truncated"
            )
        self.at = start + length
        return start

    def number(self, form: str) -> Any:
        return struct.unpack_from("<" + form, self.data, self.take(struct.calcsize("<" + form)))[0]

    def text(self) -> str:
        length = self.number("Q")
        start = self.take(length)
        try:
            text = self.data[start : start + length].decode()
        except UnicodeDecodeError:
            raise self.wrong("holds a text that is not UTF-8") from None
        return text

    def name(self) -> str:
        name = self.text()
        if not name.isprintable() or not 0 < len(name) < 1 << 16:
            raise self.wrong(f"holds {quote(name)}, which is not a name")
        return name

    def value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            raise self.wrong(f"holds a value of type {kind}, expected 0 to 12")
        inner, length = self.number("I"), self.number("Q")
        if inner in SCALARS:
            form = SCALARS[inner]
            start = self.take(length * struct.calcsize("<" + form))
            return list(struct.unpack_from(f"<{length}{form}", self.data, start)) if length <= MAX_LIST else None
        if inner != STRING:
            raise self.wrong(f"holds an array of type {inner}, expected numbers or texts")
        if length > self.end // 8:
            raise self.wrong(f"claims an array of {length:,} texts: truncated")
        at, last, size_at = self.at, self.end - 8, struct.Struct("<Q").unpack_from
        for _ in range(length):  # `take` and `number` inlined, for long vocabularies
            if at > last:
                break
            at += 8 + size_at(self.data, at)[0]
        self.take(at - self.at)
        return None

    def header(self) -> Header:
        if len(self.data) < 24 or self.data[:4] != b"GGUF":
            raise self.wrong("is not a GGUF file")
        self.at = 4
        version = self.number("I")
        if version not in (2, 3):
            kind = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
            raise self.wrong(f"is a GGUF file of an unsupported version ({kind}; expected version 2 or 3)")
        n_tensors, n_keys = self.number("Q"), self.number("Q")
        if n_tensors > MAX_TENSORS or n_keys > MAX_TENSORS:
            raise self.wrong(f"claims {n_tensors:,} tensors and {n_keys:,} keys, expected at most {MAX_TENSORS:,}")
        keys: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self.name()
            if key in keys:
                raise self.wrong(f"holds the key {quote(key)} twice")
            keys[key] = self.value(self.number("I"))
        return Header(keys, self.tensors(n_tensors, keys.get("general.alignment", 32)))

    def tensors(self, count: int, alignment: object) -> tuple[StoredTensor, ...]:
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self.wrong(str(Fault("general.alignment", alignment, "a power of two")))
        spans: list[tuple[int, int, StoredTensor]] = []
        names: set[str] = set()
        for _ in range(count):
            name, rank = self.name(), self.number("I")
            if name in names or rank > 8:
                raise self.wrong(f"holds {quote(name)} twice" if name in names else f"{name} has {rank:,} dimensions")
            names.add(name)
            shape = [self.number("Q") for _ in range(rank)]
            kind, offset = self.number("I"), self.number("Q")
            if kind not in self.known:
                raise self.wrong(f"{quote(name)} has a type numbered {kind}, which the installed gguf does not know")
            dtype, block, size = self.known[kind]
            elements = product(shape)
            if max(shape, default=1) >= 1 << 48 or elements >= 1 << 60 or (shape[0] if shape else 1) % block:
                raise self.wrong(f"{quote(name)} has a shape of {quote(shape)}, which {dtype} cannot store")
            bytes_ = elements // block * size
            spans.append((offset, offset + bytes_, StoredTensor(name, tuple(reversed(shape)), dtype, bytes_)))
        room = len(self.data) - -(-self.at // alignment) * alignment
        at = 0
        for begin, end, tensor in sorted(spans):
            if begin < at or begin % alignment or end > max(room, 0):
                fault = f"overlaps another or is not aligned to {alignment}" if end <= room else "ends after the file"
                raise self.wrong(f"{quote(tensor.name)} {fault}: truncated, or damaged")
            at = end
        return tuple(tensor for _, _, tensor in spans)
