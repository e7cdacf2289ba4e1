"""Requests to a registry, by the distribution specification: manifests, blobs, and the tokens that it wants."""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from .. import guard
from ..folder import FetchError
from ..guard import EgressRules
from ..transfer import AnsweredError, Transfer
from .reference import ImageReference

MANIFEST_LIMIT_BYTES, TOKEN_LIMIT_BYTES = 4 * 2**20, 256 * 2**10
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_PARAMETER = re.compile(r'([a-zA-Z]+)="([^"]*)"')
_ADVICE = "name a Secret of the type kubernetes.io/dockerconfigjson with credentials of {host} in spec.model.secretRef"


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """The .dockerconfigjson of a Secret, as it is written."""

    config: str = field(default="", repr=False)

    def basic(self, host: str) -> str:
        """The credentials of a host in the form of HTTP's Basic scheme; empty where there are none.

        Raises:
            FetchError: for a text that is no such config.
        """
        if not self.config.strip():
            return ""
        try:
            entries = json.loads(self.config)["auths"]
            found = next((entries[key] for key in _keys(host) if key in entries), None)
            if found is None:
                return ""
            auth = str(found.get("auth") or "")
            if auth and ":" not in base64.b64decode(auth, validate=True).decode():
                raise ValueError("no password")
            return auth or base64.b64encode(f"{found['username']}:{found['password']}".encode()).decode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
            raise FetchError(
                "The Secret of spec.model.secretRef has no .dockerconfigjson with a user and a password: create it "
                "with `kubectl create secret docker-registry`."
            ) from None


def _keys(host: str) -> tuple[str, ...]:
    hub = ("https://index.docker.io/v1/", "index.docker.io", "docker.io") if host.endswith("docker.io") else ()
    return (host, f"https://{host}", f"https://{host}/", f"https://{host}/v1/", f"https://{host}/v2/", *hub)


class Registry:
    """One repository of a registry."""

    def __init__(self, rules: EgressRules, reference: ImageReference, access: RegistryAccess) -> None:
        self._rules, self._reference, self._access = rules, reference, access
        # Plain HTTP only to hosts of --allow-host: tests name their own machine there.
        scheme = "http" if reference.address.partition(":")[0].lower() in rules.hosts else "https"
        self._base = f"{scheme}://{reference.address}/v2/{reference.name}"
        self._accept = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
        self.transfer = Transfer(rules, self._base, self._accept, renew=self._renewed)

    def manifest(self, version: str) -> bytes:
        """The bytes of a manifest or an index.

        Raises:
            FetchError: when the manifest cannot be fetched.
        """
        try:
            return self.transfer.read(f"{self._base}/manifests/{version}", MANIFEST_LIMIT_BYTES)
        except AnsweredError as error:
            raise self.explained(error, version) from None

    def blob(self, digest: str) -> str:
        """The URL of a blob."""
        return f"{self._base}/blobs/{digest}"

    def explained(self, error: AnsweredError, version: str) -> FetchError:
        shown, host = self._reference.shown, self._reference.host
        if error.status in (401, 403):
            given = bool(self._access.basic(self._reference.host))
            advice = (
                "the credentials that were given may not pull it" if given else "it needs credentials, or is not there"
            )
            return FetchError(f"{shown} cannot be pulled: {advice}: {_ADVICE.format(host=host)}.")
        if error.status == 404:
            return FetchError(
                f"{shown} has no {version}: correct the repository, the tag or the digest in spec.model.uri."
            )
        return FetchError(f"{shown} cannot be pulled: {error}")

    def _renewed(self, challenge: str) -> Mapping[str, str]:
        """The headers for the next request, after a 401 with its challenge."""
        kind, _, rest = challenge[:4096].partition(" ")
        basic = self._access.basic(self._reference.host)
        if kind.lower() == "basic":
            return {**self._accept, **({"Authorization": f"Basic {basic}"} if basic else {})}
        parameters = dict(_PARAMETER.findall(rest))
        realm = parameters.get("realm", "")
        if kind.lower() != "bearer" or not realm:
            return self._accept
        # The scope is always to pull this repository, whatever scope the challenge names.
        query = {"service": parameters.get("service", ""), "scope": f"repository:{self._reference.name}:pull"}
        url = f"{realm}{'&' if '?' in realm else '?'}{urlencode({key: value for key, value in query.items() if value})}"
        return {**self._accept, "Authorization": f"Bearer {self._token(url, basic)}"}

    def _token(self, url: str, basic: str) -> str:
        """Get a token from the challenge's server. The user did not write it: its private addresses are not allowed."""
        insecure = self._base.startswith("http://")
        rules = self._rules.with_written(self._base)
        guard.check_url(rules, url, insecure=insecure)
        headers = {"Authorization": f"Basic {basic}"} if basic else {}
        answer = Transfer(rules, url, headers, written=False).read(url, TOKEN_LIMIT_BYTES)
        try:
            content = json.loads(answer)
            token = str(content.get("token") or content["access_token"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            token = ""
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise FetchError(f"{guard.shown(url)} gives no token for {self._reference.shown}.")
        return token
