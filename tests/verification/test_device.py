"""Real tensors: bytes of weights and caches, the most memory held, times, and what they say of the machine they ran on.

Everything here runs on the CPU; what needs a CUDA device is marked, and skipped with its reason where there is none.
"""

from __future__ import annotations

import gc
import json
import os
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache, partial
from itertools import count
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import gpu as gpu_script
import pytest
from command import Command
from msgspec import convert
from msgspec.structs import replace
from paths import ROOT
from tiny import TINY, tiny

from txcalc import hardware, load
from txcalc.errors import InputError, UnknownName
from txcalc.evidence.figures import Figure
from txcalc.parts.cores import AttentionCore
from txcalc.parts.linear import Linear
from txcalc.parts.part import Cache, Weight
from txcalc.planning.layout import Layout
from txcalc.planning.machine import Machine
from txcalc.planning.serving.durations import total
from txcalc.planning.training.memory import memory
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.step import StepTimer
from txcalc.questions.measurements import Ceilings
from txcalc.render.measurements import ceilings

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'txcalc[verify]'")
pytest.importorskip("fvcore", reason="fvcore is not installed: pip install 'txcalc[verify]'")

from txcalc import reference  # noqa: E402
from txcalc.questions.calibrate import Calibrate  # noqa: E402
from txcalc.verification import device, verify, workloads  # noqa: E402
from txcalc.verification.calibrate import (  # noqa: E402
    ADAMW_MOVED,
    CUDA,
    Calibration,
    MeasuredSizes,
    calibrate,
    kernels_to_measure,
)
from txcalc.verification.measure import (  # noqa: E402
    Clock,
    measure_allocation,
    measure_peak,
    time_fresh,
    time_once,
    time_parts,
    trace_peak,
)
from txcalc.verification.suite import LISTS, Item, Suite  # noqa: E402
from txcalc.verification.workloads import DeviceModel, Load, common_loads, crossing, peak_memory, times  # noqa: E402

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, gpu])]
FORMS = ["gemma3", "deepseek-v3", "t5", "vit", "jamba", "vectors"]
SMALL = MeasuredSizes(
    ("fp32",),
    ((192, 512, 512), (192, 512, 1536), (192, 1536, 512)),
    {4: ((192, 512, 514),), 2: ((192, 512, 513),)},
    (2**20, 2**25),
    (8, 64),
    (160, 320),
    (256, 3),
    (512,),
    "D=512 L=3 h=8 h_kv=4 F=1536 V=4096",
    (Load("prefill", 1, 128), Load("prefill", 2, 96), Load("decode", 4, 1, 64)),
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Then its own time on a processor is the clock, and what else runs on the machine no part of a time; nor does one
    thread wait for another that has no processor. And what was imported is no garbage: no collection looks at it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(before)


@cache
def quick() -> Calibration:
    """One round: how fast a machine is says nothing of what is done with the answer."""
    return calibrate("cpu", sizes=SMALL, rounds=1)


# Bytes.


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_every_byte_of_weights_and_cache(name: str, dtype: Any) -> None:
    verdict = verify(tiny(name), ["bytes"], dtype=dtype)
    assert verdict.failures == [] and verdict.rows


@pytest.mark.drawn(2)
@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("name", FORMS)
def test_the_allocator_holds_what_is_predicted(name: str, where: str) -> None:
    verdict = verify(tiny(name), ["bytes"], device=where, dtype=torch.bfloat16)
    assert verdict.failures == []
    compared = {row.quantity.split(" and ")[0] for row in verdict.rows if row.oracle == "the allocator"}
    cached = set() if tiny(name).kind in ("encoder", "vision") else {"bytes of the cache"}
    assert compared == {"bytes of the weights"} | cached


def test_a_wrong_size_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = AttentionCore.cache
    monkeypatch.setattr(AttentionCore, "cache", lambda self, work: Cache(*(2 * n for n in right(self, work))))
    monkeypatch.setattr(Linear, "weights", lambda self: (Weight("weight", (self.d_out, self.d_in + 1)),))
    wrong = {row.quantity for row in verify(tiny("llama"), ["bytes"], device="cpu").failures}
    assert wrong == {"bytes of weights", "bytes of the weights", "bytes of the cache"}


def test_what_is_held_is_what_stays() -> None:
    def make() -> Any:
        torch.empty(10_000)
        return torch.empty(1000), [torch.empty(24)]

    _, requested, allocated = measure_allocation(make, "cpu")
    assert requested == allocated == 4 * 1024


# The most that is held at once.


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("llama", Load("prefill", 2, 24)),
        ("gpt2", Load("training", 2, 24)),
        ("gpt2", Load("training", 2, 24, checkpoint=True)),
        ("mixtral", Load("prefill", 2, 24)),
        ("deepseek-v3", Load("decode", 2, 1, 9, absorbed=True)),
        ("gemma3", Load("decode", 2, 1, 9)),
        ("t5", Load("decode", 2, 1, 9)),
        ("vit", Load("prefill", 2, 1)),
        ("mamba", Load("decode", 2, 1, 5)),
    ],
    ids=str,
)
def test_memory_is_foreseen(name: str, step: Load, where: str) -> None:
    """Nearly to the byte; a training step keeps some scalars."""
    figure = peak_memory(DeviceModel(tiny(name), where, torch.float32), step)
    assert figure.floor is not None and figure.predicted is not None
    assert figure.floor <= figure.predicted
    gap = figure.measured - figure.predicted
    assert sum(figure.gap.values()) == gap
    if where == "cpu":
        assert 0 <= gap <= 16


