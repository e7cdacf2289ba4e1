"""Parses a metric with a provider, as a user wrote it, to a Measure; error messages are for the author."""

from collections.abc import Iterable

from slipway_operator.api.v1alpha1 import provider
from slipway_operator.api.v1alpha1.analysis_template import TemplateMetric
from slipway_operator.api.v1alpha1.provider import Provider
from slipway_operator.model.analysis import expression, json_path
from slipway_operator.model.analysis.closed_job import closed
from slipway_operator.model.analysis.measure import (
    DEFAULT_ERROR_LIMIT,
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
from slipway_operator.model.deployment.strategy import parse_duration_s

PROVIDERS = ("prometheus", "web", "job")


def measure(metric: TemplateMetric, written: Provider) -> Measure:
    """Parse a metric that has a provider.

    Raises:
        ValueError: when it is invalid; the message is for the author of the template.
    """
    who = f"metric {metric.name!r}:"
    given = [*(name for name in PROVIDERS if getattr(written, name)), *(written.model_extra or ())]
    if len(given) != 1 or given[0] not in PROVIDERS:
        raise ValueError(f"{who} provider is exactly one of {', '.join(PROVIDERS)}, not {', '.join(given) or 'none'}")
    made = Measure(
        name=metric.name,
        prometheus=_prometheus(written.prometheus) if written.prometheus else None,
        web=_web(written.web) if written.web else None,
        job=_job(written.job, who) if written.job else None,
        success=metric.success_condition or "",
        failure=metric.failure_condition or "",
        interval_s=None if metric.interval is None else parse_duration_s(metric.interval),
        initial_delay_s=0 if metric.initial_delay is None else parse_duration_s(metric.initial_delay),
        requested_count=metric.count,
        failure_limit=metric.failure_limit or 0,
        inconclusive_limit=metric.inconclusive_limit or 0,
        error_limit=DEFAULT_ERROR_LIMIT if metric.consecutive_error_limit is None else metric.consecutive_error_limit,
        success_limit=metric.consecutive_success_limit or 0,
        dry_run=bool(metric.dry_run),
    )
    _check(made, who)
    return made


def check_arguments(metrics: Iterable[Measure], arguments: Iterable[Argument]) -> None:
    """Check that every `{{args.NAME}}` names one of the arguments.

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
        raise ValueError(f"{who} has no condition: write successCondition, failureCondition or both")
    if metric.interval_s is not None and metric.interval_s < LEAST_INTERVAL_S:
        raise ValueError(f"{who} interval is {metric.interval_s} s; it must be {LEAST_INTERVAL_S} s or longer")
    if metric.interval_s is None and (metric.requested_count or 1) > 1:
        raise ValueError(
            f"{who} count is {metric.requested_count} and there is no interval: write how long is between two"
        )
    if metric.count is not None and metric.count <= max(metric.failure_limit, metric.inconclusive_limit):
        raise ValueError(f"{who} count is {metric.count}, which failureLimit or inconclusiveLimit can never exceed")
    try:
        for text in conditions:
            # A condition with arguments is parsed once their values are known.
            if not any(arguments_in(text)):
                expression.check(text)
        if metric.web:
            json_path.check(metric.web.json_path)
    except ValueError as error:
        raise ValueError(f"{who} {error}") from error


def _job(written: provider.JobMetric, who: str) -> Job:
    try:
        return Job(closed(written.spec))
    except ValueError as error:
        raise ValueError(f"{who} {error}") from error


def _prometheus(written: provider.PrometheusMetric) -> Prometheus:
    return Prometheus(written.address, written.query, tuple(map(_header, written.headers)), written.timeout)


def _web(written: provider.WebMetric) -> Web:
    return Web(
        url=written.url,
        method=written.method,
        headers=tuple(map(_header, written.headers)),
        body=written.body or "",
        json_path=written.json_path or "",
        timeout_s=written.timeout_seconds,
        insecure=bool(written.insecure),
    )


def _header(header: provider.WebMetricHeader) -> Header:
    if header.value_from:
        reference = header.value_from.secret_key_ref
        return Header(header.key, secret=SecretKey(reference.name, reference.key))
    return Header(header.key, header.value or "")


def argument(given: provider.TemplateArgument) -> Argument:
    """An argument with its value, or with the source of the value.

    Raises:
        ValueError: when it has neither.
    """
    source = given.value_from
    field = source.field_ref.field_path if source and source.field_ref else None
    found = (source.pod_template_hash_value if source else None) or field
    if given.value is None and found is None:
        raise ValueError(
            f"argument {given.name!r} has no value: write value, or valueFrom with podTemplateHashValue or fieldRef"
        )
    return Argument(given.name, given.value, found or "")
