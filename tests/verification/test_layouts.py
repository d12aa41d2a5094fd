"""Layouts against PyTorch's own sharding: predicted and measured, equal to the byte, on every kind of rank."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from extras import needs
from layouts import MEASURED as KEPT, case_of, model_of
from msgspec.structs import replace
from ranks import run_rank
from tiny import TINY, config_sizes

from txcalc import hardware, load
from txcalc.errors import InputError
from txcalc.planning.machine import Machine
from txcalc.planning.training import Layout, Recipe, memory
from txcalc.planning.training.collectives import KINDS, collectives, muon_collectives, muon_replicas
from txcalc.planning.training.memory import figures
from txcalc.planning.training.recipe import parse_recipe
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.states import RankTensor
from txcalc.planning.training.step import StepTimer
from txcalc.sources import build

needs("torch")


@pytest.fixture(autouse=True)
def same_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ranks run here, one after the other: a process of its own would import PyTorch for each. No quick test runs
    any, and PyTorch is not imported for it."""
    if "slow" not in request.keywords:
        yield
        return
    from torch.distributed.pipelining.schedules import _PipelineSchedule

    from txcalc.verification import parallel

    monkeypatch.setattr(parallel, "in_new_process", lambda work, *args: run_rank(work, args))
    monkeypatch.setattr(_PipelineSchedule, "_warmup_p2p", _PipelineSchedule._warmup_p2p)  # a count replaces it
    yield
    logging.disable(logging.NOTSET)


MEASURED = {title: ranks for title, ranks in KEPT.items() if ranks}
CASES = [(title, *case_of(title)) for title in MEASURED]

LLAMA = "D=64 L=2 h=8 h_kv=4 F=96 V=250"

MIXTURE = LLAMA.replace("L=2", "L=1") + " E=4 k=2"
TUNED = {"lora.rank": 4, "lora.modules": ["all"]}
SAMPLE: list[tuple[Any, Layout, dict[str, Any]]] = [
    (load(LLAMA, {"n_layers": 3, "head.form": "classifier", "head.classes": 4}), Layout(fsdp=3), {"micro_batch": 2}),
    (LLAMA, Layout(tp=2, sp=2), {"parameter": "bf16", "recompute": "blocks"}),
    (MIXTURE, Layout(tp=2, sp=2, dp=2, fsdp=2, ep=2, etp=2), {}),
    # Four ranks share the rows of two experts; the shared one's input is that of the router too, and kept once.
    (load(MIXTURE, {"experts.n_shared": 1}), Layout(fsdp=8, ep=2), {"recompute": "core"}),
    (load(MIXTURE, TUNED), Layout(tp=2, sp=2, fsdp=2, ep=4), {"frozen": "fp32", "adapter": "bf16"}),
    (build({**TINY["albert"], "lora": {"rank": 3}}, "albert"), Layout(tp=2, fsdp=2), {}),  # layers that are one module
    (LLAMA, Layout(pp=2, fsdp=2), {"accumulation": 2, "recompute": "layers:1"}),  # a number that no piece has
    (build(TINY["bitnet"], "bitnet"), Layout(tp=2), {"parameter": "bf16"}),  # a norm over columns that ranks share
    (build({**TINY["bitnet"], "norm": {"form": "layer"}}, "layer"), Layout(tp=2), {"parameter": "bf16"}),
]
NIGHTLY: list[tuple[Any, Layout, dict[str, Any]]] = [
    (LLAMA, Layout(tp=4, sp=4, fsdp=256), {}),  # more ranks than rows
    (LLAMA, Layout(tp=2), {"parameter": "bf16", "optimizer": "sgd-momentum"}),  # the table's gradient is whole
    (LLAMA + " tied", Layout(tp=2, sp=2, pp=2, fsdp=2), {"accumulation": 4}),
    (LLAMA, Layout(fsdp=3), {"optimizer": "muon"}),
    # A norm behind the experts: recomputation gathers their results too.
    (build(TINY["afmoe"], "afmoe"), Layout(tp=2, fsdp=2, ep=4), {"recompute": "blocks"}),
    # A table of biases is split by heads and not on the residual stream: its gradient is that of its own heads.
    *((build(TINY["mpnet"], "mpnet"), Layout(tp=2, sp=sp, fsdp=2), {}) for sp in (1, 2)),
]


