"""The CRD of AnalysisTemplates: complete, closed, and every rule refuses what it should (real API server)."""

from typing import Any

import pytest

from slipway_operator.model.template import LLM_DEFAULT, parse
from tests.crds.objects import path
from tests.crds.schema import TEMPLATE_FILE, sentences, template_schema, version, walk
from tests.support.api_server import Answer, Api

METRIC = {"name": "errors", "event": "FirstAttemptError", "share": 0.5}


def spec(*metrics: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"metrics": [*(metrics or (METRIC,))], **fields}


def metric(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in {**METRIC, **fields}.items() if value is not None}


# What a sentence begins with: what it refuses, what it lets pass.
RULES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
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
    "tolerateRatio must be below maxRatio": (
        [spec(metric(tolerateRatio=2.0)), spec(metric(maxRatio=1.0))],
        [spec(metric(tolerateRatio=1.25, maxRatio=1.5))],
    ),
    "metrics of kind BadEvent are all there is in this release": (
        [spec(metric(kind=kind)) for kind in ("Threshold", "PairedDrift", "Web", "")],
        [spec(metric(kind="BadEvent"))],
    ),
    "event is FirstAttemptError, EmptyAnswer": (
        [spec(metric(event=event)) for event in ("", "Errors", "Slower(ttft, stable.p0)", "Slower(tpot, stable.p95)")],
        [
            spec(metric(event=event))
            for event in (
                "NonFiniteLogits",
                "InvalidJSON",
                "HungAnswer",
                "Slower(itl,stable.p5)",
                "Slower(e2e, stable.p99)",
            )
        ],
    ),
    "each veto stands in spec.vetoes once": (
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


def test_nothing_is_open() -> None:
    for where, node in walk(template_schema()):
        assert "x-kubernetes-preserve-unknown-fields" not in node and "additionalProperties" not in node, where
        assert node.get("type") != "object" or node.get("properties") or where == "metadata", where


def test_every_rule_is_tried() -> None:
    for sentence in sentences(template_schema()):
        assert any(sentence.startswith(says) for says in RULES), sentence


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
@pytest.mark.parametrize("says", RULES)
def test_rule_refuses_with_its_sentence_and_nothing_else(api: Api, says: str) -> None:
    bad, good = RULES[says]
    for given in bad:
        answer = dry_run(api, given)
        assert answer.status == 422, f"accepted: {given}"
        assert says in answer.message, given
    for given in good:
        answer = dry_run(api, given)
        assert answer.ok, f"{given}: {answer.message}"


@pytest.mark.integration
def test_the_schema_refuses_what_makes_no_sense(api: Api) -> None:
    for given in REFUSED_BY_THE_SCHEMA:
        assert dry_run(api, given).status == 422, f"accepted: {given}"


@pytest.mark.integration
@pytest.mark.parametrize("field", ["provider", "successCondition", "failureLimit"])
def test_what_is_not_there_is_refused_by_name(api: Api, field: str) -> None:
    answer = dry_run(api, spec(metric(**{field: {"prometheus": {"query": "up"}}})))
    assert answer.status == 400 and f'unknown field "spec.metrics[0].{field}"' in answer.message


@pytest.mark.integration
def test_defaults_are_those_of_the_operator(api: Api) -> None:
    """What the API server fills in means what the operator takes an absent field for."""
    answer = dry_run(api, spec())
    assert answer.ok, answer.message
    assert parse("mine", answer.body["spec"]) == parse("mine", spec())


@pytest.mark.integration
def test_the_built_in_template_would_be_accepted(api: Api) -> None:
    answer = dry_run(api, dict(LLM_DEFAULT))
    assert answer.ok, answer.message
    assert parse("llm-default", answer.body["spec"]) == parse("llm-default", LLM_DEFAULT)
