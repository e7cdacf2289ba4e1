"""ModelRoute: public names and their rules. Its spec, which gateways read too, is `slipway_contracts.model_routes`."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import AtMost, Definition, ListMap, PrinterColumn, custom_resource, rule
from slipway_contracts.api.types import ApiType, Int64, strict
from slipway_contracts.model_routes.spec import MOST_REFS, MOST_RULES, PLURAL, ModelRouteSpec
from slipway_contracts.resilience import MOST_FALLBACKS
from slipway_operator.api.v1alpha1.status import Condition


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


@strict
@dataclass(frozen=True, slots=True)
class ModelRouteStatus:
    """What the operator found out about the names and targets. The operator writes it."""

    observed_generation: Int64 = 0
    """metadata.generation that the status was computed from."""
    names: Annotated[
        tuple[Annotated[str, Field(description="Public name.")], ...],
        AtMost(9),
    ] = ()
    """Public names that the ModelRoute has, by which clients reach it."""
    granted: Annotated[
        tuple[Annotated[str, Field(description="KIND/NAMESPACE/NAME of the target.")], ...],
        AtMost(MOST_RULES * (MOST_REFS + MOST_FALLBACKS)),
    ] = ()
    """Targets in other namespaces that a ReferenceGrant there allows. Gateways send no request to any other one."""
    conditions: Annotated[tuple[Condition, ...], ListMap("type")] = ()
    """Accepted: the ModelRoute has its names, and its rules can be followed. ResolvedRefs: all targets are there, and
    those in other namespaces allow it."""


@rule(
    "self.metadata.name.size() <= 63",
    "metadata.name may have at most 63 characters: metrics and headers name the ModelRoute by it",
)
@custom_resource(
    Definition(
        group="slipway.dev",
        version="v1alpha1",
        plural=PLURAL,
        short_names=("mroute",),
        categories=("slipway",),
        columns=(
            PrinterColumn("Names", "string", ".status.names", "Public names that the ModelRoute has."),
            PrinterColumn("Accepted", "string", _condition("Accepted", "status"), "Whether gateways follow it."),
            PrinterColumn("Reason", "string", _condition("Accepted", "reason"), "Why they do, or do not."),
            PrinterColumn("Resolved", "string", _condition("ResolvedRefs", "status"), "Whether all targets are there."),
            PrinterColumn("Rules", "string", ".spec.rules[*].name", "Names of its rules.", wide=True),
            PrinterColumn("Targets", "string", ".spec.rules[*].backendRefs[*].name", "Their targets.", wide=True),
            PrinterColumn("Age", "date", ".metadata.creationTimestamp"),
        ),
        status=True,
    )
)
class ModelRoute(ApiType):
    """Public model names that lead by rules to ModelDeployments: by headers, tenant, size and contents of a request,
    time of day, and percentage."""

    spec: ModelRouteSpec
    status: ModelRouteStatus | None = None
