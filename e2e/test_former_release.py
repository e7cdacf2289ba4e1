"""A release is exchanged for the one before it and back in the middle of rollouts: nothing fails, nothing restarts.

Three deployments under load are in the middle of something at each exchange: one pauses at a weight, one is judged and
is as good as stable, one is judged and is worse. What is promoted was judged, however often the judge was exchanged.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from e2e import faults, former_release
from e2e.former_release import FormerRelease
from e2e.test_restarted import BAD, HEALTHY
from testkit.cluster.deployment import Deployment, Json, canary, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.load.flow import Ended, Flow, Shape

VERDICT_S = 540.0
COMES_UP_S = 240.0
ENOUGH = 250  # requests of the canary that the judge needs, which take longer than all exchanges
RATE = 2.0  # of each deployment: two cores carry six pods and what exchanges them
BETWEEN_S = 10.0  # for a status, and more, to be written by each operator


@pytest.fixture(scope="module")
def former(cluster: object) -> FormerRelease:
    return former_release.built()


@pytest.fixture
def exchanged(slipway: Installation, former: FormerRelease) -> Iterator[Installation]:
    """The former release in place of this one; afterwards this one is there again."""
    yield replace(slipway, images=former.images, chart=former.chart)
    slipway.upgrade()
    slipway.until_well()


@dataclass(frozen=True)
class Judged:
    """A deployment in an analysis, and the load on it."""

    chat: Deployment
    stable: str
    load: Flow

    def troubles(self) -> list[Ended]:
        return [ended for ended in self.load.stop() if ended.trouble]


@pytest.mark.extended
@pytest.mark.timeout(3600, func_only=True)
def test_releases_are_exchanged_in_the_middle_of_rollouts(
    slipway: Installation,
    exchanged: Installation,
    namespace: str,
    flow: Callable[[Deployment, Shape], Flow],
) -> None:
    exchanged.upgrade()
    exchanged.until_well()
    slipway.kube.apply(template(), namespace)

    paused = started("paused", slipway, namespace, flow, strategy=canary({"setWeight": 20}, {"pause": {}}))
    good = started("good", slipway, namespace, flow, strategy=judged_at(50))
    bad = started("bad", slipway, namespace, flow, strategy=judged_at(20))
    paused.chat.edit(**HEALTHY)
    at_pause = paused.chat.until_state("Paused", COMES_UP_S)
    good.chat.edit(**HEALTHY)
    good.chat.until_state("Analyzing", COMES_UP_S)
    began_s, before = time.monotonic(), served(good)
    uids = {judged.chat.name: judged.chat.objects() for judged in (paused, good)}

    for number, release in enumerate((slipway, exchanged, slipway), 1):
        release.upgrade()
        release.until_well()
        time.sleep(BETWEEN_S)
        # The judge had a second of it at most: a version that is worse is in the middle when the release is exchanged.
        if number == 1:
            bad.chat.edit(**BAD)
            bad.chat.until_state("Analyzing", COMES_UP_S)
        status = paused.chat.status
        assert (state_of(status), status["weight"]) == ("Paused", 20), f"exchange {number}: {status['message']}"
        assert status["rollout"]["token"] == at_pause["rollout"]["token"], "another attempt"
        for judged in (paused, good):
            missing = uids[judged.chat.name].items() - judged.chat.objects().items()
            assert not missing, f"exchange {number}: {sorted(missing)} of {judged.chat.name} were replaced"
        assert good.chat.status["stableRevision"] == good.stable, f"promoted {time.monotonic() - began_s:.0f} s in"

    assert rejected(bad.chat), bad.chat.status
    good.chat.until_stable("as-good", VERDICT_S)
    judged_requests = served(good) - before
    assert judged_requests >= 2 * ENOUGH, f"promoted after {judged_requests} requests of both sides"
    good.chat.until_events("AnalysisRunSuccessful", "RolloutCompleted")
    paused.chat.promote()
    paused.chat.until_stable("as-good")
    for judged in (paused, good, bad):
        troubles = judged.troubles()
        assert not troubles, f"{judged.chat.name}: {len(troubles)} of {len(judged.load.seen())}: {troubles[:5]}"


def started(
    name: str,
    slipway: Installation,
    namespace: str,
    flow: Callable[[Deployment, Shape], Flow],
    *,
    strategy: Json,
) -> Judged:
    """A deployment that serves, with a load that leaves the length of answers to the server."""
    chat = Deployment(slipway.kube, namespace, name)
    chat.create("v1", strategy=strategy)
    stable = chat.until_stable("v1")["stableRevision"]
    return Judged(chat, stable, flow(chat, Shape(rate=RATE, max_tokens=None)))


def template() -> Json:
    """It fails a version that is worse within seconds, and passes none before it has served `ENOUGH` requests."""
    metrics = [
        {"name": "errors", "event": "FirstAttemptError", "share": 0.5, "okBelow": 0.05},
        {"name": "truncated", "event": "TruncatedAnswer", "share": 0.5, "okBelow": 0.05},
    ]
    return faults.template("careful", minSamples={"canaryRequests": ENOUGH, "warmupSeconds": 5}, metrics=metrics)


def judged_at(weight: int) -> Json:
    return faults.strategy(weight, "careful")


def served(judged: Judged) -> int:
    return sum(not ended.trouble for ended in judged.load.seen())


def rejected(chat: Deployment) -> bool:
    """Whether the version was rolled back by the judge; it waits for that."""
    status = chat.until(
        "it is rolled back", lambda seen: state_of(seen) == "Aborted" and weights_of(seen) == {"v1": 100}, VERDICT_S
    )
    return bool(status["rollout"]["abort"]["reason"] == "AnalysisFailed")
