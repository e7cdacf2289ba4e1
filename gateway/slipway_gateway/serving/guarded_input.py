"""Has guards look at requests before they are sent on; whatever they redact, nothing behind this sees."""

from collections.abc import Collection

from slipway_contracts.guards import INPUT

from ..guards import texts
from ..guards.checks import GuardChecks, of_stage
from ..guards.protocol import GuardFailed, Subject
from ..limits.budget import Account
from ..routing.guards import BoundGuard
from ..telemetry.metrics import RequestRecord
from ..wire import errors

_BYTES_PER_BYTE = 4  # memory of a decoded body, for each of its bytes


class InputGuards:
    """The guards of what clients send."""

    def __init__(self, checks: GuardChecks) -> None:
        self._checks = checks

    async def checked(
        self, body: bytes, bound: Collection[BoundGuard], record: RequestRecord, account: Account
    ) -> bytes:
        """The body to send on: the same object where guards allow it as it is.

        Raises:
            RequestError: a guard blocks it (400), cannot read it (400), or failed (503), or there is no room (429).
        """
        guards = of_stage(bound, INPUT)
        if not guards:
            return body
        try:
            return await self._checked(body, guards, record, account)
        except GuardFailed as error:
            verdict = self._checks.failed(guards, INPUT, str(error))
            if verdict.passes:
                return body
            raise errors.content_not_checked(verdict.guard, verdict.failed) from None

    async def _checked(
        self, body: bytes, guards: Collection[BoundGuard], record: RequestRecord, account: Account
    ) -> bytes:
        if account.grow(_BYTES_PER_BYTE * min(len(body), texts.MAX_BODY_BYTES)):
            raise errors.overloaded("The gateway is at its limit of memory for requests.")
        found = texts.of_request(body)
        tenant = record.identity.name if record.identity else ""
        subject = Subject(INPUT, record.model, "", tenant, record.request_id)
        verdict = await self._checks.check(guards, subject, found.texts, account.client)
        if verdict.blocked:
            raise errors.content_blocked(verdict.guard, verdict.reason, of_response=False)
        if verdict.failed:
            raise errors.guard_failed(verdict.guard, verdict.failed)
        return found.redacted(verdict.spans) if verdict.spans else body
