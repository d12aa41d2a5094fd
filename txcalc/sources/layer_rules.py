"""What no single key of a layer shows: which of them fit together. One small rule a mechanism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txcalc.errors import ABSENT
from txcalc.num import divides, exceeds
from txcalc.parts.mechanisms import ALL, MIXERS, options
from txcalc.sources.tables import SOUND, Tables, Told, has, unequal


def check_layer(layer: Tables, stack: Tables, fault: Told) -> None:
    """A layer kind, and how it stands in its stack."""
    for section in layer.keys() & ALL.keys():
        with SOUND:
            _fits(section, layer[section], fault)
    for rule in (*LAYER_RULES, *(rule for section, rule in SECTION_RULES if section in layer)):
        with SOUND:
            rule(layer, stack, fault)


def _fits(section: str, table: Tables, fault: Told) -> None:
    """A mechanism's own options."""
    for key, expected in options(section).of(table).misfits():
        fault(f"{section}.{key}", table[key], expected)


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
    alone = stack["role"] in ("encoder", "vision") and not stack["projector"]
    if attention["chunked"] and (attention["window"] is None or alone):
        fault("attention.chunked", True, "false without a window, and in an encoder that is no tower")


def _tied(layer: Tables, stack: Tables, fault: Told) -> None:
    attention = layer["attention"]
    if attention["tied_kv"] and "v" in attention["bias"]:
        fault("attention.bias", attention["bias"], 'a list without "v": tied_kv leaves it no projection')


def _direct(layer: Tables, stack: Tables, fault: Told) -> None:
    """Without o the heads' values, side by side, are as wide as the stream."""
    attention = layer["attention"]
    if not attention["direct"]:
        return
    if "o" in attention["bias"]:
        fault("attention.bias", attention["bias"], 'a list without "o": direct leaves it no projection')
    value = attention["d_head"] if attention["d_v"] is None else attention["d_v"]
    if unequal(attention["n_heads"] * value, stack["d_model"]):
        fault("attention.direct", True, "false where n_heads · d_head, or · d_v, is not d_model")


def _values(layer: Tables, stack: Tables, fault: Told) -> None:
    """Values of a width or a scale of their own are projected here, and by a projection of their own."""
    attention = layer["attention"]
    for key in ("d_v", "v_scale"):
        if attention[key] is not None and (attention["tied_kv"] or attention["kv_from"] is not None):
            fault(f"attention.{key}", attention[key], "none where the values are the keys, or another layer's")


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
    if stack["role"] != "encoder" or not has("attention", layer):
        fault("positions.form", "disentangled", "another form: it is that of an encoder's attention")
        return
    for rule in (_distant_heads, _table_of_distances, _terms, _clipped):
        with SOUND:
            rule(layer["attention"], layer["positions"], fault)


def _distant_heads(attention: Tables, positions: Tables, fault: Told) -> None:
    plain = {"window": None, "qk_norm": "none", "sinks": False, "softcap": None, "gate": "none", "d_v": None}
    plain |= {"v_scale": None, "v_norm": False, "tied_kv": False, "kv_from": None}
    _nothing_but(plain | {"inner_norm": False}, attention, "disentangled attention", fault)
    if unequal(attention["n_kv_heads"], attention["n_heads"]):
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
    if positions["clipped"] and unequal(positions["rows"], 2 * positions["distance"]):
        fault("positions.clipped", True, "false where the distances are in buckets")


def _spread(layer: Tables, stack: Tables, fault: Told) -> None:
    positions = layer["positions"]
    if positions["spread"] and (has("latent", layer) or positions["interleaved"] or _odd(positions["rotary_dims"])):
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
    for name in ("index_interleaved", "index_shared"):
        if not given and latent[name] and all(latent[key] is None for key in INDEX):
            fault(f"latent.{name}", True, "false without an index")
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


def _one_input(layer: Tables, stack: Tables, fault: Told) -> None:
    norm, parts = layer["norm"], layer["norm"]["parallel"]
    if isinstance(parts, str):
        return
    alone = norm["place"] == "pre" and not norm["joint"] and not norm["after"]
    if not (alone and _follow(parts, layer["parts"]) and _read_alike(parts[1:], layer)):
        expected = 'parts as they follow one another, attention or feed_forward behind the first, with place = "pre"'
        fault("norm.parallel", parts, expected)


