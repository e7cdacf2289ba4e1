"""Accuracy after the rollout on the page of a deployment."""

from types import SimpleNamespace
from typing import Any

import pytest

from slipway_console.access.api_server import Viewer
from slipway_console.serving.rendering import Rendering
from slipway_console.serving.sessions import Session
from slipway_console.views.accuracy import read_accuracy

LABELS: dict[str, Any] = {
    "signal": "Feedback", "since": "2026-10-01T00:00:00Z", "limits": "0.1 None 0.1", "limit": 0.1,
    "counts": [1700, 300], "evidence": 1.0, "alarmSince": "2026-11-02T10:00:00Z", "alarms": 1,
    "finding": "150 of 1,000 labels are wrong",
    "periods": ["2026-10-01T00:00:00Z 950:50", "2026-11-01T00:00:00Z 450:50", "2026-11-02T00:00:00Z 400:100"],
}  # fmt: skip
BINS: dict[str, Any] = {
    "signal": "Predictions", "since": "2026-10-01T00:00:00Z", "referenceRule": "1000 604800", "evidence": 0.01,
    "reference": [500, 500, 0], "referenceUntil": "2026-10-09T00:00:00Z", "periods": ["2026-11-02T00:00:00Z 100:300:0"],
}  # fmt: skip


def deployment(*monitors: dict[str, Any], bins: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    revision = {"revision": "aaaaaaaaaa", "monitors": list(monitors), "bins": bins or {"cuts": ["1.5", "2.5"]}}
    accuracy = {"readAt": "2026-11-02T12:00:00Z", "revisions": [revision]}
    return {"metadata": {"name": "chat"}, "status": {"stableRevision": "aaaaaaaaaa", "accuracy": accuracy, **status}}


def test_labels_are_drawn_by_day_against_their_limit() -> None:
    (found,) = read_accuracy(deployment(LABELS))
    assert found.sentence == "1,000 labels in the last seven days, 15.00% wrong; the limit is 10.00%"
    assert found.serves and found.evidence == 1.0 and found.finding == "150 of 1,000 labels are wrong"
    assert found.chart is not None and len(found.chart.line.split()) == 3
    assert (found.days[0].day, found.days[0].labels, found.days[0].wrong) == ("2026-11-02", "500", "100")


def test_bins_have_their_range_or_the_checksum_of_their_label() -> None:
    (found,) = read_accuracy(deployment(BINS))
    assert [(row.name, row.reference, row.week) for row in found.bins] == [
        ("up to 1.5", "50.0%", "25.0%"), ("1.5 to 2.5", "50.0%", "75.0%"),
    ]  # fmt: skip
    (labels,) = read_accuracy(deployment(BINS, bins={"labels": [1, 255]}))
    assert [row.name for row in labels.bins] == ["label with CRC-32 00000001", "label with CRC-32 000000ff"]


def test_a_reference_that_is_taken_is_said_and_a_former_revision_comes_last() -> None:
    taken = LABELS | {"limit": None, "referenceRule": "2000 0", "reference": [90, 10], "alarmSince": None}
    obj = deployment(taken)
    obj["status"]["accuracy"]["revisions"].insert(0, {"revision": "bbbbbbbbbb", "monitors": [LABELS]})
    found = read_accuracy(obj)
    assert [one.revision for one in found] == ["aaaaaaaaaa", "bbbbbbbbbb"] and not found[1].serves
    assert "the baseline is being taken, of 100 labels so far" in found[0].sentence and found[0].chart is None


@pytest.mark.parametrize(
    "change",
    [
        {"periods": ["x", "2026-11-02T00:00:00Z", "0001-01-02T00:00:00Z 9:9", f"2026-11-02T00:00:00Z {'9' * 300}:1"]},
        {"periods": ["2026-11-02T00:00:00Z 0:0"]}, {"limit": 0}, {"counts": None}, {"evidence": None},
        {"signal": "Else"},
    ],
)  # fmt: skip
def test_a_status_by_another_hand_ends_no_page(change: dict[str, Any]) -> None:
    assert len(read_accuracy(deployment(LABELS | change, BINS | {"reference": [1, 2, 3, 4, 5]}))) == 2
    assert read_accuracy({"metadata": {}, "status": None}) == ()


def test_the_section_has_the_picture_and_its_texts_are_escaped() -> None:
    hostile = LABELS | {"finding": "<script>alert(1)</script>"}
    subject = SimpleNamespace(
        evidence=(), accuracy=read_accuracy(deployment(hostile, BINS)), former=SimpleNamespace(rows=())
    )
    session = Session("i", Viewer("u", "t"), "c", 1.0)
    values: dict[str, Any] = {"here": "", "namespace": "a", "name": "b", "subject": subject, "metric_columns": ()}
    page = Rendering().page("deployment_evidence.html", session, **values).text
    assert page and "<svg" in page and "Labels by day" in page and "1.5 to 2.5" in page
    assert "<script>" not in page and "an alarm is raised at 1" in page
