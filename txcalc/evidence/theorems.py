"""Theorems: evidence for every size of a structure, inherited by every model of that structure.

`verify.prove` traces a structure's module with symbols for all of its sizes, the batch and the lengths; what it shows
is kept in `presets/theorems.json`, or by `txcalc prove` in the user's own folder. A model inherits a theorem where its
structure is the same, its sizes satisfy the theorem's conditions, and the formulas are still those that were proved:
their figures at `probe` sizes have the digest that was kept.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError
from txcalc.evidence import splits
from txcalc.evidence.structures import (
    FRAME,
    LEAF,
    Size as Size,
    Unit as Unit,
    fingerprint,
    probe as probe,
    units as units,
)
from txcalc.ledger import Ledger, walk
from txcalc.model import Model
from txcalc.parts.part import Workload
from txcalc.planning.gradients import step_flops
from txcalc.sources.presets import folder

SCHEMA = "txcalc/theorems/1"
PROVED = ("params", "flops")
APART = "its parts each by itself"


class Condition(NamedTuple):
    """A polynomial of the parameters that must not be 0 (`!=`), or be at least 0 (`>=`)."""

    polynomial: Size
    relation: str

    def holds(self, values: Mapping[str, int]) -> bool:
        value = self.polynomial.over(values)
        return bool(value != 0 if self.relation == "!=" else value >= 0)

    def __str__(self) -> str:
        return f"{self.polynomial} {'≠' if self.relation == '!=' else '≥'} 0"


class Shown(NamedTuple):
    """What was shown of one further quantity: the digest of its figures at the probe's sizes, whether it is *proved* or
    *measured*, where, and the conditions on sizes."""

    digest: str
    how: str
    where: str
    conditions: tuple[Condition, ...]


class Theorem(NamedTuple):
    """What was shown of a structure: for each proved quantity the digest of its figures at the probe's sizes; the
    batches and lengths for which it holds, and the conditions on sizes (of 2 or more each). `further` quantities have
    each their own."""

    name: str
    digests: Mapping[str, str]
    domain: str
    conditions: tuple[Condition, ...]
    further: Mapping[str, Shown] = {}


def formed(figure: str, *forms: str) -> str:
    """The name of a figure in other forms than the usual ones."""
    return ", ".join((figure, *forms))


def ledger(root: Any, batch: Any, tokens: Any, source: Any, **form: bool) -> Ledger:
    """The ledger of a unit's tree; a picture's positions are its own."""
    source = source if root.fixed is None else root.fixed
    return walk(root, Workload(batch, tokens, 0, source, **form))


FUSED, KEPT = "saved, fused attention", "saved, attention matrix kept"
PROMPT = ((0, 7),)
LATER = ((0, 7), (3, 1), (5000, 3))  # before and past the end of every window of a probe
LONG = ((0, 5000),)  # beside them where a size bounds what a token reads: a prompt longer than every bound of a probe
BOUNDS = {"window", "rate", "index_top_k", "block"}
FigureOf = tuple[Callable[[Any], Any], tuple[tuple[int, int], ...]]
FIGURES: dict[str, FigureOf] = {
    "params": (lambda entry: entry.params, PROMPT),
    "flops": (lambda entry: entry.flops, PROMPT),
    "training flops": (step_flops, PROMPT),
    "flops with cache": (lambda entry: entry.flops, LATER),
    "cache": (lambda entry: entry.cache, LATER),
    "masked flops": (lambda entry: entry.flops_masked, LATER),
    FUSED: (lambda entry: entry.saved, PROMPT),
    KEPT: (lambda entry: entry.saved, PROMPT),
}
LAST, ABSORBED = "last logits", "MLA absorbed"
FORMS = {LAST: "last_logits", ABSORBED: "absorbed"}  # of FLOPs, as a workload has them
FORMED = ("flops", "flops with cache")
FIGURES |= {formed(figure, form): FIGURES[figure] for figure in FORMED for form in FORMS}


def touched(unit: Unit, form: str) -> bool:
    """Whether a form changes what a unit computes: it has a head, or latents."""
    if form == LAST:
        return any(stack["head"]["form"] != "none" for stack in unit.spec["stacks"].values())
    return any("latent" in layer for stack in unit.spec["stacks"].values() for layer in stack["layer"].values())


def _bounded(unit: Unit) -> bool:
    """Whether figures of a short prompt do not say those of a long one."""
    return unit.listed or any(name.rpartition(".")[2].rstrip("0123456789") in BOUNDS for name in unit.values)


def digest(unit: Unit, quantity: str) -> str:
    """The figures of all leaves at the probe's sizes, by path."""
    return digests(unit, [quantity])[quantity]


