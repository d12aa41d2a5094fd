"""Memory of a deployment: weights, ranks and caches against figures made by hand or published; answers that are the
largest and smallest; what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from command import Command
from hypothesis import assume, given, strategies as st
from plans import plan

from txcalc import deploy, hardware, load
from txcalc.errors import InputError
from txcalc.hardware import Accelerator
from txcalc.ledger import Entry, walk
from txcalc.parts.leaf import Recurrence
from txcalc.planning.formats.names import format_of
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import PipelineStage, Sharding
from txcalc.planning.serving.deployment import Planner, notes_of_layout
from txcalc.planning.serving.engine import EngineConfig, Reserve, engine, parse_reserve
from txcalc.planning.serving.engine_memory import EngineMemory
from txcalc.planning.serving.engine_profiles import profile
from txcalc.planning.serving.rank_memory import RankBytes
from txcalc.render import FORMATS
from txcalc.sources.presets import names

GIB = 2**30
ONE = Layout()


def rank(name: str, layout: Layout = ONE, stage: int = 0, **how: Any) -> RankBytes:
    model = load(name)
    return RankBytes(model, Sharding(model).stages(layout)[stage], engine(model, **how))


# Weights and caches.

# name: parameters, bf16 bytes per token, bytes of one sequence of 8,192 tokens. transformers on the meta device for the
# parameters; the caches by hand from the configurations: of Qwen3-Next 12 of 48 layers keep K and V, the others four
# columns of 8,192 channels and a state of 32 · 128 · 128.
TRUTH = {
    "llama-3.1-8b": (8_030_261_248, 131_072 * 8192),
    "llama-3.1-70b": (70_553_706_496, 327_680 * 8192),
    "mixtral-8x7b": (46_702_792_704, 131_072 * 8192),
    "gemma-3-27b": (27_432_406_640, 81_920 * 8192 + 425_984 * 1024),
    "deepseek-v3": (671_026_404_352, 70_272 * 8192),
    "gpt-oss-20b": (20_914_757_184, 24_576 * 8192 + 24_576 * 128),
    "qwen3-next-80b-a3b": (79_674_391_296, 24_576 * 8192 + 36 * 2 * (4 * 8192 + 32 * 128 * 128)),
}


@pytest.mark.parametrize("name", TRUTH)
def test_weights_and_cache_are_the_true_ones(name: str) -> None:
    params, cache = TRUTH[name]
    single = rank(name, weights="bf16")
    assert single.weights_bytes == 2 * params
    assert single.caches(8192).algorithmic == cache


@pytest.mark.parametrize("sequences", [1, 2, 83])
def test_windows_keep_their_width_and_prompts_share_a_chunk(sequences: int) -> None:
    """10 of 62 layers cache every token, the others 1,024 in pages, and a prompt's 8,192 until its chunk is done."""
    windows = 1040 * sequences + min((8208 - 1040) * sequences, 8192)
    pages = rank("gemma-3-27b").cache_bytes(8192, sequences)
    assert pages == 2 * 2 * 16 * 128 * (10 * 8192 * sequences + 52 * windows)


def test_engines_cache_more_than_windows() -> None:
    argv = ("gemma-3-27b", "--gpu", "h100:2", "--context", "32k")
    assert [run.data(*argv, "--engine", name)["max_concurrency"] for name in ("vllm", "sglang")] == [24, 5]
    assert "plan with --engine sglang" in run(*argv, "--emit", "sglang")[1]
    assert "Time by part" in run(*argv, "--format", "markdown")[1]  # which has every table
    plan = run.data("mistral-7b", "--gpu", "h100:1", "--context", "32k", "--engine", "llama.cpp")
    assert plan["max_concurrency"] == 16  # of 4 GiB: all tokens of Mistral
    small = run.data(
        "gemma-3-4b", "--set", "L=26", "--set", "h_kv=1", "--gpu", "h100:1", "--context", "2k", "--engine", "vllm"
    )
    a_sequence = small["memory"][0]["cache_a_sequence"]["pages"]  # of 22 layers with windows in 6 groups of 4
    assert round(25.39 * 2**30 / a_sequence, 1) == 461.2  # "Add 2 padding layers", "461.21x" in a log of Gemma 3 1B
    hybrid = run.data("qwen3.5-27b", "--gpu", "h100:1", "--context", "32k", "--kv", "fp8", "--engine", "vllm")
    a_sequence = hybrid["memory"][0]["cache_a_sequence"]["pages"]  # of 21 pages of 1,568 tokens, and of two states
    assert 6.67 * 2**30 / a_sequence == pytest.approx(5.15, rel=0.003)  # "5.15x" in a log of Qwen3.6-27B


