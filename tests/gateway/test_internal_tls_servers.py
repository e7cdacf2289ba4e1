"""A real server with TLS behind the gateway: answers, streams, and renewed certificates while both run."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from slipway_operator.manifests.pods import certificate
from slipway_process.network import mutual_tls
from testkit import ROOT
from testkit.until import until_async
from tests.server.process import ServerProcess
from tests.support import certificates
from tests.support.certificates import HOST, PODS, install, issue, new_authority

from .harness import Gateway, gateway

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FIRST, SECOND = new_authority(), new_authority()
PROMPT = {"model": "chat", "prompt": "In the", "max_tokens": 4, "seed": 7}


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("tls") / "pod", issue(PODS, FIRST))


@pytest.fixture(scope="module")
def server(pods: Path) -> Iterator[ServerProcess]:
    with ServerProcess(
        ROOT / "examples" / "models" / "tiny-v1", "--served-model-name", "chat", *certificates.flags(pods)
    ) as process:
        yield process.wait_ready()


@pytest.fixture
async def gate(server: ServerProcess, tmp_path: Path) -> AsyncIterator[Gateway]:
    own = install(tmp_path / "gateway", issue(certificate.GATEWAY, FIRST, SECOND))
    async with gateway(internal_tls_dir=str(own), max_attempts=1) as made:
        made.route(("rev", 100, [f"https://{HOST}:{server.url.rpartition(':')[2]}"]))
        yield made


async def text(gate: Gateway) -> str:
    async with await gate.post(PROMPT, "/v1/completions") as answer:
        assert answer.status == 200, await answer.text()
        return str((await answer.json())["choices"][0]["text"])


async def test_whole_answers_and_streams_are_those_of_the_server(gate: Gateway) -> None:
    whole = await text(gate)
    async with await gate.post(PROMPT | {"stream": True}, "/v1/completions") as answer:
        events = [line async for line in answer.content if line.startswith(b"data: {")]
    parts = "".join(event.decode().partition('"text":"')[2].partition('"')[0] for event in events)
    assert parts == whole.replace("\n", "\\n")


async def test_a_renewed_certificate_of_the_other_authority_loses_no_request(
    gate: Gateway, pods: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutual_tls, "LOOK_AGAIN_S", 0.0)  # of the gateway; the server looks every two seconds
    over, answers = asyncio.Event(), list[str]()

    async def load() -> None:
        while not over.is_set():
            answers.append(await text(gate))

    async def serial() -> str:
        """Of the certificate of a new connection to the server."""
        port = int(gate.balancer.published.urls("default/chat", "rev")[0].rpartition(":")[2])
        context = certificates.client_of(issue(certificate.GATEWAY, FIRST, SECOND))
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=HOST)
        found = writer.get_extra_info("peercert")["serialNumber"]
        writer.transport.abort()
        return str(found)

    first, loads = await serial(), [asyncio.create_task(load()) for _ in range(2)]
    await asyncio.to_thread(install, pods, issue(PODS, SECOND, FIRST))

    async def renewed() -> bool:
        return await serial() != first

    await until_async(renewed, "the server shows the new certificate")
    seen = len(answers)
    await until_async(lambda: len(answers) >= seen + 6, "answers after it")
    over.set()
    await asyncio.gather(*loads)
    assert len(set(answers)) == 1
    assert gate.outcomes() == {"ok": len(answers)}
