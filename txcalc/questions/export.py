"""`export`: a model as a preset or a config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from txcalc.errors import Fault, InputError
from txcalc.questions import options as o
from txcalc.questions.answers import Answer
from txcalc.sources import load
from txcalc.sources.files import write


class Export(Answer):
    """The text of an exported description, and notes on what it cannot express."""

    text: str
    notes: tuple[str, ...]


@o.Question("txcalc export llama-3.1-8b --to config.json", takes=("--set", "--ignore"), formats=False)
def export(
    source: o.SourceArgument,
    to: Annotated[Literal["toml", "config.json"], o.Option("A preset, or a Hugging Face config.")],
    file: Annotated[str | Path | None, o.Argument("The file; default: standard output.", "FILE")] = None,
    *,
    force: Annotated[bool, o.FORCE] = False,
    changes: Mapping[str, object] | None = None,
    ignore: Sequence[str] = (),
) -> Export:
    """Write a model as a preset or a config.json that txcalc reads with the same results.

    Errors: `InputError`, also for a file that exists (unless `force`) and for a model that no config.json describes;
    `UnknownName`, `MissingExtra`.

    >>> import txcalc
    >>> txcalc.export("gpt2", "config.json").text[:21]
    '{\\n  "model_type": "gp'
    """
    from txcalc.sources.export import to_config, to_toml

    if to not in ("toml", "config.json"):
        raise InputError("export", [Fault("--to", to, "toml or config.json")])
    model = load(source, changes, ignore=ignore)
    if to == "toml":
        answer = Export(to_toml(model), ())
    else:
        config, notes = to_config(model)
        answer = Export(json.dumps(config, indent=2, allow_nan=False) + "\n", tuple(notes))
    if file is not None:
        write(Path(file), answer.text, force)
    return answer
