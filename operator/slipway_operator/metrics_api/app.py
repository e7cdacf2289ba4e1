"""The routes of the metrics API; each response is a document, or a Status with the reason why there is none."""

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from aiohttp import web
from aiohttp.typedefs import Middleware

from slipway_operator.api.objects import ObjectKey
from slipway_operator.manifests.autoscaler import CUSTOM, EXTERNAL
from slipway_operator.metrics_api import documents, selector
from slipway_operator.metrics_api.documents import DEPLOYMENTS, RELEASE, VERSIONS, Document, MetricValue
from slipway_operator.metrics_api.release import NotInRelease, ReleaseLoads
from slipway_operator.metrics_api.release_loads import OF_RELEASE
from slipway_operator.metrics_api.sampler import MetricsSampler
from slipway_operator.metrics_api.series import OF_DEPLOYMENT, OF_POD, Number, PodTarget, Series, Unknown
from slipway_operator.model import labels

Answer = Callable[[web.Request], Awaitable[Document]]
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger(__name__)


class Refusal(Exception):
    """There is no document to return; the response is a Status with this HTTP code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(frozen=True, slots=True)
class Api:
    """Serves the sampler's values as documents of the custom and external metrics APIs.

    `release`: what is known of the release's own processes; None: nothing is.
    """

    sampler: MetricsSampler
    release: ReleaseLoads | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def application(self, names: Callable[[], Collection[str]]) -> web.Application:
        """Return all routes. `names`: common names of client certificates that may read; none means any valid one."""
        application = web.Application(middlewares=[_guard(names)])
        add = application.router.add_get
        for group, versions in VERSIONS.items():
            add(f"/apis/{group}", _json(_fixed(documents.group(group))))
            for version in versions:
                add(f"/apis/{group}/{version}", _json(_fixed(documents.resources(group, version))))
        for version in VERSIONS[CUSTOM]:
            place = f"/apis/{CUSTOM}/{version}/namespaces/{{namespace}}"
            add(f"{place}/{{resource}}/{{name}}/{{metric}}", _json(self._custom(version)))
        add(f"/apis/{EXTERNAL}/{VERSIONS[EXTERNAL][0]}/namespaces/{{namespace}}/{{metric}}", _json(self._external))
        return application

    def _custom(self, version: str) -> Answer:
        async def answer(request: web.Request) -> Document:
            place = request.match_info
            resource, metric = place["resource"], place["metric"]
            known = {DEPLOYMENTS: OF_DEPLOYMENT, "pods": OF_POD}.get(resource)
            if known is None:
                raise Refusal(404, f"there are metrics of {DEPLOYMENTS} and pods, not of {resource}")
            _require_metric(metric, known)
            read = self._deployments if known is OF_DEPLOYMENT else self._pods
            samples = read(place["namespace"], place["name"], metric, _selector(request))
            return documents.custom_values(version, metric, samples)

        return answer

    async def _external(self, request: web.Request) -> Document:
        metric, namespace = request.match_info["metric"], request.match_info["namespace"]
        _require_metric(metric, (*OF_DEPLOYMENT, *OF_RELEASE))
        if metric in OF_RELEASE:
            return documents.external_values(metric, [await self._of_release(namespace, metric, _selector(request))])
        return documents.external_values(metric, self._deployments(namespace, "*", metric, _selector(request)))

    async def _of_release(self, namespace: str, metric: str, matches: selector.Matches) -> MetricValue:
        """Return a value of the release's own processes; it has no labels."""
        if self.release is None or namespace != self.release.namespace or not matches({}):
            raise Refusal(404, f"{metric} is of the release's own namespace, and has no labels")
        try:
            return self._sample(RELEASE, (namespace, metric), await self.release.number(metric))
        except NotInRelease as missing:
            raise Refusal(404, f"{metric}: {missing}") from missing
        except Unknown as unknown:
            raise Refusal(503, f"{metric} has no fresh value: {unknown}") from unknown

    def _deployments(self, namespace: str, name: str, metric: str, matches: selector.Matches) -> list[MetricValue]:
        """Return fresh values of one ModelDeployment; for the name `*`, of all whose label the selector matches."""
        keys = [
            key
            for key in self.sampler.known(namespace)
            if key[1] == name or (name == "*" and matches({labels.MODEL_DEPLOYMENT: key[1]}))
        ]
        if not keys:
            raise Refusal(404, f"no ModelDeployment {'of this selector' if name == '*' else name} in {namespace}")
        return _fresh([self._deployment(key, metric) for key in keys], metric)

    def _deployment(self, key: ObjectKey, metric: str) -> MetricValue | str:
        series = self.sampler.series(key)
        try:
            return self._sample(labels.KIND, key, _there(series).number(metric, self.sampler.clock()))
        except Unknown as unknown:
            return f"ModelDeployment {key[1]}: {unknown}"

    def _pods(self, namespace: str, name: str, metric: str, matches: selector.Matches) -> list[MetricValue]:
        found = [
            (key, pod)
            for key in self.sampler.known(namespace)
            for pod in _there(self.sampler.peek(key)).followed.pods
            if pod.name == name or (name == "*" and matches(_labels(key, pod)))
        ]
        if not found:
            raise Refusal(404, f"no ready pod {'of this selector' if name == '*' else name} in {namespace}")
        return _fresh([self._pod(key, pod, metric) for key, pod in found], metric)

    def _pod(self, key: ObjectKey, pod: PodTarget, metric: str) -> MetricValue | str:
        series = _there(self.sampler.series(key))
        try:
            number = series.of_pod(metric, pod.name, self.sampler.clock())
        except Unknown as unknown:
            return f"pod {pod.name}: {unknown}"
        return self._sample("Pod", (key[0], pod.name), number)

    def _sample(self, kind: str, key: ObjectKey, number: Number) -> MetricValue:
        taken = self.now() - timedelta(seconds=max(0.0, self.sampler.clock() - number.at))
        return MetricValue(kind, *key, number.value, taken, number.window_s)


