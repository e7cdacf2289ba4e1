"""The engine metrics on the operator's /metrics: the same series for each revision and engine type; pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from slipway_operator.api.objects import ObjectKey
from slipway_operator.metrics_api.series import KV_CACHE_USAGE, QUEUE_DEPTH, RUNNING, Number, Series, Unknown

Read = Callable[[Series, str, float], float | None]


def rows(known: Iterable[tuple[ObjectKey, Series]], now: float) -> Iterator[tuple[str, str, str, Mapping[str, float]]]:
    """Yield (namespace, name, revision, values by series name) of each revision with at least one known value."""
    for (namespace, name), series in known:
        for revision in sorted({*series.followed.live, *(pod.revision for pod in series.followed.pods)}):
            if numbers := _numbers(series, revision, now):
                yield namespace, name, revision, numbers


def _numbers(series: Series, revision: str, now: float) -> dict[str, float]:
    found = {name: read(series, revision, now) for name, read in _READ.items()}
    return {name: value for name, value in found.items() if value is not None}


def _known(read: Callable[[Series, str, float], Number]) -> Read:
    def number(series: Series, revision: str, now: float) -> float | None:
        try:
            return read(series, revision, now).value
        except Unknown:
            return None

    return number


def _of(metric: str) -> Read:
    return _known(lambda series, revision, now: series.of_revision(metric, revision, now))


def _counted(counter: str) -> Read:
    return lambda series, revision, _: series.counted(revision, counter)


def _unread(series: Series, revision: str, now: float) -> float | None:
    """Return the number of a revision's pods without a fresh page; None while all pods are too new to count."""
    pages = [page for page in series.pages(now) if page.revision == revision]
    return sum(bool(page.problem) for page in pages) if pages else None


_READ: Mapping[str, Read] = {
    "slipway_engine_requests_running": _of(RUNNING),
    "slipway_engine_requests_waiting": _of(QUEUE_DEPTH),
    "slipway_engine_kv_cache_usage_ratio": _of(KV_CACHE_USAGE),
    "slipway_engine_ttft_p95_seconds": _known(lambda series, revision, now: series.ttft_of_revision(revision, now)),
    "slipway_engine_prompt_tokens": _counted("prompt_tokens"),
    "slipway_engine_generation_tokens": _counted("tokens"),
    "slipway_engine_unread_pods": _unread,
}
