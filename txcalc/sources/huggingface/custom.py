"""Decoders that are not Llama's, of which transformers has no class: their published code is known, and never run."""

from __future__ import annotations

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import TOP, WIDTH, Config, Raw, layered, piece
from txcalc.sources.huggingface.decoders import decoder
from txcalc.sources.huggingface.image_text import clip_vision_model, config_of
from txcalc.sources.huggingface.leaves import listed
from txcalc.sources.spec import real, size


def phi3small(c: Config) -> Raw:
    """LayerNorms and biases; all but every n-th layer attend in blocks, to near ones and to every n-th of all."""
    c.of_its_own()
    raw = c.stack()
    attention = c.heads(raw, width_names=()) | {"bias": True}
    blocks = [key for key in c.data if key.startswith("blocksparse_")]
    c.ignore(*blocks)
    every = c.count("dense_attention_every_n_layers", default=0, null=0)
    if every != 1:
        c.note("its blocks of keys are a mask that is not read: masked FLOPs are those of all keys before a query")
    width = {"d_ff": c.size("ff_intermediate_size"), "gated": True, "activation": "quick_gelu", "bias": True}
    return c.decoder(raw, attention, mlp=width, norm=c.layer_norm(), positions={"form": "rotary"}, tied=True)


def openelm(c: Config) -> Raw:
    """Heads and widths of each layer's own."""
    c.of_its_own(writes=True)
    raw = c.stack(("model_dim",), ("num_transformer_layers",))
    n, width = raw["n_layers"], c.size("head_dim", default=128)
    queries = c.items("num_query_heads", of=size, length=n, default=None)
    groups = c.items("num_kv_heads", of=size, length=n, default=None)
    shares = c.items("ffn_multipliers", of=real, length=n, default=None)
    for name, given in (("num_query_heads", queries), ("num_kv_heads", groups), ("ffn_multipliers", shares)):
        if given is None:
            c.fault(name, c.data.get(name, ABSENT), "a list, one per layer")
    divisor = c.size("ffn_dim_divisor", default=256)
    normed = c.flag("normalize_qk_projections", default=False)
    tied = c.flag("share_input_output_layers", default=False)
    c.only(tied, "tie_word_embeddings", why="share_input_output_layers says so")
    attention = {"d_head": width, "qk_norm": "head" if normed else "none"}
    activation = c.activation("activation_fn_name", default="silu")
    raw["context"] = c.size("max_context_length", default=2048)
    attention["n_heads"], mlp = 1, {"d_ff": 1, "gated": True, "activation": activation}
    made = c.decoder(raw, attention, mlp=mlp, positions={"form": "rotary"}, head={"tied": tied})
    if c.faults:
        return made
    kinds, tables = [], dict[str, Raw]()
    for heads_, shared, share in zip(queries, groups, shares, strict=True):
        c.divides(shared, heads_, "num_kv_heads", "num_query_heads")
        d_ff = divisible(share * raw["d_model"], divisor)
        kinds.append(f"heads{heads_}over{shared}wide{d_ff}")
        tables[kinds[-1]] = {"attention": {"n_heads": heads_, "n_kv_heads": shared}, "feed_forward": {"d_ff": d_ff}}
    return made if c.faults else layered(made, (kinds, tables))


