"""Exposures: each unit is logged once for an experiment and a window of time, with the arm and what served it.

Without Redis that is once at each gateway. The id of an exposure is the same at all of them, so who reads the log drops
the others. A unit that is forgotten, because too many came after it or because the process began again, is logged again
with the same id.
"""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from slipway_contracts.experiments.report import ExperimentsReport
from slipway_process.fair_memory import FairMemory
from slipway_process.supervisor import OnFailure

from ..feedback.tokens import Statement
from ..routing.experiments import ChosenArm, PublishedExperiment
from ..routing.table import RouteTable, base_revision
from ..sharing.counters import CountersAway, SharedClaims
from ..telemetry.access_log import MAX_ID, LineQueue, clean
from ..telemetry.line_writer import QUEUE_FULL
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from .counts import ExperimentCounts

Run = Callable[[], Awaitable[None]]

# Some 150 bytes each: 20 MB when the memory is full. Values of outcomes have as many.
MAX_UNITS = 131_072
MAX_WAITING = 4096  # exposures that wait for Redis
REDIS = "redis"  # in place of a sink, for those that waited for it
_BATCH = 256
_UNIT_BYTES, _ID_BYTES = 16, 16


class Exposure(msgspec.Struct, frozen=True):
    """A unit was exposed to an arm. `id`: the same at all gateways. `unit`: keyed digest of the unit.

    `deployment`, `revision`: what answered; empty where nothing did. `elsewhere`: that is not what the arm wants, as
    after a fallback. `status`: of the response. `value`: the unit as the client sent it, where that is wanted.
    """

    id: str
    at: str
    experiment: str
    layer: str
    version: int
    arm: str
    unit: str
    tenant: str
    deployment: str
    revision: str
    elsewhere: bool
    status: int
    request_id: str
    value: str | None = None


class ExposureTerms(NamedTuple):
    """What an administrator sets. `window_s`: in which a unit is logged once. `raw_units`: units are logged as sent."""

    salt: str = ""
    window_s: float = 90 * 86400.0
    raw_units: bool = False


DEFAULT_TERMS = ExposureTerms()


class _Waiting(NamedTuple):
    """An exposure that counts if no other gateway has counted its unit."""

    claim: bytes
    chosen: ChosenArm
    line: Exposure
    owner: str
    is_first_window: bool


