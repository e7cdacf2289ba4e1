"""Certificates of cert-manager on a real API server with its own CRDs; its controller is played here.

`test_cert_manager_itself.py` has the real one.
"""

import asyncio
import base64
import contextlib
import logging
import time

import pytest
from aiohttp import web
from cryptography import x509

from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import CERTIFICATES, MODEL_DEPLOYMENTS, SECRETS
from slipway_operator.kube.secrets import cert_manager, certificates, kept
from slipway_operator.kube.secrets.certificates import Certificates, CertificateSecrets
from slipway_operator.manifests.pods.certificate import NAME
from slipway_operator.model.cluster import authorities
from slipway_operator.model.cluster.authorities import Terms
from slipway_operator.model.cluster.certificates import Issued
from slipway_operator.model.issuing import trust
from slipway_operator.model.issuing.issuer import IssuerRef
from slipway_process.network import mutual_tls
from testkit.until import until, until_async
from testkit.world.rights import grant, issuer_rules
from tests.support.cert_manager import PlayedController, install, new_ca, pem, remove
from tests.support.certificates import install as install_files

pytestmark = [pytest.mark.integration, pytest.mark.attack_class(2)]

CA, GATEWAYS = "slipway-internal-ca", "slipway-gateway-internal-tls"
ISSUER = IssuerRef("internal", "Issuer")
PROPAGATION_S = 2.0
TERMS = Terms(propagation_s=PROPAGATION_S)
READ_S = 0.1


@pytest.fixture
def operator_flags():
    return (f"--internal-ca-secret={CA}", "--tls-new-revisions=on", f"--internal-issuer={ISSUER}")


@pytest.fixture
async def controller(client, namespace):
    await install(client)
    async with PlayedController(client, namespace, new_ca("first")).running() as played:
        yield played


@pytest.fixture
async def absent(client):
    """The API server is without cert-manager's CRDs."""
    await remove(client)


@pytest.fixture
async def rights(client, namespace):
    """Those that the operator's page lists for certificates of cert-manager."""
    await grant(client, namespace, "issuer", issuer_rules())


async def secret(client, namespace, name):
    async def look():
        try:
            return await client.get(SECRETS, namespace, name)
        except NotFound:
            return None

    return await until_async(look, f"the Secret {name}", 60)


def field(found, name):
    return base64.b64decode(found["data"][name]).decode()


def issuer_of(found):
    return x509.load_pem_x509_certificate(field(found, "tls.crt").encode()).issuer


async def test_gateways_and_pods_have_certificates_of_the_issuer_alone(controller, rights, cluster, chat):
    """The operator has the rights that its page lists, and nothing of its own signs."""
    client, namespace, ca = cluster.client, cluster.namespace, controller.ca
    pods, gateways = await secret(client, namespace, NAME), await secret(client, namespace, GATEWAYS)
    for found in (pods, gateways):
        assert issuer_of(found) == ca.certificate.subject
        assert field(found, "ca.crt") == pem(ca.certificate)
    release = await secret(client, namespace, CA)
    assert authorities.parse(release["data"]) == ()
    assert [one.certificate for one in trust.cas(trust.parse(release["data"]))] == [pem(ca.certificate)]

    made = {item["metadata"]["name"]: item for item in await client.list(CERTIFICATES, namespace)}
    requested = {name: (item["spec"]["dnsNames"], item["spec"]["usages"][1:]) for name, item in made.items()}
    assert requested == {
        "slipway-internal-gateway": (["*.gateway.slipway.internal"], ["server auth", "client auth"]),
        "slipway-internal-operator": (["operator.slipway.internal"], ["client auth"]),
        f"slipway-internal-pods-{namespace}": ([f"*.{namespace}.pod.slipway.internal"], ["server auth"]),
    }
    spec = made["slipway-internal-gateway"]["spec"]
    assert spec["issuerRef"] == {"name": "internal", "kind": "Issuer", "group": "cert-manager.io"}
    assert (spec["duration"], spec["renewBefore"]) == ("2160h0m0s", "720h0m0s")
    assert spec["privateKey"]["rotationPolicy"] == "Always"

    await cluster.operator.kill()
    await client.delete(SECRETS, namespace, NAME, pods["metadata"]["uid"])
    await cluster.operator.start()
    assert (await secret(client, namespace, NAME))["data"] == pods["data"]
    again = {item["metadata"]["name"]: item for item in await client.list(CERTIFICATES, namespace)}
    assert {name: item["metadata"]["generation"] for name, item in again.items()} == dict.fromkeys(made, 1)
    assert await client.get(MODEL_DEPLOYMENTS, namespace, "chat")


