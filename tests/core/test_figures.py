"""What the planners say of many runs, and parts, formats, estimates and seconds of models of every kind, number by
number: a formula that gives another figure is seen, and is meant.

Nothing here says that a figure is right; what other tests compare (measured servers, PyTorch's own bytes, closed forms)
does. These say which figures a change of formulas moves. `pytest tests/core/test_figures.py --update-golden` keeps
them as they are now: the runs are the keys of `golden/figures.json`, a further one a key there of {}.
`tests/snapshot.py` says what moved in which file.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from command import typed
from paths import GOLDEN, HF
from tiny import TINY

from txcalc import hardware, load
from txcalc.errors import InputError
from txcalc.evidence.theorems import units
from txcalc.ledger import walk
from txcalc.model import Model
from txcalc.parts.part import Composite, Workload
from txcalc.planning.formats.mixtures import MIXTURES
from txcalc.planning.formats.names import weights_of
from txcalc.planning.formats.quantised import READERS, configured
from txcalc.planning.formats.weights import FORMATS, Format, Mixed
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.rank_time import RankTime
from txcalc.planning.training.machine import Machine
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.search import Search
from txcalc.sources import build
from txcalc.sources.huggingface import describe

pytestmark = pytest.mark.drawn(quick=1000)  # all, in the inner loop too: ten seconds see most faults of a formula

FIGURES = GOLDEN / "figures.json"
LINES = [*json.loads(FIGURES.read_text("utf-8"))]
MEANT = f"if this is meant: pytest {Path(__file__).name} --update-golden"


def numbers(value: Any, path: str, found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Those of a JSON value by its first two keys; of texts how many there are and those in them, apart."""
    if isinstance(value, dict):
        for key, item in value.items():
            numbers(item, path if "." in path else f"{path}.{key}" if path else key, found)
    elif isinstance(value, list):
        for item in value:
            numbers(item, path, found)
    elif isinstance(value, str):
        found.setdefault(f"{path} says", []).extend(["a text", *re.findall(r"\d[\d.,]*", value)])
    else:
        found.setdefault(path, []).append(float(f"{value:.6g}") if isinstance(value, float) else value)
    return found


def brief(values: list[Any]) -> Any:
    """One number itself; of more, how many there are, and what tells them from others."""
    return values[0] if len(values) == 1 else f"{len(values)}:{sha256(json.dumps(values).encode()).hexdigest()[:6]}"


def said(line: str) -> dict[str, Any]:
    ran = typed(*shlex.split(line), "--json")
    assert ran.exit_code in (0, 1), ran.output
    return {key: brief(values) for key, values in numbers(json.loads(ran.stdout), "", {}).items()}


@pytest.mark.drawn(quick=80)  # a run each, which costs as much as dozens of parts
@pytest.mark.parametrize("line", LINES, ids=[f"{line.split()[0]}{i}" for i, line in enumerate(LINES)])
def test_figures_are_those_that_were_kept(line: str, update_golden: bool) -> None:
    kept = json.loads(FIGURES.read_text())
    now = said(line)
    if update_golden:
        kept[line] = now
        FIGURES.write_text(json.dumps(kept, ensure_ascii=False, indent=0) + "\n")
    moved = {key: (value, now.get(key)) for key, value in kept[line].items() if now.get(key) != value}
    assert kept[line] and not moved, MEANT


PARTS = GOLDEN / "parts.json"
WORKS = (
    Workload(2, 7, 0, 5),
    Workload(2, 70, 0, 50, keep_scores=True),
    Workload(3, 2, 50, 5, decoding=True),
    Workload(2, 7, 0, 5, last_logits=True, absorbed=True),
    Workload(3, 2, 50, 5, decoding=True, last_logits=True, absorbed=True),
)
SPLITS = (Layout(tp=2), Layout(tp=2, sp=2), Layout(ep=2, dp=2), Layout(tp=2, etp=2, dp=2, ep=2), Layout(pp=2))
FOUND = {  # what is asked of a leaf at a workload, beside what it computes
    "saved": ("saved", "saved_fused", "statistics", "on_chip"),
    "cache": ("cache", "dense", "cache_read", "transfers"),
}
ALONE = ("matrix", "row", "input_kept", "tied_shapes", "shared_by", "attended", "breakpoints", "period",
         "length_multiple", "cache_limit", "extra_products", "angles", "cache_kind", "role", "kernels",
         "launched")  # fmt: skip