@pytest.mark.slow
@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("source", "layout", "rest"),
    [*SAMPLE, *(pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY)],
    ids=str,
)
def test_a_layout_is_as_torch_has_it(source: Any, layout: Layout, rest: dict[str, Any]) -> None:
    from txcalc.verification.layouts import verify_layout

    recipe = Recipe(layout, tokens=32 * layout.sp, **rest)
    verdict = verify_layout(load(source), recipe, ranks=2)
    assert verdict.ok, verdict.failures
    quantities = {"parameters, bytes", "gradients, bytes"}
    quantities |= set() if any("saved tensors: not compared" in note for note in verdict.notes) else {"saved, bytes"}
    thirds = [row for row in verdict.rows if row.path == "a third layer"]
    groups = (group for stack in load(source).root.stacks for group in stack.groups)
    assert bool(thirds) == any(group.count > 2 and not group.shared for group in groups)
    assert quantities | ({"all_to_all, bytes"} if layout.ep > 1 else set()) <= {row.quantity for row in verdict.rows}


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("muon", "muon of stacked experts and convolutions is modelled: PyTorch's takes only matrices"),
        ("lion", "lion: only modelled"),
    ],
)
def test_states_that_pytorch_does_not_keep_are_modelled(optimizer: str, message: str) -> None:
    from txcalc.verification.branches import NoParallel
    from txcalc.verification.layouts import verify_layout

    with pytest.raises(NoParallel, match=message):
        verify_layout(load(LLAMA + " E=4 k=2"), Recipe(Layout(fsdp=2), tokens=32, optimizer=optimizer), ranks=1)


@pytest.mark.drawn(quick=8)
@pytest.mark.parametrize("case", sorted(MEASURED))
def test_a_layout_is_as_torch_had_it(case: str) -> None:
    """Every rank as `python tests/scripts/layouts.py --keep` measured it, with torch's own sharding."""
    source, layout, rest = case_of(case)
    model, recipe = model_of(source), Recipe(layout, tokens=32 * layout.sp * layout.cp, **rest)
    pipeline, plan = Pipeline(model, recipe), memory(model, recipe)
    for rank, measured in MEASURED[case].items():
        (first_rank,) = (plan_rank for plan_rank in plan.ranks if str(plan_rank.rank) == rank)
        predicted = figures(model, recipe, pipeline, first_rank)
        by_quantity = {
            f"{q.removesuffix(' bytes')}{'' if q in KINDS else ', bytes'}": number for q, number in predicted.items()
        }
        assert {quantity: by_quantity.get(quantity, 0) for quantity in measured} == measured, rank


ALONE = [case for case in CASES if case[2].gpus == case[2].tp > 1]


@pytest.mark.parametrize(("title", "source", "layout", "rest"), ALONE, ids=str)
def test_a_step_sends_what_torch_s_collectives_do(title: str, source: str, layout: Layout, rest: Any) -> None:
    """Of ranks of tp alone, by rings; the numbers of tokens for each expert are told beside."""
    model, recipe = model_of(source), Recipe(layout, tokens=32 * layout.sp, **rest)
    sent = StepTimer(model, recipe, Machine.of(hardware.load("h100-sxm"))).step(memory(model, recipe)).sent
    measured, others = next(iter(MEASURED[title].values())), (layout.tp - 1) / layout.tp
    torch_s = {kind: measured.get(f"{kind}, bytes", 0) * others for kind in ("all_gather", "reduce_scatter")}
    torch_s["all_reduce"] = measured.get("all_reduce, bytes", 0) * 2 * others
    assert sent == {kind: size for kind, size in sorted(torch_s.items()) if size}


SENT = [case for case in CASES if case[2].exchanges and case[2].tp > case[2].sp and case[2].ep == case[2].expert_group]


