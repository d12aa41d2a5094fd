"""What a user reads when something is wrong: lower case, the user's own spelling, what was expected, how to mend it.

Texts are compared whole: a message is part of the interface.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from paths import DATA, stored_rows

import txcalc
from txcalc import InputError, MissingExtra, Refuted, TxcalcError, UnknownName
from txcalc.errors import ABSENT, Fault, nearest, quote
from txcalc.parts.forms import FORMS
from txcalc.sources import build

SIZE = "expected a whole number from 1 to 1,000,000,000"


def refusal(make: Any, *arguments: Any) -> str:
    with pytest.raises(TxcalcError) as error:
        make(*arguments)
    assert type(error.value).exit_code == 2
    return str(error.value)


# Sources.


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
    assert refusal(txcalc.load, path) == f"{path}: {message}"


def test_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.mkdir()
    assert refusal(txcalc.load, str(path)).startswith(f"{path}")


def test_a_file_of_a_presets_name_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpt2").mkdir()
    assert txcalc.load("gpt2").params == 124_439_808
    assert refusal(txcalc.load, "./gpt2").startswith("gpt2")


# Inline descriptions. Each is added to a good one.


def test_inline_without_what_is_needed() -> None:
    assert refusal(txcalc.load, "h=8").splitlines() == [
        "inline description: 3 faults",
        "  D is missing, expected the model width (D=4096)",
        "  L is missing, expected the number of layers (L=32)",
        "  F is missing, expected the feed-forward width (F=14336)",
    ]
    assert refusal(txcalc.load, "D=512 L=2") == (
        "inline description: F is missing, expected the feed-forward width (F=2048 plain is the classic block)"
    )
    assert refusal(txcalc.load, "D=512 L=100001 F=8") == (
        "inline description: L is '100001', expected a whole number from 1 to 100,000"
    )


# Changed keys.


# Descriptions. Each change is made to a good one.

DECODER: dict[str, Any] = {
    "d_model": 512,
    "n_layers": 4,
    "vocab_size": 1000,
    "attention": {"n_heads": 8, "n_kv_heads": 2},
    "feed_forward": {"d_ff": 1376, "gated": True},
}
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    name: (changes, message) for name, changes, message in tomllib.loads((DATA / "faults.toml").read_text())["faults"]
}


def described(changes: dict[str, Any]) -> dict[str, Any]:
    return _changed(DECODER, changes)


def _changed(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in table.items() if changes.get(key) != "drop"}
    for key, value in changes.items():
        if value != "drop":
            kept[key] = _changed(kept.get(key, {}), value) if isinstance(value, dict) else value
    return kept


@pytest.mark.drawn(quick=1000)
@pytest.mark.parametrize("name", FAULTS)
def test_descriptions(name: str) -> None:
    changes, message = FAULTS[name]
    assert refusal(build, described(changes), "model.toml") == f"model.toml: {message}"


PIECE: dict[str, Any] = {"name": "a", "form": "linear", "sizes": [64, 64]}


@pytest.mark.drawn(quick=1000)
@pytest.mark.parametrize(("change", "expected"), stored_rows("refused.json", "pieces"))
def test_pieces(change: dict[str, Any], expected: str) -> None:
    message = refusal(build, described({"around": [PIECE | change]}), "model.toml")
    assert message.startswith("model.toml: around is ") and f"expected {expected}" in message


def test_pieces_that_are_good() -> None:
    """What the strictest checks let pass; twice the same name does not."""
    forms: list[dict[str, Any]] = [{"at": [2, -5, 3]}, {"form": "grouped", "groups": 4}, {"form": "tied"}]
    around = [PIECE | change | {"name": f"piece{i}"} for i, change in enumerate(forms)]
    model = build(described({"around": around}), "model.toml")
    read = model.stacks[0].around
    assert (
        build(described({"around": read}), "model.toml").description == model.description
    )  # what was filled in is accepted
    windows = build(described({"around": [PIECE | {"at": [1, 0, 4, 4]}]}), "model.toml").ledger(tokens=5)
    assert next(entry.flops for entry in windows if entry.path.startswith("around")) == 2 * 64 * 64 * 8  # two of four
    message = refusal(build, described({"around": [PIECE, PIECE]}), "model.toml")
    assert message.endswith("expected pieces of different names: several are 'a'")


def test_pieces_that_read_an_encoder_stand_beside_one() -> None:
    around = [PIECE | {"name": "k", "at": "source"}]
    message = refusal(build, described({"around": around}), "model.toml")
    assert message == (
        "model.toml: around is 'k', expected pieces that do not read an encoder's positions: this stack has no encoder"
    )
    core: dict[str, Any] = {"name": "core", "form": "crossed", "sizes": [2, 4, 4]}
    layer = {"layer": {"one": {"parts": ["pieces"], "pieces": {"leaves": [core]}}}}
    raw = {"kind": "decoder", "d_model": 8, "n_layers": 1, **layer}
    assert "this stack has no encoder" in refusal(build, raw, "x")
    core |= {"form": "linear", "sizes": [8, 8], "bias": False}
    assert "Sum(width=8, sums=0)" in [str(entry.leaf) for entry in build(raw, "x").entries]  # its leaves add themselves


@pytest.mark.parametrize("form", FORMS)
def test_a_piece_reads_what_its_form_says(form: str) -> None:
    names, make, bias, groups = FORMS[form]
    sizes = [8] * len(names)
    plain, biased, grouped = (repr(make(*flags, *sizes)) for flags in ((False, 1), (True, 1), (False, 2)))
    assert (plain != biased) == bias and (plain != grouped) == (groups is not None)


def test_a_key_by_its_old_name() -> None:
    """It is read, in a description and as a change, and written by its new one."""
    raw, parts = described({}), ["attention", "feed_forward"]
    old = build(raw | {"norm": {"abreast": parts}, "beside": 10}, "old", written=True)
    assert old.raw["norm"] == {"parallel": parts} and old.raw["undescribed_tower_params"] == 10
    assert old.stacks == build(raw, "new", changes={"norm.abreast": parts}).stacks
    with pytest.raises(InputError, match=r"norm\.abreast is not a key"):
        build(raw | {"norm": {"abreast": parts, "parallel": "no"}}, "both")


def test_all_faults_at_once_in_the_users_own_spelling() -> None:
    changes: dict[str, Any] = {"d_model": 0, "vocab": 3, "attention": {"n_kv_heads": 3}}
    changes |= {"feed_forward": {"d_ff": -1}, "norm": {"form": "batch"}}
    assert refusal(build, described(changes), "model.toml").splitlines() == [
        "model.toml: 5 faults",
        "  vocab is not a key (did you mean vocab_size?)",
        f"  d_model is 0, {SIZE}",
        "  norm.form is 'batch', expected 'rms' or 'layer'",
        f"  feed_forward.d_ff is -1, {SIZE}",
        "  attention.n_kv_heads is 3, expected a divisor of n_heads = 8 (8 is MHA, 1 is MQA)",
    ]


def test_a_fault_that_both_halves_share_is_told_once_and_where_it_stands() -> None:
    raw = described({"kind": "encoder-decoder", "d_model": 0, "decoder": {"n_layers": 0}})
    assert refusal(build, raw, "model.toml").splitlines() == [
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


def test_a_name_of_any_length_is_cut() -> None:
    assert str(InputError("b" * 5000, ["is wrong"])) == "b" * 399 + "…: is wrong"


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
    assert quote(value) == text


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
