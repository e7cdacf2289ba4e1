"""Sends exposures to Kafka by aiokafka, where that is installed. It runs on a loop of its own, in the log's thread."""

import asyncio
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from ...telemetry.rotated_file import UnwrittenLines

LIBRARY = "aiokafka"
TIMEOUT_S = 10.0


class _Unit(msgspec.Struct):
    unit: str


_LINE = msgspec.json.Decoder(_Unit)


class KafkaSink:
    """Takes lines of JSON; the key of a message is its unit. It connects with the first lines, and after a failure."""

    def __init__(self, servers: Sequence[str], topic: str) -> None:
        """
        Raises:
            ValueError: the library is not installed.
        """
        if find_spec(LIBRARY) is None:
            raise ValueError(f"--exposure-kafka-servers: the Python package {LIBRARY} is not installed")
        self._servers, self._topic = list(servers), topic
        self._runner = asyncio.Runner()
        self._producer: Any = None

    def write(self, lines: Sequence[bytes]) -> None:
        """
        Raises:
            UnwrittenLines: not all were acknowledged in time.
        """
        try:
            self._runner.run(self._send(lines))
        except Exception as error:  # the library has errors of its own, which are no OSErrors
            self._runner.run(self._stop())
            raise UnwrittenLines(len(lines), OSError(f"{type(error).__name__}: {error}"[:500])) from None

    def close(self) -> None:
        self._runner.run(self._stop())
        self._runner.close()

    async def _send(self, lines: Sequence[bytes]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            if self._producer is None:
                from aiokafka import AIOKafkaProducer

                # With idempotence a batch that the library repeats is stored once.
                self._producer = AIOKafkaProducer(bootstrap_servers=self._servers, enable_idempotence=True)
                await self._producer.start()
            sent = [
                await self._producer.send(self._topic, line.rstrip(b"\n"), key=_LINE.decode(line).unit.encode())
                for line in lines
            ]
            await asyncio.gather(*sent)

    async def _stop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await producer.stop()
            except Exception:  # the connection is gone anyway
                return
