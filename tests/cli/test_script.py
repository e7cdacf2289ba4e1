"""The real console script and the real kubectl on a real API server, without an operator: tables, plugin, errors."""

import json
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from testkit.cluster.api import GROUP_PATH, Api

from .conftest import Run

pytestmark = pytest.mark.integration

SPEC = {"model": {"uri": "file:///opt/slipway/models/tiny-v1"}}
READER = [{"apiGroups": ["slipway.dev"], "resources": ["modeldeployments"], "verbs": ["get", "list"]}]


@pytest.fixture
def chat(api: Api, namespace: str) -> dict[str, Any]:
    """A ModelDeployment that no operator has seen."""
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "chat"}, "spec": SPEC}
    made = api.post(f"{GROUP_PATH}/namespaces/{namespace}/modeldeployments", body)
    assert made.ok, made.message
    return made.body


@pytest.fixture
def edited(api_server: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the administrator's kubeconfig with other clusters, users or contexts."""

    def edit(user: Any = None, cluster: Any = None, context: Any = None) -> Path:
        config = yaml.safe_load(api_server.read_text())
        if user is not None:
            config["users"][0]["user"] = user
        config["clusters"][0]["cluster"] |= cluster or {}
        config["contexts"][0]["context"] |= context or {}
        path = tmp_path / "other.kubeconfig"
        path.write_text(yaml.safe_dump({key: value for key, value in config.items() if value is not None}))
        return path

    return edit


@pytest.fixture
def account(api: Api, namespace: str, edited: Callable[..., Path]) -> Callable[..., Path]:
    """The kubeconfig of a service account with these rights in the namespace of the test."""

    def make(rules: list[dict[str, Any]]) -> Path:
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        metadata, accounts = {"name": "user"}, f"/api/v1/namespaces/{namespace}/serviceaccounts"
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "user"}
        subject = {"kind": "ServiceAccount", "name": "user", "namespace": namespace}
        assert api.post(accounts, {"metadata": metadata}).ok
        assert api.post(f"{rbac}/roles", {"metadata": metadata, "rules": rules}).ok
        assert api.post(f"{rbac}/rolebindings", {"metadata": metadata, "roleRef": role, "subjects": [subject]}).ok
        token = api.post(f"{accounts}/user/token", {"spec": {"audiences": [], "expirationSeconds": 3600}})
        return edited(user={"token": token.body["status"]["token"]})

    return make


