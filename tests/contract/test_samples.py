"""The samples of the gateway have the documented shape, and the gateway parses the responses of our server."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from slipway_contracts.counters import (
    BINS,
    MAX_COUNT,
    Agreement,
    AgreementCounts,
    EventCounts,
    LatencyCounts,
    ProbeCounts,
    QualityCounts,
    ScoreCounts,
    read,
    read_bounds,
    zero,
)
from slipway_contracts.route_table import Backend
from slipway_contracts.twin_shadow import TailThreshold, TwinLatency, TwinShadow
from slipway_gateway.balancing.first_attempts import WHOLE_PATIENCE
from slipway_gateway.balancing.load_balancer import LoadBalancer
from slipway_gateway.judging import pairs, samples, units
from slipway_gateway.judging.outcome import OutcomeRecorder, RequestOutcome
from slipway_gateway.judging.predictions import LEARNED, OTHER, PredictionBins
from slipway_gateway.judging.samples import BOUNDS, GENERATIONS, Samples, stratum
from slipway_gateway.mirror.shadow_request import STATELESS_PATHS
from slipway_gateway.routing.router import assign_revision
from slipway_gateway.routing.table import RevisionEndpoints, Route, build
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_gateway.wire import responses
from slipway_gateway.wire.predictions import MAX_BYTES
from slipway_gateway.wire.request_fields import TINY_LIMIT_TOKENS
from slipway_process.serving.errors import HttpError
from slipway_server.engine.request import FinishReason
from slipway_server.http.responses.delta import Delta
from slipway_server.http.responses.sse import DONE, _frame
from slipway_server.http.service import ERRORS
from slipway_server.http.slipway import token_events, typed_error, typed_events
from testkit import ROOT
from tests.contract.documented import TEXT, routes
from tests.support.report import as_json, route_reports

RECORDED = ROOT / "tests/contract/recorded/samples.json"
ROUTE = Route("default/chat", "u", "chat", generation=41, backends=(Backend("9d04aa31c2", 25), Backend("s", 75)))


def shape(value: Any) -> Any:
    """Names and types of values; a list has the type of its first item."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return [shape(value[0])] if isinstance(value, list | tuple) else type(value).__name__


def documented() -> dict[str, Any]:
    (sample,) = routes()["routes"]["default/chat"]["samples"]
    return sample


def test_bounds_are_the_documented_ones() -> None:
    assert routes()["bounds"] == {measure: list(bounds[:3]) for measure, bounds in BOUNDS.items()}
    ttft, itl, e2e = (f"{BOUNDS[measure][-1]:,.5g} s" for measure in ("ttft", "itl", "e2e"))
    assert f"rise by a tenth each, the first three are shown, to {ttft}, {itl} and {e2e}." in " ".join(TEXT.split())


def test_samples_have_the_documented_shape() -> None:
    counters = Samples()
    at = stratum(100, stream=True)
    epoch = counters.epoch(ROUTE)
    ended, running = (epoch.begin("9d04aa31c2", key, at, stream=True) for key in ("k1", "k2"))
    epoch.count(ended, RequestOutcome((), dict.fromkeys(BOUNDS, 1.0)))
    epoch.open(running, OutcomeRecorder(0.0, lambda outcome: None, streams=True))
    bins = PredictionBins()
    assert all(bins.place(number / 7) is None for number in range(LEARNED))
    epoch.predict(ended, 0.5, bins)
    (reported,) = as_json(counters.report(ROUTE, 1.0))
    revision = "9d04aa31c2"
    assert shape(reported["revisions"][revision]) == shape(documented()["revisions"][revision])
    assert set(reported) == set(documented())
    for one in (reported, documented()):
        (counts,) = read([one], {})
        binned = one["revisions"][revision]["predictions"]["bins"]
        assert counts.revisions[revision].predictions.bins == (*binned, *[0] * (BINS - len(binned)))
    for one in (reported, documented()):
        for measure, bounds in BOUNDS.items():
            ((name, histogram),) = one["revisions"][revision]["slow"][measure].items()
            assert name == at and len(histogram) <= len(bounds) + 1
            assert histogram[-1] > 0, "empty buckets at the end are left out"


def test_comparisons_have_the_documented_shape() -> None:
    counters = Samples()
    for measure in samples.COMPARISONS:
        counters.epoch(ROUTE).compared("9d04aa31c2", measure, 1, 0)
    (reported,) = as_json(counters.report(ROUTE, 0.0))
    assert shape(reported["shadow"]) == shape(documented()["shadow"])


