"""From a metric with a provider, as a user wrote it, to a Measure; what makes no sense is said in a sentence."""

from collections.abc import Iterable, Mapping
from typing import Any

from slipway_operator.model import expression, json_path
from slipway_operator.model.closed_job import closed
from slipway_operator.model.measuring import (
    LEAST_INTERVAL_S,
    Argument,
    Header,
    Job,
    Measure,
    Prometheus,
    SecretKey,
    Web,
    arguments_in,
)
from slipway_operator.model.strategy import parse_duration_s

Json = Mapping[str, Any]

PROVIDERS = ("prometheus", "web", "job")
REVISIONS = ("Stable", "Latest")  # Argo's podTemplateHashValue
FIELDS = ("metadata.name", "metadata.namespace")


def parse_measure(item: Json) -> Measure:
    """Read a metric that has a provider.

    Raises:
        ValueError, KeyError, TypeError: when it makes no sense; the first in words for the author of the template.
    """
    who, provider = f"metric {item['name']!r}:", item["provider"]
    given = [name for name in PROVIDERS if name in provider]
    if len(given) != 1 or len(provider) != 1:
        raise ValueError(
            f"{who} provider is exactly one of {', '.join(PROVIDERS)}, not {', '.join(provider) or 'none'}"
        )
    metric = Measure(
        name=item["name"],
        prometheus=_prometheus(provider["prometheus"]) if "prometheus" in provider else None,
        web=_web(provider["web"]) if "web" in provider else None,
        job=_job(provider["job"], who) if "job" in provider else None,
        success=item.get("successCondition", ""),
        failure=item.get("failureCondition", ""),
        interval_s=parse_duration_s(item["interval"]) if "interval" in item else None,
        initial_delay_s=parse_duration_s(item.get("initialDelay", "0s")),
        asked_count=int(item["count"]) if "count" in item else None,
        failure_limit=int(item.get("failureLimit", 0)),
        inconclusive_limit=int(item.get("inconclusiveLimit", 0)),
        error_limit=int(item.get("consecutiveErrorLimit", 4)),
        success_limit=int(item.get("consecutiveSuccessLimit", 0)),
        dry_run=bool(item.get("dryRun", False)),
    )
    _check(metric, who)
    return metric


def parse_arguments(items: Iterable[Json]) -> tuple[Argument, ...]:
    """Read `spec.args`.

    Raises:
        ValueError: when one has neither a value nor a known source.
    """
    return tuple(_argument(item) for item in items)


def check_arguments(metrics: Iterable[Measure], arguments: Iterable[Argument]) -> None:
    """Every `{{args.NAME}}` names one of them.

    Raises:
        ValueError: when one does not.
    """
    known = {argument.name for argument in arguments}
    for metric in metrics:
        for name in arguments_in(metric):
            if name not in known:
                raise ValueError(f"metric {metric.name!r}: {{{{args.{name}}}}} is not among spec.args: add it there")


def _check(metric: Measure, who: str) -> None:
    conditions = [text for text in (metric.success, metric.failure) if text]
    if metric.job and conditions:
        raise ValueError(f"{who} a job succeeds or fails by itself: remove successCondition and failureCondition")
    if not metric.job and not conditions:
        raise ValueError(f"{who} nothing says what is good: write successCondition, failureCondition or both")
    if metric.interval_s is not None and metric.interval_s < LEAST_INTERVAL_S:
        raise ValueError(f"{who} interval is {metric.interval_s} s; it must be {LEAST_INTERVAL_S} s or longer")
    if metric.interval_s is None and (metric.asked_count or 1) > 1:
        raise ValueError(f"{who} count is {metric.asked_count} and there is no interval: write how long is between two")
    if metric.count is not None and metric.count <= max(metric.failure_limit, metric.inconclusive_limit):
        raise ValueError(f"{who} count is {metric.count}, which failureLimit or inconclusiveLimit can never exceed")
    try:
        for text in conditions:
            # With arguments in it, it is read when they are known.
            if not any(arguments_in(text)):
                expression.check(text)
        if metric.web:
            json_path.check(metric.web.json_path)
    except ValueError as error:
        raise ValueError(f"{who} {error}") from error


def _job(provider: Json, who: str) -> Job:
    try:
        return Job(closed(provider["spec"]))
    except ValueError as error:
        raise ValueError(f"{who} {error}") from error


def _prometheus(provider: Json) -> Prometheus:
    return Prometheus(
        provider["address"], provider["query"], _headers(provider), timeout_s=int(provider.get("timeout", 30))
    )


def _web(provider: Json) -> Web:
    return Web(
        url=provider["url"],
        method=provider.get("method", "GET"),
        headers=_headers(provider),
        body=provider.get("body", ""),
        json_path=provider.get("jsonPath", ""),
        timeout_s=int(provider.get("timeoutSeconds", 10)),
        insecure=bool(provider.get("insecure", False)),
    )


def _headers(provider: Json) -> tuple[Header, ...]:
    return tuple(_header(item) for item in provider.get("headers") or ())


def _header(item: Json) -> Header:
    if "valueFrom" not in item:
        return Header(item["key"], item["value"])
    source = item["valueFrom"]["secretKeyRef"]
    return Header(item["key"], secret=SecretKey(source["name"], source["key"]))


def _argument(item: Json) -> Argument:
    if "value" in item:
        return Argument(item["name"], item["value"])
    source = item.get("valueFrom") or {}
    found = source.get("podTemplateHashValue") or (source.get("fieldRef") or {}).get("fieldPath") or ""
    if found not in (*REVISIONS, *FIELDS):
        raise ValueError(
            f"argument {item['name']!r} has no value: write value, or valueFrom with podTemplateHashValue "
            f"{' or '.join(REVISIONS)}, or with fieldRef.fieldPath {' or '.join(FIELDS)}"
        )
    return Argument(item["name"], source=found)
