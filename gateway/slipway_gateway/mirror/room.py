"""What mirrored requests of each namespace may take: those of one whose pods are slow leave others their part."""

from slipway_process.places import Places

from ..limits.budget import Account
from ..routing.table import namespace_of

# What one namespace has while it is alone. It is more than a client has: most installations mirror in one namespace.
NAMESPACE_PERCENTAGE = 75


class MirrorPlaces:
    """Places for `limit` requests at once. Owners are the namespaces of their routes."""

    def __init__(self, limit: int) -> None:
        self._places = Places(limit, NAMESPACE_PERCENTAGE)

    def take(self, route: str) -> bool:
        """Takes a place until `leave`; returns whether there is one."""
        return not self._places.take(namespace_of(route))

    def has_room(self, route: str) -> bool:
        return not self._places.refusal(namespace_of(route))

    def leave(self, route: str) -> None:
        self._places.leave(namespace_of(route))


class MirrorMemory:
    """The bytes that mirrored requests hold, which count in `account` too."""

    def __init__(self, account: Account, limit_bytes: int) -> None:
        self._account, self._bytes = account, Places(limit_bytes, NAMESPACE_PERCENTAGE)

    def has_room(self, route: str, size_bytes: int = 0) -> bool:
        return not self._bytes.refusal(namespace_of(route), size=size_bytes)

    def force(self, route: str, size_bytes: int) -> None:
        """Counts bytes that are in memory already, until `shrink`."""
        self._account.force(size_bytes)
        self._bytes.force(namespace_of(route), size=size_bytes)

    def shrink(self, route: str, size_bytes: int) -> None:
        if size_bytes:
            self._account.shrink(size_bytes)
            self._bytes.leave(namespace_of(route), size=size_bytes)
