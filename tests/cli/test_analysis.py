"""Analyses in `slipway status`: the verdict, the numbers behind it, and how long it takes."""

from typing import Any

import pytest

from slipway_cli.objects.deployment import read_deployment
from slipway_cli.rollouts.intents import Change, promote
from slipway_cli.views import status
from slipway_cli.views.steps import describe_steps
from tests.cli.objects import in_flight
from tests.cli.test_view import NOW, drawn

NUMBERS = {"evidence": "1", "threshold": "100", "canarySamples": 0, "stableSamples": 0, "canaryBad": 0, "stableBad": 0}
TTFT = {"name": "ttft", "finding": "Undecided", "evidence": "0.06", "threshold": "100", "needed": 600}
TTFT |= {"canarySamples": 412, "stableSamples": 1236, "canaryBad": 20, "stableBad": 62}
TTFT |= {"canaryRate": "4.85%", "stableRate": "5.02%"}
VERDICT = {
    "outcome": "Inconclusive",
    "reason": "Undecided",
    "message": "ttft: n=412, needs about 600 at this rate",
    "evidence": "0.19",
    "threshold": "100",
    "secondsLeft": 188,
    "metrics": [1, "forged", TTFT, {"name": "itl", "finding": "NoData", **NUMBERS}],
}


REFERENCE = ("verdict",)  # of a run, and of what a status has of it


def analyzing(field: str = "analysis", template: str = "llm-default", **run: Any) -> dict[str, Any]:
    """A ModelDeployment, with its AnalysisRuns in `runs`."""
    obj = in_flight("Analyzing", "Progressing")
    named = {"template": template, "run": "chat-run", "uid": "u1"}
    obj["status"]["rollout"][field] = named | {name: run[name] for name in REFERENCE if name in run}
    return obj | {"runs": [{"metadata": {"name": "chat-run", "uid": "u1"}, "status": run}]}


def look(obj: dict[str, Any]) -> status.View:
    return status.build_view(obj, [], [], NOW, runs=obj["runs"])


def test_a_verdict_is_shown_with_each_metric() -> None:
    lines = drawn(look(analyzing(verdict=VERDICT)))
    start = lines.index("├── analysis llm-default")
    assert lines[start + 1 : start + 6] == [
        "│   ├── Inconclusive (Undecided): ttft: n=412, needs about 600 at this rate; about 3m8s left",
        "│   ├── evidence 0.19 of 100 that rejects",
        "│   ├── METRIC   FINDING     BAD ON CANARY       BAD ON STABLE        EVIDENCE      NEEDS",
        "│   ├── ttft     Undecided   20 of 412 (4.85%)   62 of 1236 (5.02%)   0.06 of 100   412 of 600 samples",
        "│   └── itl      NoData      0 of 0 (-)          0 of 0 (-)           1 of 100      -",
    ]


def test_without_its_run_only_the_verdict_is_shown() -> None:
    """It was deleted, or another object has its name, or holds anything."""
    obj = analyzing(verdict=VERDICT)
    foreign = [{"metadata": {"name": "chat-run", "uid": "other"}, "status": {"verdict": VERDICT}}]
    for runs in ([], foreign, [{"metadata": {"name": "chat-run", "uid": "u1"}, "status": "forged"}]):
        lines = drawn(look(obj | {"runs": runs}))
        start = lines.index("├── analysis llm-default")
        assert lines[start + 1].startswith("│   └── Inconclusive (Undecided): ttft: n=412")


def test_pairs_are_shown_by_their_source_where_there_are_probes() -> None:
    pairs = {"users": 12, "probes": 288, "probesBadOnCanary": 1, "probesBadOnTwin": 2}
    shown = "│   ├── pairs: 12 copies of clients' requests, 288 probes (1 bad on canary alone, 2 on its twin alone)"
    assert shown in drawn(look(analyzing(verdict=VERDICT | {"pairs": pairs})))
    for none in ({"users": 300, "probes": 0}, {}, None, [1], "forged"):
        assert not [line for line in drawn(look(analyzing(verdict=VERDICT | {"pairs": none}))) if "pairs:" in line]


