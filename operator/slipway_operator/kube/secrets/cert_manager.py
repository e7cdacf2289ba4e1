"""Keeps Certificates of cert-manager, and reads what it issued: the source of certificates in place of own ones."""

import asyncio
import base64
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Fenced, NotFound
from slipway_operator.kube.resources import CERTIFICATES, SECRETS
from slipway_operator.manifests.pods import cert_manager
from slipway_operator.model import labels
from slipway_operator.model.cluster.authorities import Terms
from slipway_operator.model.cluster.certificates import Role
from slipway_operator.model.issuing.issuer import Candidate, IssuerRef, UnusableIssue, check
from slipway_operator.model.issuing.trust import Offer
from slipway_operator.model.text import printable

AGAIN_AFTER_S = 1.0  # reconciles of many ModelDeployments share one look
SHOWN_AFTER_S = 15.0  # most issuers are done by then
SLOW_S = 120.0  # an issuer that takes longer than this for a certificate has a problem
_SELECTOR = f"{labels.COMPONENT}={cert_manager.COMPONENT},{labels.MANAGED_BY}=slipway"
_PRESENT = (
    f"the API server has no {cert_manager.API_VERSION}: install cert-manager, or empty tls.internal.issuerRef.name"
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Progress:
    """Of one Certificate: what it gave last, and why there is nothing newer."""

    since: float  # Unix seconds: when it was ready last, seen first, or began not to be ready
    version: tuple[str, ...] = ()  # changes with each issue
    candidate: Candidate | None = None
    trouble: str = ""
    logged: str = ""


class CertManagerSource:
    """The newest certificate of each role, as far as it can be used."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        issuer: IssuerRef,
        terms: Terms,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: Unix seconds."""
        self._client, self._namespace, self._issuer = client, namespace, issuer
        self._terms, self._clock = terms, clock
        self._known: dict[Role, _Progress] = {}
        self._looked, self._lock = 0.0, asyncio.Lock()
        self._trouble, self._troubled = "", 0.0  # why none can be read, and since when

    @property
    def waits(self) -> bool:
        """Whether a Certificate is young and not ready: the next look should be soon."""
        now = self._clock()
        return any(one.trouble and now - one.since < SLOW_S for one in self._known.values())

    def candidate(self, role: Role) -> Candidate | None:
        """Return the newest usable certificate; also one that is about to be replaced."""
        found = self._known.get(role)
        return found.candidate if found else None

    def problem(self, role: Role) -> str | None:
        """Return why a role's Certificate is not usable for a while; empty when it is, None while that is not known."""
        now, found = self._clock(), self._known.get(role)
        if self._trouble and now - self._troubled >= SHOWN_AFTER_S:
            return self._trouble
        if found is None or (found.trouble and now - found.since < SHOWN_AFTER_S):
            return None
        return found.trouble

    def offer(self) -> Offer:
        """Return the CAs of all of them, and whether each role has one of this issuer."""
        found = [one.candidate for one in self._known.values() if one.candidate]
        cas = dict.fromkeys(ca for candidate in found for ca in candidate.cas)
        complete = bool(self._known) and not any(one.trouble for one in self._known.values())
        return Offer(tuple(cas), complete)

    async def refresh(self, roles: Mapping[Role, str]) -> None:
        """Write the Certificates that differ, and read the new Secrets. `roles`: the name of each one's Certificate.

        Failures are logged, and what was read before stays.

        Raises:
            Fenced: another operator holds the lease.
        """
        async with self._lock:
            now = self._clock()
            if 0 <= now - self._looked < AGAIN_AFTER_S and roles.keys() == self._known.keys():
                return
            new = _Progress(now, trouble="it was not read yet")
            self._known = {role: self._known.get(role) or replace(new) for role in roles}
            await self._look(roles)
            self._looked = now

    async def _look(self, roles: Mapping[Role, str]) -> None:
        try:
            listed = await self._client.list(CERTIFICATES, self._namespace, _SELECTOR)
        except NotFound:
            self._log_once(_PRESENT)
            return
        except ApiError as error:
            self._log_once(f"Certificates of cert-manager cannot be read: {error}")
            return
        self._trouble = ""
        found = {item["metadata"]["name"]: item for item in listed}
        for role, name in roles.items():
            await self._follow(role, name, found.get(name))

    async def _follow(self, role: Role, name: str, found: Object | None) -> None:
        progress = self._known[role]
        was_ready = not progress.trouble
        try:
            item = await self._write(role, name, found)
            progress.trouble = _not_ready(item)
            if not progress.trouble:
                await self._read(role, name, _version(item), progress)
        except Fenced:
            raise
        except UnusableIssue as error:
            progress.trouble = str(error)
        except ApiError as error:
            progress.trouble = f"{type(error).__name__}: {error}"
        if was_ready:
            progress.since = self._clock()
        self._report(name, progress)

    async def _write(self, role: Role, name: str, found: Object | None) -> Object:
        wanted = cert_manager.requested(self._namespace, name, role, self._issuer, self._terms)
        if found and cert_manager.is_as_requested(found["spec"], wanted["spec"]):
            return found
        return await self._client.apply(CERTIFICATES, wanted)

    async def _read(self, role: Role, name: str, version: tuple[str, ...], progress: _Progress) -> None:
        """Read the Secret after each issue; one that could not be used is read at each look, and may be mended."""
        if progress.candidate and progress.version == version:
            return
        secret = await self._client.get(SECRETS, self._namespace, name)
        progress.candidate = check(role, _texts(secret.get("data") or {}), self._clock())
        progress.version = version

    def _report(self, name: str, progress: _Progress) -> None:
        now = self._clock()
        if not progress.trouble:
            progress.logged = ""
        elif now - progress.since >= SLOW_S and progress.trouble != progress.logged:
            progress.logged = progress.trouble
            log.warning(
                "Certificate %s/%s of the issuer %s is not usable for %.0f s: %s",
                self._namespace, name, self._issuer, now - progress.since, progress.trouble,
            )  # fmt: skip

    def _log_once(self, trouble: str) -> None:
        self._troubled = self._troubled if self._trouble else self._clock()
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("%s", trouble)


def _version(item: Object) -> tuple[str, ...]:
    status = item.get("status") or {}
    return str(item["metadata"].get("uid")), str(status.get("revision")), str(status.get("notAfter"))


def _not_ready(item: Object) -> str:
    """Why a Certificate is not ready; empty when it is, for the spec as it is now."""
    conditions = {one.get("type"): one for one in (item.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    generation = item["metadata"].get("generation")
    if ready.get("status") == "True" and ready.get("observedGeneration", generation) == generation:
        return ""
    # `Issuing` says why the last try failed, `Ready` only that there is no certificate.
    reasons = [conditions.get(kind, {}).get("message") for kind in ("Issuing", "Ready")]
    return printable(str(next(filter(None, reasons), "cert-manager has not looked at it: does its controller run?")))


def _texts(data: Mapping[str, str]) -> dict[str, str]:
    """The fields of a Secret, decoded; what is no text is left out."""
    found = {}
    for name, value in data.items():
        try:
            found[name] = base64.b64decode(value or "").decode()
        except ValueError:
            continue
    return found
