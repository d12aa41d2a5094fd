"""What an engine keeps of an accelerator beside weights and cache: by engine and version, from `presets/engines.toml`.

vLLM fills `gpu_memory_utilization` of what CUDA reports; of that it takes the weights, the peak of a profile run (a
step of as many tokens as one may have, then a sampler over every sequence's logits), what lies outside torch and, in
later versions, CUDA graphs: the rest is the cache. SGLang keeps a fixed part for activations and graphs, TensorRT-LLM a
tenth of what is free, llama.cpp buffers of one batch. These are *modelled*: formulas of the engines' own code,
constants of what their logs print.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any, NamedTuple

from txcalc.errors import Fault, InputError, UnknownName
from txcalc.hardware import Accelerator
from txcalc.ledger import Entry, same_input
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.parts.model import Stack
from txcalc.parts.part import Weight
from txcalc.planning.layout import Layout
from txcalc.planning.weights import GGML, Format, Mixed, plain
from txcalc.units import iec, parse_bytes

PCIE = 64 * 10**9  # bytes a second of sixteen lanes of PCIe 5.0
GIB = 2**30


class EngineRules(NamedTuple):
    """What an engine does in every version of it.

    share     of what CUDA reports, what it leaves alone unless told, or a version has another (`left_alone`); its CUDA
              graphs lie there, captured after the cache was sized, unless a version counts them (`graphs_within`)
    fixed     activations and graphs live in a part of a fixed size
    batched   it holds the logits of a whole batch, in fp32, and no step is profiled
    turns     it keeps the cosines and sines of every position
    pads      it pads MXFP4 experts to what its kernels take
    offloads  it computes what the host holds there: the table of tokens, layers, experts
    alike     one kernel template reads all types of as many bits (ggml-cuda/mmvq.cu)
    streams   shared experts are computed beside the routed ones while decoding, on a stream of their own
    """

    title: str
    share: Fraction = Fraction(0)
    fixed: bool = False
    batched: bool = False
    turns: bool = False
    pads: bool = False
    offloads: bool = False
    alike: bool = False
    streams: bool = True


ENGINES = {
    "vllm": EngineRules("vLLM", share=Fraction(1, 10), turns=True, pads=True),
    "sglang": EngineRules("SGLang", fixed=True),
    "trtllm": EngineRules("TensorRT-LLM"),
    "llama.cpp": EngineRules("llama.cpp", batched=True, offloads=True, alike=True, streams=False),
}


class Profile(NamedTuple):
    """An engine's version and its numbers."""

    engine: str
    version: str
    source: str
    numbers: Mapping[str, Any]

    @property
    def rules(self) -> EngineRules:
        return ENGINES[self.engine]

    @property
    def kernels(self) -> str:
        """Whose measured kernels it has, from the version on that they were measured of; "": what engines share."""
        named = any("kernels" in row for row in _data()[self.engine.replace(".", "")])
        return str(self.numbers.get("kernels", "")) if named else self.engine

    def size(self, key: str) -> int:
        """Bytes of a key; 0 where it is not said."""
        return parse_bytes(self.numbers[key], key) if key in self.numbers else 0

    def of_card(self, key: str, large: bool) -> int:
        """A number that large cards may have another of."""
        return int(self.numbers.get(f"{key}_large" if large else key, self.numbers.get(key, 0)))

    def __str__(self) -> str:
        return f"{self.rules.title} {self.version}"


@cache
def _data() -> Mapping[str, Any]:
    from txcalc.sources.presets import folder, read

    return read(folder() / "engines.toml")[0]


class Latency(NamedTuple):
    """An engine's own share of latencies, in seconds.

    own_s       of TTFT, and `steps` decode steps where others decode
    step_s      of a decode step, and `sequence_s` of it for each sequence: scheduling, sampling, handing tokens on
    together    share of a closed loop's rounds in which all its prompts come, and are computed, before any answer
    """

    own_s: float
    steps: float
    step_s: float
    sequence_s: float
    together: float
    source: str


def latency(name: str) -> Latency:
    """Of an engine by its name; of one that is not known, or none, vLLM's."""
    known = _data()["latency"]
    return Latency(**known.get(name, known["vllm"]))


