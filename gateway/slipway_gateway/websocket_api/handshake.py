"""Which requests may open a WebSocket, and with which credentials (pure).

Browsers send no header but the subprotocols that a page chooses."""

import base64
import binascii
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from multidict import CIMultiDict, MultiMapping

from slipway_contracts.headers import RESUMABLE

from ..wire import errors
from ..wire.headers import REQUEST_ID
from ..wire.resume import LAST_EVENT_ID

PROTOCOL = "slipway.v1"
_BEARER = "bearer."
# Of the connection, and not of its requests. Pods never see the subprotocols: one of them may be a key.
_OF_CONNECTION = frozenset(
    {
        "connection",
        "upgrade",
        "origin",
        "cookie",
        "content-length",
        "content-type",
        "transfer-encoding",
        LAST_EVENT_ID.lower(),
        REQUEST_ID.lower(),
        RESUMABLE.lower(),
    }
)


def check(headers: Mapping[str, str], origins: Collection[str]) -> None:
    """`origins`: of pages that may connect, `*` for all; one of the gateway's own host may as well.

    Raises:
        RequestError: it is no handshake (426, 400), or of a page of another origin (403).
    """
    if headers.get("Upgrade", "").strip().lower() != "websocket":
        message = "This path takes WebSocket connections alone: GET with Upgrade: websocket."
        raise errors.RequestError(426, "upgrade_required", message, headers={"Upgrade": "websocket"})
    if headers.get("Sec-WebSocket-Version", "").strip() != "13" or not _is_key(headers.get("Sec-WebSocket-Key", "")):
        message = "The handshake needs Sec-WebSocket-Version: 13 and a Sec-WebSocket-Key of 16 bytes in base64."
        raise errors.invalid("invalid_handshake", message)
    tokens = {token.strip().lower() for token in headers.get("Connection", "").split(",")}
    if "upgrade" not in tokens:
        raise errors.invalid("invalid_handshake", "The handshake needs Connection: Upgrade.")
    offered = _offered(headers)
    if offered and PROTOCOL not in offered:
        message = f"Sec-WebSocket-Protocol has to offer {PROTOCOL}, and may have bearer.KEY beside it."
        raise errors.invalid("invalid_handshake", message)
    origin = headers.get("Origin")
    if origin is not None and not _may_connect(origin, headers.get("Host", ""), origins):
        message = "Pages of this origin may not connect: the setting of allowed origins does not list it."
        raise errors.RequestError(403, "origin_not_allowed", message)


def headers_of_requests(headers: MultiMapping[str]) -> CIMultiDict[str]:
    """Headers of each request of a connection: those of its handshake, with the key of a subprotocol."""
    kept = CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in _OF_CONNECTION and not name.lower().startswith("sec-")
    )
    if "Authorization" not in kept and (key := _bearer(headers)):
        kept["Authorization"] = f"Bearer {key}"
    return kept


def _offered(headers: Mapping[str, str]) -> list[str]:
    """Subprotocols of the first header of that name, which alone counts."""
    tokens = (token.strip() for token in headers.get("Sec-WebSocket-Protocol", "").split(","))
    return [token for token in tokens if token]


def _bearer(headers: Mapping[str, str]) -> str:
    return next((token.removeprefix(_BEARER) for token in _offered(headers) if token.startswith(_BEARER)), "")


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False


def _may_connect(origin: str, host: str, origins: Collection[str]) -> bool:
    if "*" in origins or origin in origins:
        return True
    try:
        return bool(host) and urlsplit(origin).netloc == host.lower()
    except ValueError:
        return False
