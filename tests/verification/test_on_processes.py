"""Layouts on real processes: the values of one process, and the bytes that were predicted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import Ranks
from tiny import TINY

pytest.importorskip("torch")

from txcalc import load
from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.planning.layout import parse_layout
from txcalc.planning.training.recipe import parse_recipe
from txcalc.sources import build
from txcalc.verification.branches import NoParallel
from txcalc.verification.parallel import start_processes
from txcalc.verification.processes import RankResult, compared_rows, full_name, verify_real

pytestmark = [pytest.mark.slow, pytest.mark.drawn(1)]  # each runs a step on up to four processes


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    """Four processes for all layouts."""
    with start_processes(4) as processes:
        yield Ranks(processes)


MODEL = "D=64 L=4 h=4 h_kv=2 F=96 V=512"
LATENT = {
    "d_model": 64, "n_layers": 2, "vocab_size": 512, "pattern": ["dense", "sparse"],
    "latent": {"n_heads": 4, "q_rank": 24, "kv_rank": 16, "d_nope": 16, "d_rope": 8, "d_v": 16},
    "feed_forward": {"d_ff": 96, "gated": True}, "experts": {"n_experts": 4, "top_k": 2, "d_ff": 32, "n_shared": 1},
    "layer": {"dense": {"parts": ["attention", "feed_forward"]}, "sparse": {"parts": ["attention", "experts"]}},
}  # fmt: skip
# Adapters of fewer rows than ranks: two experts' adapters of rank 2 over four ranks, of which two have none.
TUNED = {"lora.rank": 2, "lora.modules": ["all"]}


STEPS = [
    (MODEL, "tp=2,sp=2,fsdp=2", "micro_batch=2,recompute=core"),
    (MODEL, "cp=2", "context=ring"),
    (MODEL, "cp=2", "context=ulysses"),
    (MODEL, "pp=2,vpp=2", "accumulation=4,schedule=zb,recompute=blocks"),
    # Of afmoe's four experts, one on a rank, the tokens at hand choose three: the fourth's gradient is zeros.
    ("afmoe", "tp=2,sp=2,fsdp=2,ep=4", ""),
]
NIGHTLY = [
    (MODEL, "fsdp=3", "micro_batch=2,accumulation=2"),
    (MODEL, "tp=2,sp=2", ""),
    *((MODEL, "fsdp=2,cp=2", f"context={name}") for name in ("allgather", "ring", "ulysses")),
    *((MODEL, "pp=2", f"accumulation=4,schedule={name}") for name in ("gpipe", "1f1b", "zbv", "dualpipev")),
    (MODEL, "pp=2,vpp=2", "accumulation=4,schedule=interleaved"),
    (MODEL, "pp=2,fsdp=2", "accumulation=2,stages=1+3"),
    (MODEL, "tp=2,sp=2,fsdp=2", "recompute=every:2"),
    *((MODEL, "pp=2,fsdp=2", f"accumulation=2,recompute={which}") for which in ("layers:1,2", "core")),
    *(("latent", layout, "") for layout in ("tp=2,sp=2,fsdp=2,ep=4", "fsdp=4,ep=2", "dp=2,fsdp=2,ep=2")),
    ("albert", "fsdp=2", "recompute=core"),
]


@pytest.mark.drawn(len(STEPS))
@pytest.mark.parametrize(
    ("source", "layout", "recipe"), [*STEPS, *(pytest.param(*step, marks=pytest.mark.nightly) for step in NIGHTLY)]
)
def test_a_step_is_that_of_one_process(source: str, layout: str, recipe: str, pool: Any) -> None:
    _equal(model_of(source), layout, recipe, pool)


def model_of(source: str) -> Model:
    """A tiny model's vocabulary is a multiple of all ranks that have its rows."""
    if source == MODEL:
        return load(source)
    return build({**TINY[source], "vocab_size": 52} if source in TINY else LATENT, source)


@pytest.mark.parametrize(
    ("source", "what"),
    [("gemma3n", "gates that are cut by their mean")],
)
def test_what_is_taken_of_all_channels_is_not_run_over_tp(source: str, what: str, pool: Any) -> None:
    model = build(TINY[source], source)
    _equal(model, "fsdp=2", "", pool)
    with pytest.raises(InputError, match=f"tp of {what}"):
        _equal(model, "tp=2", "", pool)


