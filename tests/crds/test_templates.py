"""The CRD of AnalysisTemplates: complete, closed, and every rule refuses invalid templates (real API server)."""

import copy
import re
from typing import Any

import pytest
import yaml

from slipway_operator.model.analysis.template import LLM_DEFAULT, LLM_RELEASE, SHADOW_DRIFT, parse
from testkit import ROOT
from testkit.cluster.api import Answer, Api
from tests.crds.objects import path
from tests.crds.schema import TEMPLATE_FILE, sentences, template_schema, version, walk

METRIC = {"name": "errors", "event": "FirstAttemptError", "share": 0.5}
QUERY = {"prometheus": {"address": "http://prometheus.monitoring.svc:9090", "query": "up"}}
SCORE = {"web": {"url": "https://quality.tools.svc/score?a=b@c", "jsonPath": "{$.ok}"}}
POD: dict[str, Any] = {"restartPolicy": "Never", "volumes": [], "containers": [{"name": "a", "image": "b"}]}
SMOKE = {"job": {"spec": {"backoffLimit": 0, "template": {"spec": POD}}}}
RATE: dict[str, Any] = {"name": "rate", "provider": QUERY, "successCondition": "result[0] >= 0.95"}


def spec(*metrics: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"metrics": [*(metrics or (METRIC,))], **fields}


def metric(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in {**METRIC, **fields}.items() if value is not None}


def rate(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in {**RATE, **fields}.items() if value is not None}


def web(**fields: Any) -> dict[str, Any]:
    return rate(provider={"web": {**SCORE["web"], **fields}})


def argument(**fields: Any) -> dict[str, Any]:
    return spec(RATE, args=[{"name": "a", **fields}])


