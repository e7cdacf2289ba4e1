"""The inference log: who is in it, with what, and what becomes of it when its database is away."""

import base64
import json
import sqlite3
import time
from collections import Counter
from contextlib import closing
from types import SimpleNamespace

import msgspec
import pytest
from sqlalchemy import select

from slipway_contracts.route_table import InferenceLogSample
from slipway_gateway.ledger.inference_table import InferenceTable, feedback, inferences
from slipway_gateway.ledger.tables import open_engine
from slipway_gateway.routing.table import parse_route
from slipway_gateway.telemetry.inference_log import Exchanged, InferenceLog, LoggedFeedback
from slipway_gateway.telemetry.line_writer import REFUSED, LineWriter
from slipway_gateway.telemetry.metrics import RequestRecord
from slipway_gateway.telemetry.rotated_file import UnwrittenLines
from slipway_process.database_urls import parse_url
from tests.support.postgres import postgres

JSON_HEADERS = {"Content-Type": "application/json"}
ANSWER = b'{"outputs":[{"name":"y","datatype":"INT64","shape":[2],"data":[7,9]}]}'
CONTENTS = InferenceLogSample(100, contents=True)


class Lines:
    def __init__(self):
        self.found = []

    def put(self, owner, line):
        self.found.append(json.loads(line))

    async def close(self):
        pass


def made(lines, **options):
    return InferenceLog(lines, options.pop("most", 1000), lambda: 1_800_000_000.5)


def record(id_="0" * 32, identity=None):
    found = RequestRecord(id_, "client-id", 0.0)
    found.identity, found.revision, found.code, found.sent_bytes = identity, "aaaaaaaaaa", 200, len(ANSWER)
    return found


def exchanged(**changes):
    known = {"input": b'{"inputs":[]}', "output": ANSWER, "headers": JSON_HEADERS, "feedback_id": ""}
    return Exchanged(**{"route": "ns/m", "path": "/v2/models/m/infer"} | known | changes)


def who(capture):
    return SimpleNamespace(name="acme", tenant=SimpleNamespace(content_capture=capture))


def test_a_row_has_what_was_predicted_and_no_contents_unless_the_owner_wants_them():
    lines = Lines()
    made(lines).inferred(exchanged(), InferenceLogSample(100), record(), 0.25)
    [row] = lines.found
    assert (row["route"], row["revision"], row["status"], row["seconds"]) == ("ns/m", "aaaaaaaaaa", 200, 0.25)
    assert (row["rows"], row["predictions"]) == (2, "[7,9]")
    assert (row["input"], row["output"], row["input_bytes"], row["output_bytes"]) == (None, None, 13, len(ANSWER))
    assert row["at"] == "2027-01-15T08:00:00.500+00:00" and row["request_id"] == "client-id"


@pytest.mark.parametrize(
    ("capture", "logged"),
    [("", False), ("None", False), ("Scorers", False), ("Later", False), ("InferenceLog", True), ("All", True)],
)
def test_contents_of_a_tenant_are_logged_only_if_it_allows_that(capture, logged):
    lines = Lines()
    made(lines).inferred(exchanged(), CONTENTS, record(identity=who(capture)), 0.1)
    [row] = lines.found
    assert (row["input"] is not None, row["output"] is not None, row["tenant"]) == (logged, logged, "acme")
    assert (row["predictions"], row["rows"]) == (("[7,9]", 2) if logged else (None, None))


def test_contents_that_are_no_text_are_in_base64_and_long_ones_are_left_out():
    lines = Lines()
    log = made(lines, most=100)
    for content in (b"\xff\x00", b"a\0b", b"x" * 101, "é".encode()):
        log.inferred(exchanged(input=content), CONTENTS, record(), 0.1)
    found = [(row["input"], row["input_base64"], row["input_bytes"]) for row in lines.found]
    assert found == [
        (base64.b64encode(b"\xff\x00").decode(), True, 2),
        (base64.b64encode(b"a\0b").decode(), True, 3),
        (None, False, 101),
        ("é", False, 2),
    ]


HOSTILE = [
    b"[" * 100_000,
    b'{"predictions":[NaN]}',
    b'{"predictions":[1e999,null,{"a":{"b":[]}}]}',
    b'{"predictions":["' + b"\\u0000" * 500 + b'"]}',
    b"\xff\xfe",
    b"",
    b'{"outputs":[{"name":"y","datatype":"INT64","shape":[-1,9999999999],"data":[7,9]}]}',
]


@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_no_response_breaks_the_log(answer, tmp_path):
    lines = Lines()
    log = InferenceLog(lines, 1 << 20)
    log.inferred(exchanged(output=answer, path="/v1/models/m:predict"), CONTENTS, record(), 0.1)
    write(f"sqlite:///{tmp_path}/log.db", [msgspec.json.encode(row) for row in lines.found])
    [row] = rows_of(f"sqlite:///{tmp_path}/log.db", inferences)
    assert row["id"] == "0" * 32 and (row["predictions"] is None or isinstance(json.loads(row["predictions"]), list))


