"""The Lease of the one operator that may write: acquired, renewed in time, and released at the end."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Exists, NotFound, Stale
from slipway_operator.kube.resources import LEASES

# Fractions of the lease's duration. A holder that cannot renew sends no write after 2/5, and gives up each write within
# 1/4; another operator takes over after the whole. So none arrives after a takeover.
RENEW_EVERY = 1 / 6
WAIT_EVERY = 1 / 20  # one that waits for the lease: a lease that is released is taken within this time
HELD_FOR = 0.4
WRITE_FOR = 0.25

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Name, holder and duration of the lease: a holder that does not renew it for `duration_s` counts as dead."""

    namespace: str
    name: str
    identity: str  # a restarted process of the same pod has the same: its predecessor is dead, so it need not wait
    duration_s: float


class Lease:
    """This process's hold on the lease. Without the lease the process writes nothing, but its watches go on."""

    def __init__(
        self,
        client: Client,
        terms: LeaseTerms,
        on_change: Callable[[bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`client` serves the lease alone, so that a renewal does not queue behind other calls."""
        self._client, self._terms, self._clock = client, terms, clock
        self._followers = [on_change]
        self._held_until = float("-inf")
        self._was_held = False
        self._seen: tuple[str, str] = ("", "")  # another holder and its last renewTime
        self._seen_at = float("-inf")
        self._why_not = "the lease was not requested yet"
        self._stands_by_until = float("-inf")
        self._resigned = False
        self._lock = asyncio.Lock()  # one call at a time: a renewal must not come between the two of a release

    def follow(self, on_change: Callable[[bool], None]) -> None:
        """Call this, too, whenever the lease was acquired or lost, before any write that follows."""
        self._followers.append(on_change)

    def held(self) -> bool:
        """Whether this process may write now; False soon after a renewal failed or did not happen."""
        return self._clock() < self._held_until

    def resign(self) -> None:
        """Write nothing from now on, and do not renew the lease; `release` gives it to the next holder."""
        self._resigned, self._held_until = True, float("-inf")
        self._why_not = "this operator is leaving"

    def check(self) -> str | None:
        """Return None while the lease is held, else the reason."""
        return None if self.held() else self._why_not

    def stands_by(self) -> bool:
        """Whether another operator holds the lease, as this one saw lately: then it is ready to take over."""
        return not self.held() and self._clock() < self._stands_by_until

    async def run(self) -> None:
        """Acquire and renew the lease until cancelled."""
        while True:
            await self.renew()
            await asyncio.sleep(self._terms.duration_s * (RENEW_EVERY if self.held() else WAIT_EVERY))

    async def renew(self) -> None:
        """Try once to acquire or renew the lease. After a failure `check` has the reason; `held` soon becomes False."""
        try:
            async with self._lock:
                if not self._resigned:
                    await self._acquire()
        except (Stale, Exists):
            self._why_not = "another operator was faster"
        except ApiError as error:
            self._why_not = f"the lease {self._terms.namespace}/{self._terms.name} cannot be renewed: {error}"
            log.warning("%s", self._why_not)
        self._report_change()

    async def release(self) -> None:
        """Release the lease, so that the next holder need not wait until it expires; errors are ignored."""
        self.resign()
        async with self._lock:
            await self._give_back()

    async def _give_back(self) -> None:
        with contextlib.suppress(ApiError):
            live = await self._client.get(LEASES, self._terms.namespace, self._terms.name)
            if live["spec"].get("holderIdentity") == self._terms.identity:
                await self._client.replace(LEASES, {**live, "spec": {**live["spec"], "holderIdentity": ""}})

    async def _acquire(self) -> None:
        # The time counts from before the request: other operators count from when they see the renewal, which is later.
        started = self._clock()
        try:
            live = await self._client.get(LEASES, self._terms.namespace, self._terms.name)
        except NotFound:
            await self._client.create(LEASES, self._renewed({}))
        else:
            spec = live.get("spec") or {}
            if self._was_held and spec.get("holderIdentity") != self._terms.identity:
                self._held_until = float("-inf")  # it was another operator's meanwhile, even if it is free now
                self._report_change()
            if not self._is_free(spec):
                self._held_until = float("-inf")
                self._stands_by_until = started + self._terms.duration_s
                return
            await self._client.replace(LEASES, self._renewed(live))
        if not self._resigned:
            self._held_until = started + self._terms.duration_s * HELD_FOR

    def _is_free(self, spec: Object) -> bool:
        """Whether the lease is ours, released, or expired: no renewal was seen for its duration, by our own clock."""
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._terms.identity):
            return True
        seen = (holder, str(spec.get("renewTime")))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        self._why_not = f"operator {holder} holds the lease {self._terms.namespace}/{self._terms.name}; this one waits"
        return self._clock() - self._seen_at >= float(spec.get("leaseDurationSeconds") or self._terms.duration_s)

    def _renewed(self, live: Object) -> Object:
        """Return the lease with us as its holder; the resourceVersion that was read makes the write conditional."""
        former = live.get("spec") or {}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = former.get("holderIdentity") == self._terms.identity
        spec = {
            "holderIdentity": self._terms.identity,
            "leaseDurationSeconds": max(1, round(self._terms.duration_s)),
            "acquireTime": former.get("acquireTime", now) if ours else now,
            "renewTime": now,
            "leaseTransitions": int(former.get("leaseTransitions") or 0) + (bool(former) and not ours),
        }
        metadata = live.get("metadata") or {"name": self._terms.name, "namespace": self._terms.namespace}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}

    def _report_change(self) -> None:
        held = self.held()
        if held != self._was_held:
            self._was_held = held
            log.info("%s", "holds the lease" if held else f"writes nothing: {self._why_not}")
            for follower in self._followers:
                follower(held)
