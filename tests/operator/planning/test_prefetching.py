"""Which nodes download the model of a new revision ahead of its pods."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.status import Rollout, State, Status
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.cluster.observed import Observed, Pod, Snapshot, Workload
from slipway_operator.model.cluster.weights import Weights
from slipway_operator.model.deployment.spec import Invalid, parse
from slipway_operator.model.inputs.pod_inputs import Model, PodInputs
from slipway_operator.planning.facts.situation import Course, Situation
from slipway_operator.planning.sizing import prefetching

NOW = datetime(2026, 11, 24, tzinfo=UTC)
OWNER = Owner("chat", "team", "uid")
WEIGHTS = Weights("sha256:" + "1" * 64, "a" * 40)
STABLE, CANARY = "aaaaaaaaaa", "bbbbbbbbbb"
ROLLOUT = Course(Rollout(State.SHIFTING, CANARY, 1), STABLE)


def snapshot(revision: str, cache: str = "node", weights: Weights | None = WEIGHTS) -> Snapshot:
    inputs = PodInputs(Model("hf://org/m", "chat", cache=cache))
    return Snapshot(revision, 1, inputs, "server:1", 600, 2, weights=weights)


def workload(revision: str, *nodes: str, leaving: str = "", workers: tuple[str, ...] = ()) -> Workload:
    def pods(names: tuple[str, ...]) -> tuple[Pod, ...]:
        return tuple(Pod(f"p{n}", NOW, True, node=node, leaving=node == leaving) for n, node in enumerate(names))

    return Workload(revision, len(nodes), len(nodes), len(nodes), pods=pods(nodes), workers=pods(workers))


def nodes_of(*workloads: Workload, course: Course = ROLLOUT, **of_canary: Any) -> list[str]:
    snapshots = {STABLE: snapshot(STABLE), CANARY: snapshot(CANARY, **of_canary)}
    observed = Observed(snapshots=snapshots, workloads={item.revision: item for item in workloads})
    spec = parse({"metadata": {"name": "chat"}, "spec": {"model": {"uri": "hf://org/m"}}})
    assert not isinstance(spec, Invalid)
    at = Situation(spec, CANARY, CANARY, Status(), observed, NOW)
    made = prefetching.jobs(OWNER, course, at)
    assert [(item.revision, item.node) for item in made] == [(CANARY, node_of(item.job)) for item in made]
    return [item.node for item in made]


def node_of(job: dict[str, Any]) -> str:
    node_affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    [term] = node_affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    [field] = term["matchFields"]
    [node] = field["values"]
    return str(node)


def test_nodes_of_stable_pods_download_while_the_canary_is_judged() -> None:
    assert nodes_of(workload(STABLE, "a", "b", "b", "c"), workload(CANARY, "b")) == ["a", "c"]


def test_a_node_that_is_drained_or_not_known_yet_downloads_nothing() -> None:
    assert nodes_of(workload(STABLE, "a", "", "c", leaving="c"), workload(CANARY, "b")) == ["a"]


def test_nodes_of_all_pods_of_a_group_download() -> None:
    assert nodes_of(workload(STABLE, "a", workers=("b",)), workload(CANARY, "c", workers=("d",))) == ["a", "b"]


def test_nodes_pull_a_model_that_is_mounted_from_an_image() -> None:
    assert nodes_of(workload(STABLE, "a"), workload(CANARY, "b"), cache="image") == ["a"]


@pytest.mark.parametrize("change", [{"cache": "none"}, {"cache": "claim"}, {"weights": None}])
def test_without_a_cache_on_the_nodes_or_before_the_weights_are_known_nothing_is_made(change: dict[str, Any]) -> None:
    assert nodes_of(workload(STABLE, "a"), workload(CANARY, "b"), **change) == []


@pytest.mark.parametrize(
    "course",
    [
        Course(stable=STABLE),
        Course(replace(ROLLOUT.rollout, state=State.ABORTED), STABLE),  # type: ignore[type-var]
        Course(Rollout(State.PROVISIONING, CANARY, 1), CANARY),
        Course(Rollout(State.PROVISIONING, CANARY, 1), None),
    ],
    ids=["no rollout", "rejected", "first again", "first"],
)
def test_only_a_rollout_beside_a_stable_revision_prefetches(course: Course) -> None:
    assert nodes_of(workload(STABLE, "a"), workload(CANARY, "b"), course=course) == []


def test_the_number_of_nodes_is_bounded() -> None:
    many = [f"n{number:02}" for number in range(100)]
    assert nodes_of(workload(STABLE, *many), workload(CANARY)) == many[: prefetching.MOST_NODES]
