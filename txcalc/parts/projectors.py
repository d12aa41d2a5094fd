"""The options of a projector: its steps and the parts they build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from txcalc.num import Num, exact_div
from txcalc.parts.feedforward import FeedForward
from txcalc.parts.forms import pieces
from txcalc.parts.linear import Activation, Linear, Sum, Vector
from txcalc.parts.mixers.pieces import Pieces
from txcalc.parts.model import Stack
from txcalc.parts.norm import EPS, Norm
from txcalc.parts.options import REQUIRED, Check, Options, Table, Wrong, activation, count, flag, key, one_of, size
from txcalc.parts.part import Part
from txcalc.parts.tower import Projector, ProjectorStep, Resampler, TowerStack


class StepResult(NamedTuple):
    """A step's part (None: it only regroups positions), its output width, `merged` positions that become `outputs`, how
    many a copy of the part `takes` at once, and the most prompt tokens that it reads too."""

    part: Part | None
    width: Num
    merged: Num = 1
    times: Num = 1
    takes: Num = 1
    outputs: Num = 1
    prompt: Num = 0


def _norm(width: Num, form: str) -> StepResult:
    return StepResult(Norm(width=width, form=form, bias=form == "layer", eps=EPS[form]), width)


def _merge(width: Num, number: Num, to: Num | None = None) -> StepResult:
    """Concatenates positions; with `to`, a strided convolution's output width."""
    return StepResult(None, width * number if to is None else to, number)


def _pool(width: Num, number: Num) -> StepResult:
    return StepResult(Sum(width=width, sums=number), width, number)


def _linear(width: Num, d_out: Num, bias: bool = True) -> StepResult:
    return StepResult(Linear(d_in=width, d_out=d_out, bias=bias), d_out)


def _activation(width: Num, form: str, gated: bool = False) -> StepResult:
    """Gated: of one half of the width, times the other."""
    out = exact_div(width, 2) if gated else width
    return StepResult(Activation(width=out, form=form, gated=gated), out)


def _feed_forward(width: Num, d_ff: Num, activation: str = "silu", bias: bool = False) -> StepResult:
    return StepResult(FeedForward(d_model=width, d_ff=d_ff, gated=True, activation=activation, bias=bias), width)


def _vectors(width: Num, number: Num) -> StepResult:
    return StepResult(Vector(width=width), width, times=number)


def _branch(width: Num, steps: list[Table], times: Num = 1) -> StepResult:
    """A parallel branch that reads the same input; the main path continues from that input."""
    branch = projector(width, steps)
    return StepResult(branch, width, times=times, takes=branch.reads)


def _resample(
    width: Num, leaves: list[Table], reads: Num = 1, makes: Num = 1, to: Num | None = None, prompt: Num = 0
) -> StepResult:
    """Learned queries over `reads` positions; `to` is the output width."""
    resampler = Resampler(pieces=Pieces(pieces=tuple(pieces(leaves))), reads=reads, makes=makes, prompt=prompt)
    return StepResult(resampler, width if to is None else to, merged=reads, outputs=makes, prompt=prompt)


def steps_of(value: object) -> list[Table]:
    """A list of tables, one per step, each with its kind and the keys of that kind."""
    if not isinstance(value, list) or not all(isinstance(step, Mapping) for step in value):
        raise Wrong("a list of tables, one per step")
    for step in value:
        name = _kind_of(step)
        if not name:
            raise Wrong(f"tables that have one of {', '.join(STEPS)} and its keys alone")
        checks = {**STEPS[name][2], name: STEPS[name][0]}
        for option, setting in step.items():
            checks[option](setting)
    return value


def _kind_of(step: Table) -> str:
    """The kind of a step: the one of its keys to which the others belong; "": none."""
    return next((name for name in step if name in STEPS and {*step} - {name} <= {*STEPS[name][2]}), "")


# Per kind: the check of its value, its constructor, and the further keys.
STEPS: Mapping[str, tuple[Check, Callable[..., StepResult], Mapping[str, Check]]] = {
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


def projector(width: Num, steps: Sequence[Table]) -> Projector:
    """The projector of these steps, on an input of this width. Errors: `ValueError` where a number does not divide."""
    results: list[tuple[str, StepResult]] = []
    for step in steps:
        name = _kind_of(step)
        result = STEPS[name][1](width, step[name], **{k: v for k, v in step.items() if k != name})
        number = 1 + sum(other.rstrip("0123456789") == name for other, _ in results)
        results.append((name if number == 1 else f"{name}{number}", result))
        width = result.width
    rate, makes, built = 1, 1, []
    for name, result in reversed(results):
        if result.part is not None:
            built.append(ProjectorStep(name, result.part, exact_div(rate, result.takes), result.times, makes))
        if result.outputs != 1:
            rate, makes = 1, exact_div(makes * result.outputs, rate)
        rate = rate * result.merged
    prompt = max((result.prompt for _, result in results), default=0)
    return Projector(steps=tuple(reversed(built)), reads=rate, makes=makes, width=width, prompt=prompt)


class ProjectorOptions(Options, section="projector"):
    steps: list[Table] = key(
        steps_of,
        REQUIRED,
        "steps in order: norm, merge or pool (a number of positions), linear, activation, feed_forward (gated), "
        "vectors (learned ones), branch (parallel steps), resample (learned queries)",
    )
    dropped: Num = key(count, 0, "positions that are not handed on")

    def build(self, stack: Stack, positions: Num | None) -> TowerStack:
        """The tower of a stack with this number of positions (None: as the workload says)."""
        built = projector(stack.d_model, self.steps)
        tokens = None if positions is None else exact_div((positions - self.dropped) * built.makes, built.reads)
        return TowerStack(stack=stack, projector=built, dropped=self.dropped, tokens=tokens)
