"""The feed-forward and its experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from txcalc.num import exceeds, maximum
from txcalc.parts.collectives import AllReduce, Collective
from txcalc.parts.frozen import frozen
from txcalc.parts.linear import SAVES_RESULT, Activation, LearnedScale, Linear, Shift, Vector, linear
from txcalc.parts.norm import Norm
from txcalc.parts.options import (
    ACTIVATIONS,
    REQUIRED,
    Wished,
    absent,
    count,
    divided,
    every,
    flag,
    groups_of,
    key,
    letter,
    one_of,
    real,
    size,
)
from txcalc.parts.part import Child, Composite, optional
from txcalc.parts.place import Mechanism, Place
from txcalc.parts.sharding import Ways


@frozen
class FeedForward(Composite):
    """up, activation, down (8·D² where F = 4·D); gated: a second matrix beside up (SwiGLU, GeGLU).

    `inner_norm` stands before down, which then keeps its input by itself; ranks add up its statistics (`inner_join`).
    Source   Vaswani et al. 2017, equation 2; Shazeer 2020 (arXiv 2002.05202); Wang et al. 2022 (arXiv 2210.06423)
    """

    d_model: Any
    d_ff: Any
    gated: bool
    activation: str
    bias: bool
    # Its input is already kept by another leaf (a parallel block's attention shares it).
    keeps_input: bool = True
    sparsity: float | None = None
    inner_norm: Norm | None = None
    # Of the last matrix by itself; None: as the others.
    down_bias: bool | None = None
    inner_join: AllReduce | None = None
    # Groups in which up (and gate) and down are cut.
    groups: tuple[Any, ...] | None = None
    # Another layer holds its weights.
    borrowed: bool = False

    def children(self) -> Iterator[Child]:
        first, last = self.groups or (None, None)
        keeps = "yes" if self.keeps_input else "no"
        if self.gated:
            yield Child(
                "gate",
                linear(self.d_model, self.d_ff, bias=self.bias, keeps=keeps, groups=first, borrowed=self.borrowed),
            )
        keeps = "no" if self.gated else keeps
        yield Child(
            "up", linear(self.d_model, self.d_ff, bias=self.bias, keeps=keeps, groups=first, borrowed=self.borrowed)
        )
        yield Child(
            "activation", Activation(width=self.d_ff, form=self.activation, gated=self.gated, sparsity=self.sparsity)
        )
        same = self.activation in SAVES_RESULT and not self.gated
        if self.inner_norm:
            yield Child("inner_norm", replace(self.inner_norm, keeps=not same))
        yield from optional("inner_join", self.inner_join)
        kept = same and not self.inner_norm
        bias = self.bias if self.down_bias is None else self.down_bias
        keeps = "no" if kept else "yes"
        yield Child(
            "down",
            linear(self.d_ff, self.d_model, bias=bias, keeps=keeps, groups=last, borrowed=self.borrowed),
            duty="writes",
        )

    def describe(self) -> str:
        return f"{'gated ' if self.gated else ''}F = {self.d_ff:,}"

    def alive(self) -> Any:
        """Up, gate and their product."""
        return (3 if self.gated else 2) * self.d_ff

    def shard(self, ways: Ways) -> FeedForward:
        """Its columns: rows of gate and up, columns of down, whose bias is whole."""
        if self.groups:
            ways.whole("feed-forward in groups")
        width = ways.split("d_ff", self.d_ff)
        norm, join = ways.inner_norm(self.inner_norm, width), ways.statistics(self.inner_norm)
        return replace(self, d_ff=width, inner_norm=norm, inner_join=join)


@frozen
class LayerInput(Composite):
    """down(act(gate(x)) · e): a layer reads a vector e of its own for each token (see `model.LayerInputs`).

    Source   Gemma Team 2025, Gemma 3n: per-layer embeddings
    """

    d_model: Any
    width: Any
    activation: str
    complete = True  # every rank has all of it

    def children(self) -> Iterator[Child]:
        yield Child("gate", Linear(d_in=self.d_model, d_out=self.width, bias=False))
        yield Child("activation", Activation(width=self.width, form=self.activation, gated=True))
        yield Child("down", Linear(d_in=self.width, d_out=self.d_model, bias=False), duty="writes")

    def shard(self, ways: Ways) -> LayerInput:
        """All of it: it is small, and every rank has what it reads."""
        return self


@frozen
class Experts(Composite):
    """A router, E routed feed-forwards of which each token passes k, and those that every token passes.

    A token's FLOPs are the router's, k experts' and the shared ones'; parameters are all of them. `latent`: the routed
    experts share a projection to fewer dimensions and one back; router and shared experts do not use it.
    `router_norm` is a norm of the router's own, where the experts read what `norm` makes of the same input; `scales`
    are learned factors of the experts' weights (Gemma-4). `correction` is added to the scores when experts are chosen,
    where it is stored as a parameter; its gradient is 0 (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    Source   Shazeer et al. 2017 (arXiv 1701.06538); DeepSeekMoE (arXiv 2401.06066) for the shared ones
    """

    d_model: Any
    n_experts: Any
    top_k: Any
    expert: FeedForward
    router: Linear | None
    shared: FeedForward | None
    shared_gate: Linear | None = None
    # Of how many the width of `shared` is the sum: words about it, in no formula.
    n_shared: Any = field(default=0, compare=False)
    # How the router's scores weigh the experts, and the groups that its choice is first narrowed to: no cost in them.
    scoring: str = "softmax"
    scale: Any = 1
    n_groups: Any = 1
    top_groups: Any = 1
    # Width of a latent that the routed experts work on; None: they work on the model's own.
    latent: Any = None
    router_norm: Norm | None = None
    router_scale: Any = None
    scales: LearnedScale | None = None
    norm: Norm | None = None
    correction: Vector | None = None
    # A bias of the sum of what the routed experts make.
    bias: Shift | None = None
    # Of one rank's share: whether tokens are exchanged, what is sent before the routed experts and after them, and what
    # brings together what the shared ones read and make.
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
            yield Child(name, collective)
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
        return f"{self.top_k} of {self.n_experts} experts{shared}, F = {self.expert.d_ff:,}"

    def alive(self) -> Any:
        """What the first product gives and their result, of k experts: the first buffer is used again for what the
        second product gives, as vLLM's fused_moe has it (2026-11)."""
        routed = self.top_k * (maximum(2 * self.expert.d_ff, self.d_model) + self.expert.d_ff)
        return maximum(routed, 3 * self.shared.d_ff) if self.shared else routed

    @property
    def complete(self) -> bool:
        """Where tokens are exchanged each comes back with all that its experts made of it."""
        return self.exchanged

    @property
    def shares_input(self) -> bool:
        """Whether the router keeps the input that the shared experts, their gate and a latent's projection read."""
        return self.router is not None and self.norm is None

    @property
    def width(self) -> Any:
        """What the routed experts read of a token."""
        return self.d_model if self.latent is None else self.latent

    def shard(self, ways: Ways) -> Experts:
        """Its experts, each split where etp says so, and the columns of the shared ones; the router is whole."""
        if self.bias:
            ways.whole("mixture of experts with a bias of their sum")
        apart = ways.reads_apart(self.shares_input)
        return replace(
            self,
            n_experts=ways.experts(self.n_experts),
            top_k=ways.passed(self.top_k),
            expert=self.expert.shard(ways.routed),
            shared=self.shared and replace(self.shared.shard(ways), keeps_input=apart),
            exchanged=ways.exchanges,
            arrive=ways.arriving(self.width, self.top_k),
            leave=ways.leaving(self.width, self.top_k),
            shared_gather=ways.read_beside(self.d_model),
            shared_join=ways.beside(self.d_model, self.latent is not None),
        )


@frozen
class FeedForwardOptions(Mechanism, section="feed_forward", kind="feed_forward", stands=""):
    d_ff: Any = letter(REQUIRED, "width", grows="width")
    gated: bool = key(flag, False, "a second matrix beside up")
    activation: str = key(
        one_of(*ACTIVATIONS, "xielu"), lambda at: ("gelu", "silu")[at["feed_forward"]["gated"]], "activation"
    )
    bias: bool = key(flag, False, "biases")
    down_bias: bool = key(flag, lambda at: at["feed_forward"]["bias"], "bias of the last matrix")
    inner_norm: bool = key(flag, False, "norm before the last matrix")
    groups: list[Any] | None = key(groups_of(2), None, "groups that up (and gate) and down are cut into")
    sparsity: Any = key(real, None, "share of the gates that are cut to 0, by their mean and deviation")

    def build(self, place: Place) -> FeedForward:
        return self.into(
            FeedForward,
            d_model=place.d_model,
            keeps_input=place.keeps_input,
            inner_norm=place.norm.over(self.d_ff) if self.inner_norm else None,
            groups=tuple(self.groups) if self.groups else None,
        )


@frozen
class LayerInputOptions(Mechanism, section="layer_input", kind="other", stands=""):
    width: Any = key(size, REQUIRED, "width of the vector that each layer reads for a token")
    rows: Any = key(size, lambda at: at[""]["vocab_size"], "rows of their table")
    activation: str = key(one_of(*ACTIVATIONS), "gelu_tanh", "activation of the gate on it")

    def build(self, place: Place) -> LayerInput:
        return self.into(LayerInput, d_model=place.d_model)


def _shared_width(at: Mapping[str, Any]) -> Any:
    """F_e a shared expert; a plain 0 where there is none, whatever F_e is (0 × an array would be a part of width 0)."""
    width, number = at["experts"]["d_ff"], at["experts"]["n_shared"]
    return 0 if absent(number) else width * number


def _if_shared(width: Any, at: Mapping[str, Any]) -> Any:
    """A joint width, unless it is said that there is no shared expert."""
    number = at["experts"].written.get("n_shared")
    return 0 if absent(number) else width


@frozen
class ExpertsOptions(Mechanism, section="experts", kind="experts", stands=""):
    """`[experts]`, in the place of `[feed_forward]`."""

    n_experts: Any = letter(REQUIRED, "routed experts", chosen="top_k")
    top_k: Any = letter(REQUIRED, "top-k: experts per token")
    d_ff: Any = letter(REQUIRED, "width of one expert", grows="width")
    gated: bool = key(flag, True, "a second matrix beside up")
    activation: str = key(one_of(*ACTIVATIONS), "silu", "activation")
    bias: bool = key(flag, False, "biases in every expert")
    router: bool = key(flag, True, "a router, one row per expert")
    router_bias: bool = key(flag, False, "bias of the router")
    n_idle: Any = key(count, 0, "further experts, which hand on what they get: counted is a token that chooses none")
    scoring: str = key(one_of("softmax", "sigmoid", "softmax_after"), "softmax", "how the router's scores weigh")
    scale: Any = key(real, 1, "multiplies the weights of the chosen experts")
    n_groups: Any = key(size, 1, "groups of experts, of which the best are chosen from")
    top_groups: Any = key(size, 1, "how many groups are chosen from")
    n_shared: Any = key(
        count,
        0,
        "experts that every token passes; absent: as d_ff_shared says",
        "where d_ff_shared, their joint width, is not given",
    )
    d_ff_shared: Any = letter(_shared_width, "their joint width", check=count, beside=_if_shared, grows="width")
    shared_gate: bool = key(flag, False, "a gate of one row on the shared experts", "with n_shared or d_ff_shared")
    latent: Any = letter(None, "width of a latent that the routed experts work on; absent: d_model", grows="width")
    router_norm: bool = key(flag, False, "the router reads what the experts read before their norm, by one of its own")
    router_scale: Any = key(real, None, "multiplies the router's scores")
    expert_scales: bool = key(flag, False, "a learned factor of every expert's weight")
    sum_bias: bool = key(flag, False, "a bias of the sum of what the routed experts make")
    correction: bool = key(flag, False, "what is added to sigmoid scores to choose experts is stored as a parameter")

    def misfits(self) -> Iterator[Wished]:
        yield from super().misfits()
        if self.correction and (self.scoring != "sigmoid" or self.router is False):
            yield Wished("correction", "false without a router whose scoring is 'sigmoid'")
        groups = list(divided("n_groups", self.n_groups, "n_experts", self.n_experts))
        yield from groups
        if not groups and exceeds(self.top_groups, self.n_groups):
            yield Wished("top_groups", f"at most n_groups = {self.n_groups}")

    @property
    def takes_norm(self) -> bool:
        """The router's input is what their norm reads."""
        return self.router_norm

    def build(self, place: Place) -> Experts:
        d_model = place.d_model
        form: dict[str, Any] = {"gated": self.gated, "activation": self.activation, "bias": self.bias}
        apart = not self.router or self.router_norm
        shared = None
        if not absent(self.d_ff_shared):
            shared = FeedForward(d_model=d_model, d_ff=self.d_ff_shared, keeps_input=apart, **form)
        gate = Linear(d_in=d_model, d_out=1, bias=False, keeps="yes" if apart else "no")
        return self.into(
            Experts,
            d_model=d_model,
            expert=FeedForward(d_model=d_model if self.latent is None else self.latent, d_ff=self.d_ff, **form),
            router=Linear(d_in=d_model, d_out=self.n_experts + self.n_idle, bias=self.router_bias)
            if self.router
            else None,
            shared=shared,
            shared_gate=gate if self.shared_gate and shared is not None else None,
            router_norm=replace(place.norm.over(d_model), keeps=False) if self.router_norm else None,
            norm=place.pre if self.router_norm else None,
            scales=LearnedScale(rows=self.n_experts, used=self.top_k) if self.expert_scales else None,
            correction=Vector(width=self.n_experts) if self.correction else None,
            bias=Shift(width=d_model) if self.sum_bias else None,
        )
