"""URLs of databases: those of tenants' usage and those of batches."""

import ssl

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError


def parse_url(text: str) -> URL:
    """
    Raises:
        ValueError: the URL names neither SQLite nor PostgreSQL, or its options are invalid.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        raise ValueError("write sqlite:////path/ledger.db or postgresql://user:password@host/database") from None
    if url.get_backend_name() == "sqlite" and url.drivername in ("sqlite", "sqlite+pysqlite"):
        return url
    if url.drivername in ("postgresql", "postgres", "postgresql+pg8000"):
        ssl_context(url)
        return url.set(drivername="postgresql+pg8000")
    raise ValueError(f"the scheme must be sqlite or postgresql, not {url.drivername}")


def ssl_context(url: URL) -> ssl.SSLContext | None:
    """TLS by libpq's `sslmode`, without the modes that fall back to plain text; None: disabled. Raises ValueError.

    `sslrootcert` is a file of certificates.
    """
    mode, root = url.query.get("sslmode", "disable"), url.query.get("sslrootcert")
    if mode == "disable":
        return None
    if mode not in ("require", "verify-full"):
        raise ValueError("sslmode must be disable, require or verify-full")
    context = ssl.create_default_context(cafile=str(root) if root else None)
    if mode == "require":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
