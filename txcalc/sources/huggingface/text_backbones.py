"""Language models that transformers has only in multimodal classes."""

from __future__ import annotations

from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import (
    GLOBAL,
    LAYER_NAMES,
    LOCAL,
    NAMES,
    ROUTED,
    TOP,
    WIDTH,
    Config,
    Raw,
    rotary_axis,
    with_kinds,
)
from txcalc.sources.huggingface.keys import any_of
from txcalc.sources.spec import real, size


def deepseek_ocr2_text(c: Config, dense: int | None = None, kv: int | None = None) -> Raw:
    """DeepSeek-V2's experts with Llama's attention. `dense` is the number of leading dense layers without a list; `kv`
    the default number of key/value heads."""
    raw = c.stack()
    attention = c.heads(raw, kv=kv, width_names=(), attention_bias=False)
    c.require_value(attention["d_head"], "head_dim", why="it is hidden_size / num_attention_heads")
    mixed = c.with_shared(c.experts(ROUTED, TOP, WIDTH, 64), "n_shared_experts", default=2)
    raw = c.decoder(raw, attention, mixed=mixed)
    if dense is None and c.data.get("mlp_layer_types") is None:
        c.fault("mlp_layer_types", c.data.get("mlp_layer_types", ABSENT), 'a list of "dense" and "sparse" per layer')
    return with_kinds(raw, c.typed_layers(raw, dense or 0))


def unlimited_ocr_text(c: Config) -> Raw:
    """DeepSeek-OCR's with a window over the answer; attention to the whole prompt, which stays in the cache."""
    raw = deepseek_ocr2_text(c, c.count("first_k_dense_replace", default=1), kv=10)
    kinds, window = ("reference_sliding_attention", GLOBAL), c.size("sliding_window", default=128)
    if kinds[0] in c.layer_types(raw["n_layers"], [kinds[0]] * raw["n_layers"], kinds):
        c.note(f"the context counts as the prompt; of the answer, only the last {window:,} tokens are read and cached")
    return raw


def molmo2_text(c: Config) -> Raw:
    """Qwen3 or OLMo 2 with an embedding that has more rows than the head."""
    raw = c.stack()
    after, form = c.flag("norm_after", default=False), c.text("qk_norm_type", default="qwen3")
    if form not in ("qwen3", "olmo"):
        c.fault("qk_norm_type", form, "'qwen3' or 'olmo'")
    bias = ["q", "k", "v"] if c.flag("attention_bias", "qkv_bias", default=False) else []
    attention = c.heads(raw, kv=8, d_head=128)
    extra = c.count("additional_vocab_size", default=128)
    attention |= {"bias": bias, "qk_norm": "head" if form == "qwen3" else "width"}
    norm = c.rms("rms_norm_eps", "layer_norm_eps") | ({"place": "after"} if after else {})
    return c.decoder(raw, attention, norm=norm, embedding={"extra": extra} if extra else {})


def cosmos3_edge_text(c: Config) -> Raw:
    """Llama with an ungated feed-forward and a squared ReLU."""
    raw = c.stack()
    attention = c.heads(raw, kv=8, d_head=128, whole=True, attention_bias=False)
    _check_mrope(c, attention["d_head"], [24, 20, 20], None)
    mlp = c.mlp(act="relu2", bias=c.flag("mlp_bias", default=False))
    return c.decoder(raw, attention, mlp=mlp, norm=c.rms(eps=1e-5), theta=1e8)


def _check_mrope(c: Config, d_head: int, default: list[int], absent: list[int] | None) -> None:
    """Check the frequencies per axis (mrope_section); `default` without rotary parameters, `absent` if they lack it."""
    rope = c.data.get("rope_parameters", c.data.get("rope_scaling"))
    sections = rope.get("mrope_section", absent) if isinstance(rope, dict) else default
    three = isinstance(sections, list) and len(sections) == 3 and all(type(number) is int for number in sections)
    if not three or sum(sections or ()) != d_head // 2:
        c.fault("rope_parameters.mrope_section", sections, f"three numbers whose sum is {d_head // 2}")


def muse_glimmer_text(c: Config) -> Raw:
    """Gated attention with weightless norms of Q and K, sandwich norms, and positions only in layers with a window."""
    raw = c.stack()
    n, window = raw["n_layers"], c.size("sliding_window", default=2048, null=None)
    attention = c.heads(raw, kv=2, d_head=128, whole=True, attention_bias=False)
    factor = c.real("qk_scale_factor", default=3.87)
    c.note("other FLOPs do not count the norm of the embedding, which has no weights")
    attention |= {"qk_norm": "bare", "gate": "element", "scale": factor / attention["d_head"] ** 0.5}
    cap = c.real("final_logit_softcapping", default=20.0)
    scale = c.real("output_multiplier", default=0.19611613513818404)
    norm, head = c.rms(eps=1e-5, place="sandwich", offset=True), c.lm_head(False, softcap=cap, scale=scale)
    raw = c.decoder(raw, attention, norm=norm, head=head)
    full = [(n - 1 - i) % 4 == 0 for i in range(n)]
    types = c.layer_types(n, [GLOBAL if is_full else LOCAL for is_full in full])
    default = [0.0 if is_full else 1.0 for is_full in full]
    bases = c.items("layer_rope_theta", of=real, length=n, default=None) or default
    return with_kinds(raw, c.windows(raw, window, types), rotary_axis(bases))


