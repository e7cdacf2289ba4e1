"""Takes each measurement at its provider: Prometheus, a URL or a Job."""

import asyncio
from collections.abc import Awaitable, Callable

from slipway_operator.kube.client import Client
from slipway_operator.model.analysis.measure import Prometheus, ProviderAnswer, Question, Web
from slipway_operator.outbound.dialer import Dialer, NoAnswer, OutboundRequest
from slipway_operator.providers import answers
from slipway_operator.providers.answers import Unanswered
from slipway_operator.providers.jobs import Jobs
from slipway_operator.providers.secrets import resolved

BODY_LIMIT_BYTES = 256 * 1024


class Providers:
    """The three providers."""

    def __init__(
        self, client: Client, dialer: Dialer, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._client, self._dialer, self._jobs = client, dialer, Jobs(client, sleep)

    async def measure(self, namespace: str, question: Question) -> ProviderAnswer:
        """Take one measurement; every failure is a ProviderAnswer with a problem."""
        try:
            if question.job:
                return await self._jobs.run(question.job)
            if question.metric.prometheus:
                return ProviderAnswer(await self._query(namespace, question.metric.prometheus))
            if question.metric.web:
                return ProviderAnswer(await self._request(namespace, question.metric.web))
            return ProviderAnswer(problem="the metric has no provider")
        except Unanswered as error:
            return ProviderAnswer(problem=str(error))

    async def release(self, question: Question) -> None:
        """Delete the Job of a measurement whose result is stored or no longer wanted."""
        if question.job:
            await self._jobs.delete(question.job)

    async def _query(self, namespace: str, provider: Prometheus) -> list[float] | float:
        request = OutboundRequest(
            "GET",
            provider.address.rstrip("/") + "/api/v1/query",
            {"query": provider.query, "timeout": f"{provider.timeout_s}s"},
            await resolved(self._client, namespace, provider.headers),
            timeout_s=provider.timeout_s,
            keep_bytes=BODY_LIMIT_BYTES,
        )
        return answers.of_prometheus(*await self._fetch(request))

    async def _request(self, namespace: str, provider: Web) -> object:
        headers = await resolved(self._client, namespace, provider.headers)
        if provider.body and "content-type" not in {name.lower() for name in headers}:
            headers["Content-Type"] = "application/json"
        request = OutboundRequest(
            provider.method,
            provider.url,
            headers=headers,
            body=provider.body.encode(),
            timeout_s=provider.timeout_s,
            keep_bytes=BODY_LIMIT_BYTES,
            insecure=provider.insecure,
        )
        return answers.of_web(*await self._fetch(request), provider.json_path)

    async def _fetch(self, request: OutboundRequest) -> tuple[int, bytes]:
        """Return status and body; raises Unanswered when there is none within the limits of time and size."""
        try:
            answer = await self._dialer.send(request)
        except NoAnswer as error:
            raise Unanswered(str(error)) from error
        if 300 <= answer.status < 400:
            raise Unanswered(f"{answer.phrase}: redirects are not followed; write the final URL")
        if answer.cut:
            raise Unanswered(f"the answer is longer than {BODY_LIMIT_BYTES // 1024} KiB")
        return answer.status, answer.body
