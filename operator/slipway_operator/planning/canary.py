"""Arithmetic of replicas and weights: how many pods a weight needs, how much weight pods carry."""

from collections.abc import Sequence

from slipway_operator.model.spec import SetScale, SetWeight, Step


def replicas_for(percent: int, replicas: int) -> int:
    """Pods that carry this share of the traffic that `replicas` pods carry, at least one."""
    return 0 if replicas == 0 else max(1, -(-percent * replicas // 100))


def weight_carried(ready: int, replicas: int) -> int:
    """Largest weight in percent that this many ready pods carry (invariant I1)."""
    return 100 if replicas == 0 else min(100, 100 * ready // replicas)


def weight_at(steps: Sequence[Step], index: int) -> int:
    """Weight in percent that the steps up to and with `index` ask for."""
    return next((step.percent for step in reversed(steps[: index + 1]) if isinstance(step, SetWeight)), 0)


def scale_at(steps: Sequence[Step], index: int) -> int:
    """Share of the replicas in percent that the steps up to and with `index` ask for."""
    asked = next((step.percent for step in reversed(steps[: index + 1]) if isinstance(step, SetScale)), 0)
    return max(asked, weight_at(steps, index))


def step_reaching(steps: Sequence[Step], weight: int) -> int:
    """First step whose weight is at least `weight`: where a rollout goes on when its steps were edited."""
    return next((index for index in range(len(steps)) if weight_at(steps, index) >= weight), len(steps))
