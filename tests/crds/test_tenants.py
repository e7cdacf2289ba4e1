"""The CRD of Tenants: complete, closed, and every rule refuses invalid Tenants (real API server)."""

import copy
from typing import Any

import pytest
import yaml

from slipway_gateway.identity.tenants import parse
from testkit import ROOT
from testkit.cluster.api import GROUP_PATH, Answer, Api
from tests.crds.schema import TENANT_FILE, version, walk

HASH = "hmac-sha256:" + "0" * 64
KEY: dict[str, Any] = {"id": "k7Qm2x", "hash": HASH, "expiresAt": "2027-01-01T00:00:00Z"}
SPEC: dict[str, Any] = {"models": ["chat", "embed-*", "prod/*", "*"], "auth": {"keys": [KEY]}, "weight": 2}


def dry_run(api: Api, spec: dict[str, Any], name: str = "team-a") -> Answer:
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name}, "spec": spec}
    return api.post(f"{GROUP_PATH}/tenants", body, dryRun="All", fieldValidation="Strict")


def changed(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SPEC), **fields}


def keyed(**fields: Any) -> dict[str, Any]:
    return changed(auth={"keys": [{**KEY, **fields}]})


def certified(*names: dict[str, str]) -> dict[str, Any]:
    return changed(auth={"clientCertificates": list(names)})


def test_every_field_is_described_and_nothing_is_open() -> None:
    for path, node in walk(version(TENANT_FILE)["schema"]["openAPIV3Schema"]):
        assert path == "metadata" or node["description"].rstrip().endswith("."), path
        assert "x-kubernetes-preserve-unknown-fields" not in node, path


@pytest.mark.integration
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"auth": {"keys": [KEY]}}, "spec.models"),
        (changed(models=[]), "spec.models"),
        (changed(models=["*a"]), "spec.models[0]"),
        (changed(models=["a b"]), "spec.models[0]"),
        (changed(models=[""]), "spec.models[0]"),
        (changed(models=["a", "a"]), "spec.models[1]"),
        (changed(weight=0), "spec.weight"),
        (changed(weight=1001), "spec.weight"),
        (changed(priorityLimit=-1001), "spec.priorityLimit"),
        (changed(generationLog="full"), "spec.generationLog"),
        (keyed(id="short"), "spec.auth.keys[0].id"),
        (keyed(id="has_underscore"), "spec.auth.keys[0].id"),
        (keyed(hash="sha256:" + "0" * 64), "spec.auth.keys[0].hash"),
        (keyed(hash=HASH[:-1]), "spec.auth.keys[0].hash"),
        (keyed(expiresAt="tomorrow"), "spec.auth.keys[0].expiresAt"),
        (changed(auth={"keys": [KEY, KEY]}), "spec.auth.keys[1]"),
        (changed(auth={"serviceAccounts": [{"namespace": "a"}]}), "spec.auth.serviceAccounts[0].name"),
        (changed(auth={"serviceAccounts": [{"namespace": "a:b", "name": "c"}]}), "serviceAccounts[0].namespace"),
        (changed(auth={"serviceAccounts": [{"namespace": "a", "name": "*"}]}), "spec.auth.serviceAccounts[0].name"),
        (certified({}), "write one of uri, dns and commonName"),
        (certified({"dns": "a", "commonName": "a"}), "write one of uri, dns and commonName"),
        (certified({"dns": "*.example.com"}), "spec.auth.clientCertificates[0].dns"),
        (certified({"uri": "example.com/a"}), "spec.auth.clientCertificates[0].uri"),
        (certified({"commonName": ""}), "spec.auth.clientCertificates[0].commonName"),
    ],
)
def test_invalid_tenants_are_refused_by_field(api: Api, spec: dict[str, Any], field: str) -> None:
    answer = dry_run(api, spec)
    assert answer.status == 422 and field in answer.message, answer.message


@pytest.mark.integration
def test_a_long_name_is_refused(api: Api) -> None:
    assert dry_run(api, SPEC, "a" * 63).ok
    answer = dry_run(api, SPEC, "a" * 64)
    assert answer.status == 422 and "metadata.name may have at most 63 characters" in answer.message


@pytest.mark.integration
@pytest.mark.parametrize("field", ["quota", "scopes"])
def test_unknown_fields_are_refused_by_name(api: Api, field: str) -> None:
    answer = dry_run(api, changed(**{field: 1}))
    assert answer.status == 400 and f'unknown field "spec.{field}"' in answer.message


@pytest.mark.integration
def test_gateways_read_what_the_api_server_accepts(api: Api) -> None:
    answer = dry_run(api, changed(auth={"keys": [KEY], "serviceAccounts": [{"namespace": "a", "name": "app"}]}))
    assert answer.ok, answer.message
    tenant = parse(answer.body)
    assert tenant.service_accounts == ("system:serviceaccount:a:app",)
    assert (tenant.models, tenant.weight, tenant.disabled) == (tuple(SPEC["models"]), 2, False)
    assert (tenant.keys[0].id, tenant.keys[0].hash, tenant.priority_limit) == ("k7Qm2x", HASH, None)


@pytest.mark.integration
def test_gateways_read_names_in_certificates(api: Api) -> None:
    answer = dry_run(api, certified({"uri": "spiffe://x.org/A"}, {"dns": "a.x.org"}, {"commonName": "A a"}))
    assert answer.ok, answer.message
    assert parse(answer.body).certificates == ("uri:spiffe://x.org/A", "dns:a.x.org", "commonName:A a")


@pytest.mark.integration
def test_the_tenant_of_the_documentation_is_accepted(api: Api) -> None:
    page = (ROOT / "docs" / "tenants.md").read_text()
    shown = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    answer = dry_run(api, shown["spec"], shown["metadata"]["name"])
    assert answer.ok, answer.message
