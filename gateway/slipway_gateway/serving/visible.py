"""Which models of the table a tenant may use (pure): the others do not exist for it."""

from ..identity.tenants import KnownTenant
from ..routing.table import Route, RouteTable


def listed(table: RouteTable, tenant: KnownTenant | None) -> dict[str, Route]:
    """Each model that the tenant may use once: by its own name, or by `namespace/name` where that name is another's."""
    routes = (route for route in table.routes.values() if may_use(tenant, table, route))
    return {table.id_of(route): route for route in routes}


def may_use(tenant: KnownTenant | None, table: RouteTable, route: Route) -> bool:
    return tenant is None or tenant.may_use((route.name, table.id_of(route)))
