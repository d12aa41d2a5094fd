"""Decoders with latent attention (MLA), most of them with experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import GLOBAL, LOCAL, ROUTED, TOP, WIDTH, Config, Raw, check_rope, with_kinds
from txcalc.sources.huggingface.keys import any_of
from txcalc.sources.huggingface.leaf_list import leaf, matrix


def _latent_decoder(c: Config, raw: Raw, latent: Raw, tied: bool = False, eps: float = 1e-6) -> Raw:
    interleaved = c.flag("rope_interleave", default=True)
    return raw | {
        "latent": latent,
        "norm": c.rms(eps=eps),
        "positions": {"form": "rotary", "theta": c.rotary(latent["d_rope"])["theta"], "interleaved": interleaved},
        "head": c.lm_head(tied),
    }


def _indexer(c: Config, heads: int, latent: Raw, direct: bool = False) -> Raw:
    """MLA with DeepSeek's indexer, which selects keys; `direct`: queries need not be low-rank."""
    if "q_rank" not in latent and not direct:
        c.fault("q_lora_rank", c.data.get("q_lora_rank", ABSENT), "a whole number", "the index reads low-rank queries")
    index = {
        "index_heads": c.size("index_n_heads", default=heads),
        "index_width": c.size("index_head_dim", default=128),
        "index_top_k": c.size("index_topk", default=2048),
    }
    if index["index_width"] < latent["d_rope"]:
        c.fault("index_head_dim", index["index_width"], f"at least {latent['d_rope']}, the rotary width")
    c.note(
        f"its index selects {index['index_top_k']:,} keys per query: dense FLOPs of attention count every key "
        "(--attention masked counts the selected ones)"
    )
    return latent | index


def _indexed_decoder(
    c: Config,
    raw: Raw,
    latent: Raw,
    heads: int,
    eps: float = 1e-6,
    axes: Sequence[Any] = (),
    first: int | None = None,
    number: int = 256,
) -> Raw:
    """DeepSeek-V3.2 and models with its layers; `first` is the number of dense layers, `number` the default number of
    experts."""
    c.items("layer_types", of=any_of("indexed_attention"), length=None, default=None)
    raw = _latent_decoder(c, raw, _indexer(c, heads, latent), eps=eps)
    raw["experts"] = c.with_shared(c.experts(ROUTED, TOP, WIDTH, number, 8), "n_shared_experts", default=1)
    raw["experts"]["scoring"] = "sigmoid"
    c.note_mtp_layers()
    listed = c.data.get("mlp_layer_types") is not None
    if first is None:
        first = 0 if listed else c.count("first_k_dense_replace", default=3)
    return with_kinds(raw, *axes, c.typed_layers(raw, first))


