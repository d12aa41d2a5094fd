"""Presets: TOML files in `presets/models/` of a wheel, an editable install or a checkout.

A user's presets come first: those in `TXCALC_PRESETS`, or in `txcalc/presets` of the user's configuration folder.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from txcalc.errors import Fault, InputError, UnknownName, quote
from txcalc.parts.options import Table
from txcalc.sources import files

MAX_BYTES = 1 << 20
MAX_DOTS = 200  # in a line


@cache
def folder() -> Path:
    """`presets/`: inside an installed package, next to the package in a checkout."""
    package = Path(__file__).parents[1]
    for place in (package / "presets", package.parent / "presets"):
        if (place / "models").is_dir():
            return place
    raise InputError("presets", [f"no folder of presets in {package} or beside it (reinstall txcalc)"])


def user_folder() -> Path | None:
    """The folder of the user's presets, if there is one. Errors: `InputError` if TXCALC_PRESETS names a missing one."""
    folder = os.environ.get("TXCALC_PRESETS")
    if folder:
        if not Path(folder).is_dir():
            raise InputError("TXCALC_PRESETS", [Fault("TXCALC_PRESETS", folder, "a folder of presets (.toml)")])
        return Path(folder)
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111 - never raises
    place = Path(base) / "txcalc" / "presets"
    return place if place.is_dir() else None


def _folders() -> list[Path]:
    """The folders of model presets, in order; a user's folder may have a folder `models`."""
    user = user_folder()
    return [*((user, user / "models") if user else ()), folder() / "models"]


def names() -> list[str]:
    """Every preset, in alphabetical order."""
    return sorted(_files())


def _files() -> dict[str, Path]:
    """The files of all presets by name."""
    return {name: path for place in reversed(_folders()) for name, path in files_in(place).items()}


def files_in(place: Path) -> dict[str, Path]:
    """The descriptions (.toml) in a folder by name; none if there is no folder."""
    return {path.stem: path for path in place.iterdir() if path.suffix == ".toml"} if place.is_dir() else {}


Preset = tuple[Table, str, tuple[str, ...], tuple[str, ...]]


def all_presets() -> Iterator[Preset]:
    """Every preset as `find` returns it, in alphabetical order. Errors: `InputError`."""
    return (_preset(path) for _, path in sorted(_files().items()))


def _preset(path: Path) -> Preset:
    note = () if path.parent.parent == folder() else (f"read from {path}",)
    return _read_description(path), path.stem, (), note


def find(name: str) -> Preset:
    """A preset's raw description, its name, no assumptions, and a note if it is the user's."""
    short = name.strip().lower()
    paths = _files()
    for stem in (name.strip(), short):
        if stem in paths:
            return _preset(paths[stem])
    if like := match_punctuation(short):
        raw, origin, assumptions, note = find(like)
        return raw, origin, assumptions, (*note, f"{name.strip()} is the preset {like}")
    if "," in name and {piece.strip() for piece in short.split(",")} <= {*names()}:
        raise InputError("source", [f"{quote(name)} is several names (separate them by spaces; show and kv take one)"])
    raise UnknownName("source", "preset", name, names(), "txcalc presets lists them")


def match_punctuation(name: str) -> str | None:
    """The only preset whose name differs just in punctuation: gpt-2 is gpt2."""
    letters = "".join(filter(str.isalnum, name))
    matches = [preset for preset in names() if "".join(filter(str.isalnum, preset)) == letters]
    return matches[0] if len(matches) == 1 and not set(name) & set(" \t\n") else None


def nearest_to(name: str) -> str | None:
    """The preset with the name nearest to a repository's: llama-3.1-8b for Meta-Llama-3.1-8B-Instruct."""
    from difflib import get_close_matches

    plain = re.sub(r"^meta-|-(instruct|it|chat|base|hf|v\d.*|\d{4})$", "", name.lower())
    matches = get_close_matches(plain, names(), n=1, cutoff=0.75)
    return matches[0] if matches else None


def is_users(preset: Preset) -> bool:
    """Whether a preset of `find` is the user's: only these have a note."""
    return bool(preset[3])


def read(path: Path) -> tuple[Table, str]:
    """A description in a TOML file. Errors: `InputError` with one line."""
    where = str(path)
    if path.is_dir():
        raise InputError(where, ["is a directory, expected a description (.toml) or a preset's name"])
    return _read_description(path), path.stem if path.parent in _folders() else where


def _read_description(path: Path) -> Table:
    return parse_toml(files.read(path, MAX_BYTES), str(path))


def parse_toml(data: bytes, where: str) -> Table:
    """A description as TOML. Errors: `InputError`."""
    if len(data) > MAX_BYTES:
        raise InputError(where, [f"is larger than {MAX_BYTES:,} bytes, expected a description (.toml)"])
    if not data.strip():
        raise InputError(where, ["is empty, expected a description (.toml)"])
    # Parsing a dotted key takes quadratic time.
    if data.count(b".") > MAX_DOTS and any(line.count(b".") > MAX_DOTS for line in data.splitlines()):
        raise InputError(where, ["is not valid TOML: nested too deep"])
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise InputError(where, ["is not text, expected a description (.toml)"]) from None
    except RecursionError:
        raise InputError(where, ["is not valid TOML: nested too deep"]) from None
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        raise InputError(where, [f"is not valid TOML: {message[:1].lower()}{message[1:]}"]) from None
    except ValueError:
        raise InputError(where, ["is not valid TOML: a number has too many digits"]) from None
