"""What no single key of a description shows: which keys fit together. One small rule a mechanism.

A rule gets checked tables and `fault(path, got, expected, fix)`. Where it reads a faulty key it ends there
(`Table`), so that no fault is told that rests on another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from txcalc.errors import ABSENT
from txcalc.num import divides, exceeds


class Unsound(Exception):
    """A rule asked for a key that is faulty, or that follows from one that is."""


SOUND = suppress(Unsound)  # around one rule


class Table(dict[str, Any]):
    """A checked table, and what was `written` in it. A faulty key has no value; reading it raises `Unsound`."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values or {})
        self.written: Mapping[str, Any] = {}
        self.faulty: set[str] = set(values.faulty) if isinstance(values, Table) else set()

    def __missing__(self, key: str) -> Any:
        raise Unsound(key) if key in self.faulty else KeyError(key)


Tables = Mapping[str, Any]
Told = Callable[..., None]


def check_layer(layer: Tables, stack: Tables, fault: Told) -> None:
    """A layer kind, and how it stands in its stack."""
    for rule in (*LAYER_RULES, *(rule for section, rule in SECTION_RULES if section in layer)):
        with SOUND:
            rule(layer, stack, fault)


def check_stack(stack: Tables, missing: Callable[[str], bool], fault: Told) -> None:
    """A stack whose layers are checked; `missing` says whether nobody wrote a key."""
    with SOUND:
        _learned(stack, missing, fault)
    with SOUND:
        if stack["head"]["form"] == "classifier" and missing("head.classes"):
            fault("head.classes", ABSENT, "the number of classes")
    for rule in STACK_RULES:
        with SOUND:
            rule(stack, fault)


def check_halves(encoder: Tables, decoder: Tables, fault: Told) -> None:
    """One token table serves both halves where the encoder reads tokens, unless each has its own."""
    with SOUND:
        if encoder["audio"] or encoder["vision"] or not encoder["embedding"]["shared"]:
            return
        for section, key in (("", "d_model"), ("", "vocab_size"), ("embedding", "rank")):
            with SOUND:
                one, other = ((half[section] if section else half)[key] for half in (encoder, decoder))
                if _unequal(one, other):
                    path = f"decoder.{section}.{key}" if section else f"decoder.{key}"
                    fault(path, other, f"the encoder's {one}, for they share a table of tokens")


# Layers.


def _key_heads(layer: Tables, stack: Tables, fault: Told) -> None:
    heads, groups = layer["attention"]["n_heads"], layer["attention"]["n_kv_heads"]
    if not divides(groups, heads):
        fault("attention.n_kv_heads", groups, f"a divisor of n_heads = {heads}", f"{heads} is MHA, 1 is MQA")


def _rotated(layer: Tables, stack: Tables, fault: Told) -> None:
    positions, width = layer["positions"], layer["attention"]["d_head"]
    if positions["form"] == "rotary" and exceeds(positions["rotary_dims"], width):
        fault("positions.rotary_dims", positions["rotary_dims"], f"at most d_head = {width}")


def _gated(layer: Tables, stack: Tables, fault: Told) -> None:
    attention = layer["attention"]
    if attention["gate"] != "none":
        return
    if "g" in attention["bias"]:
        fault("attention.bias", attention["bias"], 'a list without "g": there is no gate')
    if attention["gate_activation"] == "softplus":
        fault("attention.gate_activation", "softplus", "'sigmoid', the default, where there is no gate")


def _chunked(layer: Tables, stack: Tables, fault: Told) -> None:
    attention = layer["attention"]
    if attention["chunked"] and (attention["window"] is None or stack["role"] in ("encoder", "vision")):
        fault("attention.chunked", True, "false without a window, and in an encoder")


def _tied(layer: Tables, stack: Tables, fault: Told) -> None:
    attention = layer["attention"]
    if attention["tied_kv"] and "v" in attention["bias"]:
        fault("attention.bias", attention["bias"], 'a list without "v": tied_kv leaves it no projection')


def _values(layer: Tables, stack: Tables, fault: Told) -> None:
    """Values of a width or a scale of their own are projected here, and by a projection of their own."""
    attention = layer["attention"]
    for key in ("d_v", "v_scale"):
        if attention[key] is not None and (attention["tied_kv"] or attention["kv_from"] is not None):
            fault(f"attention.{key}", attention[key], "none where the values are the keys, or another layer's")


