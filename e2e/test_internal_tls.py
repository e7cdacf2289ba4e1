"""TLS inside the release, turned on while a model serves, and its authority rotated: no request is lost."""

import base64
import json
import time
from collections.abc import Callable, Iterator

import pytest

from testkit.cluster.deployment import Deployment, Json, canary, revision_of, weights_of
from testkit.cluster.installation import Installation
from testkit.cluster.kube import SYSTEM
from testkit.load.closed import Load
from testkit.until import until

pytestmark = pytest.mark.extended

ON = {"internal": {"enabled": True}}
NEW = {"internal": {"enabled": True, "newRevisions": True}}
AUTHORITIES, GATEWAYS, PODS = "slipway-internal-ca", "slipway-gateway-internal-tls", "slipway-pod-tls"
SECRETS = (AUTHORITIES, GATEWAYS)
DAY_S = 86_400
LOOK_S, KUBELET_S = 90, 180  # until the operator takes a step, until the kubelet brings a changed Secret


@pytest.fixture
def with_certificates(slipway: Installation) -> Iterator[None]:
    """Gateways and operator have certificates; afterwards there is nothing of it again."""
    try:
        slipway.upgrade(tls=ON)
        slipway.until_well()
        yield
    finally:
        slipway.upgrade()
        slipway.until_well()
        slipway.kube.kubectl("delete", "secret", *SECRETS, "--namespace", SYSTEM, "--ignore-not-found")


def port_names(chat: Deployment, revision: str) -> set[str]:
    """Of the servers of a revision's pods."""
    pods = [pod for pod in chat.pods() if revision_of(pod) == revision]
    return {port["name"] for pod in pods for port in pod["spec"]["containers"][0]["ports"]}


@pytest.mark.timeout(600, func_only=True)
def test_the_next_revision_has_tls_and_no_request_is_lost(
    slipway: Installation,
    with_certificates: None,
    deploy: Callable[..., Deployment],
    load: Callable[[Deployment], Load],
) -> None:
    chat = deploy("v1", strategy=canary({"setWeight": 50}, {"pause": {}}))
    chat.until_stable("v1")
    former, pods = chat.status["stableRevision"], chat.pod_uids()
    slipway.upgrade(tls=NEW)
    slipway.until_well()
    assert chat.pod_uids() == pods, "a switch touched the pods of a revision that exists"

    steady = load(chat)
    chat.release("v2")
    status = chat.until_state("Paused")
    assert weights_of(status) == {"v1": 50, "v2": 50}, "gateways acknowledge weights by their port with TLS"
    new = status["canaryRevision"]
    assert port_names(chat, former) == {"http", "probe"}
    assert port_names(chat, new) == {"https", "probe"}
    until(lambda: steady.report().by_revision.get(new, 0) > 20, "requests at the pods with TLS", 60)
    chat.promote()
    chat.until_stable("v2")
    chat.until_alone()
    report = steady.stop()
    assert report.failures == ()
    assert set(report.by_revision) == {former, new}

    pod = chat.pods()[0]["metadata"]["name"]
    path = f"api/v1/namespaces/{chat.namespace}/pods/https:{pod}:8000/proxy"
    assert "certificate_required" in str(slipway.kube.api.get(f"{path}/v1/models"))
    assert "ok" in slipway.kube.api.text(f"{path}/healthz")
    for gateway in slipway.ready("gateway"):
        assert slipway.route(gateway, chat.route)["generation"] > 1


def data_of(slipway: Installation, secret: str, namespace: str = SYSTEM) -> Json:
    return dict(slipway.kube.api.find(f"api/v1/namespaces/{namespace}/secrets/{secret}")["data"])


def authorities(slipway: Installation) -> list[Json]:
    found = json.loads(base64.b64decode(data_of(slipway, AUTHORITIES)["authorities.json"]))
    return list(found["authorities"])


def age(slipway: Installation, number: int, days: int, field: str) -> None:
    """Let an authority be so old, or its last step so long ago."""
    aged = authorities(slipway)
    aged[number][field] = time.time() - days * DAY_S
    text = base64.b64encode(json.dumps({"authorities": aged}).encode()).decode()
    change = json.dumps({"data": {"authorities.json": text}})
    slipway.kube.kubectl("patch", "secret", AUTHORITIES, "-n", SYSTEM, "--type=merge", "-p", change)


def until_mounted(slipway: Installation, chat: Deployment) -> None:
    """Wait until pods and gateways have the files that the operator wrote."""
    for secret, namespace, folder, pods in (
        (GATEWAYS, SYSTEM, "/etc/slipway/internal-tls", list(slipway.ready("gateway"))),
        (PODS, chat.namespace, "/etc/slipway/tls", [pod["metadata"]["name"] for pod in chat.pods()]),
    ):
        for pod in pods:

            def mounted(pod: str = pod, secret: str = secret, namespace: str = namespace, folder: str = folder) -> bool:
                files = {
                    name: base64.b64decode(text).decode() for name, text in data_of(slipway, secret, namespace).items()
                }
                command = ("exec", pod, "-n", namespace, "--", "cat", f"{folder}/ca.crt", f"{folder}/tls.crt")
                return slipway.kube.kubectl(*command) == files["ca.crt"] + files["tls.crt"]

            until(mounted, f"{namespace}/{pod} has the new files", KUBELET_S)


@pytest.mark.timeout(1500, func_only=True)
def test_a_rotation_of_the_authority_loses_no_request_and_restarts_no_pod(
    slipway: Installation,
    with_certificates: None,
    deploy: Callable[..., Deployment],
    load: Callable[[Deployment], Load],
) -> None:
    """Its three steps, which take more than a year: a second one is trusted, signs, and is trusted alone."""
    slipway.upgrade(tls=NEW)
    slipway.until_well()
    chat = deploy("v1", strategy=canary({"setWeight": 50}, {"pause": {}}))
    chat.until_stable("v1")
    pods, gateways = chat.pod_uids(), slipway.ready("gateway")
    steady = load(chat)
    [old] = authorities(slipway)

    def ids() -> list[str]:
        return [one["id"] for one in authorities(slipway)]

    age(slipway, 0, 366, "created")
    until(ids, "a second authority is trusted", LOOK_S, holds=lambda found: len(found) == 2)
    new = ids()[1]
    assert ids() == [old["id"], new]
    until_mounted(slipway, chat)
    age(slipway, 1, 2, "from")
    until(ids, "it signs", LOOK_S, holds=lambda found: found == [new, old["id"]])
    until_mounted(slipway, chat)
    age(slipway, 0, 92, "from")
    until(ids, "it is trusted alone", LOOK_S, holds=lambda found: found == [new])
    until_mounted(slipway, chat)

    # New pods and a new revision: handshakes of gateways and of the operator, by the new authority alone.
    chat.scale(2)
    chat.until("two pods are ready", lambda status: status["ready"] == "2/2", 120)
    chat.release("v2")
    assert weights_of(chat.until_state("Paused")) == {"v1": 50, "v2": 50}
    report = steady.stop()
    assert report.failures == ()
    assert pods <= chat.pod_uids() and slipway.ready("gateway") == gateways
    print(f"{report.requests} requests during a rotation, none failed")
