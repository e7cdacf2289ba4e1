"""What the audit log records of ModelDeployments, ModelAdapters and Tenants (pure): how they differ from what it has.

Each record has what the next comparison needs, so that the log itself is the memory of the operator that writes it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from slipway_contracts.api.times import format_time
from slipway_operator.api.objects import Object
from slipway_operator.model.deployment import status

Record = dict[str, Any]

MODEL_DEPLOYMENT, MODEL_ADAPTER, TENANT = "ModelDeployment", "ModelAdapter", "Tenant"
ROLLED_OUT = (MODEL_DEPLOYMENT, MODEL_ADAPTER)  # kinds that the operator decides about
INTENTS = ("promote", "promoteFull", "abort", "retry")
REST = "spec"  # all fields of a spec that are not recorded by their own path
MAX_TEXT, MAX_NAME, MAX_MANAGERS = 1024, 128, 3
MAX_DECISIONS = 40  # remembered of one object; its status has half as many


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the log has of one object. `fields`: digests of the followed parts of its spec, by path."""

    kind: str
    namespace: str
    name: str
    generation: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    decisions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FollowedPart:
    """A part of a spec whose changes are recorded. `managed`: its path in the fieldsV1 of managedFields."""

    value: Any
    managed: tuple[str, ...]


def records(kind: str, obj: Object, former: Recorded | None, now: datetime, since: datetime | None) -> list[Record]:
    """Records of what changed in an object since `former`; None for an object that the log does not have yet.

    `since`: when the log began; an object that existed before is recorded as found, not as created.
    """
    about = _about(kind, obj)
    parts = _parts(kind, obj)
    if former is None:
        created = moment(obj["metadata"].get("creationTimestamp"))
        is_new = created is not None and since is not None and created >= since.replace(microsecond=0)
        action = "created" if is_new else "found"
        fields = {name: _digest(part.value) for name, part in parts.items()}
        first = about | {"action": action, "fields": fields, "by": writers(obj, ("f:spec",))}
        return [first, *_decided(about, obj, ()), *_expired(about, kind, obj, fields, now)]
    changed = list(_changed(about, obj, parts, former)) if about["generation"] > former.generation else []
    expired = _expired(about, kind, obj, former.fields, now)
    return [*changed, *_decided(about, obj, former.decisions), *expired]


def gone(uid: str, former: Recorded) -> Record:
    """The record of a deleted object. `by` is empty, because the API server does not keep who deleted it."""
    about = {"kind": former.kind, "namespace": former.namespace, "name": former.name, "uid": uid}
    return about | {"generation": former.generation, "action": "deleted", "by": []}


def shortened(record: Record) -> Record:
    """A record that says of which object it is and what happened, without what made it too long for a line."""
    kept = ("kind", "namespace", "name", "uid", "generation", "action")
    return {name: record[name] for name in kept if name in record} | {"whole": False}


def remembered(known: dict[str, Recorded], record: Record) -> None:
    """Update `known`, what the log has by uid, with a record. Records of other releases may lack fields."""
    uid, action = str(record.get("uid", "")), record.get("action")
    if not uid:
        return
    if action == "deleted":
        known.pop(uid, None)
        return
    kind, namespace, name = (str(record.get(part, "")) for part in ("kind", "namespace", "name"))
    one = known.get(uid) or Recorded(kind, namespace, name)
    fields = dict(one.fields)
    if isinstance(given := record.get("fields"), dict):
        fields = {str(name): str(value) for name, value in given.items()}
    if "field" in record:
        fields[str(record["field"])] = str(record.get("digest", ""))
        if action == "removed":
            del fields[str(record["field"])]
    decisions = one.decisions
    if "decision" in record:
        decisions = (*decisions, str(record["decision"]))[-MAX_DECISIONS:]
    generation = record.get("generation")
    known[uid] = replace(
        one,
        generation=generation if isinstance(generation, int) else one.generation,
        fields=fields,
        decisions=decisions,
    )


def _about(kind: str, obj: Object) -> Record:
    meta = obj["metadata"]
    names = {"kind": kind, "namespace": meta.get("namespace", ""), "name": meta["name"], "uid": meta["uid"]}
    return names | {"generation": int(meta.get("generation") or 0)}


