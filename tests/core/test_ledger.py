"""The ledger as its users meet it: paths, kinds, totals, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from paths import stored_rows
from tiny import TINY

import txcalc
from txcalc import InputError, Ledger, UnknownName
from txcalc.ledger import QUANTITIES, walk
from txcalc.parts.cores import AttentionCore
from txcalc.parts.disentangled import DisentangledCore
from txcalc.parts.latent import LatentAttention, LatentCore
from txcalc.parts.leaf import Recurrence
from txcalc.parts.linear import Activation, Linear
from txcalc.parts.norm import Norm
from txcalc.parts.options import Wrong, up_to
from txcalc.parts.part import Composite, Workload
from txcalc.parts.place import Mechanism
from txcalc.parts.positions import Rotary
from txcalc.parts.sharding import Ways
from txcalc.parts.spans import Causal, CausalUncached, Selected, Windowed
from txcalc.parts.taps import Convolution
from txcalc.parts.tower import ProjectorStep
from txcalc.parts.work import NO_SOURCE
from txcalc.planning.gradients import leaves_with_gradient
from txcalc.planning.memory import cache_bytes, learning, weights_bytes
from txcalc.planning.training.answer import Terms
from txcalc.sources import build


@pytest.fixture(scope="module")
def deepseek() -> Ledger:
    return txcalc.load("deepseek-v3").ledger(tokens=4)


def test_narrowing_twice_is_narrowing_once(deepseek: Ledger) -> None:
    twice, once = deepseek.at("layers.5").at("layers.5.attention"), deepseek.at("layers.5.attention")
    assert [entry.path for entry in twice] == [entry.path for entry in once]
    assert all(twice.total(quantity) == once.total(quantity) for quantity in QUANTITIES)
    assert next(iter(once)).path == "layers.5.attention.q_a"


@pytest.mark.parametrize(
    "path", ["layer", "layers.61", "layers.-1", "layers.00", "layers.0.", ".", "layers.²", "attention", "layers.0.0"]
)
def test_a_path_that_is_not_there(deepseek: Ledger, path: str) -> None:
    with pytest.raises(UnknownName, match=r"^no part named"):
        deepseek.at(path)


def test_near_paths_are_named(deepseek: Ledger) -> None:
    with pytest.raises(UnknownName) as error:
        deepseek.at("layers.0.attention.qa")
    assert error.value.near[0] == "layers.0.attention.q_a"


def test_an_unknown_quantity_names_the_known_ones(deepseek: Ledger) -> None:
    with pytest.raises(UnknownName, match=r"no quantity named 'flop' \(did you mean flops,"):
        deepseek.total("flop")
    with pytest.raises(
        UnknownName, match="one of params, active, flops, flops_masked, flops_other, bytes, saved, cache"
    ):
        deepseek.by_kind("x")


def test_bytes_are_rounded_up_once() -> None:
    """Three entries of half a byte too much each are one and a half, rounded up together."""
    ledger = txcalc.load("D=3 h=1 L=1 F=5 V=8").ledger(dtype="int4", kv_dtype="int4")
    odd = [entry.path for entry in ledger if sum(entry.traffic) % 2][:3]
    three = ledger.where(lambda entry: entry.path in odd)
    assert len(odd) == 3
    assert three.total("bytes") == (sum(sum(entry.traffic) for entry in three) + 1) // 2


def test_dtypes_of_weights_and_cache_are_apart() -> None:
    model = txcalc.load("llama-3.1-8b")
    plain = model.ledger(past=1000)
    cached = sum(entry.traffic.cache for entry in plain)
    assert model.ledger(past=1000, kv_dtype="fp8").total("bytes") == plain.total("bytes") - cached
    assert model.ledger(past=1000, kv_dtype="fp32").total("bytes") == plain.total("bytes") + 2 * cached
    assert model.ledger(past=1000, dtype="fp32", kv_dtype="fp32").total("bytes") == 2 * plain.total("bytes")
    narrow = walk(model.root, plain.work, (8, 16, 4))
    assert (weights_bytes(narrow), cache_bytes(narrow)) == (narrow.total("params"), narrow.total("cache") // 2)


def test_an_entry_prints_as_its_path(deepseek: Ledger) -> None:
    assert repr(deepseek.at("layers.0.attention.q_a").entries[0]) == "<layers.0.attention.q_a × 1: Linear>"


@pytest.mark.parametrize(("work", "message"), stored_rows("refused.json", "workloads"))
def test_workloads_that_cannot_be(work: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        txcalc.load("gpt2").ledger(**work)  # type: ignore[arg-type]
    assert str(error.value) == message


def test_all_faults_of_a_workload_at_once() -> None:
    with pytest.raises(InputError) as error:
        txcalc.load("gpt2").ledger(batch=0, tokens="8 or so", past=-1)
    assert [str(fault).split(" is ")[0] for fault in error.value.faults] == ["batch", "tokens", "past"]


def test_numpy_integers_become_exact_and_floats_are_refused() -> None:
    """`np.int64(2**62) * 4` is 0: formulas get Python's ints."""
    numpy = pytest.importorskip("numpy")
    model, most = txcalc.load("llama-3.1-8b"), 10**12
    truth: Any = model.ledger(tokens=most).total("flops")
    assert truth > 2**63
    assert model.ledger(tokens=numpy.int64(most)).total("flops") == truth
    several: Any = model.ledger(tokens=numpy.array([8, most], dtype=numpy.uint64)).total("flops")
    assert several.tolist()[1] == truth
    for tokens in (numpy.float32(8), numpy.array([8.0]), numpy.array([]), numpy.array([0, 8]), numpy.array([True])):
        with pytest.raises(InputError, match="tokens is"):
            model.ledger(tokens=tokens)


