"""Serves the control API by HTTPS, at the operator that holds the lease and at those that stand by."""

import asyncio
import logging
from collections.abc import Callable

from aiohttp import web

from slipway_operator.component import Component
from slipway_operator.control_api.app import ControlRoutes
from slipway_operator.control_api.caller import CallerClient, open_session
from slipway_operator.kube.client import Client
from slipway_process.network.mutual_tls import UnusableCertificate
from slipway_process.network.port_tls import listener_context
from slipway_process.supervisor import OnFailure

RETRY_S = 5.0
_SHUTDOWN_S = 2.0
_KEEPALIVE_S = 15.0

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
            runner = web.AppRunner(
                routes.application(), access_log=None, keepalive_timeout=_KEEPALIVE_S, shutdown_timeout=_SHUTDOWN_S
            )
            await runner.setup()
            try:
                await web.TCPSite(runner, None, self._port, ssl_context=context).start()
                await asyncio.Event().wait()
            finally:
                await runner.cleanup()
