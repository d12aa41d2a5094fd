"""Layers and experts in RAM: what lies where adds up, llama.cpp's own buffers, times by hand, bad input."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import astuple, replace
from typer.testing import CliRunner

from txcalc import hardware, load
from txcalc.cli import app
from txcalc.errors import InputError
from txcalc.hardware.curves import Curve, Efficiency
from txcalc.parts.part import Workload
from txcalc.planning.fitting import CardSet, FormatFits
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.serving.deployment import Planner, with_offload
from txcalc.planning.serving.engine import Reserve, engine
from txcalc.planning.serving.engine_memory import EngineMemory
from txcalc.planning.serving.engine_profiles import profile
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.serving.offload import HostMemory, Offload, OffloadRequest, layer_count, parse_offload

CARD = hardware.load("rtx-4090")
HOST = HostMemory(64 * 10**9, 80 * 10**9)


def run(*argv: str) -> tuple[int, str, str]:
    result = CliRunner(env={"NO_COLOR": "1"}).invoke(app, list(argv))
    message = str(result.exception) if isinstance(result.exception, InputError) else result.stderr
    return 2 if isinstance(result.exception, InputError) else result.exit_code, result.stdout, message


def deployed(name: str, offload: Offload | None, weights: str = "Q4_K_M") -> Planner:
    model = load(name)
    memory = EngineMemory(profile("llama.cpp"), CARD, 8192)  # type: ignore[arg-type]
    how = engine(model, weights, chunk=memory.most_tokens, memory=memory)
    return Planner(model, CARD, replace(how, offload=offload or how.offload))


def test_llama_cpp_s_own_buffers() -> None:
    """Llama-3-8B Q4_K_M, all layers on the card: "CPU buffer size = 281.81 MiB", "CUDA0 buffer size = 4403.49 MiB"."""
    (rank,) = deployed("llama-3.1-8b", None).ranks(Layout())
    table = rank.ram(8192, 1) / 2**20
    # Llama 3.1 has 64 rotary factors of fp32 that 3 has not; they are no parameter here.
    assert (round(table, 2), round(rank.weights_bytes / 2**20, 2)) == (281.81, 4403.49)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "llama-3.2-3b"])
@pytest.mark.parametrize("stages", [1, 2])
def test_what_lies_where_is_all_there_is(name: str, stages: int) -> None:
    """Card and RAM hold all weights once, but for a tied head's second copy of the table; and all of the cache."""
    layers, sums = layer_count(load(name)), []
    for offload in (
        Offload(HOST),
        Offload(HOST, 5),
        Offload(HOST, 5, 9),
        Offload(HOST, 0, layers),
        Offload(HOST, 7, 3),
    ):
        ranks = list(deployed(name, offload).ranks(Layout(pp=stages)))
        weights = sum(rank.stage.copies * (rank.weights_bytes + rank.ram(4096, 0)) for rank in ranks)
        whole = sum(r.stage.copies * (r.weights_bytes + r.pages_bytes(4096) + r.ram(4096, 1)) for r in ranks)
        sums.append((weights, whole))
    assert len(set(sums)) == 1
    model = load(name)
    whole = sum(engine(model, "Q4_K_M").stored(entry) for entry in model.ledger() if entry.leaf.params)
    head = 128256 * 3072 * 210 // 256 if name == "llama-3.2-3b" else 0
    assert sums[0][0] == whole + head


@pytest.mark.parametrize(("lacking", "layers"), [(0, 2), (1, 3)])
def test_what_takes_a_card_to_its_last_byte_fits(lacking: int, layers: int) -> None:
    model = load("D=64 L=4 h=4 F=96 V=50 untied")
    how = replace(engine(model, "bf16"), reserve=Reserve.none())
    card = replace(CARD, name="another", vendor="")  # whose memory is all usable
    planner = Planner(model, card, replace(how, offload=Offload(HOST, 2)))
    memory = card.memory - planner.fullest(Layout(), 512, 1).free - lacking
    offload = with_offload(OffloadRequest(HOST), model, replace(card, memory=memory), how, 1, 512, 1).offload
    assert offload and offload.layers == layers


