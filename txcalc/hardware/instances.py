"""Cloud instances by name (`p5.48xlarge`): their accelerators and network, of `presets/instances.toml`."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from txcalc.hardware.cards import bare


class Instance(NamedTuple):
    """`gpus` accelerators of a preset's name, with `network` bytes per second one way each to other instances; None: a
    single one, or not known."""

    name: str
    gpus: int
    accelerator: str
    network: int | None
    source: str


def find(name: str) -> Instance | None:
    """The instance of this name, in any case, with or without Azure's `Standard_`; None where there is none."""
    return _instances().get(bare(name).removeprefix("standard"))


def names() -> list[str]:
    """The names of all instances, as their clouds write them."""
    return [instance.name for instance in _instances().values()]


@cache
def _instances() -> dict[str, Instance]:
    from txcalc.sources.presets import folder, read

    clouds, _ = read(folder() / "instances.toml")
    return {
        bare(name): Instance(
            name, row["gpus"], row["of"], row.get("network", 0) * 10**9 // 8 // row["gpus"] or None, source
        )
        for cloud, source in clouds["sources"].items()
        for name, row in clouds[cloud].items()
    }
