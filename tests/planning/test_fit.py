"""The inverse questions: every shape fits and one more layer does not; the shapes of Llama are among the answers."""

from __future__ import annotations

import csv
import json
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from command import Command, typed
from hypothesis import assume, given, strategies as st
from msgspec.structs import replace
from strategies import share_of

import txcalc
from txcalc import fit, hardware, load
from txcalc.errors import InputError
from txcalc.planning.fitting import CardSet, FormatFits, ModelFit, best, need
from txcalc.planning.formats.names import format_of
from txcalc.planning.layout import Layout
from txcalc.planning.machine import CONTEXT, allocatable
from txcalc.planning.parallelism import Sharding
from txcalc.planning.serving.deployment import Planner
from txcalc.planning.serving.engine import EngineConfig, Reserve, engine
from txcalc.planning.serving.offload import HostMemory, Offload
from txcalc.planning.serving.rank_memory import RankBytes
from txcalc.planning.shapes import CLASSIC, DesignBudget, DesignFamily, ScaledModel, designs, parse_ratio, trainable

FREE = Reserve.none()


def budget(
    family: DesignFamily | None = None, weights: str = "bf16", context: int | None = None, **spend: int
) -> DesignBudget:
    return DesignBudget(family or DesignFamily(), EngineConfig(format_of(weights), reserve=FREE), context, **spend)


run = Command(columns=100, NO_COLOR="1")


# Which presets fit.


def test_a_format_that_a_model_cannot_have_is_said_not_guessed() -> None:
    model = load("gpt-oss-20b")
    row = FormatFits(model, engine(model, "q4_k"), 8192).on(CardSet(hardware.load("b200")))
    assert (row.need_bytes, row.room_bytes, row.fits) == (None, None, False)
    assert row.refused and "blocks of 256 do not divide" in row.refused


@pytest.mark.slow
def test_fit_lists_what_fits() -> None:
    document = run.data("fit", "--gpu", "l4", "--weights", "bf16,int4")
    assert document["schema"] == "txcalc/fit/1"
    rows = {(row["model"], row["weights"]): row for row in document["rows"]}
    assert rows["llama-3.1-8b", "bf16"]["fits"] and not rows["llama-2-13b", "bf16"]["fits"]
    assert rows["llama-2-13b", "int4"]["fits"] and not rows["llama-3.1-70b", "int4"]["fits"]
    code, out, _ = run("fit", "--memory", "16GB", "--weights", "fp16")
    assert code == 0 and "llama-2-7b" in out and "llama-2-13b" not in out
    code, out, _ = run("fit", "--memory", "1MB")
    assert code == 1 and "0 of " in out


# Shapes.


families = st.builds(
    DesignFamily,
    vocab=st.integers(1, 200_000),
    ratio=st.sampled_from([Fraction(8, 3), Fraction(7, 2), Fraction(4), Fraction(1, 3)]),
    gqa=st.sampled_from([1, 2, 4, 8]),
    d_head=st.sampled_from([64, 128]),
    tied=st.booleans(),
)


@pytest.mark.slow
@share_of(12)
@given(families, st.integers(10**8, 10**12), st.sampled_from(["bf16", "int4", "q8_0"]), st.sampled_from([None, 700]))
def test_a_design_fits_and_one_more_layer_does_not(
    family: DesignFamily, memory: int, weights: str, context: int | None
) -> None:
    limit = budget(family, weights, context, memory=memory)
    try:
        shapes = designs(limit, most=3)
    except InputError:
        assert limit.size(family.model(1, family.step())) > memory
        return
    for shape in shapes:
        assert shape.heads and shape.d_ff and shape.kv_heads
        assert limit.size(family.model(shape.layers, shape.width)) == memory - shape.spare <= memory
        assert limit.size(family.model(shape.layers + 1, shape.width)) > memory
        assert shape.width % 256 == shape.d_ff % 256 == 0
        assert shape.heads * family.d_head == shape.width and shape.kv_heads * family.gqa == shape.heads
        assert shape.d_ff - 256 < family.ratio * shape.width <= shape.d_ff


