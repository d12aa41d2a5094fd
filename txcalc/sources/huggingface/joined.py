"""Two configs in one: an encoder of words or pictures, and a decoder that attends to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from txcalc.errors import ABSENT, Fault, InputError
from txcalc.sources.huggingface.classic import gpt2
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.encoder import bert, roberta
from txcalc.sources.huggingface.seq2seq import trocr
from txcalc.sources.huggingface.vision import beit, dinov2, vit

Readers = Mapping[str, Callable[[Config], Raw]]
# Those with a class of transformers that has cross-attention, and is an encoder without it.
BOTH: Readers = {"bert": bert, **dict.fromkeys(("camembert", "roberta", "xlm-roberta"), roberta)}
PICTURES: Readers = {"beit": beit, "dinov2": dinov2, "vit": vit}
WRITERS: Readers = {**BOTH, "gpt2": gpt2, "trocr": trocr}
# The keys that make a class a decoder with cross-attention; TrOCR's is one whatever they say.
CROSSING = {**dict.fromkeys(BOTH, ("is_decoder", "add_cross_attention")), "gpt2": ("add_cross_attention",), "trocr": ()}
BESIDE_THE_READER = ("is_decoder", "add_cross_attention", "cross_attention_hidden_size")


def encoder_decoder(c: Config, encoders: Readers = BOTH) -> Raw:
    """Halves with tables and heads of their own: the encoder as its class without a head, the decoder with one."""
    c.only(True, "is_encoder_decoder", why="an encoder and a decoder are read")
    c.only(False, "tie_encoder_decoder", why="halves with weights of their own are read")
    c.ignore("tie_word_embeddings", "vocab_size")  # the decoder's own are what its head has
    c.head_of("none")
    first, second = _half(c, "encoder", encoders), _half(c, "decoder", WRITERS)
    encoder, decoder = encoders[first.model_type](first), WRITERS[second.model_type](second)
    encoder["embedding"] = {**encoder.get("embedding", {}), "shared": False}
    read, widths = c.data["decoder"].get("cross_attention_hidden_size"), (encoder["d_model"], decoder["d_model"])
    if read is not None and (read != widths[0] or type(read) is not int):
        second.fault("cross_attention_hidden_size", read, f"the encoder's {widths[0]:,}")
    if widths[0] != widths[1] and (read is None or second.model_type != "trocr"):
        why = "a matrix between the halves is not read"
        second.fault(
            second.spelling("hidden_size", "d_model", "n_embd"), widths[1], f"the encoder's {widths[0]:,}", why
        )
    halves = {"encoder": encoder, "decoder": decoder}
    own = {half: {k: v for k, v in raw.items() if k not in ("kind", "context")} for half, raw in halves.items()}
    return {"kind": "encoder-decoder", **own}


def vision_encoder_decoder(c: Config) -> Raw:
    """A picture's encoder, all of whose positions a decoder attends to."""
    return encoder_decoder(c, PICTURES)


def _half(c: Config, half: str, known: Readers) -> Config:
    """The config of a half, as that of the class which transformers makes of it."""
    c.asked.add(half)
    data = c.data.get(half)
    if not isinstance(data, Mapping):
        got = ABSENT if data is None else data
        raise InputError(c.model_type, [Fault(half, got, "an object, the half's own config")])
    name = data.get("model_type")
    if not isinstance(name, str) or name not in known:
        got = name if "model_type" in data else ABSENT
        raise InputError(c.model_type, [Fault(f"{half}.model_type", got, f"one of {', '.join(known)}")])
    hidden = ("architectures", *(BESIDE_THE_READER if half == "decoder" else ()))
    shown = {key: value for key, value in data.items() if key not in hidden}
    if half == "encoder":
        shown["architectures"] = [f"{name}Model"]
    inner = Config(shown, name, f"{half}.", c, partial=True)
    for key in CROSSING[name] if half == "decoder" else ():
        if data.get(key) is not True:
            inner.fault(key, data.get(key, ABSENT), "true, for a decoder attends to its encoder")
    return inner
