"""What a user reads when something is wrong: lower case, the user's own spelling, what was expected, how to mend it.

Texts are compared whole: a message is part of the interface.
"""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import txcalc
from txcalc import InputError, MissingExtra, Refuted, TxcalcError, UnknownName
from txcalc.errors import ABSENT, Fault, nearest, shown
from txcalc.parts.forms import FORMS
from txcalc.sources import build

SIZE = "expected a whole number from 1 to 1,000,000,000"


def said(make: Any, *arguments: Any) -> str:
    with pytest.raises(TxcalcError) as error:
        make(*arguments)
    assert type(error.value).exit_code == 2
    return str(error.value)


# Sources.


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gtp2", "source: no preset named 'gtp2' (did you mean gpt2 or gpt2-xl or gpt1?)"),
        ("mistral7", "source: no preset named 'mistral7' (did you mean mistral-7b?)"),
        ("Llama 3.1 8b", "source: no preset named 'Llama 3.1 8b' (did you mean llama-3.1-8b?)"),
        ("zzz", "source: no preset named 'zzz' (txcalc presets lists them)"),
        ("no/such.toml", "no/such.toml: cannot be read: no such file or directory"),
    ],
)
def test_sources(source: str, message: str) -> None:
    assert said(txcalc.load, source) == message


BAD_FILES = {
    "empty": (b"", "is empty, expected a description (.toml)"),
    "blank": (b" \n\t\n", "is empty, expected a description (.toml)"),
    "binary": (b"\x00\x01\xff\xfe", "is not text, expected a description (.toml)"),
    "huge": (b"#" * (2**20 + 1), "is larger than 1,048,576 bytes, expected a description (.toml)"),
    "not TOML": (b"d_model = 4\nn_layers = = 3\n", "is not valid TOML: invalid value (at line 2, column 12)"),
    "twice": (b"d_model = 4\nd_model = 3\n", "is not valid TOML: cannot overwrite a value (at line 2, column 12)"),
    "unclosed": (
        b"[attention\n",
        "is not valid TOML: expected ']' at the end of a table declaration (at line 1, column 11)",
    ),
    "deep": (b"a = " + b"[" * 100_000, "is not valid TOML: nested too deep"),
    "digits": (b"d_model = " + b"9" * 5000, "is not valid TOML: a number has too many digits"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_files(name: str, tmp_path: Path) -> None:
    content, message = BAD_FILES[name]
    path = tmp_path / "model.toml"
    path.write_bytes(content)
    assert said(txcalc.load, path) == f"{path}: {message}"


def test_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.mkdir()
    assert said(txcalc.load, str(path)).startswith(f"{path}")


def test_a_file_of_a_presets_name_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpt2").mkdir()
    assert txcalc.load("gpt2").params == 124_439_808
    assert said(txcalc.load, "./gpt2").startswith("gpt2")


# Inline descriptions. Each is added to a good one.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h=7", "d_h is missing, expected a key of its own: D = 512 is no multiple of h = 7"),
        ("h=8 h_kv=3", "h_kv is 3, expected a divisor of h = 8 (8 is MHA, 1 is MQA)"),
        ("E=8 k=9", "k is 9, expected at most E = 8"),
        ("E=8", "k is missing, expected experts per token, for E is given"),
        ("k=2", "E is missing, expected routed experts, for k is given"),
        ("window=0", f"window is '0', {SIZE}"),
        ("V=-5", "V is '-5', expected a whole number such as 4096 or 32k"),
        ("V=32q", "V is '32q', expected a whole number such as 4096 or 32k"),
        ("V=1.5", "V is '1.5', expected a whole number such as 4096 or 32k"),
        ("V=nan", "V is 'nan', expected a whole number such as 4096 or 32k"),
        ("V=", "V is '', expected a whole number such as 4096 or 32k"),
        ("V=1000000000000000000000000000000", f"V is '1000000000000000000000000000000', {SIZE}"),
        ("D=3", "D is given twice"),
        ("plain gated", "plain and gated contradict each other"),
        ("bias nobias", "bias and nobias contradict each other"),
        ("tied", "tied says how V is used, and V is missing"),
        ("ln=1", "ln is a word, expected without a value (ln)"),
        ("V", "V is missing, expected a number (V=8)"),
        ("rmss", "'rmss' is not a letter or word of a description (did you mean rms?)"),
        ("n_heads", "'n_heads' is not a letter or word of a description (did you mean h?)"),
        ("vocab=-5", "vocab is '-5', expected a whole number such as 4096 or 32k"),
        (
            "q=1",
            "'q' is not a letter or word of a description (letters: D, L, h, h_kv, d_h, F, V, E, k, window, learned; "
            "words: plain, gated, rms, ln, pre, post, bias, nobias, tied, untied, final, nofinal, "
            "direct, nonorm, lstm, gru, rnn)",
        ),
        ("d_h=7", "h is missing, expected query heads: D/7 is not whole"),
    ],
)
def test_inline(text: str, message: str) -> None:
    assert said(txcalc.load, f"D=512 L=2 F=1376 {text}") == f"inline description: {message}"


