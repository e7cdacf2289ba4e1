"""Ten rollouts and rollbacks in a row, each by another way; all good versions have the same weights."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.chaos import weights
from testkit.cluster.api import KubeError
from testkit.cluster.deployment import Deployment, Json, canary, state_of, weights_of
from testkit.until import WaitFailed

BROKEN_URI = "file:///opt/slipway/models/tiny-broken"
# On a machine that is busy with everything else a pod may need minutes.
PATIENCE_S = 420.0
LOOK_S = (4.0, 12.0)  # how long a person looks at a canary before deciding
BROKEN_DEADLINE_S, DEADLINE_S = 30, 600
SCALE_DOWN_S = 5
# Pods of former revisions stay while their streams last: room for the next revision beside those of two former ones.
CAPACITY = {"maxSurge": 4}
# All streams and what is short beside them find room in one pod: else all requests would wait for a stream's minute.
# Their keys and values too; and the caches of six pods fit into one machine.
ENGINE = ["--max-num-seqs", "512", "--max-kv-tokens", "400000"]

ROUNDS = (
    "canary", "abort", "broken", "blue-green", "rollback", "canary", "abort", "broken", "blue-green", "canary",
)  # fmt: skip
QUICK_ROUNDS = ("canary", "abort")


@dataclass(frozen=True, slots=True)
class Round:
    """How one rollout ended. `trouble` is empty when it ended as planned."""

    number: int
    kind: str
    seconds: float
    trouble: str = ""


def steps() -> Json:
    made = canary({"setWeight": 50}, {"pause": {}}, {"setWeight": 100})
    delays = {"scaleDownDelaySeconds": SCALE_DOWN_S, "abortScaleDownDelaySeconds": SCALE_DOWN_S}
    return {"canary": made["canary"] | delays, "blueGreen": None, "capacity": CAPACITY}


def switch() -> Json:
    delays = {"scaleDownDelaySeconds": SCALE_DOWN_S, "abortScaleDownDelaySeconds": SCALE_DOWN_S}
    return {"canary": None, "blueGreen": {"autoPromotionEnabled": True, **delays}, "capacity": CAPACITY}


class Story:
    """What a person does to the ModelDeployment."""

    def __init__(self, chat: Deployment, chance: random.Random, log: Callable[[str], None]) -> None:
        self._chat, self._chance, self._log = chat, chance, log
        self._number = 1
        self._stable = self._version()
        self.rounds: list[Round] = []

    @property
    def version(self) -> str:
        """Of the revision that serves now."""
        return self._stable

    def begin(self, replicas: int, drain_s: int) -> None:
        """The first revision serves."""
        strategy = {"canary": steps()["canary"], "capacity": CAPACITY}
        self._chat.create(
            "v2", model=self._model(), replicas=replicas, strategy=strategy, drain={"timeoutSeconds": drain_s},
            revisionHistoryLimit=2, engine={"args": ENGINE},
        )  # fmt: skip
        self._chat.until_stable(self._stable, PATIENCE_S)

    def run(self, kinds: tuple[str, ...]) -> list[Round]:
        """Every round; one that does not end as planned is noted, and the next begins from what serves."""
        acts: dict[str, Callable[[], None]] = {
            "canary": self._promoted,
            "abort": self._aborted,
            "broken": self._broken,
            "blue-green": self._blue_green,
            "rollback": self._rolled_back,
        }
        for number, kind in enumerate(kinds, 1):
            self._log(f"== rollout {number} of {len(kinds)}: {kind}")
            began, trouble = time.monotonic(), ""
            try:
                acts[kind]()
            except (WaitFailed, KubeError) as error:
                trouble = str(error)
                self._log(f"NOT AS PLANNED: {trouble}")
            done = Round(number, kind, time.monotonic() - began, trouble.partition("\n")[0])
            self.rounds.append(done)
            self._log(f"{kind} done in {done.seconds:.0f} s")
        return self.rounds

    # --- the ways ----------------------------------------------------------------------------------------------------

    def _promoted(self) -> None:
        version = self._release(steps())
        self._look("Paused")
        self._chat.promote()
        self._settled(version)

    def _aborted(self) -> None:
        self._release(steps())
        self._look("Paused")
        self._chat.abort()
        self._chat.until_state("Aborted", PATIENCE_S)
        self._back()

    def _broken(self) -> None:
        self._version()
        model = {"uri": BROKEN_URI, "version": f"v2-{self._number}-broken"}
        self._chat.edit(model=model, strategy=steps(), progressDeadlineSeconds=BROKEN_DEADLINE_S)
        self._chat.until_state("Aborted", PATIENCE_S)
        self._back()

    def _blue_green(self) -> None:
        self._settled(self._release(switch()))

    def _rolled_back(self) -> None:
        """To the former revision, by the intent; then the spec follows it."""
        status = self._chat.until("a former revision is known", lambda seen: "previousRevision" in seen, PATIENCE_S)
        former = str(status["previousRevision"])
        self._chat.edit(strategy=steps(), rollout={"rollbackTo": f"{status['stableRevision']}/{former}"})
        self._chat.until(
            "it waits with the former revision, or serves by it",
            lambda seen: state_of(seen) == "Paused" or seen.get("stableRevision") == former,
            PATIENCE_S,
        )
        if state_of(self._chat.status) == "Paused":
            self._chat.promote_full()
        seen = self._chat.until(
            "the former revision serves alone",
            lambda seen: (
                seen.get("stableRevision") == former and not seen.get("rollout") and len(weights_of(seen)) == 1
            ),
            PATIENCE_S,
        )
        [self._stable] = weights_of(seen)

    # --- what they share ----------------------------------------------------------------------------------------------

    def _version(self) -> str:
        self._number += 1
        return f"v2-{self._number - 1}"

    def _model(self) -> Json:
        return {"uri": weights.URI, "version": self._stable, "name": self._chat.model}

    def _release(self, strategy: Json) -> str:
        version = self._version()
        self._chat.edit(
            model={"uri": weights.URI, "version": version}, strategy=strategy,
            progressDeadlineSeconds=DEADLINE_S,
        )  # fmt: skip
        return version

    def _look(self, state: str) -> None:
        self._chat.until_state(state, PATIENCE_S)
        time.sleep(self._chance.uniform(*LOOK_S))

    def _back(self) -> None:
        """The spec goes back to the version that serves."""
        self._chat.edit(model={"uri": weights.URI, "version": self._stable}, progressDeadlineSeconds=DEADLINE_S)
        self._settled(self._stable)

    def _settled(self, version: str) -> None:
        self._chat.until_stable(version, PATIENCE_S)
        self._stable = version
