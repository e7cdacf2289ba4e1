"""AnalysisRuns are of 256 KiB at most at every limit of their fields, and their contents are the run's."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from slipway_contracts.counters import MAX_COUNT
from slipway_operator.api.schema import structural
from slipway_operator.api.v1alpha1 import analysis_run as api
from slipway_operator.api.v1alpha1.analysis_run import MOST_BYTES, RunStatus
from slipway_operator.api.v1alpha1.provider import AnalysisPhase, Measurement, MetricRun
from slipway_operator.manifests.analysis_run import METADATA_BYTES, RunTooLarge, analysis_run, run_name
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.analysis.stored_run import stored_run
from slipway_operator.planning.analysis import counting, trace
from slipway_operator.planning.analysis.series import noted
from tests.operator.planning.test_continuing import counting as counting_world
from tests.support.model_gateway import START

OWNER = Owner("chat" + "x" * 48, "n" * 63, "u" * 36)
RUN = RunStatus("r" * 10 + "/4294967295/background", "t" * 253, "h" * 10, START, START, sequence=1)
NAME, TEXT = "m" * 63, "x" * api.LONGEST_TEXT
COUNTS = api.MetricCounts(MAX_COUNT, MAX_COUNT, MAX_COUNT, MAX_COUNT)
EPOCH = api.Epoch(99, MAX_COUNT, MAX_COUNT, MAX_COUNT, MAX_COUNT)
ROW = api.MetricRow(NAME, "NotCompared", *(MAX_COUNT,) * 4, "10^-44", "1e+03", "100.00%", "100.00%", MAX_COUNT)
VERDICT = api.RunVerdict(
    api.Outcome.INCONCLUSIVE, api.Reason.SAMPLE_RATIO_MISMATCH, TEXT, START, "1e+03", "1e+03", metrics=(ROW,) * 32
)
MEASUREMENT = Measurement(START, AnalysisPhase.ERROR, "v" * 256, "m" * 256)


def by_name(number: int) -> dict[str, api.MetricCounts]:
    return {f"{number:03}{NAME[3:]}": COUNTS for number in range(number)}


# What counting itself keeps at most, with the longest names and numbers.
LIMITS: dict[str, dict[str, Any]] = {
    "counts of many metrics": {
        "counts": tuple(api.Counts(name, (EPOCH,) * (counting.MOST_CELLS // 128)) for name in by_name(128))
    },
    "counts of many epochs": {"counts": tuple(api.Counts(name, (EPOCH,) * 64) for name in by_name(16))},
    "assigned": {"assigned": (EPOCH,) * 200, "clocks": (2**31 - 1,) * 200},
    "seen of many gateways": {"seen": (api.Seen("i" * 64, MAX_COUNT, MAX_COUNT, MAX_COUNT, by_name(4)),) * 256},
    "seen of many metrics": {"seen": (api.Seen("i" * 64, MAX_COUNT, MAX_COUNT, MAX_COUNT, by_name(128)),) * 8},
    "left out": {"left_out": ("i" * 64,) * 256},
    "thresholds": {"thresholds": (api.LatencyThreshold(NAME, "b<4k,stream" * 3, 1 / 3, 1 / 7),) * 256},
    "former times": {"former_times": (api.FormerTimes("ttft", "b<4k,stream", (MAX_COUNT,) * 128),) * 64},
    "trace": {"trace": (api.Moment(MAX_COUNT, 63, by_name(128)),) * 128},
    "series": {
        "series": (
            api.MetricSeries(NAME, "ExtraPerThousand", 1000.0, (api.SeriesPoint(10**9, -1e-7, 1e-7, MAX_COUNT),) * 120),
        )
        * 32
    },
    "harm": {"harm": (api.HarmPoint(10**9, 1 / 3, 99),) * 120},
    "measured": {"measured": (MetricRun(NAME, measurements=(MEASUREMENT,) * 10, message="m" * 256),) * 32},
    "verdict": {"verdict": VERDICT},
    "decisions": {"decisions": (api.VerdictChange(START, VERDICT.outcome, VERDICT.reason, TEXT),) * 10},
    "paces": {"paces": (api.Pace(NAME, 1 / 3, 1 / 7),) * 32},
    "symptoms": {"symptoms": (api.Symptom(NAME, 1e9, 1e9),) * 8},
}


def size(run: RunStatus) -> int:
    return len(msgspec.json.encode(analysis_run(OWNER, run_name(OWNER.name, OWNER.uid, run), run)))


@pytest.mark.parametrize("limit", LIMITS)
def test_an_object_has_at_most_256_kib_at_each_limit(limit: str) -> None:
    assert size(replace(RUN, **LIMITS[limit])) <= MOST_BYTES - METADATA_BYTES


def test_each_list_of_a_run_has_a_limit_and_a_case() -> None:
    """A list that is added needs a case above."""
    properties = structural(RunStatus)["properties"]
    lists = {name for name, node in properties.items() if node["type"] == "array"}
    assert all("maxItems" in properties[name] for name in lists)
    known = {
        "".join(p.capitalize() if n else p for n, p in enumerate(name.split("_")))
        for it in LIMITS.values()
        for name in it
    }
    assert lists - {"restarts", "timed"} <= known


def test_what_decides_nothing_goes_first_and_the_rest_is_refused() -> None:
    history = {name: part for limit in ("trace", "series", "harm") for name, part in LIMITS[limit].items()}
    counts = LIMITS["counts of many metrics"]
    kept = analysis_run(OWNER, "a", replace(RUN, **counts, **history))["status"]
    assert len(kept["counts"]) == 128 and not kept.get("trace") and not kept.get("series")
    everything = {name: part for limit in LIMITS.values() for name, part in limit.items()}
    with pytest.raises(RunTooLarge, match="its counts need more than 256 KiB"):
        analysis_run(OWNER, "a", replace(RUN, **everything))


def test_a_run_is_read_as_it_was_written_and_copies_nothing_of_its_owner() -> None:
    world = counting_world()
    run, obj = world.run_now(), world.saved_run()
    read = stored_run(obj)
    assert read and read.run == run and read.subject == "u1"
    assert set(obj["metadata"]["labels"]) == {
        "slipway.dev/modeldeployment", "slipway.dev/analysis-outcome", "app.kubernetes.io/managed-by",
    }  # fmt: skip
    assert "annotations" not in obj["metadata"]
    [owner] = obj["metadata"]["ownerReferences"]
    assert owner["controller"] and not owner["blockOwnerDeletion"]


def test_a_name_fits_and_differs_for_each_beginning() -> None:
    name = run_name("a" * 52, "u1", RUN)
    assert len(name) <= 253 and name.endswith(run_name("b", "u1", RUN)[-8:])
    assert run_name("a", "u1", replace(RUN, started_at=START + timedelta(seconds=1))) != run_name("a", "u1", RUN)
    assert run_name("a", "u2", RUN) != run_name("a", "u1", RUN)


def test_a_full_series_drops_every_second_point_and_keeps_the_newest() -> None:
    world = counting_world()
    run, spec = world.run_now(), world.observed().templates["quick"].spec
    assert run and spec
    for reading in range(300):
        run = noted(replace(run, read_at=START + timedelta(seconds=10 * reading)), spec)
    assert run.series
    for item in run.series:
        seconds = [point.seconds for point in item.points]
        assert len(seconds) <= api.MOST_POINTS and seconds == sorted(seconds)
        assert all(point.low <= point.high for point in item.points)
    assert len(run.trace) <= trace.MOST_MOMENTS
