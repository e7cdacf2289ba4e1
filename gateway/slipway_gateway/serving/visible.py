"""Which models of the table a tenant may use (pure): the others do not exist for it."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ..identity.tenants import KnownTenant
from ..routing.table import Route, RouteTable


def listed(table: RouteTable, tenant: KnownTenant | None) -> dict[str, Route]:
    """Routes that the tenant may use, by name: the model's own, or `namespace/name` where another route owns that."""
    routes = (route for route in table.routes.values() if may_use(tenant, table, route))
    return {table.id_of(route): route for route in routes}


def base_models(table: RouteTable, tenant: KnownTenant | None) -> Iterator[str]:
    """Names of the models that the tenant may use, without adapters: these go with the model that they are for."""
    routes = (route for route in table.routes.values() if not route.base and may_use(tenant, table, route))
    return (table.id_of(route) for route in routes)


def may_use(tenant: KnownTenant | None, table: RouteTable, route: Route) -> bool:
    return tenant is None or tenant.may_use(table.names_of(route))


def described(table: RouteTable, route: Route, name: str) -> dict[str, Any]:
    """A model as OpenAI's list of models has it; of an adapter with its base as `parent`, as vLLM has it."""
    model = {**model_object(name, route.created), "ready": table.ready(route)}
    base = table.routes.get(route.base)
    return model | {"parent": table.id_of(base)} if base is not None else model


def model_object(name: str, created: str) -> dict[str, Any]:
    """`created`: RFC 3339; empty: not known."""
    unix_s = int(datetime.fromisoformat(created).timestamp()) if created else 0
    return {"id": name, "object": "model", "created": unix_s, "owned_by": "slipway"}
