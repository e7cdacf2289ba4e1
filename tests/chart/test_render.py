"""What the chart renders, scenario by scenario."""

import json
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from slipway_fetcher.cache import __main__ as model_cache
from slipway_gateway.settings import GatewaySettings
from slipway_operator import settings as operator_settings
from slipway_operator.manifests.network_policy import network_policy
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import NODE_CACHE_CLAIM, Engine, Model, PodInputs
from testkit import ROOT
from tests.chart.rendered import CHART, NAMESPACE, SCENARIOS, find, objects, of_kind, refusal
from tests.support.api_server import CRD_FILES
from tests.support.settings import POD, parsed
from tests.support.tools import helm

pytestmark = pytest.mark.integration

MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
NAMES = [path.name.removesuffix("-values.yaml") for path in SCENARIOS]


@pytest.mark.parametrize("path", SCENARIOS, ids=NAMES)
def test_lint_strict(path) -> None:
    done = helm("lint", "--strict", str(CHART), "-f", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("file", CRD_FILES, ids=lambda file: file.stem)
def test_crd_is_that_of_the_repository_in_v1alpha1_alone(file: Path, keep: bool) -> None:
    crd = yaml.load(file.read_text(), yaml.CSafeLoader)
    crd["spec"]["versions"] = crd["spec"]["versions"][:1]
    if keep:
        crd["metadata"].setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
    rendered = objects(values={"crds": {"keep": keep}})
    assert find(rendered, "CustomResourceDefinition", crd["metadata"]["name"]) == crd


@pytest.mark.parametrize("file", CRD_FILES, ids=lambda file: file.stem)
def test_with_conversion_the_crd_is_that_of_the_repository_and_serves_v1beta1(file: Path) -> None:
    """The chart has the differences of v1beta1 alone, and makes it of v1alpha1."""
    crd = yaml.load(file.read_text(), yaml.CSafeLoader)
    crd["metadata"].setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
    for version in crd["spec"]["versions"][1:]:
        version["served"] = True
        service = {"namespace": NAMESPACE, "name": "slipway-conversion", "path": "/convert", "port": 443}
        webhook = {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}
        crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    rendered = objects(values={"operator": {"conversion": {"enabled": True}}})
    assert find(rendered, "CustomResourceDefinition", crd["metadata"]["name"]) == crd


def test_crd_can_be_left_out() -> None:
    assert not of_kind(objects(values={"crds": {"install": False}}), "CustomResourceDefinition")


def test_names_that_the_processes_expect_by_default() -> None:
    rendered = objects()
    assert find(rendered, "Service", "slipway-gateway")["spec"]["ports"] == [
        {"name": "http", "port": 80, "targetPort": "http"}
    ]
    admin = find(rendered, "Service", "slipway-gateway-admin")["spec"]
    assert admin["clusterIP"] == "None"
    assert admin["ports"] == [{"name": "admin", "port": 8001, "targetPort": "admin"}]
    assert not admin.get("publishNotReadyAddresses")


def test_a_second_release_collides_in_no_name() -> None:
    def cluster_wide(namespace: str) -> set[tuple[str, str]]:
        found = objects(namespace=namespace, values={"crds": {"install": False}})
        return {(item["kind"], item["metadata"]["name"]) for item in found if "namespace" not in item["metadata"]}

    assert not cluster_wide("one") & cluster_wide("two")


def test_another_release_name_reaches_the_operator() -> None:
    rendered = objects(namespace="ml", release="prod")
    args = _container(find(rendered, "Deployment", "prod-slipway-operator"))["args"]
    assert "--gateway-service=prod-slipway-gateway-admin" in args
    assert "--endpoint=http://prod-slipway-gateway.ml.svc/v1" in args
    assert find(rendered, "Service", "prod-slipway-gateway-admin")


def test_tls_reaches_the_service_the_status_and_the_notes() -> None:
    """Port 443 by default; a port of the user's own stays."""
    for port, url in ((80, ".svc/v1"), (8443, ".svc:8443/v1")):
        values = {"gateway": {"tls": {"secretName": "own", "clientCASecretName": "ca"}, "service": {"port": port}}}
        rendered = objects(values=values)
        [served] = find(rendered, "Service", "slipway-gateway")["spec"]["ports"]
        assert (served["name"], served["port"]) == ("https", 443 if port == 80 else port)
        args = _container(find(rendered, "Deployment", "slipway-operator"))["args"]
        assert f"--endpoint=https://slipway-gateway.{NAMESPACE}{url}" in args
        pod = find(rendered, "Deployment", "slipway-gateway")["spec"]["template"]["spec"]
        secrets = {one["name"]: one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
        mounted = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
        settings = GatewaySettings.parse(pod["containers"][0]["args"])
        assert (secrets["tls"], secrets["client-ca"]) == ("own", "ca")
        assert settings.tls_cert_file == mounted["tls"] + "/tls.crt"
        assert settings.tls_private_key_file == mounted["tls"] + "/tls.key"
        assert settings.tls_client_ca_file == mounted["client-ca"] + "/ca.crt"
    done = helm("install", "slipway", str(CHART), "--dry-run=client", "--set=gateway.tls.secretName=own")
    assert "8000:443" in done.stdout and "https://localhost:8000" in done.stdout


@pytest.mark.parametrize(("tls", "protocol"), [("", "kubernetes.io/h2c"), ("own", "https")])
def test_grpc_has_a_port_at_the_service_the_pods_and_the_network_policy(tls: str, protocol: str) -> None:
    rendered = objects(values={"gateway": {"grpc": {"enabled": True, "port": 9077}, "tls": {"secretName": tls}}})
    served = find(rendered, "Service", "slipway-gateway")["spec"]["ports"][1]
    assert served == {"name": "grpc", "port": 9077, "targetPort": "grpc", "appProtocol": protocol}
    container = _container(find(rendered, "Deployment", "slipway-gateway"))
    assert {"name": "grpc", "containerPort": 9077} in container["ports"]
    assert GatewaySettings.parse(container["args"]).grpc_port == 9077
    admitted = find(rendered, "NetworkPolicy", "slipway-gateway")["spec"]["ingress"][0]["ports"]
    assert admitted == [{"port": "http"}, {"port": "grpc"}]


def test_an_operator_that_stands_by_is_ready_before_the_old_one_leaves() -> None:
    deployment = find(objects(), "Deployment", "slipway-operator")
    assert deployment["spec"]["replicas"] == 1
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert deployment["spec"]["strategy"] == rolling
    assert not [
        item for item in objects() if item["kind"] == "PodDisruptionBudget" and "operator" in item["metadata"]["name"]
    ]
    two = objects(values={"operator": {"replicaCount": 2}})
    pods = find(two, "Deployment", "slipway-operator")["spec"]["template"]["spec"]
    assert pods["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
    assert find(two, "PodDisruptionBudget", "slipway-operator")["spec"]["maxUnavailable"] == 1
    claimed = find(objects(values={"operator": {"audit": {"claimName": "audit"}}}), "Deployment", "slipway-operator")
    assert claimed["spec"]["strategy"] == {"type": "Recreate"}


def test_services_select_the_operator_that_holds_the_lease() -> None:
    rendered = objects()
    container = _container(find(rendered, "Deployment", "slipway-operator"))
    assert "--leader-label=on" in container["args"]
    for name in ("slipway-operator-admin", "slipway-operator-metrics"):
        assert find(rendered, "Service", name)["spec"]["selector"][labels.LEADER] == labels.IS_LEADER


def test_operator_has_its_identity() -> None:
    deployment = find(objects(), "Deployment", "slipway-operator")
    env = {item["name"]: item["valueFrom"]["fieldRef"]["fieldPath"] for item in _container(deployment)["env"]}
    assert env == {"POD_ID": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}


@pytest.mark.parametrize(("delay", "timeout"), [(5, 600), (0, 1), (30, 7200)])
def test_gateway_has_time_to_drain(delay: int, timeout: int) -> None:
    values = {"gateway": {"drain": {"delaySeconds": delay, "timeoutSeconds": timeout}}}
    pod = find(objects(values=values), "Deployment", "slipway-gateway")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= delay + timeout + 15
    assert {f"--drain-delay={delay}", f"--drain-timeout={timeout}"} <= set(pod["containers"][0]["args"])
    assert "lifecycle" not in pod["containers"][0]


def test_gateway_is_replaced_without_a_gap() -> None:
    strategy = find(objects(), "Deployment", "slipway-gateway")["spec"]["strategy"]
    assert strategy["rollingUpdate"]["maxUnavailable"] == 0


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1), (5, 1)])
def test_disruption_budget_never_blocks_a_drain(replicas: int, budgets: int) -> None:
    found = of_kind(objects(values={"gateway": {"replicaCount": replicas}}), "PodDisruptionBudget")
    assert len(found) == budgets
    assert all(item["spec"]["maxUnavailable"] == 1 for item in found)


