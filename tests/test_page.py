"""The page of `txcalc report`: what it refuses, and in a browser every number beside the library's.

The browser's tests need Playwright and a Chromium (`apt install chromium`), and are skipped where one is missing.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_explorer import KINDS, settings
from typer.testing import CliRunner

import txcalc
from txcalc import hardware
from txcalc.cli import app
from txcalc.explorer import Explorer, explore
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.planning import theorems
from txcalc.planning.crossover import crossovers, lengths
from txcalc.planning.evidence import how_known
from txcalc.planning.memory import cache_bytes, learning, saved_bytes, training_state, weights_bytes
from txcalc.planning.rules import rules_of_thumb
from txcalc.planning.training import training_flops
from txcalc.planning.training.run import Terms
from txcalc.planning.training.run import run as whole_run
from txcalc.render.page import MOST_BYTES, MOST_MODELS
from txcalc.render.page.models import KNOWN
from txcalc.sources import build, spec

VIEWS = ("learn", "compare", "serve", "train")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def run(*argv: str) -> Any:
    return CliRunner().invoke(app, ["report", *argv])


def made(place: Path, *argv: str) -> Path:
    result = run(*argv, "-o", str(place))
    assert result.exit_code == 0, result.output
    return place


# The command.


def test_two_sources_make_one_small_file(tmp_path: Path) -> None:
    place = made(tmp_path / "plan.html", "gpt2", "D=512 h=8 F=1376 L=1 V=1000", "--title", "A <b>plan</b>")
    text = place.read_text()
    assert len(text.encode()) <= MOST_BYTES
    assert "<title>A &lt;b&gt;plan&lt;/b&gt;</title>" in text
    assert "<b>plan" not in text
    assert not re.search(r"""<(script|link|img|iframe)[^>]+(src|href)=["'](?!data:)""", text)
    assert "Apache License" in text and "Copyright (c) 2017, Baidu Inc." in text  # licences are kept


def test_the_same_command_makes_the_same_page(tmp_path: Path) -> None:
    for where in "ab":
        (tmp_path / where).mkdir()
    pages = [made(tmp_path / where / "p.html", "gpt2") for where in "ab"]
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    place = tmp_path / "plan.html"
    place.write_text("mine")
    result = run("gpt2", "-o", str(place))
    assert result.exit_code == 2
    assert "is there already (--force writes over it)" in result.output
    assert place.read_text() == "mine"
    made(place, "gpt2", "--force")
    assert place.read_text() != "mine"


@pytest.mark.parametrize(
    ("place", "said"),
    [("absent/plan.html", "there is no folder"), (".", "is a folder"), ("/proc/plan.html", "cannot be written")],
)
def test_a_place_that_cannot_be_written(place: str, said: str, tmp_path: Path) -> None:
    result = run("gpt2", "-o", str(tmp_path / place))
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_fifty_models_are_too_many(tmp_path: Path) -> None:
    result = run(*["gpt2"] * 50, "-o", str(tmp_path / "plan.html"))
    assert result.exit_code == 2
    assert f"models is 50, expected at most {MOST_MODELS} in one page" in result.output


def test_a_model_that_is_unknown_writes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "plan.html"
    assert run("gpt3", "-o", str(place)).exit_code == 2
    assert not place.exists()


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
    return made(tmp_path_factory.mktemp("page") / "models.html", *KINDS.values())


CONTEXTS, USERS, KVS = (2048, 8192), (1, 64), ("bf16", "fp8")
PLANNED = ("llama-3.1-8b", "mixtral-8x7b")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("page") / "plan.html"
    grid = ("--context", "2k,8k", "--concurrency", "1,64", "--gpu", "h100-sxm:2@2.5", "--gpu", "rtx-4090:1")
    return made(place, *PLANNED, *grid, "--train", "h100-sxm:64", "--layout", "tp=2,pp=4,dp=8", "--layout", "fsdp=64")