def computed(root: Any) -> dict[str, str]:
    """A digest of what all leaves of a tree say, by topic; and of what composites and leaves are."""
    found: dict[str, list[Any]] = {}
    for work in WORKS:
        for entry in walk(root, work):
            leaf, at = entry.leaf, entry.work
            found.setdefault("weights", []).append((entry.path, leaf.weights(), [getattr(leaf, a) for a in ALONE]))
            rows = found.setdefault("operations", [])
            rows.append((entry.path, at, entry.times, entry.runs, entry.active_times, entry.gradient, entry.kind))
            if at is not None:
                rows.append(leaf.operations(at))
                for topic, methods in FOUND.items():
                    said = [getattr(leaf, method)(at) for method in methods]
                    found.setdefault(topic, []).append((entry.path, said, leaf.paged(at, 4, 16)))
    found["parts"] = [
        (
            type(part).__name__,
            part.describe(),
            part.peak_elements(),
            part.cuttable,
            part.complete,
            getattr(part, "fixed", None),
        )
        for part in composites(root)
    ] + [(leaf.describe(), callable(leaf.describe_cache) and leaf.describe_cache()) for leaf in root.leaves()]
    return {topic: sha256(repr(said).encode()).hexdigest()[:4] for topic, said in found.items()}


def structures(model: Model) -> str:
    """A digest of the structures of which a model is made, and of the sizes that theorems let be any."""
    found = [(unit.name, unit.key, sorted(unit.values.items())) for unit in units(model)]
    return sha256(repr(found).encode()).hexdigest()[:4]


def composites(part: Any) -> Iterator[Composite]:
    if isinstance(part, Composite):
        yield part
        for child in part.parts:
            yield from composites(child.part)


def layouts(model: Model) -> Iterator[tuple[str, Any]]:
    """The whole, and a rank's share of each stage; of a layout that cannot be, why."""
    yield "", model.root
    sharding = Sharding(model)
    for layout in SPLITS:
        if faults := sharding.faults(layout):
            yield f"{layout}", sha256(str(sorted(map(str, faults))).encode()).hexdigest()[:4]
            continue
        for stage in sharding.stages(layout):
            yield f"{layout}, {stage.copies} from {stage.first}", stage.root


TOWERS = {  # one of each set of parts
    f"towers of {name}": entry["config"]
    for name, entry in json.loads((HF / "towers.json").read_text()).items()
    if name in ("aria default", "audioflamingo3 default", "aya_vision clip_vision_model", "glmasr default",
                "internvl default", "llava_next pixtral", "qianfan_ocr qianfan_ocr_vision", "step3p7 default",
                "qwen2_5_omni_thinker default", "video_llava siglip_vision_model", "idefics2 idefics2_vision")
}  # fmt: skip
TREES = [*TINY, *TOWERS]


def trees(name: str) -> Iterator[tuple[str, Any]]:
    if name in TINY:
        model = build(TINY[name], name)
        yield "structures", structures(model)
        yield from layouts(model)
    else:
        yield from ((tower, model.root) for tower, model in build(*describe(TOWERS[name])).towers.items())


@pytest.mark.parametrize("name", TREES)
def test_parts_say_what_was_kept(name: str, update_golden: bool) -> None:
    now = {}
    for place, root in trees(name):
        now[place] = root if isinstance(root, str) else " ".join(f"{k} {v}" for k, v in computed(root).items())
    kept = json.loads(PARTS.read_text()) if PARTS.is_file() else {}
    if update_golden:
        kept = {each: kept[each] for each in TREES if each in kept and each != name} | {name: now}
        lines = (f"{json.dumps(each)}: {json.dumps(marks)}" for each, marks in kept.items())
        PARTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    before = kept.get(name, {})
    moved = {place: (before.get(place), now.get(place)) for place in {**before, **now}}
    moved = {place: marks for place, marks in moved.items() if marks[0] != marks[1]}
    assert not moved, MEANT


def kept_in(path: Path, name: str, now: Any, update_golden: bool) -> Any:
    """What a file keeps by a name: the figures of now, if it is to be updated."""
    kept = json.loads(path.read_text()) if path.is_file() else {}
    if update_golden:
        kept[name] = now
        path.write_text(json.dumps(kept, ensure_ascii=False, indent=0) + "\n")
    return kept.get(name)


