"""The tensors of a checkpoint, and their agreement with a model."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

from msgspec.structs import asdict, astuple

from txcalc.checkpoint import StoredSize
from txcalc.questions.answers import Answer, Result, SourceInfo

if TYPE_CHECKING:
    from txcalc.checkpoint import Checkpoint, CheckpointCheck, StoredTensor, TensorGroup


class TensorRow(Answer):
    """Tensors whose names differ only in numbers (`layers.*.q`), with one shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    tensors: int
    elements: int
    bytes: int


class MissingWeight(Answer):
    """Weights of the description that the checkpoint lacks."""

    path: str
    shape: tuple[int, ...]
    copies: int
    elements: int


class CheckpointAgreement(Answer):
    """How a checkpoint agrees with its model.

    expected      parameters of the model
    explained     of them, those that the checkpoint holds; by_kind: by kind of part
    extra         stored tensors that are not parameters, by reason: tied, buffer, scale
    unexplained   stored tensors that the description lacks
    """

    agrees: bool
    expected: int
    explained: int
    by_kind: dict[str, int]
    bits_per_weight: float | None
    extra: dict[str, tuple[TensorRow, ...]]
    unexplained: tuple[TensorRow, ...]
    missing: tuple[MissingWeight, ...]


class CheckpointInfo(Answer):
    """The tensors of a checkpoint by type and by name; `files` of `of_files` were read."""

    format: str
    files: int
    of_files: int
    tensors: int
    elements: int
    bytes: int
    by_dtype: dict[str, StoredSize]
    by_name: tuple[TensorRow, ...]
    check: CheckpointAgreement | None


class ShowStored(Result, tag_field="schema", tag="txcalc/show/1", kw_only=True):
    """The tensors of a checkpoint without a config.json."""

    model: SourceInfo
    checkpoint: CheckpointInfo
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def view(self) -> str:
        return "stored"


def show_stored(checkpoint: Checkpoint) -> ShowStored:
    """The answer for a checkpoint without a config.json."""
    missing = (
        "no config.json beside it; a checkpoint does not state the head width, the windows or the experts per token"
    )
    model = SourceInfo(checkpoint.where, None, checkpoint.where, None)
    return ShowStored(model=model, checkpoint=checkpoint_info(checkpoint, None), assumptions=(), notes=(missing,))


def checkpoint_info(checkpoint: Checkpoint, check: CheckpointCheck | None) -> CheckpointInfo:
    """Exact sizes by type and by name, and the agreement with the model."""
    return CheckpointInfo(
        format=checkpoint.form,
        files=checkpoint.files,
        of_files=max(checkpoint.of, checkpoint.files),
        **asdict(checkpoint.size),
        by_dtype=checkpoint.by_dtype(),
        by_name=tensor_rows(checkpoint.tensors),
        check=agreement(checkpoint.size, check) if check else None,
    )


def agreement(size: StoredSize, check: CheckpointCheck) -> CheckpointAgreement:
    bits = float(Fraction(8 * size.bytes, check.explained)) if check.explained else None
    return CheckpointAgreement(
        check.agrees,
        check.expected,
        check.explained,
        dict(check.by_kind),
        bits,
        {why: tensor_rows(tensors) for why, tensors in check.extra.items()},
        tensor_rows(check.unexplained),
        tuple(
            MissingWeight(weight.path, tuple(weight.shape), weight.copies, weight.elements) for weight in check.missing
        ),
    )


def tensor_rows(tensors: Iterable[StoredTensor]) -> tuple[TensorRow, ...]:
    from txcalc.checkpoint import fold_names

    def row(group: TensorGroup) -> TensorRow:
        return TensorRow(group.name, tuple(group.shape), group.dtype, *astuple(group.size))

    return tuple(map(row, fold_names(tensors)))
