"""Conversations in both databases: contexts, repeated writes, tenants, bounds, erasure, sealed contents."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from sqlalchemy import create_engine, func, select, text, update

from slipway_contracts.conversations import Context, ContextQuery, ConversationTurn
from slipway_jobs.erase import erase
from slipway_jobs.store import conversation_store
from slipway_jobs.store.conversation_store import (
    ContextTooLong,
    ConversationStore,
    NotStored,
    OfConversation,
    OtherResponse,
)
from slipway_jobs.store.conversation_usage import ConversationLimits, ConversationsFull
from slipway_jobs.store.database import Database
from slipway_jobs.store.tables import conversation_items, conversation_responses, conversation_usage, conversations
from slipway_process import response_items
from slipway_process.database_urls import parse_url
from slipway_process.sealing import Keyring, SealingKeyLost
from tests.process.test_sealing import keys_file

LIMITS = ConversationLimits(100, 1000, 1 << 20, 50, 1 << 16)
TABLES = (conversations, conversation_items, conversation_responses)


class Store:
    """Calls of the store, each in a transaction of its own."""

    def __init__(self, database: Database, store: ConversationStore) -> None:
        self.database, self.store = database, store

    async def __call__(self, name: str, *given: Any, **named: Any) -> Any:
        return await self.database.call(getattr(self.store, name), *given, **named)

    async def turn(self, tenant: str, response_id: str, question: str, answer: str, **named: str) -> int:
        added: int = await self("store", tenant, turn(response_id, question, answer, **named))
        return added

    async def context(self, tenant: str, **query: Any) -> Context:
        found: Context = await self("context", tenant, ContextQuery(**({"max_bytes": 1 << 20} | query)))
        return found

    async def texts(self, tenant: str, **query: Any) -> list[str]:
        """The texts of a context."""
        return [json.loads(bytes(item))["content"][0]["text"] for item in (await self.context(tenant, **query)).items]

    async def usage(self, tenant: str) -> tuple[int, ...]:
        query = select(conversation_usage).where(conversation_usage.c.tenant == tenant)
        row = await self.database.call(lambda connection: connection.execute(query).one_or_none())
        return tuple(row[1:]) if row else (0, 0, 0)

    async def rows(self) -> list[int]:
        def count(connection: Any) -> list[int]:
            return [connection.execute(select(func.count()).select_from(table)).scalar_one() for table in TABLES]

        return await self.database.call(count)


def message(role: str, question: str) -> bytes:
    return response_items.stored_item(json.dumps({"role": role, "content": question}).encode(), "input")


def turn(response_id: str, question: str, answer: str, **named: str) -> ConversationTurn:
    response = Raw(json.dumps({"id": response_id, "object": "response", "store": True}).encode())
    given, written = [Raw(message("user", question))], [Raw(message("assistant", answer))]
    return ConversationTurn(
        response_id, response, given, written, **({"model": "default/chat", "revision": "r1"} | named)
    )


@contextlib.asynccontextmanager
async def opened(
    url: str, keyring: Keyring | None = None, limits: ConversationLimits = LIMITS, **times: float
) -> AsyncIterator[Store]:
    database = Database(url, erases=True)
    seconds = {"keep_s": 1000.0, "idle_s": 100.0} | times
    try:
        yield Store(database, ConversationStore(database, limits, keyring or Keyring(""), **seconds))
    finally:
        database.close()


async def test_a_chain_has_the_items_of_its_responses_in_order_and_branches(url: str) -> None:
    async with opened(url) as store:
        await store.turn("t", "resp_1", "one", "ONE")
        await store.turn("t", "resp_2", "two", "TWO", previous_response_id="resp_1")
        await store.turn("t", "resp_b", "bee", "BEE", previous_response_id="resp_1", revision="r2")
        await store.turn("t", "resp_3", "three", "THREE", previous_response_id="resp_2")
        assert await store.texts("t", previous_response_id="resp_3") == ["one", "ONE", "two", "TWO", "three", "THREE"]
        assert await store.texts("t", previous_response_id="resp_b") == ["one", "ONE", "bee", "BEE"]
        context = await store.context("t", previous_response_id="resp_b")
        assert (context.model, context.revision) == ("default/chat", "r2")
        # The same bytes in each later turn: the beginning of the longer context is the shorter one.
        longer = await store.context("t", previous_response_id="resp_3")
        shorter = await store.context("t", previous_response_id="resp_2")
        assert list(map(bytes, longer.items))[:4] == list(map(bytes, shorter.items))
        await store("delete_response", "t", "resp_2")
        with pytest.raises(NotStored, match="resp_2"):
            await store.context("t", previous_response_id="resp_3")
        for name in ("resp_1", "resp_b", "resp_3"):
            await store("delete_response", "t", name)
        assert await store.rows() == [0, 0, 0]
        assert await store.usage("t") == (0, 0, 0)


async def test_a_turn_that_is_written_again_is_stored_once(url: str) -> None:
    async with opened(url) as store:
        assert await store.turn("t", "resp_1", "one", "ONE") > 0
        before = await store.usage("t")
        assert await store.turn("t", "resp_1", "one", "ONE") == 0
        assert await store.usage("t") == before
        with pytest.raises(OtherResponse):
            await store.turn("t", "resp_1", "one", "another answer")
        # Another tenant's engine may use the same id.
        assert await store.turn("u", "resp_1", "mine", "MINE") > 0
        assert await store.texts("t", previous_response_id="resp_1") == ["one", "ONE"]


async def test_a_request_that_is_sent_again_takes_the_place_of_its_earlier_attempt(url: str) -> None:
    async with opened(url) as store:
        await store("create", "t", "conv_1", b"{}", [])
        await store.turn("t", "resp_1", "one", "ONE", conversation="conv_1")
        await store.turn("t", "resp_2", "two", "lost", conversation="conv_1", key="k")
        assert await store.texts("t", conversation="conv_1", key="k") == ["one", "ONE"]
        assert await store.texts("t", conversation="conv_1", without="resp_2") == ["one", "ONE"]
        await store.turn("t", "resp_3", "two", "TWO", conversation="conv_1", key="k")
        assert await store.texts("t", conversation="conv_1") == ["one", "ONE", "two", "TWO"]
        with pytest.raises(NotStored):
            await store("response", "t", "resp_2")


async def test_writers_of_one_conversation_keep_each_item_once(url: str) -> None:
    async with opened(url) as store:
        await store("create", "t", "conv_1", b"{}", [])
        await asyncio.gather(
            *(store.turn("t", f"resp_{n}", f"q{n}", f"a{n}", conversation="conv_1") for n in range(10)),
            *(store.turn("t", f"resp_{n}", f"q{n}", f"a{n}", conversation="conv_1") for n in range(10)),
        )
        texts = await store.texts("t", conversation="conv_1")
        assert sorted(texts) == sorted([f"{kind}{n}" for n in range(10) for kind in "qa"])
        # Questions are beside their answers.
        assert all(texts[place][1:] == texts[place + 1][1:] for place in range(0, 20, 2))


async def test_another_tenant_finds_nothing(url: str) -> None:
    async with opened(url) as store:
        await store("create", "t", "conv_1", b"{}", [message("user", "hi")])
        await store.turn("t", "resp_1", "one", "ONE")
        [item] = (await store("listed", "t", "conv_1", 10, "", ascends=True)).items
        for call in (
            ("conversation", "u", "conv_1"),
            ("update", "u", "conv_1", b"{}"),
            ("delete", "u", "conv_1"),
            ("add", "u", "conv_1", [message("user", "x")]),
            ("item", "u", "conv_1", item.id),
            ("delete_item", "u", "conv_1", item.id),
            ("response", "u", "resp_1"),
            ("delete_response", "u", "resp_1"),
            ("store", "u", turn("resp_9", "a", "b", previous_response_id="resp_1")),
            ("store", "u", turn("resp_9", "a", "b", conversation="conv_1")),
        ):
            with pytest.raises(NotStored):
                await store(*call)
        for query in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}):
            with pytest.raises(NotStored):
                await store.context("u", **query)
        assert await store.usage("u") == (0, 0, 0)


async def test_items_are_paged_in_both_orders(url: str) -> None:
    async with opened(url) as store:
        await store("create", "t", "conv_1", b'{"a":"b"}', [message("user", f"m{n}") for n in range(5)])
        page = await store("listed", "t", "conv_1", 2, "", ascends=True)
        ids = [item.id for item in page.items]
        assert page.more
        rest = await store("listed", "t", "conv_1", 10, ids[-1], ascends=True)
        ids += [item.id for item in rest.items]
        assert len(set(ids)) == 5
        assert not rest.more
        page = await store("listed", "t", "conv_1", 2, ids[3], ascends=False)
        assert [item.id for item in page.items] == [ids[2], ids[1]]
        with pytest.raises(NotStored):
            await store("listed", "t", "conv_1", 2, "msg_none", ascends=True)
        left = await store("delete_item", "t", "conv_1", ids[0])
        assert left.metadata == b'{"a":"b"}'
        assert (await store.usage("t"))[1] == 4


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"conversations": 1}, "1 conversations"),
        ({"items": 3}, "3 items"),
        ({"bytes": 3000}, "3000 bytes"),
    ],
)
async def test_a_tenant_at_its_bounds_stores_no_more(url: str, changes: dict[str, int], what: str) -> None:
    limits = {name: getattr(LIMITS, name) for name in ConversationLimits.__slots__} | changes
    async with opened(url, limits=ConversationLimits(**limits)) as store:
        await store.turn("t", "resp_1", "one", "ONE")
        before = await store.rows()
        with pytest.raises(ConversationsFull, match=what):
            await store.turn("t", "resp_2", "x" * 2000, "TWO")
        assert await store.rows() == before
        await store.turn("u", "resp_1", "one", "ONE")
        await store("delete_response", "t", "resp_1")
        await store.turn("t", "resp_2", "two", "TWO")


async def test_a_conversation_and_a_context_are_bounded(url: str) -> None:
    async with opened(url) as store:
        await store("create", "t", "conv_1", b"{}", [message("user", "x" * 1000) for _ in range(50)])
        with pytest.raises(ConversationsFull, match="50 items of one"):
            await store.context("t", conversation="conv_1")
        await store.turn("t", "resp_1", "old", "x" * 3000)
        await store.turn("t", "resp_2", "new", "short", previous_response_id="resp_1")
        with pytest.raises(ContextTooLong):
            await store.context("t", previous_response_id="resp_2", max_bytes=1000)
        context = await store.context("t", previous_response_id="resp_2", max_bytes=1000, truncates=True)
        assert (len(context.items), context.dropped) == (2, 2)
        with pytest.raises(OfConversation):
            await store("create", "t", "conv_2", b"{}", [])
            await store.turn("t", "resp_3", "a", "b", conversation="conv_2")
            await store.context("t", previous_response_id="resp_3")


async def test_metadata_counts_within_the_bounds_of_its_tenant(url: str) -> None:
    limits = {name: getattr(LIMITS, name) for name in ConversationLimits.__slots__} | {"bytes": 3000}
    async with opened(url, limits=ConversationLimits(**limits)) as store:
        await store("create", "t", "conv_1", b"{}", [])
        with pytest.raises(ConversationsFull, match="3000 bytes"):
            await store("update", "t", "conv_1", b"x" * 3000)
        await store("update", "t", "conv_1", b"x" * 2000)
        await store("update", "t", "conv_1", b"{}")


async def test_an_id_that_an_engine_repeats_deletes_nothing(url: str) -> None:
    async with opened(url) as store:
        await store.turn("t", "resp_1", "one", "ONE")
        await store.turn("t", "resp_2", "two", "TWO", previous_response_id="resp_1")
        await store("create", "t", "conv_1", b"{}", [message("user", "hi")])
        await store("delete_response", "t", "resp_1")
        before = await store.rows()
        for repeated in ("resp_1", "conv_1"):
            with pytest.raises(OtherResponse):
                await store.turn("t", repeated, "three", "THREE")
        assert await store.rows() == before


async def test_items_of_one_id_are_each_on_one_page(url: str) -> None:
    same = response_items.stored_item(b'{"role": "user", "content": "hi", "id": "msg_1"}', "input")

    async def pages(call: str, name: str, *, ascends: bool) -> list[str]:
        ids: list[str] = []
        while len(ids) < 20:
            page = await store(call, "t", name, 1, ids[-1] if ids else "", ascends=ascends)
            ids += [item.id for item in page.items]
            if not page.more:
                break
        return ids

    async with opened(url) as store:
        await store("create", "t", "conv_1", b"{}", [same, message("user", "a"), same])
        await store("add", "t", "conv_1", [same, message("user", "b")])
        # In a chain clients send an item once more, as that of another response.
        repeating = turn("resp_1", "one", "ONE")
        repeating.input += [Raw(same), Raw(message("user", "c"))]
        await store("store", "t", repeating)
        repeating = turn("resp_2", "two", "TWO", previous_response_id="resp_1")
        repeating.input += [Raw(same), Raw(message("user", "d")), Raw(same)]
        await store("store", "t", repeating)
        for ascends in (True, False):
            ids = await pages("listed", "conv_1", ascends=ascends)
            assert (len(ids), len(set(ids))) == (5, 5)
            ids = await pages("input_items", "resp_2", ascends=ascends)
            assert (len(ids), len(set(ids))) == (4, 4)
        assert "msg_1" in ids


async def test_what_a_bound_leaves_of_a_context_begins_with_a_turn(url: str) -> None:
    async with opened(url) as store:
        await store.turn("t", "resp_1", "x" * 1000, "ONE")
        await store.turn("t", "resp_2", "two", "TWO", previous_response_id="resp_1")
        context = await store.context("t", previous_response_id="resp_2", max_bytes=500, truncates=True)
        texts = [json.loads(bytes(item))["content"][0]["text"] for item in context.items]
        assert (texts, context.dropped) == (["two", "TWO"], 2)


async def test_what_is_too_old_is_gone_at_once_and_deleted_by_the_purge(url: str) -> None:
    async with opened(url) as store:
        await store.turn("t", "resp_1", "one", "ONE")
        await store("create", "u", "conv_1", b"{}", [])
        past = update(conversations).values(expires_at=1.0).where(conversations.c.tenant == "t")
        await store.database.call(lambda connection: connection.execute(past))
        for call in (("response", "t", "resp_1"), ("delete_response", "t", "resp_1")):
            with pytest.raises(NotStored):
                await store(*call)
        assert await store("purge") == 1
        assert await store("purge") == 0
        assert await store.rows() == [1, 0, 0]
        assert await store.usage("t") == (0, 0, 0)


async def test_the_purge_leaves_what_a_turn_extends_while_it_waits_for_the_lock(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url) as store:
        await store.turn("t", "resp_1", "one", "ONE")
        await store.turn("t", "resp_2", "two", "TWO")
        past, lock = update(conversations).values(expires_at=1.0), store.database.lock
        await store.database.call(lambda connection: connection.execute(past))

        def locked_late(connection: Any, tenant: str) -> None:
            lock(connection, tenant)
            later = update(conversations).values(expires_at=1e12).where(conversations.c.id == "resp_1")
            connection.execute(later)

        monkeypatch.setattr(store.database, "lock", locked_late)
        await store("purge")
        assert await store.texts("t", previous_response_id="resp_1") == ["one", "ONE"]
        with pytest.raises(NotStored):
            await store.context("t", previous_response_id="resp_2")


async def test_a_turn_begins_the_idle_time_again_and_no_use_extends_the_retention(url: str) -> None:
    async with opened(url, keep_s=150.0) as store:
        await store.turn("t", "resp_1", "one", "ONE")
        query = select(conversations.c.created_at, conversations.c.expires_at)

        async def left() -> float:
            created, expires = await store.database.call(lambda connection: connection.execute(query).one())
            return float(expires - created)

        assert 99 < await left() < 101
        younger = update(conversations).values(created_at=conversations.c.created_at - 70)
        await store.database.call(lambda connection: connection.execute(younger))
        await store.turn("t", "resp_2", "two", "TWO", previous_response_id="resp_1")
        assert 149 < await left() < 151


async def test_a_tenant_is_erased_as_a_whole(url: str, tmp_path: Path) -> None:
    async with opened(url) as store:
        for n in range(conversation_store._PURGED + 2):
            await store.turn("t", f"resp_{n}", "a secret word", "ONE")
        await store.turn("u", "resp_1", "one", "ONE")
        assert await erase(store.database, "t") == conversation_store._PURGED + 2
        assert await store.rows() == [1, 2, 1]
        assert await store.usage("t") == (0, 0, 0)
    if url.startswith("sqlite"):
        # Nothing of it is left in the file.
        assert b"a secret word" not in contents(tmp_path)


async def test_contents_are_sealed_and_bound_to_their_rows(url: str, tmp_path: Path) -> None:
    keyring = Keyring(keys_file(tmp_path / "keys", "k1"))
    async with opened(url) as plain:
        await plain.turn("t", "resp_0", "before there was a key", "PLAIN")
    async with opened(url, keyring) as store:
        await store("create", "t", "conv_1", b'{"name":"hidden word"}', [message("user", "hidden word")])
        await store.turn("t", "resp_1", "hidden word", "hidden word", previous_response_id="resp_0")
        assert await store.texts("t", previous_response_id="resp_1") == [
            "before there was a key", "PLAIN", "hidden word", "hidden word"
        ]  # fmt: skip
        assert (await store("conversation", "t", "conv_1")).metadata == b'{"name":"hidden word"}'
        assert await store.turn("t", "resp_1", "hidden word", "hidden word", previous_response_id="resp_0") == 0
        await store("update", "t", "conv_1", b'{"name":"hidden word 2"}')
        await store("delete", "t", "conv_1")
        await store("delete_response", "t", "resp_0")
        await store("create", "t", "conv_2", b'{"name":"hidden word"}', [message("user", "hidden word")])
        usage = await store.usage("t")
        assert usage[:2] == (2, 3)
    assert all(b"hidden word" not in data for data in stored_bytes(url))
    async with opened(url) as lost:
        with pytest.raises(SealingKeyLost, match="'k1'"):
            await lost("response", "t", "resp_1")
        # What cannot be read can be deleted, and is counted as it was.
        query = select(conversation_items.c.id).where(conversation_items.c.conversation_id == "conv_2")
        item = await lost.database.call(lambda connection: connection.execute(query).scalar_one())
        await lost("delete_item", "t", "conv_2", item)
        await lost("delete", "t", "conv_2")
        await lost("delete_response", "t", "resp_1")
        assert await lost.usage("t") == (0, 0, 0)


def contents(folder: Path) -> bytes:
    """Of SQLite's files."""
    return b"".join(path.read_bytes() for path in folder.glob("jobs.db*"))


