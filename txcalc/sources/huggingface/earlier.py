"""Decoders before they were transformers', or beside it: code published with weights, by its own keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.beside import beside
from txcalc.sources.huggingface.config import GLOBAL, Config, Raw, piece
from txcalc.sources.huggingface.decoders import decoder
from txcalc.sources.huggingface.delta import LINEAR, minimax
from txcalc.sources.huggingface.dense import falcon
from txcalc.sources.huggingface.encoder import bert_like, encoder
from txcalc.sources.huggingface.keys import any_of
from txcalc.sources.huggingface.leaves import attends, fed, listed
from txcalc.sources.huggingface.modern import gte
from txcalc.sources.huggingface.seq2seq import crossing
from txcalc.sources.spec import count


def refinedwebmodel(c: Config) -> Raw:
    """Falcon-7B before it was transformers'."""
    c.of_its_own("rw", "falcon")
    return falcon(c)


def refinedweb(c: Config) -> Raw:
    """Falcon-40B before it was transformers': two norms, and keys that groups of queries share."""
    c.of_its_own("rw", "falcon")
    c.data = {**c.data, "new_decoder_architecture": True}
    return falcon(c)


def new(c: Config) -> Raw:
    """GTE 1.5 and mGTE before transformers had them."""
    c.of_its_own()
    c.only("rope", "position_embedding_type", why="rotary positions are read")
    stretch = c.data.get("rope_scaling")
    if isinstance(stretch, Mapping) and stretch.get("type", stretch.get("rope_type")) == "ntk":
        c.data = {key: value for key, value in c.data.items() if key != "rope_scaling"}
    c.data = {key: value for key, value in c.data.items() if key != "position_embedding_type"}
    return gte(c)


def jina_bert(c: Config) -> Raw:
    """Jina's embeddings 2: BERT with ALiBi and gated feed-forwards; those of one language have no norms of Q and K."""
    named = c.data.get("auto_map")
    code = str(named.get("AutoModel", "")) if isinstance(named, Mapping) else ""
    if "jina-bert-implementation" not in code:
        c.fault("auto_map", code or ABSENT, "jina-bert-implementation's", "other code of Jina's has other norms")
    c.of_its_own()
    c.only("alibi", "position_embedding_type", why="ALiBi is read")
    form = c.text("feed_forward_type", default="original")
    if form not in ("geglu", "reglu"):
        c.fault("feed_forward_type", form, "'geglu' or 'reglu'")
    c.data = {key: value for key, value in c.data.items() if key != "position_embedding_type"}
    return _gated_bert(c, "JinaBert", "gelu" if form == "geglu" else "relu")


def _gated_bert(c: Config, name: str, activation: str) -> Raw:
    raw = _as_bert(c, name, rows=None)
    wide = {"gated": True, "bias": False, "down_bias": True, "activation": activation}
    return raw | {"positions": {"form": "alibi"}, "feed_forward": raw["feed_forward"] | wide}


def mosaic_bert(c: Config) -> Raw:
    """MosaicBERT, whose code DNABERT-2 has: BERT with ALiBi and gated feed-forwards, whatever its config says."""
    c.of_its_own("bert")
    c.ignore("alibi_starting_size")
    c.data = {key: value for key, value in c.data.items() if key not in ("hidden_act", "position_embedding_type")}
    return _gated_bert(c, "Bert", "gelu")


