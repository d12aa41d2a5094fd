"""What a description says of a projector: its steps, and the parts that they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from txcalc.num import exact_div
from txcalc.parts.feedforward import FeedForward
from txcalc.parts.forms import pieces
from txcalc.parts.frozen import frozen
from txcalc.parts.linear import Activation, Linear, Sum, Vector
from txcalc.parts.mixers.pieces import Pieces
from txcalc.parts.model import Stack
from txcalc.parts.norm import EPS, Norm
from txcalc.parts.options import REQUIRED, Check, Options, Wrong, activation, count, flag, key, one_of, size
from txcalc.parts.part import Part
from txcalc.parts.tower import Projector, ProjectorStep, Resampler, TowerStack


class Made(NamedTuple):
    """A step's part (None: it only regroups positions), the width of what comes out, how many positions become `made`,
    how many a copy of the part takes at once, and the most tokens of a prompt that it reads too."""

    part: Part | None
    width: Any
    merged: Any = 1
    times: Any = 1
    takes: Any = 1
    made: Any = 1
    prompt: Any = 0


def _norm(width: Any, form: str) -> Made:
    return Made(Norm(width=width, form=form, bias=form == "layer", eps=EPS[form]), width)


def _merge(width: Any, number: Any, to: Any = None) -> Made:
    """Positions side by side; convolutions that reach further make `to` of them."""
    return Made(None, width * number if to is None else to, number)


def _pool(width: Any, number: Any) -> Made:
    return Made(Sum(width=width, sums=number), width, number)


def _linear(width: Any, d_out: Any, bias: bool = True) -> Made:
    return Made(Linear(d_in=width, d_out=d_out, bias=bias), d_out)


def _activation(width: Any, form: str, gated: bool = False) -> Made:
    """Of one half of the width, times the other half, where it is gated."""
    out = exact_div(width, 2) if gated else width
    return Made(Activation(width=out, form=form, gated=gated), out)


def _feed_forward(width: Any, d_ff: Any, activation: str = "silu", bias: bool = False) -> Made:
    return Made(FeedForward(d_model=width, d_ff=d_ff, gated=True, activation=activation, bias=bias), width)


def _vectors(width: Any, number: Any) -> Made:
    return Made(Vector(width=width), width, times=number)


def _branch(width: Any, steps: list[Mapping[str, Any]], times: Any = 1) -> Made:
    """Steps of their own that read the same; what comes out is not what they make."""
    made = projector(width, steps)
    return Made(made, width, times=times, takes=made.reads)


def _resample(
    width: Any, leaves: list[Mapping[str, Any]], reads: Any = 1, makes: Any = 1, to: Any = None, prompt: Any = 0
) -> Made:
    """Queries that read so many positions at once; what comes out is `to` wide."""
    made = Resampler(pieces=Pieces(pieces=tuple(pieces(leaves))), reads=reads, makes=makes, prompt=prompt)
    return Made(made, width if to is None else to, merged=reads, made=makes, prompt=prompt)


def steps_of(value: Any) -> list[Mapping[str, Any]]:
    """A list of tables: each says what a step does, and has the keys that go with it."""
    if not isinstance(value, list) or not all(isinstance(step, Mapping) for step in value):
        raise Wrong("a list of tables, one per step")
    for step in value:
        name = _does(step)
        if not name:
            raise Wrong(f"tables that have one of {', '.join(STEPS)} and its keys alone")
        checks = {**STEPS[name][2], name: STEPS[name][0]}
        for said, given in step.items():
            checks[said](given)
    return value


def _does(step: Mapping[str, Any]) -> str:
    """What a step does: the one of its keys to which the others belong; "": none."""
    return next((name for name in step if name in STEPS and {*step} - {name} <= {*STEPS[name][2]}), "")


# What a value may be, what it makes, and the keys that may stand beside it.
STEPS: Mapping[str, tuple[Check, Callable[..., Made], Mapping[str, Check]]] = {
    "norm": (one_of("layer", "rms"), _norm, {}),
    "merge": (size, _merge, {"to": size}),
    "pool": (size, _pool, {}),
    "linear": (size, _linear, {"bias": flag}),
    "activation": (activation, _activation, {"gated": flag}),
    "feed_forward": (size, _feed_forward, {"activation": activation, "bias": flag}),
    "vectors": (size, _vectors, {}),
    "branch": (steps_of, _branch, {"times": size}),
    "resample": (pieces, _resample, {"reads": size, "makes": size, "to": size, "prompt": count}),
}


def projector(width: Any, steps: Sequence[Mapping[str, Any]]) -> Projector:
    """The parts of steps that begin with vectors of this width. Errors: `ValueError` where a number does not divide."""
    made: list[tuple[str, Made]] = []
    for step in steps:
        name = _does(step)
        result = STEPS[name][1](width, step[name], **{said: given for said, given in step.items() if said != name})
        number = 1 + sum(other.rstrip("0123456789") == name for other, _ in made)
        made.append((name if number == 1 else f"{name}{number}", result))
        width = result.width
    rate, makes, found = 1, 1, []
    for name, result in reversed(made):
        if result.part is not None:
            found.append(ProjectorStep(name, result.part, exact_div(rate, result.takes), result.times, makes))
        if result.made != 1:
            rate, makes = 1, exact_div(makes * result.made, rate)
        rate = rate * result.merged
    prompt = max((one.prompt for _, one in made), default=0)
    return Projector(steps=tuple(reversed(found)), reads=rate, makes=makes, width=width, prompt=prompt)


@frozen
class ProjectorOptions(Options, section="projector"):
    steps: list[Mapping[str, Any]] = key(
        steps_of,
        REQUIRED,
        "what is done to its positions, in order: norm, merge or pool (so many), linear, activation, feed_forward (a "
        "gated one), vectors (learned ones beside them), branch (steps apart), resample (queries that read them)",
    )
    dropped: Any = key(count, 0, "positions that are not handed on")

    def build(self, stack: Stack, positions: Any) -> TowerStack:
        """The tower of a stack that has so many positions (None: as many as are asked for)."""
        made = projector(stack.d_model, self.steps)
        tokens = None if positions is None else exact_div((positions - self.dropped) * made.makes, made.reads)
        return TowerStack(stack=stack, projector=made, dropped=self.dropped, tokens=tokens)
