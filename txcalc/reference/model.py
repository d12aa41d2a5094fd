"""Whole models: blocks, stacks, encoder–decoders, with loss and generation: see `parts.model`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from txcalc.errors import InputError
from txcalc.parts import model as parts
from txcalc.parts.adapters import LowRank as LowRankPart
from txcalc.parts.block import Block as BlockPart, Laurel as LaurelPart, Streams as StreamsPart
from txcalc.parts.linear import LayerScale as LayerScalePart
from txcalc.parts.part import Composite
from txcalc.reference.attention import RelativeBias
from txcalc.reference.disentangled import DistanceTable
from txcalc.reference.drafts import Features
from txcalc.reference.ends import Embedding, Head
from txcalc.reference.hyper import HyperConnection
from txcalc.reference.linear import Activation, LayerScale, Linear, Lookup, LowRank, Norm, Sum, Times, Unused
from txcalc.reference.mixers.pieces import MatrixProduct
from txcalc.reference.run import Cached, CacheTensors, Run, TensorOptions, current, mode
from txcalc.reference.shared import SharedBlock


def module_of(part: type[Composite]) -> type[Any] | None:
    """The module of a part: same file and name in `reference` as in `parts`."""
    try:
        module = import_module(part.__module__.replace(".parts.", ".reference."))
    except ModuleNotFoundError:
        return None
    return getattr(module, part.__name__, None)


class Laurel(nn.Module):
    """x + norm(right(left(x)))."""

    def __init__(self, part: LaurelPart, like: TensorOptions) -> None:
        super().__init__()
        self.left = Linear(part.d_model, part.rank, False, like)
        self.right = Linear(part.rank, part.d_model, False, like)
        self.norm = Norm(part.norm, like)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.right(self.left(x)))


class Mix(nn.Module):
    """Streams (n, B, T, D), each plus the sum of all streams times coefficients (B, T, n, n)."""

    def forward(self, streams: Tensor, coefficients: Tensor) -> Tensor:
        return (streams.permute(1, 2, 3, 0) @ coefficients.mT).permute(3, 0, 1, 2) + streams


class Update(nn.Module):
    """Streams (n, B, T, D), each plus a change (B, T, D) times its coefficient (B, T, n)."""

    def forward(self, streams: Tensor, change: Tensor, coefficients: Tensor) -> Tensor:
        return streams + change * coefficients.permute(2, 0, 1).unsqueeze(-1)


class Streams(nn.Module):
    """Predicts streams (n, B, T, D) before a block runs on the active one, and corrects them by its output."""

    def __init__(self, part: StreamsPart, like: TensorOptions) -> None:
        super().__init__()
        self.norm = Norm(part.norm, like)
        self.router = Linear(part.width, part.number, False, like)
        self.activation = Activation("tanh")
        self.predict = Linear(part.number, part.number**2, False, like)
        self.mix = Mix()
        self.correct = Linear(part.number, part.number, False, like)
        self.update = Update()
        self.scale = LayerScale(LayerScalePart(width=part.width), like)
        self.active = part.active

    def predict_streams(self, streams: Tensor) -> Tensor:
        coefficients = self.predict(self._coefficients(streams[self.active]))
        return self.mix(streams, coefficients.unflatten(-1, (streams.shape[0], -1)))

    def correct_streams(self, streams: Tensor, x: Tensor) -> Tensor:
        """`streams` are the predictions, x (B, T, D) the active stream after the block."""
        coefficients = self.correct(self._coefficients(x)) + 1
        changed: Tensor = self.update(streams, x - streams[self.active], coefficients)
        return changed

    def _coefficients(self, x: Tensor) -> Tensor:
        return self.activation(self.router(self.norm(x) / x.shape[-1]))


class Block(nn.Module):
    """Branches of the residual stream, in sequence or in parallel; norms as `parts.block` places them."""

    def __init__(self, part: BlockPart, like: TensorOptions) -> None:
        super().__init__()
        self.names = [branch.name for branch in part.branches]
        self.from_block_input = {branch.name for branch in part.branches if branch.from_block_input}
        following = [i for i, branch in enumerate(part.branches) if branch.follows]
        self.same_input = self.names[following[0] - 1 : following[-1] + 1] if following else []
        self.parallel, self.norm_after_sum = part.parallel, part.norm_after_sum
        self.norm = Norm(part.shared_norm, like) if part.shared_norm else None
        for branch in part.branches:
            if part.hyper:
                self.add_module(f"{branch.name}_streams", HyperConnection(part.hyper, like))
            if branch.pre:
                self.add_module(f"{branch.name}_norm", Norm(branch.pre, like))
            module_type = module_of(type(branch.part))
            if module_type is None:
                raise InputError("reference", [f"{branch.name} is a {type(branch.part).__name__}, which has no module"])
            self.add_module(branch.name, module_type(branch.part, like))
            if branch.scale:
                self.add_module(f"{branch.name}_scale", LayerScale(branch.scale, like))
            if branch.stream:
                self.add_module(f"{branch.name}_residual", LayerScale(branch.stream, like))
            if branch.post:
                suffix = "norm" if part.norm_after_sum else "post_norm"
                self.add_module(f"{branch.name}_{suffix}", Norm(branch.post, like))
        self.joint, self.joint_norm = part.joint, Norm(part.joint_norm, like) if part.joint_norm else None
        self.laurel = Laurel(part.laurel, like) if part.laurel else None
        self.streams = Streams(part.streams, like) if part.streams else None
        self.hyper = part.hyper is not None
        self.shared = SharedBlock(part.shared, like) if part.shared else None
        self.shared_sum = Sum() if part.shared else None
        self.residual = Sum(part.residual_scale)
        self.scaled = part.scaled
        if part.scaled:
            self.register_buffer("scalar", torch.ones((), device=like.device, dtype=like.dtype))
        for name, module in self.named_modules():
            if isinstance(module, Cached):
                module.place = name
        if part.adapters:
            self.requires_grad_(False)
            _adapt(self, part, like)

    def forward(self, x: Tensor, run: Run) -> Tensor:
        """x (B, T, D), or (n, B, T, D) where there are n streams, or with hyper-connections (B, T, n, D)."""
        if self.hyper:
            return self._run_with_hyper(x, run)
        if self.streams is None:
            y = self._run_branches(x, self.names, run)
        else:
            streams, layer_input = self.streams.predict_streams(x), self._modules.get("layer_input")
            x = streams[self.streams.active].contiguous().clone()  # backward saves it, not all streams
            output = self._run_branches(x, [name for name in self.names if name != "layer_input"], run)
            y = self.streams.correct_streams(streams, output)
            if layer_input is not None:
                increment = self._run_branch("layer_input", self.streams.scale(y[self.streams.active]), run)
                y = torch.cat((y[:1], y[1:] + increment))
        return y * self.get_buffer("scalar") if self.scaled else y

    def _run_with_hyper(self, streams: Tensor, run: Run) -> Tensor:
        """n streams (B, T, n, D) after the branches, each of which reads a mix of the streams."""
        for name in self.names:
            connection = self.get_submodule(f"{name}_streams")
            x, shares, matrix = connection(streams)
            streams = connection.spread(streams, self._run_branch(name, x, run), shares, matrix)  # type: ignore[operator]
        return streams

    def _run_branches(self, x: Tensor, names: Sequence[str], run: Run) -> Tensor:
        """x (B, T, D) after branches."""
        y, shared = x, x if self.norm is None else self.norm(x)
        for name in names:
            if name == names[0] and self.laurel is not None:
                y = self._add_with_laurel(name, y, run)
            elif name == names[0] and self.shared is not None and self.shared_sum is not None:
                y = self._add_branch(name, self.shared_sum(y, self.shared(y, run)), y, run)
            elif name in self.same_input:
                y = self._add_same_input(y, run) if name == self.same_input[0] else y
            elif name not in self.joint:
                y = self._add_branch(name, shared if self.parallel or name in self.from_block_input else y, y, run)
            elif name == self.joint[0]:
                y = self.residual(y, self._sum_joint(y, run))
        return y

    def _add_with_laurel(self, name: str, x: Tensor, run: Run) -> Tensor:
        """The stream plus a branch of x plus the learned residual of the branch's input, divided by √2."""
        norm, post = (self._modules.get(f"{name}{suffix}") for suffix in ("_norm", "_post_norm"))
        assert self.laurel is not None
        u = x if norm is None else norm(x)
        y = self._run_scaled(name, u, run)
        return (self.residual(x, y if post is None else post(y)) + self.laurel(u)) * 2**-0.5

    def _add_same_input(self, x: Tensor, run: Run) -> Tensor:
        """The stream plus the parallel branches' outputs, which share the first one's norm."""
        norm = self._modules.get(f"{self.same_input[0]}_norm")
        u, y = x if norm is None else norm(x), x
        for name in self.same_input:
            y = self.residual(y, self._run_scaled(name, u, run))
        return y

    def _add_branch(self, name: str, x: Tensor, stream: Tensor, run: Run) -> Tensor:
        """The stream plus a branch of x."""
        if not self.norm_after_sum:
            factor = self._modules.get(f"{name}_residual")
            return self.residual(stream if factor is None else factor(stream), self._run_branch(name, x, run))
        norm, y = self._modules.get(f"{name}_norm"), self.residual(stream, self._run_scaled(name, x, run))
        return y if norm is None else norm(y)

    def _run_scaled(self, name: str, x: Tensor, run: Run) -> Tensor:
        scale, y = self._modules.get(f"{name}_scale"), self.get_submodule(name)(x, run)
        return y if scale is None else scale(y)

    def _run_branch(self, name: str, x: Tensor, run: Run) -> Tensor:
        """A branch's output, with its norms."""
        norm, post = (self._modules.get(f"{name}{suffix}") for suffix in ("_norm", "_post_norm"))
        y = self._run_scaled(name, x if norm is None else norm(x), run)
        return y if post is None else post(y)

    def _sum_joint(self, x: Tensor, run: Run) -> Tensor:
        """The normed sum of the joint branches' outputs."""
        assert self.joint_norm is not None
        y = self._run_branch(self.joint[0], x, run)
        for name in self.joint[1:]:
            y = self.residual(y, self._run_branch(name, x, run))
        return self.joint_norm(y)


