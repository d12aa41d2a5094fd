"""Rules over several keys of a layer: which values fit together. One small rule per mechanism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txcalc.description import LayerSpec, StackSpec
from txcalc.errors import ABSENT
from txcalc.num import exceeds
from txcalc.parts.mechanisms import MIXERS
from txcalc.parts.options import Options
from txcalc.sources.tables import SOUND, ReportFault, apply, unequal

if TYPE_CHECKING:
    from txcalc.parts.attention import AttentionOptions
    from txcalc.parts.latent import LatentOptions


def check_layer(layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    """Check the tables of a layer kind, and whether it fits its stack."""
    for table in (*layer.tables.values(), layer.norm, layer.positions):
        check_table(table, fault)
    apply(LAYER_RULES, layer, stack, fault)
    if layer.attention:
        apply(ATTENTION_RULES, layer.attention, layer, stack, fault)
    if "shared" in layer.tables:
        apply((_shared_block,), layer, stack, fault)
    if layer.latent:
        apply((_index,), layer.latent, layer, stack, fault)
    if "compressed" in layer.tables:
        apply((_rotary,), layer, "compressed attention, whose keys are rotated", fault)


def check_table(table: Options, fault: ReportFault) -> None:
    """Report conflicts between keys of one table, up to the first faulty key."""
    with SOUND:
        for key, expected, fix in table.conflicts():
            value = table.get(key)
            fault(f"{table.section}.{key}", ABSENT if value is None else value, expected, fix)


def _rotary_width(attention: AttentionOptions, layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    dims, width = layer.positions.get("rotary_dims"), attention.d_head
    if layer.positions.form == "rotary" and exceeds(dims, width):
        fault("positions.rotary_dims", dims, f"at most d_head = {width}")


def _chunks(attention: AttentionOptions, layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    encoder = stack.role in ("encoder", "vision") and not stack.projector
    if attention.get("chunked") and encoder:
        fault("attention.chunked", True, "false in an encoder that is not a tower")
    if (side := attention.get("side")) is not None and not (stack.projector and stack.vision):
        fault("attention.side", side, "none outside a vision tower")


def _without_projection(attention: AttentionOptions, layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    # Without an output projection the concatenated heads are added to the residual stream.
    if not attention.direct:
        return
    value = attention.d_head if attention.d_v is None else attention.d_v
    if unequal(attention.n_heads * value, stack.d_model):
        fault("attention.direct", True, "false unless n_heads · d_v is d_model (d_v is d_head by default)")


def _shared_kv(attention: AttentionOptions, layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    lender, form = attention.kv_from, layer.positions.form
    if lender is not None and form == "relative-projection":
        fault("positions.form", form, "another form with attention.kv_from")
    if lender is not None and stack.role != "decoder":
        fault("attention.kv_from", lender, "none: layers share keys and values only in a decoder without an encoder")


def _check_disentangled(layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    disentangled = layer.positions.form == "disentangled"
    if disentangled and (stack.role != "encoder" or not layer.attention):
        fault("positions.form", "disentangled", "another form: disentangled positions need attention in an encoder")


def _spread(layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    positions = layer.positions
    if positions.form != "rotary":
        return
    if positions.get("spread") and (layer.latent or positions.get("interleaved") or _odd(positions.get("rotary_dims"))):
        fault("positions.spread", True, "false with interleaved pairs, latent attention, or an odd rotary_dims")


def _score_bias(layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    form = layer.positions.form
    if "latent" in layer.tables and form in ("relative-projection", "alibi"):
        fault("positions.form", form, "another form: latent attention adds no bias to its scores")


def _index(latent: LatentOptions, layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    """An index has rotary keys; like a window, it selects among earlier positions."""
    if latent.d_rope is None and layer.positions.form == "rotary":
        fault("latent.d_rope", ABSENT, "the rotary width of a head, or positions.form = 'none'")
    keys = [key for key in ("index_heads", "index_width", "index_top_k") if latent.get(key) is not None]
    if keys and latent.d_rope is not None:
        _rotary(layer, "an index, whose keys are rotated", fault)
    if keys and stack.role in ("encoder", "vision"):
        expected = "none in an encoder: an index selects among earlier positions"
        fault(f"latent.{keys[0]}", latent.get(keys[0]), expected)
    if latent.window is not None and stack.role in ("encoder", "vision"):
        fault("latent.window", latent.window, "none in an encoder")


def _rotary(layer: LayerSpec, mechanism: str, fault: ReportFault) -> None:
    form = layer.positions.form
    if form != "rotary":
        fault("positions.form", form, f"'rotary' with {mechanism}")


def _position_form(layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    form, whole = layer.positions.form, stack.positions.form
    if form != whole and form in ("learned", "sinusoidal", "relative", "disentangled"):
        fault("positions.form", form, f"the stack's form ({whole}), rotary, alibi or none")


def _joint_norm(layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    norm = layer.norm
    joint = norm.joint
    if joint and (norm.place != "sandwich" or norm.parallel != "no" or not _consecutive(joint, layer.parts)):
        fault("norm.joint", joint, 'two or more consecutive parts, with place = "sandwich"')


def _parallel_parts(layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    norm, parts = layer.norm, layer.norm.parallel
    if isinstance(parts, str):
        return
    pre_norm = norm.place == "pre" and not norm.joint and not norm.after
    if not (pre_norm and _consecutive(parts, layer.parts) and _can_share_input(parts[1:], layer)):
        expected = 'consecutive parts, attention or feed_forward after the first, with place = "pre"'
        fault("norm.parallel", parts, expected)


def _blocks(attention: AttentionOptions, layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    block = attention.get("block")
    if block and stack.role != "encoder":
        fault("attention.block", block, "none outside an encoder")


def _key_mask(attention: AttentionOptions, layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    """A mask that selects keys needs a decoder and an additive mask of its scores."""
    keep, form = attention.get("keep"), layer.positions.form
    if keep and (stack.role != "decoder" or form not in ("rotary", "learned", "sinusoidal", "none")):
        fault("attention.keep", keep, "none: it needs a decoder without an encoder, and scores without a bias")


def _shared_block(layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    """A shared block is the first part, before a mixer that reads it and the residual stream."""
    parts, norm = layer.parts, layer.norm
    if parts[0] != "shared" or len(parts) < 2 or parts[1] not in MIXERS:
        fault("parts", parts, "'shared' first, before a mixer")
    if norm.place != "pre" or norm.parallel != "no" or stack.role != "decoder":
        fault("shared", "a part", "none: it needs a pre-norm decoder without parallel parts")
    form = layer.positions.form
    if form not in ("rotary", "learned", "sinusoidal", "none"):
        fault("positions.form", form, "'rotary' or 'none' in a block that layers share")


def _residual_scale(layer: LayerSpec, stack: StackSpec, fault: ReportFault) -> None:
    norm = layer.norm
    plain = norm.place == "pre" and norm.parallel == "no" and not norm.without
    if norm.residual_scale and not (plain and stack.laurel is None and stack.streams is None):
        fault("norm.residual_scale", True, "false: it needs a norm before every part, and no parallel parts")


ATTENTION_RULES = (_rotary_width, _chunks, _without_projection, _shared_kv, _key_mask, _blocks)
LAYER_RULES = (_score_bias, _check_disentangled, _spread, _position_form, _residual_scale, _joint_norm, _parallel_parts)


def _odd(number: object) -> bool:
    return type(number) is int and number % 2 == 1


def _consecutive(joint: list[str], parts: list[str]) -> bool:
    """Whether two or more parts are consecutive in a layer."""
    first = parts.index(joint[0]) if joint and joint[0] in parts else 0
    return len(joint) > 1 and parts[first : first + len(joint)] == joint


def _can_share_input(parts: list[str], layer: LayerSpec) -> bool:
    """Whether parts can share the input that an earlier part saves for the backward pass."""
    return all(part == "feed_forward" or (part == "attention" and layer.attention is not None) for part in parts)
