"""One model served: every endpoint through the real openai client, refusals with a reason, the output of kubectl."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from e2e.asking import client, post
from testkit.cluster.api import KubeError
from testkit.cluster.deployment import START_S, Deployment, Json, canary, conditions_of
from testkit.cluster.installation import Installation
from testkit.cluster.kube import SYSTEM
from testkit.cluster.tools import tool
from testkit.load.client import REVISION

COLUMNS = ["NAME", "PHASE", "REASON", "STEP", "WEIGHT", "READY", "STABLE", "CANARY", "AGE"]
ENFORCE = "pod-security.kubernetes.io/enforce"
WIDE = [*COLUMNS, "STANDBY", "MODEL", "ENDPOINT", "MESSAGE"]
CHAT: Any = [{"role": "user", "content": "In the beginning"}]


@pytest.fixture(scope="module")
def chat(slipway: Installation) -> Iterator[Deployment]:
    """One that serves v1, for all tests that only look at it."""
    with slipway.deployed("v1") as made:
        made.until_stable("v1")
        yield made


@pytest.fixture
def session(slipway: Installation) -> Iterator[openai.OpenAI]:
    with client(slipway.url) as opened:
        yield opened


# --- what an application sees -----------------------------------------------------------------------------------------


def test_chat_completion(chat: Deployment, session: openai.OpenAI) -> None:
    raw = session.chat.completions.with_raw_response.create(
        model=chat.model, messages=CHAT, max_tokens=12, temperature=0
    )
    answer = raw.parse()
    assert raw.headers[REVISION] == chat.status["stableRevision"]
    assert raw.headers["X-Request-Id"]
    assert answer.choices[0].message.content
    assert answer.usage and 0 < answer.usage.completion_tokens <= 12
    again = session.chat.completions.create(model=chat.model, messages=CHAT, max_tokens=12, temperature=0)
    assert again.choices[0].message.content == answer.choices[0].message.content


def test_completion(chat: Deployment, session: openai.OpenAI) -> None:
    answer = session.completions.create(
        model=chat.model, prompt=["And God said", "Blessed are"], max_tokens=8, extra_body={"ignore_eos": True}
    )
    assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]
    assert answer.usage and answer.usage.completion_tokens == 16


def test_stream_with_usage(chat: Deployment, session: openai.OpenAI) -> None:
    options: Any = {"model": chat.model, "messages": CHAT, "max_tokens": 20, "temperature": 0}
    whole = session.chat.completions.create(**options)
    chunks = list(session.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert len(chunks) > 5, "the answer came in one piece"
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_models(chat: Deployment, session: openai.OpenAI) -> None:
    assert chat.model in [model.id for model in session.models.list()]
    assert session.models.retrieve(chat.model).owned_by == "slipway"


def test_endpoints_beside_openai(chat: Deployment, slipway: Installation) -> None:
    body = {"model": chat.model, "prompt": "And God said", "max_tokens": 6}
    root = slipway.url.removesuffix("/v1")
    generated = answered(f"{root}/v1/generate", body)
    assert generated["text"] and 0 < generated["usage"]["output_tokens"] <= 6
    versioned = answered(f"{root}/api/v1/generate", body)
    assert versioned["model_version"] == "v1" and versioned["latency_ms"] > 0
    assert answered(f"{root}/api/v1/models/{chat.model}/generate", {"prompt": "And God said", "max_tokens": 6})["text"]
    _, streamed = post(f"{root}/v1/generate", body | {"stream": True})
    events = [json.loads(line.removeprefix("data: ")) for line in data_lines(streamed)]
    assert [events[0]["type"], events[-1]["type"]] == ["token", "done"]
    _, streamed = post(f"{root}/api/v1/generate", body | {"stream": True})
    *tokens, end = [line.removeprefix("data: ") for line in data_lines(streamed)]
    assert end == "[DONE]" and all(json.loads(token)["token"] for token in tokens)


def data_lines(streamed: str) -> list[str]:
    """Each event has an id beside its data."""
    return [line for line in streamed.splitlines() if line.startswith("data: ")]


def answered(url: str, body: Json) -> Json:
    status, text = post(url, body)
    assert status == 200, text
    return dict(json.loads(text))


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "absent"}, 404, "absent"),
        ({"model": None}, 400, "model"),
        ({"temperature": 9}, 400, "temperature"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, 400, "tokens"),
    ],
)
def test_bad_requests_have_openai_errors(
    chat: Deployment, slipway: Installation, change: Json, status: int, message: str
) -> None:
    body = {"model": chat.model, "messages": CHAT} | change
    found, text = post(f"{slipway.url}/chat/completions", body)
    assert found == status, text
    error = json.loads(text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]


def test_openai_client_raises_its_own_errors(chat: Deployment, session: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        session.chat.completions.create(model="absent", messages=CHAT)
    assert refused.value.code == "model_not_found"


# --- the output of kubectl -------------------------------------------------------------------------------------------


def test_kubectl_get_shows_the_state(chat: Deployment) -> None:
    header, row = table(chat, "get", "mdep", chat.name)
    assert header == COLUMNS
    assert (row[1], row[2], row[5], row[6]) == ("Healthy", "", "1/1", chat.status["stableRevision"])
    wide = chat.kube.kubectl("get", "mdep", chat.name, "--namespace", chat.namespace, "-o", "wide").splitlines()
    assert wide[0].split() == WIDE
    assert chat.model in wide[1]
    assert wide[1].endswith(chat.status["message"])
    assert chat.kube.kubectl("get", "slipway", "--namespace", chat.namespace, "-o", "name").split()


def test_kubectl_describe_shows_the_rollout(chat: Deployment) -> None:
    output = chat.kube.kubectl("describe", "mdep", chat.name, "--namespace", chat.namespace)
    assert len(output.splitlines()) <= 120
    revision = chat.status["stableRevision"]
    for part in (
        f"serving revision {revision}: 1 of 1 pods ready",
        f"first revision {revision} comes up",
        f"revision {revision} is stable and serves all requests",
        "TrafficSynced",
    ):
        assert part in output
    truths = conditions_of(chat.status)
    assert {"Accepted", "Ready", "Available", "Progressing", "TrafficSynced", "StableHealthy"} <= set(truths)
    assert set(truths.values()) == {"True"}
    chat.kube.kubectl("wait", f"mdep/{chat.name}", "--namespace", chat.namespace, "--for=condition=Ready")


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"replica": 2}, 'unknown field "spec.replica"'),
        ({"model": {"uri": "s4://x"}}, "spec.model.uri must start with hf://, https://, s3://"),
        (
            {"strategy": canary({"setWeight": 50}, {"setWeight": 10})},
            "the weights of spec.strategy.canary.steps must rise: write them like 10, 50, 100",
        ),
        (
            {"strategy": {"canary": {"trafficPercent": 10}, "blueGreen": {}}},
            "spec.strategy takes canary or blueGreen, not both: remove one of them",
        ),
    ],
)
def test_mistakes_are_refused_with_a_sentence(chat: Deployment, spec: Json, sentence: str) -> None:
    wrong = Deployment(chat.kube, chat.namespace, "wrong")
    with pytest.raises(KubeError) as refused:
        wrong.create("v1", **spec)
    assert sentence in str(refused.value)
    assert chat.kube.deployment("wrong", chat.namespace) == {}


def test_all_pods_pass_pod_security_restricted(chat: Deployment) -> None:
    """The model's namespace enforces it, so its pods would not be there; for Slipway's own a dry run checks it."""
    labels = chat.kube.api.find(f"api/v1/namespaces/{chat.namespace}")["metadata"]["labels"]
    assert labels[ENFORCE] == "restricted"
    assert len(chat.pods()) == 1
    command = [tool("kubectl"), "--kubeconfig", str(chat.kube.kubeconfig), "label", "--dry-run=server", "--overwrite"]
    labelled = subprocess.run(
        [*command, "namespace", SYSTEM, f"{ENFORCE}=restricted"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "violate" not in labelled.stderr, labelled.stderr


def test_slipway_explain_shows_the_plan_of_the_operator(chat: Deployment) -> None:
    """It runs in the operator's own pod, with that operator's flags and rights."""
    environment = os.environ | {
        "KUBECONFIG": str(chat.kube.kubeconfig),
        "PATH": f"{Path(tool('kubectl')).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [str(Path(sys.executable).parent / "slipway"), "explain", chat.name, "-n", chat.namespace]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    explained = json.loads(done.stdout)
    assert explained["object"]["status"]["stableRevision"] == chat.status["stableRevision"]


def table(chat: Deployment, *command: str) -> list[list[str]]:
    """The cells of what kubectl prints; a column is where its title is, because cells may be empty."""
    lines = chat.kube.kubectl(*command, "--namespace", chat.namespace).splitlines()
    starts = [lines[0].index(title) for title in lines[0].split()]
    ends = [*starts[1:], None]
    return [[line[start:end].strip() for start, end in zip(starts, ends, strict=True)] for line in lines]


# --- a model on a claim -----------------------------------------------------------------------------------------------


def test_model_on_a_claim(slipway: Installation, deploy: Callable[..., Deployment], namespace: str) -> None:
    """Weights that another pod has put on a volume are served from there, without a copy."""
    slipway.kube.apply(CLAIM, namespace)
    slipway.kube.apply(copier(slipway.images.server), namespace)
    done = "--for=jsonpath={.status.phase}=Succeeded"
    slipway.kube.kubectl("wait", "pod/copier", "--namespace", namespace, done, "--timeout=90s", timeout_s=100)
    chat = deploy("v1", uri="pvc://weights/tiny-v1")
    chat.until_stable("v1", START_S)
    with client(slipway.url) as session:
        answer = session.completions.create(model=chat.model, prompt="And God said", max_tokens=4)
    assert answer.choices[0].text
    [pod] = chat.pods()
    mounts = {mount["mountPath"]: mount for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["/mnt/pvc"]["readOnly"]


CLAIM: Json = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "weights"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
}


def copier(image: str) -> Json:
    """A pod that puts tiny-v1 on the claim."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "copier"},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "copy",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["cp", "-r", "/opt/slipway/models/tiny-v1", "/weights/"],
                    "volumeMounts": [{"name": "weights", "mountPath": "/weights"}],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
            "volumes": [{"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}}],
        },
    }
