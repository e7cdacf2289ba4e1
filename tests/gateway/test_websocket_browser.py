"""Chromium's WebSocket at `/v1/stream`: a page sends its key as a subprotocol, and is of an allowed origin."""

from typing import Any

import pytest
from aiohttp import web

from tests.console import chromium

from .harness import gateway, upstream
from .tenants import PEPPER, make_key, tenant
from .token_streams import GENERATE, generating, stream_requests

pytestmark = pytest.mark.integration

KEY = make_key("aaaaaa")
# Two requests at a time; what a page gets of both, or how its connection ended.
SCRIPT = """
([url, key, request]) => new Promise(resolve => {
  const socket = new WebSocket(url, ["slipway.v1", `bearer.${key}`]), texts = {}, ended = [];
  socket.onopen = () => ["a", "b"].forEach(id => socket.send(JSON.stringify({...request, id})));
  socket.onmessage = ({data}) => {
    const event = JSON.parse(data);
    if (event.type === "token") texts[event.id] = (texts[event.id] || "") + event.token;
    else if (ended.push(event.type) === 2) { socket.close(1000); resolve([socket.protocol, texts, ended]); }
  };
  socket.onclose = ({code}) => resolve(["closed", code, ended]);
})
"""


async def test_a_page_streams_with_its_key_and_a_page_of_another_origin_does_not() -> None:
    async def page_of(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<p>a page</p>", content_type="text/html")

    async with (
        upstream(generating("In", " the", " \u00e9")) as server,
        upstream(page_of) as allowed,
        upstream(page_of) as other,
        gateway([tenant("team-a", KEY)], PEPPER, allowed_origins=(allowed.url,)) as gate,
        chromium.browser() as browser,
    ):
        gate.route(("v1", 100, [server.url]))
        found: dict[str, Any] = {}
        for site in (allowed, other):
            page = await browser.new_page()
            await page.goto(site.url)
            url = f"ws{gate.url.removeprefix('http')}/v1/stream"
            found[site.url] = await page.evaluate(SCRIPT, [url, KEY, GENERATE])
        text = "In the \u00e9"
        assert found[allowed.url] == ["slipway.v1", {"a": text, "b": text}, ["done", "done"]]
        assert found[other.url] == ["closed", 1006, []]
        assert stream_requests(gate) == {"ok": 2, "forbidden": 1}
