"""An engine's memory besides weights and cache: by engine and version, from `presets/engines.toml`.

vLLM fills `gpu_memory_utilization` of the memory that CUDA reports: with weights, the peak of a profile run (a step of
the most tokens, then a sampler over every sequence's logits), memory outside torch and, in later versions, CUDA graphs;
the rest is the cache. SGLang keeps a fixed part for activations and graphs, TensorRT-LLM a tenth of the free memory,
llama.cpp buffers of one batch. These are *modelled*: formulas from the engines' code, constants from their logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any

from msgspec import Struct

from txcalc.errors import InputError
from txcalc.hardware import Accelerator
from txcalc.ledger import Entry, same_input, walk
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.parts.model import Stack
from txcalc.parts.part import MatMul, Weight
from txcalc.planning.formats.weights import Format
from txcalc.planning.layout import Layout
from txcalc.planning.machine import PCIE_5
from txcalc.planning.serving.engine_profiles import EngineProfile, data
from txcalc.units import iec, parse_bytes

GIB = 2**30


class EngineMemory(Struct, frozen=True, dict=True):
    """An engine on an accelerator.

    context     tokens that a sequence may have (max_model_len)
    sequences   at once, whose logits its profile run holds (max_num_seqs); None: the engine's default
    tokens      of the step that it profiles (max_num_batched_tokens); None: the engine's default
    """

    profile: EngineProfile
    accelerator: Accelerator
    context: int
    sequences: int | None = None
    tokens: int | None = None

    @cached_property
    def large(self) -> bool:
        """Whether the engine's defaults have larger batches on this card."""
        table = data()["large"]
        return self.accelerator.visible >= parse_bytes(table["least"], "least") and (
            self.accelerator.name not in table["without"]
        )

    @property
    def hopper(self) -> bool:
        """Whether the card has FlashAttention 3 and Triton's kernels for MXFP4."""
        return self.accelerator.generation == "hopper"

    @property
    def score_bytes(self) -> int:
        """Bytes that each attention score of a prompt moves through memory; 0 with flash attention."""
        return int(self.profile.numbers.get("score_bytes_cublas" if self.of_vendor("widened") else "score_bytes", 0))

    def of_vendor(self, key: str) -> int:
        """A number of the version for cards of a vendor; 0: there is none.

        attention_kernels   launched for a decode step's attention where it is unfused; `grouped_kernels`: if grouped
        score_flops         the least of a decode step's score, if a thread group starts for each key and query head
        widened             tokens of a step from which weights are converted to 16 bits for cuBLAS
        """
        return int(self.profile.numbers.get(key, {}).get(self.accelerator.vendor, 0))

    @property
    def at_once(self) -> int | None:
        """Sequences that a replica runs at once; None: the user sets it (llama.cpp's --parallel)."""
        return self.sequences or self.profile.of_card("sequences", self.large) or None

    @property
    def most_sequences(self) -> int:
        return self.at_once or 1

    @property
    def most_tokens(self) -> int:
        """Tokens of the step that the engine profiles."""
        context = self.context
        if self.tokens is not None:
            return self.tokens
        if self.profile.numbers.get("tokens") != "context":
            return self.profile.of_card("tokens", self.large)
        longest = int(self.profile.numbers.get("longest", context))
        return max(context, 2048) if context <= longest else int(self.profile.numbers["chunk"])

    def activations(self, root: Any, vocab: int, ledger: Iterable[Entry], form: Format) -> dict[str, int]:
        """Peak bytes of each stage of the engine's profile run; the largest counts. `ledger`: a rank's."""
        tokens, stack, rules = self.most_tokens, root.stacks[-1], self.profile.rules
        if rules.fixed:
            return {"step": 0}  # within the fixed part
        if rules.batch_logits:
            peaks = {"batch": tokens * 4 * (vocab + stack.d_model)}
            if self.score_bytes:
                heads = max((int(core.heads) for leaf in stack.leaves() if (core := leaf.attended)), default=0)
                peaks["scores"] = 4 * tokens * (heads * self.context + self.context + 4 * stack.d_model)
            return peaks
        step = 2 * tokens * step_elements(stack)
        hidden = 2 * tokens * stack.d_model
        logits = min(self.most_sequences, tokens) * vocab * int(self.profile.numbers["logit_bytes"])
        workspace = self.workspace(ledger, form) if self.profile.numbers.get("workspace") else 0
        return {"step": step, "sampler": logits + hidden + workspace if vocab else 0}

    def workspace(self, ledger: Iterable[Entry], form: Format) -> int:
        """Bytes that Triton's kernels of experts (for weights of 8 bits and more) allocate permanently: two buffers in
        16 bits for every chosen expert's rows, the input and the output of the activation, each at least as wide as the
        stream (`TritonExperts.workspace_shapes`)."""
        most = Fraction(0)
        products = [(entry, matrix) for entry in ledger if entry.routed and (matrix := entry.leaf.matrix)]
        first = Counter(entry.steps[:-1] for entry, _ in products if entry.duty != "writes")  # gate and up, or up alone
        for entry, (wide, stream) in products:
            if entry.duty == "writes":
                if form.bits_of(entry.leaf.weights()[0], entry) < 8 * wide * stream:
                    continue
                width = max(first[entry.steps[:-1]] * wide, stream) + max(wide, stream)
                most = max(most, Fraction(entry.runs) / entry.layers * width)
        return ceil(2 * self.most_tokens * most)

    def check(self, form: Format, model: Model, ledger: Iterable[Entry], layout: Layout) -> None:
        """Errors: `InputError` for a rank's matrix that ends within a group of its format or that tp splits within a
        tile, which the engine does not load."""
        if not self.profile.rules.divides:
            return
        whole = {}  # without a tied head's, which a later stage has of its own
        if layout.tp > 1:
            whole = {e.path: e.leaf.tensors for e in walk(model.root, model.workload()) if e.leaf.tensors}
        for entry in ledger:
            for weight, uncut in zip(entry.leaf.tensors, whole.get(entry.path, entry.leaf.tensors), strict=True):
                for part, _ in form.parts(weight, entry):
                    if part and not part.filled and (lines := _cut(part, weight.shape, uncut.shape)):
                        fault = f"{self.profile} loads no part of a block: {part.name}'s of {part.long} do not divide"
                        sizes = " × ".join(f"{size:,}" for size in weight.shape)
                        ways = f", which each of tp = {layout.tp} GPUs has" if layout.tp > 1 else ""
                        raise InputError("layout", [f"{fault} the {lines} of {entry.path} ({sizes}){ways}"])

    def overheads(self, model: Model, layout: Layout, torch_bytes: int, graphs: int) -> dict[str, int]:
        """The engine's bytes besides weights, cache and activations, by name. `taken`: bytes of a rank's weights and
        activations; `graphs`: of its CUDA graphs, which only some versions budget here."""
        numbers = self.profile.numbers
        staged = self._staged(layout)
        split = max(layout.tp, layout.expert_group, 1 if staged else layout.pp) > 1
        sizes: dict[str, int] = {}
        if self.profile.rules.fixed:
            tokens = self.tokens or self.profile.of_card("tokens", self.large)
            sequences = self.sequences or self.profile.of_card("graph_sequences", self.large)
            mib = 512 + Fraction(3, 2) * max(tokens, 2048) + 2 * sequences + Fraction(layout.tp * layout.pp, 8) * 1024
            fixed = ceil(mib * 2**20)
            return {"activations and graphs": max(fixed, 10 * GIB) if self.accelerator.memory > 60 * GIB else fixed}
        kind = "_split" if (self.accelerator.link or 0) > PCIE_5 else "_bus"
        unsplit = "outside_torch_stages" if staged else "outside_torch"
        key = next((k for k in (f"outside_torch{kind}", "outside_torch_split") if split and k in numbers), unsplit)
        sizes["outside torch"] = parse_bytes(numbers[key], key)
        if self.profile.rules.keeps_rope_cache:
            sizes["rotary table"] = rotary_table(model)
        if graphs and numbers.get("graphs_within"):
            sizes["CUDA graphs"] = graphs
        if "free_share" in numbers:
            free = max(0, self.accelerator.visible - torch_bytes - sum(sizes.values()))
            sizes["left free"] = ceil(free * (1 - Fraction(str(numbers["free_share"]))))
        return sizes

    def _staged(self, layout: Layout) -> bool:
        """Whether the version is known to open no channels between pipeline stages before it sizes the cache."""
        return layout.pp > 1 == layout.tp == layout.expert_group and "outside_torch_stages" in self.profile.numbers

    def padded(self, entry: Entry, form: Format, size: int) -> int:
        """Bytes of a leaf's weights as the engine stores them: vLLM pads MXFP4 experts to its kernels' sizes."""
        if not self.profile.rules.pads_mxfp4 or not entry.routed or entry.leaf.matrix is None:
            return size
        (weight, *_), table = entry.leaf.weights(), data()["mxfp4"]
        stored = next((f for f, _ in form.parts(weight, entry) if f), None)
        if stored is None or stored.name != "mxfp4" or stored.block != 32:
            return size
        generation = "hopper" if self.hopper and not self.profile.numbers.get("marlin") else "others"
        kind = "blackwell" if self.accelerator.name in table["blackwell"]["cards"] else generation
        ff, stream = table[kind]["d_ff"], table[kind]["d_model"]
        tall, long = (stream, ff) if entry.duty == "writes" else (ff, stream)
        rows, columns = weight.shape
        wide = Weight(weight.name, (ceil_div(rows, tall) * tall, ceil_div(columns, long) * long))
        padding: int = (stored.matrix_bits(wide) - stored.matrix_bits(weight)) // 8 * entry.times
        return size + padding

    def notes(self, model: Model, outside: int, layout: Layout) -> Iterator[str]:
        if not model.decodes:
            yield f"{self.profile.label} memory is known for decoders alone: none is counted for {model.name}"
            return
        rules, batch = self.profile.rules, f"a step of {self.most_tokens:,} tokens"
        logits = " with all its logits" if rules.batch_logits else f", {self.most_sequences:,} sequences' logits"
        batch = f"a fixed part for activations, logits and graphs, by {batch}" if rules.fixed else batch + logits
        stands = f", {self.profile.newest}" if self.profile.newest else ""
        yield f"memory of {self.profile.label} (modelled{stands}): {batch}"
        if self._staged(layout):
            yield f"stages open no channels before {self.profile.label} sizes the cache: its logs of 2 and 4 stages"
        if outside:
            yield f"CUDA graphs take some {iec(outside)} of what the reserve leaves, more with many batch sizes"

    def graphs(self, model: Model, ledger: Iterable[Entry], stack: Stack) -> int:
        """Bytes of a rank's CUDA graphs: nodes of every captured batch size, and the buffers that all of them share.

        Nodes    two for a product: its own and the fused operations before it; two for an attention: its own and the
                 cache's. Graphs of pieces end before an attention, whole ones contain it
        Buffers  a step of the largest batch; FlashAttention 3's partial sums over `parts` of the keys
        """
        rule, table = self.profile.numbers.get("captured"), data()["graphs"]
        if rule is None:
            return 0
        most = table["largest"].get(model.description.model_type, table["largest"]["others"])
        most = min(most, 2 * self.most_sequences, self.most_tokens)
        largest = min(self.most_sequences, most) if rule["whole"] else 0
        pieces, whole = (captured_sizes(size, rule["fine"]) for size in (most if rule["pieces"] else 0, largest))
        three = self.hopper
        before: Entry | None = None
        products = cores = wide = 0
        for entry in ledger:
            if entry.leaf.matrix and entry.kind != "head" and not same_input(before, entry):
                products += entry.layers if entry.routed else entry.runs
            elif (core := entry.leaf.attended) and entry.work:
                cores += entry.runs
                computed = entry.leaf.operations(entry.work._replace(absorbed=True))
                values = [op.n for op in computed if op.name == "values" and isinstance(op, MatMul)]
                wide = max(wide, core.heads * (values[0] if values else core.d_v))
            before = entry
        nodes = (pieces + whole) * 2 * products + whole * (4 if three else 2) * cores
        parts = table["parts"] * 4 * largest * wide if three else 0
        shared = 2 * max(most, largest) * step_elements(stack) + parts + parse_bytes(table["shared"], "shared")
        size: int = ceil(nodes * table["node"]) + shared
        return size


