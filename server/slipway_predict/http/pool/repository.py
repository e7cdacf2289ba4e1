"""Load and unload on command, as the repository extension of the Open Inference Protocol has them."""

import re
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from slipway_process.serving.bodies import body_of, json_response
from slipway_process.serving.errors import HttpError, invalid

from .. import json_body
from .models import PooledModels, answered

MODEL = r"/v2/repository/models/{name:.+}"
UNLOAD_DEPENDENTS = "unload_dependents"


class LoadParameters(Struct, forbid_unknown_fields=True):
    """There are none: models and their settings are in the pool's file."""


class UnloadParameters(Struct, forbid_unknown_fields=True):
    """No model depends on another one: both values mean the same."""

    unload_dependents: bool | None = None


class LoadRequest(Struct, forbid_unknown_fields=True):
    """Clients send no body, or parameters."""

    parameters: LoadParameters | None = None


class UnloadRequest(Struct, forbid_unknown_fields=True):
    parameters: UnloadParameters | None = None


_LOAD, _UNLOAD = msgspec.json.Decoder(LoadRequest), msgspec.json.Decoder(UnloadRequest)
_UNKNOWN = re.compile(r"unknown field `(.{1,64})[^`]*` - at `\$\.parameters`", re.DOTALL)


class ModelRepository:
    def __init__(self, models: PooledModels) -> None:
        self._models = models

    def routes(self) -> list[web.RouteDef]:
        return [web.post(f"{MODEL}/load", self.load), web.post(f"{MODEL}/unload", self.unload)]

    async def load(self, http: web.Request) -> web.Response:
        """Load the default version, or the one in the path; load it again if its files have changed."""
        _check(await body_of(http), _LOAD)
        with answered():
            await self._models.pool.load(self._models.find(http.match_info["name"]))
        return json_response({})

    async def unload(self, http: web.Request) -> web.Response:
        """Unload all versions."""
        _check(await body_of(http), _UNLOAD)
        with answered():
            pool = self._models.pool
            await pool.unload(pool.versions(http.match_info["name"]))
        return json_response({})


def _check(body: bytes, decoder: "msgspec.json.Decoder[Any]") -> None:
    try:
        if body.strip():
            json_body.read(body, decoder)
    except HttpError as error:
        if found := _UNKNOWN.search(str(error)):
            message = f"parameters: {found[1]!r} is not supported: models and their settings are in the pool's file."
            raise invalid(message, found[1], "unsupported_parameter") from None
        if UNLOAD_DEPENDENTS in str(error):
            raise invalid(f"{UNLOAD_DEPENDENTS} must be true or false.", UNLOAD_DEPENDENTS) from None
        raise invalid(f"The body is no request of the repository extension: {error}") from None
