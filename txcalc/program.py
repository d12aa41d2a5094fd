"""Recorded formulas: the same tree over recorded numbers gives a program that a page can run exactly.

A `Recorded` number notes each operation on its `Tape`: `+ - *`, the smaller of two, an exact division, a division
rounded up. Equal steps are recorded once. `num.divides` and `num.exceeds` record conditions, under which alone the
results are valid. `Program.run` executes the steps in Python, `Program.javascript` writes them in JavaScript over
BigInt: exact integers of any size in both.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from txcalc.num import nearest_square


class Recorded:
    """A recorded number: a letter (an integer above 0), or the result of a step."""

    __slots__ = ("at", "left", "op", "right", "tape")

    def __init__(self, tape: Tape, at: int, op: str, left: Any, right: Any) -> None:
        self.tape, self.at, self.op, self.left, self.right = tape, at, op, left, right

    def __add__(self, other: object) -> Any:
        return self.tape.step("+", self, other)

    def __radd__(self, other: object) -> Any:
        return self.tape.step("+", other, self)

    def __sub__(self, other: object) -> Any:
        return self.tape.step("-", self, other)

    def __rsub__(self, other: object) -> Any:
        return self.tape.step("-", other, self)

    def __mul__(self, other: object) -> Any:
        return self.tape.step("*", self, other)

    def __rmul__(self, other: object) -> Any:
        return self.tape.step("*", other, self)

    def _asked(self, other: object = None) -> NoReturn:
        raise TypeError("a recorded number has no known value: it cannot be compared or converted")

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __index__ = __int__ = _asked
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return written(self)


_SIGNS = {"<=": "≤", "!=": "≠"}


class Guard(NamedTuple):
    """What must hold: `a` divides `b` ("|"), or is at most `b` ("<="), or they are equal ("=") or not ("!=")."""

    relation: str
    a: Any
    b: Any

    def __str__(self) -> str:
        if self.relation == "|":
            return f"{written(self.a)} divides {written(self.b)}"
        return f"{written(self.a)} {_SIGNS.get(self.relation, self.relation)} {written(self.b)}"


class Tape:
    """Letters, the steps computed from them, and `conditions` in the order recorded."""

    def __init__(self, letters: Sequence[str]) -> None:
        self._steps: dict[object, Recorded] = {}
        self.conditions: dict[Guard, None] = {}
        self.letters = {letter: Recorded(self, i, "letter", letter, None) for i, letter in enumerate(letters)}

    def step(self, op: str, left: object, right: object) -> Any:
        """The result of a step: an operand where it changes nothing, the earlier result of an equal step."""
        if op in _PLAIN and (plain := _PLAIN[op](left, right)) is not None:
            return plain
        if not all(isinstance(n, Recorded) or type(n) is int for n in (left, right)):
            return NotImplemented
        key = op, *(("at", n.at) if isinstance(n, Recorded) else n for n in (left, right))
        if key not in self._steps:
            self._steps[key] = Recorded(self, len(self.letters) + len(self._steps), op, left, right)
        return self._steps[key]

    def require(self, relation: str, a: object, b: object) -> None:
        """Records a condition that the results need."""
        trivial = relation == "|" and type(a) is int and a == 1
        if a is not b and a is not None and b is not None and not trivial:
            self.conditions[Guard(relation, a, b)] = None


def _sum(left: object, right: object) -> Any:
    return right if is_int(left, 0) else left if is_int(right, 0) else None


def _product(left: object, right: object) -> Any:
    if is_int(left, 0) or is_int(right, 0):
        return 0
    return right if is_int(left, 1) else left if is_int(right, 1) else None


_PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "+": _sum,
    "-": lambda left, right: left if is_int(right, 0) else 0 if left is right else None,
    "*": _product,
    "min": lambda left, right: left if left is right else _lower_bound(left, right),
    "/": lambda left, right: left if is_int(right, 1) else None,
    "ceil": lambda left, right: left if is_int(right, 1) else None,
}


def _lower_bound(left: Any, right: Any) -> Any:
    """0 if `left` is 0 and `right` is never below it: a letter, which is 1 or more, or one less than a letter."""
    positive = isinstance(right, Recorded) and (right.op == "letter" or (right.op == "-" and is_int(right.right, 1)))
    letter = positive and (right.op == "letter" or (isinstance(right.left, Recorded) and right.left.op == "letter"))
    return 0 if is_int(left, 0) and letter else None


def is_int(number: object, value: int) -> bool:
    """Whether a number is this integer, not a formula that may have its value."""
    return type(number) is int and number == value


def recorded(*numbers: object) -> Recorded | None:
    """The first recorded number."""
    return next((n for n in numbers if isinstance(n, Recorded)), None)


class OutOfDomain(ValueError):
    """A program was run outside of its conditions."""


def _divide_exactly(a: int, b: int) -> int:
    if b == 0 or a % b:
        raise OutOfDomain(f"{b} does not divide {a}")
    return a // b


RUN: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "min": min,
    "/": _divide_exactly,
    "ceil": lambda a, b: -(-a // b),
    "rows": lambda a, _: nearest_square(a),
}
_HOLDS: dict[str, Callable[[int, int], bool]] = {
    "|": lambda a, b: a != 0 and b % a == 0,
    "<=": lambda a, b: a <= b,
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
# Functions that the page defines for the programs; `X` throws where b does not divide a.
HELPERS = (
    "const M=(a,b)=>a<b?a:b,"
    "X=(a,b)=>{if(b===0n||a%b!==0n)throw new RangeError(b+' does not divide '+a);return a/b},"
    "C=(a,b)=>{const q=a/b;return a%b>0n?q+1n:q},"
    "S=(a,b)=>{let d=1n;for(let i=1n;i*i<=a;i++)if(a%i===0n)d=i;return d},"
    "R={'|':(a,b)=>a!==0n&&b%a===0n,'<=':(a,b)=>a<=b,'=':(a,b)=>a===b,'!=':(a,b)=>a!==b};"
)


class Program(NamedTuple):
    """Results and conditions over the letters of a tape."""

    letters: tuple[str, ...]
    results: Mapping[str, Any]
    conditions: tuple[Guard, ...] = ()

    def run(self, values: Mapping[str, int]) -> dict[str, int]:
        """The results at these values. Errors: `OutOfDomain` where a condition does not hold."""
        results: dict[int, int] = {}

        def value(number: Any) -> int:
            if not isinstance(number, Recorded):
                return int(number)
            for step in steps([number], results):
                a, b = step.left, step.right
                results[step.at] = (
                    values[a]
                    if step.op == "letter"
                    else RUN[step.op](*(results[n.at] if isinstance(n, Recorded) else n for n in (a, b)))
                )
            return results[number.at]

        for condition in self.conditions:
            a, b = value(condition.a), value(condition.b)
            if not _HOLDS[condition.relation](a, b):
                raise OutOfDomain(f"{condition} does not hold: {a:,} and {b:,}")
        return {name: value(number) for name, number in self.results.items()}

    def javascript(self) -> str:
        """A function from the letters to the results, both in order: an expression over BigInt that needs `HELPERS`. It
        throws where a division leaves a remainder."""
        roots = list(self.results.values())
        computed = [step for step in steps(roots) if step.op != "letter"]
        used: dict[int, int] = {}
        for number in [n for step in computed for n in (step.left, step.right)] + roots:
            if isinstance(number, Recorded):
                used[number.at] = used.get(number.at, 0) + 1
        names: dict[int, str] = {}
        texts: dict[int, str] = {}
        lines = []

        def text(number: Any, level: int) -> str:
            if not isinstance(number, Recorded):
                return f"({number}n)" if number < 0 else f"{number}n"
            if number.op == "letter":
                return f"${number.left}"
            if number.at in names:
                return names[number.at]
            return f"({texts[number.at]})" if _LEVEL.get(number.op, 9) < level else texts[number.at]

        for step in computed:
            if step.op in _LEVEL:
                level = _LEVEL[step.op]
                texts[step.at] = text(step.left, level) + step.op + text(step.right, level + (step.op == "-"))
            else:
                texts[step.at] = f"{_CALLS[step.op]}({text(step.left, 0)},{text(step.right, 0)})"
            if used[step.at] > 1:
                name = _name(len(names))
                lines.append(f"{name}={texts[step.at]}")
                names[step.at] = name
        body = f"const {','.join(lines)};" if lines else ""
        letters = ",".join(f"${letter}" for letter in self.letters)
        return f"({letters})=>{{{body}return[{','.join(text(number, 0) for number in roots)}]}}"


_LEVEL = {"+": 1, "-": 1, "*": 2}
_CALLS = {"min": "M", "/": "X", "ceil": "C", "rows": "S"}


def _name(number: int) -> str:
    """a, b, … z, aa, …: lower case, so that none is a helper's; `_` before what JavaScript reads as a word."""
    name = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        name = chr(97 + digit) + name
    return f"{name}_" if len(name) > 1 else name


