"""How formulas are written: the order of factors and terms, as text and as LaTeX.

`tidy` decides the order, not SymPy, so that a formula reads the same with every version. The expressions come from
`algebra`; nothing is imported to read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cache
from math import gcd, inf, lcm
from re import sub
from typing import Any, NamedTuple

from txcalc.num import Num
from txcalc.symbols import BY_LETTER

Expression = Any  # a `sympy.Expr`
Numbers = Mapping[Expression, Any]

# The order in which a formula is written.


class Term(NamedTuple):
    """coefficient · letters to their powers · sums in brackets."""

    coefficient: Fraction
    powers: Powers
    sums: tuple[Sum, ...] = ()


Powers = tuple[tuple[Expression, int], ...]  # in order; of symbols, minima of two lengths, powers of a letter
Sum = tuple[Term, ...]
_Terms = dict[Powers, Fraction]

# The order of factors; letters that are not here follow as in their table. "min" stands for the minima.
FIRST = ("B", "T", "T_src", "P", "S", "min", "L", "V", "D", "E", "k")
_RANK = {name: place for place, name in enumerate(dict.fromkeys((*FIRST, *BY_LETTER)))}


@cache
def _parse(name: str) -> tuple[str, str]:
    """A symbol's name as a letter of the table and a suffix."""
    base = max((letter for letter in BY_LETTER if f"{name}_".startswith(f"{letter}_")), key=len, default=name)
    return base, name[len(base) + 1 :]


@cache
def _rank(atom: Expression) -> tuple[int, str]:
    return (_RANK.get(_parse(atom.name)[0], len(_RANK)), atom.name) if atom.is_Symbol else (_RANK["min"], str(atom))


def in_order(atoms: Iterable[Expression]) -> list[Expression]:
    """Letters in the order of factors."""
    return sorted(atoms, key=_rank)


def _is_layers(atom: Expression) -> bool:
    return atom.is_Symbol and _parse(atom.name)[0] == "L"


def _times(powers: Powers, factors: Powers, sign: int = 1) -> Powers:
    """The product of two products of letters, or with sign −1 their quotient."""
    total = Counter(dict(powers))
    for atom, power in factors:
        total[atom] += sign * power
    return tuple(sorted(((atom, power) for atom, power in total.items() if power), key=lambda pair: _rank(pair[0])))


def tidy(expression: Expression | int) -> Sum:
    """A polynomial in the usual order: common factors in front, the rest grouped by layers, by D, by common letters.

    `write(tidy(…))` of all projections' parameters is `2·D·d_h·(h + h_kv)`, of GPT-2's FLOPs with its numbers
    `1536·B·T·(24·T + 160849)`. Divisors must be products of letters.
    """
    if isinstance(expression, int):
        return _factor({(): Fraction(expression)} if expression else {})
    terms: _Terms = {}
    for product, number in expression.expand().as_coefficients_dict().items():
        factors = ((atom, power) for atom, power in product.as_powers_dict().items() if atom != 1)
        powers = ((atom, int(power)) if power.is_Integer else (atom**power, 1) for atom, power in factors)
        terms[_times(tuple(powers), ())] = Fraction(int(number.p), int(number.q))
    return _factor({powers: number for powers, number in terms.items() if number})


def _factor(terms: _Terms) -> Sum:
    """The common factor of all terms, times the rest in brackets."""
    if len(terms) < 2:
        return tuple(Term(coefficient, powers) for powers, coefficient in terms.items())
    numbers = terms.values()
    sign = -1 if max(numbers) < 0 else 1
    shared = Fraction(sign * gcd(*(n.numerator for n in numbers)), lcm(*(n.denominator for n in numbers)))
    atoms = {atom for powers in terms for atom, _ in powers}
    least = ((atom, min(dict(powers).get(atom, 0) for powers in terms)) for atom in atoms)
    common = _times(tuple(least), ())
    if shared == 1 and not common:
        return _group_terms(terms)
    return _multiply(shared, common, _group_terms({_times(p, common, -1): n / shared for p, n in terms.items()}))


