"""Recurrences of the reference modules against flash-linear-attention's own, in plain PyTorch: values and states.

    pip install --no-deps --target FOLDER fla-core einops
    python tests/scripts/mixers.py FOLDER

Of FOLDER only `fla/ops/*/naive.py` is loaded: the package itself needs Triton. Prints the largest differences, and the
shape of the state that is kept; exit code 1 where one is above 1e-5.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txcalc.parts.mixers.forgetting import ForgettingCore as ForgettingPart
from txcalc.parts.spans import Causal
from txcalc.reference.delta import DeltaRule
from txcalc.reference.linear_attention import GatedScan, SlotScan
from txcalc.reference.mixers.forgetting import ForgettingCore
from txcalc.reference.run import Run

B, T, H, GROUPS, K, V, M = 2, 7, 4, 2, 5, 3, 6


def naive(folder: Path, name: str) -> Any:
    """One of its modules, without its package."""
    spec = spec_from_file_location(name, folder / "fla" / "ops" / name / "naive.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compared(folder: Path) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What each says, and what ours does."""
    q, k, v = torch.randn(B, T, H, K), torch.randn(B, T, H, K), torch.randn(B, T, H, V)
    k, beta = k / k.norm(dim=-1, keepdim=True), torch.rand(B, T, H)
    for name, decay in (("gated_delta_rule", -torch.rand(B, T, H)), ("kda", -torch.rand(B, T, H, K))):
        module = naive(folder, name)
        run = getattr(module, "naive_recurrent_" + name)
        theirs, state = run(q, k, v, beta=beta, g=decay, output_final_state=True)
        shared = decay if decay.dim() == 4 else decay.unsqueeze(-1)
        ours, own = DeltaRule._scan(q * K**-0.5, k, v, shared.unsqueeze(-1).exp(), beta.unsqueeze(-1), None)
        yield name, theirs, ours
        yield f"{name}, state {tuple(own.shape)}", state, own
    heads_first = (side.transpose(1, 2) for side in (q, k, v, beta))
    theirs, state = naive(folder, "delta_rule").delta_rule_recurrence(*heads_first)
    ours, own = DeltaRule._scan(q * K**-0.5, k, v, None, beta.unsqueeze(-1), None)
    yield "delta_rule", theirs.transpose(1, 2), ours
    yield f"delta_rule, state {tuple(own.shape)}", state, own
    decay, slots = -torch.rand(B, T, H, K), -torch.rand(B, T, H, M)
    theirs, state = naive(folder, "gla").naive_recurrent_gla(q, k, v, decay, output_final_state=True)
    ours, own = GatedScan()(q, k, v, decay)
    yield "gla", theirs, ours
    yield f"gla, state {tuple(own.shape)}", state, own
    run = naive(folder, "gsa").naive_recurrent_gsa
    theirs, (keys, values) = run(q, k, v, 1 - slots.exp(), slots, output_final_state=True)
    ours, *states = SlotScan()(q, k, v, slots)
    yield "gsa", theirs, ours
    yield f"gsa, state {tuple(states[0].shape)}", keys, states[0].mT
    yield f"gsa, state {tuple(states[1].shape)}", values, states[1]
    k, v, gates = torch.randn(B, T, GROUPS, K), torch.randn(B, T, GROUPS, K), -torch.rand(B, T, H)
    theirs = naive(folder, "forgetting_attn").naive_forgetting_attn(q, k, v, gates)
    part = ForgettingPart(n_heads=H, n_kv_heads=GROUPS, d_qk=K, d_v=K, span=Causal())
    yield "forgetting_attn", theirs.flatten(2), ForgettingCore(part)(q, k, v, gates.cumsum(1), Run(0, torch.arange(T)))


def main(folder: Path) -> int:
    sys.path.insert(0, str(folder))  # for einops
    torch.manual_seed(1)
    worst = 0.0
    for name, theirs, ours in compared(folder):
        apart = float((theirs - ours).abs().max())
        worst = max(worst, apart)
        print(f"{name}: {apart:.1e} apart at most")
    return int(not worst < 1e-5)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
