"""Entries at a Redis or Valkey server, which gateways share. One that is away has none: requests are computed."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from redis.exceptions import RedisError

from ..sharing.redis_client import drop_connections, open_client
from .entry import Entry
from .store import Kept, KeptKeys

log = logging.getLogger(__name__)

RETRY_EACH_S = 1.0
_CONNECTIONS = 8
_FAILURES = (RedisError, OSError, TimeoutError)
_Command = tuple[bytes | str | int, ...]
_DECODER = msgspec.msgpack.Decoder(Entry)
_ENCODE = msgspec.msgpack.Encoder().encode


class RedisStore:
    """`prefix`: of the keys at the server. After a failure the server is not called for a second.

    Of what this gateway wrote, it deletes what is beyond `limit_bytes`, by the shares of owners. So all gateways
    together keep that many bytes each.
    """

    def __init__(
        self,
        url: str,
        prefix: str,
        timeout_s: float,
        limit_bytes: int,
        clock: Callable[[], float],
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Raises:
            ValueError: the URL is none of a Redis server.
        """
        self._client: Any = open_client(url, _CONNECTIONS, timeout_s)
        self._prefix, self._timeout_s = prefix.encode() + b":response:", timeout_s
        self._clock, self._on_failure = clock, on_failure
        self._keys = KeptKeys(limit_bytes)
        self._retry_at_s = float("-inf")

    @property
    def size_bytes(self) -> int:
        return self._keys.size_bytes

    async def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        answers = await self._call([("MGET", *map(self._name, keys))])
        if answers is None:
            return [None] * len(keys)
        for key in keys:
            self._keys.use(key, self._clock())
        return [_read(answer) for answer in answers[0]]

    async def put(self, entries: Mapping[bytes, Entry], owner: str, ttl_s: float) -> None:
        calls: list[_Command] = []
        for key, entry in entries.items():
            gone = self._keys.put(key, Kept(owner, entry.size_bytes, self._clock() + ttl_s))
            if gone is not None:
                calls.append(("SET", self._name(key), _ENCODE(entry), "PX", max(1, int(ttl_s * 1000))))
                calls += [("UNLINK", *map(self._name, gone))] if gone else []
        if calls:
            await self._call(calls)

    async def close(self) -> None:
        await drop_connections(self._client)

    def _name(self, key: bytes) -> bytes:
        return self._prefix + key.hex().encode()

    async def _call(self, commands: Sequence[_Command]) -> list[Any] | None:
        """The server's answers; None where it gave none."""
        now_s = self._clock()
        if now_s < self._retry_at_s:
            return None
        try:
            async with asyncio.timeout(2 * self._timeout_s), self._client.pipeline(transaction=False) as calls:
                for command in commands:
                    calls.execute_command(*command)
                answers: list[Any] = await calls.execute()
                return answers
        except _FAILURES as error:
            log.warning("the cache of responses is away, requests are computed: %s", type(error).__name__)
            self._retry_at_s = now_s + RETRY_EACH_S
            self._on_failure()
            await drop_connections(self._client)
            return None


def _read(answer: bytes | None) -> Entry | None:
    """An entry; None for what is no entry, as of a later release."""
    if answer is None:
        return None
    try:
        return _DECODER.decode(answer)
    except msgspec.MsgspecError:
        return None
