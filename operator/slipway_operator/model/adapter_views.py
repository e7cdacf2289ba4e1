"""What is known of the adapters of a ModelDeployment: its pods, and what each of them reports of its adapters."""

from collections.abc import Mapping
from dataclasses import dataclass

from slipway_operator.model.cluster.observed import Snapshot

MAX_SERVED = 256  # ModelAdapters of a ModelDeployment
MAX_ROLLOUTS = 16  # of them that roll out another version at a time
LOADED, FAILED = "loaded", "failed"  # states of a report
# Reasons in conditions. The first two are those of revisions without ready pods, the others hold a rollout.
ADAPTER_NOT_LOADED, DEPLOYMENT_NOT_READY = "AdapterNotLoaded", "DeploymentNotReady"
BASE_ROLLING_OUT, ADAPTERS_LIMIT, ROLLOUTS_LIMIT = "BaseRollingOut", "AdaptersLimit", "RolloutsLimit"
ADAPTERS_FAILED = "AdaptersFailed"


@dataclass(frozen=True, slots=True)
class LoadedState:
    """One version of an adapter in one pod."""

    state: str  # waiting, fetching, loading, loaded or failed
    digest: str = ""  # of the files that were loaded
    reason: str = ""  # why it failed, or waits


States = Mapping[tuple[str, str], LoadedState]  # by the name that clients send, and revision


@dataclass(frozen=True, slots=True)
class AdapterPod:
    """A ready pod of the ModelDeployment. `revision`: of the ModelDeployment; `states` None: it did not answer."""

    name: str
    revision: str
    states: States | None = None

    def state(self, name: str, revision: str) -> LoadedState | None:
        """The state of one version; None where the pod does not report one."""
        return self.states.get((name, revision)) if self.states is not None else None


@dataclass(frozen=True, slots=True)
class AdapterRevision:
    """A revision of a ModelAdapter that its pods are to hold."""

    adapter: str  # name of the ModelAdapter among ModelDeployments
    snapshot: Snapshot
    created: str = ""  # time of the ModelAdapter, RFC 3339 in UTC
    stable: bool = False
    begun: str = ""  # since when it is rolled out beside a stable one, RFC 3339 in UTC; empty: it is not


@dataclass(frozen=True, slots=True)
class BaseView:
    """A ModelDeployment with adapters now. `stable`: its revision that serves; `target`: one that it rolls out."""

    stable: str = ""
    target: str = ""
    pods: tuple[AdapterPod, ...] = ()  # ready ones
    beyond: frozenset[str] = frozenset()  # ModelAdapters for which the file has no room
    waiting: frozenset[str] = frozenset()  # those whose rollout waits for the end of others
    problem: str = ""  # why pods do not get the file; else empty
    generation: int = 0  # of the spec: strategy and room of adapters follow it

    @property
    def serving(self) -> tuple[AdapterPod, ...]:
        """The pods that serve; all, where none is stable yet."""
        return tuple(pod for pod in self.pods if pod.revision == self.stable) if self.stable else self.pods

    @property
    def coming(self) -> tuple[AdapterPod, ...]:
        """Pods of the revision that is rolled out."""
        return tuple(pod for pod in self.pods if pod.revision == self.target) if self.target else ()


BaseViews = Mapping[tuple[str, str], BaseView]  # by namespace and name
