"""Models of a registry: the version that a spec describes, what the status keeps of it, and verdicts about versions.

An alias may move while the registry cannot be reached. So the last version that was found stays in the status, and a
failure changes nothing: what is not known is not guessed.
"""

from dataclasses import asdict, dataclass, replace
from datetime import datetime

from slipway_operator.api.v1alpha1.registry_status import RegistryStatus
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment.spec import Invalid, Spec
from slipway_operator.model.inputs import registry
from slipway_operator.model.inputs.registry import RegistryFacts, RegistrySource, RegistryVersion
from slipway_operator.planning.facts.situation import Situation
from slipway_operator.planning.facts.verdicts import is_stated
from slipway_operator.planning.facts.verdicts import verdicts as revision_verdicts

NOT_RESOLVED, NOT_CONFIGURED, NOT_FOUND = "RegistryNotResolved", "RegistryNotConfigured", "RegistryNotFound"
UNAVAILABLE, DENIED, NOT_SUPPORTED = "RegistryUnavailable", "RegistryAccessDenied", "RegistrySourceNotSupported"
TOO_MANY = "RegistryLookupsExceeded"
REASONS = (NOT_RESOLVED, NOT_CONFIGURED, NOT_FOUND, UNAVAILABLE, DENIED, NOT_SUPPORTED, TOO_MANY)
PASSING = (NOT_RESOLVED, UNAVAILABLE, TOO_MANY)  # reasons that end without a person


@dataclass(frozen=True, slots=True)
class VersionVerdict:
    """What a rollout concluded about a version; `at` is the same at each look."""

    source: RegistrySource
    verdict: str
    reason: str
    at: datetime
    statement: str = ""  # the signed statement about the revision; empty while there is none


def resolved(spec: Spec | Invalid, status: Status, observed: Observed) -> Spec | Invalid:
    """The spec with the version that its models:/ URI stands for, or why there is none; other specs as they are."""
    if isinstance(spec, Invalid) or spec.registry is None:
        return spec
    version = _version(spec, status, observed)
    if version is None:
        answer = observed.registry
        if answer is None or not answer.problem:
            return Invalid(f"{spec.registry.uri} is not resolved yet: the operator looks it up", NOT_RESOLVED)
        return Invalid(f"{spec.registry.uri} cannot be resolved: {answer.problem}", answer.reason)
    model = spec.inputs.model
    shown = model.version or version.version
    inputs = replace(
        spec.inputs,
        model=replace(model, uri=version.source, version=shown),
        registry=RegistrySource(spec.registry.name, version.version),
    )
    return replace(spec, inputs=inputs)


def status_of(at: Situation) -> RegistryStatus | None:
    """What the status keeps: the version, and the registry's facts about it. A text of a stranger is on one line."""
    version, former = _version(at.spec, at.status, at.observed), at.status.registry
    if version is None:
        return None
    is_same = former is not None and (former.uri, former.version) == (version.uri, version.version)
    since = former.since if former and is_same else at.now
    return RegistryStatus(version.uri, version.version, version.source, since, **asdict(version.facts))


def moved(former: RegistryStatus | None, present: RegistryStatus | None) -> tuple[Event, ...]:
    """The Event about an alias that has another version than before."""
    if former is None or present is None or former.uri != present.uri or former.version == present.version:
        return ()
    text = f"{present.uri} moved from version {former.version} to {present.version}"
    return (Event("Normal", "ModelAliasMoved", text),)


def uri_of(at: Situation, revision: str) -> str | None:
    """The URI of the registered version that a revision runs; None where it is from no registry."""
    snapshot = at.observed.snapshots.get(revision)
    inputs = snapshot.inputs if snapshot else at.spec.inputs if revision == at.current else None
    return inputs.registry.uri if inputs and inputs.registry else None


def verdicts(status: Status, observed: Observed) -> tuple[VersionVerdict, ...]:
    """What rollouts concluded about versions, as the status has it; of one version the last word."""
    known: dict[RegistrySource, VersionVerdict] = {}
    for one in revision_verdicts(status):
        snapshot = observed.snapshots.get(one.revision)
        source = snapshot.inputs.registry if snapshot else None
        if snapshot and source:
            statement = snapshot.statement if is_stated(snapshot.statement, one) else ""
            known[source] = VersionVerdict(source, one.verdict, one.reason, one.at, statement)
    return tuple(known.values())


def _version(spec: Spec, status: Status, observed: Observed) -> RegistryVersion | None:
    """The version by the registry's last answer, else by the status, where both are about the spec's URI."""
    if spec.registry is None:
        return None
    answer, kept, uri = observed.registry, status.registry, spec.registry.uri
    if answer and answer.version and answer.version.uri == uri:
        return answer.version
    if kept is None or kept.uri != uri or not registry.is_version(kept.version) or not registry.is_source(kept.source):
        return None
    if spec.registry.version not in ("", kept.version):
        return None
    facts = RegistryFacts(
        kept.owner, kept.description, kept.tags, kept.run, kept.metrics, kept.dataset, kept.aliases, kept.latest
    )
    return RegistryVersion(uri, kept.version, kept.source, facts)