def _adapt(module: nn.Module, part: Composite, like: TensorOptions) -> None:
    """Adds adapters to the linear layers that have one in the tree."""
    for child in part.parts:
        if isinstance(child.part, Composite):
            inner = module.get_submodule(child.name)
            if isinstance(child.part, LowRankPart):
                assert isinstance(inner, Linear)
                setattr(module, child.name, LowRank(inner, child.part.rank, like))
            else:
                for layer in inner if isinstance(inner, nn.ModuleList) else (inner,):
                    _adapt(layer, child.part, like)


class LayerInputs(nn.Module):
    """Two vectors per layer (B, T, L, width): projections of the stack's input x (B, T, D), and the tokens' rows."""

    def __init__(self, part: parts.LayerInputs, like: TensorOptions) -> None:
        super().__init__()
        self.tokens = Lookup(part.tokens.rows, part.tokens.width, like)
        self.scale = Times(part.width**0.5)
        self.projection = Linear(part.projection.d_in, part.projection.d_out, False, like)
        self.norm = Norm(part.norm, like)
        self.count = part.count

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        projected = self.projection(x) * x.shape[-1] ** -0.5
        rows = self.tokens(ids.where(ids < self.tokens.weight.shape[0], 0))
        return self.norm(projected.unflatten(-1, (self.count, -1))), self.scale(rows).unflatten(-1, (self.count, -1))


