"""The evidence that comes with txcalc: what is claimed exact is, and no measured figure is beyond what is possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gpu as gpu_script
import pytest
from extras import needs
from msgspec.structs import replace

from txcalc import hardware, load
from txcalc.errors import InputError
from txcalc.evidence.figures import Figure
from txcalc.model import Model
from txcalc.planning.gradients import Recompute
from txcalc.planning.training import training_flops
from txcalc.questions.measurements import folder, read as read_typed
from txcalc.render.lines import as_lines
from txcalc.render.measurements import growth_table, near, overview, report

needs("torch")

SOURCE = 8  # positions of an encoder, of which the cache was measured
FILES = sorted(folder().glob("*.json"))
WITHIN = 0.02  # of the predicted peak

evidence = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def read(path: Path) -> dict[str, Any]:
    """A file as plain values."""
    values: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return values


def items(path: Path) -> list[tuple[str, dict[str, Any]]]:
    return [(name, item) for name, item in read(path)["items"].items() if item["steps"]]


def figures(path: Path, quantity: str) -> list[dict[str, Any]]:
    steps = [step for _, item in items(path) for step in item["steps"].values()]
    return [figure for step in steps for figure in step.get("figures", ()) if figure["quantity"] == quantity]


def test_there_is_evidence() -> None:
    assert FILES and all(read(path)["complete"] for path in FILES)


@evidence
def test_it_says_where_when_and_how_it_was_made(path: Path) -> None:
    document = read(path)
    assert {"kind", "name", "torch", "memory_bytes", "clock"} <= document["device"].keys()
    assert document["device"]["kind"] in ("cpu", "cuda")
    assert document["device"]["kind"] == "cpu" or document["device"]["driver"]
    assert document["command"].startswith("txcalc ")
    hardware.parse(document["ceilings"]["accelerator"], "measured", path.name)


@evidence
def test_what_is_exact_is_equal(path: Path) -> None:
    for name, item in items(path):
        exact = {key: step for key, step in item["steps"].items() if key.startswith("exact: ")}
        assert exact, name
        for key, step in exact.items():
            assert step["compared"] > 0 and step["unequal"] == [], (name, key)
            column = step["columns"].index
            for row in step["wholes"]:
                assert row[column("predicted")] == row[column("measured")], (name, row)


def today(quantity: str, where: str, model: Model, dtype: str) -> int | None:
    """What is predicted now of a whole model; None: not recomputed here."""
    width = {"fp32": 4, "bf16": 2}[dtype]
    sizes = {key: int(value) for key, _, value in (part.partition(" = ") for part in where.split(", ")) if value}
    if quantity == "params":
        return model.params
    if quantity in ("bytes of weights", "bytes of the weights"):
        return width * model.params
    if quantity == "bytes of the cache":
        from txcalc.verification import storage

        tokens = int(where.split(", ")[1].removesuffix(" tokens"))
        source = SOURCE if model.has_encoder_apart else None
        return sum(2 * storage.state_bytes(entry, width) for entry in model.ledger(2, 1, tokens - 1, source))
    if quantity == "flops" or quantity.startswith("training flops"):
        ledger = model.ledger(sizes["B"], sizes.get("T", 1), 0, sizes.get("T_src"))
    if quantity == "flops":
        return ledger.total("flops")
    recomputed: Recompute = "blocks" if quantity.endswith("recomputed") else "none"
    return training_flops(ledger, recomputed) if quantity.startswith("training flops") else None


@pytest.mark.slow
@evidence
def test_its_predictions_are_those_of_today(path: Path) -> None:
    from txcalc import reference

    for name, item in items(path):
        model = load(item["source"], item.get("changes"))
        model = model if item["layers"] == item["of_layers"] else reference.truncate(model, item["layers"])
        assert item["params"] == model.params, name
        rows = [row for step in item["steps"].values() for row in step.get("wholes", ())]
        predictions = [(row, today(row[1], row[3], model, item["dtype"])) for row in rows]
        assert [(row, now) for row, now in predictions if now is not None and row[4] != now] == [], name
        assert {"params", "flops"} & {row[1] for row, now in predictions if now is not None}, name


@pytest.mark.slow
@evidence
def test_it_has_the_whole_list(path: Path) -> None:
    from txcalc.verification import suite

    document = read(path)
    listed = {item.name: item for item in suite.LISTS[document["device"]["kind"]]}
    assert document["items"].keys() == listed.keys()
    for name, item in document["items"].items():
        if "refused" in item:  # by a card too small for one layer, with its reason
            assert document["device"]["kind"] == "cuda" and "free" in item["refused"], name
            continue
        assert item["steps"].keys() == {step for step, _ in suite.steps_of(listed[name])}, name
        for step in item["steps"].values():
            assert "failed" not in step, name
            assert "refused" not in step or (document["device"]["kind"] == "cuda" and "free" in step["refused"]), name


@evidence
def test_a_calibrated_machine_is_predicted(path: Path) -> None:
    """Within 30 %, for steps of which no size was measured before."""
    checks = read(path)["ceilings"]["checks"]
    assert len(checks) == 3
    for check in checks:
        assert abs(check["after"] / check["measured"] - 1) <= 0.3, check


@evidence
def test_no_peak_is_below_the_least_and_all_are_near(path: Path) -> None:
    peaks = figures(path, "peak memory")
    assert peaks
    for figure in peaks:
        assert figure["floor"] <= figure["measured"], figure
        gap = figure["measured"] - figure["predicted"]
        assert abs(gap) <= WITHIN * figure["predicted"], figure
        assert sum(figure["gap"].values()) == gap, figure


@evidence
def test_the_kernels_that_were_counted_on_ran(path: Path) -> None:
    counted = figures(path, "kernels")
    assert {figure["part"] for figure in counted} == {"products", "attention"} and len(counted) == 6
    for figure in counted:
        assert figure["predicted"] == figure["measured"] == sum(figure["beside"].values()), figure


@evidence
def test_a_cache_grows_as_the_ledger_says(path: Path) -> None:
    """To the byte on the CPU; CUDA's blocks are rounded up."""
    measured_items = read_typed(path).items.items()
    rows = growth_table({name: item for name, item in measured_items if name == "KV cache growth"}).rows
    assert len(rows) == 3
    for _, _, ledger, measured in rows:
        assert measured.value == pytest.approx(ledger.value, rel=0.001)