def test_agreements_have_the_documented_shape_and_the_operator_reads_it() -> None:
    counters = Samples()
    for key, found in enumerate((Agreement.AGREED, Agreement.DISAGREED, Agreement.UNREAD, Agreement.FAILED)):
        counters.epoch(ROUTE).agreed("9d04aa31c2", str(key), found)
    (reported,) = as_json(counters.report(ROUTE, 0.0))
    assert shape(reported["agreements"]) == shape(documented()["agreements"])
    (sample,) = read([reported], {})
    assert sample.agreements == {"9d04aa31c2": AgreementCounts(compared=2, disagreed=1, unread=1, failed=1)}


def test_pairs_have_the_documented_shape_and_the_operator_reads_it() -> None:
    limits = (TwinLatency("ttft", 15, (TailThreshold("b<4k,stream", 814_000),)),)
    shadow = TwinShadow("9d04aa31c2", "6b2f1c77e0", 25, 10, 2, limits)
    counters = Samples()
    counts = counters.epoch(ROUTE).twins("9d04aa31c2")
    counts.begin()
    counts.begin()
    legs = RequestOutcome(("empty",), {"ttft": 0.9}), RequestOutcome((), {"ttft": 0.7})
    counts.end(shadow, "b<4k,stream", *legs, probe=True)
    counts.withheld |= {"busy": 3, "twin_refused": 1}
    (reported,) = as_json(counters.report(ROUTE, 0.0))
    assert shape(reported["twins"]) == shape(documented()["twins"])
    (sample,) = read([reported], {})
    found = sample.twins["9d04aa31c2"]
    assert (found.open, found.pairs, found.starved) == (1, 1, 4)
    counts.quality.count_texts(equal=False)
    counts.quality.count_tokens(100, 2, 1)
    (reported,) = as_json(counters.report(ROUTE, 0.0))
    (sample,) = read([reported], {})
    assert sample.twins["9d04aa31c2"].quality == QualityCounts(1, 1, 1, 100, 2, 1, 1, 0, 0)
    counts.quality.count_choices(99, 2)
    counts.quality.unscored += 1
    counts.quality.open += 1
    (reported,) = as_json(counters.report(ROUTE, 0.0))
    (sample,) = read([reported], {})
    assert sample.twins["9d04aa31c2"].quality == QualityCounts(1, 1, 1, 100, 2, 1, 1, 0, 0, 1, 20_202, 1, 1)
    former = reported["twins"]["9d04aa31c2"]["quality"]
    counted, former["compared"] = former["compared"], MAX_COUNT
    assert not read([reported], {}), "in millionths it would be no number that a status can have"
    former["compared"] = counted
    for name in ("compared", "changed_millionths", "unscored", "open"):  # a gateway of a former release reports none
        del former[name]
    (sample,) = read([reported], {})
    assert sample.twins["9d04aa31c2"].quality == QualityCounts(1, 1, 1, 100, 2, 1, 1, 0, 0)
    counts.scores.count(1, (0.25, 0.5))
    counts.scores.count(-1)
    counts.scores.blocked += 1
    (reported,) = as_json(counters.report(ROUTE, 0.0))
    (sample,) = read([reported], {})
    rated = replace(
        zero(ScoreCounts),
        scored=2,
        canary_only=1,
        twin_only=1,
        rated=1,
        canary_thousandths=250,
        twin_thousandths=500,
        blocked=1,
    )
    assert sample.twins["9d04aa31c2"].scores == rated
    counts.agreements.count(Agreement.DISAGREED)
    counts.agreements.count(Agreement.FAILED)
    (reported,) = as_json(counters.report(ROUTE, 0.0))
    (sample,) = read([reported], {})
    assert sample.twins["9d04aa31c2"].agreements == AgreementCounts(1, 1, 0, 1)
    assert found.probes == ProbeCounts(1, 0, 0, 1)
    assert found.events["bad"] == found.events["empty"] == EventCounts(1, 0, 0)
    assert found.latencies == {"ttft": LatencyCounts(1, 1, 1, 1, 0, 0)}