def _differential(layer: Tables, stack: Tables, fault: Told) -> None:
    """Heads, and key/value heads, in two halves, in a decoder, and nothing else is done to scores and results."""
    attention, form = layer["attention"], layer["positions"]["form"]
    if not attention["differential"]:
        return
    for key in ("n_heads", "n_kv_heads"):
        if not divides(2, attention[key]):
            fault(f"attention.{key}", attention[key], "an even number: differential attention halves them")
    if form not in ("rotary", "learned", "sinusoidal", "none"):
        fault("positions.form", form, "another form: differential attention adds no bias to its scores")
    plain = {"sinks": False, "softcap": None, "gate": "none", "inner_norm": False, "kv_from": None, "d_v": None}
    _nothing_but(plain, attention, "differential attention", fault)
    if stack["role"] != "decoder":
        fault("attention.differential", True, "false but in a decoder by itself")


def _nothing_but(plain: Tables, attention: Tables, what: str, fault: Told) -> None:
    for key, without in plain.items():
        with SOUND:
            if attention[key] != without:
                fault(f"attention.{key}", attention[key], f"none in {what}")


def _borrowed(layer: Tables, stack: Tables, fault: Told) -> None:
    lender, form = layer["attention"]["kv_from"], layer["positions"]["form"]
    if lender is not None and form == "relative-projection":
        fault("positions.form", form, "another form with attention.kv_from")
    if lender is not None and stack["role"] != "decoder":
        fault("attention.kv_from", lender, "none: only a decoder by itself lends keys and values")


def _disentangled(layer: Tables, stack: Tables, fault: Told) -> None:
    """Queries and keys of as many heads meet the distances, in an encoder, and nothing else is done to the scores."""
    if layer["positions"]["form"] != "disentangled":
        return
    if stack["role"] != "encoder" or not _has("attention", layer):
        fault("positions.form", "disentangled", "another form: it is that of an encoder's attention")
        return
    for rule in (_distant_heads, _table_of_distances, _terms, _clipped):
        with SOUND:
            rule(layer["attention"], layer["positions"], fault)


def _distant_heads(attention: Tables, positions: Tables, fault: Told) -> None:
    plain = {"window": None, "qk_norm": "none", "sinks": False, "softcap": None, "gate": "none", "d_v": None}
    plain |= {"v_scale": None, "differential": False, "v_norm": False, "tied_kv": False, "kv_from": None}
    _nothing_but(plain | {"inner_norm": False}, attention, "disentangled attention", fault)
    if _unequal(attention["n_kv_heads"], attention["n_heads"]):
        fault("attention.n_kv_heads", attention["n_kv_heads"], f"n_heads = {attention['n_heads']} with distances")


def _table_of_distances(attention: Tables, positions: Tables, fault: Told) -> None:
    if positions["rows"] is None or not divides(2, positions["rows"]):
        fault("positions.rows", positions["rows"] or ABSENT, "the rows of the table of distances, an even number")
    elif exceeds(positions["rows"], 2 * positions["distance"]):
        fault("positions.rows", positions["rows"], f"at most twice the distance = {positions['distance']}")


def _terms(attention: Tables, positions: Tables, fault: Told) -> None:
    if not positions["terms"]:
        fault("positions.terms", [], "one of 'c2p' and 'p2c' at least")
    if positions["shared"] and len(positions["terms"]) < 2:
        fault("positions.shared", True, "false with one term: q and k both project the distances")
    if positions["shared"] and positions["bias"]:
        expected = "none where q and k project the distances, with the biases they have"
        fault("positions.bias", positions["bias"], expected)


def _clipped(attention: Tables, positions: Tables, fault: Told) -> None:
    if positions["clipped"] and _unequal(positions["rows"], 2 * positions["distance"]):
        fault("positions.clipped", True, "false where the distances are in buckets")


def _taps(layer: Tables, stack: Tables, fault: Told) -> None:
    if divides(2, layer["convolution"]["taps"]):
        fault("convolution.taps", layer["convolution"]["taps"], "an odd number: as many on either side")


