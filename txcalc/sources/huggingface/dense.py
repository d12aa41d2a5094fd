"""Dense decoders, descendants of Llama and GPT, that a row of `decoders.json` cannot describe."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import GLOBAL, LAYER_NAMES, LOCAL, Config, Raw, rotary_axis, with_kinds
from txcalc.sources.huggingface.decoders import decoder
from txcalc.sources.huggingface.keys import any_of, number


def apertus(c: Config) -> Raw:
    """An ungated feed-forward with xIELU, an activation with learned slopes."""
    raw = c.stack()
    attention = c.heads(raw, whole=None, attention_bias=False, qk_norm="head")
    activation = c.text("hidden_act", default="xielu")
    if activation != "xielu":
        activation = c.activation("hidden_act", default="xielu")
    mlp = {"d_ff": c.size("intermediate_size"), "gated": False, "activation": activation}
    return c.decoder(raw, attention, mlp=mlp, norm=c.rms(eps=1e-5), theta=12e6)


def olmo(c: Config) -> Raw:
    raw = c.stack()
    attention = c.heads(raw, attention_bias=False)
    return c.decoder(raw, attention) | {"norm": {"form": "layer", "bias": False, "weighted": False}}


def smollm3(c: Config) -> Raw:
    raw = c.stack()
    n = raw["n_layers"]
    attention = c.heads(raw, kv=4, attention_bias=False)
    raw = c.decoder(raw, attention, tied=True, mlp_bias=c.flag("mlp_bias", default=False), theta=2e6)
    interval = c.size("no_rope_layer_interval", default=4)
    rotated = c.items(
        "no_rope_layers", of=any_of(0, 1), length=n, default=[int((i + 1) % interval != 0) for i in range(n)]
    )
    window, on = c.size("sliding_window", default=None), c.flag("use_sliding_window", default=False)
    on = on and window is not None
    types = c.layer_types(n, [LOCAL if on and not angles else GLOBAL for angles in rotated])
    return with_kinds(raw, c.windows(raw, window if on else None, types), rotary_axis(rotated))


def cohere_compass_text(c: Config) -> Raw:
    """Windows only in layers named by `layer_types`; rotary parameters per layer type, null for no positions."""
    raw = c.stack()
    attention = c.heads(raw, whole=None, attention_bias=False)
    n, window = raw["n_layers"], c.size("sliding_window", default=4096, null=None)
    types = c.layer_types(n, [GLOBAL] * n)
    rope = c.data.get("rope_parameters")
    by_type = rope if isinstance(rope, Mapping) else {}
    tables: dict[str, Raw] = {}
    for kind in sorted(set(types)):
        if kind not in by_type:
            c.fault(
                "rope_parameters", rope, f"a table for each layer type, or null for no positions: {kind} is missing"
            )
        positions: Raw = {"form": "none"}
        if by_type.get(kind) is not None:
            positions = c.rotary(attention["d_head"], kind=kind) | {"interleaved": True}
        tables[LAYER_NAMES[kind]] = {"positions": positions}
    c.ignore("rope_parameters")
    raw |= {
        "attention": attention,
        "feed_forward": c.gated_mlp(),
        "norm": c.layer_norm(bias=False, parallel="shared"),
        "head": c.lm_head(tied=True),
    }
    return with_kinds(raw, c.windows(raw, window, types, tables))


def mllama_text_model(c: Config) -> Raw:
    """Llama with layers of cross-attention to an image, which do not run without one; neither do eight rows of the
    embedding beyond the vocabulary."""
    raw = c.stack()
    n, d = raw["n_layers"], raw["d_model"]
    listed = c.items("cross_attention_layers", of=number, length=None, default=[3, 8, 13, 18, 23, 28, 33, 38])
    cross = sorted({index for index in listed if index < n})
    if len(cross) == n:
        c.fault("cross_attention_layers", cross, "fewer layers than num_hidden_layers")
        return raw
    c.require_value(len(listed), "vision_num_cross_attention_layers", why="the length of cross_attention_layers")
    attention = c.heads(raw, kv=8, width_names=())
    raw = c.decoder(raw | {"n_layers": n - len(cross)}, attention)
    width, groups = attention["d_head"], attention["n_kv_heads"]
    layer = 2 * d * attention["n_heads"] * width + 2 * d * groups * width + 2 * width + 2 * d + 2
    layer += 3 * d * raw["feed_forward"]["d_ff"]
    what = f"{len(cross):,} of its {n:,} layers, which attend only to an image, and eight rows of its embedding"
    status = "are counted but not run; FLOPs and cache are those of a text without images"
    return c.with_idle(raw, len(cross) * layer + 8 * d, what, status)


def doge(c: Config) -> Raw:
    """Llama with attention to a subset of keys that its values select, and with scaled residuals."""
    raw = c.stack()
    attention = c.heads(raw, attention_bias=False, qk_norm="head")
    c.require_value(None, "sliding_window", why="a window is not supported together with keep_window_size")
    attention["keep"] = c.size("keep_window_size", default=2048)
    return c.decoder(raw, attention, mlp_bias=c.flag("mlp_bias", default=False), norm=c.rms(residual_scale=True))


GPT_HEADS = ("n_head", "num_attention_heads")
GPT_ACT = ("activation_function",)


def gpt_bigcode(c: Config) -> Raw:
    raw = decoder(c, "gpt2")
    shared = c.flag("multi_query", default=True)
    attention = raw["attention"] | ({"n_kv_heads": 1} if shared else {})
    c.require_value(attention["n_kv_heads"], "num_key_value_heads", why="multi_query determines it")
    return raw | {"attention": attention}


def openai_gpt(c: Config) -> Raw:
    raw = c.stack(("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"))
    activation = c.activation("afn", default="gelu_new")
    activation = "gelu_tanh" if activation == "gelu" else activation  # its "gelu" is the tanh approximation
    attention = c.mha(raw, names=GPT_HEADS, bias=True)
    mlp = {"d_ff": 4 * raw["d_model"], "activation": activation, "bias": True}
    positions = {"form": "learned", "rows": c.size("n_positions", "max_position_embeddings", default=512)}
    return c.decoder(raw, attention, mlp=mlp, norm=c.layer_norm(place="post"), positions=positions, tied=True)


def gpt_neo(c: Config) -> Raw:
    raw = c.stack(n_layers=("num_layers", "num_hidden_layers"))
    types = _neo_layers(c, raw["n_layers"])
    attention = c.mha(raw, names=("num_heads", "num_attention_heads"), bias=["o"])
    mlp = c.mlp("intermediate_size", act="gelu_new", act_names=GPT_ACT, default=4 * raw["d_model"])
    positions = {"form": "learned", "rows": c.size("max_position_embeddings", default=2048)}
    raw = c.decoder(raw, attention, mlp=mlp, norm=c.layer_norm(), positions=positions, tied=True)
    return with_kinds(raw, c.windows(raw, c.size("window_size", default=256), types))


def _neo_layers(c: Config, n: int) -> list[str]:
    """The layer types in GPT-Neo's `attention_types`, [[["global", "local"], 12]]."""
    names = {"global": GLOBAL, "local": LOCAL}
    attention_types = c.data.get("attention_types")
    c.ignore("attention_types", "attention_layers")
    expected = f'pairs such as [["global", "local"], 12] that make {n:,} layers'
    types: list[str] = []
    try:
        for kinds, times in [[["global", "local"], 12]] if attention_types is None else attention_types:
            if type(times) is not int or not 0 <= times <= n or not isinstance(kinds, list) or len(kinds) > n:
                raise ValueError
            types += [names[kind] for kind in kinds] * times
    except (TypeError, ValueError, KeyError):
        types = []
    if len(types) != n:
        c.fault("attention_types", ABSENT if attention_types is None else attention_types, expected)
        return [GLOBAL] * n
    layers = c.data.get("attention_layers", [LAYER_NAMES[kind] for kind in types])
    if layers != [LAYER_NAMES[kind] for kind in types]:
        c.fault("attention_layers", layers, "the layers of attention_types")
    return types


