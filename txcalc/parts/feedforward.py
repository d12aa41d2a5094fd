"""Feed-forward layers and mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from txcalc.num import Num, exceeds, maximum
from txcalc.parts.linear import SAVES_RESULT, Activation, LearnedScale, Linear, Shift, Vector, linear
from txcalc.parts.norm import Norm
from txcalc.parts.options import (
    ACTIVATIONS,
    REQUIRED,
    Conflict,
    Raw,
    Table,
    absent,
    count,
    divided,
    every,
    flag,
    key,
    letter,
    one_of,
    real,
    size,
)
from txcalc.parts.part import Child, Composite, optional
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.sharding import AllReduce, Collective, Ways


class FeedForward(Composite):
    """up, activation, down (8·D² for F = 4·D); gated: a second matrix parallel to up (SwiGLU, GeGLU).

    `inner_norm` stands before down, which then saves its input; `inner_join` joins its statistics over ranks.

    Source   Vaswani et al. 2017, equation 2; Shazeer 2020 (arXiv 2002.05202); Wang et al. 2022 (arXiv 2210.06423)
    """

    d_model: Num
    d_ff: Num
    gated: bool
    activation: str
    bias: bool
    # False: another leaf saves its input (a parallel block's attention reads the same).
    keeps_input: bool = True
    sparsity: float | None = None
    inner_norm: Norm | None = None
    # Bias of down alone; None: as the others.
    down_bias: bool | None = None
    inner_join: AllReduce | None = None
    # Its weights belong to another layer.
    borrowed: bool = False

    def children(self) -> Iterator[Child]:
        keeps = "yes" if self.keeps_input else "no"
        if self.gated:
            yield Child(
                "gate",
                linear(self.d_model, self.d_ff, bias=self.bias, keeps=keeps, borrowed=self.borrowed),
            )
        keeps = "no" if self.gated else keeps
        yield Child("up", linear(self.d_model, self.d_ff, bias=self.bias, keeps=keeps, borrowed=self.borrowed))
        yield Child(
            "activation", Activation(width=self.d_ff, form=self.activation, gated=self.gated, sparsity=self.sparsity)
        )
        same = self.activation in SAVES_RESULT and not self.gated
        if self.inner_norm:
            yield Child("inner_norm", replace(self.inner_norm, keeps=not same))
        yield from optional("inner_join", self.inner_join, duty="statistics")
        input_saved = same and not self.inner_norm
        bias = self.bias if self.down_bias is None else self.down_bias
        keeps = "no" if input_saved else "yes"
        yield Child(
            "down",
            linear(self.d_ff, self.d_model, bias=bias, keeps=keeps, borrowed=self.borrowed),
            duty="writes",
        )

    def describe(self) -> str:
        return f"{'gated' if self.gated else 'plain'} F = {self.d_ff:,}"

    def peak_elements(self) -> Num:
        """up, gate and their product."""
        return (3 if self.gated else 2) * self.d_ff

    def shard(self, ways: Ways) -> FeedForward:
        """Column-parallel gate and up, row-parallel down, whose bias is whole."""
        width = ways.split("d_ff", self.d_ff)
        norm, join = ways.inner_norm(self.inner_norm, width), ways.norm_statistics(self.inner_norm)
        keeps = self.keeps_input or ways.gathers_each
        return replace(self, d_ff=width, keeps_input=keeps, inner_norm=norm, inner_join=join)


class LayerInput(Composite):
    """Per-layer embeddings: down(act(gate(x)) · e), with a vector e per token and layer (see `model.LayerInputs`).

    Source   Gemma Team 2025, Gemma 3n: per-layer embeddings
    """

    d_model: Num
    width: Num
    activation: str
    complete = on_stream = True  # every rank has all of it

    def children(self) -> Iterator[Child]:
        yield Child("gate", Linear(d_in=self.d_model, d_out=self.width, bias=False))
        yield Child("activation", Activation(width=self.width, form=self.activation, gated=True))
        yield Child("down", Linear(d_in=self.width, d_out=self.d_model, bias=False), duty="writes")

    def shard(self, ways: Ways) -> LayerInput:
        """Replicated: it is small."""
        return self


class Experts(Composite):
    """A mixture of experts: a router, E routed feed-forwards of which each token uses k, and shared ones.

    A token's FLOPs are those of the router, k experts and the shared ones; the parameters are all of them.

    latent        width that all routed experts read and write, between a shared down- and up-projection; router and
                  shared experts read d_model
    router_norm   the router's own norm, where the experts read `norm` of the same input
    scales        learned factors of the experts' weights (Gemma-4)
    correction    added to the scores to choose experts, where it is stored as a parameter; its gradient is 0
                  (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)
    Source   Shazeer et al. 2017 (arXiv 1701.06538); DeepSeekMoE (arXiv 2401.06066) for shared experts
    """

    d_model: Num
    n_experts: Num
    top_k: Num
    expert: FeedForward
    router: Linear | None
    shared: FeedForward | None
    shared_gate: Linear | None = None
    # Number of shared experts, whose joint width is `shared.d_ff`: only described.
    n_shared: Num = 0
    # How scores become expert weights, and the groups of experts that routing is limited to: no cost.
    scoring: str = "softmax"
    scale: float = 1
    n_groups: Num = 1
    top_groups: Num = 1
    # None: d_model.
    latent: Num | None = None
    router_norm: Norm | None = None
    router_scale: float | None = None
    scales: LearnedScale | None = None
    norm: Norm | None = None
    correction: Vector | None = None
    # Bias of the routed experts' sum.
    bias: Shift | None = None
    # On one rank: whether tokens are exchanged, the collectives before and after the routed experts, and those around
    # the shared ones.
    exchanged: bool = False
    arrive: tuple[tuple[str, Collective], ...] = ()
    leave: tuple[tuple[str, Collective], ...] = ()
    shared_gather: Collective | None = None
    shared_join: Collective | None = None

    def children(self) -> Iterator[Child]:
        yield from optional("router_norm", self.router_norm, kind="router", forced=True)
        yield from optional("router", self.router, kind="router")
        yield from optional("correction", self.correction, kind="router")
        if self.latent is not None:
            keeps = "no" if self.shares_input else "yes"
            down = Linear(d_in=self.d_model, d_out=self.latent, bias=False, keeps=keeps)
            yield Child("latent_down", down, kind="feed_forward")
        yield from optional("scales", self.scales, kind="router")
        yield from optional("norm", self.norm)
        for name, collective in self.arrive:
            yield Child(name, collective)
        yield Child(
            "routed",
            self.expert,
            times=self.n_experts,
            runs=self.top_k,
            routed=True,
            indices=every(self.n_experts),
            kind="experts",
            duty="expert",
        )
        yield from optional("bias", self.bias, kind="experts")
        for name, collective in self.leave:
            yield Child(name, collective, duty="shares" if collective.kind == "all_gather" else "")
        if self.latent is not None:
            yield Child(
                "latent_up",
                Linear(d_in=self.latent, d_out=self.d_model, bias=False),
                kind="feed_forward",
                duty="widens",
            )
        yield from optional("shared_gate", self.shared_gate, kind="router")
        if self.shared and self.shared_gather:
            yield Child("shared_gather", self.shared_gather)
        yield from optional("shared", self.shared, kind="shared_experts")
        if self.shared and self.shared_join:
            yield Child("shared_join", self.shared_join)

    def describe(self) -> str:
        shared = f" + {maximum(self.n_shared, 1)} shared" if self.shared else ""
        return f"{self.top_k} of {self.n_experts} experts{shared}, {self.expert.describe()}"

    def peak_elements(self) -> Num:
        """Results of the first product and of the activation, of k experts; the first buffer is reused for the second
        product, as in vLLM's fused_moe (2026-11)."""
        routed = self.top_k * (maximum(2 * self.expert.d_ff, self.d_model) + self.expert.d_ff)
        return maximum(routed, 3 * self.shared.d_ff) if self.shared else routed

    @property
    def complete(self) -> bool:
        """Where tokens are exchanged, each returns with all of its experts' results."""
        return self.exchanged

    @property
    def shares_input(self) -> bool:
        """Whether the router saves the input that the shared experts, their gate and the latent's projection read."""
        return self.router is not None and self.norm is None

    @property
    def width(self) -> Num:
        """Input width of the routed experts."""
        return self.d_model if self.latent is None else self.latent

    def shard(self, ways: Ways) -> Experts:
        """Its experts, each split by etp, and the columns of the shared ones; the router is replicated."""
        if self.bias:
            ways.cannot_split("mixture of experts with a bias of their sum")
        keeps_input = ways.shared_keeps_input(self.shares_input)
        return replace(
            self,
            router_norm=ways.keeping(self.router_norm),
            n_experts=ways.experts(self.n_experts),
            top_k=ways.local_top_k(self.top_k),
            expert=self.expert.shard(ways.routed),
            shared=self.shared and replace(self.shared.shard(ways), keeps_input=keeps_input),
            exchanged=ways.exchanges,
            arrive=ways.dispatch(self.width, self.top_k),
            leave=ways.combine(self.width, self.top_k),
            shared_gather=ways.shared_gather(self.d_model),
            shared_join=ways.shared_join(self.d_model, self.latent is not None),
        )


