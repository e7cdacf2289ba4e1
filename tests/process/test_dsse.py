"""DSSE envelopes: what securesystemslib verifies, and what it signs; and nothing that was changed."""

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from slipway_contracts.verdict_statements import MOST_BYTES, MOST_PAYLOAD_BYTES, PAYLOAD_TYPE
from slipway_process import dsse

KEYS: dict[str, dsse.PrivateKey] = {
    "Ed25519": ed25519.Ed25519PrivateKey.generate(),
    "ECDSA": ec.generate_private_key(ec.SECP256R1()),
}
KINDS = pytest.mark.parametrize("kind", sorted(KEYS))
PAYLOAD = '{"_type":"a","é":1}'.encode()


def private_pem(key: Any) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def public_pem(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def test_what_is_signed_is_that_of_the_specification() -> None:
    assert dsse._encoded("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert dsse._encoded("é", b"") == b"DSSEv1 2 \xc3\xa9 0 "


@KINDS
def test_the_library_of_in_toto_verifies_what_we_sign(kind: str) -> None:
    key = dsse.private_key(private_pem(KEYS[kind]))
    text = dsse.sign(PAYLOAD_TYPE, PAYLOAD, key)
    envelope = Envelope.from_dict(json.loads(text))
    known = SSlibKey.from_crypto(key.public_key(), keyid=dsse.key_id(key.public_key()))
    assert list(envelope.verify([known], 1)) == [dsse.key_id(key.public_key())] and envelope.payload == PAYLOAD
    other = SSlibKey.from_crypto(KEYS["Ed25519" if kind == "ECDSA" else "ECDSA"].public_key())
    with pytest.raises(VerificationError):
        envelope.verify([other], 1)


@KINDS
def test_we_verify_what_the_library_of_in_toto_signs(kind: str) -> None:
    envelope = Envelope(PAYLOAD, PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(KEYS[kind]))
    read = dsse.read(json.dumps(envelope.to_dict()))
    keys = dsse.public_keys(public_pem(KEYS["ECDSA"]) + b"\n# rotated\n" + public_pem(KEYS["Ed25519"]))
    assert read.payload == PAYLOAD
    assert dsse.verify(read, PAYLOAD_TYPE, keys) == dsse.key_id(KEYS[kind].public_key())


@KINDS
def test_nothing_that_was_changed_is_verified(kind: str) -> None:
    text, keys = dsse.sign(PAYLOAD_TYPE, PAYLOAD, KEYS[kind]), (KEYS[kind].public_key(),)
    content = json.loads(text)
    [signature] = content["signatures"]
    other = base64.b64encode(PAYLOAD.replace(b"1", b"2")).decode()
    for changed in (
        content | {"payload": other},
        content | {"payloadType": "text/plain"},
        content | {"signatures": []},
        content | {"signatures": [signature | {"sig": base64.b64encode(b"x" * 64).decode()}]},
    ):
        with pytest.raises(dsse.NotVerified):
            dsse.verify(dsse.read(json.dumps(changed)), PAYLOAD_TYPE, keys)
    assert dsse.verify(dsse.read(text), PAYLOAD_TYPE, keys)
    # The id of a key is not signed: it neither helps nor harms.
    unnamed = content | {"signatures": [{"sig": signature["sig"]}]}
    assert dsse.verify(dsse.read(json.dumps(unnamed)), PAYLOAD_TYPE, keys)


@KINDS
def test_an_envelope_of_the_longest_payload_has_the_room_of_a_tag(kind: str) -> None:
    for _ in range(20):  # signatures of ECDSA differ in length
        assert len(dsse.sign(PAYLOAD_TYPE, b"x" * MOST_PAYLOAD_BYTES, KEYS[kind])) <= MOST_BYTES


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"\xff",
        private_pem(rsa.generate_private_key(65537, 2048)),
        private_pem(ec.generate_private_key(ec.SECP384R1())),
        public_pem(KEYS["ECDSA"]),
        KEYS["ECDSA"].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")),
    ],
)
def test_a_key_that_cannot_sign_is_refused_without_a_part_of_it(pem: bytes) -> None:
    with pytest.raises(dsse.UnusableKey) as refused:
        dsse.private_key(pem)
    assert not any(line.decode() in str(refused.value) for line in pem.splitlines()[1:-1])


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        private_pem(KEYS["ECDSA"]),
        public_pem(rsa.generate_private_key(65537, 2048)),
        public_pem(KEYS["ECDSA"]) + public_pem(ec.generate_private_key(ec.SECP384R1())),
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----",
    ],
)
def test_what_is_no_public_key_is_refused(pem: bytes) -> None:
    with pytest.raises(dsse.UnusableKey):
        dsse.public_keys(pem)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["sig", "keyid", "a"]), inner),
    max_leaves=6,
)


@given(payload=_JSON, payload_type=_JSON, signatures=_JSON)
def test_any_json_is_an_envelope_or_refused(payload: Any, payload_type: Any, signatures: Any) -> None:
    content = {"payload": payload, "payloadType": payload_type, "signatures": signatures}
    try:
        envelope = dsse.read(json.dumps(content))
    except dsse.NotVerified:
        return
    with pytest.raises(dsse.NotVerified):
        dsse.verify(envelope, PAYLOAD_TYPE, [KEYS["ECDSA"].public_key(), KEYS["Ed25519"].public_key()])


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "null", '"a"', '{"signatures": 1}', "1" * 5000])
def test_what_is_no_envelope_is_refused(text: str) -> None:
    with pytest.raises(dsse.NotVerified):
        dsse.read(text)
