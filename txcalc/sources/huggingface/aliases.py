"""Architectures under another name: published code with the layers of a supported type."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.families import ALIASES, reader
from txcalc.sources.huggingface.heads import class_of
from txcalc.sources.huggingface.keys import letters_of


def alias(c: Config) -> Raw:
    """A config read by the reader of another type, with the differences in its row of `families.ALIASES`.

    type      the type with the same layers
    classes   its classes, each with the type's class; the first is the default; "" is a language model with a head
    if        entries that replace others of the row if a config has a key that is not off; the first such key counts
    defaults  of its own class, if they differ from the type's; null has the meaning that it has in that type
    set       values that its code fixes, whatever the config has
    ignore    keys that change no size
    head      the table of its head, if it differs from the type's
    note      a note for the output
    """
    row: Raw = {**ALIASES[c.model_type]}
    row |= next((changes for key, changes in row.get("if", {}).items() if c.data.get(key)), {})
    absent = {key: value for key, value in row.get("defaults", {}).items() if key not in c}
    for key, value in absent.items():
        if value is not None:
            c.assume(key, value)
    cls = class_of(c.data)
    classes: dict[str, str] = {letters_of(published): cls_read for published, cls_read in row["classes"].items()}
    if cls is not None and letters_of(cls) not in classes:
        c.fault_class(" or ".join(row["classes"]))
    cls_read = classes.get(letters_of(cls or ""), next(iter(classes.values())))
    config = {key: value for key, value in c.data.items() if key != "architectures" and value != {}}
    c.data = absent | config | ({"architectures": [cls_read]} if cls_read else {}) | row.get("set", {})
    c.ignore(*row.get("ignore", "").split(), *row.get("if", {}))
    if "note" in row:
        c.note(row["note"])
    name, c.model_type = c.model_type, row["type"]
    raw = reader(c.model_type)(c)
    c.model_type = name  # its code may read keys that the type's code does not
    return raw | ({"head": row["head"]} if "head" in row else {})
