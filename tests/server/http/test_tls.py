"""A server with TLS: a real process and real handshakes; who is served, and certificates that change while it runs."""

import asyncio
import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway_operator.manifests.pods import certificate
from slipway_process.network import mutual_tls
from testkit.until import until
from tests.server.process import ServerProcess, get
from tests.support import certificates
from tests.support.certificates import HOST, PODS, client_of, install, issue, new_authority

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FIRST, SECOND = new_authority(), new_authority()
GATEWAY = client_of(issue(certificate.GATEWAY, FIRST))
PROMPT = {"model": "chat", "prompt": "In the", "max_tokens": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("tls") / "pod", issue(PODS, FIRST))


@pytest.fixture(scope="module")
def server(tiny_v1: Path, folder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tiny_v1, "--served-model-name", "chat", *certificates.flags(folder)) as process:
        yield process.wait_ready()


def request(
    server: ServerProcess, context: ssl.SSLContext, body: Any = None, path: str = "/v1/completions", name: str = HOST
) -> tuple[int, Any, str]:
    """Status, body, and the serial number of the certificate of the server."""
    port = int(server.url.rpartition(":")[2])
    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    plain.connect()
    plain.sock = context.wrap_socket(plain.sock, server_hostname=name)
    try:
        serial = plain.sock.getpeercert()["serialNumber"] if context.verify_mode else ""  # type: ignore[index]
        if body is None:
            plain.request("GET", path)
        else:
            plain.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = plain.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text.startswith(b"{") else text, str(serial)
    finally:
        plain.close()


def without_certificate() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=issue(PODS, FIRST).ca)


def test_a_gateway_is_served(server: ServerProcess) -> None:
    status, body, _ = request(server, GATEWAY, PROMPT)
    assert (status, body["usage"]["completion_tokens"]) == (200, 2)


def test_the_operator_reads_metrics(server: ServerProcess) -> None:
    status, body, _ = request(server, client_of(issue(certificate.OPERATOR, FIRST)), path="/metrics")
    assert status == 200
    assert b"vllm:num_requests_running" in body


@pytest.mark.attack_class(2)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/generate", "/tokenize"])
def test_a_client_without_a_certificate_is_refused(server: ServerProcess, path: str) -> None:
    status, body, _ = request(server, without_certificate(), PROMPT, path)
    assert status == 403
    assert "certificate of its release only" in json.dumps(body)


@pytest.mark.attack_class(2)
def test_a_client_without_a_certificate_learns_no_model(server: ServerProcess) -> None:
    assert request(server, without_certificate(), path="/v1/models")[0] == 403


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_and_prometheus_need_no_certificate(server: ServerProcess, path: str) -> None:
    assert request(server, without_certificate(), path=path)[0] == 200
    if path != "/metrics":
        assert get(server.probe_url + path)[0] == 200


@pytest.mark.attack_class(2)
@pytest.mark.parametrize("which", ["a pod of the namespace", "another authority"])
def test_a_certificate_of_no_client_of_the_release_is_refused_in_the_handshake(
    server: ServerProcess, which: str
) -> None:
    issued = issue(PODS, FIRST) if which == "a pod of the namespace" else issue(certificate.GATEWAY, SECOND)
    context = without_certificate()
    with mutual_tls.in_memory_file(issued.certificate + issued.private_key) as path:
        context.load_cert_chain(path)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        request(server, context, PROMPT)


def test_older_versions_of_tls_and_http_are_refused(server: ServerProcess) -> None:
    old = without_certificate()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        request(server, old, path="/healthz")
    with pytest.raises((OSError, http.client.HTTPException)):
        get(server.url + "/healthz")


def test_new_certificates_and_authorities_are_used_without_a_restart(server: ServerProcess, folder: Path) -> None:
    first = request(server, GATEWAY, PROMPT)[2]
    install(folder, issue(PODS, FIRST, SECOND, turn=500))
    until(lambda: request(server, GATEWAY, PROMPT)[2] != first, "the renewed certificate", 60)
    # Clients of both authorities are served while both are trusted.
    both = client_of(issue(certificate.GATEWAY, SECOND, FIRST))
    assert request(server, both, PROMPT)[0] == 200
    install(folder, issue(PODS, SECOND, turn=700))
    until(lambda: _is_refused(server, GATEWAY), "the end of the former authority", 60)
    assert request(server, both, PROMPT)[0] == 200
    (folder / "tls.key").write_text("nothing")
    assert [request(server, both, PROMPT)[0] for _ in range(3)] == [200] * 3
    until(lambda: request(server, both, PROMPT) and _has_logged(server, "the last one stays"), "the log", 60)
    install(folder, issue(PODS, FIRST))
    until(lambda: not _is_refused(server, GATEWAY), "the repaired certificate", 60)
    assert server.process.poll() is None


async def test_a_connection_outlives_the_certificate_that_it_began_with(server: ServerProcess, folder: Path) -> None:
    port = int(server.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=GATEWAY, server_hostname=HOST)
    await asyncio.to_thread(install, folder, issue(PODS, FIRST, turn=1100))
    await asyncio.to_thread(request, server, GATEWAY, PROMPT)
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    writer.transport.abort()


@pytest.mark.parametrize("missing", ["--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs"])
def test_a_part_of_the_files_is_refused(tiny_v1: Path, folder: Path, missing: str) -> None:
    flags = list(certificates.flags(folder))
    at = flags.index(missing)
    with ServerProcess(tiny_v1, *flags[:at], *flags[at + 2 :]) as process:
        assert process.wait() == 2
    assert any("belong together" in line["msg"] for line in process.lines)


def test_files_that_are_no_pair_end_the_server_with_the_reason(tiny_v1: Path, tmp_path: Path) -> None:
    broken = install(tmp_path / "pod", issue(PODS, FIRST))
    (broken / "tls.key").write_text(issue(PODS, SECOND).private_key)
    log = tmp_path / "last"
    with ServerProcess(tiny_v1, *certificates.flags(broken), termination_log=log) as process:
        assert process.wait() == 1
    assert "The server cannot start: tls.crt, tls.key and ca.crt do not fit together" in log.read_text()


def _is_refused(server: ServerProcess, context: ssl.SSLContext) -> bool:
    try:
        request(server, context, PROMPT)
    except (ssl.SSLError, ConnectionError):
        return True
    return False


def _has_logged(server: ServerProcess, text: str) -> bool:
    return any(text in line["msg"] for line in server.lines)
