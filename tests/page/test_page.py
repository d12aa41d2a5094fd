"""The page of `txcalc report`: what it refuses, and in a browser every number beside the library's.

The browser's tests need Playwright and a Chromium (`apt install chromium`), and are skipped where one is missing.
"""

from __future__ import annotations

import csv
import json
import math
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from command import Command
from evidence_of import inherited
from paths import ROOT, TESTS
from test_explorer import KINDS, settings, workload

import txcalc
from txcalc import hardware
from txcalc.evidence import theorems
from txcalc.evidence.known import Evidence, all_known
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.planning.conventions import rules_of_thumb
from txcalc.planning.crossover import crossovers, ends, lengths
from txcalc.planning.layout import parse_layout
from txcalc.planning.machine import Machine
from txcalc.planning.memory import cache_bytes, learning, saved_bytes, training_state, weights_bytes
from txcalc.planning.training import training_flops
from txcalc.planning.training.answer import Terms, run as whole_run, train as answer
from txcalc.planning.training.search import resolve_recipe
from txcalc.questions import page as plans
from txcalc.questions.explorer import Explorer, explore
from txcalc.questions.page import KNOWN, MOST_BYTES, MOST_EVENTS, MOST_MODELS, POINT_BYTES, PROMPTS, PageModel, on_page
from txcalc.render.page import exact
from txcalc.sources import build, spec
from txcalc.units import bits_of

VIEWS = ("learn", "compare", "serve", "train")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


run = Command("report", columns=100)


def make_page(place: Path, *argv: str) -> Path:
    result = run(*argv, "-o", str(place))
    assert result.exit_code == 0, result.output
    return place


# The command.


def test_what_is_proved_of_some_lengths_alone_is_not_proved_on_the_page() -> None:
    """Its batch and tokens may be any: Gemma 2's training step is proved for B and T of 2 or more."""
    gemma = txcalc.load("gemma-2-9b")
    assert all_known(gemma, KNOWN)["training"] == Evidence("proved", "all B, T ≥ 2")
    page = PageModel.of("gemma-2-9b", explore(gemma))
    assert page.known["training"].how == "modelled" and page.known["flops"].how == "proved"
    assert not any("training flops" in domain.extra_theorems for domain in explore(gemma).domains)


def test_two_sources_make_one_small_file(tmp_path: Path) -> None:
    place = make_page(tmp_path / "plan.html", "gpt2", "D=512 h=8 F=1376 L=1 V=1000", "--title", "A <b>plan</b>")
    text = place.read_text()
    assert len(text.encode()) <= MOST_BYTES
    assert "<title>A &lt;b&gt;plan&lt;/b&gt;</title>" in text
    stored = re.findall(r'id="data">(.*?)</script>', text)[0]
    assert all(f"<p>{model['summary'][0]}</p>" in text for model in json.loads(stored)["models"])
    assert 10**6 < max(map(int, re.findall(r"[:,\[](\d+)(?=[,\]}])", stored))) <= 2**53  # JavaScript rounds larger ones
    assert exact({"a": [2**53, -(2**53) - 1]}) == {"a": [9007199254740992, "-9007199254740993"]}
    assert "<b>plan" not in text
    assert not re.search(r"""<(script|link|img|iframe)[^>]+(src|href)=["'](?!data:)""", text)
    assert "Apache License" in text and "Copyright (c) 2017, Baidu Inc." in text  # licences are kept


def test_a_page_that_is_too_large_is_refused_before_plans_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "serving_plans", lambda *_: pytest.fail("computed"))
    argv = ("gpt2", "--gpu", "h100:1", "--context", "1k", "--weights", "bf16,fp8", "-o", "-")
    page = run("gpt2", "-o", "-").stdout
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n")
    assert f"models is 50, expected at most {MOST_MODELS} in one page" in run(*["gpt2"] * 50, "-o", "-").stderr
    points = 2 * 2 * len(PROMPTS) * len(plans.USERS)
    too_many = f"have {points} points, a page holds "
    for room, message in ((-1, "would have more than"), (points * POINT_BYTES - 1, too_many)):
        monkeypatch.setattr(plans, "MOST_BYTES", len(page.encode()) + room)
        refused = run(*argv)
        assert refused.exit_code == 2 and message in refused.output


def test_the_same_command_makes_the_same_page(tmp_path: Path) -> None:
    for where in "ab":
        (tmp_path / where).mkdir()
    pages = [make_page(tmp_path / where / "p.html", "gpt2") for where in "ab"]
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    place = tmp_path / "plan.html"
    place.write_text("mine")
    result = run("gpt2", "-o", str(place))
    assert result.exit_code == 2
    assert "exists already (--force overwrites it)" in result.output
    assert place.read_text() == "mine"
    make_page(place, "gpt2", "--force")
    assert place.read_text() != "mine"


def test_a_context_beyond_the_models_is_noted() -> None:
    page = txcalc.report(["gpt2", "llama-3.1-8b"], gpu="h100:1", context="1k,8k", concurrency=1)
    assert page.notes == (
        "gpt2 was made for 1,024 tokens: its serving plans have contexts of at most 1,024, not 8,192",
    )
    assert not txcalc.report("gpt2", gpu="h100:1", concurrency=1).notes


def test_no_name_is_declared_twice() -> None:
    """The scripts of a page are one block, in which a second declaration stops all of them."""
    folder = ROOT / "txcalc" / "render" / "page" / "app"
    text = "\n".join(file.read_text() for file in sorted(folder.glob("*.js")))
    names = Counter(re.findall(r"^(?:const|let|class|function) (\w+)", text, re.M))
    assert len(names) > 100 and [name for name, number in names.items() if number > 1] == []


# In a browser.


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser's tests")
    if CHROMIUM is None:
        pytest.skip("no chromium is installed: no browser's tests")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_page(tmp_path_factory.mktemp("page") / "models.html", *KINDS.values())


