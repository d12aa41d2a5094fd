"""From a resolved description to the tree of parts. Only structure is decided here; the arithmetic is the parts'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from txcalc.model import MIXERS
from txcalc.num import exact_div, product, total
from txcalc.parts.attention import (
    Around,
    Attention,
    AttentionCore,
    Causal,
    Chunks,
    Cross,
    DifferentialCore,
    Full,
    Gate,
    IndexCore,
    Indexer,
    LatentAttention,
    LatentCore,
    RelativeBias,
    Rotary,
    Selected,
    Span,
    Window,
)
from txcalc.parts.block import Block, Branch, Laurel, Streams
from txcalc.parts.disentangled import DisentangledAttention, DisentangledCore, DistanceTable
from txcalc.parts.feedforward import Experts, FeedForward, LayerInput
from txcalc.parts.linear import (
    Activation,
    Convolution,
    LayerScale,
    Linear,
    Lookup,
    Norm,
    Patches,
    Scale,
    Sum,
    Unused,
    Vector,
)
from txcalc.parts.model import Embedding, EncoderDecoder, FixedLength, Head, LayerGroup, LayerInputs, Stack, StreamEnds
from txcalc.parts.part import Composite

KINDS = {
    "attention": "attention",
    "cross_attention": "attention",
    "feed_forward": "feed_forward",
    "experts": "experts",
    "channel_mix": "feed_forward",
    **dict.fromkeys(MIXERS, "recurrent"),
    "convolution": "recurrent",
    "layer_input": "other",
}
EPS = {"rms": 1e-6, "layer": 1e-5}
INDEX_EPS = 1e-6  # of the norm of an index's keys, a LayerNorm, whatever the norms around it have (DeepSeek-V3.2)

Table = Mapping[str, Any]


def assemble(spec: Table) -> Composite:
    """The tree of a resolved description (`resolve.resolve`)."""
    memory = spec["stacks"].get("encoder", {}).get("d_model")
    stacks = {half: _stack({**stack, "d_memory": memory}) for half, stack in spec["stacks"].items()}
    if len(stacks) == 1:
        (stack,), (table,) = stacks.values(), spec["stacks"].values()
        return FixedLength(stack, positions_of(table["vision"])) if table["vision"] else stack
    encoder, decoder = stacks["encoder"], stacks["decoder"]
    if encoder.embedding and encoder.embedding.tokens and spec["stacks"]["encoder"]["embedding"]["shared"]:
        encoder = _with_shared_table(encoder)
    vision = spec["stacks"]["encoder"]["vision"]
    return EncoderDecoder(encoder, decoder, positions_of(vision) if vision else None)


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
    return Norm(width, table["form"], table["bias"] and weighted, eps, groups, apart, weighted, table["offset"])


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
        pairs = stack["head"]["pairs"] and Linear(d_model, stack["head"]["pairs"], True)
        pooler = Head(pairs, Linear(d_model, d_model, True), Activation(d_model, "tanh", False), None, True, "other")
    elif stack["head"]["form"] == "none" and stack["head"]["norm"]:
        pooler = Head(None, None, None, norm(stack["norm"], d_model), True, "other")
    elif stack["head"]["form"] == "none" and stack["head"]["pool"] == "mean":
        pooler = Head(None, None, None, None, True, "other", **_pool(stack))
    return Stack(
        d_model,
        _embedding(stack),
        bias,
        groups,
        norm(stack["norm"] | {"bias": stack["norm"]["final_bias"]}, d_model) if stack["norm"]["final"] else None,
        pooler,
        _head(stack),
        _distance_table(stack) if stack["positions"]["form"] == "disentangled" else None,
        _layer_inputs(stack),
        None if stack["streams"] is None else StreamEnds(d_model, stack["streams"], True),
        None if stack["streams"] is None else StreamEnds(d_model, stack["streams"], False),
        _contacts(stack) if stack["contacts"] else None,
        _angles(stack),
        Unused(stack["idle"], 1, False) if stack["idle"] else None,
    )


def _relative_bias(places: Table, heads: Any, role: str) -> RelativeBias:
    return RelativeBias(places["buckets"], heads, places["distance"], role == "encoder")


def _contacts(stack: Table) -> Unused:
    heads = [number * stack["layer"][name]["attention"]["n_heads"] for name, _, number in _counted(stack)]
    return Unused(total(heads), 1)


def _angles(stack: Table) -> Unused | None:
    """The sinusoids of rotary positions that are stored: all layers turn heads of one width (`resolve`)."""
    rows = stack["positions"]["rows"]
    if stack["positions"]["form"] != "rotary" or rows is None:
        return None
    return Unused(next(iter(stack["layer"].values()))["attention"]["d_head"], rows, False)


def _distance_table(stack: Table) -> DistanceTable:
    places, width = stack["positions"], stack["d_model"]
    return DistanceTable(
        places["rows"], width, replace(norm(stack["norm"], width), keeps=False) if places["norm"] else None
    )


def _layer_inputs(stack: Table) -> LayerInputs | None:
    """What all layers read, a vector for each: they agree on its width (`resolve`)."""
    table = next((layer["layer_input"] for layer in stack["layer"].values() if "layer_input" in layer), None)
    if table is None:
        return None
    width, number = table["width"], total([number for _, _, number in _counted(stack)])
    lookup, projection = Lookup(table["rows"], number * width), Linear(stack["d_model"], number * width, False, "no")
    return LayerInputs(width, number, lookup, projection, norm(stack["norm"], width, number))


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
            Convolution(audio["mels"], width, kernel, True, False, False, 1),
            Convolution(width, width, kernel, True, False, False, 2),
        )
    text = not vision and not audio
    return Embedding(
        inner,
        tokens=Lookup(vocab, inner) if text else None,
        patches=Patches(vision["channels"], vision["patch"], width, vision["patch_bias"]) if vision else None,
        class_token=Vector(width) if vision and vision["class_token"] else None,
        convolutions=convolutions,
        positions=Lookup(rows, added, True) if _has_table(places) else None,
        fixed=Sum(added, 1) if places["form"] == "sinusoidal" else None,
        types=Lookup(table["types"], added, True) if table["types"] is not None else None,
        tables=tuple((Lookup(rows, added, True), reads) for rows, reads in table["tables"]) if text else (),
        norm=norm(stack["norm"], added) if table["norm"] else None,
        projection=None if table["rank"] is None else Linear(inner, width, not table["early"]),
        scale=table["scale"],
        mask_token=Vector(width) if vision and vision["mask_token"] else None,
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
        projection = Linear(inner if early else d_model, vocab, head["bias"], tied=head["tied"])
        narrow = Linear(d_model, inner, False) if early else None
        return Head(projection, narrow, None, None, False, scale=head["scale"], softcap=head["softcap"])
    if head["plain"]:
        return Head(Linear(d_model, vocab, head["bias"], tied=head["tied"]), None, None, None, False)
    first = next(iter(stack["layer"].values()))
    usual = first["feed_forward"]["activation"] if "feed_forward" in first else "gelu"
    activation = usual if head["activation"] is None else head["activation"]
    return Head(
        Linear(inner, vocab, True, tied=head["tied"]),
        Linear(d_model, inner, head["transform_bias"]),
        Activation(inner, activation, False),
        norm(stack["norm"], inner),
        False,
    )


def _pool(stack: Table) -> dict[str, Any]:
    """What a head reads instead of the first position, as its fields say it."""
    head, d_model = stack["head"], stack["d_model"]
    if head["pool"] == "first":
        return {}
    own = norm(stack["norm"], d_model) if head["pool_norm"] else None
    return {"pool": Sum(d_model, 1), "pool_norm": own, "joined": head["pool"] == "both"}


def _classifier(stack: Table, head: Table, d_model: Any) -> Head:
    width = 2 * d_model if head["pool"] == "both" else d_model
    projection, form = Linear(width, head["classes"], head["bias"]), head["transform"]
    if form is None:
        before = norm(stack["norm"], d_model) if head["norm"] else None
        return Head(projection, None, None, before, not head["every"], **_pool(stack))
    after = norm(stack["norm"], d_model) if head["transform_norm"] else None
    transform = Linear(d_model, d_model, head["transform_bias"])
    return Head(projection, transform, Activation(d_model, form, False), after, not head["every"])


def _block(layer: Table, d_model: Any, stack: Table) -> Block:
    role, place, parallel = stack["role"], layer["norm"]["place"], layer["norm"]["parallel"]
    branches: list[Branch] = []
    joint, abreast = tuple(layer["norm"]["joint"]), layer["norm"]["abreast"]
    for part in layer["parts"]:
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
        scale = LayerScale(d_model) if layer["norm"]["layer_scale"] else None
        branches.append(Branch(part, made, KINDS[part], pre, post, part == "convolution", scale, follows))
    shared = norm(layer["norm"], d_model) if parallel == "shared" else None
    sides = joint, norm(layer["norm"], d_model) if joint else None
    own = norm(layer["norm"], d_model)
    beside_it = (
        None if stack["laurel"] is None else Laurel(d_model, stack["laurel"], own),
        None if stack["streams"] is None else Streams(d_model, stack["streams"], stack["active_stream"], own),
    )
    return Block(
        d_model, tuple(branches), parallel != "no", place == "post", shared, *sides, layer["norm"]["scalar"], *beside_it
    )


def _part(layer: Table, part: str, d_model: Any, role: str, shares_input: bool, memory: Any) -> Composite:
    if part == "feed_forward":
        table = layer["feed_forward"]
        form = table["gated"], table["activation"], table["bias"]
        inner = norm(layer["norm"], table["d_ff"]) if table["inner_norm"] else None
        rest = table["sparsity"], inner, table["down_bias"]
        return FeedForward(d_model, table["d_ff"], *form, not shares_input, *rest)
    if part == "experts":
        return _experts(layer, d_model)
    if part == "layer_input":
        return LayerInput(d_model, layer["layer_input"]["width"], layer["layer_input"]["activation"])
    if part == "short_convolution":
        from txcalc.parts.convolution import ShortConvolution

        return ShortConvolution(d_model, layer["short_convolution"]["taps"], layer["short_convolution"]["bias"])
    if part in MIXERS or part == "channel_mix":
        return _recurrent(layer, part, d_model)
    if part == "convolution":
        from txcalc.parts.convolution import TimeConvolution

        return TimeConvolution(d_model, layer["convolution"]["taps"], layer["convolution"]["activation"])
    if part == "attention" and layer["positions"]["form"] == "disentangled":
        return _disentangled(layer, d_model)
    if part == "attention" and "latent" in layer:
        return _latent(layer, d_model, _span(layer["latent"], role))
    cross = part == "cross_attention"
    made = _attention(layer, d_model, Cross() if cross else _span(layer["attention"], role), cross, not shares_input)
    if cross:
        return replace(made, d_memory=memory)
    if layer["positions"]["form"] == "relative" and layer["positions"]["apart"]:
        return replace(made, relative_bias=_relative_bias(layer["positions"], made.n_heads, role))
    return made


def _recurrent(layer: Table, part: str, d_model: Any) -> Composite:
    from txcalc.parts import linear_attention, recurrent

    table, norms = layer[part], layer["norm"]
    eps = EPS["rms"] if norms["eps"] is None else norms["eps"]
    if part == "mamba":
        widths = (table["d_inner"], table["d_state"], table["d_conv"], table["dt_rank"])
        within = eps if table["norms"] else None
        return recurrent.Mamba(d_model, *widths, table["bias"], table["conv_bias"], within)
    if part == "mamba2":
        sizes = (table["n_heads"], table["d_head"], table["n_groups"], table["d_state"], table["d_conv"])
        eps = EPS["layer"] if norms["eps"] is None else norms["eps"]
        return recurrent.Mamba2(d_model, *sizes, table["bias"], table["conv_bias"], eps if table["norm"] else None)
    if part == "rg_lru":
        shape = (table["n_heads"], table["d_head"], table["d_conv"])
        return recurrent.Griffin(d_model, *shape, table["bias"], table["conv_bias"], table["activation"])
    if part == "delta":
        sizes = (table["n_heads"], table["n_key_heads"], table["d_key"], table["d_value"], table["d_conv"])
        by_channel = table["decay"] == "channel"
        ways = table["bound"], table["rank"], table["gate"], eps, table["signed"]
        return linear_attention.DeltaNet(d_model, *sizes, by_channel, *ways)
    if part == "linear_attention":
        heads, within = (table["n_heads"], table["d_head"]), EPS["rms"]  # whatever the norms around it have
        return linear_attention.LinearAttention(d_model, *heads, table["activation"], within)
    if part == "time_mix":
        return linear_attention.TimeMix(d_model, table["d_inner"])
    return linear_attention.ChannelMix(d_model, table["d_ff"])


def _span(attention: Table, role: str) -> Span:
    window = attention.get("window")
    if role in ("encoder", "vision"):
        return Full() if window is None else Around(window)
    return Causal() if window is None else Chunks(window) if attention["chunked"] else Window(window)


def _attention(layer: Table, d_model: Any, span: Span, cross: bool, keeps_input: bool) -> Attention:
    table, places = layer["attention"], layer["positions"]
    heads, groups, width = table["n_heads"], table["n_kv_heads"], table["d_head"]
    biased = places["form"] in ("relative", "relative-projection", "alibi") and not cross
    distances = places["form"] == "relative-projection" and not cross
    rotary = None
    lender = None if cross else table["kv_from"]
    if places["form"] == "rotary" and not cross:
        dims = width if places["rotary_dims"] is None else places["rotary_dims"]
        rotated = heads + groups if lender is None else heads
        rotary = Rotary(rotated, dims, places["theta"], width, places["interleaved"], places["spread"])
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
    capped = table["softcap"], table["scale"]
    core = AttentionCore(
        heads, groups, width, value, span, table["sinks"], biased, distances, *capped, lender is not None
    )
    if table["differential"]:
        core = DifferentialCore(heads, groups, width, width, span, scale=table["scale"])
    position = Linear(d_model, product((heads, width)), False) if distances else None
    biases = frozenset(table["bias"])
    gate = None
    if table["gate"] != "none":
        gate = Gate(heads, value, value if table["gate"] == "element" else 1, table["gate_activation"])
    query_norm, key_norm = norms["query"], norms["key"]
    inner = norm(layer["norm"], product((heads, value))) if table["inner_norm"] else None
    inner = replace(inner, fused=True) if inner and gate is None else inner
    if table["differential"]:
        inner = norm({**layer["norm"], "form": "rms", "weighted": False}, 2 * width, exact_div(heads, 2))
    rest = position, gate, value_norm, table["tied_kv"], lender, inner
    scale = None if table["v_scale"] is None or lender is not None else table["v_scale"]
    return Attention(
        d_model,
        heads,
        groups,
        width,
        span,
        biases,
        query_norm,
        key_norm,
        rotary,
        core,
        keeps_input,
        *rest,
        value_scale=scale,
    )


def _disentangled(layer: Table, d_model: Any) -> DisentangledAttention:
    table, places = layer["attention"], layer["positions"]
    heads, width, terms = table["n_heads"], table["d_head"], places["terms"]
    core = DisentangledCore(
        heads,
        width,
        exact_div(places["rows"], 2),
        places["distance"],
        places["clipped"],
        "c2p" in terms,
        "p2c" in terms,
        table["scale"],
    )
    shared, biases = places["shared"], table["bias"] if places["shared"] else places["bias"]
    joint = product((heads, width))
    distance_k = Linear(d_model, joint, "k" in biases, "no", borrowed=shared) if core.c2p else None
    distance_q = Linear(d_model, joint, "q" in biases, "no", borrowed=shared) if core.p2c else None
    return DisentangledAttention(d_model, heads, width, frozenset(table["bias"]), distance_k, distance_q, core)


def _latent(layer: Table, d_model: Any, span: Span) -> LatentAttention:
    table, places = layer["latent"], layer["positions"]
    heads, rank, nope, rope, value = (table[key] for key in ("n_heads", "kv_rank", "d_nope", "d_rope", "d_v"))
    eps = EPS["rms"] if layer["norm"]["eps"] is None else layer["norm"]["eps"]
    rotary, indexer = None, None
    if places["form"] == "rotary":
        rotary = Rotary(heads + 1, rope, places["theta"], rope, places["interleaved"])
    if table["index_heads"] is not None:
        indexer, span = _indexer(layer, d_model, span), Selected(table["index_top_k"])
    core = LatentCore(heads, rank, nope, rope, value, span, table["scale"])
    sizes = d_model, heads, table["q_rank"], rank, nope, rope, value
    gate = None if table["gate"] == "none" else Gate(heads, value, value if table["gate"] == "element" else 1)
    return LatentAttention(*sizes, table["bias"], eps, rotary, core, indexer, gate)


def _indexer(layer: Table, d_model: Any, span: Span) -> Indexer:
    table, theta = layer["latent"], layer["positions"]["theta"]
    heads, width, interleaved = table["index_heads"], table["index_width"], table["index_interleaved"]
    key_norm = Norm(width, "layer", True, INDEX_EPS, keeps=False)
    rotary = Rotary(heads + 1, table["d_rope"], theta, width, interleaved)
    return Indexer(d_model, table["q_rank"], heads, width, key_norm, rotary, IndexCore(heads, width, span))


def _experts(layer: Table, d_model: Any) -> Experts:
    table = layer["experts"]
    gated, activation, bias = table["gated"], table["activation"], table["bias"]
    shared = table["d_ff_shared"]
    none = type(shared) is int and shared == 0
    return Experts(
        d_model,
        table["n_experts"],
        table["top_k"],
        FeedForward(d_model if table["latent"] is None else table["latent"], table["d_ff"], gated, activation, bias),
        Linear(d_model, table["n_experts"], table["router_bias"]) if table["router"] else None,
        None if none else FeedForward(d_model, shared, gated, activation, bias),
        Linear(d_model, 1, False) if table["shared_gate"] and not none else None,
        table["scoring"],
        table["scale"],
        table["n_groups"],
        table["top_groups"],
        table["latent"],
        replace(norm(layer["norm"], d_model), keeps=False) if table["router_norm"] else None,
        table["router_scale"],
        Scale(table["n_experts"], table["top_k"]) if table["expert_scales"] else None,
        correction=Vector(table["n_experts"]) if table["correction"] else None,
    )
