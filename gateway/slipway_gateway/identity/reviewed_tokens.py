"""TokenReviews of the API server: how they are read, and which of them are kept for how long (pure)."""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

# An accepted or refused token is reviewed again after so long. An accepted one that becomes invalid before its `exp`,
# as when its pod is deleted, is accepted until then.
FRESH_S = 60.0
REFUSED_S = 10.0
# While the API server does not review, a token that it accepted is used for so long after that review.
STALE_S = 600.0
MAX_ACCEPTED, MAX_REFUSED = 10_000, 4_096


class UnreadableReview(ValueError):
    """A response of the API server is no TokenReview."""


class _User(msgspec.Struct):
    username: str = ""


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] = []


class _TokenReview(msgspec.Struct):
    status: _Status


def request_body(token: str, audience: str) -> dict[str, Any]:
    """The TokenReview that is sent to the API server."""
    spec = {"token": token, "audiences": [audience]}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}


def username(review: Mapping[str, Any], audience: str) -> str:
    """The user name in the API server's answer; "" when the token is not valid for the audience.

    Raises:
        UnreadableReview: the answer is no TokenReview.
    """
    try:
        status = msgspec.convert(review, _TokenReview).status
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the second of a lone surrogate
        raise UnreadableReview(str(error)) from None
    # An authenticator that knows no audiences names none: then the token is one for the API server itself.
    return status.user.username if status.authenticated and audience in status.audiences else ""


def digest(token: str) -> bytes:
    """The key under which a review is kept, so that the token itself never is."""
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The result of a review, and when it came. `username` "": the token was refused."""

    username: str
    at_s: float

    def fresh(self, now_s: float) -> bool:
        return now_s - self.at_s < (FRESH_S if self.username else REFUSED_S)

    def usable(self, now_s: float) -> bool:
        """Whether the result may be used while no newer review can be had."""
        return bool(self.username) and now_s - self.at_s < STALE_S


class ReviewedTokens:
    """The last reviews by `digest`. Beyond the maximum, the one that was unused for longest is forgotten.

    Accepted and refused tokens have a maximum each, so refused ones push out no accepted ones.
    """

    def __init__(self, max_accepted: int = MAX_ACCEPTED, max_refused: int = MAX_REFUSED) -> None:
        self._accepted: OrderedDict[bytes, Reviewed] = OrderedDict()
        self._refused: OrderedDict[bytes, Reviewed] = OrderedDict()
        self._bounds = ((self._accepted, max_accepted), (self._refused, max_refused))

    def __len__(self) -> int:
        return len(self._accepted) + len(self._refused)

    def find(self, key: bytes) -> Reviewed | None:
        for kept, _ in self._bounds:
            if (found := kept.get(key)) is not None:
                kept.move_to_end(key)
                return found
        return None

    def put(self, key: bytes, review: Reviewed) -> None:
        self._accepted.pop(key, None)
        self._refused.pop(key, None)
        (self._accepted if review.username else self._refused)[key] = review
        for kept, bound in self._bounds:
            if len(kept) > bound:
                kept.popitem(last=False)
