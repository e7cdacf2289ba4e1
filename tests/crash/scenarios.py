"""What a user does in the histories, each step once the status shows that the one before has worked."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

Status = dict[str, Any]
Condition = Callable[[Status], bool]

# One timed and one manual pause; former pods leave at once.
STEPS = [{"setWeight": 50}, {"pause": {"duration": "1s"}}, {"setWeight": 100}, {"pause": {}}]
STRATEGY = {"canary": {"steps": STEPS, "scaleDownDelaySeconds": 0, "abortScaleDownDelaySeconds": 0}}
# Long enough for another beginning: a kill between the writes of a run and of the status starts the analysis again.
JUDGED = {"analysis": {"templates": [{"templateName": "llm-default"}], "maxDuration": "40s"}}
ANALYZED = {"canary": {**STRATEGY["canary"], "steps": [{"setWeight": 50}, JUDGED]}}


class User(Protocol):
    """What a scenario needs: to edit chat, and to see its status."""

    async def create(self, spec: dict[str, Any]) -> None: ...

    async def edit(self, spec: dict[str, Any]) -> None: ...

    async def sees(self, what: str, condition: Condition) -> Status: ...


def model(version: int) -> dict[str, Any]:
    """A spec.model of this version."""
    return {"uri": f"file:///opt/slipway/models/tiny-v{version}", "version": f"v{version}"}


async def rollout(user: User) -> None:
    """First revision, canary steps, promotion, and the former pods leave."""
    first = await _serving(user)
    await user.edit({"model": model(2)})
    status = await user.sees("the manual pause", _waits_for_promotion(first))
    await user.edit({"rollout": {"promote": status["rollout"]["token"]}})
    await user.sees("the promotion", _settled(status["canaryRevision"]))


async def abort(user: User) -> None:
    """The second revision is taken back while it has weight."""
    first = await _serving(user)
    await user.edit({"model": model(2)})
    status = await user.sees("the manual pause", _waits_for_promotion(first))
    await user.edit({"rollout": {"abort": "/".join(status["rollout"]["token"].split("/")[:2])}})
    await user.sees("the abort", lambda now: _state(now) == "Aborted" and len(now["revisions"]) == 1)


async def supersede(user: User) -> None:
    """A third revision comes while the second has weight."""
    first = await _serving(user)
    await user.edit({"model": model(2)})
    second = (await user.sees("the manual pause", _waits_for_promotion(first)))["canaryRevision"]
    await user.edit({"model": model(3)})
    status = await user.sees("the pause of the third", _waits_for_promotion(first, second))
    await user.edit({"rollout": {"promote": status["rollout"]["token"]}})
    await user.sees("the promotion of the third", _settled(status["canaryRevision"]))


async def analysis(user: User) -> None:
    """An analysis without a request ends inconclusive, so that it waits for a promotion."""
    await user.create({"model": model(1), "replicas": 2, "strategy": ANALYZED})
    await user.sees("the first revision serves", lambda now: now.get("phase") == "Healthy")
    await user.edit({"model": model(2)})
    status = await user.sees("the analysis is over", lambda now: _state(now) == "Paused")
    await user.edit({"rollout": {"promote": status["rollout"]["token"]}})
    await user.sees("the promotion", _settled(status["canaryRevision"]))


SCENARIOS: dict[str, Callable[[User], Awaitable[None]]] = {
    "rollout": rollout,
    "abort": abort,
    "supersede": supersede,
    "analysis": analysis,
}


async def _serving(user: User) -> str:
    await user.create({"model": model(1), "replicas": 2, "strategy": STRATEGY})
    status = await user.sees("the first revision serves", lambda now: now.get("phase") == "Healthy")
    return str(status["stableRevision"])


def _state(status: Status) -> str | None:
    return (status.get("rollout") or {}).get("state")


def _waits_for_promotion(*former: str) -> Condition:
    """In the pause of the last step, with its weight acknowledged."""

    def condition(status: Status) -> bool:
        rollout = status.get("rollout") or {}
        there = rollout.get("state") == "Paused" and rollout.get("stepIndex") == len(STEPS) - 1
        return there and rollout["revision"] not in former and status.get("weight") == 100

    return condition


def _settled(revision: str) -> Condition:
    """Promoted, and no former revision has pods."""

    def condition(status: Status) -> bool:
        alone = [item["revision"] for item in status["revisions"]] == [revision]
        return status.get("phase") == "Healthy" and status["stableRevision"] == revision and alone

    return condition