class StreamEnds(nn.Module):
    """A matrix for each stream but the first; outputs are rescaled to the first stream's norm."""

    def __init__(self, part: parts.StreamEnds, like: TensorOptions) -> None:
        super().__init__()
        matrices = (Linear(part.width, part.width, False, like) for _ in range(part.number - 1))
        self.projections = nn.ModuleList(matrices)

    def forward(self, first: Tensor, *tensors: Tensor) -> Tensor:
        """Streams (n, B, T, D), of one or of n tensors (B, T, D)."""
        length = first.square().mean(-1, keepdim=True).sqrt()
        streams = [first]
        for projection, x in zip(self.projections, tensors or [first] * len(self.projections), strict=True):
            y = projection(x)
            streams.append(y * length / y.square().mean(-1, keepdim=True).clamp(min=1e-5).sqrt())
        return torch.stack(streams)


class LanguageModel(nn.Module):
    """Loss and generation of a whole model."""

    def loss(self, *inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """Mean cross-entropy of the logits. `labels` are the targets, −100 for none; by default the next token."""
        logits = self._logits(*inputs)
        if labels is None:
            logits, labels = logits[:, :-1], inputs[0][:, 1:]
        return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())

    @torch.no_grad()
    def generate(self, ids: Tensor, *source: Tensor, steps: int) -> Tensor:
        """`ids` (B, T) and `steps` further tokens by greedy decoding: (B, T + steps)."""
        cache = CacheTensors()
        with mode(last=True):
            for _ in range(steps):
                logits = self._logits(ids[:, cache.past :], *source, cache=cache)
                source = ()  # the cache has what the decoder needs of it
                ids = torch.cat((ids, logits[:, -1:].argmax(-1)), 1)
        return ids

    def _logits(self, *inputs: Tensor, **options: object) -> Tensor:
        if getattr(self, "decoder", self).head is None:
            raise InputError("reference", ["a model without a head gives no logits: it cannot learn or generate"])
        result = self(*inputs, **options)
        return result[0] if isinstance(result, tuple) else result


