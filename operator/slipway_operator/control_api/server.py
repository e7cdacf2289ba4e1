"""Serves the control API by HTTPS, at the operator that holds the lease and at those that stand by."""

import asyncio
import logging
import ssl
from collections.abc import Callable

from slipway_operator.component import Component
from slipway_operator.control_api.app import ControlRoutes
from slipway_operator.control_api.caller import CallerClient, open_session
from slipway_operator.kube.client import Client
from slipway_process.network.connections import ConnectionLimit, refusal
from slipway_process.network.http_server import HttpRunner
from slipway_process.network.mutual_tls import UnusableCertificate
from slipway_process.network.port_tls import listener_context
from slipway_process.supervisor import OnFailure

RETRY_S = 5.0
_SHUTDOWN_S = 2.0
_KEEPALIVE_S = 15.0
MOST_CONNECTIONS = 256
_HANDSHAKE_S = 10.0  # a connection counts when its handshake is done
_REFUSAL = refusal(b"Too many connections to the control API are open: close some, or wait, and try again.\n")

log = logging.getLogger(__name__)


class ControlApi(Component):
    """One listener. It writes nothing of its own, so it needs no lease: what callers write, their rights allow."""

    task, on_failure = "control-api", OnFailure.SHOW

    def __init__(
        self, client: Client, port: int, certificate: str, private_key: str, counted: Callable[[str, int], None]
    ) -> None:
        """`client`: it says where the API server is. The others: PEM files, read again on a change."""
        self._client, self._port, self._counted = client, port, counted
        self._files = (certificate, private_key)

    async def run(self) -> None:
        """Serve until cancelled; where the certificate or the port is not there yet, try again."""
        trouble = ""
        while True:
            try:
                await self._serve()
            except (OSError, UnusableCertificate) as error:
                if str(error) != trouble:
                    log.error("the control API is not served: %s", error)
                trouble = str(error)
            await asyncio.sleep(RETRY_S)

    async def _serve(self) -> None:
        context = listener_context(*self._files)
        credentials = await self._client.credentials()
        async with open_session(credentials) as session:
            routes = ControlRoutes(CallerClient(session, credentials.server, credentials.proxy), self._counted)
            runner = HttpRunner(
                routes.application(),
                ConnectionLimit(MOST_CONNECTIONS, _REFUSAL).connection,
                access_log=None,
                logger=_quiet(),
                keepalive_timeout=_KEEPALIVE_S,
                shutdown_timeout=_SHUTDOWN_S,
            )
            await runner.setup()
            try:
                await _listen(runner, self._port, context)
            finally:
                await runner.cleanup()


async def _listen(runner: HttpRunner, port: int, context: ssl.SSLContext | None) -> None:
    """Serves until it is cancelled. aiohttp's own site has no limit of a handshake's time but asyncio's minute."""
    assert runner.server is not None
    listener = await asyncio.get_running_loop().create_server(
        runner.server, None, port, ssl=context, ssl_handshake_timeout=_HANDSHAKE_S, backlog=128
    )
    try:
        await asyncio.Event().wait()
    finally:
        listener.close()


def _quiet() -> logging.Logger:
    """aiohttp's own logger has a traceback for each malformed request: noise that a client controls."""
    quiet = logging.getLogger("slipway_operator.control_api.http")
    quiet.setLevel(logging.CRITICAL)
    return quiet
