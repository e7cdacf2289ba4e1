"""v1beta1 at a real API server: kubectl, server-side apply in both versions, and what holds while nothing converts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from testkit import ROOT
from testkit.cluster.api import Api
from testkit.until import until
from tests.operator.conversion.conftest import CRDS, HOST, Webhook
from tests.support.api_server import install_crds
from tests.support.tools import kubectl

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

EXAMPLE = ROOT / "examples" / "v1beta1.yaml"
BETA_SPEC = {
    "model": {"uri": "hf://org/model"},
    "traffic": {"fallbacks": [{"name": "small"}], "cache": {"mode": "Exact", "scope": "AllTenants"}},
    "strategy": {"canary": {"trafficPercent": 5, "onErrorBudgetSpent": "Hold"}},
}
STORED_SPEC = {
    "model": {"uri": "hf://org/model"},
    "traffic": {"fallback": [{"name": "small"}], "cache": {"mode": "Exact", "shared": True}},
    "strategy": {"canary": {"trafficPercent": 5, "holdOnBudget": True}},
}


def where(space: str, version: str, name: str = "chat", part: str = "") -> str:
    return f"/apis/slipway.dev/{version}/namespaces/{space}/modeldeployments/{name}{part}"


def manifest(version: str, spec: dict[str, Any], name: str = "chat") -> dict[str, Any]:
    return {
        "apiVersion": f"slipway.dev/{version}",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": spec,
    }


def managers(obj: dict[str, Any]) -> dict[str, str]:
    return {
        item["manager"]: item["apiVersion"].partition("/")[2] for item in obj["metadata"].get("managedFields") or ()
    }


def applied(beta: Api, space: str, version: str, spec: dict[str, Any], manager: str = "git", **query: str) -> Any:
    return beta.apply(
        where(space, version), manifest(version, spec), fieldManager=manager, fieldValidation="Strict", **query
    )


def test_both_versions_show_one_object(beta: Api, webhook: Webhook, space: str) -> None:
    written = applied(beta, space, "v1beta1", BETA_SPEC)
    assert written.ok, written.message
    stored = beta.get(where(space, "v1alpha1")).body
    assert stored["spec"] == STORED_SPEC | {"replicas": 1} and stored["status"] == {"observedGeneration": -1}
    assert beta.get(where(space, "v1beta1")).body["spec"] == BETA_SPEC | {"replicas": 1}
    # The other way round, and the generation shows that nothing was changed on the way.
    old = beta.post(where(space, "v1alpha1", ""), manifest("v1alpha1", STORED_SPEC, "old"))
    assert old.ok, old.message
    new = beta.get(where(space, "v1beta1", "old")).body
    assert new["spec"] == BETA_SPEC | {"replicas": 1}
    assert beta.put(where(space, "v1beta1", "old"), new).body["metadata"]["generation"] == 1
    assert 200 in webhook.statuses


def test_the_rules_of_v1beta1_are_those_of_v1alpha1_in_its_names(beta: Api, webhook: Webhook, space: str) -> None:
    lonely = {"model": {"uri": "hf://org/model"}, "strategy": {"canary": {"baseline": "BaselinePods"}}}
    refused = applied(beta, space, "v1beta1", lonely)
    assert refused.status == 422 and "spec.strategy.canary.baseline is for an analysis" in refused.message
    lonely["strategy"]["canary"]["baseline"] = "StablePods"
    assert applied(beta, space, "v1beta1", lonely).ok
    unknown = applied(beta, space, "v1beta1", STORED_SPEC)
    assert not unknown.ok and "fallback" in unknown.message
    wrong = {"model": {"uri": "hf://org/model"}, "traffic": {"cache": {"mode": "Exact", "scope": "Namespace"}}}
    refused = applied(beta, space, "v1beta1", wrong)
    assert refused.status == 422 and "spec.traffic.cache.scope" in refused.message


def test_one_manager_may_apply_in_one_version_and_then_in_the_other(beta: Api, webhook: Webhook, space: str) -> None:
    assert applied(beta, space, "v1beta1", BETA_SPEC).ok
    again = applied(beta, space, "v1alpha1", STORED_SPEC)
    assert again.ok, again.message
    assert again.body["metadata"]["generation"] == 1 and managers(again.body) == {"git": "v1alpha1"}
    # Without a field it is removed, though the other version applied it.
    less = {name: value for name, value in BETA_SPEC.items() if name != "strategy"}
    gone = applied(beta, space, "v1beta1", less)
    assert gone.ok and "strategy" not in gone.body["spec"] and managers(gone.body) == {"git": "v1beta1"}
    taken = applied(beta, space, "v1alpha1", {**STORED_SPEC, "traffic": {"cache": {"mode": "Exact"}}}, "other")
    assert taken.ok, taken.message
    moved = STORED_SPEC | {"model": {"uri": "hf://org/b"}}
    conflict = applied(beta, space, "v1alpha1", moved, "other", force="false")
    assert conflict.status == 409 and "git" in conflict.message


def test_kubectl_applies_and_reads_both_versions(
    beta: Api, beta_server: Path, webhook: Webhook, space: str, tmp_path: Path
) -> None:
    done = kubectl(beta_server, "-n", space, "apply", "-f", str(EXAMPLE))
    assert done.returncode == 0, done.stderr
    names = [item["metadata"]["name"] for item in yaml.safe_load_all(EXAMPLE.read_text())]
    for version in ("v1alpha1", "v1beta1"):
        resource = f"modeldeployments.{version}.slipway.dev"
        shown = kubectl(beta_server, "-n", space, "get", resource, names[0], "-o", "yaml")
        assert shown.returncode == 0, shown.stderr
        assert yaml.safe_load(shown.stdout)["apiVersion"] == f"slipway.dev/{version}"
    again = kubectl(beta_server, "-n", space, "apply", "-f", str(EXAMPLE))
    assert {line.rpartition(" ")[2] for line in again.stdout.splitlines()} == {"unchanged"}, again.stdout


def test_without_the_webhook_v1alpha1_works_and_v1beta1_fails_with_the_reason(
    beta: Api, beta_server: Path, webhook: Webhook, space: str
) -> None:
    assert beta.post(where(space, "v1alpha1", ""), manifest("v1alpha1", STORED_SPEC)).ok
    webhook.stop()
    stored = beta.get(where(space, "v1alpha1"))
    assert stored.ok and beta.merge(where(space, "v1alpha1"), {"spec": {"paused": True}}, fieldManager="git").ok
    written = beta.put(where(space, "v1alpha1", part="/status"), {**beta.get(where(space, "v1alpha1")).body})
    assert written.ok, written.message
    assert "git" in managers(beta.get(where(space, "v1alpha1")).body), "what was written in v1alpha1 has its managers"
    for refused in (beta.get(where(space, "v1beta1")), applied(beta, space, "v1beta1", BETA_SPEC)):
        assert refused.status == 500 and "conversion webhook for slipway.dev/" in refused.message
    listed = kubectl(beta_server, "-n", space, "get", "modeldeployments.v1alpha1.slipway.dev", "-o", "name")
    assert listed.returncode == 0, listed.stderr


def test_without_the_webhook_a_write_drops_the_managers_of_what_was_applied_in_v1beta1(
    beta: Api, webhook: Webhook, space: str
) -> None:
    """The API server's own doing (docs/api-policy.md): the object itself stays."""
    assert applied(beta, space, "v1beta1", BETA_SPEC).ok
    webhook.stop()
    assert beta.merge(where(space, "v1alpha1"), {"spec": {"paused": True}}).ok
    obj = beta.get(where(space, "v1alpha1")).body
    assert managers(obj) == {} and obj["spec"] == STORED_SPEC | {"replicas": 1, "paused": True}


