"""Commands of txcalc as tests run them: in this process."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from unittest.mock import patch

from typer.testing import CliRunner

from txcalc.cli import app
from txcalc.cli.output import print_answer


class Ran(NamedTuple):
    """What a command left."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """All that was printed."""
        return self.stdout + self.stderr


class Command:
    """A command with its first words, on a terminal so wide."""

    def __init__(self, *words: str, columns: int = 80, **environment: str) -> None:
        self.words, self.environment = words, {"COLUMNS": str(columns), **environment}

    def __call__(self, *argv: str, **environment: str) -> Ran:
        ran = CliRunner(env={**self.environment, **environment}).invoke(app, [*self.words, *argv], prog_name="txcalc")
        return Ran(ran.exit_code, ran.stdout, ran.stderr)

    def data(self, *argv: str, code: int = 0) -> Any:
        """Its JSON; exit code 1 where the answer is no."""
        ran = self(*argv, "--json")
        assert ran.exit_code == code, ran.stderr
        return json.loads(ran.stdout)

    def both(self, *argv: str, code: int = 0) -> tuple[Any, str]:
        """Its JSON and what it prints, of one answer."""
        answers: list[Any] = []

        def keep(answer: Any, *how: Any) -> None:
            answers.append(answer)
            print_answer(answer, *how)

        with patch("txcalc.cli.build.print_answer", keep):
            ran = self(*argv)
        assert ran.exit_code == code, ran.stderr
        return json.loads(answers[0].to_json()), ran.stdout


typed = Command(columns=100)  # whatever is typed
