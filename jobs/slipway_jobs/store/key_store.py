"""Idempotency keys of tenants: one claim at a time, and one answer, recorded in the transaction of the effect."""

import uuid
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, select, update
from sqlalchemy.sql.dml import Update

from .database import Database
from .file_store import RESERVED_SHARE, DatabaseFull
from .tables import idempotency_keys as keys

MAX_TENANT_ANSWER_BYTES = 32 << 20
_PURGED_ROWS = 2000


class TooManyKeys(Exception):
    """The keys of a tenant that are kept are at their limit."""


class LostKey(Exception):
    """Another process took the key over: this transaction must be rolled back."""


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """The right to answer for a key, until the lease ends and another process takes it. `owner`: new for each claim."""

    tenant: str
    key: str
    owner: str


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """`fingerprint`: of the request that it answered."""

    fingerprint: str
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class KeyInProgress:
    """Another request holds the key. `left_s`: seconds until its lease ends, unless it is renewed."""

    left_s: float


class KeyStore:
    """Calls take a connection in a transaction: run them with `Database.call`."""

    def __init__(self, database: Database, most: int, keep_s: float, lease_s: float) -> None:
        self._database, self._most = database, most
        self._keep_s, self._lease_s = keep_s, lease_s

    def begin(self, connection: Connection, tenant: str, key: str) -> KeyClaim | KeyAnswer | KeyInProgress:
        """Claims a key. Where that is not possible, returns its recorded answer, or that a request is in progress.

        Raises:
            TooManyKeys: the tenant has as many keys as it may, or as many bytes of answers.
            DatabaseFull: the rest of the database is reserved for results.
        """
        self._database.lock(connection, tenant)
        own = (keys.c.tenant == tenant, keys.c.key == key)
        now_s = self._database.time(connection)
        row = connection.execute(select(keys).where(*own)).mappings().one_or_none()
        if row is not None and row["expires_at"] > now_s:
            if row["status"] is not None:
                return KeyAnswer(row["fingerprint"], row["status"], bytes(row["body"]))
            if row["lease_until"] > now_s:
                return KeyInProgress(row["lease_until"] - now_s)
        if row is None:
            self._check_room(connection, tenant)
        claim = KeyClaim(tenant, key, uuid.uuid4().hex)
        connection.execute(delete(keys).where(*own))
        times = {"lease_until": now_s + self._lease_s, "expires_at": now_s + self._keep_s}
        connection.execute(keys.insert().values(tenant=tenant, key=key, owner=claim.owner, **times))
        return claim

    def record(self, connection: Connection, claim: KeyClaim, answer: KeyAnswer) -> None:
        """Records the answer of a key, in the same transaction as the effect of the request.

        Raises:
            LostKey: the claim has ended; the transaction must not be committed.
        """
        named = {name: getattr(answer, name) for name in ("fingerprint", "status", "body")}
        values = named | {"expires_at": self._database.now + self._keep_s}
        if connection.execute(_open(claim).values(values)).rowcount != 1:
            raise LostKey

    def renew(self, connection: Connection, claim: KeyClaim) -> None:
        now = self._database.now
        values = {"lease_until": now + self._lease_s, "expires_at": now + self._keep_s}
        connection.execute(_open(claim).values(values))

    def release(self, connection: Connection, claim: KeyClaim) -> None:
        """Frees a key whose request had no effect. A key that has an answer keeps it."""
        own = (keys.c.tenant == claim.tenant, keys.c.key == claim.key, keys.c.owner == claim.owner)
        connection.execute(delete(keys).where(*own, keys.c.status.is_(None)))

    def purge(self, connection: Connection) -> int:
        """Deletes some keys whose retention is over; returns how many, 0 when none is left."""
        ends = select(keys.c.expires_at).where(keys.c.expires_at <= self._database.now)
        old = connection.execute(ends.order_by(keys.c.expires_at).limit(_PURGED_ROWS)).scalars().all()
        if old:
            connection.execute(delete(keys).where(keys.c.expires_at <= old[-1]))
        return len(old)

    def _check_room(self, connection: Connection, tenant: str) -> None:
        size = func.coalesce(func.sum(func.length(keys.c.body)), 0)
        count, stored = connection.execute(select(func.count(), size).where(keys.c.tenant == tenant)).one()
        if count >= self._most or stored >= MAX_TENANT_ANSWER_BYTES:
            raise TooManyKeys
        if not self._database.free_bytes(connection, RESERVED_SHARE):
            raise DatabaseFull


def _open(claim: KeyClaim) -> Update:
    """An update of a claim's row, if the claim still holds the key without an answer."""
    own = (keys.c.tenant == claim.tenant, keys.c.key == claim.key, keys.c.owner == claim.owner)
    return update(keys).where(*own, keys.c.status.is_(None))
