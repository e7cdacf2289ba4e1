"""An adapter with versions on the pods of a ModelDeployment: promoted, rejected and gone, and no pod notices."""

import json
from collections.abc import Callable, Iterator

import pytest

from testkit.cluster.deployment import MODELS, START_S, Deployment, Json, canary, state_of, status_of, weights_of
from testkit.cluster.installation import Installation
from testkit.load.flow import Ended, Flow, Shape
from testkit.until import until

ADAPTERS: Json = {"maxLoaded": 4, "maxRank": 8, "memory": "64Mi"}
PAUSED = canary({"setWeight": 50}, {"pause": {}})
JUDGED = canary({"setWeight": 50}, {"analysis": {"templates": [{"templateName": "llm-default"}], "maxDuration": "5m"}})
LOAD, SLOW = Shape(rate=8), Shape(rate=2)
ADAPTERS_AT_ONCE = 10
# Long enough that gateways see a repetition. Without chance the good one repeats itself too.
LONG = Shape(rate=1, max_tokens=300, paused=False, temperature=0.5)
VERDICT_S = 300


class Adapter:
    """A ModelAdapter of a deployment."""

    def __init__(self, chat: Deployment, name: str = "tuned") -> None:
        self.kube, self.namespace, self.base, self.name = chat.kube, chat.namespace, chat.name, name
        self.model = f"{name}.{chat.namespace}"

    def release(self, folder: str, version: str, strategy: Json) -> None:
        """Apply it with the files of this folder of the image."""
        spec = {
            "deploymentRef": {"name": self.base},
            "model": {"name": self.model, "uri": f"{MODELS}/adapters/{folder}", "version": version},
            "strategy": strategy,
            "progressDeadlineSeconds": 60,
        }
        about = {"name": self.name, "namespace": self.namespace}
        manifest = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelAdapter", "metadata": about, "spec": spec}
        self.kube.apply(manifest, self.namespace)

    def promote_full(self, status: Json) -> None:
        attempt = str(status["rollout"]["token"]).rsplit("/", 1)[0]
        change = json.dumps({"spec": {"rollout": {"promoteFull": attempt}}})
        self.kube.kubectl("patch", "madapter", self.name, "-n", self.namespace, "--type=merge", "-p", change)

    def until(self, what: str, holds: Callable[[Json], bool], within_s: float = START_S) -> Json:
        """Poll the status until it answers the present spec and holds."""
        path = f"apis/slipway.dev/v1alpha1/namespaces/{self.namespace}/modeladapters/{self.name}"

        def answers(seen: Json) -> bool:
            status = status_of(seen)
            return status.get("observedGeneration") == seen["metadata"]["generation"] and holds(status)

        return status_of(until(lambda: self.kube.api.find(path), what, within_s, holds=answers, shown=_status))

    def until_stable(self, version: str) -> Json:
        def is_stable(status: Json) -> bool:
            return weights_of(status) == {version: 100} and not status.get("rollout")

        return self.until(f"{version} of {self.name} is stable", is_stable)

    def until_paused(self) -> Json:
        return self.until(f"{self.name} is paused", lambda status: state_of(status) == "Paused")


def _status(seen: Json) -> str:
    return json.dumps(status_of(seen), indent=1)


@pytest.fixture
def running(slipway: Installation) -> Iterator[Callable[[str, Shape], Flow]]:
    """Starts requests for a model; stopped with the test at the latest."""
    flows: list[Flow] = []

    def start(model: str, shape: Shape) -> Flow:
        flows.append(Flow(slipway.url, model, shape).start())
        return flows[-1]

    yield start
    for flow in flows:
        flow.stop()


