"""Ways back under load: a broken revision, the user's abort, an edit back, a retry, a newer edit; no request fails."""

from collections.abc import Callable

from e2e.deployment import START_S, Deployment, canary, weights_of
from examples.demo.load import Load

HALF = canary({"setWeight": 50}, {"pause": {}})


def test_broken_revision_is_rejected_with_its_pods_own_reason(
    deploy: Callable[..., Deployment], load: Callable[[Deployment], Load]
) -> None:
    chat = deploy("v1", strategy=HALF)
    stable = chat.until_stable("v1")
    pods = chat.pod_uids()
    steady = load(chat)
    chat.release("broken", progressDeadlineSeconds=15)
    rejected = chat.until_state("Aborted")
    abort = rejected["rollout"]["abort"]
    assert abort["reason"] == "ProgressDeadlineExceeded"
    assert "model-00002-of-00002.safetensors" in abort["message"], (
        "the pod knows what is missing; the status should say it"
    )
    assert abort["message"] in rejected["message"]
    assert (rejected["phase"], rejected["stableRevision"]) == ("Degraded", stable["stableRevision"])
    assert weights_of(rejected) == {"v1": 100}

    chat.release("v1", progressDeadlineSeconds=600)
    chat.until_stable("v1")
    chat.until_alone()
    assert chat.pod_uids() == pods, "the stable pods were touched"
    report = steady.stop()
    assert report.failures == ()
    assert set(report.by_revision) == {stable["stableRevision"]}, "requests went to pods that never were ready"


def test_abort_retry_and_edit_back(deploy: Callable[..., Deployment], load: Callable[[Deployment], Load]) -> None:
    chat = deploy("v1", strategy=HALF)
    stable = chat.until_stable("v1")["stableRevision"]
    pods = chat.pod_uids()
    steady = load(chat)
    chat.release("v2")
    first = chat.until_state("Paused")
    wait_for_answers(steady, first["canaryRevision"])

    attempt = chat.abort()
    rejected = chat.until_state("Aborted")
    assert (rejected["rollout"]["abort"]["reason"], weights_of(rejected)) == ("UserAbort", {"v1": 100})
    assert f"serving stable {stable}; revision {first['canaryRevision']} was rejected" in rejected["message"]

    # The abort stays in the spec, as a GitOps tool would leave it: it must not hit the next attempt.
    chat.edit(rollout={"retry": attempt.replace("/1", "/2")})
    second = chat.until_state("Paused")
    assert second["rollout"]["token"].split("/")[1] == "2"
    assert second["traffic"]["salt"] != first["traffic"]["salt"], "a second attempt tests the same users again"
    assert second["abortedRevisions"] == [attempt]
    wait_for_answers(steady, second["canaryRevision"])

    chat.release("v1")
    back = chat.until_stable("v1")
    assert (back["phase"], back["stableRevision"]) == ("Healthy", stable)
    chat.until_alone()
    assert chat.pod_uids() == pods, "going back started or stopped stable pods"
    report = steady.stop()
    assert report.failures == ()
    assert {"RolloutAborted", "RolloutRetry"} <= chat.event_reasons()


def test_third_revision_supersedes_the_second(
    deploy: Callable[..., Deployment], load: Callable[[Deployment], Load]
) -> None:
    chat = deploy("v1", strategy=HALF)
    chat.until_stable("v1")
    steady = load(chat)
    chat.release("v2")
    second = chat.until_state("Paused")["canaryRevision"]
    wait_for_answers(steady, second)

    chat.release("v2-again")
    third = chat.until(
        "paused with the third", lambda status: weights_of(status) == {"v2-again": 50, "v1": 50}, START_S
    )
    assert third["canaryRevision"] != second
    assert f"{second}/1" in third["abortedRevisions"]
    chat.promote_full()
    chat.until_stable("v2-again")
    chat.until_alone()
    report = steady.stop()
    assert report.failures == ()
    assert "RevisionSuperseded" in chat.event_reasons()


def wait_for_answers(steady: Load, revision: str) -> None:
    """Until the load has whole answers of this revision: what follows happens while it carries requests."""
    before = steady.report()
    steady.wait_for(lambda report: report.since(before).by_revision.get(revision, 0) >= 5, 30, f"answers of {revision}")
