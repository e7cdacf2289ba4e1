"""The main job, act by act: serve, canary and promote, roll back, abort, scale, all under one load.

Each act does what a person would do, with the same commands, and waits for the end state that the person expects. What
does not come true raises WaitFailed with everything there is to read.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import openai

from examples.demo.screen import Screen
from examples.demo.stage import NAME, NAMESPACE
from examples.demo.view import is_paused, is_rejected, is_settled, rejection, rollout_of, status_of, versions
from testkit.cluster.api import Json
from testkit.cluster.deployment import until_deployment
from testkit.cluster.kube import LABEL, Kube
from testkit.load.client import API_KEY, REVISION
from testkit.load.closed import Load, Report
from testkit.until import WaitFailed

MANIFESTS = Path(__file__).parent / "manifests"
REPLICAS, MORE_REPLICAS = 2, 3
ENOUGH_REQUESTS = 500
CANARY_REQUESTS = 3  # a look at the canary's answers before a person decides
MISSING_SHARD = "model-00002-of-00002.safetensors"  # of tiny-broken
START_S = 150.0  # for pods to start on two busy cores


@dataclass(slots=True)
class Outcome:
    """What the story leaves behind for the summary."""

    seconds: dict[str, float] = field(default_factory=dict)
    reached: dict[str, bool] = field(default_factory=dict)  # end state → whether it came
    versions: dict[str, str] = field(default_factory=dict)  # revision → version
    report: Report = field(default_factory=Report)


@dataclass(frozen=True, slots=True)
class Act:
    """One part of the story and what must be true at its end."""

    name: str
    end_state: str
    play: Callable[[], None]


class Story:
    """One run on one cluster; `url` is the gateways' for OpenAI clients."""

    def __init__(self, kube: Kube, url: str, screen: Screen) -> None:
        self._kube, self._url, self._screen = kube, url, screen
        self._load = Load(url, NAME)
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Every act; the load runs from the second one on, and its report is there even when an act fails."""
        acts: tuple[Act, ...] = (
            Act("serve", "v1 is applied and answers", self._serve),
            Act("load", "the load runs", self._start_load),
            Act("canary", "v2 is promoted", self._canary),
            Act("rollback", "broken v3 is rolled back by itself", self._rollback),
            Act("abort", "v4 is aborted while it has weight", self._abort),
            Act("scale", "scaled to 3 and back", self._scale),
        )
        self.outcome.reached = {act.end_state: False for act in acts}
        try:
            for number, act in enumerate(acts, 1):
                self._perform(act, f"act {number} of {len(acts)}")
            self._until(lambda report: report.requests >= ENOUGH_REQUESTS, f"{ENOUGH_REQUESTS} requests")
        finally:
            self.outcome.report = self._load.stop()
        return self.outcome

    def _perform(self, act: Act, place: str) -> None:
        """Times the act and remembers whether its end state was reached."""
        self._screen.act(f"{place}: {act.name} ({act.end_state})")
        began = time.monotonic()
        try:
            act.play()
        finally:
            self.outcome.seconds[act.name] = time.monotonic() - began
        self.outcome.reached[act.end_state] = True
        self._screen.line(f"reached in {self.outcome.seconds[act.name]:.1f} s")

    # --- the acts -----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        self._apply("v1")
        self._wait(lambda seen: is_settled(seen, "v1", REPLICAS), "v1 serves", START_S)
        client = openai.OpenAI(base_url=self._url, api_key=API_KEY, max_retries=0, timeout=60)
        question = "Who made the heaven and the earth?"
        answer = client.chat.completions.with_raw_response.create(
            model=NAME, messages=[{"role": "user", "content": question}], max_tokens=40, temperature=0.5, seed=7
        )
        text = " ".join((answer.parse().choices[0].message.content or "").split())
        self._screen.line(f"> {question}\n< {text}\n  (revision {answer.headers.get(REVISION)})")

    def _start_load(self) -> None:
        self._load.start()
        self._until(lambda report: report.min_streams > 0 and report.requests >= 20, "20 answers under load")

    def _canary(self) -> None:
        self._apply("v2")
        seen = self._wait(lambda seen: is_paused(seen, "v2", 10), "v2 has 10 % and waits", START_S, rejection)
        self._until_served(seen, "v2")
        self._patch("promote", rollout_of(seen)["token"])
        half = self._wait(lambda seen: is_paused(seen, "v2", 50), "v2 has 50 %", START_S, rejection)
        self._screen.line(f"every gateway gives v2 {status_of(half)['weight']} % now")
        self._wait(lambda seen: is_settled(seen, "v2", REPLICAS), "v2 is promoted", START_S, rejection)

    def _rollback(self) -> None:
        self._apply("v3")
        seen = self._wait(
            lambda seen: is_rejected(seen, "ProgressDeadlineExceeded", "v2"), "v3 is rejected by itself", START_S
        )
        message = status_of(seen)["message"]
        self._screen.line(f"the message has the reason:\n  {message}")
        if MISSING_SHARD not in message:
            raise WaitFailed(f"the message does not name the missing shard {MISSING_SHARD}")
        broken = [revision for revision, version in self.outcome.versions.items() if version == "v3"]
        answered = sum(self._load.report().by_revision.get(revision, 0) for revision in broken)
        if answered:
            raise WaitFailed(f"the broken v3 answered {answered} requests")

    def _abort(self) -> None:
        self._apply("v4")
        seen = self._wait(lambda seen: is_paused(seen, "v4", 10), "v4 has 10 % and waits", START_S, rejection)
        self._until_served(seen, "v4")
        self._patch("abort", rollout_of(seen)["token"].rsplit("/", 1)[0])
        self._wait(lambda seen: is_rejected(seen, "UserAbort", "v2"), "v4 is rejected by the abort", 60)
        self._screen.line("the spec goes back to what serves, so nothing is left to decide")
        self._apply("v2")
        self._wait(lambda seen: is_settled(seen, "v2", REPLICAS), "v2 serves alone", 60)

    def _scale(self) -> None:
        for replicas in (MORE_REPLICAS, REPLICAS):
            self._run("scale", f"mdep/{NAME}", "-n", NAMESPACE, f"--replicas={replicas}")
            self._wait(self._has_exactly(replicas), f"{replicas} pods serve", START_S)

    def _has_exactly(self, replicas: int) -> Callable[[Json], bool]:
        """Also the leaving pods are gone: until then a stream on them could still break."""

        def holds(seen: Json) -> bool:
            return is_settled(seen, "v2", replicas) and len(self._pods()) == replicas

        return holds

    # --- what a person does -------------------------------------------------------------------------------------------

    def _apply(self, version: str) -> None:
        file = MANIFESTS / f"chat-{version}.yaml"
        self._screen.command(["kubectl", "apply", "-n", NAMESPACE, "-f", f"examples/demo/manifests/{file.name}"])
        self._kube.apply(file, NAMESPACE)

    def _patch(self, intent: str, token: str) -> None:
        change = json.dumps({"spec": {"rollout": {intent: token}}})
        self._run("patch", "mdep", NAME, "-n", NAMESPACE, "--type=merge", "-p", change)

    def _run(self, *words: str) -> None:
        self._screen.command(["kubectl", *words])
        self._kube.kubectl(*words)

    def _pods(self) -> list[Json]:
        return self._kube.api.items("v1/pods", NAMESPACE, selector=f"{LABEL}={NAME}")

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _wait(
        self,
        holds: Callable[[Json], bool],
        what: str,
        deadline_s: float,
        refuses: Callable[[Json], str] = lambda _: "",
    ) -> Json:
        return until_deployment(self._kube, NAME, NAMESPACE, holds, what, deadline_s, refuses=refuses, watch=self._see)

    def _until(self, holds: Callable[[Report], bool], what: str, deadline_s: float = 60) -> None:
        """Waits for the load, with the table going on."""
        self._wait(lambda _: holds(self._load.report()), what, deadline_s)

    def _until_served(self, seen: Json, version: str) -> None:
        revision = status_of(seen)["canaryRevision"]
        before = self._load.report().by_revision.get(revision, 0)

        def enough(report: Report) -> bool:
            return report.by_revision.get(revision, 0) - before >= CANARY_REQUESTS

        self._until(enough, f"{CANARY_REQUESTS} answers from {version}")

    def _see(self, seen: Json) -> None:
        self.outcome.versions.update(versions([seen]))
        self._screen.see(seen, self._load.report())
