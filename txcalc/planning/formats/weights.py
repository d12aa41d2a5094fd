"""Formats of weights: the exact bits that a quantiser stores for a tensor, and the tensors that it does not quantise.

A format has the bits of an element, the scales of its groups, and the kinds of parts that it quantises. Bits are
counted per tensor and rounded up to bytes at the end. In `Mixed`, every tensor of every layer has its own format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import cycle
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from txcalc.errors import InputError
from txcalc.ledger import Entry
from txcalc.num import Num, ceil_div, product
from txcalc.parts.part import Weight
from txcalc.units import ALIASES

# Kinds whose linear layers a quantiser covers. Routers, heads, embeddings and norms are not quantised.
LAYERS = frozenset({"attention", "feed_forward", "experts", "shared_experts", "recurrent"})
EXPERTS = frozenset({"experts"})
EVERY_MATRIX = LAYERS | {"head", "embedding", "other"}


class Format(Struct, frozen=True):
    """A storage format of weights.

    bits     bits of an element
    block    elements of a row that share a scale (0: none), or a tile of (rows, columns)
    scale    bits of a block's scale, with its zero point
    row      additional bits per output row
    column   additional bits per input column
    tensor   additional bits per tensor
    pooled   elements of a tensor, over all rows, that share additional 32 bits; 0: none
    covers   kinds of parts whose matrices are quantised
    wide     bits of an element of all other weights
    whole    rows that are no multiple of a block are refused, not padded
    dtype    dtype of the accelerator's products
    filled   no row ends within a block: blocks continue in the next row (bitsandbytes), or engines pad rows (MXFP4)
    """

    name: str
    bits: int
    covers: frozenset[str]
    source: str
    dtype: str = "bf16"
    block: int | tuple[int, int] = 0
    scale: int = 0
    row: int = 0
    column: int = 0
    tensor: int = 0
    pooled: int = 0
    wide: int = 16
    whole: bool = False
    filled: bool = False

    def __hash__(self) -> int:
        return hash(self.name)  # a hash of all fields is slower than the look-ups that need it

    def parts(self, weight: Weight, entry: Entry) -> list[tuple[Format | None, int]]:
        """The formats of a tensor in its layers, with the number of layers of each; None: not quantised."""
        return [(self if self.stores(weight, entry) else None, 1)]

    def bits_of(self, weight: Weight, entry: Entry) -> Num | Fraction:
        """The bits of one tensor of a leaf, averaged over its layers. Errors: `InputError` if blocks do not divide its
        rows."""
        parts = self.parts(weight, entry)
        if len(parts) == 1:
            return self._bits(parts[0][0], weight, entry)
        total = sum([self._bits(form, weight, entry) * number for form, number in parts])
        return Fraction(total, sum([number for _, number in parts]))

    def bits_per_element(self, entry: Entry) -> Fraction:
        """The bits of all tensors of a leaf, per element."""
        bits = sum(self.bits_of(tensor, entry) for tensor in entry.leaf.tensors)
        return Fraction(bits, sum(product(tensor.shape) for tensor in entry.leaf.tensors))

    def _bits(self, form: Format | None, weight: Weight, entry: Entry) -> Num:
        if form is None:
            return self.wide * product(weight.shape)
        if form.whole and weight.shape[1] % form.long:
            rows, blocks = f"rows of {weight.shape[1]:,}", f"{form.name}'s blocks of {form.long}"
            mend = "llama.cpp stores it in another type: a mixture such as Q4_K_M says which"
            raise InputError("weights", [f"{entry.path} has {rows}, which {blocks} do not divide ({mend})"])
        return form.matrix_bits(weight)

    def matrix_bits(self, weight: Weight) -> int:
        """All bits of a matrix in this format, with its scales; a partial block has a full scale."""
        rows, columns = weight.shape
        tall, long = self.block if isinstance(self.block, tuple) else (1, self.block or columns)
        blocks = ceil_div(rows, tall) * ceil_div(columns, long) if self.block else 0
        pooled = ceil_div(rows * columns, self.pooled) * 32 if self.pooled else 0
        scales: int = blocks * self.scale + rows * self.row + columns * self.column + self.tensor + pooled
        return rows * columns * self.bits + scales

    def stores(self, weight: Weight, entry: Entry) -> bool:
        """Whether the format quantises a tensor."""
        covered = entry.kind in self.covers and (self.covers is EVERY_MATRIX or entry.leaf.row is None)
        return covered and _is_matrix(entry, weight)

    def stays_wide(self, entries: Iterable[Entry]) -> list[str]:
        """The kinds with matrices that are not quantised; norms and biases never are."""
        if self.wide == self.bits:
            return []
        unquantised = ((e.kind, weight) for e in entries for weight in e.leaf.tensors if not self.stores(weight, e))
        return list({kind: None for kind, weight in unquantised if len(weight.shape) > 1})

    def left_wide(self, entries: Iterable[Entry]) -> str:
        """A note on weights that are not quantised; "" if all matrices are."""
        kinds = self.stays_wide(entries)
        return f"leaves {', '.join(kinds)}, norms and biases at {self.wide} bits" if kinds else ""

    def part_filled(self, entries: Iterable[Entry]) -> Iterator[str]:
        """The paths and shapes of matrices whose last blocks are partial, but have a scale."""
        for entry in entries:
            for weight in entry.leaf.tensors:
                for form, _ in self.parts(weight, entry):
                    if form and form.long and weight.shape[-1] % form.long:
                        rows, columns = weight.shape
                        yield f"{entry.path} ({rows:,} × {columns:,})"

    def bytes_of(self, entry: Entry) -> int:
        """Bytes of all copies of a leaf's tensors."""
        total = 0
        for weight in entry.leaf.tensors:
            parts = self.parts(weight, entry)
            copies = entry.times // sum([number for _, number in parts])
            for form, number in parts:
                total += ceil_div(self._bits(form, weight, entry), 8) * number * copies
        return total

    def dtype_of(self, entry: Entry) -> str | None:
        """The dtype of the accelerator's products with a leaf's matrix; None: that of unquantised weights."""
        tensors = entry.leaf.tensors
        return self.dtype if entry.leaf.matrix is not None and tensors and self.stores(tensors[0], entry) else None

    def kernel(self, dtype: str) -> str:
        """The class of matrix kernels (`curves.Efficiency`) for this format, with products in a dtype."""
        if dtype not in ("bf16", "fp16", "fp32"):
            return "fp8-block" if dtype == "fp8" and isinstance(self.block, tuple) else dtype
        if self.bits > 8:
            return dtype
        if self.bits < 8 and self.block == 256:  # llama.cpp's K and I types, whose blocks have scales in two steps
            return f"k{self.bits}"
        return "mxfp4" if (self.bits, self.block, self.scale) == (4, 32, 8) else "w4" if self.bits < 8 else "w8"

    def kernels(self, entry: Entry, dtype: str) -> dict[str, int]:
        """The classes of kernels of a leaf's quantised layers, with the number of layers of each."""
        layers: dict[str, int] = {}
        weights = entry.leaf.tensors if entry.leaf.matrix else ()  # none if another layer has them
        for form, number in (part for weight in weights for part in self.parts(weight, entry)):
            if form:
                layers[form.kernel(dtype)] = layers.get(form.kernel(dtype), 0) + number
        return layers

    @property
    def long(self) -> int:
        """Elements of a row that share a scale; 0: none."""
        return self.block[1] if isinstance(self.block, tuple) else self.block

    @property
    def bits_per_weight(self) -> Fraction:
        """Bits of a covered weight with its block's scale: 4.25 for MXFP4."""
        elements = product(self.block) if isinstance(self.block, tuple) else self.block
        return Fraction(self.bits) + (Fraction(self.scale, elements) if elements else 0)