@pytest.mark.slow
@share_of(10)
@given(families, st.integers(10**8, 10**12))
def test_no_depth_is_nearer_to_the_parameters(family: DesignFamily, params: int) -> None:
    limit = budget(family, params=params)
    shapes = designs(limit, most=3)
    assume(abs(shapes[0].spare) * 20 <= params)
    for shape in shapes:
        others = [shape.layers + 1, shape.layers - 1] if shape.layers > 1 else [2]
        for layers in others:
            assert abs(params - family.model(layers, shape.width).params) >= abs(shape.spare)
        assert abs(shape.spare) * 20 <= params


def test_cache_of_a_token_and_memory_with_a_context() -> None:
    family = DesignFamily(vocab=128_256, ratio=Fraction(7, 2), gqa=4)
    limit = budget(family, context=8192, memory=24 * 10**9)
    shape = limit.shape(32, 4096)
    assert shape.cache_per_token == 131_072
    assert shape.bytes == need(load("llama-3.1-8b"), limit.engine, 8192)


@pytest.mark.slow
def test_classic_shapes_and_the_boundary_between_them() -> None:
    answer = txcalc.design(memory="16GB")
    assert [(shape.layers, shape.width) for shape in answer.classic] == list(CLASSIC)
    largest, excess = answer.largest_classic, answer.smallest_excess
    assert largest is not None and excess is not None
    assert ((largest.layers, largest.width), (excess.layers, excess.width)) == ((32, 4096), (40, 5120))
    scaled = txcalc.design("gpt2", memory="16GB")
    assert scaled.largest_classic is None is scaled.smallest_excess


def test_the_line_everybody_asks_for() -> None:
    code, out, _ = run("design", "--memory", "16GB", "--weights", "fp16")
    assert code == 0 and "16GB at fp16: L=32 D=4096 fits, L=40 D=5120 does not" in out.splitlines()
    headings = next(line.split() for line in out.splitlines() if line.split()[:1] == ["L"])
    assert headings[:6] == ["L", "D", "h", "h_kv", "F", "parameters"]


def test_the_json_of_a_design() -> None:
    argv = ("design", "--params", "8B", "--vocab", "128256", "--ratio", "3.5", "--gqa", "4", "--json")
    code, out, _ = run(*argv)
    document: dict[str, Any] = json.loads(out)
    assert code == 0 and document["schema"] == "txcalc/design/1"
    first = document["rows"][0]
    assert (first["layers"], first["width"], first["kv_heads"], first["d_ff"]) == (32, 4096, 8, 14_336)
    assert load(first["inline"]).params == first["params"] == 8_030_261_248


def test_csv_says_the_unit_of_what_it_writes_exact() -> None:
    rows = list(csv.DictReader(typed("fit", "--gpu", "l4", "--weights", "bf16", "--format", "csv").stdout.splitlines()))
    columns = [(row["column"], row["unit"]) for row in rows[:3]]
    assert columns == [("parameters", ""), ("tokens", ""), ("left, bf16", "bytes")]
    assert {"bert-base", "t5-small"} <= {row["row"] for row in rows}, "every form but the table has all models"
    argv = ["fit", "gpt2", "--gpu", "l4", "--gpu", "t4"]
    (top, *_), body = run.data(*argv)["rows"], list(csv.DictReader(typed(*argv, "--format", "csv").stdout.splitlines()))
    of = {row["column"]: (row["value"] or row["text"], row["unit"]) for row in body}
    assert of["l4"] == (str(top["room_bytes"]), "bytes") and of["l4, format"] == (top["weights"], "")
    assert of["l4, tokens/s"] == (str(top["tokens_per_s"]), "")
    argv = ["deploy", "gpt2", "mixtral-8x7b", "--gpu", "h100-sxm:2", "--format", "csv"]
    assert typed(*argv).stdout.startswith("id,deployment,fits,layout,most sequences,TTFT (s),TPOT (s),")


def test_what_is_short_of_ram_is_below_zero_in_a_table() -> None:
    """Also where the GPU itself has room to spare."""
    argv = ("fit", "llama-3.1-70b", "--gpu", "4090", "--ram", "16GB")
    (row,) = [row for row in run.data(*argv, code=1)["rows"] if row.get("best")]
    assert row["room_bytes"] > 0 and row["short_bytes"] == -row["ram_free_bytes"] > 0
    (line,) = csv.DictReader(run(*argv, "--format", "csv")[1].splitlines())
    assert line["left (bytes)"] == str(-row["short_bytes"])


