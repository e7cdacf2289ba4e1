"""One poisoned charge stops no other: it is put into quarantine, and the rest is written."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from slipway_gateway.ledger import writer
from slipway_gateway.ledger.store import LARGEST_COUNT, LedgerStore, Spent
from slipway_gateway.ledger.tables import open_engine
from slipway_gateway.ledger.writer import Ledger
from slipway_gateway.quotas.bounds import UsageBound
from slipway_gateway.quotas.estimate import Estimate
from slipway_gateway.quotas.meter import Charge, Meter
from slipway_gateway.quotas.prices import Price, micro
from slipway_gateway.quotas.usage import Usage
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_process.database_urls import parse_url

HOUR = 494_000
HUGE = (1 << 40) - 1
Open = Callable[[], Ledger]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    found: str = request.getfixturevalue("server").url
    execute(found, "DROP TABLE IF EXISTS slipway_ledger, slipway_responses, slipway_usage")
    return found


@pytest.fixture
async def ledger(url: str, tmp_path: Path) -> AsyncIterator[Ledger]:
    made = open_ledger(url, tmp_path)
    yield made
    await made.close_down()


def open_ledger(url: str, folder: Path) -> Ledger:
    path = folder / "quarantine.jsonl"
    return Ledger(LedgerStore(url), GatewayMetrics("test"), unix_time=lambda: HOUR * 3600.0, quarantine=path)


def execute(url: str, statement: str) -> None:
    engine = open_engine(parse_url(url))
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def finish(one: Ledger, id_: str, tokens: int = 5, tenant: str = "team-a", price: str = "9000", **changes: Any) -> None:
    """A request begins and ends at once; its server reports so many tokens each way."""
    amount = micro(price)
    bound = UsageBound(b"x" * 100)
    meter = Meter(
        id_, tenant, "k1", estimate=Estimate(1, 1), bound=bound, price=Price("*", amount, amount), hour=HOUR, **changes
    )
    one.open(meter)
    meter.begin("r1", {})
    meter.add_body(b'{"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (tokens, tokens))
    one.close(meter)


async def requests(one: Ledger) -> dict[str, int]:
    _, rows = await one.usage(0, 1 << 30, "")
    found: dict[str, int] = {}
    for row in rows:
        found[row["tenant"]] = found.get(row["tenant"], 0) + row["requests"]
    return found


def count(one: Ledger, name: str) -> float:
    return one._metrics.registry.get_sample_value(f"slipway_gateway_ledger_{name}") or 0.0


@pytest.mark.finding("F4")
async def test_a_report_of_any_size_is_written_with_the_honest_ones(ledger: Ledger) -> None:
    """2^40 tokens at 9000 per million ended the writer of SQLite, and PostgreSQL took no batch with them any more."""
    for number in range(20):
        finish(ledger, f"honest-{number}", tenant="team-b")
        finish(ledger, f"huge-{number}", HUGE, price="999999999")
    assert await ledger.flush()
    assert await requests(ledger) == {"team-a": 20, "team-b": 20}
    assert count(ledger, "quarantined_total") == 0


@pytest.mark.finding("F4")
async def test_what_the_database_refuses_is_put_aside(ledger: Ledger, tmp_path: Path) -> None:
    """In whatever place of a batch it is: among the first ones, the last ones, alone."""
    for number in range(40):
        if number in (0, 17, 18, 39):
            finish(ledger, f"poison-{number}", model="lone surrogate \ud800")
        finish(ledger, f"honest-{number}", tenant="team-b")
    assert await ledger.flush()
    assert await requests(ledger) == {"team-b": 40}
    assert (count(ledger, "waiting"), count(ledger, "quarantined_total"), count(ledger, "failures_total")) == (0, 4, 0)
    kept = [json.loads(line) for line in (tmp_path / "quarantine.jsonl").read_text().splitlines()]
    assert [one["record"]["id"] for one in kept] == ["poison-0", "poison-17", "poison-18", "poison-39"]
    assert all(one["record"]["usage"]["input_tokens"] == 5 and one["error"] for one in kept)
    # Nothing of them is expected any more.
    assert ledger.spending.of("team-a", HOUR) == Spent()
    finish(ledger, "poison-alone", model="\ud800")
    assert await ledger.flush()
    assert count(ledger, "quarantined_total") == 5


@pytest.mark.finding("F4")
async def test_a_row_that_only_postgresql_refuses_is_put_aside_too(ledger: Ledger, url: str) -> None:
    finish(ledger, "zero", model="a\0b")
    finish(ledger, "long", model="m" * 600)
    finish(ledger, "honest", tenant="team-b")
    assert await ledger.flush()
    assert (await requests(ledger))["team-b"] == 1
    assert count(ledger, "quarantined_total") == (2 if url.startswith("postgresql") else 0)


@pytest.mark.finding("F4")
async def test_a_running_stream_that_is_refused_is_put_aside_once(ledger: Ledger) -> None:
    meter = Meter("stream", "team-a", "k1", estimate=Estimate(1, 1), price=Price("*", 10**6), model="\ud800", hour=HOUR)
    ledger.open(meter)
    meter.begin("r1", {})
    for _ in range(3):
        meter.add_events(b"data: {}\n\n")
        assert await ledger.flush()
    assert count(ledger, "quarantined_total") == 1
    ledger.close(meter)
    assert await ledger.flush()
    assert count(ledger, "quarantined_total") == 2  # its end, which has all of it


@pytest.mark.finding("F4")
async def test_no_sum_overflows(url: str, tmp_path: Path) -> None:
    """After 150 such responses the sum of the hour did; then no charge of that hour was written any more."""
    with contextlib.closing(LedgerStore(url)) as store:
        most = Charge("", "team-a", "k1", "chat", "r1", HOUR, Usage(LARGEST_COUNT, LARGEST_COUNT), LARGEST_COUNT, False)
        for number in range(4):
            store.apply([replace(most, id=f"{number}-{n}", key=f"k{n}") for n in range(3)])
        rows = store.usage(0, 1 << 30)
        assert [row["cost_nano"] for row in rows] == [LARGEST_COUNT] * 3
        assert store.spent(HOUR) == {"team-a": Spent(3 * LARGEST_COUNT, 3 * LARGEST_COUNT)}


@pytest.mark.finding("F4")
async def test_rows_of_an_earlier_release_near_the_end_of_their_column_go_on(url: str, ledger: Ledger) -> None:
    finish(ledger, "first")
    assert await ledger.flush()
    largest = (1 << 63) - 1
    execute(url, f"UPDATE slipway_usage SET cost_nano = {largest}, input_tokens = {largest}")
    finish(ledger, "second")
    finish(ledger, "third", tenant="team-b")
    ledger._read_s = float("-inf")
    assert await ledger.flush()
    assert await requests(ledger) == {"team-a": 2, "team-b": 1}
    assert ledger.spent("team-a").day_nano == LARGEST_COUNT
    assert count(ledger, "quarantined_total") == 0


async def test_an_outage_puts_nothing_aside(url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only time helps there, so charges wait: a table that is missing is no fault of a charge."""
    finish(ledger, "first")
    assert await ledger.flush()
    execute(url, "ALTER TABLE slipway_usage RENAME TO elsewhere")
    monkeypatch.setattr(writer, "_INTERVAL_S", 0.0)
    finish(ledger, "second")
    assert not await ledger.flush()
    assert (count(ledger, "waiting"), count(ledger, "quarantined_total")) == (1, 0)
    execute(url, "ALTER TABLE elsewhere RENAME TO slipway_usage")
    assert await ledger.flush()
    assert await requests(ledger) == {"team-a": 2}