def _multiply(coefficient: Fraction, powers: Powers, formula: Sum, *outer_sums: Sum) -> Sum:
    """A product with sums; a sum of one term needs no brackets."""
    if len(formula) != 1:
        return (Term(coefficient, powers, (*outer_sums, formula)),)
    (term,) = formula
    return (Term(coefficient * term.coefficient, _times(powers, term.powers), (*outer_sums, *term.sums)),)


def _group_terms(terms: _Terms) -> Sum:
    """Terms that share a letter together: by layers, by D, then by the commonest letter."""
    counts = Counter(atom for powers in terms for atom, power in powers if power > 0)
    shared = [atom for atom, number in counts.items() if number > 1]
    if not shared:
        return tuple(sorted((Term(number, powers) for powers, number in terms.items()), key=_place))
    if any(map(_is_layers, shared)):
        return tuple(sorted(_by_layers(terms), key=_place))
    factor = min(shared, key=lambda atom: (str(atom) != "D", -counts[atom], _rank(atom)))
    inside = {powers: number for powers, number in terms.items() if dict(powers).get(factor, 0) > 0}
    outside = {powers: number for powers, number in terms.items() if powers not in inside}
    return tuple(sorted((*_factor(inside), *_factor(outside)), key=_place))


def _by_layers(terms: _Terms) -> Sum:
    """Costs that layer kinds share, times the sum of their numbers: (L_dense + L_sparse)·(…) + L_dense·(…)."""
    owners: dict[tuple[Powers, Fraction], list[Expression]] = {}
    outside: _Terms = {}
    for powers, number in terms.items():
        layers = [atom for atom, _ in powers if _is_layers(atom)]
        if layers:
            owners.setdefault((_times(powers, ((layers[0], 1),), -1), number), []).append(layers[0])
        else:
            outside[powers] = number
    costs: dict[tuple[Expression, ...], _Terms] = {}
    for (powers, number), layers in owners.items():
        costs.setdefault(tuple(in_order(layers)), {})[powers] = number
    result = _factor(outside)
    for kinds, cost in costs.items():
        if len(kinds) > 1:
            numbers = tuple(Term(Fraction(1), ((atom, 1),)) for atom in kinds)
            result += _multiply(Fraction(1), (), _factor(cost), numbers)
        else:
            result += _factor({_times(powers, ((kinds[0], 1),)): number for powers, number in cost.items()})
    return result


def _place(term: Term) -> tuple[object, ...]:
    """A term's place in a sum: positive terms before negative ones, letters in order, a bare number last."""
    powers = term.powers or (term.sums[0][0].powers if term.sums else ())
    return (term.coefficient < 0, *((*_rank(atom), -power) for atom, power in powers), (inf, "", 0))


def pair(groups: int, first: int, second: int) -> str:
    """`groups` times the sum of two sizes, equal ones written once: `2 · 8 · 128`, `8 · (192 + 128)`."""
    return f"2 · {groups:,} · {first:,}" if first == second else f"{groups:,} · ({first:,} + {second:,})"


# Text and LaTeX.


class Style(NamedTuple):
    """How a formula is written: letters, signs, powers, brackets, quotients, `min` and roots."""

    letter: Callable[[str], str]
    times: str
    minus: str
    power: Callable[[str, int], str]
    raised: Callable[[str, str], str]
    brackets: tuple[str, str]
    quotient: Callable[[str, str, bool, bool], str]
    least: str
    ceiling: tuple[str, str]
    root: Callable[[str], str]


def _latex_letter(name: str) -> str:
    base, suffix = _parse(name)
    head, _, index = (BY_LETTER[base].latex if base in BY_LETTER else base).partition("_")
    parts = [index.strip("{}")] if index else []
    if suffix:
        parts.append(r"\mathrm{" + sub(r"[^\w -]|_", r"\\_", suffix) + "}")
    return f"{head}_{{{','.join(parts)}}}" if parts else head


