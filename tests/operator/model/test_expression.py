"""Conditions over `result`: the functions of Argo, and no dangerous ones."""

import math

import pytest

from slipway_operator.model.analysis.expression import DEEPEST, LONGEST, NotANumber, Unclear, check, holds

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("text", "result", "expected"),
    [
        ("result[0] >= 0.95", [0.95], True),
        ("result[0] >= 0.95", [0.9], False),
        ("result < 0.05", 0.01, True),
        ("len(result) == 0 || result[0] < 0.05", [], True),
        ("len(result) == 0 || result[0] < 0.05", [0.5], False),
        ("result.ok && result.latency.p95 <= 1.5", {"ok": True, "latency": {"p95": 1.5}}, True),
        ("result['ok'] and not result['slow']", {"ok": True, "slow": False}, True),
        ("!result.slow", {"slow": True}, False),
        ("!(result > 1) && result != 0.5", 0.75, True),
        ('result == "a && !b"', "a && !b", True),
        ("result == 'it''s' || true", "x", True),
        ("result in ['green', 'yellow']", "yellow", True),
        ("'error' not in result", "all is well", True),
        ("0.1 < result < 0.3", 0.2, True),
        ("0.1 < result < 0.3", 0.3, False),
        ("(result[0] - result[1]) / result[1] * 100 <= 5", [104.0, 100.0], True),
        ("result % 2 == 1", 3, True),
        ("-result < 1", -0.5, True),
        ("result[-1] > 1", [0, 2], True),
        ("isNaN(result[0]) || result[0] < 0.05", [NAN], True),
        ("isInf(result)", INF, True),
        ("default(result, 0) == 0", None, True),
        ("default(result[0], 0) == 0", [], True),
        ("default(result, 7) == 0", 0, True),
        ("default(result[0], 1) == 1", [NAN], True),
        ("asFloat(result) < 1", "0.5", True),
        ("result > '5'", "6", True),
        ("result > 5", "6", True),
        ("asInt(result) == 3", 3.9, True),
        ("result == nil", None, True),
        ("result == true", True, True),
    ],
)
def test_value_of_each_condition(text: str, result: object, expected: bool) -> None:
    assert holds(text, result) is expected


@pytest.mark.parametrize("text", ["result < 1", "result == 1", "1 > result", "result + 1 < 2", "not (result >= 1)"])
def test_nan_is_compared_with_nothing(text: str) -> None:
    """In Argo a failureCondition is false for NaN, and a canary without data passes."""
    with pytest.raises(NotANumber):
        holds(text, NAN)


@pytest.mark.parametrize(
    ("text", "result", "why"),
    [
        ("result[0] < 1", [], "there are 0 values"),
        ("result.ok", {"fine": True}, "there is no field 'ok'"),
        ("result[0] < 1", 5, "the number 5 has no such part"),
        ("result.ok", "text", "a text has no such part"),
        ("result", 1, "must be true or false"),
        ("result && true", 1, "must be true or false"),
        ("result < 1", "many", "a text is no number"),
        ("result < 1", True, "true is no number"),
        ("result < 1", None, "nil is no number"),
        ("1 / result < 1", 0, "divides by zero"),
        ("len(result) > 1", 5, "has no length"),
        ("1 in result", 5, "nothing is in"),
        ("asInt(result) > 1", INF, "is no integer"),
        ("result > 1", 10**400, "is no number"),
        ("result['a' ", {}, "cannot be read"),
        ("", {}, "cannot be read"),
    ],
)
def test_condition_without_a_meaning_is_refused_with_the_reason(text: str, result: object, why: str) -> None:
    with pytest.raises(Unclear, match=why.replace("(", r"\(")):
        holds(text, result)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "result.__class__()",
        "(lambda: 1)()",
        "[x for x in result]",
        "result := 1",
        "result ** 9999",
        "result << 9",
        "f'{result}'",
        "open('x')",
        "true or open('x')",
        "result if result else 1",
        "results > 1",
        "{1: 2}",
        "result[0:1] == []",
        "len(result, 1) > 0",
        "default(result) == 1",
        "len(x=result) > 0",
        "result is nil",
        "~result == 1",
        "b'x' == result",
        "await result",
        "result; result",
    ],
)
def test_other_syntax_is_refused(text: str) -> None:
    with pytest.raises(Unclear):
        check(text)
        holds(text, {"__class__": 1})


def test_attributes_are_fields_of_the_answer_alone() -> None:
    with pytest.raises(Unclear, match="there is no field '__class__'"):
        holds("result.__class__ == 1", {})
    assert holds("result.__class__ == 1", {"__class__": 1})


@pytest.mark.parametrize(
    "text", ["(" * 300 + "1" + ")" * 300, "-" * (LONGEST - 1) + "1", "!" * (DEEPEST + 5) + "true", "1" * (LONGEST + 1)]
)
def test_huge_condition_is_refused_in_bounded_time(text: str) -> None:
    with pytest.raises(Unclear):
        check(text)
