"""Webhooks of a rollout: what a user writes, what is asked, what is answered, what is remembered."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from slipway_operator.api.v1alpha1 import strategy


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


# A gate holds until it is answered 2xx; a check is run once, and its failure rejects the revision.
GATES = frozenset({HookType.CONFIRM_ROLLOUT, HookType.CONFIRM_TRAFFIC_INCREASE, HookType.CONFIRM_PROMOTION})
CHECKS = frozenset({HookType.PRE_ROLLOUT, HookType.ROLLOUT})


@dataclass(frozen=True, slots=True)
class Hook:
    """One webhook as the user wrote it."""

    name: str
    type: HookType
    url: str
    timeout_s: int = 10  # of one try
    retries: int = 2  # further tries of what is not asked again anyway
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def tries(self) -> int:
        """How often one question is put: gates and rollback are asked anew anyway."""
        return 1 if self.type in GATES or self.type is HookType.ROLLBACK else 1 + self.retries


class HookOutcome(StrEnum):
    """What became of a hook's present question."""

    ASKED = "Asked"  # no answer yet
    WAITING = "Waiting"  # a gate that does not open; asked again
    PASSED = "Passed"  # 2xx
    FAILED = "Failed"  # a check, or what was told, without 2xx in any try


@dataclass(frozen=True, slots=True)
class HookState:
    """What is remembered of a hook within one attempt: written down before anything is done because of it."""

    name: str
    type: HookType
    about: str  # what it is asked about: start, pods, "weight 25", promotion, ...; another one is another question
    key: str  # Idempotency-Key of the present question
    outcome: HookOutcome
    since: datetime  # when it was first asked about this
    asked: int = 1  # questions in this attempt; the last part of the key
    at: datetime | None = None  # when it answered last
    message: str = ""  # its last answer


@dataclass(frozen=True, slots=True)
class HookCall:
    """A question to put to a hook. The same key is the same question, however often it is put."""

    key: str
    hook: Hook
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """What came of a question, all tries included."""

    ok: bool  # 2xx
    message: str  # status and first line of the body, or why there is none


@dataclass(frozen=True, slots=True)
class Ended:
    """The rollout that ended last and who is to be told."""

    revision: str
    attempt: int
    step_index: int
    promoted: bool
    reason: str
    at: datetime
    hooks: tuple[HookState, ...] = field(default=())


def hook_of(written: strategy.Hook) -> Hook:
    """One webhook of `spec.strategy.hooks`."""
    return Hook(
        name=written.name,
        type=HookType(written.type),
        url=written.url,
        timeout_s=written.timeout_seconds,
        retries=written.retries,
        metadata=tuple(sorted((written.metadata or {}).items())),
    )
