"""Decoders in the line of Llama: one reader; a row of `decoders.json` gives a family's differences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import getitem
from typing import Any

from msgspec import Struct, field

from txcalc.parts.options import Table
from txcalc.sources.huggingface import transformers_metadata as metadata
from txcalc.sources.huggingface.config import GLOBAL, LOCAL, Config, Raw, layered
from txcalc.sources.huggingface.keys import REQUIRED

# The kinds of layers: the name of every layer's, and what each lays over the description.
Axis = tuple[list[str], dict[str, Raw]]
# The default of a size without which the class cannot be made.
MUST = "required"


def decoder(c: Config, name: str = "", **changes: Any) -> Raw:
    """A config by the row of its model type, or by that of the type `name` with `changes`."""
    row, rows = {"like": name or c.model_type, **changes}, metadata.table("decoders.json")
    while "like" in row:
        row = rows[row.pop("like")] | row
    return Decoder(**row).read(c)


class Decoder(Struct, frozen=True, kw_only=True):
    """What a class has otherwise than Llama's: SwiGLU, RMSNorms before the parts, rotary positions, a head of its own.

    d_model … names     spellings of the widths, the context and the heads; `tables` stand beside the keys
    remote              published code has its class
    kv, d_head, whole   as `Config.heads` takes them; `width_names` spellings of d_head, none: D/h
    bias                keys of biases, each with its default and whose they are (all four without letters); or the
                        default of `attention_bias`; `always` those that are there whatever a config says
    qk_norm, qk_key     the norm of Q and K; the flag that says whether there is one, and its default
    attention           further keys of the table; `square`: why the heads are together as wide as the model
    latent              arguments of `Config.mla`, in the place of attention
    experts             as `ExpertKeys` has them
    plain, act          the activation of two matrices, or of a gated feed-forward, and in `act_key` its spellings
                        ("": it has no key); `mlp` further keys
    d_ff, times         spellings of its width, and how many times the model's it is by default, or, without any, always
    mlp_bias, mlp_key   the default of its key of biases, where the class has one; `mlp_always` biases it has anyway
    norm                arguments of `Config.rms`, or, of the form layer, of `Config.layer_norm`; `keys` spells eps;
                        where a flag says what one is: its key, its default and both values
    theta … even        as `Config.rotary` takes them; `theta_names` spell the base; `interleaved` heads turn
                        neighbours, `angles` are ready, `learned` the rows by key, default and how many more,
                        `rotary_key` that of the rotated width
    scaled              the embedding is, by √D
    tied, head          whether the head is tied by default; arguments of `Config.lm_head`, others by key and default
    only, ignore        the one value of keys, and why; keys that change no size
    same                keys that repeat a size of the description, at this path in it, and why
    mtp                 a note says how many multi-token-prediction layers are not counted
    window … layer_bases
                        the kinds of layers: with a window (`_windowed`), by Qwen's switch (`_switched`), `dense` first
                        by `first_k_dense_replace`, or `typed` by `mlp_layer_types` (without it the first ones, as many
                        as a default or a key says), or `stepped`, with a base a layer
    """

    remote: bool = False
    d_model: str = "hidden_size"
    n_layers: str = "num_hidden_layers"
    context: str = "max_position_embeddings n_positions"
    tables: str = ""
    names: str = "num_attention_heads"
    kv: Any = None
    d_head: Any = None
    kv_names: str = "num_key_value_heads"
    width_names: str = "head_dim"
    whole: bool | None = False
    bias: bool | Sequence[tuple[str, bool, str]] | None = None
    always: str | bool = ""
    qk_norm: str = ""
    qk_key: tuple[str, bool] | None = None
    chunks: bool = False
    latent: Sequence[Any] | None = None
    attention: Table = field(default_factory=dict)
    square: str = ""
    experts: Table | None = None
    plain: str = ""
    act: str = "silu"
    act_key: str | None = None
    d_ff: str = "intermediate_size"
    times: int | None = None
    mlp: Table = field(default_factory=dict)
    mlp_bias: bool | None = None
    mlp_key: str = "mlp_bias"
    mlp_always: bool = False
    norm: Table = field(default_factory=dict)
    theta: float = 10000.0
    theta_names: str = "rope_theta rotary_emb_base"
    partial: float = 1.0
    kind: str = ""
    even: bool = False
    interleaved: bool = False
    angles: Table | None = None
    learned: tuple[str, int, int] | None = None
    rotary_key: tuple[str, int] | None = None
    scaled: bool = False
    embedding: Table | None = None
    tied: bool = False
    head: Table = field(default_factory=dict)
    only: Sequence[tuple[Any, str, str]] = ()
    same: Sequence[tuple[str, str, str]] = ()
    ignore: str = ""
    mtp: bool = False
    window: Table | None = None
    switched: int | None = None
    dense: int | None = None
    typed: int | tuple[str, int] | None = None
    stepped: bool = False
    layer_bases: bool = False

    def read(self, c: Config) -> Raw:
        """The description in a config."""
        if self.remote:
            c.require_published_class()
        raw = c.stack(self.d_model.split(), self.n_layers.split(), self.context.split())
        for name in self.tables.split():
            c.table(name)
        attention = self._latent(c, raw) if self.latent else self._attention(c, raw)
        parts: Raw = {"mixed": ExpertKeys(**self.experts).read(c)} if self.experts else {"mlp": self._channel(c, raw)}
        parts |= {"norm": self._norm(c), "positions": self._positions(c, attention)}
        given = {key: _number_or_flag(c, *value) if isinstance(value, list) else value
                 for key, value in self.head.items()}  # fmt: skip
        embedding = {"scale": raw["d_model"] ** 0.5} if self.scaled else {**self.embedding} if self.embedding else None
        raw = c.decoder(raw, attention, embedding=embedding, head=c.lm_head(self.tied, **given), **parts)
        if self.latent:
            raw["latent"] = raw.pop("attention")
        for value, keys, why in self.only:
            c.require_value(value, *keys.split(), why=why)
        for key, path, why in self.same:
            c.require_value(reduce(getitem, path.split("."), raw), key, why=why)
        c.ignore(*self.ignore.split())
        if self.mtp:
            c.note_mtp_layers()
        return c.with_layer_bases(raw) if self.layer_bases else layered(raw, *self._axes(c, raw))

    def _attention(self, c: Config, raw: Raw) -> Raw:
        table = c.heads(
            raw, _default(self.kv), _default(self.d_head), self.names.split(), self.whole, self.kv_names.split(),
            self.width_names.split(),
        )  # fmt: skip
        if isinstance(self.bias, bool):
            table["bias"] = c.flag("attention_bias", default=self.bias)
        elif self.bias is not None:
            flags = [(c.flag(key, default=default), letters) for key, default, letters in self.bias]
            biased = [letter for on, letters in flags if on for letter in letters]
            table["bias"] = biased if any(letters for _, letters in flags) else flags[0][0]
        elif self.always:
            table["bias"] = self.always if self.always is True else [*self.always]
        if self.qk_norm:
            on = self.qk_key is None or c.flag(self.qk_key[0], default=self.qk_key[1])
            table["qk_norm"] = self.qk_norm if on else "none"
        if self.square and table["n_heads"] * table["d_head"] != raw["d_model"]:
            c.fault("head_dim", table["d_head"], "hidden_size / num_attention_heads", self.square)
        if "head_dim" not in self.width_names:
            c.require_value(table["d_head"], "head_dim", why="its class divides the width by the heads")
        return {**table, **self.attention, **(c.chunked_window() if self.chunks else {})}

    def _latent(self, c: Config, raw: Raw) -> Raw:
        table: Raw = c.mla(*(self.latent or ()))
        if self.whole:
            c.divides(table["n_heads"], raw["d_model"], "num_attention_heads", "hidden_size")
        return table

    def _channel(self, c: Config, raw: Raw) -> Raw:
        bias = self.mlp_always if self.mlp_bias is None else c.flag(self.mlp_key, default=self.mlp_bias)
        default = REQUIRED if self.times is None else self.times * raw["d_model"]
        width = c.size(*self.d_ff.split(), default=default, null=default) if self.d_ff else default
        keys = (
            ("hidden_act" if self.plain else "hidden_act hidden_activation") if self.act_key is None else self.act_key
        )
        activation = c.activation(*keys.split(), default=self.plain or self.act)
        return {"d_ff": width, "gated": not self.plain, "activation": activation, "bias": bias, **self.mlp}

    def _norm(self, c: Config) -> Raw:
        given = {key: value[2 if c.flag(value[0], default=value[1]) else 3] if isinstance(value, list) else value
                 for key, value in self.norm.items()}  # fmt: skip
        form, keys = given.pop("form", "rms"), given.pop("keys", "").split()
        return (c.layer_norm if form == "layer" else c.rms)(*keys, **given)

    def _positions(self, c: Config, attention: Raw) -> Raw:
        if self.angles is not None:
            return {**self.angles}
        if self.learned:
            keys, default, extra_rows = self.learned
            return {"form": "learned", "rows": c.size(*keys.split(), default=default) + extra_rows}
        if self.rotary_key:
            positions: Raw = {"form": "rotary", "rotary_dims": c.size(self.rotary_key[0], default=self.rotary_key[1])}
        elif self.latent:
            near = c.flag("rope_interleave", default=True)
            return {"form": "rotary", "theta": c.rotary(attention["d_rope"])["theta"], "interleaved": near}
        else:
            names = self.theta_names.split()
            positions = c.rotary(attention["d_head"], self.theta, self.partial, self.kind, self.even, names)
        return positions | ({"interleaved": True} if self.interleaved else {})

    def _axes(self, c: Config, raw: Raw) -> list[Axis]:
        axes: list[Axis] = [] if self.window is None else [_windowed(c, raw, **self.window)]
        if self.switched is not None:
            axes.append(_switched(c, raw, self.switched))
        if self.dense is not None:
            axes.append(c.first_dense(raw, self.dense))
        if self.typed is not None:
            first = self.typed
            if not isinstance(first, int):
                first = 0 if c.data.get("mlp_layer_types") is not None else c.count(first[0], default=first[1])
            axes.append(c.typed_layers(raw, first))
        return [*axes, c.mixture(raw, c.qwen_sparse(raw))] if self.stepped else axes


class ExpertKeys(Struct, frozen=True, kw_only=True):
    """Routed experts: the spellings of their number, of how many a token passes and of their width, and the defaults.

    `shared` is the key of how many every token passes, and its default, where there is `always` one or more or may be
    none; `shared_width` that of the width of one that every token passes, 0 where there is none; `fields` are further
    keys of the table.
    """

    n: str = "num_experts num_local_experts"
    k: str = "num_experts_per_tok"
    d_ff: str = "moe_intermediate_size"
    number: Any = MUST
    top: Any = MUST
    shared: tuple[str, Any] | None = None
    always: bool = False
    groups: tuple[int | None, int | None] = (None, None)
    shared_width: tuple[str, Any] | None = None
    fields: Table = field(default_factory=dict)

    def read(self, c: Config) -> Raw:
        """The table of experts in a config."""
        mixed: Raw = {}
        if self.shared_width:
            key, default = self.shared_width
            width = c.size(key, default=_default(default)) if default else c.count(key, default=0)
            mixed = {"d_ff_shared": width} if width else {}
        numbers = _default(self.number), _default(self.top)
        mixed |= {**c.experts(self.n.split(), self.k.split(), self.d_ff.split(), *numbers), **self.fields}
        if self.shared is None:
            return mixed
        if self.always:
            c.size(self.shared[0], default=self.shared[1])
        return c.with_shared(mixed, self.shared[0], default=self.shared[1], groups=self.groups)


def _number_or_flag(c: Config, key: str, default: float) -> Any:
    return c.flag(key, default=default) if isinstance(default, bool) else c.real(key, default=default)


def _default(value: object) -> object:
    return REQUIRED if value == MUST else value


def _windowed(
    c: Config,
    raw: Raw,
    default: int | None = None,
    null: object = None,
    near: str = "",
    period: int | tuple[str, int] = 1,
    switch: bool = False,
    listed: bool = False,
    unrotated: bool = False,
) -> Axis:
    """The axis of a window: in every layer, or, with `near`, in those that `layer_types` names, and where it is absent
    in all (where there is a window), in none, or but in the first or the last of each `period`, a number or a key with
    its default, which is not looked at beside a list where that is `listed`. With a `switch` use_sliding_window says
    whether there is one; `unrotated` layers without one know no positions."""
    n, on = raw["n_layers"], not switch or c.flag("use_sliding_window", default=False)
    window = c.size("sliding_window", default=default, null=_default(null)) if on else None
    c.ignore("sliding_window")
    if not near:
        return c.same_window(raw, window)
    if listed and (window is None or c.data.get("layer_types") is not None):
        near = "none"
    if listed:
        c.ignore("sliding_window_pattern")
    step = period if isinstance(period, int) else 1 if near == "none" else c.size(period[0], default=period[1])
    places = {"all": [window is not None] * n, "none": [False] * n}
    places |= {"but last": [bool((i + 1) % step) for i in range(n)]} if near == "but last" else {}
    places |= {"but first": [bool(i % step) for i in range(n)]} if near == "but first" else {}
    types = c.layer_types(n, [LOCAL if windowed else GLOBAL for windowed in places[near]])
    unknown: dict[str, Raw] = {"global": {"positions": {"form": "none"}}}
    return c.windows(raw, window, types, unknown if unrotated and window is not None else None)


def _switched(c: Config, raw: Raw, start: int) -> Axis:
    """Qwen's windows: off unless `use_sliding_window`, then from layer `max_window_layers` on."""
    n = raw["n_layers"]
    first = c.count("max_window_layers", default=None)
    window = c.size("sliding_window", default=4096 if c.data.get("use_sliding_window") else None, null=None)
    on = c.flag("use_sliding_window", default=False) and window is not None
    if on and first is None:
        c.assume("max_window_layers", first := start)
    default = [LOCAL if on and i >= (first or 0) else GLOBAL for i in range(n)]
    return c.windows(raw, window if on else None, c.layer_types(n, default))
