"""What readers share: widths, heads, windows, feed-forwards, experts, norms, rotary positions, heads of a model.

Each helper asks a `Config` for keys and returns a table of a description (`sources.spec`). Defaults are those of
transformers' configuration classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from txcalc.errors import ABSENT
from txcalc.sources.explicit import folded
from txcalc.sources.huggingface import library
from txcalc.sources.huggingface.config import REQUIRED, Config, any_of, bare
from txcalc.sources.huggingface.families import PREDICTORS
from txcalc.sources.huggingface.rotation import rotary as rotary
from txcalc.sources.huggingface.rotation import stretched as stretched
from txcalc.sources.spec import PARTS, merge, real

Raw = dict[str, Any]

HEADS = {
    "ForCausalLM": "lm",
    "LMHeadModel": "lm",
    "LMHead": "lm",
    "ForMaskedLM": "masked-lm",
    "ForConditionalGeneration": "lm",
    "ForImageClassification": "classifier",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "question",
    "ForQuestionAnsweringSimple": "question",
    "ForMultipleChoice": "choice",
    "ForPreTraining": "pretraining",
    "ForCTC": "ctc",
    "ForAudioFrameClassification": "frames",
    "ForXVector": "speaker",
    "ForNextSentencePrediction": "pairs",
    "MTModel": "lm",
    "EncoderModel": "encoder",
    "GenerationDecoder": "lm",
    "GenerationEncoder": "encoder",
    "DoubleHeadsModel": "two heads",
    "WithProjection": "projected",
    "Model": "none",
}


def head_of(c: Config, *known: str) -> str:
    """The head that `architectures[0]` names: a value of `HEADS`, "none" for hidden states; the first of `known` when
    the config names no class."""
    c.asked.add("architectures")
    names = c.data.get("architectures")
    if names is None or names == [] or "architectures[0]" in c.faulty:
        return known[0]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        c.fault("architectures", names, "a list of class names")
        return known[0]
    ending = next((ending for ending in HEADS if names[0].endswith(ending)), None)
    bases = [bare(c.model_type + more) for more in ("model", "textmodel", "")]
    written = names[0].removesuffix("Model") + "ForConditionalGeneration"
    if ending == "Model" and bare(names[0]) not in bases and written not in library.classes(c.model_type):
        ending = None  # …RewardModel and the like
    elif ending and HEADS[ending] in TASKS and not _own(c, names[0], ending):
        ending = None  # another family's head
    if ending is None or HEADS[ending] not in known:
        wanted = " or ".join(f"…{ending}" for ending in HEADS if HEADS[ending] in known)
        c.fault("architectures[0]", names[0], f"a class that ends in {wanted}", "other heads are not read")
        return known[0]
    return HEADS[ending]


def _own(c: Config, cls: str, ending: str) -> bool:
    return bare(cls) == bare(c.model_type + ending) or cls in library.classes(c.model_type)


def named(c: Config, *endings: str) -> bool:
    """True where `architectures[0]` ends so."""
    names = c.data.get("architectures")
    return isinstance(names, list) and bool(names) and isinstance(names[0], str) and names[0].endswith(endings)


def writes(c: Config) -> bool:
    """Whether positions see only what is before them: those of the classes that write, where `is_decoder` says so."""
    c.only(False, "is_encoder_decoder", "add_cross_attention", why="a stack by itself is read")
    if not named(c, *WRITING):
        c.only(False, "is_decoder", why="an encoder is read")
        return False
    causal: bool = c.flag("is_decoder", default=False)
    if not causal:
        c.note("is_decoder is not true: every position sees every other, as transformers runs it")
    return causal


WRITING = ("ForCausalLM", "LMHeadModel")


# What a head that is no language model's decides about: each sequence, each token, the ends of an answer, or which of
# several sequences.
TASKS = frozenset({"sequence", "token", "question", "choice", "pretraining", "pairs"})


def labels(c: Config, default: int = 2) -> int:
    """How many classes a classifier has; `default` when the config does not say."""
    c.asked |= {"id2label", "label2id", "num_labels"}
    given, number = c.data.get("id2label"), c.data.get("num_labels")
    if given is None:
        return c.size("num_labels", default=default)  # type: ignore[no-any-return]
    if not isinstance(given, Mapping) or not given:
        c.fault("id2label", given, "an object with a name for each class")
        return 1
    if number is not None and number != len(given):
        c.fault("num_labels", number, f"{len(given)}, the length of id2label")
    return len(given)


def classifier(c: Config, task: str, default: int = 2, **more: Any) -> Raw:
    """A matrix from hidden states to classes: of every position for tokens and the ends of answers, else of one."""
    said = "id2label" in c or "num_labels" in c
    classes = 1 if task == "choice" else 2 if task == "question" and not said else labels(c, default)
    if task == "question" and classes != 2:
        c.fault("num_labels", classes, "2, for an answer has a start and an end")
    return {"form": "classifier", "classes": classes, "every": task in ("token", "question"), **more}


def alone(c: Config) -> None:
    """A stack by itself: no encoder beside it, no pruned heads."""
    c.only(False, "is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder", why="a stack by itself is read")
    c.only({}, "pruned_heads", why="pruned heads are not read")
    c.ignore("is_decoder", "cross_attention_hidden_size")


def stack(
    c: Config, d_model: Sequence[str] = ("hidden_size",), n_layers: Sequence[str] = ("num_hidden_layers",)
) -> Raw:
    """The widths of a decoder, and the context it was made for."""
    alone(c)
    raw = widths(c, "decoder", d_model, n_layers)
    context = c.size("max_position_embeddings", "n_positions", default=None)
    return raw | ({"context": context} if context else {})


def widths(
    c: Config,
    kind: str,
    d_model: Sequence[str] = ("hidden_size",),
    n_layers: Sequence[str] = ("num_hidden_layers",),
    vocab: Sequence[str] = ("vocab_size",),
    padding_names: Sequence[str] = (),
    padding: int | None = None,
) -> Raw:
    """The widths of a stack; `padding_names` and `padding` are those of `padding_within`."""
    raw: Raw = {
        "kind": kind,
        "d_model": c.size(*d_model),
        "n_layers": c.layers(*n_layers),
        "vocab_size": c.size(*vocab),
    }
    padding_within(c, raw, *padding_names, default=padding)
    return raw


def padding_within(c: Config, raw: Raw, *names: str, default: int | None = None) -> None:
    """The row that stands for padding is one of the table's; `names` are other keys that say which, `default` is the
    class's."""
    for name in ("pad_token_id", *names):
        padding = c.data.get(name, None if names else default)
        if type(padding) is int and padding >= raw["vocab_size"]:
            c.fault(name, padding, f"less than vocab_size = {raw['vocab_size']:,}")


