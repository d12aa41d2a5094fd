"""Measured servers against the library: `python tests/scripts/servers.py [--by KEY …] [--what FIGURE …]`.

Every row of `tests/data/serving/servers.csv` is predicted from its layout, formats, lengths and concurrency alone.
Columns are predicted ÷ measured: median, 10th and 90th percentile; mean absolute error; share of rows within 25 %.
Rows that cannot be predicted are counted by their reason, and rows whose measurement contradicts itself are left out
by name (`SUSPECT`).

bare     TPOT: one decode step of all sequences at the mean context
share    the same, and the prompts' share of the time: concurrency · prompt/(answer · prefill rate)
TPOT     of the steady state, where fewer decode than have asked
alone    TTFT: a prompt alone
TTFT     of the steady state
tokens   answers' tokens/s per GPU of the steady state, against those of the measured TTFT and TPOT
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from txcalc import hardware, load
from txcalc.errors import InputError, TxcalcError
from txcalc.model import Model
from txcalc.planning.layout import Layout
from txcalc.planning.serving.demand import ROUNDS
from txcalc.planning.serving.deployment import Planner
from txcalc.planning.serving.engine import Reserve, engine
from txcalc.planning.serving.points import Timer, request
from txcalc.planning.serving.traffic import Lengths

DATA = Path(__file__).parents[2] / "tests" / "data" / "serving"
PRESETS = {
    "DeepSeek-R1": "deepseek-v3",
    "DeepSeek-V3": "deepseek-v3",
    "DeepSeek-R1-NVFP4": "deepseek-v3",
    "DeepSeek-V3.1-NVFP4": "deepseek-v3",
    "gpt-oss-120b": "gpt-oss-120b",
    "Llama-3.1-70B": "llama-3.1-70b",
}
UNSERVED = {"MiniMax-M2.5": ("mtp_transformer_layers", "num_mtp_modules")}  # of layers that draft
# Modules that NVIDIA's checkpoints in NVFP4 leave wide (their hf_quant_config.json).
LATENT = tuple(f"*self_attn.{name}" for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"))
WIDE: dict[str, tuple[str, ...]] = {
    "DeepSeek": LATENT,
    "GLM-5": (*LATENT, "*self_attn.o_proj", "*self_attn.indexer*"),
    "Kimi-K2.5": ("*self_attn*",),
    "MiniMax-M2.5": ("*self_attn*",),
    "Qwen3.5-397B-A17B": ("*self_attn*", "*linear_attn*", "*shared_expert*"),
}
GPUS = {"h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300"}
# InferenceX's runs (SemiAnalysisAI/InferenceX at 41147ad, 2026-03) have prompts and answers of these lengths at most,
# and draw each evenly from 0.8 of it on (RANDOM_RANGE_RATIO in .github/workflows/benchmark-tmpl.yml). What its launch
# scripts (benchmarks/single_node) ask of the engines is in `cache_of`, `chunk_of`, `interval_of` and `marlin_of`.
DRAWN = {(1024, 1024), (1024, 8192), (8192, 1024)}
SHORTEST = 0.8
FIGURES = ("bare", "share", "TPOT", "alone", "TTFT", "tokens")
DENSE = ("Qwen3-32B", "Llama-3.1-70B")


class Row(NamedTuple):
    """A measured server; latencies in seconds."""

    engine: str
    model: str
    gpu: str
    tp: int
    dp: int
    ep: int
    moe_tp: int
    weights: str
    experts: str
    concurrency: int
    prompt: int
    answer: int
    ttft: float
    tpot: float

    @property
    def name(self) -> str:
        return self.model.partition("/")[2]

    @property
    def rate(self) -> float:
        return output(self.concurrency, self.answer, self.ttft, self.tpot) / (self.tp * self.dp)


class Prediction(NamedTuple):
    """What the library says of a row, in seconds and tokens/s per GPU."""

    row: Row
    bare: float
    share: float
    prefill: float
    tpot: float
    ttft: float
    rate: float

    @property
    def ratios(self) -> dict[str, float]:
        row = self.row
        return {
            "bare": self.bare / row.tpot,
            "share": self.share / row.tpot,
            "TPOT": self.tpot / row.tpot,
            "alone": self.prefill / row.ttft,
            "TTFT": self.ttft / row.ttft,
            "tokens": self.rate / row.rate,
        }


def output(concurrency: int, answer: int, ttft: float, tpot: float) -> float:
    """Tokens/s of a closed loop: each of so many clients asks again when its answer is there."""
    return concurrency * answer / (ttft + (answer - 1) * tpot)


SUSPECT: dict[str, Callable[[Row], bool]] = {
    "its tp is attention's data parallelism": lambda row: row.gpu.startswith("gb") and row.tp > 16,
    "no number of copies": lambda row: row.dp < 1 or row.ep < 1,
    "fewer requests ran than were asked for: TTFT above 60 s": lambda row: row.ttft > 60,
    "its tokens come 1.3 times as fast as at a quarter of the requests or less": lambda row: (
        1.3 * row.tpot < slower()[cell(row)].get(row.concurrency, 0.0)  # type: ignore[has-type]
    ),
    "85 to 92 ms whatever the layout and the concurrency": lambda row: row.name == "DeepSeek-R1-NVFP4",
    "its twin on the same GPUs and layout takes 1.35 times as long or more: multi-token prediction": lambda row: (
        "DeepSeek" in row.name and twins()[twin(row)] > 1.35 * row.tpot  # type: ignore[has-type]
    ),
    "of a version of which that holds for all that have a twin": lambda row: row.engine == "trtllm 1.2.0rc6.post3",
    "InferenceX has them with it alone: .github/configs/nvidia-master.yaml at 35d4bb3": lambda row: (
        (row.engine, row.gpu, form(row), row.ep) == ("sglang 0.5.9", "b200_sxm", "fp8-block", 1)
        and (row.tp == 4 if row.name.startswith("Qwen3.5") else row.tp == 8)
        and (row.name.startswith("Qwen3.5") or row.concurrency > (4 if row.prompt == 8192 else 64))
    ),
}
KEYS: dict[str, Callable[[Row], str]] = {
    "all": lambda row: "all",
    "kind": lambda row: "dense" if row.name in DENSE else "experts",
    "format": lambda row: form(row),
    "engine": lambda row: row.engine.split()[0],
    "band": lambda row: next(text for most, text in BANDS if row.concurrency <= most),  # type: ignore[has-type]
    "gpu": lambda row: row.gpu,
    "model": lambda row: row.name,
    "prompt": lambda row: f"{row.prompt}/{row.answer}",
    "cell": lambda row: f"{row.name} {row.gpu} {row.engine.split()[0]} {form(row)}",
    "version": lambda row: f"{row.name} {row.gpu} {row.engine} {form(row)}",
    "layout": lambda row: f"{row.name} {row.gpu} tp{row.tp} dp{row.dp} ep{row.ep}",
}
BANDS = ((4, "c <= 4"), (32, "c 5-32"), (128, "c 33-128"), (1 << 30, "c > 128"))


def form(row: Row) -> str:
    """The format of the weights, in the library's words."""
    if row.name.startswith("gpt-oss"):
        return "mxfp4"
    dense = row.name in DENSE
    return {"fp8": "fp8" if dense else "fp8-block", "fp8_block": "fp8-block"}.get(row.weights, row.weights)


