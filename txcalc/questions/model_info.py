"""The model, its workload and the conventions, as every answer describes them."""

from __future__ import annotations

from fractions import Fraction

from txcalc.ledger import Ledger
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


class WorkloadInfo(Answer, kw_only=True):
    """The workload: sequences, new tokens per sequence, cached tokens, and encoder positions (None without an encoder
    of its own length)."""

    batch: int
    tokens: int
    past: int
    source: int | None

    @classmethod
    def of(cls, model: Model, ledger: Ledger) -> WorkloadInfo:
        work = ledger.work
        source = work.source if model.has_encoder_apart else None
        return cls(batch=work.batch, tokens=work.tokens, past=work.past, source=source)

    def __str__(self) -> str:
        sizes = {"batch": self.batch, "tokens": self.tokens, "past": self.past, "source": self.source}
        return ", ".join(f"{name} {value:,}" for name, value in sizes.items() if value is not None)


class Convention(Answer, kw_only=True):
    """The conventions of FLOPs; `mla`: how latent attention is computed, None without it."""

    flops_per_mac: int
    attention: str
    logits: str
    mla: str | None

    @classmethod
    def of(cls, model: Model, ledger: Ledger, attention: str) -> Convention:
        work = ledger.work
        latent = ("absorbed" if work.absorbed else "expanded") if model.has_latents else None
        return cls(flops_per_mac=2, attention=attention, logits="last" if work.last_logits else "all", mla=latent)

    def __str__(self) -> str:
        words = [f"{self.flops_per_mac} FLOPs per multiply-add", f"{self.attention} attention", f"{self.logits} logits"]
        return "; ".join([*words, *([f"MLA {self.mla}"] if self.mla else [])])
