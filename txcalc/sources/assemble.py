"""Build the tree of parts from a resolved description; the options of each table build their part."""

from __future__ import annotations

from msgspec.structs import replace

from txcalc.description import Description, LayerSpec, StackSpec
from txcalc.num import Num, total
from txcalc.parts.block import Block, Branch, Laurel, Streams
from txcalc.parts.cores import AttentionCore, MatrixProduct
from txcalc.parts.feedforward import FeedForward, LayerInputOptions
from txcalc.parts.head import HeadInputs, PooledHead
from txcalc.parts.hyper import HyperConnection
from txcalc.parts.linear import LayerScale, Linear, Lookup, Unused, Vector
from txcalc.parts.mixers.pieces import Pieces
from txcalc.parts.model import EncoderDecoder, FixedLength, LayerGroup, LayerInputs, Root, Stack, StreamEnds
from txcalc.parts.norm import NormOptions
from txcalc.parts.options import RMS_EPS
from txcalc.parts.place import Place
from txcalc.parts.pooling import AttentionPool
from txcalc.parts.shared import SharedOptions
from txcalc.parts.spans import CrossUncached


def assemble(description: Description) -> Root:
    """The tree of a description."""
    if len(description.stacks) == 1:
        spec = description.last
        stack, positions = _stack(spec), spec.fixed_positions
        if spec.projector:
            return spec.projector.build(stack, positions)
        return stack if positions is None else FixedLength(stack=stack, positions=positions)
    source, target = description.stacks["encoder"], description.stacks["decoder"]
    width, projection = source.d_model, None
    if target.projected:
        projection = Linear(d_in=width, d_out=target.d_model, bias=True)
        width = target.d_model
    encoder, decoder = _stack(source), _stack(target, width)
    if encoder.embedding and encoder.embedding.tokens and source.embedding.shared:
        encoder = _with_shared_table(encoder)
    matched = None
    if target.matched:
        matched = MatrixProduct(n_heads=1, d_in=target.head.get("classes"), d_out=None)
    return EncoderDecoder(
        encoder=encoder,
        projection=projection,
        decoder=decoder,
        positions=source.fixed_positions,
        matched=matched,
    )


def _with_shared_table(encoder: Stack) -> Stack:
    embedding = encoder.embedding
    assert embedding is not None and embedding.tokens is not None
    return replace(encoder, embedding=replace(embedding, tokens=replace(embedding.tokens, tied=True)))


def _stack(spec: StackSpec, memory: Num | None = None) -> Stack:
    """The part of a stack; its cross-attention reads states of width `memory`."""
    d_model, norm, positions, head = spec.d_model, spec.norm, spec.positions, spec.head
    heads = next(iter(spec.attentions), None)
    first = next(iter(spec.layer.values()))
    streams = spec.streams
    head_inputs = HeadInputs(
        d_model=d_model,
        vocab=spec.vocab_size if head.reads_vocab else None,
        role=spec.role,
        norm=norm,
        embedding=spec.embedding,
        activation=first.feed_forward.activation if first.feed_forward else "gelu",
        reader=_pool(first, norm, d_model) if isinstance(head, PooledHead) and head.pool == "attention" else None,
    )
    return Stack(
        d_model=d_model,
        embedding=spec.embedding.build(
            d_model=d_model,
            vocab=None if spec.vision or spec.audio else spec.vocab_size,
            norm=norm,
            places=positions,
            vision=spec.vision,
            audio=spec.audio,
        ),
        relative_bias=positions.relative_bias(heads.n_heads, spec.role, per_layer=False) if heads else None,
        groups=tuple(
            LayerGroup(name, _block(spec.layer[name], spec, memory), indices, number, spec.shared_layers)
            for name, indices, number in spec.layer_counts
        ),
        final_norm=norm.last(d_model) if norm.final else None,
        pooler=head.pooled(head_inputs),
        head=head.build(head_inputs),
        distances=positions.distances(norm, d_model),
        layer_inputs=_layer_inputs(spec),
        spread=None if streams is None else StreamEnds(width=d_model, number=streams, first=True),
        merge=None if streams is None else StreamEnds(width=d_model, number=streams, first=False),
        collapse=_hyper(spec, norm, read=True),
        contacts=_contacts(spec) if spec.contacts else None,
        angles=positions.angles(heads.d_head if heads else 0),
        idle=Unused(d_in=spec.idle, d_out=1, bias=False) if spec.idle is not None else None,
        around=Pieces(pieces=tuple(spec.around)) if spec.around else None,
        frozen=spec.lora is not None,
        features=spec.features.build(d_model, norm) if spec.features else None,
    )


