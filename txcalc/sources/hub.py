"""Repositories of the Hugging Face hub: `hf:org/name` or `hf:org/name@revision`.

`huggingface_hub` does the work, with its cache, token, endpoint (`HF_ENDPOINT`) and offline mode (`HF_HUB_OFFLINE`);
here its ways to fail become one line each. Only config.json and the headers of checkpoints are fetched, never a weight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from txcalc.checkpoint import Checkpoint, Tensor
from txcalc.errors import Fault, InputError, MissingExtra
from txcalc.sources import huggingface, safetensors

T = TypeVar("T")
WORKERS = 8  # headers fetched side by side


class Repository(NamedTuple):
    """A model on the hub; revision None: the newest."""

    name: str
    revision: str | None

    def __str__(self) -> str:
        return f"hf:{self.name}" + (f"@{self.revision}" if self.revision else "")


def repository(source: str) -> Repository:
    """`hf:org/name@revision` in its parts. Errors: `InputError`."""
    found = re.fullmatch(r"hf:((?:[\w.-]+/)?[\w.-]+)(?:@([\w./-]+))?", source.strip(), re.ASCII)
    if not found:
        raise InputError("source", [Fault("source", source, "hf:org/name or hf:org/name@revision")])
    return Repository(found[1], found[2])


def read(place: Repository, ignore: Sequence[str] = ()) -> huggingface.Description:
    """The description in a repository's config.json. Errors: `InputError`, `MissingExtra`."""
    return huggingface.describe(*parsed(place), ignore)


def parsed(place: Repository) -> tuple[Any, str, str]:
    """The JSON of a repository's config.json, what errors call it, and a name for the model."""
    data = Path(_download(place, "config.json")).read_bytes()
    return huggingface.parsed(data, str(place)), str(place), place.name.rpartition("/")[2]


def headers(place: Repository) -> Checkpoint:
    """The checkpoint of a repository, by range requests: a few kilobytes of each file."""
    api = _client().HfApi()

    def header(file: str) -> list[Tensor]:
        found = _asked(
            place, file, lambda: api.parse_safetensors_file_metadata(place.name, file, revision=place.revision)
        )
        entries = {
            name: {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": list(entry.data_offsets)}
            for name, entry in found.tensors.items()
        }
        return safetensors.tensors(entries, f"{place} {file}", None)

    def there(file: str) -> bool:
        return bool(_asked(place, file, lambda: api.file_exists(place.name, file, revision=place.revision)))

    if there(whole := "model.safetensors"):
        return Checkpoint(str(place), "safetensors", 1, tuple(header(whole)))
    if not there(safetensors.INDEX):
        raise InputError(str(place), [f"has no {whole} and no {safetensors.INDEX}"])
    from concurrent.futures import ThreadPoolExecutor

    where = f"{place} {safetensors.INDEX}"
    names = safetensors.listed_files(Path(_download(place, safetensors.INDEX)).read_bytes(), where)
    with ThreadPoolExecutor(WORKERS) as pool:
        return safetensors.joined(where, names, dict(zip(names, pool.map(header, names), strict=True)))


def _client() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("a model of the hub", "huggingface_hub", "hub") from None
    return huggingface_hub


def _download(place: Repository, file: str) -> str:
    """A file's place in the client's cache."""
    client = _client()

    def fetch() -> str:
        if not isinstance(client.try_to_load_from_cache(place.name, file, revision=place.revision), str):
            # Fails at once, where the download would try again for half a minute.
            client.get_hf_file_metadata(client.hf_hub_url(place.name, file, revision=place.revision))
        return str(client.hf_hub_download(place.name, file, revision=place.revision))

    return _asked(place, file, fetch)


def _asked(place: Repository, file: str, request: Callable[[], T]) -> T:
    """What the hub answers, or why it does not, in one line."""
    from huggingface_hub import errors

    try:
        return request()
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
        why = "is no name of a repository, expected org/name"
    except errors.SafetensorsParsingError:
        why = f"{file} has a header that cannot be read"
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        why = f"{file} cannot be fetched: the hub answered {status}"
    except Exception as error:  # the transport below the client has errors of its own, others in each version
        why = f"{file} is not in the cache, and the hub cannot be reached ({type(error).__name__})"
    raise InputError(str(place), [why]) from None
