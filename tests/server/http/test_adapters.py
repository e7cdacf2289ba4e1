"""Adapters of a real server: loaded by its probe port, listed and named at its API, and unloaded again."""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway_contracts.load_report import ADAPTERS, ADAPTERS_VERSION, LOAD, LOAD_FORMAT
from slipway_contracts.load_report import read as read_load
from slipway_process.model_folder import checkpoint
from slipway_server.models.adapters.targets import targets_of
from slipway_server.models.families import shape_of
from testkit.until import until
from tests.conftest import MODELS
from tests.server.adapter_folders import tensors_of, write
from tests.server.process import ServerProcess, get, post

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LOAD_PATH, UNLOAD_PATH = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
TARGETS = targets_of(shape_of(checkpoint.read_config(MODELS / "tiny-v1"), 256))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for name, seed in (("one", 1), ("two", 2), ("three", 3)):
        write(folder / name, tensors_of(TARGETS, seed=seed), base_model_name_or_path="slipway/tiny-v1")
    write(folder / "broken", tensors_of(TARGETS), bias="all")
    return folder


@pytest.fixture(scope="module")
def server(root: Path, tiny_v1: Path) -> Iterator[ServerProcess]:
    flags = ("--served-model-name", "chat", "--max-loras", "2", "--lora-root", str(root), "--max-lora-rank", "8")
    with ServerProcess(tiny_v1, *flags) as process:
        yield process.wait_ready()


def load(server: ServerProcess, name: str, path: str) -> tuple[int, Any]:
    status, _, body = post(server.probe_url + LOAD_PATH, {"lora_name": name, "lora_path": path})
    return status, body


def unload(server: ServerProcess, name: str) -> tuple[int, Any]:
    status, _, body = post(server.probe_url + UNLOAD_PATH, {"lora_name": name})
    return status, body


def complete(server: ServerProcess, model: str, **more: Any) -> tuple[int, Any]:
    body = {"model": model, "prompt": "In the beginning", "max_tokens": 12, "temperature": 0} | more
    status, _, answer = post(server.url + "/v1/completions", body)
    return status, answer


def cards(server: ServerProcess) -> dict[str, Any]:
    _, body = get(server.url + "/v1/models")
    return {card["id"]: card for card in json.loads(body)["data"]}


def test_adapters_are_loaded_named_listed_and_unloaded(server: ServerProcess, root: Path) -> None:
    assert load(server, "one", "one") == (200, "Success: LoRA adapter 'one' added successfully.")
    assert load(server, "two", str(root / "two"))[0] == 200
    answers = {name: complete(server, name) for name in ("chat", "one", "two")}
    assert {answer["model"] for _, answer in answers.values()} == {"chat", "one", "two"}
    assert len({answer["choices"][0]["text"] for _, answer in answers.values()}) == 3
    listed = cards(server)
    assert list(listed) == ["chat", "one", "two"]
    assert {"root": "one", "parent": "chat", "loaded": True}.items() <= listed["one"].items()
    assert len(listed["one"]["digest"]) == 64 != listed["two"]["digest"]
    assert get(server.url + "/v1/models/one")[0] == 200 and get(server.url + "/v1/models/other")[0] == 404
    status, refusal = complete(server, "other")
    assert status == 404 and refusal["error"]["code"] == "model_not_found"
    assert unload(server, "one") == (200, "Success: LoRA adapter 'one' removed successfully.")
    assert complete(server, "one")[0] == 404 and complete(server, "two")[1]["choices"] == answers["two"][1]["choices"]
    assert unload(server, "one")[0] == 404
    assert unload(server, "two")[0] == 200
    assert server.metric("slipway_adapters_loaded") == 0


