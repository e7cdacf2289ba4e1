"""What tokens cost, in whole numbers: a billionth of the currency is one `nano`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from .usage import Usage

NANO = 1_000_000_000
# The most that one request costs: a billion of the currency. Ledgers add up costs in 64 bits.
MAX_COST_NANO = 10**18
_AMOUNT = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a million tokens (`_micro`: millionths of the currency) and of a request (`_nano`: billionths).

    `model`: a name, or the beginning of names and a `*`. `cached_input_micro`: of cached input; None: as other input.
    `hit_percentage`: what the tokens of a response from a gateway's cache cost, in percent of their price.
    """

    model: str
    input_micro: int = 0
    output_micro: int = 0
    cached_input_micro: int | None = None
    request_nano: int = 0
    hit_percentage: int = 0

    def cost_nano(self, usage: Usage) -> int:
        """The cost of one request in billionths of the currency, rounded up once, at most `MAX_COST_NANO`."""
        return min(MAX_COST_NANO, self.request_nano - (-self._pico(usage) // 1000))

    def hit_cost_nano(self, usage: Usage) -> int:
        """The cost of a request whose response came from a gateway's cache."""
        return min(MAX_COST_NANO, self.request_nano - (-self._pico(usage) * self.hit_percentage // 100_000))

    def _pico(self, usage: Usage) -> int:
        """The price of the tokens alone, in thousandths of a billionth."""
        cached = self.input_micro if self.cached_input_micro is None else self.cached_input_micro
        fresh = usage.input_tokens - usage.cached_tokens
        return fresh * self.input_micro + usage.cached_tokens * cached + usage.output_tokens * self.output_micro


FREE = Price("*")


def price_of(prices: Sequence[Price], *names: str) -> Price:
    """The price that matches a name best, else `FREE`: whole names come before beginnings, longer ones first."""
    best = FREE
    for price in prices:
        for name in names:
            if _matches(price.model, name) and (best is FREE or _rank(price) > _rank(best)):
                best = price
    return best


def _rank(price: Price) -> tuple[bool, int]:
    return not price.model.endswith("*"), len(price.model)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def micro(amount: str, path: str = "amount") -> int:
    """`0.15` → 150000.

    Raises:
        ValueError: it is no amount; the message has its `path`.
    """
    return _whole(amount, 1_000_000, path)


def nano(amount: str, path: str = "amount") -> int:
    return _whole(amount, NANO, path)


def _whole(amount: str, parts: int, path: str) -> int:
    if not _AMOUNT.fullmatch(amount):
        raise ValueError(f"{path} must be an amount like 0.15, with at most 6 decimals, not {amount[:40]!r}")
    return int(Decimal(amount) * parts)


def shown(nano_amount: int) -> str:
    """`1500000000` → `1.50`: two decimals, or more where the amount has more."""
    amount = Decimal(nano_amount) / NANO
    cents = amount.quantize(Decimal("0.01"))
    return str(cents) if cents == amount else f"{amount.normalize():f}"
