"""The tenant of a request: the gateway names it in a header, signed with the release's keys."""

from aiohttp import web

from slipway_contracts.headers import JOBS_PASS, JOBS_TENANT
from slipway_contracts.passes import INVALID_PASS, TO_JOBS, PassKeys

from .refusal import JobsRefusal

_TENANT: web.RequestKey[str] = web.RequestKey("tenant", str)


def verify(request: web.Request, keys: PassKeys) -> None:
    """Checks the signature and keeps the tenant for `tenant_of`.

    Raises:
        JobsRefusal: the signature is invalid, so no gateway of this release sent the request.
    """
    tenant = request.headers.get(JOBS_TENANT, "")
    given = request.headers.getall(JOBS_PASS, [])
    if len(given) != 1 or not keys.is_valid(given[0], TO_JOBS, tenant, request.method, request.path):
        raise JobsRefusal(401, INVALID_PASS, "Send requests to the gateway: it names the tenant.")
    request[_TENANT] = tenant


def tenant_of(request: web.Request) -> str:
    """The tenant of a verified request; empty where the gateway accepts requests without credentials."""
    return request[_TENANT]
