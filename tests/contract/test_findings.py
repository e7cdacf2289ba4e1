"""Every finding of the safety reviews, and each story that the first one refers to, has a test.

`pytest.mark.finding(26, "S1")` names them; those of the second review are `"F1"` to `"F21"`, those of a live trial
`"L1"` and others. `pytest -m finding` runs all of them.
"""

import pytest

from docs.markers import tests as marked

FINDINGS = range(1, 28)
STORIES = ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S10", "S11", "S12", "S13", "S14", "S15")

SECOND = tuple(f"F{number}" for number in range(1, 22))
LIVE = tuple(f"L{number}" for number in range(1, 15))


@pytest.mark.parametrize("one", [*FINDINGS, *STORIES, *SECOND, "L1"])
def test_it_has_a_test(one: int | str) -> None:
    assert marked("finding").get(one), f"no test is marked with pytest.mark.finding({one!r})"


def test_no_mark_names_another() -> None:
    assert set(marked("finding")) <= {*FINDINGS, *STORIES, *SECOND, *LIVE}


def test_the_marker_counts_modules_and_functions() -> None:
    found, file = marked("finding"), "tests/operator/planning/test_forged_status.py"
    one = f"{file}::test_invalid_attempts_are_dropped_and_reported"
    assert one in found[26] and one in found["S1"] and one not in found[25]
    of_file = {finding: {name for name in found[finding] if name.startswith(file)} for finding in (26, "S1")}
    assert of_file["S1"] > of_file[26]
