"""Dense decoders in the line of Llama that have more to them than a row of `decoders.json` says."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import GLOBAL, LAYER_NAMES, LOCAL, Config, Raw, layered, turned
from txcalc.sources.huggingface.decoders import decoder
from txcalc.sources.huggingface.keys import any_of, number


def emu3_text_model(c: Config) -> Raw:
    raw = c.stack()
    if "pad_token_id" not in c and raw["vocab_size"] <= 151643:
        c.fault("pad_token_id", ABSENT, f"a row of the table: the class's own is 151643, of {raw['vocab_size']:,}")
    attention = c.heads(raw, kv=8, whole=None) | {"bias": c.flag("attention_bias", default=False)}
    return c.decoder(raw, attention, mlp_bias=c.flag("mlp_bias", default=False), theta=1e6)


def diffllama(c: Config) -> Raw:
    """Llama with differential attention."""
    attention = c.heads(raw := c.stack(), whole=None) | {"bias": c.flag("attention_bias", default=False)}
    for key, name in (("n_kv_heads", "num_key_value_heads"), ("n_heads", "num_attention_heads")):
        if attention[key] % 2:
            c.fault(name, attention[key], "an even number", "differential attention halves the heads")
    if c.real("attention_dropout", default=0.0) > 0:
        c.fault("attention_dropout", c.data["attention_dropout"], "0", "transformers makes no diffllama with it")
    c.ignore("lambda_std_dev")
    raw = c.decoder(raw, attention)
    return raw | {"differential_attention": raw.pop("attention"), "norm": c.rms(eps=1e-5)}


def _switched_windows(c: Config, raw: Raw, start: int = 28) -> Raw:
    """Qwen's windows: off unless `use_sliding_window`, then from layer `max_window_layers` on."""
    n = raw["n_layers"]
    first = c.count("max_window_layers", default=None)
    window = c.size("sliding_window", default=4096 if c.data.get("use_sliding_window") else None, null=None)
    on = c.flag("use_sliding_window", default=False) and window is not None
    if on and first is None:
        c.assume("max_window_layers", first := start)
    default = [LOCAL if on and i >= (first or 0) else GLOBAL for i in range(n)]
    return layered(raw, c.windows(raw, window if on else None, c.layer_types(n, default)))


def apertus(c: Config) -> Raw:
    """Two matrices, with an activation that learns its slopes."""
    raw = c.stack()
    attention = c.heads(raw, whole=None) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    c.only(False, "mlp_bias", "post_norm", why="transformers' apertus has no biases there and pre-norms")
    c.only(True, "qk_norm", why="transformers' apertus normalises Q and K")
    form = c.text("hidden_act", default="xielu")
    named = form if form == "xielu" else c.activation("hidden_act", default="xielu")
    return raw | {
        "attention": attention,
        "feed_forward": {"d_ff": c.size("intermediate_size"), "gated": False, "activation": named},
        "norm": c.rms(eps=1e-5),
        "positions": c.rotary(attention["d_head"], 12e6),
        "head": c.lm_head(tied=False),
    }


def olmo(c: Config) -> Raw:
    raw = c.stack()
    c.ignore("clip_qkv")
    attention = c.heads(raw) | {"bias": c.flag("attention_bias", default=False)}
    return c.decoder(raw, attention) | {"norm": {"form": "layer", "bias": False, "weighted": False}}


def smollm3(c: Config) -> Raw:
    raw = c.stack()
    n = raw["n_layers"]
    attention = c.heads(raw, kv=4) | {"bias": c.flag("attention_bias", default=False)}
    raw = c.decoder(raw, attention, tied=True, mlp_bias=c.flag("mlp_bias", default=False), theta=2e6)
    every = c.size("no_rope_layer_interval", default=4)
    rotated = c.items(
        "no_rope_layers", of=any_of(0, 1), length=n, default=[int((i + 1) % every != 0) for i in range(n)]
    )
    window, on = c.size("sliding_window", default=None), c.flag("use_sliding_window", default=False)
    on = on and window is not None
    types = c.layer_types(n, [LOCAL if on and not angles else GLOBAL for angles in rotated])
    return layered(raw, c.windows(raw, window if on else None, types), turned(rotated))


