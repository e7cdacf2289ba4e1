"""What a process is made of is not walked by the collector any more, and cycles of requests still go."""

import subprocess
import sys

from testkit import ROOT

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
