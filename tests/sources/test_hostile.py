"""Input that means harm: an answer or one line within ten seconds and a gibibyte, nothing run, nothing left waiting."""

from __future__ import annotations

import csv
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from paths import HF
from test_gguf import small
from test_safetensors import folder, llama
from tiny import QWEN3

from txcalc import load
from txcalc.errors import InputError
from txcalc.planning.formats.modules import Modules
from txcalc.planning.serving.traffic import arrivals, lengths
from txcalc.questions.measurements import read as measured

TWO_KINDS = """
d_model = 64
n_layers = 3
vocab_size = 100
pattern = ["2*a", "b"]
attention.n_heads = 4
feed_forward.d_ff = 96
layer.a.attention.window = 16
"""


@pytest.mark.parametrize(
    ("limit", "least"),
    [
        ("presets.MAX_BYTES", len(TWO_KINDS) + 29), ("presets.MAX_DOTS", 3), ("resolve.MAX_KINDS", 2),
        ("resolve.MAX_LAYERS", 3), ("expressions.LONGEST", 3), ("expressions.MOST_SIZE", 8),
        ("expressions.MOST_BITS", 8), ("safetensors.MAX_HEADER", 3321), ("safetensors.MAX_TENSORS", 15),
        ("safetensors.MAX_FILES", 2), ("gguf.MAX_TENSORS", 21),
    ],
)  # fmt: skip
def test_a_limit_is_the_most_that_is_read(limit: str, least: int, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "two.toml").write_text(TWO_KINDS + "layer.b.attention.window = 8\n")
    places = {
        "safetensors": folder(tmp_path / "s", llama(), 2),
        "gguf": small(tmp_path),
        "expressions": "D=8*8 L=2 F=9 h=4",
    }
    module, name = limit.split(".")
    source = str(places.get(module, tmp_path / "two.toml"))
    monkeypatch.setattr(import_module(f"txcalc.sources.{module}"), name, least)
    load(source)
    monkeypatch.setattr(import_module(f"txcalc.sources.{module}"), name, least - 1)
    with pytest.raises(InputError, match=rf"(than|most) {least - 1:,}\b|too (deep|large)"):
        load(source)


SECONDS, MEMORY = 10.0, 1 << 30  # of a processor, and at most resident
RUN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from txcalc.cli import entry
sys.argv = ["txcalc", *sys.argv[1:]]
try:
    entry()
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Of this process alone where the system says so: ru_maxrss has what the one that started it held.
    try:
        most = open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]
    except (OSError, IndexError):
        most = used.ru_maxrss
    print(f"\\n{used.ru_utime + used.ru_stime} {int(most) * 1024}", file=sys.stderr)
"""


def run(*arguments: str, folder: Path | None = None, **environment: str) -> tuple[int, str, str]:
    """Exit code, output and messages of the command line, held to time and memory."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        timeout=60,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )
    err, _, memory = done.stderr.decode().rstrip().rpartition("\n")
    seconds, most = memory.split()
    assert float(seconds) < SECONDS, f"{seconds} s"
    assert int(most) < MEMORY, f"{int(most):,} bytes"
    assert "Traceback" not in err
    return done.returncode, done.stdout.decode(), err


def config(**changes: object) -> bytes:
    return json.dumps(QWEN3 | changes).encode()


def hashed() -> bytes:
    """Qwen4-Exp with n-grams in as many layers, by as many hashes and of as many rows as are read."""
    small = json.loads((HF / "small.json").read_text())["qwen4_exp_text"]["config"]
    layers = {"num_hidden_layers": 128, "ple_layer_ids": [4 * i + 1 for i in range(32)], "ple_embed_dim": 256}
    return json.dumps(small | layers | {"heads_per_ngram": 128, "ngram_vocab_size_base": 10**9}).encode()


def kinds(layers: int) -> bytes:
    """OpenELM of which no layer is like another."""
    heads = [*range(8, 8 + layers)]
    sizes = {"model_dim": 64, "head_dim": 64, "num_transformer_layers": layers, "vocab_size": 100}
    lists = {"num_query_heads": heads, "num_kv_heads": heads, "ffn_multipliers": [1.0] * layers}
    return json.dumps(sizes | lists).encode()[1:-1]