@evidence
def test_what_deploy_sets_aside_is_near(path: Path) -> None:
    """Within 3 %, but where modules keep what servers' kernels do not: expanded latents, scores under a window or a
    bias, activations of long or large prompts before and after (up to 15 %); recurrent states in fp32."""
    planned = [(name, f) for name, item in items(path) for step in item["steps"].values()
               for f in step.get("figures", ()) if f.get("planned")]  # fmt: skip
    ratios = [(name, f["measured"] / f["planned"]) for name, f in planned]
    decodes = [(name, ratio) for (name, ratio), (_, f) in zip(ratios, planned, strict=True) if "decode" in f["load"]]
    wider = {"gemma-3-12b": 1.7, "MLA": 1.4, "mamba2-130m": 1.9, "mamba2-2.7b": 1.9}  # states: under twice
    assert all(0.97 < ratio < wider.get(name, 1.15) for name, ratio in ratios)
    assert {name for name, ratio in decodes if abs(ratio - 1) > 0.03} <= {"deepseek-v3", *wider}


@evidence
def test_a_training_step_holds_what_train_says(path: Path) -> None:
    """Within 5 %; of reserved bytes, on CUDA, see `planning.training.memory.RESERVED`."""
    rows = [figure for figure in figures(path, "memory of training") if "reserved" not in figure["load"]]
    assert rows and all(figure["measured"] == pytest.approx(figure["predicted"], rel=0.05) for figure in rows), rows
    assert len(figures(path, "speed of training")) == len(rows)


@evidence
def test_no_time_is_below_its_floor(path: Path) -> None:
    """The floor of what the same run measured: the fastest product and the fastest read of any size."""
    times = figures(path, "time")
    assert times
    for figure in times:
        assert 0 <= figure["floor"] <= figure["measured"], figure
        assert figure["floor"] <= figure["predicted"], figure


@evidence
def test_attention_overtakes_near_the_predicted_length(path: Path) -> None:
    """A kernel of attention reaches another share of the peak than a product: by FLOPs alone it is only near."""
    met = {figure["load"]: figure for figure in figures(path, "attention outweighs the feed-forward")}
    assert met.keys() == {"by masked FLOPs", "by expected times"}
    assert all(0.5 < figure["measured"] / figure["predicted"] < 2 for figure in met.values())


