"""How a config says that heads are rotated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config

Raw = dict[str, Any]

# What transformers must find beside the name of each way to stretch rotary positions; other names it does not know.
STRETCHES: dict[str, tuple[str, ...]] = {
    "default": (),
    "mrope": (),  # older name of the default, for three axes
    "axial": (),
    "proportional": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "su": ("short_factor", "long_factor"),  # older name of longrope
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def rotary(
    c: Config,
    d_head: int,
    theta: float = 10000.0,
    partial: float = 1.0,
    kind: str = "",
    even: bool = False,
    names: Sequence[str] = ("rope_theta", "rotary_emb_base"),
) -> Raw:
    """Rotary positions, in the spelling of transformers 4 (`rope_theta`, `rope_scaling`) or 5 (`rope_parameters`).

    `kind` is the layer type whose parameters are wanted, where a config gives each its own; `names` are the keys of
    the base where it does not. `even`: the class rotates one dimension more where a part of the head is odd.
    """
    outer = c.table("rope_scaling") or c.table("rope_parameters")
    inner = outer.table(kind) if outer and kind and isinstance(outer.data.get(kind), Mapping) else outer
    for table in (outer, inner):
        if table:
            table.asked.update(table.data)  # scaling factors change angles, no size
    base = c.real(*names, default=theta)
    share = c.real("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction", default=partial)
    if inner:
        stretched(inner)
        own = "rope_theta" in inner and (inner is not outer or "rope_theta" in names)
        base = inner.real("rope_theta", default=base) if own else base
        share = inner.real("partial_rotary_factor", default=share)
    if not 0 < share <= 1:
        c.fault(c.spelling("partial_rotary_factor", "rotary_pct"), share, "above 0 and at most 1")
        share = 1.0
    raw: Raw = {"form": "rotary", "theta": base}
    dims = int(d_head * share)
    dims += even and dims < d_head and dims % 2
    if dims % 2:
        c.fault("rotary width", dims, "an even number")
    return raw if dims == d_head else raw | {"rotary_dims": max(1, dims)}


def stretched(table: Config) -> None:
    """A fault where transformers does not know how positions are stretched, or misses by how much."""
    named = {key: value for key, value in table.data.items() if isinstance(value, Mapping)}
    if named:  # one table a layer type
        return
    key = "rope_type" if "rope_type" in table else "type"
    name = table.data.get(key, "default")
    if not isinstance(name, str) or name not in STRETCHES:
        table.fault(key, name, f"one of {', '.join(STRETCHES)}")
        return
    for wanted in STRETCHES[name]:
        if wanted not in table:
            table.fault(wanted, ABSENT, f"what {name!r} needs")
    if "rope_theta" in table and table.data["rope_theta"] is None:
        table.fault("rope_theta", None, "a number")