def repeating(*names: str) -> dict[str, object]:
    """What a quantiser says that leaves out modules by these names."""
    form = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": form}}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": [*names],
        "config_groups": groups,
    }


class Bomb:
    """What runs when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.marker),)


ONES = b"1, " * 2999 + b"1"
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "unknown.json": (lambda: config(**{f"key_{i}": 7 for i in range(900_000)}), "keys, expected at most 10,000"),
    "passed.json": (lambda: config(**{f"key_{i}": False for i in range(9_000)}), "and 8,992 more"),
    "deep.json": (
        lambda: b'{"model_type": "qwen3", "a": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
        "not valid JSON",
    ),
    "tables.json": (lambda: b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "not valid JSON"),
    "large.json": (lambda: b" " * (17 << 20), "is larger than 16,777,216 bytes"),
    "digits.json": (lambda: config()[:-1] + b', "hidden_size": ' + b"9" * 5_000_000 + b"}", "not valid JSON"),
    "twice.json": (lambda: config()[:-1] + b', "hidden_size": 65}', "'hidden_size' occurs twice"),
    "null.json": (lambda: config(hidden_size=None), "hidden_size is null, expected"),
    "nan.json": (lambda: config(rms_norm_eps=float("nan")), "rms_norm_eps is nan, expected a finite number"),
    "twin.json": (
        lambda: config(rope_theta=float("nan"), rotary_emb_base=float("nan")),
        "is nan, expected a finite number",
    ),
    "layers.json": (lambda: config(num_hidden_layers=10**9), "num_hidden_layers is 1,000,000,000"),
    "types.json": (lambda: config(layer_types=["full_attention"] * 500_000), "layer_types"),
    "utf16.json": (lambda: config(hidden_size=None).decode().encode("utf-16"), "hidden_size is null"),
    "repeats.json": (lambda: config(quantization_config=repeating("re:(.*)*(.*)*(.*)*x$")), ""),
    "everywhere.json": (
        lambda: config(num_hidden_layers=5000, quantization_config=repeating(*["re:.*.*.*7!"] * 8)),
        "",
    ),
    "parens.json": (lambda: config(quantization_config=repeating("re:" + "(" * 9000 + ")" * 9000)), ""),
    "ngrams.json": (hashed, ""),
    "stages.json": (lambda: b'{"model_type": "swin", "depths": [%s], "num_heads": [%s]}' % (ONES, ONES), "depths is"),
    "kinds.json": (lambda: b'{"model_type": "openelm", %s}' % kinds(2000), "kinds of layers, expected at most 1,000"),
    "dotted.toml": (lambda: b"a." * 500_000 + b"a = 1", "nested too deep"),
    "table.toml": (lambda: b"[" + b"a." * 500_000 + b"a]", "nested too deep"),
    "array.toml": (lambda: b"a = " + b"[" * 500_000, "not valid TOML"),
    "many.toml": (lambda: b"".join(b"[t%d]\n" % i for i in range(90_000)), "further keys"),
    "zeros.safetensors": (lambda: b"\0" * 1_000_000, "not valid"),
    "long.safetensors": (lambda: (1 << 60).to_bytes(8, "little") + b"{}", "truncated"),
    "zeros.gguf": (lambda: b"\0" * 1_000_000, ""),
    "tensors.gguf": (lambda: b"GGUF" + (3).to_bytes(4, "little") + (1 << 60).to_bytes(8, "little") * 2, ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_answered_or_refused_in_time(name: str, tmp_path: Path) -> None:
    data, words = FILES[name]
    (tmp_path / name).write_bytes(data())
    code, _, err = run("show", str(tmp_path / name))
    assert code in (0, 2) and words in err
    assert len(err) < 20_000


@pytest.mark.parametrize(
    "name", ["(a+)+$", "(.*)*x", "a?" * 30, ".*.*.*.*zz", "x" * 5000, r"(?x)([\w.]+) +!", r"(?:.|\w)" * 28, r"(\d+)+x"]
)
def test_expressions_that_may_run_for_ever_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="too many repetitions"):
        Modules([f"re:{name}"])
    with pytest.raises(InputError, match="expected a regular expression"):
        Modules(["re:a{99999999999999}"])
    real = [r".*?mlp\.(gate|up|gate_up|down)_proj.*", r"model\.layers\.(?:[0-9]|[12]\d)\..*", ".*self_attn.*"]
    real.append(r".*\.layers\.\d+\.mlp\.experts\.[0-9]+\.(gate|up|down)_proj")
    assert len(Modules([f"re:{pattern}" for pattern in real * 30]).patterns) == 120


def test_what_a_message_lists_is_capped(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(config(**{f"key_{i}": 7 for i in range(1_000)}))
    code, _, err = run("show", str(tmp_path))
    assert code == 2 and "980 further keys are not understood" in err and len(err.splitlines()) < 50


@pytest.mark.slow
def test_nothing_is_unpickled_or_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    data = pickle.dumps(Bomb(marker))
    code = f"import os; os.mkdir({str(marker)!r})\n".encode()
    for name in ("pytorch_model.bin", "config.json", "model.safetensors", "weights.gguf", "preset.toml"):
        (tmp_path / name).write_bytes(data)
        run("show", str(tmp_path / name))
    for name in ("configuration_evil.py", "modeling_evil.py"):
        (tmp_path / name).write_bytes(code)
    for part in ("config.json", "model.safetensors"):
        (tmp_path / part).unlink()
    auto_map = {"AutoConfig": "configuration_evil.Config", "AutoModelForCausalLM": "modeling_evil.Model"}
    (tmp_path / "config.json").write_bytes(config(auto_map=auto_map, model_type="evil"))
    assert run("show", str(tmp_path / "config.json"))[0] == 2
    assert not marker.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.drawn(quick=1)
@pytest.mark.parametrize("name", ["config.json", "preset.toml", "model.safetensors", "model.gguf"])
def test_a_pipe_without_a_writer_is_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    code, _, err = run("show", str(tmp_path / name))
    assert code == 2 and ("is empty" in err or "not a regular file" in err or "config.json" in err)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_with_a_writer_is_read(tmp_path: Path) -> None:
    from txcalc.sources import files

    read, write = os.pipe()

    def fill() -> None:
        os.write(write, b"x" * 70_000)
        os.close(write)

    threading.Thread(target=fill, daemon=True).start()
    assert len(files.read(Path(f"/dev/fd/{read}"), 1 << 20)) == 70_000
    os.close(read)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless file here")
@pytest.mark.parametrize("read", [lambda path: arrivals(str(path)), lambda path: lengths(f"@{path}", "x"), measured])
def test_what_never_ends_and_what_waits_is_left(read: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is larger than 16,777,216 bytes"):
        read(Path("/dev/zero"))
    waiting, typed = os.openpty()
    with pytest.raises(InputError, match="waits for input"):
        read(Path(os.ttyname(typed)))
    for descriptor in (waiting, typed):
        os.close(descriptor)
    (tmp_path / "deep").write_bytes(b"[" * 200_000)
    with pytest.raises(InputError):
        read(tmp_path / "deep")


def test_an_empty_name_is_not_the_folder_one_is_in(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(config())
    code, _, err = run("show", "", folder=tmp_path)
    assert code == 2 and err == "txcalc: is empty, expected a model (txcalc presets lists the presets)\n"


@pytest.mark.slow
def test_output_that_holds_plain_letters_only() -> None:
    code, table, _ = run("show", "gpt2", PYTHONIOENCODING="ascii")
    assert code == 0 and table.isascii() and "MHA 12/12 heads of 64" in table
    code, text, _ = run("show", "gpt2", "--json", PYTHONIOENCODING="ascii")
    assert code == 0 and text.isascii()
    assert json.loads(text) == json.loads(run("show", "gpt2", "--json", PYTHONIOENCODING="utf-8")[1])


# What a user's folders, terminals, names and signals may be.


def kept(folder: Path) -> Path:
    """Where the user's own theorems are."""
    (folder / "txcalc").mkdir(parents=True, exist_ok=True)
    return folder / "txcalc" / "theorems.json"


