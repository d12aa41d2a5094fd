"""Shell completion of names and keys; lists are loaded when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

Completion = Callable[..., list[str]]
MAX_NAMES = 200  # completed at once


def _begins(names: Iterable[str], incomplete: str) -> list[str]:
    """Names with this prefix; in a comma-separated list, of its last item."""
    before, comma, last = incomplete.rpartition(",")
    begun = dict.fromkeys(name for name in names if name.lower().startswith(last.lower()))
    return [f"{before}{comma}{name}" for name in begun][:MAX_NAMES]


def _names(*places: str, also: tuple[str, ...] = ()) -> Completion:
    """Completes from `module:NAME`, a list or a function that returns one."""

    def complete(incomplete: str) -> list[str]:
        choices = list(also)
        for place in places:
            module, _, name = place.partition(":")
            names = getattr(import_module(f"txcalc.{module}"), name)
            choices += names() if callable(names) else names
        return _begins(choices, incomplete)

    return complete


source = _names("sources.presets:names")
accelerator = _names("hardware:names")
weights = _names("planning.formats.names:format_names")
dtype = _names("units:DTYPE_BITS")
cache = _names("units:DTYPE_BITS", "units:CACHE_FORMATS")
convention = _names("planning.conventions:CONVENTIONS", also=("korthikanti",))
engine = _names("planning.serving.engine_profiles:names")
served = _names("planning.serving.launch:ENGINES")
framework = _names("planning.training.frameworks:FRAMEWORKS")
schedule = _names("planning.training.frameworks:SCHEDULES")
offload = _names("planning.training.recipe:OFFLOAD")
optimizer = _names("planning.training.optimizers:OPTIMIZERS")
law = _names("planning.scaling:LAWS")
oracle = _names("evidence.known:ORACLES", "evidence.known:MEASURES", also=("all",))


def key(incomplete: str) -> list[str]:
    """Keys of a description, by letter or path, with `=`."""
    from txcalc.sources.spec import SECTIONS
    from txcalc.symbols import TABLE

    letters = [symbol.letter for symbol in TABLE if symbol.key]
    paths = (f"{table}.{name}" if table else name for table, fields in SECTIONS.items() for name in fields)
    return _begins((f"{name}=" for name in [*letters, *paths]), incomplete)


def key_alone(incomplete: str) -> list[str]:
    """Keys of a description without `=`."""
    return [name.removesuffix("=") for name in key(incomplete)]


def quantity(incomplete: str) -> list[str]:
    """Quantities of a sweep."""
    from txcalc.ledger import QUANTITIES

    names = [name for name in QUANTITIES if name != "sent"]  # a sweep has no layout
    return _begins([*names, "weights_bytes", "saved_bytes", "cache_bytes"], incomplete)


def part(ctx: Any, incomplete: str) -> list[str]:
    """Paths of parts of the given model, one level deeper than typed."""
    from txcalc import load
    from txcalc.errors import TxcalcError

    source = ctx.params.get("source")
    if not source:
        return []
    try:
        paths = [entry.path for entry in load(source).ledger()]
    except TxcalcError:
        return []
    deep = incomplete.count(".") + 2
    return _begins((".".join(path.split(".")[:n]) for path in paths for n in range(1, deep)), incomplete)
