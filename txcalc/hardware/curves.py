"""The time of a kernel: one curve per class of operation, with a few parameters.

    t = start_s + depth_s·depth + (t_memory^p + t_compute^p)^(1/p)

t_memory and t_compute are what its traffic and its arithmetic take at the shares of the bandwidth and of the peak that
large ones reach; p = ∞ is the larger of the two, as with perfect overlap, p = 1 their sum. What does not shrink with
the size is added: a start, and the time along the dimension that is processed sequentially. With positive seconds
and shares of at most 1 no curve is below the larger of traffic at the full bandwidth and arithmetic at the peak.

Source   the shape is Hockney's (1994, Parallel Computing 20, 389) with a blend of its two bounds; the parameters are
         fitted to measurements of kernels alone (`presets/efficiency/`)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import exp, gcd, inf, lgamma
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from txcalc.units import DTYPE_BITS

PEAKS = (*DTYPE_BITS, "fp6")
SHARES = ("attention_prefill", "attention_decode", "memory", "link")
SECONDS = ("launch_s", "collective_s", "host_s")
# The curve that each single figure describes.
OF = {
    "attention_prefill": "attention.prefill",
    "attention_decode": "attention.decode",
    "link": "link.all_reduce",
    "collective_s": "link.all_to_all",
}
KINDS = ("matmul", "experts", "attention", "optimizer")
PYTORCH = "torch"  # the engine whose kernels are PyTorch's own: what modules run, and training
# Dtypes that were not measured, and those whose curves stand for them.
ALIKE = {"fp6": "fp8", "int8": "fp8", "fp8-block": "fp8", "int4": "fp4", "mxfp4": "w4", "fp4": "fp8"}
ALIKE |= {**{f"k{bits}": "w4" for bits in range(1, 8)}, "decode-fp8": "decode", "latent_decode-fp8": "latent_decode"}


class Curve(NamedTuple):
    """The curve of a class of kernels.

    compute   share of the peak that the largest reach
    memory    share of the bandwidth that the largest reach
    start_s   seconds of a start, at any size
    depth_s   seconds for each element of the dimension that is processed sequentially: the inputs of a matrix product,
              the keys of an attention
    blend     p of the blend; inf: the larger of memory and compute
    quantise  of products whose inputs are narrowed first: passes over them, each reading the wide and writing the
              narrow ones at the bandwidth that `memory` of all else reaches
    tile      of grouped products: rows that each group is filled up by
    score     of attention: FLOPs that a score costs at least, however narrow the heads (its exponential)
    gathered  of grouped products whose groups are spread over ranks: passes over all ranks' inputs, of 2 bytes, that
              each rank makes, whoever has their groups
    unpack    of products of packed weights with one row: FLOPs that a weight costs, its unpacking too; each further row
              costs what one of a large product does
    apart     of attention's decode: 1 where each query head reads its keys and values itself, 0 where those of a
              group read them once
    backward  of attention: FLOPs of backward, at forward's rate, over those of forward; where it was not measured, its
              five products, of which one computes the scores again, over two (Dao 2023, arXiv 2307.08691, section 3.1)
    aligned_4, aligned_2   `compute` of products with a matrix whose rows are multiples of 4 bytes but not of 16, or of
              2 bytes but not of 4; 0: not measured, `compute` stands for them
    """

    compute: float = 1.0
    memory: float = 1.0
    start_s: float = 0.0
    depth_s: float = 0.0
    blend: float = inf
    quantise: float = 0.0
    tile: float = 0.0
    score: float = 0.0
    gathered: float = 0.0
    unpack: float = 0.0
    apart: float = 0.0
    backward: float = 2.5
    aligned_4: float = 0.0
    aligned_2: float = 0.0

    def of_matrix(self, matrix: tuple[int, int], bits: int) -> Curve:
        """The curve of products with a matrix of (inputs, outputs), `bits` per element: rows of the operands and of the
        result have as many elements."""
        row_bytes = gcd(*matrix) * bits // 8
        if row_bytes % 16 == 0:
            return self
        return self._replace(compute=(self.aligned_2 if row_bytes % 4 else self.aligned_4) or self.compute)

    def blended(self, memory: Any, compute: Any) -> Any:
        """Seconds of traffic and arithmetic together, at their shares."""
        if self.blend == inf:
            return max(memory, compute)
        return (memory**self.blend + compute**self.blend) ** (1 / self.blend)


class Link(NamedTuple):
    """The parameters of a collective over a link: t = start_s + rank_s·(ranks − 1) + bytes/(share of the link).

    share    of the link one way, for 1 MiB between two ranks
    growth   exponent with which the share grows with the bytes, up to 1
    crowd    exponent with which it falls with the ranks, where they share a bus or a host
    """

    share: float = 1.0
    growth: float = 0.0
    crowd: float = 0.0
    start_s: float = 0.0
    rank_s: float = 0.0

    def reached(self, size: float, ranks: int) -> float:
        """The share of the link that a message of `size` bytes from each rank reaches."""
        grown: float = self.share * (size / 2**20) ** self.growth * (ranks / 2) ** -self.crowd if size else 1.0
        return min(1.0, grown)

    def latency(self, ranks: int) -> float:
        """Seconds that a message of any size takes."""
        return self.start_s + self.rank_s * (ranks - 1)


def untouched(chance: float, tokens: float, spread: float) -> float:
    """The share of experts that no token of a batch chooses, where each is chosen with a probability of `chance` on
    average, and these differ: Beta-distributed with a first parameter of `spread`, so that a small one means a few
    popular experts, and inf the same chance for all, (1 − chance)^tokens. Exact for one token: 1 − chance.

    Source   the beta-binomial's probability of none (Skellam 1948, J. R. Stat. Soc. B 10, 257)
    """
    if chance >= 1 or tokens <= 0:
        return float(tokens <= 0)
    if spread == inf:
        return float((1 - chance) ** tokens)
    beta = spread * (1 / chance - 1)
    return exp(lgamma(beta + tokens) - lgamma(beta) + lgamma(spread + beta) - lgamma(spread + beta + tokens))


class Efficiency(Struct, frozen=True, dict=True):
    """What kernels reach of an accelerator's datasheet: a curve for every class of operation, two figures for all else.

    curves      by class: `matmul.bf16`, `experts.fp8`, `attention.prefill`, …; an engine's own before it, as in
                `trtllm.experts.fp8`. The classes of products are dtypes that are multiplied in, `fp8-block` with scales
                by block, `w8`, `w4` and `mxfp4` for weights that are stored narrow and multiplied wide; `-fp8` is of a
                cache of fewer than 16 bits; of an optimizer those of its state
    links       by kind of collective: `all_reduce`; `all_to_all` for every other
    memory      share of the bandwidth that all else reaches: norms, activations, lookups, scans
    launch_s    seconds that all else takes to start
    host_s      seconds that a host takes to issue a kernel, while the accelerator works on the ones before: a pass of
                eager code takes the longer of the two. 0: captured once and replayed, as servers do, or not measured
    spread      how unevenly tokens choose experts (`curves.untouched`)
    cited       where each was read or measured, by its key; a link's is `link.all_reduce`
    cards       presets of the accelerators on which kernels were measured
    """

    curves: Mapping[str, Curve]
    links: Mapping[str, Link]
    memory: float
    launch_s: float
    spread: float
    cited: Mapping[str, str]
    host_s: float = 0.0
    cards: tuple[str, ...] = ()

    @cached_property
    def _nearest(self) -> dict[tuple[str, str, str], Curve]:
        """The curves found so far, by kind, class and engine."""
        return {}

    def curve(self, kind: str, name: str, engine: str = "", layers: Mapping[str, int] | None = None) -> Curve:
        """The curve of a class for an engine; of a dtype that has none, that of the one nearest to it. `layers`: the
        classes of a product's layers with how many are of each, where their weights are packed in several ways."""
        curve = self._nearest.get((kind, name, engine))
        if curve is None:
            key = self.named(kind, name, engine)
            curve = self.curves[key]
            if not key.endswith(f".{name}"):
                curve = curve._replace(aligned_4=0.0, aligned_2=0.0)  # measured for elements of another width
            self._nearest[kind, name, engine] = curve
        if curve.unpack and layers:
            costs = sum(self.curve(kind, layer, engine).unpack * number for layer, number in layers.items())
            return curve._replace(unpack=costs / sum(layers.values()))
        return curve

    def named(self, kind: str, name: str, engine: str = "") -> str:
        """The key of the curve that `curve` finds. Errors: `KeyError` where there is none."""
        owners, names = (f"{engine}.{kind}", kind), (name, ALIKE.get(name, name), "bf16")
        keys = (f"{owner}.{key}" for key in names for owner in owners)
        curve = next((key for key in keys if key in self.curves), None)
        if curve is None:
            raise KeyError(name)
        return curve

    def transfer(self, kind: str) -> Link:
        """The parameters of a collective of a kind."""
        return self.links.get(kind, self.links["all_to_all"])

    @property
    def matmul(self) -> dict[str, float]:
        """Share of the peak that the largest products reach, by dtype."""
        return {dtype: self.curve("matmul", dtype).compute for dtype in PEAKS}

    @property
    def attention_prefill(self) -> float:
        """Share of the peak that the attention of long prompts reaches."""
        return self.curves["attention.prefill"].compute

    @property
    def attention_decode(self) -> float:
        """Share of the bandwidth that the attention of large batches of long contexts reaches."""
        return self.curves["attention.decode"].memory

    @property
    def link(self) -> float:
        """Share of the link one way that an all-reduce of 1 MiB between two reaches."""
        return self.links["all_reduce"].share

    @property
    def collective_s(self) -> float:
        """Seconds that a transfer takes however small it is."""
        return self.links["all_to_all"].start_s

    def figures(self) -> dict[str, float]:
        """The single figures by key: `memory`, `launch_s`, `matmul.bf16`, …."""
        products = {f"matmul.{dtype}": share for dtype, share in self.matmul.items()}
        keys = (key for key in (*SHARES, *SECONDS) if key != "host_s" or self.host_s)
        return {**products, **{key: getattr(self, key) for key in keys}}

    @property
    def sources(self) -> dict[str, str]:
        """Where each single figure is from."""
        return {key: self.cited[self.key_of(key)] for key in self.figures()}

    def key_of(self, figure: str) -> str:
        """The key of `cited` that a single figure is of."""
        if figure.startswith("matmul."):
            names = (figure[7:], ALIKE.get(figure[7:], ""))
            return next((f"matmul.{name}" for name in names if f"matmul.{name}" in self.curves), "matmul.bf16")
        return OF.get(figure, figure)

    def overlaid(self, flat: Mapping[str, float], cited: Mapping[str, str]) -> Efficiency:
        """A copy with single figures for all curves of their kind: a share of the peak for `matmul.DTYPE` and
        `attention_prefill`, of the bandwidth for `attention_decode` and (`memory`) everything else, of a `link`,
        seconds of every launch, of every collective, and of the host. A curve with such a figure takes the larger of
        its memory and its compute time; engines' own curves are dropped."""
        curves = {key: curve for key, curve in self.curves.items() if key.count(".") == 1}
        varied = ("compute", "memory", "start_s", "depth_s")
        plain = {key: value for key, value in Curve._field_defaults.items() if key not in varied}
        for key in (key for key in flat if key.startswith("matmul.")):
            curves[key] = self.curve("matmul", key[7:])._replace(**plain, compute=flat[key])
        for kinds, key, changes in (
            (("attention.prefill", "attention.latent_prefill"), "attention_prefill", {"compute": 0.0, **plain}),
            (("attention.decode", "attention.latent_decode"), "attention_decode", {"memory": 0.0, **plain}),
            (("matmul.", "experts.", "optimizer."), "memory", {"memory": 0.0}),
            (("",), "launch_s", {"start_s": 0.0, "depth_s": 0.0}),
        ):
            if key in flat:
                changes[next(iter(changes))] = flat[key]
                kernels = [name for name in curves if name.startswith(kinds)]
                curves |= {name: curves[name]._replace(**changes) for name in kernels}
        links = dict(self.links)
        if "link" in flat:
            links = {key: link._replace(share=flat["link"], growth=0.0, crowd=0.0) for key, link in links.items()}
        if "collective_s" in flat:
            links = {key: link._replace(start_s=flat["collective_s"], rank_s=0.0) for key, link in links.items()}
        scalars = {key: flat[key] for key in ("memory", "launch_s", "host_s") if key in flat}
        sources = {OF.get(key, key): text for key, text in cited.items()}
        return replace(self, curves=curves, links=links, cited={**self.cited, **sources}, **scalars)

    def has(self, engine: str) -> bool:
        """Whether an engine has kernels of its own."""
        return any(key.startswith(f"{engine}.") for key in self.curves)

    def without(self, engine: str) -> Efficiency:
        """A copy without an engine's own kernels."""
        keys = {key for key in self.curves if key.startswith(f"{engine}.")}
        curves = {key: curve for key, curve in self.curves.items() if key not in keys}
        return replace(self, curves=curves, cited={key: text for key, text in self.cited.items() if key not in keys})

    def with_kernels(self, engine: str, flat: Mapping[str, float], cited: Mapping[str, str]) -> Efficiency:
        """A copy with the kernels of one more engine, by single figures as `overlaid` takes them: products and
        attention are its own; launches, the host and other memory traffic are the machine's, for all engines. The
        figures do not include `quantise` and `score`, which stay as they are."""
        single = self.overlaid(flat, cited)
        names = [key for key in flat if key.startswith("matmul.")]
        names += [OF[key] for key in ("attention_prefill", "attention_decode") if key in flat]
        curves = {}
        for name in names:
            kind, of = name.split(".")
            curve = self.curve(kind, of)
            curves[f"{engine}.{name}"] = single.curves[name]._replace(quantise=curve.quantise, score=curve.score)
        of_all = {key: text for key, text in cited.items() if key in ("memory", "launch_s", "host_s")}
        of_own = {f"{engine}.{OF.get(key, key)}": text for key, text in cited.items() if key not in of_all}
        return replace(
            self,
            curves={**self.curves, **curves},
            cited={**self.cited, **of_all, **of_own},
            memory=single.memory,
            launch_s=single.launch_s,
            host_s=single.host_s,
        )
