"""A real MLflow server and a real cluster: an alias that moves is a canary, and the verdict is a tag of the version,
signed."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from testkit import ROOT
from testkit.cluster.deployment import START_S, Deployment, Json, canary, state_of, weights_of
from testkit.cluster.installation import Installation
from testkit.cluster.kube import SYSTEM
from testkit.cluster.release import is_devcluster
from testkit.load.closed import Load
from testkit.until import until
from testkit.world.addresses import own_address
from tests.support.stores.mlflow import Mlflow, mlflow

pytestmark = pytest.mark.extended

MODELS = ROOT / "examples" / "models"
LOOK_S = 30.0  # the operator looks each ten seconds
ALIAS, SIGNING_SECRET = "champion", "e2e-verdict-key"


@pytest.fixture
def public_key(slipway: Installation, tmp_path: Path) -> Iterator[Path]:
    """The file with the public key of the Secret by which verdicts are signed."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SIGNING_SECRET}}
    slipway.kube.apply(manifest | {"stringData": {"private.pem": private}}, SYSTEM)
    path = tmp_path / "public.pem"
    path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    yield path
    slipway.kube.kubectl("delete", "secret", SIGNING_SECRET, "--namespace", SYSTEM)


@pytest.fixture
def server(slipway: Installation, namespace: str, public_key: Path, tmp_path: Path) -> Iterator[Mlflow]:
    """The tracking server of the release, on this machine."""
    if not is_devcluster(slipway.kube):
        pytest.skip("pods of a foreign cluster do not reach this machine")
    host = f"mlflow.{namespace}.svc:5000"
    with mlflow(tmp_path, own_address(), host) as tracking:
        for manifest in service(tracking):
            slipway.kube.apply(manifest, namespace)
        try:
            about = {"url": f"http://{host}", "pollSeconds": 10, "writeVerdicts": "always"}
            signing = {"verdicts": {"signingSecret": {"name": SIGNING_SECRET}}}
            slipway.upgrade(registry={"mlflow": about}, operator=signing)
            slipway.until_well()
            yield tracking
        finally:
            slipway.upgrade()
            slipway.until_well()


def service(tracking: Mlflow) -> Iterator[Json]:
    """A Service that leads to this machine, whose own address may be of a kind that the operator never calls."""
    metadata = {"name": "mlflow", "labels": {"kubernetes.io/service-name": "mlflow"}}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 5000}]}}
    port = int(tracking.url.rpartition(":")[2])
    yield {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": "IPv4",
        "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
        "ports": [{"name": "", "port": port, "protocol": "TCP"}],
    }


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.timeout(900, func_only=True)
def test_a_moved_alias_is_promoted_and_a_broken_version_rolled_back(
    server: Mlflow, deploy: Callable[..., Deployment], load: Callable[[Deployment], Load], public_key: Path
) -> None:
    name = f"chat-{secrets.token_hex(3)}"
    broken = files_of(MODELS / "tiny-v2")
    broken["model.safetensors"] = broken["model.safetensors"][:1000]
    first, second, third = (
        server.register(name, server.run({"loss": loss}, "wiki", files))
        for loss, files in ((0.5, files_of(MODELS / "tiny-v1")), (0.25, files_of(MODELS / "tiny-v2")), (0.1, broken))
    )
    server.move(name, ALIAS, first)
    chat = deploy(
        model={"uri": f"models:/{name}@{ALIAS}"},
        strategy=canary({"setWeight": 50}, {"pause": {}}),
        progressDeadlineSeconds=60,
    )
    chat.until_stable(first)
    steady = load(chat)

    server.move(name, ALIAS, second)
    paused = chat.until("the alias starts a canary", lambda status: state_of(status) == "Paused", START_S + LOOK_S)
    assert weights_of(paused) == {first: 50, second: 50}
    chat.promote()
    chat.until_stable(second)
    until(lambda: verdict(server, name, second, chat), "the verdict", 60, holds=lambda tag: tag == "promoted")
    envelope = until(lambda: tag_of(server, name, second, chat, "statement"), "the signed verdict", 90)
    stated = verified(envelope, public_key)["predicate"]
    assert (stated["verdict"], stated["registry"]) == ("promoted", f"models:/{name}/{second}")

    server.move(name, ALIAS, third)
    rejected = chat.until("it is rejected", lambda status: state_of(status) == "Aborted", START_S + LOOK_S)
    assert weights_of(rejected) == {second: 100}
    until(lambda: verdict(server, name, third, chat), "the verdict", 60, holds=lambda tag: tag == "rejected")
    reason = server.tags(name, third)[f"slipway.{chat.namespace}.{chat.name}.reason"]
    assert "model.safetensors" in reason or rejected["rollout"]["abort"]["reason"] in reason, reason
    model = server.call("GET", f"registered-models/get?name={name}")["registered_model"]
    assert {alias["alias"]: alias["version"] for alias in model["aliases"]} == {ALIAS: third}, "no one moved it"
    assert steady.stop().failures == ()


def verdict(server: Mlflow, name: str, version: str, chat: Deployment) -> str:
    return tag_of(server, name, version, chat, "verdict")


def tag_of(server: Mlflow, name: str, version: str, chat: Deployment, tag: str) -> str:
    return server.tags(name, version).get(f"slipway.{chat.namespace}.{chat.name}.{tag}", "")


def verified(envelope: str, public_key: Path) -> dict[str, Json]:
    """The statement in an envelope that the key has signed, as the command line shows it."""
    path = os.pathsep.join(str(ROOT / part) for part in ("cli", "contracts", "process"))
    done = subprocess.run(
        [sys.executable, "-m", "slipway_cli", "verdict", "--file", "-", "--verify", str(public_key), "-o", "json"],
        env=os.environ | {"PYTHONPATH": path}, input=envelope, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Json] = json.loads(done.stdout)
    return found