def test_what_was_never_released_is_not_offered() -> None:
    _, out, _ = run("fit", "--gpu", "h200", "--weights", "bf16", "--json")
    names = {row["model"] for row in json.loads(out)["rows"]}
    assert {"qwen3-32b", "glm-4.5-air", "phi-4"} <= names and not names & {"gpt3-175b", "palm-8b", "chinchilla-70b"}


KIN = ["gpt2", "mixtral-8x7b", "deepseek-v3", "gemma-3-27b", "jamba-v0.1", "mamba-2.8b", "qwen3-next-80b-a3b"]


@pytest.mark.slow
@pytest.mark.parametrize("name", KIN)
@pytest.mark.parametrize("spend", ["params", "memory"])
def test_shapes_like_a_model_spend_the_budget(name: str, spend: str) -> None:
    """Plain, experts, MLA, windows, hybrids: built from its changes it costs what is said, and a round more does not
    fit, or is no nearer."""
    family = ScaledModel(load(name))
    limit = DesignBudget(family, EngineConfig(format_of("bf16"), reserve=FREE), **{spend: 40 * 10**9})
    shapes = designs(limit, most=3)
    for shape in shapes:
        model = load(name, family.changes(shape.layers, shape.width))
        assert (model.params, model.active) == (shape.params, shape.active)
        assert (shape.layers - family.first) % family.round == 0
        size = limit.spent(model)
        assert size == 40 * 10**9 - shape.spare
        next_size = limit.spent(family.model(shape.layers + family.round, shape.width))
        assert next_size > 40 * 10**9 if spend == "memory" else abs(next_size - 40 * 10**9) >= abs(shape.spare)
        if spend == "memory":
            assert shape.fits


@pytest.mark.parametrize("name", KIN)
def test_a_model_is_like_itself(name: str) -> None:
    model = load(name)
    stack = model.description.last
    family = ScaledModel(model)
    assert stack.d_model % family.step() == 0
    rebuilt = family.model(stack.n_layers, stack.d_model)
    assert rebuilt.ledger(tokens=64).by_kind("params") == model.ledger(tokens=64).by_kind("params")
    assert rebuilt.ledger(tokens=64).total("flops") == model.ledger(tokens=64).total("flops")


def test_a_design_s_widest_is_the_least_that_its_heads_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    family = ScaledModel(load("gemma-3-12b"))
    monkeypatch.setattr("txcalc.planning.shapes.WIDEST", family.step())
    assert [*family.widths()] == [family.step()]
    monkeypatch.setattr("txcalc.planning.shapes.WIDEST", family.step() - 1)
    with pytest.raises(InputError, match="whole heads need a multiple of D = "):
        family.widths()


def test_dense_layers_before_experts_stay_as_many() -> None:
    family = ScaledModel(load("deepseek-v3"))
    assert (family.first, family.round) == (4, 1)
    assert family.changes(10, 1792)["pattern"] == ["3*dense", "7*sparse"]
    assert (ScaledModel(load("gemma-3-27b")).first, ScaledModel(load("gemma-3-27b")).round) == (6, 6)


def test_a_budget_of_training_is_6nd() -> None:
    """Chinchilla's own: 5.76e23 FLOPs are 69.3 B parameters on 1.39 T tokens at 20 per parameter."""
    assert trainable(576 * 10**21, None) == (69_282_032_302, 20 * 69_282_032_302)
    document = run.data("design", "qwen3-30b-a3b", "--flops", "1e23", "--train-tokens", "2T")
    assert document["budget"]["params"] == 10**23 // (6 * 2 * 10**12)
    for row in document["rows"]:
        assert row["train_flops"] == 6 * row["active"] * 2 * 10**12
        assert row["spare"] == document["budget"]["params"] - row["active"]
        assert abs(row["train_flops"] - 10**23) <= 10**23 / 20


