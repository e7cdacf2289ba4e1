"""How the pods of a revision are shared between its own ReplicaSet and standby pods that serve.

More replicas are standby pods with a loaded model first, and new pods only beyond these. With fewer replicas pods leave
that are not ready, and then standby pods go back: they keep the model and take no requests. `spec.standbyReplicas`
others wait beside them all the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Pod
from slipway_operator.model.cluster.plan import Evict, Gate
from slipway_operator.planning.facts import standby, weights
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.sizing import replacement


@dataclass(frozen=True, slots=True)
class Share:
    """The pods of one revision."""

    own: int  # pods of its own ReplicaSet
    standby: int  # pods of the ReplicaSet of standby pods, with those that serve
    waiting: int  # pods among these that should wait
    woken: tuple[Pod, ...] = ()  # standby pods that begin to serve
    returned: tuple[Pod, ...] = ()  # standby pods that cease to
    serving: tuple[Pod, ...] = ()  # standby pods that serve from now on


def shares(course: Course, at: Situation, desired: Mapping[str, int]) -> dict[str, Share]:
    """The share of every revision, by how many pods it should have."""
    return {
        revision: _share(course, at, revision, desired.get(revision, 0))
        for revision in sorted({*desired, *at.observed.standby})
    }


def gates(at: Situation, shared: Mapping[str, Share]) -> tuple[Gate, ...]:
    """The changes of pods, those that begin to serve first. A change that was cut off is completed."""
    opened: list[Gate] = []
    closed: list[Gate] = []
    for revision, share in shared.items():
        serve = {pod.name for pod in share.serving}
        for pod in (*standby.serving(at.observed, revision), *standby.waiting(at.observed, revision)):
            if (pod.serves, pod.gate_open) != (pod.name in serve,) * 2:
                (opened if pod.name in serve else closed).append(_gate(pod, revision, serves=pod.name in serve))
    return (*opened, *closed)


def evictions(at: Situation) -> tuple[Evict, ...]:
    """The next waiting pod that is of no use: on a drained node, older than spec.restartAt, or with other weights."""
    useless = (
        Evict(pod.name, _why(at, revision, pod), uid=pod.uid)
        for revision in sorted(at.observed.standby)
        for pod in standby.waiting(at.observed, revision)
        if _why(at, revision, pod)
    )
    return tuple(useless)[:1]


def _share(course: Course, at: Situation, revision: str, total: int) -> Share:
    workload, serving = at.workload(revision), _by_use(at, revision)
    present = max(workload.desired if workload else 0, len(serving))
    woken = _loaded(at, revision)[: max(0, total - present)]
    returned = max(0, present - total - _starting(at, revision, present - len(serving)))
    kept = serving[: max(0, len(serving) - returned)]
    serve, waiting = (*kept, *woken), _waiting(course, at, revision)
    return Share(
        own=total - len(serve),
        standby=waiting + len(serve),
        waiting=waiting,
        woken=woken,
        returned=serving[len(kept) :],
        serving=serve,
    )


def _starting(at: Situation, revision: str, own: int) -> int:
    """Pods of the revision's own ReplicaSet that are not ready: these leave before any that serves."""
    serving = sum(pod.ready for pod in standby.serving(at.observed, revision))
    return max(0, own - max(0, at.ready(revision) - serving))


def _waiting(course: Course, at: Situation, revision: str) -> int:
    """Pods that should wait: only for stable. Asleep too, so that the next request finds a loaded model."""
    allowed = revision == course.stable and at.spec.replicas > 0
    return at.spec.standby_replicas if allowed and standby.may_have(at.observed.snapshots.get(revision)) else 0


def _by_use(at: Situation, revision: str) -> tuple[Pod, ...]:
    """The standby pods that serve, those that should go on first: ready ones with the most requests."""
    busy = at.observed.inflight_by_address(revision) or {}
    pods = standby.serving(at.observed, revision)
    return tuple(sorted(pods, key=lambda pod: (not pod.ready, -busy.get(pod.address, 0), pod.created_at, pod.name)))


def _loaded(at: Situation, revision: str) -> tuple[Pod, ...]:
    """The pods that can serve at once, oldest first; a change that was cut off goes on with the same pod."""
    pods = (pod for pod in standby.waiting(at.observed, revision) if pod.loaded and not _why(at, revision, pod))
    return tuple(sorted(pods, key=lambda pod: (not pod.gate_open, pod.created_at, pod.name)))


def _why(at: Situation, revision: str, pod: Pod) -> str:
    """Why a waiting pod is of no use; empty when it is."""
    if replacement.is_old(pod, at):
        return replacement.why_old(pod)
    return "it loaded other weights" if weights.is_other(pod, at.observed.snapshots.get(revision)) else ""


def _gate(pod: Pod, revision: str, *, serves: bool) -> Gate:
    return Gate(pod.name, pod.uid, revision if serves else labels.standby_of(revision), serves)
