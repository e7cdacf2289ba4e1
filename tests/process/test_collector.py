"""What a process is made of is not walked by the collector any more, and cycles of requests still go."""

import asyncio
import contextlib
import gc
import subprocess
import sys
import weakref

import pytest

from slipway_process import collector
from testkit import ROOT
from testkit.until import until_async

PROGRAM = """
import gc, sys, weakref
sys.path.insert(0, "process")
from slipway_process import collector
kept = [[] for _ in range(50_000)]
collector.spare()
print(gc.get_freeze_count() > 50_000, len(gc.get_objects()) < 5_000)
class Node: pass
node = Node(); node.itself = node
gone = weakref.ref(node); del node
for _ in range(30):
    young = [[] for _ in range(11_000)]
print(gone() is None)
"""


def test_what_is_loaded_is_frozen_and_later_cycles_are_collected() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["True", "True", "True"], ran.stderr


class Held:
    """Holds itself, as a request held its task."""

    def __init__(self) -> None:
        self.itself = self


async def test_cycles_go_when_the_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "EACH_S", 0.01)
    sizes = [100 << 20]
    looks = 0

    def resident_bytes() -> int:
        nonlocal looks
        looks += 1
        return sizes[-1]

    gc.collect()
    gc.disable()
    task = asyncio.create_task(collector.collect_when_grown(resident_bytes))
    try:
        kept = weakref.ref(Held())
        await until_async(lambda: looks > 3, "it looked")
        assert kept() is not None, "nothing has grown"
        sizes.append((100 << 20) + collector.GROWN_BYTES)
        await until_async(lambda: kept() is None, "the cycle is gone")
        kept, before = weakref.ref(Held()), looks
        await until_async(lambda: looks > before + 3, "it looked")
        assert kept() is not None, "the size after the collection is the new one"
    finally:
        gc.enable()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_the_size_of_this_process_is_known() -> None:
    assert collector._resident_bytes() > 10 << 20
