"""The description of a model as a file holds it: which keys there are, what each may be, and its default.

`resolve` checks a description against these tables. Numbers that are not ints (symbols, arrays) come from `algebra` and
`sweep`, never from a user: their sizes pass unchecked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from txcalc.errors import InputError, UnknownName
from txcalc.parts.mechanisms import MIXERS, OTHERS, options

# What a key may be is said beside the mechanisms; a description's own tables use the same words.
from txcalc.parts.options import ACTIVATIONS as ACTIVATIONS
from txcalc.parts.options import MAX_SIZE as MAX_SIZE
from txcalc.parts.options import REQUIRED as REQUIRED
from txcalc.parts.options import Check as Check
from txcalc.parts.options import Field as Field
from txcalc.parts.options import Wrong as Wrong
from txcalc.parts.options import count as count
from txcalc.parts.options import flag as flag
from txcalc.parts.options import one_of as one_of
from txcalc.parts.options import per_head as per_head
from txcalc.parts.options import real as real
from txcalc.parts.options import size as size
from txcalc.symbols import BY_LETTER

MAX_LAYERS = 10**5


def layers(value: Any) -> Any:
    """A number of layers."""
    if type(size(value)) is int and value > MAX_LAYERS:
        raise Wrong(f"a whole number from 1 to {MAX_LAYERS:,}")
    return value


def expected(value: Any) -> int:
    """A number of parameters, as a preset expects it."""
    if type(value) is not int or value < 1:
        raise Wrong("a whole number above 0")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise Wrong("a text")
    return value


def texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise Wrong("a list of texts")
    return value


def biases(value: Any) -> list[str]:
    """Which of the projections have a bias: true (all four), false, or a list of their letters (g: of the gate)."""
    if isinstance(value, bool):
        return ["q", "k", "v", "o"] if value else []
    if isinstance(value, list) and all(item in ("q", "k", "v", "o", "g") for item in value):
        return value
    raise Wrong('true, false, or a list out of "q", "k", "v", "o", "g"')


def some_of(*choices: str) -> Check:
    """A list of different ones of the choices."""

    def check(value: Any) -> list[str]:
        if isinstance(value, list) and all(item in choices for item in value) and len(set(value)) == len(value):
            return value
        raise Wrong(f"a list out of {', '.join(map(repr, choices))}, each once")

    return check


def tables(value: Any) -> list[list[Any]]:
    """Pairs of sizes: the rows of a table, and how often it is read for a token."""
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise Wrong("a list of pairs: the rows of a table, and how often it is read")
    return [[size(rows), size(reads)] for rows, reads in value]


def groups_of(number: int) -> Check:
    """A list of so many numbers of groups."""

    def check(value: Any) -> list[Any]:
        if isinstance(value, list) and len(value) == number and any(item != 1 for item in value):
            return [size(item) for item in value]
        raise Wrong(f"a list of {number} whole numbers above 0, not all of them 1")

    return check


def table(value: Any) -> Mapping[str, Any] | None:
    """A table, read where it is needed."""
    if value is not None and not isinstance(value, Mapping):
        raise Wrong("a table")
    return value


def tables_by_name(value: Any) -> Mapping[str, Any]:
    """Tables by name."""
    if not isinstance(value, Mapping) or not all(isinstance(item, Mapping) for item in value.values()):
        raise Wrong("tables by name")
    return value


def parts_of(value: Any) -> list[str]:
    """Names of a layer's parts."""
    if isinstance(value, list) and all(isinstance(item, str) and item in PARTS for item in value):
        return value
    raise Wrong(f"a list out of {', '.join(PARTS)}")


PARTS = (
    "attention",
    "cross_attention",
    "feed_forward",
    "experts",
    *MIXERS,
    *OTHERS,
    "shared",
    "layer_input",
)
PART_TABLES = (
    "attention",
    "latent",
    "feed_forward",
    "experts",
    *MIXERS,
    *OTHERS,
    "shared",
    "layer_input",
)
LAYER_KEYS = (*PART_TABLES, "norm", "positions", "parts")

