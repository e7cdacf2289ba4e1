"""Reads and writes of conversations, chains of responses, and their items.

A conversation is one that a client made, or a chain: all responses that lead to one first response by their
`previous_response_id`. The items of both are rows with a number, which orders them: an item of a later turn has a
higher one. Contents are sealed where there are keys; each is bound to its row.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import Connection, case, delete, func, or_, select, update

from slipway_contracts.conversations import Context, ContextQuery, ConversationTurn
from slipway_process import response_items
from slipway_process.sealing import OVERHEAD_BYTES, Keyring, UnreadableSeal

from .conversation_usage import (
    CONVERSATION_BYTES,
    ITEM_BYTES,
    RESPONSE_BYTES,
    Change,
    ConversationLimits,
    ConversationsFull,
    ConversationUsage,
)
from .database import Database
from .tables import conversation_items as items
from .tables import conversation_responses as responses
from .tables import conversation_usage as usage
from .tables import conversations

CONVERSATION, CHAIN = "conversation", "chain"
INPUT, OUTPUT, ADDED = "input", "output", "added"  # parts: of a response, or items that a client added
MAX_TURNS = 4096  # of one chain
_PURGED = 50  # conversations in one transaction
_PARAMETERS = 500  # in one IN

Row = Mapping[str, Any]


class NotStored(Exception):
    """There is no such object of this tenant. `kind`: response, conversation or item."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name}")
        self.kind, self.name = kind, name


class ContextTooLong(Exception):
    """The items of a context have more bytes than are read at once."""


class OfConversation(Exception):
    """A response that belongs to a conversation cannot be continued as a chain."""


class OtherResponse(Exception):
    """Another response of the tenant is stored by the same id."""


