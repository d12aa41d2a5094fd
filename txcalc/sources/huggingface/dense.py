"""Dense decoders: a few lines for each family, the rest in `shared`."""

from __future__ import annotations

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import REQUIRED, Config, any_of
from txcalc.sources.huggingface.shared import (
    GLOBAL,
    LOCAL,
    Raw,
    gated,
    head_of,
    heads,
    layer_norm,
    layer_types,
    layered,
    lm_head,
    plain,
    rms,
    rotary,
    stack,
    windows,
    with_own_bases,
)


def _swiglu(c: Config, raw: Raw, attention: Raw, tied: bool = False, mlp_bias: bool = False, theta: float = 1e4) -> Raw:
    """The common decoder: RMSNorm, rotary positions, gated feed-forward."""
    return raw | {
        "attention": attention,
        "feed_forward": gated(c, bias=mlp_bias),
        "norm": rms(c),
        "positions": rotary(c, attention["d_head"], theta),
        "head": lm_head(c, tied),
    }


def llama(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, whole=True) | {"bias": c.flag("attention_bias", default=False)}
    return _swiglu(c, raw, attention, mlp_bias=c.flag("mlp_bias", default=False))


def _periodic(n_layers: int, period: int) -> list[str]:
    """Every `period`-th layer is global."""
    return [LOCAL if (i + 1) % period else GLOBAL for i in range(n_layers)]


def iquestcoder(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=8, d_head=128, whole=True) | {"bias": c.flag("attention_bias", default=False)}
    return _swiglu(c, raw, attention, mlp_bias=c.flag("mlp_bias", default=False))


def internlm3(c: Config) -> Raw:
    raw = stack(c)
    c.only(False, "bias", "qkv_bias", "attention_bias", "mlp_bias", why="biases are not read here")
    return _swiglu(c, raw, heads(c, raw, kv=2, d_head=128, whole=True))


def mistral(c: Config) -> Raw:
    raw = stack(c)
    window = c.size("sliding_window", default=4096, null=None)
    c.only(None, "layer_types", why="transformers ignores it in a mistral config; model_type ministral uses it")
    raw = _swiglu(c, raw, heads(c, raw, kv=8))
    return layered(raw, windows(c, raw, window, [GLOBAL if window is None else LOCAL] * raw["n_layers"]))


def _switched_windows(c: Config, raw: Raw, start: int = 28) -> Raw:
    """Qwen's windows: off unless `use_sliding_window`, then from layer `max_window_layers` on."""
    n = raw["n_layers"]
    first = c.count("max_window_layers", default=None)
    window = c.size("sliding_window", default=4096 if c.data.get("use_sliding_window") else None, null=None)
    on = c.flag("use_sliding_window", default=False) and window is not None
    if on and first is None:
        c.assume("max_window_layers", first := start)
    default = [LOCAL if on and i >= (first or 0) else GLOBAL for i in range(n)]
    return layered(raw, windows(c, raw, window if on else None, layer_types(c, n, default)))


def qwen2(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=32) | {"bias": ["q", "k", "v"]}
    return _switched_windows(c, _swiglu(c, raw, attention))