IDENTITY = {
    "name": Field(text, "", "name in lower case with hyphens"),
    "family": Field(text, "", "family the model belongs to"),
    "kind": Field(
        one_of("decoder", "encoder", "encoder-decoder", "vision", "audio"), "decoder", "how stacks are joined"
    ),
    "context": Field(size, None, "longest context it was made for, in tokens"),
    "source": Field(text, "", "where the sizes were published"),
    "params": Field(expected, None, "parameters it must give"),
    "active": Field(expected, None, "active parameters it must give"),
    "published": Field(text, "", "the count its authors print, and why it differs, if it does"),
    "model_type": Field(text, "", "name of the architecture in Hugging Face configs"),
    "predictors": Field(count, 0, "multi-token-prediction layers beside it, each a layer like its last"),
    "multimodal": Field(flag, False, "the language model of a model that has more to it"),
    "dtype": Field(one_of("bf16", "fp16", "fp32"), "bf16", "dtype that the published checkpoint has, quantised or not"),
    "released": Field(flag, True, "whether its weights can be had: what nobody can run is not offered"),
    "quantization": Field(table, None, "quantization_config of the published checkpoint"),
    "variants": Field(tables_by_name, {}, "quantization_config of its makers' other checkpoints, by format"),
    "beside": Field(expected, None, "parameters of its towers and projectors, beside the language model"),
}


def _shared_width(at: Mapping[str, Any]) -> Any:
    """F_e a shared expert; a plain 0 where there is none, whatever F_e is (0 × an array would be a part of width 0)."""
    width, number = at["experts"]["d_ff"], at["experts"]["n_shared"]
    return 0 if type(number) is int and number == 0 else width * number


def _if_shared(width: Any, at: Mapping[str, Any]) -> Any:
    """A joint width, unless it is said that there is no shared expert."""
    number = at["experts"].written.get("n_shared")
    return 0 if type(number) is int and number == 0 else width


class Sections(Mapping[str, Mapping[str, Field]]):
    """The tables of a description by name; a mechanism's are its own options', loaded when asked for."""

    def __init__(self, own: Mapping[str, Mapping[str, Field]]) -> None:
        self.own = own

    def __getitem__(self, name: str) -> Mapping[str, Field]:
        return options(name).table() if name in MIXERS or name in OTHERS else self.own[name]

    def __iter__(self) -> Iterator[str]:
        yield from (*self.own, *MIXERS, *OTHERS)

    def __len__(self) -> int:
        return len(self.own) + len(MIXERS) + len(OTHERS)


