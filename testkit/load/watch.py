"""What the neighbours of a request notice: pauses of answers and of probes, and the memory of the server's processes.

with Watch(Observed(probe_url, [pid], url, body)) as watch:
    noticed = watch.during(lambda: send(large_body))
    assert noticed.pause_s < 0.1 and noticed.growth_bytes < 256 << 20
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

import msgspec

from testkit import ROOT
from testkit.load.watcher import ANSWERS, IDLE, PROBE, Observed, Pause
from testkit.until import until
from testkit.world import proc

SAMPLE_S = 0.004  # between two looks at the memory
SETTLE_S = 0.1  # after the work, in which its pauses still count


@dataclass(frozen=True, slots=True)
class Noticed:
    """`pause_s`: the longest pause of a neighbour, less the longest one of an idle process in the same seconds.

    The time in which the server waited for a core that other programs had is no part of its pauses.
    `growth_bytes`: resident memory of the server's process at its peak, above that when the watch began;
    `children_bytes`: of all its children together, likewise. `troubles`: errors that neighbours got.
    """

    pause_s: float
    growth_bytes: int
    children_bytes: int
    troubles: tuple[str, ...]


class Watch:
    """Watches one server from outside. The first one of its `pids` is the process that serves."""

    def __init__(self, observed: Observed) -> None:
        self._command = [sys.executable, "-m", "testkit.load.watcher", msgspec.json.encode(observed).decode()]
        self._kinds = {IDLE, PROBE, ANSWERS}
        self._pid = observed.pids[0]
        self._pauses: list[Pause] = []
        self._base = self._children_base = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait_for(time.monotonic())
        self._base, self._children_base = proc.rss_bytes(self._pid), _children_bytes(self._pid)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._reader.join()  # it ends with the process, whose last line is whole
        self._process.stdout.close()
        self._process.wait()

    def during(self, work: Callable[[], object]) -> Noticed:
        """Run `work`; return what was noticed while it ran. Its exceptions pass."""
        first = len(self._pauses)
        began_s = time.monotonic()
        with _Peak(self._pid) as peak:
            work()
            time.sleep(SETTLE_S)
        self._wait_for(time.monotonic())
        return noticed(
            [pause for pause in self._pauses[first:] if pause.end_s > began_s],
            peak.own_bytes - self._base,
            peak.children_bytes - self._children_base,
        )

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._pauses.append(msgspec.json.decode(line, type=Pause))

    def _wait_for(self, moment_s: float) -> None:
        """Until each kind has moved after this moment: a pause is written down when it is over."""

        def latest() -> set[str]:
            assert self._process.poll() is None, "the watcher has ended"
            return {pause.kind for pause in self._pauses[-1000:] if pause.end_s > moment_s}

        until(latest, "a line of each kind after the work", holds=lambda kinds: kinds >= self._kinds)


def noticed(pauses: Iterable[Pause], growth_bytes: int, children_bytes: int) -> Noticed:
    """The summary of these pauses, which all fall into the same seconds."""
    longest = {IDLE: 0.0, "others": 0.0}
    troubles = []
    for pause in pauses:
        kind = IDLE if pause.kind == IDLE else "others"
        longest[kind] = max(longest[kind], pause.end_s - pause.start_s - pause.waited_s)
        troubles += [f"{pause.kind}: {pause.trouble}"] if pause.trouble else []
    return Noticed(max(0.0, longest["others"] - longest[IDLE]), growth_bytes, children_bytes, tuple(troubles))


def best(attempts: Iterable[Noticed]) -> Noticed:
    """Of several attempts the shortest pause; memory and troubles of all of them."""
    seen = list(attempts)
    return Noticed(
        min(one.pause_s for one in seen),
        max(one.growth_bytes for one in seen),
        max(one.children_bytes for one in seen),
        tuple(trouble for one in seen for trouble in one.troubles),
    )


class _Peak:
    """The most resident memory of a process and of its children, while it is open."""

    def __init__(self, pid: int) -> None:
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.own_bytes = self.children_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.own_bytes = max(self.own_bytes, proc.rss_bytes(self._pid))
            self.children_bytes = max(self.children_bytes, _children_bytes(self._pid))


def _children_bytes(pid: int) -> int:
    return sum(map(proc.rss_bytes, proc.family(pid)[1:]))
