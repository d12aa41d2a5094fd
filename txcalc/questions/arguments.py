"""Arguments of the library's functions: models in every form that `load` takes, lengths as people write them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, wraps
from inspect import Parameter, cleandoc, signature
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

from msgspec import Struct, structs

from txcalc.errors import Fault, InputError, P, R, WrongCall
from txcalc.model import Model
from txcalc.num import counted, whole
from txcalc.questions.options import (
    Keyword,
    Length,
    Lengths,
    Names,
    Option,
    Options,
    declared,
    fields,
    keywords,
    options_class,
)
from txcalc.sources import load
from txcalc.units import parse_count, parse_rate, parse_tokens

if TYPE_CHECKING:
    from txcalc.sources import Source


def check_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Checks arguments against annotations: `InputError` with every fault, `WrongCall` for unknown arguments.

    Accepts earlier names of keywords, and fields of classes of options as keywords of the function.
    """
    expected = signature(function)
    option_names: tuple[str, ...] = ()
    declared = [parameter for parameter in expected.parameters.values() if parameter.kind is not Parameter.VAR_KEYWORD]
    if grouping := len(declared) < len(expected.parameters):  # **options: for type checkers, the fields of its options
        expected, option_names = (
            expected.replace(parameters=declared),
            tuple(keyword.name for keyword in keywords(function)),
        )

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments: dict[str, Any] = dict(kwargs)
        if grouping or not arguments.keys() <= expected.parameters.keys():
            arguments = group_options(function, arguments)
        bound = WrongCall.unless(function.__name__, expected, args, arguments, option_names)
        faults = []
        for name, value in bound.arguments.items():
            several = expected.parameters[name].kind is Parameter.VAR_POSITIONAL
            for item in value if several else (value,):
                faults += _faults(name, item, hint_of(function, name))
        if faults:
            raise InputError(f"{function.__name__}", faults)
        return function(*bound.args, **bound.kwargs)

    types = {name: hint_of(function, name) for name in expected.parameters}
    parameters = [
        parameter.replace(annotation=Parameter.empty if types[name] is Any else types[name])
        for name, parameter in expected.parameters.items()
    ]
    vars(call)["__signature__"] = expected.replace(parameters=parameters)
    return call


def documentation(function: Callable[..., Any]) -> str:
    """The docstring of a question's function or of a class of options, and the help of each argument."""
    text = cleandoc(function.__doc__ or "")
    declared = fields(function) if options_class(function) else keywords(function)
    width = max((len(keyword.name) for keyword in declared), default=0)
    lines = [f"    {keyword.name:{width}}  {keyword.option.help}" for keyword in declared]
    return "\n".join([text, "", "Arguments:", *lines]) if lines else text