def divisible(width: float, by: int) -> int:
    """A width rounded to a multiple, up where rounding takes more than a tenth (MobileNet's rule)."""
    near = max(by, int(width + by / 2) // by * by)
    return near + by * (10 * near < 9 * width)


def jais(c: Config) -> Raw:
    """GPT-2 with ALiBi or learned positions, and SwiGLU beside the plain feed-forwards."""
    c.of_its_own()
    raw = c.stack(("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"))
    form = c.text("activation_function", default="gelu")
    inner = c.size("n_inner", default=4 * raw["d_model"], null=4 * raw["d_model"])
    wide: Raw = {"d_ff": inner, "bias": True, "gated": form == "swiglu", "activation": "silu"}
    if form != "swiglu":
        wide["activation"] = c.activation("activation_function", default="gelu")
    places = c.text("position_embedding_type", default="learned")
    if places not in ("alibi", "learned"):
        c.fault("position_embedding_type", places, "'alibi' or 'learned'")
    rows = c.size("n_positions", "max_position_embeddings", default=1024)
    attention = c.heads(raw, names=("n_head", "num_attention_heads"), kv_names=(), width_names=()) | {"bias": True}
    own = {"form": "alibi"} if places == "alibi" else {"form": "learned", "rows": rows}
    return c.decoder(raw, attention, mlp=wide, norm=c.layer_norm(), positions=own, tied=True)


def plamo(c: Config) -> Raw:
    """Llama with attention and feed-forward side by side after one norm; `n_shared_head` query heads share a key."""
    c.of_its_own()
    raw = c.stack()
    shared = c.size("n_shared_head", default=8)
    attention = c.heads(raw, kv_names=(), width_names=())
    c.only(attention["n_heads"], "num_key_value_heads", why="n_shared_head is what the published code reads")
    c.divides(shared, attention["n_heads"], "n_shared_head", "num_attention_heads")
    attention["n_kv_heads"] = max(1, attention["n_heads"] // shared)
    return c.decoder(raw, attention, norm=c.rms(parallel="shared"))


def qwen2_reward(c: Config) -> Raw:
    """Qwen2.5-Math-RM and -PRM: Qwen2, a layer with a ReLU, and a score, or one for each label, at every position."""
    process = c.named("ProcessRewardModel")
    c.data = {key: value for key, value in c.data.items() if key not in ("architectures", "tie_word_embeddings")}
    c.model_type = "qwen2"
    raw = decoder(c, "qwen2")
    c.ignore("alpha", "id2label", "label2id", "num_labels")
    return raw | {
        "head": {"form": "classifier", "classes": c.labels() if process else 1, "every": True, "transform": "relu"}
    }


def hunyuan(c: Config) -> Raw:
    """Hunyuan-Large: layers borrow the keys and values of the layer before them, and have one shared expert or none;
    and Hunyuan-A13B by its own code, which says some sizes once for each layer."""
    c.of_its_own("hunyuan", "hunyuanmoev1")
    raw = c.stack()
    for name in ("moe_topk", "num_shared_expert", *WIDTH):
        sizes = c.data.get(name)
        if isinstance(sizes, list) and len(sizes) == raw["n_layers"] and all(one == sizes[0] for one in sizes):
            c.data = {**c.data, name: sizes[0]}
    c.ignore(*(key for key in c.data if key.startswith(("anyres_", "image_token", "vit_"))))
    attention = c.heads(raw, width_names=()) | {"bias": c.flag("attention_bias", default=False)}
    c.only(attention["d_head"], "attention_head_dim", why="the published code takes hidden_size / num_attention_heads")
    normed = c.flag("use_qk_norm", default=False)
    factor = c.size("cla_share_factor", default=1) if c.flag("use_cla", default=False) else 1
    made = raw | {
        "attention": attention | {"qk_norm": "head" if normed else "none"},
        "norm": c.rms(eps=1e-5),
        "positions": c.rotary(attention["d_head"]),
        "head": c.lm_head(tied=False),
    }
    if c.size("num_experts", default=1) > 1:
        own = c.data.get(*WIDTH) is not None
        c.ignore("intermediate_size")
        mixed = c.experts(("num_experts",), ("moe_topk",), WIDTH if own else ("intermediate_size",), 1, 1)
        shared = c.size("num_shared_expert", default=1) if c.flag("use_mixed_mlp_moe", default=False) else 0
        made["experts"] = mixed | ({"n_shared": shared} if shared else {})
        kinds = ["attention", "experts"]
    else:
        c.ignore("moe_topk", "num_shared_expert", "use_mixed_mlp_moe", *WIDTH)
        made["feed_forward"] = c.gated()
        kinds = ["attention", "feed_forward"]
    owned = [i % factor == 0 for i in range(raw["n_layers"])]
    if normed and not all(owned):  # borrowers have a norm of K, too, of what they borrow
        made["idle"] = owned.count(False) * attention["d_head"]
    borrowing = {"parts": kinds, "attention": {"kv_from": "owner"}}
    return layered(made, (["owner" if own else "borrower" for own in owned],
                          {"owner": {"parts": kinds}, "borrower": borrowing}))  # fmt: skip


def arctic(c: Config) -> Raw:
    """A dense residual beside the experts, as wide as the model; other layers have one feed-forward."""
    c.of_its_own()
    raw = c.stack()
    n, attention = raw["n_layers"], c.heads(raw, kv=None, width_names=())
    mixed = c.experts(("num_local_experts",), TOP, ("intermediate_size",), 8, 1)
    every = c.size("moe_layer_frequency", default=2)
    c.ignore("moe_token_dropping", "enable_expert_tensor_parallelism", "enc_index", "quantization", "sliding_window")
    if c.data.get("sliding_window") is not None:
        c.fault("sliding_window", c.data["sliding_window"], "nothing", "windows are not read here")
    parallel = c.flag("parallel_attn_mlp_res", default=False)
    sparse = [(i + 1) % every == 0 for i in range(n)]
    raw["feed_forward"] = {"d_ff": mixed["d_ff"], "gated": True, "activation": mixed["activation"]}
    attention["bias"] = c.flag("attention_bias", default=False)
    raw = c.decoder(raw, attention, mixed=mixed, norm=c.rms(eps=1e-5))
    if not parallel:
        return layered(raw, c.mixture(raw, sparse))
    c.note("the experts read what their layer reads: their place in it changes no FLOPs, and is not described")
    both = {"parts": ["attention", "feed_forward", "experts"], "feed_forward": {"d_ff": raw["d_model"]}}
    return layered(raw, (["both" if one else "dense" for one in sparse],
                         {"both": both, "dense": {"parts": ["attention", "feed_forward"]}}))  # fmt: skip


def grok_1(c: Config) -> Raw:
    """Experts with GELU gates, norms before and after every part, capped scores; eight experts, two per token."""
    c.of_its_own("grok1model", "grok1")
    raw = c.stack()
    attention = c.heads(raw, width_names=("head_dim",)) | {"softcap": c.real("max_attn_value", default=30.0)}
    scale = c.real("embedding_multiplier_scale", default=1.0)
    mixed = c.experts(("num_experts", "num_local_experts"), TOP, ("intermediate_size",), 8, 2, act="gelu")
    return c.decoder(
        raw, attention, mixed=mixed, norm=c.rms(eps=1e-5, place="sandwich"), embedding={"scale": scale}, tied=True
    )


def deepseek(c: Config) -> Raw:
    """DeepSeekMoE, before latent attention: Llama with shared and routed experts."""
    c.of_its_own()
    return _deepseek(c, c.stack(), heads_only=True)


def _deepseek(c: Config, raw: Raw, heads_only: bool) -> Raw:
    """DeepSeek's own code of its first two models: attention with heads of its own, or latent; experts where
    `n_routed_experts` says so. A correction of the choice is a parameter."""
    if heads_only:
        attention = c.heads(raw, width_names=()) | {"bias": c.flag("attention_bias", default=False)}
        c.ignore("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "head_dim")
        made = raw | {"attention": attention, "positions": c.rotary(attention["d_head"])}
    else:
        latent = c.mla(1536, 512, 128, 64, 128)
        theta = c.rotary(latent["d_rope"])["theta"]
        made = raw | {"latent": latent, "positions": {"form": "rotary", "theta": theta, "interleaved": True}}
    made |= {"norm": c.rms(), "head": c.lm_head(tied=False)}
    if c.data.get("n_routed_experts") is None:
        c.ignore("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace")
        c.ignore("moe_layer_freq", *TOP)
        return made | {"feed_forward": c.gated()}
    mixed = c.with_shared(c.experts(("n_routed_experts",), TOP, WIDTH), "n_shared_experts", default=0)
    method, form = c.text("topk_method", default="greedy"), c.text("scoring_func", default="softmax")
    c.ignore("topk_method", "scoring_func")
    if form not in ("softmax", "sigmoid"):
        c.fault("scoring_func", form, "'softmax' or 'sigmoid'")
    if method == "noaux_tc":
        mixed["correction"] = True
    elif method not in ("greedy", "gready", "group_limited_greedy"):
        c.fault("topk_method", method, "'greedy', 'group_limited_greedy' or 'noaux_tc'")
    mixed["scoring"] = form
    made["experts"] = mixed
    return layered(made, c.first_dense(made, 0))


def deepseek_vl_v2(c: Config) -> Raw:
    """The language model of DeepSeek-VL2 and DeepSeek-OCR: its own code, with or without latent attention."""
    from txcalc.sources.huggingface.wrapped import inside

    return inside(c, "language_config", _deepseek_text, "deepseekvlv2", "deepseekocr", "deepseekocr2")


def _deepseek_text(inner: Config) -> Raw:
    defaults = {"vocab_size": 102400, "num_hidden_layers": 30, "num_attention_heads": 32, "hidden_size": 4096,
                "intermediate_size": 11008, "moe_intermediate_size": 1407}  # fmt: skip
    absent = {key: value for key, value in defaults.items() if key not in inner}
    for key, value in absent.items():
        inner.assume(key, value)
    inner.data = {**absent, **inner.data}
    inner.of_its_own("deepseekv2", "deepseekocr")
    heads_only = not inner.flag("use_mla", default=True)
    if heads_only and inner.data.get("kv_lora_rank", 0) is None:  # which the class of another library would need
        inner.data = {key: value for key, value in inner.data.items() if key != "kv_lora_rank"}
    return _deepseek(inner, inner.stack(), heads_only=heads_only)


def unlimited_ocr(c: Config) -> Raw:
    """DeepSeek-OCR's with a window that counts from the end of the prompt, all of which is seen and kept."""
    from txcalc.sources.huggingface.wrapped import inside

    window = c.size("sliding_window", "sliding_window_size", default=128)
    c.note(f"texts are taken as prompts: of what it writes itself the last {window:,} tokens are seen and kept")

    def text(inner: Config) -> Raw:
        inner.ignore("sliding_window", "sliding_window_size")
        return _deepseek_text(inner)

    return inside(c, "language_config", text, "unlimitedocr")


def step3_text(c: Config) -> Raw:
    """Queries made of a narrow, normed one; one head of keys; experts beside a shared one."""
    c.of_its_own("step3text")
    raw = c.stack()
    d, several, width = raw["d_model"], c.size("num_attention_heads"), c.size("head_dim", default=256)
    narrow = c.size("share_q_dim", default=2048)
    attention = [
        piece("q_a", "linear", d, narrow, bias=False), piece("q_norm", "rms_norm", narrow, kind="norm"),
        piece("q_b", "linear", narrow, several * width, bias=False), piece("k", "linear", d, width, bias=False),
        piece("v", "linear", d, width, bias=False), piece("rotary", "rotary", several + 1, width),
        piece("core", "causal", several, width, width, groups=several, bias=False),
        piece("o", "linear", several * width, d, bias=False), piece("attention_sum", "sum", d),
    ]  # fmt: skip
    leaves = [{"kind": "attention"} | one for one in attention]
    mixed = c.experts(("moe_num_experts",), ("moe_top_k",), WIDTH, 48, 3,
                    d_ff_shared=c.size("share_expert_dim", default=5120))  # fmt: skip
    numbers = [str(i) for i in range(raw["n_layers"])]
    said = c.data.get("moe_layers_enum", [i for i in range(4, 60) if i < len(numbers)])
    c.ignore("moe_layers_enum")
    mixing = said.split(",") if isinstance(said, str) else said if isinstance(said, list) else [said]
    chosen = {one.strip() if isinstance(said, str) else str(one) for one in mixing}
    if not isinstance(said, str | list) or not chosen <= {*numbers}:
        c.fault("moe_layers_enum", said, f"numbers of layers from 0 to {len(numbers) - 1}, with commas between")
    sparse = [i in chosen for i in numbers]
    raw |= {"pieces": {"leaves": leaves}, "experts": mixed | {"n_shared": 1}, "feed_forward": c.gated()}
    raw |= {"norm": c.rms(eps=1e-5), "positions": {"form": "none"}, "head": c.lm_head(tied=False)}
    kinds = ["sparse" if one else "dense" for one in sparse]
    tables = {"sparse": {"parts": ["pieces", "experts"]}, "dense": {"parts": ["pieces", "feed_forward"]}}
    return layered(raw, (kinds, {kind: tables[kind] for kind in set(kinds)}))


def step3_vl(c: Config) -> Raw:
    """The language model of Step-3."""
    from txcalc.sources.huggingface.wrapped import inside

    return inside(c, "text_config", step3_text, "step3vl")


def yuan(c: Config) -> Raw:
    """Yuan 2.0: queries and keys read two convolutions over the last two positions; values read none."""
    c.of_its_own()
    raw = c.stack()
    d, h = raw["d_model"], c.size("num_attention_heads")
    inner = c.size("attention_projection_size", default=d, null=d)
    for number, name in ((h, "num_attention_heads"), (2, "2")):
        c.divides(number, inner if number == h else d, name, "the width")
    w = max(1, inner // h)
    filters = [piece("near", "convolution", d, d // 2 or 1, 2, 1), piece("nearer", "convolution", d // 2 or 1, d, 2, 1)]
    leaves = [
        piece("v", "linear", d, inner, bias=False), *filters, piece("filter_sum", "sum", d),
        piece("filter_norm", "rms_norm", d, kind="norm"), piece("q", "linear", d, inner, bias=False),
        piece("k", "linear", d, inner, bias=False), piece("rotary", "rotary", 2 * h, w),
        piece("core", "causal", h, w, w, bias=False), piece("o", "linear", inner, d, bias=False),
        piece("attention_sum", "sum", d), piece("last_two", "state", 2 * d),
    ]  # fmt: skip
    made = raw | {"pieces": {"leaves": [{"kind": "attention"} | one for one in leaves]}, "feed_forward": c.gated()}
    made |= {"norm": c.rms(), "positions": {"form": "none"}, "head": c.lm_head(tied=False)}
    return layered(made, (["layer"] * raw["n_layers"], {"layer": {"parts": ["pieces", "feed_forward"]}}))


def rwkv7(c: Config) -> Raw:
    """RWKV-7 as flash-linear-attention has it: matrices whose decay, rate and gate are of low rank, and feed-forwards
    that read a mix with the position before.

    Source   Peng et al. 2025 (arXiv 2503.14456), section 4
    """
    c.of_its_own("rwkv7")
    c.ignore("attn_mode", "fuse_norm", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp", "value_dim")
    raw = c.stack()
    d, n = raw["d_model"], raw["n_layers"]
    if "head_dim" in c and c.data["head_dim"] is None:
        several = c.size("num_heads")
        c.divides(several, d, "num_heads", "hidden_size")
        w = c.size("head_dim", null=max(1, d // several))
    else:
        w = c.size("head_dim", default=64)
        c.divides(w, d, "head_dim", "hidden_size")
        c.only(d // w, "num_heads", why="it is hidden_size / head_dim")
    values = c.data.get("value_dim") or d
    if any(value != d for value in (values if isinstance(values, list) else [values])):
        c.fault("value_dim", values, f"{d:,}, hidden_size")
    ratio = c.real("hidden_ratio", default=4.0)
    wide = c.size("intermediate_size", default=None, null=None) or max(32, -(-int(d * ratio) // 32) * 32)
    ranks = {name: c.size(f"{name}_low_rank_dim") for name in ("decay", "a", "v", "gate")}
    bias = c.flag("norm_bias", default=True)

    def layer(first: bool) -> list[Raw]:
        made = [piece(name, "linear", d, d, bias=False) for name in ("r", "k", "v", "o")]
        for name, rank in ranks.items():
            if name != "v" or not first:
                made += [piece(f"{name}_down", "linear", d, rank, bias=False)]
                made += [piece(f"{name}_up", "linear", rank, d, bias=name != "gate")]
        made += [piece("mixes", "held", 6 * d), piece("keys", "held", 3 * d), piece("scale", "scale", d)]
        made += [piece("shift", "shift", d), piece("state", "state", d * w + d), piece("sum", "sum", d)]
        fed = [piece("mix", "held", d), piece("up", "linear", d, wide, bias=False), piece("squared", "relu2", wide)]
        fed += [piece("down", "linear", wide, d, bias=False), piece("fed_sum", "sum", d), piece("last", "state", d)]
        norms = [piece(f"{name}_norm", "layer_norm", d, bias=bias, kind="norm") for name in ("mixing", "feeding")]
        made, fed = (
            [{"kind": kind} | one for one in some] for kind, some in (("recurrent", made), ("feed_forward", fed))
        )
        return [norms[0], *made, norms[1], *fed]

    c.note("the recurrence itself, its decay and what is normed of its keys are not among the FLOPs")
    raw |= {"norm": c.layer_norm("norm_eps", bias=bias, without=["pieces"]), "head": c.lm_head(tied=False)}
    raw["around"] = [piece("first_norm", "layer_norm", d, bias=bias, kind="norm")]
    return listed(raw, {"first": layer(True), "layer": layer(False)}, ["first", *["layer"] * (n - 1)])


def rwkv6(c: Config) -> Raw:
    """RWKV-5 and RWKV-6 as their published classes have them. In the sixth what is mixed with the position before, and
    the decay, depend on the token by matrices of low rank, of which a width of 4,096 has twice the rank.

    Source   Peng et al. 2024 (arXiv 2404.05892), section 4 and appendix: 13·D²·L + D·(464·L + 4) + 2·D·V parameters,
             and of the fifth 13·D²·L + D·(14·L + 4) + 2·D·V
    """
    c.of_its_own(c.model_type)
    raw = c.stack()
    d = raw["d_model"]
    w, wide = c.size("head_size", default=64), c.size("intermediate_size", default=None, null=None)
    context = c.size("context_length", "max_context_length", default=None)
    raw |= {"context": context} if context else {}
    c.divides(w, d, "head_size", "hidden_size")
    c.only(d, "attention_hidden_size", why="its norm of heads is hidden_size wide")
    wide = wide or max(1, d * 7 // 2 // 32 * 32)
    made = [piece(name, "linear", d, d, bias=False) for name in ("r", "k", "v", "gate", "o")]
    made.append(piece("gate_silu", "silu", d))
    made += [piece("mixes", "held", 4 * d)] if c.model_type == "rwkv5" else _of_the_token(d)
    made += [piece("decay_and_first", "held", 2 * d), piece("scale", "scale", d), piece("shift", "shift", d)]
    made += [piece("state", "state", d * w + d), piece("sum", "sum", d)]
    fed = [piece("mix", "held", 2 * d), piece("up", "linear", d, wide, bias=False), piece("squared", "relu2", wide)]
    fed += [piece("down", "linear", wide, d, bias=False), piece("receptance", "linear", d, d, bias=False)]
    fed += [piece("receptance_sigmoid", "sigmoid", d), piece("fed_sum", "sum", d), piece("last", "state", d)]
    norms = [piece(f"{name}_norm", "layer_norm", d, kind="norm") for name in ("mixing", "feeding")]
    made, fed = ([{"kind": kind} | one for one in some] for kind, some in (("recurrent", made), ("feed_forward", fed)))
    c.note("the recurrence itself and what is normed of its heads are not among the FLOPs")
    ends = [piece(f"{name}_norm", "layer_norm", d, kind="norm") for name in ("first", "last")]
    head = {"tied": c.flag("tie_word_embeddings", default=False)}
    return listed(raw | {"around": ends, "head": head}, {"layer": [norms[0], *made, norms[1], *fed]}, [])


def _of_the_token(d: int) -> list[Raw]:
    """What RWKV-6 mixes with the position before, and its decay."""
    mix, decay = (64, 128) if d == 4096 else (32, 64)
    made = [piece("mix_down", "linear", d, 5 * mix, bias=False), piece("mix_tanh", "tanh", 5 * mix)]
    made.append(piece("mix_up", "grouped", 5 * mix, 5 * d, groups=5, bias=False))
    made += [piece("decay_down", "linear", d, decay, bias=False), piece("decay_tanh", "tanh", decay)]
    return [*made, piece("decay_up", "linear", decay, d, bias=False), piece("mixes", "held", 6 * d)]


def safety_checker(c: Config) -> Raw:
    """Stable Diffusion's (diffusers, under CLIP's model type): CLIP's encoder of pictures, projected and compared with
    17 concepts and 3 special ones, each with a threshold. It has no encoder of words, whatever its config says of one.
    """
    c.ignore("architectures", "text_config", "text_config_dict", "logit_scale_init_value")
    width = c.size("projection_dim", default=512)
    table = {**config_of(c, "vision"), "projection_dim": width}
    inner = Config(table, "clip_vision_model", "vision_config.", c, partial=True)
    inner.ignore("architectures")
    raw = clip_vision_model(inner, "projected")
    once: Raw = {"kind": "head", "at": [0, 1, 1]}
    compared = [piece(name, "linear", width, n, bias=False, **once) for name, n in (("concepts", 17), ("special", 3))]
    c.note("a picture alone is run: this class has no encoder of words")
    return raw | {"around": [*compared, piece("thresholds", "held", 17 + 3, kind="head")]}
