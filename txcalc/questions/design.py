"""`design`: shapes of decoders that meet a budget of parameters, memory or training FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from txcalc.errors import Fault, InputError
from txcalc.planning import shapes
from txcalc.planning.fitting import checked_context
from txcalc.planning.serving.engine import Reserve, engine, parse_reserve
from txcalc.planning.shapes import DesignBudget, DesignFamily, ScaledModel, Shape
from txcalc.questions import options as o
from txcalc.questions.answers import Answer, Result
from txcalc.questions.arguments import count, length, maybe
from txcalc.sources import load
from txcalc.units import parse_bytes

if TYPE_CHECKING:
    from txcalc.sources import Source

BASE_HELP = (
    "A model whose architecture (experts, MLA, windows, hybrids …) is kept while its width changes. Default: Llama's."
)
BaseArgument = Annotated["Source | None", o.Argument(BASE_HELP, "[SOURCE]", "source")]


class Budget(Answer):
    """A budget, as given in `text`: parameters, bytes of memory (with a context's cache), or FLOPs and tokens."""

    params: int | None
    memory_bytes: int | None
    context: int | None
    flops: int | None
    tokens: int | None
    text: str


class Family(Answer, kw_only=True):
    """The sizes that all shapes share: Llama's, or a model to scale (`like`) with its changes; `summary`: in words."""

    vocab: int | None = None
    ratio: str | None = None
    gqa: int | None = None
    d_head: int | None = None
    tied: bool | None = None
    like: str | None = None
    sizes: dict[str, Any] | None = None
    multiple: int | None = None
    round: int | None = None
    summary: tuple[str, ...]


class Design(Result, tag_field="schema", tag="txcalc/design/1", kw_only=True):
    """Shapes that meet a budget, best first by a rule; `classic`: well-known ones."""

    budget: Budget
    weights: str
    family: Family
    rule: str
    rows: tuple[Shape, ...]
    classic: tuple[Shape, ...]

    @property
    def largest_classic(self) -> Shape | None:
        """The largest of the well-known shapes that fits."""
        return min((shape for shape in self.classic if shape.fits), key=lambda shape: shape.spare, default=None)

    @property
    def smallest_excess(self) -> Shape | None:
        """The smallest of the well-known shapes that does not fit."""
        return max((shape for shape in self.classic if not shape.fits), key=lambda shape: shape.spare, default=None)


@o.Question(
    "txcalc design --memory 16GB --weights fp16",
    first=("--params", "--memory", "--compute", "--weights", "--vocab", "--ratio", "--gqa", "--context"),
)
def design(
    source: BaseArgument = None,
    *,
    changes: Annotated[
        Mapping[str, Any] | None,
        o.SET.with_help("It needs SOURCE; a value may be an expression: F=8/3*D. Repeatable.", repeats=True),
    ] = None,
    params: Annotated[o.Length | float | None, o.PARAMS._replace(help="Parameters: 8B, the budget.")] = None,
    memory: Annotated[str | None, o.MEMORY._replace(help="A budget of memory: 16GB (10^9) or 16GiB.")] = None,
    compute: Annotated[
        o.Length | float | None,
        o.COMPUTE._replace(help="Training FLOPs of the budget: 3.8e25 (6 · active parameters · tokens).", parse=None),
    ] = None,
    train_tokens: Annotated[
        o.Length | float | None,
        o.TRAIN_TOKENS.with_help("For --compute (default: 20 per active parameter).", parse=None),
    ] = None,
    weights: Annotated[str, o.WEIGHTS] = "bf16",
    vocab: Annotated[
        o.Length | None, o.Option("Rows of the vocabulary (default: 32,000).", "N", "Model", parse=o.parse_tokens)
    ] = None,
    ratio: Annotated[
        float | str | None,
        o.Option("F/D before it is rounded up to a multiple of 256 (default: 8/3).", "R", "Model"),
    ] = None,
    gqa: Annotated[
        int | None, o.Option("Query heads per key/value head (default: 1).", "N", "Model", parse=o.parse_tokens)
    ] = None,
    head: Annotated[
        o.Length | None, o.Option("Width per head (default: 128).", "N", "Model", parse=o.parse_tokens)
    ] = None,
    tied: Annotated[bool, o.Option("Tie embedding and head.", None, "Model")] = False,
    context: Annotated[
        o.Length | None,
        o.CONTEXT._replace(help="Context whose cache and activations also have to fit into --memory."),
    ] = None,
    kv: Annotated[str, o.KV] = "bf16",
    reserve: Annotated[str | None, o.RESERVE.with_help("Default: none.")] = None,
) -> Design:
    """Shapes for a budget of parameters, memory or training FLOPs: L, D, h, h_kv and F, on hardware-friendly multiples.

    Errors: `InputError`, `UnknownName`.

    >>> import txcalc
    >>> best = txcalc.design(params="8B").rows[0]
    >>> txcalc.load(best.inline).params == best.params
    True
    """
    budgets = [value for value in (params, memory, compute) if value is not None]
    if len(budgets) != 1:
        example = "" if budgets else ". Example: txcalc design --params 8B"
        raise InputError("design", [f"give one of --params, --memory and --compute{example}"])
    if train_tokens is not None and compute is None:
        raise InputError("options", ["--train-tokens needs --compute"])
    sizes = {"ratio": ratio, "gqa": gqa, "head": head, "vocab": vocab, "tied": tied or None}
    family = _family(source, changes or {}, {name: value for name, value in sizes.items() if value is not None})
    kept_free = Reserve.none() if reserve is None else parse_reserve(reserve)
    target, flops = maybe(params, "--params", count), maybe(compute, "--compute", count)
    tokens = maybe(train_tokens, "--train-tokens", count)
    if tokens == 0:
        raise InputError("design", [Fault("--train-tokens", tokens, "a number above 0")])
    if flops is not None:
        target, tokens = shapes.trainable(flops, tokens)
    if target is not None and not 0 < target <= shapes.MOST_PARAMS:
        flag, what = ("--params", "a count of") if params is not None else ("--compute", "what trains")
        raise InputError("design", [Fault(flag, budgets[0], f"{what} 1 to {shapes.MOST_PARAMS:,} parameters")])
    memory_bytes = maybe(memory, "--memory", parse_bytes)
    longest = None if context is None else checked_context(length(context, "--context"))
    narrowest = family.model(family.first, family.step()) if isinstance(family, DesignFamily) else family.base
    serving = engine(narrowest, weights, kv, reserve=kept_free)
    budget = DesignBudget(family, serving, longest, target, memory_bytes, flops, tokens)
    classic = shapes.classics(budget, family) if isinstance(family, DesignFamily) else []
    return Design(
        budget=Budget(target, memory_bytes, longest, flops, tokens, str(budgets[0])),
        weights=serving.weights.name,
        family=Family(**family.data(), summary=tuple(family.describe())),
        rule=shapes.RULE,
        rows=tuple(shapes.designs(budget)),
        classic=tuple(classic),
    )


def _family(
    source: Source | None, changes: Mapping[str, object], sizes: Mapping[str, Any]
) -> DesignFamily | ScaledModel:
    """Llama's family, or a model's. Errors: `InputError`."""
    if source is not None:
        if sizes:
            flags = ", ".join(f"--{name}" for name in sizes)
            model = source if isinstance(source, str) else "a model"
            raise InputError("options", [f"{flags} apply to a Llama-like family: change {model} with --set"])
        return ScaledModel(load(source), changes)
    if changes:
        raise InputError("options", ["--set needs a model (without one: --ratio, --gqa, --head, --vocab)"])
    default = DesignFamily()
    return DesignFamily(
        length(sizes.get("vocab", default.vocab), "--vocab"),
        shapes.parse_ratio(str(sizes["ratio"])) if "ratio" in sizes else default.ratio,
        length(sizes.get("gqa", default.gqa), "--gqa"),
        length(sizes.get("head", default.d_head), "--head"),
        "tied" in sizes,
    ).checked()
