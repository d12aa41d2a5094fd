"""An adapter for each command that does more than print its answer (writes a file, streams rows) or has own options."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

import txcalc
from txcalc.cli import options
from txcalc.cli.command import Command
from txcalc.cli.output import print_notes, progress, save
from txcalc.errors import InputError
from txcalc.questions import options as o
from txcalc.questions.phrases import must_change, parse_adapters
from txcalc.sources import lone_checkpoint
from txcalc.sources.files import writable

if TYPE_CHECKING:
    from txcalc.model import Model
    from txcalc.questions.sweep import Sweep


class Call(NamedTuple):
    """What a command line asks.

    name       of the command
    sources    models as they were typed
    values     keywords of the question's function
    changes    of --set and --lora
    ignore     keys of --ignore
    form       output format
    plot       of --plot
    """

    name: str
    sources: list[str]
    values: dict[str, Any]
    changes: dict[str, Any]
    ignore: list[str] | None
    form: str
    plot: options.Plot | None

    def ask(self, sources: Sequence[object] | None = None) -> Any:
        """The question's answer; `sources` in place of the models as they were typed."""
        if sources is None:
            via = self.values.get("via")
            if via and (self.changes or self.ignore):
                raise InputError("options", ["--set and --ignore do not work with --via transformers (drop them)"])
            takes = question_of(self.name).takes and not via
            sources = options.models(self.sources, self.ignore, self.changes) if takes else self.sources
        function = getattr(txcalc, self.name)
        parameters = signature(function).parameters
        if "sources" in parameters and parameters["sources"].kind is not Parameter.VAR_POSITIONAL:
            return function(list(sources), **self.values)
        return function(*sources, **self.values)


def function_of(name: str) -> Any:
    """The function of a question."""
    return getattr(import_module(f"txcalc.questions.{name}"), name)


def question_of(name: str) -> o.Question:
    """Its declaration."""
    return function_of(name).question  # type: ignore[no-any-return]


def crossover(call: Call) -> Any:
    """The answer; without closed forms in a table that leaves them out, for SymPy takes half a second."""
    prints_formulas = call.values["detail"] or call.form != "table"
    return call._replace(values={**call.values, "formulas": call.values["formulas"] and prints_formulas}).ask()


def deploy(
    call: Call,
    *,
    emit: Annotated[
        str | None,
        o.Option(
            "Print only the command that serves the plan: vllm, sglang, trtllm, dynamo, llama.cpp or ollama.",
            "ENGINE",
            completes="served",
        ),
    ] = None,
) -> Any:
    """The answer, or the command. Errors: `InputError` for options that exclude each other."""
    values, single_plan = call.values, len(call.sources) * len(call.values["gpu"]) == 1
    if emit is not None and (
        not single_plan or call.form != "table" or call.plot or values.get("detail") or values.get("simulate")
    ):
        mend = "one source and one --gpu, and excludes --format, --plot, --detail and --simulate"
        raise InputError("options", [f"--emit needs {mend}"])
    answer = call.ask()
    if emit is None:
        return answer
    typer.echo(answer.to_command(emit))
    if answer.failed:
        print_notes(answer.report("table").header[:1])
    raise typer.Exit(int(answer.failed))


def export(call: Call) -> None:
    """Asks, and prints."""
    answer = call.ask()
    if call.values.get("file") is None:
        sys.stdout.write(answer.text)
    print_notes(answer.notes)


def formula(
    call: Call,
    *,
    document: Annotated[
        bool, o.Option("A standalone LaTeX document (--format latex: only the tables).", flag="--latex")
    ] = False,
) -> Any:
    """Prints the document, or returns the answer."""
    if document and (not call.sources or call.values["layout"] or call.form != "table"):
        raise InputError(
            "options", ["--latex needs a model, without --layout; for the textbook rules use --format latex"]
        )
    if not call.sources and (call.changes or call.ignore):
        raise InputError("options", ["--set and --ignore need a model"])
    answer = call.ask() if call.sources else call.ask([None])
    if not document:
        return answer
    sys.stdout.write(answer.to_document())
    return None


def measure(call: Call) -> Any:
    """Asks with the command line."""
    return call._replace(values={**call.values, "command": " ".join(["txcalc", *sys.argv[1:]])}).ask()


def prove(call: Call, *, everything: Annotated[bool, o.EVERY_PRESET] = False) -> Any:
    """Asks for the named models, or for every preset."""
    sources = given("prove", call.sources, everything)
    return call.ask(options.models(sources, call.ignore, call.changes))


def report(
    call: Call,
    *,
    out: Annotated[Path, o.OUT.with_help("the page (-: standard output).")],
    force: Annotated[bool, o.FORCE] = False,
) -> None:
    """Asks for the page and writes it."""
    if str(out) != "-":
        writable(out, force)
    command = shlex.join(["txcalc", *sys.argv[1:]]) if sys.argv[1:2] == ["report"] else "txcalc report"
    if call.changes:
        options.models(call.sources, call.ignore, call.changes)
    settings = {"changes": call.changes, "ignore": call.ignore or (), "command": command}
    page = call._replace(values=call.values | settings).ask(call.sources)
    if str(out) == "-":
        sys.stdout.write(page.html)
        print_notes(page.notes)
        return
    page.save(out, force=force)
    print_notes([*page.notes, f"the page is in {out} ({len(page.html.encode()):,} bytes)"])


