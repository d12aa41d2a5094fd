"""The header of `.safetensors` files: eight bytes of length, then JSON. No weight is ever read.

A header is checked as the format defines it before it is used: lengths against the file's size, the number of tensors,
shapes against offsets, and offsets against each other (they cover the file without gaps or overlaps).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from txcalc.checkpoint import Checkpoint, StoredTensor
from txcalc.errors import ABSENT, Fault, InputError, quote
from txcalc.num import product
from txcalc.sources import files

MAX_HEADER = 100_000_000  # the limit of the format
MAX_TENSORS = 1 << 18  # in all files; the largest models store some 200,000 in 60 files
MAX_FILES = 10_000
MAX_FAULTS = 10
INDEX = "model.safetensors.index.json"

BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


def read(path: Path) -> Checkpoint:
    """The tensors of one file, read in bounded memory. Errors: `InputError`."""
    return Checkpoint(str(path), "safetensors", 1, tuple(_file(path)), _files(path))


def _files(path: Path) -> int:
    """The number of files of this file's checkpoint, from its name or from the index in its folder."""
    shard = re.search(r"-\d{5}-of-(\d{5})$", path.stem)
    if shard:
        return int(shard[1])
    index = path.with_name(INDEX)
    names = listed_files(_bytes(index, MAX_HEADER), str(index)) if index.is_file() else {}
    return len(names) if path.name in names else 1


def checkpoint_in(folder: Path) -> tuple[Checkpoint | None, str]:
    """The checkpoint in a folder (all shards of its index, or a single file), and a note.

    None without a note: there is no checkpoint. None with a note: there is an index without its files.
    """
    files = sorted(folder.glob("*.safetensors"))
    index = folder / INDEX
    if index.is_file():
        if not files:
            return None, f"the files that {INDEX} lists are not here: the weights are not checked"
        return _read_shards(index), ""
    if not files:
        return None, ""
    single = folder / "model.safetensors"
    if single in files:
        return read(single), ""
    shards = [file for file in files if re.fullmatch(r"model-\d{5}-of-\d{5}", file.stem)]
    if not shards and len(files) == 1:
        return read(files[0]), ""
    if shards and len(shards) == int(shards[0].stem[-5:]):
        _check_header_sizes(str(folder), shards)
        return _merge(str(folder), {file.name: _file(file) for file in shards}), ""
    several = f"{len(files):,} .safetensors files and no {INDEX}"
    raise InputError(str(folder), [f"holds {several}: which is the model? (name the file, or config.json alone)"])


def _read_shards(index: Path) -> Checkpoint:
    """The checkpoint of all shards that an index lists."""
    where = str(index)
    names = listed_files(_bytes(index, MAX_HEADER), where)
    absent = [file for file in names if not (index.parent / file).is_file()]
    if absent:
        mend = "download them, or name config.json alone"
        raise InputError(
            where, [f"{len(absent):,} of its {len(names):,} files are missing, {absent[0]} first ({mend})"]
        )
    _check_header_sizes(where, [index.parent / file for file in names])
    return join_files(where, names, ((file, _file(index.parent / file)) for file in names))


def _check_header_sizes(where: str, paths: list[Path]) -> None:
    """Check that all headers together are within the limit of one. Errors: `InputError`."""
    lengths = [int.from_bytes(files.read(path, 7), "little") for path in paths]
    claimed = sum(length for length, path in zip(lengths, paths, strict=True) if length < path.stat().st_size)
    if claimed > MAX_HEADER:
        raise InputError(
            where, [f"its files have headers of {claimed:,} bytes, expected at most {MAX_HEADER:,} in all"]
        )


