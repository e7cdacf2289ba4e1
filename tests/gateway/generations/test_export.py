"""Export and erasure of the generation log, by the programs that administrators run."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from slipway_gateway.generations import erase, export
from slipway_gateway.generations.table import GenerationTable
from tests.process.test_sealing import keys_file

from .logged import ROOMY, keyring, line, rows

WHOLE = b'{"choices":[{"index":0,"message":{"content":"whole"}},{"index":1,"message":{"content":"other"}}]}'
STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n: x\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"lo"}}]}\n\ndata: [DONE]\n\n'
)
CALL = b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}]}'


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    keys = keys_file(tmp_path / "keys", "k2")
    url = f"sqlite:///{tmp_path}/log.db"
    table = GenerationTable(url, keyring(tmp_path, "k1"), ROOMY)
    table.write([line(1, input_=b"under a lost key")])
    table.close()
    table = GenerationTable(url, keyring(tmp_path, "k2"), ROOMY)
    table.write([
        line(2, output=WHOLE), line(3, output=STREAM, stream=True), line(4, output=CALL),
        line(5, "other", output=b"\xff\xfe", output_encoding="gzip"),
    ])  # fmt: skip
    table.close()
    return [f"--generation-log-url={url}", f"--generation-log-keys-file={keys}"]


def run(program: object, arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    before = sys.argv
    sys.argv = ["x", *arguments]
    try:
        program.main()  # type: ignore[attr-defined]
    finally:
        sys.argv = before
    out, err = capsys.readouterr()
    return out, err


def test_parquet_has_rows_with_plain_contents_and_texts(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all.parquet"
    _, report = run(export, [*flags, f"--out={out}"], capsys)
    assert report == "5 rows written, 1 of them without contents, whose keys are lost\n"
    assert out.stat().st_mode & 0o777 == 0o600
    parquet = importlib.import_module("pyarrow.parquet")  # it has no types
    found = {row["request_id"]: row for row in parquet.read_table(out).to_pylist()}
    assert [found[f"request-{n}"]["texts"] for n in (1, 2, 3, 4, 5)] == [
        None,
        ["whole", "other"],
        ["Hello"],
        None,
        None,
    ]
    assert found["request-2"]["output"] == WHOLE.decode() and found["request-5"]["output"] is None
    assert "'k1'" in found["request-1"]["unreadable"] and found["request-2"]["unreadable"] is None
    assert isinstance(found["request-2"]["at"], datetime) and found["request-2"]["input_tokens"] == 3


def test_lines_of_json_of_one_tenant(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(export, [*flags, "--tenant=other", f"--out={tmp_path}/some.jsonl"], capsys)
    [row] = map(json.loads, (tmp_path / "some.jsonl").read_text().splitlines())
    assert (row["tenant"], row["output_bytes"], row["output"]) == ("other", 5, None)
    run(export, [*flags, "--since=2100-01-01T00:00:00Z", f"--out={tmp_path}/none.jsonl"], capsys)
    assert (tmp_path / "none.jsonl").read_bytes() == b""


def test_a_file_that_exists_is_not_overwritten(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").write_text("mine")
    with pytest.raises(SystemExit, match="File exists"):
        run(export, [*flags, f"--out={tmp_path}/there"], capsys)
    assert (tmp_path / "there").read_text() == "mine"


def test_rows_are_erased(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = flags[:1]
    assert run(erase, [*url, "--tenant=acme", "--request-id=request-2"], capsys)[0] == "1 rows deleted\n"
    assert run(erase, [*url, "--tenant=acme"], capsys)[0] == "3 rows deleted\n"
    [left] = rows(url[0].partition("=")[2], keyring(tmp_path, "k2"))
    assert left["tenant"] == "other"


def test_an_empty_variable_of_a_shell_is_not_all_rows(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = flags[0].partition("=")[2]
    for program, *empty in (
        (erase, "--tenant=acme", "--request-id="), (erase, "--tenant="), (export, "--tenant="),
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            run(program, [flags[0], *empty], capsys)
        out, err = capsys.readouterr()
        assert "is empty: leave it out for all of them" in err and not out
    assert len(rows(url, keyring(tmp_path, "k2"))) == 5


@pytest.mark.integration
def test_the_programs_take_what_the_gateways_environment_has(flags: list[str], tmp_path: Path) -> None:
    environment = os.environ | {
        "SLIPWAY_GATEWAY_GENERATION_LOG_URL": flags[0].partition("=")[2],
        "SLIPWAY_GATEWAY_GENERATION_LOG_KEYS_FILE": flags[1].partition("=")[2],
    }

    def called(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", f"slipway_gateway.generations.{program}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)

    done = called("export", "--tenant=acme")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 4, done.stderr
    assert called("erase").returncode == 2, "without a tenant nothing is deleted"
    assert called("erase", "--tenant=acme").stdout == "4 rows deleted\n"
    wrong = called("export", "--generation-log-url=mysql://user:hidden@host/d")
    assert wrong.returncode == 1 and "--generation-log-url: the scheme" in wrong.stderr and "hidden" not in wrong.stderr
    assert "--since: write a time" in called("export", "--since=monday").stderr
