"""Sends exposures to an HTTP server, in the thread of their log: one POST for each batch, repeated where that may help.

A batch that was repeated may arrive twice. Each exposure has an id, by which the server drops the second one.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
from yarl import URL

from slipway_process.network.guarded import guard_listed
from slipway_process.network.listed_hosts import ListedHosts

from ...telemetry.rotated_file import UnwrittenLines

CONTENT_TYPE = "application/x-ndjson"
TIMEOUT_S = 5.0
PAUSES_S = (0.0, 0.5, 2.0)  # before each call of a batch
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpSink:
    """Takes lines of JSON. The address is checked with each call: names may resolve to others by then."""

    def __init__(
        self, url: str, hosts: ListedHosts, token_file: str = "", sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """
        Raises:
            ValueError: the host of the URL is not listed.
        """
        target = hosts.read(url)
        if target is None:
            raise ValueError("--exposure-url: it must be an http or https URL whose host is one of --exposure-hosts")
        self._url: URL = target
        self._hosts, self._token_file, self._sleep = hosts, token_file, sleep

    def write(self, lines: Sequence[bytes]) -> None:
        """
        Raises:
            UnwrittenLines: the server did not take them.
        """
        body, why = b"".join(lines), ""
        for pause_s in PAUSES_S:
            self._sleep(pause_s)
            try:
                why, may_repeat = asyncio.run(self._call(body, self._token()))
            except (OSError, UnicodeDecodeError) as error:
                why, may_repeat = f"--exposure-token-file cannot be read: {error}", True
            if not why:
                return
            if not may_repeat:
                break
        raise UnwrittenLines(len(lines), OSError(why))

    def close(self) -> None:
        """Does nothing: each call has a connection of its own."""

    def _token(self) -> str:
        """Raises OSError, UnicodeDecodeError."""
        return Path(self._token_file).read_text().strip() if self._token_file else ""

    async def _call(self, body: bytes, token: str) -> tuple[str, bool]:
        """Why the server did not take a batch, empty where it did; and whether another call may help."""
        guard = guard_listed(self._hosts)
        headers = {"Content-Type": CONTENT_TYPE, "User-Agent": "slipway-gateway"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        # A redirect would carry exposures to a host that no administrator listed.
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                guard.session(aiohttp.ThreadedResolver()) as session,
                session.post(self._url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                if response.status < 300:
                    return "", False
                return f"the server answered with status {response.status}", response.status in _AGAIN
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            return str(guard.refusal or error or type(error).__name__), not guard.refusal
