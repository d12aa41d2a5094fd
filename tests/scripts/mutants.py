"""Mutated configs beside transformers: `python tests/scripts/mutants.py --number 30000 --seed 1`.

Small configs of every model type that is read and that transformers has, those of tests/data/hf or the defaults of its
class, are changed in one to three keys; transformers builds each on the meta device, txcalc reads it. Both must have as
many parameters, of the language model and of all, or txcalc refuses. Prints which types are not compared, every mutant
that one of the two refuses alone or that both answer with different numbers, as it comes, and how often each happened:
exit code 1 where numbers differ or anything but a refusal was raised. A mutant is drawn by the seed and its own number:
`--first 4711 --number 1` makes it again, as long as the configs are the same. `--types bert led` takes these alone;
`--sample 20` also compares FLOPs and the elements of the cache of every 20th that agrees, where transformers' code can
be counted on meta.
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
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from txcalc.errors import TxcalcError
from txcalc.ledger import Ledger
from txcalc.model import Model
from txcalc.sources import build
from txcalc.sources.huggingface import describe, transformers_metadata as metadata
from txcalc.sources.huggingface.families import READERS, WRAPPERS
from txcalc.sources.objects import idle_rows

DATA = Path(__file__).parents[2] / "tests" / "data" / "hf"
FILES = ("towers", "configs", "small", "wild")
LAYERS = {"num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers",
          "num_decoder_layers"}  # fmt: skip
# What txcalc answers otherwise on purpose: T5's later checkpoints own a head that transformers 5 does not make,
# Nomic's published configs say their sizes in keys that only their own code reads, and a text whose only class has no
# head is counted with that of the whole, as a note says.
ON_PURPOSE = {"t5": "tie_word_embeddings", "mt5": "tie_word_embeddings"}
OTHERWISE = ("nomic_bert",)
WITH_HEAD = "a language-model head is counted"
# What the defaults of a class lack for a model of it.
LACKING: dict[str, dict[str, Any]] = {
    **{name: {"head_dim": 64} for name in ("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral")},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
}

PROBE = 10  # one in ten of those that txcalc refuses is built, to see whether transformers refuses them too
AGREE, DIFFER, CRASH, REFUSED = "agree", "DIFFER", "CRASH", "refused by txcalc, not built"
BOTH_REFUSE, TXCALC_REFUSES, THEY_REFUSE = "refused by both", "refused by txcalc alone", "refused by transformers alone"
WARNED, NO_CLASS = "refused by transformers, and a note says what of it", "of no class that can be built"
COSTS_AGREE, COSTS_DIFFER = "of these sampled: FLOPs and cache agree", "FLOPs or cache DIFFER"


def shrunk(config: dict[str, Any], lists: bool) -> dict[str, Any]:
    """A config with two layers; with its lists, those with an item for each of its layers cut to two, or without."""
    depth = next((value for key, value in config.items() if key in LAYERS), None)
    small: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            small[key] = shrunk(value, lists)
        elif key in LAYERS:
            small[key] = 2
        elif not isinstance(value, list) or key == "architectures":
            small[key] = value
        elif lists:
            small[key] = value[:2] if len(value) == depth else value
    small.pop(ON_PURPOSE.get(config.get("model_type", ""), ""), None)
    return small


def kept(name: str) -> Iterator[dict[str, Any]]:
    """The configs of a file of tests/data/hf."""
    for row in json.loads((DATA / f"{name}.json").read_text()).values():
        config = row.get("config", row)
        if config.get("model_type") not in OTHERWISE:
            yield config


def read(config: dict[str, Any]) -> dict[str, Any] | None:
    """It with two layers, or as it is: whichever is read."""
    for small in (shrunk(config, lists=False), shrunk(config, lists=True), config):
        if not isinstance(ours(small), str):
            return small
    return None


def tiny() -> list[dict[str, Any]]:
    """The first config of each model type that is read, with two layers; and the small multimodal ones."""
    by_type: dict[str, dict[str, Any]] = {}
    for name in FILES:
        for config in kept(name):
            model_type = config.get("model_type", "")
            if model_type in {*READERS, *WRAPPERS} - {*by_type} and (small := read(config)):
                by_type[model_type] = small
    towers = [config for config in kept("towers") if config not in by_type.values()]
    return [*by_type.values(), *(config for config in towers if config["model_type"] in by_type)]


def every() -> list[dict[str, Any]]:
    """Those, and one that transformers builds too of every other type that is read and that transformers has: another
    config that is kept, or the defaults of its class."""
    from transformers import CONFIG_MAPPING

    configs = [candidate for candidate in tiny() if not isinstance(theirs(candidate), str)]
    lacking = {*READERS, *WRAPPERS}.intersection(CONFIG_MAPPING) - {candidate["model_type"] for candidate in configs}
    for config in chain(*map(kept, FILES), *map(defaults, sorted(lacking))):
        if config.get("model_type") in lacking:
            for small in (shrunk(config, lists=False), shrunk(config, lists=True), config):
                if judged(ours(small), theirs(small))[0] == AGREE:
                    configs.append(small)
                    lacking.remove(small["model_type"])
                    break
    if lacking:
        print("not compared:", *sorted(lacking), flush=True)
    return configs


def defaults(model_type: str) -> Iterator[dict[str, Any]]:
    """What transformers' configuration class makes without being told anything, with and without a class for it."""
    from transformers import CONFIG_MAPPING

    try:
        config: dict[str, Any] = json.loads(CONFIG_MAPPING[model_type]().to_json_string())
    except Exception:  # some ask for a part of them
        return
    config = {key: value for key, value in config.items() if value is not None and key != "transformers_version"}
    config |= LACKING.get(model_type, {})
    yield config
    for name in sorted(metadata.classes(model_type)):
        yield config | {"architectures": [name]}


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


