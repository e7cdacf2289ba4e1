"""How far a download is: what the fetcher serves is what the operator reads and the status shows."""

import asyncio
from typing import Any

import pytest

from slipway_fetcher import download_page
from slipway_fetcher.downloads import DownloadState
from slipway_fetcher.settings import FetcherSettings
from slipway_operator.api.inputs.pod_inputs import PROGRESS_VARIABLE
from slipway_operator.api.objects import ObjectKey
from slipway_operator.fetching import page, reader
from slipway_operator.fetching.reader import DownloadReader, new_session
from slipway_operator.kube.reading.cache import ObjectCache
from slipway_operator.kube.reading.pods import parse_pod
from slipway_operator.kube.resources import CONTROLLER_REVISIONS, PODS, REPLICA_SETS
from slipway_operator.model.cluster.observed import PodDownload
from slipway_operator.planning.reporting.requeue import NO_GATEWAY_POLL_S
from tests.operator.test_reconcile import CREATED, KEY, NOW, Making, at, chat
from tests.support.reconciling import reconciler_of

STATES = [DownloadState(), DownloadState(430, 1000, 25), DownloadState(43, None, 1), DownloadState(waiting=True)]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_a_page_is_read_as_it_was_meant(state: DownloadState) -> None:
    text = download_page.page(state).encode()
    assert len(text) < page.LARGEST_BYTES / 4
    wanted = PodDownload(state.done_bytes, state.size_bytes, state.bytes_per_second, state.waiting)
    assert page.parse(text) == wanted


def test_the_variable_is_the_fetchers(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--uri", "hf://org/m", "--dest", "/models")
    assert FetcherSettings.parse(flags).progress_port == 0
    monkeypatch.setenv(PROGRESS_VARIABLE, "8000")
    assert FetcherSettings.parse(flags).progress_port == 8000


def pod(replica_set: dict[str, Any], state: str = "running", container: str = "fetch") -> dict[str, Any]:
    """A pod of a ReplicaSet, whose first container is in this state."""
    owner = {"kind": "ReplicaSet", "name": "x", "uid": replica_set["metadata"]["uid"], "controller": True}
    metadata = {
        "name": "chat-a",
        "namespace": "default",
        "uid": "p1",
        "resourceVersion": "6",
        "creationTimestamp": CREATED,
        "labels": replica_set["spec"]["template"]["metadata"]["labels"],
        "ownerReferences": [owner],
    }
    containers = [{"name": container, "state": {state: {}}}, {"name": "server", "state": {"waiting": {}}}]
    status = {"phase": "Pending", "podIP": "127.0.0.1", "initContainerStatuses": containers}
    return {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": status}


@pytest.mark.parametrize(
    ("state", "container", "fetching"),
    [("running", "fetch", True), ("waiting", "fetch", False), ("terminated", "fetch", False), ("running", "x", False)],
)
def test_pods_count_while_their_fetcher_runs(state: str, container: str, fetching: bool) -> None:
    owner = {"metadata": {"uid": "1"}, "spec": {"template": {"metadata": {"labels": {}}}}}
    parsed = parse_pod(pod(owner, state, container), ())
    assert (parsed.fetching, parsed.node, parsed.address) == (fetching, "node-1", "127.0.0.1")


async def test_from_the_fetcher_to_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    obj = chat(resourceVersion="5")
    obj["spec"]["model"]["uri"] = "hf://org/m"
    client, cache, states = Making(obj), ObjectCache(), [DownloadState(430 * 10**6, 10**9, 25 * 10**6)]
    with download_page.served(0, lambda: states[0]) as port:
        monkeypatch.setattr(reader, "PORT", port)
        async with new_session() as session:
            changed: list[ObjectKey] = []
            downloads = DownloadReader(session, changed.append)
            reconcile = reconciler_of(client, lambda: NOW, [downloads], cache=cache)  # type: ignore[arg-type]
            await reconcile(KEY, 0)
            for resource, item in client.made.items():
                cache.update(resource, item)
            cache.update(REPLICA_SETS, at(client.made[REPLICA_SETS], "6", {"replicas": 1}))
            cache.update(PODS, pod(client.made[REPLICA_SETS]))
            assert client.made[CONTROLLER_REVISIONS]["data"]["templateVersion"] >= 3
            assert await reconcile(KEY, 0) <= NO_GATEWAY_POLL_S
            await asyncio.gather(*downloads._tasks)
            assert changed == [KEY], "the answer wakes the next reconcile"
            await reconcile(KEY, 0)
            status = client.obj["status"]
            assert status["reason"] == "Fetching 43 %"
            [shown] = status["revisions"][0]["fetching"]
            assert (shown["pod"], shown["node"], shown["secondsLeft"]) == ("chat-a", "node-1", 23)
            ended = pod(client.made[REPLICA_SETS], "terminated")
            ended["metadata"]["resourceVersion"] = "7"
            cache.update(PODS, ended)
            await reconcile(KEY, 0)
            assert client.obj["status"]["reason"] == "Initializing" and not downloads._rounds
