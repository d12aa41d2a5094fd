"""The gated delta rule (Gated DeltaNet, Kimi Delta Attention)."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from txcalc.num import Num
from txcalc.parts.leaf import Recurrence
from txcalc.parts.linear import Activation, Linear
from txcalc.parts.norm import Norm
from txcalc.parts.options import REQUIRED, RMS_EPS, Conflict, flag, key, letter, one_of, real, size
from txcalc.parts.part import COST, Child, Composite, Elementwise, Operation, Traffic, Weight, Workload
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.sharding import Ways
from txcalc.parts.taps import short_memory


class DeltaRule(Recurrence):
    """The delta rule: S ← a·S (gated), then S ← S + k·β·(v − Sᵀ·k)ᵀ, and y = Sᵀ·q, for every head of values.

    `decays`: values of a per head.
    `signed`: β ranges from 0 to 2 instead of 1, so eigenvalues may be negative (Grazzi et al. 2024, arXiv 2411.12537).

    Shapes   q and k (B, T, key heads, d_k), of length 1 each; v and y (B, T, h, d_v), β (B, T, h), S (B, h, d_k, d_v),
             a (B, T, h, `decays`), one per head or one per row of S
    Unit     FLOPs under other: 7 per element of S (decay, two multiplies-adds to read, one to write),
             2 per value (v − Sᵀ·k, β), 7 per channel of the keys (both lengths, 1/√d_k), 3 per head (β = sigmoid;
             4 `signed`), and a decay's exp(−A·softplus(a + bias)) (5), or exp(`bound`·sigmoid(A·(a + bias))) (7)
    Kept     modelled: q, k, v, a, β and the states at every step
    Source   Yang et al. 2024 (arXiv 2412.06464), equation 10; with d_k decays Kimi Linear (arXiv 2510.26692)
    """

    n_heads: Num
    n_key_heads: Num
    d_key: Num
    d_value: Num
    decays: Num
    bound: Num | None = None
    signed: bool = False

    def weights(self) -> tuple[Weight, ...]:
        return Weight("A_log", (self.n_heads,)), Weight("dt_bias", (self.n_heads * self.decays,))

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, values, keys = work.positions, self.n_heads * self.d_value, self.n_key_heads * self.d_key
        passed = 2 * keys + 2 * values + self.n_heads  # q and k, v and y, β
        state = Traffic(0, 0, self.state_traffic(work))
        strength = COST["sigmoid"] + self.signed
        gate, decays = 3 + COST["softplus"] if self.bound is None else 4 + COST["sigmoid"], self.n_heads * self.decays
        gates = Traffic(self.n_heads + decays, rows * decays, 0)
        return (
            Elementwise("scan", rows * values * self.d_key, 7, state, "scan"),
            Elementwise("correction", rows * values, 2, Traffic(0, rows * passed, 0), "scan"),
            Elementwise("lengths", rows * keys, 7, Traffic(), "scan"),
            Elementwise("strength", rows * self.n_heads, strength, Traffic(), "scan"),
            Elementwise("decay", rows * decays, gate, gates, "scan"),
        )

    def saved(self, work: Workload) -> Num:
        values, keys = self.n_heads * self.d_value, self.n_key_heads * self.d_key
        return work.positions * (values * (1 + self.d_key) + 2 * keys + self.n_heads * (1 + self.decays))

    @property
    def shape(self) -> tuple[Num, ...]:
        return self.n_heads, self.d_key, self.d_value


class DeltaNet(Composite):
    """A delta rule between projections: q, k and v through a short convolution, a norm per head of the output, and an
    output gate.

    `decay`: one per "head", or one per "channel" of its keys. `rank`: that of the low-rank projections to
    decays and gate; None: full-rank ones. `whole_gate`: the gate's has full rank.

    Source   Yang et al. 2024 (arXiv 2412.06464), section 3.3; Kimi Linear (arXiv 2510.26692)
    """

    d_model: Num
    n_heads: Num
    n_key_heads: Num
    d_key: Num
    d_value: Num
    d_conv: Num
    decay: str
    bound: Num
    rank: Num
    gate: str
    norm_eps: float
    signed: bool = False
    whole_gate: bool = False

    def describe(self) -> str:
        return f"delta rule {self.n_heads} × {self.d_key} × {self.d_value}"

    def children(self) -> Iterator[Child]:
        values = self.n_heads * self.d_value
        mixed = 2 * self.n_key_heads * self.d_key + values
        yield Child("in_proj", Linear(d_in=self.d_model, d_out=mixed, bias=False))
        yield from self._projected("decay", self.n_heads * self.decays, self.rank)
        yield from self._projected("gate", values, None if self.whole_gate else self.rank)
        yield Child("beta_proj", Linear(d_in=self.d_model, d_out=self.n_heads, bias=False, keeps="no"))
        yield Child("conv", short_memory(mixed, self.d_conv, bias=False))
        yield Child("activation", Activation(width=mixed, form="silu", gated=False))
        yield Child("scan", self.rule)
        yield Child("norm", Norm(width=self.d_value, form="rms", bias=False, eps=self.norm_eps, groups=self.n_heads))
        yield Child("gate", Activation(width=values, form=self.gate, gated=True))
        yield Child("out_proj", Linear(d_in=values, d_out=self.d_model, bias=False), duty="writes")

    @property
    def decays(self) -> Num:
        """Decays per head."""
        return 1 if self.decay == "head" else self.d_key

    @property
    def rule(self) -> DeltaRule:
        """The scan."""
        return DeltaRule(
            n_heads=self.n_heads,
            n_key_heads=self.n_key_heads,
            d_key=self.d_key,
            d_value=self.d_value,
            decays=self.decays,
            bound=self.bound,
            signed=self.signed,
        )

    def shard(self, ways: Ways) -> DeltaNet:
        """Its heads, and their query/key heads or a replicated one; the down projections are replicated."""
        heads = ways.split("n_heads", self.n_heads)
        return replace(self, n_heads=heads, n_key_heads=ways.groups("n_key_heads", self.n_key_heads))

    def _projected(self, name: str, width: Num, rank: Num | None) -> Iterator[Child]:
        """One projection, or two of low rank."""
        if rank is None:
            yield Child(f"{name}_proj", Linear(d_in=self.d_model, d_out=width, bias=False, keeps="no"))
        else:
            yield Child(f"{name}_down", Linear(d_in=self.d_model, d_out=rank, bias=False, keeps="no"))
            yield Child(f"{name}_up", Linear(d_in=rank, d_out=width, bias=False))


class DeltaOptions(Mechanism, section="delta"):
    n_heads: Num = letter(REQUIRED, "value heads", of="n_key_heads", grows="heads")
    n_key_heads: Num = letter(lambda at: at["delta"]["n_heads"], "query/key heads", grows="heads")
    d_key: Num = letter(128, "width per query/key head")
    d_value: Num = letter(lambda at: at["delta"]["d_key"], "width per value head")
    d_conv: Num = key(size, 4, "kernel width of the short convolution")
    decay: str = key(one_of("head", "channel"), "head", "one decay per head, or one per channel of its keys")
    bound: float | None = key(real, None, "log decay = this times a sigmoid; absent: −A times a softplus")
    rank: Num | None = key(size, None, "rank of the projections to decays and gate; absent: projected directly")
    gate: str = key(one_of("silu", "sigmoid"), "silu", "activation of the output gate")
    signed: bool = key(flag, False, "β ranges from 0 to 2, so that eigenvalues may be negative")
    whole_gate: bool = key(flag, False, "the output gate is projected directly, whatever the rank of the decays")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.whole_gate and self.rank is None:
            yield Conflict("whole_gate", "false without rank: the gate is projected directly anyway")

    def build(self, place: Place) -> DeltaNet:
        eps = place.norm.epsilon_or(RMS_EPS)
        return self.into(DeltaNet, d_model=place.d_model, norm_eps=eps)
