"""BERT and its descendants, such as DeBERTa: encoders with a masked-LM head, a classifier or a pooler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface import transformers_metadata as metadata
from txcalc.sources.huggingface.config import Config, Raw, with_kinds
from txcalc.sources.huggingface.heads import CAUSAL_LM
from txcalc.sources.huggingface.leaf_list import leaf, matrix, norm_leaf, of_kind
from txcalc.sources.spec import size


def bert_like(
    c: Config,
    d_model: Sequence[str] = ("hidden_size",),
    n_layers: Sequence[str] = ("num_hidden_layers",),
    n_heads: Sequence[str] = ("num_attention_heads",),
    d_ff: Sequence[str] = ("intermediate_size",),
    act_names: Sequence[str] = ("hidden_act",),
    act: str = "gelu",
    rows: int | None = 512,
    types: int | None = 2,
    rank: tuple[str, int | None] | None = None,
    projected: bool = False,
    place: str = "post",
    embedded_norm: bool = True,
    pooler: bool = True,
    untied: bool | None = False,
    sequence_layer: str = "pooler",
    choice_layer: str | None = "pooler",
    detector: str | None = None,
    without: Sequence[str] = (),
    eps: float = 1e-12,
    same_width: Sequence[str] = (),
    theta: float | None = None,
    gated: bool = False,
    attention_bias: bool = True,
    mlp_bias: bool = True,
) -> Raw:
    """BERT: learned positions and types, biases everywhere, a tied head.

    `rows` and `types` are the class's defaults; None if it has no such embedding. With `theta`, positions are rotary
    with this base, and heads are `head_dim` wide, by default D/h rounded down. `rank` is the key of the embedding's
    width, with its default, if a projection to D may follow; `projected`: it follows even if the width is D.
    `sequence_layer` is the layer before a sequence classifier: the pooler, or a layer with this activation;
    `choice_layer` the same for multiple choice (None: no layer); `detector` the activation of the layer in ELECTRA's
    pretraining head. Classes of the tasks `without` are not supported. Keys `same_width` must repeat the width.
    """
    causal = c.is_causal()
    c.require_value({}, "pruned_heads", why="pruned heads are not supported")
    c.require_value("absolute", "position_embedding_type", why="only learned positions are supported")
    c.ignore("cross_attention_hidden_size", "classifier_dropout", "cls_token_id", "mask_token_id", "directionality")
    c.ignore(
        "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"
    )
    rotary = theta is not None
    raw = c.widths("decoder" if causal else "encoder", d_model=(*d_model,), n_layers=(*n_layers,))
    widths = ("head_dim",) if rotary else ()
    attention = c.heads(raw, names=n_heads, whole=None if rotary else False, kv_names=(), width_names=widths)
    table: Raw = {"norm": embedded_norm}
    if types:
        table["types"] = c.size("type_vocab_size", default=types)
    c.require_value(raw["d_model"], *same_width, why="only an embedding as wide as the model is supported")
    if rank:
        width = c.size(rank[0], default=rank[1])
        table |= {} if width is None or (width == raw["d_model"] and not projected) else {"rank": width}
    positions: Raw = {"form": "none"}
    if theta is not None:
        positions = c.rotary(attention["d_head"], theta)
    elif rows:
        positions = {"form": "learned", "rows": c.size("max_position_embeddings", default=rows)}
    layers = {"sequence": sequence_layer, "choice": choice_layer} | dict.fromkeys(without, "")
    return raw | {
        "attention": attention | {"bias": attention_bias},
        "feed_forward": c.mlp(*d_ff, act=act, act_names=act_names, bias=mlp_bias) | ({"gated": True} if gated else {}),
        "norm": c.layer_norm("layer_norm_eps", eps=eps, place=place),
        "positions": positions,
        "embedding": table,
        "head": bert_head(c, pooler, untied, layers, detector),
    }


def bert_head(
    c: Config, pooler: bool, untied: bool | None, layers: Mapping[str, str | None], detector: str | None = None
) -> Raw:
    """BERT's head for the config's class. `layers` are the layers before classifiers, by task ("": no such class);
    `untied` None: the config decides; other arguments as in `bert_like`."""
    tasks = [task for task in ("sequence", "token", "question", "choice") if layers.get(task) != ""]
    pairs = ("pretraining", "pairs") if pooler else ("pretraining",) if detector else ()
    form = c.head_of("masked-lm", "none", *tasks, *pairs, *(("lm",) if c.class_ends(*CAUSAL_LM) else ()))
    form = "masked-lm" if form == "lm" else form
    if form not in ("masked-lm", "pretraining") or (form == "pretraining" and detector):
        c.ignore("tie_word_embeddings")
    if form == "pretraining" and detector:
        return {"form": "classifier", "classes": 1, "every": True, "transform": detector}
    if form == "pairs":
        return {"form": "classifier", "classes": 2, "every": False, "pooler": True}
    if form == "none":
        return {"form": "none", "pooler": pooler}
    if form in tasks:
        layer = layers.get(form)
        keys: Raw = {} if layer is None else {"pooler": True} if layer == "pooler" else {"transform": layer}
        return c.classifier(form, **keys)
    keys = {}
    if form == "pretraining":
        keys = {"pooler": True, "pairs": c.labels() if c.model_type == "albert" else 2}
    if untied is None:
        return {"form": "masked-lm", "tied": c.flag("tie_word_embeddings", default=True), **keys}
    why = "embedding and head have different widths" if untied else "untied, it would have a second bias"
    c.require_value(not untied, "tie_word_embeddings", why=why)
    return {"form": "masked-lm", "tied": not untied, **keys}


def encoder(c: Config) -> Raw:
    """A config read by the row of its model type in `encoders.json`: arguments of `bert_like`, keys that must be false
    (`off`), and `shared_layers` if all layers share their weights."""
    row = {**metadata.table("encoders.json")[c.model_type]}
    c.require_value(False, *row.pop("off", "").split(), why="the published models have this value")
    shared = {"shared_layers": True} if row.pop("shared_layers", False) else {}
    return bert_like(c, **row) | shared


def roc_bert(c: Config) -> Raw:
    """BERT with embeddings of a character's shape and pronunciation, combined with the token's by one matrix."""
    if c.class_ends("ForPreTraining", "ForNextSentencePrediction"):
        c.fault("architectures", c.data["architectures"], "another class", "its pretraining heads are not supported")
    raw = bert_like(c)
    d, around, width = raw["d_model"], [], raw["d_model"]
    for name, rows, columns in (("pronunciation", 910, 768), ("shape", 24858, 512)):
        sizes = c.size(f"{name}_vocab_size", default=rows), c.size(f"{name}_embed_dim", default=columns)
        if c.flag(f"enable_{name}", default=True):
            around.append(leaf(name, "table", *sizes, kind="embedding"))
            width += sizes[1]
        else:
            around.append(leaf(name, "held", sizes[0] * sizes[1], kind="embedding"))
        padding = c.data.get("pad_token_id", 0)
        if type(padding) is int and padding >= sizes[0]:
            c.fault("pad_token_id", padding, f"less than {name}_vocab_size = {sizes[0]:,}")
    return raw | {"around": [*around, leaf("map", "linear", width, d, kind="embedding")]}


def xmod(c: Config) -> Raw:
    """RoBERTa with adapters after every feed-forward, one per language; a token uses that of its language."""
    c.ignore("languages")
    raw = bert_like(c, sequence_layer="tanh")
    d, n, languages = raw["d_model"], raw["n_layers"], c.data.get("languages", ["en_XX"])
    if not isinstance(languages, list) or not languages or len(set(map(str, languages))) < len(languages):
        c.fault("languages", languages, "a list of languages, each once")
        languages = ["en_XX"]
    rank = d // c.size("adapter_reduction_factor", default=2)
    if rank < 1:
        c.fault("adapter_reduction_factor", c.data.get("adapter_reduction_factor", 2), f"at most hidden_size = {d:,}")
    act, reuses_norm = c.activation("hidden_act", default="gelu"), c.flag("adapter_reuse_layer_norm", default=True)
    has_norm = c.flag("adapter_layer_norm", default=False)
    norm = [norm_leaf("adapter", d, "layer_norm" if has_norm else "norm_again", times=n)] * (has_norm or reuses_norm)
    rank = max(1, rank)
    around = [
        *norm,
        leaf("adapter_down", "linear", d, rank, times=n, kind="feed_forward"),
        leaf("adapter_activation", act, rank, times=n, kind="feed_forward"),
        leaf("adapter_up", "linear", rank, d, times=n, kind="feed_forward"),
        leaf("adapter_sum", "sum", d, times=n, kind="feed_forward"),
    ]
    if len(languages) > 1:
        other_languages = (len(languages) - 1) * (2 * d * rank + d + rank)
        around.append(leaf("other_languages", "held", other_languages, times=n, kind="feed_forward"))
    return raw | {"around": around}


def layoutlm(c: Config) -> Raw:
    """BERT with embeddings of the position on a page: left and right, top and bottom, height, width. It always has a
    pooler."""
    raw = bert_like(c, without=("choice",))
    rows = c.size("max_2d_position_embeddings", default=1024)
    raw["embedding"]["tables"] = [[rows, 2], [rows, 2], [rows, 1], [rows, 1]]
    raw["head"]["pooler"] = True
    return raw


def tapas(c: Config) -> Raw:
    """BERT with embeddings of a token's row, column and rank in a table."""
    answers = c.class_ends("TapasForQuestionAnswering")
    kinds = c.count("num_aggregation_labels", default=0) if answers else 0
    if answers:
        c.override(architectures=["TapasModel"])
    raw = bert_like(c, types=None, rows=1024, without=("token", "question", "choice"))
    rows = c.items("type_vocab_sizes", of=size, length=None, default=[3, 256, 256, 2, 256, 256, 10])
    raw["embedding"]["tables"] = [[number, 1] for number in rows]
    if not answers:
        return raw
    around = [leaf(name, "linear", raw["d_model"], 1, kind="head") for name in ("cells", "columns")]
    if kinds:
        around.append(leaf("aggregation", "linear", raw["d_model"], kinds, kind="head", at=[0, 1, 1]))
    return raw | {"around": around}