def lm_head(c: Config, tied: bool, **more: Any) -> Raw:
    """A language-model head, tied or not as the class has it when the config does not say."""
    classes = () if c.path else library.classes(c.model_type)
    tasks = [HEADS[ending] for ending in _DECIDING if any(cls.endswith(ending) for cls in classes)]
    form = head_of(c, "lm", "none", *tasks)
    if form != "lm":
        c.ignore("tie_word_embeddings")
        return {"form": "none"} if form == "none" else decision(c, form)
    return {"tied": c.flag("tie_word_embeddings", default=tied), **more}


# What a decoder's classes with a classifier end in: the layers are the same in all of them.
_DECIDING = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def summary(c: Config, act: str | None, through: bool = True) -> str | None:
    """The activation of the layer through which one position is read, None where there is no such layer; `act` and
    `through` are the class's defaults."""
    if not named(c, "ForMultipleChoice", "ForSequenceClassification"):
        c.ignore("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")
        return act
    c.only(False, "summary_proj_to_labels", why="a layer as wide as the model is read")
    if c.text("summary_type", default="last") == "attn":
        c.fault("summary_type", "attn", "'first', 'last', 'mean' or 'cls_index'")
    through = c.flag("summary_use_proj", default=through)
    c.ignore("summary_activation")
    if not through:
        return None
    silent = c.data.get("summary_activation", act) in (None, "")
    return "none" if silent else c.activation("summary_activation", default=act or "tanh")


