"""Requests for public names: what rules look at, and the route to which they lead."""

from typing import Any, NamedTuple

from aiohttp import web

from slipway_contracts.model_routes.spec import PUBLIC, RouteClassifier, RouteSampling

from ..identity.tenants import KnownTenant
from ..routing.fallbacks import Fallback
from ..routing.public_names import NO_RULE, NO_TARGET, PublicRoute, choose_target, reachable
from ..routing.request_facts import RequestFacts
from ..routing.table import Route, RouteTable
from ..wire import errors
from ..wire.request_fields import RequestFields
from .visible import may_use, model_object

MOST_CLASSIFIERS = 4  # that are called for one request


class Unclassified(Exception):
    """A rule needs what a classifier predicts for the request."""

    def __init__(self, namespace: str, classifier: RouteClassifier) -> None:
        super().__init__()
        self.namespace, self.classifier = namespace, classifier


class ClassifiedFacts(RequestFacts):
    """What rules look at, with what classifiers predicted."""

    def __init__(self, request: web.Request, fields: RequestFields, body: bytes, tenant: str) -> None:
        super().__init__(request.headers, fields, len(body), tenant)
        self.request = request
        self._classified: dict[tuple[str, RouteClassifier], bool] = {}

    def classified(self, namespace: str, classifier: RouteClassifier) -> bool:
        """Whether the request fits by a classifier. One beyond the first MOST_CLASSIFIERS has its default.

        Raises:
            Unclassified: it has to be called first; `classify` takes the result.
        """
        key = (namespace, classifier)
        if key not in self._classified:
            if len(self._classified) < MOST_CLASSIFIERS:
                raise Unclassified(namespace, classifier)
            return classifier.default
        return self._classified[key]

    def classify(self, namespace: str, classifier: RouteClassifier, *, fits: bool) -> None:
        """A classifier was called."""
        self._classified[namespace, classifier] = fits


class Way(NamedTuple):
    """How a request came to its deployment, and what the ModelRoutes on the way impose.

    `passed`: these ModelRoutes and their rules. `responds_as`: the model name that responses get; empty: their own.
    `problem`: why there is no deployment; empty: there is one. `fallbacks`: of the rules; None: the deployment's own.
    """

    passed: tuple[tuple[str, str], ...] = ()
    sampling: tuple[RouteSampling, ...] = ()
    responds_as: str = ""
    problem: str = ""
    fallbacks: tuple[Fallback, ...] | None = None

    @property
    def rules(self) -> str:
        """The rules as the response header names them."""
        return ", ".join(rule for _, rule in self.passed)

    def refusal(self, name: str) -> errors.RequestError:
        """What a client gets that requested a public name, where there is no deployment."""
        return errors.no_rule(name) if self.problem == NO_RULE else errors.no_target(name)


DIRECT = Way()  # of a request that names its deployment


def follow_rules(
    table: RouteTable, name: str, facts: ClassifiedFacts, key: str, tenant: KnownTenant | None, *, holding: str = ""
) -> tuple[Route | None, Way]:
    """Follows the rules of a public name. `holding`: the revision that has a stream to which the client comes back.

    Raises:
        RequestError: the tenant may not use the name or the deployment to which its rules lead.
        Unclassified: a classifier has to be called first.
    """
    public = table.public.get(name)
    if public is None or not _may_request(tenant, name):
        raise errors.model_not_found(name)
    chosen = choose_target(table.model_routes, public, facts, key, facts.classified)
    route = table.routes.get(chosen.target)
    if holding and (route is None or holding not in table.revisions(route)):
        route = _holder_of(table, public, holding, tenant) or route
    if route is not None and not may_use(tenant, table, route):
        raise errors.model_not_found(name)
    responds_as = name if public.spec.response_model == PUBLIC else ""
    problem = (chosen.problem or NO_TARGET) if route is None else ""
    return route, Way(chosen.passed, chosen.sampling, responds_as, problem, chosen.fallbacks)


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