def mpnet(c: Config) -> Raw:
    """Learned positions, and relative position biases that all layers share."""
    raw = bert_like(c, types=None, sequence_layer="tanh")
    buckets = c.size("relative_attention_num_buckets", default=32)
    raw["positions"] |= {"form": "relative", "buckets": buckets, "distance": 128}
    return raw


def bert_generation(c: Config) -> Raw:
    """BERT without types; its decoder has a tied head without a transform, and is causal only with `is_decoder`."""
    causal = c.flag("is_decoder", default=False)
    form = c.head_of("lm", "none", "encoder")
    if form != "lm":
        c.ignore("tie_word_embeddings")
        head: Raw = {"form": "none"}
    else:
        c.require_value(True, "tie_word_embeddings", why="untied, it would have a second bias")
        head = {"form": "lm"} if causal else {"form": "masked-lm", "plain": True}
        head |= {"tied": True, "bias": True}
    raw = c.widths("decoder" if causal else "encoder")
    return _post_norm_encoder(c, raw, c.mha(raw), c.mlp(), {"norm": True}, head)


def _post_norm_encoder(c: Config, raw: Raw, attention: Raw, mlp: Raw, embedding: Raw, head: Raw) -> Raw:
    """Post-norm, learned positions, biases everywhere."""
    norm = c.layer_norm("layer_norm_eps", eps=1e-12, place="post")
    positions = {"form": "learned", "rows": c.size("max_position_embeddings", default=512)}
    attention = attention | {"bias": True}
    return c.decoder(raw, attention, mlp=mlp, norm=norm, positions=positions, embedding=embedding, head=head)


