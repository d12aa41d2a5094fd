"""Predicted and measured, part by part: the modules that a description means, under every profiler there is.

    verdict = verify(load("gpt2"))          `verdict.ok`, `verdict.rows`, `verdict.failures`

Each oracle is a module of this package with one function, `rows`: what it measured beside what the ledger says. No
tolerance anywhere: integers are the same, differences of formulas simplify to zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module

from txcalc.errors import Fault, InputError, MissingExtra, UnknownName
from txcalc.model import Model

try:
    import fvcore  # noqa: F401
    import torch
except ModuleNotFoundError as missing:
    raise MissingExtra("verifying", str(missing.name), "verify") from missing

from txcalc.reference import cut
from txcalc.verify import device as devices
from txcalc.verify.device import NoDevice
from txcalc.verify.subject import Lengths, Subject
from txcalc.verify.symbolic import NotForAll
from txcalc.verify.verdict import Row, Verdict

# What can be asked for: (module, function, what it shows). Those `ON_FAKES` need no device, and use none.
ORACLES = {
    "parameters": ("parameters", "rows", "every weight's path and shape"),
    "bytes": ("storage", "rows", "bytes of every weight and of the cache, and what the device's allocator has of them"),
    "fvcore": ("macs", "rows", "forward FLOPs, from fvcore's trace"),
    "flops": ("flops", "rows", "forward FLOPs, from PyTorch's counter, for every batch and length"),
    "training": ("flops", "training_rows", "FLOPs of forward and backward, without and with blocks recomputed"),
    "saved": ("saved", "rows", "elements that autograd keeps, with the attention matrix and without"),
    "cache": ("cache", "rows", "elements of the cache and FLOPs after a prompt and after each further token"),
    "mask": ("mask", "rows", "FLOPs of attention's visible pairs, from the masks themselves"),
    "traffic": ("operators", "traffic_rows", "elements that parts read and write, each once"),
    "other": ("operators", "other_rows", "FLOPs of norms, activations, sums and softmax, operator by operator"),
    "memory": ("memory", "rows", "a training step's weights, gradients, optimizer state and kept tensors"),
    "transformers": ("witness", "rows", "the weights of transformers' own module of the same config.json"),
}
ON_FAKES = {"saved", "traffic", "other", "memory", "transformers"}
DEFAULT = ("parameters", "fvcore", "flops")
CUT = "only the first"


def shortened(model: Model, layers: int) -> Model:
    """The model with the first `layers` layers of each stack, and a note that says so. Errors: `InputError`."""
    most = devices.n_layers(model)
    if not 1 <= layers <= most:
        raise InputError(
            "verify", [Fault("--layers", layers, f"a whole number from 1 to {most}, the layers of {model.name}")]
        )
    return replace(cut(model, layers), notes=(f"{CUT} {layers} of {most} layers, as the layer pattern orders them",))


def verify(
    model: Model,
    oracles: Iterable[str] = DEFAULT,
    *,
    lengths: Lengths = "auto",
    device: str = "meta",
    dtype: torch.dtype = torch.float32,
) -> Verdict:
    """What the oracles say of a model; `shortened` gives one with fewer layers.

    On meta nothing is computed and any size fits. On a device the modules are real, and measured at points.
    Errors: `UnknownName` for an oracle; `NoDevice`; `NotForAll` where `lengths` is "symbolic" and a trace fixes a size;
    `Refuted`, with the number of layers that would fit, where the device's memory does not suffice.
    """
    wanted = list(dict.fromkeys(oracles))
    for name in wanted:
        if name not in ORACLES:
            raise UnknownName("verify", "oracle", name, list(ORACLES), f"one of {', '.join(ORACLES)}")
    devices.check(device)
    if lengths == "symbolic" and device != "meta" and not ON_FAKES.issuperset(wanted):
        raise InputError("verify", [Fault("--device", device, "meta, for --symbolic", "real tensors have sizes")])
    devices.check_room(model, device, dtype)
    subject, fake = Subject(model, device, dtype, lengths), Subject(model, "meta", dtype, lengths)
    verdict = Verdict(model.name, notes=[note for note in model.notes if note.startswith(CUT)])
    try:
        for name in wanted:
            module, function, _ = ORACLES[name]
            chosen = fake if name in ON_FAKES else subject
            verdict.rows += getattr(import_module(f"txcalc.verify.{module}"), function)(chosen)
    except RuntimeError as error:
        if not devices.ran_out(error):
            raise
        del subject, fake, chosen
        raise devices.exhausted(error, model, device, dtype) from None
    verdict.notes += [*subject.notes, *fake.notes]
    return verdict


__all__ = ["DEFAULT", "ORACLES", "NoDevice", "NotForAll", "Row", "Verdict", "shortened", "verify"]
