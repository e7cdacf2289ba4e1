"""A ModelDeployment under test: what a user does to it with kubectl, and its status."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from testkit.cluster.api import Json as Json
from testkit.cluster.diagnosis import diagnosis
from testkit.cluster.kube import LABEL as LABEL
from testkit.cluster.kube import Kube
from testkit.until import WaitFailed, until

MODELS = "file:///opt/slipway/models"  # these ship in the server image
REVISION_LABEL = "slipway.dev/revision"
START_S = 120.0  # for pods to become ready, on two cores that others use too
NOTICE_S = 30.0  # for the operator and the gateways to follow an edit that starts no pod


@dataclass(frozen=True)
class Deployment:
    """One ModelDeployment in a namespace of its own; its model has a name that no other test uses."""

    kube: Kube
    namespace: str
    name: str = "chat"

    @property
    def model(self) -> str:
        """The name that clients send."""
        return f"{self.name}.{self.namespace}"

    @property
    def route(self) -> str:
        """What the gateways call it."""
        return f"{self.namespace}/{self.name}"

    def analysis(self, status: Json, field: str = "analysis") -> Json:
        """The status of the AnalysisRun that a status of the deployment names; empty without one."""
        name = ((status.get("rollout") or {}).get(field) or {}).get("run")
        path = f"apis/slipway.dev/v1alpha1/namespaces/{self.namespace}/analysisruns/{name}"
        found = self.kube.api.find(path) if name else None
        return dict(found["status"]) if found else {}

    # --- what a user does ---------------------------------------------------------------------------------------------

    def create(self, version: str = "v1", **spec: Any) -> None:
        """Apply it with the tiny model of this version."""
        self.kube.apply(self.manifest(version, **spec), self.namespace)

    def manifest(self, version: str = "v1", *, uri: str = "", **spec: Any) -> Json:
        """With two pauses and short delays; keywords replace fields of the spec, and the model's URI. Any model has the
        deployment's own name."""
        defaults = {
            "model": model_of(version) | {"name": self.model} | ({"uri": uri} if uri else {}),
            "strategy": canary({"setWeight": 10}, {"pause": {}}, {"setWeight": 50}, {"pause": {}}),
            "drain": {"timeoutSeconds": 60},
        }
        return {
            "apiVersion": "slipway.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": defaults | spec | {"model": {"name": self.model} | spec.get("model", defaults["model"])},
        }

    def edit(self, **spec: Any) -> None:
        """One `kubectl patch` of the spec."""
        self.kube.patch(self.name, self.namespace, {"spec": spec})

    def release(self, version: str, **spec: Any) -> None:
        """Edit the spec to another version of the model."""
        self.edit(model=model_of(version), **spec)

    def promote(self) -> None:
        """End the pause that the status names."""
        self.edit(rollout={"promote": self.status["rollout"]["token"]})

    def promote_full(self) -> None:
        """Skip the steps of the attempt in flight."""
        self.edit(rollout={"promoteFull": self._attempt()})

    def abort(self) -> str:
        """Reject the attempt in flight; gives its token."""
        attempt = self._attempt()
        self.edit(rollout={"abort": attempt})
        return attempt

    def _attempt(self) -> str:
        """REVISION/ATTEMPT of the attempt in flight."""
        return str(self.status["rollout"]["token"]).rsplit("/", 1)[0]

    def scale(self, replicas: int) -> None:
        self.kube.kubectl("scale", f"mdep/{self.name}", "--namespace", self.namespace, f"--replicas={replicas}")

    # --- its status ---------------------------------------------------------------------------------------------------

    @property
    def status(self) -> Json:
        return status_of(self.kube.deployment(self.name, self.namespace))

    def until(self, what: str, holds: Callable[[Json], bool], within_s: float = NOTICE_S) -> Json:
        """Poll the status until it holds; a failure has the state of the cluster."""
        found = until_deployment(
            self.kube, self.name, self.namespace, lambda seen: _answers(seen, holds), what, within_s
        )
        return status_of(found)

    def until_state(self, state: str, within_s: float = START_S) -> Json:
        """Wait for a state of the rollout."""
        return self.until(f"the rollout is {state}", lambda status: state_of(status) == state, within_s)

    def until_stable(self, version: str, within_s: float = START_S) -> Json:
        """Wait until a revision of this version has all traffic, all its pods, and no rollout is left."""

        def stable(status: Json) -> bool:
            return weights_of(status) == {version: 100} and not status.get("rollout") and status["phase"] == "Healthy"

        return self.until(f"{version} is stable", stable, within_s)

    def until_alone(self) -> Json:
        """Wait until only pods of the stable revision are left."""

        def alone(status: Json) -> bool:
            return {revision_of(pod) for pod in self.pods()} == {status["stableRevision"]}

        return self.until("pods of other revisions have left", alone, 60)

    def pods(self, revision: str | None = None) -> list[Json]:
        """Its pods that are not on their way out."""
        selector = f"{LABEL}={self.name}" + (f",{REVISION_LABEL}={revision}" if revision else "")
        found = self.kube.api.items("v1/pods", self.namespace, selector=selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def pod_uids(self, revision: str | None = None) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods(revision)}

    def objects(self) -> dict[str, str]:
        """Kind and name → uid of everything that belongs to it and is not on its way out."""
        found = self.kube.children(self.name, self.namespace)
        present = [item for item in found if "deletionTimestamp" not in item["metadata"]]
        return {f"{item['kind']} {item['metadata']['name']}": item["metadata"]["uid"] for item in present}

    def event_reasons(self) -> set[str]:
        """Reasons of the Events about it."""
        about = f"involvedObject.name={self.name},involvedObject.kind=ModelDeployment"
        return {event["reason"] for event in self.kube.api.items("v1/events", self.namespace, fields=about)}

    def until_events(self, *reasons: str) -> None:
        """Wait for Events with these reasons: they follow the status with the same change."""
        until(self.event_reasons, f"Events {', '.join(reasons)}", NOTICE_S, holds=set(reasons).issubset)


