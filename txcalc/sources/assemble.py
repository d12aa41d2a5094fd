"""From a resolved description to the tree of parts: every table's options build what they say."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from txcalc.num import total
from txcalc.parts.adapters import LoraOptions
from txcalc.parts.attention import AttentionOptions
from txcalc.parts.block import Block, Branch, Laurel, Streams
from txcalc.parts.cores import AttentionCore, MatrixProduct
from txcalc.parts.drafts import FeaturesOptions
from txcalc.parts.embedding import AudioOptions, EmbeddingOptions, VisionOptions
from txcalc.parts.feedforward import FeedForward
from txcalc.parts.head import HeadInputs, HeadOptions
from txcalc.parts.hyper import HyperConnection
from txcalc.parts.linear import LayerScale, Linear, Lookup, Unused, Vector
from txcalc.parts.mechanisms import section_of
from txcalc.parts.mixers.pieces import Pieces
from txcalc.parts.model import EncoderDecoder, FixedLength, LayerGroup, LayerInputs, Root, Stack, StreamEnds
from txcalc.parts.norm import NormOptions
from txcalc.parts.options import RMS_EPS, Table
from txcalc.parts.place import Mechanism, Place, mechanism
from txcalc.parts.pooling import AttentionPool
from txcalc.parts.positions import PositionsOptions
from txcalc.parts.projectors import ProjectorOptions
from txcalc.parts.shared import SharedOptions
from txcalc.parts.spans import CrossUncached


def assemble(spec: Table) -> Root:
    """The tree of a resolved description (`resolve.resolve`)."""
    width, projection = spec["stacks"].get("encoder", {}).get("d_model"), None
    if "decoder" in spec["stacks"] and (reader := spec["stacks"]["decoder"])["projected"]:
        projection = Linear(d_in=width, d_out=reader["d_model"], bias=True)
        width = reader["d_model"]
    stacks = {half: _stack({**stack, "d_memory": width}) for half, stack in spec["stacks"].items()}
    if len(stacks) == 1:
        (stack,), (table,) = stacks.values(), spec["stacks"].values()
        places = patches(table)
        if table["projector"]:
            return ProjectorOptions.of(table["projector"]).build(stack, places)
        return stack if places is None else FixedLength(stack=stack, positions=places)
    encoder, decoder = stacks["encoder"], stacks["decoder"]
    if encoder.embedding and encoder.embedding.tokens and spec["stacks"]["encoder"]["embedding"]["shared"]:
        encoder = _with_shared_table(encoder)
    positions = patches(spec["stacks"]["encoder"])
    classes = spec["stacks"]["decoder"]["head"].get("classes")
    matched = MatrixProduct(n_heads=1, d_in=classes, d_out=None) if spec["stacks"]["decoder"]["matched"] else None
    return EncoderDecoder(encoder=encoder, projection=projection, decoder=decoder, positions=positions, matched=matched)


def _with_shared_table(encoder: Stack) -> Stack:
    embedding = encoder.embedding
    assert embedding is not None and embedding.tokens is not None
    return replace(encoder, embedding=replace(embedding, tokens=replace(embedding.tokens, tied=True)))


def patches(stack: Table) -> Any:
    """Positions of a picture that a stack reads, or of a tower's sound; None: as many as are asked for."""
    if stack["length"] is not None:
        return stack["length"]
    if stack["audio"] and stack["role"] == "encoder" and stack["projector"]:
        return stack["audio"]["positions"]
    return VisionOptions.of(stack["vision"]).positions if stack["vision"] else None


def _stack(stack: Table) -> Stack:
    d_model, norm = stack["d_model"], NormOptions.of(stack["norm"])
    places, head = PositionsOptions.of(stack["positions"]), HeadOptions.of(stack["head"])
    groups = tuple(
        LayerGroup(name, _block(stack["layer"][name], stack), indices, number, stack["shared_layers"])
        for name, indices, number in _counted(stack)
    )
    embedding = EmbeddingOptions.of(stack["embedding"])
    first = next(iter(stack["layer"].values()))
    heads: Any = next((layer["attention"] for layer in stack["layer"].values() if "attention" in layer), {})
    streams = stack["streams"]
    below = HeadInputs(
        d_model=d_model,
        vocab=stack["vocab_size"],
        role=stack["role"],
        norm=norm,
        embedding=embedding,
        usual=first["feed_forward"]["activation"] if "feed_forward" in first else "gelu",
        reader=_reader(first, norm, d_model) if stack["head"].get("pool") == "attention" else None,
    )
    return Stack(
        d_model=d_model,
        embedding=embedding.build(
            d_model=d_model,
            vocab=stack["vocab_size"],
            norm=norm,
            places=places,
            vision=VisionOptions.of(stack["vision"]) if stack["vision"] else None,
            audio=AudioOptions.of(stack["audio"]) if stack["audio"] else None,
        ),
        relative_bias=places.relative_bias(heads.get("n_heads"), stack["role"], per_layer=False),
        groups=groups,
        final_norm=norm.last(d_model) if norm.final else None,
        pooler=head.pooled(below),
        head=head.build(below),
        distances=places.distances(norm, d_model),
        layer_inputs=_layer_inputs(stack, norm),
        spread=None if streams is None else StreamEnds(width=d_model, number=streams, first=True),
        merge=None if streams is None else StreamEnds(width=d_model, number=streams, first=False),
        collapse=_hyper(stack, norm, read=True),
        contacts=_contacts(stack) if stack["contacts"] else None,
        angles=places.angles(heads.get("d_head")),
        idle=Unused(d_in=stack["idle"], d_out=1, bias=False) if stack["idle"] is not None else None,
        around=Pieces(pieces=tuple(stack["around"])) if stack["around"] else None,
        frozen=stack["lora"] is not None,
        features=FeaturesOptions.of(stack["features"]).build(d_model, norm) if stack["features"] else None,
    )


