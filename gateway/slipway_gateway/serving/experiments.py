"""The arm of a request: which experiment it takes part in, by its unit, and where it goes for that."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from aiohttp import web

from slipway_contracts.experiments.assignment import HELD_OUT, OUTSIDE, Assignment, place, unit_key
from slipway_contracts.experiments.spec import API_KEY, HEADER, HOLDOUT, TENANT, USER
from slipway_contracts.model_routes.spec import DEPLOYMENT, KIND

from ..experiments.exposures import Experiments
from ..identity.authenticate import RequestIdentity
from ..routing.experiments import ChosenArm, PublishedExperiment, revision_named, subject_of
from ..routing.router import match_header_route
from ..routing.table import Route, RouteTable
from ..wire import request_fields
from ..wire.request_fields import RequestFields
from .model_routes import Way
from .visible import may_use

# Why a request takes the ordinary way, for the counts of an experiment.
NO_UNIT, PINNED, NOT_ALLOWED = "no_unit", "pinned", "not_allowed"


class Destination(NamedTuple):
    """Where a request goes, and what the ModelRoutes on the way impose. `chosen`: None where it is in no experiment."""

    route: Route
    way: Way
    chosen: ChosenArm | None = None

    def preferred(self, headers: Mapping[str, str]) -> str:
        """The revision that its arm or else a header route prefers; empty: any. `headers`: case-insensitive."""
        if self.chosen is not None and self.chosen.revision:
            return self.chosen.revision
        return match_header_route(self.route, headers) if self.route.header_routes else ""


class ArmOfRequest:
    """Chooses the arm of one request."""

    def __init__(
        self,
        experiments: Experiments,
        table: RouteTable,
        request: web.Request,
        fields: RequestFields,
        identity: RequestIdentity | None,
    ) -> None:
        self._experiments, self._table = experiments, table
        self._request, self._fields, self._identity = request, fields, identity

    def choose(self, model: str, route: Route, way: Way, *, is_pinned: bool) -> Destination:
        """The destination of a request that by its name, and by rules, goes to `route`.

        The oldest experiment that has an arm for its unit decides, and no other one counts it: layers are independent,
        so the units that are left to the others are no special ones. `is_pinned`: the request names a version.
        """
        ordinary = Destination(route, way)
        for experiment in self.about(model, route):
            assignment = experiment.assignment
            if not experiment.runs(self._experiments.now_s()) or not _takes(assignment, way):
                continue
            if not (unit := self._unit(assignment)):
                self._experiments.skipped(experiment, NO_UNIT)
                continue
            if is_pinned or match_header_route(route, self._request.headers):
                self._experiments.skipped(experiment, PINNED)
                continue
            if not self._may_use_all(assignment):
                self._experiments.skipped(experiment, NOT_ALLOWED)
                continue
            placed = place(experiment.name, assignment, unit)
            if placed.result == OUTSIDE:
                continue
            if placed.result == HELD_OUT or placed.arm is None:
                return ordinary._replace(chosen=ChosenArm(experiment, HOLDOUT, unit, route.name))
            target = self._table.routes[placed.arm.deployment]
            revision = revision_named(target.backends, placed.arm.revision) if placed.arm.revision else ""
            chosen = ChosenArm(experiment, placed.arm.name, unit, target.name, revision)
            return Destination(target, way, chosen)
        return ordinary

    def holder(self, model: str, route: Route, revision: str) -> Route:
        """The deployment with a revision, among the request's own and those of arms: a stream continues where it began,
        whatever its unit would get by now."""
        names = (arm.deployment for one in self.about(model, route) for arm in one.assignment.arms)
        candidates: Iterator[Route] = (found for name in names if (found := self._table.routes.get(name)) is not None)
        if revision in self._table.revisions(route):
            return route
        tenant = self._identity.tenant if self._identity else None
        holders = (one for one in candidates if revision in self._table.revisions(one))
        return next((one for one in holders if may_use(tenant, self._table, one)), route)

    def about(self, model: str, route: Route) -> tuple[PublishedExperiment, ...]:
        """The experiments about a name that a client sent, the oldest first."""
        public = self._table.public.get(model)
        name = subject_of(KIND, public.name) if public is not None else subject_of(DEPLOYMENT, route.name)
        return self._table.subjects.get(name, ())

    def _unit(self, assignment: Assignment) -> str:
        """The request's unit; empty without one."""
        identity = self._identity
        tenant = identity.name if identity else ""
        values: dict[str, Callable[[], str]] = {
            HEADER: lambda: self._request.headers.get(assignment.unit_header or "", "").strip(),
            USER: lambda: request_fields.user_of(self._fields),
            TENANT: lambda: tenant,
            API_KEY: lambda: (identity.key_id or identity.subject) if identity else "",
        }
        read = values.get(assignment.unit_type)
        value = read() if read is not None else ""
        return unit_key(tenant, value) if value else ""

    def _may_use_all(self, assignment: Assignment) -> bool:
        """Whether the tenant may use the deployments of all arms: with some of them arms would have other tenants."""
        tenant = self._identity.tenant if self._identity else None
        return all(may_use(tenant, self._table, self._table.routes[arm.deployment]) for arm in assignment.arms)


def _takes(assignment: Assignment, way: Way) -> bool:
    """Whether the rules that led a request are those whose requests take part."""
    return not assignment.rules or (bool(way.passed) and way.passed[0][1] in assignment.rules)
