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
    """The format of a name. Errors: `UnknownName` with the nearest."""
    wanted = plain(name)
    if wanted in FORMATS:
        return FORMATS[wanted]
    raise unknown(name)


def stored_narrow(name: str) -> bool:
    """Whether a dtype is also the name of a quantised format, with scales or with some weights left in 16 bits."""
    return plain(name) in FORMATS and FORMATS[plain(name)].bits < 16


def known_format(name: str) -> str:
    """A format's name, checked. Errors: `UnknownName` with the nearest."""
    wanted = plain(name)
    if wanted not in ("mxfp4_moe", *format_names()):
        raise unknown(name)
    return wanted


def unknown(name: str) -> UnknownName:
    """The error for an unknown format, with the known ones."""
    known = format_names()
    return UnknownName("weights", "format of weights", name, known, f"one of {', '.join(known)}")


def format_names() -> list[str]:
    """Every format of weights by name, llama.cpp's mixtures too."""
    return list(dict.fromkeys((NATIVE, *FORMATS, *mixtures.MIXTURES)))


def weights_of(model: Model, name: str) -> Format:
    """The format of a name, for a model: as published, a mixture of llama.cpp, or one format for its layers.

    A format in which the model's own makers have published a checkpoint is that checkpoint's, with what it leaves wide.
    Errors: `UnknownName` with the nearest; `InputError` for a `quantization_config` that is not understood.
    """
    wanted = plain(name)
    if wanted == NATIVE:
        return _agreed(model, quantised.native(model))
    if (form := quantised.published(model, wanted) or mixtures.mixture(model, wanted)) is not None:
        return form
    return covering(format_of(name), {entry.kind for entry in model.entries})


# Of a checkpoint's bytes. What quantisers write besides matrices and scales (bitsandbytes' states, a packer's last
# blocks) is less; another group size or another list of unquantised modules makes more.
OTHERWISE = 0.02


def _agreed(model: Model, native: Format) -> Format:
    """The weights as published, compared with the checkpoint in the config's folder. Errors: `InputError` where only
    one of the two is quantised, or where the tensors' bytes are not those of the `quantization_config`."""
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
        if abs(counted - stored) > OTHERWISE * stored:
            mend = "which of them is right? --weights FORMAT chooses one"
            fault = f"says {method!r}, {counted:,} bytes by its keys, and its checkpoint's tensors have {stored:,}"
            raise InputError("quantization_config", [f"{fault} ({mend})"])
    return native


def covering(form: Format, kinds: Iterable[str]) -> Format:
    """The format itself; a format for experts covers all layers of a model without experts."""
    if form.covers is EXPERTS and "experts" not in set(kinds):
        return replace(form, covers=LAYERS)
    return form