@pytest.mark.parametrize(("title", "source", "layout", "rest"), SENT, ids=str)
def test_a_step_of_exchanged_experts_sums_what_torch_s_does(title: str, source: str, layout: Layout, rest: Any) -> None:
    """Without sequence parallelism ranks of tp send shares of the same tokens; backward sums the gradients of these."""
    model, recipe = model_of(source), Recipe(layout, tokens=32 * layout.sp, **rest)
    sent = StepTimer(model, recipe, Machine.of(hardware.load("h100-sxm"))).step(memory(model, recipe)).sent
    (measured, *_) = MEASURED[title].values()
    assert layout.dp == 1  # whose ranks sum gradients too
    assert sent["all_reduce"] == measured["all_reduce, bytes"] * 2 * (layout.tp - 1) / layout.tp


def test_the_gradient_of_a_table_of_biases_is_not_summed() -> None:
    """Ranks have the columns of their own heads, and nothing is sent for it but FSDP's."""
    recipe = Recipe(Layout(tp=2, sp=2, fsdp=2), tokens=32)
    (piece,) = Pipeline(build(TINY["mpnet"], "mpnet"), recipe).pieces
    (bias,) = (leaf for leaf in piece.leaves if leaf.entry.name == "relative_bias")
    assert bias.split and not bias.on_residual
    sent = collectives([piece], recipe)
    without = piece._replace(leaves=tuple(leaf for leaf in piece.leaves if leaf is not bias))
    assert sent["all_reduce"] == collectives([without], recipe)["all_reduce"]
    assert sent["reduce_scatter"].times == collectives([without], recipe)["reduce_scatter"].times


@pytest.mark.slow
def test_tensor_parallel_of_two_stacks_is_not_compared() -> None:
    from txcalc.verification.layouts import verify_layout

    with pytest.raises(InputError, match="tp = 2 of two stacks is only modelled"):
        verify_layout(load("t5-small"), Recipe(Layout(tp=2, sp=2, fsdp=2), tokens=32))


@pytest.mark.slow
def test_positions_that_are_read_at_once_are_not_compared_apart() -> None:
    from txcalc.verification.layouts import verify_layout

    recipe = Recipe(Layout(tp=2, sp=2, fsdp=2), tokens=32)
    with pytest.raises(InputError, match="sp = 2: an embedding of images or audio reads all positions"):
        verify_layout(build(TINY["beit"], "beit"), recipe)
    with pytest.raises(InputError, match="sp = 2: the head reads all positions at once, which is only modelled: sp=1"):
        verify_layout(load(LLAMA, {"head.form": "classifier", "head.classes": 4}), recipe)


@pytest.mark.slow
def test_each_piece_holds_a_copy_of_what_several_read() -> None:
    """Layers that pieces of one rank share, and a tied table of which a V-shaped schedule has both ends on one rank, as
    deep copies of the model hold them, of which each piece keeps its modules (torchtitan)."""
    from copy import deepcopy

    from torch import nn

    from txcalc.reference import build as build_module
    from txcalc.verification.parallel import make_optimizer, rank_state_bytes

    albert = build({**TINY["albert"], "n_layers": 4}, "albert")
    tied = load("D=64 L=4 h=8 h_kv=4 F=96 V=250 tied")
    for model, layout, schedule in (albert, Layout(pp=2, vpp=2), "interleaved"), (tied, Layout(pp=2), "zbv"):
        recipe = Recipe(layout, 1, 4, 32, schedule=schedule)
        plan, whole = memory(model, recipe), build_module(model)
        assert sum("stages hold copies of shared weights" in note for note in plan.notes) == 1
        for stage, numbers in enumerate([(0, 2), (1, 3)] if schedule == "interleaved" else [(0, 3), (1, 2)]):
            pieces: list[Any] = [deepcopy(whole) for _ in numbers]
            for piece, number in zip(pieces, numbers, strict=True):
                for name in {*(["embedding"] if number else []), *(["final_norm", "head"] if number < 3 else [])}:
                    setattr(piece, name, None)
                piece.layers = piece.layers[number : number + 1]
            rank = nn.ModuleList(pieces)
            for parameter in rank.parameters():
                parameter.grad = parameter.detach().clone()
            optimizer = make_optimizer(recipe, rank)
            optimizer.step()
            (predicted,) = (rank.state for rank in plan.ranks if rank.stage == stage)
            assert rank_state_bytes(rank, optimizer) == {key: size for key, size in predicted._asdict().items() if size}