class Stack(LanguageModel):
    """Embedding, layers, final norm and head: returns logits, else hidden states (B, T, D), with a pooler also its
    vector. Without an embedding it takes vectors (B, T, D)."""

    def __init__(self, part: parts.Stack, like: TensorOptions, prefix: str = "", tied: Lookup | None = None) -> None:
        super().__init__()
        if part.around:
            raise InputError("reference", ["listed leaves have no stated inputs: txcalc prove checks each alone"])
        self.embedding = Embedding(part.embedding, like, tied) if part.embedding else None
        self.relative_bias = RelativeBias(part.relative_bias, like) if part.relative_bias else None
        self.distances = DistanceTable(part.distances, like) if part.distances else None
        self.angles = Unused(part.angles, like) if part.angles else None
        self.layer_inputs = LayerInputs(part.layer_inputs, like) if part.layer_inputs else None
        self.features = Features(part.features, like) if part.features else None
        self.spread = StreamEnds(part.spread, like) if part.spread else None
        self.merge = StreamEnds(part.merge, like) if part.merge else None
        self.collapse = HyperConnection(part.collapse, like) if part.collapse else None
        self.number = part.collapse.number if part.collapse else 1
        layers: dict[int, Block] = {}
        kinds: dict[int, str] = {}
        for group in part.groups:
            shared_block = Block(group.block, like) if group.shared else None
            layers |= {i: shared_block or Block(group.block, like) for i in group.indices}
            kinds |= dict.fromkeys(group.indices, group.name)
        self.layers = nn.ModuleList(layers[i] for i in sorted(layers))
        for layer in dict.fromkeys(layers.values()):
            if layer.shared is not None and layer.shared.lender is not None:
                owner = layers[next(i for i, kind in kinds.items() if kind == layer.shared.lender)].shared
                assert owner is not None
                layer.shared.borrow(owner)
        self.final_norm = Norm(part.final_norm, like) if part.final_norm else None
        self.contacts = Unused(part.contacts, like) if part.contacts else None
        self.idle = Unused(part.idle, like) if part.idle else None
        self.pooler = Head(part.pooler, like) if part.pooler else None
        table = self.embedding.tokens if self.embedding else None
        self.head = Head(part.head, like, table) if part.head else None
        self.paths = [f"{prefix}layers.{i}" for i in range(len(layers))]
        self.kinds = [kinds[i] for i in sorted(kinds)]
        self.frozen = part.frozen
        if part.frozen:
            for name, module in self.named_children():
                if name != "layers":
                    module.requires_grad_(False)

    def forward(
        self,
        inputs: Tensor,
        *,
        types: Tensor | None = None,
        memory: Tensor | None = None,
        cache: CacheTensors | None = None,
    ) -> Any:
        """`memory` is the encoder's output, for a decoder's cross-attention; `cache` is read and extended."""
        past = 0 if cache is None else cache.past
        x = inputs if self.embedding is None else self.embedding(inputs, past, types)
        tokens = x.shape[1] * current().shares
        run = Run(past, past + torch.arange(tokens, device=x.device), cache, memory=memory, first=x)
        if self.relative_bias is not None:
            run = replace(run, bias=self.relative_bias(run, past + tokens))
        if self.distances is not None:
            run = replace(run, distances=self.distances())
        if self.layer_inputs is not None:
            run = replace(run, inputs=self.layer_inputs(x, inputs))
        x = x if self.features is None else self.features(x)
        x = x if self.spread is None else self.spread(x)
        x = x if self.collapse is None else x.unsqueeze(2).expand(-1, -1, self.number, -1).contiguous()
        if self.frozen and torch.is_grad_enabled() and not x.requires_grad:
            x.requires_grad_()  # all layers are trained, the first too
        for i, (layer, path, kind) in enumerate(zip(self.layers, self.paths, self.kinds, strict=True)):
            if current().checkpoint:
                x = checkpoint(layer, x, run.at(path, i, kind), use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, run.at(path, i, kind))
        if cache is not None:
            cache.past = past + tokens
        x = x if self.merge is None else self.merge(*x.unbind()).mean(0)
        x = x if self.collapse is None else self.collapse(x)[0]
        x = x if self.final_norm is None else self.final_norm(x)
        result = x if self.head is None else self.head(x, run)
        return result if self.pooler is None else (result, self.pooler(x, run))


