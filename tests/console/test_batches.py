"""Batches and jobs in the console: a real jobs process, which checks each viewer's token at a real API server."""

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import yaml
from playwright.async_api import expect

from slipway_console.views.batches import read_batch
from slipway_contracts.batch_list import BATCH_LIST_PATH, BatchList, BatchRow
from testkit.cluster.api import Api
from tests.console import chromium
from tests.console.conftest import signed_in
from tests.console.world import Console, running_console, token_of
from tests.jobs.world import World, chat, create, ended, jsonl, world

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]

SECRET = "a prompt of the tenant"
ALL = ({"apiGroups": ["slipway.dev"], "resources": ["tenants/batches"], "verbs": ["list"]},)
ONE = ({"apiGroups": ["slipway.dev"], "resources": ["tenants/batches"], "resourceNames": ["team-a"], "verbs": ["get"]},)


def written(kubeconfig: Path, folder: Path) -> dict[str, str]:
    """Files of the release's keys and of the API server's CA; settings of the jobs process about viewers."""
    cluster = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
    ca_file, keys = folder / "api-ca.crt", folder / "tenant.json"
    ca_file.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    key = base64.urlsafe_b64encode(b"k" * 32).decode()
    keys.write_text(json.dumps({"keys": [{"id": "k1", "key": key}]}))
    return {"viewers_api_server": cluster["server"], "viewers_api_server_ca_file": str(ca_file)}


@contextlib.asynccontextmanager
async def started(kubeconfig: Path, folder: Path) -> AsyncIterator[tuple[World, Console]]:
    """Jobs of two tenants, and a console in front of them."""
    viewers = written(kubeconfig, folder)
    keys_file = f"{folder}/tenant.json"
    async with world(f"sqlite:///{folder}/jobs.db", keys_file, folder, **viewers) as here:
        url = f"http://127.0.0.1:{here.jobs[0].settings['port']}"
        with running_console(kubeconfig, folder, f"--jobs-url={url}") as console:
            yield here, console


async def read(url: str, token: str, query: str = "") -> tuple[int, str]:
    """The list as the jobs process gives it."""
    headers = {"Authorization": token} if token else {}
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{url}{BATCH_LIST_PATH}{query}", headers=headers) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.attack_class(2)
async def test_viewers_see_states_and_counts_of_the_tenants_that_they_may(
    api: Api, api_server: Path, namespace: str, tmp_path: Path
) -> None:
    every, own, none = (
        token_of(api, namespace, name, cluster_rules=rules) for name, rules in (("all", ALL), ("own", ONE), ("no", ()))
    )
    async with started(api_server, tmp_path) as (here, console), contextlib.AsyncExitStack() as stack:
        here.model.statuses = {f"{SECRET} 1": [400]}
        good = await create(here.client, jsonl(*(chat(n, f"{SECRET} {n}") for n in range(3))), metadata={"m": SECRET})
        bad = await create(here.client, jsonl(chat(1), {"custom_id": SECRET}) + b"no JSON\n")
        other = await create(here.clients["team-b"], jsonl(chat(1)))
        for client, batch in ((here.client, good), (here.client, bad), (here.clients["team-b"], other)):
            await ended(client, batch.id)

        client = await signed_in(stack, console, every)
        async with client.get("/batches") as answer:
            page = await answer.text()
        assert answer.status == 200 and all(one.id in page for one in (good, bad, other))
        assert "team-a" in page and "team-b" in page and "3 of 3" in page and "completed" in page
        assert SECRET not in page and "invalid_json" in page

        client = await signed_in(stack, console, own)
        async with client.get("/batches?tenant=team-a") as answer:
            page = await answer.text()
        assert answer.status == 200 and good.id in page and other.id not in page
        for query, sentence in (("", "may not list the batches of all tenants"), ("?tenant=team-b", "may not get")):
            async with client.get(f"/batches{query}") as answer:
                assert (answer.status, sentence in await answer.text()) == (403, True)
        client = await signed_in(stack, console, none)
        async with client.get("/batches?tenant=team-a") as answer:
            assert answer.status == 403
        for query in ("?tenant=a%20b", "?after=a%2Fb", f"?tenant={'x' * 254}"):
            async with client.get(f"/batches{query}") as answer:
                assert answer.status == 400
        await _in_a_browser(console, every, good.id)

        url = f"http://127.0.0.1:{here.jobs[0].settings['port']}"
        status, text = await read(url, f"Bearer {every}")
        assert status == 200 and SECRET not in text
        assert {row["tenant"] for row in json.loads(text)["batches"]} == {"team-a", "team-b"}
        for token in ("", "Bearer ", "Basic x", f"Bearer {'x' * 20_000}", "Bearer ey.wrong.token", every):
            assert (await read(url, token))[0] in (400, 401)
        assert (await read(url, f"Bearer {own}"))[0] == 403
        assert (await read(url, f"Bearer {own}", "?tenant="))[0] == 400
        # Gateways do not lead there.
        async with here.edge.client.get(here.edge.url + BATCH_LIST_PATH) as answer:
            assert answer.status in (401, 404)

        await here.jobs[0].end()
        client = await signed_in(stack, console, every)
        async with client.get("/batches") as answer:
            assert (answer.status, "jobs process cannot be reached" in await answer.text()) == (503, True)


async def _in_a_browser(console: Console, token: str, batch_id: str) -> None:
    async with chromium.browser() as browser:
        context = await browser.new_context(base_url=console.url, viewport={"width": 375, "height": 740})
        page = await context.new_page()
        await page.goto("/")
        await page.get_by_label("Token").fill(token)
        await page.keyboard.press("Enter")
        await page.get_by_role("link", name="Batches").click()
        await expect(page.get_by_role("rowheader", name=batch_id)).to_be_visible()
        await page.evaluate(chromium.axe())
        found = await page.evaluate("axe.run()")
        assert [one["id"] for one in found["violations"]] == []


async def test_a_console_without_jobs_has_no_such_page(console: Console, viewer: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        client = await signed_in(stack, console, viewer)
        async with client.get("/batches") as answer:
            text = await answer.text()
        assert answer.status == 404 and 'href="/batches"' not in text


def test_a_row_says_how_far_a_batch_is_and_when_it_ends() -> None:
    open_ = BatchRow("b", "", "job", "/v1/x", "in_progress", 1.0, 90.0, total=4, completed=1, failed=2)
    shown = read_batch(open_)
    assert (shown.owner, shown.done, shown.total, shown.status, shown.badge) == (
        "without a key",
        3,
        4,
        "in progress",
        "wait",
    )
    assert shown.ends and shown.ends.timestamp() == 90 and not shown.has_ended
    strange = read_batch(BatchRow("b", "t", "new", "/v1/x", "unheard", 1e300, -5.0, ended_at=1e300, errors={"c": 2}))
    assert (strange.created, strange.ends, strange.badge, strange.errors) == (None, None, "plain", "c: 2")
    assert BatchList([]).more is False
