"""TLS from the gateway to pods, and on the port for the operator: real handshakes, names, rotation under load."""

import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from slipway_operator.manifests.pods import certificate
from slipway_process.network import mutual_tls
from slipway_process.network.mutual_tls import IdentityFiles, has_certificate, reloaded_server_context
from slipway_process.network.resolver import NameResolver
from testkit.until import until_async
from tests.support.certificates import GATEWAY_HOST, HOST, PODS, client_of, install, issue, new_authority
from tests.support.report import route_reports

from .harness import Gateway, echo, gateway, streaming, upstream
from .test_process import gateway as process

FIRST, SECOND = new_authority(), new_authority()
WHOLE = {"model": "chat", "prompt": "x"}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Of the gateway, and of the pods; both are read again at each handshake."""
    monkeypatch.setattr(mutual_tls, "LOOK_AGAIN_S", 0.0)
    own, pods = tmp_path / "gateway", tmp_path / "pod"
    return install(own, issue(certificate.GATEWAY, FIRST)), install(pods, issue(PODS, FIRST))


def pod_context(folder: Path) -> ssl.SSLContext:
    return reloaded_server_context(IdentityFiles.in_folder(folder))


@contextlib.asynccontextmanager
async def gate_to(folder: Path, *urls: str, **changes: object) -> AsyncIterator[Gateway]:
    async with gateway(internal_tls_dir=str(folder), **changes) as made:
        made.route(("rev", 100, list(urls)))
        yield made


async def only_clients(request: web.Request) -> web.StreamResponse:
    status = 200 if has_certificate(request.get_extra_info("peercert")) else 403
    return web.json_response({"host": request.host}, status=status)


async def once(request: web.Request) -> web.StreamResponse:
    """The same, and the connection is over."""
    answer = await only_clients(request)
    answer.force_close()
    return answer


async def test_a_request_reaches_a_pod_by_its_address_and_its_name(folders: tuple[Path, Path]) -> None:
    own, pods = folders
    async with upstream(only_clients, context=pod_context(pods)) as pod, gate_to(own, pod.url) as gate:
        for _ in range(3):
            async with await gate.post(WHOLE) as answer:
                assert (answer.status, await answer.json()) == (200, {"host": f"{HOST}:{pod.port}"})
        peers = {request.get_extra_info("peername") for request in pod.seen}
        assert len(peers) == 1, "one connection serves them all"


async def test_long_bodies_and_streams_pass(folders: tuple[Path, Path]) -> None:
    own, pods = folders
    context = pod_context(pods)
    async with upstream(echo, context=context) as pod, gate_to(own, pod.url) as gate:
        body = json.dumps(WHOLE | {"prompt": "y" * 900_000}).encode()
        async with await gate.post(body) as answer:
            assert answer.status == 200
            await answer.read()
        assert pod.bodies == [body]
    async with upstream(streaming(2), context=context) as pod, gate_to(own, pod.url) as gate:
        answer = await gate.post(WHOLE | {"stream": True})
        assert await answer.read() == b'data: {"n": 0}\n\ndata: {"n": 1}\n\ndata: [DONE]\n\n'


async def test_a_client_that_leaves_is_cancelled_at_the_pod(folders: tuple[Path, Path]) -> None:
    own, pods = folders

    async def forever(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(600)
        return web.Response()

    async with upstream(forever, context=pod_context(pods)) as pod, gate_to(own, pod.url) as gate:
        leaving = asyncio.create_task(gate.post(WHOLE))
        await until_async(lambda: pod.seen)
        leaving.cancel()
        await until_async(lambda: pod.cancelled)


@pytest.mark.attack_class(2)
@pytest.mark.parametrize("impostor", ["of another namespace", "of another authority", "a gateway", "without TLS"])
async def test_what_is_not_a_pod_of_the_namespace_gets_no_request(
    folders: tuple[Path, Path], tmp_path: Path, impostor: str
) -> None:
    own, _ = folders
    issued = {
        "of another namespace": issue(certificate.pods_of("team-b"), FIRST),
        "of another authority": issue(PODS, SECOND),
        "a gateway": issue(certificate.GATEWAY, FIRST),
    }.get(impostor)
    context = pod_context(install(tmp_path / "impostor", issued)) if issued else None
    async with upstream(echo, context=context) as pod, gate_to(own, f"https://{HOST}:{pod.port}") as gate:
        async with await gate.post(WHOLE) as answer:
            assert answer.status == 502
        assert not pod.seen


@pytest.mark.attack_class(2)
async def test_a_gateway_without_a_certificate_reaches_no_pod_with_tls(folders: tuple[Path, Path]) -> None:
    _, pods = folders
    async with upstream(echo, context=pod_context(pods)) as pod, gateway() as gate:
        gate.route(("rev", 100, [pod.url]))
        async with await gate.post(WHOLE) as answer:
            assert answer.status == 502
        assert not pod.seen


async def test_pods_with_tls_and_without_serve_one_route(folders: tuple[Path, Path]) -> None:
    own, pods = folders
    async with (
        upstream(echo, context=pod_context(pods)) as new,
        upstream(echo) as old,
        gateway(internal_tls_dir=str(own)) as gate,
    ):
        gate.route(("new", 50, [new.url]), ("old", 50, [old.url]))
        for number in range(40):
            async with await gate.post(WHOLE | {"user": f"u{number}"}) as answer:
                assert answer.status == 200
        assert new.seen
        assert old.seen


async def test_certificates_and_authorities_change_under_load_without_a_failed_request(
    folders: tuple[Path, Path],
) -> None:
    """Each step of a rotation, at gateway and pod one after the other, while requests take new connections."""
    own, pods = folders
    async with (
        upstream(once, context=pod_context(pods)) as one,
        upstream(once, context=pod_context(pods)) as two,
        gate_to(own, one.url, two.url, max_attempts=1) as gate,
    ):
        statuses: list[int] = []
        over = asyncio.Event()

        async def load() -> None:
            while not over.is_set():
                async with await gate.post(WHOLE) as answer:
                    await answer.read()
                    statuses.append(answer.status)

        loads = [asyncio.create_task(load()) for _ in range(8)]
        turn = 0
        for known in ((FIRST,), (FIRST, SECOND), (SECOND, FIRST), (SECOND,)):
            for folder, role in ((own, certificate.GATEWAY), (pods, PODS)):
                turn += 1
                issued = issue(role, *known, turn=turn)
                await asyncio.to_thread(install, folder, issued)
                seen = len(statuses)
                await until_async(lambda seen=seen: len(statuses) >= seen + 60)
        over.set()
        await asyncio.gather(*loads)
        assert set(statuses) == {200}
        assert gate.outcomes() == {"ok": len(statuses)}
        # The first authority is over: what it signed is refused.
        old = install(own.parent / "old", issue(certificate.GATEWAY, FIRST, SECOND))
        async with gate_to(old, one.url) as late, await late.post(WHOLE) as answer:
            assert answer.status == 502


async def test_counts_at_pods_and_the_access_log_have_addresses(folders: tuple[Path, Path], tmp_path: Path) -> None:
    own, pods = folders
    release = asyncio.Event()

    async def waits(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.json_response({})

    path = tmp_path / "access.log"
    async with (
        upstream(waits, context=pod_context(pods)) as pod,
        gate_to(own, pod.url, access_log=str(path)) as gate,
    ):
        request = asyncio.create_task(gate.post(WHOLE))
        await until_async(lambda: pod.seen)
        report = route_reports(gate.balancer)["default/chat"]
        assert report["revisions"]["rev"]["pods"] == {"127.0.0.1": 1}
        release.set()
        (await request).close()
        await until_async(lambda: path.exists() and path.read_text())
        assert json.loads(path.read_text())["upstream"] == f"127.0.0.1:{pod.port}"


async def test_names_of_other_hosts_are_those_of_dns() -> None:
    resolver = NameResolver()
    (found, *_) = await resolver.resolve("localhost", 80)
    assert found["host"] == "127.0.0.1"
    (found,) = await resolver.resolve("10-0-0-7.team-a.pod.slipway.internal", 8000)
    assert (found["host"], found["port"]) == ("10.0.0.7", 8000)


async def reports(url: str, context: ssl.SSLContext, method: str = "GET") -> int:
    connector = aiohttp.TCPConnector(ssl=context, resolver=NameResolver())
    async with aiohttp.ClientSession(connector=connector) as client, client.request(method, url) as answer:
        await answer.read()
        return answer.status


@pytest.mark.integration
async def test_the_operators_port_takes_the_operator_alone_and_renewed_files_without_a_restart(tmp_path: Path) -> None:
    own = install(tmp_path / "gateway", issue(certificate.GATEWAY, FIRST))
    routes = tmp_path / "routes.yaml"
    routes.write_text("models: {chat: {backends: [{endpoints: ['http://127.0.0.1:9']}]}}")
    flags = (f"--routes={routes}", f"--internal-tls-dir={own}", "--internal-port=0")
    async with process(*flags) as gate:
        port = gate.url("internal").rpartition(":")[2]
        url = f"https://{GATEWAY_HOST}:{port}/internal/routes"
        operator = client_of(issue(certificate.OPERATOR, FIRST))
        assert await reports(url, operator) == 200
        assert await reports(url, operator, "POST") == 200
        assert await reports(f"https://{GATEWAY_HOST}:{port}/metrics", operator) == 404
        strange = ssl.create_default_context(cadata=issue(PODS, FIRST).ca)
        assert await reports(url, strange) == 403
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, OSError)):
            await reports(url, client_of(issue(PODS, FIRST)))
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await reports(f"https://{HOST}:{port}/internal/routes", operator)
        install(own, issue(certificate.GATEWAY, SECOND))
        later = client_of(issue(certificate.OPERATOR, SECOND))
        await until_async(lambda: _answers(url, later))
        assert gate.process.returncode is None


async def test_the_end_of_the_certificate_is_a_metric_and_follows_the_files(tmp_path: Path) -> None:
    own = install(tmp_path / "gateway", issue(certificate.GATEWAY, FIRST))
    flags = ("--routes=none.yaml", f"--internal-tls-dir={own}", "--internal-port=0")
    async with process(*flags, ready=False) as gate:
        name = "slipway_gateway_internal_certificate_expiration_timestamp_seconds "

        async def expires() -> float:
            async with aiohttp.ClientSession() as client, client.get(gate.url("admin") + "/metrics") as answer:
                [line] = [line for line in (await answer.text()).splitlines() if line.startswith(name)]
            return float(line.removeprefix(name))

        first = await expires()
        assert 0 < first - time.time() < 3600
        install(own, issue(certificate.GATEWAY, FIRST, turn=600))

        async def follows() -> bool:
            return await expires() == pytest.approx(first - 600, abs=300)  # a slow machine issues it later

        await until_async(follows)


async def _answers(url: str, context: ssl.SSLContext) -> bool:
    try:
        return await reports(url, context) == 200
    except (aiohttp.ClientError, ssl.SSLError, OSError):
        return False


@pytest.mark.integration
async def test_a_gateway_with_a_folder_that_it_cannot_use_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slipway_gateway", f"--internal-tls-dir={tmp_path}", "--routes=x"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "slipway-gateway: " in done.stderr
    assert "tls.crt" in done.stderr


def crashes(gate: Gateway) -> float:
    counted = gate.metrics.registry.collect()
    samples = (sample for family in counted for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == "slipway_gateway_engine_crashes_total")


@pytest.mark.parametrize("prompt", ["x", "x" * 100_000], ids=["short", "long"])
async def test_a_pod_that_refuses_the_certificate_did_not_die_of_the_request(
    folders: tuple[Path, Path], prompt: str
) -> None:
    """In TLS 1.3 its refusal comes after the request was sent. The same bytes must not be refused as poison."""
    own, pods = folders
    foreign = install(own.parent / "foreign", issue(certificate.GATEWAY, SECOND, FIRST))
    async with upstream(once, context=pod_context(pods)) as pod, gate_to(foreign, pod.url, max_attempts=1) as gate:
        for _ in range(3):
            async with await gate.post(WHOLE | {"prompt": prompt}) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (502, "upstream_unreachable")
        assert crashes(gate) == 0 and not pod.seen


@pytest.mark.parametrize(
    ("prompt", "codes"), [("x", ("engine_crashed", 503)), ("x" * 100_000, ("engine_crashed", 503))]
)
async def test_a_pod_that_took_the_connection_and_ends_it_counts_as_dead(
    folders: tuple[Path, Path], prompt: str, codes: tuple[str, int]
) -> None:
    async def dies(request: web.Request) -> web.StreamResponse:
        assert request.transport
        request.transport.abort()
        return web.Response()

    own, pods = folders
    async with upstream(dies, context=pod_context(pods)) as pod, gate_to(own, pod.url, max_attempts=1) as gate:
        async with await gate.post(WHOLE | {"prompt": prompt}) as answer:
            assert ((await answer.json())["error"]["code"], answer.status) == codes
        assert crashes(gate) == 1 and len(pod.seen) == 1
