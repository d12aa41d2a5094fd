"""Every class that transformers has for every model type that is read: `python tests/scripts/heads.py [TYPE…]`.

Tiny configs (those of `mutants.py`) get each class of transformers' auto tables in turn; its parameters and FLOPs are
measured on the meta device and compared. Prints the classes that are refused and those that differ, then how many are
equal; exit code 1 where any differs. `--refused` prints why each is refused.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections import Counter
from typing import Any

from mutants import OWN_WAYS, tiny
from transformers.models.auto import modeling_auto as auto

from txcalc.errors import TxcalcError
from txcalc.sources import build
from txcalc.sources.huggingface import describe, transformers_metadata as metadata
from txcalc.verification.via import measure


def named() -> set[str]:
    """The classes that transformers' auto classes choose among."""
    tables = [value for key, value in vars(auto).items() if key.endswith("_MAPPING_NAMES")]
    names = [name for table in tables for name in table.values()]
    return {one for name in names for one in (name if isinstance(name, tuple | list) else [name])}


def compared(config: dict[str, Any], cls: str) -> tuple[str, str]:
    """How one class fares, and what there is to say about it."""
    config = {key: value for key, value in config.items() if key not in ("num_labels", "label2id")}
    classes = 2 if "QuestionAnswering" in cls else 5
    config |= {"architectures": [cls], "id2label": {str(i): str(i) for i in range(classes)}}
    batch, tokens = (8, 4) if cls.endswith("MultipleChoice") else (1, 5)
    try:
        model = build(*describe(config))
    except TxcalcError as error:
        try:
            measure(config, cls, batch, tokens, formulas=False)
        except TxcalcError:
            return "refused by both", ""
        return "refused", str(error)
    try:
        theirs = measure(config, cls, batch, tokens, formulas=False)
    except TxcalcError as error:
        return "refused by transformers alone", str(error)
    ledger = model.ledger(batch, tokens, source=tokens if model.has_encoder_apart else None)
    if model.params != theirs.params and model.params != theirs.total_params:
        return "DIFFERS", f"{model.params:,} parameters, not {theirs.params:,}"
    known = theirs.flops is not None and not theirs.uncounted and config["model_type"] not in OWN_WAYS
    if known and ledger.total("flops") != theirs.flops:
        return "DIFFERS", f"{ledger.total('flops'):,} FLOPs, not {theirs.flops:,}"
    return ("equal" if known else "equal in parameters"), ""


def main() -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    asked = [one for one in sys.argv[1:] if not one.startswith("--")]
    classes, counts = named(), Counter[str]()
    for config in tiny():
        if asked and config["model_type"] not in asked:
            continue
        for cls in metadata.classes(config["model_type"]):
            if cls in classes:
                how, why = compared(config, cls)
                counts[how] += 1
                if how in ("DIFFERS", "refused by transformers alone"):
                    print(f"{how} | {config['model_type']} | {cls} | {why}", flush=True)
                elif how == "refused":
                    said = f" | {why}" if "--refused" in sys.argv else ""
                    print(f"refused | {config['model_type']} | {cls}{said}", flush=True)
    print(", ".join(f"{number:,} {how}" for how, number in counts.most_common()))
    return 1 if counts["DIFFERS"] else 0


if __name__ == "__main__":
    sys.exit(main())