def _spread(layer: Tables, stack: Tables, fault: Told) -> None:
    positions = layer["positions"]
    if positions["spread"] and (_has("latent", layer) or positions["interleaved"] or _odd(positions["rotary_dims"])):
        fault("positions.spread", True, "false with interleaved pairs, latent attention, or an odd rotary_dims")


def _latent_places(layer: Tables, stack: Tables, fault: Told) -> None:
    form = layer["positions"]["form"]
    if form in ("relative-projection", "alibi"):
        fault("positions.form", form, "another form: latent attention adds no bias to its scores")


INDEX = ("index_heads", "index_width", "index_top_k")


def _index(layer: Tables, stack: Tables, fault: Told) -> None:
    """An index has all its sizes, reads the queries' latent, and chooses among what came before."""
    latent = layer["latent"]
    given = [key for key in INDEX if key in latent and latent[key] is not None]
    if not given and latent["index_interleaved"] and all(latent[key] is None for key in INDEX):
        fault("latent.index_interleaved", True, "false without an index")
    if not given:
        return
    for rule in (_index_sizes, _index_places, _index_queries, _index_width, _index_role):
        with SOUND:
            rule(layer, stack, given[0], fault)


def _index_sizes(layer: Tables, stack: Tables, given: str, fault: Told) -> None:
    for key in INDEX:
        with SOUND:
            if layer["latent"][key] is None:
                fault(f"latent.{key}", ABSENT, f"a size beside {given}: an index has {', '.join(INDEX)}")


def _index_places(layer: Tables, stack: Tables, given: str, fault: Told) -> None:
    if layer["positions"]["form"] != "rotary":
        fault("positions.form", layer["positions"]["form"], "'rotary' with an index, whose keys are rotated")


def _index_queries(layer: Tables, stack: Tables, given: str, fault: Told) -> None:
    if layer["latent"]["q_rank"] is None:
        fault("latent.q_rank", ABSENT, "the rank of the queries, which the index reads")


def _index_width(layer: Tables, stack: Tables, given: str, fault: Told) -> None:
    width, rotated = layer["latent"]["index_width"], layer["latent"]["d_rope"]
    if width is not None and exceeds(rotated, width):
        fault("latent.index_width", width, f"at least d_rope = {rotated}, which is rotated")


def _index_role(layer: Tables, stack: Tables, given: str, fault: Told) -> None:
    if stack["role"] in ("encoder", "vision"):
        value = layer["latent"][given]
        fault(f"latent.{given}", value, "none in an encoder: an index chooses among what came before")


def _one_form(layer: Tables, stack: Tables, fault: Told) -> None:
    form, whole = layer["positions"]["form"], stack["positions"]["form"]
    if form != whole and form in ("learned", "sinusoidal", "relative", "disentangled"):
        fault("positions.form", form, f"the whole stack's form ({whole}), rotary, alibi or none")


def _chosen(layer: Tables, stack: Tables, fault: Told) -> None:
    top, number = layer["experts"]["top_k"], layer["experts"]["n_experts"]
    if exceeds(top, number):
        fault("experts.top_k", top, f"at most n_experts = {number}")


def _corrected(layer: Tables, stack: Tables, fault: Told) -> None:
    experts = layer["experts"]
    if experts["correction"] and (experts["scoring"] != "sigmoid" or experts["router"] is False):
        fault("experts.correction", True, "false without a router whose scoring is 'sigmoid'")


def _groups_of_experts(layer: Tables, stack: Tables, fault: Told) -> None:
    experts = layer["experts"]
    parted, number = experts["n_groups"], experts["n_experts"]
    if not divides(parted, number):
        fault("experts.n_groups", parted, f"a divisor of n_experts = {number}")
    elif exceeds(experts["top_groups"], parted):
        fault("experts.top_groups", experts["top_groups"], f"at most n_groups = {parted}")


def _groups_of_states(layer: Tables, stack: Tables, fault: Told) -> None:
    groups, heads = layer["mamba2"]["n_groups"], layer["mamba2"]["n_heads"]
    if not divides(groups, heads):
        fault("mamba2.n_groups", groups, f"a divisor of n_heads = {heads}")


