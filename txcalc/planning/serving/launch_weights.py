"""The weights that an engine's command names: the checkpoint as published, converted while it is loaded, or a variable
that the user has to set.

A variable is written as `"${CHECKPOINT:?which one}"`: unless it is set, a shell prints which checkpoint it needs and
does not run the command.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from msgspec.structs import replace

from txcalc.errors import InputError
from txcalc.model import Model
from txcalc.planning.formats.names import NATIVE, weights_of
from txcalc.planning.formats.weights import Format
from txcalc.planning.serving.deployment import Plan, Planner

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Kinds of checkpoints by format.
KINDS = {
    "fp8": "an FP8",
    "fp8-block": "an FP8 (blocks of 128x128)",
    "int8": "an INT8",
    "int4": "an AWQ or GPTQ (4 bits, groups of 128)",
    "int4-g64": "an AWQ or GPTQ (4 bits, groups of 64)",
    "int4-g32": "an AWQ or GPTQ (4 bits, groups of 32)",
    "nf4": "a bitsandbytes NF4",
    "mxfp4": "an MXFP4",
    "nvfp4": "an NVFP4",
}


class CommandWeights(NamedTuple):
    """Weights in a command: the checkpoint as a shell reads it, the dtype or quantisation to which it is converted on
    loading ("": none), and a comment on what the user has to do."""

    checkpoint: str
    dtype: str = ""
    quantization: str = ""
    comment: str = ""


def weights_of_plan(plan: Plan, online: bool, streams: bool) -> CommandWeights:
    """The weights of a plan for an engine that loads checkpoints of the hub. `online`: it quantises to FP8 while it
    loads; `streams`: it does so layer by layer, without memory for all weights as published."""
    model, engine = plan.planner.model, plan.planner.engine
    published = published_format(model)
    repository = repository_of(model)
    same = engine.weights_name == NATIVE or (published is not None and engine.weights.name == published.name)
    if same:
        dtype = "float32" if published and published.name == "fp32" else ""  # else engines load them in 16 bits
        return (CommandWeights(repository) if repository else _missing(model, "a"))._replace(dtype=dtype)
    if repository and published and published.name in DTYPES:
        if engine.weights.name in DTYPES:
            return CommandWeights(repository, dtype=DTYPES[engine.weights.name])
        if engine.weights.name == "fp8" and online and (streams or _loads_wide(plan, published)):
            return CommandWeights(repository, quantization="fp8")
    quantiser = {"AWQ": "an AWQ", "GPTQ": "a GPTQ"}.get(engine.weights_name.strip().upper())
    kind = quantiser or KINDS.get(engine.weights.name, f"a {engine.weights.name}")
    return _missing(model, kind, published)


def published_format(model: Model) -> Format | None:
    """The format of the weights as published; None: it is not known."""
    try:
        return weights_of(model, NATIVE)
    except InputError:
        return None


def repository_of(model: Model) -> str:
    """The hub repository of a model's weights, quoted for a shell; "" if its description names none or was changed."""
    source = str(model.description.source)
    match = re.search(r"(?:huggingface\.co/|hf:)([\w.-]+/[\w.-]+)|([\w.-]+/[\w.-]+) config\.json", source)
    return shlex.quote(match[1] or match[2]) if match and not model.changed else ""


def to_fill_in(variable: str, text: str) -> str:
    """A variable; unless it is set, a shell prints the text and refuses to run the command."""
    return f'"${{{variable}:?{_plain(text)}}}"'


def name_of(model: Model) -> str:
    """The model's repository or name, without characters that a shell interprets."""
    return _plain(repository_of(model) or model.name + (" (as changed)" if model.changed else ""))


def _plain(text: str) -> str:
    return re.sub(r"[^\w./:,=()+ -]", "_", text, flags=re.ASCII)


def _missing(model: Model, kind: str, published: Format | None = None) -> CommandWeights:
    text = f"{kind} checkpoint of {name_of(model)}"
    published_as = f", which is published in {published.name}" if published and not model.changed else ""
    return CommandWeights(
        to_fill_in("CHECKPOINT", text), comment=f"set CHECKPOINT to {_plain(text)}{_plain(published_as)}"
    )


def _loads_wide(plan: Plan, published: Format) -> bool:
    """Whether each GPU of the layout holds its share of the weights as published."""
    planner = plan.planner
    config = replace(planner.engine, weights=published, weights_name=NATIVE)
    ranks = Planner(planner.model, planner.accelerator, config).ranks(plan.best.layout)
    return all(rank.weights_bytes <= planner.available for rank in ranks)