def listed_files(index: bytes, where: str) -> dict[str, set[str]]:
    """The files that an index lists, sorted, each with the names of its tensors."""
    if index.count(b",") > MAX_TENSORS + 100:
        raise InputError(where, [f"lists more than {MAX_TENSORS:,} tensors"])
    listed = _json(index, where)
    weight_map = listed.get("weight_map") if isinstance(listed, Mapping) else None
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise InputError(where, [Fault("weight_map", weight_map, "an object of tensor names and their files")])
    names: dict[str, set[str]] = {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not re.fullmatch(r"[^/\\\0]{1,255}", file) or file in (".", ".."):
            raise InputError(where, [Fault(f"weight_map[{quote(tensor)}]", file, "the name of a file beside it")])
        names.setdefault(file, set()).add(tensor)
    if len(names) > MAX_FILES:
        raise InputError(where, [f"names {len(names):,} files, expected at most {MAX_FILES:,}"])
    return dict(sorted(names.items()))


def join_files(
    where: str, names: Mapping[str, set[str]], files: Iterable[tuple[str, list[StoredTensor]]]
) -> Checkpoint:
    """The checkpoint of all files of an index. Memory is bounded by the tensors that the index lists. Errors:
    `InputError` if index and files disagree."""
    stored: dict[str, list[StoredTensor]] = {}
    faults: list[str] = []
    for file, tensors in files:
        differences = disagreements(file, names[file], tensors)
        stored[file] = [] if differences else tensors
        faults += differences
        if len(faults) >= MAX_FAULTS:
            break
    if faults:
        raise InputError(where, faults[:MAX_FAULTS])
    return _merge(where, stored)


def disagreements(file: str, listed: set[str], tensors: Iterable[StoredTensor]) -> list[str]:
    """The first tensors that only the index or only the file has."""
    stored = {tensor.name for tensor in tensors}
    sides = {True: f"in {file} and not in the index", False: f"in the index and not in {file}"}
    return [f"{quote(tensor)} is {sides[tensor in stored]}" for tensor in sorted(listed ^ stored)[:MAX_FAULTS]]


def _merge(where: str, files: Mapping[str, list[StoredTensor]]) -> Checkpoint:
    file_of: dict[str, str] = {}
    for file, tensors in files.items():
        for tensor in tensors:
            if tensor.name in file_of:
                raise InputError(where, [f"{tensor.name} is in {file_of[tensor.name]} and in {file}"])
            file_of[tensor.name] = file
    return Checkpoint(where, "safetensors", len(files), tuple(t for tensors in files.values() for t in tensors))


def _bytes(path: Path, limit: int) -> bytes:
    data = files.read(path, limit)
    if len(data) > limit:
        raise InputError(str(path), [f"is larger than {limit:,} bytes"])
    return data


def _file(path: Path) -> list[StoredTensor]:
    where = str(path)
    try:
        files.regular(path)
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            if start.startswith(b"version "):
                raise InputError(where, ["is a Git LFS pointer, not the file itself (git lfs pull)"])
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > size - 8:
                header_length = "" if len(start) < 8 else f", with a header of {length:,}"
                raise InputError(where, [f"has {size:,} bytes{header_length}: truncated, or not a .safetensors file"])
            if length > MAX_HEADER:
                raise InputError(where, [f"has a header of {length:,} bytes, expected at most {MAX_HEADER:,}"])
            header = file.read(length)
    except (OSError, ValueError) as error:
        raise files.unreadable(path, error) from None
    return parse(header, where, size - 8 - length)


def parse(header: bytes, where: str, room: int | None) -> list[StoredTensor]:
    """The tensors that a header lists, by offset; `room`: bytes of data after the header, None if unknown."""
    listed = _json(header, where)
    if not isinstance(listed, Mapping):
        raise InputError(where, [f"has a header that holds {quote(listed)}, expected an object of tensors"])
    return tensors({name: entry for name, entry in listed.items() if name != "__metadata__"}, where, room)


def tensors(listed: Mapping[str, object], where: str, room: int | None) -> list[StoredTensor]:
    """The tensors of a header's entries, checked; `room` as in `parse`."""
    faults: list[Fault | str] = []
    spans: list[tuple[int, int, StoredTensor]] = []
    for name, entry in listed.items():
        span = _tensor(name, entry, faults)
        if span:
            spans.append(span)
        if len(faults) >= MAX_FAULTS:
            break
    if not faults:
        faults += _coverage_faults(spans, room)
    if faults:
        raise InputError(where, faults)
    return [tensor for _, _, tensor in sorted(spans)]


def _tensor(name: str, entry: object, faults: list[Fault | str]) -> tuple[int, int, StoredTensor] | None:
    """The tensor of an entry with its begin and end offsets; None, and a fault, if the entry is not valid."""
    key = quote(name)
    if not name.isprintable() or not name:
        faults.append(f"{key} is not a printable name")
        return None
    if not isinstance(entry, Mapping):
        faults.append(Fault(key, entry, "an object with dtype, shape and data_offsets"))
        return None
    dtype, shape, offsets = (entry.get(part, ABSENT) for part in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        faults.append(Fault(f"{key}.dtype", dtype, f"one of {', '.join(BITS)}"))
    elif not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape) or len(shape) > 64:
        faults.append(Fault(f"{key}.shape", shape, "a list of whole numbers from 0"))
    elif (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(type(n) is int and n < 1 << 63 for n in offsets)
        or not 0 <= offsets[0] <= offsets[1]
    ):
        faults.append(Fault(f"{key}.data_offsets", offsets, "two whole numbers, the second not below the first"))
    else:
        begin, end = offsets
        bits = product(shape) * BITS[dtype]
        if bits != 8 * (end - begin):
            expected = f"{bits:,} bits, as its shape and dtype say" if bits < 1 << 70 else "less than 2^70 bits"
            faults.append(f"{key} has {end - begin:,} bytes, expected {expected}")
        else:
            return begin, end, StoredTensor(name, tuple(shape), dtype, end - begin)
    return None


def _coverage_faults(spans: Iterable[tuple[int, int, StoredTensor]], room: int | None) -> Iterator[str]:
    """A fault if tensors overlap, leave a gap, or do not fill the file exactly."""
    at = 0
    for begin, end, tensor in sorted(spans):
        if begin != at:
            yield f"{quote(tensor.name)} begins at byte {begin:,} of the data, expected {at:,}: a gap, or an overlap"
            return
        at = end
    if room is not None and at != room:
        yield f"lists {at:,} bytes of tensors and has room for {room:,}: truncated, or followed by something else"


def _json(data: bytes, where: str) -> object:
    """Parsed JSON of at most `MAX_TENSORS` entries. Errors: `InputError`, also for duplicate keys."""
    if data.count(b"{") > MAX_TENSORS + 2 or data.count(b"[") > 2 * MAX_TENSORS or data.count(b",") > 16 * MAX_TENSORS:
        raise InputError(where, [f"lists more than {MAX_TENSORS:,} tensors"])
    try:
        return json.loads(data.decode(), object_pairs_hook=_unique, parse_float=_no_number, parse_constant=_no_number)
    except UnicodeDecodeError:
        raise InputError(where, ["has a header that is not text"]) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            where, [f"has a header that is not valid: {quote(str(error) or 'nested too deep', 120)}"]
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"{quote(twice)} is listed twice")
    return result


def _no_number(text: str) -> str:
    return text  # only the unread metadata of an index has one
