"""Sizes written as expressions in other sizes: `F=8/3*D`, `h_kv=h/4`, `F=ceil(8/3*D, 256)`.

Arithmetic over fractions: `+ - * / // % ^`, `min`, `max`, and `ceil`, `floor` and `round` to a whole number or to a
multiple. A name is a letter, a key, or a dotted path. A result that is not whole is rounded to the nearest whole
number, and a note says so.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from txcalc.description import as_tables
from txcalc.errors import Fault, InputError, quote
from txcalc.parts.options import Table
from txcalc.sources import spec
from txcalc.sources.resolve import resolve
from txcalc.units import parse_tokens

if TYPE_CHECKING:
    import ast

LONGEST = 200  # characters
MOST_SIZE = 10**18  # of a literal
MOST_BITS = 512  # of an intermediate result
_LENGTH = re.compile(r"(?<![\w.])\d+(?:\.\d+)?[kKMG](?!\w)", re.ASCII)
_NAME = re.compile(r"\w+(\.\w+)*", re.ASCII)
_SIGNS = str.maketrans({"·": "*", "×": "*", "−": "-", "^": "**"})
WANTED = "a whole number, or an expression in other sizes such as 8/3*D"

Lookup = Callable[[str], Any]
Number = int | Fraction


class Unreadable(ValueError):
    """A text is not an expression; the message says why."""


class Expression:
    """An expression: its `text` and the `names` of the sizes in it.

    Errors: `Unreadable`.
    """

    def __init__(self, text: str) -> None:
        import ast

        self.text = text.strip()
        if len(self.text) > LONGEST:
            raise Unreadable(f"is longer than {LONGEST} characters")
        plain = _LENGTH.sub(lambda match: str(parse_tokens(match[0])), self.text.translate(_SIGNS))
        try:
            self._tree: ast.expr = ast.parse(plain, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise Unreadable("is not an expression") from None
        nodes = list(ast.walk(self._tree))
        inner = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        inner |= {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        variables = [node for node in nodes if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner]
        spelt = {id(node): ast.unparse(node) for node in variables}
        self.names = tuple(dict.fromkeys(spelt.values()))
        self._spelt = {node: name for node, name in spelt.items() if _NAME.fullmatch(name)}
        self.evaluate(lambda name: 1, strict=False)  # checks the operators

    def evaluate(self, lookup: Lookup, strict: bool = True) -> Number:
        """The value, with sizes from `lookup`. Errors: `Unreadable`, for a division by 0 only if `strict`."""
        return self._value(self._tree, lookup, strict)

    def _value(self, node: ast.expr, lookup: Lookup, strict: bool) -> Number:
        import ast

        if name := self._spelt.get(id(node)):
            size = lookup(name)
            return size if isinstance(size, int) else Fraction(size)
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            if value > MOST_SIZE:
                raise Unreadable("is too large")
            return value if isinstance(value, int) else Fraction(str(value))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            operand = self._value(node.operand, lookup, strict)
            return -operand if isinstance(node.op, ast.USub) else operand
        if isinstance(node, ast.BinOp) and type(node.op).__name__ in OPERATORS:
            left, right = (self._value(side, lookup, strict) for side in (node.left, node.right))
            try:
                return check_digits(OPERATORS[type(node.op).__name__](left, right))
            except ZeroDivisionError:
                if strict:
                    raise Unreadable("divides by 0") from None
                return 1
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            function = FUNCTIONS.get(node.func.id)
            if function and 0 < len(node.args) <= 8 and not any(isinstance(arg, ast.Starred) for arg in node.args):
                try:
                    return check_digits(function(*(self._value(arg, lookup, strict) for arg in node.args)))
                except TypeError:
                    raise Unreadable(f"gives {node.func.id} {len(node.args)} values") from None
                except ZeroDivisionError:
                    raise Unreadable("rounds to a multiple of 0") from None
        known = ", ".join(FUNCTIONS)
        raise Unreadable(
            f"has {quote(ast.unparse(node))[1:-1]} in it, which is not arithmetic (+ - * / // % ^, {known})"
        )


read_once = lru_cache(4096)(Expression)  # for expressions in tables, which are read often


def check_digits(value: Number) -> Number:
    """The number unchanged. Errors: `Unreadable` if it has too many digits."""
    if value.numerator.bit_length() + value.denominator.bit_length() > MOST_BITS:
        raise Unreadable("is too large")
    return value


def _power(base: Number, exponent: Number) -> Fraction:
    if exponent.denominator != 1 or not -16 <= exponent <= 16:
        raise Unreadable("has an exponent that is not a whole number up to 16")
    return Fraction(base) ** int(exponent)


def nearest(value: Number, multiple: Number = 1) -> Number:
    """The nearest multiple; halves are rounded up."""
    return (2 * value + multiple) // (2 * multiple) * multiple


OPERATORS: Mapping[str, Callable[[Number, Number], Number]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": Fraction,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": _power,
}
FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "ceil": lambda a, multiple=1: -(-a // multiple) * multiple,
    "floor": lambda a, multiple=1: a // multiple * multiple,
    "round": nearest,
    "min": lambda a, *values: min(a, *values) if values else a,
    "max": lambda a, *values: max(a, *values) if values else a,
}


def size_field(path: str) -> spec.Field | None:
    """The field of a dotted path, if it is a size of a description; else None."""
    *sections, key = [step for step in path.split(".") if step not in ("encoder", "decoder")]
    field = spec.SECTIONS.get(sections[-1] if sections else "", {}).get(key)
    return field if field is not None and field.check in (spec.size, spec.count, spec.layers) else None


def size_of(raw: Table, name: str) -> Any:
    """The size of a description under a letter, a key or a path, also if it is a default.

    Errors: `InputError` if it has none, or if layers differ.
    """
    path = spec.letter_path(name, raw)
    if size_field(path) is None:
        raise InputError(name, [f"{path} is not a size of a description"])
    steps = path.split(".")
    values = [value for table in _tables(raw, path != name) for value in _tables_under(table, steps)]
    if not values:
        stacks = as_tables(resolve(raw, "description").stacks)
        half = steps.pop(0) if steps[0] in stacks and steps[0] else None
        selected = [stacks[half]] if half else list(stacks.values())
        tables = [*selected, *(layer for stack in selected for layer in stack["layer"].values())]
        values = [value for table in tables for value in _tables_under(table, steps)]
    distinct = list(dict.fromkeys(value for value in values if value is not None))
    if len(distinct) != 1:
        sizes = " and ".join(f"{value:,}" for value in distinct) + " in its layers" if distinct else "none"
        raise InputError(name, [f"{path} is {sizes}: name one of them, or none"])
    return distinct[0]


def _tables(raw: Table, everywhere: bool) -> list[Any]:
    """The tables in which a size may be written, in the order of `spec.change_keys`."""
    tables: list[Any] = [raw]
    if everywhere:
        tables += [half for half in (raw.get("encoder"), raw.get("decoder")) if isinstance(half, Mapping)]
        for table in list(tables):
            tables += [kind for kind in (table.get("layer") or {}).values() if isinstance(kind, Mapping)]
    return tables


def _tables_under(table: object, steps: list[str]) -> list[object]:
    for step in steps:
        if not isinstance(table, Mapping) or step not in table:
            return []
        table = table[step]
    return [table]


def read(raw: Table, changes: Table) -> dict[str, Expression]:
    """The changes that are expressions, by key, in order. Errors: `InputError` with every fault."""
    expressions: dict[str, Expression] = {}
    faults: list[Fault | str] = []
    for key, value in changes.items():
        if isinstance(value, str) and size_field(spec.letter_path(key, raw)) and not _a_word(raw, value):
            try:
                expressions[key] = Expression(value)
            except Unreadable as error:
                faults.append(f"{key} = {quote(value)} {error}; expected {WANTED}")
    if faults:
        raise InputError("options", faults)
    return expressions


def _a_word(raw: Table, text: str) -> bool:
    """Whether a text is one word that is not a size: then the error is that of a value that is not a number."""
    if not text.strip().isidentifier():
        return False
    try:
        return size_field(spec.letter_path(text.strip(), raw)) is None
    except InputError:
        return True


def evaluated(raw: Table, changes: Table) -> tuple[Table, list[str]]:
    """The changes with expressions replaced by numbers, and a note for each.

    An expression reads sizes after all plain changes and the expressions before it, and its own key's old size.
    """
    expressions = read(raw, changes)
    if not expressions:
        return changes, []
    result, notes = dict(changes), []
    described = spec.change_keys(raw, {key: value for key, value in changes.items() if key not in expressions})
    for key, expression in expressions.items():
        base = described
        try:
            value = expression.evaluate(partial(size_of, base))
        except Unreadable as error:
            raise InputError("options", [f"{key} = {expression.text} {error}"]) from None
        rounded = int(nearest(value))
        if value.denominator == 1:
            notes.append(f"{key} = {expression.text} = {rounded:,}")
        else:
            notes.append(f"{key} = {expression.text} = {float(value):,.2f}, rounded to {rounded:,}")
        result[key] = rounded
        described = spec.change_keys(described, {key: rounded})
    return result, notes
