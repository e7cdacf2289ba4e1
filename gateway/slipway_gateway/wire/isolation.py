"""Fields by which engines that know no tenants keep them apart: vLLM's and SGLang's (pure).

These engines share cached prefixes between all requests with the same `cache_salt`, so that the time to the first token
and `cached_tokens` would tell one tenant what another one sent: the gateway gives each tenant a salt of its own.
It also bounds `priority`: slipway-server takes the bound from a header, which other engines do not know.
"""

import hashlib
import re

import msgspec
from msgspec import Raw

from .json_values import is_null
from .request_fields import RequestFields

VLLM, SGLANG = "vllm", "sglang"
ENGINES = frozenset({VLLM, SGLANG})
_PRIORITY = re.compile(rb"-?(?:0|[1-9][0-9]{0,17})")


class Isolation(msgspec.Struct, frozen=True):
    """A request of a tenant, as far as these fields follow from it.

    `deployment`: namespace/name. `client_salt`: digest of the client's own `cache_salt`; empty without one. `priority`:
    what the request may have of the one that it requests; None: it requests none.
    """

    tenant: str
    deployment: str
    client_salt: bytes = b""
    priority: int | None = None

    def of_shadow(self) -> "Isolation":
        """That of a copy, which uses neither the cache of the client's tenant nor that of another one."""
        return msgspec.structs.replace(self, tenant=f"shadow\0{self.tenant}")


def isolation_of(fields: RequestFields, tenant: str, deployment: str, priority_limit: int) -> Isolation:
    """`priority_limit`: the most urgent priority that the request may have; a lower number is more urgent."""
    salt = b"" if is_null(fields.cache_salt) else hashlib.sha256(fields.cache_salt).digest()
    return Isolation(tenant, deployment, salt, _bounded(fields.priority, priority_limit))


def _bounded(requested: Raw, limit: int) -> int | None:
    """The requested priority, within the limit; the limit for what is no whole number.

    0 stays 0: it is what engines take where there is none, and vLLM refuses every other one unless it has priorities.
    """
    if is_null(requested):
        return None
    if len(requested) > 20 or not _PRIORITY.fullmatch(requested):
        return limit  # engines that convert other types would take more than the gateway reads
    priority = int(bytes(requested))
    return max(priority, limit) if priority else 0


def members_for(engine: str, path: str, salt: str, isolation: Isolation) -> bytes:
    """The members at the end of a body for an engine of this type; b"" where it knows none.

    `salt`: of hexadecimal digits. SGLang may take higher numbers as more urgent, so it gets no priority of clients.
    """
    if engine not in ENGINES:
        return b""
    members = b'"cache_salt":"%b"' % salt.encode()
    if isolation.priority is None:
        return members
    if engine == VLLM:
        return members + b',"priority":%d' % isolation.priority
    return members + (b',"priority":0' if path == "/v1/responses" else b',"priority":null')
