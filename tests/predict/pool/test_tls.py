"""A pool with TLS of the release: the operator's reads and loads, requests through a gateway, and who is refused."""

import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from slipway_operator.manifests.pods import certificate
from slipway_operator.outbound.inside import open_inside
from slipway_operator.pools.reports import PoolTarget, load, read_pod
from slipway_process.network import mutual_tls
from testkit import ROOT
from testkit.until import until_async
from tests.gateway.harness import Gateway, gateway
from tests.predict.pool.running import write
from tests.server.process import ServerProcess
from tests.support import certificates
from tests.support.certificates import HOST, NAMESPACE, PODS, install, issue, new_authority

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FIRST, SECOND = new_authority(), new_authority()
ROW = {"features": [5.1, 3.5, 1.4, 0.2]}


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("tls") / "pod", issue(PODS, FIRST))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pods: Path) -> Iterator[ServerProcess]:
    """Two revisions of one model."""
    root = tmp_path_factory.mktemp("pool")
    entries = []
    for revision in ("r1", "r2"):
        (root / revision).mkdir()
        file = ROOT / "examples" / "models" / "iris-onnx" / "model.onnx"
        (root / revision / file.name).write_bytes(file.read_bytes())
        entries.append({"name": "iris", "version": revision, "path": revision, "default": revision == "r1"})
    write(root, *entries)
    flags = ("--task", "predict", "--pool-config", str(root / "pool.json"), *certificates.flags(pods))
    with ServerProcess(root, *flags) as process:
        yield process.wait_ready()


def identity(*authorities: certificates.Authority) -> mutual_tls.PemIdentity:
    issued = issue(certificate.OPERATOR, *authorities)
    return mutual_tls.PemIdentity(issued.certificate, issued.private_key, issued.ca)


def target(server: ServerProcess, *, tls: bool = True, namespace: str = NAMESPACE) -> PoolTarget:
    return PoolTarget("shared-pool-0", namespace, "127.0.0.1", int(server.url.rpartition(":")[2]), tls)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_inside(lambda: identity(FIRST)) as session:
        yield session


async def test_the_operator_reads_entries_and_loads_one(server: ServerProcess, session: aiohttp.ClientSession) -> None:
    found = await read_pod(session, target(server))
    assert found.entries is not None and set(found.entries) == {"r1", "r2"}
    assert found.memory_limit_bytes > 0
    await load(session, target(server), "iris", "r2")

    async def loaded() -> bool:
        entries = (await read_pod(session, target(server))).entries
        return bool(entries and entries["r2"].was_loaded)

    await until_async(loaded, "the entry is in memory")


async def test_who_has_no_certificate_of_the_release_reads_and_loads_nothing(
    server: ServerProcess, session: aiohttp.ClientSession
) -> None:
    assert (await read_pod(session, target(server, tls=False))).entries is None, "HTTP"
    assert (await read_pod(session, target(server, namespace="team-b"))).entries is None, "a pod of another namespace"
    async with open_inside(lambda: identity(SECOND)) as strange:
        assert (await read_pod(strange, target(server))).entries is None, "another authority"
    async with open_inside(lambda: mutual_tls.PemIdentity(*_of_pods())) as pod:
        assert (await read_pod(pod, target(server))).entries is None, "another pod"


def _of_pods() -> tuple[str, str, str]:
    issued = issue(PODS, FIRST)
    return issued.certificate, issued.private_key, issued.ca


def test_probes_need_no_certificate(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"{server.probe_url}/readyz", timeout=30) as answer:
        assert answer.status == 200


async def test_requests_through_a_gateway_reach_the_revision_of_their_url(
    server: ServerProcess, tmp_path: Path
) -> None:
    own = install(tmp_path / "gateway", issue(certificate.GATEWAY, FIRST, SECOND))
    origin = f"https://{HOST}:{target(server).port}"
    async with gateway(internal_tls_dir=str(own), max_attempts=1) as made:
        for revision in ("r1", "r2"):
            made.route((revision, 100, [f"{origin}/revisions/{revision}"]), model="iris")
            assert await _predicted(made) == (0, revision)


async def _predicted(made: Gateway) -> tuple[int, str]:
    async with await made.post({"model": "iris", "input": ROW}, "/api/v1/predict") as answer:
        body = json.loads(await answer.text())
        assert answer.status == 200, body
        return body["prediction"], body["model_version"]
