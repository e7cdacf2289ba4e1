"""Which pods of a pool are annotated, so that their kubelets write a changed file of entries at once."""

from typing import Any

import pytest

from slipway_operator.kube.errors import Fenced, NotFound, Refused, Unavailable
from slipway_operator.pools import refreshing
from slipway_operator.pools.refreshing import AGAIN, AT_ONCE, MAX_AGAIN, SeenMark, next_mark, refresh, seen_marks

FILE = refreshing.digest('{"models":[]}')
OTHER = refreshing.digest('{"models":[1]}')


class Pods:
    """The API server's pods; `refuses` maps names to what a patch raises."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, str]] = []
        self.refuses: dict[str, Exception] = {}

    async def patch(self, resource: Any, namespace: str, name: str, body: Any) -> Any:
        if name in self.refuses:
            raise self.refuses[name]
        assert body["metadata"]["uid"] == f"uid-{name}", "not a successor of the same name"
        self.patches.append((name, body["metadata"]["annotations"]["slipway.dev/pool-entries"]))
        return body


def pod(name: str, mark: str | None = None, **more: Any) -> dict[str, Any]:
    marks = {} if mark is None else {"annotations": {"slipway.dev/pool-entries": mark}}
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}"} | marks
    return {"metadata": metadata | more.pop("metadata", {}), "status": {"podIP": "10.0.0.1"}} | more


async def annotated(pods: list[dict[str, Any]], server: Pods | None = None, **behind: bool) -> list[tuple[str, str]]:
    server = server or Pods()
    late = {f"uid-{name}": value for name, value in behind.items()}
    marks = seen_marks(pods, {}, 0.0)
    await refresh(server, pods, marks, FILE, late, AGAIN.initial_s)  # type: ignore[arg-type]
    return server.patches


async def test_only_pods_that_run_with_another_file_are_annotated() -> None:
    leaving = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    pods = [
        pod("new"),
        pod("old", OTHER),
        pod("same", FILE),
        pod("strange", "x" * 100_000),
        pod("leaving", OTHER, **leaving),
        pod("starting", OTHER, status={}),
    ]
    assert await annotated(pods) == [("new", FILE), ("old", FILE), ("strange", FILE)]


async def test_a_pod_that_lacks_an_entry_is_annotated_again() -> None:
    pods = [pod("late", FILE), pod("well", FILE)]
    assert await annotated(pods, late=True, well=False) == [("late", f"{FILE}-1")]


@pytest.mark.parametrize("again", range(MAX_AGAIN + 1))
def test_each_further_annotation_waits_twice_as_long_and_there_are_only_some(again: int) -> None:
    mark = f"{FILE}-{again}" if again else FILE
    wait_s = AGAIN.delay_s(again + 1)
    assert next_mark(SeenMark(mark, 0.0), FILE, behind=True, now_s=wait_s - 0.1) is None
    wanted = None if again == MAX_AGAIN else f"{FILE}-{again + 1}"
    assert next_mark(SeenMark(mark, 0.0), FILE, behind=True, now_s=wait_s) == wanted
    assert next_mark(SeenMark(mark, 0.0), FILE, behind=False, now_s=1e9) is None
    assert next_mark(SeenMark(mark, 0.0), OTHER, behind=False, now_s=0.0) == OTHER, "another file: at once"


def test_the_time_of_a_mark_begins_when_it_is_seen_first() -> None:
    first = seen_marks([pod("a", FILE), pod("gone", FILE)], {}, 1.0)
    second = seen_marks([pod("a", FILE), pod("b", FILE)], first, 2.0)
    assert second == {"uid-a": SeenMark(FILE, 1.0), "uid-b": SeenMark(FILE, 2.0)}
    assert seen_marks([pod("a", f"{FILE}-1")], second, 3.0) == {"uid-a": SeenMark(f"{FILE}-1", 3.0)}


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (Refused(403, "forbidden"), True),
        (Unavailable("away"), True),
        (NotFound("gone"), False),
        (Fenced("no lease"), False),
    ],
)
async def test_a_pod_that_cannot_be_annotated_keeps_no_other_from_it(error: Exception, shown: bool) -> None:
    server = Pods()
    server.refuses["a"] = error
    pods = [pod("a"), pod("b")]
    late = await refresh(server, pods, seen_marks(pods, {}, 0.0), FILE, {}, 0.0)  # type: ignore[arg-type]
    assert server.patches == [("b", FILE)]
    assert ("pod a is not annotated" in late) is shown


async def test_a_large_pool_is_annotated_in_several_looks() -> None:
    assert len(await annotated([pod(f"p{index}") for index in range(AT_ONCE + 9)])) == AT_ONCE
