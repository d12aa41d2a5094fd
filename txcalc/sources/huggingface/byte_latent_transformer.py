"""The Byte Latent Transformer (arXiv 2412.09871): layers over bytes, over patches of them, and over bytes again."""

from __future__ import annotations

from txcalc.sources.huggingface.config import Config, Raw
from txcalc.sources.huggingface.leaf_list import Leaves, ffn_leaves, leaf, leaf_stack, matrix, norm_leaf, of_kind
from txcalc.sources.spec import size

# By part its model type, and the width, layers, heads and width of feed-forward (0: 8/3 of its own) of its class.
PARTS = {
    "patcher": ("blt_patcher", 768, 14, 12, 2048),
    "encoder": ("blt_local_encoder", 1024, 1, 16, 0),
    "global": ("blt_global_transformer", 2048, 25, 16, 5632),
    "decoder": ("blt_local_decoder", 1024, 9, 16, 2816),
}


def blt(c: Config) -> Raw:
    """Bytes, with a table of hashes of those before each; a small model whose entropy says where a patch begins; and
    attention from patches to bytes before the layers over patches, from bytes to patches behind them."""
    form = c.head_of("lm", "none")
    parts = {name: _Part(c, name) for name in PARTS}
    e, g, d, k = parts["encoder"], parts["global"], parts["decoder"], c.size("cross_attn_k", default=2)
    patches = _patches(c)
    wide, here = {"at": [*patches, k]}, {"at": patches}
    window = c.size("local_attention_window_len", default=512, null=None)
    groups = c.items("encoder_hash_byte_group_size", of=size, length=None, default=[])
    hashes = (len(groups) or 6) * c.size("encoder_hash_byte_group_nb_functions", default=1)
    rows = hashes * c.size("encoder_hash_byte_group_vocab", default=500002)
    if d.width != e.width:
        d.c.fault("hidden_size", d.width, f"the encoder's {e.width:,}", "its layers read what the encoder's give")
    for part in (e, d):
        part.c.require_size("cross_attn_k", k, 2, "patches are as many vectors everywhere")
        part.c.ignore("hidden_size_global")
    d.c.ignore("vocab_size")
    d.c.require_size("hidden_size_global", g.width, 2048, "what the layers over patches give")
    vocab = {config: config.size("vocab_size", default=260) for config in (c, e.c, parts["patcher"].c)}
    around = [leaf("bytes", "table", vocab[e.c], e.width), leaf("hashes", "table", rows, e.width, bias=True)]
    around[1]["runs"] = hashes
    around = of_kind("embedding", around)
    around += e.layers(window)
    times = e.number if e.c.flag("cross_attn_all_layers", default=False) else 1
    around.append(matrix("to_patches", e.width, e.width * k, kind="embedding", runs=times, **here))
    around += e.reads(times, wide, {"keys": [1, 0, 1]}, {})
    if e.width * k != g.width:
        around.append(matrix("to_global", e.width * k, g.width, kind="embedding", **here))
    around.append(matrix("from_patches", g.width, d.width * k, kind="embedding", **here))
    times = d.number if d.c.flag("cross_attn_all_layers", default=True) else 1
    around += d.reads(times, {}, {"keys": wide["at"]}, wide)
    around += [*d.layers(window), norm_leaf("last", d.width, "rms_norm")]
    if c.flag("patch_in_forward", default=True, null=False):
        p = parts["patcher"]
        around.append(leaf("patcher_bytes", "table", vocab[p.c], p.width, kind="embedding"))
        around += p.layers(p.c.size("sliding_window", default=512, null=None))
        around.append(norm_leaf("patcher", p.width, "rms_norm"))
        around.append(matrix("patcher_head", p.width, vocab[p.c], kind="head"))
    tied = c.flag("tie_word_embeddings", default=False)
    if form == "lm":
        if tied and vocab[c] != vocab[e.c]:
            c.fault("vocab_size", vocab[c], f"the encoder's {vocab[e.c]:,}", "the head is its table")
        around.append(leaf("head", ("linear", "tied")[tied], d.width, vocab[c], bias=False, kind="head"))
    c.note("a text is read whole: how bytes are written one by one is not counted; attention between bytes and patches "
           "is counted over all of both, before its mask")  # fmt: skip
    raw: Raw = {"kind": "encoder", "d_model": g.width, "n_layers": g.number, "around": around}
    return leaf_stack(raw | {"head": {"form": "none"}}, {"layer": g.layer(None, here)}, [])


