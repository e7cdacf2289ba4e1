"""Bodies as endpoints get them: where an engine knows no tenants, with the fields that keep them apart there."""

from ..balancing.published_table import PublishedTable
from ..wire import members
from ..wire.isolation import ENGINES, Isolation, members_for
from .tenant_proof import TenantSigner

BodyPart = bytes | memoryview


class TenantIsolation:
    """Adapts the bodies of tenants' requests to the engine of an endpoint."""

    def __init__(self, published: PublishedTable, signer: TenantSigner) -> None:
        self._published, self._signer = published, signer

    def engine_at(self, url: str) -> str:
        """The engine type of the endpoint at `url`; empty where it is not known."""
        return self._published.engine_at(url)

    def parts(self, url: str, path: str, body: bytes, isolation: Isolation | None) -> tuple[BodyPart, ...]:
        """The body for the endpoint at `url`, in one part or several of which the first is no copy.

        `isolation` None: the request has no tenant, and its body stays as it is.
        """
        engine = self._published.engine_at(url) if isolation else ""
        if isolation is None or engine not in ENGINES:
            return (body,)
        salt = self._signer.cache_salt(isolation.tenant, isolation.deployment, isolation.client_salt)
        return members.appended(body, members_for(engine, path, salt, isolation))
