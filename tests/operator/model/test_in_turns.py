"""Items in turns of their holders."""

import pytest

from slipway_operator.model.in_turns import in_turns


@pytest.mark.parametrize(("items", "expected"), [("", ""), ("aaabbc", "abcaba"), ("abc", "abc"), ("baab", "baba")])
def test_items_in_turns(items: str, expected: str) -> None:
    assert "".join(in_turns(items, lambda item: item)) == expected
