"""Layouts: what is written, what cannot be, and where the ranks of a group stand."""

from __future__ import annotations

import pytest

from txcalc import load
from txcalc.errors import InputError
from txcalc.planning.layout import AXES, SERVING_ORDER, UNSERVED, Group, Layout, parse_layout
from txcalc.planning.parallelism import Sharding


def test_a_layout_is_read_by_name() -> None:
    found = parse_layout("tp=8, pp=16,dp=4,vpp=2,sp=8")
    assert found == Layout(tp=8, pp=16, dp=4, vpp=2, sp=8)
    assert (found.gpus, found.stage, found.copies, str(found)) == (512, 32, 4, "tp=8 sp=8 pp=16 vpp=2 dp=4")
    assert str(Layout()) == "one GPU"
    assert Layout(fsdp=8, dp=2).gpus == 16
    assert found.record() == {"tp": 8, "sp": 8, "pp": 16, "vpp": 2, "dp": 4, "ep": 1}
    assert Layout().record() == {"tp": 1, "pp": 1, "dp": 1, "ep": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tp", "'tp', expected NAME=N with a whole number (tp=8,pp=2,dp=4)"),
        ("", "--layout is '', expected NAME=N"),
        ("tp=x", "'tp=x', expected NAME=N"),
        ("tp=-1", "'tp=-1', expected NAME=N"),
        ("fdsp=8", "'fdsp' is not a kind of parallelism (did you mean fsdp"),
        ("x=8", "'x' is not a kind of parallelism"),
        ("tp=8,tp=4", "tp is given twice"),
        ("tp=0", "tp is 0, expected a whole number from 1 to 65,536"),
        ("tp=100000", "tp is 100000, expected a whole number from 1 to 65,536"),
        ("tp=8,sp=4", "sp is 4, expected 1 or tp = 8"),
        ("vpp=2", "vpp is 2, expected 1 where pp is 1"),
        ("tp=4,ep=8", "ep is 8, expected a divisor of tp = 4, or a multiple of it that divides tp · dp = 4"),
        ("fsdp=4,ep=8", "that divides tp · fsdp · dp = 4"),
        ("tp=4,dp=2,ep=4,etp=4", "ep · etp is 16, expected a divisor of tp · dp = 8"),
        ("tp=x,y=2", "2 faults"),
    ],
)
def test_what_is_no_layout_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_layout(text)
    assert words in str(refused.value)


def test_every_axis_is_for_serving_or_refused_there() -> None:
    assert {"tp", "pp", "dp", "ep", *UNSERVED} == set(AXES)
    sharding = Sharding(load("gpt2"), serving=True)
    for layout in (Layout(cp=2), Layout(fsdp=2), Layout(pp=2, vpp=2), Layout(tp=2, sp=2), Layout(etp=2, tp=2)):
        (fault,) = sharding.faults(layout)
        assert "expected 1: " in str(fault)
        assert not Sharding(load("gpt2")).faults(layout)


@pytest.mark.parametrize(
    ("layout", "axis", "expected"),
    [
        (Layout(tp=8, dp=2), "tp", Group(8, 8)),
        (Layout(tp=16), "tp", Group(16, 8)),
        (Layout(tp=2, dp=16), "dp", Group(16, 4)),
        (Layout(tp=8, dp=4), "dp", Group(4, 1)),
        (Layout(tp=4, cp=2, fsdp=4), "cp", Group(2, 2)),
        (Layout(tp=4, cp=2, fsdp=4), "fsdp", Group(4, 1)),
        (Layout(tp=2, pp=2, dp=4), "pp", Group(2, 1)),
        (Layout(dp=16, ep=16), "ep", Group(16, 8)),
        (Layout(tp=4, ep=2), "ep", Group(2, 2)),
        (Layout(tp=4, dp=4, ep=4, etp=4), "ep", Group(4, 2)),
        (Layout(tp=4, dp=4, ep=4, etp=4), "etp", Group(4, 4)),
        (Layout(tp=8, pp=2, dp=2, ep=16), "ep", Group(16, 8)),
    ],
)
def test_ranks_of_a_group_stand_in_nodes_of_eight(layout: Layout, axis: str, expected: Group) -> None:
    assert layout.group(axis, 8) == expected
    assert layout.group(axis, 8).crosses == (expected.local < expected.size)
    assert layout.group(axis, None) == Group(expected.size, expected.size)


def test_a_server_keeps_the_stages_of_a_copy_together() -> None:
    layout = Layout(tp=2, pp=2, dp=4)
    assert layout.group("pp", 8, SERVING_ORDER) == Group(2, 2)
    assert layout.group("dp", 8, SERVING_ORDER) == Group(4, 2)
    assert Layout(tp=4, pp=2, dp=2, ep=8).group("ep", 8, SERVING_ORDER) == Group(8, 4)
