"""What the API server refuses, as a sentence for the viewer; pure."""

from dataclasses import dataclass

LONGEST_MESSAGE = 1000  # characters of the API server's own message


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the verb and the resource as RBAC names them, and where."""

    verb: str
    resource: str  # PLURAL or PLURAL.GROUP
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f" in the namespace {self.namespace}" if self.namespace else " in all namespaces"
        return f"{self.verb} {self.resource}{'' if self.resource in CLUSTER_WIDE else where}"


CLUSTER_WIDE = frozenset({"tenants.slipway.dev", "selfsubjectreviews.authentication.k8s.io"})


class ApiRefusal(Exception):
    """A call failed. `status`: that of the page which says so; `detail`: the API server's own words, if any."""

    def __init__(self, status: int, sentence: str, detail: str = "") -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.detail = status, sentence, detail[:LONGEST_MESSAGE]


class SignedOut(ApiRefusal):
    """The API server does not accept the token, or not any more."""


class Conflict(ApiRefusal):
    """The object was changed since it was read."""


def refusal_of(status: int, message: str, call: Call) -> ApiRefusal:
    """The refusal for a response of the API server with this status and message."""
    if status == 401:
        return SignedOut(401, "The API server does not accept this token: it is wrong, or it has expired.", message)
    if status == 403:
        verb = "Role" if call.namespace else "ClusterRole"
        grant = f"An administrator grants it by a {verb} with the verb {call.verb} on {call.resource}."
        return ApiRefusal(403, f"Your token may not {call}. {grant}", message)
    if status == 404 and call.name:
        where = f" in the namespace {call.namespace}" if call.namespace else ""
        return ApiRefusal(404, f"There is no {call.resource} {call.name}{where}.", message)
    if status == 404:
        return ApiRefusal(404, f"This cluster does not serve {call.resource}: install Slipway's CRDs.", message)
    if status == 409:
        return Conflict(409, "The object was changed meanwhile: look at it again.", message)
    if status == 410:
        return ApiRefusal(410, "This list has become too old to go on with: start at its first page.", message)
    if status == 422 or status == 400:
        return ApiRefusal(422, f"The API server refused to {call}: {message[:LONGEST_MESSAGE]}")
    return unavailable(f"The API server answered {status} to {call}.", message)


def unavailable(sentence: str, detail: str = "") -> ApiRefusal:
    """The refusal for an API server that does not answer, or not with what can be shown."""
    return ApiRefusal(503, f"{sentence} Nothing was changed by this page; try again.", detail)
