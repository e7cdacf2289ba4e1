"""Probes: prompts of a model's owner, sent to a canary pod and its twin where clients' copies give too few pairs.

A probe is no request of a client: it has no tenant, no limits, no usage and no part in any count except those of pairs.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from multidict import CIMultiDict

from slipway_contracts.twin_shadow import TwinProbes, TwinShadow

from ..balancing.published_table import PublishedTable
from ..routing.table import Route
from ..upstream.exchange import UpstreamRequest
from ..wire import request_fields
from ..wire.headers import REQUEST_ID

log = logging.getLogger(__name__)

# How long the loop waits where no route has probes; a new route table ends the wait at once.
_IDLE_S = 3600.0
_MINUTE_S = 60.0
Send = Callable[[Route, TwinShadow, UpstreamRequest, str], bool]


@dataclass(slots=True)
class ProbeSchedule:
    """When the next probe of one attempt of a rollout is due, and how many were sent (pure)."""

    attempt: tuple[str, ...]
    first: int  # place of the first prompt: gateways do not all begin with the same one
    last_s: float  # time of the last pair, or of a probe that was withheld
    sent: int = 0

    def wait_s(self, rule: TwinProbes, now_s: float) -> float | None:
        """Seconds until the next probe is due, 0 when it is due now; None when `max_pairs` probes were sent."""
        if self.sent >= rule.max_pairs:
            return None
        return max(0.0, self.last_s + _MINUTE_S / rule.pairs_per_minute - now_s)

    def prompt(self, rule: TwinProbes) -> str:
        """The next prompt; prompts take turns."""
        return rule.prompts[(self.first + self.sent) % len(rule.prompts)]


def make_probe(route: Route, rule: TwinProbes, prompt: str, request_id: str) -> UpstreamRequest:
    """A probe as a client would send it: a streaming request with the model's default sampling (pure)."""
    text = {"prompt": prompt} if rule.path == "/v1/completions" else {"messages": [{"role": "user", "content": prompt}]}
    body = msgspec.json.encode({"model": route.model, **text, "max_tokens": rule.max_tokens, "stream": True})
    return UpstreamRequest(
        route.model,
        request_fields.ALONE + request_id,
        rule.path,
        CIMultiDict({"Content-Type": "application/json", REQUEST_ID: request_id}),
        body,
        stream=True,
        excused=request_fields.parse(body).excused,
        route=route.name,
    )


class Probes:
    """Sends the probes of all routes of one gateway. `send` returns whether it sent a pair."""

    def __init__(self, published: PublishedTable, clock: Callable[[], float], send: Send) -> None:
        self._published = published
        self._clock = clock
        self._send = send
        self._schedules: dict[str, ProbeSchedule] = {}

    async def run(self) -> None:
        """Sends probes when they are due. Never returns."""
        while True:
            await self._published.changed(self.send_due())

    def paired(self, route: Route) -> None:
        """A client's request was sent as a pair: the next probe of the route is due one interval from now."""
        if schedule := self._schedules.get(route.name):
            schedule.last_s = self._clock()

    def send_due(self) -> float:
        """Sends the probes that are due. Returns seconds until the next one is, if the route table does not change."""
        table, now_s, wait_s = self._published.current, self._clock(), _IDLE_S
        probed = [route for route in table.routes.values() if route.twin_shadow] if table else []
        self._schedules = {route.name: self._schedule(route, now_s) for route in probed}
        for route in probed:
            try:
                left_s = self._send_of(route, now_s)
            except Exception:  # of one route: the probes of all others go on
                log.exception("a probe failed inside of the gateway", extra={"route": route.name})
                left_s = _MINUTE_S
            wait_s = wait_s if left_s is None else min(wait_s, left_s)
        return wait_s

    def _send_of(self, route: Route, now_s: float) -> float | None:
        """Sends the probe of this route if it is due. Returns seconds until the next one; None: there is none."""
        shadow, schedule = route.twin_shadow, self._schedules[route.name]
        rule = shadow.probes if shadow and not route.asleep else None
        left_s = schedule.wait_s(rule, now_s) if rule else None
        if shadow is None or rule is None or left_s != 0.0:
            return left_s
        schedule.last_s = now_s
        request_id = secrets.token_hex(16)
        probe = make_probe(route, rule, schedule.prompt(rule), request_id)
        schedule.sent += self._send(route, shadow, probe, request_id)
        return _MINUTE_S / rule.pairs_per_minute

    def _schedule(self, route: Route, now_s: float) -> ProbeSchedule:
        """The schedule of the rollout's attempt, or a new one, whose first probe is due after one interval."""
        shadow, known = route.twin_shadow, self._schedules.get(route.name)
        assert shadow, "only routes with a twin shadow have one"
        attempt = (route.uid, route.salt, shadow.revision, shadow.twin)
        if known and known.attempt == attempt:
            return known
        prompts = shadow.probes.prompts if shadow.probes else ("",)
        return ProbeSchedule(attempt, secrets.randbelow(len(prompts)), now_s)
