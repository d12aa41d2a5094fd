"""The memory of every rank of a training run: closed forms, published shards, conservation, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from txcalc import load
from txcalc.errors import InputError
from txcalc.planning.training import Layout, Ranks, Recipe, memory
from txcalc.planning.training.activations import leaf_bytes
from txcalc.planning.training.answer import last_within
from txcalc.planning.training.collectives import Sent, collectives
from txcalc.planning.training.memory import RankPeak
from txcalc.planning.training.profiles import Moment
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.states import RankTensor, weight_bytes

LLAMA = "D=64 L=4 h=8 h_kv=4 F=96 V=250"


def parameters(plan: Ranks) -> list[tuple[int, int]]:
    """Elements of each kind of rank, in fp32, and how many there are."""
    return [(rank.state.parameters // 4, rank.count) for rank in plan.ranks]


def test_megatron_on_a_b200() -> None:
    """Llama-3-70B's first 12 layers, max_memory_allocated in MiB as SimuMax measured it (4dcaae5, docs/b200)."""
    for layout, measured in (
        (Layout(tp=2, sp=2, dp=4), 62136.11),
        (Layout(tp=8, sp=8), 28965.20),
        (Layout(pp=2, dp=4), 68149.20),
    ):
        padded = -(-128256 // (128 * layout.tp)) * 128 * layout.tp
        model = load(f"D=8192 L=12 h=64 h_kv=8 F=28672 V={padded}")
        zero = 1 if layout.dp > 1 else 0
        recipe = Recipe(layout, accumulation=4, framework="megatron", zero=zero, fused_loss=True)
        assert abs(memory(model, recipe).fullest.allocated / 2**20 / measured - 1) < 0.002  # measured: 0.07 % at most


def test_nanotron_cuts_by_cost() -> None:
    """The output layer of a small model with a large vocabulary counts as layers do: the last stage has fewer."""
    model = load("D=2048 L=16 h=32 F=8192 gated V=131072 tied")
    from txcalc.planning.training.stages import Pipeline

    assert Pipeline(model, Recipe(Layout(pp=4), framework="nanotron", accumulation=4)).sizes == [5, 5, 5, 1]
    assert Pipeline(model, Recipe(Layout(pp=4), accumulation=4)).sizes == [4, 4, 4, 4]


def test_nanotron_by_its_source() -> None:
    """Gathering buffers and joint q, k and v of one tensor; DistributedDataParallel at zero 0 alone; what collectives
    still hold where the host runs ahead."""
    model, rows = load("D=64 L=4 h=8 F=96 V=256 tied"), 2 * 32
    recipe = Recipe(Layout(tp=2, sp=2, dp=2), 2, 2, 32, framework="nanotron")

    def at(**changed: Any) -> RankPeak:
        return memory(model, replace(recipe, **changed)).fullest

    whole, sharded = at(), at(zero=1)
    assert whole.bytes["buffers"] == 2 * rows * 64 * 2 + whole.state.parameters
    assert sharded.bytes["buffers"] == 2 * rows * 64 * 2
    ahead = (2 * 4 + 1) * rows * (64 + 32) * 2  # a block's two reductions and the embedding's
    assert (at(accumulation=1).collective_bytes, whole.collective_bytes) == (ahead, 2 * ahead)
    first = memory(model, replace(recipe, layout=Layout(tp=2, sp=2, pp=2), accumulation=8)).ranks[0]
    assert (
        first.collective_bytes == 2 * (2 * 3 + 1) * rows * (64 + 32) * 2
    )  # of the two forwards before its first gradient
    deep = memory(load("D=64 L=80 h=8 F=96 V=256"), recipe).fullest
    assert (
        deep.collective_bytes == (2 * 80 + 1) * rows * (64 + 32) * 2 * 22 // 80
    )  # no further ahead than the launch queue
    assert sharded.collective_bytes - whole.collective_bytes == sharded.state.parameters * 3 // 2
    joint = whole.bytes["saved"] - memory(load("D=64 L=4 h=8 h_kv=4 F=96 V=256 tied"), recipe).fullest.bytes["saved"]
    assert joint == 4 * rows * (64 // 2 + 2 * 64 // 2) * 2  # k and v of half as many heads, and none with q


def test_the_last_that_holds_is_what_trying_all_finds() -> None:
    """Of lines, curves, steps and what does not grow, from capacities that nothing holds to those that all do."""
    grown: list[Callable[[int], int]]
    grown = [lambda n: 7 * n + 3, lambda n: n * n, lambda n: 50 * (n // 5) + n, lambda n: 10]
    for bytes_of, most, capacity in product(grown, (1, 2, 9, 50), range(400)):
        best = max((n for n in range(1, most + 1) if bytes_of(n) <= capacity), default=0)
        assert last_within(bytes_of, most, capacity) == best, (most, capacity)


def test_frozen_weights_by_format() -> None:
    """QLoRA's four bits: an fp32 scale for 64 weights, or one byte for it and an fp32 for 256 of them, and their mean's
    (arXiv 2305.14314, section 3); eight bits with an fp32 a row."""
    tensor = RankTensor((80, 64), 1, None, False, True, (0,), learns=False, packed=True)
    sizes = {"nf4": 2560 + 4 * 80, "nf4-dq": 2560 + 80 + 4 + 4, "int8": 5120 + 4 * 80, "bf16": 10240, "fp32": 20480}
    for frozen, size in sizes.items():
        assert weight_bytes(tensor, 5120, Recipe(Layout(), frozen=frozen)) == size, frozen
    column = tensor._replace(shape=(5120, 1))
    assert weight_bytes(column, 5120, Recipe(Layout(), frozen="int8")) == 5 * 5120
    assert weight_bytes(tensor._replace(packed=False), 5120, Recipe(Layout(), frozen="nf4")) == 10240  # of the products
    assert weight_bytes(tensor._replace(learns=True), 5120, Recipe(Layout(), frozen="nf4", parameter="bf16")) == 10240
    assert weight_bytes(tensor._replace(adapter=True), 5120, Recipe(Layout(), frozen="nf4", adapter="fp32")) == 20480


@pytest.mark.parametrize(
    ("model", "numbers", "message"),
    [("t5-small", "2", "each stack"), ("albert-base-v2", "0,12", "from 0 to 11"), ("vit-b", "12", "from 0 to 11")],
)
def test_numbers_of_layers_that_are_not_there(model: str, numbers: str, message: str) -> None:
    """Of what no pipeline cuts too: nothing was recomputed, without a word."""
    with pytest.raises(InputError, match=message):
        Pipeline(load(model), Recipe(recompute=f"layers:{numbers}"))


@pytest.mark.parametrize(("recompute", "gathers"), [("none", 1), ("layers:1", 1.5), ("blocks", 2)])
@pytest.mark.parametrize(
    ("name", "changes", "widths"),
    [("D=64 L=2 h=8 h_kv=4 F=96 V=250", {}, 4 * (8 + 8)), ("deepseek-v2", {"L": 2}, 128 * (192 + 128))],
)
def test_keys_and_values_of_the_whole_sequence_are_gathered(
    recompute: str, gathers: float, name: str, changes: dict[str, Any], widths: int
) -> None:
    """Of two layers for 64 tokens in 16 bits, K and V each, of their own widths; again where forward runs again; their
    gradients are reduced."""
    model, sent = load(name, changes), []
    for context in ("ring", "allgather"):
        recipe = Recipe(Layout(cp=2), tokens=64, recompute=recompute, context=context)
        sent.append(collectives(Pipeline(model, recipe).pieces, recipe))
    for kind, times in (("all_gather", 2 * gathers), ("reduce_scatter", 2)):
        ring, gathered = (messages.get(kind, Sent(0, 0)) for messages in sent)
        assert (gathered.times - ring.times, gathered.bytes - ring.bytes) == (2 * times, times * 64 * widths * 2)


def test_a_moment_holds_what_is_said_of_it() -> None:
    assert Moment(5) == Moment(5, 0, 0, 0, True, False)


def test_one_rank_of_a_context_keeps_what_its_kernel_does() -> None:
    """Ulysses' exchange of heads for tokens is between ranks."""
    model, saved = load(LLAMA), {}
    for cp, form in product((1, 2), ("ring", "ulysses")):
        recipe = Recipe(Layout(cp=cp), tokens=64, context=form)
        (piece,) = Pipeline(model, recipe).pieces
        saved[cp, form] = sum(leaf_bytes(leaf, recipe) for leaf in piece.leaves)
    assert saved[1, "ring"] == saved[1, "ulysses"] and saved[2, "ring"] != saved[2, "ulysses"]
