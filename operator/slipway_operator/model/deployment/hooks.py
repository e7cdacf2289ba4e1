"""Webhooks of a rollout, their calls and their responses."""

from dataclasses import dataclass
from typing import Any

from slipway_operator.api.v1alpha1.hooks import HookFormat, HookType, Webhook

# A gate holds until its response is 2xx; a check runs once, and its failure rejects the revision.
GATES = frozenset({HookType.CONFIRM_ROLLOUT, HookType.CONFIRM_TRAFFIC_INCREASE, HookType.CONFIRM_PROMOTION})
CHECKS = frozenset({HookType.PRE_ROLLOUT, HookType.ROLLOUT})


@dataclass(frozen=True, slots=True)
class Hook:
    """One webhook as the user wrote it."""

    name: str
    type: HookType
    url: str
    timeout_s: int = 10  # of one try
    retries: int = 2  # further tries; unused where the operator repeats the call itself
    metadata: tuple[tuple[str, str], ...] = ()
    format: HookFormat | None = None  # None: Slipway's own JSON
    secret: tuple[str, str] | None = None  # name and key of a Secret

    @property
    def tries(self) -> int:
        """Tries of one call; 1 for gates and rollback hooks, which the operator calls again later."""
        return 1 if self.type in GATES or self.type is HookType.ROLLBACK else 1 + self.retries


@dataclass(frozen=True, slots=True)
class HookCall:
    """A call of a hook. `key` is its idempotency key: calls with the same key are the same call."""

    key: str
    hook: Hook
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """The result of a call after all its tries."""

    ok: bool  # 2xx
    message: str  # the status with its standard phrase, or why there is no response; and the number of tries


def hook_of(written: Webhook) -> Hook:
    """Return one webhook of `spec.strategy.hooks` in its decided form."""
    return Hook(
        name=written.name,
        type=HookType(written.type),
        url=written.url,
        timeout_s=written.timeout_seconds,
        retries=written.retries,
        metadata=tuple(sorted((written.metadata or {}).items())),
        format=HookFormat(written.format) if written.format else None,
        secret=(written.secret_ref.name, written.secret_ref.key) if written.secret_ref else None,
    )