def test_inline_without_what_is_needed() -> None:
    assert said(txcalc.load, "h=8").splitlines() == [
        "inline description: 3 faults",
        "  D is missing, expected residual width (D=4096)",
        "  L is missing, expected layers (L=32)",
        "  F is missing, expected feed-forward width (F=14336)",
    ]
    assert said(txcalc.load, "D=512 L=2") == (
        "inline description: F is missing, expected feed-forward width "
        "(F=2048 is the classic block's, with the word plain)"
    )
    assert said(txcalc.load, "D=512 L=100001 F=8") == (
        "inline description: L is '100001', expected a whole number from 1 to 100,000"
    )


# Changed keys.


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        (
            "llama-3.1-8b",
            "h_kv",
            5,
            "llama-3.1-8b: h_kv is 5, expected a divisor of n_heads = 32 (32 is MHA, 1 is MQA)",
        ),
        ("llama-3.1-8b", "hkv", 5, "--set: no key named 'hkv' (did you mean h_kv?)"),
        ("llama-3.1-8b", "T", 5, "--set: T (new tokens per sequence) belongs to the workload, not to the model"),
        ("deepseek-v3", "k", 300, "deepseek-v3: k is 300, expected at most n_experts = 256"),
        ("gpt2", "D", "x", "gpt2: D is 'x', expected a whole number above 0"),
        ("gpt2", "P_max", 0, f"gpt2: P_max is 0, {SIZE}"),
        (
            "gpt2",
            "h",
            5,
            "gpt2: attention.d_head is missing, expected a key of its own: d_model = 768 is no multiple of h = 5",
        ),
        ("gemma-3-27b", "W", 0, f"gemma-3-27b: W is 0, {SIZE}"),
        (
            "gemma-3-27b",
            "L",
            3,
            "gemma-3-27b: layer.global is never used in pattern ['5*local', 'global'] over 3 layers",
        ),
        ("t5-small", "D", 0, f"t5-small: D is 0, {SIZE}"),
    ],
)
def test_changes(name: str, key: str, value: object, message: str) -> None:
    assert said(txcalc.load, name, {key: value}) == message


# Descriptions. Each change is made to a good one.

DECODER: dict[str, Any] = {
    "d_model": 512,
    "n_layers": 4,
    "vocab_size": 1000,
    "attention": {"n_heads": 8, "n_kv_heads": 2},
    "feed_forward": {"d_ff": 1376, "gated": True},
}
EXPERTS = {"n_experts": 8, "top_k": 2, "d_ff": 64}
LATENT = {"n_heads": 8, "kv_rank": 64, "d_nope": 32, "d_rope": 16, "d_v": 32}
INDEX = {"index_heads": 2, "index_width": 16, "index_top_k": 4}
DROP = object()
CHOSEN = {"n_experts": 4, "top_k": 2, "n_kv_heads": 2, "d_head": 8}
SPAN = {"n_heads": 2, "d_head": 8, "taps": 5}

FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"d_model": DROP}, "d_model is missing, expected residual width"),
    "zero": ({"d_model": 0}, f"d_model is 0, {SIZE}"),
    "negative": ({"n_layers": -2}, "n_layers is -2, expected a whole number from 1 to 1,000,000,000"),
    "fraction": ({"vocab_size": 1.5}, "vocab_size is 1.5, expected a whole number above 0"),
    "whole fraction": ({"vocab_size": 8.0}, "vocab_size is 8.0, expected a whole number above 0"),
    "nan": ({"vocab_size": float("nan")}, "vocab_size is nan, expected a whole number above 0"),
    "huge": ({"vocab_size": 10**30}, f"vocab_size is {10**30}, {SIZE}"),
    "text": ({"d_model": "512"}, "d_model is '512', expected a whole number above 0"),
    "true": ({"d_model": True}, "d_model is True, expected a whole number above 0"),
    "list": ({"d_model": [1]}, "d_model is [1], expected a whole number above 0"),
    "too deep": ({"n_layers": 100_001}, "n_layers is 100001, expected a whole number from 1 to 100,000"),
    "not a table": ({"norm": 3}, "norm is 3, expected a table"),
    "unknown key": ({"vocab": 3}, "vocab is not a key (did you mean vocab_size?)"),
    "unknown inner key": (
        {"attention.heads": 3},
        "attention.heads is not a key (did you mean n_heads or d_head or n_kv_heads?)",
    ),
    "strange key": (
        {"feed_forward.zzz": 3},
        "feed_forward.zzz is not a key (known: d_ff, gated, activation, bias, down_bias, inner_norm, groups, sparsity)",
    ),
    "kind": (
        {"kind": "decodr"},
        "kind is 'decodr', expected one of decoder, encoder, encoder-decoder, vision, audio",
    ),
    "choice": ({"norm.form": "batch"}, "norm.form is 'batch', expected 'rms' or 'layer'"),
    "activation": (
        {"feed_forward.activation": "softmax"},
        "feed_forward.activation is 'softmax', expected one of relu, relu2, gelu, gelu_tanh, quick_gelu, silu, "
        "clamped_silu, sigmoid, tanh, none, xielu",
    ),
    "values that are keys": (
        {"attention.tied_kv": True, "attention.d_v": 3},
        "attention.d_v is 3, expected none where the values are the keys, or another layer's",
    ),
    "an even kernel": (
        {
            "kind": "audio",
            "encoder.audio": {"mels": 8, "positions": 9, "kernel": 4},
            "encoder.n_layers": 1,
            "decoder.n_layers": 1,
        },
        "encoder.audio.kernel is 4, expected an odd number: as many on either side",
    ),
    "halves of an odd number": (
        {"differential_attention": {"n_heads": 6, "n_kv_heads": 3, "d_head": 8}, "attention": DROP},
        "differential_attention.n_kv_heads is 3, expected an even number: differential attention halves them",
    ),
    "slopes of a difference": (
        {"differential_attention": {"n_heads": 8}, "attention": DROP, "positions.form": "alibi"},
        "positions.form is 'alibi', expected another form: differential attention adds no bias to its scores",
    ),
    "distances of a difference": (
        {"differential_attention": {"n_heads": 8}, "attention": DROP, "positions.form": "relative-projection"},
        "positions.form is 'relative-projection', expected another form: differential attention adds no bias to its "
        "scores",
    ),
    "slopes of chosen heads": (
        {"expert_attention": CHOSEN, "attention": DROP, "positions.form": "alibi"},
        "positions.form is 'alibi', expected another form: attention of experts adds no bias to its scores",
    ),
    "rotation beside convolutions": (
        {"kind": "encoder", "span_attention": SPAN, "attention": DROP, "positions.form": "rotary"},
        "positions.form is 'rotary', expected 'learned', 'sinusoidal' or 'none' with span_attention, which turns no "
        "heads",
    ),
    "bias of no gate beside convolutions": (
        {
            "kind": "encoder",
            "span_attention": {**SPAN, "bias": ["g"]},
            "attention": DROP,
            "positions.form": "none",
        },
        "span_attention.bias is ['g'], expected a list without \"g\": there is no gate",
    ),
    "bias of no gate of a difference": (
        {"differential_attention": {"n_heads": 8, "bias": ["g"]}, "attention": DROP},
        "differential_attention.bias is ['g'], expected a list without \"g\": there is no gate",
    ),
    "a difference in an encoder": (
        {"kind": "encoder", "differential_attention": {"n_heads": 8}, "attention": DROP},
        "differential_attention: differential_attention runs one way, expected only in a decoder",
    ),
    "convolutions of attention in a decoder": (
        {"span_attention": SPAN, "attention": DROP, "positions.form": "none"},
        "layer.layer.parts is ['attention', 'feed_forward'], expected no span_attention, which reads what comes later: "
        "it is an encoder's",
    ),
    "sinks of a difference": (
        {"differential_attention": {"n_heads": 8, "sinks": True}, "attention": DROP},
        "differential_attention.sinks is not a key (known: n_heads, n_kv_heads, d_head, window, bias)",
    ),
    "a difference as it was written": (
        {"attention.differential": True},
        "attention.differential is not a key (it has a table of its own, [differential_attention])",
    ),
    "more experts of attention than there are": (
        {"expert_attention": {"n_experts": 2, "top_k": 3, "n_kv_heads": 2, "d_head": 8}, "attention": DROP},
        "expert_attention.top_k is 3, expected at most n_experts = 2",
    ),
    "norms after all": (
        {"norm.place": "sandwich", "norm.after": ["feed_forward"]},
        "norm.after is ['feed_forward'], expected none unless place = 'pre' (the others have norms after every part)",
    ),
    "slopes that a head has not": (
        {"feed_forward.activation": "xielu", "head.form": "masked-lm"},
        "feed_forward.activation is 'xielu', expected another with head.form = 'masked-lm', whose layer has no weights "
        "for it",
    ),
    "flag": ({"feed_forward.gated": 1}, "feed_forward.gated is 1, expected true or false"),
    "real": ({"positions.theta": float("inf")}, "positions.theta is inf, expected a finite number"),
    "biases": (
        {"attention.bias": ["q", "z"]},
        'attention.bias is [\'q\', \'z\'], expected true, false, or a list out of "q", "k", "v", "o", "g"',
    ),
    "groups": (
        {"attention.n_kv_heads": 3},
        "attention.n_kv_heads is 3, expected a divisor of n_heads = 8 (8 is MHA, 1 is MQA)",
    ),
    "width of a head": (
        {"attention.n_heads": 6},
        "attention.d_head is missing, expected a key of its own: d_model = 512 is no multiple of n_heads = 6",
    ),
    "rotary": ({"positions.rotary_dims": 65}, "positions.rotary_dims is 65, expected at most d_head = 64"),
    "window": ({"attention.window": 0}, f"attention.window is 0, {SIZE}"),
    "top k": (
        {"experts": {**EXPERTS, "top_k": 9}, "feed_forward": DROP},
        "experts.top_k is 9, expected at most n_experts = 8",
    ),
    "experts beside": (
        {"experts": EXPERTS},
        "feed_forward is a table that no layer uses (they have attention, experts)",
    ),
    "latent beside": (
        {"latent": LATENT},
        "attention is a table that no layer uses (they have feed_forward, latent)",
    ),
    "groups of Mamba-2": (
        {"mamba2": {"n_groups": 3}, "attention": DROP, "feed_forward": DROP},
        "mamba2.n_groups is 3, expected a divisor of n_heads = 16",
    ),
    "heads of Mamba-2": (
        {"mamba2": {"d_head": 60}, "attention": DROP, "feed_forward": DROP},
        "mamba2.n_heads is missing, expected a key of its own: 2·d_model = 1024 is no multiple of d_head = 60",
    ),
    "parts side by side after their sum": (
        {"norm": {"parallel": ["attention", "feed_forward"], "place": "post"}},
        "norm.parallel is ['attention', 'feed_forward'], expected parts as they follow one another, attention or "
        'feed_forward behind the first, with place = "pre"',
    ),
    "parts side by side, experts last": (
        {"norm": {"parallel": ["attention", "experts"]}, "experts": EXPERTS, "feed_forward": DROP},
        "norm.parallel is ['attention', 'experts'], expected parts as they follow one another, attention or "
        'feed_forward behind the first, with place = "pre"',
    ),
    "key heads of a delta rule": (
        {"delta": {"n_heads": 4, "n_key_heads": 3}, "attention": DROP, "feed_forward": DROP},
        "delta.n_key_heads is 3, expected a divisor of n_heads = 4",
    ),
    "bias of no gate": (
        {"attention": {"n_heads": 8, "bias": ["g"]}},
        "attention.bias is ['g'], expected a list without \"g\": there is no gate",
    ),
    "form of no gate": (
        {"attention": {"n_heads": 8, "gate_activation": "softplus"}},
        "attention.gate_activation is 'softplus', expected 'sigmoid', the default, where there is no gate",
    ),
    "correction of a softmax": (
        {"experts": {**EXPERTS, "correction": True}, "feed_forward": DROP},
        "experts.correction is True, expected false without a router whose scoring is 'sigmoid'",
    ),
    "contacts of a decoder": (
        {"contacts": True},
        "contacts is True, expected false but in an encoder whose layers all have attention",
    ),
    "tokens no narrower": (
        {"embedding.early": True},
        "embedding.early is True, expected false without embedding.rank and head.form = 'lm'",
    ),
    "bias of an RMSNorm": (
        {"norm.bias": True},
        "norm.bias is True, expected false with form = 'rms' (an RMSNorm has no bias)",
    ),
    "rows": ({"positions.form": "learned"}, "positions.rows is missing, expected the rows of the learned table"),
    "rows of sinusoids of several widths": (
        {
            "kind": "encoder",
            "n_layers": 2,
            "positions.rows": 9,
            "pattern": ["a", "b"],
            "layer": {"a": {}, "b": {"attention": {"d_head": 16}}},
        },
        "positions.rows is 9, expected none: its sinusoids are those of equally wide heads",
    ),
    "tables without how often": (
        {"embedding.tables": [[9, 1], [9]]},
        "embedding.tables is [[9, 1], [9]], expected a list of pairs: the rows of a table, and how often it is read",
    ),
    "an RMSNorm at the end with a bias": (
        {"norm.final_bias": True},
        "norm.final_bias is True, expected false with form = 'rms' (an RMSNorm has no bias)",
    ),
    "rows of no table": (
        {"positions.rows": 9},
        "positions.rows is 9, expected none with positions.form = 'rotary', which has no table",
    ),
    "classes": ({"head.form": "classifier"}, "head.classes is missing, expected the number of classes"),
    "tied to nothing": (
        {"vocab_size": DROP, "head.tied": True},
        "head.tied is True, expected false: there is no token table, or no head, to share it",
    ),
    "vision elsewhere": (
        {"vision": {"image": 8, "patch": 2}},
        'vision is a table, expected only where kind is "vision"',
    ),
    "vision without": (
        {"kind": "vision", "vision": {"image": 8}},
        "vision.patch is missing, expected side of a patch, pixels",
    ),
    "patches": (
        {"kind": "vision", "vision": {"image": 9, "patch": 2}},
        "vision.patch is 2, expected a divisor of image = 9",
    ),
    "encoder elsewhere": (
        {"encoder": {"n_layers": 2}},
        'encoder is a table, expected only where kind is "encoder-decoder" or "audio"',
    ),
    "halves of other widths": (
        {"kind": "encoder-decoder", "encoder": {"d_model": 256}},
        "decoder.d_model is 512, expected the encoder's 256, for they share a table of tokens",
    ),
    "relative of a latent": (
        {"positions.form": "relative", "attention": DROP, "latent": LATENT},
        "positions.form is 'relative', expected another form: its table is added to the scores of equal query heads",
    ),
    "half an index": (
        {"attention": DROP, "latent": {**LATENT, "q_rank": 8, "index_heads": 2, "index_width": 16}},
        "latent.index_top_k is missing, expected a size beside index_heads: an index has index_heads, index_width, "
        "index_top_k",
    ),
    "an index of direct queries": (
        {"attention": DROP, "latent": {**LATENT, **INDEX}},
        "latent.q_rank is missing, expected the rank of the queries, which the index reads",
    ),
    "a narrow index": (
        {"attention": DROP, "latent": {**LATENT, **INDEX, "q_rank": 8, "index_width": 15}},
        "latent.index_width is 15, expected at least d_rope = 16, which is rotated",
    ),
    "an index of what is not rotated": (
        {"attention": DROP, "latent": {**LATENT, **INDEX, "q_rank": 8}, "positions": {"form": "none"}},
        "positions.form is 'none', expected 'rotary' with an index, whose keys are rotated",
    ),
    "an index of nothing": (
        {"attention": DROP, "latent": {**LATENT, "index_interleaved": True}},
        "latent.index_interleaved is True, expected false without an index",
    ),
    "an index in an encoder": (
        {"kind": "encoder", "attention": DROP, "latent": {**LATENT, **INDEX, "q_rank": 8}},
        "latent.index_heads is 2, expected none in an encoder: an index chooses among what came before",
    ),
    "pattern": ({"pattern": []}, "pattern is [], expected a list of texts"),
    "pattern's count": (
        {"pattern": ["0*a"]},
        "pattern is '0*a', expected a layer kind, or a number of them: '5*local'",
    ),
    "no pattern": (
        {"layer": {"a": {}, "b": {}}},
        "pattern is missing, expected a list that orders the layer kinds a, b",
    ),
    "not in the pattern": (
        {"pattern": ["a"], "layer": {"a": {}, "b": {}}},
        "layer.b is never used in pattern ['a'] over 4 layers",
    ),
    "parts": (
        {"layer": {"a": {"parts": ["atention"]}}},
        "layer.a.parts is ['atention'], expected a list out of attention, cross_attention, feed_forward, experts, "
        "mamba, mamba2, delta, rg_lru, linear_attention, matrix_memory, time_mix, short_convolution, rnn, "
        "hyena, draft_attention, compressed, forgetting, pieces, channel_mix, convolution, fourier, shared, "
        "layer_input",
    ),
    "parts twice": (
        {"layer": {"a": {"parts": ["attention", "attention", "feed_forward"]}}},
        "layer.a.parts is ['attention', 'attention', 'feed_forward'], expected each part once",
    ),
    "key of a layer": (
        {"layer": {"a": {"d_model": 8}}},
        "layer.a.d_model is not a key (a layer has tables of parts, norm, positions, and parts)",
    ),
    "table of a layer": (
        {"layer": {"a": {"parts": ["attention", "feed_forward"], "mamba": {}}}},
        "layer.a.mamba is a table that its parts (attention, feed_forward) do not use",
    ),
    "inside a layer": ({"layer": {"a": {"attention": {"window": 0}}}}, f"layer.a.attention.window is 0, {SIZE}"),
    "outside a layer": (
        {"attention.n_kv_heads": 3, "layer": {"a": {"attention": {"window": 8}}}},
        "attention.n_kv_heads is 3, expected a divisor of n_heads = 8 (8 is MHA, 1 is MQA)",
    ),
    "cross-attention to nothing": (
        {"layer": {"a": {"parts": ["attention", "cross_attention", "feed_forward"]}}},
        "layer.a.parts is ['attention', 'cross_attention', 'feed_forward'], expected no cross_attention: there is no "
        "encoder to attend to",
    ),
}


