"""A server that prefills and decodes at once, in closed form: means of TTFT, TPOT and end to end at a load.

One copy of the model serves x requests per second. A prompt takes τ seconds of its time, so prompts take ρ = x·τ of it,
and decode steps have the rest:

Open loop, x as asked for, which lasts while ρ < 1 and D fits:

TPOT     t(D)/(1 − ρ), where t(D) is a decode step of the D sequences that decode on average, the mean of a birth-death
         chain (`Loop.population`); by Little's law D = x·(answer − 1)·TPOT: a step, and its share of the prompts
TTFT     the wait in line, the prompt alone, the decode steps that its chunks share a step with, the engine's own share
wait     M/G/1 (Pollaczek and Khinchine; of bursts GI/M/1, with the variance of a prompt's time as Kingman has it) with
         a prompt's time in a step that decodes too, and what is left of the running step, a server's vacation; a step
         serves all prompts that came in the one before, as far as they go into it (`Loop.gate`)

It has no means here where all seats are taken for more than `FULL` of the time, or prompts then come faster than steps
take them up: what waits there depends on how answers end, and sequences lose their pages again. Elsewhere TTFT was 0.87
to 1.04 of the simulation's and TPOT 0.95 to 1.06 (`tests/test_simulation.py`); in bursts (`--burstiness` 0.03 to 0.3)
0.75 to 0.92 and 0.80 to 0.98, for those who come together are served together.

Closed loop of N clients, which is counted in steps: an answer takes as many however long prompts make them, so that a
client is back after so many (machine repair, with a fixed time between failures), and there is a line where steps are
full of prompts, not where prompts take most of the time:

D        N = D + prompts of a step · steps of a wait (`Loop.asking`)
wait     prompts of the same step, what is left of the running one, and a line of periodic sources (`Loop.queue`); all
         start at once, as benchmarks do, with `ROUNDS` requests each, and come apart by what their prompts' steps and
         their answers' lengths set them apart (`Loop.dense`); where they come `together` half of all are before one's
         own; where the engine polls once in several steps, half of these, and the prompts that came meanwhile

Of 500 drawn loops TTFT was 0.77 to 1.10 of the simulation's for nine tenths, TPOT 0.995 to 1.08 and end to end 0.98 to
1.02; TTFT was 0.54 and TPOT 1.57 at worst, of few users with short answers, who meet more often than at random: one who
asks while another's prompt makes a long step has caught up with it.

Source   Little 1961; Kleinrock 1975 (Queueing Systems I, 5.6; 6.4 for bursts) and Schweitzer 1979 for the wait; Takagi
         1991 (Queueing Analysis 1, gated service) and Kelly 1979 (3.3, processor sharing) for an open loop; Roberts and
         Virtamo 1991 (periodic cell arrival streams) and Siegmund 1979 for a closed one; Agrawal et al. 2024 (arXiv
         2403.02310) for chunks of prompts that share their steps with decoding
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from txcalc.planning.serving.demand import ROUNDS, Demand, Steady, overload
from txcalc.planning.serving.queueing import Loop, root

MANY = 1e6  # sequences: what these do not keep up with, no number does
FULL = 2e-4  # of the time: above it TTFT fell to 0.8 of the simulation's and less (36 drawn models, cards and lengths)


def closed(demand: Demand, clients: float, seats: float = inf) -> Steady:
    """So many clients who ask again when their answer is there. At most as many as have seats in the cache are served
    at once, and the others wait in line."""
    if clients > seats:
        seated = closed(demand, seats)
        line = (clients - seats) / seated.rate  # Little's law
        return seated._replace(ttft=seated.ttft + line, e2e=seated.e2e + line, line=line)
    loop = Loop(demand, clients)
    if demand.answer > 1:
        return loop.together(root(lambda n: loop.asking(n) - clients, 0.0, min(clients, loop.full)))

    def over(rate: float) -> float:
        found = loop.state(rate, 0.0)
        return clients if found is None else found.inside - clients

    found = loop.state(root(over, 0.0, 1 / demand.prompt), 0.0)
    assert found is not None
    waiting = max(0.0, clients - found.inside) / found.rate  # where prompts take all of a copy's time
    return found._replace(ttft=found.ttft + waiting, e2e=found.e2e + waiting)


def open_(demand: Demand, rate: float, most: float) -> Steady:
    """Requests at random, so many per second; at most so many decode at once, and the others wait."""
    loop = Loop(demand, None)
    if demand.answer == 1:
        return loop.state(rate, 0.0) or overload(rate * demand.prompt, 0.0, 1 / demand.prompt)

    def behind(decoding: float) -> float:
        return loop.rate(decoding) - rate

    def stuck(decoding: float) -> float:
        return 1.0 if loop.state(loop.rate(decoding), decoding) is None else -1.0

    if behind(most) >= 0 and loop.state(rate, root(behind, 0.0, most)):
        decoding, full = loop.population(rate, most)
        found = loop.state(rate, decoding)
        return found if found and full <= FULL else Steady(inf, None, inf, rate, rate * demand.prompt, decoding)
    limit = root(stuck, 0.0, most) if stuck(most) > 0 else most
    more = behind(most) < 0 <= behind(max(most, MANY))  # further seats would do
    return overload(rate * demand.prompt, most if more else inf, loop.rate(limit))


def apart(
    prefill: Demand,
    decode: Demand,
    copies: tuple[int, int],
    handed: float,
    clients: float | None,
    rate: float = 0.0,
    most: float = inf,
) -> Steady:
    """Prompts computed by some copies, answers decoded by others, each prompt's cache handed on in so many seconds.

    Of so many clients in a closed loop, or of requests at random, so many a second; at most so many decode at once, and
    others wait for a seat. TPOT is a step alone, for no prompt shares it; TTFT the wait in the line of prompts, the
    prompt alone, the engine's own share, the transfer, and the steps until the copy that decodes tells its first token:
    what is left of the running one, those that its engine takes for a new request, and its own. All of all copies.
    """
    fillers, decoders = copies
    each = None if clients is None else clients / fillers
    line, answers = Loop(prefill._replace(answer=1), each), decode.answer - 1
    start = max(0.0, each - 1) / 2 * prefill.prompt / ROUNDS if each is not None else 0.0

    def tpot(decoding: float) -> float:
        return decode.step(decoding) / decode.tokens

    def told(decoding: float) -> float:
        return (1.5 + decode.polls) * decode.step(decoding)

    def served(decoding: float) -> float:
        return decoders * decoding / answers / tpot(decoding)

    def state(x: float, decoding: float) -> Steady | None:
        first = line.state(x / fillers, 0.0)
        if first is None:
            return None
        ttft, each = first.ttft + start + handed + told(decoding), decoders * decoding / answers / x
        return Steady(ttft, each, ttft + answers * each, x, first.utilisation, decoders * decoding)

    if clients is None:
        busy, largest = rate * prefill.prompt / fillers, served(most / decoders) if most < inf else inf
        if busy >= 1 or largest < rate:
            return overload(busy, most if largest < rate else inf, min(fillers / prefill.prompt, largest))
        steps = Loop(decode._replace(prompt=0.0, chunks=0.0), None)
        decoding, full = steps.population(rate / decoders, most / decoders)
        found = state(rate, decoding)
        assert found is not None
        return found if full <= FULL else found._replace(ttft=inf, tpot=None, e2e=inf)

    def excess(decoding: float) -> float:
        found = state(served(decoding), decoding)
        return clients if found is None else found.inside - clients

    decoding = root(excess, 0.0, min(clients, most) / decoders)
    found = state(served(decoding), decoding)
    assert found is not None
    waiting = max(0.0, clients - found.inside) / found.rate  # where prompts take all the time, or for a seat
    seat = waiting if decoding == most / decoders < clients / decoders else 0.0
    return found._replace(ttft=found.ttft + waiting, e2e=found.e2e + waiting, line=seat)


class Among(NamedTuple):
    """What one copy sees of those that share its experts, on average.

    prompt    seconds of one of its prompts
    away      seconds of others' prompts, for each of its own, in which it only waits
    interval  steps between two polls for requests
    """

    prompt: float
    away: float
    interval: float


def among(demand: Demand, clients: float | None, steady: Steady) -> Among:
    """The effect of the copies that share its experts on one in its steady state, of a closed loop of so many clients
    or an open one."""
    loop = Loop(demand, clients)
    prompt = held = demand.prompt
    if demand.sharing > 1 and demand.answer > 1:
        chance = loop.beside(steady.rate, steady.decoding)
        prompt, held = loop.lasts(chance), loop.held_up(chance)
    return Among(prompt, held - prompt, loop.interval(steady.decoding))
