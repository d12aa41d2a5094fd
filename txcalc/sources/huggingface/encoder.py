"""BERT and its descendants: encoders with a masked-LM head, or bare with a pooler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.shared import (
    GLOBAL,
    LOCAL,
    Raw,
    classifier,
    gated,
    head_of,
    heads,
    layer_norm,
    layer_types,
    layered,
    padding_within,
    plain,
    rotary,
    windows,
)


def _encoder(
    c: Config,
    d_model: Sequence[str] = ("hidden_size",),
    n_layers: Sequence[str] = ("num_hidden_layers",),
    n_heads: Sequence[str] = ("num_attention_heads",),
    d_ff: str = "intermediate_size",
    act: Sequence[str] = ("hidden_act",),
    rows: int | None = 512,
    types: int | None = 2,
    rank: Any = None,
    place: str = "post",
    embedded_norm: bool = True,
    pooler: bool = True,
    untied: bool = False,
    deciding: str = "pooler",
    choosing: str = "pooler",
) -> Raw:
    """Learned positions and types, biases everywhere, a head tied to the token table.

    `rows` and `types` are the class's defaults; None: no such table. `rank` is the width of a table that a projection
    follows. `deciding` is what stands between the layers and a classifier of sequences: the pooler, or a layer with
    this activation; `choosing` the same for a choice of several ("": it is not read).
    """
    c.only(False, "is_decoder", "is_encoder_decoder", "add_cross_attention", why="an encoder is read")
    c.only({}, "pruned_heads", why="pruned heads are not read")
    c.only("absolute", "position_embedding_type", why="learned positions are read")
    c.ignore("cross_attention_hidden_size", "classifier_dropout", "cls_token_id", "mask_token_id", "directionality")
    c.ignore(
        "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"
    )
    raw: Raw = {
        "kind": "encoder",
        "d_model": c.size(*d_model),
        "n_layers": c.layers(*n_layers),
        "vocab_size": c.size("vocab_size"),
    }
    padding_within(c, raw)
    table: Raw = {"norm": embedded_norm}
    if types:
        table["types"] = c.size("type_vocab_size", default=types)
    if rank is not None:
        table["rank"] = rank
    positions: Raw = {"form": "none"}
    if rows:
        positions = {"form": "learned", "rows": c.size("max_position_embeddings", default=rows)}
    return raw | {
        "attention": heads(c, raw, names=n_heads, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": plain(c, d_ff, act_names=act),
        "norm": layer_norm(c, "layer_norm_eps", eps=1e-12, place=place),
        "positions": positions,
        "embedding": table,
        "head": _head(c, pooler, untied, {"sequence": deciding, "choice": choosing}),
    }


def _head(c: Config, pooler: bool, untied: bool, before: Mapping[str, str]) -> Raw:
    tasks = [task for task in ("sequence", "token", "question", "choice") if before.get(task) != ""]
    form = head_of(c, "masked-lm", "none", *tasks)
    if form != "masked-lm":
        c.ignore("tie_word_embeddings")
    if form == "none":
        return {"form": "none", "pooler": pooler}
    if form in tasks:
        layer = before.get(form)
        more = {} if layer is None else {"pooler": True} if layer == "pooler" else {"transform": layer}
        return classifier(c, form, **more)
    why = "the table and the head have different widths" if untied else "untied, it would have a second bias"
    c.only(not untied, "tie_word_embeddings", why=why)
    return {"form": "masked-lm", "tied": not untied}


def bert(c: Config) -> Raw:
    return _encoder(c)


def roberta(c: Config) -> Raw:
    return _encoder(c, deciding="tanh")


def xlm_roberta(c: Config) -> Raw:
    return _encoder(c, deciding="tanh")


def camembert(c: Config) -> Raw:
    return _encoder(c, deciding="tanh")


def data2vec_text(c: Config) -> Raw:
    return _encoder(c, deciding="tanh")


def ernie(c: Config) -> Raw:
    c.only(False, "use_task_id", why="a table of tasks is not read")
    c.ignore("task_type_vocab_size")
    return _encoder(c)


def megatron_bert(c: Config) -> Raw:
    return _encoder(c, place="pre", embedded_norm=False)


def roberta_prelayernorm(c: Config) -> Raw:
    return _encoder(c, place="pre", deciding="tanh")


def xlm_roberta_xl(c: Config) -> Raw:
    return _encoder(c, place="pre", rows=514, types=1, embedded_norm=False, deciding="tanh")


def electra(c: Config) -> Raw:
    rank = c.size("embedding_size", default=128)
    rank = None if rank == c.data.get("hidden_size") else rank
    return _encoder(c, rank=rank, pooler=False, deciding="gelu", choosing="")


def albert(c: Config) -> Raw:
    """One layer's weights for all, a table narrower than the model."""
    c.only(1, "num_hidden_groups", "inner_group_num", why="one set of weights for all layers is read")
    c.ignore("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks")
    return _encoder(c, rank=c.size("embedding_size", default=128)) | {"shared_layers": True}


