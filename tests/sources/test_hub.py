"""The hub: the real client against a server on this machine, which answers as the hub does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from test_safetensors import TINY, header, llama

import txcalc
from txcalc.errors import InputError
from txcalc.sources import hub
from txcalc.sources.hub import Repository, repository
from txcalc.sources.safetensors import INDEX

pytest.importorskip("huggingface_hub", reason="the hub needs huggingface_hub (pip install '.[test]')")

COMMITS = {"main": "a" * 40, "v2": "b" * 40}
TOKEN = "hf_" + "x" * 30


def file(listed: dict[str, Any]) -> bytes:
    """The beginning of a .safetensors file; what follows is never asked for."""
    data = json.dumps(listed).encode()
    return len(data).to_bytes(8, "little") + data


def files() -> dict[str, dict[str, bytes]]:
    """Repositories, and what is in them."""
    config = json.dumps(TINY).encode()
    tensors = llama()
    names = list(tensors)
    shards = {f"model-0000{k + 1}-of-00002.safetensors": names[k::2] for k in range(2)}
    places = {name: shard for shard, part in shards.items() for name in part}
    edited = tensors | {"extra.weight": ("F32", (2, 2))}
    return {
        "org/tiny": {"config.json": config, "model.safetensors": file(header(tensors)[0])},
        "org/tiny@v2": {"config.json": json.dumps(TINY | {"num_hidden_layers": 4}).encode()},
        "org/sharded": {
            "config.json": config,
            INDEX: json.dumps({"weight_map": places}).encode(),
            **{shard: file(header({name: tensors[name] for name in part})[0]) for shard, part in shards.items()},
        },
        "org/edited": {"config.json": config, "model.safetensors": file(header(edited)[0])},
        "org/broken": {"config.json": config, "model.safetensors": file({"w": {"dtype": "F32"}})},
        "org/pickled": {"config.json": config, "pytorch_model.bin": b"x"},
        "org/empty": {"README.md": b"x"},
        "org/not-json": {"config.json": b"<html>"},
        "org/secret": {"config.json": config},
        "org/down": {"config.json": config},
    }


class Hub(BaseHTTPRequestHandler):
    """The answers of the hub to HEAD and GET of files."""

    repositories: ClassVar[dict[str, dict[str, bytes]]] = files()
    seen: ClassVar[list[tuple[str, str, str]]] = []
    sent: ClassVar[list[int]] = [0]

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        _, org, name, _, revision, *rest = self.path.partition("?")[0].split("/")
        name, path = f"{org}/{name}", "/".join(rest)
        self.seen.append((self.command, path, self.headers.get("Range", "")))
        if name == "org/gated":
            return self.answer(
                403, X_Error_Code="GatedRepo", X_Error_Message="Access to model org/gated is restricted."
            )
        if name == "org/secret" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401, X_Error_Code="RepoNotFound")
        if name == "org/down":
            return self.answer(418)
        if name in ANSWERS:
            return ANSWERS[name](self)
        revision = next((r for r, commit in COMMITS.items() if commit == revision), revision)
        contents = self.repositories.get(name if revision == "main" else f"{name}@{revision}")
        if name not in self.repositories:
            return self.answer(404, X_Error_Code="RepoNotFound")
        if contents is None:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        if path not in contents:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMITS[revision])
        data, status = contents[path], 200
        whole = {"ETag": f'"{sha256(data).hexdigest()}"', "X_Repo_Commit": COMMITS[revision], "Accept_Ranges": "bytes"}
        if self.headers.get("Range"):
            start, end = (int(n) for n in self.headers["Range"].removeprefix("bytes=").split("-"))
            data, status = data[start : end + 1], 206
        return self.answer(status, data, **whole)

    do_HEAD = do_GET


CONFIG = json.dumps(TINY).encode()
OUTSIDE = "../../../../outside"  # of the client's cache, within a test's folder


def as_the_hub(hub: Hub, **headers: str) -> None:
    hub.answer(200, CONFIG, **{"ETag": '"' + "e" * 64 + '"', "X_Repo_Commit": "a" * 40, **headers})


def huge(hub: Hub) -> None:
    """3 GiB, if one asks how much it is."""
    assert hub.command == "HEAD", "a file that is too large was asked for"
    as_the_hub(hub, **{"Content-Length": str(3 << 30)})


def endless(hub: Hub, encoding: str = "identity") -> None:
    """A small file, if one asks how large it is; and then it never ends."""
    if hub.command == "HEAD":
        return as_the_hub(hub)
    hub.send_response(200)
    hub.send_header("Connection", "close")
    hub.send_header("Content-Encoding", encoding)
    hub.end_headers()
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b" " * (1 << 20)
    with contextlib.suppress(OSError):
        while True:
            hub.wfile.write(block if encoding == "identity" else packed.compress(block))
            hub.sent[0] += 1
    return None


def hanging(hub: Hub) -> None:
    time.sleep(5)


def dripping(hub: Hub) -> None:
    """A byte at a time, none of them late."""
    with contextlib.suppress(OSError):
        for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1000:
            hub.wfile.write(bytes([byte]))
            time.sleep(0.05)


def tensors(header: Callable[[], bytes], length: int | None = None) -> Callable[[Hub], None]:
    """A repository with a good config.json, and a header that holds this, made when it is first asked for."""
    header_bytes = cache(header)

    def answer(hub: Hub) -> None:
        if hub.path.endswith("config.json"):
            return as_the_hub(hub)
        data = (len(header_bytes()) if length is None else length).to_bytes(8, "little") + header_bytes()
        if "Range" in hub.headers:
            start, end = (int(n) for n in hub.headers["Range"].removeprefix("bytes=").split("-"))
            data = data[start : end + 1]
        return hub.answer(206, data, ETag='"' + "e" * 64 + '"', X_Repo_Commit="a" * 40)

    return answer


HEADERS: dict[str, tuple[Callable[[Hub], None], str]] = {
    "evil/long": (tensors(lambda: b"{}", 1 << 60), "has 1,152,921,504,606,846,976 bytes, more than 16,777,216"),
    "evil/short": (tensors(lambda: b"{}", 9), "it ends inside its header"),
    "evil/deep": (tensors(lambda: b'{"a":' + b"[" * 400_000 + b"]" * 400_000 + b"}"), "is not valid"),
    "evil/lists": (
        tensors(lambda: b'{"__metadata__":[' + b"[]," * 5_000_000 + b"[]]}"),
        "lists more than 262,144 tensors",
    ),
    "evil/tensors": (
        tensors(lambda: b"{%s}" % b",".join(b'"%d":{}' % i for i in range(300_000))),
        "lists more than 262,144",
    ),
}
HOSTILE: dict[str, Callable[[Hub], None]] = {
    "evil/etag": lambda hub: as_the_hub(hub, ETag=f'"{OUTSIDE}"'),
    "evil/linked": lambda hub: as_the_hub(hub, X_Linked_Etag=f'"{OUTSIDE}"'),
    "evil/commit": lambda hub: as_the_hub(hub, X_Repo_Commit=OUTSIDE),
    "evil/later": lambda hub: as_the_hub(hub, ETag=f'"{OUTSIDE if hub.command == "GET" else "e" * 64}"'),
    "evil/huge": huge,
    "evil/endless": endless,
    "evil/packed": lambda hub: endless(hub, "gzip"),
    "evil/hanging": hanging,
    "evil/dripping": dripping,
}
ANSWERS = HOSTILE | {name: answer for name, (answer, _) in HEADERS.items()}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


CODE = """
import json, os, resource, sys, txcalc, txcalc.sources.hub
txcalc.sources.hub.SECONDS = float(os.environ.get("SECONDS", 10))
answers = []
for source, weights in json.loads(sys.argv[1]):
    try:
        model = txcalc.load(source, weights=weights)
        check = model.checkpoint and [model.checkpoint.agrees, model.checkpoint.stored.files]
        answers.append([model.name, model.params, check, model.notes])
    except txcalc.TxcalcError as error:
        answers.append([str(error), error.exit_code])
