"""The PyTorch model of a description: an `nn.Module` for every part, under the ledger's paths.

    net = build(model, device="meta")                     `net.get_submodule("layers.0.attention.q")`
    with tracing(): net(*inputs(model, 2, 16))            for profilers; lengths may be symbolic
    net.loss(ids), net.generate(ids, 20)                  trains and generates
    cache = Cache(); net(ids, cache=cache)                `cache.tensors()`: {"layers.0.attention.core": (k, v), …}

One module per leaf, with parameters named and shaped as the leaf's weights. Copies that the ledger folds are separate
here (`layers.7`, `experts.routed.17`); layers that share their weights are one module. A tied weight is one
`Parameter`: `net.named_parameters()` holds each once, under the path where the ledger counts it.

Left out, since they cost nothing: padding masks, dropout, rotary frequencies scaled for long contexts (YaRN,
Llama-3.1).
"""

from __future__ import annotations

from txcalc.errors import InputError, MissingExtra

try:
    import torch
except ModuleNotFoundError as missing:
    raise MissingExtra("the reference model", "torch", "verify") from missing

from msgspec.structs import replace
from torch import Tensor

from txcalc.model import Model
from txcalc.parts.embedding import VisionOptions
from txcalc.parts.model import EncoderDecoder as EncoderDecoderPart, FixedLength, LayerGroup, Stack as StackPart
from txcalc.parts.part import Composite
from txcalc.reference.initial import initialise
from txcalc.reference.model import EncoderDecoder, Stack
from txcalc.reference.run import CacheTensors, Mode, TensorOptions, mode, tracing


def build(
    model: Model, *, layers: int | None = None, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> Stack | EncoderDecoder:
    """The module of a model; `layers` keeps only the first ones of each stack (see `truncate`).

    Its parameters are random, from torch's generator (see `initial`); on meta they are only shapes.
    """
    if layers is not None:
        model = truncate(model, layers)
    net = modules(model.root, torch.device(device), dtype)
    if torch.device(device).type != "meta":
        initialise(net)
    return net


def modules(root: Composite, device: torch.device, dtype: torch.dtype) -> Stack | EncoderDecoder:
    """The modules of a tree of parts; with PyTorch's symbols as sizes, one expert stands for all."""
    like = TensorOptions(device, dtype)
    return EncoderDecoder(root, like) if isinstance(root, EncoderDecoderPart) else Stack(stack(root), like)


def truncate(model: Model, layers: int) -> Model:
    """The same model with the first `layers` layers of each stack: its ledger is that of `build(model, layers=…)`."""
    root: Composite = model.root
    if isinstance(root, EncoderDecoderPart):
        root = replace(root, encoder=_first_layers(root.encoder, layers), decoder=_first_layers(root.decoder, layers))
    elif isinstance(root, FixedLength):
        root = replace(root, stack=_first_layers(root.stack, layers))
    else:
        root = _first_layers(stack(root), layers)
    return replace(model, root=root)


def stack(root: Composite) -> StackPart:
    """The stack of a tree. Errors: `InputError` for a tower, which has no modules here."""
    if isinstance(root, FixedLength):
        return root.stack
    if not isinstance(root, StackPart):
        raise InputError("reference", ["has no modules for the towers of multimodal models"])
    return root


def _first_layers(full: StackPart, layers: int) -> StackPart:
    groups = []
    for group in full.groups:
        indices = tuple(i for i in group.indices if i < layers)
        if indices:
            groups.append(LayerGroup(group.name, group.block, indices, len(indices), group.shared))
    return replace(full, groups=tuple(groups))


def inputs(
    model: Model, batch: int, tokens: int, source: int | None = None, device: str | torch.device = "cpu"
) -> tuple[Tensor, ...]:
    """Random inputs that `forward` takes, in its order.

    Ids (B, T); an encoder–decoder's ids (B, T) and source ids (B, source), or images; audio's ids (B, T) and mel bands
    (B, mels, 2·source); images (B, channels, side, side); vectors (B, T, D) of a model without a vocabulary.
    """
    last = model.description.last
    if last.vision:
        return (_random_images(last.vision, batch, device),)
    if last.vocab_size is None:
        return (torch.randn(batch, tokens, last.d_model, device=device),)
    ids = torch.randint(last.vocab_size, (batch, tokens), device=device)
    if not model.has_encoder_apart:
        return (ids,)
    source = model.workload(batch, tokens, source=source).source
    first = model.stacks[0]
    if first.vision:
        return ids, _random_images(first.vision, batch, device)
    if first.audio:
        return ids, torch.randn(batch, first.audio.mels, 2 * source, device=device)
    assert first.vocab_size is not None
    return ids, torch.randint(first.vocab_size, (batch, source), device=device)


def _random_images(vision: VisionOptions, batch: int, device: str | torch.device) -> Tensor:
    side = vision.image
    assert side is not None
    return torch.randn(batch, vision.channels, side, side, device=device)


__all__ = ["CacheTensors", "Mode", "build", "inputs", "mode", "modules", "stack", "tracing", "truncate"]
