"""Load and unload on command, as the repository extension of the Open Inference Protocol has them."""

from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from ..errors import invalid
from ..requests.bodies import body_of
from ..responses.sse import json_response
from .models import PooledModels, answered

MODEL = r"/v2/repository/models/{name:.+}"
UNLOAD_DEPENDENTS = "unload_dependents"


class RepositoryRequest(Struct, forbid_unknown_fields=True):
    """Clients send no body, or parameters."""

    parameters: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(RepositoryRequest)


class ModelRepository:
    def __init__(self, models: PooledModels) -> None:
        self._models = models

    def routes(self) -> list[web.RouteDef]:
        return [web.post(f"{MODEL}/load", self.load), web.post(f"{MODEL}/unload", self.unload)]

    async def load(self, http: web.Request) -> web.Response:
        """Load the default version, or the one in the path; load it again if its files have changed."""
        _check(await _parameters(http), ())
        with answered():
            await self._models.pool.load(self._models.find(http.match_info["name"]))
        return json_response({})

    async def unload(self, http: web.Request) -> web.Response:
        """Unload all versions. No model depends on another one: both values of `unload_dependents` mean the same."""
        parameters = await _parameters(http)
        _check(parameters, (UNLOAD_DEPENDENTS,))
        if not isinstance(parameters.get(UNLOAD_DEPENDENTS, False), bool):
            raise invalid(f"{UNLOAD_DEPENDENTS} must be true or false.", UNLOAD_DEPENDENTS)
        with answered():
            pool = self._models.pool
            await pool.unload(pool.versions(http.match_info["name"]))
        return json_response({})


async def _parameters(http: web.Request) -> dict[str, Any]:
    body = await body_of(http)
    if not body.strip():
        return {}
    try:
        return _decoder.decode(body).parameters or {}
    except RecursionError:
        raise invalid("The body is nested too deeply.") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise invalid(f"The body is no request of the repository extension: {error}.") from None


def _check(parameters: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in parameters:
        if name not in known:
            raise invalid(
                f"parameters: {name[:64]!r} is not supported: models and their settings are in the pool's file.",
                name[:64],
                "unsupported_parameter",
            )
