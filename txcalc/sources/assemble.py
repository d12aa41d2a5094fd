"""From a resolved description to the tree of parts. Only structure is decided here; the arithmetic is the parts'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from txcalc.num import exact_div, product, total
from txcalc.parts.adapters import Adapters
from txcalc.parts.attention import Attention, DynamicMask, Gate, RelativeBias, Rotary
from txcalc.parts.block import Block, Branch, Laurel, Streams
from txcalc.parts.cores import AttentionCore, DifferentialCore
from txcalc.parts.disentangled import DisentangledAttention, DisentangledCore, DistanceTable
from txcalc.parts.feedforward import Experts, FeedForward, LayerInput
from txcalc.parts.latent import IndexCore, Indexer, LatentAttention, LatentCore
from txcalc.parts.linear import (
    Activation,
    Convolution,
    LayerScale,
    Linear,
    Lookup,
    Norm,
    Patches,
    Scale,
    Shift,
    Sum,
    Unused,
    Vector,
)
from txcalc.parts.mechanisms import MIXERS, OTHERS, options
from txcalc.parts.model import Embedding, EncoderDecoder, FixedLength, Head, LayerGroup, LayerInputs, Stack, StreamEnds
from txcalc.parts.options import LAYER_EPS, RMS_EPS
from txcalc.parts.part import Composite
from txcalc.parts.routed import RoutedAttention
from txcalc.parts.shared import SharedBlock
from txcalc.parts.spans import Around, Blocks, Causal, Chunks, Cross, Full, Selected, Span, Window

KINDS = {
    "attention": "attention",
    "cross_attention": "attention",
    "feed_forward": "feed_forward",
    "experts": "experts",
    "layer_input": "other",
}
EPS = {"rms": RMS_EPS, "layer": LAYER_EPS}
INDEX_EPS = 1e-6  # of the norm of an index's keys, a LayerNorm, whatever the norms around it have (DeepSeek-V3.2)

Table = Mapping[str, Any]


def assemble(spec: Table) -> Composite:
    """The tree of a resolved description (`resolve.resolve`)."""
    memory = spec["stacks"].get("encoder", {}).get("d_model")
    stacks = {half: _stack({**stack, "d_memory": memory}) for half, stack in spec["stacks"].items()}
    if len(stacks) == 1:
        (stack,), (table,) = stacks.values(), spec["stacks"].values()
        return FixedLength(stack=stack, positions=positions_of(table["vision"])) if table["vision"] else stack
    encoder, decoder = stacks["encoder"], stacks["decoder"]
    if encoder.embedding and encoder.embedding.tokens and spec["stacks"]["encoder"]["embedding"]["shared"]:
        encoder = _with_shared_table(encoder)
    vision = spec["stacks"]["encoder"]["vision"]
    return EncoderDecoder(encoder=encoder, decoder=decoder, positions=positions_of(vision) if vision else None)


def _with_shared_table(encoder: Stack) -> Stack:
    embedding = encoder.embedding
    assert embedding is not None and embedding.tokens is not None
    return replace(encoder, embedding=replace(embedding, tokens=replace(embedding.tokens, tied=True)))


def positions_of(vision: Table) -> Any:
    """Positions of a picture: its patches, and the class token."""
    side = exact_div(vision["image"], vision["patch"])
    return side * side + 1 if vision["class_token"] else side * side


def norm(table: Table, width: Any, groups: Any = 1, apart: bool = False) -> Norm:
    """The norm a table describes, over `groups` of `width`."""
    eps = EPS[table["form"]] if table["eps"] is None else table["eps"]
    weighted = table["weighted"]
    return Norm(
        width=width,
        form=table["form"],
        bias=table["bias"] and weighted,
        eps=eps,
        groups=groups,
        apart=apart,
        weighted=weighted,
        offset=table["offset"],
    )


def _stack(stack: Table) -> Stack:
    d_model = stack["d_model"]
    bias = None
    if stack["positions"]["form"] == "relative" and not stack["positions"]["apart"]:
        heads = next(layer["attention"]["n_heads"] for layer in stack["layer"].values() if "attention" in layer)
        bias = _relative_bias(stack["positions"], heads, stack["role"])
    groups = tuple(
        LayerGroup(name, _block(stack["layer"][name], d_model, stack), indices, number, stack["shared_layers"])
        for name, indices, number in _counted(stack)
    )
    pooler = None
    if stack["head"]["pooler"]:
        pairs = stack["head"]["pairs"] and Linear(d_in=d_model, d_out=stack["head"]["pairs"], bias=True)
        pooler = Head(
            projection=pairs,
            transform=Linear(d_in=d_model, d_out=d_model, bias=True),
            activation=Activation(width=d_model, form="tanh", gated=False),
            norm=None,
            one=True,
            kind="other",
        )
    elif stack["head"]["form"] == "none" and stack["head"]["norm"]:
        pooler = Head(
            projection=None, transform=None, activation=None, norm=norm(stack["norm"], d_model), one=True, kind="other"
        )
    elif stack["head"]["form"] == "none" and stack["head"]["pool"] == "mean":
        pooler = Head(
            projection=None, transform=None, activation=None, norm=None, one=True, kind="other", **_pool(stack)
        )
    return Stack(
        d_model=d_model,
        embedding=_embedding(stack),
        relative_bias=bias,
        groups=groups,
        final_norm=norm(stack["norm"] | {"bias": stack["norm"]["final_bias"]}, d_model)
        if stack["norm"]["final"]
        else None,
        pooler=pooler,
        head=_head(stack),
        distances=_distance_table(stack) if stack["positions"]["form"] == "disentangled" else None,
        layer_inputs=_layer_inputs(stack),
        spread=None if stack["streams"] is None else StreamEnds(width=d_model, number=stack["streams"], first=True),
        merge=None if stack["streams"] is None else StreamEnds(width=d_model, number=stack["streams"], first=False),
        contacts=_contacts(stack) if stack["contacts"] else None,
        angles=_angles(stack),
        idle=Unused(d_in=stack["idle"], d_out=1, bias=False) if stack["idle"] else None,
        frozen=stack["lora"] is not None,
    )


def _relative_bias(places: Table, heads: Any, role: str) -> RelativeBias:
    return RelativeBias(
        buckets=places["buckets"], n_heads=heads, distance=places["distance"], bidirectional=role == "encoder"
    )


def _contacts(stack: Table) -> Unused:
    heads = [number * stack["layer"][name]["attention"]["n_heads"] for name, _, number in _counted(stack)]
    return Unused(d_in=total(heads), d_out=1)


def _angles(stack: Table) -> Unused | None:
    """The sinusoids of rotary positions that are stored: all layers turn heads of one width (`resolve`)."""
    rows = stack["positions"]["rows"]
    if stack["positions"]["form"] != "rotary" or rows is None:
        return None
    return Unused(d_in=next(iter(stack["layer"].values()))["attention"]["d_head"], d_out=rows, bias=False)


def _distance_table(stack: Table) -> DistanceTable:
    places, width = stack["positions"], stack["d_model"]
    return DistanceTable(
        rows=places["rows"],
        width=width,
        norm=replace(norm(stack["norm"], width), keeps=False) if places["norm"] else None,
    )


def _layer_inputs(stack: Table) -> LayerInputs | None:
    """What all layers read, a vector for each: they agree on its width (`resolve`)."""
    table = next((layer["layer_input"] for layer in stack["layer"].values() if "layer_input" in layer), None)
    if table is None:
        return None
    width, number = table["width"], total([number for _, _, number in _counted(stack)])
    lookup, projection = (
        Lookup(rows=table["rows"], width=number * width),
        Linear(d_in=stack["d_model"], d_out=number * width, bias=False, keeps="no"),
    )
    return LayerInputs(
        width=width, count=number, tokens=lookup, projection=projection, norm=norm(stack["norm"], width, number)
    )


def _counted(stack: Table) -> list[tuple[str, tuple[int, ...], Any]]:
    groups = stack["groups"]
    if "counts" in stack:  # symbols put in their place by `algebra`
        return [(name, indices, stack["counts"][name]) for name, indices in groups]
    if len(groups) == 1:
        return [(name, indices, stack["n_layers"]) for name, indices in groups]
    return [(name, indices, len(indices)) for name, indices in groups]


def _embedding(stack: Table) -> Embedding | None:
    width, table, places, vision = stack["d_model"], stack["embedding"], stack["positions"], stack["vision"]
    audio, vocab = stack["audio"], stack["vocab_size"]
    if vocab is None and not vision and not audio:
        return None
    inner = width if table["rank"] is None else table["rank"]
    added = width if table["early"] else inner  # what is added to the tokens is as wide
    rows = places["rows"]
    if places["form"] == "learned" and rows is None:
        rows = positions_of(vision) if vision else audio["positions"]
    convolutions: tuple[Convolution, ...] = ()
    if audio:
        kernel = audio["kernel"]
        convolutions = (
            Convolution(
                c_in=audio["mels"], c_out=width, taps=kernel, bias=True, depthwise=False, causal=False, stride=1
            ),
            Convolution(c_in=width, c_out=width, taps=kernel, bias=True, depthwise=False, causal=False, stride=2),
        )
    text = not vision and not audio
    return Embedding(
        width=inner,
        tokens=Lookup(rows=vocab + table["extra"], width=inner) if text else None,
        patches=Patches(channels=vision["channels"], size=vision["patch"], width=width, bias=vision["patch_bias"])
        if vision
        else None,
        class_token=Vector(width=width) if vision and vision["class_token"] else None,
        convolutions=convolutions,
        positions=Lookup(rows=rows, width=added, added=True) if _has_table(places) else None,
        fixed=Sum(width=added, sums=1) if places["form"] == "sinusoidal" else None,
        types=Lookup(rows=table["types"], width=added, added=True) if table["types"] is not None else None,
        tables=tuple((Lookup(rows=rows, width=added, added=True), reads) for rows, reads in table["tables"])
        if text
        else (),
        norm=norm(stack["norm"], added) if table["norm"] else None,
        projection=None if table["rank"] is None else Linear(d_in=inner, d_out=width, bias=not table["early"]),
        scale=table["scale"],
        mask_token=Vector(width=width) if vision and vision["mask_token"] else None,
        early=table["early"],
    )


def _has_table(places: Table) -> bool:
    """Whether positions are looked up: in a learned table, also one beside a relative bias."""
    return places["form"] == "learned" or (places["form"] == "relative" and places["rows"] is not None)


def _head(stack: Table) -> Head | None:
    head, d_model, vocab = stack["head"], stack["d_model"], stack["vocab_size"]
    inner = d_model if head["rank"] is None else head["rank"]
    if head["form"] == "classifier":
        return _classifier(stack, head, d_model)
    if head["form"] == "none" or vocab is None or (stack["role"] == "encoder" and head["form"] == "lm"):
        return None
    if head["form"] == "lm":
        early = stack["embedding"]["early"]
        projection = Linear(d_in=inner if early else d_model, d_out=vocab, bias=head["bias"], tied=head["tied"])
        narrow = Linear(d_in=d_model, d_out=inner, bias=False) if early else None
        return Head(
            projection=projection,
            transform=narrow,
            activation=None,
            norm=None,
            one=False,
            scale=head["scale"],
            softcap=head["softcap"],
        )
    if head["plain"]:
        return Head(
            projection=Linear(d_in=d_model, d_out=vocab, bias=head["bias"], tied=head["tied"]),
            transform=None,
            activation=None,
            norm=None,
            one=False,
        )
    first = next(iter(stack["layer"].values()))
    usual = first["feed_forward"]["activation"] if "feed_forward" in first else "gelu"
    activation = usual if head["activation"] is None else head["activation"]
    return Head(
        projection=Linear(d_in=inner, d_out=vocab, bias=True, tied=head["tied"]),
        transform=Linear(d_in=d_model, d_out=inner, bias=head["transform_bias"]),
        activation=Activation(width=inner, form=activation, gated=False),
        norm=norm(stack["norm"], inner),
        one=False,
    )


def _pool(stack: Table) -> dict[str, Any]:
    """What a head reads instead of the first position, as its fields say it."""
    head, d_model = stack["head"], stack["d_model"]
    if head["pool"] == "first":
        return {}
    own = norm(stack["norm"], d_model) if head["pool_norm"] else None
    return {"pool": Sum(width=d_model, sums=1), "pool_norm": own, "joined": head["pool"] == "both"}


def _classifier(stack: Table, head: Table, d_model: Any) -> Head:
    width = 2 * d_model if head["pool"] == "both" else d_model
    projection, form = Linear(d_in=width, d_out=head["classes"], bias=head["bias"]), head["transform"]
    if form is None:
        before = norm(stack["norm"], d_model) if head["norm"] else None
        return Head(
            projection=projection, transform=None, activation=None, norm=before, one=not head["every"], **_pool(stack)
        )
    after = norm(stack["norm"], d_model) if head["transform_norm"] else None
    transform = Linear(d_in=d_model, d_out=d_model, bias=head["transform_bias"])
    return Head(
        projection=projection,
        transform=transform,
        activation=Activation(width=d_model, form=form, gated=False),
        norm=after,
        one=not head["every"],
    )


def _block(layer: Table, d_model: Any, stack: Table) -> Block:
    role, place, parallel = stack["role"], layer["norm"]["place"], layer["norm"]["parallel"]
    branches: list[Branch] = []
    joint, abreast = tuple(layer["norm"]["joint"]), layer["norm"]["abreast"]
    for part in layer["parts"]:
        if part == "shared":
            continue
        follows = part in abreast[1:]
        own = None if part in layer["norm"]["without"] or follows else norm(layer["norm"], d_model)
        # It reads what an earlier branch reads, which keeps it.
        beside = bool(branches) and (parallel != "no" or part in joint[1:] or follows)
        pre = own if place in ("pre", "sandwich") and parallel != "shared" and part != "layer_input" else None
        pre = replace(pre, keeps=False) if pre and beside else pre
        made = _part(layer, part, d_model, role, beside and pre is None, stack["d_memory"])
        if isinstance(made, Experts) and made.router_norm:  # the router's input is what their norm reads
            made, pre = replace(made, norm=pre), None
        after = place in ("post", "after", "sandwich") or part in (*layer["norm"]["after"], "layer_input")
        post = own if after else None
        scale = LayerScale(width=d_model) if layer["norm"]["layer_scale"] else None
        branches.append(
            Branch(
                name=part,
                part=made,
                kind=KINDS[part] if part in KINDS else options(part).kind,
                pre=pre,
                post=post,
                beside=part == "convolution",
                scale=scale,
                abreast=follows,
                stream=LayerScale(width=d_model, keeps=False) if layer["norm"]["residual_scale"] else None,
            )
        )
    shared = norm(layer["norm"], d_model) if parallel == "shared" else None
    own, streams = norm(layer["norm"], d_model), stack["streams"]
    return Block(
        d_model=d_model,
        branches=tuple(branches),
        parallel=parallel != "no",
        norm_after_sum=place == "post",
        shared_norm=shared,
        joint=joint,
        joint_norm=own if joint else None,
        scaled=layer["norm"]["scalar"],
        residual_scale=layer["norm"]["residual"],
        laurel=None if stack["laurel"] is None else Laurel(d_model=d_model, rank=stack["laurel"], norm=own),
        streams=None
        if streams is None
        else Streams(width=d_model, number=streams, active=stack["active_stream"], norm=own),
        adapters=None if stack["lora"] is None else Adapters(stack["lora"]["rank"], tuple(stack["lora"]["modules"])),
        shared=_shared(layer, d_model) if "shared" in layer["parts"] else None,
    )


def _part(layer: Table, part: str, d_model: Any, role: str, shares_input: bool, memory: Any) -> Composite:
    if part == "feed_forward":
        table = layer["feed_forward"]
        return FeedForward(
            d_model=d_model,
            d_ff=table["d_ff"],
            gated=table["gated"],
            activation=table["activation"],
            bias=table["bias"],
            keeps_input=not shares_input,
            sparsity=table["sparsity"],
            inner_norm=norm(layer["norm"], table["d_ff"]) if table["inner_norm"] else None,
            down_bias=table["down_bias"],
            groups=table["groups"] and tuple(table["groups"]),
        )
    if part == "experts":
        return _experts(layer, d_model)
    if part == "layer_input":
        return LayerInput(
            d_model=d_model, width=layer["layer_input"]["width"], activation=layer["layer_input"]["activation"]
        )
    if part in MIXERS or part in OTHERS:
        return options(part)(**layer[part]).build(d_model, layer["norm"]["eps"])
    if part == "attention" and "attention" in layer and layer["attention"]["span_taps"] is not None:
        from txcalc.parts.convolution import SpanAttention

        table = layer["attention"]
        sizes = {"n_heads": table["n_heads"], "d_head": table["d_head"], "taps": table["span_taps"]}
        return SpanAttention(d_model=d_model, **sizes, biases=frozenset(table["bias"]))
    if part == "attention" and layer["positions"]["form"] == "disentangled":
        return _disentangled(layer, d_model)
    if part == "attention" and "latent" in layer:
        return _latent(layer, d_model, _span(layer["latent"], role))
    if part == "attention" and layer["attention"]["experts"] is not None:
        return _routed(layer, d_model)
    cross = part == "cross_attention"
    made = _attention(layer, d_model, Cross() if cross else _span(layer["attention"], role), cross, not shares_input)
    if cross:
        return replace(made, d_memory=memory)
    if layer["positions"]["form"] == "relative" and layer["positions"]["apart"]:
        return replace(made, relative_bias=_relative_bias(layer["positions"], made.n_heads, role))
    return made


def _shared(layer: Table, d_model: Any) -> SharedBlock:
    table, places, lent = layer["shared"], layer["positions"], layer["shared"]["from"] is not None
    heads, groups, width = table["n_heads"], table["n_kv_heads"], table["d_head"]
    rotary = None
    if places["form"] == "rotary":
        rotary = Rotary(heads=heads + groups, dims=width, theta=places["theta"], width=width)
    sizes = {"n_heads": heads, "n_kv_heads": groups, "d_qk": width, "d_v": width}
    fed = {"d_ff": table["d_ff"], "activation": table["activation"], "bias": table["bias"]}
    return SharedBlock(
        d_model=d_model,
        norm=replace(norm(layer["norm"], 2 * d_model), borrowed=lent),
        rotary=rotary,
        core=AttentionCore(**sizes, span=Causal(), scale=table["scale"]),
        feed_forward_norm=replace(norm(layer["norm"], d_model), borrowed=lent),
        feed_forward=FeedForward(d_model=d_model, **fed, gated=True, borrowed=lent),
        lender=table["from"],
        rank=table["rank"],
        adapted=table["adapted"],
    )


def _routed(layer: Table, d_model: Any) -> RoutedAttention:
    table, places = layer["attention"], layer["positions"]
    heads, groups, width = table["n_heads"], table["n_kv_heads"], table["d_head"]
    rotary = None
    if places["form"] == "rotary":
        rotary = Rotary(heads=heads + groups, dims=width, theta=places["theta"], width=width)
    span = Causal() if table["window"] is None else Window(window=table["window"])
    sizes = {"n_heads": heads, "n_kv_heads": groups, "d_qk": width, "d_v": width}
    return RoutedAttention(
        d_model=d_model,
        n_experts=table["experts"],
        top_k=exact_div(heads, groups),
        n_kv_heads=groups,
        d_head=width,
        rotary=rotary,
        core=AttentionCore(**sizes, span=span, scale=table["scale"]),
        bias=Shift(width=d_model) if table["sum_bias"] else None,
    )


def _span(attention: Table, role: str) -> Span:
    window = attention.get("window")
    if role in ("encoder", "vision"):
        if attention.get("block") is not None:
            return Blocks(block=attention["block"], random=attention["random_blocks"])
        return Full() if window is None else Around(window=window)
    if attention.get("keep") is not None:
        return Selected(top_k=attention["keep"])
    return Causal() if window is None else Chunks(window=window) if attention["chunked"] else Window(window=window)


def _attention(layer: Table, d_model: Any, span: Span, cross: bool, keeps_input: bool) -> Attention:
    table, places = layer["attention"], layer["positions"]
    heads, groups, width = table["n_heads"], table["n_kv_heads"], table["d_head"]
    biased = (places["form"] in ("relative", "relative-projection", "alibi") or table["keep"] is not None) and not cross
    distances = places["form"] == "relative-projection" and not cross
    rotary = None
    lender = None if cross else table["kv_from"]
    if places["form"] == "rotary" and not cross:
        dims = width if places["rotary_dims"] is None else places["rotary_dims"]
        rotated = heads + groups if lender is None else heads
        rotary = Rotary(
            heads=rotated,
            dims=dims,
            theta=places["theta"],
            width=width,
            interleaved=places["interleaved"],
            spread=places["spread"],
        )
    norms, own = dict.fromkeys(("query", "key")), {**layer["norm"], "bias": layer["norm"]["qk_bias"]}
    if table["qk_norm"] == "head":
        norms = {"query": norm(own, width, heads), "key": norm(own, width, groups)}
    elif table["qk_norm"] == "width":
        norms = {"query": norm(own, product((heads, width))), "key": norm(own, groups * width)}
    elif table["qk_norm"] == "apart":
        norms = {"query": norm(own, width, heads, True), "key": norm(own, width, groups, True)}
    elif table["qk_norm"] == "bare":
        bare = {**own, "weighted": False}
        norms = {"query": norm(bare, width, heads), "key": norm(bare, width, groups)}
    value = width if table["d_v"] is None else table["d_v"]
    value_norm = None
    if table["v_norm"]:  # beside a norm of the keys, which keeps what both read
        keeps = not (table["tied_kv"] and norms["key"])
        value_norm = replace(norm({**layer["norm"], "weighted": False}, value, groups), keeps=keeps)
    if lender is not None:
        norms["key"] = value_norm = None
    core: AttentionCore | DifferentialCore = AttentionCore(
        n_heads=heads,
        n_kv_heads=groups,
        d_qk=width,
        d_v=value,
        span=span,
        sinks=table["sinks"],
        biased=biased,
        distances=distances,
        softcap=table["softcap"],
        scale=table["scale"],
        borrowed=lender is not None,
    )
    if table["differential"]:
        core = DifferentialCore(
            n_heads=heads, n_kv_heads=groups, d_qk=width, d_v=width, span=span, scale=table["scale"]
        )
    position = Linear(d_in=d_model, d_out=product((heads, width)), bias=False) if distances else None
    biases = frozenset(table["bias"])
    gate = None
    if table["gate"] != "none":
        gate = Gate(
            n_heads=heads, d_v=value, gates=value if table["gate"] == "element" else 1, form=table["gate_activation"]
        )
    query_norm, key_norm = norms["query"], norms["key"]
    inner = norm(layer["norm"], product((heads, value))) if table["inner_norm"] else None
    inner = replace(inner, fused=True) if inner and gate is None else inner
    if table["differential"]:
        inner = norm({**layer["norm"], "form": "rms", "weighted": False}, 2 * width, exact_div(heads, 2))
    scale = None if table["v_scale"] is None or lender is not None else table["v_scale"]
    return Attention(
        d_model=d_model,
        n_heads=heads,
        n_kv_heads=groups,
        d_head=width,
        span=span,
        biases=biases,
        query_norm=query_norm,
        key_norm=key_norm,
        rotary=rotary,
        core=core,
        keeps_input=keeps_input,
        position=position,
        gate=gate,
        value_norm=value_norm,
        tied_kv=table["tied_kv"],
        direct=table["direct"] and not cross,
        lender=lender,
        inner_norm=inner,
        value_scale=scale,
        mask=None if cross or table["keep"] is None else DynamicMask(n_kv_heads=groups),
        groups=table["groups"] and tuple(table["groups"]),
    )


def _disentangled(layer: Table, d_model: Any) -> DisentangledAttention:
    table, places = layer["attention"], layer["positions"]
    heads, width, terms = table["n_heads"], table["d_head"], places["terms"]
    core = DisentangledCore(
        n_heads=heads,
        d_head=width,
        reach=exact_div(places["rows"], 2),
        distance=places["distance"],
        clipped=places["clipped"],
        c2p="c2p" in terms,
        p2c="p2c" in terms,
        scale=table["scale"],
    )
    shared, biases = places["shared"], table["bias"] if places["shared"] else places["bias"]
    joint = product((heads, width))
    distance_k = (
        Linear(d_in=d_model, d_out=joint, bias="k" in biases, keeps="no", borrowed=shared) if core.c2p else None
    )
    distance_q = (
        Linear(d_in=d_model, d_out=joint, bias="q" in biases, keeps="no", borrowed=shared) if core.p2c else None
    )
    return DisentangledAttention(
        d_model=d_model,
        n_heads=heads,
        d_head=width,
        biases=frozenset(table["bias"]),
        distance_k=distance_k,
        distance_q=distance_q,
        core=core,
    )


def _latent(layer: Table, d_model: Any, span: Span) -> LatentAttention:
    table, places = layer["latent"], layer["positions"]
    heads, rank, nope, rope, value = (table[key] for key in ("n_heads", "kv_rank", "d_nope", "d_rope", "d_v"))
    eps = EPS["rms"] if layer["norm"]["eps"] is None else layer["norm"]["eps"]
    rotary, indexer = None, None
    if places["form"] == "rotary":
        rotary = Rotary(
            heads=heads + 1, dims=rope, theta=places["theta"], width=rope, interleaved=places["interleaved"]
        )
    if table["index_heads"] is not None:
        indexer, span = _indexer(layer, d_model, span), Selected(top_k=table["index_top_k"])
    core = LatentCore(n_heads=heads, kv_rank=rank, d_nope=nope, d_rope=rope, d_v=value, span=span, scale=table["scale"])
    gate = (
        None
        if table["gate"] == "none"
        else Gate(n_heads=heads, d_v=value, gates=value if table["gate"] == "element" else 1)
    )
    return LatentAttention(
        d_model=d_model,
        n_heads=heads,
        q_rank=table["q_rank"],
        kv_rank=rank,
        d_nope=nope,
        d_rope=rope,
        d_v=value,
        bias=table["bias"],
        norm_eps=eps,
        rotary=rotary,
        core=core,
        indexer=indexer,
        gate=gate,
    )


def _indexer(layer: Table, d_model: Any, span: Span) -> Indexer:
    table, theta = layer["latent"], layer["positions"]["theta"]
    heads, width, interleaved = table["index_heads"], table["index_width"], table["index_interleaved"]
    key_norm = Norm(width=width, form="layer", bias=True, eps=INDEX_EPS, keeps=False)
    rotary = Rotary(heads=heads + 1, dims=table["d_rope"], theta=theta, width=width, interleaved=interleaved)
    return Indexer(
        d_model=d_model,
        q_rank=table["q_rank"],
        n_heads=heads,
        width=width,
        key_norm=key_norm,
        rotary=rotary,
        core=IndexCore(n_heads=heads, width=width, span=span),
    )


def _experts(layer: Table, d_model: Any) -> Experts:
    table = layer["experts"]
    gated, activation, bias = table["gated"], table["activation"], table["bias"]
    shared = table["d_ff_shared"]
    none = type(shared) is int and shared == 0
    return Experts(
        d_model=d_model,
        n_experts=table["n_experts"],
        top_k=table["top_k"],
        expert=FeedForward(
            d_model=d_model if table["latent"] is None else table["latent"],
            d_ff=table["d_ff"],
            gated=gated,
            activation=activation,
            bias=bias,
        ),
        router=Linear(d_in=d_model, d_out=table["n_experts"], bias=table["router_bias"]) if table["router"] else None,
        shared=None
        if none
        else FeedForward(d_model=d_model, d_ff=shared, gated=gated, activation=activation, bias=bias),
        shared_gate=Linear(d_in=d_model, d_out=1, bias=False) if table["shared_gate"] and not none else None,
        n_shared=table["n_shared"],
        scoring=table["scoring"],
        scale=table["scale"],
        n_groups=table["n_groups"],
        top_groups=table["top_groups"],
        latent=table["latent"],
        router_norm=replace(norm(layer["norm"], d_model), keeps=False) if table["router_norm"] else None,
        router_scale=table["router_scale"],
        scales=Scale(rows=table["n_experts"], used=table["top_k"]) if table["expert_scales"] else None,
        correction=Vector(width=table["n_experts"]) if table["correction"] else None,
        bias=Shift(width=d_model) if table["sum_bias"] else None,
    )
