"""Loads and unloads adapters on command, as vLLM's endpoints do: on the probe port, which no client reaches.

`POST /v1/load_lora_adapter` `{lora_name, lora_path}`, `POST /v1/unload_lora_adapter` `{lora_name}`, `GET /v1/models`.
https://docs.vllm.ai/en/latest/features/lora.html#dynamically-serving-lora-adapters
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from threading import BoundedSemaphore
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from slipway_process.serving.errors import HttpError
from slipway_process.serving.probes import GET_, Commands
from slipway_process.serving.restarts import EngineError

from ..engine.adapters.catalog import CatalogEntry, UnknownAdapter
from ..engine.client import EngineClient
from ..metrics import ServerMetrics
from ..models.adapters.errors import AdapterError

log = logging.getLogger("slipway.adapters")

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
MODELS = "/v1/models"  # for who loads adapters: clients' port may need keys and certificates
MAX_COMMANDS = 8  # at a time: each has a thread of the probe port
WAIT_S = 600.0  # after it the command goes on, and only its response does not wait for it

AdapterName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}\Z")]
AdapterPath = Annotated[str, Meta(min_length=1, max_length=4096)]


class LoadRequest(Struct, forbid_unknown_fields=True):
    """`load_inplace`: vLLM's; an adapter is never replaced under its name here."""

    lora_name: AdapterName
    lora_path: AdapterPath
    load_inplace: bool = False


class UnloadRequest(Struct, forbid_unknown_fields=True):
    """`lora_int_id`: vLLM's, without effect."""

    lora_name: AdapterName
    lora_int_id: int | None = None


class AdapterCommands:
    def __init__(self, engine: EngineClient, metrics: ServerMetrics) -> None:
        self._engine, self._catalog, self._metrics = engine, engine.adapters, metrics
        engine.on_adapter_load = metrics.adapter_loaded

    async def load(self, body: bytes) -> str:
        """Loads an adapter and returns a sentence. Raises HttpError."""
        request = _decoded(body, LoadRequest)
        if request.load_inplace:
            raise HttpError(400, "load_inplace is not supported: unload the adapter first.", param="load_inplace")
        name, path = request.lora_name, request.lora_path
        try:
            with self._catalog.loading(name):
                loaded = await self._engine.load_adapter(path)
                entry = CatalogEntry(name, path, loaded.digest, loaded.rank, loaded.size_bytes)
                self._catalog.add(entry)
                self._engine.keep_adapter(entry)
        except AdapterError as error:
            raise HttpError(400, str(error), param=error.field, code="invalid_adapter") from None
        except EngineError as error:
            raise HttpError(503, str(error), code="engine_unavailable", outcome="error") from None
        about = {"adapter": name, "digest": loaded.digest, "rank": loaded.rank, "bytes": loaded.size_bytes}
        log.info("an adapter was loaded", extra=about | {"seconds": round(loaded.seconds, 3)})
        return f"Success: LoRA adapter '{name}' added successfully."

    async def unload(self, body: bytes) -> str:
        """Unloads an adapter when its last request has ended, and returns a sentence. Raises HttpError."""
        name = _decoded(body, UnloadRequest).lora_name
        try:
            if digest := await self._catalog.remove(name):
                await self._engine.unload_adapter(digest)
        except UnknownAdapter:
            message = f"The lora adapter '{name}' cannot be found."
            raise HttpError(404, message, param="lora_name", code="adapter_not_found") from None
        self._metrics.adapter_unloaded(name)
        log.info("an adapter was unloaded", extra={"adapter": name})
        return f"Success: LoRA adapter '{name}' removed successfully."


def _decoded(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        fields = (name for name in kind.__struct_fields__ if name in str(error))
        raise HttpError(400, f"The body is wrong: {str(error)[:512]}.", param=next(fields, None)) from None


def commands(adapters: AdapterCommands, listing: Callable[[], bytes], loop: asyncio.AbstractEventLoop) -> Commands:
    """Functions for the threads of the probe port, by path: each answers a body with status and body, and blocks.

    `listing`: the list of models.
    """
    places = BoundedSemaphore(MAX_COMMANDS)

    def answering(command: Callable[[bytes], Coroutine[Any, Any, str]]) -> Callable[[bytes], tuple[int, bytes]]:
        async def completed(body: bytes) -> tuple[int, bytes]:
            try:
                return 200, (await command(body)).encode()
            except HttpError as error:
                return error.status, error.encode()
            except Exception:
                log.exception("a command failed")
                return 500, HttpError(500, "The server failed on this command.", code="internal_error").encode()

        def answer(body: bytes) -> tuple[int, bytes]:
            if not places.acquire(blocking=False):
                return 429, HttpError(429, f"{MAX_COMMANDS} commands are running.", code="too_many_commands").encode()
            result: Future[tuple[int, bytes]] = asyncio.run_coroutine_threadsafe(completed(body), loop)
            result.add_done_callback(lambda _: places.release())
            try:
                return result.result(WAIT_S)
            except TimeoutError:
                return 503, HttpError(503, "The command goes on.", code="not_done").encode()

        return answer

    def listed(_: bytes) -> tuple[int, bytes]:
        return 200, listing()

    return {LOAD: answering(adapters.load), UNLOAD: answering(adapters.unload), GET_ + MODELS: listed}