def smoke(container: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A template with a Job whose pod has other fields."""
    pod = {**POD, "containers": [{**POD["containers"][0], **(container or {})}], **fields}
    provider = {"job": {"spec": {"template": {"spec": pod}}}}
    return spec(rate(name="smoke", provider=provider, successCondition=None))


def volume(**source: Any) -> dict[str, Any]:
    return smoke(volumes=[{"name": "v", **source}])


TOKEN = {"secretKeyRef": {"name": "token", "key": "bearer"}}
STABLE = {"podTemplateHashValue": "Stable"}

PAIRED: dict[str, Any] = {"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 0.5, "maxExtra": 10}
SLOWER = "Slower(ttft, stable.p95)"
SCORER = {"url": "https://quality.tools.svc/score", "content": "Send"}


def paired(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in {**PAIRED, **fields}.items() if value is not None}


# The start of a message: the templates that it refuses, and those that it accepts.
RULES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "FellBack counts split requests: leave kind out": (
        [
            {"metrics": [{"name": "a", "event": "FellBack", "kind": "PairedEvent", "maxExtra": 10}]},
            {"metrics": [{"name": "a", "event": "FellBack", "kind": "PairedEvent", "dryRun": True}]},
        ],
        [{"metrics": [{"name": "a", "event": "FellBack", "share": 0.1, "okBelow": 0.01}]}],
    ),
    "an analysis Job shares nothing with its node": (
        [smoke(**{field: True}) for field in ("hostNetwork", "hostPID", "hostIPC")],
        [smoke(hostNetwork=False), smoke()],
    ),
    "an analysis Job runs under the service account default": (
        [smoke(serviceAccountName="admin")],
        [smoke(serviceAccountName="default")],
    ),
    "an analysis Job gets no API token": (
        [smoke(automountServiceAccountToken=True)],
        [smoke(automountServiceAccountToken=False)],
    ),
    "volumes of an analysis Job are emptyDir and configMap": (
        [
            volume(hostPath={"path": "/"}),
            volume(secret={"secretName": "a"}),
            volume(projected={"sources": []}),
            volume(csi={"driver": "a"}),
            volume(persistentVolumeClaim={"claimName": "a"}),
        ],
        [volume(emptyDir={}), volume(configMap={"name": "a"})],
    ),
    "containers of an analysis Job have no privileges": (
        [smoke({"securityContext": {field: True}}) for field in ("privileged", "allowPrivilegeEscalation")],
        [smoke({"securityContext": {"privileged": False, "runAsUser": 7}})],
    ),
    "no metric of spec.metrics decides anything": (
        [spec(metric(dryRun=True)), spec(metric(dryRun=True, share=None))],
        [spec(metric(), metric(name="b", dryRun=True, share=None))],
    ),
    "the shares of spec.metrics must add up to 1 at most": (
        [spec(metric(share=0.6), metric(name="b", share=0.5))],
        [spec(*(metric(name=f"m{n}", share=0.1) for n in range(10))), spec(metric(), metric(name="b", dryRun=True))],
    ),
    "the names of spec.metrics must differ": ([spec(metric(), metric(share=0.1))], [spec(metric(), metric(name="b"))]),
    "a metric needs a share of falseRollbackRate": (
        [spec(metric(), metric(name="b", share=None))],
        [spec(metric(), metric(name="b", share=None, dryRun=True))],
    ),
    "maxExtra goes with an event of split requests": (
        [
            spec(metric(event="Slower(ttft, stable.p95)", maxExtra=10)),
            spec(metric(kind="PairedDrift", event="AnswerDiffers", maxExtra=10)),
            spec(paired(event="PredictionDisagreement", maxDisagreement=0.05, maxExtra=10)),
            spec(rate(maxExtra=10)),
        ],
        [spec(metric(event="BadResponse", maxExtra=10)), spec(metric(maxExtra=0.5))],
    ),
    "maxSlowdown goes with a latency": (
        [spec(metric(event="BadResponse", maxSlowdown=0.15)), spec(rate(maxSlowdown=0.15))],
        [spec(metric(event="Slower(ttft, stable.p95)", maxSlowdown=0.15))],
    ),
    "a metric passes by okBelow and maxRatio, or by": (
        [spec(metric(okBelow=0.01, maxExtra=10))],
        [spec(metric(okBelow=0.01)), spec(metric(maxExtra=10))],
    ),
    "onInconclusive: PromoteIf and promoteIf go together": (
        [
            spec(metric(maxExtra=10), onInconclusive="PromoteIf"),
            spec(metric(maxExtra=10), promoteIf={"maxExtra": 30}),
        ],
        [spec(metric(maxExtra=10), onInconclusive="PromoteIf", promoteIf={"maxExtra": 30})],
    ),
    "promoteIf needs a bound to compare with": (
        [spec(onInconclusive="PromoteIf", promoteIf={"maxExtra": 30})],
        [spec(metric(maxExtra=10), onInconclusive="PromoteIf", promoteIf={"maxExtra": 30})],
    ),
    "tolerateRatio must be below maxRatio": (
        [spec(metric(tolerateRatio=2.0)), spec(metric(maxRatio=1.0))],
        [spec(metric(tolerateRatio=1.25, maxRatio=1.5))],
    ),
    "kind is BadEvent, Threshold, PairedDrift or PairedEvent": (
        [spec(metric(kind=kind)) for kind in ("Web", "")],
        [spec(metric(kind="BadEvent"), rate(kind="Threshold"), paired())],
    ),
    "a metric of kind PairedEvent passes by maxExtra or maxSlowdown": (
        [spec(paired(**fields)) for fields in ({"okBelow": 0.01, "maxExtra": None}, {"maxRatio": 3.0})]
        + [spec(paired(tolerateRatio=1.25))],
        [spec(paired()), spec(paired(event=SLOWER, maxExtra=None, maxSlowdown=0.15))],
    ),
    "a latency of kind PairedEvent is compared with that of the twin": (
        [spec(paired(event=SLOWER, maxExtra=None)), spec(paired(event=SLOWER, maxExtra=None, dryRun=True))],
        [spec(paired(event=SLOWER, maxExtra=None, maxSlowdown=0.15))],
    ),
    "a metric of kind PairedEvent could never pass": (
        [
            spec(paired(maxExtra=None)),
            spec(paired(), paired(name="b", event="TruncatedAnswer", maxExtra=None)),
            spec(paired(), paired(name="b", event="TokensFlip", maxExtra=None)),
            spec(paired(), paired(name="b", event="LowerScore", maxExtra=None, scorer=SCORER)),
            spec(paired(dryRun=True), paired(name="b", event="EmptyAnswer", maxExtra=None)),
            spec(metric(event="BadResponse", maxExtra=10), paired(name="b", event="EmptyAnswer", maxExtra=None)),
        ],
        [
            spec(paired(), paired(name="b", event="EmptyAnswer", maxExtra=None)),
            spec(paired(), paired(name="b", event="TruncatedAnswer", maxExtra=None, dryRun=True)),
            spec(paired(event="PredictionDisagreement", maxExtra=None, maxDisagreement=0.05)),
        ],
    ),
    "the shares of the metrics of kind PairedEvent must add up to 1 at most": (
        [spec(paired(share=0.6), paired(name="b", share=0.5))],
        [spec(paired(share=0.6), metric(share=0.5))],
    ),
    "AnswerDiffers, TokensFlip and PredictionDisagreement go with kind: PairedDrift": (
        [
            spec(metric(kind=kind, event=event))
            for kind, event in (
                ("PairedDrift", METRIC["event"]),
                ("BadEvent", "AnswerDiffers"),
                ("BadEvent", "TokensFlip"),
                ("PairedEvent", "AnswerDiffers"),
            )
        ],
        [spec(metric(event=event)) for event in ("AnswerDiffers", "TokensFlip")]
        + [spec(metric(kind="PairedDrift", event=event)) for event in ("AnswerDiffers", "TokensFlip")]
        + [spec(paired(), paired(name="b", event="TokensFlip", maxExtra=50))]
        + [spec(paired(), paired(name="b", event="TokensFlip", maxExtra=None, dryRun=True))]
        + [spec(paired(event="PredictionDisagreement", maxExtra=None, maxDisagreement=0.05, tolerance={}))]
        + [spec(paired(), paired(name="b", event="PredictionDisagreement", maxExtra=None, dryRun=True))],
    ),
    "event LowerScore, kind PairedEvent and scorer go together": (
        [
            spec(paired(), paired(name="b", event="LowerScore", maxExtra=50)),
            spec(metric(), metric(name="b", event="LowerScore", scorer=SCORER)),
            spec(paired(), paired(name="b", event="TokensFlip", maxExtra=50, scorer=SCORER)),
            spec(RATE, rate(name="b", scorer=SCORER)),
        ],
        [
            spec(paired(), paired(name="b", event="LowerScore", maxExtra=50, scorer=SCORER)),
            spec(
                paired(),
                paired(name="b", event="LowerScore", maxExtra=None, dryRun=True, scorer=SCORER | {"margin": 0}),
            ),
        ],
    ),
    "url must be http:// or https:// with a host and without credentials": (
        [
            spec(paired(), paired(name="b", event="LowerScore", maxExtra=50, scorer=SCORER | {"url": url}))
            for url in ("", "quality.tools.svc", "ftp://a/", "http://", "http://user@a/", "http://a b/", "{{args.url}}")
        ],
        [
            spec(
                paired(),
                paired(name="b", event="LowerScore", maxExtra=50, scorer=SCORER | {"url": "http://a:1/x?y=z@b"}),
            )
        ],
    ),
    "kind Threshold goes with a provider": (
        [spec(metric(kind="Threshold")), spec(rate(kind="BadEvent"))],
        [spec(metric(), RATE)],
    ),
    "a metric either counts an event or queries a provider": (
        [spec(metric(event=None)), spec(metric(provider=QUERY, successCondition="result > 1"))],
        [spec(RATE)],
    ),
    "a metric has exactly one provider": (
        [spec(rate(provider={**QUERY, **SCORE})), spec(rate(provider={}))],
        [spec(rate(provider=provider)) for provider in (QUERY, SCORE)],
    ),
    "a metric with a provider has no share": (
        [spec(rate(share=0.5)), spec(rate(okBelow=0.1))],
        [spec(rate(dryRun=True), metric())],
    ),
    "a metric with provider prometheus or web needs a condition": (
        [spec(rate(successCondition=None)), spec(rate(provider=SCORE, successCondition=None))],
        [
            spec(rate(successCondition=None, failureCondition="result[0] < 0.5")),
            spec(rate(failureCondition="isNaN(result[0])")),
        ],
    ),
    "a job succeeds or fails by itself": (
        [spec(rate(provider=SMOKE)), spec(rate(provider=SMOKE, successCondition=None, failureCondition="result"))],
        [spec(rate(provider=SMOKE, successCondition=None))],
    ),
    "interval, initialDelay, count, conditions and limits belong to a metric with a provider": (
        [
            spec(metric(**{field: value}))
            for field, value in (
                ("interval", "1m"),
                ("initialDelay", "1m"),
                ("count", 1),
                ("successCondition", "result > 1"),
                ("failureCondition", "result > 1"),
                ("failureLimit", 0),
                ("inconclusiveLimit", 0),
                ("consecutiveErrorLimit", 4),
                ("consecutiveSuccessLimit", 0),
            )
        ],
        [
            spec(
                rate(
                    interval="1m",
                    initialDelay="1m",
                    count=9,
                    failureLimit=2,
                    inconclusiveLimit=2,
                    consecutiveErrorLimit=0,
                )
            )
        ],
    ),
    "count above 1 needs interval": ([spec(rate(count=2))], [spec(rate(count=1)), spec(rate(count=2, interval="5s"))]),
    "count must be above failureLimit": (
        [spec(rate(failureLimit=1)), spec(rate(count=3, interval="10s", failureLimit=3))],
        [
            spec(rate(count=3, interval="10s", failureLimit=2)),
            spec(rate(interval="10s", failureLimit=3)),
            spec(rate(failureLimit=-1)),
        ],
    ),
    "count must be above inconclusiveLimit": (
        [spec(rate(inconclusiveLimit=1)), spec(rate(count=3, interval="10s", inconclusiveLimit=3))],
        [spec(rate(count=3, interval="10s", inconclusiveLimit=2)), spec(rate(interval="10s", inconclusiveLimit=3))],
    ),
    "interval is written in hours, minutes and seconds": (
        [spec(rate(interval=text)) for text in ("10", "1d", "soon", "10 s", "1.5m")],
        [spec(rate(interval=text)) for text in ("10s", "1h30m", "90s")],
    ),
    "interval must be 5s or longer": (
        [spec(rate(interval=text)) for text in ("0s", "4s", "0m4s")],
        [spec(rate(interval="5s"))],
    ),
    "initialDelay is written in hours, minutes and seconds": (
        [spec(rate(initialDelay=text)) for text in ("10", "1d", "-5s")],
        [spec(rate(initialDelay=text)) for text in ("0s", "10m")],
    ),
    "address must be http:// or https://": (
        [
            spec(rate(provider={"prometheus": {"address": address, "query": "up"}}))
            for address in ("prometheus:9090", "ftp://p", "http://", "http://user:word@p", "http://a b")
        ],
        [
            spec(rate(provider={"prometheus": {"address": address, "query": "up"}}), args=[{"name": "p", "value": "x"}])
            for address in ("https://p/prefix", "http://{{args.p}}:9090", "{{args.p}}", "{{ args.p }}/x")
        ],
    ),
    "url must be http:// or https://": (
        [spec(web(url=url)) for url in ("quality/score", "file:///etc/passwd", "http://user@q/", "{{x}}")],
        [spec(web(url=url)) for url in ("http://q/score?x=1&y=a@b", "http://[::1]:80/x")],
    ),
    "web.body goes with POST and PUT": (
        [spec(web(body="{}")), spec(web(body="{}", method="GET"))],
        [spec(web(body="{}", method="POST"))],
    ),
    "a header has either value or valueFrom": (
        [spec(web(headers=[{"key": "a"}])), spec(web(headers=[{"key": "a", "value": "b", "valueFrom": TOKEN}]))],
        [spec(web(headers=[{"key": "a", "value": "b"}, {"key": "Authorization", "valueFrom": TOKEN}]))],
    ),
    "the names of spec.args must differ": (
        [spec(RATE, args=[{"name": "a", "value": "1"}, {"name": "a", "value": "2"}])],
        [spec(RATE, args=[{"name": "a", "value": "1"}, {"name": "b", "value": "1"}])],
    ),
    "an argument of spec.args has either value or valueFrom": (
        [argument(), argument(value="1", valueFrom=STABLE)],
        [argument(value=""), argument(valueFrom=STABLE)],
    ),
    "valueFrom of an argument has either podTemplateHashValue or fieldRef": (
        [argument(valueFrom={}), argument(valueFrom={**STABLE, "fieldRef": {"fieldPath": "metadata.name"}})],
        [argument(valueFrom={"fieldRef": {"fieldPath": "metadata.namespace"}})],
    ),
    "event is BadResponse, FirstAttemptError": (
        [spec(metric(event=event)) for event in ("", "Errors", "Slower(ttft, stable.p0)", "Slower(tpot, stable.p95)")],
        [
            spec(metric(event=event))
            for event in (
                "BadResponse",
                "NonFiniteLogits",
                "InvalidJSON",
                "HungAnswer",
                "Slower(itl,stable.p5)",
                "Slower(e2e, stable.p99)",
            )
        ],
    ),
    "WrongAnswer and PredictionDrift count split requests": (
        [
            spec(metric(event="WrongAnswer", kind="PairedEvent", maxExtra=10)),
            spec(metric(event="WrongAnswer", kind="PairedDrift")),
            spec(metric(event="PredictionDrift", kind="PairedDrift", maxPsi=0.2)),
        ],
        [
            spec(metric(event="WrongAnswer")),
            spec(metric(event="WrongAnswer", kind="BadEvent", maxExtra=20)),
            spec(metric(event="PredictionDrift", kind="BadEvent", maxPsi=0.2)),
        ],
    ),
    "PredictionDrift is a report with dryRun: true, and rejects with maxPsi": (
        [
            spec(metric(event="PredictionDrift")),
            spec(metric(maxPsi=0.2)),
            *(
                spec(metric(event="PredictionDrift", maxPsi=0.2, **{margin: value}))
                for margin, value in (("okBelow", 0.1), ("maxExtra", 10), ("maxRatio", 3.0), ("tolerateRatio", 1.5))
            ),
        ],
        [
            spec(metric(event="PredictionDrift", maxPsi=0.2)),
            spec(metric(), metric(name="b", event="PredictionDrift", share=None, dryRun=True)),
        ],
    ),
    "CostIncrease is a report with dryRun: true, and decides with maxCostIncrease": (
        [
            spec(metric(), metric(name="b", event="CostIncrease", share=0.1)),
            spec(metric(maxCostIncrease=0.1)),
            spec(metric(), metric(name="b", event="CostIncrease", share=0.1, maxCostIncrease=0.1, kind="PairedEvent")),
            *(
                spec(
                    metric(), metric(name="b", event="CostIncrease", share=0.1, maxCostIncrease=0.1, **{margin: value})
                )
                for margin, value in (("okBelow", 0.1), ("maxRatio", 3.0), ("tolerateRatio", 1.5))
            ),
        ],
        [
            spec(metric(), metric(name="b", event="CostIncrease", share=0.1, maxCostIncrease=0.1)),
            spec(metric(), metric(name="b", event="CostIncrease", share=0.1, maxCostIncrease=10, kind="BadEvent")),
            spec(metric(), metric(name="b", event="CostIncrease", share=None, dryRun=True)),
        ],
    ),
    "PredictionDisagreement is a report with dryRun: true, and decides with maxDisagreement": (
        [
            spec(metric(event="PredictionDisagreement")),
            spec(paired(), paired(name="b", event="PredictionDisagreement", maxExtra=None)),
            spec(metric(maxDisagreement=0.1)),
            spec(metric(event="TokensFlip", maxDisagreement=0.1)),
            spec(paired(), paired(name="b", event="TokensFlip", maxDisagreement=0.1)),
            spec(paired(), paired(name="b", event="TokensFlip", maxExtra=None, maxDisagreement=0.1, tolerance={})),
            spec(metric(tolerance={"relative": 0.1})),
            spec(metric(), metric(name="b", event="EmptyAnswer", share=None, dryRun=True, maxDisagreement=0.1)),
            *(
                spec(metric(event="PredictionDisagreement", maxDisagreement=0.1, **{margin: value}))
                for margin, value in (("okBelow", 0.1), ("maxRatio", 3.0), ("tolerateRatio", 1.5))
            ),
        ],
        [
            spec(metric(event="PredictionDisagreement", maxDisagreement=0.1)),
            spec(metric(event="PredictionDisagreement", maxDisagreement=0.5, kind="PairedDrift", tolerance={})),
            spec(
                metric(event="PredictionDisagreement", maxDisagreement=0.1, tolerance={"relative": 0, "absolute": 2.5})
            ),
            spec(metric(), metric(name="b", event="PredictionDisagreement", share=None, dryRun=True)),
            spec(paired(event="TokensFlip", maxExtra=None, maxDisagreement=0.1)),
            spec(paired(), paired(name="b", event="TokensFlip", maxExtra=None, maxDisagreement=0.1, dryRun=True)),
        ],
    ),
    "the names of spec.vetoes must differ": (
        [spec(vetoes=[{"name": "PodCrashLoop"}, {"name": "PodCrashLoop", "limit": 2}])],
        [spec(vetoes=[{"name": "PodCrashLoop"}, {"name": "CanaryCutOff"}])],
    ),
    "a veto is PodCrashLoop, CanaryCutOff or CanaryUnavailable in this release": (
        [spec(vetoes=[{"name": name}]) for name in ("SelfTestFailed", "NonFiniteLogits", "")],
        [spec(vetoes=[{"name": "PodCrashLoop", "limit": 3}, {"name": "CanaryUnavailable"}])],
    ),
}
REFUSED_BY_THE_SCHEMA = [
    spec(falseRollbackRate=0),
    spec(falsePromoteRate=1),
    spec(onInconclusive="Retry"),
    spec(metric(name="No Name")),
    spec(metric(share=1.5)),
    spec(metric(okBelow=0)),
    spec(metric(tolerateRatio=0)),
    spec(metric(share=0), metric(name="b")),
    spec(maxLoadDifference=0),
    {"metrics": []},
    spec(minSamples={"warmupSeconds": -1}),
    spec(rate(successCondition="")),
    spec(rate(count=0)),
    spec(rate(failureLimit=-2)),
    spec(rate(provider={"job": {}})),
    spec(rate(provider={"job": {"spec": {"backoffLimit": 0}}}, successCondition=None)),
    spec(rate(provider={"prometheus": {"address": "http://p"}})),
    spec(rate(provider={"prometheus": {"address": "http://p", "query": "up", "timeout": 0}})),
    spec(web(method="DELETE")),
    spec(web(headers=[{"key": "a b", "value": "c"}])),
    spec(web(headers=[{"key": "a", "valueFrom": {"secretKeyRef": {"name": "token"}}}])),
    argument(valueFrom={"podTemplateHashValue": "Canary"}),
    argument(valueFrom={"fieldRef": {"fieldPath": "spec.replicas"}}),
]


def template(given: dict[str, Any], name: str = "mine") -> dict[str, Any]:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "AnalysisTemplate",
        "metadata": {"name": name},
        "spec": given,
    }


def dry_run(api: Api, given: dict[str, Any]) -> Answer:
    where = path("default", plural="analysistemplates")
    return api.post(where, template(given), dryRun="All", fieldValidation="Strict")


def test_every_field_is_described_in_a_sentence() -> None:
    nodes = [(where, node) for where, node in walk(template_schema()) if where != "metadata"]
    assert [where for where, node in nodes if not node.get("description", "").rstrip().endswith(".")] == []


# The schema lists forbidden fields of a JobSpec; the operator refuses unknown fields by name.
OPEN = "spec.metrics[].provider.job.spec"


def test_only_fields_that_the_api_server_checks_itself_are_open() -> None:
    for where, node in walk(template_schema()):
        if where.startswith(OPEN):
            continue
        assert "x-kubernetes-preserve-unknown-fields" not in node and "additionalProperties" not in node, where
        assert node.get("type") != "object" or node.get("properties") or where == "metadata", where


def test_every_rule_is_tried() -> None:
    for sentence in sentences(template_schema()):
        assert any(sentence.startswith(message) for message in RULES), sentence


def test_columns() -> None:
    columns = version(TEMPLATE_FILE)["additionalPrinterColumns"]
    assert [column["name"] for column in columns] == [
        "False-Rollback",
        "False-Promote",
        "On-Inconclusive",
        "Age",
        "Metrics",
    ]


@pytest.mark.integration
@pytest.mark.parametrize("message", RULES)
def test_rule_refuses_with_its_sentence_and_nothing_else(api: Api, message: str) -> None:
    bad, good = RULES[message]
    for given in bad:
        answer = dry_run(api, given)
        assert answer.status == 422, f"accepted: {given}"
        assert message in answer.message, given
    for given in good:
        answer = dry_run(api, given)
        assert answer.ok, f"{given}: {answer.message}"


@pytest.mark.integration
def test_schema_refuses_invalid_templates(api: Api) -> None:
    for given in REFUSED_BY_THE_SCHEMA:
        assert dry_run(api, given).status == 422, f"accepted: {given}"


@pytest.mark.integration
@pytest.mark.parametrize("field", ["measurementRetention", "provider.datadog", "provider.prometheus.insecure"])
def test_unknown_field_is_refused_by_name(api: Api, field: str) -> None:
    given = copy.deepcopy(RATE)
    node = given
    *parents, leaf = field.split(".")
    for parent in parents:
        node = node[parent]
    node[leaf] = {}
    answer = dry_run(api, spec(given))
    assert answer.status == 400 and f'unknown field "spec.metrics[0].{field}"' in answer.message


@pytest.mark.integration
def test_defaults_are_those_of_the_operator(api: Api) -> None:
    """Defaults of the API server equal the operator's defaults for absent fields."""
    answer = dry_run(api, spec())
    assert answer.ok, answer.message
    assert parse("mine", answer.body["spec"]) == parse("mine", spec())
    answer = dry_run(api, spec(RATE, web(), rate(name="smoke", provider=SMOKE, successCondition=None)))
    assert "the names of spec.metrics must differ" in answer.message
    thresholds = spec(RATE, {**web(), "name": "score"}, rate(name="smoke", provider=SMOKE, successCondition=None))
    answer = dry_run(api, thresholds)
    assert answer.ok, answer.message
    assert parse("mine", answer.body["spec"]) == parse("mine", thresholds)


@pytest.mark.integration
def test_templates_of_the_documentation_are_accepted_and_parsed(api: Api) -> None:
    page = (ROOT / "docs" / "judge.md").read_text()
    shown = [
        yaml.safe_load(block) for block in re.findall(r"```yaml\n(apiVersion: slipway.dev.*?)```", page, re.DOTALL)
    ]
    assert {item["kind"] for item in shown} == {"AnalysisTemplate"}
    answers = [dry_run(api, item["spec"]) for item in shown]
    assert all(answer.ok for answer in answers), [answer.message for answer in answers]
    measured, compared = (parse("quality", answer.body["spec"]).spec for answer in answers)
    assert measured and [metric.provider for metric in measured.measured] == ["prometheus", "web", "job"]
    assert compared and [metric.event for metric in compared.metrics] == ["FirstAttemptError", "WrongAnswer"]


@pytest.mark.integration
@pytest.mark.parametrize("built_in", [LLM_DEFAULT, LLM_RELEASE, SHADOW_DRIFT])
def test_built_in_templates_would_be_accepted(api: Api, built_in: dict[str, Any]) -> None:
    answer = dry_run(api, dict(built_in))
    assert answer.ok, answer.message
    assert parse("built-in", answer.body["spec"]) == parse("built-in", built_in)
