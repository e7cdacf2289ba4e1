"""Jobs that are created once, and stop no reconcile when they cannot be."""

import asyncio
from typing import Any

import pytest

from slipway_operator.kube.errors import Exists, Fenced, Leaving, NotFound, Refused, Unavailable
from slipway_operator.kube.resources import JOBS
from slipway_operator.kube.writing.prefetches import KEPT, READ_EVERY_S, Prefetches
from slipway_operator.model.cluster.plan import Prefetch

KEY = ("team", "chat")


class Client:
    """Only what is called: the creation of Jobs, and reading one."""

    def __init__(self, error: Exception | None = None, *read: str | Exception) -> None:
        """`read`: conditions of the Job, or errors, as they are read one after the other."""
        self.error, self.created, self.to_read, self.reads = error, list[str](), list(read), 0

    async def get(self, resource: object, namespace: str, name: str) -> dict[str, Any]:
        assert (resource, namespace, name) == (JOBS, "team", "chat-1")
        self.reads += 1
        found = self.to_read.pop(0) if self.to_read else ""
        if isinstance(found, Exception):
            raise found
        return {"status": {"conditions": [{"type": found, "status": "True"}]}} if found else {}

    async def create(self, resource: object, job: dict[str, Any]) -> None:
        self.created.append(job["metadata"]["name"])
        if self.error:
            raise self.error


def job(name: str = "chat-1", uid: str = "1", node: str = "a") -> Prefetch:
    metadata = {"name": name, "namespace": "team", "ownerReferences": [{"uid": uid}]}
    return Prefetch("bbbb", node, {"metadata": metadata})


def prefetches_of(client: Client, **options: Any) -> Prefetches:
    return Prefetches(client, **options)  # type: ignore[arg-type]  # only create and get are used


def start(prefetches: Prefetches, *jobs: Prefetch) -> None:
    asyncio.run(prefetches.start(KEY, jobs))


def test_a_job_is_created_once_for_each_owner() -> None:
    client = Client()
    prefetches = prefetches_of(client)
    for _ in range(3):
        start(prefetches, job("a"), job("b"))
    start(prefetches, job("a", uid="2"))
    assert client.created == ["a", "b", "a"]


@pytest.mark.parametrize(("error", "tries"), [(Exists("a"), 1), (Refused(403, "quota"), 1), (Unavailable("away"), 3)])
def test_what_cannot_be_created_stops_nothing(error: Exception, tries: int) -> None:
    client = Client(error)
    prefetches = prefetches_of(client)
    for _ in range(3):
        start(prefetches, job())
    assert len(client.created) == tries


@pytest.mark.parametrize("error", [Leaving(403, "the namespace is being deleted"), Fenced("no lease")], ids=repr)
def test_the_end_of_a_namespace_or_of_the_lease_ends_the_reconcile(error: Exception) -> None:
    with pytest.raises(type(error)):
        start(prefetches_of(Client(error)), job())


def test_what_is_remembered_is_bounded() -> None:
    client = Client()
    prefetches = prefetches_of(client)
    start(prefetches, *(job(str(number)) for number in range(KEPT + 1)))
    start(prefetches, job("0"), job(str(KEPT)))
    assert client.created[-1] == "0" and len(client.created) == KEPT + 2


@pytest.mark.parametrize(
    ("read", "states"),
    [
        ((None, "Complete"), ["Fetching", "Fetching", "Cached", "Cached"]),
        (("Failed",), ["Fetching", "Failed", "Failed", "Failed"]),
        ((Unavailable("away"), "Suspended", "Complete"), ["Fetching", "Fetching", "Fetching", "Cached"]),
        ((NotFound("gone"),), ["Fetching", None, None, None]),
    ],
    ids=["complete", "failed", "away", "deleted"],
)
def test_a_job_is_read_now_and_then_until_it_ends(
    read: tuple[str | Exception | None, ...], states: list[str | None]
) -> None:
    now = [0.0]
    client = Client(None, *(item or "" for item in read))
    prefetches = prefetches_of(client, clock=lambda: now[0])
    for state in states:
        start(prefetches, job())
        assert prefetches.states(KEY) == ({("bbbb", "a"): state} if state else {})
        start(prefetches, job())  # at once: nothing is read
        now[0] += READ_EVERY_S
    assert client.reads == len(read) and client.created == ["chat-1"]


def test_of_jobs_that_a_former_process_made_the_state_is_read() -> None:
    client = Client(Exists("chat-1"), "Complete")
    prefetches = prefetches_of(client)
    for _ in range(2):
        start(prefetches, job())
    assert prefetches.states(KEY) == {("bbbb", "a"): "Cached"}


def test_what_is_not_wanted_any_more_or_was_refused_has_no_state() -> None:
    client = Client()
    prefetches = prefetches_of(client)
    start(prefetches, job())
    start(prefetches)
    assert prefetches.states(KEY) == {}
    client.error = Refused(403, "quota")
    start(prefetches, job("chat-2"))
    assert prefetches.states(KEY) == {}