try:  # of this process alone: ru_maxrss has what the one that started it held
    most = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
except (OSError, IndexError):
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert most < 1 << 20, "over 1 GiB"
print(json.dumps(answers))
"""


def ask(endpoint: str, home: Path, *sources: tuple[str, bool], **variables: str) -> list[Any]:
    """What a fresh process answers: the client reads its environment when it is imported."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "XDG_"))}
    environment |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
    }
    environment |= {"NO_PROXY": "127.0.0.1", **variables}
    command = [sys.executable, "-c", CODE, json.dumps(sources)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def params(tmp_path_factory: pytest.TempPathFactory) -> int:
    path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(TINY))
    return txcalc.load(path).params


@pytest.mark.slow
def test_a_config_is_fetched_once_and_then_read_from_the_cache(endpoint: str, tmp_path: Path, params: int) -> None:
    (answer, second) = ask(endpoint, tmp_path, ("hf:org/tiny", False), ("hf:org/tiny@v2", False))
    assert answer == ["tiny", params, None, []]
    assert second[1] > params
    gone = "http://127.0.0.1:9"  # nobody listens there
    assert ask(gone, tmp_path, ("hf:org/tiny", False))[0] == answer
    assert ask(endpoint, tmp_path, ("hf:org/tiny", False), HF_HUB_OFFLINE="1")[0] == answer


