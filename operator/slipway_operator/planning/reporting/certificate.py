"""Whether an issuer of cert-manager gives pods with TLS their certificate: the condition CertificateReady."""

from collections.abc import Iterable

from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.manifests.pods.certificate import NAME
from slipway_operator.model import labels
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.facts.conditions import CERTIFICATE_READY, condition
from slipway_operator.planning.facts.situation import Course, Situation

ISSUED, NOT_ISSUED = "Issued", "NotIssued"


def conditions(course: Course, at: Situation) -> list[Condition]:
    """CertificateReady where an issuer signs and a live revision has TLS; else nothing."""
    problem = at.observed.certificate
    if problem is None or not _has_tls(course, at):
        return []
    if not problem:
        return [condition(CERTIFICATE_READY, True, ISSUED, "the issuer gave the certificate of its pods", at.now)]
    text = f"{problem}; until it is issued, pods wait for the Secret {NAME}, or keep the certificate that it has"
    return [condition(CERTIFICATE_READY, False, NOT_ISSUED, text, at.now)]


def of_conditions(before: Iterable[Condition], now: Iterable[Condition]) -> tuple[Event, ...]:
    """An Event when the condition CertificateReady becomes False."""
    former = {item.type: item.status for item in before}
    fresh = [item for item in now if item.type == CERTIFICATE_READY and item.status == "False"]
    return tuple(
        Event("Warning", "CertificateNotIssued", item.message) for item in fresh if former.get(item.type) != "False"
    )


def is_awaited(course: Course, at: Situation) -> bool:
    """Whether the condition is False; nothing else reports its end."""
    return bool(at.observed.certificate) and _has_tls(course, at)


def _has_tls(course: Course, at: Situation) -> bool:
    live = [labels.what_runs(name) for name in (course.stable, course.target) if name]
    return any(at.observed.snapshots[name].tls for name in live if name in at.observed.snapshots)
