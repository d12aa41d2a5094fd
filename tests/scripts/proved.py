"""Of how many configs of a folder that are read each figure is proved, by theorems and with no run:

    python tests/scripts/proved.py FOLDER … [--run] [--part 1/3]

FOLDER is as `tests/scripts/configs.py` has it. Prints every config whose parameters or FLOPs are not proved, with the
structures for want of which they are not; every one whose proved parameters are not the record's; then the counts.
`--run` also builds the modules of each, one layer of each kind, and counts their weights and FLOPs where theorems say
that they are proved: a mark that this contradicts is printed, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from configs import of_other_code, records

from txcalc.errors import TxcalcError
from txcalc.evidence import structures, theorems
from txcalc.model import Model
from txcalc.sources import build
from txcalc.sources.huggingface import describe


def read(folder: Path) -> Iterator[tuple[str, Model, int | None]]:
    """The models of a folder that are read, with their parameters where the record has them of this class."""
    for truth, config in records(folder):
        try:
            yield truth["name"], build(*describe(config)), None if of_other_code(config) else truth["params_total"]
        except TxcalcError:
            continue


def contradictions(model: Model) -> Iterator[str]:
    """What modules say of parameters and FLOPs at sizes where formulas are not equal to it; nothing of leaves that are
    listed, of which there is no module."""
    from txcalc.reference import tracing
    from txcalc.verification import flops
    from txcalc.verification.subject import SizePoint, Subject
    from txcalc.verification.verdict import compare

    if any(True for _ in structures.listed_leaves(model)):
        return
    subject = Subject(model, lengths="points")
    point = next((candidate for candidate in subject.points if candidate.batch == 3), subject.points[-1])
    net = subject.thin_net
    with tracing(static=True):
        counter = flops.count(net, lambda: net(*subject.inputs(point)))
    ledger = subject.ledger(SizePoint(*point))
    weights: dict[str, int] = {}
    for name, weight in net.named_parameters():
        path = name.rpartition(".")[0]
        weights[path] = weights.get(path, 0) + weight.numel()
    rows = [
        *compare(ledger, lambda entry: entry.flops, subject.expand_layers(counter.by_module), "flops", "", str(point)),
        *compare(ledger, lambda entry: entry.params, subject.expand_layers(weights), "params", ""),
    ]
    yield from (f"{r.quantity} of {r.path or 'all'}: {r.predicted}, not {r.measured}" for r in rows if not r.equal)


def main() -> int:
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    about.add_argument("--run", action="store_true")
    about.add_argument("--part", default="1/1", help="only every n-th config, from the first, second, …")
    options = about.parse_args()
    first, ways = map(int, options.part.split("/"))
    contradicted = 0
    for folder in options.folders:
        counts, number, full = Counter[str](), 0, 0
        for name, model, params in list(read(folder))[first - 1 :: ways]:
            number += 1
            inherited = theorems.inheritance(model)
            counts.update(f"{quantity} {how}" for quantity, (how, _) in inherited.items())
            if not {"params", "flops"} <= inherited.keys():
                parts = [part for unit in theorems.units(model) for part in theorems.missing(unit)]
                why = [f"{part.name} ({part.key}): {theorems.obstacle(part)}" for part in parts]
                print(f"{folder.name} | {name} | not proved | {'; '.join(why)}")
                continue
            full += 1
            wrong = [f"params: {model.params}, not {params}"] if params not in (None, model.params) else []
            wrong += contradictions(model) if options.run else []
            contradicted += bool(wrong)
            if wrong:
                print(f"{folder.name} | {name} | CONTRADICTED | {'; '.join(wrong)}", flush=True)
        print(f"{folder.name}: parameters and FLOPs proved for {full} of {number} that are read ({full / number:.1%})")
        print("  " + ", ".join(f"{quantity} {n}" for quantity, n in sorted(counts.items())))
    return int(contradicted > 0)


if __name__ == "__main__":
    sys.exit(main())