def qwen3(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=32, d_head=128)
    attention |= {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    return _switched_windows(c, _swiglu(c, raw, attention))


def qwen2_vl_text(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=8) | {"bias": ["q", "k", "v"]}
    return _switched_windows(c, _swiglu(c, raw, attention, theta=1e6), start=80)


def qwen2_5_vl_text(c: Config) -> Raw:
    return qwen2_vl_text(c)


def qwen3_vl_text(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=32, d_head=128)
    attention |= {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    return _swiglu(c, raw, attention, theta=5e5)


def glm4v_text(c: Config) -> Raw:
    raw = stack(c)
    c.only(True, "attention_bias", why="transformers' glm4v has biases on q, k and v")
    raw = _swiglu(c, raw, heads(c, raw, kv=2, width_names=()) | {"bias": ["q", "k", "v"]})
    raw["positions"] = rotary(c, raw["attention"]["d_head"], partial=0.5) | {"interleaved": True}
    return raw | {"norm": raw["norm"] | {"place": "sandwich"}}


def phi3(c: Config) -> Raw:
    raw = stack(c)
    window = c.size("sliding_window", default=None)
    raw = _swiglu(c, raw, heads(c, raw))
    c.only(False, "attention_bias", "mlp_bias", "lm_head_bias", why="transformers' phi3 has no biases")
    c.ignore("full_attn_mod", "interpolate_factor")
    return layered(raw, windows(c, raw, window, [GLOBAL if window is None else LOCAL] * raw["n_layers"]))


def _gemma(c: Config, raw: Raw, kv: int, act_names: tuple[str, ...], whole: bool, place: str = "pre") -> Raw:
    """GeGLU, norms that multiply by 1 + weight, embedding scaled by √D, head of 256, tied."""
    c.only(False, "use_bidirectional_attention", why="a causal model is read")
    attention = heads(c, raw, kv=kv, d_head=256, whole=whole) | {"bias": c.flag("attention_bias", default=False)}
    activation = c.activation(*act_names, default="gelu_pytorch_tanh")
    return raw | {
        "attention": attention,
        "feed_forward": {"d_ff": c.size("intermediate_size"), "gated": True, "activation": activation},
        "norm": rms(c, offset=True, place=place),
        "positions": rotary(c, attention["d_head"], kind=GLOBAL),
        "embedding": {"scale": raw["d_model"] ** 0.5},
        "head": lm_head(c, tied=True),
    }


def ministral(c: Config) -> Raw:
    raw = stack(c)
    window = c.size("sliding_window", default=4096, null=None)
    raw = _swiglu(c, raw, heads(c, raw, kv=8, d_head=REQUIRED))
    types = layer_types(c, raw["n_layers"], [GLOBAL if window is None else LOCAL] * raw["n_layers"])
    return layered(raw, windows(c, raw, window, types))


def ministral3(c: Config) -> Raw:
    raw = stack(c)
    window = c.size("sliding_window", default=None)
    c.only(None, "layer_types", why="transformers' ministral3 has one window for all layers")
    raw = _swiglu(c, raw, heads(c, raw, kv=8, d_head=128), theta=1e6)
    return layered(raw, windows(c, raw, window, [GLOBAL if window is None else LOCAL] * raw["n_layers"]))


def cwm(c: Config) -> Raw:
    raw = stack(c)
    n, window = raw["n_layers"], c.size("sliding_window", default=8192)
    raw = _swiglu(c, raw, heads(c, raw, kv=8, d_head=128, whole=True), theta=1e6)
    c.only(False, "mlp_bias", "attention_bias", why="transformers' cwm has no biases")
    types = layer_types(c, n, [LOCAL if i % 4 else GLOBAL for i in range(n)])
    return layered(raw, windows(c, raw, window, types))


def nanochat(c: Config) -> Raw:
    """Norms without weights, one of them after the embedding."""
    raw = stack(c)
    attention = heads(c, raw) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    return raw | {
        "attention": attention,
        "feed_forward": plain(c, act="relu2", bias=False),
        "norm": rms(c, weighted=False),
        "positions": rotary(c, attention["d_head"]),
        "embedding": {"norm": True},
        "head": lm_head(c, tied=False, softcap=c.real("final_logit_softcapping", default=15.0)),
    }


def arcee(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, whole=True) | {"bias": c.flag("attention_bias", default=False)}
    raw |= {
        "attention": attention,
        "feed_forward": plain(c, act="relu2", bias=c.flag("mlp_bias", default=False)),
        "norm": rms(c, eps=1e-5),
        "positions": rotary(c, attention["d_head"]),
        "head": lm_head(c, tied=False),
    }
    return raw


def olmo(c: Config) -> Raw:
    raw = stack(c)
    c.ignore("clip_qkv")
    attention = heads(c, raw) | {"bias": c.flag("attention_bias", default=False)}
    return _swiglu(c, raw, attention) | {"norm": {"form": "layer", "bias": False, "weighted": False}}


def olmo2(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "width"}
    return _swiglu(c, raw, attention) | {"norm": rms(c, eps=1e-5, place="after")}


def olmo3(c: Config) -> Raw:
    raw = olmo2(c)
    n, window = raw["n_layers"], c.size("sliding_window", default=4096, null=None)
    return layered(raw, windows(c, raw, window, layer_types(c, n, _periodic(n, 4))))


def exaone4(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=32) | {"qk_norm": "head"}
    raw = _swiglu(c, raw, attention) | {"norm": rms(c, eps=1e-5, place="after")}
    n, window = raw["n_layers"], c.size("sliding_window", default=4096, null=None)
    if c.data.get("layer_types") is not None:
        c.ignore("sliding_window_pattern")
        default = [GLOBAL] * n
    else:
        default = [GLOBAL] * n if window is None else _periodic(n, c.size("sliding_window_pattern", default=4))
    unrotated: Raw = {} if window is None else {"positions": {"form": "none"}}
    return layered(raw, windows(c, raw, window, layer_types(c, n, default), {"global": unrotated}))


def smollm3(c: Config) -> Raw:
    raw = stack(c)
    n = raw["n_layers"]
    attention = heads(c, raw, kv=4) | {"bias": c.flag("attention_bias", default=False)}
    raw = _swiglu(c, raw, attention, tied=True, mlp_bias=c.flag("mlp_bias", default=False), theta=2e6)
    every = c.size("no_rope_layer_interval", default=4)
    rotated = c.items(
        "no_rope_layers", of=any_of(0, 1), length=n, default=[int((i + 1) % every != 0) for i in range(n)]
    )
    window, on = c.size("sliding_window", default=None), c.flag("use_sliding_window", default=False)
    on = on and window is not None
    types = layer_types(c, n, [LOCAL if on and not turned else GLOBAL for turned in rotated])
    turning = ["rotary" if turned else "unrotated" for turned in rotated]
    tables: dict[str, Raw] = {"rotary": {}, "unrotated": {"positions": {"form": "none"}}}
    return layered(raw, windows(c, raw, window if on else None, types), (turning, tables))


def helium(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=20, d_head=128)
    attention["bias"] = ["q", "k", "v"] if c.flag("attention_bias", default=False) else []
    if attention["n_heads"] * attention["d_head"] != raw["d_model"]:
        c.fault(
            "head_dim", attention["d_head"], "hidden_size / num_attention_heads", "transformers' helium has a square o"
        )
    return _swiglu(c, raw, attention, mlp_bias=c.flag("mlp_bias", default=False), theta=1e5)


def glm(c: Config) -> Raw:
    raw = stack(c)
    bias = ["q", "k", "v"] if c.flag("attention_bias", default=True) else []
    attention = heads(c, raw, kv=2, d_head=128) | {"bias": bias}
    positions = rotary(c, attention["d_head"], partial=0.5)
    return _swiglu(c, raw, attention) | {"positions": positions | {"interleaved": True}}


def glm4(c: Config) -> Raw:
    raw = glm(c)
    return raw | {"norm": raw["norm"] | {"place": "sandwich"}}


def granite(c: Config) -> Raw:
    return llama(c)


def granite_swa(c: Config) -> Raw:
    """Granite with a sink a head, and windows."""
    raw = stack(c)
    attention = heads(c, raw, kv=4, whole=True) | {"bias": c.flag("attention_bias", default=False), "sinks": True}
    return with_own_bases(c, _swiglu(c, raw, attention, tied=True, mlp_bias=c.flag("mlp_bias", default=False)))


def seed_oss(c: Config) -> Raw:
    raw = stack(c)
    bias = ["q", "k", "v"] if c.flag("attention_bias", default=True) else []
    bias += ["o"] if c.flag("attention_out_bias", default=False) else []
    attention = heads(c, raw, kv=8, d_head=128) | {"bias": bias}
    return _swiglu(c, raw, attention, mlp_bias=c.flag("mlp_bias", default=False))


def ernie4_5(c: Config) -> Raw:
    raw = stack(c)
    bias = c.flag("use_bias", default=False)
    return _swiglu(c, raw, heads(c, raw, kv=2, d_head=128) | {"bias": bias}, tied=True, mlp_bias=bias, theta=5e5)


def hunyuan_v1_dense(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, d_head=REQUIRED) | {"bias": c.flag("attention_bias", default=False), "qk_norm": "head"}
    return _swiglu(c, raw, attention)


def hyperclovax(c: Config) -> Raw:
    raw = llama(c)
    return raw | {"norm": raw["norm"] | {"place": "sandwich" if c.flag("use_post_norm", default=True) else "pre"}}


def nemotron(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv=REQUIRED) | {"bias": c.flag("attention_bias", default=False)}
    return raw | {
        "attention": attention,
        "feed_forward": plain(c, act="relu2", bias=c.flag("mlp_bias", default=False)),
        "norm": layer_norm(c, "norm_eps", offset=True),
        "positions": rotary(c, attention["d_head"], partial=0.5),
        "head": lm_head(c, tied=False),
    }


def jais2(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, whole=True) | {"bias": c.flag("attention_bias", default=True)}
    return raw | {
        "attention": attention,
        "feed_forward": plain(c, act="relu2", bias=c.flag("mlp_bias", default=True)),
        "norm": layer_norm(c),
        "positions": rotary(c, attention["d_head"]),
        "head": lm_head(c, tied=False),
    }


def starcoder2(c: Config) -> Raw:
    raw = stack(c)
    bias = c.flag("use_bias", default=True)
    attention = heads(c, raw, kv=2) | {"bias": bias}
    raw |= {
        "attention": attention,
        "feed_forward": plain(c, act="gelu_pytorch_tanh", bias=bias),
        "norm": layer_norm(c, "norm_epsilon"),
        "positions": rotary(c, attention["d_head"]),
        "head": lm_head(c, tied=True),
    }
    c.ignore("activation_function")  # hidden_act is what the class reads
    c.only("layer_norm", "norm_type", why="transformers' starcoder2 has LayerNorms")
    c.only("default", "mlp_type", why="transformers' starcoder2 has a plain feed-forward")
    window = c.size("sliding_window", default=None)
    return layered(raw, windows(c, raw, window, [GLOBAL if window is None else LOCAL] * raw["n_layers"]))


def phi(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw) | {"bias": True, "qk_norm": "head" if c.flag("qk_layernorm", default=False) else "none"}
    return raw | {
        "attention": attention,
        "feed_forward": plain(c, act="gelu_new"),
        "norm": layer_norm(c, parallel="shared"),
        "positions": rotary(c, attention["d_head"], partial=0.5),
        "head": lm_head(c, tied=False, bias=True),
    }


def stablelm(c: Config) -> Raw:
    raw = stack(c)
    bias = ["q", "k", "v"] if c.flag("use_qkv_bias", default=False) else []
    attention = heads(c, raw, kv=32, width_names=()) | {"bias": bias}
    if c.flag("qk_layernorm", default=False):
        c.fault("qk_layernorm", True, "false", "norms of Q and K without a bias, beside norms with one, are not read")
    parallel = "shared" if c.flag("use_parallel_residual", default=False) else "no"
    return raw | {
        "attention": attention,
        "feed_forward": gated(c),
        "norm": layer_norm(c, parallel=parallel),
        "positions": rotary(c, attention["d_head"], partial=0.25),
        "head": lm_head(c, tied=False),
    }


def persimmon(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv_names=(), width_names=()) | {"bias": True}
    attention["qk_norm"] = "head" if c.flag("qk_layernorm", default=True) else "none"
    return raw | {
        "attention": attention,
        "feed_forward": plain(c, act="relu2"),
        "norm": layer_norm(c),
        "positions": rotary(c, attention["d_head"], partial=0.5),
        "head": lm_head(c, tied=False),
    }


def cohere(c: Config) -> Raw:
    """Attention and feed-forward side by side after one LayerNorm without bias."""
    raw = stack(c)
    attention = heads(c, raw) | {"bias": c.flag("attention_bias", default=False)}
    attention["qk_norm"] = "apart" if c.flag("use_qk_norm", default=False) else "none"
    return raw | {
        "attention": attention,
        "feed_forward": gated(c),
        "norm": layer_norm(c, bias=False, parallel="shared"),
        "positions": rotary(c, attention["d_head"], theta=5e5) | {"interleaved": True},
        "head": lm_head(c, tied=True),
    }


def cohere2(c: Config) -> Raw:
    raw = cohere(c)
    n, window = raw["n_layers"], c.size("sliding_window", default=4096, null=None)
    default = _periodic(n, c.size("sliding_window_pattern", default=4))
    c.ignore("order_of_interleaved_layers", "rotary_pct", "position_embedding_type")
    types = layer_types(c, n, default)
    return layered(raw, windows(c, raw, window, types, {"global": {"positions": {"form": "none"}}}))


def _gpt(c: Config) -> Raw:
    """The widths of the GPT-2 generation, and its learned positions."""
    raw = stack(c, ("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"))
    c.ignore("n_ctx", "n_special", "predict_special_tokens")
    return raw


GPT_HEADS = ("n_head", "num_attention_heads")
GPT_ACT = ("activation_function",)


def gpt2(c: Config) -> Raw:
    raw = _gpt(c)
    inner = 4 * raw["d_model"]
    return raw | {
        "attention": heads(c, raw, names=GPT_HEADS, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": plain(c, "n_inner", act="gelu_new", act_names=GPT_ACT, default=inner),
        "norm": layer_norm(c),
        "positions": {"form": "learned", "rows": c.size("n_positions", "max_position_embeddings", default=1024)},
        "head": lm_head(c, tied=True),
    }


def gpt_sw3(c: Config) -> Raw:
    return gpt2(c)


def gpt_bigcode(c: Config) -> Raw:
    raw = gpt2(c)
    shared = c.flag("multi_query", default=True)
    attention = raw["attention"] | ({"n_kv_heads": 1} if shared else {})
    c.only(attention["n_kv_heads"], "num_key_value_heads", why="multi_query says so")
    c.ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
    return raw | {"attention": attention}


def gptj(c: Config) -> Raw:
    raw = _gpt(c)
    attention = heads(c, raw, names=GPT_HEADS, kv_names=(), width_names=()) | {"bias": False}
    dims = c.size("rotary_dim", default=64)
    c.only(True, "rotary", why="transformers' gptj is rotary")
    return raw | {
        "attention": attention,
        "feed_forward": plain(c, "n_inner", act="gelu_new", act_names=GPT_ACT, default=4 * raw["d_model"]),
        "norm": layer_norm(c, parallel="shared"),
        "positions": {"form": "rotary", "rotary_dims": dims, "interleaved": True},
        "head": lm_head(c, tied=False, bias=True),
    }


def codegen(c: Config) -> Raw:
    return gptj(c)


def openai_gpt(c: Config) -> Raw:
    raw = _gpt(c)
    activation = c.activation("afn", default="gelu_new")
    return raw | {
        "attention": heads(c, raw, names=GPT_HEADS, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": {"d_ff": 4 * raw["d_model"], "activation": activation, "bias": True},
        "norm": layer_norm(c, place="post"),
        "positions": {"form": "learned", "rows": c.size("n_positions", "max_position_embeddings", default=512)},
        "head": lm_head(c, tied=True),
    }


def ctrl(c: Config) -> Raw:
    raw = _gpt(c)
    return raw | {
        "attention": heads(c, raw, names=GPT_HEADS, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": {"d_ff": c.size("dff"), "activation": "relu", "bias": True},
        "norm": layer_norm(c, eps=1e-6),
        "positions": {"form": "sinusoidal"},
        "embedding": {"scale": raw["d_model"] ** 0.5},
        "head": lm_head(c, tied=True, bias=True),
    }


def gpt_neo(c: Config) -> Raw:
    raw = stack(c, n_layers=("num_layers", "num_hidden_layers"))
    n, inner = raw["n_layers"], 4 * raw["d_model"]
    types = _neo_layers(c, n)
    raw |= {
        "attention": heads(c, raw, names=("num_heads", "num_attention_heads"), kv_names=(), width_names=())
        | {"bias": ["o"]},
        "feed_forward": plain(c, "intermediate_size", act="gelu_new", act_names=GPT_ACT, default=inner),
        "norm": layer_norm(c),
        "positions": {"form": "learned", "rows": c.size("max_position_embeddings", default=2048)},
        "head": lm_head(c, tied=True),
    }
    return layered(raw, windows(c, raw, c.size("window_size", default=256), types))


def _neo_layers(c: Config, n: int) -> list[str]:
    """GPT-Neo's `attention_types`, [[["global", "local"], 12]], one a layer."""
    names = {"global": GLOBAL, "local": LOCAL}
    given = c.data.get("attention_types")
    c.ignore("attention_types", "attention_layers")
    wanted = f'pairs such as [["global", "local"], 12] that make {n:,} layers'
    types: list[str] = []
    try:
        for kinds, times in [[["global", "local"], 12]] if given is None else given:
            if type(times) is not int or not 0 <= times <= n or not isinstance(kinds, list) or len(kinds) > n:
                raise ValueError
            types += [names[kind] for kind in kinds] * times
    except (TypeError, ValueError, KeyError):
        types = []
    if len(types) != n:
        c.fault("attention_types", ABSENT if given is None else given, wanted)
        return [GLOBAL] * n
    short = {kind: name for name, kind in names.items()}
    if "attention_layers" in c and c.data["attention_layers"] != [short[kind] for kind in types]:
        c.fault("attention_layers", c.data["attention_layers"], "what attention_types says")
    return types


def gpt_neox(c: Config) -> Raw:
    raw = stack(c)
    attention = heads(c, raw, kv_names=(), width_names=(), whole=True) | {
        "bias": c.flag("attention_bias", default=True)
    }
    parallel = "separate" if c.flag("use_parallel_residual", default=True) else "no"
    return raw | {
        "attention": attention,
        "feed_forward": plain(c),
        "norm": layer_norm(c, parallel=parallel),
        "positions": rotary(c, attention["d_head"], partial=0.25),
        "head": lm_head(c, tied=False),
    }


def gpt_neox_japanese(c: Config) -> Raw:
    """Branches one after the other; no bias but that of the last layer's o."""
    raw = stack(c)
    n, attention = raw["n_layers"], heads(c, raw, kv_names=(), width_names=())
    width = raw["d_model"] * c.size("intermediate_multiple_size", default=4)
    raw |= {
        "attention": attention,
        "feed_forward": {"d_ff": width, "activation": c.activation("hidden_act", default="gelu"), "bias": False},
        "norm": layer_norm(c),
        "positions": rotary(c, attention["d_head"]),
        "head": lm_head(c, tied=True),
    }
    kinds = ["last" if i == n - 1 else "earlier" for i in range(n)]
    return layered(raw, (kinds, {"earlier": {}, "last": {"attention": {"bias": ["o"]}}}))


def modernbert_decoder(c: Config) -> Raw:
    """ModernBERT's layers, causal: no norm before the first attention; a head with a layer and a norm of its own."""
    raw = stack(c)
    n, attention = raw["n_layers"], heads(c, raw, kv_names=(), width_names=())
    biased, gates = (
        c.flag("classifier_bias", default=False),
        gated(c, act="gelu", bias=c.flag("mlp_bias", default=False)),
    )
    c.only(True, "decoder_bias", "tie_word_embeddings", why="the head is tied, with a bias")
    c.ignore("initializer_cutoff_factor", "sliding_window", "global_rope_theta", "local_rope_theta", "rope_parameters")
    form = head_of(c, "lm", "none")
    head: Raw = {"form": "none"}
    if form == "lm":
        head = {"form": "masked-lm", "tied": True, "transform_bias": biased}
    if c.activation("classifier_activation", default="gelu") != gates["activation"]:
        c.fault("classifier_activation", c.data.get("classifier_activation"), "hidden_activation: one is described")
    raw |= {
        "attention": attention | {"bias": c.flag("attention_bias", default=False)},
        "feed_forward": gates,
        "norm": layer_norm(c, "norm_eps", bias=c.flag("norm_bias", default=False)),
        "positions": rotary(c, attention["d_head"], 160000.0, kind=GLOBAL, names=("global_rope_theta",)),
        "embedding": {"norm": True},
        "head": head,
    }
    every = c.size("global_attn_every_n_layers", default=3) if "global_attn_every_n_layers" in c else 3
    types = layer_types(c, n, [LOCAL if i % every else GLOBAL for i in range(n)])
    reach = c.size("local_attention", default=128)
    if reach < 2:
        c.fault("local_attention", reach, "2 or more: half of it is the window")
        reach = 2
    local = {"positions": rotary(c, attention["d_head"], 10000.0, kind=LOCAL, names=("local_rope_theta",))}
    starts = ["first" if i == 0 else "later" for i in range(n)]
    first: Raw = {"norm": {"without": ["attention"]}}
    axis = windows(c, raw, reach // 2, types, {"local": local})
    return layered(raw, axis, (starts, {"first": first, "later": {}}))


def bloom(c: Config) -> Raw:
    raw = stack(c, ("hidden_size", "n_embed", "n_embd"), ("n_layer", "num_hidden_layers"))
    c.ignore(
        "apply_residual_connection_post_layernorm", "slow_but_exact", "bias_dropout_fusion", "masked_softmax_fusion"
    )
    c.ignore("offset_alibi", "skip_bias_add", "skip_bias_add_qkv", "attention_softmax_in_fp32", "unk_token_id")
    c.only(4 * raw["d_model"], "n_inner", why="transformers' bloom is four times as wide")
    return raw | {
        "attention": heads(c, raw, names=GPT_HEADS, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": {"d_ff": 4 * raw["d_model"], "activation": "gelu_tanh", "bias": True},
        "norm": layer_norm(c),
        "positions": {"form": "alibi"},
        "embedding": {"norm": True},
        "head": lm_head(c, tied=True),
    }


def falcon(c: Config) -> Raw:
    raw = stack(c, ("hidden_size", "n_embed"), ("num_hidden_layers", "n_layer"))
    attention = heads(c, raw, names=("num_attention_heads", "n_head"), kv_names=(), width_names=())
    bias = c.flag("bias", default=False)
    new = c.flag("new_decoder_architecture", default=False)
    shared = c.flag("multi_query", default=True)
    groups = c.size("num_kv_heads", "n_head_kv", default=None)
    if new:
        groups = attention["n_heads"] if groups is None else groups
        c.divides(groups, attention["n_heads"], c.spelling("num_kv_heads", "n_head_kv"), "num_attention_heads")
    else:
        groups = 1 if shared else attention["n_heads"]
    beside = c.flag("parallel_attn", default=True)
    norms = c.size("num_ln_in_parallel_attn", default=None)
    if new and not beside:
        c.fault("parallel_attn", False, "true", "the new decoder architecture is parallel")
    two = norms == 2 or (norms is None and new)
    parallel = ("separate" if two else "shared") if beside or new else "no"
    inner = 4 * raw["d_model"]
    width = c.size("ffn_hidden_size", "ff_factor_hidden_size", default=inner, null=inner)
    activation = c.activation("activation", default="gelu")
    alibi = c.flag("alibi", default=False)
    return raw | {
        "attention": attention | {"n_kv_heads": groups, "bias": bias},
        "feed_forward": {"d_ff": width, "activation": activation, "bias": bias},
        "norm": layer_norm(c, parallel=parallel),
        "positions": {"form": "alibi"} if alibi else rotary(c, attention["d_head"]),
        "head": lm_head(c, tied=True),
    }


def mpt(c: Config) -> Raw:
    raw = stack(c, ("d_model", "hidden_size"), ("n_layers", "num_hidden_layers"))
    c.ignore("max_seq_len", "learned_pos_emb", "verbose", "init_config", "embedding_fraction", "logit_scale")
    c.only(True, "no_bias", why="transformers' mpt has no biases")
    c.only(4, "expansion_ratio", why="transformers' mpt is four times as wide")
    c.only("low_precision_layernorm", "norm_type", why="LayerNorms without bias are read")
    inner = c.table("attn_config")
    if inner:
        inner.ignore("attn_impl", "attn_pdrop", "softmax_scale", "attn_uses_sequence_id", "alibi_bias_max", "clip_qkv")
        inner.only("multihead_attention", "attn_type", why="transformers' mpt has as many K/V heads as Q heads")
        inner.only(True, "alibi", why="transformers' mpt is always biased by distance")
        inner.ignore("tie_word_embeddings")
        inner.only(False, "prefix_lm", "qk_ln", why="transformers' mpt has neither")
    return raw | {
        "attention": heads(c, raw, names=("n_heads", "num_attention_heads"), kv_names=(), width_names=()),
        "feed_forward": {"d_ff": 4 * raw["d_model"], "activation": "gelu"},
        "norm": layer_norm(c, bias=False),
        "positions": {"form": "alibi"},
        "head": lm_head(c, tied=True),
    }


def bitnet(c: Config) -> Raw:
    """Norms before o and before the last matrix of the feed-forward, too; weights are counted one by one, unpacked."""
    raw = stack(c)
    attention = heads(c, raw, kv=5) | {"bias": c.flag("attention_bias", default=False), "inner_norm": True}
    if attention["n_heads"] * attention["d_head"] != raw["d_model"]:
        c.fault(
            "head_dim",
            attention["d_head"],
            "hidden_size / num_attention_heads",
            "the norm before o is hidden_size wide",
        )
    return raw | {
        "attention": attention,
        "feed_forward": gated(c, act="relu2") | {"inner_norm": True},
        "norm": rms(c, eps=1e-5),
        "positions": rotary(c, attention["d_head"], 5e5),
        "head": lm_head(c, tied=False),
    }


def opt(c: Config) -> Raw:
    raw = stack(c)
    bias = c.flag("enable_bias", default=True)
    before = c.flag("do_layer_norm_before", default=True)
    weighted = c.flag("layer_norm_elementwise_affine", default=True)
    rank = c.size("word_embed_proj_dim", default=raw["d_model"], null=raw["d_model"])
    final = before and not c.flag("_remove_final_layer_norm", default=False)
    rows = c.size("max_position_embeddings", default=2048) + 2
    c.ignore("activation_dropout")
    head = lm_head(c, tied=True)
    narrow = {} if rank == raw["d_model"] else {"embedding": {"rank": rank, "early": True}}
    if narrow and "form" in head:
        c.fault(
            "word_embed_proj_dim", rank, f"hidden_size = {raw['d_model']:,}", "only logits are read of narrow tables"
        )
        narrow = {}
    norm = layer_norm(c, place="pre" if before else "post", final=final)
    return raw | {
        "attention": heads(c, raw, kv_names=(), width_names=()) | {"bias": bias},
        "feed_forward": plain(c, "ffn_dim", act="relu", act_names=GPT_ACT, bias=bias),
        "norm": norm | ({} if weighted else {"weighted": False, "bias": False}),
        "positions": {"form": "learned", "rows": rows},
        "head": head,
        **narrow,
    }


def biogpt(c: Config) -> Raw:
    raw = stack(c)
    c.ignore("activation_dropout", "scale_embedding")
    return raw | {
        "attention": heads(c, raw, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": plain(c),
        "norm": layer_norm(c, eps=1e-12),
        "positions": {"form": "learned", "rows": c.size("max_position_embeddings", default=1024) + 2},
        "head": lm_head(c, tied=True),
    }


def xglm(c: Config) -> Raw:
    raw = stack(c, ("d_model", "hidden_size"), ("num_layers", "num_hidden_layers"))
    c.ignore("activation_dropout", "scale_embedding")
    names = ("attention_heads", "num_attention_heads")
    return raw | {
        "attention": heads(c, raw, names=names, kv_names=(), width_names=()) | {"bias": True},
        "feed_forward": plain(c, "ffn_dim", act_names=GPT_ACT),
        "norm": layer_norm(c),
        "positions": {"form": "sinusoidal"},
        "head": lm_head(c, tied=True),
    }


def gemma(c: Config) -> Raw:
    c.ignore("hidden_activation")
    return _gemma(c, stack(c), 16, ("hidden_act",), whole=False)


def gemma2(c: Config) -> Raw:
    c.ignore("hidden_act", "query_pre_attn_scalar")
    raw = _gemma(c, stack(c), 4, ("hidden_activation",), whole=True, place="sandwich")
    raw["attention"]["softcap"] = c.real("attn_logit_softcapping", default=50.0)
    raw["head"]["softcap"] = c.real("final_logit_softcapping", default=30.0)
    window = c.size("sliding_window", default=4096, null=None)
    types = layer_types(c, raw["n_layers"], [GLOBAL if i % 2 else LOCAL for i in range(raw["n_layers"])])
    return layered(raw, windows(c, raw, window, types))


def gemma3_text(c: Config) -> Raw:
    c.ignore("hidden_act", "query_pre_attn_scalar")
    raw = _gemma(c, stack(c), 4, ("hidden_activation",), whole=True, place="sandwich")
    raw["attention"]["qk_norm"] = "head"
    n, every = raw["n_layers"], c.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    window = c.size("sliding_window", default=4096, null=None)
    types = layer_types(c, n, _periodic(n, every))
    width = raw["attention"]["d_head"]
    raw["positions"] = rotary(c, width, 1e6, kind=GLOBAL)
    local = rotary(c, width, kind=LOCAL, names=("rope_local_base_freq",))
    return layered(raw, windows(c, raw, window, types, {"local": {"positions": local}}))


def vaultgemma(c: Config) -> Raw:
    c.ignore("hidden_act", "query_pre_attn_scalar")
    raw = _gemma(c, stack(c), 4, ("hidden_activation",), whole=True)
    n, window = raw["n_layers"], c.size("sliding_window", default=4096, null=None)
    return layered(raw, windows(c, raw, window, layer_types(c, n, [GLOBAL if i % 2 else LOCAL for i in range(n)])))
