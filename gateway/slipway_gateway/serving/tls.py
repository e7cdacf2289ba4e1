"""TLS of the API port: a certificate from files that are read again when they change, and bounded handshakes."""

import asyncio
import logging
import ssl
import time
from asyncio import sslproto
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

from cryptography import x509

from slipway_process.supervisor import observe

from ..limits.connections import address_owner
from ..limits.transports import bound_buffers
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics
from ..wire import errors

LOOK_AGAIN_S = 2.0
# asyncio allocates this for each connection, and 256 KiB by default: with it an idle connection has some 40 KiB.
_READ_BYTES = 16 << 10
# How long the other side has to confirm the end of a connection.
_SHUTDOWN_S = 1.0
HTTP_1_1, HTTP_2 = PROTOCOLS = "http/1.1", "h2"  # as ALPN names them
REQUIRED, OPTIONAL = "required", "optional"
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

if TYPE_CHECKING:
    from slipway_plane import _native

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `client_ca` "": clients need no certificate. `client_auth`: whether they do with a `client_ca`."""

    certificate: str
    private_key: str
    client_ca: str = ""
    min_version: str = "1.2"
    client_auth: str = REQUIRED

    def signature(self) -> tuple[tuple[int, int, int], ...]:
        """A value that differs after a file was changed or replaced. Raises OSError."""
        paths = (self.certificate, self.private_key, self.client_ca)
        found = [Path(path).stat() for path in paths if path]
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)

    def pem(self) -> "Pem":
        """Raises OSError."""
        return Pem(
            certificate=Path(self.certificate).read_bytes(),
            private_key=Path(self.private_key).read_bytes(),
            client_ca=Path(self.client_ca).read_bytes() if self.client_ca else b"",
            requires_client=self.client_auth != OPTIONAL,
            is_newest=self.min_version == "1.3",
        )

    def load(self) -> tuple[dict[str, ssl.SSLContext], datetime]:
        """A context with the certificate for each protocol of `PROTOCOLS`, and when the certificate expires.

        Raises:
            OSError, ValueError: the files cannot be used.
        """
        contexts = {protocol: self._context(protocol) for protocol in PROTOCOLS}
        return contexts, x509.load_pem_x509_certificate(Path(self.certificate).read_bytes()).not_valid_after_utc

    def _context(self, protocol: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[self.min_version]
        context.set_alpn_protocols([protocol])
        try:
            context.load_cert_chain(self.certificate, self.private_key, password=_encrypted)
        except ssl.SSLError as error:
            reason = error.reason or "neither is empty, both are PEM"
            raise ValueError(f"{self.certificate} and {self.private_key} are no pair: {reason}") from None
        if self.client_ca:
            context.verify_mode = ssl.CERT_OPTIONAL if self.client_auth == OPTIONAL else ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError as error:
                raise ValueError(f"{self.client_ca} has no certificates: {error.reason}") from None
        return context


class Pem(NamedTuple):
    """Contents of files of `TlsFiles`, for a library of TLS that is not Python's."""

    certificate: bytes
    private_key: bytes
    client_ca: bytes
    requires_client: bool
    is_newest: bool  # TLS 1.3 alone

    def has_roots_alone(self) -> bool:
        """Whether each authority for clients is a root. OpenSSL ends a chain at no other one; other libraries may."""
        listed = x509.load_pem_x509_certificates(self.client_ca) if self.client_ca else []
        return all(one.issuer == one.subject for one in listed)


def _encrypted() -> NoReturn:
    raise ValueError("the private key is encrypted: write it without a passphrase")


