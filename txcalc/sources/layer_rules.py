"""What no single key of a layer shows: which of them fit together. One small rule a mechanism."""

from __future__ import annotations

from collections.abc import Callable

from txcalc.errors import ABSENT
from txcalc.num import divides, exceeds
from txcalc.parts.mechanisms import ALL, MIXERS, options
from txcalc.sources.tables import SOUND, CheckedTable, Tables, Told, apply, has, unequal


def check_layer(layer: Tables, stack: Tables, fault: Told) -> None:
    """A layer kind, and how it stands in its stack."""
    for section in layer.keys() & ALL.keys():
        check_table(section, layer[section], fault)
    apply((*LAYER_RULES, *[rule for section, rule in SECTION_RULES if section in layer]), layer, stack, fault)


def check_table(section: str, table: CheckedTable, fault: Told) -> None:
    """What the options of one table say of each other, as far as a faulty key lets them."""
    with SOUND:
        try:
            for key, expected, fix in options(section).of(table).conflicts():
                fault(f"{section}.{key}", ABSENT if table[key] is None else table[key], expected, fix)
        except AttributeError:  # of a faulty key
            if not table.faulty:
                raise


def _rotated(layer: Tables, stack: Tables, fault: Told) -> None:
    positions, width = layer["positions"], layer["attention"]["d_head"]
    if positions["form"] == "rotary" and exceeds(positions["rotary_dims"], width):
        fault("positions.rotary_dims", positions["rotary_dims"], f"at most d_head = {width}")


def _chunked(layer: Tables, stack: Tables, fault: Told) -> None:
    alone = stack["role"] in ("encoder", "vision") and not stack["projector"]
    if layer["attention"].get("chunked") and alone:
        fault("attention.chunked", True, "false in an encoder that is no tower")
    if (side := layer["attention"].get("side")) is not None and not (stack["projector"] and stack["vision"]):
        fault("attention.side", side, "none but in a tower of pictures")


def _direct(layer: Tables, stack: Tables, fault: Told) -> None:
    """Without o the heads' values, side by side, are as wide as the stream."""
    attention = layer["attention"]
    if not attention["direct"]:
        return
    value = attention["d_head"] if attention["d_v"] is None else attention["d_v"]
    if unequal(attention["n_heads"] * value, stack["d_model"]):
        fault("attention.direct", True, "false where n_heads · d_head, or · d_v, is not d_model")


def _borrowed(layer: Tables, stack: Tables, fault: Told) -> None:
    lender, form = layer["attention"]["kv_from"], layer["positions"]["form"]
    if lender is not None and form == "relative-projection":
        fault("positions.form", form, "another form with attention.kv_from")
    if lender is not None and stack["role"] != "decoder":
        fault("attention.kv_from", lender, "none: only a decoder by itself lends keys and values")


def _disentangled(layer: Tables, stack: Tables, fault: Told) -> None:
    """Queries and keys meet the distances in an encoder."""
    apart = layer["positions"]["form"] == "disentangled"
    if apart and (stack["role"] != "encoder" or not has("attention", layer)):
        fault("positions.form", "disentangled", "another form: it is that of an encoder's attention")


def _spread(layer: Tables, stack: Tables, fault: Told) -> None:
    positions = layer["positions"]
    if positions["form"] != "rotary":
        return
    if positions["spread"] and (has("latent", layer) or positions["interleaved"] or _odd(positions["rotary_dims"])):
        fault("positions.spread", True, "false with interleaved pairs, latent attention, or an odd rotary_dims")


def _unbiased(layer: Tables, stack: Tables, fault: Told) -> None:
    """Attention that is counted without a bias of its scores, and one beside convolutions, which turns no heads."""
    form = layer["positions"]["form"]
    for section, what in UNBIASED.items():
        if section in layer and form in ("relative-projection", "alibi"):
            fault("positions.form", form, f"another form: {what} adds no bias to its scores")