def decision(c: Config, task: str) -> Raw:
    """A decoder's classifier. It is computed at every position, whichever is read; `score` has no bias."""
    if task == "token":
        c.only(True, "token_classification_bias", why="a bias is read")
    return classifier(c, task) | {"every": True, "bias": task != "sequence"}


def heads(
    c: Config,
    raw: Raw,
    kv: Any = None,
    d_head: Any = None,
    names: Sequence[str] = ("num_attention_heads",),
    whole: bool | None = False,
    kv_names: Sequence[str] = ("num_key_value_heads",),
    width_names: Sequence[str] = ("head_dim",),
) -> Raw:
    """Query heads, key/value heads and the width of a head.

    `kv` and `d_head` are the class's defaults; None: as many as query heads, and D/h. `whole`: the class refuses a
    width that the heads do not divide, even where d_head is given; None: it rounds D/h down.
    """
    n_heads = c.size(*names)
    groups = c.size(*kv_names, default=n_heads if kv is None else kv, null=n_heads) if kv_names else n_heads
    width = c.size(*width_names, default=d_head, null=None) if width_names else None
    if whole or (width is None and (whole is False or n_heads > raw["d_model"])):
        c.divides(n_heads, raw["d_model"], c.spelling(*names), "the width")
    if width is None:
        width = max(1, raw["d_model"] // n_heads)
    c.divides(groups, n_heads, c.spelling(*(kv_names or names)), c.spelling(*names))
    return {"n_heads": n_heads, "n_kv_heads": groups, "d_head": width}


def gated(c: Config, name: str = "intermediate_size", act: str = "silu", bias: bool = False) -> Raw:
    """SwiGLU or GeGLU: three matrices."""
    activation = c.activation("hidden_act", "hidden_activation", default=act)
    return {"d_ff": c.size(name), "gated": True, "activation": activation, "bias": bias}


def plain(
    c: Config,
    *names: str,
    act: str = "gelu",
    bias: bool = True,
    act_names: Sequence[str] = ("hidden_act",),
    default: Any = REQUIRED,
) -> Raw:
    """Two matrices with an activation between them."""
    width = c.size(*names or ("intermediate_size",), default=default, null=default)
    return {"d_ff": width, "gated": False, "activation": c.activation(*act_names, default=act), "bias": bias}


def rms(c: Config, *names: str, eps: float = 1e-6, **more: Any) -> Raw:
    return {"form": "rms", "eps": c.real(*names or ("rms_norm_eps",), default=eps), **more}


def layer_norm(c: Config, *names: str, eps: float = 1e-5, bias: bool = True, **more: Any) -> Raw:
    known = ("layer_norm_epsilon", "layer_norm_eps", "norm_eps")
    return {"form": "layer", "eps": c.real(*names or known, default=eps), "bias": bias, **more}


def decoder(
    c: Config,
    raw: Raw,
    attention: Raw,
    *,
    mlp: Raw | None = None,
    mlp_bias: bool = False,
    mixed: Raw | None = None,
    norm: Raw | None = None,
    positions: Raw | None = None,
    embedding: Raw | None = None,
    tied: bool = False,
    head: Raw | None = None,
    **turned: Any,
) -> Raw:
    """The common decoder, but for what is said: SwiGLU (or `mixed` experts), RMSNorm, rotary positions (`turned` says
    how), and a language-model head, tied or not as the class has it."""
    made = raw | {
        "attention": attention,
        **({"experts": mixed} if mixed else {"feed_forward": mlp or gated(c, bias=mlp_bias)}),
        "norm": norm or rms(c),
        "positions": positions or rotary(c, attention["d_head"], **turned),
        **({} if embedding is None else {"embedding": embedding}),
        "head": head or lm_head(c, tied),
    }
    return both_ways(c, made)


def blocks(c: Config) -> Raw:
    """BigBird's blocks, or all positions (`attention_type`)."""
    form = c.text("attention_type", default="block_sparse")
    block, random = c.size("block_size", default=64), c.count("num_random_blocks", default=3)
    if form == "original_full":
        return {}
    if form != "block_sparse":
        c.fault("attention_type", form, "'block_sparse' or 'original_full'")
    c.note(
        f"blocks of {block:,}: past {(5 + 2 * random) * block:,} positions its code multiplies what masked FLOPs "
        "count; the dense figure is that of all pairs"
    )
    return {"block": block, "random_blocks": random}


def layered(raw: Raw, *axes: tuple[Sequence[str], Mapping[str, Raw]]) -> Raw:
    """The description with layer kinds: each axis names the kind of every layer, and what each kind lays over it.

    Axes multiply (`local-sparse`); one whose layers are all alike is laid over the whole description.
    """
    mixed = []
    for kinds, tables in axes:
        if len(set(kinds)) == 1 and "parts" not in tables[kinds[0]]:
            raw = merge(raw, tables[kinds[0]])
        else:
            mixed.append((kinds, tables))
    if not mixed:
        return raw
    names = ["-".join(row) for row in zip(*(kinds for kinds, _ in mixed), strict=True)]
    variants: Raw = {}
    for name, row in zip(names, zip(*(kinds for kinds, _ in mixed), strict=True), strict=True):
        if name not in variants:
            table: Raw = {}
            for kind, (_, tables) in zip(row, mixed, strict=True):
                table = merge(table, tables[kind])
            variants[name] = table
    used = {part for table in variants.values() for part in table.get("parts", ())}
    used |= {"attention"} & {part.removeprefix("cross_") for part in used}
    if used:  # a table that no layer uses says nothing about the model
        raw = {key: value for key, value in raw.items() if key not in PARTS or key in used}
    return raw | {"layer": variants} | ({"pattern": folded(names)} if len(variants) > 1 else {})


LOCAL, GLOBAL = "sliding_attention", "full_attention"
LAYER_NAMES = {LOCAL: "local", GLOBAL: "global"}


def layer_types(
    c: Config, n_layers: int, default: Sequence[str], allowed: Sequence[str] = (LOCAL, GLOBAL)
) -> list[str]:
    """`layer_types`, one a layer."""
    given = c.items("layer_types", of=any_of(*allowed), length=n_layers, default=None)
    return list(default) if given is None else given


def periodic(n_layers: int, period: int) -> list[str]:
    """Every `period`-th layer is global."""
    return [LOCAL if (i + 1) % period else GLOBAL for i in range(n_layers)]


def windows(c: Config, raw: Raw, window: Any, types: Sequence[str], tables: Mapping[str, Raw] | None = None) -> Any:
    """The axis of local and global layers; `tables` lays more over each kind."""
    if LOCAL in types and window is None:
        c.fault("sliding_window", c.data.get("sliding_window", ABSENT), "a window, for layers use one")
    local: Raw = {"attention": {"window": window}} if window is not None else {}
    more = tables or {}
    kinds = [LAYER_NAMES[kind] for kind in types]
    return kinds, {"local": merge(local, more.get("local", {})), "global": dict(more.get("global", {}))}


def with_own_bases(c: Config, raw: Raw) -> Raw:
    """Windows in all but every fourth layer, and a rotary base for each layer; where it is 0, no positions."""
    n, window = raw["n_layers"], c.size("sliding_window", default=128, null=None)
    types = layer_types(c, n, [LOCAL if i % 4 else GLOBAL for i in range(n)])
    bases = c.items("layer_rope_theta", of=real, length=n, default=None) or [1.0] * n
    return layered(raw, windows(c, raw, window, types), turned(bases))


def one_window(c: Config, raw: Raw, window: Any) -> Any:
    """The axis of the same window, or none, in every layer."""
    return windows(c, raw, window, [GLOBAL if window is None else LOCAL] * raw["n_layers"])


def turned(flags: Iterable[Any]) -> tuple[list[str], dict[str, Raw]]:
    """The axis of layers that rotate their heads, and of those that know no positions."""
    return ["rotary" if on else "unrotated" for on in flags], {
        "rotary": {},
        "unrotated": {"positions": {"form": "none"}},
    }


def square(c: Config, raw: Raw, attention: Raw, why: str) -> None:
    """A fault where all heads together are not as wide as the model."""
    if attention["n_heads"] * attention["d_head"] != raw["d_model"]:
        c.fault("head_dim", attention["d_head"], "hidden_size / num_attention_heads", why)


def mixture(c: Config, raw: Raw, sparse: Sequence[bool]) -> tuple[list[str], dict[str, Raw]]:
    """The axis of dense and sparse layers; an all-sparse model drops its dense width."""
    kinds = ["sparse" if is_sparse else "dense" for is_sparse in sparse]
    return kinds, {"dense": {"parts": ["attention", "feed_forward"]}, "sparse": {"parts": ["attention", "experts"]}}


def experts(c: Config, n: Sequence[str], k: Sequence[str], d_ff: Sequence[str], n_default: Any = REQUIRED,
            k_default: Any = REQUIRED, act: str = "silu", **more: Any) -> Raw:  # fmt: skip
    """Routed experts: how many, how many a token passes, and their width."""
    number = c.size(*n, default=n_default)
    top = c.size(*k, default=k_default)
    if top > number:
        c.fault(c.spelling(*k), top, f"at most {c.spelling(*n)} = {number}")
    activation = c.activation("hidden_act", default=act)
    return {"n_experts": number, "top_k": top, "d_ff": c.size(*d_ff), "activation": activation, **more}


def more_heads(c: Config) -> None:
    """Multi-token-prediction layers: named, not counted among the model's parameters."""
    number = c.count(*PREDICTORS, default=None)
    if number:
        c.note(f"{number:,} multi-token-prediction layer{'s are' if number > 1 else ' is'} not counted")


# Types of which transformers makes an encoder where `is_causal` says so.
BOTH_WAYS = ("llama", "qwen2", "qwen3")


def both_ways(c: Config, raw: Raw) -> Raw:
    """A decoder, or its layers where every position sees every other, as embedding models are made of one."""
    if c.model_type not in BOTH_WAYS or c.flag("is_causal", default=None, null=None) in (None, True):
        return raw
    c.only(False, "use_sliding_window", why="windows that look both ways are not read")
    c.only(None, "layer_types", "attention_chunk_size", why="windows that look both ways are not read")
    c.note("is_causal is false: every position sees every other")
    head = raw["head"]
    if "form" not in head:
        head = {"form": "masked-lm", "plain": True, "tied": head["tied"], "bias": False}
    return raw | {"kind": "encoder", "head": head}


def chunks(c: Config) -> Raw:
    """Chunks in every layer, where a config of Llama says so."""
    chunk = c.size("attention_chunk_size", default=None)
    if chunk is None:
        return {}
    c.note("attention_chunk_size is read as NeuronX runs it: every layer attends within chunks; transformers does not")
    return {"window": chunk, "chunked": True}


def piece(name: str, form: str, *sizes: int, **more: Any) -> Raw:
    """A leaf of `around` or of a layer's pieces (`parts.forms`)."""
    return {"name": name, "form": form, "sizes": list(sizes), **more}