def test_memory_that_no_one_foresaw_has_a_name() -> None:
    def prepare(where: str) -> Any:
        x = torch.ones(64, 64, device=where)
        fake = type(x).__name__ == "FakeTensor"
        return lambda: (x @ x).sum() if fake else ((x @ x).cumsum(0), x @ x)

    predicted, measured = trace_peak(prepare, "cpu"), measure_peak(prepare, "cpu")
    assert predicted.resident == measured.resident == 4 * 64 * 64
    assert predicted.peak < measured.peak and "cumsum" in measured.by_operator


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize(
    "form", [lambda w: w, lambda w: w.mT, lambda w: w[:, :32], lambda w: w[:, 32:].mT, lambda w: w[:1, :, :1]]
)
def test_operands_that_a_product_copies_are_foreseen(form: Any, dtype: Any) -> None:
    def prepare(where: str) -> Any:
        weight = form(torch.ones(4, 64, 64, dtype=dtype, device=where))
        x = torch.ones(*weight.shape[:1], 8, weight.shape[1], dtype=dtype, device=where)
        return lambda: torch.bmm(x, weight)

    predicted, measured = trace_peak(prepare, "cpu"), measure_peak(prepare, "cpu")
    assert predicted.by_operator.get("clone", 0) == measured.by_operator.get("clone", 0)
    gap = measured.peak - predicted.peak
    assert 0 <= gap == measured.by_operator["bmm"] - predicted.by_operator["bmm"]  # oneDNN's own scratch space


@pytest.mark.parametrize("rows", [1, 2, 300])
def test_work_keeps_within_a_table_of_positions(rows: int) -> None:
    model = load(f"D=12 L=1 h=2 F=8 V=5 learned={rows}")
    longest = [step.past + step.tokens for step in common_loads(model, "cpu")]
    assert longest and max(longest) == min(rows, 256) and min(longest) > 0
    assert peak_memory(DeviceModel(model, "cpu", torch.float32), common_loads(model, "cpu")[0]).measured > 0


def test_blocks_computed_again_hold_less() -> None:
    subject = DeviceModel(load("D=32 L=4 h=2 F=128 gated V=16"), "cpu", torch.float32)
    plain, recomputed = (peak_memory(subject, Load("training", 4, 64, checkpoint=c)) for c in (False, True))
    assert recomputed.measured < 0.8 * plain.measured


# Time.


@pytest.mark.parametrize("where", DEVICES)
def test_times_of_parts(where: str) -> None:
    subject = DeviceModel(tiny("mixtral"), where, torch.float32)
    figures = list(times(subject, Load("prefill", 2, 16), hardware.load("l4"), 3))
    whole, *parts = figures
    assert whole.part == "" and {f.part for f in parts} == set(subject.model.ledger().by_kind("bytes"))
    assert all(
        f.measured > 0 and f.floor is not None and f.predicted is not None and f.floor <= f.predicted for f in figures
    )
    assert len(time_fresh(lambda: lambda: None, where, 4)) == 4


def test_times_stand_beside_the_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, work, gpu = (
        DeviceModel(tiny("mixtral"), "cpu", torch.float32),
        Load("prefill", 2, 16),
        hardware.load("l4"),
    )
    monkeypatch.setattr(workloads, "time_fresh", lambda *_: [3.0, 1.0, 2.0])
    monkeypatch.setattr(workloads, "time_parts", lambda net, owners, *_: {kind: 0.5 for kind in set(owners.values())})
    whole, *parts = times(subject, work, gpu)
    costs = workloads.rank_time(subject, gpu).parts(subject.model.workload(2, 16, logits="last"))
    assert (whole.measured, whole.floor) == (2.0, total(costs.values()).floor)
    assert 4 * subject.model.active / gpu.bandwidth < (whole.floor or 0) < 4 * subject.model.params / gpu.bandwidth * 2
    assert {p.part: (p.floor, p.predicted) for p in parts if p.part in costs} == {
        kind: (cost.floor, cost.achievable) for kind, cost in costs.items() if kind in {p.part for p in parts}
    }
    assert all(figure.measured == 0.5 for figure in parts)