@pytest.mark.slow
def test_deploy_and_fit_say_what_lies_in_ram() -> None:
    code, out, _ = run(
        "deploy", "qwen3-30b-a3b", "--gpu", "rtx-4060-ti-16gb", "--weights", "Q4_K_M", "--ram", "32GB@60GB/s", "--json"
    )
    data = json.loads(out)
    assert code == 0
    assert data["engine"]["ram"]["experts_of_layers"] > 0
    assert data["speed"]
    code, out, _ = run(
        "deploy", "qwen3-30b-a3b", "--gpu", "rtx-4060-ti-16gb", "--weights", "bf16", "--ram", "32GB", "--json"
    )
    assert (code, json.loads(out)["limit"]) == (1, "RAM")
    code, out, _ = run("fit", "llama-3.3-70b", "--gpu", "rtx-4090", "--ram", "64GB@60GB/s", "--json")
    row = json.loads(out)["rows"][-1]
    assert (code, row["fits"]) == (0, True)
    assert row["in_ram"].endswith("layers")


def test_what_has_no_ram_apart() -> None:
    code, _, err = run("deploy", "llama-3.1-8b", "--gpu", "gb10", "--ram", "64GB")
    assert (code, "shares its memory with the host" in err) == (2, True)
    with pytest.raises(InputError, match="cannot lie in RAM"):
        layer_count(load("t5-small"))
    assert parse_offload(None, None, None, None) is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("64GB", None, None, None), (64 * 10**9, None, None, 25 * 10**9, None, None)),
        (("64GB@80GB/s", "12GB/s", 0, None), (64 * 10**9, 80 * 10**9, None, 12 * 10**9, 0, None)),
        (("2GiB@1GB/s@3TFLOPS", None, 20, "all"), (2**31, 10**9, 3 * 10**12, 25 * 10**9, 20, -1)),
        (("64GB", None, None, "999999"), (64 * 10**9, None, None, 25 * 10**9, None, 999_999)),
    ],
)
def test_what_is_asked_for_of_ram(arguments: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    request = parse_offload(*arguments)
    assert request is not None and (*astuple(request.host), request.gpu_layers, request.cpu_moe) == expected
    with pytest.raises(InputError):
        parse_offload("64GB", None, None, "1000000")


@pytest.mark.parametrize(
    ("offload", "cuts", "text", "bytes_"),
    [
        (Offload(HOST), (), "the table of tokens", 0),
        (Offload(HOST, 2), (2,), "2 layers", 2 * 1),
        (Offload(HOST, 0, 3), (3,), "3 layers' experts", 3j),
        (Offload(HOST, 1, 3), (1, 3), "1 layers and 3 layers' experts", 1 + 2j),
        (Offload(HOST, 3, 3), (3,), "3 layers", 3),
        (Offload(HOST, 4, 4, True), (4,), "4 layers and the head", 4),
    ],
)
def test_what_lies_in_ram_by_hand(offload: Offload, cuts: tuple[int, ...], text: str, bytes_: complex) -> None:
    """Of four layers: the table always, whole layers with their caches, experts (√−1) of more, a head that is told."""
    assert (offload.cuts, str(offload)) == (cuts, text)
    model = load("D=64 L=4 h=4 F=96 V=50 E=4 k=2 untied")
    (rank,) = Planner(model, CARD, replace(engine(model, "bf16", block=1), offload=offload)).ranks(Layout())
    table, experts = 50 * 64, 4 * 3 * 64 * 96
    layer = experts + 4 * 64 * 64 + 4 * 64 + 2 * 64
    elements = table + int(bytes_.real) * layer + int(bytes_.imag) * experts + table * offload.head
    assert rank.ram(1000, 0) == 2 * elements and rank.weights_bytes == 2 * (model.params - elements)
    assert rank.ram(1000, 3) == 2 * elements + 3 * 2 * 2 * 64 * 1000 * int(bytes_.real)
    assert rank.pages_bytes(1000) == 2 * 2 * 64 * 1000 * (4 - int(bytes_.real))
    notes = list(offload.notes())
    assert bool(notes) == bool(cuts) and all(" at 25 GB/s " in note for note in notes[:1])
    assert not list(Offload(None, 2).notes())


@pytest.mark.parametrize("tokens", [1, 31, 32, 100])
@pytest.mark.parametrize("peak", [None, 10**12, 10**7])
def test_times_of_layers_in_ram_by_hand(tokens: int, peak: int | None) -> None:
    """Both layers in RAM, of which the host reads half of its bandwidth: few tokens are its own; for many the weights
    are copied to the card, but not what attention reads of the cache."""
    half = {"matmul.bf16": Curve(0.5, 0.25), "attention.prefill": Curve()}
    card = replace(CARD, calibration=Efficiency(half, {}, 0.5, 0.0, 1.0, {}))
    model, host = load("D=64 L=2 h=4 F=96 V=50 untied"), HostMemory(64 * 10**9, 10**9, peak, 2 * 10**9)
    aside = Offload(host, 2)
    how = replace(engine(model, "bf16"), offload=aside)
    rank = LayoutTime(model, Sharding(model, True, aside), Layout(), card, how).ranks[0]
    work = Workload(1, tokens, 0, 0)
    if tokens >= 32 and peak is None:
        with pytest.raises(InputError, match="attention of layers in RAM is the host's"):
            rank.parts(work)
        return
    parts = rank.parts(work)
    fed, core = parts["feed_forward"], parts["attention_core"]
    weights, flops = 2 * 2 * 64 * 96, 2 * tokens * 2 * 64 * 96
    read, acted = 3 * weights, 2 * tokens * 2 * 3 * 96
    moved = 3 * 2 * tokens * 2 * (64 + 96)
    assert fed.least_ram == pytest.approx(read / 1e9) and fed.least_weights == fed.launch == 0
    assert fed.least_compute == pytest.approx(3 * flops / card.peak("bf16"))
    if tokens >= 32:
        on_card = max((weights + moved / 3) / card.bandwidth / 0.25, flops / card.peak("bf16") / 0.5)
        assert fed.link == pytest.approx(read / 2e9)
        assert fed.memory == pytest.approx(3 * on_card + acted / card.bandwidth / 0.5) and fed.compute == 0
    else:
        matrix, computed = (weights + moved / 3) / 1e9 / 0.5, flops / peak if peak else 0
        assert fed.link == 0 and fed.compute == pytest.approx(3 * computed if computed > matrix else 0)
        assert fed.memory == pytest.approx(acted / 1e9 / 0.5 + (3 * matrix if computed <= matrix else 0))
    pairs, keys = tokens * (tokens + 1) // 2, 2 * 2 * 2 * 64 * tokens
    scored, cached = 2 * 4 * 64 * pairs / peak if peak else 0, (keys + 2 * 2 * 128 * tokens) / 1e9 / 0.5
    assert (core.compute, core.memory) == pytest.approx((scored, 0) if scored > cached else (0, cached))
    assert core.least_ram == pytest.approx(keys / 1e9) and core.link == 0


def test_a_layer_is_on_a_card_that_it_fills_to_the_last_byte() -> None:
    model = load("D=64 L=4 h=4 F=96 V=250")
    how = engine(model, reserve=Reserve.none())
    ways = [FormatFits(model, replace(how, offload=Offload(HOST, left)), 64) for left in (1, 2)]
    needs = [way.on(CardSet(CARD)).need_bytes or 0 for way in ways]
    offloads = [
        with_offload(OffloadRequest(HOST), model, replace(CARD, memory=memory), how, 1, 64, 1).offload
        for memory in (*needs, needs[1] - 1)
    ]
    assert offloads == [Offload(HOST, left) for left in (1, 2, 3)]


def test_a_host_whose_arithmetic_is_not_known_is_said() -> None:
    for peak in (None, 10**12):
        notes = " ".join(Offload(HostMemory(10**12, 10**11, peak), 3).notes())
        assert ("arithmetic is not counted" in notes) == (peak is None) and "GB/s" in notes
    assert not [*Offload(None, 3).notes()] and not [*Offload(HostMemory(10**12, 10**11)).notes()]