FORMATS_KEPT = GOLDEN / "formats.json"
MADE_OF = {"plain": "D=256 L=3 h=4 h_kv=2 F=768 V=1000 untied", "tied": "D=288 L=16 h=4 F=768 V=1024",
           "experts": "D=256 L=16 h=4 h_kv=2 F=384 V=1024 E=8 k=2 untied",
           "grouped": "D=512 L=80 h=8 h_kv=2 F=768 V=1024"}  # fmt: skip
FIELDS = ("name", "bits", "dtype", "block", "scale", "row", "column", "tensor", "pooled", "wide", "whole", "filled")


def configs() -> Iterator[dict[str, Any]]:
    """Quantisation configs of every method, with what each reads, good and bad."""
    for method in READERS:
        yield {"quant_method": method}
        for width, group in product((2, 3, 4, 8), (-1, 64, 128)):
            yield {"quant_method": method, "bits": width, "group_size": group}
    for more in ({"activation_scheme": "static"}, {"weight_block_size": [64, 32]}, {"weight_block_size": [0, 128]},
                 {"weight_block_size": [128, 128], "activation_scheme": "static"}, {"expert_dtype": "fp4"},
                 {"modules_to_not_convert": ["lm_head", "model.layers.1"]}):  # fmt: skip
        yield {"quant_method": "fp8", **more}
    for kind, double in product(("nf4", "fp4", "int4"), (False, True)):
        nested = {"bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": double}
        yield {"quant_method": "bitsandbytes", "load_in_4bit": True, **nested}
    for eight in (False, True):
        yield {"quant_method": "bitsandbytes", "load_in_8bit": eight}
    for name in ("FP8", "NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "MXFP4", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN",
                 "INT8_SQ", "W4A16_AWQ", "W4A8_AWQ", "W4A8_MXFP4_FP8", "W1"):  # fmt: skip
        yield {"quant_method": "modelopt", "quant_algo": name}
        yield {"quant_method": "modelopt", "quantization": {"quant_algo": name, "group_size": 64}}
    for dtype, scheme, size in product(("fp8_e4m3", "fp4", "int4"), ("per_tensor", "per_channel"), (None, 32, 64)):
        weight = {"weight": {"dtype": dtype, "qscheme": scheme, "group_size": size}}
        yield {"quant_method": "quark", "global_quant_config": weight}
        yield {"quant_method": "quark", "global_quant_config": {**weight, "input_tensors": {"is_dynamic": False}}}
    shapes: tuple[dict[str, Any], ...] = (
              {"strategy": "channel"}, {"strategy": "tensor"}, {"strategy": "group", "group_size": 64},
              {"strategy": "group", "group_size": 128}, {"strategy": "group", "group_size": 32},
              {"strategy": "block", "block_structure": "64x128"}, {"strategy": "block", "block_structure": [0, 128]},
              {"strategy": "tensor_group", "group_size": 16}, {"group_size": -1}, {})  # fmt: skip
    for kind, width, shape, symmetric in product(("int", "float"), (4, 8), shapes, (True, False)):
        weights = {"type": kind, "num_bits": width, "symmetric": symmetric, **shape}
        inputs = {"num_bits": 8, "type": kind, "dynamic": symmetric, "symmetric": symmetric}
        read: dict[str, dict[str, Any]] = {"pack-quantized": {}, f"{kind}-quantized": {"input_activations": inputs}}
        for packing, beside in read.items():
            groups = {"all": {"targets": ["Linear"], "weights": weights, **beside}}
            yield {"quant_method": "compressed-tensors", "format": packing, "config_groups": groups}


def held(form: Format, model: Model) -> str:
    """A digest of a format, matrix by matrix, and of the bytes of a model's leaves in it."""
    forms = [each for row in form.table.values() for each in row.values()] if isinstance(form, Mixed) else [form]
    said = [[getattr(each, name) for name in FIELDS] + sorted(each.covers) for each in forms if each]
    sizes = [form.bytes_of(entry) for entry in model.entries if entry.params]
    return f"{form.name} {sha256(repr((said, sizes)).encode()).hexdigest()[:4]}"


def formed(model: Model, how: Any) -> str:
    try:
        return held(configured(model, how) if isinstance(how, dict) else weights_of(model, how), model)
    except InputError as error:
        return f"{len(error.faults)} faults"


