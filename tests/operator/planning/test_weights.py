"""One revision, one set of bytes: which report counts, which pods are not ready, and which are replaced."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from slipway_operator.model.cluster.observed import Observed, Pod, Snapshot, Workload
from slipway_operator.model.cluster.plan import Evict, Pin
from slipway_operator.model.cluster.weights import Weights
from slipway_operator.model.inputs.pod_inputs import Model, PodInputs, Resources
from slipway_operator.planning.facts import causes, weights
from slipway_operator.planning.facts.revision import same_weights

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
FIRST, SECOND = Weights("sha256:" + "1" * 64, "a" * 40), Weights("sha256:" + "2" * 64, "b" * 40)
SNAPSHOT = Snapshot("abcdefghij", 1, PodInputs(Model("hf://org/m", "chat", "main")), "server:1", 600, 2, name="record")


def pod(name: str, age_s: int, loaded: Weights | None, *, ready: bool = True) -> Pod:
    return Pod(name, NOW - timedelta(seconds=age_s), ready, weights=loaded)


def workload(*pods: Pod, revision: str = "abcdefghij") -> Workload:
    return Workload(revision, len(pods), len(pods), sum(item.ready for item in pods), pods=pods)


def seen(item: Workload, kept: Weights | None = None, **changes: object) -> Observed:
    snapshot = replace(SNAPSHOT, weights=kept, **changes)  # type: ignore[arg-type]
    return Observed(snapshots={"abcdefghij": snapshot}, workloads={item.revision: weights.held(item, snapshot)})


@pytest.mark.finding(20)
def test_the_oldest_report_is_kept() -> None:
    """Safety 20: one revision could serve two commits."""
    item = workload(pod("a", 10, SECOND), pod("b", 20, FIRST), pod("c", 30, None))
    assert weights.pins("chat", seen(item)) == (Pin("record", "chat-abcdefghij", FIRST),)
    assert weights.pins("chat", seen(item, SECOND)) == (Pin("record", "chat-abcdefghij", SECOND),)
    assert weights.pins("chat", seen(workload(pod("c", 30, None)))) == ()


def test_pod_with_other_weights_is_not_ready_and_reports_both_digests() -> None:
    item = workload(pod("a", 10, SECOND), pod("b", 20, FIRST), pod("c", 5, None))
    found = seen(item).workloads["abcdefghij"]
    assert (item.ready, found.ready) == (3, 2)
    cause = causes.of_workload(found, Resources())
    assert cause and cause.reason == "WeightsDiffer"
    assert (
        f"it loaded {SECOND.digest} at commit {SECOND.commit}; the revision is pinned to {FIRST.digest}"
        in cause.message
    )


def test_pods_make_way_one_at_a_time_and_only_once_there_is_a_pin_to_read() -> None:
    item = workload(pod("a", 30, FIRST), pod("b", 20, SECOND), pod("c", 10, SECOND, ready=False))
    assert weights.evictions(seen(item)) == ()
    assert weights.evictions(seen(item, FIRST)) == (Evict("c"),)
    assert weights.evictions(seen(workload(item.pods[0], item.pods[1]), FIRST)) == (Evict("b"),)
    assert weights.evictions(seen(workload(item.pods[0]), FIRST)) == ()


def test_a_worker_with_other_weights_takes_its_group_along() -> None:
    leaders = (replace(pod("g-0", 30, FIRST), group="0"), replace(pod("g-1", 30, FIRST), group="1"))
    workers = (replace(pod("g-0-1", 20, FIRST), group="0"), replace(pod("g-1-1", 20, SECOND), group="1"))
    item = replace(workload(*leaders), workers=workers)
    found = seen(item, FIRST)
    assert (item.ready, found.workloads["abcdefghij"].ready) == (2, 1)
    assert weights.evictions(found) == (Evict("g-1-1", with_group=True),)
    older = replace(item, workers=(replace(workers[1], created_at=NOW - timedelta(days=1)),))
    assert weights.pins("chat", seen(older))[0].weights == FIRST, "the pin is what a pod that serves loaded"


def test_a_baseline_is_held_to_what_it_runs() -> None:
    item = workload(pod("a", 10, SECOND), revision="abcdefghij-baseline")
    found = seen(item, FIRST)
    assert found.workloads["abcdefghij-baseline"].ready == 0
    assert weights.evictions(found) == (Evict("a"),)
    assert weights.pins("chat", found) == (Pin("record", "chat-abcdefghij", FIRST),)


def test_former_templates_have_no_pin() -> None:
    """Their pods could not read it: evicting them would never end."""
    item = workload(pod("a", 10, SECOND), pod("b", 20, FIRST))
    found = seen(item, template_version=1)
    assert (weights.pins("chat", found), weights.evictions(found)) == ((), ())
    assert found.workloads["abcdefghij"] == item


@pytest.mark.parametrize(("other", "same"), [(FIRST, True), (SECOND, False), (None, True)])
def test_a_branch_that_moved_between_revisions_is_another_model(other: Weights | None, same: bool) -> None:
    """Drift of answers is blamed on an image only where the bytes are the same."""
    assert same_weights(replace(SNAPSHOT, weights=FIRST), replace(SNAPSHOT, weights=other)) is same


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (f"hf://org/m has {SECOND.digest}; the revision is pinned to {FIRST.digest}.", 65, "WeightsDiffer"),
        ("There is no room for the model: 5 bytes more are needed, 1 are free.", 66, "StorageTooSmall"),
        ("hf://org/m has 5 bytes; the limit is 1.", 65, "StorageTooSmall"),
    ],
)  # fmt: skip
def test_the_fetchers_sentences_have_their_own_reasons(words: str, code: int, reason: str) -> None:
    trouble = causes.PodTrouble("p", "CrashLoopBackOff", f"container fetch: {words[:-1]} (exit code {code})", code)
    cause = causes.of_workload(Workload("r", 1, 1, 0, (trouble,)), Resources())
    assert cause and cause.reason == reason
