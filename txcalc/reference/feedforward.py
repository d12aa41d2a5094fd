"""The feed-forward and its experts: see `parts.feedforward`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from txcalc.parts import feedforward as parts
from txcalc.reference.linear import Activation, BareVector, Factors, Linear, Norm, Shift
from txcalc.reference.run import Run, TensorOptions, current


class FeedForward(nn.Module):
    """down(act(up(x))), or gated down(act(gate(x)) · up(x))."""

    def __init__(self, part: parts.FeedForward, like: TensorOptions) -> None:
        super().__init__()
        self.gate = Linear(part.d_model, part.d_ff, part.bias, like) if part.gated else None
        self.up = Linear(part.d_model, part.d_ff, part.bias, like)
        self.activation = Activation(part.activation, part.sparsity, like)
        self.inner_norm = Norm(part.inner_norm, like) if part.inner_norm else None
        bias = part.bias if part.down_bias is None else part.down_bias
        self.down = Linear(part.d_ff, part.d_model, bias, like)

    def forward(self, x: Tensor, run: Run) -> Tensor:
        y = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x), self.up(x))
        return self.down(y if self.inner_norm is None else self.inner_norm(y))


class LayerInput(nn.Module):
    """down(act(gate(x)) · e), with e the sum of the layer's two vectors (see `model.LayerInputs`) over √2."""

    def __init__(self, part: parts.LayerInput, like: TensorOptions) -> None:
        super().__init__()
        self.gate = Linear(part.d_model, part.width, False, like)
        self.activation = Activation(part.activation)
        self.down = Linear(part.width, part.d_model, False, like)

    def forward(self, x: Tensor, run: Run) -> Tensor:
        assert run.inputs is not None
        of_stack, of_table = (vectors[:, :, run.index] for vectors in run.inputs)
        return self.down(self.activation(self.gate(x), (of_stack + of_table) * 2**-0.5))


