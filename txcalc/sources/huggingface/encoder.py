"""BERT and its descendants, DeBERTa among them: encoders with a masked-LM head, or bare with a pooler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface import transformers_metadata as metadata
from txcalc.sources.huggingface.config import Config, Raw, layered
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
    narrow: tuple[str, int | None] | None = None,
    projected: bool = False,
    place: str = "post",
    embedded_norm: bool = True,
    pooler: bool = True,
    untied: bool | None = False,
    deciding: str = "pooler",
    choosing: str | None = "pooler",
    detecting: str | None = None,
    without: Sequence[str] = (),
    eps: float = 1e-12,
    twins: Sequence[str] = (),
    theta: float | None = None,
    gated: bool = False,
    attention_bias: bool = True,
    mlp_bias: bool = True,
) -> Raw:
    """Learned positions and types, biases everywhere, a head tied to the token table.

    `rows` and `types` are the class's defaults; None: no such table. `theta` is the base of rotary positions in the
    place of learned ones, of heads as wide as `head_dim` says, else D/h, rounded down. `narrow` is the key of the width
    of a table that a projection follows, and its default; of one as wide as the model, where it is `projected`.
    `deciding` is what stands between the layers and a classifier of sequences: the pooler, or a layer with this
    activation; `choosing` the same for a choice of several, None: nothing; `detecting` that of a layer before the
    scores of tokens that were replaced, ELECTRA's pretraining. `without` are tasks of which no class is read. `twins`
    are keys that may say the model's width again.
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
    c.require_value(raw["d_model"], *twins, why="only a table as wide as the model is supported")
    if narrow:
        rank = c.size(narrow[0], default=narrow[1])
        table |= {} if rank is None or (rank == raw["d_model"] and not projected) else {"rank": rank}
    positions: Raw = {"form": "none"}
    if theta is not None:
        positions = c.rotary(attention["d_head"], theta)
    elif rows:
        positions = {"form": "learned", "rows": c.size("max_position_embeddings", default=rows)}
    before = {"sequence": deciding, "choice": choosing} | dict.fromkeys(without, "")
    return raw | {
        "attention": attention | {"bias": attention_bias},
        "feed_forward": c.mlp(*d_ff, act=act, act_names=act_names, bias=mlp_bias) | ({"gated": True} if gated else {}),
        "norm": c.layer_norm("layer_norm_eps", eps=eps, place=place),
        "positions": positions,
        "embedding": table,
        "head": masked_lm(c, pooler, untied, before, detecting),
    }


def masked_lm(
    c: Config, pooler: bool, untied: bool | None, before: Mapping[str, str | None], detecting: str | None = None
) -> Raw:
    """`before` is what stands before a classifier, by its task; `untied`: the config says it when None."""
    tasks = [task for task in ("sequence", "token", "question", "choice") if before.get(task) != ""]
    pairs = ("pretraining", "pairs") if pooler else ("pretraining",) if detecting else ()
    form = c.head_of("masked-lm", "none", *tasks, *pairs, *(("lm",) if c.class_ends(*CAUSAL_LM) else ()))
    form = "masked-lm" if form == "lm" else form
    if form not in ("masked-lm", "pretraining") or (form == "pretraining" and detecting):
        c.ignore("tie_word_embeddings")
    if form == "pretraining" and detecting:
        return {"form": "classifier", "classes": 1, "every": True, "transform": detecting}
    if form == "pairs":
        return {"form": "classifier", "classes": 2, "every": False, "pooler": True}
    if form == "none":
        return {"form": "none", "pooler": pooler}
    if form in tasks:
        layer = before.get(form)
        keys = {} if layer is None else {"pooler": True} if layer == "pooler" else {"transform": layer}
        return c.classifier(form, **keys)
    both = {"pooler": True, "pairs": c.labels() if c.model_type == "albert" else 2} if form == "pretraining" else {}
    if untied is None:
        return {"form": "masked-lm", "tied": c.flag("tie_word_embeddings", default=True), **both}
    why = "the table and the head have different widths" if untied else "untied, it would have a second bias"
    c.require_value(not untied, "tie_word_embeddings", why=why)
    return {"form": "masked-lm", "tied": not untied, **both}