@pytest.mark.parametrize(
    ("card", "seen"),
    [
        *(("m3-max", 96), ("m4", 32 * 2 / 3), ("strix-halo", 62.469), ("strix-halo-64gb", 31.32), ("gb10", 121.69)),
        *(("a100", 79.25), ("h200", 139.8), ("rtx-3060", 11.5), ("mi300x", 191.98), ("48GiB@1TB/s", 48)),
    ],
)
def test_plans_use_the_memory_that_a_process_sees(card: str, seen: float) -> None:
    """Whatever the engine: macOS two thirds or three quarters, Linux a half on Strix Halo, CUDA some 0.5 GiB less than
    the driver reports (presets/memory.toml); in training without the CUDA context of NVIDIA's."""
    device = hardware.load(card)
    for usable in (Reserve.none().available(device), allocatable(device) + CONTEXT * (device.vendor == "NVIDIA")):
        assert usable == pytest.approx(seen * 2**30, rel=0.001)


def test_a_format_that_the_engine_lacks_does_not_fit() -> None:
    """It did: the engine was asked about in `deploy` alone. Its own reserve counts here too."""
    code, _, err = run("fit", "llama-3.1-8b", "--gpu", "h100", "--engine", "trtllm", "--weights", "Q4_K_M")
    assert (code, "expected a format that TensorRT-LLM has" in " ".join(err.split())) == (1, True)
    data = run.data("fit", "llama-3.1-8b", "--gpu", "4090", "--engine", "llama.cpp")
    assert data["reserve_bytes"] < 2**29  # what CUDA does not see of it, no tenth


def test_the_last_byte_is_enough() -> None:
    """What is usable may be all of it."""
    model = load("D=512 L=4 h=8 h_kv=4 F=1376 V=32000")
    how, layout = engine(model), Layout()
    rank = RankBytes(model, Sharding(model).stages(layout)[0], how, layout)
    for context, sequences in ((100, 1), (4000, 3)):
        most = max(rank.activations(context, sequences).values())
        all_of_it = rank.weights_bytes + rank.cache_bytes(context, sequences) + sum(rank.overheads.values()) + most
        assert rank.fits(all_of_it, context, sequences) and not rank.fits(all_of_it - 1, context, sequences)


def test_a_ratio_is_a_short_number() -> None:
    assert parse_ratio("3." + "5" * 17) > 3
    with pytest.raises(InputError):
        parse_ratio("3." + "5" * 18)


def test_an_accelerator_or_a_format_given_twice_is_one() -> None:
    once, twice = (fit("gpt2", gpu=cards) for cards in (["h100-sxm", "l4"], ["h100-sxm", "l4", "h100"]))
    assert str(once) == str(twice) and len(twice.cards) == 2
    once, twice = (fit("gpt2", gpu="l4", weights=formats) for formats in ("int4,bf16", ["int4", "bf16", "INT4"]))
    assert str(once) == str(twice) and len(twice.rows) == 2


SMALL = load("D=256 L=1 h=4 F=256 V=50")


def test_ram_that_is_just_enough_suffices() -> None:
    """Of weights in RAM to the last byte, with one sequence's cache."""
    model, card = load("llama-3.1-8b"), hardware.load("rtx-4090")
    how = replace(engine(model, "Q4_K_M"), offload=Offload(HostMemory(10**12, 10**11), 5))
    free = Planner(model, card, how).ram_free(Layout(), 4096, 1)
    assert free is not None and 0 < free < 10**12
    row = FormatFits(model, how, 4096).on(CardSet(card))
    assert row.ram_free_bytes == free
    for lacking in (0, 1):
        host = HostMemory(10**12 - free - lacking, 10**11)
        short = Planner(model, card, replace(how, offload=Offload(host, 5)))
        assert short.fits(Layout(), 4096, 1) == (not lacking)


def test_a_design_that_is_not_one_round_deep() -> None:
    for family, message in (
        (DesignFamily(vocab=1000), "hold 1 layer"),
        (ScaledModel(load("gemma-2-9b")), "hold 2 layers"),
    ):
        with pytest.raises(InputError, match=message):
            designs(DesignBudget(family, engine(SMALL), memory=10))


def test_the_widest_design_is_one_head_of_it() -> None:
    assert list(ScaledModel(load("D=32768 L=2 h=1 F=64 V=64")).widths()) == [32_768]
    with pytest.raises(InputError, match="more than the 32,768 tried"):
        ScaledModel(load("D=32832 L=2 h=1 F=64 V=64")).widths()


