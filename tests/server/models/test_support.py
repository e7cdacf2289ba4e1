"""Any config.json has a verdict: whatever it contains, the result is a message and never an exception."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.models_page import published
from slipway_server.models.support import CLASSIFIER, ENCODER, FALLBACK, NATIVE, REFUSED, check_support

FACTS = published()
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))


@pytest.mark.finding(8, 9)
@pytest.mark.parametrize("entry", FACTS, ids=lambda entry: f"{entry.repository} {entry.note}".strip())
def test_each_published_model_is_served_as_documented(entry: Any) -> None:
    """Safety 8 and 9."""
    verdict = entry.verdict
    assert verdict.served == entry.served
    assert bool(verdict.reason) == (entry.served in (FALLBACK, REFUSED))


def test_the_page_lists_at_least_25_repositories_of_each_weight() -> None:
    assert len({entry.repository for entry in FACTS}) >= 25
    assert {entry.served for entry in FACTS} == {NATIVE, FALLBACK, ENCODER, CLASSIFIER, REFUSED}


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A published config with one to three fields changed, taken out or added."""
    config = dict(draw(st.sampled_from(FACTS)).config)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(config)) | st.text(max_size=8))
        if draw(st.booleans()):
            config.pop(name, None)
        else:
            config[name] = draw(VALUES)
    rope = config.get("rope_scaling")
    if isinstance(rope, dict) and rope:
        config["rope_scaling"] = rope | {draw(st.sampled_from(sorted(rope))): draw(VALUES)}
    return config


@pytest.mark.attack_class(18)
@settings(max_examples=300, deadline=None)
@given(config=mutated(), pooled=st.booleans())
def test_any_config_is_decided_without_an_exception(config: dict[str, Any], pooled: bool) -> None:
    verdict = check_support(config, pooled=pooled)
    assert verdict.served in (NATIVE, FALLBACK, ENCODER, CLASSIFIER, REFUSED)
    assert verdict.reason or verdict.served in (NATIVE, ENCODER, CLASSIFIER)
