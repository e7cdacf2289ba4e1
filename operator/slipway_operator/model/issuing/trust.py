"""Which CAs the processes of a release trust, and who signs: the release's own authorities, or an issuer.

The first of the list signs, and all are trusted. A CA signs nowhere before it was trusted everywhere, and is trusted
until its last certificate expires. So any two processes can connect during a change between own authorities and an
issuer, in both directions, and when the issuer has another CA.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from slipway_operator.model.cluster import authorities
from slipway_operator.model.cluster.authorities import DAY_S, Authority, Terms, UnreadableAuthorities

DATA = "issuer.json"  # data field of the Secret, beside that of the authorities
MAX_CAS = 8  # an issuer with a new CA for each certificate must not fill the Secret


class IssuerCa(msgspec.Struct, frozen=True):
    """A CA of an issuer. Times in Unix seconds: since when it is in every `ca.crt`, and when it was last in use."""

    id: str
    certificate: str
    trusted: float
    used: float


Anchor: TypeAlias = Authority | IssuerCa


class _CaList(msgspec.Struct):
    signs: bool
    cas: list[IssuerCa]


@dataclass(frozen=True, slots=True)
class Offer:
    """The CAs of what an issuer gave, and whether it gave a certificate to every process."""

    cas: tuple[str, ...] = ()
    complete: bool = False


def own(anchors: Sequence[Anchor]) -> tuple[Authority, ...]:
    """Return the release's own authorities."""
    return tuple(one for one in anchors if isinstance(one, Authority))


def cas(anchors: Sequence[Anchor]) -> tuple[IssuerCa, ...]:
    """Return the CAs of issuers."""
    return tuple(one for one in anchors if isinstance(one, IssuerCa))


def issuer_signs(anchors: Sequence[Anchor]) -> bool:
    """Whether processes have certificates of an issuer."""
    return bool(anchors) and isinstance(anchors[0], IssuerCa)


def is_trusted(anchors: Sequence[Anchor], certificates: Sequence[str], now: float, terms: Terms) -> bool:
    """Whether every process has had all of these CAs in its `ca.crt` for long enough."""
    known = {one.id: one.trusted for one in cas(anchors)}
    return all(now - known.get(id_of(one), now) >= terms.propagation_s for one in certificates)


def advance(
    anchors: Sequence[Anchor], offer: Offer | None, now: float, terms: Terms, fresh: Authority
) -> tuple[Anchor, ...]:
    """Return the anchors after the step that is due. `offer`: of the issuer in use; None: own authorities sign."""
    known = own(anchors)
    if offer is None:
        return _with_own(anchors, known, now, terms, fresh)
    others = _seen(anchors, offer, now, terms)
    if issuer_signs(anchors) or not known:
        lasting = () if known and now - known[0].since >= _last_s(terms) else known
        return (*others, *lasting)
    if offer.complete and offer.cas and is_trusted(others, offer.cas, now, terms):
        # From now on nothing new is signed by them.
        return (*others, msgspec.structs.replace(known[0], since=now), *known[1:])
    return (*authorities.advance(known, now, terms, fresh), *others)


def _with_own(
    anchors: Sequence[Anchor], known: tuple[Authority, ...], now: float, terms: Terms, fresh: Authority
) -> tuple[Anchor, ...]:
    others = _in_use(cas(anchors), now, terms)
    if not issuer_signs(anchors) or not others:
        return (*authorities.advance(known, now, terms, fresh), *others)
    if known and now - known[0].created >= terms.propagation_s:
        return (*authorities.advance(known, now, terms, fresh), *(_used(one, now) for one in others))
    return (*others, *(known or (fresh,)))


def _seen(anchors: Sequence[Anchor], offer: Offer, now: float, terms: Terms) -> tuple[IssuerCa, ...]:
    """The CAs, with those of the offer. Where nothing was trusted before, no process has to wait for another."""
    found = {id_of(text): text for text in offer.cas}
    known = tuple(_used(one, now) if one.id in found else one for one in cas(anchors))
    since = now if anchors else now - terms.propagation_s
    ids = {one.id for one in known}
    added = tuple(IssuerCa(id_, text, since, now) for id_, text in found.items() if id_ not in ids)
    return _in_use((*known, *added)[:MAX_CAS], now, terms)


def _used(one: IssuerCa, now: float) -> IssuerCa:
    """Written once a day, which is little beside the months for which a CA is kept."""
    return msgspec.structs.replace(one, used=now) if now - one.used >= DAY_S else one


def _in_use(known: Sequence[IssuerCa], now: float, terms: Terms) -> tuple[IssuerCa, ...]:
    return tuple(one for one in known if now - one.used < _last_s(terms))


def _last_s(terms: Terms) -> float:
    """The time after which no certificate is valid that was signed before it, with the day by which `used` is late."""
    return terms.leaf_s + terms.propagation_s + DAY_S


def id_of(certificate: str) -> str:
    """Return the beginning of a CA's fingerprint."""
    return x509.load_pem_x509_certificate(certificate.encode()).fingerprint(hashes.SHA256()).hex()[:16]


def parse(data: dict[str, str]) -> tuple[Anchor, ...]:
    """The anchors in a Secret's `data`.

    Raises:
        UnreadableAuthorities: the message names the problem and contains no part of a key.
    """
    known = authorities.parse(data)
    text = data.get(DATA)
    if not text:
        return known
    try:
        found = msgspec.json.decode(base64.b64decode(text, validate=True), type=_CaList)
        others = tuple(found.cas[:MAX_CAS])
        wrong = [one for one in others if id_of(one.certificate) != one.id]
    except (ValueError, msgspec.DecodeError) as error:
        raise UnreadableAuthorities(f"{DATA} is not what the operator writes ({type(error).__name__})") from None
    if wrong:
        raise UnreadableAuthorities(f"{DATA} has a CA with the id of another")
    return (*others, *known) if found.signs else (*known, *others)


def render(anchors: Sequence[Anchor]) -> dict[str, str]:
    """Return the fields of the Secret's `data`, without `ca.crt`."""
    fields = {authorities.DATA: authorities.render(own(anchors))}
    if others := cas(anchors):
        text = msgspec.json.encode(_CaList(issuer_signs(anchors), list(others)))
        fields[DATA] = base64.b64encode(text).decode()
    return fields
