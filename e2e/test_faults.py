"""Six versions that are bad for real, each rolled back by itself, with the reason; stable serves on without a failure.

Each is released twice: to a part of the clients, and to copies of their requests, where no client is served by it.
`make test` runs one of them; `make faults` runs all and prints the table, and WRITE=1 puts it into docs/faults.md.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pytest

from e2e import faults, traffic_features, weights
from e2e.faults import FAULTS, Fault, Row
from slipway_cli.views import evidence
from testkit.cluster.deployment import START_S, Deployment, Json, model_of, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.load.flow import Ended, Flow, Shape
from testkit.report import Bar, report, write

REJECTED_S = 180  # for the verdict: a fault in 2 % of the requests takes chance and a minute
BY_COPIES_S = 420  # the built-in template counts latencies of pods that are two minutes old
THRESHOLD_STREAMS = 120  # of stable, before anything is released: from a hundred on it is known what is slow
BEFORE = 30  # where no latency decides
AFTER = 30  # requests that stable answers alone, once the bad version is gone
# The quickest of those that are judged; a revision that never starts is in test_rollback.py.
IN_EVERY_RUN = ("garbage",)

Rows = Callable[[Row], None]


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    """Takes a row for each fault, prints them all at the end, and writes them where an option is set."""
    found: list[Row] = []
    yield found.append
    if not found:
        return
    page = request.config.getoption("--faults-table")
    print(f"\n{faults.markdown(found)}")
    if not faults.missing_rows(found):
        write(report_of(found))
    if page:
        faults.put_rows(Path(page), found)


def report_of(found: list[Row]) -> Json:
    """For build/reports/faults.json."""
    served = [row for row in found if row.judged == faults.CLIENTS]
    copied = [row for row in found if row.judged == faults.COPIES]
    reached = sum(row.requests for row in copied)
    failed = sum(row.failed for row in copied)
    bars = [
        Bar("rolled back by themselves, judged on clients", len(served), f"{len(FAULTS)}", len(served) == len(FAULTS)),
        Bar("rolled back by themselves, judged on copies", len(copied), f"{len(FAULTS)}", len(copied) == len(FAULTS)),
        Bar("judged on copies: clients that got a response of the bad version", reached, "0", not reached),
        Bar("judged on copies: requests of clients that failed", failed, "0", not failed),
    ]
    return report("faults", [asdict(row) for row in found], bars)


@pytest.fixture(scope="module")
def served(slipway: Installation) -> Iterator[Deployment]:
    """One that serves v1, beside the faulty models on a claim."""
    with slipway.deployed("v1", strategy=faults.strategy(30, faults.BUILT_IN), **traffic_features.spec()) as made:
        weights.begin(slipway.kube, made.namespace, slipway.images.server)
        slipway.kube.apply(faults.warmed(), made.namespace)
        made.until_stable("v1")
        traffic_features.begin(made, slipway.url)
        weights.await_made(slipway.kube, made.namespace)
        yield made


@pytest.fixture
def chat(served: Deployment) -> Deployment:
    """The same, with v1 alone again: the spec goes back to the version that serves."""
    plain = {**model_of("v1"), "maxModelLen": None}
    served.edit(model=plain, resources=None, progressDeadlineSeconds=600)
    served.until_stable("v1")
    served.until_alone()
    return served


def in_every_run(fault: Fault) -> object:
    marks = () if fault.name in IN_EVERY_RUN else (pytest.mark.extended,)
    return pytest.param(fault, id=fault.name.replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("fault", [in_every_run(fault) for fault in FAULTS])
@pytest.mark.timeout(2 * START_S + REJECTED_S + 60, func_only=True)
def test_bad_version_is_rolled_back_by_itself(
    fault: Fault, chat: Deployment, flow: Callable[[Deployment, Shape], Flow], rows: Rows
) -> None:
    enough = THRESHOLD_STREAMS if fault.template == faults.WARMED else BEFORE
    running, stable, pods = begin(fault, chat, flow, enough)
    chat.edit(**fault.change())
    rejected, rejected_at = await_rejection(fault, chat, stable, fault.message, REJECTED_S)

    run = chat.analysis(rejected)
    for name in fault.shows:
        assert is_worse(metric(run, name)), f"{name} does not show it: {metric(run, name)}"
    judged_again(chat, fault)
    seen = serves_on(running, stable)
    assert pods <= chat.pod_uids(), "the stable pods were touched"
    others = [item for item in seen if item.trouble and item.revision in (stable, "")]
    assert not others, f"requests failed that the bad version had nothing to do with: {others[:5]}"
    rows(row(fault, rejected, run, rejected_at, seen))


@pytest.mark.extended
@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name.replace(" ", "-")) for fault in FAULTS])
@pytest.mark.timeout(2 * START_S + BY_COPIES_S + 60, func_only=True)
def test_copies_reject_a_bad_version_before_a_client_is_served_by_it(
    fault: Fault, chat: Deployment, flow: Callable[[Deployment, Shape], Flow], rows: Rows
) -> None:
    """By the built-in template as it is: no client gets a response of the bad version, and none fails."""
    running, stable, pods = begin(fault, chat, flow, THRESHOLD_STREAMS)
    chat.edit(**fault.change(copies=True))
    rejected, rejected_at = await_rejection(fault, chat, stable, fault.by_copies, BY_COPIES_S)

    seen = serves_on(running, stable)
    assert pods <= chat.pod_uids(), "the stable pods were touched"
    assert not [item for item in seen if item.trouble], [item for item in seen if item.trouble][:5]
    assert {item.revision for item in seen} == {stable}, "clients were served by the bad version"
    rows(row_by_copies(fault, rejected, chat.analysis(rejected), rejected_at))


def begin(
    fault: Fault, chat: Deployment, flow: Callable[[Deployment, Shape], Flow], enough: int
) -> tuple[Flow, str, set[str]]:
    """The load, once stable has answered enough of it; the stable revision and its pods."""
    running = flow(chat, fault.shape)
    running.wait_for(lambda seen: len(whole(seen)) >= enough, 90, "enough answers of stable")
    return running, chat.status["stableRevision"], chat.pod_uids()


def await_rejection(fault: Fault, chat: Deployment, stable: str, message: str, within_s: float) -> tuple[Json, float]:
    """The status at the rejection and its time, once the rollout has gone back for the right reason."""
    rejected = chat.until("the bad version is rejected", lambda status: is_rejected(status, stable), within_s)
    rejected_at = time.time()
    settled = chat.until_state("Aborted")
    abort = settled["rollout"]["abort"]
    assert (abort["reason"], weights_of(settled)) == (fault.reason, {"v1": 100}), abort
    assert re.search(message, abort["message"]), f"the rejection does not match {message}: {abort['message']}"
    assert (settled["phase"], settled["stableRevision"]) == ("Degraded", stable)
    assert abort["message"] in settled["message"]
    return rejected, rejected_at


def is_rejected(status: Json, stable: str) -> bool:
    """A bad version that is promoted, or that waits for a person, ends the wait at once."""
    assert status["stableRevision"] == stable, "the bad version was promoted"
    assert state_of(status) != "Paused", f"no verdict came, and the rollout waits for a person: {status['message']}"
    return state_of(status) in ("Aborting", "Aborted")


def metric(run: Json, name: str) -> Json:
    """The verdict on one metric; empty where none was given."""
    verdict = run.get("verdict") or {}
    return next((dict(item) for item in verdict.get("metrics", ()) if item["name"] == name), {})


def is_worse(counted: Json) -> bool:
    """By the plain rates of bad ones."""
    bad, stable_bad = counted.get("canaryBad", 0), counted.get("stableBad", 0)
    return bool(bad * counted.get("stableSamples", 0) > stable_bad * counted.get("canarySamples", 0))


def judged_again(chat: Deployment, fault: Fault) -> None:
    """`slipway analyze` gives the verdict of the operator: from what is in the API server, in another process."""
    obj = chat.kube.deployment(chat.name, chat.namespace)
    path = f"apis/slipway.dev/v1alpha1/namespaces/{chat.namespace}/analysisruns"

    def find(name: str) -> Json:
        return dict(chat.kube.api.find(f"{path}/{name}"))

    own = {} if fault.template == faults.BUILT_IN else {fault.template: faults.spec_of(chat, fault.template)}
    for review in evidence.judge_again(obj, evidence.read_runs(obj, find), own):
        print(f"\n{fault.name}", *evidence.format_review(review), sep="\n")
        assert review.notes == ()


def whole(seen: list[Ended]) -> list[Ended]:
    return [item for item in seen if not item.trouble]


def serves_on(running: Flow, stable: str) -> list[Ended]:
    """All requests that ended, the last of them sent after no gateway had the bad version any more."""
    after = time.time()

    def since(seen: list[Ended]) -> list[Ended]:
        return [item for item in seen if item.at >= after]

    running.wait_for(lambda seen: len(since(seen)) >= AFTER, 60, "answers after the rollback")
    seen = running.stop()
    assert {item.revision for item in since(seen)} == {stable}
    assert not [item for item in since(seen) if item.trouble], "requests fail after the rollback"
    assert running.unsent == 0, "the machine did not carry the load: nothing follows from this run"
    return seen


def row(fault: Fault, rejected: Json, run: Json, rejected_at: float, seen: list[Ended]) -> Row:
    """What it took to find it, by the clock of the clients, by the gateways' counts."""
    bad = [item for item in seen if item.revision == rejected["rollout"]["revision"] and item.at <= rejected_at]
    verdict = run.get("verdict") or {}
    return Row(
        fault=fault.name,
        judged=faults.CLIENTS,
        released=fault.released,
        reason=faults.shortened(rejected["rollout"]["abort"]["message"]),
        seconds=rejected_at - min(item.at for item in bad) if bad else None,
        requests=len(bad),
        copies=0,
        harmed=metric(run, verdict.get("metric", "")).get("canaryBad", 0),
        failed=sum(1 for item in seen if item.trouble),
    )


def row_by_copies(fault: Fault, rejected: Json, run: Json, rejected_at: float) -> Row:
    """The same where no client was served by it: seconds are from the beginning of the analysis."""
    began = run.get("startedAt")
    return Row(
        fault=fault.name,
        judged=faults.COPIES,
        released=fault.released,
        reason=faults.shortened(rejected["rollout"]["abort"]["message"]),
        seconds=rejected_at - datetime.fromisoformat(began).timestamp() if began else None,
        requests=0,
        copies=max((item.get("canarySamples", 0) for item in (run.get("verdict") or {}).get("metrics", ())), default=0),
        harmed=0,
        failed=0,
    )