@pytest.mark.parametrize("name", names())
def test_the_algorithmic_cache_is_the_ledgers(name: str) -> None:
    model = load(name)
    tokens = min(5_000, model.context or 5_000)
    single, ledger = rank(name), model.ledger(tokens=tokens)
    wide = name.startswith(("nemotron", "qwen3.5"))  # whose configs have mamba_ssm_dtype = float32
    states = sum(entry.cache for entry in ledger if isinstance(entry.leaf, Recurrence))
    assert single.caches(tokens).algorithmic == 2 * (ledger.total("cache") + wide * states)


# Formats of weights.


@pytest.mark.parametrize(
    ("name", "weights", "published_gib", "digits"),
    [("gpt-oss-20b", "mxfp4", 12.8, 1), ("gpt-oss-120b", "mxfp4", 60.8, 1)],  # arXiv 2508.10925, table 1
)
def test_checkpoints_have_their_published_size(name: str, weights: str, published_gib: float, digits: int) -> None:
    assert round(rank(name, weights=weights).weights_bytes / GIB, digits) == published_gib


# Ranks.


def elements(stage: PipelineStage, under: str = "") -> int:
    ledger = walk(stage.root, load("gpt2").workload())
    return sum(entry.params for entry in ledger if entry.path.startswith(under))


@pytest.mark.parametrize(
    ("name", "tp", "bytes_a_weight", "published"),
    [
        ("llama-2-7b", 2, 2, "7.00"),
        ("llama-2-7b", 4, 2, "3.76"),
        ("llama-2-7b", 8, 2, "2.14"),
        ("llama-3.1-8b", 2, 2, "8.03"),
        ("llama-3.1-405b", 8, 1, "52.30"),
    ],
)
def test_published_bytes_of_tensor_parallel_ranks(name: str, tp: int, bytes_a_weight: int, published: str) -> None:
    """gpt-fast (pytorch-labs, README at 32971d3): GB/s over tokens/s. It leaves the head whole, and counts the
    embedding in its Llama-2 rows."""
    model = load(name)
    (stage,) = Sharding(model).stages(Layout(tp=tp))
    params = model.ledger().by_kind("params")
    whole = params["head"] + (params["embedding"] if "llama-2" in name else 0)
    size = bytes_a_weight * (elements(stage, "layers") + whole) / 10**9
    assert abs(size - float(published)) <= 0.01 * float(published)


def matrices(entry: Entry) -> int:
    """Elements of an entry's matrices: vectors are whole on every rank."""
    return int(sum(weight.size for weight in entry.leaf.weights() if len(weight.shape) > 1) * entry.times)


@pytest.mark.slow
@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 3, 5]),
    dp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4, 8]),
    source=st.sampled_from(["D=256 L=5 h=8 h_kv=4 F=512 V=1024 E=8 k=2", "D=256 L=7 h=8 F=512 V=1024"]),
)
def test_ranks_together_hold_the_model(tp: int, pp: int, dp: int, ep: int, source: str) -> None:
    """All matrices over all GPUs: once, but for what dp and the router repeat. FLOPs and the cache likewise."""
    model, layout = load(source), Layout(tp=tp, pp=pp, dp=dp, ep=ep)
    sharding = Sharding(model)
    assume(not sharding.faults(layout))
    kept: dict[str, int] = {}
    whole: dict[str, int] = {}
    work = model.workload(1, 16)
    flops: Any = 0
    cache: Any = 0
    for stage in sharding.stages(layout):
        for entry in walk(stage.root, work):
            cache += entry.cache * stage.copies * tp * dp
            kept[entry.kind] = kept.get(entry.kind, 0) + matrices(entry) * stage.copies * tp * dp
            if entry.kind != "router":
                flops += entry.flops * stage.copies * tp * dp
    once = model.ledger(1, 16)
    for entry in once:
        whole[entry.kind] = whole.get(entry.kind, 0) + matrices(entry)
    for kind, size in whole.items():
        times = dp * tp if kind == "router" else tp * dp // max(tp, ep) if kind == "experts" else dp
        assert kept[kind] == size * times, kind
    routers = once.by_kind("flops").get("router", 0)
    assert flops == dp * (once.total("flops") - routers)
    assert cache == dp * once.total("cache")