def xlm(c: Config) -> Raw:
    """Post-norm, language embeddings if there are several languages, a head without a transform."""
    raw = c.widths(
        "encoder",
        d_model=("emb_dim", "hidden_size"),
        n_layers=("n_layers", "num_hidden_layers"),
        vocab=("vocab_size", "n_words"),
        padding_names=("pad_index",),
    )
    form = c.head_of("lm", "none", "sequence", "token", "question")
    c.check_simple_answers(form)
    table: Raw = {"norm": True}
    languages = c.size("n_langs", default=1)
    if c.flag("use_lang_emb", default=True) and languages > 1:
        table["types"] = languages
    if form == "lm":
        tied = c.flag("tie_word_embeddings", default=True)
        head: Raw = {"form": "masked-lm", "plain": True, "tied": tied, "bias": True}
    else:
        c.ignore("tie_word_embeddings")
        head = {"form": "none"} if form == "none" else c.classifier(form)
    if form == "sequence":
        c.require_value(True, "summary_use_proj", "summary_proj_to_labels", why="only a linear classifier is supported")
        c.check_summary_type("first")
    activation = "gelu" if c.flag("gelu_activation", default=True) else "relu"
    attention = c.mha(raw, names=("n_heads", "num_attention_heads"))
    mlp = {"d_ff": 4 * raw["d_model"], "activation": activation, "bias": True}
    return _post_norm_encoder(c, raw, attention, mlp, table, head)


