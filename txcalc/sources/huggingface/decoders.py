"""Decoders that differ little from Llama: one reader; a row of `decoders.json` gives a family's differences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import getitem
from typing import Any

from msgspec import Struct, field

from txcalc.parts.options import Table
from txcalc.sources.huggingface.config import GLOBAL, LOCAL, Config, Raw, with_kinds
from txcalc.sources.huggingface.families import decoder_row
from txcalc.sources.huggingface.keys import REQUIRED

# An axis of `with_kinds`: the kind of every layer, and the table of each kind.
Axis = tuple[list[str], dict[str, Raw]]
# The default of a size that a config must give.
MUST = "required"


def decoder(c: Config, name: str = "", **changes: Any) -> Raw:
    """A config read by the row of its model type, or by that of the type `name` with `changes`."""
    return Decoder(**decoder_row(name or c.model_type) | changes).read(c)


class Decoder(Struct, frozen=True, kw_only=True):
    """Differences of a class from Llama: SwiGLU, RMSNorms before each branch, rotary positions, an untied head.

    A key without which the class fails has "required" as its default. In `norm` and `head` an object stands for a value
    of the config: its `key` and `default`, and of a flag the values that it selects, `on` and `off`.

    d_model … names     key names of the widths, the context and the heads; `tables` are nested tables to read
    remote              the class is remote code
    kv, d_head, whole   arguments of `Config.heads`; `width_names` are key names of d_head, without any it is D/h
    bias                keys of biases, each with its default and its matrices (no letters: all four); or the default
                        of `attention_bias`. `fixed_bias`: matrices that always have one
    qk_norm, qk_key     the norm of Q and K; the flag that enables it, with its default
    attention           further keys of the table; `square_o`: why n_heads · d_head must equal d_model
    latent              arguments of `Config.mla`, which replaces attention
    experts             fields of `ExpertKeys`
    ungated, act        the activation of an ungated or of a gated feed-forward; `act_key` its key names (""
                        if it has none); `mlp` further keys
    d_ff, d_ff_factor   key names of its width, and its default (without key names its value) as a multiple of d_model
    mlp_bias, mlp_key   default and name of the key of its biases; `mlp_fixed_bias`: it always has them
    norm                arguments of `Config.rms` or, with form layer, of `Config.layer_norm`; `keys` are names of
                        eps
    theta … even        arguments of `Config.rotary`; `theta_names` are key names of the base; `interleaved`: rotates
                        adjacent pairs. Or `positions`, a fixed table; `learned`: key names and default of the
                        number of rows, and rows beyond them; `rotary_key`: key and default of the rotary width
    scaled_embedding    the embedding is multiplied by √D
    tied, head          the default of a tied head; arguments of `Config.lm_head`
    require, ignore     the only supported value of keys, and why; keys that change no size
    derived             keys that repeat a size of the description (its path), and why
    mtp                 a note says how many multi-token-prediction layers are not counted
    window … layer_bases
                        layer kinds: windows (arguments of `_window_kinds`) or `qwen_windows` (the default of
                        max_window_layers); `first_dense` (the default of first_k_dense_replace), `mlp_types`
                        (`mlp_layer_types`; by default as many first layers are dense as the number or key says)
                        or `sparse_step` (`Config.qwen_sparse`); `layer_bases`: a rotary base per layer
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
    fixed_bias: str | bool = ""
    qk_norm: str = ""
    qk_key: tuple[str, bool] | None = None
    chunked: bool = False
    latent: Sequence[Any] | None = None
    attention: Table = field(default_factory=dict)
    square_o: str = ""
    experts: Table | None = None
    ungated: str = ""
    act: str = "silu"
    act_key: str | None = None
    d_ff: str = "intermediate_size"
    d_ff_factor: int | None = None
    mlp: Table = field(default_factory=dict)
    mlp_bias: bool | None = None
    mlp_key: str = "mlp_bias"
    mlp_fixed_bias: bool = False
    norm: Table = field(default_factory=dict)
    theta: float = 10000.0
    theta_names: str = "rope_theta rotary_emb_base"
    partial: float = 1.0
    kind: str = ""
    even: bool = False
    interleaved: bool = False
    positions: Table | None = None
    learned: tuple[str, int, int] | None = None
    rotary_key: tuple[str, int] | None = None
    scaled_embedding: bool = False
    embedding: Table | None = None
    tied: bool = False
    head: Table = field(default_factory=dict)
    require: Sequence[tuple[Any, str, str]] = ()
    derived: Sequence[tuple[str, str, str]] = ()
    ignore: str = ""
    mtp: bool = False
    window: Table | None = None
    qwen_windows: int | None = None
    first_dense: int | None = None
    mlp_types: int | tuple[str, int] | None = None
    sparse_step: bool = False
    layer_bases: bool = False

    def read(self, c: Config) -> Raw:
        """The description in a config."""
        if self.remote:
            c.require_published_class()
        raw = c.stack(self.d_model.split(), self.n_layers.split(), self.context.split())
        for name in self.tables.split():
            c.table(name)
        attention = self._latent(c, raw) if self.latent else self._attention(c, raw)
        parts: Raw = {"mixed": ExpertKeys(**self.experts).read(c)} if self.experts else {"mlp": self._mlp(c, raw)}
        parts |= {"norm": self._norm(c), "positions": self._positions(c, attention)}
        head = _filled(c, self.head)
        embedding = {**self.embedding} if self.embedding else None
        embedding = {"scale": raw["d_model"] ** 0.5} if self.scaled_embedding else embedding
        raw = c.decoder(raw, attention, embedding=embedding, head=c.lm_head(self.tied, **head), **parts)
        if self.latent:
            raw["latent"] = raw.pop("attention")
        for value, keys, why in self.require:
            c.require_value(value, *keys.split(), why=why)
        for key, path, why in self.derived:
            c.require_value(reduce(getitem, path.split("."), raw), key, why=why)
        c.ignore(*self.ignore.split())
        if self.mtp:
            c.note_mtp_layers()
        return c.with_layer_bases(raw) if self.layer_bases else with_kinds(raw, *self._axes(c, raw))

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
        elif self.fixed_bias:
            table["bias"] = self.fixed_bias if self.fixed_bias is True else [*self.fixed_bias]
        if self.qk_norm:
            on = self.qk_key is None or c.flag(self.qk_key[0], default=self.qk_key[1])
            table["qk_norm"] = self.qk_norm if on else "none"
        if self.square_o and table["n_heads"] * table["d_head"] != raw["d_model"]:
            c.fault("head_dim", table["d_head"], "hidden_size / num_attention_heads", self.square_o)
        if "head_dim" not in self.width_names:
            c.require_value(table["d_head"], "head_dim", why="its class divides the width by the heads")
        return {**table, **self.attention, **(c.chunked_window() if self.chunked else {})}

    def _latent(self, c: Config, raw: Raw) -> Raw:
        table: Raw = c.mla(*(self.latent or ()))
        if self.whole:
            c.divides(table["n_heads"], raw["d_model"], "num_attention_heads", "hidden_size")
        return table

    def _mlp(self, c: Config, raw: Raw) -> Raw:
        bias = self.mlp_fixed_bias if self.mlp_bias is None else c.flag(self.mlp_key, default=self.mlp_bias)
        default = REQUIRED if self.d_ff_factor is None else self.d_ff_factor * raw["d_model"]
        width = c.size(*self.d_ff.split(), default=default, null=default) if self.d_ff else default
        keys = "hidden_act" if self.ungated else "hidden_act hidden_activation"
        keys = keys if self.act_key is None else self.act_key
        activation = c.activation(*keys.split(), default=self.ungated or self.act)
        return {"d_ff": width, "gated": not self.ungated, "activation": activation, "bias": bias, **self.mlp}

    def _norm(self, c: Config) -> Raw:
        norm = _filled(c, self.norm)
        form, keys = norm.pop("form", "rms"), norm.pop("keys", "").split()
        return (c.layer_norm if form == "layer" else c.rms)(*keys, **norm)

    def _positions(self, c: Config, attention: Raw) -> Raw:
        if self.positions is not None:
            return {**self.positions}
        if self.learned:
            keys, default, extra_rows = self.learned
            return {"form": "learned", "rows": c.size(*keys.split(), default=default) + extra_rows}
        if self.rotary_key:
            positions: Raw = {"form": "rotary", "rotary_dims": c.size(self.rotary_key[0], default=self.rotary_key[1])}
        elif self.latent:
            interleaved = c.flag("rope_interleave", default=True)
            return {"form": "rotary", "theta": c.rotary(attention["d_rope"])["theta"], "interleaved": interleaved}
        else:
            names = self.theta_names.split()
            positions = c.rotary(attention["d_head"], self.theta, self.partial, self.kind, self.even, names)
        return positions | ({"interleaved": True} if self.interleaved else {})

    def _axes(self, c: Config, raw: Raw) -> list[Axis]:
        axes: list[Axis] = [] if self.window is None else [_window_kinds(c, raw, **self.window)]
        if self.qwen_windows is not None:
            axes.append(_qwen_windows(c, raw, self.qwen_windows))
        if self.first_dense is not None:
            axes.append(c.first_dense(raw, self.first_dense))
        if self.mlp_types is not None:
            dense = self.mlp_types
            if not isinstance(dense, int):
                dense = 0 if c.data.get("mlp_layer_types") is not None else c.count(dense[0], default=dense[1])
            axes.append(c.typed_layers(raw, dense))
        return [*axes, c.mixture(raw, c.qwen_sparse(raw))] if self.sparse_step else axes


