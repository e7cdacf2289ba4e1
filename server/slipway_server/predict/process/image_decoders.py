"""Processes that decode images for a model: isolated as the model's own, one image at a time in each."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...engine.client import EngineCrashed, EngineError, ModelRefused
from ..formats import IMAGES
from ..images.question import PIXELS, question
from ..tensors import Array
from .client import BatchFailed, ModelProcess
from .messages import LoadModel

log = logging.getLogger("slipway.predict")

MAX_DECODERS = 4
IMAGE_S = 10.0  # for one image; a process that takes longer is ended
ATTEMPTS = 2  # a process may also end for another reason than its image
# Of a process: the interpreter with its libraries, and what Pillow and numpy keep of each pixel while they convert it.
BASE_BYTES, PIXEL_BYTES = 256 << 20, 16


class ImageRefused(Exception):
    """Why an image was not decoded. The text continues a sentence that begins with "the image"."""


class DecoderUnavailable(Exception):
    """No process that decodes could be started."""


@dataclass(frozen=True, slots=True)
class DecoderRules:
    """`config`: path of the model's preprocessor_config.json. `most`: number of processes."""

    config: str
    most: int
    max_pixels: int
    log_level: str = "info"


class ImageDecoders:
    """At most `rules.most` processes, each started when it is first needed."""

    def __init__(self, rules: DecoderRules, decoded: Callable[[float], None] = lambda seconds: None) -> None:
        """`decoded` gets the seconds of each image."""
        self._rules, self._decoded = rules, decoded
        self._free = asyncio.Semaphore(rules.most)
        self._idle: list[ModelProcess] = []
        self._here: set[ModelProcess] = set()  # idle or not
        self._tasks: set[asyncio.Task[Array]] = set()

    @property
    def most(self) -> int:
        return self._rules.most

    @property
    def max_pixels(self) -> int:
        return self._rules.max_pixels

    def peak_bytes(self) -> int:
        """The sum of the most memory that each process has had."""
        return sum(process.peak_bytes() for process in self._here)

    async def warm_up(self) -> None:
        """Start the first process, so that the first image does not wait for it."""
        async with self._free:
            with contextlib.suppress(DecoderUnavailable):
                self._idle.append(await self._started())

    async def decode(self, image: bytes) -> Array:
        """The tensor of one image; channels, height, width. A client that leaves does not end the process.

        Raises:
            ImageRefused: the content is no image, is too large, or ended the process.
            DecoderUnavailable: no process could be started.
        """
        await self._free.acquire()
        task = asyncio.create_task(self._in_a_process(image))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for process in self._idle:
            await process.kill()
        self._idle.clear()

    def _done(self, task: "asyncio.Task[Array]") -> None:
        self._free.release()
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where the client left

    async def _in_a_process(self, image: bytes) -> Array:
        for attempt in range(1, ATTEMPTS + 1):
            process = self._idle.pop() if self._idle else await self._started()
            began = time.monotonic()
            try:
                [found], _ = await process.compute(question(image, self._rules.max_pixels), [PIXELS])
            except BatchFailed as error:
                self._idle.append(process)
                raise ImageRefused(str(error)) from None
            except EngineCrashed as error:
                self._here.discard(process)
                took_s = time.monotonic() - began
                log.warning("a process that decodes images ended: %s", error, extra={"attempt": attempt})
                if took_s >= IMAGE_S:
                    raise ImageRefused(f"took more than {IMAGE_S:g} s to decode") from None
                continue
            except BaseException:  # cancelled in the middle of an exchange
                self._here.discard(process)
                await process.kill()
                raise
            self._idle.append(process)
            self._decoded(time.monotonic() - began)
            return found.array
        raise ImageRefused("ended each process that decoded it")

    async def _started(self) -> ModelProcess:
        rules, process = self._rules, ModelProcess(IMAGE_S)
        memory_bytes = BASE_BYTES + PIXEL_BYTES * rules.max_pixels
        try:
            await process.start(LoadModel(rules.config, IMAGES, 1, memory_bytes, 1, rules.log_level))
        except (EngineError, ModelRefused, OSError) as error:
            log.warning("no process that decodes images: %s", error)
            raise DecoderUnavailable(str(error)) from None
        self._here.add(process)
        return process
