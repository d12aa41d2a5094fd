"""A command: its help in sections, earlier names of its options, inline descriptions, refusals with an example."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand

from txcalc.cli.output import wrap_stderr
from txcalc.errors import InputError
from txcalc.questions.options import GROUPS
from txcalc.render import FORMATS

UsageError: Any = typer.BadParameter.__base__  # of whichever click typer has
NoSuchOption: Any = sys.modules[UsageError.__module__].NoSuchOption
# Options that a user may mean by one that the command lacks.
SUGGESTIONS = {
    "--tokens": ("--context", "--prompt", "--answer"),
    "--context": ("--tokens", "--past"),
    "--batch": ("--concurrency", "--micro-batch", "--global-batch"),
    "--concurrency": ("--batch", "--global-batch"),
    "--weights": ("--dtype",),
    "--dtype": ("--weights", "--kv"),
    "--out": ("--plot", "--format"),
    "--gpus": ("--gpu",),
    "--budget": ("--compute", "--memory"),
    "--qlora": ("--lora",),
    "--format": ("--to",),
    "--batch-size": ("--batch", "--concurrency", "--global-batch"),
    **dict.fromkeys(("--context-length", "--seq-len", "--max-model-len"), ("--context", "--tokens")),
    **dict.fromkeys(("--quant", "--quantization", "--precision"), ("--weights", "--dtype")),
    **dict.fromkeys((f"--{name}" for name in FORMATS), ("--format",)),
    "--layout": ("--tp", "--pp", "--dp", "--ep"),
    **{f"--{name}-parallel-size": (f"--{name[0]}p", "--layout") for name in ("tensor", "pipeline", "data")},
}
_spelling: dict[str, str] = {}  # options as the user spelled them


class Command(TyperCommand):
    """A command whose help groups options, as wide as the terminal, and that reads former names of options.

    `-h` lists the options that people use first, where there are more; `--help` lists all.
    """

    groups: Mapping[str, str] = {}  # section of each option
    renamed: Mapping[str, str] = {}  # earlier names of options
    first: tuple[str, ...] = ()  # options that people use first

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flags = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        _spelling.clear()
        ctx.meta["short"] = bool(self.first) and "-h" in args
        try:
            args = self._join_descriptions([self._present_name(arg, flags) for arg in args])
            self._check_repeats(ctx, args)
            return super().parse_args(ctx, args)
        except UsageError as error:
            example = (self.help or "").partition("Example: ")[2].strip()
            message = " ".join(error.format_message().split())
            if not example or "Example: " in message:
                raise
            if self.name in ("show", "kv") and "unexpected extra argument" in message:
                message = f"{message.rstrip('.')}: compare shows models side by side"
            if re.search(r"'--format': '\w*\d", message) and "--weights" in flags:
                message = f"{message} --weights is the format of the weights."
            typed = error.option_name if isinstance(error, NoSuchOption) else ""
            candidates = SUGGESTIONS.get(typed) or SUGGESTIONS.get(self.renamed.get(typed, ""), ())
            if suggestions := [flag for flag in candidates if flag in flags]:
                message = f"No such option: {typed} ({self.name} has {' and '.join(suggestions)})"
            if typed == "--via":
                message = f"No such option: --via ({self.name} needs formulas; show, kv and fit take it)"
            if typed:
                raise InputError(self.name or "", [f"{message}; txcalc {self.name} --help lists them"]) from None
            text = wrap_stderr("Error: ", f"{message}\nExample: {example}").removeprefix("Error: ")
            raise UsageError(text, ctx) from None

    def _check_repeats(self, ctx: Any, args: list[str]) -> None:
        """Errors: `InputError` for an option of one value that is given twice."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param in order:
            single = param.param_type_name == "option" and not (param.multiple or getattr(param, "is_flag", False))
            if single and order.count(param) > 1 and not ctx.resilient_parsing:
                raise InputError(param.opts[0], ["is given twice"])

    def _join_descriptions(self, args: list[str]) -> list[str]:
        """Joins unquoted inline descriptions (`D=512 h=8 plain`); a repeated size begins the next one."""
        from txcalc.sources.inline import WORDS

        switches = {
            name
            for param in self.params
            if getattr(param, "is_flag", False)
            for name in (*param.opts, *param.secondary_opts)
        }
        words: list[str] = []
        sizes: set[str] = set()  # of the description so far
        expects_value = False  # of the option before
        for arg in args:
            size = None if expects_value else re.match(r"([A-Za-z_]\w*)=[^\s=]+$", arg)
            continues = size[1] not in sizes if size else arg in WORDS
            if sizes and continues and not expects_value:
                words[-1] += f" {arg}"
            else:
                words.append(arg)
                sizes = set()
            if size:
                sizes.add(size[1])
            expects_value = arg.startswith("-") and "=" not in arg and arg not in {*switches, "-"}
        return words

    def _present_name(self, arg: str, flags: set[str]) -> str:
        """An option by its present name, if it is typed by an earlier one."""
        name, equals, value = arg.partition("=")
        new = self.renamed.get(name)
        if name in flags or new not in flags:
            return arg
        _spelling[new] = name
        return f"{new}{equals}{value}"

    def format_options(self, ctx: Any, formatter: Any) -> None:
        titles = {group: f"Advanced, {group.lower()}" if self.first else group for group in GROUPS}
        names = ["Arguments", "Options", *titles.values()]
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in names}
        params = self.get_params(ctx)
        for param in sorted(params, key=lambda param: (*self.first, param.opts[0]).index(param.opts[0])):
            name = param.opts[0]
            group = "Options" if name in self.first else titles[self.groups.get(name, "Output")]
            if record := param.get_help_record(ctx):
                unbroken = record[1].replace("[default: ", "[default:\xa0")  # which no line breaks
                sections["Arguments" if param.param_type_name == "argument" else group].append((record[0], unbroken))
        if ctx.meta.get("short"):
            advanced = sum(map(len, sections.values())) - len(sections["Arguments"]) - len(sections["Options"])
            topics = ", ".join(group.lower() for group, title in titles.items() if sections[title])
            sections = {name: sections[name] for name in ("Arguments", "Options")}
        for group, records in sections.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)
        if ctx.meta.get("short"):
            with formatter.section("Advanced"):
                formatter.write_text(f"txcalc {self.name} --help lists {advanced} more: {topics}")
        formatter.buffer[:] = [text.replace("\xa0", " ") for text in formatter.buffer]


def user_spelling(text: str) -> str:
    """A message with options as the user spelled them."""
    return re.sub(r"--[\w-]+", lambda flag: _spelling.get(flag[0], flag[0]), text)
