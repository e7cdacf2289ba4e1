"""Identity of templates: another hash begins every analysis under way anew."""

import pytest

from slipway_operator.model.analysis.template import BUILT_IN, LLM_DEFAULT, found


@pytest.mark.parametrize(("name", "golden"), [("llm-default", "5a5b6aa3d0"), ("llm-shadow-drift", "12b4015382")])
def test_golden_hashes_of_the_built_in_ones(name: str, golden: str) -> None:
    assert BUILT_IN[name].hash == golden


def test_the_hash_follows_what_it_asks_for_and_not_how_it_is_named() -> None:
    assert found("mine", LLM_DEFAULT).hash == BUILT_IN["llm-default"].hash
    assert found("mine", {**LLM_DEFAULT, "falseRollbackRate": 0.02}).hash != BUILT_IN["llm-default"].hash
