"""How a ModelDeployment gets into each phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .world import World

Object = dict[str, Any]

REPLICAS = 2
WEIGHT = 10  # percent of the revision under test
LATER_S = 86_400  # pods of a former revision stay until then: no end of a delay falls into a cell
DELAYS = {"scaleDownDelaySeconds": LATER_S, "abortScaleDownDelaySeconds": LATER_S}
ASLEEP = {"minReplicas": 0, "maxReplicas": 4, "idleSeconds": 5, "metrics": [{"type": "QueueDepth", "target": "4"}]}
FIRST, SECOND = ({"uri": f"file:///opt/slipway/models/tiny-v{number}"} for number in (1, 2))


@dataclass(frozen=True)
class Roles:
    """The revisions of a ModelDeployment; `other`: the one under test, rejected, rolled back from, or former."""

    stable: str
    other: str
    tested: int = 0  # percent that the other one may have


def spec(name: str, phase: str, template: str) -> Object:
    """Of the first version. A step of its rollouts names the template, where there is one."""
    model = FIRST | {"name": name}
    return {"model": model, "replicas": REPLICAS, "strategy": _strategy(phase, template)}


def _strategy(phase: str, template: str) -> Object:
    analysis = {"templates": [{"templateName": template}], "maxDuration": "24h"}
    if phase == "blue-green preview":
        before = {"prePromotionAnalysis": analysis} if template else {}
        return {"blueGreen": {"autoPromotionEnabled": False, **DELAYS, **before}}
    last = {"analysis": analysis} if template else {"pause": {}}
    return {"canary": {"steps": [{"setWeight": WEIGHT}, last, {"setWeight": 50}, {"pause": {}}], **DELAYS}}


async def enter(world: World, name: str, phase: str) -> Roles:
    """From the first version, which is healthy, into the phase."""
    first = (await world.reaches(name, "it is healthy", lambda now: now.get("phase") == "Healthy"))["stableRevision"]
    await world.edit(name, {"model": SECOND})
    weight = 0 if phase == "blue-green preview" else WEIGHT  # a preview has none
    holding = await world.reaches(name, "it holds at its step", lambda now: holds(now, weight))
    other, rollout = holding["rollout"]["revision"], holding["rollout"]
    attempt = f"{other}/{rollout['attempt']}"
    if phase == "aborted":
        await world.edit(name, {"rollout": {"abort": attempt}})
        await world.reaches(name, "it is aborted", lambda now: state(now) == "Aborted" and weights(now) == {first: 100})
        return Roles(first, other)
    if phase in ("canary in a step", "blue-green preview"):
        return Roles(first, other, tested=weight)
    await world.edit(name, {"rollout": {"promoteFull": attempt}})
    await world.reaches(name, "it is promoted", lambda now: serves_alone(now, other))
    if phase == "rollback held":
        await world.edit(name, {"rollout": {"rollbackTo": f"{other}/{first}"}})
        await world.reaches(name, "it is rolled back", lambda now: serves_alone(now, first))
        return Roles(first, other)
    await world.edit(name, {"autoscaling": ASLEEP})
    await world.reaches(name, "it sleeps", lambda now: now.get("phase") == "Asleep")
    await world.has_pods(name, other, 0)
    return Roles(other, first)


def holds(status: Object, weight: int) -> bool:
    """Whether a rollout waits at this weight, for a person or for an analysis without an end."""
    canary, stable = status.get("canaryRevision"), status.get("stableRevision")
    wanted = {stable: 100 - weight} | ({canary: weight} if weight else {})
    return state(status) in ("Paused", "Analyzing") and weights(status) == wanted


def serves_alone(status: Object, revision: str) -> bool:
    return status.get("stableRevision") == revision and not status.get("rollout") and weights(status) == {revision: 100}


def state(status: Object) -> str:
    return str((status.get("rollout") or {}).get("state") or "")


def weights(status: Object) -> dict[str, int]:
    """Revisions that have a weight."""
    backends = (status.get("traffic") or {}).get("backends") or ()
    return {item["revision"]: item["weight"] for item in backends if item["weight"]}
