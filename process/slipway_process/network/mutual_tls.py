"""TLS among the processes of a release: both sides have a certificate of its CA, and read renewed ones again."""

import contextlib
import logging
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from slipway_process.network import host_names

CERTIFICATE, PRIVATE_KEY, CA = "tls.crt", "tls.key", "ca.crt"  # as in the Secrets of cert-manager
LOOK_AGAIN_S = 2.0
# An issuer that serves other programs too gives them client certificates by the same CA: the name counts, too.
_CLIENTS = {("DNS", host_names.wildcard(host_names.gateway_zone())), ("DNS", host_names.OPERATOR)}

Context = TypeVar("Context")
log = logging.getLogger(__name__)


class UnusableCertificate(ValueError):
    """A certificate, its key or a CA cannot be used. The message names the files, and has nothing of a key."""


@dataclass(frozen=True, slots=True)
class PemIdentity:
    """PEM: a certificate, its key, and the CAs of the other side."""

    certificate: str
    private_key: str
    ca: str


@dataclass(frozen=True, slots=True)
class IdentityFiles:
    """Where an identity is read from."""

    certificate: Path
    private_key: Path
    ca: Path

    @classmethod
    def in_folder(cls, folder: Path) -> "IdentityFiles":
        """The files of a mounted Secret."""
        return cls(folder / CERTIFICATE, folder / PRIVATE_KEY, folder / CA)

    def signature(self) -> tuple[tuple[int, int, int], ...]:
        """A value that differs after a file was changed or replaced. Raises OSError."""
        found = [path.stat() for path in (self.certificate, self.private_key, self.ca)]
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)

    def read(self) -> PemIdentity:
        """
        Raises:
            OSError: a file cannot be read.
            UnusableCertificate: a file is no text.
        """
        try:
            return PemIdentity(self.certificate.read_text(), self.private_key.read_text(), self.ca.read_text())
        except UnicodeDecodeError:
            raise UnusableCertificate(f"{self.certificate}, {self.private_key} or {self.ca} is no PEM") from None


def server_context(identity: PemIdentity) -> ssl.SSLContext:
    """TLS 1.3. A client's certificate must be valid if it sends one; `has_certificate` returns whether it did.

    Raises:
        UnusableCertificate: certificate and key are no pair, or there is no CA.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_OPTIONAL
    # A resumed session would outlive the CA by which its client was verified.
    context.num_tickets = 0
    return _load(context, identity)


def client_context(identity: PemIdentity) -> ssl.SSLContext:
    """TLS 1.3 to servers whose certificate has the name that was dialed, signed by one of these CAs and no other.

    Raises:
        UnusableCertificate: certificate and key are no pair, or there is no CA.
    """
    return _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), identity)


def has_certificate(peer: Any) -> bool:
    """Whether the client has a verified certificate of gateways or of the operator.

    `peer`: `peercert` of a connection of `server_context`.
    """
    return bool(peer) and not _CLIENTS.isdisjoint(peer.get("subjectAltName", ()))


class Reloaded(Generic[Context]):
    """A context of files. When it is used, changed files are read again, at most every two seconds.

    If they cannot be used, the last good context stays.

    Raises:
        OSError, UnusableCertificate: they cannot be used at the start.
    """

    def __init__(
        self,
        files: IdentityFiles,
        make: Callable[[PemIdentity], Context],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files, self._make, self._clock = files, make, clock
        self._signature = files.signature()
        self._context = make(files.read())
        self._looked_s = clock()
        self._trouble = ""

    def current(self) -> Context:
        """The context of the next handshake."""
        now_s = self._clock()
        if now_s - self._looked_s >= LOOK_AGAIN_S:
            self._looked_s = now_s
            self._look()
        return self._context

    def _look(self) -> None:
        try:
            signature = self._files.signature()
            if signature == self._signature:
                return
            self._context = self._make(self._files.read())
        except (OSError, ValueError) as error:
            if str(error) != self._trouble:  # logged once, not at every handshake
                log.error("the certificate cannot be read again, the last one stays: %s", error)
            self._trouble = str(error)
            return
        self._signature, self._trouble = signature, ""
        log.info("the certificate was read again", extra={"file": str(self._files.certificate)})


def reloaded_server_context(files: IdentityFiles, clock: Callable[[], float] = time.monotonic) -> ssl.SSLContext:
    """A context for a listener: each handshake uses the certificate and the CAs of the files as they are then.

    Raises:
        OSError, UnusableCertificate: they cannot be used at the start.
    """
    reloaded = Reloaded(files, server_context, clock)

    # OpenSSL calls it in each handshake, also where the client sends no name.
    def replace(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = reloaded.current()

    outer = server_context(files.read())
    outer.sni_callback = replace
    return outer


def _load(context: ssl.SSLContext, identity: PemIdentity) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # An issuer may know the CA that it signs by, and not the root above it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=identity.ca)
        with in_memory_file(identity.certificate + "\n" + identity.private_key) as path:
            context.load_cert_chain(path, password=_encrypted)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", "") or str(error)
        raise UnusableCertificate(f"{CERTIFICATE}, {PRIVATE_KEY} and {CA} do not fit together: {reason}") from None
    return context


def _encrypted() -> str:
    raise UnusableCertificate("the private key is encrypted: write it without a passphrase")


@contextlib.contextmanager
def in_memory_file(text: str) -> Iterator[str]:
    """Yield a path for a library that reads only files: a file in memory where the system has them (no disk)."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("certificate")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