_AWQ = "AWQ (Lin et al. 2023, arXiv 2306.00978) as its checkpoints store it: fp16 scales, 4-bit zero points"
_OCP = "OCP Microscaling Formats v1.0 (2023), section 5: blocks of 32, an 8-bit scale"
_BNB = "QLoRA (Dettmers et al. 2023, arXiv 2305.14314), section 3"
_GGML = "ggml's block types (ggml-common.h): rows in blocks, scales inside"

# ggml types: elements of a block, bytes of a block; the digit of a name is the bits of an element.
_GGUF = {
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "iq1_s": (256, 50),
    "iq1_m": (256, 56),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "iq2_xxs": (256, 66),
    "iq2_xs": (256, 74),
    "iq2_s": (256, 82),
    "iq3_xxs": (256, 98),
    "iq3_s": (256, 110),
    "iq4_nl": (32, 18),
    "iq4_xs": (256, 136),
    "tq1_0": (256, 54),
    "tq2_0": (256, 66),
    "q1_0": (128, 18),
}


def _ggml(name: str, block: int, size: int) -> Format:
    bits = int(next(filter(str.isdigit, name)))
    scale = 8 * size - block * bits
    return Format(name, bits, EVERY_MATRIX, _GGML, block=block, scale=scale, wide=32, whole=True)


