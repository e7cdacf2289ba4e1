"""Pods with TLS: what they mount, and that nothing else of a revision changes."""

import dataclasses
import json

from slipway_operator.manifests.history import controller_revision
from slipway_operator.manifests.pods import certificate
from slipway_operator.manifests.pods.workload import replica_set
from slipway_operator.manifests.service import headless_service
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import Engine, Model, PodInputs

from .test_workload import OWNER, SNAPSHOT

PLAIN = dataclasses.replace(SNAPSHOT, template_version=3)
SECURE = dataclasses.replace(PLAIN, tls=True)


def pod(snapshot: Snapshot) -> dict:
    return replica_set(OWNER, snapshot, 1)["spec"]["template"]["spec"]


def test_a_pod_with_tls_has_a_port_named_https_and_its_probes_another_one() -> None:
    server = pod(SECURE)["containers"][0]
    assert [(port["name"], port["containerPort"]) for port in server["ports"]] == [("https", 8000), ("probe", 8001)]
    probes = [server[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert {probe["port"] for probe in probes} == {"probe"}
    assert not [probe for probe in probes if "scheme" in probe]


def test_its_server_gets_the_files_after_the_arguments_of_the_user() -> None:
    args = pod(SECURE)["containers"][0]["args"]
    assert args[-6:] == [
        *("--ssl-certfile", "/etc/slipway/tls/tls.crt"),
        *("--ssl-keyfile", "/etc/slipway/tls/tls.key"),
        *("--ssl-ca-certs", "/etc/slipway/tls/ca.crt"),
    ]
    assert args.index("--max-num-seqs") < args.index("--ssl-certfile")


def test_only_the_server_mounts_the_certificate_and_waits_for_it() -> None:
    made = pod(SECURE)
    [volume] = [one for one in made["volumes"] if one["name"] == "pod-tls"]
    assert volume["secret"]["secretName"] == "slipway-pod-tls"
    assert not volume["secret"].get("optional")
    containers = [*made["initContainers"], *made["containers"]]
    mounting = [one["name"] for one in containers for mount in one["volumeMounts"] if mount["name"] == "pod-tls"]
    assert mounting == ["server"]


def test_nothing_but_that_differs_from_a_pod_without_tls() -> None:
    plain, secure = pod(PLAIN), pod(SECURE)
    server = secure["containers"][0]
    server["args"] = server["args"][:-6]
    server["ports"][0]["name"] = "http"
    server["volumeMounts"] = [one for one in server["volumeMounts"] if one["name"] != "pod-tls"]
    secure["volumes"] = [one for one in secure["volumes"] if one["name"] != "pod-tls"]
    assert secure == plain


def test_the_record_of_a_revision_without_tls_is_as_before() -> None:
    assert "tls" not in controller_revision(OWNER, PLAIN)["data"]
    assert controller_revision(OWNER, SECURE)["data"]["tls"] is True


def test_the_service_of_a_revision_names_the_port_of_its_pods() -> None:
    [plain], [secure] = (headless_service(OWNER, "r1", tls=tls)["spec"]["ports"] for tls in (False, True))
    assert (plain["name"], plain["targetPort"]) == ("http", "http")
    assert (secure["name"], secure["targetPort"], secure["port"]) == ("https", "https", 8000)


def test_a_group_of_another_engine_is_as_before() -> None:
    foreign = Snapshot("r1", 1, PodInputs(Model("hf://a/b", "chat"), Engine(type="vllm")), "vllm:1", 600, 3)
    assert certificate.PORT_NAME not in json.dumps(replica_set(OWNER, foreign, 1))
