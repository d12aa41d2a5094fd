"""Draft models for speculative decoding that read the target's hidden states: EAGLE, P-EAGLE, DFlash, Medusa."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.sources.huggingface.config import GLOBAL, Config, Raw, with_kinds
from txcalc.sources.huggingface.heads import class_of
from txcalc.sources.huggingface.keys import letters_of, number
from txcalc.sources.huggingface.leaf_list import leaf, leaf_stack, matrix

# Keys copied from the configs of targets such as Qwen, which drafts do not read.
UNREAD = ("max_window_layers", "use_sliding_window", "decoder_sparse_step", "norm_output")


def _stack(c: Config, biases: bool = False) -> Raw:
    """The widths of a draft, with the norms and the feed-forward of its published code."""
    c.require_single_stack()
    raw = c.widths("decoder") | {"context": c.size("max_position_embeddings", default=2048)}
    c.require_value(False, "mlp_bias", *(() if biases else ("attention_bias",)), why="the published code has no biases")
    c.text("target_model_type", default=None)
    c.ignore("architectures", *UNREAD)
    return raw | {"norm": c.rms(), "feed_forward": c.gated_mlp()}


def _draft_vocabulary(c: Config, raw: Raw, default: int) -> Raw:
    """A head over the tokens that a draft proposes, which may be fewer than its token table has."""
    rows = raw["vocab_size"]
    proposed = c.size("draft_vocab_size", default=default, null=rows)
    if proposed > rows:
        c.fault("draft_vocab_size", proposed, f"at most vocab_size = {rows:,}")
    if proposed == rows:
        c.require_value(False, "tie_word_embeddings", why="the head of the published code is not tied")
    c.ignore("tie_word_embeddings")
    extra = max(0, rows - proposed)
    return {"vocab_size": rows - extra, "embedding": {"extra": extra}, "head": {"tied": False}}


def _features(c: Config, raw: Raw) -> Raw:
    """Hidden states of three layers of the target model."""
    inner = c.table("eagle_config")
    if inner:
        inner.ignore("use_aux_hidden_state")
    for table in (c, inner or c):
        listed = table.items("eagle_aux_hidden_state_layer_ids", of=number, length=None, default=[0, 0, 0])
        if len(listed) != 3:
            table.fault("eagle_aux_hidden_state_layer_ids", listed, "three layers")
    width = c.size("target_hidden_size", default=raw["d_model"], null=raw["d_model"])
    return {"number": 3, "width": width}


def _inner(c: Config) -> Config:
    """The config of a draft's layers: the file itself, or a table of it in vLLM's speculators."""
    if "transformer_layer_config" not in c:
        return c
    table = c.data["transformer_layer_config"]
    if not isinstance(table, Mapping) or not table:
        c.fault("transformer_layer_config", table, "an object, the config of its layers")
    layers = table if isinstance(table, Mapping) else {}
    kind = layers.get("model_type", "qwen3")
    inner = Config(layers, str(kind), "transformer_layer_config.", c, partial=True)
    if kind not in ("llama", "qwen3"):
        inner.fault("model_type", kind, "'llama' or 'qwen3'")
    c.ignore("transformer_layer_config", "architectures", "speculators_config", "speculators_model_type")
    c.ignore("speculators_version", "has_no_defaults_at_init", "norm_output", "mask_token_id", "embed_requires_grad")
    c.ignore("block_size", "sample_from_anchor", "sliding_window_non_causal", "norm_before_residual")
    inner.ignore("tie_word_embeddings", "layer_types" if kind == "llama" else "")
    return inner


# Keys of the target model, which the code of drafts never reads.
_OF_THE_TARGET = """
add_classification_head attention_head_dim cla_share_factor class_num dense_list im_end_id im_newline_id im_start_id
mask_init_id max_window_layers modal_type norm_type org_vocab_size pad_id pool_type target_model_type text_end_id
text_start_id use_cla use_qk_norm use_rotary_pos_emb
"""


def eagle3(c: Config) -> Raw:
    """EAGLE-3: one layer whose attention reads the tokens' embeddings and the features; in vLLM's speculators plain
    layers may follow."""
    inner = _inner(c)
    if c.class_ends("Eagle3LlamaForCausalLM"):
        c.ignore(*_OF_THE_TARGET.split())
    if c.class_ends("CosyVoice3Eagle3LlamaForCausalLM"):
        c.override(num_hidden_layers=1)
    raw = _stack(inner)
    if inner is c:
        c.require_value(1, "num_hidden_layers", why="EAGLE-3's published code has one layer")
    attention = _draft_heads(c, inner, raw)
    features = _features(c, raw) | {"norm": c.flag("fc_norm", default=False)}
    if c.flag("use_sliding_window", default=True):
        c.require_value(None, "sliding_window", why="windows are not supported in a draft")
    return _first_reads(c, inner, raw, attention, features=features)


def _draft_heads(c: Config, inner: Config, raw: Raw) -> Raw:
    """The heads of a layer that reads tokens and features."""
    if inner is not c and inner.model_type == "qwen3":
        why = "norms of Q and K are not supported in a layer that reads features"
        inner.fault("model_type", "qwen3", "'llama'", why)
    return inner.heads(raw)


def _first_reads(c: Config, inner: Config, raw: Raw, attention: Raw, **keys: object) -> Raw:
    """The first layer reads the features; the others are plain. `keys` are further keys of the description."""
    raw |= _draft_vocabulary(c, raw, 32000 if inner is not c else raw["vocab_size"])
    raw |= {"draft_attention": attention, "positions": inner.rotary(attention["d_head"]), **keys}
    first, n = {"parts": ["draft_attention", "feed_forward"]}, raw["n_layers"]
    if n == 1:
        return with_kinds(raw, (["layer"], {"layer": first}))
    plain: Raw = {"parts": ["attention", "feed_forward"]}
    kinds = ["first", *["plain"] * (n - 1)]
    return with_kinds(raw | {"attention": attention}, (kinds, {"first": first, "plain": plain}))


def peagle(c: Config) -> Raw:
    """P-EAGLE: EAGLE-3's layer, plain layers after it, and a learned vector in place of features of later tokens."""
    inner = _inner(c)
    raw = _stack(inner)
    attention = _draft_heads(c, inner, raw)
    features = _features(c, raw)
    c.flag("norm_before_residual", default=False)
    c.note("the vector in place of features of later tokens is counted; its use costs no FLOPs")
    idle = 3 * features["width"]
    return _first_reads(c, inner, raw, attention, features=features, idle=idle, drafting="at-once")