MIXTURE = "D=64 L=4 h=8 h_kv=4 F=96 V=250 E=4 k=2"


def test_a_design_s_least_width_may_be_the_widest() -> None:
    """2^15 is tried, a multiple of 2^16 alone is not."""
    assert DesignFamily(vocab=1000, d_head=4096, gqa=8).checked().step() == 2**15
    with pytest.raises(InputError, match="more than the 32,768 tried"):
        DesignFamily(vocab=1000, d_head=4096, gqa=16).checked()


def test_of_formats_beside_ram_the_one_that_leaves_most_of_it() -> None:
    none = ModelFit.refusal(load(MIXTURE), "bf16", "bf16", "", 1, "no kernel")
    first, second = (replace(none, fits=True, room_bytes=5, in_ram="experts", ram_free_bytes=ram) for ram in (0, 1))
    assert best([first, second]) == second and best([second, first]) == second
    refused = [replace(none, weights=name) for name in ("bf16", "fp8")]
    assert best(refused) == refused[0]


@pytest.mark.parametrize(
    ("name", "card", "room"),
    [("qwen3-32b", "4090", 2.887), ("llama-3.1-70b", "4090:2", 1.745), ("llama-3.1-70b", "m4-pro-64gb", 5.305)],
)
def test_a_gguf_format_is_judged_by_the_engine_that_runs_it(name: str, card: str, room: float) -> None:
    """They were short of 61 MiB, 1.021 GiB and 338 MiB: by vLLM's reserve and its chunks of 8,192 tokens."""
    (row,) = fit(name, gpu=card, weights="Q4_K_M").rows
    assert row.fits and row.room_bytes and row.room_bytes / 2**30 == pytest.approx(room, abs=0.001)
    assert row == fit(name, gpu=card, weights="Q4_K_M", engine="llama.cpp").rows[0]
    counted = fit(name, gpu=card, weights="Q4_K_M", engine="none").rows[0]
    assert counted.room_bytes and counted.room_bytes < 0 and counted.engine == ""


def test_the_engine_follows_the_format_and_the_card() -> None:
    """On a card of one's own llama.cpp runs all that it has; elsewhere what only .gguf files hold."""
    rows = fit("llama-3.1-8b", gpu=["4090", "h100", "mi300x"], weights="bf16,Q8_0,fp8").rows
    judged = {(row.gpu, row.asked): row.engine.partition(" ")[0] for row in rows}
    assert {key for key, engine in judged.items() if engine == "llama.cpp"} == {
        *[(card, "q8_0") for card in ("rtx-4090", "h100-sxm", "mi300x")],
        ("rtx-4090", "bf16"),
    }
    assert fit("llama-3.1-8b", gpu="h100:2", weights="Q8_0").rows[0].layout == "pp=2"  # as llama.cpp splits
    (kimi,) = fit("kimi-k2.5", gpu="h100:8").rows  # tp=8 does not fit: each GPU has the latent's matrices of all layers
    assert (kimi.layout, kimi.weights) == ("tp=4 pp=2 ep=4", "int4-g32")
    assert fit("llama-3.1-8b", gpu="tpu-v5e", weights="Q8_0").rows[0].engine == ""  # where it does not run
    (narrow,) = fit("llama-3.1-8b", gpu="h100", weights="Q8_0", kv="fp8").rows
    assert narrow.refused and "--kv is 'fp8', expected a format of llama.cpp's cache" in narrow.refused


def test_a_verdict_that_differs_from_deploy_or_a_card_says_why() -> None:
    assert run("deploy", "qwen3-30b-a3b", "--gpu", "strix-halo").stderr.startswith(
        "note: no engine is named: fit counts"
    )
    ran = run("fit", "qwen3-32b", "--memory", "24GB")
    assert (
        "1.719 GiB" in ran.stdout
        and "cards sold with 24GB may have 24GiB; the driver or system keeps some" in ran.stderr
    )


