"""The truth of the small configs: `python tests/scripts/small.py [NAME…]`, and of towers: `--towers [NAME…]`.

tests/data/hf/small.json holds small configs of model types without a published one among those of truth.json: `config`,
and of transformers' class for it on the meta device `params` (unique; of a multimodal model those of its language
model), `whole` (where there is more to it) and `flops` of a forward pass at "BxT" (with values, on the CPU, where
transformers' code asks for values, which meta has not); `points` says other batches and lengths than those usually
taken, and `cache`, where a row has it, elements of the cache at these lengths, none of which fills a window. Without
NAME those that have no `params` yet are made. tests/data/hf/towers.json holds small multimodal configs, with `whole`.
"""

from __future__ import annotations

import inspect
import json
import sys
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from txcalc.verification.inputs import blank, inputs_of
from txcalc.verification.transformers_cost import instantiate, measure

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "hf"


def truth(
    config: dict[str, Any], points: list[list[int]] | None = None, cache: dict[str, int] | None = None
) -> dict[str, Any]:
    """What transformers makes of a config, its FLOPs at these batches and tokens, its cache at these lengths."""
    choice = str(config.get("architectures", "")).endswith("MultipleChoice']")
    points = points or ([[8, 5]] if choice else [[1, 5], [2, 8]])
    measurements = [measure(config, "small", batch, tokens, formulas=False) for batch, tokens in points]
    flops = {
        f"{batch}x{tokens}": number
        for (batch, tokens), measurement in zip(points, measurements, strict=True)
        if (number := measurement.flops or _on_cpu(config, batch, tokens))
    }
    whole = {} if measurements[0].total_params is None else {"whole": measurements[0].total_params}
    if config["model_type"] in (
        "aimv2",
        "altclip",
        "chinese_clip",
        "metaclip_2",
        "siglip",
        "siglip2",
    ):  # read with both encoders
        return {"params": measurements[0].total_params, "flops": flops}
    kept = {"cache": {tokens: _kept(config, int(tokens)) for tokens in cache}} if cache else {}
    return {"params": measurements[0].params, **whole, "flops": flops, **kept}


def _kept(config: dict[str, Any], tokens: int) -> int:
    """Elements of all tensors that the layers of a cache hold after so many tokens."""
    with torch.no_grad():
        layers = _with_values(config)(torch.zeros(1, tokens, dtype=torch.long), use_cache=True).past_key_values.layers
    values = [value for layer in layers for value in vars(layer).values()]
    values += [inner for value in values if isinstance(value, dict) for inner in value.values()]
    return sum(value.numel() for value in values if torch.is_tensor(value) and value.dim())


def _with_values(config: dict[str, Any]) -> Any:
    """Its model with values, zeros in its buffers."""
    net: Any = instantiate(config, "small").to_empty(device="cpu").eval()
    for weight in net.parameters():
        torch.nn.init.normal_(weight)
    for buffer in net.buffers():
        buffer.zero_()
    return net


def _on_cpu(config: dict[str, Any], batch: int, tokens: int) -> int:
    """FLOPs with values, zeros but for the ids; 0 where it is not known what the class takes."""
    net = _with_values(config)
    inputs = inputs_of(net, batch, tokens, None)
    if isinstance(inputs, str):
        values = _patches(net, batch)
    else:
        values = {tensor.name: torch.zeros_like(blank(tensor, tensor.shape), device="cpu") for tensor in inputs}
    if not values:
        return 0
    if "input_ids" in values:
        values["input_ids"].random_(10)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        net(**values)
    return counter.get_total_flops()


def _patches(net: Any, batch: int) -> dict[str, torch.Tensor]:
    """Patches of a square picture, as many as the table has positions; none where the class takes no patches."""
    parameters, seen = inspect.signature(net.forward).parameters, getattr(net.config, "vision_config", net.config)
    if "spatial_shapes" not in parameters or "input_ids" in parameters:
        return {}
    number, width = seen.num_patches, seen.num_channels * seen.patch_size**2
    mask = next(name for name in ("pixel_attention_mask", "attention_mask") if name in parameters)
    sides = torch.full((batch, 2), isqrt(number))
    return {"pixel_values": torch.zeros(batch, number, width), mask: torch.ones(batch, number), "spatial_shapes": sides}


def whole(config: dict[str, Any]) -> dict[str, Any]:
    """The parameters of all of it."""
    return {"whole": measure(config, "small", 1, 5, formulas=False).total_params}


def main() -> None:
    towers = sys.argv[1:2] == ["--towers"]
    place = FOLDER / ("towers.json" if towers else "small.json")
    rows = json.loads(place.read_text())
    for name in sys.argv[1 + towers :] or [name for name, row in rows.items() if {"params", "whole"}.isdisjoint(row)]:
        config = rows[name]["config"]
        options = {key: rows[name][key] for key in ("points", "cache") if key in rows[name]}
        rows[name] = {"config": config, **options, **(whole(config) if towers else truth(config, **options))}
        print(name, {key: value for key, value in rows[name].items() if key != "config"})
    lines = (f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in sorted(rows.items()))
    place.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