@pytest.mark.parametrize("name", MADE_OF)
def test_formats_are_those_that_were_kept(name: str, update_golden: bool) -> None:
    model = load(MADE_OF[name])
    ways: list[Any] = [*MIXTURES, *FORMATS] if name != "plain" else [*configs(), *FORMATS]
    now = {how if isinstance(how, str) else json.dumps(how): formed(model, how) for how in ways}
    assert kept_in(FORMATS_KEPT, name, now, update_golden) == now, MEANT


ESTIMATES = GOLDEN / "estimates.json"
SEARCHED: dict[str, tuple[str, Recipe, int]] = {
    "dense, tied": ("D=512 L=8 h=8 h_kv=4 F=1376 V=32000", Recipe(tokens=512, framework="megatron"), 8),
    "experts": ("D=512 L=8 h=8 h_kv=4 F=352 V=32000 E=16 k=2 untied", Recipe(tokens=512), 8),
    "experts of Megatron-LM": ("D=512 L=4 h=8 F=352 V=32000 E=8 k=2", Recipe(tokens=512, framework="megatron"), 4),
    "activations on the host": ("gpt2", Recipe(tokens=512, offload="activations"), 4),
    "shards of all": ("gpt2", Recipe(tokens=512, zero=3), 8),
    "long sequences": ("D=512 L=8 h=8 F=1376 V=3200", Recipe(tokens=40_000, framework="megatron", zero=1), 8),
}


@pytest.mark.parametrize("name", SEARCHED)
def test_estimates_are_those_that_were_kept(name: str, update_golden: bool) -> None:
    """Seconds and bytes by which layouts are tried in order, of all with the same degrees."""
    source, base, gpus = SEARCHED[name]
    fixed = frozenset(key for key in ("framework", "offload", "zero") if getattr(base, key) != getattr(Recipe(), key))
    machine = Machine.of(hardware.load("h100-sxm"))
    found: dict[str, list[Any]] = {}
    model = load(source, {"lora.rank": 4} if name == "shards of all" else {})
    for each in Search(model, base, machine, gpus, 16, fixed).estimates():
        how = [str(getattr(each.recipe, key)) for key in ("framework", "zero", "recompute", "micro_batch", "schedule")]
        found.setdefault(str(each.recipe.layout), []).append((how, f"{each.seconds:.6g}", f"{each.bytes:.6g}"))
    now = {
        layout: f"{len(rows)}:{sha256(repr(rows).encode()).hexdigest()[:6]}" for layout, rows in sorted(found.items())
    }
    assert kept_in(ESTIMATES, name, now, update_golden) == now, MEANT


TIMED = ["gpt2", "gemma3n", "deepseek-v3", "gpt-oss", "mixtral", "qwen2-moe", "t5", "vit", "bert-pooler", "qwen3-next",
         "falcon-h1", "rwkv", "zamba2", "albert", "bailing-hybrid", "hy-v4", "moshi", "kimi-linear"]  # fmt: skip
TIMES = GOLDEN / "times.json"


@pytest.mark.parametrize("name", TIMED)
def test_times_are_those_that_were_kept(name: str, update_golden: bool) -> None:
    """Seconds of a rank by kind of part, of a prompt and of a step, captured and of modules that are called."""
    model, card, now = build(TINY[name], name), hardware.load("h100-sxm"), dict[str, str]()
    sharding = Sharding(model, serving=True)
    for layout, weights in product((Layout(), Layout(tp=2), Layout(dp=2, ep=2)), ("bf16", "fp8", "int4")):
        if sharding.faults(layout):
            continue
        stage, how = sharding.stages(layout)[0], engine(model, weights)
        works = [model.workload(3, 9), *([model.workload(5, 1, 40, logits="last")] if model.decodes else ())]
        rows = []
        for eager, work in product((False, True), works):
            timer = RankTime(stage, layout, card, how, eager, issued=eager)
            for kind, cost in timer.parts(work).items():
                rows.append((kind, [f"{seconds:.6g}" for seconds in cost]))
        now[f"{layout}, {weights}"] = f"{len(rows)}:{sha256(repr(rows).encode()).hexdigest()[:6]}"
    assert kept_in(TIMES, name, now, update_golden) == now, MEANT