def gpt_neox_japanese(c: Config) -> Raw:
    """GPT-NeoX with sequential branches; only the last layer's o has a bias."""
    raw = c.stack()
    n, attention = raw["n_layers"], c.mha(raw)
    width = raw["d_model"] * c.size("intermediate_multiple_size", default=4)
    mlp = {"d_ff": width, "activation": c.activation("hidden_act", default="gelu"), "bias": False}
    raw = c.decoder(raw, attention, mlp=mlp, norm=c.layer_norm(), tied=True)
    kinds = ["last" if i == n - 1 else "earlier" for i in range(n)]
    return with_kinds(raw, (kinds, {"earlier": {}, "last": {"attention": {"bias": ["o"]}}}))


def falcon(c: Config) -> Raw:
    raw = c.stack(("hidden_size", "n_embed"), ("num_hidden_layers", "n_layer"))
    attention = c.mha(raw, names=("num_attention_heads", "n_head"))
    bias = c.flag("bias", default=False)
    new = c.flag("new_decoder_architecture", default=False)
    shared = c.flag("multi_query", default=True)
    groups = c.size("num_kv_heads", "n_head_kv", default=None)
    if new:
        groups = attention["n_heads"] if groups is None else groups
        c.divides(groups, attention["n_heads"], c.spelling("num_kv_heads", "n_head_kv"), "num_attention_heads")
    else:
        groups = 1 if shared else attention["n_heads"]
    parallel_attn = c.flag("parallel_attn", default=True)
    norms = c.size("num_ln_in_parallel_attn", default=None)
    if new and not parallel_attn:
        c.fault("parallel_attn", False, "true", "the new decoder architecture is parallel")
    separate = norms == 2 or (norms is None and new)
    parallel = ("separate" if separate else "shared") if parallel_attn or new else "no"
    inner = 4 * raw["d_model"]
    width = c.size("ffn_hidden_size", "ff_factor_hidden_size", default=inner, null=inner)
    activation = c.activation("activation", default="gelu")
    positions = {"form": "alibi"} if c.flag("alibi", default=False) else None
    attention |= {"n_kv_heads": groups, "bias": bias}
    mlp = {"d_ff": width, "activation": activation, "bias": bias}
    return c.decoder(raw, attention, mlp=mlp, norm=c.layer_norm(parallel=parallel), positions=positions, tied=True)


def opt(c: Config) -> Raw:
    raw = c.stack()
    bias = c.flag("enable_bias", default=True)
    before = c.flag("do_layer_norm_before", default=True)
    weighted = c.flag("layer_norm_elementwise_affine", default=True)
    rank = c.size("word_embed_proj_dim", default=raw["d_model"], null=raw["d_model"])
    final = before and not c.flag("_remove_final_layer_norm", default=False)
    rows = c.size("max_position_embeddings", default=2048) + 2
    head = c.lm_head(tied=True)
    embedding = None if rank == raw["d_model"] else {"rank": rank, "early": True}
    if embedding and "form" in head:
        why = "a factorised embedding is supported only with a language-model head"
        c.fault("word_embed_proj_dim", rank, f"hidden_size = {raw['d_model']:,}", why)
    norm = c.layer_norm(place="pre" if before else "post", final=final)
    norm |= {} if weighted else {"weighted": False, "bias": False}
    attention = c.mha(raw, bias=bias)
    mlp, positions = c.mlp("ffn_dim", act="relu", act_names=GPT_ACT, bias=bias), {"form": "learned", "rows": rows}
    return c.decoder(raw, attention, mlp=mlp, norm=norm, positions=positions, embedding=embedding, head=head)
