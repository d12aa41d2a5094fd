"""Numbers that papers, model cards and books print, each computed by txcalc under the convention its source states.

`data/published.json` says for each what to run, what was printed, and how the two compare:

rounded     the same to half the last printed digit (or the tolerance that the source's own inputs leave)
truncated   printed without rounding: the digits shown are the first ones
bound       printed as an upper bound, which holds
below       measured, and no faster than the floor that txcalc gives allows
disagrees   neither, for the `reason` given: the print is wrong, or counts something else; txcalc `gives` another

A number that disagrees must go on disagreeing, by the same amount, so that the list cannot rot. What is left out is
listed with its reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from paths import DATA

import txcalc
from txcalc import hardware
from txcalc.ledger import Entry, Ledger
from txcalc.model import Model
from txcalc.parts.part import Elementwise
from txcalc.planning.conventions import rules_of_thumb
from txcalc.planning.layout import Layout
from txcalc.planning.memory import cache_bytes, training_state, weights_bytes
from txcalc.planning.serving.deployment import Planner
from txcalc.planning.serving.engine import Reserve, engine
from txcalc.planning.serving.layout_time import LayoutTime
from txcalc.planning.training import training_flops
from txcalc.sources import build

PUBLISHED = json.loads((DATA / "published.json").read_text())
RECORDS: list[dict[str, Any]] = PUBLISHED["records"]

UNITS = {
    "1": Fraction(1),
    "m": Fraction(1, 1000),
    "%": Fraction(1, 100),
    **{name: Fraction(1000**power) for power, name in enumerate(("K", "M", "G", "T", "P", "E", "Z"), 1)},
    "B": Fraction(10**9),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "PF-day": Fraction(10**15 * 24 * 60 * 60),
}

Measure = Callable[[Model, Ledger], Any]


def kinds(*names: str, of: str = "params") -> Measure:
    """The sum of some kinds."""
    return lambda model, ledger: sum(ledger.by_kind(of).get(name, 0) for name in names)


def rule(formula: str) -> Measure:
    """What a rule of thumb gives."""
    return lambda model, ledger: next(r.gives for r in rules_of_thumb(model, ledger) if r.formula == formula)


def core(ledger: Ledger) -> Fraction:
    """FLOPs per token of the scores and values, forward."""
    return Fraction(ledger.by_kind("flops")["attention_core"], ledger.work.positions)


def with_attention(model: Model, ledger: Ledger) -> Any:
    """6N + 12·L·h·d_h·T per token (Chowdhery et al. 2022, appendix B): three passes of the core beside 6N."""
    return rule("6·N")(model, ledger) + 3 * core(ledger)


def recomputed(model: Model, ledger: Ledger) -> Any:
    """The same with PaLM's rematerialisation: the core's forward again, and three quarters of the rest's."""
    return with_attention(model, ledger) + Fraction(3, 4) * rule("2·N")(model, ledger) + core(ledger)


def without_positions(model: Model, ledger: Ledger) -> Any:
    """6N + 12·L·h·d_h·T per token with N less the position table (nanoGPT)."""
    return with_attention(model, ledger) - 6 * ledger.at("embedding.positions").total("params")


def chinchilla_ratio(model: Model, ledger: Ledger) -> Any:
    """Hoffmann et al. 2022, appendix F over 2·N, as their table A4 really counts it.

    Without embedding and logits, without the relative positions in the FLOPs but with them in N, 3 per score for the
    softmax, and N without norms.
    """

    def counted(entry: Entry) -> int:
        if entry.kind not in ("attention", "attention_core", "feed_forward") or entry.steps[-1].name == "position":
            return 0
        products = sum(op.flops for op in entry.operations if op.name != "distances")
        return (
            products
            + 3 * sum(op.elements for op in entry.operations if isinstance(op, Elementwise) and op.name == "softmax")
        ) * entry.runs

    parameters = ledger.total("params") - ledger.by_kind("params")["norm"]
    return Fraction(sum(map(counted, ledger)), 2 * parameters * ledger.work.positions)


def crossover(model: Model, ledger: Ledger) -> Any:
    """The length at which the core, which grows with T², costs what all linear layers do, which grow with T."""
    attention = ledger.by_kind("flops")["attention_core"]
    return Fraction(ledger.work.tokens * (ledger.total("flops") - attention), attention)


