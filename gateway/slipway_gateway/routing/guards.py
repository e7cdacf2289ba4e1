"""Which guards a request has: those of its tenant, of the ModelRoutes on its way, and of its deployment (pure)."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from slipway_contracts.guards import OUTPUT, GuardSpec

from .fallbacks import Fallback
from .table import Route, RouteTable, namespace_of


class BoundGuard(NamedTuple):
    """A guard and whose it is. `owner`: kind and name of the resource. `namespace`: of it; empty for a Tenant."""

    guard: GuardSpec
    owner: str
    namespace: str = ""

    @property
    def is_of_output(self) -> bool:
        return OUTPUT in self.guard.stages and self.guard.wants_json is None


def guards_of(
    table: RouteTable,
    route: Route,
    passed: Iterable[str],
    tenant: str,
    of_tenant: Iterable[GuardSpec],
    fallbacks: Iterable[Fallback] = (),
) -> tuple[BoundGuard, ...]:
    """The guards of a request, in the order in which they come before each other.

    `passed`: ModelRoutes on its way. `tenant`: the name of its Tenant. Deployments that may answer in place of the
    route's own (`fallbacks`, and the one for its overload) have their guards called too: what one of them would not let
    pass must not come by a detour.
    """
    bound = [BoundGuard(guard, f"Tenant/{tenant}") for guard in of_tenant]
    bound += _of_model_routes(table, passed)
    others = dict.fromkeys([*(fallback.name for fallback in fallbacks if fallback.external is None), route.smaller])
    for deployment in (route, *filter(None, map(table.routes.get, others))):
        owner, namespace = f"ModelDeployment/{deployment.deployment}", namespace_of(deployment.name)
        bound += [BoundGuard(guard, owner, namespace) for guard in deployment.guards]
    return tuple(bound)


def _of_model_routes(table: RouteTable, passed: Iterable[str]) -> Iterator[BoundGuard]:
    for name in passed:
        if (public := table.model_routes.get(name)) is not None:
            for guard in public.spec.guards:
                yield BoundGuard(guard, f"ModelRoute/{name}", namespace_of(name))