def _parts(kind: str, obj: Object) -> dict[str, FollowedPart]:
    spec = dict(obj.get("spec") or {})
    if kind == TENANT:
        return dict(_of_tenant(spec))
    rollout = dict(spec.pop("rollout", None) or {})
    found = {"spec.model": FollowedPart(spec.pop("model", None), ("f:spec", "f:model"))}
    for name in INTENTS:
        if name in rollout:
            found[f"spec.rollout.{name}"] = FollowedPart(rollout.pop(name), ("f:spec", "f:rollout", f"f:{name}"))
    if rollout:
        spec["rollout"] = rollout
    if "paused" in spec:
        found["spec.paused"] = FollowedPart(spec.pop("paused"), ("f:spec", "f:paused"))
    return found | {REST: FollowedPart(spec, ("f:spec",))}


def _of_tenant(spec: Object) -> Iterator[tuple[str, FollowedPart]]:
    auth = dict(spec.pop("auth", None) or {})
    for key in auth.pop("keys", None) or ():
        id_ = str(key.get("id", ""))
        selector = "k:" + json.dumps({"id": id_}, separators=(",", ":"))
        yield f"spec.auth.keys[{id_[:64]}]", FollowedPart(key, ("f:spec", "f:auth", "f:keys", selector))
    if auth:
        spec["auth"] = auth
    if "disabled" in spec:
        yield "spec.disabled", FollowedPart(spec.pop("disabled"), ("f:spec", "f:disabled"))
    yield REST, FollowedPart(spec, ("f:spec",))


def _changed(about: Record, obj: Object, parts: Mapping[str, FollowedPart], former: Recorded) -> Iterator[Record]:
    found = False
    for name, part in parts.items():
        value = _digest(part.value)
        if former.fields.get(name) == value:
            continue
        found = True
        action = "changed" if name in former.fields else "added"
        by = writers(obj, part.managed)
        yield about | {"action": action, "field": name, "digest": value, "to": _shown(name, part.value), "by": by}
    for name in sorted(name for name in former.fields if name not in parts and not name.endswith(".expired")):
        found = True
        yield about | {"action": "removed", "field": name, "by": writers(obj, ())}
    if not found:
        # It was changed and changed back between two looks.
        yield about | {"action": "changed", "by": writers(obj, ())}


def _decided(about: Record, obj: Object, known: tuple[str, ...]) -> Iterator[Record]:
    if about["kind"] not in ROLLED_OUT:
        return
    for one in status.parse(obj.get("status")).decisions:
        row, reason = one.row[:MAX_NAME], (one.reason or "")[:MAX_NAME]
        text = f"{format_time(one.at)} {row} {_digest(one.message)}"
        if text not in known:
            what = {"decision": text, "row": row, "message": one.message[:MAX_TEXT], "reason": reason}
            yield about | {"action": "decided", **what, "by": [{"manager": "slipway-operator"}]}


def _expired(about: Record, kind: str, obj: Object, known: Mapping[str, str], now: datetime) -> list[Record]:
    """Records of a Tenant's keys that have expired and are not recorded as such; `by` is empty: no client did it."""
    if kind != TENANT:
        return []
    keys = ((obj.get("spec") or {}).get("auth") or {}).get("keys") or ()
    found = []
    for key in keys:
        at, name = key.get("expiresAt"), f"spec.auth.keys[{str(key.get('id', ''))[:64]}].expired"
        end = moment(at)
        if end is not None and end <= now and known.get(name) != at:
            found.append(about | {"action": "expired", "field": name, "digest": at, "by": []})
    return found


def writers(obj: Object, path: tuple[str, ...]) -> list[Record]:
    """Clients that manage this part of the spec, the latest first; else the one that wrote the object last.

    A manager is the name that a client gave itself. Authenticated users are in the audit log of the API server alone.
    """
    entries = [one for one in obj["metadata"].get("managedFields") or () if not one.get("subresource")]
    entries.sort(key=lambda one: str(one.get("time", "")), reverse=True)
    owners = [one for one in entries if path and _has(one.get("fieldsV1"), path)] or entries[:1]
    names = ("manager", "operation", "time")
    return [{name: str(one.get(name, ""))[:MAX_NAME] for name in names} for one in owners[:MAX_MANAGERS]]


def _has(fields: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        if not isinstance(fields, dict) or name not in fields:
            return False
        fields = fields[name]
    return True


def _shown(name: str, value: Any) -> str:
    """A value as JSON for a record, cut to MAX_TEXT; "" for REST. The hash of a key, no secret, is of no use here."""
    if name.startswith("spec.auth.keys["):
        value = {field: text for field, text in value.items() if field != "hash"}
    return "" if name == REST else _canonical(value)[:MAX_TEXT]


def _digest(value: Any) -> str:
    return sha256(_canonical(value).encode()).hexdigest()[:32]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def moment(text: object) -> datetime | None:
    """An ISO 8601 time in UTC; None where the text is not one."""
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
