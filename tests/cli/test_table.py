"""Tables, times and durations."""

import pytest

from slipway_cli.objects import times
from slipway_cli.views import table


def test_columns_are_as_wide_as_they_need_to_be() -> None:
    assert table.format_table(["name", "age"], [["a", None], ["longer", "3d"]]) == [
        "NAME     AGE",
        "a",
        "longer   3d",
    ]


def test_a_terminal_gets_no_control_characters_of_others() -> None:
    assert table.format_table(["name"], [["a\x1b[2J\x9b"], ["b"]]) == ["NAME", "a?[2J?", "b"]


def test_a_table_of_the_server_may_name_its_namespaces() -> None:
    rows = [{"cells": ["chat", 7], "object": {"metadata": {"namespace": "demo"}}}]
    answer = {"columnDefinitions": [{"name": "Name"}, {"name": "Weight"}], "rows": rows}
    assert table.format_server_table(answer, with_namespace=False) == ["NAME   WEIGHT", "chat   7"]
    assert table.format_server_table(answer, with_namespace=True)[1] == "demo        chat   7"
    assert table.format_server_table({"rows": []}, with_namespace=False) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (45.9, "45s"), (192, "3m12s"), (3600, "1h"), (90061, "1d1h"), (-5, "0s")]
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert times.format_duration(seconds) == text


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30s", 30), ("1h30m", 5400), ("0s", 0), ("2d", 172800)])
def test_durations_are_read(text: str, seconds: int) -> None:
    assert times.parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "1.5h", "10 m", "-3s", "5m1h"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 30s, 10m or 1h30m"):
        times.parse_duration_s(text)