class EncoderDecoder(LanguageModel):
    """An encoder, and a decoder that attends to the encoder's output in every layer."""

    def __init__(self, part: parts.EncoderDecoder, like: TensorOptions) -> None:
        super().__init__()
        # The decoder first: the token table is its own, and `named_parameters` uses a shared weight's first name.
        self.decoder = Stack(part.decoder, like, "decoder.")
        tokens = part.encoder.embedding and part.encoder.embedding.tokens
        table = self.decoder.embedding.tokens if tokens and tokens.tied and self.decoder.embedding else None
        self.encoder = Stack(part.encoder, like, "encoder.", table)
        self.projection = Linear(part.projection.d_in, part.projection.d_out, True, like) if part.projection else None
        self.memory = nn.Identity()
        self.matched = MatrixProduct() if part.matched else None
        branches = (branch.name for group in part.decoder.groups for branch in group.block.branches)
        self.returns_states = "cross_attention" not in branches  # then the encoder's output is a result by itself

    def forward(self, ids: Tensor, source: Tensor | None = None, *, cache: CacheTensors | None = None) -> Any:
        """Logits (B, T, V) of decoder ids (B, T) given `source`: ids (B, S), images or mel bands; None where the cache
        holds what the decoder needs of it. With a pooler over the encoder, also its vector."""
        encoded = None if source is None else self.encoder(source)
        states, *pooled = encoded if isinstance(encoded, tuple) else (encoded,)
        projected = states if states is None or self.projection is None else self.projection(states)
        memory = None if projected is None else self.memory(projected)
        logits = self.decoder(ids, memory=memory, cache=cache)
        if self.matched and memory is not None:
            return logits, self.matched(logits[None, None], memory.mT[None, None])
        results = [*([states] if self.returns_states else []), *pooled]
        return (logits, *results) if results else logits