def names() -> list[str]:
    """Every engine, and each of its versions that is known."""
    versions = (f"{name}@{row['version']}" for name in ENGINES for row in _data()[name.replace(".", "")])
    return [*ENGINES, "none", *versions]


def profile(text: str) -> Profile | None:
    """`vllm`, `vllm@0.8`, `none`: an engine and a version of it, or the newest before it.

    Errors: `UnknownName` with the nearest; `InputError` for a version before the first.
    """
    name, at, wanted = text.strip().lower().partition("@")
    name = {"llamacpp": "llama.cpp", "tensorrt-llm": "trtllm"}.get(name, name)
    if name == "none" and not at:
        return None
    if name not in ENGINES:
        raise UnknownName("--engine", "engine", text, [*ENGINES, "none"], f"one of {', '.join(ENGINES)}, none")
    rows = _data()[name.replace(".", "")]
    known = [row for row in rows if not at or _order(row["version"]) <= _order(wanted)]
    if (at and not wanted) or not known:
        versions = ", ".join(row["version"] for row in rows)
        raise InputError(
            "--engine", [f"{text!r} names no version that is known: from {rows[0]['version']} ({versions})"]
        )
    row = known[-1]
    return Profile(name, row["version"], row["source"], row)


def offloading(text: str) -> str:
    """The engine that leaves layers in RAM, where none is named. Errors: `InputError` for one that does not."""
    if text == "none":
        return "llama.cpp"
    if (found := profile(text)) and not found.rules.offloads:
        expected = "llama.cpp: the others compute all that they serve on the GPU"
        raise InputError("--ram", [Fault("--engine", text, expected)])
    return text


def without(name: str, form: Format, accelerator: Accelerator | None, kv: str = "bf16") -> Fault | None:
    """A fault where an engine has no kernels for a format, or none on a card, which names those that have."""
    on = f" on {accelerator.title}" if accelerator else ""
    if not _runs(name, "", accelerator):
        others = [ENGINES[one].title for one in ENGINES if _runs(one, "", accelerator)]
        return Fault("--engine", ENGINES[name].title, f"an engine that runs{on}", ", ".join(others) or "--engine none")
    stored = (one for row in form.table.values() for one in row.values()) if isinstance(form, Mixed) else (form,)
    for each in sorted({one.name for one in stored if one}):
        kind = "gguf" if each in GGML and each != "mxfp4" else each.partition("-g")[0]  # groups are of any size
        if not _runs(name, kind, accelerator):
            others = [ENGINES[one].title for one in ENGINES if _runs(one, kind, accelerator)]
            said = form.name if form.name == each else f"{form.name}, with {each}"
            return Fault("--weights", said, f"a format that {ENGINES[name].title} has{on} ({_have(others)})")
    kind = plain(kv)
    if kind not in (*(formats := _data()["formats"])["wide"], *formats[name]["kv"]):
        others = [ENGINES[one].title for one in ENGINES if kind in formats[one]["kv"]]
        return Fault("--kv", kv, f"a format of {ENGINES[name].title}'s cache ({_have(others)})")
    return None


def _have(engines: list[str]) -> str:
    return f"{', '.join(engines)} {'has' if len(engines) == 1 else 'have'} it" if engines else "no engine has it"


def _runs(name: str, kind: str, accelerator: Accelerator | None) -> bool:
    """Whether an engine has a format, "" any, on a card; of one that no table names, by its vendor."""
    own, ages = _data()["formats"][name], _data()["generations"]
    if kind and kind not in (*own["names"], *_data()["formats"]["wide"]):
        return False
    if accelerator is None or not accelerator.vendor:
        return True
    since, order = own.get("since", {}), list(ages)
    age = next((order.index(age) for age in order if accelerator.name in ages[age]), len(order))
    least = max((order.index(since[one]) for one in ("any", kind) if one in since), default=0)
    lacking = own.get("lacks", {}).get(accelerator.vendor, ())
    return accelerator.vendor in own["vendors"] and age >= least and kind not in lacking


