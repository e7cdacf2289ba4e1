"""A canary under load: 10, pause, scaled, 50, pause, promoted; no request fails and no pod of it restarts."""

from collections.abc import Callable

from e2e.asking import assert_share, homes, split
from testkit.cluster.deployment import START_S, Deployment, weights_of
from testkit.cluster.installation import Installation
from testkit.load.closed import Load

USERS = [f"user-{number}" for number in range(40)]
SAMPLE = 400


def test_canary_steps_through_its_weights_under_load(
    slipway: Installation, deploy: Callable[..., Deployment], load: Callable[[Deployment], Load]
) -> None:
    chat = deploy("v1")
    stable = chat.until_stable("v1")["stableRevision"]
    steady = load(chat)

    chat.release("v2")
    paused = chat.until_state("Paused")
    canary = paused["canaryRevision"]
    assert (paused["step"], paused["weight"], weights_of(paused)) == ("2/4", 10, {"v2": 10, "v1": 90})
    assert f"set spec.rollout.promote to {paused['rollout']['token']}" in paused["message"]
    assert_share(split(slipway.url, chat.model, SAMPLE), canary, 10)
    at_ten = homes(slipway.url, chat.model, USERS)
    assert homes(slipway.url, chat.model, USERS) == at_ten, "a user moved while the weights stood still"
    pods_of_canary = chat.pod_uids(canary)

    chat.scale(2)
    chat.until("two stable pods and one of the canary are ready", lambda status: status["ready"] == "3/3", START_S)
    chat.promote()
    paused = chat.until("it pauses at 50", lambda status: (status["step"], status["phase"]) == ("4/4", "Paused"))
    assert (paused["weight"], weights_of(paused)) == (50, {"v2": 50, "v1": 50})
    assert_share(split(slipway.url, chat.model, SAMPLE), canary, 50)
    at_fifty = homes(slipway.url, chat.model, USERS)
    left = {user for user, home in at_ten.items() if home == canary and at_fifty[user] == stable}
    assert not left, "raising the weight moved users away from the canary"
    assert set(at_fifty.values()) == {stable, canary}

    chat.promote()
    done = chat.until_stable("v2")
    assert (done["ready"], done["previousRevision"]) == ("2/2", stable)
    assert pods_of_canary < chat.pod_uids(canary), "the promotion restarted the canary's pod"
    chat.until_alone()
    assert set(homes(slipway.url, chat.model, USERS[:8]).values()) == {canary}

    chat.scale(1)
    chat.until("one pod is left", lambda status: status["replicas"] == 1 and len(chat.pods()) == 1)
    report = steady.stop()
    assert report.failures == ()
    assert set(report.by_revision) == {stable, canary}
    chat.until_events("RolloutUpdated", "RolloutPaused", "RolloutStepCompleted", "RolloutCompleted")
