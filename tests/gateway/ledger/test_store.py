"""The ledger's database: each response once, however often it is reported."""

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from slipway_gateway.ledger.store import LedgerStore, Spent
from slipway_gateway.ledger.tables import COUNTS, open_engine
from slipway_gateway.quotas.meter import Charge
from slipway_gateway.quotas.usage import Usage
from slipway_process.database_urls import parse_url

Open = Callable[[], LedgerStore]
HOUR = 494_000


def charge(id_: str = "a", output: int = 5, **changes: Any) -> Charge:
    made = Charge(id_, "team-a", "k1", "default/chat", "r1", HOUR, Usage(10, output, 2), 100 * output, False)
    return replace(made, **changes)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens one empty database, as often as it is called."""
    opened: list[LedgerStore] = []
    url = f"sqlite:///{tmp_path}/ledger.db"
    if request.param == "postgres":
        url = request.getfixturevalue("server").url
        engine = open_engine(parse_url(url))
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS slipway_ledger, slipway_responses, slipway_usage"))
        engine.dispose()

    def store() -> LedgerStore:
        opened.append(LedgerStore(url))
        return opened[-1]

    yield store
    for one in opened:
        one.close()


def totals(store: LedgerStore) -> dict[str, int]:
    rows = store.usage(0, 1 << 30)
    return {name: sum(row[name] for row in rows) for name in COUNTS}


def test_a_charge_that_comes_again_counts_once(database: Open) -> None:
    store = database()
    assert store.apply([charge()]) == {"team-a": 500}
    assert store.apply([charge(), charge()]) == {}
    assert totals(store) == dict(zip(COUNTS, (1, 10, 2, 5, 500, 0), strict=True))


def test_a_response_that_grows_counts_with_its_end(database: Open) -> None:
    store = database()
    for output in (1, 4, 3, 9):
        store.apply([charge(output=output)])
    assert totals(store)["output_tokens"] == 9
    assert totals(store)["requests"] == 1


def test_what_a_server_counted_replaces_an_estimate(database: Open) -> None:
    store = database()
    store.apply([charge(usage=Usage(99, 7), cost_nano=900, estimated=True)])
    assert store.apply([charge(output=6)]) == {"team-a": -300}
    assert totals(store) == dict(zip(COUNTS, (1, 10, 2, 6, 600, 0), strict=True))
    store.apply([charge(usage=Usage(99, 7), cost_nano=900, estimated=True)])
    assert totals(store)["input_tokens"] == 10


def test_usage_is_kept_by_hour_tenant_key_model_and_revision(database: Open) -> None:
    store = database()
    store.apply(
        [
            charge("a"),
            charge("b"),
            charge("c", hour=HOUR + 1),
            charge("d", tenant="team-b"),
            charge("e", key="k2"),
            charge("f", model="default/other"),
            charge("g", revision="r2"),
        ]
    )
    rows = store.usage(HOUR, HOUR + 2)
    assert len(rows) == 6
    assert sum(row["requests"] for row in rows) == 7
    assert {row["tenant"] for row in store.usage(HOUR, HOUR + 2, "team-b")} == {"team-b"}
    assert [row["hour"] for row in store.usage(HOUR + 1, HOUR + 2)] == [HOUR + 1]


def test_gateways_that_report_the_same_responses_at_once_count_each_once(database: Open) -> None:
    stores = [database() for _ in range(3)]
    if not stores[0].is_shared:
        pytest.skip("a file of SQLite is one gateway's")
    assert len({store.id() for store in stores}) == 1
    failures: list[Exception] = []

    def report(store: LedgerStore, order: int) -> None:
        try:
            for output in range(1, 6):
                ids = [f"{n:03}" for n in range(200)]
                store.apply([charge(id_, output, tenant=f"team-{int(id_) % 7}") for id_ in ids[::order]])
        except Exception as error:
            failures.append(error)

    threads = [Thread(target=report, args=(store, 1 if n % 2 else -1)) for n, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert totals(stores[0]) == dict(zip(COUNTS, (200, 2000, 400, 1000, 100_000, 0), strict=True))


def test_spending_is_that_of_the_day_and_the_month(database: Open) -> None:
    store = database()
    first_of_month = HOUR - 9 * 24 - 8  # HOUR is 2026-05-10T08:00:00Z
    store.apply(
        [
            charge("a", cost_nano=1, hour=first_of_month - 1),
            charge("b", cost_nano=10, hour=first_of_month),
            charge("c", cost_nano=100, hour=HOUR),
            charge("d", cost_nano=1000, hour=HOUR, tenant="team-b"),
        ]
    )
    spent = store.spent(HOUR)
    assert spent["team-b"] == Spent(1000, 1000)
    assert spent["team-a"] == Spent(100, 110)


def test_totals_stay_when_responses_are_forgotten(database: Open) -> None:
    store = database()
    store.apply([charge("a"), charge("b", hour=HOUR - 10)])
    store.forget(HOUR, HOUR - 5)
    assert totals(store)["requests"] == 1
    store.forget(HOUR + 1, HOUR)
    assert totals(store)["requests"] == 1


def test_a_ledger_of_another_release_is_refused(database: Open) -> None:
    store = database()
    store.apply([charge()])
    with store._engine.begin() as connection:
        connection.execute(text("INSERT INTO slipway_ledger (version, id) VALUES (2, 'x')"))
    with pytest.raises(Exception, match="another release"):
        database().apply([charge()])


def test_bytes_of_a_client_are_values_and_no_sql(database: Open) -> None:
    store = database()
    hostile = "'; DROP TABLE slipway_usage; --"
    store.apply([charge(tenant=hostile, key="\U0001f980", model=hostile)])
    assert totals(store)["requests"] == 1
    assert store.usage(0, 1 << 30, hostile)[0]["tenant"] == hostile


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "write sqlite"),
        ("mysql://x/y", "must be sqlite or postgresql"),
        ("postgresql+asyncpg://x/y", "must be sqlite or postgresql"),
        ("postgresql://x/y?sslmode=prefer", "sslmode must be"),
    ],
)
def test_a_url_that_names_no_usable_database_is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_url(url)


REPORTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.booleans()), max_size=12)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REPORTS, st.integers(1, 4))
def test_totals_are_the_sum_of_what_is_known_of_each_response(reports: list[tuple[str, int, bool]], batch: int) -> None:
    store = LedgerStore("sqlite://")
    known: dict[str, Charge] = {}
    charges = [charge(id_, output, estimated=estimated) for id_, output, estimated in reports]
    added = 0
    for begin in range(0, len(charges), batch):
        added += store.apply(charges[begin : begin + batch]).get("team-a", 0)
    for one in sorted(charges, key=lambda c: 0):
        former = known.get(one.id)
        better = former is None or (former.estimated and not one.estimated)
        same = former is not None and former.estimated == one.estimated
        if better or (same and former is not None and one.usage.output_tokens > former.usage.output_tokens):
            known[one.id] = one
    found = totals(store)
    store.close()
    assert found["requests"] == len(known)
    assert found["output_tokens"] == sum(one.usage.output_tokens for one in known.values())
    assert found["cost_nano"] == sum(one.cost_nano for one in known.values()) == added


def test_the_oldest_responses_of_sqlite_go_and_running_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway's volume is small: Kubernetes evicts a pod that uses more of it."""
    monkeypatch.setattr("slipway_gateway.ledger.store.MAX_RESPONSES", 3)
    store = LedgerStore(f"sqlite:///{tmp_path}/ledger.db")
    store.apply([charge("runs"), charge("done")])
    for id_ in "abc":
        store.apply([charge(id_)])
    store.trim(["runs"])
    assert store.apply([charge("runs", output=6), charge("a"), charge("b"), charge("c")]) == {"team-a": 100}
    assert store.apply([charge("done")]) == {"team-a": 500}, "it was forgotten"
    store.close()


def test_a_full_file_of_sqlite_is_an_error_and_keeps_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.ledger.tables._SQLITE_PRAGMAS", ("journal_mode=WAL", "max_page_count=40"))
    store = LedgerStore(f"sqlite:///{tmp_path}/ledger.db")
    with pytest.raises(OperationalError, match="full"):
        store.apply([charge(f"r{number}") for number in range(5000)])
    assert (tmp_path / "ledger.db").stat().st_size <= 40 * 4096
    store.close()


def test_no_statement_needs_a_temporary_file(tmp_path: Path) -> None:
    """The root filesystem of a gateway is read-only: a ledger that needed one would write nothing from then on."""
    store = LedgerStore(f"sqlite:///{tmp_path}/ledger.db")
    store.apply([charge(f"{number:08}") for number in range(4000)])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_file = os.open(os.devnull, os.O_RDONLY)
    os.close(next_file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_file, hard))
    try:
        store.apply([charge(f"{number:08}x") for number in range(0, 4000, 10)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert totals(store)["requests"] == 4400
    store.close()