@cache
def absent(model_type: str, keys: frozenset[str]) -> dict[str, Any]:
    """The numbers and flags that transformers' class of a type takes for keys that a config lacks."""
    from transformers import PreTrainedConfig

    common = {*PreTrainedConfig().to_dict(), *keys}
    usual = next(defaults(model_type), {}) if model_type not in LACKING else {}
    return {key: value for key, value in usual.items() if key not in common and isinstance(value, bool | int | float)}


def mutate(config: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """One to three keys, nested ones too, changed: another value of its kind, null, or gone; a key that the config
    lacks gets another value than the default."""
    mutant = copy.deepcopy(config)
    usual = absent(config["model_type"], frozenset(config))
    candidates = sorted({*places(config), *usual} - {ON_PURPOSE.get(config["model_type"])})
    for path in draw.sample(candidates, min(len(candidates), draw.randint(1, 3))):
        *tables, key = path.split(".")
        inner = at(mutant, ".".join(tables)) if tables else mutant
        if not isinstance(inner, dict):
            continue  # its table is gone
        value = inner.get(key, usual.get(key))
        choices: list[Any] = [None]
        if isinstance(value, bool):
            choices = [not value, None]
        elif isinstance(value, int):
            choices = [value + 1, value * 2, value // 2, max(1, value - 2), 1, 0, -1, None]
        elif isinstance(value, float):
            choices = [value * 2, 1.0, 0.5, None]
        elif isinstance(value, str):
            choices = ["relu", "silu", "gelu", "gated-gelu", "none", None]
        elif isinstance(value, list) and value and all(type(item) is int for item in value):
            i, item = draw.randrange(len(value)), draw.choice(value)
            choices = [[*value[:i], changed, *value[i + 1 :]] for changed in (value[i] + 1, value[i] * 2, 1, 0)]
            choices += [value[:-1], [*value, item], None]
        if draw.random() < 0.25:
            inner.pop(key, None)
        else:
            inner[key] = draw.choice(choices)
    return mutant


def theirs(config: dict[str, Any]) -> tuple[int, int] | str:
    """The unique parameters of transformers' model, those of experts that do nothing left out, and of its language
    model, where there is more; or why there is none."""
    from txcalc.verification.transformers_cost import instantiate, language_params

    try:
        net = instantiate(copy.deepcopy(config), "mutant")  # which writes into tables that it is given
        whole = sum(int(weight.numel()) for weight in net.parameters()) - idle_rows(describe(config)[0], net)
        language = language_params(net)
        return whole, whole if language is None else language
    except TxcalcError as error:
        return str(error)


def beyond(model: Model, ledger: Ledger, quantity: str) -> int:
    """What a head that transformers' class has not is of a quantity."""
    has_head = any(note.startswith(WITH_HEAD) for note in model.notes)
    return int(ledger.by_kind(quantity).get("head", 0)) if has_head else 0


def ours(config: dict[str, Any]) -> tuple[int | None, int] | str:
    """Those that are read, None where a tower is not, and those of the language model; or why nothing is."""
    try:
        model = build(*describe(config))
        head = beyond(model, model.ledger(), "params")
        return None if model.total_params is None else int(model.total_params) - head, int(model.params) - head
    except TxcalcError as error:
        return str(error)


SAID = ("refuses, though no size depends on it", "params.whole is not known", "which transformers may not accept")


def warned(config: dict[str, Any]) -> bool:
    """Whether notes say that transformers refuses a value, or why a tower is not known."""
    notes = " ".join(build(*describe(config)).notes)
    return any(phrase in notes for phrase in SAID)


def agree(mine: tuple[int | None, int], reference: tuple[int, int]) -> bool:
    """Whether both have as many, of all that is read."""
    whole, language = mine
    return whole in (None, reference[0]) and (whole == language or language == reference[1])


# Whose products depend on the implementation: blocks that overlap or are filled up, scans, all experts for all tokens,
# keys repeated for all heads, kernels that are not there, texts as long as blocks, rows of zeros around them, a canvas
# beside the text.
_OWN = """
bigbird_pegasus big_bird longt5 falcon_mamba mamba mamba2 jamba bamba zamba zamba2 nemotron_h granitemoehybrid
rwkv recurrent_gemma minimax falcon_h1 qwen3_next qwen3_5_text qwen3_5_moe_text kimi_linear olmo_hybrid bailing_hybrid
lfm2 lfm2_moe lfm3 llama4_text falcon inkling_text zaya diffusion_gemma
"""
OWN_WAYS = frozenset(_OWN.split())
# Modules whose own products are a scan in chunks, and the leaves that stand for them here: all around them is compared.
SCANS, SCANNED = ("GatedDeltaNet",), ("DeltaRule", "Convolution")


def costs(config: dict[str, Any]) -> list[str]:
    """What differs of the FLOPs and the cache of a forward pass of five tokens."""
    from txcalc.verification.transformers_cost import instantiate, measure

    model = build(*describe(config))
    joined = {"source": 5} if model.has_encoder_apart else {}
    differences = []
    try:
        cost = measure(config, "mutant", tokens=5, formulas=False, **joined)
        flops = cost.flops
    except Exception:  # a size that depends on data
        flops = None
    if flops is not None:
        scans = [part for part in cost.parts if part.kind.endswith(SCANS)]
        flops -= sum(part.flops or 0 for part in scans)
        ledger = model.ledger(tokens=5, **joined)  # type: ignore[arg-type]
        mine = sum(e.flops for e in ledger if not scans or type(e.leaf).__name__ not in SCANNED)
        mine -= beyond(model, ledger, "flops")
        if mine != flops:
            differences.append(f"FLOPs {mine:,}, not {flops:,}")
    elements = model.ledger(tokens=5, **joined).total("cache")  # type: ignore[arg-type]
    if elements and not joined:
        kept = _kept(instantiate(config, "mutant"))
        if kept is not None and kept != elements:
            differences.append(f"cache {elements:,}, not {kept:,}")
    return differences


def _kept(net: Any) -> int | None:
    """Elements of the cache after five tokens, where it is keys and values alone and no window is as short."""
    import torch

    try:
        with torch.no_grad():
            cache = net(torch.zeros(1, 5, dtype=torch.long, device="meta"), use_cache=True).past_key_values
        layers = [vars(layer) for layer in cache.layers if getattr(layer, "sliding_window", 9) > 5]
        if len(layers) < len(cache.layers) or any(
            isinstance(value, dict) for layer in layers for value in layer.values()
        ):
            return None  # or pooled tokens by their name
        return sum(layer[key].numel() for layer in layers for key in ("keys", "values", "indexer_keys") if key in layer)
    except Exception:
        return None


class Outcome(NamedTuple):
    """What became of a mutant: the number it was drawn by, its type, what was changed, how it fared, what was said."""

    number: int
    model_type: str
    changed: dict[str, Any]
    verdict: str
    message: str = ""


def outcomes(configs: list[dict[str, Any]], numbers: Iterable[int], seed: int, sample: int = 0) -> Iterator[Outcome]:
    """Mutants in turn, each the same whatever is drawn beside it."""
    seen: Counter[str] = Counter()
    for number in numbers:
        original = configs[number % len(configs)]
        mutant = mutate(original, random.Random(f"{seed} {number}"))
        paths = dict.fromkeys([*places(original), *places(mutant)])
        changed = {path: new for path in paths if (new := at(mutant, path)) != at(original, path)}
        try:
            mine = ours(mutant)
            seen[type(mine).__name__] += 1
            probed = isinstance(mine, tuple) or seen["str"] % PROBE == 0
            verdict, message = judged(mine, theirs(mutant)) if probed else (REFUSED, "")
            if verdict == THEY_REFUSE and "architectures[0] is missing" in message:
                verdict, message = NO_CLASS, ""
            elif verdict == THEY_REFUSE and warned(mutant):
                verdict, message = WARNED, ""
        except Exception as error:  # what is no refusal is a fault
            verdict, message = CRASH, repr(error)
        yield Outcome(number, original["model_type"], changed, verdict, message)
        seen[verdict] += 1
        if verdict == AGREE and sample and seen[AGREE] % sample == 0 and OWN_WAYS.isdisjoint(types_in(original)):
            differ = "; ".join(costs(mutant))
            yield Outcome(number, original["model_type"], changed, COSTS_DIFFER if differ else COSTS_AGREE, differ)


def listed(configs: list[dict[str, Any]], seed: int, sample: int, numbers: range) -> list[Outcome]:
    return list(outcomes(configs, numbers, seed, sample))


def judged(mine: tuple[int | None, int] | str, reference: tuple[int, int] | str) -> tuple[str, str]:
    """How the two answers compare, and the refusal that stands alone or what differs."""
    if isinstance(mine, str):
        return (BOTH_REFUSE, "") if isinstance(reference, str) else (TXCALC_REFUSES, mine)
    if isinstance(reference, str):
        return THEY_REFUSE, reference
    return (AGREE, "") if agree(mine, reference) else (DIFFER, f"{mine}, not {reference}")


def hurried() -> None:
    """Modules that are built for their shapes are given no values, and configurations do not print themselves."""
    from torch.nn import init
    from transformers import PreTrainedConfig

    for name in ("kaiming_uniform_", "uniform_", "normal_", "xavier_uniform_", "ones_", "zeros_"):
        setattr(init, name, lambda tensor, *_, **__: tensor)
    PreTrainedConfig.__repr__ = object.__repr__  # type: ignore[method-assign]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the number that the first is drawn by")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--types", nargs="*", default=[])
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    hurried()
    counts: Counter[str] = Counter()
    configs = [config for config in every() if not options.types or config["model_type"] in options.types]
    end = options.first + options.number
    drawn = [range(start, min(start + 100, end)) for start in range(options.first, end, 100)]
    with get_context("fork").Pool(options.jobs) as pool:  # what transformers was made to import is there already
        for part in pool.imap_unordered(partial(listed, configs, options.seed, options.sample), drawn):
            for outcome in part:
                counts[outcome.verdict] += 1
                if outcome.message:
                    print(json.dumps(outcome), flush=True)
    print("\n".join(f"{times:,} {verdict}" for verdict, times in counts.most_common()))
    return 1 if counts[DIFFER] or counts[COSTS_DIFFER] or counts[CRASH] else 0


if __name__ == "__main__":
    sys.exit(main())
