"""Headers that the gateway forwards in each direction."""

import functools
import re
from collections.abc import Collection, Mapping

from multidict import CIMultiDict, MultiMapping

from slipway_contracts.headers import (
    CACHE,
    DEGRADED,
    FALLBACK,
    FEEDBACK,
    PREFIX,
    PRIORITY_LIMIT,
    PROMPT_TOKENS,
    RECOMPUTES,
    RESUMABLE,
    RESUME,
    RESUME_BYTES,
    RETURNS,
    REVISION,
    ROUTE,
    SHADOW,
    STREAM,
    TENANT,
    WEIGHT,
)
from slipway_contracts.load_report import LOAD, LOAD_FORMAT

from .resume import LAST_EVENT_ID

REQUEST_ID = "X-Request-Id"
# Credentials of clients. Pods get them only if the route lists them.
CREDENTIALS = frozenset({"authorization", "cookie", "api-key", "x-api-key"})

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Each side frames bodies itself, by length or in chunks: this prevents request smuggling.
_OF_RESUMING = frozenset(
    name.lower() for name in (RESUMABLE, STREAM, RESUME, RESUME_BYTES, RETURNS, RECOMPUTES, LAST_EVENT_ID)
)
_OF_REQUEST = (
    _HOP_BY_HOP
    | _OF_RESUMING
    | {"host", "content-length", "expect", "x-request-id", TENANT.lower(), SHADOW.lower(), PRIORITY_LIMIT.lower()}
    | {LOAD_FORMAT.lower()}
)
_OF_ANSWER = (
    _HOP_BY_HOP
    | _OF_RESUMING
    | {
        "content-length",
        "x-request-id",
        REVISION.lower(),
        PROMPT_TOKENS.lower(),
        FEEDBACK.lower(),
        FALLBACK.lower(),
        LOAD.lower(),
        ROUTE.lower(),
        CACHE.lower(),
        DEGRADED.lower(),
    }
)
_MAX_NAMES, _MAX_NAME = 1024, 64
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def request_id(headers: Mapping[str, str]) -> str | None:
    """The id that the client sent; None when it sent none, or one of other characters or more than 128."""
    given = headers.get(REQUEST_ID)
    return given if given is not None and _SANE_ID.fullmatch(given) else None


def prompt_tokens(headers: Mapping[str, str]) -> int | None:
    """Prompt tokens of a stream as its server counted them; None where it did not."""
    given = headers.get(PROMPT_TOKENS, "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else None


def to_upstream(
    headers: MultiMapping[str],
    request_id: str,
    tenant: str = "",
    *,
    forwarded: Collection[str] = (),
    priority_limit: int | None = None,
    weight: int = 1,
) -> CIMultiDict[str]:
    """Headers of a request to a server. `forwarded`: names of the credentials that it gets, in lower case.

    `priority_limit`: the most urgent priority, which the server enforces; None: the header is left out.
    """
    kept = _crossing(headers, _to_upstream(tuple(forwarded)))
    kept += ((REQUEST_ID, request_id), (RESUMABLE, "1"))
    if tenant:
        kept.append((TENANT, tenant))
    if priority_limit is not None:
        kept.append((PRIORITY_LIMIT, str(priority_limit)))
    if weight != 1:
        kept.append((WEIGHT, str(weight)))
    if RESUMABLE in headers or LAST_EVENT_ID in headers:
        kept.append((RETURNS, "1"))
    return CIMultiDict(kept)


def to_client(
    headers: MultiMapping[str], request_id: str, revision: str, *, forwarded: Collection[str] = ()
) -> CIMultiDict[str]:
    """Headers of a response to a client. It sets cookies only if the pod gets the client's cookies.

    `revision`: empty where none of ours answered.
    """
    kept = _crossing(headers, _TO_CLIENT if "cookie" in forwarded else _TO_CLIENT_WITHOUT_COOKIES)
    kept.append((REQUEST_ID, request_id))
    if revision:
        kept.append((REVISION, revision))
    return CIMultiDict(kept)


class _Names(dict[str, bool]):
    """Whether headers of a name cross, by names as they are written. Those of the first `_MAX_NAMES` are remembered."""

    def __init__(self, dropped: frozenset[str], dropped_prefix: str = "\0") -> None:
        self._dropped, self._dropped_prefix = dropped, dropped_prefix

    def __missing__(self, name: str) -> bool:
        lower = name.lower()
        crosses = lower not in self._dropped and not lower.startswith(self._dropped_prefix)
        if len(self) < _MAX_NAMES and len(name) <= _MAX_NAME:
            self[name] = crosses
        return crosses

    def without(self, names: frozenset[str]) -> "_Names":
        """Names of which these, in lower case, do not cross either."""
        return self if names <= self._dropped else _Names(self._dropped | names, self._dropped_prefix)


_TO_CLIENT, _TO_CLIENT_WITHOUT_COOKIES = _Names(_OF_ANSWER), _Names(_OF_ANSWER | {"set-cookie", "set-cookie2"})


@functools.lru_cache(maxsize=64)
def _to_upstream(forwarded: tuple[str, ...]) -> _Names:
    # The gateway alone sends headers of this prefix.
    return _Names(_OF_REQUEST | CREDENTIALS.difference(forwarded), PREFIX)


def _crossing(headers: MultiMapping[str], names: _Names) -> list[tuple[str, str]]:
    """`headers` without those that do not cross, hop-by-hop ones and what cannot be encoded."""
    if "Connection" in headers:
        listed = (token for value in headers.getall("Connection") for token in value.split(","))
        names = names.without(frozenset(token.strip().lower() for token in listed))
    return [pair for pair in headers.items() if names[pair[0]] and (pair[1].isascii() or _encodable(pair[1]))]


def _encodable(value: str) -> bool:
    # Bytes that are not UTF-8 arrive as lone surrogates and cannot be written again.
    return not any("\ud800" <= char <= "\udfff" for char in value)
