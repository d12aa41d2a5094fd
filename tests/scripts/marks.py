"""Marks beside runs: `python tests/scripts/marks.py [--number 300] [--seed 1]`.

Presets and the tests' descriptions with random sizes, and random descriptions (the tests' strategies), at random
workloads, batch and lengths of 1 among them. The module of each runs on the meta device at that very workload. A figure
that is called proved, listed or measured and is another than the module's is a fault, and the exit code 1; so is a mark
whose domain does not contain the workload.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from structures import drawn
from tiny import TINY

from txcalc import load
from txcalc.errors import Refuted, TxcalcError
from txcalc.evidence import domains
from txcalc.evidence.known import show_known
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.planning.gradients import training_flops
from txcalc.reference import CacheTensors, build as modules, inputs, tracing
from txcalc.sources import build
from txcalc.sources.presets import names
from txcalc.verification import flops

SURE = ("proved", "listed", "measured")


def run(model: Model, shown: Ledger) -> dict[str, int]:
    """What the module has and does at the ledger's workload, by the keys of `known`."""
    work = shown.work
    net: Any = modules(model, device="meta")
    source = work.source if model.has_encoder_apart and not model.reads_no_ids else None
    figures = {"params": sum(weight.numel() for weight in net.parameters())}
    cache = CacheTensors()
    with tracing():
        if work.past:
            net(*inputs(model, work.batch, work.past, source, device="meta"), cache=cache)
        ids, *encoded = inputs(model, work.batch, work.tokens, source, device="meta")
        arguments = (ids,) if work.past else (ids, *encoded)
        keeps = {"cache": cache} if model.decodes else {}
        with torch.no_grad():
            counter = flops.count(net, partial(net, *arguments, **keeps))
        figures["flops"] = sum(counter.by_module.values())
        if keeps:
            figures["cache"] = sum(cache.elements().values())
        if not work.past:
            figures["training"] = sum(
                flops.count(net, partial(flops.forward_and_backward, net, arguments)).by_module.values()
            )
    return figures


SIZES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("n_layers", (1, 2, 3)), ("vocab_size", (11, 64, 1000)), ("feed_forward.d_ff", (48, 100, 336)),
    ("attention.window", (2, 3, 9, 64)), ("experts.top_k", (1, 2)), ("attention.n_kv_heads", (1, 2, 4)),
)  # fmt: skip


def chosen(draw: random.Random, number: int) -> Model:
    """A preset or a description of the tests with other sizes, or a random description."""
    source = draw.random()
    if source < 0.15:
        return build(drawn(number), "drawn")
    name = draw.choice(sorted(TINY) if source < 0.6 else names())
    model = build(TINY[name], name) if source < 0.6 else load(name)
    for key, values in SIZES:
        if draw.random() < 0.4 or (key == "n_layers" and source >= 0.6):
            with suppress(TxcalcError):
                model = model.set({key: draw.choice(values)})
    layers = sum(stack.n_layers for stack in model.stacks)
    experts = [layer.experts.n_experts if layer.experts else 1 for layer in model.description.layers]
    if layers * max(experts) > 600:
        raise Refuted("its modules are too many")
    return model


def judged(number: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Marks of one model at one workload, counted by word and whether a run agrees; and the faults."""
    draw = random.Random(f"{seed} {number}")
    model = chosen(draw, 1_000_000 * seed + number)
    sizes = {"batch": draw.choice((1, 1, 2, 3, 17)), "tokens": draw.choice((1, 1, 2, 7, 40))}
    rows = [stack.positions.get("rows") for stack in model.stacks]
    if any(rows):
        sizes["tokens"] = min(sizes["tokens"], *(row for row in rows if row))
    elif model.decodes and draw.random() < 0.4:
        sizes["past"] = draw.choice((1, 5, 60))
    if model.has_encoder_apart and not model.reads_no_ids:
        sizes["source"] = sizes["tokens"] if any(rows) else draw.choice((1, 3, 9))
    work: Any = sizes
    shown, kept = model.ledger(**work), model.ledger(**work, keep_scores=True)
    evidence = show_known(model, shown, kept)
    figures = {name: shown.total(name) for name in ("params", "flops", "cache")} | {"training": training_flops(shown)}
    counts: Counter[str] = Counter()
    faults = []
    for quantity, measured in run(model, shown).items():
        how, where = evidence[quantity].how, evidence[quantity].where
        equal = measured == figures[quantity]
        counts[f"{how}, {'equal' if equal else 'another'}"] += 1
        if how in SURE and (not equal or (how != "measured" and not domains.covers(where, shown.work))):
            faults.append(f"{number}: {sizes} {quantity} {how} {where}: {figures[quantity]:,}, the module {measured:,}")
    return counts, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["XDG_DATA_HOME"] = os.devnull
    counts: Counter[str] = Counter()
    faults: list[str] = []
    tried = number = refused = 0
    while tried < options.number:
        number += 1
        try:
            counts_of_model, wrong = judged(number, options.seed)
        except (TxcalcError, RuntimeError) as error:  # refused, or its module takes no such workload
            refused += 1
            print(f"{number}: {' '.join(str(error).split())[:100]}", file=sys.stderr)
            continue
        counts += counts_of_model
        faults += wrong
        tried += 1
    print(f"{tried} models at random workloads, {refused} more refused or not run")
    for word, times in counts.most_common():
        print(f"{word:<24} {times:>6,}")
    print("\n".join(faults) or "no mark is contradicted")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
