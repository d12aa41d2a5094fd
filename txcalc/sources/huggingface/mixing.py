"""BERT's kin whose layers mix tokens otherwise: in groups, by Fourier transforms, by convolutions beside attention."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.encoder import bert_like
from txcalc.sources.huggingface.shared import Raw, blocks


def squeezebert(c: Config) -> Raw:
    """BERT whose linear layers are convolutions of one tap, in groups; its pooler always runs."""
    raw = bert_like(c)
    if c.size("embedding_size", default=768) != raw["d_model"]:
        c.fault("embedding_size", c.data.get("embedding_size", 768), f"hidden_size = {raw['d_model']:,}")
    of_qkv = [c.size(f"{letter}_groups", default=4) for letter in "qkv"]
    raw["attention"] |= _in_groups([*of_qkv, c.size("post_attention_groups", default=1)])
    raw["feed_forward"] |= _in_groups([c.size(f"{name}_groups", default=4) for name in ("intermediate", "output")])
    raw["head"]["pooler"] = True
    return raw


def big_bird(c: Config) -> Raw:
    """BERT that attends in blocks; its classifier has a layer with its own activation."""
    c.ignore("rescale_embeddings")
    act = c.activation("hidden_act", default="gelu_new")
    raw = bert_like(c, rows=4096, act="gelu_new", deciding=act, without=("question",))
    raw["attention"]["bias"] = ["o"]
    if c.flag("use_bias", default=True):
        raw["attention"]["bias"] = True
    raw["attention"] |= blocks(c)
    if raw["head"]["form"] != "none":
        raw["head"]["pooler"] = True
    return raw


def fnet(c: Config) -> Raw:
    """BERT with a Fourier transform for attention, a projection after the embedding's norm; its pooler always runs."""
    c.only(
        False, "use_tpu_fourier_optimizations", why="a fast Fourier transform is counted, no product with its matrix"
    )
    c.ignore("tpu_short_seq_length")
    raw = bert_like(c, n_heads=(), types=4, act="gelu_new")
    raw["embedding"]["rank"] = raw["d_model"]
    raw["head"]["pooler"] = True
    if raw["head"]["form"] == "masked-lm":
        raw["head"]["rank"] = raw["d_model"]
    c.note("the Fourier transforms themselves are not among the FLOPs: they are no matrix products")
    return raw | {"layer": {"layer": {"parts": ["fourier", "feed_forward"]}}}


def convbert(c: Config) -> Raw:
    """ELECTRA with as many heads of attention, a fraction of those said, as of convolutions that positions make."""
    rank = c.size("embedding_size", default=768)
    rank = None if rank == c.data.get("hidden_size") else rank
    act = c.activation("hidden_act", default="gelu")
    raw = bert_like(c, rank=rank, pooler=False, deciding=act, without=("choice",))
    said, ratio = c.size("num_attention_heads"), c.size("head_ratio", default=2)
    heads = max(1, said // ratio)
    width = raw["d_model"] // heads // 2
    if 2 * heads * width != raw["d_model"]:
        c.fault("hidden_size", raw["d_model"], f"a multiple of 2·{heads}, twice the heads of attention that are left")
    taps = c.size("conv_kernel_size", default=9)
    if taps % 2 == 0:
        c.fault("conv_kernel_size", taps, "an odd number", "its output would be longer")
    biases = raw.pop("attention")["bias"]
    raw["span_attention"] = {"n_heads": heads, "d_head": max(1, width), "taps": taps, "bias": biases}
    raw["feed_forward"] |= _in_groups([c.size("num_groups", default=1)] * 2)
    if raw["head"]["form"] == "masked-lm":
        raw["head"]["activation"] = "gelu"
    return raw


def _in_groups(groups: list[int]) -> Raw:
    return {"groups": groups} if any(number != 1 for number in groups) else {}
