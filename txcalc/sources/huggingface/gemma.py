"""The Gemma family. Layers of Gemma-3n and 4 read vectors of their own and lend one another their keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txcalc.errors import ABSENT
from txcalc.num import Num
from txcalc.sources.huggingface.config import GLOBAL, LAYER_NAMES, LOCAL, Config, Raw, check_rope, layered, periodic
from txcalc.sources.huggingface.leaf_list import leaf, matrix, norm_leaf
from txcalc.sources.spec import Wrong, size

READER = "-reader"
NORMED: Raw = {"qk_norm": "head", "v_norm": True, "scale": 1}  # of the heads of Gemma-3n and 4


def _gemma(c: Config, raw: Raw, kv: int, act_names: tuple[str, ...], whole: bool, place: str = "pre") -> Raw:
    """GeGLU, norms that multiply by 1 + weight, embedding scaled by √D, head of 256, tied."""
    attention = c.heads(raw, kv=kv, d_head=256, whole=whole, attention_bias=False)
    activation = c.activation(*act_names, default="gelu_pytorch_tanh")
    mlp = {"d_ff": c.size("intermediate_size"), "gated": True, "activation": activation}
    norm, first = c.rms(offset=True, place=place), {"scale": raw["d_model"] ** 0.5}
    return c.decoder(raw, attention, mlp=mlp, norm=norm, embedding=first, tied=True, kind=GLOBAL)


def gemma(c: Config) -> Raw:
    return _gemma(c, c.stack(), 16, ("hidden_act",), whole=False)


def gemma2(c: Config) -> Raw:
    raw = _gemma(c, c.stack(), 4, ("hidden_activation",), whole=True, place="sandwich")
    raw["attention"]["softcap"] = c.real("attn_logit_softcapping", default=50.0)
    raw["head"]["softcap"] = c.real("final_logit_softcapping", default=30.0)
    window = c.size("sliding_window", default=4096, null=None)
    types = c.layer_types(raw["n_layers"], [GLOBAL if i % 2 else LOCAL for i in range(raw["n_layers"])])
    return layered(raw, c.windows(raw, window, types))


def gemma3_text(c: Config) -> Raw:
    raw = _gemma(c, c.stack(), 4, ("hidden_activation",), whole=True, place="sandwich")
    raw["attention"]["qk_norm"] = "head"
    n, period = raw["n_layers"], c.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    window = c.size("sliding_window", default=4096, null=None)
    types = c.layer_types(n, periodic(n, period))
    width = raw["attention"]["d_head"]
    raw["positions"] = c.rotary(width, 1e6, kind=GLOBAL)
    local = c.rotary(width, kind=LOCAL, names=("rope_local_base_freq",))
    return layered(raw, c.windows(raw, window, types, {"local": {"positions": local}}))


def vaultgemma(c: Config) -> Raw:
    raw = _gemma(c, c.stack(), 4, ("hidden_activation",), whole=True)
    n, window = raw["n_layers"], c.size("sliding_window", default=4096, null=None)
    return layered(raw, c.windows(raw, window, c.layer_types(n, [GLOBAL if i % 2 else LOCAL for i in range(n)])))


def _lenders(c: Config, kinds: Sequence[str], shared: int) -> list[str]:
    """The layer kinds, where the last `shared` layers read keys and values of the last layer before of their kind."""
    first = len(kinds) - shared
    missing = sorted(set(kinds) - set(kinds[:first]))
    if shared and missing:
        expected = f"fewer: no layer before these has keys and values for the {' and '.join(missing)} ones"
        c.fault("num_kv_shared_layers", shared, expected)
        return list(kinds)
    return [*kinds[:first], *(kind + READER for kind in kinds[first:])]


def _places(c: Config, kind: str, theta: float, width: int, form: str = "default", share: float = 1.0) -> Raw:
    """Rotary positions of one kind of layers: of the whole head, or, proportional, of a share of its angles. `form` and
    `share` are the class's where the config has no rotary parameters."""
    outer = c.table("rope_parameters")
    table = outer.table(kind) if outer and kind in outer else None
    if table:
        check_rope(table)
        form, share = table.data.get("rope_type", "default"), table.real("partial_rotary_factor", default=1.0)
        theta = table.real("rope_theta", default=theta)
    elif outer:
        c.fault(f"rope_parameters.{kind}", ABSENT, "rotary parameters for each kind of layers")
    for config in (outer, table):
        if config:
            config.ignore(*config.data)
    places: Raw = {"form": "rotary", "theta": theta}
    if form != "proportional" or share == 1:
        return places
    dims = 2 * int(share * width // 2)
    if not 0 < dims <= width:
        c.fault(f"rope_parameters.{kind}.partial_rotary_factor", share, "above 0 and at most 1")
        return places
    return places | {"rotary_dims": dims, "spread": True}


def _layer_input(c: Config, width: Num, activation: str) -> Raw:
    rows = c.size("vocab_size_per_layer_input", default=262144)
    return {"width": width, "rows": rows, "activation": activation}


def gemma4_unified_text(c: Config) -> Raw:
    """Gemma-4 without experts and without layers' own inputs."""
    return _gemma4(c, c.stack(), window=1024)


def gemma4_text(c: Config) -> Raw:
    mixed = c.flag("enable_moe_block", default=False)
    width = c.count("hidden_size_per_layer_input", default=256)
    return _gemma4(c, c.stack(), 512, width, mixed)


def diffusion_gemma_text(c: Config) -> Raw:
    """Gemma-4's layers with experts, which read a text and then refine all tokens of a canvas together; what the canvas
    was before passes a feed-forward first."""
    raw = c.stack()
    c.size("num_key_value_heads", default=4)  # null is no number here
    raw = _gemma4(c, raw, 512, mixed=True, tied=True)
    d, ffn = raw["d_model"], raw["feed_forward"]
    around = [norm_leaf("canvas", d, "rms_norm")]
    around += [matrix(f"canvas_{name}", d, ffn["d_ff"], kind="feed_forward") for name in ("gate", "up")]
    around += [
        leaf("canvas_activation", ffn["activation"], ffn["d_ff"], kind="feed_forward"),
        matrix("canvas_down", ffn["d_ff"], d, kind="feed_forward"),
    ]
    c.note(
        "what is counted is the first pass over a canvas, whose tokens see each other; later passes also multiply its "
        f"probabilities by the embedding, {2 * raw['vocab_size'] * d:,} FLOPs per token"
    )
    return raw | {"around": around}


def _gemma4(c: Config, raw: Raw, window: int, width: int = 0, mixed: bool = False, tied: bool = False) -> Raw:
    """Layers by kind: `window` is the class's default, `width` that of layers' own inputs, `mixed` has experts, and of
    `tied` ones values are keys without the config's saying so."""
    if c.text("use_bidirectional_attention", default=None) not in (None, "vision"):
        c.require_value("vision", "use_bidirectional_attention", why="only a causal model is supported")
    attention = c.heads(raw, kv=4, d_head=256, attention_bias=False, **NORMED)
    activation = c.activation("hidden_activation", default="gelu_pytorch_tanh")
    d_ff, n = c.size("intermediate_size"), raw["n_layers"]
    parts = ["attention", "feed_forward"]
    norms = c.rms(place="sandwich", scalar=True)
    types = c.layer_types(n, periodic(n, 6))
    types[-1] = GLOBAL  # whatever the list says
    heads, wide = _widths(c, types, attention, tied=tied)
    attention |= heads
    raw |= {
        "attention": attention,
        "feed_forward": {"d_ff": d_ff, "gated": True, "activation": activation},
        "norm": norms,
        "positions": _places(c, LOCAL, 1e4, attention["d_head"]),
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
    places = _places(c, GLOBAL, 1e6, wide["d_head"], "proportional", 0.25)
    local: Raw = {"window": c.size("sliding_window", default=window)}
    over: dict[str, Raw] = {
        "local": {"parts": parts, "attention": local},
        "global": {"parts": parts, "attention": wide, "positions": places},
    }
    shared = 0 if tied else c.count("num_kv_shared_layers", default=0)
    wider = {"feed_forward": {"d_ff": 2 * d_ff}} if not tied and c.flag("use_double_wide_mlp", default=False) else {}
    for kind in ("local", "global"):
        over[kind + READER] = {**over[kind], "attention": {**over[kind]["attention"], "kv_from": kind}, **wider}
    kinds = _lenders(c, [LAYER_NAMES[kind] for kind in types], shared)
    return layered(raw, (kinds, over))


def embedding_gemma2_text(c: Config) -> Raw:
    """Gemma-4's layers as an encoder, whose layers' own inputs are made of the embeddings alone."""
    raw = c.stack()
    d, n = raw["d_model"], raw["n_layers"]
    c.head_of("none")
    c.size("num_key_value_heads", default=2)  # null is no number here
    attention = c.heads(raw, kv=2, d_head=256, attention_bias=False, **NORMED)
    activation = c.activation("hidden_activation", default="gelu_pytorch_tanh")
    types = c.layer_types(n, periodic(n, c.size("sliding_window_pattern", default=6)))
    types[-1] = GLOBAL  # whatever the list says
    heads, wide = _widths(c, types, attention, groups=1)
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
    over: dict[str, Raw] = {
        "local": parts | local | {"positions": _places(c, LOCAL, 1e4, heads["d_head"])},
        "global": parts | {"attention": wide, "positions": _places(c, GLOBAL, 1e6, wide["d_head"])},
    }
    return layered(raw, ([LAYER_NAMES[kind] for kind in types], over))


def _widths(
    c: Config, types: Sequence[str], attention: Raw, groups: int | None = None, tied: bool = False
) -> tuple[Raw, Raw]:
    """Width and number of the key/value heads of local and of global layers: by kind, or written out for each layer.
    `groups` is how many global layers have by default, where that is not for those with tied values alone."""
    base = {key: attention[key] for key in ("d_head", "n_kv_heads")}
    tied = tied or c.flag("attention_k_eq_v", default=False)
    wide: Raw = {"tied_kv": True, "bias": ["q", "k", "o"] if attention["bias"] else False} if tied else {}
    per_layer = c.table("per_layer_config")
    if c.data.get("per_layer_config") == {}:  # as transformers writes it where all layers are alike
        c.ignore("num_global_key_value_heads", "global_head_dim")
        return base, wide | base
    if per_layer is None and "per_layer_config" in c:  # then transformers gives all layers the widths of local ones
        c.fault("per_layer_config", c.data["per_layer_config"], "an object with the widths of layers, or no such key")
    if per_layer is None:
        wide |= base | {"d_head": c.size("global_head_dim", default=512)}
        several = c.size("num_global_key_value_heads", default=groups)
        if several and (tied or groups):
            wide["n_kv_heads"] = several
        c.divides(wide["n_kv_heads"], attention["n_heads"], "num_global_key_value_heads", "num_attention_heads")
        return base, wide
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
            c.fault("per_layer_config", per_layer.data, f"the same in all layers of {kind}")
    first = layers[types.index(LOCAL)] if LOCAL in types else base
    return first, wide | layers[types.index(GLOBAL)]


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
    outer = "rope_parameters" in c
    bases = (c.real(key, default=base) for key, base in (("rope_local_base_freq", 1e4), ("rope_theta", 1e6)))
    local, wide = ({"form": "rotary", "theta": base} for base in bases)
    if outer:
        local, wide = (_places(c, kind, 0.0, 0) for kind in (LOCAL, GLOBAL))
    over: dict[str, Raw] = {
        "local": {"attention": {"window": window}, "positions": local},
        "global": {"attention": {}, "positions": wide},
    }
    types = c.layer_types(n, periodic(n, 5))
    kinds = _lenders(c, [LAYER_NAMES[kind] for kind in types], c.count("num_kv_shared_layers", default=15))
    for kind in ("local", "global"):
        over[kind + READER] = {**over[kind], "attention": {**over[kind]["attention"], "kv_from": kind}}
    return layered(raw, _by_width(kinds, over, _feed_forwards(c, n)))


def _feed_forwards(c: Config, n: int) -> list[Raw]:
    """Width and sparsity of the feed-forward, layer by layer."""
    name = "intermediate_size"
    listed = isinstance(c.data.get(name), list)
    widths = c.items(name, of=size, length=n, default=None) if listed else [c.size(name)] * n
    widths = widths or [1] * n  # faulty, and said
    first = 10 if n > 10 else 0
    usual = [0.95] * first + [0.0] * (n - first)
    sparsities = c.items("activation_sparsity_pattern", of=_share, length=n, default=usual) or usual
    return [
        {"d_ff": width} | ({"sparsity": sparsity} if sparsity else {})
        for width, sparsity in zip(widths, sparsities, strict=True)
    ]


def _share(value: object) -> float:
    if type(value) is not float or not 0 <= value < 1:
        raise Wrong("a list of shares, from 0.0 to less than 1.0")
    return value


def _by_width(kinds: Sequence[str], over: Mapping[str, Raw], widths: Sequence[Raw]) -> tuple[list[str], dict[str, Raw]]:
    """The axis of layer kinds, each in as many variants as its layers have feed-forwards: local, local-2, …"""
    variants: dict[str, list[Raw]] = {}
    names = []
    for kind, width in zip(kinds, widths, strict=True):
        widths_of_kind = variants.setdefault(kind, [])
        if width not in widths_of_kind:
            widths_of_kind.append(width)
        names.append(kind if width == widths_of_kind[0] else f"{kind}-{widths_of_kind.index(width) + 1}")
    last = dict(zip(kinds, names, strict=True))  # who lends is the last of its kind
    tables = {}
    for kind, name, width in zip(kinds, names, widths, strict=True):
        table: Raw = {**over[kind], "feed_forward": width}
        if "kv_from" in table["attention"]:
            table["attention"] = table["attention"] | {"kv_from": last[table["attention"]["kv_from"]]}
        tables[name] = table
    return names, tables
