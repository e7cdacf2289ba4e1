"""Lists in pages: the size of a page follows the size of the objects."""

import json
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from slipway_process import pages

OBJECT_BYTES = 1_400_000


class ApiServer:
    """Lists `count` objects; ignores the limit with resourceVersion=0, as the API server does."""

    def __init__(self, count: int, size: int) -> None:
        self.items = [{"name": f"pod-{number}", "text": "x" * size} for number in range(count)]
        self.queries: list[dict[str, str]] = []
        self.largest = 0

    async def list(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        self.queries.append(query)
        first = int(query.get("continue") or 0)
        limit = len(self.items) if "resourceVersion" in query else int(query["limit"])
        items = self.items[first : first + limit]
        more = str(first + limit) if first + limit < len(self.items) else ""
        return web.json_response({"metadata": {"continue": more, "resourceVersion": "7"}, "items": items})


async def names(server: ApiServer, first: dict[str, str] | None = None) -> list[str]:
    application = web.Application()
    application.router.add_get("/pods", server.list)
    async with TestServer(application) as running, ClientSession() as session:

        async def get(query: pages.Query) -> dict[str, Any]:
            async with session.get(running.make_url("/pods"), params=query) as response:
                body = await pages.read_page(response)
            server.largest = max(server.largest, len(body))
            return dict(json.loads(body))

        return [item["name"] async for page in pages.pages(get, first or {}) for item in page["items"]]


async def test_small_objects_come_in_pages_of_five_hundred() -> None:
    server = ApiServer(1001, 10)
    assert await names(server, {"labelSelector": "a"}) == [item["name"] for item in server.items]
    assert [(query["limit"], query.get("continue")) for query in server.queries] == [
        ("500", None), ("500", "500"), ("500", "1000"),
    ]  # fmt: skip
    assert all(query["labelSelector"] == "a" for query in server.queries)


@pytest.mark.attack_class(15)
@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}])
async def test_large_objects_come_in_small_pages(query: dict[str, str]) -> None:
    server = ApiServer(30, OBJECT_BYTES)
    assert await names(server, query) == [item["name"] for item in server.items]
    assert server.largest <= pages.MAX_PAGE_BYTES
    assert [query["limit"] for query in server.queries[:3]] == ["500", "62", "7"]
    assert "resourceVersion" not in server.queries[-1]


async def test_an_object_that_is_too_large_alone_is_an_error() -> None:
    with pytest.raises(pages.PageTooLarge, match="16 MiB"):
        await names(ApiServer(2, pages.MAX_PAGE_BYTES))


async def test_the_connection_is_closed_when_the_body_was_not_read_to_its_end() -> None:
    class Response:
        closed = False

        class content:
            @staticmethod
            async def iter_any() -> Any:
                yield b"{"
                raise TimeoutError

        def close(self) -> None:
            self.closed = True

    response = Response()
    with pytest.raises(TimeoutError):
        await pages.read_page(response)
    assert response.closed
