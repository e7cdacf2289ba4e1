"""Replicas of two pods on two machines, with the real controller of LeaderWorkerSet.

The engine is `pair.py`: its leader is ready when a worker in another pod has connected to it, and each token comes
from there.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.asking import client
from e2e.conftest import devcluster
from e2e.stages import Stages
from testkit.cluster.api import KubeError
from testkit.cluster.deployment import START_S, Deployment, Json, canary, model_of, weights_of
from testkit.cluster.installation import Installation
from testkit.cluster.kube import Kube
from testkit.load.closed import Failure, Load
from testkit.until import until

pytestmark = pytest.mark.extended

SETS = "leaderworkerset.x-k8s.io/v1/leaderworkersets"
INDEX, GROUP = "leaderworkerset.sigs.k8s.io/worker-index", "leaderworkerset.sigs.k8s.io/group-index"
SCRIPT = Path(__file__).with_name("pair.py")
POD: Json = {"cpu": "50m", "memory": "96Mi"}
GROUP_START_S = 2 * START_S
CRASH = ("--", "python3", "-c", "import os, signal; os.kill(1, signal.SIGUSR1)")
IN_FLIGHT = 5  # requests of the load: four streams, and one that is not streamed, which gets status 500
VLLM, VLLM_START_S = "0.32.0", 900.0
LONG_TOKENS, PRE_STOP_S = 400, 5.0


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    found = Stages("engines-several-machines")
    yield found
    found.write()


@pytest.fixture
def groups(slipway: Installation) -> None:
    """LeaderWorkerSet, where the cluster lacks it."""
    if not _installed(slipway.kube):
        devcluster("leader-worker-set")


def _installed(kube: Kube) -> bool:
    found = kube.kubectl("get", "crd", "leaderworkersets.leaderworkerset.x-k8s.io", "--ignore-not-found", "-o", "name")
    return bool(found.strip())


def engine(slipway: Installation) -> Json:
    return {
        "type": "custom",
        "image": slipway.images.server,
        "command": ["python3", "/engine/pair.py"],
        "parallelism": {"nodes": 2},
        "volumeMounts": [{"name": "engine", "mountPath": "/engine"}],
        "custom": {"readinessPath": "/health", "metrics": {"queued": "pair:waiting"}, "preStopSeconds": 10},
    }


def spec(slipway: Installation, nodes: int) -> dict[str, Any]:
    """Groups of two pods; where the cluster has as many machines, each pod is on another one than its neighbour."""
    apart = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    return {
        "engine": engine(slipway),
        "resources": POD,
        "pod": {"volumes": [{"name": "engine", "configMap": {"name": "pair"}}]},
        "strategy": canary({"setWeight": 50}, {"pause": {}}),
        **({"placement": {"topologySpreadConstraints": [apart]}} if nodes > 1 else {}),
    }


def provide(kube: Kube, namespace: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "pair"},
        "data": {"pair.py": SCRIPT.read_text()},
    }
    kube.apply(body, namespace)


def leaders(chat: Deployment) -> list[Json]:
    return [pod for pod in chat.pods() if pod["metadata"]["labels"].get(INDEX) == "0"]


def worker_of(chat: Deployment, group: str) -> Json:
    [found] = [
        pod
        for pod in chat.pods()
        if pod["metadata"]["labels"].get(GROUP) == group and pod["metadata"]["labels"][INDEX] != "0"
    ]
    return found


def recreated(chat: Deployment, before: set[str]) -> Callable[[], bool]:
    """Whether no pod of the group is left that was there before, and all groups are ready again."""

    def ready() -> bool:
        now = chat.pod_uids()
        return len(now) == 4 and not before & now and chat.status["ready"] == "2/2"

    return ready


class Groups:
    """The ModelDeployment under load, stage by stage."""

    def __init__(self, slipway: Installation, chat: Deployment, stages: Stages) -> None:
        self.kube, self.chat, self.stages = slipway.kube, chat, stages

    def sets(self) -> list[Json]:
        return self.kube.api.items(SETS, self.chat.namespace)

    def serves_first(self, machines: int) -> None:
        with self.stages.stage("first revision: one group of two pods serves") as row:
            self.chat.until_stable("v1", GROUP_START_S)
            row["machines"] = len({pod["spec"]["nodeName"] for pod in self.chat.pods()})
            assert row["machines"] == min(2, machines)
            assert self.kube.api.items("apps/v1/replicasets", self.chat.namespace) == []
            [leader] = leaders(self.chat)
            [revision] = self.chat.status["revisions"]
            [owner] = leader["metadata"]["ownerReferences"]
            assert (revision["ready"], revision["replicaSetUid"]) == (1, owner["uid"])

    def promotes(self, steady: Load) -> None:
        [before] = self.sets()
        with self.stages.stage("canary of groups, 50 percent: promoted"):
            self.chat.edit(model=model_of("v2"))
            paused = self.chat.until_state("Paused", GROUP_START_S)
            assert weights_of(paused) == {"v1": 50, "v2": 50}
            steady.wait_for(lambda report: len(report.by_revision) == 2, 30)
            self.chat.promote()
            self.chat.until_stable("v2", GROUP_START_S)
            until(self.sets, "the former one is deleted", GROUP_START_S, holds=lambda found: len(found) == 1)
            [kept] = self.sets()
            assert kept["metadata"]["generation"] == 1, "nothing of it was ever written again"
            assert kept["metadata"]["uid"] != before["metadata"]["uid"]

    def scales_up(self) -> None:
        with self.stages.stage("kubectl scale from 1 to 2 groups"):
            self.chat.scale(2)
            self.chat.until("two groups are ready", lambda status: status["ready"] == "2/2", GROUP_START_S)
            assert (len(self.chat.pods()), len(leaders(self.chat))) == (4, 2)
            until(self.budget, "the budget keeps three pods", 30, holds=lambda pods: pods == 3)

    def budget(self) -> int:
        [found] = self.kube.api.items("policy/v1/poddisruptionbudgets", self.chat.namespace)
        return int(found["spec"]["minAvailable"])

    def loses_worker(self, steady: Load, group: str, *command: str) -> list[Failure]:
        """Do something to a worker; the requests that failed until its group was there again."""
        calm = steady.report()
        gone = {pod["metadata"]["uid"] for pod in self.chat.pods() if pod["metadata"]["labels"][GROUP] == group}
        name = worker_of(self.chat, group)["metadata"]["name"]
        words = [name if word == "WORKER" else word for word in command]
        with contextlib.suppress(KubeError):  # `exec` ends with its container
            self.kube.kubectl("--namespace", self.chat.namespace, *words)
        until(recreated(self.chat, gone), "the group is recreated", GROUP_START_S)
        return list(steady.report().since(calm).failures)

    def scales_down(self) -> None:
        with self.stages.stage("kubectl scale from 2 groups to 1: drained"):
            self.chat.scale(1)
            until(self.chat.pods, "one group is left", GROUP_START_S, holds=lambda pods: len(pods) == 2)
            self.chat.until("one is ready", lambda status: status["ready"] == "1/1", GROUP_START_S)

    def is_deleted(self) -> None:
        with self.stages.stage("the ModelDeployment is deleted: nothing is left"):
            self.kube.kubectl("delete", "mdep", self.chat.name, "--namespace", self.chat.namespace, "--wait=false")
            until(self.chat.pods, "its pods are gone", GROUP_START_S, holds=lambda pods: not pods)
            until(self.sets, "its sets are gone", START_S, holds=lambda found: not found)


@pytest.mark.timeout(1500, func_only=True)
@pytest.mark.usefixtures("groups")
def test_groups_are_released_scaled_and_survive_their_workers(
    slipway: Installation,
    namespace: str,
    deploy: Callable[..., Deployment],
    load: Callable[..., Load],
    stages: Stages,
) -> None:
    machines = len(slipway.kube.api.items("v1/nodes", ""))
    provide(slipway.kube, namespace)
    chat = deploy("v1", **spec(slipway, machines))
    run = Groups(slipway, chat, stages)
    run.serves_first(machines)
    steady = load(chat, pause_s=0.2)
    run.promotes(steady)
    run.scales_up()
    assert steady.report().failures == ()

    with stages.stage("a worker is deleted: its group finishes what it has, and comes again") as row:
        assert run.loses_worker(steady, "1", "delete", "pod", "WORKER", "--wait=false") == []
    with stages.stage("a worker crashes: its group comes again, and only requests in progress there are lost") as row:
        lost = run.loses_worker(steady, "0", "exec", "WORKER", *CRASH)
        row["requests_lost"] = len(lost)
        assert len(lost) <= IN_FLIGHT, lost

    calm = steady.report()
    run.scales_down()
    steady.wait_for(lambda report: report.since(calm).requests >= 20, 60)
    report = steady.stop()
    assert report.since(calm).failures == ()
    stages.load(report, lost)
    run.is_deleted()


def vllm(image: str) -> Json:
    """On CPUs it divides layers and not the model's depth: pipeline parallelism of 0.32 fails there."""
    return {
        "type": "vllm",
        "version": VLLM,
        "image": image,
        "parallelism": {"nodes": 2, "tensor": 2},
        "args": ["--enforce-eager", "--max-num-seqs=8"],
        # With tensor parallelism it compiles a function even then, and the image has no compiler.
        "env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "1"}, {"name": "TORCHDYNAMO_DISABLE", "value": "1"}],
    }


