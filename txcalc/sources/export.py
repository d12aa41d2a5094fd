"""Export of descriptions: as a preset in TOML, or as a config.json that reads back to the same ledger.

The family's own reader writes a config.json: each key that it reads gets its value from the description (`KEYS`, one
table for all families). The result is read back and compared with the model, quantity by quantity, and refused if its
ledger differs: a key can neither be missing nor have another meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill
from typing import Any

from txcalc.errors import InputError, MissingExtra, UnknownName
from txcalc.ledger import QUANTITIES
from txcalc.model import Model
from txcalc.parts.norm import EPS
from txcalc.parts.options import Options, Raw
from txcalc.sources import build
from txcalc.sources.export_keys import KEYS, NULLS, Facts
from txcalc.sources.huggingface import reader_of
from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.families import READERS, REFUSED, WRAPPERS
from txcalc.sources.idle import prune
from txcalc.sources.spec import stating_defaults

WIDTH = 80  # of lines in TOML


def to_toml(model: Model) -> str:
    """A preset: the description as read, with its parameter counts; the file name is the preset's name.

    Errors: `MissingExtra`.
    """
    ledger = model.ledger()
    stale = ("name", "params", "active", "published", *(("source",) if model.changed else ()))
    raw = {key: value for key, value in stating_defaults(prune(model.raw)).items() if key not in stale}
    if raw.get("towers"):
        raw["towers"] = {name: stating_defaults(prune(table)) for name, table in raw["towers"].items()}
    params, active = ledger.total("params"), ledger.total("active")
    counts: Raw = {"params": params} | ({"active": active} if active != params else {})
    if params == model.description.params and model.description.published:
        counts["published"] = model.description.published
    comments = [*(f"assumed {line}" for line in model.assumptions), *model.notes]
    head = "".join(
        f"{fill(line, WIDTH, initial_indent='# ', subsequent_indent='# ')}\n"
        for line in (f"{model.name}, written by txcalc export", *comments)
    )
    tables = {key: value for key, value in raw.items() if isinstance(value, Mapping)}
    flat = {key: value for key, value in raw.items() if key not in tables}
    return head + as_toml({**flat, **counts, **tables})


def as_toml(raw: Raw) -> str:
    """A description as TOML, with long texts folded at spaces. Errors: `MissingExtra`."""
    try:
        import tomli_w
    except ImportError:
        raise MissingExtra("writing TOML", "tomli_w", "export") from None
    return re.sub(rf'^(\S+ = )"(?!"")(.{{{WIDTH},}})"$', _fold_text, tomli_w.dumps(raw), flags=re.MULTILINE)


def _fold_text(line: re.Match[str]) -> str:
    """A text folded over several lines; in TOML a backslash joins a line with the next."""
    pieces = re.findall(rf".{{1,{WIDTH - 4}}}(?:\s+|$)|\S+\s*", line[2])
    return line[1] + '"""\\\n' + "\\\n".join(pieces) + '"""'


# The model types that are tried first for a description without one.
FIRST = "llama mistral qwen2 qwen3 gemma mixtral qwen2_moe qwen3_moe deepseek_v3 gpt2 gpt_neox phi bert t5 mamba mamba2"


def to_config(model: Model) -> tuple[Raw, tuple[str, ...]]:
    """A config.json that reads back to the same ledger, and notes: another model type than the model's, and values
    without effect on counts that are lost. Errors: `InputError` if no family expresses the whole description."""
    own_type = model.description.model_type
    written_type = WRAPPERS.get(own_type, own_type)
    if written_type and written_type not in READERS:
        if written_type in REFUSED:
            raise InputError(
                model.name, [f"a config.json of {written_type} cannot be written: {REFUSED[written_type]}"]
            )
        raise UnknownName(model.name, "writer for model_type", written_type, sorted(READERS))
    model_types = () if written_type else (*FIRST.split(), *(name for name in READERS if name not in FIRST.split()))
    for model_type in (written_type,) if written_type else model_types:
        for config in _attempts(model, model_type):
            back = _read_back(config)
            if back is not None and same_ledger(model, back):
                same = model_type == own_type
                notes = () if same else (f"written as {model_type}, a model type with the same ledger",)
                return config, (*notes, *_lost(model, back))
    what = f"a config.json of {written_type}" if written_type else "the config.json of any supported model type"
    raise InputError(model.name, [f"{what} cannot say all of this description (export it --to toml)"])


def _read_back(config: Raw) -> Model | None:
    from txcalc.sources import huggingface

    try:
        return build(*huggingface.describe(config))
    except InputError:
        return None


# The endings of the classes that have a head.
HEADS = {
    "lm": (),
    "masked-lm": ("ForMaskedLM",),
    "classifier": ("ForImageClassification", "ForSequenceClassification", "ForTokenClassification",
                   "ForQuestionAnswering", "ForMultipleChoice"),
    "none": ("Model",),
}  # fmt: skip


def _attempts(model: Model, model_type: str) -> Iterator[Raw]:
    """Candidate configs for the reader of a model type: with its default head or a named one, and with a position table
    that has as many rows as the key says, or two more (OPT, BART)."""
    facts = Facts(model)
    camel = model_type.replace("_", " ").replace("-", " ").title().replace(" ", "")
    for ending in dict.fromkeys(("", *HEADS[facts.last["head"]["form"]])):
        for spare in (0, 2):
            config: Raw = {"architectures": [camel + ending]} if ending else {}
            writer = _ConfigWriter({"model_type": model_type, **config}, facts, spare)
            try:
                reader_of("", writer)(writer)
            except (InputError, ArithmeticError, LookupError, TypeError, ValueError):
                continue  # it read a key that this description has no value for
            yield writer.written


class _ConfigWriter(Config):
    """A config that is written while it is read: the first read of a key sets it from the description."""

    def __init__(self, data: Raw, facts: Facts, spare: int) -> None:
        super().__init__(data, data["model_type"])
        self.written, self.facts, self.spare = data, facts, spare

    def __contains__(self, key: str) -> bool:
        self._write((key,))
        return key in self.data

    def _get(self, names: tuple[str, ...], *args: Any, **options: Any) -> Any:
        self._write(names)
        return super()._get(names, *args, **options)

    def _write(self, names: Sequence[str]) -> None:
        name = next((name for name in names if name in KEYS), None)
        if name is None or name in self.written:
            return
        try:
            value = KEYS[name](self.facts)
        except (LookupError, TypeError, StopIteration):  # the description has no such part
            return
        if name == "max_position_embeddings" and self.facts.last["positions"]["form"] == "learned":
            value -= self.spare
        if value is not None or name in NULLS:
            self.written[name] = value


WORKLOADS: tuple[Raw, ...] = ({"batch": 2, "tokens": 7}, {"batch": 1, "tokens": 3, "past": 5000})


def same_ledger(first: Model, second: Model) -> bool:
    """Whether all quantities are equal, kind by kind, for a prompt and for a decode step."""
    return first.kind == second.kind and first.params == second.params and _figures(first) == _figures(second)


def _figures(model: Model) -> list[Any]:
    figures: list[Any] = []
    for work in WORKLOADS[: 2 if model.decodes else 1]:
        ledger = model.ledger(**work)
        figures += [*(ledger.by_kind(quantity) for quantity in QUANTITIES if quantity != "bytes"), ledger.cache_terms]
        figures.append(ledger.total("bytes"))
    return figures


def _lost(model: Model, back: Model) -> Iterator[str]:
    """Notes on values without effect on counts that the config.json lacks."""
    exported, read_back = _uncounted_values(model), _uncounted_values(back)
    for key, values in exported.items():
        for value in sorted(values - read_back.get(key, set())):
            yield f"{key} = {value} is not in this config.json"


def _uncounted_values(model: Model) -> dict[str, set[str]]:
    """Values that change results but no count, by key, over all layers."""
    values: dict[str, set[str]] = {}
    for stack in model.stacks:
        tables: list[Options] = [stack.norm, stack.embedding, stack.head]
        for layer in stack.layer.values():
            tables += [layer.norm, layer.positions, *layer.tables.values()]
        for table in tables:
            for key in ("eps", "theta", "scale", "softcap", "router_scale", "sparsity"):
                value = EPS[table.get("form")] if key == "eps" and table.get(key, 0) is None else table.get(key)
                if value is not None:
                    values.setdefault(f"{table.section}.{key}", set()).add(f"{value:.6g}")
    return values
