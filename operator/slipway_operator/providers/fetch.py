"""One request to a provider: bounded in time and size, to no address that is this machine's own."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import urlsplit

import aiohttp

from slipway_operator.hooks.post import Blocked, connector
from slipway_operator.providers.answers import Unanswered

BODY_LIMIT_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent."""

    method: str
    url: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    timeout_s: float = 10.0
    insecure: bool = False


class Fetcher:
    """The HTTP client of the providers. Use it as an async context manager."""

    def __init__(self, allow_local: bool) -> None:
        self._session = aiohttp.ClientSession(
            connector=connector(allow_local, "analyses"),
            # Each request brings its own limit; aiohttp's would cut a long one short.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            # A small body that unpacks into a huge one is not taken.
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def __aenter__(self) -> "Fetcher":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def fetch(self, request: Request) -> tuple[int, bytes]:
        """Status and body.

        Raises:
            Unanswered: when there is none within time and size.
        """
        if not request.url.startswith(("http://", "https://")):
            raise Unanswered("the URL must start with http:// or https://")
        try:
            async with asyncio.timeout(request.timeout_s):
                return await self._fetch(request)
        except TimeoutError as error:
            raise Unanswered(f"no answer within {request.timeout_s:g} s") from error
        except aiohttp.InvalidURL as error:
            raise Unanswered("the URL is not valid") from error
        except aiohttp.ClientConnectorError as error:
            blocked = isinstance(error.os_error, Blocked)
            said = str(error.os_error) or type(error.os_error).__name__
            raise Unanswered(
                said if blocked else f"{urlsplit(request.url).netloc.rpartition('@')[2]} cannot be reached: {said}"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(f"{type(error).__name__}: {error}") from error
        except ValueError as error:
            # aiohttp says so of a header with a line break; what it says could hold the header.
            raise Unanswered(
                "the request cannot be sent: a header or the URL holds a character that it must not"
            ) from error

    async def _fetch(self, request: Request) -> tuple[int, bytes]:
        # A redirect would carry the headers to an address that nobody wrote down.
        async with self._session.request(
            request.method,
            request.url,
            params=request.query or None,
            headers={"Accept-Encoding": "identity", "User-Agent": "slipway-operator", **request.headers},
            data=request.body.encode() or None,
            allow_redirects=False,
            ssl=not request.insecure,
        ) as response:
            if 300 <= response.status < 400:
                raise Unanswered(f"{response.status}: redirects are not followed; write the final URL")
            body = b""
            while chunk := await response.content.read(BODY_LIMIT_BYTES + 1 - len(body)):
                body += chunk
                if len(body) > BODY_LIMIT_BYTES:
                    raise Unanswered(f"the answer is longer than {BODY_LIMIT_BYTES // 1024} KiB")
            return response.status, body
