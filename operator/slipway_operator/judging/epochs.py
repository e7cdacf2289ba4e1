"""Epochs: when counts restart. With each weight, and by the clock 2, 4, 8, 16... minutes after the start.

A regression may begin at any time; the judge bets on each epoch as its beginning. Doubling keeps them few, a dozen in
two days, and none is longer than what lies before it. The clock and the weight alone decide, never a count.
"""

FIRST_S = 120


def clock_epoch(seconds: float) -> int:
    """Number of the clock's epoch this long after the analysis started: 0 below two minutes, 1 below four."""
    return 0 if seconds < FIRST_S else (int(seconds) // FIRST_S).bit_length()


def clock_starts(seconds: float) -> tuple[int, ...]:
    """Seconds at which the clock begins an epoch, before this time."""
    starts, begin = [0], FIRST_S
    while begin < seconds:
        starts.append(begin)
        begin *= 2
    return tuple(starts)