STEP = ("recompute", "optimizer", "layout")  # of a training step


class ShowCommand(Command):
    """Reads a bare --weights as --headers: it asks for the checkpoint's headers."""

    def parse_args(self, ctx: object, args: list[str]) -> list[str]:
        following = [*args, "-"][1:]
        bare = {i for i, arg in enumerate(args) if arg == "--weights" and following[i].startswith("-")}
        return super().parse_args(ctx, ["--headers" if i in bare else arg for i, arg in enumerate(args)])


def show(
    call: Call,
    *,
    headers: Annotated[
        bool, o.Option("hf:… only: also compare the model with the checkpoint's headers.", group="Model")
    ] = False,
    via: Annotated[Literal["transformers"] | None, o.VIA] = None,
) -> Any:
    """Chooses what is shown."""
    (source,), values = call.sources, call.values
    if via:
        return _show_via(call, headers)
    needs_model = values.get("conventions") or any(values[name] for name in STEP) or call.changes or call.ignore
    if not needs_model and (stored := lone_checkpoint(source)):
        if call.plot:
            raise InputError("--plot", [f"needs a model, and {source} holds tensors alone"])
        from txcalc.questions.stored import show_stored

        return show_stored(stored)
    if headers and "/" not in source:
        print_notes([f"--headers is ignored: {source} is not a repository of the hub"])
    return call.ask(options.models([source], call.ignore, call.changes, weights=headers))


def _show_via(call: Call, headers: bool) -> object:
    """Transformers' own module; options that do not apply are refused by name."""
    from txcalc.questions.show_via import show_via

    values = call.values
    defaults = {"attention": "dense", "logits": "all", "mla": "expanded"}
    flags = {f"--{name}": values[name] not in (None, default) for name, default in defaults.items()}
    flags |= {
        "--set": any(not key.startswith("lora.") for key in call.changes),
        "--lora": any(key.startswith("lora.") for key in call.changes),
        "--headers": headers,
        "--plot": bool(call.plot),
    }
    flags |= {f"--{name}": bool(values[name]) for name in ("past", "weights", "initial", *STEP)}
    flags["--as"] = bool(values.get("conventions"))
    if faults := [f"{name} does not work with --via transformers (drop it)" for name in flags if flags[name]]:
        raise InputError("options", faults)
    return show_via(
        call.sources[0],
        batch=values["batch"],
        tokens=values["tokens"] or 1,
        source_tokens=values["source_tokens"],
        dtype=values["dtype"],
        ignore=call.ignore or (),
    )


def sweep(
    call: Call,
    *,
    out: Annotated[
        Path | None, o.OUT.with_help("a Parquet file, streamed, up to 10^12 rows (pip install 'txcalc[frames]').")
    ] = None,
    workers: Annotated[int, o.WORKERS.with_help("(with --out).")] = 1,
    cluster: Annotated[
        str | None, o.Option("With --out: compute on the workers of a Dask scheduler.", "ADDRESS", "Engine")
    ] = None,
    force: Annotated[bool, o.FORCE] = False,
) -> Any:
    """Asks, and streams what is to be a file or CSV."""
    from txcalc.questions.sweep import check_drawable
    from txcalc.sweeps.sweep import MAX_POINTS

    answer: Sweep = call.ask()
    if not answer.follow:  # a size that follows the axes changes the model
        must_change([grid.base for grid in answer.grids], call.values.get("changes") or {})
    if out is not None:
        if call.plot or call.form != "table":
            raise InputError("options", ["--out excludes --plot and --format"])
        return write(answer, out, workers, cluster, force)
    if workers != 1 or cluster:
        raise InputError("options", ["--workers and --cluster need --out"])
    if answer.points > MAX_POINTS:
        raise InputError("sweep", [f"{answer.points:,} points are more than {MAX_POINTS:,}: --out streams them"])
    if call.form != "csv":
        answer.check(call.form)
    if call.plot:
        check_drawable(answer)
    if call.form != "csv":
        return answer
    drawing = call.plot.drawing(answer) if call.plot else None
    wrote = [save(drawing, call.plot.place)] if call.plot and drawing else []
    print_csv(answer)
    print_notes([*answer.notes, *wrote])
    return None