def test_every_api_knows_an_adapter(server: ServerProcess) -> None:
    assert load(server, "team/one@v1", "one")[0] == 200
    name, text = "team/one@v1", complete(server, "team/one@v1")[1]["choices"][0]["text"]
    status, _, generated = post(
        server.url + "/v1/generate", {"model": name, "prompt": "In the beginning", "max_tokens": 12, "temperature": 0}
    )
    assert status == 200 and (generated["model"], generated["text"]) == (name, text)
    chat = {"model": name, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    assert post(server.url + "/v1/chat/completions", chat)[2]["model"] == name
    response = {"model": name, "input": "hello", "max_output_tokens": 4}
    assert post(server.url + "/v1/responses", response)[2]["model"] == name
    choice = complete(server, name, guided_choice=["yes", "no"])[1]["choices"][0]["text"]
    assert choice in ("yes", "no")
    long = {"model": name, "prompt": ["word " * 20] * 3000, "max_tokens": 1}  # read in a process of its own
    assert post(server.url + "/v1/completions", long)[2]["error"]["param"] != "model"
    assert complete(server, name, n=3, use_beam_search=True, temperature=None)[0] == 200
    assert server.metric('slipway_adapter_requests_total{adapter="team/one@v1"}') >= 5
    assert server.metric("slipway_adapters_bytes") > 10_000 and server.metric("slipway_adapter_load_seconds_count") >= 1
    _, headers, _ = post(server.url + "/tokenize", {"prompt": "a"}, {LOAD_FORMAT: "TEXT"})
    reported = read_load(headers[LOAD])
    assert reported[ADAPTERS] == 1 and reported[ADAPTERS_VERSION] >= 1
    assert unload(server, name)[0] == 200


def test_only_the_probe_port_takes_commands_and_refuses_what_is_wrong(server: ServerProcess) -> None:
    for path in (LOAD_PATH, UNLOAD_PATH):
        assert post(server.url + path, {"lora_name": "x", "lora_path": "one"})[0] == 404
    for name, path, param in (
        ("x", "nothing", "lora_path"),
        ("x", "../..", "lora_path"),
        ("x", "/etc", "lora_path"),
        ("x", "broken", "bias"),
        ("chat", "one", "lora_name"),
        ("a b", "one", "lora_name"),
        ("x\n", "one", "lora_name"),
        ("", "one", "lora_name"),
        ("x", "", "lora_path"),
    ):
        status, body = load(server, name, path)
        assert (status, body["error"]["param"]) == (400, param), (name, path, body)
    for body in (b"", b"[]", b'{"lora_name":"x"}', b'{"lora_name":"x","lora_path":"one","more":1}', b"\xff"):
        assert post(server.probe_url + LOAD_PATH, body)[0] == 400
    assert post(server.probe_url + LOAD_PATH, b" " * (70 << 10))[0] == 413
    assert load(server, "x", "one")[0] == 200
    status, body = load(server, "x", "two")
    assert status == 400 and "already been loaded" in body["error"]["message"]
    assert unload(server, "x")[0] == 200


def test_unloading_waits_for_a_stream_and_a_crash_loses_no_adapter(server: ServerProcess) -> None:
    assert load(server, "one", "one")[0] == 200
    text = complete(server, "one")[1]["choices"]
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port))
    body = {"model": "one", "prompt": "In", "max_tokens": 400, "stream": True, "ignore_eos": True, "temperature": 1}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(unload(server, "one")[0]))
    thread.start()
    until(lambda: complete(server, "one")[0] == 404, "the name is gone")
    assert not done
    assert response.read().rstrip().endswith(b"data: [DONE]")
    connection.close()
    thread.join()
    assert done == [200]
    assert load(server, "one", "one")[0] == 200
    server.engine.kill()
    until(lambda: get(server.url + "/readyz")[0] == 503, "the crash is seen")
    until(lambda: get(server.url + "/readyz")[0] == 200, "the engine is back", 100)
    assert cards(server)["one"]["loaded"] is False
    assert complete(server, "one")[1]["choices"] == text
    assert cards(server)["one"]["loaded"] is True
    assert unload(server, "one")[0] == 200
