"""The names that modules have in checkpoints, and the patterns by which quantisers' lists name them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from txcalc.errors import Fault, InputError
from txcalc.ledger import Entry

WHERE = "quantization_config"

# The names that a leaf's module has in checkpoints, by the end of its path in the ledger.
ATTENTION, MLP = (
    ("self_attn", "attention", "attn", "self_attention"),
    ("mlp", "feed_forward", "block_sparse_moe", "moe"),
)
MODULES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "attention.q": (ATTENTION, ("q_proj", "qkv_proj", "query_key_value", "c_attn", "self.query", "wq")),
    "attention.k": (ATTENTION, ("k_proj", "qkv_proj", "query_key_value", "c_attn", "self.key", "wk")),
    "attention.v": (ATTENTION, ("v_proj", "qkv_proj", "query_key_value", "c_attn", "self.value", "wv")),
    "attention.o": (ATTENTION, ("o_proj", "out_proj", "c_proj", "wo", "dense", "output.dense")),
    "attention.g": (ATTENTION, ("q_proj", "g_proj", "gate_proj")),
    "attention.q_a": (ATTENTION, ("q_a_proj",)),
    "attention.q_b": (ATTENTION, ("q_b_proj", "q_proj")),
    "attention.kv_a": (ATTENTION, ("kv_a_proj_with_mqa",)),
    "attention.kv_b": (ATTENTION, ("kv_b_proj",)),
    "attention.indexer.q": (("self_attn.indexer",), ("wq_b",)),
    "attention.indexer.k": (("self_attn.indexer",), ("wk",)),
    "attention.indexer.weights": (("self_attn.indexer",), ("weights_proj",)),
    "feed_forward.gate": (MLP, ("gate_proj", "gate_up_proj", "w1")),
    "feed_forward.up": (MLP, ("up_proj", "gate_up_proj", "w3", "fc1", "c_fc", "dense_h_to_4h")),
    "feed_forward.down": (MLP, ("down_proj", "w2", "fc2", "c_proj", "dense_4h_to_h")),
    "experts.router": (MLP, ("gate", "router", "router.gate")),
    "experts.shared_gate": (MLP, ("shared_expert_gate",)),
    "experts.routed.gate": (MLP, ("experts.*.gate_proj", "experts.gate_up_proj", "experts.*.w1")),
    "experts.routed.up": (MLP, ("experts.*.up_proj", "experts.gate_up_proj", "experts.*.w3")),
    "experts.routed.down": (MLP, ("experts.*.down_proj", "experts.down_proj", "experts.*.w2")),
    "experts.shared.gate": (MLP, ("shared_experts.gate_proj", "shared_expert.gate_proj", "shared_mlp.gate_proj")),
    "experts.shared.up": (MLP, ("shared_experts.up_proj", "shared_expert.up_proj", "shared_mlp.up_proj")),
    "experts.shared.down": (MLP, ("shared_experts.down_proj", "shared_expert.down_proj", "shared_mlp.down_proj")),
    "delta.in_proj": (("linear_attn",), ("in_proj_qkv", "in_proj_qkvz")),
    "delta.gate_proj": (("linear_attn",), ("in_proj_z", "in_proj_qkvz")),
    "delta.decay_proj": (("linear_attn",), ("in_proj_a", "in_proj_ba")),
    "delta.beta_proj": (("linear_attn",), ("in_proj_b", "in_proj_ba")),
    "delta.out_proj": (("linear_attn",), ("out_proj",)),
}
HEAD, TABLE = ("lm_head",), ("embed_tokens", "embeddings", "wte")
PREFIXES = ("model", "model.language_model", "language_model.model", "transformer", "backbone")


@cache
def names(path: str) -> tuple[str, ...]:
    """What follows `layers.N.` in the names that a leaf's module may have in a checkpoint."""
    ends = [end for end in MODULES if path.endswith("." + end)]
    if not ends:
        return (path.rpartition("layers.")[2],)
    above, own = MODULES[max(ends, key=len)]
    return tuple(f"{one}.{name}" for one in above for name in own)


class Modules:
    """Patterns of modules, as quantisers' lists have them: names, parts of names, globs, `re:` expressions."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.words: set[str] = set()
        self.numbered: dict[int | None, set[str]] = {}  # what names a layer, with # for its number
        self.matched: dict[tuple[tuple[str, ...], str], bool] = {}
        self.patterns: list[re.Pattern[str]] = []
        for text in patterns:
            if text.startswith("re:"):
                self.patterns.append(_compiled(text[3:]))
            elif "*" in text:
                self.patterns.append(_compiled(re.escape(text.rstrip(".*")).replace(r"\*", ".*") + r"(?:\.|$)"))
            else:
                self.words.add(short := _short(text))
                if digits := re.search(r"(?<![^.])\d+(?![^.])", short):
                    template = f"{short[: digits.start()]}#{short[digits.end() :]}"
                    self.numbered.setdefault(int(digits[0]), set()).add(template)

        self.exact = any(char.isdecimal() for pattern in self.patterns for char in pattern.pattern)

    def have(self, entry: Entry, number: int | None) -> bool:
        """Whether a leaf is among them, in a layer."""
        own: tuple[str, ...]
        if number is None:
            own = HEAD if entry.kind == "head" else TABLE if entry.leaf.row is not None else (entry.path,)
        else:
            own = names(entry.name)
        runs, full = _runs(own, number is not None)
        if not runs.isdisjoint(self.words) or (number in self.numbered and not runs.isdisjoint(self.numbered[number])):
            return True
        return bool(self.patterns) and self._matches(full, str(number))

    def _matches(self, names: tuple[str, ...], number: str) -> bool:
        """Whether a pattern is of names; one that has no digit is of all numbers that are as long."""
        alike = number if self.exact else "1" * len(number)
        if (names, alike) not in self.matched:
            found = (pattern.match(name.replace("#", alike)) for pattern in self.patterns for name in names)
            self.matched[names, alike] = any(found)
        return self.matched[names, alike]


@cache
def _runs(own: tuple[str, ...], layer: bool) -> tuple[frozenset[str], tuple[str, ...]]:
    """All runs of names' segments, which a name in a list may be, and the names in full; # for a layer's number."""
    named = [f"layers.#.{name}" for name in own] if layer else list(own)
    runs: set[str] = set()
    for steps in (name.split(".") for name in named):
        runs.update(".".join(steps[i:j]) for i in range(len(steps)) for j in range(i + 1, len(steps) + 1))
    full = [f"{prefix}.{name}" for prefix in PREFIXES for name in named]
    return frozenset(runs), tuple(full if layer else [*named, *full])


def _short(name: str) -> str:
    """A name from its layer on."""
    at = re.search(r"(?:^|\.)(?:layers|h|blocks)\.(?=\d)", name)
    return ("layers." + name[at.end() :] if at else name.removeprefix("model.")).removesuffix(".weight")


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error:
        raise InputError(WHERE, [Fault("ignore", text, "a regular expression after re:")]) from None