def flaubert(c: Config) -> Raw:
    """XLM, or with `pre_norm` norms before each branch and none after the last layer."""
    raw = xlm(c)
    if c.flag("pre_norm", default=False):
        raw["norm"] |= {"place": "pre", "final": False}
    return raw


def electra(c: Config) -> Raw:
    act, rank, choice = (
        c.activation("hidden_act", default="gelu"),
        ("embedding_size", 128),
        c.summary_activation("gelu"),
    )
    return bert_like(c, rank=rank, pooler=False, sequence_layer="gelu", choice_layer=choice, detector=act)


def rembert(c: Config) -> Raw:
    """A factorised embedding, and a factorised head of another width."""
    raw = bert_like(c, rank=("input_embedding_size", 256), projected=True, untied=True)
    width = c.size("output_embedding_size", default=1664)
    if raw["head"]["form"] == "masked-lm":
        raw["head"]["rank"] = width
    return raw


def splinter(c: Config) -> Raw:
    """BERT with a question-answering head that scores the ends of an answer against the state at the question token."""
    answers = c.class_ends("SplinterForQuestionAnswering", "SplinterForPreTraining")
    c.ignore("question_token_id", "initialize_new_qass", *(("architectures",) if answers else ()))
    if answers or not c.data.get("architectures"):  # it has no language model
        c.override(architectures=["SplinterModel"])
    raw = bert_like(c, pooler=False, without=("sequence", "token", "question", "choice"))
    d, once = raw["d_model"], {"at": [0, 1, 1]}
    leaves: list[Raw] = []
    for end in ("start", "end") if answers else ():
        for name, on in ((f"{end}_query", once), (end, {})):
            leaves += [leaf(name, "linear", d, d, **on), leaf(f"{name}_activation", "gelu", d, **on)]
            leaves.append(leaf(f"{name}_norm", "layer_norm", d, **on))
        leaves += [matrix(f"{end}_scores", d, d, **once), leaf(f"{end}_logits", "product", 1, d, 1)]
    return raw | ({"around": of_kind("head", leaves)} if answers else {})


def luke(c: Config) -> Raw:
    """RoBERTa for words and entities; entities have separate embeddings, positions and queries."""
    raw = bert_like(c)
    d, n, rank = raw["d_model"], raw["n_layers"], c.size("entity_emb_size", default=256)
    entities = c.size("entity_vocab_size", default=500000)
    rows, types = raw["positions"]["rows"], raw["embedding"]["types"]
    idle = entities * rank + (rows + types) * d + 2 * d
    idle += rank * d if rank != d else 0
    if c.flag("use_entity_aware_attention", default=True):
        idle += n * 3 * d * (d + 1)
    if raw["head"]["form"] == "masked-lm":
        idle += rank * (d + 1) + 2 * rank + entities
        raw["head"] |= {"tied": False, "pooler": True}
        c.note("the head is not tied to the word embedding, as in transformers 5")
    return c.with_idle(raw, idle, "the parameters of entities")


def deberta(c: Config) -> Raw:
    """Disentangled attention, with relative positions clipped to the text's length; only Q and V have biases."""
    raw = _deberta(c)
    raw["attention"]["bias"] = ["q", "v", "o"]
    if raw["positions"]["form"] == "disentangled":
        terms = raw["positions"]["terms"]
        raw["positions"] |= {"clipped": True, "bias": ["q"] if "p2c" in terms else []}
    return raw


