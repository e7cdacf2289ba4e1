"""The NetworkPolicy around model pods: allowed peers, acceptance by a real API server, and times of an apply."""

import pytest

from slipway_operator.kube.errors import Refused, Unavailable
from slipway_operator.kube.resources import NETWORK_POLICIES
from slipway_operator.kube.writing.network_policies import AGAIN_AFTER_S, NetworkPolicies
from slipway_operator.manifests.network_policy import NetworkPolicySettings, network_policy
from slipway_operator.manifests.owner import Owner

pytestmark = pytest.mark.attack_class(19, 23)

MONITORING = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
SETTINGS = NetworkPolicySettings("slipway-system", (("app.kubernetes.io/instance", "slipway"),), (MONITORING,))
CHAT = {"metadata": {"name": "chat", "namespace": "default", "uid": "u1"}}


class Server:
    """Accepts what is applied, or raises `failure`."""

    def __init__(self):
        self.applied, self.failure = [], None

    async def apply(self, resource, manifest):
        assert resource == NETWORK_POLICIES
        self.applied.append(manifest)
        if self.failure:
            raise self.failure


@pytest.mark.finding(19)
def test_only_the_release_and_monitoring_may_connect():
    """Safety 19: model pods had no policy, so anyone forged X-Slipway-Tenant at :8000."""
    spec = network_policy(Owner.of(CHAT), SETTINGS)["spec"]
    assert spec["podSelector"] == {"matchLabels": {"slipway.dev/modeldeployment": "chat"}}
    rule, adapters = spec["ingress"]
    assert (adapters["ports"], len(adapters["from"])) == ([{"port": 8004, "protocol": "TCP"}], 2), "without monitoring"
    assert (spec["policyTypes"], rule["ports"]) == (["Ingress"], [{"port": 8000, "protocol": "TCP"}])
    *ours, others = rule["from"]
    assert others == MONITORING
    for peer, component in zip(ours, ("gateway", "operator"), strict=True):
        assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "slipway-system"}}
        assert peer["podSelector"]["matchLabels"] == {
            "app.kubernetes.io/instance": "slipway",
            "app.kubernetes.io/component": component,
        }


def test_pods_of_groups_may_connect_to_one_another_and_to_no_other():
    *_, rule = network_policy(Owner.of(CHAT), SETTINGS, grouped=True)["spec"]["ingress"]
    (peer,) = rule["from"]
    assert "ports" not in rule and "namespaceSelector" not in peer, "any port, in their own namespace"
    assert peer["podSelector"]["matchLabels"] == {"slipway.dev/modeldeployment": "chat"}
    (expression,) = peer["podSelector"]["matchExpressions"]
    assert expression == {"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}


async def test_a_policy_follows_when_the_first_group_is_made():
    server = Server()
    network_policies = NetworkPolicies(server, SETTINGS)
    await network_policies.keep(CHAT)
    await network_policies.keep(CHAT, grouped=True)
    await network_policies.keep(CHAT, grouped=True)
    assert [len(item["spec"]["ingress"]) for item in server.applied] == [2, 3]


def test_pods_named_without_a_namespace_are_those_of_the_release():
    """In the release's own policies they are. In the namespace of a model they would be the pods of its users."""
    pods, block = {"podSelector": {"matchLabels": {"app": "prometheus"}}}, {"ipBlock": {"cidr": "192.0.2.0/24"}}
    settings = NetworkPolicySettings("slipway-system", (), (pods, block, MONITORING))
    *_, first, second, third = network_policy(Owner.of(CHAT), settings)["spec"]["ingress"][0]["from"]
    release = {"matchLabels": {"kubernetes.io/metadata.name": "slipway-system"}}
    assert first == {"namespaceSelector": release, **pods}
    assert (second, third) == (block, MONITORING)


async def test_policy_is_applied_periodically_and_for_a_recreated_deployment():
    server, now = Server(), [0.0]
    network_policies = NetworkPolicies(server, SETTINGS, lambda: now[0])
    for _ in range(3):
        await network_policies.keep(CHAT)
    assert len(server.applied) == 1
    now[0] += AGAIN_AFTER_S
    await network_policies.keep(CHAT)
    await network_policies.keep({"metadata": {**CHAT["metadata"], "uid": "u2"}})
    network_policies.forget(("default", "chat"))
    await network_policies.keep(CHAT)
    uids = [item["metadata"]["ownerReferences"][0]["uid"] for item in server.applied]
    assert uids == ["u1", "u1", "u2", "u1"]


async def test_without_the_right_clients_keep_their_model_with_a_log_line(caplog):
    server = Server()
    server.failure = Refused(403, "networkpolicies is forbidden")
    await NetworkPolicies(server, SETTINGS).keep(CHAT)
    assert "no NetworkPolicy keeps others from the model pods of default/chat" in caplog.text


async def test_pods_wait_for_it_while_the_api_server_is_away():
    server = Server()
    server.failure = Unavailable("away")
    network_policies = NetworkPolicies(server, SETTINGS)
    with pytest.raises(Unavailable):
        await network_policies.keep(CHAT)
    server.failure = None
    await network_policies.keep(CHAT)
    assert len(server.applied) == 2