def _patches(c: Config) -> list[int]:
    """Positions of patches for T bytes, as `at` of a piece: ⌈(T − 1)/p⌉ of p bytes each behind one of the first."""
    length = c.size("patch_size", default=4, null=None)
    longest = c.size("max_patch_length", default=None, null=None)
    if not c.flag("patch_in_forward", default=True, null=False):
        c.note("no entropy is looked at: every byte is a patch, and one more is empty")
        return [1, 1, 1]
    if length is None:
        return [1, 0, 1]
    length = min(length, longest or length)
    c.note(f"where patches begin depends on the text: {length} bytes each are assumed (patch_size), the first alone")
    return [1, length - 1, length]


class _Part:
    """A stack of layers and its config."""

    def __init__(self, c: Config, name: str) -> None:
        kind, width, number, heads, wide = PARTS[name]
        self.name, self.c = name, c.nested(f"{name}_config", kind, {})
        self.width = self.c.size("hidden_size", default=width)
        self.number = self.c.size("num_hidden_layers", default=number)
        usual = int(8 * self.width / 3)
        self.wide = self.c.size("intermediate_size", default=wide or usual, null=usual)
        self.heads = self.c.size("num_attention_heads", default=heads)
        self.groups = self.c.size("num_key_value_heads", default=self.heads, null=self.heads)
        self.c.divides(self.heads, self.width, "num_attention_heads", "hidden_size")
        self.c.divides(self.groups, self.heads, "num_key_value_heads", "num_attention_heads")
        self.head = max(1, self.width // self.heads)
        self.c.rotary(self.head)
        self.act = "silu" if name == "patcher" else self.c.activation("hidden_act", default="silu")
        self.c.ignore("hidden_act", "sliding_window", "tie_word_embeddings", "encoder_cross_output_size", "head_dim")

    def _maps(self, name: str, queries: Raw, keys: Raw) -> tuple[Leaves, Raw]:
        kv = self.groups * self.head
        leaves = [matrix(f"{name}q", self.width, self.width, **queries)]
        leaves += [matrix(f"{name}{letter}", self.width, kv, **keys) for letter in "kv"]
        return leaves, matrix(f"{name}o", self.width, self.width, **queries)

    def layer(self, window: int | None, here: Raw, name: str = "") -> Leaves:
        """A layer, pre-norm, that sees what is before."""
        (q, k, v), out = self._maps(name, here, here)
        form, span = ("once", ()) if window is None else ("window_once", (window,))
        groups = max(1, self.heads // self.groups)
        core = [leaf(f"{name}rotary", "rotary", self.heads + self.groups, self.head, **here)]
        core.append(
            leaf(f"{name}core", form, self.heads, self.head, self.head, *span, groups=groups, bias=False, **here)
        )
        leaves = [q, k, v, *core, out, leaf(f"{name}attention_sum", "sum", self.width, **here)]
        ff = ffn_leaves(
            f"{name}feed_forward", self.width, self.wide, self.act, norm="rms_norm", bias=False, gated=True, **here
        )
        norm = norm_leaf(f"{name}attention", self.width, "rms_norm", **here)
        return [norm, *of_kind("attention", leaves), *ff]

    def layers(self, window: int | None) -> Leaves:
        return [item | {"times": self.number} for item in self.layer(window, {}, f"{self.name}_")]

    def reads(self, times: int, queries: Raw, span: Raw, keys: Raw) -> Leaves:
        """Cross-attention of `times` layers; its queries are added to its output twice."""
        name = f"{self.name}_cross_"
        (q, k, v), out = self._maps(name, queries, keys)
        groups = max(1, self.heads // self.groups)
        core = leaf(
            f"{name}core", "reading", self.heads, self.head, self.head, groups=groups, bias=False, **queries, **span
        )
        leaves = [q, k, v, core, out, leaf(f"{name}sum", "sum", self.width, groups=2, **queries)]
        norms = [
            norm_leaf(f"{name}q", self.width, "rms_norm", **queries),
            norm_leaf(f"{name}k", self.width, "rms_norm", **keys),
        ]
        return [item | {"times": times} for item in [*norms, *of_kind("attention", leaves)]]