LEADER = {"slipway.dev/leader": "true"}  # the operator that holds the lease gives it to its pod


@pytest.mark.parametrize("name", NAMES)
def test_selectors_hit_exactly_their_pods(name: str) -> None:
    rendered = objects(name)
    pods = {
        item["metadata"]["name"]: item["spec"]["template"]["metadata"]["labels"]
        for item in of_kind(rendered, "Deployment")
    }
    pods["slipway-operator"] = pods["slipway-operator"] | LEADER
    for service in of_kind(rendered, "Service"):
        hits = [pod for pod, labels in pods.items() if service["spec"]["selector"].items() <= labels.items()]
        assert len(hits) == 1, service["metadata"]["name"]
        assert service["metadata"]["name"].startswith(hits[0])


@pytest.mark.parametrize("name", NAMES)
def test_pod_labels_hold_nothing_that_a_chart_version_changes(name: str) -> None:
    for deployment in of_kind(objects(name), "Deployment"):
        template = deployment["spec"]["template"]["metadata"]["labels"]
        written = {"team", "cost-center", "sidecar.istio.io/inject"}  # by values of the scenario `exposed`
        ours = {name: value for name, value in template.items() if name not in written}
        assert ours == deployment["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize("name", NAMES)
def test_images_never_float(name: str) -> None:
    for deployment in of_kind(objects(name), "Deployment"):
        image = _container(deployment)["image"]
        assert "@sha256:" in image or not image.endswith((":latest", ":"))


@pytest.mark.finding("L12")
@pytest.mark.parametrize(
    ("repository", "pulled"),
    [
        ("slipway-x", "mirror:5000/hub/slipway-x"),
        ("team/slipway-x", "mirror:5000/hub/team/slipway-x"),
        ("ghcr.io/team/slipway-x", "mirror:5000/hub/team/slipway-x"),
        ("localhost/slipway-x", "mirror:5000/hub/slipway-x"),
    ],
)
def test_the_registry_of_all_images_is_one_value(repository: str, pulled: str) -> None:
    """It was accepted and ignored."""
    image = {"repository": repository, "tag": "1"}
    values = {
        "global": {"imageRegistry": "mirror:5000/hub", "other": {"of": "another chart"}},
        "operator": {"image": image},
        "server": {"image": image, "predictImage": image, "cpuImage": image},
        "modelCache": {"namespaces": ["team-a"]},
        "jobs": {"enabled": True},
        "console": {"enabled": True},
    }
    rendered = objects(values=values)
    workloads = of_kind(rendered, "Deployment", "DaemonSet")
    images = {one["image"] for item in workloads for one in item["spec"]["template"]["spec"]["containers"]}
    flags = {arg.partition("-image=")[2] for item in workloads for arg in _container(item)["args"] if "-image=" in arg}
    assert len(workloads) == 5 and images == flags == {f"{pulled}:1"}


@pytest.mark.finding("L11")
@pytest.mark.parametrize(
    ("values", "kind", "bring"),
    [
        ("metrics.serviceMonitor.enabled=true", "monitoring.coreos.com/v1/ServiceMonitor", "the Prometheus operator"),
        ("metrics.podMonitor.enabled=true", "monitoring.coreos.com/v1/PodMonitor", "the Prometheus operator"),
        ("metrics.prometheusRule.enabled=true", "monitoring.coreos.com/v1/PrometheusRule", "the Prometheus operator"),
        ("gateway.tls.issuerRef.name=x", "cert-manager.io/v1/Certificate", "cert-manager"),
    ],
)
def test_a_kind_that_the_cluster_lacks_is_named_with_who_brings_it(values: str, kind: str, bring: str) -> None:
    command = ("template", "slipway", str(CHART), "--set", values)
    assert helm(*command).returncode == 0, "helm knows no cluster"
    assert helm(*command, "--api-versions", f"v1/Pod,{kind}").returncode == 0
    lacks = helm(*command, "--api-versions", "v1/Pod")
    assert lacks.returncode != 0
    sentence = f"{values.partition('=')[0]} is set, but the cluster has no kind {kind}: install {bring} first"
    assert sentence in lacks.stderr


@pytest.mark.finding("L2")
def test_each_crd_is_named_where_people_look_for_it() -> None:
    """The removal of everything named one of four, and so did Artifact Hub's list."""
    names = {yaml.safe_load(file.read_text())["metadata"]["name"] for file in CRD_FILES}
    page = (CHART.parents[1] / "docs" / "chart.md").read_text()
    (removal,) = re.findall(r"kubectl delete crd ([a-z. ]+)`", page)
    assert set(removal.split()) == names
    (created,) = re.findall(r"^\| CRDs \|(.*?)\|", page, re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", created)) == names
    hub = yaml.safe_load(yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]["artifacthub.io/crds"])
    assert {item["name"] for item in hub} == names


@pytest.mark.finding("L3", "F18")
@pytest.mark.parametrize("account", ["operator", "gateway"])
def test_each_kind_that_an_account_may_use_is_on_the_page(account: str) -> None:
    """The page had: no Secret."""
    rights = (CHART.parents[1] / "docs" / "chart.md").read_text().partition("\n## Rights\n")[2].partition("\n## ")[0]
    (row,) = re.findall(rf"^\| {account} \|(.*)\|$", rights, re.MULTILINE)
    roles = [item for item in of_kind(objects(), "Role", "ClusterRole") if f"-{account}" in item["metadata"]["name"]]
    used = {name.partition("/")[0] for role in roles for rule in role["rules"] for name in rule["resources"]}
    assert used >= ({"secrets", "jobs"} if account == "operator" else {"pods", "tenants"})
    words = row.lower().replace(" ", "")
    assert not [name for name in used if name.removesuffix("ies").removesuffix("s") not in words]


@pytest.mark.finding("F18")
def test_what_the_default_rights_amount_to_is_said() -> None:
    """Who may create workloads in each namespace is an administrator; the one value that ends it is named."""
    creates = {
        (name, role["kind"])
        for role in of_kind(objects(), "Role", "ClusterRole")
        for rule in role["rules"]
        for name in rule["resources"]
        if "create" in rule["verbs"] and name in ("replicasets", "statefulsets", "jobs")
    }
    assert creates == {(name, "ClusterRole") for name in ("replicasets", "statefulsets", "jobs")}
    root = CHART.parents[1]
    for page in (root / "SECURITY.md", root / "docs" / "chart.md"):
        text = " ".join(page.read_text().split())
        assert "administrator of the cluster" in text and "`rbac.namespaces`" in text, page


@pytest.mark.parametrize("name", NAMES)
def test_roles_hold_no_wildcard_and_no_secret_of_others(name: str) -> None:
    for role in of_kind(objects(name), "Role", "ClusterRole"):
        for rule in role["rules"]:
            assert "*" not in str(rule), role["metadata"]["name"]
            if "secrets" in rule["resources"]:
                # Our own by name; `create` alone knows no names, in the release's namespace.
                names, verbs = rule.get("resourceNames"), rule["verbs"]
                found = (names, verbs, role["metadata"].get("namespace") == NAMESPACE)
                at_home = [(None, ["create"], True), (["slipway-keys"], ["get", "update"], True)]
                at_home.append((["slipway-key-pepper"], ["get"], True))
                assert found in [*at_home, (["slipway-tenant-key"], ["create", "patch"], False)]


def test_namespaced_scope_has_nothing_cluster_wide_but_the_crd() -> None:
    rendered = objects("namespaced")
    wide = {item["kind"] for item in rendered if "namespace" not in item["metadata"]}
    assert wide == {"CustomResourceDefinition"}
    assert {role["metadata"]["namespace"] for role in of_kind(rendered, "Role")} == {"team-a", "team-b", NAMESPACE}
    for name in ("slipway-operator", "slipway-gateway"):
        assert "--namespaces=team-a,team-b" in _container(find(rendered, "Deployment", name))["args"]


def test_cluster_scope_has_no_namespace_flag() -> None:
    for deployment in of_kind(objects(), "Deployment"):
        assert not [arg for arg in _container(deployment)["args"] if arg.startswith("--namespaces")]


def test_network_policy_lets_the_operator_reach_the_gateways() -> None:
    rendered = objects("ha")
    operator = find(rendered, "Deployment", "slipway-operator")["spec"]["template"]["metadata"]["labels"]
    rules = find(rendered, "NetworkPolicy", "slipway-gateway")["spec"]["ingress"]
    admin = next(rule for rule in rules if rule["ports"] == [{"port": "admin"}])
    selectors = [peer["podSelector"]["matchLabels"] for peer in admin["from"] if "podSelector" in peer]
    assert [selector.items() <= operator.items() for selector in selectors] == [True]


@pytest.mark.finding(19)
@pytest.mark.attack_class(19, 23)
def test_policies_stand_by_default_and_around_model_pods_too() -> None:
    """Safety 19: they were off by default, and never of model pods."""
    names = {item["metadata"]["name"] for item in of_kind(objects(), "NetworkPolicy")}
    assert names == {"slipway-gateway", "slipway-operator"}
    release = "--network-policy-release=app.kubernetes.io/name=slipway,app.kubernetes.io/instance=slipway"
    for scenario, peers in (("default", []), ("ha", [{"namespaceSelector": {"matchLabels": MONITORING}}])):
        operator = _container(find(objects(scenario), "Deployment", "slipway-operator"))["args"]
        values = [arg.partition("=")[2] for arg in operator if arg.startswith("--network-policy-metrics-peers=")]
        assert release in operator and [json.loads(text) for text in values] == ([peers] if peers else [])
    for off in ({"enabled": False}, {"modelPods": False}):
        rendered = objects(values={"networkPolicy": off})
        operator = _container(find(rendered, "Deployment", "slipway-operator"))["args"]
        assert not [arg for arg in operator if arg.startswith("--network-policy")]
        assert bool(of_kind(rendered, "NetworkPolicy")) is ("modelPods" in off)
    pods = [item["spec"]["template"]["metadata"]["labels"] for item in of_kind(objects(), "Deployment")]
    settings = parsed(
        operator_settings.parse, _container(find(objects("ha"), "Deployment", "slipway-operator"))["args"], POD
    ).settings
    assert settings.network_policy
    peers = network_policy(Owner("chat", "default", "u"), settings.network_policy)["spec"]["ingress"][0]["from"]
    selected = [[labels for labels in pods if _selects(peer, labels)] for peer in peers[:2]]
    assert [len(found) for found in selected] == [1, 1], "gateway and operator, each by the labels that it has"


def _selects(peer: dict, labels: dict) -> bool:
    return peer["podSelector"]["matchLabels"].items() <= labels.items()


def test_closed_network_policy_keeps_everyone_from_the_operator() -> None:
    rendered = objects(values={"operator": {"metricsApi": {"enabled": False}}})
    spec = find(rendered, "NetworkPolicy", "slipway-operator")["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    assert "ingress" not in spec
    open_to_the_api_server = find(objects(), "NetworkPolicy", "slipway-operator")["spec"]["ingress"]
    assert open_to_the_api_server == [{"ports": [{"port": "metrics"}]}]


def test_metrics_api_is_found_by_its_service_and_owned_by_its_role() -> None:
    rendered = objects()
    container = _container(find(rendered, "Deployment", "slipway-operator"))
    service = find(rendered, "Service", "slipway-operator-metrics")
    role = find(rendered, "ClusterRole", f"{NAMESPACE}-slipway-metrics-api")
    assert {
        f"--metrics-api-service={service['metadata']['name']}",
        f"--metrics-api-owner={role['metadata']['name']}",
        "--metrics-api-port=8443",
    } <= set(container["args"])
    assert service["spec"]["ports"] == [{"name": "metrics", "port": 443, "targetPort": "metrics"}]
    assert {"name": "metrics", "containerPort": 8443} in container["ports"]
    assert [rule["resourceNames"] for rule in role["rules"] if "clusterroles" in rule["resources"]] == [
        [role["metadata"]["name"]]
    ]


@pytest.mark.parametrize(
    "off", [{"operator": {"metricsApi": {"enabled": False}}}, None], ids=["switched", "namespaced"]
)
def test_metrics_api_leaves_nothing_where_it_is_off(off: dict | None) -> None:
    rendered = objects(values=off) if off else objects("namespaced")
    assert "metrics-api" not in str(rendered)
    assert not [item for item in of_kind(rendered, "Service") if item["metadata"]["name"].endswith("-metrics")]
    assert not [item for item in rendered if item["metadata"].get("namespace") == "kube-system"]


def test_service_monitors_scrape_the_admin_port_alone() -> None:
    monitors = of_kind(objects("ha"), "ServiceMonitor")
    assert [monitor["spec"]["endpoints"][0]["port"] for monitor in monitors] == ["admin"] * 3
    assert all(monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack" for monitor in monitors)


def test_operators_series_keep_the_namespace_that_they_are_about() -> None:
    """Else Prometheus calls it exported_namespace, and nothing can be joined with it."""
    honor = {
        item["metadata"]["name"]: item["spec"]["endpoints"][0] for item in of_kind(objects("ha"), "ServiceMonitor")
    }
    assert honor["slipway-operator"]["honorLabels"] is True
    assert honor["slipway-gateway"]["honorLabels"] is True, "its series of objectives name a namespace too"


ENGINES = {
    "slipway": Engine(),
    "vllm": Engine("vllm/vllm-openai:v0.32.0", type="vllm"),
    "sglang": Engine("lmsysorg/sglang:v0.6.0", type="sglang"),
    "custom": Engine("other:1", type="custom"),
    "elsewhere": Engine("other:1", type="custom", custom={"metricsPath": "/prometheus/metrics"}),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_pod_monitor_finds_the_metrics_of_each_engine(engine: str) -> None:
    """As Prometheus does it: by labels, by the name of a port, and by its own spelling of labels and annotations."""
    inputs = PodInputs(Model("hf://org/m", "chat"), ENGINES[engine])
    snapshot = Snapshot("abcdefghij", 1, inputs, "server:1", 300, 2, fetcher_image="server:1")
    pod = replica_set(Owner("chat", "team", "u1"), snapshot, 1)["spec"]["template"]
    (monitor,) = of_kind(objects("ha"), "PodMonitor")
    selector, (endpoint,) = monitor["spec"]["selector"], monitor["spec"]["podMetricsEndpoints"]
    assert selector["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert {item["key"] for item in selector["matchExpressions"]} <= pod["metadata"]["labels"].keys()
    named = [port for item in pod["spec"]["containers"] for port in item["ports"] if port["name"] == endpoint["port"]]
    assert [port["containerPort"] for port in named] == [8000], "the only port that NetworkPolicies open"
    seen = {_meta("label", key): value for key, value in pod["metadata"]["labels"].items()}
    seen |= {_meta("annotation", key): value for key, value in pod["metadata"]["annotations"].items()}
    target = {"__metrics_path__": endpoint["path"]}
    for rule in endpoint["relabelings"]:
        source = seen.get(rule["sourceLabels"][0], "")
        if re.fullmatch(rule.get("regex", ".*"), source):
            target[rule["targetLabel"]] = source
    path = "/prometheus/metrics" if engine == "elsewhere" else "/metrics"
    assert target == {"__metrics_path__": path, "name": "chat", "revision": "abcdefghij"}


def _meta(kind: str, key: str) -> str:
    return f"__meta_kubernetes_pod_{kind}_{re.sub('[^a-zA-Z0-9_]', '_', key)}"


def test_pod_monitor_reads_pages_of_tenants_within_bounds_and_namespaces() -> None:
    values = {"metrics": {"podMonitor": {"enabled": True}}}
    (wide,) = of_kind(objects(values=values), "PodMonitor")
    (narrow,) = of_kind(objects("namespaced", values=values), "PodMonitor")
    assert wide["spec"]["namespaceSelector"] == {"any": True}
    assert narrow["spec"]["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}
    limits = ("sampleLimit", "labelLimit", "labelNameLengthLimit", "labelValueLengthLimit", "bodySizeLimit")
    assert all(wide["spec"][limit] for limit in limits)
    (endpoint,) = wide["spec"]["podMetricsEndpoints"]
    assert endpoint["followRedirects"] is False and not endpoint.get("honorLabels")


# In names of records, and what model pods count themselves.
NO_SERIES = {"namespace_name_revision", "slipway_server_engine_restarts_total"}


def test_a_model_pod_cannot_invent_series_of_the_operator_or_of_an_exporter() -> None:
    """Those of GPUs name the pod that they are about in labels of their own, which could be another tenant's."""
    (monitor,) = of_kind(objects("ha"), "PodMonitor")
    (rule,) = monitor["spec"]["podMetricsEndpoints"][0]["metricRelabelings"]
    assert (rule["sourceLabels"], rule["action"]) == (["__name__"], "drop")
    rules = "".join((CHART / "files" / name).read_text() for name in ("rules.yaml", "alerts.yaml"))
    used = set(re.findall(r"[\w:]*(?:slipway_|DCGM_|gpu_gfx|xpum_)\w+", rules)) - NO_SERIES
    assert len(used) > 8
    assert not [name for name in used if not re.fullmatch(rule["regex"], name)]
    kept = (
        "vllm:num_requests_waiting",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:requests_deferred",
    )
    assert not [name for name in kept if re.fullmatch(rule["regex"], name)]


def test_objects_of_the_prometheus_operator_and_the_dashboard_are_off_by_default() -> None:
    found = [item for item in objects() if item["apiVersion"].startswith("monitoring.") or "grafana" in str(item)]
    assert not found


def test_rules_and_dashboard_are_the_files_of_the_chart() -> None:
    rendered = objects("ha")
    (rules,) = of_kind(rendered, "PrometheusRule")
    files = [yaml.safe_load((CHART / "files" / name).read_text()) for name in ("rules.yaml", "alerts.yaml")]
    assert rules["spec"] == {"groups": [group for file in files for group in file["groups"]]}
    config = find(rendered, "ConfigMap", "slipway-dashboards")
    files = sorted((CHART / "files" / "dashboards").glob("*.json"))
    assert {name: json.loads(text) for name, text in config["data"].items()} == {
        f"slipway-{file.name}": json.loads(file.read_text()) for file in files
    }
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_alerts_can_be_left_out_and_lead_to_the_runbooks_of_the_release() -> None:
    def alerts(**values: Any) -> dict[str, str]:
        (rules,) = of_kind(objects("ha", values={"metrics": {"prometheusRule": values}}), "PrometheusRule")
        found = [rule for group in rules["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
        return {rule["alert"]: rule["annotations"]["runbook_url"] for rule in found}

    every = alerts()
    left_out = ["SlipwayGPUIdle", "SlipwayAccuracyLow"]
    some = alerts(disabledAlerts=left_out, runbookUrl="https://docs.example.com/a.md")
    assert every.keys() - some.keys() == {"SlipwayGPUIdle", "SlipwayAccuracyLow"}
    assert some["SlipwayJobsLate"] == "https://docs.example.com/a.md#slipwayjobslate"


def test_an_alert_that_does_not_exist_cannot_be_left_out() -> None:
    rules = {"enabled": True, "disabledAlerts": ["SlipwayGPUIdel"]}
    assert "SlipwayGPUIdel, and there is no such alert" in refusal({"metrics": {"prometheusRule": rules}})


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_commands_of_the_docs_upgrade_the_release_with_the_values_of_its_chart(page: Path) -> None:
    """With --reuse-values a release of a former chart lacks values that the templates of this one read."""
    for command in re.findall(r"^helm upgrade .*$", page.read_text(), re.MULTILINE):
        assert " --reuse-values" not in command
        assert "charts/slipway" not in command or "-n slipway-system" in command, command


def test_prices_and_pods_to_scrape_reach_the_operator() -> None:
    def arguments(*scenario: str) -> list[str]:
        return _container(find(objects(*scenario), "Deployment", "slipway-operator"))["args"]

    settings = parsed(operator_settings.parse, arguments("ha"), POD).settings
    devices = {"nvidia.com/gpu": 2.5, "nvidia.com/mig-1g.10gb": 0.4}
    assert dict(settings.prices) == {**devices, "cpu": 0.03, "memory": 0.004}
    assert settings.engine_metrics_pods == 200
    assert not [item for item in arguments() if item.startswith(("--prices", "--engine-metrics-pods"))]


def test_notes_name_the_next_three_commands() -> None:
    done = helm("install", "slipway", str(CHART), "--namespace", NAMESPACE, "--dry-run=client")
    assert done.returncode == 0, done.stderr
    notes = done.stdout[done.stdout.index("NOTES:") :]
    for command in ("wait --for=condition=Available", "apply -f -", "port-forward service/slipway-gateway", "curl "):
        assert command in notes
    manifest = notes[notes.index("<<EOF") + 5 : notes.rindex("   EOF")]
    assert yaml.safe_load(manifest)["kind"] == "ModelDeployment"


def _container(deployment):
    return deployment["spec"]["template"]["spec"]["containers"][0]


def test_a_model_cache_has_a_folder_and_a_claim_for_each_of_its_namespaces() -> None:
    found = objects(values={"modelCache": {"namespaces": ["team-a", "team-b"], "hostPath": "/mnt/models"}})
    args = _container(find(found, "DaemonSet", "slipway-model-cache"))["args"]
    chosen = model_cache.parser().parse_args(args)
    assert (str(chosen.root), chosen.namespaces, chosen.max_bytes) == ("/mnt/models", "team-a,team-b", 100 << 30)
    assert "--model-cache-namespaces=team-a,team-b" in _container(find(found, "Deployment", "slipway-operator"))["args"]
    claims = of_kind(found, "PersistentVolumeClaim")
    volumes = {item["metadata"]["name"]: item["spec"] for item in of_kind(found, "PersistentVolume")}
    assert [claim["metadata"]["namespace"] for claim in claims] == ["team-a", "team-b"]
    for claim in claims:
        volume, metadata = volumes[claim["spec"]["volumeName"]], claim["metadata"]
        assert metadata["name"] == NODE_CACHE_CLAIM
        named = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        assert volume["claimRef"] == {**named, "namespace": metadata["namespace"], "name": metadata["name"]}
        assert volume["hostPath"] == {"path": f"/mnt/models/{metadata['namespace']}", "type": "Directory"}
        assert volume["capacity"] == claim["spec"]["resources"]["requests"]


def test_without_a_model_cache_nothing_touches_the_nodes() -> None:
    found = objects(values={"crds": {"install": False}})
    kinds = {item["kind"] for item in found}
    assert not kinds & {"DaemonSet", "PersistentVolume", "PersistentVolumeClaim"} and "hostPath" not in json.dumps(
        found
    )


def test_the_files_of_the_access_log_fit_into_their_volume() -> None:
    chosen = {"to": "file", "sample": 0.25, "maxBytes": 1000000, "maxFiles": 3}
    deployment = find(objects(values={"gateway": {"accessLog": chosen}}), "Deployment", "slipway-gateway")
    container = _container(deployment)
    settings = parsed(GatewaySettings.parse, container["args"])
    assert (settings.access_log_sample, settings.access_log_max_bytes, settings.access_log_max_files) == (
        0.25,
        10**6,
        3,
    )
    folder = settings.access_log.rpartition("/")[0]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == folder]
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    (volume,) = [volume for volume in volumes if volume["name"] == mount["name"]]
    assert int(volume["emptyDir"]["sizeLimit"]) > 3 * 10**6 and not mount.get("readOnly")


def test_hook_signing_key_is_mounted_where_the_operator_reads_it() -> None:
    secret = {"name": "hook-key", "key": "mine"}
    rendered = objects(values={"operator": {"hooks": {"signingSecret": secret}}})
    deployment = find(rendered, "Deployment", "slipway-operator")
    container = _container(deployment)
    (flag,) = [argument for argument in container["args"] if argument.startswith("--hook-signing-key-file=")]
    (mount,) = container["volumeMounts"]
    (volume,) = deployment["spec"]["template"]["spec"]["volumes"]
    (item,) = volume["secret"]["items"]
    assert (volume["secret"]["secretName"], item["key"]) == ("hook-key", "mine")
    assert (mount["name"], mount["readOnly"]) == (volume["name"], True)
    assert flag.partition("=")[2] == f"{mount['mountPath']}/{item['path']}"


def test_key_of_verdicts_is_mounted_where_the_operator_reads_it_and_may_be_missing() -> None:
    secret = {"name": "verdict-key", "key": "mine"}
    deployment = find(
        objects(values={"operator": {"verdicts": {"signingSecret": secret}}}), "Deployment", "slipway-operator"
    )
    container = _container(deployment)
    (flag,) = [argument for argument in container["args"] if argument.startswith("--verdict-signing-key-file=")]
    (mount,) = container["volumeMounts"]
    (volume,) = deployment["spec"]["template"]["spec"]["volumes"]
    (item,) = volume["secret"]["items"]
    assert (volume["secret"]["secretName"], item["key"], volume["secret"]["optional"]) == ("verdict-key", "mine", True)
    assert (mount["name"], mount["readOnly"]) == (volume["name"], True)
    assert flag.partition("=")[2] == f"{mount['mountPath']}/{item['path']}"


def test_the_audit_log_is_on_the_claim_beside_the_signing_key() -> None:
    operator = {"audit": {"claimName": "audit"}, "hooks": {"signingSecret": {"name": "hook-key", "key": "mine"}}}
    deployment = find(objects(values={"operator": operator}), "Deployment", "slipway-operator")
    container = _container(deployment)
    (flag,) = [argument for argument in container["args"] if argument.startswith("--audit-file=")]
    (mount,) = [mount for mount in container["volumeMounts"] if flag.startswith(f"--audit-file={mount['mountPath']}/")]
    volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes[mount["name"]]["persistentVolumeClaim"] == {"claimName": "audit"} and not mount.get("readOnly")
    assert set(volumes) == {"audit", "hook-signing-key"} and "--audit=on" in container["args"]


def test_without_a_signing_secret_nothing_is_mounted() -> None:
    deployment = find(objects(), "Deployment", "slipway-operator")
    assert "volumes" not in deployment["spec"]["template"]["spec"]
    assert not [argument for argument in _container(deployment)["args"] if "hook" in argument]


def test_jobs_reach_the_gateway_and_are_reached_by_it_alone() -> None:
    found = objects("ha")
    pods = {name: find(found, "Deployment", f"slipway-{name}")["spec"]["template"] for name in ("gateway", "jobs")}
    labels = {name: pod["metadata"]["labels"] for name, pod in pods.items()}
    assert (
        f"--jobs-url=http://slipway-jobs.{NAMESPACE}.svc" in _container({"spec": {"template": pods["gateway"]}})["args"]
    )
    args = _container({"spec": {"template": pods["jobs"]}})["args"]
    assert f"--gateway-url=http://slipway-gateway.{NAMESPACE}.svc" in args
    assert not [arg for arg in args if arg.startswith("--database-url")], "the URL has a password"
    rules = {name: find(found, "NetworkPolicy", f"slipway-{name}")["spec"]["ingress"] for name in labels}
    [http] = [rule for rule in rules["jobs"] if rule["ports"] == [{"port": "http"}]]
    assert [peer["podSelector"]["matchLabels"].items() <= labels["gateway"].items() for peer in http["from"]] == [True]
    public = next(rule for rule in rules["gateway"] if {"port": "http"} in rule["ports"])
    peers = [peer["podSelector"]["matchLabels"] for peer in public["from"] if "podSelector" in peer]
    test_pod = find(found, "Pod", "slipway-test")["metadata"]["labels"]
    assert [peer.items() <= labels["jobs"].items() for peer in peers] == [True, False]
    assert peers[1].items() <= test_pod.items()


def test_jobs_have_no_token_and_of_the_releases_keys_those_of_tenants() -> None:
    found = objects(values={"jobs": {"enabled": True}})
    spec = find(found, "Deployment", "slipway-jobs")["spec"]["template"]["spec"]
    account = find(found, "ServiceAccount", "slipway-jobs")
    assert spec["automountServiceAccountToken"] is account["automountServiceAccountToken"] is False
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["keys"]["secret"]["items"] == [{"key": "tenant.json", "path": "tenant.json"}]
    # SQLite: one process, and room for its log beside the file.
    assert find(found, "Deployment", "slipway-jobs")["spec"]["strategy"] == {"type": "Recreate"}
    assert int(volumes["database"]["emptyDir"]["sizeLimit"]) > 4294967296
    assert not [role for role in of_kind(found, "RoleBinding", "ClusterRoleBinding") if "slipway-jobs" in str(role)]


def test_without_jobs_nothing_of_them_is_there() -> None:
    found = objects()
    assert not [item for item in found if "jobs" in item["metadata"]["name"]]
    assert "--jobs-url" not in str(find(found, "Deployment", "slipway-gateway"))


def test_the_console_has_neither_a_token_nor_rights_and_no_pod_reaches_it() -> None:
    found = objects(values={"console": {"enabled": True}})
    deployment = find(found, "Deployment", "slipway-console")
    spec = deployment["spec"]["template"]["spec"]
    account = find(found, "ServiceAccount", "slipway-console")
    assert spec["automountServiceAccountToken"] is account["automountServiceAccountToken"] is False
    assert not [volume for volume in spec["volumes"] if volume.keys() & {"secret", "projected", "hostPath"}]
    assert not [role for role in of_kind(found, "RoleBinding", "ClusterRoleBinding") if "slipway-console" in str(role)]
    assert deployment["spec"]["replicas"] == 1
    policy = find(found, "NetworkPolicy", "slipway-console")["spec"]
    assert policy["policyTypes"] == ["Ingress"] and "ingress" not in policy
    assert policy["podSelector"]["matchLabels"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert not of_kind(found, "Ingress")
    of_others = find(found, "Deployment", "slipway-operator")["spec"]["template"]["spec"]
    assert spec["securityContext"] == of_others["securityContext"]
    assert spec["containers"][0]["securityContext"] == of_others["containers"][0]["securityContext"]


def test_the_console_with_tls_is_reached_by_named_peers() -> None:
    found = objects("ha")
    [served] = find(found, "Service", "slipway-console")["spec"]["ports"]
    assert (served["name"], served["port"]) == ("https", 443)
    [rule] = find(found, "NetworkPolicy", "slipway-console")["spec"]["ingress"]
    assert rule["ports"] == [{"port": "http"}] and len(rule["from"]) == 1


def test_without_a_console_nothing_of_it_is_there() -> None:
    assert not [item for item in objects() if "console" in item["metadata"]["name"]]


# -- what platform teams add to every chart


def test_common_labels_are_at_every_object_and_pod_and_in_no_selector() -> None:
    rendered = objects("exposed")
    assert {item["metadata"]["labels"].get("team") for item in rendered} == {"platform"}
    for workload in of_kind(rendered, "Deployment", "DaemonSet"):
        spec = workload["spec"]
        assert spec["template"]["metadata"]["labels"]["cost-center"] == "42"
        assert "team" not in spec["selector"]["matchLabels"]
    assert all("team" not in service["spec"]["selector"] for service in of_kind(rendered, "Service"))


def test_a_pods_own_label_wins_over_a_common_one() -> None:
    values = {"commonLabels": {"team": "platform"}, "gateway": {"podLabels": {"team": "serving"}}}
    found = objects(values=values)
    pods = {
        name: find(found, "Deployment", f"slipway-{name}")["spec"]["template"]["metadata"]["labels"]
        for name in ("gateway", "operator")
    }
    assert (pods["gateway"]["team"], pods["operator"]["team"]) == ("serving", "platform")


def test_a_gateway_is_spread_over_nodes_or_as_its_values_have_it() -> None:
    def spread(scenario: str) -> list[dict[str, object]]:
        deployment = find(objects(scenario), "Deployment", "slipway-gateway")["spec"]
        constraints = deployment["template"]["spec"]["topologySpreadConstraints"]
        assert all(one["labelSelector"] == deployment["selector"] for one in constraints)
        return [{name: value for name, value in one.items() if name != "labelSelector"} for one in constraints]

    nodes, zones = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
    assert spread("default") == [{"maxSkew": 1, "topologyKey": nodes, "whenUnsatisfiable": "ScheduleAnyway"}]
    assert spread("exposed") == [{"maxSkew": 1, "topologyKey": zones, "whenUnsatisfiable": "DoNotSchedule"}]


def test_an_autoscaler_has_the_replicas_and_a_disruption_budget_its_own_minimum() -> None:
    rendered = objects("exposed")
    gateway, scaler = (find(rendered, kind, "slipway-gateway") for kind in ("Deployment", "HorizontalPodAutoscaler"))
    assert "replicas" not in gateway["spec"]
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (3, 6)
    targets = {one["resource"]["name"]: one["resource"]["target"] for one in scaler["spec"]["metrics"]}
    assert {name: target["averageUtilization"] for name, target in targets.items()} == {"cpu": 70, "memory": 80}
    one = {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 1}}}
    assert find(rendered, "PodDisruptionBudget", "slipway-gateway")
    assert not of_kind(objects(values=one), "PodDisruptionBudget")


@pytest.mark.parametrize("component", ["gateway", "console"])
@pytest.mark.parametrize(("tls", "port"), [("", 80), ("own", 443)])
def test_an_ingress_and_an_httproute_lead_to_the_port_of_the_service(component: str, tls: str, port: int) -> None:
    values = {
        component: {
            **({"enabled": True} if component == "console" else {}),
            "tls": {"secretName": tls},
            "ingress": {"enabled": True, "hosts": [{"host": "a.example"}]},
            "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["a.example"]},
        }
    }
    rendered = objects(values=values)
    [rule] = find(rendered, "Ingress", f"slipway-{component}")["spec"]["rules"]
    backend = {"name": f"slipway-{component}", "port": {"number": port}}
    assert find(rendered, "Service", f"slipway-{component}")["spec"]["ports"][0]["port"] == port
    assert rule["http"]["paths"] == [{"path": "/", "pathType": "Prefix", "backend": {"service": backend}}]
    route = find(rendered, "HTTPRoute", f"slipway-{component}")["spec"]
    assert route["rules"][0]["backendRefs"] == [{"name": f"slipway-{component}", "port": port}]
    assert route["rules"][0]["timeouts"] == {"request": "0s"} and route["hostnames"] == ["a.example"]


def test_existing_secrets_are_used_as_ours_are() -> None:
    both = [
        {"quotas": {"redis": {"existingSecret": "redis"}}, "gateway": {"ledger": {"existingSecret": "ledger"}}},
        {
            "quotas": {"redis": {"urlSecret": {"name": "redis"}}},
            "gateway": {"ledger": {"urlSecret": {"name": "ledger"}}},
        },
    ]
    assert objects(values=both[0]) == objects(values=both[1])


def test_volumes_of_the_user_come_beside_ours() -> None:
    more = {"extraVolumes": [{"name": "ca", "emptyDir": {}}], "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}]}
    rendered = objects(
        values={
            name: more | ({"enabled": True} if name in ("jobs", "console") else {})
            for name in ("operator", "gateway", "jobs", "console")
        }
    )
    for name in ("operator", "gateway", "jobs", "console"):
        pod = find(rendered, "Deployment", f"slipway-{name}")["spec"]["template"]["spec"]
        assert pod["volumes"][-1] == {"name": "ca", "emptyDir": {}}
        assert pod["containers"][0]["volumeMounts"][-1] == {"name": "ca", "mountPath": "/ca"}


def test_pull_secrets_of_model_pods_reach_the_operator() -> None:
    args = _container(find(objects("exposed"), "Deployment", "slipway-operator"))["args"]
    assert parsed(operator_settings.OperatorSettings.parse, args, POD).image_pull_secrets == ("registry",)


@pytest.mark.parametrize(
    ("status", "code"), [(200, 0), (401, 0), (503, 1)], ids=["it serves", "it requires a key", "it is not ready"]
)
def test_the_test_of_a_release_says_whether_a_gateway_answers(status: int, code: int) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    pod = find(objects(), "Pod", "slipway-test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    program, url = pod["spec"]["containers"][0]["args"]
    assert url == f"http://slipway-gateway.{NAMESPACE}.svc/v1/models"
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        quick = program.replace(
            "PATIENCE_S, PAUSE_S, TIMEOUT_S = 60, 2, 5", "PATIENCE_S, PAUSE_S, TIMEOUT_S = 1, 0.2, 5"
        )
        done = subprocess.run(
            [sys.executable, "-c", quick, f"http://127.0.0.1:{server.server_port}/v1/models"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        server.shutdown()
    assert done.returncode == code, done.stdout + done.stderr
    assert ("a gateway answers" in done.stdout) is (code == 0)


def test_a_receiver_of_spans_reaches_every_process() -> None:
    rendered = objects(values={"tracing": {"endpoint": "http://otel:4318"}, "jobs": {"enabled": True}})
    for name in ("operator", "gateway", "jobs"):
        container = _container(find(rendered, "Deployment", f"slipway-{name}"))
        assert {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://otel:4318"} in container["env"]
    assert "OTEL" not in json.dumps(objects(values={"jobs": {"enabled": True}}))


POSTGRES = {"enabled": True, "databaseSecret": {"name": "database"}}


def test_the_list_of_object_stores_is_a_mounted_secret() -> None:
    found = objects(values={"jobs": POSTGRES | {"objectStores": {"existingSecret": "stores"}}})
    spec = find(found, "Deployment", "slipway-jobs")["spec"]["template"]["spec"]
    assert "--object-stores-file=/etc/slipway/object-stores/stores.json" in spec["containers"][0]["args"]
    [volume] = [volume for volume in spec["volumes"] if volume["name"] == "object-stores"]
    assert volume["secret"] == {"secretName": "stores", "items": [{"key": "stores.json", "path": "stores.json"}]}
    assert "object-stores" not in str(find(objects(values={"jobs": POSTGRES}), "Deployment", "slipway-jobs"))


def test_conversations_are_on_at_gateways_and_jobs_alike() -> None:
    values = {"jobs": POSTGRES | {"sealing": {"existingSecret": "sealing"}}, "conversations": {"enabled": True}}
    found = objects(values=values)
    args = {name: _container(find(found, "Deployment", f"slipway-{name}"))["args"] for name in ("gateway", "jobs")}
    assert "--conversations=on" in args["gateway"]
    assert {"--conversations=on", "--conversation-idle=2592000", "--max-tenant-items=2000000"} <= set(args["jobs"])
    assert "--sealing-keys-file=/etc/slipway/sealing/keys.json" in args["jobs"]
    spec = find(found, "Deployment", "slipway-jobs")["spec"]["template"]["spec"]
    [volume] = [volume for volume in spec["volumes"] if volume["name"] == "sealing"]
    assert volume["secret"] == {"secretName": "sealing", "items": [{"key": "keys.json", "path": "keys.json"}]}
    off = objects(values={"jobs": POSTGRES})
    assert "conversation" not in str(find(off, "Deployment", "slipway-jobs"))
    assert "conversation" not in str(find(off, "Deployment", "slipway-gateway"))


@pytest.mark.parametrize(
    ("jobs", "sentence"),
    [
        ({}, "jobs.enabled is not"),
        ({"enabled": True}, "name a claim in jobs.sqlite.claimName"),
        ({"enabled": True, "replicaCount": 2, "sqlite": {"claimName": "jobs"}}, "SQLite has one writer"),
    ],
)
def test_conversations_without_a_place_that_lasts_are_refused(jobs: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal({"jobs": jobs, "conversations": {"enabled": True}})
