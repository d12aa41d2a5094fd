"""What a model is, in two lines."""

from __future__ import annotations

from txcalc.model import Model


def summary(model: Model) -> tuple[str, str]:
    """What a model is, in one line, and what its layers are made of, in another."""
    spec = next(iter(reversed(model.spec["stacks"].values())))
    layers = " + ".join(str(stack["n_layers"]) for stack in model.spec["stacks"].values())
    first = f"{model.name}: {model.kind}, {layers} {'layer' if layers == '1' else 'layers'}, D = {spec['d_model']:,}"
    if spec["vocab_size"] is not None:
        first += f", V = {spec['vocab_size']:,}" + (" (tied)" if spec["head"]["tied"] else "")
    blocks = [group.block for stack in model.root.stacks for group in stack.groups]
    said = [leaf.describe() for leaf in model.root.leaves()]
    said += [branch.part.describe() for block in blocks for branch in block.branches]
    return first, "; ".join(dict.fromkeys(words for words in said if words))