def _delta_heads(layer: Tables, stack: Tables, fault: Told) -> None:
    keys, heads = layer["delta"]["n_key_heads"], layer["delta"]["n_heads"]
    if not divides(keys, heads):
        fault("delta.n_key_heads", keys, f"a divisor of n_heads = {heads}")


def _norm_biases(layer: Tables, stack: Tables, fault: Told) -> None:
    norm = layer["norm"]
    for key in ("bias", "final_bias", "qk_bias"):
        if norm["form"] == "rms" and norm[key] and (key == "bias" or not norm["bias"]):
            fault(f"norm.{key}", True, "false with form = 'rms'", "an RMSNorm has no bias")


def _norms_after(layer: Tables, stack: Tables, fault: Told) -> None:
    norm = layer["norm"]
    if norm["after"] and norm["place"] != "pre":
        fault("norm.after", norm["after"], "none unless place = 'pre'", "the others have norms after every part")


def _joint(layer: Tables, stack: Tables, fault: Told) -> None:
    norm = layer["norm"]
    joint = norm["joint"]
    if joint and (norm["place"] != "sandwich" or norm["parallel"] != "no" or not _follow(joint, layer["parts"])):
        fault("norm.joint", joint, 'several parts as they follow one another, with place = "sandwich"')


def _abreast(layer: Tables, stack: Tables, fault: Told) -> None:
    norm = layer["norm"]
    abreast = norm["abreast"]
    if not abreast:
        return
    alone = norm["place"] == "pre" and norm["parallel"] == "no" and not norm["joint"] and not norm["after"]
    if not (alone and _follow(abreast, layer["parts"]) and _read_alike(abreast[1:], layer)):
        expected = 'parts as they follow one another, attention or feed_forward behind the first, with place = "pre"'
        fault("norm.abreast", abreast, expected)


SECTION_RULES: tuple[tuple[str, Callable[[Tables, Tables, Told], None]], ...] = (
    ("attention", _key_heads),
    ("attention", _rotated),
    ("attention", _gated),
    ("attention", _chunked),
    ("attention", _tied),
    ("attention", _values),
    ("attention", _differential),
    ("attention", _borrowed),
    ("convolution", _taps),
    ("latent", _latent_places),
    ("latent", _index),
    ("experts", _chosen),
    ("experts", _corrected),
    ("experts", _groups_of_experts),
    ("mamba2", _groups_of_states),
    ("delta", _delta_heads),
)
LAYER_RULES = (_disentangled, _spread, _one_form, _norm_biases, _norms_after, _joint, _abreast)


# Stacks.


def _learned(stack: Tables, missing: Callable[[str], bool], fault: Told) -> None:
    known = stack["positions"]["form"] != "learned" or stack["vision"] or stack["audio"]
    if not known and missing("positions.rows"):
        fault("positions.rows", ABSENT, "the rows of the learned table")


def _projected_distances(stack: Tables, fault: Told) -> None:
    form = stack["positions"]["form"]
    if form == "relative-projection" and stack["role"] in ("encoder", "vision"):
        fault("positions.form", form, "another form: it projects the distances that a causal decoder sees")


def _apart(stack: Tables, fault: Told) -> None:
    positions = stack["positions"]
    if positions["apart"] and positions["form"] != "relative":
        fault("positions.apart", True, "false without positions.form = 'relative'")
    if any(layer["positions"]["apart"] != positions["apart"] for layer in stack["layer"].values()):
        fault("positions.apart", not positions["apart"], "the same in every layer")


def _sinusoids(stack: Tables, fault: Told) -> None:
    positions = stack["positions"]
    if positions["form"] == "rotary" and positions["rows"] is not None:
        widths = [table["d_head"] for table in _all("attention", stack)]
        if not widths or any(_unequal(width, widths[0]) for width in widths):
            fault("positions.rows", positions["rows"], "none: its sinusoids are those of equally wide heads")


def _relative(stack: Tables, fault: Told) -> None:
    if stack["positions"]["form"] != "relative":
        return
    heads = [table["n_heads"] for table in _all("attention", stack)]
    if _all("latent", stack) or not heads or any(type(n) is int and n != heads[0] for n in heads):
        fault("positions.form", "relative", "another form: its table is added to the scores of equal query heads")


