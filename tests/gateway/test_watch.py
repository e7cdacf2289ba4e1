"""List and watch against a server that misbehaves in ways a real one rarely does on request."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from slipway_gateway import cluster
from slipway_gateway.table import RouteTable
from slipway_gateway.telemetry.metrics import Metrics

from .harness import until, upstream


def deployment(name: str, generation: int, version: int) -> dict[str, Any]:
    traffic = {"generation": generation, "model": name, "backends": [{"revision": "r", "weight": 100}]}
    meta = {"namespace": "default", "name": name, "uid": name, "resourceVersion": str(version)}
    return {"metadata": meta, "status": {"traffic": traffic}}


class FakeApi:
    """Lists `items`; each watch of ModelDeployments is answered by the next of `watches`, then stays silent."""

    def __init__(self, *watches: Any) -> None:
        self.items = [deployment("chat", 1, 1)]
        self.later_items: list[dict[str, Any]] | None = None
        self.watches = list(watches)
        self.versions: list[str] = []
        self.lists = 0
        self.page = 500
        self.tokens: list[str] = []
        self.good_token = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.good_token and self.tokens[-1] != f"Bearer {self.good_token}":
            return web.json_response({"message": "who are you"}, status=401)
        ours = "modeldeployments" in request.path
        if "watch" not in request.query:
            self.lists += ours
            if self.lists > 1 and self.later_items is not None:
                self.items = self.later_items
            first = int(request.query.get("continue", "0"))
            more = {"continue": str(first + self.page)} if ours and first + self.page < len(self.items) else {}
            items = self.items[first : first + self.page] if ours else []
            return web.json_response({"metadata": {"resourceVersion": "5"} | more, "items": items})
        if ours:
            self.versions.append(request.query["resourceVersion"])
            if self.watches:
                return await self._answer(request, self.watches.pop(0))
        return await self._answer(request, [None])

    async def _answer(self, request: web.Request, answer: Any) -> web.StreamResponse:
        if isinstance(answer, int):
            return web.json_response({"message": "no"}, status=answer)
        out = web.StreamResponse()
        await out.prepare(request)
        for line in answer:
            if line is None:
                await asyncio.sleep(60)
            elif isinstance(line, bytes):
                await out.write(line)
            else:
                kind, item = line
                await out.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
        return out


@contextlib.asynccontextmanager
async def watching(api: FakeApi, tmp_path: Path) -> AsyncIterator[Callable[[], RouteTable]]:
    published: list[RouteTable] = []
    async with upstream(api.serve) as server:
        kubeconfig(tmp_path, server.url, "t1")
        source = cluster.Cluster(str(tmp_path / "config"), (), published.append, Metrics("test"))
        running = asyncio.create_task(source.run())
        try:
            await until(lambda: published, 10)
            yield lambda: published[-1]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def kubeconfig(folder: Path, url: str, token: str) -> None:
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    (folder / "config").write_text(json.dumps(content))


GONE = {"code": 410, "message": "too old resource version"}


@pytest.mark.parametrize("gone", [410, [("ERROR", GONE)], [("ERROR", {"code": 500, "message": "etcd"})], 500])
async def test_refused_watch_lists_again_and_finds_deletions(gone: Any, tmp_path: Path) -> None:
    api = FakeApi([("ADDED", deployment("extra", 1, 6))], gone)
    api.later_items = [deployment("chat", 2, 9)]
    async with watching(api, tmp_path) as table:
        await until(lambda: table().models["chat"].generation == 2)
        assert "extra" not in table().models and api.lists == 2


@pytest.mark.parametrize("status", [429, 503])
async def test_busy_server_is_asked_again_without_listing(status: int, tmp_path: Path) -> None:
    api = FakeApi(status, status, [("MODIFIED", deployment("chat", 2, 7)), None])
    async with watching(api, tmp_path) as table:
        await until(lambda: table().models["chat"].generation == 2)
        assert api.versions == ["5", "5", "5"] and api.lists == 1


async def test_empty_cluster_is_a_table(tmp_path: Path) -> None:
    api = FakeApi()
    api.items = []
    async with watching(api, tmp_path) as table:
        assert not table().models


async def test_stream_end_resumes_without_listing(tmp_path: Path) -> None:
    bookmark = {"metadata": {"resourceVersion": "8"}}
    api = FakeApi([("MODIFIED", deployment("chat", 2, 7)), ("BOOKMARK", bookmark)], [])
    async with watching(api, tmp_path) as table:
        await until(lambda: len(api.versions) == 3)
        assert api.versions == ["5", "8", "8"] and api.lists == 1
        assert table().models["chat"].generation == 2


async def test_silent_stream_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_STREAM", aiohttp.ClientTimeout(sock_read=0.2))
    api = FakeApi([None])
    async with watching(api, tmp_path):
        await until(lambda: len(api.versions) >= 3)
        assert api.lists == 1


@pytest.mark.parametrize("garbage", [[b"{half"], [b"[]\n"], [b'{"type":"ADDED","object":{}}\n'], [b"5\n"]])
async def test_garbage_does_not_end_the_watch(garbage: Any, tmp_path: Path) -> None:
    api = FakeApi(garbage, [("DELETED", deployment("chat", 1, 6)), None])
    async with watching(api, tmp_path) as table:
        await until(lambda: not table().models, 10)


async def test_malformed_traffic_keeps_the_last_route(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = deployment("chat", 2, 6)
    bad["status"]["traffic"]["backends"][0]["weight"] = 7
    api = FakeApi([("MODIFIED", bad), ("ADDED", deployment("extra", 1, 7)), None])
    async with watching(api, tmp_path) as table:
        await until(lambda: "extra" in table().models)
        assert table().models["chat"].generation == 1
        assert "the weights sum to 7" in caplog.text


async def test_the_newest_object_is_followed_whatever_its_generation(tmp_path: Path) -> None:
    """Story S1: the gateway stayed with generation 9 for good after a status was lost and began again at 1."""
    lost = deployment("chat", 0, 8)
    del lost["status"]["traffic"]
    api = FakeApi(
        [
            ("ADDED", deployment("other", 9, 6)),
            ("MODIFIED", deployment("other", 1, 7)),
            ("MODIFIED", lost),
            ("ADDED", deployment("last", 1, 10)),
            None,
        ]
    )
    async with watching(api, tmp_path) as table:
        await until(lambda: "last" in table().models)
        assert table().models["other"].generation == 1
        # Without a table the last one stays: nobody said where else to send requests.
        assert table().models["chat"].generation == 1 and table().models["chat"].backends


async def test_lists_come_in_pages(tmp_path: Path) -> None:
    api = FakeApi()
    api.items = [deployment(f"m{number}", 1, number + 1) for number in range(5)]
    api.page = 2
    async with watching(api, tmp_path) as table:
        assert len(table().models) == 5 and api.lists == 3


async def test_rotated_token_is_read_again(tmp_path: Path) -> None:
    api = FakeApi(*([],) * 100)
    async with watching(api, tmp_path):
        server = json.loads((tmp_path / "config").read_text())["clusters"][0]["cluster"]["server"]
        kubeconfig(tmp_path, server, "t2")
        api.good_token = "t2"
        await until(lambda: "Bearer t2" in api.tokens, 10)
