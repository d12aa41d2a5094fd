"""The same tree over symbols: letters for sizes, the formula of every figure, and the lengths that solve a rule.

SymPy lives here only. It adds, multiplies, expands and cancels; how a formula is written is `notation`'s to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain, count, product
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError, MissingExtra
from txcalc.ledger import Entry, Ledger, walk
from txcalc.model import Model
from txcalc.notation import Expression
from txcalc.num import exact_div, product as product_of, total, whole
from txcalc.parts.mechanisms import ATTENTIONS
from txcalc.parts.model import Root
from txcalc.parts.part import Workload
from txcalc.parts.sharding import Ways
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.training.parts import held, in_letters
from txcalc.planning.training.recipe import Recipe
from txcalc.planning.training.stages import between
from txcalc.sources import build
from txcalc.sources.assemble import assemble, patches
from txcalc.symbols import BY_LETTER, TABLE, Symbol

try:
    import sympy
except ImportError:
    raise MissingExtra("a formula in letters", "sympy", "symbolic") from None

# Letters for sizes.


class Letter(NamedTuple):
    """A size of a model: its symbol, its value (None in the generic block), its row of the table, and the layer kind or
    half it is of (`where`; empty: every other place too)."""

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
    letters: Mapping[Expression, Letter]


def values(letters: Mapping[Expression, Letter]) -> dict[Expression, Expression]:
    """The number of each letter, ready for `xreplace`."""
    return {symbol: sympy.Integer(letter.value) for symbol, letter in letters.items()}


@cache
def symbol(name: str) -> Expression:
    """The symbol of a letter: a whole number above 0."""
    return sympy.Symbol(name, integer=True, positive=True)


class _Naming:
    """Gives each size its letter, with a suffix where that letter has another value already."""

    def __init__(self) -> None:
        self.made: dict[Expression, Letter] = {}

    def __call__(self, entry: Symbol, value: Any, half: str = "", kind: str = "", plain: bool = True) -> Any:
        if not whole(value) or value == 0:
            return value
        both = "_".join(filter(None, (half, kind)))
        numbered = (f"{both}_{n}" for n in count(2))  # F of a layer kind called "e" is not F_e
        for suffix in chain(("",) if plain else (), filter(None, (kind or half, both)), numbered):
            made = symbol(f"{entry.letter}_{suffix}" if suffix else entry.letter)
            letter = Letter(made, value, entry, suffix)
            taken = made in self.made or (suffix and made.name in BY_LETTER)
            if not taken or self.made.get(made) == letter:
                self.made[made] = letter
                break
        return made


def symbolic(model: Model) -> Symbolic:
    """The model's tree with a letter for every size that `symbols.TABLE` knows; other sizes stay numbers.

    Where layer kinds or halves differ in a size, the first has the plain letter: d_h and d_h_global, F_decoder. Layers
    of several kinds are counted apart: L_local, L_global. The number of a picture's positions is T.
    """
    naming = _Naming()
    halves = model.spec["stacks"]
    stacks = {half: _lettered(stack, naming, half) for half, stack in halves.items()}
    places = next(iter(stacks.values()))["positions"]
    if model.fixed_length and places.get("rows") is None:
        places["rows"] = naming(BY_LETTER["P_max"], model.root.fixed)
    return Symbolic(assemble({**model.spec, "stacks": stacks}).at_length(symbol("T")), naming.made)


def _lettered(stack: Mapping[str, Any], naming: _Naming, half: str) -> dict[str, Any]:
    """A resolved stack with letters for its sizes."""
    result = dict(stack)
    kinds = [name for name, _ in stack["groups"]]
    for entry in TABLE:
        section, _, key = entry.key.rpartition(".")
        if section and stack.get(section):  # the others are a layer's
            result[section] = {**result[section], key: naming(entry, stack[section].get(key), half)}
        elif entry.key and not section and key != "n_layers":
            result[key] = naming(entry, stack[key], half)
    number = BY_LETTER["L"]
    if len(kinds) == 1:
        result["n_layers"] = naming(number, stack["n_layers"], half)
    else:
        result["counts"] = {name: naming(number, len(at), half, name, plain=False) for name, at in stack["groups"]}
    if half == "encoder" and result["positions"]["form"] == "learned" and result["positions"]["rows"] is None:
        rows = stack["audio"]["positions"] if stack["audio"] else patches(stack)
        result["positions"]["rows"] = naming(BY_LETTER["P_max"], rows, half)
    result["layer"] = {}
    for name in kinds:
        layer = result["layer"][name] = dict(stack["layer"][name])
        for entry, section in product(TABLE, [name for name in layer if name not in ("parts", "norm", "positions")]):
            home, _, key = entry.key.rpartition(".")
            if home == ("attention" if section in ATTENTIONS else section) and key in layer.get(section, ()):
                size = naming(entry, layer[section][key], half, name if len(kinds) > 1 else "")
                layer[section] = {**layer[section], key: size}
    return result


def over_letters(model: Model, work: Workload) -> tuple[Workload, dict[Expression, Letter]]:
    """A workload over B, T, P (of a decode step) and T_src (with an encoder apart), and what they stand for."""
    apart = model.has_encoder_apart
    sizes = {"B": work.batch, "T": work.tokens}
    if work.past:
        sizes["P"] = work.past
    if apart:
        sizes["T_src"] = work.source
    made = {symbol(name): Letter(symbol(name), value, BY_LETTER[name]) for name, value in sizes.items()}
    past, source = symbol("P") if work.past else 0, symbol("T_src") if apart else symbol("T")
    return work._replace(batch=symbol("B"), tokens=symbol("T"), past=past, source=source), made


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
SAVED_SCORES = "saved_scores"  # the last of them where the attention matrix is kept


def formulas(
    model: Model, work: Workload, path: str = "", layout: Layout | None = None, recipe: Recipe | None = None
) -> tuple[list[PartFormula], dict[Expression, Letter]]:
    """Every figure, but those that are 0, of all parts below a path and last of the part itself; and the letters.

    Below experts stands only what all of them cost together; one of them has a path of its own. With a layout: of what
    one rank holds, computes and sends. With a recipe: FLOPs of a training step and optimizer state too.
    Errors: `UnknownName` where the model has no such part; `InputError` where it cannot be laid out so.
    """
    if recipe is not None:
        model = apart(model, recipe)
    tree, root = symbolic(model), model.root
    if layout is not None:
        root, tree = one_rank(model, layout, work), sharded(tree, layout)
    over, asked = over_letters(model, work)
    letters = {**asked, **tree.letters}
    numbers, one = values(letters), sympy.S.One
    rows: list[PartFormula] = []
    for keep_scores in (False, True):
        ints = walk(root, work._replace(keep_scores=keep_scores))
        ints.at(path)  # refuses a path before the symbols, which have any number of experts, are asked for it
        symbols = walk(tree.root, over._replace(keep_scores=keep_scores))
        ways = (layout.fsdp, layout.sp) if layout else (1, 1)
        figures = _figures(ints, root, keep_scores, recipe, ways)
        lettered = symbol("fsdp") if ways[0] > 1 else 1, symbol("tp") if ways[1] > 1 else 1
        own = _figures(symbols, tree.root, keep_scores, recipe, lettered, numbers)
        for node, depth, passes, owners in (*_below(symbols, path), (path, 0, one, one)):
            costs, in_letters = ints.at(node), symbols.at(node)
            for quantity, figure in figures.items():
                if value := figure(costs):
                    value = value.numerator if value.denominator == 1 else value
                    expression = sympy.sympify(own[quantity](in_letters))
                    copies = owners if quantity in ("params", "active", "optimizer") else passes
                    number = int(copies.xreplace(numbers))
                    rows.append(PartFormula(node, depth, quantity, expression, value, copies, number))
    return rows, letters


def apart(model: Model, recipe: Recipe) -> Model:
    """The model, of whose layers those that backward computes again are a kind of their own, where others are not.
    Errors: `InputError` for numbers of layers that it has not, or that several layers have."""
    halves, stacks = model.spec["stacks"], dict[str, Any]()
    if not recipe.recompute.startswith(("every", "layers")):
        return model
    for half, stack in halves.items():
        groups, layer, numbers = [], dict(stack["layer"]), recipe.recomputed(stack["n_layers"])
        expected = f"numbers of layers from 0 to {stack['n_layers'] - 1}" if max(numbers) >= stack["n_layers"] else ""
        if stack["shared_layers"] or (len(halves) > 1 and recipe.recompute.startswith("layers")):
            expected = "none, core or blocks: a number is of more layers than one"
        if expected:
            raise InputError("training step", [Fault("--recompute", recipe.recompute, expected)])
        for name, indices in stack["groups"]:
            parts = [tuple(i for i in indices if (i in numbers) is again) for again in (True, False)]
            for word, part in zip(("recomputed", "kept"), parts, strict=True):
                own = name if () in parts else "_".join(filter(None, (name * (len(stack["groups"]) > 1), word)))
                groups += [(own, part)] if part else []
                layer[own] = stack["layer"][name]
        stacks[half] = {**stack, "groups": sorted(groups, key=lambda group: group[1]), "layer": layer}
    spec = {**model.spec, "stacks": stacks}
    return replace(model, spec=spec, root=assemble(spec))


def _figures(
    whole: Ledger,
    root: Root,
    keep_scores: bool,
    recipe: Recipe | None,
    ways: tuple[Any, Any],
    numbers: Mapping[Expression, Expression] | None = None,
) -> dict[str, Callable[[Ledger], Any]]:
    """What every part of a ledger is asked for; `numbers` that its letters stand for. Of weights that fsdp's ranks
    share, the first one's rows; of positions that sp's do, as many for each: `ways` are how many ranks these are."""
    shards, sp = ways
    beside = {id(leaf) for leaf in between(root)}

    def cut(entry: Entry | None) -> Any:
        return sp if entry is None or id(entry.leaf) in beside else 1

    def value(size: Any) -> int:
        return int(sympy.sympify(size).xreplace(numbers or {}))

    figures = dict(FIGURES)
    figures["saved"] = lambda ledger: total([exact_div(entry.saved, cut(entry)) for entry in ledger])
    if shards != 1:
        figures["params"] = lambda ledger: total(
            [entry.times * product_of(shape) for entry in ledger for shape in held(entry, shards)]
        )
        del figures["active"]
    if recipe is not None:
        figures |= in_letters(recipe, whole, root.stacks[-1].d_model, value, shards, cut)
    return {SAVED_SCORES: figures["saved"]} if keep_scores else figures


# What formulas of a rank leave out, and what to ask instead.
UNWRITTEN = {
    "pp": "1: a stage's layers are as those of the whole model, fewer times",
    "vpp": "1: a stage's layers are as those of the whole model, fewer times",
    "cp": "1: its ranks work as one does on T/cp tokens, but that each has 1/cp of a sequence's pairs in attention",
}


def one_rank(model: Model, layout: Layout, work: Workload) -> Root:
    """What a rank of a layout of tp, sp, dp, fsdp, ep and etp holds, whole where fsdp shares it. Errors: `InputError`
    with every reason why there is none."""
    wrong = [Fault(name, n, why) for name, why in UNWRITTEN.items() if (n := getattr(layout, name)) > 1]
    if layout.fsdp > 1 < layout.ep:
        wrong.append(Fault("fsdp", layout.fsdp, "1 beside ep: ranks of one expert share it among themselves"))
    if layout.sp > 1 and layout.exchanges:
        wrong.append(
            Fault("sp", layout.sp, "1 beside ep over other ranks than tp's, which have positions of their own")
        )
    for name, number in {"--tokens": work.tokens, "--source": work.source if model.has_encoder_apart else 0}.items():
        if number % layout.sp:
            wrong.append(Fault(name, number, f"a multiple of sp = {layout.sp}"))
    if wrong:
        raise InputError("--layout", wrong)
    return Sharding(model).stages(layout)[0].root


def sharded(tree: Symbolic, layout: Layout) -> Symbolic:
    """A tree's share on one rank, over letters for the ways that are not 1."""
    made = {
        symbol(name): Letter(symbol(name), number, BY_LETTER[name])
        for name, number in (("tp", layout.tp), ("ep", layout.ep), ("etp", layout.etp or 1), ("fsdp", layout.fsdp))
        if number > 1
    }
    tp, ep, etp = (symbol(name) if symbol(name) in made else sympy.S.One for name in ("tp", "ep", "etp"))
    if layout.etp is None:
        etp = tp / ep if layout.expert_ways > 1 else sympy.S.One
    numbers = values({**tree.letters, **made})
    ways = Ways(tp, ep, etp, sp=layout.sp > 1, value=lambda size: int(sympy.sympify(size).xreplace(numbers)))
    return Symbolic(tree.root.shard(ways), {**tree.letters, **made})


