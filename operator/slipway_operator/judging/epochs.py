"""Epochs: counts restart with each weight, and by the clock 2, 4, 8, 16... minutes after the start.

A regression may begin at any time; the judge bets on each epoch as the start of one. Doubling keeps epochs few, a dozen
in two days, and none is longer than the time before it. Only the clock and the weight start an epoch, never a count.
"""

FIRST_S = 120


def clock_epoch(seconds: float) -> int:
    """Number of the clock epoch `seconds` after the analysis started: 0 below two minutes, 1 below four."""
    return 0 if seconds < FIRST_S else (int(seconds) // FIRST_S).bit_length()


def clock_starts(seconds: float) -> tuple[int, ...]:
    """Starts of all clock epochs before `seconds`, in seconds after the start of the analysis; the first is 0."""
    starts, begin = [0], FIRST_S
    while begin < seconds:
        starts.append(begin)
        begin *= 2
    return tuple(starts)