def described(changes: dict[str, Any]) -> dict[str, Any]:
    raw = deepcopy(DECODER)
    for path, value in changes.items():
        *tables, key = path.split(".")
        table = raw
        for name in tables:
            table = table.setdefault(name, {})
        if value is DROP:
            del table[key]
        else:
            table[key] = value
    return raw


@pytest.mark.parametrize("name", FAULTS)
def test_descriptions(name: str) -> None:
    changes, message = FAULTS[name]
    assert said(build, described(changes), "model.toml") == f"model.toml: {message}"


AT = "'source' or [a, b, c] as at: whole numbers, a from 0, c from 1, b from 1 where a is 0"
PIECE: dict[str, Any] = {"name": "a", "form": "linear", "sizes": [64, 64]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"at": [0, -5, 1]}, AT),
        ({"at": [1, 0, -1]}, AT),
        ({"at": [1, 0, 0]}, AT),
        ({"at": [0, 0, 1]}, AT),
        ({"keys": [1, 0, 1]}, "[a, b, c] as keys of a piece 'reading' or 'scores'"),
        ({"form": "scores", "sizes": [2, 4]}, "[a, b, c] as keys of a piece"),
        ({"shared": 1}, "true or false"),
        ({"at": [1, 0, True]}, AT),
        ({"form": "grouped", "groups": 7}, "as groups of a piece 'grouped' a divisor of d_in = 64"),
        ({"form": "attention", "sizes": [3, 8, 8], "groups": 4}, "as groups of a piece 'attention' a divisor of n_h"),
        ({"form": "convolution", "sizes": [4, 10, 3, 1], "groups": 4}, "as groups of a piece 'convolution' a divisor"),
        ({"form": ["linear"]}, "pieces of name, form, sizes"),
        ({"groups": 4}, "no groups of a piece 'linear', which has none"),
        ({"form": "scale", "sizes": [64], "groups": 2}, "no groups of a piece 'scale', which has none"),
        ({"form": "tied", "bias": True}, "no bias of a piece 'tied', which has none"),
        ({"form": "rms_norm", "sizes": [64], "bias": True}, "no bias of a piece 'rms_norm', which has none"),
        ({"kind": "frogs"}, "one of embedding, attention"),
        ({"kind": "all_reduce"}, "one of embedding, attention"),
    ],
)
def test_pieces(change: dict[str, Any], expected: str) -> None:
    message = said(build, described({"around": [PIECE | change]}), "model.toml")
    assert message.startswith("model.toml: around is ") and f"expected {expected}" in message


