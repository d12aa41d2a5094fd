"""Architectures under another name: published code whose layers are those of a type that is read."""

from __future__ import annotations

from typing import Any

from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.families import ALIASES, reader_named
from txcalc.sources.huggingface.keys import bare


def alias(c: Config) -> Raw:
    """A config by the reader of another type, as its row of `families.ALIASES` says.

    type      the type whose layers its class has
    classes   its classes by that type's, the first where none is named; "" is a language model with its head
    if        what is otherwise where a config has a key that is not off; the first of them
    defaults  of its own class, where they are not the type's; null is what null is in that type
    set       what its code does whatever a config says
    ignore    keys that change no size
    head      the table of its head, where it is not the type's
    note      what a reader of the answer should know
    """
    row: dict[str, Any] = {**ALIASES[c.model_type]}
    row |= next((other for key, other in row.get("if", {}).items() if c.data.get(key)), {})
    absent = {key: value for key, value in row.get("defaults", {}).items() if key not in c}
    for key, value in absent.items():
        if value is not None:
            c.assume(key, value)
    names = c.data.get("architectures")
    cls = names[0] if isinstance(names, list) and names else None
    own: dict[str, str] = {bare(theirs): ours for theirs, ours in row["classes"].items()}
    if isinstance(cls, str) and bare(cls) not in own:
        c.fault("architectures[0]", cls, " or ".join(row["classes"]), "other classes may have other layers")
    ours = own.get(bare(cls) if isinstance(cls, str) else "", next(iter(own.values())))
    kept = {key: value for key, value in c.data.items() if key != "architectures" and value != {}}
    c.data = absent | kept | ({"architectures": [ours]} if ours else {}) | row.get("set", {})
    c.ignore(*row.get("ignore", "").split(), *row.get("if", {}))
    if "note" in row:
        c.note(row["note"])
    name, c.model_type = c.model_type, row["type"]
    raw = reader_named(c.model_type)(c)
    c.model_type = name  # whose own code may read keys that the other's does not
    return raw | ({"head": row["head"]} if "head" in row else {})