@pytest.mark.slow
def test_a_wrong_prediction_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from txcalc.planning.training import states
    from txcalc.verification.layouts import verify_layout

    right = states.chunk
    monkeypatch.setattr(states, "chunk", lambda n, ways, rank: right(n, ways, rank) + 1)
    verdict = verify_layout(load(LLAMA), Recipe(Layout(fsdp=3), tokens=32), ranks=1, affine=False)
    assert {row.quantity for row in verdict.failures} >= {"parameters, bytes", "optimizer, bytes"}


@pytest.mark.slow
@pytest.mark.drawn(6)
@pytest.mark.parametrize("parts", ["", "weight", "weight bias"])
@pytest.mark.parametrize("rms", [False, True])
def test_a_norm_over_columns_of_two_ranks_is_that_of_one(parts: str, rms: bool) -> None:
    """The other rank has the same columns again: sums over ranks are twice this rank's."""
    import torch
    import torch.nn.functional as F

    from txcalc.verification.branches import SplitNorm

    torch.manual_seed(0)
    x, grad, *values = (torch.randn(*shape, 4, dtype=torch.float64) for shape in ((3,), (3,), (), ()))
    weight, bias = (value if name in parts else None for name, value in zip(("weight", "bias"), values, strict=True))
    tensors = [value.requires_grad_() for value in (x, weight, bias) if value is not None]
    columns: Any = torch.cat([x, x], -1)
    centred = columns if rms else columns - columns.mean(-1, keepdim=True)
    expected = F.rms_norm(centred, (8,), None, 0.5)[:, :4] * (1 if weight is None else weight)
    expected = expected if bias is None else expected + bias
    apply: Any = SplitNorm.apply
    y = apply(x, weight, bias, SimpleNamespace(rms=rms, eps=0.5), 8, lambda sums: 2 * sums)
    gradients = (torch.autograd.grad(output, tensors, grad) for output in (y, expected))
    for ours, theirs in ((y, expected), *zip(*gradients, strict=True)):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.slow
