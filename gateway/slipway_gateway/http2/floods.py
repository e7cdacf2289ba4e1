"""Bounds what a client may make a server do without a use for either: resets, pings, settings, empty frames (pure).

Each such frame takes a token. Tokens come back with time and with use: a request that was answered, DATA that was sent.
Real clients ping to measure the connection's capacity, cancel calls, and open windows while they read.
"""

BURST = 4000.0
PER_S = 1000.0
# What frames cost beside their decoding. New settings may change the windows of all streams; the handler of a stream
# that is reset was started, whoever resets it.
SETTINGS_COST, RESET_COST, FRAME_COST = 20.0, 8.0, 1.0
ANSWERED, SENT = 8.0, 2.0
TINY_BYTES = 16  # a DATA frame that brings less, and ends nothing, costs as one without use
# A header block beyond these costs its decoding too: a token for each field, and for so many bytes.
_FREE_FIELDS, _FREE_BYTES, _BYTES_PER_TOKEN = 32, 2048, 128


def block_cost(size_bytes: int, fields: int) -> float:
    """What decoding a header block costs; nothing for most. `size_bytes`: of the block as it came."""
    return max(0, fields - _FREE_FIELDS) + max(0, size_bytes - _FREE_BYTES) // _BYTES_PER_TOKEN


class FloodGuard:
    """Counts the tokens of one connection. `now_s`: when it began, in seconds of any clock that goes forward."""

    def __init__(self, now_s: float) -> None:
        self._tokens, self._at_s = BURST, now_s

    def take(self, cost: float, now_s: float) -> bool:
        """Takes tokens; returns False where the client has none left."""
        self._tokens = min(BURST, self._tokens + (now_s - self._at_s) * PER_S) - cost
        self._at_s = now_s
        return self._tokens >= 0

    def give(self, tokens: float) -> None:
        """Gives tokens back for something of use."""
        self._tokens = min(BURST, self._tokens + tokens)
