"""A hostile namespace beside two victims on a real cluster: they serve and are judged as without it.

The stranger owns its namespace and sends to the gateways from a pod. It squats the victims' model names, forges its
status, copies their labels, writes templates that would make the operator its deputy, and sends poison, floods and
forged heads to the victims' models. Victim A is measured in windows with and without it, by turns, in one run; victim
B goes through the same rollout once without and once beside it. `make hostile`, about five minutes.

What this does not show: the development cluster's network plugin enforces no NetworkPolicy, so that nothing here shows
what a policy keeps out, and the stranger does not connect to pods directly. The node's processors are shared by
LimitRanges, as a cluster's administrator sets them: the victims' pods ask for a part, the stranger's have a limit.
Without them processors are shared without limit. The stranger's idle pods stand in all windows.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from e2e.faults import ROOT
from e2e.hostile import CRASHES, Hostile, counted
from e2e.impersonation import Impersonation
from e2e.test_analysis import STRATEGY, TEMPLATE
from e2e.windows import (
    ALONE,
    BEFORE,
    BESIDE,
    ROUNDS,
    SHARE,
    WINDOW_S,
    Window,
    bar,
    by_turns,
    comparison,
    none,
    row,
    table,
    within,
)
from testkit.cluster.deployment import START_S, Deployment, Json
from testkit.cluster.installation import Installation
from testkit.cluster.kube import SYSTEM
from testkit.load.flow import Ended, Flow, Shape
from testkit.report import report, write

PROMOTED_S = 240
FORGED_EVERY_S = 5.0
RATE = 10


@dataclass(slots=True)
class Seen:
    """What was measured."""

    requests: dict[str, list[Ended]] = field(default_factory=dict)  # of victim A, by kind of window
    promoted: dict[str, float] = field(default_factory=dict)  # of victim B: seconds to promotion
    of_b: list[Ended] = field(default_factory=list)
    answered: list[Json] = field(default_factory=list)  # to the stranger: counts by kind and status
    strays: int = 0  # requests of victims that a revision of another one answered


@dataclass(slots=True)
class Victim:
    """A deployment, and clients of it whose every prompt and header holds a secret."""

    chat: Deployment
    flow: Flow
    secret: str


@pytest.fixture
def victims(slipway: Installation) -> Iterator[list[Victim]]:
    """A (steady) and B (rolled out); A's clients have a key, B's none, so that each of its requests is a unit."""
    with ExitStack() as stack:
        found = []
        for keyed in (True, False):
            chat = Deployment(slipway.kube, slipway.new_namespace())
            stack.callback(slipway.drop_namespace, chat.namespace)
            slipway.kube.apply(SHARE, chat.namespace)
            chat.create("v1", strategy=STRATEGY)
            secret = f"secret{secrets.token_hex(8)}"
            headers = {"Cookie": f"session={secret}"} | ({"Authorization": f"Bearer sk-{secret}"} if keyed else {})
            shape = Shape(rate=RATE, max_tokens=16, marker=secret)
            found.append(Victim(chat, Flow(slipway.url, chat.model, shape, headers), secret))
        for victim in found:
            slipway.kube.apply(TEMPLATE, victim.chat.namespace)
            victim.chat.until_stable("v1")
        yield found
        for victim in found:
            victim.flow.stop()


@pytest.fixture
def stranger(slipway: Installation, victims: list[Victim]) -> Iterator[Hostile]:
    name = slipway.new_namespace()
    # No Pod Security there: the worst case of a cluster.
    slipway.kube.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=privileged", "--overwrite")
    hostile = Hostile(slipway.kube, name, slipway.images.server, [victim.chat for victim in victims])
    hostile.settle()
    yield hostile
    slipway.drop_namespace(name)


@pytest.mark.extended
@pytest.mark.attack_class(9, 15, 16, 18, 22, 23)
@pytest.mark.timeout(4 * START_S + 2 * ROUNDS * WINDOW_S + 2 * PROMOTED_S, func_only=True)
def test_a_hostile_namespace_changes_nothing_for_its_neighbours(
    slipway: Installation, victims: list[Victim], stranger: Hostile
) -> None:
    a, b = victims
    seen = Seen()
    steady(a, b, stranger, seen)
    rollouts(b, stranger, seen)
    requests = a.flow.stop()
    own = {str(a.chat.status["stableRevision"])}
    seen.strays += sum(1 for item in requests if item.revision and item.revision not in own)
    report = report_of(slipway, victims, stranger, seen)
    write(report, ROOT)
    print(table(report))
    assert all(bar["ok"] for bar in report["bars"]), [bar for bar in report["bars"] if not bar["ok"]]


def steady(a: Victim, b: Victim, stranger: Hostile, seen: Seen) -> None:
    """Victim A under a steady load, in windows without and with the stranger by turns."""
    a.flow.start().wait_for(lambda ended: len(ended) >= BEFORE, 60, "answers of victim A")
    stranger.intrude()
    windows = by_turns()
    with Attacked(stranger, [b.chat], windows[BESIDE], seen):
        time.sleep(max(0.0, windows[BESIDE][-1][1] + 2 - time.time()))
    ended = a.flow.seen()
    seen.requests = {kind: within(ended, found) for kind, found in windows.items()}
    print(*(row(kind, found) for kind, found in seen.requests.items()), *seen.answered, sep="\n")


def rollouts(b: Victim, stranger: Hostile, seen: Seen) -> None:
    """Victim B, rolled out under analysis alone, and then beside the stranger."""
    b.flow.start().wait_for(lambda ended: len(ended) >= BEFORE, 60, "answers of victim B")
    own = {str(b.chat.status["stableRevision"])}
    seen.promoted[ALONE] = promoted(b.chat, "v2")
    own.add(str(b.chat.status["stableRevision"]))
    stranger.use_deputies()
    now = time.time()
    with Attacked(stranger, [b.chat], [(now, now + 60)], seen):
        seen.promoted[BESIDE] = promoted(b.chat, "v2-again")
    own.add(str(b.chat.status["stableRevision"]))
    seen.of_b = b.flow.stop()
    seen.strays += sum(1 for item in seen.of_b if item.revision and item.revision not in own)


def promoted(chat: Deployment, version: str) -> float:
    """Release it; seconds until it has all traffic."""
    began = time.monotonic()
    chat.release(version)
    chat.until_stable(version, PROMOTED_S)
    return time.monotonic() - began


class Attacked:
    """The stranger attacks within these windows, in a thread, and forges statuses meanwhile."""

    def __init__(self, stranger: Hostile, forged: list[Deployment], windows: list[Window], seen: Seen) -> None:
        self._stranger, self._forged, self._windows, self._seen = stranger, forged, windows, seen
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guard, args=(work,)) for work in (self._send, self._forge)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(self._windows[-1][1] - time.time() + 90)
        if self._errors:
            raise self._errors[0]

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)

    def _send(self) -> None:
        self._seen.answered.append(self._stranger.attack(self._windows))

    def _forge(self) -> None:
        with Impersonation(self._stranger.kube, self._stranger.user) as as_stranger:
            for begins, ends in self._windows:
                time.sleep(max(0.0, begins - time.time()))
                while time.time() < ends:
                    for victim in self._forged:
                        self._stranger.forge_status(as_stranger, victim)
                    time.sleep(FORGED_EVERY_S)


# --- the report -------------------------------------------------------------------------------------------------------


def report_of(slipway: Installation, victims: list[Victim], stranger: Hostile, seen: Seen) -> Json:
    """For build/reports/hostile.json."""
    rows = [row(kind, found) for kind, found in seen.requests.items()]
    alone, beside = rows
    reached = stranger.everything()
    ours = "\n".join(
        slipway.kube.kubectl("logs", pod["metadata"]["name"], "-n", SYSTEM, "--tail=-1")
        for component in ("operator", "gateway")
        for pod in slipway.pods(component)
    )
    places = {victim.chat.namespace for victim in victims}
    intruded = [what for what in stranger.taken if any(place in what for place in places)]
    failed = sum(1 for item in [*seen.requests[BESIDE], *seen.of_b] if item.trouble)
    server_errors = sum(
        count for counted in seen.answered for kind in ("poison", "nested", "forged headers")
        for status, count in counted.get(kind, {}).items() if status in ("500", "502", "504")
    )  # fmt: skip
    bars = [
        *comparison(alone, beside, RATE),
        none("failed requests of victims beside the stranger", failed),
        none("secrets of victims that reached the stranger", sum(reached.count(one.secret) for one in victims)),
        none("secrets of victims in logs of operator and gateways", sum(ours.count(one.secret) for one in victims)),
        none("requests that the squatters' pods had", stranger.received()),
        none("requests of victims that others answered", seen.strays),
        none("answers of 500, 502, 504 to poison and forged headers", server_errors),
        none("engines of victims that ended", sum(ends_of_engines(one.chat) for one in victims)),
        none("objects of the stranger in namespaces of victims", len(intruded)),
        none("pods of the stranger's templates with power", len(stranger.powerful_pods())),
        bar("rollouts promoted, alone and beside", len(seen.promoted), "2", len(seen.promoted) == 2),
    ]  # fmt: skip
    all_rows = [*rows, {"promoted_after_s": seen.promoted}, {"answered": seen.answered}, {"refused": stranger.refused},
                {"states": stranger.states()}]  # fmt: skip
    return report("hostile", all_rows, bars)


def ends_of_engines(chat: Deployment) -> int:
    """Restarts of containers, and engines that died within them."""
    ended = 0
    for pod in chat.pods():
        ended += sum(int(one["restartCount"]) for one in pod["status"].get("containerStatuses", ()))
        ended += counted(chat.kube, pod, CRASHES)
    return ended
