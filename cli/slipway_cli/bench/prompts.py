"""Prompts of a length in tokens, none of which begins as another one does: no cache has an answer or a prefix."""

from dataclasses import dataclass

_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father "
    "power hour game line end member law car city name team minute idea kid body back parent face others level "
    "office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Tokens:
    """How many tokens a prompt of so many words has at this server: `fixed`, and `each` for a word."""

    fixed: float = 0.0
    each: float = 1.0

    def words(self, tokens: int) -> int:
        """Words of a prompt of this length; at least one."""
        return max(1, round((tokens - self.fixed) / self.each))

    @classmethod
    def fitted(cls, first: tuple[int, int], second: tuple[int, int]) -> "Tokens":
        """Through two pairs of words and tokens; one token for a word where they make no sense."""
        (words_a, tokens_a), (words_b, tokens_b) = first, second
        each = (tokens_b - tokens_a) / (words_b - words_a)
        if not 0.1 <= each <= 20:
            return cls()
        return cls(max(0.0, tokens_a - each * words_a), each)


def prompt(mark: str, number: int, words: int) -> str:
    """A prompt with this number of words. `mark`: of this run, so that two runs share no prefix either."""
    stride = 1 + number % (len(_WORDS) - 1)
    chosen = (_WORDS[(number + place * stride) % len(_WORDS)] for place in range(words - 1))
    return " ".join((f"{mark}{number}", *chosen))
