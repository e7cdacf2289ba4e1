"""Ways back under load: a broken revision, the user's abort, an edit back, a retry, a newer edit; no request fails."""

from collections.abc import Callable, Iterator

import pytest

from testkit.cluster.deployment import START_S, Deployment, canary, weights_of
from testkit.cluster.installation import Installation
from testkit.load.closed import Load

HALF = canary({"setWeight": 50}, {"pause": {}})
# Within this time a retry finds the pods of the aborted attempt.
HALF_AND_STAY = canary({"setWeight": 50}, {"pause": {}}, rejected_leave_after_s=60)


@pytest.fixture(scope="module")
def served(slipway: Installation) -> Iterator[Deployment]:
    with slipway.deployed("v1", strategy=HALF) as made:
        made.until_stable("v1")
        yield made


@pytest.fixture
def chat(served: Deployment) -> Deployment:
    """The same for all tests here: each leaves a revision that serves alone, whichever that is."""
    served.until_stable(version_of(served))
    served.until_alone()
    return served


def version_of(chat: Deployment) -> str:
    """The version that gets all requests."""
    [version] = weights_of(chat.status)
    return version


def test_broken_revision_is_rejected_with_its_pods_own_reason(
    chat: Deployment, load: Callable[[Deployment], Load]
) -> None:
    former, stable, pods = version_of(chat), chat.status["stableRevision"], chat.pod_uids()
    steady = load(chat)
    chat.release("broken", progressDeadlineSeconds=15)
    rejected = chat.until_state("Aborted")
    abort = rejected["rollout"]["abort"]
    assert abort["reason"] == "ProgressDeadlineExceeded"
    assert "model-00002-of-00002.safetensors" in abort["message"], (
        "the pod knows what is missing; the status should contain it"
    )
    assert abort["message"] in rejected["message"]
    assert (rejected["phase"], rejected["stableRevision"]) == ("Degraded", stable)
    assert weights_of(rejected) == {former: 100}

    chat.release(former, progressDeadlineSeconds=600)
    chat.until_stable(former)
    chat.until_alone()
    assert chat.pod_uids() == pods, "the stable pods were touched"
    report = steady.stop()
    assert report.failures == ()
    assert set(report.by_revision) == {stable}, "requests went to pods that never were ready"


def test_abort_retry_and_edit_back(chat: Deployment, load: Callable[[Deployment], Load]) -> None:
    former, stable, pods = version_of(chat), chat.status["stableRevision"], chat.pod_uids()
    steady = load(chat)
    chat.release("v2", strategy=HALF_AND_STAY)
    first = chat.until_state("Paused")
    wait_for_answers(steady, first["canaryRevision"])

    attempt = chat.abort()
    rejected = chat.until_state("Aborted")
    assert (rejected["rollout"]["abort"]["reason"], weights_of(rejected)) == ("UserAbort", {former: 100})
    assert f"serving stable {stable}; revision {first['canaryRevision']} was rejected" in rejected["message"]

    # The abort stays in the spec, as a GitOps tool would leave it: it must not hit the next attempt.
    chat.edit(rollout={"retry": next_of(attempt)})
    second = chat.until_state("Paused")
    assert second["rollout"]["token"].split("/")[1] == next_of(attempt).split("/")[1]
    assert second["traffic"]["salt"] != first["traffic"]["salt"], "a second attempt tests the same users again"
    assert attempt in second["abortedRevisions"]
    wait_for_answers(steady, second["canaryRevision"])

    chat.release(former, strategy=HALF)
    back = chat.until_stable(former)
    assert (back["phase"], back["stableRevision"]) == ("Healthy", stable)
    chat.until_alone()
    assert chat.pod_uids() == pods, "going back started or stopped stable pods"
    report = steady.stop()
    assert report.failures == ()
    chat.until_events("RolloutAborted", "RolloutRetry")


def next_of(attempt: str) -> str:
    """REVISION/NUMBER of the attempt after this one."""
    revision, _, number = attempt.rpartition("/")
    return f"{revision}/{int(number) + 1}"


def test_third_revision_supersedes_the_second(chat: Deployment, load: Callable[[Deployment], Load]) -> None:
    former = version_of(chat)
    steady = load(chat)
    chat.release("v2")
    second = chat.until_state("Paused")["canaryRevision"]
    wait_for_answers(steady, second)

    chat.release("v2-again")
    third = chat.until(
        "paused with the third", lambda status: weights_of(status) == {"v2-again": 50, former: 50}, START_S
    )
    assert third["canaryRevision"] != second
    assert any(attempt.startswith(f"{second}/") for attempt in third["abortedRevisions"])
    chat.promote_full()
    chat.until_stable("v2-again")
    chat.until_alone()
    report = steady.stop()
    assert report.failures == ()
    chat.until_events("RevisionSuperseded")


def wait_for_answers(steady: Load, revision: str) -> None:
    """Until the load has whole answers of this revision: what follows happens while it carries requests."""
    before = steady.report()
    steady.wait_for(lambda report: report.since(before).by_revision.get(revision, 0) >= 5, 30, f"answers of {revision}")