def _plain(name: str, bits: int) -> Format:
    dtype = "fp32" if bits == 32 else name
    return Format(name, bits, EVERY_MATRIX, "no scales", dtype, wide=bits)


# Types that other formats have the names of.
_SHARED = {"mxfp4": (32, 17), "nvfp4": (64, 36)}
GGML = {name: _ggml(name, *block) for name, block in (_GGUF | _SHARED).items()}
FORMATS = {
    form.name: form
    for form in (
        _plain("fp32", 32),
        _plain("bf16", 16),
        _plain("fp16", 16),
        Format("fp8", 8, LAYERS, "one fp32 scale per tensor, as vLLM quantises on loading", "fp8", tensor=32),
        Format(
            "fp8-block", 8, LAYERS, "DeepSeek-V3 (arXiv 2412.19437), section 3.3", "fp8", block=(128, 128), scale=32
        ),
        Format("int8", 8, LAYERS, "LLM.int8() (arXiv 2208.07339): an fp32 scale per row", "int8", row=32),
        Format("int4", 4, LAYERS, f"{_AWQ}, groups of 128", block=128, scale=20),
        Format("int4-g64", 4, LAYERS, f"{_AWQ}, groups of 64", block=64, scale=20),
        Format("int4-g32", 4, LAYERS, f"{_AWQ}, groups of 32", block=32, scale=20),
        Format("nf4", 4, LAYERS, f"{_BNB}: blocks of 64, fp32 scales", block=64, scale=32, filled=True),
        Format("mxfp4", 4, EXPERTS, f"{_OCP}; on experts only, as gpt-oss has it", block=32, scale=8, filled=True),
        Format("nvfp4", 4, LAYERS, "NVFP4: blocks of 16, an fp8 scale, fp32 a tensor", "fp4", 16, 8, tensor=32),
        *(form for name, form in GGML.items() if name not in _SHARED),
    )
}


# The default formats of quantisation methods: groups of 128, bitsandbytes' 4 and 8 bits.
METHODS = {
    **dict.fromkeys(("awq", "gptq", "awq-4bit", "gptq-4bit", "int4-awq", "int4-gptq", "int4-g128", "w4a16"), "int4"),
    **dict.fromkeys(("4bit", "4-bit", "bnb-4bit", "qlora"), "nf4"),
    **dict.fromkeys(("8bit", "8-bit", "bnb-8bit", "llm.int8", "w8a8"), "int8"),
}

Numbers = Sequence[int | None]  # indices of layers; None: outside all layers
Forms = Sequence[Format | None]