def test_arrays_of_lengths_go_together_or_are_refused() -> None:
    numpy = pytest.importorskip("numpy")
    model = txcalc.load("gpt2")
    grid: Any = model.ledger(batch=numpy.array([[1], [2]]), tokens=numpy.array([1, 8])).total("flops")
    assert grid.tolist() == [[model.ledger(b, t).total("flops") for t in (1, 8)] for b in (1, 2)]
    with pytest.raises(InputError, match="broadcast together"):
        model.ledger(batch=numpy.array([1, 2, 3]), tokens=numpy.array([1, 8]))
    with pytest.raises(InputError, match="all 0 or all above"):
        model.ledger(past=numpy.array([0, 8]))
    assert model.ledger(past=numpy.array([0, 0])).work.decoding is False
    assert model.ledger(past=numpy.array([1, 8])).work.decoding is True


def test_rows_are_every_leaf_and_add_up() -> None:
    numpy = pytest.importorskip("numpy")
    model = txcalc.load("mixtral-8x7b")
    ledger = model.ledger(tokens="2k")
    rows = ledger.rows()
    for quantity in QUANTITIES:
        if quantity != "bytes":
            assert sum(row[quantity] for row in rows) == ledger.total(quantity), quantity
    swept = model.ledger(tokens=numpy.array([1, 2048])).rows()
    assert [{k: v for k, v in row.items() if k not in ("batch", "tokens", "past")} for row in swept[1::2]] == rows
    assert "2048" in repr(ledger) and '<td style="text-align: left">embedding' in ledger._repr_html_()
    assert max(row["times"] for row in rows) == 32 * 8 and walk(model.root, ledger.work).total("bytes") == sum(
        row["bytes"] for row in rows
    )


@pytest.mark.slow
def test_a_ledger_is_a_data_frame_of_any_library() -> None:
    ledger = txcalc.load("gpt2").ledger(tokens=10**12)
    flops = ledger.total("flops")
    assert flops > 2**63, "and a column of 64 bits would not hold it"
    pytest.importorskip("pandas", reason="needs pandas (pip install 'txcalc[frames]')")
    polars = pytest.importorskip("polars", reason="needs polars (pip install 'txcalc[frames]')")
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb (pip install 'txcalc[test]')")
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow (pip install 'txcalc[frames]')")
    assert ledger.to_pandas()["flops"].sum() == flops
    for frame in (ledger.to_polars(), polars.DataFrame(ledger)):
        assert int(frame["flops"].sum()) == flops
    assert sum(map(int, arrow.table(ledger)["flops"].to_pylist())) == flops
    assert duckdb.sql("select sum(flops) from ledger").fetchall() == [(flops,)]


