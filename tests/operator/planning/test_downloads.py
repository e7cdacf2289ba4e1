"""What users see of a download: the reason, the message, the status; and how often that is written."""

from dataclasses import replace
from typing import Any

import pytest

from slipway_operator.model.cluster import downloads
from slipway_operator.model.cluster.observed import Observed, PodDownload
from slipway_operator.planning.reporting.requeue import FETCHING_POLL_S
from tests.operator.planning.test_status_bounds import SCHEMA, broken
from tests.support.model_cluster import ModelCluster, cluster, healthy, model

GB = 10**9
SIZE = 16 * GB + 100 * 10**6


class Fetching(ModelCluster):
    """A cluster whose pods download while `read` is not None, and are read as it has them, by number of the pod."""

    read: dict[int, PodDownload | None] | None = None
    is_fetching, template_version = True, downloads.FIRST_TEMPLATE

    def observed(self) -> Observed:
        seen = super().observed()
        if not self.is_fetching:
            return seen
        workloads, read = {}, {}
        for name, workload in seen.workloads.items():
            pods = [
                pod if pod.ready else replace(pod, address=f"10.0.0.{number}", node=f"node-{number}", fetching=True)
                for number, pod in enumerate(workload.pods)
            ]
            workloads[name] = replace(workload, pods=tuple(pods))
            fetching = [(number, pod) for number, pod in enumerate(pods) if pod.fetching]
            read |= {pod.name: self.read[number] for number, pod in fetching if self.read and number in self.read}
        version = self.template_version
        snapshots = {name: replace(item, template_version=version) for name, item in seen.snapshots.items()}
        return replace(seen, snapshots=snapshots, workloads=workloads, downloads=read)

    def shown(self) -> list[dict[str, Any]]:
        return [pod for item in self.status["revisions"] for pod in item.get("fetching", ())]


def at(percent: float, speed: int = 100 * 10**6, size: int | None = SIZE, *, waiting: bool = False) -> PodDownload:
    return PodDownload(round(SIZE * percent / 100), size, speed, waiting)


def fetching(*reads: PodDownload | None, uri: str = "hf://org/llama") -> Fetching:
    """The first revision of a deployment, whose pods are read like this."""
    world = cluster(model={"uri": uri}, replicas=max(1, len(reads)))
    world.__class__ = Fetching
    assert isinstance(world, Fetching)
    for _ in range(3):
        world.reconcile()
        world.pass_time(pods=False)
    world.read = dict(enumerate(reads))
    world.reconcile()
    return world


def test_the_reason_and_each_pod() -> None:
    world = fetching(at(43.7), at(60, 0))
    status = world.parsed()
    assert (status.phase, status.reason) == ("Pending", "Fetching 43 %")
    name = world.shown()[0]["pod"]
    assert world.shown()[0] == {
        "pod": name,
        "node": "node-0",
        "percent": 43,
        "downloadedBytes": round(SIZE * 0.437),
        "sizeBytes": SIZE,
        "bytesPerSecond": 100 * 10**6,
        "secondsLeft": 91,
    }
    assert "secondsLeft" not in world.shown()[1], "nothing comes"
    wanted = f"; pod {name} downloads the model: 43 % of 16.1 GB, 100 MB/s, 91 s left, as 1 more does"
    assert status.message.endswith(wanted)
    conditions = {item.type: item for item in status.conditions}
    assert [conditions[kind].reason for kind in ("Progressing", "Available")] == ["Initializing", "PodsNotReady"]
    assert all(conditions[kind].message.endswith(wanted) for kind in ("Progressing", "Available"))


@pytest.mark.parametrize(
    ("read", "reason", "words"),
    [
        (at(20, size=None), "Fetching", "downloads the model: 3.2 GB, 100 MB/s"),
        (PodDownload(0, None, 0, False), "Fetching", "begins to download the model"),
        (at(0, 0), "Fetching 0 %", "downloads the model: 0 % of 16.1 GB, and nothing comes"),
        (at(100), "Fetching 100 %", "has downloaded 16.1 GB and checks it"),
        (at(99.999), "Fetching 99 %", "99 % of 16.1 GB, 100 MB/s, 1 s left"),
        (at(50, 123_456_789), "Fetching 50 %", ", 120 MB/s, 68 s left"),
        (at(50, 1_000_000), "Fetching 50 %", ", 1.0 MB/s, 2 h left"),
        (at(50, 9), "Fetching 50 %", ", 9 bytes/s, 248456 h left"),
        (
            PodDownload(0, None, 0, True),
            "Fetching",
            "waits for another pod that downloads the model into the cache",
        ),
    ],
)
def test_the_sentence(read: PodDownload, reason: str, words: str) -> None:
    world = fetching(read)
    assert world.parsed().reason == reason
    assert world.parsed().message.endswith(words)


