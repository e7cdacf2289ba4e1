"""Jobs that are created once, and stop no reconcile when they cannot be."""

import asyncio
from typing import Any

import pytest

from slipway_operator.kube.errors import Exists, Fenced, Leaving, Refused, Unavailable
from slipway_operator.kube.writing.prefetches import KEPT, Prefetches

NODE = {"key": "metadata.name", "operator": "In", "values": ["a"]}
AFFINITY = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [NODE]}]}}
}


class Client:
    """Only the creation of Jobs."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.created = error, list[str]()

    async def create(self, resource: object, job: dict[str, Any]) -> None:
        self.created.append(job["metadata"]["name"])
        if self.error:
            raise self.error


def job(name: str = "chat-1", uid: str = "1") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "ownerReferences": [{"uid": uid}]}
    return {"metadata": metadata, "spec": {"template": {"spec": {"affinity": AFFINITY}}}}


def start(prefetches: Prefetches, client: Client, *jobs: dict[str, Any]) -> None:
    asyncio.run(prefetches.start(client, jobs))  # type: ignore[arg-type]  # only its create is used


def test_a_job_is_created_once_for_each_owner() -> None:
    prefetches, client = Prefetches(), Client()
    for _ in range(3):
        start(prefetches, client, job("a"), job("b"))
    start(prefetches, client, job("a", uid="2"))
    assert client.created == ["a", "b", "a"]


@pytest.mark.parametrize(("error", "tries"), [(Exists("a"), 1), (Refused(403, "quota"), 1), (Unavailable("away"), 3)])
def test_what_cannot_be_created_stops_nothing(error: Exception, tries: int) -> None:
    prefetches, client = Prefetches(), Client(error)
    for _ in range(3):
        start(prefetches, client, job())
    assert len(client.created) == tries


@pytest.mark.parametrize("error", [Leaving(403, "the namespace is being deleted"), Fenced("no lease")], ids=repr)
def test_the_end_of_a_namespace_or_of_the_lease_ends_the_reconcile(error: Exception) -> None:
    with pytest.raises(type(error)):
        start(Prefetches(), Client(error), job())


def test_what_is_remembered_is_bounded() -> None:
    prefetches, client = Prefetches(), Client()
    start(prefetches, client, *(job(str(number)) for number in range(KEPT + 1)))
    start(prefetches, client, job("0"), job(str(KEPT)))
    assert client.created[-1] == "0" and len(client.created) == KEPT + 2