def mpt_grouped(c: Config) -> Raw:
    """MPT as llm-foundry has it, whose heads share keys and values: in groups, or all of them. Its class has biases and
    a table of positions unless a config says otherwise."""
    c.of_its_own("mpt")
    table = c.data.get("attn_config")
    table = table if isinstance(table, Mapping) else {}
    shared = 1 if table.get("attn_type") == "multiquery_attention" else table.get("kv_n_heads")
    if type(shared) is not int or shared < 1:
        c.fault("attn_config.kv_n_heads", ABSENT if shared is None else shared, "a whole number above 0")
        shared = 1
    for name, given in (("no_bias", c.data), ("attn_config.alibi", table)):
        if given.get(name.rpartition(".")[2]) is None:
            c.fault(name, ABSENT, "true", "its class has it false, which is not read")
    kept = {key: value for key, value in table.items() if key not in ("attn_type", "kv_n_heads")}
    c.only({"ffn_type": "mptmlp", "fc_type": "torch"}, "ffn_config", why="two matrices are read")
    c.only("torch", "fc_type", why="plain matrices are read")
    c.ignore("use_pad_tok_in_ffn")
    c.data = {key: value for key, value in c.data.items() if key != "architectures"} | {"attn_config": kept}
    own, c.model_type = c.model_type, "mpt"
    raw = decoder(c, "mpt")
    for config in (c, *c.inner):  # what transformers' class does not read may say more of its own
        config.model_type = own
    c.divides(shared, raw["attention"]["n_heads"], "attn_config.kv_n_heads", "n_heads")
    return raw | {"attention": raw["attention"] | {"n_kv_heads": shared}}


_BERT = ("forpretraining", "forquestionanswering", "formultiplechoice", "fornextsentenceprediction")