@pytest.mark.slow
def test_headers_are_fetched_by_range_and_checked(endpoint: str, tmp_path: Path, params: int) -> None:
    Hub.seen.clear()
    names = ("tiny", "sharded", "edited", "broken", "pickled")
    answers = ask(endpoint, tmp_path, *((f"hf:org/{name}", True) for name in names))
    assert answers[0] == ["tiny", params, [True, 1], []]
    assert answers[1] == ["sharded", params, [True, 2], []]
    assert answers[2][:3] == ["edited", params, [False, 1]]
    assert "1 of its tensors are not explained" in answers[2][3][0]
    assert answers[3] == [
        "hf:org/broken model.safetensors: 'w'.shape is missing, expected a list of whole numbers from 0",
        2,
    ]
    assert answers[4] == [f"hf:org/pickled: has no model.safetensors and no {INDEX}", 2]
    bodies = [(path, span) for method, path, span in Hub.seen if method == "GET" and path.endswith(".safetensors")]
    assert len(bodies) == 5
    assert all(span == "bytes=0-100000" for _, span in bodies)


@pytest.mark.slow
def test_each_failure_is_one_line(endpoint: str, tmp_path: Path) -> None:
    cases = {
        "hf:org/gated": "hf:org/gated: is gated: ask for access on its page, then hf auth login, or set HF_TOKEN",
        "hf:org/none": "hf:org/none: is not on the hub, or is private (hf auth login, or set HF_TOKEN)",
        "hf:org/secret": "hf:org/secret: is not on the hub, or is private (hf auth login, or set HF_TOKEN)",
        "hf:org/tiny@v9": "hf:org/tiny@v9: has no revision v9",
        "hf:org/empty": "hf:org/empty: has no config.json",
        "hf:org/down": "hf:org/down: config.json cannot be fetched: the hub answered 418",
        "hf:org/not-json": "hf:org/not-json: is not valid JSON: Expecting value: line 1 column 1 (char 0)",
        "hf:a--b/c": "hf:a--b/c: is not a repository's name, expected org/name",
    }
    answers = ask(endpoint, tmp_path, *((source, False) for source in cases))
    assert {source: answer for source, answer in zip(cases, answers, strict=True)} == {
        source: [message, 2] for source, message in cases.items()
    }


@pytest.mark.slow
def test_a_token_is_sent(endpoint: str, tmp_path: Path, params: int) -> None:
    assert ask(endpoint, tmp_path, ("hf:org/secret", False), HF_TOKEN=TOKEN) == [["secret", params, None, []]]


@pytest.mark.slow
def test_without_a_connection_and_not_cached_it_fails_at_once(tmp_path: Path) -> None:
    expected = "hf:org/tiny: config.json is not in the cache, and the hub cannot be reached"
    ((message, code),) = ask("http://127.0.0.1:9", tmp_path, ("hf:org/tiny", False))
    assert (message, code) == (f"{expected} (ConnectError)", 2)
    ((message, code),) = ask("http://127.0.0.1:9", tmp_path, ("hf:org/tiny", False), HF_HUB_OFFLINE="1")
    assert (message, code) == (f"{expected}, or is switched off by HF_HUB_OFFLINE", 2)