def test_a_pod_that_waits_for_another_one_hides_no_percentage() -> None:
    world = fetching(PodDownload(0, None, 0, True), at(70))
    assert world.parsed().reason == "Fetching 70 %"
    assert [pod.get("waiting") for pod in world.shown()] == [True, None]


def test_what_is_not_known_is_not_shown() -> None:
    world = fetching(None)
    assert (world.parsed().reason, world.shown()) == ("Initializing", [])
    world = fetching(at(10))
    world.is_fetching = False
    world.reconcile()
    assert (world.parsed().reason, world.shown()) == ("Initializing", [])


def test_a_new_operator_keeps_what_is_shown_until_it_has_read() -> None:
    world = fetching(at(43))
    before, world.read = world.status, None
    world.reconcile()
    assert world.status == before
    world.read = {0: None}
    world.reconcile()
    assert world.shown() == []


def test_a_failure_comes_first_and_a_pause_is_no_download() -> None:
    world = fetching(at(43))
    world.broken.add("hf://org/llama")
    world.reconcile()
    assert world.parsed().reason == "ContainerCrashed"
    assert "43 %" in world.parsed().message, "beside the failure"
    paused = healthy()
    paused.edit(model=model("v2"))
    paused.run_until("Paused")
    assert paused.parsed().reason == "Paused"


def test_the_status_is_written_when_the_percentage_changes_or_it_stalls() -> None:
    world = fetching(at(43))
    speeds, written = (90, 110, 100, 95), 0
    for number in range(400):  # 43 to 47 %, with a speed that is never the same
        world.read = {0: at(43.001 + number / 100, speeds[number % 4] * 10**6 + number)}
        before = world.status
        world.reconcile()
        written += world.status != before
    assert (written, world.parsed().reason) == (3, "Fetching 46 %")
    before = world.status
    world.read = {0: at(46.991, 0)}
    world.reconcile()
    assert world.status != before and world.parsed().message.endswith("and nothing comes")


def test_of_an_unknown_size_the_amount_is_rounded() -> None:
    world, written = fetching(at(10, size=None)), 0
    for number in range(1000):
        world.read = {0: PodDownload(10 * GB + number * 10**6, None, 10**8 + number, False)}
        before = world.status
        world.reconcile()
        written += world.status != before
    assert written == 1, "10 GB to 10.999 GB"


def test_it_is_reconciled_again_while_pods_download_and_not_otherwise() -> None:
    world = fetching(at(43))
    assert world.reconcile().requeue_after_s == FETCHING_POLL_S
    world.is_fetching = False
    after_s = world.reconcile().requeue_after_s
    assert after_s is None or after_s > FETCHING_POLL_S


@pytest.mark.parametrize(
    ("uri", "version", "served"), [("hf://org/m", 3, True), ("hf://org/m", 2, False), ("pvc://claim/m", 3, False)]
)
def test_only_fetchers_that_serve_it_are_read(uri: str, version: int, served: bool) -> None:
    world = fetching(at(43), uri=uri)
    world.template_version = version
    assert bool(downloads.fetching(world.observed())) is served
    world.reconcile()
    assert bool(world.shown()) is served


def test_of_many_pods_a_few_are_read() -> None:
    world = fetching(*(at(number) for number in range(20)))
    assert len(downloads.fetching(world.observed())) == len(world.shown()) == downloads.MOST_PODS
    assert world.parsed().message.endswith(", as 3 more do")


@pytest.mark.parametrize("number", [0, 1, 99, 1 << 50])
def test_any_numbers_fit_in_the_status(number: int) -> None:
    for size in (None, 1, number or None, 1 << 50):
        world = fetching(PodDownload(min(number, size or number), size, number, False))
        assert broken(SCHEMA, world.status) == []


def test_a_rejection_for_lack_of_progress_names_the_download() -> None:
    world = healthy()
    world.edit(model={"uri": "hf://org/slow"}, progressDeadlineSeconds=30)
    world.__class__ = Fetching
    assert isinstance(world, Fetching)
    world.read = {number: at(20) for number in range(5)}
    for _ in range(60):
        world.reconcile()
        world.pass_time(pods=False)
    rollout = world.parsed().rollout
    assert rollout and rollout.abort and rollout.abort.reason == "ProgressDeadlineExceeded"
    assert "20 % of 16.1 GB" in rollout.abort.message
    assert rollout.abort.message.endswith("a download must fit in spec.progressDeadlineSeconds")
