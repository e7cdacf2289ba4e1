"""Lines of a log on their way: bounded, rotated, never waited for; what is not written is counted."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipway_gateway.telemetry.line_writer import QUEUE_FULL, REFUSED, WRITE_FAILED, LineWriter
from slipway_gateway.telemetry.rotated_file import OpenStream, RotatedFile, UnwrittenLines
from testkit.until import until_async

LINES = [b'{"n": %d}\n' % n for n in range(10)]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Stuck:
    """A sink whose write waits, as that of a full pipe does."""

    def __init__(self) -> None:
        self.entered, self.free = threading.Event(), threading.Event()
        self.taken: list[bytes] = []

    def write(self, lines: Sequence[bytes]) -> None:
        self.entered.set()
        self.free.wait(20)
        self.taken += lines

    def close(self) -> None:
        pass


def test_a_file_is_followed_by_the_next_and_the_oldest_goes(tmp_path: Path) -> None:
    log = RotatedFile(str(tmp_path / "log"), max_bytes=20, max_files=3)
    log.write(LINES)
    log.close()
    # 9 bytes each: two of them fit.
    assert files(tmp_path) == {
        "log": b"".join(LINES[8:]),
        "log.1": b"".join(LINES[6:8]),
        "log.2": b"".join(LINES[4:6]),
    }


def test_one_file_begins_again(tmp_path: Path) -> None:
    log = RotatedFile(str(tmp_path / "log"), max_bytes=20, max_files=1)
    log.write(LINES[:5])
    log.close()
    assert files(tmp_path) == {"log": LINES[4]}


def test_a_restart_appends_and_a_torn_line_ends(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"n": 0}\n{"n"')
    log = RotatedFile(str(tmp_path / "log"), max_bytes=1000, max_files=2)
    log.write(LINES[1:2])
    log.close()
    assert (tmp_path / "log").read_bytes() == b'{"n": 0}\n{"n"\n{"n": 1}\n'


@pytest.mark.parametrize("moves", [True, False])
def test_a_file_that_was_moved_or_deleted_is_made_again(tmp_path: Path, moves: bool) -> None:
    path = tmp_path / "log"
    log = RotatedFile(str(path), max_bytes=1000, max_files=2)
    log.write(LINES[:1])
    if moves:
        path.rename(tmp_path / "moved")
    else:
        path.unlink()
    log.write(LINES[1:2])
    log.close()
    assert path.read_bytes() == LINES[1]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is no regular file"):
        RotatedFile(str(tmp_path / "pipe"), 1000, 2)
    with pytest.raises(OSError, match="Is a directory"):
        RotatedFile(str(tmp_path), 1000, 2)


def test_a_full_disk_takes_whole_lines_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three lines it takes one and a half: two count as lost, and the half ends before the next line."""
    log = RotatedFile(str(tmp_path / "log"), max_bytes=1000, max_files=2)
    write, room = os.write, 13

    def until_full(descriptor: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        taken = write(descriptor, data[:room])
        room -= taken
        return taken

    with monkeypatch.context() as full:
        full.setattr(os, "write", until_full)
        with pytest.raises(UnwrittenLines, match="No space") as raised:
            log.write(LINES[:3])
        assert raised.value.count == 2
        with pytest.raises(UnwrittenLines) as raised:
            log.write(LINES[3:5])
        assert raised.value.count == 2
    log.write(LINES[5:6])
    log.close()
    assert (tmp_path / "log").read_bytes() == LINES[0] + LINES[1][:4] + b"\n" + LINES[5]


def test_a_closed_pipe_is_an_error_that_names_its_lines() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(UnwrittenLines) as raised:
        OpenStream(writing).write(LINES)
    os.close(writing)
    assert raised.value.count == len(LINES)


async def test_lines_wait_for_a_sink_that_is_stuck_up_to_a_bound_and_no_caller_does() -> None:
    dropped: Counter[str] = Counter()
    sink = Stuck()
    writer = LineWriter(sink, lambda reason, lines: dropped.update({reason: lines}), max_queued_bytes=30, interval_s=0)
    writer.put("client", LINES[0])
    await asyncio.to_thread(sink.entered.wait, 20)
    for line in LINES[1:]:
        writer.put("client", line)  # it returns, though the sink does not
    assert dropped == {QUEUE_FULL: 6}
    sink.free.set()
    await writer.close()
    assert sink.taken == [LINES[0], *LINES[-3:]]


async def test_a_sink_that_never_returns_does_not_keep_the_process() -> None:
    dropped: Counter[str] = Counter()
    sink = Stuck()
    writer = LineWriter(sink, lambda reason, lines: dropped.update({reason: lines}), interval_s=0)
    writer.put("client", LINES[0])
    await asyncio.to_thread(sink.entered.wait, 20)
    writer.put("client", LINES[1])
    await writer.close(timeout_s=0.05)
    assert dropped == {QUEUE_FULL: 1}
    sink.free.set()


async def test_lines_that_a_sink_refuses_are_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Stuck):
        def write(self, lines: Sequence[bytes]) -> None:
            raise UnwrittenLines(len(lines), OSError("no space"))

    dropped: Counter[str] = Counter()
    writer = LineWriter(Broken(), lambda reason, lines: dropped.update({reason: lines}), interval_s=0)
    for count, line in enumerate(LINES, 1):
        writer.put("client", line)
        await until_async(lambda count=count: dropped[WRITE_FAILED] == count)  # type: ignore[misc]
    await writer.close()
    assert dropped == {WRITE_FAILED: len(LINES)}
    assert [entry.message for entry in caplog.records if "no space" in entry.message] == [
        "the access log cannot be written, its lines are dropped: no space"
    ]


@pytest.mark.finding("F4")
async def test_a_line_that_a_sink_cannot_take_stops_no_other() -> None:
    """Any exception but one ended the thread for good, and all later lines were dropped for want of room."""

    class Picky(Stuck):
        def write(self, lines: Sequence[bytes]) -> None:
            if LINES[3] in lines:
                raise ValueError("poison")
            self.taken += lines

    dropped: Counter[str] = Counter()
    sink = Picky()
    writer = LineWriter(sink, lambda reason, lines: dropped.update({reason: lines}), interval_s=0)
    for line in LINES:
        writer.put("client", line)
    await until_async(lambda: len(sink.taken) == 9)
    await writer.close()
    assert sink.taken == [line for line in LINES if line != LINES[3]]
    assert dropped == {REFUSED: 1}


@pytest.mark.finding("F4")
async def test_its_thread_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    restarts: list[str] = []
    sink = Stuck()
    sink.free.set()
    writer = LineWriter(sink, lambda reason, lines: None, name="a log", interval_s=0, on_restart=restarts.append)
    with monkeypatch.context() as broken:
        broken.setattr(writer, "_take", lambda: 1 / 0)
        writer.put("client", LINES[0])
        await until_async(lambda: restarts)
    writer.put("client", LINES[1])
    await until_async(lambda: sink.taken == LINES[:2])
    await writer.close()
    assert set(restarts) == {"a log"}
