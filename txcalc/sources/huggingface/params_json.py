"""The params.json of Meta's and of Mistral's own code, written as a config.json of transformers."""

from __future__ import annotations

from collections.abc import Mapping

from txcalc.errors import Fault, InputError
from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.spec import MAX_SIZE

# Each code, by the key that it alone has.
META, MISTRAL = "multiple_of", "hidden_dim"
TIED = {(2048, 16): "Llama 3.2 1B", (3072, 28): "Llama 3.2 3B"}  # by width and layers: no key says it


def translated(data: Mapping[str, object], where: str) -> tuple[Raw, list[str]]:
    """The config.json, and what is assumed. Errors: `InputError` with every fault, by the file's own keys."""
    c = Config(data, "params.json")
    c.ignore("norm_eps", "rope_theta", "use_scaled_rope", "max_seq_len", "max_batch_size")
    if data["vocab_size"] == -1:
        expected = "as many as the tokenizer has, 32000 in Llama 2"
        raise InputError(where, [Fault("vocab_size", -1, expected, "Meta's code asks the tokenizer")])
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
    assumption = f"model_type = {raw['model_type']!r}, for the keys are those of a params.json"
    return raw, [assumption, *c.assumptions]


def _meta(c: Config, d: int, n_heads: int, n_layers: int) -> Raw:
    """A feed-forward of two thirds of four widths, times a factor, up to a multiple of a number; the output matrix is
    its own, as in Meta's code, but in the two models that are published without one."""
    several, factor = c.size(META), c.real("ffn_dim_multiplier", default=None)
    wide = int(2 * 4 * d / 3)
    if factor is not None:
        wide = int(factor * wide)
        if not 0 < wide <= MAX_SIZE:
            c.fault("ffn_dim_multiplier", factor, "a factor of the width of the feed-forward, such as 1.3")
    groups = c.size("n_kv_heads", default=n_heads, null=n_heads)
    model = TIED.get((d, n_layers)) if c.data.get("use_scaled_rope") is True else None
    c.assumptions.append(
        f"tie_word_embeddings = true, as in {model}" if model else "tie_word_embeddings = false, as in Meta's code"
    )
    sizes = {"num_key_value_heads": groups, "intermediate_size": -(-wide // several) * several}
    return {"model_type": "llama", "tie_word_embeddings": model is not None, **sizes}


def _mistral(c: Config) -> Raw:
    """Attention of all tokens unless there is a window; experts where there are some."""
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
