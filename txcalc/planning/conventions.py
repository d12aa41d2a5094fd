"""Published counts of FLOPs and of activation memory, and rules of thumb, compared with txcalc's term by term.

A convention is a function of a model and its ledger. Its terms sum exactly to both totals, and show what a formula
counts outside matrix products, what it leaves out, and where its sizes are not the model's. A model that a formula does
not describe is refused. FLOPs are those of the whole workload; a training step is three forwards.

`pp` is the number of pipeline stages, for formulas that sum parameters over ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from txcalc.errors import InputError, UnknownName
from txcalc.ledger import FEED_FORWARD, Entry, Ledger
from txcalc.model import Model
from txcalc.num import Num, total
from txcalc.planning.gradients import training_flops
from txcalc.planning.terms import (
    CORE,
    HEAD,
    IDLE,
    MATRICES,
    NOTHING,
    TABLES,
    WHY,
    Convention,
    ConventionTerm,
    by_kind,
    by_product,
    convention,
    cores_term,
    describes,
    flops_of,
    only_stack,
    parameters,
    term,
    tied_table,
    trained,
    weights,
    why_core,
    widths,
)


def palm(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """6·N + 12·L·H·Q·T per token of a training step; N is every parameter, with embeddings.

    Source   Chowdhery et al. 2022 (arXiv 2204.02311), appendix B
    """
    describes("palm", model, ledger, recurrent=False, latent=False)
    core = cores_term(ledger, 3, attention, widths)
    formula = "6·N + 12·L·H·Q·T per token"
    return trained("palm", formula, "Chowdhery et al. 2022, appendix B", [*weights(ledger, 3), core])


def llm_foundry(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """6·N + 12·L·D·T per token of a training step; N is every parameter, with embeddings. Hardware FLOPs with
    activation checkpointing are 4/3 of it.

    Source   mosaicml/llm-foundry (8c8dd48), tests/scripts/train/benchmarking/README.md: MFU and HFU
    """
    describes("llm-foundry", model, ledger, recurrent=False, latent=False)
    width = only_stack(model).d_model
    core = cores_term(ledger, 3, attention, lambda core: 2 * width)
    source = "mosaicml/llm-foundry, tests/scripts/train/benchmarking"
    return trained("llm-foundry", "6·N + 12·L·D·T per token", source, [*weights(ledger, 3), core])


def nanotron(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """6·N + 12·L·D·T per token of a training step; N is summed over the ranks, so that a tied table on two stages of a
    pipeline counts twice.

    Source   the runs of huggingface/nanotron's ultra-scale playbook (2025), which it reproduces
    """
    describes("nanotron", model, ledger, recurrent=False, latent=False)
    width = only_stack(model).d_model
    core = cores_term(ledger, 3, attention, lambda core: 2 * width)
    tables = [entry.params for entry in ledger if entry.duty == "tokens"]
    tied_flops = 6 * sum(tables) * ledger.work.positions if pp > 1 and tied_table(ledger) else 0
    twice = term("the tied table on the last stage", tied_flops, 0, "held on two stages, and counted on both")
    formula = "6·N + 12·L·D·T per token; N as the ranks hold it"
    return trained("nanotron", formula, "nanotron, ultra-scale playbook", [*weights(ledger, 3), twice, core])


def six_n(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """6·N per token of a training step, with N active parameters and embeddings; nothing for scores and values.

    Source   as commonly quoted; in Kaplan et al. 2020 (arXiv 2001.08361), section 2.1, N is without embeddings
    """
    return _six_n("6n", "as quoted after Kaplan et al. 2020", model, ledger, attention)


def llama_3(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """6·N per token, which gives the paper's 3.8e25 FLOPs for 405 B parameters and 15.6 T tokens.

    Source   Grattafiori et al. 2024 (arXiv 2407.21783), section 3.2 and table 4, which do not give a formula
    """
    return _six_n("llama-3", "Grattafiori et al. 2024, from its 3.8e25 FLOPs", model, ledger, attention)


def _six_n(name: str, source: str, model: Model, ledger: Ledger, attention: str) -> Convention:
    describes(name, model, ledger)
    core = cores_term(ledger, 3, attention, lambda core: 0)
    return trained(name, "6·N per token", source, [*weights(ledger, 3, (IDLE,)), core])


def nanogpt(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """6·N + 12·L·H·Q·T per token of a training step; N without the position table, Q = D/H, T the training length.

    Source   karpathy/nanoGPT (3adf61e), model.py: get_num_params, estimate_mfu
    """
    describes("nanogpt", model, ledger, recurrent=False, latent=False)
    width = only_stack(model).d_model
    cores = cores_term(ledger, 3, attention, lambda core: 2 * core.heads * (width // core.heads))
    formula = "6·N + 12·L·H·Q·T per token; N without positions, Q = D/H"
    return trained("nanogpt", formula, "karpathy/nanoGPT, model.py", [*weights(ledger, 3, ("position table",)), cores])


def torchtitan(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """6·N + 6·L·H·(d_qk + d_v)·T per token of a training step, with L layers that have attention.

    N counts active parameters (routed experts times k/E), without the embedding tables unless the head is tied.

    Source   pytorch/torchtitan (b5bcd76), torchtitan/models/utils.py
    """
    describes("torchtitan", model, ledger, index=False)
    left_out = (IDLE,) if tied_table(ledger) else (IDLE, *TABLES.values())
    formula = "6·N + 6·L·H·(d_qk + d_v)·T per token; N active, without untied tables"
    terms = [*weights(ledger, 3, left_out), cores_term(ledger, 3, attention, widths)]
    return trained("torchtitan", formula, "pytorch/torchtitan, models/utils.py", terms)


def megatron_lm(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """Three forwards of the linear layers, the head once, and half of all pairs of attention, for any window; no
    routers, and only the norms of MLA's latents.

    Source   NVIDIA/Megatron-LM (001b00c), megatron/training/training.py: num_floating_point_operations; the same as
             stas00/ml-engineering (744d01e), insights/when-to-upgrade-gpus, for its runs with DeepSpeed
    """
    describes("megatron-lm", model, ledger, recurrent=False, index=False)
    flops = by_kind(ledger, attention)
    cores = [(entry.leaf.attended, entry.runs) for entry in ledger if entry.leaf.attended]
    half = 3 * sum(widths(attended) * runs for attended, runs in cores) * ledger.work.positions * ledger.work.tokens
    causal = "theirs: half of all pairs, as a causal kernel computes"
    core = term(CORE, half, 3 * flops.pop("attention_core", 0), causal)
    inner = [entry for entry in ledger if entry.duty == "latent"]
    norms = 6 * sum(entry.params for entry in inner) * ledger.work.positions
    terms = [
        term(name, 0 if kind == "router" else 3 * flops.get(kind, 0), 3 * flops.get(kind, 0), NOTHING)
        for kind, name in MATRICES.items()
    ]
    latents = term("norms of the latents", norms, 0, "their weights are in no matrix product")
    formula = "6·(linear layers + head) + 3·L·H·(d_qk + d_v)·T per token"
    return trained("megatron-lm", formula, "NVIDIA/Megatron-LM, training.py", [*terms, latents, core])


def hugging_face(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """6·N per input token, N without embedding tables and a head tied to them; for an encoder–decoder, the encoder's
    tokens times the parameters of both.

    Source   huggingface/transformers, modeling_utils.py: floating_point_ops, estimate_tokens
    """
    if model.kind not in ("decoder", "encoder", "encoder-decoder", "recurrent", "hybrid") or ledger.work.past:
        raise InputError("--as transformers", [f"counts a training step on text; {model.name} is {model.kind}"])
    tied, encoder = tied_table(ledger), model.has_encoder_apart
    tokens = ledger.work.batch * (ledger.work.source if encoder else ledger.work.tokens)
    theirs, ours = Counter[str](), Counter[str]()
    for entry in ledger:
        if entry.kind != "attention_core":
            ours[MATRICES.get(entry.kind, "norms")] += 3 * flops_of(entry, attention)
        for name, params in parameters(entry, tied):
            theirs[name] += 0 if entry.leaf.role == "table" else 6 * params * tokens
    terms = [
        term(name, theirs[name], ours[name], WHY.get(name, "theirs: once for every token that goes in"))
        for name in dict.fromkeys((*MATRICES.values(), *theirs, *ours))
    ]
    cores = sum(flops_of(entry, attention) for entry in ledger if entry.kind == "attention_core")
    formula = "6·N per token that goes in; N without tables"
    core = term(CORE, 0, 3 * cores, NOTHING)
    return trained("transformers", formula, "transformers, floating_point_ops", [*terms, core])


def two_n(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """2·N per token of a forward pass, with N active parameters and embeddings; nothing for scores and values.

    Source   as commonly quoted; in Kaplan et al. 2020 (arXiv 2001.08361), section 2.1, N is without embeddings
    """
    describes("2n", model, ledger, past=True)
    terms = (*weights(ledger, 1, (IDLE,)), cores_term(ledger, 1, attention, lambda core: 0))
    return convention("2n", "a forward pass", "2·N per token", "as quoted after Kaplan et al. 2020", terms)


def megatron(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """96·B·s·l·h²·(1 + s/(6·h) + V/(16·l·h)), a training step that recomputes the layers' forward.

    Every layer counts 4·h² of attention and 8·h² of feed-forward, regardless of the model's.

    Source   Narayanan et al. 2021 (arXiv 2104.04473), equation 3
    """
    formula = "96·B·s·l·h²·(1 + s/(6·h) + V/(16·l·h))"
    return _megatron("megatron", formula, "Narayanan et al. 2021, equation 3", model, ledger, attention, "blocks")


def megatron_model(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """72·B·s·l·h²·(1 + s/(6·h) + V/(12·l·h)), a training step without recomputation.

    Source   Korthikanti et al. 2022 (arXiv 2205.05198), appendix A, equation 7
    """
    formula = "72·B·s·l·h²·(1 + s/(6·h) + V/(12·l·h))"
    return _megatron("megatron-model", formula, "Korthikanti et al. 2022, appendix A", model, ledger, attention, "none")


def _megatron(
    name: str, formula: str, source: str, model: Model, ledger: Ledger, attention: str, included: str
) -> Convention:
    describes(name, model, ledger, recurrent=False, latent=False)
    stack, flops = only_stack(model), by_kind(ledger, attention)
    width, layers, vocab, rows = stack.d_model, stack.n_layers, stack.vocab_size or 0, ledger.work.positions
    squares, scores = rows * layers * width * width, rows * ledger.work.tokens * layers * width
    channel = sum(flops.pop(kind, 0) for kind in FEED_FORWARD)
    recomputed = {"core": 4 * scores, "blocks": 24 * squares + 4 * scores}
    terms = [
        term("attention projections", 24 * squares, 3 * flops.pop("attention", 0), "theirs: four matrices of D × D"),
        term("feed-forward", 48 * squares, 3 * channel, "theirs: two matrices of D × 4·D"),
        term("scores and values", 12 * scores, 3 * flops.pop("attention_core", 0), why_core(ledger, attention)),
        term("logits", 6 * rows * width * vocab, 3 * flops.pop("head", 0), HEAD),
        term("the layers' forward again", recomputed.get(included, 0), 0, "activations recomputed in backward"),
        term("other products", 0, 3 * sum(flops.values()), NOTHING),
    ]
    return convention(name, "a training step", formula, source, terms)._replace(
        recomputed=recomputed, included=included
    )


def chinchilla(model: Model, ledger: Ledger, attention: str, pp: int) -> Convention:
    """Three forwards of embeddings 2·T·V·D, logits 2·T·D·V, and in each layer: QKV 6·T·D·(d·H), scores 2·T²·(d·H),
    softmax 3·H·T², reduction 2·T²·(d·H), projection 2·T·(d·H)·D, dense block 4·T·D·F.

    This follows the text of the appendix; the paper's table A4 has its ratios only without embeddings and logits.

    Source   Hoffmann et al. 2022 (arXiv 2203.15556), appendix F
    """
    describes("chinchilla", model, ledger, recurrent=False, latent=False, experts=False)
    width, vocab, rows = only_stack(model).d_model, only_stack(model).vocab_size or 0, ledger.work.positions
    cores = [(entry.leaf.attended, entry.runs) for entry in ledger if entry.leaf.attended]
    joint = rows * sum(core.heads * core.d_qk * runs for core, runs in cores)
    pairs = rows * ledger.work.tokens * sum(core.heads * runs for core, runs in cores)
    scores = joint * ledger.work.tokens
    downs = [
        (entry.leaf.matrix, entry.runs) for entry in ledger if entry.duty == "writes" and entry.kind == "feed_forward"
    ]
    inner = rows * sum(matrix[0] * runs for matrix, runs in downs if matrix)
    flops = by_product(ledger, attention)
    table = 6 * rows * vocab * width
    terms = (
        term("embeddings", table, 0, "a lookup multiplies nothing"),
        term("QKV", 18 * width * joint, 3 * flops.pop("reads", 0), "theirs: h_kv = h"),
        term("scores (key·query logits)", 6 * scores, 3 * flops.pop("scores", 0), why_core(ledger, attention)),
        term("softmax", 9 * pairs, 0, "no matrix product"),
        term("reduction (softmax·value)", 6 * scores, 3 * flops.pop("values", 0), why_core(ledger, attention)),
        term("projection", 6 * joint * width, 3 * flops.pop("writes", 0)),
        term("dense block", 12 * width * inner, 3 * flops.pop("feed_forward", 0), "theirs: two matrices of D × F"),
        term("logits", table, 3 * flops.pop("head", 0), HEAD),
        term("other products", 0, 3 * sum(flops.values()), NOTHING),
    )
    formula = "3·(embeddings + L·(QKV + scores + softmax + reduction + projection + dense) + logits)"
    return trained("chinchilla", formula, "Hoffmann et al. 2022, appendix F", terms)


CONVENTIONS: dict[str, Callable[..., Convention]] = {
    "palm": palm,
    "chinchilla": chinchilla,
    "megatron": megatron,
    "megatron-model": megatron_model,
    "megatron-lm": megatron_lm,
    "llm-foundry": llm_foundry,
    "nanotron": nanotron,
    "nanogpt": nanogpt,
    "torchtitan": torchtitan,
    "llama-3": llama_3,
    "transformers": hugging_face,
    "6n": six_n,
    "2n": two_n,
}


def known_conventions(names: Sequence[str], *extra_names: str) -> tuple[str, ...]:
    """The distinct names of conventions; `extra_names` are also valid. Errors: `UnknownName`."""
    conventions = [*CONVENTIONS, *extra_names]
    for name in names:
        if name not in conventions:
            raise UnknownName("--as", "convention", name, conventions, f"one of {', '.join(conventions)}")
    return tuple(dict.fromkeys(names))


class RuleOfThumb(NamedTuple):
    """A rule of thumb: its quantity, formula in letters, result, and the exact figure."""

    what: str
    formula: str
    gives: Any
    truth: Any


def sums_of(ledger: Ledger) -> dict[str, Any]:
    """Sums of parameters that are often quoted as a model's: without embedding and head, of all layers, of their
    feed-forward."""
    kinds = ledger.by_kind("params")
    blocks = total(entry.params for entry in ledger if entry.layer)
    return {
        "without embedding and head": ledger.total("params") - kinds.get("embedding", 0) - kinds.get("head", 0),
        "blocks: all layers": blocks,
        "feed-forward of all layers": total(kinds.get(kind, 0) for kind in FEED_FORWARD),
    }


def rules_of_thumb(model: Model, ledger: Ledger) -> list[RuleOfThumb]:
    """Parameters: 4·D² per layer's attention, 8·D² per feed-forward, 12·L·D² in blocks, 2·V·D in embeddings; FLOPs per
    token: 2·N and 6·N, with N active parameters, compared with forward and a training step of this workload.
    """
    squares = total(stack.n_layers for stack in model.stacks) * model.d_model**2
    tables = 2 * (model.vocab_size or 0) * model.d_model
    params, active, sums = ledger.total("params"), ledger.total("active"), sums_of(ledger)
    tokens = ledger.work.batch * ledger.work.tokens
    forward, training = Fraction(ledger.total("flops"), tokens), Fraction(training_flops(ledger), tokens)
    attention, ffn = ledger.by_kind("params").get("attention", 0), sums["feed-forward of all layers"]
    rules = [
        (attention, RuleOfThumb("attention of all layers", "4·L·D²", 4 * squares, attention)),
        (ffn, RuleOfThumb("feed-forward of all layers", "8·L·D²", 8 * squares, ffn)),
        (True, RuleOfThumb("parameters, no embeddings", "12·L·D²", 12 * squares, sums["without embedding and head"])),
        (tables, RuleOfThumb("parameters", "12·L·D² + 2·V·D", 12 * squares + tables, params)),
        (True, RuleOfThumb("forward FLOPs per token", "2·N", 2 * active, forward)),
        (True, RuleOfThumb("training FLOPs per token", "6·N", 6 * active, training)),
    ]
    return [rule for applies, rule in rules if applies]


MASK = "a dropout mask of one byte per element: txcalc's models drop nothing"
GELU = ("gelu", "gelu_tanh")
DROPPED = "the probabilities again, after dropout"


def korthikanti(model: Model, ledger: Ledger) -> Convention:
    """s·b·h·(34 + 5·a·s/h) bytes per layer, at 16 bits per element and one byte per element of a dropout mask.

    Letters  s tokens, b batch, h width, a heads
    Counts   the layers, with the attention matrix kept; txcalc's own are the ledger's saved elements, 2 bytes each
    Omits    embedding, final norm and head, as the paper's count per layer does
    Source   Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1, equation 1
    Errors   `InputError` for layers that it does not describe
    """
    layers = [entry for entry in ledger if entry.steps[0].duty == "layer"]
    _describes(model, ledger, layers)
    core = next(entry for entry in layers if entry.leaf.attended)
    assert core.leaf.attended is not None
    heads: Num = core.leaf.attended.heads
    hidden = ledger.work.positions * model.stacks[0].d_model * core.runs
    scores = ledger.work.positions * ledger.work.tokens * heads * core.runs

    def saved_elements(kind: str, duty: str = "", *, activation: bool = False) -> Num:
        entries = (entry for entry in layers if entry.kind == kind and entry.duty == duty)
        return total(2 * entry.saved for entry in entries if (entry.leaf.role == "activation") == activation)

    norms = total(2 * entry.saved for entry in layers if entry.leaf.role == "norm")
    terms = (
        ConventionTerm("layer norms", 4 * hidden, norms),
        ConventionTerm("input of Q, K and V", 2 * hidden, saved_elements("attention", "reads")),
        ConventionTerm("Q, K and V", 6 * hidden, saved_elements("attention_core") - 2 * scores),
        ConventionTerm("softmax", 2 * scores, 2 * scores),
        ConventionTerm("mask of the softmax's dropout", scores, 0, MASK),
        ConventionTerm("what that dropout gives", 2 * scores, 0, DROPPED),
        ConventionTerm("input of the projection", 2 * hidden, saved_elements("attention", "writes")),
        ConventionTerm("mask of the attention's dropout", hidden, 0, MASK),
        ConventionTerm("input of the feed-forward", 2 * hidden, saved_elements("feed_forward")),
        ConventionTerm("input of GeLU", 8 * hidden, saved_elements("feed_forward", activation=True)),
        ConventionTerm("input of the second matrix", 8 * hidden, saved_elements("feed_forward", "writes")),
        ConventionTerm("mask of the feed-forward's dropout", hidden, 0, MASK),
    )
    source = "Korthikanti et al. 2022, equation 1"
    return Convention("korthikanti", "activation bytes of the layers", "s·b·h·(34 + 5·a·s/h) a layer", source, terms)


def _describes(model: Model, ledger: Ledger, layers: list[Entry]) -> None:
    """Errors: `InputError` unless every layer is the formula's: multi-head attention as wide as the model, and a
    feed-forward of two matrices of h × 4·h."""
    stack = model.stacks[0]
    kinds = [layer for layer in stack.layer.values() if {"attention", "feed_forward"} == set(layer.parts)]
    cores = [entry.leaf for entry in layers if entry.leaf.attended]
    faults = []
    if not (ledger.work.keep_scores and ledger.work.past == 0):
        faults.append("counts a training step that keeps the attention matrix (keep_scores)")
    if stack.lora is not None:
        faults.append("describes layers whose weights all learn: these are frozen")
    plain = len(model.stacks) == len(kinds) == len(stack.layer) == len(cores) == 1
    heads = cores[0].attended if plain and not cores[0].extra_products and not cores[0].kernels else None
    if heads is None or heads.groups != heads.heads or not heads.d_qk == heads.d_v == stack.d_model / heads.heads:
        faults.append(f"describes equal layers of h = h_kv heads as wide as the model; {model.name} has others")
    else:
        inner = kinds[0].feed_forward
        if not inner or inner.gated or inner.d_ff != 4 * stack.d_model or inner.activation not in GELU:
            faults.append(f"describes a feed-forward of two matrices of D × 4·D with GeLU; {model.name} has another")
    if faults:
        raise InputError("korthikanti", faults)
