"""Hybrids of attention with gated delta rules, lightning attention and short convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from txcalc.errors import ABSENT
from txcalc.sources.huggingface.config import GLOBAL, LOCAL, NAMES, TOP, WIDTH, Config, Raw, by_mixer, with_kinds
from txcalc.sources.huggingface.keys import any_of, number
from txcalc.sources.huggingface.leaf_list import leaf, matrix, norm_leaf, of_kind
from txcalc.sources.spec import MAX_SIZE

LINEAR = "linear_attention"


def minimax(c: Config) -> Raw:
    """Lightning attention, and softmax attention in some layers. Post-norm: the first norm is after the embedding, the
    others after each residual sum."""
    raw = c.stack()
    n = raw["n_layers"]
    attention = c.heads(raw, kv=8)
    types = c.items("layer_types", of=any_of(LINEAR, GLOBAL), length=n, default=None)
    types = types or [LINEAR if i % 2 else GLOBAL for i in range(n)]
    activation = c.activation("hidden_act", default="silu")
    mixed = c.experts(("num_local_experts", "num_experts"), TOP, ("intermediate_size",), 8, 2, scoring="softmax_after")
    c.ignore("block_size", *(f"{part}_{factor}_factor" for part in ("full_attn", "linear_attn", "mlp")
                             for factor in ("alpha", "beta")))  # fmt: skip
    raw["linear_attention"] = {key: attention[key] for key in ("n_heads", "d_head")} | {"activation": activation}
    norm = c.rms(eps=1e-5, place="post")
    raw = c.decoder(raw, attention, mixed=mixed, norm=norm, embedding={"norm": True}, theta=1e6)
    return by_mixer(raw, [LINEAR if kind == LINEAR else "attention" for kind in types], ["experts"] * n)


def _linear_or_full(c: Config, n: int) -> list[str]:
    """The mixer of each layer: by `layer_types`, or attention in every `full_attention_interval`-th."""
    interval = c.size("full_attention_interval", default=4) if c.data.get("layer_types") is None else 0
    default = [LINEAR if (i + 1) % interval else GLOBAL for i in range(n)] if interval else [GLOBAL] * n
    return [DELTA[kind] for kind in c.items("layer_types", of=any_of(LINEAR, GLOBAL), length=n, default=default)]


def _qwen_hybrid(c: Config, kv: int, partial: float = 0.25) -> Raw:
    """Gated attention in some layers, the gated delta rule in the others."""
    raw = c.stack()
    attention = c.heads(raw, kv=kv, d_head=256, qk_norm="head", gate="element")
    attention["bias"] = [*"qkvog"] if c.flag("attention_bias", default=False) else False
    key, value = c.size("linear_num_key_heads", default=16), c.size("linear_num_value_heads", default=32)
    c.divides(key, value, "linear_num_key_heads", "linear_num_value_heads")
    c.note_mtp_layers()
    return raw | {
        "attention": attention,
        "delta": {
            "n_heads": value,
            "n_key_heads": key,
            "d_key": c.size("linear_key_head_dim", default=128),
            "d_value": c.size("linear_value_head_dim", default=128),
            "d_conv": c.size("linear_conv_kernel_dim", default=4),
        },
        "norm": c.rms(offset=True),
        "positions": c.rotary(attention["d_head"], partial=partial),
        "head": c.lm_head(tied=False),
    }


DELTA = {LINEAR: "delta", GLOBAL: "attention"}


def _qwen_experts(c: Config, number: int, top: int) -> Raw:
    shared = {"d_ff_shared": c.size("shared_expert_intermediate_size"), "shared_gate": True}
    return c.experts(NAMES[:1], TOP, WIDTH, number, top, scoring="softmax_after", **shared)


def qwen3_next(c: Config) -> Raw:
    raw = _qwen_hybrid(c, kv=2)
    raw["experts"] = _qwen_experts(c, 512, 10)
    channels = ["experts" if sparse else "feed_forward" for sparse in c.qwen_sparse(raw)]
    return by_mixer(raw, _linear_or_full(c, raw["n_layers"]), channels)


def qwen3_5_text(c: Config) -> Raw:
    raw = _qwen_hybrid(c, kv=4) | {"feed_forward": c.gated_mlp()}
    n = raw["n_layers"]
    return by_mixer(raw, _linear_or_full(c, n))


def qwen3_5_moe_text(c: Config) -> Raw:
    raw = _qwen_hybrid(c, kv=2)
    raw["experts"] = _qwen_experts(c, 256, 8)
    n = raw["n_layers"]
    return by_mixer(raw, _linear_or_full(c, n), ["experts"] * n)


def qwen4_exp_text(c: Config) -> Raw:
    """Several residual streams, which every branch reads as a mix with coefficients from a low-rank layer; attention
    with an index over block means of keys; and in some layers embeddings of hashed n-grams."""
    raw = _qwen_hybrid(c, kv=2, partial=1.0)
    raw["experts"] = _qwen_experts(c, 512, 10)
    d, n = raw["d_model"], raw["n_layers"]
    streams, rank = c.size("hc_count", default=4), c.size("hc_lowrank", default=320)
    if streams < 2:
        c.fault("hc_count", streams, "2 or more")
    gates = c.text("output_gate_type", default=None) or "silu"
    if gates not in ("silu", "sigmoid"):
        c.fault("output_gate_type", gates, "'silu' or 'sigmoid'")
    c.flag("norm_topk_prob", default=True)
    for key, default in _NGRAMS.items():
        c.size(key, default=default)  # the class refuses null
    interval = c.size("full_attention_interval", default=4) if c.data.get("layer_types") is None else 1
    default_types = [LINEAR if (i + 1) % interval else INDEXED for i in range(n)]
    types = c.items("layer_types", of=any_of(LINEAR, INDEXED, GLOBAL), length=n, default=default_types) or default_types

    def mix(name: str, residual: bool) -> list[Raw]:
        """The mix that a branch reads and, with `residual`, the coefficients by which its output is added."""
        leaves = [norm_leaf(name, d, "rms_norm", times=streams), matrix(f"{name}_down", streams * d, rank)]
        leaves += [leaf(f"{name}_silu", "silu", rank), matrix(f"{name}_up", rank, streams * d)]
        leaves += [leaf(f"{name}_sigmoid", "sigmoid", streams * d), leaf(f"{name}_mean", "sum", d, groups=2 * streams)]
        if residual:
            leaves.append(matrix(f"{name}_shares", streams * d, streams))
            leaves.append(leaf(f"{name}_shares_sigmoid", "sigmoid", streams))
            leaves.append(leaf(f"{name}_added", "sum", streams * d, groups=2))
        return leaves

    index = _pooled_index(c, raw, set(types) != {LINEAR})
    mixes = mix("mixer_mix", True) + mix("experts_mix", True)
    tables: dict[str, Raw] = {"delta": {"parts": ["pieces", "delta", "experts"], "pieces": {"leaves": mixes}}}
    tables["attention"] = {"parts": ["pieces", "attention", "experts"], "pieces": {"leaves": mixes + index}}
    names = ["delta" if kind == LINEAR else "attention" for kind in types]
    with_ngrams = sorted(set(c.items("ple_layer_ids", of=number, length=None, default=[]) or []))
    primes = _primes(c.size("ngram_vocab_size_base", default=20_000_000))
    for layer in with_ngrams:
        if not 1 <= layer <= n or types[layer - 1] != LINEAR or len(with_ngrams) > 32:
            c.fault("ple_layer_ids", layer, f"at most 32 indexes of linear layers, from 1 to {n:,}")
            break
        names[layer - 1] = f"delta-{layer}"
        tables[names[layer - 1]] = {**tables["delta"], "pieces": {"leaves": mixes + _ngrams(c, primes, d, streams)}}
    norm: Raw = {"form": "rms", "final": False, "without": ["pieces", "delta", "attention", "experts"]}
    return with_kinds(raw | {"norm": raw["norm"] | norm, "around": mix("output_mix", False)}, (names, tables))


INDEXED = "indexed_attention"
# Keys of Qwen4-Exp that may not be null, with the class's defaults.
_NGRAMS = {
    "num_key_value_heads": 2,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
    "seed": 1234,
    "split_ngram_parts": 512,
}


_INDEX = ("indexer_n_heads", "indexer_head_dim", "indexer_compress_ratio", "indexer_budget", "indexer_kv_heads")


def _pooled_index(c: Config, raw: Raw, needed: bool) -> list[Raw]:
    """The index's queries and its one key per token, which is cached; scores are those of means of keys over blocks."""
    d, width = raw["d_model"], raw["attention"]["d_head"]
    sizes = {name: c.size(name, default=None, null=None) for name in _INDEX}
    n_heads, inner, block, top, _ = sizes.values()
    if None in sizes.values():
        if needed or set(sizes.values()) != {None}:
            missing = next(name for name, number in sizes.items() if number is None)
            c.fault(missing, c.data.get(missing, ABSENT), "a size: an index has " + ", ".join(_INDEX))
        return []
    c.require_value(1, _INDEX[-1], why="its class has one key head")
    c.divides(block, top, "indexer_compress_ratio", "indexer_budget")
    if (rotary_dims := raw["positions"].get("rotary_dims", width)) > inner:
        c.fault("indexer_head_dim", inner, f"at least {rotary_dims}, the rotary width")
    if not needed:
        return []
    c.note(f"dense and masked FLOPs of attention count all keys, of which an index selects {top:,}")
    leaves = [
        matrix("index_q", d, n_heads * inner),
        matrix("index_k", d, inner),
        norm_leaf("index_q", inner, "rms_norm", groups=n_heads),
        norm_leaf("index_k", inner, "rms_norm"),
        leaf("index_scores", "scores", n_heads, inner, keys=[1, 1 - block, block]),
        leaf("index_keys", "stored", inner),
    ]
    return of_kind("attention", leaves)


