"""TLS of a port for clients without certificates: its own from files that are read again when they change."""

import ssl
from asyncio import sslproto
from pathlib import Path

from slipway_process.network.mutual_tls import (
    IdentityFiles,
    PemIdentity,
    Reloaded,
    UnusableCertificate,
    in_memory_file,
)

# asyncio allocates this for each connection, and 256 KiB by default.
_READ_BYTES = 16 << 10


def listener_context(certificate: str, private_key: str) -> ssl.SSLContext | None:
    """The context of the port, by PEM files; None without a certificate: plain HTTP.

    Raises:
        OSError, UnusableCertificate: the files cannot be used.
    """
    if not certificate:
        return None
    if not private_key:
        raise UnusableCertificate("--tls-cert-file needs --tls-private-key-file")
    sslproto.SSLProtocol.max_size = _READ_BYTES
    # Clients have no certificate, so that there is no CA to verify one by: the third file is the first one again.
    files = IdentityFiles(Path(certificate), Path(private_key), Path(certificate))
    reloaded = Reloaded(files, _context)

    # OpenSSL calls it in each handshake, also where the client sends no name.
    def replace(connection: ssl.SSLObject, _name: str | None, _outer: ssl.SSLContext) -> None:
        connection.context = reloaded.current()

    outer = _context(files.read())
    outer.sni_callback = replace
    return outer


def _context(identity: PemIdentity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        with in_memory_file(identity.certificate + "\n" + identity.private_key) as path:
            context.load_cert_chain(path, password=_encrypted)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", "") or str(error)
        raise UnusableCertificate(f"the certificate and the key of the port are no pair: {reason}") from None
    return context


def _encrypted() -> str:
    raise UnusableCertificate("the private key is encrypted: write it without a passphrase")
