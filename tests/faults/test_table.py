"""The table of docs/faults.md: a row for every fault, in their order, and nothing else of the page changes."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.faults import CLIENTS, COPIES, FAULTS, ROOT, Row, markdown, put_rows, shortened, warmed
from e2e.page import TABLE_BEGINS, TABLE_ENDS
from slipway_operator.model.analysis.template import parse

ROWS = [
    Row(fault.name, judged, fault.released, "errors: 1 of 2", 41.4, 12, 300, 7, 9)
    for judged in (CLIENTS, COPIES)
    for fault in FAULTS
]
SENTENCE = (
    "analysis llm-default: errors: 9 of 132 bad (6.82%) on canary, 2 of 368 bad (0.54%) on stable; evidence e=173, 100 "
    "rejects"
)


def test_rows_stand_in_the_order_of_the_faults() -> None:
    lines = markdown(ROWS[::-1]).splitlines()
    assert [line.split(" | ")[0].lstrip("| ") for line in lines[-2 * len(FAULTS) :]] == [
        fault.name for fault in FAULTS
    ] * 2
    assert lines[-1].endswith("| copies | errors: 1 of 2 | 41 | 12 | 300 | 7 | 9 |")
    never_sent = replace(ROWS[0], seconds=None)
    assert "| - | 12 |" in markdown([never_sent])


def test_the_page_keeps_its_words(tmp_path: Path) -> None:
    page = tmp_path / "faults.md"
    page.write_text((ROOT / "docs" / "faults.md").read_text())
    before = page.read_text()
    put_rows(page, ROWS)
    put_rows(page, ROWS)
    head, _, rest = page.read_text().partition(TABLE_BEGINS)
    table, _, tail = rest.partition(TABLE_ENDS)
    assert head == before.partition(TABLE_BEGINS)[0] and tail == before.partition(TABLE_ENDS)[2]
    assert table.strip() == markdown(ROWS)


def test_a_table_without_all_faults_is_not_written(tmp_path: Path) -> None:
    page = tmp_path / "faults.md"
    page.write_text("words")
    with pytest.raises(ValueError, match=rf"no row for {FAULTS[-1].name} \(judged on copies\)"):
        put_rows(page, ROWS[:-1])
    with pytest.raises(ValueError, match="has no lines"):
        put_rows(page, ROWS)
    assert page.read_text() == "words"


def test_the_sentence_of_a_rejection_is_found_and_shortened() -> None:
    assert shortened(SENTENCE) == "errors: 9 of 132 bad (6.82%) on canary, 2 of 368 bad (0.54%) on stable"
    slower = "more than 15% slower than its twin in 1,021 of 1,400 pairs"
    for numbers in ("12 on canary alone, 0 on its twin alone", slower):
        assert shortened(f"step 1: analysis llm-release: ttft: {numbers}, evidence e=300") == f"ttft: {numbers}"
    assert len(shortened("x" * 999)) == 160
    [errors] = [fault for fault in FAULTS if fault.name.startswith("2 %")]
    assert re.search(errors.message, SENTENCE)
    assert not re.search(errors.message, SENTENCE.replace("errors:", "ttft:"))


def test_the_warmed_template_is_the_built_in_one_but_for_its_warm_up() -> None:
    spec = parse("warmed", warmed()["spec"]).spec
    built_in = parse("llm-default", {**warmed()["spec"], "minSamples": {}}).spec
    assert spec and built_in and spec.min_samples.warmup_seconds == 5
    assert replace(spec, min_samples=built_in.min_samples) == built_in
