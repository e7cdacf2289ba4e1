"""How sure a proportion is."""

import math


def wilson(hits: int, runs: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95 % interval for a proportion."""
    if not runs:
        return 0.0, 1.0
    p, scale = hits / runs, 1 + z * z / runs
    middle = (p + z * z / (2 * runs)) / scale
    half = z / scale * math.sqrt(p * (1 - p) / runs + z * z / (4 * runs * runs))
    return max(0.0, middle - half), min(1.0, middle + half)