def test_pieces_that_are_good() -> None:
    """What the strictest checks let pass; twice the same name does not."""
    forms: list[dict[str, Any]] = [{"at": [2, -5, 3]}, {"form": "grouped", "groups": 4}, {"form": "tied"}]
    around = [PIECE | change | {"name": f"piece{i}"} for i, change in enumerate(forms)]
    model = build(described({"around": around}), "model.toml")
    read = next(iter(model.spec["stacks"].values()))["around"]
    assert build(described({"around": read}), "model.toml").spec == model.spec  # what was filled in is accepted
    message = said(build, described({"around": [PIECE, PIECE]}), "model.toml")
    assert message.endswith("expected pieces of different names: several are 'a'")


def test_pieces_that_read_an_encoder_stand_beside_one() -> None:
    around = [PIECE | {"name": "k", "at": "source"}]
    message = said(build, described({"around": around}), "model.toml")
    assert message == (
        "model.toml: around is 'k', expected pieces that read no encoder's positions: this stack has none beside it"
    )
    core = {"name": "core", "form": "crossed", "sizes": [2, 4, 4]}
    layer = {"layer": {"one": {"parts": ["pieces"], "pieces": {"leaves": [core]}}}}
    assert "this stack has none beside it" in said(build, {"kind": "decoder", "d_model": 8, "n_layers": 1} | layer, "x")


