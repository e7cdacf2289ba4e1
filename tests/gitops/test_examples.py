"""The examples for GitOps tools name kinds, fields and conditions that exist."""

from typing import Any

import yaml

from slipway_operator.model.deployment.spec import Spec, parse
from testkit import ROOT

EXAMPLES = ROOT / "examples" / "gitops"
KINDS = {
    yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]["names"]["kind"] for path in (ROOT / "crds").glob("*.yaml")
}


def documents(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((EXAMPLES / name).read_text()) if one]


def test_flux_checks_kinds_that_exist_by_their_version() -> None:
    staging, production = (one["spec"] for one in documents("flux.yaml"))
    checked = [*staging["healthChecks"], *production["healthCheckExprs"]]
    assert {one["apiVersion"] for one in checked} == {"slipway.dev/v1alpha1"}
    assert {one["kind"] for one in checked} <= KINDS
    assert production["dependsOn"] == [{"name": documents("flux.yaml")[0]["metadata"]["name"]}]


def test_argo_cd_ignores_what_people_and_autoscalers_write() -> None:
    [application] = documents("application.yaml")
    [ignored] = application["spec"]["ignoreDifferences"]
    assert (ignored["group"], ignored["kind"]) == ("slipway.dev", "ModelDeployment")
    crd = yaml.load((ROOT / "crds" / "modeldeployments.yaml").read_text(), yaml.CSafeLoader)
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert {pointer.removeprefix("/spec/") for pointer in ignored["jsonPointers"]} <= set(spec)


def test_waves_and_stages_follow_one_another() -> None:
    [waves] = documents("applicationset-waves.yaml")
    steps = waves["spec"]["strategy"]["rollingSync"]["steps"]
    assert [step["matchExpressions"][0]["values"] for step in steps] == [["1"], ["2"], ["3"]]
    assert "wave" in waves["spec"]["template"]["metadata"]["labels"]
    _, staging, production = documents("kargo.yaml")
    assert production["spec"]["requestedFreight"][0]["sources"] == {"stages": [staging["metadata"]["name"]]}
    uses = [step["uses"] for step in production["spec"]["promotionTemplate"]["spec"]["steps"]]
    assert uses[-1] == "argocd-update", "it waits for the health of the Application"


def test_the_notifications_are_hooks_with_their_secrets_in_a_secret_that_the_role_opens() -> None:
    deployment, role, _ = yaml.safe_load_all((ROOT / "examples" / "notifications.yaml").read_text())
    spec = parse(deployment | {"metadata": {"name": "chat", "namespace": "demo"}})
    assert isinstance(spec, Spec)
    assert {hook.format.value for hook in spec.hooks if hook.format} == {"Slack", "Teams", "PagerDuty"}
    named = {hook.secret[0] for hook in spec.hooks if hook.secret}
    assert named == set(role["rules"][0]["resourceNames"])