def test_muon_sends_what_pytorch_s_does() -> None:
    """Over DTensor, of rows on a fake process group: wide, square and tall, and rows that do not divide."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from txcalc.verification.rank_recorder import Collectives

    ranks, shapes = 8, [(64, 64), (16, 64), (12, 40), (64, 224), (224, 64), (65, 64)]

    def sent() -> Iterator[dict[str, int]]:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        mesh = init_device_mesh("cpu", (ranks,))
        for shape in shapes:
            weight, gradient = (distribute_tensor(torch.randn(shape), mesh, [Shard(0)]) for _ in range(2))
            parameter = torch.nn.Parameter(weight)
            parameter.grad = gradient
            with Collectives() as collectives:
                torch.optim.Muon([parameter]).step()
            yield collectives.counts

    recipe = Recipe(Layout(fsdp=ranks), optimizer="muon")
    for shape, measured in zip(shapes, run_rank(lambda: [*sent()], ()), strict=True):
        counts = Counter[str]()
        for kind, times, size in muon_collectives(RankTensor(shape, 1, None, False, True, (0,)), recipe):
            counts += Counter({kind: times, f"{kind} bytes": times * size})
        assert counts == measured, shape


def test_muon_of_megatron_gathers_what_tp_splits() -> None:
    """In fp32, the whole matrix; nothing of one that is not split, and nothing where ranks of dp have all."""
    recipe = Recipe(Layout(tp=4, dp=2), optimizer="muon", framework="megatron")
    cut = RankTensor((16, 64), 1, 0, False, True, (0,))
    assert muon_collectives(cut, recipe) == [("all_gather", 1, 4 * 64 * 64)]
    assert muon_collectives(cut._replace(axis=None), recipe) == []
    torchs = Recipe(Layout(tp=2, fsdp=2), optimizer="muon", tokens=32)
    experts = RankTensor((4, 16, 64), 1, None, True, True, (0,))
    assert muon_collectives(experts, replace(torchs, layout=Layout(fsdp=2))) == []  # each is whole on a rank
    by_rows = [("all_reduce", 1, 8), ("all_gather", 10, 8 * 16 * 64), ("all_gather", 5, 8 * 16 * 16)]
    assert muon_collectives(experts._replace(rows=1), replace(torchs, layout=Layout(fsdp=8))) == by_rows
    assert "matrices that tp splits is not counted" in memory(load(LLAMA), torchs).notes[-1]
    assert muon_collectives(cut, Recipe(Layout(fsdp=4), optimizer="muon")) == []
    spread = Recipe(Layout(fsdp=4), optimizer="muon")
    tall, wide = (RankTensor(shape, 1, None, False, True, (0,)) for shape in ((64, 16), (10, 64)))
    assert muon_collectives(tall, spread) == [("all_reduce", 1, 2), ("all_reduce", 10, 2 * 16 * 16)]
    gathered = [("all_gather", 10, 2 * 12 * 64), ("all_gather", 5, 2 * 12 * 10)]
    assert muon_collectives(wide, spread) == [("all_reduce", 1, 2), *gathered]
    with_etp = Recipe(Layout(tp=4, ep=2, etp=2, dp=2), optimizer="muon", framework="megatron")
    assert [muon_replicas(cut._replace(expert=expert), with_etp) for expert in (False, True)] == [4, 2]
    machine, sent = Machine.of(hardware.load("h100-sxm")), list[float]()
    for optimizer in ("muon", "adamw"):
        timer = StepTimer(load(LLAMA), replace(recipe, optimizer=optimizer), machine)
        sent.append(sum(moved.sent for piece in timer.pipeline.pieces for moved in timer.muon_messages(piece)))
    assert sent == [4 * 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96) * 3 / 4, 0]


@pytest.mark.slow
@pytest.mark.drawn(6)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb", "zbv", "dualpipev"])
def test_schedules_are_torch_s_action_by_action(schedule: str) -> None:
    from torch.distributed.pipelining import schedules

    from txcalc.planning.training import in_flight, order
    from txcalc.verification.parallel import micro_batches_in_flight

    name = {"interleaved": "Interleaved1F1B", "zb": "InterleavedZeroBubble", "zbv": "ZBVZeroBubble"}
    vpp = 2 if schedule in ("interleaved", "zb") else 1
    recipe = Recipe(Layout(pp=3, vpp=vpp), accumulation=6, schedule=schedule)
    assert micro_batches_in_flight(recipe) == [in_flight(recipe, stage) for stage in range(3)]
    if schedule in ("gpipe", "1f1b"):  # torch has no list of theirs
        return
    cls: Any = getattr(schedules, "Schedule" + name.get(schedule, "DualPipeV"))
    letters = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
    cases = 0
    for pp in range(2, 17):
        for pieces in (2,) if schedule in ("zbv", "dualpipev") else (1, 2, 3) if schedule == "zb" else (2, 3):
            for m in (2 * pp, 3 * pp) if schedule == "dualpipev" else (pp, 2 * pp, 3 * pp):
                instance = object.__new__(cls)
                instance.pp_group_size, instance._n_microbatches, instance.n_local_stages = pp, m, pieces
                instance.num_stages = instance._num_stages = pp * pieces
                instance.number_of_rounds = m // pp
                instance.microbatches_per_round = pp
                for rank in range(pp):
                    theirs = [
                        (letters[part.computation_type.name], part.stage_index, part.microbatch_index)
                        for action in instance._calculate_single_rank_operations(rank)
                        if action is not None
                        for part in action.sub_actions or [action]
                    ]
                    v_shaped = schedule in ("zbv", "dualpipev")
                    numbers = [rank, 2 * pp - 1 - rank] if v_shaped else list(range(rank, pp * pieces, pp))
                    ours = [
                        (kind, numbers[piece], batch) for kind, piece, batch in order(schedule, pp, rank, m, pieces)
                    ]
                    assert ours == theirs, (schedule, pp, pieces, m, rank)
                    cases += 1
    assert cases > 200


SIZES = config_sizes(64, 2, 8, 96, 256, num_key_value_heads=4, pad_token_id=0)
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in ("llama", "mistral", "qwen2", "olmo2", "phi3", "granite", "cohere")),
        *((kind, {"head_dim": 16}) for kind in ("qwen3", "gemma2", "glm4")),
        ("mixtral", {"num_local_experts": 4}),
        ("qwen3_moe", {"head_dim": 16, "num_experts": 4, "mlp_only_layers": [], **EXPERTS}),
    ],
)
def test_a_rank_of_transformers_own_plan_has_as_much(kind: str, options: dict[str, Any]) -> None:
    """Their `tp_plan` says which weights are cut, by columns or by rows; a bias of the latter is whole."""
    transformers = pytest.importorskip("transformers")
    import torch

    from txcalc.planning.training.stages import Pipeline
    from txcalc.planning.training.states import tensors

    config = transformers.AutoConfig.for_model(kind, **SIZES, **options)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    if not getattr(theirs, "tp_plan", None):
        pytest.skip("this transformers has no tp_plan")
    elements = 0
    for name, weight in theirs.named_parameters():
        general = ".".join("*" if part.isdecimal() else part for part in name.split("."))
        style = theirs.tp_plan.get(general, theirs.tp_plan.get(general.rpartition(".")[0], ""))
        cut = "colwise" in style or ("rowwise" in style and not name.endswith("bias"))
        elements += weight.numel() // (2 if cut else 1)
    recipe = Recipe(Layout(tp=2), framework="megatron", tokens=64)
    (piece,) = Pipeline(load(config), recipe).pieces
    assert sum(tensor.size * tensor.copies for tensor in tensors(piece, recipe)) == elements


@pytest.mark.slow
def test_what_torch_cannot_show_is_refused() -> None:
    from txcalc.verification.layouts import verify_layout

    with pytest.raises(InputError, match="modelled from its source"):
        verify_layout(load(LLAMA), Recipe(Layout(dp=2), framework="megatron", tokens=64))


@pytest.mark.slow
def test_adapters_are_shown_in_dtypes_that_torch_shards() -> None:
    from txcalc.verification.layouts import verify_layout

    tuned = load(LLAMA, TUNED)
    with pytest.raises(InputError, match="frozen=nf4-dq: weights that another library packs are only modelled"):
        verify_layout(tuned, Recipe(Layout(fsdp=2), tokens=64, frozen="nf4-dq"))
    with pytest.raises(InputError, match="frozen=nf4-dq: weights that another library packs are only modelled"):
        verify_layout(tuned, Recipe(Layout(tp=2), tokens=64, frozen="nf4-dq"))
    for name, dtype in (("adapter", "fp8"), ("adapter", "fp64"), ("parameter", "fp8"), ("reduce", "fp8")):
        with pytest.raises(InputError, match=f"{name}={dtype}: .* not of 16 or 32 bits are only modelled"):
            verify_layout(tuned, Recipe(Layout(fsdp=2), tokens=64, **{name: dtype}))  # type: ignore[arg-type]
    choices: list[dict[str, Any]] = [{"parameter": "bf16", name: "fp32"} for name in ("adapter", "frozen")]
    for dtypes in [*choices, {}]:
        with pytest.raises(InputError, match="without fsdp torch computes in the weights' dtype"):
            verify_layout(tuned, Recipe(Layout(tp=2), tokens=64, **dtypes))


@pytest.mark.slow
def test_a_torch_without_the_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from txcalc.verification import parallel
    from txcalc.verification.branches import NoParallel

    monkeypatch.setattr(parallel, "PRIVATE", (("torch.distributed.fsdp", "shard_all_of_it"),))
    with pytest.raises(NoParallel, match=r"needs torch\.distributed\.fsdp\.shard_all_of_it") as error:
        parallel.check()
    assert error.value.exit_code == 3


def test_a_recipe_is_read() -> None:
    recipe = parse_recipe("tokens=64, micro_batch=2,reshard=off,schedule=gpipe", Layout(fsdp=2))
    assert (recipe.tokens, recipe.micro_batch, recipe.reshard, recipe.schedule) == (64, 2, False, "gpipe")
    with pytest.raises(InputError) as error:
        parse_recipe("micro=2,reshard=yes,tokens=x", Layout())
    assert len(error.value.faults) == 3
    assert "(did you mean micro_batch?)" in str(error.value)
    assert parse_recipe("recompute=layers:0,3,5,tokens=64", Layout()).recompute == "layers:0,3,5"
    with pytest.raises(InputError, match="tokens is given twice"):
        parse_recipe("tokens=64,tokens=64", Layout())
    with pytest.raises(InputError, match=r"'zzz' is not an option of a recipe \(one of \w+, "):
        parse_recipe("zzz=2", Layout())