def encoder(c: Config) -> Raw:
    """A config by the row of its model type in `encoders.json`: arguments of `bert_like`, keys that must be false
    (`off`), and `shared_layers` if all layers have one set of weights."""
    row = {**metadata.table("encoders.json")[c.model_type]}
    c.require_value(False, *row.pop("off", "").split(), why="the published models have this value")
    shared = {"shared_layers": True} if row.pop("shared_layers", False) else {}
    return bert_like(c, **row) | shared


def roc_bert(c: Config) -> Raw:
    """BERT that reads a character's shape and sound beside it, through one matrix."""
    if c.class_ends("ForPreTraining", "ForNextSentencePrediction"):
        c.fault("architectures", c.data["architectures"], "another class", "its pretraining heads are not supported")
    raw = bert_like(c)
    d, around, width = raw["d_model"], [], raw["d_model"]
    for name, rows, wide in (("pronunciation", 910, 768), ("shape", 24858, 512)):
        sizes = c.size(f"{name}_vocab_size", default=rows), c.size(f"{name}_embed_dim", default=wide)
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
    """RoBERTa with an adapter of each language after every feed-forward, of which a token passes one."""
    c.ignore("languages")
    raw = bert_like(c, deciding="tanh")
    d, n, tongues = raw["d_model"], raw["n_layers"], c.data.get("languages", ["en_XX"])
    if not isinstance(tongues, list) or not tongues or len(set(map(str, tongues))) < len(tongues):
        c.fault("languages", tongues, "a list of languages, each once")
        tongues = ["en_XX"]
    narrow = d // c.size("adapter_reduction_factor", default=2)
    if narrow < 1:
        c.fault("adapter_reduction_factor", c.data.get("adapter_reduction_factor", 2), f"at most hidden_size = {d:,}")
    act, reused = c.activation("hidden_act", default="gelu"), c.flag("adapter_reuse_layer_norm", default=True)
    normed = c.flag("adapter_layer_norm", default=False)
    norm = [norm_leaf("adapter", d, "layer_norm" if normed else "norm_again", times=n)] * (normed or reused)
    narrow = max(1, narrow)
    around = [
        *norm,
        leaf("adapter_down", "linear", d, narrow, times=n, kind="feed_forward"),
        leaf("adapter_activation", act, narrow, times=n, kind="feed_forward"),
        leaf("adapter_up", "linear", narrow, d, times=n, kind="feed_forward"),
        leaf("adapter_sum", "sum", d, times=n, kind="feed_forward"),
    ]
    if len(tongues) > 1:
        other_languages = (len(tongues) - 1) * (2 * d * narrow + d + narrow)
        around.append(leaf("other_languages", "held", other_languages, times=n, kind="feed_forward"))
    return raw | {"around": around}


def layoutlm(c: Config) -> Raw:
    """BERT with tables of places on a page: left and right, top and bottom, height, width. Its pooler always runs."""
    raw = bert_like(c, without=("choice",))
    rows = c.size("max_2d_position_embeddings", default=1024)
    raw["embedding"]["tables"] = [[rows, 2], [rows, 2], [rows, 1], [rows, 1]]
    raw["head"]["pooler"] = True
    return raw


def tapas(c: Config) -> Raw:
    """BERT with tables of where a token stands in a spreadsheet."""
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
    """A learned table of positions, and a bias by distance that all layers share."""
    raw = bert_like(c, types=None, deciding="tanh")
    buckets = c.size("relative_attention_num_buckets", default=32)
    raw["positions"] |= {"form": "relative", "buckets": buckets, "distance": 128}
    return raw


def bert_generation(c: Config) -> Raw:
    """BERT without types; its decoder has a head that is the table alone, and looks both ways unless told otherwise."""
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
    return _learned(c, raw, c.mha(raw), c.mlp(), {"norm": True}, head)