class FeedForwardOptions(Mechanism, section="feed_forward", kind="feed_forward", stands=""):
    d_ff: Num = letter(REQUIRED, "width", grows="width")
    gated: bool = key(flag, False, "gated: a second matrix parallel to up")
    activation: str = key(
        one_of(*ACTIVATIONS, "xielu"), lambda at: ("gelu", "silu")[at["feed_forward"]["gated"]], "activation"
    )
    bias: bool = key(flag, False, "biases")
    down_bias: bool = key(flag, lambda at: at["feed_forward"]["bias"], "bias of down")
    inner_norm: bool = key(flag, False, "norm before down")
    sparsity: float | None = key(
        real, None, "activation sparsity: share of the gate that is zeroed, by its mean and deviation"
    )

    def build(self, place: Place) -> FeedForward:
        return self.into(
            FeedForward,
            d_model=place.d_model,
            keeps_input=place.keeps_input,
            inner_norm=place.norm.over(self.d_ff) if self.inner_norm else None,
        )


class LayerInputOptions(Mechanism, section="layer_input", kind="other", stands=""):
    width: Num = key(size, REQUIRED, "width of the per-layer embedding of a token")
    rows: Num = key(size, lambda at: at[""]["vocab_size"], "rows of their table")
    activation: str = key(one_of(*ACTIVATIONS), "gelu_tanh", "activation of its gate")

    def build(self, place: Place) -> LayerInput:
        return self.into(LayerInput, d_model=place.d_model)


