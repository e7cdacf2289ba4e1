"""Objects at a real API server, users with few rights, and the console as a process in front of both."""

import base64
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devcluster.ports import reserve_port
from devcluster.processes import dies_with_parent
from testkit import ROOT
from testkit.cluster.api import GROUP_PATH, Api
from testkit.until import until

Json = dict[str, Any]

STABLE, CANARY = "aaaaaaaaaa", "bbbbbbbbbb"
RUN = f"chat-{CANARY}-1-1-0a1b2c3d"
STEPS = [{"setWeight": 10}, {"pause": {}}, {"setWeight": 50}, {"pause": {"duration": "10m"}}]
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_FOLDERS = ("operator", "cli", "console", "process", "contracts")
READ = ("get", "list")
VIEWER: tuple[Json, ...] = (
    {"apiGroups": ["slipway.dev"], "resources": ["modeldeployments", "analysisruns", "modelpools"], "verbs": READ},
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": READ},
    {"apiGroups": ["apps"], "resources": ["controllerrevisions"], "verbs": READ},
)
EDITOR: tuple[Json, ...] = (
    *VIEWER,
    {"apiGroups": ["slipway.dev"], "resources": ["modeldeployments"], "verbs": ["patch"]},
)


@dataclass(frozen=True, slots=True)
class Console:
    """A running console."""

    url: str
    admin_url: str
    log: Path


@contextlib.contextmanager
def running_console(kubeconfig: Path, folder: Path, *flags: str, port: int = 0) -> Iterator[Console]:
    """The console as a process of its own, without any credentials: of the kubeconfig it gets address and CA.

    `port`: 0: a free one.
    """
    config = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
    ca_file = folder / "ca.crt"
    ca_file.write_text(base64.b64decode(config["certificate-authority-data"]).decode())
    port, admin_port, log = port or reserve_port(), reserve_port(), folder / "console.log"
    command = [sys.executable, "-m", "slipway_console", "--host=127.0.0.1", "--admin-host=127.0.0.1"]
    command += [f"--port={port}", f"--admin-port={admin_port}", f"--api-server={config['server']}"]
    command += [f"--api-server-ca-file={ca_file}", *flags]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(str(ROOT / one) for one in _FOLDERS)}
    with log.open("wb") as lines:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=lines,
            preexec_fn=dies_with_parent(),
        )
    try:
        until(lambda: process.poll() is not None or b'"listening"' in log.read_bytes(), "the console listens")
        assert process.poll() is None, log.read_text()
        yield Console(f"http://localhost:{port}", f"http://127.0.0.1:{admin_port}", log)
    finally:
        process.terminate()
        process.wait(20)


def token_of(
    api: Api, namespace: str, account: str, rules: Sequence[Json] = (), cluster_rules: Sequence[Json] = ()
) -> str:
    """A token of a new ServiceAccount with these rights."""
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}
    made = api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", body)
    assert made.ok, made.message
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    _grant(api, f"{_RBAC}/namespaces/{namespace}", "Role", account, rules, subject)
    _grant(api, _RBAC, "ClusterRole", f"{namespace}-{account}", cluster_rules, subject)
    _wait_for_rights(
        api, f"system:serviceaccount:{namespace}:{account}", namespace if rules else "", [*rules, *cluster_rules]
    )
    request: Json = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    found = api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", request)
    assert found.ok, found.message
    return str(found.body["status"]["token"])


def _wait_for_rights(api: Api, user: str, namespace: str, rules: Sequence[Json]) -> None:
    """The API server learns of roles a moment after they were written."""
    if not rules:
        return
    group, resource, verb = (rules[-1][name][0] for name in ("apiGroups", "resources", "verbs"))
    resource, _, subresource = resource.partition("/")
    [name] = rules[-1].get("resourceNames", [""])
    attributes = {"group": group, "resource": resource, "subresource": subresource, "name": name}
    attributes |= {"verb": verb, "namespace": namespace}
    review = {"spec": {"user": user, "resourceAttributes": attributes}}
    where = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    until(lambda: api.post(where, review).body["status"]["allowed"], f"{user} has its rights")


def _grant(api: Api, where: str, kind: str, name: str, rules: Sequence[Json], subject: Json) -> None:
    if not rules:
        return
    plural = {"Role": ("roles", "rolebindings"), "ClusterRole": ("clusterroles", "clusterrolebindings")}[kind]
    made = api.post(f"{where}/{plural[0]}", {"metadata": {"name": name}, "rules": [*rules]})
    assert made.ok, made.message
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    bound = api.post(f"{where}/{plural[1]}", {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]})
    assert bound.ok, bound.message


def path(namespace: str, plural: str = "modeldeployments", name: str = "", subresource: str = "") -> str:
    return "/".join(filter(None, (GROUP_PATH, "namespaces", namespace, plural, name, subresource)))


def create_deployment(api: Api, namespace: str, name: str = "chat", status: Json | None = None, **spec: Any) -> Json:
    """A ModelDeployment, and then its status."""
    body = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "hf://org/m", "version": "2"}, "strategy": {"canary": {"steps": STEPS}}, **spec},
    }
    made = api.post(path(namespace), body, fieldManager="kubectl-create")
    assert made.ok, made.message
    return set_status(api, namespace, name, in_flight() if status is None else status)


def set_status(api: Api, namespace: str, name: str, status: Json) -> Json:
    """Merge into the status, as the operator would write it."""
    found = api.get(path(namespace, name=name)).body
    body = {"status": {"observedGeneration": found["metadata"]["generation"], **status}}
    done = api.merge(path(namespace, name=name, subresource="status"), body, fieldManager="slipway-operator")
    assert done.ok, done.message
    return done.body