class Tab:
    """An opened page; leaving it fails where the console said something or something was to be fetched."""

    def __init__(self, browser: Any, file: Path, fragment: str = "", **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(f"{file.as_uri()}#{fragment}")

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, failed: Any, *_: Any) -> None:
        self.context.close()
        if failed is None:
            assert self.said == []
            assert [url for url in self.asked if not url.startswith(("file:", "data:", "blob:"))] == []


READ = """([index, all]) => JSON.stringify(all.map(([chosen, parts]) => {
  const own = txcalc.models.map((_, i) => (i === index ? chosen : {}));
  txcalc.state = { model: index, chosen: own, parts };
  const figures = [...document.querySelectorAll("data[data-figure]")].map((d) => [d.dataset.figure, d.value]);
  return {
    figures,
    refused: Boolean(document.querySelector("[data-refused]")),
    proved: document.querySelector("[data-proved]")?.dataset.proved,
    badges: [...document.querySelectorAll(".card:has(data[data-figure])")].map((card) =>
      [card.querySelector("data").dataset.figure, card.querySelector(".badge").textContent]),
  };
}))"""


def changed(explorer: Explorer, chosen: dict[str, int]) -> tuple[Model, dict[str, Any]] | None:
    """The library's model and workload at these sliders; None where it refuses them."""
    was = explorer.model
    try:
        model = build(spec.changed(was.raw, explorer.changes(chosen)), was.origin, was.assumptions, was.notes)
    except txcalc.InputError:
        return None
    work = {"B": "batch", "T": "tokens", "T_src": "source"}
    return model, {work[s.letter]: chosen.get(s.letter, s.value) for s in explorer.sliders if s.letter in work}


def figures(model: Model, ledger: Ledger) -> dict[str, int]:
    """The library's numbers by the names that they have on the page, but those over other lengths."""
    growth = ledger.cache_terms.growth
    found = {
        **{name: ledger.total(name) for name in ("params", "active", "flops", "flops_masked", "saved")},
        "training": training_flops(ledger),
        "weights_bytes": 2 * ledger.total("params"),
        "cache_bytes": 2 * ledger.total("cache"),
        "cache_growth_bytes": 2 * growth,
    }
    shares = training_state(ledger.total("params"), learning(ledger))
    found |= {f"memory {share.name}": share.bytes for share in shares}
    found |= {
        "memory weights": weights_bytes(ledger),
        "memory cache": cache_bytes(ledger),
        "memory caches": ledger.work.batch * cache_bytes(ledger),
        "memory state": sum(share.bytes for share in shares),
        "memory saved": saved_bytes(ledger),
    }
    for quantity in ("params", "flops", "cache"):
        found |= {f"{quantity} {i}": getattr(entry, quantity) for i, entry in enumerate(ledger)}
    tokens = ledger.work.batch * ledger.work.tokens
    for rule in rules_of_thumb(model, ledger):
        found[f"rule {rule.formula} gives"] = rule.gives
        found[f"rule {rule.formula} exact"] = rule.truth * (tokens if rule.formula in ("2·N", "6·N") else 1)
    return found


GROUPS = {
    "scores and values": ("attention_core",),
    "attention projections": ("attention",),
    "feed-forward": ("feed_forward", "experts", "shared_experts", "router"),
    "recurrent": ("recurrent",),
    "head": ("head",),
}


def along(model: Model, work: dict[str, Any], name: str) -> int:
    """A number of a curve: the cache or a group's FLOPs at another length."""
    what, _, tokens = name.rpartition(" at ")
    ledger = model.ledger(**{**work, "batch": 1, "tokens": int(tokens)})
    if what == "cache":
        return 2 * ledger.total("cache")
    kinds = ledger.by_kind("flops")
    return sum(kinds.get(kind, 0) for kind in GROUPS[what])


def same(explorer: Explorer, chosen: dict[str, int]) -> bool:
    return all(chosen.get(s.letter, s.value) == s.value for s in explorer.sliders if s.keys)