def deberta_v2(c: Config) -> Raw:
    """Disentangled attention with bucketed distances, which q and k may project; a convolution in parallel to the first
    layer."""
    raw = _deberta(c)
    positions = raw["positions"]
    shared = c.flag("share_att_key", default=False)
    norms = [norm.strip() for norm in c.text("norm_rel_ebd", default="none").lower().split("|")]
    unknown = [norm for norm in norms if norm not in ("none", "layer_norm")]
    if unknown:
        c.fault("norm_rel_ebd", c.data["norm_rel_ebd"], "'layer_norm' or 'none'")
    has_norm = "layer_norm" in norms
    if positions["form"] == "disentangled":
        terms = positions["terms"]
        if shared and set(terms) != {"c2p", "p2c"}:
            c.fault("share_att_key", True, "false with one pos_att_type", "q and k both project the distances")
        bias = [letter for letter, term in (("q", "p2c"), ("k", "c2p")) if term in terms]
        positions |= {"shared": shared, "norm": has_norm, "bias": [] if shared else bias}
        buckets = _positive(c, "position_buckets")
        if buckets is not None:
            positions["rows"] = 2 * buckets
            if buckets >= positions["distance"]:
                c.fault("position_buckets", buckets, f"less than the longest distance = {positions['distance']:,}")
    else:
        c.ignore("position_buckets")
        if has_norm:
            c.fault("norm_rel_ebd", c.data["norm_rel_ebd"], "'none' without relative_attention")
    taps = c.count("conv_kernel_size", default=0)
    if not taps:
        c.ignore("conv_act")
        return raw
    if taps % 2 == 0:
        c.fault("conv_kernel_size", taps, "an odd number", "an even one would shorten the output")
    convolution = {"taps": taps, "activation": c.activation("conv_act", default="tanh")}
    starts = ["first" if i == 0 else "later" for i in range(raw["n_layers"])]
    first = {"parts": ["attention", "feed_forward", "convolution"], "convolution": convolution}
    return with_kinds(raw, (starts, {"first": first, "later": {}}))


def _deberta(c: Config) -> Raw:
    raw = c.widths("encoder")
    c.require_value(raw["d_model"], "embedding_size", why="only an embedding as wide as the model is supported")
    types = c.count("type_vocab_size", default=0)
    attention = c.mha(raw)
    c.require_value(attention["d_head"], "attention_head_size", why="it is hidden_size / num_attention_heads")
    c.require_value(raw["d_model"], "pooler_hidden_size", why="only a pooler as wide as the model is supported")
    layers = dict.fromkeys(("sequence", "choice"), c.activation("pooler_hidden_act", default="gelu"))
    raw |= {
        "attention": attention | {"bias": True},
        "feed_forward": c.mlp(),
        "norm": c.layer_norm("layer_norm_eps", eps=1e-7, place="post"),
        "embedding": {"norm": True} | ({"types": types} if types else {}),
        "head": bert_head(c, False, False, layers),
        "positions": {"form": "none"},
    }
    terms = _terms(c)
    biased = c.flag("position_biased_input", default=True)
    distance = _positive(c, "max_relative_positions")
    if c.flag("relative_attention", default=False):
        if biased:
            c.fault("position_biased_input", True, "false with relative_attention")
        if not terms:
            c.fault("pos_att_type", c.data.get("pos_att_type", ABSENT), "'c2p', 'p2c' or both with relative_attention")
        distance = c.size("max_position_embeddings", default=512) if distance is None else distance
        raw["positions"] = {"form": "disentangled", "rows": 2 * distance, "distance": distance}
        raw["positions"]["terms"] = terms or ["c2p"]
        return raw
    c.ignore("share_att_key")
    raw["attention"]["scale"] = (attention["d_head"] * (1 + len(terms))) ** -0.5
    if biased:
        raw["positions"] = {"form": "learned", "rows": c.size("max_position_embeddings", default=512)}
    return raw


def _terms(c: Config) -> list[str]:
    """`pos_att_type`: a list, or its items separated by "|"."""
    c.ignore("pos_att_type")
    value = c.data.get("pos_att_type")
    terms = [term.strip() for term in value.lower().split("|")] if isinstance(value, str) else value or []
    supported = ["c2p", "p2c"]
    if not isinstance(terms, list) or any(term not in supported for term in terms) or len(set(terms)) < len(terms):
        c.fault("pos_att_type", value, "a list of 'c2p' and 'p2c', each at most once")
        return ["c2p"]
    return [term for term in supported if term in terms]


def _positive(c: Config, key: str) -> Any:
    """A size, or None if it is absent or −1."""
    if key not in c or (type(c.data[key]) is int and c.data[key] == -1):
        c.ignore(key)
        return None
    return c.size(key)