def _reader(first: Table, norm: NormOptions, d_model: Any) -> AttentionPool:
    """As many heads as the layers', and a feed-forward like theirs."""
    heads, width, table = first["attention"]["n_heads"], first["attention"]["d_head"], first["feed_forward"]
    sizes = {"n_heads": heads, "n_kv_heads": heads, "d_qk": width, "d_v": width}
    fed = {name: table[name] for name in ("d_ff", "gated", "activation", "bias")}
    return AttentionPool(
        d_model=d_model,
        probe=Vector(width=d_model),
        core=AttentionCore(**sizes, span=CrossUncached()),
        norm=norm.over(d_model),
        feed_forward=FeedForward(d_model=d_model, **fed),
    )


def _contacts(stack: Table) -> Unused:
    heads = [number * stack["layer"][name]["attention"]["n_heads"] for name, _, number in _counted(stack)]
    return Unused(d_in=total(heads), d_out=1)


def _layer_inputs(stack: Table, norm: NormOptions) -> LayerInputs | None:
    """What all layers read, a vector for each: they agree on its width (`resolve`)."""
    table = next((layer["layer_input"] for layer in stack["layer"].values() if "layer_input" in layer), None)
    if table is None:
        return None
    width, number = table["width"], total([number for _, _, number in _counted(stack)])
    return LayerInputs(
        width=width,
        count=number,
        tokens=Lookup(rows=table["rows"], width=number * width),
        projection=Linear(
            d_in=stack["d_model"],
            d_out=number * width,
            bias=False,
            keeps="yes" if stack["streams"] else "no",  # layers read copies of the embedded tokens, or those
        ),
        norm=norm.over(width, number),
    )


def _counted(stack: Table) -> list[tuple[str, tuple[int, ...], Any]]:
    groups = stack["groups"]
    if "counts" in stack:  # symbols put in their place by `algebra`
        return [(name, indices, stack["counts"][name]) for name, indices in groups]
    if len(groups) == 1:
        return [(name, indices, stack["n_layers"]) for name, indices in groups]
    return [(name, indices, len(indices)) for name, indices in groups]


def _block(layer: Table, stack: Table) -> Block:
    d_model, norm = stack["d_model"], NormOptions.of(layer["norm"])
    place = Place(d_model, norm, PositionsOptions.of(layer["positions"]), stack["role"])
    own, streams = norm.over(d_model), stack["streams"]
    branches: list[Branch] = []
    for part in layer["parts"]:
        if part != "shared":
            branches.append(_branch(part, layer, place, bool(branches), stack["d_memory"]))
    return Block(
        d_model=d_model,
        branches=tuple(branches),
        parallel=norm.fully_parallel,
        norm_after_sum=norm.place == "post",
        shared_norm=own if norm.parallel == "shared" else None,
        joint=tuple(norm.joint),
        joint_norm=own if norm.joint else None,
        scaled=norm.scalar,
        residual_scale=norm.residual,
        laurel=None if stack["laurel"] is None else Laurel(d_model=d_model, rank=stack["laurel"], norm=own),
        streams=None
        if streams is None
        else Streams(width=d_model, number=streams, active=stack["active_stream"], norm=own),
        hyper=_hyper(stack, norm),
        adapters=None if stack["lora"] is None else LoraOptions.of(stack["lora"]).build(),
        shared=SharedOptions.of(layer["shared"]).build(place) if "shared" in layer["parts"] else None,
    )


def _hyper(stack: Table, norm: NormOptions, *, read: bool = False) -> HyperConnection | None:
    if stack["hyper"] is None:
        return None
    eps = norm.epsilon_or(RMS_EPS)
    sizes = {"width": stack["d_model"], "number": stack["hyper"], "steps": stack["hyper_steps"]}
    return HyperConnection(**sizes, mixed=stack["hyper_steps"] > 0, eps=eps, read=read)


def _branch(part: str, layer: Table, place: Place, later: bool, memory: Any) -> Branch:
    """A part of a layer with its norms; `later`: it is not the first."""
    norm, d_model = place.norm, place.d_model
    follows, options = part in norm.parallel_parts[1:], _options(part, layer)
    own = None if part in norm.without or follows else norm.over(d_model)
    # It reads what an earlier branch reads, which keeps it.
    beside = later and (norm.fully_parallel or part in norm.joint[1:] or follows or part == "convolution")
    pre = own if norm.place in ("pre", "sandwich") and norm.parallel != "shared" and part != "layer_input" else None
    pre = replace(pre, keeps=False) if pre and beside else pre
    here = place._replace(keeps_input=not (beside and pre is None), pre=pre)
    crosses = part == "cross_attention"
    after = norm.place in ("post", "after", "sandwich") or part in (*norm.after, "layer_input")
    return Branch(
        name=part,
        part=AttentionOptions.of(layer["attention"]).across(here, memory) if crosses else options.build(here),
        kind=options.kind,
        pre=None if options.takes_norm else pre,
        post=own if after else None,
        from_block_input=part == "convolution",
        scale=LayerScale(width=d_model) if norm.layer_scale else None,
        follows=follows,
        stream=LayerScale(width=d_model, keeps=False) if norm.residual_scale else None,
        sums=options.sums,
    )


def _options(part: str, layer: Table) -> Mechanism:
    """What a layer's description says of one of its parts."""
    return mechanism(part, layer).of(layer[section_of(part, layer)])
