"""Open pages stay up to date by server-sent events, within bounds, against a real API server."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from testkit.cluster.api import Api
from tests.console.conftest import SignIn, signed_in
from tests.console.test_pages import text_of
from tests.console.world import VIEWER, create_deployment, csrf_of, in_flight, running_console, set_status, token_of

pytestmark = pytest.mark.integration


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    async with asyncio.timeout(60):
        while kind := (await answer.content.readline()).decode():
            data = (await answer.content.readline()).decode().removeprefix("data: ")
            await answer.content.readline()
            yield kind.removeprefix("event: ").strip(), json.loads(data)


async def next_of(found: AsyncIterator[tuple[str, Any]], kind: str) -> Any:
    async for name, data in found:
        if name == kind:
            return data
    raise AssertionError(f"the stream ended without {kind}")


async def test_a_page_gets_the_parts_that_changed(api: Api, namespace: str, editor: str, sign_in: SignIn) -> None:
    create_deployment(api, namespace)
    client = await sign_in(editor)
    async with client.get(f"/deployments/{namespace}/chat/stream") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        found = events(answer)
        assert set(await next_of(found, "sections")) == {"state", "actions", "evidence", "record"}
        set_status(api, namespace, "chat", in_flight(2, "Shifting", "gateways apply <weight> 50"))
        changed = await next_of(found, "sections")
        assert "gateways apply &lt;weight&gt; 50" in changed["state"] and "bbbbbbbbbb/1/2" in changed["actions"]
        assert "evidence" not in changed


async def test_the_list_is_live_too(api: Api, namespace: str, viewer: str, sign_in: SignIn) -> None:
    client = await sign_in(viewer)
    async with client.get(f"/deployments/stream?namespace={namespace}") as answer:
        found = events(answer)
        assert "There are no ModelDeployments" in (await next_of(found, "sections"))["list"]
        create_deployment(api, namespace)
        assert f"/deployments/{namespace}/chat" in (await next_of(found, "sections"))["list"]


async def test_a_stream_ends_with_its_token_and_with_its_session(
    api: Api, namespace: str, viewer: str, editor: str, sign_in: SignIn
) -> None:
    create_deployment(api, namespace)
    client, other = await sign_in(viewer), await sign_in(editor)
    where = f"/deployments/{namespace}/chat"
    async with client.get(f"{where}/stream") as answer, other.get(f"{where}/stream") as second:
        found, ending = events(answer), events(second)
        await next_of(found, "sections")
        await next_of(ending, "sections")
        assert api.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/viewer").ok
        assert "sign in again" in await next_of(found, "ended")
        form = {"csrf": csrf_of(await text_of(other, where))}
        async with other.post("/sign-out", data=form, allow_redirects=False) as done:
            assert done.status == 303
        assert "sign in again" in await next_of(ending, "ended")


async def test_what_fails_is_a_sentence_of_the_stream(api: Api, namespace: str, viewer: str, sign_in: SignIn) -> None:
    create_deployment(api, namespace)
    client = await sign_in(viewer)
    async with client.get(f"/deployments/{namespace}/chat/stream") as answer:
        found = events(answer)
        await next_of(found, "sections")
        rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/viewer"
        assert api.delete(rights).ok
        assert "Your token may not get modeldeployments" in await next_of(found, "trouble")


async def test_a_session_has_four_streams_and_gets_them_back(
    api: Api, namespace: str, viewer: str, sign_in: SignIn
) -> None:
    create_deployment(api, namespace)
    client = await sign_in(viewer)
    where = f"/deployments/{namespace}/chat/stream"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            answer = await stack.enter_async_context(client.get(where))
            await next_of(events(answer), "sections")
        async with client.get(where) as fifth:
            assert fifth.status == 429
    async with asyncio.timeout(30):
        while True:
            async with client.get(where) as again:
                if again.status == 200:
                    return
            await asyncio.sleep(0.2)


async def test_streams_of_one_user_leave_places_to_others(
    api: Api, api_server: Path, namespace: str, viewer: str, tmp_path: Path
) -> None:
    create_deployment(api, namespace)
    stranger = token_of(api, "default", f"of-{namespace}", cluster_rules=VIEWER)
    where = f"/deployments/{namespace}/chat/stream"
    with running_console(api_server, tmp_path, "--poll=1", "--max-streams=4") as console:
        async with contextlib.AsyncExitStack() as stack:
            greedy, other = [await signed_in(stack, console, token) for token in (viewer, stranger)]
            answers = [await stack.enter_async_context(greedy.get(where)) for _ in range(4)]
            assert [answer.status for answer in answers] == [200, 200, 200, 429]
            answer = await stack.enter_async_context(other.get(where))
            assert answer.status == 200 and await next_of(events(answer), "sections")


async def test_open_pages_do_not_hold_up_the_end_of_the_process(
    api: Api, api_server: Path, namespace: str, viewer: str, tmp_path: Path
) -> None:
    create_deployment(api, namespace)
    async with contextlib.AsyncExitStack() as stack:
        with running_console(api_server, tmp_path, "--poll=60") as console:
            client = await signed_in(stack, console, viewer)
            answer = await stack.enter_async_context(client.get(f"/deployments/{namespace}/chat/stream"))
            assert await next_of(events(answer), "sections")
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 30, "less than --poll"
