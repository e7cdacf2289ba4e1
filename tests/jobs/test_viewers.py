"""Who may see batches: what an API server that misbehaves says lets no one in, and no token takes all reviews."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slipway_jobs.serving.refusal import JobsRefusal
from slipway_jobs.serving.viewers import MOST_REVIEWS, Viewers


class ApiServer:
    """Answers reviews with `status` and `body`, when it is `open`."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 201, b'{"status": {"allowed": true}}', dict[str, str]()
        self.open = asyncio.Event()
        self.seen: list[tuple[str, object]] = []

    async def answer(self, request: web.Request) -> web.Response:
        attributes = (await request.json())["spec"]["resourceAttributes"]
        self.seen.append((request.headers["Authorization"], attributes))
        await self.open.wait()
        return web.Response(status=self.status, body=self.body, headers=self.headers)


@pytest.fixture
async def api_server() -> AsyncIterator[tuple[ApiServer, Viewers]]:
    made, app = ApiServer(), web.Application()
    app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", made.answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        yield made, Viewers(session, str(server.make_url("")).rstrip("/"))
        made.open.set()


async def test_the_api_server_decides_about_one_tenant_or_all(api_server: tuple[ApiServer, Viewers]) -> None:
    server, viewers = api_server
    server.open.set()
    await viewers.check("Bearer t", None)
    await viewers.check("bearer t", "team-a")
    common = {"group": "slipway.dev", "resource": "tenants", "subresource": "batches"}
    assert server.seen == [
        ("Bearer t", common | {"verb": "list"}),
        ("Bearer t", common | {"verb": "get", "name": "team-a"}),
    ]


@pytest.mark.parametrize(
    ("status", "body", "refused"),
    [
        (201, b'{"status": {"allowed": false}}', 403), (201, b"{}", 403), (201, b'{"status": {"denied": true}}', 403),
        (201, b'{"status": {"allowed": "true"}}', 503), (201, b"[", 503), (201, b"", 503), (200, b"", 503),
        (201, b"{" + b" " * 70_000 + b"}", 503), (302, b"", 503), (401, b"", 401), (403, b"", 503), (500, b"", 503),
    ],
    ids=range(12),
)  # fmt: skip
async def test_nothing_but_a_clear_yes_lets_a_viewer_in(
    api_server: tuple[ApiServer, Viewers], status: int, body: bytes, refused: int
) -> None:
    server, viewers = api_server
    server.open.set()
    server.status, server.body, server.headers = status, body, {"Location": "/elsewhere"}
    with pytest.raises(JobsRefusal) as found:
        await viewers.check("Bearer t", None)
    assert found.value.status == refused


async def test_lists_of_batches_have_a_share_for_each_token(api_server: tuple[ApiServer, Viewers]) -> None:
    server, viewers = api_server
    waiting = [asyncio.create_task(viewers.check("Bearer large", None)) for _ in range(MOST_REVIEWS)]
    other = asyncio.create_task(viewers.check("Bearer other", None))
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    server.open.set()
    await other
    results = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [one for one in results if isinstance(one, JobsRefusal) and one.status == 429]
    assert len(refused) == MOST_REVIEWS // 4 and done
