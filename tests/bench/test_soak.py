"""The soak's bars: a request in no counter or in two, a leak, a wrong ending each make their own bar fall."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from bench.fuzz.edges import SAMPLING
from bench.soak import (
    COMPLETED,
    ERROR,
    GAUGES,
    INVALID,
    LEFT_EARLY,
    LEFT_LATE,
    REFUSED,
    Ask,
    Look,
    Seen,
    bars,
    draw,
    read,
)

REST = dict.fromkeys(GAUGES, 0.0)


def seen() -> Seen:
    return Seen(Counter({COMPLETED: 50, INVALID: 20, REFUSED: 10, ERROR: 5, LEFT_EARLY: 6, LEFT_LATE: 9}))


def looks() -> tuple[Look, Look]:
    outcomes = {"completed": 52, "invalid": 20, "refused": 11, "error": 5, "cancelled": 11, "draining": 0}
    return Look(500.0, 40, REST, {}), Look(505.0, 40, REST, outcomes, preemptions=3)


def fallen(client: Seen, first: Look, last: Look) -> set[str]:
    return {bar.bar for bar in bars(client, first, last) if not bar.ok}


def test_sound_server_holds_every_bar() -> None:
    assert fallen(seen(), *looks()) == set()


@pytest.mark.parametrize(
    ("change", "bar"),
    [
        ({"cancelled": 4}, "requests in no counter"),  # seven are missing, and only six left before an answer
        ({"cancelled": 13}, "requests in no counter"),  # one was counted twice
        ({"invalid": 19}, "counted as invalid"),
        ({"error": 4}, "counted as error"),
        ({"completed": 49}, "counted as completed"),
    ],
)
def test_counters_are_held_against_what_clients_saw(change: dict[str, int], bar: str) -> None:
    first, last = looks()
    assert fallen(seen(), first, replace(last, outcomes={**last.outcomes, **change})) == {bar}


def test_leaks_are_seen() -> None:
    first, last = looks()
    assert fallen(seen(), first, replace(last, rss_mib=530.0)) == {"growth of resident memory, MiB"}
    assert fallen(seen(), first, replace(last, fds=41)) == {"file descriptors more than before"}
    held = replace(last, busy=REST | {"vllm:kv_cache_usage_perc": 0.1})
    assert fallen(seen(), first, held) == {"vllm:kv_cache_usage_perc at the end", "gauges that are not back to 0"}


def test_server_without_metrics_is_not_at_rest() -> None:
    first, last = looks()
    assert fallen(seen(), first, replace(last, busy={})) == {"gauges that are not back to 0"}


def test_soak_that_never_filled_the_server_proves_nothing() -> None:
    first, last = looks()
    idle = seen()
    idle.endings[REFUSED] = 0
    outcomes = {**last.outcomes, "refused": 0}
    assert fallen(idle, first, replace(last, outcomes=outcomes, preemptions=0)) >= {
        "preemptions",
        "refusals of a full queue",
    }


def test_wrong_endings_are_kept_with_their_response() -> None:
    client = seen()
    client.add(Ask("bad", "/v1/completions", b"", right=frozenset({INVALID})), COMPLETED, "12")
    first, last = looks()
    assert client.wrong == ["bad /v1/completions: completed 12"]
    assert "requests with an ending that is not theirs" in fallen(client, first, last)


def test_requests_are_the_same_for_a_seed_and_of_every_kind() -> None:
    requests = [draw(random.Random(number)) for number in range(400)]
    assert requests == [draw(random.Random(number)) for number in range(400)]
    assert {request.kind for request in requests} == {"answer", "leave", "bad", "long", "late"}
    for request in requests:
        if request.kind in ("answer", "leave", "long", "late"):
            assert json.loads(request.body)["model"] == "m"


@pytest.mark.finding(26)
def test_sampling_is_drawn_at_the_edges_of_the_servers_schema() -> None:
    """Safety 26: temperature in {0, .7, 1.5} and top_k in {0, 20} find nothing."""
    assert {1e-45, 5e-324, 2.0} <= set(SAMPLING["temperature"]) and 0.0 not in SAMPLING["top_p"]
    assert {-1, 2**31 - 1} <= set(SAMPLING["top_k"]) and {-(2**63), 2**63 - 1} <= set(SAMPLING["seed"])
    bodies = [json.loads(draw(random.Random(number)).body or b"{}") for number in range(2000) if _is_sound(number)]
    for name in ("temperature", "top_p", "top_k", "seed", "repetition_penalty"):
        assert {body[name] for body in bodies if name in body} >= set(SAMPLING[name]), name
    assert all(body.get("min_tokens", 0) <= body["max_tokens"] for body in bodies)


def _is_sound(number: int) -> bool:
    return draw(random.Random(number)).kind in ("answer", "leave")


def test_metrics_page_is_read() -> None:
    page = "\n".join(
        [
            "# TYPE vllm:num_requests_running gauge",
            'vllm:num_requests_running{model_name="m",engine="0"} 2.0',
            "# TYPE slipway_server_requests counter",
            'slipway_server_requests_total{outcome="completed"} 7.0',
            "# TYPE vllm:num_preemptions counter",
            'vllm:num_preemptions_total{model_name="m",engine="0"} 3.0',
            "",
        ]
    )
    assert read(page) == Look(0.0, 0, {"vllm:num_requests_running": 2.0}, {"completed": 7}, 3)
