"""What the operator may do, as its documentation lists it, given to a service account."""

import re
from pathlib import Path
from typing import Any

import yaml

from slipway_operator.kube.client import Client
from testkit import ROOT

Object = dict[str, Any]

_RBAC, _GROUP = "/apis/rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
_TOKEN_S = 3600


def operator_rules() -> list[Object]:
    """The rules that docs/operator.md lists for the operator."""
    blocks = re.findall(r"```yaml\n(rules:.*?)```", (ROOT / "docs" / "operator.md").read_text(), re.DOTALL)
    return [rule for block in blocks for rule in yaml.safe_load(block)["rules"]]


async def limited_kubeconfig(client: Client, namespace: str, admin: Path, folder: Path) -> Path:
    """A service account that may do what docs/operator.md lists in the namespace, and nothing else."""
    metadata = {"name": "operator", "namespace": namespace}
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    subject = {"kind": "ServiceAccount", **metadata}
    binding = {
        "metadata": metadata,
        "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": "operator"},
        "subjects": [subject],
    }
    roles = f"{_RBAC}/namespaces/{namespace}"
    await client.request("POST", account, [], {"metadata": metadata})
    await client.request("POST", f"{roles}/roles", [], {"metadata": metadata, "rules": operator_rules()})
    await client.request("POST", f"{roles}/rolebindings", [], binding)
    body: Object = {"spec": {"audiences": [], "expirationSeconds": _TOKEN_S}}
    token = (await client.request("POST", f"{account}/operator/token", [], body))["status"]["token"]
    return _as_user(admin, token, folder / "operator.kubeconfig")


def _as_user(admin: Path, token: str, path: Path) -> Path:
    config = yaml.safe_load(admin.read_text())
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path.write_text(yaml.safe_dump(config))
    return path
