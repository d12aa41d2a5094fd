"""Mutated configs beside transformers: `python tests/evidence/mutants.py --number 30000 --seed 1`.

Tiny configs of every model type in tests/data/hf are changed in one to three keys; transformers builds each on the meta
device, txcalc reads it. Both must have as many parameters, of the language model and of all, or txcalc refuses. Prints
how many agree, are refused, are refused by transformers alone (by first key and message), and every one that both
answer with different numbers: exit code 1 if there is any. `--types bert led` takes these alone; `--sample 20` also
compares FLOPs and the elements of the cache of every 20th that agrees, where transformers' code can be counted on meta.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from txcalc.errors import TxcalcError
from txcalc.sources import build
from txcalc.sources.huggingface import describe
from txcalc.sources.huggingface.families import READERS, WRAPPERS
from txcalc.sources.objects import idle_rows

DATA = Path(__file__).parents[1] / "data" / "hf"
LAYERS = {"num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers",
          "num_decoder_layers"}  # fmt: skip
# Keys of which txcalc answers otherwise on purpose: T5's later checkpoints own a head that transformers 5 does not
# make, and Nomic's published configs say their sizes in keys that only their own code reads.
ON_PURPOSE = {"t5": "tie_word_embeddings", "mt5": "tie_word_embeddings", "nomic_bert": "n_layer"}
MOST = 1 << 31  # parameters of a model that is worth building here


def tiny() -> list[dict[str, Any]]:
    """The first config of each model type that is read, with two layers; and the small multimodal ones."""
    found: dict[str, dict[str, Any]] = {}
    more = (row["config"] for row in json.loads((DATA / "small.json").read_text()).values())
    for config in (*json.loads((DATA / "configs.json").read_text()).values(), *more):
        small = {key: 2 if key in LAYERS else value for key, value in config.items()}
        small = {key: value for key, value in small.items() if not isinstance(value, list) or key == "architectures"}
        small.pop(ON_PURPOSE.get(config["model_type"], ""), None)
        if config["model_type"] in READERS and config["model_type"] not in found:
            try:
                if build(*describe(small)).params < MOST:
                    found[config["model_type"]] = small
            except TxcalcError:
                continue
    towers = [row["config"] for row in json.loads((DATA / "towers.json").read_text()).values()]
    return [*found.values(), *(one for one in towers if one["model_type"] in {*WRAPPERS, *READERS})]


def places(config: dict[str, Any], path: str = "") -> Iterator[str]:
    """The keys of a config and of its nested tables, by their paths."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from places(value, f"{path}{key}.")
        if key != "model_type":
            yield path + key


def types_in(config: dict[str, Any]) -> set[str]:
    """Its model type, and its text's."""
    return {config["model_type"], at(config, "text_config.model_type")}


def at(config: Any, path: str) -> Any:
    """What stands at a path; "gone" where nothing does."""
    for key in path.split("."):
        config = config.get(key, "gone") if isinstance(config, dict) else "gone"
    return config


