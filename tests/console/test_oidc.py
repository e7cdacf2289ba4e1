"""An ID token counts where it is this provider's own answer to this sign-in, and in no other case."""

import json
import subprocess
import sys
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from slipway_console.access.oidc import Flow, check_id_token, code_of
from slipway_console.access.refusal import ApiRefusal
from slipway_console.settings import ConsoleSettings
from tests.support.settings import parsed

ISSUER, CLIENT, NONCE = "https://id.example", "console", "n" * 43
PRIVATE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, kid: str) -> dict[str, Any]:
    algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPublicKey) else ECAlgorithm
    return json.loads(algorithm.to_jwk(key)) | {"kid": kid, "use": "sig"}


KEYS = {"keys": [jwk(PRIVATE.public_key(), "a"), jwk(CURVE.public_key(), "b")]}


# Tokens are made when this file is read, and tests of it may run much later.
LASTS_S = 86_400


def token(key: Any = PRIVATE, algorithm: str = "RS256", kid: str | None = "a", **changes: Any) -> str:
    now = time.time()
    claims = {"iss": ISSUER, "aud": CLIENT, "sub": "u", "nonce": NONCE, "iat": now, "exp": now + LASTS_S} | changes
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers={"kid": kid} if kid else {})


def checked(text: str) -> float:
    return check_id_token(text, KEYS, ISSUER, CLIENT, NONCE, time.time()).lasts_s


@pytest.mark.parametrize(
    "text", [token(), token(CURVE, "ES256", "b"), token(aud=[CLIENT]), token(aud=[CLIENT, "x"], azp=CLIENT)]
)
def test_a_token_of_the_provider_lasts_until_it_expires(text: str) -> None:
    assert LASTS_S / 2 < checked(text) <= LASTS_S


@pytest.mark.attack_class(25)
@pytest.mark.parametrize(
    "text",
    [
        token(iss="https://evil.example"), token(aud="other"), token(aud=None), token(aud=[CLIENT, "x"]),
        token(azp="other"), token(exp=time.time() - 60), token(exp=None), token(nonce="m" * 43), token(nonce=None),
        token(nonce=7), token(OTHER), token(kid="c"), token(kid=None), token(sub=None), token(exp="soon"),
        token("", "none", "a"), token("k" * 64, "HS256", "a"), "", "a.b.c", "x" * 9000, "..",
    ],
    ids=range(21),
)  # fmt: skip
def test_any_other_token_is_refused(text: str) -> None:
    with pytest.raises(ApiRefusal):
        checked(text)


@pytest.mark.parametrize(
    "keys", [{}, {"keys": []}, {"keys": "x"}, {"keys": [7]}, {"keys": [{"kty": "oct", "k": "eA"}]}]
)
def test_what_is_no_set_of_keys_verifies_nothing(keys: dict[str, Any]) -> None:
    with pytest.raises(ApiRefusal):
        check_id_token(token(), keys, ISSUER, CLIENT, NONCE, 0)


def test_what_a_browser_keeps_of_a_sign_in_is_read_back_and_nothing_else_is() -> None:
    flow = Flow.begin()
    assert Flow.parse(str(flow)) == flow != Flow.begin()
    for text in ("", str(flow)[:-1], str(flow) + "x", str(flow).replace(".", ","), "ä" * 131):
        assert Flow.parse(text) is None
    assert code_of({"state": flow.state, "code": "c"}, flow, ISSUER) == "c"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--oidc-issuer=http://id.example",), "--oidc-issuer"),
        (("--oidc-issuer=https://id.example?x",), "--oidc-issuer"),
        (("--public-url=http://slipway.example",), "--public-url"),
        (("--public-url=https://slipway.example/path",), "--public-url"),
    ],
)
def test_settings_that_would_not_be_safe_are_refused(
    flags: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        ConsoleSettings.parse(flags)
    assert named in capsys.readouterr().err


def test_a_provider_is_a_matter_of_three_flags() -> None:
    flags = ("--oidc-issuer=https://id.example/realm", "--oidc-client-id=c", "--public-url=http://localhost:8040")
    assert parsed(ConsoleSettings, flags).oidc_scopes == ("openid", "profile", "email")


def test_a_provider_without_a_client_starts_no_console() -> None:
    command = [sys.executable, "-m", "slipway_console", "--oidc-issuer=https://id.example"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "needs --oidc-client-id, --public-url" in done.stderr
