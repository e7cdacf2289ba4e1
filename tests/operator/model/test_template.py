"""Identity of templates: a new hash restarts every analysis in progress; and scorers of pairs."""

import pytest

from slipway_contracts.twin_shadow import TwinScorer
from slipway_operator.api.objects import Json
from slipway_operator.model.analysis.template import BUILT_IN, LLM_DEFAULT, found, parse


@pytest.mark.parametrize(
    ("name", "golden"),
    [("llm-default", "2c8d7cd1dc"), ("llm-release", "420b7ce2ea"), ("llm-shadow-drift", "f4436d76d5")],
)
def test_golden_hashes_of_the_built_in_ones(name: str, golden: str) -> None:
    assert BUILT_IN[name].hash == golden


def test_hash_depends_on_the_content_and_not_on_the_name() -> None:
    assert found("mine", LLM_DEFAULT).hash == BUILT_IN["llm-default"].hash
    assert found("mine", {**LLM_DEFAULT, "falseRollbackRate": 0.02}).hash != BUILT_IN["llm-default"].hash


SCORED: Json = {
    "name": "scored",
    "kind": "PairedEvent",
    "event": "LowerScore",
    "dryRun": True,
    "scorer": {"url": "https://quality.example.com/score", "content": "Send"},
}
BAD_PAIRS: Json = {"name": "bad", "kind": "PairedEvent", "event": "BadResponse", "share": 0.5, "maxExtra": 10}


def test_a_scorer_has_defaults() -> None:
    found = parse("mine", {"metrics": [BAD_PAIRS, SCORED]}).spec
    assert found and found.metrics[1].scorer == TwinScorer("https://quality.example.com/score", 10, 100, 10)
    assert found.metrics[0].scorer is None and found.bounded == found.metrics[0]


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        (SCORED | {"scorer": None}, "needs scorer"),
        (SCORED | {"kind": None}, "event 'LowerScore' is none of"),
        (SCORED | {"event": "TokensFlip"}, "scorer goes with event LowerScore"),
        (SCORED | {"scorer": {"url": "https://a/"}}, "content"),
        (SCORED | {"scorer": {"url": "https://a/", "content": "Keep"}}, "content"),
        (SCORED | {"scorer": SCORED["scorer"] | {"margin": 0.0005}}, "scorer.margin is in thousandths"),
        (SCORED | {"scorer": SCORED["scorer"] | {"percentage": 0}}, "percentage"),
        (SCORED | {"scorer": SCORED["scorer"] | {"timeoutSeconds": 61}}, "timeoutSeconds"),
        (SCORED | {"dryRun": None, "share": 0.1}, "it could never pass; give it maxExtra"),
    ],
)
def test_a_scorer_that_gateways_cannot_call_is_named(metric: Json, why: str) -> None:
    written = {key: value for key, value in metric.items() if value is not None}
    assert why in parse("mine", {"metrics": [BAD_PAIRS, written]}).problem


def test_two_scorers_are_one_too_many() -> None:
    problem = parse("mine", {"metrics": [BAD_PAIRS, SCORED, SCORED | {"name": "second"}]}).problem
    assert "a pair is given to one" in problem
