"""Drawn custom resources, against a real API server and the operator's parser: accepted, or refused with a message."""

import http.client
import json
import re
from typing import Any

import pytest

from bench.fuzz import operator
from bench.fuzz.crs import Drawn
from bench.fuzz.tally import Tally, count
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.analysis import template
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.deployment import spec, status
from testkit.cluster.api import GROUP_PATH, Answer, Api
from tests.support.planned import plan

pytestmark = [pytest.mark.integration, pytest.mark.attack_class(18, 22)]

EXAMPLES = 150
LEAST_SHARE = 0.05  # of each ending: which values are drawn depends on every field of the schema
UNREADABLE = re.compile(
    r"cannot (unmarshal|be handled|parse|convert)|invalid (character|UTF-8)|into Go|strict decoding", re.IGNORECASE
)


@pytest.fixture(autouse=True)
def warnings_without_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server sends a header for each unknown field, and Python takes a hundred."""
    monkeypatch.setattr(http.client, "_MAXHEADERS", 10_000)


@pytest.fixture
def live(api: Api, namespace: str) -> dict[str, Any]:
    """A ModelDeployment that is there."""
    manifest = operator.crd("modeldeployments").manifest(operator.NAME, namespace, operator.SOUND)
    made = api.post(f"{GROUP_PATH}/namespaces/{namespace}/modeldeployments", manifest)
    assert made.ok, made.message
    return made.body


def _sent(api: Api, namespace: str, plural: str, drawn: Drawn) -> Answer:
    """As if it were created; invalid unicode is replaced as in JSON."""
    manifest = operator.crd(plural).manifest("drawn", namespace, drawn.value)
    return api.post(f"{GROUP_PATH}/namespaces/{namespace}/{plural}", manifest, dryRun="All")


def _check_refusal(answer: Answer) -> None:
    """The message names the wrong field, or the body is no such object."""
    assert answer.status in (400, 422), (answer.status, answer.message)
    causes = (answer.body.get("details") or {}).get("causes") or []
    named = any(str(cause.get("field", "")).startswith("spec") for cause in causes) or "spec" in answer.message
    assert named or UNREADABLE.search(answer.message), answer.body


@pytest.mark.finding(26)
def test_accepted_object_is_planned_or_refused_in_a_condition(api: Api, namespace: str, live: dict[str, Any]) -> None:
    """Safety 26. The API server must accept the status with that condition too: else the user never sees it."""

    def check(drawn: Drawn, tally: Tally) -> None:
        answer = _sent(api, namespace, "modeldeployments", drawn)
        tally.ended("taken" if answer.ok else "refused")
        if not answer.ok:
            return _check_refusal(answer)
        obj = {**answer.body, "metadata": live["metadata"]}
        parsed = spec.parse(obj)
        tally.ended(type(parsed).__name__)
        made = plan(obj, Status(), Observed(), operator.SETTINGS, operator.NOW)
        if isinstance(parsed, spec.Invalid):
            (accepted,) = (one for one in made.status.conditions if one.type == "Accepted")
            assert (accepted.status, accepted.message) == ("False", parsed.message) and len(parsed.message) > 20
        written = {**live, "status": status.render(made.status)}
        put = api.put(f"{GROUP_PATH}/namespaces/{namespace}/modeldeployments/chat/status", written, dryRun="All")
        assert put.ok, f"the status is refused: {put.message}"
        return None

    found = count(operator.specs(), check, 20261123, examples=EXAMPLES)
    assert not found.failures, "\n".join(found.wrong)
    assert min(found.endings["taken"], found.endings["refused"]) > LEAST_SHARE * EXAMPLES, found.endings


@pytest.mark.finding(26)
def test_accepted_template_is_parsed_or_refused_with_a_message(api: Api, namespace: str) -> None:
    """Safety 26."""

    def check(drawn: Drawn, tally: Tally) -> None:
        answer = _sent(api, namespace, "analysistemplates", drawn)
        tally.ended("taken" if answer.ok else "refused")
        if not answer.ok:
            return _check_refusal(answer)
        read = template.found("drawn", answer.body["spec"])
        assert read.problem == "" or read.problem.startswith("AnalysisTemplate 'drawn': ")
        return None

    found = count(operator.templates(), check, 20261123, examples=EXAMPLES)
    assert not found.failures, "\n".join(found.wrong)
    assert found.endings["taken"] > 0.05 * EXAMPLES and found.endings["refused"] > LEAST_SHARE * EXAMPLES, found.endings


@pytest.mark.finding(26)
def test_accepted_status_is_planned_from_and_overwritten(api: Api, namespace: str, live: dict[str, Any]) -> None:
    """Safety 26: others may write a status that the schema accepts; the operator overwrites it."""
    path = f"{GROUP_PATH}/namespaces/{namespace}/modeldeployments/chat/status"

    def check(drawn: Drawn, tally: Tally) -> None:
        # Without warnings: the client takes a hundred headers, and each unknown field would be one.
        answer = api.put(path, {**live, "status": drawn.value}, dryRun="All", fieldValidation="Ignore")
        tally.ended("taken" if answer.ok else "refused")
        if not answer.ok:
            return None
        obj = json.loads(json.dumps(answer.body))
        made = plan(obj, status.parse(obj.get("status")), Observed(), operator.SETTINGS, operator.NOW)
        put = api.put(path, {**live, "status": status.render(made.status)}, dryRun="All")
        assert put.ok, f"the status is refused: {put.message}"
        return None

    found = count(operator.statuses(), check, 20261123, examples=EXAMPLES)
    assert not found.failures, "\n".join(found.wrong)
    assert found.endings["taken"] > LEAST_SHARE * EXAMPLES, found.endings
