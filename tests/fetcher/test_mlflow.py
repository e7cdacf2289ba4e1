"""mlflow-artifacts:///: a folder behind the proxy of a tracking server, listed and downloaded within bounds."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from testkit import ROOT
from tests.fetcher.site import contents, run

API = "/api/2.0/mlflow-artifacts/artifacts"
TINY = contents(ROOT / "examples" / "models" / "tiny-v1")
URI = "mlflow-artifacts:///1/r3/artifacts/model"


@dataclass
class Artifacts:
    """A tracking server's proxy of artifacts; `files` by their path."""

    files: dict[str, bytes] = field(default_factory=dict)
    listed: dict[str, bytes] = field(default_factory=dict)  # answers in place of the right lists, by folder
    status: int = 200  # of lists
    needs: str = ""  # the header Authorization that it wants
    headers: list[str] = field(default_factory=list)
    gets: list[str] = field(default_factory=list)
    port: int = 0

    def answer(self, target: str) -> tuple[int, bytes]:
        parts = urlsplit(target)
        if self.needs and self.headers[-1] != self.needs:
            return 401, b"secret"
        if parts.path == API:
            return self.status, self._list(parse_qs(parts.query)["path"][0])
        name = unquote(parts.path.removeprefix(f"{API}/"))
        self.gets.append(name)
        return (200, self.files[name]) if name in self.files else (404, b"")

    def _list(self, folder: str) -> bytes:
        if folder in self.listed:
            return self.listed[folder]
        below = {
            name.removeprefix(f"{folder}/"): body for name, body in self.files.items() if name.startswith(f"{folder}/")
        }
        found = [
            {"path": name, "is_dir": False, "file_size": len(body)} for name, body in below.items() if "/" not in name
        ]
        found += [
            {"path": name, "is_dir": True} for name in sorted({name.split("/")[0] for name in below if "/" in name})
        ]
        return json.dumps({"files": found} if found else {}).encode()


@contextmanager
def serving(artifacts: Artifacts) -> Iterator[Artifacts]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            artifacts.headers.append(self.headers.get("Authorization", ""))
            status, body = artifacts.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    artifacts.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield artifacts
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fetch(of: Artifacts, dest: Path, *flags: str, uri: str = URI, **variables: str) -> tuple[int, str, str]:
    endpoint = ("--endpoint", f"http://127.0.0.1:{of.port}")
    return run(dest, uri, *endpoint, "--allow-host", "127.0.0.1", *flags, **variables)


def offered(**more: bytes) -> Artifacts:
    files = {f"1/r3/artifacts/model/{name}": body for name, body in TINY.items()}
    return Artifacts({**files, **more, "1/r3/artifacts/other.bin": b"no"})


def test_a_folder_is_fetched_with_its_digest_and_what_no_engine_reads_stays_behind(tmp_path: Path) -> None:
    artifacts = offered(**{"1/r3/artifacts/model/sub/é x.json": b"{}", "1/r3/artifacts/model/MLmodel": b"a: b"})
    header = "Basic " + base64.b64encode(b"ann:word").decode()
    artifacts.needs = header
    secret = {"MLFLOW_TRACKING_USERNAME": "ann", "MLFLOW_TRACKING_PASSWORD": "word"}
    with serving(artifacts) as of:
        code, words, log = fetch(of, tmp_path / "models", **secret)
        assert code == 0, words + log
        digest = json.loads(words)["weights"]["digest"]
        kept = {
            path.relative_to(tmp_path / "models" / "model").as_posix()
            for path in (tmp_path / "models" / "model").rglob("*")
            if path.is_file()
        }
        assert "sub/é x.json" in kept and "MLmodel" not in kept and "config.json" in kept
        assert not any(name.endswith(("MLmodel", "other.bin")) for name in of.gets)
        code, words, _ = fetch(of, tmp_path / "again", "--revision", digest, **secret)
        assert code == 0
        code, words, _ = fetch(of, tmp_path / "wrong", "--revision", "sha256:" + "0" * 64, **secret)
        assert code and "spec.model.revision is sha256:000" in words
    assert set(of.headers) == {header} and "word" not in words + log


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("mlflow-artifacts:///", "names no folder"),
        ("mlflow-artifacts://other.example.com/1/model", "names no folder"),
        ("mlflow-artifacts:///1/../2", "names no folder"),
        ("mlflow-artifacts:///1//2", "names no folder"),
        ("mlflow-artifacts:///1/none", "There is no file in"),
    ],
)
def test_a_uri_that_names_no_folder_is_refused(tmp_path: Path, uri: str, sentence: str) -> None:
    with serving(offered()) as of:
        code, words, _ = fetch(of, tmp_path / "models", uri=uri)
    assert code and sentence in words and not of.gets


