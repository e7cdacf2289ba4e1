"""`slipway audit verify` needs no cluster."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from slipway_cli.commands.root import cli
from slipway_contracts.hash_chain import FIRST_PREV, digest, link


def chain(path: Path, count: int) -> list[str]:
    """Writes a chain; returns its digests."""
    lines, digests = [], [FIRST_PREV]
    for seq in range(1, count + 1):
        lines.append(link({"action": "changed"}, seq, digests[-1]))
        digests.append(digest(lines[-1]))
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return digests[1:]


def verify(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["audit", "verify", *arguments])
    return done.exit_code, f"{done.output}{done.exception or ''}"


def test_a_whole_chain_and_its_last_digest(tmp_path: Path) -> None:
    digests = chain(tmp_path / "log", 3)
    assert verify(str(tmp_path / "log")) == (0, f"3 lines are whole; the last one has the digest {digests[-1]}\n")
    assert verify(str(tmp_path / "log"), "--has", digests[1])[0] == 0


def test_lines_that_were_cut_off_miss_a_digest(tmp_path: Path) -> None:
    digests = chain(tmp_path / "log", 3)
    chain(tmp_path / "log", 2)
    code, text = verify(str(tmp_path / "log"), "--has", digests[2])
    assert code != 0 and "lines were cut off" in text


@pytest.mark.parametrize(("content", "named"), [(b"{}\n", "line 1: seq is None"), (None, "cannot be read")])
def test_what_is_no_chain_is_named(tmp_path: Path, content: bytes | None, named: str) -> None:
    if content is not None:
        (tmp_path / "log").write_bytes(content)
    code, text = verify(str(tmp_path / "log"))
    assert code != 0 and named in text
