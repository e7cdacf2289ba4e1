"""Arithmetic of replicas and weights: how many pods a weight needs, how much weight pods carry, what steps set."""

from collections.abc import Sequence

from slipway_operator.api.v1alpha1.status import Rollout
from slipway_operator.model.deployment.strategy import Ramp, SetHeaderRoute, SetMirrorRoute, SetScale, SetWeight, Step

BRAKED = 1  # percent of requests for a canary that is grossly slow while cold: without any it would never be warm


def is_braked(rollout: Rollout) -> bool:
    """Whether an analysis found the revision grossly slow during its warm-up; see planning/analysis/brake.py."""
    return any(found is not None and found.braked for found in (rollout.analysis, rollout.background))


def replicas_for(percent: int, carriers: int) -> int:
    """Fewest pods that carry this share of the traffic that `carriers` pods carry: the inverse of `weight_carried`."""
    return 0 if percent <= 0 else min(carriers, (percent - 1) * carriers // 100 + 1)


def weight_carried(ready: int, carriers: int) -> int:
    """Largest weight in percent that this many ready pods carry (invariant I1), rounded up.

    Rounded down, one pod of three would carry 33 % and two of three 66 %: no pod would carry the last percent.
    """
    return 100 if carriers == 0 else min(100, -(-100 * ready // carriers))


def weight_at(steps: Sequence[Step], index: int) -> int:
    """Weight in percent that the steps up to and with `index` have set at their end."""
    weights = (
        step.percent if isinstance(step, SetWeight) else step.end_weight
        for step in reversed(steps[: index + 1])
        if isinstance(step, SetWeight | Ramp)
    )
    return next(weights, 0)


def weight_now(steps: Sequence[Step], rollout: Rollout) -> int:
    """Weight in percent that the present step sets: that of `weight_at`, or what its ramp chose last."""
    index, reference = rollout.step_index, rollout.analysis
    if not (0 <= index < len(steps) and isinstance(steps[index], Ramp)):
        return weight_at(steps, index)
    begun = reference is not None and reference.id == rollout.step_token
    return reference.ramp.weight if reference and reference.ramp and begun else 0


def replicas_at(steps: Sequence[Step], rollout: Rollout, replicas: int, carriers: int, surge: int) -> int:
    """Pods that the steps up to and with the present one set: those of setCanaryScale, but enough for the weight.

    Where `surge` leaves no room for that beside what stable needs, setCanaryScale gets the room that is left.
    """
    index, weight = rollout.step_index, weight_now(steps, rollout)
    room = replicas + surge - max(1, replicas_for(100 - weight, carriers))
    scale = next((step for step in reversed(steps[: index + 1]) if isinstance(step, SetScale)), SetScale())
    scaled = scale.replicas if scale.replicas is not None else -(-(scale.percent or 0) * replicas // 100)
    return min(replicas, max(min(scaled, room), replicas_for(weight, carriers), 1))


def routes_at(steps: Sequence[Step], index: int) -> tuple[SetHeaderRoute, ...]:
    """Header routes that are in force after the step at `index`, in the order in which they were first set."""
    routes: dict[str, SetHeaderRoute] = {}
    for step in steps[: index + 1]:
        if isinstance(step, SetHeaderRoute):
            routes[step.name] = step
    return tuple(route for route in routes.values() if route.match)


def mirrors_at(steps: Sequence[Step], index: int) -> tuple[SetMirrorRoute, ...]:
    """Mirrors that are in force after the step at `index`, in the order in which they were first set."""
    mirrors = {step.name: step for step in steps[: index + 1] if isinstance(step, SetMirrorRoute)}
    return tuple(mirror for mirror in mirrors.values() if mirror.percentage is not None)


def step_reaching(steps: Sequence[Step], weight: int) -> int:
    """First step whose weight is at least `weight`: where a rollout continues after its steps were edited."""
    return next((index for index in range(len(steps)) if weight_at(steps, index) >= weight), len(steps))