async def test_without_cert_manager_the_log_says_so_and_certificates_come_once_it_is_there(
    absent, rights, cluster, chat
):
    def log():
        return cluster.operator.log()

    until(log, "the reason is logged", 60, holds=lambda text: "install cert-manager" in text)
    assert log().count("install cert-manager") == 1
    with pytest.raises(NotFound):
        await cluster.client.get(SECRETS, cluster.namespace, NAME)
    await install(cluster.client)
    async with PlayedController(cluster.client, cluster.namespace, new_ca("late")).running() as played:
        found = await secret(cluster.client, cluster.namespace, NAME)
        assert issuer_of(found) == played.ca.certificate.subject


class Copy:
    """The files of a Secret in a process, which come late, as from a kubelet."""

    def __init__(self, client, namespace, name, folder, late_s):
        self.folder, self.late_s = folder, late_s
        self._client, self._where = client, (namespace, name)
        self._data = None

    async def is_current(self, ca):
        """Whether the process has the Secret as it is, and this `ca.crt` is in it."""
        data = (await self._client.get(SECRETS, *self._where))["data"]
        return data == self._data and data["ca.crt"] == ca

    async def run(self):
        while True:
            data = (await self._client.get(SECRETS, *self._where))["data"]
            if data != self._data:
                await asyncio.sleep(self.late_s if self._data else 0)
                texts = (base64.b64decode(data[name]).decode() for name in ("tls.crt", "tls.key", "ca.crt"))
                install_files(self.folder, Issued(*texts))
                self._data = data
            await asyncio.sleep(READ_S)


class Requests:
    """A request after another, each by a connection of its own, as a gateway opens them to a pod."""

    def __init__(self, gateway, port, namespace):
        self._contexts = mutual_tls.Reloaded(mutual_tls.IdentityFiles.in_folder(gateway), mutual_tls.client_context)
        self._port, self._name = port, f"127-0-0-1.{namespace}.pod.slipway.internal"
        self.issuers, self.failures = [], []

    async def run(self):
        while True:
            try:
                await self._request()
            except (OSError, AssertionError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(0.02)

    async def _request(self):
        context = self._contexts.current()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=context, server_hostname=self._name)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        line = await reader.readline()
        issuer = dict(pair[0] for pair in writer.get_extra_info("peercert")["issuer"])["commonName"]
        writer.close()
        assert b" 200 " in line, line
        if self.issuers[-1:] != [issuer]:
            self.issuers.append(issuer)


class Clock:
    """Goes on only while both processes have what the operator wrote, however slow the machine is.

    Four steps are the time after which a CA counts as trusted everywhere: the first may come just before it is written.
    """

    def __init__(self, client, namespace, *copies):
        self.now = time.time()
        self._client, self._namespace, self._copies = client, namespace, copies

    def __call__(self):
        return self.now

    async def run(self):
        while True:
            ca = (await self._client.get(SECRETS, self._namespace, CA))["data"]["ca.crt"]
            if all([await copy.is_current(ca) for copy in self._copies]):
                self.now += PROPAGATION_S / 4
            await asyncio.sleep(READ_S)


