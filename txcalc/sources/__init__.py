"""Where a model comes from: a preset's name, a one-line description, a file, or the hub. `load` tells them apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from txcalc.description import Description
from txcalc.errors import Fault, InputError
from txcalc.model import Model, asked_for
from txcalc.parts.adapters import adaptable
from txcalc.parts.options import Table
from txcalc.parts.part import Composite
from txcalc.sources.idle import Built, idle_changes, idle_keys, usable
from txcalc.sources.resolve import resolve
from txcalc.sources.spec import IDENTITY, change_keys, letter_path, rename_keys, scalar, with_user_defaults

if TYPE_CHECKING:
    from txcalc.checkpoint import Checkpoint

    class ConfigObject(Protocol):
        """A config object of transformers."""

        def to_json_string(self, use_diff: bool = True) -> str: ...

    class TorchModule(Protocol):
        """A module of PyTorch."""

        def parameters(self, recurse: bool = True) -> Iterator[Any]: ...

    Source = str | Path | Table | Model | ConfigObject | TorchModule

# Keys that change no size of the stack, so that its towers still fit.
SIZELESS = {*IDENTITY, "lora"} - {"kind", "predictors"}
# Measures a module without a config. `txcalc/__init__.py` sets it, as it depends on this package.
measured: Callable[[Any], Model] | None = None


def load(
    source: Source,
    changes: Table | None = None,
    *,
    weights: bool = False,
    ignore: Sequence[str] = (),
    **sizes: object,
) -> Model:
    """The model that `source` names: a preset (`gpt2`), an inline description (`"D=512 h=8 F=1376 L=1"`), a repository
    of the hub (`hf:org/name@revision`), or a path: a description (.toml), a config.json or a folder that holds one, a
    checkpoint (.safetensors with a config.json beside it, .gguf); `-` reads a description or a config.json from
    standard input.

    Or an object: a dict (a description as in TOML, or the content of a config.json with its `model_type`), a config
    object of transformers, or a module. A module with such a config must have as many parameters as its description;
    other modules are measured, and only have parameters and FLOPs.

    `changes` sets keys of the description, by letter or by name: `{"norm.place": "post"}`; so do keywords: `h_kv=4`. A
    size may be an expression in other sizes: `F="8/3*D"`.
    The headers of a checkpoint on disk are checked against the description, with `weights` also those on the hub.
    `ignore` names keys of a config.json that are left out (`text_config.width`); the notes list them.
    Errors: `InputError` with every fault, `UnknownName` with the nearest presets, `MissingExtra`.

    >>> import txcalc
    >>> txcalc.load("llama-3.1-8b", h_kv=4)
    <llama-3.1-8b: decoder, 7.90 B parameters>
    >>> txcalc.load({"d_model": 512, "n_layers": 6, "attention": {"n_heads": 8}, "feed_forward": {"d_ff": 1376}}).params
    18978816
    """
    changes = asked_for(changes, sizes)
    if not isinstance(source, str | Path):
        return _from_object(source, changes, ignore)
    from txcalc.sources import presets

    if not str(source).strip():
        raise InputError("source", ["is empty, expected a model (txcalc presets lists the presets)"])
    if str(source) in ("-", "/dev/stdin") or str(source).startswith("/dev/fd/"):
        return _read_pipe("-" if str(source) == "/dev/stdin" else str(source), changes, ignore)
    if isinstance(source, str) and (source.startswith("hf:") or _names_repository(source)):
        from txcalc.sources import hub

        place = hub.repository(source if source.startswith("hf:") else f"hf:{source}")
        model = build(*hub.read(place, ignore), changes=changes)
        return attach_checkpoint(model, hub.headers(place)) if weights else model
    path = Path(source)
    stored = path.suffix in (".safetensors", ".gguf") or _exists(path / "config.json")
    is_path = isinstance(source, Path) or "/" in source
    config = path.suffix == ".json" or (is_path and path.is_dir())
    if ignore and (path.suffix == ".gguf" or not (stored or config)):
        raise InputError("--ignore", [f"leaves keys out of a config.json, and {source} is not one"])
    if isinstance(source, str) and "=" in source and not _exists(path):
        from txcalc.sources import inline

        if inline.looks_inline(source):
            return build(*inline.read(source), changes=changes, spelling=inline.SPELLING, written=True)
    if stored:
        return _from_checkpoint(path, changes, ignore)
    if config:
        from txcalc.sources import huggingface

        if path.is_dir():
            raise InputError(str(path), ["has no config.json"])
        return build(*huggingface.read(source, ignore), changes=changes)
    if is_path or path.suffix == ".toml" or (_exists(path) and path.name.lower() not in presets.names()):
        return build(*presets.read(path), changes=changes, written=True)
    preset = presets.find(str(source))
    return build(*preset, changes=changes, written=presets.is_users(preset))


def _read_pipe(source: str, changes: Table, ignore: Sequence[str]) -> Model:
    """The model in a pipe: a config.json starts with a brace, a description in TOML does not."""
    import sys

    from txcalc.sources import files, huggingface, presets

    limit, where = huggingface.MAX_BYTES, "standard input" if source == "-" else source
    data = sys.stdin.buffer.read(limit + 1) if source == "-" else files.read(Path(source), limit)
    if not data.strip() or data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return build(*huggingface.describe(huggingface.parse_json(data, where), where, ignore=ignore), changes=changes)
    if ignore:
        raise InputError("--ignore", [f"leaves keys out of a config.json, and {where} holds a description"])
    return build(presets.parse_toml(data, where), where, changes=changes, written=True)


def _from_object(source: object, changes: Table, ignore: Sequence[str]) -> Model:
    """The model of an object: a model, a dict, a config object or a module."""
    if isinstance(source, Model):
        return source.set(changes)
    from txcalc.sources import huggingface, objects

    if isinstance(source, Mapping):
        data = objects.plain(source, "source")
        if objects.is_config(data):
            return build(*huggingface.describe(data, "config", ignore=ignore), changes=changes)
        if ignore:
            raise InputError("--ignore", ["leaves keys out of a config.json, and this is a description"])
        return build(data, "description", changes=changes, written=True)
    if objects.made_by(source, "transformers") and hasattr(source, "to_json_string"):
        return build(*objects.config(source, ignore), changes=changes)
    described_module = objects.module(source, ignore)
    if described_module is None:
        assert measured is not None
        return measured(source).set(changes)
    described, params = described_module
    model = build(*described)
    if params not in (model.params, model.total_params):
        lacks = f"has {params:,} parameters, and its config describes {model.params:,}"
        raise InputError(type(source).__name__, [f"{lacks} (txcalc.trace measures the module as it is)"])
    return model.set(changes)


def _from_checkpoint(path: Path, changes: Table | None, ignore: Sequence[str]) -> Model:
    """The model of a GGUF file, or of a config.json and the checkpoint in its folder, if there is one."""
    if path.suffix == ".gguf":
        from txcalc.sources import gguf

        description, stored = gguf.read(path)
        unchanged = attach_checkpoint(build(*description), stored)
        match = unchanged.checkpoint
        # Multi-token-prediction layers are not described.
        if match and not (match.agrees or (match.beyond and not match.missing)):
            raise InputError(str(path), [match.summary(), *match.differences()])
        return build(*description, changes=changes) if changes else unchanged
    from txcalc.sources import huggingface, safetensors

    if path.suffix == ".safetensors":
        files: tuple[Checkpoint | None, str] = safetensors.read(path), ""
        config = path.with_name("config.json")
        if not config.is_file():
            lacks = "holds shapes, which do not give the number of heads"
            raise InputError(str(path), [f"{lacks}: its config.json is not beside it (txcalc show lists the tensors)"])
    else:
        files, config = safetensors.checkpoint_in(path), path
    raw, origin, assumptions, notes = huggingface.read(config, ignore)
    notes = (*notes, files[1]) if files[1] else notes
    return attach_checkpoint(build(raw, origin, assumptions, notes, changes=changes), files[0])


def attach_checkpoint(model: Model, stored: Checkpoint | None) -> Model:
    """The model with its checkpoint, compared with it. A changed model has no checkpoint."""
    if stored is None or model.changed:
        return model
    from txcalc.checkpoint import check

    match = check(stored, model.ledger())
    return replace(model, checkpoint=match, notes=(*model.notes, *(() if match.agrees else (match.summary(),))))


def lone_checkpoint(source: str | Path) -> Checkpoint | None:
    """The checkpoint that `source` names, if it has no config.json."""
    if not str(source).strip():  # Path("") would be the current folder
        return None
    path = Path(source)
    if path.suffix == ".safetensors" and _exists(path) and not _exists(path.with_name("config.json")):
        from txcalc.sources import safetensors

        return safetensors.read(path)
    if not _exists(path / "config.json") and _exists(path) and path.is_dir():
        from txcalc.sources import safetensors

        return safetensors.checkpoint_in(path)[0]
    return None


def _names_repository(source: str) -> bool:
    """Whether a text is a repository's name on the hub, `org/name`, and not an existing file or folder."""
    if not re.fullmatch(r"[A-Za-z0-9][\w-]*/[\w.-]+(@[\w./-]+)?", source, re.ASCII):
        return False
    org, _, name = source.partition("@")[0].partition("/")
    is_file = Path(name).suffix.lower() in (".toml", ".json", ".safetensors", ".gguf", ".py")
    return not is_file and not _exists(Path(org)) and not _exists(Path(source))


