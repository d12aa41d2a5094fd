"""The load on a server (`Demand`) and the latencies and rates that it gives (`Steady`): values of `steady_state`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from math import inf
from typing import NamedTuple

from msgspec import Struct

from txcalc.parts.structs import FrozenStruct

REQUESTS = 10_000  # of a simulation, but per client of a closed loop from `ROUNDS` to:
MOST_ROUNDS = 400  # the first ones, which all start at once, are then at most a quarter of those above p99
# Requests that each of a benchmark's clients sends: --num-prompts is 10 · --max-concurrency in InferenceX's runs
# (SemiAnalysisAI/InferenceX, benchmarks, 2026-02).
ROUNDS = 10


def rounds(clients: float) -> float:
    """Requests of each client of a closed loop, in a simulation and in the closed form."""
    return min(MOST_ROUNDS, max(ROUNDS, REQUESTS / clients))


class Demand(NamedTuple):
    """The load that requests put on one replica.

    step     seconds of a decode step, by its number of sequences, at their mean length
    tokens   expected per sequence and step: 1, or more with speculation
    prompt   seconds of the replica's time per prompt under load: τ
    unloaded seconds from a prompt's arrival to its first token, without other load
    chunks   steps per prompt with full chunks: a fraction for prompts that share a chunk
    answer   tokens of an answer, the first of which comes with the prompt
    overhead the engine's seconds of TTFT
    polls    decode steps of others that TTFT also includes
    interval decode steps between two polls for new requests: a request waits for half of them, and for the prompts
             that arrived meanwhile
    spread   squared coefficient of variation of a prompt's time
    bursts   squared coefficient of variation of an open loop's interarrival times: 1 for Poisson arrivals
    together share of the rounds in which all prompts of a closed loop are computed before any answer, because an engine
             computes prompts first and answers are of one length: they end together. In the first round it is so anyway
    width    of a closed loop: share of an answer's time over which answers that begin together end
    sharing  replicas that share experts, whose steps all wait for the slowest of them
    solo     seconds of a prompt while none of the other replicas computes one
    gathers  prompts wait until all of these replicas have one, at most `interval` steps
    rounds   requests of each client of a closed loop, who all start at once; None: as many as `rounds` says
    """

    step: Callable[[float], float]
    prompt: float
    unloaded: float
    chunks: float
    answer: int
    tokens: float = 1.0
    overhead: float = 0.0
    polls: float = 0.0
    spread: float = 0.0
    bursts: float = 1.0
    together: float = 0.0
    interval: int = 1
    width: float = 1.0
    sharing: int = 1
    solo: float = 0.0
    gathers: bool = False
    rounds: float | None = None


class LatencyStats(Struct, frozen=True):
    """A latency over all requests, in seconds: its mean (None: not known), and percentiles of a simulation."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class Steady(NamedTuple):
    """Mean latencies of a replica at a load, in seconds; tpot: None where an answer is one token.

    rate          requests per second
    utilisation   share of time in prefill
    decoding      mean decode batch: sequences
    cache_wait    of a closed loop's TTFT, the wait for space in the KV cache
    lasts         the replica keeps up with the requests; otherwise no latency has a mean (inf), `rate` is what it keeps
                  up with, `utilisation` what prefill would take, `decoding` the batch needed (inf: none is enough)
    """

    ttft: float
    tpot: float | None
    e2e: float
    rate: float
    utilisation: float
    decoding: float
    cache_wait: float = 0.0
    lasts: bool = True

    @property
    def timed(self) -> bool:
        """Whether the mean latencies are known."""
        return self.e2e < inf

    @property
    def in_system(self) -> float:
        """Requests in the system, waiting or running: Little's law."""
        return self.rate * self.e2e


def overload(utilisation: float, decoding: float, rate: float) -> Steady:
    """The steady state of a replica that cannot keep up with a rate."""
    return Steady(inf, None, inf, rate, utilisation, decoding, lasts=False)


class Throughput(FrozenStruct):
    """The throughput and cost of `gpus` accelerators at a load; `answer` in tokens."""

    steady: Steady
    answer: int

    @property
    @abstractmethod
    def gpus(self) -> int:
        """Accelerators of all replicas."""

    @property
    def rate(self) -> float:
        """Requests answered per second."""
        return self.steady.rate

    @property
    def tokens_per_s_gpu(self) -> float:
        """Answer tokens per second and GPU."""
        return self.rate * self.answer / self.gpus

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds per request."""
        return self.gpus / self.rate

    def cost_per_million_output(self, price: float) -> float:
        """Total cost, prompts included, per million answer tokens, at a price per GPU-hour."""
        return price / 3600 * 1e6 / self.tokens_per_s_gpu


class StepCurve:
    """Seconds of a decode step by the number of sequences: exact up to 8, then interpolated between numbers a factor of
    √2 apart."""

    def __init__(self, exact: Callable[[int], float]) -> None:
        self.exact = cache(exact)

    def __call__(self, sequences: float) -> float:
        n = max(1.0, sequences)
        low = int(n) if n < 8 else _knot(_index(n))
        if low == n:
            return self.exact(low)
        high = low + 1 if n < 8 else _knot(_index(n) + 1)
        first = self.exact(low)
        return first + (self.exact(high) - first) * (n - low) / (high - low)


def _knot(i: int) -> int:
    return round(8 * 2 ** (i / 2))


def _index(n: float) -> int:
    """The last knot at or below n."""
    i = 0
    while _knot(i + 1) <= n:
        i += 1
    return i
