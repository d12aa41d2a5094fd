"""Decoders of models that speak: their text, as a language model by itself."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config
from txcalc.sources.huggingface.shared import Raw, heads, lm_head, rms, rotary, stack


def moshi(c: Config) -> Raw:
    """The decoder alone, whose table has a row more than its head; its gate and up are one matrix."""
    names = c.data.get("architectures")
    if isinstance(names, list) and names and names[0] == "MoshiForConditionalGeneration":
        c.fault("architectures[0]", names[0], "MoshiForCausalLM", "its depth decoder and its codec have no reader yet")
    c.ignore("num_codebooks", "audio_vocab_size", "audio_encoder_config", "depth_decoder_config")
    raw = stack(c)
    attention = heads(c, raw)
    window = c.size("sliding_window", default=3000)
    width = c.size("ffn_dim", default=22528)
    c.divides(2, width, "2", c.spelling("ffn_dim"))
    head = lm_head(c, False)
    if head.get("tied"):
        c.fault("tie_word_embeddings", True, "false", "the table has a row more than the head")
    return raw | {
        "attention": attention | {"window": window},
        "feed_forward": {
            "d_ff": max(1, width // 2),
            "gated": True,
            "activation": c.activation("hidden_act", default="silu"),
        },
        "norm": rms(c, eps=1e-8),
        "positions": rotary(c, attention["d_head"]),
        "embedding": {"extra": 1},
        "head": head,
    }
