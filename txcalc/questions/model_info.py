"""The model, as every answer describes it."""

from __future__ import annotations

from fractions import Fraction

from txcalc.model import Model
from txcalc.questions.answers import Answer


class ModelInfo(Answer):
    """A model and its source. `summary`: its kind and sizes in one line, its layers in another."""

    name: str
    kind: str
    context: int | None
    source: str
    model_type: str | None
    params: int
    summary: tuple[str, ...]

    @classmethod
    def of(cls, model: Model) -> ModelInfo:
        description = model.description
        source, model_type = description.source or model.origin, description.model_type or None
        return cls(model.name, model.kind, model.context, source, model_type, model.params, model.outline())


class SourceInfo(Answer):
    """A source that no description was made of, whose kind is not known. `model_type`: a config.json's."""

    name: str
    kind: None
    source: str
    model_type: str | None


NORMS = {"rms": "RMSNorm", "layer": "LayerNorm"}
LISTED = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm", "scale": "scales in place of norms"}  # forms of pieces
PLACES = {"sandwich": "sandwich norms"}
PARALLEL = {"shared": "parallel blocks, one norm", "separate": "parallel blocks, two norms"}
ADDED = ("learned", "sinusoidal")  # positions added to the embedding
CHANNELS = ("feed_forward", "experts", "channel_mix")


def architecture(model: Model) -> str:
    """Norms and their placement, activations, positions and F/D in one line, each variant once."""
    ways: list[dict[str, None]] = [{}, {}, {}, {}]
    norms, activations, places, ratios = ways
    pieces = False
    for stack in model.stacks:
        for layer in stack.layer.values():
            norm, form = layer.norm, layer.positions.form
            place = PARALLEL.get(str(norm.parallel)) or PLACES.get(norm.place, f"{norm.place}-norm")
            bare = set(layer.parts) <= set(norm.without) and not norm.after
            added = "" if norm.residual is None else f", branches × {norm.residual}"
            listed_forms = [leaf["form"] for leaf in layer.leaves if leaf["kind"] == "norm"]
            piece_norms = [LISTED[leaf_form] for leaf_form in listed_forms if leaf_form in LISTED]
            layer_norms = piece_norms or ["no norms"] if bare else [f"{NORMS.get(norm.form, norm.form)}, {place}"]
            norms |= dict.fromkeys(name + added for name in layer_norms)
            if form == "none" and (layer.leaves or stack.around):
                pieces = True  # some may be positions
            elif form in ADDED or any(layer.options(part).ordered for part in layer.parts):
                places["no positions" if form == "none" else f"{form} positions"] = None
            for channel in (layer.tables[name] for name in CHANNELS if name in layer.tables):
                if activation := channel.get("activation"):
                    activations[activation + (", gated" if channel.get("gated") else "")] = None
                ratios[f"F/D = {float(Fraction(channel.get('d_ff'), stack.d_model)):.4g}"] = None
    if not (places or pieces):
        places["no positions"] = None
    for form in [form for form in LISTED.values() if any(other.startswith(f"{form},") for other in norms)]:
        norms.pop(form, None)
    return "; ".join(" or ".join(way) for way in ways if way)
