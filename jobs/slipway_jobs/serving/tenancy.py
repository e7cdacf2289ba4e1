"""Whose request it is: the gateway's word, signed by the release's keys."""

from aiohttp import web

from slipway_process.passes import INVALID_PASS, PASS, TENANT, TO_JOBS, PassKeys

from .refusal import JobsRefusal

_TENANT: web.RequestKey[str] = web.RequestKey("tenant", str)


def verify(request: web.Request, keys: PassKeys) -> None:
    """
    Raises:
        JobsRefusal: no gateway of this release sends it.
    """
    tenant = request.headers.get(TENANT, "")
    given = request.headers.getall(PASS, [])
    if len(given) != 1 or not keys.is_valid(given[0], TO_JOBS, tenant, request.method, request.path):
        raise JobsRefusal(401, INVALID_PASS, "Send requests to the gateway: it names the tenant.")
    request[_TENANT] = tenant


def tenant_of(request: web.Request) -> str:
    """Empty where the gateway takes requests without credentials."""
    return request[_TENANT]
