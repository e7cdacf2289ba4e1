"""The steps of a rollout as text, and which of them are done; pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from slipway_cli.api import Json
from slipway_cli.objects.deployment import ABORTED, ABORTING, FIRST, PROMOTING, Deployment
from slipway_cli.objects.times import format_duration

DONE, NOW, AHEAD, REJECTED, SKIPPED = "done", "now", "ahead", "rejected", "skipped"


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step with its description, and whether it is done."""

    mark: str
    text: str


def list_steps(of: Deployment) -> tuple[StepLine, ...]:
    """The steps of the rollout in flight, or of the one that was rejected; none when there is no rollout.

    A list whose length the operator does not confirm is not shown: it was edited, or a newer operator counts otherwise.
    """
    rollout, found = of.rollout, [*describe_steps(of.spec.get("strategy") or {})]
    if rollout is None or rollout.state == FIRST or not found or len(found) != rollout.steps:
        return ()
    return tuple(StepLine(_mark(of, index), text) for index, text in enumerate(found))


def _mark(of: Deployment, index: int) -> str:
    rollout = of.rollout
    assert rollout is not None, "only a rollout has steps"
    if rollout.state == PROMOTING or index < rollout.step_index:
        return SKIPPED if rollout.skips_steps else DONE
    if index > rollout.step_index:
        return AHEAD
    return REJECTED if rollout.state in (ABORTING, ABORTED) else NOW


def describe_steps(strategy: Json) -> Iterator[str]:
    """A text for each step of a strategy."""
    if "blueGreen" in strategy:
        yield from _blue_green(strategy["blueGreen"] or {})
        return
    canary = strategy.get("canary") or {}
    if "trafficPercent" in canary:
        yield from _by_hand(canary["trafficPercent"])
        return
    yield from (_text(step) for step in canary.get("steps") or ())


def _blue_green(chosen: Json) -> Iterator[str]:
    preview, full = chosen.get("previewReplicaCount"), "all pods of the new revision"
    yield full if preview is None else f"preview with {preview} {'pod' if preview == 1 else 'pods'}"
    if "previewRoute" in chosen:
        yield "previewRoute leads to it"
    if before := chosen.get("prePromotionAnalysis"):
        yield _text({"analysis": before})
    if not chosen.get("autoPromotionEnabled", True):
        yield "pause until it is promoted"
    elif seconds := chosen.get("autoPromotionSeconds"):
        yield f"pause {format_duration(seconds)}"
    if preview is not None:
        yield full
    yield "setWeight 100"
    if after := chosen.get("postPromotionAnalysis"):
        yield _text({"analysis": after})


def _by_hand(percent: int) -> Iterator[str]:
    yield f"trafficPercent {percent}"
    if percent != 100:
        yield "pause until it is promoted"


def _text(step: Json) -> str:
    name, value = next(iter(step.items()))
    if name == "pause":
        lasts = (value or {}).get("duration")
        return f"pause {lasts}" if lasts else "pause until it is promoted"
    if name == "analysis" and (templates := (value or {}).get("templates")):
        names = ", ".join(item.get("templateName", "") for item in templates)
        return f"analysis {names}, at most {value.get('maxDuration', '30m')}"
    if name == "ramp":
        auto = (value or {}).get("auto") or {}
        text = f"ramp up to {auto.get('maxWeight', 50)} % for at most {auto.get('maxHarm', 20)} extra bad responses"
        return f"{text}, bake {auto.get('bake', '10m')}"
    return f"{name} {value if isinstance(value, int | str) else json.dumps(value)}"
