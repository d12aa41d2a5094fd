"""Memory of one accelerator of a pipeline stage: weights, KV caches and states, and the peak of activations."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import NamedTuple

from msgspec import Struct

from txcalc.ledger import Entry, walk
from txcalc.model import MAX_TOKENS, Model
from txcalc.num import ceil_div
from txcalc.parts.part import Leaf
from txcalc.parts.sharding import Ways
from txcalc.parts.taps import Convolution
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import PipelineStage
from txcalc.planning.serving.engine import EngineConfig


class Held(NamedTuple):
    """A leaf with a cache per sequence (keys and values, or a state), which occurs `copies` times on a rank; its pages
    are those of `padding` more."""

    path: str
    leaf: Leaf
    copies: int
    padding: int = 0


class Caches(Struct, frozen=True):
    """One sequence's cache in bytes: as later tokens read it, in whole pages, and if windows dropped nothing."""

    algorithmic: int
    pages: int
    dense: int


class SequencePages(NamedTuple):
    """Bytes of one sequence's pages: kept until its end, dropped after its prefill, and those kept that all share."""

    kept: int
    prefilling: int
    shared: int


class RankBytes:
    """Memory of one accelerator of a stage: the bytes that do not depend on the load, and those of each sequence.

    draft         the memory of a draft model on this accelerator; None: no draft
    block         tokens of a page of the cache
    ram_weights   weights of the stage in host RAM
    ram_caches    leaves whose caches are in host RAM
    """

    def __init__(
        self,
        model: Model,
        stage: PipelineStage,
        engine: EngineConfig,
        layout: Layout | None = None,
        draft: RankBytes | None = None,
    ) -> None:
        self.model, self.stage, self.engine, self.draft = model, stage, engine, draft
        ledger = model.entries if stage.root is model.root else stage.ledger(model.workload())
        stored = [(entry, engine.stored(entry)) for entry in ledger if entry.leaf.params]
        offload = engine.offload
        self.weights = [(entry, size) for entry, size in stored if not (offload and offload.holds(entry))]
        self.ram_weights = [(entry, size) for entry, size in stored if offload and offload.holds(entry)]
        self.adapters_bytes = 0
        if engine.adapters:
            elements = sum(map(engine.adapted, ledger))
            self.adapters_bytes = engine.adapters * _bytes(elements * engine.activation_bits)
        self.weights_bytes: int = sum(size for _, size in self.weights) + (draft.weights_bytes if draft else 0)
        self.towers_bytes = towers_bytes(model, engine, layout.tp if layout else 1, stage.first)
        self.weights_bytes += self.adapters_bytes + self.towers_bytes
        caching = [(entry, Held(entry.path, entry.leaf, entry.runs)) for entry in ledger if any(entry.cache_terms)]
        self.block = engine.block
        if engine.memory and engine.memory.profile.rules.groups:
            caching = self._in_groups(caching, int(engine.memory.profile.numbers.get("states", 1)))
        self.gpu_caches = [cache for entry, cache in caching if not (offload and offload.keeps(entry))]
        self.ram_caches = [cache for entry, cache in caching if offload and offload.keeps(entry)]
        self.caching = model.decodes
        self._pages: dict[int, SequencePages] = {}
        vocab = model.vocab_size or 0
        has_head = any(entry.kind == "head" for entry in ledger)
        # Per sequence over the whole vocabulary: as computed, and once more in fp32 for sampling.
        self._logits = vocab * (engine.activation_bits + 32) // 8 if has_head else 0
        # The engine's profiled peak and its further buffers; a model that does not decode has no profile run.
        memory = engine.memory if self.caching else None
        if memory:
            memory.check(engine.weights, model, ledger, layout or Layout())
        self.profiled = (
            memory.activations(stage.root, vocab if has_head else 0, ledger, engine.weights) if memory else {}
        )
        occupied = self.weights_bytes + max(self.profiled.values(), default=0)
        graphs = memory.graphs(model, ledger, stage.root.stacks[-1]) if memory else 0
        self.overheads = memory.overheads(model, layout or Layout(), occupied, graphs) if memory else {}
        self.graphs = 0 if "CUDA graphs" in self.overheads else graphs  # outside the engine's memory budget

    def _in_groups(self, caching: list[tuple[Entry, Held]], states: int) -> list[tuple[Entry, Held]]:
        """Caches as vLLM stores them (v1/core/kv_cache_utils.py, platforms/interface.py).

        Groups of layers with one window, or with states, have equally many layers: as many as the rarest kind has, or
        the most frequent one if it has less than 1.5 times as many. All have pages of one size: in a model with states,
        as many tokens as a layer's states take. A sequence keeps `states` of each.
        """
        work = self.model.workload(1, 1)
        drafts = self.draft.gpu_caches if self.draft and self.draft.model is self.model.predictor else []
        layers: Counter[object] = Counter()
        states_bits, token_bits = dict[object, int](), 0
        for cache in [*(cache for _, cache in caching), *drafts]:
            layers[_kind(cache.leaf)] += cache.copies
            bits = int(cache.leaf.cache(work).elements * self.engine.bits_cached(cache.leaf))
            if isinstance(cache.leaf, Convolution):  # vLLM keeps a column less
                bits -= bits // cache.leaf.taps
            if cache.leaf.cache_kind == "tokens":
                token_bits = max(token_bits, bits)
            else:
                states_bits[_kind(cache.leaf)] = bits
        least, most = min(layers.values(), default=1), max(layers.values(), default=1)
        size = most if 2 * most < 3 * least else least
        if token_bits:
            self.block = max(self.block, 16 * ceil_div(sum(states_bits.values()), 16 * token_bits))
        padded = []
        for entry, cache in caching:
            pages = cache.copies + -layers.pop(_kind(cache.leaf), 0) % size
            number = pages * (states if cache.leaf.cache_kind == "state" else 1)
            padded.append((entry, cache._replace(padding=number - cache.copies)))
        return padded

    def caches(self, context: int) -> Caches:
        """One sequence's cache at a context length."""
        work, bits_cached = self.model.workload(1, context), self.engine.bits_cached
        leaves = [(cache.leaf, cache.copies * bits_cached(cache.leaf)) for cache in self.gpu_caches]
        algorithmic = sum(_bytes(leaf.cache(work).elements * bits) for leaf, bits in leaves)
        dense = sum(_bytes(leaf.dense(work) * bits) for leaf, bits in leaves)
        return Caches(algorithmic, sum(size for _, size in self.pages(context)), dense)

    def pages(self, context: int, room: int | None = None, in_ram: bool = False) -> list[tuple[Held, int]]:
        """One sequence's pages in bytes, leaf by leaf, with `room` beside windows (None: as in prefill)."""
        work, engine = self.model.workload(1, context), self.engine
        caches = self.ram_caches if in_ram else self.gpu_caches
        room = engine.window_room[0] if room is None else room
        sizes = (cache.leaf.paged(work, self.block, room) * (cache.copies + cache.padding) for cache in caches)
        return [
            (cache, _bytes(size * engine.bits_cached(cache.leaf))) for cache, size in zip(caches, sizes, strict=True)
        ]

    def ram(self, context: int, sequences: int) -> int:
        """Bytes of the stage's weights and caches in host RAM."""
        pages = self.pages(context, in_ram=True) if self.ram_caches else ()
        return sum(size for _, size in self.ram_weights) + sequences * sum(size for _, size in pages)

    def pages_bytes(self, context: int) -> int:
        """Bytes of one sequence's pages, with those of its draft."""
        return sum(self._known(context)[:2])

    def cache_bytes(self, context: int, sequences: int) -> int:
        """Bytes of the cache pages of `sequences` sequences. A shared prefix counts once, and so do pages that windows
        drop after a chunk of prefill: a step computes at most one chunk of prompt tokens."""
        pages, longest = self._known(context), self._known(MAX_TOKENS)
        shared = max(0, sequences - 1) * pages.shared
        return sequences * pages.kept - shared + min(sequences * pages.prefilling, longest.prefilling)

    def _known(self, context: int) -> SequencePages:
        """A prefix saves the pages that a sequence without it lacks: nothing of a state or dropped by a window."""
        if context not in self._pages:
            prefix, room = self.engine.shared, self.engine.window_room
            every, released = (self._pages_sum(context, tokens) for tokens in room)
            shared = released - self._pages_sum(max(1, context - prefix), room[1]) if prefix else 0
            draft = self.draft._known(context) if self.draft else SequencePages(0, 0, 0)
            pages = SequencePages(released + draft.kept, every - released + draft.prefilling, shared + draft.shared)
            self._pages[context] = pages
        return self._pages[context]

    def _pages_sum(self, context: int, room: int) -> int:
        return sum(size for _, size in self.pages(context, room))

    def fits(self, usable: int, context: int, sequences: int) -> bool:
        """Whether weights, cache and activations fit. Activations come last, as they take time to compute."""
        free = usable - sum(self.overheads.values()) - self.weights_bytes - self.cache_bytes(context, sequences)
        return free >= 0 and free >= max(self.activations(context, sequences).values())

    def activations(self, context: int, sequences: int) -> dict[str, int]:
        """Peak bytes of activations by phase (prefill, decode, logits); the largest counts.

        Counts   the residual stream, and the most that one operation reads and writes besides it (all routed experts
                 are one operation); prefill without a cache, as engines profile it
        """
        if self.profiled:
            return self.profiled
        if not self.caching:  # there is only the forward pass
            return {"forward": sequences * self._peak(context, False)}
        return {
            "prefill": self._peak(min(self.engine.chunk, context * sequences), False),
            "decode": sequences * self._peak(1, True),
            "logits": sequences * self._logits,
        }

    def _peak(self, tokens: int, decoding: bool) -> int:
        alive = self.stage.alive
        if (tokens, decoding) not in alive:
            form = "absorbed" if decoding else "expanded"
            work = self.model.workload(1, tokens, mla=form, decoding=decoding)
            most = self.stage.live(work, "head" if self.caching else "")
            width = max(stack.d_model for stack in self.stage.root.stacks)
            stream = width * max(work.tokens, work.source if self.model.has_encoder_apart else 0)
            alive[tokens, decoding] = most + stream
        return _bytes(ceil(alive[tokens, decoding] * self.engine.activation_bits))


def _kind(leaf: Leaf) -> object:
    """What layers of one of vLLM's groups have in common: the window, or the type of the state."""
    return leaf.max_keys if leaf.cache_kind == "tokens" else type(leaf)


def towers_bytes(model: Model, engine: EngineConfig, tp: int, stage: int) -> int:
    """Bytes of a multimodal model's towers on one GPU of a stage, in 16 bits: most quantised checkpoints leave them
    unquantised. A tower whose heads `tp` does not divide is whole on every GPU."""
    if stage and engine.towers == "first":
        return 0
    elements = 0
    for root in model.tower_roots:
        ways = Ways(tp if engine.towers == "split" else 1)
        share = root.shard(ways) if ways.tp > 1 else root
        elements += walk(root if ways.faults else share, model.workload()).total("params")
    return _bytes(elements * engine.activation_bits)


def _bytes(bits: int) -> int:
    return ceil_div(bits, 8)