def steps(roots: Sequence[Any], known: Container[int] = ()) -> Iterator[Recorded]:
    """The steps that numbers need and that are not known, each after those that it depends on."""
    visited: set[int] = set()
    pending = [(n, False) for n in reversed(roots) if isinstance(n, Recorded)]
    while pending:
        step, ready = pending.pop()
        if ready:
            yield step
        elif step.at not in visited and step.at not in known:
            visited.add(step.at)
            pending.append((step, True))
            pending += [(n, False) for n in (step.right, step.left) if isinstance(n, Recorded)]


# Formulas for people.


def written(number: object) -> str:
    """A recorded number as a formula in letters: 2·B·T·D·h·d_h."""
    return _text(number, 0)


def _text(number: object, level: int) -> str:
    """As part of a sum (0), of a product (1), below a fraction's line (2)."""
    terms = _collect_terms(number)
    text = ""
    for size, factors in terms:
        product = _product_of(factors)
        sign = " − " if size < 0 else " + "
        text += sign if text else sign.strip(" +")
        text += "·".join(filter(None, (f"{abs(size):,}" if abs(size) != 1 or not product else "", product)))
    loose = len(terms) > 1 or text[:1] == "−"
    return f"({text})" if (level and loose) or (level > 1 and "·" in text) else text or "0"


