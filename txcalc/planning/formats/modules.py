"""Module names in checkpoints, and the patterns of quantisers' lists."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import combinations
from math import prod
from os.path import commonprefix
from pathlib import Path

from txcalc.errors import Fault, InputError
from txcalc.ledger import Entry
from txcalc.planning.formats.weights import LAYERS, Format

WHERE = "quantization_config"

# Keys of lists of modules that are not quantised; vLLM's own quantiser calls its list ignored_layers.
LEFT = ["modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "exclude", "llm_int8_skip_modules"]
LEFT += ["linear_weights_not_to_quantize"]  # AQLM's
# Keys of lists of quantised blocks; the first one present counts: AutoRound's, optimum's GPTQ.
BLOCKS = ("quant_block_list", "block_name_to_quantize", "to_quant_block_names")
# Keys of tables and lists that are read, or that do not change a weight's bytes.
TABLES = (
    *BLOCKS,
    *("weight_block_size", "config_groups", "sparsity_config", "quantization", "quantized_layers"),
    *("modules_in_block_to_quantize", "dynamic", "extra_config", "global_quant_config", "layer_quant_config"),
    *("kv_cache_scheme", "kv_cache_quant_config", "producer", "meta", "dataset", "export", "algo_config"),
    *("exllama_config", "inside_layer_modules", "outside_layer_modules", "max_memory", "softmax_quant_spec"),
    "module_name_preceding_first_block",  # of optimum's GPTQ, where it calibrates
)

# Methods whose packers need full groups, and numbers that must divide rows and columns (AutoAWQ's and AutoGPTQ's linear
# layers; AutoGPTQ allows a partial last group).
DIVIDING = ("awq", "mlx", "compressed-tensors", "aqlm", "higgs")
WORDS = {"awq": 8, "gptq": 32, "bitnet": 4}

# Names of a leaf's module in checkpoints, by the end of its path in the ledger: those of its parents, and its own.
MODULES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    leaf: (tuple(above), tuple(names))
    for above, leaves in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    for leaf, names in leaves.items()
}
ATTENTION, MLP = (MODULES[leaf][0] for leaf in ("attention.q", "feed_forward.up"))
HEAD, TABLE = ("lm_head",), ("embed_tokens", "embeddings", "wte")
NONE: frozenset[str] = frozenset()
# Limits of the trials of all expressions of a list, on a name of 64 letters and on all names: some seconds.
MOST_TRIALS, MOST_IN_ALL = 8 * 64**3, 1 << 33
PREFIXES = ("model", "model.language_model", "language_model.model", "transformer", "backbone")
# Words in the prefix of `layers` that belong to a tower or to prediction layers; and modules that are no matrix or that
# no quantiser takes.
APART = re.compile(
    r"vis|vit|vpm|apm|audio|speech|sound|image|img|tower|mtp|talker|wav|projector|resampler|aligner|qformer|diffusion|sam_|clip|draft"
)
OUTSIDE = re.compile(rf"[^|]*(?:lm_head|embed_tokens|{APART.pattern})[^|]*")  # expressions of modules outside layers
NO_MATRIX = re.compile(
    r"(?:norm|ln_|conv|rotary|bias|act_fn|A_log)[^.]*$|\.(?:gate|router)\.|\.(?:D|attn|gate|\w*expert_gate|router|sinks)$"
)


@cache
def names(path: str) -> tuple[str, ...]:
    """The names that a leaf's module may have in a checkpoint, after `layers.N.`."""
    ends = [end for end in MODULES if path.endswith("." + end)]
    if not ends:
        return (_tail(path),)
    above, endings = MODULES[max(ends, key=len)]
    return tuple(f"{parent}.{name}".removeprefix(".") for parent in above for name in endings)


def _tail(path: str) -> str:
    return path.rpartition("layers.")[2]


