"""What a Tenant allows its requests: limits, prices, a budget."""

from dataclasses import dataclass, field

from .estimate import DEFAULT_OUTPUT_TOKENS
from .prices import Price, price_of
from .tenant import Limits

_MAX_FOUND = 4096  # names whose price is remembered


@dataclass(frozen=True, slots=True)
class Budget:
    """Most that a tenant may spend in a day and in a month, in billionths of the currency; None: no bound."""

    day_nano: int | None = None
    month_nano: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is a bound."""
        return self.day_nano is not None or self.month_nano is not None

    def part(self, parts: int) -> "Budget":
        """The budget of one gateway, where each of `parts` gateways knows only its own spending."""
        if parts <= 1:
            return self
        day, month = (None if amount is None else amount // parts for amount in (self.day_nano, self.month_nano))
        return Budget(day, month)


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """What one request may have, in tokens; 0: no bound.

    `long_context`: estimated tokens of a prompt from which a request is one of at most `long_concurrency`.
    """

    context: int = 0
    output: int = 0
    long_context: int = 0
    long_concurrency: int = 0

    @property
    def any(self) -> bool:
        """Whether there is a bound."""
        return bool(self.context or self.output or self.long_context)


@dataclass(frozen=True, slots=True)
class Policy:
    """`output_tokens`: tokens that a request without a limit of its own reserves. Without limits nothing is refused."""

    limits: Limits = field(default_factory=Limits)
    prices: tuple[Price, ...] = ()
    budget: Budget = field(default_factory=Budget)
    output_tokens: int = DEFAULT_OUTPUT_TOKENS
    bounds: RequestBounds = field(default_factory=RequestBounds)
    _found: dict[tuple[str, str], Price] = field(init=False, default_factory=dict, compare=False, repr=False)

    def price_of(self, route: str, model: str) -> Price:
        """The price of a model by either of its names, looked up once."""
        found = self._found.get((route, model))
        if found is None:
            if len(self._found) >= _MAX_FOUND:
                self._found.clear()
            found = self._found[route, model] = price_of(self.prices, route, model)
        return found
