"""`deploy --emit`: the command that serves the plan, in place of the tables."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txcalc.cli.build import Call
from txcalc.cli.output import print_notes
from txcalc.errors import InputError
from txcalc.questions.options import Option


def run(
    call: Call,
    *,
    emit: Annotated[
        str | None,
        Option(
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