@dataclass(frozen=True, slots=True)
class StoredItem:
    """`data`: in the form of `response_items`."""

    id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`data`: OpenAI's object without `output`."""

    id: str
    data: bytes
    output: list[StoredItem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """`metadata`: JSON."""

    id: str
    created_at: float
    metadata: bytes


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Items in their order. `more`: whether others follow."""

    items: list[StoredItem]
    more: bool = False


class ConversationStore:
    """Calls take a connection in a transaction: run them with `Database.call`. Each checks the tenant of each row.

    Those that read contents raise `sealing.UnreadableSeal` where a key is lost.
    """

    def __init__(
        self, database: Database, limits: ConversationLimits, keyring: Keyring, *, keep_s: float, idle_s: float
    ) -> None:
        """`keep_s`: seconds after which a conversation is deleted; `idle_s`: those after its last change."""
        self._database, self._limits, self._keyring = database, limits, keyring
        self._usage = ConversationUsage(database, limits)
        self._keep_s, self._idle_s = keep_s, idle_s

    # -- turns

    def context(self, connection: Connection, tenant: str, query: ContextQuery) -> Context:
        """The items before a turn.

        Raises:
            NotStored: a response of the chain, or the conversation, is not there.
            OfConversation: the response belongs to a conversation.
            ContextTooLong: they have more bytes than the query wants, and it truncates nothing.
            ConversationsFull: a conversation has no room for the turn.
        """
        if query.conversation:
            row = self._live(connection, tenant, query.conversation, CONVERSATION)
            if row["items"] >= self._limits.conversation_items:
                raise ConversationsFull(f"{self._limits.conversation_items} items of one conversation")
            self._usage.check(connection, tenant, Change(items=2, bytes=2 * ITEM_BYTES))
            which: list[Any] = [items.c.conversation_id == row["id"]]
            if repeated := self._attempts(connection, tenant, row["id"], query.without, query.key):
                # A turn that was stored, whose client did not see its end and sends it again.
                which.append(or_(items.c.response_id.is_(None), items.c.response_id.not_in(repeated)))
            found, dropped = self._newest(connection, tenant, which, query)
            return Context(found, dropped, row["model"], row["revision"])
        last = self._response(connection, tenant, query.previous_response_id)
        row = self._live(connection, tenant, last["conversation_id"])
        if row["kind"] != CHAIN:
            raise OfConversation(row["id"])
        chain = self._chain(connection, tenant, query.previous_response_id)
        which = [items.c.conversation_id == row["id"], items.c.response_id.in_(chain)]
        found, dropped = self._newest(connection, tenant, which, query)
        return Context(found, dropped, last["model"], last["revision"])

    def store(self, connection: Connection, tenant: str, turn: ConversationTurn) -> int:
        """Stores a turn, if it is not there yet; returns the bytes that it added.

        Raises:
            OtherResponse: another one is stored by this id.
            NotStored: the conversation, or the response before it, is gone.
            OfConversation, ConversationsFull: as in `context`.
        """
        self._database.lock(connection, tenant)
        own = (responses.c.tenant == tenant, responses.c.id == turn.id)
        before = connection.execute(select(responses).where(*own)).mappings().one_or_none()
        if before is not None:
            self._check_same(connection, tenant, dict(before), turn)
            return 0
        now_s = self._database.time(connection)
        row, added = self._conversation_of(connection, tenant, turn, now_s)
        replaced = self._attempts(connection, tenant, row["id"], "", turn.key) if turn.conversation else []
        for response_id in replaced:
            self._delete_response(connection, tenant, response_id, with_items=True)
        data = self._keyring.seal(bytes(turn.response), _about(responses.name, tenant, turn.id))
        listed = [(INPUT, bytes(item)) for item in turn.input] + [(OUTPUT, bytes(item)) for item in turn.output]
        change = Change(added, len(listed), RESPONSE_BYTES + len(data) + added * CONVERSATION_BYTES)
        change.bytes += sum(self._row_bytes(item) for _, item in listed)
        self._check(connection, tenant, row, change)
        previous = turn.previous_response_id or None
        named = {"previous_id": previous, "turn_key": turn.key or None, "model": turn.model, "revision": turn.revision}
        about = {"tenant": tenant, "id": turn.id, "conversation_id": row["id"], "created_at": now_s}
        connection.execute(responses.insert(), about | named | {"data": data})
        self._add_items(connection, tenant, row, listed, turn.id)
        latest = {"model": turn.model, "revision": turn.revision}
        self._changed(connection, tenant, row["id"], change, now_s, latest)
        return change.bytes

    # -- responses

    def response(self, connection: Connection, tenant: str, response_id: str) -> StoredResponse:
        """Raises NotStored."""
        row = self._response(connection, tenant, response_id)
        self._live(connection, tenant, row["conversation_id"])
        data = self._keyring.open(bytes(row["data"]), _about(responses.name, tenant, response_id))
        own = (items.c.tenant == tenant, items.c.response_id == response_id, items.c.part == OUTPUT)
        return StoredResponse(response_id, data, self._read(connection, tenant, select(items).where(*own)))

    def input_items(
        self, connection: Connection, tenant: str, response_id: str, limit: int, after: str, *, ascends: bool
    ) -> ItemPage:
        """Items that came with the request of a response. Raises NotStored."""
        row = self._response(connection, tenant, response_id)
        self._live(connection, tenant, row["conversation_id"])
        own = (items.c.response_id == response_id, items.c.part == INPUT)
        return self._page(connection, tenant, row["conversation_id"], own, limit, after, ascends=ascends)

    def delete_response(self, connection: Connection, tenant: str, response_id: str) -> None:
        """Deletes a response: with its items where it is part of a chain. Raises NotStored.

        Items of a conversation stay, as OpenAI has it, until they or the conversation are deleted.
        """
        self._database.lock(connection, tenant)
        row = self._response(connection, tenant, response_id)
        kind = self._live(connection, tenant, row["conversation_id"])["kind"]
        self._delete_response(connection, tenant, response_id, with_items=kind == CHAIN)
        own = (responses.c.tenant == tenant, responses.c.conversation_id == row["conversation_id"])
        if kind == CHAIN and connection.execute(select(responses.c.id).where(*own).limit(1)).first() is None:
            self._delete(connection, tenant, [row["conversation_id"]])

    # -- conversations

    def create(
        self, connection: Connection, tenant: str, name: str, metadata: bytes, given: Sequence[bytes]
    ) -> StoredConversation:
        """Raises ConversationsFull."""
        self._database.lock(connection, tenant)
        now_s = self._database.time(connection)
        row = self._new_row(connection, tenant, name, CONVERSATION, metadata, now_s)
        size = CONVERSATION_BYTES + len(metadata) + sum(map(self._row_bytes, given))
        change = Change(1, len(given), size)
        self._check(connection, tenant, row, change)
        self._add_items(connection, tenant, row, [(ADDED, item) for item in given], None)
        self._changed(connection, tenant, name, change, now_s)
        return StoredConversation(name, now_s, metadata)

    def conversation(self, connection: Connection, tenant: str, name: str) -> StoredConversation:
        """Raises NotStored."""
        row = self._live(connection, tenant, name, CONVERSATION)
        metadata = self._keyring.open(bytes(row["metadata"]), _about(conversations.name, tenant, name))
        return StoredConversation(name, row["created_at"], metadata)

    def update(self, connection: Connection, tenant: str, name: str, metadata: bytes) -> StoredConversation:
        """Replaces the metadata. Raises NotStored, ConversationsFull."""
        self._database.lock(connection, tenant)
        row = self._live(connection, tenant, name, CONVERSATION)
        sealed = self._keyring.seal(metadata, _about(conversations.name, tenant, name))
        change = Change(bytes=len(sealed) - len(bytes(row["metadata"])))
        if change.bytes > 0:
            self._usage.check(connection, tenant, change)
        self._changed(connection, tenant, name, change, self._database.time(connection), {"metadata": sealed})
        return StoredConversation(name, row["created_at"], metadata)

    def delete(self, connection: Connection, tenant: str, name: str) -> None:
        """Deletes a conversation with its items and responses. Raises NotStored."""
        self._database.lock(connection, tenant)
        self._live(connection, tenant, name, CONVERSATION)
        self._delete(connection, tenant, [name])

    # -- items of conversations

    def add(self, connection: Connection, tenant: str, name: str, given: Sequence[bytes]) -> list[StoredItem]:
        """Adds items to a conversation, at its end. Raises NotStored, ConversationsFull."""
        self._database.lock(connection, tenant)
        row = self._live(connection, tenant, name, CONVERSATION)
        change = Change(items=len(given), bytes=sum(map(self._row_bytes, given)))
        self._check(connection, tenant, row, change)
        added = self._add_items(connection, tenant, row, [(ADDED, item) for item in given], None)
        self._changed(connection, tenant, name, change, self._database.time(connection))
        return added

    def listed(
        self, connection: Connection, tenant: str, name: str, limit: int, after: str, *, ascends: bool
    ) -> ItemPage:
        """Items of a conversation, behind the one with the id `after`. Raises NotStored."""
        self._live(connection, tenant, name, CONVERSATION)
        return self._page(connection, tenant, name, (), limit, after, ascends=ascends)

    def item(self, connection: Connection, tenant: str, name: str, item_id: str) -> StoredItem:
        """Raises NotStored."""
        self._live(connection, tenant, name, CONVERSATION)
        found = self._read(connection, tenant, select(items).where(*_own_item(tenant, name, item_id)).limit(1))
        if not found:
            raise NotStored("item", item_id)
        return found[0]

    def delete_item(self, connection: Connection, tenant: str, name: str, item_id: str) -> StoredConversation:
        """The conversation without the item; without metadata where the key of that is lost. Raises NotStored."""
        self._database.lock(connection, tenant)
        row = self._live(connection, tenant, name, CONVERSATION)
        removed = self._delete_items(connection, *_own_item(tenant, name, item_id))
        if not removed:
            raise NotStored("item", item_id)
        self._changed(connection, tenant, name, removed, self._database.time(connection))
        try:
            return self.conversation(connection, tenant, name)
        except UnreadableSeal:
            # An error would undo the deletion.
            return StoredConversation(name, row["created_at"], b"")

    # -- erasure

    def purge(self, connection: Connection) -> int:
        """Deletes some conversations whose time is over; returns how many, 0 when none is left."""
        late = select(conversations.c.tenant, conversations.c.id).where(
            conversations.c.expires_at <= self._database.now
        )
        found = connection.execute(late.order_by(conversations.c.tenant).limit(_PURGED)).all()
        for tenant in sorted({row.tenant for row in found}):
            # In the order of all writers, which take the lock of one tenant and then its rows.
            self._database.lock(connection, tenant)
            names = [row.id for row in found if row.tenant == tenant]
            # A turn that began before the end of a conversation's time may have extended it until the lock was free.
            still = late.where(conversations.c.tenant == tenant, conversations.c.id.in_(names))
            self._delete(connection, tenant, [row.id for row in connection.execute(still)])
        return len(found)

    def erase(self, connection: Connection, tenant: str) -> int:
        """Deletes some conversations of a tenant; returns how many, 0 when none is left."""
        self._database.lock(connection, tenant)
        own = select(conversations.c.id).where(conversations.c.tenant == tenant).limit(_PURGED)
        found = list(connection.execute(own).scalars())
        self._delete(connection, tenant, found)
        if not found:
            connection.execute(delete(usage).where(usage.c.tenant == tenant))
        return len(found)

    # -- rows

    def _response(self, connection: Connection, tenant: str, response_id: str) -> Row:
        own = (responses.c.tenant == tenant, responses.c.id == response_id)
        row = connection.execute(select(responses).where(*own)).mappings().one_or_none()
        if row is None:
            raise NotStored("response", response_id)
        return dict(row)

    def _live(self, connection: Connection, tenant: str, name: str, kind: str = "") -> Row:
        """The row of a conversation that has not expired. Raises NotStored."""
        own = [conversations.c.tenant == tenant, conversations.c.id == name]
        own.append(conversations.c.expires_at > self._database.now)
        row = connection.execute(select(conversations).where(*own)).mappings().one_or_none()
        if row is None or (kind and row["kind"] != kind):
            raise NotStored("conversation", name)
        return dict(row)

    def _chain(self, connection: Connection, tenant: str, last_id: str) -> list[str]:
        """The ids of a chain up to a response. Raises NotStored: one of them was deleted; ContextTooLong: too many."""
        own = responses.alias()
        chain = select(responses.c.id, responses.c.previous_id).where(
            responses.c.tenant == tenant, responses.c.id == last_id
        )
        walked = chain.cte("walked", recursive=True)
        before = select(own.c.id, own.c.previous_id).where(own.c.tenant == tenant, own.c.id == walked.c.previous_id)
        # Without what is there twice: an engine that repeats the id of a deleted response may have made a circle.
        walked = walked.union(before)
        found = connection.execute(select(walked.c.id, walked.c.previous_id).limit(MAX_TURNS + 1)).all()
        if len(found) > MAX_TURNS:
            raise ContextTooLong
        links = {row.id: row.previous_id for row in found}
        missing = [previous for previous in links.values() if previous is not None and previous not in links]
        if missing:
            raise NotStored("response", missing[0])
        return list(links)

    def _attempts(self, connection: Connection, tenant: str, name: str, without: str, key: str) -> list[str]:
        """Responses of a conversation that are earlier attempts of one request."""
        if not (without or key):
            return []
        same = [responses.c.id == without] if without else []
        same += [responses.c.turn_key == key] if key else []
        own = (responses.c.tenant == tenant, responses.c.conversation_id == name, or_(*same))
        return list(connection.execute(select(responses.c.id).where(*own)).scalars())

    def _newest(
        self, connection: Connection, tenant: str, which: Sequence[Any], query: ContextQuery
    ) -> tuple[list[msgspec.Raw], int]:
        """The newest items that fit, whole turns of them, and how many older ones do not. Raises ContextTooLong."""
        most = min(query.max_bytes, self._limits.context_bytes)
        sizes = connection.execute(select(items.c.n, items.c.bytes).where(items.c.tenant == tenant, *which)).all()
        first, total, dropped = -1, 0, 0
        for n, size in sorted(sizes, reverse=True):
            total += size
            if total > most:
                first, dropped = n, sum(1 for other, _ in sizes if other <= n)
                break
        if dropped and not query.truncates:
            raise ContextTooLong
        rows = self._read(connection, tenant, select(items).where(*which, items.c.n > first))
        listed = [row.data for row in rows]
        begin = response_items.turn_begin(listed) if dropped else 0
        return [msgspec.Raw(item) for item in listed[begin:]], dropped + begin

    def _read(self, connection: Connection, tenant: str, query: Any) -> list[StoredItem]:
        rows = connection.execute(query.where(items.c.tenant == tenant).order_by(items.c.n)).mappings()
        return [self._opened(row) for row in rows]

    def _opened(self, row: Any) -> StoredItem:
        about = _about(items.name, row["tenant"], f"{row['conversation_id']}/{row['n']}")
        return StoredItem(row["id"], self._keyring.open(bytes(row["data"]), about))

    def _page(
        self,
        connection: Connection,
        tenant: str,
        name: str,
        which: Sequence[Any],
        limit: int,
        after: str,
        *,
        ascends: bool,
    ) -> ItemPage:
        query = select(items).where(items.c.tenant == tenant, items.c.conversation_id == name, *which)
        if after:
            place = select(func.min(items.c.n)).where(*_own_item(tenant, name, after), *which)
            if (n := connection.execute(place).scalar()) is None:
                raise NotStored("item", after)
            query = query.where(items.c.n > n if ascends else items.c.n < n)
        query = query.order_by(items.c.n if ascends else items.c.n.desc()).limit(limit + 1)
        rows = [dict(row) for row in connection.execute(query).mappings()]
        return ItemPage([self._opened(row) for row in rows[:limit]], len(rows) > limit)

    def _conversation_of(
        self, connection: Connection, tenant: str, turn: ConversationTurn, now_s: float
    ) -> tuple[dict[str, Any], int]:
        """The row of the conversation that a turn belongs to, and 1 where it is new."""
        if turn.conversation:
            return dict(self._live(connection, tenant, turn.conversation, CONVERSATION)), 0
        if not turn.previous_response_id:
            return self._new_row(connection, tenant, turn.id, CHAIN, b"", now_s), 1
        previous = self._response(connection, tenant, turn.previous_response_id)
        row = self._live(connection, tenant, previous["conversation_id"])
        if row["kind"] != CHAIN:
            raise OfConversation(row["id"])
        return dict(row), 0

    def _new_row(
        self, connection: Connection, tenant: str, name: str, kind: str, metadata: bytes, now_s: float
    ) -> dict[str, Any]:
        """Adds an empty conversation. One of this id that has expired makes room for it.

        Raises:
            OtherResponse: there is one, such as a chain whose first response was deleted and whose id comes again.
        """
        own = (conversations.c.tenant == tenant, conversations.c.id == name)
        former = connection.execute(select(conversations.c.expires_at).where(*own)).scalar()
        if former is not None:
            if former > now_s:
                raise OtherResponse
            self._delete(connection, tenant, [name])
        sealed = self._keyring.seal(metadata, _about(conversations.name, tenant, name)) if metadata else b""
        row: dict[str, Any] = {"tenant": tenant, "id": name, "kind": kind, "metadata": sealed}
        row |= {"model": "", "revision": "", "next_n": 0, "items": 0, "bytes": 0}
        row |= {"created_at": now_s, "expires_at": now_s + min(self._keep_s, self._idle_s)}
        connection.execute(conversations.insert(), row)
        return row

    def _check(self, connection: Connection, tenant: str, row: Mapping[str, Any], change: Change) -> None:
        if row["items"] + change.items > self._limits.conversation_items:
            raise ConversationsFull(f"{self._limits.conversation_items} items of one conversation")
        self._usage.check(connection, tenant, change)

    def _check_same(self, connection: Connection, tenant: str, before: Row, turn: ConversationTurn) -> None:
        """Raises OtherResponse."""
        data = self._keyring.open(bytes(before["data"]), _about(responses.name, tenant, turn.id))
        own = (items.c.response_id == turn.id, items.c.part.in_((INPUT, OUTPUT)))
        stored = [item.data for item in self._read(connection, tenant, select(items).where(*own))]
        if data != bytes(turn.response) or stored != [bytes(item) for item in (*turn.input, *turn.output)]:
            raise OtherResponse

    def _row_bytes(self, item: bytes) -> int:
        return ITEM_BYTES + len(item) + (OVERHEAD_BYTES if self._keyring.is_on else 0)

    def _add_items(
        self,
        connection: Connection,
        tenant: str,
        row: Mapping[str, Any],
        listed: Sequence[tuple[str, bytes]],
        response_id: str | None,
    ) -> list[StoredItem]:
        name, first, added, rows = row["id"], int(row["next_n"]), list[StoredItem](), list[dict[str, Any]]()
        owner = (response_id or name).rpartition("_")[2][-32:]
        ids = [
            response_items.item_id(item) or response_items.new_item_id(item, owner, n)
            for n, (_, item) in enumerate(listed, first)
        ]
        taken = self._taken(connection, tenant, name, ids) if row["kind"] == CONVERSATION else set()
        for n, (item_id, (part, item)) in enumerate(zip(ids, listed, strict=True), first):
            if item_id in taken:
                # Pages and deletions name an item by its id alone.
                item_id = response_items.new_item_id(item, os.urandom(16).hex(), n)
            taken.add(item_id)
            sealed = self._keyring.seal(item, _about(items.name, tenant, f"{name}/{n}"))
            added.append(StoredItem(item_id, item))
            own = {"tenant": tenant, "conversation_id": name, "n": n, "id": item_id, "response_id": response_id}
            rows.append(own | {"part": part, "bytes": len(item), "data": sealed})
        if rows:
            self._database.add(connection, items, rows)
        return added

    def _taken(self, connection: Connection, tenant: str, name: str, ids: Sequence[str]) -> set[str]:
        """Those of the ids that items of a conversation have."""
        taken = set[str]()
        for begin in range(0, len(ids), _PARAMETERS):
            some = items.c.id.in_(ids[begin : begin + _PARAMETERS])
            own = (items.c.tenant == tenant, items.c.conversation_id == name, some)
            taken.update(connection.execute(select(items.c.id).where(*own)).scalars())
        return taken

    def _changed(
        self,
        connection: Connection,
        tenant: str,
        name: str,
        change: Change,
        now_s: float,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """Counts a change of a conversation, whose idle time begins again. Items that it adds have the next numbers."""
        own = (conversations.c.tenant == tenant, conversations.c.id == name)
        keep_until, idle_until = conversations.c.created_at + self._keep_s, now_s + self._idle_s
        changed = {"items": conversations.c["items"] + change.items, "bytes": conversations.c.bytes + change.bytes}
        changed["next_n"] = conversations.c.next_n + max(0, change.items)
        changed["expires_at"] = case((keep_until < idle_until, keep_until), else_=idle_until)
        connection.execute(update(conversations).where(*own).values(changed | dict(values or {})))
        self._usage.add(connection, tenant, change)

    # -- deletion

    def _delete_response(self, connection: Connection, tenant: str, response_id: str, *, with_items: bool) -> None:
        own = (responses.c.tenant == tenant, responses.c.id == response_id)
        row = connection.execute(
            delete(responses).where(*own).returning(responses.c.conversation_id, func.length(responses.c.data))
        ).one()
        change = Change(bytes=-(RESPONSE_BYTES + row[1]))
        if with_items:
            removed = self._delete_items(connection, items.c.tenant == tenant, items.c.response_id == response_id)
            change.items, change.bytes = removed.items, change.bytes + removed.bytes
        name = (conversations.c.tenant == tenant, conversations.c.id == row[0])
        sums = {"items": conversations.c["items"] + change.items, "bytes": conversations.c.bytes + change.bytes}
        connection.execute(update(conversations).where(*name).values(sums))
        self._usage.add(connection, tenant, change)

    def _delete_items(self, connection: Connection, *which: Any) -> Change:
        """Deletes items; returns the change."""
        gone = connection.execute(delete(items).where(*which).returning(func.length(items.c.data))).scalars().all()
        return Change(items=-len(gone), bytes=-sum(ITEM_BYTES + size for size in gone))

    def _delete(self, connection: Connection, tenant: str, names: Sequence[str]) -> None:
        """Deletes conversations with all that belongs to them."""
        for begin in range(0, len(names), _PARAMETERS):
            some = names[begin : begin + _PARAMETERS]
            which = (conversations.c.tenant == tenant, conversations.c.id.in_(some))
            sums = select(func.count(), func.sum(conversations.c["items"]), func.sum(conversations.c.bytes)).where(
                *which
            )
            count, item_count, size = connection.execute(sums).one()
            connection.execute(delete(items).where(items.c.tenant == tenant, items.c.conversation_id.in_(some)))
            own = (responses.c.tenant == tenant, responses.c.conversation_id.in_(some))
            connection.execute(delete(responses).where(*own))
            connection.execute(delete(conversations).where(*which))
            change = Change(-int(count), -int(item_count or 0), -int(size or 0))
            self._usage.add(connection, tenant, change)


def _own_item(tenant: str, name: str, item_id: str) -> tuple[Any, ...]:
    return items.c.tenant == tenant, items.c.conversation_id == name, items.c.id == item_id


def _about(table: str, tenant: str, row_id: str) -> str:
    """What a sealed value is bound to."""
    return f"{table}\0{tenant}\0{row_id}"
