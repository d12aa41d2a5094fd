"""Norms: the leaf and its options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import ClassVar

from txcalc.num import Num, total
from txcalc.parts.mechanisms import parts_of, side_by_side
from txcalc.parts.options import LAYER_EPS, RMS_EPS, Conflict, Options, flag, key, one_of, real
from txcalc.parts.part import Leaf, Operation, Weight, Workload, elementwise

EPS = {"rms": RMS_EPS, "layer": LAYER_EPS}


class Norm(Leaf):
    """LayerNorm or RMSNorm over the last axis of (B, T, groups, width).

    Unit     FLOPs under other: 7 per element (LayerNorm), 6 (without bias), 4 (RMSNorm)
    Kept     its input (`keeps`), as the fused kernel does; statistics, one or two per row, are listed per_group
    Source   Ba et al. 2016 (arXiv 1607.06450); Zhang and Sennrich 2019 (arXiv 1910.07467)
    """

    kind = "norm"
    role = "norm"
    initial_values: ClassVar[Mapping[str, str]] = {"weight": "one", "bias": "zero"}
    width: Num
    form: str  # "layer", "rms"
    bias: bool
    eps: float | None
    groups: Num = 1
    # Weights per group (Cohere's Q and K norms) instead of shared ones.
    per_group: bool = False
    weighted: bool = True
    offset: bool = False  # multiplies by 1 + weight (Gemma)
    # Whether its input is saved for backward; False: another norm saves the same tensor (a parallel block's two norms).
    keeps: bool = True
    # Its input is a fused kernel's output, already saved: saved again only if attention probabilities are stored.
    fused: bool = False
    # Its weights belong to another layer.
    borrowed: bool = False
    traffic_exact = True

    @property
    def operators_exact(self) -> str:
        return "all" if self.weighted else ""

    def rows_kept(self, work: Workload) -> Num:
        return self.groups

    @property
    def norm_shape(self) -> tuple[Num, Num]:
        return self.groups, self.width

    @property
    def unfused(self) -> int:
        """torch before 2.8, rms_norm: to fp32 (6 bytes), square (8), mean (4), product (8), weight (8), back (6),
        instead of 4; its layer_norm is one kernel."""
        return 10 if self.form == "rms" else 1

    def weights(self) -> tuple[Weight, ...]:
        return () if self.borrowed else self.all_weights

    def initial_value(self, weight: str) -> str:
        """Zero for a weight to which 1 is added; otherwise as of any leaf."""
        return "zero" if self.offset and weight == "weight" else super().initial_value(weight)

    @cached_property
    def all_weights(self) -> tuple[Weight, ...]:
        """The weights that it reads, borrowed or not."""
        shape = (self.groups, self.width) if self.per_group else (self.width,)
        weight = (Weight("weight", shape),) if self.weighted else ()
        return (*weight, Weight("bias", shape)) if self.bias else weight

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        elements = work.positions * self.groups * self.width
        cost = "rms_norm" if self.form == "rms" else "layer_norm" if self.bias else "layer_norm_nobias"
        read = total([weight.size for weight in self.all_weights])
        return (elementwise("norm", elements, cost, elements, elements, read),)

    def saved(self, work: Workload) -> Num:
        saves_input = self.keeps and (work.keep_scores or not self.fused)
        return work.positions * self.groups * self.width if saves_input else 0

    @property
    def shared_by(self) -> Num:
        return 1 if self.per_group else self.groups

    def statistics(self, work: Workload) -> Num:
        """Two numbers per row of a LayerNorm, one of an RMSNorm. A LayerNorm with weights per group has no fused
        kernel: it saves only the deviation of the centred input."""
        rows = work.positions * self.groups
        return rows if self.form == "rms" or self.per_group else 2 * rows


class NormOptions(Options, section="norm"):
    """`[norm]`: the norms of a layer, and how its branches are arranged around them."""

    form: str = key(one_of("rms", "layer"), "rms", "RMSNorm or LayerNorm")
    bias: bool = key(flag, lambda at: at["norm"]["form"] == "layer", "LayerNorm with a bias")
    eps: float | None = key(real, None, "added to the variance; 1e-6 (rms) or 1e-5 (layer) when absent")
    place: str = key(
        one_of("pre", "post", "after", "sandwich"),
        "pre",
        "before a branch, after the residual addition, after the branch, or before and after it",
    )
    parallel: str | list[str] = key(
        side_by_side,
        "no",
        "parallel block: all parts read one input, through one shared norm or separate ones; a list: these consecutive "
        "parts, through the norm of the first",
    )
    final: bool = key(flag, lambda at: at["norm"]["place"] != "post", "norm after the last layer")
    final_bias: bool = key(flag, lambda at: at["norm"]["bias"], "bias of the final LayerNorm", "with norm.final")
    qk_bias: bool = key(
        flag, lambda at: at["norm"]["bias"], "bias of the norms of Q and K, LayerNorms", "with attention.qk_norm"
    )
    offset: bool = key(flag, False, "multiplies by 1 + weight")
    weighted: bool = key(flag, True, "norms have weights")
    residual_scale: bool = key(flag, False, "a learned scale per channel of the stream, at each residual addition")
    layer_scale: bool = key(flag, False, "LayerScale: a learned scale per channel of each branch's result")
    without: list[str] = key(parts_of, [], "parts without a norm", "of parts that a layer has, with norms of their own")
    after: list[str] = key(
        parts_of, [], "parts with a norm after them too, where place = 'pre'", "of parts that a layer has"
    )
    joint: list[str] = key(parts_of, [], "parallel parts whose sum is normed before it is added")
    residual: float | None = key(real, None, "multiplies the result of every branch (Granite, MiniCPM)")
    scalar: bool = key(flag, False, "a stored number multiplies the layer's result; not a parameter")

    def conflicts(self) -> Iterator[Conflict]:
        for name, bias in (("bias", self.bias), ("final_bias", self.final_bias), ("qk_bias", self.qk_bias)):
            if self.form == "rms" and bias and (name == "bias" or not self.bias):
                yield Conflict(name, "false with form = 'rms'", "an RMSNorm has no bias")
        if self.after and self.place != "pre":
            yield Conflict("after", "none unless place = 'pre'", "the others have norms after every part")
        if both := {*self.after} & {*self.without}:
            yield Conflict("after", f"no part that `without` names: {', '.join(sorted(both))}", "it has no norm at all")

    def epsilon_or(self, default: float) -> float:
        """The epsilon, or the given default."""
        return default if self.eps is None else self.eps

    @property
    def parallel_parts(self) -> tuple[str, ...]:
        """Consecutive parts that read one input through the norm of the first."""
        return () if type(self.parallel) is str else tuple(self.parallel)

    @property
    def fully_parallel(self) -> bool:
        """Whether all parts of the layer are parallel."""
        return self.parallel in ("shared", "separate")

    def over(self, width: Num, groups: Num = 1, *, per_group: bool = False) -> Norm:
        """The norm over `groups` of `width`."""
        return self._norm(self.bias, width, groups, per_group)

    def last(self, width: Num) -> Norm:
        """The norm after the last layer."""
        return self._norm(self.final_bias, width)

    def _norm(self, bias: bool, width: Num, groups: Num = 1, per_group: bool = False) -> Norm:
        return Norm(
            width=width,
            form=self.form,
            bias=bias and self.weighted,
            eps=self.epsilon_or(EPS[self.form]),
            groups=groups,
            per_group=per_group,
            weighted=self.weighted,
            offset=self.offset,
        )
