"""Keys and Tenants from the command line, against a real API server; gateways read what it writes."""

import base64
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from multidict import CIMultiDict

from slipway_cli.errors import CommandError
from slipway_cli.objects import api_keys, tenant
from slipway_gateway.identity import authenticate as gateway
from slipway_gateway.identity.tenants import build, parse
from testkit.cluster.api import Api

from .conftest import Run

pytestmark = pytest.mark.integration

PATH = "/apis/slipway.dev/v1alpha1/tenants"
PEPPER = b"P" * 32
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def team(api: Api, namespace: str) -> str:
    """A Tenant of the test's own, named like its namespace, and the pepper there."""
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": namespace}}
    made = api.post(PATH, body | {"spec": {"models": ["*"]}})
    assert made.ok, made.message
    data = {"pepper": base64.b64encode(base64.urlsafe_b64encode(PEPPER)).decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pepper"}, "data": data}
    assert api.post(f"/api/v1/namespaces/{namespace}/secrets", secret).ok
    return namespace


def found(api: Api, team: str, key: str, now: datetime | None = None) -> str:
    """How a gateway judges the key."""
    table = build([parse(api.get(f"{PATH}/{team}").body)], PEPPER)
    headers = CIMultiDict({"Authorization": f"Bearer {key}"})
    result = gateway.authenticate(headers, table, (now or datetime.now(UTC)).timestamp())
    return result.name if isinstance(result, gateway.RequestIdentity) else result.reason


def test_a_key_from_its_creation_to_its_end(api: Api, slipway: Run, team: str) -> None:
    pepper = f"--pepper={team}/pepper"
    created = slipway("keys", "create", team, "--expires-in", "30d", pepper)
    assert created.returncode == 0, created.stderr
    first = created.stdout.strip()
    assert re.fullmatch("slw_[A-Za-z0-9]{8}_[A-Za-z0-9]{43}_[A-Za-z0-9]{6}", first)
    assert first not in created.stderr and "shown only now" in created.stderr
    assert first not in str(api.get(f"{PATH}/{team}").body)
    assert found(api, team, first) == team

    rotated = slipway("keys", "rotate", team, api_keys.id_of(first), "--overlap", "1h", pepper)
    assert rotated.returncode == 0, rotated.stderr
    second = rotated.stdout.strip()
    assert (found(api, team, first), found(api, team, second)) == (team, team)
    later = datetime.now(UTC) + timedelta(hours=2)
    assert (found(api, team, first, later), found(api, team, second, later)) == ("expired", team)

    listed = json.loads(slipway("keys", "list", team, "-o", "json").stdout)
    assert [(one["id"], one["state"]) for one in listed] == [
        (api_keys.id_of(first), "Expiring"),
        (api_keys.id_of(second), "Valid"),
    ]
    assert slipway("keys", "expire", team, api_keys.id_of(second)).returncode == 0
    assert found(api, team, second) == "expired"
    assert slipway("keys", "revoke", team, api_keys.id_of(second)).returncode == 0
    assert found(api, team, second) == "invalid"
    table = slipway("tenants", team)
    assert table.stdout.startswith("NAME") and team in table.stdout and api_keys.id_of(first) in table.stdout


def test_a_dry_run_changes_nothing_and_prints_the_entry(api: Api, slipway: Run, team: str) -> None:
    printed = slipway("keys", "create", team, "--dry-run", "-o", "json", f"--pepper={team}/pepper")
    made = json.loads(printed.stdout)
    assert made["entry"]["hash"] == api_keys.hash_key(made["key"], PEPPER)
    assert "auth" not in api.get(f"{PATH}/{team}").body["spec"] or found(api, team, made["key"]) == "invalid"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "missing"), "there is no Tenant missing: `slipway tenants` lists all there are"),
        (("revoke", "TEAM", "abcdefgh"), "the Tenant has no key abcdefgh; it has none"),
        (("create", "TEAM", "--pepper=default/none"), "there is no Secret default/none: name the release's own"),
    ],
)
def test_mistakes_are_one_sentence(slipway: Run, team: str, arguments: tuple[str, ...], message: str) -> None:
    done = slipway("keys", *(team if one == "TEAM" else one for one in arguments))
    assert done.returncode == 1 and message in done.stderr and not done.stdout


# -- pure


def test_keys_are_what_gateways_read() -> None:
    from slipway_gateway.identity import api_keys as theirs

    for entropy in (b"\0" * 38, b"\xff" * 38, bytes(range(38))):
        key = api_keys.make_key(entropy)
        assert theirs.key_id(key) == api_keys.id_of(key)
        assert theirs.digest(key, PEPPER) == api_keys.hash_key(key, PEPPER)
    assert api_keys.MIN_PEPPER_BYTES == theirs.MIN_PEPPER_BYTES


def test_rotation_never_makes_a_key_live_longer() -> None:
    keys = [{"id": "a", "hash": "h", "expiresAt": "2026-01-02T00:00:00Z"}]
    assert tenant.expire(keys, "a", NOW + timedelta(days=9), earlier_only=True) == keys
    assert tenant.expire(keys, "a", NOW, earlier_only=True)[0]["expiresAt"] == "2026-01-01T00:00:00Z"


def test_a_full_tenant_takes_no_further_key() -> None:
    keys = [{"id": str(number), "hash": "h"} for number in range(tenant.MAX_KEYS)]
    with pytest.raises(CommandError, match="revoke those"):
        tenant.with_key(keys, "new", "h", None)
