"""Draft models for speculative decoding, which read the target model's hidden states (EAGLE, P-EAGLE, MTP)."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from txcalc.num import Num
from txcalc.parts.cores import AttentionCore
from txcalc.parts.linear import Linear
from txcalc.parts.norm import Norm, NormOptions
from txcalc.parts.options import REQUIRED, Options, flag, key, letter
from txcalc.parts.part import Child, Composite, optional
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.positions import Rotary
from txcalc.parts.sharding import AllGather, Ways
from txcalc.parts.spans import Causal


class Features(Composite):
    """fc([norm(f); norm(e)]): the input of a draft's residual stream, from hidden states f of the target model and,
    with `embedded`, the token embedding e.

    Shapes   f (B, T, number · width), e (B, T, D), the stream (B, T, D)
    Source   EAGLE (arXiv 2401.15077), section 4.1; EAGLE-3 (arXiv 2503.01840), section 3.1; with norms DeepSeek-V3
             (arXiv 2412.19437), section 2.2
    """

    d_model: Num
    number: Num
    width: Num
    embedded: bool
    bias: bool
    norm: Norm | None
    embedding_norm: Norm | None
    on_stream = True

    def children(self) -> Iterator[Child]:
        yield from optional("norm", self.norm, gradient="weights")
        yield from optional("embedding_norm", self.embedding_norm)
        read = self.number * self.width
        read = read + self.d_model if self.embedded else read
        fc = Linear(d_in=read, d_out=self.d_model, bias=self.bias)
        yield Child("fc", fc, gradient="both" if self.embedded or self.norm else "weights")

    def shard(self, ways: Ways) -> Features:
        """Replicated."""
        return self


class DraftAttention(Composite):
    """Attention whose q, k and v read [norm(e); x]: token embedding and the draft's normed stream, concatenated.

    Source   EAGLE-3 (arXiv 2503.01840), section 3.1
    """

    d_model: Num
    n_heads: Num
    n_kv_heads: Num
    d_head: Num
    norm: Norm
    rotary: Rotary | None
    core: AttentionCore
    # On one rank: gathers the positions of the tokens' embedding.
    gather: AllGather | None = None

    def describe(self) -> str:
        return f"attention {self.n_heads}/{self.n_kv_heads} × {self.d_head}, over tokens and features"

    def children(self) -> Iterator[Child]:
        read, keys = 2 * self.d_model, self.n_kv_heads * self.d_head
        yield from optional("gather", self.gather)
        yield Child("norm", self.norm)
        yield Child("q", Linear(d_in=read, d_out=self.n_heads * self.d_head, bias=False), duty="reads")
        yield Child("k", Linear(d_in=read, d_out=keys, bias=False, keeps="no"), duty="reads")
        yield Child("v", Linear(d_in=read, d_out=keys, bias=False, keeps="no"), duty="reads")
        if self.rotary:
            yield Child("rotary", self.rotary)
        yield Child("core", self.core)
        yield Child(
            "o", Linear(d_in=self.n_heads * self.d_head, d_out=self.d_model, bias=False, keeps="eager"), duty="writes"
        )

    def shard(self, ways: Ways) -> DraftAttention:
        """Its query heads, and its key/value heads or a replicated one."""
        heads, groups = ways.split("n_heads", self.n_heads), ways.groups("n_kv_heads", self.n_kv_heads)
        return replace(
            self,
            n_heads=heads,
            n_kv_heads=groups,
            rotary=self.rotary and replace(self.rotary, heads=heads + groups),
            core=replace(self.core, n_heads=heads, n_kv_heads=groups),
            gather=ways.gather_positions(self.d_model),
        )


class FeaturesOptions(Options, section="features"):
    number: Num = letter(REQUIRED, "hidden states of the target model, concatenated")
    width: Num = letter(lambda at: at[""]["d_model"], "width of each")
    embedded: bool = key(flag, False, "concatenate the token embedding too")
    bias: bool = key(flag, False, "bias of the projection fc")
    norm: bool = key(flag, False, "norms of each and of the embedding")

    def build(self, d_model: Num, norm: NormOptions) -> Features:
        return Features(
            d_model=d_model,
            number=self.number,
            width=self.width,
            embedded=self.embedded,
            bias=self.bias,
            norm=norm.over(self.width, self.number, per_group=True) if self.norm else None,
            embedding_norm=norm.over(d_model) if self.norm and self.embedded else None,
        )


class DraftAttentionOptions(Mechanism, section="draft_attention", kind="attention"):
    n_heads: Num = letter(REQUIRED, "query heads", of="n_kv_heads")
    n_kv_heads: Num = letter(REQUIRED, "key/value heads")
    d_head: Num = letter(REQUIRED, "width per head", even=True)

    def build(self, place: Place) -> DraftAttention:
        heads, groups, width = self.n_heads, self.n_kv_heads, self.d_head
        return DraftAttention(
            d_model=place.d_model,
            n_heads=heads,
            n_kv_heads=groups,
            d_head=width,
            norm=place.norm.over(place.d_model),
            rotary=place.positions.rotary(heads + groups, width),
            core=AttentionCore(n_heads=heads, n_kv_heads=groups, d_qk=width, d_v=width, span=Causal()),
        )