# What a run of mutants found unwitnessed.


def test_what_is_alive_in_latent_attention() -> None:
    core = LatentCore(n_heads=6, kv_rank=17, d_nope=5, d_rope=2, d_v=13, span=Causal())
    turned = Rotary(heads=7, dims=2, theta=0, width=2)
    sizes: dict[str, Any] = {"d_model": 11, "n_heads": 6, "q_rank": 7, "kv_rank": 17, "d_nope": 5, "d_rope": 2}
    attention = LatentAttention(**sizes, d_v=13, bias=False, norm_eps=0, rotary=turned, core=core)
    assert attention.peak_elements() == 6 * (2 * 7 + 2 * 13)
    assert [replace(core, sinks=sinks).operators_exact for sinks in (False, True)] == ["softmax", ""]
    assert core.traffic_exact and not replace(core, span=Selected(top_k=4)).traffic_exact  # with indices


def test_which_operations_of_a_norm_are_counted_one_by_one() -> None:
    norm = Norm(width=4, form="rms", bias=False, eps=0)
    assert [replace(norm, weighted=weighted).operators_exact for weighted in (True, False)] == ["all", ""]


def test_what_no_fused_kernel_computes_is_not_said_to_be_saved_so() -> None:
    """DeBERTa's scores of content and distance."""
    leaves = build(TINY["deberta"], "deberta").root.leaves()
    (core, *_) = (leaf for leaf in leaves if isinstance(leaf, DisentangledCore))
    work = Workload(1, 8, 0, NO_SOURCE)
    assert core.saved_differs(work._replace(keep_scores=True)) == "" and "fused" in core.saved_differs(work)


def test_convolutions_are_unfolded_where_scores_are_kept() -> None:
    taps = Convolution(c_in=4, c_out=4, taps=3, bias=False, depthwise=True, causal=True)
    work = Workload(1, 8, 0, NO_SOURCE)
    assert taps.saved_differs(work) == "" and "unfolded" in taps.saved_differs(work._replace(keep_scores=True))


def test_ranks_share_the_statistics_of_a_norm_over_columns() -> None:
    norm = Norm(width=11, form="rms", bias=False, eps=0)
    joined = Ways(tp=2).norm_statistics(norm)
    assert joined is not None and joined.width == 1  # the mean square
    moments = Ways(tp=2).norm_statistics(replace(norm, form="layer"))
    assert moments is not None and moments.width == 2  # and the mean
    assert Ways(tp=2).norm_statistics(replace(norm, groups=2)) is None  # heads are whole on a rank


def test_ranks_share_what_stands_between_a_projector_s_matrices() -> None:
    first, last = Linear(d_in=6, d_out=8, bias=False), Linear(d_in=8, d_out=10, bias=False)
    steps = [ProjectorStep("step", part, 1) for part in (first, Activation(width=8, form="gelu", gated=False), last)]
    start, between, end, join = (step.part for step in Ways(tp=2).chained(steps))
    assert (start.d_in, start.d_out, between.width, end.d_in, end.d_out, join.width) == (6, 4, 4, 4, 10, 10)


def test_a_number_up_to_another() -> None:
    assert up_to(2)(2) == 2
    with pytest.raises(Wrong):
        up_to(2)(3)


def test_what_learns_and_what_a_loss_reaches() -> None:
    sizes = "D=64 L=2 h=4 h_kv=2 F=96 V=99"
    whole, tuned = (txcalc.load(sizes, changes).ledger() for changes in ({}, {"lora.rank": 3, "lora.modules": ["q"]}))
    assert learning(whole) == whole.total("params") and learning(tuned) == 2 * 3 * (64 + 64)
    indexed = txcalc.load("deepseek-v3.2").ledger()
    outside = {entry.path for entry in indexed} - {entry.path for entry in leaves_with_gradient(indexed)}
    assert outside and all(".indexer." in path for path in outside)