@pytest.mark.drawn(quick=2)
@pytest.mark.parametrize("what", ["cut off", "pipe", "endless", "folder", "not UTF-8", "deep", "large"])
def test_theorems_of_the_user_s_that_cannot_be_read_are_a_note(what: str, tmp_path: Path) -> None:
    path = kept(tmp_path)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "endless":
        path.symlink_to("/dev/zero")
    elif what == "folder":
        path.mkdir()
    elif what == "large":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        texts = {"cut off": b'{"schema": "txcalc/theorems/2", "theo', "not UTF-8": b"\xff\xfe", "deep": b"[" * 200_000}
        path.write_bytes(texts[what])
    code, table, err = run("show", "gpt2", XDG_DATA_HOME=str(tmp_path))
    assert code == 0 and "your own theorems are not used" in err and "parameters proved" in table


def test_a_file_is_written_beside_and_renamed(tmp_path: Path) -> None:
    """A reader sees the old or the new one; its permissions stay, a link stays one, and nothing is left beside it."""
    from txcalc.sources import files

    path, link = tmp_path / "a.txt", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with path.open() as old:
        files.write(link, "n\u00e9w", True)
        assert old.read() == "old"
    assert path.read_bytes() == "n\u00e9w".encode()
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(InputError, match="cannot be written"):
        files.write(path, "\ud800", True)
    assert path.read_bytes() == "n\u00e9w".encode() and sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "link"]
    files.write(Path("/dev/null"), "x", True)


