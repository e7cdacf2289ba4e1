"""What the chart renders is valid in each Kubernetes that is supported, 1.30 to 1.36, by its own strict schemas."""

import copy
import functools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from devcluster.pins import KUBERNETES, OLDEST_KUBERNETES
from tests.chart.rendered import SCENARIOS, objects
from tests.chart.test_values import NEEDS, OTHER, Values
from tests.support import schemas

pytestmark = pytest.mark.integration

FIRST, LAST = (int(version.split(".")[1]) for version in (OLDEST_KUBERNETES, KUBERNETES))
VERSIONS = [f"1.{minor}" for minor in range(FIRST, LAST + 1)]
# No kinds of Kubernetes: their schemas are those of the projects that bring them.
FOREIGN = {
    ("slipway.dev", "AnalysisTemplate"), ("monitoring.coreos.com", "ServiceMonitor"),
    ("monitoring.coreos.com", "PodMonitor"), ("monitoring.coreos.com", "PrometheusRule"),
    ("gateway.networking.k8s.io", "HTTPRoute"), ("cert-manager.io", "Certificate"), ("cert-manager.io", "Issuer"),
}  # fmt: skip
# Parts that are off by default, together.
COMBINED: list[Values] = [
    {
        "console": {
            "enabled": True, "batches": True, "publicUrl": "https://slipway.example", "trustedProxies": ["10.0.0.0/8"],
            "oidc": {"issuer": "https://id.example", "clientId": "c", "clientSecret": {"name": "s"}},
            "ingress": {"enabled": True, "hosts": [{"host": "slipway.example"}]},
        },
        "jobs": {"enabled": True, "databaseSecret": {"name": "database"}, "replicaCount": 2},
        "gateway": {"autoscaling": {"enabled": True, "maxReplicas": 5}, "grpc": {"enabled": True}},
        "tracing": {"endpoint": "http://otel:4318"},
    },
    {
        "console": {"enabled": True, "tls": {"secretName": "tls"}},
        "jobs": {"enabled": True, "sqlite": {"claimName": "jobs", "fsGroup": 1000}},
        "networkPolicy": {"clients": [{"namespaceSelector": {}}], "monitoring": [{"namespaceSelector": {}}]},
        "gateway": {"nodeSelector": {"a": "b"}, "extraVolumes": [{"name": "v", "emptyDir": {}}]},
    },
]  # fmt: skip


def refused(items: list[dict[str, Any]], versions: Sequence[str] = VERSIONS) -> list[str]:
    """What one of the versions refuses, with the version. Kinds without a schema are those of others.

    The definitions of our own kinds are left out: they are large, the same in all scenarios, and have a test of theirs.
    """
    own = [item for item in items if item["kind"] != "CustomResourceDefinition"]
    return [problem for item in own for problem in _refused(json.dumps(item), tuple(versions))]


@functools.cache
def _refused(text: str, versions: tuple[str, ...]) -> list[str]:
    """Of one object, which scenarios share."""
    item, found = json.loads(text), []
    for version in versions:
        problems = schemas.problems(version, item)
        if problems is None:
            group = item["apiVersion"].rpartition("/")[0]
            is_foreign = (group, item["kind"]) in FOREIGN
            problems = [] if is_foreign else [f"{item['kind']} of {item['apiVersion']} is unknown"]
        found += [f"{version}: {problem}" for problem in problems]
    return found


NAMES = [path.name.removesuffix("-values.yaml") for path in SCENARIOS]


@pytest.mark.parametrize("name", NAMES)
def test_each_scenario_is_valid_in_the_oldest_kubernetes(name: str) -> None:
    assert refused(objects(name), VERSIONS[:1]) == []


@pytest.mark.parametrize("values", COMBINED, ids=range(len(COMBINED)))
def test_parts_that_are_off_by_default_are_valid_together(values: Values) -> None:
    items = objects(values=values)
    assert {"Deployment", "Service"} <= {item["kind"] for item in items}
    assert refused(items, VERSIONS[:1]) == []


@pytest.mark.extended
@pytest.mark.parametrize("name", NAMES)
def test_each_scenario_is_valid_in_every_later_kubernetes(name: str) -> None:
    assert refused(objects(name), VERSIONS[1:]) == []


@pytest.mark.extended
@pytest.mark.parametrize("version", VERSIONS)
def test_definitions_of_our_kinds_are_valid_in_every_kubernetes(version: str) -> None:
    found = [item for item in objects() if item["kind"] == "CustomResourceDefinition"]
    assert found
    assert [problem for item in found for problem in _refused(json.dumps(item), (version,))] == []


@pytest.mark.extended
@pytest.mark.parametrize("leaf", sorted(OTHER))
def test_each_value_is_valid_in_every_kubernetes(leaf: str) -> None:
    assert refused(objects(values=_nested({**NEEDS.get(leaf, {}), leaf: OTHER[leaf]}))) == []


def test_a_field_that_a_version_does_not_know_is_found() -> None:
    """The schemas are strict, and of their version: an old one refuses what a later one brought."""
    [deployment] = [
        one for one in objects() if one["kind"] == "Deployment" and one["metadata"]["name"] == "slipway-gateway"
    ]
    wrong = copy.deepcopy(deployment)
    wrong["spec"]["template"]["spec"]["containers"][0]["nosuch"] = 1
    assert len(refused([wrong])) == len(VERSIONS)
    newer = copy.deepcopy(deployment)
    newer["spec"]["template"]["spec"]["containers"][0]["restartPolicyRules"] = []  # since 1.34
    assert {line.partition(":")[0] for line in refused([newer])} == {"1.30", "1.31", "1.32", "1.33"}
    assert refused([{**deployment, "apiVersion": "apps/v1beta1"}])


def _nested(flat: Values) -> Values:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`."""
    made: Values = {}
    for path, value in flat.items():
        *parents, last = path.split(".")
        node = made
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = value
    return made
