"""What a store's refusal means, and what to do about it: our own sentences, because its texts may hold secrets."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from obstore import exceptions

from .. import guard
from ..folder import FetchError, UnusableError
from ..guard import RefusedError
from .access import NEEDED
from .location import Location

_CODE = re.compile(r"<Code>([A-Za-z]{3,64})</Code>")
_STATUS = re.compile(r"status code: ([1-5][0-9]{2})")
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName", "ResourceNotFound"}
_NOT_ACCEPTED = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"),
    *("AuthenticationFailed", "InvalidAuthenticationInfo", "InvalidSecurity", "RequestTimeTooSkewed"),
}
_DENIED = {
    *("AccessDenied", "AllAccessDisabled", "AuthorizationFailure", "AuthorizationPermissionMismatch"),
    *("NoAuthenticationInformation", "PublicAccessNotPermitted", "UserProjectMissing"),
}
_OTHER_REGION = {
    *("PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"),
}
_BUSY = {"SlowDown", "ServerBusy", "InternalError", "ServiceUnavailable", "TooManyRequests", "RequestTimeout"}
_FINAL = (
    exceptions.PreconditionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError,
    exceptions.InvalidPathError, exceptions.UnknownConfigurationKeyError, FileNotFoundError,
)  # fmt: skip


class PassingStoreError(FetchError):
    """A failure of the store after which another try may succeed."""


@dataclass(frozen=True, slots=True)
class StoreErrors:
    """Converts the errors of one store's client to FetchErrors with a sentence for the user."""

    location: Location
    endpoint: str
    with_credentials: bool
    connection_failure: Callable[[], FetchError | None]

    def of(self, error: Exception) -> FetchError:
        """The FetchError for an exception of the store's client."""
        if isinstance(error, FetchError):
            return error
        text, failure = str(error), self.connection_failure()
        if isinstance(failure, (RefusedError, UnusableError)):
            return failure
        code = next(iter(_CODE.findall(text)), "")
        status = next(iter(_STATUS.findall(text)), "")
        if sentence := self._by_code(error, text, code, status):
            return sentence
        if failure and not code:
            return PassingStoreError(f"{guard.shown(self.endpoint)} cannot be reached: {failure}. {self._where()}")
        reason = code if code in _BUSY else f"status {status}" if status else "the connection broke"
        return PassingStoreError(f"{self.location.shown} cannot be read: {reason}.")

    def _by_code(self, error: Exception, text: str, code: str, status: str) -> FetchError | None:
        shown = self.location.shown
        if isinstance(error, exceptions.PreconditionError):
            return FetchError(f"{shown} changed during the download: the next try takes what is there then.")
        if "AssumeRoleWithWebIdentity" in text or "TokenRequest" in text or "oauth2" in text:
            return FetchError(
                f"{shown}: the pod's own identity is not accepted: check the annotations of its service account, and "
                "which service accounts the role or the application trusts."
            )
        if code in _OTHER_REGION or "without LOCATION" in text or status in ("301", "307"):
            return FetchError(
                f"{shown} is in another region, or at another endpoint, than {guard.shown(self.endpoint)}: write its "
                "own in spec.model.objectStore."
            )
        if code in _NOT_ACCEPTED:
            return FetchError(
                f"{guard.shown(self.endpoint)} does not accept the credentials ({code}): correct the Secret of "
                "spec.model.secretRef."
            )
        if code in _DENIED or status in ("401", "403"):
            return self._denied()
        if code in _NO_BUCKET or (status == "404" and not isinstance(error, FileNotFoundError)):
            return FetchError(
                f"There is no {self.location.kind} {self.location.bucket} at {guard.shown(self.endpoint)}: correct "
                "spec.model.uri, or spec.model.objectStore."
            )
        if isinstance(error, FileNotFoundError):
            return FetchError(f"{shown} changed during the download: a file that its list names is gone.")
        return self._unusable(text)

    def _unusable(self, text: str) -> FetchError | None:
        if "invalid path" in text.lower() or "Illegal" in text or "PathPart" in text:
            return UnusableError(
                f"{self.location.shown} has an object whose name no folder can have (an empty part, . or .., or a "
                "character of control): remove it."
            )
        if "list response" in text.lower():
            return FetchError(
                f"{guard.shown(self.endpoint)} does not answer as an object store does: correct "
                "spec.model.objectStore.endpoint."
            )
        return None

    def _denied(self) -> FetchError:
        shown = self.location.shown
        if self.with_credentials:
            return FetchError(
                f"{shown}: access is denied to the credentials that were given: allow them to list and read it, or "
                "name another Secret in spec.model.secretRef."
            )
        return FetchError(
            f"{shown}: access is denied without credentials: name a Secret with {NEEDED[self.location.scheme]} in "
            "spec.model.secretRef, and check that it exists and has these keys."
        )

    def _where(self) -> str:
        return "Check spec.model.objectStore.endpoint and network policies."


def is_final(error: Exception) -> bool:
    """Whether another try would fail in the same way."""
    return isinstance(error, _FINAL)
