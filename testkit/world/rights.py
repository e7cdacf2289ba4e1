"""What the operator may do, as its documentation lists it, given to a service account."""

import re
from pathlib import Path
from typing import Any

import yaml

from slipway_operator.kube.client import Client
from testkit import ROOT

Object = dict[str, Any]

_RBAC, _GROUP = "/apis/rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
_ACCOUNT = "operator"
_TOKEN_S = 3600


def operator_rules() -> list[Object]:
    """The rules that docs/operator.md lists for the operator."""
    blocks = re.findall(r"```yaml\n(rules:.*?)```", (ROOT / "docs" / "operator.md").read_text(), re.DOTALL)
    return [rule for block in blocks for rule in yaml.safe_load(block)["rules"]]


def issuer_rules() -> list[Object]:
    """Those that it lists for certificates of cert-manager."""
    page = (ROOT / "docs" / "operator.md").read_text()
    [block] = re.findall(r"```yaml\n# Role for cert-manager\n(rules:.*?)```", page, re.DOTALL)
    return list(yaml.safe_load(block)["rules"])


async def grant(client: Client, namespace: str, role: str, rules: list[Object]) -> None:
    """Give a Role to the service account of `limited_kubeconfig`, which need not exist yet."""
    metadata = {"name": role, "namespace": namespace}
    binding = {
        "metadata": metadata,
        "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": namespace}],
    }
    roles = f"{_RBAC}/namespaces/{namespace}"
    await client.request("POST", f"{roles}/roles", [], {"metadata": metadata, "rules": rules})
    await client.request("POST", f"{roles}/rolebindings", [], binding)


async def limited_kubeconfig(client: Client, namespace: str, admin: Path, folder: Path) -> Path:
    """A service account that may do what docs/operator.md lists in the namespace, and nothing else."""
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await client.request("POST", account, [], {"metadata": {"name": _ACCOUNT, "namespace": namespace}})
    await grant(client, namespace, _ACCOUNT, operator_rules())
    body: Object = {"spec": {"audiences": [], "expirationSeconds": _TOKEN_S}}
    token = (await client.request("POST", f"{account}/{_ACCOUNT}/token", [], body))["status"]["token"]
    return _as_user(admin, token, folder / "operator.kubeconfig")


def _as_user(admin: Path, token: str, path: Path) -> Path:
    config = yaml.safe_load(admin.read_text())
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path.write_text(yaml.safe_dump(config))
    return path