def test_where_attention_overtakes_is_what_the_times_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(subject: Any, load: Load, *_: Any) -> Iterator[Figure]:
        t = load.tokens
        figure = partial(Figure, quantity="time", load=str(load), unit="seconds")
        yield figure(part="attention_core", predicted=2.0 * t, measured=1.0 * t)
        yield figure(part="feed_forward", predicted=100.0, measured=100.0)

    monkeypatch.setattr(workloads, "times", timed)
    subject = DeviceModel(load("D=32 L=1 h=4 F=8 V=16 plain"), "cpu", torch.float32)
    *_, by_flops, by_times = workloads.overtaking(subject, (10, 1000), hardware.load("l4"))
    assert by_times.predicted == pytest.approx(50) and by_times.measured == pytest.approx(100)
    assert by_flops.measured == by_times.measured and by_flops.predicted == 2 * 8 - 1  # 2·D·T·(T + 1) ≥ 4·D·F·T


@pytest.mark.drawn(1)
@pytest.mark.parametrize("step", [Load("decode", 3, 1, 20), Load("training", 2, 8), Load("prefill", 3, 20)], ids=str)
def test_the_least_that_has_to_be_held(step: Load) -> None:
    model = load("D=16 L=2 h=4 h_kv=2 F=32 V=50")
    weights, saved = 4 * model.params, 4 * model.ledger(2, 8).total("saved")
    cache = 4 * step.batch * 2 * 2 * 2 * 4 * (step.past + step.tokens)  # k and v of 2 layers, 2 heads of 4
    least = weights + cache if step.kind != "training" else 3 * weights + max(weights, saved)
    assert DeviceModel(model, "cpu", torch.float32).least_bytes(step) == least


def test_experts_take_turns() -> None:
    model, counts = load("D=8 L=1 h=2 F=16 V=10 E=5 k=2"), list[int]()
    net = reference.build(model, device="cpu")
    for expert in net.layers[0].experts.routed:  # type: ignore[index, union-attr]
        expert.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].shape[0]))
    with reference.mode(even=True):
        net(torch.zeros(1, 4, dtype=torch.long))
    assert counts == [2, 2, 2, 1, 1]


def test_a_part_is_timed_where_it_runs() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    seconds = time_parts(net, {"0": "first", "1": "second"}, lambda: lambda: net(torch.ones(1, 8)), "cpu")
    assert seconds.keys() == {"first", "second"} and all(value > 0 for value in seconds.values())


def test_the_clock_of_one_thread_does_not_count_waiting() -> None:
    import time

    (slept,) = time_fresh(lambda: lambda: time.sleep(0.05), "cpu", 1, 0)
    assert slept < 0.04 and "one thread" in Clock("cpu").name


def test_a_crossing_lies_between_two_lengths() -> None:
    assert crossing([1, 2, 4], [0.25, 0.5, 1.0]) == 4
    assert crossing([1, 4], [0.5, 2.0]) == pytest.approx(2)
    assert crossing([1, 2], [0.1, 0.2]) is None and crossing([1, 2], [2.0, 3.0]) is None


# Calibration.


@pytest.mark.nightly
def test_predictions_of_a_calibrated_machine(tmp_path: Path) -> None:
    """Within 30 % for three steps of which no size was calibrated with.

    Again up to four times: a processor that others share changes its speed between two kernels (its clock, its caches,
    its memory's bandwidth), and the fastest of a few rounds need not be of the same moments.
    """
    off: list[list[float]] = []
    for _ in range(4):
        calibration = calibrate("cpu", sizes=SMALL, rounds=6, limit=20)
        off.append([check.after / check.measured - 1 for check in calibration.checks])
        if max(map(abs, off[-1])) <= 0.3:
            break
    assert max(map(abs, off[-1])) <= 0.3, off
    shares = calibration.accelerator.efficiency
    assert 0 < shares.memory <= 1 and 0 < shares.attention_prefill <= 1 and 0 < shares.matmul["fp32"] <= 1
    assert shares.launch_s > 0