@pytest.mark.parametrize("form", FORMS)
def test_a_piece_reads_what_its_form_says(form: str) -> None:
    names, made, bias, groups = FORMS[form]
    sizes = [8] * len(names)
    plain, biased, grouped = (repr(made(*given, *sizes)) for given in ((False, 1), (True, 1), (False, 2)))
    assert (plain != biased) == bias and (plain != grouped) == (groups is not None)


def test_a_key_by_its_old_name() -> None:
    """It is read, in a description and as a change, and written by its new one."""
    raw, parts = described({}), ["attention", "feed_forward"]
    old = build(raw | {"norm": {"abreast": parts}}, "old", written=True)
    assert old.raw["norm"] == {"parallel": parts}
    assert old.spec["stacks"] == build(raw, "new", changes={"norm.abreast": parts}).spec["stacks"]
    with pytest.raises(InputError, match=r"norm\.abreast is not a key"):
        build(raw | {"norm": {"abreast": parts, "parallel": "no"}}, "both")


@pytest.mark.parametrize("section", ["differential_attention", "expert_attention", "span_attention"])
def test_attention_of_its_own_kind_stands_beside_no_cross_attention(section: str) -> None:
    own = {"n_heads": 4, "n_experts": 2, "top_k": 1, "d_head": 8, "taps": 3}
    keys = {"differential": ("n_heads",), "expert": ("n_experts", "top_k", "d_head"), "span": ("n_heads", "taps")}
    half = {"n_layers": 1, section: {key: own[key] for key in keys[section.partition("_")[0]]}}
    raw = {"kind": "encoder-decoder", "d_model": 32, "vocab_size": 50, "attention": {"n_heads": 4},
           "feed_forward": {"d_ff": 48}, "encoder": {"n_layers": 1}}  # fmt: skip
    layer = {"layer": {"own": {"parts": ["attention", "cross_attention", "feed_forward"]}}}
    message = said(build, raw | {"decoder": half | layer}, "model.toml")
    assert f"no {section} beside cross-attention, which would be of another kind" in message


