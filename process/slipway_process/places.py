"""Places with a share for each owner: how many of something may be held at once (pure).

An owner, such as a client or a namespace, may hold as many places as are free. One owner that takes all it can gets
half of them, two get a third each: however many do so, as many as each of them has stay free for others (the dynamic
thresholds of Choudhury and Hahne).
"""

TOTAL, SHARE = "total", "share"


class Places:
    """`percentage`: of all places, what one owner may hold while it is alone; 100: all of them.

    `most`: what one owner may hold in any case; 0: no such bound.
    """

    __slots__ = ("_held", "_most", "_ratio", "limit", "used")

    def __init__(self, limit: int, percentage: int = 50, most: int = 0) -> None:
        self.limit, self.used = limit, 0
        self._ratio = percentage / (100 - percentage) if percentage < 100 else limit
        self._most = most or limit
        self._held: dict[str, int] = {}

    def take(self, *owners: str, size: int = 1) -> str:
        """Takes `size` places until `leave` and returns ""; or takes none, and returns what `refusal` does."""
        if reason := self.refusal(*owners, size=size):
            return reason
        self.force(*owners, size=size)
        return ""

    def refusal(self, *owners: str, size: int = 1) -> str:
        """Why `size` places cannot be taken now: TOTAL or SHARE; "" where they can.

        They count for each of the `owners`. The first one is the narrowest, such as a model before its namespace: the
        second one may hold twice as much as is free, the third one three times as much.
        """
        free = self.free
        if size > free:
            return TOTAL
        held, allowed = self._held, 0.0
        for owner in owners:
            allowed += min(self._most, free * self._ratio)
            if held.get(owner, 0) + size > allowed:
                return SHARE
        return ""

    def force(self, *owners: str, size: int = 1) -> None:
        """Takes places whether there are any or not, for what is there already."""
        self.used += size
        for owner in owners:
            self._held[owner] = self._held.get(owner, 0) + size

    def leave(self, *owners: str, size: int = 1) -> None:
        """Gives back what `take` took."""
        self.used -= size
        for owner in owners:
            left = self._held[owner] - size
            if left:
                self._held[owner] = left
            else:
                del self._held[owner]

    def held_by(self, owner: str) -> int:
        return self._held.get(owner, 0)

    @property
    def free(self) -> int:
        return self.limit - self.used
