"""Which scorers may be called: hosts that the administrator of the gateways listed; pure."""

from slipway_process.network.listed_hosts import ListedHosts


class ScorerHosts(ListedHosts):
    """The hosts that `--scorer-hosts` lists."""

    __slots__ = ()
