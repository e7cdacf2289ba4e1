"""One TokenReview at the API server."""

from ..identity.reviewed_tokens import UnreadableReview, request_body, username
from ..routing.reflector import TROUBLES, KubernetesApiError, KubernetesClient
from .service_accounts import ReviewUnavailable

_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
_TIMEOUT_S = 3.0
# RuntimeError: another call closed the client, because its credentials are no longer valid.
_FAILURES = (*TROUBLES, UnreadableReview, RuntimeError)


class TokenReview:
    """Creates TokenReviews with the gateway's own credentials, which need the verb `create` for tokenreviews."""

    def __init__(self, kubeconfig: str, audience: str) -> None:
        self._api = KubernetesClient(kubeconfig)
        self._audience = audience

    async def review(self, token: str) -> str:
        """The user name of a token; "" when it is not valid for the audience.

        Raises:
            ReviewUnavailable: the API server does not answer, refuses the call, or returns no TokenReview.
        """
        try:
            body = request_body(token, self._audience)
            return username(await self._api.create(_PATH, body, _TIMEOUT_S), self._audience)
        except KubernetesApiError as error:
            if error.status == 403:
                raise ReviewUnavailable(
                    "not allowed to create tokenreviews: see auth.tokenReview of the chart"
                ) from None
            raise ReviewUnavailable(f"the API server answers with {error}"[:300]) from None
        except _FAILURES as error:
            raise ReviewUnavailable(f"{type(error).__name__}: {error}"[:300]) from None

    async def close(self) -> None:
        await self._api.close()
