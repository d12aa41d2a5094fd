"""Published counts of FLOPs, each beside txcalc's own, with the difference term by term.

A convention is a function of a model and its ledger. Its terms sum exactly to both totals, and say what a formula
counts that is in no matrix product, what it leaves out, and where its sizes are not the model's. What a formula cannot
describe at all is refused. FLOPs are those of the whole workload; a training step is three forwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from txcalc.errors import InputError
from txcalc.ledger import Entry, Ledger
from txcalc.model import Model
from txcalc.parts.attention import AttentionCore, DifferentialCore, IndexCore, LatentCore
from txcalc.parts.linear import Convolution, Linear, Lookup, Norm, Patches
from txcalc.planning.crossover import FEED_FORWARD


class Term(NamedTuple):
    """FLOPs of one term by the convention and by txcalc, and why they differ (empty: they do not)."""

    name: str
    theirs: int
    ours: int
    why: str = ""


class Convention(NamedTuple):
    """A published count of one workload: what it counts, its formula, where it stands, and its terms."""

    name: str
    counts: str
    formula: str
    source: str
    terms: tuple[Term, ...]

    @property
    def theirs(self) -> int:
        return sum(term.theirs for term in self.terms)

    @property
    def ours(self) -> int:
        return sum(term.ours for term in self.terms)


def palm(model: Model, ledger: Ledger, attention: str) -> Convention:
    """6·N + 12·L·H·Q·T a token of a training step; N is every parameter, embeddings too.

    Source   Chowdhery et al. 2022 (arXiv 2204.02311), appendix B
    """
    _describes("palm", model, ledger, recurrent=False, latent=False)
    terms = (*_weights(ledger, 3), _cores(ledger, 3, attention, _widths))
    formula = "6·N + 12·L·H·Q·T a token"
    return _convention("palm", "a training step", formula, "Chowdhery et al. 2022, appendix B", terms)


def nanogpt(model: Model, ledger: Ledger, attention: str) -> Convention:
    """6·N + 12·L·H·Q·T a token of a training step; N without the position table, Q = D/H, T the length trained on.

    Source   karpathy/nanoGPT (3adf61e), model.py: get_num_params, estimate_mfu
    """
    _describes("nanogpt", model, ledger, recurrent=False, latent=False)
    width = _stack(model)["d_model"]
    cores = _cores(ledger, 3, attention, lambda core: 2 * core.n_heads * (width // core.n_heads))
    formula = "6·N + 12·L·H·Q·T a token; N without positions, Q = D/H"
    terms = (*_weights(ledger, 3, ("position table",)), cores)
    return _convention("nanogpt", "a training step", formula, "karpathy/nanoGPT, model.py", terms)


def torchtitan(model: Model, ledger: Ledger, attention: str) -> Convention:
    """6·N + 6·L·H·(d_qk + d_v)·T a token of a training step, L the layers that have attention.

    N is the parameters a token passes (routed experts times k/E), without the embedding tables unless the head is tied.

    Source   pytorch/torchtitan (b5bcd76), torchtitan/models/utils.py
    """
    _describes("torchtitan", model, ledger, index=False)
    left_out = (IDLE,) if _tied(ledger) else (IDLE, *TABLES.values())
    terms = (*_weights(ledger, 3, left_out), _cores(ledger, 3, attention, _widths))
    formula = "6·N + 6·L·H·(d_qk + d_v)·T a token; N active, without untied tables"
    return _convention("torchtitan", "a training step", formula, "pytorch/torchtitan, models/utils.py", terms)


def two_n(model: Model, ledger: Ledger, attention: str) -> Convention:
    """2·N a token of a forward pass, N the parameters a token passes, embeddings too; nothing for scores and values.

    Source   as it is quoted; in Kaplan et al. 2020 (arXiv 2001.08361), section 2.1, N is without embeddings
    """
    _describes("2n", model, ledger, past=True)
    terms = (*_weights(ledger, 1, (IDLE,)), _cores(ledger, 1, attention, lambda core: 0))
    return _convention("2n", "a forward pass", "2·N a token", "as quoted after Kaplan et al. 2020", terms)


def megatron(model: Model, ledger: Ledger, attention: str) -> Convention:
    """96·B·s·l·h²·(1 + s/(6·h) + V/(16·l·h)), a training step that computes the layers' forward twice.

    Every layer has 4·h² of attention and 8·h² of feed-forward, whatever the model's has. Without the recomputation it
    is the 72·B·s·l·h²·(1 + s/(6·h) + V/(12·l·h)) of Korthikanti et al. 2022 (arXiv 2205.05198).

    Source   Narayanan et al. 2021 (arXiv 2104.04473), equation 3
    """
    _describes("megatron", model, ledger, recurrent=False, latent=False)
    stack, own = _stack(model), _by_kind(ledger, attention)
    width, layers, vocab, rows = stack["d_model"], stack["n_layers"], stack["vocab_size"] or 0, ledger.work.positions
    squares, scores = rows * layers * width * width, rows * ledger.work.tokens * layers * width
    channel = sum(own.pop(kind, 0) for kind in FEED_FORWARD)
    terms = (
        _term("attention projections", 24 * squares, 3 * own.pop("attention", 0), "theirs: four matrices of D × D"),
        _term("feed-forward", 48 * squares, 3 * channel, "theirs: two matrices of D × 4·D"),
        _term("scores and values", 12 * scores, 3 * own.pop("attention_core", 0), _why_core(ledger, attention)),
        _term("logits", 6 * rows * width * vocab, 3 * own.pop("head", 0), _HEAD),
        _term("the layers' forward again", 24 * squares + 4 * scores, 0, "activations recomputed in backward"),
        _term("other products", 0, 3 * sum(own.values()), _NOTHING),
    )
    formula = "96·B·s·l·h²·(1 + s/(6·h) + V/(16·l·h))"
    return _convention("megatron", "a training step", formula, "Narayanan et al. 2021, equation 3", terms)


def chinchilla(model: Model, ledger: Ledger, attention: str) -> Convention:
    """Three forwards of embeddings 2·T·V·D, logits 2·T·D·V, and in each layer: QKV 6·T·D·(d·H), scores 2·T²·(d·H),
    softmax 3·H·T², reduction 2·T²·(d·H), projection 2·T·(d·H)·D, dense block 4·T·D·F.

    As the appendix is written; the ratios of the paper's table A4 come out only without its embeddings and logits.

    Source   Hoffmann et al. 2022 (arXiv 2203.15556), appendix F
    """
    _describes("chinchilla", model, ledger, recurrent=False, latent=False, experts=False)
    width, vocab, rows = _stack(model)["d_model"], _stack(model)["vocab_size"] or 0, ledger.work.positions
    cores = [(entry.leaf, entry.runs) for entry in ledger if isinstance(entry.leaf, AttentionCore)]
    joint = rows * sum(core.n_heads * core.d_qk * runs for core, runs in cores)
    pairs = rows * ledger.work.tokens * sum(core.n_heads * runs for core, runs in cores)
    scores = joint * ledger.work.tokens
    inner = rows * sum(leaf.d_in * entry.runs for entry, leaf in _linears(ledger) if _last(entry) == "down")
    own = _by_product(ledger, attention)
    table = 6 * rows * vocab * width
    terms = (
        _term("embeddings", table, 0, "a lookup multiplies nothing"),
        _term("QKV", 18 * width * joint, 3 * sum(own.pop(name, 0) for name in "qkv"), "theirs: h_kv = h"),
        _term("scores (key·query logits)", 6 * scores, 3 * own.pop("scores", 0), _why_core(ledger, attention)),
        _term("softmax", 9 * pairs, 0, "no matrix product"),
        _term("reduction (softmax·value)", 6 * scores, 3 * own.pop("values", 0), _why_core(ledger, attention)),
        _term("projection", 6 * joint * width, 3 * own.pop("o", 0)),
        _term("dense block", 12 * width * inner, 3 * own.pop("feed_forward", 0), "theirs: two matrices of D × F"),
        _term("logits", table, 3 * own.pop("head", 0), _HEAD),
        _term("other products", 0, 3 * sum(own.values()), _NOTHING),
    )
    formula = "3·(embeddings + L·(QKV + scores + softmax + reduction + projection + dense) + logits)"
    return _convention("chinchilla", "a training step", formula, "Hoffmann et al. 2022, appendix F", terms)


CONVENTIONS: dict[str, Callable[[Model, Ledger, str], Convention]] = {
    "palm": palm,
    "chinchilla": chinchilla,
    "megatron": megatron,
    "nanogpt": nanogpt,
    "torchtitan": torchtitan,
    "2n": two_n,
}


# The parts of a convention.

IDLE = "experts a token does not pass"
TABLES = {"tokens": "token table", "positions": "position table", "types": "token-type table"}
MATRICES = {
    "attention": "attention projections",
    "feed_forward": "feed-forward",
    "experts": "experts a token passes",
    "shared_experts": "shared experts",
    "router": "routers",
    "recurrent": "recurrent mixers",
    "head": "head",
    "embedding": "embedding projection",
    "other": "other layers",
}
WHY = {
    **dict.fromkeys(TABLES.values(), "a lookup multiplies nothing"),
    "norms": "their weights are in no matrix product",
    "biases": "added, not multiplied",
    "other weights": "in no matrix product",
    IDLE: "in no product of this token",
}
_HEAD = "theirs: V × D at every position"
_NOTHING = "not in their formula"


def _describes(
    name: str,
    model: Model,
    ledger: Ledger,
    *,
    recurrent: bool = True,
    latent: bool = True,
    index: bool = True,
    experts: bool = True,
    past: bool = False,
) -> None:
    """Refuses a model or workload that a formula says nothing about."""
    faults = []
    if model.kind in ("encoder-decoder", "audio", "vision"):
        faults.append(f"describes one stack over one text; {model.name} is a model of kind {model.kind!r}")
    elif not recurrent and model.kind in ("recurrent", "hybrid"):
        faults.append(f"takes every layer for attention, {model.name} has others (torchtitan and 2n know them)")
    elif not latent and any(isinstance(entry.leaf, LatentCore) for entry in ledger):
        faults.append(f"knows one head width, {model.name} has two and a latent (torchtitan and 2n know them)")
    elif not index and any(isinstance(entry.leaf, IndexCore) for entry in ledger):
        faults.append(f"knows no index that selects keys, {model.name} has one (2n counts its parameters)")
    elif not experts and any(entry.routed for entry in ledger):
        faults.append(f"knows no experts, {model.name} has them (torchtitan and 2n know them)")
    if not past and ledger.work.past:
        faults.append("counts a training step, which has no past (drop --past)")
    if faults:
        raise InputError(f"--as {name}", faults)


def _convention(name: str, counts: str, formula: str, source: str, terms: Iterable[Term]) -> Convention:
    return Convention(name, counts, formula, source, tuple(term for term in terms if term.theirs or term.ours))


def _term(name: str, theirs: int, ours: int, why: str = "") -> Term:
    return Term(name, theirs, ours, why if theirs != ours else "")


def _weights(ledger: Ledger, passes: int, left_out: Iterable[str] = ()) -> Iterator[Term]:
    """2·N FLOPs a token and pass, apart by what the parameters are, beside the products that they are in."""
    tied = _tied(ledger)
    theirs, ours = Counter[str](), Counter[str]()
    for entry in ledger:
        if entry.kind != "attention_core":
            ours[MATRICES.get(entry.kind, "norms")] += passes * entry.flops
        for name, params in _parameters(entry, tied):
            theirs[name] += 0 if name in left_out else 2 * passes * params * ledger.work.positions
    for name in dict.fromkeys((*MATRICES.values(), *theirs, *ours)):
        yield _term(name, theirs[name], ours[name], WHY.get(name, "theirs: once at every position"))


def _parameters(entry: Entry, tied: bool) -> Iterator[tuple[str, int]]:
    """The parameters of a leaf, by the term they are in."""
    for weight in entry.leaf.weights():
        if isinstance(entry.leaf, Lookup):
            name = "head" if tied and _last(entry) == "tokens" else TABLES.get(_last(entry), "further tables")
        elif isinstance(entry.leaf, Linear | Convolution | Patches):
            name = "biases" if weight.name == "bias" else MATRICES[entry.kind]
        else:
            name = "norms" if isinstance(entry.leaf, Norm) else "other weights"
        yield name, weight.size * entry.active_times
        yield IDLE, weight.size * (entry.times - entry.active_times)


def _cores(ledger: Ledger, passes: int, attention: str, width: Callable[[Any], int]) -> Term:
    """2·width·T FLOPs a token, pass and layer that has attention, beside the cores' own."""
    cores = [entry for entry in ledger if entry.kind == "attention_core"]
    theirs = sum(width(entry.leaf) * entry.runs for entry in cores) * ledger.work.positions * ledger.work.tokens
    ours = _by_kind(ledger, attention).get("attention_core", 0)
    return _term(_CORE, 2 * passes * theirs, passes * ours, _why_core(ledger, attention) if theirs else _NOTHING)