def in_flight(step: int = 1, state: str = "Paused", message: str = "", **more: Any) -> Json:
    """The status of a canary at a step, counted from 0."""
    message = message or f"step {step + 1} of 4: revision {CANARY} has weight 10; waits for a promotion"
    return {
        "phase": "Paused" if state == "Paused" else "Progressing",
        "reason": state,
        "message": message,
        "step": f"{step + 1}/4",
        "weight": 10,
        "ready": "3/3",
        "model": "chat",
        "endpoint": "http://slipway-gateway.slipway-system.svc/v1",
        "currentRevision": CANARY,
        "stableRevision": STABLE,
        "canaryRevision": CANARY,
        "rollout": {
            "state": state,
            "revision": CANARY,
            "attempt": 1,
            "stepIndex": step,
            "steps": 4,
            "token": f"{CANARY}/1/{step}",
            "startedAt": "2026-01-01T11:55:00Z",
            "stepStartedAt": "2026-01-01T11:56:48Z",
            "progressAt": "2026-01-01T11:56:40Z",
        },
        "revisions": [
            {
                "revision": STABLE,
                "role": "stable",
                "version": "v1",
                "weight": 90,
                "ready": 2,
                "replicas": 2,
                "inflight": 7,
            },
            {
                "revision": CANARY,
                "role": "canary",
                "version": "v2",
                "weight": 10,
                "ready": 1,
                "replicas": 1,
                "inflight": 1,
            },
        ],
        "conditions": [
            condition("Accepted", "True", "Valid", "The spec is valid."),
            condition("Progressing", "True", state, message),
        ],
        "decisions": ["2026-01-01T11:55:00Z begin: revision bbbbbbbbbb, attempt 1, begins (Normal RolloutStarted)"],
        **more,
    }


def condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T11:56:48Z",
    }


def create_run(api: Api, namespace: str, name: str = RUN, **more: Any) -> Json:
    """An AnalysisRun of the deployment `chat`: a bound that falls below its limit, and a ramp that spends harm."""
    body = analysis_run(name, **more)
    made = api.post(path(namespace, "analysisruns"), body)
    assert made.ok, made.message
    return made.body


def analysis_run(name: str = RUN, **more: Any) -> Json:
    readings = [(seconds, 1000.0 / (1 + seconds / 4)) for seconds in range(0, 640, 10)]
    points = [
        {"seconds": seconds, "low": -high / 3, "high": high, "samples": seconds * 5} for seconds, high in readings
    ]
    ratio = [
        {"seconds": one["seconds"], "low": 0.2, "high": 0.6 + 40 / (1 + one["seconds"]), "samples": one["samples"]}
        for one in points
    ]
    verdict = {
        "outcome": "Inconclusive",
        "reason": "Undecided",
        "message": "live-bad: at most 6.3 extra bad responses per 1,000 (limit 10), 95%",
        "since": "2026-01-01T11:57:00Z",
        "evidence": "1.2",
        "threshold": "100",
        "metrics": [
            {
                "name": "live-bad",
                "finding": "Undecided",
                "canarySamples": 3150,
                "stableSamples": 28350,
                "canaryBad": 13,
                "stableBad": 140,
                "evidence": "1.2",
                "threshold": "100",
                "canaryRate": "0.41 %",
                "stableRate": "0.49 %",
                "needed": 4000,
            }
        ],
        "pairs": {"users": 412, "probes": 20, "probesBadOnCanary": 0, "probesBadOnTwin": 1},
        "quality": {"texts": 400, "textsDiffer": 37, "tokens": 9000, "flipsOnCanary": 41, "flipsOnTwin": 38},
    }
    status = {
        "id": f"{CANARY}/1/1",
        "template": "llm-release",
        "templateHash": "0",
        "startedAt": "2026-01-01T11:57:00Z",
        "readAt": "2026-01-01T12:07:30Z",
        "verdict": verdict,
        "decisions": [
            {
                "at": "2026-01-01T11:57:10Z",
                "outcome": "Inconclusive",
                "reason": "WarmUp",
                "message": "the warm-up lasts",
            },
            {
                "at": "2026-01-01T11:59:10Z",
                "outcome": "Inconclusive",
                "reason": "Undecided",
                "message": "more requests",
            },
        ],
        "series": [
            {"metric": "live-bad", "unit": "ExtraPerThousand", "limit": 10, "points": points},
            {"metric": "errors", "unit": "Ratio", "limit": 2, "points": ratio},
            {"metric": "ttft", "unit": "Ratio", "limit": 1.25},
        ],
        "ramp": {"weight": 10, "maxHarm": 20, "spent": 5.4},
        "harm": [
            {"seconds": seconds, "spent": 5.4 * seconds / 630, "weight": 1 + seconds // 80}
            for seconds in range(0, 640, 30)
        ],
        "sequence": 3,
        **more,
    }
    owner = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", "name": "chat", "uid": "u-1"}
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "AnalysisRun",
        "metadata": {"name": name, "labels": {"slipway.dev/modeldeployment": "chat"}},
        "spec": {"subjectRef": owner},
        "status": status,
    }


def analysis_reference(run: Json) -> Json:
    """What a rollout has about its analysis."""
    verdict = {name: run["status"]["verdict"][name] for name in ("outcome", "reason", "message", "since")}
    return {
        "id": run["status"]["id"],
        "template": run["status"]["template"],
        "run": run["metadata"]["name"],
        "uid": run["metadata"]["uid"],
        "sequence": run["status"]["sequence"],
        "verdict": verdict,
    }


def csrf_of(page: str) -> str:
    """The token of a session's forms."""
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found, page[:500]
    return found[1]