CONTEXTS, USERS, KVS = (2048, 8192, 32768), (1, 16, 64, 256), ("bf16", "fp8")
PLANNED, GPUS = ("llama-3.1-8b", "mixtral-8x7b"), ("h100-sxm:2@2.5", "rtx-4090:1")
LAYOUTS = ("tp=2,pp=4,dp=8", "fsdp=64", "tp=8,sp=8,fsdp=8", "pp=8,dp=8", "tp=4,dp=16", "pp=2,vpp=4,dp=32")


def grid(contexts: Sequence[int], users: Sequence[int], gpus: Sequence[str]) -> list[str]:
    """Options of a page that plans serving."""
    options = {"--context": contexts, "--concurrency": users, "--kv": KVS}
    words = [word for name, values in options.items() for word in (name, ",".join(map(str, values)))]
    return [*words, *(word for gpu in gpus for word in ("--gpu", gpu))]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("page") / "plan.html"
    runs = [word for layout in LAYOUTS for word in ("--layout", layout)]
    return make_page(place, *PLANNED, *grid(CONTEXTS, USERS, GPUS), "--train", "h100-sxm:64", *runs)


class Tab:
    """An opened page; leaving it fails where the console said something or something was to be fetched."""

    def __init__(self, browser: Any, file: Path, fragment: str = "", **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.messages: list[str] = []
        self.requested_urls: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requested_urls.append(request.url))
        self.page.goto(f"{file.as_uri()}#{fragment}")

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, failed: Any, *_: Any) -> None:
        self.context.close()
        if failed is None:
            assert self.messages == []
            assert [url for url in self.requested_urls if not url.startswith(("file:", "data:", "blob:"))] == []


# What a view shows at each of many states, without drawing it: its numbers with their texts, the evidence beside them.
READ = (TESTS / "page" / "read.js").read_text("utf-8")


