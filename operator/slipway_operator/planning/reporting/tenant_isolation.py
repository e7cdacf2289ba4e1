"""Whether an engine keeps the cached prompts of tenants apart: the condition TenantIsolationUnknown."""

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.model import labels
from slipway_operator.model.engine_types import TENANT_CACHE, WITHOUT_CACHE, capabilities_of
from slipway_operator.model.inputs.pod_inputs import Engine
from slipway_operator.planning.facts.conditions import TENANT_ISOLATION_UNKNOWN, condition
from slipway_operator.planning.facts.situation import Course, Situation

UNKNOWN_ENGINE, NOT_TESTED = "UnknownEngine", "NotTested"
_ALONE = "let one tenant alone use this model (spec.models of Tenants)"


def conditions(course: Course, at: Situation) -> list[Condition]:
    """TenantIsolationUnknown where there are Tenants and a live revision has an engine without TenantCache."""
    if at.observed.tenants is None:  # the former condition stays
        return [item for item in at.status.conditions if item.type == TENANT_ISOLATION_UNKNOWN]
    if not at.observed.tenants:
        return []
    live = [name for name in (course.stable, course.target) if name]
    engines = [(name, engine) for name in live if (engine := _engine(at, name))]
    unknown = [(name, engine) for name, engine in engines if TENANT_CACHE not in capabilities_of(engine)]
    if not unknown:
        return []
    reason, text = _problem(*unknown[0])
    return [condition(TENANT_ISOLATION_UNKNOWN, True, reason, text, at.now)]


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