def dflash(c: Config) -> Raw:
    """DFlash: Qwen3's layers over a block of tokens that are drafted at once; they attend to one another and to the
    features of earlier tokens. The embedding and the head are the target's."""
    inner = _inner(c)
    raw = _stack(inner, biases=True)
    n, d = raw["n_layers"], raw["d_model"]
    attention = inner.heads(raw, attention_bias=False, qk_norm="head")
    window = inner.size("sliding_window", default=None)
    axis = inner.windows(raw, window, inner.layer_types(n, [GLOBAL] * n))
    settings = c.subtable("dflash_config")
    listed = (c.data if inner is not c else settings.data).get("aux_hidden_state_layer_ids" if inner is not c else
                                                          "target_layer_ids")  # fmt: skip
    if not isinstance(listed, list | None) or listed == []:
        c.fault("target_layer_ids", listed, "a list of layers")
    n_features = len(listed) if isinstance(listed, list) else n
    groups = attention["n_kv_heads"] * attention["d_head"]
    params, flops = n_features * d * d + d, 2 * n_features * d * d + 4 * n * d * groups
    if c.class_ends("QwenDFlareDraftModel"):  # each layer weights the features and has its own K and V for them
        inner.require_value(False, "attention_bias", why="biases of K and V of features are not supported")
        params, flops = n * n_features + d + 2 * n * d * groups, 2 * n * n_features * d + 4 * n * d * groups
    correction = _correction_params(c, settings if inner is c else c, raw)
    c.note(
        f"FLOPs are those of a pass that drafts every token at once; projections of an earlier token's features "
        f"({flops:,} FLOPs, once per token) are counted in the parameters only; positions of a block attend to one "
        f"another, but masked FLOPs only count earlier ones"
    )
    raw |= {
        "attention": attention,
        "positions": inner.rotary(attention["d_head"]),
        "idle": params + correction,
        "drafting": "block",
        "norm": raw["norm"] | {"final": True},
    }
    if inner is c:
        c.note("its embedding and its head are the target model's, and are not counted")
        raw |= {"vocab_size": None}
    else:
        raw |= _draft_vocabulary(c, raw, 32000)
    return with_kinds({key: value for key, value in raw.items() if value is not None}, axis)


