"""The command line: `python -m bench.chaos`. Exit status 0 means that every bar held."""

import os
import random
import sys
import threading
import time
from contextlib import suppress

import click
from rich.console import Console

from bench.chaos import report as reports
from bench.chaos import weights
from bench.chaos.asking import Question
from bench.chaos.killer import Killer
from bench.chaos.meters import PERIOD_S, Meters
from bench.chaos.report import Outcome
from bench.chaos.story import QUICK_ROUNDS, ROUNDS, Story
from bench.chaos.traffic import Shape, Traffic, references
from devcluster.errors import DevclusterError
from examples.demo.screen import screen
from examples.demo.stage import StageError, Wish, built_images, cluster
from testkit import ROOT
from testkit.cluster.api import Json, KubeError
from testkit.cluster.deployment import Deployment
from testkit.cluster.diagnosis import diagnosis
from testkit.cluster.installation import Installation
from testkit.cluster.kube import Kube
from testkit.cluster.release import gateway
from testkit.report import write
from testkit.until import WaitFailed, until

EXPECTED = (KubeError, WaitFailed, StageError, DevclusterError)
NAMESPACE, NAME = "slipway-chaos", "chat"
REPLICAS, DRAIN_S = 2, 900
# On two busy cores a pod needs a minute to start again: longer than the chart's own 30 s.
VALUES: Json = {"gateway": {"resume": {"maxTimes": 10, "timeoutSeconds": 180}}}
LONG_PROMPTS = (
    ("In the beginning", False),
    ("And it came to pass", False),
    ("Blessed are they that", False),
    ("Who made the heaven and the earth?", True),
    ("Behold, I send", True),
    ("The king said unto him", True),
)
SHORT_PROMPTS = (("And God said", False), ("Hear, O Israel:", False), ("Who is like unto thee", True))
SHORT_TOKENS = 3
LINE_S = 5.0
OPEN_S, WARM_S, EACH_S = 180.0, 300.0, 180.0


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--seed", default=1, show_default=True, help="Of the kills and of the story.")
@click.option("--streams", default=64, show_default=True, help="Open streams at first; quick ones get company.")
@click.option("--tokens", default=1600, show_default=True, help="Of each stream.")
@click.option("--rate", default=21.0, show_default=True, help="Short requests per second.")
@click.option(
    "--pause",
    default=(12.0, 36.0),
    type=(float, float),
    show_default=True,
    help="Seconds between two kills, from and to.",
)
def main(seed: int, streams: int, tokens: int, rate: float, pause: tuple[float, float]) -> None:
    """Roll out and back while requests run and processes are killed; QUICK=1 makes it two rollouts."""
    console = Console(soft_wrap=True)
    long = tuple(Question(prompt, chat, tokens) for prompt, chat in LONG_PROMPTS)
    short = tuple(Question(prompt, chat, SHORT_TOKENS) for prompt, chat in SHORT_PROMPTS)
    shape = Shape(streams, rate, long, short)
    kinds = QUICK_ROUNDS if os.environ.get("QUICK") else ROUNDS
    settings = {"seed": seed, "streams": streams, "tokens": tokens, "rate": rate, "pause_s": pause, "rounds": kinds}
    try:
        outcome = Run(shape, kinds, seed, pause, console).perform()
    except EXPECTED as error:
        console.out(f"\nchaos could not run: {error}", highlight=False)
        sys.exit(1)
    made = reports.as_json(outcome, settings)
    path = write(made)
    console.out(f"\n== summary\n{reports.summary(outcome)}\nreport   {path.relative_to(ROOT)}", highlight=False)
    sys.exit(0 if all(bar["ok"] for bar in made["bars"]) else 1)


