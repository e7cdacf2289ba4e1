"""Requests for adapters at real engines, loaders and a real gateway, while each of them is killed."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from devcluster.ports import reserve_port
from slipway_contracts.adapters import lora_name
from slipway_process.model_folder import checkpoint
from slipway_server.models.adapters.targets import targets_of
from slipway_server.models.families import shape_of
from testkit.until import until_async
from tests.conftest import MODELS
from tests.fetcher.adapters.running import LoaderProcess, entry, write_file
from tests.gateway.test_process import Process, gateway
from tests.server.adapter_folders import tensors_of, write
from tests.server.process import ServerProcess, post

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TARGETS = targets_of(shape_of(checkpoint.read_config(MODELS / "tiny-v1"), 256))
BODY: dict[str, Any] = {"model": "support", "prompt": "In the beginning", "max_tokens": 10, "temperature": 0}
REVISIONS = ("r1", "r2")


class Pod:
    """An engine and its loader at an address of their own, as in a pod."""

    def __init__(self, folder: Path, number: int, sources: Path) -> None:
        self.folder, self.host, self.sources = folder, f"127.77.{reserve_port() % 250}.{number}", sources
        self.port, self.probe_port = str(reserve_port()), str(reserve_port())
        self.file, self.dest = folder / "adapters.json", folder / "adapters"
        self.dest.mkdir(parents=True)
        self.engine: ServerProcess | None = None
        self.loader: LoaderProcess | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def lists(self, *revisions: str) -> None:
        write_file(self.file, *(entry("support", name, self.sources / name) for name in revisions))

    def start_engine(self) -> None:
        places = ("--host", self.host, "--port", self.port, "--probe-port", self.probe_port)
        flags = ("--served-model-name", "chat", "--max-loras", "2", "--lora-root", str(self.dest))
        self.engine = ServerProcess(MODELS / "tiny-v1", *flags, *places)

    def start_loader(self) -> None:
        probes = f"http://{self.host}:{self.probe_port}"
        self.loader = LoaderProcess(self.file, self.dest, probes, "--host", self.host, port=8004, host=self.host)

    def has(self, *revisions: str) -> None:
        """Waits until the loader reports exactly these as loaded."""
        assert self.loader
        self.loader.wait_for(**{f"support__{name}": "loaded" for name in revisions})

    def text_of(self, revision: str) -> str:
        status, _, answer = post(f"{self.url}/v1/completions", BODY | {"model": lora_name("support", revision)})
        assert status == 200, answer
        return str(answer["choices"][0]["text"])

    def kill_engine(self) -> None:
        """As the kubelet does, with all of its processes."""
        if self.engine:
            self.engine.__exit__()

    def kill(self) -> None:
        self.kill_engine()
        if self.loader:
            self.loader.kill()


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pod, Pod]]:
    root = tmp_path_factory.mktemp("pods")
    for seed, name in enumerate(REVISIONS):
        write(root / "sources" / name, tensors_of(TARGETS, seed=seed), base_model_name_or_path="slipway/tiny-v1")
    both = Pod(root / "one", 1, root / "sources"), Pod(root / "two", 2, root / "sources")
    with contextlib.ExitStack() as stack:
        for pod in both:
            stack.callback(pod.kill)
            pod.lists(*REVISIONS)
            pod.start_engine()
        for pod in both:
            assert pod.engine
            pod.engine.wait_ready()
            pod.start_loader()
        for pod in both:
            pod.has(*REVISIONS)
        yield both


@pytest.fixture(scope="module")
def texts(pods: tuple[Pod, Pod]) -> dict[str, str]:
    found = {name: pods[0].text_of(name) for name in REVISIONS}
    assert found["r1"] != found["r2"]
    return found


def routes(path: Path, *pods: Pod, weights: tuple[int, int] = (50, 50), **more: Any) -> Path:
    base = {"salt": "b", "backends": [{"revision": "v1", "endpoints": [pod.url for pod in pods]}]}
    split = [{"revision": name, "weight": weight} for name, weight in zip(REVISIONS, weights, strict=True)]
    adapter = {"salt": "a", "base": "chat", "backends": split, **more}
    path.write_text(yaml.safe_dump({"models": {"chat": base, "support": adapter}}))
    return path


class Load:
    """Requests of many sessions, one after the other; each response is checked against its revision's text."""

    def __init__(self, gate: Process, texts: dict[str, str]) -> None:
        self.url, self.texts = gate.url("api"), texts
        self.answered: dict[str, int] = {}
        self.wrong: list[str] = []
        self.by_session: dict[str, str] = {}
        self._count = 0

    async def send(self, client: aiohttp.ClientSession, session: str, *, stream: bool = False) -> None:
        headers, body = {"X-Session-Id": session}, BODY | {"stream": stream}
        async with client.post(f"{self.url}/v1/completions", json=body, headers=headers) as answer:
            content = await answer.text()
            revision = answer.headers.get("X-Slipway-Revision", "")
        if answer.status != 200:
            self.wrong.append(f"{answer.status} {content}")
            return
        events = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: {")]
        parts = [json.loads(part) for part in (events if stream else [content])]
        text = "".join(choice["text"] for part in parts for choice in part["choices"])
        if text != self.texts[revision] or {part["model"] for part in parts} != {"support"}:
            self.wrong.append(f"{revision}: {text!r} of {parts[0]['model']}")
        if self.by_session.setdefault(session, revision) != revision:
            self.wrong.append(f"{session} left its revision")
        self.answered[revision] = self.answered.get(revision, 0) + 1

    async def run(self, client: aiohttp.ClientSession) -> None:
        while True:
            self._count += 1
            await self.send(client, f"s{self._count % 12}", stream=self._count % 3 == 0)

    async def goes_on(self, count: int) -> None:
        """Waits for so many more responses."""
        wanted = sum(self.answered.values()) + count
        await until_async(lambda: self.wrong or sum(self.answered.values()) >= wanted, "responses", 120)
        assert not self.wrong, self.wrong


@contextlib.asynccontextmanager
async def load(gate: Process, texts: dict[str, str]) -> AsyncIterator[Load]:
    made = Load(gate, texts)
    async with aiohttp.ClientSession() as client:
        running = asyncio.create_task(made.run(client))
        try:
            yield made
            assert not running.done(), running.exception()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def report(gate: Process, route: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as client, client.get(gate.url("admin") + "/internal/routes") as answer:
        return dict((await answer.json())["routes"][route])


async def test_each_session_has_the_text_of_one_revision_under_the_adapters_own_name(
    pods: tuple[Pod, Pod], texts: dict[str, str], tmp_path: Path
) -> None:
    async with gateway("--routes", str(routes(tmp_path / "routes.yaml", *pods))) as gate:
        async with load(gate, texts) as running:
            await running.goes_on(36)
            assert set(running.by_session.values()) == set(REVISIONS)
        async with aiohttp.ClientSession() as client, client.get(gate.url("api") + "/v1/models") as answer:
            models = {model["id"]: model for model in (await answer.json())["data"]}
        assert models["support"]["parent"] == "chat" and models["support"]["ready"] and "parent" not in models["chat"]
        found = await report(gate, "file/support")
        assert {name: one["endpoints"] for name, one in found["revisions"].items()} == {"r1": 2, "r2": 2}
        assert sum(one["requests"] for one in found["revisions"].values()) >= 36
        async with aiohttp.ClientSession() as client:
            other = BODY | {"model": lora_name("support", "r1")}
            async with client.post(gate.url("api") + "/v1/completions", json=other) as answer:
                assert answer.status == 404, "clients name adapters, and no revision of one"


async def test_requests_go_only_to_pods_that_have_the_revision(
    pods: tuple[Pod, Pod], texts: dict[str, str], tmp_path: Path
) -> None:
    _, two = pods
    two.lists("r1")
    await asyncio.to_thread(two.has, "r1")
    try:
        file = routes(tmp_path / "routes.yaml", *pods)
        async with gateway("--routes", str(file)) as gate, load(gate, texts) as running:
            await running.goes_on(24)
            found = await report(gate, "file/support")
            assert {name: item["endpoints"] for name, item in found["revisions"].items()} == {"r1": 2, "r2": 1}
            two.lists(*REVISIONS)
            await until_endpoints(gate, 2)
            await running.goes_on(12)
    finally:
        two.lists(*REVISIONS)
        await asyncio.to_thread(two.has, *REVISIONS)


async def until_endpoints(gate: Process, count: int) -> None:
    async def are_there() -> bool:
        return bool((await report(gate, "file/support"))["revisions"]["r2"]["endpoints"] == count)

    await until_async(are_there, "endpoints", 60)


async def test_no_request_fails_while_loader_engine_files_and_gateway_end(
    pods: tuple[Pod, Pod], texts: dict[str, str], tmp_path: Path
) -> None:
    one, _ = pods
    file = routes(tmp_path / "routes.yaml", *pods)
    async with gateway("--routes", str(file)) as gate, load(gate, texts) as running:
        await running.goes_on(12)
        assert one.loader and one.engine
        one.loader.kill()
        await running.goes_on(12)
        await asyncio.to_thread(one.kill_engine)
        await running.goes_on(24)
        one.start_engine()
        await asyncio.to_thread(one.engine.wait_ready)
        await running.goes_on(24)  # the engine is there, and knows no adapter: what it refuses goes to the other pod
        one.start_loader()
        await asyncio.to_thread(one.has, *REVISIONS)
        await until_endpoints(gate, 2)
        await running.goes_on(12)
        for folder in one.dest.iterdir():
            await asyncio.to_thread(remove, folder)
        await running.goes_on(24)
    async with gateway("--routes", str(file)) as again, load(again, texts) as running:
        await running.goes_on(12)


def remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()


async def test_pairs_of_two_revisions_go_to_one_pod(
    pods: tuple[Pod, Pod], texts: dict[str, str], tmp_path: Path
) -> None:
    shadow = {"revision": "r1", "twin": "r2", "percentage": "100", "maxPairsPerSecond": "100"}
    file = routes(tmp_path / "routes.yaml", *pods, weights=(0, 100), twinShadow=shadow)
    async with gateway("--routes", str(file)) as gate:
        async with aiohttp.ClientSession() as client:
            sender = Load(gate, texts)
            for number in range(8):
                await sender.send(client, f"pair{number}")
        assert not sender.wrong and set(sender.answered) == {"r2"}

        async def all_counted() -> bool:
            samples = (await report(gate, "file/support"))["samples"]
            counts = [twins for generation in samples for twins in generation["twins"].values()]
            return bool(sum(one["pairs"] for one in counts) == 8)

        await until_async(all_counted, "pairs", 60)
