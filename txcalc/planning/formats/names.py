"""Formats of weights by name, for a model: as published, a mixture of llama.cpp, or one format for its layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from txcalc.errors import InputError, UnknownName
from txcalc.planning.formats import mixtures, quantised
from txcalc.planning.formats.weights import EXPERTS, FORMATS, LAYERS, Format, plain

if TYPE_CHECKING:
    from txcalc.model import Model

NATIVE = "native"  # as published


def format_of(name: str) -> Format:
    """The format of a name. Errors: `UnknownName` with the nearest name."""
    if (short := plain(name)) in FORMATS:
        return FORMATS[short]
    raise unknown(name)


def stored_narrow(name: str) -> bool:
    """Whether a dtype is also the name of a quantised format, with scales or with some weights in 16 bits."""
    return plain(name) in FORMATS and FORMATS[plain(name)].bits < 16


def known_format(name: str) -> str:
    """A format's name, checked. Errors: `UnknownName` with the nearest name."""
    short = plain(name)
    if short not in ("mxfp4_moe", *format_names()):
        raise unknown(name)
    return short


def unknown(name: str) -> UnknownName:
    """The error for an unknown format, with the known ones."""
    formats = format_names()
    return UnknownName("weights", "weight format", name, formats, f"one of {', '.join(formats)}")


def format_names() -> list[str]:
    """The names of all formats of weights, with llama.cpp's mixtures."""
    return list(dict.fromkeys((NATIVE, *FORMATS, *mixtures.MIXTURES)))


def weights_of(model: Model, name: str) -> Format:
    """The format of a name, for a model: as published, a mixture of llama.cpp, or one format for its layers.

    If the model's makers published a checkpoint in the format, it is that checkpoint's, with its unquantised modules.
    Errors: `UnknownName` with the nearest name; `InputError` for a `quantization_config` that is not understood.
    """
    short = plain(name)
    if short == NATIVE:
        return _compare_stored(model, quantised.native(model))
    if (form := quantised.published_checkpoint(model, short) or mixtures.mixture(model, short)) is not None:
        return form
    return covering(format_of(name), {entry.kind for entry in model.entries})


# Tolerated share of a checkpoint's bytes: other tensors of quantisers (bitsandbytes' states, a packer's last blocks)
# are less, the effect of another group size or another list of unquantised modules is more.
TOLERANCE = 0.02


def _compare_stored(model: Model, native: Format) -> Format:
    """The weights as published, compared with the checkpoint in the config's folder. Errors: `InputError` if only one
    of the two is quantised, or if the tensors' bytes differ from those of the `quantization_config`."""
    if model.checkpoint is None or model.checkpoint.stored.form == "gguf":
        return native
    config, checkpoint = model.description.quantization, model.checkpoint.stored
    kinds = {tensor.dtype for tensor in checkpoint.tensors if len(tensor.shape) == 2}
    dtypes = ", ".join(sorted(kinds))
    if not config:
        if any(kind.startswith("F8") for kind in kinds):
            fault = f"has no quantization_config, and matrices of its checkpoint are {dtypes} (--weights fp8?)"
            raise InputError("config.json", [fault])
        return native
    method = config.get("quant_method", "a format")
    if kinds and kinds <= {"BF16", "F16", "F32"}:
        fault = f"says {method!r}, and all matrices of its checkpoint are {dtypes} (--weights bf16?)"
        raise InputError("quantization_config", [fault])
    if model.checkpoint.agrees and not checkpoint.partial:
        extra = sum(tensor.bytes for kind in ("tied", "buffer") for tensor in model.checkpoint.extra.get(kind, ()))
        stored, counted = checkpoint.size.bytes - extra, sum(native.bytes_of(entry) for entry in model.entries)
        if abs(counted - stored) > TOLERANCE * stored:
            mend = "--weights FORMAT chooses one"
            fault = f"says {method!r}, {counted:,} bytes by its keys, and its checkpoint's tensors have {stored:,}"
            raise InputError("quantization_config", [f"{fault} ({mend})"])
    return native


def covering(form: Format, kinds: Iterable[str]) -> Format:
    """The format itself; a format for experts covers all layers of a model without experts."""
    if form.covers is EXPERTS and "experts" not in set(kinds):
        return replace(form, covers=LAYERS)
    return form
