"""A command: its options, its output, its help and its refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typer.main import get_command

from txcalc import COMMANDS
from txcalc.cli import options as o
from txcalc.cli.output import fitted, printed, progress
from txcalc.questions.arguments import hint_of

UsageError: Any = typer.BadParameter.__base__  # of whichever click typer has
# Options that a user may mean by one that the command lacks.
INSTEAD = {
    "--tokens": ("--context", "--prompt", "--answer"),
    "--context": ("--tokens", "--past"),
    "--batch": ("--concurrency", "--micro-batch", "--global-batch"),
    "--concurrency": ("--batch", "--global-batch"),
    "--weights": ("--dtype",),
    "--dtype": ("--weights", "--kv"),
    "--out": ("--plot", "--format"),
    "--gpus": ("--gpu",),
    "--batch-size": ("--batch", "--concurrency", "--global-batch"),
    **dict.fromkeys(("--context-length", "--seq-len", "--max-model-len"), ("--context", "--tokens")),
    **dict.fromkeys(("--quantization", "--precision"), ("--weights", "--dtype")),
    **{f"--{name}-parallel-size": (f"--{name[0]}p", "--layout") for name in ("tensor", "pipeline", "data")},
}
_spelt: dict[str, str] = {}  # options as the user spelled them
LENGTHS_BY_CONTEXT = ("kv", "compare")  # their --tokens means --context


class Command(TyperCommand):
    """A command whose help groups options, as wide as the terminal, and that reads former names of options."""

    groups: Mapping[str, str] = {}  # section of each option
    renamed: Mapping[str, str] = o.RENAMED

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        _spelt.clear()
        try:
            return super().parse_args(ctx, self._whole([self._now(arg, known) for arg in args]))
        except UsageError as error:
            example = (self.help or "").partition("Example: ")[2].strip()
            said = " ".join(error.format_message().split())
            if not example or "Example: " in said:
                raise
            if self.name == "show" and "unexpected extra argument" in said:
                said = f"{said.rstrip('.')}: compare shows models side by side"
            asked = getattr(error, "option_name", "")  # of click's NoSuchOption
            meant = INSTEAD.get(asked) or INSTEAD.get(self.renamed.get(asked, ""), ())
            if instead := [other for other in meant if other in known]:
                said = f"No such option: {asked} ({self.name} has {' and '.join(instead)})"
            raise UsageError(fitted("Error: ", f"{said}\nExample: {example}").removeprefix("Error: "), ctx) from None

    def _whole(self, args: list[str]) -> list[str]:
        """Joins unquoted inline descriptions (`D=512 h=8 plain`); a repeated size begins the next one."""
        from txcalc.sources.inline import WORDS

        alone = {
            name
            for param in self.params
            if getattr(param, "is_flag", False)
            for name in (*param.opts, *param.secondary_opts)
        }
        found: list[str] = []
        inside: set[str] = set()  # the sizes of the description so far
        free = True  # no option waits for its value
        for arg in args:
            size = re.match(r"([A-Za-z_]\w*)=[^\s=]+$", arg) if free else None
            goes_on = size[1] not in inside if size else arg in WORDS
            if inside and free and goes_on:
                found[-1] += f" {arg}"
            else:
                found.append(arg)
                inside = set()
            if size:
                inside.add(size[1])
            free = not arg.startswith("-") or "=" in arg or arg in {*alone, "-"}
        return found

    def _now(self, arg: str, known: set[str]) -> str:
        name, equals, value = arg.partition("=")
        new = self.renamed.get(name)
        if name in known or new not in known or (name == "--tokens" and self.name not in LENGTHS_BY_CONTEXT):
            return arg
        _spelt[new] = name
        return f"{new}{equals}{value}"

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{group: [] for group in o.GROUPS}}
        for param in self.get_params(ctx):
            group = self.groups.get(param.opts[0]) or o.TABLE.get(param.opts[0], o.OTHER).group
            if record := param.get_help_record(ctx):
                whole = record[1].replace("[default: ", "[default:\xa0")  # which no line breaks
                groups["Arguments" if param.param_type_name == "argument" else group].append((record[0], whole))
        for group, records in groups.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)
        formatter.buffer[:] = [text.replace("\xa0", " ") for text in formatter.buffer]


def spelt(text: str) -> str:
    """A message with options as the user spelled them."""
    return re.sub(r"--[\w-]+", lambda found: _spelt.get(found[0], found[0]), text)


# Options of every command whose library function has the keyword; types and defaults are the function's.
EVERYWHERE: dict[str, Any] = {
    "batch": o.length("--batch"),
    "tokens": o.length("--tokens"),
    "past": o.length("--past"),
    "source_length": o.length("--source-tokens", "Default: as many as tokens."),
    "dtype": o.option("--dtype"),
    "kv_dtype": o.option("--kv"),
    "kv": o.option("--kv"),
    "weights": o.option("--weights"),
    "attention": o.option("--attention"),
    "logits": o.option("--logits"),
    "mla": o.option("--mla"),
    "memory": o.option("--memory"),
    "block": o.length("--block"),
    "engine": o.option("--engine"),
    "reserve": o.option("--reserve", "Default: the engine's own, or 10%."),
    "ram": o.option("--ram"),
    "node": o.option("--node"),
    "network": o.option("--network"),
    "recompute": o.option("--recompute"),
    "optimizer": o.option("--optimizer"),
    "text_only": o.option("--text-only"),
}


Tell = Callable[[str, float], None]  # progress: the current step and the share done


class Printing(NamedTuple):
    """The output format, and the file of a plot."""

    form: o.FormatName
    place: str | None


def command(
    drawn: bool = False, formats: bool = True, cls: type[Command] = Command, **declared: Any
) -> Callable[[Callable[..., Any]], Callable[[], Any]]:
    """A command named after its function. What the function returns, a report or a result, is printed; `failed` is exit
    code 1; None: it has printed.

    Its options are the function's own parameters; keywords of the library's function of the same name with their
    defaults, those `declared` here and those of `EVERYWHERE`, passed as `**asked`; `--plot` if `drawn`, and the
    `formats`. A parameter `printing` receives the format, `tell` a progress callback. Built when first called.
    """

    def made(asking: Callable[..., Any]) -> Callable[[], Any]:
        @cache
        def built() -> Any:
            name, own = asking.__name__, signature(asking).parameters
            said = _said(name, asking, declared, formats, drawn)

            def run(**values: Any) -> None:
                form = o.chosen(values.pop("format_"), values.pop("json_")) if formats else "table"
                over = values.get("force") if "force" in own else values.pop("force", None)
                place = o.plotted(values.pop("plot"), form, bool(over and not values.get("out"))) if drawn else None
                values = {key: value for key, value in values.items() if value != []}  # which nobody repeated
                if "printing" in own:
                    values["printing"] = Printing(form, place)
                with progress() if "tell" in own else nullcontext() as tell:
                    found = asking(**values, **({"tell": tell} if "tell" in own else {}))
                printed(found, form, place)

            vars(run)["__signature__"], run.__annotations__, run.__doc__ = Signature(said), {}, asking.__doc__
            app = typer.Typer(rich_markup_mode=None, add_completion=False)
            app.command(name, cls=cls)(run)
            return get_command(app)

        return built

    return made


def _said(
    name: str, asking: Callable[..., Any], declared: dict[str, Any], formats: bool, drawn: bool
) -> list[Parameter]:
    """The parameters of a command: its own, the library's after the positional ones, format and plot."""
    answers = getattr(import_module(f"txcalc.questions.{COMMANDS[name]}"), name)
    theirs, known = signature(answers).parameters, {**EVERYWHERE, **declared}
    assert declared.keys() <= theirs.keys(), declared.keys() - theirs.keys()
    hints = get_type_hints(asking, include_extras=True)
    own = {
        key: one.replace(annotation=hints[key])
        for key, one in signature(asking).parameters.items()
        if key not in ("printing", "tell") and one.kind is not Parameter.VAR_KEYWORD
    }
    asked = [
        (key, _typed(known[key], key, hint_of(answers, key), one.default), one.default)
        for key, one in theirs.items()
        if key in known and key not in own
    ]
    last = [("format_", o.Format, "table"), ("json_", o.Json, False)] if formats else []
    last += [("plot", o.Plot, None)] if drawn else []
    last += [("force", o.Force, False)] if drawn and "force" not in own else []
    asked_, last_ = (
        [Parameter(key, Parameter.KEYWORD_ONLY, default=default, annotation=hint) for key, hint, default in more]
        for more in (asked, last)
    )
    before = [one for one in own.values() if one.kind is not Parameter.KEYWORD_ONLY]
    return [*before, *asked_, *[one for one in own.values() if one not in before], *last_]


def _typed(option: Any, key: str, hint: Any, default: Any) -> Any:
    """An option with its type: that of the library's annotation; text wherever that takes text; a whole number if the
    option parses one."""
    if get_origin(option) is Annotated:
        return option
    if hint is bool and option.default is ...:
        option.param_decls = (f"--{key.replace('_', '-')}",)  # no --no- beside it
    if option.parser or str in get_args(hint) or hint is str:
        kind = int if option.parser else str
        hint = kind if default is not None else kind | None
    return Annotated[hint, option]