class ExpertKeys(Struct, frozen=True, kw_only=True):
    """Keys of experts: `n`, `k` and `d_ff` are key names of their number, of experts per token and of their width;
    `number` and `top` the defaults.

    `shared` is the key of the number of shared experts, with its default; `shared_required`: 0 is refused.
    `shared_width` is the key of the width of one shared expert, with its default (0: none); `fields` are further keys
    of the table.
    """

    n: str = "num_experts num_local_experts"
    k: str = "num_experts_per_tok"
    d_ff: str = "moe_intermediate_size"
    number: Any = MUST
    top: Any = MUST
    shared: tuple[str, Any] | None = None
    shared_required: bool = False
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
        if self.shared_required:
            c.size(self.shared[0], default=self.shared[1])
        return c.with_shared(mixed, self.shared[0], default=self.shared[1], groups=self.groups)


def _filled(c: Config, table: Table) -> Raw:
    """A table of a row, with the values of the config in place of objects that name its keys."""
    return {name: _value(c, **entry) if isinstance(entry, dict) else entry for name, entry in table.items()}


def _value(c: Config, key: str, default: float, on: object = True, off: object = False) -> object:
    """A number, or the value that a flag selects."""
    if isinstance(default, bool):
        return on if c.flag(key, default=default) else off
    return c.real(key, default=default)


