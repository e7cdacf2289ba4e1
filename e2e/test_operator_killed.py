"""The operator is killed in every state of a canary: nothing is forgotten or done twice, and no request notices."""

from collections.abc import Callable
from typing import Any

from testkit.cluster.deployment import Deployment, Json, canary, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.load.closed import Load
from testkit.until import until


def test_operator_killed_in_every_state_of_a_canary(
    slipway: Installation, deploy: Callable[..., Deployment], load: Callable[[Deployment], Load]
) -> None:
    # The rejected pod stays while the attempt is made again: what is shown here is not how pods start.
    steps: tuple[Json, ...] = ({"setWeight": 50}, {"pause": {}})
    chat = deploy("v1", strategy=canary(*steps, rejected_leave_after_s=120))
    stable = chat.until_stable("v1")["stableRevision"]
    steady = load(chat)

    with slipway.partitioned():
        chat.release("v2")
        chat.until_state("Provisioning")
        slipway.kill_operator()
        chat.until_state("Shifting")
        shifting = chat.until("it waits for the third gateway", lambda status: "2 of 3 gateways" in status["message"])
        assert weights_of(shifting) == {"v2": 50, "v1": 50}
        assert shifting["weight"] == 0, "a weight counts when the gateways have it"
        assert_survives_a_kill(slipway, chat)
    paused = chat.until_state("Paused")
    assert (paused["weight"], weights_of(paused)) == (50, {"v2": 50, "v1": 50})
    assert_survives_a_kill(slipway, chat)

    with slipway.partitioned():
        attempt = chat.abort()
        aborting = chat.until_state("Aborting")
        assert weights_of(aborting) == {"v1": 100}
        assert_survives_a_kill(slipway, chat)
    rejected = chat.until_state("Aborted")
    assert (rejected["rollout"]["abort"]["reason"], rejected["abortedRevisions"]) == ("UserAbort", [attempt])

    chat.edit(rollout={"retry": attempt.replace("/1", "/2")})
    chat.until_state("Paused")
    with slipway.partitioned():
        chat.promote()
        promoting = chat.until_state("Promoting")
        assert weights_of(promoting) == {"v2": 100}
        assert_survives_a_kill(slipway, chat)
    done = chat.until_stable("v2")
    canary_revision = done["stableRevision"]
    assert done["previousRevision"] == stable
    assert "canaryRevision" not in done
    report = steady.stop()
    assert report.failures == ()
    chat.until_alone()
    left = {
        f"ReplicaSet {chat.name}-{canary_revision}",
        f"Service {chat.name}-{canary_revision}",
        f"ControllerRevision {chat.name}-{canary_revision}",
        f"ControllerRevision {chat.name}-{stable}",
    }
    until(lambda: kinds_of(chat.objects()) == left, "what the retired revision had is gone", 60)


def assert_survives_a_kill(slipway: Installation, chat: Deployment) -> None:
    """After a kill the next operator finds the same decisions and the same objects, and changes neither."""
    before, objects = chat.status, chat.objects()
    slipway.kill_operator()
    # An edit that decides nothing: its generation in the status proves that the new operator has looked.
    chat.edit(revisionHistoryLimit=before["observedGeneration"] % 5 + 3)
    after = chat.until(f"the next operator finds it {state_of(before)}", lambda status: state_of(status) is not None)
    assert decisions_of(after) == decisions_of(before)
    assert objects.items() <= chat.objects().items(), "the new operator replaced objects"


def decisions_of(status: Json) -> Json:
    """What the operator has decided; not what it sees, which goes on."""
    traffic = {key: value for key, value in status["traffic"].items() if key != "acknowledged"}
    remembered = ("stableRevision", "previousRevision", "canaryRevision", "abortedRevisions", "step", "weight")
    rollout: dict[str, Any] = {**status["rollout"], "progress": None, "progressAt": None}
    return {"traffic": traffic, "rollout": rollout} | {key: status.get(key) for key in remembered}


def kinds_of(objects: dict[str, str]) -> set[str]:
    return {name for name in objects if not name.startswith("Pod ")}
