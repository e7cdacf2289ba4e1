"""Which guards a request has: those of its tenant, of the ModelRoutes on its way, and of its deployment (pure)."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from slipway_contracts.guards import OUTPUT, GuardSpec

from .table import Route, RouteTable, namespace_of


class BoundGuard(NamedTuple):
    """A guard and whose it is. `owner`: kind and name of the resource. `namespace`: of it; empty for a Tenant."""

    guard: GuardSpec
    owner: str
    namespace: str = ""

    @property
    def is_of_output(self) -> bool:
        return OUTPUT in self.guard.stages


def guards_of(
    table: RouteTable, route: Route, passed: Iterable[str], tenant: str, of_tenant: Iterable[GuardSpec]
) -> tuple[BoundGuard, ...]:
    """The guards of a request, in the order in which they come before each other.

    `passed`: ModelRoutes on its way. `tenant`: the name of its Tenant. Deployments that may answer in place of the
    route's own have their guards called too: what one of them would not let pass must not come by a detour.
    """
    found = [BoundGuard(guard, f"Tenant/{tenant}") for guard in of_tenant]
    found += _of_model_routes(table, passed)
    for one in (route, *filter(None, map(table.routes.get, route.fallback_routes))):
        found += [BoundGuard(guard, f"ModelDeployment/{one.name}", namespace_of(one.name)) for guard in one.guards]
    return tuple(found)


def _of_model_routes(table: RouteTable, passed: Iterable[str]) -> Iterator[BoundGuard]:
    for name in passed:
        if (public := table.model_routes.get(name)) is not None:
            for guard in public.spec.guards:
                yield BoundGuard(guard, f"ModelRoute/{name}", namespace_of(name))
