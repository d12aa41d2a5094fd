"""Initial values of the parameters, for training, by the rules of `planning.initial`.

A mixer starts as Mamba does: A = −1 … −N (Mamba-2: −1 … −16 over its heads), D = 1, steps from 0.001 to 0.1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from txcalc.planning.initial import STD
from txcalc.reference.latent import Temperature
from txcalc.reference.linear import Activation, Convolution, LayerScale, LowRank, Norm, Shift
from txcalc.reference.model import Block, Stack
from txcalc.reference.recurrent import GatedRecurrence, Mamba, SelectiveScan
from txcalc.reference.rwkv import TokenShift, WeightedSum

STEPS = 0.001, 0.1
WRITERS = ("o", "down", "out_proj")  # modules of the leaves that write to the residual stream


@torch.no_grad()
def initialise(net: nn.Module) -> None:
    """Initialises every parameter of a model, from torch's generator."""
    for module in net.modules():
        for name, parameter in module.named_parameters(recurse=False):
            _first_values(module, name, parameter)
    for module in net.modules():
        if isinstance(module, Mamba):
            steps = _base_layer(module.dt_proj)
            bound = steps.get_parameter("weight").shape[1] ** -0.5
            steps.get_parameter("weight").uniform_(-bound, bound)
            _fill_steps(steps.get_parameter("bias"))
        elif isinstance(module, LowRank):  # adapters add zero at first (Hu et al. 2021, section 4.1)
            nn.init.kaiming_uniform_(module.lora_a.weight, math.sqrt(5))
            module.lora_b.weight.zero_()
        elif isinstance(module, Stack):
            _shrink_writers(module)


def _first_values(module: nn.Module, name: str, parameter: Tensor) -> None:
    if isinstance(module, Norm):
        parameter.fill_(1 if name == "weight" and not module.offset else 0)
    elif isinstance(module, Temperature):
        parameter.fill_(name == "bias")
    elif name == "D" or isinstance(module, LayerScale):
        parameter.fill_(1)
    elif name == "A_log":
        states = isinstance(module, SelectiveScan)
        last = parameter.shape[-1] if states else 16
        parameter.copy_(torch.linspace(1, last, parameter.shape[-1]).log().expand_as(parameter))
    elif name == "dt_bias":
        _fill_steps(parameter)
    elif isinstance(module, GatedRecurrence):
        decay_squared = torch.empty_like(parameter).uniform_(0.9**2, 0.999**2)  # a² where r is 1/8
        parameter.copy_((decay_squared.log() * -0.5).expm1().log())
    elif isinstance(module, TokenShift):
        parameter.fill_(0.5)
    elif isinstance(module, WeightedSum):
        parameter.copy_(torch.linspace(-5, 3, len(parameter)) if name == "decay" else torch.full_like(parameter, -1.2))
    elif isinstance(module, Activation):  # slope 0.8 on both sides, 0.5 of it fixed on one (xIELU)
        parameter.fill_(math.log(math.expm1(0.8 if name == "positive" else 0.3)))
    elif name in ("bias", "sinks") or isinstance(module, Shift):
        parameter.zero_()
    elif isinstance(module, Convolution):
        nn.init.kaiming_uniform_(parameter, math.sqrt(5))
    else:
        parameter.normal_(0, float(STD))


def _base_layer(module: nn.Module) -> nn.Module:
    """The linear layer, with or without an adapter."""
    return module.base if isinstance(module, LowRank) else module


def _fill_steps(bias: Tensor) -> None:
    """Biases whose softplus is spread evenly, in logarithm, over `STEPS`."""
    low, high = map(math.log, STEPS)
    steps = torch.empty_like(bias).uniform_(low, high).exp()
    bias.copy_(steps + torch.log(-torch.expm1(-steps)))


def _shrink_writers(stack: Stack) -> None:
    blocks = [block for block in stack.layers if isinstance(block, Block)]
    branches = sum(len(block.names) for block in blocks)
    for block in dict.fromkeys(blocks):  # a shared one once
        for name, module in block.named_modules():
            writes = name.rpartition(".")[2] in WRITERS and not isinstance(module, nn.Identity)
            if writes and not block.norm_after_sum:
                _base_layer(module).get_parameter("weight").mul_(branches**-0.5)