class ServerTls:
    """What listeners need for TLS. Files that cannot be read leave the last certificate in use.

    Raises:
        OSError, ValueError: when they cannot be read at the start.
    """

    def __init__(self, files: TlsFiles, metrics: GatewayMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        sslproto.SSLProtocol.max_size = _READ_BYTES
        self._files, self._metrics, self._clock = files, metrics, clock
        self._signature = files.signature()
        self._contexts, expires = files.load()
        self.pem = files.pem()
        self.on_change: Callable[[], None] = lambda: None  # there are other files
        metrics.certificate_expires(expires.timestamp())
        self._looked_s = clock()
        self._trouble = ""

    def context(self, protocol: str = HTTP_1_1) -> ssl.SSLContext:
        """The TLS context of the next handshake for a protocol; reads the files again if they have changed."""
        self.look()
        return self._contexts[protocol]

    def look(self) -> None:
        """Reads the files again if they have changed, at most every two seconds."""
        now_s = self._clock()
        if now_s - self._looked_s >= LOOK_AGAIN_S:
            self._looked_s = now_s
            self._look()

    def failed(self, error: Exception) -> None:
        """Counts a handshake that ended without a connection."""
        self._metrics.turned_away("handshake")
        log.debug("a TLS handshake failed: %s", error)

    def _look(self) -> None:
        try:
            signature = self._files.signature()
            if signature == self._signature:
                return
            contexts, expires = self._files.load()
            pem = self._files.pem()
        except (OSError, ValueError) as error:
            if str(error) != self._trouble:  # logged once, not every two seconds
                log.error("the certificate cannot be read again, the last one stays: %s", error)
            self._trouble = str(error)
            return
        self._signature, self._trouble = signature, ""
        self._contexts, self.pem = contexts, pem
        self.on_change()
        self._metrics.certificate_expires(expires.timestamp())
        log.info("the certificate was read again", extra={"expires": expires.isoformat()})


def server_tls(settings: GatewaySettings, metrics: GatewayMetrics) -> ServerTls | None:
    """TLS of the API port; None if the settings name no certificate. Raises OSError, ValueError."""
    certificate, key, ca = settings.tls_cert_file, settings.tls_private_key_file, settings.tls_client_ca_file
    if bool(certificate) != bool(key):
        raise ValueError("--tls-cert-file and --tls-private-key-file belong together: set both or none")
    if certificate:
        files = TlsFiles(certificate, key, ca, settings.tls_min_version, settings.tls_client_auth)
        return ServerTls(files, metrics)
    if ca:
        raise ValueError("--tls-client-ca-file needs --tls-cert-file and --tls-private-key-file")
    return None


class Door(Protocol):
    """Bounds connections: `serving.listener.ConnectionLimiter`."""

    header_timeout_s: float

    def enter(self, connection: "Handshake", owner: str, now_s: float) -> errors.RequestError | None: ...

    def enter_handed(self, connection: "Handshake", handed: "_native.Handed") -> None: ...

    def leave(self, connection: "Handshake", owner: str) -> None: ...

    def pass_on(self, connection: "Handshake") -> None: ...


class Handshake(asyncio.Protocol):
    """A connection until its TLS handshake is done. It counts as a connection; its time limit is that of a head."""

    reads_head = False

    def __init__(
        self,
        tls: ServerTls,
        door: Door,
        connection: asyncio.Protocol,
        protocol: str = HTTP_1_1,
        handed: "_native.Handed | None" = None,
    ) -> None:
        self._handed = handed  # the data plane has admitted it
        self._tls, self._door, self._connection, self._protocol = tls, door, connection, protocol
        self._transport: asyncio.Transport | None = None
        self._owner = ""
        self._began_s = 0.0
        self._task: asyncio.Task[None] | None = None  # asyncio itself keeps no strong reference to it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        loop = asyncio.get_running_loop()
        self._transport, self._began_s = transport, loop.time()
        self._owner = address_owner(str(peer[0]) if peer else "")
        if self._handed:
            self._door.enter_handed(self, self._handed)
        elif self._door.enter(self, self._owner, self._began_s):
            transport.abort()  # a response would need the handshake
            return
        bound_buffers(transport)
        self._task = observe(loop.create_task(self._shake(transport), name="handshake"))

    def idle_since_s(self, now_s: float) -> float:
        """The time at which the handshake began: it counts as idle."""
        return self._began_s

    def force_close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _shake(self, transport: asyncio.Transport) -> None:
        early, timeout_s, is_done = _Early(), self._door.header_timeout_s, False
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport,
                early,
                self._tls.context(self._protocol),
                server_side=True,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
            is_done = encrypted is not None and not early.lost
        except OSError as error:  # also SSLError and TimeoutError
            self._tls.failed(error)
            return
        finally:
            if is_done and self._handed:
                self._door.pass_on(self)
            else:
                self._door.leave(self, self._owner)
        if encrypted is None or not is_done:
            return
        encrypted.set_protocol(self._connection)
        self._connection.connection_made(encrypted)
        if early.data:
            self._connection.data_received(bytes(early.data))
        if early.ended:
            self._connection.eof_received()


class _Early(asyncio.Protocol):
    """Keeps what comes with the last message of the handshake, before the connection's protocol is set."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = self.lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> None:
        self.ended = True

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost = True