class Modules:
    """A quantiser's list of modules: names, parts of names, globs and `re:` expressions; for a language model, or for a
    `tower`."""

    def __init__(self, patterns: Iterable[str], tower: bool = False) -> None:
        self.words: set[str] = set()
        self.numbered: dict[int | None, set[str]] = {}  # patterns with a layer's number, written #
        self.matched: dict[tuple[tuple[str, ...], str, int], bool] = {}
        self.patterns: list[re.Pattern[str]] = []
        self.single: dict[str, set[str]] = {}  # patterns of single experts, with the experts' indices
        for text in patterns:
            if text.startswith("re:"):
                self.patterns.append(_compile(text[3:]))
            elif "*" in text:
                self.patterns.append(_compile(re.escape(text).replace(r"\*", ".*") + r"(?:\.|$)"))
            elif short := _local_name(text, tower):
                if expert := re.search(r"(?<=experts\.)\d+(?![^.])", short):
                    short = f"{short[: expert.start()]}*{short[expert.end() :]}"
                    self.single.setdefault(short, set()).add(expert[0])
                self.words.add(short)
                if digits := re.search(r"(?<![^.])\d+(?![^.])", short):
                    template = f"{short[: digits.start()]}#{short[digits.end() :]}"
                    self.numbered.setdefault(int(digits[0]), set()).add(template)

        # Whether the list may name modules of layers.
        self.layers = bool(self.numbered) or not all(OUTSIDE.fullmatch(pattern.pattern) for pattern in self.patterns)
        self.trials, self.left = sum(_trials(pattern.pattern) for pattern in self.patterns), MOST_IN_ALL
        if self.trials > MOST_TRIALS:
            raise _too_many_trials()
        self.exact = any(char.isdecimal() for pattern in self.patterns for char in pattern.pattern)

    def have(self, entry: Entry, number: int | None) -> bool:
        """Whether the list names a leaf's module in a layer."""
        if not (self.words or self.patterns):
            return False
        paths: tuple[str, ...]
        if number is None:
            paths = HEAD if entry.kind == "head" else TABLE if entry.leaf.row is not None else (entry.path,)
        else:
            paths = names(entry.name)
            if self.layers and paths == (_tail(entry.name),) and entry.kind in LAYERS:
                raise InputError(WHERE, [f"names modules of layers; what {paths[0]} is called there is not known here"])
        runs = _runs(paths, number is not None) if self.words else NONE
        experts = entry.times // entry.layers if entry.routed else 1
        matches = [
            *(runs & self.words),
            *(run.replace("#", str(number)) for run in runs & self.numbered.get(number, NONE)),
        ]
        for word in matches:
            if (listed := len(self.single.get(word, ()))) not in (0, experts):
                raise _partial(f"names {listed} of {experts} experts: {word}")
        if matches or not self.patterns:
            return bool(matches)
        return self._matches(_full(paths, number is not None), str(number), experts)

    def unknown(self, ledger: Iterable[Entry]) -> list[str]:
        """The listed modules of layers whose names match no leaf."""
        by_layer: dict[int, set[tuple[str, ...]]] = {}
        for entry in ledger:
            for number in entry.numbers if self.numbered else ():
                by_layer.setdefault(number, set()).add(names(entry.name))
        unknown = []
        for number in sorted(by_layer.keys() & self.numbered.keys()):
            runs = {run for path in by_layer[number] for run in _runs(path, True)}
            unknown += [name.replace("#", str(number)) for name in sorted(self.numbered[number] - runs)]
        return [name for name in unknown if name.startswith("layers.") and not NO_MATRIX.search(name)]

    def _matches(self, names: tuple[str, ...], number: str, experts: int) -> bool:
        """Whether an expression matches one of the names. If no expression has a digit, all numbers with as many digits
        give the same answer."""
        digits = number if self.exact else "1" * len(number)
        if (key := (names, digits, experts)) not in self.matched:
            indices = {0, experts // 2, experts - 1} if any("*" in name for name in names) else {0}
            self.left -= self.trials * len(names) * len(indices)
            if self.left < 0:
                raise _too_many_trials()
            answers = set()
            for index in indices:
                written = "\n".join(names).replace("#", digits).replace("*", str(index)).split("\n")
                answers.add(any(any(map(pattern.match, written)) for pattern in self.patterns))
            if len(answers) > 1:
                raise _partial(f"has a pattern for some of {experts} experts, not for all")
            self.matched[key] = answers.pop()
        return self.matched[key]


def listed(value: object, key: str) -> list[str]:
    """The patterns of a key's lists of names; [] if it has no such lists. Names of blocks (`BLOCKS`), which may be
    separated by commas, are prefixes of their modules' names."""
    words = value.split(",") if isinstance(value, str) and key in BLOCKS else value
    values = words if isinstance(words, list) else []
    groups = [value if isinstance(value, list) else [value] for value in values]
    names = [name for group in groups for name in group]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        return []
    if key not in BLOCKS:
        return names
    if key == BLOCKS[0]:  # the common prefix of each list's names
        names = [commonprefix(group) for group in groups]  # noqa: RUF071 - no paths: letter by letter
    starts = (re.sub(r"(?<![^.])(?:h|blocks)(?![^.])", "layers", name.strip()) for name in names)
    return [f"re:{re.escape(start)}" for start in starts]


def _partial(fault: str) -> InputError:
    return InputError(WHERE, [f"{fault}; all of a layer have one format here (--weights FORMAT counts one for all)"])


def _layer_names(paths: tuple[str, ...], layer: bool) -> list[str]:
    """The names from `layers` on; # is a layer's number."""
    return [f"layers.#.{name}" for name in paths] if layer else list(paths)


@cache
def _runs(paths: tuple[str, ...], layer: bool) -> frozenset[str]:
    """All contiguous parts of the names, any of which a list may contain."""
    runs: set[str] = set()
    for steps in (name.split(".") for name in _layer_names(paths, layer)):
        runs.update([".".join(steps[i:j]) for i, j in combinations(range(len(steps) + 1), 2)])
    return frozenset(runs)


@cache
def _full(paths: tuple[str, ...], layer: bool) -> tuple[str, ...]:
    """The full names, with every prefix that expressions may match."""
    names = _layer_names(paths, layer)
    full = [f"{prefix}.{name}" for prefix in PREFIXES for name in names]
    return tuple(full if layer else [*names, *full])


def _local_name(name: str, tower: bool = False) -> str:
    """A name without the prefix before its layer; "" if that is a tower's layer, and no tower is wanted."""
    layer = re.search(r"(?:^|\.)(?:layers?|h|blocks?)\.(?=\d)", name)
    if layer and not tower and APART.search(name[: layer.end()]):
        return ""
    name = "layers." + name[layer.end() :] if layer else name.removeprefix("model.")
    return name.removesuffix(".weight").rstrip(".")


def _trials(pattern: str) -> int:
    """An upper bound of the ways to match an expression with a name of 64 letters: 64 for each part of variable length
    (except a last one, and digits), times the number of alternatives. More than the limit if repeated groups are
    nested, or if the expression ignores blanks."""
    bare = re.sub(r"(\\d|\[0-9\])[+*]|\\.|\[[^\]]*\]", "x", pattern)
    if len(pattern) > 4096 or re.search(r"\)[*+{]|\(\?[a-zA-Z-]*x", bare):
        return MOST_TRIALS + 1
    repeats = re.findall(r"(?<!\()(?:[*+?]|\{[^}]*\})[?+]?", bare.removesuffix("$").removesuffix(".*"))
    choices = prod(1 + part.count("|") for part in re.split(r"[()]", bare))
    return choices << 6 * len(repeats)


def _too_many_trials() -> InputError:
    return InputError(WHERE, ["has expressions of modules with too many repetitions: they may run forever"])


def _compile(text: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():  # [[ is reserved for nested sets
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(text)
    except (re.error, OverflowError, RecursionError):
        raise InputError(WHERE, [Fault("a name of modules", text, "a regular expression")]) from None


def check_packed(method: str, form: Format, ledger: Iterable[Entry]) -> None:
    """Errors: `InputError` for a matrix whose sizes a method's packer rejects."""
    entries, divisor = list(ledger), WORDS.get(method, 1)
    if method in DIVIDING and isinstance(form.block, int):
        for matrix in form.part_filled(entries):
            raise InputError(WHERE, [Fault("group_size", form.block, f"a divisor of every row, also of {matrix}")])
    for entry in entries:
        for weight in entry.leaf.untied.weights():
            if form.stores(weight, entry) and any(size % divisor for size in weight.shape):
                sizes = " × ".join(f"{size:,}" for size in weight.shape)
                raise InputError(WHERE, [f"{method} packs multiples of {divisor}, which {entry.path} ({sizes}) is not"])
