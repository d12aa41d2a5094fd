"""The letters of every formula: what each means, where it stands in a description, and its unit. The one table.

Inline descriptions, `--set`, headings, help, the README's table and SymPy's symbols all come from here.
"""

from __future__ import annotations

from typing import NamedTuple


class Symbol(NamedTuple):
    """`letter` in formulas, `key` in a description (dotted; empty for a workload), `meaning`, `unit`, `latex`."""

    letter: str
    key: str
    meaning: str
    unit: str
    latex: str


TABLE = (
    Symbol("B", "", "batch: sequences", "sequences", "B"),
    Symbol("T", "", "new tokens per sequence", "tokens", "T"),
    Symbol("P", "", "tokens already in the cache (past)", "tokens", "P"),
    Symbol("S", "", "keys attended to: past + T", "tokens", "S"),
    Symbol("T_src", "", "encoder positions (source)", "tokens", "T_{src}"),
    Symbol("tp", "", "ranks that split heads, columns and vocabulary (--layout)", "ranks", "t_p"),
    Symbol("ep", "", "ranks that experts are spread over (--layout)", "ranks", "e_p"),
    Symbol("etp", "", "ranks that split one expert, where it is not tp/ep or 1", "ranks", "e_{tp}"),
    Symbol("fsdp", "", "ranks that share every weight, row by row (--layout)", "ranks", "f"),
    Symbol("cp", "", "ranks that share the tokens of a sequence (--layout)", "ranks", "c"),
    Symbol("D", "d_model", "residual width", "elements", "D"),
    Symbol("L", "n_layers", "layers", "layers", "L"),
    Symbol("V", "vocab_size", "vocabulary rows as stored", "rows", "V"),
    Symbol("h", "attention.n_heads", "query heads", "heads", "h"),
    Symbol("h_kv", "attention.n_kv_heads", "key/value heads", "heads", "h_{kv}"),
    Symbol("d_h", "attention.d_head", "width of a head (never assumed D/h)", "elements", "d_h"),
    Symbol("W", "attention.window", "attention window", "tokens", "W"),
    Symbol("r_q", "attention.q_rank", "rank of the query projection (MLA)", "elements", "r_q"),
    Symbol("r_kv", "attention.kv_rank", "width of the key/value latent (MLA)", "elements", "r_{kv}"),
    Symbol("d_nope", "attention.d_nope", "unrotated part of a query/key head (MLA)", "elements", "d_{nope}"),
    Symbol("d_rope", "attention.d_rope", "rotated part of a query/key head (MLA)", "elements", "d_{rope}"),
    Symbol("d_v", "attention.d_v", "width of a value head, where it is not d_h (in MLA always)", "elements", "d_v"),
    Symbol("h_i", "attention.index_heads", "heads of the index that selects keys", "heads", "h_i"),
    Symbol("d_i", "attention.index_width", "width of a head of the index, and of its key", "elements", "d_i"),
    Symbol("k_i", "attention.index_top_k", "keys that a query selects", "tokens", "k_i"),
    Symbol("F", "feed_forward.d_ff", "feed-forward width", "elements", "F"),
    Symbol("E", "experts.n_experts", "routed experts", "experts", "E"),
    Symbol("k", "experts.top_k", "experts per token", "experts", "k"),
    Symbol("F_e", "experts.d_ff", "width of one expert", "elements", "F_e"),
    Symbol("F_s", "experts.d_ff_shared", "width of the shared experts together", "elements", "F_s"),
    Symbol("C_m", "mamba.d_inner", "channels of a Mamba-1 mixer", "elements", "C_m"),
    Symbol("N_m", "mamba.d_state", "states of a channel (Mamba-1)", "elements", "N_m"),
    Symbol("K_m", "mamba.d_conv", "taps of the short convolution (Mamba-1)", "taps", "K_m"),
    Symbol("R_m", "mamba.dt_rank", "rank of the step size (Mamba-1)", "elements", "R_m"),
    Symbol("h_m", "mamba2.n_heads", "heads of a Mamba-2 mixer", "heads", "h_m"),
    Symbol("d_m", "mamba2.d_head", "width of a Mamba-2 head", "elements", "d_m"),
    Symbol("G_m", "mamba2.n_groups", "groups that share B and C (Mamba-2)", "groups", "G_m"),
    Symbol("N_2", "mamba2.d_state", "states of a channel (Mamba-2)", "elements", "N_2"),
    Symbol("K_2", "mamba2.d_conv", "taps of the short convolution (Mamba-2)", "taps", "K_2"),
    Symbol("h_g", "delta.n_heads", "heads of values (gated delta rule)", "heads", "h_g"),
    Symbol("h_gk", "delta.n_key_heads", "heads of queries and keys (gated delta rule)", "heads", "h_{gk}"),
    Symbol("d_gk", "delta.d_key", "width of a query/key head (gated delta rule)", "elements", "d_{gk}"),
    Symbol("d_gv", "delta.d_value", "width of a value head (gated delta rule)", "elements", "d_{gv}"),
    Symbol("K_g", "delta.d_conv", "taps of the short convolution (gated delta rule)", "taps", "K_g"),
    Symbol("h_r", "rg_lru.n_heads", "heads of a recurrent gate (RG-LRU)", "heads", "h_r"),
    Symbol("d_r", "rg_lru.d_head", "channels of a head (RG-LRU)", "elements", "d_r"),
    Symbol("K_r", "rg_lru.d_conv", "taps of the short convolution (RG-LRU)", "taps", "K_r"),
    Symbol("h_l", "linear_attention.n_heads", "heads of linear attention", "heads", "h_l"),
    Symbol("d_l", "linear_attention.d_head", "width of a head of linear attention", "elements", "d_l"),
    Symbol("C_w", "time_mix.d_inner", "channels of RWKV's time mixing", "elements", "C_w"),
    Symbol("F_w", "channel_mix.d_ff", "width of RWKV's channel mixing", "elements", "F_w"),
    Symbol("K_s", "short_convolution.taps", "taps of a short convolution that is a layer's mixer", "taps", "K_s"),
    Symbol("H", "rnn.d_hidden", "width of a recurrent cell's state, where it is not D", "elements", "H"),
    Symbol("r_x", "experts.latent", "width of the latent that the experts work on", "elements", "r_x"),
    Symbol("r", "lora.rank", "rank of the adapters beside frozen weights (LoRA)", "elements", "r"),
    Symbol("P_max", "positions.rows", "rows of the learned position table", "rows", "P_{max}"),
    Symbol("n_b", "positions.buckets", "buckets of the relative bias", "rows", "n_b"),
    Symbol("n_t", "embedding.types", "token types", "rows", "n_t"),
    Symbol("r_e", "embedding.rank", "width of the embedding table before its projection", "elements", "r_e"),
    Symbol("n_c", "head.classes", "classes", "classes", "n_c"),
    Symbol("p", "vision.patch", "side of a patch", "pixels", "p"),
    Symbol("c", "vision.channels", "colour channels", "channels", "c"),
    Symbol("m", "audio.mels", "mel bands", "bands", "m"),
    Symbol("K_a", "audio.kernel", "taps of the audio convolutions", "taps", "K_a"),
)

BY_LETTER = {symbol.letter: symbol for symbol in TABLE}

# Sizes by the names that configs and people have for them.
OTHER_NAMES = {
    **dict.fromkeys(("layers", "n_layer", "num_layers", "num_hidden_layers"), "L"),
    **dict.fromkeys(("width", "dim", "hidden", "n_embd", "hidden_size"), "D"),
    **dict.fromkeys(("heads", "n_head", "num_heads", "num_attention_heads"), "h"),
    **dict.fromkeys(("kv_heads", "num_kv_heads", "num_key_value_heads"), "h_kv"),
    **dict.fromkeys(("ff", "ffn", "n_inner", "intermediate_size"), "F"),
    **dict.fromkeys(("experts", "num_experts", "num_local_experts", "n_routed_experts"), "E"),
    "head_dim": "d_h",
    "vocab": "V",
    "sliding_window": "W",
    "num_experts_per_tok": "k",
    "moe_intermediate_size": "F_e",
}