ROOT_FOLDER = "1/r3/artifacts/model"
HOSTILE = {
    "no JSON": (b"<html>secret", "is no list of files"),
    "deep": (b"[" * 100_000, "is no list of files"),
    "another list": (json.dumps({"files": [7]}).encode(), "is no list of files"),
    "a name that leads out": (
        json.dumps({"files": [{"path": "..", "is_dir": True}]}).encode(),
        "leads out of the model",
    ),
    "a folder in itself": (json.dumps({"files": [{"path": "model", "is_dir": True}]}).encode(), "too long"),
    "too many files": (
        json.dumps({"files": [{"path": f"{n}.json", "file_size": 1} for n in range(10_001)]}).encode(),
        "10001 files",
    ),
    "too large": (json.dumps({"files": [{"path": "a.safetensors", "file_size": 1 << 60}]}).encode(), "the limit is"),
    "a text for a size": (
        json.dumps({"files": [{"path": "a.json", "file_size": "x"}]}).encode(),
        "is no list of files",
    ),
    "no end of a size": (b'{"files": [{"path": "a.json", "file_size": 1e999}]}', "is no list of files"),
    "many folders": (
        json.dumps({"files": [{"path": f"{n}", "is_dir": True} for n in range(100_000)]}).encode(),
        "more than 1000 folders",
    ),
    "a pickle alone": (json.dumps({"files": [{"path": "model.pkl", "file_size": 1}]}).encode(), "only pickled weights"),
    "a smaller file": (json.dumps({"files": [{"path": "config.json", "file_size": 1}]}).encode(), "config.json"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_list_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    body, sentence = HOSTILE[kind]
    artifacts = offered()
    artifacts.listed = {ROOT_FOLDER: body}
    if "itself" in kind:
        artifacts._list = lambda folder: body  # type: ignore[method-assign]
    with serving(artifacts) as of:
        code, words, _ = fetch(of, tmp_path / "models")
    assert code and sentence in words and "secret" not in words, words
    assert "folders" not in kind or len(artifacts.headers) == 1, "what is too many is not listed"


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(401, "MLFLOW_TRACKING_TOKEN"), (403, "may not read it"), (404, "no such folder")],
)
def test_a_refusal_has_a_remedy(tmp_path: Path, status: int, sentence: str) -> None:
    artifacts = offered()
    artifacts.status = status
    with serving(artifacts) as of:
        code, words, _ = fetch(of, tmp_path / "models")
    assert code and sentence in words, words


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"MLFLOW_TRACKING_TOKEN": "a b"}, "is no token"),
        ({"MLFLOW_TRACKING_USERNAME": "ann"}, "needs both"),
        ({"MLFLOW_TRACKING_USERNAME": "a:b", "MLFLOW_TRACKING_PASSWORD": "c"}, "needs both"),
    ],
)
def test_credentials_that_no_header_holds_are_not_sent(
    tmp_path: Path, variables: dict[str, str], sentence: str
) -> None:
    with serving(offered()) as of:
        code, words, _ = fetch(of, tmp_path / "models", **variables)
    assert code and sentence in words and not of.headers


def test_the_tracking_server_is_not_this_machine_unless_a_test_says_so(tmp_path: Path) -> None:
    with serving(offered()) as of:
        code, words, _ = run(tmp_path / "models", URI, "--endpoint", f"http://127.0.0.1:{of.port}")
        assert code and "loopback" in words and not of.headers
        code, words, _ = run(tmp_path / "models", URI)
    assert code and "--endpoint" in words
