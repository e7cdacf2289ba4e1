"""The load of this server in a header of responses, for clients that ask for it: `slipway_contracts.load_report`."""

from aiohttp import web

from slipway_contracts.load_report import (
    ADAPTERS,
    ADAPTERS_VERSION,
    CACHE_USAGE,
    LOAD,
    LOAD_FORMAT,
    TEXT,
    WAITING_REQUESTS,
    WAITING_TOKENS,
    written,
)

from ..engine.client import EngineClient


def report_load(app: web.Application, engine: EngineClient) -> None:
    """Adds the header to responses whose request has LOAD_FORMAT: TEXT."""

    async def add(request: web.Request, response: web.StreamResponse) -> None:
        if request.headers.get(LOAD_FORMAT, "").upper() == TEXT:
            requests, tokens = engine.waiting
            load = {CACHE_USAGE: engine.kv_usage, WAITING_REQUESTS: requests, WAITING_TOKENS: tokens}
            if engine.adapters.entries:
                load |= {ADAPTERS: len(engine.adapters.loaded), ADAPTERS_VERSION: engine.adapters.version}
            response.headers[LOAD] = written(load)

    app.on_response_prepare.append(add)
