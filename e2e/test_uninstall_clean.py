"""Upgrades touch no model pod, deletion leaves no child, and an uninstalled release leaves nothing but the CRDs.

The suite's order puts this file last (`pytest_collection_modifyitems` in conftest.py): it takes the release away.
"""

from collections.abc import Callable

from testkit import ROOT
from testkit.cluster.deployment import Deployment
from testkit.cluster.installation import Installation
from testkit.cluster.kube import LABEL, RELEASE, SYSTEM, Kube
from testkit.load.closed import Load
from testkit.until import until

CRDS = tuple(f"{path.stem}.slipway.dev" for path in sorted((ROOT / "crds").glob("*.yaml")))
# Written by the cluster about objects that are gone; they expire by themselves.
RECORDS = {"events", "events.events.k8s.io"}


def test_upgrade_touches_no_model_pod_and_deletion_leaves_no_child(
    slipway: Installation, deploy: Callable[..., Deployment], load: Callable[[Deployment], Load]
) -> None:
    chat = deploy("v1")
    status = chat.until_stable("v1")
    steady = load(chat)
    pods, gateways, operator = chat.pod_uids(), slipway.ready("gateway"), slipway.ready("operator")
    slipway.upgrade(operator={"podAnnotations": {"example.com/upgraded": "yes"}})
    slipway.until_well()
    assert slipway.ready("operator") != operator, "this upgrade replaced nothing"
    assert slipway.ready("gateway") == gateways
    chat.release("v2")
    paused = chat.until_state("Paused")  # so the new operator acts
    assert pods < chat.pod_uids()
    assert paused["stableRevision"] == status["stableRevision"]
    assert steady.stop().failures == ()

    assert len(children(chat)) >= 8, "two revisions, each with pod, workload, service, endpoints and record"
    delete(chat)


def test_helm_test_passes(slipway: Installation) -> None:
    slipway.until_well()
    assert "Phase:          Succeeded" in slipway.kube.helm("test", RELEASE, "--namespace", SYSTEM, "--timeout", "3m")


def test_uninstall_leaves_the_crd_and_the_running_models(
    slipway: Installation, deploy: Callable[..., Deployment]
) -> None:
    chat = deploy("v1")
    chat.until_stable("v1")
    pods = chat.pod_uids()
    slipway.kube.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
    left = f"app.kubernetes.io/instance={RELEASE}"
    until(lambda: not found_anywhere(slipway.kube, left), "everything of the release is gone", 60)
    assert sorted(found_anywhere(slipway.kube, "app.kubernetes.io/part-of=slipway")) == [
        f"customresourcedefinition.apiextensions.k8s.io/{crd}" for crd in CRDS
    ]
    assert not slipway.kube.kubectl(
        "get", "secret", "--namespace", SYSTEM, "--selector", f"name={RELEASE}", "-o", "name"
    )
    assert chat.pod_uids() == pods, "models stopped with the release"
    # The last status may be Degraded: the operator may see the gateways leave before it leaves itself.
    for pod in chat.pods():
        ready = {one["type"]: one["status"] for one in pod["status"]["conditions"]}["Ready"]
        assert ready == "True", "models are ready without the release"
    # No operator runs any more: garbage collection alone deletes what it made.
    delete(chat)


def delete(chat: Deployment) -> None:
    """And wait until the pods have left and the cluster has collected what belonged to it."""
    chat.kube.kubectl("delete", "mdep", chat.name, "--namespace", chat.namespace)
    # Every kind there is costs the API server seconds to list: that is left for the end.
    made = chat.kube.children
    until(lambda: not made(chat.name, chat.namespace), "what the operator made is gone", 90)
    until(lambda: not children(chat), "everything that belonged to it is gone", 30)


def children(chat: Deployment) -> list[str]:
    """Every object in its namespace, of whatever kind, that carries its label."""
    return found_in(chat.kube, f"{LABEL}={chat.name}", "--namespace", chat.namespace)


def found_anywhere(kube: Kube, selector: str) -> list[str]:
    """Every object of every kind with these labels, in all namespaces and in none."""
    return found_in(kube, selector, "--all-namespaces")


def found_in(kube: Kube, selector: str, *where: str) -> list[str]:
    listed = kube.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    kinds = ",".join(sorted(set(listed) - RECORDS))
    return kube.kubectl("get", kinds, "--selector", selector, "--ignore-not-found", "-o", "name", *where).split()
