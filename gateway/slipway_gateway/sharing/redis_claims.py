"""What any gateway counted, at a Redis or Valkey server, each once: tokens of feedback, and units of experiments."""

import asyncio
import logging
from collections.abc import Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError

from .counters import CountersAway
from .redis_client import drop_connections, open_client

log = logging.getLogger(__name__)

RETRY_EACH_S = 1.0
_CONNECTIONS = 2
_FAILURES = (RedisError, OSError, TimeoutError)


class RedisClaims:
    """`prefix`: of the keys at the server. After a failure the server is not called for a second."""

    def __init__(self, url: str, prefix: str, timeout_s: float, what: str = "feedback") -> None:
        """`what`: is claimed.

        Raises:
            ValueError: the URL is none of a Redis server.
        """
        self._client: Redis = open_client(url, _CONNECTIONS, timeout_s)
        self._prefix, self._what, self._timeout_s = f"{prefix}:{what}:".encode(), what, timeout_s
        self._retry_at_s = float("-inf")

    async def claim(self, ids: Sequence[bytes], seconds: float) -> list[bool]:
        """Claims ids for `seconds`; returns for each whether it was new.

        Raises:
            CountersAway: it is not known which are new; some may be claimed by now.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._retry_at_s:
            raise CountersAway
        try:
            async with asyncio.timeout(2 * self._timeout_s), self._client.pipeline(transaction=False) as calls:
                for id_ in ids:
                    calls.set(self._prefix + id_.hex().encode(), b"", nx=True, ex=max(1, int(seconds)))
                return [bool(answer) for answer in await calls.execute()]
        except _FAILURES as error:
            log.warning("%s counts once at each gateway for now: %s", self._what, type(error).__name__)
            self._retry_at_s = now_s + RETRY_EACH_S
            await drop_connections(self._client)
            raise CountersAway from error

    async def close(self) -> None:
        await drop_connections(self._client)