_OWN: dict[str, dict[str, Field]] = {
    "": {
        "d_model": Field(size, REQUIRED, "residual width"),
        "n_layers": Field(layers, REQUIRED, "layers"),
        "vocab_size": Field(
            size,
            None,
            "rows of the token table as stored; without it no table and no head",
            "where tokens are read, not patches or sound",
        ),
        "pattern": Field(texts, None, "layer kinds in order, repeated over the layers: 'local', '5*local', …"),
        "shared_layers": Field(flag, False, "one set of weights for all layers"),
        "streams": Field(size, None, "residual streams, which a layer predicts and corrects, working on one (AltUp)"),
        "active_stream": Field(count, 0, "the number of that one"),
        "contacts": Field(flag, False, "an encoder's regression on all heads' attention weights, held and not run"),
        "idle": Field(expected, None, "parameters that are held and that no token runs through"),
        "laurel": Field(size, None, "rank of a learned residual beside a layer's first part"),
    },
    "attention": {
        "n_heads": Field(size, REQUIRED, "query heads"),
        "n_kv_heads": Field(size, lambda at: at["attention"]["n_heads"], "key/value heads"),
        "d_head": Field(size, per_head("attention"), "width of a head"),
        "window": Field(size, None, "query i sees key j when 0 ≤ i − j < window; in an encoder when |i − j| < window"),
        "chunked": Field(flag, False, "windows stand side by side: query i sees key j ≤ i of its own window"),
        "bias": Field(biases, [], "projections with a bias"),
        "qk_norm": Field(
            one_of("none", "head", "width", "apart", "bare"),
            "none",
            "norm of Q and K: shared by the heads, over all of them, a weight for each, or without weights",
        ),
        "sinks": Field(flag, False, "one learned sink a head"),
        "scale": Field(real, None, "multiplies the scores; 1/√d_head when absent"),
        "softcap": Field(real, None, "scores are capped at ± this by a tanh"),
        "gate": Field(
            one_of("none", "element", "head"), "none", "gates on what is read: one an element, or one a head"
        ),
        "gate_activation": Field(one_of("sigmoid", "softplus"), "sigmoid", "activation of the gates"),
        "inner_norm": Field(flag, False, "norm before o, over all heads"),
        "d_v": Field(size, None, "width of a value head; absent: d_head"),
        "v_scale": Field(real, None, "multiplies the values"),
        "differential": Field(
            flag, False, "heads in two halves, of which one is taken from the other, and a norm of each pair"
        ),
        "v_norm": Field(flag, False, "norm of V, head by head, without weights"),
        "tied_kv": Field(flag, False, "one projection for K and V"),
        "direct": Field(flag, False, "what the heads read is the result: no projection o"),
        "groups": Field(
            groups_of(4),
            None,
            "groups that q, k, v and o are cut into, each with inputs and outputs of its own",
        ),
        "block": Field(
            size,
            None,
            "positions of the blocks in which an encoder attends: a block to itself, those beside it, the first, the "
            "last and some at random",
        ),
        # Without blocks nothing, so that no other structure is named by it.
        "random_blocks": Field(
            count,
            lambda at: None if at["attention"]["block"] is None else 3,
            "how many at random",
            "with attention.block",
        ),
        "keep": Field(
            size, None, "keys that each query keeps, by a mask that the values make (Doge); absent: all that it sees"
        ),
        "experts": Field(
            size, None, "experts of q and o, each with all key/value heads, of which a token passes n_heads/n_kv_heads"
        ),
        "sum_bias": Field(flag, False, "a bias of the sum of what experts of q and o make"),
        "span_taps": Field(
            size, None, "beside attention as many heads of convolutions over so many taps, which positions make"
        ),
        "kv_from": Field(text, None, "layer kind whose last layer lends its keys and values: none of its own"),
    },
    "latent": {
        "n_heads": Field(size, REQUIRED, "query heads"),
        "q_rank": Field(size, None, "rank of the query projection; absent: projected directly"),
        "kv_rank": Field(size, REQUIRED, "width of the latent"),
        "d_nope": Field(size, REQUIRED, "unrotated part of a query/key head"),
        "d_rope": Field(size, REQUIRED, "rotated part of a query/key head"),
        "d_v": Field(size, REQUIRED, "width of a value head"),
        "bias": Field(flag, False, "biases on the down projections and o"),
        "scale": Field(real, None, "multiplies the scores"),
        "gate": Field(one_of("none", "element", "head"), "none", "gates on what is read, as attention.gate"),
        "index_heads": Field(size, None, "heads of an index that selects keys; absent: all are attended to"),
        "index_width": Field(size, None, "width of a head of the index, and of its one key"),
        "index_top_k": Field(size, None, "keys that a query selects by it"),
        "index_interleaved": Field(flag, False, "the index's rotary pairs are neighbours, not halves"),
    },
    "positions": {
        "form": Field(
            one_of(
                "rotary", "learned", "sinusoidal", "relative", "relative-projection", "disentangled", "alibi", "none"
            ),
            "rotary",
            "how order is known",
            "with attention; 'learned' and 'sinusoidal' with an embedding",
        ),
        "theta": Field(real, 10000, "base of the rotary frequencies", "with rotary positions"),
        "rotary_dims": Field(
            size, None, "rotated part of a head; absent: all of it", "with rotary positions, not of latents"
        ),
        "interleaved": Field(flag, False, "rotary pairs are neighbours, not halves", "with rotary positions"),
        "spread": Field(
            flag,
            False,
            "the rotated part is the first of both halves, at the whole head's frequencies",
            "with rotary positions",
        ),
        "rows": Field(
            size,
            None,
            "rows of the learned table, or of one beside an encoder's relative bias; disentangled: of both signs of "
            "the distances; an encoder's rotary: of a table of sinusoids that is stored and not learnt",
        ),
        "buckets": Field(size, 32, "buckets of the relative bias", "with positions.form = 'relative'"),
        "distance": Field(
            size,
            128,
            "longest distance the buckets, or the table of distances, tell apart",
            "with positions.form = 'relative' or 'disentangled'",
        ),
        "apart": Field(flag, False, "relative: each layer has a table of its own"),
        "terms": Field(
            some_of("c2p", "p2c"),
            ["c2p", "p2c"],
            "disentangled: queries meet distances, keys do",
            "with positions.form = 'disentangled'",
        ),
        "shared": Field(
            flag, False, "disentangled: q and k project the distances too", "with positions.form = 'disentangled'"
        ),
        "bias": Field(
            some_of("q", "k"),
            [],
            "disentangled: projections of the distances with a bias",
            "with positions.form = 'disentangled'",
        ),
        "norm": Field(
            flag, False, "disentangled: norm of the distances' vectors", "with positions.form = 'disentangled'"
        ),
        "clipped": Field(
            flag,
            False,
            "disentangled: only the distances that occur are projected",
            "with positions.form = 'disentangled'",
        ),
    },
    "feed_forward": {
        "d_ff": Field(size, REQUIRED, "width"),
        "gated": Field(flag, False, "a second matrix beside up"),
        "activation": Field(
            one_of(*ACTIVATIONS, "xielu"), lambda at: ("gelu", "silu")[at["feed_forward"]["gated"]], "activation"
        ),
        "bias": Field(flag, False, "biases"),
        "down_bias": Field(flag, lambda at: at["feed_forward"]["bias"], "bias of the last matrix"),
        "inner_norm": Field(flag, False, "norm before the last matrix"),
        "groups": Field(groups_of(2), None, "groups that up (and gate) and down are cut into"),
        "sparsity": Field(real, None, "share of the gates that are cut to 0, by their mean and deviation"),
    },
    "experts": {
        "n_experts": Field(size, REQUIRED, "routed experts"),
        "top_k": Field(size, REQUIRED, "experts a token passes"),
        "d_ff": Field(size, REQUIRED, "width of one expert"),
        "gated": Field(flag, True, "a second matrix beside up"),
        "activation": Field(one_of(*ACTIVATIONS), "silu", "activation"),
        "bias": Field(flag, False, "biases in every expert"),
        "router": Field(flag, True, "a router, one row an expert"),
        "router_bias": Field(flag, False, "bias of the router"),
        "scoring": Field(one_of("softmax", "sigmoid", "softmax_after"), "softmax", "how the router's scores weigh"),
        "scale": Field(real, 1, "multiplies the weights of the chosen experts"),
        "n_groups": Field(size, 1, "groups of experts, of which the best are chosen from"),
        "top_groups": Field(size, 1, "how many groups are chosen from"),
        "n_shared": Field(
            count,
            0,
            "experts that every token passes; absent: as d_ff_shared says",
            "where d_ff_shared, their joint width, is not given",
        ),
        "d_ff_shared": Field(count, _shared_width, "their joint width", beside=_if_shared),
        "shared_gate": Field(flag, False, "a gate of one row on the shared experts", "with n_shared or d_ff_shared"),
        "latent": Field(size, None, "width of a latent that the routed experts work on; absent: d_model"),
        "router_norm": Field(
            flag, False, "the router reads what the experts read before their norm, by one of its own"
        ),
        "router_scale": Field(real, None, "multiplies the router's scores"),
        "expert_scales": Field(flag, False, "a learned factor of every expert's weight"),
        "sum_bias": Field(flag, False, "a bias of the sum of what the routed experts make"),
        "correction": Field(flag, False, "what is added to sigmoid scores to choose experts is stored as a parameter"),
    },
    "layer_input": {
        "width": Field(size, REQUIRED, "width of the vector that each layer reads for a token"),
        "rows": Field(size, lambda at: at[""]["vocab_size"], "rows of their table"),
        "activation": Field(one_of(*ACTIVATIONS), "gelu_tanh", "activation of the gate on it"),
    },
    "shared": {
        "n_heads": Field(size, REQUIRED, "query heads"),
        "n_kv_heads": Field(size, lambda at: at["shared"]["n_heads"], "key/value heads"),
        "d_head": Field(size, REQUIRED, "width of a head"),
        "scale": Field(real, None, "multiplies the scores; 1/√d_head when absent"),
        "d_ff": Field(size, REQUIRED, "width of the feed-forward"),
        "activation": Field(one_of(*ACTIVATIONS), "silu", "activation of the feed-forward, which is gated"),
        "bias": Field(flag, False, "biases of the feed-forward"),
        "rank": Field(size, None, "rank of a layer's own adapters beside up and gate; absent: none"),
        "adapted": Field(flag, False, "adapters beside q, k and v too"),
        "from": Field(text, None, "layer kind that holds the weights; absent: this one"),
    },
    "norm": {
        "form": Field(one_of("rms", "layer"), "rms", "RMSNorm or LayerNorm"),
        "bias": Field(flag, lambda at: at["norm"]["form"] == "layer", "LayerNorm with a bias"),
        "eps": Field(real, None, "added to the variance; 1e-6 (rms) or 1e-5 (layer) when absent"),
        "place": Field(
            one_of("pre", "post", "after", "sandwich"), "pre", "before a branch, after its sum, after it, or both"
        ),
        "parallel": Field(
            one_of("no", "shared", "separate"), "no", "branches side by side, with one norm or their own"
        ),
        "final": Field(flag, lambda at: at["norm"]["place"] != "post", "norm after the last layer"),
        "final_bias": Field(flag, lambda at: at["norm"]["bias"], "bias of that one, a LayerNorm", "with norm.final"),
        "qk_bias": Field(
            flag, lambda at: at["norm"]["bias"], "bias of the norms of Q and K, LayerNorms", "with attention.qk_norm"
        ),
        "offset": Field(flag, False, "multiplies by 1 + weight"),
        "weighted": Field(flag, True, "norms have weights"),
        "residual_scale": Field(
            flag, False, "a learned scale of every channel of the stream as a branch is added to it"
        ),
        "layer_scale": Field(flag, False, "a learned scale of every channel of what a branch adds"),
        "without": Field(
            parts_of, [], "parts of the layer that have no norm", "of parts that a layer has, with norms of their own"
        ),
        "after": Field(
            parts_of,
            [],
            "parts with a norm after them, where place = 'pre' has none for the others",
            "of parts that a layer has",
        ),
        "abreast": Field(parts_of, [], "parts side by side that read one input, through the norm of the first"),
        "joint": Field(parts_of, [], "parts that read one input, and whose sum is normed before it is added"),
        "residual": Field(real, None, "multiplies what every part adds to the stream (Granite, MiniCPM)"),
        "scalar": Field(flag, False, "a stored number multiplies the layer's result; no parameter"),
    },
    "embedding": {
        "types": Field(size, None, "token types", "where there is an embedding"),
        "extra": Field(count, 0, "further rows of the token table, which an untied head does not say"),
        "tables": Field(
            tables,
            [],
            "further tables added to the tokens: pairs of their rows and how often each is read",
            "where tokens are read",
        ),
        "norm": Field(flag, False, "norm after the embedding", "where there is an embedding"),
        "rank": Field(size, None, "width of the table before a projection to d_model", "where there is an embedding"),
        "early": Field(
            flag, False, "only the tokens are so wide, projected without a bias, and an lm head works as wide"
        ),
        "shared": Field(
            flag, True, "one table for encoder and decoder", "in an encoder-decoder whose encoder reads tokens"
        ),
        "scale": Field(real, None, "multiplies the embedding", "where there is an embedding"),
    },
    "head": {
        "form": Field(
            one_of("lm", "masked-lm", "classifier", "none"),
            "lm",
            "what is read off the last layer",
            "where there are tokens or classes; 'lm' in a decoder",
        ),
        "tied": Field(flag, False, "the head multiplies by the token table", "with a head over the vocabulary"),
        "bias": Field(
            flag,
            lambda at: at["head"]["form"] == "classifier",
            "bias of the head",
            "with an lm head, a classifier, or a plain masked-lm head",
        ),
        "classes": Field(size, None, "classes of a classifier"),
        "every": Field(flag, False, "a classifier of every position, not of the first alone"),
        "transform": Field(one_of(*ACTIVATIONS), None, "activation of a D×D layer before a classifier; absent: none"),
        "transform_norm": Field(flag, False, "norm after that layer"),
        "pool": Field(
            one_of("first", "mean", "both"),
            "first",
            "what a picture's classifier reads: its class token, the mean of its patches, or both",
        ),
        "pool_norm": Field(flag, False, "norm of that mean"),
        "rank": Field(
            size,
            lambda at: at["embedding"]["rank"],
            "width that a masked-lm head works at; absent: d_model",
            "with a masked-lm head or embedding.early",
        ),
        "transform_bias": Field(
            flag,
            True,
            "bias of the layer before a masked-lm head or a classifier",
            "with a layer before a masked-lm head or a classifier",
        ),
        "activation": Field(
            one_of(*ACTIVATIONS), None, "activation before a masked-lm head; absent: that of the feed-forward"
        ),
        "plain": Field(flag, False, "a masked-lm head without a layer before it, whose bias is `bias`"),
        "pooler": Field(flag, False, "a D×D layer with tanh on the first position"),
        "pairs": Field(
            size, None, "classes of a second head, read off the pooler: of pairs of sentences, in pretraining"
        ),
        "norm": Field(flag, False, "norm of the one position that a classifier, or a head of form none, reads"),
        "softcap": Field(real, None, "logits are capped at ± this by a tanh", "with an lm head"),
        "scale": Field(real, None, "multiplies the logits", "with an lm head"),
    },
    "lora": {
        "rank": Field(size, REQUIRED, "rank of the adapters beside frozen weights (LoRA)"),
        "modules": Field(texts, ["q", "v"], "linear layers of a block that have one, by name; ['all']: every one"),
    },
    "vision": {
        "image": Field(size, REQUIRED, "side of the picture, pixels"),
        "patch": Field(size, REQUIRED, "side of a patch, pixels"),
        "channels": Field(size, 3, "colour channels"),
        "class_token": Field(flag, True, "a learned vector before the patches"),
        "mask_token": Field(flag, False, "a learned vector for hidden patches"),
        "patch_bias": Field(flag, True, "bias of the patches' matrix"),
    },
    "audio": {
        "mels": Field(size, REQUIRED, "mel bands"),
        "kernel": Field(size, 3, "taps of both convolutions"),
        "positions": Field(size, REQUIRED, "encoder positions after the stride of 2"),
    },
}
STACK = Sections(_OWN)
ALWAYS = ("", "norm", "positions", "embedding", "head")  # sections that are resolved even when nobody wrote them


