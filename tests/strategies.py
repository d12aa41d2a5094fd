"""What Hypothesis draws: every part, every workload, valid descriptions of every family; and parts in other numbers.

A new leaf or composite must be added to `LEAVES` or `COMPOSITES`: `test_readings` fails until it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import count
from typing import Any, ForwardRef

from hypothesis import strategies as st

from txcalc.parts.adapters import Adapters, Frozen, LowRank
from txcalc.parts.attention import Attention
from txcalc.parts.block import Block, Branch, Laurel, Mix, Streams
from txcalc.parts.cells import Cell, RecurrentCell
from txcalc.parts.collectives import AllGather, AllReduce, AllToAll, Axis, Receive, ReduceScatter, Send
from txcalc.parts.convolution import (
    Filter,
    Fourier,
    Product,
    ShortConvolution,
    SpanAttention,
    SpanCore,
    SpanProduct,
    TimeConvolution,
    Transform,
)
from txcalc.parts.cores import AttentionCore, DifferentialCore, DynamicMask, Gate, MatrixProduct, Scores, Stored
from txcalc.parts.delta import DeltaNet, DeltaRule
from txcalc.parts.disentangled import DisentangledAttention, DisentangledCore, DistanceTable
from txcalc.parts.drafts import DraftAttention, Features
from txcalc.parts.embedding import Embedding, Patches
from txcalc.parts.feedforward import Experts, FeedForward, LayerInput
from txcalc.parts.forms import pieces
from txcalc.parts.head import Head
from txcalc.parts.hyena import Decay, Hyena, ImplicitFilter, LongConvolution, ModalConvolution, Sine
from txcalc.parts.hyper import Collapse, HyperConnection, Shares, StreamSpread
from txcalc.parts.latent import IndexCore, Indexer, LatentAttention, LatentCore
from txcalc.parts.linear import (
    Activation,
    BlockLinear,
    GroupedLinear,
    LayerScale,
    Linear,
    Lookup,
    Scale,
    Shift,
    Sum,
    Unused,
    Vector,
)
from txcalc.parts.linear_attention import DecayScan, LinearAttention, MatrixMemory, MatrixScan
from txcalc.parts.mixers.compressed import (
    CompressedAttention,
    CompressedCore,
    Compressor,
    Entries,
    Pool,
    SelectionCore,
    Selector,
)
from txcalc.parts.mixers.forgetting import ForgetGate, ForgettingAttention, ForgettingCore
from txcalc.parts.mixers.pieces import Pieces
from txcalc.parts.model import EncoderDecoder, FixedLength, Join, LayerGroup, LayerInputs, Memory, Stack, StreamEnds
from txcalc.parts.norm import Norm
from txcalc.parts.part import Workload
from txcalc.parts.pooling import AttentionPool
from txcalc.parts.positions import RelativeBias, Rotary
from txcalc.parts.recurrence import Remembered
from txcalc.parts.recurrent import GatedRecurrence, Griffin, HeadScan, Mamba, Mamba2, SelectiveScan
from txcalc.parts.routed import ChosenExperts, RoutedAttention
from txcalc.parts.rwkv import ChannelMix, TimeMix, TokenShift, WeightedSum
from txcalc.parts.shared import SharedBlock
from txcalc.parts.spans import Apart, Around, Causal, Chunks, Cross, Full, Reading, Selected, Window
from txcalc.parts.taps import Convolution
from txcalc.parts.tower import Counted, Projector, ProjectorStep, TowerStack

ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu", "clamped_silu", "sigmoid", "tanh")

sizes = st.integers(1, 40)
flags = st.booleans()
activations = st.sampled_from(ACTIVATIONS)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


# Parts.

causal_spans = (
    st.builds(Causal)
    | st.builds(Window, window=st.integers(1, 60))
    | st.builds(Chunks, window=st.integers(1, 60))
    | st.builds(Selected, top_k=st.integers(1, 60))
)
spans = (
    causal_spans
    | st.builds(Full)
    | st.builds(Around, window=st.integers(1, 60))
    | st.builds(Apart, window=st.integers(1, 60))
    | st.builds(Cross)
    | st.builds(Reading)
)
linears = st.builds(
    Linear,
    d_in=sizes,
    d_out=sizes,
    bias=flags,
    keeps=st.sampled_from(["yes", "no", "eager"]),
    tied=flags,
    borrowed=flags,
)
norms = st.builds(
    Norm,
    width=sizes,
    form=st.sampled_from(["rms", "layer"]),
    bias=flags,
    eps=st.just(1e-6),
    groups=sizes,
    apart=flags,
    weighted=flags,
    offset=flags,
    borrowed=flags,
)
rotaries = st.builds(Rotary, heads=sizes, dims=sizes, theta=st.just(10_000), width=sizes, interleaved=flags)
lookups = st.builds(Lookup, rows=sizes, width=sizes, added=flags, tied=flags)
sums = st.builds(Sum, width=sizes, sums=st.integers(1, 3))
vectors = st.builds(Vector, width=sizes)
patches = st.builds(Patches, channels=sizes, size=sizes, width=sizes)
convolutions = st.builds(
    Convolution,
    c_in=sizes,
    c_out=sizes,
    taps=sizes,
    bias=flags,
    depthwise=flags,
    causal=flags,
    stride=st.integers(1, 3),
    keeps=flags,
)
activation_leaves = st.builds(
    Activation, width=sizes, form=activations | st.just("xielu"), gated=flags, sparsity=st.sampled_from([None, 0.5])
)
relative_biases = st.builds(RelativeBias, buckets=sizes, n_heads=sizes, distance=sizes, bidirectional=flags)
gates = st.builds(Gate, n_heads=sizes, d_v=sizes, gates=sizes, form=st.sampled_from(["sigmoid", "softplus"]))
scales = st.builds(Scale, rows=sizes, used=sizes)
cores = st.builds(
    AttentionCore,
    n_heads=sizes,
    n_kv_heads=sizes,
    d_qk=sizes,
    d_v=sizes,
    span=spans,
    sinks=flags,
    biased=flags,
    distances=flags,
    borrowed=flags,
)
forgetting_cores = st.builds(
    ForgettingCore, n_heads=sizes, n_kv_heads=sizes, d_qk=sizes, d_v=sizes, span=st.just(Causal())
)
entries = st.builds(Entries, rate=sizes, top_k=maybe(sizes))
latent_cores = st.builds(
    LatentCore, n_heads=sizes, kv_rank=sizes, d_nope=sizes, d_rope=sizes, d_v=sizes, span=causal_spans
)
index_cores = st.builds(IndexCore, n_heads=sizes, width=sizes, span=causal_spans)

disentangled_cores = st.builds(
    DisentangledCore, n_heads=sizes, d_head=sizes, reach=sizes, distance=sizes, clipped=flags, c2p=flags, p2c=flags
)

layer_scales = st.builds(LayerScale, width=sizes, keeps=flags)

axes = st.builds(Axis, st.just("tp"), st.integers(2, 9))
rings = {"width": st.integers(1, 40), "axis": axes}
handed = {**rings, "sharers": st.integers(1, 4)}
joins = {
    "gather": maybe(st.builds(AllGather, **rings)),
    "join": maybe(st.builds(AllReduce, **rings)),
    "stream": maybe(layer_scales),
    "sums": st.integers(0, 2),
}
exchanges = st.builds(AllToAll, **handed, choices=st.integers(1, 4), narrow=flags)

LEAVES: dict[type, st.SearchStrategy[Any]] = {
    AllGather: st.builds(AllGather, **rings),
    AllReduce: st.builds(AllReduce, **rings),
    AllToAll: exchanges,
    Receive: st.builds(Receive, **handed),
    ReduceScatter: st.builds(ReduceScatter, **rings),
    Send: st.builds(Send, **handed),
    Activation: activation_leaves,
    AttentionCore: cores,
    BlockLinear: st.builds(BlockLinear, n_heads=sizes, width=sizes, keeps=flags),
    Convolution: convolutions,
    DecayScan: st.builds(DecayScan, n_heads=sizes, d_head=sizes),
    DeltaRule: st.builds(
        DeltaRule,
        n_heads=sizes,
        n_key_heads=sizes,
        d_key=sizes,
        d_value=sizes,
        decays=sizes,
        bound=st.sampled_from([None, -5.0]),
        signed=flags,
    ),
    ForgetGate: st.builds(ForgetGate, n_heads=sizes),
    Collapse: st.builds(Collapse, width=sizes, number=sizes),
    CompressedCore: st.builds(
        CompressedCore,
        n_heads=sizes,
        n_kv_heads=st.just(1),
        d_qk=sizes,
        d_v=sizes,
        span=st.builds(Window, window=st.integers(1, 60)),
        entries=maybe(entries),
    ),
    Pool: st.builds(Pool, width=sizes, rate=sizes, overlap=flags, keeps=flags),
    SelectionCore: st.builds(SelectionCore, n_heads=sizes, width=sizes, span=entries),
    Shares: st.builds(Shares, number=sizes, steps=sizes, mixed=flags, read=flags),
    StreamSpread: st.builds(StreamSpread, width=sizes, number=sizes, mixed=flags),
    ForgettingCore: forgetting_cores,
    Filter: st.builds(Filter, c_in=sizes, c_out=sizes, taps=sizes, groups=st.just(1), stride=sizes, bias=flags),
    MatrixProduct: st.builds(MatrixProduct, n_heads=sizes, d_in=sizes, d_out=sizes),
    Remembered: st.builds(Remembered, elements=sizes),
    Stored: st.builds(Stored, width=sizes, span=st.just(Causal())),
    Scores: st.builds(Scores, n_heads=sizes, width=sizes, span=st.just(Causal())),
    Gate: gates,
    GroupedLinear: st.builds(
        GroupedLinear, groups=sizes, d_in=sizes, d_out=sizes, bias=flags, keeps=st.sampled_from(["yes", "no", "eager"])
    ),
    LongConvolution: st.builds(LongConvolution, width=sizes, fft=flags),
    ModalConvolution: st.builds(ModalConvolution, width=sizes, states=sizes, fft=flags),
    Sine: st.builds(Sine, width=sizes),
    Decay: st.builds(Decay, width=sizes),
    Cell: st.builds(Cell, form=st.sampled_from(["lstm", "gru", "rnn"]), width=sizes, bias=flags),
    GatedRecurrence: st.builds(GatedRecurrence, channels=sizes),
    DifferentialCore: st.builds(
        DifferentialCore, n_heads=sizes, n_kv_heads=sizes, d_qk=sizes, d_v=sizes, span=causal_spans
    ),
    DisentangledCore: disentangled_cores,
    HeadScan: st.builds(HeadScan, heads=sizes, width=sizes, groups=sizes, states=sizes),
    IndexCore: index_cores,
    LatentCore: latent_cores,
    LayerScale: layer_scales,
    Linear: linears,
    Lookup: lookups,
    Memory: st.builds(Memory, width=sizes),
    Mix: st.builds(Mix, width=sizes, number=sizes),
    Norm: norms,
    Patches: patches,
    Product: st.builds(Product, width=sizes, kept=sizes),
    RelativeBias: relative_biases,
    Rotary: rotaries,
    Scale: scales,
    SelectiveScan: st.builds(SelectiveScan, channels=sizes, states=sizes),
    DynamicMask: st.builds(DynamicMask, n_kv_heads=sizes),
    MatrixScan: st.builds(MatrixScan, n_heads=sizes, d_key=sizes, d_value=sizes),
    Shift: st.builds(Shift, width=sizes),
    SpanCore: st.builds(SpanCore, n_heads=sizes, d_head=sizes, taps=sizes),
    SpanProduct: st.builds(SpanProduct, width=sizes),
    Transform: st.builds(Transform, width=sizes),
    Sum: sums,
    TokenShift: st.builds(TokenShift, width=sizes, uses=st.sampled_from([("key",), ("key", "value")])),
    Unused: st.builds(Unused, d_in=sizes, d_out=sizes, bias=flags),
    Vector: vectors,
    WeightedSum: st.builds(WeightedSum, channels=sizes),
}

feed_forwards = st.builds(
    FeedForward, d_model=sizes, d_ff=sizes, gated=flags, activation=activations, bias=flags, keeps_input=flags
)
attentions = st.builds(
    Attention,
    d_model=sizes,
    n_heads=sizes,
    n_kv_heads=sizes,
    d_head=sizes,
    span=spans,
    biases=st.frozensets(st.sampled_from("qkvo")),
    query_norm=maybe(norms),
    key_norm=maybe(norms),
    rotary=maybe(rotaries),
    core=cores,
    keeps_input=flags,
    position=maybe(linears),
    gate=maybe(gates),
    value_norm=maybe(norms),
    tied_kv=flags,
    lender=st.sampled_from([None, "a"]),
    inner_norm=maybe(norms),
    value_scale=st.sampled_from([None, 0.5]),
    d_memory=maybe(sizes),
    mask=maybe(st.builds(DynamicMask, n_kv_heads=sizes)),
)
indexers = st.builds(
    Indexer, d_model=sizes, q_rank=sizes, n_heads=sizes, width=sizes, key_norm=norms, rotary=rotaries, core=index_cores
)
latent_attentions = st.builds(
    LatentAttention,
    d_model=sizes,
    n_heads=sizes,
    q_rank=maybe(sizes),
    kv_rank=sizes,
    d_nope=sizes,
    d_rope=sizes,
    d_v=sizes,
    bias=flags,
    norm_eps=st.just(1e-6),
    rotary=maybe(rotaries),
    core=latent_cores,
    indexer=maybe(indexers),
    gate=maybe(gates),
)
distance_tables = st.builds(DistanceTable, rows=sizes, width=sizes, norm=maybe(norms))
disentangled_attentions = st.builds(
    DisentangledAttention,
    d_model=sizes,
    n_heads=sizes,
    d_head=sizes,
    biases=st.frozensets(st.sampled_from("qkvo")),
    distance_k=maybe(linears),
    distance_q=maybe(linears),
    core=disentangled_cores,
)
time_convolutions = st.builds(TimeConvolution, d_model=sizes, taps=sizes, activation=activations)
forgetting_attentions = st.builds(
    ForgettingAttention, d_model=sizes, n_heads=sizes, n_kv_heads=sizes, d_head=sizes, core=forgetting_cores
)
compressors = st.builds(Compressor, d_model=sizes, pool=LEAVES[Pool], norm=norms, rotary=rotaries)
selectors = st.builds(
    Selector, d_model=sizes, q_rank=sizes, compressor=compressors, rotary=rotaries, core=LEAVES[SelectionCore]
)
compressed_attentions = st.builds(
    CompressedAttention,
    d_model=sizes,
    n_heads=sizes,
    d_head=sizes,
    q_rank=sizes,
    o_rank=sizes,
    groups=sizes,
    d_group=sizes,
    norm_eps=st.just(1e-6),
    rotary=rotaries,
    core=LEAVES[CompressedCore],
    compressor=maybe(compressors),
    selector=maybe(selectors),
)
hyper_connections = st.builds(
    HyperConnection, width=sizes, number=sizes, steps=sizes, mixed=flags, eps=st.just(1e-6), read=flags
)
cell_forms = st.sampled_from(["lstm", "gru", "rnn"])
implicit_filters = st.builds(ImplicitFilter, features=sizes, width=sizes, layers=st.integers(0, 3), channels=sizes)
hyenas = st.builds(
    Hyena, d_model=sizes, taps=sizes, bias=flags, long=LEAVES[LongConvolution], filter=implicit_filters
) | st.builds(Hyena, d_model=sizes, taps=sizes, bias=flags, long=LEAVES[ModalConvolution], filter=st.none())
recurrent_cells = st.builds(
    RecurrentCell,
    d_model=sizes,
    d_hidden=sizes,
    form=cell_forms,
    bias=flags,
    second_bias=flags,
    projected=flags,
)
short_convolutions = st.builds(ShortConvolution, d_model=sizes, taps=sizes, bias=flags)
matrix_memories = st.builds(
    MatrixMemory, d_model=sizes, n_heads=sizes, d_key=sizes, d_value=sizes, bias=flags, norm_eps=st.just(1e-6)
)
draft_attentions = st.builds(
    DraftAttention,
    d_model=sizes,
    n_heads=sizes,
    n_kv_heads=sizes,
    d_head=sizes,
    norm=norms,
    rotary=st.none() | rotaries,
    core=cores,
)
feature_products = st.builds(
    Features,
    d_model=sizes,
    number=sizes,
    width=sizes,
    embedded=flags,
    bias=flags,
    norm=st.none() | norms,
    embedding_norm=st.none() | norms,
)
routed_attentions = st.builds(
    RoutedAttention,
    d_model=sizes,
    n_experts=sizes,
    top_k=sizes,
    n_kv_heads=sizes,
    d_head=sizes,
    rotary=maybe(rotaries),
    core=cores,
    bias=maybe(st.builds(Shift, width=sizes)),
)
shared_blocks = st.builds(
    SharedBlock,
    d_model=sizes,
    norm=norms,
    rotary=maybe(rotaries),
    core=cores,
    feed_forward_norm=norms,
    feed_forward=feed_forwards,
    lender=st.sampled_from([None, "a"]),
    rank=maybe(sizes),
    adapted=flags,
)
fouriers = st.builds(Fourier, d_model=sizes)
span_attentions = st.builds(
    SpanAttention,
    d_model=sizes,
    n_heads=sizes,
    d_head=sizes,
    taps=sizes,
    biases=st.frozensets(st.sampled_from("qkvo")),
)
experts = st.builds(
    Experts,
    d_model=sizes,
    n_experts=sizes,
    top_k=sizes,
    expert=feed_forwards,
    router=maybe(linears),
    shared=maybe(feed_forwards),
    shared_gate=maybe(linears),
    latent=maybe(sizes),
    router_norm=maybe(norms),
    scales=maybe(scales),
    norm=maybe(norms),
    correction=maybe(st.builds(Vector, width=sizes)),
    bias=maybe(st.builds(Shift, width=sizes)),
)
mambas = st.builds(
    Mamba,
    d_model=sizes,
    d_inner=sizes,
    d_state=sizes,
    d_conv=sizes,
    dt_rank=sizes,
    bias=flags,
    conv_bias=flags,
    norm_eps=st.sampled_from([None, 1e-6]),
)
mamba2s = st.builds(
    Mamba2,
    d_model=sizes,
    n_heads=sizes,
    d_head=sizes,
    n_groups=sizes,
    d_state=sizes,
    d_conv=sizes,
    bias=flags,
    conv_bias=flags,
    norm_eps=st.sampled_from([None, 1e-5]),
)
delta_nets = st.builds(
    DeltaNet,
    d_model=sizes,
    n_heads=sizes,
    n_key_heads=sizes,
    d_key=sizes,
    d_value=sizes,
    d_conv=sizes,
    by_channel=flags,
    bound=st.sampled_from([None, -5.0]),
    rank=maybe(sizes),
    gate=st.sampled_from(["silu", "sigmoid"]),
    norm_eps=st.just(1e-6),
    signed=flags,
)
griffins = st.builds(
    Griffin,
    d_model=sizes,
    n_heads=sizes,
    d_head=sizes,
    d_conv=sizes,
    bias=flags,
    conv_bias=flags,
    activation=activations,
)
linear_attentions = st.builds(
    LinearAttention, d_model=sizes, n_heads=sizes, d_head=sizes, activation=activations, norm_eps=st.just(1e-6)
)
time_mixes, channel_mixes = (
    st.builds(TimeMix, d_model=sizes, d_inner=sizes),
    st.builds(ChannelMix, d_model=sizes, d_ff=sizes),
)
branches = st.builds(
    Branch,
    st.just("mixer"),
    attentions
    | latent_attentions
    | disentangled_attentions
    | mambas
    | mamba2s
    | delta_nets
    | griffins
    | linear_attentions
    | time_mixes
    | short_convolutions
    | recurrent_cells
    | hyenas
    | forgetting_attentions
    | fouriers
    | matrix_memories
    | routed_attentions
    | span_attentions
    | time_convolutions,
    st.sampled_from(["attention", "recurrent", None]),
    maybe(norms),
    maybe(norms),
    flags,
    maybe(layer_scales),
    **joins,
)
channels = st.builds(
    Branch,
    st.just("channel"),
    feed_forwards | experts | channel_mixes,
    st.just("feed_forward"),
    maybe(norms),
    maybe(norms),
    flags,
    maybe(layer_scales),
    **joins,
)
joints = {"joint": st.just(("mixer", "channel")), "joint_norm": maybe(norms), "scaled": flags}
laurels = st.builds(Laurel, d_model=sizes, rank=sizes, norm=norms)
streams = st.builds(Streams, width=sizes, number=sizes, active=st.integers(0, 3), norm=norms)
stream_ends = st.builds(StreamEnds, width=sizes, number=st.integers(2, 5), first=flags)
beside = {**joints, "shared": maybe(shared_blocks), "laurel": maybe(laurels), "streams": maybe(streams)}
blocks = st.builds(
    Block,
    d_model=sizes,
    branches=st.tuples(branches, channels),
    parallel=flags,
    norm_after_sum=flags,
    shared_norm=maybe(norms),
    **beside,
)
embeddings = st.builds(
    Embedding,
    width=sizes,
    tokens=maybe(lookups),
    patches=maybe(patches),
    class_token=maybe(vectors),
    convolutions=st.lists(convolutions, max_size=2).map(tuple),
    activation=activations,
    positions=maybe(lookups),
    fixed=maybe(sums),
    types=maybe(lookups),
    norm=maybe(norms),
    projection=maybe(linears),
    scale=st.sampled_from([None, 2.0]),
)
layer_inputs = st.builds(LayerInputs, width=sizes, count=sizes, tokens=lookups, projection=linears, norm=norms)
attention_pools = st.builds(
    AttentionPool,
    d_model=sizes,
    probe=st.builds(Vector, width=sizes),
    core=cores,
    norm=norms,
    feed_forward=feed_forwards,
)
heads = st.builds(
    Head,
    projection=maybe(linears),
    transform=maybe(linears),
    activation=maybe(activation_leaves),
    norm=maybe(norms),
    one=flags,
    kind=st.sampled_from(["head", "other"]),
)


@st.composite
def groups(draw: st.DrawFn) -> tuple[LayerGroup, ...]:
    """One or two groups of layers, numbered one after the other."""
    made, first = [], 0
    for name in draw(st.sampled_from(["a", "ab"])):
        number = draw(st.integers(1, 4))
        indices = tuple(range(first, first + number))
        made.append(LayerGroup(name, draw(blocks), indices, number, draw(flags)))
        first += number
    return tuple(made)


stacks = st.builds(
    Stack,
    d_model=sizes,
    embedding=maybe(embeddings),
    relative_bias=maybe(relative_biases),
    groups=groups(),
    final_norm=maybe(norms),
    pooler=maybe(heads),
    head=maybe(heads),
    distances=maybe(distance_tables),
    layer_inputs=maybe(layer_inputs),
    spread=maybe(stream_ends),
    merge=maybe(stream_ends),
)

projectors = st.builds(
    Projector,
    steps=st.tuples(
        st.builds(ProjectorStep, st.just("branch"), linears, sizes, st.integers(1, 3)),
        st.builds(ProjectorStep, st.just("norm"), norms, sizes, st.just(1)),
        st.builds(ProjectorStep, st.just("linear"), linears, sizes, st.just(1)),
    ),
    per_token=sizes,
    width=sizes,
)

LISTED = pieces(
    [
        {"name": "x", "form": "linear", "sizes": [3, 5], "at": [1, 0, 2], "times": 2, "runs": 3},
        {"name": "y", "form": "relu", "sizes": [5]},
    ]
)
COMPOSITES: dict[type, st.SearchStrategy[Any]] = {
    Counted: st.builds(Counted, params=sizes),
    Pieces: st.builds(Pieces, pieces=st.just(tuple(LISTED))),
    Attention: attentions,
    Block: blocks,
    ChannelMix: channel_mixes,
    DeltaNet: delta_nets,
    DisentangledAttention: disentangled_attentions,
    DistanceTable: distance_tables,
    Embedding: embeddings,
    EncoderDecoder: st.builds(EncoderDecoder, encoder=stacks, decoder=stacks),
    Experts: experts,
    FeedForward: feed_forwards,
    Fourier: fouriers,
    ChosenExperts: st.builds(ChosenExperts, n_experts=sizes, top_k=sizes, expert=linears),
    MatrixMemory: matrix_memories,
    DraftAttention: draft_attentions,
    Features: feature_products,
    Join: st.builds(Join, norm=norms, projection=linears),
    RoutedAttention: routed_attentions,
    SharedBlock: shared_blocks,
    SpanAttention: span_attentions,
    AttentionPool: attention_pools,
    FixedLength: st.builds(FixedLength, stack=stacks, positions=st.integers(2, 40)),
    Griffin: griffins,
    Head: heads,
    Indexer: indexers,
    Laurel: laurels,
    LayerInput: st.builds(LayerInput, d_model=sizes, width=sizes, activation=activations),
    LayerInputs: layer_inputs,
    LatentAttention: latent_attentions,
    LinearAttention: linear_attentions,
    Mamba: mambas,
    Mamba2: mamba2s,
    ForgettingAttention: forgetting_attentions,
    CompressedAttention: compressed_attentions,
    Compressor: compressors,
    Selector: selectors,
    HyperConnection: hyper_connections,
    Hyena: hyenas,
    ImplicitFilter: implicit_filters,
    RecurrentCell: recurrent_cells,
    ShortConvolution: short_convolutions,
    Stack: stacks,
    Projector: projectors,
    TimeMix: time_mixes,
    TowerStack: st.builds(TowerStack, stack=stacks, projector=projectors, dropped=st.integers(0, 2)),
    TimeConvolution: time_convolutions,
    StreamEnds: stream_ends,
    Streams: streams,
    LowRank: st.builds(LowRank, base=linears, rank=sizes, keeps=st.sampled_from(["yes", "no"]), data=flags),
    Frozen: st.builds(Frozen, part=feed_forwards, adapters=maybe(st.builds(Adapters, sizes, st.just(("all",))))),
}

workloads = st.builds(
    Workload, st.integers(1, 4), st.integers(1, 40), st.integers(0, 40), st.integers(1, 40), flags, flags, flags, flags
)


def renumbered(part: Any, number: Callable[[int, int], Any]) -> Any:
    """The same part (or workload) with `number(i, value)` for the value of its i-th size.

    A size is an int in a field annotated `Any`; flags, strides and numbers of sums are structure.
    """
    return _renumbered(part, number, count())


def _renumbered(part: Any, number: Callable[[int, int], Any], places: count[int]) -> Any:
    if dataclasses.is_dataclass(part):
        kinds = {field.name: field.type for field in dataclasses.fields(part)}
    elif hasattr(part, "_fields"):
        kinds = {name: _written(kind) for name, kind in type(part).__annotations__.items()}
    elif isinstance(part, tuple):
        return tuple(_renumbered(item, number, places) for item in part)
    else:
        return part
    values = {}
    for name, kind in kinds.items():
        value = getattr(part, name)
        is_size = kind == "Any" and type(value) is int
        values[name] = number(next(places), value) if is_size else _renumbered(value, number, places)
    return type(part)(**values)


def _written(kind: Any) -> str:
    return kind.__forward_arg__ if isinstance(kind, ForwardRef) else str(kind)


# Descriptions: what a TOML file or a reader of configs gives to `build`.


@st.composite
def attention_tables(draw: st.DrawFn, window: bool = True, causal: bool = False) -> dict[str, Any]:
    groups = draw(st.integers(1, 4))
    table: dict[str, Any] = {
        "n_heads": groups * draw(st.integers(1, 4)),
        "d_head": draw(sizes),
        "bias": draw(flags | st.lists(st.sampled_from("qkvo"), unique=True)),
        "qk_norm": draw(st.sampled_from(["none", "head", "width"])),
        "sinks": draw(flags),
        "gate": draw(st.sampled_from(["none", "element", "head"])),
        "v_norm": draw(flags),
        "inner_norm": draw(flags),
    }
    if table["gate"] != "none":
        table["gate_activation"] = draw(st.sampled_from(["sigmoid", "softplus"]))
    table["tied_kv"] = table["bias"] is not True and "v" not in (table["bias"] or []) and draw(flags)
    if not table["tied_kv"]:
        table |= draw(st.fixed_dictionaries({}, optional={"d_v": sizes, "v_scale": st.just(0.5)}))
    if draw(flags):
        table["n_kv_heads"] = groups
    if window and draw(flags):
        table["window"] = draw(st.integers(1, 30))
        table["chunked"] = causal and draw(flags)
    return table


@st.composite
def latent_tables(draw: st.DrawFn) -> dict[str, Any]:
    table: dict[str, Any] = {key: draw(sizes) for key in ("n_heads", "kv_rank", "d_nope", "d_rope", "d_v")}
    table |= {"bias": draw(flags), "gate": draw(st.sampled_from(["none", "element", "head"]))}
    if draw(flags):
        table["q_rank"] = draw(sizes)
        if draw(flags):
            table["index_width"] = table["d_rope"] + draw(st.integers(0, 7))
            table |= {"index_heads": draw(sizes), "index_top_k": draw(st.integers(1, 30))}
            table["index_interleaved"] = draw(flags)
    return table


feed_forward_tables = st.fixed_dictionaries(
    {"d_ff": sizes, "gated": flags},
    optional={
        "activation": activations | st.just("xielu"),
        "bias": flags,
        "down_bias": flags,
        "inner_norm": flags,
    },
)


@st.composite
def expert_tables(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(1, 8))
    scoring = draw(st.sampled_from(["softmax", "sigmoid"]))
    return {
        "n_experts": number,
        "top_k": draw(st.integers(1, number)),
        "d_ff": draw(sizes),
        "gated": draw(flags),
        "bias": draw(flags),
        "router_bias": draw(flags),
        "n_shared": draw(st.integers(0, 2)),
        "shared_gate": draw(flags),
        "scoring": scoring,
        "correction": scoring == "sigmoid" and draw(flags),
        **({"latent": draw(sizes)} if draw(flags) else {}),
    }


mamba_tables = st.fixed_dictionaries(
    {"norms": flags, "bias": flags, "conv_bias": flags},
    optional={"d_inner": sizes, "d_state": sizes, "d_conv": sizes, "dt_rank": sizes},
)


@st.composite
def mamba2_tables(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(1, 3))
    return {
        "n_heads": number * draw(st.integers(1, 3)),
        "n_groups": number,
        "d_head": draw(sizes),
        "d_state": draw(sizes),
        "bias": draw(flags),
        "norm": draw(flags),
    }


@st.composite
def delta_tables(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(st.integers(1, 3))
    table: dict[str, Any] = {
        "n_heads": number * draw(st.integers(1, 3)),
        "n_key_heads": number,
        "d_key": draw(sizes),
        "d_value": draw(sizes),
        "decay": draw(st.sampled_from(["head", "channel"])),
        "gate": draw(st.sampled_from(["silu", "sigmoid"])),
        "signed": draw(flags),
    }
    optional = {"rank": sizes, "bound": st.just(-5.0), "d_conv": sizes}
    return table | draw(st.fixed_dictionaries({}, optional=optional))


@st.composite
def norm_tables(draw: st.DrawFn) -> dict[str, Any]:
    table: dict[str, Any] = {
        "form": draw(st.sampled_from(["rms", "layer"])),
        "place": draw(st.sampled_from(["pre", "post", "after", "sandwich"])),
        "parallel": draw(st.sampled_from(["no", "shared", "separate"])),
        "final": draw(flags),
    }
    if table["place"] == "pre":
        table["after"] = draw(st.lists(st.sampled_from(["attention", "feed_forward", "experts"]), unique=True))
    if table["form"] == "layer":
        table |= {key: draw(flags) for key in ("bias", "final_bias", "qk_bias")}
    return table


position_tables = st.sampled_from(
    [{"form": form} for form in ("rotary", "sinusoidal", "alibi", "none")] + [{"form": "learned", "rows": 64}]
)


@st.composite
def channel_tables(draw: st.DrawFn) -> dict[str, Any]:
    """A feed-forward or experts."""
    return draw(
        st.fixed_dictionaries({"feed_forward": feed_forward_tables})
        | st.fixed_dictionaries({"experts": expert_tables()})
    )


MIXERS = {
    "mamba": mamba_tables,
    "mamba2": mamba2_tables(),
    "delta": delta_tables(),
    "rg_lru": st.fixed_dictionaries({"n_heads": sizes, "d_head": sizes}, optional={"bias": flags, "conv_bias": flags}),
    "linear_attention": st.fixed_dictionaries(
        {"n_heads": sizes, "d_head": sizes}, optional={"activation": activations}
    ),
    "time_mix": st.fixed_dictionaries({}, optional={"d_inner": sizes}),
    "hyena": st.fixed_dictionaries(
        {}, optional={"form": st.sampled_from(["fft", "direct"]), "features": sizes, "width": sizes, "taps": sizes}
    )
    | st.fixed_dictionaries({"states": sizes}, optional={"form": st.sampled_from(["fft", "recurrent"])}),
    "rnn": st.fixed_dictionaries({}, optional={"form": cell_forms, "d_hidden": sizes, "biases": st.integers(0, 2)}),
    "forgetting": st.fixed_dictionaries({"n_heads": sizes, "d_head": sizes}),
    "latent": latent_tables(),
}
CHANNELS = {
    "feed_forward": feed_forward_tables,
    "experts": expert_tables(),
    "channel_mix": st.fixed_dictionaries({"d_ff": sizes}),
}


@st.composite
def decoders(draw: st.DrawFn, mixers: tuple[str, ...] = ("attention", *MIXERS), window: bool = True) -> dict[str, Any]:
    """Decoder-only models: layers of one or several kinds, each a mixer and perhaps a feed-forward or experts."""
    kinds = {
        kind: (draw(st.sampled_from(mixers)), draw(st.sampled_from([*CHANNELS, None])))
        for kind in draw(st.sampled_from(["a", "ab", "abc"]))
    }
    raw: dict[str, Any] = {
        "kind": "decoder",
        "d_model": draw(sizes),
        "pattern": draw(st.permutations([draw(st.sampled_from(["", "2*", "3*"])) + kind for kind in kinds])),
        "n_layers": 9,
        "norm": draw(norm_tables()),
        "positions": draw(position_tables),
        "head": {"bias": draw(flags)},
        "shared_layers": draw(flags),
        "layer": {},
    }
    if any(mixer == "latent" for mixer, _ in kinds.values()) and raw["positions"]["form"] == "alibi":
        raw["positions"] = {"form": "none"}
    if draw(st.integers(0, 3)):
        raw |= {"vocab_size": draw(sizes), "head": {"bias": draw(flags), "tied": draw(flags)}}
    for channel in {channel for _, channel in kinds.values() if channel}:
        raw[channel] = draw(CHANNELS[channel])
    for kind, (mixer, beside) in kinds.items():
        part = "attention" if mixer == "latent" else mixer
        tables = attention_tables(window, causal=True) if mixer == "attention" else MIXERS[mixer]
        raw["layer"][kind] = {"parts": [part, beside] if beside else [part], mixer: draw(tables)}
        if "index_heads" in raw["layer"][kind].get("latent", {}):
            raw["positions"] = {"form": "rotary"}
    return raw


# Beside a relative bias, a learned table; of rotary positions, the sinusoids.
TABLED = [{"form": "relative", "buckets": 8}, {"form": "relative", "rows": 64}, {"form": "rotary", "rows": 64}]


@st.composite
def encoders(draw: st.DrawFn) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "kind": "encoder",
        "d_model": draw(sizes),
        "n_layers": draw(st.integers(1, 3)),
        "vocab_size": draw(sizes),
        "attention": draw(attention_tables(window=False)),
        **draw(channel_tables()),
        "norm": draw(norm_tables()),
        "positions": draw(position_tables | st.sampled_from(TABLED)),
        "embedding": draw(
            st.fixed_dictionaries(
                {"norm": flags},
                optional={
                    "types": sizes,
                    "rank": sizes,
                    "scale": st.just(2.0),
                    "tables": st.lists(st.tuples(sizes, sizes).map(list), max_size=2),
                },
            )
        ),
        "head": draw(
            st.sampled_from([{"form": "masked-lm", "tied": True}, {"form": "masked-lm"}, {"form": "none"}])
            | st.just({"form": "none", "pooler": True})
            | st.just({"form": "classifier", "classes": 3})
            | st.just({"form": "masked-lm", "activation": "relu"})
            | st.fixed_dictionaries(
                {"form": st.just("masked-lm"), "plain": st.just(True), "tied": flags, "bias": flags}
            )
        ),
    }
    if "plain" in raw["head"]:  # it is as wide as the model
        raw["embedding"].pop("rank", None)
    elif raw["head"]["form"] == "masked-lm" and "xielu" in raw.get("feed_forward", {}).values():
        raw["head"]["activation"] = "relu"  # its layer has no weights for the slopes of the other
    return raw


@st.composite
def disentangled_encoders(draw: st.DrawFn) -> dict[str, Any]:
    """Encoders whose distances have products of their own, one with a convolution in its first layer."""
    reach = draw(st.integers(1, 40))
    terms = draw(st.sampled_from([["c2p", "p2c"], ["c2p"], ["p2c"]]))
    shared = len(terms) == 2 and draw(flags)
    raw: dict[str, Any] = draw(encoders())
    raw["attention"] = {"n_heads": draw(sizes), "d_head": draw(sizes), "bias": draw(flags)}
    raw["positions"] = {
        "form": "disentangled",
        "rows": 2 * reach,
        "distance": reach,
        "clipped": draw(flags),
        "terms": terms,
        "shared": shared,
        "norm": draw(flags),
        "bias": [] if shared else draw(st.sampled_from([[], ["q"], ["q", "k"]])),
    }
    if draw(flags):
        channel = "experts" if "experts" in raw else "feed_forward"
        first = {"parts": ["attention", channel, "convolution"]}
        kinds = {"first": first, "later": {}}
        raw |= {"convolution": {"taps": draw(st.sampled_from([1, 3, 5]))}, "n_layers": 3, "layer": kinds}
        raw["pattern"] = ["first", "2*later"]
    return raw


@st.composite
def encoder_decoders(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "kind": "encoder-decoder",
        "d_model": draw(sizes),
        "vocab_size": draw(sizes),
        "attention": draw(attention_tables(window=False)),
        **draw(channel_tables()),
        "norm": draw(norm_tables()),
        "positions": draw(position_tables | st.just({"form": "relative", "buckets": 8})),
        "head": {"tied": draw(flags)},
        "encoder": {"n_layers": draw(st.integers(1, 3))},
        "decoder": {"n_layers": draw(st.integers(1, 3))},
    }


@st.composite
def unlike_halves(draw: st.DrawFn) -> dict[str, Any]:
    """Halves of widths and tables of their own; some of the encoders look at pictures, and some pool them."""
    raw: dict[str, Any] = draw(encoder_decoders())
    width, vocabulary = raw.pop("d_model"), raw.pop("vocab_size")
    encoder = {"d_model": draw(sizes), "embedding": {"shared": False}, "head": {"form": "none", "pooler": draw(flags)}}
    if draw(flags):
        patch = draw(st.integers(1, 4))
        encoder["vision"] = {"image": patch * draw(st.integers(1, 3)), "patch": patch, "class_token": draw(flags)}
        encoder["positions"] = {"form": "learned"}
    else:
        encoder["vocab_size"] = draw(sizes)
    raw["encoder"] |= encoder
    raw["decoder"] |= {"d_model": width, "vocab_size": vocabulary}
    return raw


@st.composite
def visions(draw: st.DrawFn) -> dict[str, Any]:
    patch = draw(st.integers(1, 6))
    return {
        "kind": "vision",
        "d_model": draw(sizes),
        "n_layers": draw(st.integers(1, 3)),
        "attention": draw(attention_tables(window=False)),
        "feed_forward": draw(feed_forward_tables),
        "norm": draw(norm_tables()),
        "positions": {"form": "learned"},
        "vision": {"image": patch * draw(st.integers(1, 4)), "patch": patch, "class_token": draw(flags)},
        "head": {"form": "classifier", "classes": draw(sizes)},
    }


@st.composite
def audios(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "kind": "audio",
        "d_model": draw(sizes),
        "vocab_size": draw(sizes),
        "attention": draw(attention_tables(window=False)),
        "feed_forward": draw(feed_forward_tables),
        "norm": draw(norm_tables()),
        "head": {"tied": draw(flags)},
        "encoder": {
            "n_layers": draw(st.integers(1, 3)),
            "audio": {"mels": draw(sizes), "positions": draw(sizes), "kernel": draw(st.integers(1, 5))},
            "positions": draw(st.sampled_from([{"form": "sinusoidal"}, {"form": "learned"}])),
        },
        "decoder": {"n_layers": draw(st.integers(1, 3)), "positions": {"form": "learned", "rows": 64}},
    }


FAMILIES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "decoder": decoders(),
    "encoder": encoders() | disentangled_encoders(),
    "encoder-decoder": encoder_decoders() | unlike_halves(),
    "vision": visions(),
    "audio": audios(),
}
descriptions = st.one_of(*FAMILIES.values())