@evidence
def test_fewer_heads_for_keys_cache_less_and_take_less(path: Path) -> None:
    shared = [item for name, item in items(path) if name.startswith(("MHA ", "GQA ", "MQA "))]
    assert len(shared) == 3

    def cached(item: dict[str, Any]) -> int:
        rows = item["steps"]["exact: bytes"]["wholes"]
        return next(row[5] for row in rows if row[1] == "bytes of the cache")

    def core(item: dict[str, Any]) -> float:
        steps = (step for name, step in item["steps"].items() if name.startswith("time: "))
        return next(f["measured"] for step in steps for f in step["figures"] if f["part"] == "attention_core")

    assert cached(shared[0]) > cached(shared[1]) > cached(shared[2])
    assert core(shared[0]) > core(shared[2])


@evidence
def test_absorbed_latents_take_less(path: Path) -> None:
    pairs = 0
    for _, item in items(path):
        timed = [f for step in item["steps"].values() for f in step.get("figures", ()) if f["quantity"] == "time"]
        whole = {figure["load"]: figure["measured"] for figure in timed if not figure["part"]}
        for work, seconds in whole.items():
            absorbed = whole.get(f"{work}, MLA absorbed")
            pairs += absorbed is not None
            assert absorbed is None or absorbed < seconds, work
    assert pairs


@evidence
def test_each_of_its_numbers_is_held(path: Path, tmp_path: Path) -> None:
    """One figure at a time: a peak below the least, a time under its floor."""
    rules = {"peak memory": test_no_peak_is_below_the_least_and_all_are_near, "time": test_no_time_is_below_its_floor}
    for quantity, rule in rules.items():
        for number in (0, len(figures(path, quantity)) - 1):
            document, changed = read(path), tmp_path / "changed.json"
            steps = [step for item in document["items"].values() for step in item["steps"].values()]
            mine = [f for step in steps for f in step.get("figures", ()) if f["quantity"] == quantity]
            mine[number]["measured"] = mine[number]["floor"] * 0.999 - 1
            changed.write_text(json.dumps(document))
            with pytest.raises(AssertionError):
                rule(changed)


CARDS = [folder() / f"{card}.json" for card in ("h100", "h200")]


def test_the_readme_says_what_was_found_on_the_gpus() -> None:
    """Its numbers are those of the files."""
    sentences, crossings = set(), []
    for path in CARDS:
        every = [item for _, item in items(path)]
        compared = sum(step.get("compared", 0) for item in every for step in item["steps"].values())
        sources = {item["source"] for item in every}
        models = {source for source in sources if "=" not in source}
        cut = {item["source"] for item in every if item["layers"] < item["of_layers"]}
        peaks = figures(path, "peak memory")
        over = max(abs(figure["measured"] / figure["predicted"] - 1) for figure in peaks)
        crossings += [f for f in figures(path, "attention outweighs the feed-forward") if "times" in f["load"]]
        sentences.add(
            f"on an H100 and an H200: {len(models)} models ({len(cut)} of them with fewer layers) "
            f"and {len(sources - models)} small shapes. On each card all {compared:,} counts are equal. All "
            f"{len(peaks)} memory peaks are within {100 * over:.1f} % of a dry run"
        )
    (h100, first), (h200, second) = ((f"{f['measured']:,.0f}", f"{f['predicted']:,.0f}") for f in crossings)
    crossed = f"from {h100} tokens on the H100 (predicted from the card's measured rates: {first}), and from {h200} on "
    crossed += f"the H200 (predicted: {second})"
    (sentence,) = sentences
    text = " ".join((folder().parents[1] / "README.md").read_text().split())
    assert sentence in text and crossed in text