def _correction_params(c: Config, settings: Config, raw: Raw) -> int:
    """Parameters of the head that corrects logits by earlier tokens of the block, in Domino and DSpark; else 0."""
    d, rows = raw["d_model"], raw["vocab_size"]
    proposed = c.data.get("draft_vocab_size", 32000 if "transformer_layer_config" in c else rows)
    cls = letters_of(class_of(c.data) or "")
    if cls.startswith("domino") or settings.data.get("projector_type") == "domino":
        settings.require_value("domino", "projector_type", why="it is a Domino draft")
        settings.ignore("pure_draft_prefix_len", "shift_label")
        inner, state = settings.size("emb_dim"), settings.size("gru_hidden_dim")
        c.ignore("emb_dim")
        total = 3 * state * (d + state) + (d + state) * inner + inner * rows
    elif cls.startswith("dspark"):
        settings.require_value("dspark", "projector_type", why="it is a DSpark draft")
        rank = settings.count("markov_rank", default=256 if settings is c else 0)
        form = settings.text("markov_head_type", default="vanilla")
        forms = {"vanilla": 0, "gated": (d + rank + 1) * rank, "rnn": 3 * (2 * rank + d + 1) * rank}
        if form not in forms:
            settings.fault("markov_head_type", form, "'vanilla', 'gated' or 'rnn'")
        default = settings is c or bool(settings.data.get("confidence_head_alpha"))
        confidence = settings.flag("enable_confidence_head", default=default)
        with_markov = settings.flag("confidence_head_with_markov", default=settings is c)
        total = rank and rank * (rows + (proposed if type(proposed) is int else rows)) + forms.get(form, 0)
        total += confidence * (d + rank * with_markov + 1)
    else:
        settings.require_value("dflash", "projector_type", why="it is a DFlash draft")
        return 0
    c.note(f"FLOPs of the head that corrects logits within a block ({total:,} parameters) are not counted")
    return int(total)


def eagle(c: Config) -> Raw:
    """EAGLE and EAGLE-2: layers on a projection of embedding and features, without a norm before the first attention
    and after the last layer. The head is the target's."""
    raw = _stack(c)
    attention = c.heads(raw)
    bias = c.flag("bias", default=True)
    raw |= {
        "features": {"number": 1, "embedded": True, "bias": bias},
        "attention": attention,
        "positions": c.rotary(attention["d_head"]),
        "norm": raw["norm"] | {"final": False},
        "head": {"form": "none"},
    }
    c.note("its head is the target model's, and is not counted")
    kinds = ["first", *["later"] * (raw["n_layers"] - 1)]
    return with_kinds(raw, (kinds, {"first": {"norm": {"without": ["attention"]}}, "later": {}}))


def medusa(c: Config) -> Raw:
    """Medusa: heads on the target's last hidden states, each a residual layer with a SiLU and a matrix to the
    vocabulary. Its own checkpoints have biases in the layers; vLLM's have a key for them."""
    from_vllm = "num_heads" in c
    if not c.class_ends("MedusaModel") and c.data.get("architectures"):
        c.fault("architectures[0]", c.data["architectures"], '["MedusaModel"]', "other classes have other layers")
    c.ignore(
        "architectures", "base_model_name_or_path", "version", "max_paths", "topk", "max_seq_len", "medusa_choices"
    )
    d, v = c.size("hidden_size"), c.size("vocab_size")
    c.require_value(v, "truncated_vocab_size", why="heads score the whole vocabulary")
    number = c.size("num_heads", "medusa_num_heads", default=5)
    bias = c.flag("medusa_fc_bias", default=False) if from_vllm else True
    leaves = [leaf("layer", "linear", d, d, bias=bias), leaf("activation", "silu", d), leaf("sum", "sum", d)]
    leaves.append(matrix("scores", d, v))
    raw = leaf_stack({"kind": "decoder", "d_model": d, "n_layers": 1, "head": {"form": "none"}}, {
        "layer": [item | {"times": number, "kind": "head"} for item in leaves]}, [])  # fmt: skip
    return raw | {"drafting": "at-once"}
