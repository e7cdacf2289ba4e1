"""Nodes that are drained, announced to end, and lost, under load: on a cluster of three nodes (`make nodes`)."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from devcluster.engine.engine import find
from devcluster.places import places
from e2e.stages import Stages
from testkit.cluster.deployment import START_S, Deployment, Json
from testkit.cluster.installation import Installation
from testkit.cluster.kube import Kube
from testkit.load.closed import Load, Report
from testkit.until import until

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900, func_only=True)]

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
DRAIN_S = 300
# Each longer than a pod needs to leave: some are in progress whenever a pod gets SIGTERM.
LONG_TOKENS = (100, 400)
# As many as are in progress: gateways notice after 25 s that a node answers no packet, and resume streams elsewhere.
MOST_LOST_WITH_A_NODE = 5
DROPPED = ("-t raw {} PREROUTING -i eth0 -j DROP", "-t mangle {} POSTROUTING -o eth0 -j DROP")
NOTICE = "aws-node-termination-handler/spot-itn=now:NoSchedule"


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    found = Stages("nodes")
    yield found
    found.write()


@pytest.fixture(scope="module")
def workers(cluster: Kube) -> list[str]:
    """The nodes that may go: not that of the API server, whose port clients use."""
    nodes = [node["metadata"] for node in cluster.api.items("v1/nodes")]
    found = sorted(node["name"] for node in nodes if CONTROL_PLANE not in node["labels"])
    if len(found) < 2:
        pytest.skip(f"needs two workers, and this cluster has {len(found)}: make nodes")
    return found


@pytest.fixture(autouse=True)
def all_ready(cluster: Kube, workers: list[str]) -> None:
    """A test begins when the node that the last one took away is back."""
    until(lambda: ready_nodes(cluster), "all workers are ready", 180, holds=set(workers).issubset)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_drain_under_load_loses_nothing(
    slipway: Installation,
    workers: list[str],
    deploy: Callable[..., Deployment],
    load: Callable[..., Load],
    stages: Stages,
    replicas: int,
) -> None:
    chat = serve(deploy, replicas, workers)
    steady = load(chat, max_tokens=LONG_TOKENS)
    with stages.stage(f"kubectl drain, {replicas} replicas") as row, Lowest(chat) as lowest:
        node = node_of(chat.pods()[0])
        row["moved"] = len([pod for pod in chat.pods() if node_of(pod) == node])
        with drained(slipway.kube, node):
            until_left(chat, node, replicas)
        row["fewest_ready_pods"] = lowest.ready
        # Of several pods an eviction may take one at once, as the budget says; the only one waits for its successor.
        assert lowest.ready >= max(1, replicas - 1), "nothing was left that serves"
    ended = steady.stop()
    stages.load(ended)
    assert ended.failures == () and ended.requests > 0


def test_a_node_that_was_announced_to_end_takes_nothing_with_it(
    slipway: Installation,
    workers: list[str],
    deploy: Callable[..., Deployment],
    load: Callable[..., Load],
    stages: Stages,
) -> None:
    """A spot instance: its taint moves model pods, a drain the rest, and then the machine falls silent."""
    chat = serve(deploy, 2, workers)
    steady = load(chat, max_tokens=LONG_TOKENS)
    node = node_of(chat.pods()[0])
    with stages.stage("spot notice, drain, end of the machine") as row:
        slipway.kube.kubectl("taint", "node", node, NOTICE)
        try:
            until_left(chat, node, 2)
            row["moved_by_the_taint_alone"] = True
            with drained(slipway.kube, node), silent(node):
                before = steady.report()
                steady.wait_for(lambda seen: seen.requests >= before.requests + 50, 120)
        finally:
            slipway.kube.kubectl("taint", "node", node, f"{NOTICE}-")
    ended = steady.stop()
    stages.load(ended)
    assert ended.failures == ()


def test_a_node_that_dies_takes_a_bounded_number_of_requests(
    slipway: Installation,
    workers: list[str],
    deploy: Callable[..., Deployment],
    load: Callable[..., Load],
    stages: Stages,
) -> None:
    """Silence, as when its power goes: no reset, no word. The operator and the gateways are on other nodes."""
    node = workers[0]
    with drained(slipway.kube, node, selector="app.kubernetes.io/instance=slipway"):
        slipway.until_well()
    chat = serve(deploy, 2, workers)
    assert {node_of(pod) for pod in chat.pods()} == set(workers), "replicas share a node while another is free"
    steady = load(chat, max_tokens=LONG_TOKENS)
    with stages.stage("sudden death of a node with a model pod") as row:
        died = time.monotonic()
        with silent(node):
            row["requests_lost"], row["slowest_s"] = until_served_elsewhere(steady)
            until_left(chat, node, 2)
            row["replaced_after_s"] = round(time.monotonic() - died)
        until(lambda: ready_nodes(slipway.kube), "all nodes are ready again", 120, holds=lambda names: node in names)
    ended = steady.stop()
    print(*ended.failures, sep="\n")
    stages.load(ended, ended.failures)
    assert len(ended.failures) <= MOST_LOST_WITH_A_NODE, ended.failures[:5]


def serve(deploy: Callable[..., Deployment], replicas: int, workers: list[str]) -> Deployment:
    """With its pods on workers, of which all are there: a drained or lost control plane is not what is measured."""
    chat = deploy("v1", replicas=replicas, placement={"affinity": on(workers)})
    chat.until_stable("v1")
    chat.until("its pods are ready", lambda status: status["ready"] == f"{replicas}/{replicas}", START_S)
    return chat


def on(workers: list[str]) -> Json:
    """spec.placement.affinity: preferably workers, so that a drained one has the control plane as its last refuge."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": workers}]}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}}


