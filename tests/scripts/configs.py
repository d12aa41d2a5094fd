"""How many config.json files of a folder are read right: `python tests/scripts/configs.py FOLDER`.

FOLDER holds `truth.json` (a list of records with `name`, `params_total`, and perhaps `segment`) and
`configs/NAME.json`. Each file is *right* (its unique parameters equal the record's), *refused*, *stopped* (refused for
nothing but keys that are not understood, or a class of other code: right with `--ignore`), *unknown* (answered where
the record has no number, or as a model of other code than its model type says, whose number the record has not) or
WRONG. Prints each file that is not right, with why, then the counts by segment.
`--pack FILE` writes the folder as one file, without the keys that decide about nothing, for the tests.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from txcalc.errors import TxcalcError
from txcalc.sources import build
from txcalc.sources.huggingface import describe, type_of
from txcalc.sources.huggingface.families import PUBLISHED, READERS
from txcalc.sources.huggingface.transformers_metadata import is_neutral


def records(folder: Path) -> Iterator[tuple[dict[str, Any], Any]]:
    """What is known of each config of a folder, and the config, with the class that was measured where it is a base."""
    for truth in json.loads((folder / "truth.json").read_text()):
        config = json.loads((folder / "configs" / f"{truth['name']}.json").read_text())
        if isinstance(config, dict):
            architectures = {"architectures": [truth["class"]]} if config.get("_head") == "base" else {}
            config = {key: value for key, value in (config | architectures).items() if key not in ("_source", "_head")}
        yield truth, config


class Verdict(NamedTuple):
    name: str
    segment: str
    verdict: str
    why: str


def of_other_code(config: Any) -> bool:
    """Whether its class or its keys are of other code than its model type, which is what the record measures."""
    model_type, _ = type_of(config, "")
    published = model_type in READERS and READERS[model_type][0] in PUBLISHED
    return published and bool(model_type != config.get("model_type"))


def judge(config: Any, truth: dict[str, Any]) -> tuple[str, str]:
    """The verdict on one file, and the refusal or the two numbers."""
    expected = truth["params_total"]
    try:
        described = describe(config)
        params = build(*described).params
    except TxcalcError as error:
        if expected is None:
            return "no number, refused", str(error)
        faults = [str(fault) for fault in getattr(error, "faults", ())]
        return ("stopped" if faults and all("--ignore " in fault for fault in faults) else "refused"), str(error)
    if expected is None:
        return "unknown", f"{params:,}; {truth.get('why_unknown', '')}"
    if params == expected:
        return "right", ""
    if of_other_code(config):
        return "unknown", f"{params:,}; {'; '.join(described[2])}"
    return ("WRONG", f"{params:,}, not {expected:,} ({params - expected:+,})")


def slim(config: Any) -> Any:
    """A config without the keys of generation and training."""
    if not isinstance(config, dict):
        return config
    kept = {"architectures", "auto_map", "model_type", "id2label", "num_labels", "quantization_config", "n_ctx"}
    kept |= {"add_cross_attention", "use_gate"}
    return {
        key: slim(value)
        for key, value in config.items()
        if key in kept
        or value is None
        or not is_neutral(key, value)
        or any(word in key for word in ("rope", "eps", "pad", "position"))
    }


def pack(folder: Path, place: Path) -> None:
    """The folder in one file, a line per config: what the tests hold."""
    rows = []
    for truth in json.loads((folder / "truth.json").read_text()):
        config = json.loads((folder / "configs" / f"{truth['name']}.json").read_text())
        kept = ("segment", "class", "params_total", "params_total_whole_multimodal", "why_unknown")
        record = {"source": truth["source"], **{key: truth[key] for key in kept if key in truth}}
        record["why_unknown"] = record.get("why_unknown", "")[:60]
        rows.append(
            f"{json.dumps(truth['name'])}: " + json.dumps({**record, "config": slim(config)}, separators=(",", ":"))
        )
    place.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def verdicts(folder: Path) -> Iterator[Verdict]:
    for truth, config in records(folder):
        yield Verdict(truth["name"], truth.get("segment", "oracle"), *judge(config, truth))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--full", action="store_true", help="whole messages")
    parser.add_argument("--pack", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.pack:
        return pack(options.folder, options.pack)
    rows = list(verdicts(options.folder))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row.segment][row.verdict] += 1
    for row in sorted(rows, key=lambda row: (row.segment, row.verdict)):
        if row.verdict not in ("right", "no number, refused"):
            why = row.why if options.full else row.why.replace("\n ", ";")[:300]
            print(f"{row.segment} | {row.verdict} | {row.name} | {why}")
    for segment, by in counts.items():
        judged = sum(by[verdict] for verdict in ("right", "refused", "stopped", "WRONG"))
        share = f"{by['right']} right of {judged} ({by['right'] / judged:.1%})" if judged else "none with a number"
        print(f"{segment}: {share}; " + ", ".join(f"{number} {verdict}" for verdict, number in sorted(by.items())))
    return None


if __name__ == "__main__":
    main()
