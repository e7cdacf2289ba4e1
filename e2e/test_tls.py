"""HTTPS at the gateways, set up by values of the chart: the client of OpenAI trusts a certificate from a Secret."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from devcluster.certificates import Authority
from testkit.cluster.deployment import Deployment, Json
from testkit.cluster.installation import Installation
from testkit.cluster.kube import SYSTEM

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
        slipway.upgrade(gateway={"tls": {"secretName": SECRET}})
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
    plain = openai.OpenAI(base_url=slipway.url, api_key="none", max_retries=0, timeout=30)
    with pytest.raises(openai.APIConnectionError):
        plain.models.list()
