"""Upgrades touch no model pod, deletion leaves no child, and an uninstalled release leaves nothing but the CRDs.

The suite's order puts this file last (`pytest_collection_modifyitems` in conftest.py): it takes the release away.
"""

from collections.abc import Callable

from e2e.deployment import LABEL, Deployment
from e2e.installation import Installation
from examples.demo.kube import RELEASE, SYSTEM, Kube
from examples.demo.load import Load

CRDS = ("analysistemplates.slipway.dev", "modeldeployments.slipway.dev")
# Written by the cluster about objects that are gone; they expire by themselves.
RECORDS = {"events", "events.events.k8s.io"}


def test_operator_upgrade_touches_no_model_pod(
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
    chat.scale(2)
    chat.until("the new operator acts", lambda status: status["ready"] == "2/2", 120)
    assert pods < chat.pod_uids()
    assert chat.status["stableRevision"] == status["stableRevision"]
    assert steady.stop().failures == ()


def test_deletion_leaves_no_child(slipway: Installation, deploy: Callable[..., Deployment]) -> None:
    chat = deploy("v1")
    chat.until_stable("v1")
    chat.release("v2")
    chat.until_state("Paused")
    assert len(children(chat)) >= 8, "two revisions, each with pod, workload, service, endpoints and record"
    chat.kube.kubectl("delete", "mdep", chat.name, "--namespace", chat.namespace)
    chat.kube.wait_until(lambda: not children(chat), 90, "all children are gone")


def test_uninstall_leaves_the_crd_and_the_running_models(
    slipway: Installation, deploy: Callable[..., Deployment]
) -> None:
    chat = deploy("v1")
    chat.until_stable("v1")
    pods = chat.pod_uids()
    slipway.kube.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
    left = f"app.kubernetes.io/instance={RELEASE}"
    slipway.kube.wait_until(lambda: not found_anywhere(slipway.kube, left), 60, "everything of the release is gone")
    assert sorted(found_anywhere(slipway.kube, "app.kubernetes.io/part-of=slipway")) == [
        f"customresourcedefinition.apiextensions.k8s.io/{crd}" for crd in CRDS
    ]
    assert not slipway.kube.kubectl(
        "get", "secret", "--namespace", SYSTEM, "--selector", f"name={RELEASE}", "-o", "name"
    )
    assert chat.pod_uids() == pods, "models stopped with the release"
    assert chat.status["phase"] == "Healthy"
    # Nobody of ours is there any more: what was made must go by ownership alone.
    chat.kube.kubectl("delete", "mdep", chat.name, "--namespace", chat.namespace)
    chat.kube.wait_until(lambda: not children(chat), 90, "all children are gone, without the operator")


def children(chat: Deployment) -> list[str]:
    """Every object in its namespace that carries its label."""
    return found_in(chat.kube, f"{LABEL}={chat.name}", "--namespace", chat.namespace)


def found_anywhere(kube: Kube, selector: str) -> list[str]:
    """Every object of every kind with these labels, in all namespaces and in none."""
    return found_in(kube, selector, "--all-namespaces")


def found_in(kube: Kube, selector: str, *where: str) -> list[str]:
    listed = kube.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    kinds = ",".join(sorted(set(listed) - RECORDS))
    return kube.kubectl("get", kinds, "--selector", selector, "--ignore-not-found", "-o", "name", *where).split()