def _ngrams(c: Config, primes: Iterator[int], d: int, streams: int) -> list[Raw]:
    """Embeddings of hashed n-grams, each with a prime number of rows, and the layers that add them to all streams."""
    inner, taps = c.size("ple_embed_dim", default=d, null=d), c.size("ple_conv_kernel_size", default=4)
    longest, hashes = c.size("ngram_size", default=3), c.size("heads_per_ngram", default=8)
    multiple = c.size("make_ngram_vocab_size_divisible_by", default=128)
    tables = (longest - 1) * hashes
    if not 0 < tables <= 256 or inner % max(1, tables):
        expected = f"a number that (ngram_size - 1) * heads_per_ngram = {tables:,}, at most 256, divides"
        c.fault("ple_embed_dim", inner, expected)
        return []
    if c.data.get("eos_token_id") in (None, []):
        c.fault("eos_token_id", c.data.get("eos_token_id", ABSENT), "a token, at which n-grams end")
    rows = sum(islice(primes, tables))
    width, state_rows = streams * d, (taps - 1) * longest
    leaves = [
        leaf("ngrams", "table", -(-rows // multiple) * multiple, inner // tables, kind="embedding", runs=tables),
        matrix("ngram_keys", inner, width),
        matrix("ngram_values", inner, d),
        *(norm_leaf(f"ngram_{name}", d, "rms_norm", times=streams) for name in ("key", "query", "conv")),
        leaf("ngram_gates", "sigmoid", streams),
        leaf("ngram_conv", "convolution", width, width, taps, 1, groups=width, bias=False),
        leaf("ngram_silu", "silu", width),
        leaf("ngram_sum", "sum", width, groups=2),
    ]
    return [*leaves, leaf("ngram_kept", "state", width * state_rows + longest - 1)]


def _primes(start: int) -> Iterator[int]:
    """The primes from a number on, by the Miller–Rabin test with bases 2, 3, 5 and 7, which is exact below
    3,215,031,751 (Pomerance, Selfridge and Wagstaff 1980)."""
    for value in count(max(start, 2)):
        odd, twos = value - 1, 0
        while not odd % 2:
            odd, twos = odd // 2, twos + 1
        if value in (2, 3, 5, 7) or all(
            value % base
            and (pow(base, odd, value) == 1 or value - 1 in (pow(base, odd << i, value) for i in range(twos)))
            for base in (2, 3, 5, 7)
        ):
            yield value


CONV = "conv"


SHORT = {CONV: "short_convolution", GLOBAL: "attention", LOCAL: "attention"}


def _short_convolutions(c: Config, taps: int = 3, d_head: int | None = None, kv: int = 8) -> Raw:
    """What LFM2 and LFM3 share: short convolutions, and attention with norms on Q and K."""
    raw = c.stack()
    attention = c.heads(raw, kv=kv, d_head=d_head, qk_norm="head")
    short = {"taps": c.size("conv_L_cache", default=taps), "bias": c.flag("conv_bias", default=False)}
    head = c.lm_head(tied=True)
    if "tie_embedding" in c:  # it overrides tie_word_embeddings
        tied = c.flag("tie_embedding")
        head |= {} if head.get("form") == "none" else {"tied": tied}
    c.require_value(raw["d_model"], "block_dim", "conv_dim", "conv_dim_out", why="transformers reads hidden_size")
    c.require_value(attention["n_heads"], "num_heads", why="transformers reads num_attention_heads")
    positions = c.rotary(attention["d_head"], 1000000.0)
    return raw | {
        "attention": attention,
        "short_convolution": short,
        "norm": c.rms("norm_eps", "rms_norm_eps", eps=1e-5),
        "positions": positions,
        "head": head,
    }


def _kinds(c: Config, raw: Raw, *known: str, default: list[str] | None = None) -> list[str]:
    """`layer_types`, one per layer."""
    kinds: list[str] | None = c.items("layer_types", of=any_of(*known), length=raw["n_layers"], default=default)
    if kinds is None:
        c.fault("layer_types", ABSENT, "a list of layer types")
        return [GLOBAL] * raw["n_layers"]
    return kinds


def lfm2(c: Config) -> Raw:
    """A feed-forward in every layer, two thirds of the config's width with `block_auto_adjust_ff_dim`."""
    raw = _short_convolutions(c)
    n = raw["n_layers"]
    attending = c.items("full_attn_idxs", of=number, length=None, default=None)
    default = [GLOBAL if attending is None or i in attending else CONV for i in range(n)]
    kinds = _kinds(c, raw, CONV, GLOBAL, default=default)
    width = c.size("block_ff_dim") if "block_ff_dim" in c else c.size("intermediate_size")
    adjusted = c.flag("block_auto_adjust_ff_dim", default=True)
    factor, multiple = c.real("block_ffn_dim_multiplier", default=1.0), c.size("block_multiple_of", default=256)
    if adjusted:
        width = 2 * width // 3
        width = -(-int(factor * width) // multiple) * multiple
    if not 1 <= width <= MAX_SIZE:
        c.fault("block_ffn_dim_multiplier", factor, f"a factor that gives a width from 1 to {MAX_SIZE:,}")
        width = 1
    raw["feed_forward"] = {"d_ff": width, "gated": True, "activation": "silu"}
    return by_mixer(raw, [SHORT[kind] for kind in kinds])


def lfm2_moe(c: Config) -> Raw:
    """Dense layers first, then experts."""
    raw = _short_convolutions(c)
    kinds = _kinds(c, raw, CONV, GLOBAL)
    raw["feed_forward"] = {"d_ff": c.size("intermediate_size"), "gated": True, "activation": "silu"}
    mixed = c.experts(("num_experts",), ("num_experts_per_tok",), ("moe_intermediate_size",), 32, 4)
    raw["experts"] = mixed | {"activation": "silu", "scoring": "sigmoid"}
    dense = c.count("num_dense_layers", default=2)
    seconds = ["feed_forward" if i < dense else "experts" for i in range(raw["n_layers"])]
    names = [f"{SHORT[kind]}-{second}" for kind, second in zip(kinds, seconds, strict=True)]
    return with_kinds(raw, (names, {name: {"parts": name.split("-")} for name in set(names)}))


def lfm3(c: Config) -> Raw:
    """Windows in some layers, gates on the output of heads, norms before and after every branch."""
    raw = _short_convolutions(c, 7, 128, 4)
    kinds = _kinds(c, raw, *SHORT, default=[
        GLOBAL if i % 4 == 2 else LOCAL if i % 4 == 0 and i > 0 else CONV for i in range(raw["n_layers"])
    ])  # fmt: skip
    attention = raw["attention"]
    attention["gate"] = "head" if c.flag("use_attention_gate", default=True) else "none"
    attention["bias"] = c.flag("attention_bias", default=False)
    raw["norm"] |= {"place": "sandwich" if c.flag("use_sandwich_norm", default=True) else "pre"}
    raw["feed_forward"] = {"d_ff": c.size("intermediate_size"), "gated": True, "activation": "silu"}
    window = c.size("sliding_window", default=256, null=None)
    c.check_window(window, LOCAL in kinds)
    parts: Raw = {"parts": ["attention", "feed_forward"]}
    rotary = c.data.get("rope_parameters") is not None
    tables: dict[str, Raw] = {
        CONV: {"parts": ["short_convolution", "feed_forward"]},
        GLOBAL: parts | {"positions": c.rotary(attention["d_head"], 1e6, 1.0 if rotary else 0.5, GLOBAL)},
        LOCAL: parts | {"positions": c.rotary(attention["d_head"], 1e4, 1.0, LOCAL), "attention": {"window": window}},
    }
    names = [{CONV: "convolution", GLOBAL: "global", LOCAL: "local"}[kind] for kind in kinds]
    by_name = dict(zip(names, kinds, strict=True))
    return with_kinds(raw, (names, {name: tables[kind] for name, kind in by_name.items()}))
