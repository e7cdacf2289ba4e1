"""How much the conversations of each tenant take, in one row that is written last in a transaction."""

from dataclasses import dataclass

from sqlalchemy import Connection, case, select

from .database import Database
from .file_store import RESERVED_SHARE
from .tables import conversation_usage as usage

# Of rows without their contents, with their part of the indexes.
CONVERSATION_BYTES, RESPONSE_BYTES, ITEM_BYTES = 512, 512, 256


class ConversationsFull(Exception):
    """The conversations of a tenant, or the database, are at their limit. `what`: the limit, as a sentence has it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclass(frozen=True, slots=True)
class ConversationLimits:
    """Most that one tenant may store, and most items of one conversation. `bytes`: with those of the rows."""

    conversations: int
    items: int
    bytes: int
    conversation_items: int
    context_bytes: int


@dataclass(slots=True)
class Change:
    """What a transaction adds; negative: what it deletes."""

    conversations: int = 0
    items: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.conversations or self.items or self.bytes)


class ConversationUsage:
    def __init__(self, database: Database, limits: ConversationLimits) -> None:
        self._database, self._limits = database, limits

    def check(self, connection: Connection, tenant: str, change: Change) -> None:
        """Checks a change that adds something. The tenant must be locked (`Database.lock`).

        Raises:
            ConversationsFull: with the change the tenant would have more than it may, or the database has no room.
        """
        row = connection.execute(select(usage).where(usage.c.tenant == tenant)).mappings().one_or_none()
        for name in ("conversations", "items", "bytes"):
            limit, stored = getattr(self._limits, name), int(row[name]) if row else 0
            if getattr(change, name) > 0 and stored + getattr(change, name) > limit:
                raise ConversationsFull(f"{limit} {'bytes of conversations' if name == 'bytes' else name}")
        free_bytes = self._database.free_bytes(connection, RESERVED_SHARE)
        if change.bytes > free_bytes or (tenant and row and int(row["bytes"]) > free_bytes):
            # A tenant may fill as much as it leaves free, so that there is room for the first one of another.
            raise ConversationsFull("its share of the database")

    def add(self, connection: Connection, tenant: str, change: Change) -> None:
        if not change:
            return
        values = {name: getattr(change, name) for name in ("conversations", "items", "bytes")}
        added = self._database.insert(usage).values(tenant=tenant, **{k: max(0, v) for k, v in values.items()})
        sums = {name: usage.c[name] + value for name, value in values.items()}
        positive = {name: case((total > 0, total), else_=0) for name, total in sums.items()}
        connection.execute(added.on_conflict_do_update(index_elements=[usage.c.tenant], set_=positive))
