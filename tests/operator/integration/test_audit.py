"""The audit log at a real API server, and of a real operator across a restart."""

import asyncio
import contextlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.controlplane import ControlPlane
from slipway_operator.audit.runner import AuditRunner
from slipway_operator.audit.trail import Trail
from slipway_operator.kube import auth
from slipway_operator.kube.client import Client
from slipway_operator.kube.reading.cache import ObjectCache
from testkit.cluster.api import GROUP_PATH, Api
from testkit.until import until, until_async
from testkit.world.pods import MERGE
from testkit.world.slipway import Cluster
from tests.support.api_server import CRD_FILES

pytestmark = pytest.mark.integration

KEY = {"id": "k7Qm2x", "hash": "hmac-sha256:" + "0" * 64}
CHAT = f"{GROUP_PATH}/namespaces/default/modeldeployments/chat"
TEAM = f"{GROUP_PATH}/tenants/team-a"


def verify(log: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "slipway"), "audit", "verify", str(log)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "slipway.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def deployment(version: str) -> dict[str, Any]:
    made = manifest("ModelDeployment", "chat", {"model": {"uri": f"file:///models/v{version}", "version": version}})
    made["metadata"]["namespace"] = "default"
    return made


def install(api: Api) -> None:
    for file in CRD_FILES:
        crd = yaml.safe_load(file.read_text())
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        assert api.apply(path, crd).ok


async def test_managers_of_fields_and_deletions_are_those_of_the_api_server(tmp_path: Path) -> None:
    tenant = manifest("Tenant", "team-a", {"models": ["*"]})
    with ControlPlane() as plane, contextlib.closing(Api(plane.kubeconfig)) as api:
        install(api)
        until(lambda: api.apply(TEAM, tenant).ok and api.apply(CHAT, deployment("1")).ok)
        async with Client(await auth.load(str(plane.kubeconfig))) as client:
            cache, trail = ObjectCache(), Trail(str(tmp_path / "log"), lambda: datetime.now(UTC))
            auditor = AuditRunner(client, cache, trail, bool, lambda: datetime.now(UTC))

            async def look() -> list[tuple[str, str, str, list[str]]]:
                """What is new: action, name, field, managers."""
                before = len((tmp_path / "log").read_text().splitlines()) if trail.since else 1
                await cache.relist(client)
                await auditor.look()
                lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()[before:]]
                return [
                    (line["action"], line["name"], line.get("field", ""), [one["manager"] for one in line["by"]])
                    for line in lines
                ]

            # They may have been created in the second in which the log began.
            first = await look()
            assert [name for _, name, *_ in first] == ["team-a", "chat"]
            assert {action for action, *_ in first} <= {"found", "created"}
            key = tenant | {"spec": tenant["spec"] | {"auth": {"keys": [KEY]}}}
            assert api.apply(TEAM, key, fieldManager="slipway").ok
            patch = {"spec": {"rollout": {"abort": "fnmlbxnrxy/1"}}}
            await client.request("PATCH", CHAT, [("fieldManager", "kubectl-patch")], patch, MERGE)
            assert await look() == [
                ("added", "team-a", "spec.auth.keys[k7Qm2x]", ["slipway"]),
                ("added", "chat", "spec.rollout.abort", ["kubectl-patch"]),
            ]
            assert await look() == []
            await asyncio.sleep(1)  # times of managers have whole seconds
            assert api.apply(TEAM, tenant, fieldManager="slipway").ok
            assert await look() == [("removed", "team-a", "spec.auth.keys[k7Qm2x]", ["slipway"])]
            assert api.delete(TEAM).ok and api.delete(CHAT).ok
            assert await look() == [("deleted", "team-a", "", []), ("deleted", "chat", "", [])]


@pytest.mark.extended
@pytest.mark.timeout(300)
async def test_changes_and_decisions_are_recorded_once_across_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def has(**fields: Any) -> bool:
        return any(fields.items() <= line.items() for line in lines())

    with ControlPlane() as plane, contextlib.closing(Api(plane.kubeconfig)) as api:
        install(api)
        tenant = manifest("Tenant", "team-a", {"models": ["*"]})
        until(lambda: api.apply(TEAM, tenant).ok and api.apply(CHAT, deployment("1")).ok)
        async with Client(await auth.load(str(plane.kubeconfig))) as client:
            flags = {"operator_flags": ("--audit", f"--audit-file={log}"), "gateway_flags": ()}
            made = Cluster(client, "default", plane.kubeconfig, plane.kubeconfig, tmp_path, **flags)
            async with made.running():
                await until_async(lambda: has(row="first-ready") and has(action="found", name="team-a"))
                tenant["spec"]["auth"] = {"keys": [KEY]}
                assert api.apply(TEAM, tenant).ok
                await until_async(lambda: has(action="added", field="spec.auth.keys[k7Qm2x]"))
                await made.operator.stop()
                del tenant["spec"]["auth"]
                assert api.apply(TEAM, tenant).ok and api.apply(CHAT, deployment("2")).ok
                await made.operator.start()
                await until_async(lambda: has(action="removed", field="spec.auth.keys[k7Qm2x]"))
                await until_async(lambda: has(row="new-revision"))
                assert api.delete(TEAM).ok
                await until_async(lambda: has(action="deleted", name="team-a"))
    (model,) = [line for line in lines() if line.get("field") == "spec.model"]
    assert model["by"][0]["manager"] and '"version":"2"' in model["to"]
    assert [line["action"] for line in lines() if line.get("name") == "team-a"] == [
        "found",
        "added",
        "removed",
        "deleted",
    ]
    assert len([line for line in lines() if line.get("row") == "first-revision"]) == 1
    done = await asyncio.to_thread(verify, log)
    assert done.returncode == 0 and done.stdout.startswith(f"{len(lines())} lines are whole"), done.stderr
    log.write_text(log.read_text().replace('"version\\":\\"2', '"version\\":\\"3'))
    done = await asyncio.to_thread(verify, log)
    (number,) = [line["seq"] for line in lines() if line.get("field") == "spec.model"]
    assert done.returncode == 1 and f"line {number + 1}: prev is not" in done.stderr