@pytest.mark.timeout(2400, func_only=True)
@pytest.mark.usefixtures("groups")
def test_vllm_on_two_machines_finishes_a_stream_when_its_worker_leaves(
    slipway: Installation, deploy: Callable[..., Deployment], stages: Stages
) -> None:
    image = os.environ.get("SLIPWAY_VLLM_IMAGE") or devcluster("engine", "vllm-cpu").strip()
    apart = spec(slipway, len(slipway.kube.api.items("v1/nodes", ""))).get("placement")
    fields = {"engine": vllm(image), "progressDeadlineSeconds": int(VLLM_START_S)}
    with stages.stage("vLLM with tensor parallelism over two machines: serves") as row:
        chat = deploy("v1", uri="file:///models/tiny-v1", **fields, **({"placement": apart} if apart else {}))
        chat.until_stable("v1", VLLM_START_S)
        row["machines"] = len({pod["spec"]["nodeName"] for pod in chat.pods()})
    run = Groups(slipway, chat, stages)
    before = chat.pod_uids()

    with stages.stage("its worker is deleted: the stream in progress ends as it should") as row:
        chats = client(slipway.url).chat.completions
        stream = chats.create(
            model=chat.model,
            messages=[{"role": "user", "content": "In the beginning"}],
            max_tokens=LONG_TOKENS,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        began = time.monotonic()
        first = next(iter(stream))
        run.kube.kubectl(
            "delete", "pod", worker_of(chat, "0")["metadata"]["name"], "-n", chat.namespace, "--wait=false"
        )
        rest = [chunk.choices[0] for chunk in stream if chunk.choices]
        row["seconds_of_the_stream"] = round(time.monotonic() - began, 1)
        assert first.choices and rest[-1].finish_reason == "length", rest[-1]
        assert row["seconds_of_the_stream"] > PRE_STOP_S, "the worker would have ended before"
    with stages.stage("the group comes again and serves"):
        again = lambda: not before & chat.pod_uids() and chat.status["ready"] == "1/1"  # noqa: E731 - a condition
        until(again, "the group is recreated", VLLM_START_S)
    run.is_deleted()


@pytest.mark.timeout(900, func_only=True)
@pytest.mark.usefixtures("groups")
def test_the_only_group_leaves_a_drained_node_and_no_request_fails(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment], load: Callable[..., Load], stages: Stages
) -> None:
    if len(slipway.kube.api.items("v1/nodes", "")) == 1:
        pytest.skip("this cluster has one node")
    provide(slipway.kube, namespace)
    chat = deploy("v1", **spec(slipway, 1))
    chat.until_stable("v1", GROUP_START_S)
    run = Groups(slipway, chat, stages)
    [leader] = leaders(chat)
    node = leader["spec"]["nodeName"]
    steady = load(chat, pause_s=0.2)

    def has_left() -> bool:
        nodes = [pod["spec"].get("nodeName") for pod in chat.pods()]
        [group_set] = run.sets()
        return len(nodes) == 2 and node not in nodes and group_set["spec"]["replicas"] == 1

    with stages.stage("the node of the only group is cordoned: it is replaced elsewhere"):
        slipway.kube.kubectl("cordon", node)
        try:
            until(has_left, "the group is on another node", GROUP_START_S)
        finally:
            slipway.kube.kubectl("uncordon", node)
    report = steady.stop()
    assert report.failures == ()
    stages.load(report)
