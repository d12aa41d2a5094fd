"""The params.json of Meta's and Mistral's code, translated to a config.json of transformers."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.errors import Fault, InputError
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.spec import MAX_SIZE

# The key that only one of them has.
META, MISTRAL = "multiple_of", "hidden_dim"
TIED = {(2048, 16): "Llama 3.2 1B", (3072, 28): "Llama 3.2 3B"}  # by width and layers: it has no key


def translated(data: Mapping[str, object], where: str) -> tuple[Raw, list[str]]:
    """The config.json, and assumptions. Errors: `InputError` with every fault, by the keys of params.json."""
    c = Config(data, "params.json")
    c.ignore("norm_eps", "rope_theta", "use_scaled_rope", "max_seq_len", "max_batch_size")
    if data["vocab_size"] == -1:
        expected = "the size of the tokenizer, 32000 for Llama 2"
        raise InputError(where, [Fault("vocab_size", -1, expected, "Meta's code reads it from the tokenizer")])
    d, n_heads = c.size("dim"), c.size("n_heads")
    n_layers = c.layers("n_layers")
    raw = {
        "hidden_size": d,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "vocab_size": c.size("vocab_size"),
        "rms_norm_eps": data["norm_eps"],
        "tie_word_embeddings": False,
    }
    raw |= _meta(c, d, n_heads, n_layers) if META in c else _mistral(c)
    if "rope_theta" in c:
        raw["rope_theta"] = data["rope_theta"]
    c.report_unread_keys()
    c.finish(where)
    assumption = f"model_type = {raw['model_type']!r}, since the keys are those of a params.json"
    return raw, [assumption, *c.assumptions]


def _meta(c: Config, d: int, n_heads: int, n_layers: int) -> Raw:
    """The feed-forward has width 8d/3 times `ffn_dim_multiplier`, rounded up to `multiple_of`. The head is not tied, as
    in Meta's code, except in the two models published without a head."""
    multiple, factor = c.size(META), c.real("ffn_dim_multiplier", default=None)
    width = int(2 * 4 * d / 3)
    if factor is not None:
        width = int(factor * width)
        if not 0 < width <= MAX_SIZE:
            c.fault("ffn_dim_multiplier", factor, "a factor of the feed-forward's width, such as 1.3")
    groups = c.size("n_kv_heads", default=n_heads, null=n_heads)
    model = TIED.get((d, n_layers)) if c.data.get("use_scaled_rope") is True else None
    c.assumptions.append(
        f"tie_word_embeddings = true, as in {model}" if model else "tie_word_embeddings = false, as in Meta's code"
    )
    sizes = {"num_key_value_heads": groups, "intermediate_size": -(-width // multiple) * multiple}
    return {"model_type": "llama", "tie_word_embeddings": model is not None, **sizes}


def _mistral(c: Config) -> Raw:
    """Full attention unless there is a window; experts if there is a table `moe`."""
    raw = {
        "model_type": "mistral",
        "head_dim": c.size("head_dim"),
        "num_key_value_heads": c.size("n_kv_heads"),
        "intermediate_size": c.size(MISTRAL),
        "sliding_window": c.size("sliding_window", default=None, null=None),
    }
    if moe := c.table("moe"):
        experts = {"num_local_experts": moe.size("num_experts"), "num_experts_per_tok": moe.size("num_experts_per_tok")}
        raw |= experts | {"model_type": "mixtral"}
    elif c.data.get("moe") is not None:
        c.fault("moe", {}, "num_experts and num_experts_per_tok")
    return raw
