"""Which credentials a source's own endpoint may see (pure).

Who writes a ModelAdapter has no right on the Secret of its ModelDeployment, and names the endpoint. Stores of az:// and
gs:// get what any other endpoint could use in turn: a shared access signature, a bearer token, a signature without a
host. Signatures for s3:// name the host: https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html
"""

from urllib.parse import urlsplit

from slipway_contracts.fetch_source import FetchSource

from ..objects.access import IDENTITY, SECRETS

_CLOUDS = {
    "az": (".core.windows.net", ".core.usgovcloudapi.net", ".core.chinacloudapi.cn"),
    "gs": (".googleapis.com",),
}


def withheld(source: FetchSource) -> frozenset[str]:
    """The variables with credentials that the fetcher of a source does not get."""
    scheme = urlsplit(source.uri).scheme
    if not source.endpoint or scheme not in _CLOUDS:
        return frozenset()
    parts = urlsplit(source.endpoint)
    if parts.scheme == "https" and (parts.hostname or "").endswith(_CLOUDS[scheme]):
        return frozenset()
    return frozenset({*SECRETS[scheme], *IDENTITY})
