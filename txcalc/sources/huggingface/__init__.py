"""Hugging Face's config.json, read exactly or not at all.

`families.READERS` says which function reads a `model_type`, `families.REFUSED` why one is not read. A reader turns a
`Config` into the description that presets are written in; nothing of transformers is imported, and no code that a
config names is ever run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from txcalc.errors import ABSENT, Fault, InputError, UnknownName, shown
from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.families import PREDICTING, PREDICTORS, READERS, REFUSED, WRAPPERS

MAX_BYTES = 1 << 24

Description = tuple[Mapping[str, Any], str, tuple[str, ...], tuple[str, ...]]


def read(source: str | Path) -> Description:
    """The description in a config.json, or in the one that a folder holds; `-` reads standard input.

    Returns it with what errors call it, what was assumed, and notes. Errors: `InputError` with every fault.
    """
    return describe(*parsed_file(source))


def parsed_file(source: str | Path) -> tuple[Any, str, str]:
    """The JSON of a config.json (`read` says where it may be), what errors call it, and a name for the model."""
    if source == "-":
        return parsed(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input"), "standard input", ""
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(str(path), [f"cannot be read: {reason.lower()}"]) from None
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return parsed(data, str(path)), str(path), name


def parsed(data: bytes, where: str) -> Any:
    """The JSON of a file; every way a file can fail is one line."""
    if len(data) > MAX_BYTES:
        raise InputError(where, [f"is larger than {MAX_BYTES:,} bytes, expected a config.json"])
    if not data.strip():
        raise InputError(where, ["is empty, expected a config.json"])
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError(where, ["is not text, expected a config.json"]) from None
    except (ValueError, RecursionError) as error:
        raise InputError(where, [f"is not valid JSON: {str(error) or 'nested too deep'}"]) from None


def describe(data: Any, where: str = "config.json", name: str = "") -> Description:
    """The description of a parsed config.json. Errors: `InputError` with every fault, `UnknownName`."""
    if not isinstance(data, Mapping):
        raise InputError(where, [f"holds {shown(data)}, expected an object with model_type"])
    model_type = data.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        got = ABSENT if "model_type" not in data else model_type
        raise InputError(where, [Fault("model_type", got, "the name of an architecture, such as 'llama'")])
    c = text = Config(data, model_type)
    if model_type in WRAPPERS:
        from txcalc.sources.huggingface.multimodal import language_model

        text = language_model(c)
    raw = reader_of(where, text)(text)
    if text.model_type in PREDICTING:
        raw["predictors"] = next((text.data[key] for key in PREDICTORS if type(text.data.get(key)) is int), 0)
    if text is not c:
        from txcalc.sources.huggingface.projectors import beside

        raw |= beside(c, text, raw)
    _remarks(c, text)
    c.leftovers()
    c.finish(where)
    raw = {"name": name or model_type, "model_type": model_type, **raw}
    return raw, where, tuple(c.assumptions), tuple(c.notes)


def reader_of(where: str, c: Config) -> Any:
    """The function that reads a config of this model type. Errors: `InputError` says why none does."""
    if c.model_type in REFUSED:
        raise InputError(
            where, [f"model_type is {c.model_type!r}, which is not read: {REFUSED[c.model_type]}{way_out()}"]
        )
    if c.model_type not in READERS:
        if "auto_map" in c:
            raise InputError(
                where,
                [f"model_type is {shown(c.model_type)}, whose code auto_map names and txcalc never runs"],
            )
        known = sorted({*READERS, *WRAPPERS})
        raise UnknownName(where, "reader for model_type", c.model_type, known, "see the README's list", way_out())
    module, function = READERS[c.model_type]
    return getattr(import_module(f"txcalc.sources.huggingface.{module}"), function)


def way_out() -> str:
    """Where to go with a model type that is not read, if transformers is there to go to."""
    return "; txcalc show … --via transformers measures transformers' own" if find_spec("transformers") else ""


def _remarks(c: Config, text: Config) -> None:
    """What is worth a line although it changes no number."""
    if "auto_map" in c:
        c.note(f"auto_map names code, which is not run: read as transformers' own {c.model_type}")
    quantization = c.data.get("quantization_config") or text.data.get("quantization_config")
    if isinstance(quantization, Mapping):
        method = quantization.get("quant_method", "a method it does not name")
        c.note(f"the checkpoint is quantised ({shown(method)}); parameters are counted as unquantised")


def families() -> dict[str, str]:
    """Every model type with what is read of it: "exact", or why it is refused."""
    known = {model_type: "exact" for model_type in (*READERS, *WRAPPERS)}
    return dict(sorted((known | {model_type: f"refused: {why}" for model_type, why in REFUSED.items()}).items()))
