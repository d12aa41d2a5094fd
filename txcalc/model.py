"""What `load` returns: a tree of parts with its provenance, ready to be put in a ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from txcalc.errors import Fault, InputError, called
from txcalc.frames import html
from txcalc.ledger import Ledger, walk
from txcalc.num import counted, is_array, spread, usable, whole
from txcalc.parts.frozen import record
from txcalc.parts.model import Root
from txcalc.parts.part import Composite, Workload
from txcalc.parts.place import mechanism
from txcalc.parts.tower import Counted
from txcalc.units import bits_of, iec, parse_tokens, short

if TYPE_CHECKING:
    from txcalc.checkpoint import CheckpointCheck

MAX_TOKENS = 10**12
USUAL_TOKENS = 2048
TOWER_TOKENS = 256  # of a picture of any size, where nobody says

# Of a description, what says where it comes from, and not what it is.
PROVENANCE = {"name", "family", "source", "params", "active", "published", "model_type", "released", "variants"}


@record
class Model:
    """A model: its tree (`root`), the description it was made from (`raw` as written, `spec` resolved), what was
    assumed or is worth knowing, what its checkpoint holds, where one was read, and whether it was `changed` since;
    `builder` makes one of a raw description. `towers` are those of a multimodal model that are trees of parts, each
    with its projector: models whose tokens are those that they hand on; `text_only`: plans leave them out.

    Two are equal that have the same description, wherever it comes from.

    >>> import txcalc
    >>> model = txcalc.load("llama-3.1-8b")
    >>> model.set(h_kv=32).params - model.params
    805306368
    >>> model.set(h_kv=32).set(h_kv=8) == model
    True
    """

    name: str
    root: Root
    raw: Mapping[str, Any]
    spec: Mapping[str, Any]
    origin: str
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    checkpoint: CheckpointCheck | None = None
    changed: bool = False
    builder: Callable[..., Model] | None = None
    towers: Mapping[str, Model] = field(default_factory=dict)
    text_only: bool = False

    def language(self) -> Model:
        """The same, of which plans hold the language model alone."""
        return replace(self, text_only=True) if self.spec["multimodal"] else self

    def set(self, changes: Mapping[str, Any] | None = None, /, **sizes: Any) -> Model:
        """The same model with keys of its description changed, by letter or by name: `set(h_kv=8)`, `set({"norm.place":
        "post"})`. Errors: `InputError` with every fault, also for a change that changes no number."""
        asked = asked_for(changes, sizes)
        if not asked or self.builder is None:
            return self
        made = self.builder(self.raw, self.origin, self.assumptions, self.notes, changes=asked)
        changed = made.changed or self.changed
        return replace(made, name=self.name, changed=changed, text_only=self.text_only)

    def __eq__(self, other: object) -> bool:
        return self._content == other._content if isinstance(other, Model) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content)

    @cached_property
    def _content(self) -> str:
        """The description without its provenance, as a text; arrays and symbols by identity."""
        import json

        def other(value: Any) -> str:
            return repr(value) if isinstance(value, range) else f"{type(value).__name__} at {id(value)}"

        told = {key: value for key, value in self.spec.items() if key not in PROVENANCE}
        return json.dumps(told, sort_keys=True, default=other)

    def __repr__(self) -> str:
        params = self.params
        size = f", {short(params)} parameters" if whole(params) else ""
        return f"<{self.name}: {self.kind}{size}>"

    def _repr_html_(self) -> str:
        ledger = self.ledger()
        params, active = ledger.by_kind("params"), ledger.by_kind("active")
        rows = [{"part": kind, "parameters": params[kind], "active": active.get(kind, 0)} for kind in params]
        total = {"part": "total", "parameters": ledger.total("params"), "active": ledger.total("active")}
        return html(f"{repr(self)[1:-1]}, context {self.context or 'not said'}", [*rows, total])

    @cached_property
    def params(self) -> int:
        """Unique parameters, a tied weight once."""
        return self.entries.total("params")  # type: ignore[no-any-return]

    @cached_property
    def entries(self) -> Ledger:
        """Every leaf, with its weights: the ledger of one token, made once."""
        return self.ledger()

    @property
    def whole(self) -> int | None:
        """Parameters of a multimodal model with its towers and projectors; None where these are not known."""
        if not self.spec["multimodal"]:
            return self.params
        return None if self.beside is None else self.params + self.beside

    @property
    def beside(self) -> int | None:
        """Parameters of its towers and projectors; None where these are not known."""
        counted, towers = self.spec["beside"], self.towers.values()
        return None if counted is None and not towers else sum(one.params for one in towers) + (counted or 0)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What plans of its memory say where they hold the language model of a multimodal one alone."""
        if not self.spec["multimodal"] or (self.beside is not None and not self.text_only):
            return ()
        held = f": {self.beside:,} parameters, {iec(2 * self.beside)} in 16 bits" if self.beside else ""
        return (f"{self.name}: its towers and projectors are left out{held}",)

    @property
    def held_beside(self) -> tuple[Composite, ...]:
        """What plans of its memory hold beside the language model: its towers."""
        if not self.spec["multimodal"] or self.text_only or self.beside is None:
            return ()
        counted = self.spec["beside"]
        return (*(tower.root for tower in self.towers.values()), *([Counted(params=counted)] if counted else ()))

    @property
    def reads_any_size(self) -> bool:
        """Whether a tower of it reads pictures or sound of any size."""
        return any(not tower.fixed_length for tower in self.towers.values())

    def tower_ledgers(self, language: Ledger, tokens: Any, dtype: str) -> dict[str, Ledger]:
        """The ledgers of its towers beside the language model's, for so many tokens that each hands on (None: 256)
        where that is no part of it; a decode step runs none of them."""
        work, asked = language.work, TOWER_TOKENS if tokens is None else tokens
        return {
            name: tower.ledger(work.batch, asked, source=work.source if tower.root.prompt else None, dtype=dtype)
            for name, tower in self.towers.items()
            if not work.past
        }

    @property
    def predictors(self) -> int:
        """Parameters of the multi-token-prediction layers beside the model: each a layer like its last, a matrix from
        2·D to D and three norms; the tables that they share are the model's (DeepSeek-V3, arXiv 2412.19437, 2.2)."""
        return self.spec["predictors"] * self.predictor.params if self.predictor else 0

    @cached_property
    def predictor(self) -> Model | None:
        """One of these layers as a model that drafts tokens; None: there are none."""
        if not self.spec["predictors"]:
            return None
        (stack,) = self.root.stacks
        return replace(self, name=f"{self.name}'s prediction layer", root=stack.predictor, checkpoint=None)

    @property
    def active(self) -> int:
        """Parameters that one token passes (k of E experts)."""
        return self.entries.total("active")  # type: ignore[no-any-return]

    @property
    def kind(self) -> str:
        """decoder, encoder, encoder-decoder, vision, audio; a decoder without attention is recurrent, with both a
        hybrid."""
        kind: str = self.spec["kind"]
        if kind != "decoder":
            return kind
        parts = {part for layer in self.spec["stacks"][""]["layer"].values() for part in layer["parts"]}
        kinds = {mechanism(part).kind for part in parts}
        if "recurrent" not in kinds:
            return "decoder"
        return "hybrid" if "attention" in kinds else "recurrent"

    @property
    def context(self) -> int | None:
        """The longest context it was made for, in tokens; None if nobody said."""
        return self.spec["context"]  # type: ignore[no-any-return]

    @property
    def usual_tokens(self) -> int:
        """How many tokens are asked about where nobody says: its context, at most 2,048, and no more than its table of
        positions has rows."""
        decoder = next(reversed(self.spec["stacks"].values()))
        rows = decoder["positions"].get("rows")
        return min(most for most in (USUAL_TOKENS, self.context, rows) if most)

    @called
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
        """A checked workload. Lengths are whole numbers, texts (`"32k"`), or NumPy arrays of whole numbers. `source` is
        the encoder's positions: as many as `tokens` unless the model fixes them (a picture's, whatever is said).

        `decoding` is past > 0; where it is given, symbols and arrays are taken as they are.
        Errors: `InputError` with every fault; arrays of floats are one.
        """
        given = {"batch": batch, "tokens": tokens, "past": past, "source": source}
        if source is None:
            del given["source"]
        sizes = {name: _length(value, decoding is not None) for name, value in given.items()}
        faults = [
            Fault(name, value, f"a whole number from {least} to {MAX_TOKENS:,}{_several(value)}")
            for name, value in sizes.items()
            if not _within(value, least := LEAST[name], decoding is not None)
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
                faults.append(Fault("past", past, "all 0 or all above: a decode step is asked for apart"))
            if spread(sizes.values()) is None:
                shapes = ", ".join(f"{name} {value.shape}" for name, value in sizes.items() if is_array(value))
                faults.append(Fault("shapes", shapes, "arrays that go together"))
        if not faults and source is not None and not self.takes_source:
            fixed = {name: one.root.fixed for name, one in self.towers.items() if one.root.fixed is not None}
            said = " and ".join(f"its {name} tower makes {n:,} tokens" for name, n in fixed.items())
            said = said or f"{self.name} has no encoder apart"
            faults.append(Fault("source", source, f"nothing: {said}", "drop it"))
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
        batch: Any = 1,
        tokens: Any = 1,
        past: Any = 0,
        source: Any = None,
        *,
        dtype: str = "bf16",
        kv_dtype: str = "bf16",
        **conventions: Any,
    ) -> Ledger:
        """Every leaf under this workload; `conventions` are `workload`'s: logits, mla, keep_scores, decoding.

        Of arrays of lengths, the figures are arrays of exact whole numbers (Python's).

        >>> import txcalc
        >>> txcalc.load("gpt2").ledger(batch=8, tokens="1k").total("flops")
        2333186457600
        """
        work = self.workload(batch, tokens, past, source, **conventions)
        weight = bits_of(dtype)
        return self.counted(work, (weight, weight, bits_of(kv_dtype, "--kv")))

    def encoded(self, tokens: Any) -> Any:
        """The encoder's positions where nobody says: as many as `tokens` unless the model fixes them."""
        audio = self.spec["stacks"].get("encoder", {}).get("audio")
        return audio["positions"] if audio else tokens

    def counted(self, work: Workload, bits: tuple[int, int, int]) -> Ledger:
        """The ledger of a checked workload; `bits` of a weight, an activation and a cached element."""
        return walk(self.root, work, bits)

    @property
    def takes_source(self) -> bool:
        """True where the encoder's positions are given apart from the tokens."""
        return self.spec["kind"] in ("encoder-decoder", "audio") or self.root.prompt

    @property
    def fixed_length(self) -> bool:
        """True where the number of positions is part of the model (vision): tokens are ignored."""
        return self.root.fixed is not None and not self.has_encoder_apart

    @property
    def decodes(self) -> bool:
        """Whether it goes on from past tokens with a cache: an encoder and a vision model do not."""
        return self.spec["kind"] not in ("encoder", "vision")

    @property
    def has_encoder_apart(self) -> bool:
        return len(self.root.stacks) > 1

    @property
    def reads_no_ids(self) -> bool:
        """True where an encoder apart reads sound or a picture, of a length of its own."""
        encoder = self.spec["stacks"].get("encoder", {})
        return bool(encoder.get("audio") or encoder.get("vision"))

    @property
    def has_windows(self) -> bool:
        """Whether a query sees less than all that is before it (windows, chunks, chosen keys), so that a masked product
        is much less than a dense one."""
        spans = (getattr(leaf, "span", None) for leaf in self.root.leaves())
        return any(span is not None and span.most is not None for span in spans)

    @property
    def has_latents(self) -> bool:
        """Whether it caches latents (MLA), so that `mla` makes a difference."""
        return any(leaf.kernels == "latent" for leaf in self.root.leaves())