def hyperclovax(c: Config) -> Raw:
    raw = decoder(c, "llama")
    return raw | {"norm": raw["norm"] | {"place": "sandwich" if c.flag("use_post_norm", default=True) else "pre"}}


def cohere_compass_text(c: Config) -> Raw:
    """Windows only where `layer_types` says so; rotary parameters for each kind of layers, null for none."""
    raw = c.stack()
    attention = c.heads(raw, whole=None) | {"bias": c.flag("attention_bias", default=False)}
    n, window = raw["n_layers"], c.size("sliding_window", default=4096, null=None)
    c.ignore("pooling", "sliding_window_pattern")
    types = c.layer_types(n, [GLOBAL] * n)
    angles = c.data.get("rope_parameters")
    given = angles if isinstance(angles, Mapping) else {}
    tables: dict[str, Raw] = {}
    for kind in sorted(set(types)):
        if kind not in given:
            c.fault(
                "rope_parameters", angles, f"a table for each layer type, or null for no positions: {kind} is missing"
            )
        places = c.rotary(attention["d_head"], kind=kind) if given.get(kind) is not None else {"form": "none"}
        tables[LAYER_NAMES[kind]] = {
            "positions": places | {"interleaved": True} if places["form"] == "rotary" else places
        }
    c.ignore("rope_parameters")
    raw |= {
        "attention": attention,
        "feed_forward": c.gated(),
        "norm": c.layer_norm(bias=False, parallel="shared"),
        "head": c.lm_head(tied=True),
    }
    return layered(raw, c.windows(raw, window, types, tables))


def mllama_text_model(c: Config) -> Raw:
    """Llama's layers, and between them layers that attend to a picture and to no word: without one they are held and
    not run, as are eight rows of the table beyond the vocabulary."""
    raw = c.stack()
    n, d = raw["n_layers"], raw["d_model"]
    listed = c.items("cross_attention_layers", of=number, length=None, default=[3, 8, 13, 18, 23, 28, 33, 38])
    across = sorted({index for index in listed if index < n})
    if len(across) == n:
        c.fault("cross_attention_layers", across, "fewer layers than there are")
        return raw
    c.only(len(listed), "vision_num_cross_attention_layers", why="the length of cross_attention_layers")
    c.only(False, "tie_word_embeddings", why="its table has eight rows more than its head")
    attention = c.heads(raw, width_names=())
    made = c.decoder(raw | {"n_layers": n - len(across)}, attention)
    width, groups = attention["d_head"], attention["n_kv_heads"]
    layer = 2 * d * attention["n_heads"] * width + 2 * d * groups * width + 2 * width + 2 * d + 2
    layer += 3 * d * made["feed_forward"]["d_ff"]
    idle = len(across) * layer + 8 * d
    c.note(
        f"{len(across):,} of its {n:,} layers attend to a picture alone ({idle:,} parameters, with eight rows of the "
        "table): held, and not run over a text, whose FLOPs and cache these are"
    )
    return made | {"idle": idle}


def doge(c: Config) -> Raw:
    """Llama whose values say which keys are kept, and whose stream is scaled as branches are added."""
    c.only(False, "is_moe", why="experts that product keys choose are not read")
    c.ignore("num_experts", "num_experts_per_tok", "norm_topk_prob")
    raw = c.stack()
    attention = c.heads(raw) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    if c.data.get("sliding_window") is not None:
        c.fault(
            "sliding_window", c.data["sliding_window"], "none", "a window beside the keys that are kept is not read"
        )
    c.ignore("sliding_window")
    return raw | {
        "attention": attention | {"keep": c.size("keep_window_size", default=2048)},
        "feed_forward": c.gated(bias=c.flag("mlp_bias", default=False)),
        "norm": c.rms(residual_scale=True),
        "positions": c.rotary(attention["d_head"]),
        "head": c.lm_head(tied=False),
    }
