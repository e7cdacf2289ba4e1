"""ConversionReviews with anything in them: answered for each object or refused, in steps of bounded size."""

import json
import time
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from slipway_operator.conversion import app, review
from slipway_operator.conversion.app import PATH, ConversionRoutes

TENANT = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "a"}, "spec": {"external": True}}


def body_of(objects: list[Any], desired: str = "slipway.dev/v1beta1", **other: Any) -> bytes:
    request = {"uid": "u-1", "desiredAPIVersion": desired, "objects": objects}
    whole = {"apiVersion": review.API_VERSION, "kind": review.KIND, "request": request, **other}
    return json.dumps(whole).encode()


def answered(body: bytes) -> dict[str, Any]:
    steps = review.answer(body)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: dict[str, Any] = json.loads(end.value)
            return found


def test_objects_come_back_in_their_order() -> None:
    items = [TENANT | {"metadata": {"name": str(number)}} for number in range(50)]
    answer = answered(body_of(items))
    assert (answer["apiVersion"], answer["kind"]) == ("apiextensions.k8s.io/v1", "ConversionReview")
    response = answer["response"]
    assert (response["uid"], response["result"]) == ("u-1", {"status": "Success"})
    assert [obj["metadata"]["name"] for obj in response["convertedObjects"]] == [str(number) for number in range(50)]
    assert {obj["spec"]["externalProviders"] for obj in response["convertedObjects"]} == {"Allowed"}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"apiVersion": "apps/v1", "kind": "Deployment"}, "Deployment of apps/v1 is not of two versions here"),
        (7, "it is no object"),
        ([], "it is no object"),
        ({}, "it has no kind or no apiVersion"),
        (TENANT | {"x": "y" * review.MAX_OBJECT_BYTES}, "it has more than 3145728 bytes"),
        (TENANT | {"x": [[]] * 300_000}, "it has more than 262144 lists"),
    ],
    ids=["foreign", "number", "list", "empty", "large", "many"],
)
def test_an_object_that_is_none_of_ours_is_named(bad: Any, why: str) -> None:
    response = answered(body_of([TENANT, bad]))["response"]
    assert response["convertedObjects"] == [] and response["result"]["status"] == "Failure"
    assert response["result"]["message"].startswith(f"request.objects[1]: {why}")


def test_another_version_or_group_is_refused() -> None:
    for desired in ("slipway.dev/v2", "apps/v1", "", "v1"):
        assert answered(body_of([TENANT], desired))["response"]["result"]["status"] == "Failure"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"apiVersion": 1}',
        body_of([TENANT], kind="Other"),
        body_of([TENANT], apiVersion="apiextensions.k8s.io/v1beta1"),
        body_of([TENANT]).replace(b"u-1", b"u" * 200),
        body_of([7] * (review.MOST_OBJECTS + 1)),
        b"[" * 1_000_000,
        b'{"request":' * 100_000,
        b"[" + b"1," * 2_000_000 + b"1]",
    ],
    ids=str,
)
def test_what_is_no_review_is_refused(body: bytes) -> None:
    with pytest.raises(review.BadReview):
        answered(body)


def test_deep_nesting_in_an_object_is_refused() -> None:
    deep = b'{"apiVersion":"slipway.dev/v1alpha1","kind":"Tenant","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    with pytest.raises(review.BadReview, match="nested too deeply"):
        answered(body_of([1]).replace(b"[1]", b"[" + deep + b"]"))


@given(
    st.binary(max_size=300) | st.recursive(st.text() | st.integers(), st.lists, max_leaves=9).map(msgspec.json.encode)
)
def test_no_body_raises_anything_else(body: bytes) -> None:
    with pytest.raises(review.BadReview):
        answered(body)


def test_no_step_of_a_large_review_is_long() -> None:
    """Ten megabytes take many steps, between which the operator does its work."""
    spec = {"external": True, "more": [{"name": f"n{number}", "value": "x" * 20} for number in range(400)]}
    steps, number = review.answer(body_of([TENANT | {"spec": spec}] * 500)), 0
    longest_s, begin_s = 0.0, time.thread_time()
    for _ in steps:
        longest_s, number = max(longest_s, time.thread_time() - begin_s), number + 1
        begin_s = time.thread_time()
    assert number > 20 and longest_s < 1.0, "of CPU time, on any machine"


async def test_the_route_refuses_what_is_too_large_and_counts_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(app, "MAX_BYTES", 4096)
    async with TestClient(TestServer(ConversionRoutes(statuses.append).application())) as http:

        async def status_of(method: str, path: str, data: Any = None) -> int:
            async with http.request(method, path, data=data) as answer:
                return answer.status

        async def endless() -> Any:
            yield b"x"

        assert await status_of("POST", PATH, body_of([TENANT])) == 200
        assert await status_of("POST", PATH, b"x" * 5000) == 413
        assert await status_of("POST", PATH, b"{}") == 400
        assert await status_of("POST", PATH, endless()) == 411
        assert await status_of("GET", "/") == 404
    assert statuses == [200, 413, 400, 411, 404]


async def test_an_address_cannot_hold_all_bytes_of_reviews() -> None:
    routes = ConversionRoutes(lambda status: None)
    held = app.MOST_BYTES // 2
    assert not routes._bytes.take("address a", size=held)
    assert routes._bytes.take("address a", size=app.MAX_BYTES), "as much as stays free for others"
    assert not routes._bytes.take("address b", size=app.MOST_BYTES // 4)