class Run:
    """One run on the development cluster."""

    def __init__(
        self, shape: Shape, kinds: tuple[str, ...], seed: int, pause_s: tuple[float, float], console: Console
    ) -> None:
        self._shape, self._kinds, self._seed, self._pause_s, self._console = shape, kinds, seed, pause_s, console
        self._outcome = Outcome(planned=len(kinds))

    def perform(self) -> Outcome:
        slipway = self._stage()
        chat = Deployment(slipway.kube, NAMESPACE, NAME)
        story = Story(chat, random.Random(self._seed), self._log)
        with gateway(slipway.kube) as url:
            self._log(f"{REPLICAS} pods of tiny-v2 start, with a context of {weights.CONTEXT_TOKENS} tokens")
            story.begin(REPLICAS, DRAIN_S)
            began = time.monotonic()
            texts = references(url, chat.model, (*self._shape.long, *self._shape.short))
            self._log(f"the undisturbed run took {time.monotonic() - began:.0f} s")
            self._disturb(slipway, chat, story, Traffic(url, chat.model, self._shape, texts))
        self._conclude(chat, story)
        return self._outcome

    def _stage(self) -> Installation:
        wish = Wish(None, None, None)
        output = screen(self._console)
        kube = Kube(cluster(wish, output).kubeconfig)
        slipway = Installation(kube, built_images(output))
        slipway.upgrade(**VALUES)
        kube.remove(NAME, NAMESPACE)
        kube.namespace(NAMESPACE)
        weights.put(kube, NAMESPACE, slipway.images.server)
        slipway.until_well()
        return slipway

    def _disturb(self, slipway: Installation, chat: Deployment, story: Story, traffic: Traffic) -> None:
        meters = Meters(slipway, chat.model)
        meters.look()
        killer = Killer(slipway, chat, self._seed, self._pause_s, self._log, meters.look)
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(done, traffic, story, killer, meters), daemon=True)
        outcome = self._outcome
        traffic.start()
        try:
            self._until_open(traffic)
            outcome.began = time.time()
            watcher.start()
            killer.start()
            story.run(self._kinds)
            killer.struck_each.wait(EACH_S)  # a short story may end before the first hand is played
        finally:
            outcome.ended = time.time()
            outcome.kills = killer.stop() if watcher.ident else ()
            self._log("no more kills; the last requests may end")
            outcome.endings, outcome.unsent = traffic.stop(), traffic.unsent
            done.set()
        slipway.until_well()
        meters.look()
        outcome.all_gateways, outcome.living_gateways = meters.counted(), meters.counted(meters.alive())
        outcome.lives, outcome.rounds = meters.lives, story.rounds

    def _until_open(self, traffic: Traffic) -> None:
        """All streams run, and there are as many as it takes to make each of them last."""
        began = time.monotonic()
        while traffic.glance().open_streams < self._shape.streams:
            if time.monotonic() - began > OPEN_S:
                raise WaitFailed(f"waited for: {self._shape.streams} open streams; not within {OPEN_S:.0f} s")
            time.sleep(0.5)
        while time.monotonic() - began < WARM_S and not traffic.settled:
            time.sleep(0.5)
        self._log(f"{traffic.glance().open_streams} streams and {self._shape.rate:.0f} short requests per second run")

    def _watch(self, done: threading.Event, traffic: Traffic, story: Story, killer: Killer, meters: Meters) -> None:
        """A line now and then, and what the gateways have counted so far."""
        looked, last, shorts, failed = time.monotonic(), time.monotonic(), 0, 0
        while not done.wait(LINE_S):
            seen, now = traffic.glance(), time.monotonic()
            rate = (seen.short_ended - shorts) / (now - last)
            last, shorts = now, seen.short_ended
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted((seen.kinds or {}).items()))
            self._log(
                f"rollout {min(len(story.rounds) + 1, len(self._kinds))} of {len(self._kinds)}"
                f" | {len(killer.kills)} kills | {rate:.1f} short/s | {seen.open_streams} streams open | {kinds}"
            )
            for failure in traffic.recent()[-3:] if failed != len(traffic.recent(1000)) else ():
                self._log(f"  failed {failure.request_id}: {failure.reason[:200]}")
            failed = len(traffic.recent(1000))
            if now - looked > PERIOD_S:
                looked = now
                meters.look()

    def _conclude(self, chat: Deployment, story: Story) -> None:
        outcome = self._outcome
        try:
            status = chat.until_stable(story.version, 300)
            chat.until_alone()
            stable = f"{chat.name}-{status['stableRevision']}"
            until(lambda: not surplus(chat.objects(), stable), "retired revisions leave nothing", 60)
        except WaitFailed as error:
            self._log(f"{error}\n{diagnosis(chat.kube, NAME, NAMESPACE, with_logs=True)}")
        status = chat.status
        outcome.phase = str(status.get("phase", ""))
        outcome.left = surplus(chat.objects(), f"{chat.name}-{status.get('stableRevision')}")
        if outcome.phase == "Healthy" and not outcome.left:  # else it stays, to be looked at
            with suppress(KubeError):
                chat.kube.kubectl("delete", "mdep", NAME, "-n", NAMESPACE, "--wait=false")

    def _log(self, text: str) -> None:
        self._console.out(f"{time.strftime('%H:%M:%S')}  {text}", highlight=False)


def surplus(objects: dict[str, str], stable: str) -> list[str]:
    """Objects of revisions that do not serve; ControllerRevisions are the history that is kept."""
    mine = {f"ReplicaSet {stable}", f"Service {stable}"}
    pods = f"Pod {stable}-"
    kept = (pods, "ControllerRevision ")
    return sorted(name for name in objects if name not in mine and not name.startswith(kept))


if __name__ == "__main__":
    main()