def mutate(config: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """One to three keys, nested ones too, changed: another value of its kind, null, or gone."""
    mutant = copy.deepcopy(config)
    known = sorted(set(places(config)) - {ON_PURPOSE.get(config["model_type"])})
    for path in draw.sample(known, draw.randint(1, 3)):
        *tables, key = path.split(".")
        inner = at(mutant, ".".join(tables)) if tables else mutant
        if not isinstance(inner, dict):
            continue  # its table is gone
        value = inner[key]
        choices: list[Any] = [None]
        if isinstance(value, bool):
            choices = [not value, None]
        elif isinstance(value, int):
            choices = [value + 1, value * 2, value // 2, max(1, value - 2), 1, 0, -1, None]
        elif isinstance(value, float):
            choices = [value * 2, 1.0, 0.5, None]
        elif isinstance(value, str):
            choices = ["relu", "silu", "gelu", "gated-gelu", "none", None]
        if draw.random() < 0.25:
            del inner[key]
        else:
            inner[key] = draw.choice(choices)
    return mutant


def theirs(config: dict[str, Any]) -> tuple[int, int] | str:
    """The unique parameters of transformers' model, those of experts that do nothing left out, and of its language
    model, where there is more; or why there is none."""
    from txcalc.verify.via import _language, instantiate

    try:
        net = instantiate(config, "mutant")
        whole = sum(int(weight.numel()) for weight in net.parameters()) - idle_rows(describe(config)[0], net)
        language = _language(net)
        return whole, whole if language is None else language
    except TxcalcError as error:
        return str(error)


def ours(config: dict[str, Any]) -> tuple[int | None, int] | str:
    """Those that are read, None where a tower is not, and those of the language model; or why nothing is."""
    try:
        model = build(*describe(config))
        return None if model.whole is None else int(model.whole), int(model.params)
    except TxcalcError as error:
        return str(error)


def same(mine: tuple[int | None, int], other: tuple[int, int]) -> bool:
    """Whether both have as many, of all that is read."""
    whole, language = mine
    return whole in (None, other[0]) and (whole == language or language == other[1])


# Whose products depend on the implementation: blocks that overlap or are filled up, scans, all experts for all tokens,
# keys repeated for all heads, kernels that are not there, texts as long as blocks, rows of zeros around them, a canvas
# beside the text.
_OWN = """
bigbird_pegasus big_bird longt5 falcon_mamba mamba mamba2 jamba bamba zamba zamba2 xlstm nemotron_h granitemoehybrid
rwkv recurrent_gemma minimax falcon_h1 qwen3_next qwen3_5_text qwen3_5_moe_text kimi_linear olmo_hybrid bailing_hybrid
lfm2 lfm2_moe lfm3 llama4_text fnet falcon inkling_text mra reformer zaya diffusion_gemma
"""
OWN_WAYS = frozenset(_OWN.split())
# Modules whose own products are a scan in chunks, and the leaves that stand for them here: all around them is compared.
SCANS, SCANNED = ("GatedDeltaNet",), ("DeltaRule", "Convolution")


def costs(config: dict[str, Any]) -> list[str]:
    """What differs of the FLOPs and the cache of a forward pass of five tokens."""
    from txcalc.verify.via import instantiate, measure

    model = build(*describe(config))
    joined = {"source": 5} if model.has_encoder_apart else {}
    found = []
    try:
        cost = measure(config, "mutant", tokens=5, formulas=False, **joined)
        flops = cost.flops
    except Exception:  # a size that depends on data
        flops = None
    if flops is not None:
        scans = [part for part in cost.parts if part.kind.endswith(SCANS)]
        flops -= sum(part.flops or 0 for part in scans)
        entries = list(model.ledger(tokens=5, **joined))  # type: ignore[arg-type]
        mine = sum(e.flops for e in entries if not scans or type(e.leaf).__name__ not in SCANNED)
        if mine != flops:
            found.append(f"FLOPs {mine:,}, not {flops:,}")
    held = model.ledger(tokens=5, **joined).total("cache")  # type: ignore[arg-type]
    if held and not joined:
        kept = _kept(instantiate(config, "mutant"))
        if kept is not None and kept != held:
            found.append(f"cache {held:,}, not {kept:,}")
    return found


def _kept(net: Any) -> int | None:
    """Elements of the cache after five tokens, where it is keys and values alone and no window is as short."""
    import torch

    try:
        with torch.no_grad():
            cache = net(torch.zeros(1, 5, dtype=torch.long, device="meta"), use_cache=True).past_key_values
        layers = [
            (layer.keys, layer.values, *([layer.indexer_keys] if hasattr(layer, "indexer_keys") else []))
            for layer in cache.layers
            if getattr(layer, "sliding_window", 9) > 5
        ]
        return sum(t.numel() for kept in layers for t in kept) if len(layers) == len(cache.layers) else None
    except Exception:
        return None


def run(number: int, seed: int, types: list[str] | None = None, sample: int = 0) -> tuple[Counter[str], list[str]]:
    """Counts by outcome, and what both answer differently."""
    draw, configs = random.Random(seed), [one for one in tiny() if not types or one["model_type"] in types]
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for i in range(number):
        original = configs[i % len(configs)]
        mutant = mutate(original, draw)
        mine = ours(mutant)
        if isinstance(mine, str):
            counts["refused by txcalc"] += 1
            continue
        if max(mine[1], mine[0] or 0) > MOST:
            counts["not built: too large"] += 1
            continue
        other = theirs(mutant)
        changed = {path: new for path in places(original) if (new := at(mutant, path)) != at(original, path)}
        if isinstance(other, str):
            counts[f"refused by transformers alone: {original['model_type']} {sorted(changed)}: {other[-70:]}"] += 1
        elif same(mine, other):
            counts["agree"] += 1
            if sample and counts["agree"] % sample == 0 and OWN_WAYS.isdisjoint(types_in(original)):
                counts["agree and sampled"] += 1
                differ = costs(mutant)
                wrong += [f"{original['model_type']}: {one}, with {changed}" for one in differ]
        else:
            wrong.append(f"{original['model_type']}: {mine}, not {other}, with {changed}")
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--types", nargs="*", default=[])
    parser.add_argument("--sample", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    counts, wrong = run(options.number, options.seed, options.types, options.sample)
    for outcome, times in counts.most_common():
        print(f"{times:,} {outcome}")
    print(f"{len(wrong):,} answered by both with different numbers")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