class Experiments:
    """Exposures and outcomes of one gateway. `claims` None: a unit is counted once at each gateway."""

    def __init__(
        self,
        metrics: GatewayMetrics,
        table: Callable[[], RouteTable | None],
        sinks: Sequence[LineQueue] = (),
        terms: ExposureTerms = DEFAULT_TERMS,
        *,
        claims: SharedClaims | None = None,
        clock: Callable[[], float] = time.time,
        max_units: int = MAX_UNITS,
    ) -> None:
        """`table`: the one in use. `sinks`: where exposures are logged, as lines. `clock` returns Unix time."""
        self._metrics, self._table, self._sinks, self._terms = metrics, table, tuple(sinks), terms
        self._claims, self.now_s = claims, clock
        self._counts = ExperimentCounts()
        self._units: FairMemory[str, int, str] = FairMemory(max_units)
        self._rated: FairMemory[str, int, str] = FairMemory(max_units)
        self._waiting: FairMemory[str, int, _Waiting] = FairMemory(MAX_WAITING)
        self._wanted = asyncio.Event()
        self._encode = msgspec.json.Encoder().encode

    @property
    def is_shared(self) -> bool:
        """Whether gateways count units together."""
        return self._claims is not None

    @property
    def runs(self) -> dict[str, tuple[Run | None, OnFailure]]:
        """Its task, where it has one."""
        return {"exposures": (self.run if self.is_shared else None, OnFailure.SHOW)}

    # -- requests

    def skipped(self, experiment: PublishedExperiment, reason: str) -> None:
        """A request to the experiment's name took the ordinary way, and is counted in no arm."""
        self._counts.skipped(experiment, reason)
        self._metrics.experiment_requests(experiment.name, "", reason)

    def ended(self, chosen: ChosenArm, record: RequestRecord, deployment: str) -> None:
        """A request with an arm ended. `deployment`: `namespace/name` of what answered; empty: nothing did."""
        experiment, answered = chosen.experiment, deployment if record.revision else ""
        elsewhere = bool(answered) and not _is_of_arm(chosen, answered, record.revision)
        self._counts.requested(experiment, chosen.arm, elsewhere=elsewhere)
        self._metrics.experiment_requests(experiment.name, chosen.arm, "elsewhere" if elsewhere else "arm")
        window = self._window(experiment)
        key = hash((experiment.uid, experiment.assignment.version, window, chosen.unit))
        if self._units.get(record.owner, key) is not None:
            return
        self._remember(self._units, record.owner, key, experiment.name)
        line = self._line(chosen, record, answered, window, elsewhere=elsewhere)
        found = _Waiting(bytes.fromhex(line.id), chosen, line, record.owner, window == 0)
        if self._claims is None:
            self._expose(found, counts=True)
            return
        if dropped := self._waiting.put(record.owner, key, found):
            self._metrics.exposures_lost(REDIS, QUEUE_FULL, len(dropped))
        self._wanted.set()

    def unit_digest(self, chosen: ChosenArm) -> bytes:
        """A digest of the unit with the gateways' salt, from which nothing about it follows without that salt."""
        text = f"{chosen.experiment.name}\0{chosen.unit}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._terms.salt.encode(), b"slipway unit\0" + text, "sha256")[:_UNIT_BYTES]

    # -- outcomes

    def counts(self, states: Statement, outcome: str) -> bool:
        """Whether the experiment of a response counts this outcome."""
        experiment = self._experiment_of(states)
        return experiment is not None and outcome in experiment.assignment.outcomes

    async def rate(self, states: Statement, outcome: str, value: float, owner: str) -> None:
        """A value of an outcome. Values of one unit depend on each other, so the first one counts."""
        if (experiment := self._experiment_of(states)) is None:
            return
        about = f"{experiment.uid}\0{experiment.assignment.version}\0{outcome}\0".encode() + states.unit
        key = hash(about)
        if self._rated.get(owner, key) is not None:
            return
        self._remember(self._rated, owner, key, experiment.name)
        if self._claims is not None:
            claim = hashlib.sha256(b"outcome\0" + about).digest()[:_ID_BYTES]
            try:
                if not all(await self._claims.claim([claim], self._terms.window_s)):
                    return
            except CountersAway:
                return  # whether it was counted is not known, and says nothing about the arm
        self._counts.rated(experiment, states.arm, outcome, value)

    def _experiment_of(self, states: Statement) -> PublishedExperiment | None:
        """The experiment of a response; None: it had none, or that one is gone or has another version."""
        table = self._table()
        experiment = table.experiments.get(states.experiment) if table is not None and states.experiment else None
        if experiment is None or (experiment.uid, experiment.assignment.version) != (states.uid, states.version):
            return None
        return experiment

    # -- reports, and the task

    def report(self, incarnation: str) -> ExperimentsReport:
        """The body of `/internal/experiments`."""
        table = self._table()
        reports = self._counts.report(table.experiments if table is not None else {})
        return ExperimentsReport(incarnation, self.is_shared, self._metrics.lost_exposures(), reports)

    async def run(self) -> None:
        """Passes on exposures that wait for Redis, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while batch := self._batch():
                await self._claim(batch)

    async def close(self) -> None:
        """Logs what waits, and closes the logs."""
        while batch := self._batch():
            await self._claim(batch)
        for sink in self._sinks:
            await sink.close()

    def _batch(self) -> list[_Waiting]:
        """The next ones that wait, of who has most first."""
        return [self._waiting.drop()[1] for _ in range(min(_BATCH, self._waiting.size))]

    async def _claim(self, batch: Sequence[_Waiting]) -> None:
        assert self._claims is not None
        try:
            new = await self._claims.claim([one.claim for one in batch], self._terms.window_s)
        except (CountersAway, asyncio.CancelledError) as error:
            # They are logged, and whoever reads the log drops a second one. Counts are of units that are known as new.
            # At the end of the process Redis may have them by now, so that no other gateway would log them.
            for one in batch:
                self._expose(one, counts=False)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        for one, is_new in zip(batch, new, strict=True):
            if is_new:
                self._expose(one, counts=True)

    def _expose(self, found: _Waiting, *, counts: bool) -> None:
        """Logs an exposure. Counts are of the first window: later ones would have the same units again."""
        if counts and found.is_first_window:
            self._counts.exposed(found.chosen.experiment, found.chosen.arm)
        self._metrics.exposed(found.chosen.experiment.name, found.chosen.arm)
        line = self._encode(found.line) + b"\n" if self._sinks else b""
        for sink in self._sinks:
            sink.put(found.owner, line)

    def _remember(self, memory: FairMemory[str, int, str], owner: str, key: int, experiment: str) -> None:
        for _, name in memory.put(owner, key, experiment):
            self._metrics.experiment_units_forgotten.inc()
            if self._claims is None:
                self._counts.forgot(name)

    def _window(self, experiment: PublishedExperiment) -> int:
        """The number of the window, counted from the time at which the version began."""
        return max(0, int((self.now_s() - experiment.since_s) // self._terms.window_s))

    def _line(
        self, chosen: ChosenArm, record: RequestRecord, answered: str, window: int, *, elsewhere: bool
    ) -> Exposure:
        experiment, unit = chosen.experiment, self.unit_digest(chosen)
        assignment = experiment.assignment
        about = f"{experiment.uid}\0{assignment.version}\0{window}\0".encode() + unit
        return Exposure(
            hashlib.sha256(b"exposure\0" + about).digest()[:_ID_BYTES].hex(),
            datetime.fromtimestamp(self.now_s(), UTC).isoformat(timespec="milliseconds"),
            experiment.name,
            assignment.layer.rstrip("/"),
            assignment.version,
            chosen.arm,
            unit.hex(),
            record.identity.name if record.identity else "",
            answered,
            record.revision if answered else "",
            elsewhere,
            record.code if record.outcome != "internal" else 0,
            clean(record.request_id, MAX_ID),
            clean(chosen.unit.partition("\0")[2], MAX_ID) if self._terms.raw_units else None,
        )


def _is_of_arm(chosen: ChosenArm, deployment: str, revision: str) -> bool:
    return deployment == chosen.deployment and (not chosen.revision or base_revision(revision) == chosen.revision)
