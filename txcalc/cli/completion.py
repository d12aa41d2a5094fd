"""What the shell completes: names and keys that begin with what is typed. Each list is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

MOST = 200


def _begins(names: Iterable[str], incomplete: str) -> list[str]:
    """Those that begin so; of a list with commas, its last name."""
    before, comma, last = incomplete.rpartition(",")
    begun = dict.fromkeys(name for name in names if name.lower().startswith(last.lower()))
    return [f"{before}{comma}{name}" for name in begun][:MOST]


def source(incomplete: str) -> list[str]:
    """Presets."""
    from txcalc.sources.presets import names

    return _begins(names(), incomplete)


def accelerator(incomplete: str) -> list[str]:
    """Accelerators."""
    from txcalc.hardware import names

    return _begins(names(), incomplete)


def weights(incomplete: str) -> list[str]:
    """Formats of weights."""
    from txcalc.planning.weights import format_names

    return _begins(format_names(), incomplete)


def dtype(incomplete: str) -> list[str]:
    """Dtypes of weights and activations."""
    from txcalc.units import DTYPE_BITS

    return _begins(DTYPE_BITS, incomplete)


def cache(incomplete: str) -> list[str]:
    """Dtypes of a cache."""
    from txcalc.units import CACHE_BITS, DTYPE_BITS

    return _begins([*DTYPE_BITS, *CACHE_BITS], incomplete)


def key(incomplete: str) -> list[str]:
    """Keys of a description, by letter or by path, each with its =."""
    from txcalc.sources.spec import STACK
    from txcalc.symbols import TABLE

    letters = [symbol.letter for symbol in TABLE if symbol.key]
    paths = (f"{table}.{name}" if table else name for table, fields in STACK.items() for name in fields)
    return _begins((f"{name}=" for name in [*letters, *paths]), incomplete)


def quantity(incomplete: str) -> list[str]:
    """Quantities of a sweep."""
    from txcalc.ledger import QUANTITIES

    names = [name for name in QUANTITIES if name != "sent"]  # a sweep has no layout
    return _begins([*names, "weights_bytes", "saved_bytes", "cache_bytes"], incomplete)


def convention(incomplete: str) -> list[str]:
    """Published ways to count."""
    from txcalc.planning.conventions import CONVENTIONS

    return _begins([*CONVENTIONS, "korthikanti"], incomplete)


def engine(incomplete: str) -> list[str]:
    """Engines that are known."""
    return _begins(["none", "vllm", "sglang", "trtllm", "llama.cpp"], incomplete)


def part(ctx: Any, incomplete: str) -> list[str]:
    """Paths of the parts of the model that was named before: as deep as what is typed, and a step more."""
    from txcalc import load
    from txcalc.errors import TxcalcError

    named = ctx.params.get("source")
    if not named:
        return []
    try:
        paths = [entry.path for entry in load(named).ledger()]
    except TxcalcError:
        return []
    deep = incomplete.count(".") + 2
    return _begins((".".join(path.split(".")[:n]) for path in paths for n in range(1, deep)), incomplete)


Completion = Callable[..., list[str]]