def counted() -> list[dict[str, Any]]:
    """What a gateway reports after one of everything; the recorded report is one of the last release."""
    counters, at, canary = Samples(), stratum(100, stream=True), "9d04aa31c2"
    epoch = counters.epoch(ROUTE)
    epoch.assign(canary, "k1", "c", 0.0)
    epoch.assign("s", "k3", "c", 0.0)
    ended, running = (epoch.begin(canary, key, at, stream=True) for key in ("k1", "k2"))
    epoch.count(ended, RequestOutcome(("errors",), dict.fromkeys(BOUNDS, 1.0)))
    epoch.open(running, OutcomeRecorder(0.0, lambda outcome: None, streams=True))
    bins = PredictionBins()
    for number in range(LEARNED):
        bins.place(number / 7)
    epoch.predict(ended, 0.5, bins)
    epoch.rate(canary, first=True, wrong=True)
    epoch.compared(canary, "text", 1, 0)
    epoch.compared(canary, "tokens", 3, None)
    epoch.agreed(canary, "k1", Agreement.DISAGREED)
    limits = (TwinLatency("ttft", 15, (TailThreshold("b<4k,stream", 814_000),)),)
    counts = epoch.twins(canary)
    counts.begin()
    counts.begin()
    legs = RequestOutcome(("empty",), {"ttft": 0.9}), RequestOutcome((), {"ttft": 0.7})
    counts.end(TwinShadow(canary, "s", 25, 10, 2, limits), "b<4k,stream", *legs, probe=True)
    counts.withheld |= {"busy": 3, "twin_refused": 1}
    counts.quality.count_texts(equal=False)
    counts.quality.count_tokens(100, 2, 1)
    counts.scores.count(1, (0.25, 0.5))
    counts.agreements.count(Agreement.FAILED)
    return as_json(counters.report(ROUTE, 1.0))


def within(former: Any, now: Any) -> bool:
    """Whether all that a release wrote is written now, in the same order; there may be more."""
    if isinstance(former, dict):
        kept = [name for name in now if name in former] == list(former)
        return kept and all(within(value, now[name]) for name, value in former.items())
    if isinstance(former, list):
        return len(former) == len(now) and all(map(within, former, now))
    return bool(former == now)


def test_a_gateway_reports_what_one_of_the_last_release_does() -> None:
    assert within(json.loads(RECORDED.read_bytes()), json.loads(msgspec.json.encode(counted())))


def test_the_operator_reads_what_a_gateway_of_the_last_release_reports() -> None:
    recorded = json.loads(RECORDED.read_bytes())
    bounds = read_bounds({kind: list(upper) for kind, upper in BOUNDS.items()})
    (counts,) = read(recorded, bounds)
    (now,) = read(counted(), bounds)
    for revision in now.revisions.values():
        assert revision.events.pop("fell_back") == 0  # that release did not count it
    for events in (
        *(revision.events for revision in now.revisions.values()),
        *(twin.events for twin in now.twins.values()),
    ):
        for kind in ("blocked", "redacted"):  # nor these
            events.pop(kind)
    assert counts == now
    canary, twins = counts.revisions["9d04aa31c2"], counts.twins["9d04aa31c2"]
    assert (canary.assigned, canary.units, canary.rated, canary.wrong) == (1, 1, 1, 1)
    assert canary.events["bad"] == sum(canary.predictions.bins) == sum(canary.slow["itl"]["b<4k,stream"]) == 1
    assert (twins.open, twins.pairs, twins.starved, twins.probes.pairs) == (1, 1, 4, 1)
    later = {
        **recorded[0],
        "hints": 1,
        "twins": {name: {**found, "x": 1} for name, found in recorded[0]["twins"].items()},
    }
    assert read([later], bounds) == (counts,), "fields of a later release are ignored"


def test_reasons_of_pairs_that_are_withheld_are_the_documented_ones() -> None:
    rows = TEXT[TEXT.index("| withheld | because |") :].split("\n\n")[0].splitlines()[2:]
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])] == list(pairs.WITHHELD)
    assert set(documented()["twins"]["9d04aa31c2"]["events"]) == set(pairs.EVENTS)
    paths = TEXT[TEXT.index("Copied are `") :].split(";")[0]
    assert all(f"`{path}`" in paths for path in STATELESS_PATHS)


async def test_the_report_has_them() -> None:
    balancer = LoadBalancer(GatewayMetrics("test"), clock=lambda: 0.0)
    balancer.publish(build([ROUTE], [RevisionEndpoints("default/chat", "s", ("http://10.0.0.1:8000",))]))
    endpoint = balancer.pick("chat", "k1", ())
    assert endpoint and endpoint.revision == assign_revision(ROUTE, "k1") == "s"
    balancer.first_attempts.record(endpoint, "k1", stratum(0, stream=False), 0.0, is_sample=True).fail(0.0)
    (reported,) = route_reports(balancer)["default/chat"]["samples"]
    assert (reported["generation"], reported["revisions"]["s"]["events"]["errors"]) == (41, 1)


