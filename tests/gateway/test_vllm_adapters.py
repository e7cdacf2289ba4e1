"""Adapters at a real vLLM on a CPU: the operator's flags, a real loader, and requests by a real gateway."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipway_contracts.adapters import lora_name
from slipway_operator.manifests.engines import vllm as profiles
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.adapters import AdapterRoom
from slipway_operator.model.inputs.pod_inputs import Engine, Model, PodInputs
from testkit.until import until, until_async
from tests.fetcher.adapters.running import LoaderProcess, entry, write_file
from tests.server.adapter_folders import tensors_of, write
from tests.server.process import get, post
from tests.support.vllm import VllmProcess

from .test_adapter_servers import BODY, REVISIONS, TARGETS, Pod, load, report, routes, until_endpoints
from .test_process import gateway

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(3600)]

MAX_LOADED, MAX_RANK = 2, 8
# Several blocks of vLLM's cache on CPUs (128 tokens each).
STORY = "And it came to pass in those days, that there went out a decree from the king. " * 12


class VllmPod(Pod):
    """As the operator makes one: vLLM takes commands on its own port."""

    vllm: VllmProcess | None = None

    def start_engine(self) -> None:
        inputs = PodInputs(Model("hf://org/m", "chat"), Engine("vllm:1", "vllm"), adapters=AdapterRoom(2, MAX_RANK))
        profile = profiles.profile(Snapshot("abcdefghij", 1, inputs, "vllm:1", 600, 3))
        flags = profile.args[profile.args.index("--enable-lora") :]
        variables = dict(profile.owned_env)
        self.vllm = VllmProcess(self.folder, *flags, host=self.host, port=int(self.port), variables=variables)

    def start_loader(self) -> None:
        flags = ("--host", self.host, "--engine", "vllm")
        self.loader = LoaderProcess(self.file, self.dest, self.url, *flags, port=8004, host=self.host)

    def kill_engine(self) -> None:
        if self.vllm:
            self.vllm.kill()

    def lists_entries(self, *entries: dict[str, Any]) -> None:
        write_file(self.file, *entries)

    def loaded(self) -> set[str]:
        """What vLLM itself lists."""
        cards: list[dict[str, Any]] = json.loads(get(f"{self.url}/v1/models")[1])["data"]
        return {card["id"] for card in cards if card.get("parent")}

    def continuation(self, model: str) -> str:
        """The text of a long prompt, from the cache where vLLM has its beginning."""
        status, _, answer = post(f"{self.url}/v1/completions", BODY | {"model": model, "prompt": STORY})
        assert status == 200, answer
        return str(answer["choices"][0]["text"])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for seed, name in enumerate((*REVISIONS, "r3")):
        write(folder / name, tensors_of(TARGETS, seed=seed), base_model_name_or_path="slipway/tiny-v1")
    return folder


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, sources: Path) -> Iterator[VllmPod]:
    pod = VllmPod(tmp_path_factory.mktemp("pods") / "one", 1, sources)
    try:
        pod.lists(*REVISIONS)
        pod.start_engine()
        assert pod.vllm
        pod.vllm.wait_ready()
        pod.start_loader()
        yield pod
    finally:
        pod.kill()


@pytest.fixture
def pod(started: VllmPod) -> VllmPod:
    """With two revisions of `support`, whatever the test before left."""
    started.lists(*REVISIONS)
    started.has(*REVISIONS)
    until(lambda: started.loaded() == {lora_name("support", name) for name in REVISIONS}, "the others' unloading")
    return started


@pytest.fixture
def texts(pod: VllmPod) -> dict[str, str]:
    texts = {name: pod.text_of(name) for name in REVISIONS}
    base = post(f"{pod.url}/v1/completions", BODY | {"model": "chat"})[2]["choices"][0]["text"]
    assert len({base, *texts.values()}) == 3
    return texts


async def test_sessions_are_split_between_two_revisions_that_vllm_loaded(
    pod: VllmPod, texts: dict[str, str], tmp_path: Path
) -> None:
    async with gateway("--routes", str(routes(tmp_path / "routes.yaml", pod))) as gate:
        async with load(gate, texts) as running:
            await running.goes_on(36)
            assert set(running.by_session.values()) == set(REVISIONS)
        async with aiohttp.ClientSession() as client, client.get(gate.url("api") + "/v1/models") as answer:
            models = {model["id"]: model for model in (await answer.json())["data"]}
        assert models["support"]["parent"] == "chat" and models["support"]["ready"]
        chat = {"model": "support", "messages": [{"role": "user", "content": "In the beginning"}], "max_tokens": 4}
        async with aiohttp.ClientSession() as client:
            async with client.post(gate.url("api") + "/v1/chat/completions", json=chat) as answer:
                assert (answer.status, (await answer.json())["model"]) == (200, "support")
            other = BODY | {"model": lora_name("support", "r1")}
            async with client.post(gate.url("api") + "/v1/completions", json=other) as answer:
                assert answer.status == 404, "clients name adapters, and no revision of one"


async def test_vllm_loads_and_unloads_what_the_file_lists_while_requests_go_on(
    pod: VllmPod, texts: dict[str, str], tmp_path: Path
) -> None:
    file = routes(tmp_path / "routes.yaml", pod, weights=(100, 0))
    async with gateway("--routes", str(file)) as gate, load(gate, texts) as running:
        await running.goes_on(12)
        pod.lists("r1")
        await asyncio.to_thread(pod.has, "r1")
        await until_async(lambda: pod.loaded() == {"support@r1"}, "the unloading")
        await until_endpoints(gate, 0)
        await running.goes_on(12)
        pod.lists(*REVISIONS)
        await asyncio.to_thread(pod.has, *REVISIONS)
        await until_endpoints(gate, 1)
        await running.goes_on(12)
        assert set(running.answered) == {"r1"}
    assert pod.text_of("r2") == texts["r2"]


async def test_a_vllm_that_was_killed_loads_all_again(pod: VllmPod, texts: dict[str, str], tmp_path: Path) -> None:
    async with gateway("--routes", str(routes(tmp_path / "routes.yaml", pod))) as gate:
        async with load(gate, texts) as running:
            await running.goes_on(12)
        assert pod.loader and pod.vllm
        pod.kill_engine()
        await asyncio.to_thread(pod.loader.wait_for, support__r1="waiting", support__r2="waiting")
        assert "cannot be reached" in pod.loader.report().adapters[0].reason
        pod.start_engine()
        await asyncio.to_thread(pod.vllm.wait_ready)
        await asyncio.to_thread(pod.has, *REVISIONS)
        await until_endpoints(gate, 1)
        async with load(gate, texts) as running:
            await running.goes_on(12)
        found = await report(gate, "file/support")
        assert {name: one["endpoints"] for name, one in found["revisions"].items()} == {"r1": 1, "r2": 1}


@pytest.fixture(scope="module")
def wrong(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Adapters that vLLM refuses, by name: their folders, and words of its sentences."""
    folder, tensors = tmp_path_factory.mktemp("wrong"), tensors_of(TARGETS)
    short = write(folder / "short", tensors) / "adapter_model.safetensors"
    short.write_bytes(short.read_bytes()[:-1000])
    wide = {name: tensor.repeat(1, 2) for name, tensor in tensors.items()}
    other = {name.replace("q_proj", "z_proj"): tensor for name, tensor in tensors.items()}
    return {
        "rank": (write(folder / "rank", tensors_of(TARGETS, rank=16), r=16), "LoRA rank 16 is greater than"),
        "dora": (write(folder / "dora", tensors, use_dora=True), "does not yet support DoRA"),
        "shapes": (write(folder / "shapes", wide), "size"),
        "names": (write(folder / "names", other), "expected target modules"),
        "short": (folder / "short", "incomplete metadata"),
    }