def nezha(c: Config) -> Raw:
    """BERT that meets a fixed table of distances in its keys and its values, and has none of positions: transformers'
    until its fifth version.

    Source   Wei et al. 2019 (arXiv 1909.00204), section 2.1
    """
    c.of_its_own(more=_BERT)
    c.ignore("max_relative_position", "use_relative_position")
    raw = _as_bert(c, "Nezha", rows=None)
    heads, n = raw["attention"]["n_heads"], raw["n_layers"]
    met = {"keys": [1, 0, 1], "times": n, "kind": "attention"}
    places = [piece(f"{one}_distances", "scores", heads, raw["d_model"] // heads, **met) for one in ("key", "value")]
    return raw | {"around": places}


def ernie_m(c: Config) -> Raw:
    """BERT without types and without a language model: transformers' until its fifth version."""
    c.of_its_own(more=_BERT[1:2])
    if c.named("ForMaskedLM", "ForCausalLM", "LMHeadModel"):
        c.fault("architectures", c.data["architectures"], "a class of ernie_m", "it has no language model")
    if not c.data.get("architectures"):
        c.data = {**c.data, "architectures": ["ErnieMModel"]}
    return _as_bert(c, "ErnieM", types=None)


def _as_bert(c: Config, name: str, **more: Any) -> Raw:
    """A config whose classes are BERT's by another name."""
    names, whose = c.data.get("architectures"), c.model_type
    if isinstance(names, list) and names and isinstance(names[0], str):
        c.data = {**c.data, "architectures": [names[0].replace(name, "Bert")]}
    c.model_type = "bert"
    raw = bert_like(c, **more)
    c.model_type = whose
    return raw


def albef(c: Config) -> Raw:
    """ALBEF's BERT, and X-VLM's or RoBERTa as they have it: layers from `fusion_layer` on attend to pictures too.

    Source   Li et al. 2021 (arXiv 2107.07651), section 4: 123.7 million parameters for BERT-base
    """
    if c.data.get("model_type") not in ("bert", "roberta"):
        c.fault("model_type", c.data.get("model_type", ABSENT), "'bert' or 'roberta'")
        c.data = {**c.data, "model_type": "bert"}
    c.model_type = c.data["model_type"]
    c.of_its_own()
    return _seeing(c, encoder(c), c.count("fusion_layer"))


def blip_med(c: Config) -> Raw:
    """BLIP's BERT: every layer attends to pictures too, in LAVIS those from `fusion_layer` on, and there are no types
    unless LAVIS' key says so."""
    typed = "add_type_embeddings" in c and c.flag("add_type_embeddings")
    c.model_type, c.data = "bert", {key: value for key, value in c.data.items() if key != "add_cross_attention"}
    c.of_its_own()
    raw = encoder(c)
    if not typed:
        del raw["embedding"]["types"]
    return _seeing(c, raw, c.count("fusion_layer") if "fusion_layer" in c else 0)


def _seeing(c: Config, raw: Raw, first: int) -> Raw:
    """With an attention to pictures as wide as `encoder_width` in the layers from `first` on."""
    d, layers = raw["d_model"], max(0, raw["n_layers"] - first)
    what = f"words alone are run: the attention to pictures of {layers:,} layers"
    return c.held(raw, layers * crossing(d, c.size("encoder_width")), what, "is held")


def minimax_text_01(c: Config) -> Raw:
    """MiniMax-Text-01 and M1, before they were transformers': `attn_type_list` says which layers are linear."""
    c.of_its_own("minimaxtext01", "minimaxm1")
    given = c.items("attn_type_list", of=any_of(0, 1), length=c.layers("num_hidden_layers"), default=None)
    if given is None:
        c.fault("attn_type_list", c.data.get("attn_type_list", ABSENT), "a list, one per layer")
    shared = c.data.get("shared_intermediate_size", 0)
    if shared not in (0, [0]):
        c.fault("shared_intermediate_size", shared, "0", "a shared expert with a learned share is not read")
    c.ignore(
        "attn_type_list",
        "shared_intermediate_size",
        "shared_moe_mode",
        *(key for key in c.data if key.startswith("layernorm_")),
    )
    types = [GLOBAL if kind else LINEAR for kind in given or []]
    dims = c.size("rotary_dim", default=None)
    c.data = {**c.data, "layer_types": types or None}
    raw = minimax(c)
    width = raw["attention"]["d_head"]
    return raw | {"positions": raw["positions"] | ({"rotary_dims": dims} if dims and dims != width else {})}


def phi_msft(c: Config) -> Raw:
    """Phi-1, 1.5 and 2 before they were transformers': GPT-J's layers under GPT-2's names."""
    c.of_its_own("phi", "mixformersequential")
    raw = c.stack(("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"))
    attention = c.heads(raw, names=("n_head", "num_attention_heads"), kv_names=("n_head_kv",), width_names=())
    blocks = c.table("architecture") or Config({}, c.model_type, parent=c)
    blocks.only("parallel", "block_cls", why="attention beside the feed-forward is read")
    blocks.only({}, "mixer", why="attention is read")
    if (channel := blocks.data.get("mlp", {"mlp_cls": "mlp"})) not in ({"mlp_cls": "mlp"}, {"mlp_cls": "fused_mlp"}):
        blocks.fault("mlp", channel, "'mlp' or, the same in one kernel, 'fused_mlp', as mlp_cls")
    blocks.ignore("mlp")
    dims = c.size("rotary_dim", default=32)
    places: Raw = {"form": "rotary"} | ({"rotary_dims": dims} if dims < attention["d_head"] else {})
    mlp = c.plain("n_inner", act="gelu_new", act_names=("activation_function",), default=4 * raw["d_model"])
    norm, head = c.layer_norm(parallel="shared"), c.lm_head(tied=False, bias=True)
    return c.decoder(raw, attention | {"bias": True}, mlp=mlp, norm=norm, positions=places, head=head)


def hf_olmo(c: Config) -> Raw:
    """OLMo and OLMo 1.7 before they were transformers': every choice of its trainer's is a key."""
    c.of_its_own("olmo")
    raw = c.stack(("d_model",), ("n_layers",))
    d = raw["d_model"]
    context = c.size("max_sequence_length", default=1024)
    several = c.flag("multi_query_attention", default=None, null=None)
    attention = c.heads(raw, kv=1 if several else None, names=("n_heads",), kv_names=("n_kv_heads",), width_names=())
    bias = c.flag("include_bias", default=True)
    attention |= {"bias": bias, "qk_norm": "width" if c.flag("attention_layer_norm", default=False) else "none"}
    if attention["qk_norm"] == "width":
        c.only(True, "attention_layer_norm_with_affine", why="norms of Q and K have weights")
    ratio = c.size("mlp_ratio", default=4)
    wide = c.size("mlp_hidden_size", default=ratio * d, null=ratio * d)
    form = c.text("activation_type", default="swiglu")
    if form not in ("swiglu", "gelu", "relu"):
        c.fault("activation_type", form, "'swiglu', 'gelu' or 'relu'")
    rope, alibi = c.flag("rope", default=False), c.flag("alibi", default=False)
    places = c.rotary(attention["d_head"]) if rope else {"form": "learned", "rows": context}
    raw |= {"context": context, "vocab_size": c.size("embedding_size", default=50304, null=raw["vocab_size"])}
    mlp = _halved(c, wide, bias) if form == "swiglu" else {"d_ff": wide, "activation": form, "bias": bias}
    head = c.lm_head(tied=True) | {"tied": c.flag("weight_tying", default=True)}
    own = {"form": "alibi"} if alibi else places
    return c.decoder(raw, attention, mlp=mlp, norm=_norm_of_olmo(c, bias), positions=own, head=head)


def llada(c: Config) -> Raw:
    """OLMo's code with Llama's layers, whose positions see one another: what is masked is written."""
    if not c.named("LLaDAModelLM"):
        c.of_its_own(writes=True)
    raw = c.stack(("d_model",), ("n_layers",))
    off = "alibi", "attention_layer_norm", "bias_for_layer_norm", "include_bias", "input_emb_norm", "scale_logits"
    c.only(False, *off, why="it is not read")
    attention = c.heads(raw, names=("n_heads",), kv_names=("n_kv_heads",), width_names=())
    attention["bias"] = ["q", "k", "v"] if c.flag("include_qkv_bias", default=False) else []
    return raw | {
        "kind": "encoder",
        "context": c.size("max_sequence_length", default=1024),
        "vocab_size": c.size("embedding_size", default=raw["vocab_size"], null=raw["vocab_size"]),
        "attention": attention,
        "feed_forward": {"d_ff": c.size("mlp_hidden_size"), "gated": True,
                         "activation": c.activation("activation_type", default="silu")},
        "norm": c.rms(eps=1e-5),
        "positions": c.rotary(attention["d_head"]),
        "head": {"form": "masked-lm", "plain": True, "tied": c.flag("weight_tying", default=False), "bias": False},
    }  # fmt: skip


def moss(c: Config) -> Raw:
    """CodeGen's layers, under another name."""
    c.of_its_own()
    return decoder(c, "gptj")


def _norm_of_olmo(c: Config, bias: bool) -> Raw:
    form = c.text("layer_norm_type", default="default")
    if form not in ("default", "low_precision", "rms"):
        c.fault("layer_norm_type", form, "'default', 'low_precision' or 'rms'")
    place = "after" if c.flag("norm_after", default=False) else "pre"
    weighted = c.flag("layer_norm_with_affine", default=True)
    biased = c.flag("bias_for_layer_norm", default=bias, null=bias)
    if form == "rms" and biased:
        c.fault("bias_for_layer_norm", biased, "false", "an RMSNorm with a bias is not read")
    kind = {"form": "rms"} if form == "rms" else {"form": "layer", "bias": biased and weighted}
    return kind | {"eps": c.real("layer_norm_eps", default=1e-5), "place": place, "weighted": weighted}


def _halved(c: Config, both: int, bias: bool) -> Raw:
    """SwiGLU whose two gates are as wide together as is said."""
    if both % 2:
        c.fault("mlp_hidden_size", both, "an even number: the width of both gates")
    return {"d_ff": max(1, both // 2), "gated": True, "activation": "silu", "bias": bias}


def molmo(c: Config) -> Raw:
    """Molmo's: OLMo's code under Llama's names, with 128 further rows of the token table."""
    c.of_its_own(writes=True)
    raw = c.stack()
    attention = c.heads(raw, width_names=())
    attention["bias"] = ["q", "k", "v"] if c.flag("qkv_bias", default=False) else []
    attention["qk_norm"] = "width" if c.flag("attention_layer_norm", default=False) else "none"
    raw |= {
        "vocab_size": c.size("embedding_size", default=raw["vocab_size"], null=raw["vocab_size"]),
        "embedding": {"extra": 128},
        "attention": attention,
        "feed_forward": _halved(c, c.size("intermediate_size"), bias=False),
        "norm": _norm_of_olmo(c, bias=False),
        "positions": c.rotary(attention["d_head"]),
        "head": {"tied": False},
    }
    return raw | beside(c, c, raw)


def codeshell(c: Config) -> Raw:
    """GPT-2 with keys that groups of queries share, and rotary or learned positions."""
    c.of_its_own()
    raw = c.stack(("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"))
    attention = c.heads(raw, names=("n_head", "num_attention_heads"), kv_names=(), width_names=()) | {"bias": True}
    if c.flag("group_query_attention", default=True):
        groups = c.size("num_query_groups", default=1)
        c.divides(groups, attention["n_heads"], "num_query_groups", "n_head")
        attention["n_kv_heads"] = groups
    form = c.text("position_embedding_type", default="learned_absolute")
    if form not in ("learned_absolute", "rope"):
        c.fault("position_embedding_type", form, "'learned_absolute' or 'rope'")
    learned = {"form": "learned", "rows": c.size("n_positions", "max_position_embeddings", default=8192)}
    mlp = c.plain("n_inner", act="gelu_pytorch_tanh", act_names=("activation_function",), default=4 * raw["d_model"])
    places = None if form == "rope" else learned
    return c.decoder(raw, attention, mlp=mlp, norm=c.layer_norm(), positions=places, tied=True)


def plamo2(c: Config) -> Raw:
    """Mamba whose step, B and C are made of what its convolution gives, with a decay for each head, in turn with
    attention in windows; a norm before and after each branch."""
    c.of_its_own("plamo2", "plamo")
    raw = c.stack()
    d, n, w = raw["d_model"], raw["n_layers"], c.size("hidden_size_per_head", default=128)
    heads, kv = c.size("num_attention_heads", default=32), c.size("num_key_value_heads", default=4)
    c.divides(kv, heads, "num_key_value_heads", "num_attention_heads")
    groups, window = heads // max(1, kv), c.size("attention_window_size", default=2048)
    step = c.size("mamba_step", default=2)
    if step < 2:
        c.fault("mamba_step", step, "at least 2")
    full = c.items("full_attention_idx", of=count, length=None, default=None) or []
    mixes, middle = c.flag("mamba_enabled", default=True), step // 2
    scans = [mixes and (i != n - 1 if n <= middle else i % step != middle) for i in range(n)]
    order = ["scanning" if scans[i] else "whole" if i in full else "window" for i in range(n)]
    if any(scans):
        c.note("the scan itself is not among the FLOPs")

    core = {"whole": piece("core", "causal", heads, w, w, groups=groups, bias=False)}
    core["window"] = piece("core", "window", heads, w, w, window, groups=groups, bias=False)
    mixers = {"scanning": _scanning(c, d, w)}
    for form, one in core.items():
        made = [
            piece(name, "linear", d, several * w, bias=False) for name, several in (("q", heads), ("k", kv), ("v", kv))
        ]
        made += [piece("qk_norm", "held", (heads + kv) * w), piece("rotary", "rotary", heads + kv, w), one]
        mixers[form] = [*made, piece("o", "linear", heads * w, d, bias=False)]
    wide, act = c.size("intermediate_size", default=13312), c.activation("hidden_act", default="silu")
    fed = [piece("gate_and_up", "linear", d, 2 * wide, bias=False), piece("activation", act, wide)]
    fed.append(piece("down", "linear", wide, d, bias=False))
    kinds = {}
    for name in sorted({*order}):
        kind = "recurrent" if name == "scanning" else "attention"
        kinds[name] = [*_between("mixer", d, mixers[name], kind), *_between("mlp", d, fed, "feed_forward")]
    head, last = {"tied": c.flag("tie_word_embeddings", default=True)}, piece("last_norm", "rms_norm", d, kind="norm")
    return listed(raw | {"around": [last], "head": head}, kinds, order)


def _scanning(c: Config, d: int, w: int) -> list[Raw]:
    several, states, taps = (c.size(f"mamba_{key}", default=usual)
                             for key, usual in (("num_heads", 64), ("d_state", 64), ("d_conv", 4)))  # fmt: skip
    inner, rank = several * w, max(64, d // 16)
    made = [piece("in", "linear", d, 2 * inner, bias=False)]
    made.append(piece("conv", "convolution", inner, inner, taps, 1, groups=inner, bias=False))
    made += [piece("conv_silu", "silu", inner), piece("b_c_step", "linear", inner, rank + 2 * states, bias=False)]
    made += [piece(f"{name}_norm", "rms_norm", size) for name, size in (("step", rank), ("b", states), ("c", states))]
    made += [piece("step", "linear", rank, several, bias=False), piece("decays", "held", 3 * several)]
    made += [piece("state", "state", inner * states + (taps - 1) * inner), piece("gate_silu", "silu", inner)]
    return [*made, piece("out_proj", "linear", inner, d, bias=False)]


def _between(name: str, d: int, branch: list[Raw], kind: str) -> list[Raw]:
    """A branch between two norms."""
    norms = [piece(f"{where}_{name}_norm", "rms_norm", d, kind="norm") for where in ("pre", "post")]
    return [norms[0], *({"kind": kind} | one for one in branch), norms[1], piece(f"{name}_sum", "sum", d, kind=kind)]


def nomic_vision(c: Config) -> Raw:
    """NomicBERT's layers over a picture, pre-norm, and one query that attends to all that they give.

    Source   Nussbaum et al. 2024 (arXiv 2406.18587), section 3; its published code
    """
    if c.text("activation_function", default="gelu_new") != "swiglu":
        c.fault("activation_function", c.data.get("activation_function", ABSENT), "'swiglu'")
    if not c.flag("prenorm", default=False):
        c.fault("prenorm", c.data.get("prenorm", ABSENT), "true", "norms before the parts are read")
    c.only(False, "causal", "layer_scale", "learned_pos_embedding", "mask_token", "no_cls_token", "no_embed_class",
           "parallel_block", "sinusoidal_pos_embedding", "use_rms_norm", why="the published model is read")  # fmt: skip
    c.only(0, "register_tokens", "rotary_emb_fraction", why="the published model is read")
    c.only(True, "use_pos_embed", why="the published model is read")
    c.ignore(
        "architectures",
        "use_rotary_pos_emb",
        "vocab_size",
        "type_vocab_size",
        "n_positions",
        "ref_feat_shape",
        "rotary_emb_base",
    )
    c.ignore("no_last_ln", "prepre_layernom", "eva_qkv_bias", "patch_dropout", "layer_scale_init", "drop_path_rate")
    c.ignore("pad_vocab_size_multiple", "hidden_features_scaling_factor")
    c.only(None, "global_pool", why="the query attends to all positions")
    d, heads, side, patch = c.size("n_embd"), c.size("n_head"), c.size("img_size"), c.size("patch_size")
    c.divides(heads, d, "n_head", "n_embd")
    c.divides(patch, side, "patch_size", "img_size")
    wide = -(-int(c.real("n_inner", default=8 * d / 3)) // 256) * 256
    first, last = (c.flag(f"mlp_fc{i}_bias", default=True) for i in (1, 2))
    if first != last or not c.flag("patch_embed_bias", default=True):
        c.fault("mlp_fc2_bias", last, "as mlp_fc1_bias, and patch_embed_bias true", "other biases are not read")
    bias, w = c.flag("qkv_proj_bias", default=True), max(1, d // heads)
    one: Raw = {"at": [0, 1, 1]}
    pooled = [piece("pool_query", "held", d, kind="attention")]
    pooled += attends("pool_", d, heads, w, keys=[1, 0, 1], bias="qkvo" * bias, **one)
    pooled += fed("pool_feed_forward", d, wide, "silu", bias=first, gated=True, **one)
    channel: Raw = {"d_ff": wide, "gated": True, "activation": "silu", "bias": first}
    return {
        "kind": "vision",
        "d_model": d,
        "n_layers": c.layers("n_layer"),
        "attention": {"n_heads": heads, "n_kv_heads": heads, "d_head": w, "bias": bias},
        "feed_forward": channel | {"inner_norm": c.flag("norm_mlp", default=False)},
        "norm": c.layer_norm("layer_norm_epsilon", eps=1e-5) | {"final": False},
        "positions": {"form": "learned"},
        "vision": {"image": side, "patch": patch, "channels": c.size("num_channels", default=3)},
        "around": pooled,
        "head": {"form": "none"},
    }
