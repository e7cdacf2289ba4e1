"""Autoscaling under test: pods that carry little, a crowd of clients, and what was found as table and picture."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.timeline import Timeline
from testkit.cluster.deployment import START_S, Deployment, conditions_of
from testkit.load.closed import Load, Report
from testkit.report import Bar, Json, machine, report

ROOT = Path(__file__).resolve().parents[1]

MOST = 4  # replicas
COOLDOWN_S = 10  # that demand has to be low for before pods leave
# What users are promised, with the controller's own period of 15 s and numbers that are up to 10 s old.
GROWN_S, SHRUNK_S = 60.0, 60.0
AT_ONCE = 2  # requests that one pod runs; the others wait
FEW: Json = {"streams": 1, "whole": 1, "pause_s": 0.5}  # clients that one pod carries, all the time
CROWD: Json = {"streams": 10, "whole": 2, "pause_s": 0, "max_tokens": (10, 30)}  # and those of the load step
TIMEOUT_S = 120.0  # of a request: a dozen wait before it where one pod is all there is

# So little carries few requests, and four of them and one that a rollout adds fit beside a cluster on two cores.
POD: Json = {"cpu": "160m", "memory": "1Gi"}
ENGINE: Json = {"args": [f"--max-num-seqs={AT_ONCE}"]}


def scaled(*metrics: Json, most: int = MOST) -> Json:
    """spec.autoscaling from 1 pod to `most`, back soon after demand is low."""
    return {
        "minReplicas": 1,
        "maxReplicas": most,
        "metrics": list(metrics),
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": COOLDOWN_S}},
    }


# The crowd and the few are 14 clients: four pods and more by each of these; the few alone are one pod.
BY_DEMAND = scaled({"type": "QueueDepth", "target": "2"}, {"type": "InFlight", "target": "3"})


def until_followed(chat: Deployment) -> None:
    """Wait until its pod serves and its autoscaler computes."""
    chat.until_stable("v1")
    chat.until("its autoscaler computes", lambda status: conditions_of(status).get("Autoscaling") == "True", START_S)


# --- a load step ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Climb:
    """How capacity followed when the crowd came. Moments are of the timeline, in seconds."""

    crowd: Load
    came: float
    wanted: float  # when the autoscaler wanted all replicas
    ready: float  # when all pods were ready

    def summary(self) -> str:
        return (
            f"{MOST} replicas wanted after {self.wanted - self.came:.0f} s, ready after {self.ready - self.came:.0f} s"
        )


def climb(
    chat: Deployment, timeline: Timeline, load: Callable[..., Load], meanwhile: Callable[[], None] = lambda: None
) -> Climb:
    """Let the crowd come, do something once all replicas are wanted, and wait until all pods are there."""
    came = timeline.now()
    crowd = load(chat, timeout_s=TIMEOUT_S, **CROWD)
    wanted = timeline.until(lambda now: now.wanted == MOST, 2 * GROWN_S, f"{MOST} replicas are wanted", since=came)
    meanwhile()
    ready = timeline.until(
        lambda now: now.pods >= MOST and now.ready >= now.pods, START_S, "all of them are ready", since=wanted.at
    )
    return Climb(crowd, came, wanted.at, ready.at)


@dataclass(frozen=True, slots=True)
class Descent:
    """How capacity followed when the crowd had left."""

    crowd: Report
    left: float
    wanted: float  # when one replica was wanted

    def summary(self) -> str:
        return f"1 wanted {self.wanted - self.left:.0f} s after the load ended (cooldown {COOLDOWN_S} s)"


def descend(timeline: Timeline, crowd: Load) -> Descent:
    """Let the crowd leave, and wait until one replica is wanted."""
    report = crowd.stop()
    left = timeline.now()
    wanted = timeline.until(lambda now: now.wanted == 1, 2 * SHRUNK_S, "one replica is wanted", since=left)
    return Descent(report, left, wanted.at)


def step_bars(name: str, up: Climb, down: Descent, failed: int) -> list[Bar]:
    """The promises of a load step."""
    return [
        at_most(f"{name}: s until {MOST} replicas are wanted", up.wanted - up.came, GROWN_S),
        at_most(f"{name}: s until all pods are ready", up.ready - up.came, 2 * GROWN_S),
        at_most(f"{name}: s until 1 is wanted again", down.wanted - down.left, COOLDOWN_S + SHRUNK_S),
        exactly(f"{name}: failed requests", failed, 0),
    ]


# --- what was found ---------------------------------------------------------------------------------------------------


def at_most(name: str, value: float, limit: float) -> Bar:
    return Bar(name, round(value, 1), f"<= {limit:.0f}", value <= limit)


def at_least(name: str, value: int, limit: int) -> Bar:
    return Bar(name, value, f">= {limit}", value >= limit)


def exactly(name: str, value: int, wanted: int) -> Bar:
    return Bar(name, value, str(wanted), value == wanted)


@dataclass(slots=True)
class Findings:
    """One row for each experiment, in words, and the bars it was held to."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    def add(self, experiment: str, seen: str, *bars: Bar) -> None:
        """Keep it, and fail where a bar was missed."""
        self.rows.append((experiment, seen))
        self.bars += bars
        missed = [f"{bar.bar} is {bar.value}, must be {bar.limit}" for bar in bars if not bar.ok]
        assert not missed, missed

    def markdown(self, order: tuple[str, ...]) -> str:
        """The table of docs/autoscaling.md."""
        rows = sorted(self.rows, key=lambda row: order.index(row[0]))
        here = machine()
        return "\n".join([
            f"On {here['cpu']}, {here['cores']} cores, the whole cluster and the load on it.",
            "",
            "| what happens | what was seen |",
            "|---|---|",
            *(f"| {experiment} | {seen} |" for experiment, seen in rows),
        ])  # fmt: skip

    def report(self) -> Json:
        """For build/reports/autoscale.json."""
        rows: list[dict[str, Any]] = [{"experiment": name, "seen": seen} for name, seen in self.rows]
        return report("autoscale", rows, self.bars)


def draw(timeline: Timeline, up: Climb, down: Descent, path: Path) -> None:
    """Replicas and waiting requests over the time of a load step, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    moments, end = timeline.moments(), timeline.now()
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(9, 5), sharex=True, layout="constrained")
    at = [item.at - up.came for item in moments] + [end - up.came]
    for label, values, style in (
        ("replicas wanted", [item.wanted for item in moments], "-"),
        ("pods ready", [item.ready for item in moments], "--"),
    ):
        above.step(at, [*values, values[-1]], style, where="post", label=label)
    below.plot(
        *zip(*((at - up.came, waiting) for at, waiting in timeline.waiting()), strict=True), ".-", color="#b3261e"
    )
    for axes in (above, below):
        axes.axvspan(0, down.left - up.came, color="#0b6e4f", alpha=0.08)
        axes.grid(linewidth=0.4, alpha=0.6)
    above.set_ylim(0, MOST + 0.6)
    above.legend(loc="center left")
    above.set_ylabel("pods")
    below.set_ylabel("requests that wait")
    below.set_xlabel("seconds; a dozen clients more ask in the shaded time")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
