"""Docstrings as the site shows them: `>>>` becomes an example, a list of aligned names a table, and a command gets a
table of its keywords, each with the sentence of its option."""

import re
from importlib import import_module
from typing import Any

import griffe

ALIGNED = re.compile(r"(?:^\w[\w, .|*]*? {2,}\S.*\n?(?:^ {4,}\S.*\n?)*){2,}", re.MULTILINE)
EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


class Docstrings(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None:
            return
        text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```", obj.docstring.value)
        text = re.sub(r"(?<!\n)\n(?=Errors: )", "\n\n", text)
        text = re.sub(r"(?<=\. )(Errors): ", r"\n\n**\1:** ", text)
        text = re.sub(r"^(Errors|In Python|Exit code 1|Source): *", r"**\1:** ", text, flags=re.MULTILINE)
        text = ALIGNED.sub(lambda found: table("name", re.sub(r"\n {4,}", " ", found[0])), text)
        if obj.is_function and re.fullmatch(r"txcalc\.questions\.(\w+)\.\1", obj.path):
            text += keywords(obj)
        obj.docstring.value = text


def table(heading: str, lines: str) -> str:
    rows = [re.split(r" {2,}", line.replace("|", "\\|"), maxsplit=1) for line in lines.strip().splitlines()]
    cells = "\n".join(f"| {name if ',' in name else f'`{name}`'} | {meaning} |" for name, meaning in rows)
    return f"\n| {heading} | meaning |\n| --- | --- |\n{cells}\n"


def keywords(obj: griffe.Object) -> str:
    """The arguments that `help()` lists too."""
    from txcalc.questions.arguments import documentation

    function = getattr(import_module(obj.module.path), obj.name)
    _, found, lines = documentation(function).partition("\nArguments:\n")
    return f"\n\n{table('argument', re.sub(r'^ {4}', '', lines, flags=re.MULTILINE))}" if found else ""
