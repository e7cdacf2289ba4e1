"""Counters for the judge: each rule of docs/contracts.md, with times from the test."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from slipway_contracts.route_table import Backend
from slipway_gateway.balancing.failsafe import CutOffRule
from slipway_gateway.balancing.failsafe_state import FailsafeSettings
from slipway_gateway.balancing.load_balancer import LoadBalancer
from slipway_gateway.judging import samples, units
from slipway_gateway.judging.outcome import E2E, ITL, TTFT, OutcomeRecorder, RequestOutcome
from slipway_gateway.judging.samples import BOUNDS, GENERATIONS, Samples, stratum
from slipway_gateway.routing.router import RouteEndpoint
from slipway_gateway.routing.table import Route
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_gateway.wire.request_fields import RequestFields, sticky_key
from slipway_gateway.wire.responses import KINDS, TAIL_BYTES
from tests.support.report import as_json, route_reports

from .harness import table

EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
AT = "b<4k,stream"
ERROR = RequestOutcome(("errors",))


def route(generation: int = 1, uid: str = "uid", canary: int = 10) -> Route:
    split = (Backend("c", canary), Backend("s", 100 - canary), Backend("old", 0))
    return Route("default/chat", uid, "chat", generation=generation, salt="salt", backends=split)


def count(
    epoch: samples.GenerationSamples, revision: str, key: str, outcome: RequestOutcome, *, stream: bool = True
) -> None:
    """One first attempt of a client of its own, from its beginning to its end."""
    counts = epoch.assign(revision, key, key, 0.0)
    epoch.count(epoch.begin(revision, key, AT, stream=stream, counts=counts), outcome)


def opened(epoch: samples.GenerationSamples, recorder: OutcomeRecorder, key: str = "k") -> samples.CountedAttempt:
    """An attempt at canary that begins."""
    attempt = epoch.begin("c", key, AT, stream=True, counts=epoch.assign("c", key, key, 0.0))
    epoch.open(attempt, recorder)
    return attempt


def events(epoch: samples.GenerationSamples, revision: str = "c") -> dict[str, int]:
    """By kind; `test_a_unit_that_is_bad_in_several_ways_counts_once` has the composite."""
    found = as_json(epoch.report(0.0))["revisions"][revision]["events"]
    return {kind: count for kind, count in found.items() if count and kind != samples.BAD}


# -- one first attempt


class Attempt:
    """An attempt that began at 100 s, and the outcomes that were reported of it."""

    def __init__(self) -> None:
        self.outcomes: list[RequestOutcome] = []
        self.recorder = OutcomeRecorder(100.0, self.outcomes.append)

    @property
    def only(self) -> RequestOutcome:
        (outcome,) = self.outcomes
        return outcome


@pytest.fixture
def attempt() -> Attempt:
    return Attempt()


def test_a_stream_has_three_times(attempt: Attempt) -> None:
    attempt.recorder.add_events(EVENT * 2, 100.5)
    attempt.recorder.add_events(EVENT, 100.7)
    attempt.recorder.add_events(EVENT * 3, 101.3)
    attempt.recorder.add_events(DONE, 109.0)
    attempt.recorder.complete_stream(110.0)
    # Four events in 0.8 s after those that came first; the mark of the end is none.
    assert attempt.only.seconds == pytest.approx({TTFT: 0.5, ITL: 0.2, E2E: 10.0})
    assert attempt.only.bad == ()


def test_done_marker_beside_an_event_is_no_event(attempt: Attempt) -> None:
    attempt.recorder.add_events(EVENT, 100.5)
    attempt.recorder.add_events(EVENT + DONE, 100.7)
    attempt.recorder.complete_stream(100.7)
    assert attempt.only.seconds[ITL] == pytest.approx(0.2)


def test_events_with_other_line_ends_count_too(attempt: Attempt) -> None:
    attempt.recorder.add_events(EVENT.replace(b"\n", b"\r\n"), 100.5)
    attempt.recorder.add_events(EVENT.replace(b"\n", b"\r\n") * 2, 101.5)
    attempt.recorder.complete_stream(101.5)
    assert attempt.only.seconds[ITL] == pytest.approx(0.5)


def test_latencies_of_streams_with_one_event_and_with_none(attempt: Attempt) -> None:
    attempt.recorder.add_events(EVENT, 100.5)
    attempt.recorder.complete_stream(101.0)
    assert set(attempt.only.seconds) == {TTFT, E2E}
    silent = Attempt()
    silent.recorder.complete_stream(101.0)
    assert silent.only == RequestOutcome(("empty",), {E2E: 1.0})


def test_a_whole_answer_has_one_time(attempt: Attempt) -> None:
    attempt.recorder.complete(b'{"text": ""}', 102.0)
    assert attempt.only == RequestOutcome(("empty",), {E2E: 2.0})
    unread = Attempt()
    unread.recorder.complete(None, 102.0)
    assert unread.only == RequestOutcome((), {E2E: 2.0})


def test_outcome_is_reported_once_and_the_first_one_counts(attempt: Attempt) -> None:
    attempt.recorder.fail(103.0)
    attempt.recorder.add_events(EVENT, 101.0)
    attempt.recorder.complete_stream(102.0)
    attempt.recorder.complete(b"{}", 102.0)
    attempt.recorder.fail(103.0)
    attempt.recorder.refuse(103.0)
    assert attempt.only == ERROR


def test_a_failure_has_no_time(attempt: Attempt) -> None:
    attempt.recorder.add_events(
        b'data: {"error": {"code": "internal_error", "type": "server_error"}}\n\n' + DONE, 100.1
    )
    attempt.recorder.complete_stream(100.2)
    assert attempt.only == ERROR


def test_error_body_adds_its_kind_of_failure(attempt: Attempt) -> None:
    attempt.recorder.fail(103.0, b'{"error": {"code": "non_finite", "type": "server_error"}}')
    assert attempt.only == RequestOutcome(("errors", "non_finite"))


def test_client_that_left_gives_no_outcome(attempt: Attempt) -> None:
    attempt.recorder.add_events(EVENT, 101.0)
    assert not attempt.outcomes


def test_the_end_of_a_long_stream_is_kept_and_no_more(attempt: Attempt) -> None:
    for n in range(2000):
        attempt.recorder.add_events(EVENT, 101.0 + n)
        assert len(attempt.recorder._tail) <= TAIL_BYTES * 1.25
    attempt.recorder.add_events(EVENT.replace(b'"x"}', b'"x"}, "finish_reason": "length"'), 9000.0)
    attempt.recorder.complete_stream(9000.0)
    assert set(attempt.only.bad) == {"truncated", "repetition"}


def test_a_long_stream_is_not_called_empty(attempt: Attempt) -> None:
    blank = EVENT.replace(b'"x"', b'""')
    for _ in range(2 * TAIL_BYTES // len(blank) + 1):
        attempt.recorder.add_events(blank, 101.0)
    attempt.recorder.complete_stream(102.0)
    assert attempt.only.bad == ()


# -- what does not end, and what ends without a time


class Kept(Attempt):
    """One that a judge looks at: a stream whose server may be silent for 60 s."""

    def __init__(self, *, streams: bool = True) -> None:
        self.outcomes: list[RequestOutcome] = []
        self.closed: list[dict[str, float]] = []
        self.recorder = OutcomeRecorder(
            100.0, self.outcomes.append, lambda waited: self.closed.append({**waited}), streams=streams, patience_s=60.0
        )


@pytest.fixture
def kept() -> Kept:
    return Kept()


HUNG = RequestOutcome(("errors", "hung"))


def test_open_request_has_lower_bounds_of_its_latencies(kept: Kept) -> None:
    assert kept.recorder.seconds_so_far(103.0) == {TTFT: 3.0, E2E: 3.0}
    kept.recorder.add_events(EVENT, 104.0)
    assert kept.recorder.seconds_so_far(109.0) == {TTFT: 4.0, E2E: 9.0}, "the first event has come"
    assert Kept(streams=False).recorder.seconds_so_far(103.0) == {E2E: 3.0}, "a whole answer has none"


def test_a_good_end_leaves_nothing_open(kept: Kept) -> None:
    kept.recorder.add_events(EVENT, 104.0)
    kept.recorder.complete_stream(105.0)
    kept.recorder.abandon(106.0)
    assert kept.only.seconds == {TTFT: 4.0, E2E: 5.0} and kept.closed == [{}]


@pytest.mark.parametrize("end", ["fail", "abandon", "refuse"])
def test_end_without_a_time_gives_a_lower_bound(kept: Kept, end: str) -> None:
    kept.recorder.add_events(EVENT, 104.0)
    getattr(kept.recorder, end)(110.0)
    kept.recorder.abandon(120.0)
    assert kept.closed == [{TTFT: 4.0, E2E: 10.0}]
    assert [outcome.bad for outcome in kept.outcomes] == {"fail": [("errors",)], "abandon": [], "refuse": [()]}[end]


def test_requested_stream_that_came_whole_has_no_first_event(kept: Kept) -> None:
    kept.recorder.complete(b'{"text": "x"}', 105.0)
    assert kept.only.seconds == {E2E: 5.0} and kept.closed == [{TTFT: 5.0}]


def test_long_silence_is_reported_once(kept: Kept) -> None:
    kept.recorder.check_silence(160.0)
    assert not kept.outcomes
    kept.recorder.check_silence(160.5)
    kept.recorder.check_silence(170.0)
    assert kept.only == HUNG
    # It goes on for all that: how long it takes is not known yet.
    assert not kept.closed and kept.recorder.seconds_so_far(200.0) == {TTFT: 100.0, E2E: 100.0}
    kept.recorder.server_sent(201.0)
    kept.recorder.add_events(EVENT, 201.0)
    kept.recorder.complete_stream(202.0)
    assert kept.only == HUNG and kept.closed == [{TTFT: 101.0, E2E: 102.0}]


@pytest.mark.parametrize("end", ["server_sent", "abandon", "fail", "complete_stream"])
def test_unchecked_silence_is_reported_at_the_end(kept: Kept, end: str) -> None:
    getattr(kept.recorder, end)(161.0)
    assert kept.only == HUNG


def test_silence_counts_between_events_too_and_never_while_a_client_reads(kept: Kept) -> None:
    kept.recorder.server_sent(110.0)
    kept.recorder.check_silence(400.0)
    assert not kept.outcomes, "the client takes its time"
    kept.recorder.wait_for_server(400.0)
    kept.recorder.check_silence(460.0)
    assert not kept.outcomes
    kept.recorder.check_silence(461.0)
    assert kept.only == HUNG


# -- counters


def late(epoch: samples.GenerationSamples, now_s: float, revision: str = "c") -> dict[str, tuple[int, ...]]:
    """What is known of those without a time, in one stratum, by measure."""
    found = as_json(epoch.report(now_s))["revisions"][revision]["late"]
    return {measure: strata[AT] for measure, strata in found.items() if strata}


def above(histogram: tuple[int, ...], measure: str, limit: float) -> int:
    return sum(histogram[BOUNDS[measure].index(limit) + 1 :])


def test_counts_above_a_bound_never_decrease() -> None:
    """In `slow` and `late` together: what an operator adds up."""
    epoch, fates, attempts = Samples().epoch(route()), [], []
    for number in range(6):
        recorder = OutcomeRecorder(
            0.0,
            lambda outcome, number=number: epoch.count(attempts[number], outcome),  # type: ignore[misc]
            lambda waited, number=number: epoch.close(fates[number], waited),  # type: ignore[misc]
            streams=True,
            patience_s=60.0,
        )
        fates.append(recorder)
        attempts.append(opened(epoch, recorder, f"k{number}"))
    limits = {TTFT: BOUNDS[TTFT][42], E2E: BOUNDS[E2E][39]}  # 0.548 s, 0.823 s
    ends = {
        1.0: lambda: fates[0].fail(1.0),
        2.0: lambda: (fates[1].add_events(EVENT, 2.0), fates[1].complete_stream(2.0)),
        3.0: lambda: fates[2].abandon(3.0),
        4.0: lambda: fates[3].add_events(EVENT, 4.0),
        5.0: lambda: fates[4].refuse(5.0),
        70.0: lambda: fates[3].complete_stream(70.0),
        80.0: lambda: fates[5].abandon(80.0),
    }
    seen = {TTFT: 0, E2E: 0}
    for now_s in (0.3, 0.7, 1.0, 2.0, 3.0, 4.0, 5.0, 61.0, 70.0, 80.0, 90.0):
        ends.get(now_s, lambda: None)()
        report = as_json(epoch.report(now_s))["revisions"]["c"]
        for measure, limit in limits.items():
            found = sum(
                above(report[kind][measure][AT], measure, limit)
                for kind in ("slow", "late")
                if AT in report[kind][measure]
            )
            assert found >= seen[measure]
            seen[measure] = found
    assert seen == {TTFT: 6, E2E: 6}
    assert not epoch._open
    # Reported are those that failed, ended well and were refused, and the two that were silent for too long.
    assert (report["requests"], events(epoch)) == (5, {"errors": 3, "hung": 2})


def test_latencies_below_the_first_bound_are_not_reported() -> None:
    epoch = Samples().epoch(route())
    opened(epoch, OutcomeRecorder(0.0, lambda outcome: None, streams=True))
    assert late(epoch, 0.01) == {}
    assert late(epoch, 0.0115) == {TTFT: [0, 0, 1]}, "and empty ones above are left out"


def test_single_revision_keeps_no_open_attempts() -> None:
    epoch = Samples().epoch(route(canary=100))
    opened(epoch, OutcomeRecorder(0.0, lambda outcome: None, streams=True))
    assert not epoch._open and late(epoch, 50.0) == {}


def test_events_and_times_are_counted_for_their_revision() -> None:
    epoch = Samples().epoch(route())
    count(epoch, "c", "k1", ERROR)
    count(epoch, "c", "k2", RequestOutcome(("empty", "truncated"), {E2E: 1.0}))
    count(epoch, "s", "k3", RequestOutcome())
    report = as_json(epoch.report(0.0))
    assert (report["generation"], report["weights"]) == (1, {"c": 10, "s": 90, "old": 0})
    assert {name: counts["requests"] for name, counts in report["revisions"].items()} == {"c": 2, "s": 1}
    assert events(epoch) == {"errors": 1, "empty": 1, "truncated": 1} and events(epoch, "s") == {}
    assert set(report["revisions"]["c"]["events"]) == {*KINDS, samples.BAD, samples.FELL_BACK}


def test_a_unit_that_is_bad_in_several_ways_counts_once_as_bad() -> None:
    epoch = Samples().epoch(route())
    count(epoch, "c", "k1", RequestOutcome(("errors", "hung")))
    count(epoch, "c", "k1", RequestOutcome(("empty",)))
    count(epoch, "c", "k2", RequestOutcome(("repetition",)))
    count(epoch, "c", "k3", RequestOutcome(("truncated",), {E2E: 1.0}))
    assert as_json(epoch.report(0.0))["revisions"]["c"]["events"][samples.BAD] == 2, "truncated is not bad by itself"


def test_a_session_is_one_event_of_a_kind() -> None:
    epoch = Samples().epoch(route())
    for outcome in (ERROR, ERROR, RequestOutcome(("empty",)), RequestOutcome(("empty",))):
        count(epoch, "c", "same", outcome)
    assert as_json(epoch.report(0.0))["revisions"]["c"]["requests"] == 4
    assert events(epoch) == {"errors": 1, "empty": 1}
    count(epoch, "c", "other", ERROR)
    assert events(epoch) == {"errors": 2, "empty": 1}


def test_another_generation_takes_an_event_of_the_same_session() -> None:
    counters = Samples()
    for generation in (1, 2):
        count(counters.epoch(route(generation)), "c", "same", ERROR)
    assert [epoch["revisions"]["c"]["events"]["errors"] for epoch in as_json(counters.report(route(), 0.0))] == [1, 1]


# -- one latency of a session


def times(epoch: samples.GenerationSamples, revision: str = "c", kind: str = "slow") -> dict[str, int]:
    """How many are counted, by measure."""
    found = as_json(epoch.report(50.0))["revisions"][revision][kind]
    return {measure: sum(strata[AT]) for measure, strata in found.items() if strata}


STREAMED = RequestOutcome((), {TTFT: 0.5, ITL: 0.1, E2E: 9.0})


def test_only_the_first_latency_of_a_session_counts() -> None:
    """One slow session is one observation of the judge, however many requests it sends."""
    epoch = Samples().epoch(route())
    count(epoch, "c", "session:a", STREAMED)
    for _ in range(9):
        count(epoch, "c", "session:a", RequestOutcome((), {TTFT: 60.0, ITL: 1.0, E2E: 90.0}))
    report = as_json(epoch.report(0.0))["revisions"]["c"]
    assert report["requests"] == 10, "and all of them for what is no latency"
    assert times(epoch) == {TTFT: 1, ITL: 1, E2E: 1}
    assert above(report["slow"][E2E][AT], E2E, BOUNDS[E2E][75]) == 0, "the first of them, that was fast"
    count(epoch, "c", "session:b", STREAMED)
    assert times(epoch) == {TTFT: 2, ITL: 2, E2E: 2}


def test_the_first_started_request_of_a_session_counts() -> None:
    """Else a canary that hangs would be judged by the requests of the session that did not hang."""
    epoch = Samples().epoch(route())
    first = OutcomeRecorder(0.0, lambda outcome: None, lambda waited: epoch.close(first, waited), streams=True)
    opened(epoch, first, "session:a")
    count(epoch, "c", "session:a", STREAMED)
    assert times(epoch) == {} and times(epoch, kind="late") == {TTFT: 1, E2E: 1}
    first.abandon(60.0)
    assert times(epoch) == {} and times(epoch, kind="late") == {TTFT: 1, E2E: 1}


def test_later_hung_request_of_a_session_counts_as_hung_and_not_as_late() -> None:
    epoch = Samples().epoch(route())
    count(epoch, "c", "session:a", STREAMED)
    later = OutcomeRecorder(0.0, lambda outcome: epoch.count(attempt, outcome), streams=True, patience_s=30.0)
    attempt = opened(epoch, later, "session:a")
    assert times(epoch, kind="late") == {} and events(epoch) == {"errors": 1, "hung": 1}


def test_session_with_whole_responses_still_counts_its_first_stream() -> None:
    epoch = Samples().epoch(route())
    count(epoch, "c", "session:a", RequestOutcome((), {E2E: 3.0}), stream=False)
    count(epoch, "c", "session:a", STREAMED)
    count(epoch, "c", "session:a", STREAMED)
    assert times(epoch) == {TTFT: 1, ITL: 1, E2E: 1}


def test_requests_without_a_session_count_each_and_are_not_remembered() -> None:
    epoch = Samples().epoch(route())
    key = sticky_key({}, RequestFields(), "one and the same", ("session", "user", "key"))
    for _ in range(3):
        count(epoch, "c", key, STREAMED)
    assert times(epoch) == {TTFT: 3, ITL: 3, E2E: 3} and not epoch._units._sessions


def test_a_session_counts_again_in_another_generation() -> None:
    counters = Samples()
    for generation in (1, 2):
        count(counters.epoch(route(generation)), "c", "session:a", STREAMED)
        assert times(counters.epoch(route(generation))) == {TTFT: 1, ITL: 1, E2E: 1}


def test_a_full_memory_forgets_the_session_that_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MAX_SESSIONS", 2)
    epoch = Samples().epoch(route())
    for key in ("a", "b", "a", "c", "b", "c", "a"):
        count(epoch, "c", f"session:{key}", STREAMED)
    # The third session pushed out the first, which counted again: of seven requests four.
    assert times(epoch) == {TTFT: 4, ITL: 4, E2E: 4}
    assert len(epoch._units._sessions) == len(epoch._units._oldest_first) == 2


def test_buckets_are_not_cumulative_and_include_their_bound() -> None:
    epoch = Samples().epoch(route())
    bounds = BOUNDS[TTFT]
    for seconds in (0.0, bounds[0], bounds[0] * 1.01, bounds[-1], bounds[-1] * 1.01, 1e9):
        count(epoch, "c", f"k{seconds}", RequestOutcome((), {TTFT: seconds}))
    slow = as_json(epoch.report(0.0))["revisions"]["c"]["slow"]
    counts = slow[TTFT][AT]
    assert len(counts) == len(bounds) + 1
    assert (counts[0], counts[1], counts[-2], counts[-1], sum(counts)) == (2, 1, 1, 2, 6)
    assert slow[ITL] == slow[E2E] == {}


@pytest.mark.parametrize("measure", [TTFT, ITL, E2E])
def test_bounds_rise_geometrically(measure: str) -> None:
    bounds = BOUNDS[measure]
    ratios = [above / below for below, above in pairwise(bounds)]
    assert len(bounds) > 80 and max(ratios) < 1.11 and min(ratios) > 1.09


@pytest.mark.parametrize(
    ("size", "stream", "name"),
    [
        (0, True, "b<4k,stream"),
        (4095, False, "b<4k,whole"),
        (4096, True, "b<32k,stream"),
        (32767, False, "b<32k,whole"),
        (32768, True, "b>=32k,stream"),
    ],
)
def test_strata(size: int, stream: bool, name: str) -> None:
    assert stratum(size, stream=stream) == name


def test_the_last_generations_are_kept_oldest_first() -> None:
    counters = Samples()
    late = counters.epoch(route(1))
    for generation in range(2, GENERATIONS + 3):
        assert counters.epoch(route(generation)) is counters.epoch(route(generation))
    assert [epoch["generation"] for epoch in as_json(counters.report(route(), 0.0))] == [3, 4, 5, 6]
    # A request that began under one that is forgotten ends without harm.
    count(late, "c", "k", ERROR)


def test_a_request_counts_where_it_was_assigned() -> None:
    counters = Samples()
    begun = counters.epoch(route(1, canary=10))
    counters.epoch(route(2, canary=50))
    count(begun, "c", "k", ERROR)
    first, second = as_json(counters.report(route(), 0.0))
    assert (first["weights"]["c"], first["revisions"]["c"]["requests"]) == (10, 1)
    assert (second["weights"]["c"], second["revisions"]["c"]["requests"]) == (50, 0)


def test_another_object_of_that_name_starts_without_counts() -> None:
    counters = Samples()
    count(counters.epoch(route(7)), "c", "k", ERROR)
    counters.epoch(route(1, uid="later"))
    assert [epoch["generation"] for epoch in as_json(counters.report(route(1, uid="later"), 0.0))] == [1]
    counters.keep({"default/chat": route(1, uid="later")})
    assert as_json(counters.report(route(7), 0.0)) == []
    counters.keep({})
    assert as_json(counters.report(route(1, uid="later"), 0.0)) == []


# -- which requests are counted


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield Clock()


URLS = {"c": "http://c:8000", "s": "http://s:8000"}


def balancer_of(clock: Clock, ttl_s: float = 0.0, rule: CutOffRule | None = None) -> LoadBalancer:
    made = LoadBalancer(GatewayMetrics("test"), FailsafeSettings(rule or CutOffRule(), ttl_s), clock)
    made.publish(table(1, ("c", 50, [URLS["c"]]), ("s", 50, [URLS["s"]])))
    return made


def ask(balancer: LoadBalancer, key: str, *, is_sample: bool = True) -> OutcomeRecorder:
    endpoint = balancer.pick("chat", key, ())
    assert endpoint
    return balancer.first_attempts.record(endpoint, key, AT, 0.0, is_sample=is_sample)


def requests(balancer: LoadBalancer) -> dict[str, int]:
    found: dict[str, int] = {}
    for epoch in route_reports(balancer)["default/chat"]["samples"]:
        for revision, counts in epoch["revisions"].items():
            found[revision] = found.get(revision, 0) + counts["requests"]
    return found


async def test_requests_count_when_they_end(clock: Clock) -> None:
    balancer = balancer_of(clock)
    fates = [ask(balancer, f"k{n}") for n in range(20)]
    assert requests(balancer) == {"c": 0, "s": 0}
    for recorder in fates:
        recorder.refuse(0.0)
    assert sum(requests(balancer).values()) == 20 and min(requests(balancer).values()) > 2


def given(balancer: LoadBalancer) -> dict[str, int]:
    (epoch,) = route_reports(balancer)["default/chat"]["samples"]
    return {revision: counts["assigned"] for revision, counts in epoch["revisions"].items()}


async def test_requests_are_assigned_before_they_end_and_whatever_ends_them(clock: Clock) -> None:
    balancer = balancer_of(clock)
    fates = [ask(balancer, f"k{n}") for n in range(20)]
    at_first = given(balancer)
    assert sum(at_first.values()) == 20 and min(at_first.values()) > 2
    for recorder in fates:
        recorder.abandon(1.0)
    assert given(balancer) == at_first and requests(balancer) == {"c": 0, "s": 0}


async def test_hanging_request_counts_when_the_operator_polls(clock: Clock) -> None:
    balancer = LoadBalancer(GatewayMetrics("test"), None, clock, hung_after_s=30.0)
    balancer.publish(table(1, ("c", 50, [URLS["c"]]), ("s", 50, [URLS["s"]])))
    endpoint = balancer.pick("chat", "k", ())
    assert endpoint
    stream = balancer.first_attempts.record(endpoint, "k", AT, 0.0, is_sample=True, stream=True)
    whole = balancer.first_attempts.record(endpoint, "k", "b<4k,whole", 0.0, is_sample=True)
    totals = []
    for clock.now_s in (30.0, 31.0, 150.0, 151.0, 500.0):
        totals.append(sum(requests(balancer).values()))
    assert totals == [0, 1, 1, 2, 2], "a whole answer is silent while it is written"
    stream.abandon(500.0)
    whole.abandon(500.0)
    assert (
        sum(requests(balancer).values()) == 2
        and not balancer.first_attempts.samples.epoch(balancer.published.find("chat"))._open
    )  # type: ignore[arg-type]
    page = balancer.metrics.render().decode()
    assert f'slipway_gateway_bad_answers_total{{kind="hung",model="chat",revision="{endpoint.revision}"}} 2.0' in page


async def test_requests_not_assigned_by_weight_are_not_counted(clock: Clock) -> None:
    balancer = balancer_of(clock)
    ask(balancer, "k", is_sample=False).fail(0.0)
    assert route_reports(balancer)["default/chat"]["samples"] == []
    assert 'kind="errors"' in balancer.metrics.render().decode()


async def test_failover_counts_for_no_revision(clock: Clock) -> None:
    """The canary's share that has no endpoint there must not count as requests, or troubles, of the stable one."""
    balancer = balancer_of(clock)
    balancer.publish(table(2, ("c", 50, []), ("s", 50, [URLS["s"]])))
    for n in range(40):
        ask(balancer, f"k{n}").fail(0.0)
    (epoch,) = route_reports(balancer)["default/chat"]["samples"]
    assert epoch["revisions"]["c"]["requests"] == 0
    assert 10 < epoch["revisions"]["s"]["requests"] < 30
    # Whose they were is no secret: the split was as it should be.
    assert given(balancer)["c"] == 40 - epoch["revisions"]["s"]["requests"]