def test_numbers_of_the_document_are_those_of_the_code() -> None:
    document = " ".join(TEXT.split())
    assert f"the last {GENERATIONS} generations under which" in document
    assert f"remembers {units.MAX_SESSIONS:,} sessions and {units.MAX_CLIENTS:,} clients" in document
    assert f"{units.FREE_UNITS:.0f} and {units.FREE_UNITS_PER_S:.0f} more each second" in document
    assert f"by {units.BALANCE_SIGMAS:.0f} standard deviations and {units.BALANCE_UNITS:.0f} units" in document
    assert f"not with a `max_tokens`. `empty`: not with one below {TINY_LIMIT_TOKENS}" in document
    assert f"most {MAX_BYTES >> 10} KiB predicts" in document and f"The first {LEARNED} that it reads" in document
    assert f"the {OTHER} most frequent labels" in document and f"Bin {OTHER} has all other" in document
    assert f"last {responses.TAIL_BYTES >> 10} KiB of a stream" in document
    assert (
        f"the last {responses.LOOP_BYTES >> 10} KiB of the text (at least {responses.LOOP_MIN_BYTES} bytes)" in document
    )
    assert f"compresses {responses.LOOP_RATIO:g} times" in document
    assert f"over {responses.JSON_CHARS >> 10} KiB or" in document
    assert f"for {GatewaySettings().hung_after_s:g} s (`--hung-after`)" in document
    assert f"for {WHOLE_PATIENCE} times as long" in document


def test_kinds_and_strata_of_the_document_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", TEXT[TEXT.index("| event | when |") :], re.MULTILINE)
    assert tuple(rows[: len(responses.KINDS)]) == responses.KINDS
    for size in (0, samples._SMALL_BYTES, samples._MEDIUM_BYTES):
        assert f"`{stratum(size, stream=True).split(',')[0]}`" in TEXT


# -- responses of our server


def test_non_finite_output_is_distinguished_from_a_broken_server() -> None:
    failures = {reason: responses.find_failures(make("why").encode()) for reason, make in ERRORS.items()}
    broken = ("errors",)
    assert failures == {
        FinishReason.ERROR: broken,
        FinishReason.NON_FINITE: ("errors", "non_finite"),
        FinishReason.LOST: broken,
        FinishReason.CRASHED: broken,
        # An invalid request or a deadline of the client is no evidence about a revision.
        FinishReason.INVALID: (),
        FinishReason.DEADLINE: (),
    }


async def deltas(*texts: str, finish: FinishReason) -> AsyncIterator[Delta]:
    for count, text in enumerate(texts, 1):
        yield Delta(text, count, count, finish if count == len(texts) else None)


CASES = [
    (("a", "b"), FinishReason.STOP, ()),
    (("", ""), FinishReason.STOP, ("empty",)),
    (("a", "b"), FinishReason.LENGTH, ("truncated",)),
    (("a word or two, ",) * 100, FinishReason.STOP, ("repetition",)),
]


@pytest.mark.parametrize(("texts", "finish", "kinds"), CASES)
async def test_streams_of_generate_are_read(texts: tuple[str, ...], finish: FinishReason, kinds: tuple) -> None:
    stream = b"".join([_frame(event) async for event in typed_events(deltas(*texts, finish=finish), 3, None)])
    assert responses.find_failures_in_stream(stream, complete=True) == kinds


@pytest.mark.parametrize(("texts", "finish", "kinds"), CASES)
async def test_streams_of_the_other_generate_have_no_reason(
    texts: tuple[str, ...], finish: FinishReason, kinds: tuple
) -> None:
    stream = b"".join([_frame(event) async for event in token_events(deltas(*texts, finish=finish), None)])
    assert responses.find_failures_in_stream(stream + DONE, complete=True) == tuple(
        kind for kind in kinds if kind != "truncated"
    )


def test_errors_in_streams_are_read() -> None:
    error = HttpError(500, "why", code="non_finite").body
    for event in (error, typed_error(error)):
        assert responses.find_failures_in_stream(_frame(event) + DONE, complete=True) == ("errors", "non_finite")