def group_options(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Keywords by their current names; those of a class of options as one value of it. Errors: `InputError`."""
    by_name: dict[str, Keyword] = {}
    for keyword in keywords(function):
        aliases = (keyword.option.flag, *keyword.option.aliases) if isinstance(keyword.option, Option) else ()
        by_name |= dict.fromkeys((keyword.name, *(alias.lstrip("-").replace("-", "_") for alias in aliases)), keyword)
    values: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    faults = []
    for name, value in arguments.items():
        option = by_name.get(name)
        if option is None or (option.group == name and isinstance(value, Struct)):
            values[name] = value
            continue
        gathered = groups.setdefault(option.group, {}) if option.group else values
        if option.name in gathered:
            spellings = " and ".join(spelling for spelling in arguments if by_name.get(spelling) is option)
            raise InputError(function.__name__, [f"{spellings} say the same thing twice"])
        gathered[option.name] = value
        faults += _faults(name, value, option.hint) if option.group else []
    if faults:
        raise InputError(function.__name__, faults)
    for name, changes in groups.items():
        group = values.get(name, signature(function).parameters[name].default)
        if not isinstance(group, Options):
            given_twice = " and ".join([name, *changes])
            raise InputError(function.__name__, [f"{given_twice} say the same thing twice"])
        values[name] = structs.replace(group, **changes)
    return values


@cache
def hint_of(function: object, name: str) -> object:
    """The type of an argument; Any if only type checkers can resolve it."""
    return declared(function.__annotations__.get(name, Any), function.__module__)[0]


def _faults(name: str, value: object, hint: object) -> list[Fault]:
    """The faults of a value (of a class of options: of its fields) that does not match its hint."""
    if _fits(value, hint):
        options = fields(type(value)) if isinstance(value, Options) else ()
        return [fault for option in options for fault in _faults(option.name, getattr(value, option.name), option.hint)]
    words = ", ".join(dict.fromkeys(_words(hint)))
    return [Fault(name, value, " or ".join(words.rsplit(", ", 1)))]


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value matches a hint; arrays and NumPy numbers count as numbers."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, alternative) for alternative in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if hint in (int, float):
        return not isinstance(value, bool) and hasattr(value, "__index__" if hint is int else "__float__")
    if hint is Path:
        return isinstance(value, PathLike)
    if origin is Sequence:
        several = isinstance(value, Collection | Iterator) and not isinstance(value, str | bytes | Mapping)
        return several and (isinstance(value, Iterator) or all(_fits(item, inner[0]) for item in value))
    return isinstance(value, origin or hint or NoneType)


def _words(hint: Any) -> Iterator[str]:
    """The accepted kinds of values, in words."""
    inner = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        for alternative in inner:
            yield from _words(alternative)
    elif get_origin(hint) is Literal:
        yield from map(repr, inner)
    elif get_origin(hint) is Sequence:
        yield "a list of them" if inner[0] is Any else f"a list of {' or '.join(_words(inner[0]))}"
    elif hint not in (None, NoneType):
        yield WORDS.get(get_origin(hint) or hint) or f"{'an' if hint.__name__[0] in 'AEIOU' else 'a'} {hint.__name__}"


WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    Path: "a path",
    Mapping: "keys with their values",
    Callable: "a function",
}


def models(sources: Iterable[Source], text_only: bool = False) -> list[Model]:
    """Loads models; `text_only`: without towers. Errors: `InputError`, `UnknownName`, `MissingExtra`."""
    loaded = [load(source) for source in sources]
    return [model.language() for model in loaded] if text_only else loaded


def length(value: Length, flag: str) -> int:
    """A whole number; texts such as `32k` are read. Errors: `InputError`."""
    return _number(value, flag, parse_tokens)


def count(value: Length | float, flag: str) -> int:
    """A whole number; texts such as `8B`, `15T`, `3.8e25` are read. Errors: `InputError`."""
    if isinstance(value, float) and value.is_integer():
        return int(Fraction(repr(value)))  # 1e23 as it is written: the nearest float is 8,388,608 less
    return _number(value, flag, parse_count)


def maybe(value: object, flag: str, read: Callable[[Any, str], R]) -> R | None:
    """A value as `length` or `count` reads it; None stays None."""
    return None if value is None else read(value, flag)


def bandwidth(value: int | str, flag: str) -> int:
    """Bytes per second: `50GB/s`. Errors: `InputError`."""
    return parse_rate(str(value), flag)


def _number(value: object, flag: str, parse: Any) -> int:
    number = parse(value, flag) if isinstance(value, str) else counted(value)
    if not whole(number) or number < 0:
        raise InputError(flag, [Fault(flag, value, "a whole number")])
    return number  # type: ignore[no-any-return]


def lengths(values: Lengths, flag: str) -> list[int]:
    """`"4k,32k"`, a number or a list, without repeats, above 0. Errors: `InputError`."""
    result = list(dict.fromkeys(length(value, flag) for value in split_commas(values)))
    if 0 in result:
        raise InputError(flag, [Fault(flag, 0, "a whole number from 1")])
    return result


def optional_lengths(values: Lengths | None, flag: str) -> list[int]:
    """`lengths`; none if nothing is given."""
    return [] if values is None or (isinstance(values, str) and not values) else lengths(values, flag)


def source_list(sources: Sequence[object]) -> tuple[Any, ...]:
    """Sources that were given one by one, or as one list."""
    if len(sources) == 1 and isinstance(sources[0], list | tuple):
        return tuple(sources[0])
    return tuple(sources)


def several_texts(name: str, values: Any) -> list[str]:
    """One or several texts. Errors: `InputError`."""
    texts = [values] if isinstance(values, str) else list(values) if isinstance(values, Iterable) else [values]
    if not texts or not all(isinstance(value, str) for value in texts):
        raise InputError("options", [Fault(name, values, "a text, or a list of them")])
    return texts


def names(values: Names) -> list[str]:
    """`"bf16,fp8"` or a list of texts."""
    return [str(value).strip() for value in split_commas(values)]


def split_commas(values: object) -> Iterable[Any]:
    """Items of comma-separated texts, of a list or an array, or a single one."""
    several = [values] if isinstance(values, str) or not isinstance(values, Iterable) else values
    return [piece for value in several for piece in (value.split(",") if isinstance(value, str) else [value])]
