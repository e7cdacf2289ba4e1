"""Requests for public names: what rules look at, and the route to which they lead."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

from aiohttp import web

from slipway_contracts.model_routes.spec import PUBLIC, RouteSampling

from ..identity.tenants import KnownTenant
from ..routing.guards import BoundGuard
from ..routing.public_names import NO_RULE, NO_TARGET, PublicRoute, choose_target, reachable
from ..routing.table import Route, RouteTable
from ..wire import errors, prompts
from ..wire.request_fields import RequestFields
from .visible import may_use, model_object


class RequestFacts:
    """What rules look at. It is read from the body when a rule needs it, and once."""

    def __init__(self, request: web.Request, fields: RequestFields, body: bytes, tenant: str) -> None:
        self.headers: Mapping[str, str] = request.headers
        self.tenant = tenant
        self._fields, self._body_bytes = fields, len(body)

    @cached_property
    def prompt_bytes(self) -> int:
        return prompts.prompt_bytes(self._fields, self._body_bytes)

    @cached_property
    def has_tools(self) -> bool:
        return prompts.has_tools(self._fields)

    @cached_property
    def has_images(self) -> bool:
        return prompts.has_images(self._fields)

    @cached_property
    def has_code(self) -> bool:
        return prompts.has_code(self._fields)

    @cached_property
    def arrived(self) -> datetime:
        return datetime.now(UTC)


class Way(NamedTuple):
    """How a request came to its deployment, and what the ModelRoutes on the way impose.

    `passed`: these ModelRoutes and their rules. `responds_as`: the model name that responses get; empty: their own.
    `problem`: why there is no deployment; empty: there is one.
    """

    passed: tuple[tuple[str, str], ...] = ()
    sampling: tuple[RouteSampling, ...] = ()
    responds_as: str = ""
    problem: str = ""

    @property
    def rules(self) -> str:
        """The rules as the response header names them."""
        return ", ".join(rule for _, rule in self.passed)

    def refusal(self, name: str) -> errors.RequestError:
        """What a client gets that requested a public name, where there is no deployment."""
        return errors.no_rule(name) if self.problem == NO_RULE else errors.no_target(name)


class Destination(NamedTuple):
    """Where a request goes. `model`: as it names it. `key`: its sticky key. `guards`: of its input and its output."""

    model: str
    key: str
    route: Route
    way: Way
    guards: tuple[BoundGuard, ...] = ()


DIRECT = Way()  # of a request that names its deployment


def follow_rules(
    table: RouteTable, name: str, facts: RequestFacts, key: str, tenant: KnownTenant | None, *, holding: str = ""
) -> tuple[Route | None, Way]:
    """Follows the rules of a public name. `holding`: the revision that has a stream to which the client comes back.

    Raises:
        RequestError: the tenant may not use the name or the deployment to which its rules lead.
    """
    public = table.public.get(name)
    if public is None or not _may_request(tenant, name):
        raise errors.model_not_found(name)
    chosen = choose_target(table.model_routes, public, facts, key)
    route = table.routes.get(chosen.target)
    if holding and (route is None or holding not in table.revisions(route)):
        route = _holder_of(table, public, holding, tenant) or route
    if route is not None and not may_use(tenant, table, route):
        raise errors.model_not_found(name)
    responds_as = name if public.spec.response_model == PUBLIC else ""
    problem = (chosen.problem or NO_TARGET) if route is None else ""
    return route, Way(chosen.passed, chosen.sampling, responds_as, problem)


def requestable(table: RouteTable, tenant: KnownTenant | None) -> dict[str, PublicRoute]:
    """Public names that lead the tenant to a deployment, with their ModelRoutes."""
    return {name: public for name, public in table.public.items() if may_request(table, name, tenant)}


def may_request(table: RouteTable, name: str, tenant: KnownTenant | None) -> bool:
    """Whether a name is a public one that leads the tenant to a deployment."""
    public = table.public.get(name)
    return public is not None and _may_request(tenant, name) and bool(targets_of(table, public, tenant))


def targets_of(table: RouteTable, public: PublicRoute, tenant: KnownTenant | None) -> list[Route]:
    """The deployments to which rules may lead a tenant."""
    routes = (table.routes.get(name) for name in reachable(table.model_routes, public))
    return [route for route in routes if route is not None and may_use(tenant, table, route)]


def described_public(table: RouteTable, public: PublicRoute, name: str, tenant: KnownTenant | None) -> dict[str, Any]:
    """A public name as OpenAI's list of models has it: ready where any of its targets is."""
    ready = any(table.ready(route) for route in targets_of(table, public, tenant))
    return {**model_object(name, public.created), "ready": ready}


def _may_request(tenant: KnownTenant | None, name: str) -> bool:
    return tenant is None or tenant.may_use((name,))


def _holder_of(table: RouteTable, public: PublicRoute, revision: str, tenant: KnownTenant | None) -> Route | None:
    """The deployment with a revision: rules may lead elsewhere by now, and a stream continues where it began."""
    return next((route for route in targets_of(table, public, tenant) if revision in table.revisions(route)), None)