def in_mxfp4(model: Model, ledger: Ledger) -> Any:
    """Bytes with the experts' matrices in MXFP4 (4 bits and a scale of 8 for every 32), all else in bf16."""
    experts = ledger.where(lambda entry: entry.kind == "experts")
    matrices = sum(w.size * e.times for e in experts for w in e.leaf.weights() if w.name == "weight")
    return Fraction(matrices * (4 * 32 + 8), 32 * 8) + 2 * (ledger.total("params") - matrices)


def moments(model: Model, ledger: Ledger) -> Any:
    """Bytes of the weights and both of Adam's moments in fp32."""
    return sum(share.bytes for share in training_state(model.params) if share.name.endswith("(fp32)"))


def growth(model: Model, ledger: Ledger) -> Any:
    return ledger.cache_terms.growth


MEASURES: dict[str, Measure] = {
    "params": lambda model, ledger: model.params,
    "active": lambda model, ledger: model.active,
    "active without the input embedding": lambda m, ledger: m.active - kinds("embedding")(m, ledger),
    "embedding": kinds("embedding"),
    "embedding and head": kinds("embedding", "head"),
    "non-embedding": lambda m, ledger: m.params - kinds("embedding", "head")(m, ledger),
    "attention": kinds("attention"),
    "experts and router": kinds("experts", "router"),
    "feed-forward share": lambda m, ledger: Fraction(
        kinds("feed_forward")(m, ledger), kinds("feed_forward", "attention")(m, ledger)
    ),
    "12LD²": rule("12·L·D²"),
    "6N": rule("6·N"),
    "3N": lambda m, ledger: rule("6·N")(m, ledger) / 2,  # each half of an encoder-decoder sees half the tokens
    "6N and attention": with_attention,
    "6N and attention, recomputed": recomputed,
    "6N without positions, and attention": without_positions,
    "core share": lambda m, ledger: Fraction(kinds("attention_core", of="flops")(m, ledger), ledger.total("flops")),
    "chinchilla ratio": chinchilla_ratio,
    "crossover": crossover,
    "training FLOPs": lambda m, ledger: training_flops(ledger),
    "training FLOPs per token, masked": lambda m, ledger: Fraction(
        3 * ledger.total("flops_masked"), ledger.work.positions
    ),
    "weights": lambda m, ledger: weights_bytes(ledger),
    "checkpoint in MXFP4": in_mxfp4,
    "fp32 weights and moments": moments,
    "cached elements per token": growth,
    "cache per token": lambda m, ledger: Fraction(growth(m, ledger) * ledger.bits[2], 8),
    "cache": lambda m, ledger: cache_bytes(ledger),
    "weights and caches": lambda m, ledger: weights_bytes(ledger) + ledger.work.batch * cache_bytes(ledger),
}


class Served:
    """A model on `layout` of `gpu`, weights and cache as said, with nothing kept from its memory; `at` is what is asked
    of it: batch, context, and how many tokens of that are the prompt."""

    def __init__(self, model: Model, run: dict[str, Any]) -> None:
        how, self.at = run["on"], run["at"]
        self.layout = Layout(**how.get("layout", {}))
        config = engine(model, how["weights"], how["kv"], chunk=1 << 20, reserve=Reserve.none())
        self.planner = Planner(model, hardware.load(how["gpu"]), config)
        self.pace = LayoutTime(model, self.planner.sharding, self.layout, self.planner.accelerator, config)

    @property
    def step(self) -> float:
        """Seconds of a decode step, the floor."""
        return self.pace.step(self.at.get("batch", 1), self.at["context"]).floor

    @property
    def prefill(self) -> float:
        return self.pace.prefill(self.at["context"]).floor

    @property
    def read(self) -> float:
        """Bytes that a rank reads for a token."""
        return self.step * self.planner.accelerator.bandwidth

    @property
    def ceiling(self) -> float:
        """Output tokens per second that no server exceeds: of a request's prefill and its share of decode steps,
        halfway through its answer on average, the largest of compute, memory and link; prefills read no weights of
        their own. Without a batch, as many sequences of that length as the memory holds."""
        prompt, context = self.at["prompt"], self.at["context"]
        answer, mean = context - prompt, (prompt + context) // 2
        batch = self.at.get("batch") or self.planner.max_concurrency(self.layout, mean)
        (rank,) = self.pace.ranks
        step, first = rank.cost(self.pace.decode(batch, mean)), rank.cost(self.pace.decode(1, prompt, prompt), False)
        spent = [
            start + answer * step_s / batch
            for start, step_s in zip(first._replace(least_weights=0.0).least, step.least, strict=True)
        ]
        return answer / max(spent)

    @property
    def rank_bytes(self) -> int:
        """Bytes of a rank's layers, and of what is `whole` on it (gpt-fast splits neither embedding nor head)."""
        (rank,) = self.planner.ranks(self.layout)
        (single,) = self.planner.ranks(Layout())
        layers = sum(size for entry, size in rank.weights if entry.kind not in ("embedding", "head"))
        return layers + sum(size for entry, size in single.weights if entry.kind in self.at["whole"])


