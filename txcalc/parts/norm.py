"""Norms: the leaf, and what a description says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from txcalc.num import total
from txcalc.parts.frozen import frozen
from txcalc.parts.mechanisms import parts_of, side_by_side
from txcalc.parts.options import LAYER_EPS, RMS_EPS, Options, Wished, flag, key, one_of, real
from txcalc.parts.part import Leaf, Operation, Weight, Workload, elementwise

EPS = {"rms": RMS_EPS, "layer": LAYER_EPS}


@frozen
class Norm(Leaf):
    """LayerNorm or RMSNorm over the last axis of (B, T, groups, width), one weight a `width`.

    Unit     FLOPs under other: 7 per element (LayerNorm), 6 (without bias), 4 (RMSNorm)
    Counts   `keeps`: its input, kept for backward by the fused kernel; the statistics (one or two per row) apart
    Source   Ba et al. 2016 (arXiv 1607.06450); Zhang and Sennrich 2019 (arXiv 1910.07467)
    """

    kind = "norm"
    role = "norm"
    begins: ClassVar[Mapping[str, str]] = {"weight": "one", "bias": "zero"}
    width: Any
    form: str  # "layer", "rms"
    bias: bool
    eps: Any
    groups: Any = 1
    # A weight of its own for each group (Cohere's Q and K norms), rather than one that the groups share.
    apart: bool = False
    weighted: bool = True
    offset: bool = False  # multiplies by 1 + weight (Gemma)
    # Its input is kept for backward; False: another norm keeps the same tensor (a parallel block's two norms).
    keeps: bool = True
    # A fused kernel keeps its own output, which this reads: it is kept again only when the attention matrix is.
    fused: bool = False
    # Another layer holds its weights.
    borrowed: bool = False
    moves = True

    @property
    def computes(self) -> str:
        return "all" if self.weighted else ""

    def rows_kept(self, work: Workload) -> Any:
        return self.groups

    @property
    def normed(self) -> tuple[Any, Any]:
        return self.groups, self.width

    @property
    def unfused(self) -> int:
        """torch before 2.8, rms_norm: to fp32 (6 bytes), square (8), mean (4), product (8), weight (8), back (6), for
        4; its layer_norm is one kernel."""
        return 10 if self.form == "rms" else 1

    def weights(self) -> tuple[Weight, ...]:
        return () if self.borrowed else self.own

    @property
    def own(self) -> tuple[Weight, ...]:
        """Its weights, whoever holds them."""
        shape = (self.groups, self.width) if self.apart else (self.width,)
        weight = (Weight("weight", shape),) if self.weighted else ()
        return (*weight, Weight("bias", shape)) if self.bias else weight

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.groups * self.width
        cost = "rms_norm" if self.form == "rms" else "layer_norm" if self.bias else "layer_norm_nobias"
        read = total([weight.size for weight in self.own])
        return (elementwise("norm", elements, cost, elements, elements, read),)

    def saved(self, work: Workload) -> Any:
        kept = self.keeps and (work.keep_scores or not self.fused)
        return work.positions * self.groups * self.width if kept else 0

    @property
    def shared_by(self) -> Any:
        return 1 if self.apart else self.groups

    def statistics(self, work: Workload) -> Any:
        rows = work.positions * self.groups
        return rows if self.form == "rms" else 2 * rows


@frozen
class NormOptions(Options, section="norm"):
    """`[norm]`: the norms of a layer, and how its parts stand about them."""

    form: str = key(one_of("rms", "layer"), "rms", "RMSNorm or LayerNorm")
    bias: bool = key(flag, lambda at: at["norm"]["form"] == "layer", "LayerNorm with a bias")
    eps: Any = key(real, None, "added to the variance; 1e-6 (rms) or 1e-5 (layer) when absent")
    place: str = key(
        one_of("pre", "post", "after", "sandwich"), "pre", "before a branch, after its sum, after it, or both"
    )
    parallel: str | list[str] = key(
        side_by_side,
        "no",
        "parts that read one input: all, through one norm or each through its own; a list: these, which follow one "
        "another, through the norm of the first",
    )
    final: bool = key(flag, lambda at: at["norm"]["place"] != "post", "norm after the last layer")
    final_bias: bool = key(flag, lambda at: at["norm"]["bias"], "bias of that one, a LayerNorm", "with norm.final")
    qk_bias: bool = key(
        flag, lambda at: at["norm"]["bias"], "bias of the norms of Q and K, LayerNorms", "with attention.qk_norm"
    )
    offset: bool = key(flag, False, "multiplies by 1 + weight")
    weighted: bool = key(flag, True, "norms have weights")
    residual_scale: bool = key(flag, False, "a learned scale of every channel of the stream as a branch is added to it")
    layer_scale: bool = key(flag, False, "a learned scale of every channel of what a branch adds")
    without: list[str] = key(
        parts_of, [], "parts of the layer that have no norm", "of parts that a layer has, with norms of their own"
    )
    after: list[str] = key(
        parts_of,
        [],
        "parts with a norm after them, where place = 'pre' has none for the others",
        "of parts that a layer has",
    )
    joint: list[str] = key(parts_of, [], "parts that read one input, and whose sum is normed before it is added")
    residual: Any = key(real, None, "multiplies what every part adds to the stream (Granite, MiniCPM)")
    scalar: bool = key(flag, False, "a stored number multiplies the layer's result; no parameter")

    def misfits(self) -> Iterator[Wished]:
        for name, given in (("bias", self.bias), ("final_bias", self.final_bias), ("qk_bias", self.qk_bias)):
            if self.form == "rms" and given and (name == "bias" or not self.bias):
                yield Wished(name, "false with form = 'rms'", "an RMSNorm has no bias")
        if self.after and self.place != "pre":
            yield Wished("after", "none unless place = 'pre'", "the others have norms after every part")

    def epsilon_or(self, usual: Any) -> Any:
        """What is added to the variance."""
        return usual if self.eps is None else self.eps

    @property
    def alike(self) -> tuple[str, ...]:
        """The parts that read one input through the norm of the first."""
        return () if type(self.parallel) is str else tuple(self.parallel)

    @property
    def parted(self) -> bool:
        """Whether all parts of the layer stand side by side."""
        return self.parallel in ("shared", "separate")

    def over(self, width: Any, groups: Any = 1, *, apart: bool = False) -> Norm:
        """The norm over `groups` of `width`."""
        return Norm(
            width=width,
            form=self.form,
            bias=self.bias and self.weighted,
            eps=self.epsilon_or(EPS[self.form]),
            groups=groups,
            apart=apart,
            weighted=self.weighted,
            offset=self.offset,
        )
