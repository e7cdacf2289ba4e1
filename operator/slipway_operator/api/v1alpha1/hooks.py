"""Webhooks of a rollout: in the spec, and their calls in the status with the rollout that ended last."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from slipway_contracts.api.markers import AnyText, AtMost, CelRule, rule
from slipway_contracts.api.types import ApiType, Int32, Time
from slipway_operator.api.inputs.pod_inputs import SecretKeyRef


@rule(
    "!has(self.format) || self.type == 'post-rollout' || self.type == 'event'",
    "format in spec.strategy.hooks is for notifications: write it with type post-rollout or event",
)
@rule(
    "!has(self.secretRef) || has(self.format)",
    "secretRef in spec.strategy.hooks is for notifications with a format: write format, or remove secretRef",
)
@rule(
    "!has(self.format) || self.format != 'PagerDuty' || has(self.secretRef)",
    "format PagerDuty in spec.strategy.hooks needs secretRef, the key of the Secret with the integration key",
)
class Webhook(ApiType):
    """Webhook of the rollout."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the webhook in the status, in Events and in idempotency keys."""
    type: Literal[
        "confirm-rollout",
        "pre-rollout",
        "rollout",
        "confirm-traffic-increase",
        "confirm-promotion",
        "post-rollout",
        "rollback",
        "event",
    ]
    """Type of the webhook. The confirm types are gates: they hold the rollout until the response is 2xx. pre-rollout
    (the pods are ready) and rollout (a weight is reached) are checks: without 2xx the revision is rejected. rollback is
    called periodically: 2xx rejects the revision. post-rollout and event are notifications."""
    url: Annotated[
        str,
        Field(max_length=2048),
        CelRule(
            "self.matches('^https?://[A-Za-z0-9.:_\\\\[\\\\]-]+([/?][^ ]*)?$')",
            (
                "spec.strategy.hooks.url must be http:// or https:// with a host and without credentials: write for "
                "example http://gate.tools.svc/approve"
            ),
        ),
    ]
    """URL of the POST request, http or https. Redirects are not followed."""
    timeout_seconds: Annotated[Int32, Field(ge=1, le=300)] = 10
    """Timeout of one attempt in seconds."""
    retries: Annotated[Int32, Field(ge=0, le=5)] = 2
    """Number of retries of a check or a notification after 5xx, 408, 425, 429 or no response. Gates and rollback are
    called repeatedly in any case."""
    metadata: (
        Annotated[
            dict[str, Annotated[str, Field(max_length=1024, description="Value, as text.")]], Field(max_length=16)
        ]
        | None
    ) = None
    """Key-value pairs that are sent with each call. Do not put secrets here."""
    format: Literal["Slack", "Teams", "PagerDuty"] | None = None
    """Body of a notification in the form that a service takes, in place of Slipway's own. Slack: of incoming webhooks.
    Teams: an Adaptive Card, for a webhook of Workflows. PagerDuty: of the Events API v2; Warnings and rejections open
    an incident, a promotion closes it, and other Events are not sent."""
    secret_ref: SecretKeyRef | None = None
    """Key of a Secret of the same namespace, which a Role there lets the operator get. Its value takes the place of
    $(secret) in the path of url. For PagerDuty it is the integration key."""


class HookType(StrEnum):
    """Type of a hook. The names are Flagger's."""

    CONFIRM_ROLLOUT = "confirm-rollout"  # gate: before the new revision gets pods
    PRE_ROLLOUT = "pre-rollout"  # check: pods are ready, no request goes there yet
    ROLLOUT = "rollout"  # check: every gateway routes by the weight of a step
    CONFIRM_TRAFFIC_INCREASE = "confirm-traffic-increase"  # gate: before each higher weight
    CONFIRM_PROMOTION = "confirm-promotion"  # gate: before the new revision gets all traffic
    POST_ROLLOUT = "post-rollout"  # notification: promoted or rejected
    ROLLBACK = "rollback"  # poll: 2xx rejects the revision
    EVENT = "event"  # notification: every Event


class HookFormat(StrEnum):
    """Form of the body of a notification."""

    SLACK = "Slack"
    TEAMS = "Teams"
    PAGERDUTY = "PagerDuty"


class HookOutcome(StrEnum):
    """Outcome of the current call of a hook."""

    ASKED = "Asked"  # no response yet
    WAITING = "Waiting"  # a gate that does not open; it is called again
    PASSED = "Passed"  # 2xx
    FAILED = "Failed"  # a check or a notification without 2xx in any attempt


@dataclass(frozen=True, slots=True)
class HookState:
    """State of one hook in an attempt. It is recorded before it takes effect."""

    name: str
    """Name of the hook."""
    type: Annotated[HookType, AnyText()]
    """Type of the hook."""
    about: str
    """Point of the rollout that the call is about: start, pods, a weight, promotion, a step, or the end."""
    key: str
    """Idempotency-Key of the current call."""
    outcome: Annotated[HookOutcome, AnyText()]
    """Outcome of the current call. Asked: there is no response yet. Waiting: the gate did not open and is called again.
    Passed: the response was 2xx. Failed: no attempt of a check or notification returned 2xx."""
    since: Time
    """Time of the first call for this point of the rollout."""
    asked: Int32 = 1
    """Number of the current call in this attempt, counted from 1."""
    at: Time | None = None
    """Time of the last response."""
    message: str = ""
    """Last response."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Rollout that ended last, with the calls of its post-rollout hooks."""

    revision: str
    """Revision that was rolled out."""
    attempt: Int32
    """Number of the attempt."""
    step_index: Int32
    """Step that the rollout had reached, counted from 0."""
    promoted: bool
    """Whether the revision was promoted. Otherwise it was rejected."""
    reason: str
    """Reason why the rollout ended."""
    at: Time
    """End time of the rollout."""
    hooks: Annotated[tuple[HookState, ...], AtMost(16)] = field(default=())
    """Calls of post-rollout hooks, with their results."""
