"""The API server drops fields without a schema: the schema has each field of the status."""

from collections.abc import Iterator
from typing import Any

from tests.crds.schema import RUN_FILE, version
from tests.operator.planning.test_analysis import BAD, analyzing

RUN = version(RUN_FILE)["schema"]["openAPIV3Schema"]["properties"]["status"]
STATUS = version()["schema"]["openAPIV3Schema"]["properties"]["status"]


def dropped(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Paths that the schema does not know, and lists that are longer than it allows."""
    if schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if key in schema.get("properties", {}):
                yield from dropped(item, schema["properties"][key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{path} has {len(value)} items"
        for item in value:
            yield from dropped(item, schema["items"], f"{path}[]")


def test_everything_of_an_analysis_is_kept() -> None:
    background = {"templates": [{"templateName": "quick"}]}
    world = analyzing(canary={"analysis": background})
    world.bad = {BAD: 0.1}
    world.run_until("Aborted", 400)
    rollout = world.status["rollout"]
    assert rollout["analysis"]["run"] and rollout["background"]["run"]
    assert list(dropped(world.status, STATUS, "status")) == []
    for field in ("analysis", "background"):
        assert list(dropped(world.saved_run(field)["status"], RUN, "status")) == []


def test_fields_outside_of_the_schema_are_found() -> None:
    wrong = {"rollout": {"analysis": {"invented": 1, "verdict": {"sums": []}}}}
    assert list(dropped(wrong, STATUS, "status")) == [
        "status.rollout.analysis.invented",
        "status.rollout.analysis.verdict.sums",
    ]
