"""Edits of a status by a stranger who may write it: lost, restored, cut, and with values that fit the schema alone."""

import copy
from random import Random
from typing import Any

from slipway_operator.api.v1alpha1.status import Status
from tests.support.model_cluster import ModelCluster

Object = dict[str, Any]

STATES = (
    "Initializing",
    "Provisioning",
    "Shifting",
    "Paused",
    "Analyzing",
    "Promoting",
    "Aborting",
    "Aborted",
    "Nonsense",
)
MOMENTS = ("0001-01-01T00:00:00+14:00", "2001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
NUMBERS = (-5, 0, 1, 7, 100, 2**31 - 1)
# Moments that decide; a short list, so that edits find them.
DECIDES = ("traffic", "stableRevision", "rollout", "revisions", "sleep", "previousRevision", "canaryRevision")


def forged(status: Object, former: list[Object], random: Random) -> tuple[str, Object]:
    """What was done, and the status after it."""
    name, edit = random.choice(EDITS)
    return name, edit(copy.deepcopy(status), former, random)


def _all_lost(status: Object, former: list[Object], random: Random) -> Object:
    return {}


def _one_lost(status: Object, former: list[Object], random: Random) -> Object:
    status.pop(random.choice([key for key in DECIDES if key in status]), None)
    return status


def _table_lost(status: Object, former: list[Object], random: Random) -> Object:
    status.pop("traffic", None)
    return status


def _restored(status: Object, former: list[Object], random: Random) -> Object:
    return copy.deepcopy(random.choice(former)) if former else status


def _table_restored(status: Object, former: list[Object], random: Random) -> Object:
    tables = [item["traffic"] for item in former if item.get("traffic")]
    return status | ({"traffic": copy.deepcopy(random.choice(tables))} if tables else {})


def _changed(status: Object, former: list[Object], random: Random) -> Object:
    """Some leaves get other values of their type."""
    part = random.choice([key for key in DECIDES if key in status])
    for _ in range(random.randint(1, 4)):
        status[part] = _other(status[part], part, random)
    return status


def _table_forged(status: Object, former: list[Object], random: Random) -> Object:
    revision = random.choice(["elsewhere00", *(item["revision"] for item in status.get("revisions", ()))])
    backends = [{"revision": revision, "weight": random.choice((100, 100, 40))}]
    model = random.choice((status.get("model", "chat"), "another-model"))
    number = random.choice((1, 3, 10_000))
    return status | {"traffic": {"generation": number, "model": model, "salt": "s", "backends": backends}}


def _stable_forged(status: Object, former: list[Object], random: Random) -> Object:
    return status | {"stableRevision": random.choice(("elsewhere00", status.get("previousRevision") or "x"))}


def _rollout_forged(status: Object, former: list[Object], random: Random) -> Object:
    moment = random.choice(MOMENTS)
    revision = random.choice(("elsewhere00", status.get("stableRevision"), status.get("previousRevision") or "x"))
    rollout = {"state": random.choice(STATES), "revision": revision, "attempt": random.choice((-1, 1, 3))}
    rollout |= {"startedAt": moment, "stepStartedAt": moment, "progressAt": moment}
    return status | {"rollout": rollout | {"stepIndex": random.choice(NUMBERS), "steps": random.choice(NUMBERS)}}


def _pods_to_leave(status: Object, former: list[Object], random: Random) -> Object:
    """As if every revision had long been let go."""
    for item in status.get("revisions", ()):
        item |= {"scaleDownAt": random.choice(MOMENTS[1:]), "role": "old", "weight": 0, "replicaSetUid": "foreign"}
    return status


def _asleep(status: Object, former: list[Object], random: Random) -> Object:
    status["sleep"] = {"state": random.choice(("Asleep", "FallingAsleep", "Waking")), "since": random.choice(MOMENTS)}
    if "traffic" in status:
        status["traffic"] |= {"asleep": True, "holdSeconds": 3000}
    return status


def _collisions_forged(status: Object, former: list[Object], random: Random) -> Object:
    return status | {"collisionCount": random.choice(NUMBERS)}


EDITS = (
    ("the status is lost", _all_lost),
    ("a part is lost", _one_lost),
    ("the table is lost", _table_lost),
    ("an old status is restored", _restored),
    ("an old table is restored", _table_restored),
    ("values are changed", _changed),
    ("the table is forged", _table_forged),
    ("the stable revision is forged", _stable_forged),
    ("a rollout is forged", _rollout_forged),
    ("all pods are to leave", _pods_to_leave),
    ("it is put to sleep", _asleep),
    ("the collision count is forged", _collisions_forged),
)


def _other(value: Any, key: str, random: Random) -> Any:
    """The same shape with one leaf of another value."""
    if isinstance(value, dict) and value:
        chosen = random.choice(sorted(value))
        if random.random() < 0.2:
            return {name: item for name, item in value.items() if name != chosen}
        return value | {chosen: _other(value[chosen], chosen, random)}
    if isinstance(value, list) and value:
        place = random.randrange(len(value))
        return [_other(item, key, random) if index == place else item for index, item in enumerate(value)]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice(NUMBERS)
    if isinstance(value, str):
        is_moment = key == "since" or key.endswith("At")
        return random.choice(MOMENTS) if is_moment else random.choice(("", "elsewhere00", "x" * 60))
    return value


class Forged(ModelCluster):
    """A world whose status others write too: earlier writes do not bound what the operator may write now."""

    def _assert_nothing(self, *_: Any, **__: Any) -> None:
        return

    _assert_weights = _assert_mirrors = _assert_confirmed = _assert_judged = _assert_scale = _assert_nothing
    _assert_may_shrink = _assert_room = _assert_nothing

    def _write_status(self, new: Status, rendered: dict[str, Any]) -> None:
        self.keep(new, rendered)