def digests(unit: Unit, quantities: Iterable[str]) -> dict[str, str]:
    """The same of several."""
    root = unit.over(probe(unit))
    walked: dict[Any, Ledger] = {}
    found = {}
    for quantity in quantities:
        figure, workloads = FIGURES[quantity]
        workloads += LONG if _bounded(unit) else ()
        said = []
        for past, tokens in workloads:
            if past and unit.spec["kind"] in ("encoder", "vision"):
                continue
            form = {name: True for form, name in FORMS.items() if quantity.endswith(form)}
            form |= {"keep_scores": True} if quantity == KEPT else {}
            key = past, tokens, *form
            if key not in walked:
                later = Workload(2, tokens, past, 5, decoding=True, **form)
                walked[key] = walk(root, later) if past else ledger(root, 2, tokens, 5, **form)
            said.append([[entry.path, str(figure(entry))] for entry in walked[key]])
        found[quantity] = fingerprint(said[0] if len(workloads) == 1 else said)
    return found


def theorems_file() -> Path:
    """Where theorems are kept that come with the package."""
    return folder() / "theorems.json"


def own_file() -> Path:
    """Where the user's own are kept: `$XDG_DATA_HOME/txcalc/theorems.json`."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "txcalc" / "theorems.json"


@contextmanager
def _holding(path: Path) -> Iterator[None]:
    """What is no theorem in a file is a fault of the file."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said: list[Fault | str] = [f"holds no theorems as {SCHEMA} has them: {error!r} (delete it, or make it again)"]
        raise InputError(str(path), said) from None


class TheoremFiles(Mapping[str, Theorem]):
    """Theorems of files by the key of their structure, each of the first file that has it. A model whose structures all
    have their own asks for a few of many: each is looked up in the text. For one that has none many more are asked for:
    all entries are read at the first that is lacking."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.texts = {path: path.read_text() for path in paths if path.exists()}
        self.lacked = False

    @cached_property
    def entries(self) -> dict[str, tuple[Path, Any]]:
        """All of them, as they are written."""
        found: dict[str, tuple[Path, Any]] = {}
        for path, text in self.texts.items():
            with _holding(path):
                found |= {key: (path, one) for key, one in json.loads(text)["theorems"].items() if key not in found}
        return found

    def __getitem__(self, key: str) -> Theorem:
        path, entry = self.entries[key] if self.lacked else self._looked_up(key)
        with _holding(path):
            return _theorem(entry)

    def _looked_up(self, key: str) -> tuple[Path, Any]:
        for path, text in self.texts.items():
            named = f'"{key}": '
            if (at := text.find(named + "{")) >= 0:
                with _holding(path):
                    return path, json.JSONDecoder().raw_decode(text, at + len(named))[0]
        self.lacked = True
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@cache
def theorems() -> Mapping[str, Theorem]:
    """The user's own, whose faults are found at once, and those that come with the package."""
    own = own_file()
    return TheoremFiles([theorems_file(), *([own] if read(own) else [])])


def read(path: Path) -> dict[str, Theorem]:
    """The theorems of a file, which need not be there. Errors: `InputError` for one that holds something else."""
    with _holding(path):
        entries = json.loads(path.read_text())["theorems"] if path.exists() else {}
        return {key: _theorem(entry) for key, entry in entries.items()}


def _theorem(entry: Mapping[str, Any]) -> Theorem:
    further = {quantity: _shown(said) for quantity, said in entry.get("further", {}).items()}
    if unknown := {*entry["digests"], *further} - set(FIGURES):
        raise ValueError(f"a proof of {sorted(unknown)}")
    digests = {quantity: str(mark) for quantity, mark in entry["digests"].items()}
    return Theorem(str(entry["name"]), digests, str(entry["domain"]), _conditions(entry["conditions"]), further)


