"""Formats of weights: what a quantiser stores for a tensor, to the bit, and which tensors it leaves wide.

A format is an element's bits, the scales of its groups, and the kinds of parts that it covers. Bits are whole numbers
of a whole tensor; bytes are made last, tensor by tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from txcalc.errors import Fault, InputError, UnknownName
from txcalc.ledger import Entry
from txcalc.num import ceil_div, product
from txcalc.parts.linear import Linear, Lookup
from txcalc.parts.part import Weight
from txcalc.units import ALIASES

# Kinds whose linear layers a quantiser covers. Routers, heads, embeddings and norms stay wide.
LAYERS = frozenset({"attention", "feed_forward", "experts", "shared_experts", "recurrent"})
EXPERTS = frozenset({"experts"})
EVERY_MATRIX = LAYERS | {"head", "embedding", "other"}


@dataclass(frozen=True)
class Format:
    """How weights are stored.

    bits     of an element
    block    elements of a row that share a scale; 0: none do; (rows, columns) for a tile of both
    scale    bits of a block's scale, with its zero point
    row      bits kept for every output row besides
    tensor   bits kept for every tensor besides
    covers   kinds of parts whose matrices are so stored; the rest is `wide`
    wide     bits of an element of the rest
    whole    rows that are no multiple of a block are refused, not padded
    dtype    what the accelerator multiplies in, where its peak is asked for
    """

    name: str
    bits: int
    covers: frozenset[str]
    source: str
    dtype: str = "bf16"
    block: int | tuple[int, int] = 0
    scale: int = 0
    row: int = 0
    tensor: int = 0
    wide: int = 16
    whole: bool = False

    def bits_of(self, weight: Weight, entry: Entry) -> int:
        """All bits of one tensor of a leaf.

        Errors: `InputError` where a row does not divide into the format's blocks.
        """
        if not self.stores(weight, entry):
            return self.wide * product(weight.shape)  # type: ignore[no-any-return]
        rows, columns = weight.shape
        tall, long = self.block if isinstance(self.block, tuple) else (1, self.block or columns)
        if self.whole and columns % long:
            fault = f"{entry.path} has rows of {columns:,}, which {self.name}'s blocks of {long} do not divide"
            raise InputError(
                "weights", [f"{fault} (llama.cpp stores it in another type: txcalc show FILE.gguf says which)"]
            )
        blocks = ceil_div(rows, tall) * ceil_div(columns, long) if self.block else 0
        bits: int = rows * columns * self.bits + blocks * self.scale + rows * self.row + self.tensor
        return bits

    def stores(self, weight: Weight, entry: Entry) -> bool:
        """True for a tensor in this format, False for one that stays wide."""
        leaf = entry.leaf
        matrix = isinstance(leaf, Linear) and weight.name == "weight"
        if self.covers is EVERY_MATRIX and isinstance(leaf, Lookup):
            matrix = entry.steps[-1].name == "tokens"
        return matrix and entry.kind in self.covers

    def stays_wide(self, entries: Iterable[Entry]) -> list[str]:
        """The kinds whose matrices are not stored in the format; norms and biases never are."""
        if self.wide == self.bits:
            return []
        left = ((e.kind, weight) for e in entries for weight in e.leaf.weights() if not self.stores(weight, e))
        return list({kind: None for kind, weight in left if len(weight.shape) > 1})

    def part_filled(self, entries: Iterable[Entry]) -> list[str]:
        """The matrices whose last blocks are not full, by path with their shape: each still has a scale of its own."""
        long = self.block[1] if isinstance(self.block, tuple) else self.block
        stored = ((e.path, w.shape) for e in entries for w in e.leaf.weights() if self.stores(w, e))
        return [f"{path} ({rows:,} × {columns:,})" for path, (rows, columns) in stored if long and columns % long]

    def bytes_of(self, entry: Entry) -> int:
        """Bytes of a leaf's tensors, all its copies."""
        one = sum(ceil_div(self.bits_of(weight, entry), 8) for weight in entry.leaf.weights())
        return one * entry.times  # type: ignore[no-any-return]

    @property
    def bits_per_weight(self) -> Fraction:
        """Bits of a covered weight with its block's scale: 4.25 for MXFP4."""
        elements = product(self.block) if isinstance(self.block, tuple) else self.block
        return Fraction(self.bits) + (Fraction(self.scale, elements) if elements else 0)


