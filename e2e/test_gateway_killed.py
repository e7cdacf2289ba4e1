"""One of two gateways dies in a canary: only what it carried is lost. One that gets SIGTERM loses nothing."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import openai
import pytest

from e2e.asking import client
from testkit.cluster.deployment import START_S, Deployment, Json, conditions_of, weights_of
from testkit.cluster.installation import Installation
from testkit.cluster.kube import SYSTEM
from testkit.cluster.release import await_answer, is_devcluster, port_forward
from testkit.load.closed import Load, Report
from testkit.until import until

# Until the cluster's own machinery has taken a dead pod out of the Service on every node.
OUT_OF_SERVICE_S = 5.0
LONG = (150, 250)  # tokens: streams that last while a gateway goes


@pytest.fixture(scope="module")
def paused(slipway: Installation) -> Iterator[Deployment]:
    """A canary at half of the traffic, steered by hand; each test leaves it there."""
    with slipway.deployed("v1", strategy={"canary": {"trafficPercent": 50}}) as chat:
        chat.until_stable("v1")
        chat.release("v2")
        until_steered(chat, 50)
        yield chat


def test_killed_gateway_takes_only_its_own_requests_along(
    slipway: Installation, paused: Deployment, load: Callable[..., Load]
) -> None:
    if not is_devcluster(slipway.kube):
        pytest.skip("needs a URL on this machine that leads to all gateways; a port-forward leads to one")
    everyone = load(paused, pause_s=0, max_tokens=LONG)
    everyone.wait_for(lambda report: report.requests >= 4, 60)
    survivor, victim = by_burden(slipway, paused)
    with port_forward(slipway.kube, SYSTEM, f"pod/{survivor}", 8000) as url, patient(slipway.url, paused) as answers:
        await_answer(url, 30)
        beside = load(paused, url=f"{url}/v1", pause_s=0, max_tokens=LONG, streams=2)
        beside.wait_for(lambda report: report.requests >= 4, 60)
        carries = f"{victim} carries a request"
        until(lambda: slipway.inflight(victim, paused.route) > 0, carries, 30)
        before, killing_from = everyone.report(), time.time()
        slipway.kill(victim)
        killed_by = time.time()  # the command itself takes seconds on a busy machine
        everyone.wait_for(lambda report: report.since(before).requests >= 20, 60)
        slipway.until_well()
        steer_on(paused)
        whole, untouched = everyone.stop(), beside.stop()

    assert untouched.failures == (), "requests at the other gateway failed"
    ended = slipway.outcomes(survivor, paused.model)
    assert set(ended) == {"ok"}, "the other gateway cut or refused requests of its own"
    assert_lost_at_the_kill(whole, killing_from, killed_by)
    assert answers.count >= 20
    assert answers.failed == [], "the openai client retries a lost connection; this was more than that"


def test_dismissed_gateway_finishes_its_streams(
    slipway: Installation, paused: Deployment, load: Callable[..., Load]
) -> None:
    steady = load(paused, pause_s=0, max_tokens=LONG)
    steady.wait_for(lambda report: report.requests >= 4, 60)
    _, leaver = by_burden(slipway, paused)
    slipway.dismiss(leaver)
    until(lambda: not slipway.is_there(leaver), "the dismissed gateway has ended by itself", 90)
    slipway.until_well()
    steer_on(paused)
    report = steady.stop()
    assert report.failures == ()


def steer_on(chat: Deployment) -> None:
    """The rollout goes on with the gateway that replaced the one that went: it too acknowledges what comes now."""
    for percent in (60, 50):
        chat.edit(strategy={"canary": {"trafficPercent": percent}})
        until_steered(chat, percent)


def until_steered(chat: Deployment, percent: int) -> None:
    shares = {"v2": percent, "v1": 100 - percent}

    def steered(status: Json) -> bool:
        synced = conditions_of(status)["TrafficSynced"] == "True"
        return synced and (status["weight"], weights_of(status)) == (percent, shares)

    chat.until(f"{percent} % for the canary at every gateway", steered, START_S)


def by_burden(slipway: Installation, chat: Deployment) -> list[str]:
    """The gateways, the one with the most requests in progress last: connections stay where they first went."""
    found = sorted((slipway.inflight(name, chat.route), name) for name in slipway.ready("gateway"))
    assert found[-1][0] > 0, "no gateway carries a request"
    return [name for _, name in found]


def assert_lost_at_the_kill(report: Report, killing_from: float, killed_by: float) -> None:
    """Failures are connections that broke with the gateway, or found its door shut before the Service had noticed."""
    for failure in report.failures:
        print(f"{failure.at - killing_from:+.2f} s after the kill began: {failure}")
    assert report.failures, "the killed gateway carried nothing: this proved nothing"
    elsewhen = [str(item) for item in report.failures if not killing_from <= item.at <= killed_by + OUT_OF_SERVICE_S]
    assert not elsewhen, "requests failed before the kill or long after it"
    answered = [str(item) for item in report.failures if not item.text.startswith("APIConnectionError")]
    assert not answered, "a gateway answered with an error"


class Answers:
    """What a user with the plain openai client sees: whole answers, and the client's own retries."""

    def __init__(self) -> None:
        self.count = 0
        self.failed: list[str] = []


@contextmanager
def patient(url: str, chat: Deployment) -> Iterator[Answers]:
    """One such user sends one request after another."""
    answers, leaving = Answers(), threading.Event()

    def ask() -> None:
        with client(url, retries=openai.DEFAULT_MAX_RETRIES) as session:
            while not leaving.is_set():
                try:
                    session.completions.create(model=chat.model, prompt="And it came to pass", max_tokens=16)
                    answers.count += 1
                except openai.OpenAIError as error:
                    answers.failed.append(repr(error))

    user = threading.Thread(target=ask)
    user.start()
    try:
        yield answers
    finally:
        leaving.set()
        user.join()
