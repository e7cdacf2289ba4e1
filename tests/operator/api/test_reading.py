"""Reading custom resources: typed values, and sentences that name the path."""

from typing import Any

import pytest

from slipway_contracts.api.reading import LONGEST, UnreadableObject, encoded, read
from slipway_operator.api.v1alpha1.analysis_template import AnalysisTemplateSpec
from slipway_operator.api.v1alpha1.provider import WebMetricHeader

METRIC: dict[str, Any] = {"name": "errors", "event": "FirstAttemptError", "share": 1}


def test_absent_field_has_its_default() -> None:
    spec = read(AnalysisTemplateSpec, encoded({"metrics": [METRIC], "invented": 1}))
    assert (spec.false_rollback_rate, spec.on_inconclusive, spec.min_samples.canary_requests) == (0.01, "Pause", 300)
    assert spec.metrics[0].share == 1.0 and spec.args == ()


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({}, "spec.metrics: is missing"),
        (None, "spec: must be an object, and is 'None'"),
        ({"metrics": 3}, "spec.metrics: must be a list, and is '3'"),
        ({"metrics": []}, "spec.metrics: must have at least 1 item"),
        ({"metrics": [METRIC] * 33}, "spec.metrics: must have at most 32 items"),
        ({"metrics": [{**METRIC, "share": 2}]}, "spec.metrics[0].share: must be at most 1, and is '2'"),
        ({"metrics": [{**METRIC, "share": 0}]}, "spec.metrics[0].share: must be above 0, and is '0'"),
        ({"metrics": [{**METRIC, "share": "1"}]}, "spec.metrics[0].share: must be a number, and is '1'"),
        ({"metrics": [{**METRIC, "count": 1.5}]}, "spec.metrics[0].count: must be a whole number, and is '1.5'"),
        ({"metrics": [{**METRIC, "count": 0}]}, "spec.metrics[0].count: must be at least 1, and is '0'"),
        ({"metrics": [{**METRIC, "dryRun": 1}]}, "spec.metrics[0].dryRun: must be true or false, and is '1'"),
        ({"metrics": [{**METRIC, "name": "A!"}]}, "spec.metrics[0].name: must match ^[a-z0-9]"),
        ({"metrics": [{**METRIC, "name": 1}]}, "spec.metrics[0].name: must be a text, and is '1'"),
        ({"metrics": [{**METRIC, "name": "a" * 64}]}, "spec.metrics[0].name: must have at most 63 characters"),
        (
            {"metrics": [METRIC], "onInconclusive": "Wait"},
            "spec.onInconclusive: must be 'Pause', 'Continue', 'Abort' or 'PromoteIf', and is 'Wait'",
        ),
        ({"metrics": [METRIC], "minSamples": 3}, "spec.minSamples: must be an object, and is '3'"),
        ({"metrics": [METRIC], "staleSeconds": 10**30}, "spec.staleSeconds: must be at most 86400"),
    ],
)
def test_unreadable_field_is_named_by_its_path(written: Any, message: str) -> None:
    with pytest.raises(UnreadableObject) as found:
        read(AnalysisTemplateSpec, encoded(written), "spec")
    assert str(found.value).startswith(message)


def test_a_path_without_an_end_makes_no_message_without_one() -> None:
    header = {"key": "a", "value": 1}
    with pytest.raises(UnreadableObject) as found:
        read(dict[str, WebMetricHeader], encoded({"k" * 5000: header}))
    assert len(str(found.value)) == LONGEST


def test_message_lists_first_mistakes_and_cuts_long_values() -> None:
    with pytest.raises(UnreadableObject) as found:
        read(AnalysisTemplateSpec, encoded({"metrics": [{**METRIC, "share": "x" * 500}] * 9}), "spec")
    message = str(found.value)
    assert message.count("must be a number") == 5 and message.endswith("; and 4 more") and len(message) < 700


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"a": object()}])
def test_invalid_json_is_refused_with_a_message(value: Any) -> None:
    with pytest.raises(UnreadableObject, match="it is no JSON"):
        read(AnalysisTemplateSpec, encoded(value))
