"""Without requests the pods leave; the next request is held and answered: with the real model, gateways and drain.

How long the first token takes is a bar of `make wake20` alone, which has the machine to itself.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e.asking import client
from testkit.cluster.deployment import NOTICE_S, START_S, Deployment, Json, canary
from testkit.cluster.installation import Installation
from testkit.until import until

IDLE_S = 5
SCALED = {
    "minReplicas": 0,
    "maxReplicas": 2,
    "idleSeconds": IDLE_S,
    "metrics": [{"type": "InFlight", "target": "16"}],
}
MANY_CYCLES = 20
TTFT_BAR_S = 10.0
# Of a cycle: from before it falls asleep to long after its pods have left.
SPREAD_S = 12.0


@pytest.fixture(scope="module")
def sleepy(slipway: Installation) -> Iterator[Deployment]:
    """A deployment that goes to zero after a few idle seconds."""
    with slipway.deployed("v1", autoscaling=SCALED) as chat:
        chat.until_stable("v1")
        yield chat


@dataclass(frozen=True, slots=True)
class Answered:
    """One stream: the state at its start, and after how many seconds its first token came."""

    state: str
    pods: int
    ttft_s: float


def ask(url: str, chat: Deployment) -> Answered:
    """One stream to its end, as users ask; a failure is an exception of the openai client."""
    state, pods, began, first = sleep_of(chat.status), len(chat.pods()), time.monotonic(), 0.0
    with client(url) as session:
        stream = session.completions.create(model=chat.model, prompt="And God said", max_tokens=8, stream=True)
        text = ""
        for chunk in stream:
            text += chunk.choices[0].text if chunk.choices else ""
            first = first or (time.monotonic() if text else 0.0)
    assert text, "the answer has no text"
    return Answered(state, pods, first - began)


def sleep_of(status: Json) -> str:
    return str((status.get("sleep") or {}).get("state"))


def until_asleep(chat: Deployment) -> Json:
    chat.until("it sleeps", lambda status: status["phase"] == "Asleep", START_S)
    until(lambda: not chat.pods(), "its pods leave", START_S)
    return chat.until("nothing is counted of them", lambda status: status["ready"] == "0/0", NOTICE_S)


def report(answers: list[Answered]) -> None:
    for number, one in enumerate(answers, 1):
        print(f"cycle {number}: sent while {one.state}, {one.pods} pods, first token after {one.ttft_s:.2f} s")
    waits = [one.ttft_s for one in answers if one.pods == 0]
    if waits:
        print(f"time to first token from zero: {min(waits):.2f} to {max(waits):.2f} s in {len(waits)} wakes; lost: 0")


def test_to_zero_and_back(slipway: Installation, sleepy: Deployment) -> None:
    status = until_asleep(sleepy)
    assert (status["replicas"], status["ready"], status["traffic"]["asleep"]) == (0, "0/0", True)
    report([ask(slipway.url, sleepy)])
    sleepy.until_events("ScaledToZero", "WakeStarted", "WakeCompleted")
    for name in slipway.ready("gateway"):
        assert set(slipway.outcomes(name, sleepy.model)) <= {"ok"}, "a request was refused or lost"


def test_a_new_version_goes_out_though_it_sleeps(slipway: Installation, sleepy: Deployment) -> None:
    until_asleep(sleepy)
    sleepy.release("v2", strategy=canary({"setWeight": 50}))
    sleepy.until_stable("v2")
    ask(slipway.url, sleepy)


@pytest.mark.extended
@pytest.mark.timeout(1800, func_only=True)
def test_twenty_cycles_with_requests_at_random_moments(slipway: Installation, sleepy: Deployment) -> None:
    """Some come while it falls asleep, some while its pods leave, some long after: each is answered."""
    chance, answers = random.Random(7), []
    for _ in range(MANY_CYCLES):
        time.sleep(chance.uniform(IDLE_S - 1, IDLE_S - 1 + SPREAD_S))
        answers.append(ask(slipway.url, sleepy))
    report(answers)
    assert sum(one.pods == 0 for one in answers) >= MANY_CYCLES // 4, "too few were sent while there was no pod"
    assert max(one.ttft_s for one in answers) <= TTFT_BAR_S
    for name in slipway.ready("gateway"):
        assert set(slipway.outcomes(name, sleepy.model)) <= {"ok"}, "a request was refused or lost"