def stored_bytes(url: str) -> list[bytes]:
    engine = create_engine(parse_url(url))
    with engine.connect() as connection:
        found = [
            bytes(row[0])
            for table, column in (
                ("slipway_conversations", "metadata"),
                ("slipway_conversation_items", "data"),
                ("slipway_conversation_responses", "data"),
            )
            for row in connection.execute(text(f"SELECT {column} FROM {table}"))
        ]
    engine.dispose()
    assert found
    return found


TEXTS = st.text(max_size=20)
ITEMS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": TEXTS}),
        st.fixed_dictionaries(
            {"type": st.just("function_call"), "call_id": TEXTS, "name": TEXTS, "arguments": TEXTS, "id": st.none()}
        ),
        st.fixed_dictionaries({"type": st.just("function_call_output"), "call_id": TEXTS, "output": TEXTS}),
    ),
    max_size=8,
)


@given(ITEMS, st.integers(0, 400))
def test_stored_items_stay_as_they_are_and_the_rest_of_a_context_begins_with_a_turn(
    given: Sequence[dict[str, Any]], most: int
) -> None:
    once = response_items.items_of(json.dumps(given).encode(), "input")
    assert response_items.items_of(response_items.joined(once), "input") == once
    first = response_items.turns_within(once, most)
    assert sum(map(len, once[first:])) <= most or first == len(once)
    if 0 < first < len(once):
        item = json.loads(once[first])
        assert (item["type"], item["role"] != "assistant") == ("message", True)
    assert (first == 0) == (sum(map(len, once)) <= most)
