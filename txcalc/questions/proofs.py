"""Verification with PyTorch: `verify`, `prove`, `trace`, `calibrate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from txcalc.errors import Fault, InputError, Refuted
from txcalc.evidence.known import MEASURES, ORACLES, oracles_of
from txcalc.questions.arguments import length, maybe, models, names
from txcalc.questions.options import Length, Names
from txcalc.questions.results import Known, Record, Result

if TYPE_CHECKING:
    from txcalc.hardware import Accelerator
    from txcalc.sources import Source, TorchModule
    from txcalc.verification import Verdict

Tell = Callable[[str, float], None]  # progress: the current step and the share done


def silent(step: str, share: float) -> None:
    """No progress."""


class Verified(Record):
    """A model: whether all measurements equal their predictions, and how each quantity is known then."""

    model: str
    ok: bool
    figures: int
    unequal: int
    notes: list[str]
    known: dict[str, Known]


class Row(Record):
    """A quantity of a part, predicted and measured by an oracle: integers or formulas. `where`: the sizes; `for_all`:
    every size of a domain."""

    model: str
    path: str
    quantity: str
    predicted: int | str
    measured: int | str
    equal: bool
    oracle: str
    where: str
    copies: int
    for_all: bool


class Figure(Record):
    """A measured figure with its prediction, which need not be equal."""

    model: str
    quantity: str
    load: str
    part: str
    unit: str
    floor: int | float | None
    predicted: int | float | None
    measured: int | float
    gap: dict[str, int | float]
    beside: dict[str, int | float]
    planned: int | float | None
    above: dict[str, int | float]


class Verify(Result):
    """Predicted and measured, part by part."""

    ok: bool
    models: list[Verified]
    rows: list[Row]
    figures: list[Figure] | None
    zero_cost_operators: list[str] | None

    def __init__(self, verdicts: Sequence[Verdict], zero_cost: Sequence[str] = ()) -> None:
        from txcalc.render.verify import report

        super().__init__(lambda _: report(verdicts, zero_cost), failed=not all(verdict.ok for verdict in verdicts))


def verify(
    *sources: Source,
    oracles: Names = (),
    symbolic: bool | None = None,
    layers: int | None = None,
    device: str = "meta",
    dtype: Literal["fp32", "bf16"] = "fp32",
    against: Literal["transformers"] | None = None,
    gpu: str | None = None,
    layout: str | None = None,
    recipe: str = "",
    ranks: int | None = None,
    zero_cost: bool = False,
    record: bool = False,
    workers: int = 1,
    tell: Tell = silent,
) -> Verify:
    """Builds the PyTorch module of each model and compares it with the calculator, part by part. `failed`: something
    differs.

    oracles    parameters, fvcore, flops (the default), bytes, training, saved, cache, memory, or all; on a device also
               peak and time
    symbolic   True: every layer for all batches and lengths, or refuse; False: at points; default: one layer of each
               kind for all sizes, and all layers at a point
    layers     only the first layers
    gpu        the accelerator whose floor times are held against
    layout     a training layout, against PyTorch's own sharding (with `recipe`; at most `ranks` kinds of ranks)
    record     store the evidence found for presets
    workers    processes that share the models, on meta

    Errors: `InputError`, `UnknownName`, `MissingExtra`; `Refuted` where a device's memory does not suffice.

    >>> import txcalc
    >>> txcalc.verify("D=32 h=2 F=64 L=1 V=50", oracles="parameters").ok
    True
    """
    wanted = oracles_of(names(oracles), (*ORACLES, *MEASURES, "all"))
    if not sources:
        what = "models" if layout is None else "models whose --layout is verified"
        raise InputError("verify", [f"expected {what}"])
    if layers is not None and record:
        raise InputError("options", ["--record needs whole models, without --layers"])
    if layers is not None and (against or "transformers" in wanted):
        raise InputError("options", ["--against transformers needs whole models, without --layers"])
    if workers != 1 and (workers < 1 or layout is not None or device != "meta"):
        expected = "1 or more" if workers < 1 else "1 with a layout, and on a device"
        raise InputError("verify", [Fault("--workers", workers, expected)])
    if ranks is not None and ranks < 1:
        raise InputError("verify", [f"--ranks is {ranks}, expected 1 or more"])
    if layout is not None:
        from txcalc.planning.layout import parse_layout
        from txcalc.planning.training.recipe import parse_recipe

        asked = parse_recipe(recipe, parse_layout(layout))
        given = models(sources)
        from txcalc.verification.layouts import verify_layout

        return Verify([verify_layout(model, asked, ranks) for model in given])
    given = models(sources)

    from txcalc.sweeps.processes import processes
    from txcalc.verification import DEFAULT, shortened, verify as verified
    from txcalc.verification.coverage import ZERO_COST
    from txcalc.verification.device import DTYPES
    from txcalc.verification.record import proofs, store
    from txcalc.verification.witness import of_pieces
    from txcalc.verification.workloads import DeviceModel, measure

    real = device != "meta"
    usual = [*DEFAULT, "bytes", "training", *MEASURES] if real else list(DEFAULT)
    known = [*(name for name in ORACLES if name != "transformers"), *(MEASURES if real else ())]
    asks = known if "all" in wanted else wanted or usual
    measures = [name for name in MEASURES if name in asks]
    if measures and not real:
        raise InputError("verify", [Fault("--device", device, f"cpu or cuda, for --oracle {measures[0]}")])
    if gpu is not None and "time" not in measures:
        raise InputError("verify", ["--gpu needs --oracle time, on --device cpu or cuda"])
    asks = [name for name in asks if name not in MEASURES] + (["transformers"] if against else [])
    how: Any = "auto" if symbolic is None else "symbolic" if symbolic else "points"
    given = [shortened(model, layers) for model in given] if layers is not None else given
    if "time" in measures:
        tell("ceilings", 0.0)
    accelerator = _accelerator(device, gpu) if "time" in measures else None
    # Models of pieces have no reference module: unless other oracles are requested, only transformers' module is
    # traced.
    alone = bool(against) and not (wanted or real)
    own = [["transformers"] if alone and of_pieces(model) else asks for model in given]
    one = partial(verified, lengths=how, device=device, dtype=DTYPES[dtype])
    verdicts = []
    with ExitStack() as stack:
        spread = stack.enter_context(processes(min(workers, len(given)))).map if workers > 1 else map
        found = spread(one, given, own)
        for i, model in enumerate(given):
            tell(model.name, i / len(given))
            verdicts.append(next(found))
            if measures:
                measure(verdicts[-1], DeviceModel(model, device, DTYPES[dtype]), measures, accelerator)
            if record:
                store({model.name: proofs(model, verdicts[-1])})
    return Verify(verdicts, sorted(name for group in ZERO_COST.values() for name in group) if zero_cost else ())


def _accelerator(device: str, gpu: str | None) -> Accelerator:
    """The accelerator that times are compared with: a named one, or this machine, measured now."""
    from txcalc import hardware
    from txcalc.verification.calibrate import calibrate as measured

    return hardware.load(gpu) if gpu else measured(device, rounds=3, limit=30).accelerator


class Structure(Record):
    """A structure of a model with its sizes: whether it is proved, for which sizes and conditions, and how `further`
    quantities are known."""

    model: str
    structure: str
    key: str
    how: str
    where: str | None
    conditions: list[str]
    sizes: dict[str, int]
    further: dict[str, Known]
    new: bool
    reason: str | None


class Prove(Result):
    """Theorems of the structures of models."""

    ok: bool
    structures: list[Structure]

    def _rows(self) -> list[dict[str, Any]]:
        return [structure.to_dict() for structure in self.structures]


def prove(*sources: Source, again: bool = False, out: str | Path | None = None, tell: Tell = silent) -> Prove:
    """Proves parameters and FLOPs of models' structures for every size; those with a theorem are skipped unless
    `again`, and so are those that are the sum of smaller ones with theorems. New theorems go to `out` (default: a file
    of the user's), where `show` finds them. `failed`: one is not proved."""
    from txcalc.evidence import theorems
    from txcalc.evidence.theorems import Unit
    from txcalc.render.prove import ProofAnswer, report

    if not sources:
        raise InputError("prove", ["expected models"])
    given = models(sources)
    wanted: dict[str, tuple[str, Unit]] = {}
    for model in given:
        for unit in theorems.units(model):
            for part in [unit] if again else theorems.bearing(unit) or [unit]:
                wanted.setdefault(part.key, (model.name, part))
    from txcalc.verification.prove import made_with, prove as proved

    answers: list[ProofAnswer] = []
    path = theorems.own_file() if out is None else Path(out)
    for i, (name, unit) in enumerate(wanted.values()):
        tell(f"{name}: {unit.name}", i / len(wanted))
        if not again and not theorems.obstacle(unit):
            answers.append(ProofAnswer(name, unit, theorems.theorems()[unit.key]))
            continue
        try:
            theorem, rows = proved(unit)
        except Refuted as refusal:
            answers.append(ProofAnswer(name, unit, None, refusal=str(refusal)))
            continue
        unequal = [row for row in rows if not row.equal]
        answers.append(ProofAnswer(name, unit, None if unequal else theorem, unequal, new=True))
        if not unequal:
            theorems.write(path, {unit.key: theorem}, made_with())
    return Prove(lambda _: report(answers, path), failed=any(answer.theorem is None for answer in answers))


class Module(Record):
    """A module's parameters and FLOPs: a formula in B and T; at the point also fvcore's count."""

    path: str
    class_: str | None
    params: int
    flops: str
    flops_at_point: int
    fvcore_at_point: int | None


class Trace(Result):
    """The cost of any module; not `complete`: an operator that may cost FLOPs has no count."""

    source: str
    domain: str
    complete: bool
    point: dict[str, int]
    total: Module
    rows: list[Module]
    not_counted: dict[str, dict[str, int]]
    zero_cost_operators: list[str]


def trace(
    source: str | TorchModule,
    *,
    inputs: str | Sequence[str] = (),
    batch: Length | None = None,
    tokens: Length | None = None,
    source_tokens: Length | None = None,
    device: str = "meta",
) -> Trace:
    """Parameters and FLOPs of any PyTorch module, given as itself, `"FILE.py:factory"` or `"package.module:Class"`,
    part by part, as formulas in batch and length; measured at a size if one is given. `inputs` are `"NAME=B,T:int64"`
    if it does not take token ids (for a module object, vectors of its width are tried too). The module is copied, not
    run.

    `failed`: an operator that may cost FLOPs has no count. Errors: `InputError`, `MissingExtra`, `Refuted` where sizes
    or data decide what is computed.
    """
    from txcalc.render.trace import report
    from txcalc.verification.trace import trace as traced

    if not isinstance(source, str) and not callable(getattr(source, "named_modules", None)):
        raise InputError("trace", [Fault("source", source, "a module, or FILE.py:factory or module:Class")])
    asked = {"--batch": batch, "--tokens": tokens, "--source-tokens": source_tokens}
    b, t, t_src = (maybe(value, flag, length) for flag, value in asked.items())
    given: Any = source
    found = traced(given, [inputs] if isinstance(inputs, str) else inputs, b, t, t_src, device)
    return Trace(lambda _: report(found), failed=not found.complete)


class Rate(Record):
    """The measured rate of a kernel: FLOPs or bytes per second."""

    kind: str
    dtype: str
    size: str
    rate: float


class Check(Record):
    """Seconds of a step: predicted before and after calibration, and measured."""

    load: str
    before: float
    after: float
    measured: float


class Calibrate(Result):
    """Measured rates of a machine; `accelerator` is a hardware file for `deploy`."""

    file: str | None
    accelerator: dict[str, Any]
    rates: list[Rate]
    model: str
    dtype: str
    checks: list[Check]
    rounds: int
    clocks: list[dict[str, str]]

    def _rows(self) -> list[dict[str, Any]]:
        return [rate.to_dict() for rate in self.rates]


def calibrate(
    device: str = "cpu",
    *,
    out: str | Path | None = None,
    force: bool = False,
    like: str | None = None,
    tell: Tell = silent,
) -> Calibrate:
    """Measures this machine in two minutes: matrix products, copies, attention, launches. `out`: a .toml for
    `deploy(gpu=…)`; `like`: the accelerator that this machine has, whose datasheet and measured efficiency of servers'
    kernels are kept (without it PyTorch's kernels, measured here, stand for all)."""
    from txcalc import hardware
    from txcalc.sources.export import as_toml
    from txcalc.sources.files import writable, write

    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise InputError("calibrate", [Fault("--device", device, "cpu or cuda")])
    path = None if out is None else Path(out)
    if path is not None and path.suffix != ".toml":
        raise InputError(
            "calibrate", [Fault("--out", str(path), "a file that ends in .toml, as deploy --gpu reads it")]
        )
    if path is not None:
        writable(path, force)
    as_toml({})  # fails now rather than after two minutes if TOML cannot be written
    datasheet = hardware.load(like) if like else None

    from txcalc.render.measurements import calibrated
    from txcalc.verification.calibrate import calibrate as measured

    name = path.stem if path else "this-machine"
    found = measured(device, name=name, like=datasheet, progress=lambda share: tell("measuring", share)).described()
    if path is not None:
        write(path, as_toml(found["accelerator"]), True)
    return Calibrate(lambda _: calibrated(found, str(path) if path else None))