def ernie4_5_vl_moe_text(c: Config) -> Raw:
    """ERNIE 4.5 with as many further experts for image tokens."""
    raw = c.stack()
    d = raw["d_model"]
    widths = c.items("moe_intermediate_size", of=size, length=None, default=[1536, 512])
    if len(widths) < 2:
        c.fault("moe_intermediate_size", widths, "two widths: of the experts for text and for images")
        widths = [1, 1]
    number, top = c.size(*NAMES, "moe_num_experts", default=64), c.size("moe_k", *TOP, default=6)
    if top > number:
        c.fault(c.spelling("moe_k", *TOP), top, f"at most {number}, the number of experts")
    activation = c.activation("hidden_act", default="silu")
    mixed: Raw = {"n_experts": number, "top_k": top, "d_ff": widths[0], "activation": activation}
    mixed = c.with_shared(mixed, "moe_num_shared_experts", default=2) | {"router_bias": True}
    attention = c.heads(raw, kv=4)
    _check_mrope(c, attention["d_head"], [22, 22, 20], [22, 22, 20])
    raw = c.decoder(raw, attention, mixed=mixed, tied=True, theta=5e5)
    axis = c.typed_layers(raw, 1)
    per_layer = mixed["n_experts"] * (3 * d * widths[-1] + d + 1)
    return with_kinds(c.with_idle(raw, per_layer * axis[0].count("sparse"), "the experts for image tokens"), axis)


def step3p5(c: Config) -> Raw:
    """One gate per head, more heads in layers with a window; lists per layer also cover MTP layers."""
    raw = c.stack()
    n, n_mtp = raw["n_layers"], c.count("num_nextn_predict_layers", "num_mtp_layers", default=0, null=0)
    kv_names = ("num_key_value_heads", "num_attention_groups")
    attention = c.heads(raw, kv=8, d_head=128, kv_names=kv_names, attention_bias=False)
    mixed = c.experts(("n_routed_experts", "moe_num_experts"), ("num_experts_per_tok", "moe_top_k"), WIDTH, 288, 8,
                    d_ff_shared=c.size("share_expert_dim", "share_expert_dims", default=1280))  # fmt: skip
    raw |= {
        "attention": attention | {"qk_norm": "head", "gate": "head"},
        "experts": mixed | {"scoring": "sigmoid", "scale": c.real("moe_router_scaling_factor", default=1.0)},
        "norm": c.rms(eps=1e-5, offset=True),
        "head": c.lm_head(False),
    }
    types = _per_layer(c, "layer_types", n, n_mtp, [GLOBAL] * n, any_of(GLOBAL, LOCAL))
    listed = c.data.get("moe_layers_enum")
    c.ignore("moe_layers_enum")
    items = listed.split(",") if isinstance(listed, str) else listed if isinstance(listed, list) else range(3, n)
    sparse = {str(item).strip() for item in items}
    kinds = _per_layer(c, "mlp_layer_types", n, n_mtp, ["sparse" if str(i) in sparse else "dense" for i in range(n)],
                 any_of("dense", "sparse"))  # fmt: skip
    local = c.table("attention_other_setting")
    count = c.size("num_sliding_attention_heads", default=None, null=None)
    if local:
        count = count or local.size("num_attention_heads", default=attention["n_heads"])
        local.require_value(attention["n_kv_heads"], "num_attention_groups")
        local.require_value(attention["d_head"], "head_dim", "true_head_dim")
        local.require_value(LOCAL, "attention_type")
    c.divides(attention["n_kv_heads"], count or attention["n_heads"], c.spelling(*kv_names), "the heads with a window")
    tables = {LAYER_NAMES[kind]: {"positions": _rotary(c, attention["d_head"], kind, types)} for kind in set(types)}
    if count and LOCAL in types:
        tables["local"]["attention"] = {"n_heads": count}
    window = c.size("sliding_window", default=None, null=None)
    axis = c.windows(raw, window if LOCAL in types else None, types, tables)
    return with_kinds(raw, axis, c.dense_where(raw, [kind == "dense" for kind in kinds]))


def _per_layer(c: Config, key: str, n: int, n_mtp: int, default: list[Any], of: Any) -> list[Any]:
    """A list with one item per layer, and optionally one per multi-token-prediction layer."""
    items = c.items(key, of=of, length=None, default=default) or default
    if len(items) not in (n, n + n_mtp):
        c.fault(key, items, f"a list of {n:,} items, one per layer")
        return default
    return items[:n]


def _rotary(c: Config, width: int, kind: str, types: list[str]) -> Raw:
    """Rotary positions of a layer type, from a table per type or, in the published configs, from lists per layer."""
    c.ignore("rope_theta", "partial_rotary_factors", "rope_scaling")
    table = c.data.get("rope_parameters")
    if isinstance(table, dict) and isinstance(table.get(kind), dict):
        return c.rotary(width, kind=kind, names=())
    c.ignore("rope_parameters")
    index, shares, bases = types.index(kind), c.data.get("partial_rotary_factors"), c.data.get("rope_theta")
    share = shares[index] if isinstance(shares, list) and len(shares) > index else 1.0
    base = bases[index] if isinstance(bases, list) and len(bases) > index else bases
    dims = int(width * share) if isinstance(share, int | float) and 0 < share <= 1 else 0
    if dims < 2 or dims % 2:
        c.fault("partial_rotary_factors", shares, "shares that leave an even number of dimensions")
    raw: Raw = {"form": "rotary", "theta": base if isinstance(base, int | float) and base > 0 else 1e4}
    return raw if dims == width else raw | {"rotary_dims": max(1, dims)}
