"""TLS at the gateways by values of the chart: clients of OpenAI and of gRPC trust a certificate from a Secret."""

import json
import ssl
import struct
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import openai
import pytest

from devcluster.certificates import Authority
from slipway_predict.http.message_types import ModelInferRequest, ModelInferResponse
from testkit.cluster.deployment import Deployment, Json
from testkit.cluster.installation import Installation
from testkit.cluster.kube import RELEASE, SYSTEM
from testkit.cluster.release import port_forward

SECRET = "e2e-gateway-tls"


@pytest.fixture
def authority(slipway: Installation, tmp_path: Path) -> Iterator[Authority]:
    """Whose certificate the gateways have; afterwards they speak HTTP again."""
    made = Authority.create(tmp_path / "authority")
    made.issue("gateway", "gateway", hosts=["127.0.0.1", f"slipway-gateway.{SYSTEM}.svc"])
    data = {"tls.crt": made.encoded("gateway.crt"), "tls.key": made.encoded("gateway.key")}
    secret: Json = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": SECRET},
        "data": data,
    }
    slipway.kube.apply(secret, SYSTEM)
    try:
        slipway.upgrade(gateway={"tls": {"secretName": SECRET, "minVersion": "1.3"}, "grpc": {"enabled": True}})
        yield made
    finally:
        slipway.upgrade()
        slipway.kube.kubectl("delete", "secret", SECRET, "--namespace", SYSTEM)


def test_openai_chats_with_a_model_over_tls(
    slipway: Installation, authority: Authority, deploy: Callable[..., Deployment]
) -> None:
    chat = deploy("v1")
    status = chat.until_stable("v1")
    assert status["endpoint"] == f"https://slipway-gateway.{SYSTEM}.svc/v1"
    trust = ssl.create_default_context(cafile=str(authority.path("ca.crt")))
    url = slipway.url.replace("http://", "https://")
    with openai.DefaultHttpxClient(verify=trust) as http:
        client = openai.OpenAI(base_url=url, api_key="none", http_client=http, max_retries=0)
        message = [{"role": "user", "content": "In the beginning"}]
        whole = client.chat.completions.create(model=chat.model, messages=message, max_tokens=8)  # type: ignore[arg-type]
        parts = client.completions.create(model=chat.model, prompt="In the beginning", max_tokens=8, stream=True)
        assert whole.choices[0].message.content and sum(1 for _ in parts) > 1
    _predicts_over_grpc(slipway, authority, chat.namespace)
    plain = openai.OpenAI(base_url=slipway.url, api_key="none", max_retries=0, timeout=30)
    with pytest.raises(openai.APIConnectionError):
        plain.models.list()


def _predicts_over_grpc(slipway: Installation, authority: Authority, namespace: str) -> None:
    iris = Deployment(slipway.kube, namespace, "iris")
    uri = "file:///opt/slipway/models/iris-onnx"
    iris.create("v1", model={"uri": uri, "task": "predict", "version": "v1"})
    iris.until_stable("v1")
    message = ModelInferRequest(model_name=iris.model)
    message.inputs.add(name=_input_of(slipway, authority, iris), datatype="FP32", shape=[2, 4])
    message.raw_input_contents.append(struct.pack("<8f", 5.1, 3.5, 1.4, 0.2, 6.9, 3.1, 5.4, 2.1))
    trust = grpc.ssl_channel_credentials(authority.path("ca.crt").read_bytes())
    with (
        port_forward(slipway.kube, SYSTEM, f"svc/{RELEASE}-gateway", 9000) as url,
        grpc.secure_channel(url.removeprefix("http://"), trust) as channel,
    ):
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert health(b"", timeout=30, wait_for_ready=True) == b"\x08\x01"
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = ModelInferResponse.FromString(infer(message.SerializeToString(), timeout=30))
    assert answer.model_version == "v1"
    assert struct.unpack("<2q", answer.raw_output_contents[0]) == (0, 2)


def _input_of(slipway: Installation, authority: Authority, model: Deployment) -> str:
    url = slipway.url.replace("http://", "https://").removesuffix("/v1")
    trust = ssl.create_default_context(cafile=str(authority.path("ca.crt")))
    with urllib.request.urlopen(f"{url}/v2/models/{model.model}", timeout=30, context=trust) as found:
        return str(json.loads(found.read())["inputs"][0]["name"])
