"""Conditions about what a revision needs besides its pods: the certificate that they serve with, and its record."""

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.manifests.pods.certificate import NAME
from slipway_operator.model import labels
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.conditions.condition_type import ConditionFacts, ConditionState, condition_type
from slipway_operator.planning.facts.references import FORMER_RECORD
from slipway_operator.planning.facts.situation import Course, Situation

ISSUED, NOT_ISSUED = "Issued", "NotIssued"


def _not_issued(before: Condition | None, now: Condition | None) -> Event | None:
    """An Event when the condition becomes False."""
    if now is None or now.status != "False" or (before and before.status == "False"):
        return None
    return Event("Warning", "CertificateNotIssued", now.message)


@condition_type("CertificateReady", rank=90, event=_not_issued)
def certificate_ready(facts: ConditionFacts) -> ConditionState | None:
    """Whether an issuer of cert-manager gives pods their certificate; only where a live revision has TLS."""
    problem = facts.at.observed.certificate
    if problem is None or not _has_tls(facts.course, facts.at):
        return None
    if not problem:
        return ConditionState(True, ISSUED, "the issuer gave the certificate of its pods")
    text = f"{problem}; until it is issued, pods wait for the Secret {NAME}, or keep the certificate that it has"
    return ConditionState(False, NOT_ISSUED, text)


def certificate_is_awaited(course: Course, at: Situation) -> bool:
    """Whether CertificateReady is False; nothing else reports its end."""
    return bool(at.observed.certificate) and _has_tls(course, at)


def _has_tls(course: Course, at: Situation) -> bool:
    live = [labels.what_runs(name) for name in (course.stable, course.target) if name]
    return any(at.observed.snapshots[name].tls for name in live if name in at.observed.snapshots)


def _not_found(before: Condition | None, now: Condition | None) -> Event | None:
    """An Event for each message that the former condition lacks."""
    is_new = now is not None and (before is None or before.message != now.message)
    return Event("Warning", "ReferenceNotFound", now.message) if now and is_new else None


@condition_type("ResolvedRefs", rank=50, event=_not_found, starting=frozenset({FORMER_RECORD}))
def resolved_refs(facts: ConditionFacts) -> ConditionState | None:
    """False, while a reference cannot be resolved; else nothing."""
    missing = facts.at.missing
    return ConditionState(False, missing.reason, f"{missing.what}: {missing.remedy}") if missing else None


TYPES = (certificate_ready, resolved_refs)
