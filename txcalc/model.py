"""The model that `load` returns: a tree of parts with its provenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from txcalc.description import Description, StackSpec, as_tables
from txcalc.errors import Fault, InputError, MissingExtra, check_call, no_attribute
from txcalc.frames import html
from txcalc.ledger import Ledger, walk
from txcalc.num import Num, counted, is_array, spread, usable, whole
from txcalc.parts.model import Root
from txcalc.parts.options import Table
from txcalc.parts.part import Composite, Workload
from txcalc.parts.tower import Counted
from txcalc.units import bits_of, cache_bits_of, cache_block, iec, number_of, parse_tokens, short

if TYPE_CHECKING:
    from txcalc.checkpoint import CheckpointCheck

MAX_TOKENS = 10**12
DEFAULT_TOKENS = 2048
TOWER_TOKENS = 256  # default tokens of a picture of any size

# Attributes that `dir` shows: what a model is, what it costs, and where it comes from.
SHOWN = (
    "active", "assumptions", "checkpoint", "context", "d_model", "description", "flops_per_token", "kind",
    "kv_bytes_per_token", "language", "ledger", "multimodal", "n_layers", "name", "notes", "origin", "params", "set",
    "stacks", "summary", "total_params", "tower_params", "towers", "vocab_size", "workload",
)  # fmt: skip

# Keys of a description that give its origin only.
PROVENANCE = {"name", "family", "source", "params", "active", "published", "model_type", "released", "variants"}


class Model(Struct, frozen=True, dict=True):
    """A model: its tree of parts and its description. Two models with the same description are equal, whatever its
    origin.

    root          the tree of parts
    raw           the description as written
    description   the same, resolved
    checkpoint    what its checkpoint holds, if one was read
    changed       whether the description was changed since it was read
    builder       makes a model from a raw description
    towers        vision and audio towers with their projectors, each a model whose tokens are those handed on
    text_only     plans leave the towers out

    >>> import txcalc
    >>> model = txcalc.load("llama-3.1-8b")
    >>> model.set(h_kv=32).params - model.params
    805306368
    >>> model.set(h_kv=32).set(h_kv=8) == model
    True
    """

    name: str
    root: Root
    raw: Table
    description: Description
    origin: str
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    checkpoint: CheckpointCheck | None = None
    changed: str = ""  # the note on what was changed; "": nothing
    builder: Callable[..., Model] | None = None
    towers: Mapping[str, Model] = field(default_factory=dict)
    text_only: bool = False
    layers_kept: str = ""  # which of its layers are left; "": all

    def __dir__(self) -> list[str]:
        return [*SHOWN, *(name for name in super().__dir__() if name.startswith("__"))]

    if not TYPE_CHECKING:  # which would take any name

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property's own error
                return object.__getattribute__(self, name)
            raise no_attribute(self, name)

    def language(self) -> Model:
        """A copy whose plans hold the language model alone."""
        return replace(self, text_only=True) if self.multimodal else self

    def set(self, changes: Mapping[str, Any] | None = None, /, **sizes: object) -> Model:
        """A copy with keys of its description changed, by letter or by name: `set(h_kv=8)`, `set({"norm.place":
        "post"})`; `sizes` are changes too. Errors: `InputError` with every fault; a change that changes no number is
        one."""
        keys = asked_for(changes, sizes)
        if not keys or self.builder is None:
            return self
        model = self.builder(self.raw, self.origin, self.assumptions, self.notes, changes=keys)
        changed = model.changed or self.changed
        return replace(model, name=self.name, changed=changed, text_only=self.text_only)

    def __eq__(self, other: object) -> bool:
        return self._content == other._content if isinstance(other, Model) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content)

    @cached_property
    def _content(self) -> str:
        """The description without its origin, as text; arrays and symbols by identity."""
        import json

        def as_text(value: object) -> str:
            return repr(value) if isinstance(value, range) else f"{type(value).__name__} at {id(value)}"

        content = {key: value for key, value in as_tables(self.description).items() if key not in PROVENANCE}
        content["towers"] = {name: tower._content for name, tower in self.towers.items()}
        return json.dumps(content, sort_keys=True, default=as_text)

    def __repr__(self) -> str:
        params = self.params
        size = f", {short(params)} parameters" if whole(params) else ""
        return f"<{self.name}: {self.kind}{size}>"

    def _repr_html_(self) -> str:
        ledger = self.ledger()
        params, active = ledger.by_kind("params"), ledger.by_kind("active")
        rows = [{"part": kind, "parameters": params[kind], "active": active.get(kind, 0)} for kind in params]
        total = {"part": "total", "parameters": ledger.total("params"), "active": ledger.total("active")}
        return html(f"{repr(self)[1:-1]}, context {self.context or 'not given'}", [*rows, total])

    @cached_property
    def params(self) -> int:
        """Unique parameters, a tied weight once."""
        return self.entries.total("params")

    @cached_property
    def entries(self) -> Ledger:
        """The ledger of one token, cached."""
        return self.ledger()

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """Results computed from this tree, which live as long as it: equal models may have different trees."""
        return {}

    @property
    def total_params(self) -> int | None:
        """Parameters with towers and projectors; None where those are not known."""
        if not self.multimodal:
            return self.params
        return None if self.tower_params is None else self.params + self.tower_params

    @property
    def tower_params(self) -> int | None:
        """Parameters of towers and projectors; None where not known."""
        counted, towers = self.description.undescribed_tower_params, self.towers.values()
        return None if counted is None and not towers else sum(tower.params for tower in towers) + (counted or 0)

    @property
    def all_notes(self) -> list[str]:
        """Its assumptions and notes, as a command prints them."""
        return [*(f"assumed {assumption}" for assumption in self.assumptions), *self.notes]

    @property
    def left_out(self) -> tuple[str, ...]:
        """A note for plans that hold only the language model of a multimodal one."""
        if not self.multimodal or (self.tower_params is not None and not self.text_only):
            return ()
        params = self.tower_params
        size = f": {params:,} parameters, {iec(2 * params)} in 16 bits" if params else ""
        return (f"{self.name}: its towers and projectors are left out{size}",)

    @property
    def tower_roots(self) -> tuple[Composite, ...]:
        """The towers that plans of its memory hold too."""
        if not self.multimodal or self.text_only or self.tower_params is None:
            return ()
        counted = self.description.undescribed_tower_params
        return (*(tower.root for tower in self.towers.values()), *([Counted(params=counted)] if counted else ()))

    @property
    def reads_any_size(self) -> bool:
        """Whether a tower reads pictures or sound of any size."""
        return any(not tower.fixed_length for tower in self.towers.values())

    def tower_ledgers(self, language: Ledger, tokens: object, dtype: str) -> dict[str, Ledger]:
        """The ledgers of its towers, each handing on `tokens` (None: 256) where its number is not fixed; none in a
        decode step."""
        work, length = language.work, TOWER_TOKENS if tokens is None else tokens
        return {
            name: tower.ledger(work.batch, length, source=work.source if tower.root.prompt else None, dtype=dtype)
            for name, tower in self.towers.items()
            if not work.past
        }

    @property
    def predictors(self) -> int:
        """Parameters of the multi-token-prediction layers: each a layer like the last, a matrix from 2·D to D and three
        norms; embedding and head are the model's (DeepSeek-V3, arXiv 2412.19437, 2.2)."""
        return self.description.predictors * self.predictor.params if self.predictor else 0

    @cached_property
    def predictor(self) -> Model | None:
        """A multi-token-prediction layer as a draft model; None without one."""
        if not self.description.predictors:
            return None
        (stack,) = self.root.stacks
        return replace(self, name=f"{self.name}'s prediction layer", root=stack.predictor, checkpoint=None)

    @property
    def active(self) -> int:
        """Parameters used by one token (k of E experts)."""
        return self.entries.total("active")

    @property
    def flops_per_token(self) -> Fraction:
        """Forward FLOPs of matrix products per token, averaged over a prefill of the usual length (its context, at most
        2,048 tokens); with windows, only the query-key pairs that they let through. `ledger` has other lengths.

        >>> import txcalc
        >>> txcalc.load("llama-3.1-8b").flops_per_token
        Fraction(16083058688, 1)
        """
        ledger = self.ledger(tokens=self.usual_tokens)
        return Fraction(ledger.total("flops_masked" if self.has_windows else "flops"), ledger.work.tokens)

    @property
    def kv_bytes_per_token(self) -> int | None:
        """Bytes by which the next token lengthens the KV cache of one sequence, in 16 bits, after the usual length;
        None where the cache grows in steps.

        >>> import txcalc
        >>> txcalc.load("llama-3.1-8b").kv_bytes_per_token
        131072
        """
        growth = self.ledger(tokens=self.usual_tokens).cache_now.growth
        return None if growth is None else 2 * growth

    def summary(self) -> str:
        """Its kind and sizes, and what it costs, in a few lines.

        >>> import txcalc
        >>> print(txcalc.load("gpt2").summary())
        gpt2: decoder, 12 layers, D = 768, V = 50,257 (tied)
        MHA 12/12 heads of 64; plain F = 3,072
        124,439,808 parameters, 285 M FLOPs per token at 1,024 tokens, 36 KiB of KV cache per token
        """
        tokens = self.workload(tokens=self.usual_tokens).tokens
        cost = f"{self.params:,} parameters, {short(self.flops_per_token)} FLOPs per token at {tokens:,} tokens"
        cache = f", {iec(self.kv_bytes_per_token)} of KV cache per token" if self.kv_bytes_per_token else ""
        return "\n".join([*self.outline(), cost + cache])

    def outline(self) -> tuple[str, str]:
        """Its kind and sizes in one line, its layers in another."""
        layers = " + ".join(str(stack.n_layers) for stack in self.stacks)
        first = f"{self.name}: {self.kind}, {layers} {'layer' if layers == '1' else 'layers'}, D = {self.d_model:,}"
        if self.vocab_size is not None:
            first += f", V = {self.vocab_size:,}" + (" (tied)" if self.description.last.head.tied else "")
        groups = [group for stack in self.root.stacks for group in stack.groups]
        numbers: dict[str, int] = {}  # of the layers with it
        for parts in (lambda block: block.leaves(), lambda block: (branch.part for branch in block.branches)):
            for group in groups:
                for words in dict.fromkeys(part.describe() for part in parts(group.block)):
                    numbers[words] = numbers.get(words, 0) + group.count
        total = sum(group.count for group in groups)
        return first, "; ".join(
            words if number == total else f"{number_of('layer', number)}: {words}"
            for words, number in numbers.items()
            if words
        )

    @property
    def kind(self) -> str:
        """decoder, encoder, encoder-decoder, vision, audio; a decoder without attention is recurrent, one with both a
        hybrid."""
        kind = self.description.kind
        if kind != "decoder":
            return kind
        kinds = {layer.options(part).kind for layer in self.description.layers for part in layer.parts}
        if "recurrent" not in kinds:
            return "decoder"
        return "hybrid" if "attention" in kinds else "recurrent"

    @property
    def multimodal(self) -> bool:
        """Whether it has towers besides its language model."""
        return self.description.multimodal

    @property
    def stacks(self) -> list[StackSpec]:
        """The description of each stack, an encoder first."""
        return list(self.description.stacks.values())

    @property
    def d_model(self) -> Num:
        """Width of the residual stream, of an encoder–decoder's decoder."""
        return self.description.last.d_model

    @property
    def n_layers(self) -> Num:
        """Number of layers, of an encoder–decoder's decoder."""
        return self.description.last.n_layers

    @property
    def vocab_size(self) -> Num | None:
        """Rows of the token embedding, padding included; None without one."""
        return self.description.last.vocab_size

    @property
    def context(self) -> Num | None:
        """The context length in tokens; None if not known."""
        return self.description.context

    @property
    def usual_tokens(self) -> int:
        """Default workload: its context, at most 2,048 tokens, and at most the rows of its position table."""
        rows = self.description.last.positions.get("rows")
        return min(most for most in (DEFAULT_TOKENS, self.context, rows) if most)

    @property
    def position_limit(self) -> Num | None:
        """The most tokens that its table of positions has a row for; None: it has no table."""
        positions = self.description.last.positions
        rows = positions.get("rows") if positions.form in ("learned", "relative") else None
        return rows and min(most for most in (self.context, rows) if most)

    def reaches(self, tokens: Num) -> bool:
        """Whether it takes a prompt of `tokens`: its length is not fixed, and its table of positions is long enough."""
        return not self.fixed_length and (self.position_limit is None or tokens <= self.position_limit)

    @check_call
    def workload(
        self,
        batch: Any = 1,
        tokens: Any = 1,
        past: Any = 0,
        source: Any = None,
        *,
        logits: str = "all",
        mla: str = "expanded",
        keep_scores: bool = False,
        decoding: bool | None = None,
    ) -> Workload:
        """A checked workload. Lengths are whole numbers, texts (`"32k"`), or NumPy arrays of whole numbers. There are
        as many encoder positions as `tokens` by default; a model that fixes them (a picture) ignores `source`.

        batch        sequences
        tokens       new tokens of each
        past         tokens of each that are in the cache
        source       encoder positions
        logits       "all" positions, or of the "last" alone
        mla          latent attention "expanded" or "absorbed"
        keep_scores  saved activations as eager attention has them
        decoding     past > 0 by default; if given, symbols and arrays pass unchecked

        Errors: `InputError` with every fault; arrays of floats are one.
        """
        lengths = {"batch": batch, "tokens": tokens, "past": past, "source": source}
        if source is None:
            del lengths["source"]
        sizes = {name: _length(value, decoding is not None) for name, value in lengths.items()}
        faults = [
            Fault(name, value, f"a whole number from {least} to {MAX_TOKENS:,}{' in each item' * is_array(value)}")
            for name, value in sizes.items()
            if not _is_valid_length(value, least := LEAST[name], decoding is not None)
        ]
        if logits not in ("all", "last"):
            faults.append(Fault("logits", logits, "'all' or 'last'"))
        if mla not in ("expanded", "absorbed"):
            faults.append(Fault("mla", mla, "'expanded' or 'absorbed'"))
        if not faults:
            batch, tokens, past, source = (sizes.get(name) for name in LEAST)
            nothing = not past.any() if is_array(past) else whole(past) and past == 0
            if not nothing and not self.decodes:
                faults.append(Fault("past", past, f"0: {self.name} is an encoder, it has no cache"))
            if is_array(past) and decoding is None and not nothing and not past.all():
                faults.append(Fault("past", past, "all 0 or all above 0: ask for prefills and decode steps separately"))
            if spread(sizes.values()) is None:
                shapes = ", ".join(f"{name} {value.shape}" for name, value in sizes.items() if is_array(value))
                faults.append(Fault("shapes", shapes, "arrays that broadcast together"))
        if not faults and source is not None and not self.takes_source:
            numbers = {name: tower.root.fixed for name, tower in self.towers.items()}
            fixed = [
                f"its {name} tower makes {number:,} tokens" for name, number in numbers.items() if number is not None
            ]
            why = " and ".join(fixed) or f"{self.name} has no encoder of its own length"
            faults.append(Fault("source", source, f"nothing: {why}", "drop it"))
        if faults:
            raise InputError("workload", faults)
        tokens = self.root.whole(tokens)
        if source is None:
            source = self.encoded(tokens)
        if self.root.fixed is not None:
            tokens, source = (
                tokens if self.has_encoder_apart else self.root.fixed,
                source if self.root.prompt else self.root.fixed,
            )
        step = decoding if decoding is not None else not nothing
        return Workload(batch, tokens, past, source, step, logits == "last", mla == "absorbed", keep_scores)

    def ledger(
        self,
        batch: object = 1,
        tokens: object = 1,
        past: object = 0,
        source: Any = None,
        *,
        dtype: str = "bf16",
        kv_dtype: str = "bf16",
        **conventions: Any,
    ) -> Ledger:
        """Every leaf under this workload: `batch`, `tokens`, `past` and `source`, or by letter B, T, P and T_src, and
        the `conventions` of `workload`: logits, mla, keep_scores, decoding. `dtype` is of weights and activations,
        `kv_dtype` of the cache.

        For lists and arrays of lengths the figures are arrays of exact Python integers.

        >>> import txcalc
        >>> txcalc.load("gpt2").ledger(batch=8, tokens="1k").total("flops")
        2333186457600
        >>> txcalc.load("gpt2").ledger(T=1024).total("cache")
        18874368
        """
        sizes = {"batch": batch, "tokens": tokens, "past": past, "source": source}
        letters = conventions.keys() & LETTERS.keys()
        for letter in letters:
            name = LETTERS[letter]
            if sizes[name] is not None and not (isinstance(sizes[name], int) and sizes[name] == LEAST[name]):
                raise InputError("ledger", [f"{name} and {letter} say the same thing twice"])
            sizes[name] = conventions.pop(letter)
        work = self.workload(**sizes, **conventions)
        weight = bits_of(dtype)
        return self.counted(work, (weight, weight, self.cache_bits(kv_dtype)))

    def cache_bits(self, dtype: str) -> int:
        """Bits of a cached element in a dtype, with its share of scales.

        Errors: `UnknownName`; `InputError` where a block of elements that share scales does not divide a head, as
        llama.cpp and MLX refuse it.
        """
        bits, block = cache_bits_of(dtype), cache_block(dtype)
        if block == 1 or not self.decodes:
            return bits
        heads = [layer.attention for layer in self.description.last.layer.values() if layer.attention]
        for width in (width for head in heads for width in (head.d_head, head.d_v) if width is not None):
            if width % block:
                expected = f"a format whose blocks divide a head of {width} ({dtype} has blocks of {block} elements)"
                raise InputError("--kv", [Fault("--kv", dtype, expected, "--kv bf16")])
        return bits

    def encoded(self, tokens: Num) -> Any:
        """Default encoder positions: as many as `tokens` unless the model fixes them."""
        encoder = self.description.stacks.get("encoder")
        return encoder.audio.positions if encoder and encoder.audio else tokens

    def counted(self, work: Workload, bits: tuple[int, int, int]) -> Ledger:
        """The ledger of a checked workload; `bits` per weight, activation and cached element."""
        return walk(self.root, work, bits)

    @property
    def takes_source(self) -> bool:
        """Whether encoder positions are given apart from tokens."""
        return self.description.kind in ("encoder-decoder", "audio") or bool(self.root.prompt)

    @property
    def fixed_length(self) -> bool:
        """Whether the model fixes the number of positions (vision): tokens are ignored."""
        return self.root.fixed is not None and not self.has_encoder_apart

    @property
    def decodes(self) -> bool:
        """Whether it decodes with a cache: encoders and vision models do not."""
        return self.description.kind not in ("encoder", "vision")

    @property
    def has_encoder_apart(self) -> bool:
        return len(self.root.stacks) > 1

    @property
    def reads_no_ids(self) -> bool:
        """Whether its encoder reads audio or a picture, of its own length."""
        encoder = self.description.stacks.get("encoder")
        return bool(encoder and (encoder.audio or encoder.vision))

    @property
    def has_windows(self) -> bool:
        """Whether queries see less than all earlier keys (windows, chunks, selected keys), so that masked products are
        much fewer than dense ones."""
        return any(leaf.max_keys is not None for leaf in self.root.leaves())

    @property
    def has_latents(self) -> bool:
        """Whether it caches latents (MLA), so that `mla` matters."""
        return any(leaf.kernels == "latent" for leaf in self.root.leaves())


