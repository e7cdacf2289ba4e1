"""Templates with providers: parsing, refusals with their messages, and the round trip through the status."""

from typing import Any

import pytest

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.api.types import strict
from slipway_contracts.api.writing import to_json
from slipway_operator.model.analysis.measure import Header, Measure, SecretKey, arguments_in, filled
from slipway_operator.model.analysis.spec import AnalysisSpec
from slipway_operator.model.analysis.template import parse

QUERY = {"prometheus": {"address": "http://prometheus:9090", "query": "up"}}
RATE: dict[str, Any] = {"name": "rate", "provider": QUERY, "successCondition": "result[0] >= 1"}
EVENT: dict[str, Any] = {"name": "errors", "event": "FirstAttemptError", "share": 1.0}
JOB = {"job": {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}}}


def template(*metrics: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"metrics": list(metrics), **fields}


def spec(*metrics: dict[str, Any], **fields: Any) -> AnalysisSpec:
    found = parse("mine", template(*metrics, **fields))
    assert found.spec, found.problem
    return found.spec


def test_defaults_are_those_of_argo() -> None:
    (metric,) = spec(RATE).measured
    assert (metric.failure_limit, metric.inconclusive_limit, metric.error_limit, metric.success_limit) == (0, 0, 4, 0)
    assert (metric.count, metric.interval_s, metric.initial_delay_s, metric.endless) == (1, None, 0, False)
    (endless,) = spec({**RATE, "interval": "1m30s", "initialDelay": "10s"}).measured
    assert (endless.count, endless.interval_s, endless.initial_delay_s, endless.endless) == (None, 90, 10, True)
    assert not spec({**RATE, "interval": "5s", "consecutiveSuccessLimit": 3}).measured[0].endless


def test_thresholds_stand_beside_events_or_alone() -> None:
    both = spec(EVENT, RATE)
    assert [metric.name for metric in both.metrics] == ["errors"]
    assert [metric.name for metric in both.measured] == ["rate"]
    assert spec(RATE).metrics == ()


def test_every_provider_is_read() -> None:
    headers = [
        {"key": "X-Team", "value": "qa"},
        {"key": "Authorization", "valueFrom": {"secretKeyRef": {"name": "token", "key": "bearer"}}},
    ]
    web = {"url": "http://q/s", "method": "POST", "headers": headers, "body": "{}", "jsonPath": "{$.ok}"}
    web |= {"timeoutSeconds": 3, "insecure": True}
    (measure,) = spec({**RATE, "provider": {"web": web}}).measured
    assert measure.web and measure.provider == "web"
    assert measure.web.headers == (Header("X-Team", "qa"), Header("Authorization", secret=SecretKey("token", "bearer")))
    assert (measure.web.method, measure.web.body, measure.web.json_path) == ("POST", "{}", "{$.ok}")
    assert (measure.web.timeout_s, measure.web.insecure) == (3, True)
    (run,) = spec({"name": "smoke", "provider": JOB}).measured
    assert run.job and run.provider == "job" and run.job.deadline_s == 3600
    (query,) = spec({**RATE, "provider": {"prometheus": {**QUERY["prometheus"], "timeout": 7}}}).measured
    assert query.prometheus and query.prometheus.timeout_s == 7


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            {**RATE, "provider": {**QUERY, **JOB}},
            "provider is exactly one of prometheus, web, job, not prometheus, job",
        ),
        ({**RATE, "provider": {}}, "not none"),
        ({**RATE, "provider": {"datadog": {}}}, "not datadog"),
        ({**RATE, "event": "FirstAttemptError"}, "it has an event and a provider"),
        ({**RATE, "kind": "BadEvent"}, "kind Threshold goes with a provider"),
        ({**EVENT, "kind": "Threshold"}, "kind Threshold goes with a provider"),
        ({"name": "rate", "provider": QUERY}, "has no condition"),
        ({**RATE, "provider": JOB}, "a job succeeds or fails by itself"),
        ({**RATE, "interval": "2s"}, "interval is 2 s; it must be 5 s or longer"),
        ({**RATE, "interval": "soon"}, "'soon' is not a duration"),
        ({**RATE, "count": 3}, "count is 3 and there is no interval"),
        ({**RATE, "count": 2, "interval": "10s", "failureLimit": 2}, "can never exceed"),
        ({**RATE, "inconclusiveLimit": 1}, "can never exceed"),
        ({**RATE, "successCondition": "results > 1"}, "'results' is unknown"),
        ({**RATE, "failureCondition": "result >"}, "cannot be read"),
        ({**RATE, "provider": {"web": {"url": "http://q", "jsonPath": "a b"}}}, "jsonPath 'a b' cannot be read"),
        ({**RATE, "successCondition": "result < {{args.most}}"}, "{{args.most}} is not among spec.args"),
        ({"name": "none"}, "event '' is none of"),
        ({"name": "j", "provider": {"job": {"spec": {}}}}, "metric 'j': job.spec.template: is missing"),
        (EVENT, "two metrics have the same name"),
        ({**RATE, "dryRun": True, "name": "only"}, "no metric decides anything"),
    ],
)
def test_invalid_metric_is_refused_with_a_message(metric: dict[str, Any], message: str) -> None:
    others = [EVENT] if metric is EVENT else []
    found = parse("mine", template(*others, metric))
    assert found.spec is None
    assert message in found.problem and found.problem.startswith("AnalysisTemplate 'mine': ")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"name": "a"}, "argument 'a' has no value"),
        (
            {"name": "a", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}},
            "spec.args[0].valueFrom.fieldRef.fieldPath: must be 'metadata.name' or 'metadata.namespace', and is ",
        ),
    ],
)
def test_an_argument_without_a_value_is_refused(argument: dict[str, Any], message: str) -> None:
    assert message in parse("mine", template(RATE, args=[argument])).problem


def test_arguments_are_filled_in_everywhere() -> None:
    web = {"url": "http://{{ args.host }}/{{args.rev}}", "body": '{"r": "{{args.rev}}"}'}
    web["headers"] = [{"key": "X-Rev", "value": "{{args.rev}}"}]  # type: ignore[assignment]
    arguments = [{"name": "host", "value": "q"}, {"name": "rev", "valueFrom": {"podTemplateHashValue": "Latest"}}]
    (measure,) = spec(
        {**RATE, "provider": {"web": web}, "successCondition": "result == '{{args.rev}}'"}, args=arguments
    ).measured
    assert set(arguments_in(measure)) == {"host", "rev"}
    known = filled(measure, {"host": "q", "rev": "abc"})
    assert known.web and (known.web.url, known.web.body) == ("http://q/abc", '{"r": "abc"}')
    assert (known.web.headers[0].value, known.success) == ("abc", "result == 'abc'")
    assert measure.web and measure.web.url == web["url"], "the template stays as it is"
    pod = {"containers": [{"name": "a", "image": "b", "args": ["{{args.rev}}"]}]}
    (job,) = spec({"name": "j", "provider": {"job": {"spec": {"template": {"spec": pod}}}}}, args=arguments).measured
    run = filled(job, {"rev": "abc"}).job
    assert run and run.spec["template"]["spec"]["containers"][0]["args"] == ["abc"]


def test_spec_survives_a_round_trip_through_json() -> None:
    """What explain prints can be replayed."""
    given = spec(EVENT, RATE, {"name": "smoke", "provider": JOB, "dryRun": True}, args=[{"name": "a", "value": "b"}])
    assert read(strict(AnalysisSpec), encoded(to_json(given))) == given
    assert isinstance(given.measured[0], Measure)