def _text_quotient(above: str, below: str, sum_above: bool, several_below: bool) -> str:
    return f"{f'({above})' if sum_above else above}/{f'({below})' if several_below else below}"


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
TEXT = Style(
    letter=str,
    times="·",
    minus="−",
    power=lambda base, power: base + str(power).translate(_RAISED),
    raised=lambda base, power: f"{base}^{power}",
    brackets=("(", ")"),
    quotient=_text_quotient,
    least="min",
    ceiling=("⌈", "⌉"),
    root=lambda inside: f"√({inside})",
)
LATEX = Style(
    letter=_latex_letter,
    times=r" \cdot ",
    minus="-",
    power=lambda base, power: f"{base}^{{{power}}}",
    raised=lambda base, power: f"{base}^{{{power}}}",
    brackets=(r"\left(", r"\right)"),
    quotient=lambda above, below, sum_above, several_below: rf"\frac{{{above}}}{{{below}}}",
    least=r"\min",
    ceiling=(r"\left\lceil ", r"\right\rceil "),
    root=lambda inside: rf"\sqrt{{{inside}}}",
)


def write(formula: Sum, style: Style = TEXT, numbers: Numbers | None = None) -> str:
    """A formula as text; `numbers` replace letters without being multiplied out."""
    result = "" if formula else "0"
    for term in formula:
        sign = style.minus if term.coefficient < 0 else "+" if result else ""
        result += (f" {sign} " if result else sign) + _product(term, style, numbers or {})
    return result


def _product(term: Term, style: Style, numbers: Numbers) -> str:
    number, divisor = abs(term.coefficient.numerator), term.coefficient.denominator
    above = [_power(atom, power, style, numbers) for atom, power in term.powers if power > 0]
    below = [_power(atom, -power, style, numbers) for atom, power in term.powers if power < 0]
    above += [style.brackets[0] + write(inner, style, numbers) + style.brackets[1] for inner in term.sums]
    above = [str(number), *above] if number != 1 or not above else above
    below = [str(divisor), *below] if divisor != 1 else below
    numerator = style.times.join(above)
    return style.quotient(numerator, style.times.join(below), False, len(below) > 1) if below else numerator


def _power(atom: Expression, power: int, style: Style, numbers: Numbers) -> str:
    if atom in numbers:
        base = str(numbers[atom])
    elif atom.is_Symbol:
        base = style.letter(atom.name)
    elif type(atom).__name__ == "Min":
        lengths = sorted(map(tidy, atom.args), key=lambda formula: _place(formula[0]) if formula else ())
        inside = ", ".join(write(formula, style, numbers) for formula in lengths)
        base = style.least + style.brackets[0] + inside + style.brackets[1]
    elif type(atom).__name__ == "ceiling":
        base = style.ceiling[0] + write(tidy(atom.args[0]), style, numbers) + style.ceiling[1]
    elif type(atom).__name__ == "Pow":  # of a letter
        below, above = (write(tidy(part), style, numbers) for part in atom.args)
        base = style.raised(style.brackets[0] + below + style.brackets[1], above)
    elif atom.is_Function and len(atom.args) == 1:
        inside = write(tidy(atom.args[0]), style, numbers)
        base = type(atom).__name__ + style.brackets[0] + inside + style.brackets[1]
    else:
        raise TypeError(f"no way to write {atom}")
    return base if power == 1 else style.power(base, power)


def named_by_groups(heads: Num, groups: Num) -> str:
    """The name of attention by its key/value heads: MHA, MQA or GQA."""
    return "MHA" if groups == heads else "MQA" if groups == 1 else "GQA"


def as_text(value: object) -> str:
    """A formula as text: 36,864·B·T² + 247,064,064·B·T."""
    try:
        return write(tidy(value))
    except (AttributeError, TypeError, ValueError):  # measured expressions need not be polynomials
        return str(value)