def asked_for(changes: object, sizes: Mapping[str, object]) -> dict[str, object]:
    """The keys to change, from a mapping and keywords. Errors: `InputError` for anything but a mapping, keys that are
    not texts, and arrays of values."""
    if changes is not None and not isinstance(changes, Mapping):
        raise InputError("changes", [Fault("changes", changes, "keys with their values", 'h_kv=4, or {"h_kv": 4}')])
    keys = {**(changes or {}), **sizes}
    faults = [Fault("changes", {key: keys[key]}, "keys that are texts") for key in keys if not isinstance(key, str)]
    faults += [
        Fault(str(key), value, "a number, a text, a list or a table")
        for key, value in keys.items()
        if not _known(value)
    ]
    faults += [
        Fault(key, value, "one value", f'txcalc.sweep(model, over={{"{key}": values}}) varies it')
        for key, value in keys.items()
        if is_array(value) and value.shape
    ]
    if faults:
        raise InputError("changes", faults)
    return keys


def _known(value: object) -> bool:
    """Whether a description may hold a value: TOML's types, and numbers of any kind."""
    plain = value is None or isinstance(value, str | list | tuple | Mapping)
    return plain or (hasattr(value, "__mul__") and not isinstance(value, bytes | bytearray))


LEAST = {"batch": 1, "tokens": 1, "past": 0, "source": 1}
LETTERS = {"B": "batch", "T": "tokens", "P": "past", "T_src": "source"}


def _length(value: object, unchecked: bool) -> Any:
    """A length as a number; a text that is not one stays."""
    if type(value) is int:
        return value
    if isinstance(value, str):
        try:
            return parse_tokens(value)
        except InputError:
            return value
    if isinstance(value, list | tuple):
        try:
            import numpy
        except ImportError:
            raise MissingExtra("a list of lengths", "numpy", "sweep") from None
        value = numpy.array([_length(item, unchecked) for item in value], dtype=object)
    return value if unchecked else counted(value)


def _is_valid_length(value: Any, least: int, unchecked: bool) -> bool:
    if type(value) is int:
        return least <= value <= MAX_TOKENS
    if unchecked or not is_array(value):
        return usable(value) and not (whole(value) and not least <= value <= MAX_TOKENS)
    return bool(value.size) and all(whole(length) and least <= length <= MAX_TOKENS for length in value.flat)
