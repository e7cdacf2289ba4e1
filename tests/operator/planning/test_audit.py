"""What the audit log records: each change once, with the clients that the API server names."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from slipway_operator.planning import audit
from slipway_operator.planning.audit import MODEL_DEPLOYMENT, TENANT, Record, Recorded

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
BEGUN = NOW - timedelta(hours=1)


def entry(manager: str, time: str, **fields: Any) -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "time": time, "fieldsV1": {"f:spec": fields}}


def deployment(generation: int = 1, **spec: Any) -> dict[str, Any]:
    meta = {"namespace": "ml", "name": "chat", "uid": "u1", "creationTimestamp": "2026-11-25T11:59:00Z"}
    whole = {"model": {"uri": "hf://a/b", "version": "1"}, "replicas": 2} | spec
    return {"metadata": meta | {"generation": generation, "managedFields": []}, "spec": whole}


def tenant(generation: int = 1, *keys: dict[str, Any], **spec: Any) -> dict[str, Any]:
    meta = {"name": "team-a", "uid": "t1", "creationTimestamp": "2026-11-25T11:00:00Z", "generation": generation}
    return {"metadata": meta | {"managedFields": []}, "spec": {"models": ["*"], "auth": {"keys": list(keys)}} | spec}


class Log:
    """What the log has, as an operator that reads it knows it."""

    def __init__(self, since: datetime | None = BEGUN) -> None:
        self.known: dict[str, Recorded] = {}
        self.since = since

    def look(self, kind: str, obj: dict[str, Any], now: datetime = NOW) -> list[Record]:
        found = audit.records(kind, obj, self.known.get(obj["metadata"]["uid"]), now, self.since)
        for record in found:
            audit.remembered(self.known, record)
        assert not audit.records(kind, obj, self.known[obj["metadata"]["uid"]], now, self.since), "each once"
        return found


def test_an_object_is_created_or_was_there_before() -> None:
    (record,) = Log().look(MODEL_DEPLOYMENT, deployment())
    assert (record["action"], record["namespace"], record["name"], record["generation"]) == ("created", "ml", "chat", 1)
    assert Log(NOW).look(MODEL_DEPLOYMENT, deployment())[0]["action"] == "found"


def test_each_part_that_changes_has_a_record_with_its_managers() -> None:
    log = Log()
    log.look(MODEL_DEPLOYMENT, deployment())
    obj = deployment(2, model={"uri": "hf://a/b", "version": "2"}, rollout={"abort": "r1/1"}, replicas=3)
    obj["metadata"]["managedFields"] = [
        entry("kubectl-patch", "2026-11-25T11:58:00Z", **{"f:model": {"f:version": {}}}),
        entry("argocd", "2026-11-25T11:59:00Z", **{"f:rollout": {"f:abort": {}}, "f:model": {}}),
        entry("slipway-operator", "2026-11-25T12:00:00Z") | {"subresource": "status"},
    ]
    found = {record["field"]: record for record in log.look(MODEL_DEPLOYMENT, obj)}
    assert {name: record["action"] for name, record in found.items()} == {
        "spec.model": "changed",
        "spec.rollout.abort": "added",
        "spec": "changed",
    }
    assert [one["manager"] for one in found["spec.model"]["by"]] == ["argocd", "kubectl-patch"]
    assert [one["manager"] for one in found["spec.rollout.abort"]["by"]] == ["argocd"]
    assert found["spec.model"]["to"] == '{"uri":"hf://a/b","version":"2"}'
    assert found["spec.rollout.abort"]["to"] == '"r1/1"'
    removed = log.look(MODEL_DEPLOYMENT, deployment(3, model={"uri": "hf://a/b", "version": "2"}, replicas=3))
    assert [(record["action"], record["field"]) for record in removed] == [("removed", "spec.rollout.abort")]


def test_a_change_that_was_taken_back_between_two_looks_is_recorded() -> None:
    log = Log()
    log.look(MODEL_DEPLOYMENT, deployment())
    (record,) = log.look(MODEL_DEPLOYMENT, deployment(3))
    assert (record["action"], record["generation"]) == ("changed", 3) and "field" not in record


def test_a_version_older_than_the_log_is_no_change() -> None:
    """A cache may be behind what another operator recorded."""
    log = Log()
    log.look(MODEL_DEPLOYMENT, deployment(2, replicas=3))
    assert audit.records(MODEL_DEPLOYMENT, deployment(), log.known["u1"], NOW, BEGUN) == []


def test_each_decision_has_one_record_also_of_the_same_second() -> None:
    log = Log()
    obj = deployment()
    lines = ["2026-11-25T11:59:01Z new-revision: r2 goes out (Normal RolloutUpdated)"]
    obj["status"] = {"decisions": lines}
    assert [one["action"] for one in log.look(MODEL_DEPLOYMENT, obj)] == ["created", "decided"]
    later = copy.deepcopy(obj)
    later["status"]["decisions"] = [
        *lines,
        "2026-11-25T11:59:09Z step-done: step 1 is done",
        "2026-11-25T11:59:09Z user-abort: revision r2, attempt 1, is rejected: by the user (Warning RolloutAborted)",
    ]
    first, second = log.look(MODEL_DEPLOYMENT, later)
    assert (first["row"], second["row"], second["reason"]) == ("step-done", "user-abort", "RolloutAborted")
    assert second["message"].endswith("by the user")


def test_keys_are_added_changed_expired_and_removed_without_their_hashes() -> None:
    log = Log()
    first = {"id": "k7Qm2x", "hash": "hmac-sha256:" + "a" * 64}
    log.look(TENANT, tenant(1))
    (added,) = log.look(TENANT, tenant(2, first))
    assert (added["action"], added["field"], added["to"]) == ("added", "spec.auth.keys[k7Qm2x]", '{"id":"k7Qm2x"}')
    ends = first | {"expiresAt": "2026-11-25T12:30:00Z"}
    (changed,) = log.look(TENANT, tenant(3, ends))
    assert changed["action"] == "changed" and "12:30" in changed["to"]
    assert log.look(TENANT, tenant(3, ends)) == []
    (expired,) = log.look(TENANT, tenant(3, ends), NOW + timedelta(hours=1))
    assert (expired["action"], expired["field"]) == ("expired", "spec.auth.keys[k7Qm2x].expired")
    (removed,) = log.look(TENANT, tenant(4), NOW + timedelta(hours=1))
    assert (removed["action"], removed["field"]) == ("removed", "spec.auth.keys[k7Qm2x]")
    assert "hmac" not in str([added, changed, expired, removed])


def test_the_manager_of_a_key_is_named() -> None:
    log = Log()
    log.look(TENANT, tenant(1))
    obj = tenant(2, {"id": "k7Qm2x", "hash": "h"}, disabled=True)
    keys = {'k:{"id":"k7Qm2x"}': {".": {}}}
    obj["metadata"]["managedFields"] = [
        entry("slipway", "2026-11-25T11:58:00Z", **{"f:auth": {"f:keys": keys}}),
        entry("kubectl-edit", "2026-11-25T11:59:00Z", **{"f:disabled": {}}),
    ]
    found = {record["field"]: record["by"] for record in log.look(TENANT, obj)}
    assert [one["manager"] for one in found["spec.auth.keys[k7Qm2x]"]] == ["slipway"]
    assert [one["manager"] for one in found["spec.disabled"]] == ["kubectl-edit"]


def test_a_deleted_object_is_forgotten() -> None:
    log = Log()
    log.look(TENANT, tenant(1))
    record = audit.gone("t1", log.known["t1"])
    audit.remembered(log.known, record)
    assert (record["action"], record["name"]) == ("deleted", "team-a") and log.known == {}


def test_odd_objects_and_records_stop_nothing() -> None:
    log = Log()
    obj = tenant(1, {"id": "k7Qm2x", "expiresAt": "9999-99-99T00:00:00Z"}, {"id": "k8Qm2x", "expiresAt": "soon"})
    obj["metadata"]["managedFields"] = [{"manager": 1, "fieldsV1": None}, {"manager": "x" * 1000}]
    (record,) = log.look(TENANT, obj)
    assert all(len(one["manager"]) <= audit.MAX_NAME for one in record["by"])
    for odd in ({}, {"uid": 1}, {"uid": "u", "fields": 1, "generation": "x", "decision": None}, {"action": "begun"}):
        audit.remembered(log.known, odd)