def test_without_v1beta1_in_the_crd_all_objects_can_be_written(
    beta: Api, beta_server: Path, webhook: Webhook, space: str
) -> None:
    """As the chart has it without operator.conversion. spec.conversion may stay: there is nothing to call it for."""
    assert applied(beta, space, "v1beta1", BETA_SPEC).ok
    assert beta.post(where(space, "v1alpha1", ""), manifest("v1alpha1", STORED_SPEC, "old"), fieldManager="git").ok
    webhook.stop()
    path = f"{CRDS}/modeldeployments.slipway.dev"
    assert beta.merge(path, {"spec": {"versions": beta.get(path).body["spec"]["versions"][:1]}}).ok
    try:
        until(lambda: beta.get(where(space, "v1beta1")), "v1beta1 is gone", holds=lambda answer: answer.status == 404)
        for name, left in (("chat", set()), ("old", {"git", "people"})):
            written = beta.merge(where(space, "v1alpha1", name), {"spec": {"paused": True}}, fieldManager="people")
            assert written.ok, written.message
            assert written.body["spec"] == STORED_SPEC | {"replicas": 1, "paused": True}
            assert set(managers(written.body)) == left, "those of what was applied in v1beta1 are gone"
        again = applied(beta, space, "v1alpha1", STORED_SPEC)
        assert again.ok and "git" in managers(again.body)
    finally:
        install_crds(beta_server)


