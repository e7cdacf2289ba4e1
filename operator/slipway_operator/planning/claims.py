"""Owners of model names: the first claim wins, also through delete and recreate, unless an admin grants the name."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from slipway_contracts.api.times import format_time
from slipway_operator.model.cluster import names
from slipway_operator.model.cluster.names import Claim, Grants, Standing, Wish
from slipway_process.places import Places

TAKEN, RESERVED, GRANTED = "ModelNameTaken", "ModelNameReserved", "ModelNameGranted"
INVALID, FULL, UNCLAIMED = "ModelNameInvalid", "ModelNamesFull", "ModelNameNotClaimed"

# All claims are one object, which the API server limits to 1 MiB. A namespace may have a quarter of what the others
# leave: so a new namespace finds room for its names after any number of others that took what they could.
MAX_BYTES = 900_000
NAMESPACE_PERCENTAGE = 25
# Names of deleted ModelDeployments that one namespace keeps: creating and deleting must not fill the object.
MAX_RELEASED = 64
_SHOWN = 3  # namespaces that a message lists


@dataclass(frozen=True, slots=True)
class Settled:
    """The claims to write, and the resulting standing of each ModelDeployment and of each name of a ModelRoute."""

    claims: dict[str, Claim]
    standings: dict[str, Standing]  # by the key of the wish


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """The installation's settings for names."""

    retention_s: float
    grants: Grants = field(default_factory=Grants)


def settle(claims: Mapping[str, Claim], wishes: Iterable[Wish], rules: ClaimRules, now: datetime) -> Settled:
    """The next claims of all names, and standings. Pure and idempotent.

    A name has one owner at most. The owner loses it when an admin grants it to other namespaces, or when the owner has
    been gone for the retention; until then only the owner's namespace gets the name. A free name goes to the oldest
    object that names it. Within one namespace a ModelRoute has a name before a ModelDeployment: requests reach that one
    by the rules, and as `namespace/name`.
    """
    now = now.replace(microsecond=0)
    wishes_by_name: dict[str, list[Wish]] = {}
    for wish in sorted(wishes, key=lambda one: (one.created, one.owner)):
        wishes_by_name.setdefault(wish.name, []).append(wish)
    kept = _kept(claims, wishes_by_name, rules, now)
    given, full = _given(kept, wishes_by_name, rules, now)
    made = {**kept, **given}
    standings = {
        wish.key: _standing(wish, made.get(name), rules, full)
        for name, found in wishes_by_name.items()
        for wish in found
    }
    return Settled(made, standings)


def _kept(
    claims: Mapping[str, Claim], wishes_by_name: Mapping[str, list[Wish]], rules: ClaimRules, now: datetime
) -> dict[str, Claim]:
    kept: dict[str, Claim] = {}
    for name, claim in claims.items():
        if rules.grants.allow(name, claim.namespace) and (
            next_one := _next(claim, wishes_by_name.get(name, ()), rules, now)
        ):
            kept[name] = next_one
    for name in _beyond(kept):
        del kept[name]
    return kept


def _next(claim: Claim, wishes: Collection[Wish], rules: ClaimRules, now: datetime) -> Claim | None:
    """The claim after this step; None when it ends."""
    holder = _holder(wishes, claim.namespace, claim.owner)
    if holder:
        return replace(claim, released_at=None) if holder.owner == claim.owner else Claim(holder.owner, now)
    released_at = claim.released_at or now
    over = now - released_at >= timedelta(seconds=rules.retention_s)
    return None if over else replace(claim, released_at=released_at)


def _holder(wishes: Collection[Wish], namespace: str, present: str = "") -> Wish | None:
    """Who has a name that is a namespace's: a ModelRoute before a ModelDeployment, then the present owner."""
    own = [wish for wish in wishes if wish.namespace == namespace]
    return min(own, key=lambda wish: (not names.is_route(wish.owner), wish.owner != present), default=None)


def _beyond(kept: Mapping[str, Claim]) -> list[str]:
    """Released names beyond the MAX_RELEASED of their namespace: those that were released first."""
    released: dict[str, list[tuple[datetime, str]]] = {}
    for name, claim in kept.items():
        if claim.released_at:
            released.setdefault(claim.namespace, []).append((claim.released_at, name))
    return [name for found in released.values() for _, name in sorted(found)[: max(0, len(found) - MAX_RELEASED)]]