MODELS = (
    "qwen3-8b", "qwen3-32b", "llama-3.1-8b", "llama-3.1-70b", "gpt2", "mixtral-8x7b", "gemma-3-12b", "gemma-3-27b",
    "gpt-oss-20b", "qwen3-30b-a3b", "deepseek-v3", "phi-4", "mistral-7b", "llama-3.2-1b", "jamba-v0.1", "t5-large",
    "transformer-base", "kimi-k2.5",
)  # fmt: skip
CARDS = (
    "h100", "h200", "b200", "a100", "l40s", "l4", "v100", "mi300x", "mi210", "a10g", "4090", "5090", "3060", "5080",
    "7900-xtx", "m2-max", "m3-ultra", "m4-pro", "m4-max", "strix-halo", "gb10",
)  # fmt: skip
LLAMA_CPP = ("Q4_K_M", "Q6_K", "Q8_0", "IQ4_XS")


@pytest.mark.drawn(30)
@pytest.mark.parametrize("seed", range(200))
def test_fit_deploy_and_memory_agree(seed: int) -> None:
    """They counted windows' pages by different steps, MLX with vLLM's reserve, and llama.cpp split as it cannot."""
    random = Random(seed)
    model, card, number = load(random.choice(MODELS)), random.choice(CARDS), random.choice([1, 1, 1, 2, 4])
    weights = random.choice(["native", "bf16", "fp8", "int4", "int8", "MLX", *LLAMA_CPP])
    context, mlx = random.choice([2048, 8192, 32_768]), weights == "MLX"
    if mlx:
        model, weights = load(model.name, {"quantization": {"bits": 4, "group_size": 64}}), "native"
    of_card = fit(model, gpu=f"{card}:{number}", weights=weights, context=context)
    (row,) = of_card.rows
    engine_name = row.engine.partition(" ")[0] or (None if mlx else "none")  # for its formats mlx-lm cannot be named
    is_fixed = weights in LLAMA_CPP or mlx or card.startswith("m")  # what only one engine runs
    options: dict[str, Any] = {} if is_fixed else {"engine": engine_name}
    if row.refused:
        with pytest.raises(InputError):
            txcalc.deploy(model, f"{card}:{number}", weights=weights, context=row.context, concurrency=1, **options)
        return
    plan = txcalc.deploy(model, f"{card}:{number}", weights=weights, context=row.context, concurrency=1, **options)
    assert (plan.fits, str(plan.layout), plan.headroom_bytes) == (row.fits, row.layout, row.room_bytes)
    if number == 1:
        memory = f"{of_card.memory_bytes - of_card.reserve_bytes}B"
        (bare,) = fit(model, memory=memory, weights=weights, context=context, engine=engine_name).rows
        assert bare.room_bytes is not None and row.room_bytes is not None
        if row.engine and hardware.load(card).unified:  # it holds the table of tokens, which is in RAM otherwise
            assert bare.room_bytes >= row.room_bytes
        else:
            assert bare.room_bytes == row.room_bytes


def test_unified_memory_says_what_the_system_gives() -> None:
    output = " ".join(run("fit", "gpt2", "--gpu", "m4-max,strix-halo,gb10").stdout.split())
    assert "96 GiB usable (sudo sysctl iogpu.wired_limit_mb=N gives more)" in output
    assert "62.47 GiB usable (the kernel parameter ttm.pages_limit gives more)" in output
    assert "about 102 of 121 GiB are free after start" in output
    notes = run.data("train", "gpt2", "--gpu", "m4-max:1", "--layout", "tp=1")["notes"]
    assert "m4-max is the largest, of 128 GB; with less memory: m4-max-NNgb" in notes
    assert "Apple M4 Max: sudo sysctl iogpu.wired_limit_mb=N gives more" in notes
    notes = run.data("train", "gpt2", "--gpu", "mi300x:1", "--layout", "tp=1")["notes"]
    assert "serving kernels measured on h100-sxm, h200 and, in part, on mi300x" in notes[0]


def test_mlx_reserves_nothing_of_what_the_system_gives() -> None:
    """It was a tenth, vLLM's."""
    quantised = load("llama-3.1-8b", {"quantization": {"bits": 4, "group_size": 64}})
    (row,) = fit(quantised, gpu="m4-max", weights="native").rows
    assert row.weights.startswith("mlx") and row.need_bytes and row.room_bytes == 96 * 2**30 - row.need_bytes