def _collect_terms(number: object) -> list[tuple[int, tuple[str, ...]]]:
    """A sum of products: the number and the other factors of each, equal ones added up."""
    sums: dict[tuple[str, ...], int] = {}
    for sign, term in _terms(number, 1):
        constant = sign
        names: list[str] = []
        for factor in _factors(term):
            size, texts = _atom(factor) if isinstance(factor, Recorded) else (factor, ())
            constant *= size
            names += texts
        key = tuple(sorted(names, key=_rank))
        sums[key] = sums.get(key, 0) + constant
    return [(size, factors) for factors, size in sums.items() if size]


def _product_of(factors: Sequence[str]) -> str:
    counted = dict.fromkeys(factors, 0)
    for factor in factors:
        counted[factor] += 1
    return "·".join(factor + _POWERS[n] if n < 4 else f"{factor}^{n}" for factor, n in counted.items())


_POWERS = ("", "", "²", "³")


def _atom(number: Recorded) -> tuple[int, Sequence[str]]:
    """A factor of a product, as a number and factors."""
    if number.op == "letter":
        return 1, [str(number.left)]
    if number.op == "min":
        return 1, [f"min({_text(number.left, 0)}, {_text(number.right, 0)})"]
    if number.op == "rows":
        return 1, [f"rows({_text(number.left, 0)})"]
    if number.op == "ceil":
        return 1, [f"⌈{_text(number.left, 1)}/{_text(number.right, 2)}⌉"]
    if number.op == "/":
        return 1, [f"({_text(number.left, 1)}/{_text(number.right, 2)})"]
    terms = _collect_terms(number)
    return terms[0] if len(terms) == 1 else (1, [f"({_text(number, 0)})"])


def _terms(number: object, sign: int) -> Iterator[tuple[int, Any]]:
    if isinstance(number, Recorded) and number.op in ("+", "-"):
        yield from _terms(number.left, sign)
        yield from _terms(number.right, sign if number.op == "+" else -sign)
    else:
        yield sign, number


def _factors(number: object) -> Iterator[Any]:
    if isinstance(number, Recorded) and number.op == "*":
        yield from _factors(number.left)
        yield from _factors(number.right)
    else:
        yield number


_FIRST = ("B", "T", "P", "T_src", "L", "D")


def _rank(text: str) -> tuple[bool, int]:
    """The workload's letters first, then layers and width, brackets last."""
    letter = "L" if text[:2] == "L_" else text
    return not text[:1].isalpha(), _FIRST.index(letter) if letter in _FIRST else len(_FIRST)
