"""Repositories of the Hugging Face hub: `hf:org/name` or `hf:org/name@revision`.

`huggingface_hub` makes the requests, with its cache, token, endpoint (`HF_ENDPOINT`) and offline mode
(`HF_HUB_OFFLINE`); its errors become one line each. Only config.json and the headers of checkpoints are fetched.

An endpoint is not trusted: its answers are bounded in size and time, and values that the client uses in paths (a
revision, a commit, an ETag) must be plain names.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from txcalc.checkpoint import Checkpoint, StoredTensor
from txcalc.errors import Fault, InputError, MissingExtra, quote
from txcalc.sources import huggingface, presets, safetensors

T = TypeVar("T")
WORKERS = 8  # headers fetched at a time
FIRST = 100_000  # bytes of the first request for a header
SECONDS = 10.0  # for a request and its answer
ALL_SECONDS = 120.0  # for the headers of a checkpoint


class Repository(NamedTuple):
    """A model on the hub; a revision of None is the newest."""

    name: str
    revision: str | None

    def __str__(self) -> str:
        return f"hf:{self.name}" + (f"@{self.revision}" if self.revision else "")


def repository(source: str) -> Repository:
    """The repository that `hf:org/name@revision` names. Errors: `InputError`."""
    match = re.fullmatch(r"hf:([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?", source.strip(), re.ASCII)
    if not match:
        raise InputError("source", [Fault("source", source, "hf:org/name or hf:org/name@revision")])
    for part in (*match[1].split("/"), *(match[2] or "main").split("/")):
        if not plain(part):  # the client uses each as a path
            raise InputError("source", [Fault("source", source, "names and revisions without empty parts, . and ..")])
    return Repository(match[1], match[2])


def plain(name: str) -> bool:
    """True for one component of a path other than . and .. ."""
    return bool(re.fullmatch(r"[\w.+=-]+", name, re.ASCII)) and name not in (".", "..")


def read(place: Repository, ignore: Sequence[str] = ()) -> huggingface.Description:
    """The description in a repository's config.json. Errors: `InputError`, `MissingExtra`."""
    return huggingface.describe(*fetch_config(place), ignore)


def fetch_config(place: Repository) -> tuple[Any, str, str]:
    """The JSON of a repository's config.json, its origin for errors, and the model's name."""
    data = _download(place, "config.json")
    return huggingface.parse_json(data, str(place)), str(place), place.name.rpartition("/")[2]


def headers(place: Repository) -> Checkpoint:
    """The checkpoint of a repository, by range requests for the header of each file."""
    api, where = _client().HfApi(), f"{place} {safetensors.INDEX}"
    lock, names = threading.Lock(), dict[str, set[str]]()

    def header(file: str) -> list[StoredTensor]:
        data = _request(place, file, lambda: _header(place, file))
        with lock:  # parsed headers are several times larger than their text
            tensors = safetensors.parse(data, f"{place} {file}", None)
            if names and (faults := safetensors.disagreements(file, names[file], tensors)):
                raise InputError(where, faults)
            return tensors

    def exists(file: str) -> bool:
        return bool(_request(place, file, lambda: api.file_exists(place.name, file, revision=place.revision)))

    if exists(single := "model.safetensors"):
        return Checkpoint(str(place), "safetensors", 1, tuple(header(single)))
    if not exists(safetensors.INDEX):
        raise InputError(str(place), [f"has no {single} and no {safetensors.INDEX}"])
    from concurrent.futures import ThreadPoolExecutor

    names |= safetensors.listed_files(_download(place, safetensors.INDEX), where)
    pool = ThreadPoolExecutor(WORKERS)
    try:
        return safetensors.join_files(
            where, names, zip(names, pool.map(header, names, timeout=ALL_SECONDS), strict=True)
        )
    except TimeoutError:
        raise InputError(where, [f"the headers of its {len(names):,} files took over {ALL_SECONDS:.0f} s"]) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _client() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("a model of the hub", "huggingface_hub", "hub") from None
    return huggingface_hub


class Hostile(Exception):
    """An answer that a correct hub never sends."""


