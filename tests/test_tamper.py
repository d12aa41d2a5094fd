"""The pinned numbers of every leaf and composite, worked out by hand; and the proof that they notice a change.

Sizes are different primes, so that no two formulas agree by accident. Each row is checked as it is, and again with
every formula behind it doubled, every operation's every number changed, and every child dropped: it must go red.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from fractions import Fraction
from typing import Any

import pytest
from strategies import COMPOSITES, LEAVES

from txcalc.ledger import walk
from txcalc.parts.adapters import Frozen, LowRank
from txcalc.parts.attention import Attention
from txcalc.parts.block import Block, Branch, Laurel, Mix, Streams
from txcalc.parts.cells import Cell, RecurrentCell
from txcalc.parts.collectives import AllGather, AllReduce, AllToAll, Axis, Receive, ReduceScatter, Send
from txcalc.parts.convolution import (
    Fourier,
    Product,
    ShortConvolution,
    SpanAttention,
    SpanCore,
    SpanProduct,
    TimeConvolution,
    Transform,
)
from txcalc.parts.cores import AttentionCore, DifferentialCore, DynamicMask, Gate
from txcalc.parts.delta import DeltaNet, DeltaRule
from txcalc.parts.disentangled import DisentangledAttention, DisentangledCore, DistanceTable
from txcalc.parts.drafts import DraftAttention, Features
from txcalc.parts.embedding import Embedding, Patches
from txcalc.parts.feedforward import Experts, FeedForward, LayerInput
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
from txcalc.parts.mixers.pieces import Filter, MatrixProduct, Pieces, Scores
from txcalc.parts.model import EncoderDecoder, FixedLength, Join, LayerGroup, LayerInputs, Memory, Stack, StreamEnds
from txcalc.parts.norm import Norm
from txcalc.parts.options import pieces
from txcalc.parts.part import COST, Cache, Leaf, MatMul, Workload
from txcalc.parts.pooling import AttentionPool
from txcalc.parts.positions import RelativeBias, Rotary
from txcalc.parts.recurrent import GatedRecurrence, Griffin, HeadScan, Mamba, Mamba2, SelectiveScan
from txcalc.parts.routed import ChosenExperts, RoutedAttention
from txcalc.parts.rwkv import ChannelMix, TimeMix, TokenShift, WeightedSum
from txcalc.parts.shared import SharedBlock
from txcalc.parts.spans import Causal, Cross, Full, Reading, Selected, Window
from txcalc.parts.taps import Convolution
from txcalc.parts.tower import Counted, Projector, ProjectorStep, Tower

# 2 sequences of 3 new tokens after 5 cached ones: 6 rows, 8 keys, 3·5 + 1 + 2 + 3 = 21 visible pairs; 14 source rows.
WORK = Workload(2, 3, 5, 7)
EAGER = WORK._replace(keep_scores=True)
ABSORBED = WORK._replace(absorbed=True)
PROMPT = Workload(2, 3, 0, 7)
STEP = Workload(5, 1, 3, 7)
TP = Axis("tp", 5)


def figures(part: Any, work: Workload) -> dict[str, Any]:
    """Every quantity that is not zero; traffic is (weights, activations, cache), cache (growth, constant, held)."""
    ledger = walk(part, work)
    moved = [entry.traffic for entry in ledger]
    sums = ("params", "active", "flops", "flops_masked", "flops_other", "saved", "sent")
    found = {name: ledger.total(name) for name in sums}
    found["received"] = sum(each.received * entry.runs for entry in ledger for each in entry.transfers)
    found["traffic"] = tuple(sum(column) for column in zip(*moved, strict=True))
    found["cache"] = tuple(ledger.cache_terms)
    return {name: value for name, value in found.items() if value not in (0, (0, 0, 0))}


def row(part: Any, work: Workload = WORK, **pinned: Any) -> Any:
    """What is not given: all parameters active, no mask, nothing else."""
    if "params" in pinned:
        pinned.setdefault("active", pinned["params"])
    if "flops" in pinned:
        pinned.setdefault("flops_masked", pinned["flops"])
    return part, work, pinned


def relu(width: int) -> FeedForward:
    return FeedForward(d_model=11, d_ff=width, gated=False, activation="relu", bias=False)


def relu_block(width: int) -> Block:
    return Block(d_model=11, branches=(Branch("x", relu(width), None, None, None),))


EXPERTS = Experts(
    d_model=11,
    n_experts=7,
    top_k=2,
    expert=relu(13),
    router=Linear(d_in=11, d_out=7, bias=False),
    shared=relu(5),
    shared_gate=Linear(d_in=11, d_out=1, bias=False),
)
RMS = Norm(width=11, form="rms", bias=False, eps=0)

KEY_NORM = Norm(width=13, form="layer", bias=True, eps=0, keeps=False)
INDEXER = Indexer(
    d_model=11,
    q_rank=7,
    n_heads=4,
    width=13,
    key_norm=KEY_NORM,
    rotary=Rotary(heads=5, dims=2, theta=0, width=13),
    core=IndexCore(n_heads=4, width=13, span=Causal()),
)
COMPRESSED = CompressedCore(
    n_heads=4, n_kv_heads=1, d_qk=5, d_v=5, span=Window(window=4), entries=Entries(rate=2, top_k=2)
)
COMPRESSOR = Compressor(
    d_model=11,
    pool=Pool(width=5, rate=2, overlap=True),
    norm=Norm(width=5, form="rms", bias=False, eps=1e-6),
    rotary=Rotary(heads=1, dims=4, theta=10.0, width=4),
)
FORGETTING = ForgettingCore(n_heads=4, n_kv_heads=2, d_qk=5, d_v=5, span=Causal())
ROWS = {
    # 7 frequencies, of 6 positions; the decay is fixed and keeps nothing
    "sine": row(Sine(width=7), params=7, flops_other=2 * 6 * 7, traffic=(7, 2 * 6 * 7, 0), saved=2 * 6 * 7),
    "decay": row(Decay(width=7), flops_other=3 * 6 * 7, traffic=(0, 2 * 6 * 7, 0)),
    # 11 → 13
    "linear": row(
        Linear(d_in=11, d_out=13, bias=False), params=143, flops=2 * 6 * 143, traffic=(143, 6 * 24, 0), saved=66
    ),
    "linear, bias": row(
        Linear(d_in=11, d_out=13, bias=True),
        params=156,
        flops=2 * 6 * 143,
        flops_other=78,
        traffic=(156, 6 * 24, 0),
        saved=66,
    ),
    "linear, tied": row(
        Linear(d_in=11, d_out=13, bias=False, tied=True), flops=2 * 6 * 143, traffic=(143, 6 * 24, 0), saved=66
    ),
    "linear, borrowed": row(
        Linear(d_in=11, d_out=13, bias=True, borrowed=True),
        flops=2 * 6 * 143,
        flops_other=78,
        traffic=(156, 6 * 24, 0),
        saved=66,
    ),
    "linear, input kept elsewhere": row(
        Linear(d_in=11, d_out=13, bias=False, keeps="no"), params=143, flops=1716, traffic=(143, 144, 0)
    ),
    "linear, after a fused kernel": row(
        Linear(d_in=11, d_out=13, bias=False, keeps="eager"), params=143, flops=1716, traffic=(143, 144, 0)
    ),
    "linear, after the matrix": row(
        Linear(d_in=11, d_out=13, bias=False, keeps="eager"),
        EAGER,
        params=143,
        flops=1716,
        traffic=(143, 144, 0),
        saved=66,
    ),
    # 11 rows of 13
    "lookup": row(Lookup(rows=11, width=13), params=143, traffic=(78, 78, 0)),
    "lookup, added": row(Lookup(rows=11, width=13, added=True), params=143, flops_other=78, traffic=(78, 78, 0)),
    "lookup, tied": row(Lookup(rows=11, width=13, tied=True), traffic=(78, 78, 0)),
    # 11 wide
    "rms": row(RMS, params=11, flops_other=4 * 66, traffic=(11, 132, 0), saved=66),
    "layer norm": row(
        Norm(width=11, form="layer", bias=True, eps=0), params=22, flops_other=7 * 66, traffic=(22, 132, 0), saved=66
    ),
    "layer norm, no bias": row(
        Norm(width=11, form="layer", bias=False, eps=0), params=11, flops_other=6 * 66, traffic=(11, 132, 0), saved=66
    ),
    "norm of 5 heads": row(
        Norm(width=11, form="rms", bias=False, eps=0, groups=5),
        params=11,
        flops_other=4 * 330,
        traffic=(11, 660, 0),
        saved=330,
    ),
    "norm apart": row(
        Norm(width=11, form="rms", bias=False, eps=0, groups=5, apart=True),
        params=55,
        flops_other=4 * 330,
        traffic=(55, 660, 0),
        saved=330,
    ),
    "norm, no weight": row(
        Norm(width=11, form="rms", bias=False, eps=0, weighted=False), flops_other=4 * 66, traffic=(0, 132, 0), saved=66
    ),
    "layer scale": row(LayerScale(width=11), params=11, flops_other=66, traffic=(11, 132, 0), saved=66),
    "gelu": row(Activation(width=11, form="gelu", gated=False), flops_other=5 * 66, traffic=(0, 132, 0), saved=66),
    "relu": row(Activation(width=11, form="relu", gated=False), flops_other=66, traffic=(0, 132, 0), saved=66),
    "silu, gated": row(
        Activation(width=11, form="silu", gated=True), flops_other=5 * 66, traffic=(0, 132 + 198, 0), saved=3 * 66
    ),
    "xielu": row(
        Activation(width=11, form="xielu", gated=False), params=2, flops_other=6 * 66, traffic=(2, 132, 0), saved=66
    ),
    "relu, gated": row(
        Activation(width=11, form="relu", gated=True), flops_other=2 * 66, traffic=(0, 330, 0), saved=2 * 66
    ),
    # 11 → 13 channels, 5 taps, two steps in for one out
    "convolution": row(
        Convolution(c_in=11, c_out=13, taps=5, bias=True, depthwise=False, causal=False, stride=2),
        params=5 * 143 + 13,
        flops=2 * 6 * 5 * 143,
        flops_other=78,
        traffic=(5 * 143 + 13, 6 * (22 + 13), 0),
        saved=132,
    ),
    "convolution of a mixer": row(
        Convolution(c_in=11, c_out=11, taps=5, bias=False, depthwise=True, causal=True),
        params=55,
        flops=2 * 6 * 55,
        traffic=(55, 6 * 22, 0),
        saved=66,
        cache=(0, 55, 55),
    ),
    # 3 channels, squares of 5 × 5, 11 wide
    "patches": row(
        Patches(channels=3, size=5, width=11),
        params=75 * 11 + 11,
        flops=2 * 6 * 75 * 11,
        flops_other=66,
        traffic=(75 * 11 + 11, 6 * (75 + 11), 0),
        saved=6 * 75,
    ),
    "two sums": row(Sum(width=11, sums=2), flops_other=132, traffic=(0, 3 * 132, 0)),
    "norm of what a kernel keeps": row(
        Norm(width=11, form="rms", bias=False, eps=0, fused=True), params=11, flops_other=264, traffic=(11, 132, 0)
    ),
    "feed-forward, a norm before down": row(
        FeedForward(
            d_model=11,
            d_ff=13,
            gated=False,
            activation="relu",
            bias=False,
            inner_norm=Norm(width=13, form="rms", bias=False, eps=0),
        ),
        params=286 + 13,
        flops=2 * 6 * 286,
        flops_other=6 * (13 + 52),
        traffic=(286 + 13, 6 * (2 * 24 + 26 + 26), 0),
        saved=6 * (11 + 13 + 13),
    ),
    "unused": row(Unused(d_in=11, d_out=13), params=156),
    "unused table": row(Unused(d_in=11, d_out=13, bias=False), params=143),
    "vector": row(Vector(width=11), params=11),
    "memory": row(Memory(width=11), saved=66),
    # 5 heads of 11, of which one rotates 4
    "rotary": row(Rotary(heads=5, dims=4, theta=0, width=11), flops_other=3 * 120, traffic=(0, 240, 0)),
    "relative bias": row(RelativeBias(buckets=11, n_heads=5, distance=0, bidirectional=True), params=55),
    # 6 query heads, 2 key/value heads; 11 wide, values 13
    "core": row(
        AttentionCore(n_heads=6, n_kv_heads=2, d_qk=11, d_v=13, span=Causal()),
        flops=2 * 12 * 3 * 8 * 24,
        flops_masked=2 * 12 * 21 * 24,
        flops_other=5 * 12 * 24,
        traffic=(0, 6 * 6 * 24, 2 * 2 * 8 * 24),
        saved=6 * 6 * 11 + 16 * 2 * 24 + 6 * 6 * 13,
        cache=(48, 0, 8 * 48),
    ),
    "core, matrix kept, sinks, bias": row(
        AttentionCore(n_heads=6, n_kv_heads=2, d_qk=11, d_v=13, span=Causal(), sinks=True, biased=True),
        EAGER,
        params=6,
        flops=2 * 12 * 3 * 8 * 24,
        flops_masked=2 * 12 * 21 * 24,
        flops_other=6 * 12 * 24,
        traffic=(6, 6 * 6 * 24, 2 * 2 * 8 * 24),
        saved=6 * 6 * 11 + 16 * 2 * 24 + 12 * 3 * (8 + 1),
        cache=(48, 0, 8 * 48),
    ),
    "core, matrix kept, soft cap": row(  # the scores before and after
        AttentionCore(n_heads=6, n_kv_heads=2, d_qk=11, d_v=13, span=Causal(), softcap=50.0),
        EAGER,
        flops=2 * 12 * 3 * 8 * 24,
        flops_masked=2 * 12 * 21 * 24,
        flops_other=6 * 12 * 24,
        traffic=(0, 6 * 6 * 24, 2 * 2 * 8 * 24),
        saved=6 * 6 * 11 + 16 * 2 * 24 + 2 * 12 * 24,
        cache=(48, 0, 8 * 48),
    ),
    "core, keys and values of another layer": row(
        AttentionCore(n_heads=6, n_kv_heads=2, d_qk=11, d_v=13, span=Causal(), borrowed=True),
        flops=2 * 12 * 3 * 8 * 24,
        flops_masked=2 * 12 * 21 * 24,
        flops_other=5 * 12 * 24,
        traffic=(0, 6 * 6 * 24, 2 * 2 * 8 * 24),
        saved=6 * 6 * 11 + 6 * 6 * 13,
    ),
    "differential core": row(  # twice 6 heads of 11, on twice 2 key/value heads; 3 a result
        DifferentialCore(n_heads=6, n_kv_heads=2, d_qk=11, d_v=11, span=Causal()),
        params=44,
        flops=2 * 24 * 3 * 8 * 22,
        flops_masked=2 * 24 * 21 * 22,
        flops_other=5 * 24 * 24 + 3 * 6 * 66,
        traffic=(44, 2 * 2 * 6 * 66 + 3 * 2 * 6 * 66, 2 * 2 * 2 * 2 * 8 * 11),
        saved=4 * 6 * 66 + 16 * 2 * 22,
        cache=(44, 0, 8 * 44),
    ),
    "differential core, matrix kept": row(
        DifferentialCore(n_heads=6, n_kv_heads=2, d_qk=11, d_v=11, span=Causal()),
        EAGER,
        params=44,
        flops=2 * 24 * 3 * 8 * 22,
        flops_masked=2 * 24 * 21 * 22,
        flops_other=5 * 24 * 24 + 3 * 6 * 66,
        traffic=(44, 2 * 2 * 6 * 66 + 3 * 2 * 6 * 66, 2 * 2 * 2 * 2 * 8 * 11),
        saved=3 * 6 * 66 + 16 * 2 * 22 + 2 * 12 * 24,
        cache=(44, 0, 8 * 44),
    ),
    "core with distances": row(
        AttentionCore(n_heads=6, n_kv_heads=2, d_qk=11, d_v=13, span=Causal(), distances=True),
        flops=2 * 12 * 3 * 8 * (11 + 24),
        flops_masked=2 * 12 * 21 * (11 + 24),
        flops_other=5 * 12 * 24,
        traffic=(0, 6 * 6 * 24 + 12 * 8 * 11, 2 * 2 * 8 * 24),
        saved=6 * 6 * 11 + 16 * 2 * 24 + 6 * 6 * 13 + 16 * 6 * 11,
        cache=(48, 0, 8 * 48),
    ),
    "core, window of 4": row(  # the first new token sees 3 cached ones: 6 keys; 4 pairs a token
        AttentionCore(n_heads=6, n_kv_heads=2, d_qk=11, d_v=13, span=Window(window=4)),
        flops=2 * 12 * 3 * 6 * 24,
        flops_masked=2 * 12 * 12 * 24,
        flops_other=5 * 12 * 18,
        traffic=(0, 6 * 6 * 24, 2 * 2 * 6 * 24),
        saved=6 * 6 * 11 + 12 * 2 * 24 + 6 * 6 * 13,
        cache=(0, 4 * 48, 4 * 48),
    ),
    "core, window not yet full": row(
        AttentionCore(n_heads=6, n_kv_heads=2, d_qk=11, d_v=13, span=Window(window=23)),
        flops=2 * 12 * 3 * 8 * 24,
        flops_masked=2 * 12 * 21 * 24,
        flops_other=5 * 12 * 24,
        traffic=(0, 6 * 6 * 24, 2 * 2 * 8 * 24),
        saved=6 * 6 * 11 + 16 * 2 * 24 + 6 * 6 * 13,
        cache=(0, 23 * 48, 8 * 48),
    ),
    "core of an encoder": row(
        AttentionCore(n_heads=6, n_kv_heads=6, d_qk=11, d_v=13, span=Full()),
        PROMPT,
        flops=2 * 12 * 9 * 24,
        flops_other=5 * 12 * 9,
        traffic=(0, 6 * 6 * 24 + 2 * 6 * 3 * 24, 0),
        saved=6 * 6 * 11 + 6 * 6 * 24 + 6 * 6 * 13,
    ),
    "core across": row(
        AttentionCore(n_heads=6, n_kv_heads=2, d_qk=11, d_v=13, span=Cross()),
        flops=2 * 12 * 21 * 24,
        flops_other=5 * 12 * 21,
        traffic=(0, 6 * 6 * 24, 2 * 2 * 7 * 24),
        saved=6 * 6 * 11 + 14 * 2 * 24 + 6 * 6 * 13,
        cache=(0, 7 * 48, 7 * 48),
    ),
    # 6 heads, latent 17, unrotated 5, rotated 2, values 13
    "latent core": row(
        LatentCore(n_heads=6, kv_rank=17, d_nope=5, d_rope=2, d_v=13, span=Causal()),
        flops=2 * 12 * 24 * 20,
        flops_masked=2 * 12 * 21 * 20,
        flops_other=5 * 12 * 24,
        traffic=(0, 6 * 6 * 20 + 12 * 8 * 20, 2 * 8 * 19),
        saved=6 * 6 * 7 + 16 * 6 * 20 + 6 * 6 * 13,
        cache=(19, 0, 8 * 19),
    ),
    "latent core, matrix kept": row(
        LatentCore(n_heads=6, kv_rank=17, d_nope=5, d_rope=2, d_v=13, span=Causal()),
        EAGER,
        flops=2 * 12 * 24 * 20,
        flops_masked=2 * 12 * 21 * 20,
        flops_other=5 * 12 * 24,
        traffic=(0, 6 * 6 * 20 + 12 * 8 * 20, 2 * 8 * 19),
        saved=6 * 6 * 7 + 16 * 6 * 20 + 12 * 24,
        cache=(19, 0, 8 * 19),
    ),
    "latent core with sinks, matrix kept": row(
        LatentCore(n_heads=6, kv_rank=17, d_nope=5, d_rope=2, d_v=13, span=Causal(), sinks=True),
        EAGER,
        params=6,
        flops=2 * 12 * 24 * 20,
        flops_masked=2 * 12 * 21 * 20,
        flops_other=5 * 12 * 24,
        traffic=(6, 6 * 6 * 20 + 12 * 8 * 20, 2 * 8 * 19),
        saved=6 * 6 * 7 + 16 * 6 * 20 + 12 * 24 + 36,
        cache=(19, 0, 8 * 19),
    ),
    "latent core, absorbed": row(
        LatentCore(n_heads=6, kv_rank=17, d_nope=5, d_rope=2, d_v=13, span=Causal()),
        ABSORBED,
        flops=2 * 12 * 24 * (19 + 17),
        flops_masked=2 * 12 * 21 * (19 + 17),
        flops_other=5 * 12 * 24,
        traffic=(0, 6 * 6 * (19 + 17), 2 * 8 * 19),
        saved=6 * 6 * 7 + 16 * 6 * 20 + 6 * 6 * 13,
        cache=(19, 0, 8 * 19),
    ),
    # 7 keys a query: 6, 7 and 7
    "latent core, keys selected": row(
        LatentCore(n_heads=6, kv_rank=17, d_nope=5, d_rope=2, d_v=13, span=Selected(top_k=7)),
        flops=2 * 12 * 24 * 20,
        flops_masked=2 * 12 * 20 * 20,
        flops_other=5 * 12 * 24,
        traffic=(0, 6 * 6 * 20 + 12 * 8 * 20, 2 * 8 * 19),
        saved=6 * 6 * 7 + 16 * 6 * 20 + 6 * 6 * 13,
        cache=(19, 0, 8 * 19),
    ),
    # 3 queries read 6 latents of 8 at most
    "latent core, keys selected, absorbed": row(
        LatentCore(n_heads=6, kv_rank=17, d_nope=5, d_rope=2, d_v=13, span=Selected(top_k=2)),
        ABSORBED,
        flops=2 * 12 * 24 * (19 + 17),
        flops_masked=2 * 12 * 6 * (19 + 17),
        flops_other=5 * 12 * 24,
        traffic=(0, 6 * 6 * (19 + 17), 2 * 6 * 19),
        saved=6 * 6 * 7 + 16 * 6 * 20 + 6 * 6 * 13,
        cache=(19, 0, 8 * 19),
    ),
    # 4 heads of 13
    "index core": row(
        IndexCore(n_heads=4, width=13, span=Causal()),
        flops=2 * 2 * 24 * 4 * 14,
        flops_masked=2 * 2 * 21 * 4 * 14,
        flops_other=2 * 4 * 24 + 6 * 4,
        traffic=(0, 6 * 4 * 13 + 6 * 4 + 6 * 8, 2 * 8 * 13),
        cache=(13, 0, 8 * 13),
    ),
    # 5 heads of 11, 13 distances on either side
    "disentangled core": row(
        DisentangledCore(n_heads=5, d_head=11, reach=13, distance=13, clipped=False, c2p=True, p2c=True),
        flops=2 * 10 * 3 * 11 * (3 + 3 + 26 + 26),
        flops_other=10 * 9 * (5 + 1 + 1),
        traffic=(0, 4 * 330 + 2 * (330 + 5 * 26 * 11 + 10 * 3 * 26), 0),
        saved=3 * 330 + 2 * (330 + 30 * 26) + 330,
    ),
    "disentangled core, the matrix kept": row(
        DisentangledCore(n_heads=5, d_head=11, reach=13, distance=13, clipped=False, c2p=True, p2c=True),
        EAGER,
        flops=2 * 10 * 3 * 11 * (3 + 3 + 26 + 26),
        flops_other=10 * 9 * (5 + 1 + 1),
        traffic=(0, 4 * 330 + 2 * (330 + 5 * 26 * 11 + 10 * 3 * 26), 0),
        saved=3 * 330 + 2 * (330 + 30 * 26) + 90,
    ),
    "disentangled core, distances of 3 tokens": row(
        DisentangledCore(n_heads=5, d_head=11, reach=13, distance=13, clipped=True, c2p=False, p2c=True),
        flops=2 * 10 * 3 * 11 * (3 + 3 + 6),
        flops_other=10 * 9 * (5 + 1),
        traffic=(0, 4 * 330 + 330 + 5 * 6 * 11 + 10 * 3 * 6, 0),
        saved=3 * 330 + 330 + 30 * 6 + 330,
    ),
    # 11 channels, 5 states
    "scan": row(
        SelectiveScan(channels=11, states=5),
        params=66,
        flops_other=6 * 11 * (8 * 5 + 9),
        traffic=(66, 6 * (44 + 10), 2 * 2 * 55),
        saved=6 * (33 + 10 + 55),
        cache=(0, 55, 55),
    ),
    # 3 heads of 11, 1 group, 5 states
    "scan by heads": row(
        HeadScan(heads=3, width=11, groups=1, states=5),
        params=9,
        flops_other=6 * (33 * (5 * 5 + 3) + 3 * 5),
        traffic=(9, 6 * (66 + 10 + 3), 2 * 2 * 165),
        saved=6 * (33 * 6 + 3 + 10),
        cache=(0, 165, 165),
    ),
    # 3 heads of 7 on 1 of 5, 1 decay a head, or 5
    "delta rule": row(
        DeltaRule(n_heads=3, n_key_heads=1, d_key=5, d_value=7, decays=1),
        params=3 + 3,
        flops_other=6 * (105 * 7 + 21 * 2 + 5 * 7 + 3 * 3 + 3 * 5),
        traffic=(6, 6 * (10 + 42 + 3 + 3), 2 * 2 * 105),
        saved=6 * (21 * 6 + 10 + 3 + 3),
        cache=(0, 105, 105),
    ),
    "delta rule by channel": row(
        DeltaRule(n_heads=3, n_key_heads=1, d_key=5, d_value=7, decays=5, bound=-5),
        STEP,
        params=3 + 15,
        flops_other=5 * (105 * 7 + 21 * 2 + 5 * 7 + 3 * 3 + 15 * 7),
        traffic=(18, 5 * (10 + 42 + 15 + 3), 2 * 5 * 105),
        saved=5 * (21 * 6 + 10 + 3 + 15),
        cache=(0, 105, 105),
    ),
    "delta rule, signed": row(
        DeltaRule(n_heads=3, n_key_heads=1, d_key=5, d_value=7, decays=1, bound=None, signed=True),
        STEP,
        params=3 + 3,
        flops_other=5 * (105 * 7 + 21 * 2 + 5 * 7 + 3 * 4 + 3 * 5),
        traffic=(6, 5 * (10 + 42 + 3 + 3), 2 * 5 * 105),
        saved=5 * (21 * 6 + 10 + 3 + 3),
        cache=(0, 105, 105),
    ),
    "linear layers side by side": row(  # 3 of 5 by 5
        BlockLinear(n_heads=3, width=5),
        params=90,
        flops=2 * 6 * 75,
        flops_other=6 * 15,
        traffic=(90, 6 * 30, 0),
        saved=6 * 15,
    ),
    "linear layers side by side, their input kept elsewhere": row(
        BlockLinear(n_heads=3, width=5, keeps=False), params=90, flops=900, flops_other=90, traffic=(90, 180, 0)
    ),
    "linear layer in groups": row(  # 2 groups from 5 to 7
        GroupedLinear(groups=2, d_in=5, d_out=7, bias=True),
        params=70 + 14,
        flops=2 * 6 * 70,
        flops_other=84,
        traffic=(84, 6 * 24, 0),
        saved=60,
    ),
    "linear layer in groups, without a bias": row(
        GroupedLinear(groups=2, d_in=5, d_out=7, bias=False, keeps="no"),
        params=70,
        flops=840,
        traffic=(70, 144, 0),
    ),
    "gated recurrence": row(
        GatedRecurrence(channels=11),
        params=11,
        flops_other=6 * 11 * 16,
        traffic=(11, 6 * 44, 2 * 2 * 11),
        saved=6 * 55,
        cache=(0, 11, 11),
    ),
    "gated recurrence of 5 sequences": row(
        GatedRecurrence(channels=11),
        STEP,
        params=11,
        flops_other=5 * 176,
        traffic=(11, 220, 110),
        saved=275,
        cache=(0, 11, 11),
    ),
    "scan with a fixed decay": row(  # 3 heads of 5
        DecayScan(n_heads=3, d_head=5),
        flops_other=6 * 75 * 5,
        traffic=(0, 6 * 60, 2 * 2 * 75),
        saved=6 * 15 * 8,
        cache=(0, 75, 75),
    ),
    "scan with a fixed decay, of 5 sequences": row(
        DecayScan(n_heads=3, d_head=5), STEP, flops_other=5 * 375, traffic=(0, 300, 750), saved=600, cache=(0, 75, 75)
    ),
    "token shift": row(
        TokenShift(width=11, uses=("key", "value")),
        params=22,
        flops_other=6 * 66,
        traffic=(22, 6 * 33, 2 * 2 * 11),
        saved=6 * 22,
        cache=(0, 11, 11),
    ),
    "token shift of 5 sequences": row(
        TokenShift(width=11, uses=("key", "value")),
        STEP,
        params=22,
        flops_other=330,
        traffic=(22, 165, 110),
        saved=110,
        cache=(0, 11, 11),
    ),
    "weighted sum": row(
        WeightedSum(channels=11),
        params=22,
        flops_other=6 * 253,
        traffic=(22, 6 * 33, 2 * 2 * 33),
        saved=6 * 66,
        cache=(0, 33, 33),
    ),
    "weighted sum of 5 sequences": row(
        WeightedSum(channels=11),
        STEP,
        params=22,
        flops_other=5 * 253,
        traffic=(22, 165, 330),
        saved=330,
        cache=(0, 33, 33),
    ),
    "gate": row(  # 5 heads of 7
        Gate(n_heads=5, d_v=7, gates=7), flops_other=6 * 35 * (3 + 1), traffic=(0, 6 * 35 * (2 + 3), 0), saved=6 * 35
    ),
    "gate a head": row(
        Gate(n_heads=5, d_v=7, gates=1, form="softplus"),
        EAGER,
        flops_other=6 * (5 * 2 + 35),
        traffic=(0, 6 * (10 + 5 + 70), 0),
        saved=6 * 45,
    ),
    "scan of 5 sequences": row(
        SelectiveScan(channels=11, states=5),
        STEP,
        params=66,
        flops_other=5 * 11 * 49,
        traffic=(66, 5 * 54, 2 * 5 * 55),
        saved=5 * 98,
        cache=(0, 55, 55),
    ),
    "scan by heads, of 5 sequences": row(
        HeadScan(heads=3, width=11, groups=1, states=5),
        STEP,
        params=9,
        flops_other=5 * (33 * 28 + 15),
        traffic=(9, 5 * 79, 2 * 5 * 165),
        saved=5 * (33 * 6 + 13),
        cache=(0, 165, 165),
    ),
    # Composites: 11 wide, 13 inside.
    "feed-forward": row(
        FeedForward(d_model=11, d_ff=13, gated=False, activation="gelu", bias=True),
        params=2 * 143 + 24,
        flops=2 * 6 * 286,
        flops_other=6 * (13 + 5 * 13 + 11),
        traffic=(2 * 143 + 24, 6 * (2 * 24 + 26), 0),
        saved=6 * (11 + 13 + 13),
    ),
    "feed-forward, the last bias alone": row(
        FeedForward(d_model=11, d_ff=13, gated=False, activation="gelu", bias=False, down_bias=True),
        params=2 * 143 + 11,
        flops=2 * 6 * 286,
        flops_other=6 * (5 * 13 + 11),
        traffic=(2 * 143 + 11, 6 * (2 * 24 + 26), 0),
        saved=6 * (11 + 13 + 13),
    ),
    "feed-forward, relu": row(  # what relu keeps is what down would
        relu(13),
        params=286,
        flops=2 * 6 * 286,
        flops_other=6 * 13,
        traffic=(286, 6 * (2 * 24 + 26), 0),
        saved=6 * (11 + 13),
    ),
    "feed-forward, gated": row(
        FeedForward(
            d_model=11, d_ff=13, gated=True, activation="silu", bias=False, keeps_input=False
        ),  # its input kept by a parallel branch
        params=3 * 143,
        flops=2 * 6 * 3 * 143,
        flops_other=6 * 5 * 13,
        traffic=(3 * 143, 6 * (3 * 24 + 5 * 13), 0),
        saved=6 * 4 * 13,
    ),
    "experts": row(  # 7 of 143 · 2, 2 of them active, all of them read; one shared of 5; a router and a gate
        EXPERTS,
        params=77 + 7 * 286 + 11 + 110,
        active=77 + 2 * 286 + 11 + 110,
        flops=2 * 6 * (77 + 2 * 286 + 11 + 110),
        flops_other=6 * (2 * 13 + 5),
        traffic=(77 + 7 * 286 + 11 + 110, 6 * (18 + 2 * (2 * 24 + 26) + 12 + (2 * 16 + 10)), 0),
        saved=6 * (11 + 2 * 24 + 11 + 16),
    ),
    "experts, a router with its own norm": row(  # and factors: 2 of 7 a token
        Experts(
            d_model=11,
            n_experts=7,
            top_k=2,
            expert=relu(13),
            router=Linear(d_in=11, d_out=7, bias=False),
            shared=None,
            router_norm=Norm(width=11, form="rms", bias=False, eps=0, keeps=False),
            scales=Scale(rows=7, used=2),
            norm=RMS,
        ),
        params=11 + 77 + 7 + 11 + 7 * 286,
        active=11 + 77 + 7 + 11 + 2 * 286,
        flops=2 * 6 * (77 + 2 * 286),
        flops_other=6 * (44 + 2 + 44 + 2 * 13),
        traffic=(11 + 77 + 7 + 11 + 7 * 286, 6 * (22 + 18 + 4 + 22 + 2 * (2 * 24 + 26)), 0),
        saved=6 * (11 + 2 + 11 + 2 * 24),
    ),
    "experts, chosen by a stored correction": row(
        Experts(
            d_model=11,
            n_experts=7,
            top_k=2,
            expert=relu(13),
            router=Linear(d_in=11, d_out=7, bias=False),
            shared=None,
            scoring="sigmoid",
            correction=Vector(width=7),
        ),
        params=77 + 7 + 7 * 286,
        active=77 + 7 + 2 * 286,
        flops=2 * 6 * (77 + 2 * 286),
        flops_other=6 * 2 * 13,
        traffic=(77 + 7 * 286, 6 * (18 + 2 * (2 * 24 + 26)), 0),
        saved=6 * (11 + 2 * 24),
    ),
    "layer input": row(  # a gate to 5 and back
        LayerInput(d_model=11, width=5, activation="relu"),
        params=110,
        flops=2 * 6 * 110,
        flops_other=60,
        traffic=(110, 6 * (16 + 25 + 16), 0),
        saved=6 * (11 + 10 + 5),
    ),
    "layer inputs": row(  # 5 for each of 3 layers; 17 rows
        LayerInputs(
            width=5,
            count=3,
            tokens=Lookup(rows=17, width=15),
            projection=Linear(d_in=11, d_out=15, bias=False, keeps="no"),
            norm=Norm(width=5, form="rms", bias=False, eps=0, groups=3),
        ),
        params=255 + 165 + 5,
        flops=2 * 6 * 165,
        flops_other=6 * (30 + 60 + 30),
        traffic=(90 + 165 + 5, 6 * (15 + 90 + 26 + 30 + 90), 0),
        saved=6 * 15,
    ),
    "factors": row(Scale(rows=7, used=2), params=7, flops_other=12, traffic=(7, 24, 0), saved=12),
    "activation of a cut gate": row(
        Activation(width=13, form="silu", gated=True, sparsity=0.5),
        flops_other=78 * (6 + 4 + 1),
        traffic=(0, 78 * 7, 0),
        saved=78 * 4,
    ),
    "mix": row(
        Mix(width=11, number=3), flops=2 * 6 * 99, flops_other=198, traffic=(0, 6 * (75 + 99), 0), saved=6 * (33 + 9)
    ),
    "laurel": row(
        Laurel(d_model=11, rank=5, norm=RMS),
        params=121,
        flops=2 * 6 * 110,
        flops_other=6 * (44 + 33),
        traffic=(121, 6 * (16 + 16 + 22 + 99), 0),
        saved=6 * (5 + 11),
    ),
    "streams": row(  # 3 of them; norm, router and tanh twice
        Streams(width=11, number=3, active=1, norm=RMS),
        params=11 + 33 + 27 + 9 + 11,
        flops=2 * 6 * (2 * 33 + 27 + 99 + 9),
        flops_other=6 * (2 * (44 + 3) + 33 + 99 + 11),
        traffic=(22 + 66 + 27 + 9 + 11, 6 * (2 * (22 + 14 + 6) + 12 + 174 + 6 + 297 + 22), 0),
        saved=6 * (2 * (11 + 11 + 3) + 42 + 11),
    ),
    "ends of streams": row(
        StreamEnds(width=11, number=3, first=False),
        params=242,
        flops=2 * 6 * 242,
        flops_other=6 * 99,
        traffic=(242, 6 * (44 + 297), 0),
        saved=6 * 22,
    ),
    "beginnings of streams": row(
        StreamEnds(width=11, number=3, first=True),
        params=242,
        flops=2 * 6 * 242,
        flops_other=6 * 99,
        traffic=(242, 6 * (44 + 297), 0),
    ),
    "block of joint branches": row(
        Block(
            d_model=11,
            branches=(Branch("x", relu(3), None, None, None), Branch("y", relu(5), None, None, None)),
            joint=("x", "y"),
            joint_norm=RMS,
            scaled=True,
        ),
        params=66 + 110 + 11,
        flops=2 * 6 * 176,
        flops_other=6 * (3 + 5 + 44 + 22 + 11),
        traffic=(187, 6 * (34 + 42 + 22 + 66 + 33), 0),
        saved=6 * (14 + 16 + 11),
    ),
    "attention whose values are its keys": row(  # both normed; 6 heads of 5, 2 for keys
        Attention(
            d_model=11,
            n_heads=6,
            n_kv_heads=2,
            d_head=5,
            span=Causal(),
            biases=frozenset(),
            query_norm=None,
            key_norm=Norm(width=5, form="rms", bias=False, eps=0, groups=2),
            rotary=None,
            core=AttentionCore(n_heads=6, n_kv_heads=2, d_qk=5, d_v=5, span=Causal()),
            tied_kv=True,
            value_norm=Norm(width=5, form="rms", bias=False, eps=0, groups=2, weighted=False, keeps=False),
        ),
        params=330 + 110 + 5 + 330,
        flops=2 * 6 * 770 + 2 * 12 * 24 * 10,
        flops_masked=2 * 6 * 770 + 2 * 12 * 21 * 10,
        flops_other=6 * (40 + 40) + 5 * 12 * 24,
        traffic=(775, 6 * (41 + 21 + 20 + 20 + 60 + 41), 2 * 2 * 8 * 10),
        saved=6 * (11 + 10) + 6 * 30 + 16 * 20 + 6 * 30,
        cache=(20, 0, 160),
    ),
    "attention to another layer's keys": row(
        Attention(
            d_model=11,
            n_heads=6,
            n_kv_heads=2,
            d_head=5,
            span=Causal(),
            biases=frozenset(),
            query_norm=None,
            key_norm=None,
            rotary=None,
            core=AttentionCore(n_heads=6, n_kv_heads=2, d_qk=5, d_v=5, span=Causal(), borrowed=True),
            lender="a",
        ),
        params=660,
        flops=2 * 6 * 660 + 2 * 12 * 24 * 10,
        flops_masked=2 * 6 * 660 + 2 * 12 * 21 * 10,
        flops_other=5 * 12 * 24,
        traffic=(660, 6 * (41 + 60 + 41), 2 * 2 * 8 * 10),
        saved=6 * (11 + 30 + 30),
    ),
    "experts of one token": row(
        EXPERTS,
        Workload(1, 1, 5, 7),
        params=77 + 7 * 286 + 11 + 110,
        active=77 + 2 * 286 + 11 + 110,
        flops=2 * (77 + 2 * 286 + 11 + 110),
        flops_other=2 * 13 + 5,
        traffic=(77 + 2 * 286 + 11 + 110, 18 + 2 * (2 * 24 + 26) + 12 + (2 * 16 + 10), 0),
        saved=11 + 2 * 24 + 11 + 16,
    ),
    "experts on a latent": row(  # 7 of 5 · 13 · 2, 2 of them active, on a latent of 5
        Experts(
            d_model=11,
            n_experts=7,
            top_k=2,
            expert=FeedForward(d_model=5, d_ff=13, gated=False, activation="relu", bias=False),
            router=Linear(d_in=11, d_out=7, bias=False),
            shared=None,
            latent=5,
        ),
        params=77 + 110 + 7 * 130,
        active=77 + 110 + 2 * 130,
        flops=2 * 6 * (77 + 110 + 2 * 130),
        flops_other=6 * 2 * 13,
        traffic=(77 + 110 + 7 * 130, 6 * (18 + 32 + 2 * (2 * 18 + 26)), 0),
        saved=6 * (11 + 11 + 2 * (5 + 13) + 5),
    ),
    "attention": row(  # 6 heads of 5, 2 for keys and values; norms of a head, rotary, biases on q and k
        Attention(
            d_model=11,
            n_heads=6,
            n_kv_heads=2,
            d_head=5,
            span=Causal(),
            biases=frozenset("qk"),
            query_norm=Norm(width=5, form="rms", bias=False, eps=0, groups=6),
            key_norm=Norm(width=5, form="rms", bias=False, eps=0, groups=2),
            rotary=Rotary(heads=8, dims=4, theta=0, width=5),
            core=AttentionCore(n_heads=6, n_kv_heads=2, d_qk=5, d_v=5, span=Causal()),
        ),
        params=330 + 30 + 110 + 10 + 110 + 5 + 5 + 330,
        flops=2 * 6 * (330 + 110 + 110 + 330) + 2 * 12 * 24 * 10,
        flops_masked=2 * 6 * 880 + 2 * 12 * 21 * 10,
        flops_other=6 * (30 + 10 + 4 * 30 + 4 * 10 + 3 * 32) + 5 * 12 * 24,
        traffic=(930, 6 * (41 + 21 + 21 + 60 + 20 + 64 + 60 + 41), 2 * 2 * 8 * 10),
        saved=6 * (11 + 30 + 10) + 6 * 30 + 16 * 20 + 6 * 30,
        cache=(20, 0, 160),
    ),
    "gated attention": row(  # 2 heads of 5, each let through by a gate of its own
        Attention(
            d_model=11,
            n_heads=2,
            n_kv_heads=2,
            d_head=5,
            span=Causal(),
            biases=frozenset("g"),
            query_norm=None,
            key_norm=None,
            rotary=None,
            core=AttentionCore(n_heads=2, n_kv_heads=2, d_qk=5, d_v=5, span=Causal()),
            gate=Gate(n_heads=2, d_v=5, gates=1),
        ),
        params=440 + 24,
        flops=2 * 6 * (440 + 22) + 2 * 4 * 24 * 10,
        flops_masked=2 * 6 * 462 + 2 * 4 * 21 * 10,
        flops_other=6 * (2 + 2 * 3 + 10) + 5 * 4 * 24,
        traffic=(464, 6 * (4 * 21 + 13) + 6 * 20 + 6 * (4 + 22), 2 * 2 * 8 * 10),
        saved=6 * (11 + 10) + 16 * 20 + 6 * 10 + 6 * 2 + 6 * 10,
        cache=(20, 0, 160),
    ),
    "cross-attention": row(
        Attention(
            d_model=11,
            n_heads=2,
            n_kv_heads=2,
            d_head=5,
            span=Cross(),
            biases=frozenset(),
            query_norm=None,
            key_norm=None,
            rotary=None,
            core=AttentionCore(n_heads=2, n_kv_heads=2, d_qk=5, d_v=5, span=Cross()),
        ),
        params=440,
        flops=2 * (6 * 220 + 14 * 220) + 2 * 4 * 21 * 10,
        flops_other=5 * 4 * 21,
        traffic=(440, 6 * 21 + 14 * 42 + 6 * 21 + 6 * 20, 2 * 2 * 7 * 10),
        saved=66 + 6 * 10 + 14 * 20 + 6 * 10,
        cache=(0, 140, 140),
    ),
    "cross-attention of a width of 13": row(
        Attention(
            d_model=11,
            n_heads=2,
            n_kv_heads=2,
            d_head=5,
            span=Cross(),
            biases=frozenset(),
            query_norm=None,
            key_norm=None,
            rotary=None,
            core=AttentionCore(n_heads=2, n_kv_heads=2, d_qk=5, d_v=5, span=Cross()),
            d_memory=13,
        ),
        params=220 + 260,
        flops=2 * (6 * 220 + 14 * 260) + 2 * 4 * 21 * 10,
        flops_other=5 * 4 * 21,
        traffic=(480, 6 * 21 + 14 * 46 + 6 * 21 + 6 * 20, 2 * 2 * 7 * 10),
        saved=66 + 6 * 10 + 14 * 20 + 6 * 10,
        cache=(0, 140, 140),
    ),
    "latent attention": row(  # ranks 7 and 17
        LatentAttention(
            d_model=11,
            n_heads=6,
            q_rank=7,
            kv_rank=17,
            d_nope=5,
            d_rope=2,
            d_v=13,
            bias=False,
            norm_eps=0,
            rotary=Rotary(heads=7, dims=2, theta=0, width=2),
            core=LatentCore(n_heads=6, kv_rank=17, d_nope=5, d_rope=2, d_v=13, span=Causal()),
        ),
        params=77 + 7 + 294 + 209 + 17 + 17 * 108 + 858,
        flops=2 * 6 * (77 + 294 + 209 + 858) + 2 * 16 * 17 * 108 + 2 * 12 * 24 * 20,
        flops_masked=2 * 6 * 1438 + 2 * 16 * 1836 + 2 * 12 * 21 * 20,
        flops_other=6 * (28 + 68 + 3 * 14) + 5 * 12 * 24,
        traffic=(
            77 + 7 + 294 + 209 + 17 + 1836 + 858,
            6 * (18 + 14 + 49 + 30 + 34 + 28 + 89) + 16 * 125 + 6 * 6 * 20 + 12 * 8 * 20,
            2 * 8 * 19,
        ),
        saved=6 * (11 + 7 + 7 + 17) + 16 * 17 + 6 * 6 * 7 + 16 * 6 * 20 + 6 * 6 * 13,
        cache=(19, 0, 152),
    ),
    "indexer": row(  # 4 heads of 13
        INDEXER,
        params=364 + 143 + 26 + 44,
        flops=2 * 6 * (364 + 143 + 44) + 2 * 2 * 24 * 56,
        flops_masked=2 * 6 * (364 + 143 + 44) + 2 * 2 * 21 * 56,
        flops_other=7 * 78 + 3 * 60 + 192 + 24,
        traffic=(364 + 143 + 26 + 44, 6 * (59 + 24 + 26 + 15 + 20) + 312 + 24 + 48, 208),
        cache=(13, 0, 104),
    ),
    "latent attention, keys selected": row(
        LatentAttention(
            d_model=11,
            n_heads=6,
            q_rank=7,
            kv_rank=17,
            d_nope=5,
            d_rope=2,
            d_v=13,
            bias=False,
            norm_eps=0,
            rotary=Rotary(heads=7, dims=2, theta=0, width=2),
            core=LatentCore(n_heads=6, kv_rank=17, d_nope=5, d_rope=2, d_v=13, span=Selected(top_k=7)),
            indexer=INDEXER,
        ),
        params=77 + 7 + 294 + 209 + 17 + 17 * 108 + 858 + 577,
        flops=2 * 6 * (77 + 294 + 209 + 858) + 2 * 16 * 17 * 108 + 2 * 12 * 24 * 20 + 2 * 6 * 551 + 2 * 2 * 24 * 56,
        flops_masked=2 * 6 * 1438 + 2 * 16 * 1836 + 2 * 12 * 20 * 20 + 2 * 6 * 551 + 2 * 2 * 21 * 56,
        flops_other=6 * (28 + 68 + 3 * 14) + 5 * 12 * 24 + 942,
        traffic=(
            77 + 7 + 294 + 209 + 17 + 1836 + 858 + 577,
            6 * (18 + 14 + 49 + 30 + 34 + 28 + 89) + 16 * 125 + 6 * 6 * 20 + 12 * 8 * 20 + 6 * 144 + 384,
            2 * 8 * 19 + 208,
        ),
        saved=6 * (11 + 7 + 7 + 17) + 16 * 17 + 6 * 6 * 7 + 16 * 6 * 20 + 6 * 6 * 13,
        cache=(32, 0, 256),
    ),
    "latent attention, queries direct": row(
        LatentAttention(
            d_model=11,
            n_heads=6,
            q_rank=None,
            kv_rank=17,
            d_nope=5,
            d_rope=2,
            d_v=13,
            bias=True,
            norm_eps=0,
            rotary=Rotary(heads=7, dims=2, theta=0, width=2),
            core=LatentCore(n_heads=6, kv_rank=17, d_nope=5, d_rope=2, d_v=13, span=Causal()),
        ),
        ABSORBED,
        params=462 + 209 + 19 + 17 + 1836 + 858 + 11,
        flops=2 * 6 * (462 + 209 + 1836 + 858) + 2 * 12 * 24 * 36,
        flops_masked=2 * 6 * 3365 + 2 * 12 * 21 * 36,
        flops_other=6 * (19 + 68 + 3 * 14 + 11) + 5 * 12 * 24,
        traffic=(462 + 228 + 17 + 1836 + 869, 6 * (53 + 30 + 34 + 125 + 28 + 89) + 6 * 6 * 36, 2 * 8 * 19),
        saved=6 * (11 + 17 + 17) + 6 * 6 * 7 + 16 * 6 * 20 + 6 * 6 * 13,
        cache=(19, 0, 152),
    ),
    "latent attention, nothing rotated, a gate a head": row(
        LatentAttention(
            d_model=11,
            n_heads=6,
            q_rank=None,
            kv_rank=17,
            d_nope=5,
            d_rope=2,
            d_v=13,
            bias=True,
            norm_eps=0,
            rotary=None,
            core=LatentCore(n_heads=6, kv_rank=17, d_nope=5, d_rope=2, d_v=13, span=Causal()),
            gate=Gate(n_heads=6, d_v=13, gates=1),
        ),
        ABSORBED,
        params=462 + 209 + 19 + 17 + 1836 + 858 + 11 + 66,
        flops=2 * 6 * (462 + 209 + 1836 + 858 + 66) + 2 * 12 * 24 * 36,
        flops_masked=2 * 6 * 3431 + 2 * 12 * 21 * 36,
        flops_other=6 * (19 + 68 + 11) + 5 * 12 * 24 + 6 * (3 * 6 + 78),
        traffic=(
            462 + 228 + 17 + 1836 + 869 + 66,
            6 * (53 + 30 + 34 + 125 + 89) + 6 * 6 * 36 + 6 * (17 + 12 + 6 + 78 + 78),
            2 * 8 * 19,
        ),
        saved=6 * (11 + 17 + 17) + 6 * 6 * 7 + 16 * 6 * 20 + 6 * 6 * 13 + 6 * (6 + 78),
        cache=(19, 0, 152),
    ),
    "disentangled attention": row(  # 5 heads of 3, 7 distances on either side
        DisentangledAttention(
            d_model=11,
            n_heads=5,
            d_head=3,
            biases=frozenset("qv"),
            distance_k=Linear(d_in=11, d_out=15, bias=True, keeps="no"),
            distance_q=Linear(d_in=11, d_out=15, bias=False, keeps="no"),
            core=DisentangledCore(n_heads=5, d_head=3, reach=7, distance=7, clipped=False, c2p=True, p2c=True),
        ),
        params=6 * 165 + 45,
        flops=2 * 165 * (4 * 6 + 2 * 14) + 2 * 10 * 3 * 3 * (6 + 28),
        flops_other=15 * (6 + 6 + 14) + 10 * 9 * 7,
        traffic=(6 * 165 + 45, 26 * (4 * 6 + 2 * 14) + 4 * 90 + 2 * (90 + 210 + 420), 0),
        saved=66 + 3 * 90 + 2 * (90 + 420) + 90,
    ),
    "disentangled attention, borrowed": row(
        DisentangledAttention(
            d_model=11,
            n_heads=5,
            d_head=3,
            biases=frozenset("q"),
            distance_k=None,
            distance_q=Linear(d_in=11, d_out=15, bias=True, keeps="no", borrowed=True),
            core=DisentangledCore(n_heads=5, d_head=3, reach=7, distance=7, clipped=False, c2p=False, p2c=True),
        ),
        params=4 * 165 + 15,
        flops=2 * 165 * (4 * 6 + 14) + 2 * 10 * 3 * 3 * (6 + 14),
        flops_other=15 * (6 + 14) + 10 * 9 * 6,
        traffic=(5 * 165 + 30, 26 * (4 * 6 + 14) + 4 * 90 + 90 + 210 + 420, 0),
        saved=66 + 3 * 90 + 90 + 420 + 90,
    ),
    "table of distances": row(
        DistanceTable(rows=26, width=11, norm=Norm(width=11, form="rms", bias=False, eps=0, keeps=False)),
        params=286 + 11,
        flops_other=26 * 44,
        traffic=(286 + 11, 286 + 26 * 22, 0),
    ),
    "product": row(Product(width=11, kept=5), flops_other=66, traffic=(0, 6 * 33, 0), saved=30),
    "shift": row(Shift(width=11), params=11, flops_other=66, traffic=(11, 132, 0)),
    "mask of values": row(  # 2 heads; 16 keys where its stack has it, here at 6 rows
        DynamicMask(n_kv_heads=2), params=2, flops_other=12 * 4, traffic=(2, 3 * 24, 0), saved=36
    ),
    "matrix memory": row(  # 3 heads, keys of 5 and values of 7: 105 + 15 + 3 of state
        MatrixScan(n_heads=3, d_key=5, d_value=7),
        flops_other=6 * (105 * 5 + 15 * 7 + 21 + 66),
        traffic=(0, 6 * (30 + 42 + 6), 2 * 2 * 123),
        saved=6 * (3 * (10 + 7 + 2) + 123),
        cache=(0, 123, 123),
    ),
    "mLSTM": row(  # the same between projections
        MatrixMemory(d_model=11, n_heads=3, d_key=5, d_value=7, bias=False, norm_eps=0),
        params=2 * 165 + 2 * 231 + 2 * 33 + 6 + 21 + 231,
        flops=2 * 6 * (330 + 462 + 66 + 231),
        flops_other=6 * (6 + 105 * 5 + 15 * 7 + 21 + 66 + 21 * 6 + 21 * 4),
        traffic=(330 + 462 + 66 + 6 + 21 + 231, 6 * (2 * 26 + 2 * 32 + 2 * 14 + 78 + 42 + 5 * 21 + 32), 2 * 2 * 123),
        saved=6 * (11 + 3 * 19 + 123 + 21 + 2 * 21 + 21),
        cache=(0, 123, 123),
    ),
    "choice among linear layers": row(  # 2 of 5
        ChosenExperts(n_experts=5, top_k=2, expert=Linear(d_in=11, d_out=7, bias=False)),
        params=385,
        active=154,
        flops=2 * 6 * 154,
        traffic=(385, 6 * 36, 0),
        saved=6 * 22,
    ),
    "attention of experts": row(  # 2 of 5, on 3 key/value heads of 7: 6 heads
        RoutedAttention(
            d_model=11,
            n_experts=5,
            top_k=2,
            n_kv_heads=3,
            d_head=7,
            rotary=None,
            core=AttentionCore(n_heads=6, n_kv_heads=3, d_qk=7, d_v=7, span=Causal()),
            bias=Shift(width=11),
        ),
        params=55 + 10 * 231 + 2 * 231 + 11,
        active=55 + 4 * 231 + 2 * 231 + 11,
        flops=2 * 6 * (55 + 6 * 231) + 2 * 36 * 8 * 14,
        flops_masked=2 * 6 * (55 + 6 * 231) + 2 * 12 * 21 * 14,
        flops_other=36 * 8 * 5 + 66,
        traffic=(55 + 10 * 231 + 462 + 11, 6 * (16 + 6 * 32 + 84 + 22), 2 * 8 * 42),
        saved=6 * (11 + 22) + 36 * 7 + 2 * 8 * 42 + 2 * 36 * 7,
        cache=(42, 0, 8 * 42),
    ),
    "features": row(  # 3 of 5 and the embedding of 11, all normed: 26 to 11
        Features(
            d_model=11,
            number=3,
            width=5,
            embedded=True,
            bias=True,
            norm=Norm(width=5, form="rms", bias=False, eps=0, groups=3, apart=True),
            embedding_norm=RMS,
        ),
        params=15 + 11 + 26 * 11 + 11,
        flops=2 * 6 * 286,
        flops_other=6 * (26 * 4 + 11),
        traffic=(323, 6 * (30 + 22 + 37), 0),
        saved=6 * (26 + 26),
    ),
    "join": row(  # a hidden state of 11 and a row of 11, each normed: 22 to 11
        Join(norm=RMS, projection=Linear(d_in=22, d_out=11, bias=False)),
        params=2 * 11 + 242,
        flops=2 * 6 * 242,
        flops_other=2 * 6 * 11 * 4,
        traffic=(264, 6 * (2 * 22 + 33), 0),
        saved=6 * (2 * 11 + 22),
    ),
    "features alone": row(
        Features(d_model=11, number=3, width=5, embedded=False, bias=False, norm=None, embedding_norm=None),
        params=165,
        flops=2 * 6 * 165,
        traffic=(165, 6 * 26, 0),
        saved=6 * 15,
    ),
    "attention of a draft": row(  # 6 heads on 3 of 7, which read 22
        DraftAttention(
            d_model=11,
            n_heads=6,
            n_kv_heads=3,
            d_head=7,
            norm=RMS,
            rotary=Rotary(heads=9, dims=7, theta=0, width=7),
            core=AttentionCore(n_heads=6, n_kv_heads=3, d_qk=7, d_v=7, span=Causal()),
        ),
        params=11 + 22 * 84 + 42 * 11,
        flops=2 * 6 * (22 * 84 + 462) + 2 * 36 * 8 * 14,
        flops_masked=2 * 6 * (22 * 84 + 462) + 2 * 12 * 21 * 14,
        flops_other=6 * 11 * 4 + 3 * 6 * 63 + 36 * 8 * 5,
        traffic=(2321, 6 * (22 + 3 * 22 + 84 + 2 * 63 + 2 * 42 + 53), 2 * 8 * 42),
        saved=6 * (11 + 22) + 2 * 36 * 7 + 2 * 8 * 42,
        cache=(42, 0, 8 * 42),
    ),
    "block that layers share": row(  # 3 heads of 5 on the stream and the first input, 11 each; 7 inside
        SharedBlock(
            d_model=11,
            norm=Norm(width=22, form="rms", bias=False, eps=0),
            rotary=None,
            core=AttentionCore(n_heads=3, n_kv_heads=3, d_qk=5, d_v=5, span=Full()),
            feed_forward_norm=RMS,
            feed_forward=FeedForward(d_model=11, d_ff=7, gated=True, activation="relu", bias=False),
            rank=2,
            adapted=True,
        ),
        PROMPT,
        params=22 + 3 * 330 + 3 * 2 * 37 + 165 + 11 + 231 + 2 * 25 + 121,
        flops=2 * 6 * (990 + 222 + 165 + 231 + 50 + 121) + 2 * 6 * 3 * 10 * 3,
        flops_other=6 * (88 + 45 + 44 + 14 + 14) + 6 * 9 * 5,
        traffic=(
            22 + 990 + 222 + 165 + 11 + 231 + 50 + 121,
            6 * (44 + 3 * 37 + 3 * (24 + 17 + 45) + 60 + 26 + 22 + 3 * 18 + 14 + 21 + 13 + 16 + 42 + 22),
            0,
        ),
        saved=6 * (22 + 22 + 3 * 2 + 45 + 15 + 11 + 11 + 3 * 7 + 2 + 11),
    ),
    "block that layers share, its weights another's": row(
        SharedBlock(
            d_model=11,
            norm=Norm(width=22, form="rms", bias=False, eps=0, borrowed=True),
            rotary=None,
            core=AttentionCore(n_heads=3, n_kv_heads=3, d_qk=5, d_v=5, span=Full()),
            feed_forward_norm=Norm(width=11, form="rms", bias=False, eps=0, borrowed=True),
            feed_forward=FeedForward(d_model=11, d_ff=7, gated=True, activation="relu", bias=False, borrowed=True),
            lender="a",
        ),
        PROMPT,
        params=121,
        flops=2 * 6 * (990 + 165 + 231 + 121) + 2 * 6 * 3 * 10 * 3,
        flops_other=6 * (88 + 44 + 14) + 6 * 9 * 5,
        traffic=(22 + 990 + 165 + 11 + 231 + 121, 6 * (44 + 3 * 37 + 60 + 26 + 22 + 3 * 18 + 14 + 21 + 22), 0),
        saved=6 * (22 + 22 + 45 + 15 + 11 + 11 + 3 * 7 + 11),
    ),
    "a query over all": row(  # 3 heads of 5; 2 queries, each of 3 positions
        AttentionPool(
            d_model=15,
            probe=Vector(width=15),
            core=AttentionCore(n_heads=3, n_kv_heads=3, d_qk=5, d_v=5, span=Reading()),
            norm=Norm(width=15, form="layer", bias=True, eps=0),
            feed_forward=FeedForward(d_model=15, d_ff=7, gated=False, activation="relu", bias=True),
        ),
        PROMPT,
        params=15 + 4 * 240 + 30 + 15 * 7 + 7 + 7 * 15 + 15,
        flops=2 * 225 * (2 + 6 + 6 + 2) + 2 * 2 * 3 * 3 * 10 + 2 * 2 * 2 * 105,
        flops_other=15 * (2 + 6 + 6 + 2) + 18 * 5 + 30 * 7 + 14 * 2 + 30 + 30,
        traffic=(
            4 * 240 + 30 + 112 + 120,
            2 * 60 + 2 * 180 + 30 + 90 + 90 + 30 + 60 + 44 + 28 + 44 + 90,
            0,
        ),
        saved=90 + 30 + 90 + 90 + 30 + 30 + 30 + 14,
    ),
    "transform": row(Transform(width=11), traffic=(0, 132, 0)),
    "fourier": row(Fourier(d_model=11), traffic=(0, 132, 0)),
    "product for a span": row(SpanProduct(width=11), flops_other=66, traffic=(0, 6 * 33, 0), saved=66),
    "product for a span, its query kept too": row(
        SpanProduct(width=11), EAGER, flops_other=66, traffic=(0, 198, 0), saved=132
    ),
    "span": row(  # 3 heads of 5, 7 taps
        SpanCore(n_heads=3, d_head=5, taps=7),
        flops=2 * 18 * 35,
        flops_other=18 * 7 * 5,
        traffic=(0, 18 * 17, 0),
        saved=18 * 7 * 6,
    ),
    "attention beside spans": row(  # 3 heads of 5, 7 taps; 6 rows of 11 see 6
        SpanAttention(d_model=11, n_heads=3, d_head=5, taps=7, biases=frozenset("q")),
        PROMPT,
        params=5 * 165 + 15 + 77 + 15 + 15 * 21 + 21 + 15 + 330,
        flops=2 * 6 * (5 * 165 + 77 + 315 + 330) + 2 * 6 * 3 * 10 * 3 + 2 * 18 * 35,
        flops_other=6 * (15 + 15 + 15 + 21 + 15) + 6 * 9 * 5 + 18 * 35,
        traffic=(
            5 * 165 + 15 + 77 + 15 + 315 + 21 + 15 + 330,
            6 * (4 * 26 + 22 + 26 + 45 + 36 + 26 + 41) - 6 * 26 + 6 * 60 + 18 * 17,
            0,
        ),
        saved=66 + 4 * 90 + 66 + 90 + 90 + 18 * 42 + 180,
    ),
    "short convolution": row(
        ShortConvolution(d_model=11, taps=5, bias=True),
        params=11 * 33 + 33 + 66 + 121 + 11,
        flops=2 * 6 * (363 + 55 + 121),
        flops_other=6 * (33 + 11 + 11 + 11 + 11),
        traffic=(363 + 33 + 66 + 132, 6 * (44 + 33 + 22 + 33 + 22), 0),
        saved=6 * (11 + 33 + 11 + 11 + 11),
        cache=(0, 55, 55),
    ),
    "convolution over time": row(
        TimeConvolution(d_model=11, taps=5, activation="gelu"),
        params=605 + 11,
        flops=2 * 6 * 605,
        flops_other=66 + 330,
        traffic=(616, 6 * 22 + 132, 0),
        saved=66,
    ),
    "mamba": row(  # 13 channels, 5 states, 4 taps, rank 3; norms inside
        Mamba(d_model=11, d_inner=13, d_state=5, d_conv=4, dt_rank=3, bias=False, conv_bias=True, norm_eps=0),
        params=286 + 65 + 169 + 3 + 5 + 5 + 52 + 78 + 143,
        flops=2 * 6 * (286 + 52 + 169 + 39 + 143),
        flops_other=6 * (13 + 4 * 13 + 13 + 13 * (40 + 9)),
        traffic=(286 + 65 + 169 + 13 + 52 + 78 + 143, 6 * (37 + 26 + 26 + 26 + 16 + 62 + 24), 2 * 2 * 65),
        saved=6 * (11 + 13 + 13 + 13 + 3 + (39 + 10 + 65) + 13),
        cache=(0, 52 + 65, 52 + 65),
    ),
    "mamba-2": row(  # 3 heads of 5, 1 group, 7 states, 4 taps: 15 inside, 29 through the convolution
        Mamba2(
            d_model=11, n_heads=3, d_head=5, n_groups=1, d_state=7, d_conv=4, bias=False, conv_bias=True, norm_eps=0
        ),
        params=11 * 47 + 29 * 5 + 9 + 15 + 165,
        flops=2 * 6 * (11 * 47 + 29 * 4 + 165),
        flops_other=6 * (29 + 15 * (5 * 7 + 3) + 15 + 4 * 15),
        traffic=(11 * 47 + 145 + 9 + 15 + 165, 6 * (58 + 58 + 47 + 30 + 26), 2 * 2 * 105),
        saved=6 * (11 + 29 + (15 * 8 + 3 + 14) + 15 + 15),
        cache=(0, 116 + 105, 116 + 105),
    ),
    "mamba-2 without a norm": row(
        Mamba2(
            d_model=11, n_heads=3, d_head=5, n_groups=1, d_state=7, d_conv=4, bias=True, conv_bias=False, norm_eps=None
        ),
        params=12 * 47 + 29 * 4 + 9 + 16 * 11,
        flops=2 * 6 * (11 * 47 + 29 * 4 + 165),
        flops_other=6 * (47 + 15 * (5 * 7 + 3) + 15 + 11),
        traffic=(12 * 47 + 116 + 9 + 176, 6 * (58 + 58 + 47 + 26), 2 * 2 * 105),
        saved=6 * (11 + 29 + (15 * 8 + 3 + 14) + 15),
        cache=(0, 116 + 105, 116 + 105),
    ),
    "long convolution by transforms": row(  # 8 keys: 4 stages of 16 points
        LongConvolution(width=5, fft=True),
        params=5,
        flops_other=5 * (4 + 1) * 5 * 8 * 4 + 6 * 10 * 9 + 2 * 30,
        traffic=(5, 10 * 11 + 40, 0),
        saved=2 * 8 * 5 + 2 * 3 * 9 * 5,
        cache=(5, 0, 40),
    ),
    "long convolution as a product": row(
        LongConvolution(width=5, fft=False),
        params=5,
        flops=2 * 2 * 5 * 3 * 8,
        flops_masked=2 * 2 * 5 * (36 - 15),
        flops_other=2 * 30,
        traffic=(5, 10 * 11 + 40, 0),
        saved=2 * 8 * 5 + 8 * 5,
        cache=(5, 0, 40),
    ),
    "modal convolution by transforms": row(  # 8 positions, 3 poles
        ModalConvolution(width=5, states=3, fft=True),
        params=30 + 30 + 5,
        flops_other=11 * 8 * 15 + 5 * (4 + 1) * 5 * 8 * 4 + 6 * 10 * 9 + 2 * 30,
        traffic=(65, 2 * 40 + 60, 0),
        saved=30 + 2 * 8 * 15 + 2 * 3 * 9 * 5,
        cache=(0, 30, 30),
    ),
    "modal convolution token by token": row(
        ModalConvolution(width=5, states=3, fft=False),
        params=30 + 30 + 5,
        flops_other=11 * 6 * 15 + 2 * 30,
        traffic=(65, 60, 2 * 2 * 30),
        saved=30 + 6 * 30,
        cache=(0, 30, 30),
    ),
    "implicit filter": row(
        ImplicitFilter(features=3, width=7, layers=2, channels=5),
        params=28 + 7 + 2 * 56 + 35,
        flops=2 * 6 * (21 + 98 + 35),
        flops_other=6 * (7 + 3 * 14 + 14 + 15),
        traffic=(28 + 3 * 7 + 112 + 35, 6 * (10 + 3 * 14 + 28 + 12 + 10), 0),
        saved=6 * (3 + 3 * 14 + 2 * 7 + 7),
    ),
    "hyena": row(
        Hyena(
            d_model=5,
            taps=3,
            bias=False,
            long=LongConvolution(width=5, fft=False),
            filter=ImplicitFilter(features=3, width=7, layers=0, channels=5),
        ),
        params=75 + 60 + 28 + 7 + 35 + 5 + 25,
        flops=2 * 6 * (75 + 45 + 25) + 2 * 8 * (21 + 35) + 2 * 2 * 5 * 24,
        flops_masked=2 * 6 * (75 + 45 + 25) + 2 * 8 * (21 + 35) + 2 * 2 * 5 * 21,
        flops_other=6 * 15 + 8 * (7 + 14 + 15) + 2 * 30 + 30 + 30,
        traffic=(
            75 + 60 + 28 + 7 + 35 + 5 + 25,
            6 * (20 + 30 + 15 + 15 + 10) + 8 * (10 + 14 + 12 + 10) + 10 * 11 + 40,
            0,
        ),
        saved=6 * (5 + 15 + 10 + 10 + 5) + 8 * (3 + 14 + 7) + 2 * 40 + 40,
        cache=(5, 45, 45 + 40),
    ),
    "compressed core": row(  # 6 keys in the window, 4 entries: 12 and 6 of 18 pairs a sequence
        COMPRESSED,
        params=4,
        flops=4 * 8 * 5 * 30,
        flops_masked=4 * 8 * 5 * 18,
        flops_other=5 * 8 * 30,
        traffic=(4, 2 * 120, 2 * 10 * 5),
        saved=120 + 100 + 120,
        cache=(0, 20, 20),
    ),
    "compressed core, eager": row(
        COMPRESSED,
        EAGER,
        params=4,
        flops=4 * 8 * 5 * 30,
        flops_masked=4 * 8 * 5 * 18,
        flops_other=5 * 8 * 30,
        traffic=(4, 2 * 120, 2 * 10 * 5),
        saved=120 + 100 + 24 * 11,
        cache=(0, 20, 20),
    ),
    "pool of groups that overlap": row(  # entries 3 and 4 of 2 tokens each, by 2 · 2 · 5 numbers
        Pool(width=5, rate=2, overlap=True),
        params=20,
        flops_other=4 * 20 * 8,
        traffic=(20, 2 * 60 + 20, 0),
        saved=2 * 80,
        cache=(3, 20, 4 * 5 + 20),
    ),
    "pool": row(  # entry 2 of 3 tokens; 2 tokens wait
        Pool(width=5, rate=3, overlap=False),
        params=15,
        flops_other=2 * 15 * 8,
        traffic=(15, 2 * 30 + 10, 0),
        saved=30 + 30,
        cache=(2, 0, 2 * 5 + 2 * 2 * 5),
    ),
    "filter": row(  # of 5 taps in 2 groups, every third input
        Filter(c_in=6, c_out=4, taps=5, groups=2, stride=3, bias=True),
        params=4 * 3 * 5 + 4,
        flops=2 * 6 * 5 * 4 * 3,
        flops_other=6 * 4,
        traffic=(60 + 4, 6 * (3 * 6 + 4), 0),
        saved=6 * 3 * 6,
    ),
    "scores": row(
        Scores(n_heads=3, width=7, span=Causal()),
        flops=2 * 6 * 3 * 8 * 7,
        flops_masked=2 * 6 * 21 * 7,
        traffic=(0, 6 * 3 * 7, 2 * 8 * 7),
        cache=(7, 0, 8 * 7),
    ),
    "matrix product": row(  # 3 heads of 6 rows
        MatrixProduct(n_heads=3, d_in=5, d_out=7),
        flops=2 * 6 * 3 * 5 * 7,
        traffic=(0, 6 * 3 * (5 + 7) + 2 * 3 * 5 * 7, 0),
        saved=6 * 3 * 5,
    ),
    "counted": row(Counted(params=13), params=13),
    "pieces": row(  # two matrices, each three times at 2 of 3 positions, and an activation
        Pieces(
            pieces=tuple(
                pieces(
                    [
                        {"name": "x", "form": "linear", "sizes": [3, 5], "at": [1, 0, 2], "times": 2, "runs": 3},
                        {"name": "y", "form": "relu", "sizes": [5]},
                    ]
                )
            )
        ),
        params=2 * (15 + 5),
        flops=6 * 2 * 4 * 15,
        flops_other=6 * 4 * 5 + 30,
        traffic=(6 * 20, 6 * 4 * (3 + 5) + 2 * 30, 0),
        saved=6 * 4 * 3 + 30,
    ),
    "selection": row(  # 4 entries, of which queries see 3, 3 and 4
        SelectionCore(n_heads=3, width=7, span=Entries(rate=2, top_k=2)),
        flops=2 * 6 * 7 * 12,
        flops_masked=2 * 6 * 7 * 10,
        flops_other=3 * 72,
        traffic=(0, 126 + 18 + 24, 2 * 4 * 7),
    ),
    "compressor": row(  # entries 3 and 4 of each sequence: 4 · 5 normed, 4 · 4 turned
        COMPRESSOR,
        params=2 * 110 + 20 + 5,
        flops=2 * 6 * 2 * 110,
        flops_other=4 * 20 * 8 + 20 * 4 + 16 * 3,
        traffic=(245, 6 * 2 * 21 + 140 + 40 + 32, 0),
        saved=2 * 80 + 20,
        cache=(3, 20, 40),
    ),
    "selector": row(
        Selector(
            d_model=11,
            q_rank=13,
            compressor=COMPRESSOR,
            rotary=Rotary(heads=3, dims=4, theta=10.0, width=4),
            core=SelectionCore(n_heads=3, width=5, span=Entries(rate=2, top_k=2)),
        ),
        params=245 + 195 + 33,
        flops=2 * 6 * (220 + 195 + 33) + 2 * 6 * 5 * 12,
        flops_masked=2 * 6 * (220 + 195 + 33) + 2 * 6 * 5 * 10,
        flops_other=4 * 20 * 8 + 20 * 4 + 16 * 3 + 6 * 3 * 4 * 3 + 3 * 72,
        traffic=(473, 252 + 180 + 32 + 6 * (28 + 14) + 2 * 72 + 90 + 18 + 24, 40),
        saved=2 * 80 + 20,
        cache=(3, 20, 40),
    ),
    "compressed attention": row(
        CompressedAttention(
            d_model=11,
            n_heads=4,
            d_head=5,
            q_rank=7,
            groups=2,
            d_group=10,
            o_rank=3,
            norm_eps=1e-6,
            rotary=Rotary(heads=5, dims=4, theta=10.0, width=4),
            core=COMPRESSED,
            compressor=COMPRESSOR,
        ),
        params=77 + 7 + 140 + 55 + 5 + 245 + 4 + 60 + 66,
        flops=2 * 6 * (77 + 140 + 55 + 220 + 60 + 66) + 4 * 8 * 5 * 30,
        flops_masked=2 * 6 * (77 + 140 + 55 + 220 + 60 + 66) + 4 * 8 * 5 * 18,
        flops_other=6 * 4 * (7 + 20 + 5) + 6 * 3 * (20 + 16) + 640 + 80 + 48 + 5 * 8 * 30,
        traffic=(
            77 + 7 + 140 + 55 + 5 + 245 + 4 + 60 + 66,
            6 * (18 + 14 + 27 + 40 + 16 + 10 + 40 + 32 + 26 + 17) + 252 + 180 + 32 + 240,
            100,
        ),
        saved=6 * (11 + 7 + 7 + 20 + 5 + 20 + 6) + 180 + 340,
        cache=(3, 20 + 20, 40 + 20),
    ),
    "hyper-connection": row(  # 3 streams of 11: 33 wide, to 15 numbers
        HyperConnection(width=11, number=3, steps=2, mixed=True, eps=1e-6),
        params=33 * 15 + 18,
        flops=2 * 6 * (495 + 99),
        flops_other=6 * (33 * 4 + 30 + 18 + 99 + 66 + 66),
        traffic=(495 + 18, 6 * (66 + 48 + 30 + 47 + 89), 0),
        saved=6 * (33 + 33 + 66 + 3 + 23),
    ),
    "shares of streams": row(
        Shares(number=3, steps=2, mixed=True),
        params=15 + 3,
        flops_other=6 * (2 * 15 + 3 * 6 + 9 * (5 + 2 * 3)),
        traffic=(18, 6 * (15 + 6 + 9), 0),
        saved=6 * (15 + 6 + 9 + 3 * 12),
    ),
    "shares that are read": row(
        Shares(number=3, steps=2, mixed=True, read=True),
        params=4,
        flops_other=6 * 3 * (2 + 3),
        traffic=(4, 36, 0),
        saved=36,
    ),
    "collapse": row(Collapse(width=11, number=3), flops_other=6 * 66, traffic=(0, 6 * (33 + 3 + 11), 0), saved=18),
    "spread, mixed": row(
        StreamSpread(width=11, number=3, mixed=True),
        flops=2 * 6 * 99,
        flops_other=6 * 66,
        traffic=(0, 6 * (33 + 9 + 14 + 33), 0),
        saved=6 * (14 + 9),
    ),
    "spread": row(
        StreamSpread(width=11, number=3, mixed=False), flops_other=6 * 66, traffic=(0, 6 * (14 + 66), 0), saved=6 * 14
    ),
    "forget gate": row(ForgetGate(n_heads=4), flops_other=24 * 3, traffic=(0, 4 * 24, 0), saved=24),
    "forgetting core, eager": row(
        FORGETTING,
        EAGER,
        flops=4 * 8 * 24 * 5,
        flops_masked=4 * 8 * 21 * 5,
        flops_other=192 * 7,
        traffic=(0, 2 * 120, 2 * 160 + 64),
        saved=120 + 320 + 192,
        cache=(24, 0, 8 * 24),
    ),
    "forgetting attention": row(  # 4 heads of 5 on 2, of 6 tokens, 21 of 24 pairs a sequence
        ForgettingAttention(
            d_model=11,
            n_heads=4,
            n_kv_heads=2,
            d_head=5,
            core=FORGETTING,
        ),
        params=3 * 220 + 48,
        flops=2 * 6 * (3 * 220 + 44) + 4 * 8 * 24 * 5,
        flops_masked=2 * 6 * (3 * 220 + 44) + 4 * 8 * 21 * 5,
        flops_other=6 * 4 + 24 * 3 + 192 * 7,
        traffic=(708, 6 * (31 + 2 * 21 + 15 + 31) + 4 * 24 + 2 * 120, 2 * 160 + 64),
        saved=66 + 24 + 120 + 320 + 120 + 64,
        cache=(24, 0, 8 * 24),
    ),
    "LSTM": row(  # 11 to 5 and back; both bias vectors
        RecurrentCell(d_model=11, d_hidden=5, form="lstm", bias=True, second_bias=True, projected=True),
        params=4 * 5 * (11 + 5 + 2) + 55 + 11,
        flops=2 * 6 * (4 * 5 * (11 + 5) + 55),
        flops_other=6 * (20 + 20 + 5 * 19 + 11),
        traffic=(220 + 20 + 100 + 20 + 55 + 11, 6 * (31 + 25 + 25 + 16), 2 * 2 * 2 * 5),
        saved=6 * (11 + 6 * 5 + 5),
        cache=(0, 10, 10),
    ),
    "GRU": row(
        RecurrentCell(d_model=11, d_hidden=11, form="gru", bias=True, second_bias=False, projected=False),
        params=3 * 11 * (11 + 11 + 1),
        flops=2 * 6 * 3 * 11 * 22,
        flops_other=6 * (33 + 11 * 15),
        traffic=(363 + 33 + 363, 6 * (44 + 44 + 44), 2 * 2 * 11),
        saved=6 * (11 + 4 * 11),
        cache=(0, 11, 11),
    ),
    "plain RNN": row(
        Cell(form="rnn", width=5, bias=False),
        params=25,
        flops=2 * 6 * 25,
        flops_other=6 * 5 * 2,
        traffic=(25, 6 * (10 + 10), 2 * 2 * 5),
        saved=6 * 10,
        cache=(0, 5, 5),
    ),
    "griffin": row(  # 3 heads of 5, 2 taps
        Griffin(d_model=11, n_heads=3, d_head=5, d_conv=2, bias=True, conv_bias=True, activation="gelu_tanh"),
        params=2 * (165 + 15) + 45 + 2 * 90 + 15 + 165 + 11,
        flops=2 * 6 * (3 * 165 + 30 + 150),
        flops_other=6 * (30 + 15 + 30 + 15 * 16 + 15 * 10 + 11),
        traffic=(360 + 45 + 180 + 15 + 176, 6 * (52 + 30 + 60 + 60 + 75 + 26), 2 * 2 * 15),
        saved=6 * (11 + 15 + 15 + 75 + 45 + 15),
        cache=(0, 30 + 15, 30 + 15),
    ),
    "linear attention": row(  # 3 heads of 5
        LinearAttention(d_model=11, n_heads=3, d_head=5, activation="silu", norm_eps=0),
        params=11 * 60 + 15 + 165,
        flops=2 * 6 * (11 * 60 + 165),
        flops_other=6 * (4 * 45 + 75 * 5 + 4 * 15 + 4 * 15),
        traffic=(675 + 165, 6 * (11 + 45 + 11 + 15 + 90 + 60 + 30 + 75 + 26), 2 * 2 * 75),
        saved=6 * (11 + 45 + 15 * 8 + 15 + 2 * 15 + 15),
        cache=(0, 75, 75),
    ),
    "time mix": row(
        TimeMix(d_model=11, d_inner=13),
        params=33 + 4 * 143 + 26,
        flops=2 * 6 * 4 * 143,
        flops_other=6 * (9 * 11 + 23 * 13 + 4 * 13),
        traffic=(33 + 572 + 26, 6 * (44 + 4 * 24 + 39 + 5 * 13), 2 * 2 * (11 + 39)),
        saved=6 * (22 + 33 + 6 * 13 + 2 * 13 + 13),
        cache=(0, 50, 50),
    ),
    "channel mix": row(
        ChannelMix(d_model=11, d_ff=13),
        params=22 + 2 * 143 + 121,
        flops=2 * 6 * (2 * 143 + 121),
        flops_other=6 * (6 * 11 + 2 * 13 + 4 * 11),
        traffic=(22 + 286 + 121, 6 * (33 + 24 + 26 + 24 + 22 + 55), 2 * 2 * 11),
        saved=6 * (22 + 11 + 13 + 13 + 11 + 22),
        cache=(0, 11, 11),
    ),
    "delta net": row(  # 3 heads of 7 on 1 of 5, 2 taps: 31 through the convolution
        DeltaNet(
            d_model=11,
            n_heads=3,
            n_key_heads=1,
            d_key=5,
            d_value=7,
            d_conv=2,
            by_channel=False,
            bound=None,
            rank=None,
            gate="silu",
            norm_eps=0,
        ),
        params=11 * (31 + 3 + 21 + 3) + 62 + 6 + 7 + 231,
        flops=2 * 6 * (11 * 58 + 62 + 231),
        flops_other=6 * (4 * 31 + 836 + 4 * 21 + 5 * 21),
        traffic=(
            11 * 58 + 62 + 6 + 7 + 231,
            6 * (42 + 14 + 32 + 14 + 62 + 62 + (10 + 42 + 3 + 3) + 42 + 5 * 21 + 32),
            2 * 2 * 105,
        ),
        saved=6 * (11 + 31 + 31 + (21 * 6 + 10 + 3 + 3) + 21 + 3 * 21 + 21),
        cache=(0, 62 + 105, 62 + 105),
    ),
    "delta net by channel": row(  # through a rank of 2
        DeltaNet(
            d_model=11,
            n_heads=3,
            n_key_heads=1,
            d_key=5,
            d_value=7,
            d_conv=2,
            by_channel=True,
            bound=-5,
            rank=2,
            gate="sigmoid",
            norm_eps=0,
        ),
        params=11 * (31 + 2 + 2 + 3) + 2 * (15 + 21) + 62 + 18 + 7 + 231,
        flops=2 * 6 * (11 * 38 + 72 + 62 + 231),
        flops_other=6 * (4 * 31 + 105 * 7 + 42 + 35 + 9 + 105 + 4 * 21 + 4 * 21),
        traffic=(
            11 * 38 + 72 + 62 + 18 + 7 + 231,
            6 * (42 + 13 + 17 + 13 + 23 + 14 + 62 + 62 + (10 + 42 + 15 + 3) + 42 + 5 * 21 + 32),
            2 * 2 * 105,
        ),
        saved=6 * (11 + 2 + 2 + 31 + 31 + (21 * 6 + 10 + 3 + 15) + 21 + 2 * 21 + 21),
        cache=(0, 62 + 105, 62 + 105),
    ),
    "block": row(
        Block(
            d_model=11,
            branches=(
                Branch("mixer", relu(5), "recurrent", RMS, None),
                Branch(
                    "channel",
                    relu(13),
                    None,
                    None,
                    Norm(width=11, form="layer", bias=True, eps=0),
                    False,
                    LayerScale(width=11),
                ),
            ),
            shared_norm=Norm(width=11, form="layer", bias=False, eps=0),
        ),
        params=11 + 11 + 110 + 286 + 11 + 22,
        flops=2 * 6 * 396,
        flops_other=6 * (66 + 44 + 5 + 13 + 11 + 77 + 22),
        traffic=(11 + 11 + 110 + 286 + 11 + 22, 6 * (22 + 22 + 42 + 74 + 22 + 22 + 66), 0),
        saved=6 * (11 + 11 + 16 + 24 + 11 + 11),
    ),
    "embedding, tokens narrower": row(  # 5 wide before a matrix to 11
        Embedding(
            width=5,
            tokens=Lookup(rows=17, width=5),
            positions=Lookup(rows=7, width=11, added=True),
            projection=Linear(d_in=5, d_out=11, bias=False),
            scale=2,
            early=True,
        ),
        params=85 + 77 + 55,
        flops=2 * 6 * 55,
        flops_other=6 * (11 + 11),
        traffic=(30 + 66 + 55, 6 * (5 + 16 + 33 + 11), 0),
        saved=30,
    ),
    "embedding, further tables": row(  # the second is read twice
        Embedding(
            width=5,
            tokens=Lookup(rows=17, width=5),
            tables=((Lookup(rows=7, width=5, added=True), 1), (Lookup(rows=3, width=5, added=True), 2)),
        ),
        params=85 + 35 + 15,
        flops_other=6 * 3 * 5,
        traffic=(4 * 30, 6 * 4 * 5, 0),
    ),
    "embedding": row(  # 3 tokens, of which 1 is the class token; 7 positions, 2 types
        Embedding(
            width=5,
            tokens=Lookup(rows=17, width=5),
            patches=Patches(channels=1, size=2, width=5),
            class_token=Vector(width=5),
            convolutions=(),
            activation="gelu",
            positions=Lookup(rows=7, width=5, added=True),
            fixed=None,
            types=Lookup(rows=2, width=5, added=True),
            norm=Norm(width=5, form="rms", bias=False, eps=0),
            projection=Linear(d_in=5, d_out=11, bias=True),
            scale=2.0,
        ),
        params=85 + 25 + 5 + 35 + 10 + 5 + 66,
        flops=2 * 4 * 20 + 2 * 6 * 55,
        flops_other=4 * 5 + 6 * (5 + 5 + 5 + 20 + 11),
        traffic=(30 + 25 + 30 + 30 + 5 + 66, 4 * 9 + 6 * (5 + 15 + 5 + 5 + 10 + 16), 0),
        saved=4 * 4 + 6 * (5 + 5),
    ),
    "embedding of sound": row(  # the first convolution at twice the positions
        Embedding(
            width=5,
            convolutions=(
                Convolution(c_in=3, c_out=5, taps=2, bias=True, depthwise=False, causal=False),
                Convolution(c_in=5, c_out=5, taps=2, bias=True, depthwise=False, causal=False, stride=2),
            ),
            fixed=Sum(width=5, sums=1),
        ),
        params=35 + 55,
        flops=2 * (12 * 30 + 6 * 50),
        flops_other=12 * (5 + 25) + 6 * (5 + 25 + 5),
        traffic=(35 + 55, 12 * (8 + 10) + 6 * (15 + 10 + 15), 0),
        saved=12 * (3 + 5) + 6 * (10 + 5),
    ),
    "head with a transform": row(
        Head(
            projection=Linear(d_in=11, d_out=13, bias=True),
            transform=Linear(d_in=11, d_out=11, bias=True),
            activation=Activation(width=11, form="gelu", gated=False),
            norm=RMS,
            one=False,
        ),
        params=156 + 132 + 11,
        flops=2 * 6 * (143 + 121),
        flops_other=6 * (13 + 11 + 55 + 44),
        traffic=(156 + 132 + 11, 6 * (24 + 22 + 22 + 22), 0),
        saved=6 * (11 + 11 + 11 + 11),
    ),
    "head at the last position": row(
        Head(projection=Linear(d_in=11, d_out=13, bias=False), transform=None, activation=None, norm=None, one=False),
        WORK._replace(last_logits=True),
        params=143,
        flops=2 * 2 * 143,
        traffic=(143, 2 * 24, 0),
        saved=22,
    ),
    "head of the mean": row(  # 4 of the 6 positions
        Head(
            projection=Linear(d_in=11, d_out=13, bias=False),
            transform=None,
            activation=None,
            norm=None,
            one=True,
            pool=Sum(width=11, sums=1),
            pool_norm=RMS,
        ),
        params=143 + 11,
        flops=572,
        flops_other=4 * 11 + 2 * 44,
        traffic=(154, 4 * 33 + 44 + 48, 0),
        saved=22 + 22,
    ),
    "head at one position": row(
        Head(projection=Linear(d_in=11, d_out=13, bias=False), transform=None, activation=None, norm=None, one=True),
        params=143,
        flops=572,
        traffic=(143, 48, 0),
        saved=22,
    ),
    "stack": row(
        Stack(
            d_model=11,
            embedding=Embedding(width=11, tokens=Lookup(rows=17, width=11)),
            relative_bias=RelativeBias(buckets=4, n_heads=2, distance=8, bidirectional=True),
            groups=(
                LayerGroup("a", relu_block(3), (0, 2, 3), 3),
                LayerGroup("b", relu_block(5), (1,), 1),
                LayerGroup("c", relu_block(7), (4, 5), 2, True),
            ),
            final_norm=RMS,
            pooler=Head(
                projection=Linear(d_in=11, d_out=3, bias=False), transform=None, activation=None, norm=None, one=True
            ),
            head=Head(
                projection=Linear(d_in=11, d_out=17, bias=False, tied=True),
                transform=None,
                activation=None,
                norm=None,
                one=False,
            ),
            distances=DistanceTable(rows=6, width=11, norm=None),
        ),
        params=187 + 66 + 8 + 3 * 66 + 110 + 154 + 11 + 33,
        flops=2 * 6 * (3 * 66 + 110 + 2 * 154 + 187) + 2 * 2 * 33,
        flops_other=6 * (3 * 14 + 16 + 2 * 18 + 44),
        traffic=(66 + 66 + 198 + 110 + 308 + 11 + 33 + 187, 66 + 6 * (11 + 3 * 67 + 75 + 2 * 83 + 22 + 28) + 2 * 14, 0),
        saved=6 * (3 * 14 + 16 + 2 * 18 + 11 + 11) + 22,
    ),
    "encoder and decoder": row(
        EncoderDecoder(
            encoder=Stack(
                d_model=11, embedding=None, relative_bias=None, groups=(), final_norm=RMS, pooler=None, head=None
            ),
            decoder=Stack(
                d_model=11,
                embedding=None,
                relative_bias=None,
                groups=(),
                final_norm=Norm(width=11, form="layer", bias=True, eps=0),
                pooler=None,
                head=None,
            ),
        ),
        params=33,
        flops_other=14 * 44 + 6 * 77,
        traffic=(33, 20 * 22, 0),
        saved=14 * 22 + 66,
    ),
    "decode step of both": row(
        EncoderDecoder(
            encoder=Stack(
                d_model=11, embedding=None, relative_bias=None, groups=(), final_norm=RMS, pooler=None, head=None
            ),
            decoder=Stack(
                d_model=11,
                embedding=None,
                relative_bias=None,
                groups=(),
                final_norm=Norm(width=11, form="layer", bias=True, eps=0),
                pooler=None,
                head=None,
            ),
        ),
        WORK._replace(decoding=True),
        params=33,
        flops_other=6 * 77,
        traffic=(22, 6 * 22, 0),
        saved=66,
    ),
    # 6 rows of 10 elements over 5 ranks: 4 steps of an all-gather send 12 each.
    "all-reduce": row(AllReduce(width=10, axis=TP), sent=2 * 4 * 12, received=2 * 4 * 12),
    "all-gather": row(AllGather(width=10, axis=TP), sent=4 * 12, received=4 * 12),
    "reduce-scatter": row(ReduceScatter(width=10, axis=TP), sent=4 * 12, received=4 * 12),
    # A third of the rows, to each of 4 others with the chance that one of two choices is there.
    "all-to-all": row(
        AllToAll(width=10, axis=TP, sharers=3, choices=2, narrow=True),
        sent=20 * 4 * Fraction(9, 25),
        received=20 * 4 * Fraction(9, 25),
    ),
    "send": row(Send(width=10, axis=TP, sharers=4), sent=15),
    "receive": row(Receive(width=10, axis=TP, sharers=4), received=15),
    "fixed length": row(  # 19 positions, whatever is asked
        FixedLength(
            stack=Stack(
                d_model=11,
                embedding=None,
                relative_bias=None,
                groups=(),
                final_norm=RMS,
                pooler=None,
                head=Head(
                    projection=Linear(d_in=11, d_out=3, bias=False),
                    transform=None,
                    activation=None,
                    norm=None,
                    one=True,
                ),
            ),
            positions=19,
        ),
        params=11 + 33,
        flops=2 * 2 * 33,
        flops_other=38 * 44,
        traffic=(11 + 33, 38 * 22 + 28, 0),
        saved=38 * 11 + 22,
    ),
    "projector": row(  # three positions become one after the norm
        Projector(
            steps=(
                ProjectorStep("norm", RMS, 3),
                ProjectorStep("linear", Linear(d_in=33, d_out=5, bias=False), 1),
                ProjectorStep("vectors", Vector(width=5), 1, 2),
            ),
            per_token=3,
            width=5,
        ),
        params=11 + 165 + 10,
        flops=2 * 6 * 165,
        flops_other=18 * 44,
        traffic=(11 + 165, 18 * 22 + 6 * 38, 0),
        saved=18 * 11 + 6 * 33,
    ),
    "tower": row(  # 2 · 3 positions and one that is dropped, of each of 2 sequences
        Tower(
            stack=Stack(
                d_model=11, embedding=None, relative_bias=None, groups=(), final_norm=RMS, pooler=None, head=None
            ),
            projector=Projector(
                steps=(ProjectorStep("linear", Linear(d_in=22, d_out=3, bias=False), 1),), per_token=2, width=3
            ),
            dropped=1,
        ),
        params=11 + 66,
        flops=2 * 6 * 66,
        flops_other=14 * 44,
        traffic=(11 + 66, 14 * 22 + 6 * 25, 0),
        saved=14 * 11 + 6 * 22,
    ),
}

FORMULAS = ("weights", "operations", "saved", "cache", "transfers")


@pytest.mark.parametrize("name", ROWS)
def test_pinned(name: str) -> None:
    part, work, pinned = ROWS[name]
    assert figures(part, work) == pinned


def test_every_part_is_pinned() -> None:
    adapters = {LowRank, Frozen}  # pinned in test_adapters, beside what torch has
    assert {type(part) for part, _, _ in ROWS.values()} == {*LEAVES, *COMPOSITES} - adapters


def fresh(part: Any) -> Any:
    """The same part without what it remembers of its children and weights."""
    return type(part)(**{field.name: getattr(part, field.name) for field in fields(part)})


def doubled(value: Any) -> Any:
    """Twice as much of everything: a tuple of weights or operations twice, a number or cache times two."""
    if type(value) is Cache:
        return Cache(*(2 * item for item in value))
    return (*value, *value) if isinstance(value, tuple) else 2 * value


DEFINED = [
    (cls, formula) for cls in LEAVES for formula in FORMULAS if getattr(cls, formula) is not getattr(Leaf, formula)
]


@pytest.mark.parametrize(("cls", "formula"), DEFINED, ids=lambda item: getattr(item, "__name__", item))
def test_a_doubled_formula_is_noticed(cls: type[Leaf], formula: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = getattr(cls, formula)
    monkeypatch.setattr(cls, formula, lambda *arguments: doubled(honest(*arguments)))
    rows = [(fresh(part), work, pinned) for part, work, pinned in ROWS.values() if type(part) is cls]
    assert any(figures(part, work) != pinned for part, work, pinned in rows)


COSTS = {
    "add": 1, "layer_norm": 7, "layer_norm_nobias": 6, "rms_norm": 4, "softmax": 5, "rotary": 3, "relu": 1, "relu2": 2,
    "gelu": 5, "gelu_tanh": 9, "quick_gelu": 4, "silu": 4, "clamped_silu": 8, "sigmoid": 3, "tanh": 1, "softplus": 2,
    "cut": 6, "xielu": 6, "none": 0,
}  # fmt: skip


def test_costs_are_pinned() -> None:
    assert COST == COSTS


def mutants(op: Any) -> Iterator[Any]:
    """The operation with one of its numbers changed."""
    fields: tuple[str, ...]
    if type(op) is MatMul:
        fields = ("count", "m", "k", "n") if op.visible is None else ("count", "m", "k", "n", "visible")
    else:
        fields = ("elements", "cost") if op.cost else ()
    for field in fields:
        yield op._replace(**{field: getattr(op, field) + 1})
    for i, elements in enumerate(op.traffic):
        if elements != 0:
            yield op._replace(traffic=type(op.traffic)(*(n + (i == j) for j, n in enumerate(op.traffic))))


@pytest.mark.parametrize("name", [name for name, (part, _, _) in ROWS.items() if isinstance(part, Leaf)])
def test_every_number_of_an_operation_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part, work, pinned = ROWS[name]
    honest = part.operations(work)
    for i, op in enumerate(honest):
        for mutant in mutants(op):
            tampered = (*honest[:i], mutant, *honest[i + 1 :])
            monkeypatch.setattr(type(part), "operations", lambda self, work, tampered=tampered: tampered)
            assert figures(part, work) != pinned, mutant


def feels(child: Any, other: Any, work: Workload) -> bool:
    """False for what is done once, whatever the batch."""
    return figures(child.part, child.on(work)) != figures(child.part, other.on(work))


@pytest.mark.parametrize("name", [name for name, (part, _, _) in ROWS.items() if not isinstance(part, Leaf)])
def test_every_child_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped, there twice, or with a batch of one more."""
    part, work, pinned = ROWS[name]
    honest = list(part.children())
    for i, child in enumerate(honest):
        done = None if child.on(work) is None else figures(child.part, child.on(work)).keys() - {"params", "active"}
        owns = child.part.params if isinstance(child.part, Leaf) else True
        wider = child._replace(on=lambda work, on=child.on: on(work)._replace(batch=work.batch + 1))
        others = ([[], [child, child]] if done or owns else []) + (
            [[wider]] if done and feels(child, wider, work) else []
        )
        assert others or done is None, f"{child.name} does nothing"
        for other in others:
            tampered = [*honest[:i], *other, *honest[i + 1 :]]
            monkeypatch.setattr(type(part), "children", lambda self, tampered=tampered: iter(tampered))
            assert figures(fresh(part), work) != pinned, child.name
