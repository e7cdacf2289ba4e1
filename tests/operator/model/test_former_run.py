"""Statuses that the release before AnalysisRuns wrote in the middle of an analysis: their counts are taken over."""

import base64
import copy
import functools
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.status import AnalysisReference, Loss, Status
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.deployment import status as status_room
from slipway_operator.model.deployment.former_run import former_run
from slipway_operator.planning.analysis.continuing import continued, identified, writes

RECORDINGS = Path(__file__).parent / "recordings" / "packed_statuses.json"  # written by the release before
OWNER = Owner("chat", "default", "u1")


@functools.cache
def _recorded() -> dict[str, Any]:
    return dict(json.loads(RECORDINGS.read_text()))


def recorded() -> dict[str, Any]:
    return copy.deepcopy(_recorded())


def parsed(name: str) -> Status:
    return status_room.parse(recorded()[name]["status"])


def reference(name: str) -> AnalysisReference:
    rollout = parsed(name).rollout
    assert rollout and rollout.analysis
    return rollout.analysis


def unpacked(name: str) -> dict[str, Any]:
    text = recorded()[name]["status"]["rollout"]["analysis"]["counters"]
    return dict(json.loads(zlib.decompress(base64.b64decode(text))))


@pytest.mark.parametrize("name", ["step", "ramp"])
def test_counts_and_counters_are_taken_over_by_name(name: str) -> None:
    run, packed = former_run(reference(name)), unpacked(name)
    assert run and packed["counts"] and packed["seen"]
    for item, former in zip(run.counts, packed["counts"], strict=True):
        assert item.metric == former["metric"]
        for epoch, old in zip(item.epochs, former["epochs"], strict=True):
            found = epoch.weight, epoch.canary_units, epoch.stable_units, epoch.canary_bad, epoch.stable_bad
            assert found == tuple(old.get(key, 0) for key in ("w", "nc", "ns", "kc", "ks"))
    for seen, old in zip(run.seen, packed["seen"], strict=True):
        numbers = [seen.canary_assigned, seen.stable_assigned]
        for item in run.counts:
            four = seen.counts[item.metric]
            numbers += [four.canary_units, four.stable_units, four.canary_bad, four.stable_bad]
        assert numbers == old["totals"]
    assert (run.ramp is not None) == (name == "ramp") and run.verdict is None


@pytest.mark.parametrize("name", ["step", "ramp"])
def test_the_run_is_created_before_the_status_loses_the_counters(name: str) -> None:
    """Where runs cannot be written, the counters stay in the status."""
    rollout = parsed(name).rollout
    assert rollout and rollout.analysis
    kept, none = continued(rollout, {}, OWNER, writable=False)
    assert (kept, none) == (rollout, {})
    moved, runs = continued(rollout, {}, OWNER)
    assert moved and moved.analysis and moved.analysis.counters is None
    assert (moved.analysis.sequence, moved.analysis.verdict) == (1, rollout.analysis.verdict)
    write = next(iter(writes(moved, runs, {})))
    assert (write.name, write.run.sequence, write.former) == (moved.analysis.run, 1, None)
    named = identified(moved, {write.name: "uid"})
    assert named and named.analysis and named.analysis.uid == "uid"


def forged(**changes: Any) -> str:
    packed = unpacked("step") | changes
    return base64.b64encode(zlib.compress(json.dumps(packed).encode())).decode()


@pytest.mark.parametrize(
    "text",
    [
        "", "ä", "abc",
        base64.b64encode(b"abc").decode(),
        base64.b64encode(zlib.compress(b"[1]")).decode(),
        base64.b64encode(zlib.compress(b"[" * 100_000)).decode(),
        base64.b64encode(zlib.compress(b" " * 40_000_000)).decode(),
        forged(counts=[{"metric": "errors", "epochs": [{"w": 25, "nc": 1, "kc": 2}]}]),
        forged(counts=[{"metric": "errors", "epochs": [{"weight": 25}]}]),
        forged(counts=1),
        forged(seen=[{"incarnation": "a", "generation": 1, "totals": [1, 2, 3]}]),
        forged(seen=[{"incarnation": "a", "generation": 1, "totals": []}]),
        forged(templateHash=None),
    ],
)  # fmt: skip
def test_text_that_makes_no_sense_starts_the_analysis_again(text: str) -> None:
    status = recorded()["step"]["status"]
    status["rollout"]["analysis"] |= {"counters": text, "verdict": status["rollout"]["analysis"].get("verdict")}
    rollout = status_room.parse(status).rollout
    assert rollout and rollout.analysis and former_run(rollout.analysis) is None
    kept, runs = continued(rollout, {}, OWNER)
    assert kept and kept.analysis and "analysis" not in runs
    assert (kept.analysis.lost, kept.analysis.verdict, kept.analysis.sequence) == (Loss.UNREADABLE, None, 0)
