"""The status names a fallback without a ModelDeployment, and no longer once it is there."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from slipway_contracts.gateway_report import RouteReport, encoded
from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.component import ReconciledDeployment
from slipway_operator.fallbacks.runner import FallbackTargets
from slipway_operator.kube.reading.gateways import LONGEST_PROBLEM, Answer
from slipway_operator.model.cluster.observed import Gateway, Observed
from slipway_operator.model.deployment.spec import Invalid, parse
from slipway_operator.planning.conditions import table
from slipway_operator.planning.conditions.fallbacks import fallbacks_resolved
from tests.support.conditions import condition_facts

KEY = {"name": "openai", "key": "token"}
EXTERNAL = {"url": "https://api.openai.com/v1", "model": "gpt", "apiKeySecretRef": KEY}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def deployment(name: str, **traffic: Any) -> ReconciledDeployment:
    spec = {"model": {"uri": "file:///models/v1"}, "traffic": traffic}
    obj = {"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec}
    return ReconciledDeployment(("ns", name), obj, parse(obj))


CHAT = deployment(
    "chat", fallback=[{"name": "small"}, {"name": "openai", "external": EXTERNAL}], degradation={"name": "tiny"}
)


class Town:
    def __init__(self) -> None:
        self.objects: dict[ObjectKey, Object] = {}
        self.woken: list[ObjectKey] = []
        self.targets = FallbackTargets(self.objects.get, self.woken.append)

    def sees(self, one: ReconciledDeployment) -> tuple[str, ...]:
        self.objects[one.key] = one.obj
        return self.targets.observe(one, Observed()).missing_fallbacks

    def deletes(self, name: str) -> None:
        del self.objects["ns", name]
        self.targets.forget(("ns", name))


def test_names_without_a_deployment_are_found_and_no_provider_is_one() -> None:
    town = Town()
    assert town.sees(CHAT) == ("tiny", "small")
    town.sees(deployment("small"))
    assert town.woken == [("ns", "chat")] and town.sees(CHAT) == ("tiny",)
    town.sees(deployment("small"))
    assert len(town.woken) == 1, "only its first reconcile is news"
    town.deletes("small")
    assert town.woken[1:] == [("ns", "chat")] and town.sees(CHAT) == ("tiny", "small")


def test_whoever_names_nothing_any_more_is_not_woken() -> None:
    town = Town()
    town.sees(CHAT)
    town.sees(deployment("chat"))
    town.sees(deployment("small"))
    town.sees(CHAT)
    town.deletes("chat")
    town.deletes("small")
    assert town.woken == []


def test_the_condition_says_what_is_missing_and_goes_when_it_is_there() -> None:
    facts = condition_facts(CHAT.obj, missing_fallbacks=("small",))
    shown = fallbacks_resolved.condition(facts, None)
    assert shown and (shown.status, shown.reason) == ("False", "BackendNotFound") and "small" in shown.message
    assert table.reason([shown]) == "BackendNotFound"
    assert fallbacks_resolved.condition(condition_facts(CHAT.obj), shown) is None
    later = Condition(shown.type, "False", shown.reason, "another", NOW)
    assert [one.reason for one in table.events([later], [shown])] == ["FallbackNotFound"]
    assert not list(table.events([shown], [shown]))


def test_the_condition_says_which_key_of_a_provider_no_gateway_can_read() -> None:
    gateways = (
        Gateway("b", ready=True, reachable=True, key_problems=("Secret 'b'",)),
        Gateway("a", ready=True, reachable=True, key_problems=("Secret 'openai' may not be read", "Secret 'a'")),
        Gateway("0", ready=False, reachable=False, gone=True, key_problems=("of a gateway that is gone",)),
    )
    facts = condition_facts(CHAT.obj, gateways=gateways)
    with_provider = replace(facts, at=replace(facts.at, spec=CHAT.spec))
    shown = fallbacks_resolved.condition(with_provider, None)
    assert shown and (shown.status, shown.reason) == ("False", "KeyUnavailable")
    assert shown.message.endswith("API key: Secret 'a'; Secret 'openai' may not be read")
    assert [event.reason for event in table.events([], [shown])] == ["ProviderKeyUnavailable"]
    assert fallbacks_resolved.condition(facts, shown) is None, "a report may name what the spec lacks"


def test_a_report_may_hold_any_number_of_key_problems_of_any_length() -> None:
    report = RouteReport("u", 1, key_problems=("x" * 100_000,) * 1000)
    answer = Answer("gateway", ready=True, reachable=True, routes=encoded({"team/chat": report}))
    read = answer.about("team", "chat", "u").key_problems
    assert len(read) == 4 and all(len(problem) <= LONGEST_PROBLEM for problem in read)


@pytest.mark.parametrize(
    ("traffic", "message"),
    [
        ({"circuitBreaker": {"baseEjectionTime": "2h"}}, "baseEjectionTime is from 1s to 1h"),
        ({"fallback": [{"name": "a", "external": EXTERNAL | {"url": "http://x.test/v1"}}]}, "url"),
        ({"fallback": [{"name": "a", "external": EXTERNAL | {"url": "https://u:p@x.test/v1"}}]}, "url"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(traffic: dict[str, Any], message: str) -> None:
    spec = deployment("chat", **traffic).spec
    assert isinstance(spec, Invalid) and message in spec.message