def _learned(c: Config, raw: Raw, attention: Raw, mlp: Raw, embedding: Raw, head: Raw) -> Raw:
    """Norms after the sums, learned positions, biases everywhere."""
    norm = c.layer_norm("layer_norm_eps", eps=1e-12, place="post")
    places = {"form": "learned", "rows": c.size("max_position_embeddings", default=512)}
    return c.decoder(
        raw, attention | {"bias": True}, mlp=mlp, norm=norm, positions=places, embedding=embedding, head=head
    )


def xlm(c: Config) -> Raw:
    """Norms after the sums, a table of languages where there are several, a head that is the table alone."""
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
    return _learned(c, raw, attention, mlp, table, head)


def flaubert(c: Config) -> Raw:
    """XLM, or with the norms before the parts and none after the last."""
    raw = xlm(c)
    if c.flag("pre_norm", default=False):
        raw["norm"] |= {"place": "pre", "final": False}
    return raw


def electra(c: Config) -> Raw:
    act, narrow = c.activation("hidden_act", default="gelu"), ("embedding_size", 128)
    return bert_like(
        c, narrow=narrow, pooler=False, deciding="gelu", choosing=c.summary_activation("gelu"), detecting=act
    )


def rembert(c: Config) -> Raw:
    """A narrow table, and a head that works at a width of its own."""
    raw = bert_like(c, narrow=("input_embedding_size", 256), projected=True, untied=True)
    width = c.size("output_embedding_size", default=1664)
    if raw["head"]["form"] == "masked-lm":
        raw["head"]["rank"] = width
    return raw


def splinter(c: Config) -> Raw:
    """BERT whose answers' ends are chosen by what stands at a question's mark, through layers of their own."""
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
    """RoBERTa that has entities beside the words, with a table, positions and queries of their own."""
    raw = bert_like(c)
    d, n, narrow = raw["d_model"], raw["n_layers"], c.size("entity_emb_size", default=256)
    entities = c.size("entity_vocab_size", default=500000)
    rows, types = raw["positions"]["rows"], raw["embedding"]["types"]
    idle = entities * narrow + (rows + types) * d + 2 * d
    idle += narrow * d if narrow != d else 0
    if c.flag("use_entity_aware_attention", default=True):
        idle += n * 3 * d * (d + 1)
    if raw["head"]["form"] == "masked-lm":
        idle += narrow * (d + 1) + 2 * narrow + entities
        raw["head"] |= {"tied": False, "pooler": True}
        c.note("its head of words is not the table of words, as transformers 5 makes it")
    return c.with_idle(raw, idle, "words alone are run: what entities have of their own", "is held and not run")


def deberta(c: Config) -> Raw:
    """Distances in products of their own, of no more than occur; a fused projection with biases on Q and V alone."""
    raw = _disentangled(c)
    raw["attention"]["bias"] = ["q", "v", "o"]
    if raw["positions"]["form"] == "disentangled":
        terms = raw["positions"]["terms"]
        raw["positions"] |= {"clipped": True, "bias": ["q"] if "p2c" in terms else []}
    return raw