def _below(ledger: Ledger, path: str) -> list[tuple[str, int, Expression, Expression]]:
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


# The textbook's rules, derived.

Change = tuple[str, Mapping[Expression, Expression]]

# What makes the generic block the classic one, in the order in which it is put in.
CLASSIC: tuple[Change, ...] = (
    ("h_kv = h", {symbol("h_kv"): symbol("h")}),
    ("h·d_h = D", {symbol("d_h"): symbol("D") / symbol("h")}),
    ("F = 4·D", {symbol("F"): 4 * symbol("D")}),
)


def classic(expression: Expression) -> Expression:
    """A cost of the generic block where h_kv = h, h·d_h = D and F = 4·D."""
    for _, change in CLASSIC:
        expression = expression.xreplace(change)
    return expression


def textbook_letters() -> dict[Expression, Letter]:
    """The letters of the generic block."""
    names = ("B", "T", "L", "V", "D", "h", "h_kv", "d_h", "F")
    return {symbol(name): Letter(symbol(name), None, BY_LETTER[name]) for name in names}


class DerivationStep(NamedTuple):
    """A line of a derivation: a part and its cost, their sum, or what is put in next."""

    what: str
    expression: Expression


class Derivation(NamedTuple):
    """A rule of thumb, from the parts that it is the sum of."""

    title: str
    steps: tuple[DerivationStep, ...]