async def test_what_vllm_refuses_has_failed_with_its_sentence_and_others_serve_on(
    pod: VllmPod, texts: dict[str, str], wrong: dict[str, tuple[Path, str]], tmp_path: Path
) -> None:
    assert pod.loader
    file = routes(tmp_path / "routes.yaml", pod)
    async with gateway("--routes", str(file)) as gate, load(gate, texts) as running:
        good = [entry("support", name, pod.sources / name) for name in REVISIONS]
        pod.lists_entries(*good, *(entry(name, "r1", folder) for name, (folder, _) in wrong.items()))
        states = {f"{name}__r1": "failed" for name in wrong}
        await asyncio.to_thread(pod.loader.wait_for, support__r1="loaded", support__r2="loaded", **states)
        reasons = {state.name: state.reason for state in pod.loader.report().adapters}
        assert not [name for name, (_, words) in wrong.items() if words not in reasons[name]], reasons
        await running.goes_on(12)


async def test_a_request_that_waits_while_its_adapter_is_unloaded_is_answered(pod: VllmPod) -> None:
    """vLLM reads the files of such an adapter when its turn comes, and ends where they are gone."""
    assert pod.vllm and pod.loader
    both = [entry("support", name, pod.sources / name) for name in REVISIONS]
    pod.lists_entries(*both, entry("support", "r3", pod.sources / "r3"))
    await asyncio.to_thread(pod.has, *REVISIONS, "r3")
    async with aiohttp.ClientSession() as client:
        for process in pod.vllm.engines:
            process.suspend()
        try:
            # The first two take the room for adapters of one batch. Each has its headers when vLLM has taken it in.
            streams = [await begun(client, pod, name) for name in (*REVISIONS, "r3")]
            pod.lists(*REVISIONS)
            await until_async(lambda: "support@r3" not in pod.loaded(), "the unloading")
            await asyncio.sleep(2.5)  # two looks of the loader, in which it could delete the files
        finally:
            for process in pod.vllm.engines:
                process.resume()
        for stream in streams:
            assert "data: [DONE]" in await stream.text()
    assert get(f"{pod.url}/health")[0] == 200


async def begun(client: aiohttp.ClientSession, pod: Pod, revision: str) -> aiohttp.ClientResponse:
    body = BODY | {"model": lora_name("support", revision), "stream": True, "max_tokens": 400, "ignore_eos": True}
    response = await client.post(f"{pod.url}/v1/completions", json=body)
    assert response.status == 200, await response.text()
    return response


async def test_other_files_of_one_revision_get_no_cached_prompts_of_the_former(pod: VllmPod, tmp_path: Path) -> None:
    assert pod.loader
    moving = shutil.copytree(pod.sources / "r1", tmp_path / "moving")
    pod.lists_entries(entry("moving", "r1", moving), entry("support", "r2", pod.sources / "r2"))
    pod.loader.wait_for(moving__r1="loaded", support__r2="loaded")
    former, wanted = pod.continuation("moving@r1"), pod.continuation("support@r2")
    assert former != wanted
    shutil.rmtree(moving)
    shutil.copytree(pod.sources / "r2", moving)
    digest = next(state.digest for state in pod.loader.report().adapters if state.name == "support")
    pod.lists_entries(entry("moving", "r1", moving, digest=digest), entry("support", "r2", pod.sources / "r2"))
    until(lambda: {state.digest for state in pod.loader.report().adapters} == {digest}, "the other files")  # type: ignore[union-attr]
    assert pod.continuation("moving@r1") == wanted