def test_an_operator_that_stands_by_answers_and_writes_nothing(
    beta: Api, beta_server: Path, webhook: Webhook, port: int, space: str
) -> None:
    assert applied(beta, space, "v1beta1", BETA_SPEC).ok
    webhook.stop()
    before = {name: beta.get(f"{CRDS}/{name}.slipway.dev").body for name in ("modeldeployments", "tenants")}
    standby = Webhook(beta_server, port, may_write=False)
    standby.start()
    try:
        until(lambda: beta.get(where(space, "v1beta1")), "the standby converts", holds=lambda answer: answer.ok)
    finally:
        standby.stop()
    for name, crd in before.items():
        assert (
            beta.get(f"{CRDS}/{name}.slipway.dev").body["metadata"]["resourceVersion"]
            == crd["metadata"]["resourceVersion"]
        )


def test_the_crd_is_put_right_and_that_of_another_release_is_left(
    beta: Api, beta_server: Path, webhook: Webhook, port: int
) -> None:
    webhook.stop()
    path = f"{CRDS}/tenants.slipway.dev"
    other = {"namespace": "elsewhere", "name": "theirs"}
    assert beta.merge(path, {"spec": {"conversion": {"webhook": {"clientConfig": {"service": other}}}}}).ok
    theirs = beta.get(path).body
    assert beta.merge(f"{CRDS}/modelroutes.slipway.dev", {"spec": {"conversion": None}}).ok
    again = Webhook(beta_server, port)
    again.start()
    try:
        until(
            lambda: beta.get(f"{CRDS}/modelroutes.slipway.dev").body["spec"]["conversion"],
            "the CRD names the webhook again",
            holds=lambda conversion: conversion["strategy"] == "Webhook",
        )
        assert beta.get(path).body["spec"] == theirs["spec"]
    finally:
        again.stop()
        ours = {"namespace": HOST.namespace, "name": HOST.service}
        assert beta.merge(path, {"spec": {"conversion": {"webhook": {"clientConfig": {"service": ours}}}}}).ok


async def test_the_port_answers_reviews_and_nothing_else(beta: Api, webhook: Webhook, port: int) -> None:
    secret = beta.get(f"/api/v1/namespaces/{HOST.namespace}/secrets/{HOST.secret}").body["data"]
    assert set(secret) == {"authorities.json", "ca.crt"}
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert await reader.read() == b"", "without TLS there is no answer"
    writer.close()


def test_the_stored_version_is_v1alpha1(beta: Api, webhook: Webhook, space: str) -> None:
    assert applied(beta, space, "v1beta1", BETA_SPEC).ok
    crd = beta.get(f"{CRDS}/modeldeployments.slipway.dev").body
    assert crd["status"]["storedVersions"] == ["v1alpha1"]
    assert json.dumps(crd["spec"]["conversion"]["webhook"]["conversionReviewVersions"]) == '["v1"]'
