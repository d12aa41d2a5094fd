"""A model from a Python object: a description or a config as a dict, a config object or a module of transformers.

Neither torch nor transformers is imported: a program that passes their objects has imported them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txcalc.errors import Fault, InputError, quote
from txcalc.parts.options import Table
from txcalc.sources import huggingface
from txcalc.sources.spec import SECTIONS, scalar

KINDS = (
    "a name, a path, a dict (a description, or a config.json with its model_type), a config object of "
    "transformers, a module of PyTorch, or a txcalc model"
)


def is_config(value: Mapping[Any, Any]) -> bool:
    """Whether a dict is the content of a config.json: it has a model type or a class, and no table of a description."""
    stacks = [value, *(value[key] for key in ("encoder", "decoder") if isinstance(value.get(key), Mapping))]
    tables = {key for stack in stacks for key, inner in stack.items() if isinstance(inner, Mapping)}
    return not tables & {*SECTIONS} and ("model_type" in value or "architectures" in value)


def plain(value: object, where: str, depth: int = 0) -> Any:
    """A dict as JSON or TOML has it. Errors: `InputError` for keys that are not texts, and for too deep nesting."""
    if depth > 60:
        raise InputError(where, ["is nested too deep"])
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str | int)]:
            raise InputError(where, [f"has the key {quote(key)}, expected a text" for key in wrong])
        return {str(key): plain(inner, where, depth + 1) for key, inner in value.items()}  # JSON writes 0 as "0"
    return [plain(inner, where, depth + 1) for inner in value] if isinstance(value, list | tuple) else scalar(value)


def made_by(value: object, library: str) -> bool:
    """Whether the class of an object, or a base class, comes from a library."""
    return any(cls.__module__.split(".")[0] == library for cls in type(value).__mro__)


def config(value: Any, ignore: Sequence[str] = (), cls: str = "") -> huggingface.Description:
    """The description in a config object of transformers; `cls` is the class of its module, if any."""
    data = json.loads(value.to_json_string(use_diff=False))
    if cls:
        data["architectures"] = [cls]
    elif data.get("architectures") is None:
        data.pop("architectures", None)
    name = str(data.pop("_name_or_path", "") or "").rstrip("/").rpartition("/")[2]
    return huggingface.describe(data, type(value).__name__, name, ignore)


def module(value: object, ignore: Sequence[str] = ()) -> tuple[huggingface.Description, int] | None:
    """The description in a module's config, and the module's parameters, shared ones counted once; None if it has no
    config of transformers. Errors: `InputError` if it is not a module."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.nn.Module):
        raise InputError("source", [Fault("source", value, KINDS)])
    if not made_by(getattr(value, "config", None), "transformers"):
        return None
    described = config(value.config, ignore, type(value).__name__)
    return described, sum(weight.numel() for weight in value.parameters()) - idle_rows(described[0], value)


def idle_rows(raw: Table, net: object) -> int:
    """Elements of identity experts' matrices, which transformers' LongCat-Flash allocates and checkpoints lack."""
    return sum(weight.numel() // len(weight) * idle for _, weight, idle in with_idle_rows(raw, net) if idle)


def with_idle_rows(raw: Table, net: Any) -> Iterator[tuple[str, Any, int]]:
    """A module's parameters by name, each with the number of its rows that belong to identity experts."""
    experts = raw.get("experts") or {}
    idle = experts.get("n_idle") or 0
    for name, weight in net.named_parameters():
        has = idle and name.endswith(".experts.gate_up_proj") and len(weight) == experts["n_experts"] + idle
        yield name, weight, idle if has else 0
