"""What readers ask of a config.json: widths, heads, windows, feed-forwards, experts, norms and rotary positions.

Each method reads keys and returns a table of a description (`sources.spec`). Defaults are those of transformers'
configuration classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from txcalc.errors import ABSENT
from txcalc.parts.options import Raw as Raw, Table
from txcalc.sources.explicit import fold_pattern
from txcalc.sources.huggingface.families import PREDICTORS
from txcalc.sources.huggingface.heads import HeadReader
from txcalc.sources.huggingface.keys import REQUIRED, any_of, number
from txcalc.sources.huggingface.transformers_metadata import padding_of, size_of
from txcalc.sources.spec import MAX_KINDS, PARTS, Wrong, merge, real

# Key names of experts: their number (also in configs with shared experts), experts per token, their width.
NAMES = ("num_experts", "num_local_experts")
ROUTED = ("n_routed_experts", "num_local_experts", "num_experts")
TOP = ("num_experts_per_tok",)
WIDTH = ("moe_intermediate_size",)

LOCAL, GLOBAL = "sliding_attention", "full_attention"
LAYER_NAMES = {LOCAL: "local", GLOBAL: "global"}

# Model types that transformers runs as encoders if `is_causal` is false.
BIDIRECTIONAL = ("llama", "qwen2", "qwen3")

# RoPE scaling types of transformers, and the keys that each requires.
ROPE_TYPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "mrope": (),  # older name of the default, for three axes
    "axial": (),
    "proportional": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "su": ("short_factor", "long_factor"),  # older name of longrope
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


class Config(HeadReader):
    """A config.json, or one object of it."""

    def table(self, *names: str) -> Config | None:
        """A nested object, or None where it is absent."""
        value = self._get(names, _table, {}, {}, {}, assumed=False)
        key = self.spelling(*names)
        return Config(value, self.model_type, f"{self.path}{key}.", self) if value else None

    def subtable(self, name: str) -> Config:
        """A nested object, an empty one where it is absent."""
        return self.table(name) or Config({}, self.model_type, f"{self.path}{name}.", self)

    def stack(
        self,
        d_model: Sequence[str] = ("hidden_size",),
        n_layers: Sequence[str] = ("num_hidden_layers",),
        context: Sequence[str] = ("max_position_embeddings", "n_positions"),
    ) -> Raw:
        """The widths of a decoder, and its context length."""
        self.require_single_stack()
        raw = self.widths("decoder", d_model, n_layers)
        length = self.size(*context, default=None)
        return raw | ({"context": length} if length else {})

    def widths(
        self,
        kind: str,
        d_model: Sequence[str] = ("hidden_size",),
        n_layers: Sequence[str] = ("num_hidden_layers",),
        vocab: Sequence[str] = ("vocab_size",),
        padding_names: Sequence[str] = (),
    ) -> Raw:
        """The widths of a stack; `padding_names` are those of `padding_within`."""
        raw: Raw = {
            "kind": kind,
            "d_model": self.size(*d_model),
            "n_layers": self.layers(*n_layers),
            "vocab_size": self.size(*vocab),
        }
        self.padding_within(raw, *padding_names)
        return raw

    def padding_within(self, raw: Raw, *names: str) -> None:
        """Require the padding token to be a row of the embedding; `names` are further keys of that token."""
        has_padding, default = padding_of(self.model_type)
        for name in (*(("pad_token_id",) if has_padding else ()), *names):
            padding = self.data.get(name, default)
            if type(padding) is int and padding >= raw["vocab_size"]:
                self.fault(name, padding, f"less than vocab_size = {raw['vocab_size']:,}")

    def heads(
        self,
        raw: Raw,
        kv: object = None,
        d_head: object = None,
        names: Sequence[str] = ("num_attention_heads",),
        whole: bool | None = False,
        kv_names: Sequence[str] = ("num_key_value_heads",),
        width_names: Sequence[str] = ("head_dim",),
        attention_bias: bool | None = None,
        **keys: object,
    ) -> Raw:
        """Query heads, key/value heads, the width of a head, and further `keys` of the table.

        `kv` and `d_head` are the class's defaults; None means as many as query heads, and D/h. `whole` True: the class
        requires n_heads to divide D even if d_head is given; None: it rounds D/h down. `attention_bias` is the class's
        default of that key; None if it has no such key.
        """
        n_heads = self.size(*names)
        groups = self.size(*kv_names, default=n_heads if kv is None else kv, null=n_heads) if kv_names else n_heads
        width = self.size(*width_names, default=d_head, null=None) if width_names else None
        if whole or (width is None and (whole is False or n_heads > raw["d_model"])):
            self.divides(n_heads, raw["d_model"], self.spelling(*names), "the width")
        if width is None:
            width = max(1, raw["d_model"] // n_heads)
        self.divides(groups, n_heads, self.spelling(*(kv_names or names)), self.spelling(*names))
        bias = {} if attention_bias is None else {"bias": self.flag("attention_bias", default=attention_bias)}
        return {"n_heads": n_heads, "n_kv_heads": groups, "d_head": width, **bias, **keys}

    def mha(
        self, raw: Raw, names: Sequence[str] = ("num_attention_heads",), whole: bool | None = False, **options: Any
    ) -> Raw:
        """As many key/value heads as query heads, each D/h wide."""
        return self.heads(raw, names=names, whole=whole, kv_names=(), width_names=(), **options)

    def gated_mlp(self, name: str = "intermediate_size", act: str = "silu", bias: bool = False) -> Raw:
        """SwiGLU or GeGLU: three matrices."""
        activation = self.activation("hidden_act", "hidden_activation", default=act)
        return {"d_ff": self.size(name), "gated": True, "activation": activation, "bias": bias}

    def mlp(
        self,
        *names: str,
        act: str = "gelu",
        bias: bool = True,
        act_names: Sequence[str] = ("hidden_act",),
        default: object = REQUIRED,
    ) -> Raw:
        """Two matrices with an activation between them."""
        width = self.size(*names or ("intermediate_size",), default=default, null=default)
        return {"d_ff": width, "gated": False, "activation": self.activation(*act_names, default=act), "bias": bias}

    def rms(self, *names: str, eps: float = 1e-6, **keys: object) -> Raw:
        return {"form": "rms", "eps": self.real(*names or ("rms_norm_eps",), default=eps), **keys}

    def layer_norm(self, *names: str, eps: float = 1e-5, bias: bool = True, **keys: object) -> Raw:
        epsilons = ("layer_norm_epsilon", "layer_norm_eps", "norm_eps")
        return {"form": "layer", "eps": self.real(*names or epsilons, default=eps), "bias": bias, **keys}

    def decoder(
        self,
        raw: Raw,
        attention: Raw,
        *,
        mlp: Raw | None = None,
        mlp_bias: bool = False,
        mixed: Raw | None = None,
        norm: Raw | None = None,
        positions: Raw | None = None,
        embedding: Raw | None = None,
        tied: bool = False,
        head: Raw | None = None,
        **rotary: Any,
    ) -> Raw:
        """Llama's layers, except for the tables that are given: SwiGLU (or the experts `mixed`), RMSNorm, rotary
        positions (`rotary` are arguments of the method `rotary`), and a language-model head; `tied` is the class's
        default."""
        description = raw | {
            "attention": attention,
            **({"experts": mixed} if mixed else {"feed_forward": mlp or self.gated_mlp(bias=mlp_bias)}),
            "norm": norm or self.rms(),
            "positions": positions or self.rotary(attention["d_head"], **rotary),
            **({} if embedding is None else {"embedding": embedding}),
            "head": head or self.lm_head(tied),
        }
        return self.bidirectional(description)

    def sparse_blocks(self) -> Raw:
        """BigBird's block-sparse attention; {} for full attention (`attention_type`)."""
        form = self.text("attention_type", default="block_sparse")
        block, random = self.size("block_size", default=64), self.count("num_random_blocks", default=3)
        if form == "original_full":
            return {}
        if form != "block_sparse":
            self.fault("attention_type", form, "'block_sparse' or 'original_full'")
        self.note(
            f"block-sparse attention with blocks of {block:,}: past {(5 + 2 * random) * block:,} positions its code "
            "computes only the pairs that masked FLOPs count; dense FLOPs count all pairs"
        )
        return {"block": block, "random_blocks": random}

    def layer_types(self, n_layers: int, default: Sequence[str], allowed: Sequence[str] = (LOCAL, GLOBAL)) -> list[str]:
        """`layer_types`, one per layer."""
        types = self.items("layer_types", of=any_of(*allowed), length=n_layers, default=None)
        return list(default) if types is None else types

    def windows(
        self,
        raw: Raw,
        window: int | None,
        types: Sequence[str],
        tables: Mapping[str, Raw] | None = None,
        key: str = "sliding_window",
    ) -> tuple[list[str], dict[str, Raw]]:
        """The local and global layer kinds (an axis of `with_kinds`); `tables` are further keys of each kind, `key`
        is the key of the window."""
        self.check_window(window, LOCAL in types, key)
        local: Raw = {"attention": {"window": window}} if window is not None else {}
        by_kind = tables or {}
        kinds = [LAYER_NAMES[kind] for kind in types]
        return kinds, {"local": merge(local, by_kind.get("local", {})), "global": dict(by_kind.get("global", {}))}

    def check_window(self, window: int | None, used: bool, key: str = "sliding_window") -> None:
        """Require a window where layers use one."""
        if used and window is None:
            self.fault(key, self.data.get(key, ABSENT), "a window: some layers use one")

    def with_layer_bases(self, raw: Raw) -> Raw:
        """Add windows in all but every fourth layer, and a rotary base per layer; base 0 means no positions."""
        n, window = raw["n_layers"], self.size("sliding_window", default=128, null=None)
        types = self.layer_types(n, [LOCAL if i % 4 else GLOBAL for i in range(n)])
        bases = self.items("layer_rope_theta", of=real, length=n, default=None) or [1.0] * n
        return with_kinds(raw, self.windows(raw, window, types), rotary_axis(bases))

    def same_window(self, raw: Raw, window: int | None) -> tuple[list[str], dict[str, Raw]]:
        """The same window in every layer, or full attention in every layer."""
        return self.windows(raw, window, [GLOBAL if window is None else LOCAL] * raw["n_layers"])

    def mixture(self, raw: Raw, sparse: Sequence[bool]) -> tuple[list[str], dict[str, Raw]]:
        """The dense and sparse layer kinds."""
        kinds = ["sparse" if is_sparse else "dense" for is_sparse in sparse]
        return kinds, {"dense": {"parts": ["attention", "feed_forward"]}, "sparse": {"parts": ["attention", "experts"]}}

    def mla(self, q: object, kv: int, nope: int, rope: int, value: object, also: str = "") -> Raw:
        """MLA: ranks of the queries and of the latent, widths of the parts of a head. The class computes `head_dim`,
        unless it uses that key as another name (`also`) of the rotary width."""
        n_heads = self.size("num_attention_heads")
        default = size_of(self.model_type, "num_key_value_heads")  # transformers writes it whatever n_heads is
        kv_heads = n_heads if default is None or self.data.get("num_key_value_heads") != default else default
        self.require_value(kv_heads, "num_key_value_heads", why="the latent is expanded for all heads")
        table = {
            "n_heads": n_heads,
            "kv_rank": self.size("kv_lora_rank", default=kv),
            "d_nope": self.size("qk_nope_head_dim", default=nope),
            "d_rope": self.size("qk_rope_head_dim", *filter(None, [also]), default=rope),
            "d_v": self.size("v_head_dim", default=value, null=value),
            "bias": self.flag("attention_bias", default=False),
        }
        self.ignore("kv_channels")
        self.require_value(table["d_nope"] + table["d_rope"], "qk_head_dim", why="the sum of its two parts")
        if not also:
            self.size("head_dim", default=None, null=None)
        rank = self.size("q_lora_rank", default=q, null=None)
        if table["d_rope"] % 2:
            self.fault("qk_rope_head_dim", table["d_rope"], "an even number")
        return table | ({"q_rank": rank} if rank is not None else {})

    def experts(self, n: Sequence[str], k: Sequence[str], d_ff: Sequence[str], n_default: object = REQUIRED,
                k_default: object = REQUIRED, act: str = "silu", **keys: object) -> Raw:  # fmt: skip
        """Routed experts: their number, how many each token uses, and their width."""
        number = self.size(*n, default=n_default)
        top = self.size(*k, default=k_default)
        if top > number:
            self.fault(self.spelling(*k), top, f"at most {self.spelling(*n)} = {number}")
        activation = self.activation("hidden_act", default=act)
        return {"n_experts": number, "top_k": top, "d_ff": self.size(*d_ff), "activation": activation, **keys}

    def note_mtp_layers(self) -> None:
        """Add a note if multi-token-prediction layers are not counted."""
        number = self.count(*PREDICTORS, default=None)
        if number:
            self.note(f"{number:,} multi-token-prediction layer{'s are' if number > 1 else ' is'} not counted")

    def bidirectional(self, raw: Raw) -> Raw:
        """The decoder; with `is_causal` false, as in embedding models, an encoder with the same layers."""
        if self.model_type not in BIDIRECTIONAL or self.flag("is_causal", default=None, null=None) in (None, True):
            return raw
        why = "bidirectional windows are not supported"
        self.require_value(False, "use_sliding_window", why=why)
        if self.data.get("layer_types") != [GLOBAL] * raw["n_layers"]:
            self.require_value(None, "layer_types", why=why)
        self.require_value(None, "attention_chunk_size", why=why)
        self.note("is_causal is false: attention is bidirectional")
        head = raw["head"]
        if "form" not in head:
            head = {"form": "masked-lm", "plain": True, "tied": head["tied"], "bias": False}
        return raw | {"kind": "encoder", "head": head}

    def chunked_window(self) -> Raw:
        """Chunked attention in every layer, if the config has `attention_chunk_size`."""
        chunk = self.size("attention_chunk_size", default=None)
        if chunk is None:
            return {}
        self.note(
            "attention_chunk_size: every layer attends within chunks, as NeuronX runs it; transformers ignores it"
        )
        return {"window": chunk, "chunked": True}

    def with_shared(
        self, mixed: Raw, *names: str, default: object = None, groups: tuple[int | None, int | None] = (None, None)
    ) -> Raw:
        """Add shared experts, each as wide as a routed one, and the groups of group-limited routing; `groups` are the
        class's defaults of `n_group` and `topk_group`."""
        number = self.count(*names, default=default, null=0) if names else 0
        n_groups, top = self.size("n_group", default=groups[0]), self.size("topk_group", default=groups[1])
        if n_groups:
            self.divides(n_groups, mixed["n_experts"], "n_group", "the number of experts")
            mixed = mixed | {"n_groups": n_groups, "top_groups": min(n_groups, top or n_groups)}
        return mixed | ({"n_shared": number} if number else {})

    def first_dense(self, raw: Raw, default: int) -> tuple[list[str], dict[str, Raw]]:
        """The first `first_k_dense_replace` layers are dense."""
        first = self.count("first_k_dense_replace", default=default)
        self.require_value(1, "moe_layer_freq", why="every layer after the first dense ones has experts")
        return self.dense_where(raw, first)

    def typed_layers(self, raw: Raw, dense: int | Sequence[bool]) -> tuple[list[str], dict[str, Raw]]:
        """`mlp_layer_types`, one per layer: "dense" or "sparse"; `dense`, as in `dense_where`, is the default."""
        n = raw["n_layers"]
        flags = [i < dense for i in range(n)] if isinstance(dense, int) else dense
        names = ["dense" if is_dense else "sparse" for is_dense in flags]
        kinds = self.items("mlp_layer_types", of=any_of("dense", "sparse"), length=n, default=names)
        return self.dense_where(raw, [kind == "dense" for kind in kinds])

    def dense_where(self, raw: Raw, dense: int | Sequence[bool]) -> tuple[list[str], dict[str, Raw]]:
        """The dense and sparse layer kinds. `dense` is the number of leading dense layers, or a flag per layer; dense
        layers are `intermediate_size` wide. The key is ignored if no layer is dense."""
        dense = [i < dense for i in range(raw["n_layers"])] if isinstance(dense, int) else dense
        if any(dense):
            raw["feed_forward"] = self.gated_mlp()
        self.ignore("intermediate_size")
        return self.mixture(raw, [not is_dense for is_dense in dense])

    def qwen_sparse(self, raw: Raw) -> list[bool]:
        """Every `decoder_sparse_step`-th layer has experts, unless `mlp_only_layers` names it."""
        step = self.size("decoder_sparse_step", default=1)
        only = set(self.items("mlp_only_layers", of=number, length=None, default=[]))
        sparse = [i not in only and (i + 1) % step == 0 for i in range(raw["n_layers"])]
        if all(sparse):
            self.ignore("intermediate_size")
        else:
            raw["feed_forward"] = self.gated_mlp()
        return sparse

    def rotary(
        self,
        d_head: int,
        theta: float = 10000.0,
        partial: float = 1.0,
        kind: str = "",
        even: bool = False,
        names: Sequence[str] = ("rope_theta", "rotary_emb_base"),
    ) -> Raw:
        """Rotary positions, by the keys of transformers 4 (`rope_theta`, `rope_scaling`) or 5 (`rope_parameters`).

        `kind` is the layer type, for a config with parameters per layer type; `names` are the keys of the base outside
        such tables. `even`: the class rounds an odd rotary width up.
        """
        outer = self.table("rope_scaling") or self.table("rope_parameters")
        inner = outer.table(kind) if outer and kind and isinstance(outer.data.get(kind), Mapping) else outer
        for table in (outer, inner):
            if table:
                table.ignore(*table.data)  # scaling factors change angles, no size
        if outer:
            check_rope(outer)
        base = self.real(*names, default=theta)
        share = self.real("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction", default=partial)
        if inner:
            has_base = "rope_theta" in inner and (inner is not outer or "rope_theta" in names)
            base = inner.real("rope_theta", default=base) if has_base else base
            share = inner.real("partial_rotary_factor", default=share)
            if partial < 1 and "partial_rotary_factor" in inner and inner.data["partial_rotary_factor"] is None:
                inner.fault("partial_rotary_factor", None, "a number", "the class multiplies by it")
        if not 0 < share <= 1:
            self.fault(self.spelling("partial_rotary_factor", "rotary_pct"), share, "above 0 and at most 1")
            share = 1.0
        raw: Raw = {"form": "rotary", "theta": base}
        dims = int(d_head * share)
        dims += even and dims < d_head and dims % 2
        if dims % 2:
            self.fault("rotary width", dims, "an even number")
        return raw if dims == d_head else raw | {"rotary_dims": max(1, dims)}