def letter_path(key: str, raw: Mapping[str, Any]) -> str:
    """The dotted path of a key that may be a letter of `symbols`, a field's name, or a path already."""
    if key in BY_LETTER:
        if not BY_LETTER[key].key:
            raise InputError("--set", [f"{key} ({BY_LETTER[key].meaning}) belongs to the workload, not to the model"])
        key = BY_LETTER[key].key
    latent = isinstance(raw.get("latent"), Mapping)
    if latent and key.startswith("attention.") and key.split(".")[1] in STACK["latent"]:
        return "latent." + key.split(".")[1]
    if key == "feed_forward.d_ff" and "feed_forward" not in raw and "experts" in raw:
        return "experts.d_ff"
    if "." in key or key in IDENTITY or key in STACK[""]:
        return key
    order = ("latent", "attention") if latent else ("attention",)
    for section in (*order, *(name for name in STACK if name not in ("", "attention", "latent"))):
        if key in STACK[section] and (section in raw or section in ALWAYS):
            return f"{section}.{key}"
    known = [symbol for symbol in BY_LETTER if BY_LETTER[symbol].key]
    known += sorted({name for fields in STACK.values() for name in fields})
    raise UnknownName("--set", "key", key, known, "letters: " + " ".join(known[:12]))


def changed(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A description with keys changed: a letter or a bare name is changed wherever it is set (in every layer kind), or
    set for all where nobody does."""
    result = deepcopy(dict(raw))
    for key, value in changes.items():
        path = letter_path(key, result)
        tables = [result]
        if path != key:
            tables += [t for t in (result.get("encoder"), result.get("decoder")) if isinstance(t, dict)]
            for table in list(tables):
                tables += [t for t in (table.get("layer") or {}).values() if isinstance(t, dict)]
        steps = path.split(".")
        for table in [t for t in tables if sets(t, steps)] or [result]:
            _put(table, steps, value)
    return result


def sets(table: Any, keys: list[str]) -> bool:
    """True where a table has a value under these keys."""
    for key in keys:
        if not isinstance(table, Mapping) or key not in table:
            return False
        table = table[key]
    return True


def _put(table: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = table.get(key)
        if not isinstance(inner, dict):
            inner = table[key] = {}
        table = inner
    table[keys[-1]] = value


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` laid on it, table by table."""
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        result[key] = merge(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result