def test_the_description_that_is_changed_is_good() -> None:
    assert build(described({}), "model.toml").params > 0


def test_all_faults_at_once_in_the_users_own_spelling() -> None:
    changes = {"d_model": 0, "vocab": 3, "attention.n_kv_heads": 3, "feed_forward.d_ff": -1, "norm.form": "batch"}
    assert said(build, described(changes), "model.toml").splitlines() == [
        "model.toml: 5 faults",
        "  vocab is not a key (did you mean vocab_size?)",
        f"  d_model is 0, {SIZE}",
        "  norm.form is 'batch', expected 'rms' or 'layer'",
        f"  feed_forward.d_ff is -1, {SIZE}",
        "  attention.n_kv_heads is 3, expected a divisor of n_heads = 8 (8 is MHA, 1 is MQA)",
    ]


def test_a_fault_that_both_halves_share_is_told_once_and_where_it_stands() -> None:
    raw = described({"kind": "encoder-decoder", "d_model": 0, "decoder": {"n_layers": 0}})
    assert said(build, raw, "model.toml").splitlines() == [
        "model.toml: 2 faults",
        f"  d_model is 0, {SIZE}",
        f"  decoder.n_layers is 0, {SIZE}",
    ]


@pytest.mark.parametrize("name", FAULTS)
def test_messages_are_short_and_plain(name: str) -> None:
    """Lower case (but for letters and quoted values), no full stop, no class name, one line a fault."""
    _, message = FAULTS[name]
    assert re.match(r"[a-z0-9_.]+[ :]", message) and not message.endswith(".")
    assert "Error" not in message and "\n" not in message and len(message) < 320