def test_theorems_are_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from txcalc.evidence.store import Theorem, write\n"
        "for i in range(8): write(Path(sys.argv[1]), {f'{sys.argv[2]}{i}': Theorem('x', {}, '', ())}, {})"
    )
    path = kept(tmp_path)
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(json.loads(path.read_text("utf-8"))["theorems"]) == 24


@pytest.mark.slow
def test_a_locale_without_utf_8(tmp_path: Path) -> None:
    plain: Any = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code, table, err = run("show", "gpt2", XDG_DATA_HOME=str(tmp_path), **plain)
    assert code == 0 and table.isascii() and not err
    assert run("report", "gpt2", "--out", str(tmp_path / "page.html"), **plain)[0] == 0


@pytest.mark.slow
def test_a_path_with_an_equals_sign_and_a_space_is_a_path_if_it_exists(tmp_path: Path) -> None:
    (tmp_path / "D=64 L=2 run.json").write_bytes(config(hidden_size=48))
    (tmp_path / "D=64 L=2").mkdir()
    (tmp_path / "D=64 L=2" / "config.json").write_bytes(config(hidden_size=48))
    for name in ("D=64 L=2 run.json", "D=64 L=2"):
        assert "D = 48" in run("show", name, folder=tmp_path)[1]
    assert "D = 64" in run("show", "D=64 L=2 h=4 F=128 V=50", folder=tmp_path)[1]


@pytest.mark.slow
def test_names_are_text_on_a_terminal_in_a_spreadsheet_and_in_markdown(tmp_path: Path) -> None:
    name = "=1+1|<img src=x>\x1b[31m\u202e.toml"
    (tmp_path / name).write_text("d_model = 8\nn_layers = 1\nattention.n_heads = 2\nfeed_forward.d_ff = 8\n")
    for arguments in (("show", f"./{name}"), ("compare", f"./{name}", "gpt2"), ("show", f"./{name}x")):
        for form in ("table", "csv", "markdown"):
            _, out, err = run(*arguments, "--format", form, folder=tmp_path, FORCE_COLOR="")
            if form == "table":
                assert not {"\x1b", "\u202e"} & {*out, *err}
            if form == "csv":
                cells = [cell for row in csv.reader(out.splitlines()) for cell in row]
                assert not [
                    cell for cell in cells if re.match("[=+@-]", cell) and not re.fullmatch(r"-[\d.e+-]+", cell)
                ]
            if form == "markdown":
                assert "<img" not in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_workers_within_a_second(number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom txcalc.sweeps.processes import processes\n"
        "if __name__ == '__main__':\n"
        "    with processes(2) as pool:\n"
        "        tasks = [pool.submit(time.sleep, 60) for _ in range(2)]\n"
        "        while len(pool._processes) < 2: time.sleep(0.05)\n"
        "        time.sleep(0.5); print(*pool._processes, flush=True)\n"
        "        tasks[0].result()\n"
    )
    (tmp_path / "run.py").write_text(code)
    command = [sys.executable, str(tmp_path / "run.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        began = time.monotonic()
        parent.send_signal(number)
        parent.wait(10)
        assert time.monotonic() - began < 1.5 and parent.returncode in (-number, 128 + number, 1)
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