def _shared_width(at: Table) -> Num:
    """n_shared·F_e; a plain 0 without shared experts, whatever F_e is (0 × an array would be a part of width 0)."""
    width, number = at["experts"]["d_ff"], at["experts"]["n_shared"]
    return 0 if absent(number) else width * number


def _if_shared(width: Num, at: Table) -> Num:
    """The joint width, unless n_shared = 0 is given."""
    number = at["experts"].written.get("n_shared")
    return 0 if absent(number) else width


class ExpertsOptions(Mechanism, section="experts", kind="experts", stands=""):
    """`[experts]`, in place of `[feed_forward]`."""

    n_experts: Num = letter(REQUIRED, "routed experts", chosen="top_k")
    top_k: Num = letter(REQUIRED, "top-k: experts per token")
    d_ff: Num = letter(REQUIRED, "width of one expert", grows="width")
    gated: bool = key(flag, True, "gated: a second matrix parallel to up")
    activation: str = key(one_of(*ACTIVATIONS), "silu", "activation")
    bias: bool = key(flag, False, "biases in every expert")
    router: bool = key(flag, True, "a router, one row per expert")
    router_bias: bool = key(flag, False, "bias of the router")
    n_idle: Num = key(count, 0, "further identity experts; a token that chooses none of them is counted")
    scoring: str = key(one_of("softmax", "sigmoid", "softmax_after"), "softmax", "how scores become expert weights")
    scale: float = key(real, 1, "multiplies the weights of the chosen experts")
    n_groups: Num = key(size, 1, "groups of experts that the choice is first narrowed to")
    top_groups: Num = key(size, 1, "groups that the experts are chosen from")
    n_shared: Num = key(
        count,
        0,
        "shared experts, used by every token; absent: as d_ff_shared implies",
        "where d_ff_shared, their joint width, is not given",
    )
    d_ff_shared: Num = letter(_shared_width, "their joint width", check=count, adjust=_if_shared, grows="width")
    shared_gate: bool = key(flag, False, "a scalar gate on the shared experts", "with n_shared or d_ff_shared")
    latent: Num | None = letter(None, "width of the routed experts' latent; absent: d_model", grows="width")
    router_norm: bool = key(flag, False, "the router has a norm of its own, parallel to the experts'")
    router_scale: float | None = key(real, None, "multiplies the router's scores")
    expert_scales: bool = key(flag, False, "a learned factor per expert's weight")
    sum_bias: bool = key(flag, False, "a bias on the routed experts' sum")
    correction: bool = key(flag, False, "the bias that is added to sigmoid scores to choose experts is a parameter")

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.correction and (self.scoring != "sigmoid" or self.router is False):
            yield Conflict("correction", "false without a router whose scoring is 'sigmoid'")
        groups = list(divided("n_groups", self.n_groups, "n_experts", self.n_experts))
        yield from groups
        if not groups and exceeds(self.top_groups, self.n_groups):
            yield Conflict("top_groups", f"at most n_groups = {self.n_groups}")

    @property
    def takes_norm(self) -> bool:
        """The router reads the input of the experts' norm."""
        return self.router_norm

    def build(self, place: Place) -> Experts:
        d_model = place.d_model
        form: Raw = {"gated": self.gated, "activation": self.activation, "bias": self.bias}
        keeps_input = not self.router or self.router_norm
        shared = None
        if not absent(self.d_ff_shared):
            shared = FeedForward(d_model=d_model, d_ff=self.d_ff_shared, keeps_input=keeps_input, **form)
        gate = Linear(d_in=d_model, d_out=1, bias=False, keeps="yes" if keeps_input else "no")
        return self.into(
            Experts,
            d_model=d_model,
            expert=FeedForward(d_model=d_model if self.latent is None else self.latent, d_ff=self.d_ff, **form),
            router=Linear(d_in=d_model, d_out=self.n_experts + self.n_idle, bias=self.router_bias)
            if self.router
            else None,
            shared=shared,
            shared_gate=gate if shared is not None and self.shared_gate else None,
            router_norm=replace(place.norm.over(d_model), keeps=False) if self.router_norm else None,
            norm=place.pre if self.router_norm else None,
            scales=LearnedScale(rows=self.n_experts, used=self.top_k) if self.expert_scales else None,
            correction=Vector(width=self.n_experts) if self.correction else None,
            bias=Shift(width=d_model) if self.sum_bias else None,
        )
