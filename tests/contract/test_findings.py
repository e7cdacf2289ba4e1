"""Every finding of the safety review, and each story that it refers to, has a test.

`pytest.mark.finding(26, "S1")` names them. `pytest -m finding` runs all of them.
"""

import pytest

from docs.markers import tests as marked

FINDINGS = range(1, 28)
STORIES = ("S1", "S2", "S4", "S5", "S6", "S12", "S13", "S14", "S15")


@pytest.mark.parametrize("one", [*FINDINGS, *STORIES])
def test_it_has_a_test(one: int | str) -> None:
    assert marked("finding")[one], f"no test is marked with pytest.mark.finding({one!r})"


def test_no_mark_names_another() -> None:
    assert set(marked("finding")) == {*FINDINGS, *STORIES}


def test_the_marker_counts_modules_and_functions() -> None:
    found = marked("finding")
    assert (
        "tests/operator/planning/test_forged_status.py::test_attempts_that_are_none_are_dropped_and_said" in found[26]
    )
    assert "tests/gateway/test_budget.py::test_what_is_read_is_counted" not in found[25]
    assert all(name.startswith(("tests/", "e2e/")) for names in found.values() for name in names)