def _default(value: object) -> object:
    return REQUIRED if value == MUST else value


def _window_kinds(
    c: Config,
    raw: Raw,
    key: str = "sliding_window",
    default: int | str | None = None,
    null: object = None,
    local: str = "",
    period: int | tuple[str, int] = 1,
    switch: bool = False,
    list_overrides: bool = False,
    nope_global: bool = False,
) -> Axis:
    """The window layer kinds; `key` is the key of the width. Without `local` every layer has the window; with it, those
    that `layer_types` names.

    `local` gives the default of `layer_types`: "all" (if there is a window), "none", or all layers "but first" or
    "but last" of each `period`, which is a number, or a key with its default. `list_overrides`: that key is ignored
    if the config has `layer_types`. `switch`: use_sliding_window enables the window. `nope_global`: layers without a
    window have no positions.
    """
    n, on = raw["n_layers"], not switch or c.flag("use_sliding_window", default=False)
    window = c.size(key, default=_default(default), null=_default(null)) if on else None
    c.ignore(key)
    if not local:
        return c.same_window(raw, window)
    if list_overrides and (window is None or c.data.get("layer_types") is not None):
        local = "none"
    if list_overrides:
        c.ignore("sliding_window_pattern")
    step = period if isinstance(period, int) else 1 if local == "none" else c.size(period[0], default=period[1])
    if local in ("but first", "but last"):
        shift = local == "but last"
        windowed = [(i + shift) % step != 0 for i in range(n)]
    else:
        windowed = [local == "all" and window is not None] * n
    types = c.layer_types(n, [LOCAL if on else GLOBAL for on in windowed])
    nope: dict[str, Raw] = {"global": {"positions": {"form": "none"}}}
    return c.windows(raw, window, types, nope if nope_global and window is not None else None, key)


def _qwen_windows(c: Config, raw: Raw, start: int) -> Axis:
    """Qwen's windows: with `use_sliding_window`, in the layers from `max_window_layers` on."""
    n = raw["n_layers"]
    first = c.count("max_window_layers", default=None)
    window = c.size("sliding_window", default=4096 if c.data.get("use_sliding_window") else None, null=None)
    on = c.flag("use_sliding_window", default=False) and window is not None
    if on and first is None:
        c.assume("max_window_layers", first := start)
    default = [LOCAL if on and i >= (first or 0) else GLOBAL for i in range(n)]
    return c.windows(raw, window if on else None, c.layer_types(n, default))