def print_csv(answer: Sweep) -> None:
    """Every point as a line, in one write per block: a million small ones take longer than the figures."""
    from txcalc.questions.sweep import columns
    from txcalc.render.csv import inert

    several, names = len(answer.grids) > 1, columns(answer.grids[0])
    sys.stdout.write(",".join([*(["model"] if several else []), *names]) + "\n")
    count = 0
    with progress(shared_terminal=False) as show_progress:
        for grid in answer.grids:
            name = str(inert(grid.base.name)).replace('"', '""')
            label = f'"{name}",' if several else ""
            line = label.replace("%", "%%") + ",".join(["%d"] * len(names)) + "\n"
            for block in grid:
                rows = zip(*(column.tolist() for column in block), strict=True)
                sys.stdout.write("".join(map(line.__mod__, rows)))
                show_progress("points", (count := count + len(block[0])) / answer.points)


def write(answer: Sweep, out: Path, workers: int, cluster: str | None, force: bool) -> None:
    """The grid in a Parquet file, with a progress bar where stderr is a terminal."""
    with progress() as show_progress:
        written = answer.to_parquet(
            out, workers=workers, cluster=cluster, force=force, tell=lambda share: show_progress("points", share)
        )
    typer.echo(f"{written.path}: {written.rows:,} rows in {written.groups:,} row groups, {written.bytes:,} bytes")
    print_notes(answer.notes)


MANY = 8  # models: from here on one process per core is faster


def verify(
    call: Call,
    *,
    lora: Annotated[
        str | None,
        o.LORA.with_help("With --layout, base=bf16 or fp32: dtype of the frozen matrices; dtype=: of the adapters."),
    ] = None,
    everything: Annotated[bool, o.EVERY_PRESET] = False,
    torchrun: Annotated[
        int | None,
        o.Option(
            "With --layout: run a real step on N processes with gloo (--device cuda: NCCL), started here or by "
            "torchrun.",
            "N",
            "Engine",
        ),
    ] = None,
) -> Any:
    """Refuses options without effect, and asks."""
    values = call.values
    layout, ranks, device, workers = (values[name] for name in ("layout", "ranks", "device", "workers"))
    changes, dtypes = parse_adapters(lora, ("base", "dtype") if layout and torchrun is None else ())
    if layout is not None:
        if not call.sources:
            raise InputError("verify", ["expected models"])
        unsupported = ("workers", "layers", "against", "symbolic", "gpu", "record")
        unused = {f"--{name}": values[name] not in (None, False) for name in unsupported}
        unused |= {"--oracle": "oracles" in values, "--dtype": values["dtype"] != "fp32"}
        unused |= {"--points": values["symbolic"] is False}
        refuse(unused, "does not work with --layout")
        models = options.models(call.sources, call.ignore, changes)
        if torchrun is not None:
            if ranks is not None:
                raise InputError("verify", ["--ranks does not work with --torchrun, which runs all ranks"])
            return run_step(models, layout, values["recipe"], torchrun, device)
        refuse({"--device": device != "meta"}, "with --layout needs --torchrun")
        recipe = values["recipe"]
        if lora:  # in the formats that train has
            recipe = f"frozen={dtypes.get('base', 'bf16')},adapter={dtypes.get('dtype', 'fp32')},{recipe}"
        return call._replace(values={"layout": layout, "recipe": recipe, "ranks": ranks}).ask(models)
    of_layout = {"--recipe": values["recipe"], "--ranks": ranks is not None, "--torchrun": torchrun is not None}
    refuse(of_layout, "needs --layout")
    sources = given("verify", call.sources, everything)
    if lora and values["record"]:
        raise InputError("options", ["--record needs presets as they are, without --lora"])
    models = options.models(sources, call.ignore, changes)
    if workers is None:
        workers = os.cpu_count() or 1 if device == "meta" and len(models) >= MANY else 1
    return call._replace(values=values | {"workers": workers}).ask(models)


def given(command: str, sources: list[str], everything: bool) -> list[str]:
    """The models that are named, or every preset. Errors: `InputError` for none, or for both."""
    from txcalc.sources.presets import names

    if everything == bool(sources):
        both = ", not both" if sources else ""
        raise InputError(command, [f"expected models, or --all for every preset{both}"])
    return names() if everything else sources


def run_step(models: Sequence[Model], layout: str, recipe: str, processes: int, device: str) -> object:
    """Runs every model on real processes; rank 0 reports."""
    from txcalc.planning.layout import parse_layout
    from txcalc.planning.training.recipe import parse_recipe
    from txcalc.questions.verify import answer_of
    from txcalc.verification.processes import verify_real

    training = parse_recipe(recipe, parse_layout(layout))
    device = "cpu" if device == "meta" else device
    by_model = [verify_real(model, training, processes, device) for model in models]  # None on ranks other than 0
    verdicts = [verdict for verdict in by_model if verdict is not None]
    return answer_of(verdicts) if len(verdicts) == len(by_model) else None


def refuse(options_given: dict[str, Any], why: str) -> None:
    """Refuses options without effect. Errors: `InputError`."""
    if faults := [f"{name} {why}" for name, value in options_given.items() if value]:
        raise InputError("verify", faults)


ADAPTERS = {
    run.__name__: run for run in (crossover, deploy, export, formula, measure, prove, report, show, sweep, verify)
}