def with_kinds(raw: Raw, *axes: tuple[Sequence[str], Mapping[str, Raw]]) -> Raw:
    """The description with layer kinds: an axis is the kind of every layer, and a table for each kind.

    Axes combine (`local-sparse`); an axis with a single kind is merged into the whole description.
    """
    mixed = []
    for kinds, tables in axes:
        if len(set(kinds)) == 1 and "parts" not in tables[kinds[0]]:
            raw = merge(raw, tables[kinds[0]])
        else:
            mixed.append((kinds, tables))
    if not mixed:
        return raw
    names = ["-".join(row) for row in zip(*(kinds for kinds, _ in mixed), strict=True)]
    variants: Raw = {}
    for name, row in zip(names, zip(*(kinds for kinds, _ in mixed), strict=True), strict=True):
        if name not in variants:
            table: Raw = {}
            for kind, (_, tables) in zip(row, mixed, strict=True):
                table = merge(table, tables[kind])
            variants[name] = table
            if len(variants) > MAX_KINDS:
                break  # the check of the description refuses them
    used = {part for table in variants.values() for part in table.get("parts", ())}
    used |= {"attention"} & {part.removeprefix("cross_") for part in used}
    if used:  # drop tables that no layer uses
        raw = {key: value for key, value in raw.items() if key not in PARTS or key in used}
    return raw | {"layer": variants} | ({"pattern": fold_pattern(names)} if len(variants) > 1 else {})


