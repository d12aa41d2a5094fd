"""The batches and lengths for which something is proved, as a text: `all B, T ≥ 2, B < 16`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from txcalc.parts.part import Workload

LOWER_BOUNDS = re.compile(r"((?:[A-Za-z]\w*, )*[A-Za-z]\w*) ≥ (\d+)")
LIMIT = re.compile(r"([A-Za-z]\w*) (<|≤|>|≠) (\d+)")
HOLDS = {"<": int.__lt__, "≤": int.__le__, ">": int.__gt__, "≠": int.__ne__}
# Clauses of a domain that state no bound.
WORDS = {"", "all", "each part separately", "each listed leaf separately", "nothing in it is masked"}


def common(domains: Sequence[str]) -> str:
    """The domain in which all of several proofs hold: the largest lower bound of each length, and all other clauses."""
    lower: dict[str, int] = {}
    clauses: dict[str, None] = {}  # besides bounds
    for domain in domains:
        for name, bound in _bounds(domain):
            lower[name] = max(bound, lower.get(name, 0))
        clauses[LOWER_BOUNDS.sub("", domain).removeprefix("all").strip(" ,")] = None
    runs = groupby(lower, key=lower.__getitem__)
    bounds = ", ".join(f"{', '.join(names)} ≥ {bound}" for bound, names in runs)
    return ", ".join(text for text in (bounds and f"all {bounds}", *clauses) if text)


def covers(domain: str, work: Workload) -> bool:
    """Whether a domain contains a workload. A clause that is neither a bound nor one of `WORDS` contains none."""
    lengths = {"B": work.batch, "T": work.tokens, "past": work.past, "T_src": work.source}
    for name, bound in _bounds(domain):
        if name not in lengths or (lengths[name] is not None and lengths[name] < bound):
            return False
    for clause in LOWER_BOUNDS.sub("", domain).removeprefix("all").split(","):
        if clause.strip() in WORDS:
            continue
        limit = LIMIT.fullmatch(clause.strip())
        if limit is None or not HOLDS[limit[2]](lengths[limit[1]], int(limit[3])):
            return False
    return True


def everywhere(domain: str) -> bool:
    """Whether a domain leaves no batch or length out."""
    bounded = any(bound > 1 for _, bound in _bounds(domain))
    return not bounded and all(c.strip() in WORDS for c in LOWER_BOUNDS.sub("", domain).removeprefix("all").split(","))


def _bounds(domain: str) -> Iterator[tuple[str, int]]:
    """The lower bound of each length."""
    for names, bound in LOWER_BOUNDS.findall(domain):
        yield from ((name, int(bound)) for name in names.split(", "))
