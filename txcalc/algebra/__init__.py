"""The part tree over symbols: letters for sizes, the formula of every figure, and crossover lengths.

Only this package uses SymPy, to add, multiply, expand and cancel; `notation` decides how a formula is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain, count, product
from typing import Any, NamedTuple

from msgspec.structs import replace

from txcalc.description import StackSpec
from txcalc.errors import Fault, InputError, MissingExtra
from txcalc.ledger import Ledger, walk
from txcalc.model import Model
from txcalc.notation import Expression
from txcalc.num import exact_div, product as product_of, ratio, total, whole
from txcalc.parts.mechanisms import ATTENTIONS
from txcalc.parts.model import Root
from txcalc.parts.options import Raw
from txcalc.parts.part import Workload
from txcalc.parts.positions import PositionsOptions
from txcalc.parts.sharding import Ways
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding, stage as stage_of
from txcalc.planning.training.parts import RankTree, in_letters, rank_tensors, rules_of
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import Pipeline
from txcalc.planning.training.states import rank_weights
from txcalc.sources import build
from txcalc.sources.assemble import assemble
from txcalc.symbols import BY_LETTER, TABLE, Symbol

try:
    import sympy
except ImportError:
    raise MissingExtra("a formula in letters", "sympy", "symbolic") from None

# Letters for sizes.


class BoundSymbol(NamedTuple):
    """A size of a model: its symbol, its value (None in the generic block), its row of the table, and the layer kind or
    half that it belongs to (`where`; "": all that have no symbol of their own)."""

    symbol: Expression
    value: int | None
    entry: Symbol
    where: str = ""

    @property
    def meaning(self) -> str:
        return f"{self.entry.meaning} ({self.where.replace('_', ' ')})" if self.where else self.entry.meaning


class Symbolic(NamedTuple):
    """A tree whose sizes are symbols, and the letter of each."""

    root: Root
    letters: Mapping[Expression, BoundSymbol]


def values(letters: Mapping[Expression, BoundSymbol]) -> dict[Expression, Expression]:
    """The number of each letter, ready for `xreplace`."""
    return {symbol: sympy.Integer(letter.value) for symbol, letter in letters.items()}


@cache
def symbol(name: str) -> Expression:
    """The symbol of a letter: a whole number above 0."""
    return sympy.Symbol(name, integer=True, positive=True)


class _Naming:
    """Gives each size its letter, with a suffix where that letter has another value already."""

    def __init__(self) -> None:
        self.letters: dict[Expression, BoundSymbol] = {}

    def __call__(self, entry: Symbol, value: Any, half: str = "", kind: str = "", plain: bool = True) -> Any:
        if not whole(value) or value == 0:
            return value
        qualified = "_".join(filter(None, (half, kind)))
        numbered = (f"{qualified}_{n}" for n in count(2))  # F of a layer kind called "e" is not F_e
        for suffix in chain(("",) if plain else (), filter(None, (kind or half, qualified)), numbered):
            sign = symbol(f"{entry.letter}_{suffix}" if suffix else entry.letter)
            letter = BoundSymbol(sign, value, entry, suffix)
            in_use = sign in self.letters or (suffix and sign.name in BY_LETTER)
            if not in_use or self.letters.get(sign) == letter:
                self.letters[sign] = letter
                break
        return sign


def symbolic(model: Model) -> Symbolic:
    """The model's tree with a letter for every size that `symbols.TABLE` knows; other sizes stay numbers.

    Where layer kinds or halves differ in a size, the first has the plain letter: d_h and d_h_global, F_decoder. Layers
    of several kinds are counted apart: L_local, L_global. The number of a picture's positions is T.
    """
    naming = _Naming()
    stacks = {half: _replace_sizes(stack, naming, half) for half, stack in model.description.stacks.items()}
    half, first = next(iter(stacks.items()))
    if model.fixed_length and first.positions.get("rows") is None:
        rows = naming(BY_LETTER["P_max"], model.root.fixed)
        stacks[half] = first.replace(positions=first.positions.replace(rows=rows))
    return Symbolic(assemble(model.description.replace(stacks=stacks)).at_length(symbol("T")), naming.letters)


def _replace_sizes(stack: StackSpec, naming: _Naming, half: str) -> StackSpec:
    changes: Raw = {}
    for entry in TABLE:
        section, _, key = entry.key.rpartition(".")
        if section and (table := changes.get(section, vars(stack).get(section))):  # the others are a layer's
            changes[section] = table.replace(**{key: naming(entry, table.get(key), half)})
        elif entry.key and not section and key != "n_layers":
            changes[key] = naming(entry, getattr(stack, key), half)
    number, several = BY_LETTER["L"], len(stack.groups) > 1
    if several:
        changes["counts"] = {name: naming(number, len(at), half, name, plain=False) for name, at in stack.groups}
    else:
        changes["n_layers"] = naming(number, stack.n_layers, half)
    places: PositionsOptions = changes.get("positions", stack.positions)
    if half == "encoder" and places.form == "learned" and places.get("rows") is None:
        fixed = stack.audio.positions if stack.audio else stack.fixed_positions
        changes["positions"] = places.replace(rows=naming(BY_LETTER["P_max"], fixed, half))
    layers = {}
    for name, _ in stack.groups:
        layer = stack.layer[name]
        tables = dict(layer.tables)
        for entry, section in product(TABLE, tables):
            home, _, key = entry.key.rpartition(".")
            if home == ("attention" if section in ATTENTIONS else section) and key in tables[section].values():
                size = naming(entry, tables[section].get(key), half, name if several else "")
                tables[section] = tables[section].replace(**{key: size})
        layers[name] = replace(layer, tables=tables)
    return stack.replace(**changes, layer=layers)


def over_letters(model: Model, work: Workload) -> tuple[Workload, dict[Expression, BoundSymbol]]:
    """A workload over B, T, P (of a decode step) and T_src (with an encoder apart), and what they stand for."""
    encoder = model.has_encoder_apart
    sizes = {"B": work.batch, "T": work.tokens}
    if work.past:
        sizes["P"] = work.past
    if encoder:
        sizes["T_src"] = work.source
    letters = {symbol(name): BoundSymbol(symbol(name), value, BY_LETTER[name]) for name, value in sizes.items()}
    past, source = symbol("P") if work.past else 0, symbol("T_src") if encoder else symbol("T")
    return work._replace(batch=symbol("B"), tokens=symbol("T"), past=past, source=source), letters


def generic(gated: bool = False) -> Model:
    """The textbook decoder, over letters: no biases, an RMSNorm before each branch, a head of its own."""
    attention = {"n_heads": symbol("h"), "n_kv_heads": symbol("h_kv"), "d_head": symbol("d_h")}
    raw = {
        "name": "the generic block",
        "d_model": symbol("D"),
        "n_layers": symbol("L"),
        "vocab_size": symbol("V"),
        "attention": attention,
        "feed_forward": {"d_ff": symbol("F"), "gated": gated},
    }
    return build(raw, "the generic block")


# Formulas of parts.


class PartFormula(NamedTuple):
    """One figure of one part, in letters and its value: of one copy out of `copies` (in letters) or `number`.

    `path` as `Ledger.at` takes it, `depth` the steps below the part that was asked for.
    """

    path: str
    depth: int
    quantity: str
    expression: Expression
    value: Any
    copies: Expression
    number: int


FIGURES: dict[str, Callable[[Ledger], Any]] = {
    "params": lambda ledger: ledger.total("params"),
    "active": lambda ledger: ledger.total("active"),
    "flops": lambda ledger: ledger.total("flops"),
    "flops_masked": lambda ledger: ledger.total("flops_masked"),
    "cache_growth": lambda ledger: ledger.cache_terms.growth,
    "cache_constant": lambda ledger: ledger.cache_terms.constant,
    "cache": lambda ledger: ledger.total("cache"),
    "saved": lambda ledger: ledger.total("saved"),
    "sent": lambda ledger: ledger.total("sent"),
}
SAVED_SCORES = "saved_scores"  # `saved` where the attention matrix is kept


def formulas(
    model: Model,
    work: Workload,
    path: str = "",
    layout: Layout | None = None,
    recipe: Recipe | None = None,
    stage: int = 0,
) -> tuple[list[PartFormula], dict[Expression, BoundSymbol]]:
    """Every figure that is not 0, of all parts below a path and last of the part itself; and the letters.

    Experts have one joint figure; the path of a single expert gives its own. With a layout: the figures of one rank of
    a `stage`. With a recipe: FLOPs of a training step and optimizer state too.
    Errors: `UnknownName` where the model has no such part; `InputError` where the layout does not apply to it.
    """
    if recipe is not None:
        model = with_recomputed_layers(model, recipe)
    tree = symbolic(model)
    over, workload_letters = over_letters(model, work)
    ints, symbols = RankTree(model.root), RankTree(tree.root)
    letters = {**workload_letters, **tree.letters}
    if layout is not None:
        ints = of_rank(model, layout, work, stage, recipe)
        symbols, rank_letters = in_letters_of_rank(tree, layout, stage, recipe)
        letters |= rank_letters
    numbers, unit = values(letters), sympy.S.One
    rows: list[PartFormula] = []
    for keep_scores in (False, True) if ints.cp == 1 else (False,):  # kernels of a ring keep no matrix
        costs = _Costs(ints, work._replace(keep_scores=keep_scores), recipe)
        costs.part.at(path)  # refuses a path before the symbols, which have any number of experts, are asked for it
        lettered = _Costs(symbols, over._replace(keep_scores=keep_scores), recipe, numbers)
        for node, depth, passes, owners in (*_parts_below(lettered.part, path), (path, 0, unit, unit)):
            for quantity, figure in costs.figures.items():
                if value := figure(costs.at(node, quantity)):
                    value = value.numerator if value.denominator == 1 else value
                    expression = sympy.sympify(lettered.figures[quantity](lettered.at(node, quantity)))
                    copies = owners if quantity in ("params", "active", "optimizer") else passes
                    number = int(copies.xreplace(numbers))
                    rows.append(PartFormula(node, depth, quantity, expression, value, copies, number))
    return rows, letters


def with_recomputed_layers(model: Model, recipe: Recipe) -> Model:
    """The model with recomputed layers as a kind of their own, if others are not recomputed. Errors: `InputError` for
    layers that do not exist or are shared."""
    halves, stacks = model.description.stacks, dict[str, StackSpec]()
    if not recipe.recompute.startswith(("every", "layers")):
        return model
    for half, stack in halves.items():
        groups, layer, numbers = [], dict(stack.layer), recipe.recomputed(stack.n_layers)
        expected = f"numbers of layers from 0 to {stack.n_layers - 1}" if max(numbers) >= stack.n_layers else ""
        if stack.shared_layers or (len(halves) > 1 and recipe.recompute.startswith("layers")):
            expected = "none, core or blocks: a number is of more layers than one"
        if expected:
            raise InputError("training step", [Fault("--recompute", recipe.recompute, expected)])
        for name, indices in stack.groups:
            parts = [tuple(i for i in indices if (i in numbers) is recomputed) for recomputed in (True, False)]
            for word, part in zip(("recomputed", "kept"), parts, strict=True):
                kind = name if () in parts else "_".join(filter(None, (name * (len(stack.groups) > 1), word)))
                groups += [(kind, part)] if part else []
                layer[kind] = stack.layer[name]
        stacks[half] = stack.replace(groups=sorted(groups, key=lambda group: group[1]), layer=layer)
    description = model.description.replace(stacks=stacks)
    return replace(model, description=description, root=assemble(description))


# Figures of whole sequences, divided by cp: each of its ranks computes the same number of attention's pairs.
OF_SEQUENCES = frozenset({"flops", "flops_masked", "training"})


class _Costs:
    """A rank's ledgers, of its own tokens and of whole sequences, and the figures computed from them; `numbers`: the
    values of letters."""

    def __init__(
        self,
        rank: RankTree,
        work: Workload,
        recipe: Recipe | None,
        numbers: Mapping[Expression, Expression] | None = None,
    ) -> None:
        self.rank, self.recipe, self.numbers = rank, recipe, numbers or {}
        self.part = walk(rank.root, work._replace(tokens=exact_div(work.tokens, rank.cp)))
        self.whole = self.part if rank.cp == 1 else walk(rank.root, work)
        self.figures = self._figures(work.keep_scores)

    def at(self, path: str, quantity: str) -> Ledger:
        """The ledger of a part for a figure."""
        return (self.whole if quantity in OF_SEQUENCES else self.part).at(path)

    def _figures(self, keep_scores: bool) -> dict[str, Callable[[Ledger], Any]]:
        rank, recipe = self.rank, self.recipe
        figures = dict(FIGURES)
        figures["saved"] = lambda ledger: total(
            [exact_div(entry.saved, rank.position_shards(entry)) for entry in ledger]
        )
        if rank.shards != 1:
            figures["params"] = lambda ledger: total(
                [
                    copies * product_of(shape)
                    for entry in ledger
                    for copies, shape in rank_tensors(entry, rank.shards, self._number)
                ]
            )
            del figures["active"]
        if recipe is not None:
            figures |= in_letters(recipe, self.part, rank, self._number)
        if rank.cp != 1:
            figures |= {name: self._divided_by_cp(figures[name]) for name in OF_SEQUENCES & figures.keys()}
            figures["sent"] = lambda ledger: total([entry.sent + rank.exchanged(entry) for entry in ledger])
            for name in ("cache_growth", "cache_constant", "cache"):  # training has none
                del figures[name]
        return {SAVED_SCORES: figures["saved"]} if keep_scores else figures

    def _divided_by_cp(self, figure: Callable[[Ledger], Any]) -> Callable[[Ledger], Any]:
        return lambda ledger: figure(ledger) * ratio(1, self.rank.cp)

    def _number(self, size: object) -> int:
        return int(sympy.sympify(size).xreplace(self.numbers))


# A rank of a layout.


def of_rank(model: Model, layout: Layout, work: Workload, stage: int, recipe: Recipe | None) -> RankTree:
    """The tree of a rank of a stage, whole where ranks shard it. Errors: `InputError` for what does not exist."""
    faults = []
    if layout.fsdp > 1 < layout.ep:
        faults.append(Fault("fsdp", layout.fsdp, "1 beside ep: ranks of one expert share it among themselves"))
    if layout.sp > 1 and layout.exchanges:
        faults.append(
            Fault("sp", layout.sp, "1 beside ep over other ranks than tp's, which have positions of their own")
        )
    if layout.cp > 1 and recipe is None:
        faults.append(Fault("cp", layout.cp, "1: only a training step splits sequences over ranks"))
    if not 0 <= stage < layout.pp:
        faults.append(Fault("--stage", stage, f"a stage from 0 to {layout.pp - 1} of {layout}"))
    token_ways = " · ".join(name for name in ("cp", "sp") if getattr(layout, name) > 1)
    for name, number in {"--tokens": work.tokens, "--source": work.source if model.has_encoder_apart else 0}.items():
        if number % (layout.cp * layout.sp):
            faults.append(Fault(name, number, f"a multiple of {token_ways} = {layout.cp * layout.sp}"))
    if faults:
        raise InputError("--layout", faults)
    if recipe is not None:
        rank_weights(Pipeline(model, recipe).of_stage(stage), recipe)
    sharding = Sharding(model, **rules_of(recipe))
    sharding.stages(layout)
    root, whole = sharding.stages(layout.replace(pp=1, vpp=1))[0].root, model.root
    if layout.pp > 1:
        root, whole = (stage_of(tree, layout, stage, layout.tp) for tree in (root, whole))
    shards = recipe.shards if recipe else layout.fsdp
    return RankTree.of(root, whole, recipe, shards, layout.sp, layout.cp)


def in_letters_of_rank(
    tree: Symbolic, layout: Layout, stage: int, recipe: Recipe | None
) -> tuple[RankTree, dict[Expression, BoundSymbol]]:
    """`of_rank` in letters: for the degrees above 1, and for the layers of a stage."""
    degrees = {"tp": layout.tp, "ep": layout.ep, "etp": layout.etp or 1, "fsdp": layout.fsdp, "cp": layout.cp}
    letters = {symbol(name): BoundSymbol(symbol(name), n, BY_LETTER[name]) for name, n in degrees.items() if n > 1}
    tp, ep, etp, fsdp, cp = (symbol(name) if symbol(name) in letters else 1 for name in degrees)
    if layout.etp is None:
        etp = tp / ep if layout.expert_ways > 1 else 1
    numbers = values({**tree.letters, **letters})
    sp = tp if layout.sp > 1 else 1
    split = Ways(
        tp,
        ep,
        etp,
        sp=layout.sp > 1,
        value=lambda size: int(sympy.sympify(size).xreplace(numbers)),
        **rules_of(recipe),
    )
    root, whole = tree.root.shard(split), tree.root
    if layout.pp > 1:
        root, whole = (stage_of(tree, layout, stage, tp) for tree in (root, whole))
        kinds = {group.name: str(group.count) for group in tree.root.stacks[0].groups}
        of_stage = {group.name: symbol(f"{kinds[group.name]}_stage") for group in root.groups}
        for group in root.groups:
            layers = of_stage[group.name]
            letters[layers] = BoundSymbol(layers, group.count, BY_LETTER["L"], layers.name.partition("_")[2])
        root = replace(root, groups=tuple(group._replace(count=of_stage[group.name]) for group in root.groups))
    shards = fsdp * cp if recipe and recipe.rules.dtensor else fsdp
    return RankTree.of(root, whole, recipe, shards, sp, cp), letters


def _parts_below(ledger: Ledger, path: str) -> list[tuple[str, int, Expression, Expression]]:
    """The parts below a path: path, depth, how many equal ones a token passes, and how many own their weights (one,
    where layers share them)."""
    above = sum(not name.isdecimal() for name in path.split(".")) if path else 0
    nodes: dict[str, tuple[str, int, Expression, Expression]] = {}
    for entry in ledger.at(path):
        name, passes, owners = "", sympy.S.One, sympy.S.One
        numbered = [step for step in entry.steps if step.indices is not None]
        for depth, step in enumerate(entry.steps, 1):
            experts = entry.routed and step is numbered[-1] and step.number != 1
            if step.indices is not None and not experts:
                passes, owners = passes * step.number, owners * step.times
            name = f"{name}.{step.name if experts else step}".lstrip(".")
            if depth > above:
                nodes[name] = (name, depth - above, passes, owners)
            if experts:
                break
    return list(nodes.values())
