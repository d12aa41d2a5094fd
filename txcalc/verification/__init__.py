"""Verification: builds a description's module, profiles it, and compares each part with the ledger.

    verdict = verify(load("gpt2"))          `verdict.ok`, `verdict.rows`, `verdict.failures`

Each oracle is a module of this package with a function that compares its measurements with the ledger's figures. There
is no tolerance: integers are equal, and differences of formulas simplify to zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from msgspec.structs import replace

from txcalc.errors import Fault, InputError, MissingExtra
from txcalc.evidence.known import ORACLES, oracles_of
from txcalc.model import Model

try:
    import fvcore  # noqa: F401
    import torch
except ModuleNotFoundError as missing:
    raise MissingExtra("verifying", str(missing.name), "verify") from missing

from txcalc.reference import truncate
from txcalc.verification import device as devices
from txcalc.verification.device import NoDevice
from txcalc.verification.subject import Lengths, Subject
from txcalc.verification.symbolic import NotForAll
from txcalc.verification.verdict import CheckedRow, Verdict

# Oracles that trace fake tensors, on any device.
FAKE_ORACLES = {"saved", "traffic", "other", "memory", "transformers"}
DEFAULT = ("parameters", "fvcore", "flops")


def shorten(model: Model, layers: int) -> Model:
    """The model with only the first `layers` layers of each stack, noted in `layers_kept`. Errors: `InputError`."""
    layer_count = devices.n_layers(model)
    if not 1 <= layers <= layer_count:
        raise InputError(
            "verify", [Fault("--layers", layers, f"a whole number from 1 to {layer_count}, the layers of {model.name}")]
        )
    return replace(
        truncate(model, layers),
        layers_kept=f"only the first {layers} of {layer_count} layers, as the layer pattern orders them",
    )


def verify(
    model: Model,
    oracles: Iterable[str] = DEFAULT,
    *,
    lengths: Lengths = "auto",
    device: str = "meta",
    dtype: torch.dtype = torch.float32,
) -> Verdict:
    """The oracles' verdict on a model (`shorten` makes one with fewer layers).

    On meta nothing is computed, so any size fits. On a device, modules have real weights and run at a few sizes.
    Errors: `UnknownName` for an oracle; `NoDevice`; `NotForAll` where `lengths` is "symbolic" and a trace fixes a size;
    `Refuted`, with the number of layers that would fit, where the device's memory does not suffice.
    """
    names = oracles_of(oracles, ORACLES)
    devices.check(device)
    if lengths == "symbolic" and device != "meta" and not FAKE_ORACLES.issuperset(names):
        raise InputError("verify", [Fault("--device", device, "meta, for --symbolic", "real tensors have sizes")])
    devices.check_room(model, device, dtype)
    subject, fake = Subject(model, device, dtype, lengths), Subject(model, "meta", dtype, lengths)
    verdict = Verdict(model.name, notes=[model.layers_kept] if model.layers_kept else [])
    try:
        for name in names:
            module, function, _ = ORACLES[name]
            oracle = getattr(import_module(f"txcalc.verification.{module}"), function)
            verdict.rows += oracle(fake if name in FAKE_ORACLES else subject)
    except RuntimeError as error:
        if not devices.ran_out(error):
            raise
        del subject, fake
        raise devices.out_of_memory(error, model, device, dtype) from None
    verdict.notes += [*subject.notes, *fake.notes]
    return verdict


__all__ = ["DEFAULT", "ORACLES", "CheckedRow", "NoDevice", "NotForAll", "Verdict", "shorten", "verify"]