def laid_out(name: str) -> str:
    """How an engine lays out the towers of a multimodal model: `split`, `whole` or `first`."""
    return str(_data()["towers"][name]["layout"])


def _order(version: str) -> tuple[int, ...]:
    return tuple(int("0" + "".join(filter(str.isdecimal, part))) for part in version.split(".")[:3])


def visible(accelerator: Accelerator) -> int:
    """Bytes of it that a CUDA process sees, or that Metal lets a GPU take of unified memory; else all."""
    memory = accelerator.memory
    if found := _data()["visible"].get(accelerator.name):
        return min(memory, int(found["value"] * GIB))
    rule = _data()["visible_else"].get(accelerator.vendor, {})
    for step in rule.get("shares", ()):
        if memory > parse_bytes(step["above"], "above"):
            times, of = step["share"]
            return memory * int(times) // int(of)
    return max(memory // 2, memory - parse_bytes(rule.get("unseen", "0B"), "unseen"))


@dataclass(frozen=True)
class EngineMemory:
    """An engine on an accelerator.

    context     tokens that a sequence may have (max_model_len)
    sequences   those at once, whose logits its profile run holds (max_num_seqs); None: the engine's own default
    tokens      of the step that it profiles (max_num_batched_tokens); None: the engine's own default
    """

    profile: Profile
    accelerator: Accelerator
    context: int
    sequences: int | None = None
    tokens: int | None = None

    @property
    def large(self) -> bool:
        """Whether the card is one of those that the engine gives larger batches."""
        table = _data()["large"]
        return visible(self.accelerator) >= parse_bytes(table["least"], "least") and (
            self.accelerator.name not in table["without"]
        )

    @property
    def hopper(self) -> bool:
        """Whether the card is one of those with FlashAttention 3 and Triton's kernels for MXFP4."""
        return self.accelerator.name in _data()["hopper"]["cards"]

    @property
    def score_bytes(self) -> int:
        """Bytes that every score of a prompt's attention moves; 0: with flash attention, none."""
        return int(self.profile.numbers.get("score_bytes_cublas" if self.widened else "score_bytes", 0))

    @property
    def widened(self) -> int:
        """Tokens of a step from which weights are widened for cuBLAS; 0: kernels multiply them as they are stored."""
        return int(self.profile.numbers.get("widened", {}).get(self.accelerator.vendor, 0))

    def attention_kernels(self, grouped: bool) -> int:
        """Kernels of a token's attention, where they are many; 0: those of the one that does it all."""
        key = "grouped_kernels" if grouped else "attention_kernels"
        return int(self.profile.numbers.get(key, {}).get(self.accelerator.vendor, 0))

    @property
    def in_flight(self) -> int:
        """Chunks of a prompt that the stages of a pipeline work on before all wait for the last; 0: as many as come."""
        return int(self.profile.numbers.get("in_flight", 0))

    @property
    def at_once(self) -> int | None:
        """Sequences that a copy runs at once; None: as many as it is told to (llama.cpp's --parallel)."""
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
        """Bytes of the engine's own peak, stage by stage of its profile run; the largest counts. `ledger`: a rank's."""
        tokens, stack, rules = self.most_tokens, root.stacks[-1], self.profile.rules
        if rules.fixed:
            return {"step": 0}  # within the part that it keeps
        if rules.batched:
            found = {"batch": tokens * 4 * (vocab + stack.d_model)}
            if self.score_bytes:
                found["scores"] = 4 * tokens * (_heads(stack) * self.context + self.context + 4 * stack.d_model)
            return found
        step = 2 * tokens * step_elements(stack)
        hidden = 2 * tokens * stack.d_model
        logits = min(self.most_sequences, tokens) * vocab * int(self.profile.numbers["logit_bytes"])
        kept = self.workspace(ledger, form) if self.profile.numbers.get("workspace") else 0
        return {"step": step, "sampler": logits + hidden + kept if vocab else 0}

    def workspace(self, ledger: Iterable[Entry], form: Format) -> int:
        """Bytes that Triton's kernels of experts, which are for weights of 8 bits and more, keep for good: of every
        chosen expert's rows, what goes into the activation or comes out of the last product, whichever is more, and
        what lies between, in 16 bits."""
        most = Fraction(0)
        for entry in ledger:
            if entry.routed and entry.leaf.matrix and entry.steps[-1].name == "down":
                wide, stream = entry.leaf.matrix
                if form.bits_of(entry.leaf.weights()[0], entry) < 8 * wide * stream:
                    continue
                most = max(most, Fraction(entry.runs) / entry.layers * (max(2 * wide, stream) + wide))
        return ceil(2 * self.most_tokens * most)

    def rest(self, model: Model, layout: Layout, taken: int, graphs: int = 0) -> dict[str, int]:
        """Bytes that it keeps besides, by name; `taken` are the weights and the activations of a rank, `graphs` its
        CUDA graphs, which lie outside unless the version counts them."""
        numbers = self.profile.numbers
        staged = self._staged(layout)
        split = max(layout.tp, layout.expert_group, 1 if staged else layout.pp) > 1
        found: dict[str, int] = {}
        if self.profile.rules.fixed:
            tokens = self.tokens or self.profile.of_card("tokens", self.large)
            sequences = self.sequences or self.profile.of_card("graph_sequences", self.large)
            mib = 512 + Fraction(3, 2) * max(tokens, 2048) + 2 * sequences + Fraction(layout.tp * layout.pp, 8) * 1024
            kept = ceil(mib * 2**20)
            return {"activations and graphs": max(kept, 10 * GIB) if self.accelerator.memory > 60 * GIB else kept}
        kind = "_split" if (self.accelerator.link or 0) > PCIE else "_bus"
        key = next((key for key in (f"outside_torch{kind}", "outside_torch_split") if split and key in numbers), None)
        found["outside torch"] = self.profile.size(key or ("outside_torch_stages" if staged else "outside_torch"))
        if self.profile.rules.turns:
            found["rotary table"] = rotary_table(model)
        if graphs and numbers.get("graphs_within"):
            found["CUDA graphs"] = graphs
        if "free_share" in numbers:
            left = max(0, visible(self.accelerator) - taken - sum(found.values()))
            found["left free"] = ceil(left * (1 - Fraction(str(numbers["free_share"]))))
        return found

    def _staged(self, layout: Layout) -> bool:
        """Whether it is known of the version that what stages hand on opens no channel before the cache is sized."""
        return layout.pp > 1 == layout.tp == layout.expert_group and "outside_torch_stages" in self.profile.numbers

    def padded(self, entry: Entry, form: Format, size: int) -> int:
        """Bytes of a leaf's weights as the engine keeps them: vLLM pads MXFP4 experts to what its kernels take."""
        if not self.profile.rules.pads or not entry.routed or entry.leaf.matrix is None:
            return size
        (weight, *_), table = entry.leaf.weights(), _data()["mxfp4"]
        held = next((f for f, _ in form.parts(weight, entry) if f), None)
        if held is None or held.name != "mxfp4" or held.block != 32:
            return size
        own = "hopper" if self.hopper and not self.profile.numbers.get("marlin") else "others"
        kind = "blackwell" if self.accelerator.name in table["blackwell"]["cards"] else own
        ff, stream = table[kind]["d_ff"], table[kind]["d_model"]
        tall, long = (stream, ff) if entry.steps[-1].name == "down" else (ff, stream)
        rows, columns = weight.shape
        wide = Weight(weight.name, (ceil_div(rows, tall) * tall, ceil_div(columns, long) * long))
        more: int = (held.matrix_bits(wide, entry.path) - held.matrix_bits(weight, entry.path)) // 8 * entry.times
        return size + more

    def facts(self, outside: int) -> dict[str, Any]:
        """As JSON has it; `outside`: bytes of CUDA graphs that lie outside the engine's budget."""
        found = {"name": self.profile.engine, "version": self.profile.version, "source": self.profile.source}
        numbers = {"max_num_seqs": self.most_sequences, "max_num_batched_tokens": self.most_tokens}
        return {**found, "visible_bytes": visible(self.accelerator), "graphs_bytes": outside, **numbers}

    def notes(self, model: Model, outside: int, layout: Layout) -> Iterator[str]:
        """What the engine's numbers are, and what lies outside of them."""
        if not model.decodes:
            yield f"{self.profile} profiles a decoder: nothing of it is counted for {model.name}"
            return
        rules, batch = self.profile.rules, f"a step of {self.most_tokens:,} tokens"
        held = " with all its logits" if rules.batched else f", {self.most_sequences:,} sequences' logits"
        batch = f"a fixed part for activations, logits and graphs, by {batch}" if rules.fixed else batch + held
        yield f"as {self.profile} keeps it (modelled): {batch}"
        if self._staged(layout):
            yield f"stages open no channels before {self.profile} sizes the cache: its logs of 2 and 4 stages"
        seen = visible(self.accelerator)
        if seen < self.accelerator.memory:
            hidden = iec(self.accelerator.memory - seen)
            yield f"the reserve is of {iec(seen)} that the engine sees; {hidden} more are the driver's"
        if outside:
            yield f"CUDA graphs take some {iec(outside)} of what the reserve leaves, more with many batch sizes"

    def graphs(self, model: Model, ledger: Iterable[Entry], stack: Stack) -> int:
        """Bytes of a rank's CUDA graphs: nodes of every captured batch size, and the buffers that all of them share.

        Nodes    of a product its own and that of what lies before it, fused to one; of an attention its own and the
                 cache's. Graphs of pieces end before an attention, whole ones hold it
        Buffers  a step of the largest batch; what FlashAttention 3 sums up for each of as many parts of the keys
        """
        rule, table = self.profile.numbers.get("captured"), _data()["graphs"]
        if rule is None:
            return 0
        most = table["largest"].get(model.spec["model_type"], table["largest"]["others"])
        most = min(most, 2 * self.most_sequences, self.most_tokens)
        largest = min(self.most_sequences, most) if rule["whole"] else 0
        pieces, whole = (_sizes(each, rule["fine"]) for each in (most if rule["pieces"] else 0, largest))
        three = self.hopper
        before: Entry | None = None
        products = cores = wide = 0
        for entry in ledger:
            if entry.leaf.matrix and entry.kind != "head" and not same_input(before, entry):
                products += entry.layers if entry.routed else entry.runs
            elif (core := entry.leaf.attended) and entry.work:
                cores += entry.runs
                values = entry.leaf.operations(entry.work._replace(absorbed=True))[-1]
                wide = max(wide, core.heads * getattr(values, "n", core.d_v))
            before = entry
        nodes = (pieces + whole) * 2 * products + whole * (4 if three else 2) * cores
        parts = table["parts"] * 4 * largest * wide if three else 0
        shared = 2 * max(most, largest) * step_elements(stack) + parts + parse_bytes(table["shared"], "shared")
        size: int = ceil(nodes * table["node"]) + shared
        return size

    @property
    def share(self) -> Fraction:
        """Of what CUDA reports, the share that the engine leaves alone unless told."""
        return Fraction(str(self.profile.numbers.get("left_alone", self.profile.rules.share)))


def _sizes(largest: int, fine: int) -> int:
    """Batch sizes up to the largest: 1, 2, 4, every eighth up to `fine`, and then every sixteenth."""
    return sum(n <= largest for n in (1, 2, 4)) + min(largest, fine) // 8 + max(0, largest - fine) // 16


def rotary_table(model: Model) -> int:
    """Bytes of the cosines and sines that vLLM keeps for every position up to the model's context, in 16 bits."""
    found = (leaf.angles for leaf in model.root.leaves())
    sizes = {(angles[0], str(angles[1])) for angles in found if angles}
    return sum(2 * int(dims) * (model.context or 0) for dims, _ in sizes)


def _heads(stack: Stack) -> int:
    """Query heads of the widest attention of a stack."""
    return max((int(core.heads) for leaf in stack.leaves() if (core := leaf.attended)), default=0)


def step_elements(stack: Stack) -> int:
    """Elements a token that a step of a rank has alive at its peak: the stream with its residual, norm and sum, and the
    widest branch: gate, up and their product, or queries, keys, values and what attention gives."""
    widest = max((group.block.alive() for group in stack.groups), default=0)
    elements: int = ceil(4 * stack.d_model + widest)
    return elements