def test_a_calibration_is_a_hardware_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tomli_w", reason="tomli_w is not installed: pip install 'txcalc[export]'")
    accelerator = quick().accelerator
    monkeypatch.setattr("txcalc.verification.calibrate.calibrate", lambda *_, **__: quick())
    path = tmp_path / "mine.toml"
    code, out, err = run("calibrate", "--out", str(path))
    assert code == 0 and "Efficiency (share of peak)" in out and f"--gpu {path}" in err
    read = hardware.load(path)
    assert read.bandwidth == accelerator.bandwidth and read.peaks == accelerator.peaks
    assert read.efficiency.launch_s == accelerator.efficiency.launch_s
    assert read.memory == accelerator.memory == replace(read, vendor="NVIDIA").visible  # as PyTorch sees it
    assert "txcalc calibrate" in read.efficiency.sources["memory"]
    answer = json.loads(
        run("deploy", "gpt2", "--gpu", f"{path}:1", "--context", "512", "--weights", "fp32", "--json")[1]
    )
    assert answer["schema"] == "txcalc/deploy/1" and answer["speed"]
    answer = run.data("calibrate")
    assert answer["schema"] == "txcalc/calibrate/1" and len(answer["checks"]) == 3
    assert convert(answer, Calibrate).to_dict() == answer
    assert tomllib.loads(path.read_text())["calibration"].keys() == answer["accelerator"]["calibration"].keys()


def test_what_is_measured_on_cuda_is_what_was_measured() -> None:
    data = json.loads((ROOT / "presets" / "measurements" / "h100.json").read_text())["ceilings"]
    kernels = kernels_to_measure("cuda", CUDA)
    assert {(row.kind, row.dtype, row.size) for row in kernels} == {tuple(row.values())[:3] for row in data["rates"]}
    assert (CUDA.model, [str(load) for load in CUDA.steps]) == (data["model"], [row["load"] for row in data["checks"]])
    assert sum(row.amount for row in kernels) == 56_851_323_781_120  # FLOPs and bytes


# What CUDA does otherwise, with what stands for its driver.


def test_a_short_kernel_is_repeated_between_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[None] = []

    class Events:
        """A kernel takes 10 µs, two events 300 µs more: the host's, which starts the first."""

        cuda = True

        def now(self) -> int:
            return len(done)

        def wait(self) -> None:
            pass

        def seconds(self, start: int, end: int) -> float:
            return (end - start) * 10e-6 + 300e-6

    monkeypatch.setattr("txcalc.verification.measure.Clock", lambda device: Events())
    assert time_once(lambda: done.append(None), "cuda") == pytest.approx(310e-6) and len(done) == 1
    assert time_once(lambda: done.append(None), "cuda", repeat=True) == pytest.approx(10e-6, rel=0.03)  # 0.3 of 14 ms
    assert 1000 < len(done) < 3000


