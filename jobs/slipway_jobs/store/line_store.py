"""Claims of lines, their results, and the end of batches.

A claim increments the line's epoch. A result is recorded only with the last epoch, so that each line has one recorded
answer, even if processes die or pause, or a response comes twice.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, exists, func, literal, or_, select, update

from slipway_process.sealing import Keyring, UnreadableSeal

from ..states import (
    CANCELLED,
    CLAIMED,
    COMPLETED,
    ENDING_BATCHES,
    ERROR,
    ERROR_LINES,
    EXPIRED,
    FAILED,
    FINALIZING,
    IN_PROGRESS,
    OPEN_LINES,
    OUTPUT,
    QUEUED,
    READY,
    UNRUN,
    VALIDATING,
    count_lines,
)
from .database import Database
from .sealed_rows import input_row, plain_length, result_row
from .tables import batches, files, inputs, lines
from .usage import LEAST_SHARE, TenantUsage

MAX_LISTED = 200  # batches that are looked at in one turn
MAX_TENANTS = 100  # whose batches are looked at in one turn
_BATCHES_OF_TENANT = 32
ALONE_AFTER = 2  # losses, after which a line runs alone
_RENDERED_ROWS = 1000


@dataclass(frozen=True, slots=True)
class RunnableBatch:
    """A batch whose lines may be claimed."""

    id: str
    tenant: str
    endpoint: str
    input_file_id: str


_RUNNABLE = (batches.c.id, batches.c.tenant, batches.c.endpoint, batches.c.input_file_id)


@dataclass(frozen=True, slots=True)
class Turn:
    """Batches in the order in which their lines are claimed. `last`: the last tenant that was looked at.

    `is_full`: there are none because the database has no room for results.
    """

    batches: list[RunnableBatch]
    last: str
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class LineClaim:
    """One line that this process may send. `data`: as it was uploaded. `unreadable`: why it cannot be decrypted."""

    batch: RunnableBatch
    n: int
    custom_id: str
    epoch: int
    attempts: int
    data: bytes
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class LineResult:
    """`state`: COMPLETED or FAILED with the line of the result; QUEUED: it runs again after `wait_s`.

    `replaces`: it takes the place of a result that the database refused.
    """

    claim: LineClaim
    state: str
    line: bytes | None = None
    attempts: int = 0
    wait_s: float = 0.0
    replaces: bool = False


class LineStore:
    """Calls take a connection in a transaction: run them with `Database.call`."""

    def __init__(
        self,
        database: Database,
        owner: str,
        lease_s: float,
        file_s: float,
        *,
        max_attempts: int = 3,
        max_tenant_result_bytes: int = 1 << 30,
        keyring: Keyring | None = None,
    ) -> None:
        """`owner`: id of this process. `file_s`: seconds that results are kept. `keyring`: which seals results.

        `max_attempts`: how often a line may end a process while it runs alone, before it fails.
        `max_tenant_result_bytes`: of batches and results, above which lines of a tenant wait.
        """
        self._database, self._usage = database, TenantUsage(database, max_tenant_result_bytes)
        self._owner, self._keyring = owner, keyring or Keyring.none()
        self._lease_s = lease_s
        self._file_s = file_s
        self._max_attempts, self._max_losses = max_attempts, ALONE_AFTER + max_attempts

    def runnable(self, connection: Connection, after: str = "") -> Turn:
        """Batches with waiting lines: the oldest of each tenant, beginning behind `after`, then the second ones.

        None while the database has no room for results, and none of a tenant at its own limit.
        """
        if not self._has_room(connection):
            return Turn([], after, is_full=True)
        names = self._tenants(connection, lambda tenant: tenant > after, MAX_TENANTS)
        if len(names) < MAX_TENANTS:
            names += self._tenants(connection, lambda tenant: tenant <= after, MAX_TENANTS - len(names))
        ready = (lines.c.state == QUEUED, lines.c.ready_at <= self._database.now, lines.c.losses < ALONE_AFTER)
        waiting = exists().where(lines.c.batch_id == batches.c.id, *ready)
        place = func.row_number().over(partition_by=batches.c.tenant, order_by=batches.c.id).label("place")
        own = (batches.c.status == IN_PROGRESS, batches.c.tenant.in_(names), self._tenant_has_room(connection))
        ranked = select(*_RUNNABLE, place).where(*own, waiting).subquery()
        query = select(ranked).where(ranked.c.place <= _BATCHES_OF_TENANT).order_by(ranked.c.place).limit(MAX_LISTED)
        turns = {name: turn for turn, name in enumerate(names)}
        rows = sorted(connection.execute(query).all(), key=lambda row: (row.place, turns[row.tenant]))
        return Turn([RunnableBatch(*row[:-1]) for row in rows], names[-1] if names else after)

    def _tenants(self, connection: Connection, which: Callable[[Any], Any], most: int) -> list[str]:
        """The first tenants with batches in progress, by one index step for each: SELECT DISTINCT would read all."""
        own = batches.alias()
        first = select(func.min(batches.c.tenant).label("tenant"), literal(1).label("place"))
        found = first.where(batches.c.status == IN_PROGRESS, which(batches.c.tenant)).cte("found", recursive=True)
        later = (own.c.status == IN_PROGRESS, own.c.tenant > found.c.tenant, which(own.c.tenant))
        behind = select(func.min(own.c.tenant)).where(*later)
        following = select(behind.scalar_subquery(), found.c.place + 1)
        found = found.union_all(following.where(found.c.tenant.is_not(None), found.c.place < most))
        query = select(found.c.tenant).where(found.c.tenant.is_not(None)).order_by(found.c.place)
        return list(connection.execute(query).scalars())

    def claim(self, connection: Connection, batch: RunnableBatch, limit: int) -> list[LineClaim]:
        """Claims the next lines of a batch, at most `limit`; skips those that another process is claiming."""
        now = self._database.now
        free = select(lines.c.n).where(lines.c.batch_id == batch.id, lines.c.state == QUEUED, lines.c.ready_at <= now)
        free = free.where(lines.c.losses < ALONE_AFTER).order_by(lines.c.n).limit(limit)
        free = free.with_for_update(skip_locked=True)
        runs = exists().where(batches.c.id == batch.id, batches.c.status == IN_PROGRESS)
        numbers = connection.execute(free.where(runs)).scalars().all()
        return self._claimed(connection, batch, numbers) if numbers else []

    def has_suspect(self, connection: Connection) -> bool:
        """Whether a line waits that has to run with nothing beside it, and the database has room for its result."""
        return (
            self._has_room(connection) and connection.execute(self._suspects(connection).limit(1)).first() is not None
        )

    def claim_suspect(self, connection: Connection) -> list[LineClaim]:
        """Claims one line that was in flight when processes died; alone, it is the cause if its process dies too."""
        free = self._suspects(connection).order_by(lines.c.batch_id, lines.c.n).limit(1)
        row = connection.execute(free.with_for_update(of=lines, skip_locked=True)).first()
        return self._claimed(connection, RunnableBatch(*row[:-1]), [row.n]) if row else []

    def _tenant_has_room(self, connection: Connection) -> Any:
        return ~self._usage.is_full(connection, batches.c.tenant)

    def _has_room(self, connection: Connection) -> bool:
        return self._database.free_bytes(connection, LEAST_SHARE) > 0

    def _suspects(self, connection: Connection) -> Select[Any]:
        chosen = (lines.c.losses >= ALONE_AFTER, lines.c.losses < self._max_losses)
        ready = (lines.c.state == QUEUED, *chosen, lines.c.ready_at <= self._database.now)
        joined = lines.join(batches, lines.c.batch_id == batches.c.id)
        own = (batches.c.status == IN_PROGRESS, self._tenant_has_room(connection))
        return select(*_RUNNABLE, lines.c.n).select_from(joined).where(*ready, *own)

    def _claimed(self, connection: Connection, batch: RunnableBatch, numbers: Sequence[int]) -> list[LineClaim]:
        values = {
            "state": CLAIMED,
            "epoch": lines.c.epoch + 1,
            "owner": self._owner,
            "lease_until": self._database.now + self._lease_s,
        }
        taken = update(lines).where(lines.c.batch_id == batch.id, lines.c.n.in_(numbers)).values(values)
        rows = connection.execute(taken.returning(lines.c.n, lines.c.custom_id, lines.c.epoch, lines.c.attempts)).all()
        query = select(inputs.c.n, inputs.c.data).where(
            inputs.c.file_id == batch.input_file_id, inputs.c.n.in_(numbers)
        )
        data = {n: bytes(found) for n, found in connection.execute(query)}
        # A line without its input fails as invalid: an exception here would end each process that claims it.
        return [
            self._opened(LineClaim(batch, n, custom_id, epoch, tries, data.get(n, b"")))
            for n, custom_id, epoch, tries in sorted(rows)
        ]

    def _opened(self, claim: LineClaim) -> LineClaim:
        try:
            return replace(claim, data=self._keyring.open(claim.data, input_row(claim.batch.input_file_id, claim.n)))
        except UnreadableSeal as error:
            return replace(claim, data=b"", unreadable=str(error))

    def renew(self, connection: Connection, claims: Sequence[LineClaim]) -> None:
        """Renews the leases of lines that this process has in flight."""
        numbers: dict[str, list[int]] = {}
        for claim in claims:
            numbers.setdefault(claim.batch.id, []).append(claim.n)
        for batch_id, some in sorted(numbers.items()):
            own = (lines.c.batch_id == batch_id, lines.c.n.in_(some), lines.c.owner == self._owner)
            values = {"lease_until": self._database.now + self._lease_s}
            connection.execute(update(lines).where(*own, lines.c.state == CLAIMED).values(values))

    def record(self, connection: Connection, results: Sequence[LineResult]) -> list[bool]:
        """Records results; returns for each whether its claim was still the last one, else it is ignored."""
        taken: dict[int, bool] = {}
        added = Counter[str]()
        for result in sorted(results, key=lambda one: (one.claim.batch.id, one.claim.n)):
            claim, line = result.claim, result.line
            if line is not None:
                line = self._keyring.seal(line, result_row(claim.batch.id, claim.n))
            own = (lines.c.batch_id == claim.batch.id, lines.c.n == claim.n, lines.c.epoch == claim.epoch)
            values: dict[str, Any] = {"state": result.state, "attempts": result.attempts, "result": line}
            values["ready_at"] = self._database.now + result.wait_s
            done = connection.execute(update(lines).where(*own, lines.c.state == CLAIMED).values(values))
            taken[id(result)] = done.rowcount == 1
            added[claim.batch.tenant] += len(line or b"") if done.rowcount == 1 else 0
        self._usage.add(connection, added)
        return [taken[id(result)] for result in results]

    # -- what follows from the time and from lines that ended

    def sweep(self, connection: Connection) -> list[str]:
        """Ends batches whose window is over, queues lines whose lease ended. Returns batches without an open line."""
        now = self._database.now
        late = (batches.c.status == IN_PROGRESS, batches.c.expires_at <= now)
        ends = {"status": FINALIZING, "outcome": EXPIRED, "finalizing_at": now}
        connection.execute(update(batches).where(*late).values(ends))
        unread = (batches.c.status == VALIDATING, batches.c.expires_at <= now)
        connection.execute(update(batches).where(*unread).values(status=EXPIRED, outcome=EXPIRED, expired_at=now))
        dead = (lines.c.state == CLAIMED) & (lines.c.lease_until < now)
        self._end_open_lines(connection, or_(lines.c.state == QUEUED, dead))
        lost = {"state": QUEUED, "ready_at": now, "losses": lines.c.losses + 1}
        connection.execute(update(lines).where(dead).values(lost))
        open_line = exists().where(lines.c.batch_id == batches.c.id, lines.c.state.in_(OPEN_LINES))
        done = {"status": FINALIZING, "outcome": COMPLETED, "finalizing_at": now}
        connection.execute(update(batches).where(batches.c.status == IN_PROGRESS, ~open_line).values(done))
        ending = select(batches.c.id).where(batches.c.status.in_(ENDING_BATCHES), ~open_line).limit(MAX_LISTED)
        return list(connection.execute(ending).scalars())

    def fail_lost(self, connection: Connection) -> int:
        """Fails lines whose process ended each time, lastly while they ran alone; returns how many."""
        which = (lines.c.state == QUEUED, lines.c.losses >= self._max_losses)
        named = (lines.c.batch_id, lines.c.n, lines.c.custom_id, lines.c.losses, batches.c.tenant)
        query = select(*named).join(batches, lines.c.batch_id == batches.c.id).where(*which)
        rows, added = connection.execute(query.limit(_RENDERED_ROWS)).all(), Counter[str]()
        message = (
            "The process that sends requests ended each time this request was in flight, the last "
            f"{self._max_attempts} times with no other request beside it."
        )
        for batch_id, n, custom_id, losses, tenant in rows:
            line = result_line(batch_id, n, custom_id, error={"code": "process_lost", "message": message})
            ended = {"state": FAILED, "result": line, "attempts": losses}
            own = (lines.c.batch_id == batch_id, lines.c.n == n, lines.c.state == QUEUED)
            done = connection.execute(update(lines).where(*own).values(ended))
            added[tenant] += len(line) * done.rowcount
        self._usage.add(connection, added)
        return len(rows)

    def _end_open_lines(self, connection: Connection, which: Any) -> None:
        ending = select(batches.c.id, batches.c.outcome).where(batches.c.status.in_(ENDING_BATCHES))
        for batch_id, outcome in connection.execute(ending.limit(MAX_LISTED)).all():
            state = EXPIRED if outcome == EXPIRED else CANCELLED
            connection.execute(update(lines).where(lines.c.batch_id == batch_id, which).values(state=state))

    def render(self, connection: Connection, batch_id: str) -> bool:
        """Writes the error of some lines that did not run; returns whether there were any."""
        unrun = (lines.c.batch_id == batch_id, lines.c.state.in_(tuple(UNRUN)), lines.c.result.is_(None))
        query = select(lines.c.n, lines.c.custom_id, lines.c.state).where(*unrun).limit(_RENDERED_ROWS)
        found, size = connection.execute(query).all(), 0
        for n, custom_id, state in found:
            code, message = UNRUN[state]
            line = result_line(batch_id, n, custom_id, error={"code": code, "message": message})
            own = (lines.c.batch_id == batch_id, lines.c.n == n, lines.c.result.is_(None))
            size += len(line) * connection.execute(update(lines).where(*own).values(result=line)).rowcount
        if found:
            tenant = connection.execute(select(batches.c.tenant).where(batches.c.id == batch_id)).scalar_one()
            self._usage.add(connection, {tenant: size})
        return bool(found)

    def finish(self, connection: Connection, batch_id: str) -> str | None:
        """Ends a batch, with files and counts. Returns its status; None if another process did, or a line is open."""
        mine = select(batches).where(batches.c.id == batch_id, batches.c.status.in_(ENDING_BATCHES)).with_for_update()
        batch = connection.execute(mine).mappings().one_or_none()
        if batch is None:
            return None
        grouped = (
            select(lines.c.state, func.count().label("number"))
            .where(lines.c.batch_id == batch_id)
            .group_by(lines.c.state)
        )
        by_state: dict[str, int] = {row.state: row.number for row in connection.execute(grouped)}
        if any(by_state.get(state) for state in OPEN_LINES):
            return None
        counts, now = count_lines(by_state), self._database.now
        ids = {part: self._file(connection, batch, part) for part in (OUTPUT, ERROR)}
        outcome = str(batch["outcome"])
        values = {
            "status": outcome,
            f"{outcome}_at": now,
            "finalizing_at": func.coalesce(batches.c.finalizing_at, now),
            "total": counts.total,
            "completed": counts.completed,
            "failed": counts.failed,
            "output_file_id": ids[OUTPUT],
            "error_file_id": ids[ERROR],
        }
        connection.execute(update(batches).where(batches.c.id == batch_id).values(values))
        return outcome

    def _file(self, connection: Connection, batch: Mapping[Any, Any], part: str) -> str | None:
        """Adds the file of a part of the result and returns its id; None where the part has no line."""
        states = (COMPLETED,) if part == OUTPUT else ERROR_LINES
        chosen = (lines.c.batch_id == batch["id"], lines.c.state.in_(states))
        size = connection.execute(select(func.sum(plain_length(lines.c.result))).where(*chosen)).scalar()
        if not size:
            return None
        now_s = self._database.time(connection)
        file_id = f"file-{batch['id'].removeprefix('batch_')}-{part}"
        row = {"id": file_id, "tenant": batch["tenant"], "purpose": "batch_output", "state": READY}
        named = {"filename": f"{batch['id']}_{part}.jsonl", "bytes": int(size), "batch_id": batch["id"], "part": part}
        kept_s = batch["output_expires_s"] or self._file_s
        times = {"created_at": now_s, "expires_at": now_s + kept_s}
        connection.execute(self._database.insert(files).on_conflict_do_nothing(), row | named | times)
        return file_id

    def counts(self, connection: Connection) -> dict[str, int]:
        """Lines by state, of batches that have not ended."""
        open_batches = select(batches.c.id).where(batches.c.status.in_((IN_PROGRESS, *ENDING_BATCHES)))
        grouped = (
            select(lines.c.state, func.count().label("number"))
            .where(lines.c.batch_id.in_(open_batches))
            .group_by(lines.c.state)
        )
        return {row.state: row.number for row in connection.execute(grouped)}

    def give_back(self, connection: Connection) -> None:
        """Lets other processes claim this one's lines and batches at once. Call it when nothing is in flight."""
        own = (lines.c.owner == self._owner, lines.c.state == CLAIMED)
        connection.execute(update(lines).where(*own).values(state=QUEUED, ready_at=0.0))
        read = (batches.c.owner == self._owner, batches.c.status == VALIDATING)
        connection.execute(update(batches).where(*read).values(lease_until=0.0))


def result_line(
    batch_id: str, n: int, custom_id: str, response: Mapping[str, Any] | None = None, error: Any = None
) -> bytes:
    """A line of an output or error file."""
    line = {"id": request_id(batch_id, n), "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(line) + b"\n"


def request_id(batch_id: str, n: int) -> str:
    """The id of one line's request, which is also its `X-Request-Id` at the gateway."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{n}"
