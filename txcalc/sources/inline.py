"""Inline descriptions: `"D=4096 L=32 h=32 h_kv=8 F=14336 V=128256"`, letters of `symbols` and a few words.

Defaults: RMSNorm, pre-norm, no biases, rotary, gated (F = 4·D needs a word), untied, final norm; h_kv = h, d_h = D/h,
h = D/64 (a note says so). Without V there is no embedding, no head and no final norm. A number may be an expression in
other letters (`F=8/3*D`), which is rounded to the nearest whole number, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from txcalc.errors import ABSENT, Fault, InputError, meant, nearest as like, quote
from txcalc.parts.options import Raw, Table
from txcalc.sources.resolve import HINTS
from txcalc.sources.spec import Wrong, count, layers, size
from txcalc.symbols import BY_LETTER, OTHER_NAMES
from txcalc.units import parse_tokens

LETTERS = {letter: BY_LETTER[letter].key for letter in ["D", "L", "h", "h_kv", "d_h", "F", "V", "E", "k"]}
LETTERS |= {"window": BY_LETTER["W"].key, "learned": BY_LETTER["P_max"].key}
OPPOSITES = [
    tuple(pair.split("|"))
    for pair in ["plain|gated", "rms|ln", "pre|post", "bias|nobias", "tied|untied", "final|nofinal"]
]
WORDS = (*(word for pair in OPPOSITES for word in pair), "direct", "nonorm")
SPELLING = {path: letter for letter, path in LETTERS.items()}
# Other names of letters: those of the keys, and those of configs.
FIELDS = {path.rpartition(".")[2]: letter for letter, path in LETTERS.items()} | {
    name: letter
    for name, letter in {**OTHER_NAMES, "sliding_window": "window", "W": "window"}.items()
    if letter in LETTERS
}
KINDS = ("local", "global")  # the usual names of layers with and without a window
PATTERN = 'kinds of layers are --set \'pattern=["5*local", "global"],layer.local.attention.window=1024\''
_EXPRESSION = re.compile(r"[*/+^%(·×]|[\w)]-")  # characters of an expression, which no number has
_PAIR = re.compile(r"(?:^|[\s,])[A-Za-z_]+=", re.ASCII)


def looks_inline(source: str) -> bool:
    """Whether a text has a `key=value` in it."""
    return bool(_PAIR.search(source))


def read(source: str) -> tuple[Table, str, tuple[str, ...]]:  # noqa: C901 - one branch per kind of word
    """The raw description, the name that errors give it, and assumptions."""
    where = "inline description"
    faults: list[Fault | str] = []
    values: Raw = {}
    words: dict[str, bool] = {}
    expressions: dict[str, str] = {}
    for item in re.split(r"[\s,]+(?=[A-Za-z])", source.strip(" \t\n,")):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        written, key = key, FIELDS.get(key, key) if equals else key
        if key in WORDS and equals:
            faults.append(f"{key} is a word, expected without a value ({key})")
        elif key in LETTERS and not equals:
            faults.append(Fault(key, ABSENT, "a number", f"{key}=8"))
        elif key not in LETTERS and key not in WORDS:
            if key not in KINDS or not (faults and PATTERN in str(faults[-1])):  # pattern=5*local,global is one fault
                faults.append(_unknown(key))
        elif not equals:
            words[key] = True
        elif key in values or key in expressions:
            faults.append(f"{key} is given twice")
        elif _EXPRESSION.search(value):
            expressions[key] = value
        else:
            values[key] = _number(key, value, faults, written if written != "W" else key)
    rounded = _evaluate(values, expressions, faults)
    for first, second in (*OPPOSITES, *(("nonorm", word) for word in ("rms", "ln", "pre", "post", "final"))):
        if first in words and second in words:
            faults.append(f"{first} and {second} contradict each other")
    for key in ("D", "L"):
        if key not in values:
            faults.append(_missing(key, f"{key}={4096 if key == 'D' else 32}"))
    if "F" not in values:
        classic = f"F={4 * values['D']} plain is the classic block" if values.get("D") else "F=14336"
        faults.append(_missing("F", classic))
    if ("E" in values) != ("k" in values):
        absent, present = ("k", "E") if "E" in values else ("E", "k")
        faults.append(_missing(absent, f"{present} is given"))
    if values.get("E") == 0 and values.get("k") == 0:
        del values["E"], values["k"]
    if "V" not in values:
        for word in ("tied", "untied"):
            if word in words:
                faults.append(f"{word} says how V is used, and V is missing")
    if "h" not in values and values.get("D") and values["D"] % _heads(values):
        faults.append(_missing("h", f"D/{values.get('d_h') or 64} is not whole"))
    if faults:
        raise InputError(where, faults)
    raw, where, assumptions = _raw(source.strip(), values, words)
    return raw, where, (*rounded, *assumptions)


def _evaluate(values: Raw, expressions: Mapping[str, str], faults: list[Fault | str]) -> list[str]:
    """Evaluate expressions in any order, add their values, and return notes on rounded ones."""
    if not expressions:
        return []
    from txcalc.sources.expressions import WANTED, Expression, Unreadable, nearest

    waiting: dict[str, Expression] = {}
    for key, text in expressions.items():
        try:
            waiting[key] = Expression(text)
        except Unreadable as error:
            faults.append(f"{key} = {quote(text)} {error}; expected {WANTED}")
            values[key] = None
    rounded = []
    while ready := [
        key
        for key, expression in waiting.items()
        if all(values.get(FIELDS.get(name, name)) for name in expression.names)
    ]:
        key, expression = ready[0], waiting.pop(ready[0])
        try:
            exact = expression.evaluate(lambda name: values[FIELDS.get(name, name)])
        except Unreadable as error:
            faults.append(f"{key} = {expression.text} {error}")
            values[key] = None
            continue
        values[key] = _number(key, str(int(nearest(exact))), faults, key)
        if exact.denominator != 1 and values[key]:
            rounded.append(f"{key} = {expression.text} = {float(exact):,.2f}, rounded to {values[key]:,}")
    for key, expression in waiting.items():
        missing = next(name for name in expression.names if not values.get(FIELDS.get(name, name)))
        faults.append(f"{key} = {expression.text} needs {missing}, which has no value here")
        values[key] = None
    return rounded


def _heads(values: Table) -> Any:
    """The default number of heads: D/d_h, or D/64."""
    return max(1, values["D"] // (values.get("d_h") or 64))


def _raw(name: str, values: Mapping[str, int], words: Mapping[str, bool]) -> tuple[Table, str, tuple[str, ...]]:
    assumptions = []
    attention: Raw = {"bias": "bias" in words}
    if "h" in values:
        attention["n_heads"] = values["h"]
    else:
        attention["n_heads"] = _heads(values)
        ratio = f"D/{'d_h' if 'd_h' in values else 64} = " if values["D"] >= 64 else ""
        assumptions.append(f"h = {ratio}{attention['n_heads']}")
    for letter, key in (("h_kv", "n_kv_heads"), ("d_h", "d_head"), ("window", "window")):
        if letter in values:
            attention[key] = values[letter]
    if "direct" in words:
        attention |= {"direct": True, "bias": ["q", "k", "v"] if "bias" in words else []}
    vocab = values.get("V")
    ffn = {"d_ff": values.get("F"), "bias": "bias" in words}
    if words.keys() & {"gated", "plain"}:
        ffn["gated"] = "gated" in words
    raw: Raw = {
        "name": name,
        "kind": "decoder",
        "d_model": values["D"],
        "n_layers": values["L"],
        "attention": attention,
        "norm": {"form": "layer" if "ln" in words else "rms", "place": "post" if "post" in words else "pre"},
        "positions": {"form": "learned", "rows": values["learned"]} if "learned" in values else {"form": "rotary"},
        "head": {"tied": "tied" in words},
    }
    if words.keys() & {"final", "nofinal"}:
        raw["norm"]["final"] = "final" in words
    if "ln" in words:
        raw["norm"]["bias"] = "nobias" not in words
    if vocab is not None:
        raw["vocab_size"] = vocab
    if "E" in values:
        raw["experts"] = {**ffn, "n_experts": values["E"], "top_k": values["k"]}
    elif "F" in values:
        raw["feed_forward"] = ffn
    if "nonorm" in words:
        raw["norm"] = {"without": ["attention", "experts" if "E" in values else "feed_forward"], "final": False}
    return raw, "inline description", tuple(assumptions)


def _number(key: str, text: str, faults: list[Fault | str], written: str) -> int | None:
    """A whole number; `32k` is 32 × 1,024. None if faulty."""
    check: Callable[[Any], int] = layers if key == "L" else count if key in ("E", "k") else size
    try:
        return check(parse_tokens(text, written))
    except InputError:
        faults.append(Fault(written, text, "a positive whole number such as 4096 or 32k"))
    except Wrong as wrong:
        faults.append(Fault(written, text, wrong.expected))
    return None


def _missing(letter: str, why: str) -> Fault:
    number = "number of " if letter in ("L", "h", "E", "k") else ""
    return Fault(letter, ABSENT, f"the {number}{BY_LETTER[letter].meaning}", why)


def _unknown(item: str) -> str:
    if item in HINTS:
        return f"{quote(item)} is not a letter or word of a description ({HINTS[item]}: write a .toml)"
    if item in ("pattern", *KINDS):
        return f"{quote(item)} is not a letter or word of a description ({PATTERN})"
    near = [FIELDS[item]] if item in FIELDS else like(item, (*LETTERS, *WORDS))
    mend = meant(near, f"letters: {', '.join(LETTERS)}; words: {', '.join(WORDS)}")
    return f"{quote(item)} is not a letter or word of a description ({mend})"
