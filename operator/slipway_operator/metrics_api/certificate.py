"""The serving certificate of the metrics API: made by the openssl program, kept in memory, renewed with the process."""

import asyncio
import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

DAYS = 365
_TIMEOUT_S = 20.0
_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----\n.*?-----END \1-----\n", re.DOTALL)


class NoCertificate(Exception):
    """None could be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that vouches for itself, and its key; both PEM."""

    certificate: str
    key: str


async def make(name: str, days: int = DAYS) -> Certificate:
    """A certificate for one DNS name (P-256). It is its own authority, so whoever trusts it trusts nothing else.

    Raises:
        NoCertificate: when openssl is not there, fails or hangs.
    """
    command = (
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-days", str(days), "-subj", "/CN=slipway-metrics-api", "-keyout", "-", "-out", "-"),
        *("-addext", f"subjectAltName=DNS:{name}", "-addext", "extendedKeyUsage=serverAuth"),
        *("-addext", "keyUsage=critical,digitalSignature,keyCertSign"),
    )
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise NoCertificate(f"openssl cannot be run: {error}") from error
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            out, complaint = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise NoCertificate(f"openssl did not end within {_TIMEOUT_S:g} s") from None
    return _read(out.decode(), complaint.decode(errors="replace"))


def _read(out: str, complaint: str) -> Certificate:
    blocks = {found[1]: found[0] for found in _BLOCK.finditer(out)}
    if blocks.keys() != {"CERTIFICATE", "PRIVATE KEY"}:
        raise NoCertificate(f"openssl made none: {complaint.strip()[-200:] or 'it says nothing'}")
    return Certificate(blocks["CERTIFICATE"], blocks["PRIVATE KEY"])


def server_context(own: Certificate, clients_ca: str) -> ssl.SSLContext:
    """TLS 1.2 or newer, for clients with a certificate of this authority alone.

    Raises:
        ssl.SSLError: when `clients_ca` holds no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=clients_ca)
    with _file(own.certificate + own.key) as path:
        context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _file(text: str) -> Iterator[str]:
    """A path for a library that reads files only: of memory where the system has such files, for there is no disk."""
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
