"""How a version of another engine is judged, and how its rollout ends."""

from testkit.cluster.deployment import Deployment, Json, state_of

START_S = 420.0  # vLLM imports for a minute where nothing else computes
JUDGED_S = 420.0
# By what clients get and not by its speed: another engine on the same cores is faster or slower, and both are right.
ANSWERS: Json = {
    "minSamples": {"canaryRequests": 150, "warmupSeconds": 15},
    "metrics": [
        {"name": "errors", "event": "FirstAttemptError", "share": 0.4, "okBelow": 0.02},
        {"name": "empty", "event": "EmptyAnswer", "share": 0.2, "okBelow": 0.02},
        {"name": "truncated", "event": "TruncatedAnswer", "share": 0.2, "okBelow": 0.05},
        {"name": "repetition", "event": "RepetitiveAnswer", "share": 0.2, "okBelow": 0.02},
    ],
}


def until_promoted(chat: Deployment, version: str) -> Json:
    """A rejection of it ends the wait at once; the one before may still be on its way back."""

    def promoted(status: Json) -> bool:
        rollout = status.get("rollout") or {}
        is_current = rollout.get("revision") == status.get("currentRevision")
        assert not (is_current and state_of(status) in ("Aborting", "Aborted")), rollout.get("abort")
        return any(item.get("version") == version and item["role"] == "stable" for item in status["revisions"])

    return chat.until(f"{version} is promoted", promoted, START_S + JUDGED_S)


def until_rejected(chat: Deployment) -> Json:
    """Why the version in flight was rejected. A bad version that is promoted ends the wait at once."""
    stable = chat.status["stableRevision"]

    def rejected(status: Json) -> bool:
        assert status["stableRevision"] == stable, "the bad version was promoted"
        return state_of(status) in ("Aborting", "Aborted")

    return dict(chat.until("it is rejected", rejected, START_S + JUDGED_S)["rollout"]["abort"])
