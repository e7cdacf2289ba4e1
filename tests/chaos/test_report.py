"""The bars: each one falls for its own reason."""

import random
from dataclasses import replace
from itertools import islice

import pytest

from bench.chaos.asking import FAILED, GOOD, SAVED, Break, Difference, Ending
from bench.chaos.killer import DECK, Kill, deck, expendable
from bench.chaos.meters import Process, read
from bench.chaos.report import KINDS, Outcome, as_json, bars, fewest, summary
from bench.chaos.story import Round

BEGAN, ENDED = 1000.0, 1100.0


def ended(kind: str = GOOD, *, stream: bool, began: float, until: float, **more: object) -> Ending:
    plain = Ending(kind, "", stream, began, until, 3, 1, (), Difference(), "chaos-1")
    return replace(plain, **more)  # type: ignore[arg-type]


def perfect() -> Outcome:
    """A run in which everything holds."""
    short = [ended(stream=False, began=BEGAN + at / 25, until=BEGAN + at / 25 + 0.5) for at in range(2400)]
    streams = [ended(stream=True, began=BEGAN - 5, until=ENDED + 5) for _ in range(30)]
    kills = [Kill(BEGAN + 10, what, "pod") for what in KINDS]
    counted = Process({"ok": 2430}, {"resumed": 3}, 5)
    return Outcome(
        BEGAN, ENDED, short + streams, 0, kills, [Round(1, "canary", 50.0)], 1, counted, counted, 3, (), "Healthy"
    )


def fallen(outcome: Outcome) -> set[str]:
    return {bar.bar for bar in bars(outcome) if not bar.ok}


def test_perfect_run_holds_every_bar() -> None:
    assert fallen(perfect()) == set()


@pytest.mark.parametrize(
    ("change", "bar"),
    [
        ({"rounds": [Round(1, "canary", 50.0, "it hung")]}, "rollouts and rollbacks that ended as planned"),
        ({"unsent": 1}, "short requests not sent"),
        ({"kills": [Kill(BEGAN, what, "pod") for what in KINDS[1:]]}, f"kills: {KINDS[0]}"),
        ({"left": ["ReplicaSet old"]}, "objects left over"),
        ({"phase": "Degraded"}, "Healthy at the end"),
        ({"all_gateways": Process({"no_endpoint": 1}, {}, 0)}, "errors that gateways counted and no client saw"),
        ({"all_gateways": Process({"ok": 2431}, {}, 0)}, "answers that gateways counted and no client has"),
    ],
)
def test_each_bar_falls_for_its_own_reason(change: dict[str, object], bar: str) -> None:
    assert fallen(replace(perfect(), **change)) == {bar}  # type: ignore[arg-type]


def test_failed_request_and_foreign_text_fall() -> None:
    outcome = perfect()
    bad = ended(FAILED, stream=True, began=BEGAN, until=ENDED, difference=Difference(2, 1))
    found = fallen(replace(outcome, endings=[*outcome.endings, bad]))
    assert found == {"failed requests", "characters missing", "characters duplicated or foreign"}


@pytest.mark.parametrize(("after_s", "strange"), [(0.2, False), (40.0, True)])
def test_lost_connection_needs_a_killed_gateway(after_s: float, strange: bool) -> None:
    outcome = perfect()
    lost = Break(BEGAN + 10 + after_s, "ClientOSError", lost=True)
    saved = ended(SAVED, stream=False, began=BEGAN, until=ENDED, breaks=(lost,))
    found = fallen(replace(outcome, endings=[*outcome.endings, saved]))
    assert found == ({"lost connections that no killed gateway explains"} if strange else set())


def test_fewest_counts_streams_that_follow_one_another_without_a_gap() -> None:
    first = ended(stream=True, began=BEGAN - 1, until=BEGAN + 50.01)
    second = ended(stream=True, began=BEGAN + 50.02, until=ENDED + 1)
    late = ended(stream=True, began=BEGAN + 60, until=ENDED + 1)
    assert fewest([first, second], BEGAN, ENDED) == 1
    assert fewest([first, late], BEGAN, ENDED) == 0


def test_summary_and_json_list_the_kills() -> None:
    outcome = replace(perfect(), left=["ReplicaSet old"])
    assert "NOT HELD objects left over: 1 (must be 0)" in summary(outcome)
    made = as_json(outcome, {})
    assert made["name"] == "chaos"
    assert [bar["bar"] for bar in made["bars"] if not bar["ok"]] == ["objects left over"]


def pod(name: str, revision: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": {"slipway.dev/revision": revision}}}


def test_the_last_pod_that_requests_can_go_to_is_spared() -> None:
    old, new, preview = pod("a", "old"), pod("b", "new"), pod("c", "preview")
    assert expendable([old], {"old"}) == []
    assert expendable([old, preview], {"old"}) == [preview]
    assert expendable([old, new], {"old", "new"}) == [old, new]


@pytest.mark.parametrize("seed", range(5))
def test_first_hand_has_every_kind_of_kill(seed: int) -> None:
    assert set(DECK) == set(KINDS)
    cards = list(islice(deck(random.Random(seed)), len(KINDS) + len(DECK)))
    assert sorted(cards[: len(KINDS)]) == sorted(KINDS)
    assert sorted(cards[len(KINDS) :]) == sorted(DECK)


def test_counters_are_read_by_life_and_model() -> None:
    page = (
        "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 17.5\n"
        "# TYPE slipway_gateway_requests counter\n"
        'slipway_gateway_requests_total{model="m",outcome="ok",code="200",revision="r"} 4.0\n'
        'slipway_gateway_requests_total{model="other",outcome="ok",code="200",revision="r"} 9.0\n'
        "# TYPE slipway_gateway_resumes counter\n"
        'slipway_gateway_resumes_total{model="m",outcome="resumed",revision="r"} 2.0\n'
    )
    assert read("gateway-a", page, "m") == ("gateway-a 17.5", Process({"ok": 4}, {"resumed": 2}, 0))