def test_on_cuda_the_host_is_measured_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start is the accelerator's own, of a step that was captured; the host's is that of the step as it is."""

    class Cuda:
        def __getattr__(self, name: str) -> Any:
            return getattr(device, name)

        def is_cuda(self, _: str) -> bool:
            return True

        def warm(self, *_: Any) -> None:
            pass

        def clocks(self, _: str) -> dict[str, str]:
            return {"clocks.sm": "1980"}

    monkeypatch.setattr("txcalc.verification.calibrate.devices", Cuda())
    monkeypatch.setattr("txcalc.verification.calibrate.time_captured", lambda *_: [1e-4, 2e-4, 3e-4])
    clock = count(0.0, 1.0)  # a round takes a second: of two and a half, a third is too many
    monkeypatch.setattr("txcalc.verification.calibrate.time", SimpleNamespace(monotonic=clock.__next__))
    calibration = calibrate("cpu", sizes=SMALL._replace(dtypes=("fp32", "bf16")), rounds=9, limit=2.5)
    assert calibration.rounds == 2
    efficiency = calibration.accelerator.efficiency
    assert efficiency.launch_s > 0 and efficiency.host_s > 0
    assert calibration.clocks == [{"clocks.sm": "1980"}] * 2
    forms = [efficiency.curve("attention", name).backward for name in ("prefill", "latent_prefill")]
    assert forms[0] == forms[1] != 2.5  # as the share of the peak, which is measured once too
    assert "host_s" in calibration.described()["accelerator"]["calibration"]
    parsed = hardware.parse(calibration.described()["accelerator"], "this", "here").efficiency
    assert (parsed.host_s, parsed.launch_s) == (efficiency.host_s, efficiency.launch_s)


def test_what_nvidias_tool_says_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert device.nvidia_settings("cuda")["driver"] is None and device.clocks("cuda") == {}
    tool.write_text("#!/bin/sh\necho '580.1, Enabled, 700.00, 1980, Disabled'\n")
    tool.chmod(0o755)
    settings = device.nvidia_settings("cuda:0")
    assert (settings["driver"], settings["ecc"], settings["power_limit_w"]) == ("580.1", "Enabled", "700.00")
    assert settings["tf32"] in ("on", "off") and settings["attention"]
    assert device.clocks("cuda")["clocks.mem"] == "Enabled" and device.clocks("cpu") == {}


def test_a_known_datasheet_is_kept() -> None:
    like = hardware.load("h200")
    accelerator = calibrate("cpu", sizes=SMALL, rounds=1, like=like).accelerator
    assert (accelerator.peaks, accelerator.bandwidth, accelerator.link, accelerator.power) == (
        like.peaks,
        like.bandwidth,
        like.link,
        like.power,
    )
    assert accelerator.memory == device.describe("cpu")["memory_bytes"]


def test_what_adamw_moves_is_what_train_counts() -> None:
    model, recipe, card = load("gpt2"), Recipe(Layout(), parameter="bf16", gradient="bf16"), hardware.load("h200")
    timer = StepTimer(model, recipe, Machine.of(card))
    states = (rank.state for rank in memory(model, recipe).ranks)
    moved = timer.exchange.optimizer(states, timer.bounds) * card.bandwidth
    assert moved == pytest.approx(ADAMW_MOVED * 2 * model.params)  # a quotient of floats


def test_of_a_known_card_pytorchs_kernels_are_measured_and_servers_stay() -> None:
    """What vLLM's kernels reach on an H200 was measured apart: PyTorch's in its place made TPOT of 380 measured servers
    wrong by 22 % instead of 9 %."""
    like = hardware.load("mi300x")  # whose servers' products were measured on it
    calibration = calibrate("cpu", sizes=SMALL._replace(dtypes=("fp32", "bf16")), rounds=1, like=like)
    efficiency, before = calibration.accelerator.efficiency, like.efficiency
    for engine in ("", "vllm"):
        for kind, name in (("matmul", "bf16"), ("attention", "prefill"), ("attention", "decode")):
            assert efficiency.curve(kind, name, engine) == before.curve(kind, name, engine)
    product = efficiency.curve("matmul", "bf16", "torch")
    rates = [rate.rate for rate in calibration.rates if rate.kind == "matmul" and rate.dtype == "bf16"]
    assert product.compute == median(rates) / like.peak("bf16") < before.curve("matmul", "bf16").compute
    assert product.start_s == efficiency.launch_s != before.launch_s
    for row in (2, 4):
        kind = f"matmul, {row}-byte rows"
        (rate,) = (rate.rate for rate in calibration.rates if (rate.kind, rate.dtype) == (kind, "bf16"))
        assert product.of_matrix((512, 513 if row == 2 else 514), 16).compute == rate / like.peak("bf16")
    assert product.of_matrix((512, 520), 16) == product
    reached = {(rate.kind, rate.dtype): rate.rate for rate in calibration.rates}
    for dtype in ("fp32", "bf16"):
        assert efficiency.curve("optimizer", dtype, "torch").memory == reached["AdamW", dtype] / like.bandwidth
        assert efficiency.curve("optimizer", dtype) == before.curve("optimizer", dtype)
    seconds = [
        [rate.rate for rate in calibration.rates if rate.kind == f"attention, {way}"] for way in ("prefill", "backward")
    ]
    slower = median(2.5 * forward / back for forward, back in zip(*seconds, strict=True))
    assert efficiency.curve("attention", "prefill", "torch").backward == slower
    read = hardware.parse(calibration.described()["accelerator"], "this", "here").efficiency
    assert read.curves == efficiency.curves and "calibrate" in read.cited["torch.matmul.bf16"]
    shares = next(
        table
        for table in ceilings(convert(calibration.described(), Ceilings))
        if table.title == "Efficiency (share of peak)"
    )
    shown = {row[0]: row[1].value for row in shares.rows}
    assert shown["matmul.bf16"] == product.compute and shown["attention, backward / forward"] == slower
    assert shown["optimizer.fp32"] == reached["AdamW", "fp32"] / like.bandwidth


@pytest.mark.parametrize(
    "argv", [["calibrate"], ["verify", "D=32 L=2 h=4 F=64 V=50", "--device", "cpu", "--oracle", "peak"]]
)
def test_memory_that_runs_out_is_a_refusal(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("txcalc.verification.calibrate.kernels_to_measure", full)
    monkeypatch.setattr("txcalc.verification.workloads.measure_peak", full)
    code, out, err = run(*argv)
    assert code == 1 and out == "" and "free" in err and "Traceback" not in err


# The suite.


ITEMS = (
    Item("plain", "D=32 L=3 h=4 F=64 V=50", 2, "fp32", ("parameters", "flops"), (Load("prefill", 1, 8),),
         (Load("decode", 1, 1, 8),)),
    Item("crossing", "D=32 L=1 h=4 F=8 V=16 plain", None, "fp32", ("parameters",), overtaking=(8, 512)),
)  # fmt: skip


def suite(path: Path | None, limit: float = 600, **options: Any) -> Suite:
    return Suite(
        "cpu", path, "a test", limit, options.pop("items", ITEMS), ceilings=lambda *_, **__: quick(), **options
    )


def test_a_suite_writes_as_it_goes_and_goes_on(tmp_path: Path) -> None:
    path, steps = tmp_path / "found.json", list[str]()

    def tell(step: str, share: float) -> None:
        steps.append(step)
        if len(steps) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        suite(path, tell=tell).run()
    before = json.loads(path.read_text())
    assert not before["complete"] and len(before["items"]["plain"]["steps"]) == 2
    results = suite(path, tell=lambda step, share: steps.append(step)).run()
    assert results == json.loads(path.read_text()) and results["complete"]
    assert len(steps) == len(set(steps)) + 1 and steps.count("ceilings") == 1  # the one that was broken off, again
    plain = results["items"]["plain"]
    assert (plain["layers"], plain["of_layers"]) == (2, 3)
    assert all(step["unequal"] == [] and step["compared"] for n, step in plain["steps"].items() if "exact" in n)
    assert {f["quantity"] for s in results["items"]["crossing"]["steps"].values() for f in s.get("figures", ())} >= {
        "time"
    }
    fewer = suite(path, items=(ITEMS[0]._replace(times=()),)).run()  # what the list no longer asks for is dropped
    assert fewer["items"].keys() == {"plain"} and len(fewer["items"]["plain"]["steps"]) == 3
    assert fewer["items"]["plain"]["steps"].items() <= plain["steps"].items()
    code, out, _ = run("measurements", str(path), "--detail")
    assert code == 0 and "2 of 3" in out and "Peak memory" in out


def test_only_what_is_named_is_measured_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    results = suite(path, only=["crossing"]).run()
    assert results["items"].keys() == {"crossing"} and not results["complete"]
    results = suite(path, only=["plain"]).run()
    assert results["items"].keys() == {"crossing", "plain"} and results["complete"]
    with pytest.raises(UnknownName, match="did you mean plain"):
        suite(None, only=["plane"])


@pytest.mark.nightly
def test_another_host_of_the_same_kind_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, there = tmp_path / "found.json", device.describe("cpu")
    suite(path, only=["plain"]).run()
    here = {**there, "memory_bytes": 1 << 34, "driver": "2"}
    monkeypatch.setattr(device, "describe", lambda _: here)
    results = suite(path).run()
    assert results["complete"] and results["device"]["driver"] == "2"
    assert [host["memory_bytes"] for host in results["hosts"]] == [there["memory_bytes"]]
    monkeypatch.setattr(device, "describe", lambda _: {**here, "name": "another"})
    with pytest.raises(InputError, match="another device"):
        suite(path)


def test_a_suite_does_what_is_exact_before_what_takes_long(tmp_path: Path) -> None:
    heard: list[str] = []
    items = (ITEMS[0], ITEMS[0]._replace(name="again"), ITEMS[1]._replace(first=True))
    suite(None, items=items, tell=lambda step, _: heard.append(step)).run()
    kinds = [step.partition(": ")[2].partition(":")[0] for step in heard[1:]]
    assert kinds == ["exact", "attention overtakes", *["exact"] * 4, *["memory"] * 2, *["time"] * 2]


def test_a_batch_is_sized_by_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = DeviceModel(load(ITEMS[0].source), "cpu", torch.float32)
    needed = [workloads.deployed_bytes(subject, Load("decode", batch, 1, 64)) or 0 for batch in (1, 4, 8)]
    assert needed == sorted(set(needed))
    requested = Load("decode", 16, 1, 64)
    item = Item("sized", ITEMS[0].source, None, "fp32", ("parameters",), (requested,))
    monkeypatch.setattr("txcalc.verification.suite.fitting_batch", lambda model, *_: model)
    for free, note in ((needed[1], "B = 4: 16 would not fit"), (needed[0] - 1, "")):
        monkeypatch.setattr(device, "free_bytes", lambda _, free=free: free + device.SPARE)
        step = suite(None, items=(item,)).run()["items"]["sized"]["steps"][f"memory: {requested}"]
        assert step.get("sized", "") == note
        assert ("figures" in step) == bool(note) and ("that are free" in step.get("refused", "")) != bool(note)


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("step", [Load("prefill", 1, 16), Load("decode", 2, 1, 9), Load("training", 2, 8)], ids=str)
def test_the_kernels_that_were_counted_on_run(step: Load, where: str) -> None:
    # CUDA's fused attention takes grouped heads in half precision only, and in widths that are multiples of 8.
    model, dtype = load("D=64 L=2 h=4 h_kv=2 F=128 V=100"), torch.bfloat16 if where == "cuda" else torch.float32
    figures, ran = workloads.launches(DeviceModel(model, where, dtype), step)
    assert {f.part: f.predicted for f in figures} == {f.part: f.measured for f in figures}
    assert sum(ran["products"].values()) > 1 and all("_scaled_dot_product_" in name for name in ran["attention"])
    assert not any(name.endswith("_math") for name in ran["attention"])


def test_attention_that_is_not_fused_is_named() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        _, ran = workloads.launches(DeviceModel(tiny("llama"), "cpu", torch.float32), Load("prefill", 1, 16))
    assert ran["attention"].keys() == {"_scaled_dot_product_attention_math"}


@pytest.mark.parametrize("name", ["gemma3", "llama", "gpt2"])
def test_queries_under_a_mask_can_be_grouped(name: str) -> None:
    """The same numbers, in the form that a fused kernel takes under a mask: the second pass has a past and a mask."""
    net, (ids, *_) = reference.build(tiny(name), device="cpu", dtype=torch.float64), reference.inputs(tiny(name), 2, 24)
    outputs = []
    for grouped in (False, True):
        with torch.no_grad(), reference.mode(grouped=grouped):
            cache = reference.CacheTensors()
            outputs.append(torch.cat([net(part, cache=cache) for part in (ids[:, :9], ids[:, 9:])], 1))
    assert torch.allclose(*outputs, rtol=1e-10, atol=1e-12)  # sums in another order


def test_a_mask_over_groups_runs_no_plain_attention() -> None:
    """Where CUDA would fall back: grouped heads under a mask, here seen by what the kernel is given."""
    calls: list[tuple[Any, ...]] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def seen(q: Any, k: Any, v: Any, mask: Any = None, **options: Any) -> Any:
        calls.append((q.shape[1] == k.shape[1], mask is not None, options["enable_gqa"]))
        return real(q, k, v, mask, **options)

    net = reference.build(tiny("gemma3"), device="cpu")
    with pytest.MonkeyPatch.context() as patch, torch.no_grad(), reference.mode(grouped=True):
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", seen)
        net(reference.inputs(tiny("gemma3"), 1, 24)[0])
    assert (True, True, False) in calls and not any(masked and gqa for _, masked, gqa in calls)


def test_a_training_step_beside_train() -> None:
    subject = DeviceModel(load("D=64 L=2 h=4 h_kv=2 F=128 V=500"), "cpu", torch.bfloat16)
    figures = {(f.quantity, f.unit): f for f in workloads.training_speed(subject, Load("training", 2, 32), l4(), 2)}
    memory, speed = figures["memory of training", "bytes"], figures["speed of training", "tokens/s"]
    assert memory.predicted and memory.measured == pytest.approx(memory.predicted, rel=0.02)  # kernels' own scratch
    assert speed.measured == pytest.approx(64 / figures["time", "seconds"].measured)


def l4() -> Any:
    return hardware.load("l4")


def test_a_suite_ends_in_time() -> None:
    results = suite(None, limit=0).run()
    assert results["items"] == {} and not results["complete"]


def test_a_suite_cuts_to_what_fits_and_refuses_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(ITEMS[0].source)
    layer = 4 * model.ledger().at("layers.0").total("params")
    monkeypatch.setattr(device, "free_bytes", lambda _: device.SPARE + 2 * (4 * model.params - 2 * layer))
    results = suite(None, items=(ITEMS[0]._replace(exact=("parameters",), peaks=(), times=()),)).run()
    assert results["items"]["plain"]["layers"] == 1
    monkeypatch.setattr(device, "free_bytes", lambda _: 0)
    results = suite(None).run()
    assert all("no layer fits" in item["refused"] for item in results["items"].values())


def test_memory_that_does_not_suffice_ends_a_step_and_not_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("txcalc.verification.suite.peak_memory", full)
    steps = suite(None, items=ITEMS[:1]).run()["items"]["plain"]["steps"]
    assert "refused" in steps["memory: prefill B = 1, T = 8"] and steps["exact: flops"]["unequal"] == []


def test_a_step_that_fails_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise AssertionError("a kernel")

    path = tmp_path / "found.json"
    with monkeypatch.context() as patch:
        patch.setattr("txcalc.verification.suite.peak_memory", broken)
        steps = suite(path, items=ITEMS[:1]).run()["items"]["plain"]["steps"]
    assert steps["memory: prefill B = 1, T = 8"]["failed"] == "AssertionError: a kernel"
    assert "failed: AssertionError" in run("measurements", str(path))[2]
    steps = suite(path, items=ITEMS[:1]).run()["items"]["plain"]["steps"]
    assert all("failed" not in step for step in steps.values()) and len(steps) == 4


@pytest.mark.drawn(1)
@pytest.mark.parametrize("items", LISTS.values(), ids=LISTS)
def test_the_list_can_be_made(items: tuple[Item, ...]) -> None:
    """Every model is known, every step a workload of it, every name said once."""
    assert len({item.name for item in items}) == len(items)
    for item in items:
        model = load(item.source, dict(item.changes))
        assert item.layers is None or item.layers <= device.n_layers(model)
        for step in (*item.peaks, *item.times, *item.launches, *item.speed):
            assert model.ledger(step.batch, step.tokens, step.past).total("flops") > 0
            assert model.context is None or step.past + step.tokens <= model.context


# The commands.


run = Command(columns=100)


def test_verify_on_a_device_shows_memory_and_time() -> None:
    answer = run.data("verify", "D=32 L=1 h=4 F=64 V=50", "--device", "cpu", "--gpu", "l4")
    assert answer["ok"]
    assert {"params", "flops", "training flops", "bytes of weights"} <= {row["quantity"] for row in answer["rows"]}
    assert {figure["quantity"] for figure in answer["figures"]} == {"peak memory", "time"}
    assert all(figure["floor"] <= figure["measured"] for figure in answer["figures"])


def test_a_card_to_be_like_that_is_unknown_is_named() -> None:
    assert "--like: no accelerator named 'h10'" in run("calibrate", "--like", "h10")[2]


@pytest.mark.parametrize("argv", [["measure", "--device", "cuda"], ["calibrate", "--device", "cuda"]])
def test_a_device_that_is_not_there(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    got, out, err = run(*argv)
    assert got == 3 and out == "" and "PyTorch finds none" in err


def test_measurements_of_another_device_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    document = {"schema": "txcalc/measurements/1", "device": {"name": "another"}, "items": {}}
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="another device"):
        suite(path)


def test_a_file_that_is_no_whole_one_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    results = suite(path, items=ITEMS[:1]).run()
    changes: tuple[dict[str, Any], ...] = ({"items": {"plain": {}}}, {"ceilings": {}}, {"items": []})
    for change in changes:
        path.write_text(json.dumps({**results, **change}))
        with pytest.raises(InputError, match="not a file of measurements"):
            suite(path)
    path.write_text(json.dumps(results))
    with pytest.raises(InputError, match="was begun without --gpu: do the same"):
        suite(path, like=hardware.load("l4"))


def test_steps_of_another_size_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    suite(path, items=ITEMS[:1]).run()
    item = suite(path, items=(ITEMS[0]._replace(layers=1, times=(Load("decode", 1, 1, 4),)),)).run()["items"]["plain"]
    assert item["layers"] == 1 and item["steps"]["exact: parameters"]["wholes"][0][4] == item["params"]


# The script for a machine without a network.


def test_wheels_go_into_an_empty_folder_without_an_index(tmp_path: Path) -> None:
    wheels, target = tmp_path / "wheels", tmp_path / "target"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "nothing-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("nothing.py", "")
        wheel.writestr("nothing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1\n")
        wheel.writestr("nothing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("nothing-1.dist-info/RECORD", "")
    env = {**os.environ, "PYTHONPATH": str(target), "PIP_NO_INDEX": "1"}
    gpu_script.install(wheels, target, env)
    assert (target / "nothing.py").is_file()
    assert gpu_script.absent(env) == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--again", "none.json"], "--again: there is no file none.json"),
        (["wheels", "--gpu", "h999", "--hardware", "card.toml"], "--gpu: no accelerator named 'h999'"),
    ],
)
def test_the_script_refuses_what_is_not_there(
    argv: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu.py", *argv])
    with pytest.raises(SystemExit, match="2"):
        gpu_script.arguments()
    assert message in capsys.readouterr().err


@pytest.mark.nightly
def test_small_models_are_checked_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_script, "SMALL", gpu_script.SMALL[:1])
    env = {**os.environ, "PYTHONPATH": str(gpu_script.ROOT)}
    assert gpu_script.checked("cpu", env) == 0
    assert capsys.readouterr().out.endswith("figures of 1 small models are equal\n")
    monkeypatch.setattr(gpu_script, "SMALL", ("D=7 h=2",))
    assert gpu_script.checked("cpu", env) == 2
