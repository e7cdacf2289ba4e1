"""Looks up names of servers of users in threads of their own, so that a slow name keeps nothing else waiting."""

import asyncio
import functools
import socket
from concurrent.futures import ThreadPoolExecutor

from aiohttp.abc import AbstractResolver, ResolveResult

# A running lookup cannot be cancelled; one for which nothing waits any more ends by the system resolver's time limits.
_THREADS = 2


class HostResolver(AbstractResolver):
    """Resolves names with the system's resolver, without a cache."""

    def __init__(self, name: str) -> None:
        """`name`: of its threads."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=name)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """
        Raises:
            OSError: there is no such name, or no answer.
        """
        lookup = functools.partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, lookup)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Cancels lookups that have not begun, and does not wait for those that run."""
        self._threads.shutdown(wait=False, cancel_futures=True)
