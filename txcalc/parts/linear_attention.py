"""Linear attention: no softmax, and a recurrent state in place of a KV cache (lightning attention).

Projections and convolutions are headline FLOPs; the scan, in sequential form, counts under `other` (see
`parts.recurrent`).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from txcalc.num import Num
from txcalc.parts.leaf import Recurrence
from txcalc.parts.linear import Activation, Linear
from txcalc.parts.norm import Norm
from txcalc.parts.options import REQUIRED, RMS_EPS, activation, key, letter, per_head
from txcalc.parts.part import COST, Child, Composite, Elementwise, Operation, Traffic, Workload, optional
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.sharding import AllReduce, Ways


class DecayScan(Recurrence):
    """Linear attention with a fixed decay per head: S ← λ·S + k·vᵀ and y = Sᵀ·q.

    Shapes   q, k, v and y (B, T, h, d), S (B, h, d, d)
    Unit     FLOPs under other: 5 per element of S (decay, one multiply-add to write, one to read)
    Kept     modelled: q, k, v and the states at every step
    Source   Qin et al. 2024 (arXiv 2401.04658), equation 3
    """

    n_heads: Num
    d_head: Num

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, width = work.positions, self.n_heads * self.d_head
        moved = Traffic(0, 4 * rows * width, self.state_traffic(work))
        return (Elementwise("scan", rows * width * self.d_head, 5, moved, "scan"),)

    def saved(self, work: Workload) -> Num:
        return work.positions * self.n_heads * self.d_head * (3 + self.d_head)

    @property
    def shape(self) -> tuple[Num, ...]:
        return self.n_heads, self.d_head, self.d_head


class GatedScan(Recurrence):
    """Gated linear attention: S ← diag(λ)·S + k·vᵀ and y = Sᵀ·q/√d_k, with decays λ that come from the input.

    Shapes   q, k and log λ (B, T, h, d_k), v and y (B, T, h, d_v), S (B, h, d_k, d_v)
    Unit     FLOPs under other: 5 per element of S (decay, one multiply-add to write, one to read), 5 per channel of the
             keys (log σ of a gate, its scale or the key 1 − λ, exp, 1/√d_k)
    Kept     modelled: q, k, v, λ and the states at every step
    Source   Yang et al. 2023 (arXiv 2312.06635), equation 3; Qin et al. 2024 (arXiv 2404.07904), equation 5
    """

    n_heads: Num
    d_key: Num
    d_value: Num

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, keys, values = work.positions, self.n_heads * self.d_key, self.n_heads * self.d_value
        moved = Traffic(0, rows * (3 * keys + 2 * values), self.state_traffic(work))
        return (
            Elementwise("scan", rows * values * self.d_key, 5, moved, "scan"),
            Elementwise("decay", rows * keys, 3 + COST["softplus"], Traffic(), "scan"),
        )

    def saved(self, work: Workload) -> Num:
        return work.positions * (self.n_heads * (3 * self.d_key + self.d_value) + self.state)

    @property
    def shape(self) -> tuple[Num, ...]:
        return self.n_heads, self.d_key, self.d_value


class LinearAttention(Composite):
    """Lightning attention: q, k and v through an activation, fixed decays, a norm over all heads, and a sigmoid output
    gate.

    Source   Qin et al. 2024 (arXiv 2401.04658); MiniMax-01 (arXiv 2501.08313), section 2.2
    """

    d_model: Num
    n_heads: Num
    d_head: Num
    activation: str
    norm_eps: float
    # On one rank: joins the mean square over all heads.
    join: AllReduce | None = None

    def describe(self) -> str:
        return f"linear attention {self.n_heads} × {self.d_head}"

    def children(self) -> Iterator[Child]:
        inner = self.n_heads * self.d_head
        yield Child("in_proj", Linear(d_in=self.d_model, d_out=3 * inner, bias=False))
        yield Child("gate_proj", Linear(d_in=self.d_model, d_out=inner, bias=False, keeps="no"))
        yield Child("activation", Activation(width=3 * inner, form=self.activation, gated=False))
        yield Child("scan", DecayScan(n_heads=self.n_heads, d_head=self.d_head))
        yield Child("norm", Norm(width=inner, form="rms", bias=False, eps=self.norm_eps))
        yield from optional("norm_join", self.join, duty="statistics")
        yield Child("gate", Activation(width=inner, form="sigmoid", gated=True))
        yield Child("out_proj", Linear(d_in=inner, d_out=self.d_model, bias=False), duty="writes")

    def shard(self, ways: Ways) -> LinearAttention:
        """Its heads."""
        return replace(self, n_heads=ways.split("n_heads", self.n_heads), join=ways.all_reduce(1))


class LinearAttentionOptions(Mechanism, section="linear_attention"):
    n_heads: Num = letter(REQUIRED, "heads, each with a fixed decay", grows="heads")
    d_head: Num = letter(per_head("linear_attention"), "width per head", grows="head")
    activation: str = key(activation, "silu", "activation of queries, keys and values")

    def build(self, place: Place) -> LinearAttention:
        # The norm's own epsilon, independent of the other norms.
        return self.into(LinearAttention, d_model=place.d_model, norm_eps=RMS_EPS)
