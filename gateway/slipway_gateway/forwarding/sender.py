"""One attempt of a request at one endpoint, from sending it to the first bytes of the response."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from slipway_contracts.load_report import ADAPTERS_VERSION, LOAD, LOAD_FORMAT, TEXT, read

from ..balancing.attempt import Attempt
from ..balancing.load_balancer import LoadBalancer
from ..judging.outcome import OutcomeRecorder
from ..routing.router import RouteEndpoint
from ..upstream.adapters import AdapterCall
from ..upstream.direct import DirectSender
from ..upstream.endings import is_death
from ..upstream.exchange import ServerReply, UpstreamRequest, UpstreamResponse
from ..upstream.isolation import TenantIsolation
from ..upstream.session import read_at_least
from ..upstream.tenant_proof import TenantSigner
from ..wire import errors, responses
from .bodies import make_body
from .retry_state import BAD_RESPONSE, NO_ADAPTER, AttemptFailure

if TYPE_CHECKING:
    from slipway_plane import _native

RETRIED_STATUSES = frozenset({429, 502, 503})
# A whole response up to this size is read before its first byte is sent: if its server dies meanwhile, the client still
# gets a clean 502.
_MAX_WHOLE_BYTES = 1 << 20
_MAX_REFUSAL_BYTES = 64 << 10
_NOT_READY_STATUSES = frozenset({502, 503})
_AUTOMATIC_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Sender:
    """Sends attempts and counts how they went."""

    def __init__(
        self,
        balancer: LoadBalancer,
        session: aiohttp.ClientSession,
        direct: DirectSender,
        signer: TenantSigner,
        clock: Callable[[], float],
        isolation: TenantIsolation | None = None,
    ) -> None:
        """`direct`: for bodies that are written at once; the session writes longer ones while it reads the response."""
        self._balancer = balancer
        self._metrics = balancer.metrics
        self._session = session
        self._direct = direct
        self._signer = signer
        self._clock = clock
        self._isolation = isolation or TenantIsolation(balancer.published, signer)

    async def attempt(
        self,
        outgoing: UpstreamRequest,
        endpoint: RouteEndpoint,
        recorder: OutcomeRecorder | None,
        begun: "_native.Begun | None" = None,
    ) -> UpstreamResponse | AttemptFailure:
        """Sends a request to an endpoint and reads the first bytes of its response, the whole of a short one.

        `recorder`: of the request's first attempt; None for a later attempt. `begun`: the fast lane has sent it there.
        """
        attempt = self._balancer.start_attempt(
            endpoint,
            first=recorder is not None,
            recorder=recorder,
            client=outgoing.client,
            tenant=outgoing.tenant,
            prompt=outgoing.prompt,
            begun=begun,
        )
        if begun is not None:
            begun.counted()
        raw: ServerReply | None = None
        done = False
        try:
            raw = await self._send(outgoing, endpoint, begun)
            if not 200 <= raw.status <= 599:
                # aiohttp passes on 101 without a request to upgrade, and numbers that are no status at all.
                return self._bad_response(endpoint, attempt)
            if outgoing.meter:
                outgoing.meter.answered = True
            result = await self._read_start(outgoing, endpoint, raw, attempt)
            done = isinstance(result, UpstreamResponse)
            return result
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            attempt.failed()
            self._no_answer(endpoint)
            return AttemptFailure("connect", sent=False)
        except TimeoutError:
            attempt.failed()
            raise
        except aiohttp.ClientResponseError:
            # What the server sent is no HTTP, or its head is too long; it lives.
            return self._bad_response(endpoint, attempt)
        except (aiohttp.ClientError, OSError) as error:
            attempt.failed()
            self._no_answer(endpoint)
            # A pod that is being deleted goes for other reasons.
            stays = self._balancer.published.has_pod(endpoint.model, endpoint.revision, endpoint.url)
            died = stays and is_death(error) and not await self._direct.turns_away(endpoint.url)
            return AttemptFailure("reset", crashed=died)
        finally:
            if not done:
                attempt.release()
                if raw is not None:
                    raw.close()

    def _bad_response(self, endpoint: RouteEndpoint, attempt: Attempt) -> AttemptFailure:
        attempt.failed()
        self._no_answer(endpoint)
        return AttemptFailure(BAD_RESPONSE)

    def _no_answer(self, endpoint: RouteEndpoint) -> None:
        self._balancer.spares.failed(endpoint.url)
        self._balancer.prefixes.forget(endpoint.url)
        self._balancer.ejection.failed(endpoint, 0, self._ready_urls(endpoint))

    def _answered(self, endpoint: RouteEndpoint, response: UpstreamResponse) -> None:
        spares = self._balancer.spares
        (spares.failed if response.status in _NOT_READY_STATUSES else spares.answered)(endpoint.url)
        if response.failed and endpoint.base:
            return  # what an adapter fails at is no reason to take its pod from the base and all others
        if response.failed:
            self._balancer.ejection.failed(endpoint, response.status, self._ready_urls(endpoint))
        else:
            self._balancer.ejection.succeeded(endpoint)

    def _ready_urls(self, endpoint: RouteEndpoint) -> tuple[str, ...]:
        return self._balancer.published.urls(endpoint.model, endpoint.revision)

    def _send(
        self, outgoing: UpstreamRequest, endpoint: RouteEndpoint, begun: "_native.Begun | None" = None
    ) -> Awaitable[ServerReply]:
        if outgoing.meter:
            outgoing.meter.sent = True
        self._signer.sign(outgoing.headers, endpoint.deployment)
        if outgoing.prompt is not None or outgoing.adapter is not None:
            outgoing.headers[LOAD_FORMAT] = TEXT
        path_qs, sent = outgoing.at(endpoint.revision, self._engine_of(endpoint))
        parts = self._isolation.parts(endpoint.url, outgoing.path, sent, outgoing.isolation)
        body = make_body(*parts, outgoing.tokens)
        if outgoing.method == "POST" and isinstance(body, bytes):
            return self._direct.post(endpoint.url, path_qs, outgoing.headers, body, begun)
        return self._session.request(
            outgoing.method,
            URL(endpoint.url + path_qs, encoded=True),
            data=body or None,
            headers=outgoing.headers,
            allow_redirects=False,
            skip_auto_headers=_AUTOMATIC_HEADERS,
        )

    async def _read_start(
        self, outgoing: UpstreamRequest, endpoint: RouteEndpoint, raw: ServerReply, attempt: Attempt
    ) -> UpstreamResponse | AttemptFailure:
        status = raw.status
        whole = raw.content_length is not None or raw.content_type == "application/json"
        wanted = _MAX_REFUSAL_BYTES if status in RETRIED_STATUSES else _MAX_WHOLE_BYTES if whole else 1
        start = await read_at_least(raw, wanted, outgoing.account)
        failed = responses.is_servers_failure(status, start)
        response = UpstreamResponse(endpoint, status, raw.headers, start, failed=failed)
        if (load := raw.headers.get(LOAD)) is not None:
            self._loaded(outgoing, endpoint, load)
        if outgoing.adapter is not None and self._refuses_adapter(outgoing.adapter, endpoint, response):
            if attempt.recorder:
                attempt.recorder.refuse(self._clock())
            return AttemptFailure(NO_ADAPTER, sent=False)
        if failed:
            attempt.failed(start)
        elif status != 200 and attempt.recorder:
            attempt.recorder.refuse(self._clock())
        self._answered(endpoint, response)
        if status in RETRIED_STATUSES:
            return AttemptFailure(str(status), response=response, crashed=status == 503 and errors.reports_crash(start))
        if not failed:
            attempt.began()
        response.rest = None if raw.content.at_eof() else raw
        response.attempt = attempt
        return response

    def _engine_of(self, endpoint: RouteEndpoint) -> str:
        return self._balancer.published.engine_at(endpoint.url)

    def _loaded(self, outgoing: UpstreamRequest, endpoint: RouteEndpoint, header: str) -> None:
        """A pod reported its load with a response."""
        self._balancer.prefixes.reported(endpoint.url, header)
        if outgoing.adapter is not None and (version := read(header).get(ADAPTERS_VERSION)) is not None:
            self._balancer.adapters.version_reported(endpoint.url, version)

    def _refuses_adapter(self, adapter: AdapterCall, endpoint: RouteEndpoint, response: UpstreamResponse) -> bool:
        """Whether a pod has no such adapter, though it reported it: its engine may have started again."""
        engine = self._engine_of(endpoint)
        if not adapter.is_refused(response.status, response.start, endpoint.revision, engine):
            return False
        self._balancer.adapters.refused(endpoint.url, adapter.model, endpoint.revision)
        self._metrics.adapter_refused(endpoint.model, endpoint.revision)
        return True
