"""What is fuzzed without processes: the operator's reading, the gateway's tables, the fetcher's archives and folders.

Seeds are fixed, so that what is found is found again; `make fuzz` draws for minutes.
"""

from pathlib import Path

import pytest
from hypothesis import strategies as st

from bench.fuzz import folders, operator, parts
from bench.fuzz.crs import Drawn
from bench.fuzz.tally import Tally, count
from slipway_operator.model.deployment import status

EXAMPLES = {
    "specs": 240,
    "statuses": 240,
    "templates": 60,
    "routes files": 50,
    "routes of objects": 80,
    "archives": 120,
    "folders": 80,
    "reports of engines": 120,
}
ENDINGS = {
    "specs": {"Spec", "Invalid"},
    "statuses": {"Pending", "Progressing"},
    "templates": {"template", "problem"},
    "routes files": {"RouteTable", "Problem"},
    "routes of objects": {"Route", "Problem"},
    "archives": {"loads", "UnusableError", "CheckpointError"},
    "folders": {"loads", "UnusableError", "CheckpointError"},
    "reports of engines": {"estimated", "implausible", "as reported"},
}


@pytest.mark.finding(26)
@pytest.mark.integration  # for its time: some 15 s of a core
@pytest.mark.attack_class(3, 4, 5, 18, 21)
@pytest.mark.parametrize("part", parts.PARTS, ids=lambda part: part.name)
def test_nothing_that_is_drawn_ends_in_an_exception(part: parts.Part) -> None:
    """Safety 26: what strangers write, at the edges of each field."""
    found = parts.run(part, 20261123, examples=EXAMPLES[part.name])
    assert not found.failures, "\n".join(found.wrong)
    assert found.examples == EXAMPLES[part.name]
    assert ENDINGS[part.name] <= found.endings.keys(), "what is drawn is all sound, or all refused"
    assert len(found.fields) >= 0.2 * parts.fields_of(part)


@pytest.mark.integration  # for its time
def test_every_field_of_a_crd_can_be_drawn() -> None:
    crd = operator.crd("modeldeployments")
    for part in ("spec", "status"):
        names = {".".join(path) for path in crd.fields(part)}
        found: set[str] = set()

        def note(drawn: Drawn, tally: Tally, found: set[str] = found) -> None:
            found.update(drawn.fields)

        count(crd.drawn(part), note, 1, examples=500)
        assert found <= names and len(found) > 0.4 * len(names)


def test_an_exception_of_a_check_is_counted_with_its_place() -> None:
    def fails(example: int, tally: Tally) -> None:
        tally.ended("seen")
        if example > 50:
            raise KeyError("x")

    found = count(st.integers(0, 100), fails, 1, examples=50)
    assert 0 < found.failures < 50 and found.endings == {"seen": 50}
    assert found.wrong[0].startswith("KeyError: 'x' at test_fuzz_parts.py:")


def test_a_write_outside_of_the_folder_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(packed: Path, target: Path, max_bytes: int) -> list[str]:
        (target.parents[1] / "victim" / "evil.json").write_text("x")
        return []

    monkeypatch.setattr(folders, "unpack", careless)
    found = parts.run(parts.PARTS[5], 1, examples=3)
    assert found.failures == 3 and all(folders.OUTSIDE in wrong for wrong in found.wrong)


def test_a_link_that_was_unpacked_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(packed: Path, target: Path, max_bytes: int) -> list[str]:
        (target / "a").symlink_to("/etc/passwd")
        return []

    monkeypatch.setattr(folders, "unpack", careless)
    assert parts.run(parts.PARTS[5], 1, examples=3).failures == 3


def test_the_deployment_that_statuses_are_drawn_over_is_in_an_analysis() -> None:
    observed, written = operator.history()[-1]
    assert written["rollout"]["state"] == "Analyzing" and len(observed.workloads) == 2
    assert status.parse(written).rollout is not None


@pytest.mark.integration  # for its time
def test_bars_are_those_of_all_parts() -> None:
    rows, bars = parts.fuzz(1.5, 7)
    assert [row["part"] for row in rows] == [part.name for part in parts.PARTS]
    assert {bar.bar for bar in bars} == {parts.PARSER, parts.TABLE, parts.FETCHER, parts.WRITES, parts.CHARGES}
    assert all(bar.ok for bar in bars), rows