def _exists(path: Path) -> bool:
    """True for a file or folder that exists; False for a name too long for a path."""
    try:
        return path.exists()
    except OSError:
        return False


def build(
    raw: Table,
    origin: str,
    assumptions: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    *,
    changes: Table | None = None,
    spelling: Mapping[str, str] | None = None,
    written: bool = False,
) -> Model:
    """The model of a raw description; `origin` is its name in errors and headers, `spelling` the user's names of keys.

    Errors: `InputError`, also for a change without effect, and for a key without effect if the user has `written` the
    description.
    """
    raw = rename_keys(raw) if isinstance(raw, Mapping) else raw
    spelling, after = spelling or {}, raw
    changes = {key: scalar(value) for key, value in (changes or {}).items()}
    if changes and any(isinstance(value, str) for value in changes.values()):
        from txcalc.sources.expressions import evaluated

        changes, rounded = evaluated(raw, changes)
        notes = (*notes, *rounded)
    if changes:
        spelling = {**spelling, **{letter_path(key, raw): key for key in changes}}
        after = change_keys(raw, changes)
        if not all(letter_path(key, raw).split(".")[0] in SIZELESS for key in changes):
            dropped = [after.pop(key, None) for key in {"undescribed_tower_params", "towers"} - {*changes}]
            if any(dropped):
                notes = (*notes, "its towers and projectors fit the unchanged sizes, and are left out")
    if written and isinstance(after, Mapping):
        after = with_user_defaults(after, origin, raw)
    description, unchanged = resolve(after, origin, spelling), list[str]()
    tree = Built(after, description, recorded=written)
    if unknown := [*_adapters(description, tree.root)]:
        raise InputError(origin, unknown)
    if changes or written:
        base = usable(raw, written) if changes else tree
        faults = idle_keys(base or tree, spelling) if written else []
        idle, unchanged = idle_changes(base, tree, changes)
        if faults or idle:
            raise InputError(origin, [*faults, *idle])
    different = _listing("changed", {key: value for key, value in changes.items() if key not in unchanged})
    as_it_was = _listing("already so", {key: changes[key] for key in unchanged})
    notes = (*notes, *filter(None, (different, as_it_was)))
    name = description.name or origin
    towers = {
        kind: replace(build(table, f"{origin}: towers.{kind}", written=written), name=f"{name}'s {kind} tower")
        for kind, table in description.towers.items()
    }
    return Model(name, tree.root, after, description, origin, assumptions, notes, None, different, build, towers)


def _adapters(description: Description, root: Composite) -> Iterator[Fault]:
    """Names of `lora.modules` that no linear layer of a block has."""
    for stack in description.stacks.values():
        if stack.lora is not None:
            targets = adaptable(root)
            for name in stack.lora.modules:
                if name not in targets and not (name == "all" and targets):
                    yield Fault("lora.modules", name, f"all, or some of {', '.join(targets)}")


def _listing(what: str, values: Table) -> str:
    """A note on keys and their values; "" for none."""
    return f"{what}: " + ", ".join(f"{key} = {value}" for key, value in values.items()) if values else ""


__all__ = ["attach_checkpoint", "build", "load", "lone_checkpoint"]
