"""One formula, three readings: ints, SymPy symbols and NumPy arrays give the same number for every quantity.

float64 has 53 bits. Here every number stays under 2^53 (sizes up to 40, at most seven of them multiplied), where
float64 arithmetic on whole numbers is exact, so the arrays must be equal; with realistic sizes the last product rounds,
and a leaf's figures, sums of a few positive products, stay within 1e-15.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from strategies import COMPOSITES, FAMILIES, LEAVES, renumbered, share_of, workloads

from txcalc.ledger import QUANTITIES, Ledger, walk
from txcalc.parts.cores import AttentionCore
from txcalc.parts.latent import LatentCore
from txcalc.parts.linear import Linear
from txcalc.parts.norm import Norm
from txcalc.parts.part import Workload
from txcalc.parts.spans import Causal, Window
from txcalc.parts.taps import Convolution
from txcalc.sources import build

pytestmark = pytest.mark.slow

numpy = pytest.importorskip("numpy")
sympy = pytest.importorskip("sympy")

PARTS = {**LEAVES, **COMPOSITES}
each_part = pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)


def figures(ledger: Ledger) -> dict[str, Any]:
    """Everything a ledger says."""
    result = {quantity: ledger.total(quantity) for quantity in QUANTITIES}
    for quantity in QUANTITIES:
        result |= {f"{quantity} of {kind}": value for kind, value in ledger.by_kind(quantity).items()}
    growth, constant, elements = ledger.cache_terms
    return result | {"cache growth": growth, "cache constant": constant, "cache held": elements}


def variant(j: int) -> Any:
    """A numbering that gives other sizes for each j, and the sizes themselves for j = 0."""
    return lambda i, value: value + j * (1 + i % 3)


def reading(part: Any, work: Workload, number: Any) -> dict[str, Any]:
    return figures(walk(renumbered(part, number), renumbered(work, number)))


class Letters(dict[Any, Any]):
    """A numbering that gives a symbol of its own to every size, and remembers the sizes."""

    def __call__(self, i: int, value: int) -> Any:
        symbol = sympy.Symbol(f"n{len(self)}", integer=True, positive=True)
        self[symbol] = sympy.Integer(value)
        return symbol


def columns(part: Any, work: Workload, dtype: Any) -> dict[str, Any]:
    """The figures of three variants at once."""
    return reading(part, work, lambda i, value: numpy.array([variant(j)(i, value) for j in range(3)], dtype))


@each_part
@settings(max_examples=4)
@given(data=st.data())
def test_symbols_substituted_are_the_ints(kind: type, data: st.DataObject) -> None:
    part, work, letters = data.draw(PARTS[kind]), data.draw(workloads), Letters()
    expected = reading(part, work, variant(0))
    for name, formula in reading(part, work, letters).items():
        assert sympy.sympify(formula).xreplace(letters) == expected.pop(name, 0), name
    assert not expected


@pytest.mark.parametrize("dtype", ["object", "float64"])
@each_part
@share_of(12)
@given(data=st.data())
def test_arrays_hold_the_ints(kind: type, dtype: str, data: st.DataObject) -> None:
    part, work = data.draw(PARTS[kind]), data.draw(workloads)
    ints = [reading(part, work, variant(j)) for j in range(3)]
    swept = columns(part, work, dtype)
    assert swept.keys() >= ints[0].keys()
    for name, column in swept.items():
        expected = [row.get(name, 0) for row in ints]
        if dtype == "float64" and name.startswith("sent"):  # a quotient, which float64 rounds
            assert numpy.broadcast_to(column, 3).tolist() == pytest.approx(list(map(float, expected)), rel=1e-14), name
        else:
            assert numpy.broadcast_to(column, 3).tolist() == expected, name


@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4)
@given(data=st.data())
def test_whole_models_read_the_same(family: str, data: st.DataObject) -> None:
    root = build(data.draw(FAMILIES[family]), "a drawn description").root
    work, letters = data.draw(workloads), Letters()
    ints = [reading(root, work, variant(j)) for j in range(3)]
    swept = columns(root, work, object)
    for name, formula in reading(root, work, letters).items():
        assert sympy.sympify(formula).xreplace(letters) == ints[0].get(name, 0), name
        assert numpy.broadcast_to(swept[name], 3).tolist() == [row.get(name, 0) for row in ints], name


REAL_SIZES = {
    "linear": Linear(d_in=18_432, d_out=73_728, bias=True),
    "norm": Norm(width=18_432, form="layer", bias=True, eps=1e-5),
    "convolution": Convolution(c_in=1280, c_out=1280, taps=3, bias=True, depthwise=False, causal=False, stride=2),
    "attention": AttentionCore(
        n_heads=128, n_kv_heads=16, d_qk=192, d_v=128, span=Causal(), biased=True, distances=True
    ),
    "window": AttentionCore(n_heads=32, n_kv_heads=16, d_qk=128, d_v=128, span=Window(window=4096)),
    "latent": LatentCore(n_heads=128, kv_rank=512, d_nope=128, d_rope=64, d_v=128, span=Causal()),
}


@pytest.mark.parametrize("name", REAL_SIZES)
@given(work=st.builds(Workload, *(st.integers(1, most) for most in (4096, 2**17, 2**20, 1500)), *[st.booleans()] * 4))
def test_float64_of_real_sizes_is_within_1e_15(name: str, work: Workload) -> None:
    part = REAL_SIZES[name]
    expected = reading(part, work, lambda i, value: value)
    swept = reading(part, work, lambda i, value: numpy.array([value], numpy.float64))
    for quantity, value in expected.items():
        assert abs(int(numpy.broadcast_to(swept[quantity], 1)[0]) - value) <= 1e-15 * value, quantity


def test_int64_arrays_are_refused_where_a_formula_compares() -> None:
    work = Workload(1, numpy.array([2048]), 0, 2048)
    with pytest.raises(TypeError, match="int64 wraps silently"):
        walk(AttentionCore(n_heads=32, n_kv_heads=8, d_qk=128, d_v=128, span=Causal()), work).total("flops_masked")