def _rows(stack: Tables, fault: Told) -> None:
    form, rows = stack["positions"]["form"], stack["positions"]["rows"]
    if rows is None or form == "learned":
        return
    if stack["role"] != "encoder" or form not in ("relative", "rotary", "disentangled"):
        fault("positions.rows", rows, f"none with positions.form = {form!r}, which has no table")


def _classifier(stack: Tables, fault: Told) -> None:
    head = stack["head"]
    for key in ("classes", "every", "transform", "transform_norm"):
        with SOUND:
            if head["form"] != "classifier" and head[key]:
                fault(f"head.{key}", head[key], f"none with head.form = {head['form']!r}")


def _pairs(stack: Tables, fault: Told) -> None:
    if stack["head"]["pairs"] is not None and not stack["head"]["pooler"]:
        fault("head.pairs", stack["head"]["pairs"], "none without head.pooler")


def _head_norm(stack: Tables, fault: Told) -> None:
    head = stack["head"]
    if head["norm"] and (head["form"] not in ("classifier", "none") or head["every"] or head["transform"] is not None):
        fault("head.norm", True, "false but for a classifier of one position, or no head")


def _transform(stack: Tables, fault: Told) -> None:
    if stack["head"]["transform_norm"] and stack["head"]["transform"] is None:
        fault("head.transform_norm", True, "false without head.transform")


def _plain(stack: Tables, fault: Told) -> None:
    head = stack["head"]
    if head["activation"] is not None and (head["form"] != "masked-lm" or head["plain"]):
        fault("head.activation", head["activation"], "none but with a layer before a masked-lm head")
    if head["plain"] and (head["form"] != "masked-lm" or head["rank"] is not None):
        fault("head.plain", True, "false but with head.form = 'masked-lm' as wide as the model")


def _tied_head(stack: Tables, fault: Told) -> None:
    head, embedding = stack["head"], stack["embedding"]
    if not head["tied"] or stack["role"] == "encoder":
        return
    if stack["vocab_size"] is None or head["form"] not in ("lm", "masked-lm"):
        fault("head.tied", True, "false: there is no token table, or no head, to share it")
    elif head["form"] == "lm" and embedding["rank"] is not None and not embedding["early"]:
        fault("head.tied", True, "false with embedding.rank: the table is narrower than the head")
    elif _unequal(head["rank"] or stack["d_model"], embedding["rank"] or stack["d_model"]):
        fault("head.tied", True, "false with head.rank: the table has another width")


def _early(stack: Tables, fault: Told) -> None:
    embedding = stack["embedding"]
    if embedding["early"] and (embedding["rank"] is None or stack["head"]["form"] != "lm"):
        fault("embedding.early", True, "false without embedding.rank and head.form = 'lm'")


def _pooled(stack: Tables, fault: Told) -> None:
    head = stack["head"]
    if head["pool_norm"] and head["pool"] != "mean":
        fault("head.pool_norm", True, "false without head.pool = 'mean'")
    if head["pool"] != "first" and not (stack["vision"] and stack["vision"]["class_token"]):
        fault("head.pool", head["pool"], "'first' where there are no patches after a class token")


def _contacts(stack: Tables, fault: Told) -> None:
    if stack["contacts"] and (stack["role"] != "encoder" or len(_all("attention", stack)) < len(stack["layer"])):
        fault("contacts", True, "false but in an encoder whose layers all have attention")


def _slopes(stack: Tables, fault: Told) -> None:
    head = stack["head"]
    if head["form"] != "masked-lm" or head["activation"] is not None or head["plain"]:
        return
    if any(table["activation"] == "xielu" for table in _all("feed_forward", stack)):
        expected = "another with head.form = 'masked-lm', whose layer has no weights for it"
        fault("feed_forward.activation", "xielu", expected)


