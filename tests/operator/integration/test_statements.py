"""Signed verdicts end to end: an operator as a process, a real API server, the command line, the library of in-toto."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from slipway_contracts.verdict_statements import ANNOTATION
from slipway_operator.kube.resources import CONTROLLER_REVISIONS, EVENTS, MODEL_DEPLOYMENTS
from slipway_process import dsse
from testkit.until import until_async
from tests.cli.conftest import environment, slipway

from .conftest import MANIFEST

__all__ = ["environment", "slipway"]

pytestmark = pytest.mark.integration

KEY = ec.generate_private_key(ec.SECP256R1())
FILES = {version: "sha256:" + str(version) * 64 for version in (1, 2, 3)}


@pytest.fixture
def operator_flags(tmp_path):
    """The key is not there yet."""
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    return [f"--verdict-signing-key-file={tmp_path / 'private.pem'}"]


def model(version):
    return {"uri": f"https://models.example.com/v{version}", "revision": FILES[version]}


def healthy(status):
    return status.get("phase") == "Healthy" and "canaryRevision" not in status


async def statement_of(cluster, revision):
    record = await cluster.client.get(CONTROLLER_REVISIONS, cluster.namespace, f"chat-{revision}")
    return record["metadata"].get("annotations", {}).get(ANNOTATION)


async def unsigned(cluster):
    found = await cluster.client.list(EVENTS, cluster.namespace)
    return [event["message"] for event in found if event["reason"] == "VerdictNotSigned"]


async def test_a_verdict_is_signed_when_the_key_comes_and_verified_by_others(cluster, slipway, tmp_path):
    manifest = MANIFEST | {"metadata": {"name": "chat", "namespace": cluster.namespace}}
    strategy = {"canary": {"steps": [{"setWeight": 50}], "scaleDownDelaySeconds": 0}}
    manifest["spec"] = {"model": model(1), "strategy": strategy}
    await cluster.client.create(MODEL_DEPLOYMENTS, manifest)
    await cluster.reaches("chat is stable", healthy)
    await cluster.edit({"model": model(2)})
    promoted = await cluster.reaches("the promotion", lambda now: healthy(now) and now.get("previousRevision"))
    [message] = await until_async(lambda: unsigned(cluster), "an Event says that there is no key")
    assert "private.pem cannot be read" in message and await statement_of(cluster, promoted["stableRevision"]) is None

    pem = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "private.pem").write_bytes(pem)
    await cluster.operator.kill()
    await cluster.operator.start()
    text = await until_async(lambda: statement_of(cluster, promoted["stableRevision"]), "it is signed")
    envelope = Envelope.from_dict(json.loads(text))
    envelope.verify([SSlibKey.from_crypto(KEY.public_key(), keyid=dsse.key_id(KEY.public_key()))], 1)
    statement = json.loads(envelope.payload)
    assert statement["subject"][0]["digest"] == {"sha256": "2" * 64}
    assert statement["predicate"]["verdict"] == "promoted"

    shown = slipway("verdict", "chat", "--verify", str(tmp_path / "public.pem"))
    assert shown.returncode == 0 and shown.stdout.startswith("promoted at "), shown.stderr
    assert "verified: signed by the key " in shown.stderr

    # A statement that is copied to another revision is signed, and about another revision.
    first = promoted["previousRevision"]
    copied = {"metadata": {"annotations": {ANNOTATION: text}}}
    await cluster.client.patch(CONTROLLER_REVISIONS, cluster.namespace, f"chat-{first}", copied)
    refused = slipway("verdict", "chat", first, "--verify", str(tmp_path / "public.pem"))
    assert refused.returncode != 0 and "another revision" in refused.stderr and not refused.stdout