def test_texts_tokens_and_the_results_of_a_scorer_are_shown() -> None:
    quality = {"texts": 70, "textsDiffer": 9, "tokens": 3904, "flipsOnCanary": 12, "flipsOnTwin": 10}
    scores = {"pairs": 143, "lowerOnCanary": 12, "canaryMean": 0.812, "twinMean": 0.815, "unanswered": 2, "blocked": 0}
    lines = drawn(look(analyzing(verdict=VERDICT | {"quality": quality, "scores": scores})))
    for shown in (
        "texts: 9 of 70 pairs differ",
        "tokens of stable: 12 of 3904 are not canary's first choice, 10 not stable's",
        "scorer: of 143 pairs canary lower in 12, stable in 0; mean 0.812 on canary, 0.815 on stable; 2 unanswered",
    ):
        assert f"│   ├── {shown}" in lines
    for none in ({}, None, [1], "forged"):
        found = drawn(look(analyzing(verdict=VERDICT | {"quality": none, "scores": none})))
        assert not [line for line in found if "texts:" in line or "scorer:" in line]


@pytest.mark.finding("S12")
@pytest.mark.parametrize("outdated", ["no operator runs", None])
def test_forecasts_are_shown_only_while_an_operator_counts(outdated: str | None) -> None:
    """`about 102 min left` stayed for good after the operator was uninstalled."""
    obj = analyzing(verdict=VERDICT, readAt="2026-01-01T11:48:00Z" if outdated is None else "2026-01-01T11:59:59Z")
    obj["status"]["message"] = "analysis llm-default: Inconclusive, Undecided: n=412; about 102 min left; held"
    lines = drawn(status.build_view(obj, [], [], NOW, outdated=outdated, runs=obj["runs"]))
    assert not [line for line in lines if " left" in line]
    assert "analysis llm-default: Inconclusive, Undecided: n=412; held" in lines
    assert [line for line in lines if line.endswith(f"; last counted {'1s' if outdated else '12m'} ago")]


def test_metrics_with_a_provider_are_shown_with_their_last_value() -> None:
    verdict = {"outcome": "Inconclusive", "reason": "Measuring", "message": "score: 3 of 5 measurements"}
    score = {"name": "score", "phase": "Running", "successful": 2, "failed": 1, "inconclusive": 0, "error": 0}
    score["measurements"] = [{"phase": "Failed", "value": "0.2"}, {"phase": "Successful", "value": "0.9"}]
    lines = drawn(look(analyzing(verdict=verdict, measured=[score, {"name": "smoke", "phase": "Running"}])))
    start = lines.index("├── analysis llm-default")
    assert lines[start + 1 : start + 4] == [
        "│   ├── Inconclusive (Measuring): score: 3 of 5 measurements",
        "│   ├── score: Running; 2 successful, 1 failed; last value 0.9",
        "│   └── smoke: Running; not measured yet",
    ]


def test_run_without_a_verdict_is_counting_and_a_background_run_is_marked() -> None:
    obj = analyzing()
    obj["status"]["rollout"] |= analyzing("background", "mine", verdict=VERDICT)["status"]["rollout"]
    titles = {item.title: item.lines[0] for item in look(obj).analyses}
    assert titles["analysis llm-default"] == "counting; no verdict yet"
    assert titles["analysis mine in the background"].startswith("Inconclusive (Undecided)")
    assert status.to_data(look(obj))["analyses"][0]["title"] == "analysis llm-default"


def test_an_analysis_is_no_wait_for_pods() -> None:
    assert not [line for line in drawn(look(analyzing())) if "deadline" in line]


def test_an_analysis_step_in_words() -> None:
    analysis = {"templates": [{"templateName": "llm-default"}], "maxDuration": "60m"}
    assert list(describe_steps({"canary": {"steps": [{"analysis": analysis}]}})) == [
        "analysis llm-default, at most 60m"
    ]


def test_promote_names_the_analysis_that_it_skips() -> None:
    decided = promote(read_deployment(analyzing()))
    assert isinstance(decided, Change)
    assert "the analysis, without a verdict, at step 2 of 4 ends" in decided.text
