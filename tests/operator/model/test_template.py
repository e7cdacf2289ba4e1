"""Identity of templates: a new hash restarts every analysis in progress."""

import pytest

from slipway_operator.model.analysis.template import BUILT_IN, LLM_DEFAULT, found


@pytest.mark.parametrize(
    ("name", "golden"),
    [("llm-default", "2c8d7cd1dc"), ("llm-release", "420b7ce2ea"), ("llm-shadow-drift", "f4436d76d5")],
)
def test_golden_hashes_of_the_built_in_ones(name: str, golden: str) -> None:
    assert BUILT_IN[name].hash == golden


def test_hash_depends_on_the_content_and_not_on_the_name() -> None:
    assert found("mine", LLM_DEFAULT).hash == BUILT_IN["llm-default"].hash
    assert found("mine", {**LLM_DEFAULT, "falseRollbackRate": 0.02}).hash != BUILT_IN["llm-default"].hash