_AWQ = "AWQ (Lin et al. 2023, arXiv 2306.00978) as its checkpoints store it: fp16 scales, 4-bit zero points"
_OCP = "OCP Microscaling Formats v1.0 (2023), section 5: blocks of 32, an 8-bit scale"
_BNB = "QLoRA (Dettmers et al. 2023, arXiv 2305.14314), section 3"
_GGML = "ggml's block types (ggml-common.h): rows in blocks, scales inside"

# ggml types: elements of a block, bytes of a block, bits of an element.
_GGUF = {
    "q4_0": (32, 18, 4),
    "q4_1": (32, 20, 4),
    "q5_0": (32, 22, 5),
    "q5_1": (32, 24, 5),
    "q8_0": (32, 34, 8),
    "q2_k": (256, 84, 2),
    "q3_k": (256, 110, 3),
    "q4_k": (256, 144, 4),
    "q5_k": (256, 176, 5),
    "q6_k": (256, 210, 6),
    "iq2_xxs": (256, 66, 2),
    "iq2_xs": (256, 74, 2),
    "iq2_s": (256, 82, 2),
    "iq3_xxs": (256, 98, 3),
    "iq3_s": (256, 110, 3),
    "iq4_nl": (32, 18, 4),
    "iq4_xs": (256, 136, 4),
}


def _ggml(name: str, block: int, size: int, bits: int) -> Format:
    scale = 8 * size - block * bits
    return Format(name, bits, EVERY_MATRIX, _GGML, block=block, scale=scale, wide=32, whole=True)


def _plain(name: str, bits: int) -> Format:
    dtype = "fp32" if bits == 32 else name
    return Format(name, bits, EVERY_MATRIX, "no scales", dtype, wide=bits)


FORMATS = {
    form.name: form
    for form in (
        _plain("fp32", 32),
        _plain("bf16", 16),
        _plain("fp16", 16),
        Format("fp8", 8, LAYERS, "one fp32 scale a tensor, as vLLM quantises on loading", "fp8", tensor=32),
        Format(
            "fp8-block", 8, LAYERS, "DeepSeek-V3 (arXiv 2412.19437), section 3.3", "fp8", block=(128, 128), scale=32
        ),
        Format("int8", 8, LAYERS, "LLM.int8() (arXiv 2208.07339): an fp32 scale a row", "int8", row=32),
        Format("int4", 4, LAYERS, f"{_AWQ}, groups of 128", block=128, scale=20),
        Format("int4-g64", 4, LAYERS, f"{_AWQ}, groups of 64", block=64, scale=20),
        Format("int4-g32", 4, LAYERS, f"{_AWQ}, groups of 32", block=32, scale=20),
        Format("nf4", 4, LAYERS, f"{_BNB}: blocks of 64, fp32 scales", block=64, scale=32),
        Format("mxfp4", 4, EXPERTS, f"{_OCP}; on experts only, as gpt-oss has it", "bf16", block=32, scale=8),
        Format("nvfp4", 4, LAYERS, "NVFP4: blocks of 16, an fp8 scale, fp32 a tensor", "fp4", 16, 8, tensor=32),
        *(_ggml(name, *block) for name, block in _GGUF.items()),
    )
}

_MIXTURE = re.compile(r"i?q[2-6]_k?_?(s|m|l|xl|xs)\Z")


def format_of(name: str) -> Format:
    """The format of a name. Errors: `UnknownName` with the nearest; a mixture of llama.cpp is refused."""
    wanted = ALIASES.get(name.strip().lower(), name.strip().lower())
    if wanted in FORMATS:
        return FORMATS[wanted]
    if _MIXTURE.match(wanted):
        expected = "one type: a mixture gives each tensor its own"
        mend = "txcalc show FILE.gguf says a file's own size; or take q4_k or q6_k"
        raise InputError("weights", [Fault("weights", name, expected, mend)])
    raise UnknownName("weights", "format of weights", name, list(FORMATS), f"one of {', '.join(FORMATS)}")


def covering(form: Format, kinds: Iterable[str]) -> Format:
    """The format itself; or, of one for experts, the same over every layer where a model has none."""
    if form.covers is EXPERTS and "experts" not in set(kinds):
        return replace(form, covers=LAYERS)
    return form