def by_mixer(raw: Raw, mixers: list[str], channels: list[str] | None = None) -> Raw:
    """Layers of one mixer and one feed-forward; `channels` gives the second part of each layer if it differs."""
    channels = channels or ["feed_forward"] * len(mixers)
    pairs = list(zip(mixers, channels, strict=True))
    uniform = len(set(channels)) == 1
    names = [mixer if uniform else f"{mixer}-{channel}" for mixer, channel in pairs]
    return with_kinds(raw, (names, {name: {"parts": list(pair)} for name, pair in zip(names, pairs, strict=True)}))


def periodic(n_layers: int, period: int) -> list[str]:
    """Layer types with every `period`-th layer global."""
    return [LOCAL if (i + 1) % period else GLOBAL for i in range(n_layers)]


def rotary_axis(flags: Iterable[object]) -> tuple[list[str], dict[str, Raw]]:
    """The layer kinds with rotary positions and without positions."""
    return ["rotary" if on else "unrotated" for on in flags], {
        "rotary": {},
        "unrotated": {"positions": {"form": "none"}},
    }


def check_rope(table: Config) -> None:
    """A fault for a RoPE scaling type that transformers does not know, or that lacks a key."""
    by_layer_type = {key: value for key, value in table.data.items() if isinstance(value, Mapping)}
    if by_layer_type:
        assert table.parent
        types = table.parent.data.get("layer_types")
        for key in by_layer_type:
            if not isinstance(types, list) or key in types:
                check_rope(inner := Config(by_layer_type[key], table.model_type, f"{table.path}{key}.", table))
                inner.ignore(*inner.data)
        return
    key = "rope_type" if "rope_type" in table else "type"
    name = table.data.get(key, "default")
    if not isinstance(name, str) or name not in ROPE_TYPES:
        table.fault(key, name, f"one of {', '.join(ROPE_TYPES)}")
        return
    for required in ROPE_TYPES[name]:
        if required not in table:
            table.fault(required, ABSENT, f"a value: {name!r} requires it")
    for key in ("rope_theta", *ROPE_TYPES[name], *(("partial_rotary_factor",) if ROPE_TYPES[name] else ())):
        if key in table and table.data[key] is None and (key, name) != ("factor", "yarn"):  # yarn computes its factor
            table.fault(key, None, "a number")


def _table(value: object) -> Table:
    if not isinstance(value, Mapping):
        raise Wrong("an object")
    return value
