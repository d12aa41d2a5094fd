"""Dataclasses for parts: frozen, without `==`, cheap to define; and cached properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from functools import partial
from typing import Any, Generic, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@dataclass_transform(eq_default=False, frozen_default=True, kw_only_default=True)
def frozen(cls: type[T]) -> type[T]:
    """A frozen dataclass without `==`, with keyword-only fields that may hold symbols or arrays.

    `dataclass(frozen=True)` compiles five methods per class, a third of the start-up time of a command; these are
    shared.
    """
    cls.__init__ = _made  # type: ignore[method-assign]
    cls.__setattr__ = _set_once  # type: ignore[method-assign]
    cls.__repr__ = _shown  # type: ignore[method-assign]
    cls.__getstate__ = _fields  # type: ignore[method-assign]
    made: Any = dataclass(init=False, eq=False, repr=False, kw_only=True)(cls)
    made._names = frozenset(each.name for each in fields(made))
    made._defaults = {each.name: each.default for each in fields(made) if each.default is not MISSING}
    return made  # type: ignore[no-any-return]


@overload
def record(cls: type[T]) -> type[T]: ...
@overload
def record(*, eq: bool = True) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T] | None = None, *, eq: bool = True) -> Any:
    """A frozen dataclass of which only the constructor is compiled; methods that the class defines stay. Without `eq`
    instances compare by identity."""
    if cls is None:
        return partial(record, eq=eq)
    own: dict[str, Any] = {"__setattr__": _set_once, "__repr__": _shown}
    for name, method in (own | {"__eq__": _equal, "__hash__": _hashed} if eq else own).items():
        if name not in vars(cls):
            setattr(cls, name, method)
    return dataclass(eq=False, repr=False)(cls)


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, each.name) for each in fields(self) if each.compare)


def _equal(self: Any, other: object) -> Any:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hashed(self: Any) -> int:
    return hash(_compared(self))


def _made(self: Any, **values: Any) -> None:
    given = self.__dict__
    given.update(self._defaults)
    given.update(values)
    if given.keys() != self._names:
        lacks, unknown = (
            ", ".join(sorted(names)) or "none" for names in (self._names - given.keys(), given.keys() - self._names)
        )
        raise TypeError(f"{type(self).__name__}: fields missing: {lacks}; fields it has not: {unknown}")


def _set_once(self: Any, name: str, value: Any) -> None:
    if name in self.__dict__:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    self.__dict__[name] = value


def _shown(self: Any) -> str:
    said = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__name__}({said})"


def _fields(self: Any) -> dict[str, Any]:
    """The fields alone are pickled, not cached properties."""
    return {name: self.__dict__[name] for name in self.__dataclass_fields__ if name in self.__dict__}


class once(Generic[T]):
    """A cached property: `functools.cached_property` without its lock, which before Python 3.12 costs as much as most
    formulas."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        value = instance.__dict__[self.name] = self.compute(instance)
        return value