def derivations() -> list[Derivation]:
    """4·D², 8·D², 12·L·D², 2·V·D, 2·L·h_kv·d_h and the FLOPs of a forward pass, from the generic block's tree."""
    params, flops, growth, saved = (FIGURES[name] for name in ("params", "flops", "cache_growth", "saved"))
    model, gated = generic(), generic(gated=True)
    work, _ = over_letters(model, Workload(1, 1, 0, 1))
    plain = walk(model.root, work)
    ends = plain.where(lambda entry: entry.kind in ("embedding", "head"))
    bare = plain.at("layers").where(lambda entry: entry.kind != "norm")
    attention, layer, layers = plain.at("layers.0.attention"), plain.at("layers.0"), ("L of them", plain.at("layers"))
    narrower = ("F = 8·D/3", {symbol("F"): sympy.Rational(8, 3) * symbol("D")})
    return [
        _derivation("Attention: parameters", params, attention, 2),
        _derivation("Feed-forward: parameters", params, plain.at("layers.0.feed_forward"), 2),
        _derivation(
            "Gated feed-forward: parameters",
            params,
            walk(gated.root, work).at("layers.0.feed_forward"),
            2,
            changes=(narrower,),
        ),
        _derivation("All layers: parameters", params, layer, 1, (layers, ("without the norms", bare))),
        _derivation("Embedding and head: parameters", params, ends, 0),
        _derivation("Cache: elements that each token adds", growth, attention, 2, (layers,)),
        _derivation("Attention: forward FLOPs", flops, attention, 2),
        _derivation("Forward FLOPs", flops, layer, 1, (layers, ("with the head", plain))),
        _derivation("One layer: saved activations in elements, fused attention", saved, layer, 1),
    ]


def _derivation(
    title: str,
    figure: Callable[[Ledger], Any],
    whole_part: Ledger,
    depth: int,
    further: tuple[tuple[str, Ledger], ...] = (),
    changes: tuple[Change, ...] = CLASSIC,
) -> Derivation:
    """The parts at a depth, their sum, further ledgers that hold it, and what is left after each change."""
    names = dict.fromkeys(entry.steps[depth].name for entry in whole_part)
    parts = {name: figure(whole_part.where(lambda e, name=name: e.steps[depth].name == name)) for name in names}  # type: ignore[misc]
    steps = [DerivationStep(name, cost) for name, cost in parts.items() if cost != 0]
    for what, ledger in ((("together", whole_part),) if len(steps) > 1 else ()) + further:
        steps.append(DerivationStep(what, figure(ledger)))
    for what, change in changes:
        changed = sympy.expand(steps[-1].expression.xreplace(change))
        if changed != sympy.expand(steps[-1].expression):
            steps.append(DerivationStep(what, changed))
    return Derivation(title, tuple(steps))


# The length that solves an equation.
