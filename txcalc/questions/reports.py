"""The interactive page of models and plans: `report`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from txcalc.errors import Fault, InputError, TxcalcError
from txcalc.questions.arguments import checked, length, lengths, maybe, names, several_texts
from txcalc.questions.options import Length, Lengths, Names
from txcalc.questions.verify import Progress as Tell, no_progress as silent
from txcalc.sources import load
from txcalc.sources.files import write

if TYPE_CHECKING:
    from txcalc.model import Model
    from txcalc.render.page.plans import PageGrid
    from txcalc.sources import Source

RUNS = 6  # layouts of a search that the page has


class Page(NamedTuple):
    """An interactive page as one HTML file."""

    html: str
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<txcalc.report: a page of {len(self.html.encode()):,} bytes>"

    @checked
    def save(self, place: str | Path, *, force: bool = False) -> Path:
        """Writes it. Errors: `InputError` for a file that exists (unless `force`) or cannot be written."""
        write(Path(place), self.html, force)
        return Path(place)


def report(
    *sources: Source,
    gpu: str | Sequence[str] = (),
    contexts: Lengths | None = None,
    concurrency: Lengths | None = None,
    weights: Names | None = None,
    kv: Names | None = None,
    train: str | Sequence[str] = (),
    layouts: str | Sequence[str] = (),
    tokens: Length | None = None,
    global_batch: Length | None = None,
    title: str | None = None,
    changes: Mapping[str, Any] | None = None,
    ignore: Sequence[str] = (),
    command: str = "txcalc.report",
    tell: Tell = silent,
) -> Page:
    """One self-contained HTML file that explains models side by side: sliders for their sizes, parts, formulas and
    theorems.

    `gpu` (NAME, NAME:N@PRICE) plans serving at every point of `contexts` (2k, 8k, 32k, 128k) × `concurrency` (1, 8, 32,
    128, 512) × `weights` (native) × `kv` (bf16, fp8); `train` (NAME:N@PRICE) plans training with `layouts`, by default
    the fastest that fits. Where none fits, the one of the least estimated memory is shown; `notes` say so, and name
    models without a layout. `command` is shown as the command that made the page.
    Errors: `InputError` (also for more models or points than a page has place for), `UnknownName`, `MissingExtra`.

    >>> import txcalc
    >>> len(txcalc.report("gpt2").html) < 1_500_000
    True
    """
    from txcalc.explorer import explore
    from txcalc.planning.serving.deployment import check
    from txcalc.render.page import checked, page
    from txcalc.render.page.plans import CONTEXTS, USERS, PageGrid

    checked(len(sources))
    if not sources:
        raise InputError("report", ["expected models"])
    serving = {"--context": contexts, "--concurrency": concurrency, "--weights": weights, "--kv": kv}
    trained = {"--layout": None if layouts == () else layouts, "--tokens": tokens, "--global-batch": global_batch}
    gpus, runs, ways = (
        [] if said == () else several_texts(name, said)
        for name, said in (("gpu", gpu), ("train", train), ("layouts", layouts))
    )
    kinds = (("serving (add --gpu NAME)", gpus, serving), ("training (add --train NAME:N)", runs, trained))
    if faults := [
        f"{flag} is of a plan of {what}"
        for what, planned, given in kinds
        for flag, value in given.items()
        if value is not None and not planned
    ]:
        raise InputError("options", faults)
    models = [load(source, changes, ignore=ignore) for source in sources]
    sizes = [
        usual if asked is None else tuple(sorted(lengths(asked, flag)))
        for asked, flag, usual in ((contexts, "--context", CONTEXTS), (concurrency, "--concurrency", USERS))
    ]
    formats = [
        usual if said is None else tuple(dict.fromkeys(names(said)))
        for said, usual in ((weights, ("native",)), (kv, ("bf16", "fp8")))
    ]
    if empty := [flag for flag, made in zip(serving, (*sizes, *formats), strict=True) if not made]:
        raise InputError("options", [Fault(flag, serving[flag], "one or more") for flag in empty])
    for n in (0, -1):
        check(sizes[0][n], sizes[1][n], None, {})
    wanted = PageGrid(formats[0], formats[1], *sizes)
    serve = _serving(models, gpus, [wanted.of(model) for model in models], tell)
    number, batch = maybe(tokens, "--tokens", length), maybe(global_batch, "--global-batch", length)
    notes: list[str] = []
    plans = [plan for text in runs for plan in _training(models, text, ways, number, batch, notes)]
    set_ = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (changes or {}).items()}
    said = "".join(f" --set {shlex.quote(f'{key}={value}')}" for key, value in set_.items())
    said += "".join(f" --ignore {shlex.quote(key)}" for key in ignore)
    called = [source if isinstance(source, str) else model.name for source, model in zip(sources, models, strict=True)]
    explorers = [(shlex.quote(name) + said, explore(model)) for name, model in zip(called, models, strict=True)]
    text = page(explorers, serve, plans, title or ", ".join(model.name for model in models), command)
    return Page(text, tuple(notes))


def _serving(
    models: Sequence[Model], gpus: Sequence[str], grids: Sequence[PageGrid], tell: Tell
) -> list[dict[str, Any]]:
    """The plans of every model on every kind of GPU."""
    from txcalc import hardware
    from txcalc.planning.serving.speed import check_budget
    from txcalc.questions.phrases import priced
    from txcalc.render.page.plans import checked, serving

    wanted = [priced(text) for text in gpus]
    for _, _, price in wanted:
        check_budget(price)
    kinds = [hardware.load(name) for name, _, _ in wanted]
    checked([grid for grid in grids for _ in wanted])

    def plans() -> Iterator[dict[str, Any]]:
        for i, model in enumerate(models):
            for kind, (_, number, price) in zip(kinds, wanted, strict=True):
                tell(f"{model.name} on {kind.name}", i / len(models))
                yield serving(i, model, kind, number, price, grids[i])

    return list(plans())


def _training(
    models: Sequence[Model],
    text: str,
    layouts: Sequence[str],
    tokens: int | None,
    batch: int | None,
    notes: list[str],
) -> list[dict[str, Any]]:
    """Training runs of every model on a kind of GPU, with the given layouts or the fastest that fits; where none fits,
    with the one of the least estimated memory, which `notes` say, and why other models have no layout.

    Errors: `TxcalcError` where no model has one.
    """
    from txcalc import hardware
    from txcalc.planning.layout import parse_layout
    from txcalc.planning.serving.speed import check_budget
    from txcalc.planning.training.answer import train as answer
    from txcalc.planning.training.machine import Machine
    from txcalc.planning.training.resolve import resolve_recipe, search_layouts, sequence_length
    from txcalc.questions.phrases import priced
    from txcalc.render.page.plans import training

    name, number, price = priced(text, "--train")
    check_budget(price)
    machine = Machine.of(hardware.load(name))
    found, refused = [], []
    for i, model in enumerate(models):
        each = sequence_length(model, tokens)
        try:
            if layouts:
                recipes = [resolve_recipe(parse_layout(text), number, batch, each, {}, "--train") for text in layouts]
            else:
                searched = search_layouts(model, machine, number, batch, each, {})
                notes += [f"{model.name}: {searched.refused}"] if searched.refused else []
                recipes = [one.recipe for one in searched.best[: 1 if searched.refused else RUNS]]
            found.append(training(i, [answer(model, recipe, machine) for recipe in recipes], price))
        except TxcalcError as error:
            refused.append((model.name, error))
    if not found:
        raise refused[0][1]
    notes += [f"no training view of {model}: {error}" for model, error in refused]
    return found
