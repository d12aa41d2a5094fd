"""Recurrent cells: LSTM, GRU and the plain RNN, as mixers of a block.

Gates read the new token and the last state. Products with tokens run for all positions at once, those with the state
step by step; both are headline FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterator

from txcalc.num import Num
from txcalc.parts.leaf import Recurrence
from txcalc.parts.linear import Linear
from txcalc.parts.options import key, letter, one_of, up_to
from txcalc.parts.part import (
    COST,
    Child,
    Composite,
    Elementwise,
    MatMul,
    Operation,
    Traffic,
    Weight,
    Workload,
    elementwise,
)
from txcalc.parts.place import Mechanism, Place

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
STATES = {"lstm": 2, "gru": 1, "rnn": 1}  # cached vectors: an LSTM's cell state and output
BIASES = (False, False), (True, False), (True, True)  # whether the products with token and state have one, by number
# FLOPs per unit: sums of both products, activations, and the new state.
UNIT = {
    "lstm": 4 + 3 * COST["sigmoid"] + 2 * COST["tanh"] + 4,  # f·c + i·g, o·tanh(c)
    "gru": 3 + 2 * COST["sigmoid"] + COST["tanh"] + 5,  # r·(U·h), (1 − z)·n + z·h
    "rnn": 1 + COST["tanh"],
}


class Cell(Recurrence):
    """An LSTM, GRU or plain RNN cell: the gates' products with the last state, and the new state.

    Shapes   gates' inputs (B, T, G·H), U (G·H, H), state (B, H), an LSTM's twice, y (B, T, H); G = 4, 3 or 1
    Unit     FLOPs 2·B·T·G·H²; other: `UNIT` per unit, 1 per bias of a gate
    Omits    the wait of each step for the one before: FLOPs alone do not bound its time
    Traffic  U once, as in persistent kernels; others read it at every step
    Kept     modelled: the gates and the states at every step
    Source   Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000; Cho et al. 2014 (arXiv
             1406.1078); Elman 1990; as PyTorch's nn.LSTM, nn.GRU and nn.RNN compute them
    """

    kept_in_fp32 = False
    form: str
    width: Num
    bias: bool

    def weights(self) -> tuple[Weight, ...]:
        gates = GATES[self.form] * self.width
        weight = Weight("weight", (gates, self.width))
        return (weight, Weight("bias", (gates,))) if self.bias else (weight,)

    def operations(self, work: Workload) -> tuple[Operation, ...]:
        rows, gates = work.positions, GATES[self.form] * self.width
        read = Traffic(gates * self.width, rows * (self.width + gates))
        state = Traffic(0, rows * (gates + self.width), self.state_traffic(work))
        product = MatMul("recurrence", work.tokens, work.batch, self.width, gates, read)
        cell = Elementwise("cell", rows * self.width, UNIT[self.form], state, "scan")
        if not self.bias:
            return product, cell
        return product, elementwise("bias", rows * gates, "add", 0, 0, gates), cell

    def saved(self, work: Workload) -> Num:
        return work.positions * (GATES[self.form] + STATES[self.form]) * self.width

    @property
    def shape(self) -> tuple[Num, ...]:
        return (2, self.width) if self.form == "lstm" else (self.width,)


class RecurrentCell(Composite):
    """A layer of recurrent cells: the gates' products with the token, the cell, and a projection back where the state
    is not as wide as the stream.

    PyTorch stores two bias vectors of the gates where papers have one: `bias` is that of the first product,
    `second_bias` that of the cell.
    """

    d_model: Num
    d_hidden: Num
    form: str
    bias: bool
    second_bias: bool
    projected: bool

    def children(self) -> Iterator[Child]:
        gates = GATES[self.form] * self.d_hidden
        yield Child("in_proj", Linear(d_in=self.d_model, d_out=gates, bias=self.bias))
        yield Child("cell", Cell(form=self.form, width=self.d_hidden, bias=self.second_bias))
        if self.projected:
            yield Child("out_proj", Linear(d_in=self.d_hidden, d_out=self.d_model, bias=self.bias), duty="writes")

    def describe(self) -> str:
        return f"{self.form.upper()} {self.d_hidden:,}"


class CellOptions(Mechanism, section="rnn"):
    form: str = key(one_of("lstm", "gru", "rnn"), "lstm", "the cell: LSTM, GRU or a plain RNN")
    d_hidden: Num | None = letter(
        None, "width of the state, then projected back; absent: d_model without a projection", grows="width"
    )
    biases: int = key(up_to(2), 2, "bias vectors of the gates: 2 as in PyTorch, 1 as in papers, or 0")

    def build(self, place: Place) -> RecurrentCell:
        hidden, (first, second) = self.d_hidden, BIASES[self.biases]
        return RecurrentCell(
            d_model=place.d_model,
            d_hidden=place.d_model if hidden is None else hidden,
            form=self.form,
            bias=first,
            second_bias=second,
            projected=hidden is not None,
        )
