"""A command: its help in sections, earlier names of its options, inline descriptions, refusals with an example."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand

from txcalc.cli.output import fitted
from txcalc.questions.options import GROUPS

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
    renamed: Mapping[str, str] = {}  # earlier names of options

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
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{group: [] for group in GROUPS}}
        for param in self.get_params(ctx):
            group = self.groups.get(param.opts[0], "Output")
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