@pytest.mark.drawn(quick=1)
@pytest.mark.parametrize("layout", [Layout(tp=4), Layout(tp=4, ep=2), Layout(dp=8, ep=8), Layout(tp=2, pp=2), Layout()])
def test_the_pieces_of_every_tensor_are_all_of_it(layout: Layout) -> None:
    """At most one dimension is split; a piece is the whole over the pieces, rounded up; experts' copies likewise."""
    for name in names():
        sharding = Sharding(load(name))
        if sharding.faults(layout):
            continue
        for stage in range(len(sharding.stages(layout))):
            for at in sharding.placements(layout, stage):
                where = f"{name} {at.entry.path}.{at.weight}"
                ways = layout.expert_ways if at.entry.routed else layout.tp
                assert at.pieces * at.alike == ways, where
                assert at.axis == ("etp" if at.entry.routed else "tp"), where
                assert at.times == at.entry.times * (layout.ep if at.entry.routed else 1), where
                cut = [-(-n // at.pieces) if dim == at.dim else n for dim, n in enumerate(at.whole)]
                if at.entry.path.endswith((".in_proj", ".conv")):  # with groups that several ranks hold
                    cut[0] = max(cut[0], at.shard[0])
                assert list(at.shard) == cut, where


def test_stages_cut_the_layers_in_order() -> None:
    model = load("gemma-3-27b")  # 62 layers: 12, 12, 13, 13, 12 as vLLM cuts them
    stages = Sharding(model).stages(Layout(pp=5))
    layers = [sum(group.count for group in stage.root.groups) for stage in stages]  # type: ignore[attr-defined]
    assert (layers, [stage.copies for stage in stages]) == ([12, 12, 13, 12], [1, 1, 2, 1])
    second_copy = 2 * model.ledger().at("embedding.tokens").total("params")  # the tied matrix is on the last stage too
    total = sum(2 * elements(stage) * stage.copies for stage in stages)
    assert total == 2 * model.params + second_copy


# The largest and the smallest.


def toy(memory: int) -> Accelerator:
    return Accelerator("toy", "toy", memory, 10**12, {}, None, None, {})


MODELS = (
    "D=256 L=4 h=4 h_kv=2 F=512 V=1024",
    "D=256 L=3 h=4 F=512 V=1024 window=64",
    "D=128 L=4 h=4 F=256 V=512 E=4 k=2",
)


@pytest.mark.slow
@given(
    name=st.sampled_from(MODELS),
    memory=st.integers(1, 60_000_000),
    context=st.integers(1, 3_000),
    concurrency=st.integers(1, 40),
    weights=st.sampled_from(["bf16", "int4", "fp8"]),
    chunk=st.sampled_from([16, 512]),
)
def test_every_answer_is_the_last_that_fits(
    name: str, memory: int, context: int, concurrency: int, weights: str, chunk: int
) -> None:
    model = load(name)
    planner = Planner(model, toy(memory), engine(model, weights, chunk=chunk))
    layout = Layout(tp=2)
    most = planner.max_concurrency(layout, context)
    assert most == 0 or planner.fits(layout, context, most)
    assert not planner.fits(layout, context, most + 1)
    longest = planner.max_context(layout, concurrency)
    if longest is None:
        assert planner.fits(layout, 10**12, concurrency)
    else:
        assert longest == 0 or planner.fits(layout, longest, concurrency)
        assert not planner.fits(layout, longest + 1, concurrency)


@pytest.mark.slow
@given(name=st.sampled_from(MODELS), memory=st.integers(300_000, 6_000_000), concurrency=st.integers(1, 30))
def test_no_fewer_gpus_would_do(name: str, memory: int, concurrency: int) -> None:
    """Every layout of every smaller number is tried, also those that the search rules out without a look."""
    model = load(name)
    planner = Planner(model, toy(memory), engine(model, chunk=64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txcalc.planning.serving.deployment.MOST_GPUS", 40)
        fewest = planner.min_gpus(256, concurrency)

    def some(n: int) -> bool:
        layouts = planner.sharding.layouts(n)
        return any(min(gpu.free for gpu in planner.gpus(layout, 256, concurrency)) >= 0 for layout in layouts)

    assert not any(some(n) for n in range(1, 41 if fewest is None else fewest))
    assert fewest is None or some(fewest)


def test_a_layout_that_the_format_cannot_store_is_no_layout() -> None:
    """Rows of 14,336 are blocks of 256 over up to 8 ranks: the other layouts of 16 remain, and the fewest are found."""
    model = load("llama-3.1-8b")
    planner = Planner(model, toy(2 * GIB), engine(model, "q4_k"))
    allowed = set(planner.sharding.layouts(16))
    planned = {choice.layout for choice in plan(planner, 2048, gpus=16).choices}
    assert planned == {layout for layout in allowed if layout.tp < 16} and Layout(tp=16) in allowed
    fewest = planner.min_gpus(100_000, 1)
    assert fewest and planner.min_gpus(100_000, 1, {"tp": 16}) is None
    with pytest.raises(InputError, match="rows of 896, which q4_k's blocks of 256 do not divide"):
        plan(planner, 2048, gpus=16, fixed={"tp": 16})


def test_the_limit_is_named() -> None:
    def limit(memory: int, concurrency: int = 1) -> str:
        model = load("llama-3.1-8b")
        planner = Planner(model, toy(memory), EngineConfig(format_of("bf16"), reserve=Reserve.none()))
        return plan(planner, 8192, concurrency, 1).best.fullest.limit

    assert limit(16_060_522_495) == "weights"
    assert limit(16_060_522_496) == limit(16_060_522_496 + 10**8) == "activations"
    assert limit(18 * 10**9, 10) == limit(80 * 10**9) == "cache"


def test_reserve_is_a_share_or_a_size() -> None:
    assert parse_reserve("10%").of(1001) == 101
    assert parse_reserve("4GiB").of(10**12) == 4 * GIB
    assert Reserve().of(80 * 10**9) == 8 * 10**9
    for wrong in ("100%", "-1%", "x%", "1/0%", "4Gb", ""):
        with pytest.raises(InputError):
            parse_reserve(wrong)


def test_layouts_are_ranked_by_the_rule() -> None:
    model = load("llama-3.1-70b")
    planner = Planner(model, hardware.load("h100-sxm"), engine(model))
    answer = plan(planner, 8192, 8, 8)
    keys = [(not c.fits, c.layout.pp, -c.max_concurrency, -c.layout.tp, -c.fullest.free) for c in answer.choices]
    assert keys == sorted(keys)
    assert (answer.best.layout, answer.best.fits) == (Layout(tp=8), True)
    assert {c.layout for c in answer.choices} == set(Sharding(model).layouts(8))


# The command.


run = Command("deploy", columns=100, NO_COLOR="1")


@pytest.mark.drawn(quick=1)
@pytest.mark.parametrize("form", FORMATS)
def test_other_formats_have_every_layout(form: str) -> None:
    code, out, _ = run("llama-3.1-70b", "--gpu", "h100-sxm:8", "--format", form)
    assert code == 0
    for layout in ("tp=8", "tp=4 dp=2", "tp=2 pp=2 dp=2"):
        assert layout in out


TRIVIAL = """
    import typer
    app = typer.Typer()
    @app.command()
    def nothing() -> None: ...
    app([], standalone_mode=False)
"""
ANSWER = """
    import sys
    from txcalc.cli import entry
    sys.argv = ["txcalc", "deploy", "deepseek-v3", "--gpu", "h200:8", "--weights", "fp8-block"]
    try: entry()
    except SystemExit as end: assert not end.code
    print(sorted({"torch", "numpy", "sympy"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_a_whole_answer_is_quick_and_light(tmp_path: Path) -> None:
    """From the start of Python to the last line it takes no more than six times what the smallest typer app does: 0.3 s
    where that takes 0.05 s. Compiled, as what is installed is; the least of a few, for others use the machine too."""
    compiled = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    compiled["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def spent(script: str) -> float:
        timed = "import time\n" + textwrap.dedent(script) + "\nprint(time.process_time())"
        outs = [
            subprocess.run(
                [sys.executable, "-c", timed], capture_output=True, text=True, check=True, env=compiled
            ).stdout
            for _ in range(4)
        ]
        assert script is TRIVIAL or all(out.splitlines()[-2] == "[]" for out in outs)
        return min(float(out.splitlines()[-1]) for out in outs)

    assert spent(ANSWER) < 6 * spent(TRIVIAL)


def test_an_encoders_pass_is_over_its_prompt() -> None:
    data = deploy("bert-base", gpu="l4", prompt=100).to_dict()
    assert data["workload"]["context"] == data["speed"]["prompt"] == 100
    longer = deploy("bert-base", gpu="l4", prompt=100, context=512).to_dict()
    assert longer["speed"]["prompt"] == 100 and longer["speed"]["ttft_s"] == data["speed"]["ttft_s"]
    deployments = deploy(["bert-base", "gpt2"], gpu="l4", prompt=100).to_dict()["deployments"]
    assert [deployment["speed"]["prompt"] for deployment in deployments] == [100, 100]
    two = deploy("bert-base", gpu="l4:1,t4", prompt=100)  # as fit takes them
    assert two.to_dict() == deploy("bert-base", gpu=["l4:1", "t4"], prompt=100).to_dict()
    assert deploy("bert-base", gpu="l4", prompt="100..300", context=512).to_dict()["speed"]["prompt"] == 200
    assert deploy("bert-base", gpu="l4", context=512).to_dict()["speed"]["prompt"] == 512


SMALL = load("D=256 L=1 h=4 F=256 V=50")

CARD = hardware.load("h100-sxm")


def test_where_nothing_is_left_no_number_of_cards_suffices() -> None:
    for left in (0, 1):
        reserve = Reserve(Fraction(0), CARD.memory - left)
        assert Planner(SMALL, CARD, engine(SMALL, reserve=reserve)).min_gpus(16, 1) is None


@pytest.mark.parametrize(
    ("name", "tp", "where"),
    [
        ("vllm", 2, "split over tp"),
        ("vllm", 1, "whole on every GPU"),
        ("trtllm", 2, "whole on every GPU"),
        ("llama.cpp", 2, "on the first GPU"),
    ],
)
def test_where_an_engine_holds_towers_is_said(name: str, tp: int, where: str) -> None:
    model, kept = load("qwen3.5-27b"), profile(name)
    assert kept
    planner = Planner(model, CARD, engine(model, memory=EngineMemory(kept, CARD, 4096)))
    assert f"stored {where}, " in " ".join(notes_of_layout(planner, Layout(tp=tp), 512))


def test_a_context_beyond_the_model_s_is_named() -> None:
    model = load("gpt2")
    planner = Planner(model, CARD, engine(model))
    assert "a context of 1,025 is beyond" in " ".join(notes_of_layout(planner, Layout(), 1025))
    assert "beyond" not in " ".join(notes_of_layout(planner, Layout(), 1024))
    for users, is_named in ((1, True), (10_000, False)):
        header = " ".join(deploy("gpt2", gpu="l4:1", concurrency=users).report("table").header)
        assert ("1,024 tokens, the model's most" in header) == is_named


def test_states_stay_as_wide_as_they_were() -> None:
    for name, kv, is_noted in (("mamba-2.8b", "fp8", True), ("mamba-2.8b", "bf16", False), ("gpt2", "fp8", False)):
        model = load(name)
        notes = " ".join(notes_of_layout(Planner(model, CARD, engine(model, kv=kv)), Layout(), 64))
        assert ("recurrent states stay at 16 bits" in notes) == is_noted, (name, kv)


def test_a_gguf_format_is_planned_by_the_engine_that_runs_it() -> None:
    plan = ("qwen3-32b", "--gpu", "4090:1", "--weights", "Q4_K_M", "--context", "8k")
    assert run(*plan) == run(*plan, "--engine", "llama.cpp") and "memory of llama.cpp b4000+" in run(*plan).stderr
    assert "memory of llama.cpp b4000 " in run(*plan, "--engine", "llama.cpp@b4000").stderr
    assert "as llama.cpp" not in run(*plan, "--engine", "none").stderr
    for gpu, caution in (
        ("4090:1", "speed of rtx-4090 is less certain: kernels are assumed to be as efficient as on l40s, rtx-4080"),
        ("24GB@1008GB/s@80TFLOPS", "speed of 24GB@1008GB/s@80TFLOPS is less certain: kernels are assumed"),
        ("l40s:8", "GPUs are linked by PCIe at 32 GB/s one way (--link changes it); 8 of them reach 2.1 GB/s each"),
        ("4090:2", "GPUs are linked by PCIe at 32 GB/s one way (by convention the card's whole slot, PCIe 4.0 x16: "),
        ("l40s:8 --link 56GB/s", "GPUs are linked at 56 GB/s (--link); 8 of them reach"),
        ("m3-max:1", "m3-max is the largest, of 128 GB; with less memory: m3-max-NNgb"),
        ("mi300x:1", "speed of mi300x is less certain: some kernels are assumed to be as efficient as on h100"),
    ):
        notes = run.data("llama-3.1-8b", "--gpu", *gpu.split(), *(("--tp", "8") if "l40s" in gpu else ()))["notes"]
        assert any(text.startswith(caution) for text in notes), (gpu, notes)
    measured = run.data("llama-3.1-8b", "--gpu", "l40s:2")["notes"]
    assert not any("less certain" in text or " reach " in text for text in measured)
    phrase = "fit counts llama.cpp on NVIDIA GeForce RTX 4090 (--engine llama.cpp)"
    for weights, note in (("bf16", True), ("fp8", False)):  # which llama.cpp has not
        assert (phrase in " ".join(run("llama-3.1-8b", *plan[1:4], weights, "--context", "8k").stderr.split())) == note
