"""Architectures under another name: published code with the layers of a supported type."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import Config, Raw, layered
from txcalc.sources.huggingface.families import ALIASES, reader
from txcalc.sources.huggingface.heads import class_of
from txcalc.sources.huggingface.keys import bare, without


def alias(c: Config) -> Raw:
    """A config read by the reader of another type, with the differences in its row of `families.ALIASES`.

    type      the type with the same layers
    classes   its classes, each with the type's class; the first is the default; "" is a language model with a head
    if        entries that replace others of the row if a config has a key that is not off; the first such key counts
    defaults  of its own class, if they differ from the type's; null has the meaning that it has in that type
    set       values that its code fixes, whatever the config has
    ignore    keys that change no size
    head      the table of its head, if it differs from the type's
    note      a note for the output
    """
    row: Raw = {**ALIASES[c.model_type]}
    row |= next((changes for key, changes in row.get("if", {}).items() if c.data.get(key)), {})
    absent = {key: value for key, value in row.get("defaults", {}).items() if key not in c}
    for key, value in absent.items():
        if value is not None:
            c.assume(key, value)
    cls = class_of(c.data)
    classes: dict[str, str] = {bare(published): cls_read for published, cls_read in row["classes"].items()}
    if cls is not None and bare(cls) not in classes:
        c.fault_class(" or ".join(row["classes"]))
    cls_read = classes.get(bare(cls or ""), next(iter(classes.values())))
    config = {key: value for key, value in c.data.items() if key != "architectures" and value != {}}
    c.data = absent | config | ({"architectures": [cls_read]} if cls_read else {}) | row.get("set", {})
    c.ignore(*row.get("ignore", "").split(), *row.get("if", {}))
    if "note" in row:
        c.note(row["note"])
    name, c.model_type = c.model_type, row["type"]
    raw = reader(c.model_type)(c)
    c.model_type = name  # its code may read keys that the type's code does not
    return raw | ({"head": row["head"]} if "head" in row else {})


def codet5p(c: Config) -> Raw:
    """CodeT5+: two stacks of GPT-J's layers. Only the decoder's last layer has cross-attention, in parallel with its
    attention and with the same norm.

    Source   Wang et al. 2023 (arXiv 2305.07922), section 3.1; its published code, whose 16B has 16,493,680,640
    """
    if c.data.get("architectures") and not c.class_ends("CodeT5pEncoderDecoderModel"):
        c.fault("architectures[0]", c.data["architectures"], "CodeT5pEncoderDecoderModel", "both stacks are read")
    c.ignore("architectures", "is_encoder_decoder", "tie_word_embeddings", "decoder_start_token_id")
    halves = {}
    for name, cls in (("encoder", "GPTJModel"), ("decoder", "GPTJForCausalLM")):
        table = c.data.get(name)
        c.ignore(name)
        given = table if isinstance(table, Mapping) else {}
        if given.get("model_type") != "codet5p_module":
            c.fault(name, table if name in c else ABSENT, "an object of the model type codet5p_module")
        outer = ("architectures", "model_type", "is_decoder", "add_cross_attention", "cross_attention_hidden_size")
        config = {key: value for key, value in given.items() if key not in outer}
        inner = Config(config | {"architectures": [cls]}, "gptj", f"{name}.", c, partial=True)
        for key in outer[2:4]:
            if given.get(key, False) is not (name == "decoder"):
                inner.fault(key, given.get(key, ABSENT), str(name == "decoder").lower())
        if name == "decoder" and (width := given.get("cross_attention_hidden_size")) is not None:
            inner.fault("cross_attention_hidden_size", width, "null", "its code only attends to its own width")
        halves[name] = reader("gptj")(inner)
    encoder, decoder = (without(half, "kind", "context") for half in halves.values())
    encoder["embedding"] = {**encoder.get("embedding", {}), "shared": False}
    n, plain = decoder["n_layers"], ["attention", "feed_forward"]
    kinds = {"plain": {"parts": plain}, "last": {"parts": ["attention", "cross_attention", "feed_forward"]}}
    named = ["plain"] * (n - 1) + ["last"]
    decoder = layered(decoder, (named, {kind: kinds[kind] for kind in set(named)}))
    decoder["projected"] = encoder["d_model"] != decoder["d_model"]
    return {"kind": "encoder-decoder", "encoder": encoder, "decoder": decoder}
