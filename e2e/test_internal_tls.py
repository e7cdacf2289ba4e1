"""TLS inside the release, turned on while a model serves: the next revision has it, and no request is lost."""

from collections.abc import Callable, Iterator

import pytest

from testkit.cluster.deployment import Deployment, canary, revision_of, weights_of
from testkit.cluster.installation import Installation
from testkit.cluster.kube import SYSTEM
from testkit.load.closed import Load
from testkit.until import until

pytestmark = pytest.mark.extended

ON = {"internal": {"enabled": True}}
NEW = {"internal": {"enabled": True, "newRevisions": True}}
SECRETS = ("slipway-internal-ca", "slipway-gateway-internal-tls")


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