SERVED: dict[str, Callable[[Served], float]] = {
    "decode step": lambda served: served.step,
    "decode steps per second": lambda served: 1 / served.step,
    "decode tokens per second": lambda served: served.at["batch"] / served.step,
    "prefill": lambda served: served.prefill,
    "bytes read per token": lambda served: served.read,
    "output tokens per second": lambda served: served.ceiling,
    "bytes of a rank": lambda served: served.rank_bytes,
}


def computed(run: dict[str, Any]) -> Fraction:
    """What txcalc gives for a record's `run`: a model with changes, a workload, a measure of it, times so many; or
    the same measure of that model over another's."""
    source, changes = run["model"], run.get("set")
    model = (
        build(source, "a description", changes=changes) if isinstance(source, dict) else txcalc.load(source, changes)
    )
    if "on" in run:
        return Fraction(SERVED[run["measure"]](Served(model, run))) * Fraction(str(run.get("times", 1)))
    value = Fraction(MEASURES[run["measure"]](model, model.ledger(**run.get("at", {})))) * run.get("times", 1)
    return value / computed({**run, "set": None, **run["over"], "over": None}) if run.get("over") else value


def comparison(value: Fraction, record: dict[str, Any]) -> str:
    """How a value compares with what was printed."""
    printed, in_unit = Fraction(record["published"]), value / UNITS[record["unit"]]
    if abs(in_unit - printed) <= Fraction(str(record["tolerance"])):
        return "rounded"
    digit = Fraction(10) ** int(Decimal(record["published"]).as_tuple().exponent)
    return "truncated" if math.floor(in_unit / digit) * digit == printed else "disagrees"


@pytest.mark.parametrize("record", RECORDS, ids=[record["id"] for record in RECORDS])
def test_published(record: dict[str, Any]) -> None:
    value = computed(record["run"])
    if record["verdict"] == "bound":
        assert value / UNITS[record["unit"]] <= Fraction(record["published"])
    elif record["verdict"] == "below":
        assert value / UNITS[record["unit"]] >= Fraction(record["published"])
    else:
        assert comparison(value, record) == record["verdict"]
    if record["verdict"] == "disagrees":
        gives = Fraction(f"{float(value):.6g}") if "on" in record["run"] else value
        assert gives == Fraction(record["gives"])
        assert record["reason"]
    assert record["source"]


def test_every_claim_is_run_or_left_out_for_a_reason() -> None:
    run, left_out = (
        [record["id"] for record in RECORDS],
        [name for group in PUBLISHED["left_out"] for name in group["ids"]],
    )
    assert len(set(run) | set(left_out)) == len(run) + len(left_out) == PUBLISHED["claims"]
    assert all(group["reason"] and len(group["ids"]) == group["count"] for group in PUBLISHED["left_out"])
    assert {record["run"]["measure"] for record in RECORDS} == {*MEASURES, *SERVED}


def test_the_comparison_can_fail() -> None:
    """A number one unit in the last place away is neither rounded nor truncated."""
    record = {"published": "46.7", "unit": "B", "tolerance": 0.05}
    verdicts = {
        value: comparison(Fraction(value), record) for value in (46_702_792_704, 46_760_000_000, 46_602_792_704)
    }
    assert list(verdicts.values()) == ["rounded", "truncated", "disagrees"]


def test_the_training_state_of_show_is_that_of_train() -> None:
    """A rank of DeepSpeed that holds everything, tied tables once."""
    ranks = txcalc.train("gpt2", gpu="a100-80gb-sxm", framework="deepspeed", layout="dp=1", tokens=128).ranks
    rank_bytes = ranks[0].bytes
    parameters, gradients, *optimizer = (share.bytes for share in training_state(txcalc.load("gpt2").params))
    shares = parameters, gradients, sum(optimizer)
    assert shares == (rank_bytes["parameters"], rank_bytes["gradients"], rank_bytes["optimizer"])
