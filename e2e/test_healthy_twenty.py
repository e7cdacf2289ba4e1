"""A version that is as good is promoted by itself, twenty times of twenty (`make promote20`).

All versions have the same weights: a model that is larger is slower, and rightly rejected for it. `make release20` does
the same by pairs and a ramp, with the built-in template as it is.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median, quantiles

import pytest

from e2e import faults, traffic_features
from testkit.cluster.deployment import START_S, Deployment, Json, model_of, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.load.flow import Ended, Flow, Shape
from testkit.report import Bar, report, write

TIMES = 20
PROMOTED_S = 180
TYPICAL_S = 60.0
THRESHOLD_STREAMS = 120
RATE, WEIGHT = 20, 50
# Twenty releases by llm-release take more than an hour, because each compares pairs for five minutes at least.
RELEASES = int(os.environ.get("SLIPWAY_RELEASES", "20"))
LANES = int(os.environ.get("SLIPWAY_LANES", "2"))  # deployments that release at the same time
REPLICAS = int(os.environ.get("SLIPWAY_REPLICAS", "1"))  # of stable; the new version is compared with one pod
RELEASE_RATE, RELEASED_S = 5, 1800
# As the built-in template, with margins that hundreds of requests can prove and not thousands. A quarter of stable's
# own latencies are slow by these thresholds: that is as fair, and ends sooner.
QUICK: Json = {
    "minSamples": {"canaryRequests": 150, "warmupSeconds": 15},
    "metrics": [
        {"name": "errors", "event": "FirstAttemptError", "share": 0.3, "okBelow": 0.02},
        {"name": "ttft", "event": "Slower(ttft, stable.p75)", "share": 0.15, "tolerateRatio": 1.5, "maxRatio": 3.0},
        {"name": "itl", "event": "Slower(itl, stable.p75)", "share": 0.15, "tolerateRatio": 1.5, "maxRatio": 3.0},
        {"name": "empty", "event": "EmptyAnswer", "share": 0.1, "okBelow": 0.02},
        {"name": "truncated", "event": "TruncatedAnswer", "share": 0.1, "okBelow": 0.02},
        {"name": "repetition", "event": "RepetitiveAnswer", "share": 0.1, "okBelow": 0.02},
        {"name": "non-finite", "event": "NonFiniteLogits", "share": 0.1, "okBelow": 0.02},
    ],
}


@pytest.mark.extended
@pytest.mark.timeout(2 * START_S + TIMES * PROMOTED_S, func_only=True)
def test_healthy_version_is_promoted_twenty_times_of_twenty(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment], flow: Callable[[Deployment, Shape], Flow]
) -> None:
    slipway.kube.apply(faults.template("quick", **QUICK), namespace)
    chat = deploy("v1", strategy=faults.strategy(WEIGHT, "quick"), **traffic_features.spec())
    chat.until_stable("v1")
    traffic_features.begin(chat, slipway.url)
    running = flow(chat, Shape(rate=RATE, streamed=1))
    running.wait_for(lambda seen: len(seen) >= THRESHOLD_STREAMS, 60, "enough answers of stable")
    took: list[float] = []
    for number in range(1, TIMES + 1):
        took.append(promoted(chat, f"v1-{number}"))
        print(f"promotion {number} of {TIMES}: {took[-1]:.1f} s", flush=True)
    seen = running.stop()
    typical, failed = median(took), [item for item in seen if item.trouble]
    print(f"{TIMES} of {TIMES}: median {typical:.1f} s, longest {max(took):.1f} s, {len(seen)} requests", flush=True)
    write(report_of(took, len(seen), len(failed)))
    assert not failed, failed[:5]
    assert typical < TYPICAL_S


@dataclass(frozen=True, slots=True)
class Release:
    """A healthy release, and what its pairs of copies had proved when clients began to be served by it.

    Both sides have the same weights, so the pairs of each release compare stable with itself.
    """

    seconds: float
    shadow: str  # the verdict of the pairs
    evidence: str  # of all their metrics, as odds that it is worse
    at_most: float  # extra bad responses per 1,000
    metrics: tuple[str, ...]


@pytest.mark.extended
@pytest.mark.timeout(2 * START_S + RELEASES * RELEASED_S, func_only=True)
def test_healthy_releases_ramp_up_with_the_built_in_template(
    slipway: Installation, namespace: str, flow: Callable[[Deployment, Shape], Flow]
) -> None:
    slipway.kube.kubectl("version")  # before threads share it
    with ThreadPoolExecutor(LANES) as lanes:
        deployments = [Deployment(slipway.kube, namespace, f"chat-{lane}") for lane in range(LANES)]
        shares = [RELEASES // LANES + (lane < RELEASES % LANES) for lane in range(LANES)]
        done = list(lanes.map(partial(releases_of, flow), deployments, shares))
    releases, seen = [one for ended, _ in done for one in ended], [item for _, ended in done for item in ended]
    took, failed = [one.seconds for one in releases], [item for item in seen if item.trouble]
    ninth = quantiles(took, n=10)[-1] if len(took) > 1 else took[0]
    print(f"{RELEASES} of {RELEASES}: median {median(took):.0f} s, p90 {ninth:.0f} s, {len(seen)} requests", flush=True)
    bars = [
        Bar("healthy versions promoted", len(took), f">= {RELEASES}", len(took) >= RELEASES),
        Bar("failed requests", len(failed), "0", not failed),
        Bar("median s", median(took), "<= 420", median(took) <= 420),
        Bar("p90 s", ninth, "<= 600", ninth <= 600),
    ]
    write(report("release20", [{"release": number} | asdict(one) for number, one in enumerate(releases, 1)], bars))
    assert not failed, failed[:5]


def releases_of(
    flow: Callable[[Deployment, Shape], Flow], chat: Deployment, times: int
) -> tuple[list[Release], list[Ended]]:
    """Releases of one deployment one after the other, and the answers that its clients got meanwhile."""
    templates = [{"templateName": "llm-release"}]
    steps: list[Json] = [
        {"analysis": {"templates": templates, "twinShadow": {"percentage": 100}, "maxDuration": "30m"}},
        {"ramp": {"auto": {"bake": "0s"}, "templates": templates, "maxDuration": "30m"}},
    ]
    canary = {"baselinePod": True, "steps": steps, "scaleDownDelaySeconds": 1}
    chat.create("v1", replicas=REPLICAS, strategy={"canary": canary, "capacity": {"maxSurge": 2}})
    chat.until_stable("v1")
    running = flow(chat, Shape(rate=RELEASE_RATE, streamed=1))
    running.wait_for(lambda seen: len(seen) >= THRESHOLD_STREAMS, 90, "enough answers of stable")
    releases: list[Release] = []
    for number in range(1, times + 1):
        releases.append(released(chat, f"v1-{number}"))
        print(f"{chat.name}, release {number} of {times}: {releases[-1]}", flush=True)
    return releases, running.stop()


def released(chat: Deployment, version: str) -> Release:
    """One release, promoted by itself."""
    pairs: list[Json] = []

    def note(status: Json) -> None:
        rollout = status.get("rollout") or {}
        if not rollout.get("stepIndex") and (verdict := (rollout.get("analysis") or {}).get("verdict")):
            evidence = chat.analysis(status)["verdict"]["evidence"]
            pairs[:] = [verdict | {"evidence": evidence, "at": rollout.get("shadowAtMost")}]
        elif rollout.get("stepIndex") == 1 and pairs:
            pairs[0]["at"] = rollout.get("shadowAtMost")

    seconds = promoted(chat, version, RELEASED_S, note)
    last = pairs[0]
    return Release(
        round(seconds), last["message"], str(last["evidence"]), last["at"] or 1000.0, tuple(last.get("metrics") or ())
    )


def promoted(
    chat: Deployment, version: str, within_s: float = PROMOTED_S, note: Callable[[Json], None] = lambda _: None
) -> float:
    """Seconds from the edit until the version serves everything; then the former one leaves. `note` sees
    each status."""
    began = time.monotonic()
    chat.edit(model={**model_of("v1"), "version": version})

    def done(status: Json) -> bool:
        note(status)
        rejected = state_of(status) in ("Aborting", "Aborted", "Paused")
        assert not rejected, f"a healthy version was not promoted: {status['message']}"
        return weights_of(status) == {version: 100} and not status.get("rollout")

    chat.until(f"{version} is promoted", done, within_s)
    seconds = time.monotonic() - began
    chat.until_alone()
    return seconds


def report_of(took: list[float], requests: int, failed: int) -> Json:
    """For build/reports/promote20.json."""
    bars = [
        Bar("healthy versions promoted", len(took), f">= {TIMES}", len(took) >= TIMES),
        Bar("failed requests", failed, "0", failed == 0),
        Bar("median s", median(took), f"< {TYPICAL_S:.0f}", median(took) < TYPICAL_S),
    ]
    rows = [{"promotion": number, "seconds": round(value, 1)} for number, value in enumerate(took, 1)]
    return report("promote20", [*rows, {"requests": requests}], bars)
