"""What the status remembers of webhooks, and of the rollout that ended last."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from slipway_operator.api.markers import AnyText, AtMost
from slipway_operator.api.types import Int32, Time


class HookType(StrEnum):
    """When a hook is called and what its answer does. The words are Flagger's."""

    CONFIRM_ROLLOUT = "confirm-rollout"  # gate: before the new revision gets pods
    PRE_ROLLOUT = "pre-rollout"  # check: pods are ready, no request goes there yet
    ROLLOUT = "rollout"  # check: every gateway routes by the weight of a step
    CONFIRM_TRAFFIC_INCREASE = "confirm-traffic-increase"  # gate: before each higher weight
    CONFIRM_PROMOTION = "confirm-promotion"  # gate: before the new revision gets all traffic
    POST_ROLLOUT = "post-rollout"  # told: promoted or rejected
    ROLLBACK = "rollback"  # asked all the time: 2xx rejects the revision
    EVENT = "event"  # told: every Event


class HookOutcome(StrEnum):
    """What became of a hook's present question."""

    ASKED = "Asked"  # no answer yet
    WAITING = "Waiting"  # a gate that does not open; asked again
    PASSED = "Passed"  # 2xx
    FAILED = "Failed"  # a check, or what was told, without 2xx in any try


@dataclass(frozen=True, slots=True)
class HookState:
    """One hook.

    What is remembered of a hook within one attempt: written down before anything is done because of it.
    """

    name: str
    """Its name."""
    type: Annotated[HookType, AnyText()]
    """Its type."""
    about: str
    """What it was asked about: start, pods, a weight, promotion, a step, or the end."""
    key: str
    """Idempotency-Key of its present question."""
    outcome: Annotated[HookOutcome, AnyText()]
    """Asked, Waiting, Passed or Failed."""
    since: Time
    """When it was first asked about this."""
    asked: Int32 = 1
    """Number of its present question in this attempt."""
    at: Time | None = None
    """When it answered last."""
    message: str = ""
    """Its last answer."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The rollout that ended last, and which post-rollout hooks were told.

    The rollout that ended last and who is to be told.
    """

    revision: str
    """Its revision."""
    attempt: Int32
    """Its attempt."""
    step_index: Int32
    """The step it had reached, counted from 0."""
    promoted: bool
    """Whether it was promoted; else it was rejected."""
    reason: str
    """Why it ended."""
    at: Time
    """When it ended."""
    hooks: Annotated[tuple[HookState, ...], AtMost(16)] = field(default=())
    """What the hooks of this attempt were asked and answered; written before it takes effect."""
