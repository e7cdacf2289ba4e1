"""One attempt of a request at one endpoint, from sending it to the first bytes of the response."""

from collections.abc import Callable

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from ..balancing.attempt import Lease
from ..balancing.backends import Backends
from ..judging.outcome import Fate
from ..limits.budget import Account
from ..routing.router import Target
from ..upstream.exchange import Answer, Call
from ..upstream.session import read_at_least
from ..upstream.tenant_proof import Prover
from ..wire import answers, errors
from .bodies import outgoing
from .retry_state import Fault

RETRIED_STATUSES = frozenset({429, 502, 503})
# A whole response up to this size is read before its first byte is sent: if its server dies meanwhile, the client still
# gets a clean 502.
_MAX_WHOLE_BYTES = 1 << 20
_MAX_REFUSAL_BYTES = 64 << 10
_AUTOMATIC_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Sender:
    """Sends attempts and counts how they went."""

    def __init__(
        self, backends: Backends, session: aiohttp.ClientSession, prover: Prover, clock: Callable[[], float]
    ) -> None:
        self._backends = backends
        self._session = session
        self._prover = prover
        self._clock = clock

    async def attempt(self, call: Call, target: Target, fate: Fate | None) -> Answer | Fault:
        """`fate`: of the first attempt alone."""
        lease = self._backends.lease(target, first=fate is not None, fate=fate, client=call.client)
        response: aiohttp.ClientResponse | None = None
        done = False
        try:
            response = await self._post(call, target)
            result = await self._read_start(target, response, lease, call.account)
            done = isinstance(result, Answer)
            return result
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            lease.failed()
            self._no_answer(target)
            return Fault("connect", sent=False)
        except TimeoutError:
            lease.failed()
            raise
        except (aiohttp.ClientError, OSError):
            lease.failed()
            # One that is about to leave is gone for other reasons; and an answer that has begun has its own bounds.
            listed = target.url in self._no_answer(target)
            return Fault("reset", crashed=listed and response is None)
        finally:
            if not done:
                lease.release()
                if response is not None:
                    response.close()

    def _no_answer(self, target: Target) -> tuple[str, ...]:
        """An endpoint did not answer; returns the endpoints of its revision that take new requests."""
        ready = self._ready_urls(target)
        self._backends.ejection.failed(target, 0, ready)
        return ready

    def _answered(self, target: Target, status: int) -> None:
        if status < 500:
            self._backends.ejection.succeeded(target)
        else:
            self._backends.ejection.failed(target, status, self._ready_urls(target))

    def _ready_urls(self, target: Target) -> tuple[str, ...]:
        return self._backends.urls(target.model, target.revision)

    async def _post(self, call: Call, target: Target) -> aiohttp.ClientResponse:
        self._prover.sign(call.headers, target.route)
        return await self._session.post(
            URL(target.url + call.path_qs, encoded=True),
            data=outgoing(call.body, call.tokens),
            headers=call.headers,
            allow_redirects=False,
            skip_auto_headers=_AUTOMATIC_HEADERS,
        )

    async def _read_start(
        self, target: Target, response: aiohttp.ClientResponse, lease: Lease, account: Account
    ) -> Answer | Fault:
        status = response.status
        whole = response.content_length is not None or response.content_type == "application/json"
        wanted = _MAX_REFUSAL_BYTES if status in RETRIED_STATUSES else _MAX_WHOLE_BYTES if whole else 1
        start = await read_at_least(response, wanted, account)
        answer = Answer(target, status, CIMultiDict(response.headers), start)
        if status >= 500 and not answers.is_deadline(start):
            lease.failed(start)
        elif status != 200 and lease.fate:
            lease.fate.refused(self._clock())
        self._answered(target, status)
        if status in RETRIED_STATUSES:
            return Fault(str(status), answer=answer, crashed=status == 503 and errors.says_crashed(start))
        if status < 500:
            lease.began()
        answer.rest = None if response.content.at_eof() else response
        answer.lease = lease
        return answer
