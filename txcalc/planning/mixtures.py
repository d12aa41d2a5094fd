"""The mixtures of llama.cpp (Q4_K_M, Q6_K, IQ3_XS …): which type its quantiser gives to each matrix of each layer.

A mixture has a type for all, and rules for what matters more: the values of attention, the way down, the head. A row
that a type's blocks do not divide falls back to another type. Files with an importance matrix (imatrix) are what the
IQ1, IQ2, IQ3_XXS and Q2_K_S mixtures need; the others are as made without one.

Source   llama.cpp src/llama-quant.cpp (007dbbf, 2026): llama_tensor_get_type_impl, tensor_type_fallback
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from txcalc.errors import InputError
from txcalc.ledger import Entry
from txcalc.model import Model
from txcalc.parts.mechanisms import section_of
from txcalc.planning.weights import FORMATS, GGML, Format, Mixed, Numbers, layers_of, plain


class Layer(NamedTuple):
    """Where a matrix stands: its number among `of`, and what of the model the rules ask."""

    number: int
    of: int
    groups: int  # query heads a key/value head
    experts: int

    @property
    def more(self) -> bool:
        """An eighth of the layers at each end, and every third between."""
        eighth = self.of // 8
        return self.number < eighth or self.number >= 7 * self.of // 8 or (self.number - eighth) % 3 == 2


WHEN: Mapping[str, Callable[[Layer], bool]] = {
    "": lambda at: True,
    "more": lambda at: at.more,
    "first 2": lambda at: at.number < 2,
    "first 4": lambda at: at.number < 4,
    "first 1/16": lambda at: at.number < at.of // 16,
    "first 1/8": lambda at: at.number < at.of // 8,
    "between": lambda at: at.of // 8 <= at.number < 7 * at.of // 8,
    "grouped": lambda at: at.groups >= 4,
    "grouped or sparse": lambda at: at.groups >= 4 or at.experts >= 4,
    "8 experts": lambda at: at.experts == 8,
    "8 experts, more": lambda at: at.experts == 8 and at.more,
}
EVERYWHERE = frozenset({"", "grouped", "grouped or sparse", "8 experts"})  # what does not ask for a layer's number
Rules = tuple[tuple[str, str], ...]  # when, and the type then; the first that holds


class Mixture(NamedTuple):
    """A type for all matrices, and the rules for some; `head` is that of the head, and of a tied table; `fused` that of
    queries, keys and values in one tensor."""

    default: str
    v: Rules = ()
    k: Rules = ()
    q: Rules = ()
    o: Rules = ()
    gate: Rules = ()
    down: Rules = ()
    table: str = ""
    head: str = "q6_k"
    fused: str = ""
    low: bool = False  # the group whose rules are for 1 and 2 bits, and count matrices, not layers


_SPARSE_K, _SPARSE_O = (("8 experts", "q8_0"),), (("8 experts", "q5_k"),)


def _some(default: str, **rules: Rules | str) -> Mixture:
    """A mixture whose values and keys are wider where there are eight experts."""
    v = (("8 experts", "q8_0"), *rules.pop("v", ()))
    k = (*_SPARSE_K, *rules.pop("k", ()))
    return Mixture(default, v=v, k=k, **rules)  # type: ignore[arg-type]


def _low(default: str, less: str, o: str = "", table: str = "q2_k") -> Mixture:
    """A mixture of one or two bits: `less` is what the values and the first layers' way down get."""
    v = (("grouped or sparse", "q4_k"), ("", less))
    end = (("", o),) if o else ()
    return Mixture(
        default,
        v,
        (("8 experts", "q4_k"),),
        (),
        (*_SPARSE_O, *end),
        (),
        (("first 1/8", less),),
        table,
        "q5_k",
        low=True,
    )