def _lenders(stack: Tables, fault: Told) -> None:
    """Who reads another layer's keys and values stands after it, and would have made its own of the same shape."""
    first = {name: min(indices) for name, indices in stack["groups"] if len(indices)}
    for name, layer in stack["layer"].items():
        with SOUND:
            table = layer.get("attention")
            if not table or table["kv_from"] is None:
                continue
            lender = stack["layer"].get(table["kv_from"], {}).get("attention")
            path = f"layer.{name}.attention.kv_from"
            if not lender or lender["kv_from"] is not None:
                fault(path, table["kv_from"], "a layer kind with keys and values of its own")
            elif first.get(table["kv_from"], 0) > first.get(name, 0):
                fault(path, table["kv_from"], "a layer kind that stands before its reader")
            elif any(table[key] != lender[key] for key in ("n_kv_heads", "d_head", "d_v", "window", "chunked")):
                expected = "a layer kind of as many and as wide key/value heads, and the same window"
                fault(path, table["kv_from"], expected)


def _streams(stack: Tables, fault: Told) -> None:
    """Streams and learned residuals stand in decoders whose parts follow one another."""
    if stack["streams"] is None and stack["laurel"] is None:
        return
    norms = [layer["norm"] for layer in stack["layer"].values()]
    placed = all(norm["place"] != "post" and norm["parallel"] == "no" and not norm["abreast"] for norm in norms)
    for key in ("streams", "laurel"):
        if stack[key] is not None and (stack["role"] != "decoder" or not placed):
            fault(key, stack[key], "none but in a decoder, with norms before its parts, which follow one another")


def _number_of_streams(stack: Tables, fault: Told) -> None:
    number, active = stack["streams"], stack["active_stream"]
    if number is None:
        if active:
            fault("active_stream", active, "0: there are no streams")
    elif exceeds(2, number):
        fault("streams", number, "two or more")
    elif exceeds(active, number - 1):
        fault("active_stream", active, f"less than streams = {number}")


def _layer_inputs(stack: Tables, fault: Told) -> None:
    inputs = [layer["layer_input"] if _has("layer_input", layer) else None for layer in stack["layer"].values()]
    if not any(inputs):
        return
    parts = [layer["parts"] for layer in stack["layer"].values() if "layer_input" in layer["parts"]]
    if stack["streams"] is not None and any(own[-1] != "layer_input" for own in parts):
        fault("layer_input", "a part", "the last of a layer's parts where there are streams")
    if stack["vocab_size"] is None:
        fault("vocab_size", ABSENT, "the rows of the token table: layer_input looks tokens up")
    if any(_unlike(table, inputs[0], ("width", "rows")) for table in inputs):
        fault("layer_input.width", [table and table["width"] for table in inputs], "the same in every layer")


def _patches(stack: Tables, fault: Told) -> None:
    vision = stack["vision"]
    if vision and not divides(vision["patch"], vision["image"]):
        fault("vision.patch", vision["patch"], f"a divisor of image = {vision['image']}")


STACK_RULES: tuple[Callable[[Tables, Told], None], ...] = (
    _projected_distances,
    _apart,
    _sinusoids,
    _relative,
    _rows,
    _classifier,
    _pairs,
    _head_norm,
    _plain,
    _transform,
    _tied_head,
    _early,
    _pooled,
    _contacts,
    _slopes,
    _lenders,
    _streams,
    _number_of_streams,
    _layer_inputs,
    _patches,
)


def _has(section: str, layer: Tables) -> bool:
    """Whether a layer has a table; of one whose parts are faulty nobody knows."""
    return bool(layer["parts"]) and section in layer


def _all(section: str, stack: Tables) -> list[Tables]:
    """A table of every layer kind that has it."""
    return [layer[section] for layer in stack["layer"].values() if _has(section, layer)]


def _unlike(one: Tables | None, other: Tables | None, keys: Sequence[str]) -> bool:
    """Whether only one is there, or numbers of theirs differ."""
    return not (one and other) or any(_unequal(one[key], other[key]) for key in keys)


def _odd(number: Any) -> bool:
    return type(number) is int and number % 2 == 1


def _follow(joint: list[str], parts: list[str]) -> bool:
    """Whether two or more parts follow one another in a layer's."""
    first = parts.index(joint[0]) if joint[0] in parts else 0
    return len(joint) > 1 and parts[first : first + len(joint)] == joint


def _read_alike(parts: list[str], layer: Tables) -> bool:
    """Whether parts can read what another one before them reads and keeps."""
    return all(part == "feed_forward" or (part == "attention" and "latent" not in layer) for part in parts)


def _unequal(a: Any, b: Any) -> bool:
    return type(a) is type(b) is int and a != b
