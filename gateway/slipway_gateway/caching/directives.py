"""What the header Cache-Control of a request demands (pure): RFC 9111, section 5.2.1."""

from collections.abc import Collection, Iterable

import msgspec

_MOST_S = 1 << 31  # RFC 9111: a larger number counts as this one
_MOST_CHARS = 1024  # of a header that is read; the rest of a longer one demands nothing


class Directives(msgspec.Struct, frozen=True):
    """`max_age_s`: the greatest age of a response that the client takes; None: any."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age_s: int | None = None

    def takes(self, age_s: float) -> bool:
        """Whether the client takes a kept response of this age."""
        if self.no_cache or self.no_store:
            return False
        return self.max_age_s is None or age_s <= self.max_age_s


NONE = Directives()


def directives_of(values: Collection[str]) -> Directives:
    """The directives of all headers Cache-Control of a request. Unknown ones demand nothing."""
    if not values:
        return NONE
    given = dict(_pairs(values))
    return Directives(
        "no-store" in given,
        "no-cache" in given,
        "only-if-cached" in given,
        _seconds(given["max-age"]) if "max-age" in given else None,
    )


def names_of(values: Iterable[str]) -> set[str]:
    """The names of all directives, in lower case."""
    return {name for name, _ in _pairs(values)}


def _pairs(values: Iterable[str]) -> Iterable[tuple[str, str]]:
    for part in ",".join(values)[:_MOST_CHARS].split(","):
        name, _, value = part.partition("=")
        if name := name.strip().lower():
            yield name, value.strip().strip('"')


def _seconds(text: str) -> int:
    """A number of seconds; 0 for what is none, so that a client never gets a response older than it may have meant."""
    if not (text.isascii() and text.isdigit()):
        return 0
    return min(int(text), _MOST_S) if len(text) <= len(str(_MOST_S)) else _MOST_S
