"""The server of a language model: its routes, and what it runs on."""

import asyncio

import msgspec
from aiohttp import web

from slipway_process.serving.metrics import count_restarts
from slipway_process.serving.server import Guard, complete_routes, run_server, shared_routes
from slipway_process.supervisor import OnFailure, Supervisor

from ..engine.client import EngineClient
from ..settings import ServerSettings
from .adapters import AdapterCommands
from .adapters import commands as adapter_commands
from .debug import profiles
from .load_report import report_load
from .openai import OpenAI
from .openapi import document
from .response_api.api import Responses
from .responses.replay import ReplayLimits, ReplayStore
from .service import ModelService
from .slipway import Slipway
from .tokenization import Tokenization


def build(service: ModelService, replays: ReplayStore, max_body_bytes: int) -> tuple[web.Application, Guard]:
    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=document(), content_type="application/json")

    guard = Guard(service)
    app = web.Application(middlewares=[guard.handle], client_max_size=max_body_bytes)
    apis = (OpenAI(service, replays), Responses(service, replays), Slipway(service, replays), Tokenization(service))
    routes = [*shared_routes(service), web.get("/openapi.json", openapi)]
    app.add_routes(complete_routes([*routes, *(route for api in apis for route in api.routes())]))
    return app, guard


async def serve(
    settings: ServerSettings, service: ModelService, engine: EngineClient, engine_life: asyncio.Task[None]
) -> None:
    """Serve until SIGTERM and the end of the drain; raise EngineError when the engine ends first."""
    limits = ReplayLimits(settings.replay_window_s, settings.max_replay_bytes, settings.max_replay_streams)
    replays = ReplayStore(limits, service.metrics)
    app, guard = build(service, replays, settings.max_body_bytes)
    report_load(app, engine)
    loop = asyncio.get_running_loop()
    tasks = Supervisor(count_restarts(service.metrics.registry))
    tasks.start("warm-up", service.reader.warm_up, OnFailure.SHOW, ends=True)
    debug = profiles(engine, loop) if settings.enable_debug else None
    commands = None
    if settings.max_loras:
        models = OpenAI(service, replays).listing
        commands = adapter_commands(
            AdapterCommands(engine, service.metrics), lambda: msgspec.json.encode(models()), loop
        )
    try:
        await run_server(
            settings, app, guard, engine, engine_life, tasks, debug=debug, commands=commands, on_drain=replays.close
        )
    finally:
        await service.reader.close()