async def test_nothing_counts_while_a_revision_is_cut_off(clock: Clock) -> None:
    """Its share goes elsewhere then: the published weights are not those in force."""
    balancer = balancer_of(clock, rule=CutOffRule(failures=2, after_s=0.0))
    endpoint = RouteEndpoint("default/chat", "chat", "c", URLS["c"])
    for _ in range(2):
        balancer.attempt_failed(endpoint, None, "")
    assert route_reports(balancer)["default/chat"]["failsafe"]["cut_off"] == "c"
    for n in range(20):
        ask(balancer, f"k{n}").refuse(0.0)
    assert requests(balancer) == {}


async def test_nothing_counts_while_weights_are_stale(clock: Clock) -> None:
    balancer = balancer_of(clock, ttl_s=10.0)
    clock.now_s = 11.0
    for n in range(20):
        ask(balancer, f"k{n}").refuse(0.0)
    assert requests(balancer) == {}
    balancer.failsafe.renew()
    ask(balancer, "k").refuse(0.0)
    assert sum(requests(balancer).values()) == 1


async def test_a_route_that_is_gone_while_a_request_runs(clock: Clock) -> None:
    balancer = balancer_of(clock)
    endpoint = RouteEndpoint("default/chat", "chat", "c", URLS["c"])
    recorder = ask(balancer, "k")
    balancer.publish(table(1, ("x", 100, []), model="other"))
    recorder.fail(0.0)
    balancer.first_attempts.record(endpoint, "k", AT, 0.0, is_sample=True).fail(0.0)
    assert route_reports(balancer)["default/other"]["samples"] == []
    # Its memory is free again.
    assert not balancer.first_attempts.samples._epochs