# The errors themselves.


def test_one_fault_is_one_line_and_equal_ones_are_told_once() -> None:
    fault = Fault("h", 3, "a divisor", "8 is MHA")
    assert str(InputError("file", [fault])) == "file: h is 3, expected a divisor (8 is MHA)"
    assert str(InputError("file", [fault, fault])) == "file: h is 3, expected a divisor (8 is MHA)"
    assert str(InputError("file", [fault, "x is y"])).splitlines()[0] == "file: 2 faults"


def test_exit_codes() -> None:
    codes = [error.exit_code for error in (TxcalcError, InputError, UnknownName, MissingExtra, Refuted)]
    assert codes == [2, 2, 2, 3, 1]
    assert str(MissingExtra("verify", "torch", "verify")) == (
        "verify needs torch, which is not installed (pip install 'txcalc[verify]')"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("x", "'x'"),
        (ABSENT, "missing"),
        ("y" * 100, "'" + "y" * 58 + "…"),
        (10**5000, "a whole number of 16610 bits"),
        ([10**5000], "a value too long to show"),
    ],
    ids=["int", "text", "absent", "long text", "long int", "long int in a list"],
)
def test_a_value_is_always_shown(value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("llama3", ["llama-3-8b", "llama-3.1-8b"]),
        ("LLAMA 3.1", ["llama-3.1-8b"]),
        ("lama-3-8b", ["llama-3-8b", "llama-3.1-8b"]),
        ("", []),
        ("---", []),
        ("xyz", []),
    ],
)
def test_nearest(name: str, near: list[str]) -> None:
    assert nearest(name, ["llama-3-8b", "llama-3.1-8b", "gpt2"]) == near
