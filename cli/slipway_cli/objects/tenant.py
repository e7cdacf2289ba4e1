"""The keys of a Tenant: the rows that a table shows, and the lists after each change; pure."""

from datetime import UTC, datetime, timedelta
from typing import Any

from slipway_cli.api import Json
from slipway_cli.errors import CommandError
from slipway_cli.objects.times import format_duration, parse_time

MAX_KEYS = 32  # of a Tenant, as the CRD has it
EXPIRING = timedelta(days=7)
Keys = list[dict[str, Any]]


def keys_of(tenant: Json) -> Keys:
    """Copies of the entries in a Tenant's spec.auth.keys."""
    spec = tenant.get("spec") or {}
    return [dict(key) for key in (spec.get("auth") or {}).get("keys") or ()]


def with_key(keys: Keys, key_id: str, key_hash: str, expires: datetime | None) -> Keys:
    """The keys and one more.

    Raises:
        CommandError: when the Tenant has `MAX_KEYS` keys.
    """
    if len(keys) >= MAX_KEYS:
        raise CommandError(f"the Tenant has {MAX_KEYS} keys, which is the limit: revoke those that are not in use")
    entry = {"id": key_id, "hash": key_hash, **({"expiresAt": format_time(expires)} if expires else {})}
    return [*keys, entry]


def expire(keys: Keys, key_id: str, at: datetime, *, earlier_only: bool = False) -> Keys:
    """The keys, one of which expires at `at`. `earlier_only`: a key that expires before that stays as it is.

    Raises:
        CommandError: when there is no such key.
    """
    _find(keys, key_id)
    changed = {"expiresAt": format_time(at)}
    return [key | changed if key["id"] == key_id and not (earlier_only and _before(key, at)) else key for key in keys]


def without(keys: Keys, key_id: str) -> Keys:
    """The keys without one of them.

    Raises:
        CommandError: when there is no such key.
    """
    _find(keys, key_id)
    return [key for key in keys if key["id"] != key_id]


def rows(tenant: Json, now: datetime) -> list[tuple[str, ...]]:
    """Rows of a table with the keys of a Tenant: tenant, id, state, when the key expires."""
    name = tenant["metadata"]["name"]
    return [(name, key["id"], *_state(parse_time(key.get("expiresAt")), now)) for key in keys_of(tenant)]


def format_time(moment: datetime) -> str:
    """A time in RFC 3339, in UTC and whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _state(expires: datetime | None, now: datetime) -> tuple[str, str]:
    if expires is None:
        return "Valid", "never"
    if expires <= now:
        return "Expired", f"{format_duration((now - expires).total_seconds())} ago"
    state = "Expiring" if expires - now <= EXPIRING else "Valid"
    return state, f"in {format_duration((expires - now).total_seconds())}"


def _before(key: dict[str, Any], at: datetime) -> bool:
    expires = parse_time(key.get("expiresAt"))
    return expires is not None and expires <= at


def _find(keys: Keys, key_id: str) -> None:
    if not any(key["id"] == key_id for key in keys):
        known = ", ".join(key["id"] for key in keys) or "none"
        raise CommandError(f"the Tenant has no key {key_id}; it has {known}")