class Mixed(Format, frozen=True, dict=True):
    """Weights with a format per matrix and layer; the fields are those of the format with most elements. `choices`: by
    an entry's name, indices of layers with one format for each, or one for all; other weights are not quantised.
    """

    choices: Mapping[str, Sequence[tuple[Numbers, Forms]]] = field(default_factory=dict)
    __hash__ = Format.__hash__

    @cached_property
    def _parts(self) -> dict[Any, list[tuple[Format | None, int]]]:
        """The results of `parts`, by an entry's name and layers."""
        return {}

    @classmethod
    def of(
        cls, name: str, source: str, entries: Iterable[Entry], choose: Callable[[Entry, Numbers], Forms], wide: int
    ) -> Format:
        """A model's weights with the formats that `choose` gives to the layers of every matrix: one for each of its
        layers, or one for all."""
        choices: dict[str, list[tuple[Numbers, Forms]]] = {}
        elements: dict[Format, int] = {}
        parts: dict[Any, list[tuple[Format | None, int]]] = {}
        for entry in entries:
            # A tied head has no weights of its own, but a later stage of a pipeline has a copy.
            if not any(_is_matrix(entry, weight) for weight in entry.leaf.untied.tensors):
                continue
            numbers = entry.owners
            forms, layer_params = choose(entry, numbers), entry.params // len(numbers)
            if not any(forms):
                continue
            choices.setdefault(entry.name, []).append((numbers, forms))
            counts = [(forms[0], len(numbers))] if len(forms) == 1 else [*_layers_by_format(forms).items()]
            parts[entry.name, numbers] = counts
            for form, number in counts:
                if form:
                    elements[form] = elements.get(form, 0) + layer_params * number
        main = max(elements, key=lambda form: elements[form], default=FORMATS["fp32" if wide == 32 else "bf16"])
        mixed = cls(**{**asdict(main), "name": name, "source": source, "wide": wide, "choices": choices})
        mixed._parts.update(parts)
        return mixed

    @cached_property
    def table(self) -> dict[str, dict[int | None, Format | None]]:
        """The formats by an entry's name and the layer's number."""
        return {
            name: {number: form for numbers, forms in runs for number, form in zip(numbers, cycle(forms), strict=False)}
            for name, runs in self.choices.items()
        }

    def parts(self, weight: Weight, entry: Entry) -> list[tuple[Format | None, int]]:
        if entry.name not in self.choices or not _is_matrix(entry, weight):
            return [(None, 1)]
        key = entry.name, entry.owners
        if key not in self._parts:
            row = self.table[entry.name]
            self._parts[key] = list(_layers_by_format([row.get(number) for number in key[1]]).items())
        return self._parts[key]

    def stores(self, weight: Weight, entry: Entry) -> bool:
        """Whether a tensor is quantised in some layer."""
        return any(form for form, _ in self.parts(weight, entry))

    def dtype_of(self, entry: Entry) -> str | None:
        """The dtype of the accelerator's products in most layers."""
        tensors = entry.leaf.tensors
        if not (entry.leaf.matrix is not None and tensors):
            return None
        form = max(self.parts(tensors[0], entry), key=lambda item: item[1])[0]
        return form.dtype if form else None


def _layers_by_format(forms: Forms) -> dict[Format | None, int]:
    """The number of layers of each format."""
    return {forms[0]: len(forms)} if len(set(map(id, forms))) == 1 else Counter(forms)


def _is_matrix(entry: Entry, weight: Weight) -> bool:
    """Whether a quantiser may store a tensor: a linear layer's matrix, or the table of tokens."""
    leaf = entry.leaf
    if leaf.row is not None:
        return entry.duty == "tokens"
    return (leaf.matrix is not None or leaf.blocks) and weight.name == "weight"


def plain(name: str) -> str:
    """The name of a format in the tables, also for names of methods (AWQ, 4bit) and llama.cpp's dtypes (f16)."""
    short = name.strip().lower()
    return METHODS.get(short) or ALIASES.get(short, short)