@pytest.mark.timeout(4 * START_S + VERDICT_S, func_only=True)
def test_a_good_version_is_promoted_and_a_bad_one_rejected_on_the_pods_that_are_there(
    deploy: Callable[..., Deployment], running: Callable[[str, Shape], Flow]
) -> None:
    chat = deploy("v1", replicas=2, adapters=ADAPTERS)
    base = chat.until_stable("v1")
    pods = restarts(chat)
    tuned = Adapter(chat)
    tuned.release("better", "v1", PAUSED)
    first = tuned.until_stable("v1")
    flows = [running(tuned.model, LOAD), running(chat.model, LOAD)]
    flows[0].wait_for(lambda ended: len(ended) >= 20, 60, "responses of the adapter")

    tuned.release("better", "v2", PAUSED)
    paused = tuned.until_paused()
    assert weights_of(paused) == {"v1": 50, "v2": 50}
    canary_revision = paused["canaryRevision"]
    flows[0].wait_for(lambda ended: answered(ended, canary_revision), 60, "responses of the new version")
    tuned.promote_full(paused)
    second = tuned.until_stable("v2")

    tuned.release("no-such-folder", "v3", JUDGED)
    absent = tuned.until(
        "files that are not there are rejected", lambda status: state_of(status) == "Aborted", VERDICT_S
    )
    assert weights_of(absent) == {"v2": 100} and "no-such-folder" in absent["message"]

    adapted, plain = (flow.stop() for flow in flows)
    assert not [ended for ended in adapted + plain if ended.trouble]
    revisions = {first["stableRevision"], second["stableRevision"]}
    assert {ended.revision for ended in adapted} == revisions
    assert {ended.revision for ended in plain} == {base["stableRevision"]}
    assert restarts(chat) == pods, "no pod came, went or restarted"


@pytest.mark.extended
@pytest.mark.timeout(8 * START_S, func_only=True)
def test_ten_adapters_roll_out_at_once_beside_kills_and_a_rollout_of_their_base(
    slipway: Installation, deploy: Callable[..., Deployment], running: Callable[[str, Shape], Flow]
) -> None:
    chat = deploy("v1", replicas=2, strategy=PAUSED, adapters={"maxLoaded": 20, "maxRank": 8, "memory": "256Mi"})
    chat.until_stable("v1")
    adapters = [Adapter(chat, f"tuned-{number}") for number in range(ADAPTERS_AT_ONCE)]
    for adapter in adapters:
        adapter.release("better", "v1", PAUSED)
    for adapter in adapters:
        adapter.until_stable("v1")
    flows = [running(model, SLOW) for model in (adapters[0].model, adapters[-1].model, chat.model)]
    for adapter in adapters:
        adapter.release("better", "v2", PAUSED)
    for adapter in adapters:
        assert weights_of(adapter.until_paused()) == {"v1": 50, "v2": 50}

    slipway.kill_operator()
    [pod, *_] = chat.pods()
    chat.kube.kubectl("delete", "pod", pod["metadata"]["name"], "--namespace", chat.namespace, "--wait=false")
    chat.edit(model={"version": "v1-again"})
    chat.until_state("Paused", 2 * START_S)
    waits = adapters[0].until("it waits for its base", lambda status: "BaseRollingOut" in reasons_of(status))
    assert weights_of(waits) == {"v1": 50, "v2": 50}
    chat.promote()
    chat.until_stable("v1-again", 2 * START_S)
    for adapter in adapters:
        adapter.promote_full(adapter.until_paused())
    for adapter in adapters:
        adapter.until_stable("v2")
    assert not [ended for flow in flows for ended in flow.stop() if ended.trouble]
    assert not any(restarts(chat).values()), "no container restarted"


def reasons_of(status: Json) -> set[str]:
    return {condition["reason"] for condition in status.get("conditions") or ()}


@pytest.mark.extended
@pytest.mark.timeout(2 * START_S + VERDICT_S, func_only=True)
def test_the_judge_rejects_an_adapter_that_repeats_itself(
    deploy: Callable[..., Deployment], running: Callable[[str, Shape], Flow]
) -> None:
    chat = deploy("v1", replicas=1, adapters=ADAPTERS)
    chat.until_stable("v1")
    pods, tuned = restarts(chat), Adapter(chat)
    tuned.release("better", "v1", JUDGED)
    tuned.until_stable("v1")
    flow = running(tuned.model, LONG)
    tuned.release("repeats", "v2", JUDGED)
    rejected = tuned.until("what repeats itself is rejected", lambda status: state_of(status) == "Aborted", VERDICT_S)
    assert rejected["rollout"]["abort"]["reason"] == "AnalysisFailed" and weights_of(rejected) == {"v1": 100}
    assert not [ended for ended in flow.stop() if ended.trouble] and restarts(chat) == pods


def answered(responses: list[Ended], revision: str) -> bool:
    return any(response.revision == revision for response in responses)


def restarts(chat: Deployment) -> dict[str, int]:
    """Restarts of all containers, by pod."""
    return {
        pod["metadata"]["uid"]: sum(state["restartCount"] for state in pod["status"]["containerStatuses"])
        for pod in chat.pods()
    }
