"""Prefill, decode and training steps on a device: peak memory and time, with predictions. These need not be equal,
unlike the rows of an oracle; each figure has the difference and its causes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor

from txcalc.evidence.figures import Figure
from txcalc.hardware import Accelerator
from txcalc.hardware.curves import PYTORCH
from txcalc.ledger import FEED_FORWARD, Ledger
from txcalc.model import Model
from txcalc.parts.part import Workload
from txcalc.planning.crossover import CORE, RULES, crossovers, lengths
from txcalc.planning.gradients import leaves_with_gradient
from txcalc.planning.layout import Layout
from txcalc.planning.machine import Machine
from txcalc.planning.parallelism import PipelineStage
from txcalc.planning.serving.durations import Cost, total
from txcalc.planning.serving.engine import engine
from txcalc.planning.serving.rank_memory import RankBytes
from txcalc.planning.serving.rank_time import RankTime
from txcalc.planning.training import Ranks, Recipe, memory
from txcalc.planning.training.step import Step, StepTimer
from txcalc.reference import CacheTensors, build, inputs, mode
from txcalc.units import iec
from txcalc.verification import device as devices, kernels
from txcalc.verification.flops import learning, output_sum
from txcalc.verification.measure import Peak, Work, measure_peak, time_captured, time_fresh, time_parts, trace_peak
from txcalc.verification.saved import claims
from txcalc.verification.storage import state_bytes
from txcalc.verification.subject import Subject as Modules
from txcalc.verification.verdict import Verdict, module_paths

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
ONE_GPU = Layout()
CAPTURED = "captured"
UNUSED = "reserved on the device but not used: fragments"
RUNS = 2  # of a piece of work: it runs once before it counts


class Load(NamedTuple):
    """A pass over `tokens` new tokens of each of `batch` sequences with `past` cached tokens.

    kind      "prefill" (with a cache if the model has one; logits of the last position), "decode", "training" (forward,
              backward of the sum of all outputs, AdamW's step; with `checkpoint`, blocks are recomputed)
    absorbed  MLA without expanding its latents
    """

    kind: str
    batch: int
    tokens: int
    past: int = 0
    checkpoint: bool = False
    absorbed: bool = False

    @property
    def logits(self) -> str:
        return "all" if self.kind == "training" else "last"

    @property
    def mla(self) -> str:
        return "absorbed" if self.absorbed else "expanded"

    def __str__(self) -> str:
        past = f", {self.past:,} past" if self.past else ""
        words = ", activation checkpointing" * self.checkpoint + ", MLA absorbed" * self.absorbed
        return f"{self.kind} B = {self.batch:,}, T = {self.tokens:,}{past}{words}"


class DeviceModel(NamedTuple):
    """A model on a device."""

    model: Model
    device: str
    dtype: torch.dtype

    def ledger(self, load: Load) -> Ledger:
        """The ledger of a load."""
        return self.model.ledger(load.batch, load.tokens, load.past, logits=load.logits, mla=load.mla)

    def data(self, load: Load, device: str) -> tuple[Tensor, ...]:
        """New random inputs; for a decode step only ids, since the cache has the encoder's keys and values."""
        tensors = inputs(self.model, load.batch, load.tokens, device=device)
        tensors = tensors[:1] if load.past else tensors
        return tuple(x.to(self.dtype) if x.is_floating_point() else x for x in tensors)

    def cache_maker(self, load: Load) -> Callable[[str], CacheTensors]:
        """Makes caches of random values for `past` tokens, in the shapes that a prefill on meta leaves."""
        shapes = CacheTensors(room=RUNS * load.tokens)
        if load.past:
            net = build(self.model, device="meta", dtype=self.dtype)
            prompt = self.data(load._replace(tokens=load.past, past=0), "meta")
            with torch.no_grad(), mode(static=True, last=True):
                net(*prompt, cache=shapes)

        def make(device: str) -> CacheTensors:
            cache = CacheTensors(shapes.room)
            cache.past = shapes.past
            cache.buffers = {path: _random_like(tensors, device) for path, tensors in shapes.buffers.items()}
            for path, tensors in shapes.tensors.items():
                room = cache.buffers.get(path)
                cache.tensors[path] = tuple(b[:, : cache.past] for b in room) if room else _random_like(tensors, device)
            for path, table in shapes.distances.items():
                (cache.distances[path],) = _random_like((table,), device)
            return cache

        return make

    def forward(self, net: Any, load: Load, tensors: tuple[Tensor, ...], cache: CacheTensors | None) -> Any:
        """One pass without gradients, as in a server. Experts take tokens in turn, so that time and memory do not
        depend on data."""
        # PyTorch has no fused kernel for absorbed latents (one key for all heads, wider than the values) and would copy
        # it for each head; plain products do not.
        cuda = devices.is_cuda(self.device)
        with torch.no_grad(), mode(last=True, even=True, absorbed=load.absorbed, explicit=load.absorbed, grouped=cuda):
            return net(*tensors, cache=cache) if self.model.decodes else net(*tensors)

    def prepare(self, load: Load) -> Callable[[str], Work]:
        """For `measure`: a function that makes modules and data on a device and returns repeatable work. The cache of a
        decode step grows with each run."""
        if load.kind == "training":
            return partial(self._training, load)
        caches = self.cache_maker(load._replace(past=max(load.past - load.tokens, 0)))

        def make(device: str) -> Work:
            net, tensors = build(self.model, device=device, dtype=self.dtype), self.data(load, device)
            cache = caches(device)

            def work() -> None:
                self.forward(net, load, tensors, cache if load.past else CacheTensors())

            return work

        return make

    def stepping(self, load: Load) -> Callable[[], Work]:
        """For timing: builds the module once; the result makes steps on new data."""
        net, caches = build(self.model, device=self.device, dtype=self.dtype), self.cache_maker(load)
        return partial(self.step, net, load, caches)

    def step(self, net: object, load: Load, caches: Callable[[str], CacheTensors]) -> Work:
        """A pass on new data, ready to run."""
        tensors, cache = self.data(load, self.device), caches(self.device)
        return lambda: self.forward(net, load, tensors, cache)

    def _training(self, load: Load, device: str) -> Work:
        """A step whose loss is the sum of all outputs."""
        # On real CUDA tensors foreach is AdamW's default.
        return self._step(load, device, lambda net, tensors: output_sum(net(*tensors)), foreach=devices.is_cuda(device))

    def learning(self, load: Load, device: str) -> Work:
        """A step of a language model: cross-entropy of the next token, in fp32, and a fused optimizer, as `train`
        counts: others need temporaries as large as the weights."""

        def loss(net: Any, tensors: tuple[Tensor, ...]) -> Any:
            return F.cross_entropy(net(*tensors).flatten(0, 1).float(), tensors[0].roll(-1, 1).flatten())

        return self._step(load, device, loss, fused=True)

    def _step(self, load: Load, device: str, loss: Callable[[Any, tuple[Tensor, ...]], Any], **optimizing: Any) -> Work:
        net = build(self.model, device=device, dtype=self.dtype)
        tensors = learning(net, self.data(load, device))
        optimizer = torch.optim.AdamW(net.parameters(), **optimizing)

        def work() -> None:
            optimizer.zero_grad(set_to_none=True)
            with mode(checkpoint=load.checkpoint, even=True):
                loss(net, tensors).backward()
            optimizer.step()

        return work

    def least_bytes(self, load: Load) -> int:
        """The least bytes that must be in memory at once: weights and cache; for training, weights, AdamW's two
        moments, and the larger of gradients and saved activations, if the ledger claims these."""
        width, ledger = self.dtype.itemsize, self.ledger(load)
        weights = ledger.total("params") * width
        if load.kind != "training":
            cache = sum(load.batch * state_bytes(entry, width) for entry in ledger) if self.model.decodes else 0
            return weights + cache
        learned = leaves_with_gradient(ledger).total("active") * width
        saved = ledger.total("saved") * width if claims(ledger) and not load.checkpoint else 0
        return weights + 2 * learned + max(learned, saved)


def _random_like(like: tuple[Tensor, ...], device: str) -> tuple[Tensor, ...]:
    return tuple(torch.randn(tensor.shape, dtype=tensor.dtype, device=device) for tensor in like)


def peak_memory(subject: DeviceModel, load: Load) -> Figure:
    """Peak memory: of fake tensors (predicted), and on the device (measured)."""
    prepare = subject.prepare(load)
    predicted, peak = trace_peak(prepare, subject.device), measure_peak(prepare, subject.device)
    floor = subject.least_bytes(load)
    return Figure(
        quantity="peak memory",
        load=str(load),
        unit="bytes",
        floor=floor,
        predicted=predicted.peak,
        measured=peak.peak,
        gap=_gap(predicted, peak),
        beside={} if peak.reserved is None else {UNUSED: peak.reserved - peak.peak},
        planned=deployed_bytes(subject, load),
        above={f"for what it computes ({_largest(predicted.added)})": predicted.peak - floor},
    )


def deployed_bytes(subject: DeviceModel, load: Load) -> int | None:
    """Bytes that `deploy` reserves for a pass on one accelerator, without an engine's own: weights, pages of the cache,
    and the larger of activations and logits. None for a training step."""
    if load.kind == "training":
        return None
    form = engine(subject.model, NAMES[subject.dtype], NAMES[subject.dtype], chunk=load.batch * load.tokens)
    rank_bytes = RankBytes(subject.model, PipelineStage(0, 1, subject.model.root), form)
    context = load.past + load.tokens
    steps = rank_bytes.activations(context, load.batch)
    used = [size for name, size in steps.items() if name != ("decode" if load.kind == "prefill" else "prefill")]
    return rank_bytes.weights_bytes + rank_bytes.cache_bytes(context, load.batch) + max(used)


def _largest(sizes: Mapping[str, int]) -> str:
    """The names of the three largest sizes."""
    return ", ".join(sorted((name for name in sizes if sizes[name] > 0), key=lambda name: -sizes[name])[:3])


def _gap(predicted: Peak, peak: Peak) -> dict[str, float]:
    """The difference, measured minus predicted, split by cause."""
    requested = peak.peak if peak.requested is None else peak.requested
    names: dict[str, float] = {}
    if requested != predicted.peak:
        difference = Counter(peak.by_operator)
        difference.subtract(predicted.by_operator)
        sign = 1 if requested > predicted.peak else -1
        operators = _largest({name: sign * size for name, size in difference.items()})
        names[f"scratch space and workspaces ({operators})"] = requested - predicted.peak
    if peak.peak != requested:
        names["blocks larger than requested: rounded up, or not split"] = peak.peak - requested
    return names


def times(
    subject: DeviceModel, load: Load, accelerator: Accelerator, repeats: int = 5, notes: list[str] | None = None
) -> Iterator[Figure]:
    """Seconds of a pass and of its parts by kind, on new data each time, with the roofline's floor and the time
    expected from the accelerator's efficiency; on CUDA a decode step also as a replayed graph, or in `notes` the reason
    why it cannot be captured."""
    net, caches = build(subject.model, device=subject.device, dtype=subject.dtype), subject.cache_maker(load)
    fresh = partial(subject.step, net, load, caches)
    costs = expected_times(subject, load, accelerator)
    median_s = median(time_fresh(fresh, subject.device, repeats))
    kinds = {path: entry.kind for entry in subject.model.ledger() for path in module_paths(entry, experts=True)}
    parts = time_parts(net, kinds, fresh, subject.device, repeats)
    yield _time(str(load), "", costs[""], median_s)
    if devices.is_cuda(subject.device) and load.kind == "decode":
        try:
            replayed = median(time_captured(fresh, subject.device, repeats))
            yield _time(f"{load}, {CAPTURED}", "", costs[CAPTURED], replayed)
        except RuntimeError as error:
            if devices.ran_out(error) or notes is None:
                raise
            notes.append(f"not captured: {str(error).splitlines()[0]}")
    for kind, part_s in parts.items():
        yield _time(str(load), kind, costs.get(kind, Cost()), part_s)


def _time(load: str, part: str, cost: Cost, measured: float) -> Figure:
    figure = partial(Figure, quantity="time", load=load, part=part, unit="seconds")
    return figure(floor=cost.floor, predicted=cost.achievable, measured=measured)


def expected_times(subject: DeviceModel, load: Load, accelerator: Accelerator) -> dict[str, Cost]:
    """The cost of a pass by kind of part; "" is the total, `CAPTURED` the total without the host's time."""
    costs = rank_time(subject, accelerator).parts(workload(subject.model, load))
    without_host = rank_time(subject, accelerator, issued=False).cost(workload(subject.model, load))
    return {"": total(costs.values()), CAPTURED: without_host, **costs}


def launches(subject: DeviceModel, load: Load) -> tuple[list[Figure], dict[str, Any]]:
    """Predicted and measured launches of products and attention in one pass, and the kernels that ran."""
    work = subject.prepare(load)(subject.device)
    work()
    run = kernels.profile_kernels(work, subject.device)
    counts = kernels.figures(subject.ledger(load), str(load), load.kind == "training", run)
    return list(counts), run.described()


def training_speed(subject: DeviceModel, load: Load, accelerator: Accelerator, repeats: int = 5) -> Iterator[Figure]:
    """A step with cross-entropy of the next token and AdamW, all in the dtype of the weights, compared with `train`:
    seconds, tokens per second, bytes allocated and reserved."""
    label = f"{load}, cross-entropy"
    plan, step = expected_step(subject, load, accelerator)
    prepare = partial(subject.learning, load)
    peak = measure_peak(prepare, subject.device)
    devices.tidy(subject.device)
    work = prepare(subject.device)
    median_s = median(time_fresh(lambda: work, subject.device, repeats))
    figure = partial(Figure, load=label)
    yield figure(quantity="time", unit="seconds", floor=step.floor, predicted=step.seconds, measured=median_s)
    speed = partial(figure, quantity="speed of training", unit="tokens/s")
    yield speed(predicted=step.tokens / step.seconds, measured=step.tokens / median_s)
    memory = partial(figure, quantity="memory of training", unit="bytes", floor=subject.least_bytes(load))
    yield memory(predicted=plan.fullest.allocated, measured=peak.peak)
    if peak.reserved is not None:
        yield memory(load=f"{label}, reserved", predicted=plan.fullest.reserved, measured=peak.reserved)


def expected_step(subject: DeviceModel, load: Load, accelerator: Accelerator) -> tuple[Ranks, Step]:
    """`train`'s memory and time of a training step in the dtype of the weights, without towers, and with the experts of
    a layer run one after the other, as in the reference modules."""
    name, model = NAMES[subject.dtype], subject.model.language()
    recipe = Recipe(
        ONE_GPU, micro_batch=load.batch, tokens=load.tokens, recompute="blocks" if load.checkpoint else "none",
        parameter=name, gradient=name, compute=name,
    )  # fmt: skip
    plan, machine = memory(model, recipe), Machine.of(accelerator, products=name)
    return plan, StepTimer(model, recipe, machine, modules=True).step(plan)


def rank_time(subject: DeviceModel, accelerator: Accelerator, issued: bool = True) -> RankTime:
    """The time of the model's modules on one accelerator, with a cache in their dtype; `issued`: kernels are launched
    by the host."""
    form = replace(engine(subject.model, NAMES[subject.dtype], NAMES[subject.dtype]), kernels=PYTORCH)
    return RankTime(PipelineStage(0, 1, subject.model.root), ONE_GPU, accelerator, form, eager=True, issued=issued)


def workload(model: Model, load: Load) -> Workload:
    """The ledger's workload for a measured load."""
    return model.workload(load.batch, load.tokens, load.past, logits=load.logits, mla=load.mla)


def attention_share(seconds: Mapping[str, float]) -> float:
    """Seconds of the attention core over those of the feed-forward, from seconds by kind of part."""
    core, feed_forward = (sum(seconds.get(kind, 0.0) for kind in kinds) for kinds in (CORE, FEED_FORWARD))
    return core / feed_forward


def overtaking(subject: DeviceModel, tokens: Sequence[int], accelerator: Accelerator) -> Iterator[Figure]:
    """Times of the attention core and of the feed-forward at growing lengths of one sequence, and the length at which
    the first outweighs the second: by FLOPs, as expected of this accelerator, and as measured between two lengths."""
    expected, measured = list[float](), list[float]()
    for length in tokens:
        figures = {figure.part: figure for figure in times(subject, Load("prefill", 1, length), accelerator, 3)}
        yield from (figures[kind] for kind in (*CORE, *FEED_FORWARD) if kind in figures)
        expected.append(attention_share({kind: figure.predicted or 0.0 for kind, figure in figures.items()}))
        measured.append(attention_share({kind: figure.measured for kind, figure in figures.items()}))
    measured_length = crossing(tokens, measured)
    if measured_length is None:
        return
    rule = next(c for c in crossovers(lengths(subject.model)) if c.rule is RULES[0] and c.attention == "masked")
    by_time = crossing(tokens, expected)
    predictions: list[tuple[str, float | None]] = [("masked FLOPs", rule.tokens), ("expected times", by_time)]
    for method, predicted in predictions:
        if predicted is not None:
            figure = partial(Figure, quantity="attention outweighs the feed-forward", unit="tokens")
            yield figure(load=f"by {method}", predicted=predicted, measured=measured_length)


def common_loads(model: Model, device: str) -> tuple[Load, ...]:
    """The default loads of any model: sizes that suit the device and the model."""
    cuda = devices.is_cuda(device)
    rows = Modules(model).longest or 2048
    long, batch = min(2048 if cuda else 256, model.context or 256, rows), 8 if cuda else 2
    short = max(long // 4, 1)
    passes = (Load("prefill", 1, short), Load("prefill", batch, short), Load("prefill", 1, long))
    steps = (Load("decode", 1, 1, long - 1), Load("decode", batch, 1, long - 1))
    training = Load("training", 1, short), Load("training", 1, short, checkpoint=True)
    if model.fixed_length:
        passes = Load("prefill", 1, 1), Load("prefill", batch, 1), Load("prefill", 2 * batch, 1)
        training = Load("training", batch, 1), Load("training", batch, 1, checkpoint=True)
    return passes + (() if long == 1 or not model.decodes else steps) + training


def measure(verdict: Verdict, subject: DeviceModel, kinds: Sequence[str], accelerator: Accelerator | None) -> None:
    """Adds the figures of `common_loads` to a verdict; a note for each load whose predicted peak does not fit.

    Errors: `Refuted`, with the number of layers that would fit, if memory still runs out.
    """
    try:
        for load in common_loads(subject.model, subject.device):
            needed, free = trace_peak(subject.prepare(load), subject.device).peak, devices.free_bytes(subject.device)
            if needed > free:
                verdict.notes.append(f"{load}: not run, it needs {iec(needed)} of the {iec(free)} that are free")
                continue
            if "peak" in kinds:
                verdict.figures.append(peak_memory(subject, load))
            if "time" in kinds and accelerator is not None and load.kind != "training":
                verdict.figures += times(subject, load, accelerator)
            devices.tidy(subject.device)
    except RuntimeError as error:
        if not devices.ran_out(error):
            raise
        raise devices.out_of_memory(error, *subject) from None


def crossing(tokens: Sequence[int], ratios: Sequence[float]) -> float | None:
    """The length at which a ratio reaches 1, interpolated linearly between logarithms of two lengths; None if none."""
    for (shorter, below), (longer, above) in pairwise(zip(tokens, ratios, strict=True)):
        if below < 1 <= above:
            return float(shorter * (longer / shorter) ** (math.log(1 / below) / math.log(above / below)))
    return None
