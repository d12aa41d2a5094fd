"""Text beside what is seen or known: GIT, which writes about a picture, LayoutLMv3, which reads a page, and LUKE, which
knows entities. Text alone is run."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.sources.huggingface.beside import stack_of
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.encoder import bert_like
from txcalc.sources.huggingface.tensors import linear
from txcalc.sources.huggingface.towers import clip as clip_tower
from txcalc.sources.spec import MAX_SIZE


def git(c: Config) -> Raw:
    """Post-norm layers that write after a picture's patches, which stand before the text like tokens of its own."""
    c.alone()
    c.only("absolute", "position_embedding_type", why="learned positions are read")
    c.ignore("classifier_dropout")
    raw = c.widths("decoder")
    head: Raw = {"form": "none"}
    if c.head_of("lm", "none") == "lm":
        head = {"tied": c.flag("tie_word_embeddings", default=False), "bias": True}
    else:
        c.ignore("tie_word_embeddings")
    d, rows = raw["d_model"], c.size("max_position_embeddings", default=1024)
    tower = clip_tower(_seen(c))
    frames = c.size("num_image_with_embedding", default=None, null=None) or 0
    held = stack_of(tower.raw or {}).params if not c.faults else 0
    seen = held + linear(tower.width, d) + 2 * d + frames * tower.width
    c.note(
        f"text alone is run: the picture's encoder and its projection ({seen:,} parameters) are held and not run; each "
        "position of a picture that is written about is a token more"
    )
    return raw | {
        "attention": c.heads(raw, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": c.plain(),
        "norm": c.layer_norm("layer_norm_eps", eps=1e-12, place="post"),
        "positions": {"form": "learned", "rows": rows},
        "context": rows,
        "embedding": {"norm": True},
        "head": head,
        "idle": seen,
    }


def _seen(c: Config) -> Config:
    """The config of the picture's encoder: CLIP's, with smaller patches unless told otherwise."""
    c.asked.add("vision_config")
    table = c.data.get("vision_config", {})
    if not isinstance(table, Mapping):
        c.fault("vision_config", table, "an object, the encoder's own config")
        table = {}
    v = Config({"patch_size": 16, **table}, "git_vision_model", "vision_config.", c, partial=True)
    v.ignore("dropout", "tie_word_embeddings")
    return v


def layoutlmv3(c: Config) -> Raw:
    """RoBERTa with biases by distance, in the text and on the page, tables of places, and a picture's patches."""
    raw = bert_like(c, deciding="tanh", without=("choice",), pooler=False, eps=1e-5)
    c.only(True, "text_embed", why="a model of text is read")
    d, n_heads, rows = raw["d_model"], raw["attention"]["n_heads"], c.size("max_2d_position_embeddings", default=1024)
    places = [c.size(key, default=128) for key in ("coordinate_size", "shape_size")]
    if 4 * places[0] + 2 * places[1] != d:
        c.fault("coordinate_size", places[0], f"a quarter of hidden_size − 2·shape_size = {d - 2 * places[1]:,}")
    held = 2 * rows * sum(places)
    buckets, reach = c.size("rel_pos_bins", default=32), c.size("max_rel_pos", default=128)
    if c.flag("has_relative_attention_bias", default=True):
        raw["positions"] |= {"form": "relative", "buckets": buckets, "distance": reach}
    on_page = c.size("rel_2d_pos_bins", default=64)
    c.ignore("max_rel_2d_pos", "second_input_size")
    if c.flag("has_spatial_attention_bias", default=True):
        held += 2 * on_page * n_heads
    side, patch = c.size("input_size", default=224), c.size("patch_size", default=16)
    channels = c.size("num_channels", default=3)
    if c.flag("visual_embed", default=True):
        grid = int(side / patch)
        held += linear(channels * patch**2, d) + d + (grid**2 + 1) * d + 4 * d
    if held > MAX_SIZE:
        c.fault("max_2d_position_embeddings", rows, "a size that can be held")
    c.note(
        f"text alone is run: a picture's patches are tokens more; its places on the page and its patches ({held:,} "
        "parameters) are counted as held, and what they add to tokens and scores is not among other FLOPs"
    )
    head = raw["head"]
    if head["form"] == "classifier":
        form = c.head_of("none", "sequence", "token", "question")
        wide = form != "token" or c.labels() >= 10
        raw["head"] = c.classifier(form) | ({"transform": "tanh"} if wide else {})
    elif head["form"] != "none":
        raw["head"] = {"form": "none"}
    return raw | {"idle": held}


def luke(c: Config) -> Raw:
    """RoBERTa that has entities beside the words, with a table, positions and queries of their own."""
    raw = bert_like(c)
    d, n, narrow = raw["d_model"], raw["n_layers"], c.size("entity_emb_size", default=256)
    entities = c.size("entity_vocab_size", default=500000)
    rows, types = raw["positions"]["rows"], raw["embedding"]["types"]
    held = entities * narrow + (rows + types) * d + 2 * d
    held += linear(narrow, d, False) if narrow != d else 0
    if c.flag("use_entity_aware_attention", default=True):
        held += n * 3 * linear(d, d)
    if raw["head"]["form"] == "masked-lm":
        held += linear(d, narrow) + 2 * narrow + entities
        raw["head"] |= {"tied": False, "pooler": True}
        c.note("its head of words is not the table of words, as transformers 5 makes it")
    c.note(f"words alone are run: what entities have of their own ({held:,} parameters) is held and not run")
    return raw | {"idle": held}
