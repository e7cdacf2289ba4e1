"""The operator's connections to gateways and pods: real handshakes with its certificate, and names."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from slipway_operator.manifests.pods import certificate
from slipway_operator.outbound.inside import open_inside
from slipway_process.network.mutual_tls import IdentityFiles, PemIdentity, has_certificate, reloaded_server_context
from tests.support.certificates import GATEWAY_HOST, HOST, PODS, install, issue, new_authority

FIRST, SECOND = new_authority(), new_authority()


def identity(*known: object) -> PemIdentity:
    issued = issue(certificate.OPERATOR, *known)  # type: ignore[arg-type]
    return PemIdentity(issued.certificate, issued.private_key, issued.ca)


@contextlib.asynccontextmanager
async def serving(context: ssl.SSLContext | None) -> AsyncIterator[int]:
    async def page(request: web.Request) -> web.Response:
        return web.Response(status=200 if has_certificate(request.get_extra_info("peercert")) or not context else 403)

    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def status(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as answer:
        return answer.status


@pytest.mark.parametrize(("role", "host"), [(PODS, HOST), (certificate.GATEWAY, GATEWAY_HOST)])
async def test_pods_and_gateways_know_the_operator(tmp_path: Path, role: certificate.Role, host: str) -> None:
    context = reloaded_server_context(IdentityFiles.in_folder(install(tmp_path / "tls", issue(role, FIRST))))
    async with serving(context) as port, open_inside(lambda: identity(FIRST)) as session:
        assert await status(session, f"https://{host}:{port}/metrics") == 200


@pytest.mark.attack_class(2)
async def test_a_pod_that_pretends_to_be_a_gateway_gets_no_token(tmp_path: Path) -> None:
    context = reloaded_server_context(IdentityFiles.in_folder(install(tmp_path / "tls", issue(PODS, FIRST))))
    async with serving(context) as port, open_inside(lambda: identity(FIRST)) as session:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await status(session, f"https://{GATEWAY_HOST}:{port}/metrics")


async def test_a_new_certificate_is_used_by_the_next_connection(tmp_path: Path) -> None:
    folder = install(tmp_path / "tls", issue(certificate.GATEWAY, FIRST))
    known = [identity(FIRST)]
    async with serving(reloaded_server_context(IdentityFiles.in_folder(folder))) as port:
        async with open_inside(lambda: known[0]) as session:
            assert await status(session, f"https://{GATEWAY_HOST}:{port}/metrics") == 200
        install(folder, issue(certificate.GATEWAY, SECOND))
    renewed = reloaded_server_context(IdentityFiles.in_folder(folder))
    async with serving(renewed) as port, open_inside(lambda: known[0]) as session:
        with pytest.raises(aiohttp.ClientError):
            await status(session, f"https://{GATEWAY_HOST}:{port}/metrics")
        known[0] = identity(SECOND)
        assert await status(session, f"https://{GATEWAY_HOST}:{port}/metrics") == 200


async def test_without_a_certificate_http_is_as_before_and_tls_fails(tmp_path: Path) -> None:
    async with serving(None) as port, open_inside(lambda: None) as session:
        assert await status(session, f"http://127.0.0.1:{port}/metrics") == 200
    context = reloaded_server_context(IdentityFiles.in_folder(install(tmp_path / "tls", issue(PODS, FIRST))))
    async with serving(context) as port, open_inside(lambda: None) as session:
        with pytest.raises(aiohttp.ClientError):
            await status(session, f"https://{HOST}:{port}/metrics")
