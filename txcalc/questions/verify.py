"""`verify`: predictions against what PyTorch's module gives, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec.structs import asdict

from txcalc.errors import Fault, InputError
from txcalc.evidence.figures import Figure
from txcalc.evidence.known import MEASURES, ORACLES, Evidence, oracles_of
from txcalc.notation import as_text
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, Result
from txcalc.questions.arguments import names
from txcalc.sources import load

if TYPE_CHECKING:
    from txcalc.verification import Verdict
    from txcalc.verification.verdict import CheckedRow

Progress = Callable[[str, float], None]  # the current step and the share done


def no_progress(step: str, share: float) -> None:
    """Reports nothing."""


class VerifiedModel(Answer):
    """A model: whether all measurements equal their predictions, and how each quantity is known then."""

    model: str
    ok: bool
    figures: int
    unequal: int
    notes: tuple[str, ...]
    known: dict[str, Evidence]


class VerifiedFigure(Answer):
    """A quantity of a part, predicted and measured by an oracle: integers or formulas. `where`: the sizes; `for_all`:
    all sizes of a domain; `difference`: measured less predicted."""

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
    difference: int | str = 0


class MeasuredFigure(Figure, frozen=True):
    """A figure, and the model that it is of."""

    model: str


class Verify(Result, tag_field="schema", tag="txcalc/verify/1", kw_only=True):
    """Predicted and measured, part by part."""

    ok: bool
    models: tuple[VerifiedModel, ...]
    rows: tuple[VerifiedFigure, ...]
    figures: tuple[MeasuredFigure, ...] = ()
    zero_cost_operators: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return not self.ok


@o.Question(
    "txcalc verify gpt2",
    takes=("--ignore",),
    first=("--oracle", "--layers", "--device", "--symbolic", "--against", "--layout", "--all"),
    examples=("The first layer only: txcalc verify llama-3.1-8b --layers 1",),
)
def verify(
    *sources: o.OptionalSources,
    device: Annotated[str, o.DEVICE.with_help("On meta any model size works.")] = "meta",
    layout: Annotated[
        str | None,
        o.LAYOUT._replace(
            help="Parallel layout of a training step, compared with PyTorch's own sharding: tp=8,sp=8,fsdp=4.",
        ),
    ] = None,
    recipe: Annotated[
        str,
        o.RECIPE.with_help(
            "tokens=64,micro_batch=2,schedule=1f1b; also accumulation=, optimizer=, parameter=. With --layout."
        ),
    ] = "",
    ranks: Annotated[int | None, o.Option("With --layout: only N kinds of ranks per stage.", "N", "Engine")] = None,
    workers: Annotated[int | None, o.WORKERS.with_help("(default: one, or one per core for many models).")] = None,
    oracles: Annotated[
        o.Names,
        o.Option(
            "A measurement to compare with. Default: parameters, fvcore and flops; on a device also bytes, training, "
            "peak and time. Others: saved, cache, mask, traffic, other, memory, all. Repeatable.",
            "NAME",
            "Engine",
            "--oracle",
            "oracle",
            repeats=True,
        ),
    ] = (),
    symbolic: Annotated[
        bool | None,
        o.Option(
            "--symbolic: every layer, all batch sizes and lengths. --points: only at single sizes. "
            "Default: one layer of each kind is proved, and all layers are compared at one size.",
            group="Engine",
            flag="--symbolic/--points",
        ),
    ] = None,
    layers: Annotated[int | None, o.Option("Only the first N layers, for small devices.", "N", "Model")] = None,
    dtype: Annotated[Literal["fp32", "bf16"], o.DTYPE._replace(help="Dtype of the modules: fp32 or bf16.")] = "fp32",
    against: Annotated[
        Literal["transformers"] | None, o.AGAINST.with_help("transformers' module of the same config.json.")
    ] = None,
    gpu: Annotated[
        str | None,
        o.GPU._replace(
            help="An accelerator or calibrate's file, for the lower bounds of times (default: this device)."
        ),
    ] = None,
    zero_cost: Annotated[bool, o.Option("List the operators counted as free.")] = False,
    record: Annotated[bool, o.Option("Store the results for presets, as evidence for show.")] = False,
    tell: Progress = no_progress,
) -> Verify:
    """Build the PyTorch module and compare it with the calculator, part by part. Exit code 0 only if everything is
    equal.

    Errors: `InputError`, `UnknownName`, `MissingExtra`; `Refuted` where a device's memory does not suffice.

    >>> import txcalc
    >>> txcalc.verify("D=32 h=2 F=64 L=1 V=50", oracles="parameters").ok
    True
    """
    requested = oracles_of(names(oracles), (*ORACLES, *MEASURES, "all"))
    workers = 1 if workers is None else workers
    if not sources:
        raise InputError(
            "verify", ["expected models" if layout is None else "expected models whose --layout is verified"]
        )
    if layers is not None and record:
        raise InputError("options", ["--record needs whole models, without --layers"])
    if layers is not None and (against or "transformers" in requested):
        raise InputError("options", ["--against transformers needs whole models, without --layers"])
    if workers != 1 and (workers < 1 or layout is not None or device != "meta"):
        expected = "1 or more" if workers < 1 else "1 with a layout, and on a device"
        raise InputError("verify", [Fault("--workers", workers, expected)])
    if ranks is not None and ranks < 1:
        raise InputError("verify", [f"--ranks is {ranks}, expected 1 or more"])
    models = [load(source) for source in sources]
    if layout is not None:
        from txcalc.planning.layout import parse_layout
        from txcalc.planning.training.recipe import parse_recipe
        from txcalc.verification.layouts import verify_layout

        training = parse_recipe(recipe, parse_layout(layout))
        return answer_of([verify_layout(model, training, ranks) for model in models])

    from txcalc import hardware
    from txcalc.sweeps.processes import processes
    from txcalc.verification import DEFAULT, shorten, verify as compare
    from txcalc.verification.against_transformers import lists_leaves
    from txcalc.verification.coverage import ZERO_COST
    from txcalc.verification.device import DTYPES
    from txcalc.verification.store_evidence import proofs, store
    from txcalc.verification.workloads import DeviceModel, measure

    real = device != "meta"
    default = [*DEFAULT, "bytes", "training", *MEASURES] if real else list(DEFAULT)
    available = [*(name for name in ORACLES if name != "transformers"), *(MEASURES if real else ())]
    selected = available if "all" in requested else requested or default
    measures = [name for name in MEASURES if name in selected]
    if measures and not real:
        raise InputError("verify", [Fault("--device", device, f"cpu or cuda, for --oracle {measures[0]}")])
    if gpu is not None and "time" not in measures:
        raise InputError("verify", ["--gpu needs --oracle time, on --device cpu or cuda"])
    selected = [name for name in selected if name not in MEASURES] + (["transformers"] if against else [])
    lengths: Any = "auto" if symbolic is None else "symbolic" if symbolic else "points"
    models = [shorten(model, layers) for model in models] if layers is not None else models
    accelerator = None  # that times are compared with: a named one, or this machine
    if "time" in measures:
        from txcalc.verification.calibrate import calibrate

        tell("ceilings", 0.0)
        accelerator = hardware.load(gpu) if gpu else calibrate(device, rounds=3, limit=30).accelerator
    # Models that are lists of leaves have no reference module: unless other oracles are requested, only transformers'
    # module is traced.
    only_transformers = bool(against) and not (requested or real)
    oracles_by_model = [["transformers"] if only_transformers and lists_leaves(model) else selected for model in models]
    verify_one = partial(compare, lengths=lengths, device=device, dtype=DTYPES[dtype])
    verdicts = []
    with ExitStack() as stack:
        run = stack.enter_context(processes(min(workers, len(models)))).map if workers > 1 else map
        results = run(verify_one, models, oracles_by_model)
        for i, model in enumerate(models):
            tell(model.name, i / len(models))
            verdicts.append(next(results))
            if measures:
                measure(verdicts[-1], DeviceModel(model, device, DTYPES[dtype]), measures, accelerator)
            if record:
                store({model.name: (model, proofs(model, verdicts[-1]))})
    return answer_of(verdicts, sorted(name for group in ZERO_COST.values() for name in group) if zero_cost else ())


def answer_of(verdicts: Sequence[Verdict], zero_cost: Sequence[str] = ()) -> Verify:
    """The answer of verdicts, one per model."""
    return Verify(
        ok=all(verdict.ok for verdict in verdicts),
        models=tuple(
            VerifiedModel(v.model, v.ok, len(v.rows), len(v.failures), tuple(v.notes), v.known) for v in verdicts
        ),
        rows=tuple(verified_figure(verdict.model, row) for verdict in verdicts for row in verdict.rows),
        figures=tuple(MeasuredFigure(v.model, **asdict(figure)) for v in verdicts for figure in v.figures),
        zero_cost_operators=tuple(zero_cost),
    )


def verified_figure(model: str, row: CheckedRow) -> VerifiedFigure:
    predicted, measured = number(row.predicted), number(row.measured)
    difference: int | str = 0
    if not row.equal:
        difference = "differs" if isinstance(row.predicted, str) else number(row.measured - row.predicted)
    return VerifiedFigure(
        model, row.path, row.quantity, predicted, measured, row.equal, row.oracle, row.where, row.copies, row.for_all,
        difference,
    )  # fmt: skip


def number(value: object) -> int | str:
    """A figure: an int, or a formula as text."""
    return value if isinstance(value, int | str) else as_text(value)
