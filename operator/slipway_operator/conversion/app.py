"""The route of the conversion webhook, within bounds of bytes, time and number; each request ends in one count."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from slipway_operator.conversion import review
from slipway_process.places import Places
from slipway_process.serving.bodies import body_of
from slipway_process.serving.errors import HttpError

PATH = "/convert"
MAX_BYTES = 16 << 20  # of a review: a page of `kubectl get` is 500 objects
# Bytes of bodies at a time. An address, such as that of an API server, may hold as many as are free.
MOST_BYTES = 48 << 20
REQUEST_S = 25.0  # the API server waits for 30

Counted = Callable[[int], None]

log = logging.getLogger(__name__)


class ConversionRoutes:
    """`counted` gets the status of each response.

    Callers need no identity: the answer is made of the request alone, and shows nothing that they do not have.
    """

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self._bytes = Places(MOST_BYTES)
        self._turn = asyncio.Lock()  # one review is decoded at a time

    def application(self) -> web.Application:
        """Return the application."""
        application = web.Application(client_max_size=MAX_BYTES)
        application.router.add_post(PATH, self._handle)
        application.router.add_route("*", "/{path:.*}", self._nothing_here)
        return application

    async def _handle(self, request: web.Request) -> web.Response:
        response = await self._response(request)
        self._counted(response.status)
        return response

    async def _nothing_here(self, request: web.Request) -> web.Response:
        self._counted(404)
        return _refused(404, f"there is no {request.method[:16]} {request.path[:128]} here, but POST {PATH}")

    async def _response(self, request: web.Request) -> web.Response:
        size = request.content_length
        if size is None:
            return _refused(411, "the request needs a Content-Length")
        if size > MAX_BYTES:
            return _refused(413, f"the review has more than {MAX_BYTES} bytes: list fewer objects in a page")
        try:
            async with self._room(f"address {request.remote}", size), asyncio.timeout(REQUEST_S):
                return await self._answer(await body_of(request))
        except review.BadReview as error:
            return _refused(400, str(error))
        except HttpError as error:
            return _refused(error.status, str(error))
        except web.HTTPRequestEntityTooLarge:
            return _refused(413, f"the review has more than {MAX_BYTES} bytes")
        except TimeoutError:
            return _refused(504, f"the review took more than {REQUEST_S:.0f} s")
        except Exception:
            log.exception("a bug: a review of conversions failed")
            return _refused(500, "the conversion failed; see the operator's log")

    async def _answer(self, body: bytes) -> web.Response:
        async with self._turn:
            steps = review.answer(body)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    return web.Response(body=end.value, content_type="application/json")
                await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def _room(self, owner: str, size: int) -> AsyncIterator[None]:
        if self._bytes.take(owner, size=size):
            raise HttpError(429, "too many reviews are in progress: try again in a second", code="too_many_requests")
        try:
            yield
        finally:
            self._bytes.leave(owner, size=size)


def _refused(status: int, message: str) -> web.Response:
    """The API server shows the text of no refusal but its status; the text is for people who try the webhook."""
    return web.Response(text=message + "\n", status=status)
