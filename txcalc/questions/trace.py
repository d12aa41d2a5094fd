"""`trace`: parameters and FLOPs of any PyTorch module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from txcalc.errors import Fault, InputError
from txcalc.notation import as_text
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, Result, json_key
from txcalc.questions.arguments import length, maybe

if TYPE_CHECKING:
    from txcalc.sources import TorchModule
    from txcalc.verification.trace import ModuleTrace

SIZES = {"B": "batch", "T": "tokens", "T_src": "source_tokens"}
ModuleArgument = Annotated[
    "str | TorchModule",
    o.Argument(
        "FILE.py:factory or module:Class, called without arguments: returns a module that takes token ids.",
        "FILE.py:NAME",
    ),
]


class ModuleCost(Answer, kw_only=True):
    """A module's parameters and FLOPs without its submodules': a formula in B and T, its value at the point, and
    fvcore's count there (None: fvcore cannot trace the module)."""

    path: str
    class_: str | None = json_key("class")
    params: int
    flops: str
    flops_at_point: int
    fvcore_at_point: int | None


class Trace(Result, tag_field="schema", tag="txcalc/trace/1", kw_only=True):
    """The cost of any module; not `complete`: an operator that may cost FLOPs has no count.

    point         the sizes at which fvcore counts
    not_counted   operators without a count, by counter, with how often they run
    """

    source: str
    domain: str
    complete: bool
    point: dict[str, int]
    total: ModuleCost
    rows: tuple[ModuleCost, ...]
    not_counted: dict[str, dict[str, int]]
    zero_cost_operators: tuple[str, ...]
    untraced: str = ""  # why fvcore cannot trace it

    @property
    def failed(self) -> bool:
        return not self.complete


@o.Question("txcalc trace model.py:build")
def trace(
    source: ModuleArgument,
    *,
    inputs: Annotated[
        str | Sequence[str],
        o.Option(
            "An input of the module: name, shape (B, T, T_src, numbers) and dtype. Default: token ids. Repeatable.",
            "NAME=B,T:int64",
            "Workload",
            "--input",
            repeats=True,
        ),
    ] = (),
    batch: Annotated[o.Length | None, o.BATCH.with_help("Measured at it, if no formula in B and T holds.")] = None,
    tokens: Annotated[o.Length | None, o.TOKENS.with_help("Like --batch.")] = None,
    source_tokens: Annotated[o.Length | None, o.SOURCE_TOKENS.with_help("Like --batch.")] = None,
    device: Annotated[str, o.DEVICE.with_help("cpu and cuda measure what depends on data.")] = "meta",
) -> Trace:
    """Parameters and FLOPs of any PyTorch module, part by part, as formulas in batch and length, with fvcore's count.

    Exit code 1: an operator that may cost FLOPs has no count, so the FLOPs are a lower bound.

    In Python: `source` may be the module itself, which is copied and not run; if it takes no token ids, vectors of its
    width are tried too. Errors: `InputError`, `MissingExtra`, `Refuted` where sizes or data decide what is computed.
    """
    from txcalc.verification.trace import trace as trace_module

    if not isinstance(source, str) and not callable(getattr(source, "named_modules", None)):
        raise InputError("trace", [Fault("source", source, "a module, or FILE.py:factory or module:Class")])
    sequences = maybe(batch, "--batch", length)
    lengths = maybe(tokens, "--tokens", length), maybe(source_tokens, "--source-tokens", length)
    module: Any = source
    traced = trace_module(module, [inputs] if isinstance(inputs, str) else inputs, sequences, *lengths, device)
    params, flops, fvcore = (
        sum(getattr(part, name) for part in traced.parts) for name in ("params", "flops", "fvcore")
    )
    return Trace(
        source=traced.name,
        domain=traced.domain,
        complete=traced.complete,
        point={SIZES[letter]: size for letter, size in traced.point.items()},
        total=module_cost("", "", params, flops, fvcore, traced),
        rows=tuple(module_cost(*part, traced) for part in traced.parts),
        not_counted={counter: dict(names) for counter, names in traced.skipped.items()},
        zero_cost_operators=tuple(traced.free),
        untraced=traced.untraced,
    )


def module_cost(path: str, kind: str, params: int, flops: Any, fvcore: int, traced: ModuleTrace) -> ModuleCost:
    from txcalc.verification.trace import LETTERS

    at_point = flops
    if not isinstance(flops, int):
        sizes = {str(LETTERS[letter]): size for letter, size in traced.point.items()}
        at_point = int(flops.subs({letter: sizes[str(letter)] for letter in flops.free_symbols}))
    return ModuleCost(
        path=path,
        class_=kind or None,
        params=params,
        flops=as_text(flops),
        flops_at_point=at_point,
        fvcore_at_point=None if traced.untraced else fvcore,
    )
