"""The jobs process: which batches there are, in states and counts. It checks the viewer's token at the API server."""

from urllib.parse import urlencode

import aiohttp
import msgspec

from slipway_console.access.api_server import Viewer
from slipway_console.access.places import Places
from slipway_console.access.reading import read_whole
from slipway_console.access.refusal import ApiRefusal, SignedOut, unavailable
from slipway_contracts.batch_list import BATCH_LIST_PATH, BatchList

MOST_BYTES = 256 << 10
MOST_CALLS = 8  # at once


class Batches:
    """`url`: of the jobs process."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url + BATCH_LIST_PATH
        self._places = Places(MOST_CALLS, "The console reads as many lists of batches as it may.")

    async def read(self, viewer: Viewer, tenant: str, after: str) -> BatchList:
        """One page. `tenant`: "" for all. Raises ApiRefusal: SignedOut where the token is not accepted."""
        query = urlencode({name: value for name, value in (("tenant", tenant), ("after", after)) if value})
        headers = {"Authorization": f"Bearer {viewer.token}"}
        async with self._places.of(viewer.share):
            try:
                # A redirect would carry the token to another address.
                async with self._session.get(f"{self._url}?{query}", headers=headers, allow_redirects=False) as answer:
                    status, text = answer.status, await read_whole(answer, MOST_BYTES)
            except TimeoutError:
                raise unavailable("The jobs process does not answer in time.") from None
            except (aiohttp.ClientError, OSError) as error:
                raise unavailable("The jobs process cannot be reached.", str(error)) from None
        if status == 401:
            raise SignedOut(401, "The API server does not accept this token: it is wrong, or it has expired.")
        if status == 403:
            raise _refused(tenant)
        if status != 200 or text is None:
            raise unavailable(f"The jobs process answered {status} to the list of batches.")
        try:
            return msgspec.json.decode(text, type=BatchList)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise unavailable("The jobs process answered with something else than a list of batches.") from None


def _refused(tenant: str) -> ApiRefusal:
    verb, whose = ("get", f" of the tenant {tenant}") if tenant else ("list", " of all tenants")
    grant = f"An administrator grants it by a ClusterRole with the verb {verb} on tenants/batches.slipway.dev."
    return ApiRefusal(403, f"Your token may not {verb} the batches{whose}. {grant}")
