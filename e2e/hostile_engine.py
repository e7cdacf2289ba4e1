"""A hostile namespace whose engines misreport, and whose requests and hooks stay: its objects, and what it sends."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from e2e import hostile_engine_pods
from e2e.hostile import SCRIPT, bare_pod, limits, object_of
from e2e.test_scale_to_zero import SCALED, until_asleep
from e2e.windows import Window
from testkit.cluster.api import GROUP_PATH
from testkit.cluster.deployment import Deployment, Json, conditions_of, model_of
from testkit.cluster.kube import RELEASE, SYSTEM, Kube

CLIENT, HOOKS = "client", "hooks"
PROGRAM = str(Path(SCRIPT).with_name("hostile_engine_pods.py"))
READY_S = 120
LIES, COMMENTS, ASLEEP = "lies", "comments", "asleep"
IMPLAUSIBLE = "UsageReportsImplausible"
HOLD_S = 3600  # the longest that an owner may write
HOOKED, HOOKS_OF_EACH = 12, 16
GATE_S = 300
MOST_PODS = 24
_STRATEGY: Json = {"canary": {"steps": [{"setWeight": 50}], "scaleDownDelaySeconds": 1}}
_VOLUME = {"name": "script", "configMap": {"name": "script"}}


@dataclass(frozen=True, slots=True)
class Sent:
    """What its client sends in each window: requests a second to its liar, streams, requests that stay."""

    lies_per_s: int = 0
    streams: int = 0
    held: int = 0


@dataclass(slots=True)
class HostileEngine:
    """The namespace of a stranger with a key of its own, who harms others by what its workloads do."""

    kube: Kube
    namespace: str
    image: str  # of the model server: it has Python and aiohttp
    key: str = field(repr=False)
    hooked: list[Deployment] = field(default_factory=list)

    def settle(self) -> None:
        """Its engines serve, one of them has fallen asleep, and none gets another pod any more."""
        for manifest in (*limits(MOST_PODS), program()):
            self.kube.apply(manifest, self.namespace)
        self.kube.apply(bare_pod(CLIENT, self.image, ["sleep", "3600"], {}, script=True), self.namespace)
        receive_hooks(self.kube, self.namespace, self.image, HOLD_S)
        volumes: Json = {"volumes": [_VOLUME]}
        for name in (LIES, COMMENTS):
            self.deployment(name).create(engine=self._engine(name), pod=volumes)
        scaled = SCALED | {"holdSeconds": HOLD_S}
        self.deployment(ASLEEP).create(engine=self._engine(LIES), pod=volumes, autoscaling=scaled)
        self.hooked = [self.deployment(f"hooked-{number}") for number in range(HOOKED)]
        for one in self.hooked:
            one.create(engine=_idle_engine(self.image), strategy=_STRATEGY)
        for one in (self.deployment(LIES), self.deployment(COMMENTS), *self.hooked):
            one.until_stable("v1")
        self.kube.kubectl("wait", f"pod/{CLIENT}", "-n", self.namespace, "--for=condition=Ready",
                          f"--timeout={READY_S}s", timeout_s=READY_S + 10)  # fmt: skip
        until_asleep(self.deployment(ASLEEP))
        # Its next pod is refused, so that it never becomes ready again.
        full = object_of("v1", "ResourceQuota", "full", spec={"hard": {"pods": "1"}})
        self.kube.apply(full, self.namespace)

    def deployment(self, name: str) -> Deployment:
        return Deployment(self.kube, self.namespace, name)

    def _engine(self, kind: str) -> Json:
        return {
            "type": "custom",
            "image": self.image,
            "command": ["python3", PROGRAM, "engine", kind],
            "custom": {"readinessPath": "/health", "preStopSeconds": 5},
            "volumeMounts": [{"name": "script", "mountPath": str(Path(PROGRAM).parent), "readOnly": True}],
        }

    # --- what it does -------------------------------------------------------------------------------------------------

    def attack(self, windows: list[Window], sent: Sent) -> Json:
        """All that is sent to the gateways, within these windows; blocks. Gives counts by kind."""
        models = {name: self.deployment(name).model for name in (LIES, COMMENTS, ASLEEP)}
        plan = {"gateway": f"http://{RELEASE}-gateway.{SYSTEM}", "key": self.key, "models": models, "windows": windows,
                "lies_per_s": sent.lies_per_s, "streams": sent.streams, "held": sent.held}  # fmt: skip
        output = self.kube.kubectl("exec", CLIENT, "-n", self.namespace, "--", "python3", PROGRAM, "client",
                                   json.dumps(plan), timeout_s=windows[-1][1] - time.time() + 60)  # fmt: skip
        return dict(json.loads(output.strip().splitlines()[-1]))

    def hang_hooks(self) -> None:
        """Some of its ModelDeployments get hooks: gates that hang, and notices of Events that hang too."""
        each = {"url": hooks_url(self.namespace), "timeoutSeconds": GATE_S}
        hooks = [{"name": "gate", "type": "confirm-rollout", **each}]
        hooks += [{"name": f"event-{number}", "type": "event", **each} for number in range(HOOKS_OF_EACH - 1)]
        self._edit_hooked({"strategy": {"hooks": hooks}})

    def release_hooked(self, version: str) -> None:
        """Another version of each of them: a rollout that calls a gate, and Events."""
        self._edit_hooked({"model": model_of("v1") | {"version": version}})

    def _edit_hooked(self, spec: Json) -> None:
        """Without a kubectl for each, which would take more of the node than what it does."""
        for one in self.hooked:
            path = f"{GROUP_PATH}/namespaces/{self.namespace}/modeldeployments/{one.name}"
            answer = self.kube.api.merge(path, {"spec": spec})
            assert answer.ok, answer.message

    # --- what came of it ----------------------------------------------------------------------------------------------

    def conditions(self) -> dict[str, str]:
        return conditions_of(self.deployment(LIES).status)

    def hanging(self) -> int:
        """Calls of hooks that its receiver got, and never answered."""
        return len(hook_calls(self.kube, self.namespace))

    def waiting_gates(self) -> int:
        """Its rollouts whose gate was called and has not opened."""
        rollouts = [one.status.get("rollout") or {} for one in self.hooked]
        return sum(
            any(state["outcome"] not in ("Passed", "Failed") for state in one.get("hooks") or ()) for one in rollouts
        )


# --- objects, some of which the honest namespace has too --------------------------------------------------------------


def _idle_engine(image: str) -> Json:
    """It is ready, and answers no chat."""
    custom = {"readinessPath": "/", "preStopSeconds": 5}
    return {"type": "custom", "image": image, "command": ["python3", "-m", "http.server", "8000"], "custom": custom}


def program() -> Json:
    source = Path(hostile_engine_pods.__file__).read_text()
    return object_of("v1", "ConfigMap", "script", data={Path(PROGRAM).name: source})


def receive_hooks(kube: Kube, namespace: str, image: str, answers_after_s: int) -> None:
    """A receiver of hooks at `hooks_url`, ready when this returns; the namespace has the program."""
    command = ["python3", PROGRAM, "hooks", str(answers_after_s)]
    port = {"port": 80, "targetPort": hostile_engine_pods.HOOKS_PORT}
    kube.apply(bare_pod(HOOKS, image, command, {"app": HOOKS}, script=True), namespace)
    kube.apply(object_of("v1", "Service", HOOKS, spec={"selector": {"app": HOOKS}, "ports": [port]}), namespace)
    kube.kubectl("wait", f"pod/{HOOKS}", "-n", namespace, "--for=condition=Ready", f"--timeout={READY_S}s",
                 timeout_s=READY_S + 10)  # fmt: skip


def hooks_url(namespace: str) -> str:
    return f"http://{HOOKS}.{namespace}.svc/"


def hook_calls(kube: Kube, namespace: str) -> list[Json]:
    """What its receiver of hooks got so far."""
    lines = kube.kubectl("logs", HOOKS, "-n", namespace, "--tail=-1").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
