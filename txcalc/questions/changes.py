"""Changes of a model as people write them: `h_kv=32`, `norm.place=post`, `F=8/3*D`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from txcalc.errors import Fault, InputError
from txcalc.model import Model
from txcalc.units import parse_tokens


def parse_changes(pairs: Sequence[str] | None) -> dict[str, Any]:
    """`KEY=VALUE` texts as a mapping; a value is a number (`32k`), a TOML value, or bare text. Errors: `InputError`."""
    changes: dict[str, Any] = {}
    faults: list[Fault | str] = []
    for pair in pairs or ():
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not key or not value:
            faults.append(Fault("--set", pair, "KEY=VALUE", "--set h_kv=32"))
        elif key in changes:
            faults.append(f"--set {key} is given twice")
        else:
            changes[key] = _value(value)
    if faults:
        raise InputError("options", faults)
    return changes


def parse_variant(text: str) -> dict[str, Any]:
    """The changes of one variant: `h_kv=8`, or several keys, `h_kv=8,F=12k`. Errors: `InputError`."""
    return parse_changes(re.split(r",\s*(?=[A-Za-z_][\w.]*\s*=)", text))


def must_change(models: Sequence[Model], changes: Mapping[str, object]) -> None:
    """Refuses changes that leave every model as it was. Errors: `InputError`."""
    if changes and not any(model.changed for model in models):
        from txcalc.sources.idle import changes_nothing

        where = ", ".join(model.origin for model in models)
        raise InputError(where, [changes_nothing(key, value) for key, value in changes.items()])


def _value(text: str) -> Any:
    try:
        return parse_tokens(text)
    except InputError:
        pass
    if text.count(".") > 200:
        return text  # TOML's dotted keys take quadratic time
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return text
