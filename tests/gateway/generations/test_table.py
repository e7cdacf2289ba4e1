"""The database of the generation log: sealed rows, each once, within their age and bytes, until they are erased."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, text

from slipway_gateway.generations.table import (
    AGE,
    ROW_BYTES,
    SIZE,
    Bounds,
    GenerationTable,
    generations,
    metadata,
    usage,
)
from slipway_gateway.ledger.tables import SQLITE_BYTES, open_engine
from slipway_gateway.telemetry.access_log import MAX_ID, clean
from slipway_process.database_urls import parse_url
from slipway_process.sealing import OVERHEAD_BYTES, Keyring
from tests.support.postgres import postgres

from .logged import DAY_S, ROOMY, keyring, line, rows


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as started:
        yield started.url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/log.db"
        return
    shared = request.getfixturevalue("server")
    yield shared
    engine = open_engine(parse_url(shared))
    metadata.drop_all(engine)
    engine.dispose()


def held(table: GenerationTable) -> dict[str, int]:
    """What the database counts by tenant; it must be what is there."""
    with table.engine.connect() as connection:
        counted = {tenant: size for tenant, size in connection.execute(select(usage)) if size}
        there: Counter[str] = Counter()
        for tenant, size, *contents in connection.execute(
            select(generations.c.tenant, generations.c.bytes, generations.c.input, generations.c.output)
        ):
            assert size == ROW_BYTES + sum(len(content or b"") for content in contents)
            there[tenant] += size
    assert counted == dict(there)
    return counted


def test_rows_are_there_each_once_and_sealed(url: str, tmp_path: Path) -> None:
    keys = keyring(tmp_path, "k1")
    table = GenerationTable(url, keys, ROOMY)
    lines = [line(number, input_=b"a secret prompt \0\xff", output=b"x" * number) for number in range(300)]
    table.write(lines)
    table.write(lines[:100])
    assert held(table) == {
        "acme": sum(ROW_BYTES + 2 * OVERHEAD_BYTES + len(b"a secret prompt \0\xff") + number for number in range(300))
    }
    with table.engine.connect() as connection:
        stored = [bytes(value) for value in connection.execute(select(generations.c.input)).scalars()]
    table.close()
    assert len(stored) == 300 and not any(b"secret" in value for value in stored)
    opened = {row["request_id"]: row for row in rows(url, keys)}
    assert opened["request-7"]["input"] == b"a secret prompt \0\xff" and opened["request-7"]["output"] == b"x" * 7
    assert opened["request-7"]["unreadable"] is None and len(opened) == 300


def test_contents_without_a_key_are_never_written(url: str) -> None:
    table = GenerationTable(url, Keyring.none(), ROOMY)
    table.write([line(1, input_=b"a secret prompt", output=b"a secret response")])
    table.close()
    [row] = rows(url, Keyring.none())
    assert (row["input"], row["output"], row["input_bytes"]) == (None, None, 2)


def test_a_key_is_rotated_and_a_lost_one_is_reported(url: str, tmp_path: Path) -> None:
    for number, ids in enumerate((("k1",), ("k2", "k1"))):
        table = GenerationTable(url, keyring(tmp_path, *ids), ROOMY)
        table.write([line(number, input_=b"prompt %d" % number)])
        table.close()
    assert [row["input"] for row in rows(url, keyring(tmp_path, "k2", "k1"))] == [b"prompt 0", b"prompt 1"]
    lost, there = rows(url, keyring(tmp_path, "k2"))
    assert lost["input"] is None and "'k1', which is not in the keyring" in lost["unreadable"]
    assert there["input"] == b"prompt 1" and there["unreadable"] is None


def test_a_body_that_was_moved_to_another_row_or_tenant_does_not_open(url: str, tmp_path: Path) -> None:
    keys = keyring(tmp_path, "k1")
    table = GenerationTable(url, keys, ROOMY)
    table.write([line(1, input_=b"of acme"), line(2, "other", input_=b"of other")])
    with table.engine.begin() as connection:
        moved = "(SELECT input FROM slipway_generations WHERE tenant = 'acme')"
        connection.execute(text(f"UPDATE slipway_generations SET input = {moved} WHERE tenant = 'other'"))
    table.close()
    [row] = rows(url, keys, "other")
    assert row["input"] is None and "not what was sealed for this row" in row["unreadable"]


def test_rows_past_their_age_are_deleted(url: str, tmp_path: Path) -> None:
    deleted: Counter[str] = Counter()
    keys = keyring(tmp_path, "k1")
    GenerationTable(url, keys, ROOMY).write([line(number, age_s=DAY_S / 2) for number in range(5)])
    table = GenerationTable(url, keys, Bounds(DAY_S / 4, 1 << 30), lambda why, n: deleted.update({why: n}))
    table.write([line(9)])
    assert [row["request_id"] for row in rows(url, keys)] == ["request-9"] and deleted == {AGE: 5}
    assert list(held(table)) == ["acme"]
    table.close()


def test_beyond_its_bytes_the_tenant_with_most_loses_its_oldest_and_others_nothing(url: str, tmp_path: Path) -> None:
    deleted: Counter[str] = Counter()
    keys, most = keyring(tmp_path, "k1"), 1 << 20
    table = GenerationTable(url, keys, Bounds(DAY_S, most), lambda why, n: deleted.update({why: n}))
    victim = [line(number, "victim", input_=b"v" * 1000, age_s=3000) for number in range(20)]
    table.write(victim)
    abuser = [line(1000 + number, "abuser", input_=b"a" * 10_000, age_s=200 - number) for number in range(150)]
    table.write(abuser)  # 1.6 MB
    table.forget()
    counted = held(table)
    assert sum(counted.values()) <= most and sum(counted.values()) > most * 0.9
    kept = rows(url, keys)
    assert sum(row["tenant"] == "victim" for row in kept) == 20
    left = [row["request_id"] for row in kept if row["tenant"] == "abuser"]
    assert left == [f"request-{1000 + number}" for number in range(150 - len(left), 150)], "the newest stay"
    assert deleted == {SIZE: 150 - len(left)}
    table.close()


def test_rows_are_deleted_by_the_id_of_a_request_and_for_a_tenant(url: str, tmp_path: Path) -> None:
    keys = keyring(tmp_path, "k1")
    table = GenerationTable(url, keys, ROOMY)
    table.write([line(number, "ab"[number % 2]) for number in range(10)])
    table.write(
        [line(20, "a", request_id="twice"), line(21, "a", request_id="twice"), line(22, "b", request_id="twice")]
    )
    assert table.erase("b", "request-2") == 0, "that is another tenant's"
    assert table.erase("a", "twice") == 2 and table.erase("a", f"{4:032x}") == 1
    assert {row["request_id"] for row in rows(url, keys)} == {*(f"request-{n}" for n in range(10) if n != 4), "twice"}
    assert table.erase("b") == 6 and table.erase("b") == 0
    assert {row["tenant"] for row in rows(url, keys)} == {"a"} and list(held(table)) == ["a"]
    table.close()


@pytest.mark.parametrize("client_id", ["é" * 9, "x" * 200, "a\tb", "slw_abc123_secret"])
def test_rows_are_erased_by_the_id_that_the_client_wrote(client_id: str, tmp_path: Path) -> None:
    """Rows have it shortened, in ASCII and without secrets."""
    table = GenerationTable(f"sqlite:///{tmp_path}/log.db", keyring(tmp_path, "k1"), ROOMY)
    table.write([line(1, request_id=clean(client_id, MAX_ID)), line(2)])
    assert table.erase("acme", client_id) == 1 and table.erase("acme") == 1
    table.close()


def test_an_erased_body_is_not_left_in_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    table = GenerationTable(url, keyring(tmp_path, "k1"), ROOMY)
    table.write([line(1, request_id="needle-in-the-file" * 5)])
    table.erase("acme")
    table.close()
    with closing(sqlite3.connect(tmp_path / "log.db")) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert b"needle-in-the-file" not in (tmp_path / "log.db").read_bytes()


def test_a_file_never_gets_full() -> None:
    assert GenerationTable("sqlite://", Keyring.none(), Bounds(1.0, 1 << 50))._max_bytes < SQLITE_BYTES


def test_read_has_all_rows_in_order_and_of_a_time(url: str, tmp_path: Path) -> None:
    keys = keyring(tmp_path, "k1")
    table = GenerationTable(url, keys, ROOMY)
    table.write([line(number, age_s=60 * (number % 7)) for number in range(200)])
    ages = [row["request_id"] for row in table.read()]
    assert len(set(ages)) == 200
    now = datetime.now(UTC)
    some = list(table.read("acme", now - timedelta(seconds=150), now - timedelta(seconds=30)))
    assert {int(row["request_id"].removeprefix("request-")) % 7 for row in some} == {1, 2}
    table.close()
