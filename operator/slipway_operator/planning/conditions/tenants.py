"""Conditions about tenants: usage that no request can have caused, and cached prompts that an engine may mix."""

from slipway_operator.model import labels
from slipway_operator.model.engine_types import TENANT_CACHE, WITHOUT_CACHE, capabilities_of
from slipway_operator.model.inputs.pod_inputs import Engine
from slipway_operator.planning.conditions.condition_type import (
    AS_BEFORE,
    ConditionFacts,
    ConditionState,
    condition_type,
)
from slipway_operator.planning.facts.situation import Situation

MORE_THAN_POSSIBLE = "MoreThanPossible"
UNKNOWN_ENGINE, NOT_TESTED = "UnknownEngine", "NotTested"
_ALONE = "let one tenant alone use this model (spec.models of Tenants)"


@condition_type("UsageReportsImplausible", rank=140, event=None, bad_when="True")
def usage_reports_implausible(facts: ConditionFacts) -> ConditionState | None:
    """While a gateway had a report of usage in the last minutes that no request can have caused; the largest one."""
    gateways = (gateway for gateway in facts.at.observed.gateways if not gateway.gone)
    reports = [gateway.implausible_usage for gateway in gateways if gateway.implausible_usage]
    if not reports:
        return None
    largest = max(reports, key=lambda report: (report.reported, report.possible))
    text = (
        f"a server reported {largest.reported} tokens for a request that can have caused {largest.possible}; the rest "
        "is not charged. Correct what the engine reports as usage"
    )
    return ConditionState(True, MORE_THAN_POSSIBLE, text)


# It stops nothing, so REASON stays what the rollout does.
@condition_type("TenantIsolationUnknown", rank=None, event=None, bad_when="True")
def tenant_isolation_unknown(facts: ConditionFacts) -> ConditionState | None:
    """Where there are Tenants and a live revision has an engine without TenantCache."""
    course, at = facts.course, facts.at
    if at.observed.tenants is None:
        return AS_BEFORE
    if not at.observed.tenants:
        return None
    live = [name for name in (course.stable, course.target) if name]
    engines = [(name, engine) for name in live if (engine := _engine(at, name))]
    unknown = [(name, engine) for name, engine in engines if TENANT_CACHE not in capabilities_of(engine)]
    return ConditionState(True, *_problem(*unknown[0])) if unknown else None


def _problem(revision: str, engine: Engine) -> tuple[str, str]:
    notices = "by the time of an answer, or its cached_tokens, a tenant may notice what another one sent"
    if engine.type == "sglang":
        text = (
            f"whether SGLang keeps the cached prompts of tenants apart was not tested (revision {revision}): {notices}"
        )
        return NOT_TESTED, f"{text}; add {WITHOUT_CACHE} to spec.engine.args, or {_ALONE}"
    text = (
        f"nothing is known of how the engine of revision {revision}, of type {engine.type}, caches prompts: {notices}"
    )
    return UNKNOWN_ENGINE, f"{text}; turn off its cache of prompts, or {_ALONE}"


def _engine(at: Situation, name: str) -> Engine | None:
    """The engine of a revision; for a new one it is read from the spec until its record exists."""
    snapshot = at.observed.snapshots.get(labels.what_runs(name))
    inputs = snapshot.inputs if snapshot else at.spec.inputs if name == at.current else None
    return inputs.engine if inputs else None


TYPES = (usage_reports_implausible, tenant_isolation_unknown)
