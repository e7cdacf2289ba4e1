"""Which providers may be called: hosts that the administrator of the gateways listed, with TLS; pure."""

from yarl import URL

from slipway_process.network.listed_hosts import ListedHosts


class ExternalHosts(ListedHosts):
    """The hosts that `--external-hosts` lists."""

    __slots__ = ()

    def read(self, text: str) -> URL | None:
        """An https URL of a listed host; None for any other text."""
        url = super().read(text)
        return url if url is not None and url.scheme == "https" else None
