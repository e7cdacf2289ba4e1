"""Serves the conversion webhook by HTTPS, and keeps its certificate and its place in the CRDs: two components."""

import asyncio
import logging
import ssl
from asyncio import sslproto
from collections.abc import Callable

from slipway_operator.component import Component
from slipway_operator.conversion.app import ConversionRoutes
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Fenced
from slipway_operator.kube.secrets.conversion_ca import ConversionCa
from slipway_operator.kube.writing.conversion_webhook import NotOurs, register
from slipway_operator.model.cluster.authorities import UnreadableAuthorities
from slipway_operator.model.cluster.certificates import Issued
from slipway_operator.model.cluster.webhook_host import WebhookHost
from slipway_process.network import bounded_port
from slipway_process.network.connections import ConnectionLimit, refusal
from slipway_process.network.mutual_tls import in_memory_file
from slipway_process.supervisor import OnFailure

LOOK_S = 60.0
SOON_S = 2.0  # until the Secret exists, and until an operator has the lease
RETRY_S = 5.0
MOST_CONNECTIONS = 128
_REFUSAL = refusal(b"Too many connections to the conversion webhook are open: try again.\n")
_READ_BYTES = 16 << 10  # asyncio allocates it for each connection, and 256 KiB by default

log = logging.getLogger(__name__)


class ConversionCertificate(Component):
    """The certificate, and the CRDs that name its CA. Only the operator with the lease writes the Secret and the CRDs.

    Failures are logged and retried: v1alpha1, with which operator, gateways and command line work, needs none of it.
    """

    task, on_failure = "conversion-certificate", OnFailure.SHOW

    def __init__(self, client: Client, host: WebhookHost, ca: ConversionCa | None = None) -> None:
        """`ca`: another one than that of the host's Secret."""
        self._client, self._host = client, host
        self._ca = ca or ConversionCa(client, host)
        self._issued: Issued | None = None
        self._context: ssl.SSLContext | None = None
        self._is_there = asyncio.Event()
        self._trouble = ""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            pause_s = await self._look()
            await asyncio.sleep(pause_s)

    async def keep(self) -> None:
        """Have the current certificate, and have the CRDs name its CA.

        Raises:
            ApiError, NotOurs: the Secret or a CRD cannot be read or changed, or names another webhook.
            UnreadableAuthorities: the Secret holds something else.
        """
        issued = await self._ca.look()
        if issued is None:
            return
        if issued != self._issued:
            self._context, self._issued = _context(issued), issued
            self._is_there.set()
        for name in await register(self._client, self._host, issued.ca):
            log.info("%s serves v1beta1; its conversion webhook is Service %s", name, self._host.service)

    async def listener_context(self) -> ssl.SSLContext:
        """A context by which each handshake has the certificate of that moment; waits until there is one."""
        await self._is_there.wait()
        assert self._issued is not None

        # OpenSSL calls it in each handshake, also where the client sends no name.
        def replace(connection: ssl.SSLObject, _name: str | None, _outer: ssl.SSLContext) -> None:
            assert self._context is not None
            connection.context = self._context

        sslproto.SSLProtocol.max_size = _READ_BYTES
        outer = _context(self._issued)
        outer.sni_callback = replace
        return outer

    async def _look(self) -> float:
        """Take what the next look is due for; returns the seconds until it."""
        try:
            await self.keep()
        except Fenced:
            self._log_once("")
            return LOOK_S if self._issued else SOON_S
        except (ApiError, NotOurs, UnreadableAuthorities) as error:
            self._log_once(f"v1beta1 of slipway.dev is not served as it should be: {error}")
            return RETRY_S
        self._log_once("")
        return LOOK_S if self._issued else SOON_S

    def _log_once(self, trouble: str) -> None:
        """Log a problem, unless the last look had the same one; empty: the last look had none."""
        if trouble and trouble != self._trouble:
            log.warning("%s", trouble)
        self._trouble = trouble


class ConversionPort(Component):
    """The listener of one operator, also of one that stands by: an answer needs no lease."""

    task, on_failure = "conversion-port", OnFailure.SHOW

    def __init__(self, port: int, certificate: ConversionCertificate, counted: Callable[[int], None]) -> None:
        """`counted` gets the status of each response."""
        self._port, self._certificate = port, certificate
        self._routes = ConversionRoutes(counted)
        self._trouble = ""

    async def run(self) -> None:
        """Serve until cancelled; where the port is not free, try again."""
        context = await self._certificate.listener_context()
        limit = ConnectionLimit(MOST_CONNECTIONS, _REFUSAL)
        while True:
            try:
                name = "slipway_operator.conversion.http"
                await bounded_port.serve(self._routes.application(), limit, self._port, context, name)
            except OSError as error:
                if str(error) != self._trouble:
                    log.error("the conversion webhook is not served: %s", error)
                self._trouble = str(error)
            await asyncio.sleep(RETRY_S)


def _context(issued: Issued) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with in_memory_file(issued.certificate + issued.private_key) as path:
        context.load_cert_chain(path)
    return context
