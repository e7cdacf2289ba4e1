"""The ReplicaSet of standby pods."""

import pytest

from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.standby import standby_set
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import parse_inputs

OWNER = Owner("chat", "default", "u")


def snapshot(**fields: object) -> Snapshot:
    inputs = parse_inputs({"model": {"uri": "hf://org/tiny", "revision": "main"}, **fields}, "chat")
    return Snapshot("abc", 1, inputs, "image", 600, 3)


def test_they_are_the_pods_of_the_revision_behind_a_gate() -> None:
    there, usual = standby_set(OWNER, snapshot(), 2, ""), replica_set(OWNER, snapshot(), 2)
    spec, other = there["spec"]["template"]["spec"], usual["spec"]["template"]["spec"]
    assert spec == other | {"readinessGates": [{"conditionType": "slipway.dev/serving"}]}, "the pin of the weights too"
    assert (there["metadata"]["name"], there["spec"]["replicas"]) == ("chat-abc-standby", 2)


def test_the_selector_holds_them_whatever_their_revision_label_says_and_no_other_pods() -> None:
    there, usual = standby_set(OWNER, snapshot(), 2, ""), replica_set(OWNER, snapshot(), 2)
    selector, marks = there["spec"]["selector"]["matchLabels"], there["spec"]["template"]["metadata"]["labels"]
    assert marks[labels.REVISION] == "abc-standby" and labels.REVISION not in selector
    assert selector.items() <= marks.items()
    assert not selector.items() <= usual["spec"]["template"]["metadata"]["labels"].items()
    assert not usual["spec"]["selector"]["matchLabels"].items() <= marks.items(), "while they wait"


@pytest.mark.parametrize("written", [{}, {"pod": {"priorityClassName": "high"}}])
def test_the_priority_of_the_installation_replaces_that_of_the_spec(written: dict[str, object]) -> None:
    spec = standby_set(OWNER, snapshot(**written), 1, "low")["spec"]["template"]["spec"]
    assert spec["priorityClassName"] == "low"
    spec = standby_set(OWNER, snapshot(**written), 1, "")["spec"]["template"]["spec"]
    assert spec.get("priorityClassName") == ("high" if written else None)


def test_labels_of_what_runs() -> None:
    assert labels.what_runs(labels.standby_of("abc")) == labels.what_runs("abc") == "abc"
    assert labels.is_standby("abc-standby") and not labels.is_standby("abc-baseline")