def captured_sizes(largest: int, fine: int) -> int:
    """Batch sizes up to the largest: 1, 2, 4, every eighth up to `fine`, and then every sixteenth."""
    return sum(n <= largest for n in (1, 2, 4)) + min(largest, fine) // 8 + max(0, largest - fine) // 16


def rotary_table(model: Model) -> int:
    """Bytes of vLLM's cosines and sines for every position up to the model's context, in 16 bits."""
    angles_of_leaves = (leaf.angles for leaf in model.root.leaves())
    sizes = {(angles[0], str(angles[1])) for angles in angles_of_leaves if angles}
    return sum(2 * int(dims) * (model.context or 0) for dims, _ in sizes)


def step_elements(stack: Stack) -> int:
    """Elements alive per token at the peak of a rank's step: the residual stream with its sum and norm, and the widest
    branch (gate, up and their product; or queries, keys, values and attention's output)."""
    widest = max((group.block.peak_elements() for group in stack.groups), default=0)
    elements: int = ceil(4 * stack.d_model + widest)
    return elements


def _cut(form: Format, shape: tuple[int, ...], whole: tuple[int, ...]) -> str:
    """Whether rows or columns of a rank's matrix end within a quantisation group or are split within a tile; "": no."""
    if not isinstance(form.block, tuple):
        return "rows" if form.block and shape[-1] % form.block else ""
    ends = zip(("columns", "rows"), shape, whole, form.block, strict=True)
    return next((name for name, now, before, size in ends if now != before and now % size), "")
