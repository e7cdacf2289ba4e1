"""Hosts that an administrator listed for outgoing calls, except where their names resolve to reserved addresses; pure.

The host decides who may get contents; the address is checked because others may choose what a name resolves to.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from yarl import URL

from slipway_process.network.addresses import CLUSTER_PORTS, OWN_PORTS, Reach, canonical, matches, parse_hosts, reach_of
from slipway_process.network.urls import read_url

MAX_URL_CHARACTERS = 2048


@dataclass(frozen=True, slots=True)
class ListedHosts:
    """`patterns`: as `parse_hosts` returns them. `loopback`: calls to this machine are allowed; only tests set it."""

    patterns: tuple[str, ...] = ()
    loopback: bool = False

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """
        Raises:
            ValueError: a text is no host name or pattern; the message names it.
        """
        return cls(parse_hosts(texts))

    def names(self, host: str) -> bool:
        """Whether the administrator listed this host."""
        return any(matches(host, pattern) for pattern in self.patterns)

    def read(self, text: str) -> URL | None:
        """A URL of a listed host; None for any other text."""
        try:
            url = read_url(text, MAX_URL_CHARACTERS)
        except ValueError:
            return None
        return url if url.host and self.names(url.host) else None

    def may_connect(self, address: str, port: int) -> bool:
        """Whether an address that a listed host resolved to may be connected to."""
        try:
            found = canonical(address)
        except ValueError:
            return False
        if self.loopback and found.is_loopback:
            return True
        reach = reach_of(found)
        if reach in (Reach.FORBIDDEN, Reach.RESERVED) or port in CLUSTER_PORTS:
            return False
        return not (port in OWN_PORTS and reach is Reach.PRIVATE)