def cache_of(row: Row) -> str:
    """The dtype of the cache, which the rows do not say: fp8 where weights are narrower than 16 bits and the engine is
    TensorRT-LLM, or the GPU a Blackwell, but for the scripts that say otherwise; else bf16."""
    narrow = row.engine.startswith("trtllm") or row.gpu.startswith(("b", "gb"))
    narrow |= row.name in ("Llama-3.1-70B", "Qwen3.5-397B-A17B")
    wide = (row.name, row.gpu, form(row)) in {("gpt-oss-120b", "h200_sxm", "mxfp4"), ("GLM-5", "b200_sxm", "nvfp4")}
    return "fp8" if narrow and not wide and form(row) not in ("bf16", "int4") else "bf16"


def chunk_of(row: Row) -> int:
    """Tokens of a step at most."""
    kind = row.engine.split()[0]
    if (row.prompt, row.answer) not in DRAWN:
        return 8192
    if kind == "vllm":
        return 2 * row.prompt if row.name == "MiniMax-M2.5" and row.gpu.startswith("b") else 8192
    if kind == "trtllm":
        limits = {"gpt-oss-120b": 20_000, "Llama-3.1-70B": 16_384}
        least = 8192 if "1.2" in row.engine else 0  # since 64af5a7, 2026-01
        return limits.get(row.name) or max(least, (row.concurrency + row.prompt + 127) // 64 * 64)
    if form(row) == "nvfp4" and "DeepSeek" in row.name:
        return 16_384
    return 8192 if row.name == "DeepSeek-R1" and row.tp == 4 else 32_768


def interval_of(row: Row) -> int:
    """Decode steps from one look for new requests to the next: of SGLang (--scheduler-recv-interval), and at most of
    TensorRT-LLM's copies that gather prompts (attention_dp_config: timeout_iters, by default 50, and then
    batching_wait_iters, by default 10, or 0)."""
    if gathers(row):
        return 50 if row.name.startswith("gpt") else 60
    if not (
        row.engine.startswith("sglang") and row.gpu.startswith("b") and row.name.startswith(("DeepSeek", "Qwen3.5"))
    ):
        return 1
    few = row.concurrency < 16 or ("DeepSeek" in row.name and form(row) == "fp8-block" and row.tp == 4)
    return 10 if few else 30


def gathers(row: Row) -> bool:
    """Whether copies wait until each has a prompt (attention_dp_config: enable_balance)."""
    return row.engine.startswith("trtllm") and row.ep > row.tp and (row.prompt, row.answer) in DRAWN


def marlin_of(row: Row) -> bool:
    """Whether MXFP4 experts are multiplied by Marlin's kernels (VLLM_MXFP4_USE_MARLIN of its scripts for Hopper)."""
    return row.engine.startswith("vllm") and row.gpu.startswith("h") and row.name.startswith("gpt-oss")


def kept_of(row: Row) -> Reserve:
    """Memory that the engine is told to leave alone: a tenth of all; of TensorRT-LLM's a share of what weights leave
    (free_gpu_memory_fraction); less for the largest model on four GPUs (--mem-fraction-static 0.95)."""
    if row.engine.startswith("trtllm"):
        row_planner = planner(row.name, row.gpu, form(row), "bf16", "", reserve=Reserve.none())
        layout = Layout(tp=row.tp, dp=row.dp, ep=row.ep)
        left = row_planner.accelerator.memory - row_planner.fullest(layout, 1, row.dp).weights
        share = 0.1 if (row.prompt, row.answer) not in DRAWN else 0.15 if row.name.startswith("gpt") else 0.2
        return Reserve(Fraction(0), int(max(0, left) * share))
    tight = row.engine.startswith("sglang") and row.tp == 4 and form(row) == "fp8-block" and "DeepSeek" in row.name
    return Reserve(Fraction(5, 100)) if tight else Reserve()


def rows() -> list[Row]:
    with (DATA / "servers.csv").open(encoding="utf-8") as file:
        every = list(csv.DictReader(file))
    table = [
        Row(  # type: ignore[call-arg]
            cells["engine"], cells["model"], cells["gpu"],
            *(int(cells[key]) for key in ("tp", "dp", "ep", "moe_tp")),  # type: ignore[arg-type]
            cells["weights"], cells["experts"],
            *(int(cells[key]) for key in ("concurrency", "prompt", "answer")),
            float(cells["ttft_ms"]) / 1e3, float(cells["tpot_ms"]) / 1e3,
        )
        for cells in every
    ]  # fmt: skip
    return [mended(row) for row in table]


def mended(row: Row) -> Row:
    """Where experts are spread, some rows have tp·ep for tp or for dp, or tp for dp too, on nodes of eight; the names
    of others of the same servers say what they are (tp 8, ep 8), and those of tp 4, ep 2 take as long as tp 2."""
    squared = row.ep == row.moe_tp == 2 and (row.tp, row.dp) == (4, 1)
    if row.ep == 1 or (row.tp * row.dp <= 8 and not squared) or "gb" in row.gpu:
        return row
    if row.ep > 8:
        return row._replace(tp=1, ep=row.dp)
    return row._replace(tp=max(1, row.tp // row.ep), dp=max(1, row.dp // (row.ep if row.dp > 1 else 1)))


@cache
def model(name: str) -> Model:
    file = DATA / "configs" / f"{name.lower()}.json"
    source = PRESETS.get(name) or (file if file.is_file() else name.lower())
    wide = next((modules for start, modules in WIDE.items() if name.startswith(start)), None)
    narrow = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", *(wide or ())]}
    return load(source, {"variants": {"nvfp4": narrow}} if wide else {}, ignore=UNSERVED.get(name, ()))


@cache
def planner(
    name: str,
    gpu: str,
    weights: str,
    kv: str,
    kernels: str,
    chunk: int = 8192,
    interval: int = 1,
    gathers: bool = False,
    reserve: Reserve | None = None,
    marlin: bool = False,
) -> Planner:
    how = engine(model(name), weights, kv, chunk=chunk, reserve=reserve, interval=interval, gathers=gathers)
    return Planner(model(name), hardware.load(GPUS.get(gpu, gpu)), replace(how, kernels=kernels, marlin=marlin))


def held_by(row: Row) -> Planner:
    recipe = (
        cache_of(row),
        row.engine.split()[0],
        chunk_of(row),
        interval_of(row),
        gathers(row),
        kept_of(row),
        marlin_of(row),
    )
    return planner(row.name, row.gpu, form(row), *recipe)


@cache
def timer(row_planner: Planner, prompt: int, answer: int) -> Timer:
    lengths = [Lengths(int(SHORTEST * n), n) if (prompt, answer) in DRAWN else n for n in (prompt, answer)]
    load = replace(request(prompt + answer, lengths[0], answer=lengths[1]), rounds=ROUNDS)
    return Timer(row_planner, load, prompt + answer)


def predict(row: Row) -> Prediction:
    layout = Layout(tp=row.tp, dp=row.dp, ep=row.ep)
    row_planner = held_by(row)
    if faults := row_planner.sharding.faults(layout):
        raise InputError(f"layout {layout}", faults)
    timing = timer(row_planner, row.prompt, row.answer)
    pace, point = timing.layout_time(layout), timing.point(layout, row.concurrency)
    sequences = -(-row.concurrency // row.dp)
    step = pace.step(sequences, row.prompt + row.answer // 2, busy=pace.busy(row.concurrency)).achievable
    share = row.concurrency * row.prompt / (row.answer * point.prompt_tokens_per_s_gpu * layout.gpus)
    steady = point.steady
    assert steady.tpot
    return Prediction(row, step, step + share, point.ttft.achievable, steady.tpot, steady.ttft, point.tokens_per_s_gpu)


def twin(row: Row) -> tuple[object, ...]:
    """What decides a server's speed, but for what rows do not say."""
    return row.gpu, form(row), row.tp, row.dp, row.ep, row.concurrency, row.prompt, row.answer, row.engine.split()[0]


def cell(row: Row) -> tuple[object, ...]:
    """A server whatever its load."""
    return row.name, row.gpu, form(row), row.tp, row.dp, row.ep, row.prompt, row.answer, row.engine.split()[0]


@cache
def slower() -> dict[tuple[object, ...], dict[int, float]]:
    """Of each server and concurrency the longest TPOT among those of at most a quarter of it."""
    by_cell: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows():
        by_cell[cell(row)].append(row)
    return {
        key: {
            row.concurrency: max((less.tpot for less in ones if 4 * less.concurrency <= row.concurrency), default=0.0)
            for row in ones
        }
        for key, ones in by_cell.items()
    }


@cache
def twins() -> dict[tuple[object, ...], float]:
    """The longest TPOT of each kind of server of DeepSeek-V3 and R1, which are of one shape."""
    by_twin: dict[tuple[object, ...], float] = {}
    for row in rows():
        if "DeepSeek" in row.name:
            by_twin[twin(row)] = max(by_twin.get(twin(row), 0.0), row.tpot)
    return by_twin


def gather(every: Iterable[Row], suspect: bool = False) -> tuple[list[Prediction], Counter[str]]:
    """What the library says of rows, and of how many it does not and why; `suspect`: of contradicted ones too."""
    predictions, without = [], Counter[str]()
    for row in every:
        reason = next((text for text, wrong in SUSPECT.items() if wrong(row)), None)
        if reason and not suspect:
            without[f"left out: {reason}"] += 1
            continue
        try:
            predictions.append(predict(row))
        except TxcalcError as error:
            without[f"refused: {row.name}: {str(error).splitlines()[0][:90]}"] += 1
    return predictions, without


def summary(ratios: list[float]) -> str:
    ordered = sorted(ratios)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    error = sum(abs(ratio - 1) for ratio in ordered) / len(ordered)
    within = sum(abs(ratio - 1) <= 0.25 for ratio in ordered) / len(ordered)
    return f"{at(0.5):5.2f} {at(0.1):5.2f}-{at(0.9):4.2f} {100 * error:5.1f}% {100 * within:3.0f}%"


def report(predictions: list[Prediction], by: Iterable[str], what: Iterable[str]) -> None:
    names = list(what)
    heading = "".join(f" | {name + ': median p10-p90 error ≤25%':30}" for name in names)
    for key in by:
        groups: dict[str, list[Prediction]] = defaultdict(list)
        for prediction in predictions:
            groups[KEYS[key](prediction.row)].append(prediction)
        wide = max(24, *(len(name) for name in groups))
        print(f"\n{key:{wide}} {'n':>5}{heading}")
        for name, ones in sorted(groups.items()):
            cells = "".join(f" | {summary([prediction.ratios[name] for prediction in ones]):30}" for name in names)
            print(f"{name:{wide}} {len(ones):5}{cells}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", nargs="+", choices=KEYS, default=["all", "kind", "format", "engine", "band", "gpu"])
    parser.add_argument("--what", nargs="+", choices=FIGURES, default=["share", "TPOT", "TTFT", "tokens"])
    parser.add_argument("--only", default="", help="rows whose cell contains the text")
    parser.add_argument("--suspect", action="store_true", help="leave no row out")
    parser.add_argument("--every", type=int, default=1, help="each n-th row alone")
    options = parser.parse_args()
    chosen = [row for row in rows() if options.only in KEYS["version"](row)][:: options.every]
    predictions, without = gather(chosen, options.suspect)
    report(predictions, options.by, options.what)
    kept = [row for row in chosen if options.suspect or not any(wrong(row) for wrong in SUSPECT.values())]
    ours = sum(number for reason, number in without.items() if reason.startswith("refused"))
    print(f"\nof {len(kept)} rows refused: {ours}\n")
    for reason, number in without.most_common():
        print(f"{number:5} rows {reason}")


if __name__ == "__main__":
    main()
