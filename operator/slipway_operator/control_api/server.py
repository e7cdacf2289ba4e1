"""Serves the control API by HTTPS, at the operator that holds the lease and at those that stand by."""

import asyncio
import logging
from collections.abc import Callable

from slipway_operator.component import Component
from slipway_operator.control_api.app import ControlRoutes
from slipway_operator.control_api.caller import CallerClient, open_session
from slipway_operator.kube.client import Client
from slipway_process.network import bounded_port
from slipway_process.network.connections import ConnectionLimit, refusal
from slipway_process.network.mutual_tls import UnusableCertificate
from slipway_process.network.port_tls import listener_context
from slipway_process.supervisor import OnFailure

RETRY_S = 5.0
MOST_CONNECTIONS = 256
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
            limit = ConnectionLimit(MOST_CONNECTIONS, _REFUSAL)
            name = "slipway_operator.control_api.http"
            await bounded_port.serve(routes.application(), limit, self._port, context, name)
