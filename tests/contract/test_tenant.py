"""The gateway says whose request it is; nobody else can, and the server takes it as it is said."""

import re
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from slipway_gateway.mirror.ask import Ask, shadow
from slipway_gateway.wire import envelope
from slipway_gateway.wire import headers as gateway
from slipway_server.http import resume
from slipway_server.http import tenant as server
from slipway_server.http.errors import ApiError
from slipway_server.http.shadow import PRIORITY, SHADOW, priority_of
from tests.contract.documented import TEXT

ALL = envelope.TENANT_SOURCES


def said(sent: dict[str, str], user: object = None, *, salt: str = "s", sources: tuple[str, ...] = ALL) -> str:
    """The tenant that a server takes from what the gateway makes of a client's request."""
    tenant = envelope.tenant(CIMultiDict(sent), envelope.Envelope(user=user), sources, salt)
    crossed = gateway.to_upstream(CIMultiDict(sent), "id", tenant)
    assert crossed.getall(gateway.TENANT, []) == ([tenant] if tenant else [])
    taken = server.tenant_of(crossed)
    assert taken == tenant == resume.read(crossed, b"").tenant
    return taken


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_the_header_is_the_same_word_on_both_sides() -> None:
    assert gateway.TENANT == server.TENANT
    assert f"`{server.TENANT}: " in TEXT


def test_a_shadow_is_the_same_word_on_both_sides_and_goes_last() -> None:
    assert gateway.SHADOW == SHADOW and f"`{SHADOW}: 1`" in TEXT
    asked = Ask("/v1/completions", gateway.to_upstream(CIMultiDict(bearer("a")), "id", "b" * 32), b"{}")
    copied = shadow(asked).headers
    assert priority_of(copied, -1000) == priority_of(copied) == PRIORITY > 1000 == priority_of(asked.headers, 1000)
    assert priority_of(asked.headers) == 0 and f"priority {PRIORITY}" in TEXT
    assert resume.read(copied, b"").tenant == sha256(b"shadow:" + b"b" * 32).hexdigest()[:32]


@pytest.mark.parametrize("name", [gateway.SHADOW, gateway.SHADOW.lower()])
def test_no_client_can_say_that_its_request_is_a_shadow(name: str) -> None:
    assert gateway.SHADOW not in gateway.to_upstream(CIMultiDict({name: "1"}), "id")


@settings(deadline=None, max_examples=30)
@given(st.text(min_size=1), st.text(min_size=1), st.text())
def test_a_name_is_the_same_at_each_gateway_and_tells_nothing(user: str, other: str, salt: str) -> None:
    name = said({}, user, salt=salt)
    assert re.fullmatch("[0-9a-f]{32}", name)
    assert (said({}, other, salt=salt) == name) == (user == other)
    assert said({}, user, salt=salt + "x") != name


def test_the_key_comes_before_the_user_whom_it_names() -> None:
    assert said(bearer("a"), "u1") == said(bearer("a"), "u2") == said(bearer("a")) != said(bearer("b"))
    assert said({}, "a") != said(bearer("a")) and said({}, "u1") != said({}, "u2")
    assert said(bearer("a"), "u1", sources=("user",)) == said({}, "u1")
    assert said(bearer("a"), "u1", sources=("key",)) == said(bearer("a"))
    assert said(bearer("a"), "u1", sources=()) == ""


@pytest.mark.parametrize("nobody", [{}, bearer("EMPTY"), bearer("none"), {"Authorization": "Basic YTpi"}])
@pytest.mark.parametrize("user", [None, "", 7, ["x"]])
def test_whom_nobody_names_is_no_tenant(nobody: dict[str, str], user: object) -> None:
    assert said(nobody, user) == ""


@pytest.mark.parametrize("name", [gateway.TENANT, gateway.TENANT.lower(), gateway.TENANT.upper()])
@pytest.mark.parametrize("beside", [{}, bearer("a"), {"Connection": gateway.TENANT}])
def test_what_a_client_claims_goes_nowhere(name: str, beside: dict[str, str]) -> None:
    assert said({name: "f" * 32} | beside) == said(beside)


@pytest.mark.parametrize("given", ["x", "F" * 32, "0" * 31, "0" * 33, "0" * 32 + " "])
def test_nonsense_is_a_400(given: str) -> None:
    with pytest.raises(ApiError) as refused:
        server.tenant_of({server.TENANT: given})
    assert refused.value.status == 400
