"""Kills at random moments, from a seed: processes by SIGKILL in the node, and now and then a pod by its deletion.

    server    kill -9 of a model pod's first process: everything in the container is gone at once
    engine    kill -9 of the process that computes, under a server that lives
    pod       an ordinary deletion of a model pod: SIGTERM and its whole grace period
    operator  kill -9
    gateway   kill -9 of one of two; never before both are ready again

A container that is killed twice would wait in CrashLoopBackOff, longer each time. The pod of an operator or gateway
that has started again before is therefore deleted by force right after the kill, like that of a lost node.
"""

import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from devcluster.engine.engine import Engine, find
from devcluster.errors import DevclusterError
from devcluster.node.access import nodes
from devcluster.places import places
from testkit.cluster.api import Json, KubeError
from testkit.cluster.deployment import Deployment, revision_of
from testkit.cluster.installation import GATEWAYS, Installation, is_ready
from testkit.until import WaitFailed

DECK = ("server", "gateway", "operator", "server", "engine", "gateway", "pod")
RETRY_S = 2.0
EXEC_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Kill:
    """One strike."""

    at: float  # seconds since the epoch
    what: str  # a card of the deck
    pod: str


class Node:
    """SIGKILL inside the node container: the API has no such thing, a forced deletion still sends SIGTERM first."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name

    @classmethod
    def of_devcluster(cls) -> "Node":
        engine, _ = find(places())
        return cls(engine, nodes(places(), engine)[0])

    def kill(self, container_id: str, *, child: bool = False) -> None:
        """The container's first process, or a child of it. Raises when there is none any more."""
        shown = "{{.info.pid}}"
        pid = self._run("crictl", "inspect", "--output", "go-template", "--template", shown, container_id).strip()
        victim = self._run("pgrep", "-o", "-P", pid).strip() if child else pid
        self._run("kill", "-9", victim)

    def _run(self, *words: str) -> str:
        return self._engine.run("exec", self._name, *words, timeout=EXEC_TIMEOUT_S)


def deck(chance: random.Random) -> Iterator[str]:
    """One of each kind first, then each as often as it is in the deck; all in random orders."""
    kinds = sorted(set(DECK))
    yield from chance.sample(kinds, len(kinds))
    while True:
        yield from chance.sample(DECK, len(DECK))


class Killer:
    """Strikes from `start` to `stop`, in a thread of its own."""

    def __init__(
        self,
        slipway: Installation,
        chat: Deployment,
        seed: int,
        pause_s: tuple[float, float],
        log: Callable[[str], None],
        before: Callable[[], None],
    ) -> None:
        self._slipway, self._chat, self._pause_s, self._log, self._before = slipway, chat, pause_s, log, before
        self._chance = random.Random(seed)
        self._node = Node.of_devcluster()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer", daemon=True)
        self._crash: BaseException | None = None
        self.kills: list[Kill] = []
        self.struck_each = threading.Event()  # there was a kill of every kind

    def start(self) -> "Killer":
        self._thread.start()
        return self

    def stop(self) -> list[Kill]:
        self._stopping.set()
        self._thread.join(60)
        if self._crash:
            raise RuntimeError("the killer itself failed") from self._crash
        return self.kills

    def counted(self) -> dict[str, int]:
        return dict(Counter(kill.what for kill in self.kills))

    def _run(self) -> None:
        try:
            for card in deck(self._chance):
                if self._stopping.wait(self._chance.uniform(*self._pause_s)):
                    return
                self._play(card)
        except BaseException as error:
            self._crash = error

    def _play(self, card: str) -> None:
        """As soon as there is a pod to kill."""
        while not self._stopping.is_set():
            try:
                if self._strike(card):
                    return
            except (KubeError, WaitFailed, DevclusterError, subprocess.SubprocessError) as error:
                self._log(f"kill of {card} missed: {' '.join(str(error).split())[:160]}")
            self._stopping.wait(RETRY_S)

    def _strike(self, card: str) -> bool:
        victims = self._victims(card)
        if not victims:
            return False
        pod = self._chance.choice(sorted(victims, key=lambda item: str(item["metadata"]["name"])))
        name = str(pod["metadata"]["name"])
        self._before()
        at = time.time()
        if card == "pod":
            self._chat.kube.kubectl("delete", "pod", name, "-n", self._chat.namespace, "--wait=false")
        else:
            self._node.kill(container_of(pod), child=card == "engine")
        self.kills.append(Kill(at, card, name))
        if self.counted().keys() >= set(DECK):
            self.struck_each.set()
        self._log(f"kill {len(self.kills)}: {card} of {name}")
        if card in ("operator", "gateway") and restarts_of(pod):
            self._slipway.kill(name)
        return True

    def _victims(self, card: str) -> list[Json]:
        if card in ("operator", "gateway"):
            ready = [pod for pod in self._slipway.pods(card) if is_ready(pod)]
            return ready if len(ready) == (GATEWAYS if card == "gateway" else 1) else []
        status = self._chat.status
        listed = {backend["revision"] for backend in (status.get("traffic") or {}).get("backends") or ()}
        return expendable([pod for pod in self._chat.pods() if is_ready(pod)], listed)


def expendable(ready: Sequence[Json], listed: Set[str]) -> list[Json]:
    """Pods without which requests still have a ready one, of a revision that gateways may send them to."""
    homes = [pod for pod in ready if revision_of(pod) in listed]
    return [pod for pod in ready if len(homes) - (pod in homes) >= 1]


def container_of(pod: Json) -> str:
    """The id of its only container, as the node's runtime calls it."""
    [status] = pod["status"]["containerStatuses"]
    return str(status["containerID"]).partition("://")[2]


def restarts_of(pod: Json) -> int:
    return sum(int(status["restartCount"]) for status in pod["status"]["containerStatuses"])
