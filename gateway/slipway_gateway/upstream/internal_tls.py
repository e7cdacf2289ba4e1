"""TLS to pods, and of the port for the operator: one certificate of the release, and names with addresses in them."""

import ssl
from asyncio import sslproto
from pathlib import Path

from cryptography import x509

from slipway_process.network.mutual_tls import (
    IdentityFiles,
    PemIdentity,
    Reloaded,
    client_context,
    reloaded_server_context,
)

from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics

# asyncio allocates this for each connection, and 256 KiB by default.
_READ_BYTES = 16 << 10


class InternalTls:
    """The certificate of this gateway and the authorities that it trusts, as the files are at each handshake.

    Raises:
        OSError, UnusableCertificate: the files cannot be used at the start.
    """

    def __init__(self, folder: Path) -> None:
        sslproto.SSLProtocol.max_size = _READ_BYTES
        self._files = IdentityFiles.in_folder(folder)
        self._as_client = Reloaded(self._files, _load)

    def client_context(self) -> ssl.SSLContext:
        """The TLS context of the next connection to a pod."""
        return self._as_client.current()[0]

    def expires_s(self) -> float:
        """Unix time in seconds at which the certificate expires."""
        return self._as_client.current()[1]

    def server_context(self) -> ssl.SSLContext:
        """The TLS context of a listener; each handshake uses the files as they are then."""
        return reloaded_server_context(self._files)


def _load(identity: PemIdentity) -> tuple[ssl.SSLContext, float]:
    context = client_context(identity)
    return context, x509.load_pem_x509_certificate(identity.certificate.encode()).not_valid_after_utc.timestamp()


def internal_tls(settings: GatewaySettings, metrics: GatewayMetrics) -> InternalTls | None:
    """TLS inside the release; None where the settings name no folder. Raises OSError, UnusableCertificate."""
    if not settings.internal_tls_dir:
        return None
    found = InternalTls(Path(settings.internal_tls_dir))
    metrics.internal_certificate.set_function(found.expires_s)
    return found