MIXTURES: Mapping[str, Mixture] = {
    "q4_0": _some("q4_0"),
    "q4_1": _some("q4_1"),
    "q5_0": _some("q5_0"),
    "q5_1": _some("q5_1"),
    "q8_0": _some("q8_0", head="q8_0"),
    "q2_k": _some("q2_k", v=(("grouped", "q4_k"), ("", "q3_k")), o=(*_SPARSE_O, ("", "q3_k")), down=(("", "q3_k"),)),
    "q2_k_s": _some("q2_k", v=(("grouped", "q4_k"),), down=(("first 1/8", "q4_k"),)),
    "q3_k_s": _some("q3_k", o=_SPARSE_O),
    "q3_k_m": _some(
        "q3_k",
        v=(("first 2", "q5_k"), ("", "q4_k")),
        o=(*_SPARSE_O, ("", "q4_k")),
        down=(("first 1/16", "q5_k"), ("", "q4_k")),
        fused="q4_k",
    ),
    "q3_k_l": _some(
        "q3_k", v=(("", "q5_k"),), o=(("8 experts", "q3_k"), ("", "q5_k")), down=(("", "q5_k"),), fused="q4_k"
    ),
    "q4_k_s": _some("q4_k", v=(("first 4", "q5_k"),), o=_SPARSE_O, down=(("first 1/8", "q5_k"),)),
    "q4_k_m": _some("q4_k", v=(("more", "q6_k"),), o=_SPARSE_O, down=(("more", "q6_k"),), fused="q5_k"),
    "q5_k_s": _some("q5_k"),
    "q5_k_m": _some("q5_k", v=(("more", "q6_k"),), down=(("more", "q6_k"),), fused="q6_k"),
    "q6_k": _some("q6_k"),
    "iq1_s": _low("iq1_s", "q2_k", "iq2_xxs"),
    "iq1_m": _low("iq1_m", "q2_k", "iq2_xxs"),
    "iq2_xxs": _low("iq2_xxs", "q2_k"),
    "iq2_xs": _low("iq2_xs", "q2_k"),
    "iq2_s": _low("iq2_xs", "iq3_s", "iq3_s", "iq3_s"),
    "iq2_m": _low("iq2_s", "iq3_s", "iq3_s", "iq3_s"),
    "iq3_xxs": _some(
        "iq3_xxs",
        v=(("grouped", "q4_k"),),
        k=(("", "iq2_s"),),
        q=(("", "iq2_s"),),
        o=(*_SPARSE_O, ("", "iq3_s")),
        table="iq3_s",
        head="q5_k",
    ),
    "iq3_xs": _some(
        "iq3_s",
        v=(("grouped", "q4_k"),),
        k=(("", "iq3_xxs"),),
        q=(("", "iq3_xxs"),),
        o=_SPARSE_O,
        gate=(("between", "iq3_xxs"),),
    ),
    "iq3_s": _some("iq3_s", v=(("grouped", "q4_k"),), o=_SPARSE_O),
    "iq3_m": _some(
        "iq3_s",
        v=(("", "q4_k"),),
        o=(*_SPARSE_O, ("", "q4_k")),
        down=(("first 1/8", "q4_k"), ("8 experts, more", "q4_k")),
        fused="q4_k",
    ),
    "iq4_nl": _some("iq4_nl", v=(("grouped", "q5_k"),), o=_SPARSE_O, down=(("first 1/8", "q5_k"),)),
    "iq4_xs": _some("iq4_xs", v=(("grouped", "q5_k"),), o=_SPARSE_O, down=(("first 1/8", "q5_k"),)),
}
# What an architecture has of its own, in every mixture ("") and in some: Falcon, on which old quantisers tried others.
OWN: Mapping[str, Mapping[str, Mapping[str, Rules | str]]] = {
    "falcon": {
        "": {"head": "q8_0"},
        "q2_k": {"o": ()},
        "q3_k_m": {"o": (), "down": (("first 1/16", "q5_k"), ("more", "q4_k"))},
        "q3_k_l": {"o": (("", "q4_k"),), "down": (("", "q4_k"),)},
        "q4_k_s": {"down": ()},
        "q4_k_m": {"down": (("first 1/16", "q6_k"), ("more", "q5_k"))},
        "iq3_xxs": {"o": ()},
        "iq3_m": {"o": ()},
    }
}
# What a type becomes where its blocks of 256 do not divide a row.
FALLBACK = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
    **dict.fromkeys(("q2_k", "q3_k"), "q4_0"),
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}
# Whose layers hold queries, keys and values in one tensor. It had rules of its own when files of these were made; since
# 2026-03 it gets those of the values, as that of new models does (0.1 % of a Q4_K_M of Phi-4, 6 % of a Q2_K).
FUSED = frozenset(
    {"bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "mpt", "phi", "phi3", "stablelm_epoch", "dbrx"}
)
ALIASES = {"q3_k": "q3_k_m"}  # as llama-quantize has them; q4_k and q5_k stay one type alone here


def mixture(model: Model, name: str) -> Format | None:
    """The formats that a mixture gives to a model's matrices; None where there is no mixture of the name."""
    wanted = plain(name)
    if wanted == "mxfp4_moe":
        # Of three dimensions: experts, and the halves of a latent's expansion.
        return _mixed(model, wanted, lambda entry, _: ["mxfp4" if _stacked(entry) else "q8_0"])
    if wanted not in MIXTURES:
        return None
    rules, (stack, layer) = MIXTURES[wanted], _shape(model)
    special = OWN.get(model.spec["model_type"], {})
    rules = rules._replace(**special.get("", {}), **special.get(wanted, {}))  # type: ignore[arg-type]
    ledger = [entry for entry in model.entries if entry.leaf.params]
    roles = {entry.name: _role(model, entry) for entry in ledger}

    def places(role: str) -> list[tuple[int, str]]:
        """Where the matrices of a role stand."""
        return [(i or 0, entry.name) for entry in ledger if roles[entry.name] == role for i in layers_of(entry)]

    apart = not EVERYWHERE.issuperset(when for when, _ in rules.v)
    values = {number: i for i, number in enumerate(sorted({n for n, _ in places("v")}))} if apart else {}
    ways = {key: i for i, key in enumerate(sorted(places("down")))} if rules.low else {}
    tied = bool(stack["head"]["tied"])
    seventy = layer.of == 80 and layer.groups > 1 and not rules.low  # llama.cpp's own name for the shape is 70B

    def choose(entry: Entry, numbers: Numbers) -> list[str]:
        if entry.kind == "head" or (tied and entry.leaf.row is not None):
            return [rules.head]
        if entry.leaf.row is not None:
            return [rules.table or rules.default]
        role = roles[entry.name]
        if role == "qkv":
            return [rules.fused or rules.default]
        own: Rules = getattr(rules, {"up": "gate"}.get(role, role), ()) if role else ()
        at, name = layer._replace(of=len(values)) if role == "v" else layer, entry.name
        spots = [number or 0 for number in ([0] if all(when in EVERYWHERE for when, _ in own) else numbers)]
        if role == "v":
            spots = [values.get(spot, 0) for spot in spots]
        elif role == "down" and rules.low:
            spots = [ways.get((spot, name), 0) for spot in spots]
        chosen = [
            next((kind for when, kind in own if WHEN[when](here)), rules.default)
            for here in (at._replace(number=spot) for spot in spots)
        ]
        wider = role == "v" and seventy
        return ["q5_k" if wider and kind in ("q3_k", "q4_k") else kind for kind in chosen]

    return _mixed(model, wanted, choose)


def _shape(model: Model) -> tuple[Mapping[str, Any], Layer]:
    """The stack that generates, and what the rules ask of it."""
    stack = next(reversed(model.spec["stacks"].values()))
    tables = list(stack["layer"].values())
    own = (table.get(section_of("attention", table)) for table in tables)
    attention = next((table for table in own if table and "n_kv_heads" in table and "n_heads" in table), None)
    experts = max((table["experts"]["n_experts"] for table in tables if "experts" in table), default=0)
    groups = attention["n_heads"] // attention["n_kv_heads"] if attention else 1
    return stack, Layer(0, stack["n_layers"], groups, experts)


def _role(model: Model, entry: Entry) -> str:
    """What the rules call a matrix: q, k, v, o, qkv, gate, up, down; "" for all others."""
    tensors = _tensors(entry.name) if entry.layer and entry.kind != "other" else []
    role = next((ROLES.get(tensor.removesuffix("_exps").removesuffix("_shexp"), "") for tensor in tensors), "")
    return "qkv" if role in ("q", "k", "v") and model.spec["model_type"] in FUSED else role


def _stacked(entry: Entry) -> bool:
    return entry.kind == "experts" or "attn_kv_b" in _tensors(entry.name)


@cache
def _fitting(kind: str, columns: int, head: bool) -> Format:
    """A type, or what it becomes where its blocks do not divide a row."""
    if head and columns % GGML[kind].long:
        kind = "q8_0"
    for narrow in (kind, FALLBACK.get(kind, "fp16")):
        found = GGML.get(narrow, FORMATS["fp16"])
        if not found.long or columns % found.long == 0:
            return found
    return FORMATS["fp16"]


def _mixed(model: Model, name: str, choose: Callable[[Entry, Numbers], list[str]]) -> Format:
    """`choose` gives a type to every layer of an entry, or one to all."""
    tied = bool(_shape(model)[0]["head"]["tied"])

    def form(entry: Entry, numbers: Numbers) -> Sequence[Format | None]:
        if entry.kind == "router":
            return [None] * len(numbers)
        head = entry.kind == "head" or (tied and entry.leaf.row is not None)
        columns = entry.leaf.untied.weights()[0].shape[1]
        found = [_fitting(kind, columns, head) for kind in choose(entry, numbers)]
        return found if len(found) == len(numbers) else found * len(numbers)

    ledger = [entry for entry in model.entries if entry.leaf.untied.params]
    return Mixed.of(name.upper() if name in MIXTURES else name, f"llama.cpp's mixture {name.upper()}", ledger, form, 32)


# What the rules call a tensor.
ROLES = {
    "attn_q": "q",
    "indexer.attn_q_b": "q",
    "indexer.attn_k": "k",
    "attn_k": "k",
    "attn_v": "v",
    "attn_qkv": "v",
    "attn_output": "o",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
# The ends of paths that a tensor of a .gguf file holds, by its name in a layer.
TENSORS: Mapping[str, tuple[str, ...]] = {
    "attn_q": ("attention.q",),
    "attn_k": ("attention.k",),
    "attn_v": ("attention.v",),
    "attn_qkv": ("attention.q", "attention.k", "attention.v", "delta.in_proj"),
    "attn_output": ("attention.o",),
    "attn_q_a": ("attention.q_a",),
    "attn_q_b": ("attention.q_b",),
    "attn_kv_a_mqa": ("attention.kv_a",),
    "attn_kv_b": ("attention.kv_b",),
    "attn_v_b": ("attention.kv_b",),
    "indexer.attn_q_b": ("attention.indexer.q",),
    "indexer.attn_k": ("attention.indexer.k",),
    "ffn_gate": ("feed_forward.gate",),
    "ffn_up": ("feed_forward.up", "feed_forward.gate", "pieces.up"),
    "ffn_down": ("feed_forward.down", "pieces.down"),
    "ffn_gate_exps": ("experts.routed.gate",),
    "ffn_up_exps": ("experts.routed.up",),
    "ffn_down_exps": ("experts.routed.down",),
    "ffn_gate_up_exps": ("experts.routed.gate", "experts.routed.up"),
    "ffn_gate_shexp": ("experts.shared.gate",),
    "ffn_up_shexp": ("experts.shared.up",),
    "ffn_down_shexp": ("experts.shared.down",),
    "ssm_in": ("mamba.in_proj", "mamba2.in_proj"),
    "ssm_x": ("mamba.x_proj",),
    "ssm_dt": ("mamba.dt_proj",),
    "ssm_out": ("mamba.out_proj", "mamba2.out_proj", "delta.out_proj"),
}


@cache
def _tensors(name: str) -> list[str]:
    """The tensors that may hold a leaf of this name."""
    return [tensor for tensor, ends in TENSORS.items() if any(name.endswith("." + end) for end in ends)]


def stored(model: Model) -> Format:
    """The types that a .gguf file has, tensor by tensor."""
    assert model.checkpoint is not None
    held = {tensor.name: tensor.dtype.lower() for tensor in model.checkpoint.held.tensors}

    def form(entry: Entry, number: int | None) -> Format | None:
        if entry.leaf.row is not None:
            names = ["token_embd.weight"]
        elif entry.kind == "head":
            names = ["output.weight", "token_embd.weight"]
        else:
            names = [f"blk.{number}.{name}.weight" for name in _tensors(entry.name)]
        kind = next((held[name] for name in names if name in held), None)
        if kind is None or kind == "f32":
            return None
        plain_ = {"f16": "fp16", "bf16": "bf16"}.get(kind)
        if plain_:
            return FORMATS[plain_]
        if kind not in GGML:
            raise InputError(model.name, [f"holds tensors of type {kind.upper()}, whose size is not known here"])
        return GGML[kind]

    ledger = [entry for entry in model.entries if entry.leaf.untied.params]
    kinds = sorted({kind for kind in held.values() if kind != "f32"})
    source = "the types of its .gguf file"
    return Mixed.of(
        "+".join(kinds), source, ledger, lambda entry, numbers: [form(entry, number) for number in numbers], 32
    )