def until_deployment(
    kube: Kube,
    name: str,
    namespace: str,
    holds: Callable[[Json], bool],
    what: str,
    within_s: float,
    *,
    refuses: Callable[[Json], str] = lambda _: "",
    watch: Callable[[Json], None] = lambda _: None,
) -> Json:
    """Poll a ModelDeployment until it holds; `watch` sees every state of it, `refuses` ends the wait with a reason.

    Raises:
        WaitFailed: with status.phase and status.message, the last Events and the state of each pod.
    """

    def look() -> Json:
        seen = kube.deployment(name, namespace)
        watch(seen)
        reason = refuses(seen) if seen and not holds(seen) else ""
        if reason:
            raise WaitFailed(f"waited for: {what}; {reason}\n{diagnosis(kube, name, namespace)}")
        return seen

    def shown(_: Json) -> str:
        return "\n" + diagnosis(kube, name, namespace)

    return until(look, what, within_s, holds=lambda seen: bool(seen) and holds(seen), shown=shown)


def _answers(seen: Json, holds: Callable[[Json], bool]) -> bool:
    """A status counts when it answers the present spec: an older one would confirm what no longer is."""
    status = status_of(seen)
    return status.get("observedGeneration") == seen["metadata"]["generation"] and holds(status)


def canary(*steps: Json, rejected_leave_after_s: int = 1) -> Json:
    """A strategy with these steps, whose pods leave as soon as they may.

    `rejected_leave_after_s`: within this time a retry finds the pods of the aborted attempt, and starts none.
    """
    delays = {"scaleDownDelaySeconds": 1, "abortScaleDownDelaySeconds": rejected_leave_after_s}
    return {"canary": {"steps": list(steps), **delays}}


def model_of(version: str) -> Json:
    """The spec.model of a tiny model; `v2-again` has v2's weights under another name for people."""
    return {"uri": f"{MODELS}/tiny-{version.removesuffix('-again')}", "version": version}


def status_of(seen: Json) -> Json:
    return dict(seen.get("status") or {})


def state_of(status: Json) -> str | None:
    """The state of the rollout; None when there is none."""
    return (status.get("rollout") or {}).get("state")


def weights_of(status: Json) -> dict[str, int]:
    """Version → percent of new requests, of those that get any."""
    backends = (status.get("traffic") or {}).get("backends") or ()
    return {backend["version"]: backend["weight"] for backend in backends if backend["weight"]}


def revision_of(pod: Json) -> str:
    return str(pod["metadata"]["labels"][REVISION_LABEL])


def conditions_of(status: Json) -> dict[str, str]:
    """Type → status of its conditions."""
    return {item["type"]: item["status"] for item in status.get("conditions") or ()}
