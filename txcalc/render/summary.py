"""A model in three lines; lists of models and accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from txcalc.hardware import Accelerator
from txcalc.model import Model
from txcalc.parts.place import mechanism
from txcalc.render.report import Report, Table, TableCell, cell, rounded


def summary(model: Model) -> tuple[str, str]:
    """A model in one line, and its layers in another."""
    spec = next(iter(reversed(model.spec["stacks"].values())))
    layers = " + ".join(str(stack["n_layers"]) for stack in model.spec["stacks"].values())
    first = f"{model.name}: {model.kind}, {layers} {'layer' if layers == '1' else 'layers'}, D = {spec['d_model']:,}"
    if spec["vocab_size"] is not None:
        first += f", V = {spec['vocab_size']:,}" + (" (tied)" if spec["head"]["tied"] else "")
    blocks = [group.block for stack in model.root.stacks for group in stack.groups]
    said = [leaf.describe() for leaf in model.root.leaves()]
    said += [branch.part.describe() for block in blocks for branch in block.branches]
    return first, "; ".join(dict.fromkeys(words for words in said if words))


NORMS = {"rms": "RMSNorm", "layer": "LayerNorm"}
LISTED = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm", "scale": "scales in place of norms"}  # forms of pieces
PLACES = {"sandwich": "sandwich norms"}
PARALLEL = {"shared": "parallel blocks, one norm", "separate": "parallel blocks, two norms"}
ADDED = ("learned", "sinusoidal")  # positions added to the embedding
CHANNELS = ("feed_forward", "experts", "channel_mix")


def make(model: Model) -> str:
    """Norms and their placement, activations, positions and F/D in one line, each variant once."""
    ways: list[dict[str, None]] = [{}, {}, {}, {}]
    norms, activations, places, ratios = ways
    pieces = False
    for stack in model.spec["stacks"].values():
        for layer in stack["layer"].values():
            norm, positions = (layer.get(name, stack[name]) for name in ("norm", "positions"))
            place = PARALLEL.get(str(norm["parallel"])) or PLACES.get(norm["place"], f"{norm['place']}-norm")
            bare = set(layer["parts"]) <= set(norm["without"]) and not norm["after"]
            added = "" if norm["residual"] is None else f", branches × {norm['residual']}"
            listed = layer["pieces"]["leaves"] if "pieces" in layer["parts"] else []
            own = [LISTED[one["form"]] for one in listed if one["kind"] == "norm" and one["form"] in LISTED]
            told = own or ["no norms"] if bare else [f"{NORMS.get(norm['form'], norm['form'])}, {place}"]
            norms |= dict.fromkeys(one + added for one in told)
            if positions["form"] == "none" and (listed or stack["around"]):
                pieces = True  # some may be positions
            elif positions["form"] in ADDED or any(mechanism(part, layer).ordered for part in layer["parts"]):
                places["no positions" if positions["form"] == "none" else f"{positions['form']} positions"] = None
            for channel in (layer[name] for name in CHANNELS if name in layer):
                if channel.get("activation"):
                    activations[channel["activation"] + (", gated" if channel.get("gated") else "")] = None
                ratios[f"F/D = {float(Fraction(channel['d_ff'], stack['d_model'])):.4g}"] = None
    if not (places or pieces):
        places["no positions"] = None
    for form in [form for form in LISTED.values() if any(other.startswith(f"{form},") for other in norms)]:
        norms.pop(form, None)
    return "; ".join(" or ".join(way) for way in ways if way)


def listed(models: Sequence[Model]) -> Report:
    """Presets: family, kind, parameters, active parameters and context."""
    rows, data = [], []
    for model in models:
        ledger, spec = model.ledger(), model.spec
        params, active = ledger.total("params"), ledger.total("active")
        rows.append((model.name, spec["family"], model.kind, rounded(params), rounded(active), cell(model.context)))
        keys = {"name": model.name, "family": spec["family"], "kind": model.kind, "params": params, "active": active}
        data.append({**keys, "context": model.context, "source": spec["source"]})
    headings = ("preset", "family", "kind", "parameters", "active", "context")
    table = Table("", headings, rows, left=frozenset({0, 1, 2}))
    return Report({"schema": "txcalc/presets/1", "presets": data}, [table])


SHOWN = ("fp8", "int8", "fp4")


def cards(accelerators: Sequence[Accelerator]) -> Report:
    """One row each; dense peaks, one-way links; unknown values are empty."""
    rows = []
    for one in accelerators:
        wide = one.peaks.get("bf16", one.peaks.get("fp16"))
        peaks = (_scaled(peak, 10**12) for peak in (wide, *map(one.peaks.get, SHOWN)))
        size = TableCell(one.memory / 2**30, f"{one.memory / 2**30:.1f}")
        rows.append((one.name, size, _scaled(one.bandwidth, 10**9), *peaks, _scaled(one.link, 10**9), cell(one.power)))
    tera = [TableCell(f"{name} TFLOP/s", f"{name}\nTFLOP/s") for name in ("bf16", *SHOWN)]
    headings = (
        "accelerator",
        TableCell("memory GiB", "memory\nGiB"),
        "GB/s",
        *tera,
        TableCell("link GB/s", "link\nGB/s"),
        "W",
    )
    data = [
        {
            "name": one.name,
            "title": one.title,
            "memory_bytes": one.memory,
            "bandwidth_bytes_per_s": one.bandwidth,
            "peak_flops": dict(one.peaks),
            "link_bytes_per_s": one.link,
            "link_between_bytes_per_s": one.link_between,
            "node": one.node,
            "power_w": one.power,
            "source": dict(one.sources),
            "notes": list(one.notes),
        }
        for one in accelerators
    ]
    header = ["dense peaks (fp16 where bf16 is unknown); memory as reported by the driver, if known; links one way"]
    return Report({"schema": "txcalc/presets/1", "hardware": data}, [Table("", headings, rows)], header)


def _scaled(value: int | None, unit: int) -> TableCell:
    """A value scaled to its heading's unit."""
    if value is None:
        return TableCell(None, "")
    scaled = Fraction(value, unit)
    return TableCell(scaled.numerator if scaled.denominator == 1 else float(scaled), f"{float(scaled):,g}")