def test_without_the_extra_the_message_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(txcalc.MissingExtra, match=r"txcalc\[hub\]"):
        txcalc.load("hf:org/tiny")


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("hf:org/name", Repository("org/name", None)),
        ("hf:gpt2", Repository("gpt2", None)),
        ("hf:org/a.b-c_d@refs/pr/3", Repository("org/a.b-c_d", "refs/pr/3")),
    ],
)
def test_a_source_names_a_repository_and_a_revision(source: str, place: Repository) -> None:
    assert repository(source) == place
    assert str(place) == source


@pytest.mark.parametrize("source", ["hf:", "hf:a/b/c", "hf:a b", "hf:org/name@", "hf:org/../x/y", "hf:org/name@a b"])
def test_another_text_is_refused(source: str) -> None:
    with pytest.raises(InputError, match="expected hf:org/name"):
        txcalc.load(source)


@pytest.mark.slow
def test_a_hostile_endpoint_writes_nothing_and_is_left_in_time(endpoint: str, tmp_path: Path, params: int) -> None:
    home = tmp_path / "a" / "home"
    Hub.sent[0] = 0
    names = sorted(HOSTILE)
    started = time.monotonic()
    answers = ask(endpoint, home, *((f"hf:{name}", False) for name in names), SECONDS="2")
    assert time.monotonic() - started < 30
    for name, answer in zip(names, answers, strict=True):
        assert answer[-1] == 2 and answer[0].startswith(f"hf:{name}: config.json "), answer
    messages = dict(zip(names, (answer[0] for answer in answers), strict=True))
    assert "etag = '\"../../../../outside\"', which is not a plain name" in messages["evil/etag"]
    assert "x-repo-commit = '../../../../outside', which is not a plain name" in messages["evil/commit"]
    assert "has 3,221,225,472 bytes, more than 16,777,216" in messages["evil/huge"]
    assert "sends more than 16,777,216 bytes" in messages["evil/endless"]
    for name in ("evil/hanging", "evil/dripping"):
        assert "the endpoint took over 2 s" in messages[name] or "cannot be reached" in messages[name]
    assert Hub.sent[0] < 2000
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert not list(tmp_path.rglob("*outside*")) and not [
        path for path in home.rglob("*") if path.stat().st_size > 1 << 29
    ]


class SyncByteStream:
    """As the client's: `sent` in two chunks."""

    sent = b""

    def __iter__(self) -> Iterator[bytes]:
        yield from (self.sent[:3], self.sent[3:])


@pytest.mark.parametrize("length", [5, 6])
def test_an_answer_may_be_as_long_as_the_limit(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txcalc.sources.hub.huggingface.MAX_BYTES", 5)
    monkeypatch.setattr(hub, "request_state", SimpleNamespace(since=True))
    monkeypatch.setattr(SyncByteStream, "sent", b"123456"[:length])
    response = SimpleNamespace(headers={}, stream=SyncByteStream())
    hub.guard(response)
    with contextlib.nullcontext() if length == 5 else pytest.raises(hub.Hostile, match="sends more than 5 bytes"):
        assert b"".join(response.stream) == SyncByteStream.sent


@pytest.mark.slow
def test_a_hostile_header_is_refused_before_much_is_made_of_it(endpoint: str, tmp_path: Path) -> None:
    answers = ask(endpoint, tmp_path, *((f"hf:{name}", True) for name in HEADERS))
    for (name, (_, message)), answer in zip(HEADERS.items(), answers, strict=True):
        assert answer[-1] == 2 and message in answer[0] and answer[0].startswith(f"hf:{name}"), answer


@pytest.mark.parametrize("source", ["@/outside", "@../../outside", "@a//b", "@a/./b", "@a/", "@.", "@..", "@"])
def test_a_revision_stays_where_it_belongs(source: str, endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="source is 'hf:org/tiny"):
        txcalc.load("hf:org/tiny" + source)
    for name in ("hf:../tiny", "hf:org/..", "hf:./tiny", "hf:/org/tiny", "hf:org/"):
        with pytest.raises(InputError, match="source is 'hf:"):
            txcalc.load(name)