_CORE = "scores and values"


def _widths(core: Any) -> int:
    """h·(d_qk + d_v)."""
    query: int = core.d_nope + core.d_rope if isinstance(core, LatentCore) else core.d_qk
    return core.n_heads * (query + core.d_v)  # type: ignore[no-any-return]


def _why_core(ledger: Ledger, attention: str) -> str:
    if attention == "masked":
        return "ours: only what the mask lets through"
    if any(isinstance(entry.leaf, DifferentialCore) for entry in ledger):
        return "ours: two attentions with the same queries and keys"
    distances = any(isinstance(entry.leaf, AttentionCore) and entry.leaf.distances for entry in ledger)
    return "ours: the products with the distances too" if distances else "theirs: heads of another width"


def _by_kind(ledger: Ledger, attention: str) -> dict[str, int]:
    return ledger.by_kind("flops" if attention == "dense" else "flops_masked")


def _by_product(ledger: Ledger, attention: str) -> Counter[str]:
    """FLOPs by projection or by product of a core; of all else by kind."""
    result = Counter[str]()
    for entry in ledger:
        for op in entry.operations:
            flops = (op.flops if attention == "dense" else op.flops_masked) * entry.runs
            names = {"attention": _last(entry), "attention_core": op.name}
            result[names.get(entry.kind, entry.kind)] += flops
    return result


def _linears(ledger: Ledger) -> Iterator[tuple[Entry, Linear]]:
    return ((entry, entry.leaf) for entry in ledger if isinstance(entry.leaf, Linear))


def _last(entry: Entry) -> str:
    return entry.steps[-1].name


def _tied(ledger: Ledger) -> bool:
    return any(leaf.tied for _, leaf in _linears(ledger))


def _stack(model: Model) -> Any:
    (stack,) = model.spec["stacks"].values()
    return stack