def _pool(first: LayerSpec, norm: NormOptions, d_model: Num) -> AttentionPool:
    """An attention pool with the heads and the feed-forward of the layers."""
    attention, table = first.attention, first.feed_forward
    assert attention and table
    heads, width = attention.n_heads, attention.d_head
    return AttentionPool(
        d_model=d_model,
        probe=Vector(width=d_model),
        core=AttentionCore(n_heads=heads, n_kv_heads=heads, d_qk=width, d_v=width, span=CrossUncached()),
        norm=norm.over(d_model),
        feed_forward=FeedForward(
            d_model=d_model, d_ff=table.d_ff, gated=table.gated, activation=table.activation, bias=table.bias
        ),
    )


def _contacts(spec: StackSpec) -> Unused:
    if len(spec.attentions) == 1:
        return Unused(d_in=spec.all_layers * spec.attentions[0].n_heads, d_out=1)
    kinds = [(spec.layer[name].attention, number) for name, _, number in spec.layer_counts]
    return Unused(d_in=total([number * attention.n_heads for attention, number in kinds if attention]), d_out=1)


def _layer_inputs(spec: StackSpec) -> LayerInputs | None:
    """The per-layer input vectors of all layers, which have one width (`resolve`)."""
    tables = (layer.tables.get("layer_input") for layer in spec.layer.values())
    table = next((table for table in tables if isinstance(table, LayerInputOptions)), None)
    if table is None:
        return None
    width, number = table.width, spec.all_layers
    return LayerInputs(
        width=width,
        count=number,
        tokens=Lookup(rows=table.rows, width=number * width),
        projection=Linear(
            d_in=spec.d_model,
            d_out=number * width,
            bias=False,
            keeps="yes" if spec.streams else "no",  # without streams, layers keep the embedded tokens
        ),
        norm=spec.norm.over(width, number),
    )


def _block(layer: LayerSpec, stack: StackSpec, memory: Num | None) -> Block:
    d_model, norm = stack.d_model, layer.norm
    place = Place(d_model, norm, layer.positions, stack.role)
    streams, shared = stack.streams, layer.tables.get("shared")
    branches: list[Branch] = []
    for part in layer.parts:
        if part != "shared":
            branches.append(_branch(part, layer, place, bool(branches), memory))
    return Block(
        d_model=d_model,
        branches=tuple(branches),
        parallel=norm.fully_parallel,
        norm_after_sum=norm.place == "post",
        shared_norm=norm.over(d_model) if norm.parallel == "shared" else None,
        joint=tuple(norm.joint),
        joint_norm=norm.over(d_model) if norm.joint else None,
        scaled=norm.scalar,
        residual_scale=norm.residual,
        laurel=None if stack.laurel is None else Laurel(d_model=d_model, rank=stack.laurel, norm=norm.over(d_model)),
        streams=None
        if streams is None
        else Streams(width=d_model, number=streams, active=stack.active_stream, norm=norm.over(d_model)),
        hyper=_hyper(stack, norm),
        adapters=None if stack.lora is None else stack.lora.build(),
        shared=shared.build(place) if isinstance(shared, SharedOptions) else None,
    )


def _hyper(stack: StackSpec, norm: NormOptions, *, read: bool = False) -> HyperConnection | None:
    if stack.hyper is None:
        return None
    return HyperConnection(
        width=stack.d_model,
        number=stack.hyper,
        steps=stack.hyper_steps,
        mixed=stack.hyper_steps > 0,
        eps=norm.epsilon_or(RMS_EPS),
        read=read,
    )


def _branch(part: str, layer: LayerSpec, place: Place, later: bool, memory: Num | None) -> Branch:
    """A part of a layer with its norms; `later`: it is not the first."""
    norm, d_model = place.norm, place.d_model
    follows, options = part in norm.parallel_parts[1:], layer.options(part)
    before = norm.place in ("pre", "sandwich") and norm.parallel != "shared" and part != "layer_input"
    post_norm = norm.place in ("post", "after", "sandwich") or part == "layer_input"
    bare = follows or not (before or post_norm or norm.after) or part in norm.without
    branch_norm = None if bare else norm.over(d_model)
    # It shares the input that an earlier branch saves for the backward pass.
    parallel = later and (norm.fully_parallel or part in norm.joint[1:] or follows or part == "convolution")
    pre = branch_norm if before else None
    pre = replace(pre, keeps=False) if pre and parallel else pre
    here = place._replace(keeps_input=not (parallel and pre is None), pre=pre)
    crosses = layer.attention if part == "cross_attention" else None
    return Branch(
        name=part,
        part=crosses.across(here, memory) if crosses and memory is not None else options.build(here),
        kind=options.kind,
        pre=None if options.takes_norm else pre,
        post=branch_norm if not bare and (post_norm or part in norm.after) else None,
        from_block_input=part == "convolution",
        scale=LayerScale(width=d_model) if norm.layer_scale else None,
        follows=follows,
        stream=LayerScale(width=d_model, keeps=False) if norm.residual_scale else None,
        sums=options.sums,
    )
