"""What only Events of the kubelet report: read late, seldom and in bounds."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipway_operator.kube.errors import ApiError, ListTooLarge, Refused, Unavailable
from slipway_operator.kube.reading.kubelet_events import (
    MOST_EVENTS,
    MOST_PODS,
    PATIENCE_S,
    READ_S,
    KubeletEvents,
    latest,
)

FAILED = {"reason": "FailedMount", "message": 'secret "cert" not found', "lastTimestamp": "2026-01-01T00:00:05Z"}
PULLING = {"reason": "Pulling", "message": "Pulling image", "lastTimestamp": "2026-01-01T00:00:09Z"}
SCHEDULED = {"reason": "Scheduled", "eventTime": "2026-01-01T00:00:01.000000Z", "lastTimestamp": None}


class Client:
    """Only the list of Events, in pages of two."""

    def __init__(self, *events: dict[str, Any], error: Exception | None = None) -> None:
        self.events, self.error, self.queries, self.num_pages = list(events), error, list[str](), 0

    async def pages(self, resource: object, namespace: str, *, fields: str) -> AsyncIterator[dict[str, Any]]:
        self.queries.append(fields)
        if self.error:
            raise self.error
        for start in range(0, len(self.events), 2):
            self.num_pages += 1
            yield {"items": self.events[start : start + 2]}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pod(uid: str = "1", state: str = "waiting") -> dict[str, Any]:
    containers = [{"name": "server", "state": {state: {}}}]
    placed = [{"type": "PodScheduled", "status": "True"}]
    status = {"phase": "Pending", "initContainerStatuses": containers, "conditions": placed}
    return {"metadata": {"name": f"chat-{uid}", "uid": uid}, "status": status}


def failures(events: KubeletEvents, *pods: dict[str, Any]) -> dict[str, Any]:
    return asyncio.run(events.failures("team", pods))


def test_a_pod_without_containers_has_the_reason_after_some_seconds() -> None:
    client, clock = Client(SCHEDULED, FAILED), Clock()
    events = KubeletEvents(client, clock)  # type: ignore[arg-type]  # only its list is used
    assert failures(events, pod()) == {} and client.queries == []
    clock.now = PATIENCE_S
    assert failures(events, pod()) == {"1": ("FailedMount", 'secret "cert" not found', None)}
    assert client.queries == ["involvedObject.uid=1"]


def test_a_pod_that_waits_for_its_claim_is_read_and_one_that_waits_for_a_node_is_not() -> None:
    claimless, unplaced = pod("1"), pod("2")
    claimless["status"] = {"phase": "Pending"}
    unplaced["status"] = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}
    client, clock = Client(FAILED), Clock()
    events = KubeletEvents(client, clock)  # type: ignore[arg-type]
    failures(events, claimless, unplaced)
    clock.now = PATIENCE_S
    assert failures(events, claimless, unplaced).keys() == {"1"}


def test_events_of_one_pod_are_read_at_most_once_in_a_while() -> None:
    client, clock = Client(FAILED), Clock()
    events = KubeletEvents(client, clock)  # type: ignore[arg-type]
    failures(events, pod())
    for clock.now in (PATIENCE_S, PATIENCE_S + 1, PATIENCE_S + READ_S - 1):
        assert failures(events, pod())["1"][0] == "FailedMount"
    assert len(client.queries) == 1
    client.events, clock.now = [FAILED, PULLING], PATIENCE_S + READ_S
    assert failures(events, pod()) == {} and len(client.queries) == 2


def test_few_pods_are_read_and_none_that_runs() -> None:
    client, clock = Client(FAILED), Clock()
    events = KubeletEvents(client, clock)  # type: ignore[arg-type]
    pods = [pod(str(number)) for number in range(20)]
    failures(events, *pods)
    clock.now = PATIENCE_S
    assert len(failures(events, *pods)) == len(client.queries) == MOST_PODS
    assert failures(events, pod("0", "running")) == {}


@pytest.mark.parametrize(
    "error", [Refused(403, "events is forbidden"), Unavailable("no answer"), ListTooLarge("17 MiB")], ids=repr
)
def test_events_that_cannot_be_read_are_no_error(error: ApiError) -> None:
    client, clock = Client(error=error), Clock()
    events = KubeletEvents(client, clock)  # type: ignore[arg-type]
    failures(events, pod())
    clock.now = PATIENCE_S
    assert failures(events, pod()) == {}


def test_a_flood_of_events_about_one_pod_is_not_read_to_its_end() -> None:
    client, clock = Client(*([FAILED] * 10 * MOST_EVENTS)), Clock()
    events = KubeletEvents(client, clock)  # type: ignore[arg-type]
    failures(events, pod())
    clock.now = PATIENCE_S
    assert failures(events, pod()).keys() == {"1"} and client.num_pages == MOST_EVENTS / 2


@pytest.mark.parametrize(
    ("events", "reason"),
    [((), None), ((SCHEDULED,), None), ((FAILED, SCHEDULED), "FailedMount"), ((PULLING, FAILED), None)],
)
def test_the_newest_event_decides(events: tuple[dict[str, Any], ...], reason: str | None) -> None:
    found = latest(events)
    assert (found[0] if found else None) == reason


def test_why_groups_lack_pods_is_read_as_late_and_as_seldom() -> None:
    refused = {"reason": "FailedCreate", "message": "exceeded quota", "lastTimestamp": "2026-01-01T00:00:05Z"}
    client, clock = Client(refused), Clock()
    events = KubeletEvents(client, clock)  # type: ignore[arg-type]

    def read() -> dict[str, Any]:
        return asyncio.run(events.refusals("team", {"set": ["involvedObject.uid=leaders"]}))

    assert read() == {} and client.queries == []
    clock.now = PATIENCE_S
    assert read() == {"set": ("FailedCreate", "exceeded quota", None)} == read()
    assert client.queries == ["involvedObject.uid=leaders"]
    client.events.append({"reason": "SuccessfulCreate", "message": "made", "lastTimestamp": "2026-01-01T00:00:09Z"})
    clock.now += READ_S
    assert read() == {}
