"""Mixture of attention heads: query heads are experts, keys and values are shared."""

from __future__ import annotations

from collections.abc import Iterator

from txcalc.num import Num, product
from txcalc.parts.cores import AttentionCore
from txcalc.parts.linear import Linear, Shift
from txcalc.parts.options import REQUIRED, every, flag, key, letter
from txcalc.parts.part import Child, Composite, optional
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.positions import Rotary
from txcalc.parts.spans import Causal


class ChosenExperts(Composite):
    """Routed linear layers, of which each token uses `top_k`.

    Source   Shazeer et al. 2017 (arXiv 1701.06538)
    """

    n_experts: Num
    top_k: Num
    expert: Linear

    def children(self) -> Iterator[Child]:
        numbers = every(self.n_experts)
        yield Child(
            "routed", self.expert, times=self.n_experts, runs=self.top_k, routed=True, indices=numbers, duty="expert"
        )


class RoutedAttention(Composite):
    """A mixture of attention heads: an expert is a query and an output projection over all key/value heads; a token
    uses the `top_k` experts of its router and sums their results.

    Source   Zhang et al. 2022 (arXiv 2210.05144); JetMoE (arXiv 2404.07413), section 2.2
    """

    d_model: Num
    n_experts: Num
    top_k: Num
    n_kv_heads: Num
    d_head: Num
    rotary: Rotary | None
    core: AttentionCore
    bias: Shift | None = None

    def children(self) -> Iterator[Child]:
        d, width = self.d_model, self.n_kv_heads * self.d_head
        yield Child("router", Linear(d_in=d, d_out=self.n_experts, bias=False), kind="router")
        yield Child("q", self._choice(Linear(d_in=d, d_out=width, bias=False)), duty="reads")
        yield Child("k", Linear(d_in=d, d_out=width, bias=False, keeps="no"), duty="reads")
        yield Child("v", Linear(d_in=d, d_out=width, bias=False, keeps="no"), duty="reads")
        if self.rotary:
            yield Child("rotary", self.rotary)
        yield Child("core", self.core)
        yield Child("o", self._choice(Linear(d_in=width, d_out=d, bias=False)), duty="writes")
        yield from optional("bias", self.bias)

    def _choice(self, part: Linear) -> ChosenExperts:
        return ChosenExperts(n_experts=self.n_experts, top_k=self.top_k, expert=part)


class ExpertAttentionOptions(Mechanism, section="expert_attention", kind="attention", ordered=True):
    """`[expert_attention]`: a token's query heads are the key/value heads times top_k."""

    n_experts: Num = letter(REQUIRED, "experts of q and o, each over all key/value heads", chosen="top_k")
    top_k: Num = letter(REQUIRED, "top-k: experts per token")
    n_kv_heads: Num = letter(REQUIRED, "key/value heads, shared by the experts")
    d_head: Num = letter(REQUIRED, "width per head", even=True)
    bias: bool = key(flag, False, "a bias on the experts' sum")

    def build(self, place: Place) -> RoutedAttention:
        groups, width, heads = self.n_kv_heads, self.d_head, product((self.n_kv_heads, self.top_k))
        return self.into(
            RoutedAttention,
            d_model=place.d_model,
            rotary=place.positions.rotary(heads + groups, width),
            core=AttentionCore(n_heads=heads, n_kv_heads=groups, d_qk=width, d_v=width, span=Causal()),
            bias=Shift(width=place.d_model) if self.bias else None,
        )
