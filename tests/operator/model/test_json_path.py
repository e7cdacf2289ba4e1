"""JSONPath as kubectl writes it, as far as it picks a value."""

from typing import Any

import pytest

from slipway_operator.model.analysis.json_path import LONGEST, InvalidPath, PathNotFound, check, pick

ANSWER = {"data": {"items": [{"ok": True, "the name": "a"}, {"ok": False}], "n": 3, "x-y": 1}}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("{$.data.n}", 3),
        ("$.data.n", 3),
        (".data.x-y", 1),
        ("{$.data.items[0].ok}", True),
        ("{$.data.items[-1].ok}", False),
        ("{$.data.items[0]['the name']}", "a"),
        ('{$["data"]["n"]}', 3),
        ("{$.data.items[*].ok}", [True, False]),
        ("{$}", ANSWER),
        ("", ANSWER),
    ],
)
def test_picks(path: str, expected: Any) -> None:
    assert pick(path, ANSWER) == expected


@pytest.mark.parametrize("path", ["{$.none}", "{$.data.items[2]}", "{$.data[0]}", "{$.data.n.x}", "{$.data[*]}"])
def test_missing_element_is_reported(path: str) -> None:
    with pytest.raises(PathNotFound, match="jsonPath"):
        pick(path, ANSWER)


@pytest.mark.parametrize(
    "path", ["{$..n}", "{$.a[?(@.x)]}", "{range .items[*]}", "a b", "{.a}{.b}", "." * (LONGEST + 1)]
)
def test_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidPath):
        check(path)
