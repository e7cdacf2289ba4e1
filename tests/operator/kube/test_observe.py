"""AnalysisTemplates as they are found: there, built in, missing, or not to be read."""

from typing import Any

import pytest

from slipway_operator.kube.errors import NotFound, Refused, Unavailable
from slipway_operator.kube.reading.observe import analysis_templates
from slipway_operator.kube.resources import ANALYSIS_TEMPLATES
from slipway_operator.model.analysis.template import BUILT_IN, LLM_DEFAULT, Template
from slipway_operator.model.deployment.spec import parse

METRIC = {"name": "errors", "event": "FirstAttemptError", "share": 1.0}


class Namespace:
    """A client with fixed answers, which records the names that it gets."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.requested = answers, []

    async def get(self, resource: Any, namespace: str, name: str) -> Any:
        assert (resource, namespace) == (ANALYSIS_TEMPLATES, "default")
        self.requested.append(name)
        answer = self.answers.get(name.replace("-", "_"), NotFound("no such thing"))
        if isinstance(answer, Exception):
            raise answer
        return answer


def using(*names: str) -> dict[str, Any]:
    steps = [{"analysis": {"templates": [{"templateName": name}]}} for name in names]
    spec = {"model": {"uri": "file:///m"}, "strategy": {"canary": {"steps": steps or [{"setWeight": 5}]}}}
    return {"metadata": {"name": "chat", "namespace": "default"}, "spec": spec}


async def templates_of(client: Namespace, obj: dict[str, Any]) -> dict[str, Template]:
    return await analysis_templates(client, obj, parse(obj))  # type: ignore[arg-type]


async def test_each_template_is_read_once() -> None:
    client = Namespace(mine={"spec": {"metrics": [METRIC]}})
    found = await templates_of(client, using("mine", "llm-default", "mine"))
    assert client.requested == ["mine", "llm-default"]
    assert found["mine"].spec and found["mine"].spec.metrics[0].name == "errors"
    assert found["llm-default"] == BUILT_IN["llm-default"]


async def test_one_of_the_name_of_the_built_in_one_takes_its_place() -> None:
    client = Namespace(llm_default={"spec": {**LLM_DEFAULT, "falseRollbackRate": 0.1}})
    found = await templates_of(client, using("llm-default"))
    assert found["llm-default"].spec and found["llm-default"].spec.false_rollback_rate == 0.1


async def test_a_missing_one_and_a_forbidden_one_are_problems_in_words() -> None:
    client = Namespace(secret=Refused(403, "forbidden"))
    found = await templates_of(client, using("gone", "secret"))
    assert "'gone' does not exist in this namespace" in found["gone"].problem
    assert "'secret' cannot be read" in found["secret"].problem


async def test_an_api_server_that_is_away_is_no_missing_template() -> None:
    with pytest.raises(Unavailable):
        await templates_of(Namespace(mine=Unavailable("away")), using("mine"))


async def test_without_analyses_no_template_is_read() -> None:
    client = Namespace()
    assert await templates_of(client, using()) == {}
    assert client.requested == []