@contextlib.asynccontextmanager
async def server_of(folder):
    async def answer(request):
        known = mutual_tls.has_certificate(request.get_extra_info("peercert"))
        return web.Response(status=200 if known else 403)

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    context = mutual_tls.reloaded_server_context(mutual_tls.IdentityFiles.in_folder(folder))
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def background(*runs):
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        yield
        assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(kept, "LOOK_S", READ_S)
    monkeypatch.setattr(cert_manager, "AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(certificates, "SOON_S", READ_S)
    monkeypatch.setattr(mutual_tls, "LOOK_AGAIN_S", 0.0)


def keeper(client, namespace, issuer, clock=time.time):
    names = CertificateSecrets(namespace, CA, GATEWAYS)
    return Certificates(client, names, lambda: [(namespace, "chat")], TERMS, clock, issuer=issuer)


@pytest.mark.parametrize(("gateway_late_s", "pod_late_s"), [(0.0, 1.0), (1.0, 0.0)])
async def test_no_request_is_lost_while_who_signs_changes(
    client, namespace, controller, quick, tmp_path, gateway_late_s, pod_late_s
):
    """From own authorities to the issuer, to another CA of it, and back; one side has each new file much later."""
    own = keeper(client, namespace, None)
    await own.look()
    await own.keep(namespace)
    gateway = Copy(client, namespace, GATEWAYS, tmp_path / "gateway", gateway_late_s)
    pod = Copy(client, namespace, NAME, tmp_path / "pod", pod_late_s)
    clock = Clock(client, namespace, gateway, pod)
    async with background(gateway.run(), pod.run()):
        await until_async(lambda: asyncio.sleep(0, pod.folder.exists() and gateway.folder.exists()), "files")
        async with server_of(pod.folder) as port:
            requests = Requests(gateway.folder, port, namespace)

            async def signed_by(name, seen):
                await until_async(lambda: asyncio.sleep(0, requests.issuers), f"{name} signs", 60, holds=seen)
                after = clock.now + PROPAGATION_S
                await until_async(
                    lambda: asyncio.sleep(0, clock.now), "both have it", 60, holds=lambda now: now > after
                )

            async with background(requests.run(), clock.run()):
                async with background(keeper(client, namespace, ISSUER, clock).run()):
                    await signed_by("the issuer", lambda seen: seen[-1:] == ["first"])
                    controller.ca = new_ca("second")
                    await signed_by("its other CA", lambda seen: seen[-1:] == ["second"])
                async with background(keeper(client, namespace, None, clock).run()):
                    await signed_by("an own authority", lambda seen: seen[-1].startswith("slipway "))
    assert requests.failures == []
    assert len(requests.issuers) == 4, requests.issuers


async def test_a_certificate_that_is_not_ready_is_named_and_own_authorities_go_on(
    client, namespace, controller, caplog
):
    caplog.set_level(logging.WARNING)
    controller.refuses = "the issuer internal is not there"
    offset = 0.0

    def clock():
        return time.time() + offset

    own = keeper(client, namespace, None, clock)
    await own.keep(namespace)
    before = await secret(client, namespace, NAME)
    kept_ = keeper(client, namespace, ISSUER, clock)
    await kept_.look()
    assert "is not usable" not in caplog.text
    assert kept_.problem(namespace) is None
    where = f"Certificate {namespace}/slipway-internal-pods-{namespace} of the issuer Issuer/internal"
    named = f"{where} is not usable for"

    async def look():
        nonlocal offset
        offset += cert_manager.SLOW_S
        await kept_.look()
        await kept_.keep(namespace)
        return caplog.text

    async def problem():
        await look()
        return kept_.problem(namespace)

    await until_async(problem, "the problem is shown", holds=lambda found: found == f"{where}: {controller.refuses}")
    await until_async(look, "the reason is logged", holds=lambda text: controller.refuses in text and named in text)
    assert (await secret(client, namespace, NAME))["data"] == before["data"]
    assert kept_.identity().certificate

    controller.refuses = ""

    async def signs():
        await look()
        return issuer_of(await secret(client, namespace, NAME))

    await until_async(signs, "the issuer signs", holds=lambda found: found == controller.ca.certificate.subject)
    assert kept_.problem(namespace) == ""


async def test_while_the_issuer_gives_nothing_new_the_former_certificate_stays(client, namespace, controller, quick):
    """A restarted operator finds Certificates that are not ready: it writes who is trusted, and no other field."""
    async with background(keeper(client, namespace, ISSUER).run()):
        pods, gateways = await secret(client, namespace, NAME), await secret(client, namespace, GATEWAYS)
    controller.holds = {item["metadata"]["name"] for item in await client.list(CERTIFICATES, namespace)}
    for name in controller.holds:
        path = CERTIFICATES.path(namespace, name, "status")
        await client.request("PATCH", path, [], {"status": {"conditions": None}}, "application/merge-patch+json")
    again = keeper(client, namespace, IssuerRef("other", "Issuer"))
    await again.look()
    await again.keep(namespace)
    assert (await secret(client, namespace, NAME))["data"] == pods["data"]
    assert (await secret(client, namespace, GATEWAYS))["data"] == gateways["data"]
    back = keeper(client, namespace, None)
    await back.look()
    await back.keep(namespace)
    for name, before in ((NAME, pods), (GATEWAYS, gateways)):
        found = (await secret(client, namespace, name))["data"]
        assert {**found, "ca.crt": ""} == {**before["data"], "ca.crt": ""}
        assert len(x509.load_pem_x509_certificates(base64.b64decode(found["ca.crt"]))) == 2