def test_the_page_says_what_was_found_on_the_gpus() -> None:
    """Its ratios, and those of the notes on it, are those of the files."""
    docs = folder().parents[1] / "docs"
    text = " ".join(((docs / "reference" / "measured.md").read_text() + (docs / "testing.md").read_text()).split())
    prompts = [figure for path in CARDS for figure in figures(path, "peak memory") if "prefill" in figure["load"]]
    most = max(figure["measured"] / figure["planned"] for figure in prompts)
    assert f"Prefill takes up to {100 * (most - 1):.0f} % more than predicted" in text
    steps, dense, slowest, clocks = [], [], [], []
    for path in CARDS:
        step_ratios = [f["measured"] / f["predicted"] for f in figures(path, "time") if "cross-entropy" in f["load"]]
        steps.append(f"{min(step_ratios):.2f} to {max(step_ratios):.2f}")
        captured = {
            name: [f["measured"] / f["predicted"] for step in item["steps"].values() for f in step.get("figures", ())
                   if f["load"].endswith("captured")]
            for name, item in items(path)
        }  # fmt: skip
        plain = [ratio for name, ratios in captured.items() if name.startswith(("llama", "qwen", "KV cache"))
                 for ratio in ratios]  # fmt: skip
        dense.append(f"{min(plain):.2f} to {max(plain):.2f}")
        slowest.append([f"{max(captured[name]):.1f}" for name in ("gpt2", "mamba2-2.7b", "gpt-oss-20b")])
        first, last = (int(clock["clocks.sm"]) for clock in read(path)["ceilings"]["clocks"])
        clocks.append(f"from {first:,} to {last:,} MHz")
    assert f"They took {steps[0]} times as long as predicted on the H100, {steps[1]} on the H200" in text
    assert f"Llama and Qwen took {dense[0]} times as long as predicted on the H100, {dense[1]} on the H200" in text
    gpt2, mamba, oss = (" and ".join(pair) for pair in zip(*slowest, strict=True))
    assert f"GPT-2 in fp32 {gpt2} times, Mamba-2 {mamba}, gpt-oss {oss}." in text
    assert f"clocks fell {' and '.join(clocks)}" in text
    excess, reserved = (
        [
            f["measured"] / f["predicted"] - 1
            for path in CARDS
            for f in figures(path, "memory of training")
            if ("reserved" in f["load"]) is kind
        ]
        for kind in (False, True)
    )
    near = 100 * sorted(excess[: len(excess) // 2])[4]
    assert f"allocated at most {100 * max(excess):.1f} % more than `train` predicts (five of them {near:.1f} %)" in text
    span = f"{100 * min(reserved):.1f} to {100 * max(reserved):.1f}"
    assert f"the allocator reserved {span} % more than predicted" in text


@pytest.mark.parametrize(("card", "file"), [("h100-sxm", "h100"), ("h200", "h200")])
def test_the_cards_description_is_made_of_the_file(card: str, file: str) -> None:
    """And making it again of a card that has its curves changes nothing."""
    described = folder().parent / "hardware" / f"{card}.toml"
    assert gpu_script.described(read(folder() / f"{file}.json"), described) == described.read_text()


def test_what_is_less_than_a_hundredth_of_a_peak_is_not_named() -> None:
    figure = Figure(
        quantity="peak memory",
        load="prefill",
        part="",
        unit="bytes",
        floor=900,
        predicted=1990,
        measured=2000,
        gap={"scratch space": 10},
        beside={"fragments": 30},
        above={"for it": 1090},
    )
    (table,) = (candidate for candidate in near([("m", figure)]) if candidate.title.startswith("Peak memory"))
    assert [str(row[0].text).strip() for row in table.rows if len(row)][-1] == "1.064 KiB for it; 30 B fragments"


@evidence
def test_it_is_shown(path: Path) -> None:
    text = "\n".join(
        "".join(piece for piece, _ in line) for line in as_lines(report(replace(read_typed(path), detail=True)), 100)
    )
    assert "Exact: predicted equals measured" in text and "Peak memory" in text and "Time" in text
    which = "fastest" if read(path)["device"]["kind"] == "cpu" else "median"
    assert f"The {which} of each kernel" in text and "before and after calibration" in text
    table = overview([path])
    assert all(name in table for name, _ in items(path))


def test_a_number_that_was_changed_is_seen(tmp_path: Path) -> None:
    """The rules above are no formality: a peak a little lower, and a time under its floor, break them."""
    document = read(FILES[0])
    for item in document["items"].values():
        for step in item["steps"].values():
            for figure in step.get("figures", ()):
                figure["measured"] *= 0.5
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(document))
    with pytest.raises(AssertionError):
        test_no_peak_is_below_the_least_and_all_are_near(path)
    with pytest.raises(AssertionError):
        test_no_time_is_below_its_floor(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not valid JSON"),
        ("[]", "schema is \\[\\]"),
        ('{"schema": "txcalc/proofs/1"}', "expected 'txcalc/measurements/1'"),
        ('{"schema": "txcalc/measurements/1", "items": []}', "5 faults"),
        (
            '{"schema": "txcalc/measurements/1", "device": {}, "date": "", "command": "", "complete": true, '
            '"items": {"a": {}}}',
            "not a complete file of measurements: Object missing required field `source`",
        ),
    ],
)
def test_what_is_no_file_of_measurements_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_typed(path)


@pytest.mark.slow
@evidence
def test_its_times_are_predicted_as_today(path: Path) -> None:
    """Measurements stay; what stands beside them is what the library says now."""
    record = read(path)
    assert gpu_script.predict_again(record) == len(figures(path, "time")) + len(figures(path, "speed of training")) + 1
    assert record == read(path), f"python tests/scripts/gpu.py --again {path}"