def deberta_v2(c: Config) -> Raw:
    """Distances in buckets, which q and k may project themselves; a convolution beside the first layer."""
    raw = _disentangled(c)
    places = raw["positions"]
    both = ["c2p", "p2c"]
    shared = c.flag("share_att_key", default=False)
    norms = [norm.strip() for norm in c.text("norm_rel_ebd", default="none").lower().split("|")]
    unknown = [norm for norm in norms if norm not in ("none", "layer_norm")]
    if unknown:
        c.fault("norm_rel_ebd", c.data["norm_rel_ebd"], "'layer_norm' or 'none'")
    has_norm = "layer_norm" in norms
    if places["form"] == "disentangled":
        terms = places["terms"]
        if shared and set(terms) != set(both):
            c.fault("share_att_key", True, "false with one pos_att_type", "q and k both project the distances")
        places |= {"shared": shared, "norm": has_norm, "bias": [] if shared else _letters(terms)}
        buckets = _positive(c, "position_buckets")
        if buckets is not None:
            places["rows"] = 2 * buckets
            if buckets >= places["distance"]:
                c.fault("position_buckets", buckets, f"less than the longest distance = {places['distance']:,}")
    else:
        c.ignore("position_buckets")
        if has_norm:
            c.fault("norm_rel_ebd", c.data["norm_rel_ebd"], "'none' without relative_attention")
    taps = c.count("conv_kernel_size", default=0)
    if not taps:
        c.ignore("conv_act")
        return raw
    if taps % 2 == 0:
        c.fault("conv_kernel_size", taps, "an odd number", "its output would be shorter")
    convolution = {"taps": taps, "activation": c.activation("conv_act", default="tanh")}
    starts = ["first" if i == 0 else "later" for i in range(raw["n_layers"])]
    first = {"parts": ["attention", "feed_forward", "convolution"], "convolution": convolution}
    return layered(raw, (starts, {"first": first, "later": {}}))


def _letters(terms: Sequence[str]) -> list[str]:
    """The projections of the distances: as keys for c2p, as queries for p2c."""
    return [letter for letter, term in (("q", "p2c"), ("k", "c2p")) if term in terms]


def _disentangled(c: Config) -> Raw:
    raw = c.widths("encoder")
    c.require_value(raw["d_model"], "embedding_size", why="only a table as wide as the model is supported")
    types = c.count("type_vocab_size", default=0)
    attention = c.mha(raw)
    c.require_value(attention["d_head"], "attention_head_size", why="it is the width over the heads")
    c.require_value(raw["d_model"], "pooler_hidden_size", why="only a pooler as wide as the model is supported")
    pooled = c.activation("pooler_hidden_act", default="gelu")  # of the layer before a classifier of sequences
    raw |= {
        "attention": attention | {"bias": True},
        "feed_forward": c.mlp(),
        "norm": c.layer_norm("layer_norm_eps", eps=1e-7, place="post"),
        "embedding": {"norm": True} | ({"types": types} if types else {}),
        "head": masked_lm(c, False, False, dict.fromkeys(("sequence", "choice"), pooled)),
        "positions": {"form": "none"},
    }
    terms = _terms(c)
    biased = c.flag("position_biased_input", default=True)
    reach = _positive(c, "max_relative_positions")
    if c.flag("relative_attention", default=False):
        if biased:
            c.fault("position_biased_input", True, "false with relative_attention", "both tables are not supported")
        if not terms:
            c.fault("pos_att_type", c.data.get("pos_att_type", ABSENT), "'c2p', 'p2c' or both with relative_attention")
        reach = c.size("max_position_embeddings", default=512) if reach is None else reach
        raw["positions"] = {"form": "disentangled", "rows": 2 * reach, "distance": reach, "terms": terms or ["c2p"]}
        return raw
    c.ignore("share_att_key")
    raw["attention"]["scale"] = (attention["d_head"] * (1 + len(terms))) ** -0.5
    if biased:
        raw["positions"] = {"form": "learned", "rows": c.size("max_position_embeddings", default=512)}
    return raw


def _terms(c: Config) -> list[str]:
    """`pos_att_type`: a list, or its items with bars between them."""
    c.ignore("pos_att_type")
    given = c.data.get("pos_att_type") if "pos_att_type" in c else None
    terms = [term.strip() for term in given.lower().split("|")] if isinstance(given, str) else given or []
    known = ["c2p", "p2c"]
    if not isinstance(terms, list) or any(term not in known for term in terms) or len(set(terms)) < len(terms):
        c.fault("pos_att_type", given, "a list out of 'c2p' and 'p2c', each once")
        return ["c2p"]
    return [term for term in known if term in terms]


def _positive(c: Config, key: str) -> Any:
    """A size, or None where it is absent or −1."""
    if key not in c or (type(c.data[key]) is int and c.data[key] == -1):
        c.ignore(key)
        return None
    return c.size(key)