def test_a_sequence_over_ranks_is_not_recomputed() -> None:
    with pytest.raises(InputError, match="cp is run without recomputation"):
        _equal(load(MODEL), "fsdp=2,cp=2", "recompute=blocks")


def test_a_pooler_beside_a_head_is_not_run() -> None:
    with pytest.raises(InputError, match="a pooler has no gradient"):
        verify_real(build(TINY["big-bird"], "big-bird"), parse_recipe("tokens=16", parse_layout("fsdp=2")), 2)


def test_adapters_of_fewer_rows_than_ranks_are_those_of_one_process(pool: Any) -> None:
    _equal(load(MODEL + " E=2 k=1", TUNED), "fsdp=4", "", pool)


def test_rows_that_torch_deals_out_to_no_ranks_are_told(pool: Any) -> None:
    """tp and fsdp both cut them; `--layout` without `--torchrun` compares their bytes."""
    with pytest.raises(NoParallel, match="has 510 rows, no multiple of its 4 ranks of tp and fsdp"):
        _equal(load(MODEL.replace("512", "510")), "tp=2,sp=2,fsdp=2", "", pool)


@pytest.mark.nightly
def test_rows_that_dp_does_not_divide_are_dealt_out() -> None:
    _equal(load(MODEL.replace("512", "508")), "dp=2,tp=2,sp=2,fsdp=2", "")


@pytest.mark.parametrize("source", ["albert", "bert", "gpt2"])
def test_an_embedding_that_adds_to_its_tokens_is_that_of_one_process(source: str, pool: Any) -> None:
    """With sequence parallelism: tables of positions and types, and a head's product at each position."""
    _equal(model_of(source), "tp=2,sp=2,fsdp=2", "", pool)


@pytest.mark.parametrize("source", ["bitnet", "olmo2", "bloom", "laguna", "esmc", "eagle3", "hy-v4", "gemma4"])
def test_what_ranks_join_beside_heads_and_columns_is_that_of_one_process(source: str, pool: Any) -> None:
    """Statistics of norms over split columns, norms over all heads, slopes and gates of heads, what a draft reads."""
    _equal(model_of(source), "tp=2,sp=2", "", pool)


def _equal(model: Model, layout: str, recipe: str, pool: Any = None) -> None:
    ways = parse_layout(layout)
    verdict = verify_real(model, parse_recipe(f"tokens=16,{recipe}", ways), ways.gpus, pool=pool)
    assert verdict and verdict.ok, [row for row in verdict.rows if not row.equal] if verdict else None
    assert {row.quantity for row in verdict.rows} >= {"loss", "gradients, bytes", "optimizer, bytes"}
    assert sum(row.quantity == "gradients equal to one process's" for row in verdict.rows) == ways.gpus
    recomputed = [row for row in verdict.rows if row.quantity == "modules computed again"]
    assert len(recomputed) == (ways.gpus if "recompute" in recipe else 0)


@pytest.mark.nightly
def test_the_environment_of_torchrun_is_taken(tmp_path: Path) -> None:
    """Two processes as torchrun starts them: the first says what all found."""
    command = [sys.executable, "-m", "txcalc", "verify", MODEL, "--layout", "fsdp=2", "--torchrun", "2", "--json"]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29571", "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(command, env={**os.environ, **address, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    assert '"path": "rank 1"' in outputs[0] and outputs[1] == ""


def test_a_wrong_value_is_seen() -> None:
    model, recipe = load(MODEL), parse_recipe("parameter=fp32", parse_layout("fsdp=2"))
    right = RankResult(0, 6.25, 6.25, {"final_norm.weight": 1e-7}, {})
    assert [row.equal for row in compared_rows(model, recipe, right)][:2] == [True, True]
    for wrong in (right._replace(loss=6.2505), right._replace(gradients={"final_norm.weight": 1e-3})):
        assert not all(row.equal for row in list(compared_rows(model, recipe, wrong))[:2])


def test_names_of_a_piece() -> None:
    assert full_name("layers.1.attention.q.weight", "12") == "layers.13.attention.q.weight"
    assert full_name("head.projection.weight", "12") == "head.projection.weight"
