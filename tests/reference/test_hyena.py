"""Hyena: both forms of the long convolution give the same numbers; what is kept is enough to go on; costs by hand."""

from __future__ import annotations

from typing import Any

import pytest

from txcalc import num
from txcalc.errors import InputError
from txcalc.evidence.theorems import units
from txcalc.sources import build

ceil_log2: Any = num.ceil_log2  # of arrays and symbols too


def description(**changes: Any) -> dict[str, Any]:
    return {
        "d_model": 16,
        "n_layers": 2,
        "vocab_size": 50,
        "hyena": {"features": 5, "width": 8, **changes},
        "layer": {"long": {"parts": ["hyena"]}},
    }


def test_parameters_and_flops_by_hand() -> None:
    """D = 16: three projections and one, a short convolution of 48 channels, a filter of 5 → 8 → 8 → 8 → 16."""
    model = build(description(), "test")
    layer = 16 * 48 + 48 + 48 * 4 + (5 * 8 + 8) + 8 + 2 * (8 * 8 + 8) + 8 * 16 + 16 + 16 * 16 + 16
    assert model.ledger().at("layers.0.hyena").total("params") == layer
    ledger = model.ledger(batch=3, tokens=10)
    filters = 10 * (5 * 8 + 2 * 64 + 128)  # once for all sequences
    assert ledger.at("layers.0.hyena").total("flops") == 2 * (30 * (16 * 48 + 48 * 3 + 256) + filters)
    transforms = 5 * (2 * 3 + 1) * 16 * 10 * 5  # real transforms of 20 points, ⌈log₂ 20⌉ = 5
    assert ledger.at("layers.0.hyena.long").total("flops_other") == transforms + 6 * 3 * 16 * 11 + 2 * 30 * 16


def test_modal_filters_by_hand() -> None:
    """StripedHyena's block: poles and residues of two complex numbers a channel, and a state of them."""
    model = build(description(states=2, features=3, width=64), "test")
    params = 16 * 48 + 48 + 48 * 4 + 2 * (16 * 2 * 2) + 16 + 16 * 16 + 16
    assert model.ledger().at("layers.0.hyena").total("params") == params
    long = model.ledger(batch=3, tokens=10).at("layers.0.hyena.long")
    assert (long.total("flops"), long.cache_terms) == (0, (0, 64, 64))
    transforms = 5 * (2 * 3 + 1) * 16 * 10 * 5 + 6 * 3 * 16 * 11
    assert long.total("flops_other") == 11 * 16 * 2 * 10 + transforms + 2 * 30 * 16
    for step in (model.ledger(past=9), build(description(states=2, form="recurrent"), "test").ledger()):
        assert step.at("layers.0.hyena.long").total("flops_other") == 11 * 16 * 2 + 2 * 16


@pytest.mark.parametrize(("form", "states"), [("recurrent", 0), ("direct", 2)])
def test_a_form_that_a_filter_has_not_is_refused(form: str, states: int) -> None:
    with pytest.raises(InputError, match=rf"form.*{form}.*states = {states}"):
        build(description(form=form, states=states), "test")


@pytest.mark.parametrize(("n", "stages"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (2**40, 40), (2**40 + 1, 41)])
def test_stages_of_a_transform(n: int, stages: int) -> None:
    assert ceil_log2(n) == stages
    numpy = pytest.importorskip("numpy")
    for dtype in (numpy.float64, object):
        (stage_count,) = ceil_log2(numpy.array([n], dtype=dtype))
        assert int(stage_count) == stages
    sympy = pytest.importorskip("sympy")
    symbol = sympy.Symbol("n", positive=True, integer=True)
    assert ceil_log2(symbol).subs(symbol, n) == stages


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"layers": 0, "bias": False}, {"states": 3}])
def test_transforms_and_products_are_one_convolution(changes: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    from txcalc.reference import CacheTensors, build as reference

    nets = []
    for form in ("fft", "recurrent" if "states" in changes else "direct"):
        torch.manual_seed(1)
        nets.append(reference(build(description(form=form, **changes), "test"), dtype=torch.float64))
    ids = torch.randint(0, 50, (2, 11))
    y, other = (net(ids) for net in nets)
    torch.testing.assert_close(y, other)
    cache = CacheTensors()
    parts = [nets[0](ids[:, a:b], cache=cache) for a, b in ((0, 6), (6, 7), (7, 11))]
    torch.testing.assert_close(torch.cat(parts, 1), y)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("changes", [{}, {"form": "direct"}])
def test_it_is_proved_for_every_size_batch_and_length(changes: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from txcalc.verification.prove import prove

    (layer,) = (unit for unit in units(build(description(**changes), "test")) if unit.name != "frame")
    theorem, rows = prove(layer)
    assert set(theorem.digests) == {"params", "flops"} and all(row.equal for row in rows)
