"""Differential attention: heads in two halves, whose results are subtracted."""

from __future__ import annotations

from collections.abc import Iterator

from txcalc.num import Num, exact_div
from txcalc.parts.attention import Attention
from txcalc.parts.cores import DifferentialCore
from txcalc.parts.options import REQUIRED, Conflict, biases, even, key, letter, per_head, ungated
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.spans import Causal, Window


class DifferentialOptions(Mechanism, section="differential_attention", kind="attention", ordered=True):
    """`[differential_attention]`: with an RMSNorm without weights over each pair of heads; rotary positions rotate
    whole heads."""

    n_heads: Num = letter(REQUIRED, "query heads of both halves", of="n_kv_heads", grows="heads")
    n_kv_heads: Num = letter(
        lambda at: at["differential_attention"]["n_heads"], "key/value heads of both halves", even=True, grows="heads"
    )
    d_head: Num = letter(per_head("differential_attention"), "width per head", even=True, grows="head")
    window: Num | None = letter(None, "query i sees key j when 0 ≤ i − j < window")
    bias: list[str] = key(biases, [], "projections with a bias")

    def conflicts(self) -> Iterator[Conflict]:
        yield from ungated(self.bias)
        yield from super().conflicts()
        for name, number in (("n_heads", self.n_heads), ("n_kv_heads", self.n_kv_heads)):
            yield from even(name, number, "differential attention halves them")

    def build(self, place: Place) -> Attention:
        heads, groups, width = self.n_heads, self.n_kv_heads, self.d_head
        span = Causal() if self.window is None else Window(window=self.window)
        return Attention(
            d_model=place.d_model,
            n_heads=heads,
            n_kv_heads=groups,
            d_head=width,
            span=span,
            biases=frozenset(self.bias),
            query_norm=None,
            key_norm=None,
            rotary=place.positions.rotary(heads + groups, width),
            core=DifferentialCore(n_heads=heads, n_kv_heads=groups, d_qk=width, d_v=width, span=span),
            keeps_input=place.keeps_input,
            inner_norm=place.norm.replace(form="rms", weighted=False).over(2 * width, exact_div(heads, 2)),
        )