def asked_for(changes: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The keys to change, of a mapping and of keywords. Errors: `InputError` for what is no mapping, for keys that are
    no text, and for arrays of values."""
    if changes is not None and not isinstance(changes, Mapping):
        raise InputError("changes", [Fault("changes", changes, "keys with their values", 'h_kv=4, or {"h_kv": 4}')])
    asked = {**(changes or {}), **sizes}
    faults = [Fault("changes", {key: asked[key]}, "keys that are texts") for key in asked if not isinstance(key, str)]
    faults += [
        Fault(str(key), value, "a number, a text, a list or a table")
        for key, value in asked.items()
        if not _known(value)
    ]
    faults += [
        Fault(key, value, "one value", f'txcalc.sweep(model, over={{"{key}": values}}) varies it')
        for key, value in asked.items()
        if is_array(value) and value.shape
    ]
    if faults:
        raise InputError("changes", faults)
    return asked


def _known(value: Any) -> bool:
    """Whether a description may hold a value: what TOML has, and whatever multiplies as numbers do."""
    plain = value is None or isinstance(value, str | list | tuple | Mapping)
    return plain or (hasattr(value, "__mul__") and not isinstance(value, bytes | bytearray))


LEAST = {"batch": 1, "tokens": 1, "past": 0, "source": 1}


def _length(value: Any, taken: bool) -> Any:
    """A length as formulas take it; a text that is none stays one."""
    if type(value) is int:
        return value
    if isinstance(value, str):
        try:
            return parse_tokens(value)
        except InputError:
            return value
    return value if taken else counted(value)


def _within(value: Any, least: int, taken: bool) -> bool:
    """Whether a length can be one."""
    if type(value) is int:
        return least <= value <= MAX_TOKENS
    if taken or not is_array(value):
        return usable(value) and not (whole(value) and not least <= value <= MAX_TOKENS)
    return bool(value.size) and all(whole(one) and least <= one <= MAX_TOKENS for one in value.flat)


def _several(value: Any) -> str:
    return f", or an array of such ({value.dtype})" if is_array(value) else ""