def failed(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one sentence of a command that failed."""
    assert (done.returncode, done.stdout) == (code, ""), done
    [line] = done.stderr.splitlines()
    return line


def cells(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """The cells of a table without ages, which differ from one second to the next."""
    return [
        [word for word in line.split() if not re.fullmatch(r"\d+[smhd]", word)] for line in done.stdout.splitlines()
    ]


def test_get_prints_what_kubectl_prints(slipway: Run, kubectl: Run, chat: dict[str, Any], namespace: str) -> None:
    theirs = kubectl("get", "mdep", "-o", "wide", "-n", namespace)
    assert cells(slipway("get")) == cells(theirs)
    assert slipway("get", "chat").stdout.splitlines()[1].split()[0] == "chat"
    everywhere = slipway("get", "-A").stdout.splitlines()
    assert everywhere[0].split()[:2] == ["NAMESPACE", "NAME"]
    assert [namespace, "chat"] in [line.split()[:2] for line in everywhere]


def test_get_prints_objects(slipway: Run, chat: dict[str, Any]) -> None:
    assert json.loads(slipway("get", "chat", "-o", "json").stdout)["metadata"]["uid"] == chat["metadata"]["uid"]
    listed = yaml.safe_load(slipway("get", "-o", "yaml").stdout)
    assert [item["metadata"]["name"] for item in listed["items"]] == ["chat"]


def test_an_empty_namespace_is_no_failure(slipway: Run, namespace: str) -> None:
    done = slipway("get")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"No resources found in {namespace} namespace.\n")


def test_status_of_a_deployment_that_no_operator_has_seen(slipway: Run, chat: dict[str, Any], namespace: str) -> None:
    assert slipway("status", "chat").stdout.splitlines()[:2] == [
        f"{namespace}/chat  Pending",
        "the operator has not looked at it yet",
    ]


def test_history_of_a_deployment_without_one(slipway: Run, chat: dict[str, Any]) -> None:
    columns = ["ORDINAL", "REVISION", "VERSION", "IMAGE", "AGE", "ROLE", "REJECTED"]
    assert slipway("history", "chat").stdout.split() == columns
    assert failed(slipway("history", "chat", "--diff")) == (
        "error: there is one revision only, and nothing to compare it with"
    )


def test_the_namespace_is_that_of_the_context(
    slipway: Run, edited: Callable[..., Path], environment: dict[str, str], chat: dict[str, Any], namespace: str
) -> None:
    kubeconfig = edited(context={"namespace": namespace})
    done = subprocess.run(
        ["slipway", "get", "chat", "--kubeconfig", str(kubeconfig)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("chat")


def test_options_may_stand_before_and_after_the_verb(slipway: Run, chat: dict[str, Any], namespace: str) -> None:
    assert slipway("get", "chat", "-n", "default").returncode == 1
    assert slipway("--request-timeout", "5s", "get", "chat").returncode == 0


def test_a_patch_names_the_way_to_the_same_cluster(
    slipway: Run, chat: dict[str, Any], api_server: Path, namespace: str
) -> None:
    context = yaml.safe_load(api_server.read_text())["current-context"]
    printed = slipway("pause", "chat", "--dry-run", "--context", context, "--kubeconfig", str(api_server)).stdout
    assert printed == (
        f"kubectl patch modeldeployments.slipway.dev chat -n {namespace} --context={context} "
        f'--kubeconfig={api_server} --type=merge -p \'{{"spec":{{"paused":true}}}}\'\n'
    )


def test_kubectl_runs_and_completes_the_plugin(kubectl: Run, chat: dict[str, Any], namespace: str) -> None:
    assert "kubectl-slipway" in kubectl("plugin", "list").stdout
    shown = kubectl("slipway", "get", "-n", namespace)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[1].split()[0] == "chat"
    assert "Usage: kubectl slipway promote [OPTIONS] NAME" in kubectl("slipway", "promote", "-h").stdout
    assert kubectl("slipway", "promote", "absent", "-n", namespace).returncode == 1
    verbs = kubectl("__complete", "slipway", "re").stdout
    assert [line.split()[0] for line in verbs.splitlines()] == ["retry", "resume", ":4"]
    names = kubectl("__complete", "slipway", "status", "-n", namespace, "ch").stdout
    assert names.splitlines() == ["chat", ":4"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_the_program(slipway: Run, shell: str) -> None:
    assert "_SLIPWAY_COMPLETE" in slipway("completion", shell).stdout


def test_bash_completes_names(
    slipway: Run, environment: dict[str, str], api_server: Path, chat: dict[str, Any], namespace: str
) -> None:
    variables = {
        "_SLIPWAY_COMPLETE": "bash_complete",
        "COMP_WORDS": f"slipway -n {namespace} abort c",
        "COMP_CWORD": "4",
    }
    assert slipway(**variables).stdout == "plain,chat\n"
    broken = {**variables, "COMP_WORDS": f"slipway -n {namespace} --kubeconfig /none abort c", "COMP_CWORD": "6"}
    assert slipway(**broken).stdout.strip() == "", "completion prints no error"


def test_version_shows_all_three(slipway: Run) -> None:
    found = json.loads(slipway("version", "-o", "json").stdout)
    assert found["slipway"] and found["kubernetes"].startswith("v1.")
    assert found["modeldeployments.slipway.dev"] == ["v1alpha1"]
    assert slipway("version", "--client", kubeconfig=Path("/none")).stdout == f"slipway: {found['slipway']}\n"


# --- errors: one sentence with the remedy ----------------------------------------------------------------------------


def test_not_found(slipway: Run, namespace: str) -> None:
    assert failed(slipway("status", "absent")) == (
        f"error: there is no ModelDeployment absent in namespace {namespace}: `slipway get -A` lists all there are"
    )


def test_nothing_to_do(slipway: Run, chat: dict[str, Any]) -> None:
    assert failed(slipway("promote", "chat")).startswith("error: there is nothing to promote: no rollout of chat")


def test_no_kubeconfig(slipway: Run) -> None:
    assert failed(slipway("get", kubeconfig=Path("/none"))) == (
        "error: no way to a cluster by /none: there is no such file; name another file with --kubeconfig"
    )


def test_an_unknown_context(slipway: Run) -> None:
    assert "Expected object with name other in" in failed(slipway("get", "--context", "other"))


def test_invalid_kubeconfig(slipway: Run, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_text("a: [")
    assert failed(slipway("get", kubeconfig=path)).startswith(f"error: no way to a cluster by {path}: ")


def test_refused_connection(slipway: Run, edited: Callable[..., Path]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        line = failed(slipway("get", kubeconfig=edited(cluster={"server": f"https://127.0.0.1:{port}"})))
    assert "cannot be reached" in line and "Connection refused" in line and "is the cluster up" in line


def test_server_without_an_answer(slipway: Run, edited: Callable[..., Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        line = failed(slipway("get", "--request-timeout=1s", kubeconfig=edited(cluster={"server": server})))
    assert line == f"error: the API server {server} gave no answer within 1 s: is the network up?"


def test_an_authority_that_is_not_trusted(slipway: Run, api_server: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(api_server.read_text())
    cluster = config["clusters"][0]["cluster"]
    for key in [key for key in cluster if key.startswith("certificate-authority")]:
        del cluster[key]
    path = tmp_path / "untrusting"
    path.write_text(yaml.safe_dump(config))
    assert "certificate verify failed" in failed(slipway("get", kubeconfig=path))


def test_credentials_that_have_expired(slipway: Run, edited: Callable[..., Path]) -> None:
    line = failed(slipway("get", kubeconfig=edited(user={"token": "former"})))
    assert line.startswith("error: the API server does not know who you are") and line.endswith("log in again")


def test_a_credentials_plugin_that_fails(slipway: Run, edited: Callable[..., Path]) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false", "interactiveMode": "Never"}
    line = failed(slipway("get", kubeconfig=edited(user={"exec": plugin})))
    assert "its credentials cannot be had: exec: process returned 1" in line


def test_a_cluster_without_slipway(slipway: Run, edited: Callable[..., Path], api_server: Path) -> None:
    """A path that the real API server does not serve, in place of an API group that it does not serve."""
    server = yaml.safe_load(api_server.read_text())["clusters"][0]["cluster"]["server"]
    line = failed(slipway("get", kubeconfig=edited(cluster={"server": f"{server}/nowhere"})))
    assert line.startswith("error: this cluster does not serve modeldeployments.slipway.dev")


def test_a_user_without_rights(slipway: Run, account: Callable[..., Path], chat: dict[str, Any]) -> None:
    line = failed(slipway("get", kubeconfig=account([])))
    assert line.startswith("error: you may not do this: ") and "cannot list resource" in line


def test_a_user_who_may_only_read_deployments(slipway: Run, account: Callable[..., Path], chat: dict[str, Any]) -> None:
    kubeconfig = account(READER)
    shown = slipway("status", "chat", kubeconfig=kubeconfig)
    assert shown.returncode == 0
    assert [line.strip("├└│─ ").split(":")[0] for line in shown.stdout.splitlines()[-3:]] == [
        "not shown",
        "pods",
        "events",
    ]
    assert "cannot patch resource" in failed(slipway("pause", "chat", kubeconfig=kubeconfig))


def test_refusal_is_shown_with_the_message_of_the_api_server(slipway: Run, api: Api, namespace: str) -> None:
    """An invalid name gets the message of the API server."""
    assert "there is no ModelDeployment Not A Name" in failed(slipway("pause", "Not A Name"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["status", "--for=ready"],
        ["wait", "chat"],
        ["wait", "chat", "--for=ready"],
        ["get", "chat", "-A"],
        ["scale"],
    ],
)
def test_usage_errors_end_with_2(slipway: Run, arguments: list[str]) -> None:
    assert slipway(*arguments, kubeconfig=Path("/none")).returncode == 2
