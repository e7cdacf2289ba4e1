"""The same series for every engine: what an engine does not export is absent, and what a revision had goes with it."""

from collections.abc import Iterator

import pytest
from prometheus_client.exposition import generate_latest

from slipway_operator.metrics_api.engine_series import rows
from slipway_operator.metrics_api.exposition import parse
from slipway_operator.metrics_api.series import Followed, PodTarget, Series
from slipway_operator.model.engine_types import EngineMetrics, metrics_of
from slipway_operator.model.inputs.pod_inputs import Engine
from slipway_operator.telemetry import revisions
from slipway_operator.telemetry.metrics import Metrics
from tests.support.engine_pages import LLAMA_CPP, LLAMA_CPP_NAMES, SGLANG, SGLANG_IDLE, VLLM

CHAT = ("default", "chat")
ENGINES = {
    "vllm": (Engine("i", type="vllm"), VLLM),
    "sglang": (Engine("i", type="sglang"), SGLANG),
    "llama.cpp": (Engine("i", type="custom", custom={"metrics": LLAMA_CPP_NAMES}), LLAMA_CPP),
}


def followed(*pods: str, names: EngineMetrics, revision: str = "r1") -> Followed:
    targets = tuple(PodTarget(name, "10.0.0.1", revision, names) for name in pods)
    return Followed("u1", targets, len(pods), True, live=(revision,))


def shown(series: Series, now: float) -> dict[str, float]:
    """The numbers of revision r1 without their common beginning."""
    found = [numbers for *_, revision, numbers in rows([(CHAT, series)], now) if revision == "r1"]
    return {name.removeprefix("slipway_engine_"): value for name, value in (found[0] if found else {}).items()}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_page_of_each_engine_gives_the_same_series(engine: str) -> None:
    kind, page = ENGINES[engine]
    names = metrics_of(kind)
    series = Series(followed("a", names=names), 0)
    series.add_reading("a", parse(page, names), 0)
    grown = page.replace(" 10.0\n", " 20.0\n").replace(" 5.0\n", " 15.0\n")
    grown = grown.replace(" 1200", " 1500").replace(" 400", " 500")
    series.add_reading("a", parse(grown, names), 10)
    found = shown(series, 10)
    assert (found["prompt_tokens"], found["generation_tokens"]) == (300, 100)
    assert found["requests_running"] > 0 and found["requests_waiting"] > 0
    assert found["unread_pods"] == 0
    exported = {"kv_cache_usage_ratio", "ttft_p95_seconds"}
    if engine == "llama.cpp":
        assert not exported & found.keys(), "it has neither: absent, not 0"
    else:
        assert found["kv_cache_usage_ratio"] in (0.25, 0.5) and found["ttft_p95_seconds"] == pytest.approx(0.095)


def test_an_engine_before_its_first_request_has_no_counters() -> None:
    names = metrics_of(Engine("i", type="sglang"))
    series = Series(followed("a", names=names), 0)
    series.add_reading("a", parse(SGLANG_IDLE, names), 0)
    assert shown(series, 0) == {
        "requests_running": 0,
        "requests_waiting": 0,
        "kv_cache_usage_ratio": 0,
        "unread_pods": 0,
    }


def vllm_page(tokens: int) -> str:
    return VLLM.replace(" 400.0", f" {tokens}")


def test_counters_follow_pods_that_come_restart_and_go() -> None:
    names = metrics_of(Engine())
    series = Series(followed("a", names=names), 0)
    for now, tokens in ((0, 1000), (10, 1010), (20, 4)):  # the process of the pod starts again at 0
        series.add_reading("a", parse(vllm_page(tokens)), now)
    assert shown(series, 20)["generation_tokens"] == 14
    series.follow(followed("a", "b", names=names), 20)
    series.add_reading("b", parse(vllm_page(5000)), 20)
    assert shown(series, 20)["generation_tokens"] == 14, "of a pod that was busy before, only the growth counts"
    series.follow(followed("b", names=names), 30)
    series.add_reading("b", parse(vllm_page(5001)), 30)
    assert shown(series, 30)["generation_tokens"] == 15, "it never falls while the revision lives"
    series.follow(followed(names=names), 30)
    assert shown(series, 30) == {"generation_tokens": 15, "prompt_tokens": 0}, "no pod: no load, which is not 0 load"


def test_series_of_a_revision_go_with_it() -> None:
    names = metrics_of(Engine())
    series = Series(followed("a", names=names), 0)
    series.add_reading("a", parse(VLLM), 0)
    series.follow(followed("b", names=names, revision="r2"), 10)
    series.add_reading("b", parse(VLLM), 10)
    assert [revision for *_, revision, _ in rows([(CHAT, series)], 10)] == ["r2"]


def test_a_stale_reading_counts_for_nothing_and_its_pod_is_counted() -> None:
    names = metrics_of(Engine())
    series = Series(followed("a", names=names), 0)
    series.add_reading("a", parse(VLLM), 0)
    series.add_reading("a", "/metrics answers 503", 40)
    assert shown(series, 40) == {"prompt_tokens": 0, "generation_tokens": 0, "unread_pods": 1}


def test_a_page_of_metrics_has_a_bounded_number_of_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revisions, "MOST_REVISIONS", 2)

    def many() -> Iterator[revisions.EngineRow]:
        yield from ((f"n{number}", "chat", "r1", {"slipway_engine_requests_running": 1.0}) for number in range(5))

    metrics = Metrics("1")
    metrics.follow_engines(many)
    text = generate_latest(metrics.registry).decode()
    assert text.count("slipway_engine_requests_running{") == 2
    assert "slipway_engine_left_out 3.0" in text