def node_of(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))


def until_left(chat: Deployment, node: str, replicas: int) -> None:
    """Its pods serve on other nodes."""
    chat.until("all pods are ready", lambda status: status["ready"] == f"{replicas}/{replicas}", START_S)
    until(
        lambda: [node_of(pod) for pod in chat.pods()],
        f"no pod is on {node}",
        START_S,
        holds=lambda nodes: node not in nodes and len(nodes) == replicas,
    )


def until_served_elsewhere(steady: Load) -> tuple[int, float]:
    """Requests that were lost until 50 in a row ended well, and the seconds of the slowest one."""
    before = steady.report()
    seen = before

    def fifty_ended_well() -> bool:
        nonlocal seen
        now = steady.report()
        if now.failed + now.broken > seen.failed + seen.broken:
            seen = now
        return now.requests - seen.requests >= 50

    until(fifty_ended_well, "50 requests in a row end well", 180, shown=lambda _: str(steady.report().failures[-5:]))
    since: Report = steady.report().since(before)
    return since.failed + since.broken, round(max(since.latencies_s, default=0.0), 1)


def ready_nodes(kube: Kube) -> set[str]:
    """Nodes that report, and have no taint."""
    return {
        node["metadata"]["name"]
        for node in kube.api.items("v1/nodes")
        if any(found["type"] == "Ready" and found["status"] == "True" for found in node["status"]["conditions"])
        and not node["spec"].get("taints")
    }


@contextmanager
def drained(kube: Kube, node: str, selector: str = "") -> Iterator[None]:
    """`kubectl drain`, and `kubectl uncordon` at the end."""
    chosen = [f"--pod-selector={selector}"] if selector else []
    options = ["--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={DRAIN_S}s", *chosen]
    try:
        kube.kubectl("drain", node, *options, timeout_s=DRAIN_S + 10)
        yield
    finally:
        kube.kubectl("uncordon", node)


@contextmanager
def silent(node: str) -> Iterator[None]:
    """As without power: nothing runs in the node's container, and its kernel answers no packet, either."""
    engine, _ = find(places())
    for change in DROPPED:
        engine.run("exec", node, "iptables", *change.format("-I").split())
    engine.run("pause", node)
    try:
        yield
    finally:
        engine.run("unpause", node)
        for change in DROPPED:
            engine.run("exec", node, "iptables", *change.format("-D").split())


class Lowest:
    """The fewest ready pods of a ModelDeployment that its status ever showed."""

    def __init__(self, chat: Deployment) -> None:
        self._chat = chat
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lowest", daemon=True)
        self.ready = ready_of(chat)

    def __enter__(self) -> "Lowest":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(10)

    def _watch(self) -> None:
        while not self._stopping.wait(0.5):
            self.ready = min(self.ready, ready_of(self._chat))


def ready_of(chat: Deployment) -> int:
    """Pods that Kubernetes calls ready, and that are not on their way out."""
    conditions = (pod["status"].get("conditions", []) for pod in chat.pods())
    return sum(any(one["type"] == "Ready" and one["status"] == "True" for one in found) for found in conditions)