class Experts(nn.Module):
    """Mixture of experts: each token goes to its router's k best experts, and to the shared ones.

    Tokens are sorted by expert, and each expert runs once on its tokens; none is dropped. In the `static` mode all
    tokens go to experts 0 … k − 1, in the `even` mode to the next k in turn, regardless of scores, through the same
    code: FLOPs do not depend on routing, nor shapes on data.
    """

    def __init__(self, part: parts.Experts, like: TensorOptions) -> None:
        super().__init__()
        self.router_norm = Norm(part.router_norm, like) if part.router_norm else None
        self.router = Linear(part.d_model, part.router.d_out, part.router.bias, like) if part.router else None
        self.latent_down = Linear(part.d_model, part.latent, False, like) if part.latent is not None else None
        self.latent_up = Linear(part.latent, part.d_model, False, like) if part.latent is not None else None
        self.scales = Factors(part.scales, like) if part.scales else None
        self.norm = Norm(part.norm, like) if part.norm else None
        self.experts = part.n_experts  # with PyTorch's symbols one stands for all
        modules = range(part.n_experts) if type(part.n_experts) is int else range(1)
        self.routed = nn.ModuleList(FeedForward(part.expert, like) for _ in modules)
        self.shared_gate = Linear(part.d_model, 1, part.shared_gate.bias, like) if part.shared_gate else None
        self.shared = FeedForward(part.shared, like) if part.shared else None
        self.number = len(self.routed)  # of all experts, on any rank
        self.top_k, self.scoring, self.scale = part.top_k, part.scoring, part.scale
        self.groups, self.top_groups, self.router_scale = part.n_groups, part.top_groups, part.router_scale
        self.bias = Shift(part.bias, like) if part.bias else None
        self.correction = BareVector(part.n_experts, like) if part.correction else None
        # Added when experts are selected, not to their weights; has no gradient.
        if part.scoring == "sigmoid" and self.correction is None:
            self.register_buffer("selection_bias", torch.zeros(part.n_experts, device=like.device))

    def forward(self, x: Tensor, run: Run) -> Tensor:
        rows = x.flatten(0, 1)
        weights, experts = self._route(rows)
        if self.norm is not None:
            x = self.norm(x)
            rows = x.flatten(0, 1)
        if current().static:
            order = torch.arange(rows.shape[0] * self.top_k, device=x.device).unflatten(0, (-1, self.top_k)).T.flatten()
            counts = [rows.shape[0]] * self.top_k if type(self.experts) is int else [rows.shape[0] * self.top_k]
        else:
            flat = experts.flatten()
            order = flat.argsort(stable=True)
            counts = self._even_counts(rows) if current().even else flat.bincount(minlength=self.number).tolist()
        rows = rows if self.latent_down is None else self.latent_down(rows)
        results = self.run_experts(rows[order // self.top_k], counts, run)
        results = results[order.argsort()].unflatten(0, (-1, self.top_k))  # (rows, k, D)
        y = (results * weights.unsqueeze(2).to(results.dtype)).sum(1)
        y = y if self.bias is None else self.bias(y)
        y = (y if self.latent_up is None else self.latent_up(y)).view_as(x)
        if self.shared is not None:
            shared = self.shared(x, run)
            y = y + (shared if self.shared_gate is None else self.shared_gate(x).sigmoid() * shared)
        return y

    def run_experts(self, rows: Tensor, counts: Sequence[int], run: Run) -> Tensor:
        """Applies experts to rows (N, D) sorted by expert: `counts` for each of the first experts."""
        busy = [(expert, count) for expert, count in zip(self.routed, counts, strict=False) if count]
        shares = rows.split([count for _, count in busy])
        return torch.cat([expert(share, run) for (expert, _), share in zip(busy, shares, strict=True)])

    def _route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and indices (rows, k) of each row's experts."""
        if self.router is None:
            indices = torch.arange(self.top_k, device=rows.device).expand(rows.shape[0], -1)
            return torch.ones_like(indices, dtype=rows.dtype), indices
        scores = self.router(rows if self.router_norm is None else self.router_norm(rows)).float()
        scores = scores if self.router_scale is None else scores * self.router_scale
        if self.scoring == "softmax":
            scores = scores.softmax(-1)
        elif self.scoring == "sigmoid":
            scores = scores.sigmoid()
        scores = scores[..., : self.number]  # identity experts are never selected
        if self.correction is not None:  # an untrained parameter: its gradient is 0
            scores = scores + 0 * self.correction()
        if current().static:
            experts = torch.arange(self.top_k, device=rows.device).expand(rows.shape[0], -1)
        elif current().even:
            turns = torch.arange(rows.shape[0] * self.top_k, device=rows.device) % self.number
            experts = turns.unflatten(0, (-1, self.top_k))
        else:
            experts = self._selection_scores(scores.detach()).topk(self.top_k).indices
        weights = scores.gather(1, experts)
        if self.scoring == "softmax_after":
            weights = weights.softmax(-1)
        elif self.scoring == "sigmoid":
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = weights if self.scales is None else self.scales(weights, experts)
        return weights * self.scale, experts

    def _even_counts(self, rows: Tensor) -> list[int]:
        """The number of rows per expert when experts take rows in turn."""
        rounds, remainder = divmod(rows.shape[0] * self.top_k, self.number)
        return [rounds + (i < remainder) for i in range(self.number)]

    def _selection_scores(self, scores: Tensor) -> Tensor:
        """The scores that select experts: with bias, and only within the best groups.

        A group's score is the sum of its two best experts' or, with softmax scores (DeepSeek-V2), its best expert's.
        """
        if self.scoring == "sigmoid":
            correction = self.get_buffer("selection_bias") if self.correction is None else self.correction()
            scores = scores + correction.detach()
        if self.groups == 1:
            return scores
        grouped = scores.unflatten(1, (self.groups, -1))
        merit = grouped.topk(2 if self.scoring == "sigmoid" else 1).values.sum(-1)
        best = torch.zeros_like(merit).scatter(1, merit.topk(self.top_groups).indices, 1).bool()
        return grouped.masked_fill(~best.unsqueeze(-1), -torch.inf).flatten(1)


@contextmanager
def busy_experts_only(net: nn.Module) -> Iterator[None]:
    """Modules without the experts that get no token in the `static` mode, for callers that read all modules."""
    experts = [(part, part.routed) for part in net.modules() if isinstance(part, Experts)]
    for part, routed in experts:
        part.routed = routed[: part.top_k]
    try:
        yield
    finally:
        for part, routed in experts:
            part.routed = routed
