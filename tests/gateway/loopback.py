"""A resolver by which every name is this machine, or what a test wants it to be."""

import socket
from collections.abc import Sequence

from aiohttp.abc import AbstractResolver, ResolveResult


class Loopback(AbstractResolver):
    """`answers` are used in turn; the last one repeats."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers) or [("127.0.0.1",)]
        self.lookups = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.lookups += 1
        addresses = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing to close."""