def _download(place: Repository, file: str) -> bytes:
    """A file's content, through the client's cache; one byte more than allowed if it is too large."""
    client = _client()

    def fetch() -> str:
        if not isinstance(client.try_to_load_from_cache(place.name, file, revision=place.revision), str):
            # This fails at once; a download would retry for half a minute.
            metadata = client.get_hf_file_metadata(client.hf_hub_url(place.name, file, revision=place.revision))
            if metadata.size is not None and metadata.size > huggingface.MAX_BYTES:
                raise Hostile(f"{file} has {metadata.size:,} bytes, more than {huggingface.MAX_BYTES:,}")
        return str(client.hf_hub_download(place.name, file, revision=place.revision))

    with Path(_request(place, file, fetch)).open("rb") as cached:
        return cached.read(huggingface.MAX_BYTES + 1)


def _header(place: Repository, file: str) -> bytes:
    """The header of a .safetensors file: one request gets most headers, a second one the rest of longer headers."""
    client = _client()
    from huggingface_hub import utils

    tools: Any = utils  # its type stubs lack some functions
    url = client.hf_hub_url(place.name, file, revision=place.revision)

    def fetch_range(first: int, last: int) -> bytes:
        span = {"Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
        answer = client.get_session().get(url, headers=tools.build_hf_headers() | span)
        tools.hf_raise_for_status(answer)
        return bytes(answer.content)

    start = fetch_range(0, FIRST)
    end = 8 + int.from_bytes(start[:8], "little")
    if end > huggingface.MAX_BYTES:
        raise Hostile(f"its header has {end - 8:,} bytes, more than {huggingface.MAX_BYTES:,}")
    data = start if len(start) >= end else start + fetch_range(len(start), end - 1)
    if len(start) < 8 or len(data) < end:
        raise Hostile("it ends inside its header")
    return data[8:end]


request_state = threading.local()


def guard(response: Any) -> None:
    """Refuse an unsafe answer to a request of this module, and bound its body."""
    if not getattr(request_state, "since", None):
        return  # a request of other code, by the same client
    headers = response.headers
    for key in ("x-repo-commit", "etag", "x-linked-etag"):
        value = headers.get(key)
        if value is not None and not plain(value.removeprefix("W/").strip('"')):
            raise Hostile(f"the endpoint answers with {key} = {quote(value)}, which is not a plain name")
    limit = huggingface.MAX_BYTES
    if headers.get("content-encoding", "identity") != "identity":
        limit //= 1024  # the largest factor by which it may be decompressed
    stream = response.stream
    (base,) = (cls for cls in type(stream).__mro__ if cls.__name__ == "SyncByteStream")

    class Bounded(base):  # type: ignore[misc, valid-type]
        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for chunk in stream:
                size += len(chunk)
                if size > limit:
                    raise Hostile(f"the endpoint sends more than {limit:,} bytes")
                yield chunk

        def close(self) -> None:
            stream.close()

    response.stream = Bounded()


def _in_time(request: Callable[[], T]) -> T:
    """The result of a request, run in a thread that is abandoned after `SECONDS`."""
    from huggingface_hub import get_session

    hooks = get_session().event_hooks["response"]
    if guard not in hooks:
        hooks.append(guard)
    result: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        request_state.since = True
        try:
            result.append(request())
        except BaseException as error:
            failure.append(error)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(SECONDS)
    if failure:
        raise failure[0]
    if not result:
        raise Hostile(f"the endpoint took over {SECONDS:.0f} s")
    return result[0]


def _request(place: Repository, file: str, request: Callable[[], T]) -> T:
    """The hub's answer. Errors: `InputError` with the reason in one line."""
    from huggingface_hub import errors

    try:
        return _in_time(request)
    except Hostile as refused:
        why = f"{file} is not read: {refused}"
    except errors.GatedRepoError:
        why = "is gated: ask for access on its page, then hf auth login, or set HF_TOKEN"
    except errors.RevisionNotFoundError:
        why = f"has no revision {place.revision}"
    except errors.RepositoryNotFoundError:
        why = "is not on the hub, or is private (hf auth login, or set HF_TOKEN)"
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        why = f"{file} is not in the cache, and the hub cannot be reached, or is switched off by HF_HUB_OFFLINE"
    except errors.EntryNotFoundError:
        why = f"has no {file}"
    except errors.HFValidationError:
        why = "is not a repository's name, expected org/name"
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        why = f"{file} cannot be fetched: the hub answered {status}"
    except Exception as error:  # errors of the transport depend on the client's version
        why = f"{file} is not in the cache, and the hub cannot be reached ({type(error).__name__})"
    near = presets.nearest_to(place.name.rpartition("/")[2])
    raise InputError(str(place), [why + (f" (the nearest preset is {near})" if near else "")]) from None
