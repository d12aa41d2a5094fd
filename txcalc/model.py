"""What `load` returns: a tree of parts with its provenance, ready to be put in a ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txcalc.errors import Fault, InputError
from txcalc.ledger import Ledger, walk
from txcalc.num import usable, whole
from txcalc.parts.attention import LatentCore
from txcalc.parts.linear import Linear, Norm
from txcalc.parts.model import EncoderDecoder, FixedLength
from txcalc.parts.part import Composite, Leaf, Part, Workload
from txcalc.units import bits_of

if TYPE_CHECKING:
    from txcalc.checkpoint import Check

MAX_TOKENS = 10**12
# Parts that keep a state, not a past.
MIXERS = ("mamba", "mamba2", "delta", "rg_lru", "linear_attention", "time_mix", "short_convolution")


@dataclass(frozen=True, eq=False)
class Model:
    """A model: its tree (`root`), the description it was made from (`raw` as written, `spec` resolved), what was
    assumed or is worth knowing, what its checkpoint holds, where one was read, and whether it was `changed` since."""

    name: str
    root: Composite
    raw: Mapping[str, Any]
    spec: Mapping[str, Any]
    origin: str
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    checkpoint: Check | None = None
    changed: bool = False

    @property
    def params(self) -> int:
        """Unique parameters, a tied weight once."""
        return self.ledger().total("params")  # type: ignore[no-any-return]

    @property
    def whole(self) -> int | None:
        """Parameters of a multimodal model with its towers and projectors; None where these are not known."""
        if not self.spec["multimodal"]:
            return self.params
        return None if self.spec["beside"] is None else self.params + self.spec["beside"]

    @property
    def predictors(self) -> int:
        """Parameters of the multi-token-prediction layers beside the model: each a layer like its last, a matrix from
        2·D to D and three norms; the tables that they share are the model's (DeepSeek-V3, arXiv 2412.19437, 2.2)."""
        number = self.spec["predictors"]
        if not number:
            return 0
        stack = self.spec["stacks"][""]
        layer: int = self.ledger().at(f"layers.{stack['n_layers'] - 1}").total("params")
        d = stack["d_model"]
        norms = [Norm(d, "rms", False, None)] * 3
        beside = sum(weight.size for leaf in (Linear(2 * d, d, False), *norms) for weight in leaf.weights())
        return number * (layer + beside)  # type: ignore[no-any-return]

    @property
    def active(self) -> int:
        """Parameters that one token passes (k of E experts)."""
        return self.ledger().total("active")  # type: ignore[no-any-return]

    @property
    def kind(self) -> str:
        """decoder, encoder, encoder-decoder, vision, audio; a decoder without attention is recurrent, with both a
        hybrid."""
        kind: str = self.spec["kind"]
        if kind != "decoder":
            return kind
        parts = {part for layer in self.spec["stacks"][""]["layer"].values() for part in layer["parts"]}
        if not parts & {*MIXERS}:
            return "decoder"
        return "hybrid" if "attention" in parts else "recurrent"

    @property
    def context(self) -> int | None:
        """The longest context it was made for, in tokens; None if nobody said."""
        return self.spec["context"]  # type: ignore[no-any-return]

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
        """A checked workload. `source` is the encoder's positions: as many as `tokens` unless the model fixes them (a
        picture's, whatever is said).

        `decoding` is past > 0 for ints; over symbols or arrays say it.
        """
        sizes = (("batch", batch, 1), ("tokens", tokens, 1), ("past", past, 0), ("source", source, 1))
        faults = [
            Fault(name, value, f"a whole number from {least} to {MAX_TOKENS:,}")
            for name, value, least in (sizes[:3] if source is None else sizes)
            if not usable(value) or (whole(value) and not least <= value <= MAX_TOKENS)
        ]
        if logits not in ("all", "last"):
            faults.append(Fault("logits", logits, "'all' or 'last'"))
        if mla not in ("expanded", "absorbed"):
            faults.append(Fault("mla", mla, "'expanded' or 'absorbed'"))
        if not faults and self.spec["kind"] in ("encoder", "vision") and not (whole(past) and past == 0):
            faults.append(Fault("past", past, f"0: {self.name} is an encoder, it has no cache"))
        if not faults and source is not None and self.spec["kind"] not in ("encoder-decoder", "audio"):
            faults.append(Fault("source", source, f"nothing: {self.name} has no encoder apart", "drop it"))
        if faults:
            raise InputError("workload", faults)
        if source is None:
            audio = self.spec["stacks"].get("encoder", {}).get("audio")
            source = audio["positions"] if audio else tokens
        if isinstance(self.root, FixedLength):
            tokens = source = self.root.positions
        elif isinstance(self.root, EncoderDecoder) and self.root.positions is not None:
            source = self.root.positions
        step = decoding if decoding is not None else not (whole(past) and past == 0)
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
        """Every leaf under this workload; `conventions` are `workload`'s: logits, mla, keep_scores, decoding."""
        work = self.workload(batch, tokens, past, source, **conventions)
        weight = bits_of(dtype)
        return walk(self.root, work, (weight, weight, bits_of(kv_dtype)))

    @property
    def fixed_length(self) -> bool:
        """True where the number of positions is part of the model (vision): tokens are ignored."""
        return isinstance(self.root, FixedLength)

    @property
    def has_encoder_apart(self) -> bool:
        return isinstance(self.root, EncoderDecoder)

    @property
    def reads_no_ids(self) -> bool:
        """True where an encoder apart reads sound or a picture, of a length of its own."""
        encoder = self.spec["stacks"].get("encoder", {})
        return bool(encoder.get("audio") or encoder.get("vision"))

    @property
    def has_latents(self) -> bool:
        """Whether it caches latents (MLA), so that `mla` makes a difference."""
        return any(isinstance(leaf, LatentCore) for leaf in leaves_of(self.root))


def leaves_of(part: Part) -> Iterator[Leaf]:
    """Every leaf of a tree, equal copies once."""
    if isinstance(part, Leaf):
        yield part
    else:
        for child in part.parts:
            yield from leaves_of(child.part)
