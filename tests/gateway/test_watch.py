"""List and watch against a server that misbehaves in ways a real one rarely does on request."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from slipway_gateway.routing import cluster, reflector
from slipway_gateway.routing.table import RouteTable
from slipway_gateway.telemetry.metrics import GatewayMetrics
from testkit.until import until_async

from .harness import upstream


def deployment(name: str, generation: int, version: int) -> dict[str, Any]:
    traffic = {"generation": generation, "model": name, "backends": [{"revision": "r", "weight": 100}]}
    meta = {"namespace": "default", "name": name, "uid": name, "resourceVersion": str(version)}
    return {"metadata": meta, "status": {"traffic": traffic}}


class FakeApi:
    """Lists `items`; each watch of ModelDeployments is answered by the next of `watches`, then stays silent.

    Watches of pods do the same with `pod_watches`.
    """

    def __init__(self, *watches: Any) -> None:
        self.items = [deployment("chat", 1, 1)]
        self.later_items: list[dict[str, Any]] | None = None
        self.watches = list(watches)
        self.pod_watches: list[Any] = []
        self.versions: list[str] = []
        self.lists = 0
        self.page = 500
        self.tokens: list[str] = []
        self.good_token = ""
        self.names: list[
            Any
        ] = []  # responses to lists of ConfigMaps, in order; while there are more, watches are refused
        self.names_watches: list[Any] = []  # responses to watches of them before that
        self.restarted = asyncio.Event()  # ends the idle streams

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.good_token and self.tokens[-1] != f"Bearer {self.good_token}":
            return web.json_response({"message": "who are you"}, status=401)
        if "configmaps" in request.path:
            return await self._serve_names(request)
        ours = "modeldeployments" in request.path
        if not ours and not request.path.endswith("/pods"):
            return web.json_response({"message": "no such resource"}, status=404)  # a cluster without the other CRDs
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
        elif self.pod_watches:
            return await self._answer(request, self.pod_watches.pop(0))
        return await self._answer(request, [None])

    async def _serve_names(self, request: web.Request) -> web.StreamResponse:
        assert request.path == "/api/v1/namespaces/home/configmaps"
        assert request.query["fieldSelector"] == "metadata.name=slipway-model-names"
        if "watch" in request.query:
            later = [410] if self.names else [[None]]
            return await self._answer(request, (self.names_watches or later).pop(0))
        answer = self.names.pop(0)
        if isinstance(answer, int):
            return await self._answer(request, answer)
        return web.json_response({"metadata": {"resourceVersion": "5"}, "items": answer})

    async def _answer(self, request: web.Request, answer: Any) -> web.StreamResponse:
        if isinstance(answer, int):
            return web.json_response({"message": "no"}, status=answer)
        out = web.StreamResponse()
        await out.prepare(request)
        for line in answer:
            if line is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.restarted.wait(), 60)
            elif isinstance(line, bytes):
                await out.write(line)
            else:
                kind, item = line
                await out.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
        return out


@contextlib.asynccontextmanager
async def watching(
    api: FakeApi,
    tmp_path: Path,
    names: tuple[str, str] | None = None,
    waits_for: str = "",
    metrics: GatewayMetrics | None = None,
) -> AsyncIterator[Callable[[], RouteTable]]:
    """`waits_for`: text of the reason before there is a table; then comes a ConfigMap that can be read."""
    published: list[RouteTable] = []
    async with upstream(api.serve) as server:
        kubeconfig(tmp_path, server.url, "t1")
        shown = metrics or GatewayMetrics("test")
        source = cluster.ClusterSource(str(tmp_path / "config"), (), published.append, shown, names)
        running = asyncio.create_task(source.run())
        try:
            if waits_for:
                await until_async(lambda: waits_for in source.waiting_for)
                assert not published
                api.names, api.names_watches = [[owners(2, '{"chat": {"owner": "default/chat"}}')]], [410]
                api.restarted.set()
            await until_async(lambda: published)
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


HOME = ("home", "slipway-model-names")


def owners(version: int, text: str | None) -> dict[str, Any]:
    meta = {"namespace": "home", "name": "slipway-model-names", "resourceVersion": str(version)}
    return {"metadata": meta, **({"data": {"names.json": text}} if text is not None else {})}


@pytest.mark.finding(14)
@pytest.mark.attack_class(22)
@pytest.mark.parametrize(
    ("listed", "waits_for"),
    [
        ([[]], "the operator has not written the ConfigMap home/slipway-model-names of model names yet"),
        ([[owners(1, None)]], "the operator has not written the ConfigMap"),
        ([[owners(1, "no JSON")]], "the operator has not written the ConfigMap"),
        ([403, 403, 403], "configmaps: not allowed to list and watch configmaps: check the RBAC rules"),
    ],
)
async def test_without_owners_there_is_no_table(listed: list[Any], waits_for: str, tmp_path: Path) -> None:
    """Safety 14: owners of names are never guessed; without them a gateway is not ready and gives the reason."""
    api = FakeApi()
    api.names = listed
    async with watching(api, tmp_path, HOME, waits_for) as table:
        assert set(table().models) == {"chat"}


@pytest.mark.attack_class(22)
@pytest.mark.parametrize(
    "lost",
    [
        [("DELETED", owners(6, '{"chat": {"owner": "default/chat"}}'))],
        [("MODIFIED", owners(6, None))],
        [("MODIFIED", owners(6, '{"chat": {"owner": 1}}'))],
        [("ERROR", {"code": 403, "message": "no"})],
    ],
)
async def test_the_last_good_owners_stay(lost: Any, tmp_path: Path) -> None:
    api = FakeApi([("ADDED", deployment("extra", 1, 7)), None])
    stranger = deployment("chat", 1, 1)
    stranger["metadata"] |= {"namespace": "hostile", "creationTimestamp": "2000-01-01T00:00:00Z"}
    api.items.append(stranger)
    api.names, api.names_watches = [[owners(1, '{"chat": {"owner": "default/chat"}}')]], [[*lost, None]]
    async with watching(api, tmp_path, HOME) as table:
        api.names = [403] * 9  # nor can they be listed again
        await until_async(lambda: not api.names_watches)
        await until_async(lambda: "default/extra" in table().routes)
        assert {name: route.name for name, route in table().models.items()} == {"chat": "default/chat"}
        assert set(table().routes) == {"default/chat", "hostile/chat", "default/extra"}


async def test_a_name_that_moves_is_followed(tmp_path: Path) -> None:
    api = FakeApi()
    other = deployment("chat", 1, 1)
    other["metadata"]["namespace"] = "other"
    api.items.append(other)
    moved = ("MODIFIED", owners(7, '{"chat": {"owner": "other/chat"}}'))
    api.names, api.names_watches = [[owners(1, '{"chat": {"owner": "default/chat"}}')]], [[moved, None]]
    async with watching(api, tmp_path, HOME) as table:
        await until_async(lambda: table().models["chat"].name == "other/chat")


GONE = {"code": 410, "message": "too old resource version"}


@pytest.mark.parametrize("gone", [410, [("ERROR", GONE)], [("ERROR", {"code": 500, "message": "etcd"})], 500])
async def test_refused_watch_lists_again_and_finds_deletions(gone: Any, tmp_path: Path) -> None:
    api = FakeApi([("ADDED", deployment("extra", 1, 6))], gone)
    api.later_items = [deployment("chat", 2, 9)]
    async with watching(api, tmp_path) as table:
        await until_async(lambda: table().models["chat"].generation == 2)
        assert "extra" not in table().models and api.lists == 2


@pytest.mark.parametrize("status", [429, 503])
async def test_busy_api_server_is_retried_without_listing(status: int, tmp_path: Path) -> None:
    api = FakeApi(status, status, [("MODIFIED", deployment("chat", 2, 7)), None])
    async with watching(api, tmp_path) as table:
        await until_async(lambda: table().models["chat"].generation == 2)
        assert api.versions == ["5", "5", "5"] and api.lists == 1


async def test_empty_cluster_is_a_table(tmp_path: Path) -> None:
    api = FakeApi()
    api.items = []
    async with watching(api, tmp_path) as table:
        assert not table().models


async def test_table_is_as_old_as_the_last_contact_with_all_of_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_RENEW_S", 0.02)
    bookmark = ("BOOKMARK", {"metadata": {"resourceVersion": "6"}})
    api = FakeApi([bookmark, None], [bookmark, None])
    api.pod_watches = [[None], [bookmark, None]]
    async with watching(api, tmp_path) as read:
        contact_s = time.time()
        table = read()
        assert contact_s - 30 < table.as_of_s <= contact_s
        await asyncio.sleep(0.2)
        assert read().as_of_s <= contact_s, "no event of pods has come from the API server since"
        api.restarted.set()
        await until_async(lambda: read().as_of_s > contact_s)
        assert read() == table


async def test_stream_end_resumes_without_listing(tmp_path: Path) -> None:
    bookmark = {"metadata": {"resourceVersion": "8"}}
    api = FakeApi([("MODIFIED", deployment("chat", 2, 7)), ("BOOKMARK", bookmark)], [])
    async with watching(api, tmp_path) as table:
        await until_async(lambda: len(api.versions) == 3)
        assert api.versions == ["5", "8", "8"] and api.lists == 1
        assert table().models["chat"].generation == 2


async def test_silent_stream_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "_STREAM", aiohttp.ClientTimeout(sock_read=0.2))
    api = FakeApi([None])
    async with watching(api, tmp_path):
        await until_async(lambda: len(api.versions) >= 3)
        assert api.lists == 1


@pytest.mark.parametrize("garbage", [[b"{half"], [b"[]\n"], [b'{"type":"ADDED","object":{}}\n'], [b"5\n"]])
async def test_garbage_does_not_end_the_watch(garbage: Any, tmp_path: Path) -> None:
    api = FakeApi(garbage, [("DELETED", deployment("chat", 1, 6)), None])
    async with watching(api, tmp_path) as table:
        await until_async(lambda: not table().models)


async def test_malformed_traffic_keeps_the_last_route(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = deployment("chat", 2, 6)
    bad["status"]["traffic"]["backends"][0]["weight"] = 7
    api = FakeApi([("MODIFIED", bad), ("ADDED", deployment("extra", 1, 7)), None])
    async with watching(api, tmp_path) as table:
        await until_async(lambda: "extra" in table().models)
        assert table().models["chat"].generation == 1
        assert "the weights sum to 7" in caplog.text


@pytest.mark.finding("L1")
@pytest.mark.parametrize("poison", [{"status": [1]}, {"spec": 5}])
async def test_a_poisoned_object_is_left_out_and_stops_nothing(
    poison: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each list had it again: the watch never came to what follows it."""
    bad = deployment("chat", 2, 6) | poison
    api = FakeApi([("MODIFIED", bad), ("MODIFIED", bad), ("ADDED", deployment("extra", 1, 7)), None])
    listed = deployment("listed", 1, 1) | poison
    api.items = [listed, *api.items]
    metrics = GatewayMetrics("test")
    async with watching(api, tmp_path, metrics=metrics) as table:
        await until_async(lambda: "extra" in table().models)
        assert table().models["chat"].generation == 1
        assert api.lists == 1 and "default/chat is not used" in caplog.text
    assert (
        metrics.registry.get_sample_value("slipway_gateway_unreadable_objects_total", {"resource": "modeldeployments"})
        == 3
    )


@pytest.mark.finding("S1")
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
        await until_async(lambda: "last" in table().models)
        assert table().models["other"].generation == 1
        # Without a table the last one stays: no other place for its requests is known.
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
        await until_async(lambda: "Bearer t2" in api.tokens)