def distilbert(c: Config) -> Raw:
    c.ignore("sinusoidal_pos_embds", "tie_weights_")  # the table is learned or filled, stored either way
    return _encoder(
        c,
        ("dim", "hidden_size"),
        ("n_layers", "num_hidden_layers"),
        ("n_heads", "num_attention_heads"),
        "hidden_dim",
        ("activation",),
        types=None,
        pooler=False,
        deciding="relu",
        choosing="relu",
    )


def rembert(c: Config) -> Raw:
    """A narrow table, and a head that works at a width of its own."""
    raw = _encoder(c, rank=c.size("input_embedding_size", default=256), untied=True)
    width = c.size("output_embedding_size", default=1664)
    if raw["head"]["form"] == "masked-lm":
        raw["head"]["rank"] = width
    return raw


def modernbert(c: Config) -> Raw:
    """Rotary positions, a window around each position in most layers, no norm before the first attention."""
    c.only(False, "is_decoder", "is_encoder_decoder", why="an encoder is read")
    c.only(True, "tie_word_embeddings", "decoder_bias", why="the head is tied, with a bias")
    c.ignore("classifier_activation", "classifier_pooling", "sparse_prediction", "sparse_pred_ignore_index")
    c.ignore("deterministic_flash_attn", "reference_compile", "initializer_cutoff_factor", "repad_logits_with_grad")
    c.ignore("position_embedding_type", "global_rope_theta", "local_rope_theta")
    raw: Raw = {
        "kind": "encoder",
        "d_model": c.size("hidden_size"),
        "n_layers": c.layers("num_hidden_layers"),
        "vocab_size": c.size("vocab_size"),
    }
    padding_within(c, raw)
    n = raw["n_layers"]
    bias = c.flag("mlp_bias", default=False)
    attention = heads(c, raw, kv_names=(), width_names=()) | {"bias": c.flag("attention_bias", default=False)}
    form = head_of(c, "masked-lm", "none", "sequence", "token", "question", "choice")
    raw |= {
        "attention": attention,
        "feed_forward": gated(c, act="gelu", bias=bias),
        "norm": layer_norm(c, "norm_eps", bias=c.flag("norm_bias", default=False)),
        "positions": rotary(c, attention["d_head"], 160000.0, kind=GLOBAL),
        "embedding": {"norm": True},
        "head": {"form": form},
    }
    biased = c.flag("classifier_bias", default=False)
    if form == "masked-lm":
        raw["head"] |= {"tied": True, "transform_bias": biased}
    elif form != "none":
        activation = c.activation("classifier_activation", default="gelu")
        raw["head"] = classifier(c, form, transform=activation, transform_norm=True, transform_bias=biased)
    every = c.size("global_attn_every_n_layers", default=3)
    types = layer_types(c, n, [LOCAL if i % every else GLOBAL for i in range(n)])
    reach = c.size("local_attention", default=128) // 2 + 1
    first: Raw = {"norm": {"without": ["attention"]}}
    starts = ["first" if i == 0 else "later" for i in range(n)]
    return layered(raw, windows(c, raw, reach, types), (starts, {"first": first, "later": {}}))