def longcat_flash(c: Config) -> Raw:
    """Pairs of layers with experts in parallel to the first feed-forward of each pair; some experts are identities."""
    raw = c.stack(n_layers=("num_layers",))
    raw["n_layers"] *= 2
    c.require_value(raw["n_layers"], "num_hidden_layers", why="the class computes it")
    raw = _latent_decoder(c, raw, c.mla(1536, 512, 128, 64, 128), eps=1e-5)
    c.note_mtp_layers()
    mixed = c.experts(("n_routed_experts", "num_local_experts"), ("moe_topk", "num_experts_per_tok"),
                    ("expert_ffn_hidden_size", "moe_intermediate_size"), 512, 12)  # fmt: skip
    mixed |= {
        "router_bias": c.flag("router_bias", default=False),
        "scale": c.real("routed_scaling_factor", default=6.0),
    }
    mixed["n_idle"] = idle = c.count("zero_expert_num", default=256, null=0)
    top, number = mixed["top_k"], mixed["n_experts"]
    if idle:
        c.note(
            f"a token uses {max(0, top - idle)} to {top} experts, {top * number / (number + idle):.3g} on average with "
            f"uniform routing: FLOPs count {top} (--set k=… changes it); weights of the {idle:,} identity experts, "
            "which only transformers' class has, are not counted"
        )
    raw |= {"experts": mixed, "feed_forward": c.gated_mlp(c.spelling("ffn_hidden_size", "intermediate_size"))}
    both = {"parts": ["attention", "feed_forward", "experts"], "norm": {"without": ["experts"]}}
    order = ["both", "alone"] * (raw["n_layers"] // 2)
    return with_kinds(raw, (order, {"both": both, "alone": {"parts": ["attention", "feed_forward"]}}))


def deepseek_v32(c: Config) -> Raw:
    raw = c.stack()
    return _indexed_decoder(c, raw, c.mla(1536, 512, 128, 64, 128), heads=64)


def axk2(c: Config) -> Raw:
    """DeepSeek-V3.2 with low-rank gates on norms and gates on the output of attention. One matrix computes these gates
    and the queries, and reads the latent before and after its norm."""
    raw, latent = c.stack(), c.mla(384, 128, 64, 32, 64)
    rank, d, h = c.size("gated_norm_rank", default=16), raw["d_model"], latent["n_heads"]
    if "head_dim" in c:
        c.require_value(latent["d_rope"], "head_dim", why="transformers' axk2 uses this key for the rotary width")
    first = 0 if c.data.get("mlp_layer_types") is not None else c.count("first_k_dense_replace", default=1)
    raw = _indexed_decoder(c, raw, latent, heads=16, first=first, number=128)
    d_q, d_v = latent["d_nope"] + latent["d_rope"], latent["d_v"]
    gates = [matrix("gates", latent.get("q_rank", 1), h * (d_q + 2 * d_v), kind="attention")]
    gates.append(leaf("gates_sigmoid", "sigmoid", h * d_v, kind="attention"))
    for table in raw["layer"].values():
        leaves = list(gates)
        for name in ("attention_norm", "experts_norm")[: 1 + ("experts" in table["parts"])]:
            gate = [matrix("down", d, rank), leaf("silu", "silu", rank)]
            gate += [matrix("up", rank, d), leaf("sigmoid", "sigmoid", d)]
            leaves += [{**item, "name": f"{name}_{item['name']}", "kind": "norm"} for item in gate]
        table |= {"parts": ["pieces", *table["parts"]], "pieces": {"leaves": leaves}}
    raw["norm"]["without"] = ["pieces"]
    return raw


def glm_moe_dsa(c: Config) -> Raw:
    """DeepSeek-V3.2 with adjacent pairs rotated in the index, too; layers may share an earlier layer's index."""
    raw = c.stack()
    latent = c.mla(2048, 512, 192, 64, 256) | {"index_interleaved": True}
    return _indexed_decoder(c, raw, latent, heads=32, eps=1e-5, axes=[_indexers(c, raw, _pattern(c, raw["n_layers"]))])


def _pattern(c: Config, n: int) -> list[str]:
    """The indexer type of each layer by GLM's keys; a list of `indexer_types` replaces them."""
    pattern = c.data.get("index_topk_pattern")
    c.ignore("index_topk_pattern")
    if "indexer_types" in c and c.data["indexer_types"] is not None:
        c.ignore("index_topk_freq", "index_skip_topk_offset")
        return ["full"] * n
    period, offset = c.size("index_topk_freq", default=1), c.count("index_skip_topk_offset", default=2)
    default = ["shared" if max(i - offset + 1, 0) % period else "full" for i in range(n)]
    if pattern is not None:
        letters = pattern if isinstance(pattern, str | list) else ()
        default = [{"F": "full", "S": "shared"}.get(str(letter), str(letter)) for letter in letters]
        if len(default) != n or not set(default) <= {"full", "shared"}:
            c.fault("index_topk_pattern", pattern, f"{n:,} letters F or S, one per layer")
            default = ["full"] * n
    return default


def mistral_large4_text(c: Config) -> Raw:
    """Sparse latent attention without low-rank queries, which are scaled by the log of their position; every fourth
    layer has no rotary positions."""
    raw = c.stack()
    n = raw["n_layers"]
    latent = c.mla(None, 512, 64, 64, 128)
    d_nope, d_rope = latent.pop("d_nope"), latent.pop("d_rope")
    raw = _latent_decoder(c, raw, latent | {"d_rope": d_rope}, eps=1e-5)
    c.items("layer_types", of=any_of("indexed_attention"), length=None, default=None)
    raw["latent"] = _indexer(c, 32, raw["latent"], direct=True) | {"tempered": True, "index_interleaved": True}
    del raw["latent"]["d_rope"]
    raw["experts"] = c.with_shared(c.experts(ROUTED, TOP, WIDTH, 128, 4), "n_shared_experts", default=1, groups=(1, 1))
    raw["head"]["softcap"] = c.real("final_logit_softcapping", default=30.0)
    sources = c.data.get("kv_source_layers")
    c.ignore("kv_source_layers")
    if sources is not None and sources != list(range(n)):
        c.fault("kv_source_layers", sources, "the index of each layer", "shared latents are not supported")
    interval = c.size("no_rope_layer_interval", default=4)
    c.ignore("no_rope_layer_interval")
    flags = c.items("no_rope_layers", of=any_of(0, 1), length=None, default=None)
    if flags is None:
        flags = [int((i + 1) % interval != 0) for i in range(n)]
    elif len(flags) < n:
        c.fault("no_rope_layers", flags, f"a list of {n:,} items, one per layer")
        flags = [1] * n
    rotated = {
        "rotary": {"latent": {"d_nope": d_nope, "d_rope": d_rope}},
        "unrotated": {"latent": {"d_nope": d_nope + d_rope, "index_interleaved": False}, "positions": {"form": "none"}},
    }
    kinds = ["rotary" if on else "unrotated" for on in flags[:n]]
    first = c.count("first_k_dense_replace", default=1)
    axes = (kinds, rotated), _indexers(c, raw, _pattern(c, n)), c.typed_layers(raw, first)
    return with_kinds(raw, *axes)


def dots3_note_text(c: Config) -> Raw:
    """Sparse latent attention in some layers, latent attention of other sizes with a window in the others; a norm of
    the rotary keys, and a gate per head."""
    raw = c.stack()
    n, latent = raw["n_layers"], c.mla(1024, 512, 128, 64, 128)
    dsa = c.flag("use_dsa", default=None if "per_layer_config" in c else True)
    types = _dots_types(c, n, dsa)
    raw = _latent_decoder(c, raw, latent | {"k_norm": True, "gate": "head"}, eps=1e-5)
    shared = c.size("n_shared_experts", default=1)
    width = c.size("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size", default=1536)
    raw["experts"] = c.with_shared(c.experts(ROUTED, TOP, WIDTH, 256, 8), groups=(1, 1))
    raw["experts"] |= {"d_ff_shared": shared * width, "n_shared": 1, "scoring": "sigmoid"}
    tables: dict[str, Raw] = {"full": {}}
    if INDEXED in types:
        index = _indexer(c, 64, latent)
        tables["indexed"] = {"latent": {k: index[k] for k in index if k not in latent} | {"index_interleaved": True}}
    local = _local_latent(c, latent, [i for i, kind in enumerate(types) if kind == LOCAL])
    local["window"] = c.size("sliding_window", "sliding_window_size", default=512, null=512)
    tables["local"] = {"latent": local}
    kinds = [{INDEXED: "indexed", LOCAL: "local", GLOBAL: "full"}[kind] for kind in types]
    return with_kinds(raw, (kinds, tables), c.typed_layers(raw, _dense_layers(c, n)))


INDEXED = "indexed_attention"
# Sizes of layers with a window: by the key of published configs, the class's default, and the key of `latent`.
_LOCAL_SIZES = {"num_attention_heads": (64, "n_heads"), "q_lora_rank": (1024, "q_rank"), "v_head_dim": (128, "d_v"),
                "kv_lora_rank": (1024, "kv_rank"), "qk_nope_head_dim": (192, "d_nope")}  # fmt: skip


def _dots_types(c: Config, n: int, dsa: bool | None) -> list[str]:
    """The type of each layer; `dsa` says whether layers without a window have an index."""
    windows, full = c.flag("use_sliding_window", default=True), GLOBAL if dsa is False else INDEXED
    default = [full if not windows or i < 2 or i % 4 == 1 else LOCAL for i in range(n)]
    types = c.layer_types(n, default, (LOCAL, GLOBAL, INDEXED))
    return types if dsa is None else [kind if kind == LOCAL else full for kind in types]


def _local_latent(c: Config, latent: Raw, indexes: list[int]) -> Raw:
    """The latents of layers with a window (`indexes`): in separate keys, or in a table for each layer, all equal."""
    per_layer = c.data.get("per_layer_config")
    c.ignore("per_layer_config", "swa_num_key_value_heads")
    if per_layer is None:
        local = {name: c.size(f"swa_{key}", default=size) for key, (size, name) in _LOCAL_SIZES.items()}
        c.require_value(local["n_heads"], "swa_num_key_value_heads", why="the latent is expanded for all heads")
        width = c.size("swa_head_dim", default=256)
        local["d_rope"] = c.size("swa_qk_rope_head_dim", default=max(1, width - local["d_nope"]))
        if local["d_rope"] + local["d_nope"] != width:
            c.fault("swa_head_dim", width, "swa_qk_nope_head_dim + swa_qk_rope_head_dim")
        c.multiple("swa_qk_rope_head_dim", local["d_rope"], 2)
    else:
        tables = per_layer if isinstance(per_layer, Mapping) else {}
        widths = [item for item in tables.values() if isinstance(item, Mapping) and item == next(iter(tables.values()))]
        complete = sorted(str(key).lstrip("0") or "0" for key in tables) == sorted(map(str, indexes))
        if not complete or len(widths) < len(tables):
            c.fault("per_layer_config", per_layer, "the same table for every layer with a window, and for no other")
        inner = Config(widths[0] if widths else {}, c.model_type, "per_layer_config.", c)
        local = {name: inner.size(key, default=latent.get(name)) for key, (_, name) in _LOCAL_SIZES.items()}
        inner.require_value(local["n_heads"], "num_key_value_heads", why="the latent is expanded for all heads")
        local["d_rope"] = inner.size("qk_rope_head_dim", default=latent["d_rope"])
        inner.require_value(local["d_rope"] + local["d_nope"], "head_dim", why="the sum of both parts of a head")
        inner.multiple("qk_rope_head_dim", local["d_rope"], 2)
    return local


def _indexers(c: Config, raw: Raw, default: list[str]) -> tuple[list[str], dict[str, Raw]]:
    """`indexer_types`: layers with an index ("full"), and layers that use an earlier layer's ("shared")."""
    types = c.items("indexer_types", of=any_of("full", "shared"), length=raw["n_layers"], default=default) or default
    if types[0] == "shared":
        c.fault("indexer_types", types[:2], '"full" first', "there is no earlier index to share")
    return types, {"full": {}, "shared": {"latent": {"index_shared": True}}}


def hy_v4(c: Config) -> Raw:
    """GLM's sparse latent attention with gates and sinks, and hyper-connections without a matrix."""
    raw = c.stack()
    n = raw["n_layers"]
    latent = c.mla(1536, 512, 192, 64, 256) | {"gate": "element", "sinks": True}
    raw["hyper"] = c.size("hc_mult", default=4)
    default = ["full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(n)]
    axes = [_indexers(c, raw, default)]
    return _indexed_decoder(c, raw, latent, heads=16, eps=1e-5, axes=axes, first=1)


def axk1(c: Config) -> Raw:
    """DeepSeek-V3 with a norm after the experts. Layers with experts: a list, or a first layer and a period."""
    raw = c.stack()
    raw = _latent_decoder(c, raw, c.mla(1536, 512, 128, 64, 128))
    if "q_rank" not in raw["latent"]:
        why = "transformers' axk1 always has low-rank queries"
        c.fault("q_lora_rank", c.data.get("q_lora_rank"), "a whole number", why)
    raw["experts"] = c.with_shared(c.experts(ROUTED, TOP, WIDTH, 192, 8), "n_shared_experts", default=1, groups=(8, 4))
    raw["experts"]["scoring"] = "sigmoid"
    raw["norm"]["after"] = ["experts"]
    c.require_value(raw["latent"]["d_rope"], "head_dim", why="transformers' axk1 uses this key for the rotary width")
    c.note_mtp_layers()
    return with_kinds(raw, c.typed_layers(raw, _dense_layers(c, raw["n_layers"])))


def _dense_layers(c: Config, n_layers: int) -> list[bool]:
    """Whether each layer is dense, by the keys that are older than `mlp_layer_types`."""
    if c.data.get("mlp_layer_types") is not None:
        c.ignore("first_k_dense_replace", "moe_layer_freq")
        return [False] * n_layers
    first = c.count("first_k_dense_replace", default=1) if "first_k_dense_replace" in c else 1
    period = c.size("moe_layer_freq", default=1) if "moe_layer_freq" in c else 1
    return [i < first or i % period != 0 for i in range(n_layers)]


def minicpm3(c: Config) -> Raw:
    raw = c.stack()
    n_heads = c.size("num_attention_heads")
    c.divides(n_heads, raw["d_model"], "num_attention_heads", "hidden_size")
    raw = _latent_decoder(c, raw, c.mla(768, 256, 64, 32, max(1, raw["d_model"] // n_heads)), tied=True, eps=1e-5)
    return raw | {"feed_forward": c.gated_mlp()}


WINDOW, SELECTED, POOLED = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
RATES = {SELECTED: 4, POOLED: 128}


def deepseek_v4(c: Config) -> Raw:
    """Attention to a window and to compressed entries, at one of two rates; an index selects the entries of the lower
    rate. Hyper-connections; experts in every layer, in the first ones chosen by the token's hash."""
    raw = c.stack()
    n = raw["n_layers"]
    drafting = [key for key in c.data if key.startswith("dspark_")]
    c.ignore(*drafting)
    if drafting:
        c.note(f"the draft model in its checkpoint ({', '.join(drafting[:4])}) is not counted")
    width = c.size("head_dim", default=512)
    heads = c.size("num_attention_heads", default=64)
    share = c.real("partial_rotary_factor", default=None)
    d_rope = int(width * share) if share is not None else c.size("qk_rope_head_dim", default=width * 64 // 512)
    if not 0 < d_rope <= width or d_rope % 2:
        c.fault("qk_rope_head_dim", d_rope, f"an even number up to head_dim = {width:,}")
    for name in ("rope_scaling", "rope_parameters"):
        if table := c.table(name):
            table.keys_read.update(table.data)
            check_rope(table)
    groups = c.size("o_groups", default=8)
    c.divides(groups, heads, "o_groups", "num_attention_heads")
    mixed = c.experts(ROUTED, TOP, (*WIDTH, "intermediate_size"), 256, 6, n_shared=1, scoring="sigmoid")
    c.items("mlp_layer_types", of=any_of("hash_moe", "moe"), length=n, default=None)
    c.note_mtp_layers()
    rates = _rates(c)
    index = {
        "overlap": True,
        "index_heads": c.size("index_n_heads", default=64),
        "index_width": c.size("index_head_dim", default=128),
        "index_top_k": c.size("index_topk", default=512),
    }
    positions: Raw = {"positions": {"theta": c.real("compress_rope_theta", default=160000.0)}}
    mixers: dict[str, Raw] = {
        WINDOW: {},
        SELECTED: positions | {"compressed": {"rate": rates[SELECTED], **index}},
        POOLED: positions | {"compressed": {"rate": rates[POOLED]}},
    }
    types = _compressed_types(c, n)
    names = {WINDOW: "near", SELECTED: "selected", POOLED: "pooled"}
    parts: Raw = {"parts": ["compressed", "experts"]}
    raw |= {
        "hyper": c.size("hc_mult", default=4),
        "hyper_steps": c.size("hc_sinkhorn_iters", default=20),
        "compressed": {
            "n_heads": heads,
            "d_head": width,
            "d_rope": max(2, d_rope),
            "q_rank": c.size("q_lora_rank", default=1024),
            "o_rank": c.size("o_lora_rank", default=1024),
            "groups": groups,
            "window": c.size("sliding_window", default=128),
        },
        "experts": mixed,
        "norm": c.rms(),
        "positions": {"form": "rotary", "theta": c.real("rope_theta", default=1e4), "interleaved": True},
        "head": c.lm_head(False),
    }
    tables = {names[kind]: parts | table for kind, table in mixers.items()}
    return with_kinds(raw, ([names[kind] for kind in types], tables))


def _rates(c: Config) -> Raw:
    """Tokens per compressed entry, by layer type: a table, or two keys that override it."""
    rates: Raw = dict(RATES)
    if table := c.table("compress_rates"):
        rates |= {kind: table.size(kind) for kind in RATES}
    for kind, name in ((SELECTED, "compress_rate_csa"), (POOLED, "compress_rate_hca")):
        rates[kind] = c.size(name, default=rates[kind], null=rates[kind])
    return rates


def _compressed_types(c: Config, n: int) -> list[str]:
    """`layer_types`, or `compress_ratios` in older configs, whose list also covers multi-token-prediction layers."""
    types: list[str] | None = c.items("layer_types", of=any_of(WINDOW, SELECTED, POOLED), length=None, default=None)
    ratios = c.items("compress_ratios", of=any_of(0, 4, 128), length=None, default=None)
    if types is None and ratios is not None:
        types = [{0: WINDOW, 4: SELECTED, 128: POOLED}[ratio] for ratio in ratios]
    if types is None:
        return [POOLED if i < 2 or i % 2 == 0 else SELECTED for i in range(n)]
    if len(types) < n:
        c.fault(c.spelling("layer_types", "compress_ratios"), types, f"a list of {n:,} items, one per layer")
        return [WINDOW] * n
    return types[:n]
