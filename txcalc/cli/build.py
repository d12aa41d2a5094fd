"""Builds the command of a question from its declaration: arguments, options, help, defaults, completion.

A command line that does more than call the function (`deploy --emit`, `show --via`) has an adapter in
`txcalc.cli.adapters`, whose own keywords are further options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from inspect import Parameter, Signature, cleandoc, signature
from types import NoneType
from typing import Annotated, Any, Literal, get_args

import typer
from typer.main import get_command

from txcalc.cli import completion, options
from txcalc.cli.adapters import ADAPTERS, Call, ShowCommand, function_of, question_of
from txcalc.cli.command import Command
from txcalc.cli.output import print_answer, progress
from txcalc.questions import options as o
from txcalc.questions.phrases import parse_adapters, parse_changes


@cache
def build(name: str) -> Any:
    """The command of a question."""
    function, question = function_of(name), question_of(name)
    adapter = ADAPTERS.get(name)
    adapted = o.keywords(adapter) if adapter else ()
    printing = [keyword for keyword in adapted if _order(keyword) == 4 and section_of(keyword) == "Output"]
    extra_options = [keyword for keyword in adapted if keyword not in printing]
    declared = sorted([*extra_options, *o.keywords(function), *_taken(question)], key=_order) + printing
    writes = any(keyword.name == "force" for keyword in declared)  # not a plot alone
    declared += _output_options(question, force=not writes)
    models = [
        keyword.name
        for keyword in declared
        if isinstance(keyword.option, o.Argument) and keyword.option.completes == MODELS
    ]
    repeated = {keyword.name for keyword in declared if isinstance(keyword.option, o.Option) and keyword.option.repeats}

    def run(**values: Any) -> None:
        form = options.chosen(values.pop("format_", "table"), values.pop("json_", False))
        force = values.get("force") if writes else values.pop("force", None)
        plots_over = bool(force and not values.get("out"))
        selection = options.chosen_rows(values.pop("rows", None), values.pop("digits", None), form)
        styled = {key: values.pop(key, None) for key in ("panel", "size", "font")}
        plot = options.plot_request(values.pop("plot"), form, plots_over, **styled) if question.draws else None
        values = {key: value for key, value in values.items() if value or key not in repeated}
        model_options = {flag: values.pop(key) for flag, key in TAKEN.items() if flag in question.takes}
        changes = parse_changes(model_options.get("--set")) | parse_adapters(model_options.get("--lora"))[0]
        if "changes" in values:
            values["changes"] = parse_changes(values["changes"])
        typed = [values.pop(key) for key in models if key in values]
        sources = [item for value in typed if value is not None for item in _items(value)]
        extra = {keyword.name: values.pop(keyword.name) for keyword in adapted if keyword.name in values}
        with progress() if "tell" in signature(function).parameters else nullcontext() as tell:
            arguments = values | ({"tell": tell} if tell else {})
            call = Call(name, sources, arguments, changes, model_options.get("--ignore"), form, plot)
            answer = adapter(call, **extra) if adapter else call.ask()
        print_answer(answer, form, plot, selection)

    vars(run)["__signature__"] = Signature([_parameter(keyword) for keyword in declared])
    paragraphs = [help_of(function), *question.examples, f"Example: {question.example}"]
    run.__annotations__, run.__doc__ = {}, "\n\n".join(paragraphs)
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(name, cls=_class(declared, ShowCommand if name == "show" else Command, question.first))(run)
    return get_command(app)


MODELS = "source"  # the completion of arguments that are models


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _order(keyword: o.Keyword) -> int:
    """The order in the help: arguments; options that are positional, required, or in a group about the model; options
    that change the model; the others."""
    if isinstance(keyword.option, o.Argument):
        return 0
    first = keyword.positional or keyword.default is Parameter.empty
    if first or (keyword.group and section_of(keyword) == "Model"):
        return 1
    return 2 if keyword.name in ("set_", "changes") else 3 if keyword.name in TAKEN.values() else 4


TAKEN = {"--set": "set_", "--lora": "lora", "--ignore": "ignore"}  # options that change a model, and their keywords


def _taken(question: o.Question) -> list[o.Keyword]:
    """The options that change a model while it is read."""
    keywords = {
        "--set": o.Keyword("set_", o.SET.with_help("Repeatable."), list[str] | None, None),
        "--lora": o.Keyword("lora", o.LORA, str | None, None),
        "--ignore": o.Keyword("ignore", o.IGNORE.with_help("Repeatable."), list[str] | None, None),
    }
    return [keywords[flag] for flag in question.takes]


def _output_options(question: o.Question, force: bool) -> list[o.Keyword]:
    """The options of what is printed: format and plot, and with `force` that an existing file is overwritten."""
    if not question.formats:
        return []
    formats = Literal[options.FORMAT_NAMES]  # type: ignore[valid-type]
    keywords = [o.Keyword("format_", o.FORMAT, formats, "table"), o.Keyword("json_", o.JSON, bool, False)]
    keywords += [o.Keyword("rows", o.ROWS, str | None, None), o.Keyword("digits", o.DIGITS, int | None, None)]
    if question.draws:
        keywords.append(o.Keyword("plot", o.PLOT, str | None, None))
        keywords.append(o.Keyword("panel", o.PANEL, str | None, None))
        keywords.append(o.Keyword("size", o.SIZE, str | None, None))
        keywords.append(o.Keyword("font", o.FONT, float | None, None))
        keywords += [o.Keyword("force", o.FORCE, bool, False)] if force else []
    return keywords


PYTHON = ("In Python:", "Errors:", ">>>")  # paragraphs of a docstring that the help leaves out


def help_of(function: Callable[..., Any]) -> str:
    """The help: a docstring up to what concerns Python alone."""
    paragraphs = cleandoc(function.__doc__ or "").split("\n\n")
    end = next((i for i, paragraph in enumerate(paragraphs) if paragraph.startswith(PYTHON)), len(paragraphs))
    return "\n\n".join(paragraphs[:end])


def section_of(keyword: o.Keyword) -> str:
    """The section of an option in the help."""
    return keyword.option.group if isinstance(keyword.option, o.Option) else ""


def flag_of(keyword: o.Keyword) -> str:
    """The flag of an option."""
    option = keyword.option
    assert isinstance(option, o.Option)
    return option.flag or f"--{keyword.name.rstrip('_').replace('_', '-')}"


def _class(declared: Sequence[o.Keyword], base: type[Command], first: tuple[str, ...]) -> type[Command]:
    """A command class that knows the groups of the options, their earlier names, and those to list first."""
    flags = [(flag_of(keyword), keyword.option) for keyword in declared if isinstance(keyword.option, o.Option)]
    groups = {flag.partition("/")[0]: option.group for flag, option in flags} | {"--help": "Output"}
    renamed = {alias: flag for flag, option in flags for alias in option.aliases if alias.startswith("-")}
    return type("QuestionCommand", (base,), {"groups": groups, "renamed": renamed, "first": first})


def _parameter(keyword: o.Keyword) -> Parameter:
    """A parameter of the command's function, as typer reads it."""
    option, default = keyword.option, keyword.default
    complete = getattr(completion, option.completes) if option.completes else None
    several = keyword.name == "sources" or (isinstance(option, o.Option) and option.repeats)
    kind = _kind(keyword, several)
    info: Any
    if isinstance(option, o.Argument):
        info = typer.Argument(help=option.help, metavar=option.value, autocompletion=complete)
        optional = option.optional or default is not Parameter.empty
        default = None if option.optional else default
    else:
        flag, optional = flag_of(keyword), True
        flags = [f"{flag}/--no-{flag[2:]}" if default is True else flag]
        parser = _parser(option.parse, flag) if option.parse else None
        if isinstance(default, tuple | list):
            default = None if not default else list(default) if several else ",".join(map(str, default))
        info = typer.Option(*flags, help=option.help, metavar=option.value, autocompletion=complete, parser=parser)
        info.show_default = "/" not in flag
    if optional and default is None and kind is not bool and NoneType not in get_args(kind):
        kind = kind | None
    positional = Parameter.POSITIONAL_OR_KEYWORD if isinstance(option, o.Argument) else Parameter.KEYWORD_ONLY
    return Parameter(keyword.name, positional, default=default, annotation=Annotated[kind, info])


def _kind(keyword: o.Keyword, several: bool) -> Any:
    """The type that typer reads: texts wherever the library takes a text, unless the option parses a number."""
    if several:
        return list[str]
    if isinstance(keyword.option, o.Option) and keyword.option.parse:
        return int
    hint = keyword.hint
    return str if hint is Any or hint is str or str in get_args(hint) else hint


def _parser(parse: Callable[..., int], flag: str) -> Callable[[Any], int]:
    return lambda value: value if isinstance(value, int) else parse(value, flag)
