"""Client certificates as identity: real handshakes; names compared exactly, keys before certificates."""

import asyncio
import socket
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from grpc import aio

from devcluster.certificates import Authority
from slipway_gateway.grpc_api.messages import stream_answer
from slipway_gateway.identity.certificates import ClientCertificate, read
from slipway_gateway.identity.tenants import KnownTenant, UnreadableTenant, parse

from .grpc_gateway import INFER, STREAM, grpc_gateway, infer
from .grpc_gateway import echo as echo_message
from .harness import Gateway, echo, gateway, upstream
from .tenants import PEPPER, bearer, entry, make_key, tenant

SPIFFE = "spiffe://example.org/ns/team-a/sa/app"
KEY = make_key("k7Qm2x")
BODY = {"model": "chat"}


class Clients:
    """An authority that signs certificates with any names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = Authority.create(folder / "authority")
        self._authority.issue("server", "server", hosts=["127.0.0.1"])
        self.ca = str(self._authority.path("ca.crt"))

    def settings(self, **changes: Any) -> dict[str, Any]:
        paths = (str(self._authority.path("server.crt")), str(self._authority.path("server.key")), self.ca)
        return dict(zip(("tls_cert_file", "tls_private_key_file", "tls_client_ca_file"), paths, strict=True)) | changes

    def files(
        self,
        *names: x509.GeneralName,
        common: tuple[str, ...] = ("client",),
        lasts: timedelta = timedelta(days=1),
        usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
    ) -> tuple[str, str]:
        """Certificate and key."""
        issuer = x509.load_pem_x509_certificate(Path(self.ca).read_bytes())
        signer = serialization.load_pem_private_key(self._authority.path("ca.key").read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one) for one in common])
        builder = x509.CertificateBuilder(issuer.subject, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + lasts)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = self._folder / str(x509.random_serial_number())
        pem = serialization.Encoding.PEM
        made.with_suffix(".crt").write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(pem))
        secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        made.with_suffix(".key").write_bytes(secret)
        return str(made.with_suffix(".crt")), str(made.with_suffix(".key"))

    def context(self, *names: x509.GeneralName, **options: Any) -> ssl.SSLContext:
        """Of a client that has such a certificate."""
        context = self.stranger()
        context.load_cert_chain(*self.files(*names, **options))
        return context

    def credentials(self, *names: x509.GeneralName, **options: Any) -> grpc.ChannelCredentials:
        """The same for gRPC."""
        certificate, key = (Path(path).read_bytes() for path in self.files(*names, **options))
        return grpc.ssl_channel_credentials(Path(self.ca).read_bytes(), key, certificate)

    def trusting(self) -> grpc.ChannelCredentials:
        """Of a client of gRPC without one."""
        return grpc.ssl_channel_credentials(Path(self.ca).read_bytes())

    def stranger(self) -> ssl.SSLContext:
        """Of a client without one."""
        return ssl.create_default_context(cafile=self.ca)


@pytest.fixture
def clients(tmp_path: Path) -> Clients:
    return Clients(tmp_path)


def uri(name: str = SPIFFE) -> x509.GeneralName:
    return x509.UniformResourceIdentifier(name)


def certified(name: str, *certificates: str, **fields: Any) -> KnownTenant:
    return KnownTenant(name, certificates=certificates, **fields)


async def answer(gate: Gateway, context: ssl.SSLContext, headers: dict[str, str] | None = None) -> int:
    connector = aiohttp.TCPConnector(ssl=context)
    url = gate.url + "/v1/completions"
    async with (
        aiohttp.ClientSession(connector=connector) as client,
        client.post(url, json=BODY, headers=headers) as response,
    ):
        await response.read()
        return response.status


def methods(gate: Gateway) -> dict[tuple[str, str], int]:
    """Requests by how they were authenticated."""
    return {
        (sample.labels["method"], sample.labels["result"]): int(sample.value)
        for family in gate.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "slipway_gateway_authentications_total"
    }


async def test_each_kind_of_name_is_its_tenants_and_is_compared_exactly(clients: Clients) -> None:
    tenants = (
        certified("by-uri", f"uri:{SPIFFE}"),
        certified("by-dns", "dns:app.example.org"),
        certified("by-name", "commonName:App One"),
        certified("off", "dns:off.example.org", disabled=True),
    )
    async with upstream(echo) as server, gateway(tenants, **clients.settings()) as gate:
        gate.route(("rev", 100, [server.url]))
        good = [
            clients.context(uri()),
            clients.context(x509.DNSName("APP.example.org")),
            clients.context(common=("App One",)),
            clients.context(x509.DNSName("other.example.org"), uri()),
        ]
        assert [await answer(gate, context) for context in good] == [200] * 4
        assert methods(gate) == {("certificate", "ok"): 4}
        assert await answer(gate, clients.context(x509.DNSName("off.example.org"))) == 403
        bad = [
            clients.context(uri(SPIFFE + "2")),
            clients.context(uri(SPIFFE.upper())),
            clients.context(uri(), uri("spiffe://example.org/other")),  # no SPIFFE ID has two
            clients.context(x509.DNSName("x.app.example.org")),
            clients.context(x509.DNSName("*.example.org")),
            clients.context(x509.RFC822Name("app.example.org")),
            clients.context(common=("app one",)),
            clients.context(common=("App One", "other")),
            clients.context(common=(SPIFFE,)),
            clients.context(x509.DNSName("spiffe://example.org/ns/team-a/sa/app")),
        ]
        assert [await answer(gate, context) for context in bad] == [401] * len(bad)
        assert len({seen.headers["X-Slipway-Tenant"] for seen in server.seen}) == 3


async def test_a_bearer_wins_over_a_certificate_also_when_it_is_wrong(clients: Clients) -> None:
    tenants = (certified("by-certificate", f"uri:{SPIFFE}"), KnownTenant("by-key", keys=(entry(KEY),)))
    async with upstream(echo) as server, gateway(tenants, PEPPER, **clients.settings()) as gate:
        gate.route(("rev", 100, [server.url]))
        context = clients.context(uri())
        assert await answer(gate, context, bearer(KEY)) == 200
        assert await answer(gate, context, bearer("none")) == 200  # what clients send where no key is needed
        assert await answer(gate, context, bearer(make_key("k7Qm2x"))) == 401
        assert await answer(gate, context, bearer("sk-foreign")) == 401
        assert methods(gate) == {
            ("key", "ok"): 1,
            ("certificate", "ok"): 1,
            ("key", "invalid"): 1,
            ("none", "foreign"): 1,
        }


async def test_where_certificates_are_optional_clients_without_one_need_a_key_and_a_bad_one_ends_the_handshake(
    clients: Clients, tmp_path: Path
) -> None:
    tenants = (certified("by-certificate", f"uri:{SPIFFE}"), KnownTenant("by-key", keys=(entry(KEY),)))
    settings = clients.settings(tls_client_auth="optional")
    async with upstream(echo) as server, gateway(tenants, PEPPER, **settings) as gate:
        gate.route(("rev", 100, [server.url]))
        assert await answer(gate, clients.context(uri())) == 200
        assert await answer(gate, clients.stranger(), bearer(KEY)) == 200
        assert await answer(gate, clients.stranger()) == 401
        (tmp_path / "other").mkdir()
        foreign = clients.stranger()
        foreign.load_cert_chain(*Clients(tmp_path / "other").files(uri()))
        late = clients.context(uri(), lasts=timedelta(minutes=-1))
        of_server = clients.context(uri(), usage=ExtendedKeyUsageOID.SERVER_AUTH)
        for context in (foreign, late, of_server):
            with pytest.raises(aiohttp.ClientError):
                await answer(gate, context)
        assert len(server.seen) == 2


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_resumed_session_has_the_identity_of_its_certificate(clients: Clients, version: ssl.TLSVersion) -> None:
    async with upstream(echo) as server, gateway((certified("a", f"uri:{SPIFFE}"),), **clients.settings()) as gate:
        gate.route(("rev", 100, [server.url]))
        context = clients.context(uri())
        context.minimum_version = context.maximum_version = version
        port = int(gate.url.rpartition(":")[2])
        assert await asyncio.to_thread(_twice, context, port) == [(b"200", False), (b"200", True)]


def _twice(context: ssl.SSLContext, port: int) -> list[tuple[bytes, bool]]:
    """The status of each response, and whether its session was resumed."""
    found, session = [], None
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 16\r\n\r\n"
    for _ in range(2):
        plain = socket.create_connection(("127.0.0.1", port), timeout=30)
        with context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as secure:
            secure.sendall(head + b'{"model":"chat"}')
            status = secure.recv(65536).split(b" ")[1]
            session, resumed = secure.session, bool(secure.session_reused)
            found.append((status, resumed))
    return found


async def test_a_certificate_that_ends_on_an_open_connection_is_refused(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with upstream(echo) as server, gateway((certified("a", f"uri:{SPIFFE}"),), **clients.settings()) as gate:
        gate.route(("rev", 100, [server.url]))
        connector = aiohttp.TCPConnector(ssl=clients.context(uri(), lasts=timedelta(hours=1)))
        async with aiohttp.ClientSession(connector=connector) as client:

            async def status() -> tuple[int, str]:
                async with client.post(gate.url + "/v1/completions", json=BODY) as response:
                    return response.status, await response.text()

            assert (await status())[0] == 200
            now = gate.edge.authenticator._clock()
            monkeypatch.setattr(gate.edge.authenticator, "_clock", lambda: now + 3601)
            code, text = await status()
            assert code == 401 and "expired_api_key" in text


async def test_curl_is_known_by_its_certificate(clients: Clients) -> None:
    async with upstream(echo) as server, gateway((certified("a", f"uri:{SPIFFE}"),), **clients.settings()) as gate:
        gate.route(("rev", 100, [server.url]))
        certificate, key = clients.files(uri())
        command = ["curl", "-sS", "--fail", "--cacert", clients.ca, "--cert", certificate, "--key", key]
        command += ["-d", '{"model":"chat"}', gate.url + "/v1/completions"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and "/v1/completions" in done.stdout, done.stderr


async def test_without_an_authority_for_clients_the_tenants_status_says_so(clients: Clients) -> None:
    tenant = certified("a", f"uri:{SPIFFE}")
    async with gateway((tenant,), **clients.settings(tls_client_ca_file="")) as gate:
        assert await answer(gate, clients.context(uri())) == 401
        assert (gate.edge.authenticator.trouble_of(tenant, PEPPER) or ("",))[0] == "ClientCertificatesOff"
    async with gateway((tenant,), **clients.settings()) as gate:
        assert gate.edge.authenticator.trouble_of(tenant, PEPPER) is None


async def test_of_several_tenants_of_a_certificate_the_oldest_one_has_it(clients: Clients) -> None:
    tenants = (
        certified("young", f"uri:{SPIFFE}", created="2026-02-01T00:00:00Z", disabled=True),
        certified("old", "dns:app.example.org", created="2026-01-01T00:00:00Z"),
    )
    async with upstream(echo) as server, gateway(tenants, **clients.settings()) as gate:
        gate.route(("rev", 100, [server.url]))
        assert await answer(gate, clients.context(uri(), x509.DNSName("app.example.org"))) == 200


def test_what_is_no_name_in_a_certificate_names_no_tenant() -> None:
    assert read(None) is None and read({}) is None
    bare = {"notAfter": "Jan  5 09:34:43 2027 GMT", "subjectAltName": (("IP Address", "10.0.0.1"), ("email", "a@b"))}
    assert read(bare) == ClientCertificate((), 1_799_141_683.0)


@pytest.mark.parametrize("item", [{}, {"uri": "a:b", "dns": "c"}, {"dns": ""}])
def test_an_item_without_exactly_one_name_is_refused_by_its_place(item: dict[str, str]) -> None:
    spec = {"models": ["*"], "auth": {"clientCertificates": [{"dns": "a"}, item]}}
    with pytest.raises(UnreadableTenant, match=r"spec\.auth\.clientCertificates\[1\]"):
        parse({"metadata": {"name": "team-a"}, "spec": spec})


async def test_a_certificate_is_its_tenants_by_grpc_too(clients: Clients) -> None:
    tenants = (certified("by-uri", f"uri:{SPIFFE}"), certified("by-name", "commonName:App One"))
    async with upstream(echo_message) as server, grpc_gateway(tenants, **clients.settings()) as made:
        made.gate.route(("rev", 100, [server.url]))

        async def call(*names: x509.GeneralName, **options: Any) -> str:
            trusted = clients.credentials(*names, **options)
            own = [("grpc.use_local_subchannel_pool", 1)]
            async with aio.secure_channel(f"127.0.0.1:{made.server.port}", trusted, options=own) as channel:
                try:
                    await channel.unary_unary(INFER)(infer())
                except aio.AioRpcError as error:
                    return error.code().name
                return "OK"

        assert [await call(uri()), await call(common=("App One",))] == ["OK", "OK"]
        assert methods(made.gate) == {("certificate", "ok"): 2}
        channel = aio.secure_channel(f"127.0.0.1:{made.server.port}", clients.credentials(uri()))
        async with channel:
            stream = channel.stream_stream(STREAM)()
            await stream.write(infer())
            await stream.done_writing()
            assert [answer async for answer in stream] == [stream_answer(infer())]
        assert await call(uri("spiffe://example.org/ns/team-b/sa/app")) == "UNAUTHENTICATED"
        assert await call(uri(), uri("spiffe://example.org/another"), common=("No One",)) == "UNAUTHENTICATED"


async def test_where_certificates_are_optional_a_key_does_by_grpc_too(clients: Clients) -> None:
    key = make_key("mine01")
    tenants = (certified("by-uri", f"uri:{SPIFFE}"), tenant("by-key", key))
    settings = clients.settings(tls_client_auth="optional")
    async with upstream(echo_message) as server, grpc_gateway(tenants, PEPPER, **settings) as made:
        made.gate.route(("rev", 100, [server.url]))
        for trusted, metadata in (
            (clients.trusting(), (("authorization", f"Bearer {key}"),)),
            (clients.credentials(uri()), ()),
        ):
            own = [("grpc.use_local_subchannel_pool", 1)]
            async with aio.secure_channel(f"127.0.0.1:{made.server.port}", trusted, options=own) as channel:
                assert await channel.unary_unary(INFER)(infer(), metadata=metadata) == infer()
        assert methods(made.gate) == {("key", "ok"): 1, ("certificate", "ok"): 1}
