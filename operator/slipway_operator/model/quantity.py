"""Quantities as Kubernetes writes them (apimachinery's resource.Quantity), without floating point.

Not `kubernetes.utils.quantity`: it accepts what the API server refuses (`1K`, ` 1`, `1_000`, `1e3Ki`), rounds to 28
digits and does not write the canonical form. `tests/contract/test_quantities.py` compares this module with both.
"""

import re
from fractions import Fraction
from math import ceil

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
# No quantity needs an exponent with more than two digits; a huge one would only cost memory.
_QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_LONGEST = 64  # characters


def parse(text: str) -> Fraction:
    """Return the exact value of a quantity like `500m`, `1.5`, `2Gi` or `1e3`.

    Raises:
        ValueError: when the text is no quantity; the message shows the format.
    """
    found = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if not found:
        raise ValueError(f"{text[:_LONGEST]!r} is no quantity: write for example 4, 500m or 2Gi")
    number, exponent, suffix = Fraction(found[1]), found[2], found[3] or ""
    if exponent:
        return number * Fraction(10) ** int(exponent)
    return number * 2 ** _BINARY[suffix] if suffix in _BINARY else number * Fraction(10) ** _DECIMAL[suffix]


def render(value: Fraction | int) -> str:
    """Return the canonical decimal form: an integer with the largest possible suffix, exact to a billionth.

    Finer values are rounded up, as Kubernetes does: a small demand never becomes 0.
    """
    if value < 0:
        return f"-{render(-value)}"
    billionths = ceil(Fraction(value) * 10**9)
    if billionths == 0:
        return "0"
    for suffix, exponent in sorted(_DECIMAL.items(), key=lambda item: -item[1]):
        whole, rest = divmod(billionths, 10 ** (exponent + 9))
        if not rest:
            return f"{whole}{suffix}"
    raise AssertionError("a billionth divides every number of billionths")