def _given(
    kept: Mapping[str, Claim], wishes_by_name: Mapping[str, list[Wish]], rules: ClaimRules, now: datetime
) -> tuple[dict[str, Claim], dict[str, int]]:
    """Free names with their new owners, the oldest ModelDeployment first.

    Also the owners for whose name there is no room, with the bytes that their namespace's names have.
    """
    given: dict[str, Claim] = {}
    full: dict[str, int] = {}
    room = _room(kept)
    free = [
        (wish, name)
        for name, found in wishes_by_name.items()
        if name not in kept
        for wish in found
        if names.is_name(name)
    ]
    for wish, name in sorted(free, key=lambda one: (one[0].created, one[0].owner)):
        if name in given or not rules.grants.allow(name, wish.namespace):
            continue
        holder = _holder(wishes_by_name[name], wish.namespace) or wish
        claim = Claim(holder.owner, now)
        if room.take(wish.namespace, size=names.size_bytes(name, claim)):
            full[wish.key] = room.held_by(wish.namespace)
        else:
            given[name] = claim
    return given, full


def _room(kept: Mapping[str, Claim]) -> Places:
    """The bytes that the names of each namespace have of all."""
    room = Places(MAX_BYTES, NAMESPACE_PERCENTAGE)
    for name, claim in kept.items():
        room.force(claim.namespace, size=names.size_bytes(name, claim))
    return room


# --- messages ---------------------------------------------------------------------------------------------------------


def _standing(wish: Wish, claim: Claim | None, rules: ClaimRules, full: Mapping[str, int]) -> Standing:
    if claim and claim.owner == wish.owner:
        return Standing(wish.owner, wish.name)
    if claim and claim.namespace == wish.namespace and names.is_route(claim.owner) and not names.is_route(wish.owner):
        return Standing(wish.owner, wish.name, yields=True)
    reason, why = _why(wish, claim, rules, full)
    if names.is_route(wish.owner):
        return Standing(wish.owner, wish.name, reason, why)
    return Standing(wish.owner, wish.name, reason, f"clients reach this model as {wish.owner} only: {why}")


def _why(wish: Wish, claim: Claim | None, rules: ClaimRules, full: Mapping[str, int]) -> tuple[str, str]:
    name, other = f'the model name "{wish.name}"', "create it again with another spec.model.name"
    if names.is_route(wish.owner):
        other = "write another name"
    if not names.is_name(wish.name):
        return INVALID, f"{name} is not one that a model can have; {other}, of letters, digits and ._:- and without /"
    holders = rules.grants.holders(wish.name)
    if holders is not None and wish.namespace not in holders:
        has = f", and belongs to {claim.owner}" if claim else ""
        return GRANTED, f"{name} is granted to {_listed(holders)}{has}; {other}"
    grant = f"ask a cluster administrator to grant it: annotation {names.ANNOTATION} of Namespace {wish.namespace}"
    if claim and claim.released_at:
        ends = format_time(claim.released_at + timedelta(seconds=rules.retention_s))
        return RESERVED, f"{name} belonged to {claim.owner}, which is gone, and is kept for it until {ends}; {other}"
    if claim:
        return TAKEN, f"{name} belongs to {claim.owner}; {other}, or {grant}"
    if wish.key in full:
        held = f"the names of namespace {wish.namespace} have {full[wish.key]} of the {MAX_BYTES} bytes of all names"
        return (
            FULL,
            f"there is no room for {name}: {held}, which is its share; delete ModelDeployments or ModelRoutes there",
        )
    return TAKEN, f"{name} is not free; {other}, or {grant}"


def _listed(namespaces: Collection[str]) -> str:
    shown = sorted(namespaces)[:_SHOWN]
    more = f" and {len(namespaces) - _SHOWN} more" if len(namespaces) > _SHOWN else ""
    return f"namespace{'s' if len(namespaces) > 1 else ''} {', '.join(shown)}{more}"