def _there(series: Series | None) -> Series:
    assert series is not None, "the keys are those of the sampler, and nothing else runs meanwhile"
    return series


def _fresh(found: Sequence[MetricValue | str], metric: str) -> list[MetricValue]:
    """Return the items with a value, as autoscalers must not read a missing one as 0. Raises Refusal without any."""
    fresh = [item for item in found if isinstance(item, MetricValue)]
    if not fresh:
        why = next(item for item in found if isinstance(item, str))
        raise Refusal(503, f"{metric} has no fresh value: {why}")
    return fresh


def _labels(key: ObjectKey, pod: PodTarget) -> dict[str, str]:
    return labels.child_labels(key[1], pod.revision)


def _require_metric(metric: str, known: Collection[str]) -> None:
    if metric not in known:
        raise Refusal(404, f"there is no metric {metric[:128]}; there are {', '.join(sorted(known))}")


def _selector(request: web.Request) -> selector.Matches:
    if request.query.get("metricLabelSelector"):
        raise Refusal(400, "metricLabelSelector: these metrics have no labels of their own; leave it out")
    try:
        return selector.parse(request.query.get("labelSelector", ""))
    except selector.BadSelector as error:
        raise Refusal(400, f"labelSelector: {error}") from error


def _fixed(document: Document) -> Answer:
    async def answer(_: web.Request) -> Document:
        return document

    return answer


def _json(answer: Answer) -> Handle:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response(await answer(request))

    return handle


def _guard(names: Callable[[], Collection[str]]) -> Middleware:
    """Return middleware that admits only the API server's front proxy, which has authorized the client already.

    It also turns refusals and errors into Status documents.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handle) -> web.StreamResponse:
        try:
            if (caller := _common_name(request)) not in (allowed := names()) and allowed:
                raise Refusal(403, f"a client certificate for {caller!r} may not ask here: only the API server may")
            return await handler(request)
        except Refusal as refusal:
            return _refused(refusal.code, refusal.message)
        except web.HTTPException as error:
            return _refused(error.status, f"{request.method} {request.path[:256]}: {error.reason}")
        except Exception:
            log.exception("a request of the metrics API failed")
            return _refused(500, "the metrics API failed; see the operator's log")

    return guard


def _refused(code: int, message: str) -> web.Response:
    return web.Response(text=json.dumps(documents.failure(code, message)), status=code, content_type="application/json")


def _common_name(request: web.Request) -> str:
    """Return the common name in the client's certificate, which TLS has verified; empty if it has none."""
    certificate = request.transport.get_extra_info("peercert") if request.transport else None
    subject = (certificate or {}).get("subject") or ()
    return next((value for part in subject for key, value in part if key == "commonName"), "")
