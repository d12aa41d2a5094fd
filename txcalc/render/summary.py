"""What a model is, in two lines."""

from __future__ import annotations

from txcalc.model import Model, leaves_of
from txcalc.parts.attention import IndexCore, LatentCore, Selected, SoftmaxCore, Windowed


def summary(model: Model) -> tuple[str, str]:
    """What a model is, in one line, and what its layers are made of, in another."""
    spec = next(iter(reversed(model.spec["stacks"].values())))
    layers = " + ".join(str(stack["n_layers"]) for stack in model.spec["stacks"].values())
    first = f"{model.name}: {model.kind}, {layers} {'layer' if layers == '1' else 'layers'}, D = {spec['d_model']:,}"
    if spec["vocab_size"] is not None:
        first += f", V = {spec['vocab_size']:,}" + (" (tied)" if spec["head"]["tied"] else "")
    seen: dict[str, None] = {}
    for leaf in leaves_of(model.root):
        if isinstance(leaf, SoftmaxCore):
            heads, groups = leaf.n_heads, leaf.n_kv_heads
            form = "MHA" if groups == heads else "MQA" if groups == 1 else "GQA"
            window = f", window {leaf.span.window:,}" if isinstance(leaf.span, Windowed) else ""
            seen[f"{form} {heads}/{groups} × {leaf.d_qk}{window}"] = None
        elif isinstance(leaf, LatentCore):
            chosen = f", {leaf.span.top_k:,} keys a query" if isinstance(leaf.span, Selected) else ""
            seen[f"MLA {leaf.n_heads} heads, latent {leaf.kv_rank} + {leaf.d_rope}{chosen}"] = None
        elif isinstance(leaf, IndexCore):
            seen[f"index {leaf.n_heads} × {leaf.width}"] = None
    for table in (layer for stack in model.spec["stacks"].values() for layer in stack["layer"].values()):
        if "mamba" in table:
            seen[f"Mamba {table['mamba']['d_inner']:,} × {table['mamba']['d_state']}"] = None
        if "mamba2" in table:
            seen[f"Mamba-2 {table['mamba2']['n_heads']} × {table['mamba2']['d_head']}"] = None
        if "short_convolution" in table:
            seen[f"short convolution, {table['short_convolution']['taps']} taps"] = None
        if "delta" in table:
            delta = table["delta"]
            seen[f"delta rule {delta['n_heads']} × {delta['d_key']} × {delta['d_value']}"] = None
        for name, words in (("rg_lru", "RG-LRU"), ("linear_attention", "linear attention")):
            if name in table:
                seen[f"{words} {table[name]['n_heads']} × {table[name]['d_head']}"] = None
        if "time_mix" in table:
            seen[f"RWKV {table['time_mix']['d_inner']:,}"] = None
        if "channel_mix" in table:
            seen[f"gated F = {table['channel_mix']['d_ff']:,}"] = None
        if "feed_forward" in table:
            gated = "gated " if table["feed_forward"]["gated"] else ""
            seen[f"{gated}F = {table['feed_forward']['d_ff']:,}"] = None
        if "experts" in table:
            experts = table["experts"]
            shared = f" + {experts['n_shared']} shared" if experts["n_shared"] else ""
            seen[f"{experts['top_k']} of {experts['n_experts']} experts{shared}, F = {experts['d_ff']:,}"] = None
    return first, "; ".join(seen)