def _in_groups(layer: Tables, stack: Tables, fault: Told) -> None:
    """Each group has as many inputs as any other, and as many outputs."""
    attention, d_model = layer["attention"], stack["d_model"]
    if attention["groups"] is None:
        return
    key, value = attention["d_head"], attention["d_v"] or attention["d_head"]
    pairs = [(attention["n_heads"], key), (attention["n_kv_heads"], key), (attention["n_kv_heads"], value)]
    widths = [*((d_model, heads * width) for heads, width in pairs), (attention["n_heads"] * value, d_model)]
    for groups, sizes in zip(attention["groups"], widths, strict=True):
        if not all(divides(groups, size) for size in sizes):
            fault("attention.groups", attention["groups"], f"divisors of {sizes[0]} and {sizes[1]}")
            return


def _blocks(layer: Tables, stack: Tables, fault: Told) -> None:
    attention = layer["attention"]
    if attention["block"] is not None and (stack["role"] != "encoder" or attention["window"] is not None):
        fault("attention.block", attention["block"], "none but in an encoder without a window")


def _kept_keys(layer: Tables, stack: Tables, fault: Told) -> None:
    """A mask that chooses among the keys stands in a decoder, adds to the scores, and chooses among all of them."""
    attention = layer["attention"]
    if attention["keep"] is None:
        return
    plain = {"window": None, "chunked": False, "kv_from": None, "tied_kv": False}
    _nothing_but(plain | {"softcap": None, "sinks": False}, attention, "attention with a mask of its values'", fault)
    form = layer["positions"]["form"]
    if stack["role"] != "decoder" or form not in ("rotary", "learned", "sinusoidal", "none"):
        fault("attention.keep", attention["keep"], "none but in a decoder by itself, without a bias of its scores")


def _shared_block(layer: Tables, stack: Tables, fault: Told) -> None:
    """It stands before a mixer that reads it beside the stream, in a decoder that has an embedding."""
    parts, norm = layer["parts"], layer["norm"]
    if parts[0] != "shared" or len(parts) < 2 or parts[1] not in MIXERS:
        fault("parts", parts, "'shared' first, before a mixer")
    if norm["place"] != "pre" or norm["parallel"] != "no" or stack["role"] != "decoder":
        fault("shared", "a part", "none but in a decoder with norms before its parts, which follow one another")
    table = layer["shared"]
    if not divides(table["n_kv_heads"], table["n_heads"]):
        fault("shared.n_kv_heads", table["n_kv_heads"], f"a divisor of n_heads = {table['n_heads']}")
    if table["adapted"] and table["rank"] is None:
        fault("shared.adapted", True, "false without a rank")
    form = layer["positions"]["form"]
    if form not in ("rotary", "learned", "sinusoidal", "none"):
        fault("positions.form", form, "'rotary' or 'none' in a block that layers share")


def _scaled_streams(layer: Tables, stack: Tables, fault: Told) -> None:
    norm = layer["norm"]
    plain = norm["place"] == "pre" and norm["parallel"] == "no" and not norm["without"]
    if norm["residual_scale"] and not (plain and stack["laurel"] is None and stack["streams"] is None):
        fault("norm.residual_scale", True, "false but with a norm before every part, which follow one another")


def _fed_in_groups(layer: Tables, stack: Tables, fault: Told) -> None:
    table = layer["feed_forward"]
    if table["groups"] is None:
        return
    if not all(divides(groups, width) for groups in table["groups"] for width in (stack["d_model"], table["d_ff"])):
        fault("feed_forward.groups", table["groups"], f"divisors of {stack['d_model']} and {table['d_ff']}")


SECTION_RULES: tuple[tuple[str, Callable[[Tables, Tables, Told], None]], ...] = (
    ("attention", _key_heads),
    ("attention", _rotated),
    ("attention", _gated),
    ("attention", _chunked),
    ("attention", _tied),
    ("attention", _direct),
    ("attention", _values),
    ("attention", _borrowed),
    ("attention", _in_groups),
    ("attention", _kept_keys),
    ("attention", _blocks),
    ("shared", _shared_block),
    ("feed_forward", _fed_in_groups),
    ("latent", _latent_places),
    ("latent", _index),
    ("experts", _chosen),
    ("experts", _corrected),
    ("experts", _groups_of_experts),
)
LAYER_RULES = (_disentangled, _spread, _one_form, _norm_biases, _scaled_streams, _norms_after, _joint, _one_input)


def _odd(number: Any) -> bool:
    return type(number) is int and number % 2 == 1


def _follow(joint: list[str], parts: list[str]) -> bool:
    """Whether two or more parts follow one another in a layer's."""
    first = parts.index(joint[0]) if joint and joint[0] in parts else 0
    return len(joint) > 1 and parts[first : first + len(joint)] == joint


def _read_alike(parts: list[str], layer: Tables) -> bool:
    """Whether parts can read what another one before them reads and keeps."""
    return all(part == "feed_forward" or (part == "attention" and "attention" in layer) for part in parts)
