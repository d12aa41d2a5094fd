"""The Gemma family. Gemma 3n and 4 have per-layer embeddings, and layers that share keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txcalc.errors import ABSENT
from txcalc.num import Num
from txcalc.sources.huggingface.config import GLOBAL, LAYER_NAMES, LOCAL, Config, Raw, check_rope, periodic, with_kinds
from txcalc.sources.huggingface.leaf_list import leaf, matrix, norm_leaf
from txcalc.sources.spec import Wrong, size

READER = "-reader"
NORMED: Raw = {"qk_norm": "head", "v_norm": True, "scale": 1}  # the attention of Gemma 3n and 4


def _gemma(c: Config, raw: Raw, kv: int, act_names: tuple[str, ...], whole: bool, place: str = "pre") -> Raw:
    """GeGLU, norms that multiply by 1 + weight, embedding scaled by √D, heads 256 wide, a tied head."""
    attention = c.heads(raw, kv=kv, d_head=256, whole=whole, attention_bias=False)
    activation = c.activation(*act_names, default="gelu_pytorch_tanh")
    mlp = {"d_ff": c.size("intermediate_size"), "gated": True, "activation": activation}
    norm, embedding = c.rms(offset=True, place=place), {"scale": raw["d_model"] ** 0.5}
    return c.decoder(raw, attention, mlp=mlp, norm=norm, embedding=embedding, tied=True, kind=GLOBAL)


def gemma(c: Config) -> Raw:
    return _gemma(c, c.stack(), 16, ("hidden_act",), whole=False)


def gemma2(c: Config) -> Raw:
    raw = _gemma(c, c.stack(), 4, ("hidden_activation",), whole=True, place="sandwich")
    raw["attention"]["softcap"] = c.real("attn_logit_softcapping", default=50.0)
    raw["head"]["softcap"] = c.real("final_logit_softcapping", default=30.0)
    window = c.size("sliding_window", default=4096, null=None)
    types = c.layer_types(raw["n_layers"], [GLOBAL if i % 2 else LOCAL for i in range(raw["n_layers"])])
    return with_kinds(raw, c.windows(raw, window, types))


def gemma3_text(c: Config) -> Raw:
    raw = _gemma(c, c.stack(), 4, ("hidden_activation",), whole=True, place="sandwich")
    raw["attention"]["qk_norm"] = "head"
    n, period = raw["n_layers"], c.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    window = c.size("sliding_window", default=4096, null=None)
    types = c.layer_types(n, periodic(n, period))
    width = raw["attention"]["d_head"]
    raw["positions"] = c.rotary(width, 1e6, kind=GLOBAL)
    local = c.rotary(width, kind=LOCAL, names=("rope_local_base_freq",))
    return with_kinds(raw, c.windows(raw, window, types, {"local": {"positions": local}}))


def vaultgemma(c: Config) -> Raw:
    raw = _gemma(c, c.stack(), 4, ("hidden_activation",), whole=True)
    n, window = raw["n_layers"], c.size("sliding_window", default=4096, null=None)
    return with_kinds(raw, c.windows(raw, window, c.layer_types(n, [GLOBAL if i % 2 else LOCAL for i in range(n)])))


def _with_shared_kv(c: Config, kinds: Sequence[str], shared: int) -> list[str]:
    """The layer kinds; the last `shared` layers read the keys and values of the last earlier layer of their kind."""
    first = len(kinds) - shared
    missing = sorted(set(kinds) - set(kinds[:first]))
    if shared and missing:
        expected = f"fewer: no earlier layer has keys and values for {' and '.join(missing)} layers"
        c.fault("num_kv_shared_layers", shared, expected)
        return list(kinds)
    return [*kinds[:first], *(kind + READER for kind in kinds[first:])]


def _rotary(c: Config, kind: str, theta: float, width: int, form: str = "default", share: float = 1.0) -> Raw:
    """Rotary positions of one layer type, over the whole head or (proportional) a share of its frequencies. `form` and
    `share` are the class's defaults without rotary parameters."""
    outer = c.table("rope_parameters")
    table = outer.table(kind) if outer and kind in outer else None
    if table:
        check_rope(table)
        form, share = table.data.get("rope_type", "default"), table.real("partial_rotary_factor", default=1.0)
        theta = table.real("rope_theta", default=theta)
    elif outer:
        c.fault(f"rope_parameters.{kind}", ABSENT, "rotary parameters for each layer type")
    for config in (outer, table):
        if config:
            config.ignore(*config.data)
    positions: Raw = {"form": "rotary", "theta": theta}
    if form != "proportional" or share == 1:
        return positions
    dims = 2 * int(share * width // 2)
    if not 0 < dims <= width:
        c.fault(f"rope_parameters.{kind}.partial_rotary_factor", share, "above 0 and at most 1")
        return positions
    return positions | {"rotary_dims": dims, "spread": True}


def _layer_input(c: Config, width: Num, activation: str) -> Raw:
    rows = c.size("vocab_size_per_layer_input", default=262144)
    return {"width": width, "rows": rows, "activation": activation}


def gemma4_unified_text(c: Config) -> Raw:
    """Gemma 4 without experts and per-layer embeddings."""
    return _gemma4(c, c.stack(), window=1024)


def gemma4_text(c: Config) -> Raw:
    mixed = c.flag("enable_moe_block", default=False)
    width = c.count("hidden_size_per_layer_input", default=256)
    return _gemma4(c, c.stack(), 512, width, mixed)


def diffusion_gemma_text(c: Config) -> Raw:
    """Gemma 4's layers with experts as a diffusion model: they read a prompt and refine all tokens of a canvas
    together; the previous canvas passes a feed-forward first."""
    raw = c.stack()
    c.size("num_key_value_heads", default=4)  # the class refuses null
    raw = _gemma4(c, raw, 512, mixed=True, tied=True)
    d, ffn = raw["d_model"], raw["feed_forward"]
    around = [norm_leaf("canvas", d, "rms_norm")]
    around += [matrix(f"canvas_{name}", d, ffn["d_ff"], kind="feed_forward") for name in ("gate", "up")]
    around += [
        leaf("canvas_activation", ffn["activation"], ffn["d_ff"], kind="feed_forward"),
        matrix("canvas_down", ffn["d_ff"], d, kind="feed_forward"),
    ]
    c.note(
        "FLOPs are those of the first pass over a canvas, with bidirectional attention; later passes also multiply its "
        f"probabilities by the embedding, {2 * raw['vocab_size'] * d:,} FLOPs per token"
    )
    return raw | {"around": around}


def _gemma4(c: Config, raw: Raw, window: int, width: int = 0, mixed: bool = False, tied: bool = False) -> Raw:
    """Gemma 4's layers: `window` is the class's default, `width` that of the per-layer embeddings, `mixed` has experts;
    `tied`: values are keys in global layers even if the config does not say so."""
    if c.text("use_bidirectional_attention", default=None) not in (None, "vision"):
        c.require_value("vision", "use_bidirectional_attention", why="only a causal model is supported")
    attention = c.heads(raw, kv=4, d_head=256, attention_bias=False, **NORMED)
    activation = c.activation("hidden_activation", default="gelu_pytorch_tanh")
    d_ff, n = c.size("intermediate_size"), raw["n_layers"]
    parts = ["attention", "feed_forward"]
    norms = c.rms(place="sandwich", scalar=True)
    types = c.layer_types(n, periodic(n, 6))
    types[-1] = GLOBAL  # even if the list differs
    heads, global_heads = _widths(c, types, attention, tied=tied)
    attention |= heads
    raw |= {
        "attention": attention,
        "feed_forward": {"d_ff": d_ff, "gated": True, "activation": activation},
        "norm": norms,
        "positions": _rotary(c, LOCAL, 1e4, attention["d_head"]),
        "embedding": {"scale": raw["d_model"] ** 0.5},
        "head": c.lm_head(tied=True),
    }
    cap = c.real("final_logit_softcapping", default=None)
    if cap is not None and raw["head"].get("form") != "none":
        raw["head"]["softcap"] = cap
    if mixed:
        parts.append("experts")
        norms["joint"] = parts[1:]
        raw["experts"] = c.experts(("num_experts",), ("top_k_experts",), ("moe_intermediate_size",)) | {
            "activation": activation,
            "scoring": "softmax_after",
            "router_norm": True,
            "router_scale": raw["d_model"] ** -0.5,
            "expert_scales": True,
        }
    if width:
        parts.append("layer_input")
        raw["layer_input"] = _layer_input(c, width, activation)
    positions = _rotary(c, GLOBAL, 1e6, global_heads["d_head"], "proportional", 0.25)
    local: Raw = {"window": c.size("sliding_window", default=window)}
    tables: dict[str, Raw] = {
        "local": {"parts": parts, "attention": local},
        "global": {"parts": parts, "attention": global_heads, "positions": positions},
    }
    shared = 0 if tied else c.count("num_kv_shared_layers", default=0)
    doubled = {"feed_forward": {"d_ff": 2 * d_ff}} if not tied and c.flag("use_double_wide_mlp", default=False) else {}
    for kind in ("local", "global"):
        tables[kind + READER] = {**tables[kind], "attention": {**tables[kind]["attention"], "kv_from": kind}, **doubled}
    return with_kinds(raw, (_with_shared_kv(c, [LAYER_NAMES[kind] for kind in types], shared), tables))


def embedding_gemma2_text(c: Config) -> Raw:
    """Gemma 4's layers as an encoder; per-layer embeddings are projections of the token embedding."""
    raw = c.stack()
    d, n = raw["d_model"], raw["n_layers"]
    c.head_of("none")
    c.size("num_key_value_heads", default=2)  # the class refuses null
    attention = c.heads(raw, kv=2, d_head=256, attention_bias=False, **NORMED)
    activation = c.activation("hidden_activation", default="gelu_pytorch_tanh")
    types = c.layer_types(n, periodic(n, c.size("sliding_window_pattern", default=6)))
    types[-1] = GLOBAL  # even if the list differs
    heads, global_heads = _widths(c, types, attention, groups=1)
    width = c.size("hidden_size_per_layer_input", default=512)
    leaves = [
        matrix("down", d, width),
        leaf("gate", activation, width),
        matrix("up", width, d),
        leaf("norm", "rms_norm", d, kind="norm"),
        leaf("sum", "sum", d),
    ]
    raw |= {
        "kind": "encoder",
        "attention": attention | heads,
        "feed_forward": {"d_ff": c.size("intermediate_size"), "gated": True, "activation": activation},
        "norm": c.rms(place="sandwich", scalar=True, without=["pieces"]),
        "embedding": {"scale": d**0.5},
        "pieces": {"leaves": leaves},
        "around": [
            matrix("layer_inputs", d, n * width),
            norm_leaf("layer_inputs", width, "rms_norm", runs=n),
            matrix("projection", d, c.size("embedding_dim", default=768), kind="head"),
        ],
        "head": {"form": "none"},
    }
    parts: Raw = {"parts": ["attention", "feed_forward", "pieces"]}
    local: Raw = {"attention": {"window": c.size("sliding_window", default=512) + 1}}
    positions = _rotary(c, GLOBAL, 1e6, global_heads["d_head"])
    tables: dict[str, Raw] = {
        "local": parts | local | {"positions": _rotary(c, LOCAL, 1e4, heads["d_head"])},
        "global": parts | {"attention": global_heads, "positions": positions},
    }
    return with_kinds(raw, ([LAYER_NAMES[kind] for kind in types], tables))


def _widths(
    c: Config, types: Sequence[str], attention: Raw, groups: int | None = None, tied: bool = False
) -> tuple[Raw, Raw]:
    """Width and number of the key/value heads of local and of global layers, from keys per layer type or per layer.
    `groups` is the default number in global layers; without it, that number may differ only if values are keys."""
    base = {key: attention[key] for key in ("d_head", "n_kv_heads")}
    tied = tied or c.flag("attention_k_eq_v", default=False)
    global_heads: Raw = {"tied_kv": True, "bias": ["q", "k", "o"] if attention["bias"] else False} if tied else {}
    per_layer = c.table("per_layer_config")
    if c.data.get("per_layer_config") == {}:  # transformers writes it if all layers are equal
        c.ignore("num_global_key_value_heads", "global_head_dim")
        return base, global_heads | base
    if per_layer is None and "per_layer_config" in c:  # transformers would give all layers the widths of local ones
        c.fault("per_layer_config", c.data["per_layer_config"], "an object with the widths of layers, or no such key")
    if per_layer is None:
        global_heads |= base | {"d_head": c.size("global_head_dim", default=512)}
        number = c.size("num_global_key_value_heads", default=groups)
        if number and (tied or groups):
            global_heads["n_kv_heads"] = number
        c.divides(global_heads["n_kv_heads"], attention["n_heads"], "num_global_key_value_heads", "num_attention_heads")
        return base, global_heads
    c.ignore("num_global_key_value_heads", "global_head_dim")
    layers = []
    names = {int(key): key for key in per_layer.data if key.isdecimal() and len(key) < 7}
    for i in range(len(types)):
        table, heads = per_layer.table(names.get(i, "")), dict(base)
        if table:
            heads["d_head"] = table.size("head_dim", default=base["d_head"])
            heads["n_kv_heads"] = table.size("num_key_value_heads", default=base["n_kv_heads"])
            table.divides(heads["n_kv_heads"], attention["n_heads"], "num_key_value_heads", "num_attention_heads")
        layers.append(heads)
    for kind, sizes in zip(types, layers, strict=True):
        if sizes != layers[types.index(kind)]:
            c.fault("per_layer_config", per_layer.data, f"the same sizes in all layers of type {kind}")
    local_heads = layers[types.index(LOCAL)] if LOCAL in types else base
    return local_heads, global_heads | layers[types.index(GLOBAL)]


def gemma3n_text(c: Config) -> Raw:
    raw = c.stack()
    n = raw["n_layers"]
    attention = c.heads(raw, kv=2, d_head=256, whole=True, attention_bias=False, **NORMED)
    activation = c.activation("hidden_activation", default="gelu_pytorch_tanh")
    raw |= {
        "streams": c.size("altup_num_inputs", default=4),
        "active_stream": c.count("altup_active_idx", default=0),
        "laurel": c.size("laurel_rank", default=64),
        "attention": attention,
        "feed_forward": {"gated": True, "activation": activation},
        "layer_input": _layer_input(c, c.size("hidden_size_per_layer_input", default=256), activation),
        "norm": c.rms(place="sandwich"),
        "embedding": {"scale": raw["d_model"] ** 0.5},
        "head": c.lm_head(tied=True),
    }
    cap = c.real("final_logit_softcapping", default=30.0)
    if raw["head"].get("form") != "none":
        raw["head"]["softcap"] = cap
    window = c.size("sliding_window", default=512)
    bases = (c.real(key, default=base) for key, base in (("rope_local_base_freq", 1e4), ("rope_theta", 1e6)))
    positions = [{"form": "rotary", "theta": base} for base in bases]
    if "rope_parameters" in c:
        positions = [_rotary(c, kind, 0.0, 0) for kind in (LOCAL, GLOBAL)]
    tables: dict[str, Raw] = {
        "local": {"attention": {"window": window}, "positions": positions[0]},
        "global": {"attention": {}, "positions": positions[1]},
    }
    types = c.layer_types(n, periodic(n, 5))
    kinds = _with_shared_kv(c, [LAYER_NAMES[kind] for kind in types], c.count("num_kv_shared_layers", default=15))
    for kind in ("local", "global"):
        tables[kind + READER] = {**tables[kind], "attention": {**tables[kind]["attention"], "kv_from": kind}}
    return with_kinds(raw, _by_feed_forward(kinds, tables, _feed_forwards(c, n)))


def _feed_forwards(c: Config, n: int) -> list[Raw]:
    """The width and sparsity of each layer's feed-forward."""
    name = "intermediate_size"
    listed = isinstance(c.data.get(name), list)
    widths = c.items(name, of=size, length=n, default=None) if listed else [c.size(name)] * n
    widths = widths or [1] * n  # after a fault
    first = 10 if n > 10 else 0
    default = [0.95] * first + [0.0] * (n - first)
    sparsities = c.items("activation_sparsity_pattern", of=_sparsity, length=n, default=default) or default
    return [
        {"d_ff": width} | ({"sparsity": sparsity} if sparsity else {})
        for width, sparsity in zip(widths, sparsities, strict=True)
    ]


def _sparsity(value: object) -> float:
    if type(value) is not float or not 0 <= value < 1:
        raise Wrong("a list of shares, from 0.0 to less than 1.0")
    return value


def _by_feed_forward(
    kinds: Sequence[str], tables: Mapping[str, Raw], ffns: Sequence[Raw]
) -> tuple[list[str], dict[str, Raw]]:
    """The layer kinds, with a variant for each feed-forward that a kind has: local, local-2, …"""
    variants: dict[str, list[Raw]] = {}
    names = []
    for kind, ffn in zip(kinds, ffns, strict=True):
        of_kind = variants.setdefault(kind, [])
        if ffn not in of_kind:
            of_kind.append(ffn)
        names.append(kind if ffn == of_kind[0] else f"{kind}-{of_kind.index(ffn) + 1}")
    last = dict(zip(kinds, names, strict=True))  # the last layer of a kind shares its keys and values
    by_name = {}
    for kind, name, ffn in zip(kinds, names, ffns, strict=True):
        table: Raw = {**tables[kind], "feed_forward": ffn}
        if "kv_from" in table["attention"]:
            table["attention"] = table["attention"] | {"kv_from": last[table["attention"]["kv_from"]]}
        by_name[name] = table
    return names, by_name
