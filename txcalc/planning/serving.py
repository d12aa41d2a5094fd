"""How fast a plan serves: time to the first token, time of a further one, throughput, and what a token costs.

Points are layouts with so many sequences at once, each timed by `roofline`; limits and prices choose among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from txcalc.errors import Fault, InputError
from txcalc.hardware import Efficiency
from txcalc.model import Model
from txcalc.num import ceil_div
from txcalc.planning.deployment import MOST_SEQUENCES, Choice, Plan, largest
from txcalc.planning.layout import Layout
from txcalc.planning.parallelism import Sharding
from txcalc.planning.roofline import Figure, Pace, total
from txcalc.planning.weights import weights_of

DEFINITIONS = {
    "ttft": "time to first token: one prompt computed alone, in chunks, from its first token in to its first one out",
    "tpot": "time per output token: one decode step of all sequences at the full context, no prefill between",
    "throughput": "tokens/s a user: 1/TPOT; a GPU: sequences/TPOT/GPUs, decode alone",
    "floor": "datasheet peaks, perfect overlap, no start costs anything: no server is faster",
    "achievable": "every operation at its share of the peak, one after the other, with the cost of its start",
}
MOST_LAYOUTS = 24  # that are compared for the front
NODE = 8  # accelerators that usually share a link
MOST_BATCH = 1 << 16  # sequences of one copy that are looked at


class Speculation(NamedTuple):
    """A draft model proposes `tokens`, of which each is accepted with a probability; None: proposals cost nothing.

    Expected tokens a step: (1 − a^(g + 1))/(1 − a); its time: a decode step over g + 1 tokens a sequence, and g of the
    draft.
    Source   Leviathan et al. 2022 (arXiv 2211.17192), equation 1 and theorem 3.8
    """

    tokens: int
    acceptance: float
    draft: Model | None = None

    @property
    def expected(self) -> float:
        a, g = self.acceptance, self.tokens
        return g + 1 if a == 1 else (1 - a ** (g + 1)) / (1 - a)


@dataclass(frozen=True)
class Request:
    """What users ask for.

    prompt        tokens of a prompt; the rest of the context is the answer
    hits          share of the prompt that is in a prefix cache already: whole pages of it, never the last token
    speculation   a draft, or None
    """

    prompt: int
    hits: Fraction = Fraction(0)
    speculation: Speculation | None = None

    def cached(self, block: int) -> int:
        """Tokens of the prompt that are not computed again."""
        return min(int(self.hits * self.prompt) // block * block, self.prompt - 1)

    def on(self, pace: Pace, context: int) -> tuple[int, int]:
        """Tokens of a prompt, and how many of them a prefix cache holds; of a model that does not decode, positions."""
        if not pace.caching:
            return pace.model.workload(1, context).tokens, 0
        return self.prompt, 0 if pace.encodes else self.cached(pace.engine.block)


def request(
    context: int,
    prompt: int | None = None,
    hits: Fraction = Fraction(0),
    acceptance: float | None = None,
    draft_tokens: int | None = None,
    draft: Model | None = None,
) -> Request:
    """A checked request; without a prompt, half of the context is one (half of a token rounded up)."""
    faults: list[Fault | str] = []
    if prompt is not None and not (type(prompt) is int and 1 <= prompt <= context):
        faults.append(Fault("prompt", prompt, f"a whole number from 1 to the context of {context:,}"))
    if not 0 <= hits <= 1:
        faults.append(Fault("prefix hits", float(hits), "a share from 0 to 1"))
    if (acceptance is None) != (draft_tokens is None):
        faults.append("a draft's tokens and their acceptance go together")
    if draft_tokens is not None and not (type(draft_tokens) is int and 1 <= draft_tokens <= 64):
        faults.append(Fault("draft tokens", draft_tokens, "a whole number from 1 to 64"))
    if acceptance is not None and not 0 <= acceptance <= 1:
        faults.append(Fault("acceptance", acceptance, "a probability from 0 to 1"))
    if faults:
        raise InputError("deploy", faults)
    guess = None if draft_tokens is None or acceptance is None else Speculation(draft_tokens, acceptance, draft)
    return Request(ceil_div(context, 2) if prompt is None else prompt, hits, guess)


class Point(NamedTuple):
    """A layout with so many sequences at once.

    tpot      a decode step, divided by the tokens that speculation expects of it; None: the model does not decode
    output    tokens a second and GPU in decode
    input     prompt tokens a second and GPU in prefill
    """

    layout: Layout
    sequences: int
    ttft: Figure
    tpot: Figure | None
    output: float
    input: float

    def last(self, prompt: int) -> float:
        """Seconds to the first token of the last of all sequences, where their prompts come at once."""
        return self.sequences * prompt / self.input / self.layout.gpus

    @property
    def user(self) -> float:
        """Tokens a second of one sequence."""
        return 1 / self.tpot.achievable if self.tpot else 0.0

    def million_input(self, price: float) -> float:
        """Cost of a million prompt tokens, at a price of a GPU-hour."""
        return price / 3600 * 1e6 / self.input

    def million_output(self, price: float) -> float:
        """Cost of a million tokens of answers, at a price of a GPU-hour."""
        return price / 3600 * 1e6 / self.output

    def seconds(self, prompt: int, answer: int) -> float:
        """GPU-seconds of a request."""
        return prompt / self.input + answer / self.output

    def joules(self, watts: int) -> float:
        """Energy of a token of an answer if every GPU draws so much."""
        return watts / self.output


class Ridge(NamedTuple):
    """Sequences of one copy from which a decode step computes longer than it reads, on the datasheet; None: never.

    weights      reads of weights alone, against the arithmetic of all but the attention core: whatever the context
    with_cache   all reads and arithmetic at the full context
    """

    weights: int | None
    with_cache: int | None


@dataclass(frozen=True, eq=False)
class Serving:
    """The speed of a plan that fits.

    chosen     its best layout at the concurrency asked for
    batches    the same layout from one sequence to as many as fit
    points     every layout that fits at every batch
    cheapest   of them, the one whose request takes the fewest GPU-seconds within the limits; None: none is
    """

    plan: Plan
    request: Request
    price: float | None
    ttft: float | None
    tpot: float | None
    pace: Pace
    chosen: Point
    batches: list[Point]
    points: list[Point]
    ridge: Ridge | None
    notes: tuple[str, ...]

    @property
    def answer(self) -> int:
        """Tokens that follow a prompt, at least one."""
        return max(1, self.plan.context - self.request.prompt)

    @property
    def prompt(self) -> int:
        """Tokens of a prompt, or positions of a pass."""
        return self.request.on(self.pace, self.plan.context)[0]

    @property
    def cached(self) -> int:
        """Tokens of a prompt that are not computed again."""
        return self.request.on(self.pace, self.plan.context)[1]

    @property
    def front(self) -> list[Point]:
        """Points that no other beats in both TPOT and tokens a second and GPU, the quickest first."""
        found: list[Point] = []
        for point in sorted((p for p in self.points if p.tpot), key=lambda p: (p.tpot.achievable, -p.output)):  # type: ignore[union-attr]
            if not found or point.output > found[-1].output:
                found.append(point)
        return found

    def meets(self, point: Point) -> bool:
        """Whether its achievable latencies are within the limits that were asked for."""
        slow = self.ttft is not None and point.ttft.achievable > self.ttft
        return not slow and (self.tpot is None or bool(point.tpot and point.tpot.achievable <= self.tpot))

    @property
    def cheapest(self) -> Point | None:
        within = [point for point in self.points if point.tpot and self.meets(point)]
        return min(within, key=lambda p: p.seconds(self.request.prompt, self.answer), default=None)

    @property
    def unmet(self) -> bool:
        """Limits were asked for, and no point is within them."""
        return (self.ttft is not None or self.tpot is not None) and self.cheapest is None

    @property
    def efficiency(self) -> Efficiency:
        return self.plan.deployment.accelerator.efficiency


def check_budget(price: float | None = None, ttft: float | None = None, tpot: float | None = None) -> None:
    """Errors: `InputError` for a price or limits in seconds that are none."""
    faults: list[Fault | str] = [
        Fault(name, value, f"a number above 0{unit}")
        for name, value, unit in (("price", price, ""), ("ttft", ttft, " of seconds"), ("tpot", tpot, " of seconds"))
        if value is not None and not 0 < value < 1e9
    ]
    if faults:
        raise InputError("deploy", faults)


def serve(
    plan: Plan,
    asked: Request,
    price: float | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
) -> Serving:
    """How fast a plan is, at a price of a GPU-hour, within limits in seconds.

    Errors: `InputError` for a price or limit that is none; where a peak or the link is needed and not known; where the
    plan does not fit.
    """
    check_budget(price, ttft, tpot)
    if not plan.best.fits:
        raise InputError("speed", ["the plan does not fit, so there is nothing to time"])
    runner = _Runner(plan, asked)
    best = plan.best.layout
    chosen = runner.point(best, plan.concurrency)
    points = [
        runner.point(choice.layout, n)
        for choice in plan.choices[:MOST_LAYOUTS]
        if runner.known(choice.layout)
        for n in sizes(choice.max_concurrency, choice.layout.dp, runner.within(choice, tpot))
    ]
    batches = sorted(
        {p.sequences: p for p in (*points, chosen) if p.layout == best}.values(), key=lambda p: p.sequences
    )
    pace = runner.pace(best)
    ridge = _ridge(pace, plan.context) if pace.caching else None
    return Serving(plan, asked, price, ttft, tpot, pace, chosen, batches, points, ridge, tuple(runner.notes(chosen)))


def sizes(most: int, copies: int, also: int = 0) -> list[int]:
    """Batches to look at: 1, 2, 4 … sequences of each copy, as many as fit, and `also`; up to 65,536 of each."""
    each = min(most // copies, MOST_BATCH)
    doubled = [1 << i for i in range(each.bit_length())]
    return [n * copies for n in sorted({*doubled, each, also}) if n]


class _Runner:
    """Makes points, each layout's pace once."""

    def __init__(self, plan: Plan, asked: Request) -> None:
        self.plan, self.asked, self.deployment = plan, asked, plan.deployment
        self._paces: dict[Layout, Pace] = {}
        self._prefills: dict[Layout, tuple[Figure, float]] = {}
        self._drafts: dict[int, Pace] = {}
        guess = asked.speculation
        self._draft = Sharding(guess.draft) if guess and guess.draft else None

    def pace(self, layout: Layout) -> Pace:
        if layout not in self._paces:
            held = self.deployment
            self._paces[layout] = Pace(held.model, held.sharding, layout, held.accelerator, held.engine)
        return self._paces[layout]

    def known(self, layout: Layout) -> bool:
        """Whether the accelerator's link, if the layout needs one, is known."""
        return (layout.gpus == layout.dp and layout.ep == 1) or self.deployment.accelerator.link is not None

    def point(self, layout: Layout, sequences: int) -> Point:
        pace = self.pace(layout)
        prompt, cached = self.asked.on(pace, self.plan.context)
        if layout not in self._prefills:
            rate = pace.prefill_rate(prompt, cached) * layout.dp / layout.gpus
            self._prefills[layout] = pace.prefill(prompt, cached), rate
        ttft, rate = self._prefills[layout]
        if not pace.caching:
            return Point(layout, sequences, ttft, None, 0.0, rate)
        tpot = self._tpot(layout, ceil_div(sequences, layout.dp), pace.busy(sequences))
        return Point(layout, sequences, ttft, tpot, sequences / tpot.achievable / layout.gpus, rate)

    def within(self, choice: Choice, limit: float | None) -> int:
        """The most sequences of a copy that fit and decode within a limit, which is the cheapest batch there is: more
        share the weights that are read. 0: none, or no limit."""
        layout = choice.layout
        if limit is None or not self.pace(layout).caching or not choice.max_concurrency:
            return 0
        most = min(choice.max_concurrency // layout.dp, MOST_BATCH)
        last = largest(lambda n: n <= most and self._tpot(layout, n).achievable <= limit, most + 1)
        return most if last is None else last

    def _tpot(self, layout: Layout, sequences: int, busy: float = 1.0) -> Figure:
        pace, guess, context = self.pace(layout), self.asked.speculation, self.plan.context
        if guess is None:
            return pace.step(sequences, context, busy=busy)
        step = pace.step(sequences, context, guess.tokens + 1, busy)
        floor, achievable = step.floor, step.achievable
        if guess.draft:
            proposed = self.draft(layout).step(sequences, context)
            floor, achievable = (
                a + guess.tokens * b for a, b in ((floor, proposed.floor), (achievable, proposed.achievable))
            )
        return step._replace(floor=floor / guess.expected, achievable=achievable / guess.expected)

    def draft(self, layout: Layout) -> Pace:
        """The draft's pace: split as the model's layers are where it can be, else on one GPU."""
        guess = self.asked.speculation
        assert guess is not None and guess.draft is not None and self._draft is not None
        if layout.tp not in self._drafts:
            split = Layout(tp=layout.tp)
            own = split if not self._draft.faults(split) else Layout()
            engine, model = self.deployment.engine, guess.draft
            form = weights_of(model, engine.asked)
            self._drafts[layout.tp] = Pace(
                model, self._draft, own, self.deployment.accelerator, replace(engine, weights=form)
            )
        return self._drafts[layout.tp]

    def notes(self, chosen: Point) -> Iterator[str]:
        guess = self.asked.speculation
        if guess and guess.draft:
            yield f"the memory of the draft, {guess.draft.name}, is not counted"
        if not self.pace(chosen.layout).caching:
            yield f"{self.plan.deployment.model.name} does not decode: its one latency is that of a pass"
        if chosen.layout.gpus > NODE and self.deployment.accelerator.link is not None:
            yield f"all transfers are timed over the link of one node, which {chosen.layout.gpus} GPUs may not share"
        if len(self.plan.choices) > MOST_LAYOUTS:
            yield f"the front compares the best {MOST_LAYOUTS} layouts of {len(self.plan.choices)}"
        if any(not self.known(choice.layout) for choice in self.plan.choices):
            yield "layouts that need a link are not timed: that of the accelerator is not known"


def _ridge(pace: Pace, context: int) -> Ridge:
    """Compute grows with the batch, and so does the cache; the weights read do not (experts: ever less)."""

    def from_(caches: bool) -> int | None:
        def reads_longer(n: int) -> bool:
            parts = pace.decode_parts(n, context)
            cost = total(part for kind, part in parts.items() if caches or kind != "attention_core")
            return cost.least_compute < cost.least_weights + caches * cost.least_cache

        last = largest(reads_longer, MOST_SEQUENCES)
        return None if last is None else last + 1

    return Ridge(from_(False), from_(True))
