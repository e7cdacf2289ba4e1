"""Runs all guards of a request at a stage at once, within places and deadlines, and counts what they decide."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping

from slipway_contracts.guards import OUTPUT, GuardSpec
from slipway_process.places import SHARE, Places

from ..balancing.load_balancer import LoadBalancer
from ..routing.guards import BoundGuard
from ..routing.table import RouteTable
from ..telemetry.metrics import GatewayMetrics
from . import protocol
from .classifier import ClassifierClient
from .finder import PRESIDIO, RE2, missing
from .json_format import JsonFormat, object_problem
from .protocol import GuardFailed, Subject
from .schemas import JSONSCHEMA, UnusableSchema
from .schemas import missing as schemas_missing
from .verdict import BLOCKED, FAILED, IGNORED, StageVerdict, Verdict, joined
from .webhook import WebhookClient
from .workers import FinderPool

log = logging.getLogger(__name__)
PASSES = StageVerdict()
VALID, INVALID, UNDECIDED, RETRIED = "valid", "invalid", "undecided", "retried"
_LOOK_AGAIN_S = 60.0
_LOG_EVERY_S, _MOST_LOGGED = 10.0, 1024


class GuardChecks:
    """The guards of all requests of one gateway.

    `most`: calls at the same time. `percentage`: of them, what one client may have while it is alone.
    """

    def __init__(
        self,
        webhooks: WebhookClient,
        classifiers: ClassifierClient,
        finders: FinderPool,
        balancer: LoadBalancer,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
        *,
        most: int,
        percentage: int,
    ) -> None:
        self._webhooks, self._classifiers, self._finders = webhooks, classifiers, finders
        self._balancer, self._metrics, self._clock = balancer, metrics, clock
        self._places = Places(most, percentage)
        self._logged: dict[tuple[str, str], float] = {}  # when the last failure of a guard was logged

    async def check(
        self, guards: Collection[BoundGuard], subject: Subject, texts: Mapping[str, str], client: str
    ) -> StageVerdict:
        """What the guards decide together about texts. `guards`: of this stage. `client`: whose share their calls take.

        The first guard that blocks decides; without one the first that failed and does not let pass; else all spans
        that any of them redacts.
        """
        if not texts or not guards:
            return PASSES
        if len(guards) == 1:
            results = [await self._result(one, subject, texts, client) for one in guards]
        else:
            results = await asyncio.gather(*(self._result(one, subject, texts, client) for one in guards))
        return _together(list(zip(guards, results, strict=True)))

    async def misfit(self, bound: BoundGuard, wanted: JsonFormat, texts: list[str], client: str) -> str:
        """Why one of the texts is not what a request wanted; empty: all are. Without texts the schema is looked at.

        The guard's timeout limits the wait for a process, and then the check.

        Raises:
            UnusableSchema: nothing can be checked by the request's schema.
            GuardFailed: the guard did not decide.
        """
        if not wanted.schema:
            return next(filter(None, map(object_problem, texts)), "")
        if self._places.take(client):
            raise GuardFailed("no call is free, or this client's calls are at their share (--guard-max-inflight)")
        builtin, begun = bound.guard.builtin, asyncio.Event()
        assert builtin is not None, "guards of JSON are builtin"
        most_s, now = bound.guard.timeout_milliseconds / 1000, asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(most_s) as limit:

                def begin() -> None:
                    # A check that waited long for a process has all of its time: its schema is not at fault for that.
                    begun.set()
                    limit.reschedule(now() + most_s)

                found = await self._finders.misfits(builtin, wanted.schema, texts, client, begin)
                return next(filter(None, found), "")
        except TimeoutError:
            if not begun.is_set():
                raise GuardFailed("no process for it came free in time") from None
            # Schema and text are short, so the schema is at fault: that must not count against the deployment.
            raise UnusableSchema(f"a check by it takes more than {bound.guard.timeout_milliseconds} ms") from None
        finally:
            self._places.leave(client)

    def decided(self, bound: BoundGuard, action: str, seconds: float | None) -> None:
        """Counts a decision of a guard of JSON."""
        self._metrics.guarded(bound.owner, bound.guard.name, OUTPUT, action, seconds)

    def json_checked(self, model: str, revision: str, result: str) -> None:
        """Counts a response that a guard of JSON saw (VALID, INVALID, UNDECIDED), or one more attempt (RETRIED)."""
        self._metrics.json_checked(model, revision, result)

    def failed(self, guards: Collection[BoundGuard], stage: str, why: str) -> StageVerdict:
        """What follows where no guard can look, because the texts cannot be read."""
        for one in guards:
            action = FAILED if one.guard.fails_closed else IGNORED
            self._metrics.guarded(one.owner, one.guard.name, stage, action, None)
        return _together([(one, GuardFailed(why)) for one in guards])

    async def _result(
        self, bound: BoundGuard, subject: Subject, texts: Mapping[str, str], client: str
    ) -> Verdict | GuardFailed:
        guard, began_s = bound.guard, self._clock()
        result: Verdict | GuardFailed
        try:
            result = await self._bounded(bound, subject, texts, client)
        except GuardFailed as error:
            result = error
        except TimeoutError:
            result = GuardFailed(f"it did not decide within {guard.timeout_milliseconds} ms")
        except Exception:
            log.exception("a guard failed inside of the gateway", extra={"guard": guard.name, "owner": bound.owner})
            result = GuardFailed("the gateway failed on it")
        if isinstance(result, Verdict):
            action = result.action
        else:
            action = FAILED if guard.fails_closed else IGNORED
            self._say(bound, result)
        self._metrics.guarded(bound.owner, guard.name, subject.stage, action, self._clock() - began_s)
        return result

    def _say(self, bound: BoundGuard, failure: GuardFailed) -> None:
        """Logs a failure, at most one of a guard in some seconds."""
        about, now_s = (bound.owner, bound.guard.name), self._clock()
        if now_s - self._logged.get(about, float("-inf")) >= _LOG_EVERY_S:
            if len(self._logged) >= _MOST_LOGGED:
                self._logged.clear()
            self._logged[about] = now_s
            log.warning("a guard decided nothing: %s", failure, extra={"guard": bound.guard.name, "owner": bound.owner})

    async def _bounded(self, bound: BoundGuard, subject: Subject, texts: Mapping[str, str], client: str) -> Verdict:
        """Raises GuardFailed, TimeoutError."""
        if reason := self._places.take(client):
            whose = "this client's calls of guards are at their share" if reason == SHARE else "no call is free"
            raise GuardFailed(f"{whose} (--guard-max-inflight)")
        try:
            async with asyncio.timeout(bound.guard.timeout_milliseconds / 1000):
                return await self._call(bound, subject, texts, client)
        finally:
            self._places.leave(client)

    async def _call(self, bound: BoundGuard, subject: Subject, texts: Mapping[str, str], client: str) -> Verdict:
        guard = bound.guard
        if guard.webhook is not None:
            response = await self._webhooks.call(guard.webhook, protocol.written(guard.name, subject, texts))
            return protocol.verdict_of(response, texts)
        if guard.builtin is not None:
            return await self._finders.verdict(guard.builtin, texts, client)
        if guard.deployment is not None and bound.namespace:
            return await self._classifiers.verdict(guard.deployment, bound.namespace, texts, subject.request_id)
        raise GuardFailed("it is of a kind that this gateway does not know")

    async def run(self) -> None:
        """Prepares processes for the guards of the present table, again when that changes. Runs until cancelled."""
        absent = [name for name in (RE2, PRESIDIO) if missing(name)] + [JSONSCHEMA] * schemas_missing()
        if absent:
            log.info("guards with builtin need packages that are not installed: %s", ", ".join(absent))
        while True:
            table = self._balancer.published.current
            for guard in _guards_in(table) if table else ():
                if guard.builtin is not None:
                    self._finders.prepare(guard.builtin)
            await self._balancer.published.changed(_LOOK_AGAIN_S)

    async def close(self) -> None:
        await self._webhooks.close()
        await self._finders.close()


def _guards_in(table: RouteTable) -> Iterator[GuardSpec]:
    lists = (*(one.guards for one in table.routes.values()), *(one.spec.guards for one in table.model_routes.values()))
    return (guard for guards in lists for guard in guards)


def of_stage(guards: Collection[BoundGuard], stage: str) -> tuple[BoundGuard, ...]:
    """The guards of a stage, INPUT or OUTPUT, that look at texts: not those of JSON, which look at whole responses."""
    return tuple(one for one in guards if stage in one.guard.stages and one.guard.wants_json is None)


def of_json(guards: Collection[BoundGuard]) -> BoundGuard | None:
    """The guard that wants responses in JSON to be JSON: the first one counts."""
    return next((one for one in guards if one.guard.wants_json is not None), None)


def _together(results: Collection[tuple[BoundGuard, Verdict | GuardFailed]]) -> StageVerdict:
    verdicts = [(bound, result) for bound, result in results if isinstance(result, Verdict)]
    for bound, verdict in verdicts:
        if verdict.action == BLOCKED:
            return StageVerdict(bound.guard.name, blocked=True, reason=verdict.reason)
    for bound, failure in results:
        if isinstance(failure, GuardFailed) and bound.guard.fails_closed:
            return StageVerdict(bound.guard.name, failed=str(failure))
    return StageVerdict(spans=joined(verdict for _, verdict in verdicts))