def read(page: Any, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the page shows at each of these states."""
    return json.loads(page.evaluate(READ, states))


SCALES = {
    **{name: Fraction(1000 ** (i + 1)) for i, name in enumerate("KMBTPEZY")},
    **{f"{name}iB": Fraction(1024 ** (i + 1)) for i, name in enumerate("KMGTPEZY")},
    **{name: Fraction(1, 1000**i) for i, name in enumerate(("s", "ms", "µs", "ns"))},
    "": Fraction(1),
    "%": Fraction(1, 100),
    "days": Fraction(86400),
    "h": Fraction(3600),
    "min": Fraction(60),
}
_SAID = re.compile(r"([+−-]?)([\d,]+)(?:\.(\d+))?(?:e(-\d+))?(?: (\S+))?")


@lru_cache(2**16)
def is_rounded(text: str, number: Fraction) -> bool:
    """Whether a text says a number, rounded to the last of its digits (B: billions, or bytes)."""
    if text == "exact":
        return number == 0
    sign, digits, decimals, power, unit = _SAID.fullmatch(text).groups("")  # type: ignore[union-attr]
    denominator = 10 ** len(decimals)  # in the last of its digits
    value, half = Fraction(int(f"{digits}{decimals}".replace(",", "")), denominator), Fraction(1, 2 * denominator)
    value = -value if sign in ("−", "-") else value
    scales = {SCALES[unit] * Fraction(10) ** int(power or 0), *([Fraction(1)] if unit == "B" else [])}
    return any(abs(value * scale - number) <= half * scale + abs(number) / 10**12 for scale in scales)


def changed(explorer: Explorer, chosen: dict[str, int]) -> tuple[Model, dict[str, Any]] | None:
    """The library's model and workload at these sliders; None where it refuses them."""
    was = explorer.model
    try:
        raw = spec.change_keys(was.raw, explorer.changes(chosen))
        raw.pop("params", None)  # stated of the unchanged sizes
        model = build(raw, was.origin, was.assumptions, was.notes)
    except txcalc.InputError:
        return None
    return model, workload(explorer, chosen)


DTYPES = ("fp32", "bf16", "fp8", "int4")
PEAKS = [gpu.peaks["bf16"] for gpu in map(hardware.load, hardware.names()) if "bf16" in gpu.peaks]
TOKENS = [n * 10**power for power in range(8, 15) for n in (1, 2, 5)]
# Of the controls beside the sizes: how many places each has.
CONTROLS = {"dtype": 4, "held": 4, "amount": len(TOKENS), "chip": len(PEAKS), "number": 16, "mfu": 100, "hourly": 80}


def figures(model: Model, ledger: Ledger, dtype: str, cache_dtype: str) -> dict[str, int]:
    """The library's numbers by the names that they have on the page, but those over other lengths."""
    params, cache, batch = ledger.total("params"), ledger.total("cache"), ledger.work.batch
    numbers = {
        **{name: ledger.total(name) for name in ("params", "active", "flops", "flops_masked", "saved")},
        "training": training_flops(ledger),
        "weights_bytes": 2 * params,
        "cache_bytes": 2 * cache,
        "cache_growth_bytes": 2 * ledger.cache_terms.growth,
    }
    shares = training_state(params, learning(ledger))
    numbers |= {f"memory {share.name}": share.bytes for share in shares}
    numbers |= {
        "memory weights": weights_bytes(Ledger(ledger.entries, ledger.work, (bits_of(dtype),) * 3)),
        "memory cache": cache_bytes(Ledger(ledger.entries, ledger.work, (bits_of(cache_dtype),) * 3)),
        "memory state": sum(share.bytes for share in shares),
        "memory saved": saved_bytes(ledger),
    }
    numbers["memory caches"] = batch * numbers["memory cache"]
    for quantity in ("params", "flops", "cache"):
        numbers |= {f"{quantity} {i}": getattr(entry, quantity) for i, entry in enumerate(ledger)}
    tokens = batch * ledger.work.tokens
    for rule in rules_of_thumb(model, ledger):
        numbers[f"rule {rule.formula} gives"] = rule.gives
        numbers[f"rule {rule.formula} exact"] = rule.truth * (tokens if rule.formula in ("2·N", "6·N") else 1)
    return numbers


def reals(model: Model, ledger: Ledger, parts: str, at: dict[str, int]) -> dict[str, float]:
    """The library's numbers that are no whole ones."""
    whole, numbers = ledger.total(parts), {}
    for i, entry in enumerate(ledger):
        if getattr(entry, parts):
            numbers[f"share {i}"] = getattr(entry, parts) / whole
    for rule in rules_of_thumb(model, ledger):
        if rule.truth:
            numbers[f"rule {rule.formula} error"] = float(Fraction(rule.gives) / Fraction(rule.truth) - 1)
    flops_per_token = training_flops(ledger) / ledger.work.positions
    speed, terms = PEAKS[at["chip"]] * (at["mfu"] + 1) / 100 / flops_per_token, Terms(price=(at["hourly"] + 1) / 4)
    spent = whole_run(model, TOKENS[at["amount"]], speed, 2 ** at["number"], 1, terms)
    return {**numbers, "run days": spent.days, "run hours": spent.gpu_hours, "run cost": spent.cost or 0.0}


GROUPS = {
    "scores and values": ("attention_core",),
    "attention projections": ("attention",),
    "feed-forward": ("feed_forward", "experts", "shared_experts", "router"),
    "recurrent": ("recurrent",),
    "head": ("head",),
}


def along(model: Model, work: dict[str, Any], name: str) -> Fraction:
    """A number of a curve: the cache, or a group's FLOPs per token, at another length."""
    what, _, tokens = name.rpartition(" at ")
    what, _, dense = what.partition(", ")
    ledger = model.ledger(**{**work, "batch": 1, "tokens": int(tokens)})
    if what == "cache":
        return Fraction(2 * ledger.total("cache"))
    windows = any(ends(model)) and not dense
    kinds = ledger.by_kind("flops_masked" if windows else "flops")
    return Fraction(sum(kinds.get(kind, 0) for kind in GROUPS[what]), int(tokens))


def overtaking(model: Model, work: dict[str, Any]) -> dict[str, int]:
    """Where attention overtakes the rest."""
    fixed: dict[str, Any] = {"source": work["source"]} if work.get("source") is not None else {}
    crossings = [] if model.fixed_length else crossovers(lengths(model, **fixed))
    return {f"crossover {row.rule.name} {row.attention}": row.tokens for row in crossings if row.tokens}


# What a figure is known by, where that is another quantity; the other rows of memory are of parameters.
BEHIND = {
    "weights_bytes": "params",
    "memory saved": "saved",
    **dict.fromkeys(("cache_bytes", "cache_growth_bytes", "memory cache", "memory caches"), "cache"),
}


def check(source: str, index: int, page: Any, number: int, thorough: int) -> int:
    """Compares the page with the library at random settings of all that Learn has, until so many are answered and not
    refused; some with every curve."""
    explorer, draw = explore(txcalc.load(source)), random.Random(index)
    states: list[Any] = []
    models: list[Any] = []  # the library's
    for i, chosen in enumerate([{}, *settings(explorer, 2 * number, seed=7)]):
        if sum(changed_model is not None for changed_model in models) == number:
            break
        models.append(changed(explorer, chosen))
        choices = [chosen if j == index else {} for j in range(len(KINDS))]
        at = {name: draw.randrange(places) for name, places in CONTROLS.items()}
        states.append({"model": index, "chosen": choices, "parts": ("params", "flops", "cache")[i % 3], "at": at})
    answered = 0
    for i, (state, changed_model, got) in enumerate(zip(states, models, read(page, states), strict=True)):
        chosen, at, parts = state["chosen"][index], state["at"], state["parts"]
        assert got["refused"] == (changed_model is None), chosen
        if changed_model is None:
            continue
        model, work = changed_model
        ledger = model.ledger(**work)
        shown = {name: int(value) for name, value, _ in got["figures"]}
        halves = {name: (value, text) for name, value, text in got["real"] if " at " in name}  # no whole numbers
        curves = [name for name in (*shown, *halves) if " at " in name]
        some = curves[:: 1 + len(curves) // 20] if i < thorough else draw.sample(curves, min(2, len(curves)))
        true = figures(model, ledger, DTYPES[at["dtype"]], DTYPES[at["held"]])
        for name in some:
            point = along(model, work, name)
            if point.denominator == 1:
                true[name] = int(point)
            else:
                quotient, text = halves[name]
                assert float(quotient) == float(point) and is_rounded(text, point), (chosen, name)
        if i < thorough:
            crossed = overtaking(model, work)
            assert crossed == {name: shown[name] for name in shown if name.startswith("crossover ")}, chosen
        for name, value in shown.items():
            if name in true or (name not in curves and not name.startswith("crossover ")):
                assert value == true[name], (chosen, name)
        assert {"params", "flops", "training", "saved"} <= shown.keys()
        per = dict.fromkeys(("rule 2·N exact", "rule 6·N exact"), ledger.work.batch * ledger.work.tokens)
        for name, _, text in got["figures"]:
            exact = text == f"{shown[name]:,}"
            assert exact or is_rounded(text, Fraction(shown[name], per.get(name, 1))), (chosen, name, text)
        others = [row for row in got["real"] if row[0] not in halves]
        check_reals(others, reals(model, ledger, parts, at), lambda name: 1e-12)
        for worked in got["worked"] if i < 20 else ():
            left, _, right = worked.rpartition(" = ")
            assert arithmetic(left) == int(right.replace(",", "")), worked
        if i % 10 == 0:
            whole = not any(map(theorems.obstacle, theorems.units(model)))
            assert got["proved"] == whole, chosen
            by_parts = not whole and inherited(model, "params")  # which the page does not follow
            badges = {name: on_page(shown_as) for name, shown_as in all_known(model, KNOWN).items()}
            for name, badge in () if by_parts else got["badges"]:
                quantity = BEHIND.get(name, "params" if name.startswith("memory ") else name)
                in_bytes = name.startswith("memory ") or name.endswith("_bytes")
                evidence = None if name.startswith("run ") else badges[quantity]
                how = "modelled" if evidence is None else evidence.in_bytes.how if in_bytes else evidence.how
                assert badge == how, (chosen, name)
        answered += 1
    return answered


def check_reals(shown: list[Any], true: dict[str, float], loose: Callable[[str], float]) -> None:
    """Numbers that are no whole ones, and what is written of them; `loose` where floats are summed in another order."""
    assert {name for name, _, _ in shown} == true.keys()
    for name, value, text in shown:
        assert float(value) == pytest.approx(true[name], rel=loose(name), abs=loose(name)), name
        assert is_rounded(text, Fraction(float(value))), (name, text)


def arithmetic(text: str) -> Any:
    """A worked formula's value."""
    signs = {"·": "*", "−": "-", "²": "**2", "³": "**3", "^": "**", "⌈log₂ ": "log(", "⌈": "ceil(", "⌉": ")"}
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    for sign, written in signs.items():
        plain = plain.replace(sign, written)
    helpers = {"F": Fraction, "ceil": math.ceil, "min": min, "log": lambda n: (int(n) - 1).bit_length()}
    return eval(re.sub(r"\d+", r"F(\g<0>)", plain), helpers)


@pytest.mark.browser
@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_a_model_is_the_librarys(
    kind: str, browser: Any, file: Path, pytestconfig: pytest.Config
) -> None:
    with Tab(browser, file) as page:
        number = 100 if not pytestconfig.option.every_case else 150 if kind in ("audio", "vision") else 500
        assert check(KINDS[kind], [*KINDS].index(kind), page, number, 5) == number


DRAWN = (TESTS / "page" / "drawn.js").read_text("utf-8")


@pytest.mark.browser
def test_what_is_drawn_is_what_is_read(browser: Any, file: Path, planned: Path, pytestconfig: pytest.Config) -> None:
    most = 9 if pytestconfig.option.every_case else 1
    for place, view, number in ((file, "learn", 9), (file, "compare", 1), (planned, "serve", 4), (planned, "train", 2)):
        with Tab(browser, place) as page:
            for i in random.Random(pytestconfig.option.seed).sample(range(number), min(number, most)):
                drawn, table = page.evaluate(DRAWN, {"view": view, "model": i, "serve": i % 4, "train": i % 2})
                assert drawn == table and table


@pytest.mark.browser
def test_a_page_that_is_tampered_with_is_noticed(browser: Any, file: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.html"
    spoilt.write_text(file.read_text().replace("return[", "return[1n+", 1))
    context = browser.new_context()
    page = context.new_page()
    page.goto(spoilt.as_uri())
    assert page.evaluate("typeof window.txcalc") == "undefined"  # the policy names the digest of every script
    context.close()


@pytest.mark.browser
@pytest.mark.nightly
def test_the_first_paint_takes_less_than_a_second(browser: Any, file: Path) -> None:
    paints = []
    for _ in range(3):  # other tests may run beside this one
        with Tab(browser, file) as page:
            page.wait_for_selector("[data-figure]")
            paints += page.evaluate("performance.getEntriesByType('paint').map((entry) => entry.startTime)")
            time.sleep(0.05)
    assert min(paints) < 1000


@pytest.mark.browser
def test_an_address_that_was_tampered_with_is_ignored_with_a_note(browser: Any, file: Path) -> None:
    wrong = "view=nowhere&model=99&m0=D:abc,zz:3,L:6&hide=1,x&evil=<script>&m1=h:0&m2=D:99999999999"
    with Tab(browser, file, f"{wrong}&constructor=1&__proto__=1") as page:
        assert page.inner_text("[role=status]") == "10 parts of the address could not be read and were ignored."
        assert page.evaluate("txcalc.state.chosen[0]") == {"L": 6}
        assert page.evaluate("txcalc.state.view") == "learn"


@pytest.mark.browser
def test_a_size_that_is_none_is_refused_aloud(browser: Any, file: Path) -> None:
    with Tab(browser, file) as page:
        for typed, message in (
            ("0", "D is 0, expected a whole number from 1"),
            ("1.5", "D is 1.5, expected"),
            ("", "no number"),
        ):
            page.fill("#s-D", typed)
            page.press("#s-D", "Enter")
            assert message in page.inner_text("[role=status]")
            assert page.input_value("#s-D") == "768" and page.evaluate("txcalc.state.chosen[0]") == {}


# For each slider of a model, from its own stop and from its first: the positions whose sizes are refused.
REFUSED = (TESTS / "page" / "refused.js").read_text("utf-8")


@pytest.mark.browser
def test_no_position_of_a_slider_is_refused(browser: Any, file: Path) -> None:
    with Tab(browser, file) as page:
        for index in range(len(KINDS)):
            assert page.evaluate(REFUSED, index) == []


@pytest.mark.browser
def test_a_slider_snaps_to_what_divides(browser: Any, file: Path) -> None:
    """In both directions: 8 key/value heads divide 40 query heads, the next stop, and 24, the one before."""
    with Tab(browser, file, "model=1") as page:
        page.focus("#s-h-range")
        for key, heads in (("ArrowRight", "40"), ("ArrowLeft", "32"), ("ArrowLeft", "24")):
            page.keyboard.press(key)
            assert page.input_value("#s-h") == heads
            assert page.locator("[data-refused]").count() == 0


@pytest.mark.browser
def test_figures_stay_while_sizes_are_invalid(browser: Any, file: Path) -> None:
    """Greyed, with the reason, in Learn and in Compare."""
    with Tab(browser, file, "model=1") as page:
        for letter, value in (("D", "2048"), ("h_kv", "7")):
            page.fill(f"#s-{letter}", value)
            page.press(f"#s-{letter}", "Enter")
        assert "h_kv divides h does not hold: 7 and 32" in page.inner_text("[data-refused]")
        shown = page.get_attribute(".stale data[data-figure=params]", "value")
        assert int(shown) == txcalc.load("llama-3.1-8b", {"D": 2048}).params
        assert page.input_value("#s-h_kv") == "7"
        page.click("text=Compare")
        assert "llama-3.1-8b: these sizes are not valid" in page.inner_text("[data-refused]")
        assert page.get_attribute("data[data-figure='params of 1']", "value") == shown


@pytest.mark.browser
@pytest.mark.parametrize(("chosen", "changes"), [({}, {}), ({"D": 4608}, {"D": 4608, "d_h": 128})])
def test_what_stands_behind_every_figure(
    chosen: dict[str, int], changes: dict[str, int], browser: Any, file: Path
) -> None:
    """Its evidence is the library's, at the model's sizes and at others; on paper the sizes are said."""
    fragment = "model=1&m1=" + ",".join(f"{letter}:{value}" for letter, value in chosen.items())
    with Tab(browser, file, fragment if chosen else "model=1") as page:
        rows = page.locator("section[aria-label=Theorems] tbody tr").all_inner_texts()
        marks = all_known(txcalc.load("llama-3.1-8b", changes), KNOWN)
        assert [row.split("\t")[1] for row in rows] == [marks[name].how for name in marks] and len(rows) == len(KNOWN)
        assert all(row.split("\t")[2] for row in rows)
        assert not page.locator(".paper").is_visible()
        page.emulate_media(media="print")
        assert f"D = {chosen.get('D', 4096):,}" in page.locator(".paper").inner_text()


@pytest.mark.browser
def test_a_view_is_shared_by_its_address(browser: Any, file: Path) -> None:
    with Tab(browser, file) as page:
        page.fill("#s-D", "1024")
        page.press("#s-D", "Enter")
        page.click("text=Compare")
        page.wait_for_timeout(400)  # the address follows a moment later
        address = page.evaluate("location.hash.slice(1)")
    assert address == "view=compare&m0=D%3A1024"
    with Tab(browser, file, address) as page:
        assert page.evaluate("[txcalc.state.view, txcalc.state.chosen[0]]") == ["compare", {"D": 1024}]
        assert page.locator("[role=status]").count() == 0


@pytest.mark.browser
def test_sliders_and_tabs_work_by_keyboard(browser: Any, file: Path) -> None:
    with Tab(browser, file) as page:
        before = page.get_attribute("data[data-figure=params]", "value")
        page.focus("#s-L-range")
        page.keyboard.press("ArrowRight")
        assert page.get_attribute("data[data-figure=params]", "value") != before
        page.focus("#tab-learn")
        page.keyboard.press("ArrowRight")
        assert page.get_attribute("#tab-compare", "aria-selected") == "true"
        assert page.evaluate("document.activeElement.id") == "tab-compare"


@pytest.mark.browser
@pytest.mark.drawn(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_fault(view: str, scheme: str, browser: Any, planned: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    # The policy of the page forbids what axe is brought in by; it is let in here alone.
    with Tab(browser, planned, f"view={view}", color_scheme=scheme, bypass_csp=True) as page:
        for detail in page.query_selector_all("details:not([open]) > summary"):
            detail.click()
        others = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}  # the same elements in other colours
        report = axe.Axe().run(page, options={"resultTypes": ["violations"], **others})
        assert report.violations_count == 0, report.generate_report()


@pytest.mark.browser
@pytest.mark.drawn(2)
@pytest.mark.parametrize("width", [360, 3840])
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_wider_than_the_screen(view: str, width: int, browser: Any, planned: Path) -> None:
    with Tab(browser, planned, f"view={view}&model=1", viewport={"width": width, "height": 800}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.browser
def test_files_are_saved(browser: Any, file: Path, tmp_path: Path) -> None:
    with Tab(browser, file, "view=compare", accept_downloads=True) as page:
        for summary in page.query_selector_all("figure details > summary"):
            summary.click()
        for kind, start in (
            ("SVG", b"<svg"),
            ("PNG", b"\x89PNG"),
            ("CSV", b"tokens,gpt2"),
            ("LaTeX", b"% \\usepackage{booktabs}"),
        ):
            with page.expect_download() as download:
                page.click(f"figure >> nth=0 >> button:has-text('{kind}')")
            content = Path(download.value.path()).read_bytes()
            assert content.startswith(start), kind
            if kind == "SVG":
                ElementTree.fromstring(content)
        for button in page.query_selector_all("figure button[aria-label$='as CSV']"):
            with page.expect_download() as saved:
                button.click()
            head, *rows = csv.reader(Path(saved.value.path()).read_text().splitlines())
            columns = dict(zip(head, zip(*rows, strict=True), strict=True))
            numbers = {name: column for name, column in columns.items() if name not in ("model", "layout")}
            assert all(float(value) >= 0 for column in numbers.values() for value in column if value) and numbers
            assert any(re.search(r" \((FLOPs/token|parameters|share)\)$", name) for name in numbers)
        for button in page.query_selector_all("button[aria-label$='as LaTeX']"):
            with page.expect_download() as saved:
                button.click()
            assert not re.search(r"&\s*(&|\\\\)", Path(saved.value.path()).read_text()), "an empty cell"


def of_compared(ledger: Ledger, tokens: int) -> dict[str, Fraction]:
    """What a model has in the table of Compare, in the page's names."""
    numbers: dict[str, Any] = {
        name: ledger.total(name) for name in ("flops", "flops_masked", "saved", "params", "active")
    }
    numbers |= {"cache": 2 * ledger.total("cache"), "cache_growth": 2 * ledger.cache_terms.growth}
    per = {"per_token": "flops", "per_token_masked": "flops_masked"}
    numbers |= {name: Fraction(numbers[quantity], ledger.work.batch * tokens) for name, quantity in per.items()}
    return {**numbers, "training": training_flops(ledger)}


@pytest.mark.browser
def test_compared_numbers_are_the_librarys_at_any_sizes(browser: Any, file: Path) -> None:
    explorers = [explore(txcalc.load(source)) for source in KINDS.values()]
    states: list[Any] = []
    for n in range(90):
        chosen = settings(explorers[n % 9], 1, seed=n)[0]
        x, y = random.Random(n).sample(("flops", "saved", "params", "per_token", "per_token_masked", "cache"), 2)
        choices = [chosen if i == n % 9 else {} for i in range(9)]
        states.append({"view": "compare", "chosen": choices, "x": x, "y": y, "model": n % 9, "same": "active"})
    with Tab(browser, file) as page:
        shown = read(page, states)
    answered = 0
    for n, (state, got) in enumerate(zip(states, shown, strict=True)):
        index = n % 9
        figures_ = (*got["figures"], *got["real"])
        numbers = {name: (value, text) for name, value, text in figures_ if name.endswith(f" of {index}")}
        changed_model = changed(explorers[index], state["chosen"][index])
        assert (changed_model is None) == got["refused"]
        if changed_model is None:
            continue
        ledger = changed_model[0].ledger(**changed_model[1])
        true = of_compared(ledger, ledger.work.tokens)
        true |= {axis: true[state[axis]] for axis in "xy"}
        assert numbers.keys() == {f"{name} of {index}" for name in true}
        for name, number in true.items():
            value, text = numbers[f"{name} of {index}"]
            assert float(value) == float(number) if "." in value else int(value) == number, name
            assert is_rounded(text, Fraction(number)), name
        answered += 1
    assert answered > 40


@pytest.mark.browser
def test_curves_that_are_compared_and_models_of_equal_parameters(browser: Any, file: Path) -> None:
    with Tab(browser, file) as page:
        (got,) = read(page, [{"view": "compare", "over": "flops_masked", "chosen": [{}, {"D": 2048}, *[{}] * 7]}])
    numbers = {name: value for name, value, _ in got["figures"]}
    models = [txcalc.load(source) for source in KINDS.values()]
    models[1] = txcalc.load("llama-3.1-8b", {"D": 2048})
    for i, model in enumerate(models):
        if not model.fixed_length:
            assert int(numbers[f"flops_masked of {i} at 65536"]) == model.ledger(tokens=65536).total("flops_masked")
    for name, value in numbers.items():
        if name.startswith("equal L at "):
            width, layers = int(name.removeprefix("equal L at ")), int(value)
            at, above = (txcalc.load("gpt2", {"D": width, "L": n}).params for n in (layers, layers + 1))
            assert at == int(numbers[f"equal params at {width}"]) <= models[0].params < above


def deployed(source: str, gpu: str, context: int, prompt: int, kv: str, users: int) -> Any:
    """What `txcalc deploy` says at a price of 1, and each engine's command; None: it is refused."""
    try:
        plan = txcalc.deploy(source, gpu, context=context, prompt=prompt, concurrency=users, kv=kv)
    except txcalc.InputError:
        return None
    commands = []
    for engine in ("vllm", "sglang", "trtllm"):
        try:
            commands.append(plan.to_command(engine))
        except txcalc.InputError as error:
            commands.append(f"# {error}")
    return plan.to_dict(), commands


@pytest.mark.browser
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("source", "number", "count"),
    [("llama-3.1-8b", 500, 4), *((name, 150, 2) for name in ("mixtral-8x7b", "gemma-3-12b"))],
)
def test_every_number_of_a_deployment_is_the_librarys(
    source: str, number: int, count: int, browser: Any, tmp_path: Path
) -> None:
    """At settings of a grid whose lengths and users are drawn, `count` of them, too: with its 128 points or 32, of
    prices and engines."""
    draw, fitting, answer = random.Random(source), 0, lru_cache(maxsize=None)(deployed)
    contexts, users_ = (sorted(draw.sample(range(least, most), count)) for least, most in ((1000, 32_000), (1, 300)))
    places = {"kv": 2, "context": count, "prompt": 2, "users": count, "engine": 3, "price": 20_000}
    states: list[Any] = [
        {"view": "serve", "serve": i % 2, "at": {name: draw.randrange(n) for name, n in places.items()}}
        for i in range(number)
    ]
    with Tab(browser, make_page(tmp_path / "plan.html", source, *grid(contexts, users_, GPUS))) as page:
        shown = read(page, states)
    for state, got in zip(states, shown, strict=True):
        at, context, price = state["at"], contexts[state["at"]["context"]], state["at"]["price"] / 1000
        gpu, prompt = GPUS[state["serve"]].partition("@")[0] + "@1", context * (4, 7)[at["prompt"]] // 8
        setting = source, gpu, context, prompt, KVS[at["kv"]]
        deployment = answer(*setting, users_[at["users"]])
        if deployment is None:
            assert not got["figures"], state
            continue
        true, commands = deployment
        speed = true["speed"]
        # The front is over all batches: where so many users do not fit, it is that of fewer.
        fewer = speed or next(filter(None, (plan[0]["speed"] for n in users_ if (plan := answer(*setting, n)))), None)
        front = fewer["front"] if fewer else []
        expected = {
            "most": true["max_concurrency"],
            "longest": true["max_context"],
            "least": true["min_gpus"],
            "spare": abs(true["headroom_bytes"]),
            "memory": true["gpu"]["visible_bytes"],
            **{f"front users {i}": point["sequences"] for i, point in enumerate(front)},
        }
        for i, stage in enumerate(true["memory"]):
            shares = ("weights", "cache", "activations", "free")
            expected |= {f"{name} of {i}": stage[f"{name}_bytes"] for name in shares}
            kept = true["gpu"]["memory_bytes"] - true["gpu"]["visible_bytes"]  # by the driver
            expected[f"reserve of {i}"] = true["gpu"]["reserve_bytes"] - kept + stage["rest_bytes"]
        assert {name: int(value) for name, value, _ in got["figures"]} == {
            name: value for name, value in expected.items() if value is not None
        }, state
        assert all(text == f"{int(value):,}" or is_rounded(text, Fraction(value)) for _, value, text in got["figures"])
        none = true["max_concurrency"] == 0
        assert [word in got["said"] for word in ("does not fit: ", "holds ")] == [none, not (none or true["fits"])]
        assert got["command"] == commands[at["engine"]]
        expected_reals: dict[str, float] = {}
        if speed and speed["steady"]["lasts"]:
            fitting += 1
            steady = speed["steady"]
            expected_reals |= {name: steady[f"{name}_s"]["mean"] for name in ("ttft", "tpot", "e2e")}
            expected_reals |= {"served": steady["per_gpu"], "hour": price * true["layout"]["gpus"]}
            expected_reals |= {"cost": price * speed["cost_per_million_output"]}
            expected_reals |= {"line": steady["line_s"]} if steady["line_s"] else {}
        for i, point in enumerate(front):
            expected_reals |= {f"front {name} {i}": point["steady"][f"{name}_s"]["mean"] for name in ("ttft", "tpot")}
            expected_reals |= {f"front served {i}": point["steady"]["per_gpu"]}
            expected_reals |= {f"front cost {i}": price * point["cost_per_million_output"]}
        check_reals(got["real"], expected_reals, lambda name: 1e-12 if "cost" in name else 0)
    assert 5 * fitting > number


@pytest.mark.browser
def test_a_price_changes_the_cost_and_the_engine_the_command(browser: Any, planned: Path) -> None:
    with Tab(browser, planned, "view=serve") as page:
        first = float(page.get_attribute("[data-real=cost]", "value"))
        page.fill("#g-price", "5")
        page.press("#g-price", "Enter")
        assert float(page.get_attribute("[data-real=cost]", "value")) == 2 * first
        assert "\nvllm serve meta-llama/Llama-3.1-8B" in page.inner_text("pre.command")
        page.click("text=sglang")
        assert "sglang" in page.inner_text("pre.command").splitlines()[1]


@pytest.mark.browser
def test_limits_are_met_or_missed_at_the_computed_latencies(browser: Any, planned: Path) -> None:
    """TTFT and TPOT within 1 ms of the mean, as typed and from the address; an empty field is no limit."""
    with Tab(browser, planned, "view=serve&at.users=1") as page:
        shown = {name: float(page.get_attribute(f"[data-real={name}]", "value")) for name in ("ttft", "tpot")}
        assert page.locator("[data-limits]").count() == 0
        for name in ("ttft", "tpot"):
            for over, verdict in ((1, "met"), (-1, "missed")):
                limit = math.floor(shown[name] * 1000) + (over > 0)
                page.fill(f"#g-{name}", str(limit / 1000))
                page.press(f"#g-{name}", "Enter")
                assert page.get_attribute("[data-limits]", "data-limits") == verdict
            page.fill(f"#g-{name}", "")
            page.press(f"#g-{name}", "Enter")
            assert page.locator("[data-limits]").count() == 0
    with Tab(browser, planned, "view=serve&at.context=0&at.ttft=500&at.tpot=50") as page:
        loads = [(users, deployed(PLANNED[0], "h100-sxm:2@1", 2048, 1024, "bf16", users)) for users in USERS]
        within = [
            users
            for users, (true, _) in loads
            if true["fits"]
            and true["speed"]["steady"]["ttft_s"]["mean"] <= 0.5
            and true["speed"]["steady"]["tpot_s"]["mean"] <= 0.05
        ]
        assert f"meets the limits: {max(within)} users" in page.inner_text(".answer")


@pytest.mark.browser
def test_the_first_screen_of_a_phone_has_the_answer(browser: Any, planned: Path) -> None:
    """Whether it fits, how fast it is and its cost, above the inputs."""
    for fragment, names in (("", ("spare", "tpot", "cost")), ("view=learn", ("params", "weights_bytes", "flops"))):
        with Tab(browser, planned, fragment, viewport={"width": 390, "height": 844}) as page:
            bottoms = []
            for name in names:
                box = page.locator(f".answer [data-figure={name}], .answer [data-real={name}]").first.bounding_box()
                bottoms.append(box["y"] + box["height"])
            assert max(bottoms) < page.locator("aside").bounding_box()["y"] < 844


def timeline(step: Any) -> dict[str, float]:
    """How long every stage works, and the share of the step that it does not, of a pipeline that can be drawn."""
    ranks = step.timeline.ranks
    if len(ranks) < 2 or sum(map(len, ranks)) > MOST_EVENTS:
        return {}
    end = max(event.end for events in ranks for event in events)
    busy = [sum(event.end - event.start for event in events) for events in ranks]
    return {f"busy {i}": t for i, t in enumerate(busy)} | {f"idle {i}": 1 - t / end for i, t in enumerate(busy)}


def of_a_run(true: dict[str, Any]) -> tuple[dict[str, int], dict[str, float]]:
    """The library's numbers of a training run by their names on the page: whole ones, and others."""
    ranks = true["ranks"]
    names = [name for name in ranks[0]["bytes"] if any(rank["bytes"][name] for rank in ranks)]
    integers = {f"{name} of {rank['rank']}": rank["bytes"][name] for rank in ranks for name in names}
    for name in ("allocated", "reserved"):
        integers |= {f"{name} of {rank['rank']}": rank[f"{name}_bytes"] for rank in ranks}
    integers |= {"max_micro_batch": true["max_micro_batch"], "memory": true["gpu"]["usable_bytes"]}
    integers |= {"reserved": max(rank["reserved_bytes"] for rank in ranks)}
    step, spent = true["step_s"], {name: seconds for name, seconds in true["spent_s"].items() if seconds > 0}
    floats = {"tokens/s": true["tokens_per_s_per_gpu"], "step": step["achievable"], "floor": step["floor"]}
    floats |= {f"mfu {name}": share for name, share in true["mfu"].items()}
    floats |= {f"spent {name}": seconds for name, seconds in spent.items()}
    return integers, floats | {f"spent share {name}": seconds / step["achievable"] for name, seconds in spent.items()}


def laid_out(draw: random.Random, gpus: int, number: int) -> list[str]:
    """Layouts of so many GPUs, which 32 layers and 8 key/value heads can be cut by."""
    layouts: dict[str, None] = {}
    while len(layouts) < number:
        tp, pp = draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 2, 4, 8))
        axes = {"tp": tp, "sp": draw.choice((1, tp)), "pp": pp, "vpp": draw.choice((1, 2, 4)) if pp > 1 else 1}
        axes["dp" if pp > 1 else draw.choice(("dp", "fsdp"))] = gpus // (tp * pp)
        layouts[",".join(f"{axis}={n}" for axis, n in axes.items() if n > 1)] = None
    return [*layouts]


@pytest.mark.browser
@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", [4, 5])
def test_every_number_of_a_training_run_is_the_librarys(seed: int, browser: Any, tmp_path: Path) -> None:
    """At 500 settings of a page whose GPUs, layouts, lengths and batch are drawn, too."""
    draw, machine, true = random.Random(seed), Machine.of(hardware.load("h100-sxm")), {}
    gpus, tokens = draw.choice((64, 128, 256)), 64 * draw.randrange(8, 129)
    batch, ways = gpus * draw.randrange(1, 9), laid_out(draw, gpus, 6)
    places = {"run": len(ways), "amount": len(TOKENS), "hourly": 80}
    states: list[Any] = [
        {"view": "train", "train": draw.randrange(2), "at": {name: draw.randrange(n) for name, n in places.items()}}
        for _ in range(500)
    ]
    options: dict[str, Any] = {"tokens": tokens, "global_batch": batch}
    for (i, model), (j, layout) in product(enumerate(map(txcalc.load, PLANNED)), enumerate(ways)):
        whole, others = of_a_run(txcalc.train(model, f"h100-sxm:{gpus}", layout=layout, **options).to_dict())
        step = answer(model, resolve_recipe(parse_layout(layout), gpus, batch, tokens, {}), machine).step
        true[i, j] = model, whole, others | timeline(step)
    argv = [
        f"--train=h100-sxm:{gpus}",
        f"--tokens={tokens}",
        f"--global-batch={batch}",
        *(f"--layout={w}" for w in ways),
    ]
    with Tab(browser, make_page(tmp_path / "plan.html", *PLANNED, *argv)) as page:
        shown = read(page, states)
    for state, got in zip(states, shown, strict=True):
        at = state["at"]
        model, whole, others = true[state["train"], at["run"]]
        assert {name: int(value) for name, value, _ in got["figures"]} == whole
        assert all(text == f"{int(value):,}" or is_rounded(text, Fraction(value)) for _, value, text in got["figures"])
        terms = Terms(price=(at["hourly"] + 1) / 4)
        run = whole_run(model, TOKENS[at["amount"]], others["tokens/s"], gpus, 1, terms)
        spent = {"run days": run.days, "run hours": run.gpu_hours, "run cost": run.cost or 0.0}
        check_reals(got["real"], others | spent, lambda name: 1e-12 if name[:4] in ("run ", "busy", "idle") else 0)


@pytest.mark.browser
def test_a_run_begins_at_the_price_that_was_asked_for(browser: Any, tmp_path: Path) -> None:
    priced = ("--train", "h100-sxm:8@2.37", "--train", "h100-sxm:8@1.13", "--layout", "fsdp=8")
    with Tab(browser, make_page(tmp_path / "plan.html", "gpt2", *priced)) as page:
        states = [{"view": "train", "train": i, "at": at} for i, at in ((0, {}), (1, {}), (1, {"hourly": 0}))]
        shown = [{name: float(value) for name, value, _ in got["real"]} for got in read(page, states)]
    for figures, price in zip(shown, (2.37, 1.13, 0.25), strict=True):
        assert figures["run cost"] == pytest.approx(figures["run hours"] * price)


def test_a_model_that_fits_no_training_plan_leaves_the_others(tmp_path: Path) -> None:
    place, train = tmp_path / "plan.html", ("--train", "l4:2", "--layout", "tp=2")
    result = run("gpt2", "D=96 L=1 h=3 F=64 V=9", *train, "-o", str(place))
    assert result.exit_code == 0 and "no training view of " in result.stderr and "n_heads = 3" in result.stderr
    assert '"model":0' in place.read_text().replace(" ", "")
    assert run("D=96 L=1 h=3 F=64 V=9", *train, "-o", str(tmp_path / "none.html")).exit_code == 2


def test_a_model_that_fits_nowhere_has_a_page_that_says_so(tmp_path: Path) -> None:
    place = tmp_path / "plan.html"
    result = run("gpt2-xl", "--train", "l4:1", "-o", str(place))
    assert result.exit_code == 0 and "was found that fits on 1 × NVIDIA L4" in result.stderr
    assert place.read_text().replace(" ", "").count('"fits":false') == 1


@pytest.mark.browser
def test_without_scripts_it_says_so(browser: Any, file: Path) -> None:
    with Tab(browser, file, java_script_enabled=False) as page:
        assert "computes in JavaScript, which is switched off" in page.inner_text("main")
        assert "gpt2: decoder, 12 layers" in page.inner_text("main")


@pytest.mark.browser
def test_a_browser_without_bigint_is_told(browser: Any, file: Path) -> None:
    context = browser.new_context()
    context.add_init_script("delete window.BigInt")
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.evaluate("typeof BigInt") == "undefined"
    assert "This browser has no whole numbers of any size (BigInt)" in page.inner_text("main")
    assert "gpt2: decoder, 12 layers" in page.inner_text("main") and page.locator("[role=tab]").count() == 0
    context.close()
    with Tab(browser, file) as page:
        assert "BigInt" not in page.inner_text("main")