def _shown(entry: Mapping[str, Any]) -> Shown:
    if entry["how"] not in ("proved", "measured"):
        raise ValueError(f"known how: {entry['how']!r}")
    return Shown(str(entry["digest"]), entry["how"], str(entry["where"]), _conditions(entry.get("conditions", ())))


def _conditions(said: Any) -> tuple[Condition, ...]:
    conditions = []
    for terms, relation in said:
        if relation not in ("!=", ">="):
            raise ValueError(f"a condition of {relation!r}")
        conditions.append(Condition(Size(tuple((int(n), tuple(map(str, f))) for n, f in terms)), relation))
    return tuple(conditions)


def write(path: Path, found: Mapping[str, Theorem], made: Mapping[str, str]) -> None:
    """Keeps theorems, those that the file has beside them."""
    kept = {**read(path), **found}
    content = {"schema": SCHEMA, "made_with": dict(made), "theorems": {key: _json(kept[key]) for key in sorted(kept)}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    theorems.cache_clear()


def _json(theorem: Theorem) -> dict[str, Any]:
    further = {
        quantity: {key: value for key, value in _listed(shown).items() if value != []}
        for quantity, shown in theorem.further.items()
    }
    said = _listed(theorem)
    return {**said, "further": further} if further else {key: said[key] for key in said if key != "further"}


def _listed(entry: Theorem | Shown) -> dict[str, Any]:
    conditions = [[[[n, list(f)] for n, f in c.polynomial.terms], c.relation] for c in entry.conditions]
    return {**entry._asdict(), "conditions": conditions}


def inherited(model: Model, quantity: str) -> tuple[str, str] | None:
    """Whether a quantity of the model is *proved* or *measured* by theorems, and for which batches and lengths or
    sizes; None where one is lacking."""
    return inheritance(model).get(quantity)


def inheritance(model: Model) -> dict[str, tuple[str, str]]:
    """The same of every quantity for which all of the model's structures have a theorem that holds."""
    said = []
    for unit in units(model):
        if not (own := _own(unit, FIGURES)[0] or _borne(unit)):
            return {}
        for figure, forms in product(FORMED, ((LAST,), (ABSORBED,), (LAST, ABSORBED))):
            if (same := formed(figure, *(form for form in forms if touched(unit, form)))) in own:
                own[formed(figure, *forms)] = own[same]
        said.append(own)
    shared = [quantity for quantity in said[0] if all(quantity in own for own in said)] if said else []
    return {quantity: weakest([own[quantity] for own in said]) for quantity in shared}


def _own(unit: Unit, quantities: Container[str] = PROVED) -> tuple[dict[str, Shown], str]:
    """What its own theorem shows of these quantities, `PROVED` among them; or why it shows nothing."""
    theorem = theorems().get(unit.key)
    if theorem is None:
        return {}, "it has no theorem yet"
    if failed := [str(condition) for condition in theorem.conditions if not condition.holds(unit.values)]:
        return {}, f"its sizes are outside the theorem's: {', '.join(failed)}"
    proved = {
        q: Shown(mark, "proved", theorem.domain if q != "params" else "", ()) for q, mark in theorem.digests.items()
    }
    shown = proved | {q: one for q, one in theorem.further.items() if q in quantities}
    now = digests(unit, shown)
    same = {q: one for q, one in shown.items() if one.digest == now[q]}
    if not proved.keys() <= same.keys():
        return {}, "its formulas are not those that were proved"
    return {q: one for q, one in same.items() if all(each.holds(unit.values) for each in one.conditions)}, ""


def _borne(unit: Unit) -> dict[str, Shown]:
    """What the theorems of smaller structures show."""
    structures, kept = bearing(unit), theorems()
    apart = [one for one in structures if not one.listed]
    domain = _common([kept[one.key].domain for one in apart or structures]) + f", {APART}" * bool(apart)
    return {q: Shown("", "proved", domain if q != "params" else "", ()) for q in PROVED if structures}


def weakest(said: list[Shown]) -> tuple[str, str]:
    """The weakest of several pieces of evidence, and its domain: of measurements, that at the fewest sizes."""
    measured = [shown.where for shown in said if shown.how == "measured"]
    if measured:
        return "measured", min(measured, key=lambda where: [int(number) for number in re.findall(r"\d+", where)])
    return "proved", _common([shown.where for shown in said])


BOUND = re.compile(r"((?:[A-Za-z]\w*, )*[A-Za-z]\w*) ≥ (\d+)")


def _common(domains: Sequence[str]) -> str:
    """Where all of several proofs hold: for each length from the largest bound on, with whatever else they say."""
    least: dict[str, int] = {}
    further: dict[str, None] = {}
    for domain in domains:
        for names, bound in BOUND.findall(domain):
            least |= {name: max(int(bound), least.get(name, 0)) for name in names.split(", ")}
        further[BOUND.sub("", domain).removeprefix("all").strip(" ,")] = None
    runs = groupby(least, key=least.__getitem__)
    bounds = ", ".join(f"{', '.join(names)} ≥ {bound}" for bound, names in runs)
    return ", ".join(said for said in (bounds and f"all {bounds}", *further) if said)


def obstacle(unit: Unit) -> str:
    """Why a structure at its sizes has no theorem to inherit; "" where it has."""
    return _own(unit)[1]


def bearing(unit: Unit) -> list[Unit]:
    """The structures whose theorems say its parameters and FLOPs: itself, or smaller ones that it is the sum of; []
    where one is lacking."""
    if not obstacle(unit):
        return [unit]
    for found in splits.others(unit, theorems()):
        if not any(map(obstacle, found)) and _figures(unit, probe(unit)) == _figures(found[0], probe(unit)):
            return found
    pieces = splits.smaller(unit)
    parts = [bearing(piece.unit) for piece in pieces]
    borne = pieces and all(parts) and _adds_up(unit, [piece.unit.key for piece in pieces])
    return [each for part in parts for each in part] if borne else []


def _adds_up(unit: Unit, keys: list[str]) -> bool:
    """Whether at the probe's sizes the leaves of smaller structures are a structure's own, with their figures."""
    probed = unit._replace(values=probe(unit))
    pieces = splits.smaller(probed)
    if [piece.unit.key for piece in pieces] != keys:
        return False
    if unit.listed:
        (piece,), said = pieces, probed.plain[LEAF]
        return all(
            _figures(probed, probed.values, 2, tokens, 5)
            == _figures(piece.unit, piece.unit.values, *splits.where(said, 2, tokens, 5))
            for tokens in (1, 7, 5000)
        )
    return all(_sums(probed, pieces, tokens) for tokens in ((7, 5000) if _bounded(unit) else (7,)))


def _sums(probed: Unit, pieces: Sequence[splits.Component], tokens: int) -> bool:
    """Whether the leaves of smaller structures are its own, with their figures, at a length."""
    fixed = probed.over(probed.values).fixed
    own, found = _figures(probed, probed.values, tokens=tokens), dict[str, tuple[Any, Any]]()
    if probed.name == FRAME:  # its feed-forward is not the model's
        own = {path: figures for path, figures in own.items() if not path.startswith("layers.")}
    for part, layer, alone in pieces:
        for path, figures in _figures(part, part.values, tokens=tokens if fixed is None else fixed).items():
            inner = path.startswith("layers.0.")
            if inner and layer is None:
                continue
            name = path.replace("layers.0.", f"layers.{layer}.", 1) if inner else alone or path
            if found.setdefault(name, figures) != figures:
                return False
    return own == found


def _figures(
    unit: Unit, values: Mapping[str, int], batch: int = 2, tokens: int = 7, source: int = 5
) -> dict[str, tuple[Any, Any]]:
    """Parameters and FLOPs of each leaf."""
    entries = ledger(unit.over(values), batch, tokens, source)
    return {entry.path: (entry.params, entry.flops) for entry in entries}


def missing(unit: Unit) -> list[Unit]:
    """The smallest structures that lack a theorem of those that it is the sum of."""
    if bearing(unit):
        return []
    pieces = splits.smaller(unit)
    if pieces and _adds_up(unit, [piece.unit.key for piece in pieces]):
        return [each for piece in pieces for each in missing(piece.unit)]
    if (instead := splits.usual(unit)) and _figures(unit, probe(unit)) == _figures(instead[0], probe(unit)):
        return [each for each in instead if obstacle(each)]
    return [unit]