def test_terms_of_a_run_are_above_0() -> None:
    for term in ({"deadline": 0}, {"deadline": 1e15}, {"budget": 0, "price": 1}, {"price": 0}):
        with pytest.raises(InputError, match="a number above 0"):
            Terms(**term).checked()


def test_abstract_parts_cannot_be_made() -> None:
    class Childless(Composite):
        """A composite that lists no children."""

    class Stateless(Recurrence):
        """A recurrence without the shape of its state."""

    cases: tuple[tuple[Any, str], ...] = ((Childless, "children"), (Stateless, "shape"), (Windowed, "_up_to"))
    for kind, method in cases:
        with pytest.raises(TypeError, match=f"abstract class {kind.__name__} .*'{method}'"):
            kind(**dict.fromkeys(kind.__struct_fields__, 1))

    class Unbuildable(Mechanism, section="unbuildable"):
        """Options that build no part."""

    with pytest.raises(TypeError, match=r"abstract class Unbuildable .*build"):
        Unbuildable.of({})


def test_what_of_a_leaf_is_as_its_operators_are() -> None:
    """One kernel of plain softmax attention, an activation of one operator: their traffic is exactly counted. A sink
    is one more column of the softmax, and a threshold or a gate's own function are several operators."""
    core = AttentionCore(n_heads=6, n_kv_heads=3, d_qk=4, d_v=4, span=Causal())
    plain = {"sinks": False, "biased": False, "distances": False, "softcap": None}
    properties = {}
    for name, value in {"": None, "sinks": True, "biased": True, "distances": True, "softcap": 30.0}.items():
        variant = replace(core, **({**plain, name: value} if name else plain))
        properties[name] = (variant.plain, variant.traffic_exact, variant.operators_exact, variant.masked)
    assert properties == {
        "": (True, True, "softmax", True),
        "sinks": (False, True, "", True),
        "biased": (False, False, "softmax", True),
        "distances": (True, False, "softmax", False),
        "softcap": (False, True, "softmax", True),
    }
    work = Workload(1, 4, 0, 4)
    assert (core.saved_differs(work), replace(core, distances=True).saved_differs(work)) == ("", "projected distances")
    biased = replace(core, biased=True)
    assert "no fused kernel" in biased.saved_differs(work)
    assert biased.saved_differs(work._replace(keep_scores=True)) == ""
    relu = Activation(width=4, form="relu", gated=False)
    assert (relu.traffic_exact, relu.operators_exact, relu.rows_kept(work)) == (True, "all", 0)
    sparse = replace(relu, sparsity=0.95)
    assert (sparse.traffic_exact, sparse.operators_exact, sparse.rows_kept(work)) == (False, "", 1)
    # Cut first, a gate is kept before and after it, and ReLU's result; GELU keeps its input, which is the cut gate.
    assert [replace(sparse, form=form).saved(work) // 16 for form in ("relu", "relu2", "gelu")] == [3, 3, 2]
    rotary = Rotary(heads=2, dims=4, theta=10_000, width=4)
    assert [replace(rotary, spread=spread).operators_exact for spread in (False, True)] == ["all", ""]
    latent = next(leaf for leaf in build(TINY["deepseek-v3"], "latent").root.leaves() if isinstance(leaf, LatentCore))
    assert latent.saved_differs(work._replace(keep_scores=True)) == "" and "one head" in latent.saved_differs(work)


def test_what_an_eager_norm_moves() -> None:
    """For 4 bytes an element: to fp32 6, its square 8, the mean 4, two products 16, back 6; a LayerNorm is a kernel."""
    norm = Norm(width=4, form="rms", bias=False, eps=0)
    assert norm.unfused == (6 + 8 + 4 + 8 + 8 + 6) // 4 and replace(norm, form="layer").unfused == 1


def test_a_text_read_at_once_sees_what_is_before() -> None:
    assert CausalUncached().visible(Workload(1, 4, 0, 9)) == 1 + 2 + 3 + 4