def check(source: str, index: int, page: Any, number: int, thorough: int) -> int:
    """Compares the page with the library at so many random settings; the first of them with every curve."""
    explorer = explore(txcalc.load(source))
    kinds = ("params", "flops", "cache")
    drawn = [(chosen, kinds[i % 3]) for i, chosen in enumerate([{}, *settings(explorer, number - 1, seed=7)])]
    answered = 0
    for i, ((chosen, _), got) in enumerate(zip(drawn, json.loads(page.evaluate(READ, [index, drawn])), strict=True)):
        found = changed(explorer, chosen)
        assert got["refused"] == (found is None), chosen
        if found is None:
            continue
        model, work = found
        ledger = model.ledger(**work)
        true = figures(model, ledger)
        curves = {name for name, _ in got["figures"] if " at " in name}
        overtakes = {name for name, _ in got["figures"] if name.startswith("crossover ")}
        if i < thorough and not model.fixed_length:
            fixed: dict[str, Any] = {"source": work["source"]} if work.get("source") is not None else {}
            true |= {
                f"crossover {each.rule.name} {each.attention}": each.tokens  # type: ignore[misc]
                for each in crossovers(lengths(model, **fixed))
            }
            assert {name for name, value in true.items() if name.startswith("crossover ") and value} == overtakes
            true |= {name: along(model, work, name) for name in sorted(curves)[:: 1 + len(curves) // 20]}
        for name, value in got["figures"]:
            if name in true or (name not in curves and name not in overtakes):
                assert int(value) == true[name], (chosen, name)
        names = {name for name, _ in got["figures"]}
        assert {"params", "flops", "training", "saved"} <= names
        assert (got["proved"] == "1") == (theorems.inherited(model, "params") is not None), chosen
        for name, badge in got["badges"] if i % 10 == 0 else ():
            quantity = {"weights_bytes": "params", "cache_bytes": "cache", "cache_growth_bytes": "cache"}.get(
                name, name
            )
            how = how_known(model, KNOWN[quantity]).how
            assert badge == how, (chosen, name)
        answered += 1
    return answered


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_a_model_is_the_librarys(kind: str, browser: Any, file: Path) -> None:
    source = KINDS[kind]
    with Tab(browser, file) as page:
        assert check(source, [*KINDS].index(kind), page, 520, 5) > 250


@pytest.mark.browser
def test_some_numbers_of_a_model_are_the_librarys(browser: Any, file: Path) -> None:
    with Tab(browser, file) as page:
        assert check("llama-3.1-8b", [*KINDS].index("GQA"), page, 12, 1) > 3


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


WORKED = """[...document.querySelectorAll(".formula .worked")].map((e) => e.textContent)"""


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["GQA", "MLA", "window", "hybrid"])
def test_formulas_with_their_numbers_are_true(kind: str, browser: Any, file: Path) -> None:
    """Those of products and sums, which Python's own arithmetic evaluates."""
    seen = 0
    with Tab(browser, file) as page:
        for parts in ("params", "flops", "cache"):
            chosen: list[dict[str, int]] = [{} for _ in range(page.evaluate("txcalc.models.length"))]
            chosen[[*KINDS].index(kind)] = {"B": 3, "T": 4096}
            state = {"model": [*KINDS].index(kind), "parts": parts, "chosen": chosen}
            page.evaluate("(state) => { txcalc.state = state }", state)
            page.wait_for_timeout(100)
            for worked in page.evaluate(WORKED):
                left, _, right = worked.replace(",", "").replace("·", "*").replace("−", "-").rpartition(" = ")
                if set(left) <= set("0123456789*+-() "):
                    seen += 1
                    assert eval(left) == int(right), worked
    assert seen > 40


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
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_fault(view: str, scheme: str, browser: Any, planned: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    # The policy of the page forbids what axe is brought in by; it is let in here alone.
    with Tab(browser, planned, f"view={view}", color_scheme=scheme, bypass_csp=True) as page:
        for detail in page.query_selector_all("details:not([open]) > summary"):
            detail.click()
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 3840])
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_wider_than_the_screen(view: str, width: int, browser: Any, planned: Path) -> None:
    with Tab(browser, planned, f"view={view}&model=1", viewport={"width": width, "height": 800}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.browser
def test_on_paper_charts_are_dark_on_light(browser: Any, file: Path) -> None:
    ink = "document.querySelector('.drawing svg text[fill]').getAttribute('fill')"
    with Tab(browser, file, "view=compare", color_scheme="dark") as page:
        page.wait_for_timeout(300)
        assert page.evaluate(ink) == "#e8ecf1"
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(ink) == "#16191d"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(ink) == "#e8ecf1"


@pytest.mark.browser
def test_files_are_saved(browser: Any, file: Path, tmp_path: Path) -> None:
    with Tab(browser, file, "view=compare", accept_downloads=True) as page:
        for summary in page.query_selector_all("figure details > summary"):
            summary.click()
        for kind, start in (
            ("SVG", b"<svg"),
            ("PNG", b"\x89PNG"),
            ("CSV", b"tokens,gpt2"),
            ("LaTeX", rb"\begin{tabular}"),
        ):
            with page.expect_download() as download:
                page.click(f"figure >> nth=0 >> button:has-text('{kind}')")
            content = Path(download.value.path()).read_bytes()
            assert content.startswith(start), kind
            if kind == "SVG":
                ElementTree.fromstring(content)
        for button in page.query_selector_all("button[aria-label$='as LaTeX']"):
            with page.expect_download() as saved:
                button.click()
            assert not re.search(r"&\s*(&|\\\\)", Path(saved.value.path()).read_text()), "an empty cell"


@pytest.mark.browser
def test_compared_numbers_are_the_librarys(browser: Any, file: Path) -> None:
    with Tab(browser, file, "view=compare&over=flops_masked&m1=D:2048") as page:
        found = dict(page.evaluate("[...document.querySelectorAll('data')].map((d) => [d.dataset.figure, d.value])"))
    models = [txcalc.load(source) for source in KINDS.values()]
    models[1] = txcalc.load("llama-3.1-8b", {"D": 2048})
    for i, model in enumerate(models):
        tokens = 1 if model.fixed_length else min(model.context or 2048, 2048)
        ledger = model.ledger(tokens=tokens)
        assert int(found[f"params of {i}"]) == int(found[f"x of {i}"]) == model.params
        assert int(found[f"flops of {i}"]) == ledger.total("flops")
        assert int(found[f"per_token of {i}"]) == ledger.total("flops") // tokens
        assert int(found[f"cache of {i}"]) == 2 * ledger.total("cache")
        if not model.fixed_length:
            assert int(found[f"flops_masked of {i} at 65536"]) == model.ledger(tokens=65536).total("flops_masked")
    for name, value in found.items():
        if name.startswith("equal L at "):
            width, layers = int(name.removeprefix("equal L at ")), int(value)
            at, above = (txcalc.load("gpt2", {"D": width, "L": n}).params for n in (layers, layers + 1))
            assert at == int(found[f"equal params at {width}"]) <= models[0].params < above


def deployed(source: str, gpu: str, context: int, prompt: int, users: int, kv: str) -> dict[str, Any] | None:
    """What `txcalc deploy` says; None: it is refused."""
    options = {"--context": context, "--prompt": prompt, "--concurrency": users, "--kv": kv}
    argv = [source, "--gpu", gpu, "--json", *(str(word) for pair in options.items() for word in pair)]
    result = CliRunner().invoke(app, ["deploy", *argv])
    return None if result.exit_code == 2 else json.loads(result.stdout)


@pytest.mark.browser
def test_memory_in_other_dtypes_and_the_cost_of_a_run_are_the_librarys(browser: Any, file: Path) -> None:
    gpu, tokens = hardware.load("a100-80gb-sxm"), 10**12
    read = "[...document.querySelectorAll('data')].map((d) => [d.dataset.figure ?? d.dataset.real, d.value])"
    chips = [name for name in hardware.names() if "bf16" in hardware.load(name).peaks]
    at = f"at.dtype=3&at.held=2&at.chip={chips.index(gpu.name)}&at.number=5&at.mfu=49&at.hourly=7&at.amount=12"
    with Tab(browser, file, f"model=1&m1=L:16,T:4096,B:3&{at}") as page:
        found = {name: float(value) for name, value in page.evaluate(read)}
    model = txcalc.load("llama-3.1-8b", {"L": 16})
    ledger = model.ledger(batch=3, tokens=4096, dtype="int4", kv_dtype="fp8")
    assert found["memory weights"] == weights_bytes(ledger) and found["memory cache"] == cache_bytes(ledger)
    speed = gpu.peak("bf16") / 2 / (training_flops(ledger) / (3 * 4096))
    spent = whole_run(model, tokens, speed, 32, 1, Terms(price=2.0))
    for name, value in {"days": spent.days, "hours": spent.gpu_hours, "cost": spent.cost}.items():
        assert found[f"run {name}"] == pytest.approx(value, rel=1e-12)  # floats, in another order


POINT = """([serve, at]) => {
  txcalc.state = { view: "serve", serve, at };
  const all = (kind) => [...document.querySelectorAll(`data[data-${kind}]`)];
  const read = (kind) => Object.fromEntries(all(kind).map((d) => [d.dataset[kind], d.value]));
  return { figures: read("figure"), real: read("real"), said: document.querySelector("main").innerText };
}"""


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("gpu", [0, 1], ids=["H100 × 2", "RTX 4090"])
def test_every_number_of_a_deployment_is_the_librarys(gpu: int, browser: Any, planned: Path) -> None:
    fitting = 0
    with Tab(browser, planned) as page:
        for serve, source in enumerate(PLANNED):
            for k, c, p, u in product(range(2), repeat=4):
                at = {"kv": k, "context": c, "prompt": p, "users": u}
                got = page.evaluate(POINT, [2 * serve + gpu, at])
                prompt = CONTEXTS[c] * (4, 7)[p] // 8
                name = ("h100-sxm:2@2.5", "rtx-4090:1")[gpu]
                true = deployed(source, name, CONTEXTS[c], prompt, USERS[u], KVS[k])
                if true is None:
                    assert not got["figures"], at
                    continue
                stage = true["memory"][0]
                expected = {
                    "most": true["max_concurrency"],
                    "longest": true["max_context"],
                    "least": true["min_gpus"],
                    "weights of 0": stage["weights_bytes"],
                    "cache of 0": stage["cache_bytes"],
                    "activations of 0": stage["activations_bytes"],
                    "reserve of 0": true["gpu"]["reserve_bytes"] + stage["rest_bytes"],
                    "free of 0": stage["free_bytes"],
                }
                assert {name: int(value) for name, value in got["figures"].items()} == {
                    name: value for name, value in expected.items() if value is not None
                }, at
                assert ("does not fit" in got["said"]) == (not true["fits"])
                speed = true["speed"]
                assert bool(got["real"]) == bool(speed and speed["steady"]["lasts"])
                if not got["real"]:
                    continue
                fitting += 1
                steady = speed["steady"]
                times = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s"}
                wanted = {name: steady[key]["mean"] for name, key in times.items()} | {"served": steady["per_gpu"]}
                if speed["cost_per_hour"] is not None:
                    wanted |= {"cost": speed["cost_per_million_output"], "hour": speed["cost_per_hour"]}
                assert {name: float(value) for name, value in got["real"].items()} == wanted, at
    assert fitting > (15 if gpu == 0 else 3)


@pytest.mark.browser
def test_a_price_changes_the_cost_and_the_engine_the_command(browser: Any, planned: Path) -> None:
    with Tab(browser, planned, "view=serve") as page:
        first = float(page.get_attribute("[data-real=cost]", "value"))
        page.fill("#g-price", "5")
        page.press("#g-price", "Enter")
        assert float(page.get_attribute("[data-real=cost]", "value")) == 2 * first
        assert page.inner_text("pre.command").startswith("vllm serve meta-llama/Llama-3.1-8B")
        page.click("text=sglang")
        assert "sglang" in page.inner_text("pre.command").splitlines()[0]


@pytest.mark.browser
@pytest.mark.parametrize(("run", "layout"), [(0, "tp=2,pp=4,dp=8"), (1, "fsdp=64")])
def test_every_number_of_a_training_run_is_the_librarys(run: int, layout: str, browser: Any, planned: Path) -> None:
    asked = ["--gpu", "h100-sxm:64@2.5", "--train-tokens", "1T"]  # where the page's own steps stand
    argv = ["train", "llama-3.1-8b", *asked, "--layout", layout, "--json"]
    true = json.loads(CliRunner().invoke(app, argv).stdout)
    with Tab(browser, planned, f"view=train&at.run={run}") as page:
        read = "(kind) => [...document.querySelectorAll(`data[data-${kind}]`)].map((d) => [d.dataset[kind], d.value])"
        figures, real = (dict(page.evaluate(read, kind)) for kind in ("figure", "real"))
        assert page.locator("svg.timeline").count() == (run == 0)
    expected = {
        f"{name} of {rank['rank']}": size
        for rank in true["ranks"]
        for name, size in {
            **{name: size for name, size in rank["bytes"].items() if any(r["bytes"][name] for r in true["ranks"])},
            "allocated": rank["allocated_bytes"],
            "reserved": rank["reserved_bytes"],
        }.items()
    }
    expected |= {
        "max_micro_batch": true["max_micro_batch"],
        "reserved": max(rank["reserved_bytes"] for rank in true["ranks"]),
    }
    assert {name: int(value) for name, value in figures.items()} == expected
    wanted = {"tokens/s": true["tokens_per_s_per_gpu"], "step": true["step_s"]["achievable"]}
    wanted |= {"floor": true["step_s"]["floor"]} | {f"mfu {name}": share for name, share in true["mfu"].items()}
    wanted |= {f"spent {name}": seconds for name, seconds in true["spent_s"].items() if seconds > 0}
    runs = {"run days": "days", "run hours": "gpu_hours", "run cost": "cost"}
    found = {name: float(value) for name, value in real.items()}
    for name, key in runs.items():
        assert found.pop(name) == pytest.approx(true["run"][key], rel=1e-12), name  # floats, in another order
    assert found == wanted


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--gpu", "h1000"], "h1000"),
        (["--gpu", "h100-sxm:2@0"], "price is 0.0, expected a number above 0"),
        (["--gpu", "h100-sxm", "--concurrency", ",".join(map(str, range(1, 600)))], "expected at most 2,000"),
        (["--gpu", "h100:0"], "--gpu is 'h100:0', expected one or more of it"),
        (["--gpu", "h100", "--context", "0"], "context is 0"),
        (["--layout", "tp=2"], "--layout is of a plan of training (add --train NAME:N)"),
        (["--weights", "fp8"], "--weights is of a plan of serving (add --gpu NAME)"),
        (["--train", "h100-sxm"], "without --layout it needs a number"),
        (["--gpu", "h100-sxm", "--kv", "int3"], "int3"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(argv: list[str], said: str, tmp_path: Path) -> None:
    result = run("gpt2", *argv, "-o", str(tmp_path / "plan.html"))
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert not (tmp_path / "plan.html").exists()


def test_a_model_that_fits_no_training_plan_leaves_the_others(tmp_path: Path) -> None:
    place, train = tmp_path / "plan.html", ("--train", "l4:2", "--layout", "tp=2")
    result = run("gpt2", "D=96 L=1 h=3 F=64 V=9", *train, "-o", str(place))
    assert result.exit_code == 0 and "no training view: " in result.stderr and "n_heads = 3" in result.stderr
    assert '"model":0' in place.read_text().replace(" ", "")
    assert run("D=96 L=1 h=3 F=64 V=9", *train, "-o", str(tmp_path / "none.html")).exit_code == 2


@pytest.mark.browser
def test_without_scripts_it_says_so(browser: Any, file: Path) -> None:
    with Tab(browser, file, java_script_enabled=False) as page:
        assert "computes in JavaScript, which is switched off" in page.inner_text("main")
        assert "gpt2: decoder, 12 layers" in page.inner_text("main")


@pytest.mark.browser
def test_a_browser_without_bigint_is_told(browser: Any, file: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script("delete window.BigInt")
    page.goto(file.as_uri())
    assert page.is_visible("#old") or "whole numbers of any size" in page.content()
    context.close()
