"""Theorems of leaves that a model lists one by one: each by itself, and refuted by name where its formula is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from evidence_of import config, inherited

from txcalc.evidence import theorems
from txcalc.evidence.theorems import Unit, units
from txcalc.parts.convolution import Filter
from txcalc.parts.cores import MatrixProduct
from txcalc.parts.forms import FORMS
from txcalc.parts.linear import Linear
from txcalc.parts.mixers import pieces
from txcalc.sources import build

pytestmark = pytest.mark.usefixtures("own_theorems")


def test_leaves_that_are_listed_have_theorems_each_by_itself() -> None:
    """Where it stands in the list, how often and under which name is the list's; of other sizes it is the same."""
    model = config("mobilebert-uncased")
    assert inherited(model, "flops") == ("listed", "all B, T ≥ 1, each listed leaf separately")
    by_name = {unit.name: unit for unit in units(model)}
    assert {*by_name} >= {"leaf linear", "leaf attention", "leaf scale", "leaf table"}
    assert {*by_name["leaf linear"].values} == {"leaf.d_in", "leaf.d_out"}


@pytest.mark.parametrize(("owner", "wrong", "lost"), [(pieces, "_positions", "flops"), (Filter, "weights", "params")])
def test_a_changed_formula_of_a_leaf_inherits_nothing(
    owner: Any, wrong: str, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = config("swin-tiny")
    assert {"params", "flops"} <= theorems.inheritance(model).keys()
    right = getattr(owner, wrong)
    monkeypatch.setattr(owner, wrong, lambda *arguments: right(*arguments) * 2)
    assert lost not in theorems.inheritance(model)


def leaf(form: str, sizes: list[int], **options: Any) -> Unit:
    """The structure of a leaf that is listed by itself."""
    listed = [{"name": "x", "form": form, "sizes": sizes, **options}]
    raw: dict[str, Any] = {"kind": "encoder", "d_model": 6, "n_layers": 1, "around": listed, "vocab_size": 50}
    raw |= {"attention": {"n_heads": 2}, "feed_forward": {"d_ff": 8}}
    return next(unit for unit in units(build(raw, "listed")) if unit.listed)


def undivided(tokens: Any, at: list[Any]) -> Any:
    a, b, _, m = at
    return (tokens * a + b) * m


@pytest.mark.slow
@pytest.mark.drawn(13)
@pytest.mark.parametrize("form", [form for form in FORMS if form != "crossed"])  # it reads an encoder
def test_a_leaf_weighs_and_costs_what_its_module_does(form: str) -> None:
    pytest.importorskip("torch")
    from txcalc.verification.leaves import rows

    options: dict[str, Any] = {"bias": True} if FORMS[form].bias else {}
    options |= {"groups": 2} if FORMS[form].groups else {}
    options |= {"keys": [1, 0, 3] if form == "reading" else "batch"} if form in ("reading", "scores") else {}
    options |= {"shared": True} if form == "linear" else {}
    assert all(row.equal for row in rows(leaf(form, [4, 6, 3, 2][: len(FORMS[form].sizes)], **options))[0])


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "owner", "method", "wrong"),
    [
        (("linear", [5, 7]), Linear, "operations", lambda right: lambda self, work: right(self, work) * 2),
        (("convolution", [6, 4, 3, 2]), Filter, "weights", lambda right: lambda self: right(self)[:1]),
        (("linear", [5, 7]), Linear, "weights", lambda right: lambda self: ()),
        (("scores", [2, 5]), MatrixProduct, "operations", lambda right: lambda self, work: right(self, work) * 2),
        (("linear", [5, 7]), pieces, "_positions", lambda right: undivided),
    ],
    ids=["product", "bias", "weights", "scores", "positions"],
)
def test_a_wrong_formula_of_a_leaf_is_refuted_by_name(
    unit: tuple[str, list[int]], owner: Any, method: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it costs, and at how many positions the list says that it works."""
    pytest.importorskip("torch")
    from txcalc.verification.prove import prove

    where: dict[str, Any] = {"keys": [1, 0, 3]} if unit[0] == "scores" else {"at": [2, 3, 5, 4]}
    leaf_unit = leaf(*unit, **where)
    assert all(row.equal for row in prove(leaf_unit)[1]) and leaf_unit.name == f"leaf {unit[0]}"
    monkeypatch.setattr(owner, method, wrong(getattr(owner, method)))
    assert any(row.path == "leaf" and not row.equal for row in prove(leaf_unit)[1])
