"""Dataclasses for parts: frozen, without `==`, cheap to define; and cached properties."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import _FIELD, MISSING, Field, FrozenInstanceError, field, fields, replace  # type: ignore[attr-defined]
from functools import partial
from inspect import get_annotations
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@dataclass_transform(eq_default=False, frozen_default=True, kw_only_default=True)
def frozen(cls: type[T]) -> type[T]:
    """A frozen dataclass without `==`, with keyword-only fields that may hold symbols or arrays; its fields alone are
    pickled, not cached properties.

    `dataclass(frozen=True)` compiles five methods per class, a third of the start-up time of a command; here all
    classes share them. The fields are those that `dataclass` finds, for `fields` and `replace`.
    """
    cls.__getstate__ = _fields  # type: ignore[method-assign]
    return _dataclass(cls, eq=False, kw_only=True)  # type: ignore[no-any-return]


@overload
def record(cls: type[T]) -> type[T]: ...
@overload
def record(*, eq: bool = True, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T] | None = None, *, eq: bool = True, kw_only: bool = False) -> Any:
    """A frozen dataclass whose methods all classes share, but for those that it defines itself. Without `eq` instances
    compare by identity. `__post_init__` is not called: `TypeError`."""
    return partial(_dataclass, eq=eq, kw_only=kw_only) if cls is None else _dataclass(cls, eq, kw_only)


def _dataclass(cls: Any, eq: bool, kw_only: bool) -> Any:
    shared: dict[str, Any] = {"__init__": _made, "__setattr__": _set_once, "__repr__": _shown, "__replace__": replace}
    for name, method in (shared | {"__eq__": _equal, "__hash__": _hashed} if eq else shared).items():
        if name not in vars(cls):
            setattr(cls, name, method)
    if hasattr(cls, "__post_init__"):
        raise TypeError(f"{cls.__name__}: nothing would call its __post_init__")
    found: dict[str, Field[Any]] = {}
    for base in cls.__mro__[:0:-1]:
        found |= vars(base).get("__dataclass_fields__", {})
    for name, kind in get_annotations(cls).items():
        if not kind.startswith("ClassVar"):
            found[name] = _field(cls, name, kind, kw_only)
    known = found.values()
    factories = [each for each in known if each.default_factory is not MISSING]
    cls.__dataclass_fields__ = found
    cls.__names__ = frozenset([each.name for each in known if each.init])
    cls.__order__ = tuple([each.name for each in known if each.init and not each.kw_only])
    cls.__match_args__ = cls.__order__  # type: ignore[misc]
    cls.__defaults__ = {each.name: each.default for each in known if each.init and each.default is not MISSING}
    cls.__factories__ = [(each.name, each.default_factory) for each in factories if each.init]
    cls.__inner__ = [(each.name, each.default_factory) for each in factories if not each.init]
    cls.__compared__ = attrgetter("__class__", *[each.name for each in known if each.compare])  # a tuple of any number
    return cls


def _field(cls: Any, name: str, kind: str, kw_only: bool) -> Any:
    """A field of a class, of which the class keeps the default alone."""
    given = getattr(cls, name, MISSING)
    if type(given) is Field:
        if given.default is MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, given.default)
    made: Any = given if type(given) is Field else field(default=given)
    made.name, made.type, made._field_type = name, kind, _FIELD
    made.kw_only = kw_only if made.kw_only is MISSING else made.kw_only
    return made


def _equal(self: Any, other: Any) -> Any:
    return self.__compared__(self) == self.__compared__(other) if type(other) is type(self) else NotImplemented


def _hashed(self: Any) -> int:
    return hash(self.__compared__(self))


def _made(self: Any, *given: Any, **values: Any) -> None:
    own = self.__dict__
    own.update(self.__defaults__)
    own.update(values)
    if given:
        order = self.__order__[: len(given)]
        if len(order) < len(given):
            raise TypeError(f"{type(self).__name__}: {len(given)} values without a name, expected at most {len(order)}")
        if twice := ", ".join(name for name in order if name in values):
            raise TypeError(f"{type(self).__name__}: fields given twice: {twice}")
        own.update(zip(order, given, strict=True))
    for name, make in self.__factories__:
        if name not in own:
            own[name] = make()
    if own.keys() != self.__names__:
        lacks, unknown = (
            ", ".join(sorted(names)) or "none" for names in (self.__names__ - own.keys(), own.keys() - self.__names__)
        )
        raise TypeError(f"{type(self).__name__}: fields missing: {lacks}; fields it has not: {unknown}")
    for name, make in self.__inner__:
        own[name] = make()


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


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Listed(type):
        """Named tuples of classes that list their fields. `typing` compiles every field's type, which nobody asks for,
        and takes more than twice the time."""

        def __new__(cls, name, bases, space):
            fields = space.get("__annotations__", {})
            defaults = [space.pop(field) for field in fields if field in space]
            made = namedtuple(name, fields, defaults=defaults, module=space.pop("__module__"))
            for key in space.keys() - {"__qualname__"}:
                setattr(made, key, space[key])
            return made

    NamedTuple = type.__new__(_Listed, "NamedTuple", (), {})
