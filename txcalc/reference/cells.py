"""Recurrent cells with their states: see `parts.cells`. Gates are in PyTorch's order."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txcalc.parts import cells as parts
from txcalc.reference.linear import Linear
from txcalc.reference.run import Cached, Run, TensorOptions, current

States = tuple[Tensor, ...]


def lstm(new: Tensor, old: Tensor, states: States) -> States:
    """h and c (…, H) of the gates' products (…, 4·H) with the token and with h; gates i, f, g, o."""
    write, keep, value, read = (new + old).unflatten(-1, (4, -1)).unbind(-2)
    memory = keep.sigmoid() * states[1] + write.sigmoid() * value.tanh()
    return read.sigmoid() * memory.tanh(), memory


def gru(new: Tensor, old: Tensor, states: States) -> States:
    """h of products (…, 3·H); gates r, z, n, of which r lets the old state into n."""
    reset, keep, value = new.unflatten(-1, (3, -1)).unbind(-2)
    old_reset, old_keep, old_value = old.unflatten(-1, (3, -1)).unbind(-2)
    keep = (keep + old_keep).sigmoid()
    value = (value + (reset + old_reset).sigmoid() * old_value).tanh()
    return ((1 - keep) * value + keep * states[0],)


def rnn(new: Tensor, old: Tensor, states: States) -> States:
    """h of products (…, H)."""
    return ((new + old).tanh(),)


STEPS = {"lstm": lstm, "gru": gru, "rnn": rnn}


class Cell(Cached):
    """The states, token by token: y (B, T, H) of the gates' products with the tokens (B, T, G·H).

    In the `static` mode the products with the state run for all steps at once, on placeholders: the same shapes, other
    values.
    """

    def __init__(self, part: parts.Cell, like: TensorOptions) -> None:
        super().__init__()
        gates = parts.GATES[part.form] * part.width
        self.weight = like.parameter(gates, part.width)
        self.bias = like.parameter(gates) if part.bias else None
        self.step, self.number, self.width = STEPS[part.form], parts.STATES[part.form], part.width

    def forward(self, new: Tensor, run: Run) -> Tensor:
        if current().static:
            stand_in = new[..., : self.width]
            outputs = self.step(new, F.linear(stand_in, self.weight, self.bias), (stand_in,) * self.number)
            run.keep(self.place, *(state[:, -1] for state in outputs))
            return outputs[0]
        states = run.recall(self.place) or (new.new_zeros(new.shape[0], self.width),) * self.number
        results = []
        for t in range(new.shape[1]):
            states = self.step(new[:, t], F.linear(states[0], self.weight, self.bias), states)
            results.append(states[0])
        run.keep(self.place, *states)
        return torch.stack(results, 1)


class RecurrentCell(nn.Module):
    """A layer of recurrent cells."""

    def __init__(self, part: parts.RecurrentCell, like: TensorOptions) -> None:
        super().__init__()
        gates = parts.GATES[part.form] * part.d_hidden
        self.in_proj = Linear(part.d_model, gates, part.bias, like)
        self.cell = Cell(parts.Cell(form=part.form, width=part.d_hidden, bias=part.second_bias), like)
        self.out_proj = Linear(part.d_hidden, part.d_model, part.bias, like) if part.projected else None

    def forward(self, x: Tensor, run: Run) -> Tensor:
        y: Tensor = self.cell(self.in_proj(x), run)
        return y if self.out_proj is None else self.out_proj(y)
