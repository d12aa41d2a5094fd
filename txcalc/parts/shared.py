"""A Transformer block whose weights several layers of a recurrent model share (Zamba)."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from txcalc.num import Num
from txcalc.parts.cores import AttentionCore
from txcalc.parts.feedforward import FeedForward
from txcalc.parts.linear import Linear, Sum
from txcalc.parts.norm import Norm
from txcalc.parts.options import ACTIVATIONS, REQUIRED, Conflict, Raw, flag, key, letter, one_of, real, text
from txcalc.parts.part import Child, Composite
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.positions import Rotary
from txcalc.parts.spans import Causal


class SharedBlock(Composite):
    """out(feed_forward(norm(attention(norm([x; e]))))): added to the input of a layer's mixer, with the stream x and
    the stack's input e concatenated.

    `lender` names the layer kind that owns the weights, except out and the adapters, which are per layer: of `rank`, on
    up and gate and, `adapted`, on q, k and v.
    Source   Zamba (arXiv 2405.16712), section 2; Zamba2 (arXiv 2411.15242), section 2
    """

    d_model: Num
    norm: Norm
    rotary: Rotary | None
    core: AttentionCore
    feed_forward_norm: Norm
    feed_forward: FeedForward
    lender: str | None = None
    rank: Num | None = None
    adapted: bool = False

    def children(self) -> Iterator[Child]:
        d, core, borrowed = self.d_model, self.core, self.lender is not None
        widths = {"q": core.n_heads * core.d_qk, "k": core.n_kv_heads * core.d_qk, "v": core.n_kv_heads * core.d_v}
        keeps = {"q": "yes", "k": "no", "v": "no"}
        yield Child("norm", self.norm)
        for name, width in widths.items():
            part = Linear(d_in=2 * d, d_out=width, bias=False, keeps=keeps[name], borrowed=borrowed)
            yield Child(name, part, kind="attention", duty="reads")
        if self.rank is not None and self.adapted:
            for name, width in widths.items():
                yield from self._adapter(name, self.rank, 2 * d, width, "attention")
        if self.rotary:
            yield Child("rotary", self.rotary, kind="attention")
        yield Child("core", core)
        o = Linear(d_in=core.n_heads * core.d_v, d_out=d, bias=False, keeps="eager", borrowed=borrowed)
        yield Child("o", o, kind="attention", duty="writes")
        yield Child("feed_forward_norm", self.feed_forward_norm)
        yield Child("feed_forward", self.feed_forward, kind="feed_forward")
        if self.rank is not None:
            yield from self._adapter("gate_up", self.rank, d, 2 * self.feed_forward.d_ff, "feed_forward")
        yield Child("out", Linear(d_in=d, d_out=d, bias=False))

    def _adapter(self, name: str, rank: Num, d_in: Num, d_out: Num, kind: str) -> Iterator[Child]:
        yield Child(f"{name}_down", Linear(d_in=d_in, d_out=rank, bias=False, keeps="no"), kind=kind)
        yield Child(f"{name}_up", Linear(d_in=rank, d_out=d_out, bias=False), kind=kind)
        yield Child(f"{name}_sum", Sum(width=d_out, sums=1), kind=kind)


class SharedOptions(Mechanism, section="shared", kind="other", stands="", ordered=True):
    n_heads: Num = letter(REQUIRED, "query heads", of="n_kv_heads")
    n_kv_heads: Num = letter(lambda at: at["shared"]["n_heads"], "key/value heads")
    d_head: Num = letter(REQUIRED, "width per head", even=True)
    scale: float | None = key(real, None, "multiplies the scores; 1/√d_head when absent")
    d_ff: Num = letter(REQUIRED, "width of the feed-forward")
    activation: str = key(one_of(*ACTIVATIONS), "silu", "activation of the feed-forward, which is gated")
    bias: bool = key(flag, False, "biases of the feed-forward")
    rank: Num | None = letter(None, "rank of per-layer adapters on up and gate; absent: none")
    adapted: bool = key(flag, False, "adapters on q, k and v too")
    from_: str | None = key(text, None, "layer kind that owns the weights; absent: this one")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.adapted and self.rank is None:
            yield Conflict("adapted", "false without a rank")

    def build(self, place: Place) -> SharedBlock:
        d_model, heads, groups, width = place.d_model, self.n_heads, self.n_kv_heads, self.d_head
        sizes: Raw = {"n_heads": heads, "n_kv_heads": groups, "d_qk": width, "d_v": width}
        borrowed = self.from_ is not None
        return SharedBlock(
            d_model=d_model,
            norm=replace(place.norm.over(2 * d_model), borrowed=borrowed),
            rotary=place.positions.rotary(heads + groups, width),
            core=AttentionCore(**sizes, span=Causal(), scale=self.scale),
            feed_forward_norm=replace(place.norm.over(d_model), borrowed=borrowed),
            feed_forward=FeedForward(
                d_model=d_model,
                d_ff=self.d_ff,
                activation=self.activation,
                bias=self.bias,
                gated=True,
                borrowed=borrowed,
            ),
            lender=self.from_,
            rank=self.rank,
            adapted=self.adapted,
        )