UNBIASED = {
    "latent": "latent attention",
    "differential_attention": "differential attention",
    "expert_attention": "attention of experts",
}


def _index(layer: Tables, stack: Tables, fault: Told) -> None:
    """An index rotates its keys, and chooses among what came before."""
    latent = layer["latent"]
    if latent["d_rope"] is None and layer["positions"]["form"] == "rotary":
        fault("latent.d_rope", ABSENT, "the rotated part of a head, or positions.form = 'none'")
    given = [key for key in ("index_heads", "index_width", "index_top_k") if key in latent and latent[key] is not None]
    if given and latent["d_rope"] is not None:
        _turned(layer, "an index, whose keys are rotated", fault)
    if given and stack["role"] in ("encoder", "vision"):
        expected = "none in an encoder: an index chooses among what came before"
        fault(f"latent.{given[0]}", latent[given[0]], expected)
    if latent["window"] is not None and stack["role"] in ("encoder", "vision"):
        fault("latent.window", latent["window"], "none in an encoder")


def _compressed(layer: Tables, stack: Tables, fault: Told) -> None:
    _turned(layer, "compressed attention, whose keys are rotated", fault)


def _turned(layer: Tables, what: str, fault: Told) -> None:
    form = layer["positions"]["form"]
    if form != "rotary":
        fault("positions.form", form, f"'rotary' with {what}")


def _one_form(layer: Tables, stack: Tables, fault: Told) -> None:
    form, whole = layer["positions"]["form"], stack["positions"]["form"]
    if form != whole and form in ("learned", "sinusoidal", "relative", "disentangled"):
        fault("positions.form", form, f"the whole stack's form ({whole}), rotary, alibi or none")


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
    block = layer["attention"].get("block")
    if block and stack["role"] != "encoder":
        fault("attention.block", block, "none but in an encoder")


def _kept_keys(layer: Tables, stack: Tables, fault: Told) -> None:
    """A mask that chooses among the keys stands in a decoder, and adds to the scores."""
    keep, form = layer["attention"].get("keep"), layer["positions"]["form"]
    if keep and (stack["role"] != "decoder" or form not in ("rotary", "learned", "sinusoidal", "none")):
        fault("attention.keep", keep, "none but in a decoder by itself, without a bias of its scores")


def _shared_block(layer: Tables, stack: Tables, fault: Told) -> None:
    """It stands before a mixer that reads it beside the stream, in a decoder that has an embedding."""
    parts, norm = layer["parts"], layer["norm"]
    if parts[0] != "shared" or len(parts) < 2 or parts[1] not in MIXERS:
        fault("parts", parts, "'shared' first, before a mixer")
    if norm["place"] != "pre" or norm["parallel"] != "no" or stack["role"] != "decoder":
        fault("shared", "a part", "none but in a decoder with norms before its parts, which follow one another")
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
    ("attention", _rotated),
    ("attention", _chunked),
    ("attention", _direct),
    ("attention", _borrowed),
    ("attention", _in_groups),
    ("attention", _kept_keys),
    ("attention", _blocks),
    ("shared", _shared_block),
    ("feed_forward", _fed_in_groups),
    ("latent", _index),
    ("compressed", _compressed),
)
LAYER_RULES = (_unbiased, _disentangled, _spread, _one_form, _scaled_streams, _joint, _one_input)


def _odd(number: object) -> bool:
    return type(number) is int and number % 2 == 1


def _follow(joint: list[str], parts: list[str]) -> bool:
    """Whether two or more parts follow one another in a layer's."""
    first = parts.index(joint[0]) if joint and joint[0] in parts else 0
    return len(joint) > 1 and parts[first : first + len(joint)] == joint


def _read_alike(parts: list[str], layer: Tables) -> bool:
    """Whether parts can read what another one before them reads and keeps."""
    return all(part == "feed_forward" or (part == "attention" and "attention" in layer) for part in parts)
