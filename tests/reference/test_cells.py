"""LSTM, GRU and plain RNN cells: PyTorch's own modules have the same parameters and give the same numbers."""

from __future__ import annotations

from typing import Any

import pytest

from txcalc.evidence.theorems import units
from txcalc.sources import build

FORMS = ["lstm", "gru", "rnn"]


def description(form: str, width: int = 12, layers: int = 2, **changes: Any) -> dict[str, Any]:
    """A stack of cells and nothing else."""
    return {
        "d_model": width,
        "n_layers": layers,
        "rnn": {"form": form, **changes},
        "layer": {"cell": {"parts": ["rnn"]}},
        "norm": {"without": ["rnn"], "final": False},
    }


def module(form: str) -> Any:
    torch = pytest.importorskip("torch")
    return {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[form]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("width", "layers"), [(12, 1), (12, 3), (512, 2)])
def test_parameters_are_those_of_torch_with_both_bias_vectors(form: str, width: int, layers: int) -> None:
    other = module(form)(width, width, layers)
    assert build(description(form, width, layers), "test").params == sum(p.numel() for p in other.parameters())
    without = module(form)(width, width, layers, bias=False)
    assert build(description(form, width, layers, biases=0), "test").params == sum(
        p.numel() for p in without.parameters()
    )


@pytest.mark.parametrize(("form", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_the_textbooks_counts(form: str, gates: int) -> None:
    """G·(D·H + H² + H) parameters with one bias, 2·G·(D·H + H²) FLOPs per token, and states of H each."""
    model = build(description(form, 10, 1, d_hidden=7, biases=1), "test")
    projection = 7 * 10 + 10
    assert model.params == gates * (10 * 7 + 7 * 7 + 7) + projection
    ledger = model.ledger(batch=3, tokens=5)
    assert ledger.total("flops") == 2 * 15 * (gates * (10 * 7 + 7 * 7) + 70)
    assert ledger.cache_terms == (0, 7 * (2 if form == "lstm" else 1), 7 * (2 if form == "lstm" else 1))
    assert model.kind == "recurrent"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_it_computes_what_torch_computes(form: str) -> None:
    torch = pytest.importorskip("torch")
    from txcalc.parts.cells import RecurrentCell as Part
    from txcalc.reference.cells import RecurrentCell
    from txcalc.reference.run import CacheTensors, Run, TensorOptions

    part = Part(d_model=6, d_hidden=5, form=form, bias=True, second_bias=True, projected=False)
    cell = RecurrentCell(part, TensorOptions(torch.device("cpu"), torch.float64))
    other = module(form)(6, 5, batch_first=True).double()
    for mine, its in (
        (cell.in_proj.weight, other.weight_ih_l0),
        (cell.in_proj.bias, other.bias_ih_l0),
        (cell.cell.weight, other.weight_hh_l0),
        (cell.cell.bias, other.bias_hh_l0),
    ):
        mine.data.copy_(its.data)  # type: ignore[union-attr]
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    y, _ = other(x)
    torch.testing.assert_close(cell(x, Run(0, torch.arange(7))), y)
    cache = CacheTensors()
    halves = [cell(x[:, a:b], Run(a, torch.arange(a, b), cache)) for a, b in ((0, 3), (3, 7))]
    torch.testing.assert_close(torch.cat(halves, 1), y)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize(("form", "changes"), [*((form, {}) for form in FORMS), ("gru", {"d_hidden": 8, "biases": 1})])
def test_it_is_proved_for_every_size_batch_and_length(form: str, changes: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from txcalc.verification.prove import prove

    (layer,) = (unit for unit in units(build(description(form, **changes), "test")) if unit.name != "frame")
    theorem, rows = prove(layer)
    assert theorem.domain == "all B, T ≥ 1"
    assert set(theorem.digests) == {"params", "flops"} and all(row.equal for row in rows)


def test_biases_are_two_one_or_none() -> None:
    counts = [build(description("lstm", 10, 1, biases=number), "test").params for number in (0, 1, 2)]
    assert counts == [800, 840, 880]
    with pytest.raises(Exception, match=r"rnn\.biases is 3, expected a whole number from 0 to 2"):
        build(description("lstm", biases=3), "test")
