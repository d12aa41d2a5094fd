"""The base class of parts and spans: frozen Structs whose abstract methods must be defined."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any, dataclass_transform

from msgspec import Struct, StructMeta, field

from txcalc.parts.options import Raw


class FrozenMeta(ABCMeta, StructMeta):
    """Makes the fields of each class keyword-only: of a Struct's settings, this one is not inherited."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: Raw, **settings: object) -> Any:
        return super().__new__(cls, name, bases, namespace, kw_only=True, **settings)


@dataclass_transform(eq_default=False, frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class FrozenStruct(Struct, metaclass=FrozenMeta, frozen=True, eq=False, dict=True):
    """A frozen Struct that is compared by identity, since its fields may be symbols or arrays. `dict`: it keeps cached
    properties, which are not pickled."""
