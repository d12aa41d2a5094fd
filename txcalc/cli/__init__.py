"""The command line: argv → call → print → exit code. Only `cli` prints or exits.

Commands are imported when called, so that none pays for another's imports. `Commands.invoke` alone turns an error into
a line on stderr and an exit code: 0 done, 1 refuted, 2 bad input, 3 a component is missing, 130 Ctrl-C.
"""

from __future__ import annotations

import codecs
import gc
import os
import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from txcalc import COMMANDS
from txcalc.cli.command import UsageError, user_spelling
from txcalc.cli.output import wrap_stderr
from txcalc.errors import TxcalcError, nearest

# Names that people try.
ALIASES = {
    **dict.fromkeys(("list", "ls", "models"), "presets"), "gpus": "presets --hardware", "version": "--version",
    "help": "-h", "explain": "formula", "params": "show", "flops": "show", "memory": "deploy", "serve": "deploy",
    "cost": "deploy", "plot": "show MODEL --plot -",
}  # fmt: skip
# Replacements where standard output lacks a character.
PLAIN = {
    "×": "x", "·": "*", "…": "...", "–": "-", "—": "-", "─": "-", "≥": ">=", "≤": "<=", "→": "->", "²": "^2", "³": "^3",
    "µ": "u", "√": "sqrt", "≈": "~", "Σ": "sum", "⌈": "ceil(", "⌉": ")", "−": "-", "∞": "inf",
}  # fmt: skip


def _escape_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Spells characters that an encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    signs = error.object[error.start : error.end]
    return "".join(PLAIN.get(sign, f"\\u{ord(sign):04x}") for sign in signs), error.end


def _mute() -> None:
    """Discards unwritten output, so that Python's flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Commands(TyperGroup):
    """A group whose commands are imported when used."""

    def list_commands(self, ctx: object) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        from txcalc.cli.build import build

        return build(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from txcalc.sources.presets import names

            like = [] if name in names() else [name] if name in ALIASES else nearest(name, [*COMMANDS, *ALIASES])
            mend = " or ".join(dict.fromkeys(ALIASES.get(command, command) for command in like)) or f"show {name}"
            raise UsageError(f"No such command {name!r} (did you mean txcalc {mend}?)", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: object, formatter: Any) -> None:
        """Every command with the first sentence of its help."""
        helps = {name: " ".join(self.get_command(ctx, name).help.split()) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, text.partition(". ")[0].rstrip(".") + ".") for name, text in helps.items()])

    def invoke(self, ctx: Any) -> object:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except TxcalcError as error:
            typer.echo(wrap_stderr("txcalc: ", user_spelling(str(error))), err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            _mute()
            raise typer.Exit(0) from None
        except OSError as error:
            _mute()
            typer.echo(f"txcalc: the result cannot be written: {(error.strerror or str(error)).lower()}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 1000},  # as wide as the terminal
    rich_markup_mode=None,
)


def _version(requested: bool) -> None:
    if requested:
        from txcalc import __version__

        typer.echo(f"txcalc {__version__}")
        raise typer.Exit


BIBTEX = """@software{{txcalc,
  title   = {{txcalc: parameters, memory and FLOPs of Transformers, with proofs}},
  author  = {{{{The txcalc authors}}}},
  version = {{{version}}},
  year    = {{{year}}},
}}"""


def _cite(requested: bool) -> None:
    if requested:
        from txcalc import __released__, __version__

        typer.echo(BIBTEX.format(version=__version__, year=__released__[:4]))
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    cite: Annotated[
        bool, typer.Option("--cite", callback=_cite, is_eager=True, help="Print a BibTeX entry and exit.")
    ] = False,
) -> None:
    """What a Transformer costs: parameters, memory and FLOPs as formulas and exact integers, each with how it is known.

    Example: txcalc show llama-3.1-8b --tokens 2k
    """


def entry() -> None:
    """The `txcalc` command."""
    if sys.stdout is None:
        typer.echo("txcalc: standard output is closed", err=True)
        sys.exit(2)
    codecs.register_error("txcalc", _escape_unencodable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "backslashreplace", "surrogateescape"):
            stream.reconfigure(errors="txcalc")
    os.environ.setdefault("SYMPY_CACHE_SIZE", "10000")  # with SymPy's 1,000 entries `prove` is a tenth slower
    try:
        app(prog_name="txcalc")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()  # else the interpreter's last collection takes a third of the time of `show`