def test_the_sample_is_chosen_by_the_id_of_the_request():
    log = made(Lines())
    ids = [f"{number:08x}" + "0" * 24 for number in range(0, 1 << 32, 1 << 20)]
    for percentage in (0, 1, 10, 50, 100):
        taken = [log.takes(InferenceLogSample(percentage), record(one)) for one in ids]
        assert sum(taken) == pytest.approx(len(ids) * percentage / 100, abs=1)
        assert taken == [log.takes(InferenceLogSample(percentage), record(one)) for one in ids]


def test_a_rule_of_the_operator_reaches_the_route_and_a_broken_one_is_a_problem():
    metadata = {"name": "m", "namespace": "ns"}

    def parsed(rule):
        traffic = {"generation": 1, "model": "m", "inferenceLog": rule}
        return parse_route({"metadata": metadata, "status": {"traffic": traffic}})

    assert parsed({"percentage": 10, "contents": True}).inference_log == InferenceLogSample(10, contents=True)
    assert parsed({"percentage": 10}).inference_log == InferenceLogSample(10)
    assert "inferenceLog" in parsed({"percentage": 101}).text


def write(url, lines, retention_s=3600):
    written = InferenceTable(url, retention_s)
    written.write(lines)
    written.close()


def rows_of(url, table_):
    engine = open_engine(parse_url(url))
    try:
        with engine.connect() as connection:
            return [dict(row) for row in connection.execute(select(table_)).mappings()]
    finally:
        engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/log.db"
        return
    with postgres() as server:
        yield server.url


def lines_of(count, **changes):
    lines = Lines()
    log = InferenceLog(lines, 1000)
    for number in range(count):
        log.inferred(exchanged(**changes), CONTENTS, record(f"{number:032x}"), 0.5)
    log.rated("client", "ab" * 12, None, None, "se\0tosa")
    log.rated("client", "cd" * 12, True, None, None)
    return [msgspec.json.encode(row) for row in lines.found]


def test_rows_are_in_the_database_each_once(url):
    written, lines = InferenceTable(url, 3600), lines_of(300, feedback_id="ab" * 12)
    written.write(lines)
    written.write(lines[:100])
    written.close()
    found = rows_of(url, inferences)
    assert len(found) == 300 and {row["feedback_id"] for row in found} == {"ab" * 12}
    assert {(row["predictions"], row["input"], row["output_base64"]) for row in found} == {
        ("[7,9]", '{"inputs":[]}', False)
    }
    rated = {row["feedback_id"]: (row["correct"], row["label"]) for row in rows_of(url, feedback)}
    assert rated == {"ab" * 12: (None, "se?tosa"), "cd" * 12: (True, None)}


def test_rows_past_their_retention_are_deleted(url):
    lines = Lines()
    old = InferenceLog(lines, 0, lambda: time.time() - 7200)
    for number in range(5):
        old.inferred(exchanged(), CONTENTS, record(f"{1000 + number:032x}"), 0.5)
    old.rated("client", "ef" * 12, True, None, None)
    write(url, [msgspec.json.encode(row) for row in lines.found], 86400)
    assert len(rows_of(url, inferences)) == 5
    write(url, lines_of(1))
    assert [row["id"] for row in rows_of(url, inferences)] == [f"{0:032x}"]
    assert "ef" * 12 not in {row["feedback_id"] for row in rows_of(url, feedback)}


def test_an_error_of_the_database_has_no_contents(tmp_path):
    url = f"sqlite:///{tmp_path}/log.db"
    written = InferenceTable(url, 3600)
    written.write(lines_of(1))
    with closing(sqlite3.connect(tmp_path / "log.db")) as other:
        other.execute("DROP TABLE slipway_inferences")
        other.commit()
    with pytest.raises(UnwrittenLines) as error:
        written.write(lines_of(1, input=b"a secret of the client"))
    written.close()
    assert "no such table" in str(error.value) and "secret" not in str(error.value)


@pytest.mark.finding("F4")
@pytest.mark.integration
async def test_a_row_that_the_database_refuses_stops_no_other(tmp_path):
    """All rows of its batch were dropped with it."""
    with postgres() as server:
        for url, taken in ((f"sqlite:///{tmp_path}/log.db", 3), (server.url, 2)):
            dropped = Counter()
            writer = LineWriter(InferenceTable(url, 3600), lambda reason, n, seen=dropped: seen.update({reason: n}))
            log = InferenceLog(writer, 1000)
            log.rated("client", "a" * 32, correct=True, score=None, label=None)
            # As an earlier release queued it: PostgreSQL holds no NUL.
            writer.put(
                "client", msgspec.json.encode(LoggedFeedback("b" * 32, "2027-01-01T00:00:00Z", None, None, "a\0b"))
            )
            writer.put("client", b"{")
            log.rated("client", "c" * 32, correct=False, score=None, label=None)
            await writer.close(20)
            engine = open_engine(parse_url(url))
            with engine.connect() as connection:
                assert len(connection.execute(select(feedback)).all()) == taken
            engine.dispose()
            assert dropped == {REFUSED: 4 - taken}
