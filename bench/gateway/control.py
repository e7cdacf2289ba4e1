"""Work for the gateway's control side: a big routes file that changes all the time, as a busy cluster's tables do."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

from bench.gateway.peers import routes
from devcluster.places import write_whole

MODELS = 100  # beside the one that requests name; 0.2 to 0.4 s to parse
_EVERY_S = 0.25  # the gateway looks every 0.5 s
_SETTLE_S = 2.0  # until it has parsed the last one
_LOADED = "routes file loaded"


def table(upstream: str, generation: int, models: int = MODELS) -> str:
    """A routes file: the model of the requests, and `models` others whose weights differ in each `generation`."""
    first = 10 + generation % 80

    def backends(number: int) -> list[object]:
        return [
            {"revision": f"r{revision}", "weight": weight,
             "endpoints": [f"http://10.{revision}.{number % 250}.{pod}:8000" for pod in range(1, 5)]}
            for revision, weight in enumerate((first, 100 - first))
        ]  # fmt: skip

    others = {f"model-{number}": {"backends": backends(number)} for number in range(models)}
    return json.dumps({"models": routes(upstream) | others})


def tables_loaded(log: Path) -> int:
    """How many tables a gateway has parsed and published, by its log."""
    return log.read_text(errors="replace").count(_LOADED)


@contextlib.asynccontextmanager
async def changing(file: Path, upstream: str, *, busy: bool) -> AsyncIterator[None]:
    """While the block runs, the routes file is replaced every `_EVERY_S`; not `busy`: it stays as it is.

    Afterwards the control side is idle.
    """

    async def replace() -> None:
        # Made before: the generator shares its core with the requests' clients.
        texts = [table(upstream, generation) for generation in range(8)]
        for number in range(1 << 30):
            write_whole(file, texts[number % len(texts)])
            await asyncio.sleep(_EVERY_S)

    task = asyncio.create_task(replace()) if busy else None
    try:
        yield
    finally:
        if task:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await asyncio.sleep(_SETTLE_S)
