"""The processes that decode: a crash, a hang or a client that leaves is the end of one image and not of the next."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from slipway_predict.process.image_decoders import DecoderRules, ImageDecoders
from slipway_predict.process.workers import WorkerUnavailable, WorkRefused
from testkit import pictures
from tests.predict.images.conftest import DIGITS

pytestmark = pytest.mark.integration

IMAGE = pictures.encoded(pictures.digit(3))


@asynccontextmanager
async def decoders(most: int = 1, config: str = "preprocessor_config.json") -> AsyncIterator[ImageDecoders]:
    found = ImageDecoders(DecoderRules(str(DIGITS / config), most, 1 << 20, "error"))
    try:
        yield found
    finally:
        await found.close()


def pid(found: ImageDecoders) -> int:
    [process] = found._idle
    assert process._process
    return process._process.pid


async def test_a_process_that_ended_is_replaced() -> None:
    async with decoders() as found:
        await found.warm_up()
        first = await found.decode(IMAGE)
        before = pid(found)
        os.kill(before, signal.SIGKILL)
        await found._idle[0].ended()
        assert (await found.decode(IMAGE) == first).all() and pid(found) != before


async def test_an_image_that_takes_too_long_is_refused_and_the_next_one_is_not() -> None:
    async with decoders() as found:
        usual, found.rules = found.rules, replace(found.rules, timeout_s=0.2)
        await found.warm_up()
        os.kill(pid(found), signal.SIGSTOP)
        with pytest.raises(WorkRefused, match="took more than"):
            await found.decode(IMAGE)
        found.rules = usual
        assert (await found.decode(IMAGE)).shape == (3, 8, 8)


async def test_a_client_that_leaves_does_not_disturb_the_next_one() -> None:
    async with decoders() as found:
        await found.warm_up()
        process = pid(found)
        os.kill(process, signal.SIGSTOP)
        leaving = asyncio.create_task(found.decode(IMAGE))
        waiting = asyncio.create_task(found.decode(pictures.encoded(pictures.noise(9, 9))))
        await asyncio.sleep(0)  # the first one is on its way, and the second waits for the process
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        os.kill(process, signal.SIGCONT)
        assert (await waiting).shape == (3, 8, 8)
        assert leaving.cancelled() and pid(found) == process


async def test_hostile_images_side_by_side_end_no_process() -> None:
    async with decoders(most=2) as found:
        for _ in range(2):
            contents = [content for content, _ in pictures.hostile().values()]
            answers = await asyncio.gather(*map(found.decode, [*contents, IMAGE]), return_exceptions=True)
            assert all(isinstance(answer, WorkRefused) for answer in answers[:-1])
            assert not isinstance(answers[-1], BaseException)
        assert len(found._idle) == 2


async def test_without_its_configuration_no_process_starts() -> None:
    async with decoders(config="missing/preprocessor_config.json") as found:
        with pytest.raises(WorkerUnavailable, match="is gone"):
            await found.decode(IMAGE)
