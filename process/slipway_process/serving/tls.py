"""TLS of the API port: for gateways and the operator, which have a certificate of the release's authority."""

import ssl
from asyncio import sslproto
from pathlib import Path

from aiohttp import web

from slipway_process.network import mutual_tls
from slipway_process.serving.errors import HttpError
from slipway_process.serving.settings import ServingSettings

# Paths of probes and of Prometheus, which have no certificate; their answers show nothing of a request.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
# asyncio allocates this for each connection, and 256 KiB by default.
_READ_BYTES = 16 << 10


def listener_context(settings: ServingSettings) -> ssl.SSLContext | None:
    """The TLS context of the API port, which reads its files again when they change; None: plain HTTP.

    Raises:
        OSError, UnusableCertificate: the files cannot be used.
    """
    if not settings.ssl_certfile:
        return None
    sslproto.SSLProtocol.max_size = _READ_BYTES
    files = (settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs)
    return mutual_tls.reloaded_server_context(mutual_tls.IdentityFiles(*map(Path, files)))


def check_client(http: web.Request) -> None:
    """Refuse clients without a certificate, except on OPEN_PATHS.

    Raises:
        HttpError: the client of this connection has no certificate.
    """
    if http.path in OPEN_PATHS or mutual_tls.has_certificate(http.get_extra_info("peercert")):
        return
    raise HttpError(
        403,
        "This server takes requests from clients with a certificate of its release only: send them to the gateway.",
        code="certificate_required",
    )
